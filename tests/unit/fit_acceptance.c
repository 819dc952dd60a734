/* Isotonic regression by hand, and calibrations whose truth is known. */
#include "common/rng.h"
#include "costmodel/fit/fit_parts.h"
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

static void check_isotonic(const double *y, const double *w, const double *want, size_t n)
{
    double fit[8];
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_isotonic(y, w, n, fit, &err), LVR_OK, "%s", err.msg);
    for (size_t i = 0; i < n; i++)
        cr_expect_float_eq(fit[i], want[i], 1e-12, "value %zu: %g, expected %g", i, fit[i], want[i]);
}

Test(fit_acceptance, pool_adjacent_violators_by_hand)
{
    const double one[] = {1, 1, 1, 1, 1};
    check_isotonic((const double[]){1, 2, 3, 4, 5}, one, (const double[]){1, 2, 3, 4, 5}, 5);
    check_isotonic((const double[]){5, 4, 3, 2, 1}, one, (const double[]){3, 3, 3, 3, 3}, 5);
    check_isotonic((const double[]){1, 3, 2, 4, 3.5}, one, (const double[]){1, 2.5, 2.5, 3.75, 3.75}, 5);
    /* The last value pulls a whole run down: 4, 5, 0 pool to 3. */
    check_isotonic((const double[]){1, 4, 5, 0, 6}, one, (const double[]){1, 3, 3, 3, 6}, 5);
    check_isotonic((const double[]){2, 1}, (const double[]){3, 1}, (const double[]){1.75, 1.75}, 2);
    check_isotonic((const double[]){0.5}, one, (const double[]){0.5}, 1);
}

/* Acceptance as EAGLE-2 reports it: over-confident at the top, under-confident at the bottom. */
static double truth(double q)
{
    return 0.04 + 0.94 * q;
}

Test(fit_acceptance, known_calibration_is_recovered_with_few_knots)
{
    enum { N = 40000 };
    lvr_rng rng;
    lvr_rng_init(&rng, 11, "acceptance");
    lvr_acceptance_sample *s = calloc(N, sizeof(*s));
    for (size_t i = 0; i < N; i++) {
        const double u = lvr_rng_unit(&rng);
        s[i].q = u * u; /* most draft probabilities are small */
        s[i].accepted = lvr_rng_unit(&rng) < truth(s[i].q);
    }
    lvr_error err = LVR_ERROR_INIT;
    lvr_calibration c;
    lvr_fit_term term;
    cr_assert_eq(lvr_fit_calibration(s, N, 32, &c, &term, &err), LVR_OK, "%s", err.msg);
    free(s);
    cr_expect_leq(c.n, 32);
    cr_expect_geq(c.n, 4);
    for (uint32_t i = 1; i < c.n; i++)
        cr_expect(c.q[i] > c.q[i - 1] && c.p[i] >= c.p[i - 1]);
    for (double q = 0.02; q < 0.99; q += 0.05)
        cr_expect_lt(fabs(lvr_calibrate(&c, q) - truth(q)), 0.04, "at %g: %g, expected %g", q,
                     lvr_calibrate(&c, q), truth(q));
    cr_expect_eq(term.n, N);
    cr_expect_lt(fabs(term.bias), 0.01);
}

Test(fit_acceptance, few_samples_are_never_certain)
{
    const lvr_acceptance_sample s[] = {{0.9, true}, {0.8, true}, {0.1, false}};
    lvr_error err = LVR_ERROR_INIT;
    lvr_calibration c;
    lvr_fit_term term;
    cr_assert_eq(lvr_fit_calibration(s, 3, 32, &c, &term, &err), LVR_OK, "%s", err.msg);
    cr_expect_lt(lvr_calibrate(&c, 1.0), 1.0);
    cr_expect_gt(lvr_calibrate(&c, 0.0), 0.0);
}

Test(fit_acceptance, equal_probabilities_make_one_knot)
{
    lvr_acceptance_sample s[100];
    for (size_t i = 0; i < 100; i++)
        s[i] = (lvr_acceptance_sample){0.5, i % 4 == 0};
    lvr_error err = LVR_ERROR_INIT;
    lvr_calibration c;
    lvr_fit_term term;
    cr_assert_eq(lvr_fit_calibration(s, 100, 32, &c, &term, &err), LVR_OK, "%s", err.msg);
    cr_expect_eq(c.n, 1);
    cr_expect_float_eq(c.p[0], 0.25, 0.01);
}

Test(fit_acceptance, bad_samples_are_refused)
{
    const lvr_acceptance_sample s = {NAN, true};
    lvr_error err = LVR_ERROR_INIT;
    lvr_calibration c = {.n = 9};
    lvr_fit_term term;
    cr_expect_eq(lvr_fit_calibration(&s, 1, 32, &c, &term, &err), LVR_ERR_FORMAT);
    cr_expect_eq(lvr_fit_calibration(&s, 0, 32, &c, &term, &err), LVR_ERR_FORMAT);
    cr_expect_eq(c.n, 9, "outputs are untouched on failure");
}
