/*
 * DOTPROD (Armv8.2's dot product): SDOT adds four products s8 x s8 to each of four sums, here one quad of
 * codes of four outputs times one quad of activations, picked by lane. Codes of 4 to 6 bits are signed bytes
 * as they are; Q8_0's become so by flipping the sign bit, which takes their bias off.
 */
#include "engine/kernels/levels.h"

#include <arm_neon.h>

#define INLINE static inline __attribute__((always_inline))
#define SUM_REGISTERS 1u
#define ROW_PAIRS false
#define CODES_SIGNED true

typedef struct unit_sums {
    int32x4_t s[1];
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
    const int8x16_t s0 = vreinterpretq_s8_u8(w0), s1 = vreinterpretq_s8_u8(w1);
    if (k == 0)
        sums->s[0] = vdotq_laneq_s32(vdotq_laneq_s32(sums->s[0], s0, *q, 0), s1, *q, 1);
    else
        sums->s[0] = vdotq_laneq_s32(vdotq_laneq_s32(sums->s[0], s0, *q, 2), s1, *q, 3);
}

INLINE int32x4_t row_sums(const unit_sums *sums, unsigned row, bool paired)
{
    (void)row;
    (void)paired;
    return sums->s[0];
}

#include "engine/kernels/arm_matmul.h"

void lvr_kernels_init_dotprod(lvr_kernels *k)
{
    use_quantised_products(k);
}
