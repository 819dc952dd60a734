/* lever bench model: whole passes (embeddings and all layers) of a resident model by row count, and its head.
 */
#include "cli/bench.h"
#include "cli/cli.h"
#include "common/clock.h"
#include "common/json.h"
#include "common/stats.h"
#include "engine/forward.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ROWS 256u
#define MAX_CONTEXT (1u << 20)

/* Each point is run until both are reached, or the cap. */
#define MIN_RUNS 9u
#define MIN_NS 300000000ull
#define MAX_RUNS 2000u

typedef struct model_options {
    const char *model, *rows, *threads;
    int level;
    uint32_t context;
    bool json;
} model_options;

#define FIELD(f) offsetof(model_options, f)

static const lvr_param table[] = {
    {.name = "model",
     .short_name = 'm',
     .type = LVR_PARAM_STR,
     .offset = FIELD(model),
     .def = NAN,
     .help = "the model: a GGUF or a pack",
     .positional = true},
    {.name = "rows",
     .type = LVR_PARAM_STR,
     .offset = FIELD(rows),
     .def = NAN,
     .def_str = "1,2,4,8,16,32,64",
     .help = "rows of a pass, separated by commas"},
    {.name = "threads",
     .short_name = 't',
     .type = LVR_PARAM_STR,
     .offset = FIELD(threads),
     .def = NAN,
     .def_str = "1",
     .help = "threads, separated by commas"},
    {.name = "level",
     .type = LVR_PARAM_ENUM,
     .offset = FIELD(level),
     .min = 0,
     .max = 2,
     .def = 0,
     .choices = LVR_BENCH_LEVEL_CHOICES,
     .help = "SIMD level"},
    {.name = "context",
     .short_name = 'c',
     .type = LVR_PARAM_U32,
     .offset = FIELD(context),
     .min = 0,
     .max = MAX_CONTEXT,
     .def = 0,
     .unit = "positions",
     .help = "positions already in the KV cache"},
    {.name = "json",
     .type = LVR_PARAM_BOOL,
     .offset = FIELD(json),
     .max = 1,
     .help = "JSON on standard output"},
};

#define N_PARAMS (sizeof table / sizeof *table)

typedef struct plan {
    const model_options *options;
    lvr_bench_list rows, threads;
    lvr_cpu_level level;
    uint32_t max_rows;
} plan;

typedef struct result {
    uint32_t rows, threads;
    double ns, head_ns; /* medians; head_ns: of all rows in one go */
    double least_ns;    /* of the pass: what the machine does when nothing else runs */
} result;

/* One model with what a pass needs, for one thread count. */
typedef struct bench_state {
    lvr_model *model;
    lvr_kernels kernels;
    lvr_kv kv;
    lvr_pool *pool;
    lvr_forward *forward;
    float *logits; /* [max_rows][vocab] */
    lvr_fwd_row rows[MAX_ROWS];
    uint32_t row_index[MAX_ROWS];
} bench_state;

/* A binary tree after the context. */
static void plant_rows(bench_state *s, uint32_t context)
{
    for (uint32_t r = 0; r < MAX_ROWS; r++) {
        const int32_t parent = r == 0 ? -1 : (int32_t)((r - 1) / 2);
        s->rows[r] = (lvr_fwd_row){.token = (int32_t)(r * 7919u % s->model->shape->vocab),
                                   .position = r == 0 ? context : s->rows[parent].position + 1,
                                   .slot = r,
                                   .parent_slot = parent};
        s->row_index[r] = r;
    }
}

static lvr_status run_pass(bench_state *s, uint32_t n_rows, double *ret_ns, double *ret_head_ns,
                           lvr_error *err)
{
    const uint64_t start = lvr_now_ns();
    const lvr_status status = lvr_forward_embed(s->forward, s->rows, n_rows, err);
    if (status != LVR_OK)
        return status;
    for (uint32_t l = 0; l < s->model->shape->n_layers; l++)
        lvr_forward_layer(s->forward, l, NULL);
    const uint64_t layers_done = lvr_now_ns();
    lvr_forward_heads(s->forward, s->row_index, n_rows, s->logits);
    *ret_ns = (double)(layers_done - start);
    *ret_head_ns = (double)(lvr_now_ns() - layers_done);
    return LVR_OK;
}

static lvr_status measure_rows(bench_state *s, uint32_t n_rows, result *ret, lvr_error *err)
{
    double ns[MAX_RUNS], head_ns[MAX_RUNS];
    uint32_t n = 0;
    double warm_up, warm_up_head;
    lvr_status status = run_pass(s, n_rows, &warm_up, &warm_up_head, err);
    const uint64_t start = lvr_now_ns();
    while (status == LVR_OK && n < MAX_RUNS && (n < MIN_RUNS || lvr_now_ns() - start < MIN_NS)) {
        status = lvr_bench_check_cancel(err);
        if (status == LVR_OK)
            status = run_pass(s, n_rows, &ns[n], &head_ns[n], err);
        n++;
    }
    if (status != LVR_OK)
        return status;
    *ret = (result){.rows = n_rows,
                    .threads = lvr_pool_size(s->pool),
                    .ns = lvr_median(ns, n),
                    .least_ns = lvr_quantile(ns, n, 0),
                    .head_ns = lvr_median(head_ns, n)};
    return LVR_OK;
}

static lvr_status measure_threads(bench_state *s, const plan *p, uint32_t threads, result *results,
                                  lvr_error *err)
{
    lvr_status status = lvr_pool_new(threads, &s->pool, err);
    if (status == LVR_OK)
        status = lvr_forward_new(s->model, &s->kernels, s->pool, &s->kv, p->max_rows, &s->forward, err);
    for (uint32_t i = 0; i < p->rows.n && status == LVR_OK; i++)
        status = measure_rows(s, p->rows.values[i], &results[i], err);
    lvr_forward_free(s->forward);
    lvr_pool_free(s->pool);
    s->forward = NULL;
    s->pool = NULL;
    return status;
}

static lvr_status prepare(bench_state *s, const plan *p, lvr_error *err)
{
    lvr_status status = lvr_model_open(p->options->model, NULL, &s->model, err);
    if (status != LVR_OK)
        return status;
    const lvr_model_shape *shape = s->model->shape;
    const uint32_t n_ctx = p->options->context + p->max_rows;
    const uint32_t kv_dim = shape->n_kv * shape->head_dim;
    status = lvr_kv_init(&s->kv, shape->n_layers, n_ctx, p->max_rows, kv_dim, err);
    if (status != LVR_OK)
        return status;
    s->logits = calloc(p->max_rows, shape->vocab * sizeof *s->logits);
    if (!s->logits)
        return lvr_fail(err, LVR_ERR_NOMEM, "bench model: out of memory for the logits of %u rows",
                        p->max_rows);
    /* The time of attention does not depend on what the cache holds, as long as it is memory that is really
     * there. */
    const size_t cache = (size_t)shape->n_layers * n_ctx * kv_dim;
    memset(s->kv.k, 0, cache * sizeof *s->kv.k);
    memset(s->kv.v, 0, cache * sizeof *s->kv.v);
    s->kv.n_cached = p->options->context;
    lvr_kernels_init(&s->kernels, p->level);
    plant_rows(s, p->options->context);
    return LVR_OK;
}

static lvr_status measure(const plan *p, result *results, lvr_error *err)
{
    bench_state *s = calloc(1, sizeof *s);
    if (!s)
        return lvr_fail(err, LVR_ERR_NOMEM, "bench model: out of memory");
    lvr_status status = prepare(s, p, err);
    for (uint32_t t = 0; t < p->threads.n && status == LVR_OK; t++)
        status = measure_threads(s, p, p->threads.values[t], results + (size_t)t * p->rows.n, err);
    lvr_kv_free(&s->kv);
    lvr_model_free(s->model);
    free(s->logits);
    free(s);
    return status;
}

static void print_text(const plan *p, const result *results, uint32_t n, lvr_buf *out)
{
    lvr_buf_printf(out, "%s, level %s, context %u\n%8s%9s%14s%14s%14s\n", p->options->model,
                   lvr_cpu_level_name(p->level), p->options->context, "rows", "threads", "layers ms",
                   "least ms", "heads ms");
    for (uint32_t i = 0; i < n; i++)
        lvr_buf_printf(out, "%8u%9u%14.4f%14.4f%14.4f\n", results[i].rows, results[i].threads,
                       results[i].ns / 1e6, results[i].least_ns / 1e6, results[i].head_ns / 1e6);
}

static void print_json(const plan *p, const result *results, uint32_t n, lvr_buf *out)
{
    lvr_json j;
    lvr_json_init(&j, out, true);
    lvr_json_object(&j, NULL);
    lvr_json_str(&j, "model", p->options->model);
    lvr_json_str(&j, "level", lvr_cpu_level_name(p->level));
    lvr_json_u64(&j, "context", p->options->context);
    lvr_json_array(&j, "results");
    for (uint32_t i = 0; i < n; i++) {
        lvr_json_object(&j, NULL);
        lvr_json_u64(&j, "rows", results[i].rows);
        lvr_json_u64(&j, "threads", results[i].threads);
        lvr_json_str(&j, "unit", "cpu");
        lvr_json_double(&j, "ns", results[i].ns);
        lvr_json_double(&j, "least_ns", results[i].least_ns);
        lvr_json_double(&j, "heads_ns", results[i].head_ns);
        lvr_json_end_object(&j);
    }
    lvr_json_end_array(&j);
    lvr_json_end_object(&j);
    lvr_buf_puts(out, "\n");
}

static lvr_status make_plan(const model_options *o, plan *ret, lvr_error *err)
{
    plan p = {.options = o};
    if (!o->model)
        return lvr_fail(err, LVR_ERR_USAGE, "bench model: name a model: lever bench model FILE.gguf");
    lvr_status status = lvr_bench_parse_list("rows", o->rows, MAX_ROWS, &p.rows, err);
    if (status == LVR_OK)
        status = lvr_bench_parse_list("threads", o->threads, LVR_POOL_MAX_THREADS, &p.threads, err);
    if (status == LVR_OK)
        status = lvr_bench_level(o->level, &p.level, err);
    if (status != LVR_OK)
        return status;
    for (uint32_t i = 0; i < p.rows.n; i++)
        p.max_rows = p.rows.values[i] > p.max_rows ? p.rows.values[i] : p.max_rows;
    *ret = p;
    return LVR_OK;
}

static lvr_status run_plan(const plan *p, lvr_error *err)
{
    const uint32_t n = p->rows.n * p->threads.n;
    result *results = calloc(n, sizeof *results);
    if (!results)
        return lvr_fail(err, LVR_ERR_NOMEM, "bench model: out of memory");
    lvr_status status = measure(p, results, err);
    if (status == LVR_OK) {
        lvr_buf out = LVR_BUF_INIT;
        (p->options->json ? print_json : print_text)(p, results, n, &out);
        status = lvr_bench_print(&out, err);
    }
    free(results);
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
    plan p;
    status = make_plan(&o, &p, err);
    return status == LVR_OK ? run_plan(&p, err) : status;
}
