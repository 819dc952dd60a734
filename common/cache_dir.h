/* Where the program keeps what it can make again: packed models, calibrations. */
#ifndef LVR_COMMON_CACHE_DIR_H
#define LVR_COMMON_CACHE_DIR_H

#include "common/error.h"

/* $LVR_CACHE_DIR, else $XDG_CACHE_HOME/lever, else ~/.cache/lever; malloc'ed. It may not exist yet. None of
 * them set: LVR_ERR_CONFIG. Reads the environment: not safe beside setenv. */
lvr_status lvr_cache_dir(char **ret, lvr_error *err);

#endif
