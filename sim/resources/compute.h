/* One CPU complex: one operator at a time, as the round machine issues them. Times come from the cost table.
 */
#ifndef LVR_SIM_RESOURCES_COMPUTE_H
#define LVR_SIM_RESOURCES_COMPUTE_H

#include "costmodel/core/cost.h"

typedef struct lvr_compute_op_stats {
    uint64_t ns, calls, rows;
    uint32_t max_rows, max_context;
} lvr_compute_op_stats;

typedef struct lvr_compute_resource {
    const lvr_cost_table *cost; /* borrowed */
    uint64_t free_ns;           /* end of the work accepted so far */
    uint64_t busy_ns;
    lvr_compute_op_stats op[LVR_OP_COUNT];
} lvr_compute_resource;

typedef struct lvr_compute_times {
    uint64_t start_ns, end_ns;
} lvr_compute_times;

void lvr_compute_resource_init(lvr_compute_resource *c, const lvr_cost_table *cost);
/* Starts when the work accepted before has ended. */
lvr_compute_times lvr_compute_resource_run(lvr_compute_resource *c, uint64_t now_ns, lvr_op op, uint32_t rows,
                                           uint32_t context);

#endif
