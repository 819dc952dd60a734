/* INV-LOSSLESS at length: more than 10,000 output tokens of the embedded pair, over all of its prompts,
 * greedy and sampled. */
#include "tests/slow/embedded_pair.h"

#include <criterion/criterion.h>
#include <stdlib.h>

#define N_PREDICT 96u

static const lvr_sampling samplings[] = {{.top_p = 1}, {.temperature = 0.8, .top_p = 0.95, .seed = 7}};

static void check_policy(const struct embedded_pair *p, const char *name, const lvr_sampling *sampling,
                         int32_t *const *expected, const uint32_t *n_expected)
{
    lvr_policy policy;
    lvr_session_config c;
    lvr_session *s = NULL;
    lvr_error err = LVR_ERROR_INIT;
    embedded_pair_policy(&policy, name);
    embedded_pair_config(p, &policy, &c);
    c.sampling = *sampling;
    c.resident_fraction = 0.9; /* one layer is streamed; inv_lossless streams all */
    cr_assert_eq(lvr_session_new(&c, &s, &err), LVR_OK, "%s", err.msg);
    for (size_t i = 0; i < p->prompts.n; i++) {
        lvr_run_stats stats;
        uint32_t n = 0;
        int32_t *tokens = embedded_pair_generate(s, &p->prompts.items[i], N_PREDICT, &n, &stats);
        cr_assert_eq(n, n_expected[i], "%s, prompt %zu", name, i);
        for (uint32_t t = 0; t < n; t++)
            cr_assert_eq(tokens[t], expected[i][t], "%s, prompt %zu: token %u is %d, expected %d", name, i, t,
                         tokens[t], expected[i][t]);
        free(tokens);
    }
    lvr_session_free(s);
}

static uint64_t check_sampling(const struct embedded_pair *p, const lvr_sampling *sampling)
{
    static const char *const names[] = {"ar", "chain", "lever", "random"};
    lvr_policy ar;
    lvr_session_config c;
    lvr_session *s = NULL;
    lvr_error err = LVR_ERROR_INIT;
    uint64_t total = 0;
    int32_t **expected = calloc(p->prompts.n, sizeof expected[0]);
    uint32_t *n = calloc(p->prompts.n, sizeof n[0]);
    cr_assert(expected && n);
    embedded_pair_policy(&ar, "ar");
    embedded_pair_config(p, &ar, &c);
    c.sampling = *sampling;
    cr_assert_eq(lvr_session_new(&c, &s, &err), LVR_OK, "%s", err.msg);
    for (size_t i = 0; i < p->prompts.n; i++) {
        lvr_run_stats stats;
        expected[i] = embedded_pair_generate(s, &p->prompts.items[i], N_PREDICT, &n[i], &stats);
        total += n[i];
    }
    lvr_session_free(s);
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++)
        check_policy(p, names[k], sampling, expected, n);
    for (size_t i = 0; i < p->prompts.n; i++)
        free(expected[i]);
    free(expected);
    free(n);
    return total;
}

Test(lossless_embedded, all_prompts)
{
    struct embedded_pair p;
    uint64_t total = 0;
    embedded_pair_open(&p);
    for (size_t k = 0; k < sizeof samplings / sizeof samplings[0]; k++)
        total += check_sampling(&p, &samplings[k]);
    embedded_pair_close(&p);
    cr_assert_geq(total, 10000, "%llu tokens are too few to say much", (unsigned long long)total);
}
