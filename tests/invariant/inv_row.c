/*
 * INV-ROW: a row's logits do not depend on which rows share its pass, on how its ancestors came to be there
 * (committed, or scratch rows of this or an earlier pass), on threads, on the SIMD level, or on which unit
 * runs which layer. Everything is compared bit by bit to the C reference on one thread, one row a pass.
 */
#include "common/rng.h"
#include "tests/unit/forward_rig.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PROMPT 300u
#define N_TREE 37u
#define N_CTX (MAX_PROMPT + 64u)
#define MAX_SCRATCH (MAX_PROMPT + N_TREE)

/* A prompt and a random tree after it; tree row i's parent is parent[i] < i, -1 for those that follow the
 * prompt directly. */
struct scene {
    uint32_t n_prompt;
    int32_t prompt[MAX_PROMPT];
    int32_t token[N_TREE], parent[N_TREE];
    uint32_t depth[N_TREE];
};

static void make_scene(struct scene *s, uint32_t n_prompt, uint32_t vocab)
{
    lvr_rng rng;
    lvr_rng_init(&rng, n_prompt, "inv_row");
    s->n_prompt = n_prompt;
    for (uint32_t i = 0; i < n_prompt; i++)
        s->prompt[i] = (int32_t)lvr_rng_below(&rng, vocab);
    for (uint32_t i = 0; i < N_TREE; i++) {
        s->token[i] = (int32_t)lvr_rng_below(&rng, vocab);
        /* Half of the rows follow the one before: deep paths as well as wide levels. */
        s->parent[i] = lvr_rng_below(&rng, 2) ? (int32_t)i - 1 : (int32_t)lvr_rng_below(&rng, i + 1) - 1;
        s->depth[i] = s->parent[i] < 0 ? 0 : s->depth[s->parent[i]] + 1;
    }
}

/* Row i of the tree in scratch row first_slot + i, hanging from scratch row `root` (-1: the cache). */
static lvr_fwd_row tree_row(const struct scene *s, uint32_t i, uint32_t first_slot, int32_t root)
{
    return (lvr_fwd_row){.token = s->token[i],
                         .position = s->n_prompt + s->depth[i],
                         .slot = first_slot + i,
                         .parent_slot = s->parent[i] < 0 ? root : (int32_t)first_slot + s->parent[i]};
}

/* The tree in passes of `step` rows. */
static void run_tree(struct rig *r, const struct scene *s, uint32_t step, uint32_t first_slot, int32_t root,
                     float *out)
{
    for (uint32_t i = 0; i < N_TREE; i += step) {
        lvr_fwd_row rows[N_TREE];
        const uint32_t n = N_TREE - i < step ? N_TREE - i : step;
        for (uint32_t k = 0; k < n; k++)
            rows[k] = tree_row(s, i + k, first_slot, root);
        rig_pass(r, rows, n, out + (size_t)i * r->vocab);
    }
}

/* All rows in one pass, last first: children before their parents. */
static void run_tree_backwards(struct rig *r, const struct scene *s, float *out)
{
    lvr_fwd_row rows[N_TREE];
    float *logits = malloc((size_t)N_TREE * r->vocab * sizeof *logits);
    for (uint32_t i = 0; i < N_TREE; i++)
        rows[i] = tree_row(s, N_TREE - 1 - i, 0, -1);
    rig_pass(r, rows, N_TREE, logits);
    for (uint32_t i = 0; i < N_TREE; i++)
        memcpy(out + (size_t)(N_TREE - 1 - i) * r->vocab, logits + (size_t)i * r->vocab,
               r->vocab * sizeof *out);
    free(logits);
}

/* The prompt stays in scratch rows, and the tree hangs from its last. */
static void run_all_in_scratch(struct rig *r, const struct scene *s, float *out)
{
    lvr_fwd_row rows[MAX_PROMPT];
    for (uint32_t i = 0; i < s->n_prompt; i++)
        rows[i] =
            (lvr_fwd_row){.token = s->prompt[i], .position = i, .slot = i, .parent_slot = (int32_t)i - 1};
    rig_pass(r, rows, s->n_prompt, NULL);
    run_tree(r, s, N_TREE, s->n_prompt, (int32_t)s->n_prompt - 1, out);
}

/* A layer on a unit of its own: another thread, other kernels, no pool. */
struct unit_job {
    lvr_forward *forward;
    const lvr_kernels *kernels;
    uint32_t layer;
};

static void *run_on_unit(void *arg)
{
    const struct unit_job *j = arg;
    lvr_forward_layer_on(j->forward, j->layer, NULL, j->kernels, NULL);
    return NULL;
}

/* The whole tree in a pass, every other layer and the heads on another unit than the rest. */
static void run_on_two_units(struct rig *r, const struct scene *s, float *out)
{
    lvr_fwd_row rows[N_TREE];
    uint32_t index[N_TREE];
    lvr_kernels reference;
    lvr_kernels_init(&reference, LVR_CPU_C);
    for (uint32_t i = 0; i < N_TREE; i++) {
        rows[i] = tree_row(s, i, 0, -1);
        index[i] = i;
    }
    cr_assert_eq(lvr_forward_embed(r->forward, rows, N_TREE, NULL), LVR_OK);
    for (uint32_t l = 0; l < r->model->shape->n_layers; l++) {
        struct unit_job job = {.forward = r->forward, .kernels = &reference, .layer = l};
        pthread_t thread;
        if (l % 2 == 0) {
            lvr_forward_layer(r->forward, l, NULL);
            continue;
        }
        cr_assert_eq(pthread_create(&thread, NULL, run_on_unit, &job), 0);
        cr_assert_eq(pthread_join(thread, NULL), 0);
    }
    lvr_forward_heads_on(r->forward, index, N_TREE, out, &reference, NULL);
}

static uint32_t deepest(const struct scene *s)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < N_TREE; i++)
        if (s->depth[i] > s->depth[best])
            best = i;
    return best;
}

/* The tree, then half of its deepest path committed, then the path's other rows again: as rows in scratch
 * whose ancestors are now in the cache. Only those rows of `out` are replaced. */
static void run_committed_then_continued(struct rig *r, const struct scene *s, float *out)
{
    run_tree(r, s, N_TREE, 0, -1, out);
    uint32_t path[N_TREE];
    const uint32_t leaf = deepest(s), n = s->depth[leaf] + 1;
    int32_t node = (int32_t)leaf;
    for (uint32_t i = n; i-- > 0; node = s->parent[node])
        path[i] = (uint32_t)node;
    cr_assert_gt(n, 3u, "the tree is too flat to be a test");
    const uint32_t n_commit = n / 2;
    cr_assert_eq(lvr_kv_commit(&r->kv, path, n_commit, NULL), LVR_OK);
    for (uint32_t i = n_commit; i < n; i++) {
        lvr_fwd_row row = tree_row(s, path[i], 0, -1);
        if (i == n_commit)
            row.parent_slot = -1;
        rig_pass(r, &row, 1, out + (size_t)path[i] * r->vocab);
    }
}

/* What all ways of running a scene are compared to, and with what they ran. */
struct trial {
    struct rig *rig;
    const struct scene *scene;
    const char *model;
    const float *want; /* [N_TREE][vocab] */
    float *got;
};

static void start_over(const struct trial *t, uint32_t prompt_chunk)
{
    lvr_kv_clear(&t->rig->kv);
    rig_prompt(t->rig, t->scene->prompt, t->scene->n_prompt, prompt_chunk);
}

static void start_over_direct(const struct trial *t, uint32_t prompt_chunk)
{
    lvr_kv_clear(&t->rig->kv);
    rig_prompt_direct(t->rig, t->scene->prompt, t->scene->n_prompt, prompt_chunk);
}

static void expect_same(const struct trial *t, const char *way)
{
    const size_t vocab = t->rig->vocab;
    for (uint32_t i = 0; i < N_TREE; i++)
        cr_assert(memcmp(t->want + i * vocab, t->got + i * vocab, vocab * sizeof *t->got) == 0,
                  "row %u differs: %s, %s, KV %s, level %s, %u threads, prompt of %u", i, way, t->model,
                  lvr_kv_type_name(t->rig->kv.shape.type), lvr_cpu_level_name(t->rig->kernels.level),
                  lvr_pool_size(t->rig->pool), t->scene->n_prompt);
    memset(t->got, 0xff, N_TREE * vocab * sizeof *t->got);
}

static void try_all_ways(const struct trial *t)
{
    lvr_kv_clear(&t->rig->kv);
    run_all_in_scratch(t->rig, t->scene, t->got);
    expect_same(t, "prompt in scratch rows");
    start_over(t, 64);
    run_tree(t->rig, t->scene, N_TREE, 0, -1, t->got);
    expect_same(t, "whole tree in a pass");
    run_tree_backwards(t->rig, t->scene, t->got);
    expect_same(t, "children before parents");
    start_over(t, 7);
    run_tree(t->rig, t->scene, 5, 0, -1, t->got);
    expect_same(t, "passes of 5 rows");
    run_tree(t->rig, t->scene, 1, 0, -1, t->got);
    expect_same(t, "one row a pass");
    run_on_two_units(t->rig, t->scene, t->got);
    expect_same(t, "on two units");
    start_over_direct(t, MAX_PROMPT);
    run_tree(t->rig, t->scene, N_TREE, 0, -1, t->got);
    expect_same(t, "whole prompt straight into the cache");
    start_over_direct(t, 11);
    run_tree(t->rig, t->scene, N_TREE, 0, -1, t->got);
    expect_same(t, "prompt straight into the cache, 11 rows a pass");
    run_committed_then_continued(t->rig, t->scene, t->got);
    expect_same(t, "committed, then continued");
}

static void open_rig(struct rig *r, lvr_model *model, lvr_kv_type kv_type, lvr_cpu_level level,
                     uint32_t threads)
{
    const struct rig_sizes sizes = {.level = level,
                                    .kv_type = kv_type,
                                    .threads = threads,
                                    .n_ctx = N_CTX,
                                    .max_rows = MAX_PROMPT,
                                    .max_prompt_rows = MAX_PROMPT,
                                    .max_scratch = MAX_SCRATCH};
    rig_open_sized(r, model, &sizes);
}

/* The C reference is slow: its thread counts are taken in turn, one for each scene. */
static void check_scene(lvr_model *model, const char *name, lvr_kv_type kv_type, const struct scene *s)
{
    const size_t n = (size_t)N_TREE * model->shape->vocab;
    float *want = malloc(n * sizeof *want), *got = malloc(n * sizeof *got);
    struct rig r;
    open_rig(&r, model, kv_type, LVR_CPU_C, 1);
    rig_prompt(&r, s->prompt, s->n_prompt, 1);
    run_tree(&r, s, 1, 0, -1, want);
    rig_close(&r);
    const struct trial t = {.rig = &r, .scene = s, .model = name, .want = want, .got = got};
    for (unsigned level = 0; level < LVR_CPU_LEVELS; level++)
        for (uint32_t threads = 1; threads <= 4; threads++) {
            if (!lvr_cpu_has((lvr_cpu_level)level) ||
                (level == LVR_CPU_C && lvr_cpu_best() != LVR_CPU_C && threads % 3 != s->n_prompt % 3))
                continue;
            open_rig(&r, model, kv_type, (lvr_cpu_level)level, threads);
            try_all_ways(&t);
            rig_close(&r);
        }
    free(want);
    free(got);
}

static void check_model(const struct gguf_tiny *spec, const uint32_t *prompts, size_t n_prompts)
{
    struct model_file file;
    char name[64];
    model_file_make(&file, spec);
    lvr_model *model = rig_model(&file, NULL);
    snprintf(name, sizeof name, "%s %s", model->shape->arch, lvr_wtype_name(spec->type));
    for (size_t i = 0; i < n_prompts; i++) {
        struct scene s;
        make_scene(&s, prompts[i], model->shape->vocab);
        check_scene(model, name, LVR_KV_F16, &s);
        if (prompts[i] <
            MAX_PROMPT) /* long ones take their time, and kernels see as many rows in their tests */
            check_scene(model, name, LVR_KV_Q8_0, &s);
    }
    lvr_model_free(model);
    model_file_remove(&file);
}

static const uint32_t prompts[] = {1, 29, MAX_PROMPT}; /* 1, 2 and 0 modulo 3 */
#define N_PROMPTS (sizeof prompts / sizeof *prompts)

/* The vocabulary does not fill its last group, the heads of the second do not fill quantisation blocks one by
 * one. */
static void check_type(lvr_wtype type)
{
    const struct gguf_tiny wide = {.vocab = 301,
                                   .d_model = 128,
                                   .n_heads = 4,
                                   .n_kv = 2,
                                   .d_ff = 256,
                                   .n_ctx = N_CTX,
                                   .type = type,
                                   .seed = 1};
    const struct gguf_tiny narrow = {.vocab = 277,
                                     .d_model = 64,
                                     .n_heads = 4,
                                     .n_kv = 1,
                                     .d_ff = 96,
                                     .n_ctx = N_CTX,
                                     .type = type,
                                     .seed = 2,
                                     .tied = true};
    check_model(&wide, prompts, N_PROMPTS);
    check_model(&narrow, prompts, N_PROMPTS);
}

Test(inv_row, q8_0)
{
    check_type(LVR_Q8_0);
}

Test(inv_row, q4_0)
{
    check_type(LVR_Q4_0);
}

Test(inv_row, f16)
{
    check_type(LVR_F16);
}

Test(inv_row, f32)
{
    check_type(LVR_F32);
}

/* The other types, whose weights differ in how they unpack alone: one prompt, with the architectures in turn.
 */
Test(inv_row, every_type_and_architecture)
{
    static const lvr_wtype types[] = {LVR_BF16, LVR_Q4_1, LVR_Q5_0, LVR_Q5_1, LVR_Q4_K, LVR_Q5_K, LVR_Q6_K};
    static const char *const archs[] = {"llama", "qwen2", "qwen3"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        const struct gguf_tiny spec = {.arch = archs[i % 3],
                                       .vocab = 277,
                                       .d_model = 256,
                                       .n_heads = 4,
                                       .n_kv = 2,
                                       .d_ff = 256,
                                       .n_ctx = N_CTX,
                                       .type = types[i],
                                       .seed = i,
                                       .biases = i % 3 == 0,
                                       .rope_freqs = i % 3 == 0};
        check_model(&spec, &prompts[i % 2], 1);
    }
}

Test(inv_row, architectures)
{
    const struct gguf_tiny models[] = {
        {.arch = "llama",
         .type = LVR_Q8_0,
         .biases = true,
         .rope_freqs = true,
         .rope_factor = 3,
         .n_ctx = N_CTX},
        {.arch = "qwen2", .type = LVR_Q4_0, .tied = true, .n_ctx = N_CTX},
        {.arch = "qwen3", .type = LVR_Q4_0, .head_dim = 128, .n_ctx = N_CTX},
        {.arch = "qwen3", .type = LVR_Q8_0, .head_dim = 48, .n_heads = 2, .n_kv = 1, .n_ctx = N_CTX},
    };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        check_model(&models[i], prompts, N_PROMPTS);
}
