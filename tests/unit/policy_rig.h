/* Grows trees as the round machine does, with a draft that a test scripts, and writes them down as text. */
#ifndef LVR_TESTS_POLICY_RIG_H
#define LVR_TESTS_POLICY_RIG_H

#include "costmodel/core/policy.h"

/* Children of a node, best first; at most `branch`. Returns how many. */
typedef uint32_t (*policy_rig_draft)(const void *user, const lvr_tree *tree, uint32_t node, uint32_t branch,
                                     lvr_candidate *ret);

/* What a policy did. Nodes by their ranks from the root, the root is "."; a draft step's nodes are separated
 * by spaces, steps by " | ". */
struct policy_rig_log {
    char drafted[16384], verified[16384];
    uint32_t n_steps, n_drafted, n_rows;
};

/* `view` gives cost, geometry, calibration and limits; the rest is filled in. Every answer of the policy is
 * checked against what the round machine demands. */
void policy_rig_run(const lvr_policy *policy, const lvr_policy_view *view, policy_rig_draft draft,
                    const void *user, struct policy_rig_log *ret);

/* A draft by table: the children of the node with these ranks ("" for the root); others have none. The table
 * ends with path NULL, the probabilities with 0. */
struct policy_rig_line {
    const char *path;
    float p[8];
};
uint32_t policy_rig_table(const void *user, const lvr_tree *tree, uint32_t node, uint32_t branch,
                          lvr_candidate *ret);

void policy_rig_init(lvr_policy *ret, const char *name);
void policy_rig_set(lvr_policy *p, const char *key, const char *value);

#endif
