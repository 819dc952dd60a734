/*
 * Adaptation of the calibration to the text at hand: what the target takes or refuses along the accepted path
 * moves the calibrated probabilities a little, within bounds, for the rest of the request. A property of the
 * calibration: every policy that ranks by it may use it.
 *
 * State: two shifts in logits (lvr_calibration.shift), one for a node's best child and one for all others. A
 * round tells little more than one outcome a committed token, so that finer groups (depths, ranks) would
 * hardly move within a request; and of the others most are never reached, and err alike.
 *
 * Step: at each node of the accepted path, its children in order of rank, up to the worst that the policy
 * chose to verify or the one that was taken, are one outcome y each of their hazards h, and shift += rate *
 * (y - h): gradient steps of the log-likelihood. Which children count is settled before the target is asked,
 * so that hazards stay unbiased, and is within what an oracle recording knows.
 *
 * Deterministic: a function of committed tokens and drafted trees, so that both hosts get the same. Shifts
 * begin at 0 with every request, so that results do not depend on the order of requests.
 */
#ifndef LVR_CORE_ADAPT_H
#define LVR_CORE_ADAPT_H

#include "common/param.h"
#include "costmodel/core/calibration.h"

typedef struct lvr_adapt {
    double rate;  /* logits per outcome that was certain not to come; 0: off */
    double bound; /* largest |shift|, logits */
} lvr_adapt;

#define LVR_ADAPT_PARAMS 2u
extern const lvr_param lvr_adapt_params[LVR_ADAPT_PARAMS]; /* of lvr_adapt: adapt_rate, adapt_bound */

/* The target has put `token` after `node`, the best n_children of whose children count: moves c->shift. */
void lvr_adapt_observe(const lvr_adapt *a, const lvr_tree *tree, uint32_t node, uint32_t n_children,
                       int32_t token, lvr_calibration *c);

/* {rate, bound}. */
lvr_status lvr_adapt_from_yaml(const lvr_yaml_node *map, lvr_adapt *ret, lvr_error *err);
void lvr_adapt_to_yaml(const lvr_adapt *a, lvr_yaml_out *y);

#endif
