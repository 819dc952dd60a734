/*
 * Flash parameters by replaying the recorded submissions through lvr_flash_admit, the very function that the
 * simulator and the engine's emulation use, and moving the parameters until the ends agree: queueing, lanes
 * and the shared link are then taken apart by the model itself, and a trace recorded under emulation gives
 * its preset back.
 *
 * The replay predicts one read ahead: after each read the model's lanes and link are set to what was
 * measured. Recorded submissions waited for recorded ends, so a model left to itself that is 1 % slow would
 * pile up a queue that never was. The loss is the mean absolute log ratio of service times (a few stalled
 * reads do not bend it); at the end all times are scaled so that the mean is met.
 */
#include "costmodel/fit/fit_parts.h"

#include "common/stats.h"

#include <gsl/gsl_errno.h>
#include <gsl/gsl_multimin.h>
#include <math.h>
#include <stdlib.h>

enum {
    N_PARAMS = 3, /* log t0, log lane rate, log(max rate / lane rate) */
    MAX_REPLAYED = 4096,
    MAX_SEGMENTS = 16,
    ITERATIONS = 400,
    SCALINGS = 8,
};

static const double MAX_RATE = 1e12; /* as lvr_flash_params_check */

typedef struct segment {
    size_t first, n;
} segment;

typedef struct problem {
    const lvr_flash_sample *s;
    segment segments[MAX_SEGMENTS];
    uint32_t n_segments;
    uint32_t depth;
    double prior[N_PARAMS];
} problem;

typedef struct start_point {
    double x[N_PARAMS];
} start_point;

static double clamp(double x, double lo, double hi)
{
    return fmin(fmax(x, lo), hi);
}

static lvr_flash_params params_of(const double x[N_PARAMS], uint32_t depth)
{
    const double lane = clamp(exp(x[1]), 1.0, MAX_RATE);
    return (lvr_flash_params){
        .t0_ns = (uint64_t)llround(clamp(exp(x[0]), 0.0, 1e10)),
        .lane_bytes_per_s = (uint64_t)lane,
        .max_bytes_per_s = (uint64_t)clamp(lane * exp(fabs(x[2])), lane, MAX_RATE),
        .depth = depth,
    };
}

/* Spreads the replayed reads over the whole recording: one stretch if it is short, else equal stretches at
 * equal distances. */
static void choose_segments(problem *p, size_t n)
{
    if (n <= MAX_REPLAYED) {
        p->segments[0] = (segment){.first = 0, .n = n};
        p->n_segments = 1;
        return;
    }
    for (uint32_t i = 0; i < MAX_SEGMENTS; i++)
        p->segments[i] = (segment){.first = n / MAX_SEGMENTS * i, .n = MAX_REPLAYED / MAX_SEGMENTS};
    p->n_segments = MAX_SEGMENTS;
}

/* A stretch that starts in mid-stream does not know what was in flight before it: its first reads only warm
 * the state up. */
static size_t warm_up(const problem *p, const segment *g)
{
    return g->first == 0 || g->n < 8 * (size_t)p->depth ? 0 : 2 * (size_t)p->depth;
}

typedef struct sums {
    double loss, measured, predicted;
    size_t n;
} sums;

/* The lane that lvr_flash_admit takes next. */
static uint32_t next_lane(const lvr_flash_state *state, uint32_t depth)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < depth; i++) {
        if (state->lane_free_ns[i] < state->lane_free_ns[best])
            best = i;
    }
    return best;
}

typedef struct service {
    double predicted, measured;
} service;

/* Predicts one read, then corrects the state to what was measured. */
static service predict_one(lvr_flash_state *state, const lvr_flash_params *params, const lvr_flash_sample *s)
{
    const uint32_t lane = next_lane(state, params->depth);
    const lvr_flash_times t = lvr_flash_admit(state, params, s->submit_ns, s->bytes);
    const uint64_t end = s->end_ns > t.start_ns ? s->end_ns : t.start_ns + 1;
    state->lane_free_ns[lane] = end;
    /* The link is as late or early as the read was, but never busy with it after its end. */
    const int64_t shift = (int64_t)(end - t.end_ns);
    const uint64_t link = state->link_free_ns + (uint64_t)shift;
    state->link_free_ns = link < end ? link : end;
    return (service){.predicted = fmax((double)(t.end_ns - t.start_ns), 1.0),
                     .measured = (double)(end - t.start_ns)};
}

static sums replay(const problem *p, const lvr_flash_params *params)
{
    sums r = {0};
    for (uint32_t k = 0; k < p->n_segments; k++) {
        const segment *g = &p->segments[k];
        const size_t skip = warm_up(p, g);
        lvr_flash_state state = {0};
        uint64_t before = 0;
        for (size_t i = 0; i < g->n; i++) {
            const lvr_flash_sample *s = &p->s[g->first + i];
            if (s->submit_ns < before)
                state = (lvr_flash_state){0};
            before = s->submit_ns;
            const service v = predict_one(&state, params, s);
            if (i < skip)
                continue;
            r.loss += fabs(log(v.predicted / v.measured));
            r.n++;
            if (lvr_fit_suspended(v.measured, v.predicted))
                continue;
            r.predicted += v.predicted;
            r.measured += v.measured;
        }
    }
    return r;
}

static double loss(const gsl_vector *v, void *arg)
{
    const problem *p = arg;
    double x[N_PARAMS], pull = 0;
    for (size_t i = 0; i < N_PARAMS; i++) {
        x[i] = gsl_vector_get(v, i);
        pull += (x[i] - p->prior[i]) * (x[i] - p->prior[i]);
    }
    const lvr_flash_params params = params_of(x, p->depth);
    const sums r = replay(p, &params);
    /* Where the recording cannot tell parameters apart (always one size, always saturated) the pull keeps
     * them near the first guess. */
    return r.loss / (double)r.n + 1e-5 * pull;
}

static lvr_status minimise(problem *p, start_point *x, double *ret_loss, lvr_error *err)
{
    lvr_status st = LVR_OK;
    gsl_multimin_fminimizer *m = gsl_multimin_fminimizer_alloc(gsl_multimin_fminimizer_nmsimplex2, N_PARAMS);
    gsl_vector *at = gsl_vector_alloc(N_PARAMS), *step = gsl_vector_alloc(N_PARAMS);
    gsl_multimin_function f = {.f = loss, .n = N_PARAMS, .params = p};
    if (!m || !at || !step) {
        st = lvr_fail(err, LVR_ERR_NOMEM, "flash fit: out of memory");
        goto out;
    }
    for (size_t i = 0; i < N_PARAMS; i++) {
        p->prior[i] = x->x[i];
        gsl_vector_set(at, i, x->x[i]);
        gsl_vector_set(step, i, 0.4);
    }
    int rc = gsl_multimin_fminimizer_set(m, &f, at, step);
    for (int i = 0; i < ITERATIONS && rc == GSL_SUCCESS; i++) {
        rc = gsl_multimin_fminimizer_iterate(m);
        if (gsl_multimin_test_size(gsl_multimin_fminimizer_size(m), 1e-5) == GSL_SUCCESS)
            break;
    }
    /* The simplex may stop for want of progress; its best point is the answer all the same. */
    if (rc != GSL_SUCCESS && rc != GSL_ENOPROG) {
        st = lvr_fail(err, LVR_ERR_FORMAT, "flash fit: the search failed: %s", gsl_strerror(rc));
        goto out;
    }
    for (size_t i = 0; i < N_PARAMS; i++)
        x->x[i] = gsl_vector_get(m->x, i);
    *ret_loss = m->fval;
out:
    if (m)
        gsl_multimin_fminimizer_free(m);
    if (at)
        gsl_vector_free(at);
    if (step)
        gsl_vector_free(step);
    return st;
}

typedef struct overview {
    double bytes;    /* median request */
    double alone_ns; /* median latency of requests that were alone, 0 if none was */
    double rate;     /* bytes per second while at least one request was outstanding */
    double bytes_min, bytes_max;
    uint32_t in_flight_max;
} overview;

static lvr_status look_over(const lvr_flash_sample *s, size_t n, overview *ret, lvr_error *err)
{
    double *bytes = calloc(n, sizeof(*bytes)), *alone = calloc(n, sizeof(*alone));
    overview o = {.bytes_min = INFINITY};
    size_t n_alone = 0;
    uint64_t busy = 0, until = 0, before = 0;
    double total = 0;
    if (!bytes || !alone) {
        free(bytes);
        free(alone);
        return lvr_fail(err, LVR_ERR_NOMEM, "flash fit: out of memory for %zu reads", n);
    }
    for (size_t i = 0; i < n; i++) {
        if (s[i].submit_ns < before)
            until = 0;
        before = s[i].submit_ns;
        bytes[i] = (double)s[i].bytes;
        total += bytes[i];
        o.bytes_min = fmin(o.bytes_min, bytes[i]);
        o.bytes_max = fmax(o.bytes_max, bytes[i]);
        o.in_flight_max = s[i].in_flight > o.in_flight_max ? s[i].in_flight : o.in_flight_max;
        if (s[i].in_flight <= 1 && s[i].submit_ns >= until)
            alone[n_alone++] = (double)(s[i].end_ns - s[i].submit_ns);
        const uint64_t from = s[i].submit_ns > until ? s[i].submit_ns : until;
        if (s[i].end_ns > from) {
            busy += s[i].end_ns - from;
            until = s[i].end_ns;
        }
    }
    o.bytes = lvr_median(bytes, n);
    o.alone_ns = n_alone ? lvr_median(alone, n_alone) : 0.0;
    o.rate = total * 1e9 / fmax((double)busy, 1.0);
    free(bytes);
    free(alone);
    *ret = o;
    return LVR_OK;
}

static start_point first_guess(const overview *o, uint32_t depth, double t0_share)
{
    const double period = o->alone_ns > 0 ? o->alone_ns : o->bytes * depth * 1e9 / o->rate;
    const double t0 = fmax(t0_share * period, 100.0);
    const double lane = o->bytes * 1e9 / fmax(period - t0, 1.0);
    return (start_point){{log(t0), log(lane), log(fmax(1.05 * o->rate / lane, 1.02))}};
}

/* The best of a few starts at one depth. */
static lvr_status fit_at_depth(problem *p, const overview *o, uint32_t depth, start_point *ret,
                               double *ret_loss, lvr_error *err)
{
    static const double shares[] = {0.05, 0.5};
    p->depth = depth;
    for (size_t i = 0; i < sizeof shares / sizeof shares[0]; i++) {
        start_point x = first_guess(o, depth, shares[i]);
        double f = 0;
        lvr_status st = minimise(p, &x, &f, err);
        if (!st)
            st = minimise(p, &x, &f, err); /* restarted: a simplex may have collapsed early */
        if (st)
            return st;
        if (i == 0 || f < *ret_loss) {
            *ret = x;
            *ret_loss = f;
        }
    }
    return LVR_OK;
}

/* A greater depth must explain clearly more: beyond what was ever in flight, or where the link is the limit,
 * depths look alike. */
static lvr_status fit_depth(problem *p, const overview *o, start_point *ret, uint32_t *ret_depth,
                            lvr_error *err)
{
    double best = INFINITY;
    for (uint32_t depth = 1; depth <= o->in_flight_max && depth <= LVR_FLASH_MAX_DEPTH; depth++) {
        start_point x;
        double f = 0;
        if (depth > 16 && depth % 4 != 0 && depth != o->in_flight_max)
            continue;
        const lvr_status st = fit_at_depth(p, o, depth, &x, &f, err);
        if (st)
            return st;
        if (f < 0.98 * best - 1e-6) {
            best = f;
            *ret = x;
            *ret_depth = depth;
        }
    }
    return LVR_OK;
}

/* Scales all times by one factor until the mean service time of all reads is the measured one. */
static void scale_to_mean(const problem *p, size_t n, lvr_flash_params *params)
{
    problem all = *p;
    all.segments[0] = (segment){.first = 0, .n = n};
    all.n_segments = 1;
    for (int i = 0; i < SCALINGS; i++) {
        const sums r = replay(&all, params);
        const double f = r.measured / r.predicted;
        if (fabs(f - 1.0) < 1e-4)
            return;
        params->t0_ns = (uint64_t)llround((double)params->t0_ns * f);
        params->lane_bytes_per_s = (uint64_t)clamp((double)params->lane_bytes_per_s / f, 1.0, MAX_RATE);
        params->max_bytes_per_s =
            (uint64_t)clamp((double)params->max_bytes_per_s / f, (double)params->lane_bytes_per_s, MAX_RATE);
    }
}

static lvr_status residuals(const lvr_flash_sample *s, size_t n, const lvr_flash_params *params,
                            lvr_fit_term *term, lvr_error *err)
{
    lvr_status st = LVR_OK;
    lvr_flash_state state = {0};
    uint64_t before = 0;
    double *predicted = calloc(n, sizeof(*predicted)), *measured = calloc(n, sizeof(*measured));
    if (!predicted || !measured) {
        st = lvr_fail(err, LVR_ERR_NOMEM, "flash fit: out of memory for %zu reads", n);
        goto out;
    }
    for (size_t i = 0; i < n; i++) {
        if (s[i].submit_ns < before)
            state = (lvr_flash_state){0};
        before = s[i].submit_ns;
        const service v = predict_one(&state, params, &s[i]);
        predicted[i] = v.predicted;
        measured[i] = v.measured;
    }
    st = lvr_fit_residuals(predicted, measured, n, term, err);
out:
    free(predicted);
    free(measured);
    return st;
}

static lvr_status check_samples(const lvr_flash_sample *s, size_t n, lvr_error *err)
{
    if (n == 0)
        return lvr_fail(err, LVR_ERR_FORMAT, "flash fit: no reads");
    for (size_t i = 0; i < n; i++) {
        if (s[i].bytes == 0 || s[i].end_ns < s[i].submit_ns || s[i].in_flight == 0)
            return lvr_fail(err, LVR_ERR_FORMAT,
                            "flash fit: read %zu has %llu bytes, submit %llu ns, end %llu ns, %u in flight; "
                            "expected a read of at "
                            "least one byte that ends after its submission, itself in flight (lever trace "
                            "validate finds the cause)",
                            i, (unsigned long long)s[i].bytes, (unsigned long long)s[i].submit_ns,
                            (unsigned long long)s[i].end_ns, s[i].in_flight);
    }
    return LVR_OK;
}

lvr_status lvr_fit_flash(const lvr_flash_sample *samples, size_t n, lvr_flash_params *ret,
                         lvr_fit_term *ret_term, lvr_error *err)
{
    lvr_status st = check_samples(samples, n, err);
    if (st)
        return st;
    problem p = {.s = samples};
    overview o = {0};
    start_point x = {{0}};
    lvr_fit_term term = {0};
    st = look_over(samples, n, &o, err);
    if (st)
        return st;
    choose_segments(&p, n);
    st = fit_depth(&p, &o, &x, &p.depth, err);
    if (st)
        return st;
    lvr_flash_params params = params_of(x.x, p.depth);
    scale_to_mean(&p, n, &params);
    st = residuals(samples, n, &params, &term, err);
    if (st)
        return st;
    term.x_min = o.bytes_min;
    term.x_max = o.bytes_max;
    *ret = params;
    *ret_term = term;
    return LVR_OK;
}
