/* JSON's one escape that YAML has not: a character beyond U+FFFF as a pair of surrogates (RFC 8259, 7). */
#ifndef LVR_CLI_JSON_TEXT_H
#define LVR_CLI_JSON_TEXT_H

#include "common/buf.h"
#include "common/error.h"
#include <stdint.h>

/* JSON text with every pair of \uXXXX surrogates written as YAML's \UXXXXXXXX; all else stays. Half of a
 * pair is LVR_ERR_CONFIG with name:line:column (bytes); the text begins at `first_line`. */
lvr_status lvr_json_text_escapes(const char *name, uint32_t first_line, const char *text, size_t n,
                                 lvr_buf *ret, lvr_error *err);

#endif
