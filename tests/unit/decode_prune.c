/* Sessions that drop rows while they verify, and their simulated twins. */
#include "engine/oracle.h"
#include "sim/correlate.h"
#include "tests/unit/decode_rig.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_REQUESTS 4u
#define N_PREDICT 20u

static void record_oracle(const lvr_session_config *c, const char *path)
{
    lvr_oracle_caps caps;
    lvr_oracle *o = NULL;
    lvr_trace_meta meta;
    lvr_trace_writer *w = NULL;
    lvr_trace_lane *lane = NULL;
    lvr_error err = LVR_ERROR_INIT;
    lvr_oracle_caps_default(&caps);
    caps.min_path = 0;
    caps.expansions = 160; /* more are never looked at by such small trees */
    caps.exit_auto = false;
    caps.n_exit_layers = 2;
    caps.exit_layers[0] = 0;
    caps.exit_layers[1] = 2;
    cr_assert_eq(lvr_oracle_new(c, &caps, &o, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_oracle_trace_meta(o, N_PREDICT, &meta, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_trace_writer_open(path, &meta, true, &w, &err), LVR_OK, "%s", err.msg);
    free(meta.config_yaml);
    cr_assert_eq(lvr_trace_lane_new(w, 1 << 14, &lane, &err), LVR_OK, "%s", err.msg);
    for (uint32_t r = 0; r < N_REQUESTS; r++) {
        int32_t prompt[64];
        uint32_t n_tokens = 0;
        const uint32_t n = decode_prompt(r, prompt, 64);
        cr_assert_eq(lvr_oracle_record(o, lane, r, 0, prompt, n, N_PREDICT, NULL, &n_tokens, &err), LVR_OK,
                     "%s", err.msg);
    }
    lvr_oracle_free(o);
    cr_assert_eq(lvr_trace_writer_close(w, true, &err), LVR_OK, "%s", err.msg);
}

static void record_timing(const lvr_session_config *c, const char *path, lvr_run_stats *ret_sum)
{
    lvr_trace_meta meta;
    lvr_trace_writer *w = NULL;
    lvr_error err = LVR_ERROR_INIT;
    lvr_session *s = decode_open(c);
    cr_assert_eq(lvr_session_trace_meta(s, N_PREDICT, &meta, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_trace_writer_open(path, &meta, true, &w, &err), LVR_OK, "%s", err.msg);
    free(meta.config_yaml);
    cr_assert_eq(lvr_session_set_trace(s, w, &err), LVR_OK, "%s", err.msg);
    *ret_sum = (lvr_run_stats){0};
    for (uint32_t r = 0; r < N_REQUESTS; r++) {
        struct decode_output out;
        decode_generate(s, r, N_PREDICT, &out);
        lvr_run_stats_add(ret_sum, &out.stats);
    }
    lvr_session_free(s);
    cr_assert_eq(lvr_trace_writer_close(w, true, &err), LVR_OK, "%s", err.msg);
}

static void set(lvr_policy *p, const char *key, const char *value)
{
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_policy_set(p, "test", key, value, &err), LVR_OK, "%s", err.msg);
}

/* Engine and simulator drop the same rows, commit the same tokens, and scoring has a price. */
Test(decode_prune, random_pruning_has_a_simulated_twin, .timeout = 240)
{
    struct decode_pair pair;
    lvr_policy policy;
    lvr_session_config c;
    lvr_run_stats sum;
    lvr_sim_oracle oracle;
    lvr_correlation *r = calloc(1, sizeof *r);
    lvr_cost_model *m = calloc(1, sizeof *m);
    lvr_error err = LVR_ERROR_INIT;
    char timing[128], oracle_path[128], yaml[128];
    decode_pair_make(&pair, &(struct gguf_tiny){.type = LVR_Q8_0, .n_layers = 4, .seed = 5, .scale = 6},
                     LVR_Q4_0);
    snprintf(timing, sizeof timing, "%s/timing.h5", pair.target.dir);
    snprintf(oracle_path, sizeof oracle_path, "%s/oracle.h5", pair.target.dir);
    snprintf(yaml, sizeof yaml, "%s/cost.yaml", pair.target.dir);
    decode_policy(&policy, "random");
    set(&policy, "max_steps", "2"); /* within what the oracle records */
    set(&policy, "prune", "0.3");
    decode_config(&c, &pair, &policy);
    c.resident_fraction = 0.5;
    c.io_mode = LVR_IO_PIPELINED;
    record_oracle(&c, oracle_path);
    record_timing(&c, timing, &sum);
    cr_assert(sum.pruned_rows > 0 && sum.accepted > 0);
    cr_assert_eq(lvr_sim_oracle_load(oracle_path, &oracle, &err), LVR_OK, "%s", err.msg);
    const char *paths[] = {timing};
    cr_assert_eq(lvr_cost_model_fit(paths, 1, m, &err), LVR_OK, "%s", err.msg);
    cr_assert_gt(m->table.op[LVR_OP_SCORE].curve.n, 0u, "scoring was recorded, so it has a price");
    cr_assert_eq(lvr_cost_model_save(yaml, m, &err), LVR_OK, "%s", err.msg);
    lvr_cost_model *back = calloc(1, sizeof *back);
    cr_assert_eq(lvr_cost_model_load(yaml, back, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(memcmp(&back->table.op, &m->table.op, sizeof m->table.op), 0, "YAML keeps the price");
    cr_assert_eq(lvr_correlate(timing, &oracle, m, true, r, &err), LVR_OK, "%s", err.msg);
    cr_assert(r->commits_equal);
    cr_assert(r->rounds_equal, "the same rows are dropped");
    lvr_sim_oracle_free(&oracle);
    free(back);
    free(m);
    free(r);
    decode_pair_remove(&pair);
}

/* Scores by the early head, and a little by the draft: sane enough to keep what is likely. */
static void make_up_predictor(lvr_policy *p)
{
    p->exit =
        (lvr_exit_predictor){.n = 2, .at = {{.layer = 0, .threshold = 0.05}, {.layer = 2, .threshold = 0.1}}};
    for (uint32_t i = 0; i < p->exit.n; i++) {
        p->exit.at[i].weight[LVR_EXIT_BIAS] = 1.0;
        p->exit.at[i].weight[LVR_EXIT_EARLY] = 0.05;
        p->exit.at[i].weight[LVR_EXIT_DRAFT] = 0.5;
    }
}

static uint64_t pruned_of(const lvr_session_config *c, const struct decode_output *want, const char *what,
                          uint64_t *ret_accepted)
{
    struct decode_output got;
    uint64_t pruned = 0;
    for (uint32_t r = 0; r < N_REQUESTS; r++) {
        decode_once(c, r, N_PREDICT, &got);
        decode_same(&want[r], &got, what);
        pruned += got.stats.pruned_rows;
        *ret_accepted += got.stats.accepted;
        if (strcmp(what, "theta 1") == 0)
            cr_assert_eq(got.stats.pruned_rows, got.stats.verified_rows - got.stats.rounds,
                         "everything but the root is cut");
    }
    return pruned;
}

/* INV-LOSSLESS under the predictor: its thresholds, theta at its ends, the objective. */
Test(decode_prune, lever_cuts_what_the_predictor_says, .timeout = 120)
{
    struct decode_pair pair;
    struct decode_output want[N_REQUESTS];
    lvr_policy policy;
    lvr_session_config c;
    decode_pair_make(&pair, &(struct gguf_tiny){.type = LVR_Q8_0, .n_layers = 4, .seed = 5, .scale = 6},
                     LVR_Q4_0);
    decode_policy(&policy, "ar");
    decode_config(&c, &pair, &policy);
    for (uint32_t r = 0; r < N_REQUESTS; r++)
        decode_once(&c, r, N_PREDICT, &want[r]);
    decode_policy(&policy, "lever");
    make_up_predictor(&policy);
    c.resident_fraction = 0.5;
    uint64_t all = 0, accepted = 0, accepted_none = 0, accepted_priced = 0;
    cr_assert_eq(pruned_of(&c, want, "prune off", &all), 0u);
    set(&policy, "prune", "threshold");
    cr_assert_gt(pruned_of(&c, want, "threshold", &accepted), 0u);
    cr_assert(accepted > 0 && accepted <= all);
    set(&policy, "theta", "1");
    cr_assert_gt(pruned_of(&c, want, "theta 1", &accepted_none), 0u);
    cr_assert_eq(accepted_none, 0u);
    set(&policy, "theta", "0");
    set(&policy, "prune", "objective");
    for (uint32_t i = 0; i < policy.exit.n; i++)
        policy.exit.at[i].weight[LVR_EXIT_BIAS] = -4.0; /* a gloomy one: what looked worth its rows is not */
    c.resident_fraction = 1;
    cr_assert_gt(pruned_of(&c, want, "objective", &accepted_priced), 0u);
    decode_pair_remove(&pair);
}

/* The oracle's features are the engine's, bit for bit: the same rows go, whatever a score rests on. */
Test(decode_prune, the_predictor_has_a_simulated_twin, .timeout = 240)
{
    static const char *const rules[] = {"threshold", "objective"};
    struct decode_pair pair;
    lvr_policy policy;
    lvr_session_config c;
    lvr_sim_oracle oracle;
    lvr_correlation *r = calloc(1, sizeof *r);
    lvr_cost_model *m = calloc(1, sizeof *m);
    lvr_error err = LVR_ERROR_INIT;
    char timing[128], oracle_path[128];
    decode_pair_make(&pair, &(struct gguf_tiny){.type = LVR_Q8_0, .n_layers = 4, .seed = 5, .scale = 6},
                     LVR_Q4_0);
    snprintf(timing, sizeof timing, "%s/timing.h5", pair.target.dir);
    snprintf(oracle_path, sizeof oracle_path, "%s/oracle.h5", pair.target.dir);
    decode_policy(&policy, "lever");
    set(&policy, "min_path", "0.1"); /* within what the oracle records */
    set(&policy, "branch", "4");
    set(&policy, "max_depth", "5");
    make_up_predictor(&policy);
    for (uint32_t k = 0; k < policy.exit.n; k++) {
        policy.exit.at[k].weight[LVR_EXIT_EARLY] = 0.3;
        policy.exit.at[k].threshold = 0.4;
    }
    decode_config(&c, &pair, &policy);
    record_oracle(&c, oracle_path);
    cr_assert_eq(lvr_sim_oracle_load(oracle_path, &oracle, &err), LVR_OK, "%s", err.msg);
    for (int i = 0; i < 2; i++) {
        const char *paths[] = {timing};
        lvr_run_stats sum;
        set(&policy, "prune", rules[i]);
        for (uint32_t k = 0; i == 1 && k < policy.exit.n; k++)
            policy.exit.at[k].weight[LVR_EXIT_BIAS] = -4.0;
        record_timing(&c, timing, &sum);
        cr_assert_gt(sum.pruned_rows, 0u, "%s", rules[i]);
        cr_assert_eq(lvr_cost_model_fit(paths, 1, m, &err), LVR_OK, "%s", err.msg);
        cr_assert_eq(lvr_correlate(timing, &oracle, m, true, r, &err), LVR_OK, "%s", err.msg);
        cr_assert(i == 1 || r->outside_nodes == 0, "every score is recorded");
        cr_assert(r->commits_equal && r->rounds_equal, "%s", rules[i]);
    }
    lvr_sim_oracle_free(&oracle);
    free(m);
    free(r);
    decode_pair_remove(&pair);
}

Test(decode_prune, no_pruning_without_a_predictor)
{
    struct decode_pair pair;
    lvr_policy policy;
    lvr_session_config c;
    lvr_session *s = NULL;
    lvr_error err = LVR_ERROR_INIT;
    decode_pair_make(&pair, &(struct gguf_tiny){.type = LVR_Q8_0, .n_layers = 3}, LVR_Q4_0);
    decode_policy(&policy, "lever");
    set(&policy, "prune", "threshold");
    decode_config(&c, &pair, &policy);
    cr_assert_eq(lvr_session_new(&c, &s, &err), LVR_ERR_CONFIG);
    cr_assert(strstr(err.msg, "exit predictor") && strstr(err.msg, "--set prune=off"), "%s", err.msg);
    make_up_predictor(&policy);
    cr_assert_eq(lvr_session_new(&c, &s, &err), LVR_ERR_CONFIG, "its last layer is the target's last");
    cr_assert(strstr(err.msg, "layer 2"), "%s", err.msg);
    decode_pair_remove(&pair);
}
