/* The source, not the header: the portable path must be tested where the machine would take the other one. */
#include "common/hash.c"

#include "common/fs.h"
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

static void check_sha256(const char *text, const char *expected)
{
    char hex[LVR_SHA256_HEX_BYTES];
    lvr_sha256_mem_hex(text, strlen(text), hex);
    cr_assert_str_eq(hex, expected);
}

/* FIPS 180-4 examples, as published by NIST. */
Test(sha256, published_vectors)
{
    check_sha256("", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    check_sha256("abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    check_sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
                 "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    check_sha256(
        "abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsm"
        "nopqrstnopqrstu",
        "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
}

Test(sha256, a_million_a_in_odd_pieces)
{
    char piece[977];
    memset(piece, 'a', sizeof piece);
    lvr_sha256 s;
    lvr_sha256_init(&s);
    for (size_t left = 1000000; left > 0;) {
        const size_t n = left < sizeof piece ? left : sizeof piece;
        lvr_sha256_update(&s, piece, n);
        left -= n;
    }
    char hex[LVR_SHA256_HEX_BYTES];
    lvr_sha256_hex(&s, hex);
    cr_assert_str_eq(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

/* The machine's instructions, where it has them, against plain C. */
Test(sha256, compressions_agree)
{
    uint8_t block[64];
    uint32_t a[8], b[8];
    uint32_t x = 1;
    for (int i = 0; i < 1000; i++) {
        for (size_t k = 0; k < 64; k++)
            block[k] = (uint8_t)((x = x * 1664525u + 1013904223u) >> 24);
        for (size_t k = 0; k < 8; k++)
            a[k] = b[k] = x = x * 1664525u + 1013904223u;
        compress_portable(a, block);
        choose_compress()(b, block);
        cr_assert_eq(memcmp(a, b, sizeof a), 0, "block %d", i);
    }
}

Test(sha256, files)
{
    char path[] = "/tmp/lvr-hash-XXXXXX";
    char hex[LVR_SHA256_HEX_BYTES] = "untouched";
    lvr_error err = LVR_ERROR_INIT;
    const int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    cr_assert_eq(lvr_pwrite_all(fd, "abc", 3, 0, path, &err), LVR_OK);
    close(fd);
    cr_assert_eq(lvr_sha256_file_hex(path, hex, &err), LVR_OK);
    cr_assert_str_eq(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    unlink(path);
    snprintf(hex, sizeof hex, "untouched");
    cr_assert_eq(lvr_sha256_file_hex(path, hex, &err), LVR_ERR_IO);
    cr_assert_eq(lvr_sha256_file_hex("/", hex, &err), LVR_ERR_IO);
    cr_assert_str_eq(hex, "untouched");
}

static void check_crc(const uint8_t *data, size_t n, uint32_t expected)
{
    cr_assert_eq(lvr_crc32c(0, data, n), expected);
    cr_assert_eq(~crc32c_portable(~UINT32_C(0), data, n), expected);
}

/* RFC 3720, appendix B.4. */
Test(crc32c, published_vectors)
{
    uint8_t data[32];
    memset(data, 0, 32);
    check_crc(data, 32, 0x8a9136aa);
    memset(data, 0xff, 32);
    check_crc(data, 32, 0x62a8ab43);
    for (int i = 0; i < 32; i++)
        data[i] = (uint8_t)i;
    check_crc(data, 32, 0x46dd794e);
    for (int i = 0; i < 32; i++)
        data[i] = (uint8_t)(31 - i);
    check_crc(data, 32, 0x113fdb5c);
    static const uint8_t read_pdu[48] = {0x01, 0xc0, 0,    0,    0,    0, 0, 0, 0, 0, 0, 0, 0, 0,
                                         0,    0,    0x14, 0,    0,    0, 0, 0, 4, 0, 0, 0, 0, 0x14,
                                         0,    0,    0,    0x18, 0x28, 0, 0, 0, 0, 0, 0, 0, 2};
    check_crc(read_pdu, 48, 0xd9963a56);
    check_crc((const uint8_t *)"123456789", 9, 0xe3069283);
    check_crc(data, 0, 0);
}

Test(crc32c, paths_agree_at_every_length_alignment_and_split)
{
    uint8_t data[300];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * 131 + (i >> 3));
    for (size_t start = 0; start < 9; start++)
        for (size_t n = 0; n + start <= 280; n++) {
            const uint32_t whole = lvr_crc32c(0, data + start, n);
            cr_assert_eq(~crc32c_portable(~UINT32_C(0), data + start, n), whole);
            const uint32_t first = lvr_crc32c(0, data + start, n / 3);
            cr_assert_eq(lvr_crc32c(first, data + start + n / 3, n - n / 3), whole);
        }
}

Test(crc32c, tables_follow_from_the_polynomial)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int k = 0; k < 8; k++) {
            for (int bit = 0; bit < 8; bit++)
                crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
            cr_assert_eq(crc32c_table[k][i], crc);
        }
    }
}
