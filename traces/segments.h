/* Where the parts of a recording that is not finished lie: NAME.h5.d/000001.h5 and so on, next to NAME.h5. */
#ifndef LVR_TRACES_SEGMENTS_H
#define LVR_TRACES_SEGMENTS_H

#include "common/error.h"
#include "traces/sealed_file.h"
#include "traces/trace.h"
#include <stdbool.h>
#include <stdint.h>

/* malloc'ed paths; NULL when out of memory. */
char *lvr_segments_folder(const char *trace_path);
char *lvr_segment_path(const char *folder, uint32_t segment);
/* Where every file of the recording is written before it is renamed: inside the folder, so nothing else is
 * littered. */
char *lvr_segments_temp_path(const char *folder);
/* Removes segments and the temporary file, the last segment first: what is left at any moment is a prefix. */
void lvr_segments_remove(const char *folder);

/* The streams that every trace of a kind has, if only with no rows. */
bool lvr_stream_required(lvr_trace_kind kind, lvr_stream stream);

/* Joins segments 1..n into one complete file renamed to `trace_path`. rows[LVR_STREAM_COUNT] are the totals.
 */
typedef struct lvr_merge {
    const char *trace_path, *folder;
    uint64_t recording;
    uint32_t n_segments;
    const uint64_t *rows;
    const lvr_trace_meta *meta;
    const struct lvr_clock_list *clocks;
} lvr_merge;
lvr_status lvr_segments_merge(const lvr_merge *m, lvr_error *err);

#endif
