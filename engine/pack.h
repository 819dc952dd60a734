/*
 * The pack: one model in a layer-major file made for streaming. Version 2, little endian:
 *
 *     [0, 4 KiB)  header: magic "LVRPACK\0", versions, counts, offsets, the source's SHA-256, CRC-32C
 *                 (pack_internal.h)
 *     then        the source GGUF's header bytes, verbatim (of a split model: the header that the unsplit
 * file would have): hyperparameters and tokenizer are read by the same parser then        section table and
 * tensor table then, 4 KiB-aligned: the resident section (token embeddings, output norm, head, RoPE's
 * frequency factors) then, 4 KiB-aligned: one section per layer, in order (what a pass streams)
 *
 * Within a section, tensors are 64-byte aligned; matrices are in the packed layout of
 * engine/kernels/kernels.h (4-bit stays 4-bit), norms and biases are plain f32 vectors (n_out 1, n_in =
 * length). Rows of queries and keys (weights, biases, norms) of architectures that rotate pairs
 * (i, i + head_dim / 2) are reordered within each head so that the kernels' interleaved pairs (2i, 2i + 1)
 * are the same ones: scores are sums over a head, so the order does not matter to them. A section's bytes are
 * a multiple of 4 KiB and are covered by one CRC-32C. The layout is the same for every SIMD level. Immutable
 * after open: safe to share between threads.
 */
#ifndef LVR_ENGINE_PACK_H
#define LVR_ENGINE_PACK_H

#include "common/error.h"
#include "engine/gguf.h"
#include "engine/kernels/kernels.h"
#include "engine/model_shape.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define LVR_PACK_FILE_VERSION 2u
#define LVR_PACK_ALIGN 4096u /* sections: offsets and sizes (O_DIRECT) */
#define LVR_PACK_TENSOR_ALIGN 64u

typedef struct lvr_pack_tensor {
    lvr_role role;
    lvr_wtype type;
    uint32_t n_out, n_in;
    uint64_t offset; /* from the start of its section */
    uint64_t bytes;
} lvr_pack_tensor;

typedef struct lvr_pack lvr_pack;

/* How to pack; all zero is fine, and so is NULL instead of it. */
typedef struct lvr_pack_options {
    uint32_t n_threads; /* 0: as many as there are processors, at most 8 */
    const atomic_bool
        *cancel; /* once true, packing ends with LVR_ERR_INTERRUPTED and leaves nothing behind */
    /* Called from the packing thread some times a second at most, and at the end of each stage ("hashing",
     * "packing"). NULL: a line every 10 % of large models goes to lvr_log. */
    void (*progress)(const char *stage, uint64_t done_bytes, uint64_t total_bytes, void *user);
    void *user;
    bool needs_tokenizer; /* a model whose tokenizer cannot be used is refused before any work */
} lvr_pack_options;

/* Packs the model open in `g`, a few groups of outputs in memory at a time (below 16 MiB a thread), into
 * out_path (by a temporary file and a rename). gguf_sha256: of the GGUF file; of a split model: of its parts'
 * bytes, one after the other. */
lvr_status lvr_pack_write(const lvr_gguf *g, const char gguf_sha256[LVR_SHA256_HEX_BYTES],
                          const char *out_path, const lvr_pack_options *options, lvr_error *err);

/* Sizes that a pack of the model has: its resident section, and its layers together. */
lvr_status lvr_pack_sizes(const lvr_gguf *g, uint64_t *ret_resident_bytes, uint64_t *ret_layers_bytes,
                          lvr_error *err);

/* Opens a pack and validates everything but the weights' checksums (lvr_pack_verify). */
lvr_status lvr_pack_open(const char *path, lvr_pack **ret, lvr_error *err);
void lvr_pack_free(lvr_pack *p);
/* Whether a regular file at `path` starts with a pack's magic. */
bool lvr_pack_is_pack(const char *path);
/* Reads every section and compares its checksum: LVR_ERR_FORMAT names the first section that differs. */
lvr_status lvr_pack_verify(const lvr_pack *p, lvr_error *err);

const char *lvr_pack_path(const lvr_pack *p);
const char *lvr_pack_source_sha256(const lvr_pack *p); /* of the GGUF it was made from, 64 hex digits */
uint64_t lvr_pack_file_bytes(const lvr_pack *p);
const lvr_gguf *lvr_pack_gguf(const lvr_pack *p); /* metadata only: lvr_gguf_read on it fails */
const lvr_model_shape *lvr_pack_shape(const lvr_pack *p);

/* A layer's section in the file: offset and bytes are multiples of LVR_PACK_ALIGN. layer < shape.n_layers. */
uint64_t lvr_pack_layer_offset(const lvr_pack *p, uint32_t layer);
uint64_t lvr_pack_layer_bytes(const lvr_pack *p, uint32_t layer);
uint32_t lvr_pack_layer_crc(const lvr_pack *p, uint32_t layer); /* lvr_crc32c(0, section, bytes) */
const lvr_pack_tensor *lvr_pack_layer_tensor(const lvr_pack *p, uint32_t layer,
                                             lvr_role role); /* NULL: no such tensor */

uint64_t lvr_pack_resident_offset(const lvr_pack *p);
uint64_t lvr_pack_resident_bytes(const lvr_pack *p);
uint32_t lvr_pack_resident_crc(const lvr_pack *p);
const lvr_pack_tensor *lvr_pack_resident_tensor(const lvr_pack *p, lvr_role role); /* NULL: absent */

#endif
