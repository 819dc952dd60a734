/*
 * I8MM (Armv8.6's 8-bit matrix multiplication), u8 codes x s8 activations. Two rows or more go by pairs:
 * USMMLA multiplies 2 outputs x 8 inputs by 8 inputs x 2 rows, twice the work of USDOT. Two quads of codes,
 * zipped, are two such matrices of outputs. A single row goes by USDOT, as at the DOTPROD level, but without
 * flipping Q8_0's sign bits: the biases of all types are taken off by the sums of activations.
 */
#include "engine/kernels/levels.h"

#include <arm_neon.h>

#define INLINE static inline __attribute__((always_inline))
#define SUM_REGISTERS 1u
#define ROW_PAIRS true
#define CODES_SIGNED false

/* A row: outputs 0 to 3. A pair of rows a, b: outputs 0a, 0b, 1a, 1b, then 2a, 2b, 3a, 3b. */
typedef struct unit_sums {
    int32x4_t s[2];
} unit_sums;

/* A row: [0]. A pair: inputs 0 to 7 of both rows, then 8 to 15. */
typedef struct unit_acts {
    int8x16_t q[2];
} unit_acts;

INLINE void load_unit(unit_acts *ret, const int8_t *q, size_t stride, bool paired)
{
    const int8x16_t a = vld1q_s8(q);
    if (!paired) {
        ret->q[0] = a;
        return;
    }
    const int8x16_t b = vld1q_s8(q + stride);
    ret->q[0] = vcombine_s8(vget_low_s8(a), vget_low_s8(b));
    ret->q[1] = vcombine_s8(vget_high_s8(a), vget_high_s8(b));
}

INLINE int32x4_t dot_8_row(int32x4_t sum, uint8x16_t w0, uint8x16_t w1, int8x16_t q, unsigned k)
{
    if (k == 0)
        return vusdotq_laneq_s32(vusdotq_laneq_s32(sum, w0, q, 0), w1, q, 1);
    return vusdotq_laneq_s32(vusdotq_laneq_s32(sum, w0, q, 2), w1, q, 3);
}

INLINE void dot_8(unit_sums *sums, uint8x16_t w0, uint8x16_t w1, const unit_acts *q, unsigned k, bool paired)
{
    if (!paired) {
        sums->s[0] = dot_8_row(sums->s[0], w0, w1, q->q[0], k);
        return;
    }
    const uint32x4_t quads0 = vreinterpretq_u32_u8(w0), quads1 = vreinterpretq_u32_u8(w1);
    const uint8x16_t outputs01 = vreinterpretq_u8_u32(vzip1q_u32(quads0, quads1));
    const uint8x16_t outputs23 = vreinterpretq_u8_u32(vzip2q_u32(quads0, quads1));
    sums->s[0] = vusmmlaq_s32(sums->s[0], outputs01, q->q[k]);
    sums->s[1] = vusmmlaq_s32(sums->s[1], outputs23, q->q[k]);
}

INLINE int32x4_t row_sums(const unit_sums *sums, unsigned row, bool paired)
{
    if (!paired)
        return sums->s[0];
    return row == 0 ? vuzp1q_s32(sums->s[0], sums->s[1]) : vuzp2q_s32(sums->s[0], sums->s[1]);
}

#include "engine/kernels/arm_matmul.h"

void lvr_kernels_init_i8mm(lvr_kernels *k)
{
    use_quantised_products(k);
}
