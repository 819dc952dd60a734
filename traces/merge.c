#include "traces/meta_io.h"
#include "traces/segments.h"
#include "traces/stream_io.h"
#include "traces/stream_stats.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define STEP_ROWS 4096u

typedef struct merge_state {
    const lvr_merge *plan;
    lvr_sealed_file *out;
    hid_t dset[LVR_STREAM_COUNT];
    uint64_t done[LVR_STREAM_COUNT];
    bool present[LVR_STREAM_COUNT];
    lvr_stream_stats stats[LVR_STREAM_COUNT];
    void *rows; /* STEP_ROWS records */
} merge_state;

static lvr_status create_streams(merge_state *m, lvr_error *err)
{
    const char *path = lvr_sealed_path(m->out);
    lvr_status st = LVR_OK;
    for (int s = 0; s < LVR_STREAM_COUNT && st == LVR_OK; s++) {
        const lvr_stream_layout layout = {m->plan->rows[s], true, true};
        m->present[s] = layout.rows > 0 || lvr_stream_required(m->plan->meta->kind, (lvr_stream)s);
        if (m->present[s])
            st = lvr_stream_create(lvr_sealed_h5(m->out), (lvr_stream)s, &layout, path, &m->dset[s], err);
    }
    return st;
}

static lvr_status copy_rows(merge_state *m, lvr_stream s, hid_t from, uint64_t rows, const char *from_path,
                            lvr_error *err)
{
    if (rows > m->plan->rows[s] - m->done[s])
        return lvr_fail(err, LVR_ERR_FORMAT,
                        "%s: %s: more rows than were recorded; another program wrote here", from_path,
                        lvr_stream_describe(s)->name);
    for (uint64_t at = 0; at < rows; at += STEP_ROWS) {
        const uint64_t n = rows - at < STEP_ROWS ? rows - at : STEP_ROWS;
        lvr_status st = lvr_stream_read(from, s, at, n, m->rows, from_path, err);
        if (st == LVR_OK)
            st = lvr_stream_write(m->dset[s], s, m->done[s], n, m->rows, lvr_sealed_path(m->out), err);
        if (st == LVR_OK)
            st = lvr_sealed_status(m->out, err);
        if (st != LVR_OK)
            return st;
        lvr_stream_stats_add(&m->stats[s], s, m->rows, n);
        m->done[s] += n;
    }
    return LVR_OK;
}

static lvr_status copy_stream(merge_state *m, lvr_stream s, const lvr_sealed_file *segment, lvr_error *err)
{
    hid_t from = -1;
    uint64_t rows = 0;
    const hid_t h5 = lvr_sealed_h5(segment);
    if (!lvr_stream_exists(h5, s))
        return LVR_OK;
    lvr_status st = lvr_stream_open(h5, s, lvr_sealed_path(segment), &from, &rows, err);
    if (st != LVR_OK)
        return st;
    st = copy_rows(m, s, from, rows, lvr_sealed_path(segment), err);
    H5Dclose(from);
    return st;
}

static lvr_status copy_segment(merge_state *m, uint32_t number, lvr_error *err)
{
    lvr_sealed_file *segment = NULL;
    char *path = lvr_segment_path(m->plan->folder, number);
    if (!path)
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory", m->plan->folder);
    lvr_status st = lvr_sealed_open(path, &segment, err);
    free(path);
    if (st != LVR_OK)
        return st;
    const lvr_h5_guard guard = lvr_h5_enter();
    for (int s = 0; s < LVR_STREAM_COUNT && st == LVR_OK; s++)
        st = copy_stream(m, (lvr_stream)s, segment, err);
    lvr_h5_leave(guard);
    lvr_sealed_close(segment);
    return st;
}

static lvr_status check_totals(const merge_state *m, lvr_error *err)
{
    for (int s = 0; s < LVR_STREAM_COUNT; s++) {
        if (m->done[s] != m->plan->rows[s])
            return lvr_fail(err, LVR_ERR_FORMAT,
                            "%s: %s: expected %" PRIu64 " recorded rows in the segments, found %" PRIu64,
                            m->plan->folder, lvr_stream_describe((lvr_stream)s)->name, m->plan->rows[s],
                            m->done[s]);
    }
    return LVR_OK;
}

static lvr_status begin(merge_state *m, lvr_error *err)
{
    const lvr_h5_guard guard = lvr_h5_enter();
    lvr_status st = lvr_meta_write(lvr_sealed_h5(m->out), m->plan->meta, true, m->plan->clocks,
                                   lvr_sealed_path(m->out), err);
    if (st == LVR_OK)
        st = create_streams(m, err);
    lvr_h5_leave(guard);
    return st;
}

static lvr_status end(merge_state *m, lvr_error *err)
{
    const lvr_h5_guard guard = lvr_h5_enter();
    const lvr_status st =
        lvr_stats_write(lvr_sealed_h5(m->out), m->stats, m->present, lvr_sealed_path(m->out), err);
    lvr_h5_leave(guard);
    return st;
}

static void close_streams(merge_state *m)
{
    const lvr_h5_guard guard = lvr_h5_enter();
    for (int s = 0; s < LVR_STREAM_COUNT; s++)
        if (m->dset[s] >= 0)
            H5Dclose(m->dset[s]);
    lvr_h5_leave(guard);
}

static lvr_status merge_into(merge_state *m, lvr_error *err)
{
    lvr_status st = begin(m, err);
    for (uint32_t n = 1; n <= m->plan->n_segments && st == LVR_OK; n++)
        st = copy_segment(m, n, err);
    if (st == LVR_OK)
        st = check_totals(m, err);
    if (st == LVR_OK)
        st = end(m, err);
    close_streams(m);
    /* A full disk is the cause of whatever HDF5 complained about afterwards. */
    if (lvr_sealed_status(m->out, NULL) != LVR_OK)
        return lvr_sealed_status(m->out, err);
    return st;
}

lvr_status lvr_segments_merge(const lvr_merge *plan, lvr_error *err)
{
    char *temp = lvr_segments_temp_path(plan->folder);
    merge_state *m = calloc(1, sizeof *m);
    lvr_status st = LVR_ERR_NOMEM;
    if (m)
        m->rows = malloc((size_t)STEP_ROWS * LVR_RECORD_MAX_BYTES);
    if (!temp || !m || !m->rows) {
        st = lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory for joining the segments", plan->trace_path);
        goto out;
    }
    m->plan = plan;
    for (int s = 0; s < LVR_STREAM_COUNT; s++) {
        m->dset[s] = -1;
        lvr_stream_stats_init(&m->stats[s]);
    }
    st = lvr_sealed_create(temp, (lvr_seal_id){plan->recording, 0}, &m->out, err);
    if (st != LVR_OK)
        goto out;
    st = merge_into(m, err);
    if (st == LVR_OK)
        st = lvr_sealed_commit(m->out, plan->trace_path, true, err);
    else
        lvr_sealed_discard(m->out);
out:
    if (m)
        free(m->rows);
    free(m);
    free(temp);
    return st;
}
