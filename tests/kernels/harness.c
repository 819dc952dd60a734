#include "tests/kernels/harness.h"

#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD_BYTES 128u
#define GUARD_BYTE 0xa5u
#define MAX_PRINTED 20u
#define QUICKER 8u
#define EXIT_SKIPPED 77 /* meson's sign for a test that could not be made */

lvr_rng kt_rng;
static unsigned failures;
static unsigned long checks;
static bool quick;
static lvr_cpu_level only_level = LVR_CPU_LEVELS;

static void usage(const char *name)
{
    fprintf(stderr, "usage: %s [--quick] [--level LEVEL] [SEED]\n", name);
    exit(2);
}

/* A level this machine does not have cannot be tested: that is no failure, but no success either. */
static void choose_level(const char *name, const char *text)
{
    if (!lvr_cpu_level_parse(text, &only_level)) {
        fprintf(stderr, "%s: %s is no level\n", name, text);
        exit(2);
    }
    if (lvr_cpu_has(only_level))
        return;
    printf("%s: skipped: this machine has no %s; its best level is %s\n", name, text,
           lvr_cpu_level_name(lvr_cpu_best()));
    exit(EXIT_SKIPPED);
}

void kt_begin(int argc, char **argv, const char *name)
{
    const char *seed_text = getenv("LVR_TEST_SEED");
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0)
            quick = true;
        else if (strcmp(argv[i], "--level") == 0 && i + 1 < argc)
            choose_level(name, argv[++i]);
        else if (argv[i][0] >= '0' && argv[i][0] <= '9')
            seed_text = argv[i];
        else
            usage(name);
    }
    const uint64_t seed = seed_text != NULL ? strtoull(seed_text, NULL, 0) : 1;
    char flags[256];
    lvr_cpu_flags_text(flags, sizeof flags);
    printf("%s: seed %llu; CPU best level %s (%s)\n", name, (unsigned long long)seed,
           lvr_cpu_level_name(lvr_cpu_best()), flags);
    lvr_rng_init(&kt_rng, seed, name);
}

bool kt_wants_level(lvr_cpu_level level)
{
    return only_level == LVR_CPU_LEVELS || only_level == level;
}

uint32_t kt_rounds(uint32_t n)
{
    return quick ? (n + QUICKER - 1) / QUICKER : n;
}

int kt_end(void)
{
    printf("%lu checks, %u failures\n", checks, failures);
    return failures != 0;
}

bool kt_check(bool ok, const char *fmt, ...)
{
    checks++;
    if (ok)
        return true;
    if (++failures > MAX_PRINTED)
        return false;
    va_list ap;
    va_start(ap, fmt);
    printf("FAIL ");
    vprintf(fmt, ap);
    printf("\n");
    va_end(ap);
    return false;
}

void *kt_alloc(size_t bytes)
{
    void *p = malloc(bytes != 0 ? bytes : 1);
    if (p != NULL)
        return p;
    fprintf(stderr, "no memory for %zu bytes\n", bytes);
    exit(1);
}

kt_buf kt_buf_new(size_t bytes, size_t skew)
{
    kt_buf b = {.bytes = bytes, .total = bytes + 2 * GUARD_BYTES + 64};
    b.base = aligned_alloc(64, (b.total + 63) / 64 * 64);
    if (b.base == NULL) {
        fprintf(stderr, "no memory for %zu bytes\n", b.total);
        exit(1);
    }
    memset(b.base, GUARD_BYTE, b.total);
    b.data = b.base + GUARD_BYTES + skew % 64;
    return b;
}

bool kt_buf_intact(const kt_buf *b)
{
    const unsigned char *data = b->data, *end = data + b->bytes;
    for (const unsigned char *p = b->base; p < data; p++)
        if (*p != GUARD_BYTE)
            return false;
    for (const unsigned char *p = end; p < b->base + b->total; p++)
        if (*p != GUARD_BYTE)
            return false;
    return true;
}

void kt_buf_free(kt_buf *b)
{
    free(b->base);
    b->base = NULL;
}

bool kt_same_floats(const float *a, const float *b, size_t n, size_t *ret_at)
{
    for (size_t i = 0; i < n; i++) {
        if (memcmp(&a[i], &b[i], sizeof *a) == 0 || (isnan(a[i]) && isnan(b[i])))
            continue;
        *ret_at = i;
        return false;
    }
    return true;
}

uint32_t kt_below(uint32_t n)
{
    return (uint32_t)lvr_rng_below(&kt_rng, n);
}

float kt_uniform(float lo, float hi)
{
    return lo + (hi - lo) * (float)lvr_rng_unit(&kt_rng);
}

static float any_sign(float magnitude)
{
    return kt_below(2) != 0 ? magnitude : -magnitude;
}

static float special(void)
{
    switch (kt_below(16)) {
    case 0:
        return NAN;
    case 1:
        return INFINITY;
    case 2:
        return -INFINITY;
    default:
        return (float)lvr_rng_normal(&kt_rng);
    }
}

static float shaped(kt_shape shape, float flat, size_t i)
{
    switch (shape) {
    case KT_NORMAL:
    case KT_SHAPES:
        break;
    case KT_FLAT:
        return any_sign(flat);
    case KT_ONE_SIGN:
        return i / 64 % 2 != 0 ? flat : -flat;
    case KT_ZERO:
        return any_sign(0.0f);
    case KT_SUBNORMAL:
        return any_sign((float)kt_below(1u << 23) * 0x1p-149f);
    case KT_TINY:
        return any_sign(ldexpf(kt_uniform(1.0f, 2.0f), -117 - (int)(i / 32 % 7)));
    case KT_HUGE:
        return any_sign(kt_below(8) == 0 ? FLT_MAX : kt_uniform(0.0f, FLT_MAX));
    case KT_OUTLIER:
        return any_sign(i % 32 == 7 ? 1e6f : kt_uniform(0.0f, 1.0f));
    case KT_TIES:
        return any_sign(i % 32 == 3 ? 127.0f : (float)kt_below(127) + 0.5f);
    case KT_SPECIAL:
        return special();
    }
    return (float)lvr_rng_normal(&kt_rng);
}

void kt_fill(kt_shape shape, float *x, size_t n)
{
    const float flat = kt_uniform(0.001f, 50.0f);
    for (size_t i = 0; i < n; i++)
        x[i] = shaped(shape, flat, i);
}

static uint16_t half_of_shape(kt_weights shape)
{
    switch (shape) {
    case KW_ZERO:
    case KW_LOWEST:
    case KW_HIGHEST:
    case KW_EXTREMES:
    case KW_RANDOM:
    case KW_SHAPES:
        break;
    case KW_SUBNORMAL:
        return (uint16_t)(kt_below(0x400) | kt_below(2) << 15);
    case KW_HUGE:
        return (uint16_t)(0x7bff | kt_below(2) << 15);
    case KW_WILD_SCALE:
        return (uint16_t)kt_below(0x10000);
    }
    return lvr_f32_to_f16((float)lvr_rng_normal(&kt_rng) * 0.02f);
}

static uint8_t code_of_shape(kt_weights shape, uint8_t zero, uint8_t lowest, uint8_t highest)
{
    switch (shape) {
    case KW_LOWEST:
        return lowest;
    case KW_HIGHEST:
        return highest;
    case KW_ZERO:
        return zero;
    case KW_EXTREMES:
        return kt_below(2) != 0 ? lowest : highest;
    case KW_RANDOM:
    case KW_SUBNORMAL:
    case KW_HUGE:
    case KW_WILD_SCALE:
    case KW_SHAPES:
        break;
    }
    return (uint8_t)kt_below(256);
}

/* A GGUF block or super-block: bytes, where its halves are, and the bytes that stand for zero, least and
 * greatest codes. Bytes of scales (K types) count as codes: 0xff is the greatest of the unsigned ones, -1 of
 * Q6_K's. */
typedef struct gguf_block {
    uint32_t bytes;
    int halves[2]; /* offsets; -1: none */
    uint8_t zero, lowest, highest;
} gguf_block;

static const gguf_block gguf_blocks[LVR_WTYPE_SLOTS] = {
    [LVR_Q4_0] = {18, {0, -1}, 0x88, 0x00, 0xff}, [LVR_Q4_1] = {20, {0, 2}, 0x00, 0x00, 0xff},
    [LVR_Q5_0] = {22, {0, -1}, 0x00, 0x00, 0xff}, [LVR_Q5_1] = {24, {0, 2}, 0x00, 0x00, 0xff},
    [LVR_Q8_0] = {34, {0, -1}, 0x00, 0x80, 0x7f}, [LVR_Q4_K] = {144, {0, 2}, 0x00, 0x00, 0xff},
    [LVR_Q5_K] = {176, {0, 2}, 0x00, 0x00, 0xff}, [LVR_Q6_K] = {210, {208, -1}, 0x00, 0x80, 0xff},
};

static void fill_blocks(kt_weights shape, uint8_t *rows, size_t bytes, const gguf_block *block)
{
    for (size_t i = 0; i < bytes; i += block->bytes) {
        for (size_t j = 0; j < block->bytes; j++)
            rows[i + j] = code_of_shape(shape, block->zero, block->lowest, block->highest);
        for (int n = 0; n < 2 && block->halves[n] >= 0; n++) {
            const uint16_t half = half_of_shape(shape);
            memcpy(rows + i + block->halves[n], &half, sizeof half);
        }
    }
}

static float weight_f32(kt_weights shape)
{
    if (shape == KW_ZERO)
        return any_sign(0.0f);
    if (shape == KW_SUBNORMAL)
        return any_sign((float)kt_below(1u << 23) * 0x1p-149f);
    if (shape == KW_HUGE)
        return any_sign(FLT_MAX);
    return shape == KW_WILD_SCALE ? special() : (float)lvr_rng_normal(&kt_rng);
}

void kt_fill_weights(lvr_wtype t, kt_weights shape, uint8_t *rows, size_t bytes)
{
    if (gguf_blocks[t].bytes != 0) {
        fill_blocks(shape, rows, bytes, &gguf_blocks[t]);
        return;
    }
    for (size_t i = 0; i < bytes; i += t == LVR_F32 ? 4 : 2) {
        const float f = weight_f32(shape);
        const uint16_t h = shape == KW_ZERO ? lvr_f32_to_f16(f) : half_of_shape(shape);
        if (t == LVR_F32)
            memcpy(rows + i, &f, sizeof f);
        else if (t == LVR_F16)
            memcpy(rows + i, &h, sizeof h);
        else /* the upper half of the float */
            memcpy(rows + i, (const uint8_t *)&f + 2, 2);
    }
}
