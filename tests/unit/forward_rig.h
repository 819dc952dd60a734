/* A tiny random model with all that a pass needs, for tests of the forward pass. Failures fail the running
 * Criterion test. */
#ifndef LVR_TESTS_FORWARD_RIG_H
#define LVR_TESTS_FORWARD_RIG_H

#include "engine/forward.h"
#include "tests/unit/gguf_builder.h"

struct model_file {
    char dir[64]; /* a temporary directory, also the pack cache */
    char path[96];
};

/* Builds the model's GGUF in a directory of its own and points $LVR_CACHE_DIR there. */
void model_file_make(struct model_file *file, const struct gguf_tiny *spec);
void model_file_remove(const struct model_file *file);

struct rig {
    lvr_model *model; /* borrowed */
    lvr_kernels kernels;
    lvr_pool *pool;
    lvr_kv kv;
    lvr_forward *forward;
    uint32_t vocab;
};

lvr_model *rig_model(const struct model_file *file, const bool *resident);
struct rig_sizes {
    lvr_cpu_level level;
    lvr_kv_type kv_type;
    uint32_t threads, n_ctx, max_rows, max_prompt_rows, max_scratch;
};
void rig_open_sized(struct rig *r, lvr_model *model, const struct rig_sizes *sizes);
/* An F16 cache, no prompt passes. */
void rig_open(struct rig *r, lvr_model *model, lvr_cpu_level level, uint32_t threads, uint32_t n_ctx,
              uint32_t max_rows, uint32_t max_scratch);
void rig_close(struct rig *r);

/* One pass over rows; logits of each to out[n][vocab] unless out is NULL. */
void rig_pass(struct rig *r, const lvr_fwd_row *rows, uint32_t n, float *out);
/* Tokens as a chain of scratch rows after the cache, `chunk` a pass, each pass committed. */
void rig_prompt(struct rig *r, const int32_t *tokens, uint32_t n, uint32_t chunk);
/* The same by prompt passes, straight into the cache. */
void rig_prompt_direct(struct rig *r, const int32_t *tokens, uint32_t n, uint32_t chunk);

#endif
