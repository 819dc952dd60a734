/* The policies of this library, one file each, and the working memory they share. */
#ifndef LVR_CORE_POLICY_BUILTIN_H
#define LVR_CORE_POLICY_BUILTIN_H

#include "costmodel/core/objective.h"
#include "costmodel/core/policy.h"
#include "costmodel/core/policy/static_tree.h"

struct lvr_policy_scratch {
    double draft_path[LVR_MAX_TREE_NODES];  /* by node: probability of the path by the draft alone */
    double conditional[LVR_MAX_TREE_NODES]; /* by node: given its parent */
    double path[LVR_MAX_TREE_NODES];        /* by node: what nodes are ranked by */
    lvr_ranked_node
        ranked[LVR_MAX_TREE_NODES]; /* the root, then by falling path: parents before their children */
    bool chosen[LVR_MAX_TREE_NODES];
    int32_t first_child[LVR_MAX_TREE_NODES]; /* by node, -1: none */
    lvr_static_tree_memo static_tree;
};

/* The last node of the most probable chain from the root: follows each expanded node's best child. */
uint32_t lvr_chain_end(const lvr_tree *tree);
/* Depth of the deepest node. */
uint32_t lvr_tree_depth(const lvr_tree *tree);

/* Which nodes count, and what they are ranked by. */
typedef struct lvr_rank_rule {
    uint32_t max_depth; /* deeper nodes do not count (nor those beyond the view's max_depth) */
    double min_path;    /* nodes of less draft path probability do not count */
    double decay;       /* factor per level; 1: none */
    bool calibrated;    /* by the calibrated draft, else by the draft alone */
} lvr_rank_rule;

/* Fills scratch->draft_path, path and ranked; returns how many nodes count, the root included. The cut is by
 * the draft's own probability, as in oracle recordings: a trace then answers for every calibration. Any
 * prefix of `ranked` is a tree. */
uint32_t lvr_rank_nodes(const lvr_policy_view *view, const lvr_rank_rule *rule);

void lvr_sort_nodes(uint32_t *nodes, uint32_t n); /* ascending */
/* The first n of scratch->ranked as a policy's choice: ascending. Returns n. */
uint32_t lvr_choose_ranked(const lvr_policy_scratch *scratch, uint32_t n, uint32_t *ret_nodes);
/* Those of the first n_ranked of scratch->ranked that the draft has not run and that lie at min_depth <=
 * depth < end_depth, best first; `cap` at most. Returns how many. */
uint32_t lvr_expand_ranked(const lvr_policy_view *view, uint32_t n_ranked, uint32_t min_depth,
                           uint32_t end_depth, uint32_t *ret_nodes, uint32_t cap);
/* Ranks, and chooses the best as far as max_rows, the view's rows and `cap` allow. Returns how many. */
uint32_t lvr_select_ranked(const lvr_policy_view *view, const lvr_rank_rule *rule, uint32_t max_rows,
                           uint32_t *ret_nodes, uint32_t cap);

#endif
