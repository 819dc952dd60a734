/*
 * Prompt passes: the text does not depend on how many rows a pass has, nor on where layers are or what runs
 * them; with streamed layers a prompt reads them as often as it has passes; and contexts of thousands of
 * positions work from end to end.
 */
#include "common/rng.h"
#include "tests/unit/decode_rig.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

#define N_PREDICT 12u

static const uint32_t chunks[] = {1, 7, 64, 512, LVR_MAX_PREFILL_ROWS};
#define N_CHUNKS (sizeof chunks / sizeof chunks[0])

static int32_t *random_prompt(uint32_t n)
{
    int32_t *prompt = calloc(n, sizeof prompt[0]);
    lvr_rng rng;
    cr_assert_not_null(prompt);
    lvr_rng_init(&rng, n, "long prompt");
    for (uint32_t i = 0; i < n; i++)
        prompt[i] = (int32_t)lvr_rng_below(&rng, 300);
    return prompt;
}

static bool keep(void *user, int32_t token)
{
    struct decode_output *out = user;
    cr_assert(out->n < DECODE_MAX_TOKENS);
    out->tokens[out->n++] = token;
    return true;
}

static void generate(const lvr_session_config *c, const int32_t *prompt, uint32_t n,
                     struct decode_output *ret)
{
    lvr_error err = LVR_ERROR_INIT;
    lvr_session *s = decode_open(c);
    *ret = (struct decode_output){0};
    cr_assert_eq(
        lvr_session_generate(s, 1, 0, prompt, n, N_PREDICT, keep, ret, NULL, NULL, &ret->stats, &err), LVR_OK,
        "%s", err.msg);
    lvr_session_free(s);
}

static uint64_t passes(const struct decode_output *out, uint32_t n_prompt, uint32_t chunk)
{
    return out->stats.rounds + (n_prompt - 1 + chunk - 1) / chunk;
}

static uint64_t stream_bytes(const lvr_session_config *c)
{
    lvr_session *s = decode_open(c);
    const uint64_t bytes = lvr_geometry_stream_bytes(lvr_session_geometry(s));
    lvr_session_free(s);
    return bytes;
}

Test(decode_prompt, the_text_does_not_depend_on_the_chunk, .timeout = 300)
{
    static const char *const policies[] = {"ar", "chain", "lever", "random"};
    static const char *const accels[] = {NULL, "null", "matrix"};
    enum { N_PROMPT = 600 };
    struct decode_pair pair;
    struct decode_output want, got;
    lvr_policy policy;
    lvr_session_config c;
    char what[128];
    int32_t *prompt = random_prompt(N_PROMPT);
    decode_pair_make(&pair, NULL, LVR_Q8_0);
    decode_policy(&policy, "ar");
    decode_config(&c, &pair, &policy);
    c.n_ctx = 700;
    c.cpu_level = lvr_cpu_best();
    c.prefill_chunk = 1;
    generate(&c, prompt, N_PROMPT, &want);
    cr_assert_eq(want.n, N_PREDICT);
    for (uint32_t i = 0; i < N_CHUNKS * 2 * 3; i++) {
        decode_policy(&policy, policies[i % 4]);
        decode_config(&c, &pair, &policy);
        c.n_ctx = 700;
        c.cpu_level = lvr_cpu_best();
        c.threads = 1 + i % 2;
        c.prefill_chunk = chunks[i % N_CHUNKS];
        c.resident_fraction = i / N_CHUNKS % 2 ? 0.3 : 1;
        c.accel = accels[i / (2 * N_CHUNKS)];
        c.place = c.accel ? LVR_PLACE_NPU : LVR_PLACE_CPU;
        snprintf(what, sizeof what, "%s, chunk %u, resident %g, accelerator %s", policies[i % 4],
                 c.prefill_chunk, c.resident_fraction, c.accel ? c.accel : "none");
        generate(&c, prompt, N_PROMPT, &got);
        decode_same(&want, &got, what);
        cr_assert_eq(got.stats.bytes_read, passes(&got, N_PROMPT, c.prefill_chunk) * stream_bytes(&c), "%s",
                     what);
    }
    decode_pair_remove(&pair);
    free(prompt);
}

/* Not asked for, the rows of a pass depend on whether it reads layers. */
Test(decode_prompt, chunk_by_itself)
{
    struct decode_pair pair;
    lvr_policy policy;
    lvr_session_config c;
    lvr_policy_file run;
    decode_pair_make(&pair, NULL, LVR_Q8_0);
    decode_policy(&policy, "chain");
    decode_config(&c, &pair, &policy);
    c.prefill_chunk = 0;
    for (int streamed = 0; streamed < 2; streamed++) {
        c.resident_fraction = streamed ? 0.5 : 1;
        lvr_session *s = decode_open(&c);
        lvr_session_describe(s, N_PREDICT, &run);
        cr_assert_eq(run.conditions.prefill_chunk,
                     streamed ? LVR_PREFILL_CHUNK_STREAMED : LVR_PREFILL_CHUNK_RESIDENT);
        lvr_session_free(s);
    }
    lvr_session *s = NULL;
    lvr_error err = LVR_ERROR_INIT;
    c.prefill_chunk = LVR_MAX_PREFILL_ROWS + 1;
    cr_assert_eq(lvr_session_new(&c, &s, &err), LVR_ERR_CONFIG);
    cr_assert_null(s);
    decode_pair_remove(&pair);
}

/* Beyond what the models were trained on: with a warning, not an error. */
Test(decode_prompt, thousands_of_positions, .timeout = 300)
{
    enum { N_PROMPT = 5000 };
    struct decode_pair pair;
    struct decode_output want, got;
    lvr_policy policy;
    lvr_session_config c;
    int32_t *prompt = random_prompt(N_PROMPT);
    decode_pair_make(&pair, &(struct gguf_tiny){.type = LVR_F32, .n_layers = 2, .seed = 11, .scale = 4},
                     LVR_Q8_0);
    decode_policy(&policy, "chain");
    decode_config(&c, &pair, &policy);
    c.n_ctx = 8192;
    c.cpu_level = lvr_cpu_best();
    c.threads = 2;
    c.prefill_chunk = LVR_MAX_PREFILL_ROWS;
    generate(&c, prompt, N_PROMPT, &want);
    c.resident_fraction = 0;
    c.prefill_chunk = 0;
    generate(&c, prompt, N_PROMPT, &got);
    decode_same(&want, &got, "streamed");
    cr_assert_eq(got.stats.bytes_read, passes(&got, N_PROMPT, LVR_PREFILL_CHUNK_STREAMED) * stream_bytes(&c));
    decode_pair_remove(&pair);
    free(prompt);
}
