/* Packs: what is written comes back, what is damaged is refused, what cannot be computed is named. */
#include "common/fs.h"
#include "engine/pack.h"
#include "tests/unit/gguf_builder.h"
#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static const char sha[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
static char dir[64], gguf_path[128], pack_path[128];

static void setup(void)
{
    snprintf(dir, sizeof dir, "/tmp/lvr-pack-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
    snprintf(gguf_path, sizeof gguf_path, "%s/tiny.gguf", dir);
    snprintf(pack_path, sizeof pack_path, "%s/tiny.lvrpack", dir);
}

static void teardown(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    cr_assert_eq(system(command), 0);
}

TestSuite(pack, .init = setup, .fini = teardown);

static int count_files(void)
{
    int n = 0;
    DIR *d = opendir(dir);
    cr_assert_not_null(d);
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static lvr_gguf *build(const struct gguf_tiny *spec)
{
    lvr_gguf *g = NULL;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(gguf_build_tiny(gguf_path, spec, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_gguf_open(gguf_path, &g, &err), LVR_OK, "%s", err.msg);
    return g;
}

static lvr_pack *build_pack(const struct gguf_tiny *spec)
{
    lvr_pack *p = NULL;
    lvr_error err = LVR_ERROR_INIT;
    lvr_gguf *g = build(spec);
    cr_assert_eq(lvr_pack_write(g, sha, pack_path, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_pack_open(pack_path, &p, &err), LVR_OK, "%s", err.msg);
    lvr_gguf_free(g);
    return p;
}

/* ---- what is written comes back ---- */

/* One GGUF row as floats: a second opinion, not the kernels' code. */
static void dequantize(lvr_wtype type, const uint8_t *row, uint32_t n, float *ret)
{
    for (uint32_t i = 0; i < n; i++) {
        uint16_t half = 0;
        const uint32_t in_block = i % 32;
        const uint8_t *q8 = row + i / 32 * 34, *q4 = row + i / 32 * 18;
        switch (type) {
        case LVR_F32:
            memcpy(&ret[i], row + i * 4, 4);
            break;
        case LVR_F16:
            memcpy(&half, row + i * 2, 2);
            ret[i] = lvr_f16_to_f32(half);
            break;
        case LVR_Q8_0:
            memcpy(&half, q8, 2);
            ret[i] = lvr_f16_to_f32(half) * (float)(int8_t)q8[2 + in_block];
            break;
        case LVR_Q4_0:
            memcpy(&half, q4, 2);
            ret[i] = lvr_f16_to_f32(half) *
                     (float)((in_block < 16 ? q4[2 + in_block] & 15 : q4[2 + in_block - 16] >> 4) - 8);
            break;
        }
    }
}

static void expect_same_rows(const char *name, lvr_wtype type, const uint8_t *raw, const lvr_pack_tensor *t,
                             const uint8_t *packed)
{
    const lvr_matrix m = {.type = t->type, .n_out = t->n_out, .n_in = t->n_in, .data = packed};
    const bool norm = t->n_out == 1;
    float *expected = malloc(t->n_in * sizeof *expected), *found = malloc(t->n_in * sizeof *found);
    cr_assert(expected != NULL && found != NULL);
    for (uint32_t row = 0; row < t->n_out; row++) {
        dequantize(type, raw + row * lvr_wtype_row_bytes(type, t->n_in), t->n_in, expected);
        if (norm)
            memcpy(found, packed, t->n_in * sizeof *found);
        else
            lvr_packed_row(&m, row, found);
        cr_assert_eq(memcmp(expected, found, t->n_in * sizeof *found), 0, "%s row %u differs", name, row);
    }
    free(expected);
    free(found);
}

static void expect_tensor(const lvr_gguf *g, const char *name, const lvr_pack_tensor *t,
                          const uint8_t *section, uint64_t section_bytes)
{
    const lvr_gguf_tensor *src = lvr_gguf_find(g, name);
    lvr_error err = LVR_ERROR_INIT;
    cr_assert(src != NULL && t != NULL, "%s", name);
    cr_assert_eq(t->offset % LVR_PACK_TENSOR_ALIGN, 0);
    cr_assert_leq(t->offset + t->bytes, section_bytes);
    cr_assert(t->n_in == src->dims[0] && t->n_out == src->dims[1], "%s", name);
    cr_assert(t->type == (t->n_out == 1 ? LVR_F32 : src->type));
    uint8_t *raw = malloc(src->bytes);
    cr_assert_not_null(raw);
    cr_assert_eq(lvr_gguf_read(g, src, raw, &err), LVR_OK, "%s", err.msg);
    expect_same_rows(name, src->type, raw, t, section + t->offset);
    free(raw);
}

static uint8_t *read_section(uint64_t offset, uint64_t bytes, uint32_t crc)
{
    lvr_error err = LVR_ERROR_INIT;
    cr_assert(offset % LVR_PACK_ALIGN == 0 && bytes % LVR_PACK_ALIGN == 0);
    uint8_t *data = aligned_alloc(LVR_PACK_ALIGN, bytes);
    const int fd = open(pack_path, O_RDONLY);
    cr_assert(data != NULL && fd >= 0);
    cr_assert_eq(lvr_pread_all(fd, data, bytes, offset, pack_path, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_crc32c(0, data, bytes), crc);
    close(fd);
    return data;
}

static void expect_same_model(const lvr_gguf *g, const lvr_pack *p)
{
    const lvr_model_shape *s = lvr_pack_shape(p);
    uint64_t end = lvr_pack_resident_offset(p) + lvr_pack_resident_bytes(p);
    uint8_t *data =
        read_section(lvr_pack_resident_offset(p), lvr_pack_resident_bytes(p), lvr_pack_resident_crc(p));
    for (unsigned role = LVR_ROLE_TOKEN_EMBD; role <= LVR_ROLE_OUTPUT; role++) {
        char name[64];
        snprintf(name, sizeof name, "%s.weight", lvr_role_name((lvr_role)role));
        const lvr_pack_tensor *t = lvr_pack_resident_tensor(p, (lvr_role)role);
        cr_assert_eq(t == NULL, role == LVR_ROLE_OUTPUT && s->tied);
        if (t != NULL)
            expect_tensor(g, name, t, data, lvr_pack_resident_bytes(p));
    }
    free(data);
    for (uint32_t layer = 0; layer < s->n_layers; layer++) {
        cr_assert_eq(lvr_pack_layer_offset(p, layer), end);
        end += lvr_pack_layer_bytes(p, layer);
        data = read_section(lvr_pack_layer_offset(p, layer), lvr_pack_layer_bytes(p, layer),
                            lvr_pack_layer_crc(p, layer));
        for (unsigned role = LVR_ROLE_ATTN_NORM; role < LVR_ROLE_COUNT; role++) {
            char name[64];
            snprintf(name, sizeof name, "blk.%u.%s.weight", layer, lvr_role_name((lvr_role)role));
            expect_tensor(g, name, lvr_pack_layer_tensor(p, layer, (lvr_role)role), data,
                          lvr_pack_layer_bytes(p, layer));
        }
        free(data);
    }
    cr_assert_eq(lvr_pack_file_bytes(p), end);
    cr_expect_null(lvr_pack_layer_tensor(p, 0, LVR_ROLE_OUTPUT));
    cr_expect_null(lvr_pack_layer_tensor(p, s->n_layers, LVR_ROLE_Q));
    cr_expect_null(lvr_pack_resident_tensor(p, LVR_ROLE_Q));
}

static void expect_round_trip(const struct gguf_tiny *spec)
{
    lvr_error err = LVR_ERROR_INIT;
    lvr_pack *p = build_pack(spec);
    lvr_gguf *g = NULL;
    struct stat st;
    cr_assert_eq(lvr_gguf_open(gguf_path, &g, &err), LVR_OK, "%s", err.msg);
    expect_same_model(g, p);
    cr_expect_eq(lvr_pack_verify(p, &err), LVR_OK, "%s", err.msg);
    cr_expect_str_eq(lvr_pack_source_sha256(p), sha);
    cr_expect_str_eq(lvr_pack_path(p), pack_path);
    cr_expect(stat(pack_path, &st) == 0 && (uint64_t)st.st_size == lvr_pack_file_bytes(p));
    cr_expect_eq(lvr_gguf_n_keys(lvr_pack_gguf(p)), lvr_gguf_n_keys(g));
    cr_expect_eq(count_files(), 2, "no temporary file stays");
    lvr_gguf_free(g);
    lvr_pack_free(p);
}

Test(pack, every_weight_type_comes_back_exactly)
{
    static const lvr_wtype types[] = {LVR_F32, LVR_F16, LVR_Q8_0, LVR_Q4_0};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        const struct gguf_tiny own_head = {.type = types[i], .seed = i};
        const struct gguf_tiny tied = {
            .type = types[i], .seed = i, .tied = true, .f16_norms = true, .vocab = 301};
        expect_round_trip(&own_head);
        expect_round_trip(&tied);
    }
}

Test(pack, a_matrix_larger_than_a_chunk_comes_back_exactly)
{
    const struct gguf_tiny spec = {.type = LVR_F32,
                                   .vocab = 9001,
                                   .d_model = 160,
                                   .n_heads = 10,
                                   .n_kv = 5,
                                   .n_layers = 1,
                                   .tied = true};
    expect_round_trip(&spec);
}

Test(pack, knows_the_shape)
{
    const struct gguf_tiny spec = {
        .type = LVR_Q8_0, .n_layers = 3, .d_model = 128, .n_heads = 4, .n_kv = 2, .d_ff = 96};
    lvr_pack *p = build_pack(&spec);
    const lvr_model_shape *s = lvr_pack_shape(p);
    cr_expect(s->n_layers == 3 && s->d_model == 128 && s->n_heads == 4 && s->n_kv == 2 && s->head_dim == 32);
    cr_expect(s->d_ff == 96 && s->vocab == 300 && s->n_ctx_train == 256 && !s->tied);
    cr_expect(s->rms_eps == 1e-5f && s->rope_base == 10000.0f);
    cr_expect_str_eq(s->arch, "llama");
    cr_expect_str_eq(s->name, "tiny");
    lvr_pack_free(p);
}

Test(pack, replaces_an_older_file)
{
    const struct gguf_tiny spec = {.type = LVR_Q4_0};
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_write_file_atomic(pack_path, "old", 3, &err), LVR_OK, "%s", err.msg);
    lvr_pack_free(build_pack(&spec));
}

/* ---- writing that fails ---- */

Test(pack, failed_writing_leaves_nothing)
{
    const struct gguf_tiny spec = {.type = LVR_F32};
    lvr_error err = LVR_ERROR_INIT;
    char missing[160], no_hash[LVR_SHA256_HEX_BYTES] = "not a hash";
    lvr_gguf *g = build(&spec);
    snprintf(missing, sizeof missing, "%s/none/x.lvrpack", dir);
    cr_expect_eq(lvr_pack_write(g, sha, missing, &err), LVR_ERR_IO);
    cr_expect(strstr(err.msg, "none/x.lvrpack") != NULL, "%s", err.msg);
    cr_expect_eq(lvr_pack_write(g, sha, dir, &err), LVR_ERR_IO, "a folder cannot be replaced");
    cr_expect_eq(lvr_pack_write(g, no_hash, pack_path, &err), LVR_ERR_USAGE);
    cr_expect_eq(count_files(), 1);

    /* a limit on the file's size stands for a full device */
    const struct rlimit limit = {.rlim_cur = 64 << 10, .rlim_max = 64 << 10};
    signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    cr_expect_eq(lvr_pack_write(g, sha, pack_path, &err), LVR_ERR_IO);
    cr_expect_eq(count_files(), 1);
    lvr_gguf_free(g);
}

Test(pack, a_source_that_shrinks_meanwhile_is_an_error)
{
    const struct gguf_tiny spec = {.type = LVR_F32};
    lvr_error err = LVR_ERROR_INIT;
    lvr_gguf *g = build(&spec);
    cr_assert_eq(truncate(gguf_path, (off_t)lvr_gguf_file_bytes(g) - 100), 0);
    cr_expect_eq(lvr_pack_write(g, sha, pack_path, &err), LVR_ERR_FORMAT);
    cr_expect_eq(count_files(), 1);
    lvr_gguf_free(g);
}

/* ---- damaged packs ---- */

#define HEADER_CRC_AT 4092

static lvr_buf read_pack(void)
{
    lvr_buf b = LVR_BUF_INIT;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_read_file(pack_path, 1 << 24, &b, &err), LVR_OK, "%s", err.msg);
    return b;
}

static lvr_status open_bytes(const void *bytes, size_t n, lvr_error *err)
{
    lvr_pack *p = NULL;
    const int fd = open(pack_path, O_WRONLY | O_TRUNC);
    cr_assert_geq(fd, 0);
    cr_assert_eq(lvr_pwrite_all(fd, bytes, n, 0, pack_path, err), LVR_OK, "%s", err->msg);
    close(fd);
    const lvr_status status = lvr_pack_open(pack_path, &p, err);
    cr_assert_eq(status == LVR_OK, p != NULL);
    lvr_pack_free(p);
    return status;
}

static lvr_buf small_pack(uint64_t *ret_front)
{
    const struct gguf_tiny spec = {
        .type = LVR_Q4_0, .vocab = 260, .n_layers = 1, .d_model = 32, .n_heads = 2, .d_ff = 32};
    lvr_pack *p = build_pack(&spec);
    *ret_front = lvr_pack_resident_offset(p);
    lvr_pack_free(p);
    return read_pack();
}

Test(pack, unknown_versions_say_what_to_do)
{
    uint64_t front = 0;
    lvr_error err = LVR_ERROR_INIT;
    lvr_buf b = small_pack(&front);
    b.data[8] = 2;
    cr_expect_eq(open_bytes(b.data, b.len, &err), LVR_ERR_UNSUPPORTED);
    cr_expect(strstr(err.msg, "pack version 2") && strstr(err.msg, "re-pack with lever model pack"), "%s",
              err.msg);
    b.data[8] = 1, b.data[12] = 9;
    cr_expect_eq(open_bytes(b.data, b.len, &err), LVR_ERR_UNSUPPORTED);
    cr_expect(strstr(err.msg, "layout version 9") && strstr(err.msg, "re-pack with lever model pack"), "%s",
              err.msg);
    lvr_buf_free(&b);
}

Test(pack, what_is_not_a_pack_is_said_so)
{
    lvr_error err = LVR_ERROR_INIT;
    lvr_pack *p = NULL;
    const struct gguf_tiny spec = {.type = LVR_F32};
    lvr_gguf_free(build(&spec));
    cr_expect_eq(lvr_pack_open(gguf_path, &p, &err), LVR_ERR_FORMAT);
    cr_expect(strstr(err.msg, "not a pack") != NULL, "%s", err.msg);
    cr_expect_eq(lvr_pack_open(dir, &p, &err), LVR_ERR_IO);
    cr_expect_eq(lvr_pack_open("/nonexistent", &p, &err), LVR_ERR_IO);
    cr_expect(!lvr_pack_is_pack(gguf_path) && !lvr_pack_is_pack(dir) && !lvr_pack_is_pack("/nonexistent"));
    cr_expect_null(p);
}

Test(pack, other_lengths_are_refused, .timeout = 100)
{
    uint64_t front = 0;
    lvr_error err = LVR_ERROR_INIT;
    lvr_buf b = small_pack(&front);
    for (size_t n = 0; n < b.len; n += n < 64 ? 1 : 61)
        cr_expect_eq(open_bytes(b.data, n, &err), LVR_ERR_FORMAT, "at %zu: %s", n, err.msg);
    cr_expect(strstr(err.msg, "truncated") != NULL, "%s", err.msg);
    lvr_buf_append(&b, "", 1);
    cr_expect_eq(open_bytes(b.data, b.len, &err), LVR_ERR_FORMAT);
    lvr_buf_free(&b);
}

/* Puts bytes of `b` into the pack's file, in place: rewriting it for every bit would take minutes. */
static lvr_status open_poked(const lvr_buf *b, size_t at, size_t n, lvr_error *err)
{
    lvr_pack *p = NULL;
    const int fd = open(pack_path, O_WRONLY);
    cr_assert_geq(fd, 0);
    cr_assert_eq(pwrite(fd, b->data + at, n, (off_t)at), (ssize_t)n);
    close(fd);
    const lvr_status status = lvr_pack_open(pack_path, &p, err);
    lvr_pack_free(p);
    return status;
}

Test(pack, a_flipped_bit_before_the_weights_is_refused, .timeout = 100)
{
    uint64_t front = 0, gguf_bytes = 0, tables = 0, tables_bytes = 0;
    lvr_error err = LVR_ERROR_INIT;
    lvr_buf b = small_pack(&front);
    memcpy(&gguf_bytes, b.data + 56, 8);
    memcpy(&tables, b.data + 64, 8);
    memcpy(&tables_bytes, b.data + 72, 8);
    for (size_t at = 0; at < tables + tables_bytes; at++) {
        const char old = b.data[at];
        if (at >= 4096 + gguf_bytes && at < tables)
            continue; /* padding between the two is not read */
        b.data[at] ^= (char)(1 << at % 8);
        const lvr_status status = open_poked(&b, at, 1, &err);
        cr_expect(status == LVR_ERR_FORMAT || status == LVR_ERR_UNSUPPORTED, "at %zu: %s", at, err.msg);
        b.data[at] = old;
        cr_assert_eq(open_poked(&b, at, 1, &err), LVR_OK, "at %zu: %s", at, err.msg);
    }
    lvr_buf_free(&b);
}

static void seal(lvr_buf *b)
{
    uint64_t gguf_bytes = 0, tables = 0, tables_bytes = 0;
    memcpy(&gguf_bytes, b->data + 56, 8);
    memcpy(&tables, b->data + 64, 8);
    memcpy(&tables_bytes, b->data + 72, 8);
    if (gguf_bytes <= b->len - 4096) {
        const uint32_t crc = lvr_crc32c(0, b->data + 4096, gguf_bytes);
        memcpy(b->data + 80, &crc, 4);
    }
    if (tables <= b->len && tables_bytes <= b->len - tables) {
        const uint32_t crc = lvr_crc32c(0, b->data + tables, tables_bytes);
        memcpy(b->data + 84, &crc, 4);
    }
    const uint32_t crc = lvr_crc32c(0, b->data, HEADER_CRC_AT);
    memcpy(b->data + HEADER_CRC_AT, &crc, 4);
}

/* An attacker can compute checksums: with them right, every lie is still found, or the file is a sound pack.
 */
Test(pack, lies_with_right_checksums_are_refused, .timeout = 100)
{
    uint64_t front = 0, tables = 0, tables_bytes = 0;
    lvr_error err = LVR_ERROR_INIT;
    lvr_buf b = small_pack(&front);
    memcpy(&tables, b.data + 64, 8);
    memcpy(&tables_bytes, b.data + 72, 8);
    seal(&b);
    cr_assert_eq(open_poked(&b, 0, 4096, &err), LVR_OK, "%s", err.msg);
    for (size_t at = 8; at < tables + tables_bytes; at++) {
        const bool crc_of_section = at >= tables && at < tables + 64 && at % 32 >= 16 && at % 32 < 20;
        const bool hash = at >= 88 && at < 152, sealed = (at >= 80 && at < 88) || at >= HEADER_CRC_AT;
        const bool source_bytes = at >= 40 && at < 48;
        const char old = b.data[at];
        b.data[at] ^= (char)(1 << at % 8);
        seal(&b);
        (void)open_poked(&b, at, 1, &err);
        const lvr_status status = open_poked(&b, 0, 4096, &err);
        if (at < HEADER_CRC_AT || at >= tables) {
            const bool harmless = crc_of_section || hash || sealed || source_bytes;
            cr_expect(harmless || status == LVR_ERR_FORMAT || status == LVR_ERR_UNSUPPORTED, "at %zu: %s", at,
                      lvr_status_name(status));
        }
        b.data[at] = old;
        seal(&b);
        (void)open_poked(&b, at, 1, &err);
    }
    cr_assert_eq(open_poked(&b, 0, 4096, &err), LVR_OK, "%s", err.msg);
    lvr_buf_free(&b);
}

Test(pack, verify_names_the_damaged_section)
{
    const struct gguf_tiny spec = {.type = LVR_Q4_0, .n_layers = 3};
    lvr_error err = LVR_ERROR_INIT;
    lvr_pack *p = build_pack(&spec);
    const uint64_t places[] = {lvr_pack_resident_offset(p) + 5,
                               lvr_pack_layer_offset(p, 1) + lvr_pack_layer_bytes(p, 1) - 1};
    const char *names[] = {"resident section", "layer 1"};
    for (size_t i = 0; i < 2; i++) {
        uint8_t byte = 0;
        const int fd = open(pack_path, O_RDWR);
        cr_assert_geq(fd, 0);
        cr_assert_eq(pread(fd, &byte, 1, (off_t)places[i]), 1);
        byte ^= 1;
        cr_assert_eq(pwrite(fd, &byte, 1, (off_t)places[i]), 1);
        cr_expect_eq(lvr_pack_verify(p, &err), LVR_ERR_FORMAT);
        cr_expect(strstr(err.msg, names[i]) != NULL, "%s", err.msg);
        byte ^= 1;
        cr_assert_eq(pwrite(fd, &byte, 1, (off_t)places[i]), 1);
        close(fd);
    }
    cr_expect_eq(lvr_pack_verify(p, &err), LVR_OK, "%s", err.msg);
    lvr_pack_free(p);
}

/* ---- models that are refused ---- */

/* Replaces the first occurrence of `from` in the model's bytes by `to` (same length), `skip` bytes further
 * on. */
static void patch(lvr_buf *b, const char *from, size_t skip, const void *to, size_t n)
{
    char *at = memmem(b->data, b->len, from, strlen(from));
    cr_assert_not_null(at, "%s", from);
    memcpy(at + strlen(from) + skip, to, n);
}

static void expect_shape(const char *name, const lvr_buf *b, lvr_status expected, const char *says)
{
    lvr_gguf *g = NULL;
    lvr_model_shape shape = {.vocab = 77};
    lvr_error err = LVR_ERROR_INIT;
    lvr_status status = lvr_gguf_open_mem("m.gguf", b->data, b->len, b->len, false, &g, &err);
    if (status == LVR_OK)
        status = lvr_model_shape_from_gguf(g, &shape, &err);
    cr_expect_eq(status, expected, "%s: %s: %s", name, lvr_status_name(status), err.msg);
    cr_expect(strstr(err.msg, says) != NULL, "%s: \"%s\" does not say \"%s\"", name, err.msg, says);
    cr_expect_eq(shape.vocab, 77);
    lvr_gguf_free(g);
}

static lvr_buf tiny_bytes(const char *extra_key, const char *extra_str, uint32_t extra_u32)
{
    lvr_buf b = LVR_BUF_INIT;
    lvr_error err = LVR_ERROR_INIT;
    const struct gguf_tiny spec = {
        .type = LVR_Q8_0, .extra_key = extra_key, .extra_str = extra_str, .extra_u32 = extra_u32};
    cr_assert_eq(gguf_build_tiny_mem(&spec, &b, &err), LVR_OK, "%s", err.msg);
    return b;
}

#define SHAPE_U32(key, value, status, says)                                                                  \
    {                                                                                                        \
        key, "", 4, 4, (const uint32_t[]){value}, status, says                                               \
    }
#define SHAPE_F32(key, value, status, says)                                                                  \
    {                                                                                                        \
        key, "", 4, 4, (const float[]){value}, status, says                                                  \
    }
#define RENAME(from, rest, status, says)                                                                     \
    {                                                                                                        \
        from, rest, 0, sizeof(rest) - 1, rest, status, says                                                  \
    }

static const struct {
    const char *key, *note;
    size_t skip, n;
    const void *bytes;
    lvr_status status;
    const char *says;
} wrong_models[] = {
    SHAPE_U32("llama.block_count", 0, LVR_ERR_FORMAT, "block_count is 0"),
    SHAPE_U32("llama.block_count", 3, LVR_ERR_FORMAT, "blk.2.attn_norm.weight is missing"),
    SHAPE_U32("llama.block_count", 1, LVR_ERR_UNSUPPORTED, "blk.1."),
    SHAPE_U32("llama.block_count", UINT32_MAX, LVR_ERR_FORMAT, "block_count is 4294967295"),
    SHAPE_U32("llama.embedding_length", 0, LVR_ERR_FORMAT, "embedding_length is 0"),
    SHAPE_U32("llama.embedding_length", 128, LVR_ERR_UNSUPPORTED, "rope.dimension_count is 16"),
    SHAPE_U32("llama.embedding_length", 62, LVR_ERR_FORMAT, "not a multiple of its 4 heads"),
    SHAPE_U32("llama.embedding_length", 1u << 31, LVR_ERR_FORMAT, "embedding_length is"),
    SHAPE_U32("llama.feed_forward_length", 64, LVR_ERR_FORMAT,
              "ffn_gate.weight has dimensions [64, 96, 1, 1]"),
    SHAPE_U32("llama.feed_forward_length", 100, LVR_ERR_UNSUPPORTED, "multiples of 32"),
    SHAPE_U32("llama.context_length", 0, LVR_ERR_FORMAT, "context_length is 0"),
    SHAPE_U32("llama.attention.head_count", 0, LVR_ERR_FORMAT, "head_count is 0"),
    SHAPE_U32("llama.attention.head_count", 8, LVR_ERR_UNSUPPORTED, "multiple of 16"),
    SHAPE_U32("llama.attention.head_count_kv", 3, LVR_ERR_FORMAT, "not a multiple of 3"),
    SHAPE_U32("llama.attention.head_count_kv", 4, LVR_ERR_FORMAT, "attn_k.weight has dimensions"),
    SHAPE_U32("llama.rope.dimension_count", 8, LVR_ERR_UNSUPPORTED, "rope.dimension_count is 8"),
    SHAPE_U32("llama.vocab_size", 301, LVR_ERR_FORMAT, "vocab_size is 301"),
    SHAPE_F32("llama.attention.layer_norm_rms_epsilon", 0.0f, LVR_ERR_FORMAT, "epsilon is 0"),
    SHAPE_F32("llama.attention.layer_norm_rms_epsilon", NAN, LVR_ERR_FORMAT, "epsilon is"),
    SHAPE_F32("llama.rope.freq_base", -1.0f, LVR_ERR_FORMAT, "freq_base is -1"),
    SHAPE_F32("llama.rope.freq_base", HUGE_VALF, LVR_ERR_FORMAT, "freq_base is inf"),
    SHAPE_U32("llama.attention.layer_norm_rms_epsilon", 0x7f800001, LVR_ERR_FORMAT, "epsilon is"),
    {"general.architecture", "", 12, 5, "gemma", LVR_ERR_UNSUPPORTED, "architecture \"gemma\""},
    {"token_embd.weight", "", 12, 8, "\40\1\0\0\0\0\0\0", LVR_ERR_FORMAT, "288 rows"},
    RENAME("token_embd", ".weighX", LVR_ERR_FORMAT, "token_embd.weight is missing"),
    RENAME("output_norm", ".weighX", LVR_ERR_FORMAT, "output_norm.weight is missing"),
    RENAME("output", "_extra.weigh", LVR_ERR_FORMAT, ""),
    RENAME("blk.1.ffn_down", ".weighX", LVR_ERR_FORMAT, "blk.1.ffn_down.weight is missing"),
};

Test(pack, models_that_contradict_themselves_are_refused)
{
    for (size_t i = 0; i < sizeof wrong_models / sizeof *wrong_models; i++) {
        char name[96];
        lvr_buf b = tiny_bytes(NULL, NULL, 0);
        snprintf(name, sizeof name, "%zu: %s", i, wrong_models[i].key);
        patch(&b, wrong_models[i].key, wrong_models[i].skip, wrong_models[i].bytes, wrong_models[i].n);
        expect_shape(name, &b, wrong_models[i].status, wrong_models[i].says);
        lvr_buf_free(&b);
    }
}

Test(pack, an_extra_tensor_is_refused_by_name)
{
    lvr_buf b = tiny_bytes(NULL, NULL, 0); /* the head under another name: a tied model with something more */
    char *at = NULL;
    for (char *next = b.data;
         (next = memmem(next, b.len - (size_t)(next - b.data), "output.weight", 13)) != NULL; next++)
        if (next[-8] == 13)
            at = next;
    cr_assert_not_null(at);
    memcpy(at, "rope_freqs.wei", 13);
    expect_shape("extra", &b, LVR_ERR_UNSUPPORTED, "tensor rope_freqs.we is not part");
    lvr_buf_free(&b);
}

Test(pack, variants_of_the_computation_are_refused_by_name)
{
    static const char *const keys[] = {"llama.expert_count",      "llama.rope.scaling.factor",
                                       "llama.rope.scale_linear", "llama.attention.sliding_window",
                                       "llama.logit_scale",       "llama.attention.scale"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        lvr_buf b = tiny_bytes(keys[i], NULL, 8);
        expect_shape(keys[i], &b, LVR_ERR_UNSUPPORTED, keys[i]);
        lvr_buf_free(&b);
    }
    lvr_buf b = tiny_bytes("llama.rope.scaling.type", "yarn", 0);
    expect_shape("yarn", &b, LVR_ERR_UNSUPPORTED, "llama.rope.scaling.type is \"yarn\"");
    lvr_buf_free(&b);
    b = tiny_bytes("llama.attention.key_length", NULL, 32);
    expect_shape("key_length", &b, LVR_ERR_UNSUPPORTED, "llama.attention.key_length is 32");
    lvr_buf_free(&b);
}

Test(pack, variants_that_are_switched_off_are_accepted)
{
    static const struct {
        const char *key, *text;
        uint32_t value;
    } off[] = {{"llama.expert_count", NULL, 0},
               {"llama.rope.scaling.type", "none", 0},
               {"llama.attention.key_length", NULL, 16}};
    for (size_t i = 0; i < sizeof off / sizeof *off; i++) {
        lvr_gguf *g = NULL;
        lvr_model_shape shape;
        lvr_error err = LVR_ERROR_INIT;
        lvr_buf b = tiny_bytes(off[i].key, off[i].text, off[i].value);
        cr_assert_eq(lvr_gguf_open_mem("m", b.data, b.len, b.len, false, &g, &err), LVR_OK, "%s", err.msg);
        cr_expect_eq(lvr_model_shape_from_gguf(g, &shape, &err), LVR_OK, "%s", err.msg);
        lvr_gguf_free(g);
        lvr_buf_free(&b);
    }
}

Test(pack, role_names_are_gguf_names)
{
    cr_expect_str_eq(lvr_role_name(LVR_ROLE_TOKEN_EMBD), "token_embd");
    cr_expect_str_eq(lvr_role_name(LVR_ROLE_DOWN), "ffn_down");
    cr_expect_null(lvr_role_name(LVR_ROLE_COUNT));
}
