#include "common/error.h"

#include <stdio.h>
#include <string.h>

/* Messages quote file contents and arguments: control bytes must not reach a terminal, and a cut in the
 * middle of a UTF-8 sequence must not leave half a character. */
static void tidy(char *msg)
{
    size_t len = strlen(msg);
    if (len == LVR_ERROR_MSG_BYTES - 1) {
        size_t start = len;
        while (start > 0 && len - start < 3 && ((unsigned char)msg[start - 1] & 0xc0) == 0x80)
            start--;
        if (start > 0 && ((unsigned char)msg[start - 1] & 0xc0) == 0xc0)
            msg[start - 1] = '\0';
    }
    for (char *p = msg; *p; p++)
        if (((unsigned char)*p < 0x20 && *p != '\n') || *p == 0x7f)
            *p = '?';
}

static void vset(lvr_error *err, lvr_status status, const char *fmt, va_list ap)
    __attribute__((format(printf, 3, 0)));

static void vset(lvr_error *err, lvr_status status, const char *fmt, va_list ap)
{
    /* Through a copy: an argument may point into the message being replaced. */
    char msg[LVR_ERROR_MSG_BYTES];
    if (vsnprintf(msg, sizeof msg, fmt, ap) < 0)
        msg[0] = '\0';
    tidy(msg);
    memcpy(err->msg, msg, sizeof msg);
    err->status = status;
}

static void append(char *msg, const char *text)
{
    const size_t len = strlen(msg);
    const size_t room = LVR_ERROR_MSG_BYTES - 1 - len;
    const size_t n = strnlen(text, room);
    memcpy(msg + len, text, n);
    msg[len + n] = '\0';
}

lvr_status lvr_fail(lvr_error *err, lvr_status status, const char *fmt, ...)
{
    if (!err)
        return status;
    va_list ap;
    va_start(ap, fmt);
    vset(err, status, fmt, ap);
    va_end(ap);
    return status;
}

lvr_status lvr_fail_errno(lvr_error *err, int errnum, const char *fmt, ...)
{
    if (!err)
        return LVR_ERR_IO;
    va_list ap;
    va_start(ap, fmt);
    vset(err, LVR_ERR_IO, fmt, ap);
    va_end(ap);
    char scratch[128];
    append(err->msg, ": ");
    append(err->msg, strerror_r(errnum, scratch, sizeof scratch));
    return LVR_ERR_IO;
}

lvr_status lvr_error_prefix(lvr_error *err, const char *fmt, ...)
{
    if (!err)
        return LVR_ERR_INVARIANT;
    char old[LVR_ERROR_MSG_BYTES];
    memcpy(old, err->msg, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    vset(err, err->status, fmt, ap);
    va_end(ap);
    append(err->msg, ": ");
    append(err->msg, old);
    tidy(err->msg);
    return err->status;
}

const char *lvr_status_name(lvr_status status)
{
    switch (status) {
    case LVR_OK:
        return "ok";
    case LVR_ERR_USAGE:
        return "usage";
    case LVR_ERR_CONFIG:
        return "config";
    case LVR_ERR_IO:
        return "io";
    case LVR_ERR_FORMAT:
        return "format";
    case LVR_ERR_UNSUPPORTED:
        return "unsupported";
    case LVR_ERR_NOMEM:
        return "nomem";
    case LVR_ERR_BUDGET:
        return "budget";
    case LVR_ERR_INTERRUPTED:
        return "interrupted";
    case LVR_ERR_INVARIANT:
        return "invariant";
    }
    return "unknown";
}

int lvr_status_exit_code(lvr_status status)
{
    switch (status) {
    case LVR_OK:
        return 0;
    case LVR_ERR_USAGE:
    case LVR_ERR_CONFIG:
    case LVR_ERR_BUDGET:
        return 2;
    default:
        return 1;
    }
}
