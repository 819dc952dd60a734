/*
 * Static trees by dynamic programming over acceptance vectors (Sequoia): for every depth limit l and size m
 * the tree of m nodes, at most l levels below the root, with the greatest expected number of committed
 * tokens, when the target takes the child of rank r of a node at depth d with probability p[d][r]. Depends on
 * the vectors alone, not on a round's draft: computed once and kept.
 */
#ifndef LVR_CORE_POLICY_STATIC_TREE_H
#define LVR_CORE_POLICY_STATIC_TREE_H

#include "costmodel/core/calibration.h"
#include "costmodel/core/cost.h"
#include "costmodel/core/tree.h"

#define LVR_STATIC_MAX_NODES 128u
#define LVR_STATIC_MAX_DEPTH 24u

/* What the best trees depend on. */
typedef struct lvr_static_vectors {
    uint32_t max_nodes, max_depth, branch; /* all at least 1 */
    uint32_t n_depths;                     /* rows of p; the last one stands for deeper nodes too */
    double p[LVR_CALIBRATION_MAX_DEPTHS][LVR_MAX_BRANCH];
} lvr_static_vectors;

/* Nodes level by level, the root first, siblings by rank; parents come before children. */
typedef struct lvr_static_tree {
    uint32_t n, depth; /* n 0: none */
    double gain;       /* expected committed tokens, the target's own included */
    struct {
        int32_t parent;
        uint16_t depth, rank, n_children;
    } node[LVR_STATIC_MAX_NODES];
    uint32_t width[LVR_STATIC_MAX_DEPTH + 1]; /* nodes with children, by depth: what a draft step runs */
} lvr_static_tree;

/* What a tree costs and gains. */
typedef struct lvr_static_shape {
    double gain; /* 0: there is no such tree */
    uint8_t depth, width[LVR_STATIC_MAX_DEPTH];
} lvr_static_shape;

/* Best trees by [depth of their root, up to n_depths - 1][levels below it][nodes]. */
typedef struct lvr_static_plan {
    lvr_static_vectors vectors;
    double value[LVR_CALIBRATION_MAX_DEPTHS][LVR_STATIC_MAX_DEPTH + 1][LVR_STATIC_MAX_NODES + 1];
    uint8_t n_children[LVR_CALIBRATION_MAX_DEPTHS][LVR_STATIC_MAX_DEPTH + 1][LVR_STATIC_MAX_NODES + 1];
    /* Nodes left to the root and its children of lower rank, when it has r + 1 children. */
    uint8_t split[LVR_CALIBRATION_MAX_DEPTHS][LVR_STATIC_MAX_DEPTH + 1][LVR_MAX_BRANCH]
                 [LVR_STATIC_MAX_NODES + 1];
    lvr_static_shape shape[LVR_STATIC_MAX_DEPTH + 1][LVR_STATIC_MAX_NODES + 1]; /* of the whole trees */
} lvr_static_plan;

/* What the size depends on besides. */
typedef struct lvr_static_conditions {
    lvr_cost_table cost;
    lvr_geometry geometry;
    uint32_t context, max_rows;
} lvr_static_conditions;

typedef struct lvr_static_pick {
    uint32_t nodes, depth;
} lvr_static_pick;

/* Remembers the last answers; all zero at first. */
typedef struct lvr_static_tree_memo {
    lvr_static_plan plan;
    lvr_static_conditions conditions;
    lvr_static_pick pick[LVR_STATIC_MAX_DEPTH + 1]; /* by the depth allowed */
    lvr_static_tree tree;
    uint32_t tree_depth; /* allowed when `tree` was picked */
} lvr_static_tree_memo;

/* Computes values, the choices behind them and shapes for plan->vectors. */
void lvr_static_plan_solve(lvr_static_plan *plan);
/* The best tree of exactly n nodes and at most `depth` levels below the root; false: there is none. */
bool lvr_static_plan_tree(const lvr_static_plan *plan, uint32_t n, uint32_t depth, lvr_static_tree *ret);

/* The tree of greatest gain over the round's cost: draft steps by level and width, then the pass. At most
 * max_rows nodes and max_depth levels. The pointer stays valid until the next call. */
const lvr_static_tree *lvr_static_tree_choose(lvr_static_tree_memo *memo, const lvr_static_vectors *vectors,
                                              const lvr_static_conditions *conditions, uint32_t max_depth);

#endif
