/*
 * The matrix unit's thread. Work comes through a ring of one producer and one consumer; both sides spin for
 * about 20 us and then sleep on a futex, so that a stream of tickets is handed on within a microsecond and an
 * idle unit uses no CPU.
 *
 * Sleeper and waker each write their own word, then read the other's, both sequentially consistent: at least
 * one of them sees the other, so no wake-up is lost and none is paid for when nobody sleeps.
 */
#include "engine/accel/back_end.h"

#include "common/clock.h"
#include "common/ring.h"
#include "common/threads.h"
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SPIN_NS 20000u
#define SPINS_PER_CLOCK_READ 32

typedef struct matrix {
    lvr_accel *accel;
    lvr_kernels kernels;
    lvr_ring *ring; /* lvr_accel_work */
    pthread_t thread;
    bool started;
    uint64_t spin_ns;
    _Atomic bool stop;
    /* Low word of the number of tickets handed over, and one more for each request to stop. */
    alignas(64) _Atomic uint32_t handed_over;
    _Atomic uint32_t unit_asleep;
    alignas(64) _Atomic uint32_t caller_asleep;
} matrix;

/* timeout_ns UINT64_MAX: none. */
static void futex_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t timeout_ns)
{
    const struct timespec ts = {.tv_sec = (time_t)(timeout_ns / UINT64_C(1000000000)),
                                .tv_nsec = (long)(timeout_ns % UINT64_C(1000000000))};
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, timeout_ns == UINT64_MAX ? NULL : &ts, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* True once *word differs from `value`. */
static bool spin(_Atomic uint32_t *word, uint32_t value, uint64_t spin_ns)
{
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

/* ---- the unit's side ---- */

static void wait_for_work(matrix *m, uint32_t seen)
{
    if (spin(&m->handed_over, seen, m->spin_ns))
        return;
    atomic_store(&m->unit_asleep, 1);
    while (atomic_load(&m->handed_over) == seen)
        futex_wait(&m->handed_over, seen, UINT64_MAX);
    atomic_store(&m->unit_asleep, 0);
}

static void *unit_main(void *arg)
{
    matrix *m = arg;
    pthread_setname_np(pthread_self(), "lvr-matrix");
    for (;;) {
        lvr_accel_work w;
        const uint32_t seen = atomic_load(&m->handed_over);
        if (atomic_load(&m->stop))
            return NULL;
        if (!lvr_ring_pop(m->ring, &w)) {
            wait_for_work(m, seen);
            continue;
        }
        lvr_accel_run(m->accel, &w, &m->kernels);
        if (atomic_load(&m->caller_asleep))
            futex_wake(&m->accel->done_word);
    }
}

/* ---- the caller's side ---- */

static void wake_unit(matrix *m)
{
    atomic_fetch_add(&m->handed_over, 1);
    if (atomic_load(&m->unit_asleep))
        futex_wake(&m->handed_over);
}

static void submit_matrix(lvr_accel *a, const lvr_accel_work *w)
{
    matrix *m = a->impl;
    lvr_ring_push(m->ring, w); /* has room for max_inflight */
    wake_unit(m);
}

static void block_matrix(lvr_accel *a, lvr_accel_ticket ticket, uint64_t deadline_ns)
{
    matrix *m = a->impl;
    const uint32_t seen = atomic_load(&a->done_word);
    if ((int32_t)(seen - (uint32_t)ticket) >= 0)
        return;
    const uint64_t now = lvr_now_ns();
    const uint64_t left = deadline_ns > now ? deadline_ns - now : 0;
    if (spin(&a->done_word, seen, left < m->spin_ns ? left : m->spin_ns))
        return;
    if (left <= m->spin_ns)
        return;
    atomic_store(&m->caller_asleep, 1);
    if (atomic_load(&a->done_word) == seen)
        futex_wait(&a->done_word, seen, deadline_ns == UINT64_MAX ? UINT64_MAX : left - m->spin_ns);
    atomic_store(&m->caller_asleep, 0);
}

/* ---- opening and closing ---- */

static void close_matrix(lvr_accel *a)
{
    matrix *m = a->impl;
    if (!m)
        return;
    if (m->started) {
        atomic_store(&m->stop, true);
        wake_unit(m);
        pthread_join(m->thread, NULL);
    }
    lvr_ring_free(m->ring);
    free(m);
    a->impl = NULL;
}

/* A level is offered only after its products have been compared with the reference's (lvr_cpu_has). */
static void choose_kernels(lvr_accel_caps *caps, lvr_kernels *k)
{
    lvr_kernels_init(k, LVR_CPU_AMX);
    caps->exact = caps->async = caps->zero_copy = true;
    if (k->level == LVR_CPU_AMX) {
        snprintf(caps->engine, sizeof caps->engine, "amx-int8");
        return;
    }
    const char *note = lvr_cpu_note();
    caps->fallback = true;
    snprintf(caps->engine, sizeof caps->engine, "cpu %s (no matrix unit)", lvr_cpu_level_name(k->level));
    snprintf(caps->reason, sizeof caps->reason, "%s",
             note ? note : "this CPU has no matrix unit (amx-tile and amx-int8)");
}

/* Where there is one processor only, spinning keeps the other side from running. */
static uint64_t choose_spin_ns(void)
{
    return lvr_processors() > 1 ? SPIN_NS : 0;
}

/* The thread inherits a full signal mask: signals stay the business of the program's own threads. */
static lvr_status start_thread(matrix *m, lvr_error *err)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    const int rc = pthread_create(&m->thread, NULL, unit_main, m);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc != 0)
        return lvr_fail_errno(
            err, rc,
            "accelerator matrix: cannot start its thread; use fewer threads, raise ulimit -u, "
            "or run without --accel");
    m->started = true;
    return LVR_OK;
}

static lvr_status open_matrix(lvr_accel *a, lvr_error *err)
{
    matrix *m = aligned_alloc(alignof(matrix), sizeof *m);
    if (!m)
        return lvr_fail(err, LVR_ERR_NOMEM, "out of memory for the matrix accelerator");
    memset(m, 0, sizeof *m);
    a->impl = m;
    m->accel = a;
    m->spin_ns = choose_spin_ns();
    choose_kernels(&a->caps, &m->kernels);
    const lvr_status status = lvr_ring_new(sizeof(lvr_accel_work), LVR_ACCEL_MAX_INFLIGHT, &m->ring, err);
    return status == LVR_OK ? start_thread(m, err) : status;
}

const lvr_accel_back_end lvr_accel_matrix = {
    .name = "matrix",
    .open = open_matrix,
    .close = close_matrix,
    .submit = submit_matrix,
    .block = block_matrix,
};
