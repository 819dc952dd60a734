/* The rows of a synthetic model's tensors. */
#include "engine/synth/carry.h"
#include "engine/synth/recipe.h"
#include "engine/synth/values.h"
#include <math.h>
#include <string.h>

static void uniform(const lvr_synth_tensor *t, uint64_t row, uint32_t from, float *dst)
{
    const uint32_t n = (uint32_t)t->dims[0] - from;
    const uint64_t begin = row * t->dims[0] + from;
    lvr_synth_uniform(t->key, begin, n, t->value, dst + from);
    lvr_synth_vary_blocks(t->key, begin, n, dst + from);
}

static void norm(const lvr_synth_tensor *t, float *dst)
{
    for (uint64_t i = 0; i < t->dims[0]; i++)
        dst[i] = t->value * (0.9f + 0.2f / 255.0f * (float)(int32_t)(lvr_synth_hash(t->key, i) >> 56));
}

static void constant(const lvr_synth_tensor *t, float *dst)
{
    for (uint64_t i = 0; i < t->dims[0]; i++)
        dst[i] = t->value;
}

/* u_token. Its length matters to its logits, so its scales do not vary. */
static void code(const lvr_recipe *r, int32_t token, float *dst)
{
    const uint32_t width = r->code_width;
    lvr_synth_uniform(r->head_key, (uint64_t)token * width, width, 1.0f / sqrtf((float)width), dst);
}

/* The sum of a_k * u over the successors, scaled to mean square 1. */
static void successors_code(const lvr_recipe *r, int32_t token, float *dst, float *scratch)
{
    int32_t next[LVR_CHAIN_MAX_SUCCESSORS];
    const uint32_t width = r->code_width;
    const float *reading = r->reading[lvr_chain_ease_index(&r->chain, token)];
    lvr_chain_successors(&r->chain, token, next);
    memset(dst, 0, width * sizeof *dst);
    for (uint32_t k = 0; k < r->chain.n_successors && reading[k] > 0; k++) {
        code(r, next[k], scratch);
        for (uint32_t i = 0; i < width; i++)
            dst[i] += reading[k] * scratch[i];
    }
    double squares = 0;
    for (uint32_t i = 0; i < width; i++)
        squares += (double)dst[i] * (double)dst[i];
    const float scale = (float)sqrt((double)width / squares);
    for (uint32_t i = 0; i < width; i++)
        dst[i] *= scale;
}

static void embedding(const lvr_recipe *r, const lvr_synth_tensor *t, int32_t token, float *dst,
                      float *scratch)
{
    if (!r->planted) {
        lvr_synth_uniform(t->key, (uint64_t)token * t->dims[0], (uint32_t)t->dims[0], 1.0f, dst);
        return;
    }
    if (!r->shape->tied) {
        successors_code(r, token, dst, scratch);
        return;
    }
    const uint32_t half = r->shape->d_model / 2;
    memset(dst, 0, t->dims[0] * sizeof *dst);
    code(r, token, dst);
    successors_code(r, token, dst + half, scratch);
    for (uint32_t i = 0; i < LVR_CARRY_CONSTANTS; i++)
        dst[half + r->code_width + i] = 1.0f;
}

/* Reads only what the head is to see. */
static void output_norm(const lvr_recipe *r, const lvr_synth_tensor *t, float *dst)
{
    constant(t, dst);
    if (!r->shape->tied)
        return;
    if (r->planted) {
        memset(dst + r->code_width, 0, (t->dims[0] - r->code_width) * sizeof *dst);
        return;
    }
    /* Half of the signs are turned, so that a token's own embedding is not its own best successor. */
    for (uint64_t i = 0; i < t->dims[0]; i += 2)
        dst[i] = -dst[i];
}

static void carry_gate(const lvr_recipe *r, const lvr_synth_tensor *t, uint64_t row, float *dst)
{
    if (row >= r->code_width) {
        uniform(t, row, 0, dst);
        return;
    }
    const uint32_t first = r->shape->d_model / 2 + r->code_width;
    memset(dst, 0, t->dims[0] * sizeof *dst);
    for (uint32_t i = 0; i < LVR_CARRY_CONSTANTS; i++)
        dst[first + i] = lvr_carry_gate_weight(r);
}

static void carry_up(const lvr_recipe *r, const lvr_synth_tensor *t, uint64_t row, float *dst)
{
    if (row >= r->code_width) {
        uniform(t, row, 0, dst);
        return;
    }
    memset(dst, 0, t->dims[0] * sizeof *dst);
    dst[r->shape->d_model / 2 + row] = LVR_CARRY_UP;
}

static void carry_down(const lvr_recipe *r, const lvr_synth_tensor *t, uint64_t row, float *dst)
{
    memset(dst, 0, r->code_width * sizeof *dst);
    uniform(t, row, r->code_width, dst);
    if (row < r->code_width)
        dst[row] = lvr_carry_down_weight(r);
}

/* Llama 3's scaling as ggml applies it: a frequency is divided by its factor. */
static void rope_freqs(const lvr_recipe *r, float *dst)
{
    const lvr_rope_llama3 *s = &r->shape->rope_llama3;
    const double two_pi = 6.283185307179586;
    for (uint32_t i = 0; i < r->shape->head_dim / 2; i++) {
        const double wave = two_pi * pow(r->shape->rope_base, 2.0 * i / r->shape->head_dim);
        const double turns = s->original_n_ctx / wave;
        double keep = (turns - s->low_freq_factor) / (s->high_freq_factor - s->low_freq_factor);
        keep = keep < 0 ? 0 : keep > 1 ? 1 : keep;
        dst[i] = (float)(1.0 / ((1.0 - keep) / s->factor + keep));
    }
}

void lvr_recipe_row(const lvr_recipe *r, const lvr_synth_tensor *t, uint64_t row, float *dst, float *scratch)
{
    switch (t->fill) {
    case LVR_FILL_UNIFORM:
        uniform(t, row, 0, dst);
        return;
    case LVR_FILL_NORM:
        norm(t, dst);
        return;
    case LVR_FILL_CONSTANT:
        constant(t, dst);
        return;
    case LVR_FILL_OUTPUT_NORM:
        output_norm(r, t, dst);
        return;
    case LVR_FILL_HEAD:
        code(r, (int32_t)row, dst);
        return;
    case LVR_FILL_EMBEDDING:
        embedding(r, t, (int32_t)row, dst, scratch);
        return;
    case LVR_FILL_CARRY_GATE:
        carry_gate(r, t, row, dst);
        return;
    case LVR_FILL_CARRY_UP:
        carry_up(r, t, row, dst);
        return;
    case LVR_FILL_CARRY_DOWN:
        carry_down(r, t, row, dst);
        return;
    case LVR_FILL_ROPE_FREQS:
        rope_freqs(r, dst);
        return;
    }
}
