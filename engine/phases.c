#include "engine/phases.h"

#include <sched.h>
#include <stdbool.h>

/* A few microseconds: longer than a chunk takes, unless its worker was put aside and needs the processor. */
#define SPINS_BEFORE_YIELD 256u

typedef struct run {
    lvr_phase *phases;
    uint32_t n;
} run;

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static bool is_done(lvr_phase *p)
{
    return atomic_load_explicit(&p->done, memory_order_acquire) == p->n_units;
}

static void wait_until_done(lvr_phase *p)
{
    for (uint32_t spins = 0; !is_done(p); spins++) {
        if (spins < SPINS_BEFORE_YIELD)
            relax();
        else
            sched_yield();
    }
}

/* `next` passes n_units by at most a chunk per worker. */
static void work_on(lvr_phase *p, uint32_t worker)
{
    uint64_t begin;
    while ((begin = atomic_fetch_add_explicit(&p->next, p->chunk, memory_order_relaxed)) < p->n_units) {
        const uint64_t left = p->n_units - begin;
        const uint64_t n = left < p->chunk ? left : p->chunk;
        p->body(p->arg, begin, begin + n, worker);
        atomic_fetch_add_explicit(&p->done, n, memory_order_release);
    }
}

static void run_worker(void *arg, uint32_t worker, uint32_t n_workers)
{
    (void)n_workers;
    const run *r = arg;
    for (uint32_t i = 0; i < r->n; i++) {
        work_on(&r->phases[i], worker);
        wait_until_done(&r->phases[i]);
    }
}

void lvr_phases_run(lvr_pool *pool, lvr_phase *phases, uint32_t n)
{
    if (pool && lvr_pool_size(pool) > 1) {
        run r = {.phases = phases, .n = n};
        lvr_pool_run(pool, run_worker, &r);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        if (phases[i].n_units > 0)
            phases[i].body(phases[i].arg, 0, phases[i].n_units, 0);
}
