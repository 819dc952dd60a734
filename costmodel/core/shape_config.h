/*
 * Shapes of models (configs/models/NAME.yaml, schema lever-shape/1): the sizes that a cost model needs and,
 * where the file gives them, the constants that a model file needs. Published numbers, each file names its
 * source.
 */
#ifndef LVR_COSTMODEL_CORE_SHAPE_CONFIG_H
#define LVR_COSTMODEL_CORE_SHAPE_CONFIG_H

#include "common/error.h"
#include <stdbool.h>
#include <stdint.h>

/* Llama 3's way of stretching RoPE: slow frequencies are divided by `factor`, fast ones kept, those between
 * blended. */
typedef struct lvr_rope_llama3 {
    double factor, low_freq_factor, high_freq_factor;
    uint32_t original_n_ctx;
} lvr_rope_llama3;

typedef struct lvr_shape {
    char name[128];
    uint32_t n_layers, d_model, n_heads, n_kv, head_dim, d_ff, vocab;
    bool tied;
    char type[8]; /* of matrices, as GGUF names it, in lower case */
    double bits;  /* of a weight, with its share of the block's scale */

    /* From here on only if arch is not empty. */
    char arch[16]; /* "llama", "qwen2", "qwen3": GGUF's general.architecture */
    uint32_t n_ctx;
    double rms_eps, rope_base;
    bool qkv_bias, qk_norm;
    bool has_rope_llama3;
    lvr_rope_llama3 rope_llama3;
} lvr_shape;

/* LVR_ERR_CONFIG with a position for what is missing, unknown or out of range. */
lvr_status lvr_shape_load_file(const char *path, lvr_shape *ret, lvr_error *err);

#endif
