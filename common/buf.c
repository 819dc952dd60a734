#include "common/buf.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Room for `more` bytes and the NUL. */
static bool reserve(lvr_buf *buf, size_t more)
{
    if (buf->failed)
        return false;
    if (more >= SIZE_MAX - buf->len) {
        buf->failed = true;
        return false;
    }
    const size_t need = buf->len + more + 1;
    if (need <= buf->cap)
        return true;
    size_t cap = buf->cap < 64 ? 64 : buf->cap;
    while (cap < need)
        cap = cap > SIZE_MAX / 2 ? need : cap * 2;
    char *data = realloc(buf->data, cap);
    if (!data) {
        buf->failed = true;
        return false;
    }
    buf->data = data;
    buf->cap = cap;
    return true;
}

void lvr_buf_append(lvr_buf *buf, const void *bytes, size_t n)
{
    if (!reserve(buf, n))
        return;
    if (n > 0)
        memcpy(buf->data + buf->len, bytes, n);
    buf->len += n;
    buf->data[buf->len] = '\0';
}

void lvr_buf_puts(lvr_buf *buf, const char *s)
{
    lvr_buf_append(buf, s, strlen(s));
}

void lvr_buf_printf(lvr_buf *buf, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    const int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0)
        buf->failed = true;
    else if (reserve(buf, (size_t)n)) {
        vsnprintf(buf->data + buf->len, (size_t)n + 1, fmt, again);
        buf->len += (size_t)n;
    }
    va_end(again);
}

void lvr_buf_free(lvr_buf *buf)
{
    if (!buf)
        return;
    free(buf->data);
    *buf = LVR_BUF_INIT;
}

static bool is_continuation(unsigned char c)
{
    return (c & 0xc0) == 0x80;
}

static size_t utf8_len3(const unsigned char *s, size_t n)
{
    if (n < 3 || !is_continuation(s[1]) || !is_continuation(s[2]))
        return 0;
    const bool overlong = s[0] == 0xe0 && s[1] < 0xa0;
    const bool surrogate = s[0] == 0xed && s[1] >= 0xa0;
    return overlong || surrogate ? 0 : 3;
}

static size_t utf8_len4(const unsigned char *s, size_t n)
{
    if (n < 4 || !is_continuation(s[1]) || !is_continuation(s[2]) || !is_continuation(s[3]))
        return 0;
    const bool overlong = s[0] == 0xf0 && s[1] < 0x90;
    const bool beyond = s[0] > 0xf4 || (s[0] == 0xf4 && s[1] >= 0x90);
    return overlong || beyond ? 0 : 4;
}

size_t lvr_utf8_len(const char *text, size_t n)
{
    if (n == 0)
        return 0;
    unsigned char s[4] = {0};
    memcpy(s, text, n < 4 ? n : 4);
    if (s[0] < 0x80)
        return 1;
    if (s[0] >= 0xc2 && s[0] <= 0xdf)
        return n >= 2 && is_continuation(s[1]) ? 2 : 0;
    if (s[0] >= 0xe0 && s[0] <= 0xef)
        return utf8_len3(s, n);
    if (s[0] >= 0xf0)
        return utf8_len4(s, n);
    return 0;
}
