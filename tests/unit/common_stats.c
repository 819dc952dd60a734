#include "common/rng.h"
#include "common/stats.h"
#include <criterion/criterion.h>
#include <math.h>

Test(stats, nothing_is_nan)
{
    const double one = 3;
    cr_assert(isnan(lvr_mean(NULL, 0)));
    cr_assert(isnan(lvr_stddev(NULL, 0)));
    cr_assert(isnan(lvr_stddev(&one, 1)));
    cr_assert(isnan(lvr_median(NULL, 0)));
    cr_assert(isnan(lvr_geomean(NULL, 0)));
    cr_assert(isnan(lvr_bootstrap_mean(NULL, 0, 100, 1).lo));
    cr_assert(isnan(lvr_bootstrap_mean(&one, 1, 0, 1).lo));
}

Test(stats, known_values)
{
    const double x[] = {2, 4, 4, 4, 5, 5, 7, 9};
    cr_assert_eq(lvr_mean(x, 8), 5);
    cr_assert_float_eq(lvr_stddev(x, 8), sqrt(32.0 / 7), 1e-15);
    cr_assert_eq(lvr_median(x, 8), 4.5);
    const double g[] = {1, 10, 100};
    cr_assert_float_eq(lvr_geomean(g, 3), 10, 1e-12);
    const double zero[] = {1, 0};
    cr_assert(isnan(lvr_geomean(zero, 2)));
}

Test(stats, quantiles_are_type_7)
{
    const double x[] = {40, 10, 30, 20};
    cr_assert_eq(lvr_quantile(x, 4, 0), 10);
    cr_assert_eq(lvr_quantile(x, 4, 1), 40);
    cr_assert_eq(lvr_quantile(x, 4, 0.5), 25);
    cr_assert_float_eq(lvr_quantile(x, 4, 0.1), 13, 1e-12);
    cr_assert_eq(x[0], 40);
    cr_assert(isnan(lvr_quantile(x, 4, -0.1)));
    cr_assert(isnan(lvr_quantile(x, 4, 1.1)));
    cr_assert(isnan(lvr_quantile(x, 4, NAN)));
    const double with_nan[] = {1, NAN};
    cr_assert(isnan(lvr_median(with_nan, 2)));
    const double infinite[] = {INFINITY, INFINITY, INFINITY};
    cr_assert_eq(lvr_quantile(infinite, 3, 0.3), INFINITY);
}

Test(stats, mean_keeps_small_terms)
{
    const double x[] = {1e16, 1, 1, -1e16};
    cr_assert_eq(lvr_mean(x, 4), 0.5);
    const double huge[] = {1.7e308, 1.7e308};
    cr_assert_eq(lvr_mean(huge, 2), INFINITY);
}

Test(stats, bootstrap_is_deterministic_and_covers)
{
    enum { N = 50 };
    double x[N];
    unsigned covered = 0;
    for (uint64_t trial = 0; trial < 200; trial++) {
        lvr_rng rng;
        lvr_rng_init(&rng, trial, "bootstrap-test");
        for (int i = 0; i < N; i++)
            x[i] = 10 + lvr_rng_normal(&rng);
        const lvr_interval a = lvr_bootstrap_mean(x, N, 400, 7);
        const lvr_interval b = lvr_bootstrap_mean(x, N, 400, 7);
        cr_assert(a.lo == b.lo && a.hi == b.hi);
        cr_assert(a.lo <= a.mean && a.mean <= a.hi);
        covered += a.lo <= 10 && 10 <= a.hi;
    }
    cr_assert(covered >= 175 && covered <= 199, "%u of 200", covered);
}
