#include "common/rng.h"
#include "engine/sampler.h"

#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static lvr_sampler *sampler_at(uint32_t vocab, lvr_cpu_level level)
{
    static lvr_kernels kernels[LVR_CPU_LEVELS];
    lvr_kernels_init(&kernels[level], level);
    lvr_sampler *s = NULL;
    cr_assert_eq(lvr_sampler_new(vocab, &kernels[level], &s, NULL), LVR_OK);
    return s;
}

static int32_t greedy(const float *logits, uint32_t vocab)
{
    lvr_sampler *s = sampler_at(vocab, LVR_CPU_C);
    const lvr_sampling set = {.temperature = 0, .top_p = 1};
    const int32_t token = lvr_sample(s, &set, 0, 0, logits, NULL);
    lvr_sampler_free(s);
    return token;
}

static void random_logits(float *x, uint32_t n, uint64_t seed)
{
    lvr_rng rng;
    lvr_rng_init(&rng, seed, "logits");
    for (uint32_t i = 0; i < n; i++)
        x[i] = (float)(3.0 * lvr_rng_normal(&rng));
}

Test(sampler, greedy_takes_the_smallest_of_equal_ids)
{
    cr_expect_eq(greedy((const float[]){1, 5, 2, 5, 5}, 5), 1);
    cr_expect_eq(greedy((const float[]){-0.0f, 0.0f}, 2), 0, "zeros are equal whatever their sign");
    cr_expect_eq(greedy((const float[]){0.0f, -0.0f}, 2), 0);
    cr_expect_eq(greedy((const float[]){-1, 0.0f, -0.0f}, 3), 1);
    cr_expect_eq(greedy((const float[]){3}, 1), 0);
}

Test(sampler, greedy_with_nan_and_infinities)
{
    cr_expect_eq(greedy((const float[]){NAN, -3, NAN, -2}, 4), 3);
    cr_expect_eq(greedy((const float[]){NAN, NAN}, 2), -1);
    cr_expect_eq(greedy((const float[]){-INFINITY, INFINITY}, 2), -1);
    cr_expect_eq(greedy((const float[]){NAN, -FLT_MAX}, 2), 0);
    cr_expect_eq(greedy((const float[]){NAN, -INFINITY, -1e30f}, 3), 2);
    cr_expect_eq(greedy((const float[]){1, INFINITY, INFINITY}, 3), 1);
}

Test(sampler, greedy_probability_is_the_softmax)
{
    const float x[] = {0, logf(3), logf(4)};
    lvr_sampler *s = sampler_at(3, LVR_CPU_C);
    const lvr_sampling set = {.temperature = 0, .top_p = 1};
    float p = 0;
    cr_expect_eq(lvr_sample(s, &set, 0, 0, x, &p), 2);
    cr_expect_float_eq(p, 0.5f, 1e-6f);
    lvr_sampler_free(s);
}

/* The definition, slowly: sort everything, cut, walk. */
struct entry {
    double logit, weight;
    uint32_t id;
};

static int by_order(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* The token, and how near to it in cumulative probability another decision would have been. */
static uint32_t sample_slowly(const float *x, uint32_t n, const lvr_sampling *set, double u, double *ret_p,
                              double *ret_margin)
{
    struct entry *e = calloc(n, sizeof *e);
    double max = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < n; i++)
        max = fmax(max, (double)x[i]);
    for (uint32_t i = 0; i < n; i++)
        e[i] = (struct entry){(double)x[i], exp(((double)x[i] - max) / set->temperature), i};
    qsort(e, n, sizeof *e, by_order);
    uint32_t kept = set->top_k && set->top_k < n ? set->top_k : n;
    for (uint32_t i = 0; i < kept; i++)
        sum += e[i].weight;
    *ret_margin = INFINITY;
    if (set->top_p < 1) {
        double nucleus = 0;
        uint32_t i = 0;
        do {
            nucleus += e[i++].weight;
            *ret_margin = fmin(*ret_margin, fabs(nucleus / sum - set->top_p));
        } while (i < kept && nucleus < set->top_p * sum);
        kept = i;
        sum = nucleus;
    }
    double cumulative = 0;
    uint32_t i = 0;
    for (; i < kept; i++) {
        cumulative += e[i].weight;
        *ret_margin = fmin(*ret_margin, fabs(cumulative / sum - u));
        if (cumulative > u * sum)
            break;
    }
    *ret_p = e[i < kept ? i : kept - 1].weight / sum;
    const uint32_t id = e[i < kept ? i : kept - 1].id;
    free(e);
    return id;
}

Test(sampler, inverse_cdf_equals_the_definition)
{
    enum { VOCAB = 1003 };
    static const lvr_sampling sets[] = {
        {.temperature = 1, .top_p = 1},
        {.temperature = 0.3, .top_p = 1},
        {.temperature = 2.5, .top_p = 1},
        {.temperature = 1, .top_k = 1, .top_p = 1},
        {.temperature = 1, .top_k = 17, .top_p = 1},
        {.temperature = 1, .top_p = 0.9},
        {.temperature = 1.3, .top_k = 50, .top_p = 0.5},
        {.temperature = 1, .top_k = 5000, .top_p = 0.99},
        {.temperature = 1, .top_p = 0},
    };
    float x[VOCAB];
    uint32_t n_compared = 0;
    lvr_sampler *s = sampler_at(VOCAB, LVR_CPU_C);
    for (uint32_t trial = 0; trial < 60; trial++) {
        random_logits(x, VOCAB, trial);
        for (uint32_t i = 1; i < VOCAB; i += 3)
            x[i] = x[i - 1]; /* ties */
        for (size_t k = 0; k < sizeof sets / sizeof *sets; k++) {
            lvr_sampling set = sets[k];
            set.seed = 42;
            double want_p, margin;
            const double u = lvr_hash_unit(set.seed, 7, trial);
            const uint32_t want = sample_slowly(x, VOCAB, &set, u, &want_p, &margin);
            float p = -1;
            const int32_t got = lvr_sample(s, &set, 7, trial, x, &p);
            if (margin < 1e-5)
                continue; /* the float exp may decide otherwise */
            n_compared++;
            cr_expect_eq(got, (int32_t)want, "trial %u, settings %zu", trial, k);
            cr_expect_float_eq((double)p, want_p, 1e-5 * want_p + 1e-9, "trial %u, settings %zu", trial, k);
        }
    }
    cr_expect_gt(n_compared, 500u);
    lvr_sampler_free(s);
}

Test(sampler, top_p_edges)
{
    /* Weights 4, 2, 1, 1 (of 8), exact in float. */
    const float x[] = {0, 0, logf(2), logf(4)};
    lvr_sampler *s = sampler_at(4, LVR_CPU_C);
    for (uint32_t position = 0; position < 200; position++) {
        lvr_sampling set = {.temperature = 1, .top_p = 0.49, .seed = 1};
        cr_expect_eq(lvr_sample(s, &set, 0, position, x, NULL), 3, "one token holds more than top_p");
        set.top_p = 0.51;
        cr_expect_geq(lvr_sample(s, &set, 0, position, x, NULL), 2, "two tokens hold three quarters");
        set.top_p = 0.8;
        cr_expect_neq(lvr_sample(s, &set, 0, position, x, NULL), 1, "of equal logits the smaller id stays");
        set.top_p = -1;
        cr_expect_eq(lvr_sample(s, &set, 0, position, x, NULL), 3, "never fewer than one");
    }
    lvr_sampler_free(s);
}

Test(sampler, depends_on_seed_request_and_position_only)
{
    enum { VOCAB = 64, N = 64 };
    float x[VOCAB] = {0}; /* uniform: every u gives another token */
    lvr_sampler *a = sampler_at(VOCAB, LVR_CPU_C), *b = sampler_at(VOCAB, LVR_CPU_C);
    const lvr_sampling set = {.temperature = 1, .top_p = 1, .seed = 5},
                       other = {.temperature = 1, .top_p = 1, .seed = 6};
    int32_t first[N];
    uint32_t by_seed = 0, by_request = 0, by_position = 0;
    for (uint32_t i = 0; i < N; i++)
        first[i] = lvr_sample(a, &set, 3, i, x, NULL);
    for (uint32_t i = N; i-- > 0;) {
        cr_expect_eq(lvr_sample(b, &set, 3, i, x, NULL), first[i], "the order of calls does not matter");
        by_seed += lvr_sample(b, &other, 3, i, x, NULL) != first[i];
        by_request += lvr_sample(b, &set, 4, i, x, NULL) != first[i];
        by_position += lvr_sample(b, &set, 3, i + N, x, NULL) != first[i];
    }
    cr_expect_gt(by_seed, 32u);
    cr_expect_gt(by_request, 32u);
    cr_expect_gt(by_position, 32u);
    lvr_sampler_free(a);
    lvr_sampler_free(b);
}

Test(sampler, frequencies_follow_the_softmax)
{
    enum { N = 20000 };
    const float x[] = {0, logf(2), logf(5), -INFINITY, NAN};
    const double want[] = {1 / 8.0, 2 / 8.0, 5 / 8.0, 0, 0};
    uint32_t count[5] = {0};
    lvr_sampler *s = sampler_at(5, LVR_CPU_C);
    const lvr_sampling set = {.temperature = 1, .top_p = 1, .seed = 11};
    for (uint32_t i = 0; i < N; i++)
        count[lvr_sample(s, &set, 0, i, x, NULL)]++;
    for (uint32_t i = 0; i < 5; i++)
        cr_expect_float_eq(count[i] / (double)N, want[i], 4 * sqrt(0.25 / N), "token %u: %u", i, count[i]);
    lvr_sampler_free(s);
}

Test(sampler, tiny_temperature_is_greedy)
{
    const float x[] = {1, 2, 2, 0};
    static const double temperatures[] = {1e-300, 1e-39, 1e-30, 1e-3, 0, -1};
    lvr_sampler *s = sampler_at(4, LVR_CPU_C);
    for (size_t k = 0; k < sizeof temperatures / sizeof *temperatures; k++)
        for (uint32_t i = 0; i < 50; i++) {
            const lvr_sampling set = {.temperature = temperatures[k], .top_p = 1};
            const int32_t token = lvr_sample(s, &set, 0, i, x, NULL);
            cr_expect(token == 1 || (token == 2 && temperatures[k] > 1e-38), "temperature %g: token %d",
                      temperatures[k], token);
        }
    lvr_sampler_free(s);
}

Test(sampler, nothing_finite_gives_no_token)
{
    const float x[] = {NAN, -INFINITY, NAN};
    lvr_sampler *s = sampler_at(3, LVR_CPU_C);
    const lvr_sampling set = {.temperature = 1, .top_p = 1};
    for (uint32_t i = 0; i < 20; i++)
        cr_expect_eq(lvr_sample(s, &set, 0, i, x, NULL), -1);
    lvr_sampler_free(s);
}

Test(sampler, levels_agree_bit_for_bit)
{
    enum { VOCAB = 777 };
    float x[VOCAB];
    lvr_sampler *c = sampler_at(VOCAB, LVR_CPU_C), *best = sampler_at(VOCAB, lvr_cpu_best());
    const lvr_sampling set = {.temperature = 0.8, .top_k = 100, .top_p = 0.95, .seed = 3};
    for (uint32_t trial = 0; trial < 100; trial++) {
        lvr_candidate a[8], b[8];
        float p = 0, q = 1;
        random_logits(x, VOCAB, trial);
        cr_expect_eq(lvr_sample(c, &set, 0, trial, x, &p), lvr_sample(best, &set, 0, trial, x, &q));
        cr_expect(memcmp(&p, &q, sizeof p) == 0);
        cr_expect_eq(lvr_top_candidates(c, x, 8, a), 8);
        cr_expect_eq(lvr_top_candidates(best, x, 8, b), 8);
        cr_expect(memcmp(a, b, sizeof a) == 0);
    }
    lvr_sampler_free(c);
    lvr_sampler_free(best);
}

Test(candidates, best_first_and_ties_to_the_smaller_id)
{
    const float x[] = {0, 1, 2, 1, 2, NAN, 1};
    static const int32_t want[] = {2, 4, 1, 3, 6, 0, 5};
    lvr_candidate got[7];
    lvr_sampler *s = sampler_at(7, LVR_CPU_C);
    cr_expect_eq(lvr_top_candidates(s, x, 0, got), 0);
    for (uint32_t k = 1; k <= 7; k++) {
        cr_expect_eq(lvr_top_candidates(s, x, k, got), k);
        for (uint32_t i = 0; i < k; i++)
            cr_expect_eq(got[i].token, want[i], "k %u, candidate %u", k, i);
    }
    cr_expect_eq(lvr_top_candidates(s, x, 16, got), 7, "no more than the vocabulary has");
    const double sum = 2 * exp(2) + 3 * exp(1) + 1;
    cr_expect_float_eq((double)got[0].p_draft, exp(2) / sum, 1e-6);
    cr_expect_float_eq((double)got[5].p_draft, 1 / sum, 1e-6);
    lvr_sampler_free(s);
}

Test(candidates, equal_a_full_sort)
{
    enum { VOCAB = 1500, K = 16 };
    float x[VOCAB];
    struct entry e[VOCAB];
    lvr_sampler *s = sampler_at(VOCAB, lvr_cpu_best());
    for (uint32_t trial = 0; trial < 50; trial++) {
        random_logits(x, VOCAB, trial);
        for (uint32_t i = 0; i < VOCAB; i++) {
            x[i] = rintf(x[i] * 4) / 4; /* many ties */
            e[i] = (struct entry){.logit = (double)x[i], .id = i};
        }
        qsort(e, VOCAB, sizeof *e, by_order);
        lvr_candidate got[K];
        cr_assert_eq(lvr_top_candidates(s, x, K, got), K);
        for (uint32_t i = 0; i < K; i++)
            cr_expect_eq(got[i].token, (int32_t)e[i].id, "trial %u, candidate %u", trial, i);
    }
    lvr_sampler_free(s);
}

Test(sampler, empty_vocabulary_is_refused)
{
    lvr_kernels kernels;
    lvr_kernels_init(&kernels, LVR_CPU_C);
    lvr_sampler *s = NULL;
    lvr_error err = LVR_ERROR_INIT;
    cr_expect_eq(lvr_sampler_new(0, &kernels, &s, &err), LVR_ERR_INVARIANT);
    cr_expect_null(s);
}
