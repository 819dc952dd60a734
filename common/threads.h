/*
 * A fork-join pool whose barriers yield: workers spin briefly (<= ~20 us), then sleep on a futex, so that an
 * oversubscribed machine does not collapse and an idle pool uses no CPU. The caller is worker 0.
 * lvr_pool_run is not reentrant and must be called from one thread at a time.
 */
#ifndef LVR_COMMON_THREADS_H
#define LVR_COMMON_THREADS_H

#include "common/error.h"
#include <stdint.h>

typedef struct lvr_pool lvr_pool;
typedef void (*lvr_pool_fn)(void *arg, uint32_t worker, uint32_t n_workers);

#define LVR_POOL_MAX_THREADS 64
/* n_threads in 1..64; with 1 no thread is created. */
lvr_status lvr_pool_new(uint32_t n_threads, lvr_pool **ret_pool, lvr_error *err);
void lvr_pool_free(lvr_pool *pool);
uint32_t lvr_pool_size(const lvr_pool *pool);
/* Calls fn once per worker, returns when all have returned. */
void lvr_pool_run(lvr_pool *pool, lvr_pool_fn fn, void *arg);

/* Dynamic work sharing (not to be called inside lvr_pool_run): workers claim chunks of [0, n_items) until
 * none is left, so a worker that was descheduled does not hold the rest up. body(arg, begin, end, worker).
 * With one chunk or less the caller alone runs it; a chunk of 0 counts as 1. */
typedef void (*lvr_range_fn)(void *arg, uint64_t begin, uint64_t end, uint32_t worker);
void lvr_pool_for(lvr_pool *pool, uint64_t n_items, uint64_t chunk, lvr_range_fn body, void *arg);

#endif
