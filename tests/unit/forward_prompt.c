/* Prompt passes: rows written straight into the cache give the bits of the same rows through scratch, for any
 * rows per pass and per batch, threads, level, KV type, and also when other units run some of the layers. */
#include "tests/unit/forward_rig.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define N_PROMPT 75u
#define N_CTX (N_PROMPT + 4u)

/* What one row a pass through scratch gives. */
struct truth {
    int32_t tokens[N_PROMPT];
    float *logits; /* [N_PROMPT][vocab] */
    uint8_t *k, *v;
    size_t plane_bytes;
};

static struct rig_sizes sizes_of(lvr_kv_type kv_type, lvr_cpu_level level, uint32_t threads,
                                 uint32_t max_rows)
{
    return (struct rig_sizes){.level = level,
                              .kv_type = kv_type,
                              .threads = threads,
                              .n_ctx = N_CTX,
                              .max_rows = max_rows,
                              .max_prompt_rows = N_PROMPT,
                              .max_scratch = 1};
}

static void find_truth(struct truth *t, lvr_model *model, lvr_kv_type kv_type)
{
    const struct rig_sizes sizes = sizes_of(kv_type, LVR_CPU_C, 1, 1);
    struct rig r;
    rig_open_sized(&r, model, &sizes);
    t->plane_bytes = lvr_kv_cache_at(&r.kv, r.kv.shape.n_layers, 0, 0);
    t->logits = malloc((size_t)N_PROMPT * r.vocab * sizeof *t->logits);
    t->k = malloc(t->plane_bytes);
    t->v = malloc(t->plane_bytes);
    cr_assert(t->logits && t->k && t->v);
    for (uint32_t i = 0; i < N_PROMPT; i++) {
        const lvr_fwd_row row = {
            .token = (int32_t)(i * 7919u % r.vocab), .position = i, .slot = 0, .parent_slot = -1};
        t->tokens[i] = row.token;
        rig_pass(&r, &row, 1, t->logits + (size_t)i * r.vocab);
        cr_assert_eq(lvr_kv_commit(&r.kv, (const uint32_t[]){0}, 1, NULL), LVR_OK);
    }
    memcpy(t->k, r.kv.k, t->plane_bytes);
    memcpy(t->v, r.kv.v, t->plane_bytes);
    rig_close(&r);
}

static void free_truth(struct truth *t)
{
    free(t->logits);
    free(t->k);
    free(t->v);
}

/* Layers in turn by the workspace's pool and by another unit, with the reference's kernels and no pool. */
static void run_layers(struct rig *r, bool mixed)
{
    lvr_kernels reference;
    lvr_kernels_init(&reference, LVR_CPU_C);
    for (uint32_t l = 0; l < r->model->shape->n_layers; l++)
        if (mixed && l % 2)
            lvr_forward_layer_on(r->forward, l, NULL, &reference, NULL);
        else
            lvr_forward_layer(r->forward, l, NULL);
}

static void expect_rows(const struct rig *r, const struct truth *t)
{
    const lvr_kv *kv = &r->kv;
    for (uint32_t l = 0; l < kv->shape.n_layers; l++)
        for (uint32_t h = 0; h < kv->shape.n_kv; h++) {
            const size_t at = lvr_kv_cache_at(kv, l, h, 0), bytes = N_PROMPT * kv->row_bytes;
            cr_expect(memcmp(kv->k + at, t->k + at, bytes) == 0 && memcmp(kv->v + at, t->v + at, bytes) == 0,
                      "cache rows differ: layer %u, head %u", l, h);
        }
}

static void try_prompt(struct rig *r, const struct truth *t, uint32_t chunk, bool mixed)
{
    const size_t vocab = r->vocab;
    float *got = malloc(N_PROMPT * vocab * sizeof *got);
    uint32_t index[N_PROMPT];
    lvr_error err = LVR_ERROR_INIT;
    lvr_kv_clear(&r->kv);
    for (uint32_t at = 0; at < N_PROMPT; at += chunk) {
        const uint32_t n = N_PROMPT - at < chunk ? N_PROMPT - at : chunk;
        for (uint32_t i = 0; i < n; i++)
            index[i] = n - 1 - i;
        cr_assert_eq(lvr_forward_embed_prompt(r->forward, t->tokens + at, at, n, &err), LVR_OK, "%s",
                     err.msg);
        run_layers(r, mixed);
        cr_assert_eq(lvr_kv_append(&r->kv, n, &err), LVR_OK, "%s", err.msg);
        lvr_forward_heads(r->forward, index, n, got); /* more rows than a batch has, last first */
        for (uint32_t i = 0; i < n; i++)
            cr_expect(memcmp(got + i * vocab, t->logits + (at + index[i]) * vocab, vocab * sizeof *got) == 0,
                      "row %u differs: %u a pass, KV %s, level %s, %u threads%s", at + index[i], chunk,
                      lvr_kv_type_name(r->kv.shape.type), lvr_cpu_level_name(r->kernels.level),
                      lvr_pool_size(r->pool), mixed ? ", on two units" : "");
    }
    expect_rows(r, t);
    free(got);
}

static void check_sizes(lvr_model *model, const struct truth *t, const struct rig_sizes *sizes)
{
    static const uint32_t chunks[] = {1, 16, 33, N_PROMPT};
    struct rig r;
    rig_open_sized(&r, model, sizes);
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        try_prompt(&r, t, chunks[i], false);
        try_prompt(&r, t, chunks[i], true);
    }
    rig_close(&r);
}

static void check_model(const struct gguf_tiny *spec)
{
    static const uint32_t batches[] = {1, 16, 23, 128};
    struct model_file file;
    struct truth t;
    model_file_make(&file, spec);
    lvr_model *model = rig_model(&file, NULL);
    for (unsigned kv_type = 0; kv_type < LVR_KV_TYPES; kv_type++) {
        find_truth(&t, model, (lvr_kv_type)kv_type);
        for (unsigned level = 0; level < LVR_CPU_LEVELS; level++)
            for (uint32_t b = 0; b < sizeof batches / sizeof *batches; b++) {
                const struct rig_sizes sizes =
                    sizes_of((lvr_kv_type)kv_type, (lvr_cpu_level)level, b + 1, batches[b]);
                if (lvr_cpu_has((lvr_cpu_level)level))
                    check_sizes(model, &t, &sizes);
            }
        free_truth(&t);
    }
    lvr_model_free(model);
    model_file_remove(&file);
}

Test(forward_prompt, query_groups)
{
    check_model(&(struct gguf_tiny){
        .vocab = 277, .d_model = 128, .n_heads = 8, .n_kv = 2, .n_layers = 3, .type = LVR_Q8_0, .seed = 3});
}

/* A head is no whole number of blocks; a group is two heads. */
Test(forward_prompt, heads_of_48)
{
    check_model(&(struct gguf_tiny){.arch = "qwen3",
                                    .vocab = 277,
                                    .head_dim = 48,
                                    .n_heads = 2,
                                    .n_kv = 1,
                                    .n_layers = 3,
                                    .type = LVR_Q4_0,
                                    .seed = 4});
}

/* Two KV heads of one query head fill a block of the product after them. */
Test(forward_prompt, heads_of_16_without_groups)
{
    check_model(&(struct gguf_tiny){
        .vocab = 277, .d_model = 64, .n_heads = 4, .n_kv = 4, .n_layers = 3, .type = LVR_Q4_0, .seed = 5});
}
