/*
 * The round machine: one schedule for two hosts. Sans-I/O: events in, actions out. The engine executes the
 * actions, the simulator prices them; which actions come, and in which order within their kind, depends on
 * events' contents only, never on their timing.
 *
 *   request ──▶ DRAFT steps ──▶ LAYER 0..L-1 ──▶ HEAD ... HEAD ──▶ COMMIT ──▶ next round, or DONE
 *                                 └▶ SCORE ┘
 *
 *   DRAFT   catch-up rows, then the policy's frontier, until the policy says "enough"; then rows are selected
 *   LAYER   the rows of the chosen tree, each layer as soon as its slices are ready
 *   SCORE   after layers that the policy names (never the last): the nodes' raw exit features, by which the
 *           policy drops rows; later layers run the others only. Only trees of more than one row
 *   HEAD    along the path being accepted, lazily (eager: the first HEAD runs those of all rows)
 *   COMMIT  the accepted path and the target's own token
 *
 * A prompt is the same thing without a tree: passes of at most prefill_chunk rows and no HEAD; the prompt's
 * last token is the first round's root.
 *
 * A pass whose layers run on the accelerator (geometry->place, see lvr_cost_unit) is the one case in which
 * two compute actions are outstanding: in a prompt pass the draft runs the same chunk on the CPU meanwhile.
 * Its DRAFT action comes right after the LAYER action of layer 0, and COMMIT after both have been answered.
 *
 * Reads: cyclic over the non-resident layers' slices, in file order. Pipelined: a layer's slices are issued
 * when one of ring_slots slots is free, however far ahead of compute that is, across rounds and requests.
 * Serial: a layer's slices are issued when the layer before it has been computed. A slot is freed by
 * LAYER_DONE; reads go on while rows are scored. At most one of DRAFT, LAYER, SCORE, HEAD, COMMIT is
 * outstanding at a time (but for the prompt passes above: one DRAFT and one LAYER); any number of reads.
 *
 * The policy is asked inside lvr_round_step of DRAFT_DONE, of SCORED and of COMMIT_DONE (or in
 * lvr_round_begin). Hosts account the time of those calls as one LVR_OP_PLAN each, with rows =
 * lvr_round_tree()->n afterwards.
 *
 * Laws (tests carry the names):
 *   ROUND-ORDER   a layer's LAYER action comes after SLICE_READY of all its slices and after LAYER_DONE of
 *                 the one before
 *   ROUND-RING    never more than ring_slots layers are staged or being read
 *   ROUND-BYTES   each pass consumes exactly lvr_geometry_stream_bytes bytes
 *   ROUND-TOKENS  committed tokens of a round = accepted nodes + 1
 *   ROUND-PRUNE   the rows of a layer are rows of the one before: the root and, with each row, its parent
 *   ROUND-UNIT    all layers of a pass run on one unit; a DRAFT action is outstanding together with a LAYER
 *                 action only in a prompt pass on the accelerator, and is then the CPU's
 */
#ifndef LVR_CORE_ROUND_H
#define LVR_CORE_ROUND_H

#include "costmodel/core/policy.h"

/* Rows of a prompt pass if none are asked for. With streamed layers each pass reads them all, so that few
 * passes are better; with resident ones more rows cost only memory. */
#define LVR_PREFILL_CHUNK_RESIDENT 128u
#define LVR_PREFILL_CHUNK_STREAMED 512u

typedef struct lvr_round lvr_round; /* the machine; one per sequence, not thread safe */

typedef struct lvr_round_config {
    const lvr_policy *policy;     /* outlives the machine */
    const lvr_geometry *geometry; /* outlives the machine */
    uint32_t n_ctx;               /* positions the target's KV cache holds */
    uint32_t prefill_chunk;       /* rows of a prompt pass, 1..LVR_MAX_PREFILL_ROWS */
    uint32_t max_rows;            /* rows of a verification pass, 1..LVR_MAX_VERIFY_NODES */
    int32_t eos_token;            /* -1: never stop early */
    const int32_t *more_eos;      /* other tokens that end a text, [n_more_eos]; outlive the machine */
    uint32_t n_more_eos;
    uint64_t seed; /* for policies that draw at random */
} lvr_round_config;

typedef enum lvr_action_kind {
    LVR_ACT_READ,   /* host: read slice; then LVR_EV_SLICE_READY */
    LVR_ACT_DRAFT,  /* host: run rows through the draft; then LVR_EV_DRAFT_DONE */
    LVR_ACT_LAYER,  /* host: run rows through target layer; then LVR_EV_LAYER_DONE */
    LVR_ACT_SCORE,  /* host: raw exit features of the rows; then LVR_EV_SCORED */
    LVR_ACT_HEAD,   /* host: target's token at a row; then LVR_EV_HEAD_DONE */
    LVR_ACT_COMMIT, /* host: compact KV; then LVR_EV_COMMIT_DONE */
    LVR_ACT_DONE,   /* the request is finished */
} lvr_action_kind;

typedef enum lvr_stop {
    LVR_STOP_LENGTH,
    LVR_STOP_EOS,
    LVR_STOP_CONTEXT,
    LVR_STOP_HOST,        /* asked for with LVR_EV_COMMIT_DONE */
    LVR_STOP_INTERRUPTED, /* a host's own word for a request that was cut short; never the machine's */
} lvr_stop;

/* A row of a draft step or of a target pass. */
typedef struct lvr_row {
    int32_t token;
    uint32_t position;  /* logical position in the sequence */
    int32_t node;       /* draft step: tree node it stands for, -1 for a committed token (catch-up)
                           target pass: the tree node, -1 in a prompt */
    int32_t parent_row; /* target pass: index of the parent's row in this layer, -1: only the cache precedes
                           it draft step: tree node of the parent, -1: only committed tokens precede it */
    uint32_t slot; /* target pass: its scratch row of the KV, the same for the whole pass: its index in the
                      first layer */
} lvr_row;

typedef struct lvr_action {
    lvr_action_kind kind;
    union {
        struct {
            uint64_t seq; /* running number of the read, unique for the machine's life */
            uint32_t layer, slice, slot;
            uint64_t offset; /* within the layer's bytes */
            uint64_t bytes;
            uint64_t round; /* the pass that will consume it */
        } read;
        struct {
            const lvr_row *rows; /* catch-up (at most prefill_chunk), then nodes to expand */
            uint32_t n_rows;
            uint32_t n_expand; /* the last n_expand rows are tree nodes whose children are wanted */
            uint32_t branch;   /* children per expanded node */
            lvr_unit unit;
        } draft;
        struct {
            uint32_t layer;
            int32_t slot; /* ring slot that holds its weights, -1: resident */
            const lvr_row *rows;
            uint32_t n_rows;
            const uint32_t *kept; /* [n_rows]: rows[i] was row kept[i] of the layer before; NULL: all stay */
            lvr_unit unit;
            bool prefill;
        } layer;
        struct {
            uint32_t layer; /* the last that the rows have run through */
            const lvr_row *rows;
            uint32_t n_rows;
        } score;
        struct {
            uint32_t row;      /* index among the rows of the last layer */
            uint32_t position; /* of that row: the token chosen goes to position + 1 */
            uint32_t n_rows; /* heads to run now: 1, this row's; all that are left at the first HEAD if heads
                                are eager, and then 0: this row's has been run */
            const lvr_row *rows; /* of the last layer */
        } head;
        struct {
            const uint32_t *rows; /* scratch rows (lvr_row.slot) to keep, in order: root and accepted nodes,
                                     or the whole prompt chunk */
            uint32_t n_rows;
            const int32_t
                *draft_nodes; /* draft rows to keep, in order: the kept tree nodes that were expanded */
            uint32_t n_draft_nodes;
            const int32_t *tokens; /* newly committed tokens: accepted nodes' and the target's own last (none
                                      for a prompt) */
            uint32_t n_tokens;
            bool prefill;
        } commit;
        struct {
            lvr_stop stop;
        } done;
    };
} lvr_action;

typedef enum lvr_event_kind {
    LVR_EV_DRAFT_DONE,
    LVR_EV_SLICE_READY,
    LVR_EV_LAYER_DONE,
    LVR_EV_SCORED,
    LVR_EV_HEAD_DONE,
    LVR_EV_COMMIT_DONE,
} lvr_event_kind;

typedef struct lvr_event {
    lvr_event_kind kind;
    union {
        struct {
            const lvr_candidate *candidates; /* n_expand * branch, row-major, best first */
            uint32_t n_per_row;              /* = branch, or fewer if the vocabulary is smaller */
        } draft;
        struct {
            uint64_t seq;
        } slice;
        struct {
            const lvr_exit_raw *raw; /* of the SCORE action's rows; the root's is not read */
            const bool *unknown;     /* as many: rows that the host cannot tell anything of, they are kept as
                                        long as their parents are; NULL: none */
        } scored;
        struct {
            int32_t token; /* the target's own token at that row */
        } head;
        struct {
            bool stop; /* no more tokens are wanted: DONE follows (not of a prompt pass) */
        } commit;
    };
} lvr_event;

lvr_status lvr_round_new(const lvr_round_config *config, lvr_round **ret_machine, lvr_error *err);
void lvr_round_free(lvr_round *m);

/* Starts a request: prompt of n_prompt >= 1 tokens (copied), up to n_predict new tokens. The KV caches are
 * taken as empty. A prompt longer than n_ctx is LVR_ERR_BUDGET. Only when the machine is idle (new, or after
 * LVR_ACT_DONE). */
lvr_status lvr_round_begin(lvr_round *m, uint64_t request, const int32_t *prompt, uint32_t n_prompt,
                           uint32_t n_predict, lvr_error *err);

/* Feeds one event; new actions are queued. An event that cannot come now is LVR_ERR_INVARIANT. */
lvr_status lvr_round_step(lvr_round *m, const lvr_event *event, lvr_error *err);

/* Takes the next queued action; pointers inside stay valid until the event that answers it has been fed. */
bool lvr_round_next(lvr_round *m, lvr_action *ret_action);

/* Looking in (for hosts that record or report). */
typedef struct lvr_round_info {
    uint64_t request, round; /* round: running number of the pass, prompt passes included, never reset */
    bool prefill;
    uint32_t position;    /* logical position of the root (or of the prompt chunk's first row) */
    uint32_t n_rows;      /* rows of the pass's first layer, root included; 0 while drafting */
    uint32_t n_kept;      /* of them, those that have not been dropped so far */
    uint32_t n_drafted;   /* tree nodes expanded by the draft in this round */
    uint32_t n_accepted;  /* accepted nodes so far (after the walk) */
    uint32_t n_generated; /* tokens committed in this request, this round included once COMMIT is out */
} lvr_round_info;
void lvr_round_get_info(const lvr_round *m, lvr_round_info *ret);
const lvr_tree *lvr_round_tree(const lvr_round *m); /* all candidates of the current round */
/* The verified nodes of the current round: tree node of each pass row. n is 0 for prompt passes. */
const uint32_t *lvr_round_rows(const lvr_round *m, uint32_t *ret_n);
/* For each of lvr_round_rows, the last layer it goes through, as far as is known yet. */
const uint32_t *lvr_round_last_layers(const lvr_round *m);

#endif
