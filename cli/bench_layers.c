#include "cli/bench_layers.h"

#include "cli/bench.h"
#include "common/minmax.h"
#include <string.h>

#define FILL_BYTES (UINT64_C(32) << 20) /* between two looks for an interruption */

void lvr_bench_plant_tree(lvr_fwd_row *rows, uint32_t n, uint32_t context, uint32_t vocab)
{
    for (uint32_t r = 0; r < n; r++) {
        const int32_t parent = r == 0 ? -1 : (int32_t)((r - 1) / 2);
        rows[r] = (lvr_fwd_row){.token = (int32_t)(r * 7919u % vocab),
                                .position = r == 0 ? context : rows[parent].position + 1,
                                .slot = r,
                                .parent_slot = parent};
    }
}

static lvr_status fill(void *data, uint64_t bytes, lvr_error *err)
{
    lvr_status status = LVR_OK;
    for (uint64_t at = 0; at < bytes && status == LVR_OK; at += FILL_BYTES) {
        memset((uint8_t *)data + at, 0, lvr_min_u64(bytes - at, FILL_BYTES));
        status = lvr_bench_check_cancel(err);
    }
    return status;
}

lvr_status lvr_bench_kv_init(lvr_kv *kv, const lvr_model_shape *shape, lvr_kv_type type, uint32_t context,
                             uint32_t max_rows, lvr_error *err)
{
    const lvr_kv_shape cache = lvr_forward_kv_shape(shape, type, context + max_rows, max_rows);
    lvr_status status = lvr_kv_init(kv, &cache, err);
    if (status != LVR_OK)
        return status;
    /* The time of attention does not depend on what the cache holds. */
    const uint64_t bytes = (uint64_t)cache.n_layers * cache.n_kv * cache.n_ctx * kv->row_bytes;
    status = fill(kv->k, bytes, err);
    if (status == LVR_OK)
        status = fill(kv->v, bytes, err);
    kv->n_cached = context;
    return status;
}
