/* AVX2 + FMA + F16C: the sweeps of attention. A score's 16 partials are two registers. */
#include "engine/kernels/levels.h"

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))
#define KEYS_AT_A_TIME(n_q) (4 / (n_q))
#define PARTS_AT_A_TIME(n_q) (4 / (n_q))

/* 16 elements of a row. */
typedef struct floats16 {
    __m256 lo, hi;
} floats16;

/* The scale of the block that element i belongs to; none for F16. */
INLINE __m256 scale_at(const lvr_kv_type type, const uint8_t *row, uint32_t head_dim, uint32_t i)
{
    int16_t half;
    if (type == LVR_KV_F16)
        return _mm256_setzero_ps();
    memcpy(&half, row + head_dim + i / LVR_BLOCK * 2, sizeof half);
    return _mm256_cvtph_ps(_mm_set1_epi16(half));
}

INLINE floats16 load_16(const lvr_kv_type type, const uint8_t *row, uint32_t i, __m256 scale)
{
    if (type == LVR_KV_F16) {
        const __m128i *at = (const __m128i *)(const void *)(row + 2 * (size_t)i);
        return (floats16){_mm256_cvtph_ps(_mm_loadu_si128(at)), _mm256_cvtph_ps(_mm_loadu_si128(at + 1))};
    }
    const __m256i lo = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(row + i)));
    const __m256i hi = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(row + i + 8)));
    return (floats16){_mm256_mul_ps(_mm256_cvtepi32_ps(lo), scale),
                      _mm256_mul_ps(_mm256_cvtepi32_ps(hi), scale)};
}

/* ---- keys ---- */

/* 16 partials to 4: + [i+8], + [i+4]. */
INLINE __m128 fold_to_4(__m256 lo, __m256 hi)
{
    const __m256 p = _mm256_add_ps(lo, hi);
    return _mm_add_ps(_mm256_castps256_ps128(p), _mm256_extractf128_ps(p, 1));
}

/* Products of n_q queries and 4 / n_q keys side by side: as many multiply-adds are independent as are under
 * way at a time. */
typedef struct products {
    __m256 lo[4], hi[4]; /* by query, then by key */
} products;

INLINE void add_products(const lvr_kv_type type, const unsigned n_q, const float *q, const uint8_t *rows,
                         size_t row_bytes, uint32_t head_dim, uint32_t i, const __m256 *scales,
                         products *sums)
{
    const unsigned n_k = 4 / n_q;
    for (unsigned k = 0; k < n_k; k++) {
        const floats16 key = load_16(type, rows + k * row_bytes, i, scales[k]);
        for (unsigned t = 0; t < n_q; t++) {
            const float *query = q + (size_t)t * head_dim + i;
            const unsigned at = t * n_k + k;
            sums->lo[at] = _mm256_fmadd_ps(_mm256_loadu_ps(query), key.lo, sums->lo[at]);
            sums->hi[at] = _mm256_fmadd_ps(_mm256_loadu_ps(query + 8), key.hi, sums->hi[at]);
        }
    }
}

/* Four scores, by query, then by key. */
INLINE __m128 dot_4(const lvr_kv_type type, const unsigned n_q, const float *q, const uint8_t *rows,
                    size_t row_bytes, uint32_t head_dim)
{
    products sums;
    for (unsigned t = 0; t < 4; t++)
        sums.lo[t] = sums.hi[t] = _mm256_setzero_ps();
    for (uint32_t i = 0; i < head_dim; i += LVR_BLOCK) {
        __m256 scales[4];
        for (unsigned k = 0; k < 4 / n_q; k++)
            scales[k] = scale_at(type, rows + k * row_bytes, head_dim, i);
        add_products(type, n_q, q, rows, row_bytes, head_dim, i, scales, &sums);
        if (i + LVR_BLOCK / 2 < head_dim)
            add_products(type, n_q, q, rows, row_bytes, head_dim, i + LVR_BLOCK / 2, scales, &sums);
    }
    __m128 p0 = fold_to_4(sums.lo[0], sums.hi[0]), p1 = fold_to_4(sums.lo[1], sums.hi[1]);
    __m128 p2 = fold_to_4(sums.lo[2], sums.hi[2]), p3 = fold_to_4(sums.lo[3], sums.hi[3]);
    _MM_TRANSPOSE4_PS(p0, p1, p2, p3);
    return _mm_add_ps(_mm_add_ps(p0, p2), _mm_add_ps(p1, p3));
}

INLINE void store_scores(const unsigned n_q, __m128 s, float *scores, size_t stride)
{
    if (n_q == 1) {
        _mm_storeu_ps(scores, s);
    } else if (n_q == 2) {
        _mm_storel_pi((__m64 *)(void *)scores, s);
        _mm_storeh_pi((__m64 *)(void *)(scores + stride), s);
    } else {
        _mm_store_ss(scores, s);
        _mm_store_ss(scores + stride, _mm_shuffle_ps(s, s, 1));
        _mm_store_ss(scores + 2 * stride, _mm_shuffle_ps(s, s, 2));
        _mm_store_ss(scores + 3 * stride, _mm_shuffle_ps(s, s, 3));
    }
}

INLINE void dot_keys(const lvr_kv_type type, const unsigned n_q, const float *q, const uint8_t *rows,
                     size_t row_bytes, uint32_t head_dim, float *scores, size_t stride)
{
    store_scores(n_q, dot_4(type, n_q, q, rows, row_bytes, head_dim), scores, stride);
}

INLINE float dot_1(const lvr_kv_type type, const float *q, const uint8_t *row, uint32_t head_dim)
{
    __m256 lo = _mm256_setzero_ps(), hi = _mm256_setzero_ps();
    for (uint32_t i = 0; i < head_dim; i += LVR_BLOCK / 2) {
        const floats16 key = load_16(type, row, i, scale_at(type, row, head_dim, i));
        lo = _mm256_fmadd_ps(_mm256_loadu_ps(q + i), key.lo, lo);
        hi = _mm256_fmadd_ps(_mm256_loadu_ps(q + i + 8), key.hi, hi);
    }
    __m128 s = fold_to_4(lo, hi);
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

/* ---- values ---- */

/* The 16 * n_part elements from `at` on of n_q queries' accumulators: as many independent chains of
 * multiply-adds. A block's scale serves both of its halves. */
INLINE void weigh_part(const lvr_kv_type type, const unsigned n_q, const unsigned n_part, const float *p,
                       size_t stride, const uint8_t *rows, uint32_t n, uint32_t head_dim, uint32_t at,
                       float *acc)
{
    const size_t row_bytes = lvr_kv_row_bytes(type, head_dim);
    __m256 lo[4][4], hi[4][4];
    for (unsigned t = 0; t < n_q; t++)
        for (unsigned e = 0; e < n_part; e++) {
            lo[t][e] = _mm256_loadu_ps(acc + (size_t)t * head_dim + at + 16 * e);
            hi[t][e] = _mm256_loadu_ps(acc + (size_t)t * head_dim + at + 16 * e + 8);
        }
    for (uint32_t j = 0; j < n; j++, rows += row_bytes) {
        __m256 scale = _mm256_setzero_ps();
        for (unsigned e = 0; e < n_part; e++) {
            if (e % 2 == 0)
                scale = scale_at(type, rows, head_dim, at + 16 * e);
            const floats16 value = load_16(type, rows, at + 16 * e, scale);
            for (unsigned t = 0; t < n_q; t++) {
                const __m256 weight = _mm256_broadcast_ss(p + t * stride + j);
                lo[t][e] = _mm256_fmadd_ps(weight, value.lo, lo[t][e]);
                hi[t][e] = _mm256_fmadd_ps(weight, value.hi, hi[t][e]);
            }
        }
    }
    for (unsigned t = 0; t < n_q; t++)
        for (unsigned e = 0; e < n_part; e++) {
            _mm256_storeu_ps(acc + (size_t)t * head_dim + at + 16 * e, lo[t][e]);
            _mm256_storeu_ps(acc + (size_t)t * head_dim + at + 16 * e + 8, hi[t][e]);
        }
}

#include "engine/kernels/attention_sweeps.h"

void lvr_kernels_init_avx2_attention(lvr_kernels *k)
{
    use_attention(k);
}
