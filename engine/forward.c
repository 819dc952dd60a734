/*
 * One layer is seven phases (engine/phases.h), each needing all of the one before:
 *
 *   norm + quantise | Q, K, V + RoPE + f16 | attention + quantise | O + residual |
 *   norm + quantise | gate, up, SwiGLU + quantise | down + residual
 *
 * Every value is computed whole by one worker, in the order that the kernels fix, so how phases are cut into
 * chunks changes no bit.
 */
#include "engine/forward.h"

#include "engine/phases.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ARENA_ALIGN 64u

#define LAYER_PHASES 7u

/* Multiply-adds worth handing to another worker: a few tenths of a microsecond. */
#define MIN_CHUNK_MACS 8192u
/* Multiply-adds worth waking the pool for: about what waking a sleeping worker takes, some tens of
 * microseconds. Less stays on the caller. */
#define MIN_POOL_MACS (5u << 18)
/* An element of a norm (with its quantisation) or of attention counts as this many multiply-adds of a
 * product. */
#define NORM_MACS 16u
#define ATTENTION_MACS 8u
/* Chunks per worker, so that one that is descheduled does not hold the others up. */
#define CHUNKS_PER_WORKER 4u

/* What a worker needs for itself in attention. The pointers to cached positions serve all rows of a (layer,
 * KV head). */
typedef struct worker_space {
    const uint16_t **k, **v; /* [n_ctx] */
    float *scores;           /* [n_ctx] */
    uint32_t layer, kv_head,
        n_prefix; /* what k and v [0, n_prefix) stand for; n_prefix UINT32_MAX: nothing */
} worker_space;

typedef struct slot_info {
    uint64_t pass; /* the last pass that wrote the slot */
    uint32_t position;
    int32_t parent;
} slot_info;

/* Rows quantised for a product. */
typedef struct quantised_rows {
    int8_t *q;
    float *d;
    int16_t *hsum;
} quantised_rows;

struct lvr_forward {
    const lvr_model *model;
    const lvr_model_shape *shape;
    const lvr_kernels *kernels;
    lvr_pool *pool;
    lvr_kv *kv;
    uint32_t max_rows, n_threads;
    uint32_t q_dim, kv_dim;
    uint32_t heads_per_unit; /* heads that attention handles at a time: whole quantisation blocks */
    float attention_scale;

    uint64_t pass;
    uint32_t n_rows;
    lvr_fwd_row *rows;
    slot_info *slots; /* [kv->max_scratch] */

    void *arena;           /* holds all that follows */
    float *x;              /* [max_rows][d_model]: the residual stream */
    float *norm, *proj;    /* [max_rows][d_model] */
    float *q, *att;        /* [max_rows][q_dim] */
    float *k, *v;          /* [max_rows][kv_dim] */
    float *gate, *up;      /* [max_rows][d_ff] */
    quantised_rows norm_q; /* of norm */
    quantised_rows mid_q;  /* of att, later of gate */
    float *rope;           /* [n_ctx][head_dim]: cos, sin, cos, sin, ... */
    worker_space *workers; /* [n_threads] */
};

/* Arguments of a phase. */
typedef struct job {
    const lvr_forward *f;
    const lvr_layer_weights *w;
    uint32_t layer;
    bool quantise; /* the phase's results feed a quantised product */

    /* norm */
    const float *norm_weight;
    const uint32_t *row_index; /* NULL: all rows of the pass */

    /* product with its inputs */
    lvr_matrix matrix;
    lvr_acts acts;
    float *out;
    size_t out_stride;
} job;

/* Phases to run together. */
typedef struct work {
    const lvr_forward *f;
    uint32_t n;
    uint64_t macs;
    job jobs[LAYER_PHASES];
    lvr_phase phases[LAYER_PHASES];
} work;

static uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint32_t n_groups(uint32_t n_out)
{
    return n_out / LVR_GROUP + (n_out % LVR_GROUP != 0);
}

/* ---- workspace ---- */

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

static uint64_t blocks(uint64_t n_in)
{
    return n_in / LVR_BLOCK + (n_in % LVR_BLOCK != 0);
}

static void take_quantised(arena *a, uint64_t rows, uint64_t n_in, quantised_rows *ret)
{
    ret->q = take(a, rows * n_in, sizeof *ret->q);
    ret->d = take(a, rows * blocks(n_in), sizeof *ret->d);
    ret->hsum = take(a, rows * blocks(n_in) * 2, sizeof *ret->hsum);
}

static void take_workers(arena *a, uint32_t n_ctx, uint32_t n_threads, worker_space **ret)
{
    worker_space *w = take(a, n_threads, sizeof *w);
    for (uint32_t i = 0; i < n_threads; i++) {
        const worker_space one = {.k = take(a, n_ctx, sizeof *one.k),
                                  .v = take(a, n_ctx, sizeof *one.v),
                                  .scores = take(a, n_ctx, sizeof *one.scores),
                                  .n_prefix = UINT32_MAX};
        if (w)
            w[i] = one;
    }
    *ret = w;
}

/* Products of two 32-bit numbers fit into 64 bits, so only take's own product can overflow. */
static void lay_out(arena *a, const lvr_model_shape *s, uint32_t n_ctx, uint32_t max_rows, uint32_t n_threads,
                    lvr_forward *f)
{
    const uint64_t rows = max_rows;
    const uint64_t q_dim = (uint64_t)s->n_heads * s->head_dim;
    const uint64_t kv_dim = (uint64_t)s->n_kv * s->head_dim;
    f->rows = take(a, rows, sizeof *f->rows);
    f->x = take(a, rows * s->d_model, sizeof *f->x);
    f->norm = take(a, rows * s->d_model, sizeof *f->norm);
    f->proj = take(a, rows * s->d_model, sizeof *f->proj);
    f->q = take(a, q_dim, rows * sizeof *f->q);
    f->att = take(a, q_dim, rows * sizeof *f->att);
    f->k = take(a, kv_dim, rows * sizeof *f->k);
    f->v = take(a, kv_dim, rows * sizeof *f->v);
    f->gate = take(a, rows * s->d_ff, sizeof *f->gate);
    f->up = take(a, rows * s->d_ff, sizeof *f->up);
    take_quantised(a, rows, s->d_model, &f->norm_q);
    take_quantised(a, rows, max_u64(q_dim, s->d_ff), &f->mid_q);
    f->rope = take(a, (uint64_t)n_ctx * s->head_dim, sizeof *f->rope);
    take_workers(a, n_ctx, n_threads, &f->workers);
}

uint64_t lvr_forward_bytes(const lvr_model_shape *shape, uint32_t n_ctx, uint32_t max_rows,
                           uint32_t n_threads)
{
    arena count = {0};
    lvr_forward unused = {0};
    lay_out(&count, shape, n_ctx, max_rows, n_threads, &unused);
    return count.overflow ? UINT64_MAX : count.used;
}

/* Angles in double, cos and sin rounded to float once. */
static void fill_rope(float *table, uint32_t n_ctx, uint32_t head_dim, double base)
{
    for (uint32_t i = 0; i < head_dim / 2; i++) {
        const double frequency = pow(base, -2.0 * i / head_dim);
        for (uint32_t p = 0; p < n_ctx; p++) {
            float *pair = table + (size_t)p * head_dim + 2 * (size_t)i;
            pair[0] = (float)cos(p * frequency);
            pair[1] = (float)sin(p * frequency);
        }
    }
}

static lvr_status check_shape(const lvr_model *m, const lvr_kv *kv, uint32_t max_rows, lvr_error *err)
{
    const lvr_model_shape *s = m->shape;
    if (s->head_dim == 0 || s->head_dim % LVR_GROUP != 0)
        return lvr_fail(err, LVR_ERR_UNSUPPORTED, "%s: head width %u; this version needs a multiple of %u",
                        lvr_pack_path(m->pack), s->head_dim, LVR_GROUP);
    if (kv->n_layers != s->n_layers || kv->kv_dim != s->n_kv * s->head_dim)
        return lvr_fail(err, LVR_ERR_INVARIANT,
                        "forward: the KV cache is for %u layers of %u values, the model has %u of %u",
                        kv->n_layers, kv->kv_dim, s->n_layers, s->n_kv * s->head_dim);
    if (max_rows == 0)
        return lvr_fail(err, LVR_ERR_INVARIANT, "forward: a pass needs room for at least one row");
    return LVR_OK;
}

static lvr_status allocate(lvr_forward *f, lvr_error *err)
{
    const lvr_model_shape *s = f->shape;
    const uint64_t bytes = lvr_forward_bytes(s, f->kv->n_ctx, f->max_rows, f->n_threads);
    const uint64_t n_slots = f->kv->max_scratch ? f->kv->max_scratch : 1;
    f->slots = calloc(n_slots, sizeof *f->slots);
    f->arena = bytes > SIZE_MAX / 2 ? NULL : aligned_alloc(ARENA_ALIGN, bytes);
    if (!f->slots || !f->arena)
        return lvr_fail(err, LVR_ERR_NOMEM, "forward: out of memory for a workspace of %llu bytes",
                        (unsigned long long)bytes);
    arena a = {.base = f->arena};
    lay_out(&a, s, f->kv->n_ctx, f->max_rows, f->n_threads, f);
    return LVR_OK;
}

lvr_status lvr_forward_new(const lvr_model *model, const lvr_kernels *kernels, lvr_pool *pool, lvr_kv *kv,
                           uint32_t max_rows, lvr_forward **ret, lvr_error *err)
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
    f->n_threads = lvr_pool_size(pool);
    f->q_dim = s->n_heads * s->head_dim;
    f->kv_dim = s->n_kv * s->head_dim;
    f->heads_per_unit = s->head_dim % LVR_BLOCK == 0 || s->n_heads % 2 != 0 ? 1 : 2;
    f->attention_scale = (float)(1.0 / sqrt((double)s->head_dim));
    status = allocate(f, err);
    if (status != LVR_OK) {
        lvr_forward_free(f);
        return status;
    }
    fill_rope(f->rope, kv->n_ctx, s->head_dim, (double)s->rope_base);
    *ret = f;
    return LVR_OK;
}

void lvr_forward_free(lvr_forward *f)
{
    if (!f)
        return;
    free(f->slots);
    free(f->arena);
    free(f);
}

static uint64_t chunk_of(const lvr_forward *f, uint64_t n_units, uint64_t macs_per_unit)
{
    const uint64_t even = n_units / ((uint64_t)f->n_threads * CHUNKS_PER_WORKER);
    const uint64_t least = MIN_CHUNK_MACS / max_u64(macs_per_unit, 1);
    return max_u64(max_u64(even, least), 1);
}

static void work_init(work *w, const lvr_forward *f)
{
    w->f = f;
    w->n = 0;
    w->macs = 0;
}

static void work_add(work *w, lvr_range_fn body, uint64_t n_units, uint64_t macs_per_unit, const job *j)
{
    w->jobs[w->n] = *j;
    lvr_phase *p = &w->phases[w->n];
    p->body = body;
    p->arg = &w->jobs[w->n];
    p->n_units = n_units;
    p->chunk = chunk_of(w->f, n_units, macs_per_unit);
    atomic_init(&p->next, 0);
    atomic_init(&p->done, 0);
    w->macs += n_units * macs_per_unit;
    w->n++;
}

static void work_run(work *w)
{
    lvr_phases_run(w->macs < MIN_POOL_MACS ? NULL : w->f->pool, w->phases, w->n);
}

/* ---- start of a pass ---- */

static lvr_status check_row(const lvr_forward *f, const lvr_fwd_row *row, lvr_error *err)
{
    if (row->token < 0 || (uint32_t)row->token >= f->shape->vocab)
        return lvr_fail(err, LVR_ERR_FORMAT, "token %d is outside the vocabulary: expected 0 to %u",
                        row->token, f->shape->vocab - 1);
    if (row->position >= f->kv->n_ctx)
        return lvr_fail(err, LVR_ERR_INVARIANT, "forward: position %u is outside the context of %u",
                        row->position, f->kv->n_ctx);
    const uint32_t n_slots = f->kv->max_scratch;
    if (row->slot >= n_slots || row->parent_slot < -1 ||
        (row->parent_slot >= 0 && (uint32_t)row->parent_slot >= n_slots))
        return lvr_fail(err, LVR_ERR_INVARIANT, "forward: scratch row %u (parent %d), expected below %u",
                        row->slot, row->parent_slot, n_slots);
    if (f->slots[row->slot].pass == f->pass)
        return lvr_fail(err, LVR_ERR_INVARIANT, "forward: two rows of a pass use scratch row %u", row->slot);
    return LVR_OK;
}

/* Every position from the row's own down to the cache must be found by going from parent to parent: attention
 * relies on it. */
static lvr_status check_ancestors(const lvr_forward *f, const lvr_fwd_row *row, lvr_error *err)
{
    int32_t slot = (int32_t)row->slot;
    if (row->position < f->kv->n_cached)
        return lvr_fail(err, LVR_ERR_INVARIANT, "forward: position %u is already in the cache of %u",
                        row->position, f->kv->n_cached);
    for (uint32_t p = row->position;; p--) {
        if (slot < 0 || f->slots[slot].pass == 0 || f->slots[slot].position != p)
            return lvr_fail(err, LVR_ERR_INVARIANT,
                            "forward: the row at position %u has no ancestor at position %u (cached: %u)",
                            row->position, p, f->kv->n_cached);
        if (p == f->kv->n_cached)
            return LVR_OK;
        slot = f->slots[slot].parent;
    }
}

static lvr_status take_rows(lvr_forward *f, const lvr_fwd_row *rows, uint32_t n_rows, lvr_error *err)
{
    if (n_rows > f->max_rows)
        return lvr_fail(err, LVR_ERR_INVARIANT, "forward: a pass of %u rows, expected at most %u", n_rows,
                        f->max_rows);
    f->n_rows = 0;
    f->pass++;
    for (uint32_t r = 0; r < n_rows; r++) {
        const lvr_status status = check_row(f, &rows[r], err);
        if (status != LVR_OK)
            return status;
        f->slots[rows[r].slot] =
            (slot_info){.pass = f->pass, .position = rows[r].position, .parent = rows[r].parent_slot};
    }
    for (uint32_t r = 0; r < n_rows; r++) {
        const lvr_status status = check_ancestors(f, &rows[r], err);
        if (status != LVR_OK)
            return status;
    }
    if (n_rows)
        memcpy(f->rows, rows, n_rows * sizeof *rows);
    f->n_rows = n_rows;
    return LVR_OK;
}

static void embed_rows(void *arg, uint64_t begin, uint64_t end, uint32_t worker)
{
    (void)worker;
    const job *j = arg;
    const lvr_forward *f = j->f;
    for (uint64_t r = begin; r < end; r++)
        lvr_packed_row(&f->model->embd, (uint32_t)f->rows[r].token, f->x + r * f->shape->d_model);
}

lvr_status lvr_forward_embed(lvr_forward *f, const lvr_fwd_row *rows, uint32_t n_rows, lvr_error *err)
{
    const lvr_status status = take_rows(f, rows, n_rows, err);
    if (status != LVR_OK)
        return status;
    const job j = {.f = f};
    work w;
    work_init(&w, f);
    work_add(&w, embed_rows, n_rows, (uint64_t)f->shape->d_model * NORM_MACS, &j);
    work_run(&w);
    return LVR_OK;
}

/* ---- phases of a layer ---- */

static void quantise_slice(const lvr_forward *f, const float *x, uint64_t row, uint32_t n_in, uint32_t begin,
                           uint32_t n, const quantised_rows *to)
{
    const uint64_t at = row * n_in + begin;
    f->kernels->quantize_row(x + at, n, to->q + at, to->d + at / LVR_BLOCK, to->hsum + at / (LVR_BLOCK / 2));
}

static lvr_acts acts_of(const lvr_forward *f, const float *x, uint32_t n_in, const quantised_rows *q)
{
    return (lvr_acts){.n_rows = f->n_rows, .n_in = n_in, .x = x, .q = q->q, .d = q->d, .hsum = q->hsum};
}

static void multiply(const job *j, const lvr_matrix *m, uint64_t group_begin, uint64_t group_end, float *out,
                     size_t out_stride)
{
    lvr_kernels_matmul(j->f->kernels, m->type)(m, &j->acts, (uint32_t)group_begin, (uint32_t)group_end, out,
                                               out_stride);
}

static void norm_rows(void *arg, uint64_t begin, uint64_t end, uint32_t worker)
{
    (void)worker;
    const job *j = arg;
    const lvr_forward *f = j->f;
    const uint32_t d = f->shape->d_model;
    for (uint64_t r = begin; r < end; r++) {
        const uint64_t from = j->row_index ? j->row_index[r] : r;
        f->kernels->rmsnorm(f->x + from * d, j->norm_weight, d, f->shape->rms_eps, f->norm + r * d);
        if (j->quantise)
            quantise_slice(f, f->norm, r, d, 0, d, &f->norm_q);
    }
}

static void add_norm(work *w, uint64_t n_rows, const float *weight, const uint32_t *row_index, bool quantise)
{
    const job j = {.f = w->f, .norm_weight = weight, .row_index = row_index, .quantise = quantise};
    work_add(w, norm_rows, n_rows, (uint64_t)w->f->shape->d_model * NORM_MACS, &j);
}

/* One head's outputs for all rows, in `out` [n_rows][stride]. */
static void multiply_head(const job *j, const lvr_matrix *m, uint32_t head, float *out, uint32_t stride)
{
    const uint64_t groups = j->f->shape->head_dim / LVR_GROUP;
    multiply(j, m, head * groups, (head + 1) * groups, out, stride);
}

static void rotate_head(const lvr_forward *f, uint32_t head, float *x, uint32_t stride)
{
    const uint32_t hd = f->shape->head_dim;
    for (uint64_t r = 0; r < f->n_rows; r++)
        f->kernels->rope(x + r * stride + (size_t)head * hd, 1, hd,
                         f->rope + (size_t)f->rows[r].position * hd);
}

static void store_head(const lvr_forward *f, uint32_t layer, uint32_t head, const float *x, uint16_t *scratch)
{
    const uint32_t hd = f->shape->head_dim;
    const size_t base = (size_t)layer * f->kv->max_scratch;
    for (uint64_t r = 0; r < f->n_rows; r++) {
        uint16_t *to = scratch + (base + f->rows[r].slot) * f->kv_dim + (size_t)head * hd;
        f->kernels->f32_to_f16(x + r * f->kv_dim + (size_t)head * hd, hd, to);
    }
}

/* Units: query heads, then key heads, then value heads. */
static void project_heads(void *arg, uint64_t begin, uint64_t end, uint32_t worker)
{
    (void)worker;
    const job *j = arg;
    const lvr_forward *f = j->f;
    const uint32_t n_heads = f->shape->n_heads, n_kv = f->shape->n_kv;
    for (uint32_t u = (uint32_t)begin; u < end; u++) {
        if (u < n_heads) {
            multiply_head(j, &j->w->q, u, f->q, f->q_dim);
            rotate_head(f, u, f->q, f->q_dim);
        } else if (u < n_heads + n_kv) {
            const uint32_t head = u - n_heads;
            multiply_head(j, &j->w->k, head, f->k, f->kv_dim);
            rotate_head(f, head, f->k, f->kv_dim);
            store_head(f, j->layer, head, f->k, f->kv->sk);
        } else {
            const uint32_t head = u - n_heads - n_kv;
            multiply_head(j, &j->w->v, head, f->v, f->kv_dim);
            store_head(f, j->layer, head, f->v, f->kv->sv);
        }
    }
}

static void point_at_cache(const lvr_forward *f, worker_space *w, uint32_t layer, uint32_t kv_head)
{
    const lvr_kv *kv = f->kv;
    if (w->n_prefix == kv->n_cached && w->layer == layer && w->kv_head == kv_head)
        return;
    const size_t base = (size_t)layer * kv->n_ctx * kv->kv_dim + (size_t)kv_head * f->shape->head_dim;
    for (uint32_t p = 0; p < kv->n_cached; p++) {
        w->k[p] = kv->k + base + (size_t)p * kv->kv_dim;
        w->v[p] = kv->v + base + (size_t)p * kv->kv_dim;
    }
    w->n_prefix = kv->n_cached;
    w->layer = layer;
    w->kv_head = kv_head;
}

static void point_at_ancestors(const lvr_forward *f, worker_space *w, const lvr_fwd_row *row)
{
    const lvr_kv *kv = f->kv;
    const size_t base =
        (size_t)w->layer * kv->max_scratch * kv->kv_dim + (size_t)w->kv_head * f->shape->head_dim;
    int32_t slot = (int32_t)row->slot;
    for (uint32_t p = row->position + 1; p-- > kv->n_cached;) {
        w->k[p] = kv->sk + base + (size_t)slot * kv->kv_dim;
        w->v[p] = kv->sv + base + (size_t)slot * kv->kv_dim;
        slot = f->slots[slot].parent;
    }
}

static void attend_head(const job *j, worker_space *w, uint64_t row, uint32_t head)
{
    const lvr_forward *f = j->f;
    const uint32_t hd = f->shape->head_dim;
    const uint64_t at = row * f->q_dim + (uint64_t)head * hd;
    point_at_cache(f, w, j->layer, head / (f->shape->n_heads / f->shape->n_kv));
    point_at_ancestors(f, w, &f->rows[row]);
    f->kernels->attention(f->q + at, w->k, w->v, f->rows[row].position + 1, hd, f->attention_scale, w->scores,
                          f->att + at);
}

/* Units: (heads_per_unit heads, row), rows running fastest, so that a worker's cache pointers serve many
 * units. */
static void attend(void *arg, uint64_t begin, uint64_t end, uint32_t worker)
{
    const job *j = arg;
    const lvr_forward *f = j->f;
    const uint32_t hd = f->shape->head_dim;
    for (uint64_t u = begin; u < end; u++) {
        const uint64_t row = u % f->n_rows;
        const uint32_t head = (uint32_t)(u / f->n_rows) * f->heads_per_unit;
        for (uint32_t h = 0; h < f->heads_per_unit; h++)
            attend_head(j, &f->workers[worker], row, head + h);
        if (j->quantise)
            quantise_slice(f, f->att, row, f->q_dim, head * hd, f->heads_per_unit * hd, &f->mid_q);
    }
}

static uint64_t attention_macs(const lvr_forward *f)
{
    uint32_t longest = 0;
    for (uint32_t r = 0; r < f->n_rows; r++)
        longest = f->rows[r].position > longest ? f->rows[r].position : longest;
    return ((uint64_t)longest + 1) * f->shape->head_dim * f->heads_per_unit * ATTENTION_MACS;
}

/* Units: groups of outputs. */
static void project_groups(void *arg, uint64_t begin, uint64_t end, uint32_t worker)
{
    (void)worker;
    const job *j = arg;
    multiply(j, &j->matrix, begin, end, j->out, j->out_stride);
}

/* x += W a. Units: groups of outputs. */
static void project_residual(void *arg, uint64_t begin, uint64_t end, uint32_t worker)
{
    (void)worker;
    const job *j = arg;
    const lvr_forward *f = j->f;
    const uint32_t d = f->shape->d_model;
    const uint64_t first = begin * LVR_GROUP;
    const uint32_t n = (uint32_t)(min_u64(end * LVR_GROUP, d) - first);
    multiply(j, &j->matrix, begin, end, f->proj, d);
    for (uint64_t r = 0; r < f->n_rows; r++) {
        float *x = f->x + r * d + first;
        f->kernels->add(x, f->proj + r * d + first, n, x);
    }
}

static void add_residual(work *w, const lvr_matrix *m, const float *in)
{
    const lvr_forward *f = w->f;
    const job j = {.f = f, .matrix = *m, .acts = acts_of(f, in, m->n_in, &f->mid_q)};
    work_add(w, project_residual, n_groups(m->n_out), (uint64_t)LVR_GROUP * m->n_in * f->n_rows, &j);
}

#define FFN_UNIT_GROUPS (LVR_BLOCK / LVR_GROUP)

/* gate = silu(gate) * up. Units: blocks of hidden values, whole for the quantisation. */
static void ffn_hidden(void *arg, uint64_t begin, uint64_t end, uint32_t worker)
{
    (void)worker;
    const job *j = arg;
    const lvr_forward *f = j->f;
    const uint32_t d_ff = f->shape->d_ff;
    const uint64_t first_group = begin * FFN_UNIT_GROUPS;
    const uint64_t last_group = min_u64(end * FFN_UNIT_GROUPS, n_groups(d_ff));
    const uint32_t first = (uint32_t)(first_group * LVR_GROUP);
    const uint32_t n = (uint32_t)min_u64(last_group * LVR_GROUP, d_ff) - first;
    multiply(j, &j->w->gate, first_group, last_group, f->gate, d_ff);
    multiply(j, &j->w->up, first_group, last_group, f->up, d_ff);
    for (uint64_t r = 0; r < f->n_rows; r++) {
        float *gate = f->gate + r * d_ff + first;
        f->kernels->silu_mul(gate, f->up + r * d_ff + first, n, gate);
        if (j->quantise)
            quantise_slice(f, f->gate, r, d_ff, first, n, &f->mid_q);
    }
}

static void add_attention(work *list, const lvr_layer_weights *w, uint32_t layer)
{
    const lvr_forward *f = list->f;
    const lvr_model_shape *s = f->shape;
    add_norm(list, f->n_rows, w->attn_norm, NULL,
             lvr_wtype_quantised(w->q.type) || lvr_wtype_quantised(w->k.type) ||
                 lvr_wtype_quantised(w->v.type));
    const job heads = {.f = f, .w = w, .layer = layer, .acts = acts_of(f, f->norm, s->d_model, &f->norm_q)};
    work_add(list, project_heads, (uint64_t)s->n_heads + 2 * (uint64_t)s->n_kv,
             (uint64_t)s->head_dim * s->d_model * f->n_rows, &heads);
    const job attention = {.f = f, .layer = layer, .quantise = lvr_wtype_quantised(w->o.type)};
    work_add(list, attend, (uint64_t)s->n_heads / f->heads_per_unit * f->n_rows, attention_macs(f),
             &attention);
    add_residual(list, &w->o, f->att);
}

static void add_ffn(work *list, const lvr_layer_weights *w)
{
    const lvr_forward *f = list->f;
    const lvr_model_shape *s = f->shape;
    add_norm(list, f->n_rows, w->ffn_norm, NULL,
             lvr_wtype_quantised(w->gate.type) || lvr_wtype_quantised(w->up.type));
    const job hidden = {.f = f,
                        .w = w,
                        .quantise = lvr_wtype_quantised(w->down.type),
                        .acts = acts_of(f, f->norm, s->d_model, &f->norm_q)};
    work_add(list, ffn_hidden, blocks(s->d_ff), 2 * (uint64_t)LVR_BLOCK * s->d_model * f->n_rows, &hidden);
    add_residual(list, &w->down, f->gate);
}

void lvr_forward_layer(lvr_forward *f, uint32_t layer, const uint8_t *base)
{
    if (f->n_rows == 0)
        return;
    lvr_layer_weights weights;
    lvr_model_layer(f->model, layer, base, &weights);
    work w;
    work_init(&w, f);
    add_attention(&w, &weights, layer);
    add_ffn(&w, &weights);
    work_run(&w);
}

/* ---- head ---- */

static void head_batch(const lvr_forward *f, const uint32_t *rows, uint32_t n, float *out)
{
    const lvr_matrix *head = &f->model->head;
    work w;
    work_init(&w, f);
    add_norm(&w, n, f->model->out_norm, rows, lvr_wtype_quantised(head->type));
    job j = {.f = f, .matrix = *head, .out = out, .out_stride = head->n_out};
    j.acts = acts_of(f, f->norm, head->n_in, &f->norm_q);
    j.acts.n_rows = n;
    work_add(&w, project_groups, n_groups(head->n_out), (uint64_t)LVR_GROUP * head->n_in * n, &j);
    work_run(&w);
}

void lvr_forward_heads(lvr_forward *f, const uint32_t *rows, uint32_t n, float *out)
{
    for (uint32_t done = 0; done < n; done += f->max_rows) {
        const uint32_t batch = (uint32_t)min_u64(n - done, f->max_rows);
        head_batch(f, rows + done, batch, out + (size_t)done * f->model->head.n_out);
    }
}

void lvr_forward_head(lvr_forward *f, uint32_t row, float *out)
{
    lvr_forward_heads(f, &row, 1, out);
}
