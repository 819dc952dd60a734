#include "engine/tokenizer/vocab.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PIECES (1u << 24)

lvr_status lvr_tokenizer_no_memory(const lvr_tokenizer *t, lvr_error *err)
{
    return lvr_fail(err, LVR_ERR_NOMEM, "%s: tokenizer: out of memory", t->path);
}

struct lvr_shown lvr_show(const char *s, size_t n)
{
    struct lvr_shown shown = {0};
    size_t at = 0;
    for (size_t i = 0; i < n;) {
        const size_t len = lvr_utf8_len(s + i, n - i), taken = len > 0 ? len : 1;
        if (at + taken >= sizeof(shown.text))
            break;
        const unsigned char c = (unsigned char)s[i];
        const bool prints = len > 1 ? !(c == 0xc2 && (unsigned char)s[i + 1] < 0xa0) : c >= 0x20 && c < 0x7f;
        if (prints)
            memcpy(shown.text + at, s + i, taken);
        else
            shown.text[at] = '?';
        at += prints ? taken : 1;
        i += taken;
    }
    return shown;
}

bool lvr_tokens_push(struct lvr_tokens *out, int32_t id)
{
    if (out->n == out->cap) {
        const uint32_t cap = out->cap ? out->cap * 2 : 64;
        int32_t *grown = realloc(out->ids, cap * sizeof(*grown));
        if (grown == NULL)
            return false;
        out->ids = grown;
        out->cap = cap;
    }
    out->ids[out->n++] = id;
    return true;
}

/* ---- look-up by text ---- */

static uint32_t hash_text(const char *s, size_t n)
{
    const uint64_t factor = 0x9e3779b97f4a7c15u;
    uint64_t h = n * factor, word = 0;
    for (; n >= 8; s += 8, n -= 8) {
        memcpy(&word, s, 8);
        h = (h ^ word) * factor;
        h ^= h >> 29;
    }
    word = 0;
    memcpy(&word, s, n);
    h = (h ^ word) * factor;
    return (uint32_t)((h ^ h >> 32) * factor >> 32);
}

/* The slot that holds the text, or the free one where it belongs. */
static uint32_t find_slot(const lvr_tokenizer *t, const char *s, size_t n, uint32_t hash)
{
    uint32_t i = hash & t->by_text_mask;
    for (; t->by_text[i].id >= 0; i = (i + 1) & t->by_text_mask) {
        const struct lvr_piece *p = &t->pieces[t->by_text[i].id];
        if (t->by_text[i].hash == hash && p->n == n && memcmp(p->s, s, n) == 0)
            break;
    }
    return i;
}

int32_t lvr_vocab_find_any(const lvr_tokenizer *t, const char *s, size_t n)
{
    if (n == 0 || n > t->longest)
        return -1;
    return t->by_text[find_slot(t, s, n, hash_text(s, n))].id;
}

bool lvr_vocab_reachable(const struct lvr_piece *p)
{
    return p->type != LVR_TOKEN_CONTROL && p->type != LVR_TOKEN_UNKNOWN && p->type != LVR_TOKEN_BYTE;
}

int32_t lvr_vocab_find(const lvr_tokenizer *t, const char *s, size_t n)
{
    const int32_t id = lvr_vocab_find_any(t, s, n);
    return id >= 0 && lvr_vocab_reachable(&t->pieces[id]) ? id : -1;
}

static void index_piece(lvr_tokenizer *t, uint32_t id)
{
    const struct lvr_piece *p = &t->pieces[id];
    const uint32_t hash = hash_text(p->s, p->n), i = find_slot(t, p->s, p->n, hash);
    const int32_t old = t->by_text[i].id;
    if (old >= 0 && lvr_vocab_reachable(&t->pieces[old]) && !lvr_vocab_reachable(p))
        return;
    t->by_text[i] = (struct lvr_text_slot){.hash = hash, .id = (int32_t)id};
}

static lvr_status index_by_text(lvr_tokenizer *t, lvr_error *err)
{
    uint32_t size = 16;
    while (size < 2 * t->n_pieces)
        size *= 2;
    t->by_text = malloc(size * sizeof(*t->by_text));
    if (t->by_text == NULL)
        return lvr_tokenizer_no_memory(t, err);
    memset(t->by_text, 0xff, size * sizeof(*t->by_text));
    t->by_text_mask = size - 1;
    for (uint32_t i = 0; i < t->n_pieces; i++)
        if (t->pieces[i].n > 0)
            index_piece(t, i);
    return LVR_OK;
}

/* ---- pieces ---- */

static lvr_status copy_text(lvr_tokenizer *t, const lvr_gguf_str *tokens, lvr_error *err)
{
    for (uint32_t i = 0; i < t->n_pieces; i++) {
        if (tokens[i].n > LVR_MAX_PIECE_BYTES)
            return lvr_fail(err, LVR_ERR_FORMAT,
                            "%s: tokenizer.ggml.tokens: token %u has %" PRIu64 " bytes (at most %u allowed)",
                            t->path, i, tokens[i].n, LVR_MAX_PIECE_BYTES);
        t->n_text += tokens[i].n + 1;
    }
    t->text = malloc(t->n_text);
    if (t->text == NULL)
        return lvr_tokenizer_no_memory(t, err);
    char *at = t->text;
    for (uint32_t i = 0; i < t->n_pieces; i++) {
        struct lvr_piece *p = &t->pieces[i];
        memcpy(at, tokens[i].s, tokens[i].n);
        at[tokens[i].n] = '\0';
        p->s = at;
        p->n = (uint32_t)tokens[i].n;
        at += tokens[i].n + 1;
        t->longest = p->n > t->longest ? p->n : t->longest;
    }
    return LVR_OK;
}

static lvr_status load_tokens(lvr_tokenizer *t, const lvr_gguf *g, lvr_error *err)
{
    const lvr_gguf_str *tokens = NULL;
    uint64_t n = 0;
    const lvr_status status = lvr_gguf_str_array(g, "tokenizer.ggml.tokens", &tokens, &n, err);
    if (status != LVR_OK)
        return status;
    if (n == 0 || n > MAX_PIECES)
        return lvr_fail(err, LVR_ERR_FORMAT,
                        "%s: tokenizer.ggml.tokens has %" PRIu64 " tokens (expected 1 to %u)", t->path, n,
                        MAX_PIECES);
    t->pieces = calloc(n, sizeof(*t->pieces));
    if (t->pieces == NULL)
        return lvr_tokenizer_no_memory(t, err);
    t->n_pieces = (uint32_t)n;
    return copy_text(t, tokens, err);
}

static lvr_status same_length(const lvr_tokenizer *t, const char *key, uint64_t n, lvr_error *err)
{
    if (n == t->n_pieces)
        return LVR_OK;
    return lvr_fail(err, LVR_ERR_FORMAT, "%s: %s has %" PRIu64 " elements, but the vocabulary has %u tokens",
                    t->path, key, n, t->n_pieces);
}

static lvr_status load_scores(lvr_tokenizer *t, const lvr_gguf *g, lvr_error *err)
{
    static const char key[] = "tokenizer.ggml.scores";
    const float *scores = NULL;
    uint64_t n = 0;
    lvr_status status = lvr_gguf_f32_array(g, key, &scores, &n, err);
    if (status == LVR_OK)
        status = same_length(t, key, n, err);
    if (status != LVR_OK)
        return status;
    for (uint32_t i = 0; i < t->n_pieces; i++) {
        if (isnan(scores[i]))
            return lvr_fail(err, LVR_ERR_FORMAT, "%s: %s: the score of token %u is not a number", t->path,
                            key, i);
        t->pieces[i].score = scores[i];
    }
    return LVR_OK;
}

static lvr_status load_types(lvr_tokenizer *t, const lvr_gguf *g, lvr_error *err)
{
    static const char key[] = "tokenizer.ggml.token_type";
    const int32_t *types = NULL;
    uint64_t n = 0;
    lvr_status status = lvr_gguf_i32_array(g, key, &types, &n, err);
    if (status == LVR_OK)
        status = same_length(t, key, n, err);
    if (status != LVR_OK)
        return status;
    for (uint32_t i = 0; i < t->n_pieces; i++) {
        if (types[i] < 0 || types[i] >= LVR_TOKEN_TYPES)
            return lvr_fail(err, LVR_ERR_FORMAT, "%s: %s: token %u has type %d (expected 0 to %d)", t->path,
                            key, i, types[i], LVR_TOKEN_TYPES - 1);
        t->pieces[i].type = (uint8_t)types[i];
    }
    return LVR_OK;
}

/* ---- special ids ---- */

/* A special token's id: the key's value, else `fallback` if that token has the type such a token has, else
 * none. */
static lvr_status load_id(const lvr_tokenizer *t, const lvr_gguf *g, const char *key, uint32_t fallback,
                          enum lvr_token_type type, int32_t *ret, lvr_error *err)
{
    uint32_t id = 0;
    if (!lvr_gguf_has(g, key)) {
        *ret = fallback < t->n_pieces && t->pieces[fallback].type == type ? (int32_t)fallback : -1;
        return LVR_OK;
    }
    const lvr_status status = lvr_gguf_u32(g, key, &id, err);
    if (status != LVR_OK)
        return status;
    if (id >= t->n_pieces)
        return lvr_fail(err, LVR_ERR_FORMAT, "%s: %s is %u, but the vocabulary has %u tokens", t->path, key,
                        id, t->n_pieces);
    *ret = (int32_t)id;
    return LVR_OK;
}

static void add_eog(lvr_tokenizer *t, int32_t id)
{
    if (id >= 0 && t->n_eog < LVR_MAX_EOG && !lvr_tokenizer_is_eog(t, id))
        t->eog[t->n_eog++] = id;
}

/* Tokens that models use without saying so in the file. Some files call them normal or user-defined tokens,
 * but they are control tokens: a text must not spell them. */
static const struct {
    const char *piece;
    bool ends;
} well_known[] = {
    {"<|eot_id|>", true},
    {"<|eom_id|>", true},
    {"<|im_end|>", true},
    {"<|end_of_text|>", true},
    {"<|endoftext|>", true},
    {"<|end|>", true},
    {"<end_of_turn>", true},
    {"<\xef\xbd\x9c"
     "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>",
     true},
    {"<|fim_pad|>", true},
    {"<|repo_name|>", true},
    {"<|file_sep|>", true},
    {"<|fim_prefix|>", false},
    {"<|fim_middle|>", false},
    {"<|fim_suffix|>", false},
    {"<|im_start|>", false},
    {"<|start_header_id|>", false},
    {"<|end_header_id|>", false},
};

static void find_well_known(lvr_tokenizer *t)
{
    for (size_t i = 0; i < sizeof(well_known) / sizeof(well_known[0]); i++) {
        const char *piece = well_known[i].piece;
        const int32_t id = lvr_vocab_find_any(t, piece, strlen(piece));
        if (id < 0 || t->pieces[id].type == LVR_TOKEN_BYTE)
            continue;
        t->pieces[id].type = LVR_TOKEN_CONTROL;
        if (well_known[i].ends)
            add_eog(t, id);
    }
}

static lvr_status load_ids(lvr_tokenizer *t, const lvr_gguf *g, bool sentencepiece, lvr_error *err)
{
    const struct {
        const char *key;
        uint32_t fallback; /* what SentencePiece models have without saying so */
        enum lvr_token_type type;
        int32_t *id;
        bool ends;
    } ids[] = {
        {"tokenizer.ggml.bos_token_id", 1, LVR_TOKEN_CONTROL, &t->bos, false},
        {"tokenizer.ggml.eos_token_id", 2, LVR_TOKEN_CONTROL, &t->eos, true},
        {"tokenizer.ggml.unknown_token_id", 0, LVR_TOKEN_UNKNOWN, &t->unk, false},
        {"tokenizer.ggml.eot_token_id", UINT32_MAX, LVR_TOKEN_CONTROL, NULL, true},
        {"tokenizer.ggml.eom_token_id", UINT32_MAX, LVR_TOKEN_CONTROL, NULL, true},
        {"tokenizer.ggml.padding_token_id", UINT32_MAX, LVR_TOKEN_CONTROL, NULL, false},
    };
    for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
        int32_t id = -1;
        const uint32_t fallback = sentencepiece ? ids[i].fallback : UINT32_MAX;
        const lvr_status status = load_id(t, g, ids[i].key, fallback, ids[i].type, &id, err);
        if (status != LVR_OK)
            return status;
        if (ids[i].id != NULL)
            *ids[i].id = id;
        if (ids[i].ends)
            add_eog(t, id);
    }
    return LVR_OK;
}

static lvr_status index_special(lvr_tokenizer *t, lvr_error *err)
{
    t->special = calloc(t->n_pieces, sizeof(*t->special));
    if (t->special == NULL)
        return lvr_tokenizer_no_memory(t, err);
    for (uint32_t i = 0; i < t->n_pieces; i++) {
        const struct lvr_piece *p = &t->pieces[i];
        if (p->n > 0 &&
            (p->type == LVR_TOKEN_USER || p->type == LVR_TOKEN_CONTROL || p->type == LVR_TOKEN_UNKNOWN))
            t->special[t->n_special++] = (int32_t)i;
    }
    return lvr_special_index(t) ? LVR_OK : lvr_tokenizer_no_memory(t, err);
}

lvr_status lvr_vocab_load(lvr_tokenizer *t, const lvr_gguf *g, bool sentencepiece, lvr_error *err)
{
    lvr_status status = load_tokens(t, g, err);
    if (status == LVR_OK && (sentencepiece || lvr_gguf_has(g, "tokenizer.ggml.scores")))
        status = load_scores(t, g, err);
    if (status == LVR_OK)
        status = load_types(t, g, err);
    if (status == LVR_OK)
        status = index_by_text(t, err);
    if (status == LVR_OK)
        status = load_ids(t, g, sentencepiece, err);
    if (status != LVR_OK)
        return status;
    find_well_known(t);
    return index_special(t, err);
}

/* ---- bytes ---- */

static bool occurs_in_utf8(int byte)
{
    return byte != 0xc0 && byte != 0xc1 && byte <= 0xf4;
}

lvr_status lvr_vocab_fill_bytes(lvr_tokenizer *t, bool utf8_only, lvr_error *err)
{
    for (int b = 0; b < 256; b++) {
        if (t->bytes[b] >= 0 || (utf8_only && !occurs_in_utf8(b)))
            continue;
        t->bytes[b] = t->unk;
        if (t->unk < 0)
            return lvr_fail(
                err, LVR_ERR_FORMAT,
                "%s: tokenizer.ggml.tokens: the vocabulary has neither a token for byte 0x%02X nor an "
                "unknown token",
                t->path, b);
    }
    return LVR_OK;
}
