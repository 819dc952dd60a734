/* What a recording that was cut short still tells, and what never gets mixed into it. */
#include "common/log.h"
#include "tests/unit/traces_fixture.h"
#include "traces/segments.h"
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char logged[4096];

static void keep_log(lvr_log_level level, const char *message, void *user)
{
    (void)level;
    (void)user;
    const size_t used = strlen(logged);
    snprintf(logged + used, sizeof logged - used, "%s\n", message);
}

static void setup(void)
{
    fixture_setup();
    logged[0] = '\0';
    lvr_log_set_sink(keep_log, LVR_LOG_INFO, NULL);
}

TestSuite(incomplete, .init = setup, .fini = fixture_teardown);

static void expect_rows(const lvr_trace *t, lvr_stream stream, uint64_t n)
{
    cr_assert_eq(lvr_trace_rows(t, stream), n, "%s: %lu rows, expected %lu",
                 lvr_stream_describe(stream)->name, (unsigned long)lvr_trace_rows(t, stream),
                 (unsigned long)n);
}

/* n whole rounds of fixture_put_rounds. */
static void expect_rounds(const lvr_trace *t, uint64_t n)
{
    expect_rows(t, LVR_STREAM_ROUNDS, n);
    expect_rows(t, LVR_STREAM_ROUND_NODES, 3 * n);
    expect_rows(t, LVR_STREAM_FLASH, 3 * n);
    expect_rows(t, LVR_STREAM_KERNELS, 3 * n);
}

static void segment_path(char *path, size_t bytes, unsigned number)
{
    snprintf(path, bytes, "%s.d/%06u.h5", fixture_path, number);
}

Test(incomplete, a_recording_can_be_read_while_it_runs)
{
    lvr_trace_lane *lane = NULL;
    lvr_trace_writer *w = fixture_writer(LVR_TRACE_TIMING, false, &lane);
    lvr_trace_writer_set_flush_interval(w, 1000000);
    fixture_put_rounds(lane, 1, 0, 10, true);
    fixture_wait_for_rounds(10);
    lvr_trace *t = fixture_open();
    cr_assert_not(lvr_trace_get_meta(t)->complete);
    cr_assert_not_null(strstr(logged, "cut short"));
    expect_rounds(t, 10);
    lvr_trace_close(t);
    fixture_close(w, true);
}

Test(incomplete, nothing_recorded_yet_is_an_empty_trace)
{
    lvr_trace_lane *lane = NULL;
    fixture_close(fixture_writer(LVR_TRACE_TIMING, false, &lane), false);
    lvr_trace *t = fixture_open();
    expect_rounds(t, 0);
    lvr_trace_close(t);
}

Test(incomplete, interrupted_recordings_keep_their_rounds)
{
    lvr_trace_lane *lane = NULL;
    lvr_trace_writer *w = fixture_writer(LVR_TRACE_TIMING, false, &lane);
    lvr_trace_writer_set_flush_interval(w, 0);
    fixture_put_rounds(lane, 1, 0, 20, true);
    fixture_put_rounds(lane, 2, 20, 5, false);
    fixture_close(w, false);
    lvr_trace *t = fixture_open();
    expect_rounds(t, 25);
    expect_rows(t, LVR_STREAM_REQUESTS, 1);
    expect_rows(t, LVR_STREAM_TOKENS, 1 + 40 + 1 + 10);
    lvr_trace_close(t);
}

/* The last round lacks the given rows; everything of it is cut, and what came before stays. */
static void check_partial_round(lvr_stream missing)
{
    lvr_trace_lane *lane = NULL;
    lvr_trace_writer *w = fixture_writer(LVR_TRACE_TIMING, true, &lane);
    fixture_put_rounds(lane, 1, 0, 4, false);
    for (int s = LVR_STREAM_ROUNDS; s <= LVR_STREAM_KERNELS; s++) {
        _Alignas(8) char record[LVR_RECORD_MAX_BYTES] = {0};
        if (s == (int)missing)
            continue;
        if (s == LVR_STREAM_ROUNDS)
            *(lvr_rec_round *)record =
                (lvr_rec_round){.request = 1, .round = 4, .pos = 8, .n_nodes = 1, .n_accepted = 0};
        if (s == LVR_STREAM_ROUND_NODES)
            *(lvr_rec_round_node *)record = (lvr_rec_round_node){.request = 1, .round = 4, .parent = -1};
        if (s == LVR_STREAM_FLASH)
            *(lvr_rec_flash *)record = (lvr_rec_flash){.round = 4, .bytes = 1};
        if (s == LVR_STREAM_KERNELS)
            *(lvr_rec_kernel *)record = (lvr_rec_kernel){.round = 4, .rows = 1};
        lvr_trace_put(lane, (lvr_stream)s, record);
    }
    const lvr_rec_token token = {1, 9, 9, 1, 0};
    lvr_trace_put(lane, LVR_STREAM_TOKENS, &token);
    const lvr_rec_request later = {.id = 2, .n_prompt = 1};
    lvr_trace_put(lane, LVR_STREAM_REQUESTS, &later);
    fixture_close(w, false);
    lvr_trace *t = fixture_open();
    expect_rounds(t, 4);
    expect_rows(t, LVR_STREAM_TOKENS, 9);
    expect_rows(t, LVR_STREAM_REQUESTS, 0);
    lvr_trace_close(t);
}

Test(incomplete, a_round_that_not_all_streams_hold_is_cut)
{
    for (int s = LVR_STREAM_ROUNDS; s <= LVR_STREAM_KERNELS; s++)
        check_partial_round((lvr_stream)s);
}

Test(incomplete, a_round_with_missing_nodes_is_cut)
{
    lvr_trace_lane *lane = NULL;
    lvr_trace_writer *w = fixture_writer(LVR_TRACE_TIMING, false, &lane);
    fixture_put_rounds(lane, 1, 0, 3, false);
    const lvr_rec_round row = {.request = 1, .round = 3, .pos = 6, .n_nodes = 2};
    const lvr_rec_round_node node = {.request = 1, .round = 3, .parent = -1};
    const lvr_rec_flash read = {.round = 3, .bytes = 1};
    const lvr_rec_kernel kernel = {.round = 3, .rows = 1};
    lvr_trace_put(lane, LVR_STREAM_ROUND_NODES, &node);
    lvr_trace_put(lane, LVR_STREAM_FLASH, &read);
    lvr_trace_put(lane, LVR_STREAM_KERNELS, &kernel);
    lvr_trace_put(lane, LVR_STREAM_ROUNDS, &row);
    fixture_close(w, false);
    lvr_trace *t = fixture_open();
    expect_rounds(t, 3);
    lvr_trace_close(t);
}

/* Rows of a later round among earlier ones leave without the rows around them. */
Test(incomplete, the_cut_takes_rows_not_tails)
{
    lvr_trace_lane *lane = NULL;
    lvr_trace_writer *w = fixture_writer(LVR_TRACE_TIMING, false, &lane);
    const lvr_rec_flash ahead = {.round = 9, .layer = 7, .bytes = 1};
    lvr_trace_put(lane, LVR_STREAM_FLASH, &ahead);
    fixture_put_rounds(lane, 1, 0, 2, false);
    lvr_trace_put(lane, LVR_STREAM_FLASH, &ahead);
    fixture_close(w, false);
    lvr_trace *t = fixture_open();
    lvr_rec_flash rows[6];
    expect_rounds(t, 2);
    cr_assert_eq(lvr_trace_read(t, LVR_STREAM_FLASH, 0, 6, rows, NULL), LVR_OK);
    for (int i = 0; i < 6; i++)
        cr_assert_eq(rows[i].round, (uint64_t)i / 3);
    lvr_trace_close(t);
}

Test(incomplete, an_oracle_trace_ends_at_its_last_whole_position)
{
    lvr_trace_lane *lane = NULL;
    lvr_trace_writer *w = fixture_writer(LVR_TRACE_ORACLE, false, &lane);
    fixture_put_positions(lane, 1, 10, true);
    fixture_put_positions(lane, 2, 4, true);
    fixture_close(w, false);
    lvr_trace *t = fixture_open();
    /* Position 3 of request 2 may have had more rows. */
    expect_rows(t, LVR_STREAM_TREES, 30 + 9);
    expect_rows(t, LVR_STREAM_DRAFT_TOPK, 20 + 6);
    expect_rows(t, LVR_STREAM_EXIT, 20 + 6);
    expect_rows(t, LVR_STREAM_REQUESTS, 2);
    expect_rows(t, LVR_STREAM_TOKENS, 11 + 4);
    lvr_trace_close(t);
}

/* ---- damaged, missing and stale segments
 * ---------------------------------------------------------------------------------- */

/* A recording of three segments with ten rounds each. */
static void record_three_segments(void)
{
    lvr_trace_lane *lane = NULL;
    lvr_trace_writer *w = fixture_writer(LVR_TRACE_TIMING, true, &lane);
    for (uint64_t i = 0; i < 3; i++) {
        /* One flush per batch: none while it is put, all of it afterwards. */
        lvr_trace_writer_set_flush_interval(w, UINT64_MAX);
        fixture_put_rounds(lane, i + 1, 10 * i, 10, true);
        usleep(50000);
        lvr_trace_writer_set_flush_interval(w, 0);
        fixture_wait_for_rounds(10 * (i + 1));
    }
    fixture_close(w, false);
}

static unsigned count_segments(void)
{
    unsigned n = 0;
    for (char path[192];; n++) {
        segment_path(path, sizeof path, n + 1);
        if (access(path, F_OK) != 0)
            return n;
    }
}

static void flip_byte(const char *path, off_t at)
{
    char c = 0;
    const int fd = open(path, O_RDWR);
    cr_assert_geq(fd, 0);
    cr_assert_eq(pread(fd, &c, 1, at), 1);
    c ^= 0x10;
    cr_assert_eq(pwrite(fd, &c, 1, at), 1);
    close(fd);
}

static uint64_t rounds_now(void)
{
    lvr_trace *t = fixture_open();
    const uint64_t n = lvr_trace_rows(t, LVR_STREAM_ROUNDS);
    lvr_trace_close(t);
    return n;
}

Test(incomplete, a_damaged_segment_ends_the_trace)
{
    char path[192];
    record_three_segments();
    cr_assert_eq(rounds_now(), 30);
    const unsigned n = count_segments();
    cr_assert_geq(n, 3);
    uint64_t before = 30;
    for (unsigned i = n; i > 0; i--) {
        logged[0] = '\0';
        segment_path(path, sizeof path, i);
        flip_byte(path, 3000);
        const uint64_t rounds = rounds_now();
        cr_assert_leq(rounds, before);
        cr_assert_not_null(strstr(logged, "read up to the segment before it"));
        before = rounds;
    }
    cr_assert_eq(before, 0);
}

Test(incomplete, a_gap_ends_the_trace)
{
    char path[192];
    record_three_segments();
    segment_path(path, sizeof path, 2);
    cr_assert_eq(unlink(path), 0);
    cr_assert_leq(rounds_now(), 10);
}

Test(incomplete, segments_of_another_recording_are_not_read)
{
    char from[192], to[192];
    record_three_segments();
    segment_path(from, sizeof from, 1);
    snprintf(to, sizeof to, "%s/kept.h5", fixture_dir);
    cr_assert_eq(rename(from, to), 0);
    record_three_segments();
    cr_assert_eq(rename(to, from), 0);
    cr_assert_eq(rounds_now(), 0);
}

Test(incomplete, a_segment_is_not_a_trace)
{
    lvr_trace *t = NULL;
    lvr_error err = LVR_ERROR_INIT;
    char path[192];
    record_three_segments();
    segment_path(path, sizeof path, 1);
    cr_assert_eq(lvr_trace_open(path, &t, &err), LVR_ERR_FORMAT);
    cr_assert_not_null(strstr(err.msg, "found segment 1"));
}

Test(incomplete, a_leftover_folder_of_a_complete_trace_is_ignored)
{
    char folder[192], aside[192], command[512];
    record_three_segments();
    snprintf(folder, sizeof folder, "%s.d", fixture_path);
    snprintf(aside, sizeof aside, "%s/aside", fixture_dir);
    cr_assert_eq(rename(folder, aside), 0);
    lvr_trace_lane *lane = NULL;
    lvr_trace_writer *w = fixture_writer(LVR_TRACE_TIMING, true, &lane);
    fixture_put_rounds(lane, 1, 0, 7, true);
    fixture_close(w, true);
    cr_assert_eq(rename(aside, folder), 0);
    cr_assert_eq(rounds_now(), 7);
    /* The next recording clears it away. */
    fixture_close(fixture_writer(LVR_TRACE_TIMING, true, &lane), true);
    cr_assert_neq(access(folder, F_OK), 0);
    snprintf(command, sizeof command, "ls -A '%s' | wc -l | grep -qx 1", fixture_dir);
    cr_assert_eq(system(command), 0, "nothing but the trace is left");
}

Test(incomplete, a_folder_without_a_trace_is_no_trace)
{
    lvr_trace *t = NULL;
    lvr_error err = LVR_ERROR_INIT;
    record_three_segments();
    cr_assert_eq(unlink(fixture_path), 0);
    cr_assert_eq(lvr_trace_open(fixture_path, &t, &err), LVR_ERR_IO);
    cr_assert_not_null(strstr(err.msg, "no such trace"));
}

Test(incomplete, drops_and_domains_of_the_last_segment_count)
{
    lvr_trace_lane *lane = NULL, *small = NULL;
    lvr_trace_writer *w = fixture_writer(LVR_TRACE_TIMING, false, &lane);
    cr_assert_eq(lvr_trace_lane_new(w, 1, &small, NULL), LVR_OK);
    lvr_trace_domain(w, "late");
    const lvr_rec_kernel row = {.rows = 1};
    for (int i = 0; i < 10000; i++)
        lvr_trace_put(small, LVR_STREAM_KERNELS, &row);
    fixture_close(w, false);
    lvr_trace *t = fixture_open();
    cr_assert_gt(lvr_trace_get_meta(t)->dropped[LVR_STREAM_KERNELS], 0);
    cr_assert_eq(lvr_trace_get_meta(t)->n_domains, 3);
    cr_assert_not_null(strstr(logged, "dropped"));
    lvr_trace_close(t);
}
