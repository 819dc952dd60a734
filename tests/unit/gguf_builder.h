/*
 * Builds small GGUF files for tests: a byte-level builder (any key, any tensor, also wrong ones) and whole
 * tiny models with random weights.
 */
#ifndef LVR_TESTS_GGUF_BUILDER_H
#define LVR_TESTS_GGUF_BUILDER_H

#include "common/buf.h"
#include "common/error.h"
#include "engine/kernels/kernels.h"
#include <stdbool.h>
#include <stdint.h>

/* A tiny model. Zero means the default in brackets. */
struct gguf_tiny {
    const char *arch;    /* ["llama"], "qwen2" (with biases of q, k, v) or "qwen3" (with norms of q, k) */
    uint32_t head_dim;   /* [d_model / n_heads]; with a value, the file states it as key_length */
    uint32_t vocab;      /* [300]: <unk> <s> </s>, 256 byte tokens, then printable pieces; at least 259 */
    uint32_t n_layers;   /* [2] */
    uint32_t d_model;    /* [64] */
    uint32_t n_heads;    /* [4] */
    uint32_t n_kv;       /* [2] */
    uint32_t d_ff;       /* [96] */
    uint32_t n_ctx;      /* [256] */
    bool f16_norms;      /* norms are F16 instead of F32 */
    lvr_wtype type;      /* of matrices and embeddings; see f16_norms for the norms and biases */
    lvr_wtype v_type;    /* of attn_v and ffn_down; 0: as type */
    lvr_wtype head_type; /* of output.weight, or token_embd.weight if tied; 0: as type */
    bool biases;         /* llama: biases of q, k, v and the attention's output */
    bool rope_freqs;     /* a rope_freqs.weight tensor */
    float rope_factor;   /* linear RoPE scaling; 0: none stated */
    float rope_base;     /* [10000] */
    uint64_t seed;
    bool tied;   /* no output.weight */
    float scale; /* [1]: multiplies the head's (tied: the embedding's) weights: larger is more peaked */
    bool duplicate_head_rows; /* head row 2i+1 equals row 2i: exact logit ties everywhere */
    const char *extra_key;    /* one more metadata key, NULL: none */
    const char *extra_str;    /* its value; NULL: extra_u32 */
    uint32_t extra_u32;
};

/* Weights are random normal numbers for types that a line of code quantises to (F32, F16, BF16, Q8_0, Q4_0),
 * and random codes of the same variance for the others. */
lvr_status gguf_build_tiny(const char *path, const struct gguf_tiny *spec, lvr_error *err);
/* The same bytes in memory. */
lvr_status gguf_build_tiny_mem(const struct gguf_tiny *spec, lvr_buf *out, lvr_error *err);

/* Byte-level pieces; everything appends to a lvr_buf. Value types are GGUF's numbers. */
enum gguf_vtype {
    GGUF_U8 = 0,
    GGUF_I8 = 1,
    GGUF_U16 = 2,
    GGUF_I16 = 3,
    GGUF_U32 = 4,
    GGUF_I32 = 5,
    GGUF_F32 = 6,
    GGUF_BOOL = 7,
    GGUF_STR = 8,
    GGUF_ARR = 9,
    GGUF_U64 = 10,
    GGUF_I64 = 11,
    GGUF_F64 = 12
};
void gguf_put_u32(lvr_buf *b, uint32_t v);
void gguf_put_u64(lvr_buf *b, uint64_t v);
void gguf_put_str(lvr_buf *b, const char *s);
void gguf_put_head(lvr_buf *b, uint64_t n_tensors, uint64_t n_kv); /* magic, version 3, counts */
void gguf_put_kv_u32(lvr_buf *b, const char *key, uint32_t v);
void gguf_put_kv_f32(lvr_buf *b, const char *key, float v);
void gguf_put_kv_str(lvr_buf *b, const char *key, const char *v);
void gguf_put_kv_bool(lvr_buf *b, const char *key, bool v);
void gguf_put_kv_arr(lvr_buf *b, const char *key, uint32_t elem_type, uint64_t n); /* elements follow */
void gguf_put_tensor(lvr_buf *b, const char *name, uint32_t n_dims, const uint64_t *dims, uint32_t type,
                     uint64_t offset);
void gguf_pad(lvr_buf *b, uint64_t align);

#endif
