/* Rows quantised for synthetic models, read back by the engine's own unpacking. */
#include "engine/kernels/kernels.h"
#include "engine/synth/quantize.h"
#include "engine/synth/values.h"
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N 512u

/* Largest error allowed, as a fraction of the largest magnitude in the row. The K types share scales of six
 * or eight bits between sub-blocks, which adds to half a step. */
static const struct {
    lvr_wtype type;
    double tolerance;
} types[] = {{LVR_F32, 0},      {LVR_F16, 0.0005}, {LVR_BF16, 0.0040}, {LVR_Q8_0, 0.0042},
             {LVR_Q4_0, 0.130}, {LVR_Q4_1, 0.070}, {LVR_Q5_0, 0.066},  {LVR_Q5_1, 0.034},
             {LVR_Q4_K, 0.095}, {LVR_Q5_K, 0.060}, {LVR_Q6_K, 0.045}};
#define N_TYPES (sizeof types / sizeof types[0])

/* What a model that holds this row computes with. */
static void round_trip(lvr_wtype t, const float *x, float *ret)
{
    const uint64_t row = lvr_wtype_row_bytes(t, N), packed = lvr_packed_bytes(t, 1, N);
    uint8_t *gguf = malloc(row), *data = aligned_alloc(64, (packed + 63) / 64 * 64);
    cr_assert(row > 0 && gguf != NULL && data != NULL);
    lvr_quantize_row(t, x, N, gguf);
    lvr_pack_matrix(t, 1, N, gguf, data);
    const lvr_matrix m = {.type = t, .n_out = 1, .n_in = N, .data = data};
    lvr_packed_row(&m, 0, ret);
    free(gguf);
    free(data);
}

static double largest(const float *x)
{
    double top = 0;
    for (uint32_t i = 0; i < N; i++)
        top = fmax(top, fabs((double)x[i]));
    return top;
}

static void expect_close(const char *what, const float *x)
{
    float back[N];
    for (size_t t = 0; t < N_TYPES; t++) {
        double worst = 0;
        round_trip(types[t].type, x, back);
        for (uint32_t i = 0; i < N; i++)
            worst = fmax(worst, fabs((double)back[i] - (double)x[i]));
        cr_expect_leq(worst, types[t].tolerance * largest(x), "%s, %s: off by %g of %g", what,
                      lvr_wtype_name(types[t].type), worst, largest(x));
    }
}

Test(synth_quantize, random_rows_come_back)
{
    float x[N];
    for (uint64_t seed = 1; seed <= 20; seed++) {
        lvr_synth_uniform(seed, 0, N, 0.02f * (float)seed, x);
        expect_close("uniform", x);
        lvr_synth_vary_blocks(seed, 0, N, x);
        expect_close("varied", x);
    }
}

Test(synth_quantize, one_sided_rows_come_back)
{
    float x[N];
    lvr_synth_uniform(3, 0, N, 1.0f, x);
    for (uint32_t i = 0; i < N; i++)
        x[i] = fabsf(x[i]);
    expect_close("positive", x);
    for (uint32_t i = 0; i < N; i++)
        x[i] = -x[i];
    expect_close("negative", x);
}

Test(synth_quantize, zeros_stay_zeros)
{
    const float x[N] = {0};
    float back[N];
    for (size_t t = 0; t < N_TYPES; t++) {
        round_trip(types[t].type, x, back);
        cr_expect_eq(largest(back), 0, "%s", lvr_wtype_name(types[t].type));
    }
}

/* What carries a planted chain in tied models is one value among zeros, and must not leak. (In
 * the K types a minimum and a step are rounded apart.) */
Test(synth_quantize, a_single_value_leaves_its_neighbours_zero)
{
    float back[N];
    for (size_t t = 0; t < N_TYPES; t++)
        for (uint32_t at = 0; at < N; at += 37) {
            float x[N] = {0};
            x[at] = at % 2 ? 0.25f : -0.25f;
            round_trip(types[t].type, x, back);
            cr_expect_float_eq(back[at], x[at], 0.02f, "%s: %g at %u", lvr_wtype_name(types[t].type),
                               (double)back[at], at);
            back[at] = 0;
            cr_expect_leq(largest(back), 0.001 * 0.25, "%s: %g beside %u", lvr_wtype_name(types[t].type),
                          largest(back), at);
        }
}

Test(synth_values, the_same_whatever_the_part)
{
    float all[N], part[64];
    lvr_synth_uniform(11, 0, N, 1.0f, all);
    lvr_synth_vary_blocks(11, 0, N, all);
    for (uint32_t begin = 0; begin < N; begin += 64) {
        lvr_synth_uniform(11, begin, 64, 1.0f, part);
        lvr_synth_vary_blocks(11, begin, 64, part);
        cr_expect_arr_eq(part, all + begin, sizeof part);
    }
}

Test(synth_values, have_the_standard_deviation_asked_for)
{
    enum { MANY = 1 << 20 };
    float *x = malloc(MANY * sizeof *x);
    double sum = 0, squares = 0;
    cr_assert_not_null(x);
    lvr_synth_uniform(5, 0, MANY, 2.0f, x);
    lvr_synth_vary_blocks(5, 0, MANY, x);
    for (uint32_t i = 0; i < MANY; i++) {
        sum += (double)x[i];
        squares += (double)x[i] * (double)x[i];
    }
    cr_expect_float_eq(sum / MANY, 0, 0.01);
    cr_expect_float_eq(sqrt(squares / MANY), 2.0, 0.01);
    free(x);
}
