/*
 * Calibration of the draft: how often the target takes a token to which the draft gave probability q.
 * Isotonic regression (pool adjacent violators) over q, then adjacent levels are joined where that costs the
 * least likelihood, until few enough knots are left.
 */
#include "costmodel/fit/fit_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

lvr_status lvr_isotonic(const double *y, const double *weight, size_t n, double *fit, lvr_error *err)
{
    /* Blocks of pooled values, as a stack: mean, weight, length. */
    double *mean = calloc(n ? n : 1, sizeof(*mean)), *mass = calloc(n ? n : 1, sizeof(*mass));
    size_t *len = calloc(n ? n : 1, sizeof(*len));
    lvr_status st = LVR_OK;
    if (!mean || !mass || !len) {
        st = lvr_fail(err, LVR_ERR_NOMEM, "isotonic regression: out of memory for %zu values", n);
        goto out;
    }
    size_t top = 0;
    for (size_t i = 0; i < n; i++) {
        mean[top] = y[i];
        mass[top] = weight[i];
        len[top] = 1;
        while (top > 0 && mean[top - 1] >= mean[top]) {
            const double m = mass[top - 1] + mass[top];
            mean[top - 1] = (mean[top - 1] * mass[top - 1] + mean[top] * mass[top]) / m;
            mass[top - 1] = m;
            len[top - 1] += len[top];
            top--;
        }
        top++;
    }
    size_t at = 0;
    for (size_t b = 0; b < top; b++) {
        for (size_t i = 0; i < len[b]; i++)
            fit[at++] = mean[b];
    }
out:
    free(mean);
    free(mass);
    free(len);
    return st;
}

/* A level of the calibration: samples with neighbouring q that share one acceptance. */
typedef struct level {
    double n, sum_q, hits;
} level;

static int by_q(const void *a, const void *b)
{
    const lvr_acceptance_sample *x = a, *y = b;
    if (x->q != y->q)
        return x->q < y->q ? -1 : 1;
    return (int)x->accepted - (int)y->accepted;
}

static double x_log(double x, double p)
{
    return x > 0 ? x * log(p) : 0.0;
}

/* Log likelihood of a level's outcomes under its own rate. */
static double likelihood(const level *l)
{
    const double p = l->hits / l->n;
    return x_log(l->hits, p) + x_log(l->n - l->hits, 1.0 - p);
}

static level joined(const level *a, const level *b)
{
    return (level){.n = a->n + b->n, .sum_q = a->sum_q + b->sum_q, .hits = a->hits + b->hits};
}

static void join_at(level *levels, size_t *n, size_t i)
{
    levels[i] = joined(&levels[i], &levels[i + 1]);
    memmove(&levels[i + 1], &levels[i + 2], (*n - i - 2) * sizeof(*levels));
    (*n)--;
}

/* Joins the adjacent pair that loses least, until at most max_levels are left. */
static void thin(level *levels, size_t *n, size_t max_levels)
{
    while (*n > max_levels) {
        size_t best = 0;
        double least = INFINITY;
        for (size_t i = 0; i + 1 < *n; i++) {
            const level both = joined(&levels[i], &levels[i + 1]);
            const double lost = likelihood(&levels[i]) + likelihood(&levels[i + 1]) - likelihood(&both);
            if (lost < least) {
                least = lost;
                best = i;
            }
        }
        join_at(levels, n, best);
    }
}

enum { FIRST_LEVELS = 512 }; /* groups of equal size before pooling: keeps the thinning short */

/* Groups of neighbouring samples; equal q stay together. */
static size_t first_levels(const lvr_acceptance_sample *s, size_t n, level *levels)
{
    const size_t size = n / FIRST_LEVELS + 1;
    size_t count = 0, in_level = 0;
    for (size_t i = 0; i < n; i++) {
        if (i == 0 || (in_level >= size && s[i].q != s[i - 1].q)) {
            levels[count++] = (level){0};
            in_level = 0;
        }
        level *l = &levels[count - 1];
        l->n += 1;
        l->sum_q += s[i].q;
        l->hits += s[i].accepted ? 1 : 0;
        in_level++;
    }
    return count;
}

/* Pools levels that fall into one. */
static lvr_status pool(level *levels, size_t *n, lvr_error *err)
{
    double *y = calloc(3 * *n, sizeof(*y));
    if (!y)
        return lvr_fail(err, LVR_ERR_NOMEM, "calibration: out of memory for %zu levels", *n);
    double *w = y + *n, *fit = y + 2 * *n;
    for (size_t i = 0; i < *n; i++) {
        y[i] = levels[i].hits / levels[i].n;
        w[i] = levels[i].n;
    }
    const lvr_status st = lvr_isotonic(y, w, *n, fit, err);
    size_t count = 0;
    for (size_t i = 0; i < *n && !st; i++) {
        if (count > 0 && fit[i] == fit[i - 1])
            levels[count - 1] = joined(&levels[count - 1], &levels[i]);
        else
            levels[count++] = levels[i];
    }
    free(y);
    if (!st)
        *n = count;
    return st;
}

/* Knots at the levels' mean q. Rates are drawn half an outcome away from 0 and 1 (Jeffreys), so that "never
 * seen" is not "never". */
static void to_calibration(const level *levels, size_t n, lvr_calibration *ret)
{
    *ret = (lvr_calibration){0};
    for (size_t i = 0; i < n; i++) {
        const double q = levels[i].sum_q / levels[i].n;
        const double p = (levels[i].hits + 0.5) / (levels[i].n + 1.0);
        const uint32_t k = ret->n;
        if (k > 0 && q <= ret->q[k - 1])
            continue;
        ret->q[k] = q;
        ret->p[k] = k > 0 ? fmax(p, ret->p[k - 1]) : p;
        ret->n++;
    }
}

/* Residuals over the levels, one per level: predicted and counted acceptance. */
static lvr_status residuals(const lvr_calibration *c, const level *levels, size_t n_levels, size_t n,
                            lvr_fit_term *term, lvr_error *err)
{
    double *p = calloc(2 * n_levels, sizeof(*p));
    if (!p)
        return lvr_fail(err, LVR_ERR_NOMEM, "calibration: out of memory for %zu levels", n_levels);
    for (size_t i = 0; i < n_levels; i++) {
        p[i] = lvr_calibrate(c, levels[i].sum_q / levels[i].n) * levels[i].n;
        p[n_levels + i] = levels[i].hits;
    }
    const lvr_status st = lvr_fit_residuals(p, p + n_levels, n_levels, term, err);
    term->n = n;
    free(p);
    return st;
}

static lvr_status check_samples(const lvr_acceptance_sample *s, size_t n, lvr_error *err)
{
    if (n == 0)
        return lvr_fail(err, LVR_ERR_FORMAT, "calibration: no draft token whose fate is known");
    for (size_t i = 0; i < n; i++) {
        if (!(s[i].q >= 0 && s[i].q <= 1))
            return lvr_fail(err, LVR_ERR_FORMAT,
                            "calibration: sample %zu has draft probability %g, expected 0 to 1", i, s[i].q);
    }
    return LVR_OK;
}

lvr_status lvr_fit_calibration(const lvr_acceptance_sample *samples, size_t n, uint32_t max_knots,
                               lvr_calibration *ret, lvr_fit_term *ret_term, lvr_error *err)
{
    lvr_status st = check_samples(samples, n, err);
    if (st)
        return st;
    lvr_calibration c;
    lvr_fit_term term = {0};
    size_t n_levels = 0;
    lvr_acceptance_sample *s = calloc(n, sizeof(*s));
    level *levels = calloc(FIRST_LEVELS + 2, sizeof(*levels));
    if (!s || !levels) {
        st = lvr_fail(err, LVR_ERR_NOMEM, "calibration: out of memory for %zu samples", n);
        goto out;
    }
    memcpy(s, samples, n * sizeof(*s));
    qsort(s, n, sizeof(*s), by_q);
    n_levels = first_levels(s, n, levels);
    st = pool(levels, &n_levels, err);
    if (st)
        goto out;
    thin(levels, &n_levels, max_knots < LVR_CALIBRATION_MAX_KNOTS ? max_knots : LVR_CALIBRATION_MAX_KNOTS);
    to_calibration(levels, n_levels, &c);
    st = residuals(&c, levels, n_levels, n, &term, err);
    if (st)
        goto out;
    term.x_min = s[0].q;
    term.x_max = s[n - 1].q;
    *ret = c;
    *ret_term = term;
out:
    free(s);
    free(levels);
    return st;
}

enum { PRIOR_PARENTS = 32 }; /* as many parents of the rate over all depths are added to each depth */

void lvr_fit_by_rank(const lvr_rank_counts *counts, lvr_calibration *ret)
{
    double parents = 0, taken[LVR_MAX_BRANCH] = {0};
    uint32_t n_depths = 0;
    for (uint32_t d = 0; d < LVR_CALIBRATION_MAX_DEPTHS; d++) {
        parents += counts->parents[d];
        n_depths = counts->parents[d] > 0 ? d + 1 : n_depths;
        for (uint32_t r = 0; r < counts->n_ranks; r++)
            taken[r] += counts->taken[d][r];
    }
    if (n_depths == 0 || counts->n_ranks == 0)
        return;
    ret->n_depths = n_depths;
    ret->n_ranks = counts->n_ranks;
    for (uint32_t d = 0; d < n_depths; d++)
        for (uint32_t r = 0; r < counts->n_ranks; r++)
            ret->by_rank[d][r] = (counts->taken[d][r] + PRIOR_PARENTS * taken[r] / parents) /
                                 (counts->parents[d] + PRIOR_PARENTS);
}
