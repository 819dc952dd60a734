/*
 * EdgeLLM (LLMCad): the draft advances one branch at a time. A branch's due length is its confidence times
 * the tokens drafted so far; the branch that lags most behind its due is next (the pacer). When even the most
 * confident tip falls below alpha the tree is verified (the fallback). While the target's weights are loading
 * anyway, drafting goes on (provisional generation).
 *
 * Taken as published: pacer, fallback with alpha 0.01 at first, one branch a step. Adapted: a branch starts
 * at the root or at a token that is not its parent's best child and follows best children; its confidence is
 * the path probability of its tip.
 *
 * alpha after a verification: halved if all was correct, else alpha / 0.5^((N_all - N_correct) / N_all).
 * Texts of the paper at hand have lost that line's layout and show (N_all - N_correct) / N_all alone, while
 * its prose speaks of dividing and of an exponent; the fraction alone would also leave the scale of alpha0
 * after the first wrong token (one in ten wrong: alpha 0.1) and end drafting after a token or two. N_correct
 * are the accepted tokens, N_all those and the longest verified branch that goes on from them: siblings
 * beside an accepted token are not mistakes. alpha is at most 1 and begins anew with each request.
 *
 * Provisional tokens are verified in the same pass instead of waiting for the next
 * one: the cost table says how long the reads hide drafting, nothing under a serial schedule. Verified are
 * the tokens written: nodes that were run, and the best child of each. Nodes below min_path do not count.
 */
#include "costmodel/core/policy/builtin.h"

#include "common/minmax.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

typedef enum alpha_rule { ALPHA_FIXED, ALPHA_ADAPTIVE } alpha_rule;
static const char *const alpha_rule_names[] = {"fixed", "adaptive", NULL};

typedef struct edgellm_params {
    double alpha, min_path;
    int alpha_rule;
    uint32_t branch, max_width, max_depth, max_nodes;
    bool provisional;
} edgellm_params;
_Static_assert(sizeof(edgellm_params) <= LVR_POLICY_PARAMS_BYTES, "policy parameters fit their union");

typedef struct edgellm_memory {
    bool known;
    double alpha;
} edgellm_memory;
_Static_assert(sizeof(edgellm_memory) <= LVR_POLICY_MEMORY_BYTES, "a policy's memory fits its union");

static const lvr_param edgellm_table[] = {
    {.name = "alpha",
     .type = LVR_PARAM_DOUBLE,
     .offset = offsetof(edgellm_params, alpha),
     .min = 0,
     .max = 1,
     .def = 0.01,
     .unit = "1",
     .help = "verify when the most confident branch is below this; adaptive: at first",
     .tunable = true},
    {.name = "alpha_rule",
     .type = LVR_PARAM_ENUM,
     .offset = offsetof(edgellm_params, alpha_rule),
     .min = 0,
     .max = 1,
     .def = ALPHA_ADAPTIVE,
     .choices = alpha_rule_names,
     .help = "adaptive: alpha follows each verification of a request"},
    {.name = "provisional",
     .type = LVR_PARAM_BOOL,
     .offset = offsetof(edgellm_params, provisional),
     .min = 0,
     .max = 1,
     .def = 1,
     .help = "draft on below alpha while the reads hide it"},
    {.name = "branch",
     .type = LVR_PARAM_U32,
     .offset = offsetof(edgellm_params, branch),
     .min = 1,
     .max = LVR_MAX_BRANCH,
     .def = 8,
     .unit = "nodes",
     .help = "children kept per expanded node"},
    {.name = "max_width",
     .type = LVR_PARAM_U32,
     .offset = offsetof(edgellm_params, max_width),
     .min = 1,
     .max = 64,
     .def = 1,
     .unit = "nodes",
     .help = "branches advanced in one draft step; published: 1",
     .tunable = true},
    {.name = "max_depth",
     .type = LVR_PARAM_U32,
     .offset = offsetof(edgellm_params, max_depth),
     .min = 1,
     .max = LVR_MAX_DEPTH,
     .def = 32,
     .unit = "nodes",
     .help = "depth of the tree"},
    {.name = "max_nodes",
     .type = LVR_PARAM_U32,
     .offset = offsetof(edgellm_params, max_nodes),
     .min = 2,
     .max = LVR_MAX_VERIFY_NODES,
     .def = 48,
     .unit = "nodes",
     .help = "rows of a verification pass, root included",
     .tunable = true},
    {.name = "min_path",
     .type = LVR_PARAM_DOUBLE,
     .offset = offsetof(edgellm_params, min_path),
     .min = 0,
     .max = 1,
     .def = 0.005,
     .unit = "1",
     .help = "draft's path probability below which a node is never considered; published: 0",
     .tunable = true},
};

static lvr_rank_rule rule_of(const edgellm_params *p)
{
    return (lvr_rank_rule){.max_depth = p->max_depth, .min_path = p->min_path, .decay = 1.0};
}

static uint32_t edgellm_branch(const void *params)
{
    return ((const edgellm_params *)params)->branch;
}

static bool is_written(const lvr_tree *tree, uint32_t node)
{
    return node == 0 || tree->nodes[node].expanded || tree->nodes[node].rank == 0;
}

static uint32_t count_written(const lvr_policy_view *view, uint32_t n_ranked)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_ranked; i++)
        n += is_written(view->tree, view->scratch->ranked[i].node);
    return n;
}

/* Draft steps that the branch of this tip has had. */
static uint32_t branch_length(const lvr_tree *tree, uint32_t tip)
{
    uint32_t n = 0;
    for (uint32_t v = tip; v > 0 && tree->nodes[v].rank == 0; v = (uint32_t)tree->nodes[v].parent)
        n++;
    return n;
}

/* Whether drafting `width` more nodes takes no longer than filling the staging ring does. */
static bool hidden_by_reads(const lvr_policy_view *view, uint32_t width)
{
    const lvr_objective o = lvr_objective_new(view->cost, view->geometry, view->context);
    return view->geometry->io_mode == LVR_IO_PIPELINED &&
           view->draft_ns + lvr_objective_draft_ns(&o, &width, 1) <= o.price.ring_ns;
}

/* Moves the tips among the ranked nodes to the front of `ranked`, ranked by how far they lag behind. Returns
 * how many; the greatest confidence among them is stored. */
static uint32_t collect_tips(const lvr_policy_view *view, uint32_t n_ranked, uint32_t depth_cap,
                             double *ret_confidence)
{
    const lvr_tree *tree = view->tree;
    lvr_ranked_node *ranked = view->scratch->ranked;
    uint32_t n = 0, drafted = 0;
    for (uint32_t i = 0; i < tree->n; i++)
        drafted += tree->nodes[i].expanded;
    *ret_confidence = 0.0;
    for (uint32_t i = 0; i < n_ranked; i++) {
        const lvr_ranked_node r = ranked[i];
        if (tree->nodes[r.node].expanded || tree->nodes[r.node].depth >= depth_cap)
            continue;
        *ret_confidence = fmax(*ret_confidence, r.path);
        const double lag = drafted * r.path - branch_length(tree, r.node);
        ranked[n++] = (lvr_ranked_node){.path = lag, .node = r.node};
    }
    return n;
}

/* The tip that lags most goes to ranked[at]; the first of equals, the more confident one. */
static void bring_forward(lvr_ranked_node *ranked, uint32_t at, uint32_t n)
{
    uint32_t best = at;
    for (uint32_t i = at + 1; i < n; i++)
        if (ranked[i].path > ranked[best].path)
            best = i;
    const lvr_ranked_node r = ranked[best];
    for (uint32_t i = best; i > at; i--)
        ranked[i] = ranked[i - 1];
    ranked[at] = r;
}

static double alpha_now(const edgellm_params *p, const lvr_policy_memory *memory)
{
    edgellm_memory m = {0};
    if (p->alpha_rule == ALPHA_ADAPTIVE && memory)
        memcpy(&m, memory->bytes, sizeof m);
    return m.known ? m.alpha : p->alpha;
}

/* Depth of the deepest verified node at or below the last accepted one. */
static uint32_t depth_reached(const lvr_round_outcome *o)
{
    uint32_t depth = o->n_accepted;
    for (uint32_t r = 0; r < o->n_rows; r++) {
        uint32_t v = o->rows[r];
        const uint32_t of_row = o->tree->nodes[v].depth;
        while (o->tree->nodes[v].depth > o->n_accepted)
            v = (uint32_t)o->tree->nodes[v].parent;
        if (v == o->last)
            depth = lvr_max_u32(depth, of_row);
    }
    return depth;
}

static void edgellm_observe(const void *params, const lvr_round_outcome *outcome, lvr_policy_memory *memory)
{
    const uint32_t all = depth_reached(outcome), wrong = all - outcome->n_accepted;
    if (all == 0)
        return;
    const double factor = wrong == 0 ? 0.5 : pow(2.0, (double)wrong / all);
    const edgellm_memory m = {.known = true, .alpha = fmin(1.0, alpha_now(params, memory) * factor)};
    memcpy(memory->bytes, &m, sizeof m);
}

static uint32_t edgellm_expand(const void *params, const lvr_policy_view *view, uint32_t *ret_nodes,
                               uint32_t cap)
{
    const edgellm_params *p = params;
    const lvr_rank_rule rule = rule_of(p);
    const uint32_t max_rows = lvr_min_u32(p->max_nodes, view->max_rows);
    const uint32_t n_ranked = lvr_rank_nodes(view, &rule), n_written = count_written(view, n_ranked);
    if (n_written >= max_rows)
        return 0;
    double confidence = 0.0;
    const uint32_t n_tips =
        collect_tips(view, n_ranked, lvr_min_u32(p->max_depth, view->max_depth), &confidence);
    const uint32_t n = lvr_min_u32(lvr_min_u32(n_tips, p->max_width), lvr_min_u32(cap, max_rows - n_written));
    if (n == 0 || (confidence < alpha_now(p, view->memory) && !(p->provisional && hidden_by_reads(view, n))))
        return 0;
    for (uint32_t i = 0; i < n; i++) {
        bring_forward(view->scratch->ranked, i, n_tips);
        ret_nodes[i] = view->scratch->ranked[i].node;
    }
    return n;
}

static uint32_t edgellm_select(const void *params, const lvr_policy_view *view, uint32_t *ret_nodes,
                               uint32_t cap)
{
    const edgellm_params *p = params;
    const lvr_rank_rule rule = rule_of(p);
    const uint32_t rows = lvr_min_u32(lvr_min_u32(p->max_nodes, view->max_rows), cap);
    const uint32_t n_ranked = lvr_rank_nodes(view, &rule);
    lvr_ranked_node *ranked = view->scratch->ranked;
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_ranked && n < rows; i++)
        if (is_written(view->tree, ranked[i].node))
            ranked[n++] = ranked[i];
    return lvr_choose_ranked(view->scratch, n, ret_nodes);
}

const lvr_policy_ops lvr_policy_edgellm = {
    .name = "edgellm",
    .summary = "branches paced by confidence, fallback threshold, drafting while weights load",
    .source = "EdgeLLM / LLMCad (Xu et al. 2023), https://arxiv.org/abs/2309.04255",
    .params = edgellm_table,
    .n_params = sizeof edgellm_table / sizeof edgellm_table[0],
    .uses_draft = true,
    .needs_cost = true,
    .branch = edgellm_branch,
    .expand = edgellm_expand,
    .select = edgellm_select,
    .observe = edgellm_observe,
};
