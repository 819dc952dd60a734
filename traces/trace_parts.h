/* The reader's insides, shared by reader.c (files and rows) and cut.c (where an incomplete recording ends).
 */
#ifndef LVR_TRACES_TRACE_PARTS_H
#define LVR_TRACES_TRACE_PARTS_H

#include "traces/meta_io.h"
#include "traces/sealed_file.h"
#include "traces/trace.h"

/* One file: the trace itself, or a segment. */
typedef struct lvr_trace_part {
    char *path;
    uint64_t first[LVR_STREAM_COUNT], rows[LVR_STREAM_COUNT]; /* among the rows of all parts */
} lvr_trace_part;

/* Rows kept by the cut, as numbers among the rows of all parts. */
typedef struct lvr_row_run {
    uint64_t first, n;
} lvr_row_run;

typedef struct lvr_kept_rows {
    lvr_row_run *runs;
    size_t n, cap;
    uint64_t rows; /* sum of all runs */
} lvr_kept_rows;

struct lvr_trace {
    char *path;
    lvr_trace_meta meta;
    lvr_clock_list clocks;
    lvr_trace_part *parts;
    size_t n_parts, parts_cap;
    lvr_kept_rows kept[LVR_STREAM_COUNT];
    size_t open_part; /* which of them `open` is */
    lvr_sealed_file *open;
};

/* Rows [first, first + n) of all parts, before any cut. */
lvr_status lvr_trace_read_raw(lvr_trace *t, lvr_stream stream, uint64_t first, uint64_t n, void *records,
                              lvr_error *err);
uint64_t lvr_trace_raw_rows(const lvr_trace *t, lvr_stream stream);
lvr_status lvr_kept_add(lvr_kept_rows *kept, uint64_t first, uint64_t n, lvr_error *err);

/* cut.c: fills kept[] of an incomplete trace and logs a warning. */
lvr_status lvr_trace_cut(lvr_trace *t, lvr_error *err);

/* Calls fn for blocks of rows in order, after the cut. fn returns an error to stop. */
typedef lvr_status (*lvr_rows_fn)(void *arg, uint64_t first, uint64_t n, const void *records, lvr_error *err);
lvr_status lvr_trace_for_rows(lvr_trace *t, lvr_stream stream, lvr_rows_fn fn, void *arg, lvr_error *err);

/* Nanoseconds between the first and the last reading of the clocks. */
uint64_t lvr_trace_duration_ns(const lvr_trace *t);

#endif
