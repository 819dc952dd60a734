/* AVX-512: everything but the matrix products (x86_avx512_matmul.c) that it does faster than AVX2. Same
 * operations in the same order as ref.c: the 16 partials of a reduction are one register, and what a row has
 * less than 16 elements left over is done under a mask. Where loads, conversions of halves or short chains of
 * additions are the limit, as in attention's sweeps, it was slower than AVX2 (Zen 4): those stay AVX2's, and
 * so does rope, for a head is short. */
#include "engine/kernels/levels.h"
#include "engine/kernels/x86_intrin.h"

#include <math.h>

/* First n lanes, n <= 16. */
static inline __mmask16 lanes(uint32_t n)
{
    return (__mmask16)((1u << n) - 1u);
}

/* What is left of n elements from i on, at most 16. */
static inline __mmask16 lanes_left(uint32_t n, uint32_t i)
{
    return n - i < 16 ? lanes(n - i) : 0xffffu;
}

/* Upper half of the register's lanes. */
static inline __m256 upper8(__m512 v)
{
    return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1));
}

static inline __m128 fold_to_4(__m512 p)
{
    const __m256 s = _mm256_add_ps(_mm512_castps512_ps256(p), upper8(p));
    return _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
}

/* 16 partials to 1: + [i+8], + [i+4], + [i+2], + [i+1]. */
static inline float fold_sum(__m512 p)
{
    __m128 s = fold_to_4(p);
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

/* lvr_expf of each lane. */
static inline __m512 exp16(__m512 x)
{
    const __m512 least = _mm512_set1_ps(LVR_EXP_MIN), most = _mm512_set1_ps(LVR_EXP_MAX);
    const __m512 round = _mm512_set1_ps(LVR_EXP_ROUND), one = _mm512_set1_ps(1.0f);
    const __m512 in =
        _mm512_min_ps(_mm512_max_ps(x, least), most); /* the results of clamped lanes are replaced below */
    const __m512 n = _mm512_sub_ps(_mm512_fmadd_ps(in, _mm512_set1_ps(LVR_EXP_LOG2E), round), round);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(LVR_EXP_LN2_HI), in);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(LVR_EXP_LN2_LO), r);
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(LVR_EXP_C6), r, _mm512_set1_ps(LVR_EXP_C5));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(LVR_EXP_C4));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(LVR_EXP_C3));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(LVR_EXP_C2));
    p = _mm512_fmadd_ps(p, r, one);
    p = _mm512_fmadd_ps(p, r, one);
    const __m512i bias = _mm512_set1_epi32(127);
    const __m512i exponent = _mm512_cvtps_epi32(n);
    const __m512i half = _mm512_srai_epi32(exponent, 1);
    const __m512i rest = _mm512_sub_epi32(exponent, half);
    p = _mm512_mul_ps(p, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(half, bias), 23)));
    p = _mm512_mul_ps(p, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(rest, bias), 23)));
    p = _mm512_mask_mov_ps(p, _mm512_cmp_ps_mask(x, least, _CMP_LT_OQ), _mm512_setzero_ps());
    p = _mm512_mask_mov_ps(p, _mm512_cmp_ps_mask(x, most, _CMP_GT_OQ), _mm512_set1_ps(INFINITY));
    return _mm512_mask_add_ps(p, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x, x);
}

/* ---- quantised activations ---- */

static inline uint32_t max_epi32_lanes(__m512i v)
{
    const __m256i v8 = _mm256_max_epi32(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1));
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v8), _mm256_extracti128_si256(v8, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, _MM_SHUFFLE(1, 0, 3, 2)));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, _MM_SHUFFLE(2, 3, 0, 1)));
    return (uint32_t)_mm_cvtsi128_si32(m);
}

/* Of 16 signed bytes: VPSADBW sums them as unsigned, 128 too many each. */
static inline int16_t sum_bytes(__m128i q)
{
    const __m128i sums = _mm_sad_epu8(_mm_xor_si128(q, _mm_set1_epi8((char)0x80)), _mm_setzero_si128());
    return (int16_t)(_mm_cvtsi128_si32(sums) + _mm_extract_epi16(sums, 4) - 16 * 128);
}

static inline void quantize_flat(int8_t *q, float *d, int16_t *hsum, float scale)
{
    memset(q, 0, LVR_BLOCK);
    *d = scale;
    hsum[0] = hsum[1] = 0;
}

/* 16 codes. They are within [-127, 127]: saturation changes none. */
static inline __m128i quantize_half(__m512 x, __m512 inverse)
{
    return _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(x, inverse)));
}

static inline void quantize_block(const float *x, int8_t *q, float *d, int16_t *hsum)
{
    const __m512 v0 = _mm512_loadu_ps(x), v1 = _mm512_loadu_ps(x + 16);
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    const __m512i m0 = _mm512_and_si512(_mm512_castps_si512(v0), magnitude);
    const __m512i m1 = _mm512_and_si512(_mm512_castps_si512(v1), magnitude);
    const uint32_t bits = max_epi32_lanes(_mm512_max_epi32(m0, m1));
    if (bits >= 0x7f800000u) {
        quantize_flat(q, d, hsum, NAN);
        return;
    }
    const float amax = lvr_bits_f32(bits);
    if (amax < LVR_QUANT_MIN_AMAX) {
        quantize_flat(q, d, hsum, 0.0f);
        return;
    }
    const __m512 inverse = _mm512_set1_ps(127.0f / amax);
    const __m128i q0 = quantize_half(v0, inverse), q1 = quantize_half(v1, inverse);
    _mm_storeu_si128((__m128i *)(void *)q, q0);
    _mm_storeu_si128((__m128i *)(void *)(q + 16), q1);
    *d = amax / 127.0f;
    hsum[0] = sum_bytes(q0);
    hsum[1] = sum_bytes(q1);
}

static void avx512_quantize_row(const float *x, uint32_t n_in, int8_t *q, float *d, int16_t *hsum)
{
    for (size_t b = 0; b < n_in / LVR_BLOCK; b++)
        quantize_block(x + b * LVR_BLOCK, q + b * LVR_BLOCK, d + b, hsum + 2 * b);
}

/* ---- element by element ---- */

/* Absent lanes add +0. */
static float sum_of_squares(const float *x, uint32_t n)
{
    __m512 p = _mm512_setzero_ps();
    for (uint32_t i = 0; i < n; i += 16) {
        const __m512 v = _mm512_maskz_loadu_ps(lanes_left(n, i), x + i);
        p = _mm512_fmadd_ps(v, v, p);
    }
    return fold_sum(p);
}

static void avx512_rmsnorm(const float *x, const float *w, uint32_t n, float eps, float *y)
{
    const __m512 scale = _mm512_set1_ps(1.0f / sqrtf(sum_of_squares(x, n) / (float)n + eps));
    for (uint32_t i = 0; i < n; i += 16) {
        const __mmask16 mask = lanes_left(n, i);
        const __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, x + i), scale);
        _mm512_mask_storeu_ps(y + i, mask, _mm512_mul_ps(v, _mm512_maskz_loadu_ps(mask, w + i)));
    }
}

static void avx512_silu_mul(const float *g, const float *u, uint32_t n, float *y)
{
    const __m512i sign = _mm512_set1_epi32((int32_t)0x80000000u);
    for (uint32_t i = 0; i < n; i += 16) {
        const __mmask16 mask = lanes_left(n, i);
        const __m512 v = _mm512_maskz_loadu_ps(mask, g + i);
        const __m512 minus = _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(v), sign));
        const __m512 silu = _mm512_div_ps(v, _mm512_add_ps(_mm512_set1_ps(1.0f), exp16(minus)));
        _mm512_mask_storeu_ps(y + i, mask, _mm512_mul_ps(silu, _mm512_maskz_loadu_ps(mask, u + i)));
    }
}

/* ---- softmax ---- */

static float avx512_softmax_exp(const float *x, uint32_t n, float max, float scale, float *p)
{
    const __m512 vmax = _mm512_set1_ps(max), vscale = _mm512_set1_ps(scale);
    __m512 sum = _mm512_setzero_ps();
    for (uint32_t i = 0; i < n; i += 16) {
        const __mmask16 mask = lanes_left(n, i);
        const __m512 v = _mm512_maskz_loadu_ps(mask, x + i);
        const __m512 e = exp16(_mm512_mul_ps(_mm512_sub_ps(v, vmax), vscale));
        _mm512_mask_storeu_ps(p + i, mask, e);
        sum = _mm512_mask_add_ps(sum, mask, sum, e);
    }
    return fold_sum(sum);
}

void lvr_kernels_init_avx512(lvr_kernels *k)
{
    lvr_kernels_init_avx512_matmul(k);
    k->quantize_row = avx512_quantize_row;
    k->rmsnorm = avx512_rmsnorm;
    k->silu_mul = avx512_silu_mul;
    k->softmax_exp = avx512_softmax_exp;
}
