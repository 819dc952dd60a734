/* Conventional speculative decoding: a chain of the draft's most probable tokens, of fixed length or stopped
 * by confidence. */
#include "costmodel/core/policy/builtin.h"

#include <stddef.h>

typedef struct chain_params {
    uint32_t k;
    double p_min;
} chain_params;
_Static_assert(sizeof(chain_params) <= LVR_POLICY_PARAMS_BYTES, "policy parameters fit their union");

static const lvr_param chain_table[] = {
    {.name = "k",
     .type = LVR_PARAM_U32,
     .offset = offsetof(chain_params, k),
     .min = 1,
     .max = 32,
     .def = 4,
     .unit = "tokens",
     .help = "draft tokens a round",
     .tunable = true},
    {.name = "p_min",
     .type = LVR_PARAM_DOUBLE,
     .offset = offsetof(chain_params, p_min),
     .min = 0,
     .max = 1,
     .def = 0,
     .unit = "1",
     .help = "stop before a token whose draft probability is below this; 0: a chain of fixed length",
     .tunable = true},
};

uint32_t lvr_chain_end(const lvr_tree *tree)
{
    uint32_t end = 0;
    for (uint32_t i = 1; i < tree->n; i++)
        if (tree->nodes[i].parent == (int32_t)end && tree->nodes[i].rank == 0)
            end = i;
    return end;
}

static uint32_t chain_branch(const void *params)
{
    (void)params;
    return 1;
}

/* The chain may go on from `end`. */
static bool confident(const chain_params *p, const lvr_tree *tree, uint32_t end)
{
    return end == 0 || tree->nodes[end].p_draft >= p->p_min;
}

static uint32_t chain_expand(const void *params, const lvr_policy_view *view, uint32_t *ret_nodes,
                             uint32_t cap)
{
    const chain_params *p = params;
    const uint32_t end = lvr_chain_end(view->tree);
    const uint32_t depth = view->tree->nodes[end].depth;
    if (cap == 0 || view->tree->nodes[end].expanded || depth >= p->k || depth >= view->max_depth ||
        depth + 2 > view->max_rows || !confident(p, view->tree, end))
        return 0;
    ret_nodes[0] = end;
    return 1;
}

static uint32_t chain_select(const void *params, const lvr_policy_view *view, uint32_t *ret_nodes,
                             uint32_t cap)
{
    const chain_params *p = params;
    uint32_t n = 0, end = 0;
    ret_nodes[n++] = 0;
    for (uint32_t i = 1; i < view->tree->n && n < cap && n < view->max_rows; i++) {
        if (view->tree->nodes[i].parent != (int32_t)end || view->tree->nodes[i].rank != 0)
            continue;
        if (view->tree->nodes[i].p_draft < p->p_min)
            break;
        end = i;
        ret_nodes[n++] = i;
    }
    return n;
}

const lvr_policy_ops lvr_policy_chain = {
    .name = "chain",
    .summary = "conventional speculative decoding: a chain of k draft tokens",
    .source = "the paper's conventional baseline (abstract); Leviathan et al. 2023, "
              "https://arxiv.org/abs/2211.17192",
    .params = chain_table,
    .n_params = sizeof chain_table / sizeof chain_table[0],
    .uses_draft = true,
    .branch = chain_branch,
    .expand = chain_expand,
    .select = chain_select,
};
