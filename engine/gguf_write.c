#include "engine/gguf_write.h"
#include "common/buf.h"
#include "common/fs.h"
#include "engine/gguf_internal.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "GGUF is written as memory holds it");

#define ALIGNMENT 32u /* the specification's default: no general.alignment key is needed */

struct lvr_gguf_writer {
    char *path, *tmp; /* tmp: NULL until opened and once renamed */
    int fd;
    lvr_buf keys, tensors;
    lvr_buf offsets; /* uint64_t of each tensor, from the start of the data */
    uint64_t n_keys, n_tensors;
    uint64_t data_bytes, data_begin;
};

lvr_gguf_writer *lvr_gguf_writer_new(const char *path)
{
    lvr_gguf_writer *w = calloc(1, sizeof *w);
    if (w == NULL)
        return NULL;
    w->fd = -1;
    w->path = strdup(path);
    if (w->path == NULL) {
        free(w);
        return NULL;
    }
    return w;
}

void lvr_gguf_writer_free(lvr_gguf_writer *w)
{
    if (w == NULL)
        return;
    if (w->fd >= 0)
        close(w->fd);
    if (w->tmp != NULL)
        unlink(w->tmp);
    lvr_buf_free(&w->keys);
    lvr_buf_free(&w->tensors);
    lvr_buf_free(&w->offsets);
    free(w->tmp);
    free(w->path);
    free(w);
}

/* ---- announcing ---- */

static void put_text(lvr_buf *b, const char *s, uint64_t n)
{
    lvr_gguf_put_u64(b, n);
    lvr_buf_append(b, s, n);
}

static void put_key(lvr_gguf_writer *w, const char *key, uint32_t type)
{
    put_text(&w->keys, key, strlen(key));
    lvr_gguf_put_u32(&w->keys, type);
    w->n_keys++;
}

static void put_array(lvr_gguf_writer *w, const char *key, uint32_t elem_type, uint64_t n)
{
    put_key(w, key, GGUF_V_ARR);
    lvr_gguf_put_u32(&w->keys, elem_type);
    lvr_gguf_put_u64(&w->keys, n);
}

void lvr_gguf_write_u32(lvr_gguf_writer *w, const char *key, uint32_t v)
{
    put_key(w, key, GGUF_V_U32);
    lvr_gguf_put_u32(&w->keys, v);
}

void lvr_gguf_write_u64(lvr_gguf_writer *w, const char *key, uint64_t v)
{
    put_key(w, key, GGUF_V_U64);
    lvr_gguf_put_u64(&w->keys, v);
}

void lvr_gguf_write_f32(lvr_gguf_writer *w, const char *key, float v)
{
    put_key(w, key, GGUF_V_F32);
    lvr_buf_append(&w->keys, &v, sizeof v);
}

void lvr_gguf_write_bool(lvr_gguf_writer *w, const char *key, bool v)
{
    const uint8_t byte = v;
    put_key(w, key, GGUF_V_BOOL);
    lvr_buf_append(&w->keys, &byte, 1);
}

void lvr_gguf_write_str(lvr_gguf_writer *w, const char *key, const char *v)
{
    put_key(w, key, GGUF_V_STR);
    put_text(&w->keys, v, strlen(v));
}

void lvr_gguf_write_strs(lvr_gguf_writer *w, const char *key, const lvr_gguf_str *v, uint64_t n)
{
    put_array(w, key, GGUF_V_STR, n);
    for (uint64_t i = 0; i < n; i++)
        put_text(&w->keys, v[i].s, v[i].n);
}

void lvr_gguf_write_i32s(lvr_gguf_writer *w, const char *key, const int32_t *v, uint64_t n)
{
    put_array(w, key, GGUF_V_I32, n);
    lvr_buf_append(&w->keys, v, n * sizeof *v);
}

void lvr_gguf_write_f32s(lvr_gguf_writer *w, const char *key, const float *v, uint64_t n)
{
    put_array(w, key, GGUF_V_F32, n);
    lvr_buf_append(&w->keys, v, n * sizeof *v);
}

uint32_t lvr_gguf_write_tensor(lvr_gguf_writer *w, const char *name, lvr_wtype type, uint32_t n_dims,
                               const uint64_t *dims)
{
    uint64_t bytes = lvr_wtype_row_bytes(type, dims[0]);
    put_text(&w->tensors, name, strlen(name));
    lvr_gguf_put_u32(&w->tensors, n_dims);
    for (uint32_t i = 0; i < n_dims; i++) {
        lvr_gguf_put_u64(&w->tensors, dims[i]);
        bytes *= i > 0 ? dims[i] : 1;
    }
    lvr_gguf_put_u32(&w->tensors, type);
    lvr_gguf_put_u64(&w->tensors, w->data_bytes);
    lvr_gguf_put_u64(&w->offsets, w->data_bytes);
    w->data_bytes = lvr_gguf_align_up(w->data_bytes + bytes, ALIGNMENT);
    return (uint32_t)w->n_tensors++;
}

/* ---- writing ---- */

static uint64_t header_bytes(const lvr_gguf_writer *w)
{
    return 2 * sizeof(uint32_t) + 2 * sizeof(uint64_t) + w->keys.len + w->tensors.len;
}

uint64_t lvr_gguf_writer_bytes(const lvr_gguf_writer *w)
{
    return lvr_gguf_align_up(header_bytes(w), ALIGNMENT) + w->data_bytes;
}

static lvr_status check_place(const lvr_gguf_writer *w, lvr_error *err)
{
    struct stat st;
    if (stat(w->path, &st) == 0 && !S_ISREG(st.st_mode))
        return lvr_fail(err, LVR_ERR_IO, "%s: not a regular file: a model can only be written to a file",
                        w->path);
    return LVR_OK;
}

static lvr_status open_temporary(lvr_gguf_writer *w, lvr_error *err)
{
    if (asprintf(&w->tmp, "%s.tmp.%ld", w->path, (long)getpid()) < 0) {
        w->tmp = NULL;
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory", w->path);
    }
    w->fd = open(w->tmp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (w->fd >= 0)
        return LVR_OK;
    const int errnum = errno;
    free(w->tmp); /* not ours to remove */
    w->tmp = NULL;
    return lvr_fail_errno(err, errnum, "%s: cannot create the model file", w->path);
}

/* A device that is too small is reported before any work, with the number of bytes. */
static lvr_status check_space(const lvr_gguf_writer *w, lvr_error *err)
{
    struct statvfs fs;
    if (fstatvfs(w->fd, &fs) != 0)
        return LVR_OK; /* writing will tell */
    const uint64_t need = lvr_gguf_writer_bytes(w), have = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (have >= need)
        return LVR_OK;
    return lvr_fail(err, LVR_ERR_IO,
                    "%s: not enough space: the model needs %" PRIu64
                    " bytes (%.1f GiB), the device has %" PRIu64
                    " (%.1f GiB) left; free some space or write elsewhere",
                    w->path, need, (double)need / 0x1p30, have, (double)have / 0x1p30);
}

static lvr_status put_header(lvr_gguf_writer *w, lvr_error *err)
{
    static const char zeros[ALIGNMENT];
    lvr_buf h = LVR_BUF_INIT;
    lvr_buf_append(&h, "GGUF", 4);
    lvr_gguf_put_u32(&h, LVR_GGUF_VERSION);
    lvr_gguf_put_u64(&h, w->n_tensors);
    lvr_gguf_put_u64(&h, w->n_keys);
    lvr_buf_append(&h, w->keys.data, w->keys.len);
    lvr_buf_append(&h, w->tensors.data, w->tensors.len);
    w->data_begin = lvr_gguf_align_up(header_bytes(w), ALIGNMENT);
    lvr_buf_append(&h, zeros, w->data_begin - header_bytes(w));
    lvr_status status = LVR_OK;
    if (h.failed || w->keys.failed || w->tensors.failed || w->offsets.failed)
        status = lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory for the header", w->path);
    else
        status = lvr_pwrite_all(w->fd, h.data, h.len, 0, w->path, err);
    lvr_buf_free(&h);
    return status;
}

lvr_status lvr_gguf_writer_open(lvr_gguf_writer *w, lvr_error *err)
{
    lvr_status status = check_place(w, err);
    if (status == LVR_OK)
        status = open_temporary(w, err);
    if (status == LVR_OK)
        status = check_space(w, err);
    if (status == LVR_OK)
        status = put_header(w, err);
    /* The last tensor's padding, so that the file has its full size whatever is written last. */
    if (status == LVR_OK && ftruncate(w->fd, (off_t)lvr_gguf_writer_bytes(w)) != 0)
        status = lvr_fail_errno(err, errno, "%s: cannot make a file of %" PRIu64 " bytes", w->path,
                                lvr_gguf_writer_bytes(w));
    return status;
}

lvr_status lvr_gguf_writer_put(const lvr_gguf_writer *w, uint32_t tensor, uint64_t begin, const void *data,
                               uint64_t n, lvr_error *err)
{
    uint64_t offset = 0;
    memcpy(&offset, w->offsets.data + tensor * sizeof offset, sizeof offset);
    return lvr_pwrite_all(w->fd, data, n, w->data_begin + offset + begin, w->path, err);
}

lvr_status lvr_gguf_writer_finish(lvr_gguf_writer *w, lvr_error *err)
{
    if (fsync(w->fd) != 0)
        return lvr_fail_errno(err, errno, "%s: cannot write to the device", w->path);
    if (rename(w->tmp, w->path) != 0)
        return lvr_fail_errno(err, errno, "%s: cannot give %s this name", w->path, w->tmp);
    free(w->tmp);
    w->tmp = NULL;
    return LVR_OK;
}
