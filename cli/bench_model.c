/*
 * lever bench model: whole passes of a resident model by row count and threads, beside the rate at which this
 * machine reads its DRAM. Points are visited in turn, again and again, so that a disturbance meets all of
 * them. With --busy: what is left of the speed beside busy processes.
 */
#include "cli/bench.h"
#include "cli/busy.h"
#include "cli/cli.h"
#include "cli/session_options.h"
#include "common/clock.h"
#include "common/json.h"
#include "common/membw.h"
#include "common/stats.h"
#include "common/threads.h"
#include "engine/forward.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_ROWS 256u
#define MAX_CONTEXT (1u << 20)

/* All points are visited until both are reached; fewer times when it takes very long. */
#define MIN_VISITS 9u
#define MIN_NS_PER_POINT 300000000ull
#define LONG_NS 60000000000ull
#define LEAST_VISITS 3u
/* A visit runs passes for as long as this, at least one. */
#define VISIT_NS 3000000ull
#define MAX_SAMPLES 4096u

/* With --busy: long enough for many turns of the scheduler. */
#define BUSY_VISITS 5u
#define WINDOW_NS 400000000ull
#define SETTLE_NS 50000000ull

typedef struct model_options {
    const char *model, *rows, *threads;
    int level, accel;
    uint32_t context, busy;
    uint64_t stream_bytes;
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
     .max = LVR_CPU_LEVELS,
     .def = 0,
     .choices = LVR_BENCH_LEVEL_CHOICES,
     .help = "SIMD level"},
    {.name = "accel",
     .type = LVR_PARAM_ENUM,
     .offset = FIELD(accel),
     .min = 0,
     .max = 2,
     .def = 0,
     .choices = lvr_choices_accel,
     .help = "run the layers as tickets of this accelerator; the rest stays on the threads"},
    {.name = "context",
     .short_name = 'c',
     .type = LVR_PARAM_U32,
     .offset = FIELD(context),
     .min = 0,
     .max = MAX_CONTEXT,
     .def = 0,
     .unit = "positions",
     .help = "positions already in the KV cache"},
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
    uint32_t max_rows, n_points;
} plan;

/* What a thread count needs for itself. */
typedef struct unit {
    lvr_pool *pool;
    lvr_forward *forward;
    double stream_bytes_per_s; /* the best so far */
} unit;

typedef struct pass_time {
    double layers_ns, heads_ns; /* embeddings and layers; the head of every row */
} pass_time;

typedef struct window {
    double tokens_per_s, processors; /* CPU time by wall time */
} window;

/* One row count with one thread count. */
typedef struct point {
    uint32_t rows, n;
    unit *on;
    double *layers_ns, *heads_ns, *ns; /* [MAX_SAMPLES], n of them */
    window alone[BUSY_VISITS], beside[BUSY_VISITS];
} point;

typedef struct bench_state {
    const plan *plan;
    lvr_model *model;
    lvr_kernels kernels;
    lvr_accel *accel; /* NULL: layers run on the CPU */
    lvr_kv kv;
    lvr_membw *stream; /* NULL: not measured */
    lvr_busy busy;
    float *logits; /* [max_rows][vocab] */
    lvr_fwd_row rows[MAX_ROWS];
    uint32_t row_index[MAX_ROWS];
    unit units[LVR_BENCH_MAX_LIST];
    point *points; /* [n_points]: by thread count, then by rows */
    double *samples;
} bench_state;

/* ---- passes ---- */

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

static lvr_status run_layer(bench_state *s, const point *p, uint32_t layer, lvr_error *err)
{
    const lvr_accel_graph *graph = NULL;
    lvr_accel_ticket ticket = 0;
    lvr_accel_times t;
    if (!s->accel) {
        lvr_forward_layer(p->on->forward, layer, NULL);
        return LVR_OK;
    }
    lvr_status status = lvr_accel_graph_get(s->accel, p->on->forward, p->rows, &graph, err);
    if (status == LVR_OK)
        status = lvr_accel_submit(s->accel, graph, layer, NULL, &ticket, err);
    if (status == LVR_OK)
        lvr_accel_wait(s->accel, ticket, UINT64_MAX, &t);
    return status;
}

static lvr_status run_pass(bench_state *s, const point *p, pass_time *ret, lvr_error *err)
{
    lvr_status status = lvr_bench_check_cancel(err);
    if (status != LVR_OK)
        return status;
    const uint64_t start = lvr_now_ns();
    status = lvr_forward_embed(p->on->forward, s->rows, p->rows, err);
    if (status != LVR_OK)
        return status;
    for (uint32_t l = 0; l < s->model->shape->n_layers && status == LVR_OK; l++)
        status = run_layer(s, p, l, err);
    if (status != LVR_OK)
        return status;
    const uint64_t layers_done = lvr_now_ns();
    lvr_forward_heads(p->on->forward, s->row_index, p->rows, s->logits);
    *ret = (pass_time){.layers_ns = (double)(layers_done - start),
                       .heads_ns = (double)(lvr_now_ns() - layers_done)};
    return LVR_OK;
}

static lvr_status visit(bench_state *s, point *p, lvr_error *err)
{
    const uint64_t start = lvr_now_ns();
    do {
        if (p->n == MAX_SAMPLES)
            return LVR_OK;
        pass_time t;
        const lvr_status status = run_pass(s, p, &t, err);
        if (status != LVR_OK)
            return status;
        p->layers_ns[p->n] = t.layers_ns;
        p->heads_ns[p->n] = t.heads_ns;
        p->ns[p->n++] = t.layers_ns + t.heads_ns;
    } while (lvr_now_ns() - start < VISIT_NS);
    return LVR_OK;
}

static void measure_stream(bench_state *s, unit *u)
{
    const double rate = lvr_membw_read(s->stream, u->pool);
    if (rate > u->stream_bytes_per_s)
        u->stream_bytes_per_s = rate;
}

static lvr_status visit_all(bench_state *s, lvr_error *err)
{
    for (uint32_t t = 0; t < s->plan->threads.n && s->stream; t++)
        measure_stream(s, &s->units[t]);
    for (uint32_t i = 0; i < s->plan->n_points; i++) {
        const lvr_status status = visit(s, &s->points[i], err);
        if (status != LVR_OK)
            return status;
    }
    return LVR_OK;
}

static lvr_status measure_passes(bench_state *s, lvr_error *err)
{
    const uint64_t wanted_ns = MIN_NS_PER_POINT * s->plan->n_points;
    lvr_status status = visit_all(s, err); /* warms up */
    for (uint32_t i = 0; i < s->plan->n_points; i++)
        s->points[i].n = 0;
    const uint64_t start = lvr_now_ns();
    for (uint32_t visits = 0; status == LVR_OK; visits++) {
        const uint64_t spent = lvr_now_ns() - start;
        if ((visits >= MIN_VISITS && spent >= wanted_ns) || (visits >= LEAST_VISITS && spent >= LONG_NS))
            break;
        status = visit_all(s, err);
    }
    return status;
}

/* ---- beside busy processes ---- */

static double cpu_ns(void)
{
    struct timespec t = {0};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* Passes one after the other. */
static lvr_status run_window(bench_state *s, const point *p, uint64_t window_ns, window *ret, lvr_error *err)
{
    const uint64_t start = lvr_now_ns();
    const double cpu_start = cpu_ns();
    uint64_t rows = 0, spent;
    do {
        pass_time t;
        const lvr_status status = run_pass(s, p, &t, err);
        if (status != LVR_OK)
            return status;
        rows += p->rows;
        spent = lvr_now_ns() - start;
    } while (spent < window_ns);
    *ret = (window){.tokens_per_s = (double)rows * 1e9 / (double)spent,
                    .processors = (cpu_ns() - cpu_start) / (double)spent};
    return LVR_OK;
}

static lvr_status visit_busy(bench_state *s, point *p, uint32_t n, lvr_error *err)
{
    window settled;
    lvr_status status = run_window(s, p, SETTLE_NS, &settled, err);
    if (status == LVR_OK)
        status = run_window(s, p, WINDOW_NS, &p->alone[n], err);
    if (status != LVR_OK)
        return status;
    lvr_busy_resume(&s->busy);
    status = run_window(s, p, SETTLE_NS, &settled, err);
    if (status == LVR_OK)
        status = run_window(s, p, WINDOW_NS, &p->beside[n], err);
    lvr_busy_pause(&s->busy);
    return status;
}

static lvr_status measure_busy(bench_state *s, lvr_error *err)
{
    for (uint32_t n = 0; n < BUSY_VISITS; n++)
        for (uint32_t i = 0; i < s->plan->n_points; i++) {
            const lvr_status status = visit_busy(s, &s->points[i], n, err);
            if (status != LVR_OK)
                return status;
        }
    return LVR_OK;
}

/* What a scheduler that treats all threads alike leaves to `threads` of them, as a part of what they have
 * alone. */
static double fair_share(uint32_t threads, uint32_t busy)
{
    const double cores = lvr_processors();
    const double fair = cores * threads / (threads + busy);
    return fmin(fair, threads) / fmin(cores, threads);
}

/* ---- preparation ---- */

static lvr_status prepare_units(bench_state *s, lvr_error *err)
{
    const plan *p = s->plan;
    lvr_status status = LVR_OK;
    for (uint32_t t = 0; t < p->threads.n && status == LVR_OK; t++) {
        unit *u = &s->units[t];
        status = lvr_pool_new(p->threads.values[t], &u->pool, err);
        if (status == LVR_OK)
            status = lvr_forward_new(s->model, &s->kernels, u->pool, &s->kv, p->max_rows, &u->forward, err);
    }
    return status;
}

static lvr_status prepare_points(bench_state *s, lvr_error *err)
{
    const plan *p = s->plan;
    s->points = calloc(p->n_points, sizeof *s->points);
    s->samples = calloc(p->n_points, 3 * MAX_SAMPLES * sizeof *s->samples);
    s->logits = calloc(p->max_rows, s->model->shape->vocab * sizeof *s->logits);
    if (!s->points || !s->samples || !s->logits)
        return lvr_fail(err, LVR_ERR_NOMEM, "bench model: out of memory for the logits of %u rows",
                        p->max_rows);
    for (uint32_t i = 0; i < p->n_points; i++) {
        double *samples = s->samples + (size_t)i * 3 * MAX_SAMPLES;
        s->points[i] = (point){.rows = p->rows.values[i % p->rows.n],
                               .on = &s->units[i / p->rows.n],
                               .layers_ns = samples,
                               .heads_ns = samples + MAX_SAMPLES,
                               .ns = samples + 2 * (size_t)MAX_SAMPLES};
    }
    return LVR_OK;
}

static lvr_status prepare_kv(bench_state *s, lvr_error *err)
{
    const lvr_model_shape *shape = s->model->shape;
    const uint32_t n_ctx = s->plan->options->context + s->plan->max_rows;
    const uint32_t kv_dim = shape->n_kv * shape->head_dim;
    const lvr_status status = lvr_kv_init(&s->kv, shape->n_layers, n_ctx, s->plan->max_rows, kv_dim, err);
    if (status != LVR_OK)
        return status;
    /* The time of attention does not depend on what the cache holds, as long as it is memory that is really
     * there. */
    const size_t cache = (size_t)shape->n_layers * n_ctx * kv_dim;
    memset(s->kv.k, 0, cache * sizeof *s->kv.k);
    memset(s->kv.v, 0, cache * sizeof *s->kv.v);
    s->kv.n_cached = s->plan->options->context;
    return LVR_OK;
}

static lvr_status prepare_accel(bench_state *s, lvr_error *err)
{
    const int choice = s->plan->options->accel;
    const lvr_accel_config c = {.name = lvr_choices_accel[choice], .kernels = &s->kernels};
    return choice > 0 ? lvr_accel_open(&c, &s->accel, err) : LVR_OK;
}

static lvr_status prepare(bench_state *s, lvr_error *err)
{
    const model_options *o = s->plan->options;
    lvr_status status = lvr_busy_start(o->busy, &s->busy, err);
    if (status == LVR_OK)
        status = lvr_model_open(o->model, NULL, &s->model, err);
    if (status == LVR_OK)
        status = prepare_kv(s, err);
    if (status != LVR_OK)
        return status;
    lvr_kernels_init(&s->kernels, s->plan->level);
    plant_rows(s, o->context);
    status = prepare_accel(s, err);
    if (status == LVR_OK)
        status = prepare_points(s, err);
    if (status == LVR_OK)
        status = prepare_units(s, err);
    if (status == LVR_OK && o->stream_bytes > 0 && o->busy == 0)
        status = lvr_membw_new(o->stream_bytes, &s->stream, err);
    return status;
}

static void free_state(bench_state *s)
{
    lvr_accel_close(s->accel);
    lvr_busy_end(&s->busy);
    for (uint32_t t = 0; t < s->plan->threads.n; t++) {
        lvr_forward_free(s->units[t].forward);
        lvr_pool_free(s->units[t].pool);
    }
    lvr_membw_free(s->stream);
    lvr_kv_free(&s->kv);
    lvr_model_free(s->model);
    free(s->points);
    free(s->samples);
    free(s->logits);
    free(s);
}

/* ---- results ---- */

typedef struct result {
    uint32_t rows, threads;
    double ns, layers_ns, heads_ns; /* least */
    double ns_median, layers_ns_median, heads_ns_median;
    double ratio, layers_ratio; /* to one row with the same threads; NaN: not measured */
    double stream_bytes_per_s;  /* 0: not measured */
    double weights_bytes_per_s; /* of a pass of one row, its head included; NaN: more rows */
    window alone, beside;       /* medians */
    double kept;                /* the ratio of tokens/s */
} result;

static double least(const double *x, uint32_t n)
{
    return lvr_quantile(x, n, 0);
}

static window median_window(const window *w)
{
    double tokens_per_s[BUSY_VISITS], processors[BUSY_VISITS];
    for (uint32_t i = 0; i < BUSY_VISITS; i++) {
        tokens_per_s[i] = w[i].tokens_per_s;
        processors[i] = w[i].processors;
    }
    return (window){.tokens_per_s = lvr_median(tokens_per_s, BUSY_VISITS),
                    .processors = lvr_median(processors, BUSY_VISITS)};
}

static const point *one_row(const bench_state *s, const point *p)
{
    for (uint32_t i = 0; i < s->plan->n_points; i++)
        if (s->points[i].on == p->on && s->points[i].rows == 1)
            return &s->points[i];
    return NULL;
}

/* Embeddings are looked up, not read through. */
static double weight_bytes(const lvr_model *m)
{
    uint64_t bytes = lvr_packed_bytes(m->head.type, m->head.n_out, m->head.n_in);
    for (uint32_t l = 0; l < m->shape->n_layers; l++)
        bytes += lvr_pack_layer_bytes(m->pack, l);
    return (double)bytes;
}

static result sum_up(const bench_state *s, const point *p)
{
    const point *one = one_row(s, p);
    result r = {.rows = p->rows,
                .threads = lvr_pool_size(p->on->pool),
                .ns = least(p->ns, p->n),
                .layers_ns = least(p->layers_ns, p->n),
                .heads_ns = least(p->heads_ns, p->n),
                .ns_median = lvr_median(p->ns, p->n),
                .layers_ns_median = lvr_median(p->layers_ns, p->n),
                .heads_ns_median = lvr_median(p->heads_ns, p->n),
                .stream_bytes_per_s = p->on->stream_bytes_per_s,
                .alone = median_window(p->alone),
                .beside = median_window(p->beside)};
    r.ratio = one ? r.ns / least(one->ns, one->n) : NAN;
    r.layers_ratio = one ? r.layers_ns / least(one->layers_ns, one->n) : NAN;
    r.weights_bytes_per_s = p->rows == 1 ? weight_bytes(s->model) * 1e9 / r.ns : NAN;
    r.kept = r.beside.tokens_per_s / r.alone.tokens_per_s;
    return r;
}

static void text_passes(const result *r, uint32_t n, lvr_buf *out)
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

static void text_stream(const bench_state *s, lvr_buf *out)
{
    for (uint32_t t = 0; t < s->plan->threads.n && s->stream; t++)
        lvr_buf_printf(out, "DRAM read by %u thread%s: %.2f GB/s\n", lvr_pool_size(s->units[t].pool),
                       lvr_pool_size(s->units[t].pool) > 1 ? "s" : "", s->units[t].stream_bytes_per_s / 1e9);
}

static void text_busy(const result *r, uint32_t n, uint32_t busy, lvr_buf *out)
{
    lvr_buf_printf(out, "%21s%28s %u busy\n%6s%9s%12s%8s%12s%8s%8s%8s%14s\n", "alone:", "beside", busy,
                   "rows", "threads", "tokens/s", "CPUs", "tokens/s", "CPUs", "kept", "fair", "kept of fair");
    for (uint32_t i = 0; i < n; i++, r++) {
        const double fair = fair_share(r->threads, busy);
        lvr_buf_printf(out, "%6u%9u%12.2f%8.2f%12.2f%8.2f%8.3f%8.3f%14.3f\n", r->rows, r->threads,
                       r->alone.tokens_per_s, r->alone.processors, r->beside.tokens_per_s,
                       r->beside.processors, r->kept, fair, r->kept / fair);
    }
}

static void print_text(const bench_state *s, const result *results, lvr_buf *out)
{
    const plan *p = s->plan;
    lvr_buf_printf(out, "%s, level %s, context %u\n", p->options->model, lvr_cpu_level_name(p->level),
                   p->options->context);
    if (s->accel)
        lvr_buf_printf(out, "layers on accelerator %s: %s\n", lvr_accel_get_caps(s->accel)->name,
                       lvr_accel_get_caps(s->accel)->engine);
    if (p->options->busy > 0) {
        text_busy(results, p->n_points, p->options->busy, out);
        return;
    }
    text_stream(s, out);
    text_passes(results, p->n_points, out);
}

static void json_number(lvr_json *j, const char *key, double x)
{
    if (isnan(x))
        lvr_json_str(j, key, NULL);
    else
        lvr_json_double(j, key, x);
}

static void json_pass(const result *r, lvr_json *j)
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

static void json_busy(const result *r, uint32_t busy, lvr_json *j)
{
    const double fair = fair_share(r->threads, busy);
    lvr_json_double(j, "tokens_per_s_alone", r->alone.tokens_per_s);
    lvr_json_double(j, "processors_alone", r->alone.processors);
    lvr_json_double(j, "tokens_per_s_beside", r->beside.tokens_per_s);
    lvr_json_double(j, "processors_beside", r->beside.processors);
    lvr_json_double(j, "kept", r->kept);
    lvr_json_double(j, "fair_share", fair);
    lvr_json_double(j, "kept_of_fair_share", r->kept / fair);
}

static void print_json(const bench_state *s, const result *results, lvr_buf *out)
{
    const plan *p = s->plan;
    lvr_json j;
    lvr_json_init(&j, out, true);
    lvr_json_object(&j, NULL);
    lvr_json_str(&j, "model", p->options->model);
    lvr_json_bool(&j, "synthetic",
                  lvr_gguf_bool_or(lvr_pack_gguf(s->model->pack), LVR_GGUF_SYNTHETIC, false));
    lvr_json_str(&j, "level", lvr_cpu_level_name(p->level));
    lvr_json_str(&j, "accel", s->accel ? lvr_accel_get_caps(s->accel)->engine : NULL);
    lvr_json_u64(&j, "context", p->options->context);
    lvr_json_u64(&j, "busy_processes", p->options->busy);
    lvr_json_double(&j, "weight_bytes", weight_bytes(s->model));
    lvr_json_array(&j, "results");
    for (uint32_t i = 0; i < p->n_points; i++) {
        lvr_json_object(&j, NULL);
        lvr_json_u64(&j, "rows", results[i].rows);
        lvr_json_u64(&j, "threads", results[i].threads);
        lvr_json_str(&j, "unit", s->accel ? "npu" : "cpu");
        if (p->options->busy > 0)
            json_busy(&results[i], p->options->busy, &j);
        else
            json_pass(&results[i], &j);
        lvr_json_end_object(&j);
    }
    lvr_json_end_array(&j);
    lvr_json_end_object(&j);
    lvr_buf_puts(out, "\n");
}

static lvr_status report(const bench_state *s, lvr_error *err)
{
    result *results = calloc(s->plan->n_points, sizeof *results);
    if (!results)
        return lvr_fail(err, LVR_ERR_NOMEM, "bench model: out of memory");
    for (uint32_t i = 0; i < s->plan->n_points; i++)
        results[i] = sum_up(s, &s->points[i]);
    lvr_buf out = LVR_BUF_INIT;
    (s->plan->options->json ? print_json : print_text)(s, results, &out);
    free(results);
    return lvr_bench_print(&out, err);
}

/* ---- the command ---- */

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
    p.n_points = p.rows.n * p.threads.n;
    *ret = p;
    return LVR_OK;
}

static lvr_status run_plan(const plan *p, lvr_error *err)
{
    bench_state *s = calloc(1, sizeof *s);
    if (!s)
        return lvr_fail(err, LVR_ERR_NOMEM, "bench model: out of memory");
    s->plan = p;
    lvr_status status = prepare(s, err);
    if (status == LVR_OK)
        status = p->options->busy > 0 ? measure_busy(s, err) : measure_passes(s, err);
    if (status == LVR_OK)
        status = report(s, err);
    free_state(s);
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
