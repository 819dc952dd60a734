/* What must hold for a single row, given the rows before it and the known requests and rounds. */
#include "traces/validate.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* Faster than any flash of a phone or workstation: such a read came from the page cache, or its clock is
 * wrong. */
#define MAX_BYTES_PER_NS 64.0
/* Probabilities are recorded as float after sums in another order. */
#define PROBABILITY_SLACK 1e-5

/* The row of a request is written when it ends, so an incomplete trace lacks that of its last one. */
static void check_request(lvr_validator *v, uint64_t row, uint64_t request)
{
    if (v->trace->meta.complete && !lvr_known_request(v, request))
        lvr_finding(v, row, "request %" PRIu64 " is not in /requests", request);
}

static lvr_known_round *check_round(lvr_validator *v, uint64_t row, uint64_t round)
{
    lvr_known_round *known = lvr_find_round(v, round);
    if (!known)
        lvr_finding(v, row, "round %" PRIu64 " is not in /rounds", round);
    return known;
}

static void check_probability(lvr_validator *v, uint64_t row, const char *name, double p)
{
    if (isnan(p))
        lvr_finding(v, row, "%s is NaN", name);
    else if (p < 0.0 || p > 1.0 + PROBABILITY_SLACK)
        lvr_finding(v, row, "%s is %g, expected 0 to 1", name, p);
}

static void check_token(lvr_validator *v, uint64_t row, const char *name, int32_t token)
{
    const uint32_t vocab = v->trace->meta.target.vocab;
    if (token < 0 || (vocab > 0 && (uint32_t)token >= vocab))
        lvr_finding(v, row, "%s is %" PRId32 ", expected 0 to %" PRId64, name, token,
                    vocab > 0 ? (int64_t)vocab - 1 : INT32_MAX);
}

static void check_flag(lvr_validator *v, uint64_t row, const char *name, uint32_t flag)
{
    if (flag > 1)
        lvr_finding(v, row, "%s is %" PRIu32 ", expected 0 or 1", name, flag);
}

static void check_order(lvr_validator *v, uint64_t row, const char *first, uint64_t a, const char *second,
                        uint64_t b)
{
    if (a > b)
        lvr_finding(v, row, "%s (%" PRIu64 ") is after %s (%" PRIu64 ")", first, a, second, b);
}

static void check_enums(lvr_validator *v, uint64_t row, const void *record)
{
    const lvr_stream_desc *desc = lvr_stream_describe(v->stream);
    for (uint32_t i = 0; i < desc->n_fields; i++) {
        const lvr_field *f = &desc->fields[i];
        if (f->enum_name && !f->enum_name(*(const uint32_t *)((const char *)record + f->offset)))
            lvr_finding(v, row, "%s is %g, which has no name in this version", f->name,
                        lvr_field_number(f, record));
    }
}

static void check_layer(lvr_validator *v, uint64_t row, const lvr_trace_model *model, uint32_t layer)
{
    if (model->n_layers > 0 && layer >= model->n_layers)
        lvr_finding(v, row, "layer %" PRIu32 ", but the model has %" PRIu32, layer, model->n_layers);
}

/* ---- trees
 * ------------------------------------------------------------------------------------------------------------
 */

static lvr_status push_node(lvr_tree_group *g, lvr_tree_node node, lvr_error *err)
{
    if (g->n == g->cap) {
        const uint64_t cap = g->cap ? g->cap * 2 : 256;
        lvr_tree_node *nodes = realloc(g->nodes, (size_t)cap * sizeof *nodes);
        if (!nodes)
            return lvr_fail(err, LVR_ERR_NOMEM, "out of memory for a tree of %" PRIu64 " nodes", g->n);
        g->nodes = nodes;
        g->cap = cap;
    }
    g->nodes[g->n++] = node;
    return LVR_OK;
}

static void enter_group(lvr_tree_group *g, uint64_t request, uint64_t key)
{
    if (g->any && g->request == request && g->key == key)
        return;
    g->any = true;
    g->request = request;
    g->key = key;
    g->n = 0;
}

/* Nodes are numbered as they come, and a parent comes before its children. The parent, or NULL for a root or
 * a bad one. */
static const lvr_tree_node *check_shape(lvr_validator *v, uint64_t row, uint32_t node, int32_t parent)
{
    const lvr_tree_group *g = &v->group;
    if (node != g->n)
        lvr_finding(v, row, "node %" PRIu32 ", expected %" PRIu64 ": nodes of a tree are numbered in order",
                    node, g->n);
    if (g->n == 0) {
        if (parent != -1)
            lvr_finding(v, row, "the root's parent is %" PRId32 ", expected -1", parent);
        return NULL;
    }
    if (parent < 0 || (uint64_t)parent >= g->n) {
        lvr_finding(v, row, "parent %" PRId32 " of node %" PRIu32 ", expected an earlier node", parent, node);
        return NULL;
    }
    return &g->nodes[parent];
}

static lvr_status tree_row(lvr_validator *v, uint64_t row, const lvr_rec_tree *r, lvr_error *err)
{
    const lvr_trace_meta *meta = &v->trace->meta;
    check_request(v, row, r->request);
    enter_group(&v->group, r->request, r->pos);
    const lvr_tree_node *parent = check_shape(v, row, r->node, r->parent);
    if (parent && r->depth != parent->depth + 1)
        lvr_finding(v, row, "depth %" PRIu32 ", but its parent's is %" PRIu32, r->depth, parent->depth);
    if (v->group.n == 0 && r->depth != 0)
        lvr_finding(v, row, "the root's depth is %" PRIu32 ", expected 0", r->depth);
    if (v->group.n > 0)
        check_probability(v, row, "p_draft", (double)r->p_draft);
    check_token(v, row, "token", r->token);
    check_flag(v, row, "on_path", r->on_path);
    check_flag(v, row, "expanded", r->expanded);
    if (r->target_token == -1 && !isnan(r->p_target))
        lvr_finding(v, row, "p_target is %g, expected NaN: the node was not run", (double)r->p_target);
    if (r->target_token != -1) {
        check_token(v, row, "target_token", r->target_token);
        check_probability(v, row, "p_target", (double)r->p_target);
    }
    if (parent && r->on_path && (!parent->on_path || parent->target_token != r->token))
        lvr_finding(v, row,
                    "on_path, but its parent is not, or the target's token there is %" PRId32
                    " and not %" PRId32,
                    parent->target_token, r->token);
    if (meta->cap_branch > 0 && r->rank >= meta->cap_branch && !r->on_path)
        lvr_finding(v, row, "rank %" PRIu32 ", but the trace's cap_branch is %" PRIu32, r->rank,
                    meta->cap_branch);
    return push_node(&v->group, (lvr_tree_node){r->depth, r->on_path, r->target_token}, err);
}

static lvr_status round_node_row(lvr_validator *v, uint64_t row, const lvr_rec_round_node *r, lvr_error *err)
{
    check_request(v, row, r->request);
    lvr_known_round *known = check_round(v, row, r->round);
    if (known)
        known->nodes_seen++;
    enter_group(&v->group, r->request, r->round);
    const lvr_tree_node *parent = check_shape(v, row, r->node, r->parent);
    if (v->group.n > 0)
        check_probability(v, row, "p_draft", (double)r->p_draft);
    check_token(v, row, "token", r->token);
    check_layer(v, row, &v->trace->meta.target, r->last_layer);
    check_flag(v, row, "accepted", r->accepted);
    if (parent && r->accepted && !parent->on_path)
        lvr_finding(v, row, "accepted, but its parent %" PRId32 " is not", r->parent);
    return push_node(&v->group, (lvr_tree_node){.on_path = r->accepted}, err);
}

/* ---- the other streams
 * ------------------------------------------------------------------------------------------------ */

static void request_row(lvr_validator *v, uint64_t row, const lvr_rec_request *r)
{
    const uint32_t n_domains = v->trace->meta.n_domains;
    if (r->domain >= n_domains && (n_domains > 0 || r->domain > 0))
        lvr_finding(v, row, "domain %" PRIu32 ", but the trace names %" PRIu32, r->domain, n_domains);
    if (r->t_first_token_ns > 0)
        check_order(v, row, "t_arrival", r->t_arrival_ns, "t_first_token", r->t_first_token_ns);
    if (r->t_done_ns > 0)
        check_order(v, row, "t_first_token", r->t_first_token_ns, "t_done", r->t_done_ns);
}

static void token_row(lvr_validator *v, uint64_t row, const lvr_rec_token *r)
{
    const lvr_rec_token *p = &v->previous.token;
    check_request(v, row, r->request);
    check_token(v, row, "token", r->token);
    check_flag(v, row, "is_output", r->is_output);
    if (v->has_previous && p->request == r->request && r->pos <= p->pos)
        lvr_finding(v, row, "pos %" PRIu32 " follows pos %" PRIu32 " of the same request", r->pos, p->pos);
    v->previous.token = *r;
}

static void round_row(lvr_validator *v, uint64_t row, const lvr_rec_round *r)
{
    const lvr_rec_round *p = &v->previous.round;
    check_request(v, row, r->request);
    check_flag(v, row, "prefill", r->prefill);
    check_order(v, row, "t_draft0", r->t_draft0_ns, "t_draft1", r->t_draft1_ns);
    check_order(v, row, "t_verify0", r->t_verify0_ns, "t_verify1", r->t_verify1_ns);
    check_order(v, row, "t_verify1", r->t_verify1_ns, "t_commit", r->t_commit_ns);
    check_order(v, row, "t_draft1", r->t_draft1_ns, "t_commit", r->t_commit_ns);
    if (r->n_nodes == 0)
        lvr_finding(v, row, "n_nodes is 0: a pass has at least one row");
    if (r->n_kept > r->n_nodes)
        lvr_finding(v, row, "n_kept %" PRIu32 " of %" PRIu32 " nodes", r->n_kept, r->n_nodes);
    if (!r->prefill && r->n_accepted > r->depth)
        lvr_finding(v, row, "n_accepted %" PRIu32 " in a tree of depth %" PRIu32, r->n_accepted, r->depth);
    if (v->has_previous && r->round <= p->round)
        lvr_finding(v, row, "round %" PRIu64 " follows round %" PRIu64, r->round, p->round);
    if (v->has_previous && r->t_commit_ns < p->t_commit_ns)
        lvr_finding(v, row, "t_commit (%" PRIu64 ") is before the round before it (%" PRIu64 ")",
                    r->t_commit_ns, p->t_commit_ns);
    v->previous.round = *r;
}

static void flash_row(lvr_validator *v, uint64_t row, const lvr_rec_flash *r)
{
    if (r->round != UINT64_MAX)
        check_round(v, row, r->round);
    check_layer(v, row, &v->trace->meta.target, r->layer);
    check_enums(v, row, r);
    check_order(v, row, "t_submit", r->t_submit_ns, "t_start", r->t_start_ns);
    check_order(v, row, "t_start", r->t_start_ns, "t_end", r->t_end_ns);
    if (r->bytes == 0 || r->offset > UINT64_MAX - r->bytes)
        lvr_finding(v, row, "%" PRIu64 " bytes at offset %" PRIu64, r->bytes, r->offset);
    if (r->queue_depth == 0)
        lvr_finding(v, row, "queue_depth is 0, expected at least 1: the request itself");
    if (r->t_end_ns >= r->t_start_ns) {
        const double ns = (double)(r->t_end_ns - r->t_start_ns);
        if ((double)r->bytes > MAX_BYTES_PER_NS * ns)
            lvr_finding(v, row, "%" PRIu64 " bytes in %.0f ns: faster than %.0f GB/s, no flash does that",
                        r->bytes, ns, MAX_BYTES_PER_NS);
    }
}

static void kernel_row(lvr_validator *v, uint64_t row, const lvr_rec_kernel *r)
{
    const lvr_trace_meta *meta = &v->trace->meta;
    check_round(v, row, r->round);
    check_enums(v, row, r);
    if (r->layer != UINT32_MAX)
        check_layer(v, row, r->model == 1 ? &meta->draft : &meta->target, r->layer);
    if (r->rows == 0)
        lvr_finding(v, row, "rows is 0, expected at least 1");
    check_order(v, row, "t_submit", r->t_submit_ns, "t_start", r->t_start_ns);
    check_order(v, row, "t_start", r->t_start_ns, "t_end", r->t_end_ns);
}

static void topk_row(lvr_validator *v, uint64_t row, const lvr_rec_draft_topk *r)
{
    const lvr_rec_draft_topk *p = &v->previous.topk;
    const bool same = v->has_previous && p->request == r->request && p->pos == r->pos;
    check_request(v, row, r->request);
    check_token(v, row, "token", r->token);
    check_probability(v, row, "p", (double)r->p);
    if (r->k != (same ? p->k + 1 : 0))
        lvr_finding(v, row, "k is %" PRIu32 ", expected %" PRIu32, r->k, same ? p->k + 1 : 0);
    v->previous.topk = *r;
}

static bool comes_after(const lvr_rec_exit *a, const lvr_rec_exit *b)
{
    if (a->request != b->request)
        return a->request > b->request;
    if (a->pos != b->pos)
        return a->pos > b->pos;
    return a->node != b->node ? a->node > b->node : a->layer > b->layer;
}

static void exit_row(lvr_validator *v, uint64_t row, const lvr_rec_exit *r)
{
    const lvr_trace_meta *meta = &v->trace->meta;
    const float values[] = {r->score, r->slice_lse, r->slice_max, r->slice_entropy};
    check_request(v, row, r->request);
    if (r->node == 0)
        lvr_finding(v, row, "node is 0, but the root is never scored");
    if (meta->target.n_layers > 0 && (uint64_t)r->layer + 1 >= meta->target.n_layers)
        lvr_finding(v, row, "layer is %" PRIu32 ", expected one before the last of %" PRIu32, r->layer,
                    meta->target.n_layers);
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        if (!isfinite(values[i]))
            lvr_finding(v, row, "a feature is %g, expected a finite number", (double)values[i]);
    if (v->has_previous && !comes_after(r, &v->previous.exit))
        lvr_finding(v, row, "request, pos, node, layer are not in ascending order");
    v->previous.exit = *r;
}

static void bench_row(lvr_validator *v, uint64_t row, const lvr_rec_bench *r)
{
    const double ns[] = {r->mean_ns, r->p50_ns, r->p90_ns, r->p99_ns};
    check_enums(v, row, r);
    for (size_t i = 0; i < sizeof ns / sizeof ns[0]; i++)
        if (!isfinite(ns[i]) || ns[i] < 0)
            lvr_finding(v, row, "a duration is %g ns, expected a finite number from 0", ns[i]);
    if (r->p50_ns > r->p90_ns || r->p90_ns > r->p99_ns)
        lvr_finding(v, row, "quantiles %g, %g, %g are not in order", r->p50_ns, r->p90_ns, r->p99_ns);
    if (r->n == 0)
        lvr_finding(v, row, "n is 0, expected at least one measurement");
}

static void memory_row(lvr_validator *v, uint64_t row, const lvr_rec_memory *r)
{
    if (r->rss_bytes == 0)
        lvr_finding(v, row, "rss is 0: unreadable values must be absent");
    if (v->has_previous)
        check_order(v, row, "the time before it", v->previous.memory.t_ns, "time", r->t_ns);
    v->previous.memory = *r;
}

lvr_status lvr_validate_row(lvr_validator *v, uint64_t row, const void *record, lvr_error *err)
{
    lvr_status st = LVR_OK;
    switch (v->stream) {
    case LVR_STREAM_REQUESTS:
        request_row(v, row, record);
        break;
    case LVR_STREAM_TOKENS:
        token_row(v, row, record);
        break;
    case LVR_STREAM_ROUNDS:
        round_row(v, row, record);
        break;
    case LVR_STREAM_ROUND_NODES:
        st = round_node_row(v, row, record, err);
        break;
    case LVR_STREAM_FLASH:
        flash_row(v, row, record);
        break;
    case LVR_STREAM_KERNELS:
        kernel_row(v, row, record);
        break;
    case LVR_STREAM_TREES:
        st = tree_row(v, row, record, err);
        break;
    case LVR_STREAM_DRAFT_TOPK:
        topk_row(v, row, record);
        break;
    case LVR_STREAM_BENCH:
        bench_row(v, row, record);
        break;
    case LVR_STREAM_MEMORY:
        memory_row(v, row, record);
        break;
    case LVR_STREAM_EXIT:
        exit_row(v, row, record);
        break;
    case LVR_STREAM_COUNT:
        break;
    }
    v->has_previous = true;
    return st;
}
