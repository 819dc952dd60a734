/*
 * One HDF5 file of ours on disk: a 512-byte user block that says how long the rest is and what its CRC-32C
 * is, then HDF5. All of HDF5's reads and writes go through a small file driver of ours over one descriptor,
 * so that
 *   - what was checked is what HDF5 sees (no second open by name),
 *   - a failed write (disk full) reaches us as a message and never libhdf5, whose recovery from a failed
 * flush is poor: the driver remembers the failure, pretends success, and the file is thrown away. HDF5 is not
 * thread safe in general: whoever calls it, directly or through here, holds the guard.
 */
#ifndef LVR_TRACES_SEALED_FILE_H
#define LVR_TRACES_SEALED_FILE_H

#include "common/error.h"
#include <hdf5.h>
#include <stdbool.h>
#include <stdint.h>

#define LVR_SEAL_BYTES 512u

/* Takes the library's one HDF5 lock and silences HDF5's own error output for this thread; leave restores it.
 */
typedef struct lvr_h5_guard {
    H5E_auto2_t report;
    void *report_data;
} lvr_h5_guard;
lvr_h5_guard lvr_h5_enter(void);
void lvr_h5_leave(lvr_h5_guard guard);

/* Which recording a file belongs to: segments of an older recording under the same name are never mixed in.
 */
typedef struct lvr_seal_id {
    uint64_t recording;
    uint32_t segment; /* 0: the trace itself, from 1: segments */
} lvr_seal_id;

typedef struct lvr_sealed_file lvr_sealed_file;

/* A new file at temp_path (replaced if there is one). */
lvr_status lvr_sealed_create(const char *temp_path, lvr_seal_id id, lvr_sealed_file **ret, lvr_error *err);
/* Closes HDF5, writes the user block, and renames to final_path; `durable` also syncs file and folder. On
 * failure nothing is left at either path that was not there before. Frees f in any case. */
lvr_status lvr_sealed_commit(lvr_sealed_file *f, const char *final_path, bool durable, lvr_error *err);
/* Closes and removes an uncommitted file. NULL is allowed. */
void lvr_sealed_discard(lvr_sealed_file *f);

/* Opens for reading after checking the user block, the length and the CRC. */
lvr_status lvr_sealed_open(const char *path, lvr_sealed_file **ret, lvr_error *err);
void lvr_sealed_close(lvr_sealed_file *f); /* NULL is allowed */

hid_t lvr_sealed_h5(const lvr_sealed_file *f);
lvr_seal_id lvr_sealed_id(const lvr_sealed_file *f);
const char *lvr_sealed_path(const lvr_sealed_file *f);
/* The write failure that the driver hid from HDF5, LVR_OK if none. */
lvr_status lvr_sealed_status(const lvr_sealed_file *f, lvr_error *err);

#endif
