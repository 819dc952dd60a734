#include "common/ring.h"
#include <criterion/criterion.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>

static lvr_ring *new_ring(size_t record_bytes, size_t capacity)
{
    lvr_ring *ring = NULL;
    cr_assert_eq(lvr_ring_new(record_bytes, capacity, &ring, NULL), LVR_OK);
    return ring;
}

Test(ring, fills_and_drains_in_order)
{
    lvr_ring *ring = new_ring(sizeof(int), 5);
    cr_assert_eq(lvr_ring_capacity(ring), 8);
    int got = -1;
    cr_assert(!lvr_ring_pop(ring, &got));
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 8; i++)
            cr_assert(lvr_ring_push(ring, &i));
        cr_assert(!lvr_ring_push(ring, &got));
        cr_assert_eq(lvr_ring_count(ring), 8);
        for (int i = 0; i < 8; i++) {
            cr_assert(lvr_ring_pop(ring, &got));
            cr_assert_eq(got, i);
        }
        cr_assert_eq(lvr_ring_count(ring), 0);
    }
    lvr_ring_free(ring);
    lvr_ring_free(NULL);
}

Test(ring, refuses_impossible_sizes)
{
    lvr_ring *ring = NULL;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_ring_new(0, 8, &ring, &err), LVR_ERR_CONFIG);
    cr_assert_eq(lvr_ring_new(8, 0, &ring, &err), LVR_ERR_CONFIG);
    cr_assert_eq(lvr_ring_new(8, SIZE_MAX, &ring, &err), LVR_ERR_NOMEM);
    cr_assert_eq(lvr_ring_new(SIZE_MAX, 2, &ring, &err), LVR_ERR_NOMEM);
    cr_assert_eq(lvr_ring_new((size_t)1 << 40, (size_t)1 << 30, &ring, &err), LVR_ERR_NOMEM);
    cr_assert_null(ring);
}

typedef struct record {
    uint64_t index, square, pad;
} record;

#define N_RECORDS UINT64_C(300000)

static void *produce(void *arg)
{
    lvr_ring *ring = arg;
    for (uint64_t i = 0; i < N_RECORDS; i++) {
        const record r = {.index = i, .square = i * i, .pad = ~i};
        while (!lvr_ring_push(ring, &r))
            sched_yield();
    }
    return NULL;
}

Test(ring, two_threads_lose_and_tear_nothing)
{
    const size_t capacities[] = {1, 2, 64, 4096};
    for (size_t c = 0; c < 4; c++) {
        lvr_ring *ring = new_ring(sizeof(record), capacities[c]);
        pthread_t producer;
        cr_assert_eq(pthread_create(&producer, NULL, produce, ring), 0);
        for (uint64_t i = 0; i < N_RECORDS;) {
            record r;
            cr_assert_leq(lvr_ring_count(ring), lvr_ring_capacity(ring));
            if (!lvr_ring_pop(ring, &r)) {
                sched_yield();
                continue;
            }
            cr_assert(r.index == i && r.square == i * i && r.pad == ~i);
            i++;
        }
        pthread_join(producer, NULL);
        lvr_ring_free(ring);
    }
}
