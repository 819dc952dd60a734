/*
 * One layer is seven phases (engine/phases.h), each needing all of the one before:
 *
 *   norm + quantise | Q, K, V + bias + norm of heads + RoPE + cache row | attention + quantise |
 *   O + residual | norm + quantise | gate, up, SwiGLU + quantise | down + residual
 *
 * Every value is computed whole by one worker, in the order that the kernels fix, so how phases are cut into
 * chunks changes no bit. A pass of more rows than the workspace's buffers hold goes through a layer in
 * batches, in order.
 */
#include "common/minmax.h"
#include "engine/forward_internal.h"
#include "engine/phases.h"

#define LAYER_PHASES 7u
#define FFN_UNIT_GROUPS (LVR_BLOCK / LVR_GROUP) /* of a unit of hidden values */

/* Multiply-adds worth handing to another worker: a few tenths of a microsecond. */
#define MIN_CHUNK_MACS 8192u
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
    uint32_t first_row, n_rows; /* of the pass; buffers other than x begin at the first */
    bool quantise;              /* the phase's results feed a quantised product */

    /* start of a prompt's pass */
    const int32_t *tokens;

    /* norm */
    const float *norm_weight;
    const uint32_t *row_index; /* NULL: all rows from first_row on */

    /* attention */
    lvr_attend_cut cut;

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
    uint32_t first_row, n_rows;
    uint32_t n;
    uint64_t macs;
    job jobs[LAYER_PHASES];
    lvr_phase phases[LAYER_PHASES];
} work;

static uint32_t n_groups(uint32_t n_out)
{
    return n_out / LVR_GROUP + (n_out % LVR_GROUP != 0);
}

static uint64_t chunk_of(uint64_t macs_per_unit)
{
    return lvr_max_u64(MIN_CHUNK_MACS / lvr_max_u64(macs_per_unit, 1), 1);
}

/* A pool with more workers than the workspace has room for must not run here: its caller works alone then. */
static void work_init(work *w, const lvr_forward *f, uint32_t first_row, uint32_t n_rows,
                      const lvr_kernels *kernels, lvr_pool *pool)
{
    w->f = f;
    w->first_row = first_row;
    w->n_rows = n_rows;
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
    w->jobs[w->n].first_row = w->first_row;
    w->jobs[w->n].n_rows = w->n_rows;
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
    if (w->kernels->level != LVR_CPU_AMX || w->n_rows < TILE_LEAST_ROWS || !w->pool)
        return;
    lvr_phase *p = &w->phases[w->n - 1];
    const uint64_t fair = n_units / (2 * (uint64_t)lvr_pool_size(w->pool));
    p->chunk = lvr_max_u64(p->chunk, lvr_min_u64(fair, TILE_CLAIM_GROUPS / lvr_max_u64(groups_per_unit, 1)));
}

static void work_run(work *w)
{
    lvr_phases_run(w->macs < LVR_MIN_POOL_MACS ? NULL : w->pool, w->phases, w->n);
}

/* ---- start of a pass ---- */

static void embed_rows(void *arg, uint64_t begin, uint64_t end, uint32_t worker)
{
    (void)worker;
    const job *j = arg;
    const lvr_forward *f = j->f;
    for (uint64_t r = begin; r < end; r++) {
        const int32_t token = j->tokens ? j->tokens[r] : f->rows[r].token;
        lvr_packed_row(&f->model->embd, (uint32_t)token, f->x + r * f->shape->d_model);
    }
}

/* tokens: a prompt's; NULL: those of the pass's rows. */
static void embed(lvr_forward *f, const int32_t *tokens)
{
    const job j = {.tokens = tokens};
    work w;
    work_init(&w, f, 0, f->n_rows, f->kernels, f->pool);
    work_add(&w, embed_rows, f->n_rows, (uint64_t)f->shape->d_model * NORM_MACS, &j);
    work_run(&w);
}

lvr_status lvr_forward_embed(lvr_forward *f, const lvr_fwd_row *rows, uint32_t n_rows, lvr_error *err)
{
    const lvr_status status = lvr_forward_take_rows(f, rows, n_rows, err);
    if (status == LVR_OK)
        embed(f, NULL);
    return status;
}

lvr_status lvr_forward_embed_prompt(lvr_forward *f, const int32_t *tokens, uint32_t first_position,
                                    uint32_t n, lvr_error *err)
{
    const lvr_status status = lvr_forward_take_prompt(f, tokens, first_position, n, err);
    if (status == LVR_OK)
        embed(f, tokens);
    return status;
}

/* ---- phases of a layer ---- */

static void quantise_slice(const job *j, const float *x, uint64_t row, uint32_t n_in, uint32_t begin,
                           uint32_t n, const quantised_rows *to)
{
    const uint64_t at = row * n_in + begin;
    j->kernels->quantize_row(x + at, n, to->q + at, to->d + at / LVR_BLOCK, to->hsum + at / (LVR_BLOCK / 2));
}

static lvr_acts acts_of(const work *w, const float *x, uint32_t n_in, const quantised_rows *q)
{
    return (lvr_acts){.n_rows = w->n_rows, .n_in = n_in, .x = x, .q = q->q, .d = q->d, .hsum = q->hsum};
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
        const uint64_t from = j->row_index ? j->row_index[r] : j->first_row + r;
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
    const uint64_t from = lvr_max_u64(begin, first), to = lvr_min_u64(end, first + n);
    if (from < to)
        multiply(j, m, (from - first) * groups, (to - first) * groups, out, stride);
}

/* What follows the product of a head's queries, keys or values, for all rows: x [n_rows][stride]. NULL:
 * nothing. */
static void add_head_bias(const job *j, const float *bias, uint32_t head, float *x, uint32_t stride)
{
    const uint32_t hd = j->f->shape->head_dim;
    for (uint64_t r = 0; bias && r < j->n_rows; r++) {
        float *values = x + r * stride + (size_t)head * hd;
        j->kernels->add(values, bias + (size_t)head * hd, hd, values);
    }
}

static void norm_head(const job *j, const float *weight, uint32_t head, float *x, uint32_t stride)
{
    const uint32_t hd = j->f->shape->head_dim;
    for (uint64_t r = 0; weight && r < j->n_rows; r++) {
        float *values = x + r * stride + (size_t)head * hd;
        j->kernels->rmsnorm(values, weight, hd, j->f->shape->rms_eps, values);
    }
}

static void rotate_head(const job *j, uint32_t head, float *x, uint32_t stride)
{
    const lvr_forward *f = j->f;
    const uint32_t hd = f->shape->head_dim;
    for (uint32_t r = 0; r < j->n_rows; r++) {
        const size_t position = lvr_forward_position(f, j->first_row + r);
        j->kernels->rope(x + (size_t)r * stride + (size_t)head * hd, 1, hd, f->rope + position * hd);
    }
}

/* Into the cache (a prompt's rows) or into scratch. */
static void store_head(const job *j, uint32_t head, const float *x, uint8_t *cache, uint8_t *scratch)
{
    const lvr_forward *f = j->f;
    const lvr_kv *kv = f->kv;
    const uint32_t hd = f->shape->head_dim;
    for (uint32_t r = 0; r < j->n_rows; r++) {
        const uint32_t row = j->first_row + r;
        uint8_t *to = f->prompt ? cache + lvr_kv_cache_at(kv, j->layer, head, f->first_position + row)
                                : scratch + lvr_kv_scratch_at(kv, j->layer, head, f->rows[row].slot);
        lvr_kv_store_row(j->kernels, kv->shape.type, x + (size_t)r * f->kv_dim + (size_t)head * hd, hd, to);
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
            store_head(j, head, f->k, f->kv->k, f->kv->sk);
        } else {
            const uint32_t head = u - n_heads - n_kv;
            add_head_bias(j, j->w->v_bias, head, f->v, f->kv_dim);
            store_head(j, head, f->v, f->kv->v, f->kv->sv);
        }
    }
}

/* Units: (heads, rows) as cut, rows running fastest, so that the workers are at the same part of the cache.
 */
static void attend(void *arg, uint64_t begin, uint64_t end, uint32_t worker)
{
    const job *j = arg;
    const lvr_forward *f = j->f;
    const uint32_t hd = f->shape->head_dim, n_heads = f->shape->n_heads;
    const uint32_t batches = (j->n_rows + j->cut.rows - 1) / j->cut.rows;
    for (uint64_t u = begin; u < end; u++) {
        const uint32_t row = (uint32_t)(u % batches) * j->cut.rows;
        const uint32_t head = (uint32_t)(u / batches) * j->cut.heads;
        const lvr_attend_unit unit = {.first_row = j->first_row + row,
                                      .n_rows = lvr_min_u32(j->cut.rows, j->n_rows - row),
                                      .first_head = head,
                                      .n_heads = lvr_min_u32(j->cut.heads, n_heads - head)};
        const size_t at = (size_t)row * f->q_dim + (size_t)head * hd;
        lvr_forward_attend(f, &f->workers[worker], j->kernels, j->layer, &unit, f->q + at, f->att + at);
        for (uint32_t r = 0; j->quantise && r < unit.n_rows; r++)
            quantise_slice(j, f->att, row + r, f->q_dim, head * hd, unit.n_heads * hd, &f->mid_q);
    }
}

static void add_attend(work *w, uint32_t layer, bool quantise)
{
    const lvr_forward *f = w->f;
    const lvr_attend_cut cut = lvr_forward_cut_attention(f, w->n_rows, w->pool ? lvr_pool_size(w->pool) : 1);
    const job j = {.layer = layer, .quantise = quantise, .cut = cut};
    const uint64_t blocks = (f->shape->n_heads + cut.heads - 1) / cut.heads;
    const uint64_t batches = (w->n_rows + cut.rows - 1) / cut.rows;
    uint64_t longest = 0;
    for (uint32_t r = 0; r < w->n_rows; r++)
        longest = lvr_max_u64(longest, lvr_forward_position(f, w->first_row + r) + 1);
    work_add(w, attend, blocks * batches,
             longest * f->shape->head_dim * cut.heads * cut.rows * ATTENTION_MACS, &j);
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
    const uint32_t n = (uint32_t)(lvr_min_u64(end * LVR_GROUP, d) - first);
    multiply(j, &j->matrix, begin, end, f->proj, d);
    for (uint64_t r = 0; r < j->n_rows; r++) {
        float *x = f->x + (j->first_row + r) * d + first;
        float *product = f->proj + r * d + first;
        if (j->bias)
            j->kernels->add(product, j->bias + first, n, product);
        j->kernels->add(x, product, n, x);
    }
}

static void add_residual(work *w, const lvr_matrix *m, const float *bias, const float *in)
{
    const job j = {.matrix = *m, .bias = bias, .acts = acts_of(w, in, m->n_in, &w->f->mid_q)};
    work_add_product(w, project_residual, n_groups(m->n_out), 1, (uint64_t)LVR_GROUP * m->n_in * w->n_rows,
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
    const uint64_t last_group = lvr_min_u64(end * FFN_UNIT_GROUPS, n_groups(d_ff));
    const uint32_t first = (uint32_t)(first_group * LVR_GROUP);
    const uint32_t n = (uint32_t)lvr_min_u64(last_group * LVR_GROUP, d_ff) - first;
    multiply(j, &j->w->gate, first_group, last_group, f->gate, d_ff);
    multiply(j, &j->w->up, first_group, last_group, f->up, d_ff);
    for (uint64_t r = 0; r < j->n_rows; r++) {
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
    add_norm(list, list->n_rows, w->attn_norm, NULL,
             lvr_wtype_quantised(w->q.type) || lvr_wtype_quantised(w->k.type) ||
                 lvr_wtype_quantised(w->v.type));
    const job heads = {.w = w, .layer = layer, .acts = acts_of(list, f->norm, s->d_model, &f->norm_q)};
    work_add_product(list, project_heads, (uint64_t)s->n_heads + 2 * (uint64_t)s->n_kv,
                     s->head_dim / LVR_GROUP, (uint64_t)s->head_dim * s->d_model * list->n_rows, &heads);
    add_attend(list, layer, lvr_wtype_quantised(w->o.type));
    add_residual(list, &w->o, w->o_bias, f->att);
}

static void add_ffn(work *list, const lvr_layer_weights *w)
{
    const lvr_forward *f = list->f;
    const lvr_model_shape *s = f->shape;
    add_norm(list, list->n_rows, w->ffn_norm, NULL,
             lvr_wtype_quantised(w->gate.type) || lvr_wtype_quantised(w->up.type));
    const job hidden = {.w = w,
                        .quantise = lvr_wtype_quantised(w->down.type),
                        .acts = acts_of(list, f->norm, s->d_model, &f->norm_q)};
    work_add_product(list, ffn_hidden, lvr_forward_blocks(s->d_ff), FFN_UNIT_GROUPS,
                     2 * (uint64_t)LVR_BLOCK * s->d_model * list->n_rows, &hidden);
    add_residual(list, &w->down, NULL, f->gate);
}

void lvr_forward_layer_on(lvr_forward *f, uint32_t layer, const uint8_t *base, const lvr_kernels *kernels,
                          lvr_pool *pool)
{
    if (f->n_rows == 0)
        return;
    lvr_layer_weights weights;
    lvr_model_layer(f->model, layer, base, &weights);
    for (uint32_t done = 0; done < f->n_rows; done += f->max_rows) {
        work w;
        work_init(&w, f, done, lvr_min_u32(f->n_rows - done, f->max_rows), kernels, pool);
        add_attention(&w, &weights, layer);
        add_ffn(&w, &weights);
        work_run(&w);
    }
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
    work_init(&w, f, 0, n, kernels, pool);
    add_norm(&w, n, f->model->out_norm, rows, lvr_wtype_quantised(head->type));
    job j = {.matrix = *head, .out = out, .out_stride = head->n_out};
    j.acts = acts_of(&w, f->norm, head->n_in, &f->norm_q);
    work_add_product(&w, project_groups, n_groups(head->n_out), 1, (uint64_t)LVR_GROUP * head->n_in * n, &j);
    work_run(&w);
}

void lvr_forward_heads_on(lvr_forward *f, const uint32_t *rows, uint32_t n, float *out,
                          const lvr_kernels *kernels, lvr_pool *pool)
{
    for (uint32_t done = 0; done < n; done += f->max_rows) {
        const uint32_t batch = (uint32_t)lvr_min_u64(n - done, f->max_rows);
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
