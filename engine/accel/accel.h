/*
 * Accelerators: units besides the CPU pool that run whole target layers (products, norms and attention of one
 * layer are one ticket, since a phone's NPU pays about 100 us a call). The shape is that of NPU run times:
 * capabilities, an immutable graph per model and row bucket, submit -> ticket, poll or wait, tickets in
 * order. Buffers are the engine's own memory: nothing is copied.
 *
 *   null    runs a ticket inside submit, on the caller, with the caller's kernels: the interface and nothing
 *           else, to compare others with
 *   matrix  a thread of its own that multiplies with the CPU's matrix unit (Intel AMX); without one it uses
 *           the best SIMD level on that same thread, and says so (fallback, reason)
 *
 * Both are exact: bit for bit what the CPU computes (INV-ROW). Delays can be injected, since a thread of this
 * machine is reached faster than a phone's NPU: launch (submission to start, on the unit) and sync (end of
 * the ticket to the return of poll or wait, on the caller). Both sleep and spin only at their end.
 *
 * An accelerator belongs to one thread, which submits and waits; the unit's own thread is inside.
 */
#ifndef LVR_ENGINE_ACCEL_ACCEL_H
#define LVR_ENGINE_ACCEL_ACCEL_H

#include "costmodel/core/cost.h"
#include "engine/forward.h"

typedef struct lvr_accel lvr_accel;
typedef struct lvr_accel_graph lvr_accel_graph; /* immutable */
typedef uint64_t lvr_accel_ticket;              /* 1, 2, 3, ... as submitted */

#define LVR_ACCEL_MAX_DELAY_NS UINT64_C(1000000000)
/* The back ends, by name: options, messages and accel.c's table come from this list. */
#define LVR_ACCEL_BACK_ENDS(X) X(null) X(matrix)
#define LVR_ACCEL_COUNT_ONE(name) +1
enum { LVR_ACCEL_BACK_END_COUNT = 0 LVR_ACCEL_BACK_ENDS(LVR_ACCEL_COUNT_ONE) };
/* Choices of an option: "none", then the back ends, then NULL. */
extern const char *const lvr_accel_choices[LVR_ACCEL_BACK_END_COUNT + 2];
extern const char *const lvr_accel_names; /* "null or matrix", for messages */

typedef struct lvr_accel_config {
    const char *name;
    const lvr_kernels *kernels; /* the caller's, which null reports as its engine; outlives the accelerator */
    uint64_t launch_ns, sync_ns; /* injected, at most LVR_ACCEL_MAX_DELAY_NS */
} lvr_accel_config;

typedef struct lvr_accel_caps {
    const char *name;
    char engine[48]; /* what computes: "amx-int8", "cpu avx2 (no matrix unit)" */
    uint32_t n_buckets, buckets[LVR_NPU_MAX_BUCKETS]; /* rows that graphs are built for */
    bool exact;                                       /* bit for bit the CPU's results */
    bool async;                                       /* submit returns before the ticket has run */
    bool zero_copy;                                   /* works in the engine's memory */
    uint32_t max_inflight;
    bool fallback; /* not the unit it stands for */
    char reason[160];
} lvr_accel_caps;

/* Clock of lvr_now_ns: submit on the caller, start and end where the ticket ran. */
typedef struct lvr_accel_times {
    uint64_t submit_ns, start_ns, end_ns;
} lvr_accel_times;

/* An unknown name is LVR_ERR_CONFIG with "did you mean"; a thread that cannot be started LVR_ERR_IO. */
lvr_status lvr_accel_open(const lvr_accel_config *config, lvr_accel **ret, lvr_error *err);
/* Waits for the ticket that runs; those not started are dropped. Frees all graphs. */
void lvr_accel_close(lvr_accel *a);
const lvr_accel_caps *lvr_accel_get_caps(const lvr_accel *a);
uint64_t lvr_accel_build_ns(const lvr_accel *a); /* spent in building graphs so far */

/* The graph of a model's layers for the bucket that holds `rows`, built when it is first asked for; the
 * accelerator owns it. `f` outlives it. More rows than the largest bucket get a graph of their own. */
lvr_status lvr_accel_graph_get(lvr_accel *a, lvr_forward *f, uint32_t rows, const lvr_accel_graph **ret,
                               lvr_error *err);
uint32_t lvr_accel_graph_bucket(const lvr_accel_graph *g);

/* Runs one layer over the rows of the workspace's current pass (lvr_forward_embed); base as in
 * lvr_forward_layer. Until the ticket is done nobody else may touch the workspace, its cache or the weights.
 * g NULL: an empty ticket. More than max_inflight tickets not yet done: LVR_ERR_INVARIANT. */
lvr_status lvr_accel_submit(lvr_accel *a, const lvr_accel_graph *g, uint32_t layer, const uint8_t *base,
                            lvr_accel_ticket *ret, lvr_error *err);
/* Whether a ticket is done (false also until the injected sync delay is over); then its times. They are kept
 * until max_inflight later tickets have been submitted. */
bool lvr_accel_poll(lvr_accel *a, lvr_accel_ticket ticket, lvr_accel_times *ret);
/* As poll, but waits for up to timeout_ns (UINT64_MAX: until it is done): spins for some 20 us, then sleeps.
 */
bool lvr_accel_wait(lvr_accel *a, lvr_accel_ticket ticket, uint64_t timeout_ns, lvr_accel_times *ret);

#endif
