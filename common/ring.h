/* A bounded single-producer single-consumer ring of fixed-size records. Lock free; never blocks. One thread
 * pushes, one thread pops. Capacity is rounded up to a power of two. */
#ifndef LVR_COMMON_RING_H
#define LVR_COMMON_RING_H

#include "common/error.h"
#include <stdbool.h>
#include <stddef.h>

typedef struct lvr_ring lvr_ring;

lvr_status lvr_ring_new(size_t record_bytes, size_t capacity, lvr_ring **ret_ring, lvr_error *err);
void lvr_ring_free(lvr_ring *ring);
bool lvr_ring_push(lvr_ring *ring, const void *record); /* false: full */
bool lvr_ring_pop(lvr_ring *ring, void *ret_record);    /* false: empty */
size_t lvr_ring_count(const lvr_ring *ring);            /* a snapshot */
size_t lvr_ring_capacity(const lvr_ring *ring);

#endif
