#include "engine/synth/chain.h"
#include "engine/synth/values.h"
#include <stdlib.h>

#define TURN_TOKENS 512u /* wanted before any word can come again */

static const float eases[LVR_CHAIN_EASES] = {0.2f, 0.6f, 1.2f, 2.0f};

struct ordered {
    uint64_t hash;
    int32_t token;
};

static int by_hash(const void *a, const void *b)
{
    const struct ordered *x = a, *y = b;
    if (x->hash != y->hash)
        return x->hash < y->hash ? -1 : 1;
    return (x->token > y->token) - (x->token < y->token);
}

static void lay_circle(lvr_chain *c, const bool *is_word, struct ordered *order, uint32_t n_own)
{
    uint32_t n = 0;
    for (uint32_t t = 0; t < n_own; t++)
        if (is_word[t])
            order[n++] = (struct ordered){.hash = lvr_synth_hash(c->key, t), .token = (int32_t)t};
    qsort(order, n, sizeof *order, by_hash);
    for (uint32_t t = 0; t < c->n_tokens; t++)
        c->place[t] = (uint32_t)(lvr_synth_hash(c->key, t) % n);
    for (uint32_t i = 0; i < n; i++) {
        c->words[i] = order[i].token;
        c->place[order[i].token] = i;
    }
}

lvr_status lvr_chain_new(const lvr_synth_vocab *v, uint32_t n_tokens, uint64_t seed, uint32_t n_successors,
                         lvr_chain *ret, lvr_error *err)
{
    const uint32_t n_own = lvr_synth_vocab_own(v);
    lvr_chain c = {.key = lvr_synth_key(seed, "chain"), .n_tokens = n_tokens, .n_successors = n_successors};
    lvr_status status = LVR_OK;
    bool *is_word = calloc(n_own, sizeof *is_word);
    struct ordered *order = calloc(n_own, sizeof *order);
    c.words = calloc(n_own, sizeof *c.words);
    c.place = calloc(n_tokens, sizeof *c.place);
    if (is_word == NULL || order == NULL || c.words == NULL || c.place == NULL) {
        status = lvr_fail(err, LVR_ERR_NOMEM, "out of memory for the chain of %u tokens", n_tokens);
        goto out;
    }
    c.n_words = lvr_synth_vocab_words(v, is_word);
    if (c.n_words < 16 * n_successors) {
        status = lvr_fail(err, LVR_ERR_CONFIG,
                          "the vocabulary has %u printable words: a chain of %u successors needs at least %u",
                          c.n_words, n_successors, 16 * n_successors);
        goto out;
    }
    c.span = c.n_words / TURN_TOKENS > n_successors ? c.n_words / TURN_TOKENS : n_successors;
    lay_circle(&c, is_word, order, n_own);
out:
    free(is_word);
    free(order);
    if (status != LVR_OK)
        lvr_chain_free(&c);
    else
        *ret = c;
    return status;
}

void lvr_chain_free(lvr_chain *c)
{
    free(c->words);
    free(c->place);
    *c = (lvr_chain){0};
}

/* One successor from each of K equal parts of the span; which part is the likeliest is random. */
void lvr_chain_successors(const lvr_chain *c, int32_t token, int32_t *ret)
{
    const uint32_t part = c->span / c->n_successors, place = c->place[token];
    const uint64_t h = lvr_synth_hash(~c->key, place);
    const uint32_t turn = (uint32_t)(h >> 32) % c->n_successors;
    for (uint32_t k = 0; k < c->n_successors; k++) {
        const uint32_t which = (k + turn) % c->n_successors;
        const uint32_t within = (uint32_t)(h >> (4u * k)) % part;
        ret[k] = c->words[(place + 1 + which * part + within) % c->n_words];
    }
}

uint32_t lvr_chain_ease_index(const lvr_chain *c, int32_t token)
{
    return (uint32_t)(lvr_synth_hash(~c->key, c->place[token]) >> 62);
}

float lvr_chain_ease_level(uint32_t level)
{
    return eases[level];
}
