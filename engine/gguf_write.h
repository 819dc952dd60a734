/*
 * GGUF v3 writer (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), little endian. Keys and tensors
 * are announced first; then the header is written and the tensors' data goes to its place in any order, also
 * from several threads. The file has a temporary name beside its own until it is complete.
 */
#ifndef LVR_ENGINE_GGUF_WRITE_H
#define LVR_ENGINE_GGUF_WRITE_H

#include "common/error.h"
#include "engine/gguf.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct lvr_gguf_writer lvr_gguf_writer;

/* Replaces nothing and creates nothing yet. NULL: out of memory. */
lvr_gguf_writer *lvr_gguf_writer_new(const char *path);
/* Removes the temporary file of a writer that was not finished. */
void lvr_gguf_writer_free(lvr_gguf_writer *w);

/* Keys, in the order of the file. Want of memory is reported by lvr_gguf_writer_open. */
void lvr_gguf_write_u32(lvr_gguf_writer *w, const char *key, uint32_t v);
void lvr_gguf_write_u64(lvr_gguf_writer *w, const char *key, uint64_t v);
void lvr_gguf_write_f32(lvr_gguf_writer *w, const char *key, float v);
void lvr_gguf_write_bool(lvr_gguf_writer *w, const char *key, bool v);
void lvr_gguf_write_str(lvr_gguf_writer *w, const char *key, const char *v);
void lvr_gguf_write_strs(lvr_gguf_writer *w, const char *key, const lvr_gguf_str *v, uint64_t n);
void lvr_gguf_write_i32s(lvr_gguf_writer *w, const char *key, const int32_t *v, uint64_t n);
void lvr_gguf_write_f32s(lvr_gguf_writer *w, const char *key, const float *v, uint64_t n);

/* One more tensor; dims[0] is the contiguous one. Returns its number: 0, 1, ... The name is copied. */
uint32_t lvr_gguf_write_tensor(lvr_gguf_writer *w, const char *name, lvr_wtype type, uint32_t n_dims,
                               const uint64_t *dims);

/* Bytes of the whole file, header and padding included, once everything is announced. */
uint64_t lvr_gguf_writer_bytes(const lvr_gguf_writer *w);
/* Creates the temporary file, checks that the device has the space, and writes the header. What is at `path`
 * must be a regular file or nothing. */
lvr_status lvr_gguf_writer_open(lvr_gguf_writer *w, lvr_error *err);
/* Writes n bytes at byte `begin` of a tensor's data. Thread safe. */
lvr_status lvr_gguf_writer_put(const lvr_gguf_writer *w, uint32_t tensor, uint64_t begin, const void *data,
                               uint64_t n, lvr_error *err);
/* Makes the file durable and gives it its name. */
lvr_status lvr_gguf_writer_finish(lvr_gguf_writer *w, lvr_error *err);

#endif
