/*
 * Points are visited in turn, again and again, so that a disturbance meets all of them.
 */
#include "cli/bench_passes.h"

#include "cli/bench_layers.h"
#include "cli/busy.h"
#include "common/clock.h"
#include "common/membw.h"
#include "common/minmax.h"
#include "common/stats.h"
#include "common/threads.h"
#include "engine/accel/accel.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* All points are visited until both are reached; fewer times when it takes very long. */
#define MIN_VISITS 9u
#define MIN_NS_PER_POINT 300000000ull
#define LONG_NS 60000000000ull
#define LEAST_VISITS 3u
/* A visit runs passes for as long as this, at least one. */
#define VISIT_NS 3000000ull
#define MAX_SAMPLES 4096u

/* Beside busy processes: long enough for many turns of the scheduler. */
#define BUSY_VISITS 5u
#define WINDOW_NS 400000000ull
#define SETTLE_NS 50000000ull

/* What a thread count needs for itself. */
typedef struct unit {
    lvr_pool *pool;
    lvr_forward *forward;
    double stream_bytes_per_s; /* the best so far */
} unit;

typedef struct pass_time {
    double layers_ns, heads_ns; /* embeddings and layers; the head of every row */
} pass_time;

/* One row count with one thread count. */
typedef struct point {
    uint32_t rows, n;
    unit *on;
    double *layers_ns, *heads_ns, *ns; /* [MAX_SAMPLES], n of them */
    lvr_bench_window alone[BUSY_VISITS], beside[BUSY_VISITS];
} point;

typedef struct bench_state {
    const lvr_bench_passes_plan *plan;
    uint32_t max_rows, n_points;
    lvr_model *model;
    lvr_kernels kernels;
    lvr_accel *accel; /* NULL: layers run on the CPU */
    lvr_kv kv;
    lvr_membw *stream; /* NULL: not measured */
    lvr_busy busy;
    float *logits; /* [max_rows][vocab] */
    lvr_fwd_row rows[LVR_BENCH_MAX_ROWS];
    uint32_t row_index[LVR_BENCH_MAX_ROWS];
    unit units[LVR_BENCH_MAX_LIST];
    point *points; /* [n_points]: by thread count, then by rows */
    double *samples;
} bench_state;

/* ---- passes ---- */

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
    const uint64_t start = lvr_now_ns();
    lvr_status status = lvr_forward_embed(p->on->forward, s->rows, p->rows, err);
    /* After a long context a layer takes seconds. */
    for (uint32_t l = 0; l < s->model->shape->n_layers && status == LVR_OK; l++) {
        status = lvr_bench_check_cancel(err);
        if (status == LVR_OK)
            status = run_layer(s, p, l, err);
    }
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
    for (uint32_t i = 0; i < s->n_points; i++) {
        const lvr_status status = visit(s, &s->points[i], err);
        if (status != LVR_OK)
            return status;
    }
    return LVR_OK;
}

static lvr_status measure_passes(bench_state *s, lvr_error *err)
{
    const uint64_t wanted_ns = MIN_NS_PER_POINT * s->n_points;
    lvr_status status = visit_all(s, err); /* warms up */
    for (uint32_t i = 0; i < s->n_points; i++)
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
static lvr_status run_window(bench_state *s, const point *p, uint64_t window_ns, lvr_bench_window *ret,
                             lvr_error *err)
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
    *ret = (lvr_bench_window){.tokens_per_s = (double)rows * 1e9 / (double)spent,
                              .processors = (cpu_ns() - cpu_start) / (double)spent};
    return LVR_OK;
}

static lvr_status visit_busy(bench_state *s, point *p, uint32_t n, lvr_error *err)
{
    lvr_bench_window settled;
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
        for (uint32_t i = 0; i < s->n_points; i++) {
            const lvr_status status = visit_busy(s, &s->points[i], n, err);
            if (status != LVR_OK)
                return status;
        }
    return LVR_OK;
}

double lvr_bench_fair_share(uint32_t threads, uint32_t busy)
{
    const double cores = lvr_processors();
    const double fair = cores * threads / (threads + busy);
    return fmin(fair, threads) / fmin(cores, threads);
}

/* ---- preparation ---- */

static lvr_status prepare_units(bench_state *s, lvr_error *err)
{
    const lvr_bench_passes_plan *p = s->plan;
    lvr_status status = LVR_OK;
    for (uint32_t t = 0; t < p->threads.n && status == LVR_OK; t++) {
        unit *u = &s->units[t];
        status = lvr_pool_new(p->threads.values[t], &u->pool, err);
        if (status == LVR_OK)
            status =
                lvr_forward_new(s->model, &s->kernels, u->pool, &s->kv, s->max_rows, 0, &u->forward, err);
    }
    return status;
}

static lvr_status prepare_points(bench_state *s, lvr_error *err)
{
    const lvr_bench_passes_plan *p = s->plan;
    s->points = calloc(s->n_points, sizeof *s->points);
    s->samples = calloc(s->n_points, 3 * MAX_SAMPLES * sizeof *s->samples);
    s->logits = calloc(s->max_rows, s->model->shape->vocab * sizeof *s->logits);
    if (!s->points || !s->samples || !s->logits)
        return lvr_fail(err, LVR_ERR_NOMEM, "bench model: out of memory for the logits of %u rows",
                        s->max_rows);
    for (uint32_t i = 0; i < s->n_points; i++) {
        double *samples = s->samples + (size_t)i * 3 * MAX_SAMPLES;
        s->points[i] = (point){.rows = p->rows.values[i % p->rows.n],
                               .on = &s->units[i / p->rows.n],
                               .layers_ns = samples,
                               .heads_ns = samples + MAX_SAMPLES,
                               .ns = samples + 2 * (size_t)MAX_SAMPLES};
    }
    return LVR_OK;
}

static lvr_status prepare_accel(bench_state *s, lvr_error *err)
{
    const lvr_accel_config c = {.name = s->plan->accel, .kernels = &s->kernels};
    return c.name ? lvr_accel_open(&c, &s->accel, err) : LVR_OK;
}

static lvr_status prepare(bench_state *s, lvr_error *err)
{
    const lvr_bench_passes_plan *p = s->plan;
    lvr_status status = lvr_busy_start(p->busy, &s->busy, err);
    if (status == LVR_OK)
        status = lvr_model_open(p->model, NULL, &s->model, err);
    if (status == LVR_OK)
        status = lvr_bench_kv_init(&s->kv, s->model->shape, p->kv_type, p->context, s->max_rows, err);
    if (status != LVR_OK)
        return status;
    lvr_kernels_init(&s->kernels, p->level);
    lvr_bench_plant_tree(s->rows, LVR_BENCH_MAX_ROWS, p->context, s->model->shape->vocab);
    for (uint32_t r = 0; r < LVR_BENCH_MAX_ROWS; r++)
        s->row_index[r] = r;
    status = prepare_accel(s, err);
    if (status == LVR_OK)
        status = prepare_points(s, err);
    if (status == LVR_OK)
        status = prepare_units(s, err);
    if (status == LVR_OK && p->stream_bytes > 0 && p->busy == 0)
        status = lvr_membw_new(p->stream_bytes, &s->stream, err);
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

static double least(const double *x, uint32_t n)
{
    return lvr_quantile(x, n, 0);
}

static lvr_bench_window median_window(const lvr_bench_window *w)
{
    double tokens_per_s[BUSY_VISITS], processors[BUSY_VISITS];
    for (uint32_t i = 0; i < BUSY_VISITS; i++) {
        tokens_per_s[i] = w[i].tokens_per_s;
        processors[i] = w[i].processors;
    }
    return (lvr_bench_window){.tokens_per_s = lvr_median(tokens_per_s, BUSY_VISITS),
                              .processors = lvr_median(processors, BUSY_VISITS)};
}

static const point *one_row(const bench_state *s, const point *p)
{
    for (uint32_t i = 0; i < s->n_points; i++)
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

static lvr_bench_pass sum_up(const bench_state *s, const point *p)
{
    const point *one = one_row(s, p);
    lvr_bench_pass r = {.rows = p->rows,
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

static lvr_status report(const bench_state *s, lvr_bench_passes *ret, lvr_error *err)
{
    lvr_bench_passes r = {
        .synthetic = lvr_gguf_bool_or(lvr_pack_gguf(s->model->pack), LVR_GGUF_SYNTHETIC, false),
        .weight_bytes = weight_bytes(s->model),
        .results = calloc(s->n_points, sizeof *r.results),
        .n = s->n_points,
    };
    if (!r.results)
        return lvr_fail(err, LVR_ERR_NOMEM, "bench model: out of memory");
    if (s->accel) {
        snprintf(r.accel, sizeof r.accel, "%s", lvr_accel_get_caps(s->accel)->name);
        snprintf(r.accel_engine, sizeof r.accel_engine, "%s", lvr_accel_get_caps(s->accel)->engine);
    }
    for (uint32_t i = 0; i < s->n_points; i++)
        r.results[i] = sum_up(s, &s->points[i]);
    *ret = r;
    return LVR_OK;
}

void lvr_bench_passes_free(lvr_bench_passes *p)
{
    free(p->results);
    *p = (lvr_bench_passes){0};
}

lvr_status lvr_bench_passes_run(const lvr_bench_passes_plan *plan, lvr_bench_passes *ret, lvr_error *err)
{
    bench_state *s = calloc(1, sizeof *s);
    if (!s)
        return lvr_fail(err, LVR_ERR_NOMEM, "bench model: out of memory");
    s->plan = plan;
    s->n_points = plan->rows.n * plan->threads.n;
    for (uint32_t i = 0; i < plan->rows.n; i++)
        s->max_rows = lvr_max_u32(s->max_rows, plan->rows.values[i]);
    lvr_status status = prepare(s, err);
    if (status == LVR_OK)
        status = plan->busy > 0 ? measure_busy(s, err) : measure_passes(s, err);
    if (status == LVR_OK)
        status = report(s, ret, err);
    free_state(s);
    return status;
}
