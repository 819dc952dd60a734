/* lever bench kernels: matrix products of one shape by weight type, rows and threads. */
#include "cli/bench.h"
#include "cli/cli.h"
#include "common/json.h"
#include "common/threads.h"
#include "engine/kernels/bench.h"
#include <math.h>
#include <string.h>
#include <strings.h>

typedef struct kernels_options {
    const char *types, *rows, *threads;
    int level;
    uint32_t n_out, n_in, reps;
    bool json;
} kernels_options;

#define ALL_TYPES "q8_0,q4_0,q4_1,q5_0,q5_1,q4_k,q5_k,q6_k,bf16,f16,f32"
#define FIELD(f) offsetof(kernels_options, f)

static const lvr_param table[] = {
    {.name = "types",
     .type = LVR_PARAM_STR,
     .offset = FIELD(types),
     .def = NAN,
     .def_str = ALL_TYPES,
     .help = "weight types, separated by commas"},
    {.name = "rows",
     .type = LVR_PARAM_STR,
     .offset = FIELD(rows),
     .def = NAN,
     .def_str = "1,2,4,8,16,32,64",
     .help = "rows of activations"},
    LVR_BENCH_OPTION_THREAD_LIST(kernels_options),
    LVR_BENCH_OPTION_LEVEL(kernels_options),
    {.name = "outputs",
     .type = LVR_PARAM_U32,
     .offset = FIELD(n_out),
     .min = 1,
     .max = 1 << 20,
     .def = 2048,
     .help = "outputs of the matrix"},
    {.name = "inputs",
     .type = LVR_PARAM_U32,
     .offset = FIELD(n_in),
     .min = 32,
     .max = 1 << 20,
     .def = 2048,
     .help = "inputs of the matrix, a multiple of the type's block (32, K types 256)"},
    {.name = "reps",
     .type = LVR_PARAM_U32,
     .offset = FIELD(reps),
     .min = 1,
     .max = 100000,
     .def = 20,
     .help = "runs of each, the fastest counts"},
    LVR_BENCH_OPTION_JSON(kernels_options),
};

#define N_PARAMS (sizeof table / sizeof *table)

/* What is measured, once the options are understood. */
typedef struct plan {
    lvr_wtype types[LVR_WTYPE_SLOTS];
    uint32_t n_types;
    lvr_bench_list rows, threads;
    lvr_cpu_level level;
    const kernels_options *options;
} plan;

/* LVR_WTYPE_SLOTS: no such type. */
static lvr_wtype type_named(const char *name, size_t n)
{
    unsigned t = 0;
    for (; t < LVR_WTYPE_SLOTS; t++) {
        const char *known = lvr_wtype_name((lvr_wtype)t);
        if (known != NULL && strlen(known) == n && strncasecmp(known, name, n) == 0)
            break;
    }
    return (lvr_wtype)t;
}

static lvr_status parse_types(const char *text, plan *p, lvr_error *err)
{
    for (const char *at = text;; at++) {
        const size_t n = strcspn(at, ",");
        const lvr_wtype type = type_named(at, n);
        if (type == LVR_WTYPE_SLOTS || p->n_types == LVR_WTYPE_SLOTS)
            return lvr_fail(err, LVR_ERR_USAGE,
                            "--types: expected some of %s separated by commas, found '%s'", ALL_TYPES, text);
        p->types[p->n_types++] = type;
        at += n;
        if (*at == '\0')
            return LVR_OK;
    }
}

static lvr_status make_plan(const kernels_options *o, plan *ret, lvr_error *err)
{
    plan p = {.options = o};
    lvr_status status = parse_types(o->types, &p, err);
    if (status == LVR_OK)
        status = lvr_bench_parse_list("rows", o->rows, 4096, &p.rows, err);
    if (status == LVR_OK)
        status = lvr_bench_parse_list("threads", o->threads, LVR_POOL_MAX_THREADS, &p.threads, err);
    if (status == LVR_OK)
        status = lvr_bench_level(o->level, &p.level, err);
    if (status == LVR_OK && o->n_in % LVR_BLOCK != 0)
        status =
            lvr_fail(err, LVR_ERR_USAGE, "--inputs: expected a multiple of %u, found %u", LVR_BLOCK, o->n_in);
    if (status == LVR_OK)
        *ret = p;
    return status;
}

typedef struct report {
    lvr_buf *out;
    lvr_json *json; /* NULL: text */
} report;

static void report_begin(const report *r, const plan *p)
{
    if (!r->json) {
        lvr_buf_printf(r->out, "matrix %u x %u, level %s\n%-8s%8s%9s%14s%12s%12s\n", p->options->n_out,
                       p->options->n_in, lvr_cpu_level_name(p->level), "type", "rows", "threads", "ns",
                       "Gop/s", "GB/s");
        return;
    }
    lvr_json_object(r->json, NULL);
    lvr_json_u64(r->json, "outputs", p->options->n_out);
    lvr_json_u64(r->json, "inputs", p->options->n_in);
    lvr_json_array(r->json, "results");
}

static void report_one(const report *r, const plan *p, lvr_wtype type, uint32_t rows, uint32_t threads,
                       double ns)
{
    const kernels_options *o = p->options;
    const double gops = 2.0 * o->n_out * o->n_in * rows / ns;
    const double gbytes_per_s = (double)lvr_packed_bytes(type, o->n_out, o->n_in) / ns;
    if (!r->json) {
        lvr_buf_printf(r->out, "%-8s%8u%9u%14.0f%12.2f%12.2f\n", lvr_wtype_name(type), rows, threads, ns,
                       gops, gbytes_per_s);
        return;
    }
    lvr_json_object(r->json, NULL);
    lvr_json_str(r->json, "family", "matmul");
    lvr_json_str(r->json, "type", lvr_wtype_name(type));
    lvr_json_str(r->json, "unit", "cpu");
    lvr_json_str(r->json, "level", lvr_cpu_level_name(p->level));
    lvr_json_u64(r->json, "rows", rows);
    lvr_json_u64(r->json, "threads", threads);
    lvr_json_double(r->json, "ns", ns);
    lvr_json_double(r->json, "gops", gops);
    lvr_json_double(r->json, "gbytes_per_s", gbytes_per_s);
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

static lvr_status measure_type(const plan *p, lvr_wtype type, const report *r, lvr_error *err)
{
    const kernels_options *o = p->options;
    for (uint32_t t = 0; t < p->threads.n; t++)
        for (uint32_t i = 0; i < p->rows.n; i++) {
            const uint32_t rows = p->rows.values[i], threads = p->threads.values[t];
            double ns;
            lvr_status status = lvr_bench_check_cancel(err);
            if (status == LVR_OK)
                status =
                    lvr_bench_kernels(type, o->n_out, o->n_in, rows, threads, p->level, o->reps, &ns, err);
            if (status != LVR_OK)
                return status;
            report_one(r, p, type, rows, threads, ns);
        }
    return LVR_OK;
}

lvr_status lvr_bench_kernels_cmd(int argc, char *const *argv, lvr_error *err)
{
    kernels_options o;
    bool help = false;
    lvr_params_default(table, N_PARAMS, &o);
    lvr_status status = lvr_options_parse(table, N_PARAMS, &o, argc, argv, &help, err);
    if (status != LVR_OK)
        return status;
    if (help)
        return lvr_bench_print_help("usage: lever bench kernels [options]\n\n", table, N_PARAMS, err);
    plan p;
    status = make_plan(&o, &p, err);
    if (status != LVR_OK)
        return status;
    lvr_buf out = LVR_BUF_INIT;
    lvr_json json;
    lvr_json_init(&json, &out, true);
    const report r = {.out = &out, .json = o.json ? &json : NULL};
    report_begin(&r, &p);
    for (uint32_t i = 0; i < p.n_types && status == LVR_OK; i++)
        status = measure_type(&p, p.types[i], &r, err);
    report_end(&r);
    if (status == LVR_OK)
        return lvr_bench_print(&out, err);
    lvr_buf_free(&out);
    return status;
}
