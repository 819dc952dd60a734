/*
 * OPT-Tree: the expected acceptance length of the best tree of `nodes` drafted nodes is the sum of their path
 * probabilities. The draft runs level after level; a level that raises this sum by no more than `threshold`
 * is the last one.
 *
 * Taken as published: the sum, the stop rule, its default threshold of 0.5 token and 50 nodes, depth 10.
 * Adapted: of the newest level only nodes among the best `nodes` of the whole tree are run. The others cannot
 * have a descendant among the best later, since a path's probability only falls: the same tree with narrower
 * steps. The sum is compared as soon as a level is known (the published program looks one level behind).
 * Children per node are limited to `branch` (published: `nodes`), 8 by default because that is what oracle
 * recordings keep; nodes below min_path do not count (published: min_path 0).
 */
#include "costmodel/core/policy/builtin.h"

#include "common/minmax.h"

#include <stddef.h>

typedef struct opttree_params {
    double threshold, min_path;
    uint32_t nodes, branch, max_depth;
} opttree_params;
_Static_assert(sizeof(opttree_params) <= LVR_POLICY_PARAMS_BYTES, "policy parameters fit their union");

static const lvr_param opttree_table[] = {
    {.name = "threshold",
     .type = LVR_PARAM_DOUBLE,
     .offset = offsetof(opttree_params, threshold),
     .min = 0,
     .max = 1,
     .def = 0.5,
     .unit = "tokens",
     .help = "least rise of the expected acceptance length for which another level is drafted",
     .tunable = true},
    {.name = "nodes",
     .type = LVR_PARAM_U32,
     .offset = offsetof(opttree_params, nodes),
     .min = 1,
     .max = LVR_MAX_VERIFY_NODES - 1,
     .def = 50,
     .unit = "nodes",
     .help = "drafted nodes verified in a pass",
     .tunable = true},
    {.name = "branch",
     .type = LVR_PARAM_U32,
     .offset = offsetof(opttree_params, branch),
     .min = 1,
     .max = LVR_MAX_BRANCH,
     .def = 8,
     .unit = "nodes",
     .help = "children kept per expanded node"},
    {.name = "max_depth",
     .type = LVR_PARAM_U32,
     .offset = offsetof(opttree_params, max_depth),
     .min = 1,
     .max = LVR_MAX_DEPTH,
     .def = 10,
     .unit = "nodes",
     .help = "depth of the tree",
     .tunable = true},
    {.name = "min_path",
     .type = LVR_PARAM_DOUBLE,
     .offset = offsetof(opttree_params, min_path),
     .min = 0,
     .max = 1,
     .def = 0.01,
     .unit = "1",
     .help = "draft's path probability below which a node is never considered; published: 0",
     .tunable = true},
};

static lvr_rank_rule rule_of(const opttree_params *p)
{
    return (lvr_rank_rule){.max_depth = p->max_depth, .min_path = p->min_path, .decay = 1.0};
}

static uint32_t opttree_branch(const void *params)
{
    return ((const opttree_params *)params)->branch;
}

/* Expected accepted nodes of the best tree of `nodes` drafted nodes no deeper than `depth`. */
static double expected_length(const lvr_policy_view *view, uint32_t n_ranked, uint32_t nodes, uint32_t depth)
{
    double sum = 0.0;
    for (uint32_t i = 1, taken = 0; i < n_ranked && taken < nodes; i++) {
        const lvr_ranked_node r = view->scratch->ranked[i];
        if (view->tree->nodes[r.node].depth > depth)
            continue;
        sum += r.path;
        taken++;
    }
    return sum;
}

static uint32_t opttree_expand(const void *params, const lvr_policy_view *view, uint32_t *ret_nodes,
                               uint32_t cap)
{
    const opttree_params *p = params;
    const lvr_rank_rule rule = rule_of(p);
    const uint32_t level = lvr_tree_depth(view->tree);
    if (level >= lvr_min_u32(p->max_depth, view->max_depth))
        return 0;
    const uint32_t n_ranked = lvr_rank_nodes(view, &rule);
    const uint32_t nodes = lvr_min_u32(p->nodes, view->max_rows - 1);
    if (level > 0 &&
        expected_length(view, n_ranked, nodes, level) - expected_length(view, n_ranked, nodes, level - 1) <=
            p->threshold)
        return 0;
    return lvr_expand_ranked(view, lvr_min_u32(n_ranked, nodes + 1), level, level + 1, ret_nodes, cap);
}

static uint32_t opttree_select(const void *params, const lvr_policy_view *view, uint32_t *ret_nodes,
                               uint32_t cap)
{
    const opttree_params *p = params;
    const lvr_rank_rule rule = rule_of(p);
    return lvr_select_ranked(view, &rule, p->nodes + 1, ret_nodes, cap);
}

const lvr_policy_ops lvr_policy_opttree = {
    .name = "opttree",
    .summary = "best tree of n nodes; drafts on while a level raises the expected acceptance enough",
    .source = "OPT-Tree (Wang et al. 2024), https://arxiv.org/abs/2406.17276",
    .params = opttree_table,
    .n_params = sizeof opttree_table / sizeof opttree_table[0],
    .uses_draft = true,
    .branch = opttree_branch,
    .expand = opttree_expand,
    .select = opttree_select,
};
