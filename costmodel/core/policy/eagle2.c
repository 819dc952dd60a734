/*
 * EAGLE-2's dynamic draft tree: level by level the `top_k` nodes of greatest path probability are run, each
 * gives `branch` children, and at the end all candidates are ranked anew and the `total_tokens` best are
 * verified. It maximises the expected acceptance under a number of rows and knows no cost.
 *
 * Taken as published: the order (products of the draft's own probabilities), the two phases, top_k 10 and 60
 * rows, root included. Adapted: the deepest node is a parameter by its depth (published: 7 steps after the
 * root's, so 8 levels); children per node are a parameter of their own (published: top_k), 8 by default
 * because that is what oracle recordings keep; nodes below min_path are neither run nor verified (published:
 * none are left out, min_path 0). The draft is a separate model and proposes its most probable tokens.
 */
#include "costmodel/core/policy/builtin.h"

#include "common/minmax.h"

#include <stddef.h>

typedef struct eagle2_params {
    uint32_t top_k, branch, max_depth, total_tokens;
    double min_path;
} eagle2_params;
_Static_assert(sizeof(eagle2_params) <= LVR_POLICY_PARAMS_BYTES, "policy parameters fit their union");

static const lvr_param eagle2_table[] = {
    {.name = "top_k",
     .type = LVR_PARAM_U32,
     .offset = offsetof(eagle2_params, top_k),
     .min = 1,
     .max = 64,
     .def = 10,
     .unit = "nodes",
     .help = "nodes of a level that the draft runs",
     .tunable = true},
    {.name = "branch",
     .type = LVR_PARAM_U32,
     .offset = offsetof(eagle2_params, branch),
     .min = 1,
     .max = LVR_MAX_BRANCH,
     .def = 8,
     .unit = "nodes",
     .help = "children kept per expanded node"},
    {.name = "max_depth",
     .type = LVR_PARAM_U32,
     .offset = offsetof(eagle2_params, max_depth),
     .min = 1,
     .max = LVR_MAX_DEPTH,
     .def = 8,
     .unit = "nodes",
     .help = "depth of the tree: draft steps a round",
     .tunable = true},
    {.name = "total_tokens",
     .type = LVR_PARAM_U32,
     .offset = offsetof(eagle2_params, total_tokens),
     .min = 2,
     .max = LVR_MAX_VERIFY_NODES,
     .def = 60,
     .unit = "nodes",
     .help = "rows of a verification pass, root included",
     .tunable = true},
    {.name = "min_path",
     .type = LVR_PARAM_DOUBLE,
     .offset = offsetof(eagle2_params, min_path),
     .min = 0,
     .max = 1,
     .def = 0.01,
     .unit = "1",
     .help = "draft's path probability below which a node is never considered; published: 0",
     .tunable = true},
};

static lvr_rank_rule rule_of(const eagle2_params *p)
{
    return (lvr_rank_rule){.max_depth = p->max_depth, .min_path = p->min_path, .decay = 1.0};
}

static uint32_t eagle2_branch(const void *params)
{
    return ((const eagle2_params *)params)->branch;
}

static uint32_t eagle2_expand(const void *params, const lvr_policy_view *view, uint32_t *ret_nodes,
                              uint32_t cap)
{
    const eagle2_params *p = params;
    const lvr_rank_rule rule = rule_of(p);
    const uint32_t level = lvr_tree_depth(view->tree);
    if (level >= lvr_min_u32(p->max_depth, view->max_depth))
        return 0;
    const uint32_t n_ranked = lvr_rank_nodes(view, &rule);
    return lvr_expand_ranked(view, n_ranked, level, level + 1, ret_nodes, lvr_min_u32(cap, p->top_k));
}

static uint32_t eagle2_select(const void *params, const lvr_policy_view *view, uint32_t *ret_nodes,
                              uint32_t cap)
{
    const eagle2_params *p = params;
    const lvr_rank_rule rule = rule_of(p);
    return lvr_select_ranked(view, &rule, p->total_tokens, ret_nodes, cap);
}

const lvr_policy_ops lvr_policy_eagle2 = {
    .name = "eagle2",
    .summary = "level by level the most probable nodes, then the best of all are verified",
    .source = "EAGLE-2 (Li et al. 2024), https://arxiv.org/abs/2406.16858",
    .params = eagle2_table,
    .n_params = sizeof eagle2_table / sizeof eagle2_table[0],
    .uses_draft = true,
    .branch = eagle2_branch,
    .expand = eagle2_expand,
    .select = eagle2_select,
};
