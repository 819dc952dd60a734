#include "sim/device.h"

#include <inttypes.h>

enum { FIRST_EVENTS = 256 };

lvr_status lvr_sim_device_init(lvr_sim_device *d, const lvr_cost_table *cost, lvr_error *err)
{
    *d = (lvr_sim_device){0};
    lvr_flash_resource_init(&d->flash, &cost->flash);
    lvr_compute_resource_init(&d->compute, cost);
    lvr_npu_resource_init(&d->npu, cost);
    return lvr_event_queue_init(&d->queue, FIRST_EVENTS, err);
}

void lvr_sim_device_free(lvr_sim_device *d)
{
    lvr_event_queue_free(&d->queue);
}

uint64_t lvr_sim_device_host_ns(const lvr_sim_device *d)
{
    return d->now_ns > d->compute.free_ns ? d->now_ns : d->compute.free_ns;
}

lvr_status lvr_sim_device_read(lvr_sim_device *d, uint64_t submit_ns, uint64_t bytes, uint32_t kind,
                               uint64_t arg, lvr_flash_times *ret, lvr_error *err)
{
    const lvr_flash_times t = lvr_flash_resource_submit(&d->flash, submit_ns, bytes);
    const lvr_status st = lvr_event_queue_push(&d->queue, t.end_ns, LVR_SIM_PRIORITY_FLASH, kind, arg, err);
    if (!st)
        *ret = t;
    return st;
}

lvr_compute_times lvr_sim_device_run(lvr_sim_device *d, lvr_op op, uint32_t rows, uint32_t context)
{
    return lvr_compute_resource_run(&d->compute, d->now_ns, op, rows, context);
}

lvr_status lvr_sim_device_ticket(lvr_sim_device *d, uint64_t submit_ns, lvr_op op, uint32_t rows,
                                 uint32_t context, uint32_t kind, lvr_npu_times *ret, lvr_error *err)
{
    if (d->npu.cost->npu[op].n == 0)
        return lvr_fail(
            err, LVR_ERR_CONFIG,
            "the cost model has no accelerator times for operator %s, but the schedule places it "
            "there; %s",
            lvr_op_name(op),
            op == LVR_OP_DRAFT
                ? "fit it also on a trace recorded with --place-draft npu, or simulate with --place-draft cpu"
                : "fit it also on a trace recorded with --place npu, or simulate with --place cpu");
    const lvr_npu_times t = lvr_npu_resource_run(&d->npu, submit_ns, op, rows, context);
    const lvr_status st = lvr_event_queue_push(&d->queue, t.seen_ns, LVR_SIM_PRIORITY_NPU, kind, 0, err);
    if (!st)
        *ret = t;
    return st;
}

lvr_status lvr_sim_device_signal(lvr_sim_device *d, uint32_t kind, lvr_error *err)
{
    return lvr_event_queue_push(&d->queue, lvr_sim_device_host_ns(d), LVR_SIM_PRIORITY_COMPUTE, kind, 0, err);
}

lvr_status lvr_sim_device_next(lvr_sim_device *d, lvr_sim_event *ret, lvr_error *err)
{
    lvr_sim_event e;
    if (!lvr_event_queue_pop(&d->queue, &e))
        return lvr_fail(err, LVR_ERR_INVARIANT,
                        "simulation: nothing is under way at %" PRIu64 " ns, yet the request is not done",
                        d->now_ns);
    if (e.time_ns < d->now_ns)
        return lvr_fail(err, LVR_ERR_INVARIANT,
                        "simulation: an event at %" PRIu64 " ns after one at %" PRIu64 " ns", e.time_ns,
                        d->now_ns);
    d->now_ns = e.time_ns;
    d->events++;
    *ret = e;
    return LVR_OK;
}
