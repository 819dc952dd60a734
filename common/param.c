#include "common/param.h"

#include "common/json.h"
#include <ctype.h>
#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Numbers from text ---- */

#define NUMBER_BYTES 128

/* Takes the underscores out of 1_000; they may stand between digits only. */
static bool strip_underscores(const char *text, size_t n, char ret[NUMBER_BYTES])
{
    size_t len = 0;
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '_') {
            if (i == 0 || !isdigit((unsigned char)text[i - 1]) || i + 1 == n ||
                !isdigit((unsigned char)text[i + 1]))
                return false;
            continue;
        }
        if (len + 1 >= NUMBER_BYTES)
            return false;
        ret[len++] = text[i];
    }
    ret[len] = '\0';
    return true;
}

static size_t span_digits(const char *s)
{
    return strspn(s, "0123456789");
}

static bool digits_to_u64(const char *s, uint64_t *ret)
{
    uint64_t value = 0;
    if (!*s || s[span_digits(s)])
        return false;
    for (; *s; s++) {
        const uint64_t digit = (uint64_t)(*s - '0');
        if (value > (UINT64_MAX - digit) / 10)
            return false;
        value = value * 10 + digit;
    }
    *ret = value;
    return true;
}

/* Decimal only: strtod alone would also take hexadecimal, "nan", "infinity" and leading blanks. */
static bool is_decimal(const char *s)
{
    s += *s == '-' || *s == '+';
    const size_t whole = span_digits(s);
    s += whole;
    size_t fraction = 0;
    if (*s == '.') {
        fraction = span_digits(s + 1);
        s += 1 + fraction;
    }
    if (whole + fraction == 0)
        return false;
    if (*s != 'e' && *s != 'E')
        return !*s;
    s++;
    s += *s == '-' || *s == '+';
    const size_t exponent = span_digits(s);
    return exponent > 0 && !s[exponent];
}

lvr_status lvr_parse_u64(const char *text, uint64_t *ret, lvr_error *err)
{
    char digits[NUMBER_BYTES];
    if (strip_underscores(text, strlen(text), digits) && digits_to_u64(digits, ret))
        return LVR_OK;
    return lvr_fail(err, LVR_ERR_CONFIG, "expected a whole number from 0 to %" PRIu64 ", found \"%.64s\"",
                    UINT64_MAX, text);
}

lvr_status lvr_parse_double(const char *text, double *ret, lvr_error *err)
{
    char digits[NUMBER_BYTES];
    if (strip_underscores(text, strlen(text), digits) && is_decimal(digits)) {
        const double value = strtod(digits, NULL);
        if (isfinite(value)) {
            *ret = value;
            return LVR_OK;
        }
    }
    return lvr_fail(err, LVR_ERR_CONFIG, "expected a finite number such as 0.5 or 1e-3, found \"%.64s\"",
                    text);
}

lvr_status lvr_parse_bool(const char *text, bool *ret, lvr_error *err)
{
    const bool yes = strcmp(text, "true") == 0;
    if (!yes && strcmp(text, "false") != 0)
        return lvr_fail(err, LVR_ERR_CONFIG, "expected true or false, found \"%.64s\"", text);
    *ret = yes;
    return LVR_OK;
}

static bool unit_factor(const char *unit, uint64_t *ret)
{
    static const struct {
        const char *name;
        uint64_t factor;
    } units[] = {
        {"", 1},
        {"B", 1},
        {"KiB", UINT64_C(1) << 10},
        {"MiB", UINT64_C(1) << 20},
        {"GiB", UINT64_C(1) << 30},
        {"TiB", UINT64_C(1) << 40},
        {"KB", UINT64_C(1000)},
        {"kB", UINT64_C(1000)},
        {"MB", UINT64_C(1000000)},
        {"GB", UINT64_C(1000000000)},
        {"TB", UINT64_C(1000000000000)},
    };
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (strcmp(unit, units[i].name) == 0) {
            *ret = units[i].factor;
            return true;
        }
    return false;
}

/* `digits` is whole or has a fraction, as in 1.5. */
static bool scale_size(const char *digits, uint64_t factor, uint64_t *ret)
{
    uint64_t whole = 0;
    if (digits_to_u64(digits, &whole))
        return !__builtin_mul_overflow(whole, factor, ret);
    if (!isdigit((unsigned char)*digits) || !is_decimal(digits) || strpbrk(digits, "eE"))
        return false;
    const double bytes = round(strtod(digits, NULL) * (double)factor);
    if (!(bytes < 0x1p64))
        return false;
    *ret = (uint64_t)bytes;
    return true;
}

lvr_status lvr_parse_size(const char *text, uint64_t *ret_bytes, lvr_error *err)
{
    const size_t n = strspn(text, "0123456789_.");
    const char *unit = text + n + (n > 0 && text[n] == ' ' && text[n + 1]);
    char digits[NUMBER_BYTES];
    uint64_t factor = 0, bytes = 0;
    if (strip_underscores(text, n, digits) && unit_factor(unit, &factor) &&
        scale_size(digits, factor, &bytes)) {
        *ret_bytes = bytes;
        return LVR_OK;
    }
    return lvr_fail(
        err, LVR_ERR_CONFIG,
        "expected a size in bytes below 16 EiB, such as 4096, 64KiB, 1.5GiB or 2GB, found \"%.64s\"", text);
}

void lvr_describe_range(char *buf, size_t n, const char *noun, double min, double max)
{
    char lo[32], hi[32];
    lvr_format_double(lo, sizeof lo, min);
    lvr_format_double(hi, sizeof hi, max);
    const bool has_lo = min > -DBL_MAX, has_hi = max < DBL_MAX;
    if (has_lo && has_hi)
        snprintf(buf, n, "%s from %s to %s", noun, lo, hi);
    else if (has_lo)
        snprintf(buf, n, "%s of at least %s", noun, lo);
    else if (has_hi)
        snprintf(buf, n, "%s of at most %s", noun, hi);
    else
        snprintf(buf, n, "%s", noun);
}

/* ---- Closest name ---- */

#define MAX_NAME 48

static char fold(char c)
{
    return c == '_' ? '-' : (char)tolower((unsigned char)c);
}

static size_t min3(size_t a, size_t b, size_t c)
{
    const size_t ab = a < b ? a : b;
    return ab < c ? ab : c;
}

/* Optimal string alignment: insert, delete, replace, or swap neighbours. Three rows of the table are alive.
 */
static size_t edit_distance(const char *a, size_t na, const char *b, size_t nb)
{
    size_t rows[3][MAX_NAME + 1];
    for (size_t j = 0; j <= nb; j++)
        rows[0][j] = j;
    for (size_t i = 1; i <= na; i++) {
        size_t *now = rows[i % 3], *above = rows[(i + 2) % 3], *above2 = rows[(i + 1) % 3];
        now[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            const bool same = fold(a[i - 1]) == fold(b[j - 1]);
            now[j] = min3(above[j] + 1, now[j - 1] + 1, above[j - 1] + !same);
            const bool swapped =
                i > 1 && j > 1 && fold(a[i - 1]) == fold(b[j - 2]) && fold(a[i - 2]) == fold(b[j - 1]);
            if (swapped && above2[j - 2] + 1 < now[j])
                now[j] = above2[j - 2] + 1;
        }
    }
    return rows[na % 3][nb];
}

typedef struct closest {
    const char *name;
    size_t distance;
} closest;

static void consider(closest *best, const char *got, const char *name)
{
    const size_t na = strlen(got), nb = strlen(name);
    if (na == 0 || nb == 0 || na > MAX_NAME || nb > MAX_NAME)
        return;
    const size_t longer = na > nb ? na : nb;
    const size_t allowed = longer < 3 ? longer - 1 : longer < 6 ? 1 : longer / 3;
    const size_t distance = edit_distance(got, na, name, nb);
    if (distance <= allowed && (!best->name || distance < best->distance))
        *best = (closest){.name = name, .distance = distance};
}

const char *lvr_closest_name(const char *got, const char *const *names, size_t n)
{
    closest best = {0};
    for (size_t i = 0; i < n; i++)
        consider(&best, got, names[i]);
    return best.name;
}

static const char *closest_row(const lvr_param *table, size_t n, const char *got)
{
    closest best = {0};
    for (size_t i = 0; i < n; i++)
        consider(&best, got, table[i].name);
    return best.name;
}

/* ---- Fields ---- */

static void store(const lvr_param *p, void *obj, const void *value, size_t n)
{
    memcpy((char *)obj + p->offset, value, n);
}

static void load(const lvr_param *p, const void *obj, void *ret, size_t n)
{
    memcpy(ret, (const char *)obj + p->offset, n);
}

static uint64_t to_u64(double x)
{
    if (!(x > 0))
        return 0;
    return x >= 0x1p64 ? UINT64_MAX : (uint64_t)x;
}

static void store_number(const lvr_param *p, void *obj, double x)
{
    const uint64_t u64 = to_u64(round(x));
    const uint32_t u32 = u64 > UINT32_MAX ? UINT32_MAX : (uint32_t)u64;
    const int index = u32 > INT32_MAX ? INT32_MAX : (int)u32;
    const bool flag = u64 != 0;
    switch (p->type) {
    case LVR_PARAM_U32:
        store(p, obj, &u32, sizeof u32);
        break;
    case LVR_PARAM_U64:
    case LVR_PARAM_SIZE:
        store(p, obj, &u64, sizeof u64);
        break;
    case LVR_PARAM_DOUBLE:
        store(p, obj, &x, sizeof x);
        break;
    case LVR_PARAM_BOOL:
        store(p, obj, &flag, sizeof flag);
        break;
    case LVR_PARAM_ENUM:
        store(p, obj, &index, sizeof index);
        break;
    case LVR_PARAM_STR:
        break;
    }
}

static uint64_t load_u64(const lvr_param *p, const void *obj)
{
    uint64_t u64 = 0;
    uint32_t u32 = 0;
    if (p->type == LVR_PARAM_U32)
        load(p, obj, &u32, sizeof u32);
    else
        load(p, obj, &u64, sizeof u64);
    return p->type == LVR_PARAM_U32 ? u32 : u64;
}

static double load_double(const lvr_param *p, const void *obj)
{
    double x = 0;
    load(p, obj, &x, sizeof x);
    return x;
}

static bool load_bool(const lvr_param *p, const void *obj)
{
    bool b = false;
    load(p, obj, &b, sizeof b);
    return b;
}

static int load_index(const lvr_param *p, const void *obj)
{
    int i = 0;
    load(p, obj, &i, sizeof i);
    return i;
}

static size_t count_choices(const lvr_param *p)
{
    size_t n = 0;
    while (p->choices && p->choices[n])
        n++;
    return n;
}

double lvr_param_get_number(const lvr_param *p, const void *obj)
{
    switch (p->type) {
    case LVR_PARAM_U32:
    case LVR_PARAM_U64:
    case LVR_PARAM_SIZE:
        return (double)load_u64(p, obj);
    case LVR_PARAM_DOUBLE:
        return load_double(p, obj);
    case LVR_PARAM_BOOL:
        return load_bool(p, obj);
    case LVR_PARAM_ENUM:
        return load_index(p, obj);
    case LVR_PARAM_STR:
        break;
    }
    return NAN;
}

void lvr_param_set_number(const lvr_param *p, void *obj, double value)
{
    double max = p->max;
    if (p->type == LVR_PARAM_ENUM)
        max = fmin(max, (double)count_choices(p) - 1);
    if (!(value >= p->min))
        value = p->min;
    if (value > max)
        value = max;
    store_number(p, obj, value);
}

void lvr_params_default(const lvr_param *table, size_t n, void *obj)
{
    for (size_t i = 0; i < n; i++) {
        const lvr_param *p = &table[i];
        const lvr_strlist none = {0};
        if (p->multi)
            store(p, obj, &none, sizeof none);
        else if (p->type == LVR_PARAM_STR)
            store(p, obj, &p->def_str, sizeof p->def_str);
        else
            store_number(p, obj, p->def);
    }
}

void lvr_strlist_free(lvr_strlist *list)
{
    if (!list)
        return;
    free(list->items);
    *list = (lvr_strlist){0};
}

static lvr_status append_string(const lvr_param *p, void *obj, const char *text, lvr_error *err)
{
    lvr_strlist list;
    load(p, obj, &list, sizeof list);
    const char **items = NULL;
    if (list.n < SIZE_MAX / sizeof *items - 1)
        items = realloc(list.items, (list.n + 1) * sizeof *items);
    if (!items)
        return lvr_fail(err, LVR_ERR_NOMEM, "out of memory for %zu values", list.n);
    items[list.n] = text;
    list = (lvr_strlist){.items = items, .n = list.n + 1};
    store(p, obj, &list, sizeof list);
    return LVR_OK;
}

/* ---- Values from text ---- */

#define EXPECTED_BYTES 320

static void describe_choices(const lvr_param *p, char *buf, size_t n)
{
    size_t len = (size_t)snprintf(buf, n, "one of ");
    for (size_t i = 0; i < count_choices(p) && len < n; i++)
        len += (size_t)snprintf(buf + len, n - len, "%s%s", i ? ", " : "", p->choices[i]);
}

static double upper_bound(const lvr_param *p)
{
    if (p->type == LVR_PARAM_U32)
        return fmin(p->max, UINT32_MAX);
    if (p->type != LVR_PARAM_DOUBLE && p->max >= 0x1p64)
        return INFINITY;
    return p->max;
}

static void describe_expected(const lvr_param *p, char *buf, size_t n)
{
    switch (p->type) {
    case LVR_PARAM_U32:
    case LVR_PARAM_U64:
        lvr_describe_range(buf, n, "a whole number", p->min, upper_bound(p));
        break;
    case LVR_PARAM_SIZE:
        lvr_describe_range(buf, n, "a size in bytes (such as 4096, 64KiB or 1.5GiB)", p->min, upper_bound(p));
        break;
    case LVR_PARAM_DOUBLE:
        lvr_describe_range(buf, n, "a finite number", p->min, p->max);
        break;
    case LVR_PARAM_BOOL:
        snprintf(buf, n, "true or false");
        break;
    case LVR_PARAM_ENUM:
        describe_choices(p, buf, n);
        break;
    case LVR_PARAM_STR:
        snprintf(buf, n, "a text");
        break;
    }
    size_t len = strlen(buf);
    if (p->unit && strcmp(p->unit, "1") != 0 && len < n)
        len += (size_t)snprintf(buf + len, n - len, " %s", p->unit);
    if (p->zero_word && len < n)
        snprintf(buf + len, n - len, ", or %s", p->zero_word);
}

static lvr_status fail_value(const lvr_param *p, const char *found, lvr_error *err)
{
    char expected[EXPECTED_BYTES];
    describe_expected(p, expected, sizeof expected);
    const char *near =
        p->type == LVR_PARAM_ENUM ? lvr_closest_name(found, p->choices, count_choices(p)) : NULL;
    if (near)
        return lvr_fail(err, LVR_ERR_CONFIG, "expected %s, found \"%.64s\"; did you mean %s?", expected,
                        found, near);
    return lvr_fail(err, LVR_ERR_CONFIG, "expected %s, found \"%.64s\"", expected, found);
}

static bool set_whole(const lvr_param *p, void *obj, const char *text)
{
    uint64_t u64 = 0;
    const bool word = p->zero_word && strcmp(text, p->zero_word) == 0;
    const lvr_status status = word                        ? LVR_OK
                              : p->type == LVR_PARAM_SIZE ? lvr_parse_size(text, &u64, NULL)
                                                          : lvr_parse_u64(text, &u64, NULL);
    if (status != LVR_OK || (!word && ((double)u64 < p->min || (double)u64 > upper_bound(p))))
        return false;
    const uint32_t u32 = (uint32_t)u64;
    if (p->type == LVR_PARAM_U32)
        store(p, obj, &u32, sizeof u32);
    else
        store(p, obj, &u64, sizeof u64);
    return true;
}

static bool set_double(const lvr_param *p, void *obj, const char *text)
{
    double x = 0;
    if (lvr_parse_double(text, &x, NULL) != LVR_OK || x < p->min || x > p->max)
        return false;
    store(p, obj, &x, sizeof x);
    return true;
}

static bool set_bool(const lvr_param *p, void *obj, const char *text)
{
    bool b = false;
    if (lvr_parse_bool(text, &b, NULL) != LVR_OK)
        return false;
    store(p, obj, &b, sizeof b);
    return true;
}

static bool set_choice(const lvr_param *p, void *obj, const char *text)
{
    const size_t n = count_choices(p);
    for (size_t i = 0; i < n; i++) {
        const int index = (int)i;
        if (strcmp(text, p->choices[i]) != 0)
            continue;
        store(p, obj, &index, sizeof index);
        return true;
    }
    return false;
}

static lvr_status set_value(const lvr_param *p, void *obj, const char *text, lvr_error *err)
{
    bool ok = true;
    switch (p->type) {
    case LVR_PARAM_U32:
    case LVR_PARAM_U64:
    case LVR_PARAM_SIZE:
        ok = set_whole(p, obj, text);
        break;
    case LVR_PARAM_DOUBLE:
        ok = set_double(p, obj, text);
        break;
    case LVR_PARAM_BOOL:
        ok = set_bool(p, obj, text);
        break;
    case LVR_PARAM_ENUM:
        ok = set_choice(p, obj, text);
        break;
    case LVR_PARAM_STR:
        if (p->multi)
            return append_string(p, obj, text, err);
        store(p, obj, &text, sizeof text);
        break;
    }
    return ok ? LVR_OK : fail_value(p, text, err);
}

/* ---- Parameters ---- */

static const lvr_param *find_row(const lvr_param *table, size_t n, const char *name, size_t len)
{
    for (size_t i = 0; i < n; i++)
        if (strlen(table[i].name) == len && memcmp(table[i].name, name, len) == 0)
            return &table[i];
    return NULL;
}

static lvr_status fail_unknown(const lvr_param *table, size_t n, const char *where, const char *key,
                               lvr_error *err)
{
    const char *near = closest_row(table, n, key);
    if (near)
        return lvr_fail(err, LVR_ERR_CONFIG, "%s: unknown parameter `%.64s`; did you mean `%s`?", where, key,
                        near);
    lvr_buf names = LVR_BUF_INIT;
    for (size_t i = 0; i < n; i++)
        lvr_buf_printf(&names, "%s%s", i ? ", " : "", table[i].name);
    lvr_fail(err, LVR_ERR_CONFIG, "%s: unknown parameter `%.64s`; known here: %s", where, key,
             names.data && !names.failed ? names.data : "none");
    lvr_buf_free(&names);
    return LVR_ERR_CONFIG;
}

lvr_status lvr_params_set(const lvr_param *table, size_t n, void *obj, const char *where, const char *key,
                          const char *value, lvr_error *err)
{
    const lvr_param *p = find_row(table, n, key, strlen(key));
    if (!p)
        return fail_unknown(table, n, where, key, err);
    const lvr_status status = set_value(p, obj, value, err);
    if (status != LVR_OK)
        lvr_error_prefix(err, "%s: `%s`", where, key);
    return status;
}

static lvr_status set_from_node(const lvr_param *table, size_t n, void *obj, const char *key,
                                const lvr_yaml_node *node, lvr_error *err)
{
    const char *where = lvr_yaml_where(node);
    const char *text = lvr_yaml_text(node);
    const lvr_param *p = find_row(table, n, key, strlen(key));
    if (!p)
        return fail_unknown(table, n, where, key, err);
    if (!text) {
        fail_value(p, lvr_yaml_node_kind(node) == LVR_YAML_MAP ? "a mapping" : "a sequence", err);
        lvr_error_prefix(err, "%s: `%s`", where, key);
        return LVR_ERR_CONFIG;
    }
    if (p->type == LVR_PARAM_STR && !p->multi && lvr_yaml_is_null(node)) {
        const char *none = NULL;
        store(p, obj, &none, sizeof none);
        return LVR_OK;
    }
    return lvr_params_set(table, n, obj, where, key, text, err);
}

lvr_status lvr_params_from_yaml(const lvr_param *table, size_t n, void *obj, const lvr_yaml_node *map,
                                lvr_error *err)
{
    if (lvr_yaml_node_kind(map) != LVR_YAML_MAP)
        return lvr_fail(err, LVR_ERR_CONFIG, "%s: expected a mapping of parameters, found %s",
                        lvr_yaml_where(map), lvr_yaml_text(map) ? "a single value" : "a sequence");
    for (size_t i = 0; i < lvr_yaml_len(map); i++) {
        const lvr_status status =
            set_from_node(table, n, obj, lvr_yaml_key_at(map, i), lvr_yaml_at(map, i), err);
        if (status != LVR_OK)
            return status;
    }
    return LVR_OK;
}

static const char *choice_name(const lvr_param *p, int index)
{
    return index >= 0 && (size_t)index < count_choices(p) ? p->choices[index] : NULL;
}

void lvr_params_to_yaml(const lvr_param *table, size_t n, const void *obj, lvr_yaml_out *y)
{
    for (size_t i = 0; i < n; i++) {
        const lvr_param *p = &table[i];
        const char *text = NULL;
        switch (p->type) {
        case LVR_PARAM_U32:
        case LVR_PARAM_U64:
        case LVR_PARAM_SIZE:
            lvr_yaml_out_u64(y, p->name, load_u64(p, obj));
            break;
        case LVR_PARAM_DOUBLE:
            lvr_yaml_out_double(y, p->name, load_double(p, obj));
            break;
        case LVR_PARAM_BOOL:
            lvr_yaml_out_bool(y, p->name, load_bool(p, obj));
            break;
        case LVR_PARAM_ENUM:
            lvr_yaml_out_str(y, p->name, choice_name(p, load_index(p, obj)));
            break;
        case LVR_PARAM_STR:
            if (p->multi)
                break;
            load(p, obj, &text, sizeof text);
            lvr_yaml_out_str(y, p->name, text);
            break;
        }
    }
}

/* ---- Command line ---- */

typedef struct command_line {
    const lvr_param *table;
    size_t n;
    void *obj;
    int argc;
    char *const *argv;
    int next;
    size_t n_bare;
    lvr_error *err;
} command_line;

static bool is_option(const char *arg)
{
    return arg[0] == '-' && arg[1] != '\0';
}

static bool names_row(const lvr_param *p, const char *arg)
{
    if (!is_option(arg))
        return false;
    const bool is_long = arg[1] == '-';
    const char *name = arg + 1 + is_long;
    const size_t len = strcspn(name, "=");
    if (is_long)
        return strlen(p->name) == len && memcmp(p->name, name, len) == 0;
    if (len == 1 && p->short_name == name[0])
        return true;
    return p->alias && strlen(p->alias) == len && memcmp(p->alias, name, len) == 0;
}

static const lvr_param *find_option(const command_line *c, const char *arg)
{
    for (size_t i = 0; i < c->n; i++)
        if (names_row(&c->table[i], arg))
            return &c->table[i];
    return NULL;
}

bool lvr_option_given(int argc, char *const *argv, const lvr_param *p)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (names_row(p, argv[i]))
            return true;
    return false;
}

static bool asks_help(const command_line *c, const char *arg)
{
    return (strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0) && !find_option(c, arg);
}

static lvr_status fail_option(const command_line *c, const char *arg)
{
    const char *name = arg + strspn(arg, "-");
    char copy[MAX_NAME + 2];
    snprintf(copy, sizeof copy, "%.*s", (int)strcspn(name, "="), name);
    const char *near = closest_row(c->table, c->n, copy);
    if (near)
        return lvr_fail(c->err, LVR_ERR_USAGE, "unknown option %.64s; did you mean --%s?", arg, near);
    return lvr_fail(c->err, LVR_ERR_USAGE, "unknown option %.64s; --help lists the options", arg);
}

/* A bad value on the command line is a wrong command line. */
static lvr_status set_option(const command_line *c, const lvr_param *p, const char *value)
{
    const lvr_status status = set_value(p, c->obj, value, c->err);
    if (status == LVR_OK)
        return LVR_OK;
    lvr_error_prefix(c->err, p->positional ? "%s" : "--%s", p->name);
    if (status != LVR_ERR_CONFIG)
        return status;
    if (c->err)
        c->err->status = LVR_ERR_USAGE;
    return LVR_ERR_USAGE;
}

/* What looks like an option is not taken for a value: `--out --verbose` forgot the value of --out. */
static bool is_value(const command_line *c, const char *arg)
{
    return strncmp(arg, "--", 2) != 0 && !find_option(c, arg);
}

static lvr_status take_option(command_line *c, const char *arg)
{
    const lvr_param *p = find_option(c, arg);
    if (!p)
        return fail_option(c, arg);
    if (!p->multi && lvr_option_given(c->next - 1, c->argv, p))
        return lvr_fail(c->err, LVR_ERR_USAGE, "--%s is given twice; give it once", p->name);
    const char *equals = strchr(arg, '=');
    if (equals)
        return set_option(c, p, equals + 1);
    if (p->type == LVR_PARAM_BOOL)
        return set_option(c, p, "true");
    if (c->next < c->argc && is_value(c, c->argv[c->next]))
        return set_option(c, p, c->argv[c->next++]);
    char expected[EXPECTED_BYTES];
    describe_expected(p, expected, sizeof expected);
    return lvr_fail(c->err, LVR_ERR_USAGE, "%s needs a value: expected %s, found %s; write --%s=VALUE", arg,
                    expected, c->next < c->argc ? c->argv[c->next] : "nothing", p->name);
}

/* The row for the next bare argument: rows given by name are passed over, a repeating one takes all that is
 * left. */
static const lvr_param *next_positional(const command_line *c)
{
    size_t skip = c->n_bare;
    for (size_t i = 0; i < c->n; i++) {
        const lvr_param *p = &c->table[i];
        if (!p->positional || (!p->multi && lvr_option_given(c->argc, c->argv, p)))
            continue;
        if (skip == 0 || p->multi)
            return p;
        skip--;
    }
    return NULL;
}

static lvr_status take_bare(command_line *c, const char *arg)
{
    const lvr_param *p = next_positional(c);
    if (!p)
        return lvr_fail(c->err, LVR_ERR_USAGE,
                        "unexpected argument \"%.64s\"; options begin with --, and --help lists them", arg);
    c->n_bare++;
    return set_option(c, p, arg);
}

lvr_status lvr_options_parse(const lvr_param *table, size_t n, void *obj, int argc, char *const *argv,
                             bool *ret_help, lvr_error *err)
{
    command_line c = {.table = table, .n = n, .obj = obj, .argc = argc, .argv = argv, .next = 1, .err = err};
    bool options_ended = false, help = false;
    while (c.next < argc && !help) {
        const char *arg = argv[c.next++];
        lvr_status status = LVR_OK;
        if (options_ended || !is_option(arg))
            status = take_bare(&c, arg);
        else if (strcmp(arg, "--") == 0)
            options_ended = true;
        else if (asks_help(&c, arg))
            help = true;
        else
            status = take_option(&c, arg);
        if (status != LVR_OK)
            return status;
    }
    *ret_help = help;
    return LVR_OK;
}

/* ---- Help ---- */

#define HELP_COLUMN 30
#define HELP_WIDTH 100

static const char *value_word(const lvr_param *p)
{
    switch (p->type) {
    case LVR_PARAM_U32:
    case LVR_PARAM_U64:
        return " N";
    case LVR_PARAM_SIZE:
        return " SIZE";
    case LVR_PARAM_DOUBLE:
        return " X";
    case LVR_PARAM_ENUM:
        return " NAME";
    case LVR_PARAM_STR:
        return " TEXT";
    case LVR_PARAM_BOOL:
        break;
    }
    return "";
}

static void put_names(const lvr_param *p, lvr_buf *out)
{
    const char *more = p->multi ? "..." : "";
    if (p->positional) {
        lvr_buf_printf(out, "  %s%s", p->name, more);
        return;
    }
    lvr_buf_puts(out, "  ");
    if (p->short_name)
        lvr_buf_printf(out, "-%c, ", p->short_name);
    if (p->alias)
        lvr_buf_printf(out, "-%s, ", p->alias);
    lvr_buf_printf(out, "--%s%s%s", p->name, value_word(p), more);
}

static void put_default(const lvr_param *p, lvr_buf *out)
{
    char number[32];
    const char *text = p->def_str;
    if (p->type == LVR_PARAM_BOOL)
        text = p->def != 0 ? "true" : NULL;
    else if (p->type == LVR_PARAM_ENUM)
        text = choice_name(p, (int)p->def);
    else if (p->zero_word && p->def == 0)
        text = p->zero_word;
    else if (p->type != LVR_PARAM_STR && !isnan(p->def)) {
        lvr_format_double(number, sizeof number, p->def);
        text = number;
    }
    if (text)
        lvr_buf_printf(out, "; default %s", text);
}

/* The description, the values allowed and the default, as one line still to be wrapped. */
static void put_description(const lvr_param *p, lvr_buf *out)
{
    lvr_buf_puts(out, p->help ? p->help : "");
    if (p->type == LVR_PARAM_STR) {
        if (p->def_str)
            lvr_buf_printf(out, " (default %s)", p->def_str);
        return;
    }
    if (p->type == LVR_PARAM_BOOL && p->def == 0)
        return;
    char expected[EXPECTED_BYTES];
    describe_expected(p, expected, sizeof expected);
    lvr_buf_printf(out, " (%s", expected);
    put_default(p, out);
    lvr_buf_puts(out, ")");
}

static void put_wrapped(const char *text, size_t column, lvr_buf *out)
{
    while (*text) {
        const size_t word = strcspn(text, " ");
        if (column > HELP_COLUMN && column + 1 + word > HELP_WIDTH) {
            lvr_buf_printf(out, "\n%*s", HELP_COLUMN, "");
            column = HELP_COLUMN;
        } else if (column > HELP_COLUMN) {
            lvr_buf_puts(out, " ");
            column++;
        }
        lvr_buf_append(out, text, word);
        column += word;
        text += word;
        text += strspn(text, " ");
    }
    lvr_buf_puts(out, "\n");
}

static void put_help_row(const lvr_param *p, lvr_buf *out)
{
    const size_t start = out->len;
    put_names(p, out);
    const size_t width = out->len - start;
    if (width + 2 > HELP_COLUMN)
        lvr_buf_printf(out, "\n%*s", HELP_COLUMN, "");
    else
        lvr_buf_printf(out, "%*s", (int)(HELP_COLUMN - width), "");
    lvr_buf description = LVR_BUF_INIT;
    put_description(p, &description);
    if (description.failed)
        out->failed = true;
    else
        put_wrapped(description.data, HELP_COLUMN, out);
    lvr_buf_free(&description);
}

void lvr_options_help(const lvr_param *table, size_t n, lvr_buf *out)
{
    for (size_t i = 0; i < n; i++)
        put_help_row(&table[i], out);
    lvr_buf_puts(out, "  -h, --help                  Print this help and exit\n");
}
