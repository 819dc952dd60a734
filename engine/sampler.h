/*
 * The target's own token at a position. Greedy: the largest logit, ties to the smallest id. Sampled:
 * softmax(logits / temperature), cut to top_k and then top_p (of what top_k kept), ordered by (logit
 * descending, id ascending), inverse CDF with u = lvr_hash_unit(seed, request, position of the new token):
 * the same u whatever the policy, so that every policy emits the same text (INV-LOSSLESS). exp is the
 * kernels' (the same bits at every level and with any libm); every sum and cut is made in double. Also the
 * draft's proposal: the top-k children with their softmax probabilities (temperature 1).
 */
#ifndef LVR_ENGINE_SAMPLER_H
#define LVR_ENGINE_SAMPLER_H

#include "costmodel/core/tree.h"
#include "engine/kernels/kernels.h"

typedef struct lvr_sampling {
    double temperature; /* 0: greedy */
    uint32_t top_k;     /* 0: all */
    double top_p;       /* 1: all */
    uint64_t seed;
} lvr_sampling;

typedef struct lvr_sampler lvr_sampler; /* scratch for one vocabulary size */

lvr_status lvr_sampler_new(uint32_t vocab, const lvr_kernels *kernels, lvr_sampler **ret, lvr_error *err);
void lvr_sampler_free(lvr_sampler *s);
/* Token for output position `position` of `request`; its probability under the settings (greedy: softmax at
 * temperature 1) to ret_p if not NULL. -1 if no logit is finite: the weights are damaged. Else a NaN counts
 * as -inf, and +inf as the largest finite float. */
int32_t lvr_sample(lvr_sampler *s, const lvr_sampling *settings, uint64_t request, uint32_t position,
                   const float *logits, float *ret_p);
/* The error for such logits of the model in `path`: LVR_ERR_FORMAT. */
lvr_status lvr_fail_logits(const char *path, uint64_t request, uint32_t position, lvr_error *err);
/* The k most probable tokens, best first, ties to the smaller id; returns how many (min(k, vocab)). */
uint32_t lvr_top_candidates(lvr_sampler *s, const float *logits, uint32_t k, lvr_candidate *ret);

#endif
