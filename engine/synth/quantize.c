#include "engine/synth/quantize.h"
#include <math.h>
#include <string.h>

#define SUPER 256u
#define SUBS_K4 (SUPER / LVR_BLOCK) /* sub-blocks of Q4_K and Q5_K */
#define SUB_K6 16u
#define LANES 8u

static uint8_t *put_half(uint8_t *dst, float v)
{
    const uint16_t h = lvr_f32_to_f16(v);
    memcpy(dst, &h, sizeof h);
    return dst + sizeof h;
}

/* The value a scale has once stored. */
static float as_half(float v)
{
    return lvr_f16_to_f32(lvr_f32_to_f16(v));
}

static float inverse(float d)
{
    return d != 0.0f ? 1.0f / d : 0.0f;
}

/* n is a multiple of LANES: lanes of their own let the compiler use vector minima. */
static void extremes(const float *x, uint32_t n, float *ret_min, float *ret_max)
{
    float lo[LANES], hi[LANES];
    memcpy(lo, x, sizeof lo);
    memcpy(hi, x, sizeof hi);
    for (uint32_t i = LANES; i < n; i += LANES)
        for (uint32_t j = 0; j < LANES; j++) {
            lo[j] = x[i + j] < lo[j] ? x[i + j] : lo[j];
            hi[j] = x[i + j] > hi[j] ? x[i + j] : hi[j];
        }
    for (uint32_t j = 1; j < LANES; j++) {
        lo[0] = lo[j] < lo[0] ? lo[j] : lo[0];
        hi[0] = hi[j] > hi[0] ? hi[j] : hi[0];
    }
    *ret_min = lo[0];
    *ret_max = hi[0];
}

/* The value of largest magnitude, with its sign. */
static float signed_extreme(const float *x, uint32_t n)
{
    float lo, hi;
    extremes(x, n, &lo, &hi);
    return -lo > hi ? lo : hi;
}

/* codes[i] = round(x[i] * inv + shift) in [0, top]; what is rounded is above -1/2. */
static void codes_of(const float *x, uint32_t n, float inv, float shift, int32_t top, uint8_t *codes)
{
    for (uint32_t i = 0; i < n; i++) {
        const int32_t c = (int32_t)(x[i] * inv + (shift + 0.5f));
        codes[i] = (uint8_t)(c < 0 ? 0 : c > top ? top : c);
    }
}

static void put_nibbles(const uint8_t codes[LVR_BLOCK], uint8_t *dst)
{
    for (uint32_t i = 0; i < LVR_BLOCK / 2; i++)
        dst[i] = (uint8_t)((codes[i] & 15) | (codes[i + LVR_BLOCK / 2] << 4));
}

static void put_fifth_bits(const uint8_t codes[LVR_BLOCK], uint8_t *dst)
{
    uint32_t bits = 0;
    for (uint32_t i = 0; i < LVR_BLOCK; i++)
        bits |= (uint32_t)(codes[i] >> 4) << i;
    memcpy(dst, &bits, sizeof bits);
}

/* The extreme becomes the lowest code, whose magnitude is the larger one. */
static void block_q4_0(const float *x, uint8_t *dst)
{
    uint8_t codes[LVR_BLOCK];
    const float d = as_half(signed_extreme(x, LVR_BLOCK) / -8.0f);
    codes_of(x, LVR_BLOCK, inverse(d), 8.0f, 15, codes);
    put_nibbles(codes, put_half(dst, d));
}

static void block_q5_0(const float *x, uint8_t *dst)
{
    uint8_t codes[LVR_BLOCK];
    const float d = as_half(signed_extreme(x, LVR_BLOCK) / -16.0f);
    codes_of(x, LVR_BLOCK, inverse(d), 16.0f, 31, codes);
    dst = put_half(dst, d);
    put_fifth_bits(codes, dst);
    put_nibbles(codes, dst + 4);
}

static void block_q4_1(const float *x, uint8_t *dst)
{
    uint8_t codes[LVR_BLOCK];
    float lo, hi;
    extremes(x, LVR_BLOCK, &lo, &hi);
    const float m = as_half(lo), d = as_half((hi - lo) / 15.0f);
    codes_of(x, LVR_BLOCK, inverse(d), -m * inverse(d), 15, codes);
    put_nibbles(codes, put_half(put_half(dst, d), m));
}

static void block_q5_1(const float *x, uint8_t *dst)
{
    uint8_t codes[LVR_BLOCK];
    float lo, hi;
    extremes(x, LVR_BLOCK, &lo, &hi);
    const float m = as_half(lo), d = as_half((hi - lo) / 31.0f);
    codes_of(x, LVR_BLOCK, inverse(d), -m * inverse(d), 31, codes);
    dst = put_half(put_half(dst, d), m);
    put_fifth_bits(codes, dst);
    put_nibbles(codes, dst + 4);
}

static void block_q8_0(const float *x, uint8_t *dst)
{
    uint8_t codes[LVR_BLOCK];
    const float d = as_half(fabsf(signed_extreme(x, LVR_BLOCK)) / 127.0f);
    codes_of(x, LVR_BLOCK, inverse(d), 128.0f, 255, codes);
    dst = put_half(dst, d);
    for (uint32_t i = 0; i < LVR_BLOCK; i++)
        dst[i] = codes[i] ^ 0x80u; /* code - 128 in two's complement */
}

/* Scales and minima of a Q4_K or Q5_K super-block: value = d * sc * code - dmin * mn. */
struct k_scales {
    float d, dmin;
    uint8_t sc[SUBS_K4], mn[SUBS_K4]; /* six bits each */
};

static uint8_t six_bits(float v)
{
    const int32_t i = (int32_t)(v + 0.5f);
    return (uint8_t)(i > 63 ? 63 : i);
}

static void find_k_scales(const float *x, float top, struct k_scales *ret)
{
    float step[SUBS_K4], drop[SUBS_K4], most_step = 0, most_drop = 0;
    for (uint32_t s = 0; s < SUBS_K4; s++) {
        float lo, hi;
        extremes(x + s * LVR_BLOCK, LVR_BLOCK, &lo, &hi);
        lo = lo < 0 ? lo : 0; /* a minimum is stored without sign */
        hi = hi > lo ? hi : lo;
        step[s] = (hi - lo) / top;
        drop[s] = -lo;
        most_step = step[s] > most_step ? step[s] : most_step;
        most_drop = drop[s] > most_drop ? drop[s] : most_drop;
    }
    ret->d = as_half(most_step / 63.0f);
    ret->dmin = as_half(most_drop / 63.0f);
    for (uint32_t s = 0; s < SUBS_K4; s++) {
        ret->sc[s] = six_bits(step[s] * inverse(ret->d));
        ret->mn[s] = six_bits(drop[s] * inverse(ret->dmin));
    }
}

/* Twelve bytes: the low six bits of the first eight hold scales and minima 0 to 3; those of 4 to 7 have their
 * low four bits in the last four bytes and their high two above the others. */
static uint8_t *put_k_scales(const struct k_scales *k, uint8_t *dst)
{
    dst = put_half(put_half(dst, k->d), k->dmin);
    for (uint32_t j = 0; j < 4; j++) {
        dst[j] = (uint8_t)(k->sc[j] | (k->sc[j + 4] >> 4) << 6);
        dst[j + 4] = (uint8_t)(k->mn[j] | (k->mn[j + 4] >> 4) << 6);
        dst[j + 8] = (uint8_t)((k->sc[j + 4] & 15) | (k->mn[j + 4] & 15) << 4);
    }
    return dst + 12;
}

static void k_codes(const float *x, const struct k_scales *k, int32_t top, uint8_t codes[SUPER])
{
    for (uint32_t s = 0; s < SUBS_K4; s++) {
        const float inv = inverse(k->d * (float)k->sc[s]);
        codes_of(x + s * LVR_BLOCK, LVR_BLOCK, inv, k->dmin * (float)k->mn[s] * inv, top,
                 codes + s * LVR_BLOCK);
    }
}

/* Two sub-blocks share 32 bytes: one in the low nibbles, the next in the high ones. */
static void put_k_nibbles(const uint8_t codes[SUPER], uint8_t *dst)
{
    for (uint32_t pair = 0; pair < SUBS_K4 / 2; pair++)
        for (uint32_t i = 0; i < LVR_BLOCK; i++) {
            const uint8_t *c = codes + pair * 2 * LVR_BLOCK + i;
            dst[pair * LVR_BLOCK + i] = (uint8_t)((c[0] & 15) | c[LVR_BLOCK] << 4);
        }
}

static void block_q4_k(const float *x, uint8_t *dst)
{
    struct k_scales k;
    uint8_t codes[SUPER];
    find_k_scales(x, 15.0f, &k);
    k_codes(x, &k, 15, codes);
    put_k_nibbles(codes, put_k_scales(&k, dst));
}

static void block_q5_k(const float *x, uint8_t *dst)
{
    struct k_scales k;
    uint8_t codes[SUPER];
    find_k_scales(x, 31.0f, &k);
    k_codes(x, &k, 31, codes);
    dst = put_k_scales(&k, dst);
    memset(dst, 0, LVR_BLOCK);
    for (uint32_t s = 0; s < SUBS_K4; s++) /* bit s of byte i: the fifth bit of element i of sub-block s */
        for (uint32_t i = 0; i < LVR_BLOCK; i++)
            dst[i] |= (uint8_t)(codes[s * LVR_BLOCK + i] >> 4 << s);
    put_k_nibbles(codes, dst + LVR_BLOCK);
}

/* Each half of 128 has 64 bytes of low nibbles and 32 bytes of two high bits for its quarters. */
static void put_q6_codes(const uint8_t codes[SUPER], uint8_t *low, uint8_t *high)
{
    for (uint32_t half = 0; half < 2; half++)
        for (uint32_t i = 0; i < 32; i++) {
            const uint8_t *c = codes + half * 128 + i;
            low[half * 64 + i] = (uint8_t)((c[0] & 15) | c[64] << 4);
            low[half * 64 + 32 + i] = (uint8_t)((c[32] & 15) | c[96] << 4);
            high[half * 32 + i] = (uint8_t)(c[0] >> 4 | c[32] >> 4 << 2 | c[64] >> 4 << 4 | c[96] >> 4 << 6);
        }
}

static void block_q6_k(const float *x, uint8_t *dst)
{
    float step[SUPER / SUB_K6];
    uint8_t codes[SUPER], *scales = dst + 192;
    for (uint32_t s = 0; s < SUPER / SUB_K6; s++)
        step[s] = signed_extreme(x + s * SUB_K6, SUB_K6) / -32.0f;
    const float d = as_half(signed_extreme(step, SUPER / SUB_K6) / -128.0f);
    for (uint32_t s = 0; s < SUPER / SUB_K6; s++) {
        const int32_t wanted = (int32_t)(step[s] * inverse(d) + 128.5f) - 128;
        const int32_t sc = wanted > 127 ? 127 : wanted < -128 ? -128 : wanted;
        scales[s] = (uint8_t)sc;
        codes_of(x + s * SUB_K6, SUB_K6, inverse(d * (float)sc), 32.0f, 63, codes + s * SUB_K6);
    }
    put_q6_codes(codes, dst, dst + 128);
    put_half(dst + 208, d);
}

static void block_f32(const float *x, uint8_t *dst)
{
    memcpy(dst, x, LVR_BLOCK * sizeof *x);
}

static void block_f16(const float *x, uint8_t *dst)
{
    for (uint32_t i = 0; i < LVR_BLOCK; i++)
        dst = put_half(dst, x[i]);
}

static void block_bf16(const float *x, uint8_t *dst)
{
    for (uint32_t i = 0; i < LVR_BLOCK; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        const uint16_t h = (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16); /* to nearest even */
        memcpy(dst + 2 * i, &h, sizeof h);
    }
}

static const struct {
    void (*block)(const float *x, uint8_t *dst);
    uint32_t n; /* values of a block */
} quantizers[LVR_WTYPE_SLOTS] = {
    [LVR_F32] = {block_f32, LVR_BLOCK},   [LVR_F16] = {block_f16, LVR_BLOCK},
    [LVR_BF16] = {block_bf16, LVR_BLOCK}, [LVR_Q4_0] = {block_q4_0, LVR_BLOCK},
    [LVR_Q4_1] = {block_q4_1, LVR_BLOCK}, [LVR_Q5_0] = {block_q5_0, LVR_BLOCK},
    [LVR_Q5_1] = {block_q5_1, LVR_BLOCK}, [LVR_Q8_0] = {block_q8_0, LVR_BLOCK},
    [LVR_Q4_K] = {block_q4_k, SUPER},     [LVR_Q5_K] = {block_q5_k, SUPER},
    [LVR_Q6_K] = {block_q6_k, SUPER},
};

void lvr_quantize_row(lvr_wtype t, const float *x, uint32_t n, uint8_t *dst)
{
    const uint64_t bytes = lvr_wtype_row_bytes(t, quantizers[t].n);
    for (uint32_t i = 0; i < n; i += quantizers[t].n, dst += bytes)
        quantizers[t].block(x + i, dst);
}
