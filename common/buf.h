/* A growing byte buffer / string builder. Appends that fail for want of memory set `failed` and later appends
 * do nothing, so a chain of appends is checked once at its end. Always NUL-terminated once anything was
 * appended. */
#ifndef LVR_COMMON_BUF_H
#define LVR_COMMON_BUF_H

#include <stdbool.h>
#include <stddef.h>

typedef struct lvr_buf {
    char *data;
    size_t len, cap;
    bool failed;
} lvr_buf;

#define LVR_BUF_INIT ((lvr_buf){0})

void lvr_buf_append(lvr_buf *buf, const void *bytes, size_t n);
void lvr_buf_puts(lvr_buf *buf, const char *s);
void lvr_buf_printf(lvr_buf *buf, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void lvr_buf_free(lvr_buf *buf);

/* Bytes (1 to 4) of the UTF-8 character at the start of text[0..n), 0 if it is not valid UTF-8 (or n is 0).
 */
size_t lvr_utf8_len(const char *text, size_t n);

#endif
