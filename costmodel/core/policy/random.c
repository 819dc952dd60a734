/* Random trees, a pure function of (seed, request, position, step): fuzzes losslessness and spreads row
 * counts for kernel fits. Random pruning is one of (seed, request, position, node, layer). */
#include "costmodel/core/policy/builtin.h"

#include "common/rng.h"

#include <stddef.h>
#include <string.h>

typedef struct random_params {
    uint32_t branch, max_nodes, max_steps, max_width;
    double prune;
} random_params;
_Static_assert(sizeof(random_params) <= LVR_POLICY_PARAMS_BYTES, "policy parameters fit their union");

static const lvr_param random_table[] = {
    {.name = "branch",
     .type = LVR_PARAM_U32,
     .offset = offsetof(random_params, branch),
     .min = 1,
     .max = LVR_MAX_BRANCH,
     .def = 6,
     .unit = "nodes",
     .help = "children kept per expanded node"},
    {.name = "max_nodes",
     .type = LVR_PARAM_U32,
     .offset = offsetof(random_params, max_nodes),
     .min = 1,
     .max = LVR_MAX_VERIFY_NODES,
     .def = 48,
     .unit = "nodes",
     .help = "rows of a verification pass, root included"},
    {.name = "max_steps",
     .type = LVR_PARAM_U32,
     .offset = offsetof(random_params, max_steps),
     .min = 0,
     .max = 32,
     .def = 6,
     .unit = "steps",
     .help = "draft steps a round"},
    {.name = "max_width",
     .type = LVR_PARAM_U32,
     .offset = offsetof(random_params, max_width),
     .min = 1,
     .max = 64,
     .def = 8,
     .unit = "nodes",
     .help = "nodes the draft runs in one step"},
    {.name = "prune",
     .type = LVR_PARAM_DOUBLE,
     .offset = offsetof(random_params, prune),
     .min = 0,
     .max = 1,
     .def = 0,
     .unit = "1",
     .help = "probability that a row is dropped after a layer, with all that hangs on it"},
};

/* One stream a call, so that a call's result depends on its inputs only. */
static uint64_t call_key(const lvr_policy_view *view)
{
    return lvr_mix64(view->seed ^
                     lvr_mix64(view->request ^ lvr_mix64(((uint64_t)view->position << 16) | view->n_steps)));
}

static void call_rng(lvr_rng *rng, const lvr_policy_view *view, const char *call)
{
    lvr_rng_init(rng, call_key(view), call);
}

static uint32_t random_branch(const void *params)
{
    return ((const random_params *)params)->branch;
}

static uint32_t random_expand(const void *params, const lvr_policy_view *view, uint32_t *ret_nodes,
                              uint32_t cap)
{
    const random_params *p = params;
    lvr_rng rng;
    call_rng(&rng, view, "expand");
    if (view->n_steps >= p->max_steps || lvr_rng_below(&rng, 8) == 0)
        return 0;
    const uint32_t want = 1 + (uint32_t)lvr_rng_below(&rng, p->max_width);
    uint32_t n = 0;
    for (uint32_t i = 0; i < view->tree->n && n < cap && n < want; i++) {
        const lvr_node *node = &view->tree->nodes[i];
        if (!node->expanded && node->depth < view->max_depth && (i == 0 || lvr_rng_below(&rng, 3) == 0))
            ret_nodes[n++] = i;
    }
    return n;
}

static uint32_t random_select(const void *params, const lvr_policy_view *view, uint32_t *ret_nodes,
                              uint32_t cap)
{
    const random_params *p = params;
    bool *chosen = view->scratch->chosen;
    lvr_rng rng;
    call_rng(&rng, view, "select");
    memset(chosen, 0, sizeof view->scratch->chosen);
    chosen[0] = true;
    uint32_t n = 0;
    ret_nodes[n++] = 0;
    const uint64_t keep_of_8 = 1 + lvr_rng_below(&rng, 8);
    const uint32_t limit = 1 + (uint32_t)lvr_rng_below(&rng, p->max_nodes);
    for (uint32_t i = 1; i < view->tree->n && n < cap && n < view->max_rows && n < limit; i++) {
        const lvr_node *node = &view->tree->nodes[i];
        if (!chosen[node->parent] || node->depth > view->max_depth || lvr_rng_below(&rng, 8) >= keep_of_8)
            continue;
        chosen[i] = true;
        ret_nodes[n++] = i;
    }
    return n;
}

static bool random_scores(const lvr_policy *policy, uint32_t layer, uint32_t n_layers)
{
    const random_params *p = (const void *)policy->params.bytes;
    return p->prune > 0.0 && layer + 1 < n_layers;
}

static void random_keep(const lvr_policy *policy, const lvr_policy_view *view, uint32_t layer,
                        const lvr_exit_row *rows, uint32_t n_rows, bool *ret_keep)
{
    const random_params *p = (const void *)policy->params.bytes;
    for (uint32_t r = 0; r < n_rows; r++) {
        lvr_rng rng;
        lvr_rng_init(&rng, lvr_mix64(call_key(view) ^ (uint64_t)rows[r].node << 16 ^ layer), "keep");
        ret_keep[r] = lvr_rng_unit(&rng) >= p->prune;
    }
}

const lvr_policy_ops lvr_policy_random = {
    .name = "random",
    .summary = "random trees: fuzzes losslessness, spreads row counts when recording timings",
    .source = "own",
    .params = random_table,
    .n_params = sizeof random_table / sizeof random_table[0],
    .uses_draft = true,
    .branch = random_branch,
    .expand = random_expand,
    .select = random_select,
    .scores = random_scores,
    .keep = random_keep,
    .keeps_blindly = true,
};
