/* The event queue: total order, heap property under random use, growth; and the resources against closed
 * forms. */
#include "common/rng.h"
#include "sim/device.h"
#include <criterion/criterion.h>
#include <stdlib.h>

static lvr_event_queue new_queue(void)
{
    lvr_event_queue q;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_event_queue_init(&q, 0, &err), LVR_OK, "%s", err.msg);
    return q;
}

static void push(lvr_event_queue *q, uint64_t time, uint32_t priority, uint64_t arg)
{
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_event_queue_push(q, time, priority, 0, arg, &err), LVR_OK, "%s", err.msg);
}

Test(sim_events, order_is_time_then_priority_then_sequence)
{
    lvr_event_queue q = new_queue();
    push(&q, 5, 1, 40);
    push(&q, 5, 0, 20);
    push(&q, 5, 0, 30);
    push(&q, 9, 0, 50);
    push(&q, 1, 7, 10);
    for (uint64_t want = 10; want <= 50; want += 10) {
        lvr_sim_event e;
        cr_assert(lvr_event_queue_pop(&q, &e));
        cr_expect_eq(e.arg, want);
    }
    lvr_sim_event e;
    cr_expect_not(lvr_event_queue_pop(&q, &e));
    lvr_event_queue_free(&q);
}

static bool heap_holds(const lvr_event_queue *q)
{
    for (size_t i = 1; i < q->n; i++) {
        const lvr_sim_event *p = &q->heap[(i - 1) / 4], *c = &q->heap[i];
        if (p->time_ns > c->time_ns || (p->time_ns == c->time_ns && p->priority > c->priority))
            return false;
    }
    return true;
}

Test(sim_events, heap_property_and_order_under_random_use)
{
    lvr_event_queue q = new_queue();
    lvr_rng rng;
    lvr_rng_init(&rng, 5, "events");
    lvr_sim_event last = {0}, e;
    for (int i = 0; i < 20000; i++) {
        if (lvr_rng_below(&rng, 5) < 3) {
            push(&q, last.time_ns + lvr_rng_below(&rng, 50), (uint32_t)lvr_rng_below(&rng, 2), 0);
        } else if (lvr_event_queue_pop(&q, &e)) {
            cr_assert(e.time_ns >= last.time_ns);
            last = e;
        }
        if (i % 97 == 0)
            cr_assert(heap_holds(&q));
    }
    while (lvr_event_queue_pop(&q, &e)) {
        const bool after = e.time_ns > last.time_ns || e.priority > last.priority || e.seq > last.seq;
        cr_assert(after);
        last = e;
    }
    lvr_event_queue_free(&q);
}

Test(sim_events, steady_state_does_not_grow)
{
    lvr_event_queue q = new_queue();
    lvr_sim_event e;
    for (uint64_t i = 0; i < 10; i++)
        push(&q, i, 0, i);
    const lvr_sim_event *heap = q.heap;
    for (uint64_t i = 0; i < 100000; i++) {
        cr_assert(lvr_event_queue_pop(&q, &e));
        push(&q, e.time_ns + 10, 0, i);
    }
    cr_expect_eq(q.heap, heap, "no allocation while the queue is no deeper than before");
    lvr_event_queue_free(&q);
}

Test(sim_events, flash_resource_reaches_its_closed_form_rate)
{
    const lvr_flash_params p = {
        .t0_ns = 100000, .lane_bytes_per_s = 500000000, .max_bytes_per_s = 1500000000, .depth = 4};
    const uint64_t bytes = 1u << 20;
    enum { N = 4000 };
    lvr_flash_resource f;
    lvr_flash_resource_init(&f, &p);
    lvr_flash_times t = {0};
    for (int i = 0; i < N; i++)
        t = lvr_flash_resource_submit(&f, 0, bytes);
    const double rate = (double)N * (double)bytes * 1e9 / (double)t.end_ns,
                 want = lvr_flash_rate_bytes_per_s(&p, bytes);
    cr_expect_float_eq(rate / want, 1.0, 2e-3, "rate %g, closed form %g", rate, want);
    cr_expect_eq(f.busy_ns, t.end_ns);
    cr_expect_eq(f.bytes, (uint64_t)N * bytes);
}

Test(sim_events, flash_busy_time_is_the_union_of_reads)
{
    const lvr_flash_params p = {
        .t0_ns = 1000, .lane_bytes_per_s = 1000000000, .max_bytes_per_s = 1000000000, .depth = 1};
    lvr_flash_resource f;
    lvr_flash_resource_init(&f, &p);
    lvr_flash_resource_submit(&f, 0, 9000);     /* 0 .. 10000 */
    lvr_flash_resource_submit(&f, 5000, 9000);  /* .. 20000 */
    lvr_flash_resource_submit(&f, 50000, 9000); /* 50000 .. 60000 */
    cr_expect_eq(f.busy_ns, 30000, "busy %lu", f.busy_ns);
}

Test(sim_events, compute_runs_one_thing_at_a_time)
{
    lvr_cost_table t = {0};
    t.op[LVR_OP_LAYER] = (lvr_op_cost){.curve = {.n = 2, .rows = {1, 3}, .ns = {100, 300}}, .ctx_ns = 0.5};
    lvr_compute_resource c;
    lvr_compute_resource_init(&c, &t);
    const lvr_compute_times a = lvr_compute_resource_run(&c, 10, LVR_OP_LAYER, 1, 0),
                            b = lvr_compute_resource_run(&c, 20, LVR_OP_LAYER, 2, 10);
    cr_expect_eq(a.start_ns, 10);
    cr_expect_eq(a.end_ns, 110);
    cr_expect_eq(b.start_ns, 110);
    cr_expect_eq(b.end_ns, 320, "200 for two rows and 10 for their context");
    cr_expect_eq(c.busy_ns, 310);
    cr_expect_eq(c.op[LVR_OP_LAYER].max_rows, 2);
}
