#include "engine/budget.h"

#include "common/minmax.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MIB (1024.0 * 1024.0)

static uint64_t mul_sat(uint64_t a, uint64_t b)
{
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

/* ---- sums ---- */

/* A slot of the ring holds any streamed layer, so it is as large as the largest of them. */
void lvr_budget_sum(const lvr_geometry *g, lvr_budget_parts *parts)
{
    parts->layers_bytes = 0;
    for (uint32_t l = 0; l < g->n_layers; l++)
        if (g->resident[l])
            parts->layers_bytes = lvr_add_sat_u64(parts->layers_bytes, g->layer_bytes[l]);
    parts->ring_bytes = mul_sat(g->ring_slots, lvr_geometry_largest_streamed(g));
    const uint64_t all[] = {parts->draft_bytes,     parts->embed_bytes,    parts->head_bytes,
                            parts->kv_target_bytes, parts->kv_draft_bytes, parts->workspace_bytes,
                            parts->ring_bytes,      parts->layers_bytes};
    parts->total_bytes = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        parts->total_bytes = lvr_add_sat_u64(parts->total_bytes, all[i]);
}

void lvr_budget_text(const lvr_budget_parts *parts, char ret[LVR_BUDGET_TEXT_BYTES])
{
    const struct {
        const char *name;
        uint64_t bytes;
    } all[] = {
        {"draft", parts->draft_bytes},
        {"embeddings", parts->embed_bytes},
        {"head", parts->head_bytes},
        {"KV cache", parts->kv_target_bytes},
        {"draft's KV cache", parts->kv_draft_bytes},
        {"workspace", parts->workspace_bytes},
        {"staging ring", parts->ring_bytes},
        {"resident layers", parts->layers_bytes},
    };
    size_t n = 0;
    ret[0] = '\0';
    for (size_t i = 0; i < sizeof all / sizeof *all && n < LVR_BUDGET_TEXT_BYTES; i++)
        if (all[i].bytes > 0)
            n += (size_t)snprintf(ret + n, LVR_BUDGET_TEXT_BYTES - n, "%s%s %.1f", n ? " + " : "",
                                  all[i].name, (double)all[i].bytes / MIB);
    if (n < LVR_BUDGET_TEXT_BYTES)
        snprintf(ret + n, LVR_BUDGET_TEXT_BYTES - n, " MiB");
}

/* ---- planning ---- */

static lvr_budget_parts with_resident(lvr_geometry *g, uint32_t n_resident, lvr_residency where,
                                      const lvr_budget_parts *inputs)
{
    lvr_budget_parts parts = *inputs;
    lvr_geometry_set_resident(g, g->n_layers ? (double)n_resident / g->n_layers : 1, where);
    lvr_budget_sum(g, &parts);
    return parts;
}

lvr_budget_parts lvr_budget_least(const lvr_geometry *g, lvr_residency where, const lvr_budget_parts *inputs)
{
    lvr_geometry trial = *g;
    lvr_budget_parts least = with_resident(&trial, 0, where, inputs);
    for (uint32_t n = 1; n <= trial.n_layers; n++) {
        const lvr_budget_parts with_n = with_resident(&trial, n, where, inputs);
        if (with_n.total_bytes < least.total_bytes)
            least = with_n;
    }
    return least;
}

static lvr_status fail_too_small(uint64_t budget_bytes, const lvr_budget_parts *least, lvr_error *err)
{
    char text[LVR_BUDGET_TEXT_BYTES];
    lvr_budget_text(least, text);
    return lvr_fail(err, LVR_ERR_BUDGET,
                    "the DRAM budget of %.1f MiB is too small: at least %" PRIu64
                    " bytes (%.1f MiB) are needed: %s; raise --dram-budget, or lower --context, --ring, "
                    "--prefill-chunk or the draft's size, or use --kv-type q8_0",
                    (double)budget_bytes / MIB, least->total_bytes, (double)least->total_bytes / MIB, text);
}

lvr_status lvr_budget_plan(lvr_geometry *g, lvr_residency where, uint64_t budget_bytes,
                           lvr_budget_parts *parts, lvr_error *err)
{
    lvr_geometry trial = *g;
    for (uint32_t n = trial.n_layers;; n--) {
        const lvr_budget_parts with_n = with_resident(&trial, n, where, parts);
        if (with_n.total_bytes <= budget_bytes) {
            memcpy(g->resident, trial.resident, sizeof g->resident);
            *parts = with_n;
            return LVR_OK;
        }
        if (n == 0)
            break;
    }
    const lvr_budget_parts least = lvr_budget_least(g, where, parts);
    return fail_too_small(budget_bytes, &least, err);
}

/* ---- room ---- */

uint64_t lvr_budget_of_room(const lvr_memory_limit *memory)
{
    if (memory->room_bytes == UINT64_MAX)
        return UINT64_MAX;
    return memory->room_bytes > LVR_BUDGET_PROGRAM_BYTES ? memory->room_bytes - LVR_BUDGET_PROGRAM_BYTES : 0;
}

lvr_status lvr_budget_check_room(const lvr_budget_parts *parts, uint64_t least_bytes,
                                 const lvr_memory_limit *memory, lvr_error *err)
{
    const uint64_t budget = lvr_budget_of_room(memory);
    if (parts->total_bytes <= budget)
        return LVR_OK;
    char text[LVR_BUDGET_TEXT_BYTES], mend[192];
    lvr_budget_text(parts, text);
    if (least_bytes <= budget)
        snprintf(mend, sizeof mend, "keep fewer layers resident: --dram-budget auto, or %.1f MiB at most",
                 (double)budget / MIB);
    else
        snprintf(mend, sizeof mend,
                 "make more room, or lower --context, --ring, --prefill-chunk or the draft's size, or use "
                 "--kv-type q8_0");
    return lvr_fail(err, LVR_ERR_BUDGET,
                    "not enough memory: %.1f MiB are needed (%s) besides %.0f MiB for the program itself, "
                    "%.1f MiB are left: %s says %.1f MiB, of which %.1f MiB are in use; the least feasible "
                    "budget is %" PRIu64 " bytes (%.1f MiB); %s",
                    (double)parts->total_bytes / MIB, text, (double)LVR_BUDGET_PROGRAM_BYTES / MIB,
                    (double)memory->room_bytes / MIB, memory->source, (double)memory->limit_bytes / MIB,
                    (double)memory->used_bytes / MIB, least_bytes, (double)least_bytes / MIB, mend);
}
