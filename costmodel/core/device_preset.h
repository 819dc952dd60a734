/*
 * Device descriptions (configs/devices/NAME.yaml): what the engine's emulation and the simulator take a
 * device to be. name: oneplus15r description: one line for people flash: {t0_ns, lane_bytes_per_s,
 * max_bytes_per_s, depth}     (lvr_flash_params) cost: {...} (lvr_cost_table; its flash must be the same)
 *     compute: {dram_bytes_per_s, ops_per_s, launch_ns}            (lvr_compute_params: rooflines where no
 * trace is at hand) At least one of flash and cost is there. Unknown keys are errors.
 */
#ifndef LVR_CORE_DEVICE_PRESET_H
#define LVR_CORE_DEVICE_PRESET_H

#include "costmodel/core/cost.h"

#define LVR_DEVICE_NAME_BYTES 64
#define LVR_DEVICE_DESCRIPTION_BYTES 256

/* An operator takes launch + max(bytes read / DRAM rate, operations / rate); a multiplication and its
 * addition are two operations. */
typedef struct lvr_compute_params {
    uint64_t dram_bytes_per_s, ops_per_s, launch_ns;
} lvr_compute_params;

typedef struct lvr_device_preset {
    char name[LVR_DEVICE_NAME_BYTES];
    char description[LVR_DEVICE_DESCRIPTION_BYTES];
    bool has_flash;
    lvr_flash_params flash;
    bool has_cost;
    lvr_cost_table cost;
    bool has_compute;
    lvr_compute_params compute;
} lvr_device_preset;

/* A bare name is looked for as NAME.yaml in $LVR_CONFIG_DIR/devices, or, where that variable is not set, in
 * the source tree this program was built from and then where it was installed. What has a slash, ends in
 * .yaml or is not found there is a path. Unknown names: LVR_ERR_CONFIG with the names there are. */
lvr_status lvr_device_load(const char *name_or_path, lvr_device_preset *ret, lvr_error *err);
/* `name` stands for the file name in messages. */
lvr_status lvr_device_load_mem(const char *name, const char *text, size_t n, lvr_device_preset *ret,
                               lvr_error *err);

#endif
