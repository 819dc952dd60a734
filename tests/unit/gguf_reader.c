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

static lvr_status open_bytes(const lvr_buf *b, lvr_error *err)
{
    lvr_gguf *g = NULL;
    const lvr_status status = lvr_gguf_open_mem("test.gguf", b->data, b->len, b->len, false, &g, err);
    cr_assert_eq(status == LVR_OK, g != NULL);
    lvr_gguf_free(g);
    return status;
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
    gguf_put_head(&b, 2, 1);
    gguf_put_kv_u32(&b, "general.alignment", 4096);
    gguf_put_tensor(&b, "a", 1, dims, LVR_F32, 0);
    gguf_put_tensor(&b, "b", 1, dims, LVR_F32, 4096);
    for (int tensor = 0; tensor < 2; tensor++) {
        gguf_pad(&b, 4096);
        for (int i = 0; i < 4; i++)
            gguf_put_u64(&b, 0);
    }
    cr_assert_eq(lvr_gguf_open_mem("m", b.data, b.len, b.len, false, &g, &err), LVR_OK, "%s", err.msg);
    cr_expect_eq(lvr_gguf_find(g, "b")->offset, 8192);
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
