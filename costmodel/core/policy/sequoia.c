/*
 * Sequoia: a static tree, the same in every round, that maximises the expected number of committed tokens
 * when the target takes a node's r-th best child with a probability that depends on r; its size and depth are
 * those of greatest gain over cost on the device at hand.
 *
 * Taken as published: the dynamic program over size and depth, the choice of size and depth by tokens per
 * second. Which vectors: the calibration's acceptance by rank, by depth of the parent too (published: by rank
 * alone); without them the published power law, in which no child of the first k is taken with probability
 * (1 - rank_1) * k^-power. Adapted: the children are the draft's most probable tokens (published: sampled
 * without replacement); the cost is the cost table's round, one draft step per level priced by its width
 * (published: a constant per level), reads included, in the schedule in use; size and depth are chosen anew
 * every 64 positions, since rows cost more in a longer context. Positions whose node falls below min_path by
 * the draft are left out (published: never, min_path 0).
 */
#include "costmodel/core/policy/builtin.h"

#include "common/minmax.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#define CONTEXT_STEP 64u /* positions that share one choice of size */

typedef struct sequoia_params {
    double rank_1, power, min_path;
    uint32_t branch, max_nodes, max_depth;
} sequoia_params;
_Static_assert(sizeof(sequoia_params) <= LVR_POLICY_PARAMS_BYTES, "policy parameters fit their union");

static const lvr_param sequoia_table[] = {
    {.name = "branch",
     .type = LVR_PARAM_U32,
     .offset = offsetof(sequoia_params, branch),
     .min = 1,
     .max = LVR_MAX_BRANCH,
     .def = 8,
     .unit = "nodes",
     .help = "children kept per expanded node"},
    {.name = "max_nodes",
     .type = LVR_PARAM_U32,
     .offset = offsetof(sequoia_params, max_nodes),
     .min = 1,
     .max = LVR_STATIC_MAX_NODES,
     .def = 64,
     .unit = "nodes",
     .help = "rows of a verification pass, root included, at most",
     .tunable = true},
    {.name = "max_depth",
     .type = LVR_PARAM_U32,
     .offset = offsetof(sequoia_params, max_depth),
     .min = 1,
     .max = LVR_STATIC_MAX_DEPTH,
     .def = 16,
     .unit = "nodes",
     .help = "depth of the tree, at most",
     .tunable = true},
    {.name = "rank_1",
     .type = LVR_PARAM_DOUBLE,
     .offset = offsetof(sequoia_params, rank_1),
     .min = 0,
     .max = 1,
     .def = 0.6,
     .unit = "1",
     .help = "without acceptance vectors: how often the draft's best token is taken"},
    {.name = "power",
     .type = LVR_PARAM_DOUBLE,
     .offset = offsetof(sequoia_params, power),
     .min = 0.1,
     .max = 10,
     .def = 1,
     .unit = "1",
     .help = "without acceptance vectors: exponent of the power law by rank"},
    {.name = "min_path",
     .type = LVR_PARAM_DOUBLE,
     .offset = offsetof(sequoia_params, min_path),
     .min = 0,
     .max = 1,
     .def = 0.01,
     .unit = "1",
     .help = "draft's path probability below which a node is left out; published: 0",
     .tunable = true},
};

static uint32_t sequoia_branch(const void *params)
{
    return ((const sequoia_params *)params)->branch;
}

static void power_law(const sequoia_params *p, double *ret, uint32_t n)
{
    double missed = 1.0; /* no child so far is taken */
    for (uint32_t r = 0; r < n; r++) {
        const double now = (1.0 - p->rank_1) * pow(r + 1.0, -p->power);
        ret[r] = missed - now;
        missed = now;
    }
}

static void vectors_of(const sequoia_params *p, const lvr_calibration *c, lvr_static_vectors *ret)
{
    memset(ret, 0, sizeof *ret);
    ret->max_nodes = p->max_nodes;
    ret->max_depth = p->max_depth;
    ret->branch = c->n_ranks > 0 ? lvr_min_u32(p->branch, c->n_ranks) : p->branch;
    ret->n_depths = lvr_max_u32(c->n_depths, 1);
    if (c->n_depths == 0)
        power_law(p, ret->p[0], ret->branch);
    for (uint32_t d = 0; d < c->n_depths; d++)
        memcpy(ret->p[d], c->by_rank[d], ret->branch * sizeof ret->p[d][0]);
}

static const lvr_static_tree *static_tree(const sequoia_params *p, const lvr_policy_view *view)
{
    lvr_static_vectors v;
    lvr_static_conditions c;
    vectors_of(p, view->calibration, &v);
    memset(&c, 0, sizeof c);
    memcpy(&c.cost, view->cost, sizeof c.cost);
    memcpy(&c.geometry, view->geometry, sizeof c.geometry);
    c.context = view->context / CONTEXT_STEP * CONTEXT_STEP;
    c.max_rows = view->max_rows;
    return lvr_static_tree_choose(&view->scratch->static_tree, &v, &c, view->max_depth);
}

/* Returns the static tree, and the draft's node at each of its positions, -1: none, or below min_path. */
static const lvr_static_tree *place(const sequoia_params *p, const lvr_policy_view *view,
                                    int32_t ret_node[LVR_STATIC_MAX_NODES])
{
    const lvr_static_tree *t = static_tree(p, view);
    const lvr_tree *tree = view->tree;
    lvr_policy_scratch *s = view->scratch;
    s->draft_path[0] = 1.0;
    for (uint32_t i = 0; i < tree->n; i++)
        s->first_child[i] = -1;
    for (uint32_t i = 1; i < tree->n; i++) {
        const lvr_node *v = &tree->nodes[i];
        s->draft_path[i] = s->draft_path[v->parent] * fmin(1.0, (double)v->p_draft);
        if (v->rank == 0)
            s->first_child[v->parent] = (int32_t)i;
    }
    ret_node[0] = 0;
    for (uint32_t i = 1; i < t->n; i++) {
        const int32_t parent = ret_node[t->node[i].parent];
        const int32_t first = parent < 0 ? -1 : s->first_child[parent];
        const uint32_t v = first < 0 ? tree->n : (uint32_t)first + t->node[i].rank;
        const bool is_child = v < tree->n && tree->nodes[v].parent == parent;
        ret_node[i] = is_child && s->draft_path[v] >= p->min_path ? (int32_t)v : -1;
    }
    return t;
}

static uint32_t sequoia_expand(const void *params, const lvr_policy_view *view, uint32_t *ret_nodes,
                               uint32_t cap)
{
    int32_t node[LVR_STATIC_MAX_NODES];
    const lvr_static_tree *t = place(params, view, node);
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->n && n < cap; i++)
        if (node[i] >= 0 && t->node[i].n_children > 0 && !view->tree->nodes[node[i]].expanded)
            ret_nodes[n++] = (uint32_t)node[i];
    return n;
}

static uint32_t sequoia_select(const void *params, const lvr_policy_view *view, uint32_t *ret_nodes,
                               uint32_t cap)
{
    int32_t node[LVR_STATIC_MAX_NODES];
    const lvr_static_tree *t = place(params, view, node);
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->n && n < cap; i++)
        if (node[i] >= 0)
            ret_nodes[n++] = (uint32_t)node[i];
    lvr_sort_nodes(ret_nodes, n);
    return n;
}

const lvr_policy_ops lvr_policy_sequoia = {
    .name = "sequoia",
    .summary = "static tree by dynamic programming over acceptance by rank, sized by the cost table",
    .source = "Sequoia (Chen et al. 2024), https://arxiv.org/abs/2402.12374",
    .params = sequoia_table,
    .n_params = sizeof sequoia_table / sizeof sequoia_table[0],
    .uses_draft = true,
    .needs_cost = true,
    .branch = sequoia_branch,
    .expand = sequoia_expand,
    .select = sequoia_select,
};
