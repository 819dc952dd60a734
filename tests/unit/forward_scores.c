/*
 * INV-ROW of the early head: a node's score has the bits of the head at the same point, and neither it nor
 * what is said of the slice depends on what else is asked for, on threads or on the SIMD level. And going on
 * with some of a pass's rows changes nothing for those.
 */
#include "common/rng.h"
#include "tests/unit/forward_rig.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N_ROWS 23u
#define N_PROMPT 5u
#define N_QUERIES 61u

static void tree_rows(lvr_fwd_row *rows, uint32_t vocab)
{
    lvr_rng rng;
    lvr_rng_init(&rng, 7, "forward_scores");
    for (uint32_t i = 0; i < N_ROWS; i++) {
        const int32_t parent = i == 0 ? -1 : (int32_t)lvr_rng_below(&rng, i);
        rows[i] = (lvr_fwd_row){.token = (int32_t)lvr_rng_below(&rng, vocab),
                                .position = parent < 0 ? N_PROMPT : rows[parent].position + 1,
                                .slot = i,
                                .parent_slot = parent};
    }
}

/* Rows come up several times and out of order, tokens include the first and the last. */
static void make_queries(lvr_fwd_query *q, uint32_t vocab)
{
    lvr_rng rng;
    lvr_rng_init(&rng, 8, "forward_scores");
    for (uint32_t i = 0; i < N_QUERIES; i++)
        q[i] = (lvr_fwd_query){.row = (uint32_t)lvr_rng_below(&rng, N_ROWS),
                               .token = i == 0   ? 0
                                        : i == 1 ? (int32_t)vocab - 1
                                                 : (int32_t)lvr_rng_below(&rng, vocab)};
}

static void open_at(struct rig *r, lvr_model *model, lvr_cpu_level level, uint32_t threads)
{
    static const int32_t prompt[N_PROMPT] = {1, 2, 3, 4, 5};
    rig_open(r, model, level, threads, 64, N_ROWS, N_ROWS);
    rig_prompt(r, prompt, N_PROMPT, N_PROMPT);
}

static void run_layers(struct rig *r, uint32_t n_layers)
{
    lvr_fwd_row rows[N_ROWS];
    tree_rows(rows, r->vocab);
    cr_assert_eq(lvr_forward_embed(r->forward, rows, N_ROWS, NULL), LVR_OK);
    for (uint32_t l = 0; l < n_layers; l++)
        lvr_forward_layer(r->forward, l, NULL);
}

static void expect_scores_of_head(struct rig *r, const lvr_fwd_query *q, const lvr_exit_raw *raw)
{
    float *logits = malloc(r->vocab * sizeof *logits);
    for (uint32_t i = 0; i < N_QUERIES; i++) {
        lvr_forward_head(r->forward, q[i].row, logits);
        cr_assert(memcmp(&raw[i].score, &logits[q[i].token], sizeof(float)) == 0,
                  "query %u at level %s: %.9g, the head has %.9g", i, lvr_cpu_level_name(r->kernels.level),
                  (double)raw[i].score, (double)logits[q[i].token]);
    }
    free(logits);
}

/* The slice's figures by the definition, from the whole head. */
static void expect_slice(struct rig *r, const lvr_fwd_query *q, const lvr_exit_raw *raw)
{
    const uint32_t n = r->vocab < LVR_EXIT_SLICE_ROWS ? r->vocab : LVR_EXIT_SLICE_ROWS;
    float *logits = malloc(r->vocab * sizeof *logits);
    lvr_forward_head(r->forward, q->row, logits);
    double max = -INFINITY, sum = 0, entropy = 0;
    for (uint64_t i = 0; i < n; i++)
        max = fmax(max, (double)logits[i * r->vocab / n]);
    for (uint64_t i = 0; i < n; i++)
        sum += exp((double)logits[i * r->vocab / n] - max);
    for (uint64_t i = 0; i < n; i++) {
        const double p = exp((double)logits[i * r->vocab / n] - max) / sum;
        entropy -= p > 0 ? p * log(p) : 0;
    }
    cr_assert_eq((double)raw->slice_max, max);
    cr_assert_float_eq((double)raw->slice_lse, max + log(sum), 1e-5 * (1 + fabs(max)));
    cr_assert_float_eq((double)raw->slice_entropy, entropy, 1e-5);
    free(logits);
}

static void check_level(lvr_model *model, lvr_cpu_level level, uint32_t threads, const lvr_exit_raw *want)
{
    struct rig r;
    lvr_fwd_query q[N_QUERIES];
    lvr_exit_raw all[N_QUERIES], one;
    open_at(&r, model, level, threads);
    make_queries(q, r.vocab);
    for (uint32_t n_layers = 0; n_layers <= model->shape->n_layers; n_layers++) {
        run_layers(&r, n_layers);
        cr_assert_eq(lvr_forward_scores(r.forward, q, N_QUERIES, all, NULL), LVR_OK);
        cr_assert(memcmp(all, want + (size_t)n_layers * N_QUERIES, sizeof all) == 0,
                  "level %s, %u threads, after %u layers", lvr_cpu_level_name(level), threads, n_layers);
        expect_scores_of_head(&r, q, all);
        expect_slice(&r, &q[3], &all[3]);
        cr_assert_eq(lvr_forward_scores(r.forward, &q[9], 1, &one, NULL), LVR_OK);
        cr_assert(memcmp(&one, &all[9], sizeof one) == 0, "alone");
    }
    rig_close(&r);
}

static void check_model(const struct gguf_tiny *spec)
{
    struct model_file file;
    struct rig r;
    lvr_fwd_query q[N_QUERIES];
    model_file_make(&file, spec);
    lvr_model *model = rig_model(&file, NULL);
    const uint32_t n_layers = model->shape->n_layers;
    lvr_exit_raw *want = calloc((size_t)(n_layers + 1) * N_QUERIES, sizeof *want);
    open_at(&r, model, LVR_CPU_C, 1);
    make_queries(q, r.vocab);
    for (uint32_t l = 0; l <= n_layers; l++) {
        run_layers(&r, l);
        for (uint32_t i = 0; i < N_QUERIES; i++)
            cr_assert_eq(lvr_forward_scores(r.forward, &q[i], 1, &want[l * N_QUERIES + i], NULL), LVR_OK);
    }
    rig_close(&r);
    for (unsigned level = 0; level < LVR_CPU_LEVELS; level++)
        for (uint32_t threads = 1; threads <= 3 && lvr_cpu_has((lvr_cpu_level)level); threads += 2)
            check_level(model, (lvr_cpu_level)level, threads, want);
    free(want);
    lvr_model_free(model);
    model_file_remove(&file);
}

/* Vocabularies that fill no last group; one whose slice leaves most groups out. */
Test(forward_scores, inv_row)
{
    static const lvr_wtype types[] = {LVR_F32,  LVR_F16,  LVR_BF16, LVR_Q8_0, LVR_Q4_0, LVR_Q4_1,
                                      LVR_Q5_0, LVR_Q5_1, LVR_Q4_K, LVR_Q5_K, LVR_Q6_K};
    static const uint32_t vocabs[] = {701, 1501, 301};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        const struct gguf_tiny spec = {.vocab = vocabs[i % 3],
                                       .d_model = 256,
                                       .n_heads = 4,
                                       .n_kv = 2,
                                       .d_ff = 256,
                                       .n_ctx = 64,
                                       .type = types[i],
                                       .seed = i,
                                       .tied = i % 2 == 0};
        check_model(&spec);
    }
}

static const struct gguf_tiny small = {.vocab = 301,
                                       .d_model = 64,
                                       .n_heads = 4,
                                       .n_kv = 2,
                                       .d_ff = 96,
                                       .n_ctx = 64,
                                       .type = LVR_Q4_0,
                                       .seed = 3};

/* Every third row that may go is dropped after each layer, with all that hangs on it. */
static uint32_t drop_some(const lvr_fwd_row *rows, const uint32_t *left, uint32_t n, uint32_t layer,
                          uint32_t *ret_kept)
{
    bool gone[N_ROWS];
    uint32_t n_kept = 0;
    memset(gone, 1, sizeof gone);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t r = left[i];
        gone[r] = r > 0 && ((r + layer) % 3 == 0 || gone[rows[r].parent_slot]);
        if (!gone[r])
            ret_kept[n_kept++] = i;
    }
    return n_kept;
}

Test(forward_scores, kept_rows_go_on_as_if_all_had_stayed)
{
    struct model_file file;
    struct rig r;
    lvr_fwd_row rows[N_ROWS];
    uint32_t left[N_ROWS], kept[N_ROWS], n = N_ROWS;
    model_file_make(&file, &small);
    lvr_model *model = rig_model(&file, NULL);
    open_at(&r, model, lvr_cpu_best(), 2);
    float *want = malloc((size_t)N_ROWS * r.vocab * sizeof *want), *got = malloc(r.vocab * sizeof *got);
    tree_rows(rows, r.vocab);
    rig_pass(&r, rows, N_ROWS, want);
    run_layers(&r, 0);
    for (uint32_t i = 0; i < N_ROWS; i++)
        left[i] = i;
    for (uint32_t l = 0; l < model->shape->n_layers; l++) {
        lvr_forward_layer(r.forward, l, NULL);
        const uint32_t n_kept = drop_some(rows, left, n, l, kept);
        cr_assert(n_kept < n || l > 0, "nothing was dropped");
        cr_assert_eq(lvr_forward_keep(r.forward, kept, n_kept, NULL), LVR_OK);
        for (uint32_t i = 0; i < n_kept; i++)
            left[i] = left[kept[i]];
        n = n_kept;
    }
    for (uint32_t i = 0; i < n; i++) {
        lvr_forward_head(r.forward, i, got);
        cr_assert(memcmp(got, want + (size_t)left[i] * r.vocab, r.vocab * sizeof *got) == 0, "row %u",
                  left[i]);
    }
    free(want);
    free(got);
    rig_close(&r);
    lvr_model_free(model);
    model_file_remove(&file);
}

Test(forward_scores, what_cannot_be_scored_or_kept_is_refused)
{
    struct model_file file;
    struct rig r;
    lvr_fwd_row rows[N_ROWS];
    lvr_exit_raw raw;
    lvr_error err = LVR_ERROR_INIT;
    model_file_make(&file, &small);
    lvr_model *model = rig_model(&file, NULL);
    open_at(&r, model, LVR_CPU_C, 1);
    run_layers(&r, 1);
    tree_rows(rows, r.vocab);
    const lvr_fwd_query bad_row = {.row = N_ROWS}, bad_token = {.token = (int32_t)small.vocab};
    cr_assert_eq(lvr_forward_scores(r.forward, &bad_row, 1, &raw, &err), LVR_ERR_INVARIANT);
    cr_assert_eq(lvr_forward_scores(r.forward, &bad_token, 1, &raw, &err), LVR_ERR_INVARIANT);
    cr_assert_eq(lvr_forward_keep(r.forward, (uint32_t[]){1, 0}, 2, &err), LVR_ERR_INVARIANT);
    cr_assert_eq(lvr_forward_keep(r.forward, (uint32_t[]){N_ROWS}, 1, &err), LVR_ERR_INVARIANT);
    cr_assert_gt(rows[1].parent_slot, -1);
    cr_assert_eq(lvr_forward_keep(r.forward, (uint32_t[]){1}, 1, &err), LVR_ERR_INVARIANT,
                 "a row without its parent");
    rig_close(&r);
    lvr_model_free(model);
    model_file_remove(&file);
}
