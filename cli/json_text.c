#include "cli/json_text.h"

#include <ctype.h>
#include <stdbool.h>

#define ESCAPE_BYTES 6 /* \uXXXX */

/* The code unit of an escape \uXXXX at `text`; -1 if there is none. */
static int32_t escaped_unit(const char *text, size_t n)
{
    int32_t unit = 0;
    if (n < ESCAPE_BYTES || text[0] != '\\' || text[1] != 'u')
        return -1;
    for (size_t i = 2; i < ESCAPE_BYTES; i++) {
        const char c = text[i];
        if (!isxdigit((unsigned char)c))
            return -1;
        unit = unit * 16 + (c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    return unit;
}

static bool is_high(int32_t unit)
{
    return unit >= 0xd800 && unit < 0xdc00;
}

static bool is_low(int32_t unit)
{
    return unit >= 0xdc00 && unit < 0xe000;
}

static lvr_status fail_half(const char *name, uint32_t line, const char *text, size_t at, lvr_error *err)
{
    size_t begin = at;
    for (size_t i = 0; i < at; i++)
        line += text[i] == '\n';
    while (begin > 0 && text[begin - 1] != '\n')
        begin--;
    return lvr_fail(err, LVR_ERR_CONFIG,
                    "%s:%u:%zu: not valid JSON or JSONL: %.6s is half of a surrogate pair and stands for no "
                    "character; write both halves, or the character itself",
                    name, line, at - begin + 1, text + at);
}

/* Writes what the escape at `text` comes to, and how many bytes of it are done. False for half of a pair. */
static bool put_escape(const char *text, size_t n, lvr_buf *out, size_t *ret_bytes)
{
    const int32_t high = escaped_unit(text, n);
    *ret_bytes = n < 2 ? n : 2; /* so that the second of two backslashes begins nothing */
    if (is_low(high))
        return false;
    if (!is_high(high)) {
        lvr_buf_append(out, text, *ret_bytes);
        return true;
    }
    const int32_t low = escaped_unit(text + ESCAPE_BYTES, n - ESCAPE_BYTES);
    if (!is_low(low))
        return false;
    lvr_buf_printf(out, "\\U%08x", 0x10000u + ((unsigned)(high - 0xd800) << 10) + (unsigned)(low - 0xdc00));
    *ret_bytes = 2 * (size_t)ESCAPE_BYTES;
    return true;
}

lvr_status lvr_json_text_escapes(const char *name, uint32_t first_line, const char *text, size_t n,
                                 lvr_buf *ret, lvr_error *err)
{
    lvr_buf out = LVR_BUF_INIT;
    bool quoted = false;
    lvr_buf_append(&out, "", 0);
    for (size_t at = 0, bytes = 1; at < n; at += bytes) {
        bytes = 1;
        if (!quoted || text[at] != '\\') {
            quoted ^= text[at] == '"';
            lvr_buf_append(&out, text + at, 1);
        } else if (!put_escape(text + at, n - at, &out, &bytes)) {
            lvr_buf_free(&out);
            return fail_half(name, first_line, text, at, err);
        }
    }
    if (out.failed) {
        lvr_buf_free(&out);
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory", name);
    }
    *ret = out;
    return LVR_OK;
}
