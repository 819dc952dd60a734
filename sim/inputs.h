/* What sim, tune and correlate start from: a cost model and an outcome source, whether they belong together,
 * and whose prompts they share. */
#ifndef LVR_SIM_INPUTS_H
#define LVR_SIM_INPUTS_H

#include "sim/sim.h"

typedef struct lvr_sim_oracle {
    lvr_outcome *outcome; /* owned */
    char path[256];
    char target_name[128], draft_name[128];
    char target_sha256[LVR_SHA256_HEX_BYTES], draft_sha256[LVR_SHA256_HEX_BYTES];
    bool synthetic; /* recorded with random weights, or not recorded at all */
    double temperature, top_p;
    uint32_t top_k;
    char kv_type[8]; /* of the caches it was recorded with; "": not known */
} lvr_sim_oracle;

/* A /config that cannot be read is an error; a trace without one says nothing of its caches. */
lvr_status lvr_sim_oracle_load(const char *path, lvr_sim_oracle *ret, lvr_error *err);
void lvr_sim_oracle_free(lvr_sim_oracle *o);

/* Acceptance and timings of different models, another way of sampling or another type of KV cache:
 * LVR_ERR_CONFIG unless what_if, which sets *ret_mixed. */
lvr_status lvr_sim_check_pair(const lvr_cost_model *m, const char *cost_path, const lvr_sim_oracle *o,
                              bool what_if, bool *ret_mixed, lvr_error *err);

/* Requests of `o` whose prompt the model was fitted on. */
uint32_t lvr_sim_count_fit_prompts(const lvr_cost_model *m, const lvr_outcome *o);
/* Requests of `a` whose prompt is in `b`. */
uint32_t lvr_sim_count_shared_prompts(const lvr_outcome *a, const lvr_outcome *b);

/* Policy by name, or from a policy file (what has a slash, ends in .yaml, or is a file); then each of
 * set[n_set] ("key=value"). A name gets the cost model's table, calibration and exit predictor; a file keeps
 * its own. *ret is a whole policy file either way: with a name, schedule, conditions and identities are the
 * cost model's, and layers are placed by price if it has prices for an accelerator. model may be NULL with a
 * file. */
lvr_status lvr_sim_policy(const char *name_or_file, const char *const *set, size_t n_set,
                          const lvr_cost_model *model, lvr_policy_file *ret, lvr_error *err);

/* Replaces the model's flash by a device preset's, slowed down by `scale` (0 < scale <= 1), as the engine's
 * emulation would: at most as deep as the model's own reads were. The device's identity is then no longer
 * known. */
lvr_status lvr_sim_emulate(lvr_cost_model *m, const char *preset, double scale, lvr_error *err);

/* Context that holds every request of `o`: prompt and output. */
uint32_t lvr_sim_context_needed(const lvr_outcome *o);
/* Raises context and tokens asked for, where they are smaller, to what the texts of `o` need. */
void lvr_sim_make_room(lvr_run_conditions *c, const lvr_outcome *o);

#endif
