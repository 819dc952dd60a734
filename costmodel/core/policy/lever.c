/*
 * The gain-cost tree (paper section 4.2, "Mobile-Optimized Drafting"; the formulas are a reconstruction,
 * method.md section 3).
 *
 * G(T) = 1 + sum of path probabilities; C(T) is the round's cost in the schedule in use. Long-run speed is
 * sum G / sum C over rounds, so the optimum maximises J = G - lambda * C with one lambda for all rounds (the
 * optimal long-run rate itself).
 *
 * Path probability falls from parent to child, so for a given draft cost the best tree of n rows is the n
 * best nodes, and J over n is searched exactly. Drafting is one-step look-ahead: run the w most probable
 * unexpanded nodes of the current best tree if, each of them gaining one child worth child_gain of its own
 * probability, J rises.
 */
#include "costmodel/core/policy/builtin.h"

#include <stddef.h>
#include <stdlib.h>

typedef struct lever_params {
    double lambda;
    double child_gain;
    double min_path;
    uint32_t branch;
    uint32_t max_nodes;
    uint32_t max_depth;
    uint32_t max_width;
} lever_params;
_Static_assert(sizeof(lever_params) <= LVR_POLICY_PARAMS_BYTES, "policy parameters fit their union");

static const lvr_param lever_table[] = {
    {.name = "lambda",
     .type = LVR_PARAM_DOUBLE,
     .offset = offsetof(lever_params, lambda),
     .min = 0,
     .max = 1e6,
     .def = 10,
     .unit = "tokens/s",
     .help = "price of a second; at the optimum, the long-run speed itself"},
    {.name = "child_gain",
     .type = LVR_PARAM_DOUBLE,
     .offset = offsetof(lever_params, child_gain),
     .min = 0.05,
     .max = 1,
     .def = 0.6,
     .unit = "1",
     .help = "expected path probability of a node's best child, relative to its own",
     .tunable = true},
    {.name = "min_path",
     .type = LVR_PARAM_DOUBLE,
     .offset = offsetof(lever_params, min_path),
     .min = 0,
     .max = 1,
     .def = 0.01,
     .unit = "1",
     .help = "draft's own path probability (not calibrated) below which a node is never considered",
     .tunable = true},
    {.name = "branch",
     .type = LVR_PARAM_U32,
     .offset = offsetof(lever_params, branch),
     .min = 1,
     .max = LVR_MAX_BRANCH,
     .def = 6,
     .unit = "nodes",
     .help = "children kept per expanded node"},
    {.name = "max_nodes",
     .type = LVR_PARAM_U32,
     .offset = offsetof(lever_params, max_nodes),
     .min = 2,
     .max = LVR_MAX_VERIFY_NODES,
     .def = 48,
     .unit = "nodes",
     .help = "rows of a verification pass, root included",
     .tunable = true},
    {.name = "max_depth",
     .type = LVR_PARAM_U32,
     .offset = offsetof(lever_params, max_depth),
     .min = 1,
     .max = LVR_MAX_DEPTH,
     .def = 16,
     .unit = "nodes",
     .help = "depth of the tree"},
    {.name = "max_width",
     .type = LVR_PARAM_U32,
     .offset = offsetof(lever_params, max_width),
     .min = 1,
     .max = 64,
     .def = 8,
     .unit = "nodes",
     .help = "nodes the draft runs in one step",
     .tunable = true},
};

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint32_t lever_branch(const void *params)
{
    return ((const lever_params *)params)->branch;
}

static int by_falling_path(const void *a, const void *b)
{
    const lvr_ranked_node *x = a, *y = b;
    if (x->path != y->path)
        return x->path > y->path ? -1 : 1;
    return x->node < y->node ? -1 : 1; /* a parent comes before its child of equal probability */
}

/* Ranks the nodes that may be verified; the root is first. Returns how many. The cut is by the draft's own
 * probability, as in oracle recordings: a trace then answers for every calibration. */
static uint32_t rank_nodes(const lever_params *p, const lvr_policy_view *view)
{
    const lvr_tree *tree = view->tree;
    lvr_policy_scratch *s = view->scratch;
    const uint32_t depth_cap = min_u32(p->max_depth, view->max_depth);
    s->path[0] = s->draft_path[0] = 1.0;
    s->ranked[0] = (lvr_ranked_node){1.0, 0};
    uint32_t n = 1;
    for (uint32_t i = 1; i < tree->n; i++) {
        const lvr_node *node = &tree->nodes[i];
        s->path[i] = s->path[node->parent] * lvr_calibrate(view->calibration, node->p_draft);
        s->draft_path[i] = s->draft_path[node->parent] * node->p_draft;
        if (node->depth <= depth_cap && s->draft_path[i] >= p->min_path)
            s->ranked[n++] = (lvr_ranked_node){s->path[i], i};
    }
    qsort(s->ranked + 1, n - 1, sizeof s->ranked[0], by_falling_path);
    return n;
}

static double objective(const lever_params *p, const lvr_policy_view *view, const lvr_round_pricer *price,
                        double gain, double draft_ns, uint32_t rows)
{
    return gain - p->lambda * 1e-9 * lvr_round_price_ns(price, draft_ns, rows, gain, view->context);
}

typedef struct best_tree {
    uint32_t n_ranked, rows;
    double gain, value;
} best_tree;

static best_tree find_best(const lever_params *p, const lvr_policy_view *view, const lvr_round_pricer *price)
{
    const uint32_t n = rank_nodes(p, view);
    const uint32_t cap = min_u32(min_u32(p->max_nodes, view->max_rows), n);
    double gain = 0.0;
    best_tree best = {.n_ranked = n};
    for (uint32_t rows = 1; rows <= cap; rows++) {
        gain += view->scratch->ranked[rows - 1].path;
        const double value = objective(p, view, price, gain, view->draft_ns, rows);
        if (rows == 1 || value > best.value)
            best = (best_tree){.n_ranked = n, .rows = rows, .gain = gain, .value = value};
    }
    return best;
}

static uint32_t lever_expand(const void *params, const lvr_policy_view *view, uint32_t *ret_nodes,
                             uint32_t cap)
{
    const lever_params *p = params;
    const lvr_tree *tree = view->tree;
    const uint32_t depth_cap = min_u32(p->max_depth, view->max_depth);
    const uint32_t row_cap = min_u32(p->max_nodes, view->max_rows);
    const lvr_round_pricer price = lvr_round_pricer_new(view->cost, view->geometry);
    const best_tree best = find_best(p, view, &price);
    double gain = best.gain, best_value = best.value;
    uint32_t n = 0, n_best = 0;
    for (uint32_t i = 0; i < best.rows && n < cap && n < p->max_width; i++) {
        const lvr_ranked_node r = view->scratch->ranked[i];
        if (tree->nodes[r.node].expanded || tree->nodes[r.node].depth >= depth_cap)
            continue;
        ret_nodes[n++] = r.node;
        gain += r.path * p->child_gain;
        const double draft_ns =
            view->draft_ns + lvr_op_cost_ns(&view->cost->op[LVR_OP_DRAFT], n, view->context);
        const double value = objective(p, view, &price, gain, draft_ns, min_u32(best.rows + n, row_cap));
        if (value > best_value) {
            best_value = value;
            n_best = n;
        }
    }
    return n_best;
}

static int by_index(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static uint32_t lever_select(const void *params, const lvr_policy_view *view, uint32_t *ret_nodes,
                             uint32_t cap)
{
    const lever_params *p = params;
    const lvr_round_pricer price = lvr_round_pricer_new(view->cost, view->geometry);
    const best_tree best = find_best(p, view, &price);
    const uint32_t n = min_u32(best.rows, cap);
    for (uint32_t i = 0; i < n; i++)
        ret_nodes[i] = view->scratch->ranked[i].node;
    qsort(ret_nodes, n, sizeof ret_nodes[0], by_index);
    return n;
}

const lvr_policy_ops lvr_policy_lever = {
    .name = "lever",
    .summary = "token tree that maximises gain minus lambda times the round's cost",
    .source = "paper section 4.2 (arXiv 2605.16786); formulas reconstructed (inferred)",
    .params = lever_table,
    .n_params = sizeof lever_table / sizeof lever_table[0],
    .uses_draft = true,
    .needs_cost = true,
    .branch = lever_branch,
    .expand = lever_expand,
    .select = lever_select,
};
