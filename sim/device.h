/* The simulated machine: a clock, the queue of future events, and the resources. */
#ifndef LVR_SIM_DEVICE_H
#define LVR_SIM_DEVICE_H

#include "sim/event_queue.h"
#include "sim/resources/compute.h"
#include "sim/resources/flash.h"
#include "sim/resources/npu.h"

typedef struct lvr_sim_device {
    uint64_t now_ns;
    uint64_t events; /* taken from the queue */
    lvr_event_queue queue;
    lvr_flash_resource flash;
    lvr_compute_resource compute;
    lvr_npu_resource npu;
} lvr_sim_device;

lvr_status lvr_sim_device_init(lvr_sim_device *d, const lvr_cost_table *cost, lvr_error *err);
void lvr_sim_device_free(lvr_sim_device *d);

/* Time at which the host is free to do the next thing: now, or the end of the operator under way. */
uint64_t lvr_sim_device_host_ns(const lvr_sim_device *d);
/* Submits a read; its end becomes an event (kind, arg). */
lvr_status lvr_sim_device_read(lvr_sim_device *d, uint64_t submit_ns, uint64_t bytes, uint32_t kind,
                               uint64_t arg, lvr_flash_times *ret, lvr_error *err);
/* Runs an operator after those before it; no event. */
lvr_compute_times lvr_sim_device_run(lvr_sim_device *d, lvr_op op, uint32_t rows, uint32_t context);
/* Submits a ticket to the accelerator; the moment the host sees its end becomes an event. An operator without
 * accelerator terms is LVR_ERR_CONFIG. */
lvr_status lvr_sim_device_ticket(lvr_sim_device *d, uint64_t submit_ns, lvr_op op, uint32_t rows,
                                 uint32_t context, uint32_t kind, lvr_npu_times *ret, lvr_error *err);
/* An event at the end of the operators run so far. */
lvr_status lvr_sim_device_signal(lvr_sim_device *d, uint32_t kind, lvr_error *err);
/* Takes the next event and moves the clock; none left, or time running backwards, is LVR_ERR_INVARIANT. */
lvr_status lvr_sim_device_next(lvr_sim_device *d, lvr_sim_event *ret, lvr_error *err);

#endif
