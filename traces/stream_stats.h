/* Rows, minimum, maximum and sum of every field of a stream: what /stats holds, and what validate recomputes.
 */
#ifndef LVR_TRACES_STREAM_STATS_H
#define LVR_TRACES_STREAM_STATS_H

#include "common/error.h"
#include "traces/schema.h"
#include <hdf5.h>
#include <stdbool.h>
#include <stdint.h>

/* Of the values that are not NaN; min and max are NaN without any. As double: beyond 2^53 a comparison, not a
 * number. */
typedef struct lvr_field_stats {
    double min, max, sum;
} lvr_field_stats;

typedef struct lvr_stream_stats {
    uint64_t rows;
    lvr_field_stats field[LVR_RECORD_MAX_FIELDS];
} lvr_stream_stats;

double lvr_field_number(const lvr_field *field, const void *record);

void lvr_stream_stats_init(lvr_stream_stats *stats);
void lvr_stream_stats_add(lvr_stream_stats *stats, lvr_stream stream, const void *records, uint64_t n);

/* /stats of all streams marked in present[LVR_STREAM_COUNT]. Both are called with the HDF5 guard held. */
lvr_status lvr_stats_write(hid_t h5, const lvr_stream_stats *stats, const bool *present, const char *path,
                           lvr_error *err);
/* Fills stats[LVR_STREAM_COUNT] and present[]; a file without /stats has none present. Unknown rows are
 * ignored. */
lvr_status lvr_stats_read(hid_t h5, const char *path, lvr_stream_stats *ret_stats, bool *ret_present,
                          lvr_error *err);

#endif
