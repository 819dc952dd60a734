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
    const char *s;   /* as in the file, NUL-terminated, in lvr_tokenizer.text */
    const char *raw; /* the bytes it stands for in a text, in lvr_tokenizer.raw */
    uint32_t n, n_raw;
    float score;
    uint8_t type; /* enum lvr_token_type */
};

/* Entry of an open-addressing table; id -1: free. */
struct lvr_text_slot {
    uint32_t hash;
    int32_t id;
};

#define LVR_MAX_PIECE_BYTES 65535u

struct lvr_bpe;

struct lvr_tokenizer {
    char *path;      /* of the GGUF, for messages */
    char *text;      /* all pieces */
    char *raw;       /* what they stand for */
    uint64_t n_text; /* bytes of text; raw needs no more */
    struct lvr_piece *pieces;
    uint32_t n_pieces;
    struct lvr_text_slot *by_text; /* [mask + 1] */
    uint32_t by_text_mask;
    uint32_t longest; /* bytes of the longest piece */
    int32_t *special; /* ids of user-defined, control and unknown tokens, sorted by their bytes */
    uint32_t n_special;
    bool special_begins[256]; /* first bytes of these */
    int32_t bytes[256];       /* token for each byte; -1: none (BPE, only bytes that UTF-8 never has) */
    int32_t bos, eos, unk;    /* -1: none */
    int32_t eog[LVR_MAX_EOG];
    uint32_t n_eog;
    bool add_bos, add_eos, add_space_prefix;
    bool words_are_apart; /* SPM: no piece has a mark after another character, so text can be cut before marks
                           */
    struct lvr_bpe *bpe;  /* NULL: SentencePiece style */
    char *architecture, *chat_template; /* of the model, "": none */
};

#define LVR_SPACE_MARK "\xe2\x96\x81" /* U+2581 stands for a space in SentencePiece pieces */
#define LVR_SPACE_MARK_BYTES 3u

/* Fills everything but bytes, raw and bpe: pieces, scores, types, special ids, the tables. sentencepiece: the
 * scores are needed, and the ids that such models have without saying so are assumed. */
lvr_status lvr_vocab_load(lvr_tokenizer *t, const lvr_gguf *g, bool sentencepiece, lvr_error *err);
/* The id whose piece is exactly these bytes, or -1; of equal pieces one that text may become, of those the
 * last. */
int32_t lvr_vocab_find_any(const lvr_tokenizer *t, const char *s, size_t n);
/* Text never becomes a control, unknown or byte token, even if it spells one: a prompt cannot smuggle in a
 * </s>. */
bool lvr_vocab_reachable(const struct lvr_piece *p);
/* As lvr_vocab_find_any, but -1 if text cannot become it. */
int32_t lvr_vocab_find(const lvr_tokenizer *t, const char *s, size_t n);
/* Bytes without a token become the unknown token; LVR_ERR_FORMAT if there is none. utf8_only: bytes that
 * UTF-8 never has may stay without. */
lvr_status lvr_vocab_fill_bytes(lvr_tokenizer *t, bool utf8_only, lvr_error *err);

/* A special token in a text. */
struct lvr_special_hit {
    size_t begin, n;
    int32_t id;
};
bool lvr_special_index(lvr_tokenizer *t); /* sorts t->special; false: out of memory */
/* The first special token in text[begin, end). Longer tokens are found before shorter ones that overlap them,
 * wherever they begin; of two equally long ones the smaller id. control: also control and unknown tokens. */
bool lvr_special_next(const lvr_tokenizer *t, const char *text, size_t begin, size_t end, bool control,
                      struct lvr_special_hit *ret);

struct lvr_tokens {
    int32_t *ids;
    uint32_t n, cap;
};
bool lvr_tokens_push(struct lvr_tokens *out, int32_t id); /* false: out of memory */
/* A file's text for a message: its first whole characters, what does not print as '?'. */
struct lvr_shown {
    char text[72];
};
struct lvr_shown lvr_show(const char *s, size_t n);
lvr_status lvr_tokenizer_no_memory(const lvr_tokenizer *t, lvr_error *err);

#endif
