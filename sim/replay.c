/*
 * The simulator as a host of the round machine: each action is priced on the simulated device, each end of
 * work is an event fed back. What the policy sees comes from the draft side of the outcome source only
 * (children and their probabilities); the target's tokens are looked up when a HEAD action asks for one,
 * after the tree has been chosen (the oracle boundary).
 *
 * Laws checked at the end (LVR_ERR_INVARIANT):
 *   SIM-BYTES   bytes consumed = passes x streamed bytes; bytes submitted - consumed are at most the ring
 *   SIM-READS   every submitted read has ended or is still queued
 *   SIM-ROWS    each pass ran every layer once over the rows that were left
 *   SIM-TOKENS  committed = accepted + rounds = the outcome source's own text
 *   SIM-TIME    simulated time = compute on the CPU + waiting for flash + waiting for the accelerator (the
 * host does one thing at a time)
 */
#include "sim/device.h"
#include "sim/outcome.h"
#include "sim/sim_recorder.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct totals {
    uint64_t submitted_bytes, consumed_bytes;
    uint64_t reads, reads_fed;
    uint64_t passes, layer_calls, layer_rows;
    uint64_t row_layers; /* layers that the machine says its rows went through */
} totals;

typedef struct replay {
    const lvr_sim_config *c;
    lvr_sim_device dev;
    lvr_round *machine;
    lvr_sim_recorder *recorder;
    lvr_sim_result r;
    totals sum;
    int32_t eos_token;
    size_t tokens_cap, rounds_cap;

    /* the request under way */
    uint32_t index;           /* among the run's requests */
    uint32_t outcome_request; /* its index in the outcome source */
    lvr_sim_request req;
    bool done;
    uint64_t begin_ns, decode0_ns, first_token_ns;

    /* the pass under way */
    lvr_action work;   /* the outstanding compute action, the last if there are two */
    lvr_action draft;  /* the last DRAFT action */
    bool draft_out;    /* it is being computed */
    bool ticket_out;   /* a layer is on the accelerator */
    bool draft_ticket; /* a draft step is */
    uint64_t asked_ns; /* the latest submission to flash or accelerator */
    lvr_sim_round pass;
    lvr_sim_pass times;
    uint64_t handles[LVR_MAX_TREE_NODES]; /* tree node -> outcome node */
    lvr_candidate candidates[LVR_MAX_EXPANSIONS * LVR_MAX_BRANCH];
    uint64_t child_handles[LVR_MAX_EXPANSIONS * LVR_MAX_BRANCH];
    lvr_exit_raw raw[LVR_MAX_VERIFY_NODES]; /* of the SCORE action's rows */
    bool unknown[LVR_MAX_VERIFY_NODES];
} replay;

void lvr_sim_result_free(lvr_sim_result *r)
{
    free(r->tokens);
    free(r->tokens_per_request);
    free(r->rounds_per_request);
    free(r->decode_ns_per_request);
    free(r->round_log);
    *r = (lvr_sim_result){0};
}

void lvr_sim_use_model(lvr_sim_config *config, const lvr_cost_model *m)
{
    const lvr_fit_term *flash = lvr_cost_model_term(m, "flash");
    config->cost = &m->table;
    config->wake_ns = (uint64_t)llround(m->wake_ns);
    /* Fitted to nothing, and no preset put in its place. */
    config->flash_unknown = flash && flash->n == 0 && m->conditions.emulated[0] == '\0';
}

double lvr_sim_tokens_per_s(const lvr_sim_result *r)
{
    return r->decode_ns > 0 ? (double)r->n_tokens * 1e9 / (double)r->decode_ns : 0.0;
}

/* ---- pricing actions ---- */

static lvr_status run_op(replay *p, lvr_op op, uint32_t layer, uint32_t rows, uint32_t context,
                         lvr_compute_times *ret, lvr_error *err)
{
    lvr_round_info info;
    lvr_round_get_info(p->machine, &info);
    *ret = lvr_sim_device_run(&p->dev, op, rows, context);
    p->pass.op_ns[op] += ret->end_ns - ret->start_ns;
    return lvr_sim_record_op(p->recorder, info.round, layer, op, rows, context, *ret, err);
}

/* When the host hands something on: between two operators, but while the draft runs also in between its
 * layers (which are short: at once). Never before what it handed on last. */
static uint64_t hand_over_ns(replay *p)
{
    const uint64_t now = p->draft_out ? p->dev.now_ns : lvr_sim_device_host_ns(&p->dev);
    p->asked_ns = now > p->asked_ns ? now : p->asked_ns;
    return p->asked_ns;
}

static uint32_t reads_in_flight(const lvr_flash_resource *f, uint64_t at_ns)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < f->params.depth; i++)
        n += f->state.lane_free_ns[i] > at_ns;
    return n;
}

static lvr_status do_read(replay *p, const lvr_action *a, lvr_error *err)
{
    const uint64_t submit = hand_over_ns(p);
    lvr_flash_times t = {0};
    const lvr_status st =
        lvr_sim_device_read(&p->dev, submit, a->read.bytes, LVR_EV_SLICE_READY, a->read.seq, &t, err);
    if (st)
        return st;
    p->sum.submitted_bytes += a->read.bytes;
    p->sum.reads++;
    lvr_sim_record_submitted(p->recorder, a, submit, t, reads_in_flight(&p->dev.flash, t.start_ns));
    return LVR_OK;
}

/* Children of the nodes that a draft step expands. */
static void look_up_children(replay *p, const lvr_action *a, uint32_t root_pos)
{
    const lvr_row *rows = a->draft.rows + (a->draft.n_rows - a->draft.n_expand);
    const uint32_t branch = a->draft.branch;
    for (uint32_t i = 0; i < a->draft.n_expand; i++) {
        const uint32_t node = (uint32_t)rows[i].node;
        if (node == 0)
            p->handles[0] = lvr_outcome_root(p->c->outcome, p->outcome_request, root_pos);
        const size_t at = (size_t)i * branch;
        if (!lvr_outcome_children(p->c->outcome, p->handles[node], branch, &p->candidates[at],
                                  &p->child_handles[at]))
            p->r.outside_nodes++;
    }
}

static lvr_status submit_draft(replay *p, uint64_t round, const lvr_action *a, uint32_t context,
                               lvr_compute_times *ret, lvr_error *err)
{
    lvr_npu_times t = {0};
    const lvr_status st = lvr_sim_device_ticket(&p->dev, hand_over_ns(p), LVR_OP_DRAFT, a->draft.n_rows,
                                                context, LVR_EV_DRAFT_DONE, &t, err);
    if (st)
        return st;
    p->draft_ticket = true;
    *ret = (lvr_compute_times){.start_ns = t.start_ns, .end_ns = t.end_ns};
    return lvr_sim_record_ticket(p->recorder, round, UINT32_MAX, LVR_OP_DRAFT, a->draft.n_rows, context, &t,
                                 err);
}

static lvr_status do_draft(replay *p, const lvr_action *a, lvr_error *err)
{
    lvr_round_info info;
    lvr_compute_times t = {0};
    lvr_round_get_info(p->machine, &info);
    /* Rows of committed tokens come first and stand where the draft's cache ends. */
    const uint32_t context = a->draft.rows[0].node < 0 ? a->draft.rows[0].position : info.position;
    look_up_children(p, a, info.position);
    const bool npu = a->draft.unit == LVR_UNIT_NPU;
    if (!npu && p->c->cost->op[LVR_OP_DRAFT].curve.n == 0)
        return lvr_fail(
            err, LVR_ERR_CONFIG,
            "the cost model has no CPU times for draft steps, but the schedule runs some there; fit "
            "it also on a trace recorded with --place-draft cpu");
    lvr_status st = npu ? submit_draft(p, info.round, a, context, &t, err)
                        : run_op(p, LVR_OP_DRAFT, UINT32_MAX, a->draft.n_rows, context, &t, err);
    if (st)
        return st;
    if (p->times.n_draft_steps++ == 0)
        p->times.draft0_ns = t.start_ns;
    p->times.draft1_ns = t.end_ns;
    if (!info.prefill)
        p->r.draft_steps++;
    p->draft = *a;
    p->draft_out = !npu;
    return npu ? LVR_OK : lvr_sim_device_signal(&p->dev, LVR_EV_DRAFT_DONE, err);
}

/* Rows that stand for children the recording does not have: their fate is not known. */
static void count_unrecorded(replay *p, const lvr_action *a)
{
    for (uint32_t i = 1; i < a->layer.n_rows; i++)
        p->r.outside_nodes += p->handles[a->layer.rows[i].node] == LVR_NO_NODE;
}

static lvr_status begin_pass(replay *p, const lvr_action *a, uint32_t context, lvr_error *err)
{
    lvr_compute_times t = {0};
    if (!a->layer.prefill)
        count_unrecorded(p, a);
    const lvr_status st = run_op(p, LVR_OP_EMBED, UINT32_MAX, a->layer.n_rows, context, &t, err);
    p->times.verify0_ns = t.start_ns;
    return st;
}

/* Only slices are ever waited for. */
static void wait_for_slices(replay *p)
{
    if (p->dev.now_ns <= p->dev.compute.free_ns)
        return;
    const uint64_t start = p->dev.now_ns + p->c->wake_ns;
    p->pass.wait_ns += start - p->dev.compute.free_ns;
    p->r.flash_wait_ns += start - p->dev.compute.free_ns;
    p->dev.compute.free_ns = start;
}

static lvr_status run_layer(replay *p, const lvr_action *a, lvr_error *err)
{
    lvr_round_info info;
    lvr_compute_times t = {0};
    lvr_round_get_info(p->machine, &info);
    if (p->c->cost->op[LVR_OP_LAYER].curve.n == 0)
        return lvr_fail(
            err, LVR_ERR_CONFIG,
            "the cost model has no CPU times for layers, but the schedule places them there; fit it "
            "also on a trace recorded with --place cpu, or simulate with --place npu");
    const lvr_status st = run_op(p, LVR_OP_LAYER, a->layer.layer, a->layer.n_rows, info.position, &t, err);
    if (st)
        return st;
    p->times.verify1_ns = t.end_ns;
    return lvr_sim_device_signal(&p->dev, LVR_EV_LAYER_DONE, err);
}

static lvr_status submit_layer(replay *p, const lvr_action *a, lvr_error *err)
{
    lvr_round_info info;
    lvr_npu_times t = {0};
    lvr_round_get_info(p->machine, &info);
    const lvr_status st = lvr_sim_device_ticket(&p->dev, hand_over_ns(p), LVR_OP_LAYER, a->layer.n_rows,
                                                info.position, LVR_EV_LAYER_DONE, &t, err);
    if (st)
        return st;
    p->ticket_out = true;
    p->times.verify1_ns = t.end_ns;
    return lvr_sim_record_ticket(p->recorder, info.round, a->layer.layer, LVR_OP_LAYER, a->layer.n_rows,
                                 info.position, &t, err);
}

/* The host has seen the end of its ticket: it had waited for it, unless it is still drafting. */
static void wait_for_ticket(replay *p, lvr_op op)
{
    lvr_compute_resource *cpu = &p->dev.compute;
    if (p->dev.now_ns <= cpu->free_ns)
        return;
    const uint64_t waited = p->dev.now_ns - cpu->free_ns;
    p->pass.op_ns[op] += waited;
    p->r.npu_wait_ns += waited;
    cpu->free_ns = p->dev.now_ns;
}

static lvr_status do_layer(replay *p, const lvr_action *a, lvr_error *err)
{
    lvr_status st = LVR_OK;
    lvr_round_info info;
    lvr_round_get_info(p->machine, &info);
    wait_for_slices(p);
    if (a->layer.layer == 0)
        st = begin_pass(p, a, info.position, err);
    if (!st)
        st = a->layer.unit == LVR_UNIT_NPU ? submit_layer(p, a, err) : run_layer(p, a, err);
    if (st)
        return st;
    p->sum.layer_calls++;
    p->sum.layer_rows += a->layer.n_rows;
    if (a->layer.slot >= 0) {
        p->sum.consumed_bytes += p->c->geometry->layer_bytes[a->layer.layer];
        st = lvr_sim_record_consumed(p->recorder, (uint32_t)a->layer.slot, err);
    }
    return st;
}

/* The features are the target's, but no more than the engine knows at this point. Whatever is not recorded
 * stays, and its fate is not known. */
static void look_up_scores(replay *p, const lvr_action *a)
{
    const bool any_will_do = p->c->policy->ops->keeps_blindly;
    for (uint32_t i = 0; i < a->score.n_rows; i++) {
        p->raw[i] = (lvr_exit_raw){.score = NAN}; /* out of its siblings' features */
        p->unknown[i] =
            i > 0 && !any_will_do &&
            !lvr_outcome_exit(p->c->outcome, p->handles[a->score.rows[i].node], a->score.layer, &p->raw[i]);
        p->r.outside_nodes += p->unknown[i];
    }
}

static lvr_status do_score(replay *p, const lvr_action *a, lvr_error *err)
{
    lvr_round_info info;
    lvr_compute_times t = {0};
    lvr_round_get_info(p->machine, &info);
    look_up_scores(p, a);
    const lvr_status st = run_op(p, LVR_OP_SCORE, a->score.layer, a->score.n_rows, info.position, &t, err);
    p->times.verify1_ns = t.end_ns;
    return st ? st : lvr_sim_device_signal(&p->dev, LVR_EV_SCORED, err);
}

static lvr_status do_head(replay *p, const lvr_action *a, lvr_error *err)
{
    /* A table with one knot knows no price of many rows at once: it counts once a row (lvr_cost_heads_ns). */
    const bool at_once = p->c->cost->op[LVR_OP_HEAD].curve.n > 1;
    const uint32_t calls = at_once ? a->head.n_rows > 0 : a->head.n_rows;
    const uint32_t rows = at_once ? a->head.n_rows : 1;
    lvr_status st = LVR_OK;
    for (uint32_t i = 0; i < calls && !st; i++) {
        lvr_compute_times t = {0};
        st = run_op(p, LVR_OP_HEAD, UINT32_MAX, rows, a->head.position, &t, err);
        p->times.verify1_ns = t.end_ns;
    }
    return st ? st : lvr_sim_device_signal(&p->dev, LVR_EV_HEAD_DONE, err);
}

static lvr_status keep_tokens(replay *p, const lvr_action *a, lvr_error *err)
{
    if (a->commit.n_tokens > p->tokens_cap - p->r.n_tokens)
        return lvr_fail(err, LVR_ERR_INVARIANT,
                        "SIM-TOKENS: request %" PRIu64 " commits more tokens than its text has (%u)",
                        p->req.id, p->req.n_output);
    memcpy(p->r.tokens + p->r.n_tokens, a->commit.tokens, a->commit.n_tokens * sizeof(*a->commit.tokens));
    p->r.n_tokens += a->commit.n_tokens;
    p->r.tokens_per_request[p->index] += a->commit.n_tokens;
    return LVR_OK;
}

static lvr_status keep_round(replay *p, lvr_error *err)
{
    if (!p->c->keep_rounds)
        return LVR_OK;
    if (p->r.n_round_log == p->rounds_cap) {
        const size_t cap = p->rounds_cap ? 2 * p->rounds_cap : 256;
        lvr_sim_round *log = realloc(p->r.round_log, cap * sizeof(*log));
        if (!log)
            return lvr_fail(err, LVR_ERR_NOMEM, "out of memory for %zu rounds", cap);
        p->r.round_log = log;
        p->rounds_cap = cap;
    }
    p->r.round_log[p->r.n_round_log++] = p->pass;
    return LVR_OK;
}

static uint64_t row_layers(const replay *p, const lvr_round_info *info)
{
    uint32_t n = 0;
    uint64_t sum = 0;
    if (info->prefill)
        return (uint64_t)info->n_rows * p->c->geometry->n_layers;
    lvr_round_rows(p->machine, &n);
    for (uint32_t r = 0; r < n; r++)
        sum += lvr_round_last_layers(p->machine)[r] + 1;
    return sum;
}

static void count_pass(replay *p, const lvr_round_info *info)
{
    p->sum.passes++;
    p->sum.row_layers += row_layers(p, info);
    if (info->prefill)
        return;
    uint32_t n = 0;
    const uint32_t *nodes = lvr_round_rows(p->machine, &n);
    p->r.expected_accepted +=
        lvr_expected_accepted(&p->c->policy->calibration, lvr_round_tree(p->machine), nodes, n);
    p->r.rounds++;
    p->r.rounds_per_request[p->index]++;
    p->r.verified_rows += info->n_rows;
    p->r.pruned_rows += info->n_rows - info->n_kept;
    p->r.drafted_rows += info->n_rows - 1;
    p->r.accepted += info->n_accepted;
}

static lvr_status close_pass(replay *p, const lvr_action *a, lvr_compute_times t, lvr_error *err)
{
    lvr_round_info info;
    lvr_round_get_info(p->machine, &info);
    count_pass(p, &info);
    p->pass.prefill = info.prefill;
    p->pass.n_rows = info.n_rows;
    p->pass.n_kept = info.n_kept;
    p->pass.n_accepted = info.n_accepted;
    p->pass.end_ns = t.end_ns;
    p->times.info = info;
    p->times.kept = a->commit.rows;
    p->times.n_kept = a->commit.n_rows;
    p->times.commit_ns = t.end_ns;
    if (p->times.n_draft_steps == 0)
        p->times.draft0_ns = p->times.draft1_ns = p->pass.start_ns;
    const lvr_status st = lvr_sim_record_pass(p->recorder, p->machine, &p->times, err);
    return st ? st : keep_round(p, err);
}

static lvr_status do_commit(replay *p, const lvr_action *a, lvr_error *err)
{
    lvr_round_info info;
    lvr_compute_times t = {0};
    lvr_round_get_info(p->machine, &info);
    lvr_status st = run_op(p, LVR_OP_COMMIT, UINT32_MAX, a->commit.n_rows, info.position, &t, err);
    if (!st)
        st = keep_tokens(p, a, err);
    if (!st)
        st = close_pass(p, a, t, err);
    if (st)
        return st;
    if (p->first_token_ns == 0 && a->commit.n_tokens > 0)
        p->first_token_ns = t.end_ns;
    return lvr_sim_device_signal(&p->dev, LVR_EV_COMMIT_DONE, err);
}

static lvr_status do_action(replay *p, const lvr_action *a, lvr_error *err)
{
    if (a->kind != LVR_ACT_READ)
        p->work = *a;
    switch (a->kind) {
    case LVR_ACT_READ:
        return do_read(p, a, err);
    case LVR_ACT_DRAFT:
        return do_draft(p, a, err);
    case LVR_ACT_LAYER:
        return do_layer(p, a, err);
    case LVR_ACT_SCORE:
        return do_score(p, a, err);
    case LVR_ACT_HEAD:
        return do_head(p, a, err);
    case LVR_ACT_COMMIT:
        return do_commit(p, a, err);
    case LVR_ACT_DONE:
        p->done = true;
        return LVR_OK;
    }
    return lvr_fail(err, LVR_ERR_INVARIANT, "simulation: unknown action %d", (int)a->kind);
}

static lvr_status take_actions(replay *p, lvr_error *err)
{
    lvr_action a;
    lvr_status st = LVR_OK;
    while (!st && lvr_round_next(p->machine, &a))
        st = do_action(p, &a, err);
    return st;
}

/* ---- feeding events ---- */

static void begin_next_pass(replay *p, uint64_t start_ns)
{
    p->pass = (lvr_sim_round){.request = p->index, .start_ns = start_ns};
    p->times = (lvr_sim_pass){0};
}

/* The policy was asked inside the step: its time comes before whatever the step ordered (as hosts record it,
 * round.h). */
static lvr_status plan(replay *p, bool new_pass, lvr_error *err)
{
    lvr_round_info info;
    lvr_compute_times t = {0};
    lvr_round_get_info(p->machine, &info);
    lvr_status st = LVR_OK;
    if (!info.prefill)
        st = run_op(p, LVR_OP_PLAN, UINT32_MAX, lvr_round_tree(p->machine)->n, info.position, &t, err);
    if (new_pass && !info.prefill && p->decode0_ns == 0)
        p->decode0_ns = lvr_sim_device_host_ns(&p->dev);
    return st;
}

/* The machine's step may end the request; DONE is then its only action and no policy was asked. */
static lvr_status step_and_plan(replay *p, const lvr_event *event, bool new_pass, lvr_error *err)
{
    lvr_status st = lvr_round_step(p->machine, event, err);
    if (st)
        return st;
    lvr_action a;
    const bool any = lvr_round_next(p->machine, &a);
    if (any && a.kind == LVR_ACT_DONE) {
        p->done = true;
        return LVR_OK;
    }
    if (new_pass)
        begin_next_pass(p, lvr_sim_device_host_ns(&p->dev));
    st = plan(p, new_pass, err);
    if (!st && any)
        st = do_action(p, &a, err);
    return st;
}

static lvr_status feed_draft(replay *p, lvr_error *err)
{
    const uint32_t first = lvr_round_tree(p->machine)->n;
    const lvr_action *a = &p->draft;
    const uint32_t n = a->draft.n_expand * a->draft.branch;
    const lvr_event event = {
        .kind = LVR_EV_DRAFT_DONE,
        .draft = {.candidates = p->candidates, .n_per_row = a->draft.n_expand ? a->draft.branch : 0}};
    p->draft_out = false;
    if (n > LVR_MAX_TREE_NODES - first)
        return lvr_fail(err, LVR_ERR_INVARIANT, "simulation: a tree of %u nodes and %u more", first, n);
    memcpy(&p->handles[first], p->child_handles, n * sizeof(p->handles[0]));
    return step_and_plan(p, &event, false, err);
}

static lvr_status feed_head(replay *p, lvr_error *err)
{
    const int32_t token = lvr_outcome_token(p->c->outcome, p->outcome_request, p->work.head.position + 1);
    if (token < 0)
        return lvr_fail(err, LVR_ERR_INVARIANT,
                        "SIM-TOKENS: request %" PRIu64
                        " is asked for the token at position %u, beyond its text",
                        p->req.id, p->work.head.position + 1);
    const lvr_event event = {.kind = LVR_EV_HEAD_DONE, .head = {.token = token}};
    return lvr_round_step(p->machine, &event, err);
}

static lvr_status feed(replay *p, const lvr_sim_event *e, lvr_error *err)
{
    const lvr_event plain = {.kind = (lvr_event_kind)e->kind, .slice = {.seq = e->arg}};
    switch ((lvr_event_kind)e->kind) {
    case LVR_EV_DRAFT_DONE:
        if (p->draft_ticket)
            wait_for_ticket(p, LVR_OP_DRAFT);
        p->draft_ticket = false;
        return feed_draft(p, err);
    case LVR_EV_SCORED: {
        const lvr_event scored = {.kind = LVR_EV_SCORED, .scored = {.raw = p->raw, .unknown = p->unknown}};
        return step_and_plan(p, &scored, false, err);
    }
    case LVR_EV_HEAD_DONE:
        return feed_head(p, err);
    case LVR_EV_COMMIT_DONE:
        return step_and_plan(p, &plain, true, err);
    case LVR_EV_SLICE_READY:
        p->sum.reads_fed++;
        return lvr_round_step(p->machine, &plain, err);
    case LVR_EV_LAYER_DONE:
        if (p->ticket_out)
            wait_for_ticket(p, LVR_OP_LAYER);
        p->ticket_out = false;
        return lvr_round_step(p->machine, &plain, err);
    }
    return lvr_fail(err, LVR_ERR_INVARIANT, "simulation: unknown event %u", e->kind);
}

/* ---- requests ---- */

static void close_request(replay *p)
{
    const uint64_t end = lvr_sim_device_host_ns(&p->dev);
    lvr_sim_result *r = &p->r;
    r->prefill_ns += p->decode0_ns - p->begin_ns;
    r->decode_ns += end - p->decode0_ns;
    r->decode_ns_per_request[p->index] = end - p->decode0_ns;
    r->ttft_ns += p->first_token_ns - p->begin_ns; /* divided by the number of requests at the end */
    r->n_prompt += p->req.n_prompt;
}

static uint64_t machine_id(const replay *p)
{
    return p->c->request_ids ? p->c->request_ids[p->index] : p->req.id;
}

static lvr_status record_request(const replay *p, lvr_error *err)
{
    const uint32_t n = p->r.tokens_per_request[p->index];
    const lvr_rec_request rec = {.id = machine_id(p),
                                 .t_arrival_ns = p->begin_ns,
                                 .t_first_token_ns = p->first_token_ns,
                                 .t_done_ns = lvr_sim_device_host_ns(&p->dev),
                                 .n_prompt = p->req.n_prompt,
                                 .n_output = n,
                                 .domain = p->req.domain,
                                 .prompt_hash = p->req.prompt_hash};
    return lvr_sim_record_request(p->recorder, &rec, p->req.prompt, p->r.tokens + (p->r.n_tokens - n), err);
}

/* The committed tokens are the source's own text; fewer only if the context ended. */
static lvr_status check_text(const replay *p, lvr_error *err)
{
    const uint32_t n = p->r.tokens_per_request[p->index];
    const int32_t *got = p->r.tokens + (p->r.n_tokens - n);
    for (uint32_t i = 0; i < n; i++) {
        if (got[i] != p->req.output[i])
            return lvr_fail(err, LVR_ERR_INVARIANT,
                            "SIM-TOKENS: request %" PRIu64 ": output token %u is %d, the text says %d",
                            p->req.id, i, got[i], p->req.output[i]);
    }
    if (n == 0)
        return lvr_fail(err, LVR_ERR_INVARIANT, "SIM-TOKENS: request %" PRIu64 " committed nothing",
                        p->req.id);
    const uint32_t asked = p->c->conditions.n_predict, known = p->req.n_output;
    const uint32_t want = asked > 0 && asked < known ? asked : known;
    if (n < want && p->req.n_prompt + n <= p->c->conditions.n_ctx)
        return lvr_fail(err, LVR_ERR_INVARIANT, "SIM-TOKENS: request %" PRIu64 " committed %u of %u tokens",
                        p->req.id, n, want);
    return LVR_OK;
}

static uint32_t tokens_wanted(const replay *p)
{
    const uint32_t asked = p->c->conditions.n_predict;
    if (asked == 0 || (p->eos_token < 0 && asked > p->req.n_output))
        return p->req.n_output;
    return asked;
}

static lvr_status run_request(replay *p, uint32_t index, lvr_error *err)
{
    p->index = index;
    p->outcome_request = p->c->requests ? p->c->requests[index] : index;
    lvr_outcome_request(p->c->outcome, p->outcome_request, &p->req);
    p->done = false;
    p->begin_ns = lvr_sim_device_host_ns(&p->dev);
    p->decode0_ns = p->first_token_ns = 0;
    begin_next_pass(p, p->begin_ns);
    lvr_status st =
        lvr_round_begin(p->machine, machine_id(p), p->req.prompt, p->req.n_prompt, tokens_wanted(p), err);
    if (!st)
        st = plan(p, true, err);
    while (!st) {
        lvr_sim_event e;
        st = take_actions(p, err);
        if (st || p->done)
            break;
        if (p->c->cancel && atomic_load_explicit(p->c->cancel, memory_order_relaxed)) {
            st = lvr_fail(err, LVR_ERR_INTERRUPTED, "interrupted after %" PRIu64 " simulated tokens",
                          p->r.n_tokens);
            break;
        }
        st = lvr_sim_device_next(&p->dev, &e, err);
        if (!st)
            st = feed(p, &e, err);
    }
    if (st) {
        lvr_error_prefix(err, "request %" PRIu64, p->req.id);
        return st;
    }
    close_request(p);
    st = check_text(p, err);
    return st ? st : record_request(p, err);
}

/* ---- laws ---- */

static uint64_t ring_bytes(const lvr_geometry *g)
{
    uint64_t most = 0;
    for (uint32_t l = 0; l < g->n_layers; l++)
        most = !g->resident[l] && g->layer_bytes[l] > most ? g->layer_bytes[l] : most;
    return most * g->ring_slots;
}

static lvr_status law(bool holds, const char *name, uint64_t a, uint64_t b, lvr_error *err)
{
    if (holds)
        return LVR_OK;
    return lvr_fail(err, LVR_ERR_INVARIANT,
                    "%s does not hold: %" PRIu64 " against %" PRIu64
                    "; this is a bug of the simulator, please report it",
                    name, a, b);
}

static lvr_status check_laws(const replay *p, lvr_error *err)
{
    const totals *s = &p->sum;
    const lvr_geometry *g = p->c->geometry;
    const uint64_t streamed = s->passes * lvr_geometry_stream_bytes(g);
    const uint64_t time = lvr_sim_device_host_ns(&p->dev),
                   spent = p->dev.compute.busy_ns + p->r.flash_wait_ns + p->r.npu_wait_ns;
    lvr_status st = law(p->r.n_tokens > 0 && p->dev.events > 0, "SIM-TOKENS (some work was done)",
                        p->r.n_tokens, p->dev.events, err);
    if (!st)
        st = law(s->consumed_bytes == streamed, "SIM-BYTES (consumed)", s->consumed_bytes, streamed, err);
    if (!st)
        st = law(s->submitted_bytes >= s->consumed_bytes &&
                     s->submitted_bytes - s->consumed_bytes <= ring_bytes(g),
                 "SIM-BYTES (run-ahead)", s->submitted_bytes, s->consumed_bytes, err);
    if (!st)
        st = law(s->reads == s->reads_fed + p->dev.queue.n, "SIM-READS", s->reads,
                 s->reads_fed + p->dev.queue.n, err);
    if (!st)
        st = law(s->layer_calls == s->passes * g->n_layers && s->layer_rows == s->row_layers, "SIM-ROWS",
                 s->layer_rows, s->row_layers, err);
    if (!st)
        st = law(p->r.n_tokens == p->r.accepted + p->r.rounds, "SIM-TOKENS (accepted + rounds)",
                 p->r.n_tokens, p->r.accepted + p->r.rounds, err);
    if (!st)
        st = law(time == spent, "SIM-TIME", time, spent, err);
    return st;
}

/* ---- the run ---- */

static uint32_t outcome_index(const lvr_sim_config *c, uint32_t i)
{
    return c->requests ? c->requests[i] : i;
}

static bool appears_before_end(const lvr_sim_request *r, int32_t token)
{
    for (uint32_t i = 0; i + 1 < r->n_output; i++) {
        if (r->output[i] == token)
            return true;
    }
    return false;
}

/* Texts shorter than was asked for ended with the end-of-text token, which the source does not name: it is
 * the one token that all of them end with and none has before. If there is none (texts cut by the context),
 * each request asks for exactly its text. The difference is how deep the last trees of a request may be. */
static int32_t find_eos(const lvr_sim_config *c, uint32_t n)
{
    int32_t eos = -1;
    if (lvr_outcome_synthetic(c->outcome) || c->conditions.ignore_eos)
        return -1;
    for (uint32_t i = 0; i < n; i++) {
        lvr_sim_request r;
        lvr_outcome_request(c->outcome, outcome_index(c, i), &r);
        if (r.n_output >= c->conditions.n_predict)
            continue;
        const int32_t last = r.output[r.n_output - 1];
        if (eos >= 0 && last != eos)
            return -1;
        eos = last;
    }
    for (uint32_t i = 0; i < n && eos >= 0; i++) {
        lvr_sim_request r;
        lvr_outcome_request(c->outcome, outcome_index(c, i), &r);
        if (appears_before_end(&r, eos))
            return -1;
    }
    return eos;
}

/* The first layer after which the policy needs features that the outcome source lacks; n_layers: none. */
static uint32_t unknown_exit(const lvr_sim_config *c)
{
    const lvr_policy_ops *ops = c->policy->ops;
    const uint32_t n = c->geometry->n_layers;
    for (uint32_t l = 0; l + 1 < n && ops->scores && !ops->keeps_blindly; l++)
        if (ops->scores(c->policy, l, n) && !lvr_outcome_has_exit(c->outcome, l))
            return l;
    return n;
}

static lvr_status check_config(const lvr_sim_config *c, uint32_t n, lvr_error *err)
{
    if (c->flash_unknown && lvr_geometry_stream_bytes(c->geometry) > 0)
        return lvr_fail(
            err, LVR_ERR_CONFIG,
            "the schedule streams %" PRIu64
            " bytes a pass, but the cost model was fitted on traces in which nothing was streamed "
            "and cannot price flash; fit it also on a trace with streamed layers (--resident, "
            "--dram-budget), or name a device (--emulate-flash)",
            lvr_geometry_stream_bytes(c->geometry));
    const uint32_t blind = unknown_exit(c);
    if (blind < c->geometry->n_layers)
        return lvr_fail(
            err, LVR_ERR_CONFIG,
            "policy %s drops rows by what layer %u says of them, which %s does not know; replay an oracle "
            "trace "
            "that has it (lever record --oracle --exit-layers), or leave pruning out (--set prune=off)",
            c->policy->ops->name, blind, lvr_outcome_source(c->outcome));
    if (n == 0)
        return lvr_fail(err, LVR_ERR_USAGE, "simulation: no requests");
    for (uint32_t i = 0; i < n; i++) {
        if (outcome_index(c, i) >= lvr_outcome_n_requests(c->outcome))
            return lvr_fail(err, LVR_ERR_USAGE, "simulation: request %u of %u", outcome_index(c, i),
                            lvr_outcome_n_requests(c->outcome));
    }
    return LVR_OK;
}

static lvr_status allocate_result(replay *p, uint32_t n, lvr_error *err)
{
    for (uint32_t i = 0; i < n; i++) {
        lvr_sim_request r;
        lvr_outcome_request(p->c->outcome, outcome_index(p->c, i), &r);
        p->tokens_cap += r.n_output;
    }
    p->r.n_requests = n;
    p->r.tokens = calloc(p->tokens_cap, sizeof(*p->r.tokens));
    p->r.tokens_per_request = calloc(n, sizeof(*p->r.tokens_per_request));
    p->r.rounds_per_request = calloc(n, sizeof(*p->r.rounds_per_request));
    p->r.decode_ns_per_request = calloc(n, sizeof(*p->r.decode_ns_per_request));
    if (!p->r.tokens || !p->r.tokens_per_request || !p->r.rounds_per_request || !p->r.decode_ns_per_request)
        return lvr_fail(err, LVR_ERR_NOMEM, "simulation: out of memory for the results of %u requests", n);
    return LVR_OK;
}

static lvr_status set_up(replay *p, uint32_t n, lvr_error *err)
{
    const lvr_sim_config *c = p->c;
    const lvr_round_config machine = {.policy = c->policy,
                                      .geometry = c->geometry,
                                      .n_ctx = c->conditions.n_ctx,
                                      .prefill_chunk = c->conditions.prefill_chunk,
                                      .max_rows = c->conditions.max_rows,
                                      .eos_token = p->eos_token,
                                      .seed = c->conditions.seed};
    lvr_status st = allocate_result(p, n, err);
    if (!st)
        st = lvr_sim_device_init(&p->dev, c->cost, err);
    if (!st)
        st = lvr_round_new(&machine, &p->machine, err);
    return st ? st : lvr_sim_recorder_new(c->trace, c->geometry, &p->recorder, err);
}

static void close_result(replay *p)
{
    const lvr_compute_resource *c = &p->dev.compute;
    lvr_sim_result *r = &p->r;
    r->bytes_read = p->sum.consumed_bytes;
    r->events = p->dev.events;
    r->simulated_ns = lvr_sim_device_host_ns(&p->dev);
    r->ttft_ns /= r->n_requests;
    r->flash_busy_ns = p->dev.flash.busy_ns;
    /* Reads that run past the end of the last request are not part of its time. */
    if (p->dev.flash.busy_until_ns > r->simulated_ns)
        r->flash_busy_ns -= p->dev.flash.busy_until_ns - r->simulated_ns;
    if (p->c->geometry->io_mode == LVR_IO_PIPELINED && r->bytes_read > 0)
        r->flash_idle_ns = r->simulated_ns - r->flash_busy_ns;
    r->compute_busy_ns = c->busy_ns;
    r->draft_ns = c->op[LVR_OP_DRAFT].ns + p->dev.npu.op_busy_ns[LVR_OP_DRAFT];
    r->layer_ns = c->op[LVR_OP_LAYER].ns + c->op[LVR_OP_EMBED].ns + p->dev.npu.op_busy_ns[LVR_OP_LAYER];
    r->npu_busy_ns = p->dev.npu.busy_ns;
    r->npu_tickets = p->dev.npu.tickets;
    r->npu_max_rows = p->dev.npu.max_rows[LVR_OP_LAYER];
    r->head_ns = c->op[LVR_OP_HEAD].ns;
    r->plan_ns = c->op[LVR_OP_PLAN].ns;
    r->score_ns = c->op[LVR_OP_SCORE].ns;
    r->commit_ns = c->op[LVR_OP_COMMIT].ns;
    for (int op = 0; op < LVR_OP_COUNT; op++)
        r->max_rows[op] = c->op[op].max_rows;
}

lvr_status lvr_sim_run(const lvr_sim_config *config, lvr_sim_result *ret, lvr_error *err)
{
    const uint32_t n = config->requests ? config->n_requests : lvr_outcome_n_requests(config->outcome);
    lvr_status st = check_config(config, n, err);
    if (st)
        return st;
    replay *p = calloc(1, sizeof(*p));
    if (!p)
        return lvr_fail(err, LVR_ERR_NOMEM, "simulation: out of memory");
    p->c = config;
    p->eos_token = find_eos(config, n);
    st = set_up(p, n, err);
    for (uint32_t i = 0; i < n && !st; i++)
        st = run_request(p, i, err);
    if (!st)
        st = lvr_sim_record_leftovers(p->recorder, err);
    if (!st)
        st = check_laws(p, err);
    if (!st) {
        close_result(p);
        *ret = p->r;
        p->r = (lvr_sim_result){0};
    }
    lvr_sim_result_free(&p->r);
    lvr_sim_recorder_free(p->recorder);
    lvr_round_free(p->machine);
    lvr_sim_device_free(&p->dev);
    free(p);
    return st;
}

/* ---- the price of time ---- */

const lvr_param *lvr_sim_price_param(const lvr_policy *policy)
{
    for (size_t i = 0; i < policy->ops->n_params; i++) {
        if (strcmp(policy->ops->params[i].name, "lambda") == 0)
            return &policy->ops->params[i];
    }
    return NULL;
}

lvr_status lvr_sim_run_at_own_price(const lvr_sim_config *config, lvr_policy *policy, lvr_sim_result *ret,
                                    lvr_error *err)
{
    enum { MAX_REPLAYS = 16 };
    const double close_enough = 1e-3;
    const lvr_param *price = lvr_sim_price_param(policy);
    lvr_sim_config quiet = *config;
    quiet.trace = NULL;
    quiet.keep_rounds = false;
    /* Before anything has been run: the speed of one row a round, by the cost table. */
    double speed = 1e9 / fmax(lvr_cost_round_ns(config->cost, config->geometry, 0, 1, 1, 0), 1.0);
    for (int i = 0; price && i < MAX_REPLAYS; i++) {
        lvr_sim_result r;
        const double before = speed;
        lvr_param_set_number(price, policy->params.bytes, before);
        const lvr_status st = lvr_sim_run(&quiet, &r, err);
        if (st)
            return st;
        speed = lvr_sim_tokens_per_s(&r);
        lvr_sim_result_free(&r);
        if (fabs(speed / before - 1.0) < close_enough)
            break;
    }
    return lvr_sim_run(config, ret, err);
}
