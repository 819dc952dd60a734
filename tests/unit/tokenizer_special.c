/* Special tokens: when text becomes one, which of overlapping ones, what ends a text. */
#include "common/rng.h"
#include "tests/unit/tokenizer_rig.h"
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

Test(tokenizer_special, control_tokens_are_parsed_only_when_asked)
{
    struct tok_vocab v = tok_bpe_vocab("gpt-2");
    tok_add(&v, "<s>", 0, TOK_CONTROL); /* 256 */
    tok_add(&v, "<u>", 0, TOK_USER);
    lvr_tokenizer *t = tok_must_make(&v);
    tok_expect_ids(t, TEXT("a<s><u>"), IDS('a', '<', 's', '>', 257));
    tok_expect_special_ids(t, TEXT("a<s><u>"), IDS('a', 256, 257));
    tok_expect_round_trip(t, TEXT("a<s><u>"));
    lvr_tokenizer_free(t);
}

Test(tokenizer_special, prefix_space_follows_special_tokens_in_sentencepiece)
{
    struct tok_vocab v = tok_spm_vocab(true);
    tok_add(&v, TOK_MARK, -1, TOK_NORMAL); /* 259 */
    tok_add(&v, "a", -1, TOK_NORMAL);
    lvr_tokenizer *t = tok_must_make(&v);
    tok_expect_special_ids(t, TEXT("a<s>a</s>"), IDS(259, 260, 1, 259, 260, 2));
    tok_expect_special_ids(t, TEXT("<s>"), IDS(1));
    lvr_tokenizer_free(t);
}

Test(tokenizer_special, bos_and_eos_as_the_file_says)
{
    struct tok_vocab v = tok_bpe_vocab("gpt-2");
    int32_t *ids = NULL;
    uint32_t n = 0;
    tok_add(&v, "<s>", 0, TOK_CONTROL);
    tok_add(&v, "</s>", 0, TOK_CONTROL);
    v.bos = 256, v.eos = 257;
    lvr_tokenizer *t = tok_must_make(&v); /* byte-level models add none unless told */
    cr_assert_eq(lvr_tokenize(t, "a", 1, true, &ids, &n, NULL), LVR_OK);
    cr_expect(n == 1 && ids[0] == 'a');
    free(ids);
    lvr_tokenizer_free(t);

    v.pre = "llama-bpe"; /* but these do */
    v.add_eos = 1;
    t = tok_must_make(&v);
    cr_assert_eq(lvr_tokenize(t, "a", 1, true, &ids, &n, NULL), LVR_OK);
    cr_expect(n == 3 && ids[0] == 256 && ids[1] == 'a' && ids[2] == 257);
    free(ids);
    cr_assert_eq(lvr_tokenize(t, "a", 1, false, &ids, &n, NULL), LVR_OK);
    cr_expect(n == 1 && ids[0] == 'a');
    free(ids);
    lvr_tokenizer_free(t);
}

Test(tokenizer_special, texts_end_with_named_and_well_known_tokens)
{
    struct tok_vocab v = tok_bpe_vocab("llama-bpe");
    uint32_t n = 0;
    tok_add(&v, "<eos>", 0, TOK_CONTROL);      /* 256: by key */
    tok_add(&v, "<turn>", 0, TOK_CONTROL);     /* 257: by key */
    tok_add(&v, "<|im_end|>", 0, TOK_NORMAL);  /* 258: by its text, whatever the file calls it */
    tok_add(&v, "<|eot_id|>", 0, TOK_CONTROL); /* 259 */
    tok_add(&v, "<other>", 0, TOK_CONTROL);
    v.eos = 256, v.eot = 257;
    lvr_tokenizer *t = tok_must_make(&v);
    lvr_tokenizer_eog(t, &n);
    cr_expect_eq(n, 4);
    for (int32_t id = 256; id < 260; id++)
        cr_expect(lvr_tokenizer_is_eog(t, id), "%d", id);
    cr_expect(!lvr_tokenizer_is_eog(t, 260) && !lvr_tokenizer_is_eog(t, 'a') && !lvr_tokenizer_is_eog(t, -1));
    tok_expect_ids(t, TEXT("|im_"), IDS('|', 'i', 'm', '_'));
    tok_expect_special_ids(t, TEXT("<|im_end|>"), IDS(258));
    lvr_tokenizer_free(t);
}

/* ---- overlapping tokens, against the rule in its plain form ---- */

struct cut {
    char text[64];
    int32_t ids[64]; /* of each byte: the token that begins here, -1 inside one, -2 free */
    size_t n;
};

/* Cuts every free occurrence of one token, leftmost first. */
static void cut_one(struct cut *c, const char *piece, int32_t id)
{
    const size_t n = strlen(piece);
    for (size_t at = 0; at + n <= c->n; at++) {
        bool is_free = memcmp(c->text + at, piece, n) == 0;
        for (size_t i = 0; i < n; i++)
            is_free = is_free && c->ids[at + i] == -2;
        for (size_t i = 0; is_free && i < n; i++)
            c->ids[at + i] = i == 0 ? id : -1;
    }
}

static void cut_all(struct cut *c, const struct tok_vocab *v)
{
    for (size_t i = 0; i < c->n; i++)
        c->ids[i] = -2;
    for (size_t length = 8; length > 0; length--)
        for (uint32_t id = 256; id < v->n; id++)
            if (strlen(v->pieces[id].text) == length)
                cut_one(c, v->pieces[id].text, (int32_t)id);
}

static void check_cut(const lvr_tokenizer *t, struct cut *c, const struct tok_vocab *v)
{
    int32_t expected[64];
    uint32_t n = 0;
    cut_all(c, v);
    for (size_t i = 0; i < c->n; i++)
        if (c->ids[i] != -1)
            expected[n++] = c->ids[i] == -2 ? (unsigned char)c->text[i] : c->ids[i];
    tok_expect_ids(t, c->text, c->n, expected, n);
}

Test(tokenizer_special, longer_tokens_come_first_wherever_they_begin)
{
    lvr_rng rng;
    lvr_rng_init(&rng, 7, "special");
    for (int round = 0; round < 60; round++) {
        static char pieces[12][9];
        struct tok_vocab v = tok_bpe_vocab("gpt-2");
        for (int i = 0; i < 12; i++) {
            const size_t n = 1 + lvr_rng_below(&rng, 8);
            for (size_t k = 0; k < n; k++)
                pieces[i][k] = (char)('a' + lvr_rng_below(&rng, 2));
            pieces[i][n] = '\0';
            tok_add(&v, pieces[i], 0, TOK_USER);
        }
        lvr_tokenizer *t = tok_must_make(&v);
        for (int k = 0; k < 50; k++) {
            struct cut c = {.n = lvr_rng_below(&rng, 64)};
            for (size_t i = 0; i < c.n; i++)
                c.text[i] = (char)('a' + lvr_rng_below(&rng, 2));
            check_cut(t, &c, &v);
        }
        lvr_tokenizer_free(t);
    }
}
