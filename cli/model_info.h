/* What `lever model info` prints of a GGUF (also a split one) or a pack. */
#ifndef LVR_CLI_MODEL_INFO_H
#define LVR_CLI_MODEL_INFO_H

#include "common/error.h"
#include <stdbool.h>

lvr_status lvr_model_info_emit(const char *path, bool json, lvr_error *err);

#endif
