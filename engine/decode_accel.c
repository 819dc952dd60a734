/* Layers on the accelerator, the target's and the draft's: ordered by the machine, submitted as a ticket,
 * looked after while it runs. */
#include "engine/decode_internal.h"

#include "common/clock.h"

/* The host looks for finished reads this often while it waits for the accelerator. */
#define LOOK_FOR_READS_NS 200000u
#define LOOK_FOR_CANCEL_NS 20000000u

lvr_status lvr_run_order_ticket(lvr_run *r, const lvr_action *a, lvr_error *err)
{
    if (!r->s->accel || r->npu.ordered || r->npu.out)
        return lvr_fail(err, LVR_ERR_INVARIANT, "layer %u is to run on an accelerator %s", a->layer.layer,
                        r->s->accel ? "that has not finished the one before" : "that is not there");
    r->npu = (lvr_flight){.ordered = true, .action = *a};
    return LVR_OK;
}

lvr_status lvr_run_submit_ticket(lvr_run *r, lvr_error *err)
{
    lvr_session *s = r->s;
    lvr_flight *f = &r->npu;
    const uint8_t *staged = NULL;
    const lvr_accel_graph *graph = NULL;
    lvr_status status = lvr_run_begin_layer(r, &f->action, &staged, err);
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

lvr_status lvr_run_end_ticket(lvr_run *r, const lvr_accel_times *t, lvr_error *err)
{
    r->npu.out = false;
    r->stats.npu_ns += t->end_ns - t->start_ns;
    r->stats.npu_tickets++;
    return lvr_run_end_layer(r, &r->npu.action, r->npu.bucket, t, err);
}

lvr_status lvr_run_wait_for_ticket(lvr_run *r, lvr_error *err)
{
    lvr_accel_times t;
    const uint64_t t0 = lvr_now_ns();
    const bool done = lvr_accel_wait(r->s->accel, r->npu.ticket,
                                     r->s->staging ? LOOK_FOR_READS_NS : LOOK_FOR_CANCEL_NS, &t);
    r->stats.npu_wait_ns += lvr_now_ns() - t0;
    return done ? lvr_run_end_ticket(r, &t, err) : LVR_OK;
}

/* Only a LAYER action can come of it: the draft's own is still outstanding. */
lvr_status lvr_run_tend(lvr_run *r, lvr_error *err)
{
    lvr_accel_times t;
    lvr_status status = lvr_run_collect_reads(r, false, err);
    if (status == LVR_OK && r->npu.out && lvr_accel_poll(r->s->accel, r->npu.ticket, &t))
        status = lvr_run_end_ticket(r, &t, err);
    if (status == LVR_OK)
        status = lvr_run_take_actions(r, err);
    if (status == LVR_OK && r->npu.ordered)
        status = lvr_run_submit_ticket(r, err);
    return status;
}

/* Finished reads are handed on meanwhile; no action but reads can come of them while the draft is at work. */
lvr_status lvr_run_draft_layer(void *user, uint32_t layer, uint32_t n_rows, lvr_error *err)
{
    lvr_run *r = user;
    lvr_session *s = r->s;
    const lvr_accel_graph *graph = NULL;
    lvr_accel_ticket ticket = 0;
    lvr_accel_times t;
    lvr_status status = lvr_accel_graph_get(s->accel, s->pair.draft.forward, n_rows, &graph, err);
    if (status == LVR_OK)
        status = lvr_accel_submit(s->accel, graph, layer, NULL, &ticket, err);
    if (status != LVR_OK)
        return status;
    const uint64_t t0 = lvr_now_ns();
    lvr_status reads = LVR_OK; /* also after a failure the ticket is waited for: it uses the draft's rows */
    while (!lvr_accel_wait(s->accel, ticket, LOOK_FOR_READS_NS, &t))
        if (reads == LVR_OK)
            reads = lvr_run_collect_reads(r, false, err);
    r->stats.npu_wait_ns += lvr_now_ns() - t0;
    r->stats.npu_ns += t.end_ns - t.start_ns;
    r->stats.npu_tickets++;
    r->draft_bucket = lvr_accel_graph_bucket(graph);
    return reads;
}
