/*
 * A model of the AVX-512 (F, BW, VL, VNNI) and AMX (TILE, INT8) instructions that the kernels use, so that
 * the kernels' own source runs, and is compared to C, on machines that lack them. x86_intrin.h includes this
 * in place of <immintrin.h> where LVR_INTRINSICS names it. Needs AVX2, FMA and F16C: a 512-bit register is
 * two of 256 bits, and an operation that AVX2 has is that operation twice, as the machine does it; what AVX2
 * lacks is written out in C after Intel's Software Developer's Manual, volume 2.
 *
 * What would fault is reported, and makes the program fail at its end: loads and stores of whole registers
 * that are not aligned where the instruction asks for it, and every misuse of tiles (tiles.c).
 */
#ifndef LVR_TESTS_KERNELS_EMULATE_H
#define LVR_TESTS_KERNELS_EMULATE_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

/* Prints, and makes the program's exit status 1 whatever main returns. */
void emu_fault(const char *what);
unsigned emu_take_faults(void); /* how many there were, and forgets them */

#define LVR_KEEP(v) ((void)0)
#define LVR_UNROLL
/* Functions, not inlined where they are long: the kernels unroll a lot, and a sanitizer's build of all that
 * in one function would take the compiler minutes. */
#define EMU static __attribute__((unused))
#define EMU_LONG static __attribute__((unused, noinline))

typedef struct emu_ps {
    __m256 lo, hi;
} emu_ps;
typedef struct emu_i {
    __m256i lo, hi;
} emu_i;
typedef struct emu_pd {
    __m256d lo, hi;
} emu_pd;

EMU void emu_check_aligned(const void *p)
{
    if (((uintptr_t)p & 63u) != 0)
        emu_fault("aligned access of 64 bytes at another address");
}

/* ---- operations that are AVX2's, twice ---- */

#define EMU_PS_1(name)                                                                                       \
    EMU emu_ps emu_##name(emu_ps a)                                                                          \
    {                                                                                                        \
        return (emu_ps){_mm256_##name(a.lo), _mm256_##name(a.hi)};                                           \
    }
#define EMU_PS_2(name)                                                                                       \
    EMU emu_ps emu_##name(emu_ps a, emu_ps b)                                                                \
    {                                                                                                        \
        return (emu_ps){_mm256_##name(a.lo, b.lo), _mm256_##name(a.hi, b.hi)};                               \
    }
#define EMU_PS_3(name)                                                                                       \
    EMU emu_ps emu_##name(emu_ps a, emu_ps b, emu_ps c)                                                      \
    {                                                                                                        \
        return (emu_ps){_mm256_##name(a.lo, b.lo, c.lo), _mm256_##name(a.hi, b.hi, c.hi)};                   \
    }
#define EMU_I_2(name)                                                                                        \
    EMU emu_i emu_##name(emu_i a, emu_i b)                                                                   \
    {                                                                                                        \
        return (emu_i){_mm256_##name(a.lo, b.lo), _mm256_##name(a.hi, b.hi)};                                \
    }
#define EMU_I_SHIFT(name)                                                                                    \
    EMU emu_i emu_##name(emu_i a, unsigned n)                                                                \
    {                                                                                                        \
        return (emu_i){_mm256_##name(a.lo, (int)n), _mm256_##name(a.hi, (int)n)};                            \
    }

EMU_PS_2(add_ps)
EMU_PS_2(sub_ps)
EMU_PS_2(mul_ps)
EMU_PS_2(div_ps)
EMU_PS_2(max_ps)
EMU_PS_2(min_ps)
EMU_PS_3(fmadd_ps)
EMU_PS_3(fnmadd_ps)
EMU_I_2(sub_epi8)
EMU_I_2(add_epi32)
EMU_I_2(sub_epi32)
EMU_I_2(mullo_epi32)
EMU_I_2(max_epi32)
EMU_I_SHIFT(slli_epi16)
EMU_I_SHIFT(srli_epi16)
EMU_I_SHIFT(slli_epi32)
EMU_I_SHIFT(srli_epi32)
EMU_I_SHIFT(srai_epi32)

#define EMU_I_BITS(name)                                                                                     \
    EMU emu_i emu_##name##_si512(emu_i a, emu_i b)                                                           \
    {                                                                                                        \
        return (emu_i){_mm256_##name##_si256(a.lo, b.lo), _mm256_##name##_si256(a.hi, b.hi)};                \
    }
EMU_I_BITS(and)
EMU_I_BITS(or)
EMU_I_BITS(xor)

EMU emu_ps emu_set1_ps(float f)
{
    return (emu_ps){_mm256_set1_ps(f), _mm256_set1_ps(f)};
}

EMU emu_i emu_set1_epi32(int32_t v)
{
    return (emu_i){_mm256_set1_epi32(v), _mm256_set1_epi32(v)};
}

EMU emu_i emu_set1_epi8(char v)
{
    return (emu_i){_mm256_set1_epi8(v), _mm256_set1_epi8(v)};
}

EMU emu_ps emu_setzero_ps(void)
{
    return emu_set1_ps(0.0f);
}

EMU emu_i emu_setzero_si512(void)
{
    return emu_set1_epi32(0);
}

EMU emu_i emu_setr_epi32(int a, int b, int c, int d, int e, int f, int g, int h, int i, int j, int k, int l,
                         int m, int n, int o, int p)
{
    return (emu_i){_mm256_setr_epi32(a, b, c, d, e, f, g, h), _mm256_setr_epi32(i, j, k, l, m, n, o, p)};
}

EMU emu_ps emu_castsi512_ps(emu_i v)
{
    return (emu_ps){_mm256_castsi256_ps(v.lo), _mm256_castsi256_ps(v.hi)};
}

EMU emu_i emu_castps_si512(emu_ps v)
{
    return (emu_i){_mm256_castps_si256(v.lo), _mm256_castps_si256(v.hi)};
}

EMU emu_pd emu_castps_pd(emu_ps v)
{
    return (emu_pd){_mm256_castps_pd(v.lo), _mm256_castps_pd(v.hi)};
}

EMU __m256 emu_castps512_ps256(emu_ps v)
{
    return v.lo;
}

EMU __m256i emu_castsi512_si256(emu_i v)
{
    return v.lo;
}

EMU __m256d emu_extractf64x4_pd(emu_pd v, int part)
{
    return part != 0 ? v.hi : v.lo;
}

EMU __m256i emu_extracti64x4_epi64(emu_i v, int part)
{
    return part != 0 ? v.hi : v.lo;
}

/* ---- conversions ---- */

EMU emu_ps emu_cvtepi32_ps(emu_i v)
{
    return (emu_ps){_mm256_cvtepi32_ps(v.lo), _mm256_cvtepi32_ps(v.hi)};
}

EMU emu_i emu_cvtps_epi32(emu_ps v)
{
    return (emu_i){_mm256_cvtps_epi32(v.lo), _mm256_cvtps_epi32(v.hi)};
}

EMU emu_ps emu_cvtph_ps(__m256i h)
{
    return (emu_ps){_mm256_cvtph_ps(_mm256_castsi256_si128(h)),
                    _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1))};
}

EMU emu_i emu_cvtepu8_epi32(__m128i v)
{
    return (emu_i){_mm256_cvtepu8_epi32(v), _mm256_cvtepu8_epi32(_mm_srli_si128(v, 8))};
}

EMU emu_i emu_cvtepi8_epi32(__m128i v)
{
    return (emu_i){_mm256_cvtepi8_epi32(v), _mm256_cvtepi8_epi32(_mm_srli_si128(v, 8))};
}

EMU emu_i emu_cvtepu16_epi32(__m256i v)
{
    return (emu_i){_mm256_cvtepu16_epi32(_mm256_castsi256_si128(v)),
                   _mm256_cvtepu16_epi32(_mm256_extracti128_si256(v, 1))};
}

EMU emu_i emu_cvtepi16_epi32(__m256i v)
{
    return (emu_i){_mm256_cvtepi16_epi32(_mm256_castsi256_si128(v)),
                   _mm256_cvtepi16_epi32(_mm256_extracti128_si256(v, 1))};
}

EMU_LONG __m128i emu_cvtsepi32_epi8(emu_i v)
{
    int32_t from[16];
    int8_t to[16];
    memcpy(from, &v, sizeof from);
    for (int i = 0; i < 16; i++)
        to[i] = (int8_t)(from[i] < -128 ? -128 : from[i] > 127 ? 127 : from[i]);
    return _mm_loadu_si128((const __m128i *)(const void *)to);
}

/* VPERMD: the low four bits of a lane of `at` say which of `v` it becomes. */
EMU_LONG emu_i emu_permutexvar_epi32(emu_i at, emu_i v)
{
    uint32_t index[16], from[16], to[16];
    emu_i ret;
    memcpy(index, &at, sizeof index);
    memcpy(from, &v, sizeof from);
    for (int i = 0; i < 16; i++)
        to[i] = from[index[i] & 15u];
    memcpy(&ret, to, sizeof ret);
    return ret;
}

/* ---- memory ---- */

EMU emu_ps emu_loadu_ps(const void *p)
{
    emu_ps v;
    memcpy(&v, p, sizeof v);
    return v;
}

EMU emu_ps emu_load_ps(const void *p)
{
    emu_check_aligned(p);
    return emu_loadu_ps(p);
}

EMU void emu_storeu_ps(void *p, emu_ps v)
{
    memcpy(p, &v, sizeof v);
}

EMU void emu_store_ps(void *p, emu_ps v)
{
    emu_check_aligned(p);
    emu_storeu_ps(p, v);
}

EMU emu_i emu_loadu_si512(const void *p)
{
    emu_i v;
    memcpy(&v, p, sizeof v);
    return v;
}

EMU emu_i emu_load_si512(const void *p)
{
    emu_check_aligned(p);
    return emu_loadu_si512(p);
}

EMU void emu_store_si512(void *p, emu_i v)
{
    emu_check_aligned(p);
    memcpy(p, &v, sizeof v);
}

/* Elements outside the mask are neither read nor written: they may lie in a page that is not there. */
EMU_LONG void emu_masked_copy(void *to, const void *from, uint64_t mask, unsigned n, size_t bytes)
{
    for (unsigned i = 0; i < n; i++)
        if ((mask >> i & 1u) != 0)
            memcpy((char *)to + i * bytes, (const char *)from + i * bytes, bytes);
}

EMU emu_ps emu_mask_loadu_ps(emu_ps v, __mmask16 mask, const void *p)
{
    emu_masked_copy(&v, p, mask, 16, 4);
    return v;
}

EMU emu_ps emu_maskz_loadu_ps(__mmask16 mask, const void *p)
{
    return emu_mask_loadu_ps(emu_setzero_ps(), mask, p);
}

EMU void emu_mask_storeu_ps(void *p, __mmask16 mask, emu_ps v)
{
    emu_masked_copy(p, &v, mask, 16, 4);
}

EMU __m256 emu256_maskz_loadu_ps(__mmask8 mask, const void *p)
{
    __m256 v = _mm256_setzero_ps();
    emu_masked_copy(&v, p, mask, 8, 4);
    return v;
}

EMU __m256i emu256_maskz_loadu_epi32(__mmask8 mask, const void *p)
{
    __m256i v = _mm256_setzero_si256();
    emu_masked_copy(&v, p, mask, 8, 4);
    return v;
}

/* ---- masks ---- */

EMU emu_ps emu_mask_mov_ps(emu_ps v, __mmask16 mask, emu_ps a)
{
    emu_masked_copy(&v, &a, mask, 16, 4);
    return v;
}

EMU emu_ps emu_mask_add_ps(emu_ps v, __mmask16 mask, emu_ps a, emu_ps b)
{
    return emu_mask_mov_ps(v, mask, emu_add_ps(a, b));
}

#define emu_cmp_ps_mask(a, b, predicate)                                                                     \
    ((__mmask16)(_mm256_movemask_ps(_mm256_cmp_ps((a).lo, (b).lo, predicate)) |                              \
                 _mm256_movemask_ps(_mm256_cmp_ps((a).hi, (b).hi, predicate)) << 8))

/* ---- VNNI ---- */

/* VPDPBUSD: bytes of `u` are unsigned, of `s` signed; nothing saturates. */
EMU_LONG emu_i emu_dpbusd_epi32(emu_i acc, emu_i u, emu_i s)
{
    int32_t sum[16];
    uint8_t ub[64];
    int8_t sb[64];
    memcpy(sum, &acc, sizeof sum);
    memcpy(ub, &u, sizeof ub);
    memcpy(sb, &s, sizeof sb);
    for (int i = 0; i < 64; i++)
        sum[i / 4] += ub[i] * sb[i];
    return emu_loadu_si512(sum);
}

/* ---- tiles (tiles.c) ---- */

void emu_tile_loadconfig(const void *config);
void emu_tile_release(void);
void emu_tile_zero(int t);
void emu_tile_loadd(int t, const void *base, size_t stride);
void emu_tile_stored(int t, void *base, size_t stride);
void emu_tile_dpbssd(int dst, int a, int b);

/* ---- the kernels' names for all this ---- */

#include "tests/kernels/emulate/names.h"

#endif
