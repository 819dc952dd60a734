/*
 * Writing a pack. Groups of outputs are independent in the packed layout, so a matrix is packed in slices of
 * whole groups: several threads each read, pack and write a slice, and the checksum follows in order.
 */
#include "engine/pack_internal.h"

#include "common/clock.h"
#include "common/fs.h"
#include "common/log.h"
#include "common/threads.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define SLICE_BYTES (1ull << 20) /* of GGUF rows, at least; with its copies, 3 to 4 MiB */
#define SLICES_PER_THREAD 2u     /* so that one that waits for the disk does not hold the others up */
#define MAX_AUTO_THREADS 8u
#define LOGGED_BYTES (256ull << 20) /* smaller packs are written without a line in the log */
#define PROGRESS_NS 200000000ull

/* Consecutive outputs of a matrix on their way into the pack. */
typedef struct slice {
    uint8_t *rows, *ordered, *packed; /* as in the file, in the order of the pack, packed */
    uint64_t capacity[3];
    uint64_t packed_bytes;
    lvr_status status;
    lvr_error err;
} slice;

typedef struct writer {
    const lvr_gguf *g;
    const lvr_pack_plan *plan;
    const lvr_pack_options *options;
    const char *path; /* of the temporary file */
    int fd;
    lvr_pool *pool;
    slice *slices;
    uint32_t n_slices;
    uint64_t pos; /* in the file */
    uint32_t crc; /* of the section so far */
    uint64_t reported_ns;
    unsigned tenths;
    lvr_error *err;
} writer;

/* The matrix that the slices are of. */
typedef struct matrix_job {
    const writer *w;
    const lvr_gguf_tensor *src;
    const lvr_pack_tensor *t;
    uint64_t row_bytes;
    uint32_t slice_rows, first_row;
    uint32_t head_dim; /* 0: rows stay in their order */
    uint64_t at;       /* of the first row's group in the file */
} matrix_job;

/* ---- progress ---- */

static lvr_status check_cancelled(const writer *w)
{
    const atomic_bool *cancel = w->options->cancel;
    if (cancel == NULL || !atomic_load(cancel))
        return LVR_OK;
    return lvr_fail(w->err, LVR_ERR_INTERRUPTED, "interrupted while packing %s: no pack was written",
                    lvr_gguf_path(w->g));
}

static void log_progress(writer *w)
{
    const uint64_t total = w->plan->file_bytes;
    const unsigned tenths = (unsigned)(w->pos * 10 / total);
    if (total >= LOGGED_BYTES && tenths > w->tenths)
        lvr_log(LVR_LOG_INFO, "packing %s: %u %%", lvr_gguf_path(w->g), tenths * 10);
    w->tenths = tenths;
}

static void show_progress(writer *w)
{
    const uint64_t now = lvr_now_ns(), total = w->plan->file_bytes;
    if (w->options->progress == NULL) {
        log_progress(w);
        return;
    }
    if (now - w->reported_ns < PROGRESS_NS && w->pos < total)
        return;
    w->reported_ns = now;
    w->options->progress("packing", w->pos, total, w->options->user);
}

/* ---- bytes ---- */

static lvr_status put(writer *w, const void *data, size_t n)
{
    const lvr_status status = lvr_pwrite_all(w->fd, data, n, w->pos, w->path, w->err);
    if (status != LVR_OK)
        return status;
    w->crc = lvr_crc32c(w->crc, data, n);
    w->pos += n;
    return LVR_OK;
}

static lvr_status put_zeros(writer *w, uint64_t upto)
{
    static const uint8_t zeros[LVR_PACK_ALIGN];
    lvr_status status = LVR_OK;
    while (status == LVR_OK && w->pos < upto)
        status = put(w, zeros, upto - w->pos < sizeof(zeros) ? upto - w->pos : sizeof(zeros));
    return status;
}

/* ---- order of rows ---- */

/* Heads whose rows are reordered: 0 if they are not. */
static uint32_t reordered_head(const lvr_model_shape *s, lvr_role role)
{
    const bool of_head = role == LVR_ROLE_Q || role == LVR_ROLE_K || role == LVR_ROLE_Q_BIAS ||
                         role == LVR_ROLE_K_BIAS || role == LVR_ROLE_Q_NORM || role == LVR_ROLE_K_NORM;
    return s->rope_neox && of_head ? s->head_dim : 0;
}

/* The row of the file that becomes row `row`: the pair (2i, 2i + 1) was (i, i + head_dim / 2). */
static uint64_t source_row(uint64_t row, uint32_t head_dim)
{
    const uint64_t in_head = row % head_dim;
    return row - in_head + in_head / 2 + in_head % 2 * (head_dim / 2);
}

/* ---- damaged numbers ---- */

/* One weight that is no number makes every logit none. rows: from row `first` of the file on. */
static lvr_status check_finite(const lvr_gguf *g, const lvr_gguf_tensor *src, const void *rows,
                               uint32_t first, uint64_t bytes, lvr_error *err)
{
    uint64_t at = 0;
    if (!lvr_pack_find_not_finite(src->type, rows, bytes, &at))
        return LVR_OK;
    return lvr_fail(err, LVR_ERR_FORMAT,
                    "%s: tensor %s: %s at row %" PRIu64 ", column %" PRIu64
                    " is infinite or not a number: the file is damaged; convert or download it again",
                    lvr_gguf_path(g), src->name,
                    lvr_wtype_quantised(src->type) ? "the scale of the block" : "the value",
                    first + at / src->dims[0], at % src->dims[0]);
}

/* ---- vectors ---- */

static float value_at(const uint8_t *raw, lvr_wtype type, uint64_t i)
{
    uint32_t word = 0;
    uint16_t half = 0;
    float f = 0;
    if (type == LVR_F32) {
        memcpy(&f, raw + i * sizeof(f), sizeof(f));
        return f;
    }
    memcpy(&half, raw + i * sizeof(half), sizeof(half));
    if (type == LVR_F16)
        return lvr_f16_to_f32(half);
    word = (uint32_t)half << 16; /* BF16 */
    memcpy(&f, &word, sizeof(f));
    return f;
}

static lvr_status put_vector(writer *w, const lvr_gguf_tensor *src, const lvr_pack_tensor *t)
{
    const uint32_t head_dim = reordered_head(&w->plan->shape, t->role);
    float *values = calloc(t->n_in, sizeof(*values));
    uint8_t *raw = malloc(src->bytes);
    lvr_status status = LVR_OK;
    if (values == NULL || raw == NULL)
        status = lvr_fail(w->err, LVR_ERR_NOMEM, "%s: out of memory for tensor %s", lvr_gguf_path(w->g),
                          src->name);
    if (status == LVR_OK)
        status = lvr_gguf_read(w->g, src, raw, w->err);
    if (status == LVR_OK)
        status = check_finite(w->g, src, raw, 0, src->bytes, w->err);
    for (uint32_t i = 0; status == LVR_OK && i < t->n_in; i++)
        values[i] = value_at(raw, src->type, head_dim > 0 ? source_row(i, head_dim) : i);
    if (status == LVR_OK)
        status = put(w, values, t->n_in * sizeof(*values));
    free(values);
    free(raw);
    return status;
}

/* ---- matrices ---- */

/* Grows a buffer of a slice; what it held is gone. aligned_alloc wants a multiple of the alignment. */
static bool reserve_buffer(uint8_t **buffer, uint64_t *capacity, uint64_t bytes)
{
    if (bytes <= *capacity)
        return true;
    free(*buffer);
    *capacity = 0;
    *buffer = aligned_alloc(LVR_PACK_TENSOR_ALIGN, lvr_pack_align_up(bytes, LVR_PACK_TENSOR_ALIGN));
    if (*buffer != NULL)
        *capacity = bytes;
    return *buffer != NULL;
}

static lvr_status reserve_slice(slice *s, const matrix_job *j)
{
    const uint64_t rows_bytes = j->slice_rows * j->row_bytes;
    const uint64_t packed_bytes = lvr_packed_bytes(j->t->type, j->slice_rows, j->t->n_in);
    if (reserve_buffer(&s->rows, &s->capacity[0], rows_bytes) &&
        (j->head_dim == 0 || reserve_buffer(&s->ordered, &s->capacity[1], rows_bytes)) &&
        reserve_buffer(&s->packed, &s->capacity[2], packed_bytes))
        return LVR_OK;
    return lvr_fail(&s->err, LVR_ERR_NOMEM, "%s: out of memory for tensor %s", lvr_gguf_path(j->w->g),
                    j->src->name);
}

static lvr_status pack_slice(slice *s, const matrix_job *j, uint32_t first, uint32_t n)
{
    const writer *w = j->w;
    lvr_status status = reserve_slice(s, j);
    if (status == LVR_OK)
        status = lvr_gguf_read_range(w->g, j->src, first * j->row_bytes, n * j->row_bytes, s->rows, &s->err);
    if (status == LVR_OK)
        status = check_finite(w->g, j->src, s->rows, first, n * j->row_bytes, &s->err);
    if (status != LVR_OK)
        return status;
    for (uint32_t r = 0; j->head_dim > 0 && r < n; r++)
        memcpy(s->ordered + r * j->row_bytes, s->rows + source_row(r, j->head_dim) * j->row_bytes,
               j->row_bytes);
    s->packed_bytes = lvr_packed_bytes(j->t->type, n, j->t->n_in);
    lvr_pack_matrix(j->t->type, n, j->t->n_in, j->head_dim > 0 ? s->ordered : s->rows, s->packed);
    return lvr_pwrite_all(w->fd, s->packed, s->packed_bytes,
                          j->at + lvr_packed_bytes(j->t->type, first - j->first_row, j->t->n_in), w->path,
                          &s->err);
}

/* Units: slices. */
static void pack_slices(void *arg, uint64_t begin, uint64_t end, uint32_t worker)
{
    (void)worker;
    const matrix_job *j = arg;
    for (uint64_t i = begin; i < end; i++) {
        slice *s = &j->w->slices[i];
        const uint32_t first = j->first_row + (uint32_t)i * j->slice_rows;
        const uint32_t left = j->t->n_out - first;
        s->err = LVR_ERROR_INIT;
        s->status = pack_slice(s, j, first, left < j->slice_rows ? left : j->slice_rows);
    }
}

static uint32_t rows_of_slice(const matrix_job *j)
{
    const uint64_t unit = j->head_dim > 0 ? j->head_dim : LVR_GROUP; /* a head is whole groups */
    const uint64_t units = SLICE_BYTES / (unit * j->row_bytes);
    const uint64_t rows = (units > 0 ? units : 1) * unit;
    return (uint32_t)(rows < j->t->n_out ? rows : j->t->n_out);
}

static lvr_status account_slices(writer *w, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        const slice *s = &w->slices[i];
        if (s->status != LVR_OK)
            return lvr_fail(w->err, s->status, "%s", s->err.msg);
        w->crc = lvr_crc32c(w->crc, s->packed, s->packed_bytes);
        w->pos += s->packed_bytes;
    }
    show_progress(w);
    return check_cancelled(w);
}

static lvr_status put_matrix(writer *w, const lvr_gguf_tensor *src, const lvr_pack_tensor *t)
{
    matrix_job j = {.w = w,
                    .src = src,
                    .t = t,
                    .row_bytes = lvr_wtype_row_bytes(t->type, t->n_in),
                    .head_dim = reordered_head(&w->plan->shape, t->role)};
    lvr_status status = LVR_OK;
    j.slice_rows = rows_of_slice(&j);
    while (status == LVR_OK && j.first_row < t->n_out) {
        const uint64_t left = ((uint64_t)t->n_out - j.first_row + j.slice_rows - 1) / j.slice_rows;
        const uint64_t n = left < w->n_slices ? left : w->n_slices;
        j.at = w->pos;
        lvr_pool_for(w->pool, n, 1, pack_slices, &j);
        status = account_slices(w, n);
        j.first_row = n == left ? t->n_out : j.first_row + (uint32_t)n * j.slice_rows;
    }
    return status;
}

/* ---- the file ---- */

static lvr_status put_section(writer *w, lvr_pack_section *section, uint32_t layer)
{
    lvr_status status = LVR_OK;
    w->pos = section->offset;
    w->crc = 0;
    for (uint32_t i = 0; status == LVR_OK && i < section->n_tensors; i++) {
        const lvr_pack_tensor *t = &w->plan->tensors[section->first_tensor + i];
        char name[LVR_TENSOR_NAME_BYTES];
        lvr_role_tensor_name(t->role, layer, name);
        const lvr_gguf_tensor *src = lvr_gguf_find(w->g, name);
        status = put_zeros(w, section->offset + t->offset);
        if (status == LVR_OK)
            status = lvr_role_is_vector(t->role) ? put_vector(w, src, t) : put_matrix(w, src, t);
    }
    if (status == LVR_OK)
        status = put_zeros(w, section->offset + section->bytes);
    if (status == LVR_OK)
        show_progress(w);
    section->crc = w->crc;
    return status;
}

/* Header, GGUF header and tables. Last, when the checksums are known. */
static lvr_status put_front(const writer *w, const char *gguf_sha256)
{
    static const char zeros[LVR_PACK_TENSOR_ALIGN];
    const lvr_pack_plan *p = w->plan;
    uint64_t n = 0;
    const void *gguf = lvr_gguf_header(w->g, &n);
    lvr_pack_file_header h = {.magic = LVR_PACK_MAGIC,
                              .file_version = LVR_PACK_FILE_VERSION,
                              .layout_version = LVR_PACK_LAYOUT_VERSION,
                              .header_bytes = sizeof(h),
                              .n_sections = p->n_sections,
                              .n_tensors = p->n_tensors,
                              .file_bytes = p->file_bytes,
                              .source_bytes = lvr_gguf_file_bytes(w->g),
                              .gguf_offset = sizeof(h),
                              .gguf_bytes = n,
                              .tables_offset = p->tables_offset,
                              .tables_bytes = p->tables_bytes,
                              .gguf_crc = lvr_crc32c(0, gguf, n)};
    lvr_buf front = LVR_BUF_INIT;
    lvr_buf tables = LVR_BUF_INIT;
    lvr_pack_put_tables(p, &tables);
    lvr_status status = LVR_OK;
    if (tables.failed) {
        status = lvr_fail(w->err, LVR_ERR_NOMEM, "%s: out of memory", w->path);
        goto out;
    }
    memcpy(h.source_sha256, gguf_sha256, sizeof(h.source_sha256));
    h.tables_crc = lvr_crc32c(0, tables.data, tables.len);
    h.header_crc = lvr_crc32c(0, &h, offsetof(lvr_pack_file_header, header_crc));
    lvr_buf_append(&front, &h, sizeof(h));
    lvr_buf_append(&front, gguf, n);
    lvr_buf_append(&front, zeros, p->tables_offset - front.len);
    lvr_buf_append(&front, tables.data, tables.len);
    status = front.failed ? lvr_fail(w->err, LVR_ERR_NOMEM, "%s: out of memory", w->path)
                          : lvr_pwrite_all(w->fd, front.data, front.len, 0, w->path, w->err);
out:
    lvr_buf_free(&front);
    lvr_buf_free(&tables);
    return status;
}

/* Claims the space first: a full device is reported before minutes of work, with the number of bytes that are
 * needed. */
static lvr_status reserve_space(const writer *w)
{
    if (fallocate(w->fd, 0, 0, (off_t)w->plan->file_bytes) == 0 || errno != ENOSPC)
        return LVR_OK; /* not every file system can; writing will tell */
    return lvr_fail(w->err, LVR_ERR_IO,
                    "%s: no space left on the device: the pack needs %" PRIu64 " bytes; free some space",
                    w->path, w->plan->file_bytes);
}

static lvr_status put_all(writer *w, const char *gguf_sha256)
{
    lvr_status status = reserve_space(w);
    for (uint32_t i = 0; status == LVR_OK && i < w->plan->n_sections; i++)
        status = put_section(w, &w->plan->sections[i], i - 1);
    if (status == LVR_OK)
        status = put_front(w, gguf_sha256);
    if (status == LVR_OK && fsync(w->fd) != 0)
        status = lvr_fail_errno(w->err, errno, "%s: cannot write to the device", w->path);
    return status == LVR_OK ? check_cancelled(w) : status;
}

static uint32_t choose_threads(uint32_t wanted)
{
    if (wanted > 0)
        return wanted < LVR_POOL_MAX_THREADS ? wanted : LVR_POOL_MAX_THREADS;
    const uint32_t n = lvr_processors();
    return n < MAX_AUTO_THREADS ? n : MAX_AUTO_THREADS;
}

static lvr_status start_threads(writer *w)
{
    const uint32_t n = choose_threads(w->options->n_threads);
    w->n_slices = n * SLICES_PER_THREAD;
    w->slices = calloc(w->n_slices, sizeof(*w->slices));
    if (w->slices == NULL)
        return lvr_fail(w->err, LVR_ERR_NOMEM, "%s: out of memory", w->path);
    return lvr_pool_new(n, &w->pool, w->err);
}

static void stop_threads(writer *w)
{
    lvr_pool_free(w->pool);
    for (uint32_t i = 0; w->slices != NULL && i < w->n_slices; i++) {
        free(w->slices[i].rows);
        free(w->slices[i].ordered);
        free(w->slices[i].packed);
    }
    free(w->slices);
}

/* The folder of `path`; malloc'ed, NULL without memory. */
static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? strdup(".") : strndup(path, slash == path ? 1 : (size_t)(slash - path));
}

/* Whether `name` is a temporary file of the pack `base` whose writer no longer lives here. */
static bool is_abandoned(const char *name, const char *base)
{
    const size_t n = strlen(base);
    long pid = 0;
    unsigned number = 0;
    int end = 0;
    return strncmp(name, base, n) == 0 && sscanf(name + n, ".tmp.%ld.%u%n", &pid, &number, &end) == 2 &&
           name[n + (size_t)end] == '\0' && pid > 0 && kill((pid_t)pid, 0) != 0 && errno == ESRCH;
}

/* A writer holds its file locked: one of another container lives although its number says nothing here. */
static void remove_unlocked(int dir, const char *name)
{
    const int fd = openat(dir, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && unlinkat(dir, name, 0) == 0)
        lvr_log(LVR_LOG_INFO, "removed %s, left by a packing that was killed", name);
    close(fd);
}

static void sweep_abandoned(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = folder_of(path);
    DIR *d = folder == NULL ? NULL : opendir(folder);
    free(folder);
    if (d == NULL)
        return;
    for (const struct dirent *e; (e = readdir(d)) != NULL;)
        if (is_abandoned(e->d_name, slash == NULL ? path : slash + 1))
            remove_unlocked(dirfd(d), e->d_name);
    closedir(d);
}

/* A new file beside `path`, on the same file system. */
static lvr_status open_temporary(const char *path, char **ret_tmp, int *ret_fd, lvr_error *err)
{
    char *tmp = NULL;
    for (unsigned i = 0; i < 100; i++) {
        if (asprintf(&tmp, "%s.tmp.%ld.%u", path, (long)getpid(), i) < 0)
            return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory", path);
        const int fd = open(tmp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0) {
            (void)flock(fd, LOCK_EX | LOCK_NB); /* not every file system can */
            *ret_tmp = tmp;
            *ret_fd = fd;
            return LVR_OK;
        }
        const int errnum = errno;
        free(tmp);
        if (errnum != EEXIST)
            return lvr_fail_errno(err, errnum, "%s: cannot create the pack", path);
    }
    return lvr_fail(err, LVR_ERR_IO, "%s: too many temporary files %s.tmp.*: delete them", path, path);
}

/* The rename itself must reach the device. Some file systems cannot sync a directory: then it is as durable
 * as they get. */
static void sync_directory(const char *path)
{
    char *dir = folder_of(path);
    const int fd = dir == NULL ? -1 : open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(dir);
    if (fd < 0)
        return;
    (void)fsync(fd);
    close(fd);
}

static lvr_status write_file(writer *w, const char *gguf_sha256, const char *out_path)
{
    char *tmp = NULL;
    sweep_abandoned(out_path);
    lvr_status status = open_temporary(out_path, &tmp, &w->fd, w->err);
    if (status != LVR_OK)
        return status;
    w->path = tmp;
    status = start_threads(w);
    if (status == LVR_OK)
        status = put_all(w, gguf_sha256);
    stop_threads(w);
    if (close(w->fd) != 0 && status == LVR_OK)
        status = lvr_fail_errno(w->err, errno, "%s: cannot close", tmp);
    if (status == LVR_OK && rename(tmp, out_path) != 0)
        status = lvr_fail_errno(w->err, errno, "%s: cannot rename it to %s", tmp, out_path);
    if (status != LVR_OK)
        (void)unlink(tmp);
    else
        sync_directory(out_path);
    free(tmp);
    return status;
}

lvr_status lvr_pack_write(const lvr_gguf *g, const char gguf_sha256[LVR_SHA256_HEX_BYTES],
                          const char *out_path, const lvr_pack_options *options, lvr_error *err)
{
    static const lvr_pack_options none = {0};
    lvr_pack_plan plan = {0};
    if (!lvr_pack_is_sha256_hex(gguf_sha256))
        return lvr_fail(err, LVR_ERR_USAGE,
                        "packing %s: \"%.64s\" is not a SHA-256 (64 lower-case hex digits)", lvr_gguf_path(g),
                        gguf_sha256);
    lvr_status status = lvr_pack_plan_make(g, &plan, err);
    if (status != LVR_OK)
        return status;
    writer w = {.g = g, .plan = &plan, .options = options != NULL ? options : &none, .fd = -1, .err = err};
    status = write_file(&w, gguf_sha256, out_path);
    lvr_pack_plan_free(&plan);
    return status;
}
