/*
 * One block of a group read back as plain codes, for every quantised type: what the types have in common.
 * Weight (o, i) = sc[i / 16][o] * d[o] * (code - bias) + mn[o] * m[o]. The C reference is built on it, and so
 * is any level that has no better way with a type: the functions are inline, compiled for the level of the
 * file that includes them.
 */
#ifndef LVR_ENGINE_KERNELS_UNPACK_H
#define LVR_ENGINE_KERNELS_UNPACK_H

#include "engine/kernels/levels.h"

#define LVR_QUADS (LVR_BLOCK / 4u) /* of inputs, in a block */

typedef struct lvr_block {
    _Alignas(64) uint8_t code[LVR_QUADS][LVR_GROUP][4]; /* of input 4 j + i at [j][output][i] */
    const uint8_t *d, *m;                               /* f16[16] each, in the group; m NULL: none */
    int16_t sc[2][LVR_GROUP];                           /* of the first and the last 16 inputs */
    int16_t mn[LVR_GROUP];                              /* if m is there */
} lvr_block;

static inline void lvr_unpack_nibbles(const uint8_t *q, lvr_block *ret)
{
    uint8_t *low = ret->code[0][0], *high = ret->code[LVR_QUADS / 2u][0];
    for (uint32_t i = 0; i < LVR_NIBBLES_BYTES; i++) {
        low[i] = q[i] & 15u;
        high[i] = q[i] >> 4;
    }
}

static inline void lvr_unpack_fifth_bits(const uint8_t *h, lvr_block *ret)
{
    uint32_t bits[LVR_GROUP];
    memcpy(bits, h, sizeof bits);
    for (uint32_t j = 0; j < LVR_QUADS; j++)
        for (uint32_t o = 0; o < LVR_GROUP; o++)
            for (uint32_t i = 0; i < 4; i++)
                ret->code[j][o][i] |= (uint8_t)((bits[o] >> (4 * j + i) & 1u) << 4);
}

/* A type without scales of its own per block. */
static inline void lvr_unpack_plain(const uint8_t *d, const uint8_t *m, lvr_block *ret)
{
    ret->d = d;
    ret->m = m;
    for (uint32_t o = 0; o < LVR_GROUP; o++)
        ret->sc[0][o] = ret->sc[1][o] = ret->mn[o] = 1;
}

static inline void lvr_unpack_q8_0(const uint8_t *group, size_t b, lvr_block *ret)
{
    const uint8_t *block = group + b * LVR_Q8_BLOCK_BYTES;
    lvr_unpack_plain(block, NULL, ret);
    memcpy(ret->code, block + LVR_SCALES_BYTES, sizeof ret->code);
}

static inline void lvr_unpack_q4_0(const uint8_t *group, size_t b, lvr_block *ret)
{
    const uint8_t *block = group + b * LVR_Q4_BLOCK_BYTES;
    lvr_unpack_plain(block, NULL, ret);
    lvr_unpack_nibbles(block + LVR_SCALES_BYTES, ret);
}

static inline void lvr_unpack_q4_1(const uint8_t *group, size_t b, lvr_block *ret)
{
    const uint8_t *block = group + b * LVR_Q4_1_BLOCK_BYTES;
    lvr_unpack_plain(block, block + LVR_SCALES_BYTES, ret);
    lvr_unpack_nibbles(block + 2u * LVR_SCALES_BYTES, ret);
}

static inline void lvr_unpack_q5_0(const uint8_t *group, size_t b, lvr_block *ret)
{
    const uint8_t *block = group + b * LVR_Q5_0_BLOCK_BYTES, *q = block + LVR_SCALES_BYTES;
    lvr_unpack_plain(block, NULL, ret);
    lvr_unpack_nibbles(q, ret);
    lvr_unpack_fifth_bits(q + LVR_NIBBLES_BYTES, ret);
}

static inline void lvr_unpack_q5_1(const uint8_t *group, size_t b, lvr_block *ret)
{
    const uint8_t *block = group + b * LVR_Q5_1_BLOCK_BYTES, *q = block + 2u * LVR_SCALES_BYTES;
    lvr_unpack_plain(block, block + LVR_SCALES_BYTES, ret);
    lvr_unpack_nibbles(q, ret);
    lvr_unpack_fifth_bits(q + LVR_NIBBLES_BYTES, ret);
}

/* The scales that Q4_K and Q5_K share. */
static inline void lvr_unpack_k_head(const uint8_t *super, size_t b, lvr_block *ret)
{
    const uint8_t *sc = super + 2u * LVR_SCALES_BYTES + b * LVR_GROUP;
    const uint8_t *mn = sc + LVR_SUPER_BLOCKS * LVR_GROUP;
    ret->d = super;
    ret->m = super + LVR_SCALES_BYTES;
    for (uint32_t o = 0; o < LVR_GROUP; o++) {
        ret->sc[0][o] = ret->sc[1][o] = sc[o];
        ret->mn[o] = mn[o];
    }
}

static inline void lvr_unpack_q4_k(const uint8_t *group, size_t b, lvr_block *ret)
{
    const uint8_t *super = group + b / LVR_SUPER_BLOCKS * LVR_Q4_K_SUPER_BYTES;
    b %= LVR_SUPER_BLOCKS;
    lvr_unpack_k_head(super, b, ret);
    lvr_unpack_nibbles(super + LVR_K_HEAD_BYTES + b * LVR_NIBBLES_BYTES, ret);
}

static inline void lvr_unpack_q5_k(const uint8_t *group, size_t b, lvr_block *ret)
{
    const uint8_t *super = group + b / LVR_SUPER_BLOCKS * LVR_Q5_K_SUPER_BYTES;
    b %= LVR_SUPER_BLOCKS;
    const uint8_t *q = super + LVR_K_HEAD_BYTES + b * (LVR_NIBBLES_BYTES + LVR_HIGH_BITS_BYTES);
    lvr_unpack_k_head(super, b, ret);
    lvr_unpack_nibbles(q, ret);
    lvr_unpack_fifth_bits(q + LVR_NIBBLES_BYTES, ret);
}

static inline void lvr_unpack_q6_k(const uint8_t *group, size_t b, lvr_block *ret)
{
    const uint8_t *super = group + b / LVR_SUPER_BLOCKS * LVR_Q6_K_SUPER_BYTES;
    b %= LVR_SUPER_BLOCKS;
    const uint8_t *sc = super + LVR_SCALES_BYTES + 2u * b * LVR_GROUP;
    const uint8_t *q = super + LVR_Q6_K_HEAD_BYTES + b * LVR_Q6_K_BLOCK_BYTES, *h = q + LVR_NIBBLES_BYTES;
    ret->d = super;
    ret->m = NULL;
    for (uint32_t o = 0; o < LVR_GROUP; o++) {
        ret->sc[0][o] = (int8_t)sc[o];
        ret->sc[1][o] = (int8_t)sc[LVR_GROUP + o];
    }
    lvr_unpack_nibbles(q, ret);
    for (uint32_t j = 0; j < LVR_QUADS; j++) {
        const uint8_t *pairs = h + j % 2u * LVR_HIGH_BITS_BYTES;
        uint8_t *code = ret->code[j][0];
        for (uint32_t i = 0; i < LVR_HIGH_BITS_BYTES; i++)
            code[i] |= (uint8_t)((pairs[i] >> j / 2u * 2u & 3u) << 4);
    }
}

typedef struct lvr_unpacking {
    void (*block)(const uint8_t *group, size_t b, lvr_block *ret); /* NULL: not a quantised type */
    int bias;
} lvr_unpacking;

#define LVR_UNPACKINGS                                                                                       \
    {                                                                                                        \
        [LVR_Q4_0] = {lvr_unpack_q4_0, 8}, [LVR_Q4_1] = {lvr_unpack_q4_1, 0},                                \
        [LVR_Q5_0] = {lvr_unpack_q5_0, 16}, [LVR_Q5_1] = {lvr_unpack_q5_1, 0},                               \
        [LVR_Q8_0] = {lvr_unpack_q8_0, 128}, [LVR_Q4_K] = {lvr_unpack_q4_k, 0},                              \
        [LVR_Q5_K] = {lvr_unpack_q5_k, 0}, [LVR_Q6_K] = {lvr_unpack_q6_k, 32},                               \
    }

/* Element `at` of a group of F32, F16 or BF16. */
static inline float lvr_dense_weight(lvr_wtype t, const uint8_t *group, size_t at)
{
    uint16_t half;
    float f;
    if (t == LVR_F32) {
        memcpy(&f, group + at * sizeof f, sizeof f);
        return f;
    }
    memcpy(&half, group + at * sizeof half, sizeof half);
    return t == LVR_F16 ? lvr_f16_to_f32(half) : lvr_bits_f32((uint32_t)half << 16);
}

static inline float lvr_scale(const uint8_t *halves, uint32_t output)
{
    uint16_t h;
    memcpy(&h, halves + output * sizeof h, sizeof h);
    return lvr_f16_to_f32(h);
}

#endif
