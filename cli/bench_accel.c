/* lever bench accel: layers of a model as tickets of an accelerator and on the CPU's pool, by row count, and
 * what handing over and taking back cost. */
#include "cli/bench.h"
#include "cli/bench_layers.h"
#include "cli/cli.h"
#include "common/clock.h"
#include "common/json.h"
#include "common/minmax.h"
#include "common/stats.h"
#include "engine/accel/accel.h"
#include <math.h>
#include <stdlib.h>

/* Each row count is run until both are reached, or the cap of layers. */
#define MIN_PASSES 5u
#define MIN_NS 200000000ull
#define MAX_LAYERS_TIMED 20000u

#define EMPTY_TICKETS 2000u
#define WOKEN_TICKETS 40u
#define SLEEP_NS 2000000u /* between tickets that find the unit asleep */

typedef struct accel_options {
    const char *model, *rows;
    int accel;
    uint32_t threads, context;
    double launch_us, sync_us;
    bool json;
} accel_options;

#define FIELD(f) offsetof(accel_options, f)

/* One must be given: without "none". */
#define CHOICES (lvr_accel_choices + 1)

static const lvr_param table[] = {
    LVR_BENCH_OPTION_MODEL(accel_options),
    {.name = "accel",
     .type = LVR_PARAM_ENUM,
     .offset = FIELD(accel),
     .min = 0,
     .max = LVR_ACCEL_BACK_END_COUNT - 1,
     .def = 1,
     .choices = CHOICES,
     .help = "the accelerator"},
    {.name = "rows",
     .type = LVR_PARAM_STR,
     .offset = FIELD(rows),
     .def = NAN,
     .def_str = "1,8,16,32,64",
     .help = "rows of a layer, separated by commas"},
    {.name = "threads",
     .short_name = 't',
     .type = LVR_PARAM_U32,
     .offset = FIELD(threads),
     .min = 1,
     .max = LVR_POOL_MAX_THREADS,
     .def = 1,
     .help = "threads of the CPU's pool that it is compared with"},
    LVR_BENCH_OPTION_CONTEXT(accel_options, LVR_BENCH_MAX_CONTEXT),
    {.name = "accel-launch-us",
     .type = LVR_PARAM_DOUBLE,
     .offset = FIELD(launch_us),
     .min = 0,
     .max = 1e6,
     .def = 0,
     .unit = "us",
     .help = "delay each ticket's start"},
    {.name = "accel-sync-us",
     .type = LVR_PARAM_DOUBLE,
     .offset = FIELD(sync_us),
     .min = 0,
     .max = 1e6,
     .def = 0,
     .unit = "us",
     .help = "delay the moment that its end is seen"},
    LVR_BENCH_OPTION_JSON(accel_options),
};

#define N_PARAMS (sizeof table / sizeof *table)

/* Medians, of one layer. */
typedef struct result {
    lvr_unit unit;
    uint32_t rows, bucket;
    double ns, launch_ns, sync_ns; /* launch and sync: 0 on the CPU */
} result;

/* An empty ticket, from submission to the return of wait: median, and least (nothing else ran). */
typedef struct overhead {
    double median_ns, least_ns;
} overhead;

typedef struct bench_state {
    const accel_options *options;
    lvr_bench_list rows;
    uint32_t max_rows;
    lvr_model *model;
    lvr_kernels kernels;
    lvr_kv kv;
    lvr_pool *pool;
    lvr_forward *forward;
    lvr_accel *accel;
    lvr_fwd_row fwd[LVR_BENCH_MAX_ROWS];
    double *samples[3]; /* [MAX_LAYERS_TIMED]: run, launch, sync */
    overhead busy;      /* one after the other */
    overhead woken;     /* the unit had gone to sleep */
    result results[2 * LVR_BENCH_MAX_LIST];
    uint32_t n_results;
} bench_state;

static lvr_status open_model(bench_state *s, lvr_error *err)
{
    lvr_status status = lvr_model_open(s->options->model, NULL, &s->model, err);
    if (status != LVR_OK)
        return status;
    status = lvr_bench_kv_init(&s->kv, s->model->shape, LVR_KV_F16, s->options->context, s->max_rows, err);
    if (status != LVR_OK)
        return status;
    lvr_kernels_init(&s->kernels, lvr_cpu_best());
    lvr_bench_plant_tree(s->fwd, s->max_rows, s->options->context, s->model->shape->vocab);
    status = lvr_pool_new(s->options->threads, &s->pool, err);
    return status == LVR_OK
               ? lvr_forward_new(s->model, &s->kernels, s->pool, &s->kv, s->max_rows, 0, &s->forward, err)
               : status;
}

static lvr_status open_state(bench_state *s, lvr_error *err)
{
    const lvr_status status = open_model(s, err);
    if (status != LVR_OK)
        return status;
    for (int i = 0; i < 3; i++) {
        s->samples[i] = calloc(MAX_LAYERS_TIMED, sizeof *s->samples[i]);
        if (!s->samples[i])
            return lvr_fail(err, LVR_ERR_NOMEM, "bench accel: out of memory");
    }
    const lvr_accel_config accel = {.name = CHOICES[s->options->accel],
                                    .kernels = &s->kernels,
                                    .launch_ns = (uint64_t)llround(s->options->launch_us * 1e3),
                                    .sync_ns = (uint64_t)llround(s->options->sync_us * 1e3)};
    return lvr_accel_open(&accel, &s->accel, err);
}

static void close_state(bench_state *s)
{
    lvr_accel_close(s->accel);
    lvr_forward_free(s->forward);
    lvr_pool_free(s->pool);
    lvr_kv_free(&s->kv);
    lvr_model_free(s->model);
    for (int i = 0; i < 3; i++)
        free(s->samples[i]);
    free(s);
}

/* ---- measuring ---- */

static lvr_status run_ticket(bench_state *s, const lvr_accel_graph *g, uint32_t layer, uint32_t at,
                             double *ret_all_ns, lvr_error *err)
{
    lvr_accel_ticket ticket;
    lvr_accel_times t = {0};
    const uint64_t t0 = lvr_now_ns();
    const lvr_status status = lvr_accel_submit(s->accel, g, layer, NULL, &ticket, err);
    if (status != LVR_OK)
        return status;
    lvr_accel_wait(s->accel, ticket, UINT64_MAX, &t);
    const uint64_t t1 = lvr_now_ns();
    s->samples[0][at] = (double)(t.end_ns - t.start_ns);
    s->samples[1][at] = (double)(t.start_ns - t.submit_ns);
    s->samples[2][at] = (double)(t1 - t.end_ns);
    *ret_all_ns = (double)(t1 - t0);
    return LVR_OK;
}

static lvr_status empty_tickets(bench_state *s, uint32_t n, uint64_t pause_ns, overhead *ret, lvr_error *err)
{
    double all[EMPTY_TICKETS];
    for (uint32_t i = 0; i < n; i++) {
        if (pause_ns > 0)
            lvr_sleep_until_ns(lvr_now_ns() + pause_ns);
        lvr_status status = lvr_bench_check_cancel(err);
        if (status == LVR_OK)
            status = run_ticket(s, NULL, 0, 0, &all[i], err);
        if (status != LVR_OK)
            return status;
    }
    *ret = (overhead){.median_ns = lvr_median(all, n), .least_ns = lvr_quantile(all, n, 0)};
    return LVR_OK;
}

static lvr_status measure_overhead(bench_state *s, lvr_error *err)
{
    /* With a delay as long as a second a few tickets must do. */
    const bool slow = s->options->launch_us + s->options->sync_us > 1000;
    lvr_status status = empty_tickets(s, slow ? 3 : EMPTY_TICKETS, 0, &s->busy, err);
    if (status == LVR_OK)
        status = empty_tickets(s, slow ? 3 : WOKEN_TICKETS, SLEEP_NS, &s->woken, err);
    return status;
}

static lvr_status time_layer(bench_state *s, lvr_unit unit, const lvr_accel_graph *g, uint32_t layer,
                             uint32_t at, lvr_error *err)
{
    double all_ns;
    const lvr_status status = lvr_bench_check_cancel(err);
    if (status != LVR_OK)
        return status;
    if (unit == LVR_UNIT_NPU)
        return run_ticket(s, g, layer, at, &all_ns, err);
    const uint64_t t0 = lvr_now_ns();
    lvr_forward_layer(s->forward, layer, NULL);
    s->samples[0][at] = (double)(lvr_now_ns() - t0);
    return LVR_OK;
}

/* Whole passes, so that each layer's weights are as cold as in a run. The first pass is a warm-up. */
static lvr_status measure_rows(bench_state *s, lvr_unit unit, uint32_t rows, lvr_error *err)
{
    const uint32_t n_layers = s->model->shape->n_layers;
    const lvr_accel_graph *g = NULL;
    uint32_t n = 0;
    lvr_status status = lvr_accel_graph_get(s->accel, s->forward, rows, &g, err);
    uint64_t start = 0;
    for (uint32_t pass = 0; status == LVR_OK; pass++) {
        if (pass > 0 && n + n_layers > MAX_LAYERS_TIMED)
            break;
        if (pass > MIN_PASSES && lvr_now_ns() - start >= MIN_NS)
            break;
        if (pass <= 1)
            n = 0;
        if (pass == 1)
            start = lvr_now_ns();
        status = lvr_forward_embed(s->forward, s->fwd, rows, err);
        for (uint32_t l = 0; l < n_layers && status == LVR_OK; l++)
            status = time_layer(s, unit, g, l, n++, err);
    }
    if (status != LVR_OK)
        return status;
    const bool npu = unit == LVR_UNIT_NPU;
    s->results[s->n_results++] = (result){.unit = unit,
                                          .rows = rows,
                                          .bucket = npu ? lvr_accel_graph_bucket(g) : rows,
                                          .ns = lvr_median(s->samples[0], n),
                                          .launch_ns = npu ? lvr_median(s->samples[1], n) : 0,
                                          .sync_ns = npu ? lvr_median(s->samples[2], n) : 0};
    return LVR_OK;
}

static lvr_status measure(bench_state *s, lvr_error *err)
{
    lvr_status status = measure_overhead(s, err);
    for (int unit = LVR_UNIT_CPU; unit <= LVR_UNIT_NPU && status == LVR_OK; unit++)
        for (uint32_t i = 0; i < s->rows.n && status == LVR_OK; i++)
            status = measure_rows(s, (lvr_unit)unit, s->rows.values[i], err);
    return status;
}

/* The least measured row count from which on tickets cost less than the pool; 0: none. */
static uint32_t crossover(const bench_state *s)
{
    uint32_t least = 0;
    for (uint32_t i = s->rows.n; i-- > 0;) {
        const result *cpu = &s->results[i], *npu = &s->results[s->rows.n + i];
        if (npu->launch_ns + npu->ns + npu->sync_ns >= cpu->ns)
            break;
        least = cpu->rows;
    }
    return least;
}

/* ---- output ---- */

static const char *const unit_names[] = {[LVR_UNIT_CPU] = "cpu", [LVR_UNIT_NPU] = "npu"};

static void print_text(const bench_state *s, lvr_buf *out)
{
    const lvr_accel_caps *caps = lvr_accel_get_caps(s->accel);
    lvr_buf_printf(out, "%s, context %u; accelerator %s: %s%s%s; CPU: %s, %u threads\n", s->options->model,
                   s->options->context, caps->name, caps->engine, caps->fallback ? ", fallback: " : "",
                   caps->fallback ? caps->reason : "", lvr_cpu_level_name(s->kernels.level),
                   s->options->threads);
    lvr_buf_printf(out, "empty ticket %.3f us (least %.3f), after the unit slept %.3f us (least %.3f)\n",
                   s->busy.median_ns / 1e3, s->busy.least_ns / 1e3, s->woken.median_ns / 1e3,
                   s->woken.least_ns / 1e3);
    lvr_buf_printf(out, "%6s%8s%8s%14s%14s%14s\n", "unit", "rows", "bucket", "layer us", "launch us",
                   "sync us");
    for (uint32_t i = 0; i < s->n_results; i++) {
        const result *r = &s->results[i];
        lvr_buf_printf(out, "%6s%8u%8u%14.3f%14.3f%14.3f\n", unit_names[r->unit], r->rows, r->bucket,
                       r->ns / 1e3, r->launch_ns / 1e3, r->sync_ns / 1e3);
    }
    const uint32_t rows = crossover(s);
    if (rows > 0)
        lvr_buf_printf(out, "a ticket costs less than the CPU from %u rows on\n", rows);
    else
        lvr_buf_puts(out, "a ticket costs more than the CPU at the most rows measured\n");
}

static void json_result(const result *r, lvr_json *j)
{
    lvr_json_object(j, NULL);
    lvr_json_str(j, "unit", unit_names[r->unit]);
    lvr_json_u64(j, "rows", r->rows);
    lvr_json_u64(j, "bucket", r->bucket);
    lvr_json_double(j, "ns", r->ns);
    lvr_json_double(j, "launch_ns", r->launch_ns);
    lvr_json_double(j, "sync_ns", r->sync_ns);
    lvr_json_end_object(j);
}

static void print_json(const bench_state *s, lvr_buf *out)
{
    const lvr_accel_caps *caps = lvr_accel_get_caps(s->accel);
    lvr_json j;
    lvr_json_init(&j, out, true);
    lvr_json_object(&j, NULL);
    lvr_json_str(&j, "model", s->options->model);
    lvr_json_u64(&j, "context", s->options->context);
    lvr_json_object(&j, "accel");
    lvr_json_str(&j, "name", caps->name);
    lvr_json_str(&j, "engine", caps->engine);
    lvr_json_bool(&j, "fallback", caps->fallback);
    lvr_json_str(&j, "reason", caps->fallback ? caps->reason : NULL);
    lvr_json_bool(&j, "exact", caps->exact);
    lvr_json_bool(&j, "async", caps->async);
    lvr_json_double(&j, "launch_us", s->options->launch_us);
    lvr_json_double(&j, "sync_us", s->options->sync_us);
    lvr_json_u64(&j, "graph_build_ns", lvr_accel_build_ns(s->accel));
    lvr_json_end_object(&j);
    lvr_json_object(&j, "cpu");
    lvr_json_str(&j, "level", lvr_cpu_level_name(s->kernels.level));
    lvr_json_u64(&j, "threads", s->options->threads);
    lvr_json_end_object(&j);
    lvr_json_double(&j, "empty_ticket_ns", s->busy.median_ns);
    lvr_json_double(&j, "empty_ticket_least_ns", s->busy.least_ns);
    lvr_json_double(&j, "woken_ticket_ns", s->woken.median_ns);
    lvr_json_double(&j, "woken_ticket_least_ns", s->woken.least_ns);
    lvr_json_double(&j, "crossover_rows", crossover(s) ? crossover(s) : NAN);
    lvr_json_array(&j, "results");
    for (uint32_t i = 0; i < s->n_results; i++)
        json_result(&s->results[i], &j);
    lvr_json_end_array(&j);
    lvr_json_end_object(&j);
    lvr_buf_puts(out, "\n");
}

static lvr_status run(const accel_options *o, lvr_error *err)
{
    if (!o->model)
        return lvr_fail(err, LVR_ERR_USAGE, "bench accel: name a model: lever bench accel FILE.gguf");
    bench_state *s = calloc(1, sizeof *s);
    if (!s)
        return lvr_fail(err, LVR_ERR_NOMEM, "bench accel: out of memory");
    s->options = o;
    lvr_status status = lvr_bench_parse_list("rows", o->rows, LVR_BENCH_MAX_ROWS, &s->rows, err);
    for (uint32_t i = 0; i < s->rows.n; i++)
        s->max_rows = lvr_max_u32(s->max_rows, s->rows.values[i]);
    if (status == LVR_OK)
        status = open_state(s, err);
    if (status == LVR_OK)
        status = measure(s, err);
    if (status == LVR_OK) {
        lvr_buf out = LVR_BUF_INIT;
        (o->json ? print_json : print_text)(s, &out);
        status = lvr_bench_print(&out, err);
    }
    close_state(s);
    return status;
}

lvr_status lvr_bench_accel_cmd(int argc, char *const *argv, lvr_error *err)
{
    accel_options o;
    bool help = false;
    lvr_params_default(table, N_PARAMS, &o);
    const lvr_status status = lvr_options_parse(table, N_PARAMS, &o, argc, argv, &help, err);
    if (status != LVR_OK)
        return status;
    if (help)
        return lvr_bench_print_help("usage: lever bench accel MODEL [options]\n\n", table, N_PARAMS, err);
    return run(&o, err);
}
