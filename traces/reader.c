/*
 * Opening traces and reading rows. A complete trace is one file; an incomplete one is a file without rows and
 * the segments of its recording beside it, as many as are whole and numbered without a gap.
 */
#include "common/log.h"
#include "traces/segments.h"
#include "traces/stream_io.h"
#include "traces/trace_parts.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STEP_ROWS 8192u

/* ---- parts
 * -----------------------------------------------------------------------------------------------------------------
 */

static lvr_status count_streams(hid_t h5, const char *path, uint64_t *ret_rows, lvr_error *err)
{
    for (int s = 0; s < LVR_STREAM_COUNT; s++) {
        hid_t dset = -1;
        ret_rows[s] = 0;
        if (!lvr_stream_exists(h5, (lvr_stream)s))
            continue;
        const lvr_status st = lvr_stream_open(h5, (lvr_stream)s, path, &dset, &ret_rows[s], err);
        if (st != LVR_OK)
            return st;
        H5Dclose(dset);
    }
    return LVR_OK;
}

static bool reserve_part(lvr_trace *t)
{
    if (t->n_parts < t->parts_cap)
        return true;
    const size_t cap = t->parts_cap ? t->parts_cap * 2 : 8;
    lvr_trace_part *parts = realloc(t->parts, cap * sizeof *parts);
    if (!parts)
        return false;
    t->parts = parts;
    t->parts_cap = cap;
    return true;
}

static lvr_status add_part(lvr_trace *t, const char *path, const uint64_t *rows, lvr_error *err)
{
    char *copy = strdup(path);
    if (!copy || !reserve_part(t)) {
        free(copy);
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory", path);
    }
    lvr_trace_part *part = &t->parts[t->n_parts];
    part->path = copy;
    for (int s = 0; s < LVR_STREAM_COUNT; s++) {
        part->first[s] = t->n_parts ? part[-1].first[s] + part[-1].rows[s] : 0;
        part->rows[s] = rows[s];
    }
    t->n_parts++;
    return LVR_OK;
}

uint64_t lvr_trace_raw_rows(const lvr_trace *t, lvr_stream stream)
{
    const lvr_trace_part *last = &t->parts[t->n_parts - 1];
    return last->first[stream] + last->rows[stream];
}

static lvr_status check_required(hid_t h5, const lvr_trace_meta *meta, const char *path, lvr_error *err)
{
    for (int s = 0; s < LVR_STREAM_COUNT; s++) {
        if (lvr_stream_required(meta->kind, (lvr_stream)s) && !lvr_stream_exists(h5, (lvr_stream)s))
            return lvr_fail(err, LVR_ERR_FORMAT,
                            "%s: expected a dataset %s in a trace of kind %s, found none", path,
                            lvr_stream_describe((lvr_stream)s)->name, lvr_trace_kind_name(meta->kind));
    }
    return LVR_OK;
}

static lvr_status read_base(lvr_trace *t, lvr_error *err)
{
    uint64_t rows[LVR_STREAM_COUNT];
    lvr_status st = lvr_sealed_open(t->path, &t->open, err);
    if (st != LVR_OK)
        return st;
    if (lvr_sealed_id(t->open).segment != 0)
        return lvr_fail(err, LVR_ERR_FORMAT,
                        "%s: expected a trace, found segment %" PRIu32
                        " of an unfinished recording; open the .h5 file beside the folder",
                        t->path, lvr_sealed_id(t->open).segment);
    const lvr_h5_guard guard = lvr_h5_enter();
    const hid_t h5 = lvr_sealed_h5(t->open);
    st = lvr_meta_read(h5, t->path, &t->meta, &t->clocks, err);
    if (st == LVR_OK)
        st = check_required(h5, &t->meta, t->path, err);
    if (st == LVR_OK)
        st = count_streams(h5, t->path, rows, err);
    lvr_h5_leave(guard);
    return st == LVR_OK ? add_part(t, t->path, rows, err) : st;
}

/* What a segment knows better than the file written at the start. */
static void take_newer(lvr_trace *t, const lvr_trace_meta *meta, lvr_clock_list *clocks)
{
    memcpy(t->meta.dropped, meta->dropped, sizeof meta->dropped);
    memcpy(t->meta.domains, meta->domains, sizeof meta->domains);
    t->meta.n_domains = meta->n_domains;
    t->meta.recorder_overhead_pct = meta->recorder_overhead_pct;
    const lvr_clock_list old = t->clocks;
    t->clocks = *clocks;
    *clocks = old;
}

static lvr_status read_segment_file(lvr_trace *t, const lvr_sealed_file *f, lvr_error *err)
{
    uint64_t rows[LVR_STREAM_COUNT];
    lvr_clock_list clocks = {0};
    const char *path = lvr_sealed_path(f);
    lvr_trace_meta *meta = calloc(1, sizeof *meta);
    if (!meta)
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory", path);
    const lvr_h5_guard guard = lvr_h5_enter();
    lvr_status st = lvr_meta_read(lvr_sealed_h5(f), path, meta, &clocks, err);
    if (st == LVR_OK)
        st = count_streams(lvr_sealed_h5(f), path, rows, err);
    lvr_h5_leave(guard);
    if (st == LVR_OK)
        st = add_part(t, path, rows, err);
    if (st == LVR_OK)
        take_newer(t, meta, &clocks);
    free(meta->config_yaml);
    free(meta);
    free(clocks.items);
    return st;
}

/* Adds segment `number`; *ret_end is set, with LVR_OK, where the recording's whole segments end. */
static lvr_status read_segment(lvr_trace *t, const char *folder, uint32_t number, bool *ret_end,
                               lvr_error *err)
{
    lvr_sealed_file *f = NULL;
    lvr_error why = LVR_ERROR_INIT;
    char *path = lvr_segment_path(folder, number);
    if (!path)
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory", folder);
    const bool there = access(path, F_OK) == 0;
    lvr_status st = there ? lvr_sealed_open(path, &f, &why) : LVR_OK;
    free(path);
    if (!there || st == LVR_ERR_FORMAT) {
        if (there)
            lvr_log(LVR_LOG_WARN, "%s; the trace is read up to the segment before it", why.msg);
        *ret_end = true;
        return LVR_OK;
    }
    if (st != LVR_OK)
        return lvr_fail(err, st, "%s", why.msg);
    const lvr_seal_id id = lvr_sealed_id(f);
    const lvr_seal_id base = lvr_sealed_id(t->open);
    *ret_end = id.recording != base.recording || id.segment != number;
    if (!*ret_end)
        st = read_segment_file(t, f, err);
    lvr_sealed_close(f);
    return st;
}

static lvr_status read_segments(lvr_trace *t, lvr_error *err)
{
    char *folder = lvr_segments_folder(t->path);
    if (!folder)
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory", t->path);
    lvr_status st = LVR_OK;
    bool end = false;
    for (uint32_t number = 1; st == LVR_OK && !end && number < UINT32_MAX; number++)
        st = read_segment(t, folder, number, &end, err);
    free(folder);
    return st;
}

/* ---- opening and closing
 * ------------------------------------------------------------------------------------------------------ */

lvr_status lvr_kept_add(lvr_kept_rows *kept, uint64_t first, uint64_t n, lvr_error *err)
{
    lvr_row_run *last = kept->n ? &kept->runs[kept->n - 1] : NULL;
    if (n == 0)
        return LVR_OK;
    kept->rows += n;
    if (last && last->first + last->n == first) {
        last->n += n;
        return LVR_OK;
    }
    if (kept->n == kept->cap) {
        const size_t cap = kept->cap ? kept->cap * 2 : 4;
        lvr_row_run *runs = realloc(kept->runs, cap * sizeof *runs);
        if (!runs)
            return lvr_fail(err, LVR_ERR_NOMEM, "out of memory for the kept rows of an incomplete trace");
        kept->runs = runs;
        kept->cap = cap;
    }
    kept->runs[kept->n++] = (lvr_row_run){first, n};
    return LVR_OK;
}

static lvr_status keep_all(lvr_trace *t, lvr_error *err)
{
    lvr_status st = LVR_OK;
    for (int s = 0; s < LVR_STREAM_COUNT && st == LVR_OK; s++)
        st = lvr_kept_add(&t->kept[s], 0, lvr_trace_raw_rows(t, (lvr_stream)s), err);
    return st;
}

static void warn_of_drops(const lvr_trace *t)
{
    uint64_t dropped = 0;
    for (int s = 0; s < LVR_STREAM_COUNT; s++)
        dropped += t->meta.dropped[s];
    if (dropped > 0)
        lvr_log(LVR_LOG_WARN,
                "%s: the recorder dropped %" PRIu64 " records; results from this trace miss them", t->path,
                dropped);
}

static lvr_status open_trace(lvr_trace *t, lvr_error *err)
{
    lvr_status st = read_base(t, err);
    if (st == LVR_OK && !t->meta.complete)
        st = read_segments(t, err);
    if (st == LVR_OK)
        st = t->meta.complete ? keep_all(t, err) : lvr_trace_cut(t, err);
    if (st == LVR_OK)
        warn_of_drops(t);
    return st;
}

lvr_status lvr_trace_open(const char *path, lvr_trace **ret, lvr_error *err)
{
    lvr_trace *t = calloc(1, sizeof *t);
    char *copy = strdup(path);
    if (!t || !copy) {
        free(t);
        free(copy);
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory", path);
    }
    t->path = copy;
    const lvr_status st = open_trace(t, err);
    if (st != LVR_OK) {
        lvr_trace_close(t);
        return st;
    }
    *ret = t;
    return LVR_OK;
}

void lvr_trace_close(lvr_trace *t)
{
    if (!t)
        return;
    lvr_sealed_close(t->open);
    for (size_t i = 0; i < t->n_parts; i++)
        free(t->parts[i].path);
    for (int s = 0; s < LVR_STREAM_COUNT; s++)
        free(t->kept[s].runs);
    free(t->parts);
    free(t->clocks.items);
    free(t->meta.config_yaml);
    free(t->path);
    free(t);
}

const lvr_trace_meta *lvr_trace_get_meta(const lvr_trace *t)
{
    return &t->meta;
}

const char *lvr_trace_path(const lvr_trace *t)
{
    return t->path;
}

uint64_t lvr_trace_rows(const lvr_trace *t, lvr_stream stream)
{
    return t->kept[stream].rows;
}

uint64_t lvr_trace_duration_ns(const lvr_trace *t)
{
    const lvr_clock_list *c = &t->clocks;
    if (c->n < 2 || c->items[c->n - 1].raw_ns < c->items[0].raw_ns)
        return 0;
    return c->items[c->n - 1].raw_ns - c->items[0].raw_ns;
}

/* ---- rows
 * -------------------------------------------------------------------------------------------------------------------
 */

static lvr_status switch_part(lvr_trace *t, size_t part, lvr_error *err)
{
    lvr_sealed_file *f = NULL;
    if (t->open_part == part)
        return LVR_OK;
    const lvr_status st = lvr_sealed_open(t->parts[part].path, &f, err);
    if (st != LVR_OK)
        return st;
    lvr_sealed_close(t->open);
    t->open = f;
    t->open_part = part;
    return LVR_OK;
}

static lvr_status read_part(lvr_trace *t, size_t part, lvr_stream stream, uint64_t first, uint64_t n,
                            void *records, lvr_error *err)
{
    const char *path = t->parts[part].path;
    hid_t dset = -1;
    uint64_t rows = 0;
    lvr_status st = switch_part(t, part, err);
    if (st != LVR_OK)
        return st;
    const lvr_h5_guard guard = lvr_h5_enter();
    st = lvr_stream_open(lvr_sealed_h5(t->open), stream, path, &dset, &rows, err);
    if (st == LVR_OK && (rows != t->parts[part].rows[stream] || first > rows || n > rows - first))
        st = lvr_fail(err, LVR_ERR_FORMAT, "%s: %s changed while it was being read", path,
                      lvr_stream_describe(stream)->name);
    if (st == LVR_OK)
        st = lvr_stream_read(dset, stream, first, n, records, path, err);
    if (dset >= 0)
        H5Dclose(dset);
    lvr_h5_leave(guard);
    return st;
}

lvr_status lvr_trace_read_raw(lvr_trace *t, lvr_stream stream, uint64_t first, uint64_t n, void *records,
                              lvr_error *err)
{
    const size_t bytes = lvr_stream_describe(stream)->record_bytes;
    char *to = records;
    for (size_t i = 0; i < t->n_parts && n > 0; i++) {
        const lvr_trace_part *part = &t->parts[i];
        const uint64_t end = part->first[stream] + part->rows[stream];
        if (first >= end)
            continue;
        const uint64_t take = n < end - first ? n : end - first;
        const lvr_status st = read_part(t, i, stream, first - part->first[stream], take, to, err);
        if (st != LVR_OK)
            return st;
        first += take;
        n -= take;
        to += take * bytes;
    }
    return LVR_OK;
}

static lvr_status read_kept(lvr_trace *t, lvr_stream stream, uint64_t first, uint64_t n, void *records,
                            lvr_error *err)
{
    const lvr_kept_rows *kept = &t->kept[stream];
    const size_t bytes = lvr_stream_describe(stream)->record_bytes;
    char *to = records;
    uint64_t run_first = 0;
    for (size_t i = 0; i < kept->n && n > 0; i++) {
        const lvr_row_run *run = &kept->runs[i];
        if (first < run_first + run->n) {
            const uint64_t skip = first - run_first;
            const uint64_t take = n < run->n - skip ? n : run->n - skip;
            const lvr_status st = lvr_trace_read_raw(t, stream, run->first + skip, take, to, err);
            if (st != LVR_OK)
                return st;
            first += take;
            n -= take;
            to += take * bytes;
        }
        run_first += run->n;
    }
    return LVR_OK;
}

lvr_status lvr_trace_read(lvr_trace *t, lvr_stream stream, uint64_t first, uint64_t n, void *records,
                          lvr_error *err)
{
    const uint64_t rows = lvr_trace_rows(t, stream);
    if (first > rows || n > rows - first)
        return lvr_fail(err, LVR_ERR_FORMAT,
                        "%s: %s has %" PRIu64 " rows; %" PRIu64 " rows from %" PRIu64 " were asked for",
                        t->path, lvr_stream_describe(stream)->name, rows, n, first);
    return read_kept(t, stream, first, n, records, err);
}

lvr_status lvr_trace_read_all(lvr_trace *t, lvr_stream stream, void **ret_records, uint64_t *ret_n,
                              lvr_error *err)
{
    const uint64_t max_bytes = (uint64_t)1 << 31;
    const lvr_stream_desc *desc = lvr_stream_describe(stream);
    const uint64_t rows = lvr_trace_rows(t, stream);
    if (rows > max_bytes / desc->record_bytes)
        return lvr_fail(err, LVR_ERR_UNSUPPORTED,
                        "%s: %s has %" PRIu64 " rows, more than fit 2 GiB; record fewer prompts per trace",
                        t->path, desc->name, rows);
    void *records = malloc(rows ? (size_t)rows * desc->record_bytes : 1);
    if (!records)
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory for %" PRIu64 " rows of %s", t->path, rows,
                        desc->name);
    const lvr_status st = lvr_trace_read(t, stream, 0, rows, records, err);
    if (st != LVR_OK) {
        free(records);
        return st;
    }
    *ret_records = records;
    *ret_n = rows;
    return LVR_OK;
}

lvr_status lvr_trace_for_rows(lvr_trace *t, lvr_stream stream, lvr_rows_fn fn, void *arg, lvr_error *err)
{
    const uint64_t rows = lvr_trace_rows(t, stream);
    void *records = malloc((size_t)STEP_ROWS * lvr_stream_describe(stream)->record_bytes);
    if (!records)
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory for rows", t->path);
    lvr_status st = LVR_OK;
    for (uint64_t at = 0; at < rows && st == LVR_OK; at += STEP_ROWS) {
        const uint64_t n = rows - at < STEP_ROWS ? rows - at : STEP_ROWS;
        st = lvr_trace_read(t, stream, at, n, records, err);
        if (st == LVR_OK)
            st = fn(arg, at, n, records, err);
    }
    free(records);
    return st;
}
