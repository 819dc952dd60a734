/* The back end that adds nothing: a ticket runs inside submit, as the CPU would have run it. */
#include "engine/accel/back_end.h"

#include <stdio.h>

static lvr_status open_null(lvr_accel *a, lvr_error *err)
{
    (void)err;
    a->caps.exact = true;
    a->caps.zero_copy = true;
    snprintf(a->caps.engine, sizeof a->caps.engine, "the CPU itself (%s)",
             lvr_cpu_level_name(a->config.kernels->level));
    return LVR_OK;
}

static void close_null(lvr_accel *a)
{
    (void)a;
}

static void submit_null(lvr_accel *a, const lvr_accel_work *w)
{
    lvr_accel_run(a, w, NULL);
}

/* A ticket is done when submit returns. */
static void block_null(lvr_accel *a, lvr_accel_ticket ticket, uint64_t deadline_ns)
{
    (void)a;
    (void)ticket;
    (void)deadline_ns;
}

const lvr_accel_back_end lvr_accel_null = {
    .name = "null",
    .open = open_null,
    .close = close_null,
    .submit = submit_null,
    .block = block_null,
};
