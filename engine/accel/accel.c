/* What all back ends share: the list of them, graphs, tickets, delays. */
#include "engine/accel/accel.h"

#include "common/clock.h"
#include "common/param.h"
#include "engine/accel/back_end.h"
#include <stdlib.h>
#include <string.h>

#define BACK_END(name) &lvr_accel_##name,
#define CHOICE(name) #name,
#define OR_NAME(name) " or " #name

#define N_BACK_ENDS LVR_ACCEL_BACK_END_COUNT
static const lvr_accel_back_end *const back_ends[N_BACK_ENDS] = {LVR_ACCEL_BACK_ENDS(BACK_END)};
const char *const lvr_accel_choices[N_BACK_ENDS + 2] = {"none", LVR_ACCEL_BACK_ENDS(CHOICE) NULL};
const char *const lvr_accel_names = &LVR_ACCEL_BACK_ENDS(OR_NAME)[sizeof " or " - 1];

/* A matrix unit's tile holds 16 rows: 1 row costs what 16 do. */
static const uint32_t buckets[] = {16, 32, 64, 128, 256};
#define N_BUCKETS (sizeof buckets / sizeof buckets[0])
_Static_assert(N_BUCKETS <= LVR_NPU_MAX_BUCKETS, "a cost table holds all buckets");

static lvr_status find(const char *name, const lvr_accel_back_end **ret, lvr_error *err)
{
    const char *names[N_BACK_ENDS];
    for (size_t i = 0; i < N_BACK_ENDS; i++) {
        names[i] = back_ends[i]->name;
        if (strcmp(name, names[i]) != 0)
            continue;
        *ret = back_ends[i];
        return LVR_OK;
    }
    const char *near = lvr_closest_name(name, names, N_BACK_ENDS);
    return lvr_fail(err, LVR_ERR_CONFIG, "accelerator: expected %s, found '%s'%s%s%s", lvr_accel_names, name,
                    near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

lvr_status lvr_accel_open(const lvr_accel_config *config, lvr_accel **ret, lvr_error *err)
{
    const lvr_accel_back_end *back_end = NULL;
    lvr_status status = find(config->name, &back_end, err);
    if (status != LVR_OK)
        return status;
    if (config->launch_ns > LVR_ACCEL_MAX_DELAY_NS || config->sync_ns > LVR_ACCEL_MAX_DELAY_NS)
        return lvr_fail(err, LVR_ERR_CONFIG,
                        "accelerator delays of %llu and %llu ns: expected at most %llu ns (1 s) each",
                        (unsigned long long)config->launch_ns, (unsigned long long)config->sync_ns,
                        (unsigned long long)LVR_ACCEL_MAX_DELAY_NS);
    lvr_accel *a = aligned_alloc(alignof(lvr_accel), sizeof *a);
    if (!a)
        return lvr_fail(err, LVR_ERR_NOMEM, "out of memory for an accelerator");
    memset(a, 0, sizeof *a);
    a->back_end = back_end;
    a->config = *config;
    a->caps = (lvr_accel_caps){
        .name = back_end->name, .n_buckets = N_BUCKETS, .max_inflight = LVR_ACCEL_MAX_INFLIGHT};
    memcpy(a->caps.buckets, buckets, sizeof buckets);
    status = back_end->open(a, err);
    if (status != LVR_OK) {
        lvr_accel_close(a);
        return status;
    }
    a->config.name = back_end->name;
    *ret = a;
    return LVR_OK;
}

void lvr_accel_close(lvr_accel *a)
{
    if (!a)
        return;
    a->back_end->close(a);
    for (lvr_accel_graph *g = a->graphs; g;) {
        lvr_accel_graph *next = g->next;
        free(g);
        g = next;
    }
    free(a);
}

const lvr_accel_caps *lvr_accel_get_caps(const lvr_accel *a)
{
    return &a->caps;
}

uint64_t lvr_accel_build_ns(const lvr_accel *a)
{
    return a->build_ns;
}

/* ---- graphs ---- */

lvr_status lvr_accel_graph_get(lvr_accel *a, lvr_forward *f, uint32_t rows, const lvr_accel_graph **ret,
                               lvr_error *err)
{
    const uint32_t bucket = lvr_bucket_of(a->caps.buckets, a->caps.n_buckets, rows);
    for (const lvr_accel_graph *g = a->graphs; g; g = g->next) {
        if (g->forward != f || g->bucket != bucket)
            continue;
        *ret = g;
        return LVR_OK;
    }
    const uint64_t t0 = lvr_now_ns();
    lvr_accel_graph *g = malloc(sizeof *g);
    if (!g)
        return lvr_fail(err, LVR_ERR_NOMEM, "out of memory for an accelerator's graph of %u rows", bucket);
    *g = (lvr_accel_graph){.forward = f, .bucket = bucket, .next = a->graphs};
    a->graphs = g;
    a->build_ns += lvr_now_ns() - t0;
    *ret = g;
    return LVR_OK;
}

uint32_t lvr_accel_graph_bucket(const lvr_accel_graph *g)
{
    return g->bucket;
}

/* ---- tickets ---- */

void lvr_accel_run(lvr_accel *a, const lvr_accel_work *w, const lvr_kernels *kernels)
{
    lvr_accel_times t = {.submit_ns = w->submit_ns};
    if (a->config.launch_ns > 0)
        lvr_sleep_until_ns(w->submit_ns + a->config.launch_ns);
    t.start_ns = lvr_now_ns();
    if (w->graph && kernels)
        lvr_forward_layer_on(w->graph->forward, w->layer, w->base, kernels, NULL);
    else if (w->graph)
        lvr_forward_layer(w->graph->forward, w->layer, w->base);
    t.end_ns = lvr_now_ns();
    a->times[w->ticket % LVR_ACCEL_MAX_INFLIGHT] = t;
    /* Sequentially consistent, as the caller's sleep is (matrix.c). */
    atomic_store(&a->done_word, (uint32_t)w->ticket);
}

/* Tickets are done in order, so their number says which. At most max_inflight are open, so the low word does.
 */
static uint64_t count_done(lvr_accel *a)
{
    const uint32_t word = atomic_load_explicit(&a->done_word, memory_order_acquire);
    a->n_done += (uint32_t)(word - (uint32_t)a->n_done);
    return a->n_done;
}

lvr_status lvr_accel_submit(lvr_accel *a, const lvr_accel_graph *g, uint32_t layer, const uint8_t *base,
                            lvr_accel_ticket *ret, lvr_error *err)
{
    if (a->n_submitted - count_done(a) >= a->caps.max_inflight)
        return lvr_fail(err, LVR_ERR_INVARIANT, "accelerator %s: more than %u tickets at once", a->caps.name,
                        a->caps.max_inflight);
    const lvr_accel_work w = {
        .graph = g, .layer = layer, .base = base, .ticket = ++a->n_submitted, .submit_ns = lvr_now_ns()};
    a->back_end->submit(a, &w);
    *ret = w.ticket;
    return LVR_OK;
}

static bool is_done(lvr_accel *a, lvr_accel_ticket ticket, lvr_accel_times *ret)
{
    if (count_done(a) < ticket)
        return false;
    *ret = a->times[ticket % LVR_ACCEL_MAX_INFLIGHT];
    return true;
}

bool lvr_accel_poll(lvr_accel *a, lvr_accel_ticket ticket, lvr_accel_times *ret)
{
    lvr_accel_times t;
    if (!is_done(a, ticket, &t))
        return false;
    if (a->config.sync_ns > 0 && lvr_now_ns() < t.end_ns + a->config.sync_ns)
        return false;
    *ret = t;
    return true;
}

bool lvr_accel_wait(lvr_accel *a, lvr_accel_ticket ticket, uint64_t timeout_ns, lvr_accel_times *ret)
{
    const uint64_t now = lvr_now_ns();
    const uint64_t deadline = timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns;
    lvr_accel_times t;
    while (!is_done(a, ticket, &t)) {
        if (lvr_now_ns() >= deadline)
            return false;
        a->back_end->block(a, ticket, deadline);
    }
    const uint64_t seen = t.end_ns + a->config.sync_ns;
    if (a->config.sync_ns > 0)
        lvr_sleep_until_ns(seen < deadline ? seen : deadline);
    return lvr_accel_poll(a, ticket, ret);
}
