/*
 * Which request size and depth read a device at its full rate: measured once a device and file system, kept
 * in the cache directory (common/cache_dir.h) as flash-*.yaml, used as the defaults of later runs.
 *
 * Cells are measured as the engine reads: in file order, O_DIRECT, into one registered buffer. Every cell
 * reads the same part of the file, which has been read once before (hosts and devices answer that faster), in
 * three rounds of which the best counts. The choice is the cell with the fewest bytes in flight (size times
 * depth; then the smaller depth) whose rate is within 2 % of the best one's.
 */
#ifndef LVR_ENGINE_FLASH_CALIBRATE_H
#define LVR_ENGINE_FLASH_CALIBRATE_H

#include "common/error.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define LVR_CALIBRATION_MAX_CELLS 16u
#define LVR_CALIBRATION_MIN_BYTES (UINT64_C(256) << 10)

typedef struct lvr_calibration_cell {
    uint64_t request_bytes;
    uint32_t depth;
    double bytes_per_s;
} lvr_calibration_cell;

typedef struct lvr_flash_calibration {
    uint64_t request_bytes;   /* the choice: a multiple of 4 KiB, at most 16 MiB */
    uint32_t depth;           /* 1 to LVR_FLASH_MAX_DEPTH */
    double bytes_per_s;       /* of the choice */
    double first_bytes_per_s; /* of the read before: cold if nothing has touched the file lately */
    bool direct;
    char engine[8];  /* "uring" or "pread" */
    char kernel[72]; /* its release */
    char date[24];   /* 2026-01-31T23:59:59Z */
    uint32_t n_cells;
    lvr_calibration_cell cells[LVR_CALIBRATION_MAX_CELLS]; /* sizes and depths ascending */
} lvr_flash_calibration;

/* Measures on the device of the file at `path`, at least LVR_CALIBRATION_MIN_BYTES long; about 3 s and up to
 * 160 MiB of memory. Cells that the device or the file is too small or slow for are left out. cancel (may be
 * NULL): once true, LVR_ERR_INTERRUPTED. */
lvr_status lvr_flash_calibrate(const char *path, const atomic_bool *cancel, lvr_flash_calibration *ret,
                               lvr_error *err);

/* Sets the choice from the cells, of which there is at least one. */
void lvr_flash_calibration_choose(lvr_flash_calibration *c);

/* Keeps it for the device and file system that `path` is on. False: it is not kept, and a notice
 * (lvr_log) says why. What was not read directly is never kept. */
bool lvr_flash_calibration_save(const char *path, const lvr_flash_calibration *c);
/* What is kept for the device and file system that `path` is on. False: nothing, or nothing usable, which a
 * notice explains. */
bool lvr_flash_calibration_load(const char *path, lvr_flash_calibration *ret);

#endif
