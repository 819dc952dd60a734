/* Packs: what is written comes back, what is damaged is refused, what cannot be computed is named. */
#include "common/fs.h"
#include "engine/pack.h"
#include "tests/unit/gguf_builder.h"
#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
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
    cr_assert_eq(lvr_pack_write(g, sha, pack_path, NULL, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_pack_open(pack_path, &p, &err), LVR_OK, "%s", err.msg);
    lvr_gguf_free(g);
    return p;
}

/* ---- what is written comes back ---- */

/* The row of the file that is row `row` of the pack: architectures that rotate (i, i + head_dim / 2) have the
 * rows of queries and keys in pairs. Written anew here. */
static uint32_t row_in_file(const lvr_model_shape *s, lvr_role role, uint32_t row)
{
    static const lvr_role paired[] = {LVR_ROLE_Q,      LVR_ROLE_K,      LVR_ROLE_Q_BIAS,
                                      LVR_ROLE_K_BIAS, LVR_ROLE_Q_NORM, LVR_ROLE_K_NORM};
    const uint32_t head = row / s->head_dim, i = row % s->head_dim;
    for (size_t k = 0; strcmp(s->arch, "llama") != 0 && k < sizeof paired / sizeof *paired; k++)
        if (paired[k] == role)
            return head * s->head_dim + (i % 2 == 0 ? i / 2 : s->head_dim / 2 + i / 2);
    return row;
}

static void expect_same_rows(const lvr_model_shape *s, const lvr_pack_tensor *t, const uint8_t *raw,
                             const uint8_t *packed)
{
    const uint64_t bytes = (lvr_packed_bytes(t->type, t->n_out, t->n_in) + 63) / 64 * 64;
    uint8_t *all = aligned_alloc(64, bytes);
    float *expected = malloc(t->n_in * sizeof *expected), *found = malloc(t->n_in * sizeof *found);
    cr_assert(all != NULL && expected != NULL && found != NULL);
    lvr_pack_matrix(t->type, t->n_out, t->n_in, raw, all);
    const lvr_matrix file = {.type = t->type, .n_out = t->n_out, .n_in = t->n_in, .data = all};
    const lvr_matrix pack = {.type = t->type, .n_out = t->n_out, .n_in = t->n_in, .data = packed};
    for (uint32_t row = 0; row < t->n_out; row++) {
        lvr_packed_row(&file, row_in_file(s, t->role, row), expected);
        lvr_packed_row(&pack, row, found);
        cr_assert_eq(memcmp(expected, found, t->n_in * sizeof *found), 0, "%s row %u differs",
                     lvr_role_name(t->role), row);
    }
    free(all);
    free(expected);
    free(found);
}

static void expect_same_vector(const lvr_model_shape *s, const lvr_pack_tensor *t, lvr_wtype type,
                               const uint8_t *raw, const uint8_t *packed)
{
    for (uint32_t i = 0; i < t->n_in; i++) {
        const uint32_t from = row_in_file(s, t->role, i);
        float expected = 0, found = 0;
        uint16_t half = 0;
        memcpy(&found, packed + i * sizeof found, sizeof found);
        memcpy(&half, raw + from * 2, sizeof half);
        if (type == LVR_F16)
            expected = lvr_f16_to_f32(half);
        else
            memcpy(&expected, raw + from * sizeof expected, sizeof expected);
        cr_assert_eq(expected, found, "%s element %u", lvr_role_name(t->role), i);
    }
}

static void expect_tensor(const lvr_gguf *g, const lvr_model_shape *s, const char *name,
                          const lvr_pack_tensor *t, const uint8_t *section, uint64_t section_bytes)
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
    if (t->n_out == 1)
        expect_same_vector(s, t, src->type, raw, section + t->offset);
    else
        expect_same_rows(s, t, raw, section + t->offset);
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
    for (unsigned role = 0; role < LVR_FIRST_LAYER_ROLE; role++) {
        const lvr_pack_tensor *t = lvr_pack_resident_tensor(p, (lvr_role)role);
        cr_assert_eq(t != NULL, lvr_gguf_find(g, lvr_role_name((lvr_role)role)) != NULL);
        if (t != NULL)
            expect_tensor(g, s, lvr_role_name((lvr_role)role), t, data, lvr_pack_resident_bytes(p));
    }
    free(data);
    for (uint32_t layer = 0; layer < s->n_layers; layer++) {
        cr_assert_eq(lvr_pack_layer_offset(p, layer), end);
        end += lvr_pack_layer_bytes(p, layer);
        data = read_section(lvr_pack_layer_offset(p, layer), lvr_pack_layer_bytes(p, layer),
                            lvr_pack_layer_crc(p, layer));
        for (unsigned role = LVR_FIRST_LAYER_ROLE; role < LVR_ROLE_COUNT; role++) {
            char name[64];
            const lvr_pack_tensor *t = lvr_pack_layer_tensor(p, layer, (lvr_role)role);
            snprintf(name, sizeof name, "blk.%u.%s", layer, lvr_role_name((lvr_role)role));
            cr_assert_eq(t != NULL, lvr_gguf_find(g, name) != NULL, "%s", name);
            if (t != NULL)
                expect_tensor(g, s, name, t, data, lvr_pack_layer_bytes(p, layer));
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

static const lvr_wtype all_types[] = {LVR_F32,  LVR_F16,  LVR_BF16, LVR_Q8_0, LVR_Q4_0, LVR_Q4_1,
                                      LVR_Q5_0, LVR_Q5_1, LVR_Q4_K, LVR_Q5_K, LVR_Q6_K};
#define N_TYPES (sizeof all_types / sizeof *all_types)

Test(pack, every_weight_type_comes_back_exactly)
{
    for (size_t i = 0; i < N_TYPES; i++) {
        const struct gguf_tiny own_head = {.type = all_types[i],
                                           .seed = i,
                                           .d_model = 256,
                                           .d_ff = 256,
                                           .v_type = all_types[(i + 1) % N_TYPES]};
        const struct gguf_tiny tied = {.type = all_types[i],
                                       .seed = i,
                                       .d_model = 256,
                                       .d_ff = 256,
                                       .tied = true,
                                       .f16_norms = true,
                                       .vocab = 301};
        expect_round_trip(&own_head);
        expect_round_trip(&tied);
    }
}

Test(pack, every_architecture_comes_back_exactly)
{
    const struct gguf_tiny models[] = {
        {.type = LVR_Q8_0, .biases = true, .rope_freqs = true, .f16_norms = true},
        {.type = LVR_Q4_0, .arch = "qwen2", .tied = true, .head_type = LVR_Q8_0},
        {.type = LVR_Q4_K,
         .arch = "qwen3",
         .d_model = 256,
         .d_ff = 256,
         .n_heads = 2,
         .n_kv = 1,
         .head_dim = 128},
        {.type = LVR_F32, .arch = "qwen3", .head_dim = 48, .n_heads = 2, .n_kv = 2, .rope_freqs = true},
    };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        expect_round_trip(&models[i]);
}

/* Larger than a slice, and than all slices of a round; with heads whose rows change places. */
Test(pack, large_matrices_come_back_exactly)
{
    const struct gguf_tiny wide = {.type = LVR_F32,
                                   .vocab = 9001,
                                   .d_model = 160,
                                   .n_heads = 10,
                                   .n_kv = 5,
                                   .n_layers = 1,
                                   .tied = true};
    const struct gguf_tiny deep = {.type = LVR_F32,
                                   .arch = "qwen2",
                                   .vocab = 4001,
                                   .d_model = 1024,
                                   .n_heads = 48,
                                   .n_kv = 24,
                                   .head_dim = 80,
                                   .n_layers = 1};
    expect_round_trip(&wide);
    expect_round_trip(&deep);
}

static lvr_buf pack_with_threads(const lvr_gguf *g, uint32_t n_threads)
{
    lvr_buf b = LVR_BUF_INIT;
    lvr_error err = LVR_ERROR_INIT;
    const lvr_pack_options options = {.n_threads = n_threads};
    cr_assert_eq(lvr_pack_write(g, sha, pack_path, &options, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_read_file(pack_path, 1 << 28, &b, &err), LVR_OK, "%s", err.msg);
    return b;
}

Test(pack, threads_change_no_byte)
{
    const struct gguf_tiny spec = {.type = LVR_F32, .vocab = 8001, .d_model = 512, .n_layers = 1};
    lvr_gguf *g = build(&spec);
    lvr_buf one = pack_with_threads(g, 1);
    for (uint32_t n = 2; n <= 5; n++) {
        lvr_buf many = pack_with_threads(g, n);
        cr_expect(many.len == one.len && memcmp(many.data, one.data, one.len) == 0, "%u threads", n);
        lvr_buf_free(&many);
    }
    lvr_buf_free(&one);
    lvr_gguf_free(g);
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
    cr_expect_eq(lvr_pack_write(g, sha, missing, NULL, &err), LVR_ERR_IO);
    cr_expect(strstr(err.msg, "none/x.lvrpack") != NULL, "%s", err.msg);
    cr_expect_eq(lvr_pack_write(g, sha, dir, NULL, &err), LVR_ERR_IO, "a folder cannot be replaced");
    cr_expect_eq(lvr_pack_write(g, no_hash, pack_path, NULL, &err), LVR_ERR_USAGE);
    cr_expect_eq(count_files(), 1);

    /* a limit on the file's size stands for a full device */
    const struct rlimit limit = {.rlim_cur = 64 << 10, .rlim_max = 64 << 10};
    signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    cr_expect_eq(lvr_pack_write(g, sha, pack_path, NULL, &err), LVR_ERR_IO);
    cr_expect_eq(count_files(), 1);
    lvr_gguf_free(g);
}

Test(pack, a_source_that_shrinks_meanwhile_is_an_error)
{
    const struct gguf_tiny spec = {.type = LVR_F32};
    lvr_error err = LVR_ERROR_INIT;
    lvr_gguf *g = build(&spec);
    cr_assert_eq(truncate(gguf_path, (off_t)lvr_gguf_file_bytes(g) - 100), 0);
    cr_expect_eq(lvr_pack_write(g, sha, pack_path, NULL, &err), LVR_ERR_FORMAT);
    cr_expect_eq(count_files(), 1);
    lvr_gguf_free(g);
}

struct interruption {
    atomic_bool cancel;
    uint64_t calls, last_bytes;
};

static void cancel_at_half(const char *stage, uint64_t done_bytes, uint64_t total_bytes, void *user)
{
    struct interruption *x = user;
    cr_expect_str_eq(stage, "packing");
    cr_expect(done_bytes >= x->last_bytes && done_bytes <= total_bytes);
    x->last_bytes = done_bytes;
    x->calls++;
    atomic_store(&x->cancel, true);
}

Test(pack, an_interruption_leaves_nothing)
{
    const struct gguf_tiny spec = {.type = LVR_F32, .vocab = 8001, .d_model = 512, .n_layers = 1};
    struct interruption x = {.calls = 0};
    const lvr_pack_options options = {
        .n_threads = 1, .cancel = &x.cancel, .progress = cancel_at_half, .user = &x};
    lvr_error err = LVR_ERROR_INIT;
    lvr_gguf *g = build(&spec);
    cr_expect_eq(lvr_pack_write(g, sha, pack_path, &options, &err), LVR_ERR_INTERRUPTED, "%s", err.msg);
    cr_expect_eq(x.calls, 1);
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
    b.data[8] = 1; /* an older one */
    cr_expect_eq(open_bytes(b.data, b.len, &err), LVR_ERR_UNSUPPORTED);
    cr_expect(strstr(err.msg, "pack version 1") && strstr(err.msg, "pack the model again"), "%s", err.msg);
    b.data[8] = LVR_PACK_FILE_VERSION, b.data[12] = 9;
    cr_expect_eq(open_bytes(b.data, b.len, &err), LVR_ERR_UNSUPPORTED);
    cr_expect(strstr(err.msg, "layout version 9") && strstr(err.msg, "pack the model again"), "%s", err.msg);
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
