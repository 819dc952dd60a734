/* What the benchmarks of a model's layers share: rows of a token tree that follow a context, and the cache of
 * that context. */
#ifndef LVR_CLI_BENCH_LAYERS_H
#define LVR_CLI_BENCH_LAYERS_H

#include "engine/forward.h"

#define LVR_BENCH_MAX_ROWS 256u
#define LVR_BENCH_MAX_CONTEXT (1u << 20)

/* rows[0..n): a binary tree whose root is at position `context`. */
void lvr_bench_plant_tree(lvr_fwd_row *rows, uint32_t n, uint32_t context, uint32_t vocab);
/* A cache that holds `context` positions and has room for max_rows more, all of it memory that is really
 * there. LVR_ERR_INTERRUPTED after SIGINT or SIGTERM; the caller frees it then, too. */
lvr_status lvr_bench_kv_init(lvr_kv *kv, const lvr_model_shape *shape, lvr_kv_type type, uint32_t context,
                             uint32_t max_rows, lvr_error *err);

#endif
