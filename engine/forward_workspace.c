#include "engine/forward_internal.h"

#include "common/minmax.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ARENA_ALIGN 64u

/* Hands out parts of one allocation; with base NULL it only counts. */
typedef struct arena {
    uint8_t *base;
    uint64_t used;
    bool overflow;
} arena;

static void *take(arena *a, uint64_t n, uint64_t element_bytes)
{
    uint64_t bytes, end;
    if (__builtin_mul_overflow(n, element_bytes, &bytes) || __builtin_add_overflow(a->used, bytes, &end) ||
        end > UINT64_MAX / 2) {
        a->overflow = true;
        return NULL;
    }
    uint8_t *p = a->base ? a->base + a->used : NULL;
    a->used = (end + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    return p;
}

static void take_quantised(arena *a, uint64_t rows, uint64_t n_in, quantised_rows *ret)
{
    ret->q = take(a, rows * n_in, sizeof *ret->q);
    ret->d = take(a, rows * lvr_forward_blocks(n_in), sizeof *ret->d);
    ret->hsum = take(a, rows * lvr_forward_blocks(n_in) * 2, sizeof *ret->hsum);
}

static void take_workers(arena *a, const lvr_model_shape *s, uint32_t n_ctx, uint32_t n_threads,
                         worker_space **ret)
{
    const float scale = (float)(1.0 / sqrt((double)s->head_dim));
    worker_space *w = take(a, n_threads, sizeof *w);
    for (uint32_t i = 0; i < n_threads; i++) {
        uint32_t *slots = take(a, n_ctx, sizeof *slots);
        float *memory = take(a, lvr_attention_floats(s->head_dim, n_ctx), sizeof *memory);
        if (!w)
            continue;
        w[i].slots = slots;
        lvr_attention_init(&w[i].attention, s->head_dim, n_ctx, scale, memory);
    }
    *ret = w;
}

/* Products of two 32-bit numbers fit into 64 bits, so only take's own product can overflow. */
static void lay_out(arena *a, const lvr_model_shape *s, uint32_t n_ctx, uint32_t max_rows,
                    uint32_t max_prompt_rows, uint32_t n_threads, lvr_forward *f)
{
    const uint64_t rows = max_rows, pass_rows = lvr_max_u32(max_rows, max_prompt_rows);
    const uint64_t q_dim = (uint64_t)s->n_heads * s->head_dim;
    const uint64_t kv_dim = (uint64_t)s->n_kv * s->head_dim;
    f->rows = take(a, rows, sizeof *f->rows);
    f->x = take(a, pass_rows * s->d_model, sizeof *f->x);
    f->norm = take(a, rows * s->d_model, sizeof *f->norm);
    f->proj = take(a, rows * s->d_model, sizeof *f->proj);
    f->q = take(a, q_dim, rows * sizeof *f->q);
    f->att = take(a, q_dim, rows * sizeof *f->att);
    f->k = take(a, kv_dim, rows * sizeof *f->k);
    f->v = take(a, kv_dim, rows * sizeof *f->v);
    f->gate = take(a, rows * s->d_ff, sizeof *f->gate);
    f->up = take(a, rows * s->d_ff, sizeof *f->up);
    take_quantised(a, rows, s->d_model, &f->norm_q);
    take_quantised(a, rows, q_dim > s->d_ff ? q_dim : s->d_ff, &f->mid_q);
    f->rope = take(a, (uint64_t)n_ctx * s->head_dim, sizeof *f->rope);
    take_workers(a, s, n_ctx, n_threads, &f->workers);
}

uint64_t lvr_forward_bytes(const lvr_model_shape *shape, uint32_t n_ctx, uint32_t max_rows,
                           uint32_t max_prompt_rows, uint32_t n_threads)
{
    arena count = {0};
    lvr_forward unused = {0};
    lay_out(&count, shape, n_ctx, max_rows, max_prompt_rows, n_threads, &unused);
    return count.overflow ? UINT64_MAX : count.used;
}

/* Angles in double, cos and sin rounded to float once. */
static void fill_rope(float *table, uint32_t n_ctx, const lvr_model *m)
{
    const uint32_t head_dim = m->shape->head_dim;
    const double base = (double)m->shape->rope_base, factor = (double)m->shape->rope_factor;
    for (uint32_t i = 0; i < head_dim / 2; i++) {
        const double divisor = m->rope_freqs ? factor * (double)m->rope_freqs[i] : factor;
        const double frequency = pow(base, -2.0 * i / head_dim) / divisor;
        for (uint32_t p = 0; p < n_ctx; p++) {
            float *pair = table + (size_t)p * head_dim + 2 * (size_t)i;
            pair[0] = (float)cos(p * frequency);
            pair[1] = (float)sin(p * frequency);
        }
    }
}

lvr_kv_shape lvr_forward_kv_shape(const lvr_model_shape *shape, lvr_kv_type type, uint32_t n_ctx,
                                  uint32_t max_scratch)
{
    return (lvr_kv_shape){.type = type,
                          .n_layers = shape->n_layers,
                          .n_ctx = n_ctx,
                          .max_scratch = max_scratch,
                          .n_kv = shape->n_kv,
                          .head_dim = shape->head_dim};
}

static lvr_status check_rope_freqs(const lvr_model *m, lvr_error *err)
{
    for (uint32_t i = 0; m->rope_freqs && i < m->shape->head_dim / 2; i++)
        if (!(m->rope_freqs[i] > 0.0f) || isinf(m->rope_freqs[i]))
            return lvr_fail(
                err, LVR_ERR_FORMAT,
                "%s: tensor rope_freqs.weight: element %u is %g, expected a finite positive number",
                lvr_pack_path(m->pack), i, (double)m->rope_freqs[i]);
    return LVR_OK;
}

static lvr_status check_shape(const lvr_model *m, const lvr_kv *kv, uint32_t max_rows, lvr_error *err)
{
    const lvr_model_shape *s = m->shape;
    if (s->head_dim == 0 || s->head_dim % LVR_GROUP != 0)
        return lvr_fail(err, LVR_ERR_UNSUPPORTED, "%s: head width %u; this version needs a multiple of %u",
                        lvr_pack_path(m->pack), s->head_dim, LVR_GROUP);
    const lvr_kv_shape *c = &kv->shape;
    if (c->n_layers != s->n_layers || c->n_kv != s->n_kv || c->head_dim != s->head_dim)
        return lvr_fail(
            err, LVR_ERR_INVARIANT,
            "forward: the KV cache is for %u layers of %u heads of %u values, the model has %u of "
            "%u of %u",
            c->n_layers, c->n_kv, c->head_dim, s->n_layers, s->n_kv, s->head_dim);
    if (max_rows == 0)
        return lvr_fail(err, LVR_ERR_INVARIANT, "forward: a pass needs room for at least one row");
    return check_rope_freqs(m, err);
}

static lvr_status allocate(lvr_forward *f, lvr_error *err)
{
    const lvr_model_shape *s = f->shape;
    const uint32_t n_ctx = f->kv->shape.n_ctx, max_scratch = f->kv->shape.max_scratch;
    const uint64_t bytes = lvr_forward_bytes(s, n_ctx, f->max_rows, f->max_prompt_rows, f->n_threads);
    const uint64_t n_slots = max_scratch ? max_scratch : 1;
    f->slots = calloc(n_slots, sizeof *f->slots);
    f->arena = bytes > SIZE_MAX / 2 ? NULL : aligned_alloc(ARENA_ALIGN, bytes);
    if (!f->slots || !f->arena)
        return lvr_fail(err, LVR_ERR_NOMEM, "forward: out of memory for a workspace of %llu bytes",
                        (unsigned long long)bytes);
    arena a = {.base = f->arena};
    lay_out(&a, s, n_ctx, f->max_rows, f->max_prompt_rows, f->n_threads, f);
    return LVR_OK;
}

lvr_status lvr_forward_new(const lvr_model *model, const lvr_kernels *kernels, lvr_pool *pool, lvr_kv *kv,
                           uint32_t max_rows, uint32_t max_prompt_rows, lvr_forward **ret, lvr_error *err)
{
    lvr_status status = check_shape(model, kv, max_rows, err);
    if (status != LVR_OK)
        return status;
    const lvr_model_shape *s = model->shape;
    lvr_forward *f = calloc(1, sizeof *f);
    if (!f)
        return lvr_fail(err, LVR_ERR_NOMEM, "forward: out of memory");
    f->model = model;
    f->shape = s;
    f->kernels = kernels;
    f->pool = pool;
    f->kv = kv;
    f->max_rows = max_rows;
    f->max_prompt_rows = max_prompt_rows;
    f->n_threads = lvr_pool_size(pool);
    f->q_dim = s->n_heads * s->head_dim;
    f->kv_dim = s->n_kv * s->head_dim;
    status = allocate(f, err);
    if (status != LVR_OK) {
        lvr_forward_free(f);
        return status;
    }
    fill_rope(f->rope, kv->shape.n_ctx, model);
    *ret = f;
    return LVR_OK;
}

void lvr_forward_free(lvr_forward *f)
{
    if (!f)
        return;
    lvr_forward_exit_free(f->exit);
    free(f->slots);
    free(f->arena);
    free(f);
}
