#include "common/threads.h"

#include "common/clock.h"
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CACHE_LINE 64
#define SPIN_NS 20000
#define SPINS_PER_CLOCK_READ 32

/*
 * pool->state: bits 0-5 count the workers inside the run, OPEN lets more in, STOP ends them all; the rest is
 * the epoch, which moves on whenever there is work for workers outside: at the start of a run and at a
 * recall. A worker enters by adding 1 to a state it has seen open, and compare-and-swap makes sure that the
 * run is still the same and still open. The epoch may wrap while a worker is away: it then misses that run,
 * which needs none.
 */
#define INSIDE_MASK 0x3fu
#define OPEN 0x40u
#define STOP 0x80u
#define EPOCH_ONE 0x100u
#define EPOCH_MASK (~(EPOCH_ONE - 1))
/* Soon to wrap, so that every longer use tries that out. */
#define FIRST_EPOCH (0u - 1000u * EPOCH_ONE)

typedef struct worker {
    lvr_pool *pool;
    uint32_t index;
    pthread_t thread;
} worker;

struct lvr_pool {
    uint32_t n_threads;
    uint64_t spin_ns;
    /* Of the open run: written while nobody is inside. */
    lvr_pool_fn fn;
    void *arg;
    alignas(CACHE_LINE) _Atomic uint32_t state;
    _Atomic uint32_t n_asleep; /* workers */
    alignas(CACHE_LINE) _Atomic uint32_t caller_asleep;
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

/* ---- gates ----
 *
 * Sleeper and waker each write their own word, then read the other's, both sequentially consistent: at least
 * one of them sees the other, so no wake-up is lost and none is paid for when nobody sleeps.
 */

void lvr_gate_set(lvr_gate *gate, uint32_t value)
{
    atomic_store(&gate->value, value);
    if (atomic_load(&gate->n_asleep) > 0)
        futex_wake(&gate->value, INT_MAX);
}

bool lvr_gate_spin(const lvr_gate *gate, uint32_t seen, uint64_t spin_ns)
{
    if (atomic_load_explicit(&gate->value, memory_order_acquire) != seen)
        return true;
    if (spin_ns == 0)
        return false;
    const uint64_t start = lvr_now_ns();
    do {
        for (int i = 0; i < SPINS_PER_CLOCK_READ; i++) {
            relax();
            if (atomic_load_explicit(&gate->value, memory_order_acquire) != seen)
                return true;
        }
    } while (lvr_now_ns() - start < spin_ns);
    return false;
}

void lvr_gate_wait(lvr_gate *gate, uint32_t seen, uint64_t spin_ns)
{
    if (lvr_gate_spin(gate, seen, spin_ns))
        return;
    atomic_fetch_add(&gate->n_asleep, 1);
    while (atomic_load(&gate->value) == seen)
        futex_wait(&gate->value, seen);
    atomic_fetch_sub(&gate->n_asleep, 1);
}

/* ---- workers ---- */

static bool calls_for(uint32_t state, uint32_t seen)
{
    return (state & STOP) || ((state & OPEN) && ((state ^ seen) & EPOCH_MASK));
}

static bool spin_for_call(lvr_pool *pool, uint32_t seen, uint32_t *ret)
{
    const uint64_t start = pool->spin_ns ? lvr_now_ns() : 0;
    do {
        for (int i = 0; i < SPINS_PER_CLOCK_READ; i++) {
            const uint32_t state = atomic_load_explicit(&pool->state, memory_order_acquire);
            if (calls_for(state, seen)) {
                *ret = state;
                return true;
            }
            relax();
        }
    } while (pool->spin_ns && lvr_now_ns() - start < pool->spin_ns);
    return false;
}

/* The state of a run that the worker has not been in, or with STOP. Asleep, it is woken by call_workers: as
 * with gates, one of them sees the other. */
static uint32_t wait_for_call(lvr_pool *pool, uint32_t seen)
{
    uint32_t state;
    if (spin_for_call(pool, seen, &state))
        return state;
    atomic_fetch_add(&pool->n_asleep, 1);
    while (!calls_for(state = atomic_load(&pool->state), seen))
        futex_wait(&pool->state, state);
    atomic_fetch_sub(&pool->n_asleep, 1);
    return state;
}

static void call_sleepers(lvr_pool *pool)
{
    if (atomic_load(&pool->n_asleep) > 0)
        futex_wake(&pool->state, INT_MAX);
}

static bool enter(lvr_pool *pool, uint32_t state)
{
    return atomic_compare_exchange_strong_explicit(&pool->state, &state, state + 1, memory_order_acquire,
                                                   memory_order_relaxed);
}

static void leave(lvr_pool *pool)
{
    const uint32_t before = atomic_fetch_sub(&pool->state, 1);
    if ((before & (INSIDE_MASK | OPEN)) == 1 && atomic_load(&pool->caller_asleep)) {
        atomic_store(&pool->caller_asleep, 0);
        futex_wake(&pool->caller_asleep, 1);
    }
}

static void *worker_main(void *arg)
{
    const worker *self = arg;
    lvr_pool *pool = self->pool;
    pthread_setname_np(pthread_self(), "lvr-worker");
    for (uint32_t seen = FIRST_EPOCH;;) {
        const uint32_t state = wait_for_call(pool, seen);
        if (state & STOP)
            return NULL;
        if (!enter(pool, state))
            continue;
        seen = state;
        pool->fn(pool->arg, self->index, pool->n_threads);
        leave(pool);
    }
}

static void stop_workers(lvr_pool *pool, uint32_t n_started)
{
    atomic_fetch_or(&pool->state, STOP);
    call_sleepers(pool);
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

uint32_t lvr_processors(void)
{
    cpu_set_t set;
    const int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return n < 1 ? 1 : (uint32_t)n;
}

/* Where threads outnumber the processors, spinning only keeps the awaited thread from running. */
static uint64_t choose_spin_ns(uint32_t n_threads)
{
    return n_threads <= lvr_processors() ? SPIN_NS : 0;
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
    atomic_init(&pool->state, FIRST_EPOCH);
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

uint64_t lvr_pool_spin_ns(const lvr_pool *pool)
{
    return pool->spin_ns;
}

/* ---- runs ---- */

static void open_run(lvr_pool *pool)
{
    const uint32_t last = atomic_load_explicit(&pool->state, memory_order_relaxed);
    atomic_store(&pool->state, ((last & EPOCH_MASK) + EPOCH_ONE) | OPEN);
    call_sleepers(pool);
}

static bool spin_until_empty(lvr_pool *pool)
{
    const uint64_t start = lvr_now_ns();
    do {
        for (int i = 0; i < SPINS_PER_CLOCK_READ; i++) {
            if ((atomic_load_explicit(&pool->state, memory_order_acquire) & INSIDE_MASK) == 0)
                return true;
            relax();
        }
    } while (lvr_now_ns() - start < pool->spin_ns);
    return false;
}

/* Nobody comes in any more; waits for those who are inside. */
static void close_run(lvr_pool *pool)
{
    if ((atomic_fetch_and(&pool->state, ~OPEN) & INSIDE_MASK) == 0 || spin_until_empty(pool))
        return;
    for (;;) {
        atomic_store(&pool->caller_asleep, 1);
        if ((atomic_load(&pool->state) & INSIDE_MASK) == 0)
            break;
        futex_wait(&pool->caller_asleep, 1);
    }
    atomic_store(&pool->caller_asleep, 0);
}

void lvr_pool_run(lvr_pool *pool, lvr_pool_fn fn, void *arg)
{
    if (pool->n_threads == 1) {
        fn(arg, 0, 1);
        return;
    }
    pool->fn = fn;
    pool->arg = arg;
    open_run(pool);
    fn(arg, 0, pool->n_threads);
    close_run(pool);
}

/* The epoch moves whether or not somebody sleeps: a worker on its way out, or spinning outside, must see the
 * call too. */
void lvr_pool_recall(lvr_pool *pool)
{
    atomic_fetch_add(&pool->state, EPOCH_ONE);
    if (atomic_load(&pool->n_asleep) != 0)
        futex_wake(&pool->state, INT_MAX);
}

/* ---- loops ---- */

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
