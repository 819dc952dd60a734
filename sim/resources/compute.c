#include "sim/resources/compute.h"

#include <math.h>

void lvr_compute_resource_init(lvr_compute_resource *c, const lvr_cost_table *cost)
{
    *c = (lvr_compute_resource){.cost = cost};
}

lvr_compute_times lvr_compute_resource_run(lvr_compute_resource *c, uint64_t now_ns, lvr_op op, uint32_t rows,
                                           uint32_t context)
{
    const double ns = lvr_op_cost_ns(&c->cost->op[op], rows, context);
    const uint64_t service = ns > 0 ? (uint64_t)llround(ns) : 0;
    const uint64_t start = now_ns > c->free_ns ? now_ns : c->free_ns;

    lvr_compute_op_stats *s = &c->op[op];
    s->ns += service;
    s->calls++;
    s->rows += rows;
    if (rows > s->max_rows)
        s->max_rows = rows;
    if (context > s->max_context)
        s->max_context = context;
    c->busy_ns += service;
    c->free_ns = start + service;
    return (lvr_compute_times){.start_ns = start, .end_ns = c->free_ns};
}
