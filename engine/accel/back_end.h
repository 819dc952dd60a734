/* Between accel.c and the back ends: a table of operations per back end, and the tickets they share. */
#ifndef LVR_ENGINE_ACCEL_BACK_END_H
#define LVR_ENGINE_ACCEL_BACK_END_H

#include "engine/accel/accel.h"
#include <stdalign.h>
#include <stdatomic.h>

#define LVR_ACCEL_MAX_INFLIGHT 16u

struct lvr_accel_graph {
    lvr_forward *forward;
    uint32_t bucket;
    lvr_accel_graph *next;
};

/* What a ticket is to run. */
typedef struct lvr_accel_work {
    const lvr_accel_graph *graph; /* NULL: nothing */
    uint32_t layer;
    const uint8_t *base;
    lvr_accel_ticket ticket;
    uint64_t submit_ns;
} lvr_accel_work;

typedef struct lvr_accel_back_end {
    const char *name;
    /* Fills a->caps (name and buckets are set) and a->impl. */
    lvr_status (*open)(lvr_accel *a, lvr_error *err);
    void (*close)(lvr_accel *a); /* also after a failed open */
    /* Runs the work, or has it run (lvr_accel_run) later and in order. */
    void (*submit)(lvr_accel *a, const lvr_accel_work *w);
    /* Returns when `ticket` may be done or at the deadline. */
    void (*block)(lvr_accel *a, lvr_accel_ticket ticket, uint64_t deadline_ns);
} lvr_accel_back_end;

struct lvr_accel {
    const lvr_accel_back_end *back_end;
    lvr_accel_config config;
    lvr_accel_caps caps;
    void *impl;
    lvr_accel_graph *graphs;
    uint64_t build_ns;
    uint64_t n_submitted, n_done;                  /* the caller's view */
    lvr_accel_times times[LVR_ACCEL_MAX_INFLIGHT]; /* of ticket t: [t % LVR_ACCEL_MAX_INFLIGHT] */
    /* Low word of the number of tickets done; releases their times and results. */
    alignas(64) _Atomic uint32_t done_word;
};

/* Runs the work here and now on this thread, with the given kernels, and marks it done; kernels NULL: with
 * the workspace's own and its pool. */
void lvr_accel_run(lvr_accel *a, const lvr_accel_work *w, const lvr_kernels *kernels);

extern const lvr_accel_back_end lvr_accel_null, lvr_accel_matrix;

#endif
