/*
 * The host loop: takes the machine's actions, keeps reads and the accelerator going, runs at most one piece
 * of compute on the CPU at a time and feeds the events back. When which read or ticket finishes decides only
 * when something happens, never what.
 */
#include "engine/decode.h"

#include "common/clock.h"
#include "common/log.h"
#include "engine/session.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The host looks for finished reads this often while it waits for the accelerator. */
#define LOOK_FOR_READS_NS 200000u
#define LOOK_FOR_CANCEL_NS 20000000u

/* A layer on the accelerator. */
typedef struct flight {
    bool ordered; /* the action is there, not submitted yet */
    bool out;     /* submitted */
    lvr_action action;
    lvr_accel_ticket ticket;
    uint32_t bucket;
} flight;

/* One request under way. */
typedef struct run {
    lvr_session *s;
    uint64_t request;
    lvr_token_fn on_token;
    void *user;
    int32_t *tokens; /* [n_predict] */
    uint32_t n_tokens, n_predict, n_prompt;
    lvr_run_stats stats;
    lvr_staging_stats staging0; /* when the request began */
    uint64_t begin_ns, decode0_ns, first_token_ns;
    uint64_t prefill_compute_ns, prefill_io_busy_ns;
    lvr_round_log log;
    uint64_t round_begin_ns; /* of the current pass */
    bool has_work, done;
    lvr_action work; /* the compute action that is outstanding on the CPU */
    flight npu;
} run;

/* ---- feeding the machine ---- */

static lvr_status feed(run *r, const lvr_event *event, lvr_error *err)
{
    return lvr_round_step(r->s->machine, event, err);
}

static lvr_status order_ticket(run *r, const lvr_action *a, lvr_error *err)
{
    if (!r->s->accel || r->npu.ordered || r->npu.out)
        return lvr_fail(err, LVR_ERR_INVARIANT, "layer %u is to run on an accelerator %s", a->layer.layer,
                        r->s->accel ? "that has not finished the one before" : "that is not there");
    r->npu = (flight){.ordered = true, .action = *a};
    return LVR_OK;
}

static lvr_status take_actions(run *r, lvr_error *err)
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
            status = order_ticket(r, &a, err);
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
static void count_planning(run *r, lvr_kernel_times t)
{
    lvr_round_info info;
    lvr_round_get_info(r->s->machine, &info);
    if (r->done || info.prefill)
        return;
    r->stats.plan_ns += t.end_ns - t.start_ns;
    lvr_record_kernel(r->s->recorder, info.round, 1, UINT32_MAX, LVR_OP_PLAN,
                      lvr_round_tree(r->s->machine)->n, info.position, t);
}

/* An event in whose wake the machine asks its policy: the time of the step is the policy's. */
static lvr_status feed_planning(run *r, const lvr_event *event, lvr_error *err)
{
    const uint64_t t0 = lvr_now_ns();
    lvr_status status = feed(r, event, err);
    const uint64_t t1 = lvr_now_ns();
    if (status == LVR_OK)
        status = take_actions(r, err);
    if (status == LVR_OK)
        count_planning(r, (lvr_kernel_times){t0, t1});
    return status;
}

/* Hands every finished read to the machine; block: waits for the first. */
static lvr_status collect_reads(run *r, bool block, lvr_error *err)
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
        status = feed(r, &event, err);
        if (status != LVR_OK)
            return status;
        block = false;
    }
}

/* ---- draft ---- */

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
    uint32_t slots[LVR_DRAFT_MAX_ROWS];
    for (uint32_t i = 0; i < n; i++)
        slots[i] = LVR_MAX_EXPANSIONS + i;
    return lvr_kv_commit(&s->pair.draft.kv, slots, n, err);
}

/* Catch-up rows without tree nodes, as many as fit in a call. */
static lvr_status run_catch_up(lvr_session *s, const lvr_row *rows, uint32_t n, lvr_error *err)
{
    uint32_t per_row;
    catch_up_rows(rows, n, s->fwd_rows);
    const lvr_status status = lvr_pair_draft(&s->pair, s->fwd_rows, n, 0, 0, NULL, &per_row, err);
    return status == LVR_OK ? commit_catch_up(s, n, err) : status;
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

static void forget_tree(lvr_session *s)
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
static lvr_status draft_rows(lvr_session *s, const lvr_action *a, uint32_t *ret_per_row, lvr_error *err)
{
    const lvr_row *rows = a->draft.rows;
    uint32_t catch_up = count_catch_up(rows, a->draft.n_rows);
    const uint32_t nodes = a->draft.n_rows - catch_up;
    if (nodes != a->draft.n_expand || nodes > LVR_DRAFT_MAX_ROWS)
        return lvr_fail(err, LVR_ERR_INVARIANT, "draft: %u tree rows, %u of them to expand", nodes,
                        a->draft.n_expand);
    while (catch_up > 0 && (nodes == 0 || catch_up + nodes > LVR_DRAFT_MAX_ROWS)) {
        const uint32_t n = catch_up < LVR_DRAFT_MAX_ROWS ? catch_up : LVR_DRAFT_MAX_ROWS;
        const lvr_status status = run_catch_up(s, rows, n, err);
        if (status != LVR_OK)
            return status;
        rows += n;
        catch_up -= n;
    }
    if (nodes == 0) {
        *ret_per_row = 0;
        return LVR_OK;
    }
    catch_up_rows(rows, catch_up, s->fwd_rows);
    lvr_status status = node_rows(s, rows + catch_up, nodes, catch_up, s->fwd_rows + catch_up, err);
    if (status == LVR_OK)
        status = lvr_pair_draft(&s->pair, s->fwd_rows, catch_up + nodes, nodes, a->draft.branch,
                                s->candidates, ret_per_row, err);
    return status == LVR_OK ? commit_catch_up(s, catch_up, err) : status;
}

static lvr_status tend_accelerator(void *user, lvr_error *err);

/* The same, with an eye on the accelerator if it has a layer meanwhile. */
static lvr_status draft_rows_tending(run *r, const lvr_action *a, uint32_t *ret_per_row, lvr_error *err)
{
    lvr_pair *pair = &r->s->pair;
    if (r->npu.ordered || r->npu.out) {
        pair->between_layers = tend_accelerator;
        pair->between_user = r;
    }
    const lvr_status status = draft_rows(r->s, a, ret_per_row, err);
    pair->between_layers = NULL;
    pair->between_user = NULL;
    return status;
}

static lvr_status run_draft(run *r, lvr_error *err)
{
    lvr_session *s = r->s;
    lvr_round_info info;
    lvr_round_get_info(s->machine, &info);
    const uint32_t context = s->pair.draft.kv.n_cached, n_rows = r->work.draft.n_rows;
    uint32_t per_row = 0;
    const lvr_action action = r->work;
    const uint64_t t0 = lvr_now_ns();
    lvr_status status = draft_rows_tending(r, &action, &per_row, err);
    if (status != LVR_OK)
        return status;
    const uint64_t t1 = lvr_now_ns();
    lvr_record_kernel(s->recorder, info.round, 1, UINT32_MAX, LVR_OP_DRAFT, n_rows, context,
                      (lvr_kernel_times){t0, t1});
    if (r->log.draft_steps++ == 0)
        r->log.draft0_ns = t0;
    r->log.draft1_ns = t1;
    if (!info.prefill)
        r->stats.draft_steps++;
    r->stats.draft_ns += t1 - t0;
    const lvr_event event = {.kind = LVR_EV_DRAFT_DONE,
                             .draft = {.candidates = s->candidates, .n_per_row = per_row}};
    return feed_planning(r, &event, err);
}

/* ---- verification ---- */

static lvr_status embed(run *r, const lvr_action *a, const lvr_round_info *info, lvr_error *err)
{
    const lvr_row *rows = a->layer.rows;
    const uint32_t n = a->layer.n_rows;
    lvr_session *s = r->s;
    lvr_fwd_row fwd[LVR_MAX_VERIFY_NODES];
    for (uint32_t i = 0; i < n; i++)
        fwd[i] = (lvr_fwd_row){.token = rows[i].token,
                               .position = rows[i].position,
                               .slot = i,
                               .parent_slot = rows[i].parent_row};
    const uint64_t t0 = lvr_now_ns();
    const lvr_status status = lvr_forward_embed(s->pair.target.forward, fwd, n, err);
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

/* What comes before a layer on either unit; *ret_base: its staged weights, NULL if they are resident. */
static lvr_status begin_layer(run *r, const lvr_action *a, const uint8_t **ret_base, lvr_error *err)
{
    lvr_session *s = r->s;
    const uint32_t layer = a->layer.layer, n = a->layer.n_rows;
    lvr_round_info info;
    lvr_round_get_info(s->machine, &info);
    if (n > s->config.max_rows && n > s->config.prefill_chunk)
        return lvr_fail(err, LVR_ERR_INVARIANT, "layer %u: a pass of %u rows", layer, n);
    *ret_base = a->layer.slot < 0 ? NULL : lvr_staging_slot(s->staging, (uint32_t)a->layer.slot);
    return layer == 0 ? embed(r, a, &info, err) : LVR_OK;
}

/* What comes after it. */
static lvr_status end_layer(run *r, const lvr_action *a, uint32_t bucket, const lvr_accel_times *t,
                            lvr_error *err)
{
    lvr_session *s = r->s;
    lvr_round_info info;
    lvr_round_get_info(s->machine, &info);
    r->log.verify1_ns = t->end_ns;
    r->stats.compute_ns += t->end_ns - t->start_ns;
    const lvr_layer_log log = {.round = info.round,
                               .layer = a->layer.layer,
                               .rows = a->layer.n_rows,
                               .bucket = bucket,
                               .context = s->pair.target.kv.n_cached,
                               .unit = a->layer.unit,
                               .submit_ns = t->submit_ns,
                               .start_ns = t->start_ns,
                               .end_ns = t->end_ns};
    lvr_record_layer(s->recorder, &log);
    if (a->layer.slot >= 0)
        r->stats.bytes_read +=
            lvr_staging_consume(s->staging, (uint32_t)a->layer.slot, record_read, s->recorder);
    const lvr_status status = collect_reads(r, false, err);
    if (status != LVR_OK)
        return status;
    const lvr_event event = {.kind = LVR_EV_LAYER_DONE};
    return feed(r, &event, err);
}

static lvr_status run_layer(run *r, lvr_error *err)
{
    const uint8_t *staged = NULL;
    const lvr_status status = begin_layer(r, &r->work, &staged, err);
    if (status != LVR_OK)
        return status;
    const uint64_t t0 = lvr_now_ns();
    lvr_forward_layer(r->s->pair.target.forward, r->work.layer.layer, staged);
    const lvr_accel_times t = {.submit_ns = t0, .start_ns = t0, .end_ns = lvr_now_ns()};
    return end_layer(r, &r->work, r->work.layer.n_rows, &t, err); /* a CPU runs as many rows as there are */
}

/* ---- layers on the accelerator ---- */

static lvr_status submit_ticket(run *r, lvr_error *err)
{
    lvr_session *s = r->s;
    flight *f = &r->npu;
    const uint8_t *staged = NULL;
    const lvr_accel_graph *graph = NULL;
    lvr_status status = begin_layer(r, &f->action, &staged, err);
    if (status == LVR_OK)
        status = lvr_accel_graph_get(s->accel, s->pair.target.forward, f->action.layer.n_rows, &graph, err);
    if (status == LVR_OK)
        status = lvr_accel_submit(s->accel, graph, f->action.layer.layer, staged, &f->ticket, err);
    if (status != LVR_OK)
        return status;
    f->ordered = false;
    f->out = true;
    f->bucket = lvr_accel_graph_bucket(graph);
    return LVR_OK;
}

static lvr_status end_ticket(run *r, const lvr_accel_times *t, lvr_error *err)
{
    r->npu.out = false;
    r->stats.npu_ns += t->end_ns - t->start_ns;
    r->stats.npu_tickets++;
    return end_layer(r, &r->npu.action, r->npu.bucket, t, err);
}

/* There is nothing else to do, though reads may finish meanwhile: they are handed on, and their layers
 * checked, while the accelerator works. */
static lvr_status wait_for_ticket(run *r, lvr_error *err)
{
    lvr_accel_times t;
    const uint64_t t0 = lvr_now_ns();
    const bool done = lvr_accel_wait(r->s->accel, r->npu.ticket,
                                     r->s->staging ? LOOK_FOR_READS_NS : LOOK_FOR_CANCEL_NS, &t);
    r->stats.npu_wait_ns += lvr_now_ns() - t0;
    return done ? end_ticket(r, &t, err) : LVR_OK;
}

/* Between the draft's layers: what has finished is handed on, and the next layer follows. Only a LAYER action
 * can come of it: the draft's own is still outstanding. */
static lvr_status tend_accelerator(void *user, lvr_error *err)
{
    run *r = user;
    lvr_accel_times t;
    lvr_status status = collect_reads(r, false, err);
    if (status == LVR_OK && r->npu.out && lvr_accel_poll(r->s->accel, r->npu.ticket, &t))
        status = end_ticket(r, &t, err);
    if (status == LVR_OK)
        status = take_actions(r, err);
    if (status == LVR_OK && r->npu.ordered)
        status = submit_ticket(r, err);
    return status;
}

static lvr_status run_head(run *r, lvr_error *err)
{
    lvr_session *s = r->s;
    lvr_side *t = &s->pair.target;
    lvr_round_info info;
    lvr_round_get_info(s->machine, &info);
    const uint64_t t0 = lvr_now_ns();
    lvr_forward_head(t->forward, r->work.head.row, t->logits);
    const int32_t token =
        lvr_sample(t->sampler, &s->config.sampling, r->request, r->work.head.position + 1, t->logits, NULL);
    const uint64_t t1 = lvr_now_ns();
    r->log.verify1_ns = t1;
    r->stats.head_ns += t1 - t0;
    lvr_record_kernel(s->recorder, info.round, 0, UINT32_MAX, LVR_OP_HEAD, 1, r->work.head.position,
                      (lvr_kernel_times){t0, t1});
    const lvr_event event = {.kind = LVR_EV_HEAD_DONE, .head = {.token = token}};
    return feed(r, &event, err);
}

/* ---- commit ---- */

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

static lvr_status keep_tokens(run *r, const lvr_action *a, lvr_error *err)
{
    if (a->commit.n_tokens > r->n_predict - r->n_tokens)
        return lvr_fail(err, LVR_ERR_INVARIANT, "commit: %u tokens, but only %u are wanted",
                        a->commit.n_tokens, r->n_predict - r->n_tokens);
    for (uint32_t i = 0; i < a->commit.n_tokens; i++) {
        lvr_record_token(r->s->recorder, r->request, r->n_prompt + r->n_tokens, a->commit.tokens[i], true);
        r->tokens[r->n_tokens++] = a->commit.tokens[i];
    }
    return LVR_OK;
}

static void count_round(run *r, const lvr_round_info *info)
{
    if (info->prefill)
        return;
    r->stats.rounds++;
    r->stats.verified_rows += info->n_rows;
    r->stats.drafted_rows += info->n_rows - 1;
    r->stats.accepted += info->n_accepted;
}

/* The pass that ends had no draft steps, or no layers: intervals that did not happen are empty, not zero. */
static void close_log(const run *r, lvr_round_log *log)
{
    if (log->draft_steps == 0)
        log->draft0_ns = log->draft1_ns = r->round_begin_ns;
    if (log->verify0_ns == 0)
        log->verify0_ns = log->verify1_ns = log->draft1_ns;
}

static void begin_round(run *r, uint64_t now)
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

static lvr_status feed_commit(run *r, lvr_error *err)
{
    const lvr_event event = {.kind = LVR_EV_COMMIT_DONE};
    const lvr_status status = feed_planning(r, &event, err);
    begin_round(r, lvr_now_ns());
    return status;
}

static lvr_status run_commit(run *r, lvr_error *err)
{
    lvr_session *s = r->s;
    lvr_round_info info;
    lvr_round_get_info(s->machine, &info);
    const uint32_t first = r->n_tokens, depth = lvr_verified_depth(s->machine), kept = r->work.commit.n_rows;
    const uint32_t context = s->pair.target.kv.n_cached;
    const uint64_t t0 = lvr_now_ns();
    lvr_status status = lvr_kv_commit(&s->pair.target.kv, r->work.commit.rows, kept, err);
    if (status == LVR_OK)
        status = commit_draft(s, &r->work, err);
    if (status == LVR_OK)
        status = keep_tokens(r, &r->work, err);
    if (status != LVR_OK)
        return status;
    forget_tree(s);
    count_round(r, &info);
    close_log(r, &r->log);
    lvr_record_tree(s->recorder, s->machine, &info, s->geometry.n_layers, r->work.commit.rows, kept);
    const uint64_t t1 = lvr_now_ns();
    r->log.commit_ns = t1;
    lvr_record_round(s->recorder, &info, depth, &r->log);
    r->stats.commit_ns += t1 - t0;
    lvr_record_kernel(s->recorder, info.round, 0, UINT32_MAX, LVR_OP_COMMIT, kept, context,
                      (lvr_kernel_times){t0, t1});
    if (!r->first_token_ns && r->n_tokens > 0)
        r->first_token_ns = t1;
    status = feed_commit(r, err);
    for (uint32_t i = first; i < r->n_tokens && r->on_token; i++)
        r->on_token(r->user, r->tokens[i]);
    return status == LVR_OK ? lvr_recorder_status(s->recorder, err) : status;
}

/* ---- the loop ---- */

static lvr_status run_work(run *r, lvr_error *err)
{
    r->has_work = false;
    switch (r->work.kind) {
    case LVR_ACT_DRAFT:
        return run_draft(r, err);
    case LVR_ACT_LAYER:
        return run_layer(r, err);
    case LVR_ACT_HEAD:
        return run_head(r, err);
    case LVR_ACT_COMMIT:
        return run_commit(r, err);
    case LVR_ACT_READ:
    case LVR_ACT_DONE:
        break;
    }
    return lvr_fail(err, LVR_ERR_INVARIANT, "action %d is no compute", (int)r->work.kind);
}

static lvr_status fail_cancelled(const run *r, lvr_error *err)
{
    return lvr_fail(err, LVR_ERR_INTERRUPTED,
                    "interrupted: %u of %u tokens of request %" PRIu64 " were generated, in %" PRIu64
                    " rounds",
                    r->n_tokens, r->n_predict, r->request, r->stats.rounds);
}

/* One thing: the accelerator is served first, since it works while the CPU does. */
static lvr_status do_next(run *r, lvr_error *err)
{
    lvr_accel_times t;
    if (r->npu.out && lvr_accel_poll(r->s->accel, r->npu.ticket, &t))
        return end_ticket(r, &t, err);
    if (r->npu.ordered)
        return submit_ticket(r, err);
    const bool idle = !r->has_work && !r->npu.out;
    const lvr_status status = collect_reads(r, idle, err);
    if (status != LVR_OK || idle)
        return status;
    return r->has_work ? run_work(r, err) : wait_for_ticket(r, err);
}

static lvr_status loop(run *r, lvr_error *err)
{
    for (;;) {
        lvr_status status = take_actions(r, err);
        if (status != LVR_OK || r->done)
            return status;
        if (r->s->config.cancel && atomic_load_explicit(r->s->config.cancel, memory_order_relaxed))
            return fail_cancelled(r, err);
        status = do_next(r, err);
        if (status != LVR_OK)
            return status;
    }
}

static void close_stats(run *r, uint64_t now)
{
    lvr_run_stats *st = &r->stats;
    st->n_prompt = r->n_prompt;
    st->n_tokens = r->n_tokens;
    st->wall_ns = now - r->begin_ns;
    st->prefill_ns = r->decode0_ns - r->begin_ns;
    st->decode_ns = now - r->decode0_ns;
    st->ttft_ns = r->first_token_ns - r->begin_ns;
    st->decode_compute_ns = st->compute_ns - r->prefill_compute_ns;
    if (!r->s->staging)
        return;
    const lvr_staging_stats io = lvr_staging_get_stats(r->s->staging);
    st->io_wait_ns = io.wait_ns - r->staging0.wait_ns;
    st->io_busy_ns = io.busy_ns - r->staging0.busy_ns;
    st->decode_io_busy_ns = st->io_busy_ns - r->prefill_io_busy_ns;
    st->late_reads = io.late - r->staging0.late;
}

static lvr_status begin(run *r, const int32_t *prompt, lvr_error *err)
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
    forget_tree(s);
    if (s->staging)
        r->staging0 = lvr_staging_get_stats(s->staging);
    for (uint32_t i = 0; i < r->n_prompt; i++)
        lvr_record_token(s->recorder, r->request, i, prompt[i], false);
    r->begin_ns = t0;
    begin_round(r, t0);
    count_planning(r, (lvr_kernel_times){t0, t1});
    return LVR_OK;
}

static void finish(run *r, uint32_t domain, const int32_t *prompt)
{
    const uint64_t now = lvr_now_ns();
    close_stats(r, now);
    r->s->broken = false;
    const lvr_request_log log = {
        .id = r->request,
        .arrival_ns = r->begin_ns,
        .first_token_ns = r->first_token_ns,
        .done_ns = now,
        .domain = domain,
        .n_prompt = r->n_prompt,
        .n_output = r->n_tokens,
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
    run r = {.s = s,
             .request = request,
             .on_token = on_token,
             .user = user,
             .n_prompt = n_prompt,
             .n_predict = n_predict};
    r.tokens = calloc(n_predict ? n_predict : 1, sizeof r.tokens[0]);
    if (!r.tokens)
        return lvr_fail(err, LVR_ERR_NOMEM, "out of memory for %u tokens", n_predict);
    lvr_status status = begin(&r, prompt, err);
    if (status == LVR_OK)
        status = loop(&r, err);
    if (status != LVR_OK) {
        free(r.tokens);
        return status;
    }
    finish(&r, domain, prompt);
    *ret_stats = r.stats;
    if (ret_n)
        *ret_n = r.n_tokens;
    if (ret_tokens)
        *ret_tokens = r.tokens;
    else
        free(r.tokens);
    return LVR_OK;
}

void lvr_run_stats_add(lvr_run_stats *sum, const lvr_run_stats *one)
{
    sum->n_prompt += one->n_prompt;
    sum->n_tokens += one->n_tokens;
    sum->rounds += one->rounds;
    sum->drafted_rows += one->drafted_rows;
    sum->verified_rows += one->verified_rows;
    sum->accepted += one->accepted;
    sum->draft_steps += one->draft_steps;
    sum->bytes_read += one->bytes_read;
    sum->prefill_ns += one->prefill_ns;
    sum->decode_ns += one->decode_ns;
    sum->ttft_ns += one->ttft_ns;
    sum->wall_ns += one->wall_ns;
    sum->io_wait_ns += one->io_wait_ns;
    sum->io_busy_ns += one->io_busy_ns;
    sum->compute_ns += one->compute_ns;
    sum->draft_ns += one->draft_ns;
    sum->head_ns += one->head_ns;
    sum->plan_ns += one->plan_ns;
    sum->commit_ns += one->commit_ns;
    sum->decode_io_busy_ns += one->decode_io_busy_ns;
    sum->decode_compute_ns += one->decode_compute_ns;
    sum->late_reads += one->late_reads;
    sum->npu_ns += one->npu_ns;
    sum->npu_wait_ns += one->npu_wait_ns;
    sum->npu_tickets += one->npu_tickets;
    sum->stop = one->stop;
}
