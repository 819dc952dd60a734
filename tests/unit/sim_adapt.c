/* Adaptation in whole runs: off is as before, requests do not depend on each other, and a calibration that is
 * wrong about the text is mended. */
#include "sim_rig.h"

#include <criterion/criterion.h>
#include <string.h>

enum { N_LAYERS = 6, LAYER_BYTES = 200000, N_REQUESTS = 2 };

static lvr_outcome *long_texts(void)
{
    sim_rig rig = sim_rig_default;
    rig.n_requests = N_REQUESTS;
    rig.n_output = 120;
    return sim_rig_outcome(&rig);
}

static lvr_policy lever_with(const lvr_cost_table *t, double rate)
{
    lvr_policy p = sim_rig_policy("lever", t);
    cr_assert_eq(lvr_policy_set(&p, "test", "lambda", "500", NULL), LVR_OK);
    p.adapt.rate = rate;
    return p;
}

static lvr_sim_result run(const lvr_outcome *o, const lvr_policy *p, const uint32_t *requests, uint32_t n)
{
    const lvr_cost_table t = sim_rig_cost();
    const lvr_geometry g = sim_rig_geometry(N_LAYERS, LAYER_BYTES, LVR_IO_SERIAL);
    lvr_error err = LVR_ERROR_INIT;
    lvr_sim_result r = {0};
    const lvr_sim_config c = {.policy = p,
                              .geometry = &g,
                              .cost = &t,
                              .conditions = sim_rig_conditions(),
                              .outcome = o,
                              .requests = requests,
                              .n_requests = n,
                              .keep_rounds = true};
    cr_assert_eq(lvr_sim_run(&c, &r, &err), LVR_OK, "%s", err.msg);
    return r;
}

/* Hash of the rounds of one request: their rows and what was accepted. */
static uint64_t rounds_of(const lvr_sim_result *r, uint32_t index)
{
    uint64_t h = 0;
    for (size_t i = 0; i < r->n_round_log; i++)
        if (r->round_log[i].request == index)
            h = h * 1000003u + r->round_log[i].n_rows * 1000u + r->round_log[i].n_accepted;
    return h;
}

Test(sim_adapt, off_is_as_before)
{
    const lvr_cost_table t = sim_rig_cost();
    lvr_outcome *o = long_texts();
    lvr_policy plain = lever_with(&t, 0), off = plain, on = lever_with(&t, 0.2);
    off.adapt.bound = 0.5;
    lvr_sim_result a = run(o, &plain, NULL, 0), b = run(o, &off, NULL, 0), c = run(o, &on, NULL, 0);
    cr_assert_eq(a.n_round_log, b.n_round_log);
    cr_assert_eq(memcmp(a.round_log, b.round_log, a.n_round_log * sizeof *a.round_log), 0);
    cr_expect_neq(a.verified_rows, c.verified_rows, "on, it changes trees");
    lvr_sim_result_free(&a);
    lvr_sim_result_free(&b);
    lvr_sim_result_free(&c);
    lvr_outcome_free(o);
}

static void expect_independent(const lvr_outcome *o, const lvr_policy *p)
{
    lvr_sim_result all = run(o, p, NULL, 0);
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        lvr_sim_result one = run(o, p, &i, 1);
        cr_expect_eq(rounds_of(&one, 0), rounds_of(&all, i), "request %u", i);
        lvr_sim_result_free(&one);
    }
    lvr_sim_result_free(&all);
}

Test(sim_adapt, requests_do_not_depend_on_each_other)
{
    const lvr_cost_table t = sim_rig_cost();
    lvr_outcome *o = long_texts();
    const lvr_policy lever = lever_with(&t, 0.2), edgellm = sim_rig_policy("edgellm", &t);
    expect_independent(o, &lever);
    expect_independent(o, &edgellm);
    lvr_outcome_free(o);
}

/* The rig's draft is right as often as it says. */
static lvr_calibration pessimist(void)
{
    return (lvr_calibration){.n = 2, .q = {0, 1}, .p = {0, 0.35}};
}

Test(sim_adapt, mends_a_wrong_calibration)
{
    const lvr_cost_table t = sim_rig_cost();
    lvr_outcome *o = long_texts();
    lvr_policy wrong = lever_with(&t, 0), mending = lever_with(&t, 0.2), right = wrong;
    wrong.calibration = mending.calibration = pessimist();
    mending.adapt.bound = 4;
    lvr_sim_result a = run(o, &wrong, NULL, 0), b = run(o, &mending, NULL, 0), c = run(o, &right, NULL, 0);
    cr_expect_gt(lvr_sim_tokens_per_s(&b), lvr_sim_tokens_per_s(&a), "%g, wrong %g, right %g",
                 lvr_sim_tokens_per_s(&b), lvr_sim_tokens_per_s(&a), lvr_sim_tokens_per_s(&c));
    lvr_sim_result_free(&a);
    lvr_sim_result_free(&b);
    lvr_sim_result_free(&c);
    lvr_outcome_free(o);
}
