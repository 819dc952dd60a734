#include "sim/ceiling.h"

#include "common/minmax.h"
#include "sim/outcome.h"

#include <math.h>
#include <stdlib.h>

/* Committed tokens that the draft has not seen, besides the root. More than the last count as that many:
 * cheaper than they are. */
enum { MAX_LAG = 4, N_LAGS = MAX_LAG + 1 };

/* What does not change from round to round. */
typedef struct schedule {
    const lvr_sim_config *config;
    bool serial;
    double io_ns, ring_ns; /* T_io of a pass; time to fill the ring */
    uint32_t max_lag;
} schedule;

/* The prices of the rounds that may begin at a root. */
typedef struct root {
    uint32_t on_path;                    /* nodes of the target's text that are in the recorded tree */
    uint32_t room;                       /* nodes that a tree may be deep here */
    double first_ns[N_LAGS];             /* the first draft step, by lag */
    double step_ns;                      /* each further one */
    double walk_ns[LVR_MAX_DEPTH + 1];   /* heads and commit, by accepted nodes */
    double verify_ns[LVR_MAX_DEPTH + 1]; /* likewise */
} root;

/* Time and, of it, what the weight of reading is multiplied with. */
typedef struct priced {
    double ns, slope;
} priced;

/* ---- operators, as the simulator rounds them ---- */

static double whole(double ns)
{
    return ns > 0 ? round(ns) : 0.0;
}

static double cpu_ns(const lvr_cost_table *t, lvr_op op, uint32_t rows, uint32_t context)
{
    return whole(lvr_op_cost_ns(&t->op[op], rows, context));
}

static double npu_ns(const lvr_npu_cost *c, uint32_t rows, uint32_t context)
{
    return whole(c->launch_ns) + whole(lvr_npu_run_ns(c, rows, context)) + whole(c->sync_ns);
}

/* The least for `rows` or more, up to `most`. */
static double least_cpu_ns(const lvr_op_cost *c, uint32_t rows, uint32_t most, uint32_t context)
{
    double least = fmin(lvr_curve_ns(&c->curve, rows), lvr_curve_ns(&c->curve, lvr_max_u32(rows, most)));
    for (uint32_t i = 0; i < c->curve.n; i++)
        if (c->curve.rows[i] > rows && c->curve.rows[i] < most)
            least = fmin(least, c->curve.ns[i]);
    return whole(least + c->ctx_ns * (double)rows * (double)context);
}

static double least_npu_ns(const lvr_npu_cost *c, uint32_t rows, uint32_t context)
{
    double least = npu_ns(c, rows, context);
    for (uint32_t i = 0; i < c->n; i++)
        if (c->bucket[i] > rows)
            least = fmin(least, npu_ns(c, c->bucket[i], context));
    return least;
}

static double least_layer_ns(const schedule *s, uint32_t rows, uint32_t context)
{
    const lvr_cost_table *t = s->config->cost;
    const lvr_place place = s->config->geometry->place;
    double least = INFINITY;
    if (place != LVR_PLACE_NPU && t->op[LVR_OP_LAYER].curve.n > 0)
        least = least_cpu_ns(&t->op[LVR_OP_LAYER], rows, s->config->conditions.max_rows, context);
    if (place != LVR_PLACE_CPU && t->npu[LVR_OP_LAYER].n > 0)
        least = fmin(least, least_npu_ns(&t->npu[LVR_OP_LAYER], rows, context));
    return least;
}

/* As placement allows; a CPU is cheapest at some count of rows up to `most`. */
static double least_draft_ns(const schedule *s, uint32_t rows, uint32_t most, uint32_t context)
{
    const lvr_cost_table *t = s->config->cost;
    const double cpu = least_cpu_ns(&t->op[LVR_OP_DRAFT], rows, most, context);
    if (s->config->geometry->place_draft == LVR_PLACE_CPU || t->npu[LVR_OP_DRAFT].n == 0)
        return cpu;
    return fmin(cpu, least_npu_ns(&t->npu[LVR_OP_DRAFT], rows, context));
}

/* ---- a root ---- */

static uint32_t count_on_path(const lvr_outcome *o, uint32_t request, uint32_t pos, uint32_t room)
{
    const uint32_t branch = lvr_min_u32(lvr_outcome_get_caps(o).branch, LVR_MAX_BRANCH);
    uint64_t node = lvr_outcome_root(o, request, pos);
    uint32_t n = 0;
    while (n < room && node != LVR_NO_NODE) {
        lvr_candidate children[LVR_MAX_BRANCH];
        uint64_t handles[LVR_MAX_BRANCH];
        const int32_t token = lvr_outcome_token(o, request, pos + n + 1);
        uint32_t i = 0;
        lvr_outcome_children(o, node, branch, children, handles);
        while (i < branch && (handles[i] == LVR_NO_NODE || children[i].token != token))
            i++;
        if (i == branch)
            return n;
        node = handles[i];
        n++;
    }
    return n;
}

static double first_step_ns(const schedule *s, uint32_t lag, uint32_t pos)
{
    const bool exactly = lag < s->max_lag;
    const uint32_t most = s->config->conditions.prefill_chunk + LVR_MAX_EXPANSIONS;
    return least_draft_ns(s, exactly ? lag + 1 : s->max_lag, most, exactly && pos > lag ? pos - lag : 0);
}

static root price_root(const schedule *s, uint32_t request, uint32_t pos, uint32_t room)
{
    const lvr_cost_table *t = s->config->cost;
    const uint32_t max_rows = s->config->conditions.max_rows;
    root r = {.room = room, .on_path = count_on_path(s->config->outcome, request, pos, room)};
    for (uint32_t lag = 0; lag <= s->max_lag; lag++)
        r.first_ns[lag] = first_step_ns(s, lag, pos);
    r.step_ns = least_draft_ns(s, 1, LVR_MAX_EXPANSIONS, pos);
    double heads = 0.0;
    for (uint32_t k = 0; k <= room; k++) {
        heads += cpu_ns(t, LVR_OP_HEAD, 1, pos + k);
        if (s->config->geometry->head == LVR_HEAD_EAGER && t->op[LVR_OP_HEAD].curve.n > 1)
            heads = least_cpu_ns(&t->op[LVR_OP_HEAD], k + 1, max_rows, pos); /* all rows at once */
        r.walk_ns[k] = heads + cpu_ns(t, LVR_OP_COMMIT, k + 1, pos);
        r.verify_ns[k] = least_cpu_ns(&t->op[LVR_OP_EMBED], k + 1, max_rows, pos) +
                         s->config->geometry->n_layers * least_layer_ns(s, k + 1, pos);
    }
    return r;
}

/* ---- the chooser ---- */

static double credit_ns(const schedule *s, double rest, bool first)
{
    return first ? s->ring_ns : fmin(s->ring_ns, rest);
}

/* A round and what comes after it, reading weighed with `theta`, verification with the rest of 1. */
static priced then(const schedule *s, double theta, double rest, double verify, bool first, priced after)
{
    if (s->serial)
        return (priced){.ns = rest + verify + s->io_ns + after.ns};
    const double slope = s->io_ns - credit_ns(s, rest, first) - verify;
    return (priced){.ns = rest + verify + theta * slope + after.ns, .slope = slope + after.slope};
}

static void keep_less(priced *best, priced candidate)
{
    if (candidate.ns < best->ns)
        *best = candidate;
}

/* The cheapest way from a root, with a draft that lags by `lag` tokens, to the end of the text; best[i] is
 * that of the root i tokens on. */
static priced best_from(const schedule *s, double theta, const root *r, uint32_t deepest, uint32_t lag,
                        bool first, priced (*best)[N_LAGS])
{
    const uint32_t lag_after = lvr_min_u32(lag + 1, s->max_lag);
    priced least = then(s, theta, r->walk_ns[0], r->verify_ns[0], first, best[1][lag_after]);
    for (uint32_t k = 0; k <= deepest; k++) {
        /* Steps for k nodes: the last one is not expanded, so that the draft lags by it. One more step: it
         * does not. */
        const double more = r->first_ns[lag] + k * r->step_ns, enough = more - r->step_ns;
        keep_less(&least, then(s, theta, more + r->walk_ns[k], r->verify_ns[k], first, best[k + 1][0]));
        if (k > 0)
            keep_less(&least, then(s, theta, enough + r->walk_ns[k], r->verify_ns[k], first, best[k + 1][1]));
    }
    return least;
}

/* best: n + 1 roots. */
static priced cheapest_text(const schedule *s, double theta, const root *roots, uint32_t n, bool perfect,
                            priced (*best)[N_LAGS])
{
    for (uint32_t lag = 0; lag < N_LAGS; lag++)
        best[n][lag] = (priced){0};
    for (uint32_t i = n; i-- > 0;) {
        const uint32_t deepest = perfect ? roots[i].room : roots[i].on_path;
        for (uint32_t lag = 0; lag <= s->max_lag; lag++)
            best[i][lag] = best_from(s, theta, &roots[i], deepest, lag, i == 0, &best[i]);
    }
    return best[0][0];
}

/* The weight between 0 and 1 under which the cheapest text costs most. That cost is concave in the weight:
 * the tangents at a weight below and one above the best meet in the next one to try. */
static double dearest_weight_ns(const schedule *s, const root *roots, uint32_t n, bool perfect,
                                priced (*best)[N_LAGS])
{
    enum { MAX_STEPS = 40 };
    const double close_enough = 1e-9;
    double low = 0.0, high = 1.0;
    priced at_low = cheapest_text(s, low, roots, n, perfect, best);
    if (s->serial || at_low.slope <= 0.0)
        return at_low.ns;
    priced at_high = cheapest_text(s, high, roots, n, perfect, best);
    if (at_high.slope >= 0.0)
        return at_high.ns;
    double most = fmax(at_low.ns, at_high.ns);
    for (int i = 0; i < MAX_STEPS; i++) {
        const double theta = (at_high.ns - at_low.ns + at_low.slope * low - at_high.slope * high) /
                             (at_low.slope - at_high.slope);
        const double tangents = at_low.ns + at_low.slope * (theta - low);
        const priced p = cheapest_text(s, theta, roots, n, perfect, best);
        most = fmax(most, p.ns);
        if (tangents - most <= close_enough * tangents)
            break;
        if (p.slope > 0.0) {
            low = theta;
            at_low = p;
        } else {
            high = theta;
            at_high = p;
        }
    }
    return most;
}

/* Adds the decode time of a text's first n tokens. */
static lvr_status add_text(const schedule *s, uint32_t request, uint32_t n, double *hindsight_ns,
                           double *perfect_ns, lvr_error *err)
{
    lvr_sim_request r;
    lvr_outcome_request(s->config->outcome, request, &r);
    root *roots = calloc(n, sizeof *roots);
    priced(*best)[N_LAGS] = calloc((size_t)n + 1, sizeof *best);
    if (!roots || !best) {
        free(roots);
        free(best);
        return lvr_fail(err, LVR_ERR_NOMEM, "ceiling: out of memory for a text of %u tokens", n);
    }
    const uint32_t deepest = lvr_min_u32(LVR_MAX_DEPTH, s->config->conditions.max_rows - 1);
    for (uint32_t i = 0; i < n; i++)
        roots[i] = price_root(s, request, r.n_prompt - 1 + i, lvr_min_u32(deepest, n - i - 1));
    *hindsight_ns += dearest_weight_ns(s, roots, n, false, best);
    *perfect_ns += dearest_weight_ns(s, roots, n, true, best);
    free(roots);
    free(best);
    return LVR_OK;
}

/* ---- the policy's own rounds ---- */

/* Of one request. */
typedef struct rounds {
    uint32_t n, committed;
    double rest_ns, reading_ns; /* reading: T_io less what the ring takes in meanwhile */
    double verify_ns, all_rows_ns;
    double spent_ns;
} rounds;

static lvr_unit unit_of_pass(const lvr_sim_config *c, uint32_t rows, uint32_t context)
{
    const lvr_place place = c->geometry->place;
    if (place == LVR_PLACE_AUTO && !c->policy->has_cost)
        return LVR_UNIT_CPU;
    return lvr_cost_unit(&c->policy->cost, place, LVR_OP_LAYER, rows, context);
}

/* What the round's layers would have needed without pruning. */
static double all_layers_ns(const lvr_sim_config *c, uint32_t rows, uint32_t context)
{
    const double layer = unit_of_pass(c, rows, context) == LVR_UNIT_NPU
                             ? npu_ns(&c->cost->npu[LVR_OP_LAYER], rows, context)
                             : cpu_ns(c->cost, LVR_OP_LAYER, rows, context);
    return c->geometry->n_layers * layer;
}

static void add_round(const schedule *s, const lvr_sim_round *l, uint32_t n_prompt, rounds *t)
{
    const double rest = (double)(l->op_ns[LVR_OP_DRAFT] + l->op_ns[LVR_OP_HEAD] + l->op_ns[LVR_OP_COMMIT] +
                                 l->op_ns[LVR_OP_PLAN]);
    double all = 0.0;
    for (int op = 0; op < LVR_OP_COUNT; op++)
        all += (double)l->op_ns[op];
    t->rest_ns += rest;
    t->verify_ns += all - rest;
    t->all_rows_ns += all - rest - (double)l->op_ns[LVR_OP_LAYER] +
                      all_layers_ns(s->config, l->n_rows, n_prompt - 1 + t->committed);
    t->reading_ns += s->serial ? s->io_ns : s->io_ns - credit_ns(s, rest, t->n == 0);
    t->spent_ns += all + (double)l->wait_ns;
    t->committed += l->n_accepted + 1;
    t->n++;
}

static double price_ns(const schedule *s, const rounds *t, double verify_ns)
{
    return t->rest_ns + (s->serial ? verify_ns + t->reading_ns : fmax(verify_ns, t->reading_ns));
}

/* Adds the price of a request's rounds as they were, and with all rows in all layers. `log` begins with its
 * first pass; returns how many of it are its passes. */
static size_t add_rounds(const schedule *s, const lvr_sim_result *r, const lvr_sim_round *log, size_t n,
                         uint32_t request, uint32_t n_prompt, double *ret_price_ns, double *ret_all_rows_ns)
{
    rounds t = {0};
    size_t at = 0;
    for (; at < n && log[at].request == request; at++)
        if (!log[at].prefill)
            add_round(s, &log[at], n_prompt, &t);
    /* Decoding is timed from the end of the first planning on. */
    t.rest_ns -= t.spent_ns - (double)r->decode_ns_per_request[request];
    *ret_price_ns += price_ns(s, &t, t.verify_ns);
    *ret_all_rows_ns += price_ns(s, &t, t.all_rows_ns);
    return at;
}

/* ---- the whole ---- */

static schedule schedule_of(const lvr_sim_config *c)
{
    const lvr_geometry *g = c->geometry;
    const uint64_t bytes = lvr_geometry_stream_bytes(g);
    schedule s = {.config = c,
                  .serial = g->io_mode == LVR_IO_SERIAL,
                  .io_ns = lvr_cost_io_ns(c->cost, g),
                  .max_lag = lvr_min_u32(MAX_LAG, c->conditions.prefill_chunk)};
    if (bytes > 0)
        s.ring_ns = s.io_ns / (double)bytes * (double)lvr_geometry_largest_streamed(g) * g->ring_slots;
    return s;
}

lvr_status lvr_ceiling_of_run(const lvr_sim_config *config, const lvr_sim_result *result, lvr_ceiling *ret,
                              lvr_error *err)
{
    if (lvr_outcome_synthetic(config->outcome))
        return lvr_fail(err, LVR_ERR_USAGE,
                        "the ceiling is what hindsight could make of recorded texts; made-up ones (%s) have "
                        "none: give an oracle trace (lever record --oracle)",
                        lvr_outcome_source(config->outcome));
    if (result->n_round_log == 0)
        return lvr_fail(err, LVR_ERR_USAGE,
                        "the ceiling needs the rounds of the run; set keep_rounds when simulating");
    const schedule s = schedule_of(config);
    double hindsight = 0.0, perfect = 0.0, price = 0.0, all_rows = 0.0;
    size_t at = 0;
    for (uint32_t i = 0; i < result->n_requests; i++) {
        const uint32_t request = config->requests ? config->requests[i] : i;
        lvr_sim_request r;
        lvr_outcome_request(config->outcome, request, &r);
        const lvr_status st = add_text(&s, request, result->tokens_per_request[i], &hindsight, &perfect, err);
        if (st)
            return st;
        at += add_rounds(&s, result, result->round_log + at, result->n_round_log - at, i, r.n_prompt, &price,
                         &all_rows);
    }
    const double tokens = (double)result->n_tokens * 1e9, time = (double)result->decode_ns;
    *ret = (lvr_ceiling){.tokens_per_s = tokens / hindsight,
                         .perfect_draft_tokens_per_s = tokens / perfect,
                         .fraction = hindsight / time,
                         .loss = {.draft = (hindsight - perfect) / time,
                                  .tree = (all_rows - hindsight) / time,
                                  .pruning = (price - all_rows) / time,
                                  .schedule = (time - price) / time}};
    return LVR_OK;
}
