/* The vocabulary as the tokenizer's own files see it. Not a public header. */
#ifndef LVR_ENGINE_TOKENIZER_VOCAB_H
#define LVR_ENGINE_TOKENIZER_VOCAB_H

#include "engine/tokenizer/tokenizer.h"

/* Values are GGUF's tokenizer.ggml.token_type. */
enum lvr_token_type {
    LVR_TOKEN_UNDEFINED = 0,
    LVR_TOKEN_NORMAL = 1,
    LVR_TOKEN_UNKNOWN = 2,
    LVR_TOKEN_CONTROL = 3,
    LVR_TOKEN_USER = 4,
    LVR_TOKEN_UNUSED = 5,
    LVR_TOKEN_BYTE = 6,
    LVR_TOKEN_TYPES
};

struct lvr_piece {
    const char *s; /* in lvr_tokenizer.text, NUL-terminated */
    uint32_t n;
    float score;
    uint8_t type; /* enum lvr_token_type */
    uint8_t byte; /* of a LVR_TOKEN_BYTE */
};

struct lvr_tokenizer {
    char *path; /* of the GGUF, for messages */
    char *text; /* all pieces */
    struct lvr_piece *pieces;
    uint32_t n_pieces;
    int32_t *by_text; /* ids that text may become, sorted by their bytes, without duplicates */
    uint32_t n_by_text;
    uint32_t longest; /* bytes of the longest piece in by_text */
    int32_t *user;    /* ids of user-defined tokens, longest first */
    uint32_t n_user;
    int32_t bytes[256]; /* token for each byte; never -1 */
    int32_t bos, eos, unk;
    bool add_bos, add_space_prefix;
};

#define LVR_SPACE_MARK "\xe2\x96\x81" /* U+2581 stands for a space in pieces */
#define LVR_SPACE_MARK_BYTES 3u

/* The id whose piece is exactly these bytes, or -1. O(log vocabulary). */
int32_t lvr_vocab_find(const lvr_tokenizer *t, const char *s, size_t n);

#endif
