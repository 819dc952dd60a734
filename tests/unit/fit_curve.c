/* Operator fits on samples whose truth is known: values, context, outliers, and what is refused. */
#include "common/rng.h"
#include "costmodel/fit/fit_parts.h"
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

static const uint32_t rows_seen[] = {1, 2, 3, 5, 8, 11, 16, 24, 31, 48, 64};
enum { N_ROWS = sizeof rows_seen / sizeof rows_seen[0] };

/* A roofline: flat to 4 rows, then linear; plus attention. */
static double truth(uint32_t rows, uint32_t context)
{
    return fmax(80000.0, 20000.0 * rows) + 12.0 * rows * context;
}

/* n samples with log-normal noise of the given spread, of which a share waits some milliseconds more. */
static lvr_op_sample *make(size_t n, double spread, double outliers, const char *stream)
{
    lvr_rng rng;
    lvr_rng_init(&rng, 7, stream);
    lvr_op_sample *s = calloc(n, sizeof(*s));
    cr_assert_not_null(s);
    for (size_t i = 0; i < n; i++) {
        s[i].rows = rows_seen[lvr_rng_below(&rng, N_ROWS)];
        s[i].context = (uint32_t)lvr_rng_below(&rng, 500);
        s[i].ns = truth(s[i].rows, s[i].context) * exp(spread * lvr_rng_normal(&rng));
        if (lvr_rng_unit(&rng) < outliers)
            s[i].ns += 4e6;
    }
    return s;
}

static double worst_error(const lvr_op_cost *c, double factor)
{
    double worst = 0;
    for (size_t i = 0; i < N_ROWS; i++) {
        for (uint32_t ctx = 0; ctx <= 500; ctx += 100) {
            const double want = factor * truth(rows_seen[i], ctx);
            worst = fmax(worst, fabs(lvr_op_cost_ns(c, rows_seen[i], ctx) - want) / want);
        }
    }
    return worst;
}

Test(fit_curve, exact_data_is_recovered)
{
    lvr_error err = LVR_ERROR_INIT;
    lvr_op_cost c;
    lvr_fit_term term;
    lvr_op_sample *s = make(2000, 0.0, 0.0, "exact");
    cr_assert_eq(lvr_fit_op(s, 2000, true, &c, &term, &err), LVR_OK, "%s", err.msg);
    free(s);
    cr_expect_float_eq(c.ctx_ns, 12.0, 0.2, "ctx_ns %g", c.ctx_ns);
    cr_expect_lt(worst_error(&c, 1.0), 0.02, "worst %g", worst_error(&c, 1.0));
    cr_expect_lt(term.p99, 0.03);
    cr_expect_eq(term.n, 2000);
    cr_expect_eq(term.x_min, 1);
    cr_expect_eq(term.x_max, 64);
}

/* One call in two hundred is delayed by 4 ms, up to fifty times its own time: the shape (differences between
 * row counts, context) stays, and the mean has the delays in it. */
Test(fit_curve, delays_do_not_bend_the_shape)
{
    enum { N = 60000 };
    const double spread = 0.08, share = 0.005;
    lvr_error err = LVR_ERROR_INIT;
    lvr_op_cost c;
    lvr_fit_term term;
    lvr_op_sample *s = make(N, spread, share, "delayed");
    cr_assert_eq(lvr_fit_op(s, N, true, &c, &term, &err), LVR_OK, "%s", err.msg);
    free(s);
    for (size_t i = 0; i < N_ROWS; i++) {
        const double want = truth(rows_seen[i], 250) * exp(spread * spread / 2) + share * 4e6;
        cr_expect_float_eq(lvr_op_cost_ns(&c, rows_seen[i], 250) / want, 1.0, 0.08, "%u rows: %g, mean %g",
                           rows_seen[i], lvr_op_cost_ns(&c, rows_seen[i], 250), want);
    }
    cr_expect_float_eq(c.ctx_ns, 12.0, 1.5, "ctx_ns %g", c.ctx_ns);
    cr_expect_lt(fabs(term.bias), 0.01, "bias %g", term.bias);
}

Test(fit_curve, a_suspended_program_is_not_a_slow_one)
{
    enum { N = 2000 };
    lvr_error err = LVR_ERROR_INIT;
    lvr_op_cost c;
    lvr_fit_term term;
    lvr_op_sample *s = make(N, 0.0, 0.0, "suspended");
    s[77].ns = 600e9; /* ten minutes: unbounded, 0.3 s would be added to every call */
    cr_assert_eq(lvr_fit_op(s, N, true, &c, &term, &err), LVR_OK, "%s", err.msg);
    free(s);
    for (size_t i = 0; i < N_ROWS; i++)
        cr_expect_lt(lvr_op_cost_ns(&c, rows_seen[i], 0), 1.1 * truth(rows_seen[i], 0));
}

Test(fit_curve, predicts_the_mean_of_skewed_times)
{
    lvr_error err = LVR_ERROR_INIT;
    lvr_op_cost c;
    lvr_fit_term term;
    lvr_op_sample *fit_set = make(6000, 0.25, 0.0, "skewed fit"),
                  *held_out = make(6000, 0.25, 0.0, "skewed held out");
    cr_assert_eq(lvr_fit_op(fit_set, 6000, true, &c, &term, &err), LVR_OK, "%s", err.msg);
    double predicted = 0, measured = 0;
    for (size_t i = 0; i < 6000; i++) {
        predicted += lvr_op_cost_ns(&c, held_out[i].rows, held_out[i].context);
        measured += held_out[i].ns;
    }
    free(fit_set);
    free(held_out);
    cr_expect_lt(fabs(predicted / measured - 1.0), 0.01, "bias %g", predicted / measured - 1.0);
    cr_expect_lt(fabs(term.bias), 0.005);
}

Test(fit_curve, operators_without_context_get_none)
{
    lvr_error err = LVR_ERROR_INIT;
    lvr_op_cost c;
    lvr_fit_term term;
    lvr_op_sample *s = make(500, 0.05, 0.0, "no context");
    cr_assert_eq(lvr_fit_op(s, 500, false, &c, &term, &err), LVR_OK, "%s", err.msg);
    free(s);
    cr_expect_eq(c.ctx_ns, 0.0);
}

Test(fit_curve, knots_stand_where_data_is)
{
    const lvr_op_sample s[] = {{1, 0, 100},  {1, 1, 110},  {1, 2, 105},
                               {40, 0, 900}, {40, 3, 950}, {40, 4, 920}};
    lvr_error err = LVR_ERROR_INIT;
    lvr_op_cost c;
    lvr_fit_term term;
    cr_assert_eq(lvr_fit_op(s, 6, true, &c, &term, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(c.curve.n, 2);
    cr_expect_eq(c.curve.rows[0], 1);
    cr_expect_eq(c.curve.rows[1], 40);
    cr_expect_float_eq(c.curve.ns[0], 105, 3);
    cr_expect_float_eq(c.curve.ns[1], 923, 12);
    cr_expect_eq(c.ctx_ns, 0.0, "a context that hardly varies has no price");
}

/* A long prompt in one pass, and rounds that are all about as far behind it: what a row costs and what its
 * context costs cannot be told apart, and is not guessed. */
Test(fit_curve, context_is_told_apart_among_like_rows_only)
{
    enum { N = 264 };
    lvr_error err = LVR_ERROR_INIT;
    lvr_op_cost c;
    lvr_fit_term term;
    lvr_rng rng;
    lvr_op_sample s[N];
    lvr_rng_init(&rng, 7, "one long prompt");
    for (uint32_t i = 0; i < N; i++) {
        const bool prompt = i < 12;
        s[i] = (lvr_op_sample){.rows = prompt ? 3000 : 1 + i % 5, .context = prompt ? 0 : 3000 + i};
        s[i].ns = truth(s[i].rows, s[i].context) * exp(0.3 * lvr_rng_normal(&rng));
    }
    cr_assert_eq(lvr_fit_op(s, N, true, &c, &term, &err), LVR_OK, "%s", err.msg);
    cr_expect_eq(c.ctx_ns, 0.0, "ctx_ns %g", c.ctx_ns);
    for (uint32_t rows = 1; rows <= 5; rows++) {
        const double want = truth(rows, 3130), got = lvr_op_cost_ns(&c, rows, 3130);
        cr_expect(got > 0.7 * want && got < 1.5 * want, "%u rows: %g, truth %g", rows, got, want);
    }
    const double prompt = truth(3000, 0), got = lvr_op_cost_ns(&c, 3000, 0);
    cr_expect(got > 0.7 * prompt && got < 1.5 * prompt, "the prompt: %g, truth %g", got, prompt);
    cr_expect_eq(term.x_max, 3000);
}

Test(fit_curve, one_sample_is_a_constant_and_none_is_refused)
{
    const lvr_op_sample s = {1, 10, 1234.0};
    lvr_error err = LVR_ERROR_INIT;
    lvr_op_cost c = {.ctx_ns = -1};
    lvr_fit_term term;
    cr_expect_eq(lvr_fit_op(&s, 0, true, &c, &term, &err), LVR_ERR_FORMAT);
    cr_expect_eq(c.ctx_ns, -1, "outputs are untouched on failure");
    cr_assert_eq(lvr_fit_op(&s, 1, true, &c, &term, &err), LVR_OK, "%s", err.msg);
    cr_expect_float_eq(lvr_op_cost_ns(&c, 1, 0), 1234.0, 1e-6);
}
