/* NEON (ASIMD, of every arm64 CPU): everything but the matrix products and attention (arm_neon_*.c). Same
 * operations in the same order as ref.c, four lanes at a time: the 16 partials of a reduction are four
 * registers. */
#include "engine/kernels/levels.h"

#include <arm_neon.h>
#include <math.h>

#define LANES 4u

/* The 16 interleaved partials of a reduction: element i of a row belongs to partial i % 16. */
typedef struct partials {
    float32x4_t p[4];
} partials;

static inline partials partials_of(float v)
{
    return (partials){{vdupq_n_f32(v), vdupq_n_f32(v), vdupq_n_f32(v), vdupq_n_f32(v)}};
}

/* First n < 4 lanes from memory, the others `absent`. */
static inline float32x4_t load_part(const float *x, uint32_t n, float absent)
{
    float v[LANES] = {absent, absent, absent, absent};
    memcpy(v, x, n * sizeof *v);
    return vld1q_f32(v);
}

static inline void store_part(float *y, uint32_t n, float32x4_t v)
{
    float lanes[LANES];
    vst1q_f32(lanes, v);
    memcpy(y, lanes, n * sizeof *lanes);
}

static inline float32x4_t load_half4(const uint16_t *h)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(h)));
}

/* 16 partials to 4: + [i+8], then + [i+4]. */
static inline float32x4_t fold_to_4(const float32x4_t p[4])
{
    return vaddq_f32(vaddq_f32(p[0], p[2]), vaddq_f32(p[1], p[3]));
}

static inline float fold_sum(const partials *p)
{
    const float32x4_t s4 = fold_to_4(p->p);
    const float32x2_t s2 = vadd_f32(vget_low_f32(s4), vget_high_f32(s4));
    return vget_lane_f32(s2, 0) + vget_lane_f32(s2, 1);
}

/* lvr_expf of each lane. Lanes out of range compute nonsense, which is replaced at the end. */
static inline float32x4_t exp4(float32x4_t x)
{
    const float32x4_t round = vdupq_n_f32(LVR_EXP_ROUND), one = vdupq_n_f32(1.0f);
    const float32x4_t n = vsubq_f32(vfmaq_f32(round, x, vdupq_n_f32(LVR_EXP_LOG2E)), round);
    float32x4_t r = vfmsq_f32(x, n, vdupq_n_f32(LVR_EXP_LN2_HI));
    r = vfmsq_f32(r, n, vdupq_n_f32(LVR_EXP_LN2_LO));
    float32x4_t p = vfmaq_f32(vdupq_n_f32(LVR_EXP_C5), vdupq_n_f32(LVR_EXP_C6), r);
    p = vfmaq_f32(vdupq_n_f32(LVR_EXP_C4), p, r);
    p = vfmaq_f32(vdupq_n_f32(LVR_EXP_C3), p, r);
    p = vfmaq_f32(vdupq_n_f32(LVR_EXP_C2), p, r);
    p = vfmaq_f32(one, p, r);
    p = vfmaq_f32(one, p, r);
    const int32x4_t bias = vdupq_n_s32(127);
    const int32x4_t exponent = vcvtq_s32_f32(n);
    const int32x4_t half = vshrq_n_s32(exponent, 1);
    const int32x4_t rest = vsubq_s32(exponent, half);
    p = vmulq_f32(p, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(half, bias), 23)));
    p = vmulq_f32(p, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(rest, bias), 23)));
    p = vbslq_f32(vcltq_f32(x, vdupq_n_f32(LVR_EXP_MIN)), vdupq_n_f32(0.0f), p);
    p = vbslq_f32(vcgtq_f32(x, vdupq_n_f32(LVR_EXP_MAX)), vdupq_n_f32(INFINITY), p);
    return vbslq_f32(vceqq_f32(x, x), p, vaddq_f32(x, x));
}

/* ---- quantised activations ---- */

static inline void quantize_flat(int8_t *q, float *d, int16_t *hsum, float scale)
{
    memset(q, 0, LVR_BLOCK);
    *d = scale;
    hsum[0] = hsum[1] = 0;
}

/* Largest magnitude of a block as bits, NaN above infinity. */
static inline uint32_t max_magnitude_bits(const float32x4_t v[8])
{
    uint32x4_t most = vdupq_n_u32(0);
    for (int i = 0; i < 8; i++)
        most = vmaxq_u32(most, vreinterpretq_u32_f32(vabsq_f32(v[i])));
    return vmaxvq_u32(most);
}

/* 16 activations to codes; returns their sum. */
static inline int16_t quantize_half(const float32x4_t v[4], float inverse, int8_t *q)
{
    int32x4_t c[4];
    for (int i = 0; i < 4; i++)
        c[i] = vcvtnq_s32_f32(vmulq_n_f32(v[i], inverse));
    const int16x8_t lo = vcombine_s16(vmovn_s32(c[0]), vmovn_s32(c[1]));
    const int16x8_t hi = vcombine_s16(vmovn_s32(c[2]), vmovn_s32(c[3]));
    vst1q_s8(q, vcombine_s8(vmovn_s16(lo), vmovn_s16(hi)));
    return vaddvq_s16(vaddq_s16(lo, hi));
}

static void quantize_block(const float *x, int8_t *q, float *d, int16_t *hsum)
{
    float32x4_t v[8];
    for (int i = 0; i < 8; i++)
        v[i] = vld1q_f32(x + 4 * i);
    const uint32_t bits = max_magnitude_bits(v);
    if (bits >= 0x7f800000u) {
        quantize_flat(q, d, hsum, NAN);
        return;
    }
    const float amax = lvr_bits_f32(bits);
    if (amax < LVR_QUANT_MIN_AMAX) {
        quantize_flat(q, d, hsum, 0.0f);
        return;
    }
    const float inverse = 127.0f / amax;
    hsum[0] = quantize_half(v, inverse, q);
    hsum[1] = quantize_half(v + 4, inverse, q + LVR_BLOCK / 2u);
    *d = amax / 127.0f;
}

static void neon_quantize_row(const float *x, uint32_t n_in, int8_t *q, float *d, int16_t *hsum)
{
    for (size_t b = 0; b < n_in / LVR_BLOCK; b++)
        quantize_block(x + b * LVR_BLOCK, q + b * LVR_BLOCK, d + b, hsum + 2 * b);
}

/* ---- element by element ---- */

static float sum_of_squares(const float *x, uint32_t n)
{
    partials s = partials_of(0.0f);
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (uint32_t t = 0; t < 4; t++) {
            const float32x4_t v = vld1q_f32(x + i + LANES * t);
            s.p[t] = vfmaq_f32(s.p[t], v, v);
        }
    uint32_t t = 0;
    for (; i + LANES <= n; i += LANES, t++) {
        const float32x4_t v = vld1q_f32(x + i);
        s.p[t] = vfmaq_f32(s.p[t], v, v);
    }
    if (i < n) { /* absent lanes add +0 */
        const float32x4_t v = load_part(x + i, n - i, 0.0f);
        s.p[t] = vfmaq_f32(s.p[t], v, v);
    }
    return fold_sum(&s);
}

static void neon_rmsnorm(const float *x, const float *w, uint32_t n, float eps, float *y)
{
    const float scale = 1.0f / sqrtf(sum_of_squares(x, n) / (float)n + eps);
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        vst1q_f32(y + i, vmulq_f32(vmulq_n_f32(vld1q_f32(x + i), scale), vld1q_f32(w + i)));
    for (; i < n; i++)
        y[i] = x[i] * scale * w[i];
}

static inline float32x4_t silu_mul4(float32x4_t g, float32x4_t u)
{
    return vmulq_f32(vdivq_f32(g, vaddq_f32(vdupq_n_f32(1.0f), exp4(vnegq_f32(g)))), u);
}

static void neon_silu_mul(const float *g, const float *u, uint32_t n, float *y)
{
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        vst1q_f32(y + i, silu_mul4(vld1q_f32(g + i), vld1q_f32(u + i)));
    if (i < n)
        store_part(y + i, n - i, silu_mul4(load_part(g + i, n - i, 0.0f), load_part(u + i, n - i, 0.0f)));
}

static void neon_add(const float *a, const float *b, uint32_t n, float *y)
{
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        vst1q_f32(y + i, vaddq_f32(vld1q_f32(a + i), vld1q_f32(b + i)));
    for (; i < n; i++)
        y[i] = a[i] + b[i];
}

static void rotate_head(float *head, uint32_t head_dim, const float *cs)
{
    uint32_t i = 0;
    for (; i + 8 <= head_dim; i += 8) {
        const float32x4x2_t x = vld2q_f32(head + i), c = vld2q_f32(cs + i);
        const float32x4_t a = x.val[0], b = x.val[1], cosine = c.val[0], sine = c.val[1];
        const float32x4x2_t y = {
            {vfmaq_f32(vnegq_f32(vmulq_f32(b, sine)), a, cosine), vfmaq_f32(vmulq_f32(a, sine), b, cosine)}};
        vst2q_f32(head + i, y);
    }
    for (; i + 1 < head_dim; i += 2) {
        const float a = head[i], b = head[i + 1];
        head[i] = fmaf(a, cs[i], -(b * cs[i + 1]));
        head[i + 1] = fmaf(b, cs[i], a * cs[i + 1]);
    }
}

static void neon_rope(float *x, uint32_t n_heads, uint32_t head_dim, const float *cs)
{
    for (uint32_t h = 0; h < n_heads; h++)
        rotate_head(x + (size_t)h * head_dim, head_dim, cs);
}

static void neon_f32_to_f16(const float *x, uint32_t n, uint16_t *y)
{
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        vst1_u16(y + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(x + i))));
    for (; i < n; i++)
        y[i] = lvr_f32_to_f16(x[i]);
}

static void neon_f16_to_f32(const uint16_t *x, uint32_t n, float *y)
{
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        vst1q_f32(y + i, load_half4(x + i));
    for (; i < n; i++)
        y[i] = lvr_f16_to_f32(x[i]);
}

/* ---- softmax ---- */

/* FMAX and FMAXNM order -0 below +0 and treat NaNs otherwise: this is the reference's a > b ? a : b. */
static inline float32x4_t max4(float32x4_t a, float32x4_t b)
{
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}

static inline float max1(float a, float b)
{
    return a > b ? a : b;
}

static float neon_max(const float *x, uint32_t n)
{
    partials m = partials_of(-INFINITY);
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (uint32_t t = 0; t < 4; t++)
            m.p[t] = max4(vld1q_f32(x + i + LANES * t), m.p[t]);
    uint32_t t = 0;
    for (; i + LANES <= n; i += LANES, t++)
        m.p[t] = max4(vld1q_f32(x + i), m.p[t]);
    if (i < n)
        m.p[t] = max4(load_part(x + i, n - i, -INFINITY), m.p[t]);
    const float32x4_t m4 = max4(max4(m.p[3], m.p[1]), max4(m.p[2], m.p[0]));
    const float even = max1(vgetq_lane_f32(m4, 2), vgetq_lane_f32(m4, 0));
    const float odd = max1(vgetq_lane_f32(m4, 3), vgetq_lane_f32(m4, 1));
    return max1(odd, even);
}

static inline float32x4_t softmax_exp4(float32x4_t x, float max, float scale)
{
    return exp4(vmulq_n_f32(vsubq_f32(x, vdupq_n_f32(max)), scale));
}

static float neon_softmax_exp(const float *x, uint32_t n, float max, float scale, float *p)
{
    partials sum = partials_of(0.0f);
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (uint32_t t = 0; t < 4; t++) {
            const float32x4_t e = softmax_exp4(vld1q_f32(x + i + LANES * t), max, scale);
            vst1q_f32(p + i + LANES * t, e);
            sum.p[t] = vaddq_f32(sum.p[t], e);
        }
    uint32_t t = 0;
    for (; i + LANES <= n; i += LANES, t++) {
        const float32x4_t e = softmax_exp4(vld1q_f32(x + i), max, scale);
        vst1q_f32(p + i, e);
        sum.p[t] = vaddq_f32(sum.p[t], e);
    }
    if (i < n) { /* absent lanes add +0 */
        store_part(p + i, n - i, softmax_exp4(load_part(x + i, n - i, 0.0f), max, scale));
        sum.p[t] = vaddq_f32(sum.p[t], load_part(p + i, n - i, 0.0f));
    }
    return fold_sum(&sum);
}

void lvr_kernels_init_neon(lvr_kernels *k)
{
    lvr_kernels_init_neon_matmul(k);
    lvr_kernels_init_neon_attention(k);
    k->quantize_row = neon_quantize_row;
    k->rmsnorm = neon_rmsnorm;
    k->silu_mul = neon_silu_mul;
    k->add = neon_add;
    k->rope = neon_rope;
    k->f32_to_f16 = neon_f32_to_f16;
    k->f16_to_f32 = neon_f16_to_f32;
    k->softmax_exp = neon_softmax_exp;
    k->max = neon_max;
}
