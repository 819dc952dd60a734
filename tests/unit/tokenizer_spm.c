/* The SentencePiece-style tokenizer: llama.cpp's vectors, round trips, user-defined tokens, hostile
 * vocabularies. */
#include "common/fs.h"
#include "common/rng.h"
#include "engine/tokenizer/tokenizer.h"
#include "tests/unit/gguf_builder.h"
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MARK "\xe2\x96\x81"

/* Where the models and vocabularies lie that are shared between checkouts; tests that need them skip without.
 */
static bool shared_path(const char *name, char *ret, size_t n)
{
    const char *shared = getenv("LVR_SHARED"), *root = getenv("LVR_SOURCE_ROOT");
    if (shared != NULL)
        snprintf(ret, n, "%s/%s", shared, name);
    else
        snprintf(ret, n, "%s/../shared/%s", root != NULL ? root : ".", name);
    return access(ret, R_OK) == 0;
}

static lvr_tokenizer *open_tokenizer(const char *path)
{
    lvr_gguf *g = NULL;
    lvr_tokenizer *t = NULL;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_gguf_open(path, &g, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_tokenizer_new(g, &t, &err), LVR_OK, "%s", err.msg);
    lvr_gguf_free(g); /* the tokenizer must not need it */
    return t;
}

static void expect_ids(const lvr_tokenizer *t, const char *text, size_t n, const int32_t *ids, uint32_t n_ids)
{
    int32_t *got = NULL;
    uint32_t n_got = 0;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_tokenize(t, text, n, false, &got, &n_got, &err), LVR_OK, "%s", err.msg);
    cr_expect_eq(n_got, n_ids, "\"%.*s\": %u tokens, expected %u", (int)n, text, n_got, n_ids);
    for (uint32_t i = 0; i < n_got && i < n_ids; i++)
        cr_expect_eq(got[i], ids[i], "\"%.*s\": token %u is %d, expected %d", (int)n, text, i, got[i],
                     ids[i]);
    free(got);
}

static void expect_round_trip(const lvr_tokenizer *t, const char *text, size_t n)
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

/* Token ids separated by spaces, up to the line's end (which strtol would skip as space). */
static uint32_t parse_ids(const char *line, const char *line_end, int32_t *ids, uint32_t max)
{
    uint32_t n = 0;
    char *end = NULL;
    for (; n < max; line = end) {
        const long id = strtol(line, &end, 10);
        if (end == line || end > line_end)
            break;
        ids[n++] = (int32_t)id;
    }
    return n;
}

Test(tokenizer, equals_llama_cpp_on_its_vectors)
{
    static const char separator[] = "\n__ggml_vocab_test__\n";
    char path[512];
    lvr_buf in = LVR_BUF_INIT, out = LVR_BUF_INIT;
    lvr_error err = LVR_ERROR_INIT;
    if (!shared_path("vocab/ggml-vocab-llama-spm.gguf", path, sizeof path))
        cr_skip_test("no %s", path);
    lvr_tokenizer *t = open_tokenizer(path);
    shared_path("vocab/ggml-vocab-llama-spm.gguf.inp", path, sizeof path);
    cr_assert_eq(lvr_read_file(path, 1 << 20, &in, &err), LVR_OK, "%s", err.msg);
    shared_path("vocab/ggml-vocab-llama-spm.gguf.out", path, sizeof path);
    cr_assert_eq(lvr_read_file(path, 1 << 20, &out, &err), LVR_OK, "%s", err.msg);

    unsigned vectors = 0;
    const char *text = in.data, *line = out.data;
    while (*line != '\0') { /* an empty line is the answer to an empty text */
        int32_t ids[1024];
        const char *text_end = strstr(text, separator), *line_end = strchr(line, '\n');
        cr_assert_not_null(line_end);
        const size_t n = text_end != NULL ? (size_t)(text_end - text) : strlen(text);
        expect_ids(t, text, n, ids, parse_ids(line, line_end, ids, 1024));
        expect_round_trip(t, text, n);
        vectors++;
        line = line_end + 1;
        text = text_end != NULL ? text_end + sizeof separator - 1 : "";
    }
    cr_expect_str_empty(text);
    cr_expect_geq(vectors, 40, "%u vectors", vectors);
    lvr_tokenizer_free(t);
    lvr_buf_free(&in);
    lvr_buf_free(&out);
}

Test(tokenizer, embedded_pair_shares_its_vocabulary)
{
    char target_path[512], draft_path[512], other_path[512];
    lvr_error err = LVR_ERROR_INIT;
    if (!shared_path("models/lever-target-10m-q4_0.gguf", target_path, sizeof target_path) ||
        !shared_path("models/lever-draft-1m-q8_0.gguf", draft_path, sizeof draft_path) ||
        !shared_path("vocab/ggml-vocab-llama-spm.gguf", other_path, sizeof other_path))
        cr_skip_test("no %s", target_path);
    lvr_tokenizer *target = open_tokenizer(target_path), *draft = open_tokenizer(draft_path),
                  *other = open_tokenizer(other_path);
    cr_expect_eq(lvr_tokenizer_compatible(target, draft, &err), LVR_OK, "%s", err.msg);
    cr_expect_eq(lvr_tokenizer_compatible(target, other, &err), LVR_ERR_CONFIG);
    cr_expect(strstr(err.msg, "token 259") != NULL, "%s", err.msg);
    cr_expect(lvr_tokenizer_vocab(target) == 4096 && lvr_tokenizer_bos(target) == 1 &&
              lvr_tokenizer_eos(target) == 2);
    expect_round_trip(target, "User: 1234 tables for 5?\nAssistant:  Certainly.", 48);
    lvr_tokenizer_free(target);
    lvr_tokenizer_free(draft);
    lvr_tokenizer_free(other);
}

/* ---- vocabularies made here ---- */

struct piece {
    const char *text;
    float score;
    int32_t type;
};

enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER = 4, UNUSED = 5, BYTE = 6 };

struct vocab {
    struct piece pieces[600];
    uint32_t n;
    int32_t bos;                   /* -2: no key */
    int add_space_prefix, add_bos; /* -1: no key */
    uint32_t n_scores, n_types;    /* lengths of these arrays if they should be wrong */
    const char *model;
};

static void add(struct vocab *v, const char *text, float score, int32_t type)
{
    v->pieces[v->n++] = (struct piece){text, score, type};
}

static const char *byte_text(int b)
{
    static char texts[256][8];
    snprintf(texts[b], sizeof texts[b], "<0x%02X>", (unsigned)b);
    return texts[b];
}

static struct vocab basic_vocab(bool with_bytes)
{
    struct vocab v = {.bos = -2, .add_space_prefix = -1, .add_bos = -1, .model = "llama"};
    add(&v, "<unk>", 0, UNKNOWN);
    add(&v, "<s>", 0, CONTROL);
    add(&v, "</s>", 0, CONTROL);
    for (int b = 0; with_bytes && b < 256; b++)
        add(&v, byte_text(b), 0, BYTE);
    return v;
}

static lvr_status make(const struct vocab *v, lvr_tokenizer **ret, lvr_error *err)
{
    lvr_buf b = LVR_BUF_INIT;
    lvr_gguf *g = NULL;
    gguf_put_head(&b, 0, 4 + (v->bos != -2) + (v->add_space_prefix >= 0) + (v->add_bos >= 0));
    gguf_put_kv_str(&b, "tokenizer.ggml.model", v->model);
    gguf_put_kv_arr(&b, "tokenizer.ggml.tokens", GGUF_STR, v->n);
    for (uint32_t i = 0; i < v->n; i++)
        gguf_put_str(&b, v->pieces[i].text);
    const uint32_t n_scores = v->n_scores ? v->n_scores : v->n, n_types = v->n_types ? v->n_types : v->n;
    gguf_put_kv_arr(&b, "tokenizer.ggml.scores", GGUF_F32, n_scores);
    for (uint32_t i = 0; i < n_scores; i++)
        lvr_buf_append(&b, &v->pieces[i].score, 4);
    gguf_put_kv_arr(&b, "tokenizer.ggml.token_type", GGUF_I32, n_types);
    for (uint32_t i = 0; i < n_types; i++)
        lvr_buf_append(&b, &v->pieces[i].type, 4);
    if (v->bos != -2)
        gguf_put_kv_u32(&b, "tokenizer.ggml.bos_token_id", (uint32_t)v->bos);
    if (v->add_space_prefix >= 0)
        gguf_put_kv_bool(&b, "tokenizer.ggml.add_space_prefix", v->add_space_prefix != 0);
    if (v->add_bos >= 0)
        gguf_put_kv_bool(&b, "tokenizer.ggml.add_bos_token", v->add_bos != 0);
    cr_assert_eq(lvr_gguf_open_mem("v.gguf", b.data, b.len, b.len, false, &g, err), LVR_OK, "%s", err->msg);
    lvr_buf_free(&b);
    const lvr_status status = lvr_tokenizer_new(g, ret, err);
    lvr_gguf_free(g);
    return status;
}

static lvr_tokenizer *must_make(const struct vocab *v)
{
    lvr_tokenizer *t = NULL;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(make(v, &t, &err), LVR_OK, "%s", err.msg);
    return t;
}

static void expect_refused(const struct vocab *v, lvr_status expected, const char *says)
{
    lvr_tokenizer *t = NULL;
    lvr_error err = LVR_ERROR_INIT;
    cr_expect_eq(make(v, &t, &err), expected, "%s", err.msg);
    cr_expect(strstr(err.msg, says) != NULL, "\"%s\" does not say \"%s\"", err.msg, says);
    cr_expect_null(t);
}

#define IDS(...) (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t)
#define TEXT(literal) literal, sizeof(literal) - 1

Test(tokenizer, merges_the_best_score_first_and_the_leftmost_of_equals)
{
    struct vocab v = basic_vocab(true);
    v.add_space_prefix = 0;
    add(&v, "a", -1, NORMAL); /* 259 */
    add(&v, "b", -1, NORMAL);
    add(&v, "ab", -3, NORMAL);
    add(&v, "ba", -2, NORMAL);
    add(&v, "aa", -4, NORMAL); /* 263 */
    lvr_tokenizer *t = must_make(&v);
    expect_ids(t, TEXT("aba"), IDS(259, 262));
    expect_ids(t, TEXT("aaa"), IDS(263, 259));
    expect_ids(t, TEXT("abab"), IDS(259, 262, 260));
    lvr_tokenizer_free(t);
}

Test(tokenizer, unknown_characters_become_bytes)
{
    struct vocab v = basic_vocab(true);
    lvr_tokenizer *t = must_make(&v);
    expect_ids(t, TEXT("\xc3\xa9"), IDS(3 + ' ', 3 + 0xc3, 3 + 0xa9));
    expect_round_trip(t, TEXT("caf\xc3\xa9 \xf0\x9f\xa6\x99 \n\t  x "));
    lvr_tokenizer_free(t);

    v = basic_vocab(false); /* and without byte tokens, the unknown token */
    add(&v, MARK, 0, NORMAL);
    t = must_make(&v);
    expect_ids(t, TEXT("\xc3\xa9"), IDS(3, 0, 0));
    lvr_tokenizer_free(t);
}

Test(tokenizer, bytes_that_are_not_utf8_come_back)
{
    struct vocab v = basic_vocab(true);
    add(&v, MARK, -5, NORMAL);
    add(&v, "a", -6, NORMAL);
    add(&v, MARK "a", -1, NORMAL);
    lvr_tokenizer *t = must_make(&v);
    lvr_rng rng;
    lvr_rng_init(&rng, 1, "tokenizer");
    for (int round = 0; round < 200; round++) {
        char text[64];
        const size_t n = lvr_rng_below(&rng, sizeof text);
        for (size_t i = 0; i < n; i++)
            text[i] = (char)lvr_rng_below(&rng, 256);
        if (memmem(text, n, MARK, 3) == NULL)
            expect_round_trip(t, text, n);
    }
    expect_round_trip(t, TEXT("\xe2 a\xe2\x96 a\xf0\x9f  \xff"));
    expect_round_trip(t, TEXT("a\0b\0"));
    lvr_tokenizer_free(t);
}

Test(tokenizer, special_tokens_in_text_are_text)
{
    struct vocab v = basic_vocab(true);
    v.add_space_prefix = 0;
    for (const char *c = "<\0s\0>\0/\0"; *c != '\0'; c += 2)
        add(&v, c, -1, NORMAL);
    add(&v, "<s", -1, NORMAL);
    add(&v, "</", -1, NORMAL);
    add(&v, "</s", -1, NORMAL);
    lvr_tokenizer *t = must_make(&v);
    expect_ids(t, TEXT("<s>"), IDS(263, 261));
    expect_ids(t, TEXT("</s>"), IDS(265, 261));
    expect_round_trip(t, TEXT("<unk><0x41></s>"));
    lvr_tokenizer_free(t);
}

Test(tokenizer, user_defined_tokens_are_cut_out_longest_first)
{
    struct vocab v = basic_vocab(true);
    add(&v, MARK, -1, NORMAL);  /* 259 */
    add(&v, "a", -1, NORMAL);   /* 260 */
    add(&v, "<x>", 0, USER);    /* 261 */
    add(&v, "<x><y>", 0, USER); /* 262 */
    add(&v, "a b", 0, USER);    /* 263 */
    add(&v, "", 0, USER);
    lvr_tokenizer *t = must_make(&v);
    expect_ids(t, TEXT("<x>"), IDS(261));
    expect_ids(t, TEXT("a<x><y><x>"), IDS(259, 260, 262, 261));
    expect_ids(t, TEXT("<x>a"),
               IDS(261, 259, 260)); /* as llama.cpp: the prefix space follows a special token */
    expect_ids(t, TEXT("aa ba"), IDS(259, 260, 263, 259, 260));
    expect_round_trip(t, TEXT("a<x><y>"));
    lvr_tokenizer_free(t);
}

Test(tokenizer, bos_is_added_only_where_both_want_it)
{
    struct vocab v = basic_vocab(true);
    int32_t *ids = NULL;
    uint32_t n = 0;
    lvr_tokenizer *t = must_make(&v);
    cr_expect(lvr_tokenizer_adds_bos(t) && lvr_tokenizer_bos(t) == 1 && lvr_tokenizer_eos(t) == 2);
    cr_assert_eq(lvr_tokenize(t, NULL, 0, true, &ids, &n, NULL), LVR_OK);
    cr_expect(n == 1 && ids[0] == 1);
    free(ids);
    cr_assert_eq(lvr_tokenize(t, "", 0, false, &ids, &n, NULL), LVR_OK);
    cr_expect_eq(n, 0);
    free(ids);
    lvr_tokenizer_free(t);

    v.add_bos = 0;
    t = must_make(&v);
    cr_assert_eq(lvr_tokenize(t, "", 0, true, &ids, &n, NULL), LVR_OK);
    cr_expect_eq(n, 0);
    free(ids);
    lvr_tokenizer_free(t);
}

Test(tokenizer, detokenizes_any_number)
{
    struct vocab v = basic_vocab(true);
    lvr_buf out = LVR_BUF_INIT;
    size_t n = 9;
    lvr_tokenizer *t = must_make(&v);
    lvr_detokenize(t, -1, false, &out);
    lvr_detokenize(t, 259, true, &out);
    lvr_detokenize(t, INT32_MAX, true, &out);
    lvr_detokenize(t, 1, true, &out); /* control: nothing */
    cr_expect_eq(out.len, 0);
    cr_expect_str_eq(lvr_token_piece(t, -1, &n), "");
    cr_expect_eq(n, 0);
    cr_expect_str_eq(lvr_token_piece(t, 1, &n), "<s>");
    cr_expect_eq(n, 3);
    lvr_buf_free(&out);
    lvr_tokenizer_free(t);
}

Test(tokenizer, hostile_vocabularies_are_refused)
{
    static const char *const not_bytes[] = {"<0x-1>", "<0x+1>", "<0x 1>", "<0x1>", "<0x100>",
                                            "<0xGG>", "<0x00",  "",       "x"};
    for (size_t i = 0; i < sizeof not_bytes / sizeof *not_bytes; i++) {
        struct vocab v = basic_vocab(true);
        add(&v, not_bytes[i], 0, BYTE);
        expect_refused(&v, LVR_ERR_FORMAT, "token 259 is a byte token");
    }
    struct vocab v = basic_vocab(true);
    v.n_scores = v.n - 1;
    expect_refused(&v, LVR_ERR_FORMAT, "tokenizer.ggml.scores has 258 elements, but the vocabulary has 259");
    v.n_scores = v.n + 1;
    expect_refused(&v, LVR_ERR_FORMAT, "tokenizer.ggml.scores");
    v.n_scores = 0, v.n_types = v.n - 1;
    expect_refused(&v, LVR_ERR_FORMAT, "tokenizer.ggml.token_type");
    v.n_types = 0, v.pieces[258].type = 7;
    expect_refused(&v, LVR_ERR_FORMAT, "token 258 has type 7");
    v.pieces[258].type = -1;
    expect_refused(&v, LVR_ERR_FORMAT, "token 258 has type -1");
    v.pieces[258].type = BYTE, v.pieces[258].score = NAN;
    expect_refused(&v, LVR_ERR_FORMAT, "not a number");
    v.pieces[258].score = 0, v.bos = 259;
    expect_refused(&v, LVR_ERR_FORMAT, "bos_token_id is 259");
    v.bos = -1;
    expect_refused(&v, LVR_ERR_FORMAT, "bos_token_id is 4294967295");
    v.bos = 1, v.model = "gpt2";
    expect_refused(&v, LVR_ERR_UNSUPPORTED, "\"gpt2\"");
    v = (struct vocab){.bos = -2, .add_space_prefix = -1, .add_bos = -1, .model = "llama"};
    expect_refused(&v, LVR_ERR_FORMAT, "0 tokens");
    add(&v, "a", 0, NORMAL);
    expect_refused(&v, LVR_ERR_FORMAT, "neither a token for byte 0x00 nor an unknown token");
}

Test(tokenizer, odd_vocabularies_are_survived)
{
    struct vocab v = basic_vocab(true);
    add(&v, "", 0, NORMAL);
    add(&v, "a", -1, NORMAL); /* 260 */
    add(&v, "a", -1, NORMAL);
    add(&v, "<0x41>", 0, BYTE); /* a second token for byte A */
    add(&v, "aa", HUGE_VALF, NORMAL);
    add(&v, "aaa", -HUGE_VALF, NORMAL);
    v.add_space_prefix = 0;
    lvr_tokenizer *t = must_make(&v);
    expect_ids(t, TEXT("a"), IDS(261)); /* the last of equals, as llama.cpp */
    expect_ids(t, TEXT("A"), IDS(262));
    expect_ids(t, TEXT("aaa"), IDS(264));
    lvr_tokenizer_free(t);
}

Test(tokenizer, a_long_text_takes_moments, .timeout = 60)
{
    struct vocab v = basic_vocab(true);
    static const char *const runs[] = {"a", "aa", "aaaa", "aaaaaaaa", "aaaaaaaaaaaaaaaa"};
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++)
        add(&v, runs[i], -(float)i, NORMAL);
    v.add_space_prefix = 0;
    lvr_tokenizer *t = must_make(&v);
    const size_t n = 1 << 20;
    char *text = malloc(n);
    cr_assert_not_null(text);
    memset(text, 'a', n);
    int32_t *ids = NULL;
    uint32_t n_ids = 0;
    cr_assert_eq(lvr_tokenize(t, text, n, false, &ids, &n_ids, NULL), LVR_OK);
    cr_expect_eq(n_ids, n / 16);
    free(ids);
    free(text);
    lvr_tokenizer_free(t);
}

Test(tokenizer, a_text_that_is_too_long_is_refused)
{
    struct vocab v = basic_vocab(true);
    lvr_tokenizer *t = must_make(&v);
    lvr_error err = LVR_ERROR_INIT;
    int32_t *ids = NULL;
    uint32_t n = 0;
    cr_expect_eq(lvr_tokenize(t, "x", SIZE_MAX, false, &ids, &n, &err), LVR_ERR_UNSUPPORTED);
    cr_expect_null(ids);
    lvr_tokenizer_free(t);
}

static lvr_status compare(const struct vocab *a, const struct vocab *b, lvr_error *err)
{
    lvr_tokenizer *target = must_make(a), *draft = must_make(b);
    const lvr_status status = lvr_tokenizer_compatible(target, draft, err);
    lvr_tokenizer_free(target);
    lvr_tokenizer_free(draft);
    return status;
}

Test(tokenizer, pairs_may_differ_by_padding_only)
{
    struct vocab a = basic_vocab(true);
    lvr_error err = LVR_ERROR_INIT;
    add(&a, "a", -1, NORMAL);
    struct vocab b = a;
    cr_expect_eq(compare(&a, &b, &err), LVR_OK, "%s", err.msg);
    add(&b, "[PAD260]", 0, NORMAL);
    add(&b, "dummy", 0, UNUSED);
    cr_expect_eq(compare(&a, &b, &err), LVR_OK, "%s", err.msg);
    cr_expect_eq(compare(&b, &a, &err), LVR_OK, "%s", err.msg);
    add(&b, "real", 0, NORMAL);
    cr_expect_eq(compare(&a, &b, &err), LVR_ERR_CONFIG);
    cr_expect(strstr(err.msg, "token 262, \"real\", of the draft") != NULL, "%s", err.msg);
    b = a;
    b.pieces[259].text = "b";
    cr_expect_eq(compare(&a, &b, &err), LVR_ERR_CONFIG);
    cr_expect(strstr(err.msg, "token 259 is \"a\" in the target and \"b\" in the draft") != NULL, "%s",
              err.msg);
    b = a;
    b.bos = 2;
    cr_expect_eq(compare(&a, &b, &err), LVR_ERR_CONFIG);
    cr_expect(strstr(err.msg, "begin-of-text token is 1") != NULL, "%s", err.msg);
}
