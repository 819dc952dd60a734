/*
 * SMART's marginal rule: a node is kept as long as its gain over its cost exceeds the tree's gain over the
 * tree's cost, so that each node kept raises the round's own speed. Decided level by level, before the draft
 * runs the nodes; what is kept is run and verified.
 *
 *   alpha * P(v) / dC(v)  >  (1 + sum of P) / C
 *
 * Taken from its abstract and a second-hand summary: the rule, the discount alpha < 1 for the draft's
 * optimism, greedy over a beam per level (the full text was not at hand; alpha and the beam are ours, the
 * beam that of EAGLE-2, which it is a plug-in for). Adapted: C is the cost table's round (its own fit of
 * verification time is a power law on one GPU), reads included, in the schedule in use; a node's dC is its
 * share of the draft step that runs it and its row of the pass. Nodes below min_path do not count.
 *
 * Differs from `lever` in maximising each round's own ratio, node by node, without groups that fill a bucket,
 * and on the draft's own probabilities.
 */
#include "costmodel/core/policy/builtin.h"

#include "common/minmax.h"

#include <stddef.h>

typedef struct smart_params {
    double alpha, min_path;
    uint32_t branch, max_width, max_depth, max_nodes;
} smart_params;
_Static_assert(sizeof(smart_params) <= LVR_POLICY_PARAMS_BYTES, "policy parameters fit their union");

static const lvr_param smart_table[] = {
    {.name = "alpha",
     .type = LVR_PARAM_DOUBLE,
     .offset = offsetof(smart_params, alpha),
     .min = 0.1,
     .max = 1,
     .def = 0.9,
     .unit = "1",
     .help = "factor on a node's gain: how far the draft's probabilities are trusted",
     .tunable = true},
    {.name = "branch",
     .type = LVR_PARAM_U32,
     .offset = offsetof(smart_params, branch),
     .min = 1,
     .max = LVR_MAX_BRANCH,
     .def = 8,
     .unit = "nodes",
     .help = "children kept per expanded node"},
    {.name = "max_width",
     .type = LVR_PARAM_U32,
     .offset = offsetof(smart_params, max_width),
     .min = 1,
     .max = 64,
     .def = 10,
     .unit = "nodes",
     .help = "nodes of a level that are considered",
     .tunable = true},
    {.name = "max_depth",
     .type = LVR_PARAM_U32,
     .offset = offsetof(smart_params, max_depth),
     .min = 1,
     .max = LVR_MAX_DEPTH,
     .def = 16,
     .unit = "nodes",
     .help = "depth of the tree",
     .tunable = true},
    {.name = "max_nodes",
     .type = LVR_PARAM_U32,
     .offset = offsetof(smart_params, max_nodes),
     .min = 2,
     .max = LVR_MAX_VERIFY_NODES,
     .def = 60,
     .unit = "nodes",
     .help = "rows of a verification pass, root included"},
    {.name = "min_path",
     .type = LVR_PARAM_DOUBLE,
     .offset = offsetof(smart_params, min_path),
     .min = 0,
     .max = 1,
     .def = 0.01,
     .unit = "1",
     .help = "draft's path probability below which a node is never considered",
     .tunable = true},
};

static uint32_t smart_branch(const void *params)
{
    return ((const smart_params *)params)->branch;
}

/* The tree kept so far: the root and what the draft has run. Returns its rows, marks them in chosen. */
static uint32_t kept_rows(const lvr_policy_view *view, double *ret_gain)
{
    uint32_t rows = 1;
    view->scratch->chosen[0] = true;
    *ret_gain = 1.0;
    for (uint32_t i = 1; i < view->tree->n; i++) {
        const bool kept = view->tree->nodes[i].expanded;
        view->scratch->chosen[i] = kept;
        rows += kept;
        *ret_gain += kept ? view->scratch->path[i] : 0.0;
    }
    return rows;
}

/* The nodes of level `depth` worth keeping, best first; `drafted`: if they are to be run as well. Marks them
 * in chosen, with the tree kept so far. */
static uint32_t keep_level(const smart_params *p, const lvr_policy_view *view, uint32_t depth, bool drafted,
                           uint32_t *ret_nodes, uint32_t cap)
{
    const lvr_rank_rule rule = {.max_depth = p->max_depth, .min_path = p->min_path, .decay = 1.0};
    const lvr_objective o = lvr_objective_new(view->cost, view->geometry, view->context);
    const uint32_t n_ranked = lvr_rank_nodes(view, &rule);
    const uint32_t max_rows = lvr_min_u32(p->max_nodes, view->max_rows);
    const uint32_t want = lvr_min_u32(cap, p->max_width);
    double gain = 0.0;
    uint32_t rows = kept_rows(view, &gain), n = 0;
    double cost = lvr_objective_cost_ns(&o, view->draft_ns, rows, gain);
    for (uint32_t i = 1; i < n_ranked && n < want && rows < max_rows; i++) {
        const lvr_ranked_node r = view->scratch->ranked[i];
        if (view->tree->nodes[r.node].depth != depth || view->tree->nodes[r.node].expanded)
            continue;
        const uint32_t width = n + 1;
        const double draft_ns = view->draft_ns + (drafted ? lvr_objective_draft_ns(&o, &width, 1) : 0.0);
        const double next = lvr_objective_cost_ns(&o, draft_ns, rows + 1, gain + r.path);
        if (!lvr_objective_pays(gain, cost, p->alpha * r.path, next - cost))
            break; /* the next one gains less at the same cost */
        ret_nodes[n++] = r.node;
        view->scratch->chosen[r.node] = true;
        gain += r.path;
        cost = next;
        rows++;
    }
    return n;
}

static uint32_t smart_expand(const void *params, const lvr_policy_view *view, uint32_t *ret_nodes,
                             uint32_t cap)
{
    const smart_params *p = params;
    const uint32_t level = lvr_tree_depth(view->tree);
    if (cap == 0 || level >= lvr_min_u32(p->max_depth, view->max_depth))
        return 0;
    if (!view->tree->nodes[0].expanded) {
        ret_nodes[0] = 0;
        return 1;
    }
    return level > 0 ? keep_level(p, view, level, true, ret_nodes, cap) : 0;
}

/* Nodes of the deepest level allowed cannot be run any more, only verified. */
static uint32_t smart_select(const void *params, const lvr_policy_view *view, uint32_t *ret_nodes,
                             uint32_t cap)
{
    const smart_params *p = params;
    const uint32_t depth_cap = lvr_min_u32(p->max_depth, view->max_depth);
    keep_level(p, view, depth_cap, false, ret_nodes, cap);
    uint32_t n = 0;
    for (uint32_t i = 0; i < view->tree->n && n < cap && n < view->max_rows; i++)
        if (view->scratch->chosen[i])
            ret_nodes[n++] = i;
    return n;
}

const lvr_policy_ops lvr_policy_smart = {
    .name = "smart",
    .summary = "keeps a node while its gain over cost exceeds the tree's",
    .source = "SMART (Wang and Zhou 2026), https://arxiv.org/abs/2604.09731 (abstract and second-hand notes)",
    .params = smart_table,
    .n_params = sizeof smart_table / sizeof smart_table[0],
    .uses_draft = true,
    .needs_cost = true,
    .branch = smart_branch,
    .expand = smart_expand,
    .select = smart_select,
};
