/*
 * A request under way, shared by the files of the host loop: decode.c (the loop), decode_draft.c,
 * decode_verify.c, decode_accel.c, decode_commit.c and decode_stats.c. All on one thread.
 */
#ifndef LVR_ENGINE_DECODE_INTERNAL_H
#define LVR_ENGINE_DECODE_INTERNAL_H

#include "engine/session.h"

/* A layer on the accelerator. */
typedef struct lvr_flight {
    bool ordered; /* the action is there, not submitted yet */
    bool out;     /* submitted */
    lvr_action action;
    lvr_accel_ticket ticket;
    uint32_t bucket;
} lvr_flight;

typedef struct lvr_run {
    lvr_session *s;
    uint64_t request;
    lvr_token_fn on_token;
    void *user;
    int32_t *tokens;        /* [n_predict] */
    int32_t *prompt_tokens; /* [prefill_chunk]: of the prompt pass that is being started */
    uint32_t n_tokens, n_predict, n_prompt;
    uint32_t n_recorded; /* n_tokens, and what the host did not want of its last round */
    lvr_run_stats stats;
    lvr_staging_stats staging0; /* when the request began */
    uint64_t begin_ns, decode0_ns, first_token_ns;
    uint64_t prefill_compute_ns, prefill_io_busy_ns;
    lvr_round_log log;
    uint64_t round_begin_ns; /* of the current pass */
    bool has_work, done;
    lvr_action work; /* the compute action that is outstanding on the CPU */
    lvr_flight npu;
    uint32_t draft_bucket;                    /* of the last draft layer on the accelerator */
    int32_t row_tokens[LVR_MAX_VERIFY_NODES]; /* eager heads: the target's token after each row of the pass */
} lvr_run;

/* ---- decode.c ---- */

lvr_status lvr_run_feed(lvr_run *r, const lvr_event *event, lvr_error *err);
/* An event in whose wake the machine asks its policy: the time of the step is the policy's. */
lvr_status lvr_run_feed_planning(lvr_run *r, const lvr_event *event, lvr_error *err);
/* Reads are submitted, compute is put down to be done. */
lvr_status lvr_run_take_actions(lvr_run *r, lvr_error *err);
/* Hands every finished read to the machine; block: waits for the first. */
lvr_status lvr_run_collect_reads(lvr_run *r, bool block, lvr_error *err);

/* The tokens of a prompt pass's rows to r->prompt_tokens. */
void lvr_run_prompt_tokens(lvr_run *r, const lvr_row *rows, uint32_t n);

/* ---- decode_draft.c ---- */

lvr_status lvr_run_draft(lvr_run *r, lvr_error *err);
/* The next tree begins. */
void lvr_run_forget_tree(lvr_session *s);

/* ---- decode_verify.c ---- */

lvr_status lvr_run_layer(lvr_run *r, lvr_error *err);
lvr_status lvr_run_score(lvr_run *r, lvr_error *err);
lvr_status lvr_run_head(lvr_run *r, lvr_error *err);
/* What comes before a layer on either unit; *ret_base: its staged weights, NULL if they are resident. */
lvr_status lvr_run_begin_layer(lvr_run *r, const lvr_action *a, const uint8_t **ret_base, lvr_error *err);
/* What comes after it. */
lvr_status lvr_run_end_layer(lvr_run *r, const lvr_action *a, uint32_t bucket, const lvr_accel_times *t,
                             lvr_error *err);

/* ---- decode_accel.c ---- */

lvr_status lvr_run_order_ticket(lvr_run *r, const lvr_action *a, lvr_error *err);
lvr_status lvr_run_submit_ticket(lvr_run *r, lvr_error *err);
lvr_status lvr_run_end_ticket(lvr_run *r, const lvr_accel_times *t, lvr_error *err);
/* There is nothing else to do, though reads may finish meanwhile: they are handed on while the accelerator
 * works. */
lvr_status lvr_run_wait_for_ticket(lvr_run *r, lvr_error *err);
/* Between the draft's layers: what has finished is handed on, and the accelerator's next layer follows. */
lvr_status lvr_run_tend(lvr_run *r, lvr_error *err);
/* One of the draft's layers there, waited for; user is the lvr_run. */
lvr_status lvr_run_draft_layer(void *user, uint32_t layer, uint32_t n_rows, lvr_error *err);

/* ---- decode_commit.c ---- */

lvr_status lvr_run_commit(lvr_run *r, lvr_error *err);
void lvr_run_begin_round(lvr_run *r, uint64_t now);

/* ---- decode_stats.c ---- */

void lvr_run_close_stats(lvr_run *r, uint64_t now);

#endif
