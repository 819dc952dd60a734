/*
 * Attention of several queries of one KV head: the heads of its query group (grouped-query attention) in one
 * row or in several rows of a pass that see the same positions. Two sweeps over the positions, keys and
 * values, each in ascending logical position and in pieces that lie one after the other in memory; a piece is
 * read and converted once for all queries it is given to, so that a cache which the rows of a pass share is
 * read once per LVR_ATTENTION_QUERIES queries. How queries and positions are grouped changes no bit
 * (kernels.h gives each query's arithmetic).
 *
 *   lvr_attention_begin
 *   lvr_attention_add_queries, one or more times
 *   lvr_attention_keys, for all positions of each query
 *   lvr_attention_softmax
 *   lvr_attention_values, for the same positions
 *   lvr_attention_result
 *
 * A workspace belongs to one thread.
 */
#ifndef LVR_ENGINE_KERNELS_ATTENTION_H
#define LVR_ENGINE_KERNELS_ATTENTION_H

#include "engine/kernels/kernels.h"

#define LVR_ATTENTION_QUERIES 16u

typedef struct lvr_attention {
    uint32_t head_dim;
    float scale;
    size_t stride;                          /* floats from a query's scores to the next one's */
    float *q, *acc;                         /* [LVR_ATTENTION_QUERIES][head_dim] */
    float *scores;                          /* [LVR_ATTENTION_QUERIES][stride] */
    uint32_t n_queries;                     /* of this group */
    uint32_t n_keys[LVR_ATTENTION_QUERIES]; /* positions swept so far */
    uint32_t n_values[LVR_ATTENTION_QUERIES];
    float sum[LVR_ATTENTION_QUERIES];
    const lvr_kernels *kernels;
    lvr_kv_type type;
} lvr_attention;

/* Floats of memory that a workspace needs, for up to n_ctx positions; less than 2^40 for
 * any arguments. */
uint64_t lvr_attention_floats(uint32_t head_dim, uint32_t n_ctx);
/* memory: lvr_attention_floats, 64-byte aligned. */
void lvr_attention_init(lvr_attention *a, uint32_t head_dim, uint32_t n_ctx, float scale, float *memory);

/* A group without queries. */
void lvr_attention_begin(lvr_attention *a, const lvr_kernels *kernels, lvr_kv_type type);
/* Takes up a copy of n queries, q[n][head_dim]; up to LVR_ATTENTION_QUERIES in a group. */
void lvr_attention_add_queries(lvr_attention *a, const float *q, uint32_t n);
/* The next n positions of the queries [first, first + n_queries), whose rows lie one after the other. All of
 * these queries have swept as many positions. */
void lvr_attention_keys(lvr_attention *a, uint32_t first, uint32_t n_queries, const uint8_t *rows,
                        uint32_t n);
void lvr_attention_softmax(lvr_attention *a);
void lvr_attention_values(lvr_attention *a, uint32_t first, uint32_t n_queries, const uint8_t *rows,
                          uint32_t n);
/* The results of n queries from `first` on: out[n][head_dim]. */
void lvr_attention_result(const lvr_attention *a, uint32_t first, uint32_t n, float *out);

#endif
