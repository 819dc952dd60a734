/*
 * CRC-32C. The processors' instructions take three cycles for 8 bytes but can begin one every cycle, so long
 * inputs are cut into blocks of three lanes that are summed side by side and joined.
 *
 * A CRC is the remainder of a polynomial over GF(2), held here with the coefficient of x^0 in the highest
 * bit. Appending n bytes to what a CRC was taken of multiplies it by x^(8n): that is how lanes and whole
 * inputs are joined. (Pre- and post-inversion cancel out in the sum of both parts.)
 */
#include "common/hash.h"

#include "common/crc32c_table.h"
#include <stdbool.h>
#include <string.h>
#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#define POLYNOMIAL UINT32_C(0x82f63b78)
#define ONE UINT32_C(0x80000000)    /* x^0 */
#define X_TO_8 UINT32_C(0x00800000) /* x^8 */
#define LANE_BYTES CRC32C_SHIFT_BYTES
#define LINE_BYTES 64u /* of a cache */

static uint32_t load_le32(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* The reference. */
static uint32_t crc32c_portable(uint32_t crc, const uint8_t *p, size_t n)
{
    for (; n >= 8; p += 8, n -= 8) {
        const uint32_t lo = crc ^ load_le32(p), hi = load_le32(p + 4);
        crc = crc32c_table[7][lo & 0xff] ^ crc32c_table[6][lo >> 8 & 0xff] ^
              crc32c_table[5][lo >> 16 & 0xff] ^ crc32c_table[4][lo >> 24] ^ crc32c_table[3][hi & 0xff] ^
              crc32c_table[2][hi >> 8 & 0xff] ^ crc32c_table[1][hi >> 16 & 0xff] ^ crc32c_table[0][hi >> 24];
    }
    for (; n > 0; p++, n--)
        crc = crc >> 8 ^ crc32c_table[0][(crc ^ *p) & 0xff];
    return crc;
}

#if defined(__x86_64__)
#define HARDWARE __attribute__((target("sse4.2")))

HARDWARE static inline uint64_t add_word(uint64_t crc, uint64_t word)
{
    return __builtin_ia32_crc32di(crc, word);
}

HARDWARE static inline uint32_t add_byte(uint32_t crc, uint8_t byte)
{
    return __builtin_ia32_crc32qi(crc, byte);
}

static bool has_hardware(void)
{
    return __builtin_cpu_supports("sse4.2");
}
#elif defined(__aarch64__) && defined(__AARCH64EL__)
#define HARDWARE

static inline uint64_t add_word(uint64_t crc, uint64_t word)
{
    __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(word));
    return crc;
}

static inline uint32_t add_byte(uint32_t crc, uint8_t byte)
{
    __asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(crc) : "r"((uint32_t)byte));
    return crc;
}

static bool has_hardware(void)
{
    return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
}
#endif

#if defined(HARDWARE)
/* The CRC after LANE_BYTES more zero bytes. */
static uint32_t shift_lane(uint32_t crc)
{
    uint32_t shifted = 0;
    for (uint32_t nibble = 0; nibble < 8; nibble++)
        shifted ^= crc32c_shift_table[nibble][crc >> (4 * nibble) & 0xf];
    return shifted;
}

static inline uint64_t load_word(const uint8_t *p)
{
    uint64_t word;
    memcpy(&word, p, sizeof word);
    return word;
}

/* Lanes are a page each, and processors do not fetch ahead across pages: so that is asked for. Past the end
 * of the input that does nothing. */
static inline void prefetch_next_block(const uint8_t *p)
{
    __builtin_prefetch(p + 3 * LANE_BYTES);
    __builtin_prefetch(p + 4 * LANE_BYTES);
    __builtin_prefetch(p + 5 * LANE_BYTES);
}

HARDWARE static uint32_t three_lanes(uint32_t crc, const uint8_t *p)
{
    uint64_t first = crc, second = 0, third = 0;
    for (const uint8_t *end = p + LANE_BYTES; p < end; p += LINE_BYTES) {
        prefetch_next_block(p);
        for (uint32_t i = 0; i < LINE_BYTES; i += 8) {
            first = add_word(first, load_word(p + i));
            second = add_word(second, load_word(p + i + LANE_BYTES));
            third = add_word(third, load_word(p + i + 2 * LANE_BYTES));
        }
    }
    return shift_lane(shift_lane((uint32_t)first) ^ (uint32_t)second) ^ (uint32_t)third;
}

HARDWARE static uint32_t crc32c_hardware(uint32_t crc, const uint8_t *p, size_t n)
{
    for (; n >= 3 * LANE_BYTES; p += 3 * LANE_BYTES, n -= 3 * LANE_BYTES)
        crc = three_lanes(crc, p);
    uint64_t wide = crc;
    for (; n >= 8; p += 8, n -= 8)
        wide = add_word(wide, load_word(p));
    crc = (uint32_t)wide;
    for (; n > 0; p++, n--)
        crc = add_byte(crc, *p);
    return crc;
}
#endif

uint32_t lvr_crc32c(uint32_t crc, const void *data, size_t n)
{
#if defined(HARDWARE)
    if (has_hardware())
        return ~crc32c_hardware(~crc, data, n);
#endif
    return ~crc32c_portable(~crc, data, n);
}

/* Product of two remainders. */
static uint32_t multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (; a != 0; a <<= 1) {
        product ^= b & (0 - (a >> 31));
        b = b >> 1 ^ (POLYNOMIAL & (0 - (b & 1)));
    }
    return product;
}

/* x^(8 n), by squaring. */
static uint32_t power(uint64_t n)
{
    uint32_t product = ONE;
    for (uint32_t square = X_TO_8; n != 0; n >>= 1) {
        if (n & 1)
            product = multiply(product, square);
        square = multiply(square, square);
    }
    return product;
}

uint32_t lvr_crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t len_b)
{
    return multiply(power(len_b), crc_a) ^ crc_b;
}
