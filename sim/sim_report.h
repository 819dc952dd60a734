/* The result of a simulation for people and programs. Keys mean what they mean for `lever run`. */
#ifndef LVR_SIM_SIM_REPORT_H
#define LVR_SIM_SIM_REPORT_H

#include "common/buf.h"
#include "sim/ceiling.h"

typedef struct lvr_sim_report {
    const lvr_policy *policy;
    const lvr_geometry *geometry;
    const lvr_cost_table *cost;
    const lvr_outcome *outcome;
    const lvr_sim_result *result;
    const lvr_ceiling *ceiling; /* NULL: not asked for */
    const char *timing_source;
    bool synthetic, what_if;
    uint32_t n_fit_prompts; /* requests whose prompts the cost model was fitted on */
    uint64_t host_wall_ns;  /* of the simulator itself: the only figures that differ from run to run, written
                               last */
} lvr_sim_report;

void lvr_sim_report_json(const lvr_sim_report *r, lvr_buf *out);
void lvr_sim_report_text(const lvr_sim_report *r, lvr_buf *out);

/* Meta data of a simulated timing trace; `config` is the formatted policy file and is borrowed. */
void lvr_sim_trace_meta(const lvr_policy_file *pf, const char *target_name, const char *draft_name,
                        bool synthetic, char *config, lvr_trace_meta *ret);

/* Logs a warning for every operator that was called with more rows than the cost model has seen. */
void lvr_sim_warn_ranges(const lvr_cost_model *m, const lvr_sim_result *r);

#endif
