#include "engine/pack_cache.h"
#include "common/cache_dir.h"
#include "common/clock.h"
#include "common/fs.h"
#include "common/log.h"
#include "engine/tokenizer/tokenizer.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HASHES_FILE "hashes.txt"
#define MAX_HASHES_BYTES (1ull << 20)
#define MAX_REMEMBERED 1000u
#define HASH_CHUNK_BYTES (1u << 20)
#define PROGRESS_BYTES (256ull << 20) /* smaller files are hashed without progress notices */
#define RACY_NS                                                                                              \
    2000000000ull /* a file touched this recently may change again within one tick of its time stamp */

#define PROGRESS_NS 200000000ull
#define REMEDY "copy the file again or pack the model again"
#define FNV_PRIME 0x100000001b3ull

/* What tells a model from another version of itself without reading it. */
struct identity {
    char *path;               /* absolute; of a split model, the first part's */
    uint64_t bytes, mtime_ns; /* of all parts together, and of the one touched last */
    uint64_t inode;           /* of several parts: a hash of their inodes, times and sizes */
};

/* What is open under the part's name, and its absolute path. */
static lvr_status take_part(const lvr_gguf *g, uint32_t i, char **ret_absolute, struct stat *ret,
                            lvr_error *err)
{
    const char *path = lvr_gguf_part_path(g, i);
    char *absolute = realpath(path, NULL);
    if (absolute == NULL || fstat(lvr_gguf_part_fd(g, i), ret) != 0) {
        const int errnum = errno;
        free(absolute);
        return lvr_fail_errno(err, errnum, "%s: cannot stat", path);
    }
    *ret_absolute = absolute;
    return LVR_OK;
}

static uint64_t mix(uint64_t hash, uint64_t value)
{
    return (hash ^ value) * FNV_PRIME;
}

static void add_part(struct identity *id, const struct stat *st, uint32_t n_parts)
{
    const uint64_t mtime_ns = (uint64_t)st->st_mtim.tv_sec * 1000000000u + (uint64_t)st->st_mtim.tv_nsec;
    id->bytes += (uint64_t)st->st_size;
    id->mtime_ns = mtime_ns > id->mtime_ns ? mtime_ns : id->mtime_ns;
    id->inode = n_parts == 1 ? (uint64_t)st->st_ino
                             : mix(mix(mix(id->inode, st->st_ino), mtime_ns), (uint64_t)st->st_size);
}

static lvr_status take_identity(const lvr_gguf *g, struct identity *ret, lvr_error *err)
{
    struct identity id = {0};
    const uint32_t n = lvr_gguf_n_parts(g);
    for (uint32_t i = 0; i < n; i++) {
        struct stat st;
        char *absolute = NULL;
        const lvr_status status = take_part(g, i, &absolute, &st, err);
        if (status != LVR_OK) {
            free(id.path);
            return status;
        }
        add_part(&id, &st, n);
        if (i == 0)
            id.path = absolute;
        else
            free(absolute);
    }
    *ret = id;
    return LVR_OK;
}

static bool same_file(const struct identity *a, const struct identity *b)
{
    return a->bytes == b->bytes && a->mtime_ns == b->mtime_ns && a->inode == b->inode &&
           strcmp(a->path, b->path) == 0;
}

/* One line of hashes.txt: "bytes mtime_ns inode sha256 path". False if it is not of that form. */
static bool parse_line(const char *line, struct identity *ret, char sha256[LVR_SHA256_HEX_BYTES],
                       const char **ret_path)
{
    int at = 0;
    if (sscanf(line, "%" SCNu64 " %" SCNu64 " %" SCNu64 " %64[0-9a-f] %n", &ret->bytes, &ret->mtime_ns,
               &ret->inode, sha256, &at) != 4)
        return false;
    if (at == 0 || strlen(sha256) != LVR_SHA256_HEX_BYTES - 1 || line[at] != '/')
        return false;
    *ret_path = line + at;
    return true;
}

static char *hashes_path(const char *dir)
{
    char *path = NULL;
    return asprintf(&path, "%s/" HASHES_FILE, dir) < 0 ? NULL : path;
}

/* Looks `id` up among remembered hashes. `keep`, if given, receives the lines of other files. */
static bool scan_hashes(const char *dir, const struct identity *id, char sha256[LVR_SHA256_HEX_BYTES],
                        lvr_buf *keep)
{
    lvr_buf text = LVR_BUF_INIT;
    char *path = hashes_path(dir), *rest = NULL;
    bool found = false;
    uint32_t kept = 0;
    if (path == NULL || lvr_read_file(path, MAX_HASHES_BYTES, &text, NULL) != LVR_OK || text.data == NULL)
        goto out; /* absent or unreadable: nothing is remembered */
    for (char *line = strtok_r(text.data, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        struct identity seen = {0};
        char hex[LVR_SHA256_HEX_BYTES];
        const char *seen_path = NULL;
        if (!parse_line(line, &seen, hex, &seen_path))
            continue;
        if (strcmp(seen_path, id->path) == 0) {
            found = seen.bytes == id->bytes && seen.mtime_ns == id->mtime_ns && seen.inode == id->inode;
            if (found)
                memcpy(sha256, hex, sizeof(hex));
        } else if (keep != NULL && kept < MAX_REMEMBERED) {
            lvr_buf_printf(keep, "%s\n", line);
            kept++;
        }
    }
out:
    free(path);
    lvr_buf_free(&text);
    return found;
}

/* Forgetting costs time, not correctness: failures are only reported. */
static void remember(const char *dir, const struct identity *id, const char *sha256)
{
    char old[LVR_SHA256_HEX_BYTES];
    lvr_error err = LVR_ERROR_INIT;
    lvr_buf lines = LVR_BUF_INIT;
    char *path = hashes_path(dir);
    if (path == NULL || strchr(id->path, '\n') != NULL || id->mtime_ns + RACY_NS > lvr_realtime_ns())
        goto out;
    (void)scan_hashes(dir, id, old, &lines);
    lvr_buf_printf(&lines, "%" PRIu64 " %" PRIu64 " %" PRIu64 " %s %s\n", id->bytes, id->mtime_ns, id->inode,
                   sha256, id->path);
    if (!lines.failed && lvr_write_file_atomic(path, lines.data, lines.len, &err) != LVR_OK)
        lvr_log(LVR_LOG_WARN, "the model's hash is not remembered: %s", err.msg);
out:
    free(path);
    lvr_buf_free(&lines);
}

/* A model being hashed, part after part. */
struct hashing {
    const char *path;
    const lvr_pack_options *options;
    lvr_sha256 sha;
    uint8_t *chunk;
    uint64_t done, total, reported_ns;
};

static void show_hashing(struct hashing *h, uint64_t n)
{
    const unsigned before = (unsigned)(h->done * 10 / h->total);
    const uint64_t now = lvr_now_ns();
    h->done += n;
    const unsigned tenths = (unsigned)(h->done * 10 / h->total);
    if (h->options->progress == NULL) {
        if (h->total >= PROGRESS_BYTES && tenths > before)
            lvr_log(LVR_LOG_INFO, "hashing %s: %u %%", h->path, tenths * 10);
        return;
    }
    if (now - h->reported_ns < PROGRESS_NS && h->done < h->total)
        return;
    h->reported_ns = now;
    h->options->progress("hashing", h->done, h->total, h->options->user);
}

static lvr_status hash_part(struct hashing *h, const lvr_gguf *g, uint32_t part, lvr_error *err)
{
    const char *path = lvr_gguf_part_path(g, part);
    const uint64_t bytes = lvr_gguf_part_bytes(g, part);
    const atomic_bool *cancel = h->options->cancel;
    for (uint64_t at = 0; at < bytes; at += HASH_CHUNK_BYTES) {
        const uint64_t n = bytes - at < HASH_CHUNK_BYTES ? bytes - at : HASH_CHUNK_BYTES;
        if (cancel != NULL && atomic_load(cancel))
            return lvr_fail(err, LVR_ERR_INTERRUPTED, "interrupted while hashing %s: no pack was written",
                            path);
        const lvr_status status = lvr_pread_all(lvr_gguf_part_fd(g, part), h->chunk, n, at, path, err);
        if (status != LVR_OK)
            return status;
        lvr_sha256_update(&h->sha, h->chunk, n);
        show_hashing(h, n);
    }
    return LVR_OK;
}

/* Of the parts' bytes, one part after the other. */
static lvr_status hash_model(const lvr_gguf *g, const lvr_pack_options *options,
                             char ret_hex[LVR_SHA256_HEX_BYTES], lvr_error *err)
{
    struct hashing h = {.path = lvr_gguf_path(g), .options = options, .total = lvr_gguf_file_bytes(g)};
    lvr_status status = LVR_OK;
    lvr_sha256_init(&h.sha);
    h.chunk = malloc(HASH_CHUNK_BYTES);
    if (h.chunk == NULL)
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory", h.path);
    for (uint32_t i = 0; status == LVR_OK && i < lvr_gguf_n_parts(g); i++)
        status = hash_part(&h, g, i, err);
    if (status == LVR_OK)
        lvr_sha256_hex(&h.sha, ret_hex);
    free(h.chunk);
    return status;
}

/* A pack of a model without a usable tokenizer would be of no use to who asks for this. */
static lvr_status check_tokenizer(const lvr_gguf *g, const lvr_pack_options *options, lvr_error *err)
{
    lvr_tokenizer *t = NULL;
    if (!options->needs_tokenizer)
        return LVR_OK;
    const lvr_status status = lvr_tokenizer_new(g, &t, err);
    lvr_tokenizer_free(t);
    return status;
}

static lvr_status known_hash(const lvr_gguf *g, const char *dir, const struct identity *id,
                             const lvr_pack_options *options, char ret_hex[LVR_SHA256_HEX_BYTES],
                             lvr_error *err)
{
    if (scan_hashes(dir, id, ret_hex, NULL))
        return LVR_OK;
    lvr_status status = check_tokenizer(g, options, err);
    if (status == LVR_OK)
        status = hash_model(g, options, ret_hex, err);
    if (status == LVR_OK)
        remember(dir, id, ret_hex);
    return status;
}

/* The GGUF must be the same file after packing as before, or the pack would carry the wrong hash. */
static lvr_status pack_unchanged(const lvr_gguf *g, const struct identity *id, const char *sha256,
                                 const char *out, const lvr_pack_options *options, lvr_error *err)
{
    struct identity after = {0};
    lvr_status status = lvr_pack_write(g, sha256, out, options, err);
    if (status == LVR_OK)
        status = take_identity(g, &after, err);
    if (status == LVR_OK && !same_file(id, &after)) {
        (void)unlink(out);
        status = lvr_fail(err, LVR_ERR_IO, "%s changed while it was being packed; try again", id->path);
    }
    free(after.path);
    return status;
}

const char *lvr_pack_remedy(const char *path)
{
    char *dir = NULL;
    if (lvr_cache_dir(&dir, NULL) != LVR_OK)
        return REMEDY;
    const size_t n = strlen(dir);
    const bool cached = strncmp(path, dir, n) == 0 && path[n] == '/';
    free(dir);
    return cached ? "it is a copy in the cache: delete it, and the next run packs the model again" : REMEDY;
}

/* Of the cache directory, with what else to do. */
static lvr_status fail_unwritable(lvr_status status, lvr_error *err)
{
    return err ? lvr_fail(err, status,
                          "%s; the packed model is kept there: set LVR_CACHE_DIR to a folder that can be "
                          "written, or pack it elsewhere with lever model pack -o FILE and run that",
                          err->msg)
               : status;
}

/* The cached pack, if there is a sound one. */
static bool open_cached(const char *path, const char *sha256, lvr_pack **ret)
{
    lvr_error err = LVR_ERROR_INIT;
    lvr_pack *p = NULL;
    if (access(path, F_OK) != 0)
        return false;
    if (lvr_pack_open(path, &p, &err) != LVR_OK) {
        lvr_log(LVR_LOG_WARN, "the cached pack is not usable and is made again: %s", err.msg);
        return false;
    }
    if (strcmp(lvr_pack_source_sha256(p), sha256) != 0) {
        lvr_log(LVR_LOG_WARN, "%s: the cached pack was made from another model and is made again", path);
        lvr_pack_free(p);
        return false;
    }
    *ret = p;
    return true;
}

/* Opens a GGUF that can be packed. Identity, hash and pack are all of the open files, whatever happens to
 * their names meanwhile. The shape is checked before gigabytes are hashed for nothing. */
static lvr_status open_packable(const char *path, lvr_gguf **ret, struct identity *ret_id, lvr_error *err)
{
    lvr_gguf *g = NULL;
    lvr_model_shape shape;
    struct identity id = {0};
    lvr_status status = lvr_gguf_open(path, &g, err);
    if (status == LVR_OK)
        status = take_identity(g, &id, err);
    if (status == LVR_OK)
        status = lvr_model_shape_from_gguf(g, &shape, err);
    if (status != LVR_OK) {
        lvr_gguf_free(g);
        free(id.path);
        return status;
    }
    *ret = g;
    *ret_id = id;
    return LVR_OK;
}

static lvr_status pack_and_open(const lvr_gguf *g, const struct identity *id, const char *sha256,
                                const char *out, const lvr_pack_options *options, lvr_pack **ret,
                                lvr_error *err)
{
    lvr_status status = check_tokenizer(g, options, err);
    if (status != LVR_OK)
        return status;
    lvr_log(LVR_LOG_INFO, "packing %s into %s (once; a run on the pack itself needs no cache)", id->path,
            out);
    status = pack_unchanged(g, id, sha256, out, options, err);
    return status == LVR_OK ? lvr_pack_open(out, ret, err) : status;
}

static lvr_status open_or_pack(const lvr_gguf *g, const struct identity *id, const char *dir,
                               const lvr_pack_options *options, lvr_pack **ret, lvr_error *err)
{
    char sha256[LVR_SHA256_HEX_BYTES];
    char *out = NULL;
    lvr_status status = known_hash(g, dir, id, options, sha256, err);
    if (status != LVR_OK)
        return status;
    if (asprintf(&out, "%s/%s-v%u.lvrpack", dir, sha256, LVR_PACK_LAYOUT_VERSION) < 0)
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory", id->path);
    if (!open_cached(out, sha256, ret)) {
        status = pack_and_open(g, id, sha256, out, options, ret, err);
        if (status == LVR_ERR_IO && access(dir, W_OK | X_OK) != 0)
            status = fail_unwritable(status, err);
    }
    free(out);
    return status;
}

static lvr_status open_gguf(const char *path, const lvr_pack_options *options, lvr_pack **ret, lvr_error *err)
{
    lvr_gguf *g = NULL;
    struct identity id = {0};
    char *dir = NULL;
    lvr_status status = open_packable(path, &g, &id, err);
    if (status != LVR_OK)
        return status;
    status = lvr_cache_dir(&dir, err);
    if (status == LVR_OK) {
        status = lvr_mkdirs(dir, err);
        if (status != LVR_OK)
            status = fail_unwritable(status, err);
    }
    if (status == LVR_OK)
        status = open_or_pack(g, &id, dir, options, ret, err);
    lvr_gguf_free(g);
    free(id.path);
    free(dir);
    return status;
}

static lvr_status check_not_itself(const lvr_gguf *g, const char *out, lvr_error *err)
{
    struct stat a, b;
    if (stat(out, &b) != 0)
        return LVR_OK;
    for (uint32_t i = 0; i < lvr_gguf_n_parts(g); i++)
        if (stat(lvr_gguf_part_path(g, i), &a) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino)
            return lvr_fail(err, LVR_ERR_IO,
                            "%s is the model itself: packing would overwrite it; name another file", out);
    return LVR_OK;
}

static const lvr_pack_options no_options = {0};

lvr_status lvr_pack_from_gguf(const char *path, const char *out, const lvr_pack_options *options,
                              lvr_error *err)
{
    lvr_gguf *g = NULL;
    struct identity id = {0};
    char sha256[LVR_SHA256_HEX_BYTES];
    const lvr_pack_options *how = options != NULL ? options : &no_options;
    lvr_status status = open_packable(path, &g, &id, err);
    if (status != LVR_OK)
        return status;
    status = check_not_itself(g, out, err);
    if (status == LVR_OK)
        status = check_tokenizer(g, how, err);
    if (status == LVR_OK)
        status = hash_model(g, how, sha256, err);
    if (status == LVR_OK)
        status = pack_unchanged(g, &id, sha256, out, how, err);
    lvr_gguf_free(g);
    free(id.path);
    return status;
}

lvr_status lvr_pack_open_any_with(const char *path, const lvr_pack_options *options, lvr_pack **ret,
                                  lvr_error *err)
{
    const lvr_pack_options *how = options != NULL ? options : &no_options;
    return lvr_pack_is_pack(path) ? lvr_pack_open(path, ret, err) : open_gguf(path, how, ret, err);
}

lvr_status lvr_pack_open_any(const char *path, lvr_pack **ret, lvr_error *err)
{
    return lvr_pack_open_any_with(path, NULL, ret, err);
}
