#include "common/threads.h"

#include "common/clock.h"
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CACHE_LINE 64
#define SPIN_NS 20000
#define SPINS_PER_CLOCK_READ 32

typedef struct worker {
    lvr_pool *pool;
    uint32_t index;
    pthread_t thread;
} worker;

struct lvr_pool {
    uint32_t n_threads;
    uint64_t spin_ns;
    lvr_pool_fn fn;
    void *arg;
    bool stop;
    /* Bumped to start a run: releases fn, arg and stop to the workers. */
    alignas(CACHE_LINE) _Atomic uint32_t epoch;
    _Atomic uint32_t n_asleep;
    /* Workers still inside the run; 0 releases their writes to the caller. */
    alignas(CACHE_LINE) _Atomic uint32_t n_pending;
    _Atomic uint32_t caller_asleep;
    alignas(CACHE_LINE) worker workers[LVR_POOL_MAX_THREADS];
};

static void futex_wait(_Atomic uint32_t *word, uint32_t expected)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int n)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* True once *word differs from `value`; false when the time to spin is up. */
static bool spin_while_equal(_Atomic uint32_t *word, uint32_t value, uint64_t spin_ns)
{
    if (atomic_load_explicit(word, memory_order_acquire) != value)
        return true;
    if (spin_ns == 0)
        return false;
    const uint64_t start = lvr_now_ns();
    do {
        for (int i = 0; i < SPINS_PER_CLOCK_READ; i++) {
            if (atomic_load_explicit(word, memory_order_acquire) != value)
                return true;
            relax();
        }
    } while (lvr_now_ns() - start < spin_ns);
    return false;
}

/* Sleeper and waker each write their own word, then read the other's, both sequentially consistent: at least
 * one of them sees the other, so no wake-up is lost and none is paid for when nobody sleeps. */
static void wait_for_epoch(lvr_pool *pool, uint32_t seen)
{
    if (spin_while_equal(&pool->epoch, seen, pool->spin_ns))
        return;
    atomic_fetch_add(&pool->n_asleep, 1);
    while (atomic_load(&pool->epoch) == seen)
        futex_wait(&pool->epoch, seen);
    atomic_fetch_sub(&pool->n_asleep, 1);
}

static void start_epoch(lvr_pool *pool)
{
    atomic_fetch_add(&pool->epoch, 1);
    if (atomic_load(&pool->n_asleep) > 0)
        futex_wake(&pool->epoch, INT_MAX);
}

static bool spin_until_done(lvr_pool *pool)
{
    const uint64_t start = lvr_now_ns();
    uint32_t left = atomic_load_explicit(&pool->n_pending, memory_order_acquire);
    while (left != 0) {
        const uint64_t spent = lvr_now_ns() - start;
        if (spent >= pool->spin_ns)
            return false;
        spin_while_equal(&pool->n_pending, left, pool->spin_ns - spent);
        left = atomic_load_explicit(&pool->n_pending, memory_order_acquire);
    }
    return true;
}

static void wait_for_workers(lvr_pool *pool)
{
    if (spin_until_done(pool))
        return;
    atomic_store(&pool->caller_asleep, 1);
    uint32_t left;
    while ((left = atomic_load(&pool->n_pending)) != 0)
        futex_wait(&pool->n_pending, left);
    atomic_store(&pool->caller_asleep, 0);
}

static void finish_part(lvr_pool *pool)
{
    if (atomic_fetch_sub(&pool->n_pending, 1) == 1 && atomic_load(&pool->caller_asleep))
        futex_wake(&pool->n_pending, 1);
}

static void *worker_main(void *arg)
{
    const worker *self = arg;
    lvr_pool *pool = self->pool;
    pthread_setname_np(pthread_self(), "lvr-worker");
    for (uint32_t seen = 0;; seen++) {
        wait_for_epoch(pool, seen);
        if (pool->stop)
            return NULL;
        pool->fn(pool->arg, self->index, pool->n_threads);
        finish_part(pool);
    }
}

static void stop_workers(lvr_pool *pool, uint32_t n_started)
{
    pool->stop = true;
    start_epoch(pool);
    for (uint32_t i = 1; i < n_started; i++)
        pthread_join(pool->workers[i].thread, NULL);
}

/* Workers inherit a full signal mask: signals stay the business of the program's own threads. */
static lvr_status start_workers(lvr_pool *pool, lvr_error *err)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    uint32_t started = 1;
    int rc = 0;
    for (; started < pool->n_threads; started++) {
        worker *w = &pool->workers[started];
        *w = (worker){.pool = pool, .index = started};
        rc = pthread_create(&w->thread, NULL, worker_main, w);
        if (rc != 0)
            break;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc == 0)
        return LVR_OK;
    stop_workers(pool, started);
    return lvr_fail_errno(err, rc,
                          "threads: cannot start thread %u of %u; use fewer threads or raise ulimit -u",
                          started + 1, pool->n_threads);
}

/* Where threads outnumber the processors, spinning only keeps the awaited thread from running. */
static uint64_t choose_spin_ns(uint32_t n_threads)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 0;
    return n_threads <= (uint32_t)CPU_COUNT(&set) ? SPIN_NS : 0;
}

lvr_status lvr_pool_new(uint32_t n_threads, lvr_pool **ret_pool, lvr_error *err)
{
    if (n_threads < 1 || n_threads > LVR_POOL_MAX_THREADS)
        return lvr_fail(err, LVR_ERR_CONFIG, "threads: expected 1 to %d threads, found %u",
                        LVR_POOL_MAX_THREADS, n_threads);
    lvr_pool *pool = aligned_alloc(CACHE_LINE, sizeof *pool);
    if (!pool)
        return lvr_fail(err, LVR_ERR_NOMEM, "threads: out of memory for a pool of %u threads", n_threads);
    memset(pool, 0, sizeof *pool);
    pool->n_threads = n_threads;
    pool->spin_ns = choose_spin_ns(n_threads);
    const lvr_status status = start_workers(pool, err);
    if (status != LVR_OK) {
        free(pool);
        return status;
    }
    *ret_pool = pool;
    return LVR_OK;
}

void lvr_pool_free(lvr_pool *pool)
{
    if (!pool)
        return;
    stop_workers(pool, pool->n_threads);
    free(pool);
}

uint32_t lvr_pool_size(const lvr_pool *pool)
{
    return pool->n_threads;
}

void lvr_pool_run(lvr_pool *pool, lvr_pool_fn fn, void *arg)
{
    if (pool->n_threads == 1) {
        fn(arg, 0, 1);
        return;
    }
    pool->fn = fn;
    pool->arg = arg;
    atomic_store_explicit(&pool->n_pending, pool->n_threads - 1, memory_order_relaxed);
    start_epoch(pool);
    fn(arg, 0, pool->n_threads);
    wait_for_workers(pool);
}

typedef struct range_job {
    lvr_range_fn body;
    void *arg;
    uint64_t n_items, chunk;
    alignas(CACHE_LINE) _Atomic uint64_t next;
} range_job;

/* Compare-and-swap, not fetch-and-add: adding past n_items could wrap round for huge ranges. */
static bool claim(range_job *job, uint64_t *ret_begin, uint64_t *ret_end)
{
    uint64_t begin = atomic_load_explicit(&job->next, memory_order_relaxed);
    uint64_t end;
    do {
        if (begin >= job->n_items)
            return false;
        end = job->n_items - begin <= job->chunk ? job->n_items : begin + job->chunk;
    } while (!atomic_compare_exchange_weak_explicit(&job->next, &begin, end, memory_order_relaxed,
                                                    memory_order_relaxed));
    *ret_begin = begin;
    *ret_end = end;
    return true;
}

static void range_worker(void *arg, uint32_t index, uint32_t n_workers)
{
    (void)n_workers;
    range_job *job = arg;
    uint64_t begin, end;
    while (claim(job, &begin, &end))
        job->body(job->arg, begin, end, index);
}

void lvr_pool_for(lvr_pool *pool, uint64_t n_items, uint64_t chunk, lvr_range_fn body, void *arg)
{
    if (n_items == 0)
        return;
    range_job job = {.body = body, .arg = arg, .n_items = n_items, .chunk = chunk ? chunk : 1};
    /* One chunk is one worker's work: not worth waking the others. */
    if (n_items <= job.chunk)
        body(arg, 0, n_items, 0);
    else
        lvr_pool_run(pool, range_worker, &job);
}
