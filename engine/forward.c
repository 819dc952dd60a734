/*
 * One layer is seven phases (engine/phases.h), each needing all of the one before:
 *
 *   norm + quantise | Q, K, V + bias + norm of heads + RoPE + f16 | attention + quantise | O + residual |
 *   norm + quantise | gate, up, SwiGLU + quantise | down + residual
 *
 * Every value is computed whole by one worker, in the order that the kernels fix, so how phases are cut into
 * chunks changes no bit.
 */
#include "engine/forward_internal.h"
#include "engine/phases.h"

#define LAYER_PHASES 7u
#define FFN_UNIT_GROUPS (LVR_BLOCK / LVR_GROUP) /* of a unit of hidden values */

/* Multiply-adds worth handing to another worker: a few tenths of a microsecond. */
#define MIN_CHUNK_MACS 8192u
/* Multiply-adds worth waking the pool for: about what waking a sleeping worker takes, some tens of
 * microseconds. Less stays on the caller. */
#define MIN_POOL_MACS (5u << 18)
/* An element of a norm (with its quantisation) or of attention counts as this many multiply-adds of a
 * product. */
#define NORM_MACS 16u
#define ATTENTION_MACS 8u

/* Arguments of a phase. */
typedef struct job {
    const lvr_forward *f;
    const lvr_kernels *kernels;
    const lvr_layer_weights *w;
    uint32_t layer;
    bool quantise; /* the phase's results feed a quantised product */

    /* norm */
    const float *norm_weight;
    const uint32_t *row_index; /* NULL: all rows of the pass */

    /* product with its inputs */
    lvr_matrix matrix;
    const float *bias; /* NULL: none */
    lvr_acts acts;
    float *out;
    size_t out_stride;
} job;

/* Phases to run together. */
typedef struct work {
    const lvr_forward *f;
    const lvr_kernels *kernels;
    lvr_pool *pool; /* NULL: the calling thread alone */
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

static uint64_t chunk_of(uint64_t macs_per_unit)
{
    return max_u64(MIN_CHUNK_MACS / max_u64(macs_per_unit, 1), 1);
}

/* A pool with more workers than the workspace has room for must not run here: its caller works alone then. */
static void work_init(work *w, const lvr_forward *f, const lvr_kernels *kernels, lvr_pool *pool)
{
    w->f = f;
    w->kernels = kernels;
    w->pool = pool && lvr_pool_size(pool) <= f->n_threads ? pool : NULL;
    w->n = 0;
    w->macs = 0;
}

static void work_add(work *w, lvr_range_fn body, uint64_t n_units, uint64_t macs_per_unit, const job *j)
{
    w->jobs[w->n] = *j;
    w->jobs[w->n].f = w->f;
    w->jobs[w->n].kernels = w->kernels;
    lvr_phase *p = &w->phases[w->n];
    p->body = body;
    p->arg = &w->jobs[w->n];
    p->n_units = n_units;
    p->chunk = chunk_of(macs_per_unit);
    atomic_init(&p->next, 0);
    atomic_init(&p->done, 0);
    w->macs += n_units * macs_per_unit;
    w->n++;
}

/* A product on the matrix unit copies the rows into tiles first, which takes as long as a few groups of
 * outputs: a claim should be several times that, if that leaves work for all. */
#define TILE_CLAIM_GROUPS 8u
#define TILE_LEAST_ROWS 4u /* fewer rows do not go to tiles */

static void work_add_product(work *w, lvr_range_fn body, uint64_t n_units, uint64_t groups_per_unit,
                             uint64_t macs_per_unit, const job *j)
{
    work_add(w, body, n_units, macs_per_unit, j);
    if (w->kernels->level != LVR_CPU_AMX || w->f->n_rows < TILE_LEAST_ROWS || !w->pool)
        return;
    lvr_phase *p = &w->phases[w->n - 1];
    const uint64_t fair = n_units / (2 * (uint64_t)lvr_pool_size(w->pool));
    p->chunk = max_u64(p->chunk, min_u64(fair, TILE_CLAIM_GROUPS / max_u64(groups_per_unit, 1)));
}

static void work_run(work *w)
{
    lvr_phases_run(w->macs < MIN_POOL_MACS ? NULL : w->pool, w->phases, w->n);
}

/* ---- start of a pass ---- */

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
    const lvr_status status = lvr_forward_take_rows(f, rows, n_rows, err);
    if (status != LVR_OK)
        return status;
    const job j = {0};
    work w;
    work_init(&w, f, f->kernels, f->pool);
    work_add(&w, embed_rows, n_rows, (uint64_t)f->shape->d_model * NORM_MACS, &j);
    work_run(&w);
    return LVR_OK;
}

/* ---- phases of a layer ---- */

static void quantise_slice(const job *j, const float *x, uint64_t row, uint32_t n_in, uint32_t begin,
                           uint32_t n, const quantised_rows *to)
{
    const uint64_t at = row * n_in + begin;
    j->kernels->quantize_row(x + at, n, to->q + at, to->d + at / LVR_BLOCK, to->hsum + at / (LVR_BLOCK / 2));
}

static lvr_acts acts_of(const lvr_forward *f, const float *x, uint32_t n_in, const quantised_rows *q)
{
    return (lvr_acts){.n_rows = f->n_rows, .n_in = n_in, .x = x, .q = q->q, .d = q->d, .hsum = q->hsum};
}

static void multiply(const job *j, const lvr_matrix *m, uint64_t group_begin, uint64_t group_end, float *out,
                     size_t out_stride)
{
    lvr_kernels_matmul(j->kernels, m->type)(m, &j->acts, (uint32_t)group_begin, (uint32_t)group_end, out,
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
        j->kernels->rmsnorm(f->x + from * d, j->norm_weight, d, f->shape->rms_eps, f->norm + r * d);
        if (j->quantise)
            quantise_slice(j, f->norm, r, d, 0, d, &f->norm_q);
    }
}

static void add_norm(work *w, uint64_t n_rows, const float *weight, const uint32_t *row_index, bool quantise)
{
    const job j = {.norm_weight = weight, .row_index = row_index, .quantise = quantise};
    work_add(w, norm_rows, n_rows, (uint64_t)w->f->shape->d_model * NORM_MACS, &j);
}

/* The outputs for all rows, in `out` [n_rows][stride], of those units [begin, end) that are heads of `m`,
 * which has the units [first, first + n). */
static void multiply_heads(const job *j, const lvr_matrix *m, uint64_t begin, uint64_t end, uint64_t first,
                           uint64_t n, float *out, uint32_t stride)
{
    const uint64_t groups = j->f->shape->head_dim / LVR_GROUP;
    const uint64_t from = max_u64(begin, first), to = min_u64(end, first + n);
    if (from < to)
        multiply(j, m, (from - first) * groups, (to - first) * groups, out, stride);
}

/* What follows the product of a head's queries, keys or values, for all rows: x [n_rows][stride]. NULL:
 * nothing. */
static void add_head_bias(const job *j, const float *bias, uint32_t head, float *x, uint32_t stride)
{
    const uint32_t hd = j->f->shape->head_dim;
    for (uint64_t r = 0; bias && r < j->f->n_rows; r++) {
        float *values = x + r * stride + (size_t)head * hd;
        j->kernels->add(values, bias + (size_t)head * hd, hd, values);
    }
}

static void norm_head(const job *j, const float *weight, uint32_t head, float *x, uint32_t stride)
{
    const uint32_t hd = j->f->shape->head_dim;
    for (uint64_t r = 0; weight && r < j->f->n_rows; r++) {
        float *values = x + r * stride + (size_t)head * hd;
        j->kernels->rmsnorm(values, weight, hd, j->f->shape->rms_eps, values);
    }
}

static void rotate_head(const job *j, uint32_t head, float *x, uint32_t stride)
{
    const lvr_forward *f = j->f;
    const uint32_t hd = f->shape->head_dim;
    for (uint64_t r = 0; r < f->n_rows; r++)
        j->kernels->rope(x + r * stride + (size_t)head * hd, 1, hd,
                         f->rope + (size_t)f->rows[r].position * hd);
}

static void store_head(const job *j, uint32_t head, const float *x, uint16_t *scratch)
{
    const lvr_forward *f = j->f;
    const uint32_t hd = f->shape->head_dim;
    const size_t base = (size_t)j->layer * f->kv->max_scratch;
    for (uint64_t r = 0; r < f->n_rows; r++) {
        uint16_t *to = scratch + (base + f->rows[r].slot) * f->kv_dim + (size_t)head * hd;
        j->kernels->f32_to_f16(x + r * f->kv_dim + (size_t)head * hd, hd, to);
    }
}

/* Units: query heads, then key heads, then value heads. */
static void project_heads(void *arg, uint64_t begin, uint64_t end, uint32_t worker)
{
    (void)worker;
    const job *j = arg;
    const lvr_forward *f = j->f;
    const uint32_t n_heads = f->shape->n_heads, n_kv = f->shape->n_kv;
    multiply_heads(j, &j->w->q, begin, end, 0, n_heads, f->q, f->q_dim);
    multiply_heads(j, &j->w->k, begin, end, n_heads, n_kv, f->k, f->kv_dim);
    multiply_heads(j, &j->w->v, begin, end, (uint64_t)n_heads + n_kv, n_kv, f->v, f->kv_dim);
    for (uint32_t u = (uint32_t)begin; u < end; u++) {
        if (u < n_heads) {
            add_head_bias(j, j->w->q_bias, u, f->q, f->q_dim);
            norm_head(j, j->w->q_norm, u, f->q, f->q_dim);
            rotate_head(j, u, f->q, f->q_dim);
        } else if (u < n_heads + n_kv) {
            const uint32_t head = u - n_heads;
            add_head_bias(j, j->w->k_bias, head, f->k, f->kv_dim);
            norm_head(j, j->w->k_norm, head, f->k, f->kv_dim);
            rotate_head(j, head, f->k, f->kv_dim);
            store_head(j, head, f->k, f->kv->sk);
        } else {
            const uint32_t head = u - n_heads - n_kv;
            add_head_bias(j, j->w->v_bias, head, f->v, f->kv_dim);
            store_head(j, head, f->v, f->kv->sv);
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
    j->kernels->attention(f->q + at, w->k, w->v, f->rows[row].position + 1, hd, f->attention_scale, w->scores,
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
            quantise_slice(j, f->att, row, f->q_dim, head * hd, f->heads_per_unit * hd, &f->mid_q);
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

/* x += W a + bias. Units: groups of outputs. */
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
        float *product = f->proj + r * d + first;
        if (j->bias)
            j->kernels->add(product, j->bias + first, n, product);
        j->kernels->add(x, product, n, x);
    }
}

static void add_residual(work *w, const lvr_matrix *m, const float *bias, const float *in)
{
    const lvr_forward *f = w->f;
    const job j = {.matrix = *m, .bias = bias, .acts = acts_of(f, in, m->n_in, &f->mid_q)};
    work_add_product(w, project_residual, n_groups(m->n_out), 1, (uint64_t)LVR_GROUP * m->n_in * f->n_rows,
                     &j);
}

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
        j->kernels->silu_mul(gate, f->up + r * d_ff + first, n, gate);
        if (j->quantise)
            quantise_slice(j, f->gate, r, d_ff, first, n, &f->mid_q);
    }
}

static void add_attention(work *list, const lvr_layer_weights *w, uint32_t layer)
{
    const lvr_forward *f = list->f;
    const lvr_model_shape *s = f->shape;
    add_norm(list, f->n_rows, w->attn_norm, NULL,
             lvr_wtype_quantised(w->q.type) || lvr_wtype_quantised(w->k.type) ||
                 lvr_wtype_quantised(w->v.type));
    const job heads = {.w = w, .layer = layer, .acts = acts_of(f, f->norm, s->d_model, &f->norm_q)};
    work_add_product(list, project_heads, (uint64_t)s->n_heads + 2 * (uint64_t)s->n_kv,
                     s->head_dim / LVR_GROUP, (uint64_t)s->head_dim * s->d_model * f->n_rows, &heads);
    const job attention = {.layer = layer, .quantise = lvr_wtype_quantised(w->o.type)};
    work_add(list, attend, (uint64_t)s->n_heads / f->heads_per_unit * f->n_rows, attention_macs(f),
             &attention);
    add_residual(list, &w->o, w->o_bias, f->att);
}

static void add_ffn(work *list, const lvr_layer_weights *w)
{
    const lvr_forward *f = list->f;
    const lvr_model_shape *s = f->shape;
    add_norm(list, f->n_rows, w->ffn_norm, NULL,
             lvr_wtype_quantised(w->gate.type) || lvr_wtype_quantised(w->up.type));
    const job hidden = {.w = w,
                        .quantise = lvr_wtype_quantised(w->down.type),
                        .acts = acts_of(f, f->norm, s->d_model, &f->norm_q)};
    work_add_product(list, ffn_hidden, lvr_forward_blocks(s->d_ff), FFN_UNIT_GROUPS,
                     2 * (uint64_t)LVR_BLOCK * s->d_model * f->n_rows, &hidden);
    add_residual(list, &w->down, NULL, f->gate);
}

void lvr_forward_layer_on(lvr_forward *f, uint32_t layer, const uint8_t *base, const lvr_kernels *kernels,
                          lvr_pool *pool)
{
    if (f->n_rows == 0)
        return;
    lvr_layer_weights weights;
    lvr_model_layer(f->model, layer, base, &weights);
    work w;
    work_init(&w, f, kernels, pool);
    add_attention(&w, &weights, layer);
    add_ffn(&w, &weights);
    work_run(&w);
}

void lvr_forward_layer(lvr_forward *f, uint32_t layer, const uint8_t *base)
{
    lvr_forward_layer_on(f, layer, base, f->kernels, f->pool);
}

/* ---- head ---- */

static void head_batch(const lvr_forward *f, const uint32_t *rows, uint32_t n, float *out,
                       const lvr_kernels *kernels, lvr_pool *pool)
{
    const lvr_matrix *head = &f->model->head;
    work w;
    work_init(&w, f, kernels, pool);
    add_norm(&w, n, f->model->out_norm, rows, lvr_wtype_quantised(head->type));
    job j = {.matrix = *head, .out = out, .out_stride = head->n_out};
    j.acts = acts_of(f, f->norm, head->n_in, &f->norm_q);
    j.acts.n_rows = n;
    work_add_product(&w, project_groups, n_groups(head->n_out), 1, (uint64_t)LVR_GROUP * head->n_in * n, &j);
    work_run(&w);
}

void lvr_forward_heads_on(lvr_forward *f, const uint32_t *rows, uint32_t n, float *out,
                          const lvr_kernels *kernels, lvr_pool *pool)
{
    for (uint32_t done = 0; done < n; done += f->max_rows) {
        const uint32_t batch = (uint32_t)min_u64(n - done, f->max_rows);
        head_batch(f, rows + done, batch, out + (size_t)done * f->model->head.n_out, kernels, pool);
    }
}

void lvr_forward_heads(lvr_forward *f, const uint32_t *rows, uint32_t n, float *out)
{
    lvr_forward_heads_on(f, rows, n, out, f->kernels, f->pool);
}

void lvr_forward_head(lvr_forward *f, uint32_t row, float *out)
{
    lvr_forward_heads(f, &row, 1, out);
}
