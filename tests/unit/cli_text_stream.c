/* Stop strings and the stream of a text: whatever the pieces, the text ends where it should, and nothing is
 * handed on that would have to be taken back. */
#include "cli/text_stream.h"
#include "common/rng.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TEXT 4096u

struct written {
    char text[MAX_TEXT];
    size_t n;
};

static void keep(void *user, const char *bytes, size_t n)
{
    struct written *w = user;
    cr_assert(n > 0 && w->n + n < MAX_TEXT);
    memcpy(w->text + w->n, bytes, n);
    w->n += n;
}

static lvr_stop_strings *stops_of(const char *const *texts, size_t n)
{
    lvr_buf items[LVR_MAX_STOP_STRINGS] = {0};
    lvr_stop_strings *s = NULL;
    lvr_error err = LVR_ERROR_INIT;
    for (size_t i = 0; i < n; i++)
        lvr_buf_puts(&items[i], texts[i]);
    cr_assert_eq(lvr_stop_strings_new(items, n, &s, &err), LVR_OK, "%s", err.msg);
    for (size_t i = 0; i < n; i++)
        lvr_buf_free(&items[i]);
    return s;
}

/* The definition, slowly: the shortest prefix of the text that ends with a stop string, without the longest
 * one it ends with. Returns its length; false: there is none. */
static bool end_slowly(const char *text, size_t n, const char *const *stops, size_t n_stops, size_t *ret)
{
    *ret = n;
    for (size_t end = 1; end <= n; end++) {
        size_t longest = 0;
        for (size_t i = 0; i < n_stops; i++) {
            const size_t len = strlen(stops[i]);
            if (len <= end && len > longest && memcmp(text + end - len, stops[i], len) == 0)
                longest = len;
        }
        if (longest == 0)
            continue;
        *ret = end - longest;
        return true;
    }
    return false;
}

static bool ends_a_character(const char *text, size_t n)
{
    size_t at = 0;
    while (at < n) {
        const size_t len = lvr_utf8_len(text + at, n - at);
        if (len == 0)
            return false;
        at += len;
    }
    return true;
}

/* Feeds the text in pieces of 1 to `largest` bytes and compares; UTF-8 texts are handed on in whole
 * characters. */
static void check_text(const char *text, size_t n, const char *const *texts, size_t n_stops, size_t largest,
                       bool utf8, lvr_rng *rng)
{
    struct written w = {.n = 0};
    lvr_buf buf = LVR_BUF_INIT;
    lvr_stop_strings *stops = stops_of(texts, n_stops);
    lvr_text_stream t = {.stops = stops, .write = keep, .user = &w};
    size_t expected;
    const bool ends = end_slowly(text, n, texts, n_stops, &expected);
    lvr_text_stream_begin(&t, &buf);
    bool more = true;
    for (size_t at = 0; at < n && more;) {
        size_t piece = 1 + lvr_rng_below(rng, largest);
        piece = piece < n - at ? piece : n - at;
        const size_t begin = buf.len;
        lvr_buf_append(&buf, text + at, piece);
        more = lvr_text_stream_take(&t, begin);
        at += piece;
        cr_assert_leq(w.n, expected, "nothing behind the end is handed on");
        cr_assert(!utf8 || !more || ends_a_character(w.text, w.n), "whole characters only");
    }
    lvr_text_stream_end(&t);
    cr_assert_eq(buf.len, expected);
    cr_assert_eq(more, !ends);
    cr_assert(w.n == expected && memcmp(w.text, text, expected) == 0);
    lvr_buf_free(&buf);
    lvr_stop_strings_free(stops);
}

Test(stop_strings, as_defined_whatever_the_pieces)
{
    lvr_rng rng;
    lvr_rng_init(&rng, 7, "stop strings");
    for (uint32_t trial = 0; trial < 3000; trial++) {
        char text[64], stops[4][8];
        const char *list[4];
        const size_t n = lvr_rng_below(&rng, sizeof text), n_stops = lvr_rng_below(&rng, 5);
        for (size_t i = 0; i < n; i++)
            text[i] = (char)('a' + lvr_rng_below(&rng, 2));
        for (size_t i = 0; i < n_stops; i++) {
            const size_t len = 1 + lvr_rng_below(&rng, 7);
            for (size_t k = 0; k < len; k++)
                stops[i][k] = (char)('a' + lvr_rng_below(&rng, 2));
            stops[i][len] = '\0';
            list[i] = stops[i];
        }
        check_text(text, n, list, n_stops, 1 + trial % 9, false, &rng);
    }
}

Test(stop_strings, characters_that_span_pieces)
{
    static const char text[] = "na\xc3\xafve \xe2\x80\x9cquoted\xe2\x80\x9d \xe6\x97\xa5\xe6\x9c\xac "
                               "\xf0\x9f\xa6\x8a end";
    static const char *const stops[] = {"\xe2\x80\x9d", "\xe6\x9c\xac", "\xf0\x9f\xa6\x8b", " end", "zz"};
    lvr_rng rng;
    lvr_rng_init(&rng, 7, "characters");
    for (uint32_t trial = 0; trial < 200; trial++) {
        for (size_t i = 0; i < sizeof stops / sizeof stops[0]; i++)
            check_text(text, strlen(text), &stops[i], 1, 1 + trial % 5, true, &rng);
        check_text(text, strlen(text), stops, 5, 1 + trial % 5, true, &rng);
    }
}

/* A byte of a character as a stop string: the character before it is cut, and only whole ones stay. */
Test(stop_strings, a_byte_of_a_character)
{
    static const char *const stop[] = {"\xa9"};
    lvr_rng rng;
    lvr_rng_init(&rng, 7, "bytes");
    for (uint32_t trial = 0; trial < 20; trial++)
        check_text("caf\xc3\xa9 au lait", 13, stop, 1, 1 + trial % 3, false, &rng);
}

Test(stop_strings, a_text_without_any)
{
    lvr_rng rng;
    lvr_rng_init(&rng, 7, "none");
    check_text("any text \xe2\x82\xac", 12, NULL, 0, 2, true, &rng);
    check_text("\xff\xfe broken \xe2", 11, NULL, 0, 2, false, &rng);
    check_text("", 0, NULL, 0, 1, true, &rng);
}

Test(stop_strings, wrong_ones)
{
    lvr_buf items[LVR_MAX_STOP_STRINGS + 1] = {0};
    lvr_stop_strings *s = NULL;
    lvr_error err = LVR_ERROR_INIT;
    cr_expect_eq(lvr_stop_strings_new(items, 1, &s, &err), LVR_ERR_USAGE);
    cr_expect(strstr(err.msg, "empty"), "%s", err.msg);
    for (size_t i = 0; i <= LVR_MAX_STOP_STRINGS; i++)
        lvr_buf_puts(&items[i], "x");
    cr_expect_eq(lvr_stop_strings_new(items, LVR_MAX_STOP_STRINGS + 1, &s, &err), LVR_ERR_USAGE);
    cr_expect(strstr(err.msg, "17") && strstr(err.msg, "16"), "%s", err.msg);
    for (size_t i = 1; i <= LVR_MAX_STOP_STRING_BYTES; i++)
        lvr_buf_puts(&items[0], "x");
    cr_expect_eq(lvr_stop_strings_new(items, 1, &s, &err), LVR_ERR_USAGE);
    cr_expect(strstr(err.msg, "1025") && strstr(err.msg, "1024"), "%s", err.msg);
    cr_expect(s == NULL);
    for (size_t i = 0; i <= LVR_MAX_STOP_STRINGS; i++)
        lvr_buf_free(&items[i]);
}
