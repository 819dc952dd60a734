/* Replays against closed forms, against each other, and against what is not recorded. */
#include "sim_rig.h"
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint64_t op(const lvr_cost_table *t, lvr_op o, uint32_t rows)
{
    return (uint64_t)llround(lvr_op_cost_ns(&t->op[o], rows, 0));
}

enum { N_LAYERS = 5, LAYER_BYTES = 200000 };

/* A layer of three slices of 65536 and one of 3392 bytes on one lane. */
static uint64_t layer_read_ns(void)
{
    return 4 * 100000 + LAYER_BYTES;
}

/* Without a tree: a round is plan, embedding, layers, head, commit. */
static uint64_t ar_round_compute(const lvr_cost_table *t)
{
    return op(t, LVR_OP_PLAN, 1) + op(t, LVR_OP_EMBED, 1) + N_LAYERS * op(t, LVR_OP_LAYER, 1) +
           op(t, LVR_OP_HEAD, 1) + op(t, LVR_OP_COMMIT, 1);
}

Test(sim_replay, ar_serial_is_io_plus_compute)
{
    const lvr_cost_table t = sim_rig_cost();
    const lvr_geometry g = sim_rig_geometry(N_LAYERS, LAYER_BYTES, LVR_IO_SERIAL);
    lvr_outcome *o = sim_rig_outcome(&sim_rig_default);
    const lvr_policy ar = sim_rig_policy("ar", NULL);
    lvr_sim_result r = sim_rig_run(o, &ar, &g, &t);
    const uint64_t n = r.n_tokens,
                   passes = n + 4; /* eight prompt tokens of each of four requests fit one chunk */
    cr_expect_eq(n, 4 * 60);
    cr_expect_eq(r.rounds, n);
    cr_expect_eq(r.bytes_read, passes * N_LAYERS * LAYER_BYTES);
    cr_expect_eq(r.flash_wait_ns, passes * N_LAYERS * layer_read_ns());
    /* decode_ns starts after the first plan of a request. */
    const uint64_t want =
        n * (ar_round_compute(&t) + N_LAYERS * layer_read_ns()) - 4 * op(&t, LVR_OP_PLAN, 1);
    cr_expect_eq(r.decode_ns, want, "%lu, closed form %lu", r.decode_ns, want);
    cr_expect_eq(r.simulated_ns, r.prefill_ns + r.decode_ns);
    cr_expect_eq(r.outside_nodes, 0);
    lvr_sim_result_free(&r);
    lvr_outcome_free(o);
}

/* Prompt passes of many rows: as many as the chunk says, priced by the curves, beyond their knots too. */
Test(sim_replay, prompt_passes_of_many_rows)
{
    static const uint32_t chunks[] = {1, 64, 512, LVR_MAX_PREFILL_ROWS};
    const lvr_cost_table t = sim_rig_cost();
    const lvr_geometry g = sim_rig_geometry(N_LAYERS, LAYER_BYTES, LVR_IO_SERIAL);
    sim_rig rig = sim_rig_default;
    rig.n_prompt = 1000;
    rig.n_requests = 1;
    lvr_outcome *o = sim_rig_outcome(&rig);
    const lvr_policy ar = sim_rig_policy("ar", NULL);
    lvr_error err = LVR_ERROR_INIT;
    lvr_sim_config c = {
        .policy = &ar, .geometry = &g, .cost = &t, .conditions = sim_rig_conditions(), .outcome = o};
    c.conditions.n_ctx = 2000;
    for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
        lvr_sim_result r = {0};
        uint64_t want = op(&t, LVR_OP_PLAN, 1); /* decode_ns starts after it */
        c.conditions.prefill_chunk = chunks[i];
        cr_assert_eq(lvr_sim_run(&c, &r, &err), LVR_OK, "%s", err.msg);
        for (uint32_t left = rig.n_prompt - 1, n; left > 0; left -= n) {
            n = left < chunks[i] ? left : chunks[i];
            want += op(&t, LVR_OP_EMBED, n) + N_LAYERS * (op(&t, LVR_OP_LAYER, n) + layer_read_ns()) +
                    op(&t, LVR_OP_COMMIT, n);
        }
        cr_expect_eq(r.prefill_ns, want, "chunks of %u: %lu, closed form %lu", chunks[i], r.prefill_ns, want);
        cr_expect_eq(r.max_rows[LVR_OP_LAYER], chunks[i] < 999 ? chunks[i] : 999);
        lvr_sim_result_free(&r);
    }
    lvr_outcome_free(o);
}

/* A model that has never seen a read does not price one with nothing. */
Test(sim_replay, a_model_without_flash_refuses_to_stream)
{
    const lvr_cost_table t = sim_rig_cost();
    lvr_geometry g = sim_rig_geometry(N_LAYERS, LAYER_BYTES, LVR_IO_PIPELINED);
    lvr_outcome *o = sim_rig_outcome(&sim_rig_default);
    const lvr_policy ar = sim_rig_policy("ar", NULL);
    lvr_cost_model *m = calloc(1, sizeof *m);
    cr_assert_not_null(m);
    m->table = t;
    m->n_terms = 1;
    snprintf(m->terms[0].name, sizeof m->terms[0].name, "flash");
    lvr_error err = LVR_ERROR_INIT;
    lvr_sim_result r = {0};
    lvr_sim_config c = {.policy = &ar, .geometry = &g, .conditions = sim_rig_conditions(), .outcome = o};
    lvr_sim_use_model(&c, m);
    cr_assert_eq(lvr_sim_run(&c, &r, &err), LVR_ERR_CONFIG);
    cr_expect_not_null(strstr(err.msg, "cannot price flash"), "%s", err.msg);
    cr_expect_not_null(strstr(err.msg, "--emulate-flash"), "%s", err.msg);
    snprintf(m->conditions.emulated, sizeof m->conditions.emulated, "some device");
    lvr_sim_use_model(&c, m);
    cr_assert_eq(lvr_sim_run(&c, &r, &err), LVR_OK, "%s", err.msg);
    lvr_sim_result_free(&r);
    m->conditions.emulated[0] = '\0';
    lvr_geometry_set_resident(&g, 1.0, LVR_RESIDENT_SPREAD);
    lvr_sim_use_model(&c, m);
    cr_assert_eq(lvr_sim_run(&c, &r, &err), LVR_OK, "%s", err.msg);
    cr_expect_eq(r.flash_idle_ns, 0, "nothing is streamed");
    lvr_sim_result_free(&r);
    free(m);
    lvr_outcome_free(o);
}

Test(sim_replay, ar_pipelined_is_bound_by_flash_or_compute)
{
    lvr_cost_table t = sim_rig_cost();
    const lvr_geometry g = sim_rig_geometry(N_LAYERS, LAYER_BYTES, LVR_IO_PIPELINED);
    lvr_outcome *o = sim_rig_outcome(&sim_rig_default);
    const lvr_policy ar = sim_rig_policy("ar", NULL);
    lvr_sim_result slow_flash = sim_rig_run(o, &ar, &g, &t);
    /* Layers take 105 us, reads 600 us: the flash never idles, so a token takes one pass of reads. */
    const double per_token = (double)slow_flash.decode_ns / (double)slow_flash.n_tokens,
                 io = (double)(N_LAYERS * layer_read_ns());
    cr_expect(per_token >= io * 0.999 && per_token < io * 1.01, "%g ns a token, %g of reads", per_token, io);
    t.flash = (lvr_flash_params){
        .t0_ns = 0, .lane_bytes_per_s = 100000000000, .max_bytes_per_s = 100000000000, .depth = 1};
    lvr_sim_result fast_flash = sim_rig_run(o, &ar, &g, &t);
    const double compute = (double)ar_round_compute(&t),
                 got = (double)fast_flash.decode_ns / (double)fast_flash.n_tokens;
    cr_expect_lt(slow_flash.flash_idle_ns, slow_flash.simulated_ns / 1000);
    cr_expect_gt(fast_flash.flash_idle_ns, fast_flash.simulated_ns / 2, "the ring is full most of the time");
    cr_expect(got >= compute * 0.99 && got < compute * 1.02, "%g ns a token, %g of compute", got, compute);
    lvr_sim_result_free(&slow_flash);
    lvr_sim_result_free(&fast_flash);
    lvr_outcome_free(o);
}

Test(sim_replay, every_policy_emits_the_same_text)
{
    const lvr_cost_table t = sim_rig_cost();
    const lvr_geometry g = sim_rig_geometry(N_LAYERS, LAYER_BYTES, LVR_IO_PIPELINED);
    lvr_outcome *o = sim_rig_outcome(&sim_rig_default);
    const lvr_policy ar = sim_rig_policy("ar", NULL);
    lvr_sim_result want = sim_rig_run(o, &ar, &g, &t);
    static const char *const names[] = {"chain", "lever", "random"};
    for (size_t i = 0; i < 3; i++) {
        const lvr_policy p = sim_rig_policy(names[i], &t);
        lvr_sim_result r = sim_rig_run(o, &p, &g, &t);
        cr_assert_eq(r.n_tokens, want.n_tokens);
        cr_expect_eq(memcmp(r.tokens, want.tokens, r.n_tokens * sizeof r.tokens[0]), 0, "%s", names[i]);
        cr_expect_lt(r.rounds, want.rounds, "%s", names[i]);
        if (strcmp(names[i], "random") != 0) {
            cr_expect_eq(r.outside_nodes, 0, "%s met %lu unrecorded nodes", names[i], r.outside_nodes);
            cr_expect_gt(lvr_sim_tokens_per_s(&r), lvr_sim_tokens_per_s(&want), "%s", names[i]);
        }
        lvr_sim_result_free(&r);
    }
    lvr_sim_result_free(&want);
    lvr_outcome_free(o);
}

Test(sim_replay, same_inputs_same_result)
{
    const lvr_cost_table t = sim_rig_cost();
    const lvr_geometry g = sim_rig_geometry(N_LAYERS, LAYER_BYTES, LVR_IO_PIPELINED);
    lvr_outcome *o = sim_rig_outcome(&sim_rig_default);
    const lvr_policy p = sim_rig_policy("lever", &t);
    lvr_sim_result a = sim_rig_run(o, &p, &g, &t), b = sim_rig_run(o, &p, &g, &t);
    cr_assert_eq(a.n_round_log, b.n_round_log);
    cr_expect_eq(memcmp(a.round_log, b.round_log, a.n_round_log * sizeof a.round_log[0]), 0);
    cr_expect_eq(a.simulated_ns, b.simulated_ns);
    cr_expect_eq(a.events, b.events);
    lvr_sim_result_free(&a);
    lvr_sim_result_free(&b);
    lvr_outcome_free(o);
}

Test(sim_replay, rounds_add_up_to_the_run)
{
    const lvr_cost_table t = sim_rig_cost();
    const lvr_geometry g = sim_rig_geometry(N_LAYERS, LAYER_BYTES, LVR_IO_SERIAL);
    lvr_outcome *o = sim_rig_outcome(&sim_rig_default);
    const lvr_policy p = sim_rig_policy("chain", &t);
    lvr_sim_result r = sim_rig_run(o, &p, &g, &t);
    uint64_t sum = 0, end = 0;
    for (size_t i = 0; i < r.n_round_log; i++) {
        const lvr_sim_round *l = &r.round_log[i];
        uint64_t parts = l->wait_ns;
        for (int k = 0; k < LVR_OP_COUNT; k++)
            parts += l->op_ns[k];
        cr_expect_eq(l->start_ns, end, "round %zu starts where the one before ended", i);
        cr_expect_eq(l->end_ns - l->start_ns, parts, "round %zu is compute and waiting", i);
        end = l->end_ns;
        sum += parts;
    }
    cr_expect_eq(sum, r.simulated_ns);
    lvr_sim_result_free(&r);
    lvr_outcome_free(o);
}

Test(sim_replay, a_slower_read_shifts_what_depends_on_it)
{
    lvr_cost_table t = sim_rig_cost();
    const lvr_geometry g = sim_rig_geometry(N_LAYERS, LAYER_BYTES, LVR_IO_SERIAL);
    lvr_outcome *o = sim_rig_outcome(&sim_rig_default);
    const lvr_policy ar = sim_rig_policy("ar", NULL);
    lvr_sim_result a = sim_rig_run(o, &ar, &g, &t);
    t.flash.t0_ns += 1000;
    lvr_sim_result b = sim_rig_run(o, &ar, &g, &t);
    cr_expect_eq(b.simulated_ns - a.simulated_ns, (a.rounds + 4) * N_LAYERS * 4 * 1000,
                 "four reads a layer, 1 us each");
    lvr_sim_result_free(&a);
    lvr_sim_result_free(&b);
    lvr_outcome_free(o);
}

Test(sim_replay, nodes_beyond_the_recording_are_counted)
{
    sim_rig small = sim_rig_default;
    small.branch = 2;
    small.expansions = 2;
    small.depth = 3;
    const lvr_cost_table t = sim_rig_cost();
    const lvr_geometry g = sim_rig_geometry(N_LAYERS, LAYER_BYTES, LVR_IO_PIPELINED);
    lvr_outcome *o = sim_rig_outcome(&small);
    lvr_error err = LVR_ERROR_INIT;
    lvr_policy chain = sim_rig_policy("chain", &t);
    cr_assert_eq(lvr_policy_set(&chain, "test", "k", "3", &err), LVR_OK, "%s", err.msg);
    lvr_sim_result inside = sim_rig_run(o, &chain, &g, &t);
    cr_expect_eq(inside.outside_nodes, 0);
    cr_assert_eq(lvr_policy_set(&chain, "test", "k", "5", &err), LVR_OK, "%s", err.msg);
    lvr_sim_result outside = sim_rig_run(o, &chain, &g, &t);
    cr_expect_gt(outside.outside_nodes, 0);
    cr_expect_eq(outside.n_tokens, inside.n_tokens, "the replay goes on, marked inexact");
    const lvr_policy lever =
        sim_rig_policy("lever", &t); /* asks for six children a node, two were recorded */
    lvr_sim_result wide = sim_rig_run(o, &lever, &g, &t);
    cr_expect_gt(wide.outside_nodes, 0);
    lvr_sim_result_free(&inside);
    lvr_sim_result_free(&outside);
    lvr_sim_result_free(&wide);
    lvr_outcome_free(o);
}

/* Children that the recording left out as too improbable: a policy that stops above its limit replays
 * exactly, one that looks below says that it is not. */
Test(sim_replay, children_left_out_are_missed_only_by_who_looks_for_them)
{
    sim_rig cut = sim_rig_default;
    cut.min_path = 0.02;
    const lvr_cost_table t = sim_rig_cost();
    const lvr_geometry g = sim_rig_geometry(N_LAYERS, LAYER_BYTES, LVR_IO_PIPELINED);
    lvr_outcome *whole = sim_rig_outcome(&sim_rig_default), *o = sim_rig_outcome(&cut);
    lvr_error err = LVR_ERROR_INIT;
    lvr_policy p = sim_rig_policy("lever", &t);
    cr_assert_eq(lvr_policy_set(&p, "test", "min_path", "0.02", &err), LVR_OK, "%s", err.msg);
    lvr_sim_result a = sim_rig_run(whole, &p, &g, &t), b = sim_rig_run(o, &p, &g, &t);
    cr_expect_eq(b.outside_nodes, 0);
    cr_expect_eq(a.simulated_ns, b.simulated_ns, "what was left out was not missed");
    cr_assert_eq(lvr_policy_set(&p, "test", "min_path", "0.001", &err), LVR_OK, "%s", err.msg);
    lvr_sim_result below = sim_rig_run(o, &p, &g, &t);
    cr_expect_gt(below.outside_nodes, 0);
    lvr_sim_result_free(&a);
    lvr_sim_result_free(&b);
    lvr_sim_result_free(&below);
    lvr_outcome_free(o);
    lvr_outcome_free(whole);
}

Test(sim_replay, resident_layers_are_not_read)
{
    const lvr_cost_table t = sim_rig_cost();
    lvr_geometry g = sim_rig_geometry(N_LAYERS, LAYER_BYTES, LVR_IO_SERIAL);
    lvr_geometry_set_resident(&g, 1.0, LVR_RESIDENT_SPREAD);
    lvr_outcome *o = sim_rig_outcome(&sim_rig_default);
    const lvr_policy ar = sim_rig_policy("ar", NULL);
    lvr_sim_result r = sim_rig_run(o, &ar, &g, &t);
    cr_expect_eq(r.bytes_read, 0);
    cr_expect_eq(r.flash_wait_ns, 0);
    cr_expect_eq(r.compute_busy_ns, r.simulated_ns);
    lvr_sim_result_free(&r);
    lvr_outcome_free(o);
}

/* The oracle boundary: the first round's trees of all requests, under two different futures. */
Test(sim_replay, choices_do_not_depend_on_outcomes)
{
    sim_rig other = sim_rig_default;
    other.outcome_seed = 99;
    const lvr_cost_table t = sim_rig_cost();
    const lvr_geometry g = sim_rig_geometry(N_LAYERS, LAYER_BYTES, LVR_IO_PIPELINED);
    lvr_outcome *a = sim_rig_outcome(&sim_rig_default), *b = sim_rig_outcome(&other);
    static const char *const names[] = {"chain", "lever", "random"};
    for (size_t i = 0; i < 3; i++) {
        const lvr_policy p = sim_rig_policy(names[i], &t);
        lvr_sim_result ra = sim_rig_run(a, &p, &g, &t), rb = sim_rig_run(b, &p, &g, &t);
        const lvr_sim_round *x = &ra.round_log[1], *y = &rb.round_log[1]; /* 0 is the prompt */
        cr_expect_neq(memcmp(ra.tokens, rb.tokens, sizeof ra.tokens[0] * 8), 0, "the futures differ");
        cr_expect_eq(x->n_rows, y->n_rows, "%s", names[i]);
        cr_expect_eq(x->op_ns[LVR_OP_DRAFT], y->op_ns[LVR_OP_DRAFT], "%s", names[i]);
        lvr_sim_result_free(&ra);
        lvr_sim_result_free(&rb);
    }
    lvr_outcome_free(a);
    lvr_outcome_free(b);
}

Test(sim_replay, waking_up_costs_each_wait)
{
    const lvr_cost_table t = sim_rig_cost();
    const lvr_geometry g = sim_rig_geometry(N_LAYERS, LAYER_BYTES, LVR_IO_SERIAL);
    lvr_outcome *o = sim_rig_outcome(&sim_rig_default);
    const lvr_policy ar = sim_rig_policy("ar", NULL);
    lvr_error err = LVR_ERROR_INIT;
    lvr_sim_result a = sim_rig_run(o, &ar, &g, &t), b = {0};
    const lvr_sim_config c = {.policy = &ar,
                              .geometry = &g,
                              .cost = &t,
                              .wake_ns = 3000,
                              .conditions = sim_rig_conditions(),
                              .outcome = o};
    cr_assert_eq(lvr_sim_run(&c, &b, &err), LVR_OK, "%s", err.msg);
    cr_expect_eq(b.simulated_ns - a.simulated_ns, (a.rounds + 4) * N_LAYERS * 3000);
    lvr_sim_result_free(&a);
    lvr_sim_result_free(&b);
    lvr_outcome_free(o);
}

Test(sim_replay, texts_that_end_early_end_alike)
{
    /* Asked for more than the text has: the last token is taken for the end of text if it ends every text and
     * stands nowhere before. */
    const lvr_cost_table t = sim_rig_cost();
    const lvr_geometry g = sim_rig_geometry(N_LAYERS, LAYER_BYTES, LVR_IO_SERIAL);
    lvr_outcome *o = sim_rig_outcome(&sim_rig_default);
    const lvr_policy p = sim_rig_policy("chain", &t);
    lvr_error err = LVR_ERROR_INIT;
    lvr_sim_result r = {0};
    lvr_sim_config c = {
        .policy = &p, .geometry = &g, .cost = &t, .conditions = sim_rig_conditions(), .outcome = o};
    c.conditions.n_predict = 200;
    cr_assert_eq(lvr_sim_run(&c, &r, &err), LVR_OK, "%s", err.msg);
    cr_expect_eq(r.n_tokens, 4 * 60);
    lvr_sim_result_free(&r);
    c.conditions.n_predict = 7;
    cr_assert_eq(lvr_sim_run(&c, &r, &err), LVR_OK, "%s", err.msg);
    cr_expect_eq(r.n_tokens, 4 * 7, "fewer than the text has, if fewer are asked for");
    lvr_sim_result_free(&r);
    lvr_outcome_free(o);
}

Test(sim_replay, a_timing_trace_is_no_oracle)
{
    const lvr_cost_table t = sim_rig_cost();
    const lvr_geometry g = sim_rig_geometry(N_LAYERS, LAYER_BYTES, LVR_IO_SERIAL);
    lvr_outcome *o = sim_rig_outcome(&sim_rig_default), *none = NULL;
    const lvr_policy ar = sim_rig_policy("ar", &t);
    const lvr_policy_file pf = sim_rig_file(&sim_rig_default, &ar, &g);
    lvr_error err = LVR_ERROR_INIT;
    lvr_trace *trace = NULL;
    char *path = sim_rig_path("sim.h5");
    sim_rig_write_timing(&pf, o, &t, LVR_TRACE_SIMULATED, "dev", path);
    cr_assert_eq(lvr_trace_open(path, &trace, &err), LVR_OK, "%s", err.msg);
    cr_expect_eq(lvr_outcome_from_oracle(trace, &none, &err), LVR_ERR_CONFIG);
    cr_expect_not_null(strstr(err.msg, "--oracle"), "says how to mend it: %s", err.msg);
    lvr_trace_close(trace);
    lvr_outcome_free(o);
    sim_rig_discard(path);
}

Test(sim_replay, a_simulated_trace_is_valid)
{
    const lvr_cost_table t = sim_rig_cost();
    const lvr_geometry g = sim_rig_geometry(N_LAYERS, LAYER_BYTES, LVR_IO_PIPELINED);
    lvr_outcome *o = sim_rig_outcome(&sim_rig_default);
    const lvr_policy p = sim_rig_policy("lever", &t);
    const lvr_policy_file pf = sim_rig_file(&sim_rig_default, &p, &g);
    lvr_error err = LVR_ERROR_INIT;
    lvr_buf report = LVR_BUF_INIT;
    lvr_trace *trace = NULL;
    uint64_t findings = 0;
    char *path = sim_rig_path("sim.h5");
    sim_rig_write_timing(&pf, o, &t, LVR_TRACE_SIMULATED, "dev", path);
    cr_assert_eq(lvr_trace_open(path, &trace, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_trace_validate(trace, &report, &findings, &err), LVR_OK, "%s", err.msg);
    cr_expect_eq(findings, 0, "%s", report.data ? report.data : "");
    lvr_buf_free(&report);
    lvr_trace_close(trace);
    lvr_outcome_free(o);
    sim_rig_discard(path);
}
