/*
 * What a synthetic model consists of: its tensors, and how each row of each is made.
 *
 * Plain: uniform random matrices scaled so that activations stay near 1 and the standard deviation of logits
 * is LVR_SYNTH_LOGIT_STD, for every depth and width.
 *
 * Planted (chain.h): with u_t the head's row of token t, of length 1, the embedding of t is the sum of a_k *
 * u_s over its successors s, scaled to mean square 1, so that the head reads a_k off it. Every layer adds
 * random values to the residual stream: `noise` is their root mean square after the last layer. A successor's
 * logit then has noise of two kinds, in units of the layers': noise^2 from the layers and LVR_SYNTH_CROSSTALK
 * from the chance products u_s * u_r. clarity is the gap between successors' logits over the root of their
 * sum.
 *
 * Where head and embedding are one matrix, each row has a part u_t that the head reads (output_norm is zero
 * elsewhere) and a part v_t, the sum of the successors' u; the first layer's feed-forward network adds v to
 * u's place, besides its noise. 32 constant inputs open its gates for that.
 */
#ifndef LVR_ENGINE_SYNTH_RECIPE_H
#define LVR_ENGINE_SYNTH_RECIPE_H

#include "costmodel/core/cost.h"
#include "costmodel/core/shape_config.h"
#include "engine/kernels/kernels.h"
#include "engine/synth/chain.h"

#define LVR_SYNTH_LOGIT_STD 2.0f

typedef struct lvr_synth_planting {
    uint32_t n_successors;
    double agreement;     /* asked for; 0: `gap` was given */
    double gap;           /* relative spacing of a_k of a token of mean ease */
    double noise;         /* 0: the most that the width allows, up to 1 or what early_agreement needs */
    uint32_t early_layer; /* layers after which early_agreement is wanted; 0: noise is even over the layers */
    double early_agreement;
    double clarity, early_fraction; /* found by lvr_recipe_new */
} lvr_synth_planting;

typedef enum lvr_fill {
    LVR_FILL_UNIFORM, /* std, scales that differ by block */
    LVR_FILL_NORM,    /* near 1 */
    LVR_FILL_CONSTANT,
    LVR_FILL_OUTPUT_NORM,
    LVR_FILL_HEAD,
    LVR_FILL_EMBEDDING,
    LVR_FILL_CARRY_GATE, /* the first layer's feed-forward network where it carries the chain */
    LVR_FILL_CARRY_UP,
    LVR_FILL_CARRY_DOWN,
    LVR_FILL_ROPE_FREQS,
} lvr_fill;

typedef struct lvr_synth_tensor {
    char name[48];
    lvr_wtype type;
    uint32_t n_dims;
    uint64_t dims[2]; /* inputs, outputs; a vector has one output */
    lvr_fill fill;
    float value; /* standard deviation, or the constant */
    uint64_t key;
} lvr_synth_tensor;

typedef struct lvr_recipe {
    const lvr_shape *shape;
    uint64_t seed;
    bool planted;
    lvr_synth_planting planting;
    lvr_chain chain;
    uint32_t code_width;                                      /* inputs that u_t has */
    float reading[LVR_CHAIN_EASES][LVR_CHAIN_MAX_SUCCESSORS]; /* a_k by ease */
    float layer_rms[LVR_MAX_LAYERS];                          /* what each layer adds */
    uint64_t head_key, embd_key;
    lvr_synth_tensor *tensors;
    uint32_t n_tensors;
} lvr_recipe;

/* type: of matrices; embd_type: of embedding and head. planting NULL: plain. The shape and the vocabulary
 * outlive the recipe. LVR_ERR_CONFIG: what cannot be planted, or a type whose blocks do not fit. */
lvr_status lvr_recipe_new(const lvr_shape *shape, const lvr_synth_vocab *vocab, lvr_wtype type,
                          lvr_wtype embd_type, uint64_t seed, const lvr_synth_planting *planting,
                          lvr_recipe *ret, lvr_error *err);
void lvr_recipe_free(lvr_recipe *r);

/* Row `row` of a tensor: dst[dims[0]]. scratch: as many floats. Thread safe. */
void lvr_recipe_row(const lvr_recipe *r, const lvr_synth_tensor *t, uint64_t row, float *dst, float *scratch);

#endif
