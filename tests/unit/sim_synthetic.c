/* Simulation without traces: shapes, rooflines, acceptance files. */
#include "sim/config_path.h"
#include "sim/roofline.h"
#include "sim_rig.h"
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static lvr_shape shape(const char *name)
{
    lvr_error err = LVR_ERROR_INIT;
    lvr_shape s = {0};
    cr_assert_eq(lvr_shape_load(name, &s, &err), LVR_OK, "%s", err.msg);
    return s;
}

static double billions(const lvr_shape *s)
{
    const double embeddings = (s->tied ? 1.0 : 2.0) * s->vocab * s->d_model;
    return ((double)s->n_layers * (double)lvr_shape_layer_weights(s) + embeddings) * 1e-9;
}

Test(sim_synthetic, shapes_have_the_sizes_their_names_say)
{
    const struct {
        const char *name;
        double billions;
    } models[] = {{"llama-3.1-8b", 8.03},     {"llama-3.2-1b", 1.24}, {"qwen3-8b", 8.19},
                  {"qwen3-14b", 14.77},       {"qwen3-0.6b", 0.596},  {"lever-target-10m", .0105},
                  {"lever-draft-1m", .00112}, {"llama-2-7b", 6.74},   {"tinyllama-1.1b", 1.10},
                  {"qwen3-1.7b", 1.72},       {"qwen3-4b", 4.02},     {"qwen2.5-0.5b", .494},
                  {"qwen2.5-1.5b", 1.54},     {"qwen2.5-7b", 7.62}};
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        const lvr_shape s = shape(models[i].name);
        cr_expect_lt(fabs(billions(&s) / models[i].billions - 1.0), 0.01, "%s: %g", models[i].name,
                     billions(&s));
    }
}

Test(sim_synthetic, unknown_names_get_a_suggestion)
{
    lvr_error err = LVR_ERROR_INIT;
    lvr_shape s;
    cr_expect_eq(lvr_shape_load("qwen3-8c", &s, &err), LVR_ERR_CONFIG);
    cr_expect_not_null(strstr(err.msg, "did you mean qwen3-8b"), "%s", err.msg);
}

static lvr_outcome *acceptance(const char *name, uint32_t n_output)
{
    lvr_error err = LVR_ERROR_INIT;
    lvr_buf path = LVR_BUF_INIT;
    lvr_outcome *o = NULL;
    cr_assert_eq(lvr_sim_config_path("acceptance", name, &path, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_outcome_from_acceptance(path.data, 3, 4, 16, n_output, &o, &err), LVR_OK, "%s", err.msg);
    lvr_buf_free(&path);
    return o;
}

Test(sim_synthetic, rooflines_are_flat_then_linear)
{
    lvr_error err = LVR_ERROR_INIT;
    lvr_device_preset device;
    lvr_cost_model *m = calloc(1, sizeof(*m));
    const lvr_shape target = shape("qwen3-14b"), draft = shape("qwen3-0.6b");
    cr_assert_eq(lvr_device_load("oneplus12", &device, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_cost_model_synthesize(&device, &target, &draft, m, &err), LVR_OK, "%s", err.msg);
    const lvr_op_cost *layer = &m->table.op[LVR_OP_LAYER];
    const double read =
        (double)lvr_shape_layer_bytes(&target) / (double)device.compute.dram_bytes_per_s * 1e9;
    const double row =
        2.0 * (double)lvr_shape_layer_weights(&target) / (double)device.compute.ops_per_s * 1e9;
    cr_expect_float_eq(lvr_op_cost_ns(layer, 1, 0), read + 5000, 1.0);
    cr_expect_float_eq(lvr_op_cost_ns(layer, 64, 0), 64 * row + 5000, 64 * row * 1e-6);
    /* The paper's Table 1 says 1967 ms of flash for one pass of this model: our bytes at the preset's rate.
     */
    const double io_ms = lvr_cost_io_ns(&m->table, &m->geometry) * 1e-6;
    cr_expect(io_ms > 1800 && io_ms < 2300, "%g ms", io_ms);
    const double share = lvr_cost_io_share(&m->table, &m->geometry, 64);
    cr_expect(share > 0.85 && share < 0.96, "I/O share %g", share);
    cr_expect(m->synthetic);
    free(m);
}

Test(sim_synthetic, acceptance_follows_the_file)
{
    /* Rank 0 of the sequoia vector is accepted with probability 0.634: a chain of one token commits 1.634 a
     * round. */
    lvr_outcome *o = acceptance("sequoia", 4000);
    const lvr_cost_table t = sim_rig_cost();
    const lvr_geometry g = sim_rig_geometry(2, 100000, LVR_IO_SERIAL);
    lvr_policy chain = sim_rig_policy("chain", &t);
    lvr_error err = LVR_ERROR_INIT;
    lvr_sim_result r = {0};
    cr_assert_eq(lvr_policy_set(&chain, "test", "k", "1", &err), LVR_OK, "%s", err.msg);
    lvr_sim_config c = {
        .policy = &chain, .geometry = &g, .cost = &t, .conditions = sim_rig_conditions(), .outcome = o};
    lvr_sim_make_room(&c.conditions, o);
    cr_assert_eq(lvr_sim_run(&c, &r, &err), LVR_OK, "%s", err.msg);
    cr_expect_float_eq((double)r.n_tokens / (double)r.rounds, 1.634, 0.02, "%g",
                       (double)r.n_tokens / (double)r.rounds);
    cr_expect_eq(r.outside_nodes, 0);
    cr_expect(lvr_outcome_synthetic(o));
    lvr_sim_result_free(&r);
    lvr_outcome_free(o);
}

Test(sim_synthetic, acceptance_files_are_checked)
{
    static const char *const bad[] = {
        "schema: lever-acceptance/1\nname: x\nsource: s\ntag: t\nranks:\n  - [0.6, 0.7]\n",
        "schema: lever-acceptance/1\nname: x\nsource: s\ntag: t\nranks:\n  - [0.6, 0.5]\n",
        "schema: lever-acceptance/1\nname: x\nsource: s\ntag: t\nranks: []\n",
        "schema: lever-acceptance/2\nname: x\nsource: s\ntag: t\nranks:\n  - [0.6]\n",
        "schema: lever-acceptance/1\nname: x\nsource: s\ntag: t\nrank: 1\nranks:\n  - [0.6]\n",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        lvr_error err = LVR_ERROR_INIT;
        lvr_outcome *o = NULL;
        char *path = sim_rig_path("a.yaml");
        FILE *f = fopen(path, "w");
        cr_assert_not_null(f);
        fputs(bad[i], f);
        fclose(f);
        cr_expect_eq(lvr_outcome_from_acceptance(path, 1, 1, 1, 10, &o, &err), LVR_ERR_CONFIG, "case %zu", i);
        cr_expect_null(o);
        sim_rig_discard(path);
    }
}
