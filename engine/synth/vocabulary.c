#include "engine/synth/vocabulary.h"
#include "common/log.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX "tokenizer."
#define KEY_TOKENS "tokenizer.ggml.tokens"
#define KEY_TYPES "tokenizer.ggml.token_type"
#define KEY_SCORES "tokenizer.ggml.scores"
#define TYPE_NORMAL 1
#define TYPE_UNUSED 5
#define PAD_TEXT_BYTES 24u
#define PAD_SCORE -1000.0f

struct lvr_synth_vocab {
    lvr_gguf *g;
    uint32_t n_own, n_tokens;
    lvr_gguf_str *tokens; /* [n_tokens] */
    char *pad_text;       /* PAD_TEXT_BYTES for each padding token */
    int32_t *types;       /* [n_tokens]; normal where the file has none */
    float *scores;        /* [n_tokens]; NULL if the file has none */
};

void lvr_synth_vocab_free(lvr_synth_vocab *v)
{
    if (v == NULL)
        return;
    lvr_gguf_free(v->g);
    free(v->tokens);
    free(v->pad_text);
    free(v->types);
    free(v->scores);
    free(v);
}

static lvr_status check_count(const lvr_synth_vocab *v, const char *key, uint64_t n, lvr_error *err)
{
    if (n == v->n_own)
        return LVR_OK;
    return lvr_fail(err, LVR_ERR_FORMAT, "%s: %s has %" PRIu64 " elements, but there are %u tokens",
                    lvr_gguf_path(v->g), key, n, v->n_own);
}

static lvr_status load_tokens(lvr_synth_vocab *v, lvr_error *err)
{
    const lvr_gguf_str *tokens = NULL;
    uint64_t n = 0;
    const lvr_status status = lvr_gguf_str_array(v->g, KEY_TOKENS, &tokens, &n, err);
    if (status != LVR_OK)
        return status;
    if (n == 0 || n > v->n_tokens)
        return lvr_fail(err, LVR_ERR_CONFIG,
                        "%s: a vocabulary of %" PRIu64 " tokens does not fit a shape of %u; choose a smaller "
                        "vocabulary or another shape",
                        lvr_gguf_path(v->g), n, v->n_tokens);
    v->n_own = (uint32_t)n;
    const uint32_t n_pads = v->n_tokens - v->n_own;
    v->tokens = calloc(v->n_tokens, sizeof *v->tokens);
    v->pad_text = calloc((size_t)n_pads + 1, PAD_TEXT_BYTES);
    if (v->tokens == NULL || v->pad_text == NULL)
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory for the vocabulary", lvr_gguf_path(v->g));
    memcpy(v->tokens, tokens, n * sizeof *tokens);
    for (uint32_t i = 0; i < n_pads; i++) {
        char *text = v->pad_text + (size_t)i * PAD_TEXT_BYTES;
        const int len = snprintf(text, PAD_TEXT_BYTES, "[PAD%u]", v->n_own + i);
        v->tokens[v->n_own + i] = (lvr_gguf_str){.s = text, .n = (uint64_t)len};
    }
    return LVR_OK;
}

static lvr_status load_types(lvr_synth_vocab *v, lvr_error *err)
{
    const int32_t *types = NULL;
    uint64_t n = v->n_own;
    lvr_status status = LVR_OK;
    if (lvr_gguf_has(v->g, KEY_TYPES))
        status = lvr_gguf_i32_array(v->g, KEY_TYPES, &types, &n, err);
    if (status == LVR_OK)
        status = check_count(v, KEY_TYPES, n, err);
    if (status != LVR_OK)
        return status;
    v->types = calloc(v->n_tokens, sizeof *v->types);
    if (v->types == NULL)
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory for the vocabulary", lvr_gguf_path(v->g));
    for (uint32_t i = 0; i < v->n_tokens; i++)
        v->types[i] = i >= v->n_own ? TYPE_UNUSED : types != NULL ? types[i] : TYPE_NORMAL;
    return LVR_OK;
}

static lvr_status load_scores(lvr_synth_vocab *v, lvr_error *err)
{
    const float *scores = NULL;
    uint64_t n = 0;
    if (!lvr_gguf_has(v->g, KEY_SCORES))
        return LVR_OK;
    lvr_status status = lvr_gguf_f32_array(v->g, KEY_SCORES, &scores, &n, err);
    if (status == LVR_OK)
        status = check_count(v, KEY_SCORES, n, err);
    if (status != LVR_OK)
        return status;
    v->scores = calloc(v->n_tokens, sizeof *v->scores);
    if (v->scores == NULL)
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory for the vocabulary", lvr_gguf_path(v->g));
    for (uint32_t i = 0; i < v->n_tokens; i++)
        v->scores[i] = i < v->n_own ? scores[i] : PAD_SCORE;
    return LVR_OK;
}

lvr_status lvr_synth_vocab_open(const char *path, uint32_t n_tokens, lvr_synth_vocab **ret, lvr_error *err)
{
    lvr_synth_vocab *v = calloc(1, sizeof *v);
    if (v == NULL)
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory for the vocabulary", path);
    v->n_tokens = n_tokens;
    lvr_status status = lvr_gguf_open(path, &v->g, err);
    if (status == LVR_OK)
        status = load_tokens(v, err);
    if (status == LVR_OK)
        status = load_types(v, err);
    if (status == LVR_OK)
        status = load_scores(v, err);
    if (status != LVR_OK) {
        lvr_synth_vocab_free(v);
        return status;
    }
    *ret = v;
    return LVR_OK;
}

uint32_t lvr_synth_vocab_own(const lvr_synth_vocab *v)
{
    return v->n_own;
}

/* A key that is not one entry per token: as it is. */
static void copy_key(const lvr_gguf *g, const char *key, lvr_gguf_writer *w)
{
    uint32_t u = 0;
    float f = 0;
    const char *text = NULL;
    const lvr_gguf_str *strings = NULL;
    const float *floats = NULL;
    const int32_t *ints = NULL;
    uint64_t n = 0;
    const bool b = lvr_gguf_bool_or(g, key, true);
    if (b == lvr_gguf_bool_or(g, key, false)) /* no fallback was used: it is a boolean */
        lvr_gguf_write_bool(w, key, b);
    else if (lvr_gguf_u32(g, key, &u, NULL) == LVR_OK)
        lvr_gguf_write_u32(w, key, u);
    else if (lvr_gguf_f32(g, key, &f, NULL) == LVR_OK)
        lvr_gguf_write_f32(w, key, f);
    else if (lvr_gguf_str_(g, key, &text, NULL) == LVR_OK)
        lvr_gguf_write_str(w, key, text);
    else if (lvr_gguf_str_array(g, key, &strings, &n, NULL) == LVR_OK)
        lvr_gguf_write_strs(w, key, strings, n);
    else if (lvr_gguf_f32_array(g, key, &floats, &n, NULL) == LVR_OK)
        lvr_gguf_write_f32s(w, key, floats, n);
    else if (lvr_gguf_i32_array(g, key, &ints, &n, NULL) == LVR_OK)
        lvr_gguf_write_i32s(w, key, ints, n);
    else
        lvr_log(LVR_LOG_WARN, "%s: metadata key %s is of a type that is not copied", lvr_gguf_path(g), key);
}

void lvr_synth_vocab_write(const lvr_synth_vocab *v, lvr_gguf_writer *w)
{
    for (uint64_t i = 0; i < lvr_gguf_n_keys(v->g); i++) {
        const char *key = lvr_gguf_key_at(v->g, i);
        if (strncmp(key, PREFIX, strlen(PREFIX)) != 0 || strcmp(key, KEY_TYPES) == 0)
            continue;
        if (strcmp(key, KEY_TOKENS) == 0) {
            lvr_gguf_write_strs(w, key, v->tokens, v->n_tokens);
            lvr_gguf_write_i32s(w, KEY_TYPES, v->types, v->n_tokens);
        } else if (strcmp(key, KEY_SCORES) == 0) {
            lvr_gguf_write_f32s(w, key, v->scores, v->n_tokens);
        } else {
            copy_key(v->g, key, w);
        }
    }
}

/* One leading space may be marked as SentencePiece (U+2581) or byte-level BPE (U+0120) do. */
static bool is_word(const lvr_gguf_str *t)
{
    uint64_t i = 0;
    if (t->n >= 3 && memcmp(t->s, "\xe2\x96\x81", 3) == 0)
        i = 3;
    else if (t->n >= 2 && memcmp(t->s, "\xc4\xa0", 2) == 0)
        i = 2;
    if (i == t->n || t->s[i] == '<')
        return false;
    for (; i < t->n; i++)
        if (t->s[i] < 0x21 || t->s[i] > 0x7e)
            return false;
    return true;
}

uint32_t lvr_synth_vocab_words(const lvr_synth_vocab *v, bool *words)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < v->n_own; i++) {
        words[i] = v->types[i] == TYPE_NORMAL && is_word(&v->tokens[i]);
        n += words[i];
    }
    return n;
}
