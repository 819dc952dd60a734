/* The list of a synthetic model's tensors and the scales of their values. */
#include "engine/synth/recipe.h"
#include "engine/synth/carry.h"
#include "engine/synth/odds.h"
#include "engine/synth/values.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Root mean square of silu(a) * b for independent standard normal a and b. */
#define GLU_RMS 0.5964692f
/* What is left of the values' root mean square after attention has averaged them, with scores of this
 * standard deviation: a few positions get most of the weight. */
#define SCORE_STD 3.0f
#define ATTENTION_RMS 0.6f
/* Attention's share of a layer's energy. It makes the noise depend on the text so far; the rest is the
 * feed-forward network's, whose strength does not depend on the text. */
#define ATTENTION_SHARE 0.3f
#define PLAIN_NOISE 1.0f
#define BIAS_STD 0.3f
/* Noise energy of the chance products of the successors' codes, in units of a signal of mean square 1 times
 * (K - CROSSTALK_LESS) / K: of the K - 1 products one is common to both of two logits and part of another is
 * gained back by the spread of the codes' own lengths. */
#define CROSSTALK_LESS 1.2
#define MIN_NOISE 0.2
#define NOISE_STEP 0.25
#define GATE 8.0f /* what opens a carrying gate */

/* ---- the planted chain's scales ---- */

static double crosstalk(const lvr_synth_planting *p)
{
    return (p->n_successors - CROSSTALK_LESS) / p->n_successors;
}

/* Standard deviation of a successor's logit, in units of the signal's root mean square. */
static double logit_noise(const lvr_synth_planting *p)
{
    return sqrt(p->noise * p->noise + crosstalk(p));
}

/* Sum of the squares of a_k = max(0, 1 - k * gap). */
static double reading_energy(uint32_t n, double gap)
{
    double sum = 0;
    for (uint32_t k = 0; k < n; k++) {
        const double a = 1 - k * gap;
        sum += a > 0 ? a * a : 0;
    }
    return sum;
}

/* Gap of two successors' logits, in the same units as logit_noise. */
static double logit_gap(const lvr_recipe *r, double gap)
{
    return gap * sqrt((double)r->code_width / reading_energy(r->planting.n_successors, gap));
}

/* The relative spacing that gives a gap of `wanted`, at most 1: then only one successor is left. */
static double gap_for(const lvr_recipe *r, double wanted)
{
    double lo = 0, hi = 1;
    for (uint32_t i = 0; i < 40; i++) {
        const double mid = (lo + hi) / 2;
        if (logit_gap(r, mid) < wanted)
            lo = mid;
        else
            hi = mid;
    }
    return hi;
}

static void set_readings(lvr_recipe *r)
{
    const double unit = r->planting.clarity * logit_noise(&r->planting);
    for (uint32_t e = 0; e < LVR_CHAIN_EASES; e++) {
        const double gap = gap_for(r, unit * (double)lvr_chain_ease_level(e));
        for (uint32_t k = 0; k < r->planting.n_successors; k++)
            r->reading[e][k] = (float)fmax(0, 1 - k * gap);
    }
}

static uint32_t vocab_bits(const lvr_shape *s)
{
    return 32u - (uint32_t)__builtin_clz(s->vocab - 1);
}

/* The most noise at which the best of all other tokens' logits (z standard deviations above 0) stays below
 * the successors': sqrt(width / K) > z * sqrt(1 + noise^2). */
static double most_noise(const lvr_recipe *r)
{
    const double z =
        sqrt(1.3863 * vocab_bits(r->shape)) + 0.45; /* sqrt(2 ln vocab), and the spread of the maximum */
    const double room = r->code_width / (r->planting.n_successors * z * z) - 1;
    return room > 0 ? floor(sqrt(room) * 100) / 100 : 0;
}

static lvr_status set_noise(lvr_recipe *r, lvr_error *err)
{
    const double most = most_noise(r);
    if (most < MIN_NOISE)
        return lvr_fail(
            err, LVR_ERR_CONFIG,
            "%s: width %u is too small to plant a chain of %u successors in %u tokens; plant fewer "
            "successors, or write a plain random model",
            r->shape->name, r->shape->d_model, r->planting.n_successors, r->shape->vocab);
    if (r->planting.noise > most)
        return lvr_fail(err, LVR_ERR_CONFIG,
                        "%s: noise %g would drown the chain: at width %u it can be at most %.2f",
                        r->shape->name, r->planting.noise, r->shape->d_model, most);
    if (r->planting.noise == 0)
        r->planting.noise = most < 1 ? most : 1;
    return LVR_OK;
}

/* Energy of the layers' noise: even, or in two even parts, so that an early layer agrees as often as wanted.
 */
static void set_layers(lvr_recipe *r)
{
    const uint32_t n = r->shape->n_layers, early = r->planting.early_layer;
    const double noise = r->planted ? r->planting.noise : (double)PLAIN_NOISE;
    for (uint32_t l = 0; l < n; l++) {
        double share = 1.0 / n;
        if (early > 0 && l < early)
            share = r->planting.early_fraction / early;
        else if (early > 0)
            share = (1 - r->planting.early_fraction) / (n - early);
        r->layer_rms[l] = (float)(noise * sqrt(share));
    }
}

/* Share of a logit's noise energy that is there before the first layer. */
static double fixed_share(const lvr_synth_planting *p)
{
    return crosstalk(p) / (crosstalk(p) + p->noise * p->noise);
}

/* An early layer that seldom agrees needs layers that change much: the least noise above 1 that can do it. */
static void raise_noise(lvr_recipe *r, const lvr_odds *odds)
{
    lvr_synth_planting *p = &r->planting;
    const double most = most_noise(r);
    while (p->noise < most && lvr_odds_early(odds, p->clarity, fixed_share(p), 0) > p->early_agreement)
        p->noise = p->noise + NOISE_STEP < most ? p->noise + NOISE_STEP : most;
}

static lvr_status solve(lvr_recipe *r, const lvr_odds *odds, bool given_noise, lvr_error *err)
{
    lvr_synth_planting *p = &r->planting;
    lvr_status status = LVR_OK;
    if (p->agreement > 0)
        status = lvr_odds_clarity(odds, p->agreement, &p->clarity, err);
    else
        p->clarity = logit_gap(r, p->gap) / logit_noise(p);
    if (status == LVR_OK && p->early_layer > 0 && !given_noise)
        raise_noise(r, odds);
    if (status == LVR_OK && p->early_layer > 0)
        status =
            lvr_odds_fraction(odds, p->clarity, fixed_share(p), p->early_agreement, &p->early_fraction, err);
    if (status == LVR_OK && p->agreement > 0)
        p->gap = gap_for(r, p->clarity * logit_noise(p));
    return status;
}

static lvr_status check_early(const lvr_recipe *r, lvr_error *err)
{
    if (r->planting.early_layer < r->shape->n_layers)
        return LVR_OK;
    return lvr_fail(err, LVR_ERR_CONFIG, "%s has %u layers: an early layer is one of 1 to %u, found %u",
                    r->shape->name, r->shape->n_layers, r->shape->n_layers - 1, r->planting.early_layer);
}

/* A tied model needs room for two codes and the constants, and one hidden unit for each carried value. */
static lvr_status set_code_width(lvr_recipe *r, lvr_error *err)
{
    const lvr_shape *s = r->shape;
    r->code_width = s->d_model;
    if (!r->planted || !s->tied)
        return LVR_OK;
    if (s->d_model % 64 != 0 || s->d_model <= 2 * LVR_CARRY_CONSTANTS || s->d_ff < s->d_model)
        return lvr_fail(
            err, LVR_ERR_CONFIG,
            "%s: a chain can be planted in a model with tied embeddings if its width is a multiple of "
            "64 and not above its feed-forward width, found %u and %u",
            s->name, s->d_model, s->d_ff);
    r->code_width = s->d_model / 2 - LVR_CARRY_CONSTANTS;
    return LVR_OK;
}

static lvr_status plant(lvr_recipe *r, const lvr_synth_vocab *vocab, lvr_error *err)
{
    lvr_odds *odds = NULL;
    const bool given_noise = r->planting.noise > 0;
    lvr_status status = check_early(r, err);
    if (status == LVR_OK)
        status = set_noise(r, err);
    if (status == LVR_OK)
        status = lvr_chain_new(vocab, r->shape->vocab, r->seed, r->planting.n_successors, &r->chain, err);
    if (status == LVR_OK)
        status = lvr_odds_new(r->planting.n_successors, &odds, err);
    if (status == LVR_OK)
        status = solve(r, odds, given_noise, err);
    if (status == LVR_OK)
        set_readings(r);
    lvr_odds_free(odds);
    return status;
}

/* ---- carrying (tied embeddings) ---- */

/* Of the first feed-forward network's input: v, the constants, u (of length 1), and what attention added. */
static float carry_input_rms(const lvr_recipe *r)
{
    const float attention = ATTENTION_SHARE * r->layer_rms[0] * r->layer_rms[0];
    return sqrtf((float)(r->code_width + LVR_CARRY_CONSTANTS + 1) / (float)r->shape->d_model + attention);
}

float lvr_carry_gate_weight(const lvr_recipe *r)
{
    return GATE * carry_input_rms(r) / (float)LVR_CARRY_CONSTANTS;
}

float lvr_carry_down_weight(const lvr_recipe *r)
{
    const float silu_of_gate = GATE * 0.9996646f;
    return carry_input_rms(r) / (silu_of_gate * LVR_CARRY_UP);
}

void lvr_carry_final_rms(const lvr_recipe *r, float *ret_all, float *ret_read)
{
    const float noise = (float)r->planting.noise;
    const float d = (float)r->shape->d_model, width = (float)r->code_width;
    *ret_read = sqrtf(1 + noise * noise);
    *ret_all = sqrtf((2 * width + LVR_CARRY_CONSTANTS + 1) / d + noise * noise);
}

/* ---- tensors ---- */

struct listing {
    lvr_recipe *r;
    lvr_wtype type, embd_type;
    uint64_t identity; /* of the shape: models of different shapes have independent weights */
    lvr_error *err;
    lvr_status status;
};

static lvr_synth_tensor *add(struct listing *l, const char *name, lvr_wtype type, uint32_t n_in,
                             uint32_t n_out, lvr_fill fill, float value)
{
    lvr_synth_tensor *t = &l->r->tensors[l->r->n_tensors++];
    *t = (lvr_synth_tensor){.type = type,
                            .n_dims = n_out > 0 ? 2 : 1,
                            .dims = {n_in, n_out > 0 ? n_out : 1},
                            .fill = fill,
                            .value = value};
    snprintf(t->name, sizeof t->name, "%s", name);
    t->key = lvr_synth_key(l->r->seed ^ l->identity, t->name);
    if (lvr_wtype_row_bytes(type, n_in) == 0 && l->status == LVR_OK)
        l->status =
            lvr_fail(l->err, LVR_ERR_CONFIG,
                     "%s: tensor %s has rows of %u values, which are no whole blocks of %s; choose another "
                     "type",
                     l->r->shape->name, name, n_in, lvr_wtype_name(type));
    return t;
}

static void add_in_layer(struct listing *l, uint32_t layer, const char *name, lvr_wtype type, uint32_t n_in,
                         uint32_t n_out, lvr_fill fill, float value)
{
    char full[48];
    snprintf(full, sizeof full, "blk.%u.%s", layer, name);
    add(l, full, type, n_in, n_out, fill, value);
}

/* A matrix that keeps the root mean square of its input, times `gain`. */
static void add_matrix(struct listing *l, uint32_t layer, const char *name, uint32_t n_in, uint32_t n_out,
                       float gain)
{
    add_in_layer(l, layer, name, l->type, n_in, n_out, LVR_FILL_UNIFORM, gain / sqrtf((float)n_in));
}

static void add_vector(struct listing *l, uint32_t layer, const char *name, uint32_t n, lvr_fill fill,
                       float value)
{
    add_in_layer(l, layer, name, LVR_F32, n, 0, fill, value);
}

static void add_attention(struct listing *l, uint32_t layer)
{
    const lvr_shape *s = l->r->shape;
    const uint32_t q = s->n_heads * s->head_dim, kv = s->n_kv * s->head_dim;
    const float spread = sqrtf(SCORE_STD); /* of queries and of keys */
    const float gain = sqrtf(ATTENTION_SHARE) * l->r->layer_rms[layer] / ATTENTION_RMS;
    add_vector(l, layer, "attn_norm.weight", s->d_model, LVR_FILL_NORM, 1.0f);
    add_matrix(l, layer, "attn_q.weight", s->d_model, q, s->qk_norm ? 1.0f : spread);
    add_matrix(l, layer, "attn_k.weight", s->d_model, kv, s->qk_norm ? 1.0f : spread);
    add_matrix(l, layer, "attn_v.weight", s->d_model, kv, 1.0f);
    add_matrix(l, layer, "attn_output.weight", q, s->d_model, gain);
    if (s->qkv_bias) {
        add_vector(l, layer, "attn_q.bias", q, LVR_FILL_UNIFORM, BIAS_STD);
        add_vector(l, layer, "attn_k.bias", kv, LVR_FILL_UNIFORM, BIAS_STD);
        add_vector(l, layer, "attn_v.bias", kv, LVR_FILL_UNIFORM, BIAS_STD);
    }
    if (s->qk_norm) {
        add_vector(l, layer, "attn_q_norm.weight", s->head_dim, LVR_FILL_NORM, spread);
        add_vector(l, layer, "attn_k_norm.weight", s->head_dim, LVR_FILL_NORM, spread);
    }
}

static void add_feed_forward(struct listing *l, uint32_t layer)
{
    const lvr_recipe *r = l->r;
    const lvr_shape *s = r->shape;
    const bool carries = r->planted && s->tied && layer == 0;
    const uint32_t random_units = carries ? s->d_ff - r->code_width : s->d_ff;
    const float in = 1.0f / sqrtf((float)s->d_model);
    const float rms = sqrtf(1.0f - ATTENTION_SHARE) * r->layer_rms[layer];
    const float down = rms / (GLU_RMS * sqrtf((float)random_units));
    /* The weights that carry the chain take the norm to be 1. */
    add_vector(l, layer, "ffn_norm.weight", s->d_model, carries ? LVR_FILL_CONSTANT : LVR_FILL_NORM, 1.0f);
    add_in_layer(l, layer, "ffn_gate.weight", l->type, s->d_model, s->d_ff,
                 carries ? LVR_FILL_CARRY_GATE : LVR_FILL_UNIFORM, in);
    add_in_layer(l, layer, "ffn_up.weight", l->type, s->d_model, s->d_ff,
                 carries ? LVR_FILL_CARRY_UP : LVR_FILL_UNIFORM, in);
    add_in_layer(l, layer, "ffn_down.weight", l->type, s->d_ff, s->d_model,
                 carries ? LVR_FILL_CARRY_DOWN : LVR_FILL_UNIFORM, down);
}

/* Planted: the least at which all other tokens together have a tenth of the successors' probability. Small
 * logits keep a draft's confidence near the rate at which it is right. */
static float logit_std(const lvr_recipe *r)
{
    if (!r->planted)
        return LVR_SYNTH_LOGIT_STD;
    const double noise = r->planting.noise;
    const double lead = sqrt(r->code_width / (r->planting.n_successors * (1 + noise * noise)));
    double std = 1.0;
    while (std < 3.0 && lead * std < 2.2 + 0.6931 * vocab_bits(r->shape) + std * std / 2)
        std += 0.125;
    return (float)std;
}

static float output_norm_value(const lvr_recipe *r)
{
    float all = 1, read = 1;
    if (!r->planted && r->shape->tied)
        return logit_std(r) / sqrtf((float)r->shape->d_model);
    if (r->planted && r->shape->tied)
        lvr_carry_final_rms(r, &all, &read);
    return logit_std(r) * all / read;
}

static void list_tensors(struct listing *l)
{
    lvr_recipe *r = l->r;
    const lvr_shape *s = r->shape;
    r->embd_key =
        add(l, "token_embd.weight", l->embd_type, s->d_model, s->vocab, LVR_FILL_EMBEDDING, 1.0f)->key;
    r->head_key = r->embd_key;
    add(l, "output_norm.weight", LVR_F32, s->d_model, 0, LVR_FILL_OUTPUT_NORM, output_norm_value(r));
    if (!s->tied)
        r->head_key = add(l, "output.weight", l->embd_type, s->d_model, s->vocab, LVR_FILL_HEAD, 0)->key;
    if (s->has_rope_llama3)
        add(l, "rope_freqs.weight", LVR_F32, s->head_dim / 2, 0, LVR_FILL_ROPE_FREQS, 0);
    for (uint32_t layer = 0; layer < s->n_layers; layer++) {
        add_attention(l, layer);
        add_feed_forward(l, layer);
    }
}

static lvr_status make_tensors(lvr_recipe *r, lvr_wtype type, lvr_wtype embd_type, lvr_error *err)
{
    const lvr_shape *s = r->shape;
    char identity[96];
    struct listing l = {.r = r, .type = type, .embd_type = embd_type, .err = err};
    r->tensors = calloc(4 + (size_t)s->n_layers * 14, sizeof *r->tensors);
    if (r->tensors == NULL)
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory", s->name);
    snprintf(identity, sizeof identity, "%u %u %u %u %u %u %u", s->n_layers, s->d_model, s->n_heads, s->n_kv,
             s->head_dim, s->d_ff, s->vocab);
    l.identity = lvr_synth_key(r->seed, identity);
    list_tensors(&l);
    return l.status;
}

/* ---- the whole ---- */

static lvr_status check_shape(const lvr_shape *s, lvr_error *err)
{
    if (s->arch[0] == '\0')
        return lvr_fail(
            err, LVR_ERR_CONFIG,
            "%s: the shape has no arch, n_ctx, rms_eps and rope_base: it can be simulated, but no model "
            "can be written of it",
            s->name);
    if (s->n_heads % s->n_kv != 0)
        return lvr_fail(err, LVR_ERR_CONFIG, "%s: %u heads are no multiple of %u key-value heads", s->name,
                        s->n_heads, s->n_kv);
    if (s->d_model % LVR_BLOCK != 0 || s->d_ff % LVR_BLOCK != 0 || s->head_dim % 16 != 0)
        return lvr_fail(
            err, LVR_ERR_CONFIG,
            "%s: d_model and d_ff must be multiples of %u and head_dim of 16, found %u, %u and %u", s->name,
            LVR_BLOCK, s->d_model, s->d_ff, s->head_dim);
    return LVR_OK;
}

lvr_status lvr_recipe_new(const lvr_shape *shape, const lvr_synth_vocab *vocab, lvr_wtype type,
                          lvr_wtype embd_type, uint64_t seed, const lvr_synth_planting *planting,
                          lvr_recipe *ret, lvr_error *err)
{
    lvr_recipe r = {.shape = shape, .seed = seed, .planted = planting != NULL};
    if (planting != NULL)
        r.planting = *planting;
    lvr_status status = check_shape(shape, err);
    if (status == LVR_OK)
        status = set_code_width(&r, err);
    if (status == LVR_OK && r.planted)
        status = plant(&r, vocab, err);
    if (status == LVR_OK) {
        set_layers(&r);
        status = make_tensors(&r, type, embd_type, err);
    }
    if (status != LVR_OK)
        lvr_recipe_free(&r);
    else
        *ret = r;
    return status;
}

void lvr_recipe_free(lvr_recipe *r)
{
    lvr_chain_free(&r->chain);
    free(r->tensors);
    *r = (lvr_recipe){0};
}
