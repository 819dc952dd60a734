#include "traces/ring_use.h"

#include "common/minmax.h"
#include <inttypes.h>
#include <stdlib.h>

/* A streamed layer of one pass. */
typedef struct staged_layer {
    uint64_t round;
    uint32_t layer;
    uint64_t ready_ns, freed_ns;
} staged_layer;

/* Something that begins or ends. */
typedef struct edge {
    uint64_t t_ns;
    int8_t staged, reading, inside; /* what it adds to the number of layers staged, of reads in flight, of
                                       requests under way */
} edge;

typedef struct timeline {
    const char *path;
    lvr_rec_flash *reads;
    lvr_rec_kernel *kernels;
    lvr_rec_request *requests;
    uint64_t n_reads, n_kernels, n_requests;
    staged_layer *layers;
    size_t n_layers;
    edge *edges;
    size_t n_edges;
} timeline;

static void free_timeline(timeline *l)
{
    free(l->reads);
    free(l->kernels);
    free(l->requests);
    free(l->layers);
    free(l->edges);
}

static lvr_status load(lvr_trace *t, timeline *l, lvr_error *err)
{
    void *reads = NULL, *kernels = NULL, *requests = NULL;
    l->path = lvr_trace_path(t);
    lvr_status status = lvr_trace_read_all(t, LVR_STREAM_FLASH, &reads, &l->n_reads, err);
    if (status == LVR_OK)
        status = lvr_trace_read_all(t, LVR_STREAM_KERNELS, &kernels, &l->n_kernels, err);
    if (status == LVR_OK)
        status = lvr_trace_read_all(t, LVR_STREAM_REQUESTS, &requests, &l->n_requests, err);
    l->reads = reads;
    l->kernels = kernels;
    l->requests = requests;
    if (status != LVR_OK)
        return status;
    l->layers = calloc(l->n_reads + 1, sizeof l->layers[0]);
    /* Two for each read, layer and request, and two for a window that stands in for requests. */
    l->edges = calloc(2 * (2 * l->n_reads + l->n_requests + 1), sizeof l->edges[0]);
    if (!l->layers || !l->edges)
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory for %" PRIu64 " reads", l->path, l->n_reads);
    return LVR_OK;
}

/* ---- layers ---- */

static int by_round_layer(const void *a, const void *b)
{
    const lvr_rec_flash *x = a, *y = b;
    if (x->round != y->round)
        return x->round < y->round ? -1 : 1;
    if (x->layer != y->layer)
        return x->layer < y->layer ? -1 : 1;
    return x->t_end_ns < y->t_end_ns ? -1 : x->t_end_ns > y->t_end_ns;
}

static int layer_order(const void *a, const void *b)
{
    const staged_layer *x = a, *y = b;
    if (x->round != y->round)
        return x->round < y->round ? -1 : 1;
    return x->layer < y->layer ? -1 : x->layer > y->layer;
}

static staged_layer *find_layer(const timeline *l, uint64_t round, uint32_t layer)
{
    const staged_layer key = {.round = round, .layer = layer};
    return bsearch(&key, l->layers, l->n_layers, sizeof l->layers[0], layer_order);
}

/* What was read ahead and never used stays in the ring to the end. */
static void list_layers(timeline *l)
{
    qsort(l->reads, l->n_reads, sizeof l->reads[0], by_round_layer);
    for (uint64_t i = 0; i < l->n_reads; i++) {
        const lvr_rec_flash *r = &l->reads[i];
        if (i == 0 || r->round != r[-1].round || r->layer != r[-1].layer)
            l->layers[l->n_layers++] = (staged_layer){
                .round = r->round, .layer = r->layer, .freed_ns = r->round == UINT64_MAX ? UINT64_MAX : 0};
        l->layers[l->n_layers - 1].ready_ns = r->t_end_ns;
    }
    for (uint64_t i = 0; i < l->n_kernels; i++) {
        const lvr_rec_kernel *k = &l->kernels[i];
        staged_layer *s = k->op == LVR_OP_LAYER ? find_layer(l, k->round, k->layer) : NULL;
        if (s)
            s->freed_ns = k->t_end_ns;
    }
}

/* ---- over time ---- */

static void add_edges(timeline *l, uint64_t from_ns, uint64_t to_ns, edge begin)
{
    if (to_ns < from_ns)
        return; /* a layer whose operator was not recorded */
    begin.t_ns = from_ns;
    l->edges[l->n_edges++] = begin;
    l->edges[l->n_edges++] = (edge){.t_ns = to_ns,
                                    .staged = (int8_t)-begin.staged,
                                    .reading = (int8_t)-begin.reading,
                                    .inside = (int8_t)-begin.inside};
}

/* A recording that was cut short may hold no request: then all that was read or computed. */
static void add_requests(timeline *l)
{
    uint64_t first = UINT64_MAX, last = 0;
    for (uint64_t i = 0; i < l->n_requests; i++)
        add_edges(l, l->requests[i].t_arrival_ns, l->requests[i].t_done_ns, (edge){.inside = 1});
    for (uint64_t i = 0; i < l->n_reads; i++) {
        first = lvr_min_u64(first, l->reads[i].t_submit_ns);
        last = lvr_max_u64(last, l->reads[i].t_end_ns);
    }
    for (uint64_t i = 0; i < l->n_kernels; i++)
        last = lvr_max_u64(last, l->kernels[i].t_end_ns);
    if (l->n_requests == 0)
        add_edges(l, first, last, (edge){.inside = 1});
}

static int by_time(const void *a, const void *b)
{
    const edge *x = a, *y = b;
    return x->t_ns < y->t_ns ? -1 : x->t_ns > y->t_ns;
}

static void sweep(timeline *l, lvr_ring_use *u)
{
    int64_t staged = 0, reading = 0, inside = 0;
    qsort(l->edges, l->n_edges, sizeof l->edges[0], by_time);
    for (size_t i = 0; i < l->n_edges; i++) {
        const edge *e = &l->edges[i];
        const uint64_t span = i > 0 ? e->t_ns - e[-1].t_ns : 0;
        if (inside > 0 && span > 0) {
            const uint32_t n = staged > 0 ? lvr_min_u32((uint32_t)staged, LVR_MAX_RING_SLOTS) : 0;
            u->window_ns += span;
            u->staged_ns[n] += span;
            u->flash_idle_ns += reading == 0 ? span : 0;
            u->max_staged = lvr_max_u32(u->max_staged, n);
        }
        staged += e->staged;
        reading += e->reading;
        inside += e->inside;
    }
}

/* ---- waits ---- */

static int by_submission(const void *a, const void *b)
{
    const lvr_rec_kernel *x = a, *y = b;
    if (x->t_submit_ns != y->t_submit_ns)
        return x->t_submit_ns < y->t_submit_ns ? -1 : 1;
    return x->t_end_ns < y->t_end_ns ? -1 : x->t_end_ns > y->t_end_ns;
}

/* A pass begins with its embedding once layer 0 is there; other layers wait for themselves. */
static void count_waits(timeline *l, lvr_ring_use *u)
{
    uint64_t busy_until = UINT64_MAX; /* what the first operator waited for cannot be told */
    qsort(l->kernels, l->n_kernels, sizeof l->kernels[0], by_submission);
    for (uint64_t i = 0; i < l->n_kernels; i++) {
        const lvr_rec_kernel *k = &l->kernels[i];
        const staged_layer *s = NULL;
        if (k->op == LVR_OP_LAYER || k->op == LVR_OP_EMBED)
            s = find_layer(l, k->round, k->op == LVR_OP_EMBED ? 0 : k->layer);
        if (s && k->t_submit_ns > busy_until && s->ready_ns > busy_until) {
            u->wait_ns += k->t_submit_ns - busy_until;
            u->waits++;
        }
        busy_until = busy_until == UINT64_MAX ? k->t_end_ns : lvr_max_u64(busy_until, k->t_end_ns);
    }
}

lvr_status lvr_trace_ring_use(lvr_trace *t, lvr_ring_use *ret, lvr_error *err)
{
    timeline l = {0};
    lvr_ring_use u = {0};
    if (lvr_trace_rows(t, LVR_STREAM_FLASH) == 0) {
        *ret = u;
        return LVR_OK;
    }
    const lvr_status status = load(t, &l, err);
    if (status == LVR_OK) {
        list_layers(&l);
        for (uint64_t i = 0; i < l.n_reads; i++)
            add_edges(&l, l.reads[i].t_submit_ns, l.reads[i].t_end_ns, (edge){.reading = 1});
        for (size_t i = 0; i < l.n_layers; i++)
            add_edges(&l, l.layers[i].ready_ns, l.layers[i].freed_ns, (edge){.staged = 1});
        add_requests(&l);
        sweep(&l, &u);
        count_waits(&l, &u);
        *ret = u;
    }
    free_timeline(&l);
    return status;
}

double lvr_ring_use_mean(const lvr_ring_use *u)
{
    double sum = 0;
    for (uint32_t n = 0; n <= u->max_staged; n++)
        sum += (double)n * (double)u->staged_ns[n];
    return u->window_ns > 0 ? sum / (double)u->window_ns : 0;
}
