/*
 * Several dependent loops in one run of a pool. Workers claim chunks of a phase and go on to the next one
 * when all of its chunks are done: large chunks first, then ever smaller ones, so that workers of any speed
 * end a phase together. A worker that the system has put aside holds the others up only while it has a chunk
 * in hand; others wait for that asleep, so that the processor is free for it.
 * A phase costs less than a fork and a join.
 */
#ifndef LVR_ENGINE_PHASES_H
#define LVR_ENGINE_PHASES_H

#include "common/threads.h"
#include <stdalign.h>
#include <stdatomic.h>

typedef struct lvr_phase {
    lvr_range_fn
        body; /* body(arg, begin, end, worker) over [0, n_units); sees all that earlier phases wrote */
    void *arg;
    uint64_t n_units, chunk; /* chunk > 0: the least units worth claiming */
    /* Between the workers; zero before a run. Apart, so that claiming does not disturb finishing. */
    alignas(64) _Atomic uint64_t next;
    alignas(64) _Atomic uint64_t done;
} lvr_phase;

/* Returns when all phases are done. pool NULL: on the calling thread alone, as worker 0. */
void lvr_phases_run(lvr_pool *pool, lvr_phase *phases, uint32_t n);

#endif
