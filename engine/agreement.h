/*
 * How well a draft foretells its target, and early layers the last one: the target generates greedily, then
 * the draft is given the target's own text (teacher forcing) and asked for its next token at every position.
 * What a chain of drafted tokens would have had accepted follows from that exactly, because an accepted
 * prefix is the target's text.
 */
#ifndef LVR_ENGINE_AGREEMENT_H
#define LVR_ENGINE_AGREEMENT_H

#include "engine/pair.h"
#include <stdatomic.h>

#define LVR_AGREEMENT_TOP 4u
#define LVR_AGREEMENT_CHAIN 4u /* drafted tokens of a round */

typedef struct lvr_agreement_config {
    const int32_t *prompt; /* at least one token */
    uint32_t n_prompt;
    uint32_t n_tokens;      /* to generate, at least 1 */
    const uint32_t *layers; /* early layers to read, 1 = after the first; NULL: none */
    uint32_t n_layers;
    atomic_bool *cancel; /* NULL, or: LVR_ERR_INTERRUPTED */
} lvr_agreement_config;

typedef struct lvr_agreement {
    uint32_t n_tokens;
    int32_t *tokens;  /* the target's text */
    double *early;    /* by layer asked for: rate at which its head's best token is the last layer's */
    double logit_std; /* of the target's logits over the vocabulary, mean over positions */

    /* Repetition in the text. */
    uint32_t distinct_tokens;
    double repeated_4grams;   /* share of 4-grams that occurred before */
    uint32_t shortest_return; /* tokens from one occurrence of a token to its next; 0: none came again */

    /* Only with a draft. */
    double top[LVR_AGREEMENT_TOP]; /* rate at which the target's token is among the draft's k + 1 best */
    double accepted;               /* mean accepted tokens of a chain of LVR_AGREEMENT_CHAIN, over rounds */
    double confidence_right;       /* the draft's mean probability of its best token where it is right */
    double confidence_wrong;       /* ... and where it is not; NaN: never */
} lvr_agreement;

/* The pair is loaded with every layer resident, one row of target logits, at least LVR_AGREEMENT_ROWS rows
 * and scratch rows on both sides, and a context of n_prompt + n_tokens. Its caches are cleared. */
#define LVR_AGREEMENT_ROWS 16u
lvr_status lvr_agreement_measure(lvr_pair *pair, const lvr_agreement_config *c, lvr_agreement *ret,
                                 lvr_error *err);
void lvr_agreement_free(lvr_agreement *a);

#endif
