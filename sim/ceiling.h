/*
 * The ceiling: the speed that no policy can pass on these texts, under the same cost table and schedule, and
 * where a simulated run lost against it.
 *
 * A chooser in hindsight knows at every root how far the target's own text runs through the draft's recorded
 * tree. It drafts nothing but nodes of that path (a step of one row each, with the catch-up rows that a real
 * round pays), verifies k + 1 rows, runs k + 1 heads, and chooses every round's k, and whether the last node
 * is drafted on for the next round's sake, by dynamic programming over the positions of a text. It plans
 * nothing. It never pays more for few rows than the table asks for more of them (fitted curves may dip).
 *
 * A text's price, for the chooser and for a policy's own rounds alike:
 *   serial      sum of (rest + T_io + V)
 *   pipelined   sum of rest + max(sum of V, sum of (T_io - credit))
 * rest: draft, heads, commit, plan; V: embedding and layers; credit: what the ring can take in during `rest`,
 * in a text's first round the whole ring. Sums, not rounds, are compared with each other: reads run ahead
 * across rounds, so a long computation pays for a later round's reads, and the sum of each round's own price
 * (cost.h) would be passed: by up to 13 % on the embedded traces. Of this price the simulator can never need
 * less: nothing is read faster, and never more ahead than the ring. For the chooser the maximum is relaxed to
 * the best weighted mean of its two sides (Lagrange), which keeps it a bound. Either
 * way the ceiling is rather too high than too low.
 */
#ifndef LVR_SIM_CEILING_H
#define LVR_SIM_CEILING_H

#include "sim/sim.h"

typedef struct lvr_ceiling {
    /* Of the chooser: with the recorded draft, and with one that is right down to the greatest depth. */
    double tokens_per_s, perfect_draft_tokens_per_s;
    double fraction; /* the run's speed / tokens_per_s; at most 1 */
    /* Shares of the run's decode time; 1 - their sum is what the perfect draft would have needed. */
    struct {
        double draft;    /* the recorded draft against the perfect one */
        double tree;     /* the policy's rounds, choosing them included, against the chooser's */
        double pruning;  /* layers as they were run against all rows in all layers; a gain is negative */
        double schedule; /* the simulated time against the price of the same rounds: stalls and waking up */
    } loss;
} lvr_ceiling;

/* Of a finished run with keep_rounds set. Made-up texts (an acceptance file's) or a run without its rounds
 * are LVR_ERR_USAGE. */
lvr_status lvr_ceiling_of_run(const lvr_sim_config *config, const lvr_sim_result *result, lvr_ceiling *ret,
                              lvr_error *err);

#endif
