/* The GGUF reader on sound, wrong, truncated and flipped files. */
#include "common/fs.h"
#include "engine/pack.h"
#include "engine/tokenizer/tokenizer.h"
#include "tests/unit/gguf_builder.h"
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char path[64];

static void setup(void)
{
    snprintf(path, sizeof path, "/tmp/lvr-gguf-XXXXXX");
    const int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    close(fd);
}

static void teardown(void)
{
    unlink(path);
}

TestSuite(gguf, .init = setup, .fini = teardown);

/* A small sound file with a value of every type and two tensors: 2 x 3 F32 and 32 Q4_0. */
static void build_sampler(lvr_buf *b)
{
    static const uint8_t u8 = 200, i8 = 0xff;
    static const uint16_t u16 = 60000, i16 = 0x8000;
    static const int32_t words[3] = {1, -2, 3};
    static const float floats[2] = {0.5f, -1.5f};
    const uint64_t dims_a[2] = {2, 3}, dims_b[1] = {32};
    gguf_put_head(b, 2, 15);
    gguf_put_str(b, "v.u8"), gguf_put_u32(b, GGUF_U8), lvr_buf_append(b, &u8, 1);
    gguf_put_str(b, "v.i8"), gguf_put_u32(b, GGUF_I8), lvr_buf_append(b, &i8, 1);
    gguf_put_str(b, "v.u16"), gguf_put_u32(b, GGUF_U16), lvr_buf_append(b, &u16, 2);
    gguf_put_str(b, "v.i16"), gguf_put_u32(b, GGUF_I16), lvr_buf_append(b, &i16, 2);
    gguf_put_kv_u32(b, "v.u32", 7);
    gguf_put_str(b, "v.i32"), gguf_put_u32(b, GGUF_I32), gguf_put_u32(b, 8);
    gguf_put_kv_f32(b, "v.f32", 1.25f);
    gguf_put_kv_bool(b, "v.bool", true);
    gguf_put_kv_str(b, "v.str", "text");
    gguf_put_str(b, "v.u64"), gguf_put_u32(b, GGUF_U64), gguf_put_u64(b, 1ull << 40);
    gguf_put_str(b, "v.i64"), gguf_put_u32(b, GGUF_I64), gguf_put_u64(b, 9);
    gguf_put_str(b, "v.f64"), gguf_put_u32(b, GGUF_F64), gguf_put_u64(b, 0x3fe0000000000000ull);
    gguf_put_kv_arr(b, "a.i32", GGUF_I32, 3), lvr_buf_append(b, words, sizeof words);
    gguf_put_kv_arr(b, "a.f32", GGUF_F32, 2), lvr_buf_append(b, floats, sizeof floats);
    gguf_put_kv_arr(b, "a.str", GGUF_STR, 2), gguf_put_str(b, "one"), gguf_put_str(b, "");
    gguf_put_tensor(b, "a", 2, dims_a, LVR_F32, 0);
    gguf_put_tensor(b, "b", 1, dims_b, LVR_Q4_0, 32);
    gguf_pad(b, 32);
    for (uint32_t i = 0; i < 6; i++) {
        const float x = (float)i;
        lvr_buf_append(b, &x, sizeof x);
    }
    gguf_pad(b, 32);
    for (uint32_t i = 0; i < 18; i++)
        lvr_buf_append(b, &(uint8_t){(uint8_t)i}, 1);
}

static lvr_gguf *open_sampler_file(void)
{
    lvr_buf b = LVR_BUF_INIT;
    lvr_gguf *g = NULL;
    lvr_error err = LVR_ERROR_INIT;
    build_sampler(&b);
    cr_assert_eq(lvr_write_file_atomic(path, b.data, b.len, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_gguf_open(path, &g, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_gguf_file_bytes(g), b.len);
    lvr_buf_free(&b);
    return g;
}

Test(gguf, reads_every_value_type)
{
    static const struct {
        const char *key;
        uint32_t value;
    } ints[] = {{"v.u8", 200}, {"v.u16", 60000}, {"v.u32", 7}, {"v.i32", 8}, {"v.i64", 9}};
    lvr_gguf *g = open_sampler_file();
    uint32_t u = 0;
    float f = 0;
    const char *s = NULL;
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++) {
        cr_expect_eq(lvr_gguf_u32(g, ints[i].key, &u, NULL), LVR_OK);
        cr_expect_eq(u, ints[i].value);
    }
    cr_expect_eq(lvr_gguf_f32(g, "v.f32", &f, NULL), LVR_OK);
    cr_expect_eq(f, 1.25f);
    cr_expect_eq(lvr_gguf_f32(g, "v.f64", &f, NULL), LVR_OK);
    cr_expect_eq(f, 0.5f);
    cr_expect_eq(lvr_gguf_str_(g, "v.str", &s, NULL), LVR_OK);
    cr_expect_str_eq(s, "text");
    cr_expect(lvr_gguf_bool_or(g, "v.bool", false));
    cr_expect(lvr_gguf_bool_or(g, "absent", true));
    cr_expect(lvr_gguf_has(g, "a.str") && !lvr_gguf_has(g, "a.st"));
    lvr_gguf_free(g);
}

Test(gguf, reads_arrays_and_tensors)
{
    lvr_gguf *g = open_sampler_file();
    const lvr_gguf_str *strings = NULL;
    const float *floats = NULL;
    const int32_t *ints = NULL;
    uint64_t n = 0;
    float values[6];
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_gguf_i32_array(g, "a.i32", &ints, &n, &err), LVR_OK, "%s", err.msg);
    cr_expect(n == 3 && ints[1] == -2);
    cr_assert_eq(lvr_gguf_f32_array(g, "a.f32", &floats, &n, &err), LVR_OK, "%s", err.msg);
    cr_expect(n == 2 && floats[1] == -1.5f);
    cr_assert_eq(lvr_gguf_str_array(g, "a.str", &strings, &n, &err), LVR_OK, "%s", err.msg);
    cr_expect(n == 2 && strings[0].n == 3 && memcmp(strings[0].s, "one", 3) == 0 && strings[1].n == 0);

    const lvr_gguf_tensor *a = lvr_gguf_find(g, "a"), *b = lvr_gguf_find(g, "b");
    cr_assert(a != NULL && b != NULL && lvr_gguf_find(g, "c") == NULL);
    cr_expect(a->n_dims == 2 && a->dims[0] == 2 && a->dims[1] == 3 && a->dims[2] == 1 && a->bytes == 24);
    cr_expect(b->type == LVR_Q4_0 && b->bytes == 18 && b->offset == a->offset + 32);
    cr_assert_eq(lvr_gguf_read(g, a, values, &err), LVR_OK, "%s", err.msg);
    cr_expect_eq(values[5], 5.0f);
    cr_assert_eq(lvr_gguf_read_range(g, a, 8, 4, values, &err), LVR_OK, "%s", err.msg);
    cr_expect_eq(values[0], 2.0f);
    cr_expect_eq(lvr_gguf_read_range(g, a, 20, 8, values, &err), LVR_ERR_INVARIANT);
    lvr_gguf_free(g);
}

Test(gguf, questions_of_the_wrong_type_name_key_and_types)
{
    lvr_gguf *g = open_sampler_file();
    lvr_error err = LVR_ERROR_INIT;
    uint32_t u = 77;
    float f = 0;
    const char *s = NULL;
    const int32_t *ints = NULL;
    uint64_t n = 0;
    cr_expect_eq(lvr_gguf_u32(g, "v.str", &u, &err), LVR_ERR_FORMAT);
    cr_expect(strstr(err.msg, "v.str") && strstr(err.msg, "an integer") && strstr(err.msg, "string"), "%s",
              err.msg);
    cr_expect_eq(lvr_gguf_u32(g, "absent", &u, &err), LVR_ERR_FORMAT);
    cr_expect(strstr(err.msg, "absent") && strstr(err.msg, "missing"), "%s", err.msg);
    cr_expect_eq(lvr_gguf_u32(g, "v.i8", &u, &err), LVR_ERR_FORMAT);
    cr_expect(strstr(err.msg, "-1") != NULL, "%s", err.msg);
    cr_expect_eq(lvr_gguf_u32(g, "v.u64", &u, &err), LVR_ERR_FORMAT);
    cr_expect_eq(lvr_gguf_u32(g, "a.i32", &u, &err), LVR_ERR_FORMAT);
    cr_expect_eq(lvr_gguf_f32(g, "v.u32", &f, &err), LVR_ERR_FORMAT);
    cr_expect_eq(lvr_gguf_str_(g, "v.f32", &s, &err), LVR_ERR_FORMAT);
    cr_expect_eq(lvr_gguf_i32_array(g, "a.f32", &ints, &n, &err), LVR_ERR_FORMAT);
    cr_expect(strstr(err.msg, "array of i32") && strstr(err.msg, "array of f32"), "%s", err.msg);
    cr_expect_eq(lvr_gguf_i32_array(g, "v.i32", &ints, &n, &err), LVR_ERR_FORMAT);
    cr_expect(u == 77 && s == NULL && ints == NULL);
    lvr_gguf_free(g);
}

Test(gguf, shows_values_as_text)
{
    lvr_gguf *g = open_sampler_file();
    lvr_buf all = LVR_BUF_INIT;
    for (uint64_t i = 0; i < lvr_gguf_n_keys(g); i++) {
        lvr_buf_printf(&all, "%s=", lvr_gguf_key_at(g, i));
        lvr_gguf_value_text(g, i, &all);
        lvr_buf_puts(&all, ";");
    }
    cr_expect_str_eq(all.data,
                     "v.u8=200;v.i8=-1;v.u16=60000;v.i16=-32768;v.u32=7;v.i32=8;v.f32=1.25;v.bool=true;"
                     "v.str=text;v.u64=1099511627776;v.i64=9;v.f64=0.5;a.i32=[1, -2, 3];a.f32=[0.5, -1.5];"
                     "a.str=[one, ];");
    lvr_buf_free(&all);
    lvr_gguf_free(g);
}

/* ---- wrong files ---- */

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
     LVR_ERR_UNSUPPORTED, "llama-gguf-split"},
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

Test(gguf, refuses_wrong_headers)
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
    {"type Q4_K", 1, {{"a", 1, {256}, 12, 0}}, 144, LVR_ERR_UNSUPPORTED, "type Q4_K (number 12)"},
    {"type BF16", 1, {{"a", 1, {32}, 30, 0}}, 64, LVR_ERR_UNSUPPORTED, "BF16"},
    {"type 2^31", 1, {{"a", 1, {32}, 1u << 31, 0}}, 64, LVR_ERR_UNSUPPORTED, "type number 2147483648"},
    {"unaligned offset", 1, {{"a", 1, {4}, 0, 8}}, 64, LVR_ERR_FORMAT, "alignment"},
    {"data past the end", 1, {{"a", 1, {17}, 0, 0}}, 64, LVR_ERR_FORMAT, "truncated"},
    {"offset past the end", 1, {{"a", 1, {1}, 0, 1 << 20}}, 64, LVR_ERR_FORMAT, "truncated"},
    {"offset that overflows", 1, {{"a", 1, {8}, 0, UINT64_MAX - 31}}, 64, LVR_ERR_FORMAT, "overflows"},
    {"overlapping tensors",
     2,
     {{"a", 1, {16}, 0, 0}, {"b", 1, {8}, 0, 32}},
     64,
     LVR_ERR_FORMAT,
     "a and b overlap"},
    {"the same data twice", 2, {{"a", 1, {8}, 0, 0}, {"b", 1, {8}, 0, 0}}, 64, LVR_ERR_FORMAT, "overlap"},
    {"duplicate names", 2, {{"a", 1, {8}, 0, 0}, {"a", 1, {8}, 0, 32}}, 64, LVR_ERR_FORMAT, "a occurs twice"},
    {"name with a newline", 1, {{"a\nb", 1, {8}, 0, 0}}, 64, LVR_ERR_FORMAT, "0x0a"},
};

Test(gguf, refuses_wrong_tensor_tables)
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
    {"version 2", BYTES("GGUF\2\0\0\0" N8("\0") N8("\0")), LVR_ERR_UNSUPPORTED, "version 2 is outdated"},
    {"version 4", BYTES("GGUF\4\0\0\0" N8("\0") N8("\0")), LVR_ERR_UNSUPPORTED, "version 4 is newer"},
    {"big endian", BYTES("GGUF\0\0\0\3" N8("\0") N8("\0")), LVR_ERR_UNSUPPORTED, "big-endian"},
    {"counts cut", BYTES("GGUF\3\0\0\0" N8("\0") "\0\0\0"), LVR_ERR_FORMAT, "truncated"},
};

Test(gguf, refuses_wrong_starts)
{
    for (size_t i = 0; i < sizeof wrong_starts / sizeof *wrong_starts; i++) {
        lvr_buf b = LVR_BUF_INIT;
        lvr_buf_append(&b, wrong_starts[i].bytes, wrong_starts[i].n);
        expect_refused(wrong_starts[i].name, &b, wrong_starts[i].status, wrong_starts[i].says);
        lvr_buf_free(&b);
    }
}

Test(gguf, accepts_a_file_without_keys_and_tensors)
{
    lvr_buf b = LVR_BUF_INIT;
    lvr_error err = LVR_ERROR_INIT;
    gguf_put_head(&b, 0, 0);
    cr_expect_eq(open_bytes(&b, &err), LVR_OK, "%s", err.msg);
    lvr_buf_free(&b);
}

Test(gguf, honours_the_alignment_key)
{
    const uint64_t dims[1] = {8};
    lvr_buf b = LVR_BUF_INIT;
    lvr_gguf *g = NULL;
    lvr_error err = LVR_ERROR_INIT;
    gguf_put_head(&b, 1, 1);
    gguf_put_kv_u32(&b, "general.alignment", 4096);
    gguf_put_tensor(&b, "a", 1, dims, LVR_F32, 4096);
    gguf_pad(&b, 4096);
    gguf_put_u64(&b, 0);
    gguf_pad(&b, 4096);
    for (int i = 0; i < 4; i++)
        gguf_put_u64(&b, 0);
    cr_assert_eq(lvr_gguf_open_mem("m", b.data, b.len, b.len, false, &g, &err), LVR_OK, "%s", err.msg);
    cr_expect_eq(lvr_gguf_find(g, "a")->offset, 8192);
    cr_expect_eq(lvr_gguf_alignment(g), 4096);
    lvr_gguf_free(g);
    lvr_buf_free(&b);
}

Test(gguf, refuses_what_is_not_a_regular_file)
{
    lvr_gguf *g = NULL;
    lvr_error err = LVR_ERROR_INIT;
    char fifo[80];
    snprintf(fifo, sizeof fifo, "%s.fifo", path);
    cr_assert_eq(mkfifo(fifo, 0600), 0);
    cr_expect_eq(lvr_gguf_open(fifo, &g, &err), LVR_ERR_IO); /* and does not wait for a writer */
    cr_expect_eq(lvr_gguf_open("/tmp", &g, &err), LVR_ERR_IO);
    cr_expect_eq(lvr_gguf_open("/nonexistent/x.gguf", &g, &err), LVR_ERR_IO);
    cr_expect(strstr(err.msg, "/nonexistent/x.gguf") != NULL, "%s", err.msg);
    cr_expect_null(g);
    unlink(fifo);
}

Test(gguf, header_only_has_no_data)
{
    lvr_buf b = LVR_BUF_INIT;
    lvr_gguf *g = NULL, *again = NULL;
    lvr_error err = LVR_ERROR_INIT;
    uint8_t data[24];
    uint64_t n = 0, n_again = 0;
    build_sampler(&b);
    cr_assert_eq(lvr_gguf_open_mem("m", b.data, b.len, b.len, false, &g, &err), LVR_OK, "%s", err.msg);
    const void *header = lvr_gguf_header(g, &n);
    cr_assert_eq(lvr_gguf_open_mem("again", header, n, 1 << 30, true, &again, &err), LVR_OK, "%s", err.msg);
    cr_expect(memcmp(lvr_gguf_header(again, &n_again), header, n) == 0 && n_again == n);
    cr_expect_eq(lvr_gguf_read(again, lvr_gguf_find(again, "a"), data, &err), LVR_ERR_UNSUPPORTED);
    lvr_gguf_free(g);
    lvr_gguf_free(again);
    lvr_buf_free(&b);
}

Test(gguf, a_file_that_shrank_after_opening_is_an_error)
{
    lvr_gguf *g = open_sampler_file();
    lvr_error err = LVR_ERROR_INIT;
    uint8_t data[24];
    cr_assert_eq(truncate(path, 100), 0);
    cr_expect_eq(lvr_gguf_read(g, lvr_gguf_find(g, "a"), data, &err), LVR_ERR_FORMAT);
    lvr_gguf_free(g);
}

Test(gguf, truncation_at_every_length_is_refused)
{
    lvr_buf b = LVR_BUF_INIT;
    lvr_error err = LVR_ERROR_INIT;
    build_sampler(&b);
    for (size_t n = 0; n < b.len; n++) {
        lvr_gguf *g = NULL;
        cr_expect_eq(lvr_gguf_open_mem("m", b.data, n, n, false, &g, &err), LVR_ERR_FORMAT, "at %zu", n);
        cr_assert_null(g);
    }
    for (size_t n = 0; n < b.len; n += 7) { /* the same through a file */
        lvr_gguf *g = NULL;
        cr_assert_eq(lvr_write_file_atomic(path, b.data, n, &err), LVR_OK, "%s", err.msg);
        cr_expect_eq(lvr_gguf_open(path, &g, &err), LVR_ERR_FORMAT, "at %zu", n);
    }
    lvr_buf_free(&b);
}

/* Everything that can be asked of a file, whatever it says. */
static void ask_everything(const lvr_gguf *g)
{
    lvr_model_shape shape;
    lvr_tokenizer *t = NULL;
    lvr_buf out = LVR_BUF_INIT;
    int32_t *tokens = NULL;
    uint32_t n = 0;
    for (uint64_t i = 0; i < lvr_gguf_n_keys(g); i++)
        lvr_gguf_value_text(g, i, &out);
    (void)lvr_model_shape_from_gguf(g, &shape, NULL);
    if (lvr_tokenizer_new(g, &t, NULL) == LVR_OK) {
        cr_assert_eq(lvr_tokenize(t, "Hello \xff world", 13, true, &tokens, &n, NULL), LVR_OK);
        for (uint32_t i = 0; i < n; i++)
            lvr_detokenize(t, tokens[i], i == 0, &out);
    }
    free(tokens);
    lvr_tokenizer_free(t);
    lvr_buf_free(&out);
}

static void flip_bits(lvr_buf *b, size_t n_header, unsigned bits_per_byte)
{
    for (size_t at = 0; at < n_header; at++) {
        for (unsigned k = 0; k < bits_per_byte; k++) {
            const unsigned bit = bits_per_byte == 8 ? k : (unsigned)(at * 5 + k) % 8;
            lvr_gguf *g = NULL;
            b->data[at] ^= (char)(1u << bit);
            if (lvr_gguf_open_mem("m", b->data, b->len, b->len, false, &g, NULL) == LVR_OK)
                ask_everything(g);
            lvr_gguf_free(g);
            b->data[at] ^= (char)(1u << bit);
        }
    }
}

Test(gguf, every_flipped_bit_of_a_header_is_survived, .timeout = 100)
{
    lvr_buf b = LVR_BUF_INIT;
    build_sampler(&b);
    flip_bits(&b, b.len, 8);
    lvr_buf_free(&b);
}

Test(gguf, a_flipped_bit_in_each_byte_of_a_model_header_is_survived, .timeout = 100)
{
    lvr_buf b = LVR_BUF_INIT;
    lvr_gguf *g = NULL;
    lvr_error err = LVR_ERROR_INIT;
    uint64_t n = 0;
    const struct gguf_tiny spec = {
        .vocab = 262, .n_layers = 1, .d_model = 32, .n_heads = 2, .d_ff = 32, .type = LVR_Q4_0};
    cr_assert_eq(gguf_build_tiny_mem(&spec, &b, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_gguf_open_mem("m", b.data, b.len, b.len, false, &g, &err), LVR_OK, "%s", err.msg);
    (void)lvr_gguf_header(g, &n);
    lvr_gguf_free(g);
    flip_bits(&b, n, 1);
    lvr_buf_free(&b);
}
