/* The flash device as a simulated resource: the arithmetic is lvr_flash_admit (costmodel/core), shared with
 * the engine's emulation; here only the accounting is added. */
#ifndef LVR_SIM_RESOURCES_FLASH_H
#define LVR_SIM_RESOURCES_FLASH_H

#include "costmodel/core/flash_model.h"

typedef struct lvr_flash_resource {
    lvr_flash_params params;
    lvr_flash_state state;
    uint64_t busy_until_ns;
    uint64_t busy_ns; /* at least one read submitted and not ended */
    uint64_t reads, bytes;
} lvr_flash_resource;

void lvr_flash_resource_init(lvr_flash_resource *f, const lvr_flash_params *params);
/* now_ns must not decrease. */
lvr_flash_times lvr_flash_resource_submit(lvr_flash_resource *f, uint64_t now_ns, uint64_t bytes);

#endif
