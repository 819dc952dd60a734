/*
 * The KV cache of one sequence: committed positions, and scratch rows for the tokens of a tree that are not
 * committed yet. Both hold rows of one type, so that a row's attention does not depend on whether its
 * ancestors were committed (INV-ROW). A row is one position of one KV head, in the layout of its type
 * (lvr_kv_type in kernels.h: F16, or Q8_0, which takes 0.53 of F16's memory); rows of a head follow each
 * other by position, so that attention reads memory in order. Not thread safe.
 */
#ifndef LVR_ENGINE_KV_H
#define LVR_ENGINE_KV_H

#include "common/error.h"
#include "engine/kernels/kernels.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct lvr_kv_shape {
    lvr_kv_type type;
    uint32_t n_layers, n_ctx, max_scratch; /* positions; scratch rows */
    uint32_t n_kv, head_dim;               /* KV heads, values of one: a multiple of 16 */
} lvr_kv_shape;

typedef struct lvr_kv {
    lvr_kv_shape shape;
    uint32_t n_cached; /* committed positions */
    size_t row_bytes;
    uint8_t *k, *v;   /* rows [n_layers][n_kv][n_ctx] */
    uint8_t *sk, *sv; /* rows [n_layers][n_kv][max_scratch] */
} lvr_kv;

/* UINT64_MAX: too large to exist. */
uint64_t lvr_kv_bytes(const lvr_kv_shape *shape);
/* LVR_ERR_NOMEM, or LVR_ERR_UNSUPPORTED for a head width that is no multiple of 16. */
lvr_status lvr_kv_init(lvr_kv *kv, const lvr_kv_shape *shape, lvr_error *err);
void lvr_kv_free(lvr_kv *kv);
void lvr_kv_clear(lvr_kv *kv);
/* Appends scratch rows slots[0..n) (in sequence order) to the cache, for every layer. LVR_ERR_INVARIANT past
 * n_ctx. */
lvr_status lvr_kv_commit(lvr_kv *kv, const uint32_t *slots, uint32_t n, lvr_error *err);
/* Commits the n positions after the committed ones, which a pass over prompt rows (lvr_forward_embed_prompt)
 * has written in every layer; nothing is copied. LVR_ERR_INVARIANT past n_ctx. */
lvr_status lvr_kv_append(lvr_kv *kv, uint32_t n, lvr_error *err);

/* Where in k and v, or in sk and sv, a head's row of a position or of a scratch slot begins. */
static inline size_t lvr_kv_cache_at(const lvr_kv *kv, uint32_t layer, uint32_t head, uint32_t position)
{
    const lvr_kv_shape *s = &kv->shape;
    return (((size_t)layer * s->n_kv + head) * s->n_ctx + position) * kv->row_bytes;
}

static inline size_t lvr_kv_scratch_at(const lvr_kv *kv, uint32_t layer, uint32_t head, uint32_t slot)
{
    const lvr_kv_shape *s = &kv->shape;
    return (((size_t)layer * s->n_kv + head) * s->max_scratch + slot) * kv->row_bytes;
}

#endif
