/* lever bench flash: read rate and latency of a file's device, through the engine's own reader. */
#include "cli/bench.h"
#include "cli/cli.h"
#include "common/json.h"
#include "costmodel/core/device_preset.h"
#include "engine/flash/flash.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#define MAX_REQUEST_BYTES (UINT64_C(1) << 30)
#define WARM_UP_BYTES (UINT64_C(256) << 20)

typedef struct flash_options {
    const char *file, *bytes, *depths, *emulate;
    double emulate_scale, seconds;
    int engine, order;
    bool buffered, checksum, unregistered, json;
} flash_options;

#define FIELD(f) offsetof(flash_options, f)

enum { ENGINE_ALL = 3 };
static const char *const engine_choices[] = {"auto", "uring", "pread", "all", NULL};
enum { ORDER_SEQUENTIAL, ORDER_RANDOM };
static const char *const order_choices[] = {"sequential", "random", NULL};

static const lvr_param table[] = {
    {.name = "file",
     .type = LVR_PARAM_STR,
     .offset = FIELD(file),
     .def = NAN,
     .positional = true,
     .help = "file to read; larger than the caches between here and the device, or the rate is theirs"},
    {.name = "bytes",
     .type = LVR_PARAM_STR,
     .offset = FIELD(bytes),
     .def = NAN,
     .def_str = "64KiB,256KiB,1MiB",
     .help = "request sizes, multiples of 4 KiB, separated by commas"},
    {.name = "depth",
     .type = LVR_PARAM_STR,
     .offset = FIELD(depths),
     .def = NAN,
     .def_str = "1,4",
     .help = "requests in flight, separated by commas"},
    {.name = "engine",
     .type = LVR_PARAM_ENUM,
     .offset = FIELD(engine),
     .min = 0,
     .max = 3,
     .def = 0,
     .choices = engine_choices,
     .help = "how to read; all: uring and pread"},
    {.name = "order",
     .type = LVR_PARAM_ENUM,
     .offset = FIELD(order),
     .min = ORDER_SEQUENTIAL,
     .max = ORDER_RANDOM,
     .def = ORDER_SEQUENTIAL,
     .choices = order_choices,
     .help = "sequential: in file order, as a run streams layers"},
    {.name = "buffered",
     .type = LVR_PARAM_BOOL,
     .offset = FIELD(buffered),
     .max = 1,
     .help = "through the page cache instead of O_DIRECT"},
    {.name = "checksum",
     .type = LVR_PARAM_BOOL,
     .offset = FIELD(checksum),
     .max = 1,
     .help = "sum what is read, as a run does"},
    {.name = "unregistered",
     .type = LVR_PARAM_BOOL,
     .offset = FIELD(unregistered),
     .max = 1,
     .help = "do not register the buffer with io_uring"},
    {.name = "emulate-flash",
     .type = LVR_PARAM_STR,
     .offset = FIELD(emulate),
     .def = NAN,
     .help = "emulate this slower device: a preset's name or a YAML file"},
    {.name = "emulate-scale",
     .type = LVR_PARAM_DOUBLE,
     .offset = FIELD(emulate_scale),
     .min = 0.0001,
     .max = 1,
     .def = 1,
     .unit = "1",
     .help = "slow the emulated device down further, all ratios kept"},
    {.name = "seconds",
     .type = LVR_PARAM_DOUBLE,
     .offset = FIELD(seconds),
     .min = 0.01,
     .max = 3600,
     .def = 1,
     .unit = "s",
     .help = "time for each size and depth"},
    {.name = "json",
     .type = LVR_PARAM_BOOL,
     .offset = FIELD(json),
     .max = 1,
     .help = "JSON on standard output"},
};

#define N_PARAMS (sizeof table / sizeof *table)

typedef struct plan {
    const flash_options *options;
    uint64_t file_bytes;
    uint32_t n_sizes;
    uint64_t sizes[LVR_BENCH_MAX_LIST];
    lvr_bench_list depths;
    bool emulate;
    lvr_device_preset device;
} plan;

static lvr_status parse_size_item(const char *item, size_t n, uint64_t *ret, lvr_error *err)
{
    char text[32];
    uint64_t bytes = 0;
    if (n > 0 && n < sizeof text) {
        memcpy(text, item, n);
        text[n] = '\0';
        if (lvr_parse_size(text, &bytes, NULL) == LVR_OK && bytes > 0 && bytes % LVR_FLASH_ALIGN == 0 &&
            bytes <= MAX_REQUEST_BYTES) {
            *ret = bytes;
            return LVR_OK;
        }
    }
    return lvr_fail(
        err, LVR_ERR_USAGE,
        "--bytes: expected multiples of %u up to 1GiB separated by commas (64KiB,1MiB), found '%.*s'",
        LVR_FLASH_ALIGN, (int)(n < 40 ? n : 40), item);
}

static lvr_status parse_sizes(const char *text, plan *p, lvr_error *err)
{
    for (const char *at = text;; at++) {
        const size_t n = strcspn(at, ",");
        if (p->n_sizes == LVR_BENCH_MAX_LIST)
            return lvr_fail(err, LVR_ERR_USAGE, "--bytes: more than %u sizes", LVR_BENCH_MAX_LIST);
        const lvr_status status = parse_size_item(at, n, &p->sizes[p->n_sizes++], err);
        if (status != LVR_OK)
            return status;
        at += n;
        if (*at == '\0')
            return LVR_OK;
    }
}

/* Seeking to the end tells the size of a block device too, which stat does not. */
static lvr_status find_file_bytes(const char *path, uint64_t *ret, lvr_error *err)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return lvr_fail_errno(err, errno, "%s: cannot open", path);
    const off_t end = lseek(fd, 0, SEEK_END);
    const int errnum = errno;
    close(fd);
    if (end < 0)
        return lvr_fail_errno(err, errnum, "%s: cannot tell its size; give a regular file", path);
    *ret = (uint64_t)end;
    return LVR_OK;
}

static lvr_status load_device(const flash_options *o, plan *p, lvr_error *err)
{
    if (!o->emulate)
        return LVR_OK;
    lvr_status status = lvr_device_load(o->emulate, &p->device, err);
    if (status == LVR_OK)
        status = lvr_flash_params_scale(&p->device.flash, o->emulate_scale, err);
    p->emulate = status == LVR_OK;
    return status;
}

static lvr_status make_plan(const flash_options *o, plan *ret, lvr_error *err)
{
    plan p = {.options = o};
    if (!o->file)
        return lvr_fail(err, LVR_ERR_USAGE, "bench flash: give the file to read, e.g. a model");
    lvr_status status = parse_sizes(o->bytes, &p, err);
    if (status == LVR_OK)
        status = lvr_bench_parse_list("depth", o->depths, LVR_FLASH_MAX_DEPTH, &p.depths, err);
    if (status == LVR_OK)
        status = load_device(o, &p, err);
    if (status == LVR_OK)
        status = find_file_bytes(o->file, &p.file_bytes, err);
    if (status == LVR_OK)
        *ret = p;
    return status;
}

/* An emulated device is only honest where the real one is fast enough. */
static lvr_status check_emulation(const plan *p, uint64_t request_bytes, uint32_t depth, lvr_error *err)
{
    if (!p->emulate)
        return LVR_OK;
    lvr_flash_params wanted = p->device.flash;
    if (wanted.depth > depth)
        wanted.depth = depth;
    const uint64_t bytes = p->file_bytes < WARM_UP_BYTES ? p->file_bytes : WARM_UP_BYTES;
    double warm = 0;
    const lvr_status status = lvr_flash_warm_rate(p->options->file, p->options->buffered, 0, bytes,
                                                  request_bytes, depth, &lvr_cli_cancel, &warm, err);
    return status == LVR_OK ? lvr_flash_check_emulation(&wanted, request_bytes, warm, err) : status;
}

/* ---- the report ---- */

typedef struct report {
    lvr_buf *out;
    lvr_json *json; /* NULL: text */
} report;

static void report_begin(const report *r, const plan *p)
{
    if (!r->json) {
        lvr_buf_printf(r->out, "%s, %" PRIu64 " bytes, %s aligned reads%s%s%s\n", p->options->file,
                       p->file_bytes, order_choices[p->options->order],
                       p->options->checksum ? ", summed" : "", p->emulate ? ", emulating " : "",
                       p->emulate ? p->device.name : "");
        lvr_buf_printf(r->out, "%-8s%10s%7s%9s%12s%12s%9s%12s%8s\n", "engine", "bytes", "depth", "GB/s",
                       "p50 us", "p99 us", "direct", "registered", "CPU %");
        return;
    }
    lvr_json_object(r->json, NULL);
    lvr_json_str(r->json, "file", p->options->file);
    lvr_json_u64(r->json, "file_bytes", p->file_bytes);
    lvr_json_str(r->json, "emulated", p->emulate ? p->device.name : NULL);
    lvr_json_str(r->json, "order", order_choices[p->options->order]);
    lvr_json_bool(r->json, "checksum", p->options->checksum);
    lvr_json_array(r->json, "results");
}

static void report_one(const report *r, const char *engine, uint64_t bytes, uint32_t depth,
                       const lvr_flash_bench *b)
{
    if (!r->json) {
        lvr_buf_printf(r->out, "%-8s%10" PRIu64 "%7u%9.3f%12.1f%12.1f%9s%12s%8.1f\n", engine, bytes, depth,
                       b->bytes_per_s / 1e9, b->latency_ns_p50 / 1e3, b->latency_ns_p99 / 1e3,
                       b->direct ? "yes" : "no", b->registered ? "yes" : "no", b->cpu_share * 100);
        return;
    }
    lvr_json_object(r->json, NULL);
    lvr_json_str(r->json, "engine", engine);
    lvr_json_u64(r->json, "bytes", bytes);
    lvr_json_u64(r->json, "depth", depth);
    lvr_json_double(r->json, "gbytes_per_s", b->bytes_per_s / 1e9);
    lvr_json_double(r->json, "latency_ns_mean", b->latency_ns_mean);
    lvr_json_double(r->json, "latency_ns_p50", b->latency_ns_p50);
    lvr_json_double(r->json, "latency_ns_p90", b->latency_ns_p90);
    lvr_json_double(r->json, "latency_ns_p99", b->latency_ns_p99);
    lvr_json_u64(r->json, "requests", b->n);
    lvr_json_bool(r->json, "direct", b->direct);
    lvr_json_bool(r->json, "registered", b->registered);
    lvr_json_double(r->json, "cpu_share", b->cpu_share);
    lvr_json_end_object(r->json);
}

static void report_end(const report *r)
{
    if (!r->json)
        return;
    lvr_json_end_array(r->json);
    lvr_json_end_object(r->json);
    lvr_buf_puts(r->out, "\n");
}

/* ---- measuring ---- */

static lvr_status measure_one(const plan *p, lvr_flash_engine engine, uint64_t bytes, uint32_t depth,
                              const report *r, lvr_error *err)
{
    const flash_options *o = p->options;
    const lvr_flash_config config = {.path = o->file,
                                     .engine = engine,
                                     .buffered = o->buffered,
                                     .depth = depth,
                                     .checksum = o->checksum,
                                     .emulate = p->emulate,
                                     .emulated = p->device.flash};
    const lvr_flash_load load = {.file_bytes = p->file_bytes,
                                 .request_bytes = bytes,
                                 .budget_ns = (uint64_t)(o->seconds * 1e9),
                                 .random = o->order == ORDER_RANDOM,
                                 .unregistered = o->unregistered};
    lvr_flash_bench b = {0};
    lvr_status status = lvr_bench_check_cancel(err);
    if (status == LVR_OK)
        status = check_emulation(p, bytes, depth, err);
    if (status == LVR_OK)
        status = lvr_flash_bench_cell(&config, &load, &b, err);
    if (status == LVR_OK)
        report_one(r, engine == LVR_FLASH_URING ? "uring" : "pread", bytes, depth, &b);
    return status;
}

static lvr_status measure(const plan *p, lvr_flash_engine engine, const report *r, lvr_error *err)
{
    for (uint32_t i = 0; i < p->n_sizes; i++)
        for (uint32_t d = 0; d < p->depths.n; d++) {
            const lvr_status status = measure_one(p, engine, p->sizes[i], p->depths.values[d], r, err);
            if (status != LVR_OK)
                return status;
        }
    return LVR_OK;
}

/* auto is resolved here, so that the report names what was used. */
static lvr_status measure_engines(const plan *p, const report *r, lvr_error *err)
{
    lvr_status status = LVR_OK;
    if (p->options->engine == ENGINE_ALL) {
        status = measure(p, LVR_FLASH_URING, r, err);
        return status == LVR_OK ? measure(p, LVR_FLASH_PREAD, r, err) : status;
    }
    lvr_flash_engine engine = (lvr_flash_engine)p->options->engine;
    if (engine == LVR_FLASH_AUTO)
        engine = lvr_flash_probe_engine(LVR_FLASH_URING, NULL) == LVR_OK ? LVR_FLASH_URING : LVR_FLASH_PREAD;
    return measure(p, engine, r, err);
}

lvr_status lvr_bench_flash_cmd(int argc, char *const *argv, lvr_error *err)
{
    flash_options o;
    bool help = false;
    lvr_params_default(table, N_PARAMS, &o);
    lvr_status status = lvr_options_parse(table, N_PARAMS, &o, argc, argv, &help, err);
    if (status != LVR_OK)
        return status;
    if (help)
        return lvr_bench_print_help("usage: lever bench flash [options] FILE\n\n", table, N_PARAMS, err);
    plan p;
    status = make_plan(&o, &p, err);
    if (status != LVR_OK)
        return status;
    lvr_buf out = LVR_BUF_INIT;
    lvr_json json;
    lvr_json_init(&json, &out, true);
    const report r = {.out = &out, .json = o.json ? &json : NULL};
    report_begin(&r, &p);
    status = measure_engines(&p, &r, err);
    report_end(&r);
    if (status == LVR_OK)
        return lvr_bench_print(&out, err);
    lvr_buf_free(&out);
    return status;
}
