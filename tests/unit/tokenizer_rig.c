#include "tests/unit/tokenizer_rig.h"
#include "tests/unit/gguf_builder.h"
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- vocabularies ---- */

struct tok_vocab tok_empty_vocab(const char *model)
{
    return (struct tok_vocab){.model = model,
                              .bos = -2,
                              .eos = -2,
                              .eot = -2,
                              .add_space_prefix = -1,
                              .add_bos = -1,
                              .add_eos = -1,
                              .no_merges = true};
}

void tok_add(struct tok_vocab *v, const char *text, float score, int32_t type)
{
    cr_assert_lt(v->n, TOK_MAX_PIECES);
    v->pieces[v->n++] = (struct tok_piece){text, score, type};
}

void tok_add_merge(struct tok_vocab *v, const char *merge, const char *piece)
{
    cr_assert_lt(v->n_merges, TOK_MAX_MERGES);
    v->merges[v->n_merges++] = merge;
    if (piece != NULL)
        tok_add(v, piece, 0, TOK_NORMAL);
}

static const char *byte_text(unsigned b)
{
    static char texts[256][8];
    snprintf(texts[b], sizeof texts[b], "<0x%02X>", b);
    return texts[b];
}

struct tok_vocab tok_spm_vocab(bool with_bytes)
{
    struct tok_vocab v = tok_empty_vocab("llama");
    tok_add(&v, "<unk>", 0, TOK_UNKNOWN);
    tok_add(&v, "<s>", 0, TOK_CONTROL);
    tok_add(&v, "</s>", 0, TOK_CONTROL);
    for (unsigned b = 0; with_bytes && b < 256; b++)
        tok_add(&v, byte_text(b), 0, TOK_BYTE);
    return v;
}

/* Written independently of the tokenizer: the bytes that do not print are numbered from U+0100. */
static const char *char_text(unsigned b)
{
    static char texts[256][4];
    unsigned c = b;
    if (b <= 0x20)
        c = 0x100 + b;
    else if (b >= 0x7f && b <= 0xa0)
        c = 0x121 + b - 0x7f;
    else if (b == 0xad)
        c = 0x143;
    if (c < 0x80)
        snprintf(texts[b], sizeof texts[b], "%c", (int)c);
    else
        snprintf(texts[b], sizeof texts[b], "%c%c", (int)(0xc0 | c >> 6), (int)(0x80 | (c & 0x3f)));
    return texts[b];
}

struct tok_vocab tok_bpe_vocab(const char *pre)
{
    struct tok_vocab v = tok_empty_vocab("gpt2");
    v.pre = pre;
    v.no_scores = true;
    v.no_merges = false;
    for (unsigned b = 0; b < 256; b++)
        tok_add(&v, char_text(b), 0, TOK_NORMAL);
    return v;
}

/* ---- as a file ---- */

static void put_str_if(lvr_buf *b, uint64_t *n_keys, const char *key, const char *value)
{
    if (value == NULL)
        return;
    gguf_put_kv_str(b, key, value);
    ++*n_keys;
}

static void put_id_if(lvr_buf *b, uint64_t *n_keys, const char *key, int32_t id)
{
    if (id == -2)
        return;
    gguf_put_kv_u32(b, key, (uint32_t)id);
    ++*n_keys;
}

static void put_bool_if(lvr_buf *b, uint64_t *n_keys, const char *key, int value)
{
    if (value < 0)
        return;
    gguf_put_kv_bool(b, key, value != 0);
    ++*n_keys;
}

static void put_arrays(const struct tok_vocab *v, lvr_buf *b, uint64_t *n_keys)
{
    const uint32_t n_scores = v->n_scores ? v->n_scores : v->n, n_types = v->n_types ? v->n_types : v->n;
    gguf_put_kv_arr(b, "tokenizer.ggml.tokens", GGUF_STR, v->n);
    for (uint32_t i = 0; i < v->n; i++)
        gguf_put_str(b, v->pieces[i].text);
    if (!v->no_scores)
        gguf_put_kv_arr(b, "tokenizer.ggml.scores", GGUF_F32, n_scores);
    for (uint32_t i = 0; !v->no_scores && i < n_scores; i++)
        lvr_buf_append(b, &v->pieces[i].score, 4);
    if (!v->no_types)
        gguf_put_kv_arr(b, "tokenizer.ggml.token_type", GGUF_I32, n_types);
    for (uint32_t i = 0; !v->no_types && i < n_types; i++)
        lvr_buf_append(b, &v->pieces[i].type, 4);
    if (!v->no_merges)
        gguf_put_kv_arr(b, "tokenizer.ggml.merges", GGUF_STR, v->n_merges);
    for (uint32_t i = 0; !v->no_merges && i < v->n_merges; i++)
        gguf_put_str(b, v->merges[i]);
    *n_keys += 1u + !v->no_scores + !v->no_types + !v->no_merges;
}

lvr_status tok_make(const struct tok_vocab *v, lvr_tokenizer **ret, lvr_error *err)
{
    lvr_buf keys = LVR_BUF_INIT, file = LVR_BUF_INIT;
    lvr_gguf *g = NULL;
    uint64_t n_keys = 0;
    put_str_if(&keys, &n_keys, "general.architecture", v->architecture);
    put_str_if(&keys, &n_keys, "tokenizer.ggml.model", v->model);
    put_str_if(&keys, &n_keys, "tokenizer.ggml.pre", v->pre);
    put_str_if(&keys, &n_keys, "tokenizer.chat_template", v->chat_template);
    put_arrays(v, &keys, &n_keys);
    put_id_if(&keys, &n_keys, "tokenizer.ggml.bos_token_id", v->bos);
    put_id_if(&keys, &n_keys, "tokenizer.ggml.eos_token_id", v->eos);
    put_id_if(&keys, &n_keys, "tokenizer.ggml.eot_token_id", v->eot);
    put_bool_if(&keys, &n_keys, "tokenizer.ggml.add_space_prefix", v->add_space_prefix);
    put_bool_if(&keys, &n_keys, "tokenizer.ggml.add_bos_token", v->add_bos);
    put_bool_if(&keys, &n_keys, "tokenizer.ggml.add_eos_token", v->add_eos);
    gguf_put_head(&file, 0, n_keys);
    lvr_buf_append(&file, keys.data, keys.len);
    cr_assert_eq(lvr_gguf_open_mem("v.gguf", file.data, file.len, file.len, false, &g, err), LVR_OK, "%s",
                 err->msg);
    lvr_buf_free(&keys);
    lvr_buf_free(&file);
    const lvr_status status = lvr_tokenizer_new(g, ret, err);
    lvr_gguf_free(g); /* the tokenizer must not need it */
    return status;
}

lvr_tokenizer *tok_must_make(const struct tok_vocab *v)
{
    lvr_tokenizer *t = NULL;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(tok_make(v, &t, &err), LVR_OK, "%s", err.msg);
    return t;
}

void tok_expect_refused(const struct tok_vocab *v, lvr_status expected, const char *says)
{
    lvr_tokenizer *t = NULL;
    lvr_error err = LVR_ERROR_INIT;
    cr_expect_eq(tok_make(v, &t, &err), expected, "%s", err.msg);
    cr_expect(strstr(err.msg, says) != NULL, "\"%s\" does not say \"%s\"", err.msg, says);
    cr_expect_null(t);
    lvr_tokenizer_free(t);
}

/* ---- files ---- */

bool tok_shared_path(const char *name, char *ret, size_t n)
{
    const char *shared = getenv("LVR_SHARED"), *root = getenv("LVR_SOURCE_ROOT");
    if (shared != NULL)
        snprintf(ret, n, "%s/%s", shared, name);
    else
        snprintf(ret, n, "%s/../shared/%s", root != NULL ? root : ".", name);
    return access(ret, R_OK) == 0;
}

lvr_tokenizer *tok_open(const char *path)
{
    lvr_gguf *g = NULL;
    lvr_tokenizer *t = NULL;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_gguf_open(path, &g, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_tokenizer_new(g, &t, &err), LVR_OK, "%s", err.msg);
    lvr_gguf_free(g);
    return t;
}

/* ---- questions ---- */

static void compare_ids(const char *text, size_t n, const int32_t *got, uint32_t n_got, const int32_t *ids,
                        uint32_t n_ids)
{
    cr_expect_eq(n_got, n_ids, "\"%.*s\": %u tokens, expected %u", (int)n, text, n_got, n_ids);
    for (uint32_t i = 0; i < n_got && i < n_ids; i++)
        cr_expect_eq(got[i], ids[i], "\"%.*s\": token %u is %d, expected %d", (int)n, text, i, got[i],
                     ids[i]);
}

void tok_expect_ids(const lvr_tokenizer *t, const char *text, size_t n, const int32_t *ids, uint32_t n_ids)
{
    int32_t *got = NULL;
    uint32_t n_got = 0;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_tokenize(t, text, n, false, &got, &n_got, &err), LVR_OK, "%s", err.msg);
    compare_ids(text, n, got, n_got, ids, n_ids);
    free(got);
}

void tok_expect_special_ids(const lvr_tokenizer *t, const char *text, size_t n, const int32_t *ids,
                            uint32_t n_ids)
{
    int32_t *got = NULL;
    uint32_t n_got = 0;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_tokenize_special(t, text, n, false, &got, &n_got, &err), LVR_OK, "%s", err.msg);
    compare_ids(text, n, got, n_got, ids, n_ids);
    free(got);
}

void tok_expect_round_trip(const lvr_tokenizer *t, const char *text, size_t n)
{
    int32_t *ids = NULL;
    uint32_t n_ids = 0;
    lvr_buf back = LVR_BUF_INIT;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_tokenize(t, text, n, false, &ids, &n_ids, &err), LVR_OK, "%s", err.msg);
    for (uint32_t i = 0; i < n_ids; i++)
        lvr_detokenize(t, ids[i], i == 0, &back);
    cr_expect(back.len == n && (n == 0 || memcmp(back.data, text, n) == 0), "\"%.*s\" came back as \"%s\"",
              (int)n, text, back.data != NULL ? back.data : "");
    lvr_buf_free(&back);
    free(ids);
}
