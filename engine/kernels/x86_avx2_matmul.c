/*
 * AVX2 matrix products. The unit of work is a tile: up to MAX_ROWS rows of activations times one group of 16
 * outputs, whose sums live in registers for the whole of n_in. A group's weights (at most a few hundred KiB)
 * come from memory for the first tile of rows and from L1 or L2 for the others, and are unpacked once per
 * tile.
 *
 * Exactness. VPMADDUBSW (u8 x s8, pairs summed into s16) saturates: 2 * 255 * 127 > 32767, so Q8_0 codes are
 * split into even and odd bytes, widened, and multiplied by VPMADDWD into 32 bits. Q4_0 codes are at most 15,
 * so VPMADDUBSW is exact, and even the sum over a whole block fits 16 bits: 8 * 2 * 15 * 127 = 30480. The
 * codes' bias is taken off per block: sum((code - bias) q) = sum(code q) - bias sum(q): one VPMADDWD on
 * the pair of half-block sums.
 */
#include "engine/kernels/levels.h"

#include <immintrin.h>

#define MAX_ROWS 4u
#define QUADS (LVR_BLOCK / 4u)
/* An integer sum that stays as written and in its register: left to itself gcc reassociates the sums of a
 * block, runs out of registers and keeps them in memory, at half the speed. Costs no instruction. */
#define KEEP(v) __asm__("" : "+x"(v))
#define INLINE static inline __attribute__((always_inline))

/* sums: row r's 16 outputs at [2r], [2r + 1]. */
typedef void (*tile_fn)(const uint8_t *group, const lvr_acts *a, uint32_t row, __m256 *sums);

INLINE __m256i load_si256(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

INLINE __m256 load_half8(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

INLINE __m256i broadcast_quad(const int8_t *q)
{
    int32_t v;
    memcpy(&v, q, sizeof v);
    return _mm256_set1_epi32(v);
}

/* The block's two half sums, in every 32-bit lane. */
INLINE __m256i broadcast_pair(const int16_t *hsum, size_t block)
{
    int32_t v;
    memcpy(&v, hsum + 2u * block, sizeof v);
    return _mm256_set1_epi32(v);
}

/* acc = fmaf(isum, dw * da, acc) for 8 outputs */
INLINE __m256 scale_block(__m256i isum, __m256 dw, __m256 da, __m256 acc)
{
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(isum), _mm256_mul_ps(dw, da), acc);
}

/* acc + the 8 sums of two 16-bit products */
INLINE __m256i add_madd(__m256i acc, __m256i w, __m256i q)
{
    acc = _mm256_add_epi32(acc, _mm256_madd_epi16(w, q));
    KEEP(acc);
    return acc;
}

/* acc + the 16 sums of two products u8 x s8, which must not saturate */
INLINE __m256i add_maddubs(__m256i acc, __m256i w, __m256i q)
{
    acc = _mm256_add_epi16(acc, _mm256_maddubs_epi16(w, q));
    KEEP(acc);
    return acc;
}

/* ---- Q8_0 ---- */

/* The block's activations as 16-bit pairs to broadcast: of quad j, inputs 0 and 2 at [j], inputs 1 and 3 at
 * [8 + j]. */
INLINE void widen_block(const int8_t *q, int32_t ret_pairs[2 * QUADS])
{
    const __m256i v = load_si256(q);
    _mm256_store_si256((__m256i *)(void *)ret_pairs, _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8));
    _mm256_store_si256((__m256i *)(void *)(ret_pairs + QUADS), _mm256_srai_epi16(v, 8));
}

INLINE void widen_rows(const int8_t *q, size_t stride, int32_t ret_pairs[][2 * QUADS], const unsigned n_rows)
{
    for (unsigned r = 0; r < n_rows; r++)
        widen_block(q + r * stride, ret_pairs[r]);
}

INLINE void q8_0_tile(const uint8_t *group, const lvr_acts *a, uint32_t row, __m256 *sums,
                      const unsigned n_rows)
{
    const size_t n_blocks = a->n_in / LVR_BLOCK;
    const int8_t *q = a->q + (size_t)row * a->n_in;
    const float *d = a->d + row * n_blocks;
    const int16_t *hsum = a->hsum + row * n_blocks * 2u;
    const __m256i low_bytes = _mm256_set1_epi16(0xff);
    const __m256i minus_bias = _mm256_set1_epi16(-LVR_Q8_BIAS);
    __m256 acc[MAX_ROWS][2];
    for (unsigned r = 0; r < n_rows; r++)
        acc[r][0] = acc[r][1] = _mm256_setzero_ps();
    _Alignas(32) int32_t pairs[MAX_ROWS][2 * QUADS];
    widen_rows(q, a->n_in, pairs, n_rows);
    for (size_t b = 0; b < n_blocks; b++, group += LVR_Q8_BLOCK_BYTES) {
        __m256i isum[MAX_ROWS][2];
        for (unsigned r = 0; r < n_rows; r++)
            isum[r][0] = isum[r][1] = _mm256_madd_epi16(broadcast_pair(hsum, r * n_blocks + b), minus_bias);
#pragma GCC unroll 8 /* rolled, gcc 12 keeps half of the sums in memory: 15 % slower */
        for (unsigned j = 0; j < QUADS; j++) {
            const __m256i w0 = load_si256(group + LVR_SCALES_BYTES + j * 64u);
            const __m256i w1 = load_si256(group + LVR_SCALES_BYTES + j * 64u + 32u);
            const __m256i even0 = _mm256_and_si256(w0, low_bytes), odd0 = _mm256_srli_epi16(w0, 8);
            const __m256i even1 = _mm256_and_si256(w1, low_bytes), odd1 = _mm256_srli_epi16(w1, 8);
            for (unsigned r = 0; r < n_rows; r++) {
                const __m256i qe = _mm256_set1_epi32(pairs[r][j]),
                              qo = _mm256_set1_epi32(pairs[r][QUADS + j]);
                isum[r][0] = add_madd(isum[r][0], even0, qe);
                isum[r][1] = add_madd(isum[r][1], even1, qe);
                isum[r][0] = add_madd(isum[r][0], odd0, qo);
                isum[r][1] = add_madd(isum[r][1], odd1, qo);
            }
        }
        /* Here, not where they are used: the stores must have left before the loads of the next round come.
         */
        q += LVR_BLOCK;
        if (b + 1 < n_blocks)
            widen_rows(q, a->n_in, pairs, n_rows);
        const __m256 dw0 = load_half8(group), dw1 = load_half8(group + 16);
        for (unsigned r = 0; r < n_rows; r++) {
            const __m256 da = _mm256_set1_ps(d[r * n_blocks + b]);
            acc[r][0] = scale_block(isum[r][0], dw0, da, acc[r][0]);
            acc[r][1] = scale_block(isum[r][1], dw1, da, acc[r][1]);
        }
    }
    for (unsigned r = 0; r < n_rows; r++) {
        sums[2 * r] = acc[r][0];
        sums[2 * r + 1] = acc[r][1];
    }
}

/* ---- Q4_0 ---- */

INLINE void q4_0_tile(const uint8_t *group, const lvr_acts *a, uint32_t row, __m256 *sums,
                      const unsigned n_rows)
{
    const size_t n_blocks = a->n_in / LVR_BLOCK;
    const int8_t *q = a->q + (size_t)row * a->n_in;
    const float *d = a->d + row * n_blocks;
    const int16_t *hsum = a->hsum + row * n_blocks * 2u;
    const __m256i low_nibbles = _mm256_set1_epi8(0x0f), ones = _mm256_set1_epi16(1);
    __m256 acc[MAX_ROWS][2];
    for (unsigned r = 0; r < n_rows; r++)
        acc[r][0] = acc[r][1] = _mm256_setzero_ps();
    for (size_t b = 0; b < n_blocks; b++, group += LVR_Q4_BLOCK_BYTES, q += LVR_BLOCK) {
        __m256i pairs[MAX_ROWS][2]; /* s16: two per output */
        for (unsigned r = 0; r < n_rows; r++)
            pairs[r][0] = pairs[r][1] = _mm256_setzero_si256();
        for (unsigned j = 0; j < QUADS / 2u; j++) {
            const __m256i w0 = load_si256(group + LVR_SCALES_BYTES + j * 64u);
            const __m256i w1 = load_si256(group + LVR_SCALES_BYTES + j * 64u + 32u);
            const __m256i low0 = _mm256_and_si256(w0, low_nibbles);
            const __m256i low1 = _mm256_and_si256(w1, low_nibbles);
            const __m256i high0 = _mm256_and_si256(_mm256_srli_epi16(w0, 4), low_nibbles);
            const __m256i high1 = _mm256_and_si256(_mm256_srli_epi16(w1, 4), low_nibbles);
            for (unsigned r = 0; r < n_rows; r++) {
                const int8_t *quad = q + (size_t)r * a->n_in + 4u * j;
                const __m256i ql = broadcast_quad(quad), qh = broadcast_quad(quad + LVR_BLOCK / 2u);
                pairs[r][0] = add_maddubs(pairs[r][0], low0, ql);
                pairs[r][1] = add_maddubs(pairs[r][1], low1, ql);
                pairs[r][0] = add_maddubs(pairs[r][0], high0, qh);
                pairs[r][1] = add_maddubs(pairs[r][1], high1, qh);
            }
        }
        const __m256 dw0 = load_half8(group), dw1 = load_half8(group + 16);
        for (unsigned r = 0; r < n_rows; r++) {
            const __m256 da = _mm256_set1_ps(d[r * n_blocks + b]);
            const __m256i bias =
                _mm256_madd_epi16(broadcast_pair(hsum, r * n_blocks + b), _mm256_set1_epi16(LVR_Q4_BIAS));
            acc[r][0] =
                scale_block(_mm256_sub_epi32(_mm256_madd_epi16(pairs[r][0], ones), bias), dw0, da, acc[r][0]);
            acc[r][1] =
                scale_block(_mm256_sub_epi32(_mm256_madd_epi16(pairs[r][1], ones), bias), dw1, da, acc[r][1]);
        }
    }
    for (unsigned r = 0; r < n_rows; r++) {
        sums[2 * r] = acc[r][0];
        sums[2 * r + 1] = acc[r][1];
    }
}

/* ---- F32, F16 ---- */

INLINE __m256 load_weights8(const uint8_t *p, bool half)
{
    return half ? load_half8(p) : _mm256_loadu_ps((const float *)(const void *)p);
}

INLINE void dense_tile(const uint8_t *group, const lvr_acts *a, uint32_t row, __m256 *sums,
                       const unsigned n_rows, const bool half)
{
    const size_t elem = half ? sizeof(uint16_t) : sizeof(float);
    const float *x = a->x + (size_t)row * a->n_in;
    __m256 acc[MAX_ROWS][2];
    for (unsigned r = 0; r < n_rows; r++)
        acc[r][0] = acc[r][1] = _mm256_setzero_ps();
    for (size_t i = 0; i < a->n_in; i++, group += LVR_GROUP * elem) {
        const __m256 w0 = load_weights8(group, half), w1 = load_weights8(group + 8u * elem, half);
        for (unsigned r = 0; r < n_rows; r++) {
            const __m256 xi = _mm256_set1_ps(x[(size_t)r * a->n_in + i]);
            acc[r][0] = _mm256_fmadd_ps(w0, xi, acc[r][0]);
            acc[r][1] = _mm256_fmadd_ps(w1, xi, acc[r][1]);
        }
    }
    for (unsigned r = 0; r < n_rows; r++) {
        sums[2 * r] = acc[r][0];
        sums[2 * r + 1] = acc[r][1];
    }
}

/* ---- tiles of 1 to 4 rows of each type ---- */

#define TILE(name, n, call)                                                                                  \
    static void name##_tile_##n(const uint8_t *group, const lvr_acts *a, uint32_t row, __m256 *sums)         \
    {                                                                                                        \
        call;                                                                                                \
    }
#define TILES(name, ...)                                                                                     \
    TILE(name, 1, __VA_ARGS__(group, a, row, sums, 1))                                                       \
    TILE(name, 2, __VA_ARGS__(group, a, row, sums, 2))                                                       \
    TILE(name, 3, __VA_ARGS__(group, a, row, sums, 3))                                                       \
    TILE(name, 4, __VA_ARGS__(group, a, row, sums, 4))                                                       \
    static const tile_fn name##_tiles[MAX_ROWS + 1] = {NULL, name##_tile_1, name##_tile_2, name##_tile_3,    \
                                                       name##_tile_4};

#define F32_TILE(group, a, row, sums, n) dense_tile(group, a, row, sums, n, false)
#define F16_TILE(group, a, row, sums, n) dense_tile(group, a, row, sums, n, true)

TILES(q8_0, q8_0_tile)
TILES(q4_0, q4_0_tile)
TILES(f32, F32_TILE)
TILES(f16, F16_TILE)

static void store_outputs(const __m256 sums[2], uint32_t width, float *out)
{
    if (width < LVR_GROUP) {
        memcpy(out, sums, width * sizeof(float));
        return;
    }
    _mm256_storeu_ps(out, sums[0]);
    _mm256_storeu_ps(out + 8, sums[1]);
}

static void matmul(const lvr_matrix *m, const lvr_acts *a, uint32_t begin, uint32_t end, float *out,
                   size_t stride, const tile_fn *tiles)
{
    const uint64_t group_bytes = lvr_group_bytes(m->type, m->n_in);
    for (uint32_t g = begin; g < end; g++) {
        const uint32_t width = lvr_group_width(m, g);
        for (uint32_t row = 0; row < a->n_rows; row += MAX_ROWS) {
            const uint32_t left = a->n_rows - row;
            const uint32_t n_rows = left < MAX_ROWS ? left : MAX_ROWS;
            __m256 sums[2 * MAX_ROWS];
            tiles[n_rows](m->data + g * group_bytes, a, row, sums);
            for (uint32_t r = 0; r < n_rows; r++)
                store_outputs(sums + 2 * r, width, out + (row + r) * stride + (size_t)g * LVR_GROUP);
        }
    }
}

static void avx2_matmul_f32(const lvr_matrix *m, const lvr_acts *a, uint32_t begin, uint32_t end, float *out,
                            size_t stride)
{
    matmul(m, a, begin, end, out, stride, f32_tiles);
}

static void avx2_matmul_f16(const lvr_matrix *m, const lvr_acts *a, uint32_t begin, uint32_t end, float *out,
                            size_t stride)
{
    matmul(m, a, begin, end, out, stride, f16_tiles);
}

static void avx2_matmul_q4_0(const lvr_matrix *m, const lvr_acts *a, uint32_t begin, uint32_t end, float *out,
                             size_t stride)
{
    matmul(m, a, begin, end, out, stride, q4_0_tiles);
}

static void avx2_matmul_q8_0(const lvr_matrix *m, const lvr_acts *a, uint32_t begin, uint32_t end, float *out,
                             size_t stride)
{
    matmul(m, a, begin, end, out, stride, q8_0_tiles);
}

void lvr_kernels_init_avx2_matmul(lvr_kernels *k)
{
    k->matmul[LVR_F32] = avx2_matmul_f32;
    k->matmul[LVR_F16] = avx2_matmul_f16;
    k->matmul[LVR_Q4_0] = avx2_matmul_q4_0;
    k->matmul[LVR_Q8_0] = avx2_matmul_q8_0;
}
