/* Finds NAME.yaml of one kind ("models", "acceptance") where lever's configuration lies: $LVR_CONFIG_DIR, or
 * the source tree this program was built from, or where it was installed. */
#ifndef LVR_SIM_CONFIG_PATH_H
#define LVR_SIM_CONFIG_PATH_H

#include "common/buf.h"
#include "common/error.h"

/* What has a slash, ends in .yaml or .json, or is a file here, is taken as a path. Unknown names:
 * LVR_ERR_CONFIG with the names there are. */
lvr_status lvr_sim_config_path(const char *kind, const char *name, lvr_buf *ret_path, lvr_error *err);

#endif
