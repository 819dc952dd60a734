/*
 * The DRAM plan, made before the first read: what each part takes and which layers stay resident; and whether
 * the machine, or the container that the process is in, has that much left. Pure arithmetic.
 */
#ifndef LVR_ENGINE_BUDGET_H
#define LVR_ENGINE_BUDGET_H

#include "common/error.h"
#include "common/memory.h"
#include "costmodel/core/cost.h"

/* What the program takes besides the plan: code and libraries, stacks, the heap's own, the round machine,
 * recorders' rings, page tables. INV-BUDGET holds it to this. */
#define LVR_BUDGET_PROGRAM_BYTES (UINT64_C(64) << 20)

typedef struct lvr_budget_parts {
    uint64_t draft_bytes;                     /* draft weights */
    uint64_t embed_bytes;                     /* the target's token embeddings */
    uint64_t head_bytes;                      /* its output norm and head; a tied head is the embeddings */
    uint64_t kv_target_bytes, kv_draft_bytes; /* caches, scratch rows included */
    uint64_t workspace_bytes;                 /* both models' */
    uint64_t ring_bytes;   /* ring_slots x largest streamed layer; 0 if everything is resident */
    uint64_t layers_bytes; /* resident layers */
    uint64_t total_bytes;
} lvr_budget_parts;

/* The sums (ring, layers, total) for a geometry whose resident layers are chosen; the other parts are inputs.
 * Sums that overflow are UINT64_MAX. */
void lvr_budget_sum(const lvr_geometry *g, lvr_budget_parts *parts);

/* The plan that needs least, for any number of resident layers. Not always that without any: the ring may be
 * larger than the whole model. */
lvr_budget_parts lvr_budget_least(const lvr_geometry *g, lvr_residency where, const lvr_budget_parts *inputs);

/* Chooses the most resident layers that fit `budget_bytes` and marks them in g->resident. The sums of parts
 * are filled; the other parts are inputs. Too small whatever is chosen: LVR_ERR_BUDGET stating every part and
 * the least feasible budget. */
lvr_status lvr_budget_plan(lvr_geometry *g, lvr_residency where, uint64_t budget_bytes,
                           lvr_budget_parts *parts, lvr_error *err);

/* The largest budget that this much room allows; UINT64_MAX if nothing limits. */
uint64_t lvr_budget_of_room(const lvr_memory_limit *memory);
/* LVR_ERR_BUDGET if the plan, and the program with it, takes more than is left: what is needed, what is
 * there, which file says so, and how to mend it. */
lvr_status lvr_budget_check_room(const lvr_budget_parts *parts, uint64_t least_bytes,
                                 const lvr_memory_limit *memory, lvr_error *err);

#define LVR_BUDGET_TEXT_BYTES 320u
/* "draft 600.0 + embeddings 70.3 + ... MiB", without the parts that are 0. */
void lvr_budget_text(const lvr_budget_parts *parts, char ret[LVR_BUDGET_TEXT_BYTES]);

#endif
