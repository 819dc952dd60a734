/*
 * How a run used its staging ring and its flash, derived from the streams of a timing or simulated trace
 * (/flash, /kernels, /requests); nothing of it is recorded. A layer is staged from the end of its last slice
 * until its operator has ended and its slot is free again.
 */
#ifndef LVR_TRACES_RING_USE_H
#define LVR_TRACES_RING_USE_H

#include "costmodel/core/cost.h"
#include "traces/trace.h"

typedef struct lvr_ring_use {
    uint64_t window_ns;     /* inside requests: all that follows is counted there only */
    uint64_t flash_idle_ns; /* no read was submitted and not ended */
    uint64_t wait_ns;       /* nothing was computed since a layer's slices were not all there; until its
                               operator began */
    uint64_t waits;         /* times that happened */
    uint32_t max_staged;    /* most layers staged at a time */
    uint64_t staged_ns[LVR_MAX_RING_SLOTS + 1]; /* with that many layers staged */
} lvr_ring_use;

/* All zero for a trace in which nothing was streamed. */
lvr_status lvr_trace_ring_use(lvr_trace *t, lvr_ring_use *ret, lvr_error *err);
double lvr_ring_use_mean(const lvr_ring_use *u); /* staged layers over time */

#endif
