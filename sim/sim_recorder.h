/* Writes a simulated run as a timing trace with the streams and meanings of a recorded one, so that the same
 * tools read both. Every function does nothing without a recorder. */
#ifndef LVR_SIM_SIM_RECORDER_H
#define LVR_SIM_SIM_RECORDER_H

#include "costmodel/core/round.h"
#include "sim/device.h"
#include "traces/trace.h"

typedef struct lvr_sim_recorder lvr_sim_recorder;

/* *ret is NULL if writer is NULL. */
lvr_status lvr_sim_recorder_new(lvr_trace_writer *writer, const lvr_geometry *geometry,
                                lvr_sim_recorder **ret, lvr_error *err);
void lvr_sim_recorder_free(lvr_sim_recorder *r);

/* layer: UINT32_MAX where it does not apply. */
lvr_status lvr_sim_record_op(lvr_sim_recorder *r, uint64_t round, uint32_t layer, lvr_op op, uint32_t rows,
                             uint32_t context, lvr_compute_times t, lvr_error *err);
lvr_status lvr_sim_record_ticket(lvr_sim_recorder *r, uint64_t round, uint32_t layer, lvr_op op,
                                 uint32_t rows, uint32_t context, const lvr_npu_times *t, lvr_error *err);
/* A read is known when it is submitted, but recorded when its layer is used (or at the end: then nothing used
 * it). */
void lvr_sim_record_submitted(lvr_sim_recorder *r, const lvr_action *read, uint64_t submit_ns,
                              lvr_flash_times t, uint32_t in_flight);
lvr_status lvr_sim_record_consumed(lvr_sim_recorder *r, uint32_t slot, lvr_error *err);
lvr_status lvr_sim_record_leftovers(lvr_sim_recorder *r, lvr_error *err);

/* One pass, at the end of its commit; kept: rows of the COMMIT action, in order. */
typedef struct lvr_sim_pass {
    lvr_round_info info;
    uint32_t n_draft_steps, n_kept;
    const uint32_t *kept;
    uint64_t draft0_ns, draft1_ns, verify0_ns, verify1_ns, commit_ns;
} lvr_sim_pass;
lvr_status lvr_sim_record_pass(lvr_sim_recorder *r, const lvr_round *machine, const lvr_sim_pass *pass,
                               lvr_error *err);

lvr_status lvr_sim_record_request(lvr_sim_recorder *r, const lvr_rec_request *request, const int32_t *prompt,
                                  const int32_t *output, lvr_error *err);

#endif
