/*
 * The KV cache of one sequence: committed positions, and scratch rows for the tokens of a tree that are not
 * committed yet. Both hold f16, so that a row's attention does not depend on whether its ancestors were
 * committed (INV-ROW). Not thread safe.
 */
#ifndef LVR_ENGINE_KV_H
#define LVR_ENGINE_KV_H

#include "common/error.h"
#include <stdint.h>

typedef struct lvr_kv {
    uint32_t n_layers, n_ctx, max_scratch;
    uint32_t kv_dim;   /* n_kv * head_dim */
    uint32_t n_cached; /* committed positions */
    uint16_t *k, *v;   /* [n_layers][n_ctx][kv_dim] */
    uint16_t *sk, *sv; /* [n_layers][max_scratch][kv_dim] */
} lvr_kv;

uint64_t lvr_kv_bytes(uint32_t n_layers, uint32_t n_ctx, uint32_t max_scratch, uint32_t kv_dim);
lvr_status lvr_kv_init(lvr_kv *kv, uint32_t n_layers, uint32_t n_ctx, uint32_t max_scratch, uint32_t kv_dim,
                       lvr_error *err);
void lvr_kv_free(lvr_kv *kv);
void lvr_kv_clear(lvr_kv *kv);
/* Appends scratch rows slots[0..n) (in sequence order) to the cache, for every layer. LVR_ERR_INVARIANT past
 * n_ctx. */
lvr_status lvr_kv_commit(lvr_kv *kv, const uint32_t *slots, uint32_t n, lvr_error *err);

#endif
