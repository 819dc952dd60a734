/*
 * The simulator's one queue of future events: an array 4-ary heap ordered by (time, priority, sequence), so
 * that the order of simultaneous events is fixed by what they are and by who came first, never by memory
 * addresses. Pushing allocates only when the queue is deeper than it ever was. Not thread safe.
 */
#ifndef LVR_SIM_EVENT_QUEUE_H
#define LVR_SIM_EVENT_QUEUE_H

#include "common/error.h"
#include <stdbool.h>
#include <stdint.h>

/* Lower comes first among simultaneous events. */
enum {
    /* A slice that lands in the very nanosecond in which a layer ends is seen as landed first: the layer that
     * waits for it then starts without a wait of zero length being counted. */
    LVR_SIM_PRIORITY_FLASH = 0,
    LVR_SIM_PRIORITY_COMPUTE = 1,
    /* The host looks at the accelerator when it is done with its own operator. */
    LVR_SIM_PRIORITY_NPU = 2,
};

typedef struct lvr_sim_event {
    uint64_t time_ns;
    uint64_t seq; /* given by the queue: order of pushing */
    uint64_t arg; /* the pusher's own: sequence number of a read */
    uint32_t priority;
    uint32_t kind; /* the pusher's own: lvr_event_kind in replay */
} lvr_sim_event;

typedef struct lvr_event_queue {
    lvr_sim_event *heap;
    size_t n, cap;
    uint64_t next_seq;
} lvr_event_queue;

lvr_status lvr_event_queue_init(lvr_event_queue *q, size_t capacity, lvr_error *err);
void lvr_event_queue_free(lvr_event_queue *q);
lvr_status lvr_event_queue_push(lvr_event_queue *q, uint64_t time_ns, uint32_t priority, uint32_t kind,
                                uint64_t arg, lvr_error *err);
bool lvr_event_queue_pop(lvr_event_queue *q, lvr_sim_event *ret); /* false: empty */

#endif
