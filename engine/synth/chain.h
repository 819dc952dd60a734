/*
 * The planted Markov chain. Every token has K successors, a function of (seed, vocabulary) alone, so that
 * models of any shape share it. The words of the vocabulary lie on a circle in random order; a word's
 * successors are K different places among the next `span` ones. A text that follows the chain can come back
 * to a word only after a whole turn: at least n_words / span tokens, 512 where the vocabulary has more than a
 * few thousand words. The first successor is the likeliest, the last the least; how clear the preference is
 * differs from token to token (lvr_chain_ease_index), so that a draft's confidence says something about the
 * target.
 */
#ifndef LVR_ENGINE_SYNTH_CHAIN_H
#define LVR_ENGINE_SYNTH_CHAIN_H

#include "engine/synth/vocabulary.h"

#define LVR_CHAIN_MIN_SUCCESSORS 2u
#define LVR_CHAIN_MAX_SUCCESSORS 8u
#define LVR_CHAIN_EASES 4u /* levels of ease, of mean 1 and equally frequent */

typedef struct lvr_chain {
    uint64_t key;
    uint32_t n_tokens, n_words, n_successors, span;
    int32_t *words;  /* token at each place of the circle */
    uint32_t *place; /* of each token; tokens that are no words stand beside a random place */
} lvr_chain;

/* n_tokens: with padding. Too few words is LVR_ERR_CONFIG. */
lvr_status lvr_chain_new(const lvr_synth_vocab *v, uint32_t n_tokens, uint64_t seed, uint32_t n_successors,
                         lvr_chain *ret, lvr_error *err);
void lvr_chain_free(lvr_chain *c);
/* ret[n_successors], likeliest first. token in [0, n_tokens). */
void lvr_chain_successors(const lvr_chain *c, int32_t token, int32_t *ret);
/* Which level of ease the token has: how much clearer than on average its preference is. */
uint32_t lvr_chain_ease_index(const lvr_chain *c, int32_t token);
float lvr_chain_ease_level(uint32_t level);

#endif
