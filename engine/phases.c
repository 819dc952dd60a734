#include "engine/phases.h"

/* A claim takes this part of what is left, for each worker. */
#define CLAIMS_PER_WORKER 2u

typedef struct run {
    lvr_pool *pool;
    lvr_phase *phases;
    uint32_t n;
    lvr_gate n_done; /* phases done; the next one is being worked on */
} run;

static uint32_t skip_empty(const run *r, uint32_t i)
{
    while (i < r->n && r->phases[i].n_units == 0)
        i++;
    return i;
}

static uint64_t share_of(const lvr_phase *p, uint64_t left, uint32_t n_workers)
{
    const uint64_t share = left / ((uint64_t)n_workers * CLAIMS_PER_WORKER);
    const uint64_t n = share > p->chunk ? share : p->chunk;
    return n < left ? n : left;
}

/* The number of units claimed from *ret_begin on, 0 if none is left. */
static uint64_t claim(lvr_phase *p, uint32_t n_workers, uint64_t *ret_begin)
{
    uint64_t begin = atomic_load_explicit(&p->next, memory_order_relaxed), n;
    do {
        if (begin == p->n_units)
            return 0;
        n = share_of(p, p->n_units - begin, n_workers);
    } while (!atomic_compare_exchange_weak_explicit(&p->next, &begin, begin + n, memory_order_relaxed,
                                                    memory_order_relaxed));
    *ret_begin = begin;
    return n;
}

static void work_on(run *r, uint32_t i, uint32_t worker, uint32_t n_workers)
{
    lvr_phase *p = &r->phases[i];
    uint64_t begin, n;
    while ((n = claim(p, n_workers, &begin)) > 0) {
        p->body(p->arg, begin, begin + n, worker);
        if (atomic_fetch_add_explicit(&p->done, n, memory_order_acq_rel) + n < p->n_units)
            continue;
        const uint32_t next = skip_empty(r, i + 1);
        lvr_gate_set(&r->n_done, next);
        if (next < r->n)
            lvr_pool_recall(r->pool);
        return;
    }
}

/* Worker 0 stays until all is done. The others do not sleep here, where worker 0 would have to wait for them
 * at the end, but go back to the pool, which calls them when the phase is done. */
static bool wait_for_next(run *r, uint32_t i, uint32_t worker)
{
    const uint64_t spin_ns = lvr_pool_spin_ns(r->pool);
    if (worker != 0)
        return lvr_gate_spin(&r->n_done, i, spin_ns);
    lvr_gate_wait(&r->n_done, i, spin_ns);
    return true;
}

static void run_worker(void *arg, uint32_t worker, uint32_t n_workers)
{
    run *r = arg;
    uint32_t i;
    do {
        i = atomic_load_explicit(&r->n_done.value, memory_order_acquire);
        if (i == r->n)
            return;
        work_on(r, i, worker, n_workers);
    } while (wait_for_next(r, i, worker));
}

void lvr_phases_run(lvr_pool *pool, lvr_phase *phases, uint32_t n)
{
    if (pool && lvr_pool_size(pool) > 1) {
        run r = {.pool = pool, .phases = phases, .n = n};
        atomic_init(&r.n_done.value, skip_empty(&r, 0));
        lvr_pool_run(pool, run_worker, &r);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        if (phases[i].n_units > 0)
            phases[i].body(phases[i].arg, 0, phases[i].n_units, 0);
}
