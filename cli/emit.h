/* Where results go: standard output, or a file that appears whole. */
#ifndef LVR_CLI_EMIT_H
#define LVR_CLI_EMIT_H

#include "common/buf.h"
#include "common/error.h"
#include "common/param.h"

/* Writes the buffer to `path`, or to standard output if path is NULL, and frees it. A buffer that ran out of
 * memory is an error. */
lvr_status lvr_emit(const char *path, lvr_buf *out, lvr_error *err);
/* "usage" line and the option table on standard output. */
lvr_status lvr_emit_help(const char *usage, const lvr_param *table, size_t n, lvr_error *err);

#endif
