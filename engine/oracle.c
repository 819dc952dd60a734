/*
 * Two passes over a request. First its text, one row at a time, as plain autoregression. Then the text is
 * teacher-forced: at each output position the draft grows the union of the trees that policies could grow,
 * and the target runs every node of it that was expanded. Both caches hold exactly the positions before the
 * root, so that every row computes what decoding computes (INV-ROW).
 *
 * A child's path probability never exceeds its parent's, so the `expansions` most probable nodes are the same
 * however they are found. They are found in steps: of all nodes known, those among the most probable that are
 * not expanded yet are expanded together, until there are none.
 */
#include "engine/oracle.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/minmax.h"
#include "costmodel/core/objective.h"
#include "engine/session_plan.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CHAIN LVR_MAX_DEPTH
#define MAX_BEST_FIRST                                                                                       \
    400u /* leaves room for the chain and for nodes that later finds push out of the most probable */

struct lvr_oracle {
    lvr_session_config config;
    lvr_oracle_caps caps;
    lvr_pair pair;
    lvr_geometry geometry; /* everything resident */
    uint32_t n_ctx;

    lvr_tree tree;
    double path[LVR_MAX_RECORDED_NODES];
    lvr_ranked_node order[LVR_MAX_RECORDED_NODES];
    bool chosen[LVR_MAX_RECORDED_NODES];                        /* among the most probable, or of the chain */
    int32_t slot[LVR_MAX_RECORDED_NODES];                       /* draft's scratch row of an expanded node */
    uint32_t expanded[LVR_MAX_RECORDED_EXPANSIONS], n_expanded; /* in the order of expansion */
    int32_t target_token[LVR_MAX_RECORDED_NODES];
    float p_target[LVR_MAX_RECORDED_NODES];
    lvr_fwd_query queries[LVR_MAX_RECORDED_NODES]; /* of every node but the root */
    lvr_exit_raw exits[LVR_EXIT_MAX_LAYERS][LVR_MAX_RECORDED_NODES];
    lvr_candidate candidates[LVR_MAX_RECORDED_EXPANSIONS * LVR_MAX_BRANCH];
    lvr_fwd_row rows[LVR_MAX_RECORDED_EXPANSIONS];
    int32_t prompt_tokens[LVR_MAX_PREFILL_ROWS];
};

/* A request under way. */
typedef struct request {
    lvr_oracle *o;
    lvr_trace_lane *lane;
    uint64_t id;
    int32_t *seq; /* prompt and text */
    float *p;     /* [n_seq]: the target's probability of each output token */
    uint32_t n_prompt, n_seq, n_predict;
    uint64_t n_nodes;
} request;

void lvr_oracle_caps_default(lvr_oracle_caps *caps)
{
    *caps = (lvr_oracle_caps){
        .branch = 8, .expansions = 400, .chain = 32, .depth = 32, .min_path = 0.005, .exit_auto = true};
}

/* ---- opening ---- */

static lvr_status check_caps(const lvr_oracle_caps *c, lvr_error *err)
{
    if (c->branch == 0 || c->branch > LVR_MAX_BRANCH)
        return lvr_fail(err, LVR_ERR_CONFIG, "oracle: %u children per node, expected 1 to %u", c->branch,
                        LVR_MAX_BRANCH);
    if (c->expansions == 0 || c->expansions > MAX_BEST_FIRST)
        return lvr_fail(err, LVR_ERR_CONFIG, "oracle: %u expansions per position, expected 1 to %u",
                        c->expansions, MAX_BEST_FIRST);
    if (c->chain > MAX_CHAIN || c->depth == 0 || c->depth > LVR_MAX_DEPTH)
        return lvr_fail(err, LVR_ERR_CONFIG,
                        "oracle: chain of %u, depth %u: expected at most %u (and a depth of at least 1)",
                        c->chain, c->depth, LVR_MAX_DEPTH);
    if (!(c->min_path >= 0 && c->min_path <= 1))
        return lvr_fail(err, LVR_ERR_CONFIG, "oracle: least path probability %g, expected 0 to 1",
                        c->min_path);
    if (c->n_exit_layers > LVR_EXIT_MAX_LAYERS)
        return lvr_fail(err, LVR_ERR_CONFIG, "oracle: exit features after %u layers, expected at most %u",
                        c->n_exit_layers, LVR_EXIT_MAX_LAYERS);
    return LVR_OK;
}

/* After the last layer there is nothing left to save. */
static lvr_status check_exit_layers(const lvr_oracle_caps *c, uint32_t n_layers, lvr_error *err)
{
    for (uint32_t i = 0; i < c->n_exit_layers; i++)
        if ((uint64_t)c->exit_layers[i] + 1 >= n_layers ||
            (i > 0 && c->exit_layers[i] <= c->exit_layers[i - 1]))
            return lvr_fail(err, LVR_ERR_CONFIG,
                            "oracle: exit features after layer %u: expected ascending layers, from 0, before "
                            "the last of %u (--exit-layers)",
                            c->exit_layers[i], n_layers);
    return LVR_OK;
}

/* After so many layers that a quarter, a half and three quarters of the work are done. */
static void choose_exit_layers(lvr_oracle_caps *c, uint32_t n_layers)
{
    c->n_exit_layers = 0;
    for (uint32_t quarter = 1; quarter <= 3; quarter++) {
        const uint32_t done = (n_layers * quarter + 2) / 4;
        if (done == 0 || done >= n_layers ||
            (c->n_exit_layers > 0 && c->exit_layers[c->n_exit_layers - 1] == done - 1))
            continue;
        c->exit_layers[c->n_exit_layers++] = done - 1;
    }
}

static void describe_geometry(lvr_oracle *o)
{
    lvr_geometry *g = &o->geometry;
    g->n_layers = o->pair.target.shape->n_layers;
    for (uint32_t l = 0; l < g->n_layers; l++) {
        g->layer_bytes[l] = lvr_pack_layer_bytes(o->pair.target.pack, l);
        g->resident[l] = true;
    }
    g->slice_bytes = o->config.slice_bytes;
    g->ring_slots = o->config.ring_slots;
    g->io_mode = o->config.io_mode;
}

/* Nothing is streamed here, so there is no smaller plan. */
static lvr_status check_room(const lvr_oracle *o, const lvr_pair_sizes *sizes, lvr_error *err)
{
    lvr_budget_parts parts;
    lvr_memory_limit memory;
    lvr_pair_parts(&o->pair, sizes, &parts);
    lvr_budget_sum(&o->geometry, &parts);
    lvr_memory_limit_read(o->config.memory_root ? o->config.memory_root : "", &memory);
    return lvr_budget_check_room(&parts, parts.total_bytes, &memory, err);
}

static lvr_status open_models(lvr_oracle *o, const lvr_session_config *c, lvr_error *err)
{
    const lvr_watch watch = {.cancel = c->cancel, .progress = c->progress, .user = c->progress_user};
    lvr_status status = lvr_pair_open(c->target_path, c->draft_path, &watch, &o->pair, err);
    if (status != LVR_OK)
        return status;
    o->n_ctx = c->n_ctx ? c->n_ctx : o->pair.target.shape->n_ctx_train;
    if (o->pair.target.shape->n_layers > LVR_MAX_LAYERS || o->n_ctx == 0)
        return lvr_fail(err, LVR_ERR_UNSUPPORTED,
                        "%s: %u layers, context %u: expected at most %u layers, and a context",
                        c->target_path, o->pair.target.shape->n_layers, o->n_ctx, LVR_MAX_LAYERS);
    if (o->caps.exit_auto)
        choose_exit_layers(&o->caps, o->pair.target.shape->n_layers);
    status = check_exit_layers(&o->caps, o->pair.target.shape->n_layers, err);
    if (status != LVR_OK)
        return status;
    describe_geometry(o);
    const lvr_pair_sizes sizes = {
        .n_ctx = o->n_ctx,
        .threads = c->threads,
        .cpu_level = c->cpu_level,
        .kv_type = c->kv_type,
        .target_rows = LVR_MAX_RECORDED_EXPANSIONS,
        .target_scratch = LVR_MAX_RECORDED_EXPANSIONS,
        .draft_rows = LVR_MAX_RECORDED_EXPANSIONS,
        .draft_scratch = LVR_MAX_RECORDED_EXPANSIONS,
        .target_prompt_rows = o->config.prefill_chunk,
        .draft_prompt_rows = o->config.prefill_chunk,
        .target_logits = LVR_PAIR_HEAD_CHUNK,
        .target_scores = o->caps.n_exit_layers > 0,
    };
    status = check_room(o, &sizes, err);
    if (status == LVR_OK)
        status = lvr_pair_load(&o->pair, &sizes, NULL, err);
    return status == LVR_OK ? lvr_tree_init(&o->tree, LVR_MAX_RECORDED_NODES, err) : status;
}

lvr_status lvr_oracle_new(const lvr_session_config *config, const lvr_oracle_caps *caps, lvr_oracle **ret,
                          lvr_error *err)
{
    lvr_status status = check_caps(caps, err);
    if (status != LVR_OK)
        return status;
    if (config->prefill_chunk > LVR_MAX_PREFILL_ROWS)
        return lvr_fail(err, LVR_ERR_CONFIG,
                        "rows of a prompt pass: expected at most %u, found %u (--prefill-chunk)",
                        LVR_MAX_PREFILL_ROWS, config->prefill_chunk);
    if (!config->draft_path)
        return lvr_fail(err, LVR_ERR_CONFIG,
                        "an oracle trace records what a draft proposes; give a draft model (--draft)");
    lvr_oracle *o = calloc(1, sizeof *o);
    if (!o)
        return lvr_fail(err, LVR_ERR_NOMEM, "out of memory for oracle recording");
    o->config = *config;
    if (o->config.prefill_chunk == 0)
        o->config.prefill_chunk = LVR_PREFILL_CHUNK_RESIDENT;
    lvr_session_fill_in(&o->config, NULL);
    o->caps = *caps;
    status = open_models(o, config, err);
    if (status != LVR_OK) {
        lvr_oracle_free(o);
        return status;
    }
    *ret = o;
    return LVR_OK;
}

void lvr_oracle_free(lvr_oracle *o)
{
    if (!o)
        return;
    lvr_tree_free(&o->tree);
    lvr_pair_free(&o->pair);
    free(o);
}

const lvr_tokenizer *lvr_oracle_tokenizer(const lvr_oracle *o)
{
    return o->pair.target.tokenizer;
}

lvr_status lvr_oracle_trace_meta(const lvr_oracle *o, uint32_t n_predict, lvr_trace_meta *ret, lvr_error *err)
{
    lvr_policy_file run = {.geometry = o->geometry};
    lvr_buf text = LVR_BUF_INIT;
    run.conditions = lvr_conditions_of(&o->config, o->n_ctx, n_predict);
    snprintf(run.target_sha256, sizeof run.target_sha256, "%s", lvr_pack_source_sha256(o->pair.target.pack));
    snprintf(run.draft_sha256, sizeof run.draft_sha256, "%s", lvr_pack_source_sha256(o->pair.draft.pack));
    lvr_status status = lvr_policy_init(&run.policy, "ar", err);
    if (status == LVR_OK)
        status = lvr_policy_file_format(&run, &text, err);
    if (status != LVR_OK) {
        lvr_buf_free(&text);
        return status;
    }
    lvr_trace_meta_init(LVR_TRACE_ORACLE, ret);
    ret->synthetic = lvr_pair_synthetic(&o->pair);
    ret->seed = o->config.sampling.seed;
    ret->temperature = o->config.sampling.temperature;
    ret->top_p = o->config.sampling.top_p;
    ret->top_k = o->config.sampling.top_k;
    ret->cap_branch = o->caps.branch;
    ret->cap_expansions = o->caps.expansions;
    ret->cap_depth = o->caps.depth;
    ret->cap_min_path = o->caps.min_path;
    lvr_trace_device_describe(lvr_pack_path(o->pair.target.pack), "none", false, "", 1, &ret->device);
    lvr_trace_model_describe(o->pair.target.pack, NULL, &ret->target);
    lvr_trace_model_describe(o->pair.draft.pack, NULL, &ret->draft);
    ret->config_yaml = text.data;
    return LVR_OK;
}

/* ---- models ---- */

static lvr_status commit_first(lvr_kv *kv, uint32_t n, lvr_error *err)
{
    uint32_t slots[LVR_MAX_RECORDED_EXPANSIONS];
    for (uint32_t i = 0; i < n; i++)
        slots[i] = i;
    return lvr_kv_commit(kv, slots, n, err);
}

static void run_layers(lvr_oracle *o)
{
    for (uint32_t l = 0; l < o->pair.target.shape->n_layers; l++)
        lvr_forward_layer(o->pair.target.forward, l, NULL);
}

static lvr_status run_target(lvr_oracle *o, uint32_t n_rows, lvr_error *err)
{
    const lvr_status status = lvr_forward_embed(o->pair.target.forward, o->rows, n_rows, err);
    if (status == LVR_OK)
        run_layers(o);
    return status;
}

/* A pass over the prompt's tokens [at, at + n), which both caches end before. */
static lvr_status prompt_pass(request *q, uint32_t at, uint32_t n, bool draft_too, lvr_error *err)
{
    lvr_pair *pair = &q->o->pair;
    lvr_status status = lvr_forward_embed_prompt(pair->target.forward, q->seq + at, at, n, err);
    if (status != LVR_OK)
        return status;
    run_layers(q->o);
    status = lvr_kv_append(&pair->target.kv, n, err);
    if (status != LVR_OK || !draft_too)
        return status;
    memcpy(q->o->prompt_tokens, q->seq + at, n * sizeof q->seq[0]);
    return lvr_pair_draft_prompt(pair, q->o->prompt_tokens, n, err);
}

/* Empties both caches and runs the prompt, without its last token, through the target (and the draft). */
static lvr_status prefill(request *q, bool draft_too, lvr_error *err)
{
    lvr_oracle *o = q->o;
    lvr_kv_clear(&o->pair.target.kv);
    lvr_kv_clear(&o->pair.draft.kv);
    for (uint32_t at = 0; at + 1 < q->n_prompt;) {
        const uint32_t n = lvr_min_u32(q->n_prompt - 1 - at, o->config.prefill_chunk);
        const lvr_status status = prompt_pass(q, at, n, draft_too, err);
        if (status != LVR_OK)
            return status;
        at += n;
    }
    return LVR_OK;
}

/* ---- the text ---- */

static lvr_status next_token(request *q, lvr_error *err)
{
    lvr_oracle *o = q->o;
    lvr_side *t = &o->pair.target;
    o->rows[0] =
        (lvr_fwd_row){.token = q->seq[q->n_seq - 1], .position = q->n_seq - 1, .slot = 0, .parent_slot = -1};
    lvr_status status = run_target(o, 1, err);
    if (status == LVR_OK)
        status = commit_first(&t->kv, 1, err);
    if (status != LVR_OK)
        return status;
    lvr_forward_head(t->forward, 0, t->logits);
    const int32_t token =
        lvr_sample(t->sampler, &o->config.sampling, q->id, q->n_seq, t->logits, &q->p[q->n_seq]);
    if (token < 0)
        return lvr_fail_logits(lvr_pack_path(t->pack), q->id, q->n_seq, err);
    q->seq[q->n_seq++] = token;
    return LVR_OK;
}

static lvr_status check_cancel(const request *q, lvr_error *err)
{
    const atomic_bool *cancel = q->o->config.cancel;
    if (!cancel || !atomic_load_explicit(cancel, memory_order_relaxed))
        return LVR_OK;
    return lvr_fail(err, LVR_ERR_INTERRUPTED, "interrupted in request %" PRIu64, q->id);
}

static lvr_status generate(request *q, lvr_error *err)
{
    const lvr_oracle *o = q->o;
    const lvr_tokenizer *t = o->pair.target.tokenizer;
    lvr_status status = prefill(q, false, err);
    while (status == LVR_OK && q->n_seq - q->n_prompt < q->n_predict && q->n_seq <= o->n_ctx) {
        status = check_cancel(q, err);
        if (status == LVR_OK)
            status = next_token(q, err);
        if (status == LVR_OK && !o->config.ignore_eos && lvr_tokenizer_is_eog(t, q->seq[q->n_seq - 1]))
            break;
    }
    return status;
}

/* ---- the tree at one position ---- */

/* Deeper nodes no policy may verify: tokens wanted and room in the context, as the round machine counts them.
 */
static uint32_t max_depth(const request *q, uint32_t pos)
{
    const uint32_t generated = pos + 1 - q->n_prompt;
    const uint32_t wanted = q->n_predict - generated - 1, room = q->o->n_ctx - (pos + 1);
    return lvr_min_u32(lvr_min_u32(wanted, room), q->o->caps.depth);
}

/* Marks the nodes that are to be expanded by what is known now: the chain, and the `n_best` most probable. */
static void choose(lvr_oracle *o, uint32_t depth_cap, uint32_t n_best)
{
    const lvr_tree *tree = &o->tree;
    uint32_t n = 0, end = 0;
    for (uint32_t i = 0; i < tree->n; i++) {
        o->chosen[i] = false;
        if (tree->nodes[i].depth < depth_cap)
            o->order[n++] = (lvr_ranked_node){o->path[i], i};
    }
    qsort(o->order, n, sizeof o->order[0], lvr_by_falling_path);
    for (uint32_t i = 0; i < n && i < n_best; i++)
        o->chosen[o->order[i].node] = true;
    for (uint32_t i = 0; i < tree->n; i++) {
        const lvr_node *node = &tree->nodes[i];
        if (i > 0 && (node->parent != (int32_t)end || node->rank != 0))
            continue;
        end = i;
        o->chosen[i] |= node->depth < depth_cap && node->depth < o->caps.chain;
    }
}

static bool on_chain(const lvr_tree *tree, uint32_t node)
{
    int32_t v = (int32_t)node;
    while (v > 0 && tree->nodes[v].rank == 0)
        v = tree->nodes[v].parent;
    return v == 0;
}

/* Appends an expanded node's children: those of enough path probability, and always the chain's next. */
static lvr_status add_children(lvr_oracle *o, uint32_t node, const lvr_candidate *children, uint32_t n,
                               lvr_error *err)
{
    uint32_t keep = 0;
    const bool chain = o->tree.nodes[node].depth < o->caps.chain && on_chain(&o->tree, node);
    while (keep < n &&
           ((keep == 0 && chain) || o->path[node] * (double)children[keep].p_draft >= o->caps.min_path))
        keep++;
    const uint32_t first = o->tree.n;
    const lvr_status status = lvr_tree_expand(&o->tree, node, children, keep, err);
    for (uint32_t i = 0; status == LVR_OK && i < keep; i++)
        o->path[first + i] = o->path[node] * (double)children[i].p_draft;
    return status;
}

/* Runs the chosen nodes that are not expanded yet through the draft. *ret_n: how many there were. */
static lvr_status expand_chosen(request *q, uint32_t pos, uint32_t *ret_n, lvr_error *err)
{
    lvr_oracle *o = q->o;
    lvr_tree *tree = &o->tree;
    uint32_t n = 0, per_row = 0;
    uint32_t *nodes = o->expanded + o->n_expanded;
    for (uint32_t i = 0; i < tree->n && o->n_expanded + n < LVR_MAX_RECORDED_EXPANSIONS; i++) {
        const lvr_node *node = &tree->nodes[i];
        if (!o->chosen[i] || node->expanded)
            continue;
        o->slot[i] = (int32_t)(o->n_expanded + n);
        o->rows[n] = (lvr_fwd_row){.token = node->token,
                                   .position = pos + node->depth,
                                   .slot = (uint32_t)o->slot[i],
                                   .parent_slot = node->parent < 0 ? -1 : o->slot[node->parent]};
        nodes[n++] = i;
    }
    *ret_n = n;
    if (n == 0)
        return LVR_OK;
    lvr_status status = lvr_pair_draft(&o->pair, o->rows, n, n, o->caps.branch, o->candidates, &per_row, err);
    for (uint32_t i = 0; status == LVR_OK && i < n; i++)
        status = add_children(o, nodes[i], o->candidates + (size_t)i * per_row, per_row, err);
    o->n_expanded += n;
    return status;
}

static lvr_status put_topk(request *q, uint32_t pos, const lvr_candidate *children, uint32_t n,
                           lvr_error *err)
{
    lvr_status status = LVR_OK;
    for (uint32_t k = 0; status == LVR_OK && k < n; k++) {
        const lvr_rec_draft_topk rec = {
            .request = q->id, .pos = pos, .k = k, .token = children[k].token, .p = children[k].p_draft};
        status = lvr_trace_put_wait(q->lane, LVR_STREAM_DRAFT_TOPK, &rec, err);
    }
    return status;
}

/* The root is always run: its children are /draft_topk, and its draft row is the next position's cache. */
static lvr_status expand_root(request *q, uint32_t pos, uint32_t depth_cap, lvr_error *err)
{
    lvr_oracle *o = q->o;
    uint32_t per_row = 0;
    lvr_tree_reset(&o->tree, q->seq[pos]);
    o->path[0] = 1;
    o->slot[0] = 0;
    o->rows[0] = (lvr_fwd_row){.token = q->seq[pos], .position = pos, .slot = 0, .parent_slot = -1};
    lvr_status status = lvr_pair_draft(&o->pair, o->rows, 1, 1, o->caps.branch, o->candidates, &per_row, err);
    if (status == LVR_OK)
        status = put_topk(q, pos, o->candidates, per_row, err);
    o->expanded[0] = 0;
    o->n_expanded = 1;
    return status == LVR_OK && depth_cap > 0 ? add_children(o, 0, o->candidates, per_row, err) : status;
}

static lvr_status expand_until_known(request *q, uint32_t pos, uint32_t depth_cap, uint32_t n_best,
                                     lvr_error *err)
{
    for (uint32_t n = 1; n > 0;) {
        choose(q->o, depth_cap, n_best);
        const lvr_status status = expand_chosen(q, pos, &n, err);
        if (status != LVR_OK)
            return status;
    }
    return LVR_OK;
}

/* The chain comes first, so that a wide tree cannot use up the rows it needs. */
static lvr_status grow(request *q, uint32_t pos, lvr_error *err)
{
    const uint32_t depth_cap = max_depth(q, pos);
    lvr_status status = expand_root(q, pos, depth_cap, err);
    if (status == LVR_OK)
        status = expand_until_known(q, pos, depth_cap, 0, err);
    if (status == LVR_OK)
        status = expand_until_known(q, pos, depth_cap, q->o->caps.expansions, err);
    return status == LVR_OK ? commit_first(&q->o->pair.draft.kv, 1, err) : status;
}

/* ---- the target on the tree ---- */

/* The target's pass has a row for each expanded node, in the order of expansion: the draft's scratch rows. */
static void target_rows(request *q, uint32_t pos)
{
    lvr_oracle *o = q->o;
    for (uint32_t r = 0; r < o->n_expanded; r++) {
        const lvr_node *node = &o->tree.nodes[o->expanded[r]];
        o->rows[r] = (lvr_fwd_row){.token = node->token,
                                   .position = pos + node->depth,
                                   .slot = r,
                                   .parent_slot = node->parent < 0 ? -1 : o->slot[node->parent]};
    }
}

static lvr_status sample_rows(request *q, uint32_t first, uint32_t n, lvr_error *err)
{
    lvr_oracle *o = q->o;
    lvr_side *t = &o->pair.target;
    uint32_t rows[LVR_PAIR_HEAD_CHUNK];
    for (uint32_t i = 0; i < n; i++)
        rows[i] = first + i;
    lvr_forward_heads(t->forward, rows, n, t->logits);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t node = o->expanded[first + i], position = o->rows[first + i].position + 1;
        o->target_token[node] = lvr_sample(t->sampler, &o->config.sampling, q->id, position,
                                           t->logits + (size_t)i * t->shape->vocab, &o->p_target[node]);
        if (o->target_token[node] < 0)
            return lvr_fail_logits(lvr_pack_path(t->pack), q->id, position, err);
    }
    return LVR_OK;
}

/* Every node's parent was expanded, and has a row. */
static uint32_t list_queries(lvr_oracle *o)
{
    for (uint32_t i = 1; i < o->tree.n; i++)
        o->queries[i - 1] = (lvr_fwd_query){.row = (uint32_t)o->slot[o->tree.nodes[i].parent],
                                            .token = o->tree.nodes[i].token};
    return o->tree.n - 1;
}

/* As run_target, with the nodes scored on the way. */
static lvr_status run_scored(lvr_oracle *o, lvr_error *err)
{
    lvr_forward *f = o->pair.target.forward;
    const uint32_t n_queries = list_queries(o);
    uint32_t next = 0;
    lvr_status status = lvr_forward_embed(f, o->rows, o->n_expanded, err);
    for (uint32_t l = 0; status == LVR_OK && l < o->pair.target.shape->n_layers; l++) {
        lvr_forward_layer(f, l, NULL);
        if (next == o->caps.n_exit_layers || o->caps.exit_layers[next] != l)
            continue;
        status = lvr_forward_scores(f, o->queries, n_queries, o->exits[next++], err);
    }
    return status;
}

static lvr_status verify(request *q, uint32_t pos, lvr_error *err)
{
    lvr_oracle *o = q->o;
    for (uint32_t i = 0; i < o->tree.n; i++) {
        o->target_token[i] = -1;
        o->p_target[i] = NAN;
    }
    target_rows(q, pos);
    lvr_status status = run_scored(o, err);
    for (uint32_t r = 0; status == LVR_OK && r < o->n_expanded; r += LVR_PAIR_HEAD_CHUNK)
        status = sample_rows(q, r, lvr_min_u32(o->n_expanded - r, LVR_PAIR_HEAD_CHUNK), err);
    return status == LVR_OK ? commit_first(&o->pair.target.kv, 1, err) : status;
}

/* ---- records ---- */

/* The node continues the text: on_path of the parent, and the token that the text has there. */
static lvr_status follow_text(request *q, uint32_t pos, bool *on_path, lvr_error *err)
{
    lvr_oracle *o = q->o;
    for (uint32_t i = 0; i < o->tree.n; i++) {
        const lvr_node *node = &o->tree.nodes[i];
        const uint32_t at = pos + node->depth;
        on_path[i] = i == 0 || (on_path[node->parent] && at < q->n_seq && node->token == q->seq[at]);
        if (!on_path[i] || at + 1 >= q->n_seq)
            continue;
        if (o->target_token[i] >= 0 && o->target_token[i] != q->seq[at + 1])
            return lvr_fail(err, LVR_ERR_INVARIANT,
                            "INV-ROW: request %" PRIu64
                            ", position %u: token %d in a tree, %d in the text; please report this",
                            q->id, at + 1, o->target_token[i], q->seq[at + 1]);
        o->target_token[i] = q->seq[at + 1];
        o->p_target[i] = q->p[at + 1];
    }
    return LVR_OK;
}

/* exits[layer][i]: of node i + 1. */
static lvr_status put_exits(const request *q, uint32_t pos, lvr_error *err)
{
    const lvr_oracle *o = q->o;
    lvr_status status = LVR_OK;
    for (uint32_t i = 1; i < o->tree.n; i++) {
        for (uint32_t l = 0; status == LVR_OK && l < o->caps.n_exit_layers; l++) {
            const lvr_exit_raw *raw = &o->exits[l][i - 1];
            const lvr_rec_exit rec = {.request = q->id,
                                      .pos = pos,
                                      .node = i,
                                      .layer = o->caps.exit_layers[l],
                                      .score = raw->score,
                                      .slice_lse = raw->slice_lse,
                                      .slice_max = raw->slice_max,
                                      .slice_entropy = raw->slice_entropy};
            status = lvr_trace_put_wait(q->lane, LVR_STREAM_EXIT, &rec, err);
        }
    }
    return status;
}

static lvr_status put_tree(request *q, uint32_t pos, lvr_error *err)
{
    lvr_oracle *o = q->o;
    bool on_path[LVR_MAX_RECORDED_NODES];
    lvr_status status = follow_text(q, pos, on_path, err);
    for (uint32_t i = 0; status == LVR_OK && i < o->tree.n; i++) {
        const lvr_node *node = &o->tree.nodes[i];
        const lvr_rec_tree rec = {
            .request = q->id,
            .pos = pos,
            .node = i,
            .parent = node->parent,
            .depth = node->depth,
            .rank = node->rank,
            .token = node->token,
            .p_draft = node->p_draft,
            .target_token = o->target_token[i],
            .p_target = o->p_target[i],
            .on_path = on_path[i],
            .expanded = node->expanded,
        };
        status = lvr_trace_put_wait(q->lane, LVR_STREAM_TREES, &rec, err);
    }
    q->n_nodes += o->tree.n;
    return status;
}

static lvr_status put_token(request *q, uint32_t pos, lvr_error *err)
{
    const lvr_rec_token rec = {
        .request = q->id, .pos = pos, .token = q->seq[pos], .is_output = pos >= q->n_prompt};
    return lvr_trace_put_wait(q->lane, LVR_STREAM_TOKENS, &rec, err);
}

static lvr_status teacher_force(request *q, lvr_error *err)
{
    lvr_status status = prefill(q, true, err);
    for (uint32_t pos = 0; status == LVR_OK && pos < q->n_prompt; pos++)
        status = put_token(q, pos, err);
    for (uint32_t pos = q->n_prompt - 1; status == LVR_OK && pos + 1 < q->n_seq; pos++) {
        status = check_cancel(q, err);
        if (status == LVR_OK)
            status = grow(q, pos, err);
        if (status == LVR_OK)
            status = verify(q, pos, err);
        if (status == LVR_OK)
            status = put_exits(q, pos, err);
        if (status == LVR_OK)
            status = put_tree(q, pos, err);
        if (status == LVR_OK)
            status = put_token(q, pos + 1, err);
    }
    return status;
}

static lvr_status put_request(request *q, uint32_t domain, uint64_t t0, lvr_error *err)
{
    const uint64_t now = lvr_now_ns();
    const lvr_rec_request rec = {
        .id = q->id,
        .t_arrival_ns = t0,
        .t_first_token_ns = now,
        .t_done_ns = now,
        .n_prompt = q->n_prompt,
        .n_output = q->n_seq - q->n_prompt,
        .domain = domain,
        .prompt_hash = lvr_prompt_hash(q->seq, q->n_prompt),
    };
    lvr_log(LVR_LOG_INFO, "request %" PRIu64 ": %u tokens, %.1f nodes a position, %.1f s", q->id,
            rec.n_output, rec.n_output ? (double)q->n_nodes / rec.n_output : 0, (double)(now - t0) * 1e-9);
    return lvr_trace_put_wait(q->lane, LVR_STREAM_REQUESTS, &rec, err);
}

/* ---- a request ---- */

static lvr_status check_request(const request *q, lvr_error *err)
{
    if (q->n_prompt == 0 || q->n_predict == 0)
        return lvr_fail(err, LVR_ERR_USAGE,
                        "nothing to do: %u prompt tokens, %u tokens wanted; both must be at least 1",
                        q->n_prompt, q->n_predict);
    if (q->n_prompt > q->o->n_ctx)
        return lvr_fail(err, LVR_ERR_BUDGET,
                        "the prompt has %u tokens, the context holds %u; shorten it or raise --context",
                        q->n_prompt, q->o->n_ctx);
    return LVR_OK;
}

static lvr_status record(request *q, uint32_t domain, lvr_error *err)
{
    const uint64_t t0 = lvr_now_ns();
    lvr_status status = generate(q, err);
    if (status == LVR_OK)
        status = teacher_force(q, err);
    return status == LVR_OK ? put_request(q, domain, t0, err) : status;
}

static lvr_status hand_over(const request *q, int32_t **ret_tokens, uint32_t *ret_n, lvr_error *err)
{
    const uint32_t n = q->n_seq - q->n_prompt;
    if (!ret_tokens)
        return LVR_OK;
    int32_t *tokens = malloc((n ? n : 1) * sizeof tokens[0]);
    if (!tokens)
        return lvr_fail(err, LVR_ERR_NOMEM, "out of memory for %u tokens", n);
    memcpy(tokens, q->seq + q->n_prompt, n * sizeof tokens[0]);
    *ret_tokens = tokens;
    *ret_n = n;
    return LVR_OK;
}

lvr_status lvr_oracle_record(lvr_oracle *o, lvr_trace_lane *lane, uint64_t request_id, uint32_t domain,
                             const int32_t *prompt, uint32_t n_prompt, uint32_t n_predict,
                             int32_t **ret_tokens, uint32_t *ret_n, lvr_error *err)
{
    request q = {.o = o,
                 .lane = lane,
                 .id = request_id,
                 .n_prompt = n_prompt,
                 .n_seq = n_prompt,
                 .n_predict = n_predict};
    lvr_status status = check_request(&q, err);
    if (status != LVR_OK)
        return status;
    q.seq = calloc((size_t)n_prompt + n_predict, sizeof q.seq[0]);
    q.p = calloc((size_t)n_prompt + n_predict, sizeof q.p[0]);
    if (!q.seq || !q.p)
        status = lvr_fail(err, LVR_ERR_NOMEM, "out of memory for %u tokens", n_predict);
    if (status == LVR_OK) {
        memcpy(q.seq, prompt, n_prompt * sizeof prompt[0]);
        status = record(&q, domain, err);
    }
    if (status == LVR_OK)
        status = hand_over(&q, ret_tokens, ret_n, err);
    free(q.seq);
    free(q.p);
    return status;
}
