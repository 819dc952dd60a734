#include "common/buf.h"
#include "common/json.h"
#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static char *dup_and_free(lvr_buf *buf)
{
    cr_assert(!buf->failed);
    char *text = strdup(buf->data);
    lvr_buf_free(buf);
    return text;
}

Test(json, nests_and_separates)
{
    lvr_buf buf = LVR_BUF_INIT;
    lvr_json j;
    lvr_json_init(&j, &buf, false);
    lvr_json_object(&j, NULL);
    lvr_json_u64(&j, "u", UINT64_MAX);
    lvr_json_i64(&j, "i", INT64_MIN);
    lvr_json_array(&j, "a");
    lvr_json_bool(&j, NULL, true);
    lvr_json_str(&j, NULL, NULL);
    lvr_json_object(&j, NULL);
    lvr_json_end_object(&j);
    lvr_json_end_array(&j);
    lvr_json_double(&j, "d", NAN);
    lvr_json_end_object(&j);
    char *text = dup_and_free(&buf);
    cr_assert_str_eq(
        text, "{\"u\":18446744073709551615,\"i\":-9223372036854775808,\"a\":[true,null,{}],\"d\":null}");
    free(text);
}

Test(json, pretty_indents_by_two)
{
    lvr_buf buf = LVR_BUF_INIT;
    lvr_json j;
    lvr_json_init(&j, &buf, true);
    lvr_json_object(&j, NULL);
    lvr_json_array(&j, "a");
    lvr_json_u64(&j, NULL, 1);
    lvr_json_u64(&j, NULL, 2);
    lvr_json_end_array(&j);
    lvr_json_object(&j, "empty");
    lvr_json_end_object(&j);
    lvr_json_end_object(&j);
    char *text = dup_and_free(&buf);
    cr_assert_str_eq(text, "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"empty\": {}\n}");
    free(text);
}

static void check_string(const char *in, size_t n, const char *expected)
{
    lvr_buf buf = LVR_BUF_INIT;
    lvr_json j;
    lvr_json_init(&j, &buf, false);
    lvr_json_strn(&j, NULL, in, n);
    char *text = dup_and_free(&buf);
    cr_assert_str_eq(text, expected);
    free(text);
}

Test(json, escapes_strings)
{
    check_string("a\"\\\n\t\r\x01\x7f", 8, "\"a\\\"\\\\\\n\\t\\r\\u0001\\u007f\"");
    check_string("a\0b", 3, "\"a\\u0000b\"");
    check_string("\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 9, "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"");
    check_string("\xe2\x80\xa8", 3, "\"\\u2028\"");
}

Test(json, replaces_invalid_utf8)
{
    check_string("a\xff", 2, "\"a\xef\xbf\xbd\"");
    check_string("\xc0\x80", 2, "\"\xef\xbf\xbd\xef\xbf\xbd\"");
    check_string("\xed\xa0\x80", 3, "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");
    check_string("\xe2\x82", 2, "\"\xef\xbf\xbd\xef\xbf\xbd\"");
    check_string("\xf4\x90\x80\x80", 1, "\"\xef\xbf\xbd\"");
}

Test(json, doubles_are_short_and_exact)
{
    const struct {
        double value;
        const char *text;
    } cases[] = {{0.1, "0.1"},       {1.0, "1"},         {1e20, "1e+20"},
                 {5e-324, "5e-324"}, {-0.0, "-0"},       {1.0 / 3, "0.3333333333333333"},
                 {0.3, "0.3"},       {123456, "123456"}, {DBL_MAX, "1.7976931348623157e+308"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[32];
        lvr_format_double(text, sizeof text, cases[i].value);
        cr_assert_str_eq(text, cases[i].text);
        cr_assert_eq(strtod(text, NULL), cases[i].value);
    }
}

Test(json, too_deep_or_unbalanced_fails)
{
    lvr_buf buf = LVR_BUF_INIT;
    lvr_json j;
    lvr_json_init(&j, &buf, true);
    for (int i = 0; i < LVR_JSON_MAX_DEPTH; i++)
        lvr_json_array(&j, NULL);
    cr_assert(!buf.failed);
    lvr_json_array(&j, NULL);
    lvr_json_u64(&j, NULL, 1);
    for (int i = 0; i <= LVR_JSON_MAX_DEPTH; i++)
        lvr_json_end_array(&j);
    cr_assert(buf.failed);
    lvr_buf_free(&buf);

    lvr_json_init(&j, &buf, false);
    lvr_json_end_object(&j);
    cr_assert(buf.failed);
    lvr_buf_free(&buf);
}

Test(buf, grows_and_terminates)
{
    lvr_buf buf = LVR_BUF_INIT;
    lvr_buf_append(&buf, "", 0);
    cr_assert_str_eq(buf.data, "");
    for (int i = 0; i < 1000; i++)
        lvr_buf_printf(&buf, "%d,", i);
    cr_assert(!buf.failed);
    cr_assert_eq(buf.len, 3890);
    cr_assert_eq(buf.data[buf.len], '\0');
    lvr_buf_free(&buf);
    cr_assert_null(buf.data);
}

Test(buf, an_impossible_size_fails_and_stays_failed)
{
    lvr_buf buf = LVR_BUF_INIT;
    lvr_buf_puts(&buf, "x");
    lvr_buf_append(&buf, "y", SIZE_MAX - 1);
    cr_assert(buf.failed);
    lvr_buf_puts(&buf, "z");
    cr_assert_str_eq(buf.data, "x");
    lvr_buf_free(&buf);
}
