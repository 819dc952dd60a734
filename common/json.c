#include "common/json.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void lvr_json_init(lvr_json *j, lvr_buf *out, bool pretty)
{
    *j = (lvr_json){.out = out, .pretty = pretty};
}

static void newline(lvr_json *j)
{
    if (!j->pretty)
        return;
    lvr_buf_puts(j->out, "\n");
    for (int i = 0; i < j->depth; i++)
        lvr_buf_puts(j->out, "  ");
}

static uint32_t decode(const char *s, size_t len)
{
    const unsigned char c = (unsigned char)s[0];
    if (len == 1)
        return c;
    uint32_t code = c & (0xffu >> (len + 1));
    for (size_t i = 1; i < len; i++)
        code = code << 6 | ((unsigned char)s[i] & 0x3fu);
    return code;
}

/* Beyond what JSON asks for: also what YAML readers and JavaScript do not take raw. */
static bool must_escape(uint32_t code)
{
    return code < 0x20 || (code >= 0x7f && code <= 0x9f) || code == 0x2028 || code == 0x2029 ||
           code == 0xfeff || code == 0xfffe || code == 0xffff;
}

static void write_char(lvr_buf *out, const char *s, size_t len)
{
    const uint32_t code = decode(s, len);
    if (code == '"' || code == '\\')
        lvr_buf_printf(out, "\\%c", (char)code);
    else if (code == '\n')
        lvr_buf_puts(out, "\\n");
    else if (code == '\t')
        lvr_buf_puts(out, "\\t");
    else if (code == '\r')
        lvr_buf_puts(out, "\\r");
    else if (must_escape(code))
        lvr_buf_printf(out, "\\u%04" PRIx32, code);
    else
        lvr_buf_append(out, s, len);
}

static void write_string(lvr_buf *out, const char *s, size_t n)
{
    lvr_buf_puts(out, "\"");
    for (size_t i = 0; i < n;) {
        const size_t len = lvr_utf8_len(s + i, n - i);
        if (len == 0)
            lvr_buf_puts(out, "\xef\xbf\xbd");
        else
            write_char(out, s + i, len);
        i += len ? len : 1;
    }
    lvr_buf_puts(out, "\"");
}

static void begin_item(lvr_json *j, const char *key)
{
    if (j->depth > 0 && j->depth <= LVR_JSON_MAX_DEPTH) {
        bool *has_item = &j->has_item[j->depth - 1];
        if (*has_item)
            lvr_buf_puts(j->out, ",");
        *has_item = true;
        newline(j);
    }
    if (!key)
        return;
    write_string(j->out, key, strlen(key));
    lvr_buf_puts(j->out, j->pretty ? ": " : ":");
}

static void open_level(lvr_json *j, const char *key, const char *bracket)
{
    begin_item(j, key);
    lvr_buf_puts(j->out, bracket);
    j->depth++;
    if (j->depth > LVR_JSON_MAX_DEPTH)
        j->out->failed = true;
    else
        j->has_item[j->depth - 1] = false;
}

static void close_level(lvr_json *j, const char *bracket)
{
    if (j->depth == 0) {
        j->out->failed = true;
        return;
    }
    j->depth--;
    if (j->depth < LVR_JSON_MAX_DEPTH && j->has_item[j->depth])
        newline(j);
    lvr_buf_puts(j->out, bracket);
}

void lvr_json_object(lvr_json *j, const char *key)
{
    open_level(j, key, "{");
}

void lvr_json_end_object(lvr_json *j)
{
    close_level(j, "}");
}

void lvr_json_array(lvr_json *j, const char *key)
{
    open_level(j, key, "[");
}

void lvr_json_end_array(lvr_json *j)
{
    close_level(j, "]");
}

void lvr_json_str(lvr_json *j, const char *key, const char *value)
{
    lvr_json_strn(j, key, value, value ? strlen(value) : 0);
}

void lvr_json_strn(lvr_json *j, const char *key, const char *value, size_t n)
{
    begin_item(j, key);
    if (value)
        write_string(j->out, value, n);
    else
        lvr_buf_puts(j->out, "null");
}

void lvr_json_u64(lvr_json *j, const char *key, uint64_t value)
{
    begin_item(j, key);
    lvr_buf_printf(j->out, "%" PRIu64, value);
}

void lvr_json_i64(lvr_json *j, const char *key, int64_t value)
{
    begin_item(j, key);
    lvr_buf_printf(j->out, "%" PRId64, value);
}

void lvr_json_double(lvr_json *j, const char *key, double value)
{
    begin_item(j, key);
    if (!isfinite(value)) {
        lvr_buf_puts(j->out, "null");
        return;
    }
    char text[32];
    lvr_format_double(text, sizeof text, value);
    lvr_buf_puts(j->out, text);
}

void lvr_json_bool(lvr_json *j, const char *key, bool value)
{
    begin_item(j, key);
    lvr_buf_puts(j->out, value ? "true" : "false");
}

void lvr_format_double(char *buf, size_t n, double value)
{
    /* Fifteen digits recover every shorter decimal of a normal double; subnormals carry fewer. */
    const bool subnormal = value != 0 && fabs(value) < DBL_MIN;
    for (int digits = subnormal ? 1 : DBL_DIG; digits <= DBL_DECIMAL_DIG; digits++) {
        snprintf(buf, n, "%.*g", digits, value);
        if (!isfinite(value) || strtod(buf, NULL) == value)
            return;
    }
}
