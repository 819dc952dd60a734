/*
 * Streams as HDF5 datasets: types built from the field tables, creation, rows in and out. Every function here
 * is called with the HDF5 guard held (sealed_file.h).
 */
#ifndef LVR_TRACES_STREAM_IO_H
#define LVR_TRACES_STREAM_IO_H

#include "common/error.h"
#include "traces/schema.h"
#include <hdf5.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct lvr_stream_layout {
    uint64_t rows;
    bool compress; /* chunks, shuffle and deflate; else one contiguous block */
    bool describe; /* attributes with units and descriptions */
} lvr_stream_layout;

/* *ret_dset is the caller's to H5Dclose. */
lvr_status lvr_stream_create(hid_t h5, lvr_stream stream, const lvr_stream_layout *layout, const char *path,
                             hid_t *ret_dset, lvr_error *err);
lvr_status lvr_stream_write(hid_t dset, lvr_stream stream, uint64_t first, uint64_t n, const void *records,
                            const char *path, lvr_error *err);

bool lvr_stream_exists(hid_t h5, lvr_stream stream);
/* Opens and checks every field's presence, kind and width; fields this version does not know are ignored. */
lvr_status lvr_stream_open(hid_t h5, lvr_stream stream, const char *path, hid_t *ret_dset, uint64_t *ret_rows,
                           lvr_error *err);
/* Rows [first, first + n) must exist. Padding of the records is zeroed. */
lvr_status lvr_stream_read(hid_t dset, lvr_stream stream, uint64_t first, uint64_t n, void *records,
                           const char *path, lvr_error *err);

/* Strings as attributes: scalar, or one-dimensional (n = 0 writes none). */
lvr_status lvr_attr_write_strings(hid_t object, const char *name, const char *const *values, size_t n,
                                  bool scalar, const char *path, lvr_error *err);

#endif
