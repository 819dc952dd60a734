/* The SentencePiece-style tokenizer: round trips, user-defined tokens, hostile vocabularies. */
#include "common/rng.h"
#include "tests/unit/tokenizer_rig.h"
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

Test(tokenizer, embedded_pair_shares_its_vocabulary)
{
    char target_path[512], draft_path[512], other_path[512];
    lvr_error err = LVR_ERROR_INIT;
    if (!tok_shared_path("models/lever-target-10m-q4_0.gguf", target_path, sizeof target_path) ||
        !tok_shared_path("models/lever-draft-1m-q8_0.gguf", draft_path, sizeof draft_path) ||
        !tok_shared_path("vocab/ggml-vocab-llama-spm.gguf", other_path, sizeof other_path))
        cr_skip_test("no %s", target_path);
    lvr_tokenizer *target = tok_open(target_path), *draft = tok_open(draft_path),
                  *other = tok_open(other_path);
    cr_expect_eq(lvr_tokenizer_compatible(target, draft, &err), LVR_OK, "%s", err.msg);
    cr_expect_eq(lvr_tokenizer_compatible(target, other, &err), LVR_ERR_CONFIG);
    cr_expect(strstr(err.msg, "token 259") != NULL, "%s", err.msg);
    cr_expect(lvr_tokenizer_vocab(target) == 4096 && lvr_tokenizer_bos(target) == 1 &&
              lvr_tokenizer_eos(target) == 2);
    tok_expect_round_trip(target, "User: 1234 tables for 5?\nAssistant:  Certainly.", 48);
    lvr_tokenizer_free(target);
    lvr_tokenizer_free(draft);
    lvr_tokenizer_free(other);
}

Test(tokenizer, merges_the_best_score_first_and_the_leftmost_of_equals)
{
    struct tok_vocab v = tok_spm_vocab(true);
    v.add_space_prefix = 0;
    tok_add(&v, "a", -1, TOK_NORMAL); /* 259 */
    tok_add(&v, "b", -1, TOK_NORMAL);
    tok_add(&v, "ab", -3, TOK_NORMAL);
    tok_add(&v, "ba", -2, TOK_NORMAL);
    tok_add(&v, "aa", -4, TOK_NORMAL); /* 263 */
    lvr_tokenizer *t = tok_must_make(&v);
    tok_expect_ids(t, TEXT("aba"), IDS(259, 262));
    tok_expect_ids(t, TEXT("aaa"), IDS(263, 259));
    tok_expect_ids(t, TEXT("abab"), IDS(259, 262, 260));
    lvr_tokenizer_free(t);
}

Test(tokenizer, unknown_characters_become_bytes)
{
    struct tok_vocab v = tok_spm_vocab(true);
    lvr_tokenizer *t = tok_must_make(&v);
    tok_expect_ids(t, TEXT("\xc3\xa9"), IDS(3 + ' ', 3 + 0xc3, 3 + 0xa9));
    tok_expect_round_trip(t, TEXT("caf\xc3\xa9 \xf0\x9f\xa6\x99 \n\t  x "));
    lvr_tokenizer_free(t);

    v = tok_spm_vocab(false); /* and without byte tokens, the unknown token */
    tok_add(&v, TOK_MARK, 0, TOK_NORMAL);
    t = tok_must_make(&v);
    tok_expect_ids(t, TEXT("\xc3\xa9"), IDS(3, 0, 0));
    lvr_tokenizer_free(t);
}

Test(tokenizer, bytes_that_are_not_utf8_come_back)
{
    struct tok_vocab v = tok_spm_vocab(true);
    tok_add(&v, TOK_MARK, -5, TOK_NORMAL);
    tok_add(&v, "a", -6, TOK_NORMAL);
    tok_add(&v, TOK_MARK "a", -1, TOK_NORMAL);
    lvr_tokenizer *t = tok_must_make(&v);
    lvr_rng rng;
    lvr_rng_init(&rng, 1, "tokenizer");
    for (int round = 0; round < 200; round++) {
        char text[64];
        const size_t n = lvr_rng_below(&rng, sizeof text);
        for (size_t i = 0; i < n; i++)
            text[i] = (char)lvr_rng_below(&rng, 256);
        if (memmem(text, n, TOK_MARK, 3) == NULL)
            tok_expect_round_trip(t, text, n);
    }
    tok_expect_round_trip(t, TEXT("\xe2 a\xe2\x96 a\xf0\x9f  \xff"));
    tok_expect_round_trip(t, TEXT("a\0b\0"));
    lvr_tokenizer_free(t);
}

Test(tokenizer, special_tokens_in_text_are_text)
{
    struct tok_vocab v = tok_spm_vocab(true);
    v.add_space_prefix = 0;
    for (const char *c = "<\0s\0>\0/\0"; *c != '\0'; c += 2)
        tok_add(&v, c, -1, TOK_NORMAL);
    tok_add(&v, "<s", -1, TOK_NORMAL);
    tok_add(&v, "</", -1, TOK_NORMAL);
    tok_add(&v, "</s", -1, TOK_NORMAL);
    lvr_tokenizer *t = tok_must_make(&v);
    tok_expect_ids(t, TEXT("<s>"), IDS(263, 261));
    tok_expect_ids(t, TEXT("</s>"), IDS(265, 261));
    tok_expect_round_trip(t, TEXT("<unk><0x41></s>"));
    lvr_tokenizer_free(t);
}

Test(tokenizer, user_defined_tokens_are_cut_out_longest_first)
{
    struct tok_vocab v = tok_spm_vocab(true);
    tok_add(&v, TOK_MARK, -1, TOK_NORMAL); /* 259 */
    tok_add(&v, "a", -1, TOK_NORMAL);      /* 260 */
    tok_add(&v, "<x>", 0, TOK_USER);       /* 261 */
    tok_add(&v, "<x><y>", 0, TOK_USER);    /* 262 */
    tok_add(&v, "a b", 0, TOK_USER);       /* 263 */
    tok_add(&v, "", 0, TOK_USER);
    lvr_tokenizer *t = tok_must_make(&v);
    tok_expect_ids(t, TEXT("<x>"), IDS(261));
    tok_expect_ids(t, TEXT("a<x><y><x>"), IDS(259, 260, 262, 261));
    tok_expect_ids(t, TEXT("<x>a"),
                   IDS(261, 259, 260)); /* as llama.cpp: the prefix space follows a special token */
    tok_expect_ids(t, TEXT("aa ba"), IDS(259, 260, 263, 259, 260));
    tok_expect_round_trip(t, TEXT("a<x><y>"));
    lvr_tokenizer_free(t);
}

Test(tokenizer, bos_is_added_only_where_both_want_it)
{
    struct tok_vocab v = tok_spm_vocab(true);
    int32_t *ids = NULL;
    uint32_t n = 0;
    lvr_tokenizer *t = tok_must_make(&v);
    cr_expect(lvr_tokenizer_adds_bos(t) && lvr_tokenizer_bos(t) == 1 && lvr_tokenizer_eos(t) == 2);
    cr_assert_eq(lvr_tokenize(t, NULL, 0, true, &ids, &n, NULL), LVR_OK);
    cr_expect(n == 1 && ids[0] == 1);
    free(ids);
    cr_assert_eq(lvr_tokenize(t, "", 0, false, &ids, &n, NULL), LVR_OK);
    cr_expect_eq(n, 0);
    free(ids);
    lvr_tokenizer_free(t);

    v.add_bos = 0;
    t = tok_must_make(&v);
    cr_assert_eq(lvr_tokenize(t, "", 0, true, &ids, &n, NULL), LVR_OK);
    cr_expect_eq(n, 0);
    free(ids);
    lvr_tokenizer_free(t);
}

Test(tokenizer, detokenizes_any_number)
{
    struct tok_vocab v = tok_spm_vocab(true);
    lvr_buf out = LVR_BUF_INIT;
    size_t n = 9;
    lvr_tokenizer *t = tok_must_make(&v);
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
        struct tok_vocab v = tok_spm_vocab(true);
        tok_add(&v, not_bytes[i], 0, TOK_BYTE);
        tok_expect_refused(&v, LVR_ERR_FORMAT, "token 259 is a byte token");
    }
    struct tok_vocab v = tok_spm_vocab(true);
    v.n_scores = v.n - 1;
    tok_expect_refused(&v, LVR_ERR_FORMAT,
                       "tokenizer.ggml.scores has 258 elements, but the vocabulary has 259");
    v.n_scores = v.n + 1;
    tok_expect_refused(&v, LVR_ERR_FORMAT, "tokenizer.ggml.scores");
    v.n_scores = 0, v.n_types = v.n - 1;
    tok_expect_refused(&v, LVR_ERR_FORMAT, "tokenizer.ggml.token_type");
    v.n_types = 0, v.pieces[258].type = 7;
    tok_expect_refused(&v, LVR_ERR_FORMAT, "token 258 has type 7");
    v.pieces[258].type = -1;
    tok_expect_refused(&v, LVR_ERR_FORMAT, "token 258 has type -1");
    v.pieces[258].type = TOK_BYTE, v.pieces[258].score = NAN;
    tok_expect_refused(&v, LVR_ERR_FORMAT, "not a number");
    v.pieces[258].score = 0, v.bos = 259;
    tok_expect_refused(&v, LVR_ERR_FORMAT, "bos_token_id is 259");
    v.bos = -1;
    tok_expect_refused(&v, LVR_ERR_FORMAT, "bos_token_id is 4294967295");
    v.bos = 1, v.model = "bert";
    tok_expect_refused(&v, LVR_ERR_UNSUPPORTED, "\"bert\"");
    v = tok_empty_vocab("llama");
    tok_expect_refused(&v, LVR_ERR_FORMAT, "0 tokens");
    tok_add(&v, "a", 0, TOK_NORMAL);
    tok_expect_refused(&v, LVR_ERR_FORMAT, "neither a token for byte 0x00 nor an unknown token");
}

Test(tokenizer, odd_vocabularies_are_survived)
{
    struct tok_vocab v = tok_spm_vocab(true);
    tok_add(&v, "", 0, TOK_NORMAL);
    tok_add(&v, "a", -1, TOK_NORMAL); /* 260 */
    tok_add(&v, "a", -1, TOK_NORMAL);
    tok_add(&v, "<0x41>", 0, TOK_BYTE); /* a second token for byte A */
    tok_add(&v, "aa", HUGE_VALF, TOK_NORMAL);
    tok_add(&v, "aaa", -HUGE_VALF, TOK_NORMAL);
    v.add_space_prefix = 0;
    lvr_tokenizer *t = tok_must_make(&v);
    tok_expect_ids(t, TEXT("a"), IDS(261)); /* the last of equals, as llama.cpp */
    tok_expect_ids(t, TEXT("A"), IDS(262));
    tok_expect_ids(t, TEXT("aaa"), IDS(264));
    lvr_tokenizer_free(t);
}

Test(tokenizer, a_long_text_takes_moments, .timeout = 60)
{
    struct tok_vocab v = tok_spm_vocab(true);
    static const char *const runs[] = {"a", "aa", "aaaa", "aaaaaaaa", "aaaaaaaaaaaaaaaa"};
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++)
        tok_add(&v, runs[i], -(float)i, TOK_NORMAL);
    v.add_space_prefix = 0;
    lvr_tokenizer *t = tok_must_make(&v);
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
    struct tok_vocab v = tok_spm_vocab(true);
    lvr_tokenizer *t = tok_must_make(&v);
    lvr_error err = LVR_ERROR_INIT;
    int32_t *ids = NULL;
    uint32_t n = 0;
    cr_expect_eq(lvr_tokenize(t, "x", SIZE_MAX, false, &ids, &n, &err), LVR_ERR_UNSUPPORTED);
    cr_expect_null(ids);
    lvr_tokenizer_free(t);
}

static lvr_status compare(const struct tok_vocab *a, const struct tok_vocab *b, lvr_error *err)
{
    lvr_tokenizer *target = tok_must_make(a), *draft = tok_must_make(b);
    const lvr_status status = lvr_tokenizer_compatible(target, draft, err);
    lvr_tokenizer_free(target);
    lvr_tokenizer_free(draft);
    return status;
}

Test(tokenizer, pairs_may_differ_by_padding_only)
{
    struct tok_vocab a = tok_spm_vocab(true);
    lvr_error err = LVR_ERROR_INIT;
    tok_add(&a, "a", -1, TOK_NORMAL);
    struct tok_vocab b = a;
    cr_expect_eq(compare(&a, &b, &err), LVR_OK, "%s", err.msg);
    tok_add(&b, "[PAD260]", 0, TOK_NORMAL);
    tok_add(&b, "dummy", 0, TOK_UNUSED);
    cr_expect_eq(compare(&a, &b, &err), LVR_OK, "%s", err.msg);
    cr_expect_eq(compare(&b, &a, &err), LVR_OK, "%s", err.msg);
    tok_add(&b, "real", 0, TOK_NORMAL);
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
