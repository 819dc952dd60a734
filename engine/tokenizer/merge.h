/*
 * Merging adjacent symbols, best pair first and the leftmost of equals, until no pair can be merged: what
 * both kinds of BPE do. They differ in what a pair becomes and how good it is. Not a public header.
 */
#ifndef LVR_ENGINE_TOKENIZER_MERGE_H
#define LVR_ENGINE_TOKENIZER_MERGE_H

#include "engine/tokenizer/vocab.h"

struct lvr_symbol {
    int32_t prev, next; /* -1: none */
    uint32_t begin, n;  /* bytes in lvr_merger.text; n = 0: merged into its left neighbour */
    int32_t id;         /* its token, -1: none or not looked up */
};

/* A pair that could be merged. It is stale once either side has changed: then the lengths no longer add up.
 */
struct lvr_candidate {
    uint64_t order; /* smaller is better: how good in the upper half, the left symbol in the lower */
    uint32_t n;     /* bytes of both */
    int32_t id;     /* what they become */
};

struct lvr_merger;
/* What left and right become and how good that is (smaller is better); false: they cannot be merged. */
typedef bool (*lvr_pair_fn)(const struct lvr_merger *m, const struct lvr_symbol *left,
                            const struct lvr_symbol *right, uint32_t *ret_rank, int32_t *ret_id);

/* Scratch memory of one text; zero-initialised, grows with the longest part. */
struct lvr_merger {
    const lvr_tokenizer *t;
    lvr_pair_fn pair;
    const char *text;
    struct lvr_symbol *symbols;
    uint32_t n_symbols, cap;
    struct lvr_candidate *heap;
    uint32_t n_heap;
};

/* Room for n symbols; forgets those there were. false: out of memory. */
bool lvr_merger_reserve(struct lvr_merger *m, size_t n);
/* Appends a symbol for n bytes that follow those before. Not more than were reserved. */
void lvr_merger_push(struct lvr_merger *m, uint32_t n, int32_t id);
void lvr_merger_run(struct lvr_merger *m); /* symbols from 0 along `next` are the result */
void lvr_merger_free(struct lvr_merger *m);

#endif
