/*
 * What a model is: its architecture's tensors ("roles") and sizes, from a GGUF's metadata. Architectures:
 * llama, qwen2 and qwen3 (dense), by one table in model_shape.c. Pure functions of an open GGUF: thread safe.
 */
#ifndef LVR_ENGINE_MODEL_SHAPE_H
#define LVR_ENGINE_MODEL_SHAPE_H

#include "common/error.h"
#include "engine/gguf.h"
#include <stdbool.h>
#include <stdint.h>

typedef enum lvr_role {
    LVR_ROLE_TOKEN_EMBD, /* once a model */
    LVR_ROLE_OUTPUT_NORM,
    LVR_ROLE_OUTPUT,     /* absent when tied */
    LVR_ROLE_ROPE_FREQS, /* [head_dim / 2], optional: RoPE's frequencies are divided by them */
    LVR_ROLE_ATTN_NORM,  /* from here on: once a layer */
    LVR_ROLE_Q,
    LVR_ROLE_K,
    LVR_ROLE_V,
    LVR_ROLE_O,
    LVR_ROLE_Q_BIAS, /* biases and the norms of heads: as the architecture has them */
    LVR_ROLE_K_BIAS,
    LVR_ROLE_V_BIAS,
    LVR_ROLE_O_BIAS,
    LVR_ROLE_Q_NORM, /* [head_dim], for all heads */
    LVR_ROLE_K_NORM,
    LVR_ROLE_FFN_NORM,
    LVR_ROLE_GATE,
    LVR_ROLE_UP,
    LVR_ROLE_DOWN,
    LVR_ROLE_COUNT
} lvr_role;
#define LVR_FIRST_LAYER_ROLE LVR_ROLE_ATTN_NORM

typedef struct lvr_model_shape {
    char arch[32], name[128];
    uint32_t n_layers, d_model, n_heads, n_kv, head_dim, d_ff, vocab, n_ctx_train;
    float rms_eps, rope_base;
    float rope_factor; /* positions are divided by it: linear RoPE scaling; 1: none */
    bool rope_neox;    /* the file rotates pairs (i, i + head_dim / 2), not (2i, 2i + 1) */
    bool tied;         /* no output.weight: the head is the token embedding */
    uint32_t roles;    /* bit r: the model has tensors of role r, in every layer */
} lvr_model_shape;

/* Reads and validates the shape: the architecture is known, head counts divide, every tensor needed is there
 * with the right dimensions, and none is there that the forward pass would ignore. LVR_ERR_UNSUPPORTED names
 * what this version cannot do, LVR_ERR_FORMAT what contradicts itself. */
lvr_status lvr_model_shape_from_gguf(const lvr_gguf *g, lvr_model_shape *ret, lvr_error *err);

bool lvr_shape_has(const lvr_model_shape *s, lvr_role role);

/* "attn_q.weight", "attn_q.bias", ...: GGUF's name without "blk.N."; NULL: not a role. */
const char *lvr_role_name(lvr_role role);
#define LVR_TENSOR_NAME_BYTES 64u
/* GGUF's name; `layer` matters to the roles of layers. */
void lvr_role_tensor_name(lvr_role role, uint32_t layer, char name[LVR_TENSOR_NAME_BYTES]);
/* A vector (n_out 1), kept as f32, or a matrix. */
bool lvr_role_is_vector(lvr_role role);
void lvr_role_dims(const lvr_model_shape *s, lvr_role role, uint32_t *ret_n_out, uint32_t *ret_n_in);

#endif
