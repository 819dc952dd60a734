/*
 * The flash reader: asynchronous reads of a pack file into caller-owned buffers. Back ends: io_uring, or a
 * few pread threads ("lanes") where io_uring is missing or forbidden. O_DIRECT where the file system takes
 * it; if it fails at open or at a later read, the reader falls back to buffered reads with a notice and says
 * so in every completion.
 *
 * Emulation makes the device honestly slower, never faster: each read is really done, and delivered no
 * earlier than lvr_flash_admit (costmodel/core) says for the preset.
 *
 * A consumer that keeps more than `depth` requests outstanding loses no emulated time to its own late
 * wake-ups.
 *
 * One producer thread calls submit/poll/wait. Completions may come in any order. A read that fails (EIO,
 * short at end of file, ...) is delivered with status != LVR_OK; EINTR and short reads in the middle are
 * continued inside.
 */
#ifndef LVR_ENGINE_FLASH_H
#define LVR_ENGINE_FLASH_H

#include "common/error.h"
#include "costmodel/core/flash_model.h"
#include <stdatomic.h>
#include <stdbool.h>

typedef struct lvr_flash lvr_flash;

typedef enum lvr_flash_engine { LVR_FLASH_AUTO, LVR_FLASH_URING, LVR_FLASH_PREAD } lvr_flash_engine;

#define LVR_FLASH_ALIGN 4096u
#define LVR_FLASH_MAX_OUTSTANDING 65536u

/* Tests only: makes a reader fail on purpose. Attempts are read calls, counted from 1 in the order they
 * start; a request continued after a short or interrupted read makes another attempt. */
typedef struct lvr_flash_faults {
    bool refuse_uring, refuse_direct;
    uint64_t fail_at, fail_count; /* attempts [fail_at, fail_at + fail_count) fail ... */
    int fail_errno;               /* ... with this */
    uint64_t short_at;            /* this attempt reads at most short_bytes (0: end of file); 0: none */
    uint64_t short_bytes;
    uint64_t slow_at, slow_count;     /* attempts [slow_at, slow_at + slow_count) ... */
    uint64_t slow_ns;                 /* ... take this much longer */
    bool refuse_buffer, refuse_files; /* the kernel registers neither the buffer nor the files */
    uint64_t attempt_bytes;           /* what one attempt may read, a multiple of LVR_FLASH_ALIGN; 0: 1 GiB */
} lvr_flash_faults;

typedef struct lvr_flash_config {
    const char *path;
    lvr_flash_engine
        engine;     /* AUTO falls back to PREAD with a notice; URING refused by the kernel is an error */
    bool buffered;  /* do not try O_DIRECT */
    uint32_t depth; /* reads in flight on the real device, 1..LVR_FLASH_MAX_DEPTH */
    uint32_t max_outstanding; /* submitted and not yet taken by poll/wait, 1..LVR_FLASH_MAX_OUTSTANDING */
    /* The memory that requests read into, aligned to LVR_FLASH_ALIGN; it outlives the reader. Registered with
     * io_uring, so that a read does not look its pages up again; they stay in memory until the reader is
     * closed. A kernel that refuses (RLIMIT_MEMLOCK) and requests elsewhere get plain reads. NULL: none. */
    void *buffer;
    uint64_t buffer_bytes;
    bool checksum; /* completions carry the CRC-32C of their bytes; see lvr_flash_set_checksum */
    bool emulate;
    lvr_flash_params emulated; /* at most `depth` of its lanes are used: a host that queues less gets less */
    const lvr_flash_faults *faults; /* tests only; NULL: none */
} lvr_flash_config;

typedef struct lvr_flash_completion {
    uint64_t seq;
    lvr_status status;
    uint64_t offset, bytes;
    uint32_t queue_depth; /* in flight at start, itself included */
    bool direct;
    bool late;    /* emulation: the real read took longer than the preset allows */
    bool has_crc; /* checksums were on when it was submitted, and status is LVR_OK */
    uint32_t crc; /* lvr_crc32c(0, bytes read), computed by the reader's thread after t_end_ns was taken */
    uint64_t t_submit_ns, t_start_ns, t_end_ns; /* as delivered (emulated times under emulation) */
} lvr_flash_completion;

typedef struct lvr_flash_stats {
    uint64_t reads, bytes, late;
    bool direct;                              /* all reads so far were direct */
    const char *engine_name;                  /* "uring" or "pread" */
    bool registered_buffer, registered_files; /* with io_uring */
    uint64_t cpu_ns;                          /* that the reader's own threads have used so far */
} lvr_flash_stats;

lvr_status lvr_flash_open(const lvr_flash_config *config, lvr_flash **ret, lvr_error *err);
void lvr_flash_close(
    lvr_flash *f); /* waits for reads in flight; drops those not started and completions not taken */
/* offset, bytes and dst are multiples of LVR_FLASH_ALIGN, bytes > 0; a request that reaches past the end of
 * the file fails (packs are padded). dst belongs to the reader until the completion is taken or the reader
 * closed. Misuse, or more than max_outstanding: LVR_ERR_INVARIANT. Never blocks on the device. */
lvr_status lvr_flash_submit(lvr_flash *f, uint64_t seq, uint64_t offset, uint64_t bytes, void *dst,
                            lvr_error *err);
/* Whether requests submitted from now on are summed. */
void lvr_flash_set_checksum(lvr_flash *f, bool on);
bool lvr_flash_poll(lvr_flash *f, lvr_flash_completion *ret); /* false: nothing has completed */
lvr_status lvr_flash_wait(lvr_flash *f, lvr_flash_completion *ret,
                          lvr_error *err); /* blocks; nothing outstanding: LVR_ERR_INVARIANT */
void lvr_flash_get_stats(const lvr_flash *f, lvr_flash_stats *ret); /* over completions taken */
/* Message of the failed read whose completion was taken last. */
void lvr_flash_last_error(const lvr_flash *f, lvr_error *ret);
/* LVR_OK if this machine lets the back end be used, else LVR_ERR_UNSUPPORTED: why not and how to mend it. */
lvr_status lvr_flash_probe_engine(lvr_flash_engine engine, lvr_error *err);

/* Reads [offset, offset + bytes) once, in order, and reports the rate. *ret_direct: past the page cache.
 * bytes is rounded down to whole requests; less than one request is an error. */
lvr_status lvr_flash_read_rate(const char *path, bool buffered, uint64_t offset, uint64_t bytes,
                               uint64_t request_bytes, uint32_t depth, double *ret_bytes_per_s,
                               bool *ret_direct, lvr_error *err);
/* Reads [offset, offset + bytes) once so that later reads are warm, then at least once more and for up to 0.2
 * s: the best of these passes. cancel (NULL: nothing can): LVR_ERR_INTERRUPTED once it is true. */
lvr_status lvr_flash_warm_rate(const char *path, bool buffered, uint64_t offset, uint64_t bytes,
                               uint64_t request_bytes, uint32_t depth, const atomic_bool *cancel,
                               double *ret_bytes_per_s, lvr_error *err);
/* A device can be emulated honestly up to this share of what the real one delivers. */
#define LVR_FLASH_MAX_EMULATED_SHARE 0.7
/* LVR_ERR_CONFIG if the preset's rate for such requests is above that share of the warm rate measured on this
 * file. Lower preset->depth to the host's depth first, as the reader does. */
lvr_status lvr_flash_check_emulation(const lvr_flash_params *preset, uint64_t request_bytes,
                                     double warm_bytes_per_s, lvr_error *err);

/* One micro-benchmark cell: requests at aligned offsets below file_bytes, config->depth of them in flight,
 * for budget_ns. Latency is from start on the device to end. Of config, max_outstanding and buffer are not
 * used. */
typedef struct lvr_flash_load {
    uint64_t file_bytes, request_bytes;
    uint64_t budget_ns;
    bool random;       /* else in file order, as the engine reads, and from the start again at the end */
    bool unregistered; /* do not register the buffer */
} lvr_flash_load;

typedef struct lvr_flash_bench {
    double bytes_per_s;
    double latency_ns_mean, latency_ns_p50, latency_ns_p90, latency_ns_p99;
    uint32_t n;
    bool direct, registered;
    double cpu_share; /* of one processor, used by the reader's threads */
} lvr_flash_bench;
lvr_status lvr_flash_bench_cell(const lvr_flash_config *config, const lvr_flash_load *load,
                                lvr_flash_bench *ret, lvr_error *err);

#endif
