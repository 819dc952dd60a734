/* AVX2 + FMA + F16C: everything but the matrix products and attention (x86_avx2_*.c). Same operations in the
 * same order as ref.c, eight lanes at a time. */
#include "engine/kernels/levels.h"

#include <immintrin.h>
#include <math.h>

/* The 16 interleaved partials of a reduction: element i of a row belongs to partial i % 16. */
typedef struct partials {
    __m256 lo, hi;
} partials;

/* First n of 8 lanes set. */
static inline __m256i lane_mask(uint32_t n)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), lane);
}

static inline uint32_t at_most_8(uint32_t n)
{
    return n < 8 ? n : 8;
}

static inline __m256 load_half8(const uint16_t *h)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)h));
}

/* 8 partials (already folded from 16) to 1: + [i+4], + [i+2], + [i+1]. */
static inline float fold_sum8(__m256 p)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(p), _mm256_extractf128_ps(p, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

static inline float fold_sum(partials p)
{
    return fold_sum8(_mm256_add_ps(p.lo, p.hi));
}

/* lvr_expf of each lane. */
static inline __m256 exp8(__m256 x)
{
    const __m256 least = _mm256_set1_ps(LVR_EXP_MIN), most = _mm256_set1_ps(LVR_EXP_MAX);
    const __m256 round = _mm256_set1_ps(LVR_EXP_ROUND), one = _mm256_set1_ps(1.0f);
    const __m256 in =
        _mm256_min_ps(_mm256_max_ps(x, least), most); /* the results of clamped lanes are replaced below */
    const __m256 n = _mm256_sub_ps(_mm256_fmadd_ps(in, _mm256_set1_ps(LVR_EXP_LOG2E), round), round);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(LVR_EXP_LN2_HI), in);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(LVR_EXP_LN2_LO), r);
    __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(LVR_EXP_C6), r, _mm256_set1_ps(LVR_EXP_C5));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(LVR_EXP_C4));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(LVR_EXP_C3));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(LVR_EXP_C2));
    p = _mm256_fmadd_ps(p, r, one);
    p = _mm256_fmadd_ps(p, r, one);
    const __m256i bias = _mm256_set1_epi32(127);
    const __m256i exponent = _mm256_cvtps_epi32(n);
    const __m256i half = _mm256_srai_epi32(exponent, 1);
    const __m256i rest = _mm256_sub_epi32(exponent, half);
    p = _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23)));
    p = _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23)));
    p = _mm256_andnot_ps(_mm256_cmp_ps(x, least, _CMP_LT_OQ), p);
    p = _mm256_blendv_ps(p, _mm256_set1_ps(INFINITY), _mm256_cmp_ps(x, most, _CMP_GT_OQ));
    return _mm256_blendv_ps(p, _mm256_add_ps(x, x), _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

/* ---- quantised activations ---- */

static inline uint32_t max_epi32_lanes(__m256i v)
{
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, _MM_SHUFFLE(1, 0, 3, 2)));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, _MM_SHUFFLE(2, 3, 0, 1)));
    return (uint32_t)_mm_cvtsi128_si32(m);
}

static inline int32_t sum_epi32_lanes(__m256i v)
{
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, _MM_SHUFFLE(1, 0, 3, 2)));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, _MM_SHUFFLE(2, 3, 0, 1)));
    return _mm_cvtsi128_si32(s);
}

static inline void quantize_flat(int8_t *q, float *d, int16_t *hsum, float scale)
{
    memset(q, 0, LVR_BLOCK);
    *d = scale;
    hsum[0] = hsum[1] = 0;
}

static inline void quantize_block(const float *x, int8_t *q, float *d, int16_t *hsum)
{
    const __m256 v0 = _mm256_loadu_ps(x), v1 = _mm256_loadu_ps(x + 8);
    const __m256 v2 = _mm256_loadu_ps(x + 16), v3 = _mm256_loadu_ps(x + 24);
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    const __m256i m0 = _mm256_and_si256(_mm256_castps_si256(v0), magnitude);
    const __m256i m1 = _mm256_and_si256(_mm256_castps_si256(v1), magnitude);
    const __m256i m2 = _mm256_and_si256(_mm256_castps_si256(v2), magnitude);
    const __m256i m3 = _mm256_and_si256(_mm256_castps_si256(v3), magnitude);
    const uint32_t bits =
        max_epi32_lanes(_mm256_max_epi32(_mm256_max_epi32(m0, m1), _mm256_max_epi32(m2, m3)));
    if (bits >= 0x7f800000u) {
        quantize_flat(q, d, hsum, NAN);
        return;
    }
    const float amax = lvr_bits_f32(bits);
    if (amax < LVR_QUANT_MIN_AMAX) {
        quantize_flat(q, d, hsum, 0.0f);
        return;
    }
    const __m256 inverse = _mm256_set1_ps(127.0f / amax);
    const __m256i q0 = _mm256_cvtps_epi32(_mm256_mul_ps(v0, inverse));
    const __m256i q1 = _mm256_cvtps_epi32(_mm256_mul_ps(v1, inverse));
    const __m256i q2 = _mm256_cvtps_epi32(_mm256_mul_ps(v2, inverse));
    const __m256i q3 = _mm256_cvtps_epi32(_mm256_mul_ps(v3, inverse));
    /* The packs work within 128-bit halves; the permutation restores the order. */
    const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(q0, q1), _mm256_packs_epi32(q2, q3));
    const __m256i ordered = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)(void *)q, ordered);
    *d = amax / 127.0f;
    hsum[0] = (int16_t)sum_epi32_lanes(_mm256_add_epi32(q0, q1));
    hsum[1] = (int16_t)sum_epi32_lanes(_mm256_add_epi32(q2, q3));
}

static void avx2_quantize_row(const float *x, uint32_t n_in, int8_t *q, float *d, int16_t *hsum)
{
    for (size_t b = 0; b < n_in / LVR_BLOCK; b++)
        quantize_block(x + b * LVR_BLOCK, q + b * LVR_BLOCK, d + b, hsum + 2 * b);
}

/* ---- element by element ---- */

static float sum_of_squares(const float *x, uint32_t n)
{
    partials p = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const __m256 lo = _mm256_loadu_ps(x + i), hi = _mm256_loadu_ps(x + i + 8);
        p.lo = _mm256_fmadd_ps(lo, lo, p.lo);
        p.hi = _mm256_fmadd_ps(hi, hi, p.hi);
    }
    if (i < n) { /* absent lanes add +0 */
        const __m256 lo = _mm256_maskload_ps(x + i, lane_mask(n - i));
        p.lo = _mm256_fmadd_ps(lo, lo, p.lo);
    }
    if (i + 8 < n) {
        const __m256 hi = _mm256_maskload_ps(x + i + 8, lane_mask(n - i - 8));
        p.hi = _mm256_fmadd_ps(hi, hi, p.hi);
    }
    return fold_sum(p);
}

static void avx2_rmsnorm(const float *x, const float *w, uint32_t n, float eps, float *y)
{
    const __m256 scale = _mm256_set1_ps(1.0f / sqrtf(sum_of_squares(x, n) / (float)n + eps));
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i,
                         _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + i), scale), _mm256_loadu_ps(w + i)));
    if (i == n)
        return;
    const __m256i mask = lane_mask(n - i);
    const __m256 v = _mm256_mul_ps(_mm256_maskload_ps(x + i, mask), scale);
    _mm256_maskstore_ps(y + i, mask, _mm256_mul_ps(v, _mm256_maskload_ps(w + i, mask)));
}

static inline __m256 silu_mul8(__m256 g, __m256 u)
{
    const __m256 minus_g = _mm256_xor_ps(g, _mm256_set1_ps(-0.0f));
    return _mm256_mul_ps(_mm256_div_ps(g, _mm256_add_ps(_mm256_set1_ps(1.0f), exp8(minus_g))), u);
}

static void avx2_silu_mul(const float *g, const float *u, uint32_t n, float *y)
{
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, silu_mul8(_mm256_loadu_ps(g + i), _mm256_loadu_ps(u + i)));
    if (i == n)
        return;
    const __m256i mask = lane_mask(n - i);
    const __m256 v = silu_mul8(_mm256_maskload_ps(g + i, mask), _mm256_maskload_ps(u + i, mask));
    _mm256_maskstore_ps(y + i, mask, v);
}

static void avx2_add(const float *a, const float *b, uint32_t n, float *y)
{
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_add_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i)));
    if (i == n)
        return;
    const __m256i mask = lane_mask(n - i);
    const __m256 v = _mm256_add_ps(_mm256_maskload_ps(a + i, mask), _mm256_maskload_ps(b + i, mask));
    _mm256_maskstore_ps(y + i, mask, v);
}

/* Four pairs: even lanes a cos - b sin, odd lanes b cos + a sin. */
static inline __m256 rotate8(__m256 x, __m256 cs)
{
    const __m256 crossed =
        _mm256_mul_ps(_mm256_permute_ps(x, _MM_SHUFFLE(2, 3, 0, 1)), _mm256_movehdup_ps(cs));
    return _mm256_fmaddsub_ps(x, _mm256_moveldup_ps(cs), crossed);
}

static void avx2_rope(float *x, uint32_t n_heads, uint32_t head_dim, const float *cs)
{
    const uint32_t paired = head_dim & ~1u;
    for (uint32_t h = 0; h < n_heads; h++) {
        float *head = x + (size_t)h * head_dim;
        uint32_t i = 0;
        for (; i + 8 <= paired; i += 8)
            _mm256_storeu_ps(head + i, rotate8(_mm256_loadu_ps(head + i), _mm256_loadu_ps(cs + i)));
        if (i == paired)
            continue;
        const __m256i mask = lane_mask(paired - i);
        const __m256 v = rotate8(_mm256_maskload_ps(head + i, mask), _mm256_maskload_ps(cs + i, mask));
        _mm256_maskstore_ps(head + i, mask, v);
    }
}

static void avx2_f32_to_f16(const float *x, uint32_t n, uint16_t *y)
{
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m128i h =
            _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        _mm_storeu_si128((__m128i *)(void *)(y + i), h);
    }
    for (; i < n; i++)
        y[i] = lvr_f32_to_f16(x[i]);
}

static void avx2_f16_to_f32(const uint16_t *x, uint32_t n, float *y)
{
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, load_half8(x + i));
    for (; i < n; i++)
        y[i] = lvr_f16_to_f32(x[i]);
}

/* ---- softmax ---- */

/* MAXPS gives its second operand for NaNs and for two zeros: the order of operands below is the reference's.
 */
static float avx2_max(const float *x, uint32_t n)
{
    const __m256 least = _mm256_set1_ps(-INFINITY);
    partials p = {least, least};
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        p.lo = _mm256_max_ps(_mm256_loadu_ps(x + i), p.lo);
        p.hi = _mm256_max_ps(_mm256_loadu_ps(x + i + 8), p.hi);
    }
    if (i < n) {
        const __m256i mask = lane_mask(n - i);
        const __m256 v = _mm256_blendv_ps(least, _mm256_maskload_ps(x + i, mask), _mm256_castsi256_ps(mask));
        p.lo = _mm256_max_ps(v, p.lo);
    }
    if (i + 8 < n) {
        const __m256i mask = lane_mask(n - i - 8);
        const __m256 v =
            _mm256_blendv_ps(least, _mm256_maskload_ps(x + i + 8, mask), _mm256_castsi256_ps(mask));
        p.hi = _mm256_max_ps(v, p.hi);
    }
    const __m256 m8 = _mm256_max_ps(p.hi, p.lo);
    __m128 m = _mm_max_ps(_mm256_extractf128_ps(m8, 1), _mm256_castps256_ps128(m8));
    m = _mm_max_ps(_mm_movehl_ps(m, m), m);
    return _mm_cvtss_f32(_mm_max_ss(_mm_movehdup_ps(m), m));
}

static inline __m256 softmax_exp8(__m256 x, __m256 max, __m256 scale)
{
    return exp8(_mm256_mul_ps(_mm256_sub_ps(x, max), scale));
}

static float avx2_softmax_exp(const float *x, uint32_t n, float max, float scale, float *p)
{
    const __m256 vmax = _mm256_set1_ps(max), vscale = _mm256_set1_ps(scale);
    partials sum = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const __m256 lo = softmax_exp8(_mm256_loadu_ps(x + i), vmax, vscale);
        const __m256 hi = softmax_exp8(_mm256_loadu_ps(x + i + 8), vmax, vscale);
        _mm256_storeu_ps(p + i, lo);
        _mm256_storeu_ps(p + i + 8, hi);
        sum.lo = _mm256_add_ps(sum.lo, lo);
        sum.hi = _mm256_add_ps(sum.hi, hi);
    }
    for (uint32_t half = 0; half < 2 && i < n;
         half++, i += 8) { /* at most 15 are left; absent lanes add +0 */
        const __m256i mask = lane_mask(at_most_8(n - i));
        const __m256 e = softmax_exp8(_mm256_maskload_ps(x + i, mask), vmax, vscale);
        const __m256 present = _mm256_and_ps(e, _mm256_castsi256_ps(mask));
        _mm256_maskstore_ps(p + i, mask, e);
        if (half == 0)
            sum.lo = _mm256_add_ps(sum.lo, present);
        else
            sum.hi = _mm256_add_ps(sum.hi, present);
    }
    return fold_sum(sum);
}

void lvr_kernels_init_avx2(lvr_kernels *k)
{
    lvr_kernels_init_avx2_matmul(k);
    lvr_kernels_init_avx2_dense(k);
    lvr_kernels_init_avx2_attention(k);
    k->quantize_row = avx2_quantize_row;
    k->rmsnorm = avx2_rmsnorm;
    k->silu_mul = avx2_silu_mul;
    k->add = avx2_add;
    k->rope = avx2_rope;
    k->f32_to_f16 = avx2_f32_to_f16;
    k->f16_to_f32 = avx2_f16_to_f32;
    k->softmax_exp = avx2_softmax_exp;
    k->max = avx2_max;
}
