/*
 * Benchmark: every level over C; of matrix products of every type, one row over C and the cost of more rows
 * over one, in multiply-adds per cycle of one core. `meson test --benchmark`, or run it by hand; any
 * argument: more shapes.
 */
#include "common/clock.h"
#include "engine/kernels/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct shape {
    uint32_t n_out, n_in, reps;
} shape;

static const shape shapes[] = {{2048, 2048, 40}, {256, 256, 400},  {256, 768, 200},
                               {768, 256, 200},  {128, 4096, 100}, {4096, 14336, 8}};
static const uint32_t row_counts[] = {1, 2, 4, 8, 16, 32, 64};
#define N_SHAPES (sizeof shapes / sizeof shapes[0])
#define N_ROWS (sizeof row_counts / sizeof row_counts[0])

static double time_ns(lvr_wtype t, const shape *s, uint32_t rows, lvr_cpu_level level, uint32_t reps)
{
    lvr_error err = LVR_ERROR_INIT;
    double ns;
    if (lvr_bench_kernels(t, s->n_out, s->n_in, rows, 1, level, reps, &ns, &err) == LVR_OK)
        return ns;
    fprintf(stderr, "%s\n", err.msg);
    exit(1);
}

/* Cycles per nanosecond: dependent additions take one each. The fastest of many short runs. */
static double clock_ghz(void)
{
    enum { RUNS = 200, ADDITIONS = 20000 };
    uint64_t least = UINT64_MAX, x = 0;
    for (int run = 0; run < RUNS; run++) {
        const uint64_t begin = lvr_now_ns();
        for (int i = 0; i < ADDITIONS; i += 4) {
            __asm__ volatile("" : "+r"(x));
            x += 3;
            __asm__ volatile("" : "+r"(x));
            x += 3;
            __asm__ volatile("" : "+r"(x));
            x += 3;
            __asm__ volatile("" : "+r"(x));
            x += 3;
        }
        const uint64_t took = lvr_now_ns() - begin;
        least = took < least ? took : least;
    }
    return (double)ADDITIONS / (double)least;
}

static void print_shape(lvr_wtype t, const shape *s, lvr_cpu_level level, double ghz)
{
    const double c = time_ns(t, s, 1, LVR_CPU_C, s->n_out * s->n_in > 1000000 ? 2 : 10);
    const double one = time_ns(t, s, 1, level, s->reps);
    const double bytes = (double)lvr_packed_bytes(t, s->n_out, s->n_in);
    printf("%-4s %4ux%-5u %-6s %8.1f us %6.1fx C %5.1f GB/s |", lvr_wtype_name(t), s->n_out, s->n_in,
           lvr_cpu_level_name(level), one / 1e3, c / one, bytes / one);
    for (unsigned i = 0; i < N_ROWS; i++) {
        const double ns = i == 0 ? one : time_ns(t, s, row_counts[i], level, s->reps / 4 + 3);
        const double macs = (double)s->n_out * s->n_in * row_counts[i];
        printf(" %u: %.2fx %.1f", row_counts[i], ns / one, macs / (ns * ghz));
    }
    printf("\n");
    fflush(stdout);
}

/* ---- the rest of a layer: nanoseconds per call ---- */

enum { DIM = 4096, HEAD_DIM = 64, POSITIONS = 512, QUERIES = 8, REPEATS = 20 };

typedef struct scratch {
    float a[DIM], b[DIM], y[DIM];
    int8_t q[DIM];
    float d[DIM / LVR_BLOCK];
    int16_t hsum[DIM / LVR_BLOCK * 2];
    uint16_t half[DIM];
    uint8_t rows[POSITIONS * HEAD_DIM * 2];
    float scores[QUERIES * POSITIONS];
} scratch;

typedef void (*op_fn)(const lvr_kernels *k, scratch *s);

static void op_quantize(const lvr_kernels *k, scratch *s)
{
    k->quantize_row(s->a, DIM, s->q, s->d, s->hsum);
}

static void op_rmsnorm(const lvr_kernels *k, scratch *s)
{
    k->rmsnorm(s->a, s->b, DIM, 1e-5f, s->y);
}

static void op_silu_mul(const lvr_kernels *k, scratch *s)
{
    k->silu_mul(s->a, s->b, DIM, s->y);
}

static void op_rope(const lvr_kernels *k, scratch *s)
{
    k->rope(s->y, DIM / HEAD_DIM, HEAD_DIM, s->b);
}

static void op_f32_to_f16(const lvr_kernels *k, scratch *s)
{
    k->f32_to_f16(s->a, DIM, s->half);
}

static void op_softmax(const lvr_kernels *k, scratch *s)
{
    k->softmax_exp(s->a, DIM, k->max(s->a, DIM), 0.125f, s->y);
}

/* Of n_q queries, in `a`. */
static void sweep(const lvr_kernels *k, lvr_kv_type type, uint32_t n_q, scratch *s)
{
    k->keys[type](s->a, n_q, s->rows, POSITIONS, HEAD_DIM, s->scores, POSITIONS);
    k->values[type](s->scores, POSITIONS, n_q, s->rows, POSITIONS, HEAD_DIM, s->y);
}

static void op_sweep_1(const lvr_kernels *k, scratch *s)
{
    sweep(k, LVR_KV_F16, 1, s);
}

static void op_sweep_8(const lvr_kernels *k, scratch *s)
{
    sweep(k, LVR_KV_F16, QUERIES, s);
}

static void op_sweep_q8_1(const lvr_kernels *k, scratch *s)
{
    sweep(k, LVR_KV_Q8_0, 1, s);
}

static void op_sweep_q8_8(const lvr_kernels *k, scratch *s)
{
    sweep(k, LVR_KV_Q8_0, QUERIES, s);
}

static double least_op_ns(const lvr_kernels *k, op_fn op, scratch *s)
{
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < REPEATS; i++) {
        const uint64_t begin = lvr_now_ns();
        op(k, s);
        const uint64_t took = lvr_now_ns() - begin;
        least = took < least ? took : least;
    }
    return (double)least;
}

static void fill_scratch(scratch *s)
{
    for (int i = 0; i < DIM; i++) {
        s->a[i] = (float)((i * 37) % 101) * 0.05f - 2.5f;
        s->b[i] = (float)((i * 53) % 97) * 0.01f;
    }
    for (int i = 0; i < POSITIONS * HEAD_DIM; i++) {
        const uint16_t half = lvr_f32_to_f16(s->a[i % DIM] * 0x1p-9f); /* for Q8_0: modest scales, too */
        memcpy(s->rows + 2 * i, &half, sizeof half);
    }
    memset(s->y, 0, sizeof s->y);
}

static void print_ops(lvr_cpu_level level)
{
    static scratch s;
    static const struct {
        const char *name;
        op_fn op;
    } ops[] = {{"quantize_row 4096", op_quantize},
               {"rmsnorm 4096", op_rmsnorm},
               {"silu_mul 4096", op_silu_mul},
               {"rope 64 x 64", op_rope},
               {"f32_to_f16 4096", op_f32_to_f16},
               {"max, softmax_exp 4096", op_softmax},
               {"keys, values f16, 1 x 512 x 64", op_sweep_1},
               {"keys, values f16, 8 x 512 x 64", op_sweep_8},
               {"keys, values q8_0, 1 x 512 x 64", op_sweep_q8_1},
               {"keys, values q8_0, 8 x 512 x 64", op_sweep_q8_8}};
    lvr_kernels c, now;
    lvr_kernels_init(&c, LVR_CPU_C);
    lvr_kernels_init(&now, level);
    for (unsigned i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        fill_scratch(&s);
        const double c_ns = least_op_ns(&c, ops[i].op, &s);
        fill_scratch(&s);
        const double ns = least_op_ns(&now, ops[i].op, &s);
        printf("%-32s %-5s %8.0f ns %6.1fx C\n", ops[i].name, lvr_cpu_level_name(level), ns, c_ns / ns);
    }
}

static void print_level(lvr_cpu_level level, unsigned n_shapes)
{
    const double ghz = clock_ghz();
    printf("%s, %.2f GHz\n", lvr_cpu_level_name(level), ghz);
    for (unsigned i = 0; i < n_shapes; i++)
        for (unsigned t = 0; t < LVR_WTYPE_SLOTS; t++)
            if (lvr_wtype_name((lvr_wtype)t) != NULL)
                print_shape((lvr_wtype)t, &shapes[i], level, ghz);
    print_ops(level);
}

int main(int argc, char **argv)
{
    (void)argv;
    printf("type shape level, time of 1 row, over C, weights read | rows: time over 1 row, multiply-adds per "
           "cycle\n");
    for (unsigned level = LVR_CPU_C + 1; level < LVR_CPU_LEVELS; level++)
        if (lvr_cpu_has((lvr_cpu_level)level))
            print_level((lvr_cpu_level)level, argc > 1 ? N_SHAPES : 1);
    return 0;
}
