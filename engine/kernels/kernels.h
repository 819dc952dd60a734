/*
 * Kernels and the packed weight layout, under the arithmetic contract (INV-ROW): every function here gives
 * the same bits at every SIMD level, for any batch, thread split or row order. The C reference (ref.c) is the
 * definition; other levels must equal it.
 *
 *  - Quantised dot products: activations are quantised per row and block of 32
 *    (q = round-to-nearest-even(x * (127 / amax)), int8 in [-127, 127], d = amax / 127 in float); per output
 *    acc = fmaf((float)isum, dw * da, acc) over blocks in ascending order, isum exact. Types differ only in
 *    how a block unpacks (code: unsigned, as stored):
 *      Q8_0, Q4_0, Q5_0   isum = sum((code - 128 | 8 | 16) * q), dw = d
 *      Q4_1, Q5_1         isum = sum(code * q), dw = d; then acc = fmaf((float)qsum, m * da, acc)
 *      Q4_K, Q5_K         isum = sc * sum(code * q), dw = d; then
 *                         acc = fmaf((float)(mn * qsum), -dmin * da, acc)
 *      Q6_K               isum = sc0 * sum((code - 32) * q, first 16) + sc1 * sum((code - 32) * q, last 16),
 *                         dw = d
 *    with qsum the sum of the block's q. All these sums are below 2^24: (float) is exact.
 *  - F32/F16/BF16 weights: acc = fmaf(w, x, acc) over inputs in ascending order.
 *  - Reductions along a row (RMS norm, q.k, softmax sums, max) use 16 interleaved partials (element i goes to
 *    partial i % 16, in ascending order, by fmaf), folded as p[i] += p[i+8], then += [i+4], [i+2], [i+1].
 *  - Attention goes by ascending logical position, each row of the cache as the floats it stands for (f16:
 * that half; Q8_0: d * q, which is exact): scores q.k, their max over all positions, p = exp((score - max) *
 *    scale) and the sum of p, acc = fmaf(p, v, acc) per element of the value, acc / sum.
 *  - exp is our own polynomial (lvr_expf in ref.c), the same operations at every level: within 1 ulp on
 *    [-87, 88.72], 0 below -87, infinity above, NaN for NaN.
 *  - Infinities and NaNs crash nothing. A block of activations that holds one gets d = NaN and q = 0, so
 *    that its row's products are NaN. A block whose amax is below 2^-120 gets d = 0 and q = 0 (127 / amax
 *    would overflow). Bits are the same at every level but for the sign and payload of NaNs.
 *
 * Packed layout, version 1. A matrix of n_out rows (outputs) and n_in columns, in groups of 16 outputs (the
 * last group padded with zero rows); within a group, for each block of 32 inputs ascending:
 *
 *    Q8_0: f16 d[16], then u8 q[8][16][4]:
 *          q[j][o][i] = 128 + weight(output o, input 4j + i)
 *    Q4_0: f16 d[16], then u8 q[4][16][4]:
 *          low nibble = weight code of input 4j + i, high nibble = of input 16 + 4j + i
 *          (code 0..15, value code - 8)
 *    F16 / BF16 / F32: element [input][16 outputs], input ascending (no block header)
 *    Q4_1: f16 d[16], f16 m[16], then q as Q4_0
 *    Q5_0: f16 d[16], then q as Q4_0 (low four bits), then u32 h[16]: bit i of h[o] = fifth bit of input i
 *    Q5_1: f16 d[16], f16 m[16], then q and h as Q5_0
 *    K types go by super-blocks of 256 inputs (8 blocks):
 *    Q4_K: f16 d[16], f16 -dmin[16], u8 sc[8][16], u8 mn[8][16], then 8 times q as Q4_0
 *    Q5_K: as Q4_K, each q followed by h as Q5_0
 *    Q6_K: f16 d[16], s8 sc[8][2][16], then 8 times { q as Q4_0 (low four bits), u8 h[2][16][4] }:
 *          bits 2k, 2k + 1 of h[j][o][i] = bits 4, 5 of input 4 (2k + j) + i
 *
 * Every bit of a padding row is 0. Data is 64-byte aligned at its start. The layout is the same for every
 * SIMD level.
 */
#ifndef LVR_ENGINE_KERNELS_H
#define LVR_ENGINE_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LVR_PACK_LAYOUT_VERSION 1u
#define LVR_GROUP 16u /* outputs per group */
#define LVR_BLOCK 32u /* inputs per quantisation block */

/* Values are GGUF's type numbers. */
typedef enum lvr_wtype {
    LVR_F32 = 0,
    LVR_F16 = 1,
    LVR_Q4_0 = 2,
    LVR_Q4_1 = 3,
    LVR_Q5_0 = 6,
    LVR_Q5_1 = 7,
    LVR_Q8_0 = 8,
    LVR_Q4_K = 12,
    LVR_Q5_K = 13,
    LVR_Q6_K = 14,
    LVR_BF16 = 30,
    LVR_WTYPE_SLOTS /* tables indexed by type */
} lvr_wtype;
const char *lvr_wtype_name(lvr_wtype t); /* NULL: a type this build does not know */
uint32_t lvr_wtype_inputs(lvr_wtype t); /* a row has a multiple of this many: 1, 32 or 256; 0: unknown type */
bool lvr_wtype_quantised(lvr_wtype t);  /* its products read quantised activations */
/* Bytes of a GGUF row; 0 if n_in does not fit the type's block, or the size does not fit 64 bits. */
uint64_t lvr_wtype_row_bytes(lvr_wtype t, uint64_t n_in);

/* Rows of a KV cache: one position of one KV head. Blocks never straddle a head: a head of 16 or 48 values
 * ends in a block of 16, quantised as if zeros followed.
 *   F16:  f16 value[head_dim]
 *   Q8_0: s8 q[head_dim], then f16 d[head_dim / 32, rounded up]. q is that of quantize_row, d its d rounded
 *         to nearest even. */
typedef enum lvr_kv_type { LVR_KV_F16 = 0, LVR_KV_Q8_0, LVR_KV_TYPES } lvr_kv_type;
extern const char *const lvr_kv_type_names[LVR_KV_TYPES + 1]; /* "f16", "q8_0"; then NULL */
const char *lvr_kv_type_name(lvr_kv_type t);                  /* NULL: no type */
bool lvr_kv_type_parse(const char *name, lvr_kv_type *ret);
uint64_t lvr_kv_row_bytes(lvr_kv_type t, uint32_t head_dim); /* head_dim is a multiple of 16 */

typedef struct lvr_matrix {
    lvr_wtype type;
    uint32_t n_out, n_in;
    const uint8_t *data; /* packed layout */
} lvr_matrix;

/* 0 if n_in does not fit the type's block, or the size does not fit 64 bits. */
uint64_t lvr_packed_bytes(lvr_wtype t, uint32_t n_out, uint32_t n_in);
/* From GGUF rows (n_out rows of lvr_wtype_row_bytes). dst: lvr_packed_bytes, 64-byte aligned. Does nothing
 * for a type or n_in that lvr_wtype_row_bytes refuses. */
void lvr_pack_matrix(lvr_wtype t, uint32_t n_out, uint32_t n_in, const void *gguf_rows, uint8_t *dst);
/* Output row `row` as floats (embedding look-up), as GGUF defines its weights, each operation rounded to
 * float: d * q; Q4_1, Q5_1: d * q + m; Q4_K, Q5_K: (d * sc) * q + (-dmin) * mn; Q6_K: (d * sc) * q. */
void lvr_packed_row(const lvr_matrix *m, uint32_t row, float *ret_row);
/* Output rows rows[n] of m as a matrix of their own. dst: lvr_packed_bytes(type, n, n_in), 64-byte aligned.
 */
void lvr_pack_gather(const lvr_matrix *m, const uint32_t *rows, uint32_t n, uint8_t *dst);

/* Rows of activations ready for any weight type. x and q are n_rows * n_in, d n_rows * n_in / 32, hsum
 * n_rows * n_in / 16. Products of F32, F16 and BF16 read x alone, the others q, d and hsum, which must be as
 * quantize_row makes them. */
typedef struct lvr_acts {
    uint32_t n_rows, n_in;
    const float *x; /* row-major */
    int8_t *q;
    float *d;
    int16_t *hsum; /* sums of q over the two halves of each block */
} lvr_acts;

/* The ladders: C, AVX2, AVX512 (with VNNI), AMX on x86-64; C, NEON, DOTPROD, I8MM on arm64. */
typedef enum lvr_cpu_level {
    LVR_CPU_C = 0,
    LVR_CPU_AVX2,
    LVR_CPU_AVX512,
    LVR_CPU_AMX,
    LVR_CPU_NEON,
    LVR_CPU_DOTPROD,
    LVR_CPU_I8MM,
    LVR_CPU_LEVELS
} lvr_cpu_level;
const char *lvr_cpu_level_name(lvr_cpu_level level);
bool lvr_cpu_level_parse(const char *name, lvr_cpu_level *ret);
lvr_cpu_level lvr_cpu_best(void);      /* probed (CPUID and XGETBV, or getauxval), cached */
bool lvr_cpu_has(lvr_cpu_level level); /* on this machine's ladder, at or below the best */
/* Why a level that the CPU's features promise is not offered (the operating system refuses it, or its results
 * were wrong when tried at the first probe); NULL: none is withheld. */
const char *lvr_cpu_note(void);
/* What the machine has, e.g. "avx2 fma f16c avx512-vnni amx-int8". */
void lvr_cpu_flags_text(char *buf, size_t n);

typedef void (*lvr_matmul_fn)(const lvr_matrix *m, const lvr_acts *a, uint32_t group_begin,
                              uint32_t group_end, float *out, size_t out_stride);

typedef void (*lvr_kv_keys_fn)(const float *q, uint32_t n_q, const uint8_t *rows, uint32_t n,
                               uint32_t head_dim, float *scores, size_t stride);
typedef void (*lvr_kv_values_fn)(const float *p, size_t stride, uint32_t n_q, const uint8_t *rows, uint32_t n,
                                 uint32_t head_dim, float *acc);

/* One struct of function pointers per instance, filled by a ladder: C first, then each level overrides what
 * it does faster. */
typedef struct lvr_kernels {
    lvr_cpu_level level;
    /* x[n_in] of one row -> q, d, hsum. n_in is a multiple of 32. */
    void (*quantize_row)(const float *x, uint32_t n_in, int8_t *q, float *d, int16_t *hsum);
    /* out[r * out_stride + o] for all rows r of `a` and outputs o of groups [group_begin, group_end); outputs
     * >= n_out are not written. */
    lvr_matmul_fn matmul[LVR_WTYPE_SLOTS]; /* NULL: not a type */
    /* y[i] = x[i] * (1 / sqrtf(mean(x^2) + eps)) * w[i]. In this and the next two y may be an input. */
    void (*rmsnorm)(const float *x, const float *w, uint32_t n, float eps, float *y);
    /* y[i] = silu(g[i]) * u[i], silu(g) = g / (1 + exp(-g)) */
    void (*silu_mul)(const float *g, const float *u, uint32_t n, float *y);
    void (*add)(const float *a, const float *b, uint32_t n, float *y);
    /* Rotates interleaved pairs (2i, 2i+1) of each head, a' = fmaf(a, cos, -(b * sin)), b' = fmaf(b, cos, a *
     * sin): x[n_heads * head_dim], cs[head_dim] = cos, sin, cos, sin, ... of this position. */
    void (*rope)(float *x, uint32_t n_heads, uint32_t head_dim, const float *cs);
    void (*f32_to_f16)(const float *x, uint32_t n, uint16_t *y); /* round to nearest even */
    void (*f16_to_f32)(const uint16_t *x, uint32_t n, float *y);
    /* The two sweeps of attention (attention.h) over n rows of a KV head that lie one after the other, for
     * n_q queries, so that a row comes from memory once for all of them. head_dim is a multiple of 16. keys:
     * scores[i * stride + j] = q[i * head_dim ...] . row j. values: acc[i * head_dim + e] = fmaf(p[i * stride
     * + j], row j [e], acc[...]) for ascending j. */
    lvr_kv_keys_fn keys[LVR_KV_TYPES];
    lvr_kv_values_fn values[LVR_KV_TYPES];
    /* p[i] = exp((x[i] - max) * scale) for i < n; returns the sum (16 partials). */
    float (*softmax_exp)(const float *x, uint32_t n, float max, float scale, float *p);
    float (*max)(const float *x, uint32_t n); /* NaNs are passed over; -infinity if nothing is left */
} lvr_kernels;

/* x[head_dim] as a row of a cache: lvr_kv_row_bytes. */
void lvr_kv_store_row(const lvr_kernels *k, lvr_kv_type t, const float *x, uint32_t head_dim, uint8_t *row);

/* Fills the ladder up to `level`, or as far as the CPU goes (the best, if `level` is of another ladder). */
void lvr_kernels_init(lvr_kernels *k, lvr_cpu_level level);
lvr_matmul_fn lvr_kernels_matmul(const lvr_kernels *k, lvr_wtype t); /* NULL: unknown type */

/* Reference scalar helpers (definition of the contract). */
float lvr_expf(float x);
float lvr_f16_to_f32(uint16_t h);
uint16_t lvr_f32_to_f16(float f);

#endif
