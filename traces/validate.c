/* Reads every row of a trace and reports what cannot be true. */
#include "traces/validate.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define LINES_PER_STREAM 10u
#define SUM_TOLERANCE 1e-9

void lvr_finding(lvr_validator *v, uint64_t row, const char *fmt, ...)
{
    char text[256];
    va_list args;
    v->findings++;
    if (++v->here > LINES_PER_STREAM)
        return;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    lvr_buf_printf(v->out, "%s row %" PRIu64 ": %s\n", lvr_stream_describe(v->stream)->name, row, text);
}

/* ---- references
 * ---------------------------------------------------------------------------------------------------------
 */

static int compare_u64(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Both kinds of reference start with the number they are looked up by. */
_Static_assert(offsetof(lvr_known_round, round) == 0, "compare_u64 reads the first member");

bool lvr_known_request(const lvr_validator *v, uint64_t id)
{
    return v->n_requests > 0 && bsearch(&id, v->requests, v->n_requests, sizeof id, compare_u64) != NULL;
}

lvr_known_round *lvr_find_round(const lvr_validator *v, uint64_t round)
{
    if (v->n_rounds == 0)
        return NULL;
    return bsearch(&round, v->rounds, v->n_rounds, sizeof v->rounds[0], compare_u64);
}

static lvr_status collect_requests(void *arg, uint64_t first, uint64_t n, const void *records, lvr_error *err)
{
    lvr_validator *v = arg;
    const lvr_rec_request *r = records;
    (void)err;
    for (uint64_t i = 0; i < n; i++)
        v->requests[first + i] = r[i].id;
    v->n_requests = first + n;
    return LVR_OK;
}

static lvr_status collect_rounds(void *arg, uint64_t first, uint64_t n, const void *records, lvr_error *err)
{
    lvr_validator *v = arg;
    const lvr_rec_round *r = records;
    (void)err;
    for (uint64_t i = 0; i < n; i++)
        v->rounds[first + i] = (lvr_known_round){r[i].round, 0, r[i].n_nodes, r[i].prefill};
    v->n_rounds = first + n;
    return LVR_OK;
}

static lvr_status collect_references(lvr_validator *v, lvr_error *err)
{
    const uint64_t n_requests = lvr_trace_rows(v->trace, LVR_STREAM_REQUESTS);
    const uint64_t n_rounds = lvr_trace_rows(v->trace, LVR_STREAM_ROUNDS);
    v->requests = calloc((size_t)n_requests + 1, sizeof *v->requests);
    v->rounds = calloc((size_t)n_rounds + 1, sizeof *v->rounds);
    if (!v->requests || !v->rounds)
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory for requests and rounds", v->trace->path);
    lvr_status st = lvr_trace_for_rows(v->trace, LVR_STREAM_REQUESTS, collect_requests, v, err);
    if (st == LVR_OK)
        st = lvr_trace_for_rows(v->trace, LVR_STREAM_ROUNDS, collect_rounds, v, err);
    if (st != LVR_OK)
        return st;
    qsort(v->requests, v->n_requests, sizeof *v->requests, compare_u64);
    qsort(v->rounds, v->n_rounds, sizeof *v->rounds, compare_u64);
    return LVR_OK;
}

static void check_unique_requests(lvr_validator *v)
{
    for (uint64_t i = 1; i < v->n_requests; i++) {
        if (v->requests[i] != v->requests[i - 1])
            continue;
        v->findings++;
        lvr_buf_printf(v->out, "/requests: id %" PRIu64 " stands more than once\n", v->requests[i]);
    }
}

/* Prompt passes have no tree of their own; a trace may also hold rounds only. */
static void check_node_counts(lvr_validator *v)
{
    if (lvr_trace_rows(v->trace, LVR_STREAM_ROUND_NODES) == 0)
        return;
    for (uint64_t i = 0; i < v->n_rounds; i++) {
        const lvr_known_round *r = &v->rounds[i];
        if (r->nodes_seen == r->n_nodes || (r->prefill && r->nodes_seen == 0))
            continue;
        v->findings++;
        if (++v->here <= LINES_PER_STREAM)
            lvr_buf_printf(v->out,
                           "/round_nodes: round %" PRIu64 " has %" PRIu64 " rows, /rounds says %" PRIu32 "\n",
                           r->round, r->nodes_seen, r->n_nodes);
    }
}

/* ---- streams
 * --------------------------------------------------------------------------------------------------------------
 */

static lvr_status check_rows(void *arg, uint64_t first, uint64_t n, const void *records, lvr_error *err)
{
    lvr_validator *v = arg;
    const size_t bytes = lvr_stream_describe(v->stream)->record_bytes;
    lvr_stream_stats_add(&v->stats[v->stream], v->stream, records, n);
    lvr_status st = LVR_OK;
    for (uint64_t i = 0; i < n && st == LVR_OK; i++)
        st = lvr_validate_row(v, first + i, (const char *)records + i * bytes, err);
    return st;
}

static lvr_status check_stream(lvr_validator *v, lvr_stream stream, lvr_error *err)
{
    v->stream = stream;
    v->here = 0;
    v->has_previous = false;
    v->group.any = false;
    lvr_stream_stats_init(&v->stats[stream]);
    const lvr_status st = lvr_trace_for_rows(v->trace, stream, check_rows, v, err);
    if (st == LVR_OK && stream == LVR_STREAM_ROUND_NODES)
        check_node_counts(v);
    if (v->here > LINES_PER_STREAM)
        lvr_buf_printf(v->out, "%s: %" PRIu64 " more findings\n", lvr_stream_describe(stream)->name,
                       v->here - LINES_PER_STREAM);
    return st;
}

/* ---- /stats
 * ---------------------------------------------------------------------------------------------------------------
 */

static bool near(double a, double b)
{
    if (isnan(a) || isnan(b))
        return isnan(a) && isnan(b);
    return a == b || fabs(a - b) <= SUM_TOLERANCE * fmax(fabs(a), fabs(b));
}

static void compare_stats(lvr_validator *v, lvr_stream stream, const lvr_stream_stats *told)
{
    const lvr_stream_desc *desc = lvr_stream_describe(stream);
    const lvr_stream_stats *found = &v->stats[stream];
    if (told->rows != found->rows) {
        v->findings++;
        lvr_buf_printf(v->out, "/stats: %s has %" PRIu64 " rows, the dataset %" PRIu64 "\n", desc->name,
                       told->rows, found->rows);
        return;
    }
    for (uint32_t f = 0; f < desc->n_fields; f++) {
        const lvr_field_stats *a = &told->field[f], *b = &found->field[f];
        if (near(a->min, b->min) && near(a->max, b->max) && near(a->sum, b->sum))
            continue;
        v->findings++;
        lvr_buf_printf(v->out, "/stats: %s %s: min %g max %g sum %g, the rows say %g, %g, %g\n", desc->name,
                       desc->fields[f].name, a->min, a->max, a->sum, b->min, b->max, b->sum);
    }
}

static lvr_status check_stats(lvr_validator *v, lvr_error *err)
{
    lvr_stream_stats *told = calloc(LVR_STREAM_COUNT, sizeof *told);
    bool present[LVR_STREAM_COUNT] = {false};
    if (!told)
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory for /stats", v->trace->path);
    const lvr_h5_guard guard = lvr_h5_enter();
    const lvr_status st = lvr_stats_read(lvr_sealed_h5(v->trace->open), v->trace->path, told, present, err);
    lvr_h5_leave(guard);
    for (int s = 0; s < LVR_STREAM_COUNT && st == LVR_OK; s++) {
        if (present[s]) {
            compare_stats(v, (lvr_stream)s, &told[s]);
        } else if (v->stats[s].rows > 0) {
            v->findings++;
            lvr_buf_printf(v->out, "/stats: nothing about %s\n", lvr_stream_describe((lvr_stream)s)->name);
        }
    }
    free(told);
    return st;
}

/* ---- the whole
 * --------------------------------------------------------------------------------------------------------------
 */

static void check_meta(lvr_validator *v)
{
    const lvr_trace_meta *meta = &v->trace->meta;
    if (!meta->complete) {
        v->findings++;
        lvr_buf_puts(v->out, "incomplete: the recording was cut short\n");
    }
    for (int s = 0; s < LVR_STREAM_COUNT; s++) {
        if (meta->dropped[s] == 0)
            continue;
        v->findings++;
        lvr_buf_printf(v->out, "%s: the recorder dropped %" PRIu64 " rows\n",
                       lvr_stream_describe((lvr_stream)s)->name, meta->dropped[s]);
    }
}

static lvr_status run(lvr_validator *v, lvr_error *err)
{
    check_meta(v);
    lvr_status st = collect_references(v, err);
    if (st != LVR_OK)
        return st;
    check_unique_requests(v);
    for (int s = 0; s < LVR_STREAM_COUNT && st == LVR_OK; s++)
        st = check_stream(v, (lvr_stream)s, err);
    /* Only a finished file has /stats. */
    return st == LVR_OK && v->trace->meta.complete ? check_stats(v, err) : st;
}

lvr_status lvr_trace_validate(lvr_trace *t, lvr_buf *out, uint64_t *ret_findings, lvr_error *err)
{
    lvr_validator *v = calloc(1, sizeof *v);
    if (!v)
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory", t->path);
    v->trace = t;
    v->out = out;
    lvr_status st = run(v, err);
    if (st == LVR_OK && out->failed)
        st = lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory for the report", t->path);
    if (st == LVR_OK)
        *ret_findings = v->findings;
    free(v->requests);
    free(v->rounds);
    free(v->group.nodes);
    free(v);
    return st;
}
