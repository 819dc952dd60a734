/*
 * The round machine's laws (costmodel/core/round.h) under a host that answers from pure functions and
 * completes reads, and layers on the accelerator, in random order and at random moments: ROUND-ORDER,
 * ROUND-RING, ROUND-BYTES, ROUND-TOKENS, ROUND-UNIT, ROUND-PRUNE, and that every policy commits the tokens of
 * `ar`, whatever it drops on the way.
 */
#include "common/minmax.h"
#include "common/rng.h"
#include "costmodel/core/round.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define VOCAB 50
#define MAX_OUT 256
#define MAX_PROMPT 9000

/* The "target": a token that depends on the last two tokens only, so that loops and matches both occur. */
static int32_t target_next(int32_t a, int32_t b)
{
    return (int32_t)(lvr_mix64(((uint64_t)(uint32_t)a << 32) | (uint32_t)b) % VOCAB);
}

typedef struct host {
    lvr_round *m;
    lvr_geometry g;
    int32_t history[MAX_PROMPT + MAX_OUT]; /* committed, the root last */
    uint32_t n_history, n_cached, n_draft_cached;
    int32_t out[MAX_OUT];
    uint32_t n_out;
    lvr_action reads[4096];
    uint32_t n_reads;
    uint64_t ready_bytes[LVR_MAX_RING_SLOTS]; /* in each ring slot */
    uint64_t pass_bytes;
    uint32_t staged, next_layer;
    lvr_row rows[LVR_MAX_VERIFY_NODES]; /* of the pass's last layer so far */
    uint32_t n_rows;
    bool scored;                                  /* since that layer */
    uint32_t n_scored, n_dropped;                 /* SCORE actions, rows */
    lvr_unit unit;                                /* of the pass */
    uint32_t n_npu_layers, n_cpu_layers, n_joint; /* n_joint: moments with a DRAFT and a LAYER action */
    uint32_t n_prompt_passes, most_prompt_rows;
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

/* ROUND-PRUNE: rows of the layer before, the root and each row's parent among them, in their scratch rows. */
static void check_rows(host *h, const lvr_action *a)
{
    const lvr_row *rows = a->layer.rows;
    const uint32_t n = a->layer.n_rows;
    cr_assert(a->layer.layer > 0 || !a->layer.kept, "the first layer has all rows");
    cr_assert(!a->layer.kept || h->scored, "rows are dropped by their scores only");
    cr_assert(n > 0 && (a->layer.layer == 0 || (a->layer.kept ? n < h->n_rows : n == h->n_rows)));
    for (uint32_t r = 0; r < n; r++) {
        cr_assert_lt(rows[r].parent_row, (int32_t)r, "parents come first");
        cr_assert((rows[r].parent_row < 0) == (r == 0),
                  "ROUND-PRUNE: one root, and no row without its parent");
        if (a->layer.layer == 0) {
            cr_assert_eq(rows[r].slot, r);
            continue;
        }
        const lvr_row *was = &h->rows[a->layer.kept ? a->layer.kept[r] : r];
        cr_assert(!a->layer.kept || a->layer.kept[r] < h->n_rows);
        cr_assert_eq(was->slot, rows[r].slot, "ROUND-PRUNE: a row of the layer before");
        cr_assert_eq(was->node, rows[r].node);
        cr_assert_eq(was->token, rows[r].token);
        if (r > 0)
            cr_assert_eq(h->rows[was->parent_row].slot, rows[rows[r].parent_row].slot, "the same parent");
    }
    cr_assert_eq(rows[0].slot, 0, "ROUND-PRUNE: the root stays");
    h->n_dropped += a->layer.layer > 0 ? h->n_rows - n : 0;
    memcpy(h->rows, rows, n * sizeof rows[0]);
    h->n_rows = n;
}

/* What was dropped went through the layers up to the one it was scored after, the rest through all. */
static void check_last_layers(const host *h)
{
    uint32_t n = 0, left = 0;
    lvr_round_info info;
    lvr_round_get_info(h->m, &info);
    lvr_round_rows(h->m, &n);
    const uint32_t *last = lvr_round_last_layers(h->m);
    for (uint32_t r = 0; r < n; r++) {
        const bool stayed = left < h->n_rows && h->rows[left].slot == r;
        left += stayed;
        cr_assert((last[r] == h->g.n_layers - 1) == stayed, "row %u of %u: last layer %u", r, n, last[r]);
    }
    cr_assert_eq(left, h->n_rows);
    cr_assert_eq(info.n_rows, n);
    cr_assert_eq(info.n_kept, h->n_rows);
}

static void answer_score(host *h, const lvr_action *a)
{
    static const lvr_exit_raw raw[LVR_MAX_VERIFY_NODES];
    cr_assert_eq(a->score.layer + 1, h->next_layer, "rows are scored after the layer that is done");
    cr_assert_gt(h->next_layer, 0u, "never after the last layer");
    cr_assert(!h->scored, "once a layer");
    cr_assert_eq(a->score.n_rows, h->n_rows);
    cr_assert_gt(a->score.n_rows, 1u, "a root alone is not scored");
    h->scored = true;
    h->n_scored++;
    const lvr_event ev = {.kind = LVR_EV_SCORED, .scored = {.raw = raw}};
    cr_assert_eq(lvr_round_step(h->m, &ev, NULL), LVR_OK);
    cr_assert_eq(lvr_round_step(h->m, &ev, NULL), LVR_ERR_INVARIANT, "scores come once");
}

static void answer_layer(host *h, const lvr_action *a)
{
    cr_assert_eq(a->layer.layer, h->next_layer, "ROUND-ORDER: layers in order");
    if (a->layer.layer == 0)
        h->unit = a->layer.unit;
    cr_assert_eq(a->layer.unit, h->unit, "ROUND-UNIT: one unit a pass");
    if (!a->layer.prefill)
        check_rows(h, a);
    h->scored = false;
    if (a->layer.layer == 0 && a->layer.prefill) {
        h->n_prompt_passes++;
        h->most_prompt_rows = lvr_max_u32(h->most_prompt_rows, a->layer.n_rows);
    }
    for (uint32_t r = 0; a->layer.prefill && r < a->layer.n_rows; r++) {
        cr_assert_eq(a->layer.rows[r].position, h->n_cached + r, "a prompt's rows continue the cache");
        cr_assert_eq(a->layer.rows[r].token, h->history[h->n_cached + r]);
    }
    h->n_npu_layers += a->layer.unit == LVR_UNIT_NPU;
    h->n_cpu_layers += a->layer.unit == LVR_UNIT_CPU;
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
    check_last_layers(h);
    cr_assert_lt(a->head.row, h->n_rows);
    if (h->g.head == LVR_HEAD_EAGER)
        cr_assert_eq(a->head.n_rows, a->head.row == 0 ? h->n_rows : 0, "eager: all rows with the first");
    else
        cr_assert_eq(a->head.n_rows, 1);
    const int32_t node = h->rows[a->head.row].node;
    cr_assert_eq(rows[h->rows[a->head.row].slot], (uint32_t)node);
    const lvr_event ev = {
        .kind = LVR_EV_HEAD_DONE,
        .head = {.token = target_next(token_at(tree, h, node, 1), tree->nodes[node].token)}};
    cr_assert_eq(lvr_round_step(h->m, &ev, NULL), LVR_OK);
}

static void answer_commit(host *h, const lvr_action *a)
{
    if (!a->commit.prefill)
        cr_assert_eq(a->commit.n_tokens, a->commit.n_rows, "ROUND-TOKENS: accepted + 1");
    for (uint32_t i = 1; i < a->commit.n_rows; i++)
        cr_assert_lt(a->commit.rows[i - 1], a->commit.rows[i]);
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

static void answer(host *h, const lvr_action *a, bool *done)
{
    switch (a->kind) {
    case LVR_ACT_DRAFT:
        answer_draft(h, a);
        break;
    case LVR_ACT_LAYER:
        answer_layer(h, a);
        break;
    case LVR_ACT_SCORE:
        answer_score(h, a);
        break;
    case LVR_ACT_HEAD:
        answer_head(h, a);
        break;
    case LVR_ACT_COMMIT:
        answer_commit(h, a);
        break;
    case LVR_ACT_DONE:
        h->stop = a->done.stop;
        *done = true;
        break;
    case LVR_ACT_READ:
        break;
    }
}

/* pending[0] is what the CPU does, pending[1] what the accelerator does. */
static void take_compute(host *h, const lvr_action *a, lvr_action pending[2], bool has[2])
{
    const bool npu = (a->kind == LVR_ACT_LAYER && a->layer.unit == LVR_UNIT_NPU) ||
                     (a->kind == LVR_ACT_DRAFT && a->draft.unit == LVR_UNIT_NPU);
    cr_assert(!has[npu], "one compute action at a time on a unit");
    pending[npu] = *a;
    has[npu] = true;
    if (!has[0] || !has[1])
        return;
    h->n_joint++;
    cr_assert_eq(pending[0].kind, LVR_ACT_DRAFT, "ROUND-UNIT: only a draft step runs beside a layer");
    cr_assert_eq(pending[0].draft.n_expand, 0, "ROUND-UNIT: of a prompt pass");
    cr_assert(pending[1].layer.prefill, "ROUND-UNIT: of a prompt pass");
}

static void run_request(host *h, uint64_t request, uint32_t n_prompt, uint32_t n_predict)
{
    static int32_t prompt[MAX_PROMPT];
    cr_assert_leq(n_prompt, MAX_PROMPT);
    for (uint32_t i = 0; i < n_prompt; i++)
        prompt[i] = (int32_t)(lvr_mix64(request * 1000 + i) % VOCAB);
    memcpy(h->history, prompt, n_prompt * sizeof prompt[0]);
    h->n_history = n_prompt;
    h->n_out = h->n_cached = h->n_draft_cached = 0;
    cr_assert_eq(lvr_round_begin(h->m, request, prompt, n_prompt, n_predict, NULL), LVR_OK);
    lvr_action pending[2] = {{0}}, a;
    bool has[2] = {false, false}, done = false;
    while (!done) {
        while (lvr_round_next(h->m, &a)) {
            if (a.kind == LVR_ACT_READ)
                take_read(h, &a);
            else
                take_compute(h, &a, pending, has);
        }
        const bool any = has[0] || has[1];
        if (h->n_reads > 0 && (!any || lvr_rng_below(&h->rng, 2))) {
            finish_read(h);
            continue;
        }
        cr_assert(any, "no progress");
        const uint32_t unit = has[0] && has[1] ? (uint32_t)lvr_rng_below(&h->rng, 2) : has[1];
        has[unit] = false;
        const lvr_action now = pending[unit];
        answer(h, &now, &done);
    }
}

static lvr_geometry geometry(lvr_io_mode mode, uint32_t ring, double resident)
{
    lvr_geometry g = {.n_layers = 5, .slice_bytes = 8192, .ring_slots = ring, .io_mode = mode};
    for (uint32_t l = 0; l < 5; l++)
        g.layer_bytes[l] = 4096 * (l + 1);
    lvr_geometry_set_resident(&g, resident, LVR_RESIDENT_SPREAD);
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
    /* Cheaper from 11 rows on. */
    p->cost.npu[LVR_OP_LAYER] =
        (lvr_npu_cost){.n = 2, .bucket = {8, 64}, .ns = {2e5, 2.2e5}, .launch_ns = 1e4, .sync_ns = 1e4};
}

typedef struct setting {
    const char *policy;
    lvr_io_mode mode;
    lvr_place place, place_draft;
    lvr_head head;
    uint32_t ring, n_ctx;
    uint32_t chunk, n_prompt; /* 0: 7, 20 */
    double resident;
    uint64_t timing_seed;
    int32_t eos;
    const int32_t *more_eos; /* [2] or NULL */
    const char *prune;       /* of `random`; NULL: as it is */
} setting;

typedef struct outcome {
    int32_t out[MAX_OUT * 2];
    uint32_t n;
    lvr_stop stop;
    uint64_t read_log;
    uint32_t n_npu_layers, n_cpu_layers, n_joint, n_prompt_passes, most_prompt_rows, n_scored, n_dropped;
} outcome;

/* Two requests. */
static void run(const setting *s, outcome *ret)
{
    static host h;
    lvr_policy p;
    memset(&h, 0, sizeof h);
    policy_of(&p, s->policy);
    if (s->prune)
        cr_assert_eq(lvr_policy_set(&p, "test", "prune", s->prune, NULL), LVR_OK);
    h.g = geometry(s->mode, s->ring, s->resident);
    h.g.place = s->place;
    h.g.place_draft = s->place_draft;
    h.g.head = s->head;
    lvr_rng_init(&h.rng, s->timing_seed, "timing");
    const lvr_round_config c = {.policy = &p,
                                .geometry = &h.g,
                                .n_ctx = s->n_ctx,
                                .prefill_chunk = s->chunk ? s->chunk : 7,
                                .max_rows = 64,
                                .eos_token = s->eos,
                                .more_eos = s->more_eos,
                                .n_more_eos = s->more_eos ? 2 : 0,
                                .seed = 3};
    cr_assert_eq(lvr_round_new(&c, &h.m, NULL), LVR_OK);
    *ret = (outcome){0};
    run_request(&h, 1, s->n_prompt ? s->n_prompt : 20, 60);
    memcpy(ret->out, h.out, h.n_out * sizeof h.out[0]);
    ret->n = h.n_out;
    run_request(&h, 2, 1, 40);
    memcpy(ret->out + ret->n, h.out, h.n_out * sizeof h.out[0]);
    ret->n += h.n_out;
    ret->stop = h.stop;
    ret->read_log = h.read_log;
    ret->n_npu_layers = h.n_npu_layers;
    ret->n_cpu_layers = h.n_cpu_layers;
    ret->n_joint = h.n_joint;
    ret->n_prompt_passes = h.n_prompt_passes;
    ret->most_prompt_rows = h.most_prompt_rows;
    ret->n_scored = h.n_scored;
    ret->n_dropped = h.n_dropped;
    lvr_round_free(h.m);
}

static void expect_like(const setting *s, const outcome *ref)
{
    outcome got;
    run(s, &got);
    cr_assert_eq(got.n, ref->n, "%s, %s, mode %d, ring %u: %u tokens, expected %u", s->policy,
                 lvr_place_name(s->place), (int)s->mode, s->ring, got.n, ref->n);
    cr_assert_eq(memcmp(got.out, ref->out, got.n * sizeof ref->out[0]), 0, "%s differs from ar", s->policy);
    cr_assert_eq(got.stop, ref->stop);
    if (s->place == LVR_PLACE_CPU)
        cr_assert_eq(got.n_npu_layers, 0);
    if (s->place == LVR_PLACE_NPU) {
        cr_assert_eq(got.n_cpu_layers, 0);
        cr_assert((got.n_joint > 0) == (strcmp(s->policy, "ar") != 0), "prompt chunks are drafted meanwhile");
    }
}

Test(round_machine, laws_hold_and_policies_agree)
{
    const uint32_t n = (uint32_t)lvr_n_policies;
    for (int32_t eos = -1; eos < 8; eos += 4) {
        for (uint32_t n_ctx = 45; n_ctx <= 200; n_ctx += 155) {
            outcome ref;
            const setting plain = {
                .policy = "ar", .mode = LVR_IO_SERIAL, .ring = 1, .resident = 1, .n_ctx = n_ctx, .eos = eos};
            run(&plain, &ref);
            cr_assert_gt(ref.n, 0);
            for (uint32_t i = 0; i < n * 2 * 4 * 3 * 3; i++) {
                const uint32_t ring = 1 + i / n / 2 % 4, resident = i / n / 8 % 3;
                const setting s = {.policy = lvr_policies[i % n]->name,
                                   .mode = (lvr_io_mode)(i / n % 2),
                                   .place = (lvr_place)(i / n / 24),
                                   .place_draft = (lvr_place)(i % 3),
                                   .head = i / 7 % 2 ? LVR_HEAD_EAGER : LVR_HEAD_LAZY,
                                   .ring = ring,
                                   .resident = resident * 0.4,
                                   .timing_seed = i,
                                   .n_ctx = n_ctx,
                                   .eos = eos};
                expect_like(&s, &ref);
            }
        }
    }
}

/* Rows dropped at random after every layer: from none to all but the root. */
Test(round_machine, round_prune)
{
    static const char *const prunes[] = {"0", "0.2", "0.6", "1"};
    outcome ref;
    const setting plain = {.policy = "ar", .ring = 1, .resident = 1, .n_ctx = 200, .eos = -1};
    run(&plain, &ref);
    for (uint32_t i = 0; i < 4 * 2 * 3 * 3 * 3; i++) {
        outcome got;
        const setting s = {.policy = "random",
                           .prune = prunes[i % 4],
                           .mode = (lvr_io_mode)(i / 4 % 2),
                           .place = (lvr_place)(i / 8 % 3),
                           .ring = 1 + i / 24 % 3,
                           .resident = i / 72 * 0.4,
                           .timing_seed = i,
                           .n_ctx = 200,
                           .eos = -1};
        run(&s, &got);
        cr_assert_eq(got.n, ref.n);
        cr_assert_eq(memcmp(got.out, ref.out, got.n * sizeof ref.out[0]), 0, "prune %s", s.prune);
        cr_assert_eq(got.n_scored > 0, i % 4 > 0);
        cr_assert_eq(got.n_dropped > 0, i % 4 > 0);
    }
}

/* What the host cannot tell stays, but not without its parent. */
Test(round_machine, unknown_rows_stay)
{
    lvr_policy p;
    policy_of(&p, "random");
    cr_assert_eq(lvr_policy_set(&p, "test", "prune", "1", NULL), LVR_OK);
    const lvr_geometry g = geometry(LVR_IO_SERIAL, 1, 1);
    const lvr_round_config c = {
        .policy = &p, .geometry = &g, .n_ctx = 64, .prefill_chunk = 8, .max_rows = 64, .eos_token = -1};
    static lvr_candidate cand[LVR_MAX_EXPANSIONS * LVR_MAX_BRANCH];
    static const lvr_exit_raw raw[LVR_MAX_VERIFY_NODES];
    bool unknown[LVR_MAX_VERIFY_NODES];
    lvr_row rows[LVR_MAX_VERIFY_NODES];
    uint32_t n_checked = 0;
    lvr_round *m = NULL;
    cr_assert_eq(lvr_round_new(&c, &m, NULL), LVR_OK);
    for (uint64_t request = 0; request < 20; request++) {
        const int32_t prompt = 1;
        uint32_t n_scored = 0;
        bool done = false;
        cr_assert_eq(lvr_round_begin(m, request, &prompt, 1, 40, NULL), LVR_OK);
        lvr_action a;
        while (!done && lvr_round_next(m, &a)) {
            lvr_event ev = {0};
            switch (a.kind) {
            case LVR_ACT_DRAFT:
                for (uint32_t i = 0; i < a.draft.n_expand * a.draft.branch; i++)
                    cand[i] = (lvr_candidate){.token = (int32_t)(10 + i % a.draft.branch), .p_draft = 0.1f};
                ev = (lvr_event){.kind = LVR_EV_DRAFT_DONE,
                                 .draft = {.candidates = cand, .n_per_row = a.draft.branch}};
                break;
            case LVR_ACT_LAYER:
                for (uint32_t r = 1; r < a.layer.n_rows && n_scored == 1 && a.layer.layer == 1; r++) {
                    const lvr_row *was = &rows[a.layer.kept ? a.layer.kept[r] : r];
                    cr_assert_eq(was->slot % 3, 0, "only unknown rows are left");
                    n_checked++;
                }
                ev.kind = LVR_EV_LAYER_DONE;
                break;
            case LVR_ACT_SCORE:
                for (uint32_t r = 0; r < a.score.n_rows; r++)
                    unknown[r] = a.score.rows[r].slot % 3 == 0;
                memcpy(rows, a.score.rows, a.score.n_rows * sizeof rows[0]);
                n_scored++;
                ev = (lvr_event){.kind = LVR_EV_SCORED, .scored = {.raw = raw, .unknown = unknown}};
                break;
            case LVR_ACT_HEAD:
                ev = (lvr_event){.kind = LVR_EV_HEAD_DONE, .head = {.token = 5}};
                break;
            case LVR_ACT_COMMIT:
                n_scored = 0;
                ev.kind = LVR_EV_COMMIT_DONE;
                break;
            case LVR_ACT_READ:
            case LVR_ACT_DONE:
                done = true;
                continue;
            }
            cr_assert_eq(lvr_round_step(m, &ev, NULL), LVR_OK);
        }
    }
    cr_assert_gt(n_checked, 0u);
    lvr_round_free(m);
}

/* A prompt takes as few passes as its chunks allow, whatever their size; the text does not depend on it. */
Test(round_machine, prompts_in_chunks_of_any_size)
{
    static const char *const names[] = {"ar", "chain", "lever", "random"};
    static const uint32_t chunks[] = {1, 7, 64, 512, LVR_MAX_PREFILL_ROWS};
    static const uint32_t prompts[] = {2, 512, 513, 514, 8200};
    for (size_t p = 0; p < sizeof prompts / sizeof prompts[0]; p++) {
        outcome ref;
        setting s = {.policy = "ar",
                     .mode = LVR_IO_PIPELINED,
                     .ring = 2,
                     .n_ctx = MAX_PROMPT,
                     .n_prompt = prompts[p],
                     .eos = -1};
        run(&s, &ref);
        for (uint32_t i = 0; i < 5 * 3; i++) {
            outcome got;
            s.chunk = chunks[i % 5];
            s.place = (lvr_place)(i / 5);
            s.policy = names[(i + p) % 4];
            s.timing_seed = i;
            run(&s, &got);
            const uint32_t rows = prompts[p] - 1;
            cr_assert_eq(got.n, ref.n);
            cr_assert_eq(memcmp(got.out, ref.out, got.n * sizeof ref.out[0]), 0);
            cr_assert_eq(got.n_prompt_passes, (rows + s.chunk - 1) / s.chunk,
                         "%u rows in chunks of %u: %u passes", rows, s.chunk, got.n_prompt_passes);
            cr_assert_eq(got.most_prompt_rows, lvr_min_u32(rows, s.chunk));
        }
    }
}

Test(round_machine, any_of_several_tokens_ends_a_text)
{
    static const int32_t ends[] = {3, 5};
    static const char *const names[] = {"ar", "chain", "lever", "random"};
    outcome ref;
    setting s = {.policy = "ar", .ring = 1, .resident = 1, .n_ctx = 200, .eos = -1, .more_eos = ends};
    run(&s, &ref);
    uint32_t n_ends = 0;
    for (uint32_t i = 0; i < ref.n; i++)
        n_ends += ref.out[i] == 3 || ref.out[i] == 5;
    cr_assert(n_ends > 0 && n_ends <= 2, "%u ends in two texts", n_ends);
    for (uint32_t i = 0; i < 4; i++) {
        s.policy = names[i];
        expect_like(&s, &ref);
    }
}

/* Placement by price: prompt chunks of seven rows stay on the CPU, wide trees go to the accelerator. */
Test(round_machine, places_by_price)
{
    outcome got;
    const setting wide = {.policy = "random",
                          .mode = LVR_IO_PIPELINED,
                          .place = LVR_PLACE_AUTO,
                          .ring = 2,
                          .n_ctx = 200,
                          .eos = -1};
    setting narrow = wide;
    narrow.policy = "ar";
    run(&wide, &got);
    cr_assert_gt(got.n_npu_layers, 0);
    cr_assert_gt(got.n_cpu_layers, 0);
    cr_assert_eq(got.n_joint, 0);
    run(&narrow, &got);
    cr_assert_eq(got.n_npu_layers, 0);
}

Test(round_machine, timing_moves_when_not_which)
{
    for (int place = 0; place < 3; place++) {
        uint64_t first = 0;
        for (uint64_t seed = 0; seed < 20; seed++) {
            outcome got;
            const setting s = {.policy = "lever",
                               .mode = LVR_IO_PIPELINED,
                               .place = (lvr_place)place,
                               .ring = 3,
                               .resident = 0.4,
                               .timing_seed = seed,
                               .n_ctx = 200,
                               .eos = -1};
            run(&s, &got);
            if (seed == 0)
                first = got.read_log;
            cr_assert_eq(got.read_log, first, "the order of reads depends on timing");
        }
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
    policy_of(&p, "ar");
    c.prefill_chunk = LVR_MAX_PREFILL_ROWS + 1;
    cr_assert_eq(lvr_round_new(&c, &m, &err), LVR_ERR_CONFIG);
    cr_assert(strstr(err.msg, "prompt pass"), "%s", err.msg);
    c.prefill_chunk = 8;
    c.max_rows = LVR_MAX_VERIFY_NODES + 1;
    cr_assert_eq(lvr_round_new(&c, &m, &err), LVR_ERR_CONFIG, "trees stay smaller than prompt passes");
    c.max_rows = 0;
    cr_assert_eq(lvr_round_new(&c, &m, &err), LVR_ERR_CONFIG);
}
