#include "engine/budget.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MIB (1024.0 * 1024.0)

static uint64_t add_sat(uint64_t a, uint64_t b)
{
    uint64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

static uint64_t mul_sat(uint64_t a, uint64_t b)
{
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

/* A slot of the ring holds any streamed layer, so it is as large as the largest of them. */
void lvr_budget_sum(const lvr_geometry *g, lvr_budget_parts *parts)
{
    uint64_t largest = 0;
    parts->layers_bytes = 0;
    for (uint32_t l = 0; l < g->n_layers; l++) {
        if (g->resident[l])
            parts->layers_bytes = add_sat(parts->layers_bytes, g->layer_bytes[l]);
        else if (g->layer_bytes[l] > largest)
            largest = g->layer_bytes[l];
    }
    parts->ring_bytes = mul_sat(g->ring_slots, largest);
    parts->total_bytes = add_sat(parts->draft_bytes, parts->embed_head_bytes);
    parts->total_bytes = add_sat(parts->total_bytes, parts->kv_bytes);
    parts->total_bytes = add_sat(parts->total_bytes, parts->workspace_bytes);
    parts->total_bytes = add_sat(parts->total_bytes, parts->ring_bytes);
    parts->total_bytes = add_sat(parts->total_bytes, parts->layers_bytes);
}

static lvr_budget_parts with_resident(lvr_geometry *g, uint32_t n_resident, const lvr_budget_parts *inputs)
{
    lvr_budget_parts parts = *inputs;
    lvr_geometry_set_resident(g, g->n_layers ? (double)n_resident / g->n_layers : 1);
    lvr_budget_sum(g, &parts);
    return parts;
}

static lvr_status fail_too_small(uint64_t budget_bytes, const lvr_budget_parts *least, lvr_error *err)
{
    return lvr_fail(
        err, LVR_ERR_BUDGET,
        "the DRAM budget of %.1f MiB is too small: at least %" PRIu64 " bytes (%.1f MiB) are needed: "
        "draft %.1f + target embeddings and head %.1f + KV caches %.1f + workspace %.1f + staging ring %.1f "
        "+ "
        "resident layers %.1f MiB; raise --dram-budget, or lower --context, --ring or the draft's size",
        (double)budget_bytes / MIB, least->total_bytes, (double)least->total_bytes / MIB,
        (double)least->draft_bytes / MIB, (double)least->embed_head_bytes / MIB,
        (double)least->kv_bytes / MIB, (double)least->workspace_bytes / MIB, (double)least->ring_bytes / MIB,
        (double)least->layers_bytes / MIB);
}

lvr_status lvr_budget_plan(lvr_geometry *g, uint64_t budget_bytes, lvr_budget_parts *parts, lvr_error *err)
{
    lvr_geometry trial = *g;
    lvr_budget_parts least = {.total_bytes = UINT64_MAX};
    for (uint32_t n = trial.n_layers;; n--) {
        const lvr_budget_parts with_n = with_resident(&trial, n, parts);
        if (with_n.total_bytes <= budget_bytes) {
            memcpy(g->resident, trial.resident, sizeof g->resident);
            *parts = with_n;
            return LVR_OK;
        }
        /* Not always the plan without resident layers: the ring may be larger than the whole model. */
        if (with_n.total_bytes < least.total_bytes)
            least = with_n;
        if (n == 0)
            break;
    }
    return fail_too_small(budget_bytes, &least, err);
}
