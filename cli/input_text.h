/* Texts from outside: an argument, a file, standard input. */
#ifndef LVR_CLI_INPUT_TEXT_H
#define LVR_CLI_INPUT_TEXT_H

#include "common/buf.h"
#include "common/error.h"
#include <stdatomic.h>
#include <stdint.h>

#define LVR_MAX_INPUT_TEXT_BYTES (16u << 20)

/* "-" stands for standard input. */
bool lvr_input_is_stdin(const char *path);
/* How messages call it. */
const char *lvr_input_name(const char *path);
/* All bytes of the file, or of standard input, as they are. More than max_bytes is LVR_ERR_FORMAT. Waiting
 * for input ends with LVR_ERR_INTERRUPTED once cancel is true. */
lvr_status lvr_input_read(const char *path, uint64_t max_bytes, const atomic_bool *cancel, lvr_buf *ret,
                          lvr_error *err);
/* LVR_ERR_CONFIG with name:line:column unless the bytes are UTF-8 without NUL. */
lvr_status lvr_input_check_text(const char *name, const char *text, size_t n, lvr_error *err);
/* The argument of an option; escape: C's \\ \" \' \n \r \t and \xHH in it are replaced, and others are
 * LVR_ERR_USAGE. */
lvr_status lvr_input_argument(const char *option, const char *text, bool escape, lvr_buf *ret,
                              lvr_error *err);

#endif
