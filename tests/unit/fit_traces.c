/* From traces to a cost model and back: known costs are recovered, what must not be mixed is refused, YAML
 * keeps everything. */
#include "sim/outcome.h"
#include "sim_rig.h"
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N_LAYERS = 4, LAYER_BYTES = 300000 };

typedef struct fixture {
    lvr_outcome *outcome;
    lvr_cost_table cost;
    lvr_geometry geometry;
    char *oracle;
} fixture;

static fixture new_fixture(void)
{
    fixture f = {.outcome = sim_rig_outcome(&sim_rig_default),
                 .cost = sim_rig_cost(),
                 .oracle = sim_rig_path("oracle.h5")};
    f.geometry = sim_rig_geometry(N_LAYERS, LAYER_BYTES, LVR_IO_SERIAL);
    sim_rig_write_oracle(&sim_rig_default, f.oracle);
    return f;
}

static void free_fixture(fixture *f)
{
    lvr_outcome_free(f->outcome);
    sim_rig_discard(f->oracle);
}

/* A trace as if measured. */
static char *measure(const fixture *f, const char *policy, uint32_t threads, const char *device,
                     lvr_trace_kind kind)
{
    const lvr_policy p = sim_rig_policy(policy, &f->cost);
    lvr_policy_file pf = sim_rig_file(&sim_rig_default, &p, &f->geometry);
    pf.conditions.threads = threads;
    char *path = sim_rig_path("timing.h5");
    sim_rig_write_timing(&pf, f->outcome, &f->cost, kind, device, path);
    return path;
}

static lvr_status fit(const char *a, const char *b, const char *c, lvr_cost_model *m, lvr_error *err)
{
    const char *const paths[] = {a, b, c};
    return lvr_cost_model_fit(paths, c ? 3 : b ? 2 : 1, m, err);
}

static void expect_op(const lvr_cost_model *m, const lvr_cost_table *truth, lvr_op op, uint32_t rows,
                      double tolerance)
{
    const double got = lvr_op_cost_ns(&m->table.op[op], rows, 20),
                 want = lvr_op_cost_ns(&truth->op[op], rows, 20);
    cr_expect_lt(fabs(got / want - 1.0), tolerance, "%s at %u rows: %g, truth %g", lvr_op_name(op), rows, got,
                 want);
}

Test(fit_traces, known_costs_are_recovered)
{
    fixture f = new_fixture();
    f.cost.op[LVR_OP_LAYER].ctx_ns = 25;
    f.cost.op[LVR_OP_DRAFT].ctx_ns = 9;
    lvr_error err = LVR_ERROR_INIT;
    lvr_cost_model *m = calloc(1, sizeof(*m));
    char *random = measure(&f, "random", 1, "dev", LVR_TRACE_TIMING),
         *chain = measure(&f, "chain", 1, "dev", LVR_TRACE_TIMING);
    cr_assert_eq(fit(random, chain, f.oracle, m, &err), LVR_OK, "%s", err.msg);
    for (uint32_t rows = 1; rows <= 24; rows += 7) {
        expect_op(m, &f.cost, LVR_OP_LAYER, rows, 0.01);
        expect_op(m, &f.cost, LVR_OP_EMBED, rows, 0.01);
    }
    expect_op(m, &f.cost, LVR_OP_DRAFT, 1, 0.02);
    expect_op(m, &f.cost, LVR_OP_DRAFT, 6, 0.02);
    expect_op(m, &f.cost, LVR_OP_HEAD, 1, 0.001);
    expect_op(m, &f.cost, LVR_OP_COMMIT, 2, 0.01);
    expect_op(m, &f.cost, LVR_OP_PLAN, 7, 0.02);
    cr_expect_float_eq(m->table.op[LVR_OP_LAYER].ctx_ns, 25, 0.5, "ctx_ns %g",
                       m->table.op[LVR_OP_LAYER].ctx_ns);
    cr_expect_float_eq(m->wake_ns, 7000, 1);
    const double rate = lvr_flash_rate_bytes_per_s(&m->table.flash, 65536),
                 want = lvr_flash_rate_bytes_per_s(&f.cost.flash, 65536);
    cr_expect_lt(fabs(rate / want - 1), 0.01, "rate %g, truth %g", rate, want);
    cr_expect_gt(m->calibration.n, 3);
    cr_expect_eq(m->n_prompts, 4, "each prompt once");
    cr_expect_eq(m->n_sources, 3);
    cr_expect(lvr_cost_model_has_prompt(m, m->prompt_hashes[2]));
    cr_expect_not(lvr_cost_model_has_prompt(m, 12345));
    cr_expect_not_null(lvr_cost_model_term(m, "acceptance"));
    cr_expect_str_eq(m->target_sha256, "aaaa");
    cr_expect_str_eq(m->draft_sha256, "bbbb");
    sim_rig_discard(random);
    sim_rig_discard(chain);
    free(m);
    free_fixture(&f);
}

Test(fit_traces, yaml_keeps_everything)
{
    fixture f = new_fixture();
    lvr_error err = LVR_ERROR_INIT;
    lvr_cost_model *m = calloc(1, sizeof(*m)), *back = calloc(1, sizeof(*back));
    lvr_buf first = LVR_BUF_INIT, second = LVR_BUF_INIT;
    char *random = measure(&f, "random", 1, "dev", LVR_TRACE_TIMING), *file = sim_rig_path("cost.yaml");
    cr_assert_eq(fit(random, f.oracle, NULL, m, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_cost_model_format(m, &first, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_cost_model_save(file, m, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_cost_model_load(file, back, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_cost_model_format(back, &second, &err), LVR_OK, "%s", err.msg);
    cr_expect_str_eq(first.data, second.data);
    cr_expect_eq(memcmp(m->prompt_hashes, back->prompt_hashes, sizeof m->prompt_hashes), 0);
    cr_expect_eq(m->wake_ns, back->wake_ns);
    lvr_buf_free(&first);
    lvr_buf_free(&second);
    sim_rig_discard(random);
    sim_rig_discard(file);
    free(m);
    free(back);
    free_fixture(&f);
}

static lvr_cost_model *fit_with(const fixture *f, const char *oracle)
{
    lvr_error err = LVR_ERROR_INIT;
    lvr_cost_model *m = calloc(1, sizeof(*m));
    char *random = measure(f, "random", 1, "dev", LVR_TRACE_TIMING);
    cr_assert_eq(fit(random, oracle, NULL, m, &err), LVR_OK, "%s", err.msg);
    sim_rig_discard(random);
    return m;
}

/* A trace with exit features gives a predictor, which the file keeps; one without gives none. */
Test(fit_traces, exit_predictor_from_traces_that_hold_its_features)
{
    fixture f = new_fixture();
    lvr_error err = LVR_ERROR_INIT;
    sim_rig rig = sim_rig_default;
    char *oracle = sim_rig_path("exits.h5"), *file = sim_rig_path("cost.yaml");
    lvr_cost_model *back = calloc(1, sizeof(*back));
    rig.exits = true;
    sim_rig_write_oracle(&rig, oracle);
    lvr_cost_model *without = fit_with(&f, f.oracle), *with = fit_with(&f, oracle);
    cr_assert_eq(without->exit.n, 0u);
    cr_assert_eq(with->exit.n, 1u);
    cr_expect_gt(with->exit.at[0].weight[LVR_EXIT_EARLY], 0.0);
    cr_expect_gt(with->exit.at[0].threshold, 0.0);
    cr_expect_geq(with->exit_report.at[0].cut[1].retained, 0.99);
    cr_assert_eq(memcmp(&without->calibration, &with->calibration, sizeof with->calibration), 0);
    cr_assert_eq(lvr_cost_model_save(file, with, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_cost_model_load(file, back, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(memcmp(&back->exit, &with->exit, sizeof with->exit), 0);
    free(with);
    free(without);
    free(back);
    sim_rig_discard(oracle);
    sim_rig_discard(file);
    free_fixture(&f);
}

/* The replay meets the recorded features, and none where none are. */
Test(fit_traces, outcomes_hold_exit_features)
{
    sim_rig rig = sim_rig_default;
    lvr_candidate child;
    uint64_t node = LVR_NO_NODE;
    lvr_exit_raw raw = {0};
    rig.exits = true;
    lvr_outcome *with = sim_rig_outcome(&rig), *without = sim_rig_outcome(&sim_rig_default);
    const uint64_t root = lvr_outcome_root(with, 0, rig.n_prompt - 1);
    cr_assert(lvr_outcome_children(with, root, 1, &child, &node));
    cr_assert(lvr_outcome_exit(with, node, 0, &raw));
    cr_expect_eq(raw.slice_lse, 3.0f);
    cr_expect_eq(raw.slice_max, 2.0f);
    cr_expect_not(lvr_outcome_exit(with, node, 1, &raw));
    cr_expect_not(lvr_outcome_exit(with, root, 0, &raw));
    cr_expect_not(lvr_outcome_exit(with, LVR_NO_NODE, 0, &raw));
    cr_expect_not(lvr_outcome_exit(without, node, 0, &raw));
    lvr_outcome_free(with);
    lvr_outcome_free(without);
}

Test(fit_traces, a_key_nobody_asked_for_is_an_error)
{
    fixture f = new_fixture();
    lvr_error err = LVR_ERROR_INIT;
    lvr_cost_model *m = calloc(1, sizeof(*m));
    lvr_buf text = LVR_BUF_INIT;
    char *random = measure(&f, "random", 1, "dev", LVR_TRACE_TIMING);
    cr_assert_eq(fit(random, NULL, NULL, m, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_cost_model_format(m, &text, &err), LVR_OK, "%s", err.msg);
    lvr_buf_puts(&text, "wake_nz: 3\n");
    cr_expect_eq(lvr_cost_model_parse("x.yaml", text.data, text.len, m, &err), LVR_ERR_CONFIG);
    cr_expect_not_null(strstr(err.msg, "wake_ns"), "did you mean: %s", err.msg);
    lvr_buf_free(&text);
    sim_rig_discard(random);
    free(m);
    free_fixture(&f);
}

static void expect_refused(const char *a, const char *b, const char *says)
{
    lvr_error err = LVR_ERROR_INIT;
    lvr_cost_model *m = calloc(1, sizeof(*m));
    cr_expect_eq(fit(a, b, NULL, m, &err), LVR_ERR_CONFIG, "%s", err.msg);
    cr_expect_not_null(strstr(err.msg, says), "expected \"%s\" in: %s", says, err.msg);
    cr_expect_eq(m->n_terms, 0, "outputs are untouched on failure");
    free(m);
}

Test(fit_traces, what_must_not_be_mixed_is_refused)
{
    fixture f = new_fixture();
    char *base = measure(&f, "random", 1, "dev", LVR_TRACE_TIMING);
    char *device = measure(&f, "random", 1, "other", LVR_TRACE_TIMING);
    char *threads = measure(&f, "random", 2, "dev", LVR_TRACE_TIMING);
    char *simulated = measure(&f, "random", 1, "dev", LVR_TRACE_SIMULATED);
    char *ar = measure(&f, "ar", 1, "dev", LVR_TRACE_TIMING);
    sim_rig stranger = sim_rig_default;
    stranger.target_sha256 = "cccc";
    char *foreign = sim_rig_path("foreign.h5");
    sim_rig_write_oracle(&stranger, foreign);
    expect_refused(base, device, "device differs");
    expect_refused(base, threads, "threads differs");
    expect_refused(base, simulated, "of kind simulated");
    expect_refused(base, foreign, "target sha256 differs");
    expect_refused(f.oracle, NULL, "no timing trace");
    expect_refused(ar, NULL, "no draft operator");
    sim_rig_discard(base);
    sim_rig_discard(device);
    sim_rig_discard(threads);
    sim_rig_discard(simulated);
    sim_rig_discard(ar);
    sim_rig_discard(foreign);
    free_fixture(&f);
}
