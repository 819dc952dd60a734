/*
 * The DRAM plan, made before the first read: what each part takes and which layers stay resident. Pure
 * arithmetic.
 */
#ifndef LVR_ENGINE_BUDGET_H
#define LVR_ENGINE_BUDGET_H

#include "common/error.h"
#include "costmodel/core/cost.h"

typedef struct lvr_budget_parts {
    uint64_t draft_bytes;      /* draft weights */
    uint64_t embed_head_bytes; /* target embeddings, norm, head */
    uint64_t kv_bytes;         /* both models', scratch included */
    uint64_t workspace_bytes;
    uint64_t ring_bytes;   /* ring_slots x largest streamed layer; 0 if everything is resident */
    uint64_t layers_bytes; /* resident layers */
    uint64_t total_bytes;
} lvr_budget_parts;

/* Chooses the most resident layers that fit `budget_bytes` and marks them in g->resident (spread over the
 * depth). parts->layers_bytes, ring_bytes and total_bytes are filled; the other parts are inputs. Too small
 * even without resident layers: LVR_ERR_BUDGET stating every part and the least feasible budget. */
lvr_status lvr_budget_plan(lvr_geometry *g, uint64_t budget_bytes, lvr_budget_parts *parts, lvr_error *err);

/* The same three sums for a geometry whose resident layers are already chosen. */
void lvr_budget_sum(const lvr_geometry *g, lvr_budget_parts *parts);

#endif
