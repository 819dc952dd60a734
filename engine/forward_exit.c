/*
 * Scoring rows between two layers (costmodel/core/exit.h), and going on with some of them. The early head is
 * the model's own output norm and head. Per parent row: the products with a slice of the head, which is
 * gathered once into a small matrix. Per query: the product with the group of outputs that holds the token,
 * since the packed layout interleaves the rows of a group.
 */
#include "engine/forward_internal.h"
#include "engine/phases.h"

#include "common/minmax.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ALIGN 64u
#define PHASES 4u

struct lvr_exit_space {
    lvr_matrix slice; /* rows of the head: tokens i * vocab / n */
    uint8_t *slice_data;
    float *logits;       /* [max_rows][slice.n_out] */
    lvr_exit_raw *stats; /* [max_rows]: of the slice alone */
    uint32_t *parents;   /* [max_rows]: rows that are asked about, in order of their first query */
    int32_t *place_of;   /* [max_rows]: a row's place among them, -1: not asked about */
};

typedef struct scoring {
    lvr_forward *f;
    const lvr_fwd_query *queries;
    lvr_exit_raw *ret;
    uint32_t n_parents;
    bool quantised;
    lvr_acts acts; /* of the parents */
} scoring;

static uint32_t slice_rows(uint32_t vocab)
{
    return lvr_min_u32(LVR_EXIT_SLICE_ROWS, vocab);
}

uint64_t lvr_forward_scores_bytes(const lvr_pack_tensor *head, uint32_t max_rows)
{
    const uint32_t n = slice_rows(head->n_out);
    const uint64_t per_row = n * sizeof(float) + sizeof(lvr_exit_raw) + sizeof(uint32_t) + sizeof(int32_t);
    return lvr_packed_bytes(head->type, n, head->n_in) + max_rows * per_row;
}

void lvr_forward_exit_free(lvr_exit_space *e)
{
    if (!e)
        return;
    free(e->slice_data);
    free(e->logits);
    free(e->stats);
    free(e->parents);
    free(e->place_of);
    free(e);
}

static void gather_slice(const lvr_matrix *head, lvr_exit_space *e)
{
    uint32_t tokens[LVR_EXIT_SLICE_ROWS];
    const uint32_t n = slice_rows(head->n_out);
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = (uint32_t)((uint64_t)i * head->n_out / n);
    lvr_pack_gather(head, tokens, n, e->slice_data);
    e->slice = (lvr_matrix){.type = head->type, .n_out = n, .n_in = head->n_in, .data = e->slice_data};
}

static lvr_status exit_space_new(const lvr_forward *f, lvr_exit_space **ret, lvr_error *err)
{
    const lvr_matrix *head = &f->model->head;
    const uint32_t n = slice_rows(head->n_out);
    const uint64_t bytes = lvr_packed_bytes(head->type, n, head->n_in);
    lvr_exit_space *e = calloc(1, sizeof *e);
    if (e) {
        e->slice_data = aligned_alloc(ALIGN, (bytes + ALIGN - 1) / ALIGN * ALIGN);
        e->logits = calloc((size_t)f->max_rows * n, sizeof *e->logits);
        e->stats = calloc(f->max_rows, sizeof *e->stats);
        e->parents = calloc(f->max_rows, sizeof *e->parents);
        e->place_of = calloc(f->max_rows, sizeof *e->place_of);
    }
    if (!e || !e->slice_data || !e->logits || !e->stats || !e->parents || !e->place_of) {
        lvr_forward_exit_free(e);
        return lvr_fail(err, LVR_ERR_NOMEM, "forward: out of memory for scoring rows");
    }
    gather_slice(head, e);
    *ret = e;
    return LVR_OK;
}

/* ---- phases ---- */

/* Units: parents. */
static void norm_parents(void *arg, uint64_t begin, uint64_t end, uint32_t worker)
{
    (void)worker;
    const scoring *s = arg;
    const lvr_forward *f = s->f;
    const size_t d = f->shape->d_model;
    for (uint64_t p = begin; p < end; p++) {
        f->kernels->rmsnorm(f->x + f->exit->parents[p] * d, f->model->out_norm, (uint32_t)d,
                            f->shape->rms_eps, f->norm + p * d);
        if (s->quantised)
            f->kernels->quantize_row(f->norm + p * d, (uint32_t)d, f->norm_q.q + p * d,
                                     f->norm_q.d + p * (d / LVR_BLOCK),
                                     f->norm_q.hsum + p * (d / LVR_BLOCK) * 2);
    }
}

/* Units: groups of the slice. */
static void multiply_slice(void *arg, uint64_t begin, uint64_t end, uint32_t worker)
{
    (void)worker;
    const scoring *s = arg;
    const lvr_exit_space *e = s->f->exit;
    lvr_kernels_matmul(s->f->kernels, e->slice.type)(&e->slice, &s->acts, (uint32_t)begin, (uint32_t)end,
                                                     e->logits, e->slice.n_out);
}

static lvr_exit_raw slice_stats(const lvr_kernels *k, const float *logits, uint32_t n)
{
    const float max = k->max(logits, n);
    double sum = 0.0, weighted = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        const float below = logits[i] - max;
        const double e = (double)lvr_expf(below);
        sum += e;
        weighted += e > 0.0 ? e * (double)below : 0.0; /* 0 times -infinity: nothing */
    }
    const double log_sum = log(sum);
    return (lvr_exit_raw){.slice_lse = (float)((double)max + log_sum),
                          .slice_max = max,
                          .slice_entropy = (float)(log_sum - weighted / sum)};
}

/* Units: parents. */
static void summarise_slice(void *arg, uint64_t begin, uint64_t end, uint32_t worker)
{
    (void)worker;
    const scoring *s = arg;
    const lvr_exit_space *e = s->f->exit;
    for (uint64_t p = begin; p < end; p++)
        e->stats[p] = slice_stats(s->f->kernels, e->logits + p * e->slice.n_out, e->slice.n_out);
}

static lvr_acts one_row(const lvr_acts *a, size_t row)
{
    const size_t blocks = a->n_in / LVR_BLOCK;
    return (lvr_acts){.n_rows = 1,
                      .n_in = a->n_in,
                      .x = a->x + row * a->n_in,
                      .q = a->q + row * a->n_in,
                      .d = a->d + row * blocks,
                      .hsum = a->hsum + row * blocks * 2};
}

/* The product of one output of the head with one parent. */
static float score(const scoring *s, uint32_t token, size_t parent)
{
    const lvr_matrix *head = &s->f->model->head;
    const uint32_t group = token / LVR_GROUP, lane = token % LVR_GROUP;
    const lvr_matrix part = {.type = head->type,
                             .n_out = lvr_min_u32(LVR_GROUP, head->n_out - group * LVR_GROUP),
                             .n_in = head->n_in,
                             .data =
                                 head->data + group * lvr_packed_bytes(head->type, LVR_GROUP, head->n_in)};
    const lvr_acts acts = one_row(&s->acts, parent);
    float out[LVR_GROUP];
    lvr_kernels_matmul(s->f->kernels, head->type)(&part, &acts, 0, 1, out, LVR_GROUP);
    return out[lane];
}

/* Units: queries. */
static void answer(void *arg, uint64_t begin, uint64_t end, uint32_t worker)
{
    (void)worker;
    const scoring *s = arg;
    const lvr_exit_space *e = s->f->exit;
    for (uint64_t i = begin; i < end; i++) {
        const size_t parent = (size_t)e->place_of[s->queries[i].row];
        s->ret[i] = e->stats[parent];
        s->ret[i].score = score(s, (uint32_t)s->queries[i].token, parent);
    }
}

static void set_phase(lvr_phase *p, lvr_range_fn body, scoring *s, uint64_t n_units)
{
    p->body = body;
    p->arg = s;
    p->n_units = n_units;
    p->chunk = 1;
    atomic_init(&p->next, 0);
    atomic_init(&p->done, 0);
}

/* ---- scores ---- */

static lvr_status check_queries(const lvr_forward *f, const lvr_fwd_query *queries, uint32_t n,
                                lvr_error *err)
{
    if (f->prompt)
        return lvr_fail(err, LVR_ERR_INVARIANT, "forward: rows of a prompt are not scored");
    for (uint32_t i = 0; i < n; i++) {
        if (queries[i].row >= f->n_rows)
            return lvr_fail(err, LVR_ERR_INVARIANT, "forward: row %u of %u is to be scored", queries[i].row,
                            f->n_rows);
        if (queries[i].token < 0 || (uint32_t)queries[i].token >= f->shape->vocab)
            return lvr_fail(err, LVR_ERR_INVARIANT, "forward: token %d is outside the vocabulary of %u",
                            queries[i].token, f->shape->vocab);
    }
    return LVR_OK;
}

static uint32_t list_parents(lvr_exit_space *e, const lvr_fwd_query *queries, uint32_t n, uint32_t n_rows)
{
    uint32_t n_parents = 0;
    for (uint32_t r = 0; r < n_rows; r++)
        e->place_of[r] = -1;
    for (uint32_t i = 0; i < n; i++) {
        int32_t *place = &e->place_of[queries[i].row];
        if (*place >= 0)
            continue;
        *place = (int32_t)n_parents;
        e->parents[n_parents++] = queries[i].row;
    }
    return n_parents;
}

lvr_status lvr_forward_scores(lvr_forward *f, const lvr_fwd_query *queries, uint32_t n, lvr_exit_raw *ret,
                              lvr_error *err)
{
    lvr_status status = check_queries(f, queries, n, err);
    if (status == LVR_OK && !f->exit)
        status = exit_space_new(f, &f->exit, err);
    if (status != LVR_OK || n == 0)
        return status;
    const lvr_matrix *head = &f->model->head;
    scoring s = {.f = f,
                 .queries = queries,
                 .ret = ret,
                 .n_parents = list_parents(f->exit, queries, n, f->n_rows),
                 .quantised = lvr_wtype_quantised(head->type)};
    s.acts = (lvr_acts){.n_rows = s.n_parents,
                        .n_in = head->n_in,
                        .x = f->norm,
                        .q = f->norm_q.q,
                        .d = f->norm_q.d,
                        .hsum = f->norm_q.hsum};
    lvr_phase phases[PHASES];
    set_phase(&phases[0], norm_parents, &s, s.n_parents);
    set_phase(&phases[1], multiply_slice, &s, (f->exit->slice.n_out + LVR_GROUP - 1) / LVR_GROUP);
    set_phase(&phases[2], summarise_slice, &s, s.n_parents);
    set_phase(&phases[3], answer, &s, n);
    const uint64_t outputs = (uint64_t)s.n_parents * f->exit->slice.n_out + (uint64_t)n * LVR_GROUP;
    lvr_phases_run(outputs * head->n_in < LVR_MIN_POOL_MACS ? NULL : f->pool, phases, PHASES);
    return LVR_OK;
}

/* ---- keeping ---- */

static lvr_status check_kept(const lvr_forward *f, const uint32_t *rows, uint32_t n, lvr_error *err)
{
    if (f->prompt)
        return lvr_fail(err, LVR_ERR_INVARIANT, "forward: rows of a prompt are not dropped");
    for (uint32_t i = 0; i < n; i++)
        if (rows[i] >= f->n_rows || (i > 0 && rows[i] <= rows[i - 1]))
            return lvr_fail(err, LVR_ERR_INVARIANT,
                            "forward: rows to keep: expected ascending ones below %u, found %u", f->n_rows,
                            rows[i]);
    return LVR_OK;
}

/* No kept row may hang from a dropped one. */
static lvr_status check_parents(const lvr_forward *f, const uint32_t *rows, uint32_t n, lvr_error *err)
{
    for (uint32_t r = 0, k = 0; r < f->n_rows; r++) {
        if (k < n && rows[k] == r) {
            k++;
            continue;
        }
        for (uint32_t i = 0; i < n; i++)
            if (f->rows[rows[i]].parent_slot == (int32_t)f->rows[r].slot)
                return lvr_fail(err, LVR_ERR_INVARIANT, "forward: row %u is kept, its parent row %u is not",
                                rows[i], r);
    }
    return LVR_OK;
}

lvr_status lvr_forward_keep(lvr_forward *f, const uint32_t *rows, uint32_t n, lvr_error *err)
{
    lvr_status status = check_kept(f, rows, n, err);
    if (status == LVR_OK)
        status = check_parents(f, rows, n, err);
    if (status != LVR_OK)
        return status;
    const size_t d = f->shape->d_model;
    for (uint32_t i = 0; i < n; i++) {
        if (rows[i] == i)
            continue;
        f->rows[i] = f->rows[rows[i]];
        memcpy(f->x + i * d, f->x + rows[i] * d, d * sizeof *f->x);
    }
    f->n_rows = n;
    return LVR_OK;
}
