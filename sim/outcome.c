/*
 * Outcome sources. An oracle trace: trees in memory, indexed by (request, position); the target's tokens are
 * the recorded text, since a walk only ever stands on it. An acceptance file: at every position of a made-up
 * text, the rank of the draft's child that the target takes is drawn from the file's distribution, keyed by
 * (seed, request, position) so that every policy meets the same text.
 */
#include "sim/outcome.h"

#include "common/rng.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { READ_ROWS = 1 << 14 };

typedef struct oracle_node {
    int32_t token;
    float p_draft;
    double path;          /* product of p_draft from the root */
    uint32_t first_child; /* index into `children` */
    uint32_t first_exit;  /* index into `exits` */
    uint16_t number;      /* in its tree */
    uint16_t n_children;
    uint8_t n_exits;
    bool expanded;
} oracle_node;

typedef struct node_exit {
    uint32_t layer;
    lvr_exit_raw raw;
} node_exit;

typedef struct request {
    uint64_t id, prompt_hash;
    uint32_t domain;
    uint32_t n_prompt, n_output;
    int32_t *seq;    /* prompt, then output */
    uint32_t *roots; /* oracle: first node of the tree at position n_prompt - 1 + i, UINT32_MAX: none;
                        n_output + 1 of them */
} request;

typedef struct acceptance {
    uint32_t n_depths, n_ranks;
    double p[LVR_MAX_DEPTH][LVR_MAX_BRANCH]; /* by depth of the parent and rank of the child */
} acceptance;

struct lvr_outcome {
    char source[512];
    bool synthetic;
    request *requests;
    uint32_t n_requests;
    /* oracle */
    oracle_node *nodes;
    uint32_t n_nodes, nodes_cap;
    uint32_t *children; /* node indices, by rank */
    uint32_t n_children;
    node_exit *exits; /* a node's together */
    uint32_t n_exits;
    bool exit_after[LVR_MAX_LAYERS]; /* some node has features after this layer */
    uint32_t cap_branch, cap_depth;
    double cap_min_path;
    /* synthetic */
    acceptance acceptance;
    uint64_t seed;
};

void lvr_outcome_free(lvr_outcome *o)
{
    if (!o)
        return;
    for (uint32_t i = 0; i < o->n_requests; i++) {
        free(o->requests[i].seq);
        free(o->requests[i].roots);
    }
    free(o->requests);
    free(o->nodes);
    free(o->children);
    free(o->exits);
    free(o);
}

uint32_t lvr_outcome_n_requests(const lvr_outcome *o)
{
    return o->n_requests;
}

lvr_outcome_caps lvr_outcome_get_caps(const lvr_outcome *o)
{
    if (o->synthetic)
        return (lvr_outcome_caps){.branch = o->acceptance.n_ranks, .depth = UINT32_MAX};
    return (lvr_outcome_caps){.branch = o->cap_branch, .depth = o->cap_depth, .min_path = o->cap_min_path};
}

bool lvr_outcome_synthetic(const lvr_outcome *o)
{
    return o->synthetic;
}

const char *lvr_outcome_source(const lvr_outcome *o)
{
    return o->source;
}

void lvr_outcome_request(const lvr_outcome *o, uint32_t i, lvr_sim_request *ret)
{
    const request *r = &o->requests[i];
    *ret = (lvr_sim_request){.id = r->id,
                             .prompt_hash = r->prompt_hash,
                             .domain = r->domain,
                             .prompt = r->seq,
                             .n_prompt = r->n_prompt,
                             .n_output = r->n_output,
                             .output = r->seq + r->n_prompt};
}

int32_t lvr_outcome_token(const lvr_outcome *o, uint32_t request_index, uint32_t pos)
{
    const request *r = &o->requests[request_index];
    return pos < r->n_prompt + r->n_output ? r->seq[pos] : -1;
}

/* ---- requests and tokens of an oracle trace ---- */

static int by_id(const void *a, const void *b)
{
    const request *x = a, *y = b;
    return x->id < y->id ? -1 : x->id > y->id;
}

static request *find_request(const lvr_outcome *o, uint64_t id)
{
    const request key = {.id = id};
    return bsearch(&key, o->requests, o->n_requests, sizeof(*o->requests), by_id);
}

static lvr_status make_request(const char *path, const lvr_rec_request *r, request *ret, lvr_error *err)
{
    if (r->n_prompt == 0 || r->n_output == 0 || r->n_prompt > (1u << 28) || r->n_output > (1u << 28))
        return lvr_fail(err, LVR_ERR_FORMAT,
                        "%s: request %" PRIu64
                        " has %u prompt and %u output tokens; expected at least one of each",
                        path, r->id, r->n_prompt, r->n_output);
    const size_t n = (size_t)r->n_prompt + r->n_output;
    *ret = (request){.id = r->id,
                     .prompt_hash = r->prompt_hash,
                     .domain = r->domain,
                     .n_prompt = r->n_prompt,
                     .n_output = r->n_output};
    ret->seq = malloc(n * sizeof(*ret->seq));
    ret->roots = malloc(((size_t)r->n_output + 1) * sizeof(*ret->roots));
    if (!ret->seq || !ret->roots)
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory for a request of %zu tokens", path, n);
    for (size_t i = 0; i < n; i++)
        ret->seq[i] = -1;
    for (size_t i = 0; i <= r->n_output; i++)
        ret->roots[i] = UINT32_MAX;
    return LVR_OK;
}

static lvr_status load_requests(lvr_trace *t, lvr_outcome *o, lvr_error *err)
{
    void *records = NULL;
    uint64_t n = 0;
    const char *path = lvr_trace_path(t);
    lvr_status st = lvr_trace_read_all(t, LVR_STREAM_REQUESTS, &records, &n, err);
    if (st)
        return st;
    const lvr_rec_request *r = records;
    if (n == 0 || n > UINT32_MAX / 2)
        st = lvr_fail(err, LVR_ERR_FORMAT, "%s: %" PRIu64 " requests; expected at least one", path, n);
    if (!st && !(o->requests = calloc(n, sizeof(*o->requests))))
        st = lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory for %" PRIu64 " requests", path, n);
    for (uint64_t i = 0; i < n && !st; i++) {
        st = make_request(path, &r[i], &o->requests[i], err);
        o->n_requests++;
    }
    if (!st)
        qsort(o->requests, o->n_requests, sizeof(*o->requests), by_id);
    for (uint32_t i = 1; i < o->n_requests && !st; i++) {
        if (o->requests[i].id == o->requests[i - 1].id)
            st = lvr_fail(err, LVR_ERR_FORMAT, "%s: request %" PRIu64 " is there twice", path,
                          o->requests[i].id);
    }
    free(records);
    return st;
}

static lvr_status place_token(lvr_trace *t, const lvr_outcome *o, const lvr_rec_token *k, lvr_error *err)
{
    const request *r = find_request(o, k->request);
    if (!r || k->pos >= r->n_prompt + r->n_output)
        return lvr_fail(err, LVR_ERR_FORMAT,
                        "%s: /tokens: request %" PRIu64 " position %u belongs to no request",
                        lvr_trace_path(t), k->request, k->pos);
    r->seq[k->pos] = k->token;
    return LVR_OK;
}

static lvr_status load_tokens(lvr_trace *t, lvr_outcome *o, lvr_error *err)
{
    void *records = NULL;
    uint64_t n = 0;
    lvr_status st = lvr_trace_read_all(t, LVR_STREAM_TOKENS, &records, &n, err);
    const lvr_rec_token *k = records;
    for (uint64_t i = 0; i < n && !st; i++)
        st = place_token(t, o, &k[i], err);
    free(records);
    for (uint32_t i = 0; i < o->n_requests && !st; i++) {
        const request *r = &o->requests[i];
        for (uint32_t p = 0; p < r->n_prompt + r->n_output && !st; p++) {
            if (r->seq[p] < 0)
                st = lvr_fail(err, LVR_ERR_FORMAT,
                              "%s: /tokens: request %" PRIu64 " has no token at position %u of %u",
                              lvr_trace_path(t), r->id, p, r->n_prompt + r->n_output);
        }
    }
    return st;
}

/* ---- trees of an oracle trace ---- */

/* A tree being read: its rows stand together in the trace, parents before children. */
typedef struct open_tree {
    uint64_t request;
    uint32_t pos;
    uint32_t first, n; /* nodes */
} open_tree;

typedef struct parent_rank {
    uint32_t parent, rank, node;
} parent_rank;

static int by_parent_rank(const void *a, const void *b)
{
    const parent_rank *x = a, *y = b;
    if (x->parent != y->parent)
        return x->parent < y->parent ? -1 : 1;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return x->node < y->node ? -1 : x->node > y->node;
}

static lvr_status grow_nodes(lvr_outcome *o, lvr_error *err)
{
    if (o->n_nodes < o->nodes_cap)
        return LVR_OK;
    const uint32_t cap = o->nodes_cap ? 2 * o->nodes_cap : 4096;
    oracle_node *nodes = cap > o->nodes_cap ? realloc(o->nodes, (size_t)cap * sizeof(*nodes)) : NULL;
    uint32_t *children = nodes ? realloc(o->children, (size_t)cap * sizeof(*children)) : NULL;
    if (nodes)
        o->nodes = nodes;
    if (!nodes || !children)
        return lvr_fail(err, LVR_ERR_NOMEM, "out of memory for %u tree nodes", cap);
    o->children = children;
    o->nodes_cap = cap;
    return LVR_OK;
}

static lvr_status begin_tree(lvr_trace *t, lvr_outcome *o, const lvr_rec_tree *v, open_tree *tree,
                             lvr_error *err)
{
    const request *r = find_request(o, v->request);
    if (!r || v->pos + 1 < r->n_prompt || v->pos > r->n_prompt - 1 + r->n_output || v->node != 0)
        return lvr_fail(err, LVR_ERR_FORMAT,
                        "%s: /trees: the tree of request %" PRIu64
                        " at position %u starts with node %u; expected node 0 at an output "
                        "position of a known request",
                        lvr_trace_path(t), v->request, v->pos, v->node);
    uint32_t *root = &r->roots[v->pos - (r->n_prompt - 1)];
    if (*root != UINT32_MAX)
        return lvr_fail(err, LVR_ERR_FORMAT, "%s: /trees: request %" PRIu64 " position %u is there twice",
                        lvr_trace_path(t), v->request, v->pos);
    *root = o->n_nodes;
    *tree = (open_tree){.request = v->request, .pos = v->pos, .first = o->n_nodes};
    return LVR_OK;
}

static lvr_status add_node(lvr_trace *t, lvr_outcome *o, const lvr_rec_tree *v, open_tree *tree,
                           parent_rank *links, lvr_error *err)
{
    if (v->node != tree->n || (v->node > 0 && (v->parent < 0 || (uint32_t)v->parent >= v->node)) ||
        !(v->p_draft >= 0 && v->p_draft <= 1))
        return lvr_fail(err, LVR_ERR_FORMAT,
                        "%s: /trees: request %" PRIu64
                        " position %u: node %u has parent %d and p_draft %g; expected node %u, an earlier "
                        "parent and a probability",
                        lvr_trace_path(t), v->request, v->pos, v->node, v->parent, (double)v->p_draft,
                        tree->n);
    if (v->node >= LVR_MAX_RECORDED_NODES)
        return lvr_fail(err, LVR_ERR_FORMAT,
                        "%s: /trees: request %" PRIu64 " position %u has more than %u nodes",
                        lvr_trace_path(t), v->request, v->pos, LVR_MAX_RECORDED_NODES);
    const lvr_status st = grow_nodes(o, err);
    if (st)
        return st;
    const double above = v->node > 0 ? o->nodes[tree->first + (uint32_t)v->parent].path : 1.0;
    o->nodes[o->n_nodes++] = (oracle_node){.token = v->token,
                                           .p_draft = v->p_draft,
                                           .path = above * (double)v->p_draft,
                                           .number = (uint16_t)v->node,
                                           .expanded = v->expanded != 0};
    if (v->node > 0)
        links[v->node - 1] = (parent_rank){.parent = (uint32_t)v->parent, .rank = v->rank, .node = v->node};
    tree->n++;
    return LVR_OK;
}

/* Lists every node's children by rank. */
static void close_tree(lvr_outcome *o, const open_tree *tree, parent_rank *links)
{
    if (tree->n <= 1)
        return;
    qsort(links, tree->n - 1, sizeof(*links), by_parent_rank);
    for (uint32_t i = 0; i + 1 < tree->n; i++) {
        oracle_node *parent = &o->nodes[tree->first + links[i].parent];
        if (parent->n_children++ == 0)
            parent->first_child = o->n_children;
        o->children[o->n_children++] = tree->first + links[i].node;
    }
}

static lvr_status add_row(lvr_trace *t, lvr_outcome *o, const lvr_rec_tree *v, open_tree *tree,
                          parent_rank *links, lvr_error *err)
{
    const bool same = tree->n > 0 && v->request == tree->request && v->pos == tree->pos;
    if (!same) {
        close_tree(o, tree, links);
        const lvr_status st = begin_tree(t, o, v, tree, err);
        if (st)
            return st;
    }
    return add_node(t, o, v, tree, links, err);
}

static lvr_status load_trees(lvr_trace *t, lvr_outcome *o, lvr_error *err)
{
    lvr_status st = LVR_OK;
    open_tree tree = {0};
    const uint64_t n = lvr_trace_rows(t, LVR_STREAM_TREES);
    lvr_rec_tree *rows = malloc(READ_ROWS * sizeof(*rows));
    parent_rank *links = malloc(LVR_MAX_RECORDED_NODES * sizeof(*links));
    if (!rows || !links) {
        st = lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory for its trees", lvr_trace_path(t));
        goto out;
    }
    if (n == 0 || n >= UINT32_MAX) {
        st = lvr_fail(err, LVR_ERR_FORMAT,
                      "%s: %" PRIu64 " tree nodes; expected at least one and fewer than 2^32",
                      lvr_trace_path(t), n);
        goto out;
    }
    for (uint64_t first = 0; first < n && !st; first += READ_ROWS) {
        const uint64_t count = n - first < READ_ROWS ? n - first : READ_ROWS;
        st = lvr_trace_read(t, LVR_STREAM_TREES, first, count, rows, err);
        for (uint64_t i = 0; i < count && !st; i++)
            st = add_row(t, o, &rows[i], &tree, links, err);
    }
    if (!st)
        close_tree(o, &tree, links);
out:
    free(rows);
    free(links);
    return st;
}

/* ---- exit features of an oracle trace ---- */

/* The node that the row is about; NULL: there is none. */
static oracle_node *exit_node(const lvr_outcome *o, const lvr_rec_exit *x)
{
    const request *r = find_request(o, x->request);
    if (!r || x->pos + 1 < r->n_prompt || x->pos > r->n_prompt - 1 + r->n_output)
        return NULL;
    const uint32_t root = r->roots[x->pos - (r->n_prompt - 1)];
    if (root == UINT32_MAX || x->node == 0 || x->node >= o->n_nodes - root)
        return NULL;
    oracle_node *v = &o->nodes[root + x->node];
    return v->number == x->node ? v : NULL;
}

/* A node's rows stand together, layers ascending. */
static lvr_status add_exit(lvr_trace *t, lvr_outcome *o, const lvr_rec_exit *x, lvr_error *err)
{
    oracle_node *v = exit_node(o, x);
    if (!v)
        return lvr_fail(err, LVR_ERR_FORMAT,
                        "%s: /exit: request %" PRIu64
                        " position %u node %u is no node of /trees, or its root",
                        lvr_trace_path(t), x->request, x->pos, x->node);
    const bool first = v->n_exits == 0;
    if (!first && (v->first_exit + v->n_exits != o->n_exits || o->exits[o->n_exits - 1].layer >= x->layer ||
                   v->n_exits == LVR_EXIT_MAX_LAYERS))
        return lvr_fail(err, LVR_ERR_FORMAT,
                        "%s: /exit: request %" PRIu64 " position %u node %u: expected its rows together, one "
                        "for each of at most %u layers, ascending",
                        lvr_trace_path(t), x->request, x->pos, x->node, LVR_EXIT_MAX_LAYERS);
    if (first)
        v->first_exit = o->n_exits;
    v->n_exits++;
    if (x->layer < LVR_MAX_LAYERS)
        o->exit_after[x->layer] = true;
    o->exits[o->n_exits++] = (node_exit){.layer = x->layer,
                                         .raw = {.score = x->score,
                                                 .slice_lse = x->slice_lse,
                                                 .slice_max = x->slice_max,
                                                 .slice_entropy = x->slice_entropy}};
    return LVR_OK;
}

static lvr_status load_exits(lvr_trace *t, lvr_outcome *o, lvr_error *err)
{
    const uint64_t n = lvr_trace_rows(t, LVR_STREAM_EXIT);
    lvr_status st = LVR_OK;
    if (n == 0)
        return LVR_OK;
    if (n >= UINT32_MAX)
        return lvr_fail(err, LVR_ERR_FORMAT, "%s: /exit: %" PRIu64 " rows; expected fewer than 2^32",
                        lvr_trace_path(t), n);
    lvr_rec_exit *rows = malloc(READ_ROWS * sizeof(*rows));
    o->exits = malloc(n * sizeof(*o->exits));
    if (!rows || !o->exits)
        st = lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory for its exit features", lvr_trace_path(t));
    for (uint64_t first = 0; first < n && !st; first += READ_ROWS) {
        const uint64_t count = n - first < READ_ROWS ? n - first : READ_ROWS;
        st = lvr_trace_read(t, LVR_STREAM_EXIT, first, count, rows, err);
        for (uint64_t i = 0; i < count && !st; i++)
            st = add_exit(t, o, &rows[i], err);
    }
    free(rows);
    return st;
}

bool lvr_outcome_has_exit(const lvr_outcome *o, uint32_t layer)
{
    return layer < LVR_MAX_LAYERS && o->exit_after[layer];
}

bool lvr_outcome_exit(const lvr_outcome *o, uint64_t node, uint32_t layer, lvr_exit_raw *ret)
{
    if (node == LVR_NO_NODE || o->synthetic)
        return false;
    const oracle_node *v = &o->nodes[node];
    for (uint32_t i = 0; i < v->n_exits; i++) {
        const node_exit *x = &o->exits[v->first_exit + i];
        if (x->layer != layer)
            continue;
        *ret = x->raw;
        return true;
    }
    return false;
}

lvr_status lvr_outcome_from_oracle(lvr_trace *t, lvr_outcome **ret, lvr_error *err)
{
    const lvr_trace_meta *meta = lvr_trace_get_meta(t);
    if (meta->kind != LVR_TRACE_ORACLE)
        return lvr_fail(err, LVR_ERR_CONFIG,
                        "%s: a trace of kind %s holds only what its own policy met; expected an oracle trace "
                        "(lever record --oracle)",
                        lvr_trace_path(t), lvr_trace_kind_name(meta->kind));
    if (meta->dropped[LVR_STREAM_TREES] > 0 || meta->dropped[LVR_STREAM_TOKENS] > 0)
        return lvr_fail(err, LVR_ERR_CONFIG, "%s: records were dropped while recording; record it again",
                        lvr_trace_path(t));
    lvr_outcome *o = calloc(1, sizeof(*o));
    if (!o)
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory", lvr_trace_path(t));
    o->cap_branch = meta->cap_branch;
    o->cap_depth = meta->cap_depth;
    o->cap_min_path = meta->cap_min_path;
    snprintf(o->source, sizeof o->source, "%s (%s <- %s)", lvr_trace_path(t), meta->target.name,
             meta->draft.name);
    lvr_status st = load_requests(t, o, err);
    if (!st)
        st = load_tokens(t, o, err);
    if (!st)
        st = load_trees(t, o, err);
    if (!st)
        st = load_exits(t, o, err);
    if (st) {
        lvr_outcome_free(o);
        return st;
    }
    *ret = o;
    return LVR_OK;
}

/* ---- acceptance files ---- */

static lvr_status parse_ranks(const lvr_yaml_node *row, uint32_t depth, acceptance *a, lvr_error *err)
{
    const size_t n = lvr_yaml_node_kind(row) == LVR_YAML_SEQ ? lvr_yaml_len(row) : 0;
    if (n == 0 || n > LVR_MAX_BRANCH)
        return lvr_fail(err, LVR_ERR_CONFIG,
                        "%s: expected 1 to %u probabilities, one per rank of the draft's child",
                        lvr_yaml_where(row), LVR_MAX_BRANCH);
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        const lvr_status st = lvr_yaml_as_double(lvr_yaml_at(row, i), 0, 1, &a->p[depth][i], err);
        if (st)
            return st;
        sum += a->p[depth][i];
        if (i > 0 && a->p[depth][i] > a->p[depth][i - 1])
            return lvr_fail(err, LVR_ERR_CONFIG, "%s: ranks must not rise, found %g after %g",
                            lvr_yaml_where(lvr_yaml_at(row, i)), a->p[depth][i], a->p[depth][i - 1]);
    }
    if (sum > 1.0 + 1e-9)
        return lvr_fail(err, LVR_ERR_CONFIG, "%s: the ranks' probabilities add up to %g, expected at most 1",
                        lvr_yaml_where(row), sum);
    a->n_ranks = n > a->n_ranks ? (uint32_t)n : a->n_ranks;
    return LVR_OK;
}

static lvr_status parse_acceptance(const lvr_yaml_node *root, lvr_outcome *o, lvr_error *err)
{
    const char *schema = NULL, *name = NULL, *source = NULL, *tag = NULL;
    const lvr_yaml_node *ranks = NULL;
    acceptance *a = &o->acceptance;
    if (lvr_yaml_node_kind(root) != LVR_YAML_MAP)
        return lvr_fail(err, LVR_ERR_CONFIG,
                        "%s: expected an acceptance file (schema, name, source, tag, ranks)",
                        lvr_yaml_where(root));
    lvr_status st = lvr_yaml_get_str(root, "schema", &schema, err);
    if (!st && strcmp(schema, "lever-acceptance/1") != 0)
        st = lvr_fail(err, LVR_ERR_CONFIG, "%s: expected schema lever-acceptance/1, found \"%s\"",
                      lvr_yaml_where(root), schema);
    if (!st)
        st = lvr_yaml_get_str(root, "name", &name, err);
    if (!st)
        st = lvr_yaml_get_str(root, "source", &source, err);
    if (!st)
        st = lvr_yaml_get_str(root, "tag", &tag, err);
    if (!st)
        st = lvr_yaml_get_seq(root, "ranks", &ranks, err);
    if (st)
        return st;
    const size_t n = lvr_yaml_len(ranks);
    if (n == 0 || n > LVR_MAX_DEPTH)
        return lvr_fail(err, LVR_ERR_CONFIG, "%s: ranks: expected 1 to %u rows, one per depth, found %zu",
                        lvr_yaml_where(ranks), LVR_MAX_DEPTH, n);
    for (size_t d = 0; d < n && !st; d++)
        st = parse_ranks(lvr_yaml_at(ranks, d), (uint32_t)d, a, err);
    a->n_depths = (uint32_t)n;
    snprintf(o->source, sizeof o->source, "%s (%s; %s)", name, source, tag);
    return st;
}

static lvr_status load_acceptance(const char *path, lvr_outcome *o, lvr_error *err)
{
    lvr_yaml_doc *doc = NULL;
    lvr_status st = lvr_yaml_load_file(path, &doc, err);
    if (st)
        return st;
    st = parse_acceptance(lvr_yaml_root(doc), o, err);
    if (!st)
        st = lvr_yaml_check_used(doc, err);
    lvr_yaml_free(doc);
    return st;
}

/* Tokens of the made-up text are even, those of children that the target does not take are odd. */
static int32_t text_token(const lvr_outcome *o, uint32_t request_index, uint32_t pos)
{
    const uint64_t key = lvr_mix64(o->seed ^ lvr_mix64(((uint64_t)request_index << 32) | pos));
    return (int32_t)(key & 0xffffff) * 2;
}

static lvr_status make_text(lvr_outcome *o, uint32_t n_requests, uint32_t n_prompt, uint32_t n_output,
                            lvr_error *err)
{
    o->requests = calloc(n_requests, sizeof(*o->requests));
    if (!o->requests)
        return lvr_fail(err, LVR_ERR_NOMEM, "out of memory for %u requests", n_requests);
    for (uint32_t i = 0; i < n_requests; i++) {
        const lvr_rec_request r = {
            .id = i, .n_prompt = n_prompt, .n_output = n_output, .prompt_hash = lvr_mix64(o->seed ^ (i + 1))};
        const lvr_status st = make_request("acceptance", &r, &o->requests[i], err);
        o->n_requests++;
        if (st)
            return st;
        for (uint32_t p = 0; p < n_prompt + n_output; p++)
            o->requests[i].seq[p] = text_token(o, i, p);
    }
    return LVR_OK;
}

lvr_status lvr_outcome_from_acceptance(const char *path, uint64_t seed, uint32_t n_requests,
                                       uint32_t n_prompt, uint32_t n_output, lvr_outcome **ret,
                                       lvr_error *err)
{
    if (n_requests == 0 || n_requests > (1u << 20) || n_prompt == 0 || n_output == 0 ||
        n_prompt >= (1u << 24) || n_output >= (1u << 24))
        return lvr_fail(
            err, LVR_ERR_USAGE,
            "%u requests of %u prompt and %u output tokens: expected at least one of each (and at most "
            "2^20 requests, 2^24 tokens)",
            n_requests, n_prompt, n_output);
    lvr_outcome *o = calloc(1, sizeof(*o));
    if (!o)
        return lvr_fail(err, LVR_ERR_NOMEM, "out of memory");
    o->synthetic = true;
    o->seed = seed;
    lvr_status st = load_acceptance(path, o, err);
    if (!st)
        st = make_text(o, n_requests, n_prompt, n_output, err);
    if (st) {
        lvr_outcome_free(o);
        return st;
    }
    *ret = o;
    return LVR_OK;
}

/* ---- nodes ---- */

/* Synthetic handles: request, position of the node, its depth, and whether the target goes there. */
enum { POS_BITS = 28, DEPTH_BITS = 8, ON_PATH_BITS = 1 };

static uint64_t made_up_node(uint64_t request_index, uint64_t pos, uint64_t depth, bool on_path)
{
    return (((request_index << POS_BITS | pos) << DEPTH_BITS) | depth) << ON_PATH_BITS | (on_path ? 1 : 0);
}

uint64_t lvr_outcome_root(const lvr_outcome *o, uint32_t request_index, uint32_t pos)
{
    const request *r = &o->requests[request_index];
    if (pos + 1 < r->n_prompt || pos > r->n_prompt - 1 + r->n_output)
        return LVR_NO_NODE;
    if (o->synthetic)
        return made_up_node(request_index, pos, 0, true);
    const uint32_t node = r->roots[pos - (r->n_prompt - 1)];
    return node == UINT32_MAX ? LVR_NO_NODE : node;
}

static void no_child(uint32_t rank, float p_draft, lvr_candidate *ret, uint64_t *ret_handle)
{
    *ret = (lvr_candidate){.token = -2 - (int32_t)rank, .p_draft = p_draft};
    *ret_handle = LVR_NO_NODE;
}

/* The most that a child can have which was left out because its path probability is below the recording's
 * limit: that limit, its better sibling's, and what the recorded ones leave. A policy that does not use such
 * a child at this price would not have used the real one; if it does use it, the replay is not exact and says
 * so. */
static float most_left_out(const lvr_outcome *o, const oracle_node *v)
{
    double p = v->path > 0 ? o->cap_min_path / v->path * (1.0 - 1e-6) : 0.0, left = 1.0;
    for (uint32_t i = 0; i < v->n_children; i++) {
        const double known = (double)o->nodes[o->children[v->first_child + i]].p_draft;
        p = known < p ? known : p;
        left -= known;
    }
    p = left < p ? left : p;
    return p > 0 ? (float)p : 0.0f;
}

static bool oracle_children(const lvr_outcome *o, uint64_t handle, uint32_t branch, lvr_candidate *ret,
                            uint64_t *ret_handles)
{
    const oracle_node *v = &o->nodes[handle];
    const uint32_t known = v->expanded ? v->n_children : 0;
    const bool complete = v->expanded && (known >= branch || known < o->cap_branch);
    const float p_left_out = complete && known < branch ? most_left_out(o, v) : 0.0f;
    for (uint32_t i = 0; i < branch; i++) {
        if (i >= known) {
            no_child(i, p_left_out, &ret[i], &ret_handles[i]);
            continue;
        }
        const uint32_t child = o->children[v->first_child + i];
        ret[i] = (lvr_candidate){.token = o->nodes[child].token, .p_draft = o->nodes[child].p_draft};
        ret_handles[i] = child;
    }
    return complete;
}

/* The rank of the child that the target takes after the text's position `pos`, n_ranks: none of them. */
static uint32_t drawn_rank(const lvr_outcome *o, uint32_t request_index, uint32_t pos, const double *p)
{
    const double u = lvr_hash_unit(o->seed, request_index, pos);
    double sum = 0;
    for (uint32_t i = 0; i < o->acceptance.n_ranks; i++) {
        sum += p[i];
        if (u < sum)
            return i;
    }
    return o->acceptance.n_ranks;
}

static bool made_up_children(const lvr_outcome *o, uint64_t handle, uint32_t branch, lvr_candidate *ret,
                             uint64_t *ret_handles)
{
    const bool on_path = handle & 1;
    const uint32_t depth = (handle >> ON_PATH_BITS) & ((1u << DEPTH_BITS) - 1);
    const uint32_t pos = (handle >> (ON_PATH_BITS + DEPTH_BITS)) & ((1u << POS_BITS) - 1);
    const uint32_t request_index = (uint32_t)(handle >> (ON_PATH_BITS + DEPTH_BITS + POS_BITS));
    const double *p = o->acceptance.p[depth < o->acceptance.n_depths ? depth : o->acceptance.n_depths - 1];
    const uint32_t taken = on_path ? drawn_rank(o, request_index, pos, p) : UINT32_MAX;
    for (uint32_t i = 0; i < branch; i++) {
        if (i >= o->acceptance.n_ranks) {
            no_child(i, 0.0f, &ret[i], &ret_handles[i]);
            continue;
        }
        ret[i].p_draft = (float)p[i];
        ret[i].token = i == taken ? text_token(o, request_index, pos + 1) : (int32_t)(2 * i + 1);
        ret_handles[i] = made_up_node(request_index, pos + 1, depth + 1, i == taken);
    }
    return true; /* the file says that there is nothing beyond its ranks */
}

bool lvr_outcome_children(const lvr_outcome *o, uint64_t node, uint32_t branch, lvr_candidate *ret_children,
                          uint64_t *ret_handles)
{
    if (node != LVR_NO_NODE)
        return o->synthetic ? made_up_children(o, node, branch, ret_children, ret_handles)
                            : oracle_children(o, node, branch, ret_children, ret_handles);
    for (uint32_t i = 0; i < branch; i++)
        no_child(i, 0.0f, &ret_children[i], &ret_handles[i]);
    return false;
}
