/*
 * Timing recording: turns what the host loop did into trace records. The put functions neither allocate nor
 * block (a full ring counts as dropped) and do nothing without a recorder, so that the loop is the same with
 * and without recording (INV-TRACE).
 */
#ifndef LVR_ENGINE_RECORD_H
#define LVR_ENGINE_RECORD_H

#include "costmodel/core/policy_file.h"
#include "costmodel/core/round.h"
#include "engine/pack.h"
#include "engine/staging.h"
#include "traces/trace.h"

typedef struct lvr_recorder lvr_recorder;

lvr_status lvr_recorder_new(lvr_trace_writer *writer, lvr_recorder **ret, lvr_error *err);
void lvr_recorder_free(lvr_recorder *r); /* the writer and its lane live on */
/* The writer's failure so far. */
lvr_status lvr_recorder_status(lvr_recorder *r, lvr_error *err);

typedef struct lvr_kernel_times {
    uint64_t start_ns, end_ns;
} lvr_kernel_times;

/* model: 0 target, 1 draft. layer: UINT32_MAX where it does not apply. */
void lvr_record_kernel(lvr_recorder *r, uint64_t round, uint32_t model, uint32_t layer, lvr_op op,
                       uint32_t rows, uint32_t context, lvr_kernel_times t);
/* A target layer or a draft step: where it ran, and with times as lvr_accel_times. */
typedef struct lvr_layer_log {
    bool draft; /* a draft step; layer is UINT32_MAX */
    uint64_t round;
    uint32_t layer, rows, bucket, context;
    lvr_unit unit;
    uint64_t submit_ns, start_ns, end_ns;
} lvr_layer_log;
void lvr_record_layer(lvr_recorder *r, const lvr_layer_log *log);
void lvr_record_read(lvr_recorder *r, const lvr_staged_read *read, bool consumed);

/* One pass, at its COMMIT action. */
typedef struct lvr_round_log {
    uint64_t draft0_ns, draft1_ns, verify0_ns, verify1_ns, commit_ns;
    uint32_t draft_steps;
} lvr_round_log;
void lvr_record_round(lvr_recorder *r, const lvr_round_info *info, uint32_t depth, const lvr_round_log *log);
/* The verified tree (nothing for prompt passes); kept: rows of the COMMIT action. Call before its event is
 * fed. */
void lvr_record_tree(lvr_recorder *r, const lvr_round *m, const lvr_round_info *info, const uint32_t *kept,
                     uint32_t n_kept);
/* Depth of the tree that the current pass verifies. */
uint32_t lvr_verified_depth(const lvr_round *m);

typedef struct lvr_request_log {
    uint64_t id, arrival_ns, first_token_ns, done_ns;
    uint32_t domain, n_prompt, n_output;
    uint64_t prompt_hash;
} lvr_request_log;
void lvr_record_request(lvr_recorder *r, const lvr_request_log *log);
void lvr_record_token(lvr_recorder *r, uint64_t request, uint32_t pos, int32_t token, bool is_output);

/* ---- descriptions ---- */

/* First 8 bytes of the SHA-256 of the token ids (int32, little endian), as a big-endian number. */
uint64_t lvr_prompt_hash(const int32_t *tokens, uint32_t n);
/* resident[n_layers]; NULL: all. */
void lvr_trace_model_describe(const lvr_pack *pack, const bool *resident, lvr_trace_model *ret);
/* This machine, the file system of the pack and how it is read. io_engine: "none" if nothing is streamed. */
void lvr_trace_device_describe(const char *pack_path, const char *io_engine, bool direct,
                               const char *emulated, double scale, lvr_trace_device *ret);
/* Fields that do not depend on what is recorded: program, compiler, time. */
void lvr_trace_meta_init(lvr_trace_kind kind, lvr_trace_meta *ret);

#endif
