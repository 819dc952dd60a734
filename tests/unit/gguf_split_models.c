/* Split models: read as the whole file is, and what is wrong with a part is said by the part's name. */
#include "common/fs.h"
#include "engine/pack_cache.h"
#include "tests/unit/gguf_builder.h"
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N_PARTS 3u

static char dir[64], whole_path[128];

static void setup(void)
{
    snprintf(dir, sizeof dir, "/tmp/lvr-split-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
    snprintf(whole_path, sizeof whole_path, "%s/whole.gguf", dir);
    cr_assert_eq(setenv("LVR_CACHE_DIR", dir, 1), 0);
}

static void teardown(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    cr_assert_eq(system(command), 0);
}

TestSuite(gguf_split, .init = setup, .fini = teardown);

static const char *part_path(uint32_t i)
{
    static char path[160];
    snprintf(path, sizeof path, "%s/tiny-%05u-of-%05u.gguf", dir, i + 1, N_PARTS);
    return path;
}

/* What a part says of itself. */
struct part_spec {
    uint32_t no, count, tensors_count;
    uint64_t first, end; /* its tensors */
    const char *arch;    /* one more key, NULL: none */
};

/* Keys of the whole file, as they are there. */
static void put_keys(lvr_buf *b, const lvr_gguf *whole, const void *header)
{
    uint64_t n = 0;
    const char *first = "general.architecture", *bytes = header;
    (void)lvr_gguf_header(whole, &n);
    const char *begin = bytes + 24;
    cr_assert_eq(memcmp(begin + 8, first, strlen(first)), 0);
    /* the tensor table starts with the first tensor's name */
    const char *end = memmem(bytes, n, "token_embd.weight", 17);
    cr_assert_not_null(end);
    lvr_buf_append(b, begin, (uint64_t)(end - 8 - begin));
}

static void write_part(const lvr_gguf *whole, const struct part_spec *p, const char *path)
{
    lvr_buf b = LVR_BUF_INIT;
    lvr_error err = LVR_ERROR_INIT;
    uint64_t n = 0, offset = 0;
    const bool first = p->first == 0;
    gguf_put_head(&b, p->end - p->first, 3 + (first ? lvr_gguf_n_keys(whole) : 0) + (p->arch != NULL));
    if (first)
        put_keys(&b, whole, lvr_gguf_header(whole, &n));
    gguf_put_kv_u32(&b, "split.no", p->no);
    gguf_put_kv_u32(&b, "split.count", p->count);
    gguf_put_kv_u32(&b, "split.tensors.count", p->tensors_count);
    if (p->arch != NULL)
        gguf_put_kv_str(&b, "general.architecture", p->arch);
    for (uint64_t i = p->first; i < p->end; i++) {
        const lvr_gguf_tensor *t = lvr_gguf_tensor_at(whole, i);
        gguf_put_tensor(&b, t->name, t->n_dims, t->dims, t->type, offset);
        offset = (offset + t->bytes + 31) / 32 * 32;
    }
    gguf_pad(&b, 32);
    for (uint64_t i = p->first; i < p->end; i++) {
        const lvr_gguf_tensor *t = lvr_gguf_tensor_at(whole, i);
        char *data = malloc(t->bytes);
        cr_assert_not_null(data);
        cr_assert_eq(lvr_gguf_read(whole, t, data, &err), LVR_OK, "%s", err.msg);
        lvr_buf_append(&b, data, t->bytes);
        gguf_pad(&b, 32);
        free(data);
    }
    cr_assert_eq(lvr_write_file_atomic(path, b.data, b.len, &err), LVR_OK, "%s", err.msg);
    lvr_buf_free(&b);
}

static lvr_gguf *make_whole(void)
{
    const struct gguf_tiny spec = {.type = LVR_Q8_0, .arch = "qwen3", .seed = 7};
    lvr_gguf *g = NULL;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(gguf_build_tiny(whole_path, &spec, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_gguf_open(whole_path, &g, &err), LVR_OK, "%s", err.msg);
    return g;
}

/* Sound parts of a model of `n` tensors; the first holds none, as some splitters do it. */
static struct part_spec sound_part(uint32_t i, uint64_t n)
{
    const uint64_t ends[N_PARTS] = {0, 9, n};
    return (struct part_spec){.no = i,
                              .count = N_PARTS,
                              .tensors_count = (uint32_t)n,
                              .first = i == 0 ? 0 : ends[i - 1],
                              .end = ends[i]};
}

static void write_parts(const lvr_gguf *whole)
{
    for (uint32_t i = 0; i < N_PARTS; i++) {
        const struct part_spec p = sound_part(i, lvr_gguf_n_tensors(whole));
        write_part(whole, &p, part_path(i));
    }
}

static void expect_same_tensors(const lvr_gguf *whole, const lvr_gguf *split)
{
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_gguf_n_tensors(split), lvr_gguf_n_tensors(whole));
    for (uint64_t i = 0; i < lvr_gguf_n_tensors(whole); i++) {
        const lvr_gguf_tensor *a = lvr_gguf_tensor_at(whole, i), *b = lvr_gguf_tensor_at(split, i);
        char *x = malloc(a->bytes), *y = malloc(a->bytes);
        cr_assert(x != NULL && y != NULL && a->bytes == b->bytes && strcmp(a->name, b->name) == 0);
        cr_assert_eq(lvr_gguf_read(whole, a, x, &err), LVR_OK, "%s", err.msg);
        cr_assert_eq(lvr_gguf_read(split, b, y, &err), LVR_OK, "%s", err.msg);
        cr_expect_eq(memcmp(x, y, a->bytes), 0, "%s", a->name);
        free(x);
        free(y);
    }
}

Test(gguf_split, any_part_opens_the_whole_model)
{
    lvr_gguf *whole = make_whole();
    write_parts(whole);
    for (uint32_t i = 0; i < N_PARTS; i++) {
        lvr_gguf *split = NULL;
        lvr_error err = LVR_ERROR_INIT;
        cr_assert_eq(lvr_gguf_open(part_path(i), &split, &err), LVR_OK, "%s", err.msg);
        expect_same_tensors(whole, split);
        cr_expect_eq(lvr_gguf_n_keys(split), lvr_gguf_n_keys(whole));
        cr_expect(!lvr_gguf_has(split, "split.count"));
        cr_expect_eq(lvr_gguf_n_parts(split), N_PARTS);
        for (uint32_t k = 0; k < N_PARTS; k++)
            cr_expect_str_eq(lvr_gguf_part_path(split, k), part_path(k));
        lvr_gguf_free(split);
    }
    lvr_gguf_free(whole);
}

/* Packs of the whole and of the split model are the same but for the source's hash and size; that hash is of
 * the parts one after the other. */
Test(gguf_split, packs_as_the_whole_model)
{
    lvr_gguf *whole = make_whole();
    lvr_pack *a = NULL, *b = NULL;
    lvr_error err = LVR_ERROR_INIT;
    lvr_sha256 sha;
    char hex[LVR_SHA256_HEX_BYTES];
    write_parts(whole);
    cr_assert_eq(lvr_pack_open_any(whole_path, &a, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_pack_open_any(part_path(1), &b, &err), LVR_OK, "%s", err.msg);
    cr_expect_eq(lvr_pack_verify(b, &err), LVR_OK, "%s", err.msg);
    cr_expect_eq(lvr_pack_file_bytes(a), lvr_pack_file_bytes(b));
    cr_expect_eq(lvr_pack_resident_crc(a), lvr_pack_resident_crc(b));
    for (uint32_t l = 0; l < lvr_pack_shape(a)->n_layers; l++)
        cr_expect_eq(lvr_pack_layer_crc(a, l), lvr_pack_layer_crc(b, l));
    lvr_sha256_init(&sha);
    for (uint32_t i = 0; i < N_PARTS; i++) {
        lvr_buf bytes = LVR_BUF_INIT;
        cr_assert_eq(lvr_read_file(part_path(i), 1 << 24, &bytes, &err), LVR_OK, "%s", err.msg);
        lvr_sha256_update(&sha, bytes.data, bytes.len);
        lvr_buf_free(&bytes);
    }
    lvr_sha256_hex(&sha, hex);
    cr_expect_str_eq(lvr_pack_source_sha256(b), hex);
    lvr_pack_free(a);
    lvr_pack_free(b);
    lvr_gguf_free(whole);
}

static void expect_refused(const char *name, uint32_t by, lvr_status expected, const char *part,
                           const char *says)
{
    lvr_gguf *g = NULL;
    lvr_error err = LVR_ERROR_INIT;
    cr_expect_eq(lvr_gguf_open(part_path(by), &g, &err), expected, "%s: %s", name, err.msg);
    cr_expect(strstr(err.msg, part) != NULL, "%s: \"%s\" does not name %s", name, err.msg, part);
    cr_expect(strstr(err.msg, says) != NULL, "%s: \"%s\" does not say \"%s\"", name, err.msg, says);
    cr_expect_null(g);
}

Test(gguf_split, a_missing_part_is_named)
{
    lvr_gguf *whole = make_whole();
    for (uint32_t missing = 0; missing < N_PARTS; missing++) {
        char name[128];
        write_parts(whole);
        unlink(part_path(missing));
        snprintf(name, sizeof name, "part %u of 3 of the split model: %s", missing + 1, dir);
        expect_refused("missing", missing == 0 ? 1 : 0, LVR_ERR_IO, name, "No such file");
        expect_refused("missing", missing == 0 ? 1 : 0, LVR_ERR_IO, name, "or copy it there");
    }
    lvr_gguf_free(whole);
}

Test(gguf_split, a_truncated_part_is_named)
{
    lvr_gguf *whole = make_whole();
    write_parts(whole);
    cr_assert_eq(truncate(part_path(1), 4000), 0);
    expect_refused("truncated", 0, LVR_ERR_FORMAT, "00002-of-00003", "are missing");
    lvr_gguf_free(whole);
}

Test(gguf_split, a_renamed_part_is_told_its_name)
{
    char other[160];
    lvr_gguf *whole = make_whole(), *g = NULL;
    lvr_error err = LVR_ERROR_INIT;
    write_parts(whole);
    snprintf(other, sizeof other, "%s/model.gguf", dir);
    cr_assert_eq(rename(part_path(1), other), 0);
    cr_expect_eq(lvr_gguf_open(other, &g, &err), LVR_ERR_FORMAT);
    cr_expect(strstr(err.msg, "model.gguf: part 2 of 3") && strstr(err.msg, "-00002-of-00003.gguf"), "%s",
              err.msg);
    cr_assert_eq(rename(other, part_path(2)), 0); /* the second under the third's name */
    cr_expect_eq(lvr_gguf_open(part_path(2), &g, &err), LVR_ERR_FORMAT);
    cr_expect(strstr(err.msg, "-00002-of-00003.gguf") != NULL, "%s", err.msg);
    lvr_gguf_free(whole);
}

/* One part is written wrongly; the model is opened by the first. */
Test(gguf_split, parts_that_do_not_fit_are_named)
{
    lvr_gguf *whole = make_whole();
    const uint32_t n = (uint32_t)lvr_gguf_n_tensors(whole);
    const struct {
        const char *name, *part, *says;
        uint32_t which;
        struct part_spec spec;
    } cases[] = {
        {"another number",
         "00002-of",
         "split.no is 2, expected 1: the part belongs to another model, or was renamed; give",
         1,
         {2, 3, n, 0 + 1, 9, NULL}},
        {"another count of parts", "00002-of", "split.count is 4, expected 3", 1, {1, 4, n, 1, 9, NULL}},
        {"another count of tensors",
         "00002-of",
         "split.tensors.count is 5, expected",
         1,
         {1, 3, 5, 1, 9, NULL}},
        {"tensors twice", "00003-of", "is in ", 2, {2, 3, n, 8, n, NULL}},
        {"tensors lacking", "00001-of", "split.tensors.count is", 2, {2, 3, n, 10, n, NULL}},
        {"another architecture", "00003-of", "general.architecture differs", 2, {2, 3, n, 9, n, "llama"}},
        {"no such part", "00001-of", "split.no is 3, but split.count is 3", 0, {3, 3, n, 0, 0, NULL}},
        {"too many parts", "00001-of", "split.count is 10000", 0, {0, 10000, n, 0, 0, NULL}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_parts(whole);
        write_part(whole, &cases[i].spec, part_path(cases[i].which));
        expect_refused(cases[i].name, 0, LVR_ERR_FORMAT, cases[i].part, cases[i].says);
    }
    lvr_gguf_free(whole);
}

Test(gguf_split, packing_over_a_part_is_refused)
{
    lvr_gguf *whole = make_whole();
    lvr_error err = LVR_ERROR_INIT;
    char out[160];
    write_parts(whole);
    snprintf(out, sizeof out, "%s", part_path(2));
    cr_expect_eq(lvr_pack_from_gguf(part_path(0), out, NULL, &err), LVR_ERR_IO);
    cr_expect(strstr(err.msg, "the model itself") != NULL, "%s", err.msg);
    lvr_gguf_free(whole);
}
