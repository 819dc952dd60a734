/*
 * NEON matrix products. Bytes are multiplied into 16 bits (SMULL) and a second quad's products added there
 * (SMLAL): 2 * 128 * 127 = 32512 fits. SADALP then adds pairs of these to the sums, two lanes per output.
 */
#include "engine/kernels/levels.h"

#include <arm_neon.h>

#define INLINE static inline __attribute__((always_inline))
#define SUM_REGISTERS 2u
#define ROW_PAIRS false
#define CODES_SIGNED true

/* Two lanes for each of outputs 0 and 1, then of 2 and 3. */
typedef struct unit_sums {
    int32x4_t s[2];
} unit_sums;

typedef int8x16_t unit_acts;

INLINE void load_unit(unit_acts *ret, const int8_t *q, size_t stride, bool paired)
{
    (void)stride;
    (void)paired;
    *ret = vld1q_s8(q);
}

INLINE void dot_8(unit_sums *sums, uint8x16_t w0, uint8x16_t w1, const unit_acts *q, unsigned k, bool paired)
{
    (void)paired;
    const int32x4_t quads = vreinterpretq_s32_s8(*q);
    const int8x16_t q0 = vreinterpretq_s8_s32(k == 0 ? vdupq_laneq_s32(quads, 0) : vdupq_laneq_s32(quads, 2));
    const int8x16_t q1 = vreinterpretq_s8_s32(k == 0 ? vdupq_laneq_s32(quads, 1) : vdupq_laneq_s32(quads, 3));
    const int8x16_t s0 = vreinterpretq_s8_u8(w0), s1 = vreinterpretq_s8_u8(w1);
    const int16x8_t low =
        vmlal_s8(vmull_s8(vget_low_s8(s0), vget_low_s8(q0)), vget_low_s8(s1), vget_low_s8(q1));
    sums->s[0] = vpadalq_s16(sums->s[0], low);
    sums->s[1] = vpadalq_s16(sums->s[1], vmlal_high_s8(vmull_high_s8(s0, q0), s1, q1));
}

INLINE int32x4_t row_sums(const unit_sums *sums, unsigned row, bool paired)
{
    (void)row;
    (void)paired;
    return vpaddq_s32(sums->s[0], sums->s[1]);
}

#include "engine/kernels/arm_matmul.h"

/* ---- F32, F16, BF16 ---- */

#define DENSE_MAX_ROWS 4u

/* 4 weights as floats. */
INLINE float32x4_t load_weights4(const uint8_t *p, lvr_wtype t)
{
    if (t == LVR_F32)
        return vld1q_f32((const float *)(const void *)p);
    if (t == LVR_F16)
        return halves_of(p, 0);
    const uint16x4_t upper = vld1_u16((const uint16_t *)(const void *)p);
    return vreinterpretq_f32_u32(vshll_n_u16(upper, 16));
}

INLINE void dense_tile(const uint8_t *group, const lvr_acts *a, uint32_t row, float32x4_t *sums,
                       const lvr_wtype t, const unsigned n_rows)
{
    const size_t elem = t == LVR_F32 ? sizeof(float) : sizeof(uint16_t);
    const float *x = a->x + (size_t)row * a->n_in;
    float32x4_t acc[DENSE_MAX_ROWS][GROUP_VECTORS];
    for (unsigned r = 0; r < n_rows; r++)
        for (unsigned v = 0; v < GROUP_VECTORS; v++)
            acc[r][v] = vdupq_n_f32(0.0f);
    for (size_t i = 0; i < a->n_in; i++, group += LVR_GROUP * elem) {
        float32x4_t w[GROUP_VECTORS];
        for (unsigned v = 0; v < GROUP_VECTORS; v++)
            w[v] = load_weights4(group + 4u * v * elem, t);
        for (unsigned r = 0; r < n_rows; r++) {
            const float xi = x[(size_t)r * a->n_in + i];
            for (unsigned v = 0; v < GROUP_VECTORS; v++)
                acc[r][v] = vfmaq_n_f32(acc[r][v], w[v], xi);
        }
    }
    memcpy(sums, acc, n_rows * sizeof acc[0]);
}

#define DENSE(name, type)                                                                                    \
    INLINE void name##_tile(const uint8_t *group, const lvr_acts *a, uint32_t row, float32x4_t *sums,        \
                            const unsigned n_rows)                                                           \
    {                                                                                                        \
        dense_tile(group, a, row, sums, type, n_rows);                                                       \
    }                                                                                                        \
    TILE(name, 1, name##_tile)                                                                               \
    TILE(name, 2, name##_tile)                                                                               \
    TILE(name, 4, name##_tile)                                                                               \
    static const tile_fn name##_tiles[TILE_SIZES] = {name##_tile_1, name##_tile_2, name##_tile_4, NULL};     \
    PRODUCT(name)

DENSE(f32, LVR_F32)
DENSE(f16, LVR_F16)
DENSE(bf16, LVR_BF16)

void lvr_kernels_init_neon_matmul(lvr_kernels *k)
{
    use_quantised_products(k);
    k->matmul[LVR_F32] = matmul_f32;
    k->matmul[LVR_F16] = matmul_f16;
    k->matmul[LVR_BF16] = matmul_bf16;
}
