#include "common/error.h"
#include "common/log.h"
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

Test(error, fail_fills_and_returns)
{
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_fail(&err, LVR_ERR_CONFIG, "x is %d", 7), LVR_ERR_CONFIG);
    cr_assert_eq(err.status, LVR_ERR_CONFIG);
    cr_assert_str_eq(err.msg, "x is 7");
    cr_assert_eq(lvr_fail(NULL, LVR_ERR_FORMAT, "unseen"), LVR_ERR_FORMAT);
}

Test(error, errno_text_is_appended)
{
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_fail_errno(&err, ENOENT, "a/b"), LVR_ERR_IO);
    cr_assert_str_eq(err.msg, "a/b: No such file or directory");
}

Test(error, prefix_keeps_status)
{
    lvr_error err = LVR_ERROR_INIT;
    lvr_fail(&err, LVR_ERR_IO, "inner");
    cr_assert_eq(lvr_error_prefix(&err, "outer %d", 1), LVR_ERR_IO);
    cr_assert_str_eq(err.msg, "outer 1: inner");
    cr_assert_neq(lvr_error_prefix(NULL, "outer"), LVR_OK);
}

Test(error, a_message_may_quote_itself)
{
    lvr_error err = LVR_ERROR_INIT;
    lvr_fail(&err, LVR_ERR_IO, "inner");
    lvr_fail(&err, LVR_ERR_FORMAT, "[%s]", err.msg);
    cr_assert_str_eq(err.msg, "[inner]");
}

Test(error, control_bytes_do_not_reach_terminals)
{
    lvr_error err = LVR_ERROR_INIT;
    lvr_fail(&err, LVR_ERR_FORMAT, "found \"%s\"", "\x1b[31m\x7f\xc3\xa9");
    cr_assert_str_eq(err.msg, "found \"?[31m?\xc3\xa9\"");
}

Test(error, long_messages_are_cut_between_characters)
{
    char text[3000];
    lvr_error err = LVR_ERROR_INIT;
    for (size_t shift = 0; shift < 4; shift++) {
        memset(text, 'x', shift);
        for (size_t i = shift; i + 4 < sizeof text; i += 4)
            memcpy(text + i, "\xf0\x9f\x98\x80", 5);
        lvr_fail(&err, LVR_ERR_FORMAT, "%s", text);
        const size_t len = strlen(err.msg);
        cr_assert_lt(len, LVR_ERROR_MSG_BYTES);
        cr_assert_eq((len - shift) % 4, 0, "shift %zu: length %zu", shift, len);
        lvr_error_prefix(&err, "%s", text);
        cr_assert_lt(strlen(err.msg), LVR_ERROR_MSG_BYTES);
    }
}

Test(error, exit_codes)
{
    cr_assert_eq(lvr_status_exit_code(LVR_OK), 0);
    cr_assert_eq(lvr_status_exit_code(LVR_ERR_USAGE), 2);
    cr_assert_eq(lvr_status_exit_code(LVR_ERR_CONFIG), 2);
    cr_assert_eq(lvr_status_exit_code(LVR_ERR_BUDGET), 2);
    cr_assert_eq(lvr_status_exit_code(LVR_ERR_IO), 1);
    cr_assert_eq(lvr_status_exit_code(LVR_ERR_INVARIANT), 1);
    cr_assert_str_eq(lvr_status_name(LVR_ERR_BUDGET), "budget");
}

static void collect(lvr_log_level level, const char *message, void *user)
{
    snprintf(user, 64, "%d:%s", (int)level, message);
}

Test(log, default_drops_and_threshold_filters)
{
    char seen[64] = "";
    lvr_log(LVR_LOG_ERROR, "nobody listens");
    lvr_log_set_sink(collect, LVR_LOG_WARN, seen);
    lvr_log(LVR_LOG_INFO, "too quiet");
    cr_assert_str_eq(seen, "");
    lvr_log(LVR_LOG_WARN, "n=%d", 3);
    cr_assert_str_eq(seen, "2:n=3");
    lvr_log_set_sink(NULL, LVR_LOG_DEBUG, NULL);
    lvr_log(LVR_LOG_ERROR, "gone");
    cr_assert_str_eq(seen, "2:n=3");
}
