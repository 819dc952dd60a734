#include "common/clock.h"
#include "common/threads.h"
#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

static lvr_pool *new_pool(uint32_t n)
{
    lvr_pool *pool = NULL;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_pool_new(n, &pool, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_pool_size(pool), n);
    return pool;
}

typedef struct visit {
    /* Plain, not atomic: the pool's own barriers must order the accesses, and the sanitizer checks that. */
    uint64_t per_worker[LVR_POOL_MAX_THREADS];
    uint64_t round;
    pthread_t caller;
} visit;

static void count_visit(void *arg, uint32_t worker, uint32_t n_workers)
{
    visit *v = arg;
    if (worker < n_workers)
        v->per_worker[worker] += v->round;
    if (worker == 0)
        v->caller = pthread_self();
}

static void check_pool(uint32_t n_threads, uint64_t rounds)
{
    lvr_pool *pool = new_pool(n_threads);
    visit v = {0};
    uint64_t sum = 0;
    for (v.round = 1; v.round <= rounds; v.round++) {
        lvr_pool_run(pool, count_visit, &v);
        sum += v.round;
        for (uint32_t w = 0; w < n_threads; w++)
            cr_assert_eq(v.per_worker[w], sum);
    }
    cr_assert(pthread_equal(v.caller, pthread_self()));
    lvr_pool_free(pool);
}

Test(pool, every_worker_runs_once_per_round)
{
    for (uint32_t n = 1; n <= 8; n++)
        check_pool(n, 2000);
}

Test(pool, oversubscription_does_not_collapse, .timeout = 60)
{
    const uint64_t start = lvr_now_ns();
    check_pool(LVR_POOL_MAX_THREADS, 300);
    cr_assert_lt(lvr_now_ns() - start, UINT64_C(30000000000));
}

Test(pool, refuses_bad_sizes)
{
    lvr_pool *pool = NULL;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_pool_new(0, &pool, &err), LVR_ERR_CONFIG);
    cr_assert_eq(lvr_pool_new(65, &pool, &err), LVR_ERR_CONFIG);
    cr_assert_str_eq(err.msg, "threads: expected 1 to 64 threads, found 65");
    cr_assert_null(pool);
    lvr_pool_free(NULL);
}

Test(pool, may_be_freed_without_a_run)
{
    for (int i = 0; i < 50; i++)
        lvr_pool_free(new_pool(4));
}

typedef struct range_check {
    uint8_t seen[10007];
    _Atomic uint64_t items;
    _Atomic bool bad;
    uint64_t chunk;
    uint32_t n_threads;
} range_check;

static void mark_range(void *arg, uint64_t begin, uint64_t end, uint32_t worker)
{
    range_check *r = arg;
    if (worker >= r->n_threads || end <= begin || end - begin > r->chunk)
        r->bad = true;
    for (uint64_t i = begin; i < end; i++)
        r->seen[i]++;
    r->items += end - begin;
}

Test(pool, for_covers_every_item_once)
{
    const uint64_t counts[] = {0, 1, 7, 1000, 10007};
    const uint64_t chunks[] = {1, 3, 64, 20000};
    static range_check r;
    for (uint32_t n = 1; n <= 8; n++) {
        lvr_pool *pool = new_pool(n);
        for (size_t c = 0; c < 20; c++) {
            const uint64_t n_items = counts[c % 5];
            memset(&r, 0, sizeof r);
            r.chunk = chunks[c / 5];
            r.n_threads = n;
            lvr_pool_for(pool, n_items, r.chunk, mark_range, &r);
            cr_assert(!r.bad);
            cr_assert_eq(r.items, n_items);
            for (uint64_t i = 0; i < 10007; i++)
                cr_assert_eq(r.seen[i], i < n_items);
        }
        lvr_pool_free(pool);
    }
}

static void add_range(void *arg, uint64_t begin, uint64_t end, uint32_t worker)
{
    (void)worker;
    atomic_fetch_add((_Atomic uint64_t *)arg, end - begin);
}

Test(pool, for_does_not_wrap_at_the_end_of_the_range)
{
    lvr_pool *pool = new_pool(3);
    _Atomic uint64_t total = 0;
    lvr_pool_for(pool, UINT64_MAX, UINT64_MAX / 2 - 1, add_range, &total);
    cr_assert_eq(total, UINT64_MAX);
    total = 0;
    lvr_pool_for(pool, 10, 0, add_range, &total);
    cr_assert_eq(total, 10);
    lvr_pool_free(pool);
}

static uint64_t process_cpu_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void sleep_in_worker_one(void *arg, uint32_t worker, uint32_t n_workers)
{
    (void)arg;
    (void)n_workers;
    if (worker == 1)
        nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
}

Test(pool, neither_idling_nor_waiting_burns_cpu)
{
    lvr_pool *pool = new_pool(2);
    lvr_pool_run(pool, sleep_in_worker_one, NULL);
    const uint64_t before = process_cpu_ns();
    nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    lvr_pool_run(pool, sleep_in_worker_one, NULL);
    cr_assert_lt(process_cpu_ns() - before, UINT64_C(40000000));
    lvr_pool_free(pool);
}

static void read_mask(void *arg, uint32_t worker, uint32_t n_workers)
{
    (void)n_workers;
    sigset_t set;
    pthread_sigmask(SIG_SETMASK, NULL, &set);
    if (worker == 1)
        *(int *)arg = sigismember(&set, SIGINT);
}

Test(pool, workers_leave_signals_to_the_program)
{
    lvr_pool *pool = new_pool(2);
    int blocked = -1;
    lvr_pool_run(pool, read_mask, &blocked);
    cr_assert_eq(blocked, 1);
    sigset_t set;
    pthread_sigmask(SIG_SETMASK, NULL, &set);
    cr_assert_eq(sigismember(&set, SIGINT), 0);
    lvr_pool_free(pool);
}

Test(clock, sleeps_until_the_deadline)
{
    const uint64_t start = lvr_now_ns();
    lvr_sleep_until_ns(start + 5000000);
    const uint64_t end = lvr_now_ns();
    cr_assert_geq(end, start + 5000000);
    cr_assert_lt(end, start + 500000000);
    lvr_sleep_until_ns(start);
    cr_assert_gt(lvr_realtime_ns(), UINT64_C(1600000000000000000));
    cr_assert_gt(lvr_boottime_ns(), 0);
}
