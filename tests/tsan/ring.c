/* One producer, one consumer: nothing lost, torn or out of order, at capacities from one record up. */
#include "common/ring.h"
#include "tests/tsan/tap.h"
#include <pthread.h>
#include <sched.h>
#include <stdint.h>

#define N_RECORDS UINT64_C(50000)

typedef struct record {
    uint64_t index, square, inverse;
} record;

static void *produce(void *arg)
{
    for (uint64_t i = 0; i < N_RECORDS; i++) {
        const record r = {i, i * i, ~i};
        while (!lvr_ring_push(arg, &r))
            sched_yield();
    }
    return NULL;
}

static bool consume_all(lvr_ring *ring)
{
    for (uint64_t i = 0; i < N_RECORDS;) {
        record r;
        if (lvr_ring_count(ring) > lvr_ring_capacity(ring))
            return false;
        if (!lvr_ring_pop(ring, &r)) {
            sched_yield();
            continue;
        }
        if (r.index != i || r.square != i * i || r.inverse != ~i)
            return false;
        i++;
    }
    return true;
}

int main(void)
{
    const size_t capacities[] = {1, 2, 64, 4096};
    for (size_t c = 0; c < sizeof capacities / sizeof *capacities; c++) {
        lvr_ring *ring = NULL;
        lvr_error err = LVR_ERROR_INIT;
        pthread_t producer;
        char what[64];
        if (!tap_status(lvr_ring_new(sizeof(record), capacities[c], &ring, &err), &err, "a ring"))
            continue;
        if (tap_ok(pthread_create(&producer, NULL, produce, ring) == 0, "a producer")) {
            snprintf(what, sizeof what, "capacity %zu: every record once, whole, in order", capacities[c]);
            const bool good = consume_all(ring);
            if (!tap_ok(good, what))
                return tap_done(); /* the producer may be stuck on a full ring */
            pthread_join(producer, NULL);
        }
        lvr_ring_free(ring);
    }
    return tap_done();
}
