#include "sim/resources/npu.h"

#include <math.h>

static uint64_t whole(double ns)
{
    return ns > 0 ? (uint64_t)llround(ns) : 0;
}

void lvr_npu_resource_init(lvr_npu_resource *n, const lvr_cost_table *cost)
{
    *n = (lvr_npu_resource){.cost = cost};
}

lvr_npu_times lvr_npu_resource_run(lvr_npu_resource *n, uint64_t submit_ns, lvr_op op, uint32_t rows,
                                   uint32_t context)
{
    const lvr_npu_cost *c = &n->cost->npu[op];
    const uint64_t launched = submit_ns + whole(c->launch_ns);
    lvr_npu_times t = {.submit_ns = submit_ns, .bucket = lvr_bucket_of(c->bucket, c->n, rows)};
    t.start_ns = launched > n->free_ns ? launched : n->free_ns;
    t.end_ns = t.start_ns + whole(lvr_npu_run_ns(c, rows, context));
    t.seen_ns = t.end_ns + whole(c->sync_ns);
    n->free_ns = t.end_ns;
    n->busy_ns += t.end_ns - t.start_ns;
    n->op_busy_ns[op] += t.end_ns - t.start_ns;
    n->tickets++;
    n->max_rows[op] = rows > n->max_rows[op] ? rows : n->max_rows[op];
    return t;
}
