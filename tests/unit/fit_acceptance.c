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
    const lvr_acceptance_sample s[] = {
        {.q = 0.9, .accepted = true}, {.q = 0.8, .accepted = true}, {.q = 0.1}};
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
        s[i] = (lvr_acceptance_sample){.q = 0.5, .accepted = i % 4 == 0};
    lvr_error err = LVR_ERROR_INIT;
    lvr_calibration c;
    lvr_fit_term term;
    cr_assert_eq(lvr_fit_calibration(s, 100, 32, &c, &term, &err), LVR_OK, "%s", err.msg);
    cr_expect_eq(c.n, 1);
    cr_expect_float_eq(c.p[0], 0.25, 0.01);
}

Test(fit_acceptance, bad_samples_are_refused)
{
    const lvr_acceptance_sample s = {.q = NAN, .accepted = true};
    lvr_error err = LVR_ERROR_INIT;
    lvr_calibration c = {.n = 9};
    lvr_fit_term term;
    cr_expect_eq(lvr_fit_calibration(&s, 1, 32, &c, &term, &err), LVR_ERR_FORMAT);
    cr_expect_eq(lvr_fit_calibration(&s, 0, 32, &c, &term, &err), LVR_ERR_FORMAT);
    cr_expect_eq(c.n, 9, "outputs are untouched on failure");
}

/* Newton's method finds the logistic that the samples were drawn from. */
Test(fit_acceptance, platt_recovers_its_own_form)
{
    enum { N = 20000 };
    lvr_rng rng;
    lvr_rng_init(&rng, 12, "platt");
    lvr_acceptance_sample *s = calloc(N, sizeof(*s));
    for (size_t i = 0; i < N; i++) {
        s[i].q = 0.01 + 0.98 * lvr_rng_unit(&rng);
        s[i].accepted = lvr_rng_unit(&rng) < 1 / (1 + exp(-(0.7 + 1.4 * log(s[i].q / (1 - s[i].q)))));
    }
    double a = 0, b = 0;
    lvr_fit_platt(s, N, &a, &b);
    cr_expect_float_eq(a, 0.7, 0.1, "a %g", a);
    cr_expect_float_eq(b, 1.4, 0.1, "b %g", b);
    for (size_t i = 0; i < N; i++) /* the wrong way round: never less for more */
        s[i].accepted = lvr_rng_unit(&rng) < 1 - s[i].q;
    lvr_fit_platt(s, N, &a, &b);
    cr_expect_eq(b, 0);
    cr_expect_float_eq(1 / (1 + exp(-a)), 0.5, 0.02);
    free(s);
}

/* What is true at each depth and rank: a second-best token is taken half as often as its probability says. */
static double truth_at(double q, uint32_t depth, uint32_t rank)
{
    return rank == 0 ? sqrt(q) : depth == 0 ? q * q : 0.5 * q;
}

static lvr_acceptance_sample *draw_groups(size_t n, bool by_rank, lvr_rng *rng)
{
    lvr_acceptance_sample *s = calloc(n, sizeof(*s));
    for (size_t i = 0; i < n; i++) {
        s[i] = (lvr_acceptance_sample){.q = lvr_rng_unit(rng),
                                       .depth = (uint16_t)lvr_rng_below(rng, 6),
                                       .rank = (uint16_t)lvr_rng_below(rng, 3),
                                       .fold = (uint32_t)(i / 50)};
        s[i].accepted =
            lvr_rng_unit(rng) < (by_rank ? truth_at(s[i].q, s[i].depth, s[i].rank) : truth(s[i].q));
    }
    return s;
}

Test(fit_acceptance, depths_and_ranks_get_maps_of_their_own_where_they_differ)
{
    enum { N = 30000 };
    lvr_rng rng;
    lvr_rng_init(&rng, 13, "groups");
    lvr_error err = LVR_ERROR_INIT;
    lvr_calibration c;
    lvr_fit_term term;
    lvr_acceptance_sample *s = draw_groups(N, true, &rng);
    cr_assert_eq(lvr_fit_calibration(s, N, 32, &c, &term, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_fit_groups(s, N, &c, &term, &err), LVR_OK, "%s", err.msg);
    cr_expect_eq(c.n_groups, 13, "four bands of depth, three of rank, and all: %u", c.n_groups);
    cr_expect_eq(term.n, N);
    cr_expect_lt(fabs(term.bias), 0.02, "left-out texts are predicted: bias %g", term.bias);
    for (uint32_t depth = 0; depth < 6; depth++)
        for (uint32_t rank = 0; rank < 3; rank++)
            for (double q = 0.1; q < 0.95; q += 0.1)
                cr_expect_lt(fabs(lvr_calibrate_hazard(&c, q, depth, rank) - truth_at(q, depth, rank)), 0.09,
                             "depth %u rank %u at %g: %g, expected %g", depth, rank, q,
                             lvr_calibrate_hazard(&c, q, depth, rank), truth_at(q, depth, rank));
    free(s);
}

/* Where depth and rank say nothing, one map of all samples stands. */
Test(fit_acceptance, equal_depths_and_ranks_share_one_map)
{
    enum { N = 30000 };
    lvr_rng rng;
    lvr_rng_init(&rng, 14, "no groups");
    lvr_error err = LVR_ERROR_INIT;
    lvr_calibration c;
    lvr_fit_term term;
    lvr_acceptance_sample *s = draw_groups(N, false, &rng);
    cr_assert_eq(lvr_fit_calibration(s, N, 32, &c, &term, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_fit_groups(s, N, &c, &term, &err), LVR_OK, "%s", err.msg);
    cr_expect_leq(c.n_groups, 4, "%u groups", c.n_groups);
    cr_assert_eq(lvr_fit_groups(s, 150, &c, &term, &err), LVR_OK, "%s", err.msg);
    cr_expect_eq(c.n_groups, 1, "too few samples for any but the one of all");
    free(s);
}

/* One text, or texts that all fall into one fold: nothing can be left out, so nothing is judged. */
Test(fit_acceptance, one_fold_is_not_judged)
{
    enum { N = 5000 };
    lvr_rng rng;
    lvr_rng_init(&rng, 15, "one fold");
    lvr_error err = LVR_ERROR_INIT;
    lvr_calibration c;
    lvr_fit_term term;
    lvr_acceptance_sample *s = draw_groups(N, true, &rng);
    for (size_t i = 0; i < N; i++)
        s[i].fold = 7;
    cr_assert_eq(lvr_fit_calibration(s, N, 32, &c, &term, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_fit_groups(s, N, &c, &term, &err), LVR_OK, "%s", err.msg);
    cr_expect_eq(c.n_groups, 1, "only the one of all: %u", c.n_groups);
    cr_expect_eq(term.n, 0);
    cr_expect(term.p50 == 0 && term.bias == 0 && term.x_max == 0);
    free(s);
}

/* A group whose samples are all in one fold gets no map of its own; the map of all is judged as before. */
Test(fit_acceptance, a_group_of_one_fold_shares_the_map_of_all)
{
    enum { N = 30000 };
    lvr_rng rng;
    lvr_rng_init(&rng, 13, "groups");
    lvr_error err = LVR_ERROR_INIT;
    lvr_calibration c;
    lvr_fit_term term;
    lvr_acceptance_sample *s = draw_groups(N, true, &rng);
    for (size_t i = 0; i < N; i++)
        if (s[i].depth == 0 && s[i].rank == 0)
            s[i].fold = 0;
    cr_assert_eq(lvr_fit_calibration(s, N, 32, &c, &term, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_fit_groups(s, N, &c, &term, &err), LVR_OK, "%s", err.msg);
    cr_expect_eq(c.n_groups, 12, "one fewer than with folds everywhere: %u", c.n_groups);
    cr_expect_eq(term.n, N);
    free(s);
}

Test(fit_acceptance, siblings_never_add_up_to_more_than_one)
{
    lvr_calibration c = {.n = 1, .q = {0.5}, .p = {0.7}};
    const lvr_node siblings[] = {{.depth = 1, .p_draft = 0.6f}, {.depth = 1, .rank = 1, .p_draft = 0.3f}};
    double p[2];
    lvr_calibrate_siblings(&c, siblings, 2, p);
    cr_expect_float_eq(p[0], 0.7, 1e-12);
    cr_expect_float_eq(p[1], 0.3, 1e-12);
    /* Hazards: the second one has 0.3 of the 0.4 that the first one leaves. */
    c.n_groups = 2;
    c.group[0] = (lvr_calibration_group){.n = 1, .q = {0.6}, .p = {0.8}};
    c.group[1] = (lvr_calibration_group){.max_depth = 9, .max_rank = 9, .n = 2, .q = {0, 1}, .p = {0, 0.8}};
    lvr_calibrate_siblings(&c, siblings, 2, p);
    cr_expect_float_eq(p[0], 0.8, 1e-9);
    cr_expect_float_eq(p[1], 0.2 * 0.8 * 0.75, 1e-6);
}

/* By hand: 90 of 100 roots' best children are taken and 20 of 50 nodes' below; 32 parents of the common rate,
 * 110 of 150, are added to each. */
Test(fit_acceptance, rates_by_rank_lean_on_all_depths)
{
    const lvr_rank_counts counts = {.parents = {100, 50}, .taken = {{90, 5}, {20, 10}}, .n_ranks = 2};
    lvr_calibration c = {0};
    lvr_fit_by_rank(&counts, &c);
    cr_assert(c.n_depths == 2 && c.n_ranks == 2);
    cr_expect_float_eq(c.by_rank[0][0], (90 + 32 * 110.0 / 150) / 132, 1e-12);
    cr_expect_float_eq(c.by_rank[1][1], (10 + 32 * 15.0 / 150) / 82, 1e-12);
    lvr_calibration none = {0};
    lvr_fit_by_rank(&(lvr_rank_counts){.n_ranks = 3}, &none);
    cr_expect_eq(none.n_depths, 0);
}

/* By hand: children of .5 and .25 under the root, of .8 and .1 under the second of them; identity. */
Test(fit_acceptance, expected_acceptance_by_hand)
{
    const lvr_calibration c = {0};
    const lvr_candidate first[] = {{10, 0.5f}, {11, 0.25f}}, second[] = {{12, 0.8f}, {13, 0.1f}};
    const uint32_t all[] = {0, 1, 2, 3, 4}, some[] = {0, 2, 4};
    lvr_tree t = {0};
    cr_assert_eq(lvr_tree_init(&t, 8, NULL), LVR_OK);
    lvr_tree_reset(&t, 1);
    cr_assert_eq(lvr_tree_expand(&t, 0, first, 2, NULL), LVR_OK);
    cr_assert_eq(lvr_tree_expand(&t, 2, second, 2, NULL), LVR_OK);
    /* Probabilities are float: 1e-7 relative. */
    cr_expect_float_eq(lvr_expected_accepted(&c, &t, all, 5), 0.5 + 0.25 + 0.25 * 0.9, 1e-6);
    cr_expect_float_eq(lvr_expected_accepted(&c, &t, some, 3), 0.25 + 0.25 * 0.1, 1e-6);
    cr_expect_float_eq(lvr_expected_accepted(&c, &t, all, 1), 0.0, 0);
    lvr_tree_free(&t);
}
