#include "common/rng.h"

#include <math.h>

#define GOLDEN_GAMMA UINT64_C(0x9e3779b97f4a7c15)

/* The finalizer of splitmix64 (Stafford's variant 13). */
uint64_t lvr_mix64(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* FNV-1a, 64 bits: names are short and few. */
static uint64_t hash_name(const char *name)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
    return h;
}

void lvr_rng_init(lvr_rng *rng, uint64_t master_seed, const char *stream_name)
{
    uint64_t state = lvr_mix64(master_seed + GOLDEN_GAMMA) ^ hash_name(stream_name);
    for (int i = 0; i < 4; i++) {
        state += GOLDEN_GAMMA;
        rng->s[i] = lvr_mix64(state);
    }
}

static uint64_t rotl(uint64_t x, int k)
{
    return x << k | x >> (64 - k);
}

uint64_t lvr_rng_u64(lvr_rng *rng)
{
    uint64_t *s = rng->s;
    const uint64_t result = rotl(s[1] * 5, 7) * 9;
    const uint64_t t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return result;
}

uint64_t lvr_rng_below(lvr_rng *rng, uint64_t n)
{
    if (n <= 1)
        return 0;
    /* 2^64 mod n draws are surplus: dropping them leaves every remainder equally likely. */
    const uint64_t surplus = (0 - n) % n;
    uint64_t x;
    do
        x = lvr_rng_u64(rng);
    while (x < surplus);
    return x % n;
}

static double to_unit(uint64_t x)
{
    return (double)(x >> 11) * 0x1p-53;
}

double lvr_rng_unit(lvr_rng *rng)
{
    return to_unit(lvr_rng_u64(rng));
}

/* Marsaglia's polar method. The second variate is dropped: the stream's state stays the four words alone. */
double lvr_rng_normal(lvr_rng *rng)
{
    double u, v, s;
    do {
        u = 2 * lvr_rng_unit(rng) - 1;
        v = 2 * lvr_rng_unit(rng) - 1;
        s = u * u + v * v;
    } while (s >= 1 || s == 0);
    return u * sqrt(-2 * log(s) / s);
}

double lvr_hash_unit(uint64_t seed, uint64_t a, uint64_t b)
{
    uint64_t h = lvr_mix64(seed + GOLDEN_GAMMA);
    h = lvr_mix64((h ^ a) + GOLDEN_GAMMA);
    h = lvr_mix64((h ^ b) + GOLDEN_GAMMA);
    return to_unit(h);
}
