/*
 * A measured run against its simulated twin: the same requests, policy and schedule (rebuilt from the trace's
 * own configuration), outcomes from an oracle trace, times from a cost model. What differs in the conditions
 * comes first, how busy things were second, errors third: a figure that is off because the conditions differ
 * must not look like a bad model.
 */
#ifndef LVR_SIM_CORRELATE_H
#define LVR_SIM_CORRELATE_H

#include "sim/inputs.h"

#define LVR_CORRELATE_MAX_DIFFS 32
#define LVR_CORRELATE_STAGES 9

typedef struct lvr_config_diff {
    char what[48];
    char model[96], measured[96]; /* of the cost model's conditions, of the measured run's */
} lvr_config_diff;

/* mean_error = sum(simulated) / sum(measured) - 1; p50, p90, p99 over passes of |simulated - measured| /
 * mean(measured). Measured operators include the host time around them (costmodel/fit/spans.h), as the cost
 * model's do. */
typedef struct lvr_stage_error {
    const char *name;
    double measured_s, simulated_s;
    double share;                     /* of the measured time */
    double mean_error, p50, p90, p99; /* NaN: nothing was measured, or the passes cannot be paired */
} lvr_stage_error;

typedef struct lvr_utilisation {
    double flash, compute, waiting; /* of the time of all requests */
} lvr_utilisation;

typedef struct lvr_correlation {
    lvr_config_diff diffs[LVR_CORRELATE_MAX_DIFFS];
    uint32_t n_diffs;
    lvr_utilisation measured, simulated;
    lvr_stage_error stages[LVR_CORRELATE_STAGES];
    uint32_t n_stages;
    bool commits_equal; /* token for token */
    bool rounds_equal;  /* the same passes: rows, rows left and accepted nodes */
    uint64_t n_tokens, n_rounds, outside_nodes;
    double measured_tokens_per_s, simulated_tokens_per_s, tokens_per_s_error;
    double measured_acceptance_length, simulated_acceptance_length;
    uint32_t n_requests, n_fit_prompts; /* n_fit_prompts > 0: a calibration, no claim of accuracy */
    char policy[32];
} lvr_correlation;

/* LVR_ERR_CONFIG if judged prompts are among the cost model's fit prompts and that was not allowed, if the
 * oracle trace lacks a measured prompt, or if the models differ. */
lvr_status lvr_correlate(const char *measured_path, const lvr_sim_oracle *oracle, const lvr_cost_model *model,
                         bool allow_fit_prompts, lvr_correlation *ret, lvr_error *err);
void lvr_correlate_text(const lvr_correlation *c, lvr_buf *out);
void lvr_correlate_json(const lvr_correlation *c, lvr_buf *out);

#endif
