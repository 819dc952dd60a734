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
