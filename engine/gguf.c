/*
 * The parser reads the header front to back through `need`, which checks a length against the bytes left in
 * the file before anything is allocated or read for it: a count or a length in the file can cost at most a
 * small multiple of the file's own size. Values are decoded once, at open, so that everything after is
 * read-only.
 */
#include "engine/gguf.h"
#include "common/fs.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define GGUF_VERSION 3u
#define MAX_HEADER_BYTES (256ull << 20)
#define MAX_STRING_BYTES (16ull << 20)
#define MAX_KEY_BYTES 65535u /* the specification's limit */
#define MAX_NAME_BYTES 255u
#define MAX_KEYS 65536u
#define MAX_TENSORS 131072u
#define MAX_DIM 0x7fffffffull
#define DEFAULT_ALIGNMENT 32u
#define MIN_ALIGNMENT 8u
#define MAX_ALIGNMENT (1u << 20)
#define FIRST_READ_BYTES (64ull << 10)
#define MIN_KEY_ENTRY_BYTES 14u    /* length, one character, type, one byte of value */
#define MIN_TENSOR_ENTRY_BYTES 33u /* length, one character, n_dims, one dimension, type, offset */

enum value_type {
    V_U8,
    V_I8,
    V_U16,
    V_I16,
    V_U32,
    V_I32,
    V_F32,
    V_BOOL,
    V_STR,
    V_ARR,
    V_U64,
    V_I64,
    V_F64,
    V_COUNT
};

static const struct {
    const char *name;
    uint32_t bytes; /* 0: variable */
} value_types[V_COUNT] = {
    [V_U8] = {"u8", 1},      [V_I8] = {"i8", 1},     [V_U16] = {"u16", 2}, [V_I16] = {"i16", 2},
    [V_U32] = {"u32", 4},    [V_I32] = {"i32", 4},   [V_F32] = {"f32", 4}, [V_BOOL] = {"bool", 1},
    [V_STR] = {"string", 0}, [V_ARR] = {"array", 0}, [V_U64] = {"u64", 8}, [V_I64] = {"i64", 8},
    [V_F64] = {"f64", 8},
};

/* ggml's type numbers, only to name what cannot be read. */
static const char *const ggml_type_names[] = {
    "F32",      "F16",      "Q4_0",    "Q4_1",  "Q4_2",       "Q4_3",       "Q5_0",       "Q5_1",
    "Q8_0",     "Q8_1",     "Q2_K",    "Q3_K",  "Q4_K",       "Q5_K",       "Q6_K",       "Q8_K",
    "IQ2_XXS",  "IQ2_XS",   "IQ3_XXS", "IQ1_S", "IQ4_NL",     "IQ3_S",      "IQ2_S",      "IQ4_XS",
    "I8",       "I16",      "I32",     "I64",   "F64",        "IQ1_M",      "BF16",       "Q4_0_4_4",
    "Q4_0_4_8", "Q4_0_8_8", "TQ1_0",   "TQ2_0", "IQ4_NL_4_4", "IQ4_NL_4_8", "IQ4_NL_8_8", "MXFP4",
};

struct entry {
    char *key;
    uint32_t type, elem_type;
    uint64_t pos; /* of the payload in the header */
    uint64_t n;   /* string length or array count */
    void
        *decoded; /* string: NUL-terminated copy; array: lvr_gguf_str, float or int32_t elements; else NULL */
};

struct named {
    const char *name;
    uint64_t index;
};

struct lvr_gguf {
    char *path;
    int fd; /* -1: opened from memory */
    uint8_t *header;
    uint64_t header_n, file_bytes;
    uint32_t alignment;
    struct entry *keys;
    uint64_t n_keys;
    struct named *keys_sorted;
    lvr_gguf_tensor *tensors;
    uint64_t n_tensors;
    struct named *tensors_sorted;
};

struct parser {
    lvr_gguf *g;
    const uint8_t *mem; /* NULL: read from g->fd */
    uint64_t readable;  /* bytes of header source: file size, or n of open_mem */
    uint64_t pos, have, cap;
    char context[320]; /* what is being read, for messages */
    lvr_error *err;
};

static void parsing(struct parser *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void parsing(struct parser *p, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(p->context, sizeof(p->context), fmt, args);
    va_end(args);
}

static lvr_status parse_fail(struct parser *p, lvr_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static lvr_status parse_fail(struct parser *p, lvr_status status, const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    return lvr_fail(p->err, status, "%s: %s: %s", p->g->path, p->context, text);
}

static lvr_status no_memory(struct parser *p)
{
    return parse_fail(p, LVR_ERR_NOMEM, "out of memory");
}

static const char *value_type_name(uint32_t type)
{
    return type < V_COUNT ? value_types[type].name : "unknown";
}

static lvr_status fill(struct parser *p, uint64_t upto)
{
    lvr_gguf *g = p->g;
    if (upto > p->cap) {
        uint8_t *grown = realloc(g->header, upto);
        if (grown == NULL)
            return no_memory(p);
        g->header = grown;
        p->cap = upto;
    }
    if (p->mem != NULL) {
        memcpy(g->header + p->have, p->mem + p->have, upto - p->have);
    } else {
        const lvr_status status =
            lvr_pread_all(g->fd, g->header + p->have, upto - p->have, p->have, g->path, p->err);
        if (status != LVR_OK)
            return status;
    }
    p->have = upto;
    return LVR_OK;
}

/* Makes [pos, pos + n) available in the header buffer. */
static lvr_status need(struct parser *p, uint64_t n)
{
    if (n > p->readable - p->pos)
        return parse_fail(p, LVR_ERR_FORMAT,
                          "the file ends at byte %" PRIu64 ", but %" PRIu64
                          " bytes are needed at byte %" PRIu64
                          ": it is truncated or damaged; copy or download it again",
                          p->readable, n, p->pos);
    const uint64_t end = p->pos + n;
    if (end <= p->have)
        return LVR_OK;
    if (end > MAX_HEADER_BYTES)
        return parse_fail(p, LVR_ERR_FORMAT, "the header is larger than %llu MiB: the file is damaged",
                          MAX_HEADER_BYTES >> 20);
    uint64_t upto = p->have * 2 > FIRST_READ_BYTES ? p->have * 2 : FIRST_READ_BYTES;
    upto = upto < MAX_HEADER_BYTES ? upto : MAX_HEADER_BYTES;
    upto = upto > end ? upto : end;
    return fill(p, upto < p->readable ? upto : p->readable);
}

static lvr_status take(struct parser *p, void *ret, uint64_t n)
{
    const lvr_status status = need(p, n);
    if (status != LVR_OK)
        return status;
    memcpy(ret, p->g->header + p->pos, n);
    p->pos += n;
    return LVR_OK;
}

static lvr_status take_u32(struct parser *p, uint32_t *ret)
{
    return take(p, ret, sizeof(*ret));
}

static lvr_status take_u64(struct parser *p, uint64_t *ret)
{
    return take(p, ret, sizeof(*ret));
}

/* Skips a string; *ret_pos is where its bytes are. */
static lvr_status take_str(struct parser *p, uint64_t max, uint64_t *ret_pos, uint64_t *ret_n)
{
    uint64_t n = 0;
    lvr_status status = take_u64(p, &n);
    if (status != LVR_OK)
        return status;
    if (n > max)
        return parse_fail(p, LVR_ERR_FORMAT,
                          "a string of %" PRIu64 " bytes at byte %" PRIu64 " (at most %" PRIu64
                          " allowed): the file is damaged",
                          n, p->pos - 8, max);
    status = need(p, n);
    if (status != LVR_OK)
        return status;
    *ret_pos = p->pos;
    *ret_n = n;
    p->pos += n;
    return LVR_OK;
}

/* A key or tensor name: printable ASCII, so that messages and listings cannot be made to lie. */
static lvr_status take_name(struct parser *p, uint64_t max, char **ret)
{
    uint64_t pos = 0, n = 0;
    const lvr_status status = take_str(p, max, &pos, &n);
    if (status != LVR_OK)
        return status;
    if (n == 0)
        return parse_fail(p, LVR_ERR_FORMAT, "an empty name at byte %" PRIu64, pos);
    const uint8_t *bytes = p->g->header + pos;
    for (uint64_t i = 0; i < n; i++)
        if (bytes[i] < 0x21 || bytes[i] > 0x7e)
            return parse_fail(p, LVR_ERR_FORMAT,
                              "byte %" PRIu64
                              " of the name is 0x%02x (expected printable ASCII): the file is damaged",
                              i, bytes[i]);
    char *name = malloc(n + 1);
    if (name == NULL)
        return no_memory(p);
    memcpy(name, bytes, n);
    name[n] = '\0';
    *ret = name;
    return LVR_OK;
}

static lvr_status check_bools(struct parser *p, uint64_t pos, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (p->g->header[pos + i] > 1)
            return parse_fail(p, LVR_ERR_FORMAT, "a boolean is %u (expected 0 or 1): the file is damaged",
                              p->g->header[pos + i]);
    return LVR_OK;
}

static lvr_status take_str_array(struct parser *p, struct entry *e)
{
    lvr_status status = LVR_OK;
    for (uint64_t i = 0; status == LVR_OK && i < e->n; i++) {
        uint64_t pos = 0, n = 0;
        status = take_str(p, MAX_STRING_BYTES, &pos, &n);
    }
    return status;
}

static lvr_status take_array(struct parser *p, struct entry *e)
{
    lvr_status status = take_u32(p, &e->elem_type);
    if (status == LVR_OK)
        status = take_u64(p, &e->n);
    if (status != LVR_OK)
        return status;
    if (e->elem_type == V_ARR)
        return parse_fail(p, LVR_ERR_UNSUPPORTED, "an array of arrays, which this version does not read");
    if (e->elem_type >= V_COUNT)
        return parse_fail(p, LVR_ERR_FORMAT,
                          "array elements of type %u (GGUF has 0 to %d): the file is damaged", e->elem_type,
                          V_COUNT - 1);
    const uint64_t min_bytes = e->elem_type == V_STR ? 8 : value_types[e->elem_type].bytes;
    if (e->n > (p->readable - p->pos) / min_bytes)
        return parse_fail(p, LVR_ERR_FORMAT,
                          "an array of %" PRIu64 " elements, but %" PRIu64
                          " bytes are left: the file is truncated or damaged",
                          e->n, p->readable - p->pos);
    e->pos = p->pos;
    if (e->elem_type == V_STR)
        return take_str_array(p, e);
    status = need(p, e->n * min_bytes);
    if (status != LVR_OK)
        return status;
    p->pos += e->n * min_bytes;
    return e->elem_type == V_BOOL ? check_bools(p, e->pos, e->n) : LVR_OK;
}

static lvr_status take_value(struct parser *p, struct entry *e)
{
    if (e->type >= V_COUNT)
        return parse_fail(p, LVR_ERR_FORMAT, "value of type %u (GGUF has 0 to %d): the file is damaged",
                          e->type, V_COUNT - 1);
    if (e->type == V_ARR)
        return take_array(p, e);
    if (e->type == V_STR)
        return take_str(p, MAX_STRING_BYTES, &e->pos, &e->n);
    e->pos = p->pos;
    const lvr_status status = need(p, value_types[e->type].bytes);
    if (status != LVR_OK)
        return status;
    p->pos += value_types[e->type].bytes;
    return e->type == V_BOOL ? check_bools(p, e->pos, 1) : LVR_OK;
}

static lvr_status take_entry(struct parser *p, uint64_t i)
{
    struct entry *e = &p->g->keys[i];
    parsing(p, "metadata entry %" PRIu64, i);
    lvr_status status = take_name(p, MAX_KEY_BYTES, &e->key);
    if (status != LVR_OK)
        return status;
    p->g->n_keys = i + 1;
    parsing(p, "metadata key %.255s", e->key);
    status = take_u32(p, &e->type);
    return status == LVR_OK ? take_value(p, e) : status;
}

static int compare_named(const void *a, const void *b)
{
    const struct named *x = a, *y = b;
    const int order = strcmp(x->name, y->name);
    return order != 0 ? order : (x->index > y->index) - (x->index < y->index);
}

static int compare_name_only(const void *a, const void *b)
{
    const struct named *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* Sorts the names for look-up and refuses a name that occurs twice. */
static lvr_status sort_names(struct parser *p, struct named *names, uint64_t n, const char *what)
{
    if (n > 0)
        qsort(names, n, sizeof(*names), compare_named);
    for (uint64_t i = 1; i < n; i++)
        if (strcmp(names[i - 1].name, names[i].name) == 0)
            return parse_fail(p, LVR_ERR_FORMAT,
                              "%s %.255s occurs twice (entries %" PRIu64 " and %" PRIu64 ")", what,
                              names[i].name, names[i - 1].index, names[i].index);
    return LVR_OK;
}

static lvr_status index_keys(struct parser *p)
{
    lvr_gguf *g = p->g;
    parsing(p, "metadata");
    g->keys_sorted = calloc(g->n_keys + 1, sizeof(*g->keys_sorted));
    if (g->keys_sorted == NULL)
        return no_memory(p);
    for (uint64_t i = 0; i < g->n_keys; i++)
        g->keys_sorted[i] = (struct named){.name = g->keys[i].key, .index = i};
    return sort_names(p, g->keys_sorted, g->n_keys, "key");
}

static lvr_status take_metadata(struct parser *p, uint64_t n_keys)
{
    lvr_gguf *g = p->g;
    if (n_keys > MAX_KEYS || n_keys > (p->readable - p->pos) / MIN_KEY_ENTRY_BYTES)
        return parse_fail(p, LVR_ERR_FORMAT,
                          "%" PRIu64 " metadata keys in %" PRIu64
                          " bytes (at most %u allowed): the file is truncated or damaged",
                          n_keys, p->readable - p->pos, MAX_KEYS);
    g->keys = calloc(n_keys + 1, sizeof(*g->keys));
    if (g->keys == NULL)
        return no_memory(p);
    for (uint64_t i = 0; i < n_keys; i++) {
        const lvr_status status = take_entry(p, i);
        if (status != LVR_OK)
            return status;
    }
    return index_keys(p);
}

static void *decode_strings(const lvr_gguf *g, const struct entry *e)
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
static void *decode_words(const lvr_gguf *g, const struct entry *e)
{
    uint32_t *words = calloc(e->n + 1, sizeof(*words));
    if (words != NULL)
        memcpy(words, g->header + e->pos, e->n * sizeof(*words));
    return words;
}

static void *decode_string(const lvr_gguf *g, const struct entry *e)
{
    char *copy = calloc(e->n + 1, 1);
    if (copy != NULL)
        memcpy(copy, g->header + e->pos, e->n);
    return copy;
}

static bool wants_decoding(const struct entry *e)
{
    if (e->type != V_ARR)
        return e->type == V_STR;
    return e->elem_type == V_STR || e->elem_type == V_F32 || e->elem_type == V_I32 || e->elem_type == V_U32;
}

/* Only once the header buffer has stopped moving: string arrays point into it. */
static lvr_status decode_values(struct parser *p)
{
    const lvr_gguf *g = p->g;
    parsing(p, "metadata");
    for (uint64_t i = 0; i < g->n_keys; i++) {
        struct entry *e = &g->keys[i];
        if (!wants_decoding(e))
            continue;
        if (e->type == V_STR)
            e->decoded = decode_string(g, e);
        else
            e->decoded = e->elem_type == V_STR ? decode_strings(g, e) : decode_words(g, e);
        if (e->decoded == NULL)
            return no_memory(p);
    }
    return LVR_OK;
}

static lvr_status check_type(struct parser *p, uint32_t type)
{
    if (lvr_wtype_name((lvr_wtype)type) != NULL)
        return LVR_OK;
    const char *hint = "this version reads F32, F16, Q8_0 and Q4_0; convert the model with llama-quantize";
    if (type < sizeof(ggml_type_names) / sizeof(ggml_type_names[0]))
        return parse_fail(p, LVR_ERR_UNSUPPORTED, "type %s (number %u) is not supported: %s",
                          ggml_type_names[type], type, hint);
    return parse_fail(p, LVR_ERR_UNSUPPORTED, "type number %u is not known: %s", type, hint);
}

static lvr_status check_dims(struct parser *p, lvr_gguf_tensor *t)
{
    uint64_t rows = 1;
    for (uint32_t i = 0; i < t->n_dims; i++) {
        if (t->dims[i] == 0 || t->dims[i] > MAX_DIM)
            return parse_fail(p, LVR_ERR_FORMAT,
                              "dimension %u is %" PRIu64 " (expected 1 to %llu): the file is damaged", i,
                              t->dims[i], MAX_DIM);
        if (i > 0 && __builtin_mul_overflow(rows, t->dims[i], &rows))
            return parse_fail(p, LVR_ERR_FORMAT,
                              "the product of its dimensions overflows: the file is damaged");
    }
    const uint64_t row = lvr_wtype_row_bytes(t->type, t->dims[0]);
    if (row == 0)
        return parse_fail(p, LVR_ERR_FORMAT, "rows of %" PRIu64 " values do not fill whole blocks of %s",
                          t->dims[0], lvr_wtype_name(t->type));
    if (__builtin_mul_overflow(row, rows, &t->bytes) || t->bytes > INT64_MAX)
        return parse_fail(p, LVR_ERR_FORMAT, "its size overflows: the file is damaged");
    return LVR_OK;
}

static lvr_status take_tensor(struct parser *p, uint64_t i)
{
    lvr_gguf_tensor *t = &p->g->tensors[i];
    char *name = NULL;
    uint32_t type = 0;
    parsing(p, "tensor table entry %" PRIu64, i);
    lvr_status status = take_name(p, MAX_NAME_BYTES, &name);
    if (status != LVR_OK)
        return status;
    t->name = name;
    p->g->n_tensors = i + 1;
    parsing(p, "tensor %s", t->name);
    status = take_u32(p, &t->n_dims);
    if (status != LVR_OK)
        return status;
    if (t->n_dims == 0 || t->n_dims > 4)
        return parse_fail(p, LVR_ERR_FORMAT, "%u dimensions (expected 1 to 4): the file is damaged",
                          t->n_dims);
    for (uint32_t d = 0; d < 4; d++)
        t->dims[d] = 1;
    for (uint32_t d = 0; status == LVR_OK && d < t->n_dims; d++)
        status = take_u64(p, &t->dims[d]);
    if (status == LVR_OK)
        status = take_u32(p, &type);
    if (status == LVR_OK)
        status = take_u64(p, &t->offset);
    if (status == LVR_OK)
        status = check_type(p, type);
    if (status != LVR_OK)
        return status;
    t->type = (lvr_wtype)type;
    return check_dims(p, t);
}

static lvr_status take_tensors(struct parser *p, uint64_t n)
{
    lvr_gguf *g = p->g;
    parsing(p, "tensor table");
    if (n > MAX_TENSORS || n > (p->readable - p->pos) / MIN_TENSOR_ENTRY_BYTES)
        return parse_fail(p, LVR_ERR_FORMAT,
                          "%" PRIu64 " tensors in %" PRIu64
                          " bytes (at most %u allowed): the file is truncated or damaged",
                          n, p->readable - p->pos, MAX_TENSORS);
    g->tensors = calloc(n + 1, sizeof(*g->tensors));
    g->tensors_sorted = calloc(n + 1, sizeof(*g->tensors_sorted));
    if (g->tensors == NULL || g->tensors_sorted == NULL)
        return no_memory(p);
    for (uint64_t i = 0; i < n; i++) {
        const lvr_status status = take_tensor(p, i);
        if (status != LVR_OK)
            return status;
        g->tensors_sorted[i] = (struct named){.name = g->tensors[i].name, .index = i};
    }
    parsing(p, "tensor table");
    return sort_names(p, g->tensors_sorted, n, "tensor");
}

static lvr_status find_alignment(struct parser *p)
{
    lvr_gguf *g = p->g;
    const struct named wanted = {.name = "general.alignment"};
    const struct named *found =
        bsearch(&wanted, g->keys_sorted, g->n_keys, sizeof(wanted), compare_name_only);
    g->alignment = DEFAULT_ALIGNMENT;
    if (found == NULL)
        return LVR_OK;
    const struct entry *e = &g->keys[found->index];
    parsing(p, "metadata key general.alignment");
    if (e->type != V_U32)
        return parse_fail(p, LVR_ERR_FORMAT, "expected a value of type u32, found %s",
                          value_type_name(e->type));
    uint32_t a = 0;
    memcpy(&a, g->header + e->pos, sizeof(a));
    if (a < MIN_ALIGNMENT || a > MAX_ALIGNMENT || (a & (a - 1)) != 0)
        return parse_fail(p, LVR_ERR_FORMAT, "%u (expected a power of two from %u to %u)", a, MIN_ALIGNMENT,
                          MAX_ALIGNMENT);
    g->alignment = a;
    return LVR_OK;
}

/* Turns relative offsets into file offsets. */
static lvr_status place_tensor(struct parser *p, lvr_gguf_tensor *t, uint64_t data_begin, bool skip_bounds)
{
    const lvr_gguf *g = p->g;
    parsing(p, "tensor %s", t->name);
    if (t->offset % g->alignment != 0)
        return parse_fail(p, LVR_ERR_FORMAT, "its offset %" PRIu64 " is not a multiple of the alignment %u",
                          t->offset, g->alignment);
    uint64_t end = 0;
    if (__builtin_add_overflow(t->offset, data_begin, &t->offset) ||
        __builtin_add_overflow(t->offset, t->bytes, &end) || end > INT64_MAX)
        return parse_fail(p, LVR_ERR_FORMAT, "its offset overflows: the file is damaged");
    if (!skip_bounds && end > g->file_bytes)
        return parse_fail(p, LVR_ERR_FORMAT,
                          "its data ends at byte %" PRIu64 ", but the file has %" PRIu64
                          " bytes: it is truncated (an incomplete download?); copy or download it again",
                          end, g->file_bytes);
    return LVR_OK;
}

struct extent {
    uint64_t begin, end, index;
};

static int compare_extents(const void *a, const void *b)
{
    const struct extent *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

static lvr_status check_overlap(struct parser *p)
{
    const lvr_gguf *g = p->g;
    struct extent *x = calloc(g->n_tensors + 1, sizeof(*x));
    if (x == NULL)
        return no_memory(p);
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        const lvr_gguf_tensor *t = &g->tensors[i];
        x[i] = (struct extent){.begin = t->offset, .end = t->offset + t->bytes, .index = i};
    }
    if (g->n_tensors > 0)
        qsort(x, g->n_tensors, sizeof(*x), compare_extents);
    lvr_status status = LVR_OK;
    parsing(p, "tensor table");
    for (uint64_t i = 1; status == LVR_OK && i < g->n_tensors; i++)
        if (x[i].begin < x[i - 1].end)
            status = parse_fail(p, LVR_ERR_FORMAT, "tensors %s and %s overlap: the file is damaged",
                                g->tensors[x[i - 1].index].name, g->tensors[x[i].index].name);
    free(x);
    return status;
}

static lvr_status place_tensors(struct parser *p, bool skip_bounds)
{
    const lvr_gguf *g = p->g;
    lvr_status status = find_alignment(p);
    if (status != LVR_OK)
        return status;
    const uint64_t data_begin = (p->pos + g->alignment - 1) / g->alignment * g->alignment;
    for (uint64_t i = 0; status == LVR_OK && i < g->n_tensors; i++)
        status = place_tensor(p, &g->tensors[i], data_begin, skip_bounds);
    return status == LVR_OK ? check_overlap(p) : status;
}

static lvr_status check_magic(struct parser *p)
{
    uint8_t m[4];
    const lvr_status status = take(p, m, sizeof(m));
    if (status != LVR_OK)
        return status;
    if (memcmp(m, "GGUF", 4) == 0)
        return LVR_OK;
    if (memcmp(m, "LVRP", 4) == 0)
        return parse_fail(p, LVR_ERR_FORMAT, "this is a lever pack, where a GGUF file is expected");
    if (memcmp(m, "\0\0\0\0", 4) == 0)
        return parse_fail(
            p, LVR_ERR_FORMAT,
            "the file starts with zero bytes, not \"GGUF\": an incomplete download? Download it again");
    return parse_fail(
        p, LVR_ERR_FORMAT,
        "not a GGUF file: it starts with bytes %02x %02x %02x %02x, expected \"GGUF\" (47 47 55 46)", m[0],
        m[1], m[2], m[3]);
}

static lvr_status check_version(struct parser *p)
{
    uint32_t version = 0;
    const lvr_status status = take_u32(p, &version);
    if (status != LVR_OK || version == GGUF_VERSION)
        return status;
    if (version == 0)
        return parse_fail(p, LVR_ERR_FORMAT, "GGUF version 0 does not exist: the file is damaged");
    if ((version & 0xffff) == 0)
        return parse_fail(
            p, LVR_ERR_UNSUPPORTED,
            "a big-endian GGUF (version field 0x%08x): only little-endian files are read; convert it "
            "with gguf-py's gguf_convert_endian",
            version);
    if (version < GGUF_VERSION)
        return parse_fail(p, LVR_ERR_UNSUPPORTED,
                          "GGUF version %u is outdated: version %u is read; convert the model again", version,
                          GGUF_VERSION);
    return parse_fail(p, LVR_ERR_UNSUPPORTED, "GGUF version %u is newer than the version read here (%u)",
                      version, GGUF_VERSION);
}

/* Split models say so in every part; the first part alone would otherwise look like a damaged file. */
static lvr_status check_split(struct parser *p)
{
    uint32_t count = 0;
    parsing(p, "metadata key split.count");
    if (!lvr_gguf_has(p->g, "split.count") || lvr_gguf_u32(p->g, "split.count", &count, NULL) != LVR_OK ||
        count <= 1)
        return LVR_OK;
    return parse_fail(p, LVR_ERR_UNSUPPORTED,
                      "this is one of %u parts of a split model; join them with llama-gguf-split --merge",
                      count);
}

static lvr_status parse(struct parser *p, bool skip_bounds)
{
    uint64_t n_tensors = 0, n_keys = 0;
    parsing(p, "header");
    if (p->readable == 0)
        return parse_fail(p, LVR_ERR_FORMAT, "the file is empty");
    lvr_status status = check_magic(p);
    if (status == LVR_OK)
        status = check_version(p);
    if (status == LVR_OK)
        status = take_u64(p, &n_tensors);
    if (status == LVR_OK)
        status = take_u64(p, &n_keys);
    if (status == LVR_OK)
        status = take_metadata(p, n_keys);
    if (status == LVR_OK)
        status = check_split(p);
    if (status == LVR_OK)
        status = take_tensors(p, n_tensors);
    if (status == LVR_OK)
        status = place_tensors(p, skip_bounds);
    if (status != LVR_OK)
        return status;

    p->g->header_n = p->pos;
    uint8_t *fitted = realloc(p->g->header, p->pos); /* what was read ahead is tensor data */
    if (fitted != NULL)
        p->g->header = fitted;
    return decode_values(p);
}

static lvr_status new_gguf(const char *path, lvr_gguf **ret, lvr_error *err)
{
    lvr_gguf *g = calloc(1, sizeof(*g));
    char *copy = strdup(path);
    if (g == NULL || copy == NULL) {
        free(g);
        free(copy);
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory", path);
    }
    g->fd = -1;
    g->path = copy;
    *ret = g;
    return LVR_OK;
}

lvr_status lvr_open_regular(const char *path, const char *what, int *ret_fd, uint64_t *ret_bytes,
                            lvr_error *err)
{
    struct stat st;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return lvr_fail_errno(err, errno, "%s: cannot open", path);
    if (fstat(fd, &st) != 0) {
        const int errnum = errno;
        close(fd);
        return lvr_fail_errno(err, errnum, "%s: cannot stat", path);
    }
    if (!S_ISREG(st.st_mode)) {
        close(fd);
        return lvr_fail(err, LVR_ERR_IO, "%s: %s, where %s is expected", path,
                        S_ISDIR(st.st_mode) ? "a directory" : "not a regular file", what);
    }
    *ret_fd = fd;
    *ret_bytes = (uint64_t)st.st_size;
    return LVR_OK;
}

lvr_status lvr_gguf_open(const char *path, lvr_gguf **ret, lvr_error *err)
{
    lvr_gguf *g = NULL;
    lvr_status status = new_gguf(path, &g, err);
    if (status != LVR_OK)
        return status;
    status = lvr_open_regular(path, "a GGUF file", &g->fd, &g->file_bytes, err);
    if (status != LVR_OK)
        goto out;
    struct parser p = {.g = g, .readable = g->file_bytes, .err = err};
    status = parse(&p, false);
    if (status != LVR_OK)
        goto out;
    *ret = g;
    g = NULL;
out:
    lvr_gguf_free(g);
    return status;
}

lvr_status lvr_gguf_open_mem(const char *name, const void *data, uint64_t n, uint64_t file_bytes,
                             bool skip_tensor_bounds, lvr_gguf **ret, lvr_error *err)
{
    lvr_gguf *g = NULL;
    lvr_status status = new_gguf(name, &g, err);
    if (status != LVR_OK)
        return status;
    g->file_bytes = file_bytes;
    struct parser p = {.g = g, .mem = data, .readable = n, .err = err};
    status = parse(&p, skip_tensor_bounds);
    if (status == LVR_OK) {
        *ret = g;
        return LVR_OK;
    }
    lvr_gguf_free(g);
    return status;
}

void lvr_gguf_free(lvr_gguf *g)
{
    if (g == NULL)
        return;
    if (g->fd >= 0)
        close(g->fd);
    for (uint64_t i = 0; i < g->n_keys; i++) {
        free(g->keys[i].key);
        free(g->keys[i].decoded);
    }
    for (uint64_t i = 0; i < g->n_tensors; i++)
        free((void *)(uintptr_t)g->tensors[i].name); /* const for readers, owned here */
    free(g->keys);
    free(g->keys_sorted);
    free(g->tensors);
    free(g->tensors_sorted);
    free(g->header);
    free(g->path);
    free(g);
}

const char *lvr_gguf_path(const lvr_gguf *g)
{
    return g->path;
}

const void *lvr_gguf_header(const lvr_gguf *g, uint64_t *ret_n)
{
    *ret_n = g->header_n;
    return g->header;
}

uint64_t lvr_gguf_file_bytes(const lvr_gguf *g)
{
    return g->file_bytes;
}

uint32_t lvr_gguf_alignment(const lvr_gguf *g)
{
    return g->alignment;
}

static const struct entry *find_entry(const lvr_gguf *g, const char *key)
{
    const struct named wanted = {.name = key};
    const struct named *found =
        bsearch(&wanted, g->keys_sorted, g->n_keys, sizeof(wanted), compare_name_only);
    return found == NULL ? NULL : &g->keys[found->index];
}

bool lvr_gguf_has(const lvr_gguf *g, const char *key)
{
    return find_entry(g, key) != NULL;
}

static lvr_status absent(const lvr_gguf *g, const char *key, const char *expected, lvr_error *err)
{
    return lvr_fail(err, LVR_ERR_FORMAT, "%s: metadata key %s (%s) is missing", g->path, key, expected);
}

static lvr_status wrong_type(const lvr_gguf *g, const struct entry *e, const char *expected, lvr_error *err)
{
    const bool array = e->type == V_ARR;
    return lvr_fail(err, LVR_ERR_FORMAT, "%s: metadata key %.255s: expected %s, found %s%s", g->path, e->key,
                    expected, array ? "an array of " : "", value_type_name(array ? e->elem_type : e->type));
}

/* The value as a signed and an unsigned integer; false if it is not an integer. */
static bool integer_value(const lvr_gguf *g, uint32_t type, uint64_t pos, int64_t *ret_signed,
                          uint64_t *ret_unsigned)
{
    union {
        uint8_t u8;
        int8_t i8;
        uint16_t u16;
        int16_t i16;
        uint32_t u32;
        int32_t i32;
        uint64_t u64;
        int64_t i64;
    } v;
    memcpy(&v, g->header + pos, value_types[type].bytes);
    *ret_signed = 0;
    *ret_unsigned = 0;
    switch (type) {
    case V_U8:
        *ret_unsigned = v.u8;
        return true;
    case V_I8:
        *ret_signed = v.i8;
        break;
    case V_U16:
        *ret_unsigned = v.u16;
        return true;
    case V_I16:
        *ret_signed = v.i16;
        break;
    case V_U32:
        *ret_unsigned = v.u32;
        return true;
    case V_I32:
        *ret_signed = v.i32;
        break;
    case V_U64:
        *ret_unsigned = v.u64;
        return true;
    case V_I64:
        *ret_signed = v.i64;
        break;
    default:
        return false;
    }
    *ret_unsigned = *ret_signed >= 0 ? (uint64_t)*ret_signed : 0;
    return true;
}

lvr_status lvr_gguf_u32(const lvr_gguf *g, const char *key, uint32_t *ret, lvr_error *err)
{
    const struct entry *e = find_entry(g, key);
    if (e == NULL)
        return absent(g, key, "an integer", err);
    int64_t s = 0;
    uint64_t u = 0;
    if (e->type == V_ARR || e->type == V_STR || !integer_value(g, e->type, e->pos, &s, &u))
        return wrong_type(g, e, "an integer", err);
    if (s < 0)
        return lvr_fail(err, LVR_ERR_FORMAT, "%s: metadata key %s is %" PRId64 " (expected 0 to %u)", g->path,
                        key, s, UINT32_MAX);
    if (u > UINT32_MAX)
        return lvr_fail(err, LVR_ERR_FORMAT, "%s: metadata key %s is %" PRIu64 " (expected 0 to %u)", g->path,
                        key, u, UINT32_MAX);
    *ret = (uint32_t)u;
    return LVR_OK;
}

lvr_status lvr_gguf_f32(const lvr_gguf *g, const char *key, float *ret, lvr_error *err)
{
    const struct entry *e = find_entry(g, key);
    if (e == NULL)
        return absent(g, key, "f32", err);
    if (e->type == V_F32) {
        memcpy(ret, g->header + e->pos, sizeof(*ret));
        return LVR_OK;
    }
    if (e->type != V_F64)
        return wrong_type(g, e, "f32", err);
    double wide = 0;
    memcpy(&wide, g->header + e->pos, sizeof(wide));
    *ret = (float)wide;
    return LVR_OK;
}

lvr_status lvr_gguf_str_(const lvr_gguf *g, const char *key, const char **ret, lvr_error *err)
{
    const struct entry *e = find_entry(g, key);
    if (e == NULL)
        return absent(g, key, "a string", err);
    if (e->type != V_STR)
        return wrong_type(g, e, "a string", err);
    if (strlen(e->decoded) != e->n)
        return lvr_fail(err, LVR_ERR_FORMAT, "%s: metadata key %s contains a NUL byte", g->path, key);
    *ret = e->decoded;
    return LVR_OK;
}

bool lvr_gguf_bool_or(const lvr_gguf *g, const char *key, bool fallback)
{
    const struct entry *e = find_entry(g, key);
    return e == NULL || e->type != V_BOOL ? fallback : g->header[e->pos] != 0;
}

static lvr_status find_array(const lvr_gguf *g, const char *key, uint32_t elem_type, const struct entry **ret,
                             lvr_error *err)
{
    char expected[32];
    snprintf(expected, sizeof(expected), "an array of %s", value_type_name(elem_type));
    const struct entry *e = find_entry(g, key);
    if (e == NULL)
        return absent(g, key, expected, err);
    const bool compatible = e->elem_type == elem_type || (elem_type == V_I32 && e->elem_type == V_U32);
    if (e->type != V_ARR || !compatible)
        return wrong_type(g, e, expected, err);
    *ret = e;
    return LVR_OK;
}

lvr_status lvr_gguf_str_array(const lvr_gguf *g, const char *key, const lvr_gguf_str **ret, uint64_t *ret_n,
                              lvr_error *err)
{
    const struct entry *e = NULL;
    const lvr_status status = find_array(g, key, V_STR, &e, err);
    if (status != LVR_OK)
        return status;
    *ret = e->decoded;
    *ret_n = e->n;
    return LVR_OK;
}

lvr_status lvr_gguf_f32_array(const lvr_gguf *g, const char *key, const float **ret, uint64_t *ret_n,
                              lvr_error *err)
{
    const struct entry *e = NULL;
    const lvr_status status = find_array(g, key, V_F32, &e, err);
    if (status != LVR_OK)
        return status;
    *ret = e->decoded;
    *ret_n = e->n;
    return LVR_OK;
}

lvr_status lvr_gguf_i32_array(const lvr_gguf *g, const char *key, const int32_t **ret, uint64_t *ret_n,
                              lvr_error *err)
{
    const struct entry *e = NULL;
    const lvr_status status = find_array(g, key, V_I32, &e, err);
    if (status != LVR_OK)
        return status;
    const int32_t *values = e->decoded;
    for (uint64_t i = 0; e->elem_type == V_U32 && i < e->n; i++)
        if (values[i] < 0)
            return lvr_fail(err, LVR_ERR_FORMAT,
                            "%s: metadata key %s: element %" PRIu64 " is %u (expected at most %d)", g->path,
                            key, i, (uint32_t)values[i], INT32_MAX);
    *ret = values;
    *ret_n = e->n;
    return LVR_OK;
}

uint64_t lvr_gguf_n_tensors(const lvr_gguf *g)
{
    return g->n_tensors;
}

const lvr_gguf_tensor *lvr_gguf_tensor_at(const lvr_gguf *g, uint64_t i)
{
    return i < g->n_tensors ? &g->tensors[i] : NULL;
}

const lvr_gguf_tensor *lvr_gguf_find(const lvr_gguf *g, const char *name)
{
    const struct named wanted = {.name = name};
    const struct named *found =
        bsearch(&wanted, g->tensors_sorted, g->n_tensors, sizeof(wanted), compare_name_only);
    return found == NULL ? NULL : &g->tensors[found->index];
}

lvr_status lvr_gguf_read_range(const lvr_gguf *g, const lvr_gguf_tensor *t, uint64_t begin, uint64_t n,
                               void *dst, lvr_error *err)
{
    if (g->fd < 0)
        return lvr_fail(err, LVR_ERR_UNSUPPORTED, "%s: tensor %s: only the header was opened, not its data",
                        g->path, t->name);
    if (begin > t->bytes || n > t->bytes - begin)
        return lvr_fail(err, LVR_ERR_INVARIANT,
                        "%s: tensor %s: read of bytes %" PRIu64 "+%" PRIu64 " of %" PRIu64, g->path, t->name,
                        begin, n, t->bytes);
    return lvr_pread_all(g->fd, dst, n, t->offset + begin, g->path, err);
}

lvr_status lvr_gguf_read(const lvr_gguf *g, const lvr_gguf_tensor *t, void *dst, lvr_error *err)
{
    return lvr_gguf_read_range(g, t, 0, t->bytes, dst, err);
}

uint64_t lvr_gguf_n_keys(const lvr_gguf *g)
{
    return g->n_keys;
}

const char *lvr_gguf_key_at(const lvr_gguf *g, uint64_t i)
{
    return i < g->n_keys ? g->keys[i].key : NULL;
}

#define SHOWN_STRING_BYTES 200u
#define SHOWN_ELEMENTS 8u

static void show_string(const char *s, uint64_t n, lvr_buf *out)
{
    const uint64_t shown = n < SHOWN_STRING_BYTES ? n : SHOWN_STRING_BYTES;
    for (uint64_t i = 0; i < shown; i++) {
        const unsigned char c = (unsigned char)s[i];
        const char plain = c < 0x20 || c == 0x7f ? '.' : (char)c;
        lvr_buf_append(out, &plain, 1);
    }
    if (shown < n)
        lvr_buf_printf(out, "... (%" PRIu64 " bytes)", n);
}

static void show_scalar(const lvr_gguf *g, uint32_t type, uint64_t pos, lvr_buf *out)
{
    int64_t s = 0;
    uint64_t u = 0;
    float f = 0;
    double d = 0;
    if (integer_value(g, type, pos, &s, &u)) {
        if (s < 0)
            lvr_buf_printf(out, "%" PRId64, s);
        else
            lvr_buf_printf(out, "%" PRIu64, u);
        return;
    }
    if (type == V_BOOL) {
        lvr_buf_puts(out, g->header[pos] ? "true" : "false");
        return;
    }
    if (type == V_F32) {
        memcpy(&f, g->header + pos, sizeof(f));
        lvr_buf_printf(out, "%.9g", (double)f);
        return;
    }
    memcpy(&d, g->header + pos, sizeof(d));
    lvr_buf_printf(out, "%.17g", d);
}

static void show_array(const lvr_gguf *g, const struct entry *e, lvr_buf *out)
{
    const uint64_t shown = e->n < SHOWN_ELEMENTS ? e->n : SHOWN_ELEMENTS;
    lvr_buf_puts(out, "[");
    for (uint64_t i = 0; i < shown; i++) {
        lvr_buf_puts(out, i > 0 ? ", " : "");
        if (e->elem_type == V_STR) {
            const lvr_gguf_str *strings = e->decoded;
            show_string(strings[i].s, strings[i].n, out);
        } else {
            show_scalar(g, e->elem_type, e->pos + i * value_types[e->elem_type].bytes, out);
        }
    }
    if (shown < e->n)
        lvr_buf_printf(out, ", ... (%" PRIu64 " elements of type %s)", e->n, value_type_name(e->elem_type));
    lvr_buf_puts(out, "]");
}

void lvr_gguf_value_text(const lvr_gguf *g, uint64_t i, lvr_buf *out)
{
    if (i >= g->n_keys)
        return;
    const struct entry *e = &g->keys[i];
    if (e->type == V_ARR)
        show_array(g, e, out);
    else if (e->type == V_STR)
        show_string(e->decoded, e->n, out);
    else
        show_scalar(g, e->type, e->pos, out);
}
