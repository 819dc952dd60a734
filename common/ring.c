#include "common/ring.h"

#include <stdalign.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define CACHE_LINE 64

/* Each side owns one cache line: its own index, and its last view of the other's, so that the other's line is
 * read only when the ring looks full (or empty). Indexes run on without wrapping to the capacity. */
struct lvr_ring {
    alignas(CACHE_LINE) _Atomic size_t tail;
    size_t seen_head;
    alignas(CACHE_LINE) _Atomic size_t head;
    size_t seen_tail;
    alignas(CACHE_LINE) size_t record_bytes;
    size_t mask;
    char *records;
};

static bool round_up_pow2(size_t x, size_t *ret)
{
    size_t p = 1;
    while (p < x) {
        if (p > SIZE_MAX / 2)
            return false;
        p *= 2;
    }
    *ret = p;
    return true;
}

lvr_status lvr_ring_new(size_t record_bytes, size_t capacity, lvr_ring **ret_ring, lvr_error *err)
{
    size_t slots = 0;
    if (record_bytes == 0 || capacity == 0)
        return lvr_fail(
            err, LVR_ERR_CONFIG,
            "ring: expected a record size and a capacity of at least 1, found %zu bytes and %zu records",
            record_bytes, capacity);
    if (!round_up_pow2(capacity, &slots) || slots > PTRDIFF_MAX / record_bytes)
        return lvr_fail(err, LVR_ERR_NOMEM,
                        "ring: %zu records of %zu bytes do not fit into memory; choose a smaller capacity",
                        capacity, record_bytes);
    lvr_ring *ring = aligned_alloc(CACHE_LINE, sizeof *ring);
    char *records = malloc(slots * record_bytes);
    if (!ring || !records) {
        free(ring);
        free(records);
        return lvr_fail(err, LVR_ERR_NOMEM,
                        "ring: out of memory for %zu records of %zu bytes; choose a smaller capacity", slots,
                        record_bytes);
    }
    memset(ring, 0, sizeof *ring);
    ring->record_bytes = record_bytes;
    ring->mask = slots - 1;
    ring->records = records;
    *ret_ring = ring;
    return LVR_OK;
}

void lvr_ring_free(lvr_ring *ring)
{
    if (!ring)
        return;
    free(ring->records);
    free(ring);
}

static char *slot(const lvr_ring *ring, size_t index)
{
    return ring->records + (index & ring->mask) * ring->record_bytes;
}

bool lvr_ring_push(lvr_ring *ring, const void *record)
{
    const size_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    if (tail - ring->seen_head > ring->mask) {
        ring->seen_head = atomic_load_explicit(&ring->head, memory_order_acquire);
        if (tail - ring->seen_head > ring->mask)
            return false;
    }
    memcpy(slot(ring, tail), record, ring->record_bytes);
    atomic_store_explicit(&ring->tail, tail + 1, memory_order_release);
    return true;
}

bool lvr_ring_pop(lvr_ring *ring, void *ret_record)
{
    const size_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    if (head == ring->seen_tail) {
        ring->seen_tail = atomic_load_explicit(&ring->tail, memory_order_acquire);
        if (head == ring->seen_tail)
            return false;
    }
    memcpy(ret_record, slot(ring, head), ring->record_bytes);
    atomic_store_explicit(&ring->head, head + 1, memory_order_release);
    return true;
}

size_t lvr_ring_count(const lvr_ring *ring)
{
    /* Head first: it cannot pass the tail read after it, but the tail may have run on, hence the cap. */
    const size_t head = atomic_load_explicit(&ring->head, memory_order_acquire);
    const size_t tail = atomic_load_explicit(&ring->tail, memory_order_acquire);
    const size_t count = tail - head;
    return count > ring->mask ? ring->mask + 1 : count;
}

size_t lvr_ring_capacity(const lvr_ring *ring)
{
    return ring->mask + 1;
}
