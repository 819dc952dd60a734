#include "engine/pair.h"

#include "common/minmax.h"
#include "engine/pack_cache.h"
#include <stdlib.h>
#include <string.h>

/* ---- Opening ---- */

static lvr_status open_side(const char *path, const char *what, const lvr_watch *watch, lvr_side *side,
                            lvr_error *err)
{
    const lvr_pack_options options = {
        .cancel = watch->cancel, .progress = watch->progress, .user = watch->user, .needs_tokenizer = true};
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

static lvr_status open_draft(const char *path, lvr_pair *p, lvr_error *err)
{
    lvr_status status = open_side(path, "draft", &p->watch, &p->draft, err);
    if (status != LVR_OK)
        return status;
    p->has_draft = true;
    status = lvr_tokenizer_compatible(p->target.tokenizer, p->draft.tokenizer, err);
    if (status != LVR_OK)
        lvr_error_prefix(err, "draft %s does not fit target %s", path, lvr_pack_path(p->target.pack));
    return status;
}

lvr_status lvr_pair_open(const char *target_path, const char *draft_path, const lvr_watch *watch,
                         lvr_pair *ret, lvr_error *err)
{
    lvr_pair p = {0};
    if (watch)
        p.watch = *watch;
    lvr_status status = open_side(target_path, "target", &p.watch, &p.target, err);
    if (status == LVR_OK && draft_path)
        status = open_draft(draft_path, &p, err);
    if (status != LVR_OK) {
        lvr_pair_free(&p);
        return status;
    }
    *ret = p;
    return LVR_OK;
}

/* ---- Sizes ---- */

/* What a side is made for. */
typedef struct side_sizes {
    uint32_t rows, prompt_rows, scratch, n_logits;
} side_sizes;

static side_sizes target_sizes(const lvr_pair_sizes *s)
{
    return (side_sizes){s->target_rows, s->target_prompt_rows, s->target_scratch, s->target_logits};
}

static side_sizes draft_sizes(const lvr_pair_sizes *s)
{
    return (side_sizes){s->draft_rows, s->draft_prompt_rows, s->draft_scratch, LVR_PAIR_HEAD_CHUNK};
}

static uint64_t kv_bytes(const lvr_side *side, const lvr_pair_sizes *sizes, uint32_t scratch)
{
    const lvr_kv_shape shape = lvr_forward_kv_shape(side->shape, sizes->kv_type, sizes->n_ctx, scratch);
    return lvr_kv_bytes(&shape);
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
static uint64_t side_workspace_bytes(const lvr_side *side, const lvr_pair_sizes *sizes, side_sizes own)
{
    uint64_t header = 0;
    lvr_gguf_header(lvr_pack_gguf(side->pack), &header);
    const uint64_t forward =
        lvr_forward_bytes(side->shape, sizes->n_ctx, own.rows, own.prompt_rows, sizes->threads);
    return lvr_add_sat_u64(forward, (uint64_t)side->shape->vocab * own.n_logits * sizeof(float) + 3 * header);
}

static uint64_t score_bytes(const lvr_side *side, uint32_t rows)
{
    const lvr_pack_tensor *head = lvr_pack_resident_tensor(side->pack, LVR_ROLE_OUTPUT);
    return lvr_forward_scores_bytes(head ? head : lvr_pack_resident_tensor(side->pack, LVR_ROLE_TOKEN_EMBD),
                                    rows);
}

void lvr_pair_parts(const lvr_pair *p, const lvr_pair_sizes *sizes, lvr_budget_parts *ret)
{
    const lvr_side *t = &p->target, *d = &p->draft;
    ret->embed_bytes = lvr_pack_resident_tensor(t->pack, LVR_ROLE_TOKEN_EMBD)->bytes;
    ret->head_bytes = lvr_pack_resident_bytes(t->pack) - ret->embed_bytes;
    ret->kv_target_bytes = kv_bytes(t, sizes, sizes->target_scratch);
    ret->kv_draft_bytes = 0;
    ret->workspace_bytes = side_workspace_bytes(t, sizes, target_sizes(sizes));
    if (sizes->target_scores)
        ret->workspace_bytes = lvr_add_sat_u64(ret->workspace_bytes, score_bytes(t, sizes->target_rows));
    ret->draft_bytes = 0;
    if (!p->has_draft)
        return;
    ret->draft_bytes = weight_bytes(d);
    ret->kv_draft_bytes = kv_bytes(d, sizes, sizes->draft_scratch);
    ret->workspace_bytes =
        lvr_add_sat_u64(ret->workspace_bytes, side_workspace_bytes(d, sizes, draft_sizes(sizes)));
}

/* ---- Loading ---- */

static lvr_status load_side(lvr_pair *p, lvr_side *side, const bool *resident, const lvr_pair_sizes *sizes,
                            side_sizes own, uint32_t sampled_vocab, lvr_error *err)
{
    lvr_pack *pack = side->pack;
    side->pack = NULL; /* the model takes it over, also when it fails */
    lvr_status status = lvr_model_from_pack(pack, resident, &p->watch, &side->model, err);
    if (status != LVR_OK)
        return status;
    side->pack = side->model->pack;
    side->shape = side->model->shape;
    const lvr_kv_shape shape = lvr_forward_kv_shape(side->shape, sizes->kv_type, sizes->n_ctx, own.scratch);
    status = lvr_kv_init(&side->kv, &shape, err);
    if (status != LVR_OK)
        return status;
    status = lvr_forward_new(side->model, &p->kernels, p->pool, &side->kv, own.rows, own.prompt_rows,
                             &side->forward, err);
    if (status != LVR_OK)
        return status;
    side->n_logits = own.n_logits;
    side->logits = calloc(own.n_logits, side->shape->vocab * sizeof(float));
    if (!side->logits)
        return lvr_fail(err, LVR_ERR_NOMEM, "out of memory for %u rows of %u logits", own.n_logits,
                        side->shape->vocab);
    return lvr_sampler_new(sampled_vocab, &p->kernels, &side->sampler, err);
}

lvr_status lvr_pair_load(lvr_pair *p, const lvr_pair_sizes *sizes, const bool *resident, lvr_error *err)
{
    lvr_kernels_init(&p->kernels, sizes->cpu_level);
    lvr_status status = lvr_pool_new(sizes->threads, &p->pool, err);
    if (status != LVR_OK)
        return status;
    const uint32_t target_vocab = p->target.shape->vocab;
    status = load_side(p, &p->target, resident, sizes, target_sizes(sizes), target_vocab, err);
    if (status != LVR_OK || !p->has_draft)
        return status;
    /* Vocabularies may differ by padding at the end: the draft never proposes what the target does not have.
     */
    const uint32_t draft_vocab = p->draft.shape->vocab;
    return load_side(p, &p->draft, NULL, sizes, draft_sizes(sizes), lvr_min_u32(target_vocab, draft_vocab),
                     err);
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

/* A padding token of the target stands for no text; any token the draft has will do in its place. */
static int32_t draft_token(const lvr_pair *p, int32_t token)
{
    return token >= 0 && (uint32_t)token >= p->draft.shape->vocab ? 0 : token;
}

static lvr_status draft_layers(lvr_pair *p, uint32_t n_rows, lvr_error *err)
{
    lvr_status status = LVR_OK;
    for (uint32_t l = 0; status == LVR_OK && l < p->draft.shape->n_layers; l++) {
        if (p->run_layer)
            status = p->run_layer(p->run_layer_user, l, n_rows, err);
        else
            lvr_forward_layer(p->draft.forward, l, NULL);
        if (status == LVR_OK && p->watch.cancel &&
            atomic_load_explicit(p->watch.cancel, memory_order_relaxed))
            return lvr_fail(err, LVR_ERR_INTERRUPTED, "interrupted while drafting");
        if (status == LVR_OK && p->between_layers)
            status = p->between_layers(p->between_user, err);
    }
    return status;
}

lvr_status lvr_pair_draft(lvr_pair *p, lvr_fwd_row *rows, uint32_t n_rows, uint32_t n_expand, uint32_t branch,
                          lvr_candidate *out, uint32_t *ret_per_row, lvr_error *err)
{
    for (uint32_t i = 0; i < n_rows; i++)
        rows[i].token = draft_token(p, rows[i].token);
    lvr_status status = lvr_forward_embed(p->draft.forward, rows, n_rows, err);
    if (status == LVR_OK)
        status = draft_layers(p, n_rows, err);
    if (status != LVR_OK)
        return status;
    uint32_t per_row = 0;
    for (uint32_t done = 0; done < n_expand;) {
        const uint32_t n = lvr_min_u32(n_expand - done, LVR_PAIR_HEAD_CHUNK);
        per_row = draft_heads(p, n_rows - n_expand + done, n, branch, out + (size_t)done * per_row);
        done += n;
    }
    *ret_per_row = per_row;
    return LVR_OK;
}

lvr_status lvr_pair_draft_prompt(lvr_pair *p, int32_t *tokens, uint32_t n, lvr_error *err)
{
    lvr_kv *kv = &p->draft.kv;
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = draft_token(p, tokens[i]);
    lvr_status status = lvr_forward_embed_prompt(p->draft.forward, tokens, kv->n_cached, n, err);
    if (status == LVR_OK)
        status = draft_layers(p, n, err);
    return status == LVR_OK ? lvr_kv_append(kv, n, err) : status;
}
