/* The round machine's state, shared by its files: round.c (interface), round_reads.c, round_draft.c,
 * round_verify.c and round_commit.c. */
#ifndef LVR_CORE_ROUND_INTERNAL_H
#define LVR_CORE_ROUND_INTERNAL_H

#include "costmodel/core/round.h"

typedef enum phase { IDLE, PROMPT_DRAFT, CATCHING_UP, DRAFTING, VERIFYING, JOINING, HEADS, COMMITTING } phase;

typedef struct staged_layer {
    uint64_t first_seq;
    uint32_t n_slices, n_ready;
} staged_layer;

struct lvr_round {
    lvr_round_config config;
    phase phase;

    /* sequence */
    int32_t *seq; /* committed tokens, the root last; n_ctx + 1 + LVR_MAX_DEPTH + 1 */
    uint32_t n_seq, seq_cap, n_prompt, n_predict, n_generated;
    uint32_t target_cached, draft_cached;
    uint64_t request, pass;
    bool stopped_by_eos;

    /* drafting */
    lvr_tree tree;
    lvr_policy_scratch *scratch;
    uint32_t expand[LVR_MAX_EXPANSIONS], n_expand, n_expanded, n_steps, branch;
    double draft_ns;
    lvr_calibration adapted; /* of this request; used if the policy adapts */
    lvr_policy_memory memory;
    lvr_row *draft_rows; /* [prefill_chunk + LVR_MAX_EXPANSIONS]: catch-up, then nodes to expand */

    /* verification */
    bool prefill;
    lvr_row *pass_rows; /* of a tree or of a prompt: [the larger of max_rows, prefill_chunk]; those left */
    uint32_t chosen[LVR_MAX_VERIFY_NODES];     /* tree node of each slot */
    uint32_t n_chosen;                         /* rows of the first layer */
    uint32_t last_layer[LVR_MAX_VERIFY_NODES]; /* of each slot */
    uint32_t left[LVR_MAX_VERIFY_NODES];       /* rows that stayed when some were last dropped */
    bool dropped;                              /* since the last LAYER action */
    lvr_exit_row scored[LVR_MAX_VERIFY_NODES];
    uint8_t
        watched[LVR_MAX_TREE_NODES]; /* of each tree node: its best children that adaptation learns from */
    uint32_t n_rows, layer;
    lvr_unit unit;
    bool layer_out, score_out; /* a LAYER action is outstanding; a SCORE action */
    bool draft_due,
        draft_out; /* the draft's part of this prompt pass: to be ordered with layer 0; outstanding */

    /* walk and commit */
    uint32_t *kept, n_kept; /* slots; as many as pass_rows */
    uint32_t head_row;      /* whose token is being asked for */
    int32_t kept_draft[LVR_MAX_VERIFY_NODES];
    uint32_t n_kept_draft;
    int32_t tokens[LVR_MAX_VERIFY_NODES];
    uint32_t n_tokens;

    /* reads */
    uint32_t streamed[LVR_MAX_LAYERS], n_streamed; /* layer numbers that are not resident */
    uint32_t instance_of[LVR_MAX_LAYERS];          /* layer -> index in streamed */
    uint32_t max_slices;
    uint64_t issued, freed, next_seq;
    staged_layer slots[LVR_MAX_RING_SLOTS];
    bool *slice_ready; /* [ring_slots][max_slices] */

    /* actions not taken yet: a FIFO */
    lvr_action *queue;
    uint32_t q_head, q_len, q_cap;
};

/* ---- round.c ---- */

lvr_action *lvr_round_push(lvr_round *m, lvr_action_kind kind);
/* What the policy may see now. */
lvr_policy_view lvr_round_view(const lvr_round *m);

/* ---- round_reads.c ---- */

void lvr_round_list_streamed(lvr_round *m);
/* Orders the reads that the ring and the schedule have room for. */
void lvr_round_pump_reads(lvr_round *m);
/* Whether the layer that is due is resident or staged. */
bool lvr_round_layer_ready(const lvr_round *m);
/* The ring slot of a layer of the current pass, -1: resident. */
int32_t lvr_round_slot(const lvr_round *m, uint32_t layer);
lvr_status lvr_round_on_slice_ready(lvr_round *m, uint64_t seq, lvr_error *err);

/* ---- round_draft.c ---- */

/* Begins the drafting of a round; verification begins by itself once the policy has had enough. */
lvr_status lvr_round_begin_draft(lvr_round *m, lvr_error *err);
/* The draft runs the rows of the prompt pass that has begun. */
void lvr_round_push_prompt_draft(lvr_round *m);
lvr_status lvr_round_on_draft_done(lvr_round *m, const lvr_event *event, lvr_error *err);

/* ---- round_verify.c ---- */

void lvr_round_try_layer(lvr_round *m);
lvr_unit lvr_round_unit_of_pass(const lvr_round *m);
lvr_status lvr_round_begin_verify(lvr_round *m, lvr_error *err);
lvr_status lvr_round_on_layer_done(lvr_round *m, lvr_error *err);
lvr_status lvr_round_on_scored(lvr_round *m, const lvr_event *event, lvr_error *err);

/* ---- round_commit.c ---- */

/* The next pass of the request: of the prompt, or a round. */
lvr_status lvr_round_next_pass(lvr_round *m, lvr_error *err);
void lvr_round_push_head(lvr_round *m, uint32_t row);
void lvr_round_commit_prompt_pass(lvr_round *m);
lvr_status lvr_round_on_head_done(lvr_round *m, int32_t token, lvr_error *err);
lvr_status lvr_round_on_commit_done(lvr_round *m, bool stop, lvr_error *err);

#endif
