/* The policies of this library, one file each, and the working memory they share. */
#ifndef LVR_CORE_POLICY_BUILTIN_H
#define LVR_CORE_POLICY_BUILTIN_H

#include "costmodel/core/policy.h"

extern const lvr_policy_ops lvr_policy_ar;
extern const lvr_policy_ops lvr_policy_chain;
extern const lvr_policy_ops lvr_policy_lever;
extern const lvr_policy_ops lvr_policy_random;

typedef struct lvr_ranked_node {
    double path; /* probability of the path by the calibrated draft */
    uint32_t node;
} lvr_ranked_node;

struct lvr_policy_scratch {
    double draft_path[LVR_MAX_TREE_NODES]; /* by node: probability of the path by the draft alone */
    double path[LVR_MAX_TREE_NODES];       /* by node */
    lvr_ranked_node
        ranked[LVR_MAX_TREE_NODES]; /* parents before children, then by falling path probability */
    bool chosen[LVR_MAX_TREE_NODES];
};

/* The last node of the most probable chain from the root: follows each expanded node's best child. */
uint32_t lvr_chain_end(const lvr_tree *tree);

#endif
