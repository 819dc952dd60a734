/*
 * INV-LOSSLESS: every policy emits exactly the tokens of plain autoregressive decoding with the same target,
 * greedy and sampled, whatever is resident, however it is read, on any number of threads and at any SIMD
 * level. The reference is `ar` with everything resident, on one thread, at level C.
 */
#include "tests/unit/decode_rig.h"

#include <criterion/criterion.h>
#include <stdio.h>

#define N_REQUESTS 2u
#define N_PREDICT 24u
#define N_VARIANTS 12u /* of sampling (3) and schedule (4), all combinations; the rest varies along */
/* Address checks make decoding five times slower: each policy then takes its turn at every third variant. */
#if defined(__SANITIZE_ADDRESS__)
#define VARIANT_STEP 3u
#else
#define VARIANT_STEP 1u
#endif

static const char *const policies[] = {"ar",       "chain", "sequoia", "eagle2", "opttree",
                                       "specexec", "smart", "edgellm", "lever",  "random"};
#define N_POLICIES (sizeof policies / sizeof policies[0])

static const lvr_sampling samplings[] = {
    {.temperature = 0, .top_p = 1, .seed = 1},
    {.temperature = 0.7, .top_p = 0.95, .top_k = 40, .seed = 2},
    {.temperature = 1.3, .top_p = 1, .seed = 3},
};
#define N_SAMPLINGS (sizeof samplings / sizeof samplings[0])

typedef struct schedule {
    const char *name;
    double resident;
    lvr_io_mode io;
    uint32_t ring, depth;
    lvr_flash_engine engine;
} schedule;

static const schedule schedules[] = {
    {"resident", 1, LVR_IO_PIPELINED, 2, 1, LVR_FLASH_AUTO},
    {"serial", 0, LVR_IO_SERIAL, 1, 4, LVR_FLASH_AUTO},
    {"pipelined", 0, LVR_IO_PIPELINED, 2, 4, LVR_FLASH_PREAD},
    {"half resident, ring of 3", 0.5, LVR_IO_PIPELINED, 3, 2, LVR_FLASH_AUTO},
};
#define N_SCHEDULES (sizeof schedules / sizeof schedules[0])
_Static_assert(N_VARIANTS == N_SAMPLINGS * N_SCHEDULES, "3 and 4 have no common divisor");

typedef struct reference {
    struct decode_output out[N_SAMPLINGS][N_REQUESTS];
} reference;

static void make_reference(const struct decode_pair *pair, reference *ref)
{
    lvr_policy ar;
    lvr_session_config c;
    decode_policy(&ar, "ar");
    decode_config(&c, pair, &ar);
    for (size_t k = 0; k < N_SAMPLINGS; k++) {
        c.sampling = samplings[k];
        for (uint32_t r = 0; r < N_REQUESTS; r++)
            decode_once(&c, r, N_PREDICT, &ref->out[k][r]);
    }
}

/* All requests in one session: reads for the next request are under way when the last one ends. */
static uint64_t check_session(const lvr_session_config *c, const struct decode_output *expected,
                              const char *what)
{
    struct decode_output got;
    uint64_t accepted = 0;
    lvr_session *s = decode_open(c);
    for (uint32_t r = 0; r < N_REQUESTS; r++) {
        decode_generate(s, r, N_PREDICT, &got);
        decode_same(&expected[r], &got, what);
        cr_assert_eq(got.stats.n_tokens, got.stats.accepted + got.stats.rounds, "%s: committed tokens", what);
        accepted += got.stats.accepted;
    }
    lvr_session_free(s);
    return accepted;
}

static void check_pair(const struct gguf_tiny *spec, lvr_wtype draft_type, const char *name)
{
    static reference ref;
    struct decode_pair pair;
    lvr_policy policy;
    lvr_session_config c;
    uint64_t accepted[N_POLICIES] = {0};
    char what[160];
    decode_pair_make(&pair, spec, draft_type);
    make_reference(&pair, &ref);
    for (size_t p = 0; p < N_POLICIES; p++) {
        decode_policy(&policy, policies[p]);
        decode_config(&c, &pair, &policy);
        for (uint32_t i = (uint32_t)p % VARIANT_STEP; i < N_VARIANTS; i += VARIANT_STEP) {
            const size_t k = i % N_SAMPLINGS;
            const schedule *io = &schedules[i % N_SCHEDULES];
            c.sampling = samplings[k];
            c.resident_fraction = io->resident;
            c.io_mode = io->io;
            c.ring_slots = io->ring;
            c.depth = io->depth;
            c.flash_engine = io->engine;
            c.threads = 1 + i / 2 % 2;
            c.cpu_level = i / 3 % 2 ? LVR_CPU_C : lvr_cpu_best();
            c.prefill_chunk = i % 5 ? 7 : 64;
            snprintf(what, sizeof what, "%s: %s, sampling %zu, %s, %u threads, level %s", name, policies[p],
                     k, io->name, c.threads, lvr_cpu_level_name(c.cpu_level));
            accepted[p] += check_session(&c, ref.out[k], what);
        }
        /* A test in which nothing is accepted, or everything, would prove little. */
        if (policy.ops->uses_draft)
            cr_assert_gt(accepted[p], 0, "%s: %s never accepted a drafted token", name, policies[p]);
    }
    decode_pair_remove(&pair);
}

Test(inv_lossless, f32_target_q8_draft, .timeout = 300)
{
    check_pair(&(struct gguf_tiny){.type = LVR_F32, .n_layers = 4, .seed = 5, .scale = 6}, LVR_Q8_0,
               "f32/q8_0");
}

Test(inv_lossless, q8_target_q4_draft, .timeout = 300)
{
    check_pair(&(struct gguf_tiny){.type = LVR_Q8_0, .n_layers = 3, .seed = 6, .scale = 3, .tied = true},
               LVR_Q4_0, "q8_0/q4_0");
}

/* Every logit has an exact equal: greedy choice hangs on the order of tokens alone. */
Test(inv_lossless, exact_ties, .timeout = 300)
{
    check_pair(
        &(struct gguf_tiny){
            .type = LVR_Q8_0, .n_layers = 3, .seed = 7, .scale = 4, .duplicate_head_rows = true},
        LVR_F16, "exact ties");
}

/* Rows dropped at random between layers cost acceptance, never correctness: on every schedule, on the CPU and
 * on the accelerators. */
Test(inv_lossless, random_pruning, .timeout = 300)
{
    static const char *const prunes[] = {"0.15", "0.5", "1"};
    static const char *const accels[] = {NULL, "null", "matrix"};
    static reference ref;
    struct decode_pair pair;
    struct decode_output got;
    lvr_policy policy;
    lvr_session_config c;
    uint64_t pruned[3] = {0}, accepted[3] = {0};
    decode_pair_make(&pair, &(struct gguf_tiny){.type = LVR_Q8_0, .n_layers = 4, .seed = 5, .scale = 6},
                     LVR_Q4_0);
    make_reference(&pair, &ref);
    decode_policy(&policy, "random");
    for (uint32_t i = 0; i < 3 * 4 * 3; i++) {
        char what[160];
        const schedule *io = &schedules[i / 3 % N_SCHEDULES];
        const size_t k = i % N_SAMPLINGS, p = (i + i / 12) % 3;
        cr_assert_eq(lvr_policy_set(&policy, "test", "prune", prunes[p], NULL), LVR_OK);
        decode_config(&c, &pair, &policy);
        c.sampling = samplings[k];
        c.resident_fraction = io->resident;
        c.io_mode = io->io;
        c.ring_slots = io->ring;
        c.depth = io->depth;
        c.threads = 1 + i % 2;
        c.cpu_level = i % 4 ? lvr_cpu_best() : LVR_CPU_C;
        c.accel = accels[i / 12];
        c.place = c.accel ? LVR_PLACE_NPU : LVR_PLACE_CPU;
        snprintf(what, sizeof what, "prune %s, sampling %zu, %s, accelerator %s", prunes[p], k, io->name,
                 c.accel ? c.accel : "none");
        lvr_session *s = decode_open(&c);
        for (uint32_t r = 0; r < N_REQUESTS; r++) {
            decode_generate(s, r, N_PREDICT, &got);
            decode_same(&ref.out[k][r], &got, what);
            pruned[p] += got.stats.pruned_rows;
            accepted[p] += got.stats.accepted;
            if (p == 2)
                cr_assert_eq(got.stats.pruned_rows, got.stats.verified_rows - got.stats.rounds,
                             "only the roots are left");
        }
        lvr_session_free(s);
    }
    for (int p = 0; p < 3; p++)
        cr_assert_gt(pruned[p], 0u, "prune %s dropped nothing", prunes[p]);
    cr_assert(accepted[0] > 0 && accepted[1] > 0 && accepted[2] == 0);
    decode_pair_remove(&pair);
}

/* A draft that has nothing to do with the target costs speed, never correctness. */
Test(inv_lossless, foreign_draft, .timeout = 120)
{
    struct decode_pair pair, other;
    struct decode_output expected, got;
    lvr_policy ar, policy;
    lvr_session_config c;
    decode_pair_make(&pair, NULL, LVR_F32);
    decode_pair_make(
        &other, &(struct gguf_tiny){.type = LVR_F32, .n_layers = 1, .seed = 99, .d_model = 32, .n_heads = 2},
        LVR_F32);
    decode_policy(&ar, "ar");
    decode_config(&c, &pair, &ar);
    decode_once(&c, 4, N_PREDICT, &expected);
    for (size_t p = 1; p < N_POLICIES; p++) {
        decode_policy(&policy, policies[p]);
        decode_config(&c, &pair, &policy);
        c.draft_path = other.draft.path;
        decode_once(&c, 4, N_PREDICT, &got);
        decode_same(&expected, &got, policies[p]);
    }
    decode_pair_remove(&pair);
    decode_pair_remove(&other);
}
