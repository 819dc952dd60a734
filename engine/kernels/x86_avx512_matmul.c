/*
 * AVX-512 matrix products. Of quantised weights: tiles of up to 8 rows times one group, whose sums live in
 * registers. Every tile unpacks the group's codes for itself, in registers: the units that multiply are the
 * limit, and unpacking needs others. A group comes from memory for the first tile of rows and from L1 or L2
 * for the rest.
 *
 * VPDPBUSD adds four products u8 x s8 to each 32-bit lane, exactly: codes as they are, unsigned, times
 * activations; the codes' bias is taken off by starting from -bias * sum(q), and is never seen again. A block
 * costs a row 8 of them and 2 (PLAIN) to 6 (SUPER) multiplications of floats.
 */
#include "common/minmax.h"
#include "engine/kernels/x86_avx512_block.h"

#define MAX_ROWS 8u /* of a tile */
#define AHEAD 8192u /* bytes */
/* Fewer rows wait for memory, and the hardware's own prefetching serves them best (measured on Zen 4). */
#define LEAST_AHEAD_ROWS 3u

typedef void (*tile_fn)(const uint8_t *group, const lvr_acts *a, uint32_t row, __mmask16 present, float *out,
                        size_t stride);

/* ---- what a row brings to a span but its codes ---- */

/* Copied, so that the loop over blocks finds them at constant distances: with eight rows, general registers
 * are short. Absent blocks: 0. */
typedef struct row_scales {
    union {
        _Alignas(64) int32_t start_half[SPAN_BLOCKS][2]; /* HALVES: -bias * sum of q of each half */
        int32_t start[SPAN_BLOCKS];                      /* PLAIN: -bias * sum of q */
        float qsum[SPAN_BLOCKS];                         /* MIN, SUPER: sum of q */
    };
    float da[SPAN_BLOCKS];
} row_scales;

INLINE void load_row_scales(const form f, const int16_t *hsum, const float *d, uint32_t n, int bias,
                            row_scales *ret)
{
    const __mmask8 present = (__mmask8)((1u << n) - 1u);
    const __m256i pairs = _mm256_maskz_loadu_epi32(present, hsum);
    _mm256_store_ps(ret->da, _mm256_maskz_loadu_ps(present, d));
    if (f == HALVES) {
        const __m512i minus = _mm512_set1_epi32(-bias);
        _mm512_store_si512(ret->start_half, _mm512_mullo_epi32(_mm512_cvtepi16_epi32(pairs), minus));
        return;
    }
    const __m256i sum = _mm256_madd_epi16(pairs, _mm256_set1_epi16((int16_t)(f == PLAIN ? -bias : 1)));
    if (f == PLAIN)
        _mm256_store_si256((__m256i *)(void *)ret->start, sum);
    else
        _mm256_store_ps(ret->qsum, _mm256_cvtepi32_ps(sum));
}

/* ---- tiles ---- */

INLINE __m512i broadcast_quad(const int8_t *q)
{
    int32_t v;
    memcpy(&v, q, sizeof v);
    return _mm512_set1_epi32(v);
}

INLINE void start_sums(const form f, const row_scales *row, uint32_t b, __m512i *ret_s0, __m512i *ret_s1)
{
    *ret_s1 = _mm512_setzero_si512();
    *ret_s0 = *ret_s1;
    if (f == PLAIN)
        *ret_s0 = _mm512_set1_epi32(row->start[b]);
    if (f == HALVES) {
        *ret_s0 = _mm512_set1_epi32(row->start_half[b][0]);
        *ret_s1 = _mm512_set1_epi32(row->start_half[b][1]);
    }
}

/* Block b of a span times the rows at `q`. */
INLINE void add_products(const lvr_wtype t, const packed *w, const int8_t *q, size_t n_in,
                         const row_scales *row, uint32_t b, __m512 *acc, const unsigned n_rows)
{
    const form f = block_types[t].form;
    __m512i code[QUADS], s[2][MAX_ROWS];
    unpack_codes(t, w->q, code);
    LVR_UNROLL
    for (unsigned r = 0; r < n_rows; r++)
        start_sums(f, &row[r], b, &s[0][r], &s[1][r]);
    LVR_UNROLL
    for (unsigned j = 0; j < QUADS; j++) {
        __m512i *into = s[f == HALVES && j >= QUADS / 2u];
        LVR_UNROLL
        for (unsigned r = 0; r < n_rows; r++) {
            into[r] = _mm512_dpbusd_epi32(into[r], code[j], broadcast_quad(q + r * n_in + 4u * j));
            LVR_KEEP(into[r]);
        }
    }
    const block_scales scales = load_scales(f, w);
    LVR_UNROLL
    for (unsigned r = 0; r < n_rows; r++)
        acc[r] = add_block(f, &scales, s[0][r], s[1][r], row[r].da[b], row[r].qsum[b], acc[r]);
}

/* As many bytes as block b has, AHEAD of it (past a group is the next one; past the last, prefetching harms
 * nothing). Into L2: in L1 the activations, which miss it too, would have to wait for the memory's lines. */
INLINE void prefetch_ahead(const uint8_t *span, uint32_t b, uint32_t block_bytes)
{
    const char *ahead = (const char *)span + b * block_bytes + AHEAD;
    for (uint32_t at = 0; at < block_bytes; at += CACHE_LINE)
        _mm_prefetch(ahead + at, _MM_HINT_T1);
}

/* Rows row, row + 1... of `a`. Type and number of rows are constants where this is inlined. */
INLINE void tile(const lvr_wtype t, const uint8_t *group, const lvr_acts *a, uint32_t row, __mmask16 present,
                 float *out, size_t stride, const unsigned n_rows)
{
    const block_type type = block_types[t];
    const size_t n_in = a->n_in, n_blocks = n_in / LVR_BLOCK;
    const int8_t *q = a->q + row * n_in;
    __m512 acc[MAX_ROWS];
    LVR_UNROLL
    for (unsigned r = 0; r < n_rows; r++)
        acc[r] = _mm512_setzero_ps();
    for (size_t first = 0; first < n_blocks; first += SPAN_BLOCKS, group += SPAN_BLOCKS * type.block_bytes) {
        const uint32_t n = n_blocks - first < SPAN_BLOCKS ? (uint32_t)(n_blocks - first) : SPAN_BLOCKS;
        row_scales scales[MAX_ROWS];
        LVR_UNROLL
        for (unsigned r = 0; r < n_rows; r++) {
            const size_t at = (row + r) * n_blocks + first;
            load_row_scales(type.form, a->hsum + 2u * at, a->d + at, n, type.bias, &scales[r]);
        }
        for (uint32_t b = 0; b < n; b++, q += LVR_BLOCK) {
            const packed w = locate(t, group, b);
            if (row == 0 && n_rows >= LEAST_AHEAD_ROWS) /* the first tile brings the group from memory */
                prefetch_ahead(group, b, type.block_bytes);
            add_products(t, &w, q, n_in, scales, b, acc, n_rows);
        }
    }
    LVR_UNROLL
    for (unsigned r = 0; r < n_rows; r++)
        _mm512_mask_storeu_ps(out + r * stride, present, acc[r]);
}

#define TILE(name, t, n_rows)                                                                                \
    static void name##_tile_##n_rows(const uint8_t *group, const lvr_acts *a, uint32_t row,                  \
                                     __mmask16 present, float *out, size_t stride)                           \
    {                                                                                                        \
        tile(t, group, a, row, present, out, stride, n_rows);                                                \
    }
#define TILES(one, name, what)                                                                               \
    one(name, what, 1) one(name, what, 2) one(name, what, 3) one(name, what, 4) one(name, what, 5)           \
        one(name, what, 6) one(name, what, 7) one(name, what, 8)
#define TILE_TABLE(name)                                                                                     \
    {                                                                                                        \
        NULL, name##_tile_1, name##_tile_2, name##_tile_3, name##_tile_4, name##_tile_5, name##_tile_6,      \
            name##_tile_7, name##_tile_8                                                                     \
    }

TILES(TILE, q8_0, LVR_Q8_0)
TILES(TILE, q4_0, LVR_Q4_0)
TILES(TILE, q4_1, LVR_Q4_1)
TILES(TILE, q5_0, LVR_Q5_0)
TILES(TILE, q5_1, LVR_Q5_1)
TILES(TILE, q4_k, LVR_Q4_K)
TILES(TILE, q5_k, LVR_Q5_K)
TILES(TILE, q6_k, LVR_Q6_K)

/* ---- F32, F16, BF16 ---- */

INLINE uint32_t dense_bytes(const lvr_wtype t)
{
    return t == LVR_F32 ? sizeof(float) : sizeof(uint16_t);
}

INLINE __m512 load_dense(const lvr_wtype t, const uint8_t *p)
{
    if (t == LVR_F32)
        return _mm512_loadu_ps(p);
    if (t == LVR_F16)
        return load_halves(p);
    const __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
}

/* n_groups groups, one after the other; `present` is of the last. */
INLINE void dense_tile(const lvr_wtype t, const uint8_t *group, const lvr_acts *a, uint32_t row,
                       __mmask16 present, float *out, size_t stride, const unsigned n_rows,
                       const unsigned n_groups)
{
    const size_t n_in = a->n_in, group_bytes = n_in * LVR_GROUP * dense_bytes(t);
    const float *x = a->x + row * n_in;
    __m512 acc[2][MAX_ROWS];
    LVR_UNROLL
    for (unsigned r = 0; r < n_rows; r++)
        acc[0][r] = acc[1][r] = _mm512_setzero_ps();
    for (size_t i = 0; i < n_in; i++, group += LVR_GROUP * dense_bytes(t)) {
        LVR_UNROLL
        for (unsigned g = 0; g < n_groups; g++) {
            const __m512 w = load_dense(t, group + g * group_bytes);
            LVR_UNROLL
            for (unsigned r = 0; r < n_rows; r++)
                acc[g][r] = _mm512_fmadd_ps(w, _mm512_set1_ps(x[r * n_in + i]), acc[g][r]);
        }
    }
    LVR_UNROLL
    for (unsigned g = 0; g < n_groups; g++)
        LVR_UNROLL
    for (unsigned r = 0; r < n_rows; r++)
        _mm512_mask_storeu_ps(out + r * stride + g * LVR_GROUP, g + 1u < n_groups ? 0xffffu : present,
                              acc[g][r]);
}

#define DENSE_TILE(name, t, n_rows)                                                                          \
    static void name##_tile_##n_rows(const uint8_t *group, const lvr_acts *a, uint32_t row,                  \
                                     __mmask16 present, float *out, size_t stride)                           \
    {                                                                                                        \
        dense_tile(t, group, a, row, present, out, stride, n_rows, 1);                                       \
    }

TILES(DENSE_TILE, f32, LVR_F32)
TILES(DENSE_TILE, f16, LVR_F16)
TILES(DENSE_TILE, bf16, LVR_BF16)

/* Few rows are too few multiply-adds under way at a time: two groups. */
#define PAIR_ROWS 3u
#define DENSE_PAIR(name, t, n_rows)                                                                          \
    static void name##_pair_##n_rows(const uint8_t *group, const lvr_acts *a, uint32_t row,                  \
                                     __mmask16 present, float *out, size_t stride)                           \
    {                                                                                                        \
        dense_tile(t, group, a, row, present, out, stride, n_rows, 2);                                       \
    }
#define DENSE_PAIRS(name, t) DENSE_PAIR(name, t, 1) DENSE_PAIR(name, t, 2) DENSE_PAIR(name, t, 3)

DENSE_PAIRS(f32, LVR_F32)
DENSE_PAIRS(f16, LVR_F16)
DENSE_PAIRS(bf16, LVR_BF16)

static const tile_fn pairs[LVR_WTYPE_SLOTS][PAIR_ROWS + 1] = {
    [LVR_F32] = {NULL, f32_pair_1, f32_pair_2, f32_pair_3},
    [LVR_F16] = {NULL, f16_pair_1, f16_pair_2, f16_pair_3},
    [LVR_BF16] = {NULL, bf16_pair_1, bf16_pair_2, bf16_pair_3},
};

/* ---- whole matrices ---- */

static const tile_fn tiles[LVR_WTYPE_SLOTS][MAX_ROWS + 1] = {
    [LVR_F32] = TILE_TABLE(f32),   [LVR_F16] = TILE_TABLE(f16),   [LVR_BF16] = TILE_TABLE(bf16),
    [LVR_Q8_0] = TILE_TABLE(q8_0), [LVR_Q4_0] = TILE_TABLE(q4_0), [LVR_Q4_1] = TILE_TABLE(q4_1),
    [LVR_Q5_0] = TILE_TABLE(q5_0), [LVR_Q5_1] = TILE_TABLE(q5_1), [LVR_Q4_K] = TILE_TABLE(q4_k),
    [LVR_Q5_K] = TILE_TABLE(q5_k), [LVR_Q6_K] = TILE_TABLE(q6_k),
};

/* Rows of each tile, of which there are as few as can be, all but the last alike. */
static uint32_t tile_rows(uint32_t n_rows)
{
    const uint32_t n_tiles = (n_rows + MAX_ROWS - 1) / MAX_ROWS;
    return (n_rows + n_tiles - 1) / n_tiles;
}

static __mmask16 outputs_of(const lvr_matrix *m, uint32_t group)
{
    return (__mmask16)((1u << lvr_group_width(m, group)) - 1u);
}

void lvr_avx512_matmul(const lvr_matrix *m, const lvr_acts *a, uint32_t begin, uint32_t end, float *out,
                       size_t stride)
{
    const uint64_t group_bytes = lvr_group_bytes(m->type, m->n_in);
    const uint32_t most = tile_rows(a->n_rows);
    for (uint32_t g = begin; g < end; g++)
        for (uint32_t row = 0; row < a->n_rows; row += most)
            tiles[m->type][lvr_min_u32(a->n_rows - row, most)](
                m->data + g * group_bytes, a, row, outputs_of(m, g),
                out + row * stride + (size_t)g * LVR_GROUP, stride);
}

static void avx512_matmul_dense(const lvr_matrix *m, const lvr_acts *a, uint32_t begin, uint32_t end,
                                float *out, size_t stride)
{
    const uint64_t group_bytes = lvr_group_bytes(m->type, m->n_in);
    uint32_t g = begin;
    for (; a->n_rows <= PAIR_ROWS && g + 2u <= end; g += 2u)
        pairs[m->type][a->n_rows](m->data + g * group_bytes, a, 0, outputs_of(m, g + 1u),
                                  out + (size_t)g * LVR_GROUP, stride);
    lvr_avx512_matmul(m, a, g, end, out, stride);
}

void lvr_kernels_init_avx512_matmul(lvr_kernels *k)
{
    for (unsigned t = 0; t < LVR_WTYPE_SLOTS; t++)
        if (tiles[t][1] != NULL)
            k->matmul[t] = pairs[t][1] != NULL ? avx512_matmul_dense : lvr_avx512_matmul;
}
