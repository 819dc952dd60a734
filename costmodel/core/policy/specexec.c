/*
 * SpecExec: best-first growth under a budget. The draft runs the most probable nodes not run yet, many at a
 * time, as long as one of them is among the `max_budget` best of all; these are verified.
 *
 * Taken as published: the score (path probability times 0.95 per level), 32 nodes a step, the stop when no
 * new node is better than the worst that is kept. Adapted: the budget is limited to the rows of one pass
 * (published: 16 to 4096; 128 here), children per node to 16, 8 by default because that is what oracle
 * recordings keep (published: 16); nodes below min_path do not count (published: a limit exists and is off).
 * Only nodes within the budget are run: the published program also runs candidates that a later step pushes
 * out of it.
 */
#include "costmodel/core/policy/builtin.h"

#include "common/minmax.h"

#include <stddef.h>

typedef struct specexec_params {
    uint32_t max_budget, max_width, max_steps, branch, max_depth;
    double decay, min_path;
} specexec_params;
_Static_assert(sizeof(specexec_params) <= LVR_POLICY_PARAMS_BYTES, "policy parameters fit their union");

static const lvr_param specexec_table[] = {
    {.name = "max_budget",
     .type = LVR_PARAM_U32,
     .offset = offsetof(specexec_params, max_budget),
     .min = 1,
     .max = LVR_MAX_VERIFY_NODES - 1,
     .def = 128,
     .unit = "nodes",
     .help = "drafted nodes verified in a pass",
     .tunable = true},
    {.name = "max_width",
     .type = LVR_PARAM_U32,
     .offset = offsetof(specexec_params, max_width),
     .min = 1,
     .max = 64,
     .def = 32,
     .unit = "nodes",
     .help = "nodes the draft runs in one step",
     .tunable = true},
    {.name = "max_steps",
     .type = LVR_PARAM_U32,
     .offset = offsetof(specexec_params, max_steps),
     .min = 1,
     .max = LVR_MAX_EXPANSIONS,
     .def = LVR_MAX_EXPANSIONS,
     .unit = "steps",
     .help = "draft steps a round"},
    {.name = "branch",
     .type = LVR_PARAM_U32,
     .offset = offsetof(specexec_params, branch),
     .min = 1,
     .max = LVR_MAX_BRANCH,
     .def = 8,
     .unit = "nodes",
     .help = "children kept per expanded node"},
    {.name = "max_depth",
     .type = LVR_PARAM_U32,
     .offset = offsetof(specexec_params, max_depth),
     .min = 1,
     .max = LVR_MAX_DEPTH,
     .def = 32,
     .unit = "nodes",
     .help = "depth of the tree"},
    {.name = "decay",
     .type = LVR_PARAM_DOUBLE,
     .offset = offsetof(specexec_params, decay),
     .min = 0.5,
     .max = 1,
     .def = 0.95,
     .unit = "1",
     .help = "factor on the path probability per level: how far the draft is trusted",
     .tunable = true},
    {.name = "min_path",
     .type = LVR_PARAM_DOUBLE,
     .offset = offsetof(specexec_params, min_path),
     .min = 0,
     .max = 1,
     .def = 0.01,
     .unit = "1",
     .help = "draft's path probability below which a node is never considered; published: 0",
     .tunable = true},
};

static lvr_rank_rule rule_of(const specexec_params *p)
{
    return (lvr_rank_rule){.max_depth = p->max_depth, .min_path = p->min_path, .decay = p->decay};
}

static uint32_t specexec_branch(const void *params)
{
    return ((const specexec_params *)params)->branch;
}

static uint32_t specexec_expand(const void *params, const lvr_policy_view *view, uint32_t *ret_nodes,
                                uint32_t cap)
{
    const specexec_params *p = params;
    const lvr_rank_rule rule = rule_of(p);
    const uint32_t depth_cap = lvr_min_u32(p->max_depth, view->max_depth);
    if (view->n_steps >= p->max_steps)
        return 0;
    const uint32_t kept =
        lvr_min_u32(lvr_rank_nodes(view, &rule), lvr_min_u32(p->max_budget + 1, view->max_rows));
    return lvr_expand_ranked(view, kept, 0, depth_cap, ret_nodes, lvr_min_u32(cap, p->max_width));
}

static uint32_t specexec_select(const void *params, const lvr_policy_view *view, uint32_t *ret_nodes,
                                uint32_t cap)
{
    const specexec_params *p = params;
    const lvr_rank_rule rule = rule_of(p);
    return lvr_select_ranked(view, &rule, p->max_budget + 1, ret_nodes, cap);
}

const lvr_policy_ops lvr_policy_specexec = {
    .name = "specexec",
    .summary = "best-first tree under a budget, expanded many nodes at a time",
    .source = "SpecExec (Svirschevski et al. 2024), https://arxiv.org/abs/2406.02532",
    .params = specexec_table,
    .n_params = sizeof specexec_table / sizeof specexec_table[0],
    .uses_draft = true,
    .branch = specexec_branch,
    .expand = specexec_expand,
    .select = specexec_select,
};
