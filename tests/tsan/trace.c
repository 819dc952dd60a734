/* The recorder: several threads put into their lanes while the writer thread collects, flushes and is asked
 * for its status; then the file holds every record. */
#include "traces/trace.h"
#include "tests/tsan/tap.h"
#include "traces/recorder.h"
#include <ftw.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N_LANES 3u
#define N_RECORDS 20000u

typedef struct producer {
    pthread_t thread;
    lvr_trace_writer *writer;
    lvr_trace_lane *lane;
    uint32_t index;
    bool failed;
} producer;

static void *produce(void *arg)
{
    producer *p = arg;
    for (uint32_t i = 0; i < N_RECORDS; i++) {
        const lvr_rec_token token = {
            .request = p->index, .pos = i, .token = (int32_t)(i % 4096), .is_output = 1};
        if (lvr_trace_put_wait(p->lane, LVR_STREAM_TOKENS, &token, NULL) != LVR_OK)
            p->failed = true;
        if (i % 1000 == 0 && lvr_trace_writer_status(p->writer, NULL) != LVR_OK)
            p->failed = true;
    }
    return NULL;
}

static bool record(const char *path, bool complete)
{
    lvr_trace_meta meta = {.kind = LVR_TRACE_ORACLE, .version_major = 1};
    lvr_trace_writer *w = NULL;
    lvr_error err = LVR_ERROR_INIT;
    producer producers[N_LANES] = {0};
    char config[] = "{}\n";
    bool good = true;
    strcpy(meta.software, "tests/tsan");
    meta.config_yaml = config;
    if (!tap_status(lvr_trace_writer_open(path, &meta, true, &w, &err), &err, "a writer"))
        return false;
    lvr_trace_writer_set_flush_interval(w, 5000000);
    for (uint32_t i = 0; i < N_LANES; i++) {
        producers[i].writer = w;
        producers[i].index = i;
        if (!tap_status(lvr_trace_lane_new(w, 512, &producers[i].lane, &err), &err, "a lane"))
            good = false;
    }
    lvr_trace_domain(w, "story");
    for (uint32_t i = 0; good && i < N_LANES; i++)
        if (pthread_create(&producers[i].thread, NULL, produce, &producers[i]) != 0)
            abort();
    if (good) {
        lvr_trace_domain(w, "code");
        lvr_trace_set_overhead(w, 0.5);
        for (uint32_t i = 0; i < N_LANES; i++) {
            pthread_join(producers[i].thread, NULL);
            good &= !producers[i].failed;
        }
        tap_ok(good, "every record was taken");
    }
    return tap_status(lvr_trace_writer_close(w, complete, &err), &err, "closes") && good;
}

/* Full rings count; what was not dropped is in the file. */
static void check_drops(const char *path)
{
    lvr_trace_meta meta = {.kind = LVR_TRACE_TIMING, .version_major = 1};
    lvr_trace_writer *w = NULL;
    lvr_trace_lane *lane = NULL;
    lvr_error err = LVR_ERROR_INIT;
    char config[] = "{}\n";
    meta.config_yaml = config;
    if (!tap_status(lvr_trace_writer_open(path, &meta, true, &w, &err), &err, "a writer") ||
        !tap_status(lvr_trace_lane_new(w, 4, &lane, &err), &err, "a small lane"))
        return;
    for (uint32_t i = 0; i < N_RECORDS; i++) {
        const lvr_rec_token token = {.request = 1, .pos = i};
        lvr_trace_put(lane, LVR_STREAM_TOKENS, &token);
    }
    tap_status(lvr_trace_writer_close(w, true, &err), &err, "closes after drops");
    lvr_trace *t = NULL;
    if (tap_status(lvr_trace_open(path, &t, &err), &err, "opens after drops")) {
        const uint64_t rows = lvr_trace_rows(t, LVR_STREAM_TOKENS);
        tap_ok(rows + lvr_trace_get_meta(t)->dropped[LVR_STREAM_TOKENS] == N_RECORDS,
               "written + dropped = put");
        lvr_trace_close(t);
    }
}

static void check_file(const char *path)
{
    lvr_trace *t = NULL;
    lvr_error err = LVR_ERROR_INIT;
    void *rows = NULL;
    uint64_t n = 0;
    uint32_t next[N_LANES] = {0};
    bool in_order = true;
    if (!tap_status(lvr_trace_open(path, &t, &err), &err, "the trace opens"))
        return;
    if (tap_status(lvr_trace_read_all(t, LVR_STREAM_TOKENS, &rows, &n, &err), &err, "its tokens"))
        for (uint64_t i = 0; i < n; i++) {
            const lvr_rec_token *token = (const lvr_rec_token *)rows + i;
            in_order &= token->request < N_LANES && token->pos == next[token->request % N_LANES]++;
        }
    tap_ok(n == N_LANES * N_RECORDS && in_order, "every record once, each lane in order");
    free(rows);
    lvr_trace_close(t);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st, (void)type, (void)at;
    return remove(path);
}

int main(void)
{
    char folder[] = "lvr-tsan-trace-XXXXXX", path[64];
    if (!tap_ok(mkdtemp(folder) != NULL, "a folder"))
        return tap_done();
    snprintf(path, sizeof path, "%s/whole.h5", folder);
    if (record(path, true))
        check_file(path);
    snprintf(path, sizeof path, "%s/drops.h5", folder);
    check_drops(path);
    snprintf(path, sizeof path, "%s/cut.h5", folder);
    record(path, false);
    tap_ok(nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS) == 0, "cleans up");
    return tap_done();
}
