#include "engine/forward_internal.h"

#include <string.h>

static lvr_status check_token(const lvr_forward *f, int32_t token, lvr_error *err)
{
    if (token >= 0 && (uint32_t)token < f->shape->vocab)
        return LVR_OK;
    return lvr_fail(err, LVR_ERR_FORMAT, "token %d is outside the vocabulary: expected 0 to %u", token,
                    f->shape->vocab - 1);
}

static lvr_status check_row(const lvr_forward *f, const lvr_fwd_row *row, lvr_error *err)
{
    const lvr_status status = check_token(f, row->token, err);
    if (status != LVR_OK)
        return status;
    if (row->position >= f->kv->shape.n_ctx)
        return lvr_fail(err, LVR_ERR_INVARIANT, "forward: position %u is outside the context of %u",
                        row->position, f->kv->shape.n_ctx);
    const uint32_t n_slots = f->kv->shape.max_scratch;
    if (row->slot >= n_slots || row->parent_slot < -1 ||
        (row->parent_slot >= 0 && (uint32_t)row->parent_slot >= n_slots))
        return lvr_fail(err, LVR_ERR_INVARIANT, "forward: scratch row %u (parent %d), expected below %u",
                        row->slot, row->parent_slot, n_slots);
    if (f->slots[row->slot].pass == f->pass)
        return lvr_fail(err, LVR_ERR_INVARIANT, "forward: two rows of a pass use scratch row %u", row->slot);
    return LVR_OK;
}

/* Every position from the row's own down to the cache must be found by going from parent to parent: attention
 * relies on it. */
static lvr_status check_ancestors(const lvr_forward *f, const lvr_fwd_row *row, lvr_error *err)
{
    int32_t slot = (int32_t)row->slot;
    if (row->position < f->kv->n_cached)
        return lvr_fail(err, LVR_ERR_INVARIANT, "forward: position %u is already in the cache of %u",
                        row->position, f->kv->n_cached);
    for (uint32_t p = row->position;; p--) {
        if (slot < 0 || f->slots[slot].pass == 0 || f->slots[slot].position != p)
            return lvr_fail(err, LVR_ERR_INVARIANT,
                            "forward: the row at position %u has no ancestor at position %u (cached: %u)",
                            row->position, p, f->kv->n_cached);
        if (p == f->kv->n_cached)
            return LVR_OK;
        slot = f->slots[slot].parent;
    }
}

lvr_status lvr_forward_take_rows(lvr_forward *f, const lvr_fwd_row *rows, uint32_t n_rows, lvr_error *err)
{
    if (n_rows > f->max_rows)
        return lvr_fail(err, LVR_ERR_INVARIANT, "forward: a pass of %u rows, expected at most %u", n_rows,
                        f->max_rows);
    f->n_rows = 0;
    f->prompt = false;
    f->pass++;
    for (uint32_t r = 0; r < n_rows; r++) {
        const lvr_status status = check_row(f, &rows[r], err);
        if (status != LVR_OK)
            return status;
        f->slots[rows[r].slot] =
            (slot_info){.pass = f->pass, .position = rows[r].position, .parent = rows[r].parent_slot};
    }
    for (uint32_t r = 0; r < n_rows; r++) {
        const lvr_status status = check_ancestors(f, &rows[r], err);
        if (status != LVR_OK)
            return status;
    }
    if (n_rows)
        memcpy(f->rows, rows, n_rows * sizeof *rows);
    f->n_rows = n_rows;
    return LVR_OK;
}

lvr_status lvr_forward_take_prompt(lvr_forward *f, const int32_t *tokens, uint32_t first_position, uint32_t n,
                                   lvr_error *err)
{
    const uint32_t n_ctx = f->kv->shape.n_ctx, n_cached = f->kv->n_cached;
    f->n_rows = 0;
    if (n > f->max_prompt_rows)
        return lvr_fail(err, LVR_ERR_INVARIANT, "forward: %u rows of a prompt in a pass, expected at most %u",
                        n, f->max_prompt_rows);
    if (first_position != n_cached)
        return lvr_fail(err, LVR_ERR_INVARIANT,
                        "forward: rows of a prompt from position %u on, but the cache holds %u",
                        first_position, n_cached);
    if (n > n_ctx - n_cached)
        return lvr_fail(err, LVR_ERR_INVARIANT,
                        "forward: %u rows of a prompt from position %u on are outside the context of %u", n,
                        first_position, n_ctx);
    for (uint32_t i = 0; i < n; i++) {
        const lvr_status status = check_token(f, tokens[i], err);
        if (status != LVR_OK)
            return status;
    }
    f->pass++;
    f->prompt = true;
    f->first_position = first_position;
    f->n_rows = n;
    return LVR_OK;
}
