/* The beginning and the end of passes: prompt chunks, the walk along the accepted path, commit. */
#include "costmodel/core/round_internal.h"

#include "common/minmax.h"
#include <string.h>

static void begin_prompt_pass(lvr_round *m)
{
    const uint32_t left = m->n_seq - 1 - m->target_cached;
    m->prefill = true;
    m->n_rows = m->n_chosen = lvr_min_u32(left, m->config.prefill_chunk);
    for (uint32_t r = 0; r < m->n_rows; r++) {
        const uint32_t pos = m->target_cached + r;
        m->pass_rows[r] = (lvr_row){
            .token = m->seq[pos], .position = pos, .node = -1, .parent_row = (int32_t)r - 1, .slot = r};
    }
}

lvr_status lvr_round_next_pass(lvr_round *m, lvr_error *err)
{
    m->n_steps = m->n_expand = m->n_expanded = 0;
    m->draft_ns = 0.0;
    m->n_kept = m->n_kept_draft = m->n_tokens = 0;
    m->branch = m->config.policy->ops->branch(m->config.policy->params.bytes);
    lvr_tree_reset(&m->tree, m->seq[m->n_seq - 1]);
    lvr_round_pump_reads(m);
    if (m->target_cached + 1 < m->n_seq) {
        begin_prompt_pass(m);
        m->draft_due = m->config.policy->ops->uses_draft && lvr_round_unit_of_pass(m) == LVR_UNIT_NPU;
        if (!m->config.policy->ops->uses_draft || m->draft_due)
            return lvr_round_begin_verify(m, err);
        m->phase = PROMPT_DRAFT;
        lvr_round_push_prompt_draft(m);
        return LVR_OK;
    }
    m->prefill = false;
    m->n_rows = m->n_chosen = 0;
    return lvr_round_begin_draft(m, err);
}

void lvr_round_push_head(lvr_round *m, uint32_t row)
{
    m->phase = HEADS;
    m->head_row = row;
    m->kept[m->n_kept++] = m->pass_rows[row].slot;
    lvr_action *a = lvr_round_push(m, LVR_ACT_HEAD);
    a->head.row = row;
    a->head.position = m->pass_rows[row].position;
    a->head.n_rows = 1;
    a->head.rows = m->pass_rows;
    if (m->config.geometry->head == LVR_HEAD_EAGER)
        a->head.n_rows = m->n_kept == 1 ? m->n_rows : 0;
}

static void push_commit(lvr_round *m)
{
    m->phase = COMMITTING;
    for (uint32_t i = 0; i < m->n_kept && !m->prefill; i++) {
        const uint32_t v = m->chosen[m->kept[i]];
        if (m->tree.nodes[v].expanded)
            m->kept_draft[m->n_kept_draft++] = (int32_t)v;
    }
    lvr_action *a = lvr_round_push(m, LVR_ACT_COMMIT);
    a->commit.rows = m->kept;
    a->commit.n_rows = m->n_kept;
    a->commit.draft_nodes = m->kept_draft;
    a->commit.n_draft_nodes = m->n_kept_draft;
    a->commit.tokens = m->tokens;
    a->commit.n_tokens = m->n_tokens;
    a->commit.prefill = m->prefill;
}

void lvr_round_commit_prompt_pass(lvr_round *m)
{
    for (uint32_t r = 0; r < m->n_rows; r++)
        m->kept[m->n_kept++] = r;
    push_commit(m);
}

/* The row left that is `row`'s child with this token, or -1. */
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

lvr_status lvr_round_on_head_done(lvr_round *m, int32_t token, lvr_error *err)
{
    if (m->phase != HEADS)
        return lvr_fail(err, LVR_ERR_INVARIANT, "round machine: no head row is outstanding");
    m->tokens[m->n_tokens++] = token;
    m->n_generated++;
    m->stopped_by_eos = ends_text(&m->config, token);
    const int32_t child = m->stopped_by_eos ? -1 : matching_child(m, m->head_row, token);
    if (child >= 0)
        lvr_round_push_head(m, (uint32_t)child);
    else
        push_commit(m);
    return LVR_OK;
}

static void push_done(lvr_round *m, lvr_stop stop)
{
    m->phase = IDLE;
    lvr_round_push(m, LVR_ACT_DONE)->done.stop = stop;
}

static lvr_stop stop_reason(const lvr_round *m, bool asked)
{
    if (asked)
        return LVR_STOP_HOST;
    if (m->stopped_by_eos)
        return LVR_STOP_EOS;
    return m->n_generated >= m->n_predict ? LVR_STOP_LENGTH : LVR_STOP_CONTEXT;
}

/* What the round has taught, before the next one is planned. */
static void learn(lvr_round *m)
{
    const lvr_policy *p = m->config.policy;
    for (uint32_t i = 0; i < m->n_kept && p->adapt.rate > 0.0; i++) {
        const uint32_t v = m->chosen[m->kept[i]];
        lvr_adapt_observe(&p->adapt, &m->tree, v, m->watched[v], m->tokens[i], &m->adapted);
    }
    if (!p->ops->observe)
        return;
    const lvr_round_outcome outcome = {.tree = &m->tree,
                                       .rows = m->chosen,
                                       .n_rows = m->n_chosen,
                                       .n_accepted = m->n_kept - 1,
                                       .last = m->chosen[m->kept[m->n_kept - 1]]};
    p->ops->observe(p->params.bytes, &outcome, &m->memory);
}

lvr_status lvr_round_on_commit_done(lvr_round *m, bool stop, lvr_error *err)
{
    if (m->phase != COMMITTING)
        return lvr_fail(err, LVR_ERR_INVARIANT, "round machine: no commit is outstanding");
    m->target_cached += m->n_kept;
    if (!m->prefill) {
        learn(m);
        m->draft_cached += m->n_kept_draft;
        memcpy(m->seq + m->n_seq, m->tokens, m->n_tokens * sizeof m->tokens[0]);
        m->n_seq += m->n_tokens;
        if (stop || m->stopped_by_eos || m->n_generated >= m->n_predict || m->n_seq > m->config.n_ctx) {
            push_done(m, stop_reason(m, stop));
            return LVR_OK;
        }
    }
    return lvr_round_next_pass(m, err);
}
