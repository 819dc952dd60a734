/* Byte-level BPE: merges, words, bytes, what is refused, how long it takes. */
#include "common/rng.h"
#include "tests/unit/gguf_builder.h"
#include "tests/unit/tokenizer_rig.h"
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPACE "\xc4\xa0" /* stands for a space */

Test(tokenizer_bpe, merges_in_their_order_and_the_leftmost_of_equals)
{
    struct tok_vocab v = tok_bpe_vocab("gpt-2");
    tok_add_merge(&v, "b a", "ba"); /* 256 */
    tok_add_merge(&v, "a b", "ab");
    tok_add_merge(&v, "a a", "aa"); /* 258 */
    tok_add_merge(&v, "a b", NULL); /* again: the first counts */
    tok_add_merge(&v, "aa aa", "aaaa");
    lvr_tokenizer *t = tok_must_make(&v);
    tok_expect_ids(t, TEXT("aba"), IDS('a', 256));
    tok_expect_ids(t, TEXT("abab"), IDS('a', 256, 'b'));
    tok_expect_ids(t, TEXT("aab"), IDS('a', 257));
    tok_expect_ids(t, TEXT("aaa"), IDS(258, 'a'));
    tok_expect_ids(t, TEXT("aaaaa"), IDS(259, 'a'));
    tok_expect_ids(t, TEXT(""), NULL, 0);
    lvr_tokenizer_free(t);
}

/* The best pair by trying all, again and again. */
static uint32_t merge_plainly(const struct tok_vocab *v, const char *text, size_t n, int32_t *ids)
{
    const char *pieces[64];
    uint32_t n_ids = (uint32_t)n;
    for (size_t i = 0; i < n; i++)
        pieces[i] = v->pieces[(unsigned char)text[i]].text;
    for (;;) {
        uint32_t best = v->n_merges, at = 0;
        char pair[64];
        for (uint32_t i = 0; i + 1 < n_ids; i++) {
            snprintf(pair, sizeof pair, "%s %s", pieces[i], pieces[i + 1]);
            for (uint32_t m = 0; m < best; m++)
                if (strcmp(v->merges[m], pair) == 0)
                    best = m, at = i;
        }
        if (best == v->n_merges)
            break;
        pieces[at] = v->pieces[256 + best].text;
        memmove(&pieces[at + 1], &pieces[at + 2], (n_ids - at - 2) * sizeof pieces[0]);
        n_ids--;
    }
    for (uint32_t i = 0; i < n_ids; i++)
        for (uint32_t id = 0; id < v->n; id++)
            if (strcmp(v->pieces[id].text, pieces[i]) == 0)
                ids[i] = (int32_t)id;
    return n_ids;
}

Test(tokenizer_bpe, equals_the_plain_rule_on_random_merges)
{
    static char merges[40][40], made[40][40];
    lvr_rng rng;
    lvr_rng_init(&rng, 3, "merges");
    for (int round = 0; round < 40; round++) {
        struct tok_vocab v = tok_bpe_vocab("gpt-2");
        for (uint32_t m = 0; m < 40;) { /* of two pieces there are already, mostly early ones */
            const uint32_t left = (uint32_t)lvr_rng_below(&rng, 3 + m),
                           right = (uint32_t)lvr_rng_below(&rng, 3 + m);
            const char *a = left < 3 ? v.pieces['a' + left].text : made[left - 3];
            const char *b = right < 3 ? v.pieces['a' + right].text : made[right - 3];
            if (strlen(a) + strlen(b) > 16)
                continue;
            snprintf(merges[m], sizeof merges[m], "%s %s", a, b);
            snprintf(made[m], sizeof made[m], "%s%s", a, b);
            bool again = false;
            for (uint32_t i = 0; i < m; i++)
                again = again || strcmp(made[i], made[m]) == 0;
            if (again)
                continue;
            tok_add_merge(&v, merges[m], made[m]);
            m++;
        }
        lvr_tokenizer *t = tok_must_make(&v);
        for (int k = 0; k < 50; k++) {
            char text[64];
            int32_t ids[64] = {0};
            const size_t n = 1 + lvr_rng_below(&rng, 60);
            for (size_t i = 0; i < n; i++)
                text[i] = (char)('a' + lvr_rng_below(&rng, 3));
            tok_expect_ids(t, text, n, ids, merge_plainly(&v, text, n, ids));
        }
        lvr_tokenizer_free(t);
    }
}

Test(tokenizer_bpe, llama3_keeps_a_word_that_is_a_token)
{
    struct tok_vocab v = tok_bpe_vocab("llama-bpe");
    tok_add_merge(&v, "a b", "ab");
    tok_add(&v, "abc", 0, TOK_NORMAL); /* 257: no merge makes it */
    tok_add(&v, SPACE "abc", 0, TOK_NORMAL);
    lvr_tokenizer *t = tok_must_make(&v);
    tok_expect_ids(t, TEXT("abc abc abcd"), IDS(257, 258, ' ', 256, 'c', 'd'));
    lvr_tokenizer_free(t);
    v.pre = "smaug-bpe"; /* the same words, without that rule */
    t = tok_must_make(&v);
    tok_expect_ids(t, TEXT("abc abc"), IDS(256, 'c', ' ', 256, 'c'));
    lvr_tokenizer_free(t);
}

/* ---- words: all of a vocabulary's merges are between equal bytes, so words show as runs ---- */

static void expect_words(const char *pre, const char *text, const char *const *words)
{
    struct tok_vocab v = tok_bpe_vocab(pre);
    static char merges[8][12], pieces[8][12];
    int32_t expected[64];
    uint32_t n = 0;
    for (const char *const *w = words; *w != NULL;
         w++) { /* each word of two bytes or more becomes one token */
        const size_t len = strlen(*w);
        if (len == 1) {
            expected[n++] = (unsigned char)**w;
            continue;
        }
        cr_assert_eq(len, 2, "words of one or two bytes only");
        const char *a = v.pieces[(unsigned char)(*w)[0]].text, *b = v.pieces[(unsigned char)(*w)[1]].text;
        snprintf(merges[v.n_merges], sizeof merges[0], "%s %s", a, b);
        snprintf(pieces[v.n_merges], sizeof pieces[0], "%s%s", a, b);
        expected[n++] = (int32_t)v.n;
        tok_add_merge(&v, merges[v.n_merges], pieces[v.n_merges]);
    }
    lvr_tokenizer *t = tok_must_make(&v);
    tok_expect_ids(t, text, strlen(text), expected, n);
    lvr_tokenizer_free(t);
}

#define WORDS(...)                                                                                           \
    (const char *const[])                                                                                    \
    {                                                                                                        \
        __VA_ARGS__, NULL                                                                                    \
    }

Test(tokenizer_bpe, words_are_cut_as_the_model_asks)
{
    expect_words("gpt-2", "12 a'sb", WORDS("12", " a", "'s", "b"));
    expect_words("gpt-2", "a  b", WORDS("a", " ", " b"));
    expect_words("gpt-2", "I'S", WORDS("I", "'", "S"));
    expect_words("qwen2", "12I'S", WORDS("1", "2", "I", "'S"));
    expect_words("qwen2", "a.b!\n", WORDS("a", ".b", "!\n"));
    expect_words("llama-bpe", "12a", WORDS("12", "a"));
    expect_words("starcoder", "12 3", WORDS("1", "2", " ", "3"));
    expect_words("falcon", "a+ b", WORDS("a", "+", " b"));
    expect_words("deepseek-llm", "\n\na!", WORDS("\n", "\n", "a", "!"));
    expect_words("deepseek-coder", "12 a", WORDS("1", "2", " a"));
    expect_words("deepseek-v3", "12.a", WORDS("12", ".a"));
}

/* ---- bytes ---- */

Test(tokenizer_bpe, any_bytes_come_back)
{
    static const char *const pres[] = {"llama-bpe",    "qwen2",       "gpt-2",
                                       "deepseek-llm", "deepseek-v3", "starcoder"};
    static const char alphabet[] = " a1\xe2\x80\x83\xf0\x9f\n";
    lvr_rng rng;
    lvr_rng_init(&rng, 5, "bytes");
    for (size_t p = 0; p < sizeof pres / sizeof *pres; p++) {
        struct tok_vocab v = tok_bpe_vocab(pres[p]);
        tok_add_merge(&v, SPACE " a", SPACE "a");
        lvr_tokenizer *t = tok_must_make(&v);
        for (int round = 0; round < 300; round++) {
            char text[64];
            const size_t n = lvr_rng_below(&rng, sizeof text);
            for (size_t i = 0; i < n; i++)
                text[i] = round % 2 ? (char)lvr_rng_below(&rng, 256) : alphabet[lvr_rng_below(&rng, 9)];
            tok_expect_round_trip(t, text, n);
        }
        tok_expect_ids(t, TEXT("a\xff\xe2\x80"), IDS('a', 0xff, 0xe2, 0x80));
        tok_expect_ids(t, TEXT("\xed\xa0\x80"), IDS(0xed, 0xa0, 0x80)); /* a surrogate is no character */
        tok_expect_ids(t, TEXT("\0"), IDS(0));
        lvr_tokenizer_free(t);
    }
}

Test(tokenizer_bpe, a_character_may_be_spread_over_tokens)
{
    const struct tok_vocab v = tok_bpe_vocab("gpt-2");
    lvr_tokenizer *t = tok_must_make(&v);
    lvr_buf out = LVR_BUF_INIT;
    lvr_detokenize(t, 0xc3, true, &out);
    cr_expect(out.len == 1 && memcmp(out.data, "\xc3", 1) == 0);
    lvr_detokenize(t, 0xa9, false, &out);
    lvr_detokenize(t, ' ', true, &out); /* no prefix space here, so none to drop */
    cr_expect_str_eq(out.data, "\xc3\xa9 ");
    lvr_buf_free(&out);
    lvr_tokenizer_free(t);
}

Test(tokenizer_bpe, a_byte_without_a_token)
{
    struct tok_vocab v = tok_bpe_vocab("gpt-2");
    v.pieces[0xff].type = TOK_USER; /* as in DeepSeek's: the character, not the byte */
    lvr_tokenizer *t = tok_must_make(&v);
    tok_expect_ids(t, TEXT("a\xff"), IDS('a', 0xef, 0xbf, 0xbd));
    tok_expect_ids(t, TEXT("\xc3\xbf"), IDS(0xff));
    lvr_tokenizer_free(t);
    v.pieces['q'].text = "qqq";
    tok_expect_refused(&v, LVR_ERR_FORMAT, "neither a token for byte 0x71 nor an unknown token");
}

/* ---- what is refused, and what is not ---- */

static void wrong_model(struct tok_vocab *v)
{
    v->model = "t5";
}
static void no_model(struct tok_vocab *v)
{
    v->model = NULL;
}
static void no_pre(struct tok_vocab *v)
{
    v->pre = NULL;
}
static void wrong_pre(struct tok_vocab *v)
{
    v->pre = "tekken";
}
static void no_merges(struct tok_vocab *v)
{
    v->no_merges = true;
}
static void no_types(struct tok_vocab *v)
{
    v->no_types = true;
}
static void short_types(struct tok_vocab *v)
{
    v->n_types = v->n - 1;
}
static void long_types(struct tok_vocab *v)
{
    v->n_types = v->n + 1;
}
static void short_scores(struct tok_vocab *v)
{
    v->no_scores = false, v->n_scores = v->n - 1;
}
static void wrong_type(struct tok_vocab *v)
{
    v->pieces[9].type = 7;
}
static void no_space(struct tok_vocab *v)
{
    tok_add_merge(v, "ab", "ab");
}
static void only_space(struct tok_vocab *v)
{
    tok_add_merge(v, " ", NULL);
}
static void empty_merge(struct tok_vocab *v)
{
    tok_add_merge(v, "", NULL);
}
static void empty_right(struct tok_vocab *v)
{
    tok_add_merge(v, "a ", NULL);
}
static void unknown_left(struct tok_vocab *v)
{
    tok_add_merge(v, "zz a", "zza");
}
static void unknown_right(struct tok_vocab *v)
{
    tok_add_merge(v, "a zz", "azz");
}
static void unknown_both(struct tok_vocab *v)
{
    tok_add_merge(v, "a b", NULL);
}
static void bos_outside(struct tok_vocab *v)
{
    v->bos = (int32_t)v->n;
}
static void eot_outside(struct tok_vocab *v)
{
    v->eot = -1;
}

Test(tokenizer_bpe, malformed_vocabularies_are_refused)
{
    static const struct {
        void (*damage)(struct tok_vocab *v);
        lvr_status status;
        const char *says;
    } rows[] = {
        {wrong_model, LVR_ERR_UNSUPPORTED, "\"t5\""},
        {no_model, LVR_ERR_FORMAT, "tokenizer.ggml.model"},
        {no_pre, LVR_ERR_FORMAT, "tokenizer.ggml.pre is missing"},
        {wrong_pre, LVR_ERR_UNSUPPORTED, "\"tekken\" is not known; known are llama-bpe"},
        {no_merges, LVR_ERR_FORMAT, "tokenizer.ggml.merges"},
        {no_types, LVR_ERR_FORMAT, "tokenizer.ggml.token_type"},
        {short_types, LVR_ERR_FORMAT,
         "tokenizer.ggml.token_type has 255 elements, but the vocabulary has 256"},
        {long_types, LVR_ERR_FORMAT,
         "tokenizer.ggml.token_type has 257 elements, but the vocabulary has 256"},
        {short_scores, LVR_ERR_FORMAT, "tokenizer.ggml.scores has 255 elements"},
        {wrong_type, LVR_ERR_FORMAT, "token 9 has type 7"},
        {no_space, LVR_ERR_FORMAT, "merge 0, \"ab\", has no space"},
        {only_space, LVR_ERR_FORMAT, "merge 0, \" \", has no space"},
        {empty_merge, LVR_ERR_FORMAT, "merge 0, \"\", has no space"},
        {empty_right, LVR_ERR_FORMAT, "merge 0, \"a \", has a right part that is not in the vocabulary"},
        {unknown_left, LVR_ERR_FORMAT, "merge 0, \"zz a\", has a left part that is not in the vocabulary"},
        {unknown_right, LVR_ERR_FORMAT, "merge 0, \"a zz\", has a right part that is not in the vocabulary"},
        {unknown_both, LVR_ERR_FORMAT, "merge 0, \"a b\", makes a piece that is not in the vocabulary"},
        {bos_outside, LVR_ERR_FORMAT,
         "tokenizer.ggml.bos_token_id is 256, but the vocabulary has 256 tokens"},
        {eot_outside, LVR_ERR_FORMAT, "tokenizer.ggml.eot_token_id is 4294967295"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct tok_vocab v = tok_bpe_vocab("gpt-2");
        rows[i].damage(&v);
        tok_expect_refused(&v, rows[i].status, rows[i].says);
    }
}

Test(tokenizer_bpe, tokens_must_be_strings)
{
    lvr_buf b = LVR_BUF_INIT;
    lvr_gguf *g = NULL;
    lvr_tokenizer *t = NULL;
    lvr_error err = LVR_ERROR_INIT;
    gguf_put_head(&b, 0, 2);
    gguf_put_kv_str(&b, "tokenizer.ggml.model", "gpt2");
    gguf_put_kv_arr(&b, "tokenizer.ggml.tokens", GGUF_U32, 2);
    gguf_put_u32(&b, 1);
    gguf_put_u32(&b, 2);
    cr_assert_eq(lvr_gguf_open_mem("v.gguf", b.data, b.len, b.len, false, &g, &err), LVR_OK, "%s", err.msg);
    cr_expect_eq(lvr_tokenizer_new(g, &t, &err), LVR_ERR_FORMAT);
    cr_expect(strstr(err.msg, "tokenizer.ggml.tokens") != NULL && strstr(err.msg, "u32") != NULL, "%s",
              err.msg);
    lvr_gguf_free(g);
    lvr_buf_free(&b);
}

Test(tokenizer_bpe, odd_vocabularies_are_survived)
{
    struct tok_vocab v = tok_bpe_vocab("gpt-2");
    tok_add(&v, "", 0, TOK_NORMAL);
    tok_add(&v, "a", 0, TOK_NORMAL); /* 257: again */
    tok_add(&v, "[PAD 258]", 0, TOK_UNUSED);
    tok_add(&v, "\xe4\xb8\xad", 0, TOK_NORMAL); /* 259: stands for no bytes */
    tok_add(&v, "\xff\xfe", 0, TOK_NORMAL);
    tok_add(&v, "<c>", 0, TOK_CONTROL);
    tok_add(&v, "<c", 0, TOK_NORMAL);
    tok_add_merge(&v, "< c", NULL);
    tok_add_merge(&v, "<c >", NULL); /* would make a control token of text */
    lvr_tokenizer *t = tok_must_make(&v);
    lvr_buf out = LVR_BUF_INIT;
    tok_expect_ids(t, TEXT("a"), IDS(257)); /* the last of equals, as llama.cpp */
    tok_expect_ids(t, TEXT("<c>"), IDS('<', 'c', '>'));
    tok_expect_round_trip(t, TEXT("\xe4\xb8\xad [PAD 258]"));
    for (int32_t id = -1; id <= (int32_t)v.n; id++)
        lvr_detokenize(t, id, id % 2 == 0, &out);
    lvr_buf_free(&out);
    lvr_tokenizer_free(t);
}

/* A vocabulary of a million tokens and merges. */
Test(tokenizer_bpe, a_large_vocabulary_is_loaded, .timeout = 60)
{
    const uint32_t n = 1u << 20;
    const struct tok_vocab small = tok_bpe_vocab("qwen2");
    lvr_buf b = LVR_BUF_INIT;
    lvr_gguf *g = NULL;
    lvr_tokenizer *t = NULL;
    lvr_error err = LVR_ERROR_INIT;
    char text[16];
    gguf_put_head(&b, 0, 5);
    gguf_put_kv_str(&b, "tokenizer.ggml.model", "gpt2");
    gguf_put_kv_str(&b, "tokenizer.ggml.pre", "qwen2");
    gguf_put_kv_arr(&b, "tokenizer.ggml.tokens", GGUF_STR, n);
    for (uint32_t i = 0; i < n; i++) {
        snprintf(text, sizeof text, "%x", i);
        gguf_put_str(&b, i < 256 ? small.pieces[i].text : text);
    }
    gguf_put_kv_arr(&b, "tokenizer.ggml.token_type", GGUF_I32, n);
    for (uint32_t i = 0; i < n; i++)
        gguf_put_u32(&b, TOK_NORMAL);
    gguf_put_kv_arr(&b, "tokenizer.ggml.merges", GGUF_STR, n - 4096);
    for (uint32_t i = 4096; i < n; i++) {
        snprintf(text, sizeof text, "%x %x", i >> 4, i & 15);
        gguf_put_str(&b, text);
    }
    cr_assert(!b.failed);
    cr_assert_eq(lvr_gguf_open_mem("big.gguf", b.data, b.len, b.len, false, &g, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_tokenizer_new(g, &t, &err), LVR_OK, "%s", err.msg);
    cr_expect_eq(lvr_tokenizer_vocab(t), n);
    cr_expect_eq(lvr_tokenizer_find(t, "fffff"), (int32_t)n - 1);
    cr_expect_eq(lvr_tokenizer_compatible(t, t, &err), LVR_OK, "%s", err.msg);
    lvr_tokenizer_free(t);
    lvr_gguf_free(g);
    lvr_buf_free(&b);
}

/* ---- time ---- */

static void expect_moments(const lvr_tokenizer *t, const char *unit, size_t n_unit)
{
    const size_t n = (512u << 10) / n_unit * n_unit;
    char *text = malloc(n);
    int32_t *ids = NULL;
    uint32_t n_ids = 0;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_not_null(text);
    for (size_t i = 0; i < n; i += n_unit)
        memcpy(text + i, unit, n_unit);
    cr_assert_eq(lvr_tokenize(t, text, n, false, &ids, &n_ids, &err), LVR_OK, "%s", err.msg);
    cr_expect_gt(n_ids, 0);
    free(ids);
    free(text);
}

/* Quadratic time would be hours for each. */
Test(tokenizer_bpe, long_texts_take_moments, .timeout = 110)
{
    static const char *const pres[] = {"llama-bpe", "deepseek-llm"};
    static const char *const units[] = {"a",    " ",   "\n", "\xf0\x9f\x98\x80", "[", "1",
                                        "\xff", " \n", "' ", "\xe4\xb8\xad"};
    for (size_t p = 0; p < sizeof pres / sizeof *pres; p++) {
        struct tok_vocab v = tok_bpe_vocab(pres[p]);
        tok_add_merge(&v, "a a", "aa");
        tok_add_merge(&v, "aa aa", "aaaa");
        tok_add_merge(&v, SPACE " " SPACE, SPACE SPACE);
        tok_add(&v, "  ", 0, TOK_USER);
        tok_add(&v, "    ", 0, TOK_USER);
        lvr_tokenizer *t = tok_must_make(&v);
        for (size_t i = 0; i < sizeof units / sizeof *units; i++)
            expect_moments(t, units[i], strlen(units[i]));
        lvr_tokenizer_free(t);
    }
}

/* ---- pairs ---- */

Test(tokenizer_bpe, pairs_of_one_family_share_their_vocabulary)
{
    struct tok_vocab a = tok_bpe_vocab("qwen2");
    lvr_error err = LVR_ERROR_INIT;
    tok_add(&a, "<|im_end|>", 0, TOK_CONTROL);
    a.eos = 256;
    struct tok_vocab b = a;
    tok_add(&b, "[PAD257]", 0, TOK_UNUSED);
    b.bos = 256; /* of no account where none is added */
    lvr_tokenizer *target = tok_must_make(&a), *draft = tok_must_make(&b);
    cr_expect_eq(lvr_tokenizer_compatible(target, draft, &err), LVR_OK, "%s", err.msg);
    cr_expect_eq(lvr_tokenizer_compatible(draft, target, &err), LVR_OK, "%s", err.msg);
    lvr_tokenizer_free(draft);
    b.pieces[255].text = "\xc3\xbe";
    b.pieces[254].text = "\xc3\xbf";
    draft = tok_must_make(&b);
    cr_expect_eq(lvr_tokenizer_compatible(target, draft, &err), LVR_ERR_CONFIG);
    cr_expect(strstr(err.msg, "token 254 is ") != NULL, "%s", err.msg);
    lvr_tokenizer_free(draft);
    lvr_tokenizer_free(target);
}
