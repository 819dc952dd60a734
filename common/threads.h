/*
 * A fork-join pool that never waits for a worker which has nothing in hand: a run is open while its caller is
 * in it, workers join when they come, and a worker that the system has put aside finds the run closed and
 * goes back. Idle workers spin briefly (<= ~20 us), then sleep on a futex, so that an oversubscribed machine
 * does not collapse and an idle pool uses no CPU. The caller is worker 0.
 * lvr_pool_run is not reentrant and must be called from one thread at a time.
 */
#ifndef LVR_COMMON_THREADS_H
#define LVR_COMMON_THREADS_H

#include "common/error.h"
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct lvr_pool lvr_pool;
typedef void (*lvr_pool_fn)(void *arg, uint32_t worker, uint32_t n_workers);

#define LVR_POOL_MAX_THREADS 64
/* Processors this process may run on, at least 1. */
uint32_t lvr_processors(void);
/* n_threads in 1..64; with 1 no thread is created. */
lvr_status lvr_pool_new(uint32_t n_threads, lvr_pool **ret_pool, lvr_error *err);
void lvr_pool_free(lvr_pool *pool);
uint32_t lvr_pool_size(const lvr_pool *pool);
/* Calls fn(arg, 0, n_workers) on the caller, and fn(arg, worker, n_workers) on every worker that comes while
 * the caller is inside: on none, perhaps, and on one again that returned before lvr_pool_recall. So fn has to
 * share the work out by claims, and worker 0 has to return only when no work is left to be claimed. Returns
 * when all calls have; sees all that they wrote. */
void lvr_pool_run(lvr_pool *pool, lvr_pool_fn fn, void *arg);
/* Inside a run: there is new work for the workers that have returned from it. No system call if none sleeps.
 */
void lvr_pool_recall(lvr_pool *pool);
/* How long a thread of this pool should spin before it sleeps: 0 where threads outnumber the processors. */
uint64_t lvr_pool_spin_ns(const lvr_pool *pool);

/* Dynamic work sharing (not to be called inside lvr_pool_run): workers claim chunks of [0, n_items) until
 * none is left, so a worker that was descheduled does not hold the rest up. body(arg, begin, end, worker).
 * With one chunk or less the caller alone runs it; a chunk of 0 counts as 1. */
typedef void (*lvr_range_fn)(void *arg, uint64_t begin, uint64_t end, uint32_t worker);
void lvr_pool_for(lvr_pool *pool, uint64_t n_items, uint64_t chunk, lvr_range_fn body, void *arg);

/* A number that threads wait on. Zeroed: 0, nobody waits. */
typedef struct lvr_gate {
    alignas(64) _Atomic uint32_t value;
    _Atomic uint32_t n_asleep;
} lvr_gate;

/* Sets the number and wakes those who sleep; what was written before is seen by those whose wait ends. */
void lvr_gate_set(lvr_gate *gate, uint32_t value);
/* Spins; true once the value is not `seen`, false when the time is up. */
bool lvr_gate_spin(const lvr_gate *gate, uint32_t seen, uint64_t spin_ns);
/* Spins, then sleeps, until the value is not `seen`. */
void lvr_gate_wait(lvr_gate *gate, uint32_t seen, uint64_t spin_ns);

#endif
