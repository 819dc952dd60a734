#include "engine/kv.h"

#include "common/hugemem.h"
#include <string.h>

#define KV_ALIGN 64u

/* Bytes of one of K or V over `rows` rows of every head of every layer, rounded up so that the arrays follow
 * each other aligned. */
static bool plane_bytes(const lvr_kv_shape *s, uint32_t rows, uint64_t *ret)
{
    uint64_t heads, bytes;
    if (__builtin_mul_overflow(s->n_layers, (uint64_t)s->n_kv, &heads) ||
        __builtin_mul_overflow(heads, (uint64_t)rows, &bytes) ||
        __builtin_mul_overflow(bytes, lvr_kv_row_bytes(s->type, s->head_dim), &bytes) ||
        bytes > (UINT64_MAX >> 3))
        return false;
    *ret = (bytes + KV_ALIGN - 1) / KV_ALIGN * KV_ALIGN;
    return true;
}

uint64_t lvr_kv_bytes(const lvr_kv_shape *shape)
{
    uint64_t cache, scratch;
    if (!plane_bytes(shape, shape->n_ctx, &cache) || !plane_bytes(shape, shape->max_scratch, &scratch))
        return UINT64_MAX;
    return 2 * (cache + scratch);
}

lvr_status lvr_kv_init(lvr_kv *kv, const lvr_kv_shape *shape, lvr_error *err)
{
    if (shape->head_dim == 0 || shape->head_dim % LVR_GROUP != 0)
        return lvr_fail(err, LVR_ERR_UNSUPPORTED,
                        "KV cache: head width %u; this version needs a multiple of %u", shape->head_dim,
                        LVR_GROUP);
    const uint64_t bytes = lvr_kv_bytes(shape);
    /* Not cleared: rows are written before they are read, and untouched pages cost no memory. */
    uint8_t *data = bytes > SIZE_MAX / 2 ? NULL : lvr_huge_alloc(bytes ? bytes : KV_ALIGN);
    if (!data)
        return lvr_fail(
            err, LVR_ERR_NOMEM,
            "KV cache: out of memory for %u layers x (%u positions + %u scratch rows) x %u %s values; "
            "use a smaller context or --kv-type q8_0",
            shape->n_layers, shape->n_ctx, shape->max_scratch, shape->n_kv * shape->head_dim,
            lvr_kv_type_name(shape->type));
    uint64_t cache = 0, scratch = 0;
    plane_bytes(shape, shape->n_ctx, &cache);
    plane_bytes(shape, shape->max_scratch, &scratch);
    *kv = (lvr_kv){
        .shape = *shape,
        .row_bytes = lvr_kv_row_bytes(shape->type, shape->head_dim),
        .k = data,
        .v = data + cache,
        .sk = data + 2 * cache,
        .sv = data + 2 * cache + scratch,
    };
    return LVR_OK;
}

void lvr_kv_free(lvr_kv *kv)
{
    /* One allocation holds all four arrays. */
    const uint64_t bytes = lvr_kv_bytes(&kv->shape);
    lvr_huge_free(kv->k, bytes ? bytes : KV_ALIGN);
    *kv = (lvr_kv){0};
}

void lvr_kv_clear(lvr_kv *kv)
{
    kv->n_cached = 0;
}

static void commit_head(lvr_kv *kv, uint32_t layer, uint32_t head, const uint32_t *slots, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const size_t to = lvr_kv_cache_at(kv, layer, head, kv->n_cached + i);
        const size_t from = lvr_kv_scratch_at(kv, layer, head, slots[i]);
        memcpy(kv->k + to, kv->sk + from, kv->row_bytes);
        memcpy(kv->v + to, kv->sv + from, kv->row_bytes);
    }
}

static lvr_status check_room(const lvr_kv *kv, uint32_t n, lvr_error *err)
{
    if (n <= kv->shape.n_ctx - kv->n_cached)
        return LVR_OK;
    return lvr_fail(err, LVR_ERR_INVARIANT, "KV cache: %u rows to commit, but %u of %u positions are taken",
                    n, kv->n_cached, kv->shape.n_ctx);
}

lvr_status lvr_kv_commit(lvr_kv *kv, const uint32_t *slots, uint32_t n, lvr_error *err)
{
    const lvr_status status = check_room(kv, n, err);
    if (status != LVR_OK)
        return status;
    for (uint32_t i = 0; i < n; i++)
        if (slots[i] >= kv->shape.max_scratch)
            return lvr_fail(err, LVR_ERR_INVARIANT,
                            "KV cache: scratch row %u to commit, expected one below %u", slots[i],
                            kv->shape.max_scratch);
    for (uint32_t l = 0; l < kv->shape.n_layers; l++)
        for (uint32_t h = 0; h < kv->shape.n_kv; h++)
            commit_head(kv, l, h, slots, n);
    kv->n_cached += n;
    return LVR_OK;
}

lvr_status lvr_kv_append(lvr_kv *kv, uint32_t n, lvr_error *err)
{
    const lvr_status status = check_room(kv, n, err);
    if (status == LVR_OK)
        kv->n_cached += n;
    return status;
}
