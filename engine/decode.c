/*
 * The host loop: takes the machine's actions, keeps reads and the accelerator going, runs at most one piece
 * of compute on the CPU at a time and feeds the events back. When which read or ticket finishes decides only
 * when something happens, never what.
 */
#include "engine/decode_internal.h"

#include "common/clock.h"
#include "common/log.h"
#include <inttypes.h>
#include <stdlib.h>

/* ---- feeding the machine ---- */

lvr_status lvr_run_feed(lvr_run *r, const lvr_event *event, lvr_error *err)
{
    return lvr_round_step(r->s->machine, event, err);
}

lvr_status lvr_run_take_actions(lvr_run *r, lvr_error *err)
{
    lvr_action a;
    while (lvr_round_next(r->s->machine, &a)) {
        lvr_status status = LVR_OK;
        if (a.kind == LVR_ACT_READ) {
            if (!r->s->staging)
                return lvr_fail(err, LVR_ERR_INVARIANT, "a read of layer %u, but all layers are resident",
                                a.read.layer);
            status = lvr_staging_submit(r->s->staging, &a, err);
        } else if (a.kind == LVR_ACT_DONE) {
            r->done = true;
            r->stats.stop = a.done.stop;
        } else if (a.kind == LVR_ACT_LAYER && a.layer.unit == LVR_UNIT_NPU) {
            status = lvr_run_order_ticket(r, &a, err);
        } else if (r->has_work) {
            status = lvr_fail(err, LVR_ERR_INVARIANT, "two compute actions (%d, %d) at once",
                              (int)r->work.kind, (int)a.kind);
        } else {
            r->work = a;
            r->has_work = true;
        }
        if (status != LVR_OK)
            return status;
    }
    return LVR_OK;
}

/* The machine has just asked its policy (unless it has none to ask: a prompt pass follows, or the request is
 * done). */
static void count_planning(lvr_run *r, lvr_kernel_times t)
{
    lvr_round_info info;
    lvr_round_get_info(r->s->machine, &info);
    if (r->done || info.prefill)
        return;
    r->stats.plan_ns += t.end_ns - t.start_ns;
    lvr_record_kernel(r->s->recorder, info.round, 1, UINT32_MAX, LVR_OP_PLAN,
                      lvr_round_tree(r->s->machine)->n, info.position, t);
}

lvr_status lvr_run_feed_planning(lvr_run *r, const lvr_event *event, lvr_error *err)
{
    const uint64_t t0 = lvr_now_ns();
    lvr_status status = lvr_run_feed(r, event, err);
    const uint64_t t1 = lvr_now_ns();
    if (status == LVR_OK)
        status = lvr_run_take_actions(r, err);
    if (status == LVR_OK)
        count_planning(r, (lvr_kernel_times){t0, t1});
    return status;
}

lvr_status lvr_run_collect_reads(lvr_run *r, bool block, lvr_error *err)
{
    if (!r->s->staging)
        return block ? lvr_fail(err, LVR_ERR_INVARIANT, "nothing to compute and nothing to read") : LVR_OK;
    for (;;) {
        uint64_t seq = 0;
        bool got = false;
        lvr_status status = lvr_staging_collect(r->s->staging, block, &seq, &got, err);
        if (status != LVR_OK || !got)
            return status;
        const lvr_event event = {.kind = LVR_EV_SLICE_READY, .slice = {.seq = seq}};
        status = lvr_run_feed(r, &event, err);
        if (status != LVR_OK)
            return status;
        block = false;
    }
}

void lvr_run_prompt_tokens(lvr_run *r, const lvr_row *rows, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        r->prompt_tokens[i] = rows[i].token;
}

/* ---- the loop ---- */

static lvr_status run_work(lvr_run *r, lvr_error *err)
{
    r->has_work = false;
    switch (r->work.kind) {
    case LVR_ACT_DRAFT:
        return lvr_run_draft(r, err);
    case LVR_ACT_LAYER:
        return lvr_run_layer(r, err);
    case LVR_ACT_SCORE:
        return lvr_run_score(r, err);
    case LVR_ACT_HEAD:
        return lvr_run_head(r, err);
    case LVR_ACT_COMMIT:
        return lvr_run_commit(r, err);
    case LVR_ACT_READ:
    case LVR_ACT_DONE:
        break;
    }
    return lvr_fail(err, LVR_ERR_INVARIANT, "action %d is no compute", (int)r->work.kind);
}

/* One thing: the accelerator is served first, since it works while the CPU does. */
static lvr_status do_next(lvr_run *r, lvr_error *err)
{
    lvr_accel_times t;
    if (r->npu.out && lvr_accel_poll(r->s->accel, r->npu.ticket, &t))
        return lvr_run_end_ticket(r, &t, err);
    if (r->npu.ordered)
        return lvr_run_submit_ticket(r, err);
    const bool idle = !r->has_work && !r->npu.out;
    const lvr_status status = lvr_run_collect_reads(r, idle, err);
    if (status != LVR_OK || idle)
        return status;
    return r->has_work ? run_work(r, err) : lvr_run_wait_for_ticket(r, err);
}

static lvr_status loop(lvr_run *r, lvr_error *err)
{
    for (;;) {
        lvr_status status = lvr_run_take_actions(r, err);
        if (status != LVR_OK || r->done)
            return status;
        if (r->s->config.cancel && atomic_load_explicit(r->s->config.cancel, memory_order_relaxed))
            return LVR_ERR_INTERRUPTED;
        status = do_next(r, err);
        if (status != LVR_OK)
            return status;
    }
}

static lvr_status begin(lvr_run *r, const int32_t *prompt, lvr_error *err)
{
    lvr_session *s = r->s;
    const uint64_t t0 = lvr_now_ns();
    const lvr_status status = lvr_round_begin(s->machine, r->request, prompt, r->n_prompt, r->n_predict, err);
    const uint64_t t1 = lvr_now_ns();
    if (status != LVR_OK)
        return status;
    s->broken = true; /* until the request is done */
    lvr_kv_clear(&s->pair.target.kv);
    lvr_kv_clear(&s->pair.draft.kv);
    lvr_run_forget_tree(s);
    if (s->staging)
        r->staging0 = lvr_staging_get_stats(s->staging);
    for (uint32_t i = 0; i < r->n_prompt; i++)
        lvr_record_token(s->recorder, r->request, i, prompt[i], false);
    r->begin_ns = t0;
    if (r->n_prompt > 1 && s->config.progress)
        s->config.progress("prompt", 0, r->n_prompt - 1, s->config.progress_user);
    lvr_run_begin_round(r, t0);
    count_planning(r, (lvr_kernel_times){t0, t1});
    return LVR_OK;
}

/* Half-way through something: the session is of no more use, but what it did can be told. */
static void finish_interrupted(lvr_run *r, lvr_error *err)
{
    lvr_run_close_stats(r, lvr_now_ns());
    r->stats.stop = LVR_STOP_INTERRUPTED;
    lvr_fail(err, LVR_ERR_INTERRUPTED,
             "interrupted: %u of %u tokens of request %" PRIu64 " were generated, in %" PRIu64 " rounds",
             r->n_tokens, r->n_predict, r->request, r->stats.rounds);
}

static void finish(lvr_run *r, uint32_t domain, const int32_t *prompt)
{
    const uint64_t now = lvr_now_ns();
    lvr_run_close_stats(r, now);
    r->s->broken = false;
    const lvr_request_log log = {
        .id = r->request,
        .arrival_ns = r->begin_ns,
        .first_token_ns = r->first_token_ns,
        .done_ns = now,
        .domain = domain,
        .n_prompt = r->n_prompt,
        .n_output = r->n_recorded,
        .prompt_hash = r->s->recorder ? lvr_prompt_hash(prompt, r->n_prompt) : 0,
    };
    lvr_record_request(r->s->recorder, &log);
    if (r->stats.stop == LVR_STOP_CONTEXT)
        lvr_log(LVR_LOG_WARN,
                "request %" PRIu64
                " stopped after %u of %u tokens: the context of %u positions is full; raise --context",
                r->request, r->n_tokens, r->n_predict, r->s->n_ctx);
}

lvr_status lvr_session_generate(lvr_session *s, uint64_t request, uint32_t domain, const int32_t *prompt,
                                uint32_t n_prompt, uint32_t n_predict, lvr_token_fn on_token, void *user,
                                int32_t **ret_tokens, uint32_t *ret_n, lvr_run_stats *ret_stats,
                                lvr_error *err)
{
    if (s->broken)
        return lvr_fail(err, LVR_ERR_INVARIANT,
                        "this session failed half-way through a request; open a new one");
    lvr_run r = {.s = s,
                 .request = request,
                 .on_token = on_token,
                 .user = user,
                 .n_prompt = n_prompt,
                 .n_predict = n_predict};
    r.tokens = calloc(n_predict ? n_predict : 1, sizeof r.tokens[0]);
    r.prompt_tokens = calloc(s->config.prefill_chunk, sizeof r.prompt_tokens[0]);
    lvr_status status = LVR_OK;
    if (!r.tokens || !r.prompt_tokens)
        status = lvr_fail(err, LVR_ERR_NOMEM, "out of memory for %u tokens", n_predict);
    if (status == LVR_OK)
        status = begin(&r, prompt, err);
    if (status == LVR_OK)
        status = loop(&r, err);
    if (status == LVR_ERR_INTERRUPTED)
        finish_interrupted(&r, err);
    else if (status == LVR_OK)
        finish(&r, domain, prompt);
    else
        goto out;
    *ret_stats = r.stats;
    if (ret_n)
        *ret_n = r.n_tokens;
    if (ret_tokens) {
        *ret_tokens = r.tokens;
        r.tokens = NULL;
    }
out:
    free(r.prompt_tokens);
    free(r.tokens);
    return status;
}
