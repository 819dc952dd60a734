/*
 * Records of the trace format `lever-trace` 1.1 (traces/FORMAT.md): one struct per stream, the same in the
 * recorder's rings, in HDF5 (compound types built from the field tables in schema.c) and in the simulator.
 * Times: ns of CLOCK_MONOTONIC_RAW. Sizes: bytes. Every struct is at most LVR_RECORD_MAX_BYTES, without
 * implicit padding that would leak indeterminate bytes (zero records before filling them).
 */
#ifndef LVR_TRACES_SCHEMA_H
#define LVR_TRACES_SCHEMA_H

#include <stddef.h>
#include <stdint.h>

#define LVR_TRACE_SCHEMA "lever-trace"
#define LVR_TRACE_VERSION_MAJOR 1
#define LVR_TRACE_VERSION_MINOR 1

typedef enum lvr_stream {
    LVR_STREAM_REQUESTS,
    LVR_STREAM_TOKENS,
    LVR_STREAM_ROUNDS,
    LVR_STREAM_ROUND_NODES,
    LVR_STREAM_FLASH,
    LVR_STREAM_KERNELS,
    LVR_STREAM_TREES,
    LVR_STREAM_DRAFT_TOPK,
    LVR_STREAM_BENCH,
    LVR_STREAM_MEMORY, /* /device/memory */
    LVR_STREAM_EXIT,   /* since 1.1 */
    LVR_STREAM_COUNT
} lvr_stream;

#define LVR_RECORD_MAX_BYTES 96u
#define LVR_RECORD_MAX_FIELDS 16u

typedef struct lvr_rec_request {
    uint64_t id;
    uint64_t t_arrival_ns, t_first_token_ns, t_done_ns;
    uint32_t n_prompt, n_output;
    uint32_t domain; /* index into the root attribute `domains` */
    uint32_t reserved;
    uint64_t prompt_hash; /* first 8 bytes of the SHA-256 of the prompt's token ids (int32 little endian) */
} lvr_rec_request;

typedef struct lvr_rec_token {
    uint64_t request;
    uint32_t pos;
    int32_t token;
    uint32_t is_output; /* 0: prompt, 1: generated */
    uint32_t reserved;
} lvr_rec_token;

typedef struct lvr_rec_round {
    uint64_t request, round;
    uint32_t pos;        /* logical position of the root, or of the prompt chunk's first row */
    uint32_t prefill;    /* 1: prompt pass */
    uint32_t n_nodes;    /* rows of the pass */
    uint32_t depth;      /* of the verified tree */
    uint32_t n_kept;     /* rows left after pruning (= n_nodes without) */
    uint32_t n_accepted; /* accepted draft nodes, bonus not counted */
    uint32_t n_drafted;  /* nodes the draft expanded */
    uint32_t n_draft_steps;
    uint64_t t_draft0_ns, t_draft1_ns, t_verify0_ns, t_verify1_ns, t_commit_ns;
} lvr_rec_round;

typedef struct lvr_rec_round_node {
    uint64_t request, round;
    uint32_t node;  /* row of the pass */
    int32_t parent; /* row, -1 for the root */
    int32_t token;
    float p_draft;
    uint32_t last_layer; /* the last layer this row ran through */
    uint32_t accepted;   /* 1: root or accepted */
} lvr_rec_round_node;

typedef struct lvr_rec_flash {
    uint64_t round; /* the pass that consumed the slice (UINT64_MAX: run-ahead that nothing consumed) */
    uint32_t layer, slice;
    uint64_t offset, bytes; /* in the pack file */
    uint32_t queue_depth;   /* requests in flight when it was started, itself included */
    uint32_t cached;        /* 0 direct, 1 buffered (page cache possible) */
    uint64_t t_submit_ns, t_start_ns, t_end_ns;
} lvr_rec_flash;

typedef struct lvr_rec_kernel {
    uint64_t round;
    uint32_t model; /* 0 target, 1 draft */
    uint32_t layer; /* UINT32_MAX where it does not apply */
    uint32_t op;    /* lvr_op */
    uint32_t unit;  /* lvr_unit */
    uint32_t rows, bucket;
    uint32_t context; /* cached positions before the rows */
    uint32_t reserved;
    uint64_t t_submit_ns, t_start_ns, t_end_ns;
} lvr_rec_kernel;

typedef struct lvr_rec_tree {
    uint64_t request;
    uint32_t pos;   /* position of the root */
    uint32_t node;  /* 0 is the root */
    int32_t parent; /* -1 for the root */
    uint32_t depth, rank;
    int32_t token;
    float p_draft;
    int32_t
        target_token;  /* the target's token after this node; -1: this node was not run through the target */
    float p_target;    /* its probability under the sampling settings, NaN if not run */
    uint32_t on_path;  /* 1: root, or the target's own continuation */
    uint32_t expanded; /* 1: all its children down to caps.branch are recorded */
    uint32_t reserved;
} lvr_rec_tree;

typedef struct lvr_rec_draft_topk {
    uint64_t request;
    uint32_t pos, k;
    int32_t token;
    float p;
} lvr_rec_draft_topk;

typedef struct lvr_rec_bench {
    uint32_t kind; /* 0 kernel (op, unit, rows), 1 flash (bytes, depth) */
    uint32_t op, unit, rows;
    uint64_t bytes;
    uint32_t depth, n;
    double mean_ns, p50_ns, p90_ns, p99_ns;
} lvr_rec_bench;

typedef struct lvr_rec_memory {
    uint64_t t_ns;
    uint64_t rss_bytes, available_bytes, swap_bytes, majflt;
} lvr_rec_memory;

/* What the exit predictor may see of a node of /trees after a target layer (costmodel/core/exit.h). */
typedef struct lvr_rec_exit {
    uint64_t request;
    uint32_t pos, node, layer;
    float score, slice_lse, slice_max, slice_entropy;
    uint32_t reserved;
} lvr_rec_exit;

typedef enum lvr_field_type {
    LVR_FIELD_U32,
    LVR_FIELD_I32,
    LVR_FIELD_U64,
    LVR_FIELD_F32,
    LVR_FIELD_F64
} lvr_field_type;

typedef struct lvr_field {
    const char *name;
    lvr_field_type type;
    uint32_t offset;
    const char *unit; /* "ns", "bytes", "tokens", "rows", "1", "enum" */
    const char *description;
    /* For U32 fields stored as HDF5 enums: the name of a value, NULL from the first value past the end; else
     * NULL. */
    const char *(*enum_name)(uint32_t value);
} lvr_field;

typedef struct lvr_stream_desc {
    const char *name; /* HDF5 path, e.g. "/rounds" */
    const char *description;
    uint32_t record_bytes;
    const lvr_field *fields;
    uint32_t n_fields;
} lvr_stream_desc;

const lvr_stream_desc *lvr_stream_describe(lvr_stream stream);

#endif
