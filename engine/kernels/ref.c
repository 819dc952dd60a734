/*
 * The C reference: the definition of the arithmetic contract (kernels.h). Written to be read; every other
 * level is compared to it bit for bit.
 */
#include "engine/kernels/unpack.h"

#include <math.h>

#define PARTIALS 16u

/* ---- half precision ---- */

float lvr_f16_to_f32(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    const uint32_t exponent = h >> 10 & 31u;
    const uint32_t mantissa = h & 0x3ffu;
    if (exponent == 31) /* infinity, or a NaN, which becomes quiet as in hardware */
        return lvr_bits_f32(sign | 0x7f800000u | mantissa << 13 | (mantissa != 0 ? 0x400000u : 0));
    if (exponent == 0) { /* zero or subnormal: mantissa * 2^-24, exact */
        const float f = (float)mantissa * 0x1p-24f;
        return lvr_bits_f32(sign | lvr_f32_bits(f));
    }
    return lvr_bits_f32(sign | (exponent + 112u) << 23 | mantissa << 13);
}

/* value / 2^shift, to nearest, ties to even; 0 < shift < 32. */
static uint32_t shift_round_even(uint32_t value, uint32_t shift)
{
    const uint32_t kept = value >> shift;
    const uint32_t rest = value & ((1u << shift) - 1u);
    const uint32_t half = 1u << (shift - 1u);
    return kept + (rest > half || (rest == half && (kept & 1u) != 0));
}

uint16_t lvr_f32_to_f16(float f)
{
    const uint32_t bits = lvr_f32_bits(f);
    const uint32_t sign = bits >> 16 & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) /* NaN: quiet, upper payload kept */
        return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    if (magnitude >= 0x47800000u) /* 2^16 and above, infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude >=
        0x38800000u) /* 2^-14 and above: normal; a carry out of the mantissa rightly raises the exponent */
        return (uint16_t)(sign | shift_round_even(magnitude - 0x38000000u, 13));
    const uint32_t exponent = magnitude >> 23;
    if (exponent < 102) /* below 2^-25: rounds to zero */
        return (uint16_t)sign;
    return (uint16_t)(sign | shift_round_even((magnitude & 0x7fffffu) | 0x800000u, 126u - exponent));
}

static void ref_f32_to_f16(const float *x, uint32_t n, uint16_t *y)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = lvr_f32_to_f16(x[i]);
}

static void ref_f16_to_f32(const uint16_t *x, uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = lvr_f16_to_f32(x[i]);
}

/* ---- exp ---- */

float lvr_expf(float x)
{
    if (!(x >= LVR_EXP_MIN))
        return x < LVR_EXP_MIN ? 0.0f : x + x; /* the sum quiets a NaN */
    if (x > LVR_EXP_MAX)
        return INFINITY;
    const float shifted = fmaf(x, LVR_EXP_LOG2E, LVR_EXP_ROUND);
    const float n = shifted - LVR_EXP_ROUND;
    float r = fmaf(n, -LVR_EXP_LN2_HI, x);
    r = fmaf(n, -LVR_EXP_LN2_LO, r);
    float p = fmaf(LVR_EXP_C6, r, LVR_EXP_C5);
    p = fmaf(p, r, LVR_EXP_C4);
    p = fmaf(p, r, LVR_EXP_C3);
    p = fmaf(p, r, LVR_EXP_C2);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    /* 2^n in two factors: n reaches 128, which a float's exponent does not. Both products are exact unless
     * the result overflows. */
    const int32_t exponent = (int32_t)n;
    const int32_t half = exponent >> 1;
    p *= lvr_bits_f32((uint32_t)(half + 127) << 23);
    return p * lvr_bits_f32((uint32_t)(exponent - half + 127) << 23);
}

/* ---- reductions: 16 interleaved partials ---- */

static float fold_sum(float p[PARTIALS])
{
    for (uint32_t half = PARTIALS / 2u; half >= 1; half /= 2u)
        for (uint32_t i = 0; i < half; i++)
            p[i] += p[i + half];
    return p[0];
}

/* The right operand if either is a NaN, or if both are zeros: so is the instruction. */
static float max2(float a, float b)
{
    return a > b ? a : b;
}

static float ref_max(const float *x, uint32_t n)
{
    float p[PARTIALS];
    for (uint32_t i = 0; i < PARTIALS; i++)
        p[i] = -INFINITY;
    for (uint32_t i = 0; i < n; i++)
        p[i % PARTIALS] = max2(x[i], p[i % PARTIALS]);
    for (uint32_t half = PARTIALS / 2u; half >= 1; half /= 2u)
        for (uint32_t i = 0; i < half; i++)
            p[i] = max2(p[i + half], p[i]);
    return p[0];
}

static float ref_softmax_exp(const float *x, uint32_t n, float max, float scale, float *p)
{
    float sum[PARTIALS] = {0};
    for (uint32_t i = 0; i < n; i++) {
        p[i] = lvr_expf((x[i] - max) * scale);
        sum[i % PARTIALS] += p[i];
    }
    return fold_sum(sum);
}

/* ---- quantised activations ---- */

/* Magnitudes of floats order as their bits do, with NaN above infinity: one integer maximum finds all three.
 */
static uint32_t max_magnitude_bits(const float *x)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < LVR_BLOCK; i++) {
        const uint32_t magnitude = lvr_f32_bits(x[i]) & 0x7fffffffu;
        most = magnitude > most ? magnitude : most;
    }
    return most;
}

static void quantize_flat(int8_t *q, float *d, int16_t *hsum, float scale)
{
    memset(q, 0, LVR_BLOCK);
    *d = scale;
    hsum[0] = hsum[1] = 0;
}

static void quantize_block(const float *x, int8_t *q, float *d, int16_t *hsum)
{
    const uint32_t bits = max_magnitude_bits(x);
    if (bits >= 0x7f800000u) {
        quantize_flat(q, d, hsum, NAN);
        return;
    }
    const float amax = lvr_bits_f32(bits);
    if (amax < LVR_QUANT_MIN_AMAX) {
        quantize_flat(q, d, hsum, 0.0f);
        return;
    }
    const float inverse = 127.0f / amax;
    hsum[0] = hsum[1] = 0;
    for (uint32_t i = 0; i < LVR_BLOCK; i++) {
        q[i] = (int8_t)lrintf(x[i] * inverse);
        hsum[i / (LVR_BLOCK / 2u)] = (int16_t)(hsum[i / (LVR_BLOCK / 2u)] + q[i]);
    }
    *d = amax / 127.0f;
}

static void ref_quantize_row(const float *x, uint32_t n_in, int8_t *q, float *d, int16_t *hsum)
{
    for (size_t b = 0; b < n_in / LVR_BLOCK; b++)
        quantize_block(x + b * LVR_BLOCK, q + b * LVR_BLOCK, d + b, hsum + 2 * b);
}

/* ---- matrix products: one row of activations times one group of 16 outputs ---- */

static const lvr_unpacking unpackings[LVR_WTYPE_SLOTS] = LVR_UNPACKINGS;

static void dot_block(const lvr_block *w, int bias, const int8_t *q, float da, float acc[LVR_GROUP])
{
    for (uint32_t o = 0; o < LVR_GROUP; o++) {
        int32_t isum = 0, qsum = 0;
        for (uint32_t half = 0; half < 2; half++) {
            int32_t sum = 0;
            for (uint32_t i = half * LVR_BLOCK / 2u; i < (half + 1) * LVR_BLOCK / 2u; i++) {
                sum += (w->code[i / 4u][o][i % 4u] - bias) * q[i];
                qsum += q[i];
            }
            isum += w->sc[half][o] * sum;
        }
        acc[o] = fmaf((float)isum, lvr_scale(w->d, o) * da, acc[o]);
        if (w->m != NULL)
            acc[o] = fmaf((float)(w->mn[o] * qsum), lvr_scale(w->m, o) * da, acc[o]);
    }
}

static void group_quantised(const lvr_matrix *m, const uint8_t *group, const lvr_acts *a, uint32_t row,
                            float acc[LVR_GROUP])
{
    const size_t n_blocks = a->n_in / LVR_BLOCK;
    const int8_t *q = a->q + (size_t)row * a->n_in;
    const float *d = a->d + row * n_blocks;
    const lvr_unpacking *unpack = &unpackings[m->type];
    for (size_t b = 0; b < n_blocks; b++) {
        lvr_block w;
        unpack->block(group, b, &w);
        dot_block(&w, unpack->bias, q + b * LVR_BLOCK, d[b], acc);
    }
}

static void group_dense(const lvr_matrix *m, const uint8_t *group, const lvr_acts *a, uint32_t row,
                        float acc[LVR_GROUP])
{
    const float *x = a->x + (size_t)row * a->n_in;
    for (size_t i = 0; i < a->n_in; i++)
        for (uint32_t o = 0; o < LVR_GROUP; o++)
            acc[o] = fmaf(lvr_dense_weight(m->type, group, i * LVR_GROUP + o), x[i], acc[o]);
}

static void ref_matmul(const lvr_matrix *m, const lvr_acts *a, uint32_t begin, uint32_t end, float *out,
                       size_t stride)
{
    const uint64_t group_bytes = lvr_group_bytes(m->type, m->n_in);
    const bool quantised = lvr_wtype_quantised(m->type);
    for (uint32_t g = begin; g < end; g++)
        for (uint32_t r = 0; r < a->n_rows; r++) {
            float acc[LVR_GROUP] = {0};
            (quantised ? group_quantised : group_dense)(m, m->data + g * group_bytes, a, r, acc);
            memcpy(out + r * stride + (size_t)g * LVR_GROUP, acc, lvr_group_width(m, g) * sizeof(float));
        }
}

/* ---- the rest of a layer ---- */

static void ref_rmsnorm(const float *x, const float *w, uint32_t n, float eps, float *y)
{
    float squares[PARTIALS] = {0};
    for (uint32_t i = 0; i < n; i++)
        squares[i % PARTIALS] = fmaf(x[i], x[i], squares[i % PARTIALS]);
    const float scale = 1.0f / sqrtf(fold_sum(squares) / (float)n + eps);
    for (uint32_t i = 0; i < n; i++)
        y[i] = x[i] * scale * w[i];
}

static void ref_silu_mul(const float *g, const float *u, uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = g[i] / (1.0f + lvr_expf(-g[i])) * u[i];
}

static void ref_add(const float *a, const float *b, uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = a[i] + b[i];
}

static void ref_rope(float *x, uint32_t n_heads, uint32_t head_dim, const float *cs)
{
    for (uint32_t h = 0; h < n_heads; h++) {
        float *head = x + (size_t)h * head_dim;
        for (uint32_t i = 0; i + 1 < head_dim; i += 2) {
            const float a = head[i], b = head[i + 1];
            head[i] = fmaf(a, cs[i], -(b * cs[i + 1]));
            head[i + 1] = fmaf(b, cs[i], a * cs[i + 1]);
        }
    }
}

/* Element i of a row of a cache. */
static float kv_element(lvr_kv_type t, const uint8_t *row, uint32_t head_dim, uint32_t i)
{
    uint16_t half;
    if (t == LVR_KV_Q8_0)
        return lvr_kv_scale(row, head_dim, i / LVR_BLOCK) * (float)((const int8_t *)row)[i];
    memcpy(&half, row + 2 * (size_t)i, sizeof half);
    return lvr_f16_to_f32(half);
}

static float kv_dot(lvr_kv_type t, const float *q, const uint8_t *row, uint32_t head_dim)
{
    float p[PARTIALS] = {0};
    for (uint32_t i = 0; i < head_dim; i++)
        p[i % PARTIALS] = fmaf(q[i], kv_element(t, row, head_dim, i), p[i % PARTIALS]);
    return fold_sum(p);
}

static void ref_keys(lvr_kv_type t, const float *q, uint32_t n_q, const uint8_t *rows, uint32_t n,
                     uint32_t head_dim, float *scores, size_t stride)
{
    const size_t row_bytes = lvr_kv_row_bytes(t, head_dim);
    for (uint32_t i = 0; i < n_q; i++)
        for (uint32_t j = 0; j < n; j++)
            scores[i * stride + j] = kv_dot(t, q + (size_t)i * head_dim, rows + j * row_bytes, head_dim);
}

static void ref_values(lvr_kv_type t, const float *p, size_t stride, uint32_t n_q, const uint8_t *rows,
                       uint32_t n, uint32_t head_dim, float *acc)
{
    const size_t row_bytes = lvr_kv_row_bytes(t, head_dim);
    for (uint32_t i = 0; i < n_q; i++, acc += head_dim)
        for (uint32_t j = 0; j < n; j++)
            for (uint32_t e = 0; e < head_dim; e++)
                acc[e] = fmaf(p[i * stride + j], kv_element(t, rows + j * row_bytes, head_dim, e), acc[e]);
}

static void ref_keys_f16(const float *q, uint32_t n_q, const uint8_t *rows, uint32_t n, uint32_t head_dim,
                         float *scores, size_t stride)
{
    ref_keys(LVR_KV_F16, q, n_q, rows, n, head_dim, scores, stride);
}

static void ref_keys_q8(const float *q, uint32_t n_q, const uint8_t *rows, uint32_t n, uint32_t head_dim,
                        float *scores, size_t stride)
{
    ref_keys(LVR_KV_Q8_0, q, n_q, rows, n, head_dim, scores, stride);
}

static void ref_values_f16(const float *p, size_t stride, uint32_t n_q, const uint8_t *rows, uint32_t n,
                           uint32_t head_dim, float *acc)
{
    ref_values(LVR_KV_F16, p, stride, n_q, rows, n, head_dim, acc);
}

static void ref_values_q8(const float *p, size_t stride, uint32_t n_q, const uint8_t *rows, uint32_t n,
                          uint32_t head_dim, float *acc)
{
    ref_values(LVR_KV_Q8_0, p, stride, n_q, rows, n, head_dim, acc);
}

void lvr_kernels_init_c(lvr_kernels *k)
{
    *k = (lvr_kernels){
        .level = LVR_CPU_C,
        .quantize_row = ref_quantize_row,
        .rmsnorm = ref_rmsnorm,
        .silu_mul = ref_silu_mul,
        .add = ref_add,
        .rope = ref_rope,
        .f32_to_f16 = ref_f32_to_f16,
        .f16_to_f32 = ref_f16_to_f32,
        .keys = {[LVR_KV_F16] = ref_keys_f16, [LVR_KV_Q8_0] = ref_keys_q8},
        .values = {[LVR_KV_F16] = ref_values_f16, [LVR_KV_Q8_0] = ref_values_q8},
        .softmax_exp = ref_softmax_exp,
        .max = ref_max,
    };
    for (unsigned t = 0; t < LVR_WTYPE_SLOTS; t++)
        if (lvr_wtype_name((lvr_wtype)t) != NULL)
            k->matmul[t] = ref_matmul;
}
