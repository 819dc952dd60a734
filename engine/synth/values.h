/*
 * Random weights by counter: element i of a tensor is a function of the tensor's key and i alone, so that any
 * part of a model can be made in any order, by any number of threads, with the same result. Only additions,
 * multiplications and square roots are used: the same bits on every machine.
 */
#ifndef LVR_ENGINE_SYNTH_VALUES_H
#define LVR_ENGINE_SYNTH_VALUES_H

#include <stdint.h>

/* The key of (seed, name). */
uint64_t lvr_synth_key(uint64_t seed, const char *name);
/* Hash number i of a key. */
uint64_t lvr_synth_hash(uint64_t key, uint64_t i);

/* dst[j] = element begin + j, j < n: uniform on 256 levels, mean 0, standard deviation std. begin and n are
 * multiples of 8. */
void lvr_synth_uniform(uint64_t key, uint64_t begin, uint32_t n, float std, float *dst);
/* Multiplies each 32 of the n elements from `begin` by a factor of its own from 0.75 to 1.25, as the scales
 * of trained weights differ; the mean square stays as it was. begin is a multiple of 32. */
void lvr_synth_vary_blocks(uint64_t key, uint64_t begin, uint32_t n, float *x);

#endif
