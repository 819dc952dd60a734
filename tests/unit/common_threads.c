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

#define N_ITEMS 256u

/* A run's work: items to be claimed. Plain fields on purpose: the pool's own barriers must order the
 * accesses, and the sanitizer checks that. */
typedef struct claims {
    uint64_t round;
    uint64_t items[N_ITEMS], per_worker[LVR_POOL_MAX_THREADS];
    _Atomic uint32_t next;
    _Atomic bool bad;
    pthread_t caller;
} claims;

static void claim_items(void *arg, uint32_t worker, uint32_t n_workers)
{
    claims *c = arg;
    if (worker >= n_workers || c->round == 0)
        c->bad = true;
    if (worker == 0)
        c->caller = pthread_self();
    uint32_t i;
    while ((i = atomic_fetch_add(&c->next, 1)) < N_ITEMS) {
        c->items[i] += c->round;
        c->per_worker[worker]++;
    }
}

static void check_pool(uint32_t n_threads, uint64_t rounds)
{
    lvr_pool *pool = new_pool(n_threads);
    claims c = {0};
    uint64_t sum = 0;
    for (uint64_t round = 1; round <= rounds; round++) {
        c.round = round;
        c.next = 0;
        lvr_pool_run(pool, claim_items, &c);
        sum += round;
        for (uint32_t i = 0; i < N_ITEMS; i++)
            cr_assert_eq(c.items[i], sum);
    }
    uint64_t claimed = 0;
    for (uint32_t w = 0; w < LVR_POOL_MAX_THREADS; w++)
        claimed += c.per_worker[w];
    cr_assert_eq(claimed, rounds * N_ITEMS);
    cr_assert(!c.bad);
    cr_assert(pthread_equal(c.caller, pthread_self()));
    lvr_pool_free(pool);
}

Test(pool, every_item_is_claimed_once_per_run)
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

typedef struct short_run {
    uint64_t number; /* of the run; 0 once it is over */
    _Atomic uint32_t calls, late;
} short_run;

static void look_at_run(void *arg, uint32_t worker, uint32_t n_workers)
{
    (void)worker;
    (void)n_workers;
    short_run *r = arg;
    if (r->number == 0)
        r->late++;
    r->calls++;
}

/* Most workers come too late for such runs, and must find them closed. */
Test(pool, a_run_that_is_over_takes_no_late_workers, .timeout = 60)
{
    for (uint32_t n = 2; n <= 32; n *= 4) {
        lvr_pool *pool = new_pool(n);
        for (uint64_t i = 1; i <= 20000; i++) {
            short_run r = {.number = i};
            lvr_pool_run(pool, look_at_run, &r);
            cr_assert_eq(r.late, 0);
            cr_assert(r.calls >= 1 && r.calls <= n);
            r.number = 0;
        }
        lvr_pool_free(pool);
    }
}

static void do_nothing(void *arg, uint32_t worker, uint32_t n_workers)
{
    (void)arg;
    (void)worker;
    (void)n_workers;
}

/* The pool's count of runs wraps for the first time after a thousand. */
Test(pool, outlives_its_run_counter, .timeout = 60)
{
    lvr_pool *pool = new_pool(2);
    for (uint32_t i = 0; i < 100000; i++)
        lvr_pool_run(pool, do_nothing, NULL);
    claims c = {.round = 1};
    lvr_pool_run(pool, claim_items, &c);
    for (uint32_t i = 0; i < N_ITEMS; i++)
        cr_assert_eq(c.items[i], 1);
    lvr_pool_free(pool);
}

static void work_if_caller(void *arg, uint32_t worker, uint32_t n_workers)
{
    if (worker == 0)
        claim_items(arg, worker, n_workers);
}

Test(pool, the_caller_alone_gets_all_done)
{
    lvr_pool *pool = new_pool(4);
    claims c = {0};
    for (c.round = 1; c.round <= 100; c.round++) {
        c.next = 0;
        lvr_pool_run(pool, work_if_caller, &c);
    }
    cr_assert_eq(c.per_worker[0], 100 * N_ITEMS);
    cr_assert_eq(c.items[N_ITEMS - 1], 5050);
    lvr_pool_free(pool);
}

typedef struct recall_check {
    lvr_pool *pool;
    _Atomic uint32_t calls;
} recall_check;

static void wait_for_second_call(void *arg, uint32_t worker, uint32_t n_workers)
{
    (void)n_workers;
    recall_check *r = arg;
    if (worker != 0) {
        r->calls++;
        return;
    }
    while (r->calls < 2) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        lvr_pool_recall(r->pool);
    }
}

Test(pool, recall_brings_back_a_worker_that_has_returned, .timeout = 60)
{
    recall_check r = {.pool = new_pool(2)};
    lvr_pool_run(r.pool, wait_for_second_call, &r);
    cr_assert_geq(r.calls, 2);
    lvr_pool_free(r.pool);
}

Test(pool, recall_with_nobody_to_call)
{
    lvr_pool *pool = new_pool(1);
    lvr_pool_recall(pool);
    lvr_pool_run(pool, do_nothing, NULL);
    lvr_pool_free(pool);
}

typedef struct gate_check {
    lvr_gate there, back;
    uint64_t spin_ns;
    uint64_t payload; /* plain: the gates order it */
    uint64_t wrong;
} gate_check;

#define GATE_ROUNDS 3000u

static void *answer(void *arg)
{
    gate_check *g = arg;
    for (uint32_t i = 0; i < GATE_ROUNDS; i++) {
        lvr_gate_wait(&g->there, i, g->spin_ns);
        g->wrong += g->payload != i;
        g->payload = i + 1;
        lvr_gate_set(&g->back, i + 1);
    }
    return NULL;
}

Test(gate, hands_over_what_was_written, .timeout = 60)
{
    for (uint64_t spin_ns = 0; spin_ns <= 20000; spin_ns += 10000) {
        gate_check g = {.spin_ns = spin_ns};
        pthread_t thread;
        cr_assert_eq(pthread_create(&thread, NULL, answer, &g), 0);
        for (uint32_t i = 0; i < GATE_ROUNDS; i++) {
            lvr_gate_set(&g.there, i + 1);
            lvr_gate_wait(&g.back, i, g.spin_ns);
            g.wrong += g.payload != i + 1;
        }
        pthread_join(thread, NULL);
        cr_assert_eq(g.wrong, 0);
        cr_assert(!lvr_gate_spin(&g.back, GATE_ROUNDS, 1000));
        cr_assert(lvr_gate_spin(&g.back, 0, 1000));
    }
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

/* The caller waits asleep until the worker is inside. */
static void sleep_in_worker_one(void *arg, uint32_t worker, uint32_t n_workers)
{
    (void)n_workers;
    lvr_gate *inside = arg;
    if (worker == 0) {
        lvr_gate_wait(inside, 0, 0);
        return;
    }
    lvr_gate_set(inside, 1);
    nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
}

Test(pool, neither_idling_nor_waiting_burns_cpu)
{
    lvr_pool *pool = new_pool(2);
    lvr_gate inside = {0};
    lvr_pool_run(pool, sleep_in_worker_one, &inside);
    const uint64_t before = process_cpu_ns();
    nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    inside.value = 0;
    lvr_pool_run(pool, sleep_in_worker_one, &inside);
    cr_assert_lt(process_cpu_ns() - before, UINT64_C(40000000));
    lvr_pool_free(pool);
}

typedef struct mask_check {
    lvr_gate read;
    int blocked;
} mask_check;

static void read_mask(void *arg, uint32_t worker, uint32_t n_workers)
{
    (void)n_workers;
    mask_check *m = arg;
    if (worker == 0) {
        lvr_gate_wait(&m->read, 0, 0);
        return;
    }
    sigset_t set;
    pthread_sigmask(SIG_SETMASK, NULL, &set);
    m->blocked = sigismember(&set, SIGINT);
    lvr_gate_set(&m->read, 1);
}

Test(pool, workers_leave_signals_to_the_program)
{
    lvr_pool *pool = new_pool(2);
    mask_check m = {.blocked = -1};
    lvr_pool_run(pool, read_mask, &m);
    cr_assert_eq(m.blocked, 1);
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
