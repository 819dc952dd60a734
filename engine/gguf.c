/*
 * The parser reads the header front to back through `need`, which checks a length against the bytes left in
 * the file before anything is allocated or read for it: a count or a length in the file can cost at most a
 * small multiple of the file's own size. Values are decoded once, at open, so that everything after is
 * read-only.
 */
#include "engine/gguf_internal.h"

#include "common/fs.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define OLDEST_VERSION 2u /* the layout of version 3 */

static lvr_status check_magic(lvr_gguf_parser *p)
{
    uint8_t m[4];
    const lvr_status status = lvr_gguf_take(p, m, sizeof(m));
    if (status != LVR_OK)
        return status;
    if (memcmp(m, "GGUF", 4) == 0)
        return LVR_OK;
    if (memcmp(m, "LVRP", 4) == 0)
        return lvr_gguf_parse_fail(p, LVR_ERR_FORMAT, "this is a lever pack, where a GGUF file is expected");
    if (memcmp(m, "\0\0\0\0", 4) == 0)
        return lvr_gguf_parse_fail(
            p, LVR_ERR_FORMAT,
            "the file starts with zero bytes, not \"GGUF\": an incomplete download? Download it again");
    return lvr_gguf_parse_fail(
        p, LVR_ERR_FORMAT,
        "not a GGUF file: it starts with bytes %02x %02x %02x %02x, expected \"GGUF\" (47 47 55 46)", m[0],
        m[1], m[2], m[3]);
}

static lvr_status check_version(lvr_gguf_parser *p)
{
    uint32_t version = 0;
    const lvr_status status = lvr_gguf_take_u32(p, &version);
    if (status != LVR_OK || (version >= OLDEST_VERSION && version <= LVR_GGUF_VERSION))
        return status;
    if (version == 0)
        return lvr_gguf_parse_fail(p, LVR_ERR_FORMAT, "GGUF version 0 does not exist: the file is damaged");
    if ((version & 0xffff) == 0)
        return lvr_gguf_parse_fail(
            p, LVR_ERR_UNSUPPORTED,
            "a big-endian GGUF (version field 0x%08x): only little-endian files are read; convert it "
            "with gguf-py's gguf_convert_endian",
            version);
    if (version < OLDEST_VERSION)
        return lvr_gguf_parse_fail(
            p, LVR_ERR_UNSUPPORTED,
            "GGUF version %u is outdated: versions %u and %u are read; convert the model again", version,
            OLDEST_VERSION, LVR_GGUF_VERSION);
    return lvr_gguf_parse_fail(p, LVR_ERR_UNSUPPORTED,
                               "GGUF version %u is newer than the version read here (%u)", version,
                               LVR_GGUF_VERSION);
}

static lvr_status parse(lvr_gguf_parser *p, bool skip_bounds)
{
    uint64_t n_tensors = 0, n_keys = 0;
    lvr_gguf_parsing(p, "header");
    if (p->readable == 0)
        return lvr_gguf_parse_fail(p, LVR_ERR_FORMAT, "the file is empty");
    lvr_status status = check_magic(p);
    if (status == LVR_OK)
        status = check_version(p);
    if (status == LVR_OK)
        status = lvr_gguf_take_u64(p, &n_tensors);
    if (status == LVR_OK)
        status = lvr_gguf_take_u64(p, &n_keys);
    if (status == LVR_OK)
        status = lvr_gguf_take_metadata(p, n_keys);
    if (status == LVR_OK)
        status = lvr_gguf_take_tensors(p, n_tensors);
    if (status == LVR_OK)
        status = lvr_gguf_place_tensors(p, skip_bounds);
    if (status != LVR_OK)
        return status;

    p->g->header_n = p->pos;
    uint8_t *fitted = realloc(p->g->header, p->pos); /* what was read ahead is tensor data */
    if (fitted != NULL)
        p->g->header = fitted;
    return lvr_gguf_decode_values(p);
}

static lvr_status new_gguf(const char *path, lvr_gguf **ret, lvr_error *err)
{
    lvr_gguf *g = calloc(1, sizeof(*g));
    if (g == NULL)
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory", path);
    g->path = strdup(path);
    g->parts = calloc(1, sizeof(*g->parts));
    if (g->path == NULL || g->parts == NULL) {
        lvr_gguf_free(g);
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory", path);
    }
    g->n_parts = 1;
    g->parts[0].fd = -1;
    g->parts[0].path = strdup(path);
    if (g->parts[0].path == NULL) {
        lvr_gguf_free(g);
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory", path);
    }
    *ret = g;
    return LVR_OK;
}

lvr_status lvr_open_regular(const char *path, const char *what, int *ret_fd, uint64_t *ret_bytes,
                            lvr_error *err)
{
    struct stat st;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return lvr_fail_errno(err, errno, "%s: cannot open", path);
    if (fstat(fd, &st) != 0) {
        const int errnum = errno;
        close(fd);
        return lvr_fail_errno(err, errnum, "%s: cannot stat", path);
    }
    if (!S_ISREG(st.st_mode)) {
        close(fd);
        return lvr_fail(err, LVR_ERR_IO, "%s: %s, where %s is expected", path,
                        S_ISDIR(st.st_mode) ? "a directory" : "not a regular file", what);
    }
    *ret_fd = fd;
    *ret_bytes = (uint64_t)st.st_size;
    return LVR_OK;
}

lvr_status lvr_gguf_open_one(const char *path, lvr_gguf **ret, lvr_error *err)
{
    lvr_gguf *g = NULL;
    lvr_status status = new_gguf(path, &g, err);
    if (status == LVR_OK)
        status = lvr_open_regular(path, "a GGUF file", &g->parts[0].fd, &g->file_bytes, err);
    if (status == LVR_OK) {
        lvr_gguf_parser p = {.g = g, .readable = g->file_bytes, .err = err};
        g->parts[0].bytes = g->file_bytes;
        status = parse(&p, false);
    }
    if (status == LVR_OK)
        *ret = g;
    else
        lvr_gguf_free(g);
    return status;
}

lvr_status lvr_gguf_open(const char *path, lvr_gguf **ret, lvr_error *err)
{
    lvr_gguf *g = NULL;
    uint32_t count = 0;
    lvr_status status = lvr_gguf_open_one(path, &g, err);
    if (status != LVR_OK)
        return status;
    status = lvr_gguf_split_count(g, &count, err);
    if (status == LVR_OK && count > 1)
        return lvr_gguf_open_split(path, g, count, ret, err);
    if (status == LVR_OK)
        *ret = g;
    else
        lvr_gguf_free(g);
    return status;
}

static lvr_status open_mem(const char *name, const void *data, uint64_t n, uint64_t file_bytes,
                           bool skip_bounds, lvr_gguf **ret, lvr_error *err)
{
    lvr_gguf *g = NULL;
    lvr_status status = new_gguf(name, &g, err);
    if (status != LVR_OK)
        return status;
    g->file_bytes = file_bytes;
    g->parts[0].bytes = file_bytes;
    lvr_gguf_parser p = {.g = g, .mem = data, .readable = n, .err = err};
    status = parse(&p, skip_bounds);
    if (status == LVR_OK)
        *ret = g;
    else
        lvr_gguf_free(g);
    return status;
}

lvr_status lvr_gguf_open_part_mem(const char *name, const void *data, uint64_t n, lvr_gguf **ret,
                                  lvr_error *err)
{
    return open_mem(name, data, n, n, false, ret, err);
}

lvr_status lvr_gguf_open_mem(const char *name, const void *data, uint64_t n, uint64_t file_bytes,
                             bool skip_tensor_bounds, lvr_gguf **ret, lvr_error *err)
{
    lvr_gguf *g = NULL;
    uint32_t count = 0;
    lvr_status status = open_mem(name, data, n, file_bytes, skip_tensor_bounds, &g, err);
    if (status != LVR_OK)
        return status;
    status = lvr_gguf_split_count(g, &count, err);
    if (status == LVR_OK && count > 1)
        status =
            lvr_fail(err, LVR_ERR_UNSUPPORTED,
                     "%s: metadata key split.count: this is one of %u parts of a split model, and the others "
                     "cannot be found from memory: open it as a file",
                     name, count);
    if (status == LVR_OK)
        *ret = g;
    else
        lvr_gguf_free(g);
    return status;
}

static void free_parts(lvr_gguf *g)
{
    for (uint32_t i = 0; i < g->n_parts; i++) {
        if (g->parts[i].fd >= 0)
            close(g->parts[i].fd);
        free(g->parts[i].path);
    }
    free(g->parts);
}

void lvr_gguf_free(lvr_gguf *g)
{
    if (g == NULL)
        return;
    free_parts(g);
    for (uint64_t i = 0; i < g->n_keys; i++) {
        free(g->keys[i].key);
        free(g->keys[i].decoded);
    }
    for (uint64_t i = 0; i < g->n_tensors; i++)
        free((void *)(uintptr_t)g->tensors[i].name); /* const for readers, owned here */
    free(g->keys);
    free(g->keys_sorted);
    free(g->tensors);
    free(g->tensors_sorted);
    free(g->places);
    free(g->header);
    free(g->path);
    free(g);
}

const char *lvr_gguf_path(const lvr_gguf *g)
{
    return g->path;
}

const void *lvr_gguf_header(const lvr_gguf *g, uint64_t *ret_n)
{
    *ret_n = g->header_n;
    return g->header;
}

uint64_t lvr_gguf_file_bytes(const lvr_gguf *g)
{
    return g->file_bytes;
}

uint32_t lvr_gguf_alignment(const lvr_gguf *g)
{
    return g->alignment;
}

uint32_t lvr_gguf_n_parts(const lvr_gguf *g)
{
    return g->n_parts;
}

const char *lvr_gguf_part_path(const lvr_gguf *g, uint32_t i)
{
    return i < g->n_parts ? g->parts[i].path : NULL;
}

uint64_t lvr_gguf_part_bytes(const lvr_gguf *g, uint32_t i)
{
    return i < g->n_parts ? g->parts[i].bytes : 0;
}

int lvr_gguf_part_fd(const lvr_gguf *g, uint32_t i)
{
    return i < g->n_parts ? g->parts[i].fd : -1;
}

uint64_t lvr_gguf_n_tensors(const lvr_gguf *g)
{
    return g->n_tensors;
}

const lvr_gguf_tensor *lvr_gguf_tensor_at(const lvr_gguf *g, uint64_t i)
{
    return i < g->n_tensors ? &g->tensors[i] : NULL;
}

const lvr_gguf_tensor *lvr_gguf_find(const lvr_gguf *g, const char *name)
{
    const lvr_gguf_named wanted = {.name = name};
    const lvr_gguf_named *found =
        bsearch(&wanted, g->tensors_sorted, g->n_tensors, sizeof(wanted), lvr_gguf_compare_names);
    return found == NULL ? NULL : &g->tensors[found->index];
}

lvr_status lvr_gguf_read_range(const lvr_gguf *g, const lvr_gguf_tensor *t, uint64_t begin, uint64_t n,
                               void *dst, lvr_error *err)
{
    const lvr_gguf_place place =
        g->places != NULL ? g->places[t - g->tensors] : (lvr_gguf_place){.part = 0, .offset = t->offset};
    const lvr_gguf_part *part = &g->parts[place.part];
    if (part->fd < 0)
        return lvr_fail(err, LVR_ERR_UNSUPPORTED, "%s: tensor %s: only the header was opened, not its data",
                        g->path, t->name);
    if (begin > t->bytes || n > t->bytes - begin)
        return lvr_fail(err, LVR_ERR_INVARIANT,
                        "%s: tensor %s: read of bytes %" PRIu64 "+%" PRIu64 " of %" PRIu64, g->path, t->name,
                        begin, n, t->bytes);
    return lvr_pread_all(part->fd, dst, n, place.offset + begin, part->path, err);
}

lvr_status lvr_gguf_read(const lvr_gguf *g, const lvr_gguf_tensor *t, void *dst, lvr_error *err)
{
    return lvr_gguf_read_range(g, t, 0, t->bytes, dst, err);
}
