#include "engine/perplexity.h"

#include "engine/forward.h"
#include <math.h>
#include <stdlib.h>

#define MIN_CHUNK 4u
#define HEAD_ROWS 16u /* rows whose logits are held at once */

typedef struct scorer {
    const lvr_perplexity_config *config;
    const lvr_model *model;
    const lvr_tokenizer *tokenizer;
    lvr_kv kv;
    lvr_forward *forward;
    lvr_fwd_row *rows;  /* [config->rows] */
    uint32_t *slots;    /* [config->rows] */
    float *logits;      /* [HEAD_ROWS][vocab] */
    double sum, sum_sq; /* of negative log-likelihoods */
    uint64_t n_scored;
} scorer;

/* -log softmax(logits)[token], in double. */
static double negative_log_likelihood(const float *logits, uint32_t vocab, int32_t token)
{
    double max = (double)logits[0], sum = 0;
    for (uint32_t i = 1; i < vocab; i++)
        max = fmax(max, (double)logits[i]);
    for (uint32_t i = 0; i < vocab; i++)
        sum += exp((double)logits[i] - max);
    return max + log(sum) - (double)logits[token];
}

static void score_row(scorer *s, const float *logits, int32_t next)
{
    const double nll = negative_log_likelihood(logits, s->model->shape->vocab, next);
    s->sum += nll;
    s->sum_sq += nll * nll;
    s->n_scored++;
}

/* Scores what the rows [first, n) of a pass, the chunk's tokens from `begin` on, say of the tokens after
 * them. */
static void score_rows(scorer *s, const int32_t *chunk, uint32_t begin, uint32_t first, uint32_t n)
{
    const uint32_t vocab = s->model->shape->vocab;
    for (uint32_t r = first; r < n; r += HEAD_ROWS) {
        const uint32_t batch = n - r < HEAD_ROWS ? n - r : HEAD_ROWS;
        uint32_t index[HEAD_ROWS];
        for (uint32_t i = 0; i < batch; i++)
            index[i] = r + i;
        lvr_forward_heads(s->forward, index, batch, s->logits);
        for (uint32_t i = 0; i < batch; i++)
            score_row(s, s->logits + (size_t)i * vocab, chunk[begin + r + i + 1]);
    }
}

static lvr_status run_pass(scorer *s, const int32_t *chunk, uint32_t begin, uint32_t n, lvr_error *err)
{
    for (uint32_t r = 0; r < n; r++) {
        s->rows[r] = (lvr_fwd_row){
            .token = chunk[begin + r], .position = begin + r, .slot = r, .parent_slot = (int32_t)r - 1};
        s->slots[r] = r;
    }
    const lvr_status status = lvr_forward_embed(s->forward, s->rows, n, err);
    if (status != LVR_OK)
        return status;
    for (uint32_t l = 0; l < s->model->shape->n_layers; l++)
        lvr_forward_layer(s->forward, l, NULL);
    const uint32_t first_scored = s->config->n_ctx / 2, end_scored = s->config->n_ctx - 1;
    const uint32_t first = begin < first_scored ? first_scored - begin : 0;
    score_rows(s, chunk, begin, first, begin + n > end_scored ? end_scored - begin : n);
    return lvr_kv_commit(&s->kv, s->slots, n, err);
}

static lvr_status score_chunk(scorer *s, int32_t *chunk, lvr_error *err)
{
    if (lvr_tokenizer_adds_bos(s->tokenizer))
        chunk[0] = lvr_tokenizer_bos(s->tokenizer);
    lvr_kv_clear(&s->kv);
    lvr_status status = LVR_OK;
    for (uint32_t at = 0; at < s->config->n_ctx && status == LVR_OK; at += s->config->rows) {
        const uint32_t left = s->config->n_ctx - at;
        status = run_pass(s, chunk, at, left < s->config->rows ? left : s->config->rows, err);
    }
    return status;
}

static lvr_status score_chunks(scorer *s, int32_t *tokens, uint32_t n_chunks, lvr_error *err)
{
    for (uint32_t i = 0; i < n_chunks; i++) {
        lvr_status status = score_chunk(s, tokens + (size_t)i * s->config->n_ctx, err);
        if (status == LVR_OK && s->config->on_chunk)
            status = s->config->on_chunk(s->config->user, i + 1, n_chunks, err);
        if (status != LVR_OK)
            return status;
    }
    return LVR_OK;
}

static lvr_status prepare(scorer *s, lvr_error *err)
{
    const lvr_perplexity_config *c = s->config;
    const lvr_model_shape *shape = s->model->shape;
    s->rows = calloc(c->rows, sizeof *s->rows);
    s->slots = calloc(c->rows, sizeof *s->slots);
    s->logits = calloc(HEAD_ROWS, shape->vocab * sizeof *s->logits);
    if (!s->rows || !s->slots || !s->logits)
        return lvr_fail(err, LVR_ERR_NOMEM, "perplexity: out of memory");
    const lvr_kv_shape cache = lvr_forward_kv_shape(shape, c->kv_type, c->n_ctx, c->rows);
    const lvr_status status = lvr_kv_init(&s->kv, &cache, err);
    if (status != LVR_OK)
        return status;
    return lvr_forward_new(s->model, c->kernels, c->pool, &s->kv, c->rows, 0, &s->forward, err);
}

static void release(scorer *s)
{
    lvr_forward_free(s->forward);
    lvr_kv_free(&s->kv);
    free(s->logits);
    free(s->slots);
    free(s->rows);
}

static lvr_perplexity summarise(const scorer *s, uint64_t n_tokens, uint32_t n_chunks)
{
    const double n = (double)s->n_scored, mean = s->sum / n;
    const double variance = s->n_scored > 1 ? fmax(s->sum_sq / n - mean * mean, 0) / (n - 1) : 0;
    return (lvr_perplexity){.n_tokens = n_tokens,
                            .n_scored = s->n_scored,
                            .n_chunks = n_chunks,
                            .nll = mean,
                            .nll_stderr = sqrt(variance),
                            .perplexity = exp(mean)};
}

static lvr_status count_chunks(const lvr_perplexity_config *c, uint32_t n_tokens, uint32_t *ret,
                               lvr_error *err)
{
    if (c->n_ctx < MIN_CHUNK || c->rows == 0)
        return lvr_fail(err, LVR_ERR_USAGE,
                        "perplexity: chunks of %u tokens in passes of %u rows; expected at least %u and 1",
                        c->n_ctx, c->rows, MIN_CHUNK);
    const uint32_t n = n_tokens / c->n_ctx;
    if (n == 0)
        return lvr_fail(
            err, LVR_ERR_CONFIG,
            "perplexity: the text has %u tokens, less than one chunk of %u; take a longer text or a "
            "smaller --context",
            n_tokens, c->n_ctx);
    *ret = c->max_chunks && c->max_chunks < n ? c->max_chunks : n;
    return LVR_OK;
}

lvr_status lvr_perplexity_of(const lvr_model *model, const lvr_tokenizer *tokenizer, const char *text,
                             size_t n, const lvr_perplexity_config *config, lvr_perplexity *ret,
                             lvr_error *err)
{
    scorer s = {.config = config, .model = model, .tokenizer = tokenizer};
    int32_t *tokens = NULL;
    uint32_t n_tokens = 0, n_chunks = 0;
    lvr_status status = lvr_tokenize(tokenizer, text, n, true, &tokens, &n_tokens, err);
    if (status != LVR_OK)
        return status;
    status = count_chunks(config, n_tokens, &n_chunks, err);
    if (status == LVR_OK)
        status = prepare(&s, err);
    if (status == LVR_OK)
        status = score_chunks(&s, tokens, n_chunks, err);
    if (status == LVR_OK)
        *ret = summarise(&s, n_tokens, n_chunks);
    release(&s);
    free(tokens);
    return status;
}
