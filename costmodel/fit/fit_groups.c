/*
 * Hazards by depth and rank. A child's rank and its parent's depth say more than the draft's probability
 * alone: a group of depths and ranks gets a map of its own if that predicts texts it was not fitted on.
 *
 * Cross-fitted: samples come in folds of whole texts. Each form is fitted without a fold and scored (log
 * loss) on it; the best over all folds is then fitted on everything. The residuals that are reported are
 * those of the left-out folds. Platt 1999, "Probabilistic Outputs for Support Vector Machines".
 */
#include "costmodel/fit/fit_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N_FOLDS = 5, N_BANDS = 4, MIN_SAMPLES = 200, MIN_OUTCOMES = 20, N_LEVELS = 20 };
_Static_assert(N_BANDS *N_BANDS <= LVR_CALIBRATION_MAX_GROUPS, "a group for each pair of bands");
static const double MIN_BETTER = 2.0; /* nats over all left-out samples */

typedef struct band {
    uint32_t min, max;
} band;
static const band depth_bands[N_BANDS] = {{0, 0}, {1, 1}, {2, 3}, {4, LVR_MAX_DEPTH}};
static const band rank_bands[N_BANDS] = {{0, 0}, {1, 1}, {2, 3}, {4, LVR_MAX_BRANCH}};

typedef enum form { FORM_ALL, FORM_ISOTONIC, FORM_PLATT, N_FORMS } form;

/* ---- one map ---- */

static double clamped(double p)
{
    return fmin(fmax(p, 1e-6), 1.0 - 1e-6);
}

static double logit(double p)
{
    return log(clamped(p) / (1.0 - clamped(p)));
}

static double logistic(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

/* Newton's method on the log loss, which is convex; a little ridge keeps separable samples finite. */
void lvr_fit_platt(const lvr_acceptance_sample *samples, size_t n, double *ret_a, double *ret_b)
{
    double hits = 0, b = 0;
    for (size_t i = 0; i < n; i++)
        hits += samples[i].accepted;
    const double high = (hits + 1) / (hits + 2), low = 1 / ((double)n - hits + 2);
    double a = logit((hits + 0.5) / ((double)n + 1)); /* from the rate alone the steps converge */
    for (int step = 0; step < 50; step++) {
        double ga = 1e-6 * a, gb = 1e-6 * b, haa = 1e-6, hab = 0, hbb = 1e-6;
        for (size_t i = 0; i < n; i++) {
            const double x = logit(samples[i].q), p = logistic(a + b * x);
            const double d = p - (samples[i].accepted ? high : low), w = p * (1 - p);
            ga += d;
            gb += d * x;
            haa += w;
            hab += w * x;
            hbb += w * x * x;
        }
        const double det = haa * hbb - hab * hab;
        if (!(det > 0))
            break;
        const double da = (hbb * ga - hab * gb) / det, db = (haa * gb - hab * ga) / det;
        const double shorter = fmin(1.0, 4.0 / fmax(fabs(da), fabs(db)));
        a -= shorter * da;
        b -= shorter * db;
        if (fabs(da) + fabs(db) < 1e-9)
            break;
    }
    if (b < 0) { /* not monotone: the rate alone */
        b = 0;
        a = logit((hits + 0.5) / ((double)n + 1));
    }
    *ret_a = a;
    *ret_b = b;
}

static int by_q(const void *a, const void *b)
{
    const lvr_acceptance_sample *x = a, *y = b;
    if (x->q != y->q)
        return x->q < y->q ? -1 : 1;
    return (int)x->accepted - (int)y->accepted;
}

/* The logistic as a map with knots where the samples are. Sorts the samples. */
static void platt_map(lvr_acceptance_sample *samples, size_t n, lvr_calibration *ret)
{
    double a = 0, b = 0;
    lvr_fit_platt(samples, n, &a, &b);
    qsort(samples, n, sizeof(*samples), by_q);
    *ret = (lvr_calibration){0};
    for (uint32_t k = 0; k < LVR_CALIBRATION_GROUP_KNOTS; k++) {
        const double q = samples[k * (n - 1) / (LVR_CALIBRATION_GROUP_KNOTS - 1)].q;
        if (ret->n > 0 && q <= ret->q[ret->n - 1])
            continue;
        ret->q[ret->n] = q;
        ret->p[ret->n++] = logistic(a + b * logit(q));
    }
}

/* A map's levels lean away from 0 and 1, and many small ones add up: makes it predict as many as there were.
 */
static void match_total(const lvr_acceptance_sample *samples, size_t n, lvr_calibration *c)
{
    double predicted = 0, hits = 0;
    for (size_t i = 0; i < n; i++) {
        predicted += lvr_calibrate(c, samples[i].q);
        hits += samples[i].accepted;
    }
    for (uint32_t k = 0; k < c->n && predicted > 0 && hits > 0; k++)
        c->p[k] = fmin(1.0, c->p[k] * hits / predicted);
}

static lvr_status fit_form(form f, lvr_acceptance_sample *samples, size_t n, lvr_calibration *ret,
                           lvr_error *err)
{
    lvr_fit_term unused;
    lvr_status st = LVR_OK;
    if (f == FORM_PLATT)
        platt_map(samples, n, ret);
    else
        st = lvr_fit_calibration(samples, n, LVR_CALIBRATION_GROUP_KNOTS, ret, &unused, err);
    if (!st)
        match_total(samples, n, ret);
    return st;
}

/* ---- folds ---- */

typedef struct work {
    const lvr_acceptance_sample *samples;
    size_t n;
    lvr_acceptance_sample *part; /* [n]: those at hand */
    double *p;                   /* [n][N_FORMS]: predicted without the sample's fold */
    uint8_t *chosen;             /* [n]: form */
} work;

static bool belongs(const lvr_acceptance_sample *s, const lvr_calibration_group *g)
{
    return !g || (s->depth >= g->min_depth && s->depth <= g->max_depth && s->rank >= g->min_rank &&
                  s->rank <= g->max_rank);
}

/* Samples of the group (NULL: all) without the fold (N_FOLDS: none is left out) go to w->part. */
static size_t gather(const work *w, const lvr_calibration_group *g, uint32_t without)
{
    size_t n = 0;
    for (size_t i = 0; i < w->n; i++)
        if (belongs(&w->samples[i], g) && w->samples[i].fold % N_FOLDS != without)
            w->part[n++] = w->samples[i];
    return n;
}

/* Predicts each fold of the group by a map fitted on the others; NAN where they are empty. */
static lvr_status cross_fit(work *w, form f, const lvr_calibration_group *g, lvr_error *err)
{
    for (uint32_t fold = 0; fold < N_FOLDS; fold++) {
        lvr_calibration c = {0};
        const size_t n = gather(w, g, fold);
        const lvr_status st = n > 0 ? fit_form(f, w->part, n, &c, err) : LVR_OK;
        if (st)
            return st;
        for (size_t i = 0; i < w->n; i++)
            if (belongs(&w->samples[i], g) && w->samples[i].fold % N_FOLDS == fold)
                w->p[i * N_FORMS + f] = n > 0 ? lvr_calibrate(&c, w->samples[i].q) : NAN;
    }
    return LVR_OK;
}

/* INFINITY: not all of the group could be predicted. */
static double log_loss(const work *w, form f, const lvr_calibration_group *g)
{
    double sum = 0;
    for (size_t i = 0; i < w->n; i++) {
        if (!belongs(&w->samples[i], g))
            continue;
        if (isnan(w->p[i * N_FORMS + f]))
            return INFINITY;
        const double p = clamped(w->p[i * N_FORMS + f]);
        sum -= log(w->samples[i].accepted ? p : 1 - p);
    }
    return sum;
}

static bool enough(const work *w, const lvr_calibration_group *g)
{
    size_t n = 0, hits = 0;
    for (size_t i = 0; i < w->n; i++) {
        if (!belongs(&w->samples[i], g))
            continue;
        n++;
        hits += w->samples[i].accepted;
    }
    return n >= MIN_SAMPLES && hits >= MIN_OUTCOMES && n - hits >= MIN_OUTCOMES;
}

/* ---- groups ---- */

static lvr_status choose_form(work *w, const lvr_calibration_group *g, form *ret, lvr_error *err)
{
    form best = FORM_ALL;
    double least = log_loss(w, FORM_ALL, g) - MIN_BETTER;
    for (form f = FORM_ISOTONIC; f < N_FORMS; f++) {
        const lvr_status st = cross_fit(w, f, g, err);
        if (st)
            return st;
        const double loss = log_loss(w, f, g);
        if (loss >= least)
            continue;
        least = loss;
        best = f;
    }
    *ret = best;
    return LVR_OK;
}

static lvr_status add_group(work *w, form f, const lvr_calibration_group *bounds, lvr_calibration *ret,
                            lvr_error *err)
{
    lvr_calibration c = {0};
    const size_t n = gather(w, bounds, N_FOLDS);
    const lvr_status st = fit_form(f, w->part, n, &c, err);
    if (st)
        return st;
    lvr_calibration_group *g = &ret->group[ret->n_groups++];
    *g = *bounds;
    g->n = c.n;
    memcpy(g->q, c.q, c.n * sizeof g->q[0]);
    memcpy(g->p, c.p, c.n * sizeof g->p[0]);
    return LVR_OK;
}

static lvr_status fit_group(work *w, const lvr_calibration_group *bounds, lvr_calibration *ret,
                            lvr_error *err)
{
    form f = FORM_ALL;
    if (!enough(w, bounds))
        return LVR_OK;
    lvr_status st = choose_form(w, bounds, &f, err);
    if (st || f == FORM_ALL)
        return st;
    for (size_t i = 0; i < w->n; i++)
        if (belongs(&w->samples[i], bounds))
            w->chosen[i] = (uint8_t)f;
    return add_group(w, f, bounds, ret, err);
}

/* ---- residuals ---- */

typedef struct prediction {
    double p, hit;
} prediction;

static int by_p(const void *a, const void *b)
{
    const prediction *x = a, *y = b;
    if (x->p != y->p)
        return x->p < y->p ? -1 : 1;
    return (x->hit > y->hit) - (x->hit < y->hit);
}

/* Of the samples that could be predicted, by rising prediction; returns how many. */
static size_t collect_predictions(const work *w, prediction *ret)
{
    size_t n = 0;
    for (size_t i = 0; i < w->n; i++) {
        const double p = w->p[i * N_FORMS + w->chosen[i]];
        if (!isnan(p))
            ret[n++] = (prediction){p, w->samples[i].accepted ? 1.0 : 0.0};
    }
    qsort(ret, n, sizeof(*ret), by_p);
    return n;
}

/* Levels of equally many samples: predicted and counted acceptance. Nothing if there is no sample to judge
 * by. */
static lvr_status residuals(const work *w, lvr_fit_term *term, lvr_error *err)
{
    double predicted[N_LEVELS] = {0}, counted[N_LEVELS] = {0};
    prediction *all = calloc(w->n, sizeof(*all));
    if (!all)
        return lvr_fail(err, LVR_ERR_NOMEM, "calibration: out of memory for %zu samples", w->n);
    const size_t n = collect_predictions(w, all);
    for (size_t i = 0; i < n; i++) {
        predicted[i * N_LEVELS / n] += all[i].p;
        counted[i * N_LEVELS / n] += all[i].hit;
    }
    lvr_status st = LVR_OK;
    if (n > 0) {
        st = lvr_fit_residuals(predicted, counted, N_LEVELS, term, err);
        term->n = n;
        term->x_min = all[0].p;
        term->x_max = all[n - 1].p;
    }
    free(all);
    return st;
}

static lvr_status fit_bands(work *w, lvr_calibration *ret, lvr_error *err)
{
    lvr_status st = cross_fit(w, FORM_ALL, NULL, err);
    for (uint32_t d = 0; d < N_BANDS && !st; d++)
        for (uint32_t r = 0; r < N_BANDS && !st; r++) {
            const lvr_calibration_group bounds = {.min_depth = depth_bands[d].min,
                                                  .max_depth = depth_bands[d].max,
                                                  .min_rank = rank_bands[r].min,
                                                  .max_rank = rank_bands[r].max};
            st = fit_group(w, &bounds, ret, err);
        }
    const lvr_calibration_group all = {.max_depth = LVR_MAX_DEPTH, .max_rank = LVR_MAX_BRANCH};
    return st ? st : add_group(w, FORM_ALL, &all, ret, err);
}

lvr_status lvr_fit_groups(const lvr_acceptance_sample *samples, size_t n, lvr_calibration *ret,
                          lvr_fit_term *ret_term, lvr_error *err)
{
    work w = {.samples = samples, .n = n};
    lvr_calibration c = *ret;
    lvr_fit_term term = {0};
    lvr_status st = LVR_OK;
    c.n_groups = 0;
    w.part = calloc(n, sizeof(*w.part));
    w.p = calloc(n * N_FORMS, sizeof(*w.p));
    w.chosen = calloc(n, sizeof(*w.chosen));
    if (!w.part || !w.p || !w.chosen)
        st = lvr_fail(err, LVR_ERR_NOMEM, "calibration: out of memory for %zu samples", n);
    if (!st)
        st = fit_bands(&w, &c, err);
    if (!st)
        st = residuals(&w, &term, err);
    free(w.part);
    free(w.p);
    free(w.chosen);
    if (st)
        return st;
    *ret = c;
    *ret_term = term;
    return LVR_OK;
}
