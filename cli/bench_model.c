/* lever bench model: whole passes of a resident model by row count and threads, and what is left of their
 * speed beside busy processes. */
#include "cli/bench_layers.h"
#include "cli/bench_passes.h"
#include "cli/busy.h"
#include "cli/cli.h"
#include "common/json.h"
#include "common/membw.h"
#include "common/threads.h"
#include "engine/accel/accel.h"
#include <math.h>

typedef struct model_options {
    const char *model, *rows, *threads;
    int level, accel, kv_type;
    uint32_t context, busy;
    uint64_t stream_bytes;
    bool json;
} model_options;

#define FIELD(f) offsetof(model_options, f)

static const lvr_param table[] = {
    LVR_BENCH_OPTION_MODEL(model_options),
    {.name = "rows",
     .type = LVR_PARAM_STR,
     .offset = FIELD(rows),
     .def = NAN,
     .def_str = "1,2,4,8,16,32,64",
     .help = "rows of a pass, separated by commas"},
    LVR_BENCH_OPTION_THREAD_LIST(model_options),
    LVR_BENCH_OPTION_LEVEL(model_options),
    {.name = "accel",
     .type = LVR_PARAM_ENUM,
     .offset = FIELD(accel),
     .min = 0,
     .max = LVR_ACCEL_BACK_END_COUNT,
     .def = 0,
     .choices = lvr_accel_choices,
     .help = "run the layers as tickets of this accelerator; the rest stays on the threads"},
    LVR_BENCH_OPTION_CONTEXT(model_options, LVR_BENCH_MAX_CONTEXT),
    LVR_BENCH_OPTION_KV_TYPE(model_options),
    {.name = "busy",
     .type = LVR_PARAM_U32,
     .offset = FIELD(busy),
     .min = 0,
     .max = LVR_BUSY_MAX,
     .def = 0,
     .unit = "processes",
     .help = "measure tokens/s alone and beside so many busy processes"},
    {.name = "stream",
     .type = LVR_PARAM_SIZE,
     .offset = FIELD(stream_bytes),
     .min = 0,
     .max = (double)(UINT64_C(64) << 30),
     .def = (double)LVR_MEMBW_BYTES,
     .unit = "bytes",
     .help = "buffer for the DRAM rate, several times the cache; 0: do not measure it"},
    LVR_BENCH_OPTION_JSON(model_options),
};

#define N_PARAMS (sizeof table / sizeof *table)

/* ---- results ---- */

static void text_passes(const lvr_bench_pass *r, uint32_t n, lvr_buf *out)
{
    lvr_buf_printf(out, "%6s%9s%12s%12s%12s%12s%8s%11s%10s%10s\n", "rows", "threads", "layers ms", "heads ms",
                   "pass ms", "median ms", "ratio", "tokens/s", "GB/s", "of DRAM");
    for (uint32_t i = 0; i < n; i++, r++) {
        lvr_buf_printf(out, "%6u%9u%12.4f%12.4f%12.4f%12.4f", r->rows, r->threads, r->layers_ns / 1e6,
                       r->heads_ns / 1e6, r->ns / 1e6, r->ns_median / 1e6);
        if (isnan(r->ratio))
            lvr_buf_printf(out, "%8s", "-");
        else
            lvr_buf_printf(out, "%8.2f", r->ratio);
        lvr_buf_printf(out, "%11.2f", r->rows * 1e9 / r->ns);
        if (!isnan(r->weights_bytes_per_s))
            lvr_buf_printf(out, "%10.2f", r->weights_bytes_per_s / 1e9);
        if (!isnan(r->weights_bytes_per_s) && r->stream_bytes_per_s > 0)
            lvr_buf_printf(out, "%9.0f%%", 100 * r->weights_bytes_per_s / r->stream_bytes_per_s);
        lvr_buf_puts(out, "\n");
    }
}

/* Once for each thread count: its results follow each other. */
static void text_stream(const lvr_bench_pass *r, uint32_t n, uint32_t n_rows, lvr_buf *out)
{
    for (uint32_t i = 0; i < n; i += n_rows)
        if (r[i].stream_bytes_per_s > 0)
            lvr_buf_printf(out, "DRAM read by %u thread%s: %.2f GB/s\n", r[i].threads,
                           r[i].threads > 1 ? "s" : "", r[i].stream_bytes_per_s / 1e9);
}

static void text_busy(const lvr_bench_pass *r, uint32_t n, uint32_t busy, lvr_buf *out)
{
    lvr_buf_printf(out, "%21s%28s %u busy\n%6s%9s%12s%8s%12s%8s%8s%8s%14s\n", "alone:", "beside", busy,
                   "rows", "threads", "tokens/s", "CPUs", "tokens/s", "CPUs", "kept", "fair", "kept of fair");
    for (uint32_t i = 0; i < n; i++, r++) {
        const double fair = lvr_bench_fair_share(r->threads, busy);
        lvr_buf_printf(out, "%6u%9u%12.2f%8.2f%12.2f%8.2f%8.3f%8.3f%14.3f\n", r->rows, r->threads,
                       r->alone.tokens_per_s, r->alone.processors, r->beside.tokens_per_s,
                       r->beside.processors, r->kept, fair, r->kept / fair);
    }
}

static void print_text(const lvr_bench_passes_plan *p, const lvr_bench_passes *r, lvr_buf *out)
{
    lvr_buf_printf(out, "%s, level %s, context %u, KV %s\n", p->model, lvr_cpu_level_name(p->level),
                   p->context, lvr_kv_type_name(p->kv_type));
    if (r->accel[0])
        lvr_buf_printf(out, "layers on accelerator %s: %s\n", r->accel, r->accel_engine);
    if (p->busy > 0) {
        text_busy(r->results, r->n, p->busy, out);
        return;
    }
    text_stream(r->results, r->n, p->rows.n, out);
    text_passes(r->results, r->n, out);
}

static void json_number(lvr_json *j, const char *key, double x)
{
    if (isnan(x))
        lvr_json_str(j, key, NULL);
    else
        lvr_json_double(j, key, x);
}

static void json_pass(const lvr_bench_pass *r, lvr_json *j)
{
    lvr_json_double(j, "ns", r->ns);
    lvr_json_double(j, "ns_median", r->ns_median);
    lvr_json_double(j, "layers_ns", r->layers_ns);
    lvr_json_double(j, "layers_ns_median", r->layers_ns_median);
    lvr_json_double(j, "heads_ns", r->heads_ns);
    lvr_json_double(j, "heads_ns_median", r->heads_ns_median);
    json_number(j, "ratio_to_one_row", r->ratio);
    json_number(j, "layers_ratio_to_one_row", r->layers_ratio);
    lvr_json_double(j, "tokens_per_s", r->rows * 1e9 / r->ns);
    if (!isnan(r->weights_bytes_per_s))
        lvr_json_double(j, "weights_gbytes_per_s", r->weights_bytes_per_s / 1e9);
    if (r->stream_bytes_per_s > 0) {
        lvr_json_double(j, "stream_gbytes_per_s", r->stream_bytes_per_s / 1e9);
        if (!isnan(r->weights_bytes_per_s))
            lvr_json_double(j, "stream_fraction", r->weights_bytes_per_s / r->stream_bytes_per_s);
    }
}

static void json_busy(const lvr_bench_pass *r, uint32_t busy, lvr_json *j)
{
    const double fair = lvr_bench_fair_share(r->threads, busy);
    lvr_json_double(j, "tokens_per_s_alone", r->alone.tokens_per_s);
    lvr_json_double(j, "processors_alone", r->alone.processors);
    lvr_json_double(j, "tokens_per_s_beside", r->beside.tokens_per_s);
    lvr_json_double(j, "processors_beside", r->beside.processors);
    lvr_json_double(j, "kept", r->kept);
    lvr_json_double(j, "fair_share", fair);
    lvr_json_double(j, "kept_of_fair_share", r->kept / fair);
}

static void print_json(const lvr_bench_passes_plan *p, const lvr_bench_passes *r, lvr_buf *out)
{
    lvr_json j;
    lvr_json_init(&j, out, true);
    lvr_json_object(&j, NULL);
    lvr_json_str(&j, "model", p->model);
    lvr_json_bool(&j, "synthetic", r->synthetic);
    lvr_json_str(&j, "level", lvr_cpu_level_name(p->level));
    lvr_json_str(&j, "accel", r->accel[0] ? r->accel_engine : NULL);
    lvr_json_u64(&j, "context", p->context);
    lvr_json_str(&j, "kv_type", lvr_kv_type_name(p->kv_type));
    lvr_json_u64(&j, "busy_processes", p->busy);
    lvr_json_double(&j, "weight_bytes", r->weight_bytes);
    lvr_json_array(&j, "results");
    for (uint32_t i = 0; i < r->n; i++) {
        lvr_json_object(&j, NULL);
        lvr_json_u64(&j, "rows", r->results[i].rows);
        lvr_json_u64(&j, "threads", r->results[i].threads);
        lvr_json_str(&j, "unit", r->accel[0] ? "npu" : "cpu");
        if (p->busy > 0)
            json_busy(&r->results[i], p->busy, &j);
        else
            json_pass(&r->results[i], &j);
        lvr_json_end_object(&j);
    }
    lvr_json_end_array(&j);
    lvr_json_end_object(&j);
    lvr_buf_puts(out, "\n");
}

/* ---- the command ---- */

static lvr_status make_plan(const model_options *o, lvr_bench_passes_plan *ret, lvr_error *err)
{
    lvr_bench_passes_plan p = {.model = o->model,
                               .accel = o->accel > 0 ? lvr_accel_choices[o->accel] : NULL,
                               .context = o->context,
                               .kv_type = (lvr_kv_type)o->kv_type,
                               .busy = o->busy,
                               .stream_bytes = o->stream_bytes};
    if (!o->model)
        return lvr_fail(err, LVR_ERR_USAGE, "bench model: name a model: lever bench model FILE.gguf");
    lvr_status status = lvr_bench_parse_list("rows", o->rows, LVR_BENCH_MAX_ROWS, &p.rows, err);
    if (status == LVR_OK)
        status = lvr_bench_parse_list("threads", o->threads, LVR_POOL_MAX_THREADS, &p.threads, err);
    if (status == LVR_OK)
        status = lvr_bench_level(o->level, &p.level, err);
    if (status == LVR_OK)
        *ret = p;
    return status;
}

lvr_status lvr_bench_model_cmd(int argc, char *const *argv, lvr_error *err)
{
    model_options o;
    bool help = false;
    lvr_params_default(table, N_PARAMS, &o);
    lvr_status status = lvr_options_parse(table, N_PARAMS, &o, argc, argv, &help, err);
    if (status != LVR_OK)
        return status;
    if (help)
        return lvr_bench_print_help("usage: lever bench model MODEL [options]\n\n", table, N_PARAMS, err);
    lvr_bench_passes_plan plan;
    lvr_bench_passes passes = {0};
    lvr_buf out = LVR_BUF_INIT;
    status = make_plan(&o, &plan, err);
    if (status == LVR_OK)
        status = lvr_bench_passes_run(&plan, &passes, err);
    if (status != LVR_OK)
        return status;
    (o.json ? print_json : print_text)(&plan, &passes, &out);
    lvr_bench_passes_free(&passes);
    return lvr_bench_print(&out, err);
}
