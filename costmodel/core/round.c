/*
 * The round machine. States, and the function that leaves each:
 *
 *   IDLE ──lvr_round_begin──▶ next_pass ─┬─▶ PROMPT_DRAFT (draft runs the prompt chunk)      on_draft_done
 *                 ▲                      ├─▶ CATCHING_UP  (the draft is far behind)          on_draft_done
 *                 │                      ├─▶ DRAFTING     (policy's frontier)               on_draft_done
 *                 │                      └─▶ VERIFYING    (layers 0..L-1)                    on_layer_done
 *                 │                                 │            └─▶ HEADS (walk)            on_head_done
 *                 │                                 └─(prompt)──▶ COMMITTING ◀──────┘        on_commit_done
 *                 └───────────── DONE queued ◀── finished? ──────────┘
 *
 * A prompt pass on the accelerator goes straight to VERIFYING; the draft's rows are out from its first layer
 * on (draft_out). Should the layers be done first, JOINING waits for the draft.
 *
 * Streamed layers are numbered by instance: instance k is streamed layer k % n_streamed of pass k /
 * n_streamed, staged in slot k % ring_slots. `issued` and `freed` count instances; issued - freed are staged
 * or being read.
 */
#include "costmodel/core/round.h"

#include "common/minmax.h"
#include <stdlib.h>
#include <string.h>

typedef enum phase { IDLE, PROMPT_DRAFT, CATCHING_UP, DRAFTING, VERIFYING, JOINING, HEADS, COMMITTING } phase;

typedef struct staged_layer {
    uint64_t first_seq;
    uint32_t n_slices, n_ready;
} staged_layer;

struct lvr_round {
    lvr_round_config config;
    phase phase;

    /* sequence */
    int32_t *seq; /* committed tokens, the root last; n_ctx + 1 + LVR_MAX_DEPTH + 1 */
    uint32_t n_seq, seq_cap, n_prompt, n_predict, n_generated;
    uint32_t target_cached, draft_cached;
    uint64_t request, pass;
    bool stopped_by_eos;

    /* drafting */
    lvr_tree tree;
    lvr_policy_scratch *scratch;
    uint32_t expand[LVR_MAX_EXPANSIONS], n_expand, n_expanded, n_steps, branch;
    double draft_ns;
    lvr_row *draft_rows; /* [prefill_chunk + LVR_MAX_EXPANSIONS]: catch-up, then nodes to expand */

    /* verification */
    bool prefill;
    lvr_row *pass_rows; /* of a tree or of a prompt: [the larger of max_rows, prefill_chunk] */
    uint32_t chosen[LVR_MAX_VERIFY_NODES]; /* tree node of each pass row */
    uint32_t n_rows, layer;
    lvr_unit unit;
    bool layer_out; /* a LAYER action is outstanding */
    bool draft_due,
        draft_out; /* the draft's part of this prompt pass: to be ordered with layer 0; outstanding */

    /* walk and commit */
    uint32_t *kept, n_kept; /* as many as pass_rows */
    int32_t kept_draft[LVR_MAX_VERIFY_NODES];
    uint32_t n_kept_draft;
    int32_t tokens[LVR_MAX_VERIFY_NODES];
    uint32_t n_tokens;

    /* reads */
    uint32_t streamed[LVR_MAX_LAYERS], n_streamed; /* layer numbers that are not resident */
    uint32_t instance_of[LVR_MAX_LAYERS];          /* layer -> index in streamed */
    uint32_t max_slices;
    uint64_t issued, freed, next_seq;
    staged_layer slots[LVR_MAX_RING_SLOTS];
    bool *slice_ready; /* [ring_slots][max_slices] */

    /* actions not taken yet: a FIFO */
    lvr_action *queue;
    uint32_t q_head, q_len, q_cap;
};

static lvr_action *push(lvr_round *m, lvr_action_kind kind)
{
    lvr_action *a = &m->queue[(m->q_head + m->q_len++) % m->q_cap];
    memset(a, 0, sizeof *a);
    a->kind = kind;
    return a;
}

bool lvr_round_next(lvr_round *m, lvr_action *ret_action)
{
    if (m->q_len == 0)
        return false;
    *ret_action = m->queue[m->q_head];
    m->q_head = (m->q_head + 1) % m->q_cap;
    m->q_len--;
    return true;
}

/* ---- reads ---- */

static uint32_t slices_of(const lvr_geometry *g, uint32_t layer)
{
    return (uint32_t)((g->layer_bytes[layer] + g->slice_bytes - 1) / g->slice_bytes);
}

static void issue_layer(lvr_round *m)
{
    const lvr_geometry *g = m->config.geometry;
    const uint64_t k = m->issued++;
    const uint32_t layer = m->streamed[k % m->n_streamed];
    const uint32_t slot = (uint32_t)(k % g->ring_slots);
    staged_layer *s = &m->slots[slot];
    *s = (staged_layer){.first_seq = m->next_seq, .n_slices = slices_of(g, layer)};
    memset(&m->slice_ready[(size_t)slot * m->max_slices], 0, m->max_slices * sizeof m->slice_ready[0]);
    for (uint32_t i = 0; i < s->n_slices; i++) {
        const uint64_t offset = (uint64_t)i * g->slice_bytes;
        const uint64_t left = g->layer_bytes[layer] - offset;
        lvr_action *a = push(m, LVR_ACT_READ);
        a->read.seq = m->next_seq++;
        a->read.layer = layer;
        a->read.slice = i;
        a->read.slot = slot;
        a->read.offset = offset;
        a->read.bytes = lvr_min_u64(left, g->slice_bytes);
        a->read.round = k / m->n_streamed;
    }
}

/* The instance that the current pass needs for a streamed layer. */
static uint64_t instance_needed(const lvr_round *m, uint32_t layer)
{
    return m->pass * m->n_streamed + m->instance_of[layer];
}

static void pump_reads(lvr_round *m)
{
    const lvr_geometry *g = m->config.geometry;
    if (m->n_streamed == 0)
        return;
    if (g->io_mode == LVR_IO_PIPELINED) {
        while (m->issued - m->freed < g->ring_slots)
            issue_layer(m);
        return;
    }
    if (m->phase == VERIFYING && !g->resident[m->layer] && m->issued == instance_needed(m, m->layer))
        issue_layer(m);
}

static bool layer_ready(const lvr_round *m)
{
    const lvr_geometry *g = m->config.geometry;
    if (g->resident[m->layer])
        return true;
    const uint64_t k = instance_needed(m, m->layer);
    const staged_layer *s = &m->slots[k % g->ring_slots];
    return k < m->issued && s->n_ready == s->n_slices;
}

static lvr_status on_slice_ready(lvr_round *m, uint64_t seq, lvr_error *err)
{
    const uint32_t ring_slots = m->config.geometry->ring_slots;
    for (uint64_t k = m->freed; k < m->issued; k++) {
        const uint32_t slot = (uint32_t)(k % ring_slots);
        staged_layer *s = &m->slots[slot];
        if (seq < s->first_seq || seq >= s->first_seq + s->n_slices)
            continue;
        bool *ready = &m->slice_ready[(size_t)slot * m->max_slices + (seq - s->first_seq)];
        if (*ready)
            break;
        *ready = true;
        s->n_ready++;
        return LVR_OK;
    }
    return lvr_fail(err, LVR_ERR_INVARIANT, "round machine: slice %llu is not outstanding",
                    (unsigned long long)seq);
}

/* ---- drafting ---- */

static uint32_t max_depth(const lvr_round *m)
{
    const uint32_t wanted = m->n_predict - m->n_generated - 1;
    const uint32_t room = m->config.n_ctx - m->n_seq;
    return lvr_min_u32(lvr_min_u32(wanted, room), LVR_MAX_DEPTH);
}

static lvr_policy_view view_of(const lvr_round *m)
{
    const lvr_policy *p = m->config.policy;
    return (lvr_policy_view){
        .tree = &m->tree,
        .cost = p->has_cost ? &p->cost : NULL,
        .geometry = m->config.geometry,
        .calibration = &p->calibration,
        .context = m->n_seq - 1,
        .max_depth = max_depth(m),
        .max_rows = m->config.max_rows,
        .n_steps = m->n_steps,
        .draft_ns = m->draft_ns,
        .seed = m->config.seed,
        .request = m->request,
        .position = m->n_seq - 1,
        .scratch = m->scratch,
    };
}

/* Appends committed tokens [draft_cached, end) to the draft rows; returns how many rows there are. */
static uint32_t catch_up_rows(lvr_round *m, uint32_t end)
{
    uint32_t n = 0;
    for (uint32_t pos = m->draft_cached; pos < end; pos++)
        m->draft_rows[n++] = (lvr_row){.token = m->seq[pos], .position = pos, .node = -1, .parent_row = -1};
    return n;
}

static void push_draft(lvr_round *m, uint32_t n_rows)
{
    lvr_action *a = push(m, LVR_ACT_DRAFT);
    a->draft.rows = m->draft_rows;
    a->draft.n_rows = n_rows;
    a->draft.n_expand = m->n_expand;
    a->draft.branch = m->branch;
    if (m->config.policy->has_cost)
        m->draft_ns += lvr_op_cost_ns(&m->config.policy->cost.op[LVR_OP_DRAFT], n_rows, m->draft_cached);
}

static void push_draft_step(lvr_round *m)
{
    uint32_t n = catch_up_rows(m, m->n_seq - 1);
    for (uint32_t i = 0; i < m->n_expand; i++) {
        const lvr_node *node = &m->tree.nodes[m->expand[i]];
        m->draft_rows[n++] = (lvr_row){.token = node->token,
                                       .position = m->n_seq - 1 + node->depth,
                                       .node = (int32_t)m->expand[i],
                                       .parent_row = node->parent};
    }
    push_draft(m, n);
}

static lvr_status check_expansion(const lvr_round *m, lvr_error *err)
{
    for (uint32_t i = 0; i < m->n_expand; i++) {
        const uint32_t v = m->expand[i];
        if (v >= m->tree.n || m->tree.nodes[v].expanded || (i > 0 && v == m->expand[i - 1]))
            return lvr_fail(err, LVR_ERR_INVARIANT, "policy %s: expands node %u, which it may not (%u nodes)",
                            m->config.policy->ops->name, v, m->tree.n);
        if (m->tree.nodes[v].parent >= 0 && !m->tree.nodes[m->tree.nodes[v].parent].expanded)
            return lvr_fail(err, LVR_ERR_INVARIANT, "policy %s: expands node %u before its parent",
                            m->config.policy->ops->name, v);
    }
    return LVR_OK;
}

static lvr_status begin_verify(lvr_round *m, lvr_error *err);

/* Asks the policy for the next draft step; with none, the tree is chosen and verification begins. */
static lvr_status draft_or_verify(lvr_round *m, lvr_error *err)
{
    const lvr_policy_ops *ops = m->config.policy->ops;
    const lvr_policy_view view = view_of(m);
    const uint32_t cap = LVR_MAX_EXPANSIONS - m->n_expanded;
    m->n_expand = view.max_depth > 0 && ops->uses_draft
                      ? ops->expand(m->config.policy->params.bytes, &view, m->expand, cap)
                      : 0;
    if (m->n_expand == 0)
        return begin_verify(m, err);
    const lvr_status st = check_expansion(m, err);
    if (st != LVR_OK)
        return st;
    m->phase = DRAFTING;
    push_draft_step(m);
    return LVR_OK;
}

/* A policy may leave the draft out for many rounds; what it then lacks is run in chunks before the first
 * step. */
static lvr_status begin_draft(lvr_round *m, lvr_error *err)
{
    if (!m->config.policy->ops->uses_draft || m->n_seq - 1 - m->draft_cached <= m->config.prefill_chunk)
        return draft_or_verify(m, err);
    m->phase = CATCHING_UP;
    push_draft(m, catch_up_rows(m, m->draft_cached + m->config.prefill_chunk));
    return LVR_OK;
}

static lvr_status on_draft_done(lvr_round *m, const lvr_event *event, lvr_error *err)
{
    if (m->phase == PROMPT_DRAFT) {
        m->draft_cached = m->target_cached + m->n_rows;
        return begin_verify(m, err);
    }
    if (m->phase == CATCHING_UP) {
        m->draft_cached += m->config.prefill_chunk;
        return begin_draft(m, err);
    }
    if (event->draft.n_per_row > m->branch)
        return lvr_fail(err, LVR_ERR_INVARIANT, "round machine: %u children per node, asked for %u",
                        event->draft.n_per_row, m->branch);
    m->draft_cached = m->n_seq - 1;
    for (uint32_t i = 0; i < m->n_expand; i++) {
        const lvr_candidate *children = event->draft.candidates + (size_t)i * event->draft.n_per_row;
        const lvr_status st = lvr_tree_expand(&m->tree, m->expand[i], children, event->draft.n_per_row, err);
        if (st != LVR_OK)
            return st;
    }
    m->n_expanded += m->n_expand;
    m->n_steps++;
    return draft_or_verify(m, err);
}

/* ---- verification ---- */

static void try_layer(lvr_round *m)
{
    if (m->phase != VERIFYING || m->layer_out || !layer_ready(m))
        return;
    const lvr_geometry *g = m->config.geometry;
    lvr_action *a = push(m, LVR_ACT_LAYER);
    a->layer.layer = m->layer;
    a->layer.slot = g->resident[m->layer] ? -1 : (int32_t)(instance_needed(m, m->layer) % g->ring_slots);
    a->layer.rows = m->pass_rows;
    a->layer.n_rows = m->n_rows;
    a->layer.unit = m->unit;
    a->layer.prefill = m->prefill;
    m->layer_out = true;
    if (m->draft_due) {
        m->draft_due = false;
        m->draft_out = true;
        push_draft(m, catch_up_rows(m, m->target_cached + m->n_rows));
    }
}

/* The policy's choice must be a tree: ascending, the root first, parents chosen before their children. */
static lvr_status choose_rows(lvr_round *m, lvr_error *err)
{
    const lvr_policy_view view = view_of(m);
    const lvr_policy_ops *ops = m->config.policy->ops;
    m->n_rows = ops->select(m->config.policy->params.bytes, &view, m->chosen, m->config.max_rows);
    if (m->n_rows == 0 || m->n_rows > m->config.max_rows || m->chosen[0] != 0)
        return lvr_fail(err, LVR_ERR_INVARIANT,
                        "policy %s: chose %u rows, expected 1 to %u with the root first", ops->name,
                        m->n_rows, m->config.max_rows);
    for (uint32_t r = 0; r < m->n_rows; r++) {
        const uint32_t v = m->chosen[r];
        if (v >= m->tree.n || (r > 0 && v <= m->chosen[r - 1]))
            return lvr_fail(err, LVR_ERR_INVARIANT, "policy %s: chosen nodes must ascend", ops->name);
        const lvr_node *node = &m->tree.nodes[v];
        int32_t parent_row = -1;
        for (uint32_t i = 0; i < r && node->parent >= 0; i++)
            if (m->chosen[i] == (uint32_t)node->parent)
                parent_row = (int32_t)i;
        if ((r > 0 && parent_row < 0) || node->depth > view.max_depth)
            return lvr_fail(err, LVR_ERR_INVARIANT,
                            "policy %s: chose node %u without its parent or too deep (depth %u)", ops->name,
                            v, node->depth);
        m->pass_rows[r] = (lvr_row){.token = node->token,
                                    .position = m->n_seq - 1 + node->depth,
                                    .node = (int32_t)v,
                                    .parent_row = parent_row};
    }
    return LVR_OK;
}

static lvr_unit unit_of_pass(const lvr_round *m)
{
    const lvr_place place = m->config.geometry->place;
    const lvr_policy *p = m->config.policy;
    if (place != LVR_PLACE_AUTO)
        return place == LVR_PLACE_NPU ? LVR_UNIT_NPU : LVR_UNIT_CPU;
    const uint32_t context = m->prefill ? m->target_cached : m->n_seq - 1;
    return p->has_cost ? lvr_cost_unit(&p->cost, place, LVR_OP_LAYER, m->n_rows, context) : LVR_UNIT_CPU;
}

static lvr_status begin_verify(lvr_round *m, lvr_error *err)
{
    if (!m->prefill) {
        const lvr_status st = choose_rows(m, err);
        if (st != LVR_OK)
            return st;
    }
    m->unit = unit_of_pass(m);
    m->phase = VERIFYING;
    m->layer = 0;
    m->layer_out = false;
    pump_reads(m);
    try_layer(m);
    return LVR_OK;
}

static void begin_prompt_pass(lvr_round *m)
{
    const uint32_t left = m->n_seq - 1 - m->target_cached;
    m->prefill = true;
    m->n_rows = lvr_min_u32(left, m->config.prefill_chunk);
    for (uint32_t r = 0; r < m->n_rows; r++) {
        const uint32_t pos = m->target_cached + r;
        m->pass_rows[r] =
            (lvr_row){.token = m->seq[pos], .position = pos, .node = -1, .parent_row = (int32_t)r - 1};
    }
}

static lvr_status next_pass(lvr_round *m, lvr_error *err)
{
    m->n_steps = m->n_expand = m->n_expanded = 0;
    m->draft_ns = 0.0;
    m->n_kept = m->n_kept_draft = m->n_tokens = 0;
    m->branch = m->config.policy->ops->branch(m->config.policy->params.bytes);
    lvr_tree_reset(&m->tree, m->seq[m->n_seq - 1]);
    pump_reads(m);
    if (m->target_cached + 1 < m->n_seq) {
        begin_prompt_pass(m);
        m->draft_due = m->config.policy->ops->uses_draft && unit_of_pass(m) == LVR_UNIT_NPU;
        if (!m->config.policy->ops->uses_draft || m->draft_due)
            return begin_verify(m, err);
        m->phase = PROMPT_DRAFT;
        push_draft(m, catch_up_rows(m, m->target_cached + m->n_rows));
        return LVR_OK;
    }
    m->prefill = false;
    m->n_rows = 0;
    return begin_draft(m, err);
}

/* ---- walk and commit ---- */

static void push_head(lvr_round *m, uint32_t row)
{
    m->phase = HEADS;
    m->kept[m->n_kept++] = row;
    lvr_action *a = push(m, LVR_ACT_HEAD);
    a->head.row = row;
    a->head.position = m->pass_rows[row].position;
}

static void push_commit(lvr_round *m)
{
    m->phase = COMMITTING;
    for (uint32_t i = 0; i < m->n_kept && !m->prefill; i++) {
        const uint32_t v = m->chosen[m->kept[i]];
        if (m->tree.nodes[v].expanded)
            m->kept_draft[m->n_kept_draft++] = (int32_t)v;
    }
    lvr_action *a = push(m, LVR_ACT_COMMIT);
    a->commit.rows = m->kept;
    a->commit.n_rows = m->n_kept;
    a->commit.draft_nodes = m->kept_draft;
    a->commit.n_draft_nodes = m->n_kept_draft;
    a->commit.tokens = m->tokens;
    a->commit.n_tokens = m->n_tokens;
    a->commit.prefill = m->prefill;
}

static void commit_prompt_pass(lvr_round *m)
{
    for (uint32_t r = 0; r < m->n_rows; r++)
        m->kept[m->n_kept++] = r;
    push_commit(m);
}

static lvr_status on_layer_done(lvr_round *m, lvr_error *err)
{
    if (m->phase != VERIFYING || !m->layer_out)
        return lvr_fail(err, LVR_ERR_INVARIANT, "round machine: no layer is outstanding");
    m->layer_out = false;
    if (!m->config.geometry->resident[m->layer])
        m->freed++;
    if (++m->layer < m->config.geometry->n_layers) {
        pump_reads(m);
        try_layer(m);
        return LVR_OK;
    }
    m->pass++;
    if (m->draft_out)
        m->phase = JOINING;
    else if (m->prefill)
        commit_prompt_pass(m);
    else
        push_head(m, 0);
    pump_reads(m);
    return LVR_OK;
}

/* The draft has run a prompt chunk that the accelerator may still be at. */
static void on_prompt_drafted(lvr_round *m)
{
    m->draft_out = false;
    m->draft_cached = m->target_cached + m->n_rows; /* not committed yet, so this is the chunk's end */
    if (m->phase == JOINING)
        commit_prompt_pass(m);
}

/* The chosen row that is `row`'s child with this token, or -1. */
static int32_t matching_child(const lvr_round *m, uint32_t row, int32_t token)
{
    for (uint32_t r = row + 1; r < m->n_rows; r++)
        if (m->pass_rows[r].parent_row == (int32_t)row && m->pass_rows[r].token == token)
            return (int32_t)r;
    return -1;
}

static bool ends_text(const lvr_round_config *c, int32_t token)
{
    for (uint32_t i = 0; i < c->n_more_eos; i++)
        if (token == c->more_eos[i])
            return true;
    return token >= 0 && token == c->eos_token;
}

static lvr_status on_head_done(lvr_round *m, int32_t token, lvr_error *err)
{
    if (m->phase != HEADS)
        return lvr_fail(err, LVR_ERR_INVARIANT, "round machine: no head row is outstanding");
    m->tokens[m->n_tokens++] = token;
    m->n_generated++;
    m->stopped_by_eos = ends_text(&m->config, token);
    const int32_t child = m->stopped_by_eos ? -1 : matching_child(m, m->kept[m->n_kept - 1], token);
    if (child >= 0)
        push_head(m, (uint32_t)child);
    else
        push_commit(m);
    return LVR_OK;
}

static void push_done(lvr_round *m, lvr_stop stop)
{
    m->phase = IDLE;
    push(m, LVR_ACT_DONE)->done.stop = stop;
}

static lvr_stop stop_reason(const lvr_round *m, bool asked)
{
    if (asked)
        return LVR_STOP_HOST;
    if (m->stopped_by_eos)
        return LVR_STOP_EOS;
    return m->n_generated >= m->n_predict ? LVR_STOP_LENGTH : LVR_STOP_CONTEXT;
}

static lvr_status on_commit_done(lvr_round *m, bool stop, lvr_error *err)
{
    if (m->phase != COMMITTING)
        return lvr_fail(err, LVR_ERR_INVARIANT, "round machine: no commit is outstanding");
    m->target_cached += m->n_kept;
    if (!m->prefill) {
        m->draft_cached += m->n_kept_draft;
        memcpy(m->seq + m->n_seq, m->tokens, m->n_tokens * sizeof m->tokens[0]);
        m->n_seq += m->n_tokens;
        if (stop || m->stopped_by_eos || m->n_generated >= m->n_predict || m->n_seq > m->config.n_ctx) {
            push_done(m, stop_reason(m, stop));
            return LVR_OK;
        }
    }
    return next_pass(m, err);
}

/* ---- interface ---- */

lvr_status lvr_round_step(lvr_round *m, const lvr_event *event, lvr_error *err)
{
    lvr_status st = LVR_OK;
    switch (event->kind) {
    case LVR_EV_SLICE_READY:
        st = on_slice_ready(m, event->slice.seq, err);
        if (st == LVR_OK)
            try_layer(m);
        return st;
    case LVR_EV_DRAFT_DONE:
        if (m->draft_out) {
            on_prompt_drafted(m);
            return LVR_OK;
        }
        if (m->phase != DRAFTING && m->phase != PROMPT_DRAFT && m->phase != CATCHING_UP)
            return lvr_fail(err, LVR_ERR_INVARIANT, "round machine: no draft step is outstanding");
        return on_draft_done(m, event, err);
    case LVR_EV_LAYER_DONE:
        return on_layer_done(m, err);
    case LVR_EV_HEAD_DONE:
        return on_head_done(m, event->head.token, err);
    case LVR_EV_COMMIT_DONE:
        return on_commit_done(m, event->commit.stop, err);
    }
    return lvr_fail(err, LVR_ERR_INVARIANT, "round machine: unknown event %d", (int)event->kind);
}

lvr_status lvr_round_begin(lvr_round *m, uint64_t request, const int32_t *prompt, uint32_t n_prompt,
                           uint32_t n_predict, lvr_error *err)
{
    if (m->phase != IDLE || m->q_len > 0)
        return lvr_fail(err, LVR_ERR_INVARIANT, "round machine: a request is still under way");
    if (n_prompt == 0 || n_predict == 0)
        return lvr_fail(err, LVR_ERR_USAGE,
                        "nothing to do: %u prompt tokens, %u tokens wanted; both must be at least 1",
                        n_prompt, n_predict);
    if (n_prompt > m->config.n_ctx)
        return lvr_fail(err, LVR_ERR_BUDGET,
                        "the prompt has %u tokens, the context holds %u; shorten it or raise --context",
                        n_prompt, m->config.n_ctx);
    memcpy(m->seq, prompt, n_prompt * sizeof prompt[0]);
    m->n_seq = m->n_prompt = n_prompt;
    m->n_predict = n_predict;
    m->n_generated = 0;
    m->target_cached = m->draft_cached = 0;
    m->request = request;
    m->stopped_by_eos = false;
    return next_pass(m, err);
}

static lvr_status check_config(const lvr_round_config *c, lvr_error *err)
{
    const lvr_geometry *g = c->geometry;
    if (c->max_rows == 0 || c->max_rows > LVR_MAX_VERIFY_NODES)
        return lvr_fail(err, LVR_ERR_CONFIG, "rows of a verification pass: expected 1 to %u, found %u",
                        LVR_MAX_VERIFY_NODES, c->max_rows);
    if (c->prefill_chunk == 0 || c->prefill_chunk > LVR_MAX_PREFILL_ROWS)
        return lvr_fail(err, LVR_ERR_CONFIG, "rows of a prompt pass: expected 1 to %u, found %u",
                        LVR_MAX_PREFILL_ROWS, c->prefill_chunk);
    if (g->n_layers == 0 || g->n_layers > LVR_MAX_LAYERS || g->ring_slots == 0 ||
        g->ring_slots > LVR_MAX_RING_SLOTS || g->slice_bytes == 0)
        return lvr_fail(err, LVR_ERR_CONFIG,
                        "schedule: %u layers, %u ring slots, slices of %llu bytes cannot be run", g->n_layers,
                        g->ring_slots, (unsigned long long)g->slice_bytes);
    if (c->n_ctx == 0)
        return lvr_fail(err, LVR_ERR_CONFIG, "the context must hold at least one position");
    if (c->policy->ops->needs_cost && !c->policy->has_cost)
        return lvr_fail(
            err, LVR_ERR_CONFIG,
            "policy %s prices its trees and needs a cost table; give --cost FILE (written by lever fit) or a "
            "policy file (written by lever tune)",
            c->policy->ops->name);
    return LVR_OK;
}

static void list_streamed(lvr_round *m)
{
    const lvr_geometry *g = m->config.geometry;
    m->max_slices = 1;
    for (uint32_t l = 0; l < g->n_layers; l++) {
        if (g->resident[l])
            continue;
        m->instance_of[l] = m->n_streamed;
        m->streamed[m->n_streamed++] = l;
        const uint32_t n = slices_of(g, l);
        m->max_slices = lvr_max_u32(m->max_slices, n);
    }
}

lvr_status lvr_round_new(const lvr_round_config *config, lvr_round **ret_machine, lvr_error *err)
{
    lvr_status st = check_config(config, err);
    if (st != LVR_OK)
        return st;
    lvr_round *m = calloc(1, sizeof *m);
    if (!m)
        return lvr_fail(err, LVR_ERR_NOMEM, "out of memory for the round machine");
    m->config = *config;
    list_streamed(m);
    m->seq_cap = config->n_ctx + LVR_MAX_DEPTH + 2;
    m->q_cap = config->geometry->ring_slots * m->max_slices + 4;
    m->seq = calloc(m->seq_cap, sizeof m->seq[0]);
    const uint32_t rows = lvr_max_u32(config->max_rows, config->prefill_chunk);
    m->draft_rows = calloc((size_t)config->prefill_chunk + LVR_MAX_EXPANSIONS, sizeof m->draft_rows[0]);
    m->pass_rows = calloc(rows, sizeof m->pass_rows[0]);
    m->kept = calloc(rows, sizeof m->kept[0]);
    m->slice_ready = calloc((size_t)config->geometry->ring_slots * m->max_slices, sizeof m->slice_ready[0]);
    m->queue = calloc(m->q_cap, sizeof m->queue[0]);
    m->scratch = lvr_policy_scratch_new();
    if (!m->seq || !m->draft_rows || !m->pass_rows || !m->kept || !m->slice_ready || !m->queue || !m->scratch)
        st = lvr_fail(err, LVR_ERR_NOMEM, "out of memory for the round machine");
    else
        st = lvr_tree_init(&m->tree, LVR_MAX_TREE_NODES, err);
    if (st != LVR_OK) {
        lvr_round_free(m);
        return st;
    }
    *ret_machine = m;
    return LVR_OK;
}

void lvr_round_free(lvr_round *m)
{
    if (!m)
        return;
    lvr_tree_free(&m->tree);
    lvr_policy_scratch_free(m->scratch);
    free(m->queue);
    free(m->slice_ready);
    free(m->draft_rows);
    free(m->pass_rows);
    free(m->kept);
    free(m->seq);
    free(m);
}

void lvr_round_get_info(const lvr_round *m, lvr_round_info *ret)
{
    const bool after_layers =
        m->phase == JOINING || m->phase == HEADS || m->phase == COMMITTING || m->phase == IDLE;
    *ret = (lvr_round_info){
        .request = m->request,
        .round = m->pass - (after_layers && m->pass > 0 ? 1 : 0),
        .prefill = m->prefill,
        .position = m->prefill ? m->target_cached : m->n_seq - 1,
        .n_rows = m->n_rows,
        .n_drafted = m->n_expanded,
        .n_accepted = m->n_tokens > 0 ? m->n_tokens - 1 : 0,
        .n_generated = m->n_generated,
    };
}

const lvr_tree *lvr_round_tree(const lvr_round *m)
{
    return &m->tree;
}

const uint32_t *lvr_round_rows(const lvr_round *m, uint32_t *ret_n)
{
    *ret_n = m->prefill ? 0 : m->n_rows;
    return m->chosen;
}
