/*
 * Policies: which nodes the draft expands and which nodes the target verifies. Pure functions over draft-side
 * data, a cost table and a calibration; they read no clock and keep no state of their own, so the engine and
 * the simulator get the same trees from the same inputs. What a policy wants to know of a request's earlier
 * rounds it writes into a small memory (observe) that the round machine owns. Each policy is one file under
 * policy/ and one row of lvr_policies.
 */
#ifndef LVR_CORE_POLICY_H
#define LVR_CORE_POLICY_H

#include "common/param.h"
#include "costmodel/core/adapt.h"
#include "costmodel/core/calibration.h"
#include "costmodel/core/cost.h"
#include "costmodel/core/exit.h"
#include "costmodel/core/tree.h"

typedef struct lvr_policy_scratch lvr_policy_scratch; /* working memory of one round machine */

#define LVR_POLICY_MEMORY_BYTES 64

/* What a policy keeps between the rounds of a request: zeroes when the request begins. */
typedef union lvr_policy_memory {
    double align;
    uint8_t bytes[LVR_POLICY_MEMORY_BYTES];
} lvr_policy_memory;

/* How a round went. */
typedef struct lvr_round_outcome {
    const lvr_tree *tree;
    const uint32_t *rows; /* the verified nodes, ascending, the root first */
    uint32_t n_rows;
    uint32_t n_accepted; /* also the depth of: */
    uint32_t last;       /* the last accepted node; the root if there is none */
} lvr_round_outcome;

/* Everything a policy may see. */
typedef struct lvr_policy_view {
    const lvr_tree *tree;
    const lvr_cost_table *cost; /* NULL unless the policy needs it */
    const lvr_geometry *geometry;
    const lvr_calibration *calibration; /* adapted, if the policy is to be */
    uint32_t context;                   /* committed positions before the root */
    uint32_t max_depth; /* deeper nodes cannot be committed (tokens wanted, room in the context) */
    uint32_t max_rows;  /* rows one verification pass may have, the root included */
    uint32_t n_steps;   /* draft steps taken in this round */
    double draft_ns;    /* their cost by the table, catch-up rows included; 0 without a table */
    uint64_t seed, request, position; /* keys for policies that draw at random */
    lvr_policy_scratch *scratch;
    const lvr_policy_memory *memory; /* NULL: as when a request begins */
} lvr_policy_view;

typedef struct lvr_policy lvr_policy;

typedef struct lvr_policy_ops {
    const char *name, *summary, *source; /* source: paper section or address */
    const lvr_param *params;
    size_t n_params;
    bool uses_draft, needs_cost;
    bool calibrated; /* ranks by lvr_calibrate_siblings, so that adapting the calibration acts on it */
    /* Children to keep per expanded node, 1..LVR_MAX_BRANCH. */
    uint32_t (*branch)(const void *params);
    /* Nodes the draft runs next (not yet expanded, depth < max_depth); 0: drafting is over. */
    uint32_t (*expand)(const void *params, const lvr_policy_view *view, uint32_t *ret_nodes, uint32_t cap);
    /* Nodes the target verifies, ascending, closed under parents, node 0 first; at least the root, at most
     * cap. */
    uint32_t (*select)(const void *params, const lvr_policy_view *view, uint32_t *ret_nodes, uint32_t cap);
    /* After each round, before the next is planned. NULL: nothing is kept. */
    void (*observe)(const void *params, const lvr_round_outcome *outcome, lvr_policy_memory *memory);
    /* Pruning; both NULL: never. Whether rows are scored after this layer (the last is never asked about). */
    bool (*scores)(const lvr_policy *policy, uint32_t layer, uint32_t n_layers);
    /* Rows that go on after this layer; all are false before. The root goes on whatever is said of it, and no
     * row does without its parent. */
    void (*keep)(const lvr_policy *policy, const lvr_policy_view *view, uint32_t layer,
                 const lvr_exit_row *rows, uint32_t n_rows, bool *ret_keep);
    bool keeps_blindly; /* keep() does not look at the raw features: any will do */
    /* Whether the policy can run a target of so many layers as it is set up; NULL: always. LVR_ERR_CONFIG. */
    lvr_status (*check)(const lvr_policy *policy, uint32_t n_layers, lvr_error *err);
} lvr_policy_ops;

#define LVR_POLICY_PARAMS_BYTES 256

/* A policy with its parameters and what it prices with. */
struct lvr_policy {
    const lvr_policy_ops *ops;
    union {
        uint64_t align;
        uint8_t bytes[LVR_POLICY_PARAMS_BYTES];
    } params;
    bool has_cost;
    lvr_cost_table cost;
    lvr_calibration calibration;
    lvr_adapt adapt;         /* rate 0 unless ops->calibrated */
    lvr_exit_predictor exit; /* n == 0: none */
};

extern const lvr_policy_ops *const lvr_policies[];
extern const size_t lvr_n_policies;

/* Defaults of the named policy; unknown name: LVR_ERR_USAGE with "did you mean". */
lvr_status lvr_policy_init(lvr_policy *ret, const char *name, lvr_error *err);
/* A parameter of the policy, or of the adaptation (lvr_adapt_params) if it is calibrated. */
lvr_status lvr_policy_set(lvr_policy *policy, const char *where, const char *key, const char *value,
                          lvr_error *err);
/* Whether rows are scored after any layer. */
bool lvr_policy_prunes(const lvr_policy *policy, uint32_t n_layers);
/* "key=value" items of --set, each key once at most. */
lvr_status lvr_policy_set_items(lvr_policy *policy, const char *const *items, size_t n, lvr_error *err);
lvr_policy_scratch *lvr_policy_scratch_new(void); /* NULL: out of memory */
void lvr_policy_scratch_free(lvr_policy_scratch *scratch);

#endif
