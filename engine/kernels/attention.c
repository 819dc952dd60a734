#include "engine/kernels/attention.h"

#include <string.h>

#define LINE_FLOATS 16u /* of a cache line */

static uint64_t round_to_lines(uint64_t n)
{
    return (n + LINE_FLOATS - 1) / LINE_FLOATS * LINE_FLOATS;
}

/* An odd number of cache lines: the scores of several queries at one position, written together, are then
 * spread over the sets of the processor's cache. */
static uint64_t stride_of(uint32_t n_ctx)
{
    const uint64_t lines = round_to_lines(n_ctx) / LINE_FLOATS;
    return (lines | 1u) * LINE_FLOATS;
}

uint64_t lvr_attention_floats(uint32_t head_dim, uint32_t n_ctx)
{
    return LVR_ATTENTION_QUERIES * (2 * (uint64_t)head_dim + stride_of(n_ctx));
}

void lvr_attention_init(lvr_attention *a, uint32_t head_dim, uint32_t n_ctx, float scale, float *memory)
{
    const size_t queries = (size_t)LVR_ATTENTION_QUERIES * head_dim;
    *a = (lvr_attention){
        .head_dim = head_dim, .scale = scale, .stride = (size_t)stride_of(n_ctx), .q = memory};
    a->acc = a->q + queries;
    a->scores = a->acc + queries;
}

void lvr_attention_begin(lvr_attention *a, const lvr_kernels *kernels, lvr_kv_type type)
{
    a->kernels = kernels;
    a->type = type;
    a->n_queries = 0;
}

void lvr_attention_add_queries(lvr_attention *a, const float *q, uint32_t n)
{
    const size_t at = (size_t)a->n_queries * a->head_dim, floats = (size_t)n * a->head_dim;
    memcpy(a->q + at, q, floats * sizeof *q);
    memset(a->acc + at, 0, floats * sizeof *a->acc);
    for (uint32_t i = 0; i < n; i++) {
        a->n_keys[a->n_queries + i] = 0;
        a->n_values[a->n_queries + i] = 0;
    }
    a->n_queries += n;
}

void lvr_attention_keys(lvr_attention *a, uint32_t first, uint32_t n_queries, const uint8_t *rows, uint32_t n)
{
    float *scores = a->scores + first * a->stride + a->n_keys[first];
    a->kernels->keys[a->type](a->q + (size_t)first * a->head_dim, n_queries, rows, n, a->head_dim, scores,
                              a->stride);
    for (uint32_t i = 0; i < n_queries; i++)
        a->n_keys[first + i] += n;
}

void lvr_attention_softmax(lvr_attention *a)
{
    for (uint32_t i = 0; i < a->n_queries; i++) {
        float *scores = a->scores + i * a->stride;
        const float max = a->kernels->max(scores, a->n_keys[i]);
        a->sum[i] = a->kernels->softmax_exp(scores, a->n_keys[i], max, a->scale, scores);
    }
}

void lvr_attention_values(lvr_attention *a, uint32_t first, uint32_t n_queries, const uint8_t *rows,
                          uint32_t n)
{
    const float *p = a->scores + first * a->stride + a->n_values[first];
    a->kernels->values[a->type](p, a->stride, n_queries, rows, n, a->head_dim,
                                a->acc + (size_t)first * a->head_dim);
    for (uint32_t i = 0; i < n_queries; i++)
        a->n_values[first + i] += n;
}

void lvr_attention_result(const lvr_attention *a, uint32_t first, uint32_t n, float *out)
{
    for (size_t i = 0; i < n; i++)
        for (size_t e = 0; e < a->head_dim; e++)
            out[i * a->head_dim + e] = a->acc[(first + i) * a->head_dim + e] / a->sum[first + i];
}
