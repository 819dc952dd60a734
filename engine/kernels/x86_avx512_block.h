/*
 * One block (32 inputs of a group's 16 outputs) in registers, for the products of AVX-512 and AMX: where its
 * parts lie, its codes unpacked, and what follows its integer sums.
 *
 * The forms of types, by what follows the integer sum of a block (s0, s1: of the first and last 16 inputs):
 *   PLAIN   acc += (s0 + s1) * (d * da)                                   Q8_0, Q4_0, Q5_0
 *   MIN     and acc += qsum * (m * da)                                    Q4_1, Q5_1
 *   SUPER   acc += (k0 * (s0 + s1)) * (d * da), (k1 * qsum) * (m * da)    Q4_K, Q5_K
 *   HALVES  acc += (k0 * s0 + k1 * s1) * (d * da)                         Q6_K
 * The integer products k * s are taken in float: they are below 2^24, thus exact but for their sign where
 * they are 0 (0 * -s is -0), which no result shows: acc is never -0, for it starts as +0, and what is added
 * to it is a multiple of the least float, so that a sum is 0 only if it is exactly that.
 */
#ifndef LVR_ENGINE_KERNELS_X86_AVX512_BLOCK_H
#define LVR_ENGINE_KERNELS_X86_AVX512_BLOCK_H

#include "engine/kernels/levels.h"
#include "engine/kernels/x86_intrin.h"

#define INLINE static inline __attribute__((always_inline))
#define QUADS (LVR_BLOCK / 4u) /* of inputs, in a block */
#define QUAD_BYTES (LVR_GROUP * 4u)
#define SPAN_BLOCKS LVR_SUPER_BLOCKS /* taken together; the K types' scales are for so many */
#define CACHE_LINE 64u

typedef enum form { PLAIN, MIN, SUPER, HALVES } form;
#define FORMS 4u

/* What the types differ in. Constant wherever it is used by an inlined function. */
typedef struct block_type {
    form form;            /* block_bytes 0: no quantised type */
    uint32_t block_bytes; /* of a group; SUPER, HALVES: an eighth of a super-block */
    int bias;             /* code - bias = weight */
} block_type;

static const block_type block_types[LVR_WTYPE_SLOTS] = {
    [LVR_Q8_0] = {PLAIN, LVR_Q8_BLOCK_BYTES, LVR_Q8_BIAS},
    [LVR_Q4_0] = {PLAIN, LVR_Q4_BLOCK_BYTES, LVR_Q4_BIAS},
    [LVR_Q5_0] = {PLAIN, LVR_Q5_0_BLOCK_BYTES, 16},
    [LVR_Q4_1] = {MIN, LVR_Q4_1_BLOCK_BYTES, 0},
    [LVR_Q5_1] = {MIN, LVR_Q5_1_BLOCK_BYTES, 0},
    [LVR_Q4_K] = {SUPER, LVR_Q4_K_SUPER_BYTES / LVR_SUPER_BLOCKS, 0},
    [LVR_Q5_K] = {SUPER, LVR_Q5_K_SUPER_BYTES / LVR_SUPER_BLOCKS, 0},
    [LVR_Q6_K] = {HALVES, LVR_Q6_K_SUPER_BYTES / LVR_SUPER_BLOCKS, 32},
};

/* ---- where the parts of a block are ---- */

/* NULL: the type's form has no such part. */
typedef struct packed {
    const uint8_t *d, *m, *k0, *k1, *q;
} packed;

/* Block b of the span at `span`. */
INLINE packed locate(const lvr_wtype t, const uint8_t *span, uint32_t b)
{
    const block_type type = block_types[t];
    const uint8_t *at = span + b * type.block_bytes, *scales = span + LVR_SCALES_BYTES;
    if (type.form == PLAIN)
        return (packed){.d = at, .q = at + LVR_SCALES_BYTES};
    if (type.form == MIN)
        return (packed){.d = at, .m = at + LVR_SCALES_BYTES, .q = at + 2u * LVR_SCALES_BYTES};
    const uint32_t head = type.form == SUPER ? LVR_K_HEAD_BYTES : LVR_Q6_K_HEAD_BYTES;
    const uint8_t *q = span + head + b * (type.block_bytes - head / SPAN_BLOCKS);
    if (type.form == HALVES)
        return (packed){
            .d = span, .k0 = scales + 2u * b * LVR_GROUP, .k1 = scales + (2u * b + 1u) * LVR_GROUP, .q = q};
    scales += LVR_SCALES_BYTES;
    return (packed){.d = span,
                    .m = span + LVR_SCALES_BYTES,
                    .k0 = scales + b * LVR_GROUP,
                    .k1 = scales + (SPAN_BLOCKS + b) * LVR_GROUP,
                    .q = q};
}

INLINE __m512i load_codes(const uint8_t *p)
{
    return _mm512_loadu_si512(p);
}

INLINE __m512 load_halves(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

/* 16 bytes as floats. */
INLINE __m512 load_u8(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}

INLINE __m512 load_s8(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}

/* ---- codes of one block ---- */

/* Four bits of each code: quad j from the low nibbles, quad 4 + j from the high ones. */
INLINE void unpack_nibbles(const uint8_t *q, __m512i ret_w[QUADS])
{
    const __m512i low = _mm512_set1_epi8(0x0f);
    LVR_UNROLL
    for (unsigned j = 0; j < QUADS / 2u; j++) {
        const __m512i v = load_codes(q + j * QUAD_BYTES);
        ret_w[j] = _mm512_and_si512(v, low);
        ret_w[QUADS / 2u + j] = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
    }
}

/* Bit i of output o's 32-bit word is the fifth bit of input i: the four of a quad, looked up, are bit 4 of
 * its bytes. */
INLINE void add_fifth_bits(const uint8_t *h, __m512i w[QUADS])
{
    const __m512i words = load_codes(h);
    const __m512i spread = _mm512_setr_epi32(
        0x00000000, 0x00000010, 0x00001000, 0x00001010, 0x00100000, 0x00100010, 0x00101000, 0x00101010,
        0x10000000, 0x10000010, 0x10001000, 0x10001010, 0x10100000, 0x10100010, 0x10101000, 0x10101010);
    LVR_UNROLL
    for (unsigned j = 0; j < QUADS; j++)
        w[j] = _mm512_or_si512(w[j], _mm512_permutexvar_epi32(_mm512_srli_epi32(words, 4u * j), spread));
}

/* Bits 2k, 2k + 1 of byte (j, o, i) are bits 4, 5 of the code of quad 2k + j. */
INLINE void add_upper_pairs(const uint8_t *h, __m512i w[QUADS])
{
    const __m512i place = _mm512_set1_epi8(0x30);
    LVR_UNROLL
    for (unsigned j = 0; j < 2; j++) {
        const __m512i v = load_codes(h + j * QUAD_BYTES);
        w[j] = _mm512_or_si512(w[j], _mm512_and_si512(_mm512_slli_epi16(v, 4), place));
        w[2 + j] = _mm512_or_si512(w[2 + j], _mm512_and_si512(_mm512_slli_epi16(v, 2), place));
        w[4 + j] = _mm512_or_si512(w[4 + j], _mm512_and_si512(v, place));
        w[6 + j] = _mm512_or_si512(w[6 + j], _mm512_and_si512(_mm512_srli_epi16(v, 2), place));
    }
}

/* `q`: the block's codes as packed. */
INLINE void unpack_codes(const lvr_wtype t, const uint8_t *q, __m512i ret_w[QUADS])
{
    if (t == LVR_Q8_0) {
        LVR_UNROLL
        for (unsigned j = 0; j < QUADS; j++)
            ret_w[j] = load_codes(q + j * QUAD_BYTES);
    } else {
        unpack_nibbles(q, ret_w);
    }
    if (t == LVR_Q5_0 || t == LVR_Q5_1 || t == LVR_Q5_K)
        add_fifth_bits(q + LVR_NIBBLES_BYTES, ret_w);
    if (t == LVR_Q6_K)
        add_upper_pairs(q + LVR_NIBBLES_BYTES, ret_w);
}

/* ---- from integer sums to the result ---- */

/* What the form does not use is 0. */
typedef struct block_scales {
    __m512 d, m, k0, k1;
} block_scales;

INLINE block_scales load_scales(const form f, const packed *w)
{
    const __m512 none = _mm512_setzero_ps();
    return (block_scales){
        .d = load_halves(w->d),
        .m = f == MIN || f == SUPER ? load_halves(w->m) : none,
        .k0 = f == HALVES  ? load_s8(w->k0)
              : f == SUPER ? load_u8(w->k0)
                           : none,
        .k1 = f == HALVES  ? load_s8(w->k1)
              : f == SUPER ? load_u8(w->k1)
                           : none,
    };
}

/* acc after one block of one row. s1: of HALVES only; qsum: of MIN and SUPER. */
INLINE __m512 add_block(const form f, const block_scales *w, __m512i s0, __m512i s1, float da_scalar,
                        float qsum_scalar, __m512 acc)
{
    const __m512 da = _mm512_set1_ps(da_scalar), qsum = _mm512_set1_ps(qsum_scalar);
    __m512 sum = _mm512_cvtepi32_ps(s0);
    if (f == SUPER || f == HALVES)
        sum = _mm512_mul_ps(sum, w->k0);
    if (f == HALVES)
        sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s1), w->k1, sum);
    acc = _mm512_fmadd_ps(sum, _mm512_mul_ps(w->d, da), acc);
    if (f == MIN)
        acc = _mm512_fmadd_ps(qsum, _mm512_mul_ps(w->m, da), acc);
    if (f == SUPER)
        acc = _mm512_fmadd_ps(_mm512_mul_ps(qsum, w->k1), _mm512_mul_ps(w->m, da), acc);
    return acc;
}

#endif
