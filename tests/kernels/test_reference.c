/* The C reference against something that is not ours: libm, F16C, double precision, GGUF's own definition of
 * a block. */
#include "engine/kernels/attention.h"
#include "engine/kernels/bench.h"
#include "tests/kernels/harness.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* Largest error of lvr_expf over [-87, 88.72]; measured 0.87. */
#define EXP_MAX_ULP 1.0

/* ---- exp ---- */

static double ulp_error(float got, double want)
{
    int exponent;
    (void)frexp(want, &exponent);
    return fabs((double)got - want) / ldexp(1.0, exponent - 24);
}

static void check_exp_accuracy(void)
{
    double worst = 0;
    float worst_x = 0;
    for (int i = 0; i < 4000000; i++) {
        const float x =
            i % 2 == 0 ? kt_uniform(-87.0f, 88.72f) : kt_uniform(-2.0f, 2.0f) * kt_uniform(0.0f, 1.0f);
        const double e = ulp_error(lvr_expf(x), exp((double)x));
        if (e <= worst)
            continue;
        worst = e;
        worst_x = x;
    }
    printf("lvr_expf: at most %.3f ulp (x = %a)\n", worst, (double)worst_x);
    kt_check(worst <= EXP_MAX_ULP, "lvr_expf(%a) is off by %g ulp", (double)worst_x, worst);
}

static void check_exp_edges(void)
{
    kt_check(lvr_expf(0.0f) == 1.0f && lvr_expf(-0.0f) == 1.0f, "exp(0) is 1");
    kt_check(lvr_expf(INFINITY) == INFINITY && lvr_expf(1e30f) == INFINITY && lvr_expf(88.8f) == INFINITY,
             "exp overflows to infinity");
    kt_check(lvr_expf(88.75f) == INFINITY && isfinite(lvr_expf(88.72f)), "exp overflows where a float does");
    kt_check(lvr_expf(-INFINITY) == 0.0f && !signbit(lvr_expf(-INFINITY)), "exp(-infinity) is +0");
    kt_check(lvr_expf(nextafterf(-87.0f, -100.0f)) == 0.0f && lvr_expf(-1e30f) == 0.0f, "exp is 0 below -87");
    kt_check(isnormal(lvr_expf(-87.0f)), "exp(-87) is a normal number");
    kt_check(isnan(lvr_expf(NAN)), "exp of a NaN is a NaN");
}

/* ---- half precision ---- */

static void check_f16_round_trip(void)
{
    for (uint32_t h = 0; h < 0x10000; h++) {
        const float f = lvr_f16_to_f32((uint16_t)h);
        const bool is_nan = (h & 0x7c00) == 0x7c00 && (h & 0x3ff) != 0;
        kt_check(isnan(f) == is_nan, "0x%04x: NaN or not", h);
        const uint32_t back = lvr_f32_to_f16(f);
        kt_check(back == (is_nan ? h | 0x200 : h), "0x%04x -> %a -> 0x%04x", h, (double)f, back);
    }
}

/* Half way between neighbours goes to the even one; one float to either side goes to the nearer. */
static void check_f16_ties(void)
{
    for (uint32_t h = 0; h < 0x7c00; h++) {
        const double lo = (double)lvr_f16_to_f32((uint16_t)h);
        const double hi = h + 1 == 0x7c00 ? 65536.0 : (double)lvr_f16_to_f32((uint16_t)(h + 1));
        const float middle = (float)((lo + hi) / 2);
        const uint16_t even = (uint16_t)((h & 1) != 0 ? h + 1 : h);
        kt_check(lvr_f32_to_f16(middle) == even, "tie above 0x%04x", h);
        kt_check(lvr_f32_to_f16(-middle) == (even | 0x8000), "negative tie above 0x%04x", h);
        kt_check(lvr_f32_to_f16(nextafterf(middle, 0.0f)) == h, "below the tie above 0x%04x", h);
        kt_check(lvr_f32_to_f16(nextafterf(middle, INFINITY)) == h + 1, "above the tie above 0x%04x", h);
    }
}

#if defined(__x86_64__)
__attribute__((target("f16c"))) static uint16_t hardware_f32_to_f16(float f)
{
    return _cvtss_sh(f, _MM_FROUND_TO_NEAREST_INT);
}

__attribute__((target("f16c"))) static float hardware_f16_to_f32(uint16_t h)
{
    return _cvtsh_ss(h);
}

static void check_f16_against_hardware(void)
{
    if (lvr_cpu_best() < LVR_CPU_AVX2) {
        printf("no F16C here: software half precision not compared to hardware\n");
        return;
    }
    for (uint32_t h = 0; h < 0x10000; h++) {
        const float ours = lvr_f16_to_f32((uint16_t)h), theirs = hardware_f16_to_f32((uint16_t)h);
        kt_check(memcmp(&ours, &theirs, sizeof ours) == 0, "0x%04x to float: %a, hardware %a", h,
                 (double)ours, (double)theirs);
    }
    for (int i = 0; i < 4000000; i++) {
        uint32_t bits = (uint32_t)lvr_rng_u64(&kt_rng);
        if (i % 2 == 0) /* the exponents where halves are neither zero nor infinite */
            bits = (bits & 0x807fffffu) | (100 + bits % 45) << 23;
        float f;
        memcpy(&f, &bits, sizeof f);
        kt_check(lvr_f32_to_f16(f) == hardware_f32_to_f16(f), "float 0x%08x to half", bits);
    }
}

/*
 * Why Q8_0 does not use VPMADDUBSW on its packed codes (u8, 128 + weight): two products of 255 and 127 do not
 * fit 16 bits. With magnitudes up to 128, and with 4-bit codes, they do.
 */
__attribute__((target("ssse3"))) static int maddubs_pair(int code, int q)
{
    const __m128i sums = _mm_maddubs_epi16(_mm_set1_epi8((char)code), _mm_set1_epi8((char)q));
    return (int16_t)_mm_extract_epi16(sums, 0);
}

static void check_maddubs_saturates(void)
{
    if (lvr_cpu_best() < LVR_CPU_AVX2)
        return;
    kt_check(maddubs_pair(255, 127) == 32767, "maddubs saturates: 2 * 255 * 127 = 64770 became %d",
             maddubs_pair(255, 127));
    kt_check(maddubs_pair(255, -127) == -32768, "maddubs saturates downward: %d", maddubs_pair(255, -127));
    kt_check(maddubs_pair(128, 127) == 2 * 128 * 127 && maddubs_pair(128, -127) == -2 * 128 * 127,
             "magnitudes of 8-bit weights are exact");
    kt_check(maddubs_pair(15, 127) == 2 * 15 * 127, "4-bit codes are exact");
    kt_check(8 * 2 * 15 * 127 <= INT16_MAX, "and so is the sum of a block of them");
}
#endif

/* ---- weight types, packing ---- */

static void check_wtypes(void)
{
    kt_check(lvr_wtype_row_bytes(LVR_F32, 3) == 12 && lvr_wtype_row_bytes(LVR_F16, 3) == 6, "dense rows");
    kt_check(lvr_wtype_row_bytes(LVR_Q4_0, 64) == 36 && lvr_wtype_row_bytes(LVR_Q8_0, 64) == 68,
             "quantised rows");
    kt_check(lvr_wtype_row_bytes(LVR_Q4_0, 33) == 0, "33 inputs are no whole blocks");
    kt_check(lvr_wtype_row_bytes(LVR_F32, UINT64_MAX) == 0, "overflow is refused");
    kt_check(lvr_wtype_row_bytes((lvr_wtype)99, 32) == 0 && lvr_wtype_name((lvr_wtype)99) == NULL,
             "unknown type");
    kt_check(strcmp(lvr_wtype_name(LVR_Q4_0), "Q4_0") == 0, "name");
    kt_check(lvr_packed_bytes(LVR_Q8_0, 17, 32) == 2 * 544 && lvr_packed_bytes(LVR_Q4_0, 16, 64) == 2 * 288,
             "packed");
    kt_check(lvr_packed_bytes(LVR_F16, 1, 10) == 320 && lvr_packed_bytes(LVR_F32, 1, 10) == 640,
             "packed dense");
    kt_check(lvr_packed_bytes(LVR_Q8_0, 16, 31) == 0, "no whole blocks");
    kt_check(lvr_packed_bytes(LVR_F32, UINT32_MAX, UINT32_MAX) == 0, "overflow is refused");
}

static void check_levels_named(void)
{
    lvr_cpu_level level = LVR_CPU_C;
    kt_check(lvr_cpu_level_parse("avx2", &level) && level == LVR_CPU_AVX2, "avx2 parses");
    kt_check(!lvr_cpu_level_parse("avx9", &level) && level == LVR_CPU_AVX2,
             "avx9 does not, and changes nothing");
    kt_check(lvr_cpu_level_name((lvr_cpu_level)77) == NULL, "no such level");
    char small[6];
    lvr_cpu_flags_text(small, sizeof small);
    kt_check(strlen(small) < sizeof small, "flags are cut to the buffer");
    lvr_kernels k;
    lvr_kernels_init(&k, LVR_CPU_LEVELS);
    kt_check(k.level == lvr_cpu_best(), "the ladder ends where the CPU does");
    kt_check(lvr_kernels_matmul(&k, (lvr_wtype)99) == NULL, "no product of an unknown type");
}

/* ---- GGUF's definition of an element, independent of how we pack ---- */

static float half_at(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return lvr_f16_to_f32(h);
}

/* Q4_0, Q4_1, Q5_0, Q5_1: input i of a block whose nibbles are at q, and fifth bits at h unless NULL. */
static int nibble_code(const uint8_t *q, const uint8_t *h, uint32_t i)
{
    const int nibble = i < 16 ? q[i] & 15 : q[i - 16] >> 4;
    return h == NULL ? nibble : nibble | (h[i / 8] >> i % 8 & 1) << 4;
}

/* The six-bit scale (which = 0) or minimum (which = 1) of block b, Q4_K and Q5_K. */
static int six_bits(const uint8_t *scales, uint32_t b, uint32_t which)
{
    if (b < 4)
        return scales[b + 4 * which] & 63;
    const int low = which == 0 ? scales[b + 4] & 15 : scales[b + 4] >> 4;
    return low | scales[b - 4 + 4 * which] >> 6 << 4;
}

static float k_element(const uint8_t *super, uint32_t i, const uint8_t *q, const uint8_t *h)
{
    const uint32_t b = i / 32, at = b / 2 * 32 + i % 32;
    int code = b % 2 == 0 ? q[at] & 15 : q[at] >> 4;
    if (h != NULL)
        code |= (h[i % 32] >> b & 1) << 4;
    const float scale = half_at(super) * (float)six_bits(super + 4, b, 0);
    const float min = half_at(super + 2) * (float)six_bits(super + 4, b, 1);
    const float scaled = scale * (float)code;
    return scaled - min;
}

static float q6_k_element(const uint8_t *super, uint32_t i)
{
    const uint32_t half = i / 128, k = i % 128 / 32, at = i % 32;
    const int low = super[64 * half + 32 * (k % 2) + at] >> (k / 2 * 4) & 15;
    const int high = super[128 + 32 * half + at] >> (2 * k) & 3;
    return half_at(super + 208) * (float)(int8_t)super[192 + i / 16] * (float)((low | high << 4) - 32);
}

static float gguf_element(lvr_wtype t, const uint8_t *row, uint32_t i)
{
    const uint8_t *block = row + i / lvr_wtype_inputs(t) * lvr_wtype_row_bytes(t, lvr_wtype_inputs(t));
    const uint32_t at = i % lvr_wtype_inputs(t);
    float f = 0.0f;
    switch (t) {
    case LVR_F32:
        memcpy(&f, block, sizeof f);
        return f;
    case LVR_F16:
        return half_at(block);
    case LVR_BF16:
        memcpy((uint8_t *)&f + 2, block, 2);
        return f;
    case LVR_Q8_0:
        return half_at(block) * (float)(int8_t)block[2 + at];
    case LVR_Q4_0:
        return half_at(block) * (float)(nibble_code(block + 2, NULL, at) - 8);
    case LVR_Q4_1:
        return half_at(block) * (float)nibble_code(block + 4, NULL, at) + half_at(block + 2);
    case LVR_Q5_0:
        return half_at(block) * (float)(nibble_code(block + 6, block + 2, at) - 16);
    case LVR_Q5_1:
        return half_at(block) * (float)nibble_code(block + 8, block + 4, at) + half_at(block + 2);
    case LVR_Q4_K:
        return k_element(block, at, block + 16, NULL);
    case LVR_Q5_K:
        return k_element(block, at, block + 48, block + 16);
    case LVR_Q6_K:
        return q6_k_element(block, at);
    case LVR_WTYPE_SLOTS:
        break;
    }
    return NAN;
}

static void check_packing_of(lvr_wtype t, kt_weights shape, uint32_t n_out, uint32_t n_units)
{
    const uint32_t n_in = n_units * lvr_wtype_inputs(t);
    const size_t row_bytes = lvr_wtype_row_bytes(t, n_in);
    uint8_t *gguf = kt_alloc(row_bytes * n_out);
    kt_fill_weights(t, shape, gguf, row_bytes * n_out);
    kt_buf packed = kt_buf_new(lvr_packed_bytes(t, n_out, n_in), 0);
    lvr_pack_matrix(t, n_out, n_in, gguf, packed.data);
    kt_check(kt_buf_intact(&packed), "%s packed within its bytes", lvr_wtype_name(t));
    const uint32_t padded = (n_out + LVR_GROUP - 1) / LVR_GROUP * LVR_GROUP;
    const lvr_matrix m = {t, padded, n_in, packed.data};
    float *row = kt_alloc(n_in * sizeof(float));
    for (uint32_t o = 0; o < padded; o++) {
        lvr_packed_row(&m, o, row);
        for (uint32_t i = 0; i < n_in; i++) {
            const float want = o < n_out ? gguf_element(t, gguf + o * row_bytes, i) : 0.0f;
            size_t at;
            kt_check(kt_same_floats(&row[i], &want, 1, &at) || (o >= n_out && row[i] == 0.0f),
                     "%s (%u, %u) of %u x %u, weights %d: %a, not %a", lvr_wtype_name(t), o, i, n_out, n_in,
                     shape, (double)row[i], (double)want);
        }
    }
    free(row);
    free(gguf);
    kt_buf_free(&packed);
}

/* ---- the arithmetic, against double precision ---- */

/* What a product should be given its quantised inputs, and how large its terms are. */
static double exact_dot(const lvr_matrix *m, const lvr_acts *a, const float *w, uint32_t row,
                        double *ret_magnitude)
{
    const bool quantised = lvr_wtype_quantised(m->type);
    double sum = 0, magnitude = 0;
    for (uint32_t i = 0; i < m->n_in; i++) {
        const size_t at = (size_t)row * m->n_in + i;
        const double x = quantised ? (double)a->d[at / LVR_BLOCK] * a->q[at] : (double)a->x[at];
        sum += (double)w[i] * x;
        magnitude += fabs((double)w[i] * x);
    }
    *ret_magnitude = magnitude;
    return sum;
}

/* Sums of whole blocks cancel where weights have a minimum: the error is measured against the terms that were
 * added, not against their sum. */
static double tolerance(lvr_wtype t, double magnitude)
{
    const bool has_min = t == LVR_Q4_1 || t == LVR_Q5_1 || t == LVR_Q4_K || t == LVR_Q5_K;
    return (has_min ? 4e-5 : 1e-5) * magnitude;
}

static void check_product_of(lvr_wtype t, kt_weights weights, kt_shape shape)
{
    enum { N_OUT = 21, N_IN = 768, ROWS = 3, BLOCKS = N_IN / LVR_BLOCK };
    static float x[ROWS * N_IN], d[ROWS * BLOCKS], w[N_IN], out[ROWS * N_OUT];
    static int8_t q[ROWS * N_IN];
    static int16_t hsum[ROWS * BLOCKS * 2];
    lvr_kernels k;
    lvr_kernels_init(&k, LVR_CPU_C);
    const size_t row_bytes = lvr_wtype_row_bytes(t, N_IN);
    uint8_t *gguf = kt_alloc(row_bytes * N_OUT);
    kt_fill_weights(t, weights, gguf, row_bytes * N_OUT);
    kt_buf packed = kt_buf_new(lvr_packed_bytes(t, N_OUT, N_IN), 0);
    lvr_pack_matrix(t, N_OUT, N_IN, gguf, packed.data);
    kt_fill(shape, x, ROWS * N_IN);
    for (int r = 0; r < ROWS; r++)
        k.quantize_row(x + r * N_IN, N_IN, q + r * N_IN, d + r * BLOCKS, hsum + r * BLOCKS * 2);
    const lvr_matrix m = {t, N_OUT, N_IN, packed.data};
    const lvr_acts a = {ROWS, N_IN, x, q, d, hsum};
    lvr_kernels_matmul(&k, t)(&m, &a, 0, 2, out, N_OUT);
    for (uint32_t o = 0; o < N_OUT; o++) {
        lvr_packed_row(&m, o, w);
        for (uint32_t r = 0; r < ROWS; r++) {
            double magnitude;
            const double want = exact_dot(&m, &a, w, r, &magnitude), got = (double)out[r * N_OUT + o];
            if (isfinite(want) && magnitude <= FLT_MAX) /* else a partial sum may overflow, rightly */
                kt_check(fabs(got - want) <= tolerance(t, magnitude),
                         "%s output %u, weights %d, shape %d: %g, not %g", lvr_wtype_name(t), o, weights,
                         shape, got, want);
            else if (!isfinite(want))
                kt_check(!isfinite(got), "%s output %u: %g, but an infinite or NaN scale is in the row",
                         lvr_wtype_name(t), o, got);
        }
    }
    free(gguf);
    kt_buf_free(&packed);
}

static void check_quantized_values(void)
{
    enum { N = 3200 };
    static float x[N], d[N / LVR_BLOCK];
    static int8_t q[N];
    static int16_t hsum[N / LVR_BLOCK * 2];
    lvr_kernels k;
    lvr_kernels_init(&k, LVR_CPU_C);
    kt_fill(KT_NORMAL, x, N);
    k.quantize_row(x, N, q, d, hsum);
    for (int i = 0; i < N; i++)
        kt_check(fabsf(x[i] - d[i / 32] * (float)q[i]) <= 0.501f * d[i / 32], "element %d: %g as %d * %g", i,
                 (double)x[i], q[i], (double)d[i / 32]);
    for (int b = 0; b < N / 32; b++) {
        int sum[2] = {0, 0}, most = 0;
        for (int i = 32 * b; i < 32 * (b + 1); i++) {
            sum[i / 16 % 2] += q[i];
            most = abs(q[i]) > most ? abs(q[i]) : most;
        }
        kt_check(sum[0] == hsum[2 * b] && sum[1] == hsum[2 * b + 1] && most == 127,
                 "block %d: sums %d, %d as %d, %d, most %d", b, sum[0], sum[1], hsum[2 * b], hsum[2 * b + 1],
                 most);
    }
    x[5] = INFINITY;
    x[40] = NAN;
    k.quantize_row(x, 64, q, d, hsum);
    for (int b = 0; b < 2; b++)
        kt_check(isnan(d[b]) && hsum[2 * b] == 0 && q[32 * b] == 0,
                 "a block with an infinity or NaN has scale NaN, codes 0");
    kt_fill(KT_ZERO, x, 32);
    k.quantize_row(x, 32, q, d, hsum);
    kt_check(d[0] == 0.0f && q[0] == 0 && hsum[0] == 0, "a block of zeros has scale and codes 0");
}

/* ---- rows of a cache ---- */

/* Q8_0 by its definition: whole blocks as quantize_row has them, the last of 16 as if zeros followed. */
static void check_q8_row(uint32_t head_dim)
{
    float x[256 + LVR_BLOCK] = {0}, d[256 / LVR_BLOCK + 1];
    int8_t q[256 + LVR_BLOCK];
    int16_t hsum[2 * (256 / LVR_BLOCK + 1)];
    const uint32_t n_blocks = (head_dim + LVR_BLOCK - 1) / LVR_BLOCK;
    const size_t bytes = lvr_kv_row_bytes(LVR_KV_Q8_0, head_dim);
    lvr_kernels c;
    lvr_kernels_init(&c, LVR_CPU_C);
    kt_fill(KT_NORMAL, x, head_dim);
    c.quantize_row(x, n_blocks * LVR_BLOCK, q, d, hsum);
    kt_buf row = kt_buf_new(bytes, 0);
    lvr_kv_store_row(&c, LVR_KV_Q8_0, x, head_dim, row.data);
    const uint8_t *stored = row.data;
    kt_check(bytes == head_dim + 2 * n_blocks, "a Q8_0 row of %u takes %zu bytes", head_dim, bytes);
    kt_check(memcmp(stored, q, head_dim) == 0, "the codes of a Q8_0 row of %u", head_dim);
    for (uint32_t b = 0; b < n_blocks; b++) {
        const uint16_t want = lvr_f32_to_f16(d[b]);
        kt_check(memcmp(stored + head_dim + 2 * b, &want, 2) == 0, "scale %u of a Q8_0 row of %u", b,
                 head_dim);
    }
    for (uint32_t i = 0; i < head_dim; i++) { /* half a code, and the rounding of the scale */
        uint16_t half;
        memcpy(&half, stored + head_dim + 2 * (i / LVR_BLOCK), 2);
        const float scale = lvr_f16_to_f32(half);
        kt_check(fabsf(scale * (float)(int8_t)stored[i] - x[i]) <= 0.57f * scale, "value %u of %u", i,
                 head_dim);
    }
    kt_check(kt_buf_intact(&row), "a Q8_0 row of %u wrote outside", head_dim);
    kt_buf_free(&row);
}

static void check_kv_rows(void)
{
    lvr_kv_type type = LVR_KV_TYPES;
    kt_check(lvr_kv_type_parse("q8_0", &type) && type == LVR_KV_Q8_0, "q8_0 is a KV type");
    kt_check(lvr_kv_type_parse("f16", &type) && type == LVR_KV_F16, "f16 is a KV type");
    kt_check(!lvr_kv_type_parse("q4_0", &type) && type == LVR_KV_F16, "q4_0 is no KV type");
    kt_check(lvr_kv_type_name(LVR_KV_TYPES) == NULL && lvr_kv_type_names[LVR_KV_TYPES] == NULL, "names end");
    kt_check(lvr_kv_row_bytes(LVR_KV_F16, 64) == 128, "an F16 row of 64");
    for (uint32_t head_dim = 16; head_dim <= 256; head_dim += 16)
        check_q8_row(head_dim);
}

/* ---- attention ---- */

enum { A_QUERIES = 6, A_ROWS = 50, A_DIM = 48, A_STRIDE = A_ROWS };

/* The values of a stored row. */
static void row_values(lvr_kv_type type, const uint8_t *row, float *ret)
{
    for (uint32_t i = 0; i < A_DIM; i++) {
        uint16_t half;
        memcpy(&half, type == LVR_KV_F16 ? row + 2 * (size_t)i : row + A_DIM + i / LVR_BLOCK * 2, 2);
        ret[i] = lvr_f16_to_f32(half) * (type == LVR_KV_F16 ? 1.0f : (float)(int8_t)row[i]);
    }
}

/* One query by the definition in kernels.h. */
static void attend_plainly(const lvr_kernels *c, lvr_kv_type type, const float *q, const uint8_t *k,
                           const uint8_t *v, uint32_t n, float scale, float *out)
{
    const size_t row_bytes = lvr_kv_row_bytes(type, A_DIM);
    float x[A_DIM], scores[A_ROWS];
    for (uint32_t j = 0; j < n; j++) {
        float p[16] = {0};
        row_values(type, k + j * row_bytes, x);
        for (uint32_t i = 0; i < A_DIM; i++)
            p[i % 16] = fmaf(q[i], x[i], p[i % 16]);
        for (uint32_t half = 8; half >= 1; half /= 2)
            for (uint32_t i = 0; i < half; i++)
                p[i] += p[i + half];
        scores[j] = p[0];
    }
    const float sum = c->softmax_exp(scores, n, c->max(scores, n), scale, scores);
    memset(out, 0, A_DIM * sizeof *out);
    for (uint32_t j = 0; j < n; j++) {
        row_values(type, v + j * row_bytes, x);
        for (uint32_t i = 0; i < A_DIM; i++)
            out[i] = fmaf(scores[j], x[i], out[i]);
    }
    for (uint32_t i = 0; i < A_DIM; i++)
        out[i] /= sum;
}

typedef struct attention_case {
    lvr_kv_type type;
    float q[A_QUERIES * A_DIM];
    uint8_t k[A_ROWS * A_DIM * 2], v[A_ROWS * A_DIM * 2];
} attention_case;

static void fill_case(attention_case *c, const lvr_kernels *kernels)
{
    const size_t row_bytes = lvr_kv_row_bytes(c->type, A_DIM);
    float x[A_DIM];
    kt_fill(KT_NORMAL, c->q, A_QUERIES * A_DIM);
    for (uint32_t j = 0; j < A_ROWS; j++) {
        kt_fill(KT_NORMAL, x, A_DIM);
        lvr_kv_store_row(kernels, c->type, x, A_DIM, c->k + j * row_bytes);
        kt_fill(KT_NORMAL, x, A_DIM);
        lvr_kv_store_row(kernels, c->type, x, A_DIM, c->v + j * row_bytes);
    }
}

typedef void (*sweep_fn)(lvr_attention *a, uint32_t first, uint32_t n_queries, const uint8_t *rows,
                         uint32_t n);

/* All queries share the first `shared` positions, then each pair of them goes on by itself, in two pieces:
 * pair i sees shared + 2 * (i + 1) positions. */
static void sweep_pieces(lvr_attention *a, sweep_fn fn, const uint8_t *rows, size_t row_bytes,
                         uint32_t shared)
{
    if (shared)
        fn(a, 0, A_QUERIES, rows, shared);
    for (uint32_t i = 0; i < A_QUERIES / 2; i++) {
        fn(a, 2 * i, 2, rows + shared * row_bytes, 1);
        fn(a, 2 * i, 2, rows + (shared + 1) * row_bytes, 2 * i + 1);
    }
}

/* Attention in groups and pieces is what each query's definition says, bit for bit. */
static void check_attention(const lvr_kernels *k, lvr_kv_type type, uint32_t shared)
{
    static attention_case c;
    const size_t row_bytes = lvr_kv_row_bytes(type, A_DIM);
    const float scale = 0.3f;
    float got[A_QUERIES * A_DIM], want[A_DIM];
    lvr_attention a;
    kt_buf memory = kt_buf_new(lvr_attention_floats(A_DIM, A_ROWS) * sizeof(float), 0);
    c.type = type;
    fill_case(&c, k);
    lvr_attention_init(&a, A_DIM, A_ROWS, scale, memory.data);
    lvr_attention_begin(&a, k, type);
    lvr_attention_add_queries(&a, c.q, 2);
    lvr_attention_add_queries(&a, c.q + 2 * A_DIM, A_QUERIES - 2);
    sweep_pieces(&a, lvr_attention_keys, c.k, row_bytes, shared);
    lvr_attention_softmax(&a);
    sweep_pieces(&a, lvr_attention_values, c.v, row_bytes, shared);
    lvr_attention_result(&a, 0, 1, got);
    lvr_attention_result(&a, 1, A_QUERIES - 1, got + A_DIM);
    for (uint32_t i = 0; i < A_QUERIES; i++) {
        size_t at = 0;
        attend_plainly(k, type, c.q + i * A_DIM, c.k, c.v, shared + 2 * (i / 2 + 1), scale, want);
        kt_check(kt_same_floats(want, got + i * A_DIM, A_DIM, &at), "attention %s, query %u, element %zu",
                 lvr_kv_type_name(type), i, at);
    }
    kt_check(kt_buf_intact(&memory), "attention wrote outside its workspace");
    kt_buf_free(&memory);
}

/* Uniform scores: attention is the mean of the values. One overwhelming score: it is that value. */
static void check_attention_means(void)
{
    static attention_case c;
    lvr_kernels k;
    lvr_attention a;
    float out[A_DIM];
    kt_buf memory = kt_buf_new(lvr_attention_floats(A_DIM, A_ROWS) * sizeof(float), 0);
    lvr_kernels_init(&k, LVR_CPU_C);
    memset(&c, 0, sizeof c);
    for (uint32_t j = 0; j < A_ROWS; j++) {
        float x[A_DIM] = {[9] = (float)j};
        lvr_kv_store_row(&k, LVR_KV_F16, x, A_DIM, c.v + (size_t)j * A_DIM * 2);
    }
    c.q[0] = 1.0f;
    lvr_attention_init(&a, A_DIM, A_ROWS, 1.0f, memory.data);
    for (int peaked = 0; peaked < 2; peaked++) {
        const float key[A_DIM] = {peaked ? 1000.0f : 0.0f};
        lvr_kv_store_row(&k, LVR_KV_F16, key, A_DIM, c.k + (size_t)7 * A_DIM * 2);
        lvr_attention_begin(&a, &k, LVR_KV_F16);
        lvr_attention_add_queries(&a, c.q, 1);
        lvr_attention_keys(&a, 0, 1, c.k, A_ROWS);
        lvr_attention_softmax(&a);
        lvr_attention_values(&a, 0, 1, c.v, A_ROWS);
        lvr_attention_result(&a, 0, 1, out);
        const float want = peaked ? 7.0f : (A_ROWS - 1) / 2.0f;
        kt_check(fabsf(out[9] - want) < 1e-4f, "the mean, or the one value: %g, not %g", (double)out[9],
                 (double)want);
    }
    kt_buf_free(&memory);
}

static void check_attentions(void)
{
    for (unsigned level = 0; level < LVR_CPU_LEVELS; level++) {
        lvr_kernels k;
        if (!lvr_cpu_has((lvr_cpu_level)level))
            continue;
        lvr_kernels_init(&k, (lvr_cpu_level)level);
        for (unsigned type = 0; type < LVR_KV_TYPES; type++)
            for (uint32_t shared = 0; shared <= 40; shared += 8)
                check_attention(&k, (lvr_kv_type)type, shared);
    }
}

static void check_bench(void)
{
    lvr_error err = LVR_ERROR_INIT;
    double ns = -1;
    kt_check(lvr_bench_kernels(LVR_Q8_0, 16, 33, 1, 1, LVR_CPU_C, 1, &ns, &err) == LVR_ERR_USAGE && ns < 0,
             "33 inputs are refused");
    kt_check(lvr_bench_kernels(LVR_F32, 16, 32, 0, 1, LVR_CPU_C, 1, &ns, &err) == LVR_ERR_USAGE,
             "no rows are refused");
    kt_check(lvr_bench_kernels((lvr_wtype)99, 16, 32, 1, 1, LVR_CPU_C, 1, &ns, &err) == LVR_ERR_UNSUPPORTED,
             "an unknown type is refused");
    kt_check(lvr_bench_kernels(LVR_F32, 16, 32, 1, 1, LVR_CPU_LEVELS, 1, &ns, NULL) == LVR_ERR_UNSUPPORTED &&
                 ns < 0,
             "a level nobody has is refused");
    for (unsigned t = 0; t < LVR_WTYPE_SLOTS; t++)
        if (lvr_wtype_name((lvr_wtype)t) != NULL)
            kt_check(lvr_bench_kernels((lvr_wtype)t, 37, 256, 3, 2, lvr_cpu_best(), 2, &ns, &err) == LVR_OK &&
                         ns >= 0,
                     "%s", err.msg);
}

static void check_type(lvr_wtype t)
{
    for (unsigned w = 0; w < KW_SHAPES; w++) {
        check_product_of(t, w, KT_NORMAL);
        check_product_of(t, w, KT_ONE_SIGN);
        check_packing_of(t, w, 35, 3);
        check_packing_of(t, w, 16, 1);
        check_packing_of(t, w, 1, 2);
    }
}

int main(int argc, char **argv)
{
    kt_begin(argc, argv, "test_reference");
    check_exp_accuracy();
    check_exp_edges();
    check_f16_round_trip();
    check_f16_ties();
#if defined(__x86_64__)
    check_f16_against_hardware();
    check_maddubs_saturates();
#endif
    check_wtypes();
    check_levels_named();
    check_quantized_values();
    check_kv_rows();
    check_attention_means();
    check_attentions();
    check_bench();
    for (unsigned t = 0; t < LVR_WTYPE_SLOTS; t++)
        if (lvr_wtype_name((lvr_wtype)t) != NULL)
            check_type((lvr_wtype)t);
    return kt_end();
}
