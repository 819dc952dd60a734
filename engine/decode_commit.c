/* The end of a pass: caches, tokens, figures and records. */
#include "engine/decode_internal.h"

#include "common/clock.h"

static lvr_status commit_draft(lvr_session *s, const lvr_action *a, lvr_error *err)
{
    uint32_t slots[LVR_MAX_VERIFY_NODES];
    for (uint32_t i = 0; i < a->commit.n_draft_nodes; i++) {
        const int32_t slot = s->node_slot[a->commit.draft_nodes[i]];
        if (slot < 0)
            return lvr_fail(err, LVR_ERR_INVARIANT, "commit: the draft never ran node %d",
                            a->commit.draft_nodes[i]);
        slots[i] = (uint32_t)slot;
    }
    return s->pair.has_draft ? lvr_kv_commit(&s->pair.draft.kv, slots, a->commit.n_draft_nodes, err) : LVR_OK;
}

static lvr_status commit_target(lvr_session *s, const lvr_action *a, lvr_error *err)
{
    lvr_kv *kv = &s->pair.target.kv;
    return a->commit.prefill ? lvr_kv_append(kv, a->commit.n_rows, err)
                             : lvr_kv_commit(kv, a->commit.rows, a->commit.n_rows, err);
}

static lvr_status keep_tokens(lvr_run *r, const lvr_action *a, lvr_error *err)
{
    if (a->commit.n_tokens > r->n_predict - r->n_tokens)
        return lvr_fail(err, LVR_ERR_INVARIANT, "commit: %u tokens, but only %u are wanted",
                        a->commit.n_tokens, r->n_predict - r->n_tokens);
    for (uint32_t i = 0; i < a->commit.n_tokens; i++) {
        lvr_record_token(r->s->recorder, r->request, r->n_prompt + r->n_tokens, a->commit.tokens[i], true);
        r->tokens[r->n_tokens++] = a->commit.tokens[i];
    }
    r->n_recorded = r->n_tokens;
    return LVR_OK;
}

static void count_round(lvr_run *r, const lvr_round_info *info)
{
    if (info->prefill)
        return;
    r->stats.rounds++;
    r->stats.verified_rows += info->n_rows;
    r->stats.pruned_rows += info->n_rows - info->n_kept;
    r->stats.drafted_rows += info->n_rows - 1;
    r->stats.accepted += info->n_accepted;
}

/* The pass that ends had no draft steps, or no layers: intervals that did not happen are empty, not zero. */
static void close_log(const lvr_run *r, lvr_round_log *log)
{
    if (log->draft_steps == 0)
        log->draft0_ns = log->draft1_ns = r->round_begin_ns;
    if (log->verify0_ns == 0)
        log->verify0_ns = log->verify1_ns = log->draft1_ns;
}

void lvr_run_begin_round(lvr_run *r, uint64_t now)
{
    r->log = (lvr_round_log){0};
    r->round_begin_ns = now;
    lvr_round_info info;
    lvr_round_get_info(r->s->machine, &info);
    if (r->decode0_ns || info.prefill)
        return;
    r->decode0_ns = now;
    r->prefill_compute_ns = r->stats.compute_ns;
    if (r->s->staging)
        r->prefill_io_busy_ns = lvr_staging_get_stats(r->s->staging).busy_ns - r->staging0.busy_ns;
}

/* False: the host wants no more; what it did not want of this round is dropped, though recorded:
 * the records of a pass belong together. */
static bool hand_out(lvr_run *r, uint32_t first)
{
    for (uint32_t i = first; i < r->n_tokens && r->on_token; i++) {
        if (r->on_token(r->user, r->tokens[i]))
            continue;
        r->n_tokens = i + 1;
        return false;
    }
    return true;
}

static lvr_status feed_commit(lvr_run *r, bool stop, lvr_error *err)
{
    const lvr_event event = {.kind = LVR_EV_COMMIT_DONE, .commit = {.stop = stop}};
    const lvr_status status = lvr_run_feed_planning(r, &event, err);
    lvr_run_begin_round(r, lvr_now_ns());
    return status;
}

lvr_status lvr_run_commit(lvr_run *r, lvr_error *err)
{
    lvr_session *s = r->s;
    lvr_round_info info;
    lvr_round_get_info(s->machine, &info);
    const uint32_t first = r->n_tokens, depth = lvr_verified_depth(s->machine), kept = r->work.commit.n_rows;
    const uint32_t context = s->pair.target.kv.n_cached;
    const uint64_t t0 = lvr_now_ns();
    lvr_status status = commit_target(s, &r->work, err);
    if (status == LVR_OK)
        status = commit_draft(s, &r->work, err);
    if (status == LVR_OK)
        status = keep_tokens(r, &r->work, err);
    if (status != LVR_OK)
        return status;
    lvr_run_forget_tree(s);
    count_round(r, &info);
    close_log(r, &r->log);
    lvr_record_tree(s->recorder, s->machine, &info, r->work.commit.rows, kept);
    const uint64_t t1 = lvr_now_ns();
    r->log.commit_ns = t1;
    lvr_record_round(s->recorder, &info, depth, &r->log);
    r->stats.commit_ns += t1 - t0;
    lvr_record_kernel(s->recorder, info.round, 0, UINT32_MAX, LVR_OP_COMMIT, kept, context,
                      (lvr_kernel_times){t0, t1});
    if (!r->first_token_ns && r->n_tokens > 0)
        r->first_token_ns = t1;
    const bool more = hand_out(r, first); /* its time is nobody's: no figure but the wall's */
    status = feed_commit(r, !more, err);
    return status == LVR_OK ? lvr_recorder_status(s->recorder, err) : status;
}
