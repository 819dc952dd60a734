/* The target's side of a round on the CPU: embedding, layers, scoring between them, and head. */
#include "engine/decode_internal.h"

#include "common/clock.h"
#include "common/minmax.h"

/* A prompt's rows go straight into the cache, a tree's into scratch rows. */
static lvr_status start_rows(lvr_run *r, const lvr_action *a, lvr_error *err)
{
    lvr_forward *f = r->s->pair.target.forward;
    const lvr_row *rows = a->layer.rows;
    const uint32_t n = a->layer.n_rows;
    lvr_fwd_row fwd[LVR_MAX_VERIFY_NODES];
    if (n > (a->layer.prefill ? r->s->config.prefill_chunk : r->s->config.max_rows))
        return lvr_fail(err, LVR_ERR_INVARIANT, "a pass of %u rows", n);
    if (a->layer.prefill) {
        lvr_run_prompt_tokens(r, rows, n);
        return lvr_forward_embed_prompt(f, r->prompt_tokens, rows[0].position, n, err);
    }
    for (uint32_t i = 0; i < n; i++)
        fwd[i] = (lvr_fwd_row){.token = rows[i].token,
                               .position = rows[i].position,
                               .slot = rows[i].slot,
                               .parent_slot =
                                   rows[i].parent_row < 0 ? -1 : (int32_t)rows[rows[i].parent_row].slot};
    return lvr_forward_embed(f, fwd, n, err);
}

static lvr_status embed(lvr_run *r, const lvr_action *a, const lvr_round_info *info, lvr_error *err)
{
    lvr_session *s = r->s;
    const uint32_t n = a->layer.n_rows;
    const uint64_t t0 = lvr_now_ns();
    const lvr_status status = start_rows(r, a, err);
    const uint64_t t1 = lvr_now_ns();
    r->log.verify0_ns = t0;
    r->stats.compute_ns += t1 - t0;
    lvr_record_kernel(s->recorder, info->round, 0, UINT32_MAX, LVR_OP_EMBED, n, s->pair.target.kv.n_cached,
                      (lvr_kernel_times){t0, t1});
    return status;
}

static void record_read(void *user, const lvr_staged_read *read, bool consumed)
{
    lvr_record_read(user, read, consumed);
}

lvr_status lvr_run_begin_layer(lvr_run *r, const lvr_action *a, const uint8_t **ret_base, lvr_error *err)
{
    lvr_session *s = r->s;
    lvr_round_info info;
    lvr_round_get_info(s->machine, &info);
    *ret_base = a->layer.slot < 0 ? NULL : lvr_staging_slot(s->staging, (uint32_t)a->layer.slot);
    if (a->layer.layer == 0)
        return embed(r, a, &info, err);
    return a->layer.kept ? lvr_forward_keep(s->pair.target.forward, a->layer.kept, a->layer.n_rows, err)
                         : LVR_OK;
}

/* A pass counts as far as its layers are done: with streamed layers it may take long. */
static void report_prompt(const lvr_run *r, const lvr_round_info *info, const lvr_layer_log *log)
{
    const lvr_session *s = r->s;
    if (!info->prefill || !s->config.progress)
        return;
    const uint64_t part = (uint64_t)log->rows * (log->layer + 1) / s->geometry.n_layers;
    s->config.progress("prompt", info->position + part, r->n_prompt - 1, s->config.progress_user);
}

lvr_status lvr_run_end_layer(lvr_run *r, const lvr_action *a, uint32_t bucket, const lvr_accel_times *t,
                             lvr_error *err)
{
    lvr_session *s = r->s;
    const lvr_action done = *a; /* taking actions overwrites it */
    const lvr_event event = {.kind = LVR_EV_LAYER_DONE};
    lvr_round_info info;
    lvr_round_get_info(s->machine, &info);
    r->log.verify1_ns = t->end_ns;
    r->stats.compute_ns += t->end_ns - t->start_ns;
    const lvr_layer_log log = {.round = info.round,
                               .layer = done.layer.layer,
                               .rows = done.layer.n_rows,
                               .bucket = bucket,
                               .context = s->pair.target.kv.n_cached,
                               .unit = done.layer.unit,
                               .submit_ns = t->submit_ns,
                               .start_ns = t->start_ns,
                               .end_ns = t->end_ns};
    if (done.layer.slot >= 0)
        r->stats.bytes_read +=
            lvr_staging_consume(s->staging, (uint32_t)done.layer.slot, record_read, s->recorder);
    /* The slot is free: its next reads go out before anything else is done. */
    lvr_status status = lvr_run_collect_reads(r, false, err);
    if (status == LVR_OK)
        status = lvr_run_feed(r, &event, err);
    if (status == LVR_OK)
        status = lvr_run_take_actions(r, err);
    lvr_record_layer(s->recorder, &log);
    report_prompt(r, &info, &log);
    return status;
}

lvr_status lvr_run_layer(lvr_run *r, lvr_error *err)
{
    const uint8_t *staged = NULL;
    const lvr_status status = lvr_run_begin_layer(r, &r->work, &staged, err);
    if (status != LVR_OK)
        return status;
    const uint64_t t0 = lvr_now_ns();
    lvr_forward_layer(r->s->pair.target.forward, r->work.layer.layer, staged);
    const lvr_accel_times t = {.submit_ns = t0, .start_ns = t0, .end_ns = lvr_now_ns()};
    /* A CPU runs as many rows as there are. */
    return lvr_run_end_layer(r, &r->work, r->work.layer.n_rows, &t, err);
}

/* Each row's node is asked for after its parent's row; the root has none. */
static lvr_status score_rows(lvr_run *r, const lvr_action *a, lvr_exit_raw *ret, lvr_error *err)
{
    const lvr_row *rows = a->score.rows;
    const uint32_t n = a->score.n_rows;
    lvr_fwd_query queries[LVR_MAX_VERIFY_NODES];
    if (n == 0 || n > LVR_MAX_VERIFY_NODES)
        return lvr_fail(err, LVR_ERR_INVARIANT, "%u rows to score", n);
    for (uint32_t i = 1; i < n; i++)
        queries[i - 1] = (lvr_fwd_query){.row = (uint32_t)rows[i].parent_row, .token = rows[i].token};
    ret[0] = (lvr_exit_raw){0};
    return lvr_forward_scores(r->s->pair.target.forward, queries, n - 1, ret + 1, err);
}

lvr_status lvr_run_score(lvr_run *r, lvr_error *err)
{
    lvr_session *s = r->s;
    const lvr_action a = r->work;
    lvr_exit_raw raw[LVR_MAX_VERIFY_NODES];
    lvr_round_info info;
    lvr_round_get_info(s->machine, &info);
    const uint64_t t0 = lvr_now_ns();
    const lvr_status status = score_rows(r, &a, raw, err);
    const uint64_t t1 = lvr_now_ns();
    if (status != LVR_OK)
        return status;
    r->log.verify1_ns = t1;
    r->stats.score_ns += t1 - t0;
    lvr_record_kernel(s->recorder, info.round, 0, a.score.layer, LVR_OP_SCORE, a.score.n_rows,
                      s->pair.target.kv.n_cached, (lvr_kernel_times){t0, t1});
    const lvr_event event = {.kind = LVR_EV_SCORED, .scored = {.raw = raw}};
    return lvr_run_feed_planning(r, &event, err);
}

/* The target's token after a row whose logits are given; -1: they are no numbers. */
static int32_t choose_token(const lvr_run *r, uint32_t position, const float *logits)
{
    const lvr_session *s = r->s;
    return lvr_sample(s->pair.target.sampler, &s->config.sampling, r->request, position + 1, logits, NULL);
}

/* All rows of the pass, as many at a time as there is room for logits. Tokens depend on their position alone,
 * so that those off the accepted path change nothing. */
static void run_all_heads(lvr_run *r, const lvr_action *a)
{
    lvr_side *t = &r->s->pair.target;
    const uint32_t n = a->head.n_rows;
    uint32_t rows[LVR_PAIR_HEAD_CHUNK];
    for (uint32_t first = 0; first < n; first += t->n_logits) {
        const uint32_t part = lvr_min_u32(n - first, t->n_logits);
        for (uint32_t i = 0; i < part; i++)
            rows[i] = first + i;
        lvr_forward_heads(t->forward, rows, part, t->logits);
        for (uint32_t i = 0; i < part; i++)
            r->row_tokens[first + i] =
                choose_token(r, a->head.rows[first + i].position, t->logits + (size_t)i * t->shape->vocab);
    }
}

static int32_t run_heads(lvr_run *r, const lvr_action *a)
{
    lvr_side *t = &r->s->pair.target;
    if (a->head.n_rows == 1) {
        lvr_forward_head(t->forward, a->head.row, t->logits);
        return choose_token(r, a->head.position, t->logits);
    }
    if (a->head.n_rows > 1)
        run_all_heads(r, a);
    return r->row_tokens[a->head.row];
}

lvr_status lvr_run_head(lvr_run *r, lvr_error *err)
{
    lvr_session *s = r->s;
    lvr_round_info info;
    lvr_round_get_info(s->machine, &info);
    const uint64_t t0 = lvr_now_ns();
    const int32_t token = run_heads(r, &r->work);
    const uint64_t t1 = lvr_now_ns();
    if (token < 0)
        return lvr_fail_logits(lvr_pack_path(s->pair.target.pack), r->request, r->work.head.position + 1,
                               err);
    r->log.verify1_ns = t1;
    r->stats.head_ns += t1 - t0;
    if (r->work.head.n_rows > 0)
        lvr_record_kernel(s->recorder, info.round, 0, UINT32_MAX, LVR_OP_HEAD, r->work.head.n_rows,
                          r->work.head.position, (lvr_kernel_times){t0, t1});
    const lvr_event event = {.kind = LVR_EV_HEAD_DONE, .head = {.token = token}};
    return lvr_run_feed(r, &event, err);
}
