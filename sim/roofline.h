/*
 * A cost model without any trace: operator times from the device preset's rooflines and the models' shapes.
 * Marked synthetic. time = launch + max(bytes read / DRAM rate, operations / rate) where a layer reads its
 * weights once for all rows, and attention costs each row its operations over the cached positions.
 */
#ifndef LVR_SIM_ROOFLINE_H
#define LVR_SIM_ROOFLINE_H

#include "costmodel/core/device_preset.h"
#include "costmodel/core/shape_config.h"
#include "costmodel/fit/fit.h"

/* A name in configs/models, or a path. */
lvr_status lvr_shape_load(const char *name_or_path, lvr_shape *ret, lvr_error *err);
uint64_t lvr_shape_layer_weights(const lvr_shape *s); /* parameters of one layer's matrices */
uint64_t lvr_shape_layer_bytes(const lvr_shape *s);   /* as packed: rounded up to 4 KiB */
uint64_t lvr_shape_head_bytes(const lvr_shape *s);

/* draft: NULL if the policy uses none. The preset needs flash and compute. */
lvr_status lvr_cost_model_synthesize(const lvr_device_preset *device, const lvr_shape *target,
                                     const lvr_shape *draft, lvr_cost_model *ret, lvr_error *err);

#endif
