/* How the first layer's feed-forward network carries the chain where head and embedding are one matrix. Not a
 * public header. */
#ifndef LVR_ENGINE_SYNTH_CARRY_H
#define LVR_ENGINE_SYNTH_CARRY_H

#include "engine/synth/recipe.h"

#define LVR_CARRY_CONSTANTS 32u /* inputs of value 1 in every embedding */
#define LVR_CARRY_UP 0.25f      /* weight of the one input that an up row reads */

/* Weight of the constants in a gate row, and of the carried value in a down row. */
float lvr_carry_gate_weight(const lvr_recipe *r);
float lvr_carry_down_weight(const lvr_recipe *r);
/* Root mean square of the residual stream after the last layer: everywhere, and where the head reads. */
void lvr_carry_final_rms(const lvr_recipe *r, float *ret_all, float *ret_read);

#endif
