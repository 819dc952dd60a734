/* CRC-32C: the processor's instructions, whole and joined, against the portable reference, over every length,
 * alignment and split that their blocks make different. A plain program that also runs under an emulator of
 * another processor (crc32c_arm64.sh). The source, not the header: both paths must be tested on one machine.
 */
#include "common/crc32c.c"

#include <stdio.h>
#include <stdlib.h>

#define BLOCK (3 * LANE_BYTES)
#define BUFFER_BYTES (4 * BLOCK + 64)

static unsigned n_failed;

static void check(bool ok, const char *what, size_t start, size_t n)
{
    if (ok)
        return;
    if (n_failed++ < 20)
        printf("FAIL: %s (start %zu, %zu bytes)\n", what, start, n);
}

static uint32_t reference(const uint8_t *p, size_t n)
{
    return ~crc32c_portable(~UINT32_C(0), p, n);
}

/* A whole and two parts of it, continued and combined. */
static void check_range(const uint8_t *data, size_t start, size_t n, size_t cut)
{
    const uint8_t *p = data + start;
    const uint32_t whole = reference(p, n);
    const uint32_t first = lvr_crc32c(0, p, cut), second = lvr_crc32c(0, p + cut, n - cut);
    check(lvr_crc32c(0, p, n) == whole, "whole", start, n);
    check(lvr_crc32c(first, p + cut, n - cut) == whole, "continued", start, n);
    check(lvr_crc32c_combine(first, second, n - cut) == whole, "combined", start, n);
}

/* RFC 3720, appendix B.4. */
static void check_published(void)
{
    static const uint8_t read_pdu[48] = {0x01, 0xc0, 0,    0,    0,    0, 0, 0, 0, 0, 0, 0, 0, 0,
                                         0,    0,    0x14, 0,    0,    0, 0, 0, 4, 0, 0, 0, 0, 0x14,
                                         0,    0,    0,    0x18, 0x28, 0, 0, 0, 0, 0, 0, 0, 2};
    uint8_t zeros[32] = {0}, ones[32], up[32], down[32];
    for (uint8_t i = 0; i < 32; i++) {
        ones[i] = 0xff;
        up[i] = i;
        down[i] = (uint8_t)(31 - i);
    }
    const struct {
        const void *data;
        size_t n;
        uint32_t crc;
    } vectors[] = {{zeros, 32, 0x8a9136aa},
                   {ones, 32, 0x62a8ab43},
                   {up, 32, 0x46dd794e},
                   {down, 32, 0x113fdb5c},
                   {read_pdu, 48, 0xd9963a56},
                   {"123456789", 9, 0xe3069283},
                   {"", 0, 0}};
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        check(lvr_crc32c(0, vectors[i].data, vectors[i].n) == vectors[i].crc, "published", i, vectors[i].n);
        check(reference(vectors[i].data, vectors[i].n) == vectors[i].crc, "published, portable", i,
              vectors[i].n);
    }
}

static uint32_t after_zeros(uint32_t crc, size_t n)
{
    for (size_t i = 0; i < 8 * n; i++)
        crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
    return crc;
}

static void check_tables(void)
{
    for (uint32_t i = 0; i < 256; i++)
        for (size_t k = 0; k < 8; k++)
            check(crc32c_table[k][i] == after_zeros(i, k + 1), "table", k, i);
    for (uint32_t i = 0; i < 16; i++)
        for (uint32_t k = 0; k < 8; k++)
            check(crc32c_shift_table[k][i] == after_zeros(i << 4 * k, CRC32C_SHIFT_BYTES), "shift table", k,
                  i);
}

/* Joining over lengths that nothing could be summed of. */
static void check_far(void)
{
    const uint32_t a = 0x12345678, b = 0x9abcdef0;
    check(lvr_crc32c_combine(a, b, 0) == (a ^ b), "no bytes", 0, 0);
    const uint64_t far = UINT64_C(3) << 40;
    const uint32_t once = lvr_crc32c_combine(a, 0, far + 12345);
    check(lvr_crc32c_combine(lvr_crc32c_combine(a, 0, far), 0, 12345) == once, "far", 0, 12345);
    check(lvr_crc32c_combine(a, 0, far + 12345) != lvr_crc32c_combine(a, 0, far + 12346), "far, other", 0, 1);
}

int main(void)
{
    uint8_t *data = malloc(BUFFER_BYTES);
    uint32_t x = 1;
    if (!data)
        return 1;
    for (size_t i = 0; i < BUFFER_BYTES; i++)
        data[i] = (uint8_t)((x = x * 1664525u + 1013904223u) >> 24);
    check_published();
    check_tables();
    check_far();
    for (size_t start = 0; start < 9; start++)
        for (size_t n = 0; n <= 300; n++)
            check_range(data, start, n, n / 3);
    for (size_t blocks = 1; blocks <= 3; blocks++)
        for (size_t start = 0; start < 9; start += 3)
            for (size_t around = 0; around <= 40; around++) {
                const size_t n = blocks * BLOCK - 20 + around;
                check_range(data, start, n, n / 2 + around);
                check_range(data, start, n, around);
            }
#if defined(HARDWARE)
    printf("instructions: %s\n", has_hardware() ? "used" : "this processor has none");
#else
    printf("instructions: none known for this processor\n");
#endif
    printf("%s\n", n_failed ? "FAILED" : "ok");
    free(data);
    return n_failed != 0;
}
