/*
 * INV-ROW on accelerators: layers run as tickets give the bits of the C reference on one thread, whatever the
 * back end, the rows of the pass (1 to 70, so below, at and above bucket sizes) and the weight type; also
 * when a pass is begun on one unit and ended on another.
 */
#include "common/rng.h"
#include "engine/accel/accel.h"
#include "tests/unit/forward_rig.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define N_PROMPT 19u
#define MAX_ROWS 70u
#define N_CTX (N_PROMPT + MAX_ROWS)

/* A prompt in the cache, then a random tree. */
static void plant(struct rig *r, lvr_fwd_row *rows)
{
    int32_t prompt[N_PROMPT];
    lvr_rng rng;
    lvr_rng_init(&rng, 5, "inv_accel");
    for (uint32_t i = 0; i < N_PROMPT; i++)
        prompt[i] = (int32_t)lvr_rng_below(&rng, r->vocab);
    rig_prompt(r, prompt, N_PROMPT, 8);
    for (uint32_t i = 0; i < MAX_ROWS; i++) {
        const int32_t parent = (int32_t)lvr_rng_below(&rng, i + 1) - 1;
        rows[i] = (lvr_fwd_row){.token = (int32_t)lvr_rng_below(&rng, r->vocab),
                                .position = parent < 0 ? N_PROMPT : rows[parent].position + 1,
                                .slot = i,
                                .parent_slot = parent};
    }
}

/* One layer a ticket; every second one on the CPU if `mixed`. Two tickets are in flight where they may be. */
static void run_tickets(struct rig *r, lvr_accel *a, const lvr_fwd_row *rows, uint32_t n, bool mixed,
                        float *out)
{
    const lvr_accel_graph *g = NULL;
    const uint32_t n_layers = r->model->shape->n_layers;
    lvr_accel_ticket ticket = 0;
    lvr_accel_times t;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_accel_graph_get(a, r->forward, n, &g, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_forward_embed(r->forward, rows, n, &err), LVR_OK, "%s", err.msg);
    for (uint32_t l = 0; l < n_layers; l++) {
        if (mixed && l % 2) {
            cr_assert(lvr_accel_wait(a, ticket, UINT64_MAX, &t));
            lvr_forward_layer(r->forward, l, NULL);
            continue;
        }
        cr_assert_eq(lvr_accel_submit(a, g, l, NULL, &ticket, &err), LVR_OK, "%s", err.msg);
    }
    cr_assert(lvr_accel_wait(a, ticket, UINT64_MAX, &t));
    for (uint32_t i = 0; i < n; i++)
        lvr_forward_head(r->forward, i, out + (size_t)i * r->vocab);
}

static void check_back_end(struct rig *r, const char *name, lvr_wtype type, const lvr_fwd_row *rows,
                           const float *want, float *got)
{
    lvr_accel *a = NULL;
    lvr_error err = LVR_ERROR_INIT;
    const lvr_accel_config c = {.name = name, .kernels = &r->kernels};
    cr_assert_eq(lvr_accel_open(&c, &a, &err), LVR_OK, "%s", err.msg);
    cr_assert(lvr_accel_get_caps(a)->exact);
    for (uint32_t n = 1; n <= MAX_ROWS; n += n < 20 ? 3 : 11)
        for (int mixed = 0; mixed < 2; mixed++) {
            memset(got, 0xff, (size_t)MAX_ROWS * r->vocab * sizeof *got);
            run_tickets(r, a, rows, n, mixed != 0, got);
            cr_assert_eq(memcmp(got, want, (size_t)n * r->vocab * sizeof *got), 0,
                         "INV-ROW: %s (%s), %s, %u rows, %s", name, lvr_accel_get_caps(a)->engine,
                         lvr_wtype_name(type), n, mixed ? "layers in turn with the CPU" : "all layers");
        }
    lvr_accel_close(a);
}

static void check_type(lvr_wtype type)
{
    const struct gguf_tiny spec = {.vocab = 301,
                                   .d_model = 256, /* a super-block */
                                   .n_heads = 4,
                                   .n_kv = 2,
                                   .d_ff = 256,
                                   .n_ctx = N_CTX,
                                   .type = type,
                                   .seed = 3};
    struct model_file file;
    struct rig r;
    lvr_fwd_row rows[MAX_ROWS];
    model_file_make(&file, &spec);
    lvr_model *model = rig_model(&file, NULL);
    const size_t n = (size_t)MAX_ROWS * model->shape->vocab;
    float *want = malloc(n * sizeof *want), *got = malloc(n * sizeof *got);
    cr_assert(want && got);
    rig_open(&r, model, LVR_CPU_C, 1, N_CTX, MAX_ROWS, MAX_ROWS);
    plant(&r, rows);
    /* Parents precede their children, so the first n rows of the tree are a tree too. */
    for (uint32_t i = 0; i < MAX_ROWS; i++)
        rig_pass(&r, &rows[i], 1, want + (size_t)i * r.vocab);
    rig_close(&r);
    rig_open(&r, model, lvr_cpu_best(), 2, N_CTX, MAX_ROWS, MAX_ROWS);
    plant(&r, rows);
    check_back_end(&r, "null", type, rows, want, got);
    check_back_end(&r, "matrix", type, rows, want, got);
    rig_close(&r);
    free(want);
    free(got);
    lvr_model_free(model);
    model_file_remove(&file);
}

Test(inv_accel, q8_0)
{
    check_type(LVR_Q8_0);
}

Test(inv_accel, q4_0)
{
    check_type(LVR_Q4_0);
}

Test(inv_accel, f16)
{
    check_type(LVR_F16);
}

Test(inv_accel, f32)
{
    check_type(LVR_F32);
}

Test(inv_accel, types_with_minima_and_super_blocks)
{
    check_type(LVR_Q5_1);
    check_type(LVR_Q4_K);
    check_type(LVR_Q6_K);
}
