/* Layers on a simulated accelerator: against closed forms, and back from the simulated trace to the table. */
#include "sim_rig.h"
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_LAYERS = 5, LAYER_BYTES = 200000, LAUNCH = 100000, SYNC = 20000 };

static lvr_cost_table table(void)
{
    lvr_cost_table t = sim_rig_cost();
    t.npu[LVR_OP_LAYER] = (lvr_npu_cost){
        .n = 3, .bucket = {4, 16, 64}, .ns = {70000, 80000, 120000}, .launch_ns = LAUNCH, .sync_ns = SYNC};
    return t;
}

static lvr_geometry resident(lvr_place place)
{
    lvr_geometry g = sim_rig_geometry(N_LAYERS, LAYER_BYTES, LVR_IO_PIPELINED);
    lvr_geometry_set_resident(&g, 1.0, LVR_RESIDENT_SPREAD);
    g.place = place;
    return g;
}

static uint64_t op(const lvr_cost_table *t, lvr_op o, uint32_t rows)
{
    return (uint64_t)llround(lvr_op_cost_ns(&t->op[o], rows, 0));
}

Test(sim_npu, a_round_is_its_tickets)
{
    const lvr_cost_table t = table();
    const lvr_geometry g = resident(LVR_PLACE_NPU);
    lvr_outcome *o = sim_rig_outcome(&sim_rig_default);
    const lvr_policy ar = sim_rig_policy("ar", NULL);
    lvr_sim_result r = sim_rig_run(o, &ar, &g, &t);
    const uint64_t n = r.n_tokens, ticket = LAUNCH + 70000 + SYNC;
    const uint64_t round = op(&t, LVR_OP_PLAN, 1) + op(&t, LVR_OP_EMBED, 1) + N_LAYERS * ticket +
                           op(&t, LVR_OP_HEAD, 1) + op(&t, LVR_OP_COMMIT, 1);
    cr_expect_eq(r.decode_ns, n * round - 4 * op(&t, LVR_OP_PLAN, 1), "%lu", r.decode_ns);
    cr_expect_eq(r.npu_tickets, (n + 4) * N_LAYERS);
    cr_expect_eq(r.npu_busy_ns, n * N_LAYERS * 70000 + 4 * N_LAYERS * 80000, "eight prompt rows a chunk");
    cr_expect_eq(r.npu_wait_ns, r.npu_busy_ns + r.npu_tickets * (LAUNCH + SYNC), "nothing else to do");
    cr_expect_eq(r.npu_max_rows, 8);
    lvr_sim_result_free(&r);
    lvr_outcome_free(o);
}

static uint64_t prefill_ns(const lvr_cost_table *t)
{
    const lvr_geometry g = resident(LVR_PLACE_NPU);
    lvr_outcome *o = sim_rig_outcome(&sim_rig_default);
    const lvr_policy chain = sim_rig_policy("chain", t);
    lvr_sim_result r = sim_rig_run(o, &chain, &g, t);
    const uint64_t ns = r.prefill_ns / 4;
    cr_expect_eq(r.prefill_ns % 4, 0);
    lvr_sim_result_free(&r);
    lvr_outcome_free(o);
    return ns;
}

/* The longer of drafting and layers counts, whichever it is. */
Test(sim_npu, a_prompt_is_drafted_meanwhile)
{
    lvr_cost_table t = table();
    const uint64_t rest = op(&t, LVR_OP_EMBED, 8) + op(&t, LVR_OP_COMMIT, 8) + op(&t, LVR_OP_PLAN, 1);
    const uint64_t layers = N_LAYERS * (uint64_t)(LAUNCH + 80000 + SYNC);
    cr_assert_lt(op(&t, LVR_OP_DRAFT, 8), layers);
    cr_expect_eq(prefill_ns(&t), rest + layers);
    t.op[LVR_OP_DRAFT].curve = (lvr_curve){.n = 1, .rows = {1}, .ns = {3e6}};
    cr_expect_eq(prefill_ns(&t), rest + 3000000);
}

Test(sim_npu, every_placement_emits_the_same_text)
{
    const lvr_cost_table t = table();
    lvr_outcome *o = sim_rig_outcome(&sim_rig_default);
    static const char *const names[] = {"ar", "chain", "lever", "random"};
    for (int i = 0; i < 4 * 2; i++) {
        const lvr_policy p = sim_rig_policy(names[i % 4], &t);
        lvr_geometry g = sim_rig_geometry(N_LAYERS, LAYER_BYTES, (lvr_io_mode)(i / 4));
        lvr_sim_result r[3];
        for (int place = 0; place < 3; place++) {
            g.place = (lvr_place)place;
            r[place] = sim_rig_run(o, &p, &g, &t);
            cr_assert_eq(r[place].n_tokens, r[0].n_tokens);
            cr_assert_eq(memcmp(r[place].tokens, r[0].tokens, r[0].n_tokens * sizeof r[0].tokens[0]), 0);
            cr_expect_eq(r[place].bytes_read / r[place].n_round_log, (uint64_t)N_LAYERS * LAYER_BYTES);
        }
        cr_expect_eq(r[0].npu_tickets, 0);
        cr_expect_eq(r[1].npu_tickets, r[1].n_round_log * N_LAYERS);
        cr_expect_leq(r[2].npu_tickets, r[2].n_round_log * N_LAYERS);
        for (int place = 0; place < 3; place++)
            lvr_sim_result_free(&r[place]);
    }
    lvr_outcome_free(o);
}

Test(sim_npu, what_has_no_price_is_refused)
{
    lvr_cost_table t = sim_rig_cost();
    lvr_outcome *o = sim_rig_outcome(&sim_rig_default);
    const lvr_policy ar = sim_rig_policy("ar", NULL);
    lvr_geometry g = resident(LVR_PLACE_NPU);
    lvr_error err = LVR_ERROR_INIT;
    lvr_sim_result r = {0};
    const lvr_sim_config c = {
        .policy = &ar, .geometry = &g, .cost = &t, .conditions = sim_rig_conditions(), .outcome = o};
    cr_expect_eq(lvr_sim_run(&c, &r, &err), LVR_ERR_CONFIG);
    cr_expect_not_null(strstr(err.msg, "--place npu"), "says how to mend it: %s", err.msg);
    t = table();
    t.op[LVR_OP_LAYER].curve.n = 0;
    g.place = LVR_PLACE_CPU;
    cr_expect_eq(lvr_sim_run(&c, &r, &err), LVR_ERR_CONFIG);
    cr_expect_not_null(strstr(err.msg, "--place cpu"), "%s", err.msg);
    lvr_outcome_free(o);
}

/* A simulated recording, taken for a measured one: tickets that the draft hid do not mislead the fit. */
Test(sim_npu, known_prices_are_recovered)
{
    lvr_cost_table t = table();
    t.npu[LVR_OP_LAYER].ctx_ns = 40;
    lvr_outcome *o = sim_rig_outcome(&sim_rig_default);
    const lvr_policy p = sim_rig_policy("random", &t);
    lvr_geometry g = sim_rig_geometry(N_LAYERS, LAYER_BYTES, LVR_IO_PIPELINED);
    g.place = LVR_PLACE_NPU;
    lvr_policy_file pf = sim_rig_file(&sim_rig_default, &p, &g);
    snprintf(pf.conditions.accel, sizeof pf.conditions.accel, "matrix");
    char *npu = sim_rig_path("npu.h5"), *cpu = sim_rig_path("cpu.h5");
    sim_rig_write_timing(&pf, o, &t, LVR_TRACE_TIMING, "dev", npu);
    pf.geometry.place = LVR_PLACE_CPU;
    pf.conditions.accel[0] = '\0';
    sim_rig_write_timing(&pf, o, &t, LVR_TRACE_TIMING, "dev", cpu);
    lvr_error err = LVR_ERROR_INIT;
    lvr_cost_model *m = calloc(1, sizeof *m);
    const char *paths[] = {cpu, npu};
    cr_assert_eq(lvr_cost_model_fit(paths, 2, m, &err), LVR_OK, "%s", err.msg);
    const lvr_npu_cost *got = &m->table.npu[LVR_OP_LAYER], *want = &t.npu[LVR_OP_LAYER];
    cr_expect_float_eq(got->launch_ns, LAUNCH, 1, "launch %g", got->launch_ns);
    cr_expect_float_eq(got->sync_ns, SYNC, 1, "sync %g", got->sync_ns);
    cr_expect_geq(got->n, 2);
    for (uint32_t rows = 1; rows <= got->bucket[got->n - 1]; rows += 5)
        cr_expect_lt(fabs(lvr_npu_run_ns(got, rows, 30) / lvr_npu_run_ns(want, rows, 30) - 1), 0.01,
                     "%u rows", rows);
    cr_expect_lt(
        fabs(lvr_op_cost_ns(&m->table.op[LVR_OP_LAYER], 3, 20) / lvr_op_cost_ns(&t.op[LVR_OP_LAYER], 3, 20) -
             1),
        0.01);
    cr_expect_str_eq(m->conditions.accel, "matrix", "of the trace that had one");
    cr_expect_not_null(lvr_cost_model_term(m, "layer_npu_sync"));
    free(m);
    lvr_outcome_free(o);
    sim_rig_discard(npu);
    sim_rig_discard(cpu);
}

/* Draft steps as tickets: each costs launch, run and sync in place of the CPU's time; the same text. */
Test(sim_npu, drafts_as_tickets)
{
    lvr_cost_table t = table();
    t.op[LVR_OP_DRAFT] = (lvr_op_cost){.curve = {.n = 1, .rows = {1}, .ns = {300000}}};
    t.npu[LVR_OP_DRAFT] =
        (lvr_npu_cost){.n = 1, .bucket = {64}, .ns = {50000}, .launch_ns = LAUNCH, .sync_ns = SYNC};
    lvr_geometry g = resident(LVR_PLACE_CPU);
    lvr_outcome *o = sim_rig_outcome(&sim_rig_default);
    const lvr_policy chain = sim_rig_policy("chain", &t);
    lvr_sim_result cpu = sim_rig_run(o, &chain, &g, &t);
    g.place_draft = LVR_PLACE_NPU;
    lvr_sim_result npu = sim_rig_run(o, &chain, &g, &t);
    g.place_draft = LVR_PLACE_AUTO;
    lvr_sim_result by_price = sim_rig_run(o, &chain, &g, &t);
    cr_expect_eq(memcmp(cpu.tokens, npu.tokens, cpu.n_tokens * sizeof cpu.tokens[0]), 0);
    cr_expect_eq(cpu.decode_ns - npu.decode_ns, cpu.draft_steps * (300000 - 50000 - LAUNCH - SYNC));
    cr_expect_eq(npu.npu_tickets, npu.draft_steps + 4, "and a prompt's chunk of each request");
    cr_expect_eq(npu.draft_ns, npu.npu_tickets * 50000);
    cr_expect_eq(npu.layer_ns, cpu.layer_ns);
    cr_expect_eq(by_price.decode_ns, npu.decode_ns, "170 us against 300");
    lvr_sim_result_free(&cpu);
    lvr_sim_result_free(&npu);
    lvr_sim_result_free(&by_price);
    lvr_outcome_free(o);
}

/* Eager heads: those of all verified rows; the same text. */
Test(sim_npu, eager_heads)
{
    lvr_cost_table t = table();
    t.op[LVR_OP_HEAD].curve = (lvr_curve){.n = 1, .rows = {1}, .ns = {30000}};
    lvr_geometry g = resident(LVR_PLACE_CPU);
    lvr_outcome *o = sim_rig_outcome(&sim_rig_default);
    const lvr_policy chain = sim_rig_policy("chain", &t);
    lvr_sim_result lazy = sim_rig_run(o, &chain, &g, &t);
    g.head = LVR_HEAD_EAGER;
    lvr_sim_result eager = sim_rig_run(o, &chain, &g, &t);
    cr_expect_eq(memcmp(lazy.tokens, eager.tokens, lazy.n_tokens * sizeof lazy.tokens[0]), 0);
    cr_expect_eq(lazy.head_ns, lazy.n_tokens * 30000);
    cr_expect_eq(eager.head_ns, eager.verified_rows * 30000, "a price of one row counts once a row");
    t.op[LVR_OP_HEAD].curve = (lvr_curve){.n = 2, .rows = {1, 2}, .ns = {30000, 31000}};
    lvr_sim_result batch = sim_rig_run(o, &chain, &g, &t);
    cr_expect_eq(batch.head_ns, batch.rounds * 29000 + batch.verified_rows * 1000);
    lvr_sim_result_free(&lazy);
    lvr_sim_result_free(&eager);
    lvr_sim_result_free(&batch);
    lvr_outcome_free(o);
}
