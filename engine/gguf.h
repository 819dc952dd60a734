/*
 * GGUF reader, versions 2 and 3 (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). Everything in
 * the file is checked before it is used: counts, string lengths, types, dimensions, offsets, alignment and
 * the file's size. Little endian only. Immutable after open: safe to share between threads.
 */
#ifndef LVR_ENGINE_GGUF_H
#define LVR_ENGINE_GGUF_H

#include "common/buf.h"
#include "common/error.h"
#include "common/hash.h"
#include "engine/kernels/kernels.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct lvr_gguf lvr_gguf;

/* A boolean of ours: the weights are random (lever model synth), so whatever is measured with them says so.
 */
#define LVR_GGUF_SYNTHETIC "lever.synthetic"

typedef struct lvr_gguf_str {
    const char *s; /* not NUL-terminated in arrays: use n */
    uint64_t n;
} lvr_gguf_str;

typedef struct lvr_gguf_tensor {
    const char *name;
    uint32_t n_dims;
    uint64_t dims[4]; /* dims[0] is the contiguous one (inputs), dims[1] the rows (outputs); unused are 1 */
    lvr_wtype type;
    uint64_t offset; /* in the file; of a split model: in the file that its parts joined would make */
    uint64_t bytes;
} lvr_gguf_tensor;

/* A model split into parts (X-00001-of-0000N.gguf, keys split.*) is opened by any of them: all parts are
 * opened, checked against each other, and read as one file whose metadata is the first part's, without
 * split.*. */
lvr_status lvr_gguf_open(const char *path, lvr_gguf **ret, lvr_error *err);
/* Parses a GGUF header held in memory (fuzzing; the header inside a pack). file_bytes bounds tensor data;
 * skip_tensor_bounds: the tensors' data is elsewhere. The bytes are copied. */
lvr_status lvr_gguf_open_mem(const char *name, const void *data, uint64_t n, uint64_t file_bytes,
                             bool skip_tensor_bounds, lvr_gguf **ret, lvr_error *err);
void lvr_gguf_free(lvr_gguf *g);
const char *lvr_gguf_path(const lvr_gguf *g);
/* The raw header bytes [0, n) that precede tensor data (meta data and tensor table). */
const void *lvr_gguf_header(const lvr_gguf *g, uint64_t *ret_n);
uint64_t lvr_gguf_file_bytes(const lvr_gguf *g); /* of all parts */
uint32_t lvr_gguf_n_parts(const lvr_gguf *g);    /* at least 1 */
const char *lvr_gguf_part_path(const lvr_gguf *g, uint32_t i);
uint64_t lvr_gguf_part_bytes(const lvr_gguf *g, uint32_t i);
int lvr_gguf_part_fd(const lvr_gguf *g, uint32_t i); /* owned by g, to read by pread; -1: from memory */
uint32_t lvr_gguf_alignment(const lvr_gguf *g);

/* Required keys: absent or of another type is LVR_ERR_FORMAT naming key, expected and found type. */
lvr_status lvr_gguf_u32(const lvr_gguf *g, const char *key, uint32_t *ret,
                        lvr_error *err); /* any integer type that fits */
lvr_status lvr_gguf_f32(const lvr_gguf *g, const char *key, float *ret, lvr_error *err);
lvr_status lvr_gguf_str_(const lvr_gguf *g, const char *key, const char **ret,
                         lvr_error *err); /* NUL-terminated copy */
bool lvr_gguf_has(const lvr_gguf *g, const char *key);
bool lvr_gguf_bool_or(const lvr_gguf *g, const char *key,
                      bool fallback); /* absent or not a boolean: fallback */
/* A key that is there but is no boolean is LVR_ERR_FORMAT. */
lvr_status lvr_gguf_check_bool(const lvr_gguf *g, const char *key, lvr_error *err);
lvr_status lvr_gguf_str_array(const lvr_gguf *g, const char *key, const lvr_gguf_str **ret, uint64_t *ret_n,
                              lvr_error *err);
lvr_status lvr_gguf_f32_array(const lvr_gguf *g, const char *key, const float **ret, uint64_t *ret_n,
                              lvr_error *err);
/* Elements of type i32, or u32 if all fit. */
lvr_status lvr_gguf_i32_array(const lvr_gguf *g, const char *key, const int32_t **ret, uint64_t *ret_n,
                              lvr_error *err);

uint64_t lvr_gguf_n_tensors(const lvr_gguf *g);
const lvr_gguf_tensor *lvr_gguf_tensor_at(const lvr_gguf *g, uint64_t i);
const lvr_gguf_tensor *lvr_gguf_find(const lvr_gguf *g, const char *name); /* NULL if absent */
/* Reads the tensor's raw data (t->bytes) from the file into dst. */
lvr_status lvr_gguf_read(const lvr_gguf *g, const lvr_gguf_tensor *t, void *dst, lvr_error *err);
/* Reads bytes [begin, begin + n) of the tensor's data. */
lvr_status lvr_gguf_read_range(const lvr_gguf *g, const lvr_gguf_tensor *t, uint64_t begin, uint64_t n,
                               void *dst, lvr_error *err);

/* Listing: keys in file order, and a value as text for people (long strings and arrays are shortened; control
 * characters are replaced). */
uint64_t lvr_gguf_n_keys(const lvr_gguf *g);
const char *lvr_gguf_key_at(const lvr_gguf *g, uint64_t i);
void lvr_gguf_value_text(const lvr_gguf *g, uint64_t i, lvr_buf *out);

/* Opens a regular file for reading, whatever else is at `path` is LVR_ERR_IO (a FIFO must fail, not wait for
 * a writer); `what` names in messages what was expected. */
lvr_status lvr_open_regular(const char *path, const char *what, int *ret_fd, uint64_t *ret_bytes,
                            lvr_error *err);

#endif
