/*
 * AVX2 products of F32, F16 and BF16 matrices: a tile of up to MAX_ROWS rows times 16 outputs, whose sums are
 * in registers. Halves are widened by each tile: the multiply-adds leave the units free that do it. All rows
 * pass over a panel of inputs while it is in L1.
 */
#include "engine/kernels/levels.h"

#include <immintrin.h>

#define MAX_ROWS 6u    /* of a tile: 12 chains of multiply-adds, where 8 hide their latency */
#define CHUNK_ROWS 66u /* whose sums wait in L1 between panels */
#define PANEL_INPUTS 256u
#define AHEAD 2048u /* bytes: the hardware's own prefetching pauses at the end of each page */
#define INLINE static inline __attribute__((always_inline))

/* n inputs of 16 weights each times rows row, row + 1..., from input `at` on. sums: [rows][16], added to. */
typedef void (*tile_fn)(const uint8_t *w, size_t n, const lvr_acts *a, size_t row, size_t at, float *sums);

INLINE __m256 widen8(const uint8_t *w, const lvr_wtype t)
{
    if (t == LVR_F32)
        return _mm256_loadu_ps((const float *)(const void *)w);
    const __m128i h = _mm_loadu_si128((const __m128i *)(const void *)w);
    if (t == LVR_F16)
        return _mm256_cvtph_ps(h);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

INLINE size_t bytes_of(const lvr_wtype t)
{
    return t == LVR_F32 ? sizeof(float) : sizeof(uint16_t);
}

INLINE void dot_tile(const uint8_t *w, size_t n, const lvr_acts *a, size_t row, size_t at, float *sums,
                     const lvr_wtype t, const unsigned n_rows)
{
    const size_t stride = a->n_in;
    const float *x = a->x + row * stride + at;
    __m256 acc[MAX_ROWS][2];
    for (unsigned r = 0; r < n_rows; r++)
        for (unsigned h = 0; h < 2; h++)
            acc[r][h] = _mm256_loadu_ps(sums + r * LVR_GROUP + 8u * h);
    for (size_t i = 0; i < n; i++, w += LVR_GROUP * bytes_of(t)) {
        if (row == 0) /* the first tile brings the group from memory */
            _mm_prefetch((const char *)w + AHEAD, _MM_HINT_T0);
        const __m256 w0 = widen8(w, t), w1 = widen8(w + 8u * bytes_of(t), t);
        for (unsigned r = 0; r < n_rows; r++) {
            const __m256 xi = _mm256_set1_ps(x[r * stride + i]);
            acc[r][0] = _mm256_fmadd_ps(w0, xi, acc[r][0]);
            acc[r][1] = _mm256_fmadd_ps(w1, xi, acc[r][1]);
        }
    }
    for (unsigned r = 0; r < n_rows; r++)
        for (unsigned h = 0; h < 2; h++)
            _mm256_storeu_ps(sums + r * LVR_GROUP + 8u * h, acc[r][h]);
}

#define TILE(name, type, n)                                                                                  \
    static void name##_tile_##n(const uint8_t *w, size_t n_in, const lvr_acts *a, size_t row, size_t at,     \
                                float *sums)                                                                 \
    {                                                                                                        \
        dot_tile(w, n_in, a, row, at, sums, type, n);                                                        \
    }
#define TILES(name, type)                                                                                    \
    TILE(name, type, 1)                                                                                      \
    TILE(name, type, 2)                                                                                      \
    TILE(name, type, 3)                                                                                      \
    TILE(name, type, 4)                                                                                      \
    TILE(name, type, 5)                                                                                      \
    TILE(name, type, 6)                                                                                      \
    static const tile_fn name##_tiles[MAX_ROWS + 1] = {                                                      \
        NULL, name##_tile_1, name##_tile_2, name##_tile_3, name##_tile_4, name##_tile_5, name##_tile_6};
TILES(f32, LVR_F32)
TILES(f16, LVR_F16)
TILES(bf16, LVR_BF16)

static const tile_fn *const tiles_of[LVR_WTYPE_SLOTS] = {
    [LVR_F32] = f32_tiles, [LVR_F16] = f16_tiles, [LVR_BF16] = bf16_tiles};

static inline uint32_t at_most(uint32_t n, uint32_t most)
{
    return n < most ? n : most;
}

/* Of the next tile: evenly shared, for a tile of one or two rows takes as long as one of four. */
static uint32_t tile_rows(uint32_t left)
{
    const uint32_t n_tiles = (left + MAX_ROWS - 1u) / MAX_ROWS;
    return (left + n_tiles - 1u) / n_tiles;
}

static void dot_group(lvr_wtype t, const uint8_t *group, const lvr_acts *a, uint32_t row, uint32_t n_rows,
                      float *sums)
{
    const uint32_t step = n_rows <= MAX_ROWS ? a->n_in : PANEL_INPUTS;
    for (uint32_t at = 0; at < a->n_in; at += step) {
        const uint8_t *w = group + at * LVR_GROUP * bytes_of(t);
        for (uint32_t r = 0, n = 0; r < n_rows; r += n) {
            n = tile_rows(n_rows - r);
            tiles_of[t][n](w, at_most(a->n_in - at, step), a, row + r, at, sums + r * LVR_GROUP);
        }
    }
}

static void avx2_matmul_dense(const lvr_matrix *m, const lvr_acts *a, uint32_t begin, uint32_t end,
                              float *out, size_t stride)
{
    const uint64_t group_bytes = lvr_group_bytes(m->type, m->n_in);
    for (uint32_t g = begin; g < end; g++)
        for (uint32_t row = 0; row < a->n_rows; row += CHUNK_ROWS) {
            const uint32_t n_rows = at_most(a->n_rows - row, CHUNK_ROWS), width = lvr_group_width(m, g);
            float sums[CHUNK_ROWS * LVR_GROUP];
            memset(sums, 0, n_rows * LVR_GROUP * sizeof *sums);
            dot_group(m->type, m->data + g * group_bytes, a, row, n_rows, sums);
            for (uint32_t r = 0; r < n_rows; r++)
                memcpy(out + (row + r) * stride + (size_t)g * LVR_GROUP, sums + r * LVR_GROUP,
                       width * sizeof(float));
        }
}

void lvr_kernels_init_avx2_dense(lvr_kernels *k)
{
    k->matmul[LVR_F32] = avx2_matmul_dense;
    k->matmul[LVR_F16] = avx2_matmul_dense;
    k->matmul[LVR_BF16] = avx2_matmul_dense;
}
