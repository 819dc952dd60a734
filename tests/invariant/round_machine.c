/*
 * The round machine's laws (costmodel/core/round.h) under a host that answers from pure functions and
 * completes reads in random order and at random moments: ROUND-ORDER, ROUND-RING, ROUND-BYTES, ROUND-TOKENS,
 * and that every policy commits the tokens of `ar`.
 */
#include "common/rng.h"
#include "costmodel/core/round.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define VOCAB 50
#define MAX_OUT 256

/* The "target": a token that depends on the last two tokens only, so that loops and matches both occur. */
static int32_t target_next(int32_t a, int32_t b)
{
    return (int32_t)(lvr_mix64(((uint64_t)(uint32_t)a << 32) | (uint32_t)b) % VOCAB);
}

typedef struct host {
    lvr_round *m;
    lvr_geometry g;
    int32_t history[512]; /* committed, the root last */
    uint32_t n_history, n_cached, n_draft_cached;
    int32_t out[MAX_OUT];
    uint32_t n_out;
    lvr_action reads[4096];
    uint32_t n_reads;
    uint64_t ready_bytes[LVR_MAX_RING_SLOTS]; /* in each ring slot */
    uint64_t pass_bytes;
    uint32_t staged, next_layer;
    lvr_rng rng;
    lvr_stop stop;
    uint64_t read_log; /* hash of the order of READ actions */
} host;

static int32_t token_at(const lvr_tree *tree, const host *h, int32_t node, int back)
{
    while (back-- > 0) {
        if (node < 0)
            return -1;
        if (tree->nodes[node].parent < 0)
            return back >= 0 && h->n_history >= 2u + (uint32_t)back
                       ? h->history[h->n_history - 2 - (uint32_t)back]
                       : 0;
        node = tree->nodes[node].parent;
    }
    return tree->nodes[node].token;
}

static void answer_draft(host *h, const lvr_action *a)
{
    static lvr_candidate cand[LVR_MAX_EXPANSIONS * LVR_MAX_BRANCH];
    const lvr_tree *tree = lvr_round_tree(h->m);
    const uint32_t n_catch_up = a->draft.n_rows - a->draft.n_expand;
    for (uint32_t i = 0; i < n_catch_up; i++) {
        cr_assert_eq(a->draft.rows[i].node, -1);
        cr_assert_eq(a->draft.rows[i].position, h->n_draft_cached + i,
                     "catch-up rows continue the draft's cache");
        cr_assert_eq(a->draft.rows[i].token, h->history[h->n_draft_cached + i]);
    }
    h->n_draft_cached += n_catch_up;
    for (uint32_t e = 0; e < a->draft.n_expand; e++) {
        const lvr_row *row = &a->draft.rows[n_catch_up + e];
        cr_assert_eq(h->n_draft_cached, h->n_history - 1, "the draft knows all that precedes the root");
        const int32_t truth = target_next(token_at(tree, h, row->node, 1), row->token);
        const uint32_t hit =
            (uint32_t)(lvr_mix64((uint64_t)truth * 977 + row->position) % (a->draft.branch + 1));
        for (uint32_t c = 0; c < a->draft.branch; c++)
            cand[e * a->draft.branch + c] =
                (lvr_candidate){.token = c == hit ? truth : (truth + 1 + (int32_t)c) % VOCAB,
                                .p_draft = 0.5f / (float)(c + 1)};
    }
    const lvr_event ev = {.kind = LVR_EV_DRAFT_DONE,
                          .draft = {.candidates = cand, .n_per_row = a->draft.branch}};
    cr_assert_eq(lvr_round_step(h->m, &ev, NULL), LVR_OK);
}

static void answer_layer(host *h, const lvr_action *a)
{
    cr_assert_eq(a->layer.layer, h->next_layer, "ROUND-ORDER: layers in order");
    if (!h->g.resident[a->layer.layer]) {
        cr_assert_eq(h->ready_bytes[a->layer.slot], h->g.layer_bytes[a->layer.layer],
                     "ROUND-ORDER: all slices ready");
        h->pass_bytes += h->ready_bytes[a->layer.slot];
        h->ready_bytes[a->layer.slot] = 0;
        h->staged--;
    }
    h->next_layer = (h->next_layer + 1) % h->g.n_layers;
    if (h->next_layer == 0) {
        cr_assert_eq(h->pass_bytes, lvr_geometry_stream_bytes(&h->g), "ROUND-BYTES");
        h->pass_bytes = 0;
    }
    const lvr_event ev = {.kind = LVR_EV_LAYER_DONE};
    cr_assert_eq(lvr_round_step(h->m, &ev, NULL), LVR_OK);
}

static void answer_head(host *h, const lvr_action *a)
{
    const lvr_tree *tree = lvr_round_tree(h->m);
    uint32_t n = 0;
    const uint32_t *rows = lvr_round_rows(h->m, &n);
    cr_assert_lt(a->head.row, n);
    const int32_t node = (int32_t)rows[a->head.row];
    const lvr_event ev = {
        .kind = LVR_EV_HEAD_DONE,
        .head = {.token = target_next(token_at(tree, h, node, 1), tree->nodes[node].token)}};
    cr_assert_eq(lvr_round_step(h->m, &ev, NULL), LVR_OK);
}

static void answer_commit(host *h, const lvr_action *a)
{
    if (!a->commit.prefill)
        cr_assert_eq(a->commit.n_tokens, a->commit.n_rows, "ROUND-TOKENS: accepted + 1");
    h->n_cached += a->commit.n_rows;
    h->n_draft_cached += a->commit.n_draft_nodes;
    for (uint32_t i = 0; i < a->commit.n_tokens; i++) {
        h->out[h->n_out++] = a->commit.tokens[i];
        h->history[h->n_history++] = a->commit.tokens[i];
    }
    const lvr_event ev = {.kind = LVR_EV_COMMIT_DONE};
    cr_assert_eq(lvr_round_step(h->m, &ev, NULL), LVR_OK);
}

static void finish_read(host *h)
{
    const uint32_t i = (uint32_t)lvr_rng_below(&h->rng, h->n_reads);
    const lvr_action a = h->reads[i];
    h->reads[i] = h->reads[--h->n_reads];
    h->ready_bytes[a.read.slot] += a.read.bytes;
    const lvr_event ev = {.kind = LVR_EV_SLICE_READY, .slice = {.seq = a.read.seq}};
    cr_assert_eq(lvr_round_step(h->m, &ev, NULL), LVR_OK);
    lvr_event again = ev;
    cr_assert_eq(lvr_round_step(h->m, &again, NULL), LVR_ERR_INVARIANT, "a slice comes once");
}

static void take_read(host *h, const lvr_action *a)
{
    if (a->read.slice == 0)
        h->staged++;
    cr_assert_leq(h->staged, h->g.ring_slots, "ROUND-RING");
    h->read_log = lvr_mix64(h->read_log ^ (a->read.layer * 1000003u + a->read.slice));
    h->reads[h->n_reads++] = *a;
}

static void run_request(host *h, uint64_t request, uint32_t n_prompt, uint32_t n_predict)
{
    int32_t prompt[300];
    for (uint32_t i = 0; i < n_prompt; i++)
        prompt[i] = (int32_t)(lvr_mix64(request * 1000 + i) % VOCAB);
    memcpy(h->history, prompt, n_prompt * sizeof prompt[0]);
    h->n_history = n_prompt;
    h->n_out = h->n_cached = h->n_draft_cached = 0;
    cr_assert_eq(lvr_round_begin(h->m, request, prompt, n_prompt, n_predict, NULL), LVR_OK);
    lvr_action pending = {0}, a;
    bool has_pending = false, done = false;
    while (!done) {
        while (lvr_round_next(h->m, &a)) {
            if (a.kind == LVR_ACT_READ) {
                take_read(h, &a);
                continue;
            }
            cr_assert(!has_pending, "one compute action at a time");
            pending = a;
            has_pending = true;
        }
        if (h->n_reads > 0 && (!has_pending || lvr_rng_below(&h->rng, 2))) {
            finish_read(h);
            continue;
        }
        cr_assert(has_pending, "no progress");
        has_pending = false;
        switch (pending.kind) {
        case LVR_ACT_DRAFT:
            answer_draft(h, &pending);
            break;
        case LVR_ACT_LAYER:
            answer_layer(h, &pending);
            break;
        case LVR_ACT_HEAD:
            answer_head(h, &pending);
            break;
        case LVR_ACT_COMMIT:
            answer_commit(h, &pending);
            break;
        case LVR_ACT_DONE:
            h->stop = pending.done.stop;
            done = true;
            break;
        case LVR_ACT_READ:
            break;
        }
    }
}

static lvr_geometry geometry(lvr_io_mode mode, uint32_t ring, double resident)
{
    lvr_geometry g = {.n_layers = 5, .slice_bytes = 8192, .ring_slots = ring, .io_mode = mode};
    for (uint32_t l = 0; l < 5; l++)
        g.layer_bytes[l] = 4096 * (l + 1);
    lvr_geometry_set_resident(&g, resident);
    return g;
}

static void policy_of(lvr_policy *p, const char *name)
{
    cr_assert_eq(lvr_policy_init(p, name, NULL), LVR_OK);
    p->has_cost = true;
    for (int op = 0; op < LVR_OP_COUNT; op++)
        p->cost.op[op].curve = (lvr_curve){.n = 2, .rows = {1, 64}, .ns = {1e5, 1e6}};
    p->cost.flash = (lvr_flash_params){
        .t0_ns = 1000, .lane_bytes_per_s = 1000000, .max_bytes_per_s = 4000000, .depth = 4};
}

/* Runs two requests and returns the tokens of both. */
static uint32_t run(const char *policy, lvr_io_mode mode, uint32_t ring, double resident,
                    uint64_t timing_seed, uint32_t n_ctx, int32_t eos, int32_t *ret_out, lvr_stop *ret_stop,
                    uint64_t *ret_read_log)
{
    static host h;
    lvr_policy p;
    memset(&h, 0, sizeof h);
    policy_of(&p, policy);
    h.g = geometry(mode, ring, resident);
    lvr_rng_init(&h.rng, timing_seed, "timing");
    const lvr_round_config c = {.policy = &p,
                                .geometry = &h.g,
                                .n_ctx = n_ctx,
                                .prefill_chunk = 7,
                                .max_rows = 64,
                                .eos_token = eos,
                                .seed = 3};
    cr_assert_eq(lvr_round_new(&c, &h.m, NULL), LVR_OK);
    run_request(&h, 1, 20, 60);
    uint32_t n = h.n_out;
    memcpy(ret_out, h.out, n * sizeof h.out[0]);
    run_request(&h, 2, 1, 40);
    memcpy(ret_out + n, h.out, h.n_out * sizeof h.out[0]);
    n += h.n_out;
    *ret_stop = h.stop;
    *ret_read_log = h.read_log;
    lvr_round_free(h.m);
    return n;
}

Test(round_machine, laws_hold_and_policies_agree)
{
    int32_t ref[MAX_OUT * 2], got[MAX_OUT * 2];
    lvr_stop stop, ref_stop;
    uint64_t log;
    for (int eos = -1; eos < 8; eos += 4) {
        for (uint32_t n_ctx = 45; n_ctx <= 200; n_ctx += 155) {
            const uint32_t n_ref = run("ar", LVR_IO_SERIAL, 1, 1.0, 0, n_ctx, eos, ref, &ref_stop, &log);
            cr_assert_gt(n_ref, 0);
            const char *names[] = {"ar", "chain", "lever", "random"};
            for (int p = 0; p < 4; p++)
                for (int mode = 0; mode < 2; mode++)
                    for (uint32_t ring = 1; ring <= 4; ring++)
                        for (int res = 0; res <= 2; res++) {
                            const uint32_t n = run(names[p], (lvr_io_mode)mode, ring, res * 0.4,
                                                   ring * 7u + (unsigned)res, n_ctx, eos, got, &stop, &log);
                            cr_assert_eq(n, n_ref, "%s mode %d ring %u: %u tokens, expected %u", names[p],
                                         mode, ring, n, n_ref);
                            cr_assert_eq(memcmp(got, ref, n * sizeof ref[0]), 0, "%s differs from ar",
                                         names[p]);
                            cr_assert_eq(stop, ref_stop);
                        }
        }
    }
}

Test(round_machine, timing_moves_when_not_which)
{
    int32_t out[MAX_OUT * 2];
    lvr_stop stop;
    uint64_t first = 0, log;
    for (uint64_t seed = 0; seed < 20; seed++) {
        run("lever", LVR_IO_PIPELINED, 3, 0.4, seed, 200, -1, out, &stop, &log);
        if (seed == 0)
            first = log;
        cr_assert_eq(log, first, "the order of reads depends on timing");
    }
}

Test(round_machine, refuses_what_cannot_be)
{
    lvr_policy p;
    lvr_error err = LVR_ERROR_INIT;
    policy_of(&p, "chain");
    lvr_geometry g = geometry(LVR_IO_PIPELINED, 2, 0);
    lvr_round_config c = {
        .policy = &p, .geometry = &g, .n_ctx = 16, .prefill_chunk = 8, .max_rows = 8, .eos_token = -1};
    lvr_round *m = NULL;
    cr_assert_eq(lvr_round_new(&c, &m, &err), LVR_OK);
    int32_t prompt[17] = {0};
    cr_assert_eq(lvr_round_begin(m, 0, prompt, 17, 1, &err), LVR_ERR_BUDGET);
    cr_assert_eq(lvr_round_begin(m, 0, prompt, 0, 1, &err), LVR_ERR_USAGE);
    cr_assert_eq(lvr_round_begin(m, 0, prompt, 1, 0, &err), LVR_ERR_USAGE);
    const lvr_event ev = {.kind = LVR_EV_LAYER_DONE};
    cr_assert_eq(lvr_round_step(m, &ev, &err), LVR_ERR_INVARIANT);
    lvr_round_free(m);
    policy_of(&p, "lever");
    p.has_cost = false;
    cr_assert_eq(lvr_round_new(&c, &m, &err), LVR_ERR_CONFIG);
    c.max_rows = 0;
    cr_assert_eq(lvr_round_new(&c, &m, &err), LVR_ERR_CONFIG);
}
