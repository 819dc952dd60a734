/*
 * Strict YAML (and JSON, its subset) documents over libyaml: a tree of nodes with positions.
 *
 * Duplicate keys, anchors/aliases, tags, several documents, depth > 64, input > 64 MiB, more than 4 Mi nodes,
 * NUL bytes and invalid UTF-8 are errors (LVR_ERR_CONFIG), and so is an empty document.
 *
 * Every mapping key that was never asked for is reported by lvr_yaml_check_used with file:line:column and a
 * "did you mean" from the keys that were asked for: nothing is ignored in silence.
 *
 * Ownership: nodes belong to the document. Not thread safe (asking marks keys as used).
 */
#ifndef LVR_COMMON_YAML_H
#define LVR_COMMON_YAML_H

#include "common/buf.h"
#include "common/error.h"
#include <stdbool.h>
#include <stdint.h>

typedef enum lvr_yaml_kind { LVR_YAML_SCALAR, LVR_YAML_SEQ, LVR_YAML_MAP } lvr_yaml_kind;

typedef struct lvr_yaml_node lvr_yaml_node;
typedef struct lvr_yaml_doc lvr_yaml_doc;

lvr_status lvr_yaml_load_file(const char *path, lvr_yaml_doc **ret_doc, lvr_error *err);
/* `name` stands for the file name in messages. */
lvr_status lvr_yaml_load_mem(const char *name, const char *text, size_t n, lvr_yaml_doc **ret_doc,
                             lvr_error *err);
/* One line of a JSONL file, which messages number `line`. */
lvr_status lvr_yaml_load_line(const char *name, uint32_t line, const char *text, size_t n,
                              lvr_yaml_doc **ret_doc, lvr_error *err);
void lvr_yaml_free(lvr_yaml_doc *doc);

const lvr_yaml_node *lvr_yaml_root(const lvr_yaml_doc *doc);
lvr_yaml_kind lvr_yaml_node_kind(const lvr_yaml_node *node);
/* "file:line:column" of the node (1-based), valid as long as the document. */
const char *lvr_yaml_where(const lvr_yaml_node *node);

size_t lvr_yaml_len(const lvr_yaml_node *node);                        /* items of a sequence or mapping */
const lvr_yaml_node *lvr_yaml_at(const lvr_yaml_node *node, size_t i); /* value i; marks its key as used */
const char *lvr_yaml_key_at(const lvr_yaml_node *node, size_t i);      /* key i of a mapping */
const char *lvr_yaml_text(const lvr_yaml_node *node);                  /* a scalar's text, else NULL */
bool lvr_yaml_is_plain(const lvr_yaml_node *node);                     /* a scalar without quotes */
bool lvr_yaml_is_null(const lvr_yaml_node *node);                      /* empty, ~ or null, not quoted */
/* NULL if absent (or `map` is no mapping); marks it used. */
const lvr_yaml_node *lvr_yaml_find(const lvr_yaml_node *map, const char *key);

/* Required scalars: absent, of the wrong kind, not a number, or out of [min, max] is LVR_ERR_CONFIG with a
 * position. Integers accept 1_000; sizes accept KiB/MiB/GiB/KB/MB/GB suffixes. NaN and infinities are
 * refused. */
lvr_status lvr_yaml_get_str(const lvr_yaml_node *map, const char *key, const char **ret, lvr_error *err);
lvr_status lvr_yaml_get_u64(const lvr_yaml_node *map, const char *key, uint64_t min, uint64_t max,
                            uint64_t *ret, lvr_error *err);
lvr_status lvr_yaml_get_size(const lvr_yaml_node *map, const char *key, uint64_t min, uint64_t max,
                             uint64_t *ret, lvr_error *err);
lvr_status lvr_yaml_get_double(const lvr_yaml_node *map, const char *key, double min, double max, double *ret,
                               lvr_error *err);
lvr_status lvr_yaml_get_bool(const lvr_yaml_node *map, const char *key, bool *ret, lvr_error *err);
lvr_status lvr_yaml_get_map(const lvr_yaml_node *map, const char *key, const lvr_yaml_node **ret,
                            lvr_error *err);
lvr_status lvr_yaml_get_seq(const lvr_yaml_node *map, const char *key, const lvr_yaml_node **ret,
                            lvr_error *err);
/* Scalars themselves (sequence items). */
lvr_status lvr_yaml_as_u64(const lvr_yaml_node *node, uint64_t min, uint64_t max, uint64_t *ret,
                           lvr_error *err);
lvr_status lvr_yaml_as_double(const lvr_yaml_node *node, double min, double max, double *ret, lvr_error *err);

/* LVR_ERR_CONFIG at the first mapping key, anywhere in the document, that nobody asked for. */
lvr_status lvr_yaml_check_used(const lvr_yaml_doc *doc, lvr_error *err);

/* Writing: block style, two-space indentation, in call order; strings are quoted where YAML needs it. */
typedef struct lvr_yaml_out {
    lvr_buf *out;
    int depth;
    size_t empty_at; /* length of `out` right after a mapping was opened: one closed there is empty */
} lvr_yaml_out;
void lvr_yaml_out_init(lvr_yaml_out *y, lvr_buf *out);
void lvr_yaml_out_comment(lvr_yaml_out *y, const char *text);
void lvr_yaml_out_map(lvr_yaml_out *y, const char *key); /* opens `key:` and indents */
/* Opens a mapping as the next item of a sequence: the key that lvr_yaml_out_map opened last holds items only.
 */
void lvr_yaml_out_item(lvr_yaml_out *y);
void lvr_yaml_out_end(lvr_yaml_out *y);
void lvr_yaml_out_str(lvr_yaml_out *y, const char *key, const char *value);
void lvr_yaml_out_u64(lvr_yaml_out *y, const char *key, uint64_t value);
void lvr_yaml_out_double(lvr_yaml_out *y, const char *key, double value);
void lvr_yaml_out_bool(lvr_yaml_out *y, const char *key, bool value);
void lvr_yaml_out_u64s(lvr_yaml_out *y, const char *key, const uint64_t *values,
                       size_t n); /* flow style [a, b] */
void lvr_yaml_out_doubles(lvr_yaml_out *y, const char *key, const double *values, size_t n);

#endif
