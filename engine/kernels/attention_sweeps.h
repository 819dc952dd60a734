/*
 * The sweeps of attention, for a level to include after it has defined, to be inlined with a constant type
 * and number of queries n_q (4, 2 or 1):
 *
 *   KEYS_AT_A_TIME(n_q), PARTS_AT_A_TIME(n_q)  constants: as many as keep the level's multiply-adds busy;
 *                                              a part is 16 elements, and there are 8, 4 or fewer
 *   dot_keys(type, n_q, q, rows, row_bytes, head_dim, scores, stride)  scores of KEYS_AT_A_TIME keys
 *   dot_1(type, q, row, head_dim)                                      score of one query and key
 *   weigh_part(type, n_q, n_part, p, stride, rows, n, head_dim, at, acc)
 *                                              adds n weighted values to n_part parts from element `at` on
 *
 * A row is converted in registers, once for the queries taken together.
 */
#ifndef LVR_ENGINE_KERNELS_ATTENTION_SWEEPS_H
#define LVR_ENGINE_KERNELS_ATTENTION_SWEEPS_H

#include "common/minmax.h"
#include "engine/kernels/levels.h"

#define SWEEP static inline __attribute__((always_inline))

SWEEP void keys_of(const lvr_kv_type type, const unsigned n_q, const float *q, const uint8_t *rows,
                   uint32_t n, uint32_t head_dim, float *scores, size_t stride)
{
    const size_t row_bytes = lvr_kv_row_bytes(type, head_dim);
    const uint32_t n_k = KEYS_AT_A_TIME(n_q);
    uint32_t j = 0;
    for (; j + n_k <= n; j += n_k, rows += n_k * row_bytes)
        dot_keys(type, n_q, q, rows, row_bytes, head_dim, scores + j, stride);
    for (; j < n; j++, rows += row_bytes)
        for (unsigned t = 0; t < n_q; t++)
            scores[t * stride + j] = dot_1(type, q + (size_t)t * head_dim, rows, head_dim);
}

SWEEP void weigh_for(const lvr_kv_type type, const unsigned n_q, const float *p, size_t stride,
                     const uint8_t *rows, uint32_t n, uint32_t head_dim, float *acc)
{
    const unsigned n_part = PARTS_AT_A_TIME(n_q);
    uint32_t at = 0;
    for (; at + 16 * n_part <= head_dim; at += 16 * n_part)
        weigh_part(type, n_q, n_part, p, stride, rows, n, head_dim, at, acc);
    for (; n_part > 4 && at + 64 <= head_dim; at += 64)
        weigh_part(type, n_q, 4, p, stride, rows, n, head_dim, at, acc);
    for (; at < head_dim; at += 16)
        weigh_part(type, n_q, 1, p, stride, rows, n, head_dim, at, acc);
}

SWEEP void sweep_keys_of(const lvr_kv_type type, const float *q, uint32_t n_q, const uint8_t *rows,
                         uint32_t n, uint32_t head_dim, float *scores, size_t stride)
{
    uint32_t i = 0;
    for (; i + 4 <= n_q; i += 4)
        keys_of(type, 4, q + (size_t)i * head_dim, rows, n, head_dim, scores + i * stride, stride);
    if (i + 2 <= n_q) {
        keys_of(type, 2, q + (size_t)i * head_dim, rows, n, head_dim, scores + i * stride, stride);
        i += 2;
    }
    if (i < n_q)
        keys_of(type, 1, q + (size_t)i * head_dim, rows, n, head_dim, scores + i * stride, stride);
}

SWEEP void sweep_values_of(const lvr_kv_type type, const float *p, size_t stride, uint32_t n_q,
                           const uint8_t *rows, uint32_t n, uint32_t head_dim, float *acc)
{
    uint32_t i = 0;
    for (; i + 4 <= n_q; i += 4)
        weigh_for(type, 4, p + i * stride, stride, rows, n, head_dim, acc + (size_t)i * head_dim);
    if (i + 2 <= n_q) {
        weigh_for(type, 2, p + i * stride, stride, rows, n, head_dim, acc + (size_t)i * head_dim);
        i += 2;
    }
    if (i < n_q)
        weigh_for(type, 1, p + i * stride, stride, rows, n, head_dim, acc + (size_t)i * head_dim);
}

/* Rows that stay in the first-level cache while all queries pass over them. */
SWEEP uint32_t rows_at_a_time(size_t row_bytes)
{
    const size_t rows = 8192 / row_bytes & ~(size_t)7;
    return rows > 8 ? (uint32_t)rows : 8;
}

SWEEP void sweep_keys(const lvr_kv_type type, const float *q, uint32_t n_q, const uint8_t *rows, uint32_t n,
                      uint32_t head_dim, float *scores, size_t stride)
{
    const size_t row_bytes = lvr_kv_row_bytes(type, head_dim);
    const uint32_t step = rows_at_a_time(row_bytes);
    for (uint32_t j = 0; j < n; j += step)
        sweep_keys_of(type, q, n_q, rows + j * row_bytes, lvr_min_u32(n - j, step), head_dim, scores + j,
                      stride);
}

SWEEP void sweep_values(const lvr_kv_type type, const float *p, size_t stride, uint32_t n_q,
                        const uint8_t *rows, uint32_t n, uint32_t head_dim, float *acc)
{
    const size_t row_bytes = lvr_kv_row_bytes(type, head_dim);
    const uint32_t step = rows_at_a_time(row_bytes);
    for (uint32_t j = 0; j < n; j += step)
        sweep_values_of(type, p + j, stride, n_q, rows + j * row_bytes, lvr_min_u32(n - j, step), head_dim,
                        acc);
}

static void keys_f16(const float *q, uint32_t n_q, const uint8_t *rows, uint32_t n, uint32_t head_dim,
                     float *scores, size_t stride)
{
    sweep_keys(LVR_KV_F16, q, n_q, rows, n, head_dim, scores, stride);
}

static void keys_q8(const float *q, uint32_t n_q, const uint8_t *rows, uint32_t n, uint32_t head_dim,
                    float *scores, size_t stride)
{
    sweep_keys(LVR_KV_Q8_0, q, n_q, rows, n, head_dim, scores, stride);
}

static void values_f16(const float *p, size_t stride, uint32_t n_q, const uint8_t *rows, uint32_t n,
                       uint32_t head_dim, float *acc)
{
    sweep_values(LVR_KV_F16, p, stride, n_q, rows, n, head_dim, acc);
}

static void values_q8(const float *p, size_t stride, uint32_t n_q, const uint8_t *rows, uint32_t n,
                      uint32_t head_dim, float *acc)
{
    sweep_values(LVR_KV_Q8_0, p, stride, n_q, rows, n, head_dim, acc);
}

static void use_attention(lvr_kernels *k)
{
    k->keys[LVR_KV_F16] = keys_f16;
    k->keys[LVR_KV_Q8_0] = keys_q8;
    k->values[LVR_KV_F16] = values_f16;
    k->values[LVR_KV_Q8_0] = values_q8;
}

#endif
