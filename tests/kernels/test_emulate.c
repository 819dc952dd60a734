/*
 * The model of AVX-512 and AMX (emulate/) itself: what it computes where it is not AVX2's own instruction,
 * against examples worked out by hand or in plain C, and that it reports each misuse of the tiles. A model
 * that forgave would prove nothing.
 */
#include "tests/kernels/emulate/emulate.h"
#include "tests/kernels/harness.h"

#include <stdio.h>

typedef struct config {
    _Alignas(64) uint8_t palette;
    uint8_t start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} config;

static uint8_t any_byte(void)
{
    return (uint8_t)kt_below(256);
}

/* ---- AVX-512 ---- */

static int32_t lane(__m512i v, int i)
{
    int32_t lanes[16];
    memcpy(lanes, &v, sizeof lanes);
    return lanes[i];
}

static void check_dpbusd(void)
{
    const __m512i least =
        _mm512_dpbusd_epi32(_mm512_set1_epi32(7), _mm512_set1_epi8((char)255), _mm512_set1_epi8((char)-128));
    kt_check(lane(least, 9) == 7 - 4 * 255 * 128, "255 * -128, four times, on top of 7: %d", lane(least, 9));
    const __m512i most =
        _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8((char)255), _mm512_set1_epi8(127));
    kt_check(lane(most, 15) == 4 * 255 * 127, "255 * 127, four times: %d", lane(most, 15));
    /* bytes 1, 2, 3, 200 (unsigned) times 10, -20, 30, -40 (signed), lowest first */
    const __m512i mixed = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi32((int32_t)0xc8030201),
                                              _mm512_set1_epi32((int32_t)0xd81eec0a));
    kt_check(lane(mixed, 0) == 10 - 40 + 90 - 8000, "unsigned and signed bytes: %d", lane(mixed, 0));
}

static void check_look_up(void)
{
    uint32_t index[16], table[16];
    for (int i = 0; i < 16; i++) {
        index[i] = (uint32_t)lvr_rng_u64(&kt_rng);
        table[i] = (uint32_t)lvr_rng_u64(&kt_rng);
    }
    const __m512i found = _mm512_permutexvar_epi32(_mm512_loadu_si512(index), _mm512_loadu_si512(table));
    for (int i = 0; i < 16; i++)
        kt_check((uint32_t)lane(found, i) == table[index[i] & 15u], "VPERMD, %d", i);
}

static void check_narrowing(void)
{
    const int32_t from[16] = {0, 1, -1, 127, 128, -128, -129, INT32_MAX, INT32_MIN, 300, -300, 5, 6, 7, 8, 9};
    const int8_t want[16] = {0, 1, -1, 127, 127, -128, -128, 127, -128, 127, -128, 5, 6, 7, 8, 9};
    const __m128i to = _mm512_cvtsepi32_epi8(_mm512_loadu_si512(from));
    kt_check(memcmp(&to, want, sizeof want) == 0, "VPMOVSDB saturates");
}

static void check_masked_memory(void)
{
    float *three = kt_alloc(3 * sizeof(float)); /* a sanitizer sees a read beyond */
    float back[16];
    for (int i = 0; i < 3; i++)
        three[i] = (float)i + 1;
    _mm512_storeu_ps(back, _mm512_maskz_loadu_ps(7, three));
    kt_check(back[2] == 3 && back[3] == 0 && back[15] == 0, "VMOVUPS under a mask loads what it covers");
    _mm512_mask_storeu_ps(three, 5, _mm512_set1_ps(9));
    kt_check(three[0] == 9 && three[1] == 2 && three[2] == 9, "VMOVUPS under a mask stores what it covers");
    free(three);
}

/* ---- tiles ---- */

static config config_of(unsigned rows, unsigned depth, unsigned outputs)
{
    config c = {.palette = 1};
    const uint8_t shape[3][2] = {{rows, outputs}, {rows, depth / 4}, {depth / 4, outputs}};
    for (int t = 0; t < 3; t++) {
        c.rows[t] = shape[t][0];
        c.row_bytes[t] = (uint16_t)(4 * shape[t][1]);
    }
    return c;
}

static void check_tile_product(unsigned rows, unsigned depth, unsigned outputs)
{
    int8_t a[16][64], b[16][64];
    int32_t sums[16][16];
    const config c = config_of(rows, depth, outputs);
    for (int i = 0; i < 16 * 64; i++) {
        a[i / 64][i % 64] = (int8_t)any_byte();
        b[i / 64][i % 64] = (int8_t)any_byte();
    }
    memset(sums, 0x55, sizeof sums);
    _tile_loadconfig(&c);
    _tile_zero(0);
    _tile_loadd(1, a, 64);
    _tile_loadd(2, b, 64);
    _tile_dpbssd(0, 1, 2);
    _tile_stored(0, sums, 64);
    _tile_release();
    for (unsigned r = 0; r < 16; r++)
        for (unsigned o = 0; o < 16; o++) {
            int32_t want = 0;
            for (unsigned k = 0; k < depth; k++)
                want += a[r][k] * b[k / 4][4 * o + k % 4];
            want = r < rows && o < outputs ? want : 0x55555555;
            kt_check(sums[r][o] == want, "tiles %u x %u x %u, sum %u, %u: %d, not %d", rows, depth, outputs,
                     r, o, sums[r][o], want);
        }
    kt_check(emu_take_faults() == 0, "a right use of tiles is no fault");
}

static void expect_fault(const char *what)
{
    kt_check(emu_take_faults() != 0, "%s is a fault", what);
}

static void check_config_faults(void)
{
    static const struct {
        int offset;
        uint8_t value;
        const char *what;
    } wrong[] = {{0, 2, "another palette"},       {1, 1, "a start row"},
                 {5, 1, "a reserved byte"},       {16, 65, "rows of 65 bytes"},
                 {40, 1, "a ninth tile's bytes"}, {48, 17, "17 rows"},
                 {48, 0, "bytes without rows"},   {60, 1, "a thirteenth tile's rows"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        config c = config_of(16, 32, 16);
        memcpy((uint8_t *)&c + wrong[i].offset, &wrong[i].value, 1);
        _tile_loadconfig(&c);
        expect_fault(wrong[i].what);
    }
    const config good = config_of(16, 32, 16);
    _tile_loadconfig(NULL);
    expect_fault("no configuration");
    _Alignas(64) uint8_t room[128];
    memcpy(room + 4, &good, sizeof good);
    _tile_loadconfig(room + 4);
    expect_fault("a configuration across cache lines");
    _tile_zero(0);
    expect_fault("a tile that was never configured");
}

static void check_use_faults(void)
{
    config c = config_of(16, 32, 16);
    c.rows[3] = 4; /* a right-hand tile of another depth */
    c.row_bytes[3] = 64;
    _tile_loadconfig(&c);
    _tile_zero(7);
    expect_fault("a tile outside the configuration");
    _tile_dpbssd(0, 1, 3);
    expect_fault("a product of depths 32 and 16");
    _tile_dpbssd(0, 2, 1);
    expect_fault("a product with its operands exchanged");
    _tile_dpbssd(0, 0, 2);
    expect_fault("a product into its own operand");
    kt_check(emu_take_faults() == 0, "no fault is left");
    _tile_release();
    _tile_dpbssd(0, 1, 2);
    expect_fault("a product after the release");
    _Alignas(64) uint8_t room[128];
    _mm512_store_ps(room + 4, _mm512_setzero_ps());
    expect_fault("an aligned store at another address");
}

int main(int argc, char **argv)
{
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
        !__builtin_cpu_supports("f16c")) {
        printf("the model needs AVX2, FMA and F16C: skipped\n");
        return 77;
    }
    kt_begin(argc, argv, "test_emulate");
    check_dpbusd();
    for (int i = 0; i < 20; i++)
        check_look_up();
    check_narrowing();
    check_masked_memory();
    for (unsigned i = 0; i < 200; i++)
        check_tile_product(1 + kt_below(16), 4 * (1 + kt_below(16)), 1 + kt_below(16));
    check_config_faults();
    check_use_faults();
    return kt_end();
}
