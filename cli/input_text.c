#include "cli/input_text.h"

#include "common/fs.h"
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#define LOOK_FOR_CANCEL_MS 100
#define STDIN_NAME "standard input"

bool lvr_input_is_stdin(const char *path)
{
    return strcmp(path, "-") == 0;
}

const char *lvr_input_name(const char *path)
{
    return lvr_input_is_stdin(path) ? STDIN_NAME : path;
}

/* ---- standard input ---- */

/* A read from a terminal or a pipe is begun again after a signal (SA_RESTART), so what ends it is looked at
 * here. */
static lvr_status wait_for_input(const atomic_bool *cancel, lvr_error *err)
{
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
    for (;;) {
        if (atomic_load(cancel))
            return lvr_fail(err, LVR_ERR_INTERRUPTED, STDIN_NAME ": interrupted while waiting for input");
        const int n = poll(&p, 1, LOOK_FOR_CANCEL_MS);
        if (n > 0 && (p.revents & POLLNVAL))
            return lvr_fail_errno(err, EBADF, STDIN_NAME ": cannot read");
        if (n > 0)
            return LVR_OK;
        if (n < 0 && errno != EINTR)
            return lvr_fail_errno(err, errno, STDIN_NAME ": cannot wait for input");
    }
}

static lvr_status read_some(lvr_buf *buf, uint64_t max_bytes, bool *ret_end, lvr_error *err)
{
    char chunk[32768];
    const ssize_t n = read(STDIN_FILENO, chunk, sizeof chunk);
    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return LVR_OK;
    if (n < 0)
        return lvr_fail_errno(err, errno, STDIN_NAME ": cannot read");
    if ((uint64_t)n > max_bytes - buf->len)
        return lvr_fail(err, LVR_ERR_FORMAT,
                        STDIN_NAME ": expected at most %" PRIu64
                                   " bytes, found more; is this the right text?",
                        max_bytes);
    lvr_buf_append(buf, chunk, (size_t)n);
    *ret_end = n == 0;
    return buf->failed ? lvr_fail(err, LVR_ERR_NOMEM, STDIN_NAME ": out of memory") : LVR_OK;
}

static lvr_status read_stdin(uint64_t max_bytes, const atomic_bool *cancel, lvr_buf *ret, lvr_error *err)
{
    lvr_buf buf = LVR_BUF_INIT;
    lvr_status status = LVR_OK;
    for (bool end = false; status == LVR_OK && !end;) {
        status = wait_for_input(cancel, err);
        if (status == LVR_OK)
            status = read_some(&buf, max_bytes, &end, err);
    }
    if (status != LVR_OK) {
        lvr_buf_free(&buf);
        return status;
    }
    *ret = buf;
    return LVR_OK;
}

lvr_status lvr_input_read(const char *path, uint64_t max_bytes, const atomic_bool *cancel, lvr_buf *ret,
                          lvr_error *err)
{
    return lvr_input_is_stdin(path) ? read_stdin(max_bytes, cancel, ret, err)
                                    : lvr_read_file(path, max_bytes, ret, err);
}

/* ---- what a text may hold ---- */

static lvr_status fail_byte(const char *name, const char *text, size_t at, lvr_error *err)
{
    size_t line = 1, begin = 0;
    for (size_t i = 0; i < at; i++) {
        if (text[i] != '\n')
            continue;
        line++;
        begin = i + 1;
    }
    if (text[at] == '\0')
        return lvr_fail(err, LVR_ERR_CONFIG,
                        "%s:%zu:%zu: expected text in UTF-8, found a NUL byte; is this a binary file?", name,
                        line, at - begin + 1);
    return lvr_fail(
        err, LVR_ERR_CONFIG,
        "%s:%zu:%zu: expected text in UTF-8, found the byte 0x%02x, which is not; convert it, for "
        "example with iconv",
        name, line, at - begin + 1, (unsigned)(unsigned char)text[at]);
}

lvr_status lvr_input_check_text(const char *name, const char *text, size_t n, lvr_error *err)
{
    for (size_t at = 0; at < n;) {
        const size_t bytes = lvr_utf8_len(text + at, n - at);
        if (bytes == 0 || text[at] == '\0')
            return fail_byte(name, text, at, err);
        at += bytes;
    }
    return LVR_OK;
}

/* ---- arguments ---- */

static int hex_digit(char c)
{
    if (!isxdigit((unsigned char)c))
        return -1;
    return c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
}

/* The byte that text, after its backslash, stands for, and how many characters say so; 0 if none. */
static size_t escaped(const char *text, char *ret)
{
    static const char letters[] = "nrt\\\"'", bytes[] = "\n\r\t\\\"'";
    const char *letter = text[0] ? strchr(letters, text[0]) : NULL;
    if (letter) {
        *ret = bytes[letter - letters];
        return 1;
    }
    const int high = text[0] == 'x' ? hex_digit(text[1]) : -1;
    const int low = high < 0 ? -1 : hex_digit(text[2]);
    if (low < 0)
        return 0;
    *ret = (char)(high * 16 + low);
    return 3;
}

lvr_status lvr_input_argument(const char *option, const char *text, bool escape, lvr_buf *ret, lvr_error *err)
{
    lvr_buf buf = LVR_BUF_INIT;
    lvr_buf_append(&buf, "", 0);
    for (const char *at = text; *at;) {
        char c = *at;
        size_t n = 1;
        if (escape && c == '\\') {
            n = escaped(at + 1, &c);
            if (n == 0) {
                lvr_buf_free(&buf);
                return lvr_fail(
                    err, LVR_ERR_USAGE,
                    "--%s: \"%.2s\" is no escape; expected \\n, \\r, \\t, \\\\, \\\", \\' or \\xHH, "
                    "or leave --escape out",
                    option, at);
            }
            n++;
        }
        lvr_buf_append(&buf, &c, 1);
        at += n;
    }
    if (buf.failed) {
        lvr_buf_free(&buf);
        return lvr_fail(err, LVR_ERR_NOMEM, "--%s: out of memory", option);
    }
    *ret = buf;
    return LVR_OK;
}
