/* The planted chain, and how often two noisy readings of it agree. */
#include "engine/synth/chain.h"
#include "engine/synth/odds.h"
#include "engine/synth/values.h"
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define K 4u

static lvr_chain chain_of(uint32_t n_tokens, uint64_t seed)
{
    char path[512];
    lvr_error err = LVR_ERROR_INIT;
    lvr_synth_vocab *v = NULL;
    lvr_chain c = {0};
    snprintf(path, sizeof path, "%s/models/lever-target-10m-q8_0.gguf", getenv("LVR_SOURCE_ROOT"));
    cr_assert_eq(lvr_synth_vocab_open(path, n_tokens, &v, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_chain_new(v, n_tokens, seed, K, &c, &err), LVR_OK, "%s", err.msg);
    lvr_synth_vocab_free(v);
    return c;
}

Test(synth_chain, successors_are_different_words)
{
    lvr_chain c = chain_of(4096, 1);
    bool *is_word = calloc(c.n_tokens, sizeof *is_word);
    cr_assert_not_null(is_word);
    for (uint32_t i = 0; i < c.n_words; i++)
        is_word[c.words[i]] = true;
    for (int32_t t = 0; t < (int32_t)c.n_tokens; t++) {
        int32_t next[K];
        lvr_chain_successors(&c, t, next);
        for (uint32_t k = 0; k < K; k++) {
            cr_expect(is_word[next[k]] && next[k] != t);
            for (uint32_t j = 0; j < k; j++)
                cr_expect_neq(next[j], next[k], "token %d", t);
        }
    }
    free(is_word);
    lvr_chain_free(&c);
}

/* Whatever the choices, no word comes again within 512 tokens. */
Test(synth_chain, no_text_repeats_soon)
{
    lvr_chain c = chain_of(4096, 7);
    cr_expect_geq(c.n_words / c.span, 512u, "%u words, span %u", c.n_words, c.span);
    for (uint64_t walk = 0; walk < 50; walk++) {
        int32_t text[512];
        int32_t at = (int32_t)(walk * 71);
        for (uint32_t i = 0; i < 512; i++) {
            int32_t next[K];
            lvr_chain_successors(&c, at, next);
            /* The worst walks: always the same rank; then random ones. */
            at = next[walk < K ? walk : lvr_synth_hash(walk, i) % K];
            for (uint32_t j = 0; j < i; j++)
                cr_assert_neq(text[j], at, "walk %u: token %d at %u and %u", (unsigned)walk, at, j, i);
            text[i] = at;
        }
    }
    lvr_chain_free(&c);
}

Test(synth_chain, depends_on_seed_and_vocabulary_alone)
{
    lvr_chain a = chain_of(4096, 1), padded = chain_of(32000, 1), other = chain_of(4096, 2);
    uint32_t same = 0;
    for (int32_t t = 0; t < 4096; t++) {
        int32_t x[K], y[K], z[K];
        lvr_chain_successors(&a, t, x);
        lvr_chain_successors(&padded, t, y);
        lvr_chain_successors(&other, t, z);
        cr_expect_arr_eq(x, y, sizeof x, "token %d", t);
        cr_expect_eq(lvr_chain_ease_index(&a, t), lvr_chain_ease_index(&padded, t));
        same += x[0] == z[0];
    }
    cr_expect_lt(same, 50u, "another seed has %u of 4096 first successors in common", same);
    lvr_chain_free(&a);
    lvr_chain_free(&padded);
    lvr_chain_free(&other);
}

Test(synth_chain, eases_have_mean_one)
{
    double sum = 0;
    for (uint32_t i = 0; i < LVR_CHAIN_EASES; i++)
        sum += (double)lvr_chain_ease_level(i);
    cr_expect_float_eq(sum / LVR_CHAIN_EASES, 1.0, 1e-6);
}

static lvr_odds *odds_of(uint32_t n)
{
    lvr_odds *o = NULL;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_odds_new(n, &o, &err), LVR_OK, "%s", err.msg);
    return o;
}

Test(synth_odds, without_a_gap_agreement_is_chance)
{
    for (uint32_t n = 2; n <= 8; n++) {
        lvr_odds *o = odds_of(n);
        cr_expect_float_eq(lvr_odds_agreement(o, 0), 1.0 / n, 0.01, "%u: %g", n, lvr_odds_agreement(o, 0));
        cr_expect_gt(lvr_odds_agreement(o, 40), 0.999);
        lvr_odds_free(o);
    }
}

static double normal_cdf(double x)
{
    return 0.5 * erfc(-x / sqrt(2));
}

/* Two successors: each reading takes the first with probability p = cdf(gap / sqrt(2)); they agree with
 * p^2 + (1 - p)^2. */
Test(synth_odds, two_successors_follow_the_closed_form)
{
    lvr_odds *o = odds_of(2);
    for (double clarity = 0.25; clarity < 4; clarity *= 2) {
        double expected = 0;
        for (uint32_t e = 0; e < LVR_CHAIN_EASES; e++) {
            const double p = normal_cdf(clarity * (double)lvr_chain_ease_level(e) / sqrt(2));
            expected += (p * p + (1 - p) * (1 - p)) / LVR_CHAIN_EASES;
        }
        cr_expect_float_eq(lvr_odds_agreement(o, clarity), expected, 0.01, "%g: %g, expected %g", clarity,
                           lvr_odds_agreement(o, clarity), expected);
    }
    lvr_odds_free(o);
}

Test(synth_odds, finds_the_clarity_of_a_rate)
{
    lvr_odds *o = odds_of(K);
    lvr_error err = LVR_ERROR_INIT;
    double clarity = 0;
    for (double rate = 0.3; rate < 0.99; rate += 0.1) {
        cr_assert_eq(lvr_odds_clarity(o, rate, &clarity, &err), LVR_OK, "%s", err.msg);
        cr_expect_float_eq(lvr_odds_agreement(o, clarity), rate, 0.005);
    }
    clarity = 7;
    cr_expect_eq(lvr_odds_clarity(o, 0.2, &clarity, &err), LVR_ERR_CONFIG);
    cr_expect_eq(clarity, 7);
    cr_expect_not_null(strstr(err.msg, "0.2"), "%s", err.msg);
    lvr_odds_free(o);
}

Test(synth_odds, an_early_layer_with_all_the_noise_is_the_last)
{
    lvr_odds *o = odds_of(K);
    lvr_error err = LVR_ERROR_INIT;
    double fraction = 7, last = 0;
    cr_expect_eq(lvr_odds_early(o, 1.5, 0.4, 1), 1);
    cr_expect_eq(lvr_odds_early(o, 1.5, 1, 0), 1);
    for (double f = 0; f <= 1; f += 0.125) {
        const double rate = lvr_odds_early(o, 1.5, 0.4, f);
        cr_expect_geq(rate, last, "falls at %g", f);
        last = rate;
    }
    cr_expect_eq(lvr_odds_fraction(o, 1.5, 0.4, 0.3, &fraction, &err), LVR_ERR_CONFIG);
    cr_expect_eq(fraction, 7);
    cr_assert_eq(lvr_odds_fraction(o, 1.5, 0.4, 0.85, &fraction, &err), LVR_OK, "%s", err.msg);
    cr_expect_float_eq(lvr_odds_early(o, 1.5, 0.4, fraction), 0.85, 0.005);
    lvr_odds_free(o);
}
