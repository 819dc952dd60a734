/*
 * AVX2 products of quantised matrices. The unit of work is a tile: up to MAX_ROWS rows of activations times
 * one group of 16 outputs, whose sums live in registers. A group (at most a few hundred KiB) comes from
 * memory for the first tile of rows and from L1 or L2 for the others. Codes of four and eight bits unpack in
 * so few instructions that every tile does it in registers; those of five and six bits are unpacked once,
 * into L1, a panel (8 blocks) at a time, if there are more rows than a tile takes.
 *
 * Exactness. VPMADDUBSW (u8 x s8, pairs summed into s16) saturates and VPADDW wraps, so it matters what fits:
 *   4 bits  the products of all eight quads of a block: 8 * 2 * 15 * 127 = 30480
 *   5, 6    of two quads: 2 * 2 * 63 * 127 = 32004
 *   8       of one, by magnitude: |w| times q with the sign of w: 2 * 128 * 127 = 32512
 * VPMADDWD with the scales, or ones, makes the sums 32 bits wide. The bias of codes of four to six bits is
 * taken off per block: sum((code - bias) q) = sum(code q) - bias sum(q).
 */
#include "engine/kernels/levels.h"

#include <immintrin.h>

#define MAX_ROWS 4u    /* of a tile */
#define CHUNK_ROWS 64u /* whose sums wait in L1 between panels */
#define PANEL_BLOCKS LVR_SUPER_BLOCKS
#define AHEAD 2048u /* bytes */
#define QUADS (LVR_BLOCK / 4u)
/* An integer sum that stays as written and in its register: left to itself gcc reassociates the sums of a
 * block, runs out of registers and keeps them in memory, at half the speed. Costs no instruction. */
#define KEEP(v) __asm__("" : "+x"(v))
#define INLINE static inline __attribute__((always_inline))

/* A type: how its codes are stored, and where the parts of a group are (kernels.h). Constant wherever it is
 * used: what does not apply to a type costs it nothing. */
typedef struct traits {
    unsigned bits;      /* of a code */
    size_t unit_bytes;  /* of 16 outputs: of a block, or a super-block */
    size_t unit_blocks; /* 1 or 8 */
    size_t m, sc, mn;   /* offsets in the unit; 0: none; f16 d[16] is at 0 */
    size_t q;           /* offset of the first block's codes */
    size_t q_bytes;     /* from one block's codes to the next's */
    int bias;
} traits;

#define Q4_0_TRAITS                                                                                          \
    {                                                                                                        \
        .bits = 4, .unit_bytes = LVR_Q4_BLOCK_BYTES, .unit_blocks = 1, .q = 32, .bias = 8                    \
    }
#define Q4_1_TRAITS                                                                                          \
    {                                                                                                        \
        .bits = 4, .unit_bytes = LVR_Q4_1_BLOCK_BYTES, .unit_blocks = 1, .m = 32, .q = 64                    \
    }
#define Q5_0_TRAITS                                                                                          \
    {                                                                                                        \
        .bits = 5, .unit_bytes = LVR_Q5_0_BLOCK_BYTES, .unit_blocks = 1, .q = 32, .bias = 16                 \
    }
#define Q5_1_TRAITS                                                                                          \
    {                                                                                                        \
        .bits = 5, .unit_bytes = LVR_Q5_1_BLOCK_BYTES, .unit_blocks = 1, .m = 32, .q = 64                    \
    }
#define Q8_0_TRAITS                                                                                          \
    {                                                                                                        \
        .bits = 8, .unit_bytes = LVR_Q8_BLOCK_BYTES, .unit_blocks = 1, .q = 32, .bias = 128                  \
    }
#define K_HEAD .unit_blocks = LVR_SUPER_BLOCKS, .m = 32, .sc = 64, .mn = 192, .q = LVR_K_HEAD_BYTES
#define Q4_K_TRAITS                                                                                          \
    {                                                                                                        \
        .bits = 4, .unit_bytes = LVR_Q4_K_SUPER_BYTES, K_HEAD, .q_bytes = LVR_NIBBLES_BYTES                  \
    }
#define Q5_K_TRAITS                                                                                          \
    {                                                                                                        \
        .bits = 5, .unit_bytes = LVR_Q5_K_SUPER_BYTES, K_HEAD,                                               \
        .q_bytes = LVR_NIBBLES_BYTES + LVR_HIGH_BITS_BYTES                                                   \
    }
#define Q6_K_TRAITS                                                                                          \
    {                                                                                                        \
        .bits = 6, .unit_bytes = LVR_Q6_K_SUPER_BYTES, .unit_blocks = LVR_SUPER_BLOCKS, .sc = 32,            \
        .q = LVR_Q6_K_HEAD_BYTES, .q_bytes = LVR_Q6_K_BLOCK_BYTES, .bias = 32                                \
    }

/* A block as it lies in its group. */
typedef struct packed {
    const uint8_t *d, *m, *sc, *mn, *q;
} packed;

/* A block unpacked. */
typedef struct panel_block {
    _Alignas(64) uint8_t code[QUADS][2][32]; /* of quad j, outputs 0 to 7 and 8 to 15 */
    float d[2][8], m[2][8];
    int16_t sc[2][2][16]; /* [half of the inputs][half of the outputs]: each scale twice */
    int16_t mn[2][16];    /* factors of the two half sums of q */
} panel_block;

/* Either of the two; which, is known wherever this is inlined. */
typedef struct block {
    packed at;
    const panel_block *panel;
} block;

INLINE __m256i load_si256(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

INLINE void store_si256(void *p, __m256i v)
{
    _mm256_store_si256((__m256i *)p, v);
}

/* 8 bytes, each to 32 bits */
INLINE __m256i load_8_bytes(const uint8_t *p, bool is_signed)
{
    const __m128i v = _mm_loadl_epi64((const __m128i *)(const void *)p);
    return is_signed ? _mm256_cvtepi8_epi32(v) : _mm256_cvtepu8_epi32(v);
}

INLINE __m256i broadcast_32(const void *p)
{
    int32_t v;
    memcpy(&v, p, sizeof v);
    return _mm256_set1_epi32(v);
}

INLINE __m256i keep(__m256i v)
{
    KEEP(v);
    return v;
}

INLINE packed locate(const uint8_t *group, size_t b, const traits t)
{
    const uint8_t *unit = group + b / t.unit_blocks * t.unit_bytes;
    const size_t i = b % t.unit_blocks;
    const size_t sc_bytes = t.bits == 6 ? 2u * LVR_GROUP : LVR_GROUP;
    return (packed){.d = unit,
                    .m = unit + t.m,
                    .sc = unit + t.sc + i * sc_bytes,
                    .mn = unit + t.mn + i * LVR_GROUP,
                    .q = unit + t.q + i * t.q_bytes};
}

/* As many bytes as block b has, AHEAD of it (past a group is the next one; past the last, prefetching harms
 * nothing): the hardware's own prefetching pauses at the end of each page. */
INLINE void prefetch_ahead(const uint8_t *group, size_t b, const traits t)
{
    const size_t bytes = t.unit_bytes / t.unit_blocks;
    const char *ahead = (const char *)group + b * bytes + AHEAD;
    for (size_t at = 0; at < bytes; at += 64)
        _mm_prefetch(ahead + at, _MM_HINT_T0);
}

/* ---- the parts of a block; h: half of the outputs ---- */

/* Bits 4 j to 4 j + 3 of each word become bit 4 of the codes of quad j. */
INLINE __m256i fifth_bits(const uint8_t *words, unsigned j)
{
    const __m256i each = _mm256_set1_epi32((int)0x80402010u);
    const __m256i bytes =
        _mm256_set_epi64x(0x0c0c0c0c08080808, 0x0404040400000000, 0x0c0c0c0c08080808, 0x0404040400000000);
    const __m256i w = load_si256(words), at = _mm256_add_epi8(bytes, _mm256_set1_epi8((char)(j / 2u)));
    const __m256i four = _mm256_shuffle_epi8(j % 2u != 0 ? w : _mm256_slli_epi32(w, 4), at);
    return _mm256_min_epu8(_mm256_and_si256(four, each), _mm256_set1_epi8(16));
}

/* Bits 4 and 5 of the codes of quad j, from a byte shared by four quads. */
INLINE __m256i upper_bits(const uint8_t *bytes, unsigned j)
{
    const __m256i v = load_si256(bytes);
    const __m256i shifted = j / 2u == 0   ? _mm256_slli_epi16(v, 4)
                            : j / 2u == 1 ? _mm256_slli_epi16(v, 2)
                            : j / 2u == 2 ? v
                                          : _mm256_srli_epi16(v, 2);
    return _mm256_and_si256(shifted, _mm256_set1_epi8(0x30));
}

INLINE __m256i code_of(const block *w, unsigned j, unsigned h, const traits t)
{
    if (w->panel != NULL)
        return load_si256(w->panel->code[j][h]);
    const uint8_t *q = w->at.q + 32u * h, *high = q + LVR_NIBBLES_BYTES;
    const __m256i v = load_si256(q + 64u * (j % 4u));
    const __m256i nibbles = _mm256_and_si256(j < 4 ? v : _mm256_srli_epi16(v, 4), _mm256_set1_epi8(15));
    if (t.bits == 5)
        return _mm256_or_si256(nibbles, fifth_bits(high, j));
    if (t.bits == 6)
        return _mm256_or_si256(nibbles, upper_bits(high + 64u * (j % 2u), j));
    return nibbles;
}

INLINE __m256 floats_of(const uint8_t *halves, unsigned h)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(halves + 16u * h)));
}

INLINE __m256 d_of(const block *w, unsigned h)
{
    return w->panel != NULL ? _mm256_load_ps(w->panel->d[h]) : floats_of(w->at.d, h);
}

INLINE __m256 m_of(const block *w, unsigned h)
{
    return w->panel != NULL ? _mm256_load_ps(w->panel->m[h]) : floats_of(w->at.m, h);
}

/* What multiplies pairs of 16-bit sums over inputs of half `i`. */
INLINE __m256i scale_of(const block *w, unsigned i, unsigned h, const traits t)
{
    if (t.sc == 0)
        return _mm256_set1_epi16(1);
    if (w->panel != NULL)
        return load_si256(w->panel->sc[i][h]);
    const __m256i s = load_8_bytes(w->at.sc + (t.bits == 6 ? LVR_GROUP * i : 0) + 8u * h, t.bits == 6);
    return _mm256_blend_epi16(s, _mm256_slli_epi32(s, 16), 0xaa);
}

/* What multiplies the two half sums of q: the minimum, if the type has one, else the bias times the scales.
 */
INLINE __m256i sum_factors_of(const block *w, unsigned h, const traits t)
{
    if (t.sc == 0)
        return _mm256_set1_epi16((int16_t)(t.m != 0 ? 1 : t.bias));
    if (w->panel != NULL)
        return load_si256(w->panel->mn[h]);
    if (t.bits == 6) {
        const __m256i first = load_8_bytes(w->at.sc + 8u * h, true);
        const __m256i last = _mm256_slli_epi32(load_8_bytes(w->at.sc + LVR_GROUP + 8u * h, true), 16);
        return _mm256_mullo_epi16(_mm256_blend_epi16(first, last, 0xaa), _mm256_set1_epi16((int16_t)t.bias));
    }
    const __m256i mn = load_8_bytes(w->at.mn + 8u * h, false);
    return _mm256_blend_epi16(mn, _mm256_slli_epi32(mn, 16), 0xaa);
}

INLINE void unpack(const uint8_t *group, size_t b, panel_block *ret, const traits t)
{
    const block w = {.at = locate(group, b, t)};
    prefetch_ahead(group, b, t);
    for (unsigned h = 0; h < 2; h++) {
        _mm256_store_ps(ret->d[h], d_of(&w, h));
        if (t.m != 0)
            _mm256_store_ps(ret->m[h], m_of(&w, h));
        if (t.sc == 0)
            continue;
        store_si256(ret->sc[0][h], scale_of(&w, 0, h, t));
        store_si256(ret->sc[1][h], scale_of(&w, 1, h, t));
        store_si256(ret->mn[h], sum_factors_of(&w, h, t));
    }
#pragma GCC unroll 8
    for (unsigned j = 0; j < QUADS; j++)
        for (unsigned h = 0; h < 2; h++)
            store_si256(ret->code[j][h], code_of(&w, j, h, t));
}

/* ---- a block times the rows of a tile ---- */

/* Where a tile's rows of activations are, at its first block. */
typedef struct tile {
    const int8_t *q;
    const float *d;
    const int16_t *hsum;
    size_t n_in, n_blocks; /* from row to row */
} tile;

INLINE void deep_sums(const block *w, const int8_t *q, size_t stride, __m256i (*isum)[2], const traits t,
                      const unsigned n_rows)
{
#pragma GCC unroll 8
    for (unsigned i = 0; i < QUADS; i++) {
        const unsigned j = i / 2u + i % 2u * 4u; /* quads 0, 4, 1, 5...: two share a byte */
        const __m256i w0 = code_of(w, j, 0, t), w1 = code_of(w, j, 1, t);
        for (unsigned r = 0; r < n_rows; r++) {
            const __m256i a = broadcast_32(q + r * stride + 4u * j);
            const __m256i p0 = _mm256_maddubs_epi16(w0, a), p1 = _mm256_maddubs_epi16(w1, a);
            isum[r][0] = keep(i == 0 ? p0 : _mm256_add_epi16(isum[r][0], p0));
            isum[r][1] = keep(i == 0 ? p1 : _mm256_add_epi16(isum[r][1], p1));
        }
    }
    for (unsigned h = 0; h < 2; h++) {
        const __m256i scale = scale_of(w, 0, h, t);
        for (unsigned r = 0; r < n_rows; r++)
            isum[r][h] = _mm256_madd_epi16(isum[r][h], scale);
    }
}

INLINE void shallow_sums(const block *w, const int8_t *q, size_t stride, __m256i (*isum)[2], const traits t,
                         const unsigned n_rows)
{
#pragma GCC unroll 4
    for (unsigned j = 0; j < QUADS; j += 2) {
        const __m256i w00 = code_of(w, j, 0, t), w01 = code_of(w, j, 1, t);
        const __m256i w10 = code_of(w, j + 1, 0, t), w11 = code_of(w, j + 1, 1, t);
        const __m256i scale0 = scale_of(w, j / 4u, 0, t), scale1 = scale_of(w, j / 4u, 1, t);
        for (unsigned r = 0; r < n_rows; r++) {
            const __m256i a0 = broadcast_32(q + r * stride + 4u * j);
            const __m256i a1 = broadcast_32(q + r * stride + 4u * j + 4u);
            const __m256i p0 =
                keep(_mm256_add_epi16(_mm256_maddubs_epi16(w00, a0), _mm256_maddubs_epi16(w10, a1)));
            const __m256i p1 =
                keep(_mm256_add_epi16(_mm256_maddubs_epi16(w01, a0), _mm256_maddubs_epi16(w11, a1)));
            const __m256i s0 = _mm256_madd_epi16(p0, scale0), s1 = _mm256_madd_epi16(p1, scale1);
            isum[r][0] = keep(j == 0 ? s0 : _mm256_add_epi32(isum[r][0], s0));
            isum[r][1] = keep(j == 0 ? s1 : _mm256_add_epi32(isum[r][1], s1));
        }
    }
}

INLINE void wide_sums(const block *w, const int8_t *q, size_t stride, __m256i (*isum)[2], const traits t,
                      const unsigned n_rows)
{
    const __m256i ones = _mm256_set1_epi16(1), bias = _mm256_set1_epi8((char)t.bias);
#pragma GCC unroll 8
    for (unsigned j = 0; j < QUADS; j++) {
        const __m256i w0 = _mm256_xor_si256(load_si256(w->at.q + 64u * j), bias);
        const __m256i w1 = _mm256_xor_si256(load_si256(w->at.q + 64u * j + 32u), bias);
        const __m256i m0 = _mm256_abs_epi8(w0), m1 = _mm256_abs_epi8(w1);
        for (unsigned r = 0; r < n_rows; r++) {
            const __m256i a = broadcast_32(q + r * stride + 4u * j);
            const __m256i p0 = _mm256_madd_epi16(_mm256_maddubs_epi16(m0, _mm256_sign_epi8(a, w0)), ones);
            const __m256i p1 = _mm256_madd_epi16(_mm256_maddubs_epi16(m1, _mm256_sign_epi8(a, w1)), ones);
            isum[r][0] = keep(j == 0 ? p0 : _mm256_add_epi32(isum[r][0], p0));
            isum[r][1] = keep(j == 0 ? p1 : _mm256_add_epi32(isum[r][1], p1));
        }
    }
}

/* acc = fmaf(isum, d * da, acc), then the same with the minimum */
INLINE void add_block(const block *w, const tile *a, size_t b, __m256i (*isum)[2], __m256 (*acc)[2],
                      const traits t, const unsigned n_rows)
{
    const bool biased = t.bias != 0 && t.bits != 8;
    const __m256 d[2] = {d_of(w, 0), d_of(w, 1)};
    for (unsigned r = 0; r < n_rows; r++) {
        const __m256 da = _mm256_set1_ps(a->d[b + r * a->n_blocks]);
        const __m256i hsum = broadcast_32(a->hsum + 2u * (b + r * a->n_blocks));
        for (unsigned h = 0; h < 2; h++) {
            const __m256i sums = _mm256_madd_epi16(hsum, sum_factors_of(w, h, t));
            const __m256i i = biased ? _mm256_sub_epi32(isum[r][h], sums) : isum[r][h];
            acc[r][h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(i), _mm256_mul_ps(d[h], da), acc[r][h]);
            if (t.m != 0)
                acc[r][h] =
                    _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums), _mm256_mul_ps(m_of(w, h), da), acc[r][h]);
        }
    }
}

/* n blocks from block b on, of the panel that starts there or, if NULL, as packed in the group. */
INLINE void dot_tile(const uint8_t *group, const panel_block *panel, size_t b, size_t n, const lvr_acts *acts,
                     size_t row, float *sums, const traits t, const unsigned n_rows)
{
    const size_t n_blocks = acts->n_in / LVR_BLOCK;
    const tile a = {.q = acts->q + row * acts->n_in + b * LVR_BLOCK,
                    .d = acts->d + row * n_blocks + b,
                    .hsum = acts->hsum + (row * n_blocks + b) * 2u,
                    .n_in = acts->n_in,
                    .n_blocks = n_blocks};
    __m256 acc[MAX_ROWS][2];
    for (unsigned r = 0; r < n_rows; r++)
        for (unsigned h = 0; h < 2; h++)
            acc[r][h] = _mm256_load_ps(sums + r * LVR_GROUP + 8u * h);
    for (size_t i = 0; i < n; i++) {
        const block w = panel != NULL ? (block){.panel = panel + i} : (block){.at = locate(group, b + i, t)};
        const int8_t *q = a.q + i * LVR_BLOCK;
        __m256i isum[MAX_ROWS][2];
        if (panel == NULL && row == 0) /* the first tile brings the group from memory */
            prefetch_ahead(group, i, t);
        if (t.bits == 8)
            wide_sums(&w, q, a.n_in, isum, t, n_rows);
        else if (t.bits == 4)
            deep_sums(&w, q, a.n_in, isum, t, n_rows);
        else
            shallow_sums(&w, q, a.n_in, isum, t, n_rows);
        add_block(&w, &a, i, isum, acc, t, n_rows);
    }
    for (unsigned r = 0; r < n_rows; r++)
        for (unsigned h = 0; h < 2; h++)
            _mm256_store_ps(sums + r * LVR_GROUP + 8u * h, acc[r][h]);
}

/* ---- each type's functions ---- */

typedef void (*unpack_fn)(const uint8_t *group, size_t b, panel_block *ret);
/* Blocks [b, b + n) of a group, or of a panel that starts at b. sums: [rows][16], added to. */
typedef void (*packed_fn)(const uint8_t *group, size_t n, const lvr_acts *a, size_t row, float *sums);
typedef void (*panel_fn)(const panel_block *panel, size_t b, size_t n, const lvr_acts *a, size_t row,
                         float *sums);

typedef struct kind {
    packed_fn packed[MAX_ROWS + 1]; /* by number of rows */
    unpack_fn unpack;               /* NULL: no panels */
    panel_fn panel[MAX_ROWS + 1];
} kind;

#define PACKED(name, n)                                                                                      \
    static void name##_packed_##n(const uint8_t *group, size_t n_blocks, const lvr_acts *a, size_t row,      \
                                  float *sums)                                                               \
    {                                                                                                        \
        dot_tile(group, NULL, 0, n_blocks, a, row, sums, name##_traits, n);                                  \
    }
#define PANEL(name, n)                                                                                       \
    static void name##_panel_##n(const panel_block *panel, size_t b, size_t n_blocks, const lvr_acts *a,     \
                                 size_t row, float *sums)                                                    \
    {                                                                                                        \
        dot_tile(NULL, panel, b, n_blocks, a, row, sums, name##_traits, n);                                  \
    }
#define EACH(DEFINE, name) DEFINE(name, 1) DEFINE(name, 2) DEFINE(name, 3) DEFINE(name, 4)
#define TABLE(name)                                                                                          \
    {                                                                                                        \
        NULL, name##_1, name##_2, name##_3, name##_4                                                         \
    }
#define KIND(name, ...)                                                                                      \
    static const traits name##_traits = __VA_ARGS__;                                                         \
    EACH(PACKED, name)                                                                                       \
    static const kind name##_kind = {.packed = TABLE(name##_packed)};
#define PANEL_KIND(name, ...)                                                                                \
    static const traits name##_traits = __VA_ARGS__;                                                         \
    EACH(PACKED, name)                                                                                       \
    EACH(PANEL, name)                                                                                        \
    static void name##_unpack(const uint8_t *group, size_t b, panel_block *ret)                              \
    {                                                                                                        \
        unpack(group, b, ret, name##_traits);                                                                \
    }                                                                                                        \
    static const kind name##_kind = {                                                                        \
        .packed = TABLE(name##_packed), .unpack = name##_unpack, .panel = TABLE(name##_panel)};

KIND(q4_0, Q4_0_TRAITS)
KIND(q4_1, Q4_1_TRAITS)
KIND(q4_k, Q4_K_TRAITS)
KIND(q8_0, Q8_0_TRAITS)
PANEL_KIND(q5_0, Q5_0_TRAITS)
PANEL_KIND(q5_1, Q5_1_TRAITS)
PANEL_KIND(q5_k, Q5_K_TRAITS)
PANEL_KIND(q6_k, Q6_K_TRAITS)

static const kind *const kinds[LVR_WTYPE_SLOTS] = {
    [LVR_Q4_0] = &q4_0_kind, [LVR_Q4_1] = &q4_1_kind, [LVR_Q5_0] = &q5_0_kind, [LVR_Q5_1] = &q5_1_kind,
    [LVR_Q8_0] = &q8_0_kind, [LVR_Q4_K] = &q4_k_kind, [LVR_Q5_K] = &q5_k_kind, [LVR_Q6_K] = &q6_k_kind,
};

/* ---- whole matrices ---- */

static inline uint32_t at_most(uint32_t n, uint32_t most)
{
    return n < most ? n : most;
}

static void dot_packed(const kind *k, const uint8_t *group, const lvr_acts *a, uint32_t row, uint32_t n_rows,
                       float *sums)
{
    for (uint32_t r = 0; r < n_rows; r += MAX_ROWS)
        k->packed[at_most(n_rows - r, MAX_ROWS)](group, a->n_in / LVR_BLOCK, a, row + r,
                                                 sums + r * LVR_GROUP);
}

static void dot_panels(const kind *k, const uint8_t *group, const lvr_acts *a, uint32_t row, uint32_t n_rows,
                       float *sums)
{
    const uint32_t n_blocks = a->n_in / LVR_BLOCK;
    for (uint32_t b = 0; b < n_blocks; b += PANEL_BLOCKS) {
        const uint32_t n = at_most(n_blocks - b, PANEL_BLOCKS);
        panel_block panel[PANEL_BLOCKS];
        for (uint32_t i = 0; i < n; i++)
            k->unpack(group, b + i, &panel[i]);
        for (uint32_t r = 0; r < n_rows; r += MAX_ROWS)
            k->panel[at_most(n_rows - r, MAX_ROWS)](panel, b, n, a, row + r, sums + r * LVR_GROUP);
    }
}

static void avx2_matmul(const lvr_matrix *m, const lvr_acts *a, uint32_t begin, uint32_t end, float *out,
                        size_t stride)
{
    const kind *k = kinds[m->type];
    const uint64_t group_bytes = lvr_group_bytes(m->type, m->n_in);
    _Alignas(64) float sums[CHUNK_ROWS * LVR_GROUP];
    for (uint32_t g = begin; g < end; g++)
        for (uint32_t row = 0; row < a->n_rows; row += CHUNK_ROWS) {
            const uint32_t n_rows = at_most(a->n_rows - row, CHUNK_ROWS), width = lvr_group_width(m, g);
            memset(sums, 0, n_rows * LVR_GROUP * sizeof *sums);
            (k->unpack != NULL && n_rows > MAX_ROWS ? dot_panels : dot_packed)(k, m->data + g * group_bytes,
                                                                               a, row, n_rows, sums);
            for (uint32_t r = 0; r < n_rows; r++)
                memcpy(out + (row + r) * stride + (size_t)g * LVR_GROUP, sums + r * LVR_GROUP,
                       width * sizeof(float));
        }
}

void lvr_kernels_init_avx2_matmul(lvr_kernels *k)
{
    for (unsigned t = 0; t < LVR_WTYPE_SLOTS; t++)
        if (kinds[t] != NULL)
            k->matmul[t] = avx2_matmul;
}
