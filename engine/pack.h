/*
 * The pack: one model in a layer-major file made for streaming. Version 1, little endian:
 *
 *     [0, 4 KiB)     header: magic "LVRPACK\0", versions, counts, offsets, model shape's source hash, CRC-32C
 * (pack.c) then           the source GGUF's header bytes, verbatim: hyperparameters and tokenizer are read by
 * the same parser then           section table and tensor table then, 4 KiB-aligned: the resident section
 * (token embeddings, output norm, head) then, 4 KiB-aligned: one section per layer, in order (what a pass
 * streams)
 *
 * Within a section, tensors are 64-byte aligned; matrices are in the packed layout of
 * engine/kernels/kernels.h (4-bit stays 4-bit), norms are plain f32 vectors (n_out 1, n_in = length). A
 * section's bytes are a multiple of 4 KiB and are covered by one CRC-32C. The layout is the same for every
 * SIMD level. Immutable after open: safe to share between threads.
 */
#ifndef LVR_ENGINE_PACK_H
#define LVR_ENGINE_PACK_H

#include "common/error.h"
#include "engine/gguf.h"
#include "engine/kernels/kernels.h"
#include <stdbool.h>
#include <stdint.h>

#define LVR_PACK_FILE_VERSION 1u
#define LVR_PACK_ALIGN 4096u /* sections: offsets and sizes (O_DIRECT) */
#define LVR_PACK_TENSOR_ALIGN 64u

typedef struct lvr_model_shape {
    char arch[32], name[128];
    uint32_t n_layers, d_model, n_heads, n_kv, head_dim, d_ff, vocab, n_ctx_train;
    float rms_eps, rope_base;
    bool tied; /* no output.weight: the head is the token embedding */
} lvr_model_shape;

/* Reads and validates the shape: the architecture is known, head counts divide, every tensor needed is there
 * with the right dimensions, and none is there that the forward pass would ignore. LVR_ERR_UNSUPPORTED names
 * what this version cannot do, LVR_ERR_FORMAT what contradicts itself. */
lvr_status lvr_model_shape_from_gguf(const lvr_gguf *g, lvr_model_shape *ret, lvr_error *err);

typedef enum lvr_role {
    LVR_ROLE_TOKEN_EMBD, /* resident section */
    LVR_ROLE_OUTPUT_NORM,
    LVR_ROLE_OUTPUT,    /* absent when tied */
    LVR_ROLE_ATTN_NORM, /* layer sections */
    LVR_ROLE_Q,
    LVR_ROLE_K,
    LVR_ROLE_V,
    LVR_ROLE_O,
    LVR_ROLE_FFN_NORM,
    LVR_ROLE_GATE,
    LVR_ROLE_UP,
    LVR_ROLE_DOWN,
    LVR_ROLE_COUNT
} lvr_role;
const char *lvr_role_name(lvr_role role); /* "attn_q", ...; NULL: not a role */

typedef struct lvr_pack_tensor {
    lvr_role role;
    lvr_wtype type;
    uint32_t n_out, n_in;
    uint64_t offset; /* from the start of its section */
    uint64_t bytes;
} lvr_pack_tensor;

typedef struct lvr_pack lvr_pack;

/* Packs the model open in `g`, one layer in memory at a time, into out_path (by a temporary file and a
 * rename). */
lvr_status lvr_pack_write(const lvr_gguf *g, const char gguf_sha256[LVR_SHA256_HEX_BYTES],
                          const char *out_path, lvr_error *err);

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
