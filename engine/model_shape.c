#include "engine/model_shape.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_LAYERS 4096u
#define MAX_WIDTH (1u << 20) /* with MAX_LAYERS, keeps every sum of a pack below 2^57 bytes */
#define MAX_HEADS 4096u
#define MAX_VOCAB (1u << 24)
#define MAX_CONTEXT (1u << 30)
#define HEAD_DIM_UNIT 16u
#define KEY_BYTES 96u

/* ---- roles ---- */

typedef enum dim { DIM_ONE, DIM_MODEL, DIM_Q, DIM_KV, DIM_FF, DIM_VOCAB, DIM_HEAD, DIM_HALF_HEAD } dim;

static const struct {
    const char *name;
    dim n_out, n_in;
} roles[LVR_ROLE_COUNT] = {
    [LVR_ROLE_TOKEN_EMBD] = {"token_embd.weight", DIM_VOCAB, DIM_MODEL},
    [LVR_ROLE_OUTPUT_NORM] = {"output_norm.weight", DIM_ONE, DIM_MODEL},
    [LVR_ROLE_OUTPUT] = {"output.weight", DIM_VOCAB, DIM_MODEL},
    [LVR_ROLE_ROPE_FREQS] = {"rope_freqs.weight", DIM_ONE, DIM_HALF_HEAD},
    [LVR_ROLE_ATTN_NORM] = {"attn_norm.weight", DIM_ONE, DIM_MODEL},
    [LVR_ROLE_Q] = {"attn_q.weight", DIM_Q, DIM_MODEL},
    [LVR_ROLE_K] = {"attn_k.weight", DIM_KV, DIM_MODEL},
    [LVR_ROLE_V] = {"attn_v.weight", DIM_KV, DIM_MODEL},
    [LVR_ROLE_O] = {"attn_output.weight", DIM_MODEL, DIM_Q},
    [LVR_ROLE_Q_BIAS] = {"attn_q.bias", DIM_ONE, DIM_Q},
    [LVR_ROLE_K_BIAS] = {"attn_k.bias", DIM_ONE, DIM_KV},
    [LVR_ROLE_V_BIAS] = {"attn_v.bias", DIM_ONE, DIM_KV},
    [LVR_ROLE_O_BIAS] = {"attn_output.bias", DIM_ONE, DIM_MODEL},
    [LVR_ROLE_Q_NORM] = {"attn_q_norm.weight", DIM_ONE, DIM_HEAD},
    [LVR_ROLE_K_NORM] = {"attn_k_norm.weight", DIM_ONE, DIM_HEAD},
    [LVR_ROLE_FFN_NORM] = {"ffn_norm.weight", DIM_ONE, DIM_MODEL},
    [LVR_ROLE_GATE] = {"ffn_gate.weight", DIM_FF, DIM_MODEL},
    [LVR_ROLE_UP] = {"ffn_up.weight", DIM_FF, DIM_MODEL},
    [LVR_ROLE_DOWN] = {"ffn_down.weight", DIM_MODEL, DIM_FF},
};

const char *lvr_role_name(lvr_role role)
{
    return (unsigned)role < LVR_ROLE_COUNT ? roles[role].name : NULL;
}

bool lvr_role_is_vector(lvr_role role)
{
    return roles[role].n_out == DIM_ONE;
}

bool lvr_shape_has(const lvr_model_shape *s, lvr_role role)
{
    return (s->roles >> role & 1) != 0;
}

static uint32_t dim_of(const lvr_model_shape *s, dim d)
{
    switch (d) {
    case DIM_MODEL:
        return s->d_model;
    case DIM_Q:
        return s->n_heads * s->head_dim;
    case DIM_KV:
        return s->n_kv * s->head_dim;
    case DIM_FF:
        return s->d_ff;
    case DIM_VOCAB:
        return s->vocab;
    case DIM_HEAD:
        return s->head_dim;
    case DIM_HALF_HEAD:
        return s->head_dim / 2;
    case DIM_ONE:
        break;
    }
    return 1;
}

void lvr_role_dims(const lvr_model_shape *s, lvr_role role, uint32_t *ret_n_out, uint32_t *ret_n_in)
{
    *ret_n_out = dim_of(s, roles[role].n_out);
    *ret_n_in = dim_of(s, roles[role].n_in);
}

void lvr_role_tensor_name(lvr_role role, uint32_t layer, char name[LVR_TENSOR_NAME_BYTES])
{
    if (role < LVR_FIRST_LAYER_ROLE)
        snprintf(name, LVR_TENSOR_NAME_BYTES, "%s", roles[role].name);
    else
        snprintf(name, LVR_TENSOR_NAME_BYTES, "blk.%u.%s", layer, roles[role].name);
}

/* ---- architectures ---- */

#define BIT(role) (1u << (role))
#define COMMON_ROLES                                                                                         \
    (BIT(LVR_ROLE_TOKEN_EMBD) | BIT(LVR_ROLE_OUTPUT_NORM) | BIT(LVR_ROLE_ATTN_NORM) | BIT(LVR_ROLE_Q) |      \
     BIT(LVR_ROLE_K) | BIT(LVR_ROLE_V) | BIT(LVR_ROLE_O) | BIT(LVR_ROLE_FFN_NORM) | BIT(LVR_ROLE_GATE) |     \
     BIT(LVR_ROLE_UP) | BIT(LVR_ROLE_DOWN))
#define COMMON_OPTIONS (BIT(LVR_ROLE_OUTPUT) | BIT(LVR_ROLE_ROPE_FREQS))
#define QKV_BIASES (BIT(LVR_ROLE_Q_BIAS) | BIT(LVR_ROLE_K_BIAS) | BIT(LVR_ROLE_V_BIAS))
#define HEAD_NORMS (BIT(LVR_ROLE_Q_NORM) | BIT(LVR_ROLE_K_NORM))

typedef struct arch {
    const char *name;
    bool rope_neox;
    uint32_t required, optional; /* roles */
} arch;

static const arch archs[] = {
    {"llama", false, COMMON_ROLES, COMMON_OPTIONS | QKV_BIASES | BIT(LVR_ROLE_O_BIAS)},
    {"qwen2", true, COMMON_ROLES | QKV_BIASES, COMMON_OPTIONS},
    {"qwen3", true, COMMON_ROLES | HEAD_NORMS, COMMON_OPTIONS},
};
#define SUPPORTED "this version runs llama, qwen2 and qwen3 (dense models)"

/* What is read, of what, and where messages go. */
typedef struct loader {
    const lvr_gguf *g;
    const char *path;
    const arch *arch;
    lvr_model_shape *s;
    lvr_error *err;
} loader;

/* The architecture's own key. */
static void full_key(const loader *l, const char *name, char key[KEY_BYTES])
{
    snprintf(key, KEY_BYTES, "%s.%s", l->arch->name, name);
}

static bool has(const loader *l, const char *name)
{
    char key[KEY_BYTES];
    full_key(l, name, key);
    return lvr_gguf_has(l->g, key);
}

static lvr_status load_arch(loader *l)
{
    const char *name = NULL;
    const lvr_status status = lvr_gguf_str_(l->g, "general.architecture", &name, l->err);
    if (status != LVR_OK)
        return status;
    for (size_t i = 0; i < sizeof(archs) / sizeof(archs[0]); i++)
        if (strcmp(name, archs[i].name) == 0)
            l->arch = &archs[i];
    if (l->arch == NULL)
        return lvr_fail(l->err, LVR_ERR_UNSUPPORTED,
                        "%s: architecture \"%.64s\" is not supported: " SUPPORTED, l->path, name);
    snprintf(l->s->arch, sizeof(l->s->arch), "%s", name);
    l->s->rope_neox = l->arch->rope_neox;
    return LVR_OK;
}

/* Keys that change the computation in a way this version does not have: zero or false switches them off, and
 * so does the value that changes nothing. */
static const struct {
    const char *name, *what;
    float neutral;
} variants[] = {
    {"expert_count", "a mixture of experts", 0},
    {"attention.sliding_window", "attention in a sliding window", 0},
    {"attn_logit_softcapping", "a cap on attention scores", 0},
    {"final_logit_softcapping", "a cap on logits", 0},
    {"attention.clamp_kqv", "clamped queries, keys and values", 0},
    {"attention.max_alibi_bias", "ALiBi", 0},
    {"attention.scale", "a scale of attention of its own", 0},
    {"attention.output_scale", "a scale of attention's output", 1},
    {"attention.temperature_scale", "attention whose scale depends on the position", 0},
    {"attention.temperature_length", "attention whose scale depends on the position", 0},
    {"logit_scale", "scaled logits", 1},
    {"embedding_scale", "scaled embeddings", 1},
    {"residual_scale", "scaled residuals", 1},
    {"use_parallel_residual", "parallel residuals", 0},
    {"pooling_type", "pooling: it is an embedding model", 0},
    {"rope.scaling.attn_factor", "a scale of RoPE's magnitude", 1},
    {"rope.dimension_sections", "RoPE by sections", 0},
    {"nextn_predict_layers", "layers that predict several tokens", 0},
};

static bool is_neutral(const lvr_gguf *g, const char *key, float neutral)
{
    uint32_t u = 1;
    float f = 1;
    if (lvr_gguf_u32(g, key, &u, NULL) == LVR_OK)
        return u == 0;
    if (lvr_gguf_f32(g, key, &f, NULL) == LVR_OK)
        return f == 0.0f || f == neutral;
    return !lvr_gguf_bool_or(g, key, true);
}

static lvr_status check_no_variants(const loader *l)
{
    char key[KEY_BYTES];
    for (size_t i = 0; i < sizeof(variants) / sizeof(variants[0]); i++) {
        full_key(l, variants[i].name, key);
        if (lvr_gguf_has(l->g, key) && !is_neutral(l->g, key, variants[i].neutral))
            return lvr_fail(
                l->err, LVR_ERR_UNSUPPORTED,
                "%s: metadata key %s is set (%s), which this version does not compute: " SUPPORTED, l->path,
                key, variants[i].what);
    }
    full_key(l, "attention.causal", key);
    const lvr_status typed = lvr_gguf_check_bool(l->g, key, l->err);
    if (typed != LVR_OK)
        return typed;
    if (!lvr_gguf_bool_or(l->g, key, true))
        return lvr_fail(l->err, LVR_ERR_UNSUPPORTED,
                        "%s: metadata key %s is false (an encoder): this version runs decoders", l->path,
                        key);
    return LVR_OK;
}

/* ---- sizes ---- */

static lvr_status load_u32(const loader *l, const char *name, uint32_t min, uint32_t max, uint32_t *ret)
{
    char key[KEY_BYTES];
    uint32_t v = 0;
    full_key(l, name, key);
    const lvr_status status = lvr_gguf_u32(l->g, key, &v, l->err);
    if (status != LVR_OK)
        return status;
    if (v < min || v > max)
        return lvr_fail(l->err, LVR_ERR_FORMAT, "%s: metadata key %s is %u (expected %u to %u)", l->path, key,
                        v, min, max);
    *ret = v;
    return LVR_OK;
}

static lvr_status load_counts(const loader *l)
{
    lvr_model_shape *s = l->s;
    lvr_status status = load_u32(l, "block_count", 1, MAX_LAYERS, &s->n_layers);
    if (status == LVR_OK)
        status = load_u32(l, "embedding_length", 1, MAX_WIDTH, &s->d_model);
    if (status == LVR_OK)
        status = load_u32(l, "feed_forward_length", 1, MAX_WIDTH, &s->d_ff);
    if (status == LVR_OK)
        status = load_u32(l, "context_length", 1, MAX_CONTEXT, &s->n_ctx_train);
    if (status == LVR_OK)
        status = load_u32(l, "attention.head_count", 1, MAX_HEADS, &s->n_heads);
    s->n_kv = s->n_heads;
    if (status == LVR_OK && has(l, "attention.head_count_kv"))
        status = load_u32(l, "attention.head_count_kv", 1, MAX_HEADS, &s->n_kv);
    if (status == LVR_OK && s->n_heads % s->n_kv != 0)
        status = lvr_fail(l->err, LVR_ERR_FORMAT, "%s: %u heads are not a multiple of %u key-value heads",
                          l->path, s->n_heads, s->n_kv);
    return status;
}

/* A key that may be absent and must else be the head's width. */
static lvr_status check_head_key(const loader *l, const char *name)
{
    uint32_t v = 0;
    if (!has(l, name))
        return LVR_OK;
    const lvr_status status = load_u32(l, name, 0, UINT32_MAX, &v);
    if (status != LVR_OK || v == l->s->head_dim)
        return status;
    return lvr_fail(
        l->err, LVR_ERR_UNSUPPORTED,
        "%s: metadata key %s.%s is %u, but a head's keys have %u values: this version needs them to be "
        "equal",
        l->path, l->arch->name, name, v, l->s->head_dim);
}

static lvr_status load_head_dim(const loader *l)
{
    lvr_model_shape *s = l->s;
    lvr_status status = LVR_OK;
    if (has(l, "attention.key_length"))
        status = load_u32(l, "attention.key_length", 1, MAX_WIDTH, &s->head_dim);
    else if (s->d_model % s->n_heads != 0)
        status = lvr_fail(l->err, LVR_ERR_FORMAT,
                          "%s: %s.embedding_length %u is not a multiple of its %u heads, and there is no "
                          "%s.attention.key_length",
                          l->path, l->arch->name, s->d_model, s->n_heads, l->arch->name);
    else
        s->head_dim = s->d_model / s->n_heads;
    if (status == LVR_OK)
        status = check_head_key(l, "attention.value_length");
    if (status == LVR_OK)
        status = check_head_key(l, "rope.dimension_count");
    return status;
}

static lvr_status check_widths(const loader *l)
{
    const lvr_model_shape *s = l->s;
    const uint64_t q_dim = (uint64_t)s->n_heads * s->head_dim;
    if (s->head_dim % HEAD_DIM_UNIT != 0)
        return lvr_fail(l->err, LVR_ERR_UNSUPPORTED,
                        "%s: heads of %u values: this version needs a multiple of %u", l->path, s->head_dim,
                        HEAD_DIM_UNIT);
    if (q_dim > MAX_WIDTH)
        return lvr_fail(l->err, LVR_ERR_FORMAT, "%s: %u heads of %u values (at most %u values together)",
                        l->path, s->n_heads, s->head_dim, MAX_WIDTH);
    if (s->d_model % LVR_BLOCK != 0 || s->d_ff % LVR_BLOCK != 0 || q_dim % LVR_BLOCK != 0)
        return lvr_fail(
            l->err, LVR_ERR_UNSUPPORTED,
            "%s: widths %u (model), %u (feed-forward) and %u (heads): this version needs multiples of "
            "%u",
            l->path, s->d_model, s->d_ff, (uint32_t)q_dim, LVR_BLOCK);
    return LVR_OK;
}

/* ---- numbers ---- */

static lvr_status load_f32(const loader *l, const char *name, float *ret)
{
    char key[KEY_BYTES];
    full_key(l, name, key);
    return lvr_gguf_f32(l->g, key, ret, l->err);
}

static lvr_status fail_f32(const loader *l, const char *name, float v, const char *expected)
{
    return lvr_fail(l->err, LVR_ERR_FORMAT, "%s: metadata key %s.%s is %g (expected %s)", l->path,
                    l->arch->name, name, (double)v, expected);
}

static lvr_status load_floats(const loader *l)
{
    static const char eps[] = "attention.layer_norm_rms_epsilon", base[] = "rope.freq_base";
    lvr_model_shape *s = l->s;
    lvr_status status = load_f32(l, eps, &s->rms_eps);
    s->rope_base = 10000.0f;
    if (status == LVR_OK && has(l, base))
        status = load_f32(l, base, &s->rope_base);
    if (status != LVR_OK)
        return status;
    if (!(s->rms_eps > 0.0f && s->rms_eps < 1.0f))
        return fail_f32(l, eps, s->rms_eps, "a number between 0 and 1");
    if (!(s->rope_base >= 1.0f) || isinf(s->rope_base))
        return fail_f32(l, base, s->rope_base, "a finite number from 1");
    return LVR_OK;
}

/* Without a type, a factor means linear scaling. Zero means none. */
static lvr_status load_rope_scaling(const loader *l)
{
    const char *type = "linear";
    const char *name = has(l, "rope.scaling.factor") ? "rope.scaling.factor" : "rope.scale_linear";
    char key[KEY_BYTES];
    float factor = 0;
    lvr_status status = LVR_OK;
    full_key(l, "rope.scaling.type", key);
    if (lvr_gguf_has(l->g, key))
        status = lvr_gguf_str_(l->g, key, &type, l->err);
    if (status != LVR_OK)
        return status;
    l->s->rope_factor = 1;
    if (strcmp(type, "none") == 0)
        return LVR_OK;
    if (strcmp(type, "linear") != 0)
        return lvr_fail(l->err, LVR_ERR_UNSUPPORTED,
                        "%s: metadata key %s is \"%.32s\": this version computes \"linear\" RoPE scaling, "
                        "rope_freqs.weight tensors, and none",
                        l->path, key, type);
    if (has(l, name))
        status = load_f32(l, name, &factor);
    if (status != LVR_OK || factor == 0.0f)
        return status;
    if (!(factor > 0.0f) || isinf(factor))
        return fail_f32(l, name, factor, "a finite positive number");
    l->s->rope_factor = factor;
    return LVR_OK;
}

/* ---- vocabulary and name ---- */

/* The vocabulary's size is the embedding's number of rows; whoever else states it must agree. */
static lvr_status load_vocab(const loader *l)
{
    const lvr_gguf_str *tokens = NULL;
    uint64_t n = 0;
    uint32_t stated = 0;
    lvr_status status = LVR_OK;
    const lvr_gguf_tensor *t = lvr_gguf_find(l->g, roles[LVR_ROLE_TOKEN_EMBD].name);
    if (t == NULL)
        return LVR_OK; /* the check of tensors says so */
    if (t->dims[1] > MAX_VOCAB)
        return lvr_fail(l->err, LVR_ERR_FORMAT, "%s: %s has %" PRIu64 " rows (at most %u allowed)", l->path,
                        t->name, t->dims[1], MAX_VOCAB);
    l->s->vocab = (uint32_t)t->dims[1];
    if (has(l, "vocab_size"))
        status = load_u32(l, "vocab_size", 0, UINT32_MAX, &stated);
    if (status != LVR_OK)
        return status;
    if (stated != 0 && stated != l->s->vocab)
        return lvr_fail(l->err, LVR_ERR_FORMAT, "%s: %s.vocab_size is %u, but %s has %u rows", l->path,
                        l->arch->name, stated, t->name, l->s->vocab);
    if (!lvr_gguf_has(l->g, "tokenizer.ggml.tokens"))
        return LVR_OK;
    status = lvr_gguf_str_array(l->g, "tokenizer.ggml.tokens", &tokens, &n, l->err);
    if (status == LVR_OK && n != l->s->vocab)
        return lvr_fail(l->err, LVR_ERR_FORMAT,
                        "%s: the tokenizer has %" PRIu64 " tokens, but %s has %u rows", l->path, n, t->name,
                        l->s->vocab);
    return status;
}

static void load_name(const loader *l)
{
    const char *name = NULL;
    if (lvr_gguf_str_(l->g, "general.name", &name, NULL) != LVR_OK)
        return;
    snprintf(l->s->name, sizeof(l->s->name), "%s", name);
    for (char *c = l->s->name; *c != '\0'; c++)
        *c = (unsigned char)*c < 0x20 || *c == 0x7f ? '.' : *c;
}

/* ---- tensors ---- */

/* Optional tensors that the first layer has must be in all of them. */
static void load_roles(const loader *l)
{
    char name[LVR_TENSOR_NAME_BYTES];
    l->s->roles = l->arch->required;
    for (unsigned role = 0; role < LVR_ROLE_COUNT; role++) {
        lvr_role_tensor_name((lvr_role)role, 0, name);
        if ((l->arch->optional & BIT(role)) != 0 && lvr_gguf_find(l->g, name) != NULL)
            l->s->roles |= BIT(role);
    }
    l->s->tied = !lvr_shape_has(l->s, LVR_ROLE_OUTPUT);
}

static lvr_status check_tensor(const loader *l, lvr_role role, uint32_t layer)
{
    char name[LVR_TENSOR_NAME_BYTES];
    uint32_t n_out = 0, n_in = 0;
    lvr_role_tensor_name(role, layer, name);
    lvr_role_dims(l->s, role, &n_out, &n_in);
    const lvr_gguf_tensor *t = lvr_gguf_find(l->g, name);
    if (t == NULL)
        return lvr_fail(l->err, LVR_ERR_FORMAT, "%s: tensor %s is missing%s", l->path, name,
                        lvr_gguf_n_tensors(l->g) == 0 ? ": the file holds a vocabulary only" : "");
    if (t->dims[0] != n_in || t->dims[1] != n_out || t->dims[2] != 1 || t->dims[3] != 1)
        return lvr_fail(l->err, LVR_ERR_FORMAT,
                        "%s: tensor %s has dimensions [%" PRIu64 ", %" PRIu64 ", %" PRIu64 ", %" PRIu64
                        "], where its metadata expects [%u, %u]",
                        l->path, name, t->dims[0], t->dims[1], t->dims[2], t->dims[3], n_in, n_out);
    if (lvr_role_is_vector(role) && t->type != LVR_F32 && t->type != LVR_F16 && t->type != LVR_BF16)
        return lvr_fail(l->err, LVR_ERR_UNSUPPORTED,
                        "%s: tensor %s has type %s (norms and biases are read as F32, F16 or BF16)", l->path,
                        name, lvr_wtype_name(t->type));
    return LVR_OK;
}

static lvr_status check_needed_tensors(const loader *l)
{
    lvr_status status = LVR_OK;
    for (unsigned role = 0; status == LVR_OK && role < LVR_FIRST_LAYER_ROLE; role++)
        if (lvr_shape_has(l->s, (lvr_role)role))
            status = check_tensor(l, (lvr_role)role, 0);
    for (uint32_t layer = 0; layer < l->s->n_layers; layer++)
        for (unsigned role = LVR_FIRST_LAYER_ROLE; status == LVR_OK && role < LVR_ROLE_COUNT; role++)
            if (lvr_shape_has(l->s, (lvr_role)role))
                status = check_tensor(l, (lvr_role)role, layer);
    return status;
}

static bool is_known_tensor(const lvr_model_shape *s, const char *name)
{
    char known[LVR_TENSOR_NAME_BYTES];
    const bool in_layer = strncmp(name, "blk.", 4) == 0;
    const unsigned long layer = in_layer ? strtoul(name + 4, NULL, 10) : 0;
    if (layer >= s->n_layers)
        return false;
    for (unsigned role = 0; role < LVR_ROLE_COUNT; role++) {
        lvr_role_tensor_name((lvr_role)role, (uint32_t)layer, known);
        if (lvr_shape_has(s, (lvr_role)role) && strcmp(known, name) == 0)
            return true;
    }
    return false;
}

/* A bias or an extra norm that the forward pass ignored would give wrong text without a word. */
static lvr_status check_no_other_tensors(const loader *l)
{
    for (uint64_t i = 0; i < lvr_gguf_n_tensors(l->g); i++) {
        const char *name = lvr_gguf_tensor_at(l->g, i)->name;
        if (!is_known_tensor(l->s, name))
            return lvr_fail(
                l->err, LVR_ERR_UNSUPPORTED,
                "%s: tensor %.255s is not part of a dense %s model of %u layers: this version cannot "
                "compute with it",
                l->path, name, l->arch->name, l->s->n_layers);
    }
    return LVR_OK;
}

lvr_status lvr_model_shape_from_gguf(const lvr_gguf *g, lvr_model_shape *ret, lvr_error *err)
{
    lvr_model_shape s = {0};
    loader l = {.g = g, .path = lvr_gguf_path(g), .s = &s, .err = err};
    lvr_status status = load_arch(&l);
    if (status == LVR_OK)
        status = check_no_variants(&l);
    if (status == LVR_OK)
        status = load_counts(&l);
    if (status == LVR_OK)
        status = load_head_dim(&l);
    if (status == LVR_OK)
        status = check_widths(&l);
    if (status == LVR_OK)
        status = load_floats(&l);
    if (status == LVR_OK)
        status = load_rope_scaling(&l);
    if (status == LVR_OK)
        status = load_vocab(&l);
    if (status != LVR_OK)
        return status;
    load_roles(&l);
    status = check_needed_tensors(&l);
    if (status == LVR_OK)
        status = check_no_other_tensors(&l);
    if (status != LVR_OK)
        return status;
    load_name(&l);
    *ret = s;
    return LVR_OK;
}
