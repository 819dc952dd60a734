/* The rows of a KV cache, by type. */
#include "engine/kernels/levels.h"

const char *const lvr_kv_type_names[LVR_KV_TYPES + 1] = {[LVR_KV_F16] = "f16", [LVR_KV_Q8_0] = "q8_0"};

const char *lvr_kv_type_name(lvr_kv_type t)
{
    return (unsigned)t < LVR_KV_TYPES ? lvr_kv_type_names[t] : NULL;
}

bool lvr_kv_type_parse(const char *name, lvr_kv_type *ret)
{
    for (unsigned t = 0; t < LVR_KV_TYPES; t++) {
        if (strcmp(name, lvr_kv_type_names[t]) != 0)
            continue;
        *ret = (lvr_kv_type)t;
        return true;
    }
    return false;
}

uint64_t lvr_kv_row_bytes(lvr_kv_type t, uint32_t head_dim)
{
    const uint64_t blocks = ((uint64_t)head_dim + LVR_BLOCK - 1) / LVR_BLOCK;
    return t == LVR_KV_F16 ? 2 * (uint64_t)head_dim : head_dim + 2 * blocks;
}

static void store_block(const lvr_kernels *k, const float *x, int8_t *q, uint8_t *scale)
{
    float d;
    int16_t hsum[2];
    uint16_t half;
    k->quantize_row(x, LVR_BLOCK, q, &d, hsum);
    k->f32_to_f16(&d, 1, &half);
    memcpy(scale, &half, sizeof half);
}

static void store_q8_row(const lvr_kernels *k, const float *x, uint32_t head_dim, uint8_t *row)
{
    const uint32_t whole = head_dim / LVR_BLOCK * LVR_BLOCK, rest = head_dim - whole;
    uint8_t *scale = row + head_dim;
    for (uint32_t i = 0; i < whole; i += LVR_BLOCK, scale += 2)
        store_block(k, x + i, (int8_t *)row + i, scale);
    if (rest == 0)
        return;
    float last[LVR_BLOCK] = {0};
    int8_t q[LVR_BLOCK];
    memcpy(last, x + whole, rest * sizeof *x);
    store_block(k, last, q, scale);
    memcpy(row + whole, q, rest);
}

void lvr_kv_store_row(const lvr_kernels *k, lvr_kv_type t, const float *x, uint32_t head_dim, uint8_t *row)
{
    if (t == LVR_KV_F16)
        k->f32_to_f16(x, head_dim, (uint16_t *)(void *)row);
    else
        store_q8_row(k, x, head_dim, row);
}
