/* The fork-join pool: its barriers order plain accesses, with fewer and with many more threads than cores. */
#include "common/threads.h"
#include "tests/tsan/tap.h"
#include <string.h>
#include <time.h>

#define N_ITEMS 5000u

#define N_CLAIMS 200u

typedef struct work {
    /* Plain on purpose: the pool's own barriers have to order these. */
    uint64_t claimed[N_CLAIMS];
    uint64_t step; /* 0: no run is open */
    uint32_t hits[N_ITEMS];
    _Atomic uint32_t next, late;
} work;

static void add_step(void *arg, uint32_t worker, uint32_t n_workers)
{
    work *w = arg;
    if (worker >= n_workers || w->step == 0)
        w->late++;
    uint32_t i;
    while ((i = atomic_fetch_add(&w->next, 1)) < N_CLAIMS)
        w->claimed[i] += w->step;
}

static bool run_once(lvr_pool *pool, work *w, uint64_t step, uint64_t sum)
{
    w->step = step;
    w->next = 0;
    lvr_pool_run(pool, add_step, w);
    w->step = 0;
    for (uint32_t i = 0; i < N_CLAIMS; i++)
        if (w->claimed[i] != sum)
            return false;
    return w->late == 0;
}

static void hit_range(void *arg, uint64_t begin, uint64_t end, uint32_t worker)
{
    work *w = arg;
    (void)worker;
    for (uint64_t i = begin; i < end; i++)
        w->hits[i]++;
}

static bool runs_add_up(lvr_pool *pool, work *w, uint64_t rounds)
{
    uint64_t sum = 0;
    for (uint64_t step = 1; step <= rounds; step++) {
        sum += step;
        if (!run_once(pool, w, step, sum))
            return false;
    }
    return true;
}

static bool ranges_add_up(lvr_pool *pool, work *w, uint64_t chunk, uint32_t rounds)
{
    memset(w->hits, 0, sizeof w->hits);
    for (uint32_t r = 1; r <= rounds; r++) {
        lvr_pool_for(pool, N_ITEMS, chunk, hit_range, w);
        for (uint32_t i = 0; i < N_ITEMS; i++)
            if (w->hits[i] != r)
                return false;
    }
    return true;
}

/* Workers fall asleep on their futex between rounds. */
static bool wakes_after_idling(lvr_pool *pool, work *w)
{
    const struct timespec pause = {.tv_nsec = 2000000};
    memset(w->claimed, 0, sizeof w->claimed);
    for (uint64_t r = 1; r <= 10; r++) {
        nanosleep(&pause, NULL);
        if (!run_once(pool, w, 1, r))
            return false;
    }
    return true;
}

typedef struct recall {
    lvr_pool *pool;
    uint64_t plain; /* written by the workers, one at a time */
    lvr_gate calls;
} recall;

static void recall_four_times(void *arg, uint32_t worker, uint32_t n_workers)
{
    (void)n_workers;
    recall *r = arg;
    if (worker == 1) {
        r->plain++;
        lvr_gate_set(&r->calls, r->calls.value + 1);
    }
    for (uint32_t seen = 0; worker == 0 && seen < 4;) {
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
        lvr_pool_recall(r->pool);
        if (lvr_gate_spin(&r->calls, seen, 100000))
            seen++;
    }
}

static bool recalls(lvr_pool *pool)
{
    recall r = {.pool = pool};
    if (lvr_pool_size(pool) == 1)
        return true;
    lvr_pool_run(pool, recall_four_times, &r);
    return r.plain >= 4 && r.plain == r.calls.value;
}

static void check_pool(uint32_t n_threads, uint64_t rounds)
{
    lvr_pool *pool = NULL;
    lvr_error err = LVR_ERROR_INIT;
    char what[96];
    work w = {0};
    snprintf(what, sizeof what, "a pool of %u", n_threads);
    if (!tap_status(lvr_pool_new(n_threads, &pool, &err), &err, what))
        return;
    snprintf(what, sizeof what, "%u threads: every claim once per run", n_threads);
    tap_ok(runs_add_up(pool, &w, rounds), what);
    snprintf(what, sizeof what, "%u threads: every item once per loop", n_threads);
    tap_ok(ranges_add_up(pool, &w, 7, 20) && ranges_add_up(pool, &w, 1000, 20), what);
    snprintf(what, sizeof what, "%u threads: wakes after idling", n_threads);
    tap_ok(wakes_after_idling(pool, &w), what);
    snprintf(what, sizeof what, "%u threads: recalled within a run", n_threads);
    tap_ok(recalls(pool), what);
    lvr_pool_free(pool);
}

/* Freeing a pool while its workers are just about to sleep. */
static bool comes_and_goes(void)
{
    for (uint32_t i = 0; i < 100; i++) {
        lvr_pool *pool = NULL;
        work w = {.step = 1};
        if (lvr_pool_new(1 + i % 8, &pool, NULL) != LVR_OK)
            return false;
        if (i % 2)
            lvr_pool_run(pool, add_step, &w);
        lvr_pool_free(pool);
    }
    return true;
}

int main(void)
{
    check_pool(1, 100);
    check_pool(2, 1000);
    check_pool(8, 200);
    check_pool(LVR_POOL_MAX_THREADS, 20);
    tap_ok(comes_and_goes(), "pools made and freed in quick succession");
    return tap_done();
}
