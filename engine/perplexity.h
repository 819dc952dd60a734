/*
 * Perplexity of a model on a text: exp of the mean negative log-likelihood of its tokens, by the field's
 * usual rule, so that figures compare between engines: the text's tokens are cut into chunks of n_ctx, the
 * first token of a chunk is replaced by BOS where the model wants one, and only the second half of a chunk is
 * scored (its tokens 1 + n_ctx / 2 to n_ctx - 1, each given all before it). What is left after the last whole
 * chunk is not used.
 */
#ifndef LVR_ENGINE_PERPLEXITY_H
#define LVR_ENGINE_PERPLEXITY_H

#include "common/threads.h"
#include "engine/kernels/kernels.h"
#include "engine/model.h"
#include "engine/tokenizer/tokenizer.h"

typedef struct lvr_perplexity {
    uint64_t n_tokens, n_scored; /* of the text; whose likelihood counts */
    uint32_t n_chunks;
    double nll, nll_stderr; /* nats per scored token: mean, and its standard error */
    double perplexity;      /* exp(nll) */
} lvr_perplexity;

typedef struct lvr_perplexity_config {
    uint32_t n_ctx;      /* tokens per chunk, at least 4 */
    uint32_t max_chunks; /* 0: all */
    uint32_t rows;       /* rows per pass, at least 1; changes no bit of the result */
    lvr_kv_type kv_type;
    const lvr_kernels *kernels;
    lvr_pool *pool;
    lvr_status (*on_chunk)(void *user, uint32_t done, uint32_t n, lvr_error *err); /* NULL, or progress; a
                                                                                      failure ends the work */
    void *user;
} lvr_perplexity_config;

/* All of the model's layers are resident. LVR_ERR_CONFIG: the text has less than one chunk of tokens. */
lvr_status lvr_perplexity_of(const lvr_model *model, const lvr_tokenizer *tokenizer, const char *text,
                             size_t n, const lvr_perplexity_config *config, lvr_perplexity *ret,
                             lvr_error *err);

#endif
