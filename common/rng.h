/* Deterministic random streams, one per subsystem: a stream is seeded by (master seed, name), so adding a
 * consumer does not disturb the others. xoshiro256** (https://prng.di.unimi.it), seeded by splitmix64.
 * Position-keyed uniforms do not have state at all: the same key always gives the same number. */
#ifndef LVR_COMMON_RNG_H
#define LVR_COMMON_RNG_H

#include <stdint.h>

typedef struct lvr_rng {
    uint64_t s[4];
} lvr_rng;

void lvr_rng_init(lvr_rng *rng, uint64_t master_seed, const char *stream_name);
uint64_t lvr_rng_u64(lvr_rng *rng);
uint64_t lvr_rng_below(lvr_rng *rng, uint64_t n); /* uniform in [0, n), n > 0, without modulo bias */
double lvr_rng_unit(lvr_rng *rng);                /* uniform in [0, 1) with 53 bits */
double lvr_rng_normal(lvr_rng *rng);              /* standard normal */

/* u = hash(seed, a, b) in [0, 1): the sampled token's uniform at (request a, position b). */
double lvr_hash_unit(uint64_t seed, uint64_t a, uint64_t b);
uint64_t lvr_mix64(uint64_t x);

#endif
