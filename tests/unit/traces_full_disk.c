/* No space left, at whatever byte: the recorder says so, counts what it loses, and what was flushed stays
 * readable. */
#include "tests/unit/traces_fixture.h"
#include <criterion/criterion.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

TestSuite(full_disk, .init = fixture_setup, .fini = fixture_teardown);

/* Puts kernel rows until the writer fails or `limit` rows are put; returns how many were put. */
static uint64_t put_until_failure(lvr_trace_writer *w, lvr_trace_lane *lane, uint64_t limit)
{
    lvr_error err = LVR_ERROR_INIT;
    for (uint64_t i = 0; i < limit; i++) {
        const lvr_rec_bench row = {.n = (uint32_t)i, .rows = 1};
        if (lvr_trace_put_wait(lane, LVR_STREAM_BENCH, &row, &err) == LVR_OK)
            continue;
        cr_assert_eq(err.status, LVR_ERR_IO, "%s", err.msg);
        cr_assert_not_null(strstr(err.msg, fixture_path), "%s", err.msg);
        cr_assert_eq(lvr_trace_writer_status(w, NULL), LVR_ERR_IO);
        return i + 1;
    }
    return limit;
}

static lvr_status open_writer(lvr_trace_writer **ret_writer, lvr_trace_lane **ret_lane, lvr_error *err)
{
    lvr_trace_meta meta;
    fixture_meta(&meta, LVR_TRACE_BENCH);
    const lvr_status st = lvr_trace_writer_open(fixture_path, &meta, true, ret_writer, err);
    if (st != LVR_OK)
        return st;
    lvr_trace_writer_set_flush_interval(*ret_writer, 0);
    cr_assert_eq(lvr_trace_lane_new(*ret_writer, 4096, ret_lane, NULL), LVR_OK);
    return LVR_OK;
}

/* The rows that the trace shows are the first ones; returns their number. */
static uint64_t check_prefix(bool complete)
{
    lvr_trace *t = fixture_open();
    void *all = NULL;
    uint64_t n = 0;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_trace_get_meta(t)->complete, complete);
    cr_assert_eq(lvr_trace_read_all(t, LVR_STREAM_BENCH, &all, &n, &err), LVR_OK, "%s", err.msg);
    const lvr_rec_bench *rows = all;
    for (uint64_t i = 0; i < n; i++)
        cr_assert_eq(rows[i].n, i);
    free(all);
    lvr_trace_close(t);
    return n;
}

/* Rows in segments by now, asked of the files. */
static uint64_t written_rows(void)
{
    lvr_trace *t = fixture_open();
    const uint64_t n = lvr_trace_rows(t, LVR_STREAM_BENCH);
    lvr_trace_close(t);
    return n;
}

/* A kernel that refuses the write beyond a length stands for any failing write, at any place; needs no
 * privileges. */
static void limit_file_size(rlim_t bytes)
{
    const struct rlimit limit = {bytes, RLIM_INFINITY};
    signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

Test(full_disk, writes_refused_at_any_length, .timeout = 120)
{
    bool failed_open = false, failed_segment = false, passed = false;
    for (rlim_t bytes = 256; bytes < 400000; bytes += bytes / 8) {
        lvr_trace_writer *w = NULL;
        lvr_trace_lane *lane = NULL;
        lvr_error err = LVR_ERROR_INIT;
        limit_file_size(bytes);
        if (open_writer(&w, &lane, &err) != LVR_OK) {
            cr_assert_eq(err.status, LVR_ERR_IO, "%s", err.msg);
            cr_assert_neq(access(fixture_path, F_OK), 0, "nothing is left");
            failed_open = true;
            continue;
        }
        const uint64_t n = put_until_failure(w, lane, 20000);
        const bool failed = lvr_trace_writer_status(w, NULL) != LVR_OK;
        const lvr_status st = lvr_trace_writer_close(w, true, &err);
        limit_file_size(RLIM_INFINITY);
        cr_assert(st == LVR_OK || st == LVR_ERR_IO, "%s", err.msg);
        const uint64_t rows = check_prefix(st == LVR_OK);
        cr_assert_leq(rows, n);
        if (st == LVR_OK)
            cr_assert_eq(rows, n);
        failed_segment |= failed;
        passed |= st == LVR_OK;
        unlink(fixture_path);
    }
    cr_assert(failed_open && failed_segment && passed, "the limits went from too small to large enough");
}

/* Segments fit, the joined file does not: the recording stays as it is, incomplete and whole. */
Test(full_disk, joining_refused_at_any_length, .timeout = 120)
{
    const uint64_t n = 10000;
    unsigned failures = 0;
    for (rlim_t bytes = 256; bytes < 400000; bytes += bytes / 3) {
        lvr_trace_writer *w = NULL;
        lvr_trace_lane *lane = NULL;
        lvr_error err = LVR_ERROR_INIT;
        cr_assert_eq(open_writer(&w, &lane, &err), LVR_OK, "%s", err.msg);
        cr_assert_eq(put_until_failure(w, lane, n), n);
        while (written_rows() < n)
            usleep(2000);
        limit_file_size(bytes);
        const lvr_status st = lvr_trace_writer_close(w, true, &err);
        limit_file_size(RLIM_INFINITY);
        cr_assert(st == LVR_OK || st == LVR_ERR_IO, "%s", err.msg);
        cr_assert_eq(check_prefix(st == LVR_OK), n);
        failures += st != LVR_OK;
    }
    cr_assert_geq(failures, 5);
}

Test(full_disk, lost_rows_are_counted_as_dropped)
{
    lvr_trace_writer *w = NULL;
    lvr_trace_lane *lane = NULL;
    lvr_error err = LVR_ERROR_INIT;
    lvr_trace_meta *meta = calloc(1, sizeof *meta);
    limit_file_size(60000);
    cr_assert_eq(open_writer(&w, &lane, &err), LVR_OK, "%s", err.msg);
    /* One flush that cannot succeed. */
    lvr_trace_writer_set_flush_interval(w, UINT64_MAX);
    uint64_t n = 0;
    for (; lvr_trace_writer_status(w, NULL) == LVR_OK && n < 1000000; n++) {
        const lvr_rec_bench row = {.n = (uint32_t)n, .rows = 1};
        lvr_trace_put_wait(lane, LVR_STREAM_BENCH, &row, NULL);
    }
    cr_assert_neq(lvr_trace_writer_status(w, NULL), LVR_OK);
    for (int i = 0; i < 100; i++, n++) {
        const lvr_rec_bench row = {.rows = 1};
        lvr_trace_put(lane, LVR_STREAM_BENCH, &row);
    }
    usleep(50000); /* the writer thread empties the ring every 5 ms */
    lvr_recorder_meta(w, meta);
    const uint64_t dropped = meta->dropped[LVR_STREAM_BENCH];
    free(meta);
    cr_assert_eq(lvr_trace_writer_close(w, true, &err), LVR_ERR_IO);
    limit_file_size(RLIM_INFINITY);
    cr_assert_eq(check_prefix(false) + dropped, n);
}

Test(full_disk, a_full_file_system, .timeout = 60)
{
    if (geteuid() != 0 || unshare(CLONE_NEWNS) != 0)
        cr_skip_test("needs root and mount name spaces to mount a small file system");
    char mount_point[96];
    snprintf(mount_point, sizeof mount_point, "%s/small", fixture_dir);
    cr_assert_eq(mkdir(mount_point, 0700), 0);
    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
    if (mount("tmpfs", mount_point, "tmpfs", 0, "size=1m") != 0)
        cr_skip_test("mounting a tmpfs is not allowed here");
    snprintf(fixture_path, sizeof fixture_path, "%s/t.h5", mount_point);
    lvr_trace_writer *w = NULL;
    lvr_trace_lane *lane = NULL;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(open_writer(&w, &lane, &err), LVR_OK, "%s", err.msg);
    const uint64_t n = put_until_failure(w, lane, 1000000);
    cr_assert_lt(n, 1000000, "1 MiB does not hold a million rows");
    cr_assert_eq(lvr_trace_writer_close(w, true, &err), LVR_ERR_IO);
    cr_assert_not_null(strstr(err.msg, strerror(ENOSPC)), "%s", err.msg);
    const uint64_t rows = check_prefix(false);
    cr_assert_gt(rows, 0);
    cr_assert_lt(rows, n);
    umount2(mount_point, MNT_DETACH);
}
