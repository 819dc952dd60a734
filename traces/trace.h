/*
 * Traces: meta data, writer, reader, checks, export. Format: traces/FORMAT.md.
 *
 * Writing keeps INV-KILL without trusting HDF5 under SIGKILL: while a recording runs, `NAME.h5` is a small
 * closed file (complete = 0, all attributes) and rows go to closed segment files `NAME.h5.d/000001.h5`, each
 * written under a temporary name and renamed at least every 2 s; a clean close merges them into one NAME.h5
 * (complete = 1, renamed into place) and removes the folder. All of them open in any HDF5 reader at any
 * moment. Every file carries a 512-byte HDF5 user block with its length and CRC-32C, which the reader checks
 * before it lets the HDF5 library see the bytes, so that a damaged file is a message and not a crash.
 */
#ifndef LVR_TRACES_TRACE_H
#define LVR_TRACES_TRACE_H

#include "common/error.h"
#include "common/hash.h"
#include "traces/schema.h"
#include <stdbool.h>

typedef enum lvr_trace_kind {
    LVR_TRACE_TIMING,
    LVR_TRACE_ORACLE,
    LVR_TRACE_BENCH,
    LVR_TRACE_SIMULATED,
    LVR_TRACE_IMPORTED
} lvr_trace_kind;
const char *lvr_trace_kind_name(lvr_trace_kind kind);

#define LVR_TRACE_MAX_LAYERS 256u

typedef struct lvr_trace_model {
    char name[128], arch[32], quant[32];
    char sha256[LVR_SHA256_HEX_BYTES]; /* of the GGUF; "" if there is no such model */
    uint32_t n_layers, d_model, n_heads, n_kv, d_ff, vocab;
    uint64_t bytes_per_layer[LVR_TRACE_MAX_LAYERS]; /* aligned, in the pack */
    uint32_t resident[LVR_TRACE_MAX_LAYERS];        /* 1: in DRAM */
} lvr_trace_model;

typedef struct lvr_trace_device {
    char vendor[64], model[128], os[128], kernel[128], cpu_flags[256], filesystem[64];
    char io_engine[32]; /* uring, pread */
    bool direct;
    char emulated[64]; /* preset name or "" */
    double scale;
    char sha256[LVR_SHA256_HEX_BYTES]; /* identity of the description above */
} lvr_trace_device;

#define LVR_TRACE_MAX_DOMAINS 16u

typedef struct lvr_trace_meta {
    lvr_trace_kind kind;
    uint32_t version_major, version_minor;
    bool complete; /* reader: false if the recording was cut short */
    bool synthetic;
    uint64_t seed;
    double recorder_overhead_pct; /* NaN: not measured */
    char software[64], commit[32], compiler[64], created_utc[32];
    lvr_trace_device device;
    lvr_trace_model target, draft;
    char *config_yaml; /* the resolved configuration; owned */
    char domains[LVR_TRACE_MAX_DOMAINS][32];
    uint32_t n_domains;
    /* Oracle traces: the caps that the recorded trees are complete for. */
    uint32_t cap_branch, cap_expansions, cap_depth;
    double cap_min_path;       /* children with a path probability below this were not recorded */
    double temperature, top_p; /* sampling of the recorded target tokens; temperature 0: greedy */
    uint32_t top_k;
    uint64_t dropped[LVR_STREAM_COUNT];
} lvr_trace_meta;

/* ---- writing
 * ------------------------------------------------------------------------------------------------------ */

typedef struct lvr_trace_writer lvr_trace_writer; /* owns the writer thread */
typedef struct lvr_trace_lane lvr_trace_lane;     /* one per producing thread */

/* Refuses an existing complete trace at `path` unless overwrite. Copies meta. */
lvr_status lvr_trace_writer_open(const char *path, const lvr_trace_meta *meta, bool overwrite,
                                 lvr_trace_writer **ret, lvr_error *err);
/* A lane of `capacity` records for one thread; belongs to the writer. Call before recording starts. */
lvr_status lvr_trace_lane_new(lvr_trace_writer *w, size_t capacity, lvr_trace_lane **ret, lvr_error *err);
/* Never blocks, never calls HDF5: a full ring counts the record as dropped. `record` is the stream's struct.
 * Order: the rows of a round before the row in /rounds, a request's row when it ends; oracle requests in
 * ascending id, positions in ascending pos, one position's rows together, those of /exit before its tree. An
 * incomplete trace is cut by that order. */
void lvr_trace_put(lvr_trace_lane *lane, lvr_stream stream, const void *record);
/* For recordings whose time does not matter (oracle): waits while the ring is full; returns the writer's
 * error if it failed. */
lvr_status lvr_trace_put_wait(lvr_trace_lane *lane, lvr_stream stream, const void *record, lvr_error *err);
/* The writer thread's failure so far (disk full, ...), LVR_OK if none. Cheap: poll it once per round. */
lvr_status lvr_trace_writer_status(lvr_trace_writer *w, lvr_error *err);
/* The domain's index (added if new); LVR_TRACE_MAX_DOMAINS, which has no name, once the table is full. Any
 * thread. */
uint32_t lvr_trace_domain(lvr_trace_writer *w, const char *domain);
void lvr_trace_set_overhead(lvr_trace_writer *w, double pct);
/* Flushes and frees. complete = true merges the segments into the final file; false (interrupted) leaves an
 * incomplete but readable trace. */
lvr_status lvr_trace_writer_close(lvr_trace_writer *w, bool complete, lvr_error *err);

/* ---- reading
 * ------------------------------------------------------------------------------------------------------- */

typedef struct lvr_trace lvr_trace; /* not thread safe */

/* An incomplete trace opens with meta.complete == false, cut at the last round (timing) or position (oracle)
 * that all streams hold; a warning is logged. Unknown major version, damage, missing streams: LVR_ERR_FORMAT.
 */
lvr_status lvr_trace_open(const char *path, lvr_trace **ret, lvr_error *err);
void lvr_trace_close(lvr_trace *t);
const lvr_trace_meta *lvr_trace_get_meta(const lvr_trace *t);
const char *lvr_trace_path(const lvr_trace *t);
uint64_t lvr_trace_rows(const lvr_trace *t, lvr_stream stream);
/* Rows [first, first + n) into records[n]; out of range is LVR_ERR_FORMAT. */
lvr_status lvr_trace_read(lvr_trace *t, lvr_stream stream, uint64_t first, uint64_t n, void *records,
                          lvr_error *err);
/* The whole stream in one malloc'ed array (free it); *ret_n rows. More than 2^31 bytes: LVR_ERR_UNSUPPORTED.
 */
lvr_status lvr_trace_read_all(lvr_trace *t, lvr_stream stream, void **ret_records, uint64_t *ret_n,
                              lvr_error *err);

/* ---- checks and export
 * ----------------------------------------------------------------------------------------------- */

struct lvr_buf;
/* Human summary, or JSON if json. */
lvr_status lvr_trace_info(lvr_trace *t, bool json, struct lvr_buf *out, lvr_error *err);
/* Causality, references, ranges, tree shapes, rates above the device's peak, /stats against the rows. Appends
 * one line per finding to `out`; *ret_findings counts them. */
lvr_status lvr_trace_validate(lvr_trace *t, struct lvr_buf *out, uint64_t *ret_findings, lvr_error *err);
/* One CSV per stream into folder `dir` (created); header line with units. */
lvr_status lvr_trace_export_csv(lvr_trace *t, const char *dir, lvr_error *err);

#endif
