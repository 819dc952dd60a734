/* The metadata: keys with their values, checked, indexed by name and decoded. */
#include "engine/gguf_internal.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MAX_KEY_BYTES 65535u /* the specification's limit */
#define MAX_KEYS 65536u
#define MIN_KEY_ENTRY_BYTES 14u /* length, one character, type, one byte of value */

static const struct {
    const char *name;
    uint32_t bytes; /* 0: variable */
} value_types[GGUF_V_COUNT] = {
    [GGUF_V_U8] = {"u8", 1},     [GGUF_V_I8] = {"i8", 1},     [GGUF_V_U16] = {"u16", 2},
    [GGUF_V_I16] = {"i16", 2},   [GGUF_V_U32] = {"u32", 4},   [GGUF_V_I32] = {"i32", 4},
    [GGUF_V_F32] = {"f32", 4},   [GGUF_V_BOOL] = {"bool", 1}, [GGUF_V_STR] = {"string", 0},
    [GGUF_V_ARR] = {"array", 0}, [GGUF_V_U64] = {"u64", 8},   [GGUF_V_I64] = {"i64", 8},
    [GGUF_V_F64] = {"f64", 8},
};

const char *lvr_gguf_type_name(uint32_t type)
{
    return type < GGUF_V_COUNT ? value_types[type].name : "unknown";
}

uint32_t lvr_gguf_type_bytes(uint32_t type)
{
    return type < GGUF_V_COUNT ? value_types[type].bytes : 0;
}

static lvr_status check_bools(lvr_gguf_parser *p, uint64_t pos, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (p->g->header[pos + i] > 1)
            return lvr_gguf_parse_fail(p, LVR_ERR_FORMAT,
                                       "a boolean is %u (expected 0 or 1): the file is damaged",
                                       p->g->header[pos + i]);
    return LVR_OK;
}

static lvr_status take_str_array(lvr_gguf_parser *p, lvr_gguf_entry *e)
{
    lvr_status status = LVR_OK;
    for (uint64_t i = 0; status == LVR_OK && i < e->n; i++) {
        uint64_t pos = 0, n = 0;
        status = lvr_gguf_take_str(p, LVR_GGUF_MAX_STRING_BYTES, &pos, &n);
    }
    return status;
}

static lvr_status take_array(lvr_gguf_parser *p, lvr_gguf_entry *e)
{
    lvr_status status = lvr_gguf_take_u32(p, &e->elem_type);
    if (status == LVR_OK)
        status = lvr_gguf_take_u64(p, &e->n);
    if (status != LVR_OK)
        return status;
    if (e->elem_type == GGUF_V_ARR)
        return lvr_gguf_parse_fail(p, LVR_ERR_UNSUPPORTED,
                                   "an array of arrays, which this version does not read");
    if (e->elem_type >= GGUF_V_COUNT)
        return lvr_gguf_parse_fail(p, LVR_ERR_FORMAT,
                                   "array elements of type %u (GGUF has 0 to %d): the file is damaged",
                                   e->elem_type, GGUF_V_COUNT - 1);
    const uint64_t min_bytes = e->elem_type == GGUF_V_STR ? 8 : lvr_gguf_type_bytes(e->elem_type);
    if (e->n > (p->readable - p->pos) / min_bytes)
        return lvr_gguf_parse_fail(p, LVR_ERR_FORMAT,
                                   "an array of %" PRIu64 " elements, but %" PRIu64
                                   " bytes are left: the file is truncated or damaged",
                                   e->n, p->readable - p->pos);
    e->pos = p->pos;
    if (e->elem_type == GGUF_V_STR)
        return take_str_array(p, e);
    status = lvr_gguf_need(p, e->n * min_bytes);
    if (status != LVR_OK)
        return status;
    p->pos += e->n * min_bytes;
    return e->elem_type == GGUF_V_BOOL ? check_bools(p, e->pos, e->n) : LVR_OK;
}

static lvr_status take_value(lvr_gguf_parser *p, lvr_gguf_entry *e)
{
    if (e->type >= GGUF_V_COUNT)
        return lvr_gguf_parse_fail(p, LVR_ERR_FORMAT,
                                   "value of type %u (GGUF has 0 to %d): the file is damaged", e->type,
                                   GGUF_V_COUNT - 1);
    if (e->type == GGUF_V_ARR)
        return take_array(p, e);
    if (e->type == GGUF_V_STR)
        return lvr_gguf_take_str(p, LVR_GGUF_MAX_STRING_BYTES, &e->pos, &e->n);
    e->pos = p->pos;
    const lvr_status status = lvr_gguf_need(p, lvr_gguf_type_bytes(e->type));
    if (status != LVR_OK)
        return status;
    p->pos += lvr_gguf_type_bytes(e->type);
    return e->type == GGUF_V_BOOL ? check_bools(p, e->pos, 1) : LVR_OK;
}

static lvr_status take_entry(lvr_gguf_parser *p, uint64_t i)
{
    lvr_gguf_entry *e = &p->g->keys[i];
    e->begin = p->pos;
    lvr_gguf_parsing(p, "metadata entry %" PRIu64, i);
    lvr_status status = lvr_gguf_take_name(p, MAX_KEY_BYTES, &e->key);
    if (status != LVR_OK)
        return status;
    p->g->n_keys = i + 1;
    lvr_gguf_parsing(p, "metadata key %.255s", e->key);
    status = lvr_gguf_take_u32(p, &e->type);
    if (status == LVR_OK)
        status = take_value(p, e);
    e->end = p->pos;
    return status;
}

static int compare_named(const void *a, const void *b)
{
    const lvr_gguf_named *x = a, *y = b;
    const int order = strcmp(x->name, y->name);
    return order != 0 ? order : (x->index > y->index) - (x->index < y->index);
}

int lvr_gguf_compare_names(const void *a, const void *b)
{
    const lvr_gguf_named *x = a, *y = b;
    return strcmp(x->name, y->name);
}

lvr_status lvr_gguf_sort_names(lvr_gguf_parser *p, lvr_gguf_named *names, uint64_t n, const char *what)
{
    if (n > 0)
        qsort(names, n, sizeof(*names), compare_named);
    for (uint64_t i = 1; i < n; i++)
        if (strcmp(names[i - 1].name, names[i].name) == 0)
            return lvr_gguf_parse_fail(p, LVR_ERR_FORMAT,
                                       "%s %.255s occurs twice (entries %" PRIu64 " and %" PRIu64 ")", what,
                                       names[i].name, names[i - 1].index, names[i].index);
    return LVR_OK;
}

static lvr_status index_keys(lvr_gguf_parser *p)
{
    lvr_gguf *g = p->g;
    lvr_gguf_parsing(p, "metadata");
    g->keys_sorted = calloc(g->n_keys + 1, sizeof(*g->keys_sorted));
    if (g->keys_sorted == NULL)
        return lvr_gguf_no_memory(p);
    for (uint64_t i = 0; i < g->n_keys; i++)
        g->keys_sorted[i] = (lvr_gguf_named){.name = g->keys[i].key, .index = i};
    return lvr_gguf_sort_names(p, g->keys_sorted, g->n_keys, "key");
}

lvr_status lvr_gguf_take_metadata(lvr_gguf_parser *p, uint64_t n_keys)
{
    lvr_gguf *g = p->g;
    if (n_keys > MAX_KEYS || n_keys > (p->readable - p->pos) / MIN_KEY_ENTRY_BYTES)
        return lvr_gguf_parse_fail(p, LVR_ERR_FORMAT,
                                   "%" PRIu64 " metadata keys in %" PRIu64
                                   " bytes (at most %u allowed): the file is truncated or damaged",
                                   n_keys, p->readable - p->pos, MAX_KEYS);
    g->keys = calloc(n_keys + 1, sizeof(*g->keys));
    if (g->keys == NULL)
        return lvr_gguf_no_memory(p);
    for (uint64_t i = 0; i < n_keys; i++) {
        const lvr_status status = take_entry(p, i);
        if (status != LVR_OK)
            return status;
    }
    return index_keys(p);
}

static void *decode_strings(const lvr_gguf *g, const lvr_gguf_entry *e)
{
    lvr_gguf_str *strings = calloc(e->n + 1, sizeof(*strings));
    uint64_t pos = e->pos;
    for (uint64_t i = 0; strings != NULL && i < e->n; i++) {
        memcpy(&strings[i].n, g->header + pos, sizeof(uint64_t));
        strings[i].s = (const char *)g->header + pos + 8;
        pos += 8 + strings[i].n;
    }
    return strings;
}

/* Arrays of four-byte elements are copied because in the file they are not aligned. */
static void *decode_words(const lvr_gguf *g, const lvr_gguf_entry *e)
{
    uint32_t *words = calloc(e->n + 1, sizeof(*words));
    if (words != NULL)
        memcpy(words, g->header + e->pos, e->n * sizeof(*words));
    return words;
}

static void *decode_string(const lvr_gguf *g, const lvr_gguf_entry *e)
{
    char *copy = calloc(e->n + 1, 1);
    if (copy != NULL)
        memcpy(copy, g->header + e->pos, e->n);
    return copy;
}

static bool wants_decoding(const lvr_gguf_entry *e)
{
    if (e->type != GGUF_V_ARR)
        return e->type == GGUF_V_STR;
    return e->elem_type == GGUF_V_STR || e->elem_type == GGUF_V_F32 || e->elem_type == GGUF_V_I32 ||
           e->elem_type == GGUF_V_U32;
}

lvr_status lvr_gguf_decode_values(lvr_gguf_parser *p)
{
    const lvr_gguf *g = p->g;
    lvr_gguf_parsing(p, "metadata");
    for (uint64_t i = 0; i < g->n_keys; i++) {
        lvr_gguf_entry *e = &g->keys[i];
        if (!wants_decoding(e))
            continue;
        if (e->type == GGUF_V_STR)
            e->decoded = decode_string(g, e);
        else
            e->decoded = e->elem_type == GGUF_V_STR ? decode_strings(g, e) : decode_words(g, e);
        if (e->decoded == NULL)
            return lvr_gguf_no_memory(p);
    }
    return LVR_OK;
}
