/* What a run's reads really were: part of every result, since a rate without it says nothing. */
#ifndef LVR_ENGINE_FLASH_IO_REPORT_H
#define LVR_ENGINE_FLASH_IO_REPORT_H

#include <stdbool.h>
#include <stdint.h>

typedef enum lvr_read_path {
    LVR_READ_DIRECT,   /* every read passed the page cache by (O_DIRECT) */
    LVR_READ_BUFFERED, /* some went through the page cache */
    LVR_READ_CACHED, /* and it held at least half of the bytes before the run: a rate of memory, not of flash
                      */
} lvr_read_path;
const char *lvr_read_path_name(lvr_read_path path); /* "direct", "buffered", "cached" */
/* direct: all reads were. cached_before: share in the page cache before the first one; NaN: unknown. */
lvr_read_path lvr_read_path_of(bool direct, double cached_before);

/* Reads of the streamed layers, by lvr_staging_io_report. The first pass over them is told apart, since
 * devices and hosts answer what they have read before from their own caches. Bytes are those delivered; a
 * pass's busy time is that with at least one read in flight, the first one's until its last read has ended.
 */
typedef struct lvr_io_report {
    const char *engine; /* "uring" or "pread" */
    uint32_t depth;     /* reads in flight at most */
    bool registered_buffer, registered_files;
    double huge_pages; /* share of the ring's memory in huge pages, 0..1: one read needs as many pieces as it
                          has pages, and some devices take each for a request of its own; NaN: unknown */
    lvr_read_path path;
    double cached_before,
        cached_after; /* share of the streamed bytes in the page cache, 0..1; NaN: unknown */
    uint64_t first_pass_bytes, first_pass_busy_ns;
    uint64_t later_pass_bytes, later_pass_busy_ns;
    double first_pass_bytes_per_s, later_pass_bytes_per_s; /* bytes / busy time; NaN: nothing was read */
    bool checked;    /* every read was compared with the pack's checksum */
    uint64_t cpu_ns; /* used by the reader's threads, checksums included */
} lvr_io_report;

#endif
