/*
 * Oracle recording: generate a request's text, then teacher-force it and record, at every output position,
 * the draft's probabilities at every node any policy could expand within the caps, and the target's token at
 * those nodes (traces/FORMAT.md). Offline: not timed.
 */
#ifndef LVR_ENGINE_ORACLE_H
#define LVR_ENGINE_ORACLE_H

#include "engine/decode.h"

typedef struct lvr_oracle_caps {
    uint32_t branch; /* children recorded per expanded node, 1..LVR_MAX_BRANCH */
    uint32_t
        expansions; /* nodes expanded per position by path probability, besides the most probable chain */
    uint32_t chain; /* length of the most probable chain that is always expanded */
    uint32_t depth;
    double min_path; /* children whose path probability is below are not recorded (the chain's always are) */
    bool exit_auto;  /* exit features after up to three layers, at one, two and three quarters of the depth */
    uint32_t n_exit_layers, exit_layers[LVR_EXIT_MAX_LAYERS]; /* else after these, ascending */
} lvr_oracle_caps;
void lvr_oracle_caps_default(lvr_oracle_caps *caps);

/* All layers resident, no flash. config: paths, sampling, threads, level, n_ctx, prefill_chunk, ignore_eos
 * and cancel are used. */
typedef struct lvr_oracle lvr_oracle;
lvr_status lvr_oracle_new(const lvr_session_config *config, const lvr_oracle_caps *caps, lvr_oracle **ret,
                          lvr_error *err);
void lvr_oracle_free(lvr_oracle *o);
const lvr_tokenizer *lvr_oracle_tokenizer(const lvr_oracle *o);
/* Meta data of an oracle trace; free ret->config_yaml. */
lvr_status lvr_oracle_trace_meta(const lvr_oracle *o, uint32_t n_predict, lvr_trace_meta *ret,
                                 lvr_error *err);

/* Records one request. ret_tokens: malloc'ed output tokens (may be NULL to drop). */
lvr_status lvr_oracle_record(lvr_oracle *o, lvr_trace_lane *lane, uint64_t request, uint32_t domain,
                             const int32_t *prompt, uint32_t n_prompt, uint32_t n_predict,
                             int32_t **ret_tokens, uint32_t *ret_n, lvr_error *err);

#endif
