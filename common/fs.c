#include "common/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static lvr_status fail_too_large(const char *path, uint64_t max_bytes, lvr_error *err)
{
    return lvr_fail(err, LVR_ERR_FORMAT,
                    "%s: expected a file of at most %" PRIu64
                    " bytes, found a larger one; is this the right file?",
                    path, max_bytes);
}

/* For a pipe whose writer is slow, or has yet to come. A signal that has a handler ends the wait. */
static lvr_status wait_for_input(int fd, const char *path, lvr_error *err)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (poll(&p, 1, -1) >= 0)
        return LVR_OK;
    if (errno == EINTR)
        return lvr_fail(err, LVR_ERR_INTERRUPTED, "%s: interrupted while waiting for input", path);
    return lvr_fail_errno(err, errno, "%s: cannot wait for input", path);
}

/* A named pipe that no writer has opened yet would read as empty. */
static lvr_status check_readable(int fd, const char *path, uint64_t max_bytes, lvr_error *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return lvr_fail_errno(err, errno, "%s: cannot stat", path);
    if (S_ISDIR(st.st_mode))
        return lvr_fail_errno(err, EISDIR, "%s: expected a file, found a directory", path);
    if (S_ISREG(st.st_mode) && (uint64_t)st.st_size > max_bytes)
        return fail_too_large(path, max_bytes, err);
    return S_ISFIFO(st.st_mode) ? wait_for_input(fd, path, err) : LVR_OK;
}

/* To the end of file, not to st_size: pipes and /proc have none, and a file may grow meanwhile. */
static lvr_status read_to_end(int fd, const char *path, uint64_t max_bytes, lvr_buf *buf, lvr_error *err)
{
    char chunk[32768];
    lvr_buf_append(buf, "", 0);
    for (;;) {
        const ssize_t n = read(fd, chunk, sizeof chunk);
        if (n < 0 && errno == EINTR)
            return lvr_fail(err, LVR_ERR_INTERRUPTED, "%s: interrupted while reading", path);
        if (n < 0 && errno == EAGAIN) {
            const lvr_status status = wait_for_input(fd, path, err);
            if (status != LVR_OK)
                return status;
            continue;
        }
        if (n < 0)
            return lvr_fail_errno(err, errno, "%s: cannot read", path);
        if (n == 0)
            break;
        if ((uint64_t)n > max_bytes - buf->len)
            return fail_too_large(path, max_bytes, err);
        lvr_buf_append(buf, chunk, (size_t)n);
        if (buf->failed)
            break;
    }
    if (buf->failed)
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory after reading %zu bytes", path, buf->len);
    return LVR_OK;
}

lvr_status lvr_read_file(const char *path, uint64_t max_bytes, lvr_buf *ret_buf, lvr_error *err)
{
    lvr_buf buf = LVR_BUF_INIT;
    /* Not blocking: a signal ends a poll for a pipe's writer, but not an open that waits for one. */
    const int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return lvr_fail_errno(err, errno, "%s: cannot open for reading", path);
    lvr_status status = check_readable(fd, path, max_bytes, err);
    if (status == LVR_OK)
        status = read_to_end(fd, path, max_bytes, &buf, err);
    close(fd);
    if (status != LVR_OK) {
        lvr_buf_free(&buf);
        return status;
    }
    *ret_buf = buf;
    return LVR_OK;
}

static lvr_status fail_write(const char *path, int errnum, lvr_error *err)
{
    if (errnum == ENOSPC || errnum == EDQUOT)
        return lvr_fail_errno(err, errnum, "%s: the disk is full; free some space or write elsewhere", path);
    return lvr_fail_errno(err, errnum, "%s: cannot write", path);
}

static lvr_status write_all(int fd, const char *data, size_t n, const char *path, lvr_error *err)
{
    while (n > 0) {
        const ssize_t done = write(fd, data, n);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return fail_write(path, done < 0 ? errno : EIO, err);
        data += done;
        n -= (size_t)done;
    }
    return LVR_OK;
}

static lvr_status write_and_close(int fd, const void *data, size_t n, const char *path, bool sync,
                                  lvr_error *err)
{
    lvr_status status = write_all(fd, data, n, path, err);
    if (status == LVR_OK && sync && fsync(fd) != 0)
        status = fail_write(path, errno, err);
    if (close(fd) != 0 && status == LVR_OK)
        status = fail_write(path, errno, err);
    return status;
}

/* A pipe, a terminal or /dev/full is written to, never renamed over. */
static lvr_status write_special(const char *path, const void *data, size_t n, lvr_error *err)
{
    const int fd = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 && errno == ENXIO)
        return lvr_fail_errno(err, errno, "%s: a pipe that nobody reads; start its reader first", path);
    if (fd < 0)
        return lvr_fail_errno(err, errno, "%s: cannot open for writing", path);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    return write_and_close(fd, data, n, path, false, err);
}

static lvr_status write_renamed(const char *path, const char *tmp, const void *data, size_t n, lvr_error *err)
{
    const int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return lvr_fail_errno(err, errno, "%s: cannot create", tmp);
    lvr_status status = write_and_close(fd, data, n, path, true, err);
    if (status == LVR_OK && rename(tmp, path) != 0)
        status = lvr_fail_errno(err, errno, "%s: cannot rename %s over it", path, tmp);
    if (status != LVR_OK)
        unlink(tmp);
    return status;
}

lvr_status lvr_write_file_atomic(const char *path, const void *data, size_t n, lvr_error *err)
{
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return write_special(path, data, n, err);
    char *tmp = NULL;
    if (asprintf(&tmp, "%s.tmp.%ld", path, (long)getpid()) < 0)
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory for the name of a temporary file", path);
    const lvr_status status = write_renamed(path, tmp, data, n, err);
    free(tmp);
    return status;
}

static lvr_status check_directory(const char *path, lvr_error *err)
{
    const char *slash = strrchr(path, '/');
    char *dir = !slash ? strdup(".") : slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
    if (!dir)
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory for a path", path);
    lvr_status status = LVR_OK;
    struct stat st;
    if (stat(dir, &st) != 0)
        status = lvr_fail_errno(err, errno, "%s: cannot write into %s", path, dir);
    else if (!S_ISDIR(st.st_mode))
        status = lvr_fail_errno(err, ENOTDIR, "%s: cannot write into %s", path, dir);
    else if (access(dir, W_OK | X_OK) != 0)
        status = lvr_fail_errno(err, errno, "%s: cannot write into %s", path, dir);
    free(dir);
    return status;
}

lvr_status lvr_check_writable(const char *path, lvr_error *err)
{
    struct stat st;
    if (path[0] == '\0')
        return lvr_fail_errno(err, ENOENT, "an empty name for a file to write");
    if (stat(path, &st) != 0)
        return path[strlen(path) - 1] == '/'
                   ? lvr_fail_errno(err, EISDIR, "%s: expected the name of a file", path)
                   : check_directory(path, err);
    if (S_ISDIR(st.st_mode))
        return lvr_fail_errno(err, EISDIR, "%s: expected a file to write, found a directory", path);
    if (S_ISREG(st.st_mode))
        return check_directory(path, err);
    return access(path, W_OK) == 0 ? LVR_OK : lvr_fail_errno(err, errno, "%s: cannot write", path);
}

static lvr_status check_extent(size_t n, uint64_t offset, const char *path, lvr_error *err)
{
    if (offset <= INT64_MAX && n <= INT64_MAX - offset)
        return LVR_OK;
    return lvr_fail(err, LVR_ERR_FORMAT,
                    "%s: %zu bytes at offset %" PRIu64
                    " lie beyond any file; the file's header may be damaged",
                    path, n, offset);
}

lvr_status lvr_pwrite_all(int fd, const void *data, size_t n, uint64_t offset, const char *path,
                          lvr_error *err)
{
    const lvr_status status = check_extent(n, offset, path, err);
    if (status != LVR_OK)
        return status;
    const char *p = data;
    while (n > 0) {
        const ssize_t done = pwrite(fd, p, n, (off_t)offset);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return fail_write(path, done < 0 ? errno : EIO, err);
        p += done;
        n -= (size_t)done;
        offset += (uint64_t)done;
    }
    return LVR_OK;
}

lvr_status lvr_pread_all(int fd, void *data, size_t n, uint64_t offset, const char *path, lvr_error *err)
{
    const lvr_status status = check_extent(n, offset, path, err);
    if (status != LVR_OK)
        return status;
    char *p = data;
    size_t left = n;
    while (left > 0) {
        const size_t got = n - left;
        const ssize_t done = pread(fd, p + got, left, (off_t)(offset + got));
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return lvr_fail_errno(err, errno, "%s: cannot read %zu bytes at offset %" PRIu64, path, n,
                                  offset);
        if (done == 0)
            return lvr_fail(err, LVR_ERR_FORMAT,
                            "%s: the file ends early: expected %zu bytes at offset %" PRIu64
                            ", found %zu; copy or create the file again",
                            path, n, offset, got);
        left -= (size_t)done;
    }
    return LVR_OK;
}

static lvr_status make_dir(const char *path, lvr_error *err)
{
    if (mkdir(path, 0777) == 0)
        return LVR_OK;
    const int errnum = errno;
    struct stat st;
    if (stat(path, &st) != 0)
        return lvr_fail_errno(err, errnum, "%s: cannot create the directory", path);
    if (!S_ISDIR(st.st_mode))
        return lvr_fail_errno(err, ENOTDIR, "%s: expected a directory, found a file of that name", path);
    return LVR_OK;
}

lvr_status lvr_mkdirs(const char *path, lvr_error *err)
{
    char *part = strdup(path);
    if (!part)
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory for a path", path);
    lvr_status status = LVR_OK;
    for (char *p = part + (*part == '/'); *p && status == LVR_OK; p++) {
        if (*p != '/')
            continue;
        *p = '\0';
        status = make_dir(part, err);
        *p = '/';
    }
    if (status == LVR_OK)
        status = make_dir(part, err);
    free(part);
    return status;
}
