/* The validator's insides, shared by validate.c (driver, references, /stats) and validate_rows.c (checks of
 * single rows). */
#ifndef LVR_TRACES_VALIDATE_H
#define LVR_TRACES_VALIDATE_H

#include "common/buf.h"
#include "traces/stream_stats.h"
#include "traces/trace_parts.h"

typedef struct lvr_known_round {
    uint64_t round, nodes_seen;
    uint32_t n_nodes, prefill;
} lvr_known_round;

typedef struct lvr_tree_node {
    uint32_t depth, on_path;
    int32_t target_token;
} lvr_tree_node;

/* The tree whose rows are being read: (request, pos) or (request, round). */
typedef struct lvr_tree_group {
    bool any;
    uint64_t request, key;
    lvr_tree_node *nodes;
    uint64_t n, cap;
} lvr_tree_group;

typedef struct lvr_validator {
    lvr_trace *trace;
    lvr_buf *out;
    lvr_stream stream;       /* of the rows being checked */
    uint64_t findings, here; /* in all, in this stream */
    /* References: ascending. */
    uint64_t *requests;
    uint64_t n_requests;
    lvr_known_round *rounds;
    uint64_t n_rounds;
    lvr_tree_group group;
    union {
        lvr_rec_token token;
        lvr_rec_round round;
        lvr_rec_draft_topk topk;
        lvr_rec_memory memory;
        lvr_rec_exit exit;
    } previous;
    bool has_previous;
    lvr_stream_stats stats[LVR_STREAM_COUNT];
} lvr_validator;

/* One line for the report: only the first few of a stream are printed, all are counted. */
void lvr_finding(lvr_validator *v, uint64_t row, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
bool lvr_known_request(const lvr_validator *v, uint64_t id);
lvr_known_round *lvr_find_round(const lvr_validator *v, uint64_t round);
/* Checks one row of v->stream. */
lvr_status lvr_validate_row(lvr_validator *v, uint64_t row, const void *record, lvr_error *err);

#endif
