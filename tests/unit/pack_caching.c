/* The cache of packs: packed once, found again, made again when it cannot be trusted. */
#include "common/fs.h"
#include "common/log.h"
#include "engine/pack_cache.h"
#include "tests/unit/gguf_builder.h"
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[64], cache[128], gguf_path[128];
static lvr_buf notices;

static void keep_notice(lvr_log_level level, const char *message, void *user)
{
    (void)level;
    lvr_buf_printf(user, "%s\n", message);
}

static void setup(void)
{
    snprintf(dir, sizeof dir, "/tmp/lvr-cache-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
    snprintf(cache, sizeof cache, "%s/a/b", dir);
    snprintf(gguf_path, sizeof gguf_path, "%s/tiny.gguf", dir);
    cr_assert_eq(setenv("LVR_CACHE_DIR", cache, 1), 0);
    lvr_log_set_sink(keep_notice, LVR_LOG_INFO, &notices);
}

static void teardown(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    cr_assert_eq(system(command), 0);
    lvr_buf_free(&notices);
}

TestSuite(pack_cache, .init = setup, .fini = teardown);

/* Writes the model with a time stamp of long ago: hashes of files that were just touched are not remembered.
 */
static void build(uint64_t seed, long seconds)
{
    const struct gguf_tiny spec = {.type = LVR_Q4_0, .seed = seed};
    const struct timespec times[2] = {{.tv_sec = seconds}, {.tv_sec = seconds}};
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(gguf_build_tiny(gguf_path, &spec, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(utimensat(AT_FDCWD, gguf_path, times, 0), 0);
}

/* Opens the model; returns the pack's path (to be freed) and whether it was packed now. */
static char *open_model(const char *path, bool *ret_packed)
{
    lvr_pack *p = NULL;
    lvr_error err = LVR_ERROR_INIT;
    lvr_buf_free(&notices);
    notices = LVR_BUF_INIT;
    cr_assert_eq(lvr_pack_open_any(path, &p, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_pack_verify(p, &err), LVR_OK, "%s", err.msg);
    *ret_packed = notices.data != NULL && strstr(notices.data, "packing ") != NULL;
    char *pack_path = strdup(lvr_pack_path(p));
    lvr_pack_free(p);
    return pack_path;
}

static lvr_buf read_hashes(void)
{
    char path[160];
    lvr_buf b = LVR_BUF_INIT;
    lvr_error err = LVR_ERROR_INIT;
    snprintf(path, sizeof path, "%s/hashes.txt", cache);
    if (access(path, F_OK) == 0)
        cr_assert_eq(lvr_read_file(path, 1 << 20, &b, &err), LVR_OK, "%s", err.msg);
    return b;
}

Test(pack_cache, packs_once_and_finds_it_again)
{
    bool packed = false;
    char hash[LVR_SHA256_HEX_BYTES], expected[256];
    build(1, 1000000);
    char *first = open_model(gguf_path, &packed);
    cr_expect(packed);
    char *second = open_model(gguf_path, &packed);
    cr_expect(!packed, "%s", notices.data);
    cr_assert_eq(lvr_sha256_file_hex(gguf_path, hash, NULL), LVR_OK);
    snprintf(expected, sizeof expected, "%s/%s-v%u.lvrpack", cache, hash, LVR_PACK_LAYOUT_VERSION);
    cr_expect_str_eq(first, expected);
    cr_expect_str_eq(second, expected);
    char *third = open_model(first, &packed); /* the pack itself */
    cr_expect(!packed);
    free(first);
    free(second);
    free(third);
}

Test(pack_cache, remembers_hashes_by_identity)
{
    bool packed = false;
    build(1, 1000000);
    free(open_model(gguf_path, &packed));
    lvr_buf b = read_hashes();
    cr_assert_not_null(b.data);
    cr_expect(strstr(b.data, gguf_path) != NULL, "%s", b.data);

    /* A planted hash is believed as long as size, time and inode agree ... */
    char *at = strstr(b.data, " 1000000000000000 ");
    cr_assert_not_null(at);
    char *hash = strchr(at + 18, ' ') + 1;
    memset(hash, 'a', 64);
    char path[160];
    snprintf(path, sizeof path, "%s/hashes.txt", cache);
    cr_assert_eq(lvr_write_file_atomic(path, b.data, b.len, NULL), LVR_OK);
    char *planted = open_model(gguf_path, &packed);
    cr_expect(packed && strstr(planted, "/aaaaaaaa") != NULL, "%s", planted);

    /* ... and not when the file has another time stamp. */
    build(2, 2000000);
    char *changed = open_model(gguf_path, &packed);
    cr_expect(packed && strstr(changed, "/aaaaaaaa") == NULL, "%s", changed);
    lvr_buf_free(&b);
    b = read_hashes();
    cr_expect(strstr(b.data, "aaaaaaaa") == NULL && strstr(b.data, " 2000000000000000 ") != NULL, "%s",
              b.data);
    lvr_buf_free(&b);
    free(planted);
    free(changed);
}

Test(pack_cache, damaged_notes_are_ignored)
{
    bool packed = false;
    char path[160];
    lvr_error err = LVR_ERROR_INIT;
    build(1, 1000000);
    free(open_model(gguf_path, &packed));
    snprintf(path, sizeof path, "%s/hashes.txt", cache);
    static const char junk[] = "\n1 2 3\nx y z\n1 2 3 abc /tmp/x\n99999999999999999999999 1 1 a /x\n\xff\xfe";
    cr_assert_eq(lvr_write_file_atomic(path, junk, sizeof junk, &err), LVR_OK, "%s", err.msg);
    free(open_model(gguf_path, &packed));
    cr_expect(!packed);
    lvr_buf b = read_hashes();
    cr_expect(b.data[0] != '\n' && strstr(b.data, gguf_path) != NULL &&
                  strchr(b.data, '\n') == b.data + b.len - 1,
              "%s", b.data);
    lvr_buf_free(&b);
}

Test(pack_cache, a_file_just_written_is_not_remembered)
{
    bool packed = false;
    const struct gguf_tiny spec = {.type = LVR_Q4_0};
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(gguf_build_tiny(gguf_path, &spec, &err), LVR_OK, "%s", err.msg);
    free(open_model(gguf_path, &packed));
    lvr_buf b = read_hashes();
    cr_expect(b.data == NULL || strstr(b.data, gguf_path) == NULL);
    lvr_buf_free(&b);
}

Test(pack_cache, a_damaged_pack_is_made_again)
{
    bool packed = false;
    build(1, 1000000);
    char *path = open_model(gguf_path, &packed);
    cr_assert_eq(truncate(path, 10000), 0);
    free(open_model(gguf_path, &packed));
    cr_expect(packed && strstr(notices.data, "not usable") != NULL, "%s", notices.data);
    free(open_model(gguf_path, &packed));
    cr_expect(!packed);
    free(path);
}

Test(pack_cache, the_folder_follows_the_environment)
{
    bool packed = false;
    char expected[160];
    lvr_error err = LVR_ERROR_INIT;
    lvr_pack *p = NULL;
    build(1, 1000000);
    unsetenv("LVR_CACHE_DIR");
    setenv("XDG_CACHE_HOME", dir, 1);
    char *path = open_model(gguf_path, &packed);
    snprintf(expected, sizeof expected, "%s/lever/", dir);
    cr_expect_eq(strncmp(path, expected, strlen(expected)), 0, "%s", path);
    free(path);
    setenv("XDG_CACHE_HOME", "relative", 1);
    setenv("HOME", dir, 1);
    path = open_model(gguf_path, &packed);
    snprintf(expected, sizeof expected, "%s/.cache/lever/", dir);
    cr_expect_eq(strncmp(path, expected, strlen(expected)), 0, "%s", path);
    free(path);
    unsetenv("HOME");
    cr_expect_eq(lvr_pack_open_any(gguf_path, &p, &err), LVR_ERR_CONFIG);
    cr_expect(strstr(err.msg, "LVR_CACHE_DIR") != NULL, "%s", err.msg);
    setenv("LVR_CACHE_DIR", gguf_path, 1); /* a file where the folder should be */
    cr_expect_eq(lvr_pack_open_any(gguf_path, &p, &err), LVR_ERR_IO, "%s", err.msg);
    cr_expect_null(p);
}

Test(pack_cache, what_cannot_be_packed_is_refused_before_anything_is_written)
{
    lvr_error err = LVR_ERROR_INIT;
    lvr_pack *p = NULL;
    cr_assert_eq(lvr_write_file_atomic(gguf_path, "hello", 5, &err), LVR_OK, "%s", err.msg);
    cr_expect_eq(lvr_pack_open_any(gguf_path, &p, &err), LVR_ERR_FORMAT);
    const struct gguf_tiny moe = {.extra_key = "llama.expert_count", .extra_u32 = 8};
    cr_assert_eq(gguf_build_tiny(gguf_path, &moe, &err), LVR_OK, "%s", err.msg);
    cr_expect_eq(lvr_pack_open_any(gguf_path, &p, &err), LVR_ERR_UNSUPPORTED);
    cr_expect_eq(lvr_pack_open_any("/nonexistent/x", &p, &err), LVR_ERR_IO);
    cr_expect_neq(access(cache, F_OK), 0);
    cr_expect_null(p);
}

Test(pack_cache, packs_to_a_named_file_but_not_over_the_model)
{
    char out[160], alias[160];
    lvr_error err = LVR_ERROR_INIT;
    lvr_pack *p = NULL;
    build(1, 1000000);
    snprintf(out, sizeof out, "%s/out.lvrpack", dir);
    snprintf(alias, sizeof alias, "%s/alias", dir);
    cr_assert_eq(symlink(gguf_path, alias), 0);
    cr_expect_eq(lvr_pack_from_gguf(gguf_path, gguf_path, NULL, &err), LVR_ERR_IO);
    cr_expect_eq(lvr_pack_from_gguf(gguf_path, alias, NULL, &err), LVR_ERR_IO);
    cr_expect(strstr(err.msg, "the model itself") != NULL, "%s", err.msg);
    cr_assert_eq(lvr_pack_from_gguf(alias, out, NULL, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_pack_open(out, &p, &err), LVR_OK, "%s", err.msg);
    lvr_pack_free(p);
}
