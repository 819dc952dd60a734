/* The workspace of a forward pass, between its allocation (forward_workspace.c), the rows of a pass
 * (forward_rows.c) and the computation (forward.c). */
#ifndef LVR_ENGINE_FORWARD_INTERNAL_H
#define LVR_ENGINE_FORWARD_INTERNAL_H

#include "engine/forward.h"

/* What a worker needs for itself in attention. The pointers to cached positions serve all rows of a (layer,
 * KV head). */
typedef struct worker_space {
    const uint16_t **k, **v; /* [n_ctx] */
    float *scores;           /* [n_ctx] */
    uint32_t layer, kv_head,
        n_prefix; /* what k and v [0, n_prefix) stand for; n_prefix UINT32_MAX: nothing */
} worker_space;

typedef struct slot_info {
    uint64_t pass; /* the last pass that wrote the slot */
    uint32_t position;
    int32_t parent;
} slot_info;

/* Rows quantised for a product. */
typedef struct quantised_rows {
    int8_t *q;
    float *d;
    int16_t *hsum;
} quantised_rows;

struct lvr_forward {
    const lvr_model *model;
    const lvr_model_shape *shape;
    const lvr_kernels *kernels;
    lvr_pool *pool;
    lvr_kv *kv;
    uint32_t max_rows, n_threads;
    uint32_t q_dim, kv_dim;
    uint32_t heads_per_unit; /* heads that attention handles at a time: whole quantisation blocks */
    float attention_scale;

    uint64_t pass;
    uint32_t n_rows;
    lvr_fwd_row *rows;
    slot_info *slots; /* [kv->max_scratch] */

    void *arena;           /* holds all that follows */
    float *x;              /* [max_rows][d_model]: the residual stream */
    float *norm, *proj;    /* [max_rows][d_model] */
    float *q, *att;        /* [max_rows][q_dim] */
    float *k, *v;          /* [max_rows][kv_dim] */
    float *gate, *up;      /* [max_rows][d_ff] */
    quantised_rows norm_q; /* of norm */
    quantised_rows mid_q;  /* of att, later of gate */
    float *rope;           /* [n_ctx][head_dim]: cos, sin, cos, sin, ... */
    worker_space *workers; /* [n_threads] */
};

/* Quantisation blocks of n_in values. */
static inline uint64_t lvr_forward_blocks(uint64_t n_in)
{
    return n_in / LVR_BLOCK + (n_in % LVR_BLOCK != 0);
}

/* Checks the rows of a pass and makes them the pass's; on failure the pass has no rows. */
lvr_status lvr_forward_take_rows(lvr_forward *f, const lvr_fwd_row *rows, uint32_t n_rows, lvr_error *err);

#endif
