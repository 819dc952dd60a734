/* lever model plan: a row of `lever model`'s table. */
#ifndef LVR_CLI_MODEL_PLAN_H
#define LVR_CLI_MODEL_PLAN_H

#include "common/error.h"

lvr_status lvr_model_plan_cmd(int argc, char *const *argv, lvr_error *err);

#endif
