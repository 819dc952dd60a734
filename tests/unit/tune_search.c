/* The tuner on problems whose best point is known by exhaustion, and what it refuses. */
#include "sim/tune.h"
#include "sim_rig.h"
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_LAYERS = 4, LAYER_BYTES = 300000 };

typedef struct bench {
    lvr_cost_model *model;
    lvr_geometry geometry;
    lvr_outcome *tune, *held_out;
} bench;

static bench new_bench(lvr_io_mode mode)
{
    sim_rig other = sim_rig_default;
    other.seed = 21;
    bench b = {.model = calloc(1, sizeof(*b.model)),
               .geometry = sim_rig_geometry(N_LAYERS, LAYER_BYTES, mode),
               .tune = sim_rig_outcome(&sim_rig_default),
               .held_out = sim_rig_outcome(&other)};
    cr_assert_not_null(b.model);
    b.model->table = sim_rig_cost();
    return b;
}

static void free_bench(bench *b)
{
    free(b->model);
    lvr_outcome_free(b->tune);
    lvr_outcome_free(b->held_out);
}

static lvr_policy_file start_of(const bench *b, const char *policy)
{
    const lvr_policy p = sim_rig_policy(policy, &b->model->table);
    return sim_rig_file(&sim_rig_default, &p, &b->geometry);
}

static lvr_tune_result tune(const bench *b, const lvr_policy_file *start, uint32_t trials,
                            uint64_t ring_budget)
{
    lvr_error err = LVR_ERROR_INIT;
    lvr_tune_result r = {0};
    const lvr_tune_config c = {.start = start,
                               .model = b->model,
                               .tune = b->tune,
                               .held_out = b->held_out,
                               .trials = trials,
                               .seed = 4,
                               .ring_budget_bytes = ring_budget,
                               .slice_bytes_min = 16384,
                               .slice_bytes_max = 131072};
    cr_assert_eq(lvr_tune(&c, &r, &err), LVR_OK, "%s", err.msg);
    return r;
}

static double speed(const bench *b, const lvr_policy_file *pf)
{
    lvr_sim_result r = sim_rig_run(b->tune, &pf->policy, &pf->geometry, &b->model->table);
    const double v = lvr_sim_tokens_per_s(&r);
    lvr_sim_result_free(&r);
    return v;
}

Test(tune_search, finds_the_best_chain)
{
    bench b = new_bench(LVR_IO_SERIAL);
    lvr_policy_file start = start_of(&b, "chain"), point = start;
    double best = 0;
    for (int k = 1; k <= 24; k++) {
        char text[16];
        lvr_error err = LVR_ERROR_INIT;
        snprintf(text, sizeof text, "%d", k);
        cr_assert_eq(lvr_policy_set(&point.policy, "test", "k", text, &err), LVR_OK, "%s", err.msg);
        best = fmax(best, speed(&b, &point));
    }
    lvr_tune_result r = tune(&b, &start, 32, 0);
    cr_expect_eq(r.n_trials, 32);
    cr_expect_gt(r.trials[r.best].tokens_per_s, 0.999 * best, "%g, by exhaustion %g",
                 r.trials[r.best].tokens_per_s, best);
    cr_expect_float_eq(speed(&b, &r.file), r.trials[r.best].tokens_per_s, 1e-9,
                       "the file replays to the speed it claims");
    cr_expect_eq(r.n_held_out, 4);
    cr_expect_gt(r.file.predicted_tokens_per_s, 0);
    lvr_tune_result_free(&r);
    free_bench(&b);
}

Test(tune_search, lambda_is_the_speed_it_buys)
{
    bench b = new_bench(LVR_IO_PIPELINED);
    const lvr_policy_file start = start_of(&b, "lever"), chain_start = start_of(&b, "chain");
    lvr_tune_result lever = tune(&b, &start, 32, 0), chain = tune(&b, &chain_start, 32, 0);
    const lvr_tune_trial *t = &lever.trials[lever.best];
    cr_expect_lt(lever.lambda_gap, 0.02, "lambda %g, speed %g", t->lambda, t->tokens_per_s);
    cr_expect_eq(t->outside_nodes, 0);
    cr_expect_geq(t->tokens_per_s, chain.trials[chain.best].tokens_per_s, "a chain is a tree");
    lvr_tune_result_free(&lever);
    lvr_tune_result_free(&chain);
    free_bench(&b);
}

Test(tune_search, a_policy_can_run_at_its_own_price)
{
    bench b = new_bench(LVR_IO_PIPELINED);
    lvr_policy_file pf = start_of(&b, "lever");
    lvr_error err = LVR_ERROR_INIT;
    lvr_sim_result r = {0};
    lvr_sim_config c = {
        .policy = &pf.policy, .geometry = &pf.geometry, .conditions = pf.conditions, .outcome = b.tune};
    lvr_sim_use_model(&c, b.model);
    cr_assert_eq(lvr_sim_run_at_own_price(&c, &pf.policy, &r, &err), LVR_OK, "%s", err.msg);
    const double lambda = lvr_param_get_number(lvr_sim_price_param(&pf.policy), pf.policy.params.bytes);
    cr_expect_float_eq(lambda / lvr_sim_tokens_per_s(&r), 1.0, 0.01, "lambda %g, speed %g", lambda,
                       lvr_sim_tokens_per_s(&r));
    lvr_sim_result_free(&r);
    free_bench(&b);
}

Test(tune_search, fixed_parameters_are_not_searched)
{
    bench b = new_bench(LVR_IO_SERIAL);
    const lvr_policy_file start = start_of(&b, "chain");
    const char *const p_min = "p_min", *const depth = "depth";
    lvr_tune_config c = {
        .start = &start, .model = b.model, .tune = b.tune, .trials = 12, .fixed = &p_min, .n_fixed = 1};
    lvr_tune_result r = {0};
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_tune(&c, &r, &err), LVR_OK, "%s", err.msg);
    cr_expect_eq(r.n_names, 1);
    cr_expect_str_eq(r.names[0], "k");
    lvr_tune_result_free(&r);
    c.fixed = &depth;
    cr_expect_eq(lvr_tune(&c, &r, &err), LVR_ERR_CONFIG);
    cr_expect(strstr(err.msg, "depth") && strstr(err.msg, "k, p_min"), "%s", err.msg);
    free_bench(&b);
}

Test(tune_search, a_cancelled_search_stops)
{
    bench b = new_bench(LVR_IO_SERIAL);
    const lvr_policy_file start = start_of(&b, "chain");
    atomic_bool cancel = true;
    lvr_error err = LVR_ERROR_INIT;
    lvr_tune_result r = {.n_trials = 5};
    const lvr_tune_config c = {
        .start = &start, .model = b.model, .tune = b.tune, .trials = 4, .cancel = &cancel};
    cr_expect_eq(lvr_tune(&c, &r, &err), LVR_ERR_INTERRUPTED);
    cr_expect_eq(r.n_trials, 5, "outputs are untouched on failure");
    free_bench(&b);
}

Test(tune_search, same_seed_same_search)
{
    bench b = new_bench(LVR_IO_PIPELINED);
    const lvr_policy_file start = start_of(&b, "lever");
    lvr_buf x = LVR_BUF_INIT, y = LVR_BUF_INIT;
    lvr_tune_result r = tune(&b, &start, 12, 0), s = tune(&b, &start, 12, 0);
    lvr_tune_report_csv(&r, &x);
    lvr_tune_report_csv(&s, &y);
    cr_expect_str_eq(x.data, y.data);
    lvr_buf_free(&x);
    lvr_buf_free(&y);
    lvr_tune_result_free(&r);
    lvr_tune_result_free(&s);
    free_bench(&b);
}

Test(tune_search, ring_and_slices_stay_within_their_budget)
{
    bench b = new_bench(LVR_IO_PIPELINED);
    const lvr_policy_file start = start_of(&b, "ar");
    lvr_tune_result r = tune(&b, &start, 24, 3 * LAYER_BYTES + 5);
    bool more_than_one = false;
    for (uint32_t i = 1; i < r.n_trials; i++) {
        cr_expect(r.trials[i].ring_slots >= 1 && r.trials[i].ring_slots <= 3);
        cr_expect(r.trials[i].slice_bytes >= 4096 && r.trials[i].slice_bytes <= 131072 &&
                  r.trials[i].slice_bytes % 4096 == 0);
        more_than_one = more_than_one || r.trials[i].ring_slots != r.trials[1].ring_slots;
    }
    cr_expect(more_than_one);
    cr_expect_gt(r.file.geometry.slice_bytes, 65536, "each read costs 100 us: fewer are better");
    lvr_tune_result_free(&r);
    free_bench(&b);
}

Test(tune_search, unjudgeable_searches_are_refused)
{
    bench b = new_bench(LVR_IO_SERIAL);
    const lvr_policy_file start = start_of(&b, "lever");
    lvr_error err = LVR_ERROR_INIT;
    lvr_tune_result r = {.n_trials = 5};
    lvr_tune_config c = {.start = &start, .model = b.model, .tune = b.tune, .held_out = b.tune, .trials = 4};
    cr_expect_eq(lvr_tune(&c, &r, &err), LVR_ERR_CONFIG);
    cr_expect_not_null(strstr(err.msg, "held-out prompts are also tune prompts"), "%s", err.msg);
    sim_rig shallow = sim_rig_default;
    shallow.branch = 2;
    shallow.depth = 1;
    shallow.expansions = 1;
    lvr_outcome *o = sim_rig_outcome(&shallow);
    const lvr_policy_file random =
        start_of(&b, "random"); /* has nothing to tune and leaves the recording at once */
    c = (lvr_tune_config){.start = &random, .model = b.model, .tune = o, .trials = 4};
    cr_expect_eq(lvr_tune(&c, &r, &err), LVR_ERR_CONFIG);
    cr_expect_not_null(strstr(err.msg, "stayed within the recorded trees"), "%s", err.msg);
    cr_expect_eq(r.n_trials, 5, "outputs are untouched on failure");
    lvr_outcome_free(o);
    free_bench(&b);
}
