/* A session's inside, shared by session.c (opening, closing, describing), session_plan.c, decode.c with
 * decode_*.c (the host loop), and oracle.c. */
#ifndef LVR_ENGINE_SESSION_H
#define LVR_ENGINE_SESSION_H

#include "engine/decode.h"
#include "engine/pair.h"
#include "engine/record.h"
#include "engine/staging.h"

/* Scratch rows of the draft: tree nodes first, then the rows of a catch-up that shares a pass with tree nodes
 * (a longer one has a pass of its own); they are committed as soon as they are computed. */
#define LVR_DRAFT_MAX_ROWS LVR_MAX_EXPANSIONS
#define LVR_DRAFT_CATCH_UP_ROWS 64u
#define LVR_DRAFT_SCRATCH (LVR_MAX_EXPANSIONS + LVR_DRAFT_CATCH_UP_ROWS)

struct lvr_session {
    lvr_session_config config; /* paths and names point to the copies below */
    char *target_path, *draft_path, *emulated_name;
    lvr_policy policy;
    lvr_geometry geometry;
    lvr_budget_parts parts;
    lvr_session_budget budget;
    uint32_t n_ctx;
    lvr_pair pair;
    lvr_round *machine;
    lvr_staging *staging; /* NULL: every layer is resident */
    lvr_accel *accel;     /* NULL: none */
    lvr_recorder *recorder;
    bool broken; /* a request failed half-way */

    /* the draft's tree of the current round */
    int32_t node_slot[LVR_MAX_TREE_NODES]; /* scratch row of an expanded node, -1: none */
    uint32_t n_node_slots;
    lvr_fwd_row fwd_rows[LVR_DRAFT_MAX_ROWS];
    lvr_candidate candidates[LVR_MAX_EXPANSIONS * LVR_MAX_BRANCH];
};

lvr_run_conditions lvr_conditions_of(const lvr_session_config *c, uint32_t n_ctx, uint32_t n_predict);

#endif
