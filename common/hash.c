#include "common/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

static const uint32_t sha256_k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotr(uint32_t x, int k)
{
    return x >> k | x << (32 - k);
}

static uint32_t load_be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static void expand(const uint8_t block[64], uint32_t w[64])
{
    for (int i = 0; i < 16; i++)
        w[i] = load_be32(block + 4 * i);
    for (int i = 16; i < 64; i++) {
        const uint32_t s0 = rotr(w[i - 15], 7) ^ rotr(w[i - 15], 18) ^ w[i - 15] >> 3;
        const uint32_t s1 = rotr(w[i - 2], 17) ^ rotr(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
}

/* Names as in FIPS 180-4, section 6.2.2. */
static void compress_portable(uint32_t h[8], const uint8_t block[64])
{
    uint32_t w[64];
    expand(block, w);
    uint32_t a = h[0], b = h[1], c = h[2], d = h[3], e = h[4], f = h[5], g = h[6], hh = h[7];
    for (int i = 0; i < 64; i++) {
        const uint32_t s1 = rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25);
        const uint32_t t1 = hh + s1 + ((e & f) ^ (~e & g)) + sha256_k[i] + w[i];
        const uint32_t s0 = rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22);
        const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
        hh = g;
        g = f;
        f = e;
        e = d + t1;
        d = c;
        c = b;
        b = a;
        a = t1 + t2;
    }
    h[0] += a;
    h[1] += b;
    h[2] += c;
    h[3] += d;
    h[4] += e;
    h[5] += f;
    h[6] += g;
    h[7] += hh;
}

#if defined(__x86_64__)
static bool has_sha(void)
{
    unsigned a, b, c, d;
    return __builtin_cpu_supports("sse4.1") && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 &&
           (b >> 29 & 1) != 0;
}

/* Four rounds at a time. The instructions want the state as (a, b, e, f) and (c, d, g, h), high to low
 * (Intel SDM, SHA256RNDS2). */
__attribute__((target("sha,sse4.1"))) static void compress_sha(uint32_t h[8], const uint8_t block[64])
{
    const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    const __m128i badc = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(const void *)h), 0xb1);
    const __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(const void *)(h + 4)), 0x1b);
    const __m128i abef0 = _mm_alignr_epi8(badc, efgh, 8), cdgh0 = _mm_blend_epi16(efgh, badc, 0xf0);
    __m128i abef = abef0, cdgh = cdgh0, w[4];
    for (int i = 0; i < 16; i++) {
        __m128i *now = &w[i % 4];
        if (i < 4) {
            *now = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)(block + 16 * i)),
                                    big_endian);
        } else {
            const __m128i last = w[(i + 3) % 4], before = w[(i + 2) % 4];
            const __m128i sum =
                _mm_add_epi32(_mm_sha256msg1_epu32(*now, w[(i + 1) % 4]), _mm_alignr_epi8(last, before, 4));
            *now = _mm_sha256msg2_epu32(sum, last);
        }
        const __m128i k = _mm_loadu_si128((const __m128i *)(const void *)(sha256_k + 4 * i));
        const __m128i wk = _mm_add_epi32(*now, k);
        cdgh = _mm_sha256rnds2_epu32(cdgh, abef, wk);
        abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(wk, 0x0e));
    }
    const __m128i feba = _mm_shuffle_epi32(_mm_add_epi32(abef, abef0), 0x1b);
    const __m128i dchg = _mm_shuffle_epi32(_mm_add_epi32(cdgh, cdgh0), 0xb1);
    _mm_storeu_si128((__m128i *)(void *)h, _mm_blend_epi16(feba, dchg, 0xf0));
    _mm_storeu_si128((__m128i *)(void *)(h + 4), _mm_alignr_epi8(dchg, feba, 8));
}
#endif

typedef void (*compress_fn)(uint32_t h[8], const uint8_t block[64]);

static compress_fn choose_compress(void)
{
#if defined(__x86_64__)
    if (has_sha())
        return compress_sha;
#endif
    return compress_portable;
}

void lvr_sha256_init(lvr_sha256 *s)
{
    *s = (lvr_sha256){.h = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c,
                            0x1f83d9ab, 0x5be0cd19}};
}

void lvr_sha256_update(lvr_sha256 *s, const void *data, size_t n)
{
    const uint8_t *p = data;
    const compress_fn compress = choose_compress();
    while (n > 0) {
        const size_t used = (size_t)(s->n_bytes % 64);
        const size_t take = n < 64 - used ? n : 64 - used;
        if (take == 64)
            compress(s->h, p);
        else {
            memcpy(s->block + used, p, take);
            if (used + take == 64)
                compress(s->h, s->block);
        }
        s->n_bytes += take;
        p += take;
        n -= take;
    }
}

void lvr_sha256_hex(lvr_sha256 *s, char ret_hex[LVR_SHA256_HEX_BYTES])
{
    static const uint8_t pad[64] = {0x80};
    static const char digits[] = "0123456789abcdef";
    const uint64_t n_bits = s->n_bytes * 8;
    const size_t used = (size_t)(s->n_bytes % 64);
    lvr_sha256_update(s, pad, used < 56 ? 56 - used : 120 - used);
    uint8_t length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)(n_bits >> (56 - 8 * i));
    lvr_sha256_update(s, length, sizeof length);
    for (int i = 0; i < 64; i++)
        ret_hex[i] = digits[s->h[i / 8] >> (28 - 4 * (i % 8)) & 0xf];
    ret_hex[64] = '\0';
}

void lvr_sha256_mem_hex(const void *data, size_t n, char ret_hex[LVR_SHA256_HEX_BYTES])
{
    lvr_sha256 s;
    lvr_sha256_init(&s);
    lvr_sha256_update(&s, data, n);
    lvr_sha256_hex(&s, ret_hex);
}

static lvr_status hash_fd(int fd, const char *path, lvr_sha256 *s, lvr_error *err)
{
    uint8_t chunk[32768];
    for (;;) {
        const ssize_t n = read(fd, chunk, sizeof chunk);
        if (n == 0)
            return LVR_OK;
        if (n > 0)
            lvr_sha256_update(s, chunk, (size_t)n);
        else if (errno != EINTR)
            return lvr_fail_errno(err, errno, "%s: cannot read", path);
    }
}

lvr_status lvr_sha256_file_hex(const char *path, char ret_hex[LVR_SHA256_HEX_BYTES], lvr_error *err)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return lvr_fail_errno(err, errno, "%s: cannot open for reading", path);
    lvr_sha256 s;
    lvr_sha256_init(&s);
    const lvr_status status = hash_fd(fd, path, &s, err);
    close(fd);
    if (status == LVR_OK)
        lvr_sha256_hex(&s, ret_hex);
    return status;
}
