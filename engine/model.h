/*
 * A model's weights in DRAM (draft: all of them; target: embeddings, norms, head and the resident layers) and
 * where the rest lies in its pack. Immutable after open: safe to share between threads.
 */
#ifndef LVR_ENGINE_MODEL_H
#define LVR_ENGINE_MODEL_H

#include "engine/kernels/kernels.h"
#include "engine/pack.h"
#include "engine/watch.h"

typedef struct lvr_layer_weights {
    const float *attn_norm, *ffn_norm; /* [d_model] */
    lvr_matrix q, k, v,
        o; /* q: n_heads*head_dim x d_model, k, v: n_kv*head_dim x d_model, o: d_model x n_heads*head_dim */
    const float *q_bias, *k_bias, *v_bias, *o_bias; /* NULL: none; as the products' outputs */
    const float *q_norm, *k_norm;                   /* [head_dim], NULL: none */
    lvr_matrix gate, up, down;                      /* gate, up: d_ff x d_model, down: d_model x d_ff */
} lvr_layer_weights;

typedef struct lvr_model {
    lvr_pack *pack; /* owned */
    const lvr_model_shape *shape;
    lvr_matrix embd, head; /* head == embd when tied */
    const float *out_norm;
    const float *rope_freqs; /* [head_dim / 2]: RoPE's frequencies are divided by them; NULL: none */
    uint8_t *resident_data;  /* embeddings, norm, head */
    uint8_t **layer_data;    /* [n_layers], NULL where streamed */
    uint64_t resident_bytes; /* all of the above */
} lvr_model;

/* `path`: a GGUF (packed through the cache) or a pack. resident[n_layers]: which layers to load; NULL: all.
 */
lvr_status lvr_model_open(const char *path, const bool *resident, lvr_model **ret, lvr_error *err);
/* As lvr_model_open, from an open pack, which it takes over (freed on failure too). watch (NULL: nobody): the
 * stage "loading", in bytes. */
lvr_status lvr_model_from_pack(lvr_pack *pack, const bool *resident, const lvr_watch *watch, lvr_model **ret,
                               lvr_error *err);
void lvr_model_free(lvr_model *m);
/* Views into a layer's bytes: `base` is a staged copy of the layer, or NULL for a resident one. */
void lvr_model_layer(const lvr_model *m, uint32_t layer, const uint8_t *base, lvr_layer_weights *ret);

#endif
