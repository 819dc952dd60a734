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
