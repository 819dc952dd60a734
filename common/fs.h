/* Small file helpers. */
#ifndef LVR_COMMON_FS_H
#define LVR_COMMON_FS_H

#include "common/buf.h"
#include "common/error.h"
#include <stdint.h>

/* Whole file into buf; larger than max_bytes is LVR_ERR_FORMAT. Directories and unreadable files are
 * LVR_ERR_IO. */
lvr_status lvr_read_file(const char *path, uint64_t max_bytes, lvr_buf *ret_buf, lvr_error *err);
/* Writes path.tmp.PID, then renames over path: a reader sees the old file or the whole new one. What is no
 * regular file (a pipe, a terminal, /dev/null) is written to directly. */
lvr_status lvr_write_file_atomic(const char *path, const void *data, size_t n, lvr_error *err);
/* Whether lvr_write_file_atomic could write there now, without writing: to be asked before long work. */
lvr_status lvr_check_writable(const char *path, lvr_error *err);
/* pwrite until done; short writes and EINTR are handled, ENOSPC says so. */
lvr_status lvr_pwrite_all(int fd, const void *data, size_t n, uint64_t offset, const char *path,
                          lvr_error *err);
/* As above; an early end of the file is LVR_ERR_FORMAT. */
lvr_status lvr_pread_all(int fd, void *data, size_t n, uint64_t offset, const char *path, lvr_error *err);
/* Creates the directory and the missing ones above it; one that exists already is fine. */
lvr_status lvr_mkdirs(const char *path, lvr_error *err);

#endif
