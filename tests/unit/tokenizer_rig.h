/* Small vocabularies, and what the tokenizer tests ask of a tokenizer. Failures are Criterion's. */
#ifndef LVR_TESTS_TOKENIZER_RIG_H
#define LVR_TESTS_TOKENIZER_RIG_H

#include "engine/tokenizer/tokenizer.h"

#define TOK_MARK "\xe2\x96\x81"
#define TOK_MAX_PIECES 600
#define TOK_MAX_MERGES 64

enum { TOK_NORMAL = 1, TOK_UNKNOWN = 2, TOK_CONTROL = 3, TOK_USER = 4, TOK_UNUSED = 5, TOK_BYTE = 6 };

struct tok_piece {
    const char *text;
    float score;
    int32_t type;
};

struct tok_vocab {
    const char *model, *pre, *architecture, *chat_template; /* NULL: no key */
    struct tok_piece pieces[TOK_MAX_PIECES];
    uint32_t n;
    const char *merges[TOK_MAX_MERGES];
    uint32_t n_merges;
    int32_t bos, eos, eot;                  /* -2: no key */
    int add_space_prefix, add_bos, add_eos; /* -1: no key */
    uint32_t n_scores, n_types;             /* lengths of these arrays if they should be wrong */
    bool no_scores, no_types, no_merges;    /* no key */
};

struct tok_vocab tok_empty_vocab(const char *model);
/* <unk> <s> </s>, and tokens for all bytes from id 3 on. */
struct tok_vocab tok_spm_vocab(bool with_bytes);
/* Byte-level: the character that stands for each byte, with the byte as its id; merges of pre. */
struct tok_vocab tok_bpe_vocab(const char *pre);
void tok_add(struct tok_vocab *v, const char *text, float score, int32_t type);
void tok_add_merge(struct tok_vocab *v, const char *merge,
                   const char *piece); /* and the piece, if not NULL */

lvr_status tok_make(const struct tok_vocab *v, lvr_tokenizer **ret, lvr_error *err);
lvr_tokenizer *tok_must_make(const struct tok_vocab *v);
void tok_expect_refused(const struct tok_vocab *v, lvr_status expected, const char *says);

/* Where the models and vocabularies lie that are shared between checkouts; false if it is not there. */
bool tok_shared_path(const char *name, char *ret, size_t n);
lvr_tokenizer *tok_open(const char *path);

void tok_expect_ids(const lvr_tokenizer *t, const char *text, size_t n, const int32_t *ids, uint32_t n_ids);
void tok_expect_special_ids(const lvr_tokenizer *t, const char *text, size_t n, const int32_t *ids,
                            uint32_t n_ids);
void tok_expect_round_trip(const lvr_tokenizer *t, const char *text, size_t n);

#define IDS(...) (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t)
#define TEXT(literal) literal, sizeof(literal) - 1

#endif
