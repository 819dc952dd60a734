#include "common/yaml.h"

#include "common/fs.h"
#include "common/json.h"
#include "common/param.h"
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdalign.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#define MAX_BYTES (UINT64_C(64) << 20)
#define MAX_DEPTH 64
#define MAX_NODES ((size_t)4 << 20)
#define MAX_ASKED 256
#define CHUNK_BYTES ((size_t)64 << 10)

typedef struct chunk {
    struct chunk *next;
    size_t used, size;
    alignas(max_align_t) char data[];
} chunk;

struct lvr_yaml_doc {
    chunk *chunks;
    char *name;
    uint32_t first_line; /* its number in the file */
    bool is_line;        /* of JSONL */
    lvr_yaml_node *root;
};

typedef struct position {
    uint32_t line, column;
} position;

typedef struct entry {
    const char *key;
    lvr_yaml_node *value;
    position at;
    bool used;
} entry;

/* What asking changes: reached through pointers, so that nodes are const to their readers. */
typedef struct node_notes {
    lvr_yaml_doc *doc;
    char *where;
    const char **asked;
    size_t n_asked;
} node_notes;

struct lvr_yaml_node {
    node_notes *notes;
    lvr_yaml_kind kind;
    bool plain;
    position at;
    size_t n;
    const char *text;
    entry *entries;
};

static void *arena_alloc(lvr_yaml_doc *doc, size_t n)
{
    if (n > SIZE_MAX - CHUNK_BYTES)
        return NULL;
    const size_t need = (n + alignof(max_align_t) - 1) / alignof(max_align_t) * alignof(max_align_t);
    chunk *c = doc->chunks;
    if (!c || c->size - c->used < need) {
        const size_t size = need > CHUNK_BYTES / 4 ? need : CHUNK_BYTES;
        c = malloc(sizeof *c + size);
        if (!c)
            return NULL;
        *c = (chunk){.next = doc->chunks, .size = size};
        doc->chunks = c;
    }
    void *p = c->data + c->used;
    c->used += need;
    return p;
}

static char *arena_strn(lvr_yaml_doc *doc, const char *s, size_t n)
{
    char *copy = arena_alloc(doc, n + 1);
    if (!copy)
        return NULL;
    memcpy(copy, s, n);
    copy[n] = '\0';
    return copy;
}

void lvr_yaml_free(lvr_yaml_doc *doc)
{
    if (!doc)
        return;
    for (chunk *c = doc->chunks; c;) {
        chunk *next = c->next;
        free(c);
        c = next;
    }
    free(doc->name);
    free(doc);
}

/* ---- Loading ---- */

typedef struct loader {
    yaml_parser_t parser;
    lvr_yaml_doc *doc;
    size_t n_nodes;
    lvr_error *err;
} loader;

typedef struct entries {
    entry *items;
    size_t n, cap;
} entries;

static lvr_status load_node(loader *l, const yaml_event_t *event, int depth, lvr_yaml_node **ret);

static position position_of(const loader *l, yaml_mark_t mark)
{
    return (position){.line = (uint32_t)mark.line + l->doc->first_line, .column = (uint32_t)mark.column + 1};
}

static lvr_status fail_at(loader *l, yaml_mark_t mark, const char *what)
{
    const position at = position_of(l, mark);
    return lvr_fail(l->err, LVR_ERR_CONFIG, "%s:%u:%u: %s", l->doc->name, at.line, at.column, what);
}

static lvr_status fail_nomem(const lvr_yaml_doc *doc, lvr_error *err)
{
    return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory while reading YAML", doc->name);
}

static lvr_status fail_parser(loader *l)
{
    const yaml_parser_t *p = &l->parser;
    if (p->error == YAML_MEMORY_ERROR)
        return fail_nomem(l->doc, l->err);
    const yaml_mark_t mark = p->error == YAML_READER_ERROR ? p->mark : p->problem_mark;
    position at = position_of(l, mark);
    if (l->doc->is_line) /* the parser puts its end on a line of its own */
        at = (position){.line = l->doc->first_line, .column = (uint32_t)mark.index + 1};
    return lvr_fail(l->err, LVR_ERR_CONFIG, "%s:%u:%u: not valid %s: %s%s%s", l->doc->name, at.line,
                    at.column, l->doc->is_line ? "JSONL" : "YAML",
                    p->problem ? p->problem : "unreadable text", p->context ? " " : "",
                    p->context ? p->context : "");
}

static lvr_status next_event(loader *l, yaml_event_t *ret)
{
    return yaml_parser_parse(&l->parser, ret) ? LVR_OK : fail_parser(l);
}

static lvr_status new_node(loader *l, lvr_yaml_kind kind, yaml_mark_t mark, lvr_yaml_node **ret)
{
    if (l->n_nodes >= MAX_NODES)
        return fail_at(l, mark, "the document has too many values (more than 4194304); split it");
    struct both {
        lvr_yaml_node node;
        node_notes notes;
    } *both = arena_alloc(l->doc, sizeof *both);
    if (!both)
        return fail_nomem(l->doc, l->err);
    l->n_nodes++;
    both->notes = (node_notes){.doc = l->doc};
    both->node = (lvr_yaml_node){.notes = &both->notes, .kind = kind, .at = position_of(l, mark)};
    *ret = &both->node;
    return LVR_OK;
}

static lvr_status copy_scalar(loader *l, const yaml_event_t *event, const char **ret)
{
    const char *value = (const char *)event->data.scalar.value;
    const size_t n = event->data.scalar.length;
    if (memchr(value, '\0', n))
        return fail_at(l, event->start_mark, "a string holds a NUL character (\\0); remove it");
    const char *text = arena_strn(l->doc, value, n);
    if (!text)
        return fail_nomem(l->doc, l->err);
    *ret = text;
    return LVR_OK;
}

static lvr_status check_decorations(loader *l, const yaml_event_t *event, const yaml_char_t *anchor,
                                    const yaml_char_t *tag)
{
    if (anchor)
        return fail_at(l, event->start_mark, "anchors (&name) are not supported; write the value out");
    if (tag)
        return fail_at(l, event->start_mark, "tags (!name) are not supported; remove the tag");
    return LVR_OK;
}

static lvr_status load_scalar(loader *l, const yaml_event_t *event, lvr_yaml_node **ret)
{
    lvr_yaml_node *node = NULL;
    lvr_status status = check_decorations(l, event, event->data.scalar.anchor, event->data.scalar.tag);
    if (status == LVR_OK)
        status = new_node(l, LVR_YAML_SCALAR, event->start_mark, &node);
    if (status != LVR_OK)
        return status;
    node->plain = event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    status = copy_scalar(l, event, &node->text);
    if (status == LVR_OK)
        *ret = node;
    return status;
}

static lvr_status push_entry(loader *l, entries *list, const entry *item)
{
    if (list->n == list->cap) {
        /* At most MAX_NODES entries exist: the product cannot overflow. */
        const size_t cap = list->cap ? list->cap * 2 : 8;
        entry *items = realloc(list->items, cap * sizeof *items);
        if (!items)
            return fail_nomem(l->doc, l->err);
        list->items = items;
        list->cap = cap;
    }
    list->items[list->n++] = *item;
    return LVR_OK;
}

static lvr_status keep_entries(loader *l, const entries *list, lvr_yaml_node *node)
{
    node->n = list->n;
    if (list->n == 0)
        return LVR_OK;
    node->entries = arena_alloc(l->doc, list->n * sizeof *list->items);
    if (!node->entries)
        return fail_nomem(l->doc, l->err);
    memcpy(node->entries, list->items, list->n * sizeof *list->items);
    return LVR_OK;
}

static int compare_keys(const void *a, const void *b)
{
    const entry *const *x = a, *const *y = b;
    const int order = strcmp((*x)->key, (*y)->key);
    return order ? order : (*x > *y) - (*x < *y);
}

/* By sorting: a hostile mapping of a million keys must not cost a million squared. */
static lvr_status check_duplicates(loader *l, const lvr_yaml_node *map)
{
    if (map->n < 2)
        return LVR_OK;
    const entry **sorted = malloc(map->n * sizeof *sorted);
    if (!sorted)
        return fail_nomem(l->doc, l->err);
    for (size_t i = 0; i < map->n; i++)
        sorted[i] = &map->entries[i];
    qsort(sorted, map->n, sizeof *sorted, compare_keys);
    lvr_status status = LVR_OK;
    for (size_t i = 1; i < map->n && status == LVR_OK; i++) {
        const entry *first = sorted[i - 1], *again = sorted[i];
        if (strcmp(first->key, again->key) == 0)
            status = lvr_fail(l->err, LVR_ERR_CONFIG,
                              "%s:%u:%u: the key `%.64s` is already given at line %u; keep one of them",
                              l->doc->name, again->at.line, again->at.column, again->key, first->at.line);
    }
    free(sorted);
    return status;
}

/* Reads the key of a pair; *ret_end is set at the end of the mapping instead. */
static lvr_status load_key(loader *l, entry *ret, bool *ret_end)
{
    yaml_event_t event;
    lvr_status status = next_event(l, &event);
    if (status != LVR_OK)
        return status;
    *ret_end = event.type == YAML_MAPPING_END_EVENT;
    if (*ret_end)
        goto out;
    if (event.type == YAML_ALIAS_EVENT)
        status = fail_at(l, event.start_mark, "aliases (*name) are not supported; write the key out");
    else if (event.type != YAML_SCALAR_EVENT)
        status = fail_at(l, event.start_mark,
                         "expected a simple key, found a mapping or a sequence used as a key");
    else
        status = check_decorations(l, &event, event.data.scalar.anchor, event.data.scalar.tag);
    if (status == LVR_OK)
        status = copy_scalar(l, &event, &ret->key);
    ret->at = position_of(l, event.start_mark);
out:
    yaml_event_delete(&event);
    return status;
}

/* Reads a value; *ret_end is set at the end of the sequence instead. */
static lvr_status load_value(loader *l, int depth, lvr_yaml_node **ret, bool *ret_end)
{
    yaml_event_t event;
    lvr_status status = next_event(l, &event);
    if (status != LVR_OK)
        return status;
    *ret_end = event.type == YAML_SEQUENCE_END_EVENT;
    if (!*ret_end)
        status = load_node(l, &event, depth, ret);
    yaml_event_delete(&event);
    return status;
}

static lvr_status load_pairs(loader *l, int depth, entries *list)
{
    for (;;) {
        entry pair = {0};
        bool end = false;
        lvr_status status = load_key(l, &pair, &end);
        if (status != LVR_OK || end)
            return status;
        status = load_value(l, depth, &pair.value, &end);
        if (status == LVR_OK)
            status = push_entry(l, list, &pair);
        if (status != LVR_OK)
            return status;
    }
}

static lvr_status load_items(loader *l, int depth, entries *list)
{
    for (;;) {
        entry item = {0};
        bool end = false;
        lvr_status status = load_value(l, depth, &item.value, &end);
        if (status != LVR_OK || end)
            return status;
        status = push_entry(l, list, &item);
        if (status != LVR_OK)
            return status;
    }
}

static lvr_status load_collection(loader *l, const yaml_event_t *event, int depth, lvr_yaml_node **ret)
{
    const bool is_map = event->type == YAML_MAPPING_START_EVENT;
    const yaml_char_t *anchor = is_map ? event->data.mapping_start.anchor : event->data.sequence_start.anchor;
    const yaml_char_t *tag = is_map ? event->data.mapping_start.tag : event->data.sequence_start.tag;
    if (depth >= MAX_DEPTH)
        return fail_at(l, event->start_mark, "nested deeper than 64 levels; flatten the document");
    lvr_yaml_node *node = NULL;
    lvr_status status = check_decorations(l, event, anchor, tag);
    if (status == LVR_OK)
        status = new_node(l, is_map ? LVR_YAML_MAP : LVR_YAML_SEQ, event->start_mark, &node);
    if (status != LVR_OK)
        return status;
    entries list = {0};
    status = is_map ? load_pairs(l, depth + 1, &list) : load_items(l, depth + 1, &list);
    if (status == LVR_OK)
        status = keep_entries(l, &list, node);
    free(list.items);
    if (status == LVR_OK && is_map)
        status = check_duplicates(l, node);
    if (status == LVR_OK)
        *ret = node;
    return status;
}

static lvr_status load_node(loader *l, const yaml_event_t *event, int depth, lvr_yaml_node **ret)
{
    switch (event->type) {
    case YAML_SCALAR_EVENT:
        return load_scalar(l, event, ret);
    case YAML_MAPPING_START_EVENT:
    case YAML_SEQUENCE_START_EVENT:
        return load_collection(l, event, depth, ret);
    case YAML_ALIAS_EVENT:
        return fail_at(l, event->start_mark, "aliases (*name) are not supported; write the value out");
    default:
        return fail_at(l, event->start_mark, "expected a value");
    }
}

static lvr_status expect_event(loader *l, yaml_event_type_t type, const char *otherwise)
{
    yaml_event_t event;
    lvr_status status = next_event(l, &event);
    if (status != LVR_OK)
        return status;
    if (event.type != type)
        status = fail_at(l, event.start_mark, otherwise);
    yaml_event_delete(&event);
    return status;
}

static lvr_status load_stream(loader *l)
{
    bool end = false;
    lvr_status status = expect_event(l, YAML_STREAM_START_EVENT, "expected the start of a stream");
    if (status == LVR_OK)
        status = expect_event(l, YAML_DOCUMENT_START_EVENT, "the document is empty; expected YAML or JSON");
    if (status == LVR_OK)
        status = load_value(l, 0, &l->doc->root, &end);
    if (status == LVR_OK)
        status = expect_event(l, YAML_DOCUMENT_END_EVENT, "expected the end of the document");
    if (status == LVR_OK)
        status = expect_event(l, YAML_STREAM_END_EVENT,
                              "a second document starts here; keep one document per file");
    return status;
}

/* Before libyaml sees it: its reader names neither the line nor the remedy. */
static lvr_status check_text(const char *name, size_t line, const char *text, size_t n, lvr_error *err)
{
    size_t line_start = 0;
    for (size_t i = 0; i < n;) {
        const size_t len = lvr_utf8_len(text + i, n - i);
        if (len == 0)
            return lvr_fail(
                err, LVR_ERR_CONFIG,
                "%s:%zu:%zu: expected UTF-8 text, found the byte 0x%02x (column in bytes); save the file "
                "as UTF-8",
                name, line, i - line_start + 1, (unsigned char)text[i]);
        if (text[i] == '\0')
            return lvr_fail(err, LVR_ERR_CONFIG,
                            "%s:%zu:%zu: expected text, found a NUL byte; is this a binary file?", name, line,
                            i - line_start + 1);
        if (text[i] == '\n') {
            line++;
            line_start = i + 1;
        }
        i += len;
    }
    return LVR_OK;
}

static lvr_status new_doc(const char *name, lvr_yaml_doc **ret, lvr_error *err)
{
    lvr_yaml_doc *doc = calloc(1, sizeof *doc);
    char *copy = strdup(name);
    if (!doc || !copy) {
        free(doc);
        free(copy);
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory while reading YAML", name);
    }
    doc->name = copy;
    *ret = doc;
    return LVR_OK;
}

static lvr_status load_from(const char *name, uint32_t first_line, bool is_line, const char *text, size_t n,
                            lvr_yaml_doc **ret_doc, lvr_error *err)
{
    if (n > MAX_BYTES)
        return lvr_fail(err, LVR_ERR_CONFIG, "%s: expected at most 64 MiB of YAML, found %zu bytes", name, n);
    lvr_status status = check_text(name, first_line, text, n, err);
    if (status != LVR_OK)
        return status;
    loader l = {.err = err};
    status = new_doc(name, &l.doc, err);
    if (status != LVR_OK)
        return status;
    l.doc->first_line = first_line;
    l.doc->is_line = is_line;
    if (!yaml_parser_initialize(&l.parser)) {
        status = fail_nomem(l.doc, err);
        goto out;
    }
    yaml_parser_set_encoding(&l.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&l.parser, (const unsigned char *)text, n);
    status = load_stream(&l);
    yaml_parser_delete(&l.parser);
out:
    if (status == LVR_OK)
        *ret_doc = l.doc;
    else
        lvr_yaml_free(l.doc);
    return status;
}

lvr_status lvr_yaml_load_mem(const char *name, const char *text, size_t n, lvr_yaml_doc **ret_doc,
                             lvr_error *err)
{
    return load_from(name, 1, false, text, n, ret_doc, err);
}

lvr_status lvr_yaml_load_line(const char *name, uint32_t line, const char *text, size_t n,
                              lvr_yaml_doc **ret_doc, lvr_error *err)
{
    return load_from(name, line, true, text, n, ret_doc, err);
}

lvr_status lvr_yaml_load_file(const char *path, lvr_yaml_doc **ret_doc, lvr_error *err)
{
    lvr_buf buf = LVR_BUF_INIT;
    lvr_status status = lvr_read_file(path, MAX_BYTES, &buf, err);
    if (status == LVR_OK)
        status = lvr_yaml_load_mem(path, buf.data, buf.len, ret_doc, err);
    lvr_buf_free(&buf);
    return status;
}

/* ---- Reading ---- */

const lvr_yaml_node *lvr_yaml_root(const lvr_yaml_doc *doc)
{
    return doc->root;
}

lvr_yaml_kind lvr_yaml_node_kind(const lvr_yaml_node *node)
{
    return node->kind;
}

const char *lvr_yaml_where(const lvr_yaml_node *node)
{
    node_notes *notes = node->notes;
    if (notes->where)
        return notes->where;
    const size_t room = strlen(notes->doc->name) + sizeof ":4294967295:4294967295";
    notes->where = arena_alloc(notes->doc, room);
    if (!notes->where)
        return notes->doc->name;
    snprintf(notes->where, room, "%s:%u:%u", notes->doc->name, node->at.line, node->at.column);
    return notes->where;
}

size_t lvr_yaml_len(const lvr_yaml_node *node)
{
    return node->n;
}

const lvr_yaml_node *lvr_yaml_at(const lvr_yaml_node *node, size_t i)
{
    if (i >= node->n)
        return NULL;
    node->entries[i].used = true;
    return node->entries[i].value;
}

const char *lvr_yaml_key_at(const lvr_yaml_node *node, size_t i)
{
    return i < node->n ? node->entries[i].key : NULL;
}

const char *lvr_yaml_text(const lvr_yaml_node *node)
{
    return node->text;
}

bool lvr_yaml_is_plain(const lvr_yaml_node *node)
{
    return node->kind == LVR_YAML_SCALAR && node->plain;
}

bool lvr_yaml_is_null(const lvr_yaml_node *node)
{
    if (node->kind != LVR_YAML_SCALAR || !node->plain)
        return false;
    return !*node->text || strcmp(node->text, "~") == 0 || strcmp(node->text, "null") == 0;
}

/* Keys asked for in vain are what a misspelt key was meant to be. Losing one to a lack of memory only costs a
 * hint. */
static void note_asked(const lvr_yaml_node *map, const char *key)
{
    node_notes *notes = map->notes;
    for (size_t i = 0; i < notes->n_asked; i++)
        if (strcmp(notes->asked[i], key) == 0)
            return;
    if (notes->n_asked == MAX_ASKED)
        return;
    if ((notes->n_asked & (notes->n_asked - 1)) == 0) {
        const size_t cap = notes->n_asked ? notes->n_asked * 2 : 1;
        const char **asked = arena_alloc(notes->doc, cap * sizeof *asked);
        if (!asked)
            return;
        if (notes->n_asked)
            memcpy(asked, notes->asked, notes->n_asked * sizeof *asked);
        notes->asked = asked;
    }
    const char *copy = arena_strn(notes->doc, key, strlen(key));
    if (copy)
        notes->asked[notes->n_asked++] = copy;
}

const lvr_yaml_node *lvr_yaml_find(const lvr_yaml_node *map, const char *key)
{
    if (!map || map->kind != LVR_YAML_MAP)
        return NULL;
    for (size_t i = 0; i < map->n; i++)
        if (strcmp(map->entries[i].key, key) == 0)
            return lvr_yaml_at(map, i);
    note_asked(map, key);
    return NULL;
}

#define DESCRIBE_BYTES 96

static void describe(const lvr_yaml_node *node, char ret[DESCRIBE_BYTES])
{
    if (node->kind == LVR_YAML_MAP)
        snprintf(ret, DESCRIBE_BYTES, "a mapping of %zu keys", node->n);
    else if (node->kind == LVR_YAML_SEQ)
        snprintf(ret, DESCRIBE_BYTES, "a sequence of %zu items", node->n);
    else if (node->plain && !*node->text)
        snprintf(ret, DESCRIBE_BYTES, "nothing");
    else
        snprintf(ret, DESCRIBE_BYTES, "\"%.64s\"%s", node->text, strlen(node->text) > 64 ? "..." : "");
}

static lvr_status fail_value(const lvr_yaml_node *node, const char *key, const char *expected, lvr_error *err)
{
    char found[DESCRIBE_BYTES];
    describe(node, found);
    if (!key)
        return lvr_fail(err, LVR_ERR_CONFIG, "%s: expected %s, found %s", lvr_yaml_where(node), expected,
                        found);
    return lvr_fail(err, LVR_ERR_CONFIG, "%s: `%s`: expected %s, found %s", lvr_yaml_where(node), key,
                    expected, found);
}

static lvr_status require(const lvr_yaml_node *map, const char *key, const char *expected,
                          const lvr_yaml_node **ret, lvr_error *err)
{
    const lvr_yaml_node *node = lvr_yaml_find(map, key);
    if (node) {
        *ret = node;
        return LVR_OK;
    }
    if (map->kind != LVR_YAML_MAP) {
        char found[DESCRIBE_BYTES];
        describe(map, found);
        return lvr_fail(err, LVR_ERR_CONFIG, "%s: expected a mapping with the key `%s`, found %s",
                        lvr_yaml_where(map), key, found);
    }
    return lvr_fail(err, LVR_ERR_CONFIG, "%s: the key `%s` is missing from this mapping; add it, with %s",
                    lvr_yaml_where(map), key, expected);
}

static double bound_of_u64(uint64_t max)
{
    return max == UINT64_MAX ? INFINITY : (double)max;
}

typedef lvr_status (*parse_u64_fn)(const char *text, uint64_t *ret, lvr_error *err);

static lvr_status read_u64(const lvr_yaml_node *node, const char *key, parse_u64_fn parse,
                           const char *expected, const uint64_t range[2], uint64_t *ret, lvr_error *err)
{
    uint64_t value = 0;
    const bool ok = node->kind == LVR_YAML_SCALAR && parse(node->text, &value, NULL) == LVR_OK;
    if (!ok || value < range[0] || value > range[1])
        return fail_value(node, key, expected, err);
    *ret = value;
    return LVR_OK;
}

static lvr_status read_double(const lvr_yaml_node *node, const char *key, const char *expected, double min,
                              double max, double *ret, lvr_error *err)
{
    double value = 0;
    const bool ok = node->kind == LVR_YAML_SCALAR && lvr_parse_double(node->text, &value, NULL) == LVR_OK;
    if (!ok || value < min || value > max)
        return fail_value(node, key, expected, err);
    *ret = value;
    return LVR_OK;
}

#define EXPECTED_BYTES 160

lvr_status lvr_yaml_get_str(const lvr_yaml_node *map, const char *key, const char **ret, lvr_error *err)
{
    const lvr_yaml_node *node = NULL;
    const lvr_status status = require(map, key, "a string", &node, err);
    if (status != LVR_OK)
        return status;
    if (node->kind != LVR_YAML_SCALAR || lvr_yaml_is_null(node))
        return fail_value(node, key, "a string", err);
    *ret = node->text;
    return LVR_OK;
}

lvr_status lvr_yaml_get_u64(const lvr_yaml_node *map, const char *key, uint64_t min, uint64_t max,
                            uint64_t *ret, lvr_error *err)
{
    char expected[EXPECTED_BYTES];
    const lvr_yaml_node *node = NULL;
    lvr_describe_range(expected, sizeof expected, "a whole number", (double)min, bound_of_u64(max));
    const lvr_status status = require(map, key, expected, &node, err);
    if (status != LVR_OK)
        return status;
    return read_u64(node, key, lvr_parse_u64, expected, (const uint64_t[2]){min, max}, ret, err);
}

lvr_status lvr_yaml_get_size(const lvr_yaml_node *map, const char *key, uint64_t min, uint64_t max,
                             uint64_t *ret, lvr_error *err)
{
    char expected[EXPECTED_BYTES];
    const lvr_yaml_node *node = NULL;
    lvr_describe_range(expected, sizeof expected, "a size in bytes (such as 4096, 64KiB or 1.5GiB)",
                       (double)min, bound_of_u64(max));
    const lvr_status status = require(map, key, expected, &node, err);
    if (status != LVR_OK)
        return status;
    return read_u64(node, key, lvr_parse_size, expected, (const uint64_t[2]){min, max}, ret, err);
}

lvr_status lvr_yaml_get_double(const lvr_yaml_node *map, const char *key, double min, double max, double *ret,
                               lvr_error *err)
{
    char expected[EXPECTED_BYTES];
    const lvr_yaml_node *node = NULL;
    lvr_describe_range(expected, sizeof expected, "a finite number", min, max);
    const lvr_status status = require(map, key, expected, &node, err);
    if (status != LVR_OK)
        return status;
    return read_double(node, key, expected, min, max, ret, err);
}

lvr_status lvr_yaml_get_bool(const lvr_yaml_node *map, const char *key, bool *ret, lvr_error *err)
{
    const lvr_yaml_node *node = NULL;
    const lvr_status status = require(map, key, "true or false", &node, err);
    if (status != LVR_OK)
        return status;
    bool value = false;
    if (node->kind != LVR_YAML_SCALAR || lvr_parse_bool(node->text, &value, NULL) != LVR_OK)
        return fail_value(node, key, "true or false", err);
    *ret = value;
    return LVR_OK;
}

static lvr_status get_kind(const lvr_yaml_node *map, const char *key, lvr_yaml_kind kind,
                           const char *expected, const lvr_yaml_node **ret, lvr_error *err)
{
    const lvr_yaml_node *node = NULL;
    const lvr_status status = require(map, key, expected, &node, err);
    if (status != LVR_OK)
        return status;
    if (node->kind != kind)
        return fail_value(node, key, expected, err);
    *ret = node;
    return LVR_OK;
}

lvr_status lvr_yaml_get_map(const lvr_yaml_node *map, const char *key, const lvr_yaml_node **ret,
                            lvr_error *err)
{
    return get_kind(map, key, LVR_YAML_MAP, "a mapping", ret, err);
}

lvr_status lvr_yaml_get_seq(const lvr_yaml_node *map, const char *key, const lvr_yaml_node **ret,
                            lvr_error *err)
{
    return get_kind(map, key, LVR_YAML_SEQ, "a sequence", ret, err);
}

lvr_status lvr_yaml_as_u64(const lvr_yaml_node *node, uint64_t min, uint64_t max, uint64_t *ret,
                           lvr_error *err)
{
    char expected[EXPECTED_BYTES];
    lvr_describe_range(expected, sizeof expected, "a whole number", (double)min, bound_of_u64(max));
    return read_u64(node, NULL, lvr_parse_u64, expected, (const uint64_t[2]){min, max}, ret, err);
}

lvr_status lvr_yaml_as_double(const lvr_yaml_node *node, double min, double max, double *ret, lvr_error *err)
{
    char expected[EXPECTED_BYTES];
    lvr_describe_range(expected, sizeof expected, "a finite number", min, max);
    return read_double(node, NULL, expected, min, max, ret, err);
}

/* ---- Unused keys ---- */

#define KNOWN_BYTES 400

static void list_name(char *list, const char *name)
{
    const size_t len = strlen(list);
    if (len + strlen(name) + sizeof ", " <= KNOWN_BYTES)
        snprintf(list + len, KNOWN_BYTES - len, "%s%s", len ? ", " : "", name);
}

static void list_known(const lvr_yaml_node *map, char ret[KNOWN_BYTES])
{
    ret[0] = '\0';
    for (size_t i = 0; i < map->n; i++)
        if (map->entries[i].used)
            list_name(ret, map->entries[i].key);
    for (size_t i = 0; i < map->notes->n_asked; i++)
        list_name(ret, map->notes->asked[i]);
}

static lvr_status fail_unused(const lvr_yaml_node *map, const entry *e, lvr_error *err)
{
    const node_notes *notes = map->notes;
    const char *name = notes->doc->name;
    const char *near = lvr_closest_name(e->key, notes->asked, notes->n_asked);
    if (near)
        return lvr_fail(err, LVR_ERR_CONFIG, "%s:%u:%u: unknown key `%.64s`; did you mean `%s`?", name,
                        e->at.line, e->at.column, e->key, near);
    char known[KNOWN_BYTES];
    list_known(map, known);
    if (!*known)
        return lvr_fail(err, LVR_ERR_CONFIG,
                        "%s:%u:%u: unknown key `%.64s`; no key is expected here, remove it", name, e->at.line,
                        e->at.column, e->key);
    return lvr_fail(err, LVR_ERR_CONFIG, "%s:%u:%u: unknown key `%.64s`; keys known here: %s", name,
                    e->at.line, e->at.column, e->key, known);
}

static lvr_status check_node_used(const lvr_yaml_node *node, lvr_error *err)
{
    for (size_t i = 0; i < node->n; i++) {
        const entry *e = &node->entries[i];
        if (node->kind == LVR_YAML_MAP && !e->used)
            return fail_unused(node, e, err);
        const lvr_status status = check_node_used(e->value, err);
        if (status != LVR_OK)
            return status;
    }
    return LVR_OK;
}

lvr_status lvr_yaml_check_used(const lvr_yaml_doc *doc, lvr_error *err)
{
    return check_node_used(doc->root, err);
}

/* ---- Writing ---- */

void lvr_yaml_out_init(lvr_yaml_out *y, lvr_buf *out)
{
    *y = (lvr_yaml_out){.out = out};
}

static void indent(lvr_yaml_out *y)
{
    for (int i = 0; i < y->depth; i++)
        lvr_buf_puts(y->out, "  ");
}

static bool is_keyword(const char *s)
{
    static const char *const words[] = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcasecmp(s, words[i]) == 0)
            return true;
    return false;
}

/* Narrower than YAML's own rule: whatever any reader might take for something else is quoted. */
static bool is_plain(const char *s)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_/";
    static const char others[] = "0123456789.+-";
    if (!*s || !strchr(letters, *s) || is_keyword(s))
        return false;
    for (; *s; s++)
        if (!strchr(letters, *s) && !strchr(others, *s))
            return false;
    return true;
}

static void put_string(lvr_yaml_out *y, const char *s)
{
    if (is_plain(s)) {
        lvr_buf_puts(y->out, s);
        return;
    }
    /* A JSON string is a YAML double-quoted one. */
    lvr_json j;
    lvr_json_init(&j, y->out, false);
    lvr_json_str(&j, NULL, s);
}

static void put_key(lvr_yaml_out *y, const char *key)
{
    indent(y);
    put_string(y, key);
    lvr_buf_puts(y->out, ": ");
}

/* With a dot before any exponent: YAML 1.1 readers take 1e+20 for a string. */
static void put_double(lvr_yaml_out *y, double value)
{
    if (!isfinite(value)) {
        lvr_buf_puts(y->out, isnan(value) ? ".nan" : value > 0 ? ".inf" : "-.inf");
        return;
    }
    char text[32];
    lvr_format_double(text, sizeof text, value);
    const size_t mantissa = strcspn(text, "e");
    lvr_buf_append(y->out, text, mantissa);
    if (text[mantissa] && !memchr(text, '.', mantissa))
        lvr_buf_puts(y->out, ".0");
    lvr_buf_puts(y->out, text + mantissa);
}

/* Whether a character of a comment would be refused by a reader or, being a line break to YAML 1.1, end the
 * comment: C0 and C1 controls, U+2028, U+2029, U+FEFF, U+FFFE, U+FFFF, and bytes that are no UTF-8. */
static bool breaks_comment(const char *s, size_t len)
{
    static const char *const breakers[] = {"\xe2\x80\xa8", "\xe2\x80\xa9", "\xef\xbb\xbf", "\xef\xbf\xbe",
                                           "\xef\xbf\xbf"};
    const unsigned char first = (unsigned char)s[0];
    if (len <= 1)
        return len == 0 || first < 0x20 || first == 0x7f;
    if (len == 2)
        return first == 0xc2 && (unsigned char)s[1] < 0xa0;
    for (size_t i = 0; i < sizeof breakers / sizeof *breakers; i++)
        if (len == 3 && memcmp(s, breakers[i], 3) == 0)
            return true;
    return false;
}

static void put_comment_line(lvr_yaml_out *y, const char *text, size_t n)
{
    indent(y);
    lvr_buf_puts(y->out, n ? "# " : "#");
    for (size_t i = 0; i < n;) {
        const size_t len = lvr_utf8_len(text + i, n - i);
        if (breaks_comment(text + i, len))
            lvr_buf_puts(y->out, " ");
        else
            lvr_buf_append(y->out, text + i, len);
        i += len ? len : 1;
    }
    lvr_buf_puts(y->out, "\n");
}

void lvr_yaml_out_comment(lvr_yaml_out *y, const char *text)
{
    for (;;) {
        const size_t n = strcspn(text, "\n");
        put_comment_line(y, text, n);
        if (!text[n])
            return;
        text += n + 1;
    }
}

void lvr_yaml_out_map(lvr_yaml_out *y, const char *key)
{
    indent(y);
    put_string(y, key);
    lvr_buf_puts(y->out, ":\n");
    y->depth++;
    y->empty_at = y->out->len;
}

void lvr_yaml_out_item(lvr_yaml_out *y)
{
    indent(y);
    lvr_buf_puts(y->out, "-\n");
    y->depth++;
    y->empty_at = y->out->len;
}

void lvr_yaml_out_end(lvr_yaml_out *y)
{
    if (y->depth == 0 || y->out->failed) {
        y->out->failed = true;
        return;
    }
    y->depth--;
    if (y->out->len != y->empty_at)
        return;
    y->out->len--;
    lvr_buf_puts(y->out, " {}\n");
}

void lvr_yaml_out_str(lvr_yaml_out *y, const char *key, const char *value)
{
    put_key(y, key);
    if (value)
        put_string(y, value);
    else
        lvr_buf_puts(y->out, "null");
    lvr_buf_puts(y->out, "\n");
}

void lvr_yaml_out_u64(lvr_yaml_out *y, const char *key, uint64_t value)
{
    put_key(y, key);
    lvr_buf_printf(y->out, "%" PRIu64 "\n", value);
}

void lvr_yaml_out_double(lvr_yaml_out *y, const char *key, double value)
{
    put_key(y, key);
    put_double(y, value);
    lvr_buf_puts(y->out, "\n");
}

void lvr_yaml_out_bool(lvr_yaml_out *y, const char *key, bool value)
{
    put_key(y, key);
    lvr_buf_puts(y->out, value ? "true\n" : "false\n");
}

void lvr_yaml_out_u64s(lvr_yaml_out *y, const char *key, const uint64_t *values, size_t n)
{
    put_key(y, key);
    lvr_buf_puts(y->out, "[");
    for (size_t i = 0; i < n; i++)
        lvr_buf_printf(y->out, "%s%" PRIu64, i ? ", " : "", values[i]);
    lvr_buf_puts(y->out, "]\n");
}

void lvr_yaml_out_doubles(lvr_yaml_out *y, const char *key, const double *values, size_t n)
{
    put_key(y, key);
    lvr_buf_puts(y->out, "[");
    for (size_t i = 0; i < n; i++) {
        if (i)
            lvr_buf_puts(y->out, ", ");
        put_double(y, values[i]);
    }
    lvr_buf_puts(y->out, "]\n");
}
