/* Which slices are read when, and whether a layer is there. */
#include "costmodel/core/round_internal.h"

#include "common/minmax.h"
#include <string.h>

static uint32_t slices_of(const lvr_geometry *g, uint32_t layer)
{
    return (uint32_t)((g->layer_bytes[layer] + g->slice_bytes - 1) / g->slice_bytes);
}

static void issue_layer(lvr_round *m)
{
    const lvr_geometry *g = m->config.geometry;
    const uint64_t k = m->issued++;
    const uint32_t layer = m->streamed[k % m->n_streamed];
    const uint32_t slot = (uint32_t)(k % g->ring_slots);
    staged_layer *s = &m->slots[slot];
    *s = (staged_layer){.first_seq = m->next_seq, .n_slices = slices_of(g, layer)};
    memset(&m->slice_ready[(size_t)slot * m->max_slices], 0, m->max_slices * sizeof m->slice_ready[0]);
    for (uint32_t i = 0; i < s->n_slices; i++) {
        const uint64_t offset = (uint64_t)i * g->slice_bytes;
        const uint64_t left = g->layer_bytes[layer] - offset;
        lvr_action *a = lvr_round_push(m, LVR_ACT_READ);
        a->read.seq = m->next_seq++;
        a->read.layer = layer;
        a->read.slice = i;
        a->read.slot = slot;
        a->read.offset = offset;
        a->read.bytes = lvr_min_u64(left, g->slice_bytes);
        a->read.round = k / m->n_streamed;
    }
}

/* The instance that the current pass needs for a streamed layer. */
static uint64_t instance_needed(const lvr_round *m, uint32_t layer)
{
    return m->pass * m->n_streamed + m->instance_of[layer];
}

void lvr_round_pump_reads(lvr_round *m)
{
    const lvr_geometry *g = m->config.geometry;
    if (m->n_streamed == 0)
        return;
    if (g->io_mode == LVR_IO_PIPELINED) {
        while (m->issued - m->freed < g->ring_slots)
            issue_layer(m);
        return;
    }
    if (m->phase == VERIFYING && !g->resident[m->layer] && m->issued == instance_needed(m, m->layer))
        issue_layer(m);
}

bool lvr_round_layer_ready(const lvr_round *m)
{
    const lvr_geometry *g = m->config.geometry;
    if (g->resident[m->layer])
        return true;
    const uint64_t k = instance_needed(m, m->layer);
    const staged_layer *s = &m->slots[k % g->ring_slots];
    return k < m->issued && s->n_ready == s->n_slices;
}

lvr_status lvr_round_on_slice_ready(lvr_round *m, uint64_t seq, lvr_error *err)
{
    const uint32_t ring_slots = m->config.geometry->ring_slots;
    for (uint64_t k = m->freed; k < m->issued; k++) {
        const uint32_t slot = (uint32_t)(k % ring_slots);
        staged_layer *s = &m->slots[slot];
        if (seq < s->first_seq || seq >= s->first_seq + s->n_slices)
            continue;
        bool *ready = &m->slice_ready[(size_t)slot * m->max_slices + (seq - s->first_seq)];
        if (*ready)
            break;
        *ready = true;
        s->n_ready++;
        return LVR_OK;
    }
    return lvr_fail(err, LVR_ERR_INVARIANT, "round machine: slice %llu is not outstanding",
                    (unsigned long long)seq);
}

void lvr_round_list_streamed(lvr_round *m)
{
    const lvr_geometry *g = m->config.geometry;
    m->max_slices = 1;
    for (uint32_t l = 0; l < g->n_layers; l++) {
        if (g->resident[l])
            continue;
        m->instance_of[l] = m->n_streamed;
        m->streamed[m->n_streamed++] = l;
        const uint32_t n = slices_of(g, l);
        m->max_slices = lvr_max_u32(m->max_slices, n);
    }
}

int32_t lvr_round_slot(const lvr_round *m, uint32_t layer)
{
    const lvr_geometry *g = m->config.geometry;
    return g->resident[layer] ? -1 : (int32_t)(instance_needed(m, layer) % g->ring_slots);
}
