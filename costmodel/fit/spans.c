#include "costmodel/fit/spans.h"

#include <inttypes.h>
#include <stdlib.h>

/* When the slices of one layer of one pass were asked for, and when the last of them was there. */
typedef struct arrival {
    uint64_t round, submit_ns, ready_ns;
    uint32_t layer;
} arrival;

/* What an operator takes of the host's time. */
typedef struct host_time {
    const lvr_rec_kernel *k;
    uint64_t begin_ns, end_ns;
    bool hidden;
} host_time;

typedef struct recording {
    lvr_rec_kernel *kernels;
    lvr_rec_flash *flash;
    lvr_rec_round *rounds;
    lvr_rec_request *requests;
    uint64_t n_kernels, n_flash, n_rounds, n_requests;
    arrival *arrivals;
    size_t n_arrivals;
    host_time *line; /* [n_kernels] */
} recording;

static int by_start(const void *a, const void *b)
{
    const lvr_rec_kernel *x = a, *y = b;
    if (x->t_start_ns != y->t_start_ns)
        return x->t_start_ns < y->t_start_ns ? -1 : 1;
    return x->t_end_ns < y->t_end_ns ? -1 : x->t_end_ns > y->t_end_ns;
}

static int by_round_layer(const void *a, const void *b)
{
    const lvr_rec_flash *x = a, *y = b;
    if (x->round != y->round)
        return x->round < y->round ? -1 : 1;
    return x->layer < y->layer ? -1 : x->layer > y->layer;
}

static int by_round(const void *a, const void *b)
{
    const lvr_rec_round *x = a, *y = b;
    return x->round < y->round ? -1 : x->round > y->round;
}

static int by_id(const void *a, const void *b)
{
    const lvr_rec_request *x = a, *y = b;
    return x->id < y->id ? -1 : x->id > y->id;
}

static int arrival_order(const void *a, const void *b)
{
    const arrival *x = a, *y = b;
    if (x->round != y->round)
        return x->round < y->round ? -1 : 1;
    return x->layer < y->layer ? -1 : x->layer > y->layer;
}

static lvr_status gather_arrivals(recording *r, lvr_error *err)
{
    r->arrivals = calloc(r->n_flash ? r->n_flash : 1, sizeof(*r->arrivals));
    if (!r->arrivals)
        return lvr_fail(err, LVR_ERR_NOMEM, "out of memory for %" PRIu64 " reads", r->n_flash);
    for (uint64_t i = 0; i < r->n_flash; i++) {
        const lvr_rec_flash *f = &r->flash[i];
        arrival *last = r->n_arrivals ? &r->arrivals[r->n_arrivals - 1] : NULL;
        if (!last || last->round != f->round || last->layer != f->layer) {
            last = &r->arrivals[r->n_arrivals++];
            *last = (arrival){.round = f->round, .layer = f->layer, .submit_ns = f->t_submit_ns};
        }
        last->submit_ns = f->t_submit_ns < last->submit_ns ? f->t_submit_ns : last->submit_ns;
        last->ready_ns = f->t_end_ns > last->ready_ns ? f->t_end_ns : last->ready_ns;
    }
    return LVR_OK;
}

static lvr_status read_stream(lvr_trace *t, lvr_stream stream, void **ret, uint64_t *ret_n, lvr_error *err)
{
    return lvr_trace_read_all(t, stream, ret, ret_n, err);
}

static lvr_status load(lvr_trace *t, recording *r, lvr_error *err)
{
    void *kernels = NULL, *flash = NULL, *rounds = NULL, *requests = NULL;
    lvr_status st = read_stream(t, LVR_STREAM_KERNELS, &kernels, &r->n_kernels, err);
    r->kernels = kernels;
    if (!st)
        st = read_stream(t, LVR_STREAM_FLASH, &flash, &r->n_flash, err);
    r->flash = flash;
    if (!st)
        st = read_stream(t, LVR_STREAM_ROUNDS, &rounds, &r->n_rounds, err);
    r->rounds = rounds;
    if (!st)
        st = read_stream(t, LVR_STREAM_REQUESTS, &requests, &r->n_requests, err);
    r->requests = requests;
    if (st)
        return st;
    if (r->n_kernels == 0 || r->n_rounds == 0)
        return lvr_fail(err, LVR_ERR_FORMAT,
                        "%s: no operators or no rounds were recorded; record again with lever record",
                        lvr_trace_path(t));
    qsort(r->kernels, r->n_kernels, sizeof(*r->kernels), by_start);
    qsort(r->flash, r->n_flash, sizeof(*r->flash), by_round_layer);
    qsort(r->rounds, r->n_rounds, sizeof(*r->rounds), by_round);
    qsort(r->requests, r->n_requests, sizeof(*r->requests), by_id);
    return gather_arrivals(r, err);
}

static void unload(recording *r)
{
    free(r->kernels);
    free(r->flash);
    free(r->rounds);
    free(r->requests);
    free(r->arrivals);
    free(r->line);
}

static const lvr_rec_round *round_of(const recording *r, uint64_t round)
{
    const lvr_rec_round key = {.round = round};
    return bsearch(&key, r->rounds, r->n_rounds, sizeof(*r->rounds), by_round);
}

/* The slices that an operator waited for, NULL if it needs none. A pass waits for its first layer before it
 * looks up its embeddings. */
static const arrival *arrival_of(const recording *r, const lvr_rec_kernel *k)
{
    if (k->op != LVR_OP_LAYER && k->op != LVR_OP_EMBED)
        return NULL;
    const arrival key = {.round = k->round, .layer = k->op == LVR_OP_LAYER ? k->layer : 0};
    return bsearch(&key, r->arrivals, r->n_arrivals, sizeof(*r->arrivals), arrival_order);
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void cover(host_time *h, const lvr_rec_kernel *cpu)
{
    if (cpu->t_end_ns <= h->begin_ns || cpu->t_start_ns >= h->end_ns)
        return;
    h->hidden = true;
    h->begin_ns = cpu->t_end_ns;
    h->end_ns = later(h->end_ns, h->begin_ns);
}

/* Operators on the CPU do not overlap, so the search ends at the first one that is over before the ticket was
 * submitted, or starts after its end. */
static host_time ticket_time(const recording *r, uint64_t i)
{
    const lvr_rec_kernel *k = &r->kernels[i];
    host_time h = {.k = k, .begin_ns = k->t_submit_ns, .end_ns = k->t_end_ns};
    uint64_t first = i;
    while (first > 0 &&
           (r->kernels[first - 1].unit == LVR_UNIT_NPU || r->kernels[first - 1].t_end_ns > k->t_submit_ns))
        first--;
    for (uint64_t c = first; c < r->n_kernels && r->kernels[c].t_start_ns < k->t_end_ns; c++)
        if (r->kernels[c].unit == LVR_UNIT_CPU)
            cover(&h, &r->kernels[c]);
    return h;
}

static int by_begin(const void *a, const void *b)
{
    const host_time *x = a, *y = b;
    if (x->begin_ns != y->begin_ns)
        return x->begin_ns < y->begin_ns ? -1 : 1;
    if (x->end_ns != y->end_ns)
        return x->end_ns < y->end_ns ? -1 : 1;
    return x->k < y->k ? -1 : x->k > y->k;
}

static lvr_status lay_out_line(recording *r, lvr_error *err)
{
    r->line = calloc(r->n_kernels, sizeof(*r->line));
    if (!r->line)
        return lvr_fail(err, LVR_ERR_NOMEM, "out of memory for %" PRIu64 " operators", r->n_kernels);
    for (uint64_t i = 0; i < r->n_kernels; i++) {
        const lvr_rec_kernel *k = &r->kernels[i];
        r->line[i] = k->unit == LVR_UNIT_NPU
                         ? ticket_time(r, i)
                         : (host_time){.k = k, .begin_ns = k->t_start_ns, .end_ns = k->t_end_ns};
    }
    qsort(r->line, r->n_kernels, sizeof(*r->line), by_begin);
    return LVR_OK;
}

/* Shares the time between two operators out. */
static void share_gap(const recording *r, const host_time *ha, const host_time *hb, lvr_span *a, lvr_span *b)
{
    if (hb->begin_ns <= ha->end_ns)
        return;
    const arrival *slices = arrival_of(r, hb->k);
    if (!slices || slices->ready_ns <= ha->end_ns) {
        a->host_ns += hb->begin_ns - ha->end_ns;
        return;
    }
    const uint64_t ready = earlier(slices->ready_ns, hb->begin_ns);
    const uint64_t asked = earlier(later(slices->submit_ns, ha->end_ns), ready);
    a->host_ns += asked - ha->end_ns;
    b->wait_ns += hb->begin_ns - asked;
    b->wake_ns += hb->begin_ns - ready;
}

/* A request's first operator may wait for slices too. What the host did since the request came is nobody's:
 * it happens once a request and would weigh on whatever operator comes first. */
static void first_wait(const recording *r, const host_time *h, lvr_span *s)
{
    const lvr_rec_request key = {.id = s->request};
    const lvr_rec_request *request = bsearch(&key, r->requests, r->n_requests, sizeof(*r->requests), by_id);
    const arrival *slices = arrival_of(r, h->k);
    if (!request || !slices || slices->ready_ns <= request->t_arrival_ns)
        return;
    const uint64_t ready = earlier(slices->ready_ns, h->begin_ns);
    const uint64_t asked = earlier(later(slices->submit_ns, request->t_arrival_ns), ready);
    s->wait_ns = h->begin_ns - asked;
    s->wake_ns = h->begin_ns - ready;
}

/* Accelerators run layers and draft steps only. */
static lvr_status check_kernel(lvr_trace *t, const recording *r, uint64_t i, lvr_error *err)
{
    const lvr_rec_kernel *k = &r->kernels[i];
    const bool placeable = k->op == LVR_OP_LAYER || k->op == LVR_OP_DRAFT;
    const bool unit_ok = k->unit == LVR_UNIT_CPU || (k->unit == LVR_UNIT_NPU && placeable && k->bucket > 0 &&
                                                     k->t_start_ns >= k->t_submit_ns);
    if (k->op < LVR_OP_COUNT && unit_ok && k->rows > 0 && k->t_end_ns >= k->t_start_ns)
        return LVR_OK;
    return lvr_fail(err, LVR_ERR_FORMAT,
                    "%s: /kernels row %" PRIu64 " has op %u, unit %u, %u rows, start %" PRIu64
                    " ns, end %" PRIu64
                    " ns; expected an operator known to this version on the CPU, or a layer "
                    "or draft step on an accelerator, that ends after its start (lever trace validate checks "
                    "the whole trace)",
                    lvr_trace_path(t), i, k->op, k->unit, k->rows, k->t_start_ns, k->t_end_ns);
}

static lvr_span span_of(const host_time *h, const lvr_rec_round *round)
{
    const lvr_rec_kernel *k = h->k;
    lvr_span s = {.round = k->round,
                  .request = round->request,
                  .op = (lvr_op)k->op,
                  .rows = k->rows,
                  .context = k->context,
                  .layer = k->layer,
                  .prefill = round->prefill != 0,
                  .unit = (lvr_unit)k->unit,
                  .bucket = k->bucket,
                  .start_ns = h->begin_ns,
                  .kernel_ns = h->end_ns - h->begin_ns,
                  .hidden = h->hidden};
    if (k->unit == LVR_UNIT_NPU) {
        s.launch_ns = k->t_start_ns - k->t_submit_ns;
        s.run_ns = k->t_end_ns - k->t_start_ns;
    }
    return s;
}

lvr_status lvr_spans_read(lvr_trace *t, lvr_span **ret, size_t *ret_n, lvr_error *err)
{
    recording r = {0};
    lvr_span *spans = NULL;
    size_t n = 0;
    const host_time *before = NULL;
    lvr_status st = load(t, &r, err);
    for (uint64_t i = 0; i < r.n_kernels && !st; i++)
        st = check_kernel(t, &r, i, err);
    if (!st)
        st = lay_out_line(&r, err);
    if (st)
        goto out;
    spans = calloc(r.n_kernels, sizeof(*spans));
    if (!spans) {
        st = lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory for %" PRIu64 " operators", lvr_trace_path(t),
                      r.n_kernels);
        goto out;
    }
    for (uint64_t i = 0; i < r.n_kernels; i++) {
        const host_time *h = &r.line[i];
        const lvr_rec_round *round = round_of(&r, h->k->round);
        if (!round)
            continue; /* of a pass that was cut off: its time line is not whole */
        spans[n] = span_of(h, round);
        if (n > 0 && spans[n - 1].request == spans[n].request)
            share_gap(&r, before, h, &spans[n - 1], &spans[n]);
        else
            first_wait(&r, h, &spans[n]);
        before = h;
        n++;
    }
    *ret = spans;
    *ret_n = n;
    spans = NULL;
out:
    free(spans);
    unload(&r);
    return st;
}
