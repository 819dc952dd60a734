/*
 * What the parts of the GGUF reader share: the open file, and the parser's cursor (gguf_cursor.c), metadata
 * (gguf_meta.c), tensor table (gguf_tensors.c) and parts of split models (gguf_split.c).
 */
#ifndef LVR_ENGINE_GGUF_INTERNAL_H
#define LVR_ENGINE_GGUF_INTERNAL_H

#include "common/buf.h"
#include "engine/gguf.h"

#define LVR_GGUF_VERSION 3u
#define LVR_GGUF_MAX_STRING_BYTES (16ull << 20)

/* GGUF's numbers. */
typedef enum lvr_gguf_value_type {
    GGUF_V_U8,
    GGUF_V_I8,
    GGUF_V_U16,
    GGUF_V_I16,
    GGUF_V_U32,
    GGUF_V_I32,
    GGUF_V_F32,
    GGUF_V_BOOL,
    GGUF_V_STR,
    GGUF_V_ARR,
    GGUF_V_U64,
    GGUF_V_I64,
    GGUF_V_F64,
    GGUF_V_COUNT
} lvr_gguf_value_type;

typedef struct lvr_gguf_entry {
    char *key;
    uint32_t type, elem_type;
    uint64_t begin, end; /* the whole entry in the header */
    uint64_t pos;        /* of the payload in the header */
    uint64_t n;          /* string length or array count */
    void
        *decoded; /* string: NUL-terminated copy; array: lvr_gguf_str, float or int32_t elements; else NULL */
} lvr_gguf_entry;

typedef struct lvr_gguf_named {
    const char *name;
    uint64_t index;
} lvr_gguf_named;

typedef struct lvr_gguf_part {
    char *path;
    int fd; /* -1: from memory */
    uint64_t bytes;
} lvr_gguf_part;

/* Where a tensor of a split model is. */
typedef struct lvr_gguf_place {
    uint32_t part;
    uint64_t offset; /* in the part */
} lvr_gguf_place;

struct lvr_gguf {
    char *path;
    lvr_gguf_part *parts;
    uint32_t n_parts;       /* at least 1 */
    lvr_gguf_place *places; /* [n_tensors], NULL: the one part, at the tensors' offsets */
    uint8_t *header;
    uint64_t header_n, file_bytes;
    uint32_t alignment;
    lvr_gguf_entry *keys;
    uint64_t n_keys;
    lvr_gguf_named *keys_sorted;
    lvr_gguf_tensor *tensors;
    uint64_t n_tensors;
    lvr_gguf_named *tensors_sorted;
};

typedef struct lvr_gguf_parser {
    lvr_gguf *g;
    const uint8_t *mem; /* NULL: read from the file */
    uint64_t readable;  /* bytes of header source: file size, or n of open_mem */
    uint64_t pos, have, cap;
    char context[320]; /* what is being read, for messages */
    lvr_error *err;
} lvr_gguf_parser;

/* Numbers as a GGUF holds them: little endian, as this machine's memory does. */
static inline void lvr_gguf_put_u32(lvr_buf *b, uint32_t v)
{
    lvr_buf_append(b, &v, sizeof(v));
}

static inline void lvr_gguf_put_u64(lvr_buf *b, uint64_t v)
{
    lvr_buf_append(b, &v, sizeof(v));
}

static inline uint64_t lvr_gguf_align_up(uint64_t n, uint32_t alignment)
{
    return (n + alignment - 1) / alignment * alignment;
}

/* Says what is being read now. */
void lvr_gguf_parsing(lvr_gguf_parser *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
lvr_status lvr_gguf_parse_fail(lvr_gguf_parser *p, lvr_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
lvr_status lvr_gguf_no_memory(lvr_gguf_parser *p);
/* Makes [pos, pos + n) available in the header buffer, or says that the file ends before. */
lvr_status lvr_gguf_need(lvr_gguf_parser *p, uint64_t n);
lvr_status lvr_gguf_take(lvr_gguf_parser *p, void *ret, uint64_t n);
lvr_status lvr_gguf_take_u32(lvr_gguf_parser *p, uint32_t *ret);
lvr_status lvr_gguf_take_u64(lvr_gguf_parser *p, uint64_t *ret);
/* Skips a string; *ret_pos is where its bytes are. */
lvr_status lvr_gguf_take_str(lvr_gguf_parser *p, uint64_t max, uint64_t *ret_pos, uint64_t *ret_n);
/* A key or tensor name: printable ASCII, so that messages and listings cannot be made to lie. */
lvr_status lvr_gguf_take_name(lvr_gguf_parser *p, uint64_t max, char **ret);

const char *lvr_gguf_type_name(uint32_t type);
uint32_t lvr_gguf_type_bytes(uint32_t type); /* 0: of variable size, or not a type */
int lvr_gguf_compare_names(const void *a, const void *b);
/* Sorts the names for look-up and refuses a name that occurs twice. */
lvr_status lvr_gguf_sort_names(lvr_gguf_parser *p, lvr_gguf_named *names, uint64_t n, const char *what);
lvr_status lvr_gguf_take_metadata(lvr_gguf_parser *p, uint64_t n_keys);
/* Only once the header buffer has stopped moving: string arrays point into it. */
lvr_status lvr_gguf_decode_values(lvr_gguf_parser *p);
lvr_status lvr_gguf_take_tensors(lvr_gguf_parser *p, uint64_t n);
/* Turns relative offsets into file offsets, within the file unless skip_bounds. */
lvr_status lvr_gguf_place_tensors(lvr_gguf_parser *p, bool skip_bounds);

const lvr_gguf_entry *lvr_gguf_find_entry(const lvr_gguf *g, const char *key); /* NULL if absent */
/* The value as a signed and an unsigned integer; false if it is not an integer. */
bool lvr_gguf_integer(const lvr_gguf *g, uint32_t type, uint64_t pos, int64_t *ret_signed,
                      uint64_t *ret_unsigned);

/* As lvr_gguf_open_mem with bounds, but a part of a split model is let through. */
lvr_status lvr_gguf_open_part_mem(const char *name, const void *data, uint64_t n, lvr_gguf **ret,
                                  lvr_error *err);
/* Parts of the split model that this one says it belongs to; 1: not split. */
lvr_status lvr_gguf_split_count(const lvr_gguf *g, uint32_t *ret, lvr_error *err);
/* Joins parts[0..n), in order, to one model that reads from all of them. Takes all of them over, on failure
 * too. */
lvr_status lvr_gguf_join(lvr_gguf **parts, uint32_t n, lvr_gguf **ret, lvr_error *err);
/* Opens the other parts of the split model that `part` (opened from `path`) is one of, and joins them. Takes
 * `part` over, on failure too. */
lvr_status lvr_gguf_open_split(const char *path, lvr_gguf *part, uint32_t count, lvr_gguf **ret,
                               lvr_error *err);
/* One file, which may be a part of a split model. */
lvr_status lvr_gguf_open_one(const char *path, lvr_gguf **ret, lvr_error *err);

#endif
