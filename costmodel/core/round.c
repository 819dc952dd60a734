/*
 * The round machine. States, and the function that leaves each:
 *
 *   IDLE ──lvr_round_begin──▶ next_pass ─┬─▶ PROMPT_DRAFT (draft runs the prompt chunk)      on_draft_done
 *                 ▲                      ├─▶ CATCHING_UP  (the draft is far behind)          on_draft_done
 *                 │                      ├─▶ DRAFTING     (policy's frontier)               on_draft_done
 *                 │                      └─▶ VERIFYING    (layers 0..L-1)         on_layer_done, on_scored
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
#include "costmodel/core/round_internal.h"

#include "common/minmax.h"
#include <stdlib.h>
#include <string.h>

lvr_action *lvr_round_push(lvr_round *m, lvr_action_kind kind)
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

static uint32_t max_depth(const lvr_round *m)
{
    const uint32_t wanted = m->n_predict - m->n_generated - 1;
    const uint32_t room = m->config.n_ctx - m->n_seq;
    return lvr_min_u32(lvr_min_u32(wanted, room), LVR_MAX_DEPTH);
}

lvr_policy_view lvr_round_view(const lvr_round *m)
{
    const lvr_policy *p = m->config.policy;
    return (lvr_policy_view){
        .tree = &m->tree,
        .cost = p->has_cost ? &p->cost : NULL,
        .geometry = m->config.geometry,
        .calibration = p->adapt.rate > 0.0 ? &m->adapted : &p->calibration,
        .context = m->n_seq - 1,
        .max_depth = max_depth(m),
        .max_rows = m->config.max_rows,
        .n_steps = m->n_steps,
        .draft_ns = m->draft_ns,
        .seed = m->config.seed,
        .request = m->request,
        .position = m->n_seq - 1,
        .scratch = m->scratch,
        .memory = &m->memory,
    };
}

lvr_status lvr_round_step(lvr_round *m, const lvr_event *event, lvr_error *err)
{
    lvr_status st = LVR_OK;
    switch (event->kind) {
    case LVR_EV_SLICE_READY:
        st = lvr_round_on_slice_ready(m, event->slice.seq, err);
        if (st == LVR_OK)
            lvr_round_try_layer(m);
        return st;
    case LVR_EV_DRAFT_DONE:
        return lvr_round_on_draft_done(m, event, err);
    case LVR_EV_LAYER_DONE:
        return lvr_round_on_layer_done(m, err);
    case LVR_EV_SCORED:
        return lvr_round_on_scored(m, event, err);
    case LVR_EV_HEAD_DONE:
        return lvr_round_on_head_done(m, event->head.token, err);
    case LVR_EV_COMMIT_DONE:
        return lvr_round_on_commit_done(m, event->commit.stop, err);
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
    m->adapted = m->config.policy->calibration;
    m->memory = (lvr_policy_memory){0};
    return lvr_round_next_pass(m, err);
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
    return c->policy->ops->check ? c->policy->ops->check(c->policy, g->n_layers, err) : LVR_OK;
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
    lvr_round_list_streamed(m);
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
        .n_rows = m->n_chosen,
        .n_kept = m->n_rows,
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
    *ret_n = m->prefill ? 0 : m->n_chosen;
    return m->chosen;
}

const uint32_t *lvr_round_last_layers(const lvr_round *m)
{
    return m->last_layer;
}
