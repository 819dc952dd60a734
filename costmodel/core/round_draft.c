/* The drafting of a round, and the draft's part of a prompt pass. */
#include "costmodel/core/round_internal.h"

/* Appends committed tokens [draft_cached, end) to the draft rows; returns how many rows there are. */
static uint32_t catch_up_rows(lvr_round *m, uint32_t end)
{
    uint32_t n = 0;
    for (uint32_t pos = m->draft_cached; pos < end; pos++)
        m->draft_rows[n++] = (lvr_row){.token = m->seq[pos], .position = pos, .node = -1, .parent_row = -1};
    return n;
}

/* Beside a layer on the accelerator only the CPU is free. */
static lvr_place place_of_draft(const lvr_round *m)
{
    const lvr_place place = m->draft_out ? LVR_PLACE_CPU : m->config.geometry->place_draft;
    return place == LVR_PLACE_AUTO && !m->config.policy->has_cost ? LVR_PLACE_CPU : place;
}

static void push_draft(lvr_round *m, uint32_t n_rows)
{
    const lvr_cost_table *cost = &m->config.policy->cost;
    const lvr_place place = place_of_draft(m);
    lvr_action *a = lvr_round_push(m, LVR_ACT_DRAFT);
    a->draft.rows = m->draft_rows;
    a->draft.n_rows = n_rows;
    a->draft.n_expand = m->n_expand;
    a->draft.branch = m->branch;
    a->draft.unit = lvr_cost_unit(cost, place, LVR_OP_DRAFT, n_rows, m->draft_cached);
    if (m->config.policy->has_cost)
        m->draft_ns += lvr_cost_op_ns(cost, place, LVR_OP_DRAFT, n_rows, m->draft_cached);
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

/* Asks the policy for the next draft step; with none, the tree is chosen and verification begins. */
static lvr_status draft_or_verify(lvr_round *m, lvr_error *err)
{
    const lvr_policy_ops *ops = m->config.policy->ops;
    const lvr_policy_view view = lvr_round_view(m);
    const uint32_t cap = LVR_MAX_EXPANSIONS - m->n_expanded;
    m->n_expand = view.max_depth > 0 && ops->uses_draft
                      ? ops->expand(m->config.policy->params.bytes, &view, m->expand, cap)
                      : 0;
    if (m->n_expand == 0)
        return lvr_round_begin_verify(m, err);
    const lvr_status st = check_expansion(m, err);
    if (st != LVR_OK)
        return st;
    m->phase = DRAFTING;
    push_draft_step(m);
    return LVR_OK;
}

/* A policy may leave the draft out for many rounds; what it then lacks is run in chunks before the first
 * step. */
lvr_status lvr_round_begin_draft(lvr_round *m, lvr_error *err)
{
    if (!m->config.policy->ops->uses_draft || m->n_seq - 1 - m->draft_cached <= m->config.prefill_chunk)
        return draft_or_verify(m, err);
    m->phase = CATCHING_UP;
    push_draft(m, catch_up_rows(m, m->draft_cached + m->config.prefill_chunk));
    return LVR_OK;
}

/* The draft has run a prompt chunk that the accelerator may still be at. */
static void on_prompt_drafted(lvr_round *m)
{
    m->draft_out = false;
    m->draft_cached = m->target_cached + m->n_rows; /* not committed yet, so this is the chunk's end */
    if (m->phase == JOINING)
        lvr_round_commit_prompt_pass(m);
}

lvr_status lvr_round_on_draft_done(lvr_round *m, const lvr_event *event, lvr_error *err)
{
    if (m->draft_out) {
        on_prompt_drafted(m);
        return LVR_OK;
    }
    if (m->phase != DRAFTING && m->phase != PROMPT_DRAFT && m->phase != CATCHING_UP)
        return lvr_fail(err, LVR_ERR_INVARIANT, "round machine: no draft step is outstanding");
    if (m->phase == PROMPT_DRAFT) {
        m->draft_cached = m->target_cached + m->n_rows;
        return lvr_round_begin_verify(m, err);
    }
    if (m->phase == CATCHING_UP) {
        m->draft_cached += m->config.prefill_chunk;
        return lvr_round_begin_draft(m, err);
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

void lvr_round_push_prompt_draft(lvr_round *m)
{
    push_draft(m, catch_up_rows(m, m->target_cached + m->n_rows));
}
