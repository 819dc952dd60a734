/* Wrong GGUF files: a row for each kind of mistake, with the words of the message that tell it from the
 * others. Models that are wrong as models are in gguf_shape.c. */
#include "engine/gguf.h"
#include "tests/unit/gguf_builder.h"
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY                                                                                                  \
    "\3\0\0\0\0\0\0\0"                                                                                       \
    "abc"
#define T(n) n "\0\0\0"
#define N8(n) n "\0\0\0\0\0\0\0"
#define HUGE_N "\0\0\0\0\0\0\0\x80"
#define BYTES(literal) literal, sizeof(literal) - 1

static const struct {
    const char *name;
    uint64_t n_tensors, n_kv;
    const char *bytes;
    size_t n;
    lvr_status status;
    const char *says;
} wrong_headers[] = {
    {"2^63 keys", 0, 1ull << 63, BYTES(""), LVR_ERR_FORMAT, "metadata keys"},
    {"more keys than bytes", 0, 1000, BYTES(KEY T("\4") T("\1")), LVR_ERR_FORMAT, "metadata keys"},
    {"2^63 tensors", 1ull << 63, 0, BYTES(""), LVR_ERR_FORMAT, "tensors in"},
    {"2^64-1 tensors", UINT64_MAX, 0, BYTES(""), LVR_ERR_FORMAT, "tensors in"},
    {"key length 2^63", 0, 1, BYTES(HUGE_N "abcdefgh"), LVR_ERR_FORMAT, "string of"},
    {"key length 2^64-1", 0, 1,
     BYTES("\xff\xff\xff\xff\xff\xff\xff\xff"
           "abcdefgh"),
     LVR_ERR_FORMAT, "string of"},
    {"key longer than the file", 0, 1,
     BYTES("\xff\0\0\0\0\0\0\0"
           "abcdefgh"),
     LVR_ERR_FORMAT, "truncated"},
    {"empty key", 0, 1, BYTES(N8("\0") T("\4") T("\1")), LVR_ERR_FORMAT, "empty name"},
    {"key with a NUL", 0, 1,
     BYTES("\3\0\0\0\0\0\0\0"
           "a\0c" T("\4") T("\1")),
     LVR_ERR_FORMAT, "printable"},
    {"key with an escape", 0, 1,
     BYTES("\3\0\0\0\0\0\0\0"
           "a\033c" T("\4") T("\1")),
     LVR_ERR_FORMAT, "0x1b"},
    {"value type 13", 0, 1, BYTES(KEY T("\15") "12345678"), LVR_ERR_FORMAT, "type 13"},
    {"value type 2^32-1", 0, 1,
     BYTES(KEY "\xff\xff\xff\xff"
               "12345678"),
     LVR_ERR_FORMAT, "type 4294967295"},
    {"value cut", 0, 1, BYTES(KEY T("\12") "1234567"), LVR_ERR_FORMAT, "truncated"},
    {"boolean 2", 0, 1, BYTES(KEY T("\7") "\2"), LVR_ERR_FORMAT, "boolean"},
    {"string length 2^63", 0, 1, BYTES(KEY T("\10") HUGE_N "abc"), LVR_ERR_FORMAT, "string of"},
    {"string of 1 GiB", 0, 1,
     BYTES(KEY T("\10") "\0\0\0\x40\0\0\0\0"
                        "abc"),
     LVR_ERR_FORMAT, "string of"},
    {"string longer than the file", 0, 1, BYTES(KEY T("\10") N8("\4") "abc"), LVR_ERR_FORMAT, "truncated"},
    {"array of 2^63", 0, 1, BYTES(KEY T("\11") T("\4") HUGE_N "1234"), LVR_ERR_FORMAT, "elements"},
    {"array whose bytes overflow", 0, 1,
     BYTES(KEY T("\11") T("\12") "\1\0\0\0\0\0\0\x20"
                                 "12345678"),
     LVR_ERR_FORMAT, "elements"},
    {"array longer than the file", 0, 1, BYTES(KEY T("\11") T("\4") N8("\2") "1234"), LVR_ERR_FORMAT,
     "elements"},
    {"array of strings of 2^63", 0, 1, BYTES(KEY T("\11") T("\10") HUGE_N "12345678"), LVR_ERR_FORMAT,
     "elements"},
    {"array of strings, one too long", 0, 1, BYTES(KEY T("\11") T("\10") N8("\1") N8("\x7f") "abc"),
     LVR_ERR_FORMAT, "truncated"},
    {"array of element type 13", 0, 1, BYTES(KEY T("\11") T("\15") N8("\1") "12345678"), LVR_ERR_FORMAT,
     "elements of type 13"},
    {"array of element type 2^32-1", 0, 1, BYTES(KEY T("\11") "\xff\xff\xff\xff" N8("\1") "12345678"),
     LVR_ERR_FORMAT, "elements of type"},
    {"array of arrays", 0, 1, BYTES(KEY T("\11") T("\11") N8("\1") T("\4") N8("\1") "1234"),
     LVR_ERR_UNSUPPORTED, "array of arrays"},
    {"array of booleans with a 9", 0, 1, BYTES(KEY T("\11") T("\7") N8("\3") "\1\0\x9"), LVR_ERR_FORMAT,
     "boolean"},
    {"duplicate keys", 0, 2, BYTES(KEY T("\4") "1234" KEY T("\4") "1234"), LVR_ERR_FORMAT,
     "abc occurs twice"},
    {"alignment of type u64", 0, 1,
     BYTES("\x11\0\0\0\0\0\0\0"
           "general.alignment" T("\12") N8("\x20")),
     LVR_ERR_FORMAT, "u32"},
    {"alignment of type string", 0, 1,
     BYTES("\x11\0\0\0\0\0\0\0"
           "general.alignment" T("\10") N8("\1") "x"),
     LVR_ERR_FORMAT, "u32"},
    {"alignment 0", 0, 1,
     BYTES("\x11\0\0\0\0\0\0\0"
           "general.alignment" T("\4") T("\0")),
     LVR_ERR_FORMAT, "power of two"},
    {"alignment 24", 0, 1,
     BYTES("\x11\0\0\0\0\0\0\0"
           "general.alignment" T("\4") T("\x18")),
     LVR_ERR_FORMAT, "power of two"},
    {"alignment 4", 0, 1,
     BYTES("\x11\0\0\0\0\0\0\0"
           "general.alignment" T("\4") T("\4")),
     LVR_ERR_FORMAT, "power of two"},
    {"alignment 2^30", 0, 1,
     BYTES("\x11\0\0\0\0\0\0\0"
           "general.alignment" T("\4") "\0\0\0\x40"),
     LVR_ERR_FORMAT, "power of two"},
    {"a part of a split model", 0, 1,
     BYTES("\xb\0\0\0\0\0\0\0"
           "split.count" T("\2") "\3\0"),
     LVR_ERR_UNSUPPORTED, "one of 3 parts"},
    {"one tensor, none there", 1, 0, BYTES(""), LVR_ERR_FORMAT, "tensors in"},
    {"tensor name cut", 1, 0, BYTES(N8("\x30") "abcdefghijklmnopqrstuvwxyzabcdefgh"), LVR_ERR_FORMAT,
     "truncated"},
    {"tensor name length 2^63", 1, 0, BYTES(HUGE_N "abcdefghijklmnopqrstuvwxyzabcdefgh"), LVR_ERR_FORMAT,
     "string of"},
};

static lvr_status open_bytes(const lvr_buf *b, lvr_error *err)
{
    lvr_gguf *g = NULL;
    const lvr_status status = lvr_gguf_open_mem("test.gguf", b->data, b->len, b->len, false, &g, err);
    cr_assert_eq(status == LVR_OK, g != NULL);
    lvr_gguf_free(g);
    return status;
}

static void expect_refused(const char *name, const lvr_buf *b, lvr_status expected, const char *says)
{
    lvr_error err = LVR_ERROR_INIT;
    const lvr_status status = open_bytes(b, &err);
    cr_expect_eq(status, expected, "%s: %s: %s", name, lvr_status_name(status), err.msg);
    cr_expect(strstr(err.msg, says) != NULL, "%s: \"%s\" does not say \"%s\"", name, err.msg, says);
    cr_expect(strncmp(err.msg, "test.gguf: ", 11) == 0, "%s: \"%s\" does not name the file", name, err.msg);
}

Test(gguf_malformed, refuses_wrong_headers)
{
    for (size_t i = 0; i < sizeof wrong_headers / sizeof *wrong_headers; i++) {
        lvr_buf b = LVR_BUF_INIT;
        gguf_put_head(&b, wrong_headers[i].n_tensors, wrong_headers[i].n_kv);
        lvr_buf_append(&b, wrong_headers[i].bytes, wrong_headers[i].n);
        expect_refused(wrong_headers[i].name, &b, wrong_headers[i].status, wrong_headers[i].says);
        lvr_buf_free(&b);
    }
}

struct tensor_row {
    const char *name;
    uint32_t n_dims;
    uint64_t dims[5];
    uint32_t type;
    uint64_t offset;
};

static const struct {
    const char *name;
    uint32_t n;
    struct tensor_row rows[2];
    uint64_t data_bytes;
    lvr_status status;
    const char *says;
} wrong_tensors[] = {
    {"no dimensions", 1, {{"aaaaaaaaaa", 0, {0}, 0, 0}}, 64, LVR_ERR_FORMAT, "0 dimensions"},
    {"five dimensions", 1, {{"a", 5, {1, 1, 1, 1, 1}, 0, 0}}, 64, LVR_ERR_FORMAT, "5 dimensions"},
    {"zero dimension", 1, {{"a", 2, {0, 4}, 0, 0}}, 64, LVR_ERR_FORMAT, "dimension 0 is 0"},
    {"dimension 2^63", 1, {{"a", 2, {1ull << 63, 2}, 0, 0}}, 64, LVR_ERR_FORMAT, "dimension 0 is"},
    {"dimension 2^64-1", 1, {{"a", 1, {UINT64_MAX}, 0, 0}}, 64, LVR_ERR_FORMAT, "dimension 0 is"},
    {"product of dimensions overflows",
     1,
     {{"a", 4, {1, 0x7fffffff, 0x7fffffff, 0x7fffffff}, 0, 0}},
     64,
     LVR_ERR_FORMAT,
     "overflows"},
    {"bytes overflow", 1, {{"a", 3, {0x7fffffff, 0x7fffffff, 4}, 0, 0}}, 64, LVR_ERR_FORMAT, "overflows"},
    {"rows that do not fill blocks",
     1,
     {{"a", 2, {33, 2}, LVR_Q8_0, 0}},
     64,
     LVR_ERR_FORMAT,
     "whole blocks of"},
    {"type Q2_K", 1, {{"a", 1, {256}, 10, 0}}, 84, LVR_ERR_UNSUPPORTED, "weights of type Q2_K"},
    {"type IQ4_XS",
     1,
     {{"a", 1, {256}, 23, 0}},
     136,
     LVR_ERR_UNSUPPORTED,
     "IQ4_XS are not supported: convert"},
    {"type TQ1_0", 1, {{"a", 1, {256}, 34, 0}}, 64, LVR_ERR_UNSUPPORTED, "to one of F32, F16, Q4_0, Q4_1"},
    {"type MXFP4", 1, {{"a", 1, {32}, 39, 0}}, 64, LVR_ERR_UNSUPPORTED, "MXFP4"},
    {"half a super-block", 1, {{"a", 1, {128}, 12, 0}}, 144, LVR_ERR_FORMAT, "whole blocks of Q4_K"},
    {"type 2^31", 1, {{"a", 1, {32}, 1u << 31, 0}}, 64, LVR_ERR_UNSUPPORTED, "type number 2147483648"},
    {"unaligned offset", 1, {{"a", 1, {4}, 0, 8}}, 64, LVR_ERR_FORMAT, "alignment"},
    {"data past the end", 1, {{"a", 1, {17}, 0, 0}}, 64, LVR_ERR_FORMAT, "4 are missing"},
    {"offset past the end", 1, {{"a", 1, {1}, 0, 1 << 20}}, 64, LVR_ERR_FORMAT, "1048516 are missing"},
    {"offset that overflows", 1, {{"a", 1, {8}, 0, UINT64_MAX - 31}}, 64, LVR_ERR_FORMAT, "overflows"},
    {"overlapping tensors",
     2,
     {{"a", 1, {16}, 0, 0}, {"b", 1, {8}, 0, 32}},
     64,
     LVR_ERR_FORMAT,
     "a and b overlap"},
    {"the same data twice", 2, {{"a", 1, {8}, 0, 0}, {"b", 1, {8}, 0, 0}}, 64, LVR_ERR_FORMAT, "overlap"},
    {"a hole between tensors",
     2,
     {{"a", 1, {8}, 0, 0}, {"b", 1, {8}, 0, 64}},
     96,
     LVR_ERR_FORMAT,
     "tensor b begins at byte 160, expected 128, where tensor a"},
    {"a hole before the tensors",
     1,
     {{"a", 1, {8}, 0, 32}},
     64,
     LVR_ERR_FORMAT,
     "a, has offset 32, expected 0"},
    {"data left over", 1, {{"a", 1, {8}, 0, 0}}, 33, LVR_ERR_FORMAT, "the tensors end at byte 96 of 97"},
    {"duplicate names", 2, {{"a", 1, {8}, 0, 0}, {"a", 1, {8}, 0, 32}}, 64, LVR_ERR_FORMAT, "a occurs twice"},
    {"name with a newline", 1, {{"a\nb", 1, {8}, 0, 0}}, 64, LVR_ERR_FORMAT, "0x0a"},
};

Test(gguf_malformed, refuses_wrong_tensor_tables)
{
    for (size_t i = 0; i < sizeof wrong_tensors / sizeof *wrong_tensors; i++) {
        lvr_buf b = LVR_BUF_INIT;
        gguf_put_head(&b, wrong_tensors[i].n, 0);
        for (uint32_t r = 0; r < wrong_tensors[i].n; r++) {
            const struct tensor_row *t = &wrong_tensors[i].rows[r];
            gguf_put_tensor(&b, t->name, t->n_dims, t->dims, t->type, t->offset);
        }
        gguf_pad(&b, 32);
        for (uint64_t k = 0; k < wrong_tensors[i].data_bytes; k++)
            lvr_buf_append(&b, "", 1);
        expect_refused(wrong_tensors[i].name, &b, wrong_tensors[i].status, wrong_tensors[i].says);
        lvr_buf_free(&b);
    }
}

#define VALUE_BYTES 12u

static uint32_t align_up(uint32_t n, uint32_t align)
{
    return (n + align - 1) / align * align;
}

/* Two tensors laid out for one alignment in a file that states another (0: none). *ret_header_bytes: what
 * comes before them. */
static lvr_status open_aligned(uint32_t written, uint32_t stated, uint32_t n_pad, uint32_t *ret_header_bytes,
                               lvr_error *err)
{
    static const uint64_t dims[] = {VALUE_BYTES / 4};
    lvr_buf b = LVR_BUF_INIT;
    char text[64];
    snprintf(text, sizeof text, "%*s", (int)n_pad, ""); /* moves the header's end */
    gguf_put_head(&b, 2, 2);
    gguf_put_kv_u32(&b, stated > 0 ? "general.alignment" : "some.key", stated);
    gguf_put_kv_str(&b, "pad", text);
    gguf_put_tensor(&b, "a", 1, dims, LVR_F32, 0);
    gguf_put_tensor(&b, "b", 1, dims, LVR_F32, align_up(VALUE_BYTES, written));
    *ret_header_bytes = (uint32_t)b.len;
    for (uint32_t i = 0; i < 2; i++) {
        gguf_pad(&b, written);
        lvr_buf_append(&b, "12345678abcd", VALUE_BYTES);
    }
    gguf_pad(&b, written);
    const lvr_status status = open_bytes(&b, err);
    lvr_buf_free(&b);
    return status;
}

Test(gguf_malformed, a_wrong_alignment_is_refused)
{
    uint32_t header = 0;
    for (uint32_t n_pad = 0; n_pad < 64; n_pad++)
        for (uint32_t written = 8; written <= 64; written *= 2)
            for (uint32_t stated = 8; stated <= 64; stated *= 2) {
                lvr_error err = LVR_ERROR_INIT;
                const lvr_status status = open_aligned(written, stated, n_pad, &header, &err);
                const bool same = align_up(header, written) == align_up(header, stated) &&
                                  align_up(VALUE_BYTES, written) == align_up(VALUE_BYTES, stated);
                cr_expect_eq(status, same ? LVR_OK : LVR_ERR_FORMAT, "%u as %u, %u: %s", written, stated,
                             n_pad, err.msg);
            }
    lvr_error err = LVR_ERROR_INIT;
    cr_expect_eq(open_aligned(32, 0, 0, &header, &err), LVR_OK, "%s", err.msg);
    cr_expect_eq(open_aligned(64, 0, 0, &header, &err), LVR_ERR_FORMAT);
    cr_expect(strstr(err.msg, "general.alignment") != NULL, "%s", err.msg);
}

static const struct {
    const char *name;
    const char *bytes;
    size_t n;
    lvr_status status;
    const char *says;
} wrong_starts[] = {
    {"empty", BYTES(""), LVR_ERR_FORMAT, "empty"},
    {"three bytes", BYTES("GGU"), LVR_ERR_FORMAT, "truncated"},
    {"magic only", BYTES("GGUF"), LVR_ERR_FORMAT, "truncated"},
    {"text", BYTES("<html>not found</html>  "), LVR_ERR_FORMAT, "not a GGUF file"},
    {"zeros", BYTES("\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"), LVR_ERR_FORMAT,
     "incomplete download"},
    {"a pack", BYTES("LVRPACK\0\1\0\0\0\1\0\0\0\0\0\0\0\0\0\0\0"), LVR_ERR_FORMAT, "pack"},
    {"version 0", BYTES("GGUF\0\0\0\0" N8("\0") N8("\0")), LVR_ERR_FORMAT, "version 0"},
    {"version 1", BYTES("GGUF\1\0\0\0" N8("\0") N8("\0")), LVR_ERR_UNSUPPORTED, "version 1 is outdated"},
    {"version 4", BYTES("GGUF\4\0\0\0" N8("\0") N8("\0")), LVR_ERR_UNSUPPORTED, "version 4 is newer"},
    {"big endian", BYTES("GGUF\0\0\0\3" N8("\0") N8("\0")), LVR_ERR_UNSUPPORTED, "big-endian"},
    {"counts cut", BYTES("GGUF\3\0\0\0" N8("\0") "\0\0\0"), LVR_ERR_FORMAT, "truncated"},
};

Test(gguf_malformed, refuses_wrong_starts)
{
    for (size_t i = 0; i < sizeof wrong_starts / sizeof *wrong_starts; i++) {
        lvr_buf b = LVR_BUF_INIT;
        lvr_buf_append(&b, wrong_starts[i].bytes, wrong_starts[i].n);
        expect_refused(wrong_starts[i].name, &b, wrong_starts[i].status, wrong_starts[i].says);
        lvr_buf_free(&b);
    }
}
