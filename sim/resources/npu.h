/* One accelerator: tickets one at a time, in order of submission; launch and sync delays overlap with nothing
 * but the CPU. Times come from the cost table. */
#ifndef LVR_SIM_RESOURCES_NPU_H
#define LVR_SIM_RESOURCES_NPU_H

#include "costmodel/core/cost.h"

typedef struct lvr_npu_resource {
    const lvr_cost_table *cost; /* borrowed */
    uint64_t free_ns;           /* end of the tickets accepted so far */
    uint64_t busy_ns, op_busy_ns[LVR_OP_COUNT];
    uint64_t tickets;
    uint32_t max_rows[LVR_OP_COUNT];
} lvr_npu_resource;

typedef struct lvr_npu_times {
    uint64_t submit_ns, start_ns, end_ns;
    uint64_t seen_ns; /* the host goes on */
    uint32_t bucket;
} lvr_npu_times;

void lvr_npu_resource_init(lvr_npu_resource *n, const lvr_cost_table *cost);
/* The table must have terms for `op`. */
lvr_npu_times lvr_npu_resource_run(lvr_npu_resource *n, uint64_t submit_ns, lvr_op op, uint32_t rows,
                                   uint32_t context);

#endif
