/*
 * The program that trace_kill.py kills, and the reader it asks afterwards.
 *   record PATH   three batches of rounds, each waited for until it is flushed; a line "flushed N" follows
 * each, then "complete N" check PATH    opens what is left, compares every row with what was recorded, prints
 * "N complete" or "N incomplete"
 */
#include "traces/recorder.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { BATCHES = 3, ROUNDS_PER_BATCH = 4, NODES = 3, READS = 2 };

static lvr_rec_round_node node_of(uint64_t round, uint32_t node)
{
    return (lvr_rec_round_node){.request = 1,
                                .round = round,
                                .node = node,
                                .parent = node ? 0 : -1,
                                .token = (int32_t)(round * 10 + node)};
}

static lvr_rec_flash read_of(uint64_t round, uint32_t slice)
{
    return (lvr_rec_flash){.round = round, .slice = slice, .bytes = 4096 + round, .queue_depth = 1};
}

static lvr_rec_kernel kernel_of(uint64_t round)
{
    return (lvr_rec_kernel){.round = round, .rows = NODES, .t_end_ns = round};
}

static lvr_rec_round round_of(uint64_t round)
{
    return (lvr_rec_round){.request = 1,
                           .round = round,
                           .pos = (uint32_t)round,
                           .n_nodes = NODES,
                           .n_kept = NODES,
                           .t_commit_ns = round};
}

/* Without the program's own output being counted by the shim. */
static void say(const char *what, uint64_t n)
{
    char line[64];
    const int bytes = snprintf(line, sizeof line, "%s %lu\n", what, (unsigned long)n);
    syscall(SYS_write, STDOUT_FILENO, line, (size_t)bytes);
}

static int fail(const lvr_error *err)
{
    fprintf(stderr, "%s\n", err->msg);
    return 1;
}

static void put_round(lvr_trace_lane *lane, uint64_t round)
{
    for (uint32_t i = 0; i < READS; i++) {
        const lvr_rec_flash read = read_of(round, i);
        lvr_trace_put(lane, LVR_STREAM_FLASH, &read);
    }
    const lvr_rec_kernel kernel = kernel_of(round);
    lvr_trace_put(lane, LVR_STREAM_KERNELS, &kernel);
    for (uint32_t i = 0; i < NODES; i++) {
        const lvr_rec_round_node node = node_of(round, i);
        lvr_trace_put(lane, LVR_STREAM_ROUND_NODES, &node);
    }
    const lvr_rec_round row = round_of(round);
    lvr_trace_put(lane, LVR_STREAM_ROUNDS, &row);
}

static uint64_t rounds_on_disk(const char *path)
{
    lvr_trace *t = NULL;
    if (lvr_trace_open(path, &t, NULL) != LVR_OK)
        return 0;
    const uint64_t n = lvr_trace_rows(t, LVR_STREAM_ROUNDS);
    lvr_trace_close(t);
    return n;
}

static int record(const char *path)
{
    static lvr_trace_meta meta = {.kind = LVR_TRACE_TIMING, .recorder_overhead_pct = 0.5};
    const struct timespec pause = {0, 1000000};
    lvr_trace_writer *w = NULL;
    lvr_trace_lane *lane = NULL;
    lvr_error err = LVR_ERROR_INIT;
    if (lvr_trace_writer_open(path, &meta, true, &w, &err) != LVR_OK ||
        lvr_trace_lane_new(w, 1024, &lane, &err) != LVR_OK)
        return fail(&err);
    lvr_trace_writer_set_flush_interval(w, 0);
    uint64_t n = 0;
    for (int batch = 0; batch < BATCHES; batch++) {
        for (int i = 0; i < ROUNDS_PER_BATCH; i++)
            put_round(lane, n++);
        while (rounds_on_disk(path) < n) {
            if (lvr_trace_writer_status(w, &err) != LVR_OK)
                return fail(&err);
            nanosleep(&pause, NULL);
        }
        say("flushed", n);
    }
    if (lvr_trace_writer_close(w, true, &err) != LVR_OK)
        return fail(&err);
    say("complete", n);
    return 0;
}

/* All rows of a stream, `per_round` a round and those of n rounds exactly. */
static bool read_stream(lvr_trace *t, lvr_stream stream, uint64_t expected, void **ret_rows)
{
    uint64_t n = 0;
    lvr_error err = LVR_ERROR_INIT;
    if (lvr_trace_read_all(t, stream, ret_rows, &n, &err) != LVR_OK) {
        fprintf(stderr, "%s\n", err.msg);
        return false;
    }
    if (n == expected)
        return true;
    fprintf(stderr, "%s: %lu rows, expected %lu\n", lvr_stream_describe(stream)->name, (unsigned long)n,
            (unsigned long)expected);
    return false;
}

static bool rows_as_recorded(uint64_t n, const lvr_rec_round *rounds, const lvr_rec_round_node *nodes,
                             const lvr_rec_flash *reads, const lvr_rec_kernel *kernels)
{
    for (uint64_t r = 0; r < n; r++) {
        const lvr_rec_round round = round_of(r);
        const lvr_rec_kernel kernel = kernel_of(r);
        if (memcmp(&rounds[r], &round, sizeof round) != 0 || memcmp(&kernels[r], &kernel, sizeof kernel) != 0)
            return false;
        for (uint32_t i = 0; i < NODES; i++) {
            const lvr_rec_round_node node = node_of(r, i);
            if (memcmp(&nodes[r * NODES + i], &node, sizeof node) != 0)
                return false;
        }
        for (uint32_t i = 0; i < READS; i++) {
            const lvr_rec_flash read = read_of(r, i);
            if (memcmp(&reads[r * READS + i], &read, sizeof read) != 0)
                return false;
        }
    }
    return true;
}

static bool check_rows(lvr_trace *t)
{
    const uint64_t n = lvr_trace_rows(t, LVR_STREAM_ROUNDS);
    void *rounds = NULL, *nodes = NULL, *reads = NULL, *kernels = NULL;
    bool good = read_stream(t, LVR_STREAM_ROUNDS, n, &rounds) &&
                read_stream(t, LVR_STREAM_ROUND_NODES, n * NODES, &nodes) &&
                read_stream(t, LVR_STREAM_FLASH, n * READS, &reads) &&
                read_stream(t, LVR_STREAM_KERNELS, n, &kernels);
    if (good && !rows_as_recorded(n, rounds, nodes, reads, kernels)) {
        fprintf(stderr, "rows differ from what was recorded\n");
        good = false;
    }
    free(rounds);
    free(nodes);
    free(reads);
    free(kernels);
    return good;
}

static int check(const char *path)
{
    lvr_trace *t = NULL;
    lvr_error err = LVR_ERROR_INIT;
    if (lvr_trace_open(path, &t, &err) != LVR_OK)
        return fail(&err);
    const bool good = check_rows(t);
    printf("%lu %s\n", (unsigned long)lvr_trace_rows(t, LVR_STREAM_ROUNDS),
           lvr_trace_get_meta(t)->complete ? "complete" : "incomplete");
    lvr_trace_close(t);
    return good ? 0 : 1;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "record") == 0)
        return record(argv[2]);
    if (argc == 3 && strcmp(argv[1], "check") == 0)
        return check(argv[2]);
    fprintf(stderr, "usage: %s record|check PATH\n", argv[0]);
    return 2;
}
