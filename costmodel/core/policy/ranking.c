#include "costmodel/core/policy/builtin.h"

#include "common/minmax.h"

#include <math.h>
#include <stdlib.h>

uint32_t lvr_tree_depth(const lvr_tree *tree)
{
    uint32_t depth = 0;
    for (uint32_t i = 0; i < tree->n; i++)
        depth = lvr_max_u32(depth, tree->nodes[i].depth);
    return depth;
}

/* How likely each node is taken if its parent is. Siblings stand together, the best first. */
static void fill_conditional(const lvr_policy_view *view, bool calibrated)
{
    const lvr_tree *tree = view->tree;
    double *p = view->scratch->conditional;
    p[0] = 1.0;
    for (uint32_t i = 1; i < tree->n && !calibrated; i++)
        p[i] = fmin(1.0, (double)tree->nodes[i].p_draft);
    for (uint32_t i = 1, n = 0; i < tree->n && calibrated; i += n) {
        for (n = 1; i + n < tree->n && tree->nodes[i + n].parent == tree->nodes[i].parent;)
            n++;
        lvr_calibrate_siblings(view->calibration, &tree->nodes[i], n, &p[i]);
    }
}

uint32_t lvr_rank_nodes(const lvr_policy_view *view, const lvr_rank_rule *rule)
{
    const lvr_tree *tree = view->tree;
    lvr_policy_scratch *s = view->scratch;
    const uint32_t depth_cap = lvr_min_u32(rule->max_depth, view->max_depth);
    fill_conditional(view, rule->calibrated);
    s->path[0] = s->draft_path[0] = 1.0;
    s->ranked[0] = (lvr_ranked_node){1.0, 0};
    uint32_t n = 1;
    for (uint32_t i = 1; i < tree->n; i++) {
        const lvr_node *node = &tree->nodes[i];
        s->path[i] = s->path[node->parent] * rule->decay * s->conditional[i];
        s->draft_path[i] = s->draft_path[node->parent] * fmin(1.0, (double)node->p_draft);
        if (node->depth <= depth_cap && s->draft_path[i] >= rule->min_path)
            s->ranked[n++] = (lvr_ranked_node){s->path[i], i};
    }
    qsort(s->ranked + 1, n - 1, sizeof s->ranked[0], lvr_by_falling_path);
    return n;
}

static int by_index(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

void lvr_sort_nodes(uint32_t *nodes, uint32_t n)
{
    qsort(nodes, n, sizeof nodes[0], by_index);
}

uint32_t lvr_choose_ranked(const lvr_policy_scratch *scratch, uint32_t n, uint32_t *ret_nodes)
{
    for (uint32_t i = 0; i < n; i++)
        ret_nodes[i] = scratch->ranked[i].node;
    lvr_sort_nodes(ret_nodes, n);
    return n;
}

uint32_t lvr_expand_ranked(const lvr_policy_view *view, uint32_t n_ranked, uint32_t min_depth,
                           uint32_t end_depth, uint32_t *ret_nodes, uint32_t cap)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_ranked && n < cap; i++) {
        const uint32_t v = view->scratch->ranked[i].node;
        const lvr_node *node = &view->tree->nodes[v];
        if (!node->expanded && node->depth >= min_depth && node->depth < end_depth)
            ret_nodes[n++] = v;
    }
    return n;
}

uint32_t lvr_select_ranked(const lvr_policy_view *view, const lvr_rank_rule *rule, uint32_t max_rows,
                           uint32_t *ret_nodes, uint32_t cap)
{
    const uint32_t rows = lvr_min_u32(lvr_min_u32(max_rows, view->max_rows), cap);
    return lvr_choose_ranked(view->scratch, lvr_min_u32(lvr_rank_nodes(view, rule), rows), ret_nodes);
}
