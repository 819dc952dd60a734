#include "engine/kv.h"

#include "common/hugemem.h"
#include <stdbool.h>
#include <string.h>

#define KV_ALIGN 64u

/* Bytes of one of K or V over `rows` rows of every layer, rounded up so that the arrays follow each other
 * aligned. */
static bool plane_bytes(uint32_t n_layers, uint32_t rows, uint32_t kv_dim, uint64_t *ret)
{
    uint64_t bytes;
    if (__builtin_mul_overflow((uint64_t)n_layers * rows, (uint64_t)kv_dim * sizeof(uint16_t), &bytes) ||
        bytes > (UINT64_MAX >> 3))
        return false;
    *ret = (bytes + KV_ALIGN - 1) / KV_ALIGN * KV_ALIGN;
    return true;
}

uint64_t lvr_kv_bytes(uint32_t n_layers, uint32_t n_ctx, uint32_t max_scratch, uint32_t kv_dim)
{
    uint64_t cache, scratch;
    if (!plane_bytes(n_layers, n_ctx, kv_dim, &cache) ||
        !plane_bytes(n_layers, max_scratch, kv_dim, &scratch))
        return UINT64_MAX;
    return 2 * (cache + scratch);
}

lvr_status lvr_kv_init(lvr_kv *kv, uint32_t n_layers, uint32_t n_ctx, uint32_t max_scratch, uint32_t kv_dim,
                       lvr_error *err)
{
    const uint64_t bytes = lvr_kv_bytes(n_layers, n_ctx, max_scratch, kv_dim);
    /* Not cleared: rows are written before they are read, and untouched pages cost no memory. */
    uint8_t *data = bytes > SIZE_MAX / 2 ? NULL : lvr_huge_alloc(bytes ? bytes : KV_ALIGN);
    if (!data)
        return lvr_fail(
            err, LVR_ERR_NOMEM,
            "KV cache: out of memory for %u layers x (%u positions + %u scratch rows) x %u values; "
            "use a smaller context",
            n_layers, n_ctx, max_scratch, kv_dim);
    uint64_t cache = 0, scratch = 0;
    plane_bytes(n_layers, n_ctx, kv_dim, &cache);
    plane_bytes(n_layers, max_scratch, kv_dim, &scratch);
    *kv = (lvr_kv){
        .n_layers = n_layers,
        .n_ctx = n_ctx,
        .max_scratch = max_scratch,
        .kv_dim = kv_dim,
        .k = (uint16_t *)(void *)data,
        .v = (uint16_t *)(void *)(data + cache),
        .sk = (uint16_t *)(void *)(data + 2 * cache),
        .sv = (uint16_t *)(void *)(data + 2 * cache + scratch),
    };
    return LVR_OK;
}

void lvr_kv_free(lvr_kv *kv)
{
    /* One allocation holds all four arrays. */
    const uint64_t bytes = lvr_kv_bytes(kv->n_layers, kv->n_ctx, kv->max_scratch, kv->kv_dim);
    lvr_huge_free(kv->k, bytes ? bytes : KV_ALIGN);
    *kv = (lvr_kv){0};
}

void lvr_kv_clear(lvr_kv *kv)
{
    kv->n_cached = 0;
}

static void commit_layer(lvr_kv *kv, uint32_t layer, const uint32_t *slots, uint32_t n)
{
    const size_t row_bytes = kv->kv_dim * sizeof(uint16_t);
    const size_t to = ((size_t)layer * kv->n_ctx + kv->n_cached) * kv->kv_dim;
    for (uint32_t i = 0; i < n; i++) {
        const size_t from = ((size_t)layer * kv->max_scratch + slots[i]) * kv->kv_dim;
        memcpy(kv->k + to + (size_t)i * kv->kv_dim, kv->sk + from, row_bytes);
        memcpy(kv->v + to + (size_t)i * kv->kv_dim, kv->sv + from, row_bytes);
    }
}

lvr_status lvr_kv_commit(lvr_kv *kv, const uint32_t *slots, uint32_t n, lvr_error *err)
{
    if (n > kv->n_ctx - kv->n_cached)
        return lvr_fail(err, LVR_ERR_INVARIANT,
                        "KV cache: %u rows to commit, but %u of %u positions are taken", n, kv->n_cached,
                        kv->n_ctx);
    for (uint32_t i = 0; i < n; i++)
        if (slots[i] >= kv->max_scratch)
            return lvr_fail(err, LVR_ERR_INVARIANT,
                            "KV cache: scratch row %u to commit, expected one below %u", slots[i],
                            kv->max_scratch);
    for (uint32_t l = 0; l < kv->n_layers; l++)
        commit_layer(kv, l, slots, n);
    kv->n_cached += n;
    return LVR_OK;
}
