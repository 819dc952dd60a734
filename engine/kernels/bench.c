#include "engine/kernels/bench.h"

#include "common/clock.h"
#include "common/threads.h"
#include "engine/kernels/lcg.h"
#include "engine/kernels/levels.h"

#include <stdlib.h>

#define ALIGN 64u
#define SCALE_2_POW_MINUS_7 0x2000u /* f16: any modest scale, so that sums stay finite */

typedef struct bench {
    lvr_matrix m;
    lvr_acts a;
    lvr_matmul_fn matmul;
    uint8_t *weights;
    float *x, *out;
} bench;

static void *alloc_aligned(uint64_t bytes)
{
    const uint64_t rounded = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    if (rounded < bytes || rounded > SIZE_MAX)
        return NULL;
    return aligned_alloc(ALIGN, (size_t)rounded);
}

/* Bytes of halves at the head of a unit of 16 outputs. */
static uint64_t half_bytes(lvr_wtype t)
{
    switch (t) {
    case LVR_F16:
    case LVR_F32:
    case LVR_BF16:
        return 0;
    case LVR_Q4_0:
    case LVR_Q5_0:
    case LVR_Q8_0:
    case LVR_Q6_K:
    case LVR_WTYPE_SLOTS:
        return LVR_SCALES_BYTES;
    case LVR_Q4_1:
    case LVR_Q5_1:
    case LVR_Q4_K:
    case LVR_Q5_K:
        return 2u * LVR_SCALES_BYTES;
    }
    return 0;
}

/* Arbitrary codes under one modest scale. Dense weights take 2^-7 to 2^-6 (through their upper half, if they
 * have two). Scales of K types have six bits. */
static void fill_weights(lvr_wtype t, uint8_t *w, uint64_t bytes)
{
    const uint64_t unit = lvr_group_bytes(t, lvr_wtype_inputs(t)), halves = half_bytes(t);
    const uint64_t head = t == LVR_Q4_K || t == LVR_Q5_K ? LVR_K_HEAD_BYTES : 0;
    uint32_t state = 1;
    for (uint64_t i = 0; i < bytes; i += 4) {
        uint32_t v = lvr_lcg_next(&state) | lvr_lcg_next(&state) << 16;
        if (t == LVR_F32)
            v = (v & 0x7fffffu) | 0x3c000000u;
        else if (t == LVR_F16)
            v = (v & 0x03ff03ffu) | SCALE_2_POW_MINUS_7 << 16 | SCALE_2_POW_MINUS_7;
        else if (t == LVR_BF16)
            v = (v & 0x007f007fu) | 0x3c003c00u;
        else if (i % unit < halves)
            v = SCALE_2_POW_MINUS_7 << 16 | SCALE_2_POW_MINUS_7;
        else if (i % unit < head)
            v &= 0x3f3f3f3fu;
        memcpy(w + i, &v, sizeof v);
    }
}

static void bench_free(bench *s)
{
    free(s->weights);
    free(s->x);
    free(s->out);
    free(s->a.q);
    free(s->a.d);
    free(s->a.hsum);
}

static bool bench_alloc(bench *s, uint64_t weight_bytes)
{
    const uint64_t inputs = (uint64_t)s->a.n_rows * s->a.n_in;
    s->weights = alloc_aligned(weight_bytes);
    s->x = alloc_aligned(inputs * sizeof(float));
    s->out = alloc_aligned((uint64_t)s->a.n_rows * s->m.n_out * sizeof(float));
    s->a.q = alloc_aligned(inputs);
    s->a.d = alloc_aligned(inputs / LVR_BLOCK * sizeof(float) + sizeof(float));
    s->a.hsum = alloc_aligned(inputs / LVR_BLOCK * 2 * sizeof(int16_t) + 2 * sizeof(int16_t));
    return s->weights != NULL && s->x != NULL && s->out != NULL && s->a.q != NULL && s->a.d != NULL &&
           s->a.hsum != NULL;
}

static void bench_fill(bench *s, const lvr_kernels *k, uint64_t weight_bytes)
{
    const size_t n_in = s->a.n_in, n_blocks = n_in / LVR_BLOCK;
    uint32_t state = 2;
    fill_weights(s->m.type, s->weights, weight_bytes);
    for (size_t i = 0; i < n_in * s->a.n_rows; i++)
        s->x[i] = (float)lvr_lcg_next(&state) * 0x1p-23f - 1.0f;
    for (size_t r = 0; r < s->a.n_rows; r++)
        k->quantize_row(s->x + r * n_in, s->a.n_in, s->a.q + r * n_in, s->a.d + r * n_blocks,
                        s->a.hsum + r * n_blocks * 2);
    s->m.data = s->weights;
    s->a.x = s->x;
}

static void run_groups(void *arg, uint64_t begin, uint64_t end, uint32_t worker)
{
    const bench *s = arg;
    (void)worker;
    s->matmul(&s->m, &s->a, (uint32_t)begin, (uint32_t)end, s->out, s->m.n_out);
}

static double least_ns(bench *s, lvr_pool *pool, uint32_t reps)
{
    const uint64_t n_groups = lvr_group_count(s->m.n_out);
    const uint64_t chunks = 4u * lvr_pool_size(pool);
    const uint64_t chunk = n_groups / chunks + 1;
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < reps; i++) {
        const uint64_t begin = lvr_now_ns();
        lvr_pool_for(pool, n_groups, chunk, run_groups, s);
        const uint64_t took = lvr_now_ns() - begin;
        least = took < least ? took : least;
    }
    return (double)least;
}

lvr_status lvr_bench_kernels(lvr_wtype type, uint32_t n_out, uint32_t n_in, uint32_t rows, uint32_t threads,
                             lvr_cpu_level level, uint32_t reps, double *ret_ns, lvr_error *err)
{
    if (n_out == 0 || n_in == 0 || rows == 0 || reps == 0)
        return lvr_fail(err, LVR_ERR_USAGE, "sizes, rows and repetitions of a benchmark must be at least 1");
    if (!lvr_cpu_has(level))
        return lvr_fail(err, LVR_ERR_UNSUPPORTED, "this CPU does not have level %d; its best is %d, %s",
                        (int)level, (int)lvr_cpu_best(), lvr_cpu_level_name(lvr_cpu_best()));
    if (lvr_wtype_name(type) == NULL)
        return lvr_fail(err, LVR_ERR_UNSUPPORTED, "weight type %d is not one of this build", (int)type);
    const uint64_t weight_bytes = lvr_packed_bytes(type, n_out, n_in);
    if (weight_bytes == 0)
        return lvr_fail(err, LVR_ERR_USAGE, "%s needs a multiple of %u inputs, not %u", lvr_wtype_name(type),
                        lvr_wtype_inputs(type), n_in);
    lvr_kernels k;
    lvr_kernels_init(&k, level);
    lvr_pool *pool;
    const lvr_status status = lvr_pool_new(threads, &pool, err);
    if (status != LVR_OK)
        return status;
    bench s = {.m = {.type = type, .n_out = n_out, .n_in = n_in},
               .a = {.n_rows = rows, .n_in = n_in},
               .matmul = lvr_kernels_matmul(&k, type)};
    if (!bench_alloc(&s, weight_bytes)) {
        bench_free(&s);
        lvr_pool_free(pool);
        return lvr_fail(err, LVR_ERR_NOMEM, "no memory for a %u x %u %s matrix", n_out, n_in,
                        lvr_wtype_name(type));
    }
    bench_fill(&s, &k, weight_bytes);
    *ret_ns = least_ns(&s, pool, reps);
    bench_free(&s);
    lvr_pool_free(pool);
    return LVR_OK;
}
