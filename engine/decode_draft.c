/* The draft's side of a round: catching up with committed tokens, and the nodes of the tree. */
#include "engine/decode_internal.h"

#include "common/clock.h"

/* Rows of committed tokens that the draft has not run: a chain after its cache. */
static void catch_up_rows(const lvr_row *rows, uint32_t n, lvr_fwd_row *ret)
{
    for (uint32_t i = 0; i < n; i++)
        ret[i] = (lvr_fwd_row){
            .token = rows[i].token,
            .position = rows[i].position,
            .slot = LVR_MAX_EXPANSIONS + i,
            .parent_slot = i == 0 ? -1 : (int32_t)(LVR_MAX_EXPANSIONS + i - 1),
        };
}

static lvr_status commit_catch_up(lvr_session *s, uint32_t n, lvr_error *err)
{
    uint32_t slots[LVR_DRAFT_CATCH_UP_ROWS];
    for (uint32_t i = 0; i < n; i++)
        slots[i] = LVR_MAX_EXPANSIONS + i;
    return lvr_kv_commit(&s->pair.draft.kv, slots, n, err);
}

/* Many of them, or those of a prompt: a pass of their own, straight into the cache. */
static lvr_status run_prompt_rows(lvr_run *r, const lvr_row *rows, uint32_t n, lvr_error *err)
{
    if (n > r->s->config.prefill_chunk)
        return lvr_fail(err, LVR_ERR_INVARIANT, "draft: a prompt pass of %u rows", n);
    lvr_run_prompt_tokens(r, rows, n);
    return lvr_pair_draft_prompt(&r->s->pair, r->prompt_tokens, n, err);
}

/* Gives each tree node a scratch row; its parent has got one before, or is committed: then it follows the
 * catch-up. */
static lvr_status node_rows(lvr_session *s, const lvr_row *rows, uint32_t n, uint32_t n_catch_up,
                            lvr_fwd_row *ret, lvr_error *err)
{
    const int32_t last_committed = n_catch_up ? (int32_t)(LVR_MAX_EXPANSIONS + n_catch_up - 1) : -1;
    for (uint32_t i = 0; i < n; i++) {
        const lvr_row *row = &rows[i];
        const int32_t parent = row->parent_row < 0 ? last_committed : s->node_slot[row->parent_row];
        if (s->n_node_slots == LVR_MAX_EXPANSIONS || (row->parent_row >= 0 && parent < 0))
            return lvr_fail(err, LVR_ERR_INVARIANT,
                            "draft: node %d (parent %d) cannot be run: %u nodes were in this round",
                            row->node, row->parent_row, s->n_node_slots);
        ret[i] = (lvr_fwd_row){
            .token = row->token, .position = row->position, .slot = s->n_node_slots, .parent_slot = parent};
        s->node_slot[row->node] = (int32_t)s->n_node_slots++;
    }
    return LVR_OK;
}

void lvr_run_forget_tree(lvr_session *s)
{
    for (uint32_t i = 0; i < LVR_MAX_TREE_NODES; i++)
        s->node_slot[i] = -1;
    s->n_node_slots = 0;
}

static uint32_t count_catch_up(const lvr_row *rows, uint32_t n_rows)
{
    uint32_t n = 0;
    while (n < n_rows && rows[n].node < 0)
        n++;
    return n;
}

/* Runs the rows of a DRAFT action; candidates of the expanded nodes go to s->candidates. */
static lvr_status draft_rows(lvr_run *r, const lvr_action *a, uint32_t *ret_per_row, lvr_error *err)
{
    lvr_session *s = r->s;
    const lvr_row *rows = a->draft.rows;
    uint32_t catch_up = count_catch_up(rows, a->draft.n_rows);
    const uint32_t nodes = a->draft.n_rows - catch_up;
    if (nodes != a->draft.n_expand || nodes > LVR_DRAFT_MAX_ROWS)
        return lvr_fail(err, LVR_ERR_INVARIANT, "draft: %u tree rows, %u of them to expand", nodes,
                        a->draft.n_expand);
    lvr_status status = LVR_OK;
    if (nodes == 0 || catch_up > LVR_DRAFT_CATCH_UP_ROWS || catch_up + nodes > LVR_DRAFT_MAX_ROWS) {
        status = run_prompt_rows(r, rows, catch_up, err);
        rows += catch_up;
        catch_up = 0;
    }
    *ret_per_row = 0;
    if (status != LVR_OK || nodes == 0)
        return status;
    catch_up_rows(rows, catch_up, s->fwd_rows);
    status = node_rows(s, rows + catch_up, nodes, catch_up, s->fwd_rows + catch_up, err);
    if (status == LVR_OK)
        status = lvr_pair_draft(&s->pair, s->fwd_rows, catch_up + nodes, nodes, a->draft.branch,
                                s->candidates, ret_per_row, err);
    return status == LVR_OK ? commit_catch_up(s, catch_up, err) : status;
}

static lvr_status tend(void *user, lvr_error *err)
{
    return lvr_run_tend(user, err);
}

/* The same, with an eye on the accelerator if it has a layer meanwhile. */
static lvr_status draft_rows_tending(lvr_run *r, const lvr_action *a, uint32_t *ret_per_row, lvr_error *err)
{
    lvr_pair *pair = &r->s->pair;
    if (r->npu.ordered || r->npu.out) {
        pair->between_layers = tend;
        pair->between_user = r;
    }
    if (a->draft.unit == LVR_UNIT_NPU) {
        pair->run_layer = lvr_run_draft_layer;
        pair->run_layer_user = r;
    }
    const lvr_status status = draft_rows(r, a, ret_per_row, err);
    pair->between_layers = NULL;
    pair->between_user = NULL;
    pair->run_layer = NULL;
    pair->run_layer_user = NULL;
    return status;
}

/* A step on the accelerator is one record too, from its embedding to its candidates: what its tickets wait
 * for and its heads on the CPU are part of its price there. */
static void record_draft(const lvr_run *r, const lvr_action *a, uint32_t context, lvr_kernel_times t)
{
    lvr_round_info info;
    lvr_round_get_info(r->s->machine, &info);
    const bool npu = a->draft.unit == LVR_UNIT_NPU;
    const lvr_layer_log log = {.draft = true,
                               .round = info.round,
                               .layer = UINT32_MAX,
                               .rows = a->draft.n_rows,
                               .bucket = npu ? r->draft_bucket : a->draft.n_rows,
                               .context = context,
                               .unit = a->draft.unit,
                               .submit_ns = t.start_ns,
                               .start_ns = t.start_ns,
                               .end_ns = t.end_ns};
    lvr_record_layer(r->s->recorder, &log);
}

lvr_status lvr_run_draft(lvr_run *r, lvr_error *err)
{
    lvr_session *s = r->s;
    lvr_round_info info;
    lvr_round_get_info(s->machine, &info);
    const uint32_t context = s->pair.draft.kv.n_cached;
    uint32_t per_row = 0;
    const lvr_action action = r->work;
    const uint64_t t0 = lvr_now_ns();
    lvr_status status = draft_rows_tending(r, &action, &per_row, err);
    if (status != LVR_OK)
        return status;
    const uint64_t t1 = lvr_now_ns();
    record_draft(r, &action, context, (lvr_kernel_times){t0, t1});
    if (r->log.draft_steps++ == 0)
        r->log.draft0_ns = t0;
    r->log.draft1_ns = t1;
    if (!info.prefill)
        r->stats.draft_steps++;
    r->stats.draft_ns += t1 - t0;
    const lvr_event event = {.kind = LVR_EV_DRAFT_DONE,
                             .draft = {.candidates = s->candidates, .n_per_row = per_row}};
    return lvr_run_feed_planning(r, &event, err);
}
