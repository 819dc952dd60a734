/*
 * A recording's files, from opening to closing.
 *
 *   nothing --lvr_trace_writer_open--> NAME.h5 (complete 0, no rows) + NAME.h5.d/
 *           --write_segment----------> one more NAME.h5.d/00000N.h5
 *           --close(complete)--------> NAME.h5 (complete 1, all rows), folder removed
 *
 * Invariants at every moment, also between any two system calls:
 * 1. NAME.h5 is absent, an older trace, or a whole file of this recording: it only ever changes by a rename.
 * 2. Segments 1..n are whole files, numbered without gaps; while stale ones are removed they stay a prefix.
 * 3. A segment counts only if it carries the recording number of NAME.h5.
 */
#include "common/clock.h"
#include "common/log.h"
#include "common/rng.h"
#include "traces/recorder.h"
#include "traces/sealed_file.h"
#include "traces/segments.h"
#include "traces/stream_io.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Half a second below the promised two: writing takes time too. */
#define FLUSH_NS 1500000000u

/* ---- files of the recording
 * ------------------------------------------------------------------------------------------------ */

static lvr_status write_streams(lvr_sealed_file *f, lvr_trace_kind kind, const lvr_batch *batches,
                                bool describe, lvr_error *err)
{
    const char *path = lvr_sealed_path(f);
    for (int s = 0; s < LVR_STREAM_COUNT; s++) {
        const lvr_stream_layout layout = {batches[s].n, false, describe};
        hid_t dset = -1;
        if (layout.rows == 0 && !(describe && lvr_stream_required(kind, (lvr_stream)s)))
            continue;
        lvr_status st = lvr_stream_create(lvr_sealed_h5(f), (lvr_stream)s, &layout, path, &dset, err);
        if (st != LVR_OK)
            return st;
        st = lvr_stream_write(dset, (lvr_stream)s, 0, batches[s].n, batches[s].rows, path, err);
        H5Dclose(dset);
        if (st != LVR_OK)
            return st;
    }
    return LVR_OK;
}

/* `full`: the trace itself (segment 0); else a segment with root attributes only. */
static lvr_status write_file(lvr_trace_writer *w, uint32_t segment, const char *final_path,
                             const lvr_trace_meta *meta, const lvr_batch *batches, lvr_error *err)
{
    const bool full = segment == 0;
    lvr_sealed_file *f = NULL;
    lvr_status st = lvr_sealed_create(w->temp, (lvr_seal_id){w->recording, segment}, &f, err);
    if (st != LVR_OK)
        return st;
    const lvr_h5_guard guard = lvr_h5_enter();
    st = lvr_meta_write(lvr_sealed_h5(f), meta, full, &w->clocks, w->temp, err);
    if (st == LVR_OK)
        st = write_streams(f, meta->kind, batches, full, err);
    lvr_h5_leave(guard);
    if (st == LVR_OK)
        return lvr_sealed_commit(f, final_path, false, err);
    if (lvr_sealed_status(f, NULL) != LVR_OK)
        st = lvr_sealed_status(f, err);
    lvr_sealed_discard(f);
    return st;
}

lvr_status lvr_recorder_write_segment(lvr_trace_writer *w, const lvr_trace_meta *meta, lvr_error *err)
{
    char *path = lvr_segment_path(w->folder, w->n_segments + 1);
    if (!path)
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory", w->folder);
    const lvr_status st = write_file(w, w->n_segments + 1, path, meta, w->batch, err);
    free(path);
    if (st != LVR_OK)
        return st;
    w->n_segments++;
    for (int s = 0; s < LVR_STREAM_COUNT; s++) {
        w->written[s] += w->batch[s].n;
        w->batch[s].n = 0;
    }
    return LVR_OK;
}

static lvr_status write_base(lvr_trace_writer *w, lvr_error *err)
{
    static const lvr_batch none[LVR_STREAM_COUNT];
    return write_file(w, 0, w->path, &w->meta, none, err);
}

/* ---- opening
 * ---------------------------------------------------------------------------------------------------------------
 */

static lvr_status refuse(const char *path, const char *found, lvr_error *err)
{
    return lvr_fail(err, LVR_ERR_CONFIG,
                    "%s: exists and is %s; choose another name, or allow it with --overwrite", path, found);
}

/* An incomplete recording may be started over; anything else at `path` is replaced on demand only. */
static lvr_status check_existing(const char *path, bool overwrite, lvr_error *err)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return errno == ENOENT ? LVR_OK
                               : lvr_fail_errno(err, errno, "%s: cannot look for an existing trace", path);
    if (!S_ISREG(st.st_mode))
        return lvr_fail(err, LVR_ERR_CONFIG, "%s: exists and is not a regular file; choose another name",
                        path);
    if (overwrite)
        return LVR_OK;
    lvr_sealed_file *f = NULL;
    if (lvr_sealed_open(path, &f, NULL) != LVR_OK)
        return refuse(path, "not an intact trace", err);
    lvr_trace_meta *meta = calloc(1, sizeof *meta);
    lvr_clock_list clocks = {0};
    const lvr_h5_guard guard = lvr_h5_enter();
    const bool known = meta && lvr_meta_read(lvr_sealed_h5(f), path, meta, &clocks, NULL) == LVR_OK;
    lvr_h5_leave(guard);
    const bool complete = known && meta->complete;
    if (known)
        free(meta->config_yaml);
    free(meta);
    free(clocks.items);
    lvr_sealed_close(f);
    if (!known)
        return refuse(path, "a trace that this version cannot read", err);
    if (complete)
        return refuse(path, "a complete trace", err);
    lvr_log(LVR_LOG_INFO, "%s: replacing an incomplete recording", path);
    return LVR_OK;
}

/* Makes and locks the folder. Where the file system has no locks, two recorders of one name stay the user's
 * mistake. */
static lvr_status claim_folder(lvr_trace_writer *w, lvr_error *err)
{
    if (mkdir(w->folder, 0777) != 0 && errno != EEXIST)
        return lvr_fail_errno(err, errno, "%s: cannot create the recording's folder", w->folder);
    w->folder_fd = open(w->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (w->folder_fd < 0)
        return lvr_fail_errno(err, errno, "%s: cannot open the recording's folder", w->folder);
    if (flock(w->folder_fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        close(w->folder_fd);
        w->folder_fd = -1;
        return lvr_fail(err, LVR_ERR_CONFIG,
                        "%s: another recording writes to this trace; choose another name", w->path);
    }
    lvr_segments_remove(w->folder);
    return LVR_OK;
}

static void release_folder(lvr_trace_writer *w, bool remove)
{
    if (w->folder_fd < 0)
        return;
    if (remove)
        rmdir(w->folder); /* fails, rightly, if there is something of others in it */
    close(w->folder_fd);
    w->folder_fd = -1;
}

static void fill_created_utc(lvr_trace_meta *meta)
{
    const time_t now = time(NULL);
    struct tm tm;
    if (meta->created_utc[0] || !gmtime_r(&now, &tm))
        return;
    strftime(meta->created_utc, sizeof meta->created_utc, "%Y-%m-%dT%H:%M:%SZ", &tm);
}

static bool copy_meta(lvr_trace_writer *w, const lvr_trace_meta *meta)
{
    w->meta = *meta;
    w->meta.version_major = LVR_TRACE_VERSION_MAJOR;
    w->meta.version_minor = LVR_TRACE_VERSION_MINOR;
    w->meta.complete = false;
    memset(w->meta.dropped, 0, sizeof w->meta.dropped);
    fill_created_utc(&w->meta);
    if (!meta->config_yaml)
        return true;
    w->meta.config_yaml = strdup(meta->config_yaml);
    return w->meta.config_yaml != NULL;
}

static void free_writer(lvr_trace_writer *w)
{
    if (!w)
        return;
    for (lvr_trace_lane *lane = w->lanes; lane;) {
        lvr_trace_lane *const next = lane->next;
        lvr_ring_free(lane->ring);
        free(lane);
        lane = next;
    }
    for (int s = 0; s < LVR_STREAM_COUNT; s++)
        free(w->batch[s].rows);
    free(w->clocks.items);
    free(w->meta.config_yaml);
    free(w->path);
    free(w->folder);
    free(w->temp);
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

static void init_wake(pthread_cond_t *wake)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(wake, &attr);
    pthread_condattr_destroy(&attr);
}

static lvr_trace_writer *new_writer(const char *path, const lvr_trace_meta *meta)
{
    lvr_trace_writer *w = calloc(1, sizeof *w);
    if (!w)
        return NULL;
    pthread_mutex_init(&w->lock, NULL);
    init_wake(&w->wake);
    w->folder_fd = -1;
    atomic_init(&w->flush_ns, FLUSH_NS);
    w->last_flush_ns = lvr_now_ns();
    w->next_clock_ns = w->last_flush_ns + LVR_CLOCK_PAIR_NS;
    w->recording = lvr_mix64(lvr_realtime_ns() ^ ((uint64_t)getpid() << 40));
    w->path = strdup(path);
    w->folder = lvr_segments_folder(path);
    w->temp = w->folder ? lvr_segments_temp_path(w->folder) : NULL;
    if (!copy_meta(w, meta) || !w->path || !w->folder || !w->temp) {
        free_writer(w);
        return NULL;
    }
    return w;
}

static lvr_status start_thread(lvr_trace_writer *w, lvr_error *err)
{
    const int rc = pthread_create(&w->thread, NULL, lvr_recorder_main, w);
    return rc == 0 ? LVR_OK : lvr_fail_errno(err, rc, "%s: cannot start the writer thread", w->path);
}

static lvr_status check_meta(const char *path, const lvr_trace_meta *meta, lvr_error *err)
{
    if (meta->target.n_layers > LVR_TRACE_MAX_LAYERS || meta->draft.n_layers > LVR_TRACE_MAX_LAYERS)
        return lvr_fail(err, LVR_ERR_UNSUPPORTED,
                        "%s: a trace holds models of at most %u layers, found %u and %u", path,
                        LVR_TRACE_MAX_LAYERS, meta->target.n_layers, meta->draft.n_layers);
    if (meta->n_domains > LVR_TRACE_MAX_DOMAINS)
        return lvr_fail(err, LVR_ERR_UNSUPPORTED, "%s: a trace holds at most %u domains, found %u", path,
                        LVR_TRACE_MAX_DOMAINS, meta->n_domains);
    return LVR_OK;
}

lvr_status lvr_trace_writer_open(const char *path, const lvr_trace_meta *meta, bool overwrite,
                                 lvr_trace_writer **ret, lvr_error *err)
{
    lvr_status st = check_meta(path, meta, err);
    if (st == LVR_OK)
        st = check_existing(path, overwrite, err);
    if (st != LVR_OK)
        return st;
    lvr_trace_writer *w = new_writer(path, meta);
    if (!w)
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory", path);
    st = claim_folder(w, err);
    if (st == LVR_OK) {
        lvr_recorder_add_clock(w);
        st = write_base(w, err);
    }
    if (st == LVR_OK)
        st = start_thread(w, err);
    if (st != LVR_OK) {
        release_folder(w, true);
        free_writer(w);
        return st;
    }
    *ret = w;
    return LVR_OK;
}

void lvr_trace_writer_set_flush_interval(lvr_trace_writer *w, uint64_t ns)
{
    atomic_store_explicit(&w->flush_ns, ns, memory_order_relaxed);
}

/* ---- closing
 * ---------------------------------------------------------------------------------------------------------------
 */

static void stop_thread(lvr_trace_writer *w)
{
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
}

static lvr_status merge(lvr_trace_writer *w, lvr_error *err)
{
    lvr_trace_meta *meta = malloc(sizeof *meta);
    if (!meta)
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory for joining the segments", w->path);
    lvr_recorder_add_clock(w);
    lvr_recorder_meta(w, meta);
    meta->complete = true;
    const lvr_merge plan = {.trace_path = w->path,
                            .folder = w->folder,
                            .recording = w->recording,
                            .n_segments = w->n_segments,
                            .rows = w->written,
                            .meta = meta,
                            .clocks = &w->clocks};
    const lvr_status st = lvr_segments_merge(&plan, err);
    free(meta);
    if (st == LVR_OK)
        lvr_segments_remove(w->folder);
    return st;
}

lvr_status lvr_trace_writer_close(lvr_trace_writer *w, bool complete, lvr_error *err)
{
    if (!w)
        return LVR_OK;
    stop_thread(w);
    lvr_status st = lvr_trace_writer_status(w, err);
    const bool joined = st == LVR_OK && complete;
    if (joined)
        st = merge(w, err);
    release_folder(w, joined && st == LVR_OK);
    free_writer(w);
    return st;
}
