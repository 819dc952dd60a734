/*
 * The tuner: the policy's tunable parameters (its own table), its price of time lambda, and, within a DRAM
 * limit, the staging ring and the slice size. A trial is one replay of all tune prompts; every policy gets
 * the same number of them. Deterministic in the seed.
 *
 * lambda is no searched parameter: at the optimum it is the long-run speed itself (renewal reward), so each
 * trial runs under the best speed found so far, and the last trials repeat the best point under its own speed
 * until both agree (the fixed point).
 */
#ifndef LVR_SIM_TUNE_H
#define LVR_SIM_TUNE_H

#include "sim/sim.h"

#define LVR_TUNE_MAX_DIMS 16

typedef void (*lvr_tune_progress)(void *user, uint32_t trial, uint32_t n_trials, double best_tokens_per_s);

typedef struct lvr_tune_config {
    const lvr_policy_file *start;       /* policy with defaults, schedule, conditions, identities */
    const lvr_cost_model *model;        /* timings */
    const lvr_outcome *tune, *held_out; /* held_out: NULL: no prediction */
    const char *const *fixed;           /* [n_fixed] tunable parameters that keep their start value */
    size_t n_fixed;
    uint32_t trials;
    uint64_t seed;
    uint64_t
        ring_budget_bytes; /* 0: schedule as in `start`; else ring slots and slices are searched within it */
    uint64_t slice_bytes_min, slice_bytes_max; /* range in which the flash model is valid */
    lvr_tune_progress progress;                /* may be NULL */
    void *user;
    atomic_bool *cancel; /* NULL: never */
} lvr_tune_config;

typedef struct lvr_tune_trial {
    const char *stage; /* "start", "explore", "refine", "fixed-point" */
    double x[LVR_TUNE_MAX_DIMS];
    double lambda; /* tokens/s; NaN if the policy has none */
    uint32_t ring_slots;
    uint64_t slice_bytes;
    double tokens_per_s, mean_acceptance_length, rows_per_round;
    uint64_t outside_nodes; /* > 0: rejected */
} lvr_tune_trial;

typedef struct lvr_tune_result {
    const char *names[LVR_TUNE_MAX_DIMS]; /* of x: the policy's tunable parameters */
    uint32_t n_names;
    lvr_tune_trial *trials; /* owned, lvr_tune_result_free */
    uint32_t n_trials, best;
    double lambda_gap; /* |lambda - speed| / speed at the best point */
    double held_out_tokens_per_s, held_out_acceptance_length;
    uint64_t held_out_outside_nodes;
    uint32_t n_held_out;
    lvr_policy_file file; /* what to save */
} lvr_tune_result;

/* LVR_ERR_CONFIG if tune and held-out share prompts, if a fixed parameter is none that is searched, or if no
 * trial stayed within the recording. */
lvr_status lvr_tune(const lvr_tune_config *config, lvr_tune_result *ret, lvr_error *err);
void lvr_tune_result_free(lvr_tune_result *r);
void lvr_tune_report_csv(const lvr_tune_result *r, lvr_buf *out);
void lvr_tune_report_json(const lvr_tune_result *r, lvr_buf *out);

#endif
