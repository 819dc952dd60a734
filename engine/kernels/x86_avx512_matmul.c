/*
 * AVX-512 matrix products. Of quantised weights: a panel of one group is unpacked (x86_avx512_panel.h), then
 * multiplied with all rows of activations, in tiles of up to 8 rows whose integer sums live in registers.
 * VPDPBUSD adds four products u8 x s8 to each 32-bit lane, exactly: codes as they are, unsigned, times
 * activations; the codes' bias is taken off by starting from -bias * sum(q), and is never seen again.
 *
 * A block of a tile costs 8 VPDPBUSD and the scale's 3 (PLAIN) to 7 (SUPER) instructions per row; unpacking
 * costs about 12 to 32 per panel's block, once.
 */
#include "engine/kernels/x86_avx512_panel.h"

#define MAX_ROWS 8u   /* of a tile */
#define SLAB_ROWS 64u /* rows that share one unpacking */

typedef struct sums {
    _Alignas(64) float of[SLAB_ROWS][LVR_GROUP];
} sums;

/* The rows of a tile, from the panel's first block on. */
typedef struct operand {
    const int8_t *q;
    const float *d;
    const int16_t *hsum;
    size_t n_in, n_blocks; /* from row to row */
} operand;

/* code_stride: bytes from block to block. */
typedef void (*tile_fn)(const panel *p, const uint8_t *code, size_t code_stride, uint32_t n, int bias,
                        const operand *a, float (*acc)[LVR_GROUP]);

INLINE __m512i broadcast_quad(const int8_t *q)
{
    int32_t v;
    memcpy(&v, q, sizeof v);
    return _mm512_set1_epi32(v);
}

/* ---- what a row brings to the panel but its codes ---- */

/* Copied, so that the loop over blocks finds them at constant distances: with eight rows, general registers
 * are short. Absent blocks: 0. */
typedef struct row_scales {
    union {
        _Alignas(64) int32_t start_half[PANEL_BLOCKS][2]; /* HALVES: -bias * sum of q of each half */
        int32_t start[PANEL_BLOCKS];                      /* PLAIN: -bias * sum of q */
        float qsum[PANEL_BLOCKS];                         /* MIN, SUPER: sum of q */
    };
    float da[PANEL_BLOCKS];
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

/* Form and rows are constants where this is inlined. */
INLINE void tile(const form f, const panel *p, const uint8_t *code, size_t code_stride, uint32_t n, int bias,
                 const operand *a, float (*to)[LVR_GROUP], const unsigned n_rows)
{
    row_scales row[MAX_ROWS];
    __m512 acc[MAX_ROWS];
    LVR_UNROLL
    for (unsigned r = 0; r < n_rows; r++) {
        load_row_scales(f, a->hsum + r * a->n_blocks * 2u, a->d + r * a->n_blocks, n, bias, &row[r]);
        acc[r] = _mm512_load_ps(to[r]);
    }
    for (uint32_t b = 0; b < n; b++, code += code_stride) {
        __m512i s[2][MAX_ROWS];
        LVR_UNROLL
        for (unsigned r = 0; r < n_rows; r++)
            start_sums(f, &row[r], b, &s[0][r], &s[1][r]);
        LVR_UNROLL
        for (unsigned j = 0; j < QUADS; j++) {
            const __m512i w = load_codes(code + j * QUAD_BYTES);
            __m512i *into = s[f == HALVES && j >= QUADS / 2u];
            LVR_UNROLL
            for (unsigned r = 0; r < n_rows; r++) {
                into[r] = _mm512_dpbusd_epi32(into[r], w,
                                              broadcast_quad(a->q + r * a->n_in + b * LVR_BLOCK + 4u * j));
                LVR_KEEP(into[r]);
            }
        }
        const block_scales scales = load_scales(f, p, b);
        LVR_UNROLL
        for (unsigned r = 0; r < n_rows; r++)
            acc[r] = add_block(f, &scales, s[0][r], s[1][r], row[r].da[b], row[r].qsum[b], acc[r]);
    }
    LVR_UNROLL
    for (unsigned r = 0; r < n_rows; r++)
        _mm512_store_ps(to[r], acc[r]);
}

#define TILE(name, f, n_rows)                                                                                \
    static void name##_tile_##n_rows(const panel *p, const uint8_t *code, size_t code_stride, uint32_t n,    \
                                     int bias, const operand *a, float(*acc)[LVR_GROUP])                     \
    {                                                                                                        \
        tile(f, p, code, code_stride, n, bias, a, acc, n_rows);                                              \
    }
#define TILES(one, name, what)                                                                               \
    one(name, what, 1) one(name, what, 2) one(name, what, 3) one(name, what, 4) one(name, what, 5)           \
        one(name, what, 6) one(name, what, 7) one(name, what, 8)
#define TILE_TABLE(name)                                                                                     \
    {                                                                                                        \
        NULL, name##_tile_1, name##_tile_2, name##_tile_3, name##_tile_4, name##_tile_5, name##_tile_6,      \
            name##_tile_7, name##_tile_8                                                                     \
    }

TILES(TILE, plain, PLAIN)
TILES(TILE, min, MIN)
TILES(TILE, super, SUPER)
TILES(TILE, halves, HALVES)

static const tile_fn tiles[FORMS][MAX_ROWS + 1] = {
    [PLAIN] = TILE_TABLE(plain),
    [MIN] = TILE_TABLE(min),
    [SUPER] = TILE_TABLE(super),
    [HALVES] = TILE_TABLE(halves),
};

/* ---- panels ---- */

UNPACKER(q8_0, LVR_Q8_0, 0, true) /* its codes are packed as the tiles want them */
UNPACKER(q4_0, LVR_Q4_0, 0, false)
UNPACKER(q4_1, LVR_Q4_1, 0, false)
UNPACKER(q5_0, LVR_Q5_0, 0, false)
UNPACKER(q5_1, LVR_Q5_1, 0, false)
UNPACKER(q4_k, LVR_Q4_K, 0, false)
UNPACKER(q5_k, LVR_Q5_K, 0, false)
UNPACKER(q6_k, LVR_Q6_K, 0, false)

static const unpack_fn unpackers[LVR_WTYPE_SLOTS] = {
    [LVR_Q8_0] = unpack_q8_0, [LVR_Q4_0] = unpack_q4_0, [LVR_Q4_1] = unpack_q4_1, [LVR_Q5_0] = unpack_q5_0,
    [LVR_Q5_1] = unpack_q5_1, [LVR_Q4_K] = unpack_q4_k, [LVR_Q5_K] = unpack_q5_k, [LVR_Q6_K] = unpack_q6_k,
};

/* Rows of each tile, of which there are as few as can be, all but the last alike. */
static uint32_t tile_rows(uint32_t n_rows)
{
    const uint32_t n_tiles = (n_rows + MAX_ROWS - 1) / MAX_ROWS;
    return (n_rows + n_tiles - 1) / n_tiles;
}

static void multiply_panel(const panel *p, const panel_type *type, const uint8_t *code, size_t code_stride,
                           uint32_t n, operand a, uint32_t n_rows, sums *acc)
{
    const uint32_t most = tile_rows(n_rows);
    for (uint32_t r = 0; r < n_rows; r += most) {
        const uint32_t rows = n_rows - r < most ? n_rows - r : most;
        tiles[type->form][rows](p, code, code_stride, n, type->bias, &a, acc->of + r);
        a.q += rows * a.n_in;
        a.d += rows * a.n_blocks;
        a.hsum += rows * a.n_blocks * 2u;
    }
}

/* Sums of the rows from `row` on. */
static void multiply_group(lvr_wtype t, const uint8_t *group, const lvr_acts *a, uint32_t row,
                           uint32_t n_rows, sums *ret)
{
    panel p;
    const panel_type *type = &panel_types[t];
    const size_t n_blocks = a->n_in / LVR_BLOCK;
    memset(ret->of, 0, n_rows * sizeof ret->of[0]);
    for (size_t b = 0; b < n_blocks; b += PANEL_BLOCKS, group += PANEL_BLOCKS * type->block_bytes) {
        const uint32_t n = n_blocks - b < PANEL_BLOCKS ? (uint32_t)(n_blocks - b) : PANEL_BLOCKS;
        const operand at = {
            .q = a->q + (size_t)row * a->n_in + b * LVR_BLOCK,
            .d = a->d + row * n_blocks + b,
            .hsum = a->hsum + (row * n_blocks + b) * 2u,
            .n_in = a->n_in,
            .n_blocks = n_blocks,
        };
        unpackers[t](group, n, &p);
        if (t == LVR_Q8_0)
            multiply_panel(&p, type, group + LVR_SCALES_BYTES, type->block_bytes, n, at, n_rows, ret);
        else
            multiply_panel(&p, type, p.code[0], CODE_BYTES, n, at, n_rows, ret);
    }
}

static void store_sums(const sums *s, uint32_t n_rows, uint32_t width, float *out, size_t stride)
{
    const __mmask16 present = (__mmask16)((1u << width) - 1u);
    for (uint32_t r = 0; r < n_rows; r++)
        _mm512_mask_storeu_ps(out + r * stride, present, _mm512_load_ps(s->of[r]));
}

void lvr_avx512_matmul_quantised(const lvr_matrix *m, const lvr_acts *a, uint32_t begin, uint32_t end,
                                 float *out, size_t stride)
{
    const uint64_t group_bytes = lvr_group_bytes(m->type, m->n_in);
    for (uint32_t row = 0; row < a->n_rows; row += SLAB_ROWS) {
        const uint32_t rows = a->n_rows - row < SLAB_ROWS ? a->n_rows - row : SLAB_ROWS;
        for (uint32_t g = begin; g < end; g++) {
            sums s;
            multiply_group(m->type, m->data + g * group_bytes, a, row, rows, &s);
            store_sums(&s, rows, lvr_group_width(m, g), out + row * stride + (size_t)g * LVR_GROUP, stride);
        }
    }
}

/* ---- F32, F16, BF16 ---- */

typedef void (*dense_fn)(const uint8_t *group, const lvr_acts *a, uint32_t row, float (*to)[LVR_GROUP]);

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

INLINE void dense_tile(const lvr_wtype t, const uint8_t *group, const lvr_acts *a, uint32_t row,
                       float (*to)[LVR_GROUP], const unsigned n_rows)
{
    const size_t n_in = a->n_in;
    const float *x = a->x + row * n_in;
    __m512 acc[MAX_ROWS];
    LVR_UNROLL
    for (unsigned r = 0; r < n_rows; r++)
        acc[r] = _mm512_setzero_ps();
    for (size_t i = 0; i < n_in; i++, group += LVR_GROUP * dense_bytes(t)) {
        const __m512 w = load_dense(t, group);
        LVR_UNROLL
        for (unsigned r = 0; r < n_rows; r++)
            acc[r] = _mm512_fmadd_ps(w, _mm512_set1_ps(x[r * n_in + i]), acc[r]);
    }
    LVR_UNROLL
    for (unsigned r = 0; r < n_rows; r++)
        _mm512_store_ps(to[r], acc[r]);
}

#define DENSE_TILE(name, t, n_rows)                                                                          \
    static void name##_tile_##n_rows(const uint8_t *group, const lvr_acts *a, uint32_t row,                  \
                                     float(*to)[LVR_GROUP])                                                  \
    {                                                                                                        \
        dense_tile(t, group, a, row, to, n_rows);                                                            \
    }

TILES(DENSE_TILE, f32, LVR_F32)
TILES(DENSE_TILE, f16, LVR_F16)
TILES(DENSE_TILE, bf16, LVR_BF16)

static const dense_fn dense_tiles[][MAX_ROWS + 1] = {
    [LVR_F32] = TILE_TABLE(f32),
    [LVR_F16] = TILE_TABLE(f16),
    [LVR_BF16] = TILE_TABLE(bf16),
};

static void avx512_matmul_dense(const lvr_matrix *m, const lvr_acts *a, uint32_t begin, uint32_t end,
                                float *out, size_t stride)
{
    const uint64_t group_bytes = lvr_group_bytes(m->type, m->n_in);
    const uint32_t most = tile_rows(a->n_rows);
    for (uint32_t g = begin; g < end; g++)
        for (uint32_t row = 0; row < a->n_rows; row += most) {
            const uint32_t rows = a->n_rows - row < most ? a->n_rows - row : most;
            sums s;
            dense_tiles[m->type][rows](m->data + g * group_bytes, a, row, s.of);
            store_sums(&s, rows, lvr_group_width(m, g), out + row * stride + (size_t)g * LVR_GROUP, stride);
        }
}

void lvr_kernels_init_avx512_matmul(lvr_kernels *k)
{
    k->matmul[LVR_F32] = avx512_matmul_dense;
    k->matmul[LVR_F16] = avx512_matmul_dense;
    k->matmul[LVR_BF16] = avx512_matmul_dense;
    for (unsigned t = 0; t < LVR_WTYPE_SLOTS; t++)
        if (unpackers[t] != NULL)
            k->matmul[t] = lvr_avx512_matmul_quantised;
}
