/*
 * Between the levels, inside the kernels library: the reference functions (every level may fall back on
 * them), each level's rung of the ladder, and the sizes of the packed layout (kernels.h describes it).
 */
#ifndef LVR_ENGINE_KERNELS_LEVELS_H
#define LVR_ENGINE_KERNELS_LEVELS_H

#include "engine/kernels/kernels.h"

#include <string.h>

#define LVR_SCALES_BYTES (LVR_GROUP * 2u)                             /* f16 d[16] at the head of a block */
#define LVR_Q8_BLOCK_BYTES (LVR_SCALES_BYTES + LVR_GROUP * LVR_BLOCK) /* of one group */
#define LVR_Q4_BLOCK_BYTES (LVR_SCALES_BYTES + LVR_GROUP * LVR_BLOCK / 2u)
#define LVR_HIGH_BITS_BYTES (LVR_GROUP * 4u) /* the fifth bits of a block */
#define LVR_Q4_1_BLOCK_BYTES (LVR_Q4_BLOCK_BYTES + LVR_SCALES_BYTES)
#define LVR_Q5_0_BLOCK_BYTES (LVR_Q4_BLOCK_BYTES + LVR_HIGH_BITS_BYTES)
#define LVR_Q5_1_BLOCK_BYTES (LVR_Q4_1_BLOCK_BYTES + LVR_HIGH_BITS_BYTES)
#define LVR_SUPER 256u /* inputs per super-block of the K types */
#define LVR_SUPER_BLOCKS (LVR_SUPER / LVR_BLOCK)
#define LVR_NIBBLES_BYTES (LVR_GROUP * LVR_BLOCK / 2u)
#define LVR_K_HEAD_BYTES (2u * LVR_SCALES_BYTES + 2u * LVR_SUPER_BLOCKS * LVR_GROUP) /* of Q4_K and Q5_K */
#define LVR_Q4_K_SUPER_BYTES (LVR_K_HEAD_BYTES + LVR_SUPER_BLOCKS * LVR_NIBBLES_BYTES)
#define LVR_Q5_K_SUPER_BYTES (LVR_Q4_K_SUPER_BYTES + LVR_SUPER_BLOCKS * LVR_HIGH_BITS_BYTES)
#define LVR_Q6_K_HEAD_BYTES (LVR_SCALES_BYTES + 2u * LVR_SUPER_BLOCKS * LVR_GROUP)
#define LVR_Q6_K_BLOCK_BYTES (LVR_NIBBLES_BYTES + 2u * LVR_HIGH_BITS_BYTES) /* codes of 32 inputs */
#define LVR_Q6_K_SUPER_BYTES (LVR_Q6_K_HEAD_BYTES + LVR_SUPER_BLOCKS * LVR_Q6_K_BLOCK_BYTES)
#define LVR_Q8_BIAS 128 /* packed code - bias = weight */
#define LVR_Q4_BIAS 8

/* A block whose largest magnitude is below this is quantised as zeros: 127 / amax would overflow for amax <
 * 2^-121. */
#define LVR_QUANT_MIN_AMAX 0x1p-120f

/* exp: x = n ln 2 + r, |r| <= ln 2 / 2, exp(x) = 2^n P(r). P has least relative error on that interval
 * (Remez; each coefficient was rounded to float before the next was fitted; error of the polynomial alone:
 * 0.06 * 2^-24). ln 2 is split so that n * hi is exact. */
#define LVR_EXP_MIN (-87.0f) /* below: 0. Every other result is a normal number */
#define LVR_EXP_MAX 88.75f   /* above: infinity. exp overflows just before, at 88.7228 */
#define LVR_EXP_LOG2E 0x1.715476p+0f
#define LVR_EXP_LN2_HI 0x1.62e4p-1f
#define LVR_EXP_LN2_LO 0x1.7f7d1cp-20f
#define LVR_EXP_ROUND 0x1.8p23f /* adding it rounds to an integer held in the low bits */
#define LVR_EXP_C2 0x1.fffffcp-2f
#define LVR_EXP_C3 0x1.55548cp-3f
#define LVR_EXP_C4 0x1.55585ap-5f
#define LVR_EXP_C5 0x1.123d7p-7f
#define LVR_EXP_C6 0x1.6ab89ep-10f

static inline uint32_t lvr_f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float lvr_bits_f32(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint32_t lvr_group_count(uint32_t n_out)
{
    return n_out / LVR_GROUP + (n_out % LVR_GROUP != 0);
}

/* Outputs of group `group` that exist: 16, or fewer in the last one. */
static inline uint32_t lvr_group_width(const lvr_matrix *m, uint32_t group)
{
    const uint32_t left = m->n_out - group * LVR_GROUP;
    return left < LVR_GROUP ? left : LVR_GROUP;
}

/* The scale of a Q8_0 row's block. */
static inline float lvr_kv_scale(const uint8_t *row, uint32_t head_dim, uint32_t block)
{
    uint16_t half;
    memcpy(&half, row + head_dim + 2 * (size_t)block, sizeof half);
    return lvr_f16_to_f32(half);
}

uint64_t lvr_group_bytes(lvr_wtype t, uint32_t n_in); /* 0: unknown type, or n_in does not fit it */

/* lvr_kernels_init without asking whether the CPU has the level. */
void lvr_kernels_climb(lvr_kernels *k, lvr_cpu_level level);

/* Rungs. Each assumes that the ones below it have been climbed and that the CPU has the level. */
void lvr_kernels_init_c(lvr_kernels *k);
#if defined(__x86_64__)
void lvr_kernels_init_avx2(lvr_kernels *k);
/* What lives in files of its own: matrix products, quantised and the others, and attention. */
void lvr_kernels_init_avx2_matmul(lvr_kernels *k);
void lvr_kernels_init_avx2_dense(lvr_kernels *k);
void lvr_kernels_init_avx2_attention(lvr_kernels *k);
void lvr_kernels_init_avx512(lvr_kernels *k);
void lvr_kernels_init_avx512_matmul(lvr_kernels *k);
void lvr_kernels_init_amx(lvr_kernels *k);
void lvr_avx512_matmul(const lvr_matrix *m, const lvr_acts *a, uint32_t group_begin, uint32_t group_end,
                       float *out, size_t out_stride);
#elif defined(__aarch64__)
void lvr_kernels_init_neon(lvr_kernels *k);
void lvr_kernels_init_neon_matmul(lvr_kernels *k); /* likewise */
void lvr_kernels_init_neon_attention(lvr_kernels *k);
void lvr_kernels_init_dotprod(lvr_kernels *k);
void lvr_kernels_init_i8mm(lvr_kernels *k);
#endif

#endif
