/* Autoregressive decoding: no draft, one row a pass. The baseline that every other policy must equal token
 * for token. */
#include "costmodel/core/policy/builtin.h"

static uint32_t ar_branch(const void *params)
{
    (void)params;
    return 1;
}

static uint32_t ar_expand(const void *params, const lvr_policy_view *view, uint32_t *ret_nodes, uint32_t cap)
{
    (void)params, (void)view, (void)ret_nodes, (void)cap;
    return 0;
}

static uint32_t ar_select(const void *params, const lvr_policy_view *view, uint32_t *ret_nodes, uint32_t cap)
{
    (void)params, (void)view, (void)cap;
    ret_nodes[0] = 0;
    return 1;
}

const lvr_policy_ops lvr_policy_ar = {
    .name = "ar",
    .summary = "autoregressive: the target alone, one token a pass",
    .source = "the paper's flash-offloaded baseline (abstract)",
    .branch = ar_branch,
    .expand = ar_expand,
    .select = ar_select,
};
