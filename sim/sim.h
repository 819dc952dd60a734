/*
 * The simulator: a second host of the round machine. Actions become work on simulated resources, ends of work
 * become events in one queue ordered (time, priority, sequence); time is integer nanoseconds. Same inputs
 * give byte-identical results.
 */
#ifndef LVR_SIM_SIM_H
#define LVR_SIM_SIM_H

#include "costmodel/core/policy_file.h"
#include "costmodel/core/round.h"
#include "costmodel/fit/fit.h"
#include "traces/trace.h"
#include <stdatomic.h>

/* ---- where children and the target's tokens come from ---- */

typedef struct lvr_outcome lvr_outcome; /* immutable: may be shared by threads */

/* Exact replay of an oracle trace (kept in memory, indexed by request and position). */
lvr_status lvr_outcome_from_oracle(lvr_trace *oracle, lvr_outcome **ret, lvr_error *err);
/* Synthetic: acceptance by rank and depth from a YAML/JSON file (configs/acceptance); tokens are
 * placeholders. */
lvr_status lvr_outcome_from_acceptance(const char *path, uint64_t seed, uint32_t n_requests,
                                       uint32_t n_prompt, uint32_t n_output, lvr_outcome **ret,
                                       lvr_error *err);
void lvr_outcome_free(lvr_outcome *o);
uint32_t lvr_outcome_n_requests(const lvr_outcome *o);
/* What the trees are complete for; UINT32_MAX where there is no limit. */
typedef struct lvr_outcome_caps {
    uint32_t branch, depth;
    double min_path; /* draft path probability below which nodes were not recorded; 0: none */
} lvr_outcome_caps;
lvr_outcome_caps lvr_outcome_get_caps(const lvr_outcome *o);
bool lvr_outcome_synthetic(const lvr_outcome *o);
/* Where it came from, for results: path, and the model pair's names or the acceptance file's own. */
const char *lvr_outcome_source(const lvr_outcome *o);

typedef struct lvr_sim_request {
    uint64_t id, prompt_hash;
    uint32_t domain;
    const int32_t *prompt;
    uint32_t n_prompt, n_output; /* n_output: tokens the oracle knows */
    const int32_t *output;
} lvr_sim_request;
void lvr_outcome_request(const lvr_outcome *o, uint32_t i, lvr_sim_request *ret);

/* ---- replay ---- */

typedef struct lvr_sim_config {
    const lvr_policy *policy;
    const lvr_geometry *geometry;
    const lvr_cost_table *cost; /* timings (may differ from what the policy prices with) */
    bool flash_unknown;         /* cost->flash is a placeholder: a schedule that streams is LVR_ERR_CONFIG */
    uint64_t wake_ns;           /* from a slice's arrival to the start of the operator that waited for it */
    lvr_run_conditions conditions; /* n_predict: tokens asked for, 0: as many as the text has */
    const lvr_outcome *outcome;
    const uint32_t *requests; /* indices into outcome; NULL: all */
    uint32_t n_requests;
    const uint64_t *request_ids; /* what the machine takes as request ids, for policies that draw at random;
                                    NULL: the outcome's */
    bool keep_rounds;            /* fill the result's rounds */
    lvr_trace_writer *trace;     /* write a simulated timing trace, or NULL; the caller closes it */
    atomic_bool *cancel;         /* set elsewhere: the run stops with LVR_ERR_INTERRUPTED; NULL: never */
} lvr_sim_config;

/* One pass: from the commit before it (or the request's begin) to its own commit. */
typedef struct lvr_sim_round {
    uint32_t request; /* index into the run's requests */
    bool prefill;
    uint32_t n_rows, n_kept, n_accepted; /* n_kept: went through all layers */
    uint64_t start_ns, end_ns;
    uint64_t
        op_ns[LVR_OP_COUNT]; /* of the host's time, by operator: computing, or waiting for the accelerator */
    uint64_t wait_ns;        /* the host waited for flash, waking up included */
} lvr_sim_round;

typedef struct lvr_sim_result {
    uint64_t n_tokens, rounds, drafted_rows, verified_rows, accepted, draft_steps, bytes_read, events,
        outside_nodes;
    double
        expected_accepted; /* sum over rounds, by the policy's calibration (as fitted), before any pruning */
    uint64_t pruned_rows;  /* of verified_rows: dropped before the last layer */
    uint64_t prefill_ns, decode_ns, simulated_ns, ttft_ns; /* ttft: mean over requests */
    uint64_t n_prompt;                                     /* prompt tokens */
    uint64_t flash_idle_ns; /* nothing was in flight since the ring was full; serial mode: 0 */
    uint64_t flash_busy_ns, compute_busy_ns, flash_wait_ns, draft_ns, layer_ns, head_ns, plan_ns, score_ns,
        commit_ns;                     /* layer: embedding too, and tickets from start to end */
    uint64_t npu_busy_ns, npu_wait_ns; /* wait: the host had nothing to do until its ticket was done */
    uint64_t npu_tickets;
    uint32_t npu_max_rows; /* most rows of a ticket */
    uint32_t
        max_rows[LVR_OP_COUNT]; /* most rows of one call, by operator: for the cost model's valid range */
    int32_t *tokens;            /* committed tokens, requests one after another; owned, lvr_sim_result_free */
    uint32_t *tokens_per_request;
    uint32_t *rounds_per_request;
    uint64_t *decode_ns_per_request;
    uint32_t n_requests;
    lvr_sim_round *round_log;
    size_t n_round_log;
} lvr_sim_result;

/* Conservation (bytes, rows, tokens, time) is checked at the end: a broken law is LVR_ERR_INVARIANT, 0 tokens
 * or 0 events too. */
lvr_status lvr_sim_run(const lvr_sim_config *config, lvr_sim_result *ret, lvr_error *err);
void lvr_sim_result_free(lvr_sim_result *r);
/* As lvr_sim_run, after setting the policy's price of time to the speed that it buys: replays (without a
 * trace) until the fixed point. config->policy must be `policy`. A policy without such a parameter ("lambda")
 * just runs. */
lvr_status lvr_sim_run_at_own_price(const lvr_sim_config *config, lvr_policy *policy, lvr_sim_result *ret,
                                    lvr_error *err);
const lvr_param *lvr_sim_price_param(const lvr_policy *policy); /* NULL: the policy has none */
/* Timings of a cost model. */
void lvr_sim_use_model(lvr_sim_config *config, const lvr_cost_model *m);
double lvr_sim_tokens_per_s(const lvr_sim_result *r); /* decode: tokens / decode time */

#endif
