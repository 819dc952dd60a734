/*
 * The forward pass over rows of a token tree, or over the rows of a prompt. Rows are independent but for
 * their ancestors, so any grouping of rows into calls gives the same bits (INV-ROW). A tree's row sits in a
 * scratch slot of the KV; its ancestors are: cache positions [0, n_cached) and then the chain of parent
 * slots. A prompt's rows are written into the cache itself, at the positions after n_cached.
 */
#ifndef LVR_ENGINE_FORWARD_H
#define LVR_ENGINE_FORWARD_H

#include "common/threads.h"
#include "costmodel/core/exit.h"
#include "engine/kv.h"
#include "engine/model.h"

typedef struct lvr_fwd_row {
    int32_t token;
    uint32_t position;
    uint32_t slot;       /* scratch row of the KV that this row writes */
    int32_t parent_slot; /* -1: only the cache precedes it */
} lvr_fwd_row;

typedef struct lvr_forward lvr_forward; /* workspace of one model and sequence; one call at a time */

/* The cache that a model needs. */
lvr_kv_shape lvr_forward_kv_shape(const lvr_model_shape *shape, lvr_kv_type type, uint32_t n_ctx,
                                  uint32_t max_scratch);
/* model, kernels, pool and kv outlive the workspace. max_rows: rows that a layer is run with at a time, and
 * of a tree's pass. max_prompt_rows: rows of a prompt's pass, of which only the residual stream is held for
 * all at once (4 * d_model bytes a row); 0: no such passes. */
lvr_status lvr_forward_new(const lvr_model *model, const lvr_kernels *kernels, lvr_pool *pool, lvr_kv *kv,
                           uint32_t max_rows, uint32_t max_prompt_rows, lvr_forward **ret, lvr_error *err);
void lvr_forward_free(lvr_forward *f);
/* Workspace size, for the budget; 16 bytes a scratch row of the KV come on top. UINT64_MAX: too large to
 * exist. */
uint64_t lvr_forward_bytes(const lvr_model_shape *shape, uint32_t n_ctx, uint32_t max_rows,
                           uint32_t max_prompt_rows, uint32_t n_threads);

/* x[r] = embedding of rows[r].token. Starts a pass of n_rows rows. A token outside the vocabulary is
 * LVR_ERR_FORMAT; rows whose ancestors cannot be found, or that share a scratch row, are LVR_ERR_INVARIANT.
 */
lvr_status lvr_forward_embed(lvr_forward *f, const lvr_fwd_row *rows, uint32_t n_rows, lvr_error *err);
/* Starts a pass of n <= max_prompt_rows rows of a prompt: tokens[i] at position first_position + i, where
 * first_position is the cache's n_cached. Layers write the rows' K and V into the cache; once all layers have
 * run, lvr_kv_append(kv, n) commits them (or fewer of them, from the first on). No slots are used; the bits
 * are those of the same rows as a chain of lvr_forward_embed. Errors as there; also LVR_ERR_INVARIANT past
 * n_ctx, for another first_position, or for more rows than there is room for. */
lvr_status lvr_forward_embed_prompt(lvr_forward *f, const int32_t *tokens, uint32_t first_position,
                                    uint32_t n, lvr_error *err);
/* Runs the pass's rows through one layer, at most max_rows at a time. base: staged weights or NULL
 * (resident). parent slots may be rows of this or earlier calls. */
void lvr_forward_layer(lvr_forward *f, uint32_t layer, const uint8_t *base);
/* As above, on other kernels and threads than the workspace's own, so that any layer of a pass may be run by
 * another unit: from any thread, though one call at a time per workspace, each seeing the one before (a lock
 * or a queue between them). pool NULL, or larger than the pool the workspace was made with: the calling
 * thread alone. The bits are those of lvr_forward_layer. */
void lvr_forward_layer_on(lvr_forward *f, uint32_t layer, const uint8_t *base, const lvr_kernels *kernels,
                          lvr_pool *pool);
/* Logits of one row of the pass (a tree's or a prompt's) after the last layer: out[vocab]. Does not disturb
 * the rows. */
void lvr_forward_head(lvr_forward *f, uint32_t row, float *out);
/* Logits of several rows in one go (weights read once): out[n][vocab]. */
void lvr_forward_heads(lvr_forward *f, const uint32_t *rows, uint32_t n, float *out);
/* As above; kernels and pool as in lvr_forward_layer_on. */
void lvr_forward_heads_on(lvr_forward *f, const uint32_t *rows, uint32_t n, float *out,
                          const lvr_kernels *kernels, lvr_pool *pool);

/* A verified node, asked for between two layers: its token, after its parent's row of the pass. */
typedef struct lvr_fwd_query {
    uint32_t row; /* the parent's, index among the pass's rows */
    int32_t token;
} lvr_fwd_query;

/* ret[i]: the raw exit features of query i, from the rows as they are after the layers run so far. Bits as
 * those of lvr_forward_heads at the same point, whatever is asked for together. Does not disturb the rows.
 * Of a tree's pass; its first use allocates (lvr_forward_scores_bytes). A row that is none of the pass, a
 * token outside the vocabulary or a prompt's pass is LVR_ERR_INVARIANT. */
lvr_status lvr_forward_scores(lvr_forward *f, const lvr_fwd_query *queries, uint32_t n, lvr_exit_raw *ret,
                              lvr_error *err);
uint64_t lvr_forward_scores_bytes(const lvr_pack_tensor *head, uint32_t max_rows);
/* The pass goes on with these of its rows alone, rows[n] ascending: row i of the pass is then the one that
 * was row rows[i]. Scratch rows of the KV stay as they are. Of a tree's pass whose ancestors among the
 * dropped rows are nobody's any more, else LVR_ERR_INVARIANT and nothing has changed. */
lvr_status lvr_forward_keep(lvr_forward *f, const uint32_t *rows, uint32_t n, lvr_error *err);

#endif
