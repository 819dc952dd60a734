#include "engine/synth/values.h"
#include "common/rng.h"

#define GOLDEN_GAMMA UINT64_C(0x9e3779b97f4a7c15)
#define PER_HASH 8u
#define BLOCK 32u

uint64_t lvr_synth_key(uint64_t seed, const char *name)
{
    lvr_rng rng;
    lvr_rng_init(&rng, seed, name);
    return lvr_rng_u64(&rng);
}

/* splitmix64 at position i of its sequence; written out because it is called once for eight weights. */
static inline uint64_t hash_at(uint64_t key, uint64_t i)
{
    uint64_t x = key + (i + 1) * GOLDEN_GAMMA;
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

uint64_t lvr_synth_hash(uint64_t key, uint64_t i)
{
    return hash_at(key, i);
}

void lvr_synth_uniform(uint64_t key, uint64_t begin, uint32_t n, float std, float *dst)
{
    /* -127.5 to 127.5 in steps of 1 has the variance (256^2 - 1) / 12. */
    const float step = std / 73.90027f;
    for (uint32_t j = 0; j < n; j += PER_HASH) {
        const uint64_t h = hash_at(key, (begin + j) / PER_HASH);
        for (uint32_t k = 0; k < PER_HASH; k++)
            dst[j + k] = ((float)(int32_t)((h >> (8u * k)) & 0xff) - 127.5f) * step;
    }
}

void lvr_synth_vary_blocks(uint64_t key, uint64_t begin, uint32_t n, float *x)
{
    /* 0.75 + u / 2 with u on 256 levels of [0, 1]; divided by its root mean square. */
    const float base = 0.75f / 1.0104438f, step = 0.5f / 255.0f / 1.0104438f;
    for (uint32_t b = 0; b < n / BLOCK; b++) {
        const uint64_t h = hash_at(~key, begin / BLOCK + b);
        const float f = base + step * (float)(int32_t)(h >> 56);
        for (uint32_t j = 0; j < BLOCK; j++)
            x[b * BLOCK + j] *= f;
    }
}
