#include "common/yaml.h"
#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static lvr_yaml_doc *load_ok(const char *text)
{
    lvr_yaml_doc *doc = NULL;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_yaml_load_mem("t.yaml", text, strlen(text), &doc, &err), LVR_OK, "%s", err.msg);
    return doc;
}

static void load_fails_n(const char *text, size_t n, const char *part)
{
    lvr_yaml_doc *doc = NULL;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_yaml_load_mem("t.yaml", text, n, &doc, &err), LVR_ERR_CONFIG, "%s: %s", text, err.msg);
    cr_assert_null(doc);
    cr_assert(strstr(err.msg, part), "\"%s\" not in: %s", part, err.msg);
    cr_assert_eq(lvr_yaml_load_mem("t.yaml", text, n, &doc, NULL), LVR_ERR_CONFIG);
}

static void load_fails(const char *text, const char *part)
{
    load_fails_n(text, strlen(text), part);
}

Test(yaml, reads_a_tree_with_positions)
{
    lvr_yaml_doc *doc = load_ok("a: 1\nb:\n  - x\n  - y z\nc: {d: \"q\"}\n");
    const lvr_yaml_node *root = lvr_yaml_root(doc);
    cr_assert_eq(lvr_yaml_node_kind(root), LVR_YAML_MAP);
    cr_assert_eq(lvr_yaml_len(root), 3);
    cr_assert_str_eq(lvr_yaml_key_at(root, 1), "b");
    cr_assert_null(lvr_yaml_key_at(root, 3));
    cr_assert_null(lvr_yaml_at(root, 3));
    cr_assert_null(lvr_yaml_text(root));
    const lvr_yaml_node *b = lvr_yaml_find(root, "b");
    cr_assert_str_eq(lvr_yaml_text(lvr_yaml_at(b, 1)), "y z");
    cr_assert_str_eq(lvr_yaml_where(lvr_yaml_at(b, 1)), "t.yaml:4:5");
    cr_assert_str_eq(lvr_yaml_where(lvr_yaml_at(b, 1)), "t.yaml:4:5");
    cr_assert_null(lvr_yaml_find(b, "x"));
    lvr_yaml_free(doc);
}

Test(yaml, reads_json)
{
    lvr_yaml_doc *doc = load_ok("{\n\t\"a\": [1, 2.5e3, true, null],\n\t\"b\":{\"c\":\"x\\u00e9\\/\"}\n}");
    const lvr_yaml_node *b = NULL;
    const char *c = NULL;
    cr_assert_eq(lvr_yaml_get_map(lvr_yaml_root(doc), "b", &b, NULL), LVR_OK);
    cr_assert_eq(lvr_yaml_get_str(b, "c", &c, NULL), LVR_OK);
    cr_assert_str_eq(c, "x\xc3\xa9/");
    lvr_yaml_free(doc);
}

Test(yaml, refuses_what_it_does_not_support)
{
    load_fails("a: 1\na: 2\n", "t.yaml:2:1: the key `a` is already given at line 1");
    load_fails("a: &x 1\n", "anchors");
    load_fails("&x a: 1\n", "anchors");
    load_fails("a: *x\n", "aliases");
    load_fails("*x : 1\n", "aliases");
    load_fails("- &x [1]\n- *x\n", "anchors");
    load_fails("a: !!str 1\n", "tags");
    load_fails("a: !x {}\n", "tags");
    load_fails("a: 1\n---\nb: 2\n", "second document");
    load_fails("[1]: 2\n", "used as a key");
    load_fails("", "empty");
    load_fails("# only a comment\n", "empty");
    load_fails("a: [1, 2\n", "not valid YAML");
    load_fails("a: \"x\n", "not valid YAML");
    load_fails("a: \"\\0\"\n", "NUL");
    load_fails("\"k\\0\": 1\n", "NUL");
    load_fails("a: \x01\n", "not valid YAML");
}

Test(yaml, refuses_hostile_bytes)
{
    load_fails_n("a: 1\nb: \0\n", 10, "t.yaml:2:4: expected text, found a NUL byte");
    load_fails("a: 1\nb: \xff\n", "t.yaml:2:4: expected UTF-8 text, found the byte 0xff");
    load_fails("\xc0\xaf: 1\n", "UTF-8");
    load_fails("a: \xed\xa0\x80\n", "UTF-8");
    load_fails("a: \xf4\x90\x80\x80\n", "UTF-8");
    load_fails("a: \xe2\x82", "UTF-8");
    load_fails_n("\xff\xfe"
                 "a\0",
                 4, "UTF-8");
}

static char *repeat(const char *unit, size_t times, const char *tail)
{
    const size_t n = strlen(unit);
    char *text = malloc(n * times + strlen(tail) + 1);
    cr_assert_not_null(text);
    for (size_t i = 0; i < times; i++)
        memcpy(text + i * n, unit, n);
    strcpy(text + n * times, tail);
    return text;
}

Test(yaml, depth_is_bounded)
{
    char *deep = repeat("[", 64, "");
    char *text = repeat("]", 64, "");
    char whole[256];
    snprintf(whole, sizeof whole, "%s%s", deep, text);
    lvr_yaml_free(load_ok(whole));
    snprintf(whole, sizeof whole, "[%s%s]", deep, text);
    load_fails(whole, "deeper than 64");
    free(deep);
    free(text);
    deep = repeat("[", 100000, "");
    load_fails(deep, "deeper than 64");
    free(deep);
    deep = repeat("{a: ", 100000, "");
    load_fails(deep, "deeper than 64");
    free(deep);
    deep = repeat("- ", 100000, "");
    load_fails(deep, "deeper than 64");
    free(deep);
}

Test(yaml, size_and_count_are_bounded, .timeout = 60)
{
    const size_t n = ((size_t)64 << 20) + 1;
    char *big = calloc(1, n);
    cr_assert_not_null(big);
    load_fails_n(big, n, "at most 64 MiB");
    free(big);
    char *many = repeat("{},", ((size_t)4 << 20) + 8, "");
    many[0] = '[';
    many[1] = ' ';
    many[2] = ' ';
    lvr_yaml_doc *doc = NULL;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_yaml_load_mem("t.yaml", many, strlen(many), &doc, &err), LVR_ERR_CONFIG);
    cr_assert(strstr(err.msg, "too many values"), "%s", err.msg);
    free(many);
}

Test(yaml, many_keys_are_not_quadratic, .timeout = 30)
{
    lvr_buf buf = LVR_BUF_INIT;
    for (int i = 0; i < 200000; i++)
        lvr_buf_printf(&buf, "k%d: 1\n", i);
    lvr_buf_puts(&buf, "k777: 2\n");
    load_fails(buf.data, "the key `k777` is already given at line 778");
    lvr_buf_free(&buf);
}

typedef struct number_case {
    const char *text;
    bool ok;
    double value;
} number_case;

Test(yaml, whole_numbers)
{
    const number_case cases[] = {{"7", true, 7},
                                 {"1_000", true, 1000},
                                 {"18446744073709551615", true, 18446744073709551615.0},
                                 {"18446744073709551616", false, 0},
                                 {"99999999999999999999999999", false, 0},
                                 {"-1", false, 0},
                                 {"+1", false, 0},
                                 {"1.0", false, 0},
                                 {"0x10", false, 0},
                                 {"1__0", false, 0},
                                 {"_1", false, 0},
                                 {"1_", false, 0},
                                 {"", false, 0},
                                 {"[1]", false, 0},
                                 {"1 2", false, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[128];
        snprintf(text, sizeof text, "k: %s\n", cases[i].text);
        lvr_yaml_doc *doc = load_ok(text);
        uint64_t value = 5;
        lvr_error err = LVR_ERROR_INIT;
        const lvr_status status = lvr_yaml_get_u64(lvr_yaml_root(doc), "k", 0, UINT64_MAX, &value, &err);
        cr_assert_eq(status, cases[i].ok ? LVR_OK : LVR_ERR_CONFIG, "%s", text);
        cr_assert_eq((double)value, cases[i].ok ? cases[i].value : 5, "%s", text);
        cr_assert(cases[i].ok || strstr(err.msg, "t.yaml:1:"), "%s", err.msg);
        lvr_yaml_free(doc);
    }
}

Test(yaml, numbers)
{
    const number_case cases[] = {
        {"0.5", true, 0.5},  {"-1e3", true, -1000}, {".5", true, 0.5},      {"1_000.25", true, 1000.25},
        {"1e-400", true, 0}, {"1e400", false, 0},   {"nan", false, 0},      {".nan", false, 0},
        {".inf", false, 0},  {"-inf", false, 0},    {"infinity", false, 0}, {"0x1p3", false, 0},
        {"1e", false, 0},    {".", false, 0},       {"1.2.3", false, 0},    {"\" 1\"", false, 0},
        {"{}", false, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[128];
        snprintf(text, sizeof text, "k: %s\n", cases[i].text);
        lvr_yaml_doc *doc = load_ok(text);
        double value = 5;
        const lvr_status status =
            lvr_yaml_get_double(lvr_yaml_root(doc), "k", -INFINITY, INFINITY, &value, NULL);
        cr_assert_eq(status, cases[i].ok ? LVR_OK : LVR_ERR_CONFIG, "%s", text);
        cr_assert_eq(value, cases[i].ok ? cases[i].value : 5, "%s", text);
        lvr_yaml_free(doc);
    }
}

Test(yaml, sizes)
{
    const number_case cases[] = {
        {"4096", true, 4096},      {"64KiB", true, 65536},      {"1.5 GiB", true, 1610612736},
        {"2GB", true, 2e9},        {"0.1GB", true, 1e8},        {"1_024 B", true, 1024},
        {"16777216TiB", false, 0}, {"99999999.5TiB", false, 0}, {"4G", false, 0},
        {"KiB", false, 0},         {"-1KiB", false, 0},         {"1.2.3KiB", false, 0},
        {".5KiB", false, 0},       {"1KiB x", false, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[128];
        snprintf(text, sizeof text, "k: %s\n", cases[i].text);
        lvr_yaml_doc *doc = load_ok(text);
        uint64_t value = 5;
        const lvr_status status = lvr_yaml_get_size(lvr_yaml_root(doc), "k", 0, UINT64_MAX, &value, NULL);
        cr_assert_eq(status, cases[i].ok ? LVR_OK : LVR_ERR_CONFIG, "%s", text);
        cr_assert_eq((double)value, cases[i].ok ? cases[i].value : 5, "%s", text);
        lvr_yaml_free(doc);
    }
}

Test(yaml, messages_say_where_what_and_range)
{
    lvr_yaml_doc *doc = load_ok("threads: 99\nx: {}\nn: null\nf: maybe\nl: [1, 7]\n");
    const lvr_yaml_node *root = lvr_yaml_root(doc), *node = NULL;
    lvr_error err = LVR_ERROR_INIT;
    uint64_t u = 0;
    double d = 0;
    bool b = false;
    const char *s = NULL;
    cr_assert_eq(lvr_yaml_get_u64(root, "threads", 1, 64, &u, &err), LVR_ERR_CONFIG);
    cr_assert_str_eq(err.msg, "t.yaml:1:10: `threads`: expected a whole number from 1 to 64, found \"99\"");
    cr_assert_eq(lvr_yaml_get_u64(root, "gone", 1, 64, &u, &err), LVR_ERR_CONFIG);
    cr_assert_str_eq(err.msg, "t.yaml:1:1: the key `gone` is missing from this mapping; add it, with a whole "
                              "number from 1 to 64");
    cr_assert_eq(lvr_yaml_get_str(root, "n", &s, &err), LVR_ERR_CONFIG);
    cr_assert_eq(lvr_yaml_get_str(root, "x", &s, &err), LVR_ERR_CONFIG);
    cr_assert_eq(lvr_yaml_get_bool(root, "f", &b, &err), LVR_ERR_CONFIG);
    cr_assert_eq(lvr_yaml_get_double(root, "threads", 0, 1, &d, &err), LVR_ERR_CONFIG);
    cr_assert_eq(lvr_yaml_get_map(root, "threads", &node, &err), LVR_ERR_CONFIG);
    cr_assert_eq(lvr_yaml_get_seq(root, "x", &node, &err), LVR_ERR_CONFIG);
    cr_assert_eq(lvr_yaml_get_seq(root, "l", &node, &err), LVR_OK);
    cr_assert_eq(lvr_yaml_as_u64(lvr_yaml_at(node, 1), 0, 5, &u, &err), LVR_ERR_CONFIG);
    cr_assert_eq(lvr_yaml_as_double(lvr_yaml_at(node, 1), 0, 7, &d, &err), LVR_OK);
    cr_assert_eq(d, 7);
    cr_assert_eq(lvr_yaml_get_u64(node, "k", 0, 5, &u, &err), LVR_ERR_CONFIG);
    cr_assert(strstr(err.msg, "expected a mapping"), "%s", err.msg);
    lvr_yaml_free(doc);
}

Test(yaml, unused_keys_are_reported)
{
    lvr_yaml_doc *doc = load_ok("a: 1\nthraeds: 4\nsub: {x: 1}\n");
    const lvr_yaml_node *root = lvr_yaml_root(doc);
    lvr_error err = LVR_ERROR_INIT;
    lvr_yaml_find(root, "a");
    lvr_yaml_find(root, "threads");
    lvr_yaml_find(root, "threads");
    cr_assert_eq(lvr_yaml_check_used(doc, &err), LVR_ERR_CONFIG);
    cr_assert_str_eq(err.msg, "t.yaml:2:1: unknown key `thraeds`; did you mean `threads`?");
    lvr_yaml_find(root, "thraeds");
    const lvr_yaml_node *sub = lvr_yaml_find(root, "sub");
    cr_assert_eq(lvr_yaml_check_used(doc, &err), LVR_ERR_CONFIG);
    cr_assert_str_eq(err.msg, "t.yaml:3:7: unknown key `x`; no key is expected here, remove it");
    lvr_yaml_find(sub, "bytes");
    cr_assert_eq(lvr_yaml_check_used(doc, &err), LVR_ERR_CONFIG);
    cr_assert_str_eq(err.msg, "t.yaml:3:7: unknown key `x`; keys known here: bytes");
    lvr_yaml_at(sub, 0);
    cr_assert_eq(lvr_yaml_check_used(doc, &err), LVR_OK);
    lvr_yaml_free(doc);
}

Test(yaml, missing_file_is_an_io_error)
{
    lvr_yaml_doc *doc = NULL;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_yaml_load_file("/nonexistent/x.yaml", &doc, &err), LVR_ERR_IO);
    cr_assert_eq(lvr_yaml_load_file("/", &doc, &err), LVR_ERR_IO);
}

Test(yaml, writes_block_style)
{
    lvr_buf buf = LVR_BUF_INIT;
    lvr_yaml_out y;
    lvr_yaml_out_init(&y, &buf);
    lvr_yaml_out_comment(&y, "made by\n\na test:");
    lvr_yaml_out_map(&y, "m");
    lvr_yaml_out_u64(&y, "u", 3);
    lvr_yaml_out_map(&y, "empty");
    lvr_yaml_out_end(&y);
    lvr_yaml_out_bool(&y, "b", false);
    lvr_yaml_out_end(&y);
    lvr_yaml_out_double(&y, "d", 1e20);
    lvr_yaml_out_double(&y, "i", -INFINITY);
    lvr_yaml_out_u64s(&y, "us", (const uint64_t[]){1, 2}, 2);
    lvr_yaml_out_doubles(&y, "ds", (const double[]){0.5}, 1);
    lvr_yaml_out_u64s(&y, "none", NULL, 0);
    lvr_yaml_out_str(&y, "s", NULL);
    cr_assert(!buf.failed);
    cr_assert_str_eq(buf.data, "# made by\n#\n# a test:\nm:\n  u: 3\n  empty: {}\n  b: false\nd: 1.0e+20\n"
                               "i: -.inf\nus: [1, 2]\nds: [0.5]\nnone: []\ns: null\n");
    lvr_yaml_out_end(&y);
    cr_assert(buf.failed);
    lvr_buf_free(&buf);
}

Test(yaml, written_strings_read_back)
{
    const char *const strings[] = {"plain",  "a/b-c_d.e", "",      "null",    "True", "no",
                                   "1.5",    "a: b",      " a",    "#c",      "- x",  "\"q\"",
                                   "a\nb\t", "\x01\x7f",  "'",     "[x]",     "~",    "caf\xc3\xa9",
                                   "a b",    "%x",        "@",     "0x10",    "\\n",  "\xe2\x80\xa8",
                                   "y",      "\xc2\x85",  "*star", "&anchor", "!tag", "\xef\xbb\xbf"};
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++) {
        lvr_buf buf = LVR_BUF_INIT;
        lvr_yaml_out y;
        lvr_yaml_out_init(&y, &buf);
        lvr_yaml_out_str(&y, strings[i], strings[i]);
        lvr_yaml_doc *doc = load_ok(buf.data);
        const char *back = NULL;
        lvr_error err = LVR_ERROR_INIT;
        cr_assert_eq(lvr_yaml_get_str(lvr_yaml_root(doc), strings[i], &back, &err), LVR_OK, "%s", err.msg);
        cr_assert_str_eq(back, strings[i]);
        lvr_yaml_free(doc);
        lvr_buf_free(&buf);
    }
}

Test(yaml, comments_cannot_break_out)
{
    lvr_buf buf = LVR_BUF_INIT;
    lvr_yaml_out y;
    lvr_yaml_out_init(&y, &buf);
    lvr_yaml_out_comment(&y, "a\xe2\x80\xa8x: 1\xc2\x85y: 2\rz: 3\xff\xef\xbb\xbf caf\xc3\xa9");
    cr_assert_str_eq(buf.data, "# a x: 1 y: 2 z: 3   caf\xc3\xa9\n");
    load_fails(buf.data, "empty");
    lvr_buf_free(&buf);
}
