/* A JSON writer: objects and arrays are opened and closed in order, commas and escaping are its business.
 * Doubles print as the shortest text that reads back equal; NaN and infinities print as null.
 * Output goes to the lvr_buf given; check buf->failed at the end (it is also set when
 * nesting exceeds LVR_JSON_MAX_DEPTH or an end has no beginning). Not thread safe per writer. */
#ifndef LVR_COMMON_JSON_H
#define LVR_COMMON_JSON_H

#include "common/buf.h"
#include <stdbool.h>
#include <stdint.h>

#define LVR_JSON_MAX_DEPTH 32

typedef struct lvr_json {
    lvr_buf *out;
    int depth;
    bool pretty; /* two-space indentation */
    bool has_item[LVR_JSON_MAX_DEPTH];
} lvr_json;

void lvr_json_init(lvr_json *j, lvr_buf *out, bool pretty);
/* `key` is NULL inside arrays and at the top level. */
void lvr_json_object(lvr_json *j, const char *key);
void lvr_json_end_object(lvr_json *j);
void lvr_json_array(lvr_json *j, const char *key);
void lvr_json_end_array(lvr_json *j);
void lvr_json_str(lvr_json *j, const char *key,
                  const char *value); /* NULL value: null; invalid UTF-8 is replaced by U+FFFD */
void lvr_json_strn(lvr_json *j, const char *key, const char *value, size_t n);
void lvr_json_u64(lvr_json *j, const char *key, uint64_t value);
void lvr_json_i64(lvr_json *j, const char *key, int64_t value);
void lvr_json_double(lvr_json *j, const char *key, double value);
void lvr_json_bool(lvr_json *j, const char *key, bool value);

/* Shortest decimal text that strtod reads back to the same double (for a few exact powers of two, one digit
 * more); buf >= 32 bytes. */
void lvr_format_double(char *buf, size_t n, double value);

#endif
