/* What the replay asks an outcome source. A node is a handle whose meaning is the source's. */
#ifndef LVR_SIM_OUTCOME_H
#define LVR_SIM_OUTCOME_H

#include "costmodel/core/exit.h"
#include "sim/sim.h"

#define LVR_NO_NODE UINT64_MAX

/* The root at logical position `pos` of a request, LVR_NO_NODE if nothing is known there. */
uint64_t lvr_outcome_root(const lvr_outcome *o, uint32_t request, uint32_t pos);

/* The draft's `branch` best children of `node`, best first, and their handles. What is not recorded is filled
 * with candidates whose tokens match nothing, handle LVR_NO_NODE: of the greatest probability they can have
 * if they were left out for being improbable, else of probability 0. Returns false if a real draft would give
 * children that are not known at all: the node was not expanded in the recording, or more children are asked
 * for than were recorded per node. */
bool lvr_outcome_children(const lvr_outcome *o, uint64_t node, uint32_t branch, lvr_candidate *ret_children,
                          uint64_t *ret_handles);

/* Whether any node has exit features after this layer. */
bool lvr_outcome_has_exit(const lvr_outcome *o, uint32_t layer);
/* The raw exit features recorded for a node after a target layer. False: none are. */
bool lvr_outcome_exit(const lvr_outcome *o, uint64_t node, uint32_t layer, lvr_exit_raw *ret);

/* The target's token at logical position `pos`; -1 beyond what is known. */
int32_t lvr_outcome_token(const lvr_outcome *o, uint32_t request, uint32_t pos);

#endif
