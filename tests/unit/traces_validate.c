/* A sound trace has no findings; each thing that cannot be true has one. */
#include "common/buf.h"
#include "tests/unit/traces_fixture.h"
#include "traces/sealed_file.h"
#include "traces/stream_io.h"
#include "traces/stream_stats.h"
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TestSuite(validate, .init = fixture_setup, .fini = fixture_teardown);

/* Checks the trace at fixture_path: n findings (or any, for UINT64_MAX), the report containing `says`. */
static void expect_findings(uint64_t n, const char *says)
{
    lvr_trace *t = fixture_open();
    lvr_buf out = LVR_BUF_INIT;
    lvr_error err = LVR_ERROR_INIT;
    uint64_t findings = 0;
    cr_assert_eq(lvr_trace_validate(t, &out, &findings, &err), LVR_OK, "%s", err.msg);
    const char *report = out.data ? out.data : "";
    if (n != UINT64_MAX)
        cr_assert_eq(findings, n, "%lu findings, expected %lu:\n%s", (unsigned long)findings,
                     (unsigned long)n, report);
    cr_assert_not_null(strstr(report, says), "expected \"%s\" in:\n%s", says, report);
    lvr_buf_free(&out);
    lvr_trace_close(t);
}

static void record_with(lvr_trace_kind kind, lvr_stream stream, const void *record)
{
    lvr_trace_lane *lane = NULL;
    lvr_trace_writer *w = fixture_writer(kind, true, &lane);
    if (kind == LVR_TRACE_ORACLE)
        fixture_put_positions(lane, 1, 10, true);
    else
        fixture_put_rounds(lane, 1, 0, 10, true);
    if (record)
        lvr_trace_put(lane, stream, record);
    fixture_close(w, true);
}

Test(validate, sound_traces_have_no_findings)
{
    record_with(LVR_TRACE_TIMING, LVR_STREAM_ROUNDS, NULL);
    expect_findings(0, "");
    record_with(LVR_TRACE_ORACLE, LVR_STREAM_TREES, NULL);
    expect_findings(0, "");
}

#define EXPECT(kind, stream, says, ...)                                                                      \
    do {                                                                                                     \
        record_with(kind, stream, &(__VA_ARGS__));                                                           \
        expect_findings(1, says);                                                                            \
    } while (0)
#define TIMING(stream, says, ...) EXPECT(LVR_TRACE_TIMING, stream, says, __VA_ARGS__)
#define ORACLE(stream, says, ...) EXPECT(LVR_TRACE_ORACLE, stream, says, __VA_ARGS__)

Test(validate, requests)
{
    TIMING(LVR_STREAM_REQUESTS, "id 1 stands more than once", (lvr_rec_request){.id = 1});
    TIMING(LVR_STREAM_REQUESTS, "domain 2, but the trace names 2", (lvr_rec_request){.id = 2, .domain = 2});
    TIMING(LVR_STREAM_REQUESTS, "t_arrival (9) is after t_first_token (8)",
           (lvr_rec_request){.id = 2, .t_arrival_ns = 9, .t_first_token_ns = 8});
    TIMING(LVR_STREAM_REQUESTS, "t_first_token (9) is after t_done (8)",
           (lvr_rec_request){.id = 2, .t_first_token_ns = 9, .t_done_ns = 8});
}

Test(validate, tokens)
{
    TIMING(LVR_STREAM_TOKENS, "request 5 is not in /requests", (lvr_rec_token){.request = 5});
    TIMING(LVR_STREAM_TOKENS, "token is -3", (lvr_rec_token){.request = 1, .pos = 99, .token = -3});
    TIMING(LVR_STREAM_TOKENS, "token is 2000000000",
           (lvr_rec_token){.request = 1, .pos = 99, .token = 2000000000});
    TIMING(LVR_STREAM_TOKENS, "pos 3 follows pos 20", (lvr_rec_token){.request = 1, .pos = 3});
    TIMING(LVR_STREAM_TOKENS, "is_output is 2", (lvr_rec_token){.request = 1, .pos = 99, .is_output = 2});
}

Test(validate, rounds)
{
    const uint64_t late = 1u << 30;
    /* A prompt pass has no tree, so these rows need no nodes. */
    const lvr_rec_round good = {
        .request = 1, .round = 50, .prefill = 1, .n_nodes = 4, .n_kept = 4, .t_commit_ns = late};
    lvr_rec_round r = good;
    record_with(LVR_TRACE_TIMING, LVR_STREAM_ROUNDS, &r);
    expect_findings(0, "");
    r.round = 9; /* its nodes then do not fit either */
    record_with(LVR_TRACE_TIMING, LVR_STREAM_ROUNDS, &r);
    expect_findings(3, "round 9 follows round 9");
    r = good;
    r.t_commit_ns = 5;
    TIMING(LVR_STREAM_ROUNDS, "t_commit (5) is before the round before it", r);
    r = good;
    r.n_kept = 5;
    TIMING(LVR_STREAM_ROUNDS, "n_kept 5 of 4 nodes", r);
    r = good;
    r.t_verify0_ns = 8;
    TIMING(LVR_STREAM_ROUNDS, "t_verify0 (8) is after t_verify1 (0)", r);
    r = good;
    r.t_verify1_ns = late + 1;
    TIMING(LVR_STREAM_ROUNDS, "is after t_commit", r);
    r = good;
    r.request = 8;
    TIMING(LVR_STREAM_ROUNDS, "request 8", r);
    r = good;
    r.n_nodes = r.n_kept = 0;
    TIMING(LVR_STREAM_ROUNDS, "at least one row", r);
}

Test(validate, round_nodes)
{
    /* Round 9 has its three nodes; a fourth is one finding of its own. */
    const lvr_rec_round_node good = {.request = 1, .round = 9, .node = 3, .parent = 1, .p_draft = 0.5f};
    lvr_rec_round_node r = good;
    TIMING(LVR_STREAM_ROUND_NODES, "round 9 has 4 rows, /rounds says 3", r);
    r.parent = 3;
    record_with(LVR_TRACE_TIMING, LVR_STREAM_ROUND_NODES, &r);
    expect_findings(2, "parent 3 of node 3, expected an earlier node");
    r = good;
    r.node = 7;
    record_with(LVR_TRACE_TIMING, LVR_STREAM_ROUND_NODES, &r);
    expect_findings(2, "node 7, expected 3");
    r = good;
    r.p_draft = NAN;
    record_with(LVR_TRACE_TIMING, LVR_STREAM_ROUND_NODES, &r);
    expect_findings(2, "p_draft is NaN");
    r = good;
    r.p_draft = 1.5f;
    record_with(LVR_TRACE_TIMING, LVR_STREAM_ROUND_NODES, &r);
    expect_findings(2, "p_draft is 1.5");
    r = good;
    r.parent = 2;
    r.accepted = 1;
    record_with(LVR_TRACE_TIMING, LVR_STREAM_ROUND_NODES, &r);
    expect_findings(2, "accepted, but its parent 2 is not");
    r = good;
    r.last_layer = 5;
    record_with(LVR_TRACE_TIMING, LVR_STREAM_ROUND_NODES, &r);
    expect_findings(2, "layer 5, but the model has 5");
    r = (lvr_rec_round_node){.request = 1, .round = 77, .parent = -1};
    TIMING(LVR_STREAM_ROUND_NODES, "round 77 is not in /rounds", r);
}

Test(validate, flash)
{
    const lvr_rec_flash good = {.round = UINT64_MAX,
                                .bytes = 4096,
                                .queue_depth = 1,
                                .t_submit_ns = 1,
                                .t_start_ns = 2,
                                .t_end_ns = 1000};
    lvr_rec_flash r = good;
    record_with(LVR_TRACE_TIMING, LVR_STREAM_FLASH, &r);
    expect_findings(0, "");
    r.bytes = 1 << 20;
    TIMING(LVR_STREAM_FLASH, "faster than 64 GB/s", r);
    r = good;
    r.t_end_ns = 2;
    TIMING(LVR_STREAM_FLASH, "4096 bytes in 0 ns", r);
    r = good;
    r.t_submit_ns = 3;
    TIMING(LVR_STREAM_FLASH, "t_submit (3) is after t_start (2)", r);
    r = good;
    r.t_end_ns = 1;
    TIMING(LVR_STREAM_FLASH, "t_start (2) is after t_end (1)", r);
    r = good;
    r.bytes = 0;
    TIMING(LVR_STREAM_FLASH, "0 bytes", r);
    r = good;
    r.offset = UINT64_MAX;
    TIMING(LVR_STREAM_FLASH, "4096 bytes at offset", r);
    r = good;
    r.queue_depth = 0;
    TIMING(LVR_STREAM_FLASH, "queue_depth is 0", r);
    r = good;
    r.round = 12;
    TIMING(LVR_STREAM_FLASH, "round 12", r);
    r = good;
    r.layer = 5;
    TIMING(LVR_STREAM_FLASH, "layer 5", r);
}

Test(validate, kernels)
{
    const lvr_rec_kernel good = {.round = 1, .rows = 1, .layer = UINT32_MAX};
    lvr_rec_kernel r = good;
    record_with(LVR_TRACE_TIMING, LVR_STREAM_KERNELS, &r);
    expect_findings(0, "");
    r.rows = 0;
    TIMING(LVR_STREAM_KERNELS, "rows is 0", r);
    r = good;
    r.layer = 5;
    TIMING(LVR_STREAM_KERNELS, "layer 5", r);
    r.model = 1;
    r.layer = 255;
    record_with(LVR_TRACE_TIMING, LVR_STREAM_KERNELS, &r);
    expect_findings(0, "");
    r = good;
    r.t_start_ns = 4;
    TIMING(LVR_STREAM_KERNELS, "t_start (4) is after t_end (0)", r);
    r = good;
    r.round = 10;
    TIMING(LVR_STREAM_KERNELS, "round 10", r);
}

/* Names that this version does not have come from a later one: kept as numbers, and reported. */
Test(validate, enumerations)
{
    const uint32_t unknown = 0xffffffffu;
    lvr_trace_lane *lane = NULL;
    lvr_trace_writer *w = fixture_writer(LVR_TRACE_TIMING, true, &lane);
    const lvr_rec_kernel r = {.rows = 1, .op = 200, .unit = 1, .model = unknown, .layer = 0};
    fixture_put_rounds(lane, 1, 0, 1, true);
    lvr_trace_put(lane, LVR_STREAM_KERNELS, &r);
    fixture_close(w, true);
    expect_findings(2, "op is 200, which has no name");
}

Test(validate, trees)
{
    /* Position 9 has nodes 0, 1 (on the path, the target's token there is 11) and 2. */
    const lvr_rec_tree good = {.request = 1,
                               .pos = 9,
                               .node = 3,
                               .parent = 1,
                               .depth = 2,
                               .token = 11,
                               .p_draft = 0.5f,
                               .target_token = -1,
                               .p_target = NAN,
                               .on_path = 1};
    lvr_rec_tree r = good;
    record_with(LVR_TRACE_ORACLE, LVR_STREAM_TREES, &r);
    expect_findings(0, "");
    r.parent = 3;
    ORACLE(LVR_STREAM_TREES, "parent 3 of node 3", r);
    r = good;
    r.depth = 1;
    ORACLE(LVR_STREAM_TREES, "depth 1, but its parent's is 1", r);
    r = good;
    r.token = 12;
    ORACLE(LVR_STREAM_TREES, "on_path, but", r);
    r = good;
    r.parent = 2;
    ORACLE(LVR_STREAM_TREES, "on_path, but", r);
    r = good;
    r.p_target = 0.5f;
    ORACLE(LVR_STREAM_TREES, "expected NaN: the node was not run", r);
    r = good;
    r.target_token = 4;
    ORACLE(LVR_STREAM_TREES, "p_target is NaN", r);
    r = good;
    r.on_path = 0;
    r.rank = 4;
    ORACLE(LVR_STREAM_TREES, "rank 4, but the trace's cap_branch is 4", r);
    r = good;
    r.p_draft = -0.5f;
    ORACLE(LVR_STREAM_TREES, "p_draft is -0.5", r);
    r = (lvr_rec_tree){.request = 1, .pos = 10, .parent = 0, .target_token = -1, .p_target = NAN};
    ORACLE(LVR_STREAM_TREES, "the root's parent is 0", r);
}

Test(validate, draft_topk)
{
    ORACLE(LVR_STREAM_DRAFT_TOPK, "k is 3, expected 2", (lvr_rec_draft_topk){1, 9, 3, 1, 0.1f});
    ORACLE(LVR_STREAM_DRAFT_TOPK, "k is 1, expected 0", (lvr_rec_draft_topk){1, 10, 1, 1, 0.1f});
    ORACLE(LVR_STREAM_DRAFT_TOPK, "p is NaN", (lvr_rec_draft_topk){1, 10, 0, 1, NAN});
}

Test(validate, exit_features)
{
    const lvr_rec_exit good = {1, 9, 2, 1, 0.5f, 1.0f, 0.5f, 0.1f, 0};
    lvr_rec_exit r = good;
    r.request = 999;
    ORACLE(LVR_STREAM_EXIT, "request 999", r);
    r = good;
    r.pos = 10;
    r.node = 0;
    ORACLE(LVR_STREAM_EXIT, "the root is never scored", r);
    r = good;
    r.layer = 4000;
    ORACLE(LVR_STREAM_EXIT, "layer is 4000, expected one before the last", r);
    r = good;
    r.slice_max = NAN;
    ORACLE(LVR_STREAM_EXIT, "a feature is ", r);
    r = good;
    r.pos = 1;
    ORACLE(LVR_STREAM_EXIT, "not in ascending order", r);
}

Test(validate, bench)
{
    TIMING(LVR_STREAM_BENCH, "not in order",
           (lvr_rec_bench){.n = 1, .mean_ns = 2, .p50_ns = 3, .p90_ns = 2, .p99_ns = 4});
    TIMING(LVR_STREAM_BENCH, "a duration is nan", (lvr_rec_bench){.n = 1, .mean_ns = NAN});
    TIMING(LVR_STREAM_BENCH, "n is 0", (lvr_rec_bench){.mean_ns = 1});
}

Test(validate, memory)
{
    const lvr_rec_memory row = {.t_ns = UINT64_MAX / 2};
    record_with(LVR_TRACE_TIMING, LVR_STREAM_MEMORY, &row);
    expect_findings(UINT64_MAX, "rss is 0");
}

Test(validate, many_findings_are_counted_not_printed)
{
    lvr_trace_lane *lane = NULL;
    lvr_trace_writer *w = fixture_writer(LVR_TRACE_TIMING, true, &lane);
    fixture_put_rounds(lane, 1, 0, 1, true);
    for (int i = 0; i < 1000; i++) {
        const lvr_rec_kernel r = {.round = 1000, .rows = 1};
        lvr_trace_put_wait(lane, LVR_STREAM_KERNELS, &r, NULL);
    }
    fixture_close(w, true);
    expect_findings(1000, "/kernels: 990 more findings");
}

Test(validate, drops_and_cuts_are_findings)
{
    lvr_trace_lane *lane = NULL, *small = NULL;
    lvr_trace_writer *w = fixture_writer(LVR_TRACE_TIMING, true, &lane);
    cr_assert_eq(lvr_trace_lane_new(w, 1, &small, NULL), LVR_OK);
    fixture_put_rounds(lane, 1, 0, 1, true);
    const lvr_rec_memory row = {.rss_bytes = 1};
    for (int i = 0; i < 10000; i++)
        lvr_trace_put(small, LVR_STREAM_DRAFT_TOPK, &row);
    fixture_close(w, true);
    expect_findings(UINT64_MAX, "/draft_topk: the recorder dropped");
    w = fixture_writer(LVR_TRACE_TIMING, true, &lane);
    fixture_put_rounds(lane, 1, 0, 3, false);
    fixture_close(w, false);
    expect_findings(1, "incomplete: the recording was cut short");
}

/* ---- /stats
 * ----------------------------------------------------------------------------------------------------------------
 */

Test(validate, stats_are_those_of_the_rows)
{
    lvr_stream_stats stats[LVR_STREAM_COUNT];
    bool present[LVR_STREAM_COUNT];
    record_with(LVR_TRACE_TIMING, LVR_STREAM_ROUNDS, NULL);
    lvr_sealed_file *f = NULL;
    cr_assert_eq(lvr_sealed_open(fixture_path, &f, NULL), LVR_OK);
    const lvr_h5_guard guard = lvr_h5_enter();
    cr_assert_eq(lvr_stats_read(lvr_sealed_h5(f), "test", stats, present, NULL), LVR_OK);
    lvr_h5_leave(guard);
    lvr_sealed_close(f);
    cr_assert(present[LVR_STREAM_FLASH]);
    cr_assert_not(present[LVR_STREAM_TREES]);
    cr_assert_eq(stats[LVR_STREAM_FLASH].rows, 30);
    /* Field 4 is `bytes`: 30 reads of 4096. */
    cr_assert_float_eq(stats[LVR_STREAM_FLASH].field[4].sum, 30 * 4096.0, 0);
    cr_assert_float_eq(stats[LVR_STREAM_FLASH].field[4].min, 4096.0, 0);
    cr_assert_float_eq(stats[LVR_STREAM_FLASH].field[0].max, 9.0, 0);
}

Test(validate, nan_is_left_out_of_stats)
{
    const lvr_rec_draft_topk rows[] = {{0, 0, 0, 1, NAN}, {0, 0, 1, 2, 0.5f}, {0, 0, 2, 3, 0.25f}};
    lvr_stream_stats s;
    lvr_stream_stats_init(&s);
    lvr_stream_stats_add(&s, LVR_STREAM_DRAFT_TOPK, rows, 3);
    cr_assert_eq(s.rows, 3);
    cr_assert_float_eq(s.field[4].sum, 0.75, 0);
    cr_assert_float_eq(s.field[4].min, 0.25, 0);
    lvr_stream_stats_init(&s);
    lvr_stream_stats_add(&s, LVR_STREAM_DRAFT_TOPK, rows, 1);
    cr_assert(isnan(s.field[4].min));
}

/* Rewrites the trace through the same parts with one number of /stats changed. */
Test(validate, stats_that_lie_are_found)
{
    lvr_sealed_file *f = NULL;
    lvr_trace_meta meta;
    const lvr_clock_list clocks = {0};
    lvr_stream_stats stats[LVR_STREAM_COUNT];
    bool present[LVR_STREAM_COUNT] = {false};
    const lvr_rec_bench row = {.n = 1, .mean_ns = 5};
    const lvr_stream_layout layout = {1, false, true};
    char temp[160];
    hid_t dset = -1;
    fixture_meta(&meta, LVR_TRACE_BENCH);
    meta.complete = true;
    snprintf(temp, sizeof temp, "%s/temp", fixture_dir);
    for (int s = 0; s < LVR_STREAM_COUNT; s++)
        lvr_stream_stats_init(&stats[s]);
    lvr_stream_stats_add(&stats[LVR_STREAM_BENCH], LVR_STREAM_BENCH, &row, 1);
    stats[LVR_STREAM_BENCH].field[7].sum = 6;
    present[LVR_STREAM_BENCH] = true;
    cr_assert_eq(lvr_sealed_create(temp, (lvr_seal_id){1, 0}, &f, NULL), LVR_OK);
    const lvr_h5_guard guard = lvr_h5_enter();
    const hid_t h5 = lvr_sealed_h5(f);
    cr_assert_eq(lvr_meta_write(h5, &meta, true, &clocks, temp, NULL), LVR_OK);
    cr_assert_eq(lvr_stream_create(h5, LVR_STREAM_BENCH, &layout, temp, &dset, NULL), LVR_OK);
    cr_assert_eq(lvr_stream_write(dset, LVR_STREAM_BENCH, 0, 1, &row, temp, NULL), LVR_OK);
    H5Dclose(dset);
    cr_assert_eq(lvr_stats_write(h5, stats, present, temp, NULL), LVR_OK);
    lvr_h5_leave(guard);
    cr_assert_eq(lvr_sealed_commit(f, fixture_path, false, NULL), LVR_OK);
    expect_findings(1, "/stats: /bench mean");
}
