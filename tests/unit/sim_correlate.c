/* A run against its twin: identical where the model is the truth, and refused where agreement would prove
 * nothing. */
#include "sim/correlate.h"
#include "sim_rig.h"
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N_LAYERS = 4, LAYER_BYTES = 300000 };

static lvr_cost_model *model_of(const sim_rig *rig, const lvr_cost_table *cost, const lvr_geometry *g)
{
    lvr_cost_model *m = calloc(1, sizeof(*m));
    cr_assert_not_null(m);
    m->table = *cost;
    m->wake_ns = 7000;
    m->geometry = *g;
    m->conditions = sim_rig_conditions();
    memcpy(m->target_sha256, rig->target_sha256, strlen(rig->target_sha256) + 1);
    memcpy(m->draft_sha256, rig->draft_sha256, strlen(rig->draft_sha256) + 1);
    memcpy(m->device_sha256, "dev", 4);
    return m;
}

static char *measure(const sim_rig *rig, const lvr_outcome *o, const char *policy, const lvr_cost_table *cost,
                     const lvr_geometry *g)
{
    const lvr_policy p = sim_rig_policy(policy, cost);
    const lvr_policy_file pf = sim_rig_file(rig, &p, g);
    char *path = sim_rig_path("measured.h5");
    sim_rig_write_timing(&pf, o, cost, LVR_TRACE_TIMING, "dev", path);
    return path;
}

Test(sim_correlate, a_simulated_run_is_its_own_twin)
{
    const lvr_cost_table t = sim_rig_cost();
    lvr_sim_oracle o = sim_rig_oracle(&sim_rig_default);
    static const char *const policies[] = {"ar",       "chain", "sequoia", "eagle2", "opttree",
                                           "specexec", "smart", "edgellm", "lever",  "random"};
    const size_t n_policies = sizeof policies / sizeof policies[0];
    for (int mode = LVR_IO_SERIAL; mode <= LVR_IO_PIPELINED; mode++) {
        const lvr_geometry g = sim_rig_geometry(N_LAYERS, LAYER_BYTES, (lvr_io_mode)mode);
        lvr_cost_model *m = model_of(&sim_rig_default, &t, &g);
        for (size_t i = 0; i < n_policies; i++) {
            lvr_error err = LVR_ERROR_INIT;
            lvr_correlation c;
            char *path = measure(&sim_rig_default, o.outcome, policies[i], &t, &g);
            cr_assert_eq(lvr_correlate(path, &o, m, false, &c, &err), LVR_OK, "%s", err.msg);
            cr_expect(c.commits_equal && c.rounds_equal, "%s", policies[i]);
            cr_expect_eq(c.n_diffs, 0, "%s: %s", policies[i], c.n_diffs ? c.diffs[0].what : "");
            cr_expect_lt(fabs(c.tokens_per_s_error), 1e-6, "%s mode %d: %g", policies[i], mode,
                         c.tokens_per_s_error);
            for (uint32_t k = 0; k < c.n_stages; k++) {
                const lvr_stage_error *s = &c.stages[k];
                cr_expect(isnan(s->mean_error) || fabs(s->mean_error) < 1e-3, "%s mode %d: %s is off by %g",
                          policies[i], mode, s->name, s->mean_error);
            }
            cr_expect_float_eq(c.measured.flash, c.simulated.flash, 1e-3);
            sim_rig_discard(path);
        }
        free(m);
    }
    lvr_sim_oracle_free(&o);
}

Test(sim_correlate, a_wrong_model_shows_where)
{
    const lvr_cost_table t = sim_rig_cost();
    const lvr_geometry g = sim_rig_geometry(N_LAYERS, LAYER_BYTES, LVR_IO_SERIAL);
    lvr_sim_oracle o = sim_rig_oracle(&sim_rig_default);
    char *path = measure(&sim_rig_default, o.outcome, "chain", &t, &g);
    lvr_cost_model *m = model_of(&sim_rig_default, &t, &g);
    lvr_error err = LVR_ERROR_INIT;
    lvr_correlation c;
    for (uint32_t k = 0; k < m->table.op[LVR_OP_LAYER].curve.n; k++)
        m->table.op[LVR_OP_LAYER].curve.ns[k] *= 1.10;
    m->conditions.threads = 3;
    cr_assert_eq(lvr_correlate(path, &o, m, false, &c, &err), LVR_OK, "%s", err.msg);
    cr_expect_eq(c.n_diffs, 1);
    cr_expect_str_eq(c.diffs[0].what, "threads");
    for (uint32_t k = 0; k < c.n_stages; k++) {
        const lvr_stage_error *s = &c.stages[k];
        if (strcmp(s->name, "layer") == 0)
            cr_expect(s->mean_error > 0.09 && s->mean_error < 0.101 && s->p50 > 0.08, "%g", s->mean_error);
        if (strcmp(s->name, "draft") == 0)
            cr_expect_lt(fabs(s->mean_error), 1e-3);
    }
    cr_expect_lt(c.tokens_per_s_error, 0, "a slower model is slower");
    sim_rig_discard(path);
    free(m);
    lvr_sim_oracle_free(&o);
}

Test(sim_correlate, fit_prompts_and_strangers_are_refused)
{
    const lvr_cost_table t = sim_rig_cost();
    const lvr_geometry g = sim_rig_geometry(N_LAYERS, LAYER_BYTES, LVR_IO_SERIAL);
    lvr_sim_oracle o = sim_rig_oracle(&sim_rig_default);
    char *path = measure(&sim_rig_default, o.outcome, "ar", &t, &g);
    lvr_cost_model *m = model_of(&sim_rig_default, &t, &g);
    lvr_error err = LVR_ERROR_INIT;
    lvr_correlation c = {.n_tokens = 77};
    lvr_sim_request r;
    lvr_outcome_request(o.outcome, 1, &r);
    m->prompt_hashes[m->n_prompts++] = r.prompt_hash;
    cr_expect_eq(lvr_correlate(path, &o, m, false, &c, &err), LVR_ERR_CONFIG);
    cr_expect_not_null(strstr(err.msg, "--allow-fit-prompts"), "%s", err.msg);
    cr_expect_eq(c.n_tokens, 77, "outputs are untouched on failure");
    cr_assert_eq(lvr_correlate(path, &o, m, true, &c, &err), LVR_OK, "%s", err.msg);
    cr_expect_eq(c.n_fit_prompts, 1, "marked");
    m->n_prompts = 0;
    memcpy(m->target_sha256, "zzzz", 5);
    cr_expect_eq(lvr_correlate(path, &o, m, false, &c, &err), LVR_ERR_CONFIG);
    cr_expect_not_null(strstr(err.msg, "target model differs"), "%s", err.msg);
    free(m);
    sim_rig other = sim_rig_default;
    other.seed = 5; /* other prompts */
    lvr_sim_oracle strange = sim_rig_oracle(&other);
    m = model_of(&sim_rig_default, &t, &g);
    cr_expect_eq(lvr_correlate(path, &strange, m, false, &c, &err), LVR_ERR_CONFIG);
    cr_expect_not_null(strstr(err.msg, "does not hold the prompt"), "%s", err.msg);
    free(m);
    sim_rig_discard(path);
    lvr_sim_oracle_free(&o);
    lvr_sim_oracle_free(&strange);
}

/* What the caches were recorded with comes from /config: a trace without one makes no claim, one that
 * cannot be read is refused. */
Test(sim_correlate, the_recording_s_config_is_read_or_refused)
{
    const lvr_policy p = sim_rig_policy("chain", NULL);
    const lvr_geometry g = sim_rig_geometry(N_LAYERS, LAYER_BYTES, LVR_IO_SERIAL);
    const lvr_policy_file pf = sim_rig_file(&sim_rig_default, &p, &g);
    lvr_error err = LVR_ERROR_INIT;
    lvr_buf config = LVR_BUF_INIT;
    sim_rig rig = sim_rig_default;
    lvr_sim_oracle o = sim_rig_oracle(&rig);
    cr_expect_str_eq(o.kv_type, "");
    lvr_sim_oracle_free(&o);
    cr_assert_eq(lvr_policy_file_format(&pf, &config, &err), LVR_OK, "%s", err.msg);
    rig.config = config.data;
    o = sim_rig_oracle(&rig);
    cr_expect_str_eq(o.kv_type, pf.conditions.kv_type);
    cr_expect_str_neq(o.kv_type, "");
    lvr_sim_oracle_free(&o);
    lvr_buf_free(&config);
    rig.config = "schema: [\n";
    char *path = sim_rig_path("oracle.h5");
    sim_rig_write_oracle(&rig, path);
    o.temperature = 77;
    cr_expect_neq(lvr_sim_oracle_load(path, &o, &err), LVR_OK);
    cr_expect_not_null(strstr(err.msg, "/config"), "%s", err.msg);
    cr_expect_eq(o.temperature, 77, "outputs are untouched on failure");
    sim_rig_discard(path);
}
