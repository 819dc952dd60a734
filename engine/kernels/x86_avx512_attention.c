/* AVX-512: the sweeps of attention. A score's 16 partials are one register. */
#include "engine/kernels/levels.h"
#include "engine/kernels/x86_intrin.h"

#define INLINE static inline __attribute__((always_inline))
#define KEYS 4u /* side by side */
#define KEYS_AT_A_TIME(n_q) KEYS
#define PARTS_AT_A_TIME(n_q) ((n_q) == 1 ? 8 : 4)

/* The scale of the block that element i belongs to; none for F16. */
INLINE __m512 scale_at(const lvr_kv_type type, const uint8_t *row, uint32_t head_dim, uint32_t i)
{
    int16_t half;
    if (type == LVR_KV_F16)
        return _mm512_setzero_ps();
    memcpy(&half, row + head_dim + i / LVR_BLOCK * 2, sizeof half);
    return _mm512_cvtph_ps(_mm256_set1_epi16(half));
}

INLINE __m512 load_16(const lvr_kv_type type, const uint8_t *row, uint32_t i, __m512 scale)
{
    if (type == LVR_KV_F16)
        return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(row + 2 * (size_t)i)));
    const __m128i q = _mm_loadu_si128((const __m128i *)(const void *)(row + i));
    return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q)), scale);
}

/* ---- keys ---- */

/* 16 partials to 4: + [i+8], + [i+4]. */
INLINE __m128 fold_to_4(__m512 p)
{
    const __m256 upper = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(p), 1));
    const __m256 s = _mm256_add_ps(_mm512_castps512_ps256(p), upper);
    return _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
}

/* Four scores folded side by side. */
INLINE __m128 fold_four(const __m512 p[KEYS])
{
    __m128 p0 = fold_to_4(p[0]), p1 = fold_to_4(p[1]), p2 = fold_to_4(p[2]), p3 = fold_to_4(p[3]);
    _MM_TRANSPOSE4_PS(p0, p1, p2, p3);
    return _mm_add_ps(_mm_add_ps(p0, p2), _mm_add_ps(p1, p3));
}

INLINE void add_products(const lvr_kv_type type, const unsigned n_q, const float *q, const uint8_t *rows,
                         size_t row_bytes, uint32_t head_dim, uint32_t i, const __m512 scales[KEYS],
                         __m512 sums[4][KEYS])
{
    for (unsigned k = 0; k < KEYS; k++) {
        const __m512 key = load_16(type, rows + k * row_bytes, i, scales[k]);
        for (unsigned t = 0; t < n_q; t++)
            sums[t][k] = _mm512_fmadd_ps(_mm512_loadu_ps(q + (size_t)t * head_dim + i), key, sums[t][k]);
    }
}

INLINE void dot_keys(const lvr_kv_type type, const unsigned n_q, const float *q, const uint8_t *rows,
                     size_t row_bytes, uint32_t head_dim, float *scores, size_t stride)
{
    __m512 sums[4][KEYS], scales[KEYS];
    for (unsigned t = 0; t < n_q; t++)
        for (unsigned k = 0; k < KEYS; k++)
            sums[t][k] = _mm512_setzero_ps();
    for (uint32_t i = 0; i < head_dim; i += LVR_BLOCK) {
        for (unsigned k = 0; k < KEYS; k++)
            scales[k] = scale_at(type, rows + k * row_bytes, head_dim, i);
        add_products(type, n_q, q, rows, row_bytes, head_dim, i, scales, sums);
        if (i + LVR_BLOCK / 2 < head_dim)
            add_products(type, n_q, q, rows, row_bytes, head_dim, i + LVR_BLOCK / 2, scales, sums);
    }
    for (unsigned t = 0; t < n_q; t++)
        _mm_storeu_ps(scores + t * stride, fold_four(sums[t]));
}

INLINE float dot_1(const lvr_kv_type type, const float *q, const uint8_t *row, uint32_t head_dim)
{
    __m512 p = _mm512_setzero_ps();
    for (uint32_t i = 0; i < head_dim; i += LVR_BLOCK / 2)
        p = _mm512_fmadd_ps(_mm512_loadu_ps(q + i), load_16(type, row, i, scale_at(type, row, head_dim, i)),
                            p);
    __m128 s = fold_to_4(p);
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
    __m512 sum[4][8];
    for (unsigned t = 0; t < n_q; t++)
        for (unsigned e = 0; e < n_part; e++)
            sum[t][e] = _mm512_loadu_ps(acc + (size_t)t * head_dim + at + 16 * e);
    for (uint32_t j = 0; j < n; j++, rows += row_bytes) {
        __m512 scale = _mm512_setzero_ps();
        for (unsigned e = 0; e < n_part; e++) {
            if (e % 2 == 0)
                scale = scale_at(type, rows, head_dim, at + 16 * e);
            const __m512 value = load_16(type, rows, at + 16 * e, scale);
            for (unsigned t = 0; t < n_q; t++)
                sum[t][e] = _mm512_fmadd_ps(_mm512_set1_ps(p[t * stride + j]), value, sum[t][e]);
        }
    }
    for (unsigned t = 0; t < n_q; t++)
        for (unsigned e = 0; e < n_part; e++)
            _mm512_storeu_ps(acc + (size_t)t * head_dim + at + 16 * e, sum[t][e]);
}

#include "engine/kernels/attention_sweeps.h"

void lvr_kernels_init_avx512_attention(lvr_kernels *k)
{
    use_attention(k);
}
