/*
 * Rows of floats to rows of a GGUF weight type, by ggml's block layouts: round to nearest with the block's
 * scale from its extremes. Simple and fast; llama-quantize searches for better scales in the K types.
 */
#ifndef LVR_ENGINE_SYNTH_QUANTIZE_H
#define LVR_ENGINE_SYNTH_QUANTIZE_H

#include "engine/kernels/kernels.h"

/* Writes lvr_wtype_row_bytes(t, n) bytes, which must not be 0. Values are finite. */
void lvr_quantize_row(lvr_wtype t, const float *x, uint32_t n, uint8_t *dst);

#endif
