#include "common/clock.h"
#include "engine/phases.h"
#include <criterion/criterion.h>
#include <time.h>

#define MAX_UNITS 1000u
#define MAX_PHASES 9u

/* Every unit of a phase adds up all of the phase before: plain memory, so that a phase that begins too early
 * gives a wrong sum. */
typedef struct stage {
    const uint64_t *in;
    uint64_t n_in;
    uint64_t out[MAX_UNITS];
    uint32_t visits[MAX_UNITS];
    uint64_t chunk, n_units;
    _Atomic uint32_t small_claims; /* fewer units than a chunk, and not the last of the phase */
    _Atomic uint32_t bad_worker;
    uint32_t n_threads;
} stage;

static void sum_all(void *arg, uint64_t begin, uint64_t end, uint32_t worker)
{
    stage *s = arg;
    if (end - begin < s->chunk && end != s->n_units)
        s->small_claims++;
    if (worker >= s->n_threads)
        s->bad_worker++;
    for (uint64_t u = begin; u < end; u++) {
        uint64_t sum = u + 1;
        for (uint64_t i = 0; i < s->n_in; i++)
            sum += s->in[i];
        s->out[u] = sum;
        s->visits[u]++;
    }
}

static void set_phase(lvr_phase *p, lvr_range_fn body, void *arg, uint64_t n_units, uint64_t chunk)
{
    *p = (lvr_phase){.body = body, .arg = arg, .n_units = n_units, .chunk = chunk};
}

static void check_stages(stage *stages, uint32_t n)
{
    uint64_t sum_in = 0;
    for (uint32_t i = 0; i < n; i++) {
        stage *s = &stages[i];
        uint64_t sum_out = 0;
        for (uint64_t u = 0; u < s->n_units; u++) {
            cr_assert_eq(s->visits[u], 1);
            cr_assert_eq(s->out[u], sum_in + u + 1, "phase %u, unit %llu", i, (unsigned long long)u);
            sum_out += s->out[u];
        }
        cr_assert_eq(s->small_claims, 0);
        cr_assert_eq(s->bad_worker, 0);
        sum_in = sum_out;
    }
}

static void run_stages(lvr_pool *pool, const uint64_t *units, uint32_t n, uint64_t chunk)
{
    static stage stages[MAX_PHASES];
    lvr_phase phases[MAX_PHASES];
    for (uint32_t i = 0; i < n; i++) {
        stages[i] = (stage){.in = i ? stages[i - 1].out : NULL,
                            .n_in = i ? units[i - 1] : 0,
                            .chunk = chunk,
                            .n_units = units[i],
                            .n_threads = pool ? lvr_pool_size(pool) : 1};
        set_phase(&phases[i], sum_all, &stages[i], units[i], chunk);
    }
    lvr_phases_run(pool, phases, n);
    check_stages(stages, n);
}

static lvr_pool *new_pool(uint32_t n)
{
    lvr_pool *pool = NULL;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_pool_new(n, &pool, &err), LVR_OK, "%s", err.msg);
    return pool;
}

Test(phases, each_sees_all_of_the_one_before, .timeout = 60)
{
    static const uint64_t units[][MAX_PHASES] = {
        {1, 1, 1, 1, 1, 1, 1, 1, 1},
        {1, 40, 3, 200, 1, 7, 64, 1, 2},
        {0, 0, 5, 0, 100, 0, 0, 1, 0}, /* a phase after an empty one adds up nothing */
        {0, 0, 0, 0, 0, 0, 0, 0, 0},
    };
    static const uint64_t chunks[] = {1, 3, 50, 5000};
    for (uint32_t n_threads = 0; n_threads <= 8; n_threads++) {
        lvr_pool *pool = n_threads ? new_pool(n_threads) : NULL;
        for (uint32_t repeat = 0; repeat < 50; repeat++)
            for (uint32_t i = 0; i < 16; i++)
                run_stages(pool, units[i % 4], i % 4 == 1 ? MAX_PHASES - repeat % 9 : MAX_PHASES,
                           chunks[i / 4]);
        lvr_pool_free(pool);
    }
}

Test(phases, none_at_all)
{
    lvr_pool *pool = new_pool(2);
    lvr_phases_run(pool, NULL, 0);
    lvr_phases_run(NULL, NULL, 0);
    lvr_pool_free(pool);
}

static void add_up(void *arg, uint64_t begin, uint64_t end, uint32_t worker)
{
    (void)worker;
    atomic_fetch_add((_Atomic uint64_t *)arg, end - begin);
}

Test(phases, counts_do_not_wrap)
{
    lvr_pool *pool = new_pool(3);
    _Atomic uint64_t total = 0;
    lvr_phase p;
    set_phase(&p, add_up, &total, UINT64_MAX, UINT64_MAX / 3);
    lvr_phases_run(pool, &p, 1);
    cr_assert_eq(total, UINT64_MAX);
    lvr_pool_free(pool);
}

typedef struct slow {
    uint32_t worker; /* dawdles over its first chunk */
    _Atomic uint32_t n_dawdled;
    _Atomic uint32_t others;
} slow;

static void dawdle(void *arg, uint64_t begin, uint64_t end, uint32_t worker)
{
    slow *s = arg;
    (void)begin;
    (void)end;
    if (worker != s->worker) {
        s->others++;
        return;
    }
    if (atomic_exchange(&s->n_dawdled, 1) == 0)
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
}

static uint64_t process_cpu_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* Whoever waits for a chunk sleeps. Phases go on until the slow worker had a chunk: it may come late. */
static void check_slow(uint32_t worker)
{
    lvr_pool *pool = new_pool(2);
    slow s = {.worker = worker};
    const uint64_t cpu = process_cpu_ns();
    for (uint32_t i = 0; i < 2000 && s.n_dawdled == 0; i++) {
        lvr_phase p[2];
        set_phase(&p[0], dawdle, &s, 64, 1);
        set_phase(&p[1], dawdle, &s, 64, 1);
        lvr_phases_run(pool, p, 2);
        if (s.n_dawdled == 0)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    lvr_pool_free(pool);
    if (worker != 0 && s.n_dawdled == 0)
        cr_skip("the worker never came");
    cr_assert_eq(s.n_dawdled, 1);
    cr_assert_lt(process_cpu_ns() - cpu, UINT64_C(60000000));
}

Test(phases, waiting_for_the_caller_burns_no_cpu, .timeout = 60)
{
    check_slow(0);
}

Test(phases, waiting_for_a_worker_burns_no_cpu, .timeout = 60)
{
    check_slow(1);
}

typedef struct recall_check {
    _Atomic uint32_t worker_came; /* to the second phase */
    _Atomic uint32_t done;
} recall_check;

static void hold_up(void *arg, uint64_t begin, uint64_t end, uint32_t worker)
{
    (void)arg;
    (void)begin;
    (void)end;
    if (worker == 0)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
}

static void wait_for_worker(void *arg, uint64_t begin, uint64_t end, uint32_t worker)
{
    recall_check *r = arg;
    (void)begin;
    (void)end;
    if (worker != 0)
        r->worker_came = 1;
    const uint64_t start = lvr_now_ns();
    while (worker == 0 && !r->worker_came && lvr_now_ns() - start < 5000000000u)
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

/* The worker leaves the run while the caller is busy with the first phase, and is called for the second. */
Test(phases, a_worker_that_gave_up_waiting_is_called_again, .timeout = 60)
{
    lvr_pool *pool = new_pool(2);
    recall_check r = {0};
    lvr_phase p[2];
    set_phase(&p[0], hold_up, NULL, 1, 1);
    set_phase(&p[1], wait_for_worker, &r, 100, 1);
    for (uint32_t i = 0; i < 20 && !r.worker_came; i++) {
        p[0].next = p[0].done = p[1].next = p[1].done = 0;
        lvr_phases_run(pool, p, 2);
    }
    cr_assert_eq(r.worker_came, 1);
    lvr_pool_free(pool);
}
