/* What a session decides before anything is loaded: context, rows of a prompt pass, how flash is read, which
 * layers stay, where they run, and whether all of it fits. */
#ifndef LVR_ENGINE_SESSION_PLAN_H
#define LVR_ENGINE_SESSION_PLAN_H

#include "engine/session.h"

/* Sets what the configuration leaves open (0): slice_bytes, depth and ring_slots. calibrated: of the device
 * that is read; NULL: not known. True: slice_bytes or depth is as calibrated, which takes a measurement of
 * what is given, with the engine that is asked for. */
bool lvr_session_fill_in(lvr_session_config *c, const lvr_flash_calibration *calibrated);
/* Plans a session whose pair is open: s->config (what was left open), n_ctx, geometry, parts and budget.
 * config: as given, with its geometry. LVR_ERR_BUDGET if the budget, or what the machine or the container has
 * left, is too small. */
lvr_status lvr_session_plan(lvr_session *s, const lvr_session_config *config, lvr_pair_sizes *ret_sizes,
                            lvr_error *err);

#endif
