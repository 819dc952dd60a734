/* Arbitrary numbers for trials and benchmarks of kernels, the same in every run. */
#ifndef LVR_ENGINE_KERNELS_LCG_H
#define LVR_ENGINE_KERNELS_LCG_H

#include <stdint.h>

/* Knuth and Lewis's generator, without the lower bits, which are not good enough: 24 bits. */
static inline uint32_t lvr_lcg_next(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

#endif
