/* Models: what runs, and what is refused by the name of the key or tensor that says so. */
#include "engine/model_shape.h"
#include "tests/unit/gguf_builder.h"
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Replaces the first occurrence of `from` in the model's bytes by `to` (same length), `skip` bytes further
 * on. */
static void patch(lvr_buf *b, const char *from, size_t skip, const void *to, size_t n)
{
    char *at = memmem(b->data, b->len, from, strlen(from));
    cr_assert_not_null(at, "%s", from);
    memcpy(at + strlen(from) + skip, to, n);
}

static void expect_shape(const char *name, const lvr_buf *b, lvr_status expected, const char *says)
{
    lvr_gguf *g = NULL;
    lvr_model_shape shape = {.vocab = 77};
    lvr_error err = LVR_ERROR_INIT;
    lvr_status status = lvr_gguf_open_mem("m.gguf", b->data, b->len, b->len, false, &g, &err);
    if (status == LVR_OK)
        status = lvr_model_shape_from_gguf(g, &shape, &err);
    cr_expect_eq(status, expected, "%s: %s: %s", name, lvr_status_name(status), err.msg);
    cr_expect(strstr(err.msg, says) != NULL, "%s: \"%s\" does not say \"%s\"", name, err.msg, says);
    cr_expect_eq(shape.vocab, 77);
    lvr_gguf_free(g);
}

/* Of a model that must be accepted. */
static lvr_model_shape shape_of(const lvr_buf *b)
{
    lvr_gguf *g = NULL;
    lvr_model_shape shape = {.vocab = 0};
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_gguf_open_mem("m", b->data, b->len, b->len, false, &g, &err), LVR_OK, "%s", err.msg);
    cr_expect_eq(lvr_model_shape_from_gguf(g, &shape, &err), LVR_OK, "%s", err.msg);
    lvr_gguf_free(g);
    return shape;
}

static lvr_buf tiny_bytes(const char *extra_key, const char *extra_str, uint32_t extra_u32)
{
    lvr_buf b = LVR_BUF_INIT;
    lvr_error err = LVR_ERROR_INIT;
    const struct gguf_tiny spec = {
        .type = LVR_Q8_0, .extra_key = extra_key, .extra_str = extra_str, .extra_u32 = extra_u32};
    cr_assert_eq(gguf_build_tiny_mem(&spec, &b, &err), LVR_OK, "%s", err.msg);
    return b;
}

#define SHAPE_U32(key, value, status, says)                                                                  \
    {                                                                                                        \
        key, "", 4, 4, (const uint32_t[]){value}, status, says                                               \
    }
#define SHAPE_F32(key, value, status, says)                                                                  \
    {                                                                                                        \
        key, "", 4, 4, (const float[]){value}, status, says                                                  \
    }
#define RENAME(from, rest, status, says)                                                                     \
    {                                                                                                        \
        from, rest, 0, sizeof(rest) - 1, rest, status, says                                                  \
    }

static const struct {
    const char *key, *note;
    size_t skip, n;
    const void *bytes;
    lvr_status status;
    const char *says;
} wrong_models[] = {
    SHAPE_U32("llama.block_count", 0, LVR_ERR_FORMAT, "block_count is 0"),
    SHAPE_U32("llama.block_count", 3, LVR_ERR_FORMAT, "blk.2.attn_norm.weight is missing"),
    SHAPE_U32("llama.block_count", 1, LVR_ERR_UNSUPPORTED, "blk.1."),
    SHAPE_U32("llama.block_count", UINT32_MAX, LVR_ERR_FORMAT, "block_count is 4294967295"),
    SHAPE_U32("llama.embedding_length", 0, LVR_ERR_FORMAT, "embedding_length is 0"),
    SHAPE_U32("llama.embedding_length", 128, LVR_ERR_UNSUPPORTED, "rope.dimension_count is 16"),
    SHAPE_U32("llama.embedding_length", 62, LVR_ERR_FORMAT, "not a multiple of its 4 heads"),
    SHAPE_U32("llama.embedding_length", 1u << 31, LVR_ERR_FORMAT, "embedding_length is"),
    SHAPE_U32("llama.feed_forward_length", 64, LVR_ERR_FORMAT,
              "ffn_gate.weight has dimensions [64, 96, 1, 1]"),
    SHAPE_U32("llama.feed_forward_length", 100, LVR_ERR_UNSUPPORTED, "multiples of 32"),
    SHAPE_U32("llama.context_length", 0, LVR_ERR_FORMAT, "context_length is 0"),
    SHAPE_U32("llama.attention.head_count", 0, LVR_ERR_FORMAT, "head_count is 0"),
    SHAPE_U32("llama.attention.head_count", 8, LVR_ERR_UNSUPPORTED,
              "rope.dimension_count is 16, but a head's keys have 8"),
    SHAPE_U32("llama.attention.head_count_kv", 3, LVR_ERR_FORMAT, "not a multiple of 3"),
    SHAPE_U32("llama.attention.head_count_kv", 4, LVR_ERR_FORMAT, "attn_k.weight has dimensions"),
    SHAPE_U32("llama.rope.dimension_count", 8, LVR_ERR_UNSUPPORTED, "rope.dimension_count is 8"),
    SHAPE_U32("llama.vocab_size", 301, LVR_ERR_FORMAT, "vocab_size is 301"),
    SHAPE_F32("llama.attention.layer_norm_rms_epsilon", 0.0f, LVR_ERR_FORMAT, "epsilon is 0"),
    SHAPE_F32("llama.attention.layer_norm_rms_epsilon", NAN, LVR_ERR_FORMAT, "epsilon is"),
    SHAPE_F32("llama.rope.freq_base", -1.0f, LVR_ERR_FORMAT, "freq_base is -1"),
    SHAPE_F32("llama.rope.freq_base", HUGE_VALF, LVR_ERR_FORMAT, "freq_base is inf"),
    SHAPE_U32("llama.attention.layer_norm_rms_epsilon", 0x7f800001, LVR_ERR_FORMAT, "epsilon is"),
    SHAPE_F32("llama.rope.freq_base", NAN, LVR_ERR_FORMAT, "freq_base is"),
    {"general.architecture", "", 12, 5, "gemma", LVR_ERR_UNSUPPORTED, "architecture \"gemma\""},
    {"general.architecture", "", 12, 5, "phi-3", LVR_ERR_UNSUPPORTED, "runs llama, qwen2 and qwen3"},
    /* as many bytes, with their padding, in another type */
    {"token_embd.weight", "", 12, 12, "\67\2\0\0\0\0\0\0\2\0\0\0", LVR_ERR_FORMAT, "567 rows"},
    RENAME("token_embd", ".weighX", LVR_ERR_FORMAT, "token_embd.weight is missing"),
    RENAME("output_norm", ".weighX", LVR_ERR_FORMAT, "output_norm.weight is missing"),
    RENAME("output", "_extra.weigh", LVR_ERR_FORMAT, ""),
    RENAME("blk.1.ffn_down", ".weighX", LVR_ERR_FORMAT, "blk.1.ffn_down.weight is missing"),
};

Test(shape, models_that_contradict_themselves_are_refused)
{
    for (size_t i = 0; i < sizeof wrong_models / sizeof *wrong_models; i++) {
        char name[96];
        lvr_buf b = tiny_bytes(NULL, NULL, 0);
        snprintf(name, sizeof name, "%zu: %s", i, wrong_models[i].key);
        patch(&b, wrong_models[i].key, wrong_models[i].skip, wrong_models[i].bytes, wrong_models[i].n);
        expect_shape(name, &b, wrong_models[i].status, wrong_models[i].says);
        lvr_buf_free(&b);
    }
}

Test(shape, an_extra_tensor_is_refused_by_name)
{
    lvr_buf b = tiny_bytes(NULL, NULL, 0); /* the head under another name: a tied model with something more */
    char *at = NULL;
    for (char *next = b.data;
         (next = memmem(next, b.len - (size_t)(next - b.data), "output.weight", 13)) != NULL; next++)
        if (next[-8] == 13)
            at = next;
    cr_assert_not_null(at);
    memcpy(at, "rope_freqs.wei", 13);
    expect_shape("extra", &b, LVR_ERR_UNSUPPORTED, "tensor rope_freqs.we is not part");
    lvr_buf_free(&b);
}

/* Tensors that one architecture has and another has not, or not in every layer. */
Test(shape, tensors_of_other_architectures_are_refused_by_name)
{
    static const struct {
        const char *arch, *from, *to, *says;
        lvr_status status;
    } cases[] = {
        {"qwen2", "blk.0.attn_q.bias", "blk.0.attn_q.bios", "blk.0.attn_q.bias is missing", LVR_ERR_FORMAT},
        {"qwen2", "blk.1.attn_v.bias", "blk.1.attn_v.bios", "blk.1.attn_v.bias is missing", LVR_ERR_FORMAT},
        {"qwen3", "blk.1.attn_k_norm.weight", "blk.1.attn_k_nor2.weight",
         "blk.1.attn_k_norm.weight is missing", LVR_ERR_FORMAT},
        {"qwen2", "qwen2", "qwen3", "attn_q_norm.weight is missing", LVR_ERR_FORMAT},
        {"qwen3", "qwen3", "qwen2", "attn_q.bias is missing", LVR_ERR_FORMAT},
        {"qwen3", "qwen3", "llama", "attn_q_norm.weight is not part of a dense llama model",
         LVR_ERR_UNSUPPORTED},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct gguf_tiny spec = {.arch = cases[i].arch, .type = LVR_Q8_0};
        lvr_buf b = LVR_BUF_INIT;
        lvr_error err = LVR_ERROR_INIT;
        cr_assert_eq(gguf_build_tiny_mem(&spec, &b, &err), LVR_OK, "%s", err.msg);
        for (char *at = b.data;
             (at = memmem(at, b.len - (size_t)(at - b.data), cases[i].from, strlen(cases[i].from))) != NULL;)
            memcpy(at, cases[i].to, strlen(cases[i].to));
        expect_shape(cases[i].to, &b, cases[i].status, cases[i].says);
        lvr_buf_free(&b);
    }
}

/* One more key. */
static const struct {
    const char *key, *text;
    uint32_t value;
    lvr_status status;
    const char *says;
} extra_keys[] = {
    {"llama.expert_count", NULL, 8, LVR_ERR_UNSUPPORTED, "llama.expert_count is set (a mixture of experts)"},
    {"llama.attention.sliding_window", NULL, 4096, LVR_ERR_UNSUPPORTED, "sliding_window"},
    {"llama.attn_logit_softcapping", NULL, 50, LVR_ERR_UNSUPPORTED, "attn_logit_softcapping"},
    {"llama.final_logit_softcapping", NULL, 30, LVR_ERR_UNSUPPORTED, "final_logit_softcapping"},
    {"llama.logit_scale", NULL, 8, LVR_ERR_UNSUPPORTED, "llama.logit_scale"},
    {"llama.attention.scale", NULL, 8, LVR_ERR_UNSUPPORTED, "llama.attention.scale"},
    {"llama.pooling_type", NULL, 3, LVR_ERR_UNSUPPORTED, "embedding model"},
    {"llama.rope.scaling.type", "yarn", 0, LVR_ERR_UNSUPPORTED, "llama.rope.scaling.type is \"yarn\""},
    {"llama.rope.scaling.type", "longrope", 0, LVR_ERR_UNSUPPORTED, "longrope"},
    {"llama.rope.scaling.type", NULL, 1, LVR_ERR_FORMAT, "rope.scaling.type: expected a string"},
    {"llama.rope.scaling.factor", NULL, 8, LVR_ERR_FORMAT, "rope.scaling.factor: expected f32"},
    {"llama.attention.key_length", NULL, 32, LVR_ERR_UNSUPPORTED,
     "rope.dimension_count is 16, but a head's keys have 32"},
    {"llama.attention.key_length", NULL, 0, LVR_ERR_FORMAT, "key_length is 0"},
    {"llama.attention.value_length", NULL, 32, LVR_ERR_UNSUPPORTED,
     "value_length is 32, but a head's keys have 16"},
    {"llama.expert_count", NULL, 0, LVR_OK, ""},
    {"llama.rope.scaling.type", "none", 0, LVR_OK, ""},
    {"llama.rope.scaling.type", "linear", 0, LVR_OK, ""},
    {"llama.attention.key_length", NULL, 16, LVR_OK, ""},
    {"llama.attention.value_length", NULL, 16, LVR_OK, ""},
    {"qwen2.expert_count", NULL, 8, LVR_OK, ""}, /* another architecture's */
};

Test(shape, variants_of_the_computation_are_refused_by_name)
{
    for (size_t i = 0; i < sizeof extra_keys / sizeof *extra_keys; i++) {
        lvr_buf b = tiny_bytes(extra_keys[i].key, extra_keys[i].text, extra_keys[i].value);
        if (extra_keys[i].status != LVR_OK) {
            expect_shape(extra_keys[i].key, &b, extra_keys[i].status, extra_keys[i].says);
        } else {
            const lvr_model_shape s = shape_of(&b);
            cr_expect(s.head_dim == 16 && s.rope_factor == 1.0f, "%s", extra_keys[i].key);
        }
        lvr_buf_free(&b);
    }
}

Test(shape, knows_what_architectures_have)
{
    const struct gguf_tiny models[] = {
        {.type = LVR_Q8_0, .biases = true, .rope_freqs = true, .rope_factor = 4},
        {.type = LVR_Q8_0, .arch = "qwen2", .tied = true},
        {.type = LVR_Q8_0, .arch = "qwen3", .head_dim = 128},
    };
    lvr_model_shape s[3];
    for (size_t i = 0; i < 3; i++) {
        lvr_buf b = LVR_BUF_INIT;
        cr_assert_eq(gguf_build_tiny_mem(&models[i], &b, NULL), LVR_OK);
        s[i] = shape_of(&b);
        lvr_buf_free(&b);
    }
    cr_expect(!s[0].rope_neox && s[1].rope_neox && s[2].rope_neox);
    cr_expect(s[0].rope_factor == 4.0f && s[1].rope_factor == 1.0f);
    cr_expect(lvr_shape_has(&s[0], LVR_ROLE_ROPE_FREQS) && lvr_shape_has(&s[0], LVR_ROLE_O_BIAS));
    cr_expect(lvr_shape_has(&s[1], LVR_ROLE_V_BIAS) && !lvr_shape_has(&s[1], LVR_ROLE_O_BIAS) && s[1].tied);
    cr_expect(lvr_shape_has(&s[2], LVR_ROLE_K_NORM) && !lvr_shape_has(&s[2], LVR_ROLE_K_BIAS) && !s[2].tied);
    cr_expect(s[2].head_dim == 128 && s[2].d_model == 64 && s[2].n_heads == 4);
}

Test(shape, role_names_are_gguf_names)
{
    cr_expect_str_eq(lvr_role_name(LVR_ROLE_TOKEN_EMBD), "token_embd.weight");
    cr_expect_str_eq(lvr_role_name(LVR_ROLE_K_BIAS), "attn_k.bias");
    cr_expect_str_eq(lvr_role_name(LVR_ROLE_DOWN), "ffn_down.weight");
    cr_expect_null(lvr_role_name(LVR_ROLE_COUNT));
}
