/* The choice of the rows to verify, and their way through the layers. */
#include "costmodel/core/round_internal.h"

#include <string.h>

void lvr_round_try_layer(lvr_round *m)
{
    if (m->phase != VERIFYING || m->layer_out || m->score_out || !lvr_round_layer_ready(m))
        return;
    lvr_action *a = lvr_round_push(m, LVR_ACT_LAYER);
    a->layer.layer = m->layer;
    a->layer.slot = lvr_round_slot(m, m->layer);
    a->layer.rows = m->pass_rows;
    a->layer.n_rows = m->n_rows;
    a->layer.kept = m->dropped ? m->left : NULL;
    a->layer.unit = m->unit;
    a->layer.prefill = m->prefill;
    m->layer_out = true;
    m->dropped = false;
    if (m->draft_due) {
        m->draft_due = false;
        m->draft_out = true;
        lvr_round_push_prompt_draft(m);
    }
}

/* The policy's choice must be a tree: ascending, the root first, parents chosen before their children. */
static lvr_status choose_rows(lvr_round *m, lvr_error *err)
{
    const lvr_policy_view view = lvr_round_view(m);
    const lvr_policy_ops *ops = m->config.policy->ops;
    m->n_rows = ops->select(m->config.policy->params.bytes, &view, m->chosen, m->config.max_rows);
    if (m->n_rows == 0 || m->n_rows > m->config.max_rows || m->chosen[0] != 0)
        return lvr_fail(err, LVR_ERR_INVARIANT,
                        "policy %s: chose %u rows, expected 1 to %u with the root first", ops->name,
                        m->n_rows, m->config.max_rows);
    memset(m->watched, 0, m->tree.n);
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
        if (r > 0 && m->watched[node->parent] <= node->rank)
            m->watched[node->parent] = (uint8_t)(node->rank + 1);
        m->pass_rows[r] = (lvr_row){.token = node->token,
                                    .position = m->n_seq - 1 + node->depth,
                                    .node = (int32_t)v,
                                    .parent_row = parent_row,
                                    .slot = r};
        m->last_layer[r] = m->config.geometry->n_layers - 1;
    }
    m->n_chosen = m->n_rows;
    return LVR_OK;
}

lvr_unit lvr_round_unit_of_pass(const lvr_round *m)
{
    const lvr_place place = m->config.geometry->place;
    const lvr_policy *p = m->config.policy;
    if (place != LVR_PLACE_AUTO)
        return place == LVR_PLACE_NPU ? LVR_UNIT_NPU : LVR_UNIT_CPU;
    const uint32_t context = m->prefill ? m->target_cached : m->n_seq - 1;
    return p->has_cost ? lvr_cost_unit(&p->cost, place, LVR_OP_LAYER, m->n_rows, context) : LVR_UNIT_CPU;
}

lvr_status lvr_round_begin_verify(lvr_round *m, lvr_error *err)
{
    if (!m->prefill) {
        const lvr_status st = choose_rows(m, err);
        if (st != LVR_OK)
            return st;
    }
    m->unit = lvr_round_unit_of_pass(m);
    m->phase = VERIFYING;
    m->layer = 0;
    m->layer_out = m->score_out = m->dropped = false;
    lvr_round_pump_reads(m);
    lvr_round_try_layer(m);
    return LVR_OK;
}

/* ---- dropping rows ---- */

static bool scores_after(const lvr_round *m, uint32_t layer)
{
    const lvr_policy *p = m->config.policy;
    return !m->prefill && m->n_rows > 1 && p->ops->scores &&
           p->ops->scores(p, layer, m->config.geometry->n_layers);
}

static void push_score(lvr_round *m, uint32_t layer)
{
    lvr_action *a = lvr_round_push(m, LVR_ACT_SCORE);
    a->score.layer = layer;
    a->score.rows = m->pass_rows;
    a->score.n_rows = m->n_rows;
    m->score_out = true;
}

/* The rows that are kept move together; a row whose parent has gone goes too. */
static void drop_rows(lvr_round *m, const bool *keep, uint32_t layer)
{
    int32_t now[LVR_MAX_VERIFY_NODES]; /* a row's new index, -1: dropped */
    uint32_t n = 0;
    for (uint32_t r = 0; r < m->n_rows; r++) {
        const lvr_row row = m->pass_rows[r];
        const bool stays = r == 0 || (keep[r] && now[row.parent_row] >= 0);
        now[r] = stays ? (int32_t)n : -1;
        if (!stays) {
            m->last_layer[row.slot] = layer;
            continue;
        }
        m->left[n] = r;
        m->pass_rows[n] = row;
        m->pass_rows[n++].parent_row = row.parent_row < 0 ? -1 : now[row.parent_row];
    }
    m->dropped = n < m->n_rows;
    m->n_rows = n;
}

lvr_status lvr_round_on_scored(lvr_round *m, const lvr_event *event, lvr_error *err)
{
    if (m->phase != VERIFYING || !m->score_out)
        return lvr_fail(err, LVR_ERR_INVARIANT, "round machine: no rows are being scored");
    const lvr_policy *p = m->config.policy;
    const lvr_policy_view view = lvr_round_view(m);
    bool keep[LVR_MAX_VERIFY_NODES];
    memset(keep, 0, sizeof keep);
    for (uint32_t r = 0; r < m->n_rows; r++)
        m->scored[r] = (lvr_exit_row){.parent = m->pass_rows[r].parent_row,
                                      .node = (uint32_t)m->pass_rows[r].node,
                                      .raw = r > 0 ? event->scored.raw[r] : (lvr_exit_raw){0}};
    p->ops->keep(p, &view, m->layer - 1, m->scored, m->n_rows, keep);
    for (uint32_t r = 0; event->scored.unknown && r < m->n_rows; r++)
        keep[r] = keep[r] || event->scored.unknown[r];
    m->score_out = false;
    drop_rows(m, keep, m->layer - 1);
    lvr_round_try_layer(m);
    return LVR_OK;
}

lvr_status lvr_round_on_layer_done(lvr_round *m, lvr_error *err)
{
    if (m->phase != VERIFYING || !m->layer_out)
        return lvr_fail(err, LVR_ERR_INVARIANT, "round machine: no layer is outstanding");
    m->layer_out = false;
    if (!m->config.geometry->resident[m->layer])
        m->freed++;
    if (++m->layer < m->config.geometry->n_layers) {
        lvr_round_pump_reads(m);
        if (scores_after(m, m->layer - 1))
            push_score(m, m->layer - 1);
        lvr_round_try_layer(m);
        return LVR_OK;
    }
    m->pass++;
    if (m->draft_out)
        m->phase = JOINING;
    else if (m->prefill)
        lvr_round_commit_prompt_pass(m);
    else
        lvr_round_push_head(m, 0);
    lvr_round_pump_reads(m);
    return LVR_OK;
}
