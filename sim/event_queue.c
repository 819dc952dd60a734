#include "sim/event_queue.h"

#include <stdlib.h>

enum { ARITY = 4, MIN_CAPACITY = 16 };

static bool comes_before(const lvr_sim_event *a, const lvr_sim_event *b)
{
    if (a->time_ns != b->time_ns)
        return a->time_ns < b->time_ns;
    if (a->priority != b->priority)
        return a->priority < b->priority;
    return a->seq < b->seq;
}

lvr_status lvr_event_queue_init(lvr_event_queue *q, size_t capacity, lvr_error *err)
{
    if (capacity < MIN_CAPACITY)
        capacity = MIN_CAPACITY;
    lvr_sim_event *heap = calloc(capacity, sizeof(*heap));
    if (!heap)
        return lvr_fail(err, LVR_ERR_NOMEM, "event queue: out of memory for %zu events", capacity);
    *q = (lvr_event_queue){.heap = heap, .cap = capacity};
    return LVR_OK;
}

void lvr_event_queue_free(lvr_event_queue *q)
{
    free(q->heap);
    *q = (lvr_event_queue){0};
}

static lvr_status grow(lvr_event_queue *q, lvr_error *err)
{
    size_t bytes;
    if (__builtin_mul_overflow(q->cap, 2 * sizeof(*q->heap), &bytes))
        return lvr_fail(err, LVR_ERR_NOMEM, "event queue: %zu events do not fit in memory", q->cap);
    lvr_sim_event *heap = realloc(q->heap, bytes);
    if (!heap)
        return lvr_fail(err, LVR_ERR_NOMEM, "event queue: out of memory growing to %zu events", 2 * q->cap);
    q->heap = heap;
    q->cap *= 2;
    return LVR_OK;
}

lvr_status lvr_event_queue_push(lvr_event_queue *q, uint64_t time_ns, uint32_t priority, uint32_t kind,
                                uint64_t arg, lvr_error *err)
{
    if (q->n == q->cap) {
        const lvr_status st = grow(q, err);
        if (st)
            return st;
    }
    const lvr_sim_event event = {
        .time_ns = time_ns, .seq = q->next_seq++, .arg = arg, .priority = priority, .kind = kind};
    size_t hole = q->n++;
    while (hole > 0) {
        const size_t parent = (hole - 1) / ARITY;
        if (!comes_before(&event, &q->heap[parent]))
            break;
        q->heap[hole] = q->heap[parent];
        hole = parent;
    }
    q->heap[hole] = event;
    return LVR_OK;
}

/* The earliest child of `parent` among the first n entries, or n if it has none. */
static size_t earliest_child(const lvr_sim_event *heap, size_t n, size_t parent)
{
    const size_t first = parent * ARITY + 1;
    if (first >= n)
        return n;
    const size_t end = first + ARITY < n ? first + ARITY : n;
    size_t best = first;
    for (size_t i = first + 1; i < end; i++) {
        if (comes_before(&heap[i], &heap[best]))
            best = i;
    }
    return best;
}

bool lvr_event_queue_pop(lvr_event_queue *q, lvr_sim_event *ret)
{
    if (q->n == 0)
        return false;
    *ret = q->heap[0];
    const lvr_sim_event last = q->heap[--q->n];
    size_t hole = 0;
    for (;;) {
        const size_t child = earliest_child(q->heap, q->n, hole);
        if (child == q->n || !comes_before(&q->heap[child], &last))
            break;
        q->heap[hole] = q->heap[child];
        hole = child;
    }
    if (q->n > 0)
        q->heap[hole] = last;
    return true;
}
