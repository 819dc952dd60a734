/* The workspace of a forward pass, between its allocation (forward_workspace.c), the rows of a pass
 * (forward_rows.c) and the computation (forward.c). */
#ifndef LVR_ENGINE_FORWARD_INTERNAL_H
#define LVR_ENGINE_FORWARD_INTERNAL_H

#include "engine/forward.h"
#include "engine/kernels/attention.h"

/* Multiply-adds worth waking the pool for: about what waking a sleeping worker takes, some tens of
 * microseconds. Less stays on the caller. */
#define LVR_MIN_POOL_MACS (5u << 18)

/* What a worker needs for itself in attention. */
typedef struct worker_space {
    lvr_attention attention;
    uint32_t *slots; /* [n_ctx]: a row's ancestors after the cache */
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

typedef struct lvr_exit_space lvr_exit_space; /* of scoring (forward_exit.c) */

struct lvr_forward {
    const lvr_model *model;
    const lvr_model_shape *shape;
    const lvr_kernels *kernels;
    lvr_pool *pool;
    lvr_kv *kv;
    uint32_t max_rows, max_prompt_rows, n_threads;
    uint32_t q_dim, kv_dim;

    uint64_t pass;
    uint32_t n_rows;
    bool prompt;             /* the pass is a prompt's: no rows and slots, but positions from here on: */
    uint32_t first_position; /* of a prompt's pass */
    lvr_fwd_row *rows;       /* [max_rows], of a tree's pass */
    slot_info *slots;        /* [kv->max_scratch] */

    void *arena;        /* holds all that follows */
    float *x;           /* [max_rows or max_prompt_rows][d_model]: the residual stream, of the whole pass */
    float *norm, *proj; /* [max_rows][d_model]: here and below, of the rows in work */
    float *q, *att;     /* [max_rows][q_dim] */
    float *k, *v;       /* [max_rows][kv_dim] */
    float *gate, *up;   /* [max_rows][d_ff] */
    quantised_rows norm_q; /* of norm */
    quantised_rows mid_q;  /* of att, later of gate */
    float *rope;           /* [n_ctx][head_dim]: cos, sin, cos, sin, ... */
    worker_space *workers; /* [n_threads] */

    lvr_exit_space *exit; /* NULL until rows are scored for the first time */
};

/* Quantisation blocks of n_in values. */
static inline uint64_t lvr_forward_blocks(uint64_t n_in)
{
    return n_in / LVR_BLOCK + (n_in % LVR_BLOCK != 0);
}

static inline uint32_t lvr_forward_position(const lvr_forward *f, uint32_t row)
{
    return f->prompt ? f->first_position + row : f->rows[row].position;
}

/* Checks the rows of a pass and makes them the pass's; on failure the pass has no rows. */
lvr_status lvr_forward_take_rows(lvr_forward *f, const lvr_fwd_row *rows, uint32_t n_rows, lvr_error *err);
lvr_status lvr_forward_take_prompt(lvr_forward *f, const int32_t *tokens, uint32_t first_position, uint32_t n,
                                   lvr_error *err);

/* ---- forward_exit.c ---- */

void lvr_forward_exit_free(lvr_exit_space *e);

/* Some heads in some rows: what attention handles at a time. */
typedef struct lvr_attend_unit {
    uint32_t first_row, n_rows;   /* of the pass */
    uint32_t first_head, n_heads; /* query heads */
} lvr_attend_unit;

/* How a layer's attention is cut into units for a number of workers: heads by the query groups of the KV
 * heads, and rows; no more per unit than leaves work for all. */
typedef struct lvr_attend_cut {
    uint32_t heads, rows; /* per unit */
} lvr_attend_cut;
lvr_attend_cut lvr_forward_cut_attention(const lvr_forward *f, uint32_t n_rows, uint32_t n_workers);

/* q and out: of the unit's first row and first head, [..][q_dim]. */
void lvr_forward_attend(const lvr_forward *f, worker_space *w, const lvr_kernels *kernels, uint32_t layer,
                        const lvr_attend_unit *unit, const float *q, float *out);

#endif
