/* NEON: the sweeps of attention. A score's 16 partials are four registers. */
#include "engine/kernels/levels.h"

#include <arm_neon.h>

#define INLINE static inline __attribute__((always_inline))
#define KEYS_AT_A_TIME(n_q) (4 / (n_q))
#define PARTS_AT_A_TIME(n_q) (4 / (n_q))
#define LANES 4u

/* 16 elements of a row, or 16 partials. */
typedef struct floats16 {
    float32x4_t v[4];
} floats16;

/* The scale of the block that element i belongs to; none for F16. */
INLINE float32x4_t scale_at(const lvr_kv_type type, const uint8_t *row, uint32_t head_dim, uint32_t i)
{
    uint16_t half;
    if (type == LVR_KV_F16)
        return vdupq_n_f32(0.0f);
    memcpy(&half, row + head_dim + i / LVR_BLOCK * 2, sizeof half);
    return vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(half)));
}

INLINE void halves_of(uint8x16_t bytes, float32x4_t *ret)
{
    const float16x8_t half = vreinterpretq_f16_u8(bytes);
    ret[0] = vcvt_f32_f16(vget_low_f16(half));
    ret[1] = vcvt_high_f32_f16(half);
}

INLINE void codes_of(int8x8_t q, float32x4_t scale, float32x4_t *ret)
{
    const int16x8_t wide = vmovl_s8(q);
    ret[0] = vmulq_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))), scale);
    ret[1] = vmulq_f32(vcvtq_f32_s32(vmovl_high_s16(wide)), scale);
}

INLINE floats16 load_16(const lvr_kv_type type, const uint8_t *row, uint32_t i, float32x4_t scale)
{
    floats16 x;
    if (type == LVR_KV_F16) {
        halves_of(vld1q_u8(row + 2 * (size_t)i), x.v);
        halves_of(vld1q_u8(row + 2 * (size_t)i + 16), x.v + 2);
        return x;
    }
    const int8x16_t q = vreinterpretq_s8_u8(vld1q_u8(row + i));
    codes_of(vget_low_s8(q), scale, x.v);
    codes_of(vget_high_s8(q), scale, x.v + 2);
    return x;
}

/* ---- keys ---- */

/* 16 partials to 4: + [i+8], then + [i+4]. */
INLINE float32x4_t fold_to_4(const floats16 *s)
{
    return vaddq_f32(vaddq_f32(s->v[0], s->v[2]), vaddq_f32(s->v[1], s->v[3]));
}

/* Of two scores' four partials: (a[0] + a[2], a[1] + a[3], b[0] + b[2], b[1] + b[3]). */
INLINE float32x4_t fold_two(const floats16 *a, const floats16 *b)
{
    const float32x4_t s = fold_to_4(a), t = fold_to_4(b);
    return vaddq_f32(vcombine_f32(vget_low_f32(s), vget_low_f32(t)),
                     vcombine_f32(vget_high_f32(s), vget_high_f32(t)));
}

INLINE void add_products(const float *q, const floats16 *key, floats16 *sum)
{
    for (unsigned part = 0; part < 4; part++)
        sum->v[part] = vfmaq_f32(sum->v[part], vld1q_f32(q + LANES * part), key->v[part]);
}

/* Four scores of n_q queries and 4 / n_q keys, by query, then by key: their multiply-adds are independent. */
INLINE float32x4_t dot_4(const lvr_kv_type type, const unsigned n_q, const float *q, const uint8_t *rows,
                         size_t row_bytes, uint32_t head_dim)
{
    const unsigned n_k = 4 / n_q;
    const float32x4_t zero = vdupq_n_f32(0.0f);
    floats16 sums[4];
    for (unsigned t = 0; t < 4; t++)
        sums[t] = (floats16){{zero, zero, zero, zero}};
    for (uint32_t i = 0; i < head_dim; i += LVR_BLOCK / 2)
        for (unsigned k = 0; k < n_k; k++) {
            const uint8_t *row = rows + k * row_bytes;
            const floats16 key = load_16(type, row, i, scale_at(type, row, head_dim, i));
            for (unsigned t = 0; t < n_q; t++)
                add_products(q + (size_t)t * head_dim + i, &key, &sums[t * n_k + k]);
        }
    return vpaddq_f32(fold_two(&sums[0], &sums[1]), fold_two(&sums[2], &sums[3]));
}

INLINE void store_scores(const unsigned n_q, float32x4_t s, float *scores, size_t stride)
{
    if (n_q == 1) {
        vst1q_f32(scores, s);
    } else if (n_q == 2) {
        vst1_f32(scores, vget_low_f32(s));
        vst1_f32(scores + stride, vget_high_f32(s));
    } else {
        vst1q_lane_f32(scores, s, 0);
        vst1q_lane_f32(scores + stride, s, 1);
        vst1q_lane_f32(scores + 2 * stride, s, 2);
        vst1q_lane_f32(scores + 3 * stride, s, 3);
    }
}

INLINE void dot_keys(const lvr_kv_type type, const unsigned n_q, const float *q, const uint8_t *rows,
                     size_t row_bytes, uint32_t head_dim, float *scores, size_t stride)
{
    store_scores(n_q, dot_4(type, n_q, q, rows, row_bytes, head_dim), scores, stride);
}

INLINE float dot_1(const lvr_kv_type type, const float *q, const uint8_t *row, uint32_t head_dim)
{
    const float32x4_t zero = vdupq_n_f32(0.0f);
    floats16 sum = {{zero, zero, zero, zero}};
    for (uint32_t i = 0; i < head_dim; i += LVR_BLOCK / 2) {
        const floats16 key = load_16(type, row, i, scale_at(type, row, head_dim, i));
        add_products(q + i, &key, &sum);
    }
    const float32x4_t s4 = fold_to_4(&sum);
    const float32x2_t s2 = vadd_f32(vget_low_f32(s4), vget_high_f32(s4));
    return vget_lane_f32(s2, 0) + vget_lane_f32(s2, 1);
}

/* ---- values ---- */

/* The 16 * n_part elements from `at` on of n_q queries' accumulators: as many independent chains of
 * multiply-adds. */
INLINE void weigh_part(const lvr_kv_type type, const unsigned n_q, const unsigned n_part, const float *p,
                       size_t stride, const uint8_t *rows, uint32_t n, uint32_t head_dim, uint32_t at,
                       float *acc)
{
    const size_t row_bytes = lvr_kv_row_bytes(type, head_dim);
    floats16 sum[4][4];
    for (unsigned t = 0; t < n_q; t++)
        for (unsigned e = 0; e < n_part; e++)
            for (unsigned part = 0; part < 4; part++)
                sum[t][e].v[part] = vld1q_f32(acc + (size_t)t * head_dim + at + 16 * e + LANES * part);
    for (uint32_t j = 0; j < n; j++, rows += row_bytes)
        for (unsigned e = 0; e < n_part; e++) {
            const uint32_t i = at + 16 * e;
            const floats16 value = load_16(type, rows, i, scale_at(type, rows, head_dim, i));
            for (unsigned t = 0; t < n_q; t++)
                for (unsigned part = 0; part < 4; part++)
                    sum[t][e].v[part] = vfmaq_n_f32(sum[t][e].v[part], value.v[part], p[t * stride + j]);
        }
    for (unsigned t = 0; t < n_q; t++)
        for (unsigned e = 0; e < n_part; e++)
            for (unsigned part = 0; part < 4; part++)
                vst1q_f32(acc + (size_t)t * head_dim + at + 16 * e + LANES * part, sum[t][e].v[part]);
}

#include "engine/kernels/attention_sweeps.h"

void lvr_kernels_init_neon_attention(lvr_kernels *k)
{
    use_attention(k);
}
