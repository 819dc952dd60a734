/*
 * The gain-cost tree (paper section 4.2, "Mobile-Optimized Drafting"; the formulas are a reconstruction,
 * method.md section 3).
 *
 * J = G - lambda * C with one lambda for all rounds (objective.h), or each round's own G / C for comparison.
 *
 * Path probability falls from parent to child, so for a given draft cost the best tree of n rows is the n
 * best nodes, and J over n is searched exactly. Drafting is one-step look-ahead: run the w most probable
 * unexpanded nodes of the current best tree if, each of them gaining one child worth child_gain of its own
 * probability, J rises.
 *
 * Pruning (paper section 4.3, "Predictor-Based Verification Pruning"; a reconstruction too): after the exit
 * predictor's layers rows go on by their path score, either those of a least score or as many of the best as
 * maximise the sum of scores less lambda times the rest of the round. Which tree is chosen does not yet
 * count on it.
 */
#include "costmodel/core/policy/builtin.h"

#include "common/minmax.h"
#include <stddef.h>
#include <stdlib.h>

typedef enum lever_rule { RULE_RATE, RULE_ROUND } lever_rule;
static const char *const rule_names[] = {"rate", "round", NULL};

typedef enum lever_prune { PRUNE_OFF, PRUNE_THRESHOLD, PRUNE_OBJECTIVE } lever_prune;
static const char *const prune_names[] = {"off", "threshold", "objective", NULL};

typedef struct lever_params {
    double lambda;
    double child_gain;
    double min_path;
    uint32_t branch;
    uint32_t max_nodes;
    uint32_t max_depth;
    uint32_t max_width;
    int rule;  /* lever_rule */
    int prune; /* lever_prune */
    double theta;
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
     .def = 0.9,
     .unit = "1",
     .help = "expected path probability of a node's best child, relative to its own",
     .tunable = true},
    {.name = "min_path",
     .type = LVR_PARAM_DOUBLE,
     .offset = offsetof(lever_params, min_path),
     .min = 0,
     .max = 1,
     .def = 0.005,
     .unit = "1",
     .help =
         "draft's own path probability (not calibrated) below which a node is never considered; lower than "
         "what oracle traces record (lever record --oracle-min-path) no replay can judge it"},
    {.name = "branch",
     .type = LVR_PARAM_U32,
     .offset = offsetof(lever_params, branch),
     .min = 1,
     .max = LVR_MAX_BRANCH,
     .def = 8,
     .unit = "nodes",
     .help = "children kept per expanded node"},
    {.name = "max_nodes",
     .type = LVR_PARAM_U32,
     .offset = offsetof(lever_params, max_nodes),
     .min = 2,
     .max = LVR_MAX_VERIFY_NODES,
     .def = 128,
     .unit = "nodes",
     .help = "rows of a verification pass, root included, at most; fewer as the objective says"},
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
     .def = 6,
     .unit = "nodes",
     .help = "nodes the draft runs in one step",
     .tunable = true},
    {.name = "rule",
     .type = LVR_PARAM_ENUM,
     .offset = offsetof(lever_params, rule),
     .min = 0,
     .max = 1,
     .def = RULE_RATE,
     .choices = rule_names,
     .help = "rate: gain minus lambda times cost; round: each round's own gain over cost"},
    {.name = "prune",
     .type = LVR_PARAM_ENUM,
     .offset = offsetof(lever_params, prune),
     .min = 0,
     .max = 2,
     .def = PRUNE_OFF,
     .choices = prune_names,
     .help = "rows dropped between layers, by the exit predictor. threshold: scores below theta; objective: "
             "those worth less than they cost",
     .tunable = true},
    {.name = "theta",
     .type = LVR_PARAM_DOUBLE,
     .offset = offsetof(lever_params, theta),
     .min = 0,
     .max = 1,
     .def = 0,
     .unit = "1",
     .help = "prune=threshold: least path score that goes on; 0: the predictor's own; 1: none but the root",
     .tunable = true},
};

static uint32_t lever_branch(const void *params)
{
    return ((const lever_params *)params)->branch;
}

typedef struct best_tree {
    uint32_t n_ranked;
    lvr_objective objective;
    double lambda; /* tokens/s */
    lvr_objective_choice choice;
} best_tree;

/* The best tree of what is drafted. Under the rule "round" its own speed is the price of what comes next. */
static best_tree find_best(const lever_params *p, const lvr_policy_view *view)
{
    const lvr_rank_rule rule = {
        .max_depth = p->max_depth, .min_path = p->min_path, .decay = 1.0, .calibrated = true};
    best_tree b = {.objective = lvr_objective_new(view->cost, view->geometry, view->context),
                   .n_ranked = lvr_rank_nodes(view, &rule),
                   .lambda = p->lambda};
    const lvr_ranked_node *ranked = view->scratch->ranked;
    const uint32_t n = lvr_min_u32(lvr_min_u32(p->max_nodes, view->max_rows), b.n_ranked);
    if (p->rule == RULE_RATE) {
        b.choice = lvr_objective_best(&b.objective, ranked, n, view->draft_ns, p->lambda);
        return b;
    }
    b.choice = lvr_objective_best_ratio(&b.objective, ranked, n, view->draft_ns);
    b.lambda = lvr_objective_speed(b.choice.gain, b.choice.cost_ns);
    return b;
}

static double value_of(const best_tree *b, double draft_ns, uint32_t rows, double gain)
{
    return lvr_objective_value(gain, lvr_objective_cost_ns(&b->objective, draft_ns, rows, gain), b->lambda);
}

static uint32_t lever_expand(const void *params, const lvr_policy_view *view, uint32_t *ret_nodes,
                             uint32_t cap)
{
    const lever_params *p = params;
    const lvr_tree *tree = view->tree;
    const uint32_t depth_cap = lvr_min_u32(p->max_depth, view->max_depth);
    const uint32_t row_cap = lvr_min_u32(p->max_nodes, view->max_rows);
    const best_tree best = find_best(p, view);
    double gain = best.choice.gain, best_value = value_of(&best, view->draft_ns, best.choice.rows, gain);
    uint32_t n = 0, n_best = 0;
    for (uint32_t i = 0; i < best.choice.rows && n < cap && n < p->max_width; i++) {
        const lvr_ranked_node r = view->scratch->ranked[i];
        if (tree->nodes[r.node].expanded || tree->nodes[r.node].depth >= depth_cap)
            continue;
        ret_nodes[n++] = r.node;
        gain += r.path * p->child_gain;
        const double draft_ns = view->draft_ns + lvr_objective_draft_ns(&best.objective, &n, 1);
        const double value = value_of(&best, draft_ns, lvr_min_u32(best.choice.rows + n, row_cap), gain);
        if (value > best_value) {
            best_value = value;
            n_best = n;
        }
    }
    return n_best;
}

static uint32_t lever_select(const void *params, const lvr_policy_view *view, uint32_t *ret_nodes,
                             uint32_t cap)
{
    const best_tree best = find_best(params, view);
    return lvr_choose_ranked(view->scratch, lvr_min_u32(best.choice.rows, cap), ret_nodes);
}

/* ---- pruning ---- */

static const lever_params *params_of(const lvr_policy *policy)
{
    return (const void *)policy->params.bytes;
}

static lvr_status lever_check(const lvr_policy *policy, uint32_t n_layers, lvr_error *err)
{
    const lever_params *p = params_of(policy);
    if (p->prune == PRUNE_OFF)
        return LVR_OK;
    if (policy->exit.n == 0)
        return lvr_fail(
            err, LVR_ERR_CONFIG,
            "policy lever: prune=%s needs an exit predictor, and there is none; give --cost FILE or "
            "a policy file that holds one (lever fit, with an oracle trace that has exit features), "
            "or leave pruning out with --set prune=off",
            prune_names[p->prune]);
    const uint32_t last = policy->exit.at[policy->exit.n - 1].layer;
    if (last + 1 >= n_layers)
        return lvr_fail(
            err, LVR_ERR_CONFIG,
            "policy lever: the exit predictor scores rows after layer %u, the target has %u layers "
            "and its last cannot be pruned after; fit the predictor on this target",
            last, n_layers);
    return LVR_OK;
}

static bool lever_scores(const lvr_policy *policy, uint32_t layer, uint32_t n_layers)
{
    return params_of(policy)->prune != PRUNE_OFF && layer + 1 < n_layers &&
           lvr_exit_at(&policy->exit, layer) >= 0;
}

/* Parents come before their children: their scores are no lower, and equals keep the rows' order. */
static void keep_by_objective(double lambda, const lvr_policy_view *view, uint32_t layer, const double *score,
                              uint32_t n_rows, bool *ret_keep)
{
    lvr_ranked_node ranked[LVR_MAX_VERIFY_NODES];
    const lvr_objective o = lvr_objective_new(view->cost, view->geometry, view->context);
    for (uint32_t r = 0; r < n_rows; r++)
        ranked[r] = (lvr_ranked_node){.path = score[r], .node = r};
    qsort(ranked, n_rows, sizeof ranked[0], lvr_by_falling_path);
    const uint32_t n = lvr_objective_keep(&o, ranked, n_rows, layer, lambda);
    for (uint32_t i = 0; i < n; i++)
        ret_keep[ranked[i].node] = true;
}

static void lever_keep(const lvr_policy *policy, const lvr_policy_view *view, uint32_t layer,
                       const lvr_exit_row *rows, uint32_t n_rows, bool *ret_keep)
{
    const lever_params *p = params_of(policy);
    const lvr_exit_layer *at = &policy->exit.at[lvr_exit_at(&policy->exit, layer)];
    const double least = p->theta > 0.0 ? p->theta : at->threshold;
    double score[LVR_MAX_VERIFY_NODES];
    lvr_exit_scores(at, view->tree, view->calibration, rows, n_rows, score);
    if (p->prune == PRUNE_OBJECTIVE) {
        /* Under the rule "round" the tree's own speed is the price, as when it was chosen. */
        const double lambda = p->rule == RULE_RATE ? p->lambda : find_best(p, view).lambda;
        keep_by_objective(lambda, view, layer, score, n_rows, ret_keep);
        return;
    }
    for (uint32_t r = 0; r < n_rows; r++)
        ret_keep[r] = least < 1.0 && score[r] >= least;
}

const lvr_policy_ops lvr_policy_lever = {
    .name = "lever",
    .summary = "token tree that maximises gain minus lambda times the round's cost",
    .source = "paper sections 4.2 and 4.3 (arXiv 2605.16786); formulas reconstructed (inferred)",
    .params = lever_table,
    .n_params = sizeof lever_table / sizeof lever_table[0],
    .uses_draft = true,
    .needs_cost = true,
    .calibrated = true,
    .branch = lever_branch,
    .expand = lever_expand,
    .select = lever_select,
    .scores = lever_scores,
    .keep = lever_keep,
    .check = lever_check,
};
