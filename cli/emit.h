/* Where results go: standard output, or a file that appears whole. */
#ifndef LVR_CLI_EMIT_H
#define LVR_CLI_EMIT_H

#include "common/buf.h"
#include "common/error.h"
#include "common/param.h"

/* Writes the buffer to `path`, or to standard output if path is NULL, and frees it. A buffer that ran out of
 * memory is an error. */
lvr_status lvr_emit(const char *path, lvr_buf *out, lvr_error *err);
/* Before long work: whether lvr_emit could write to `path` (NULL: standard output) now. */
lvr_status lvr_emit_check(const char *path, lvr_error *err);
/* As well, that it is none of these inputs (NULL: no such file; -: standard input), also by another name of
 * the same file: LVR_ERR_USAGE. */
lvr_status lvr_emit_check_inputs(const char *path, const char *const *inputs, size_t n, lvr_error *err);
/* "usage" line and the option table on standard output. */
lvr_status lvr_emit_help(const char *usage, const lvr_param *table, size_t n, lvr_error *err);

#endif
