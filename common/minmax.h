/* The smaller and the larger of two integers, and sums that stay at the largest one. */
#ifndef LVR_COMMON_MINMAX_H
#define LVR_COMMON_MINMAX_H

#include <stdint.h>

static inline uint32_t lvr_min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static inline uint32_t lvr_max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static inline uint64_t lvr_min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t lvr_max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static inline uint64_t lvr_add_sat_u64(uint64_t a, uint64_t b)
{
    uint64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

#endif
