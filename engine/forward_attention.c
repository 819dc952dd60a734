/*
 * Attention of a layer. A unit is some query heads in some rows: the heads of one KV head's group go
 * together, since they read the same rows of the cache, and so do several rows of the pass, since they all
 * see the committed positions; what a row has beyond those (its ancestors in scratch, or a prompt's rows
 * before it) follows row by row. Each query sees its positions in ascending order (INV-ROW).
 */
#include "engine/forward_internal.h"

#include "common/minmax.h"

/* The planes of K or of V, and the sweep over them. */
typedef struct plane {
    const uint8_t *cache, *scratch;
    void (*sweep)(lvr_attention *a, uint32_t first, uint32_t n_queries, const uint8_t *rows, uint32_t n);
} plane;

/* Heads of one group in the rows of a unit. */
typedef struct group {
    const lvr_forward *f;
    worker_space *w;
    uint32_t layer, kv_head;
    uint32_t first_row, n_rows, n_heads;
} group;

lvr_attend_cut lvr_forward_cut_attention(const lvr_forward *f, uint32_t n_rows, uint32_t n_workers)
{
    const uint32_t n_heads = f->shape->n_heads, per_kv = n_heads / f->shape->n_kv;
    const uint32_t hd = f->shape->head_dim;
    uint32_t heads = lvr_min_u32(per_kv, LVR_ATTENTION_QUERIES);
    uint32_t rows = LVR_ATTENTION_QUERIES / heads;
    /* Results are quantised by whole blocks. Where no number of heads fills any, no product asks for it. */
    if (heads * hd % LVR_BLOCK != 0 && n_heads % 2 == 0)
        heads *= 2;
    rows = lvr_min_u32(rows, lvr_max_u32(n_rows, 1));
    while (n_workers > 1) {
        const uint64_t blocks = (n_heads + heads - 1) / heads, batches = (n_rows + rows - 1) / rows;
        if (blocks * batches >= 2 * (uint64_t)n_workers)
            break;
        if (rows > 1)
            rows = (rows + 1) / 2;
        else if (heads % 2 == 0 && heads / 2 * hd % LVR_BLOCK == 0)
            heads /= 2;
        else
            break;
    }
    return (lvr_attend_cut){.heads = heads, .rows = rows};
}

/* Positions that all rows of a unit see, in the cache. */
static uint32_t n_shared(const group *g)
{
    return g->f->prompt ? lvr_forward_position(g->f, g->first_row) + 1 : g->f->kv->n_cached;
}

/* The row's ancestors after the cache, itself last; returns how many. */
static uint32_t list_ancestors(const group *g, const lvr_fwd_row *row)
{
    const uint32_t n_cached = g->f->kv->n_cached;
    int32_t slot = (int32_t)row->slot;
    for (uint32_t p = row->position + 1; p-- > n_cached;) {
        g->w->slots[p - n_cached] = (uint32_t)slot;
        slot = g->f->slots[slot].parent;
    }
    return row->position + 1 - n_cached;
}

/* Slots that follow each other are swept together. */
static void sweep_scratch(const group *g, const plane *p, uint32_t first_query, const lvr_fwd_row *row)
{
    const lvr_kv *kv = g->f->kv;
    const uint32_t n = list_ancestors(g, row), *slots = g->w->slots;
    for (uint32_t i = 0; i < n;) {
        uint32_t run = 1;
        while (i + run < n && slots[i + run] == slots[i] + run)
            run++;
        const size_t at = lvr_kv_scratch_at(kv, g->layer, g->kv_head, slots[i]);
        p->sweep(&g->w->attention, first_query, g->n_heads, p->scratch + at, run);
        i += run;
    }
}

static void sweep(const group *g, const plane *p)
{
    const lvr_kv *kv = g->f->kv;
    const uint32_t shared = n_shared(g);
    lvr_attention *a = &g->w->attention;
    if (shared > 0)
        p->sweep(a, 0, g->n_rows * g->n_heads, p->cache + lvr_kv_cache_at(kv, g->layer, g->kv_head, 0),
                 shared);
    for (uint32_t r = 0; r < g->n_rows; r++) {
        if (!g->f->prompt)
            sweep_scratch(g, p, r * g->n_heads, &g->f->rows[g->first_row + r]);
        else if (r > 0)
            p->sweep(a, r * g->n_heads, g->n_heads,
                     p->cache + lvr_kv_cache_at(kv, g->layer, g->kv_head, shared), r);
    }
}

static void attend_group(const group *g, const lvr_kernels *kernels, const float *q, float *out)
{
    const lvr_forward *f = g->f;
    const lvr_kv *kv = f->kv;
    lvr_attention *a = &g->w->attention;
    const plane keys = {.cache = kv->k, .scratch = kv->sk, .sweep = lvr_attention_keys};
    const plane values = {.cache = kv->v, .scratch = kv->sv, .sweep = lvr_attention_values};
    lvr_attention_begin(a, kernels, kv->shape.type);
    for (size_t r = 0; r < g->n_rows; r++)
        lvr_attention_add_queries(a, q + r * f->q_dim, g->n_heads);
    sweep(g, &keys);
    lvr_attention_softmax(a);
    sweep(g, &values);
    for (uint32_t r = 0; r < g->n_rows; r++)
        lvr_attention_result(a, r * g->n_heads, g->n_heads, out + (size_t)r * f->q_dim);
}

void lvr_forward_attend(const lvr_forward *f, worker_space *w, const lvr_kernels *kernels, uint32_t layer,
                        const lvr_attend_unit *unit, const float *q, float *out)
{
    const uint32_t per_kv = f->shape->n_heads / f->shape->n_kv;
    for (uint32_t h = 0; h < unit->n_heads;) {
        const uint32_t head = unit->first_head + h, in_group = per_kv - head % per_kv;
        const group g = {.f = f,
                         .w = w,
                         .layer = layer,
                         .kv_head = head / per_kv,
                         .first_row = unit->first_row,
                         .n_rows = unit->n_rows,
                         .n_heads = lvr_min_u32(unit->n_heads - h, in_group)};
        attend_group(&g, kernels, q + (size_t)h * f->shape->head_dim, out + (size_t)h * f->shape->head_dim);
        h += g.n_heads;
    }
}
