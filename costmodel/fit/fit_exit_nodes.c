/* Trees and raw exit features of a trace, put together. Both streams are in order of request, position and
 * node. */
#include "costmodel/fit/fit_exit.h"

#include "common/rng.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Where reading has come to. */
typedef struct reading {
    lvr_trace *trace;
    const lvr_rec_exit *raw;
    uint64_t n_raw, next;
} reading;

static lvr_status grow(lvr_exit_nodes *nodes, size_t more, lvr_error *err)
{
    if (nodes->cap - nodes->n >= more)
        return LVR_OK;
    const size_t cap = nodes->n + more;
    lvr_exit_node *items =
        cap <= SIZE_MAX / sizeof(*items) ? realloc(nodes->items, cap * sizeof(*items)) : NULL;
    if (!items)
        return lvr_fail(err, LVR_ERR_NOMEM, "fit: out of memory for %zu nodes", cap);
    nodes->items = items;
    nodes->cap = cap;
    return LVR_OK;
}

/* The layers are those of the first node that has rows. */
static lvr_status learn_layers(const reading *r, lvr_exit_nodes *nodes, lvr_error *err)
{
    const lvr_rec_exit *first = r->raw;
    uint32_t n = 0;
    bool same = true; /* as before */
    for (uint64_t i = 0; i < r->n_raw && r->raw[i].request == first->request && r->raw[i].pos == first->pos &&
                         r->raw[i].node == first->node;
         i++) {
        if (n == LVR_EXIT_MAX_LAYERS)
            return lvr_fail(err, LVR_ERR_FORMAT, "%s: /exit: a node has more than %u layers",
                            lvr_trace_path(r->trace), LVR_EXIT_MAX_LAYERS);
        same = same && n < nodes->n_layers && nodes->layers[n] == r->raw[i].layer;
        if (nodes->n_layers == 0)
            nodes->layers[n] = r->raw[i].layer;
        n++;
    }
    if (nodes->n_layers > 0 && (!same || n != nodes->n_layers))
        return lvr_fail(
            err, LVR_ERR_CONFIG,
            "%s: exit features are of other layers than in the traces before it; record them with "
            "the same --exit-layers",
            lvr_trace_path(r->trace));
    for (uint32_t i = 1; i < n; i++)
        if (nodes->layers[i] <= nodes->layers[i - 1])
            return lvr_fail(err, LVR_ERR_FORMAT, "%s: /exit: layer %u after %u, expected them to ascend",
                            lvr_trace_path(r->trace), nodes->layers[i], nodes->layers[i - 1]);
    if ((uint64_t)nodes->layers[n - 1] + 1 >= nodes->depth)
        return lvr_fail(err, LVR_ERR_FORMAT, "%s: /exit: layer %u, expected one before the last of %u",
                        lvr_trace_path(r->trace), nodes->layers[n - 1], nodes->depth);
    nodes->n_layers = n;
    return LVR_OK;
}

/* The rows of one node, if they are next. */
static lvr_status take_raw(reading *r, const lvr_exit_nodes *nodes, const lvr_rec_tree *v, lvr_exit_node *ret,
                           lvr_error *err)
{
    for (uint32_t l = 0; l < nodes->n_layers; l++, r->next++) {
        const lvr_rec_exit *x = r->next < r->n_raw ? &r->raw[r->next] : NULL;
        const bool same = x && x->request == v->request && x->pos == v->pos && x->node == v->node;
        if (!same && l == 0)
            return LVR_OK;
        if (!same || x->layer != nodes->layers[l])
            return lvr_fail(err, LVR_ERR_FORMAT,
                            "%s: /exit: request %" PRIu64
                            " position %u node %u: expected one row for each of the %u recorded layers",
                            lvr_trace_path(r->trace), v->request, v->pos, v->node, nodes->n_layers);
        ret->raw[l] = (lvr_exit_raw){x->score, x->slice_lse, x->slice_max, x->slice_entropy};
    }
    ret->known = true;
    return LVR_OK;
}

/* Whether node i of its tree stands where the draft's order puts it. */
static bool in_place(const lvr_rec_tree *tree, uint64_t i)
{
    const lvr_rec_tree *v = &tree[i];
    if (i >= LVR_MAX_RECORDED_NODES || v->node != i)
        return false;
    if (i == 0)
        return v->parent == -1 && v->depth == 0 && v->rank == 0;
    return v->parent >= 0 && (uint64_t)v->parent < i && v->rank < LVR_MAX_BRANCH && v->rank < i &&
           tree[i - v->rank].parent == v->parent && tree[i - v->rank].rank == 0 &&
           v->depth == tree[v->parent].depth + 1 && v->depth <= LVR_MAX_DEPTH;
}

static lvr_status add_tree(reading *r, const lvr_rec_tree *tree, uint64_t n, lvr_exit_nodes *nodes,
                           lvr_error *err)
{
    for (uint64_t i = 0; i < n; i++) {
        const lvr_rec_tree *v = &tree[i];
        if (!in_place(tree, i))
            return lvr_fail(err, LVR_ERR_FORMAT,
                            "%s: /trees: request %" PRIu64 " position %u row %" PRIu64
                            ": expected nodes in order, siblings together, best first",
                            lvr_trace_path(r->trace), v->request, v->pos, i);
        lvr_exit_node *node = &nodes->items[nodes->n++];
        *node = (lvr_exit_node){.parent = v->parent,
                                .p_draft = v->p_draft,
                                .depth = (uint16_t)v->depth,
                                .rank = (uint16_t)v->rank,
                                .on_path = v->on_path != 0,
                                .expanded = v->expanded != 0,
                                .fold = (uint32_t)(lvr_mix64(v->request) >> 32)};
        const lvr_status st = take_raw(r, nodes, v, node, err);
        if (st)
            return st;
    }
    return LVR_OK;
}

static lvr_status add_trees(reading *r, const lvr_rec_tree *rows, uint64_t n, lvr_exit_nodes *nodes,
                            lvr_error *err)
{
    lvr_status st = grow(nodes, (size_t)n, err);
    if (!st)
        st = learn_layers(r, nodes, err);
    for (uint64_t i = 0; i < n && !st;) {
        uint64_t end = i + 1;
        while (end < n && rows[end].request == rows[i].request && rows[end].pos == rows[i].pos)
            end++;
        st = add_tree(r, &rows[i], end - i, nodes, err);
        i = end;
    }
    if (!st && r->next != r->n_raw)
        st = lvr_fail(err, LVR_ERR_FORMAT,
                      "%s: /exit: request %" PRIu64 " position %u node %u is not in /trees, or out of order",
                      lvr_trace_path(r->trace), r->raw[r->next].request, r->raw[r->next].pos,
                      r->raw[r->next].node);
    return st;
}

lvr_status lvr_exit_nodes_read(lvr_trace *t, lvr_exit_nodes *nodes, lvr_error *err)
{
    void *trees = NULL, *raw = NULL;
    uint64_t n_trees = 0, n_raw = 0;
    if (lvr_trace_rows(t, LVR_STREAM_EXIT) == 0)
        return LVR_OK;
    lvr_status st = lvr_trace_read_all(t, LVR_STREAM_EXIT, &raw, &n_raw, err);
    if (!st)
        st = lvr_trace_read_all(t, LVR_STREAM_TREES, &trees, &n_trees, err);
    if (!st) {
        reading r = {.trace = t, .raw = raw, .n_raw = n_raw};
        nodes->depth = lvr_trace_get_meta(t)->target.n_layers;
        st = add_trees(&r, trees, n_trees, nodes, err);
    }
    free(trees);
    free(raw);
    return st;
}
