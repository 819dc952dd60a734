/* Small synthetic traces for tests of fit, sim, tune and correlate: texts, a made-up draft that is right
 * about as often as it says, and the oracle trees of such a pair. */
#ifndef LVR_TESTS_SIM_RIG_H
#define LVR_TESTS_SIM_RIG_H

#include "sim/inputs.h"

typedef struct sim_rig {
    uint64_t seed;
    uint64_t
        outcome_seed; /* what the target makes of it: the draft's trees at a position do not depend on this */
    uint32_t n_requests, n_prompt, n_output;
    uint32_t branch, depth, expansions; /* the recording's caps */
    double min_path;                    /* children below are left out, but for a node's best */
    const char *target_sha256, *draft_sha256;
    const char *config; /* of the recording; NULL: none */
    bool exits;         /* with exit features after layer 0, which know a little of what the target takes */
} sim_rig;

extern const sim_rig sim_rig_default;

/* A path in a fresh temporary directory. */
char *sim_rig_path(const char *name);
/* Removes the file, its directory and the string. */
void sim_rig_discard(char *path);
/* Writes an oracle trace. Fails the test on error. */
void sim_rig_write_oracle(const sim_rig *rig, const char *path);
lvr_outcome *sim_rig_outcome(const sim_rig *rig);
/* The same, opened as sim, tune and correlate want it. Free with lvr_sim_oracle_free. */
lvr_sim_oracle sim_rig_oracle(const sim_rig *rig);

/* Layers of `bytes` each, all streamed, slices of 64 KiB, two ring slots. */
lvr_geometry sim_rig_geometry(uint32_t n_layers, uint64_t bytes, lvr_io_mode mode);
/* Constant times with a slope: layer 100 us + 5 us a row, draft 40 us + 2 us a row, ...; one flash lane of
 * 100 us + 1 GB/s. */
lvr_cost_table sim_rig_cost(void);
lvr_run_conditions sim_rig_conditions(void);
lvr_policy sim_rig_policy(const char *name, const lvr_cost_table *cost);
/* The policy with the rig's geometry, conditions and model hashes. */
lvr_policy_file sim_rig_file(const sim_rig *rig, const lvr_policy *policy, const lvr_geometry *g);
/* Writes the run as a trace of the given kind: simulated, or as if it had been measured. */
void sim_rig_write_timing(const lvr_policy_file *pf, const lvr_outcome *o, const lvr_cost_table *cost,
                          lvr_trace_kind kind, const char *device, const char *path);
/* Runs all requests; fails the test on error. */
lvr_sim_result sim_rig_run(const lvr_outcome *o, const lvr_policy *policy, const lvr_geometry *g,
                           const lvr_cost_table *cost);

#endif
