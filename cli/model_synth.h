/* lever model synth: a row of `lever model`'s table. */
#ifndef LVR_CLI_MODEL_SYNTH_H
#define LVR_CLI_MODEL_SYNTH_H

#include "common/error.h"

lvr_status lvr_model_synth_cmd(int argc, char *const *argv, lvr_error *err);

#endif
