#include "costmodel/core/tree.h"

#include <stdlib.h>

lvr_status lvr_tree_init(lvr_tree *tree, uint32_t cap, lvr_error *err)
{
    lvr_node *nodes = calloc(cap > 0 ? cap : 1, sizeof *nodes);
    if (!nodes)
        return lvr_fail(err, LVR_ERR_NOMEM, "out of memory for a token tree of %u nodes", cap);
    *tree = (lvr_tree){.nodes = nodes, .cap = cap};
    return LVR_OK;
}

void lvr_tree_free(lvr_tree *tree)
{
    free(tree->nodes);
    *tree = (lvr_tree){0};
}

void lvr_tree_reset(lvr_tree *tree, int32_t root_token)
{
    tree->nodes[0] = (lvr_node){.parent = -1, .token = root_token, .p_draft = 1.0f};
    tree->n = 1;
}

lvr_status lvr_tree_expand(lvr_tree *tree, uint32_t parent, const lvr_candidate *children, uint32_t n,
                           lvr_error *err)
{
    if (parent >= tree->n || tree->nodes[parent].expanded)
        return lvr_fail(err, LVR_ERR_INVARIANT, "token tree: node %u cannot be expanded (%u nodes%s)", parent,
                        tree->n, parent < tree->n ? ", already expanded" : "");
    if (n > tree->cap - tree->n)
        return lvr_fail(err, LVR_ERR_INVARIANT, "token tree: %u more nodes do not fit into %u (has %u)", n,
                        tree->cap, tree->n);
    tree->nodes[parent].expanded = true;
    const uint16_t depth = (uint16_t)(tree->nodes[parent].depth + 1);
    for (uint32_t i = 0; i < n; i++)
        tree->nodes[tree->n++] = (lvr_node){.parent = (int32_t)parent,
                                            .token = children[i].token,
                                            .depth = depth,
                                            .rank = (uint16_t)i,
                                            .p_draft = children[i].p_draft};
    return LVR_OK;
}

int32_t lvr_tree_child(const lvr_tree *tree, uint32_t node, int32_t token)
{
    for (uint32_t i = node + 1; i < tree->n; i++)
        if (tree->nodes[i].parent == (int32_t)node && tree->nodes[i].token == token)
            return (int32_t)i;
    return -1;
}
