/*
 * The two models of a sequence with their tokenizers, caches and workspaces: what decoding and oracle
 * recording both stand on, so that both get the same bits from the same functions. Not thread safe.
 */
#ifndef LVR_ENGINE_PAIR_H
#define LVR_ENGINE_PAIR_H

#include "costmodel/core/tree.h"
#include "engine/budget.h"
#include "engine/forward.h"
#include "engine/sampler.h"
#include "engine/tokenizer/tokenizer.h"

#define LVR_PAIR_HEAD_CHUNK 32u /* rows whose logits are held at once */

typedef struct lvr_side {
    lvr_pack *pack; /* the model's own once it is loaded */
    const lvr_model_shape *shape;
    lvr_tokenizer *tokenizer;
    lvr_model *model; /* NULL until loaded */
    lvr_kv kv;
    lvr_forward *forward;
    lvr_sampler *sampler;
    float *logits; /* [n_logits][shape->vocab] */
    uint32_t n_logits;
} lvr_side;

typedef struct lvr_pair {
    lvr_side target, draft;
    bool has_draft;
    lvr_kernels kernels;
    lvr_pool *pool;
    /* Called after each of the draft's layers, so that a host can look after other units; NULL: nothing. A
     * failure ends the draft step. */
    lvr_status (*between_layers)(void *user, lvr_error *err);
    void *between_user;
    /* Runs one of the draft's layers over the n_rows of its pass elsewhere; NULL: here. */
    lvr_status (*run_layer)(void *user, uint32_t layer, uint32_t n_rows, lvr_error *err);
    void *run_layer_user;
    lvr_watch watch;
} lvr_pair;

typedef struct lvr_pair_sizes {
    uint32_t n_ctx, threads;
    lvr_cpu_level cpu_level;
    lvr_kv_type kv_type;                  /* of both caches */
    uint32_t target_rows, target_scratch; /* rows per call; scratch rows of the cache */
    uint32_t draft_rows, draft_scratch;
    uint32_t target_prompt_rows, draft_prompt_rows; /* rows of a prompt pass; 0: none */
    bool target_scores;     /* the target's rows are scored between layers (lvr_forward_scores) */
    uint32_t target_logits; /* rows of target logits held at once, 1..LVR_PAIR_HEAD_CHUNK */
} lvr_pair_sizes;

/* Opens both packs (draft_path NULL: no draft) and checks that they share their vocabulary. No weights are
 * read. A bare GGUF is packed into the cache first. watch (copied; NULL: nobody): stages "hashing", "packing"
 * and, in lvr_pair_load, "loading", in bytes; cancelling also ends draft steps. */
lvr_status lvr_pair_open(const char *target_path, const char *draft_path, const lvr_watch *watch,
                         lvr_pair *ret, lvr_error *err);
/* What lvr_pair_load will take in DRAM; layers_bytes and ring_bytes are left alone. */
void lvr_pair_parts(const lvr_pair *p, const lvr_pair_sizes *sizes, lvr_budget_parts *ret);
/* Loads weights and makes caches and workspaces. resident[n_layers] of the target; NULL: all. */
lvr_status lvr_pair_load(lvr_pair *p, const lvr_pair_sizes *sizes, const bool *resident, lvr_error *err);
void lvr_pair_free(lvr_pair *p);
/* Whether the weights of one of the models are random. */
bool lvr_pair_synthetic(const lvr_pair *p);

/* Runs rows through the draft; children of the last n_expand rows go to out[n_expand][*ret_per_row], best
 * first. Tokens of the target's vocabulary that the draft does not have (padding) are replaced in `rows`. */
lvr_status lvr_pair_draft(lvr_pair *p, lvr_fwd_row *rows, uint32_t n_rows, uint32_t n_expand, uint32_t branch,
                          lvr_candidate *out, uint32_t *ret_per_row, lvr_error *err);
/* Runs n <= draft_prompt_rows committed tokens, which follow the draft's cache, straight into it. Padding
 * tokens are replaced in `tokens`, as above. */
lvr_status lvr_pair_draft_prompt(lvr_pair *p, int32_t *tokens, uint32_t n, lvr_error *err);

#endif
