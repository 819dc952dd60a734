/* The fork-join pool: its barriers order plain accesses, with fewer and with many more threads than cores. */
#include "common/threads.h"
#include "tests/tsan/tap.h"
#include <string.h>
#include <time.h>

#define N_ITEMS 5000u

typedef struct work {
    /* Plain on purpose: the pool's own barriers have to order these. */
    uint64_t per_worker[LVR_POOL_MAX_THREADS];
    uint64_t step;
    uint32_t hits[N_ITEMS];
} work;

static void add_step(void *arg, uint32_t worker, uint32_t n_workers)
{
    work *w = arg;
    if (worker < n_workers)
        w->per_worker[worker] += w->step;
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
    for (w->step = 1; w->step <= rounds; w->step++) {
        lvr_pool_run(pool, add_step, w);
        sum += w->step;
        for (uint32_t i = 0; i < lvr_pool_size(pool); i++)
            if (w->per_worker[i] != sum)
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
    memset(w->per_worker, 0, sizeof w->per_worker);
    w->step = 1;
    for (uint64_t r = 1; r <= 10; r++) {
        nanosleep(&pause, NULL);
        lvr_pool_run(pool, add_step, w);
        for (uint32_t i = 0; i < lvr_pool_size(pool); i++)
            if (w->per_worker[i] != r)
                return false;
    }
    return true;
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
    snprintf(what, sizeof what, "%u threads: every worker once per run", n_threads);
    tap_ok(runs_add_up(pool, &w, rounds), what);
    snprintf(what, sizeof what, "%u threads: every item once per loop", n_threads);
    tap_ok(ranges_add_up(pool, &w, 7, 20) && ranges_add_up(pool, &w, 1000, 20), what);
    snprintf(what, sizeof what, "%u threads: wakes after idling", n_threads);
    tap_ok(wakes_after_idling(pool, &w), what);
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
