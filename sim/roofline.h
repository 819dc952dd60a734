/*
 * A cost model without any trace: operator times from the device preset's rooflines and the models' shapes.
 * Marked synthetic. time = launch + max(bytes read / DRAM rate, operations / rate) where a layer reads its
 * weights once for all rows, and attention costs each row its operations over the cached positions.
 */
#ifndef LVR_SIM_ROOFLINE_H
#define LVR_SIM_ROOFLINE_H

#include "costmodel/core/device_preset.h"
#include "costmodel/fit/fit.h"

/* configs/models/NAME.yaml */
typedef struct lvr_shape {
    char name[128];
    uint32_t n_layers, d_model, n_heads, n_kv, head_dim, d_ff, vocab;
    bool tied;
    char type[8];
    double bits; /* of a weight, with its share of the block's scale */
} lvr_shape;

lvr_status lvr_shape_load(const char *name_or_path, lvr_shape *ret, lvr_error *err);
uint64_t lvr_shape_layer_weights(const lvr_shape *s); /* parameters of one layer's matrices */
uint64_t lvr_shape_layer_bytes(const lvr_shape *s);   /* as packed: rounded up to 4 KiB */
uint64_t lvr_shape_head_bytes(const lvr_shape *s);

/* draft: NULL if the policy uses none. The preset needs flash and compute. */
lvr_status lvr_cost_model_synthesize(const lvr_device_preset *device, const lvr_shape *target,
                                     const lvr_shape *draft, lvr_cost_model *ret, lvr_error *err);

#endif
