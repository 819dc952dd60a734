/*
 * The flash device as both hosts price it: `depth` lanes, each busy for t0 + bytes / lane rate, behind one
 * shared link of a maximal rate:  X(L, s) = min(L * s / (t0 + s / lane), max).  The engine's flash emulation
 * and the simulator's flash resource call this one function. Form and phone numbers: configs/devices (fit of
 * public O_DIRECT sweeps). Pure: no clock is read.
 */
#ifndef LVR_CORE_FLASH_MODEL_H
#define LVR_CORE_FLASH_MODEL_H

#include "common/yaml.h"
#include <stdint.h>

#define LVR_FLASH_MAX_DEPTH 64u

typedef struct lvr_flash_params {
    uint64_t t0_ns;            /* fixed latency of a request */
    uint64_t lane_bytes_per_s; /* one request alone, after t0 */
    uint64_t max_bytes_per_s;  /* all lanes together */
    uint32_t depth;            /* requests served at once, 1..LVR_FLASH_MAX_DEPTH */
} lvr_flash_params;

typedef struct lvr_flash_state {
    uint64_t lane_free_ns[LVR_FLASH_MAX_DEPTH];
    uint64_t link_free_ns;
} lvr_flash_state;

typedef struct lvr_flash_times {
    uint64_t start_ns, end_ns;
} lvr_flash_times;

/* Times of a request submitted at now_ns, in submission order (now_ns must not decrease). Updates the state,
 * which starts as all zeros. Start times never decrease from one request to the next; end times may. */
lvr_flash_times lvr_flash_admit(lvr_flash_state *state, const lvr_flash_params *params, uint64_t now_ns,
                                uint64_t bytes);
/* Steady-state rate for back-to-back requests of this size at this depth. */
double lvr_flash_rate_bytes_per_s(const lvr_flash_params *params, uint64_t bytes);
/* LVR_ERR_CONFIG for a value out of range or a contradiction (a lane faster than all lanes together). The
 * functions above and below expect params that passed. */
lvr_status lvr_flash_params_check(const lvr_flash_params *params, lvr_error *err);
/* The same device slower by a factor, all ratios kept: rates * scale, t0 / scale, so that the rate at any
 * size and depth is multiplied by `scale`, 0 < scale <= 1. On failure *params is untouched. */
lvr_status lvr_flash_params_scale(lvr_flash_params *params, double scale, lvr_error *err);
lvr_status lvr_flash_params_from_yaml(const lvr_yaml_node *map, lvr_flash_params *ret, lvr_error *err);
void lvr_flash_params_to_yaml(const lvr_flash_params *params, lvr_yaml_out *y);

#endif
