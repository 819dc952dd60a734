/*
 * What a trace file says besides its rows, as HDF5 attributes and two small datasets (/config, /clocks).
 * Every function here is called with the HDF5 guard held (sealed_file.h).
 */
#ifndef LVR_TRACES_META_IO_H
#define LVR_TRACES_META_IO_H

#include "common/error.h"
#include "traces/trace.h"
#include <hdf5.h>
#include <stdbool.h>
#include <stdint.h>

/* The three clocks, read together. */
typedef struct lvr_clock_pair {
    uint64_t raw_ns, boot_ns, real_ns;
} lvr_clock_pair;

typedef struct lvr_clock_list {
    lvr_clock_pair *items;
    size_t n, cap;
} lvr_clock_list;

/* `full`: device, models and configuration too; segments carry the root attributes only. */
lvr_status lvr_meta_write(hid_t h5, const lvr_trace_meta *meta, bool full, const lvr_clock_list *clocks,
                          const char *path, lvr_error *err);
/* Refuses another schema and an unknown major version before looking further. Both outputs own memory:
 * free ret_meta->config_yaml and ret_clocks->items. */
lvr_status lvr_meta_read(hid_t h5, const char *path, lvr_trace_meta *ret_meta, lvr_clock_list *ret_clocks,
                         lvr_error *err);
/* A stream's name without its folder: the key in `dropped`, in JSON and in CSV names. */
const char *lvr_stream_key(lvr_stream stream);

#endif
