#include "sim/sim_recorder.h"

#include <stdlib.h>

enum { LANE_RECORDS = 1 << 14 };

struct lvr_sim_recorder {
    lvr_trace_lane *lane;
    uint32_t n_layers, ring_slots, max_slices;
    uint64_t layer_offset[LVR_MAX_LAYERS]; /* as if the layers stood one after another from 0 */
    lvr_rec_flash *pending;                /* [ring_slots][max_slices] */
    uint32_t *n_pending;                   /* by slot */
};

static uint32_t most_slices(const lvr_geometry *g)
{
    uint64_t most = 1;
    for (uint32_t l = 0; l < g->n_layers; l++) {
        const uint64_t n = (g->layer_bytes[l] + g->slice_bytes - 1) / g->slice_bytes;
        most = n > most ? n : most;
    }
    return (uint32_t)most;
}

lvr_status lvr_sim_recorder_new(lvr_trace_writer *writer, const lvr_geometry *g, lvr_sim_recorder **ret,
                                lvr_error *err)
{
    if (!writer) {
        *ret = NULL;
        return LVR_OK;
    }
    lvr_sim_recorder *r = calloc(1, sizeof(*r));
    if (!r)
        return lvr_fail(err, LVR_ERR_NOMEM, "out of memory for the simulated trace");
    r->n_layers = g->n_layers;
    r->ring_slots = g->ring_slots;
    r->max_slices = most_slices(g);
    for (uint32_t l = 1; l < g->n_layers; l++)
        r->layer_offset[l] = r->layer_offset[l - 1] + g->layer_bytes[l - 1];
    r->pending = calloc((size_t)r->ring_slots * r->max_slices, sizeof(*r->pending));
    r->n_pending = calloc(r->ring_slots, sizeof(*r->n_pending));
    lvr_status st = r->pending && r->n_pending
                        ? lvr_trace_lane_new(writer, LANE_RECORDS, &r->lane, err)
                        : lvr_fail(err, LVR_ERR_NOMEM, "out of memory for the simulated trace");
    if (st) {
        lvr_sim_recorder_free(r);
        return st;
    }
    *ret = r;
    return LVR_OK;
}

void lvr_sim_recorder_free(lvr_sim_recorder *r)
{
    if (!r)
        return;
    free(r->pending);
    free(r->n_pending);
    free(r);
}

lvr_status lvr_sim_record_op(lvr_sim_recorder *r, uint64_t round, uint32_t layer, lvr_op op, uint32_t rows,
                             uint32_t context, lvr_compute_times t, lvr_error *err)
{
    if (!r)
        return LVR_OK;
    const lvr_rec_kernel rec = {.round = round,
                                .model = op == LVR_OP_DRAFT || op == LVR_OP_PLAN,
                                .layer = layer,
                                .op = (uint32_t)op,
                                .unit = LVR_UNIT_CPU,
                                .rows = rows,
                                .bucket = rows,
                                .context = context,
                                .t_submit_ns = t.start_ns,
                                .t_start_ns = t.start_ns,
                                .t_end_ns = t.end_ns};
    return lvr_trace_put_wait(r->lane, LVR_STREAM_KERNELS, &rec, err);
}

lvr_status lvr_sim_record_ticket(lvr_sim_recorder *r, uint64_t round, uint32_t layer, lvr_op op,
                                 uint32_t rows, uint32_t context, const lvr_npu_times *t, lvr_error *err)
{
    if (!r)
        return LVR_OK;
    const lvr_rec_kernel rec = {.round = round,
                                .layer = layer,
                                .op = (uint32_t)op,
                                .unit = LVR_UNIT_NPU,
                                .rows = rows,
                                .bucket = t->bucket,
                                .context = context,
                                .t_submit_ns = t->submit_ns,
                                .t_start_ns = t->start_ns,
                                .t_end_ns = t->end_ns};
    return lvr_trace_put_wait(r->lane, LVR_STREAM_KERNELS, &rec, err);
}

void lvr_sim_record_submitted(lvr_sim_recorder *r, const lvr_action *read, uint64_t submit_ns,
                              lvr_flash_times t, uint32_t in_flight)
{
    if (!r)
        return;
    const uint32_t slot = read->read.slot;
    r->pending[(size_t)slot * r->max_slices + r->n_pending[slot]++] =
        (lvr_rec_flash){.round = read->read.round,
                        .layer = read->read.layer,
                        .slice = read->read.slice,
                        .offset = r->layer_offset[read->read.layer] + read->read.offset,
                        .bytes = read->read.bytes,
                        .queue_depth = in_flight,
                        .t_submit_ns = submit_ns,
                        .t_start_ns = t.start_ns,
                        .t_end_ns = t.end_ns};
}

lvr_status lvr_sim_record_consumed(lvr_sim_recorder *r, uint32_t slot, lvr_error *err)
{
    lvr_status st = LVR_OK;
    if (!r)
        return LVR_OK;
    for (uint32_t i = 0; i < r->n_pending[slot] && !st; i++)
        st =
            lvr_trace_put_wait(r->lane, LVR_STREAM_FLASH, &r->pending[(size_t)slot * r->max_slices + i], err);
    r->n_pending[slot] = 0;
    return st;
}

lvr_status lvr_sim_record_leftovers(lvr_sim_recorder *r, lvr_error *err)
{
    lvr_status st = LVR_OK;
    for (uint32_t slot = 0; r && slot < r->ring_slots && !st; slot++) {
        for (uint32_t i = 0; i < r->n_pending[slot]; i++)
            r->pending[(size_t)slot * r->max_slices + i].round = UINT64_MAX;
        st = lvr_sim_record_consumed(r, slot, err);
    }
    return st;
}

static int32_t row_of(const uint32_t *rows, uint32_t n, int32_t node)
{
    for (uint32_t i = 0; i < n; i++) {
        if (rows[i] == (uint32_t)node)
            return (int32_t)i;
    }
    return -1;
}

static lvr_status record_tree(lvr_sim_recorder *r, const lvr_round *machine, const lvr_sim_pass *pass,
                              lvr_error *err)
{
    lvr_status st = LVR_OK;
    uint32_t n = 0, next_kept = 0;
    const uint32_t *rows = lvr_round_rows(machine, &n), *last_layers = lvr_round_last_layers(machine);
    const lvr_tree *tree = lvr_round_tree(machine);
    for (uint32_t i = 0; i < n && !st; i++) {
        const lvr_node *v = &tree->nodes[rows[i]];
        const bool kept = next_kept < pass->n_kept && pass->kept[next_kept] == i;
        next_kept += kept;
        const lvr_rec_round_node rec = {.request = pass->info.request,
                                        .round = pass->info.round,
                                        .node = i,
                                        .parent = v->parent < 0 ? -1 : row_of(rows, i, v->parent),
                                        .token = v->token,
                                        .p_draft = v->p_draft,
                                        .last_layer = last_layers[i],
                                        .accepted = kept};
        st = lvr_trace_put_wait(r->lane, LVR_STREAM_ROUND_NODES, &rec, err);
    }
    return st;
}

static uint32_t depth_of(const lvr_round *machine)
{
    uint32_t n = 0, depth = 0;
    const uint32_t *rows = lvr_round_rows(machine, &n);
    const lvr_tree *tree = lvr_round_tree(machine);
    for (uint32_t i = 0; i < n; i++)
        depth = tree->nodes[rows[i]].depth > depth ? tree->nodes[rows[i]].depth : depth;
    return depth;
}

lvr_status lvr_sim_record_pass(lvr_sim_recorder *r, const lvr_round *machine, const lvr_sim_pass *pass,
                               lvr_error *err)
{
    if (!r)
        return LVR_OK;
    const lvr_rec_round rec = {.request = pass->info.request,
                               .round = pass->info.round,
                               .pos = pass->info.position,
                               .prefill = pass->info.prefill,
                               .n_nodes = pass->info.n_rows,
                               .depth = depth_of(machine),
                               .n_kept = pass->info.n_kept,
                               .n_accepted = pass->info.n_accepted,
                               .n_drafted = pass->info.n_drafted,
                               .n_draft_steps = pass->n_draft_steps,
                               .t_draft0_ns = pass->draft0_ns,
                               .t_draft1_ns = pass->draft1_ns,
                               .t_verify0_ns = pass->verify0_ns,
                               .t_verify1_ns = pass->verify1_ns,
                               .t_commit_ns = pass->commit_ns};
    const lvr_status st = lvr_trace_put_wait(r->lane, LVR_STREAM_ROUNDS, &rec, err);
    return st || pass->info.prefill ? st : record_tree(r, machine, pass, err);
}

static lvr_status record_tokens(lvr_sim_recorder *r, uint64_t request, uint32_t first_pos,
                                const int32_t *tokens, uint32_t n, bool output, lvr_error *err)
{
    lvr_status st = LVR_OK;
    for (uint32_t i = 0; i < n && !st; i++) {
        const lvr_rec_token rec = {
            .request = request, .pos = first_pos + i, .token = tokens[i], .is_output = output};
        st = lvr_trace_put_wait(r->lane, LVR_STREAM_TOKENS, &rec, err);
    }
    return st;
}

lvr_status lvr_sim_record_request(lvr_sim_recorder *r, const lvr_rec_request *request, const int32_t *prompt,
                                  const int32_t *output, lvr_error *err)
{
    if (!r)
        return LVR_OK;
    lvr_status st = record_tokens(r, request->id, 0, prompt, request->n_prompt, false, err);
    if (!st)
        st = record_tokens(r, request->id, request->n_prompt, output, request->n_output, true, err);
    return st ? st : lvr_trace_put_wait(r->lane, LVR_STREAM_REQUESTS, request, err);
}
