/*
 * A recorded time line taken apart: what each operator cost the host, what the host needed around it, what
 * was spent waiting for flash. Nothing between a request's first and last operator is left over, so that sums
 * of predictions are comparable with measured durations.
 *
 * An operator on the CPU has the host from its start to its end. A ticket on the accelerator has it from the
 * submission to its end, less what an operator on the CPU covers: what is left is what the host waited for
 * it.
 *
 * Between operator A's end and operator B's start (submission) lies
 *   - if B waits for its slices: host time of A until the first of them is submitted (nothing if it was
 * before), then waiting until the last of them has arrived, and the time it takes to wake up;
 *   - otherwise: host time of A (recording, the round machine's step, the next action's set-up; of a ticket
 * also until its end was seen).
 */
#ifndef LVR_FIT_SPANS_H
#define LVR_FIT_SPANS_H

#include "costmodel/core/cost.h"
#include "traces/trace.h"

typedef struct lvr_span {
    uint64_t round;
    uint64_t request;
    lvr_op op;
    uint32_t rows, context, layer;
    bool prefill;
    lvr_unit unit;
    uint32_t bucket;
    uint64_t start_ns;          /* on the trace's clock */
    uint64_t kernel_ns;         /* of the host's time, as above */
    uint64_t launch_ns, run_ns; /* tickets: submission to start, start to end, whatever the host did */
    bool hidden;                /* a ticket that an operator on the CPU covered in part or whole */
    uint64_t host_ns;           /* after it */
    uint64_t wait_ns;           /* before it: for its slices, waking up included */
    uint64_t wake_ns;           /* of that, from the arrival of the last slice to the start */
} lvr_span;

/* Spans in order of time; free(*ret). Timing and simulated traces only. */
lvr_status lvr_spans_read(lvr_trace *t, lvr_span **ret, size_t *ret_n, lvr_error *err);

#endif
