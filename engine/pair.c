#include "engine/pair.h"

#include "engine/pack_cache.h"
#include <stdlib.h>
#include <string.h>

/* ---- Opening ---- */

static lvr_status open_side(const char *path, const char *what, const atomic_bool *cancel, lvr_side *side,
                            lvr_error *err)
{
    const lvr_pack_options options = {.cancel = cancel};
    lvr_status status = lvr_pack_open_any_with(path, &options, &side->pack, err);
    if (status != LVR_OK) {
        lvr_error_prefix(err, "%s model", what);
        return status;
    }
    side->shape = lvr_pack_shape(side->pack);
    status = lvr_tokenizer_new(lvr_pack_gguf(side->pack), &side->tokenizer, err);
    if (status != LVR_OK)
        lvr_error_prefix(err, "%s model %s", what, path);
    return status;
}

static void free_side(lvr_side *side)
{
    lvr_forward_free(side->forward);
    lvr_sampler_free(side->sampler);
    lvr_kv_free(&side->kv);
    free(side->logits);
    lvr_tokenizer_free(side->tokenizer);
    if (side->model)
        lvr_model_free(side->model);
    else
        lvr_pack_free(side->pack);
    *side = (lvr_side){0};
}

static bool side_synthetic(const lvr_side *side)
{
    return lvr_gguf_bool_or(lvr_pack_gguf(side->pack), LVR_GGUF_SYNTHETIC, false);
}

bool lvr_pair_synthetic(const lvr_pair *p)
{
    return side_synthetic(&p->target) || (p->has_draft && side_synthetic(&p->draft));
}

void lvr_pair_free(lvr_pair *p)
{
    free_side(&p->draft);
    free_side(&p->target);
    lvr_pool_free(p->pool);
    *p = (lvr_pair){0};
}

static lvr_status open_draft(const char *path, const atomic_bool *cancel, lvr_pair *p, lvr_error *err)
{
    lvr_status status = open_side(path, "draft", cancel, &p->draft, err);
    if (status != LVR_OK)
        return status;
    p->has_draft = true;
    status = lvr_tokenizer_compatible(p->target.tokenizer, p->draft.tokenizer, err);
    if (status != LVR_OK)
        lvr_error_prefix(err, "draft %s does not fit target %s", path, lvr_pack_path(p->target.pack));
    return status;
}

lvr_status lvr_pair_open(const char *target_path, const char *draft_path, const atomic_bool *cancel,
                         lvr_pair *ret, lvr_error *err)
{
    lvr_pair p = {0};
    lvr_status status = open_side(target_path, "target", cancel, &p.target, err);
    if (status == LVR_OK && draft_path)
        status = open_draft(draft_path, cancel, &p, err);
    if (status != LVR_OK) {
        lvr_pair_free(&p);
        return status;
    }
    *ret = p;
    return LVR_OK;
}

/* ---- Sizes ---- */

static uint32_t kv_dim(const lvr_model_shape *s)
{
    return s->n_kv * s->head_dim;
}

static uint64_t weight_bytes(const lvr_side *side)
{
    uint64_t bytes = lvr_pack_resident_bytes(side->pack);
    for (uint32_t l = 0; l < side->shape->n_layers; l++)
        bytes += lvr_pack_layer_bytes(side->pack, l);
    return bytes;
}

/* The tokenizer's tables and the parsed header are of the size of the header itself; both copies are counted.
 */
static uint64_t side_workspace_bytes(const lvr_side *side, uint32_t n_ctx, uint32_t rows, uint32_t n_logits,
                                     uint32_t threads)
{
    uint64_t header = 0;
    lvr_gguf_header(lvr_pack_gguf(side->pack), &header);
    return lvr_forward_bytes(side->shape, n_ctx, rows, threads) +
           (uint64_t)side->shape->vocab * n_logits * sizeof(float) + 3 * header;
}

void lvr_pair_parts(const lvr_pair *p, const lvr_pair_sizes *sizes, lvr_budget_parts *ret)
{
    const lvr_side *t = &p->target, *d = &p->draft;
    ret->embed_head_bytes = lvr_pack_resident_bytes(t->pack);
    ret->kv_bytes = lvr_kv_bytes(t->shape->n_layers, sizes->n_ctx, sizes->target_scratch, kv_dim(t->shape));
    ret->workspace_bytes =
        side_workspace_bytes(t, sizes->n_ctx, sizes->target_rows, sizes->target_logits, sizes->threads);
    ret->draft_bytes = 0;
    if (!p->has_draft)
        return;
    ret->draft_bytes = weight_bytes(d);
    uint64_t draft_kv =
        lvr_kv_bytes(d->shape->n_layers, sizes->n_ctx, sizes->draft_scratch, kv_dim(d->shape));
    if (__builtin_add_overflow(ret->kv_bytes, draft_kv, &ret->kv_bytes))
        ret->kv_bytes = UINT64_MAX;
    ret->workspace_bytes +=
        side_workspace_bytes(d, sizes->n_ctx, sizes->draft_rows, LVR_PAIR_HEAD_CHUNK, sizes->threads);
}

/* ---- Loading ---- */

static lvr_status load_side(lvr_pair *p, lvr_side *side, const bool *resident, uint32_t n_ctx, uint32_t rows,
                            uint32_t scratch, uint32_t n_logits, uint32_t sampled_vocab, lvr_error *err)
{
    lvr_pack *pack = side->pack;
    side->pack = NULL; /* the model takes it over, also when it fails */
    lvr_status status = lvr_model_from_pack(pack, resident, &side->model, err);
    if (status != LVR_OK)
        return status;
    side->pack = side->model->pack;
    side->shape = side->model->shape;
    status = lvr_kv_init(&side->kv, side->shape->n_layers, n_ctx, scratch, kv_dim(side->shape), err);
    if (status != LVR_OK)
        return status;
    status = lvr_forward_new(side->model, &p->kernels, p->pool, &side->kv, rows, &side->forward, err);
    if (status != LVR_OK)
        return status;
    side->n_logits = n_logits;
    side->logits = calloc(n_logits, side->shape->vocab * sizeof(float));
    if (!side->logits)
        return lvr_fail(err, LVR_ERR_NOMEM, "out of memory for %u rows of %u logits", n_logits,
                        side->shape->vocab);
    return lvr_sampler_new(sampled_vocab, &p->kernels, &side->sampler, err);
}

lvr_status lvr_pair_load(lvr_pair *p, const lvr_pair_sizes *sizes, const bool *resident, lvr_error *err)
{
    lvr_kernels_init(&p->kernels, sizes->cpu_level);
    lvr_status status = lvr_pool_new(sizes->threads, &p->pool, err);
    if (status != LVR_OK)
        return status;
    status = load_side(p, &p->target, resident, sizes->n_ctx, sizes->target_rows, sizes->target_scratch,
                       sizes->target_logits, p->target.shape->vocab, err);
    if (status != LVR_OK || !p->has_draft)
        return status;
    /* Vocabularies may differ by padding at the end: the draft never proposes what the target does not have.
     */
    const uint32_t target_vocab = p->target.shape->vocab, draft_vocab = p->draft.shape->vocab;
    return load_side(p, &p->draft, NULL, sizes->n_ctx, sizes->draft_rows, sizes->draft_scratch,
                     LVR_PAIR_HEAD_CHUNK, target_vocab < draft_vocab ? target_vocab : draft_vocab, err);
}

/* ---- Drafting ---- */

static uint32_t draft_heads(lvr_pair *p, uint32_t first, uint32_t n, uint32_t branch, lvr_candidate *out)
{
    lvr_side *d = &p->draft;
    uint32_t rows[LVR_PAIR_HEAD_CHUNK];
    for (uint32_t i = 0; i < n; i++)
        rows[i] = first + i;
    lvr_forward_heads(d->forward, rows, n, d->logits);
    uint32_t per_row = 0;
    for (uint32_t i = 0; i < n; i++) {
        const float *logits = d->logits + (size_t)i * d->shape->vocab;
        per_row = lvr_top_candidates(d->sampler, logits, branch, out);
        out += per_row;
    }
    return per_row;
}

lvr_status lvr_pair_draft(lvr_pair *p, lvr_fwd_row *rows, uint32_t n_rows, uint32_t n_expand, uint32_t branch,
                          lvr_candidate *out, uint32_t *ret_per_row, lvr_error *err)
{
    lvr_side *d = &p->draft;
    /* A padding token of the target stands for no text; any token the draft has will do in its place. */
    for (uint32_t i = 0; i < n_rows; i++)
        if (rows[i].token >= 0 && (uint32_t)rows[i].token >= d->shape->vocab)
            rows[i].token = 0;
    lvr_status status = lvr_forward_embed(d->forward, rows, n_rows, err);
    if (status != LVR_OK)
        return status;
    for (uint32_t l = 0; l < d->shape->n_layers; l++) {
        lvr_forward_layer(d->forward, l, NULL);
        status = p->between_layers ? p->between_layers(p->between_user, err) : LVR_OK;
        if (status != LVR_OK)
            return status;
    }
    uint32_t per_row = 0;
    for (uint32_t done = 0; done < n_expand;) {
        const uint32_t n = n_expand - done < LVR_PAIR_HEAD_CHUNK ? n_expand - done : LVR_PAIR_HEAD_CHUNK;
        per_row = draft_heads(p, n_rows - n_expand + done, n, branch, out + (size_t)done * per_row);
        done += n;
    }
    *ret_per_row = per_row;
    return LVR_OK;
}
