#include "common/stats.h"

#include "common/rng.h"
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Neumaier's compensated sum: long series of small terms keep their digits. */
typedef struct sum {
    double total, lost;
} sum;

static void sum_add(sum *s, double x)
{
    const double t = s->total + x;
    s->lost += fabs(s->total) >= fabs(x) ? (s->total - t) + x : (x - t) + s->total;
    s->total = t;
}

static double sum_value(const sum *s)
{
    /* After an overflow the compensation is NaN while the total is the right infinity. */
    return isfinite(s->total) ? s->total + s->lost : s->total;
}

double lvr_mean(const double *x, size_t n)
{
    if (n == 0)
        return NAN;
    sum s = {0};
    for (size_t i = 0; i < n; i++)
        sum_add(&s, x[i]);
    return sum_value(&s) / (double)n;
}

double lvr_stddev(const double *x, size_t n)
{
    if (n < 2)
        return NAN;
    const double mean = lvr_mean(x, n);
    sum s = {0};
    for (size_t i = 0; i < n; i++)
        sum_add(&s, (x[i] - mean) * (x[i] - mean));
    return sqrt(sum_value(&s) / (double)(n - 1));
}

static int compare_doubles(const void *a, const void *b)
{
    double x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return (x > y) - (x < y);
}

static double quantile_of_sorted(const double *x, size_t n, double q)
{
    const double rank = q * (double)(n - 1);
    const size_t below = (size_t)rank;
    if (below + 1 >= n)
        return x[n - 1];
    const double part = rank - (double)below;
    /* Not x + part * 0: two equal infinities would give NaN. */
    if (part == 0 || x[below] == x[below + 1])
        return x[below];
    return x[below] + part * (x[below + 1] - x[below]);
}

static double *sorted_copy(const double *x, size_t n)
{
    if (n > SIZE_MAX / sizeof *x)
        return NULL;
    double *copy = malloc(n * sizeof *copy);
    if (!copy)
        return NULL;
    memcpy(copy, x, n * sizeof *copy);
    qsort(copy, n, sizeof *copy, compare_doubles);
    return copy;
}

/* NaN has no place in an order. */
static bool any_nan(const double *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (isnan(x[i]))
            return true;
    return false;
}

double lvr_quantile(const double *x, size_t n, double q)
{
    if (n == 0 || !(q >= 0 && q <= 1) || any_nan(x, n))
        return NAN;
    double *copy = sorted_copy(x, n);
    if (!copy)
        return NAN;
    const double value = quantile_of_sorted(copy, n, q);
    free(copy);
    return value;
}

double lvr_median(const double *x, size_t n)
{
    return lvr_quantile(x, n, 0.5);
}

double lvr_geomean(const double *x, size_t n)
{
    if (n == 0)
        return NAN;
    sum s = {0};
    for (size_t i = 0; i < n; i++) {
        if (!(x[i] > 0))
            return NAN;
        sum_add(&s, log(x[i]));
    }
    return exp(sum_value(&s) / (double)n);
}

static double resampled_mean(const double *x, size_t n, lvr_rng *rng)
{
    sum s = {0};
    for (size_t i = 0; i < n; i++)
        sum_add(&s, x[lvr_rng_below(rng, n)]);
    return sum_value(&s) / (double)n;
}

lvr_interval lvr_bootstrap_mean(const double *x, size_t n, unsigned n_resamples, uint64_t seed)
{
    lvr_interval interval = {.mean = lvr_mean(x, n), .lo = NAN, .hi = NAN};
    if (n == 0 || n_resamples == 0 || isnan(interval.mean))
        return interval;
    double *means = calloc(n_resamples, sizeof *means);
    if (!means)
        return interval;
    lvr_rng rng;
    lvr_rng_init(&rng, seed, "bootstrap");
    for (unsigned r = 0; r < n_resamples; r++)
        means[r] = resampled_mean(x, n, &rng);
    qsort(means, n_resamples, sizeof *means, compare_doubles);
    interval.lo = quantile_of_sorted(means, n_resamples, 0.025);
    interval.hi = quantile_of_sorted(means, n_resamples, 0.975);
    free(means);
    return interval;
}
