/* Occupancy, idle flash and waits against a run worked out by hand. */
#include "common/buf.h"
#include "tests/unit/traces_fixture.h"
#include "traces/ring_use.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(ring_use, .init = fixture_setup, .fini = fixture_teardown);

static void put_read(lvr_trace_lane *lane, uint64_t round, uint32_t layer, uint32_t slice, uint64_t submit,
                     uint64_t end)
{
    const lvr_rec_flash rec = {.round = round,
                               .layer = layer,
                               .slice = slice,
                               .bytes = 4096,
                               .queue_depth = 1,
                               .t_submit_ns = submit,
                               .t_start_ns = submit,
                               .t_end_ns = end};
    cr_assert_eq(lvr_trace_put_wait(lane, LVR_STREAM_FLASH, &rec, NULL), LVR_OK);
}

static void put_kernel(lvr_trace_lane *lane, lvr_op op, uint64_t round, uint32_t layer, uint64_t start,
                       uint64_t end)
{
    const lvr_rec_kernel rec = {.round = round,
                                .layer = layer,
                                .op = op,
                                .rows = 1,
                                .bucket = 1,
                                .t_submit_ns = start,
                                .t_start_ns = start,
                                .t_end_ns = end};
    cr_assert_eq(lvr_trace_put_wait(lane, LVR_STREAM_KERNELS, &rec, NULL), LVR_OK);
}

static void put_request(lvr_trace_lane *lane, uint64_t arrival, uint64_t done)
{
    const lvr_rec_request rec = {.id = 1,
                                 .t_arrival_ns = arrival,
                                 .t_first_token_ns = done,
                                 .t_done_ns = done,
                                 .n_prompt = 1,
                                 .n_output = 1};
    cr_assert_eq(lvr_trace_put_wait(lane, LVR_STREAM_REQUESTS, &rec, NULL), LVR_OK);
}

/*
 * Two streamed layers, a ring of two, and a resident layer 2:
 *
 *   reads   layer 0 slices 100-140, 100-200    layer 1 200-300         layer 0 of round 1: 280-350 (nobody's)
 *   compute plan 100-110   embed 205-210   layer 0 210-260   layer 1 320-400   layer 2 400-450
 *   request 100 .. 500
 *   staged  0: 100-200, 260-300    1: 200-260, 300-350, 400-500    2: 350-400
 */
static void put_run(lvr_trace_lane *lane, bool with_request)
{
    put_kernel(lane, LVR_OP_PLAN, 0, UINT32_MAX, 100, 110);
    put_kernel(lane, LVR_OP_EMBED, 0, UINT32_MAX, 205, 210);
    put_read(lane, 0, 0, 1, 100, 200);
    put_read(lane, 0, 0, 0, 100, 140);
    put_kernel(lane, LVR_OP_LAYER, 0, 0, 210, 260);
    put_read(lane, 0, 1, 0, 200, 300);
    put_kernel(lane, LVR_OP_LAYER, 0, 1, 320, 400);
    put_kernel(lane, LVR_OP_LAYER, 0, 2, 400, 450);
    put_read(lane, UINT64_MAX, 0, 0, 280, 350);
    if (with_request)
        put_request(lane, 100, 500);
}

Test(ring_use, by_hand)
{
    lvr_trace_lane *lane = NULL;
    lvr_ring_use u;
    lvr_trace_writer *w = fixture_writer(LVR_TRACE_TIMING, true, &lane);
    put_run(lane, true);
    fixture_close(w, true);
    lvr_trace *t = fixture_open();
    cr_assert_eq(lvr_trace_ring_use(t, &u, NULL), LVR_OK);
    cr_expect_eq(u.window_ns, 400);
    cr_expect_eq(u.flash_idle_ns, 150, "from 350 to 500, found %lu", u.flash_idle_ns);
    cr_expect_eq(u.waits, 2);
    cr_expect_eq(u.wait_ns, (205 - 110) + (320 - 260), "embedding for layer 0, then layer 1: %lu", u.wait_ns);
    cr_expect_eq(u.max_staged, 2);
    cr_expect_eq(u.staged_ns[0], 140, "%lu", u.staged_ns[0]);
    cr_expect_eq(u.staged_ns[1], 210, "%lu", u.staged_ns[1]);
    cr_expect_eq(u.staged_ns[2], 50, "%lu", u.staged_ns[2]);
    cr_expect_float_eq(lvr_ring_use_mean(&u), 310.0 / 400, 1e-12);
    lvr_buf out = LVR_BUF_INIT;
    cr_assert_eq(lvr_trace_info(t, true, &out, NULL), LVR_OK);
    cr_expect(strstr(out.data, "\"io_idle_s\": 1.5e-07"), "%s", out.data);
    cr_expect(strstr(out.data, "\"staged_share\""), "%s", out.data);
    lvr_buf_free(&out);
    cr_assert_eq(lvr_trace_info(t, false, &out, NULL), LVR_OK);
    cr_expect(strstr(out.data, "flash idle 37.50 %"), "%s", out.data);
    lvr_buf_free(&out);
    lvr_trace_close(t);
}

/* What lies outside of requests does not count. */
Test(ring_use, without_requests_all_that_was_recorded)
{
    lvr_trace_lane *lane = NULL;
    lvr_ring_use u;
    lvr_trace_writer *w = fixture_writer(LVR_TRACE_TIMING, true, &lane);
    put_run(lane, false);
    fixture_close(w, true);
    lvr_trace *t = fixture_open();
    cr_assert_eq(lvr_trace_ring_use(t, &u, NULL), LVR_OK);
    cr_expect_eq(u.window_ns, 350, "from the first read to the last operator's end: %lu", u.window_ns);
    cr_expect_eq(u.flash_idle_ns, 100, "%lu", u.flash_idle_ns);
    lvr_trace_close(t);
}

Test(ring_use, nothing_was_streamed)
{
    lvr_trace_lane *lane = NULL;
    lvr_ring_use u;
    lvr_trace_writer *w = fixture_writer(LVR_TRACE_TIMING, true, &lane);
    put_kernel(lane, LVR_OP_LAYER, 0, 0, 210, 260);
    put_request(lane, 100, 500);
    fixture_close(w, true);
    lvr_trace *t = fixture_open();
    cr_assert_eq(lvr_trace_ring_use(t, &u, NULL), LVR_OK);
    cr_expect_eq(u.window_ns, 0);
    lvr_trace_close(t);
}
