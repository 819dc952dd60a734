#include "tests/unit/gguf_builder.h"
#include "common/fs.h"
#include "common/rng.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_BYTE_TOKEN 3u
#define FIRST_PIECE (FIRST_BYTE_TOKEN + 256u)
#define ALIGN 32u

void gguf_put_u32(lvr_buf *b, uint32_t v)
{
    lvr_buf_append(b, &v, sizeof(v));
}

void gguf_put_u64(lvr_buf *b, uint64_t v)
{
    lvr_buf_append(b, &v, sizeof(v));
}

void gguf_put_str(lvr_buf *b, const char *s)
{
    gguf_put_u64(b, strlen(s));
    lvr_buf_append(b, s, strlen(s));
}

void gguf_put_head(lvr_buf *b, uint64_t n_tensors, uint64_t n_kv)
{
    lvr_buf_append(b, "GGUF", 4);
    gguf_put_u32(b, 3);
    gguf_put_u64(b, n_tensors);
    gguf_put_u64(b, n_kv);
}

static void put_key(lvr_buf *b, const char *key, uint32_t type)
{
    gguf_put_str(b, key);
    gguf_put_u32(b, type);
}

void gguf_put_kv_u32(lvr_buf *b, const char *key, uint32_t v)
{
    put_key(b, key, GGUF_U32);
    gguf_put_u32(b, v);
}

void gguf_put_kv_f32(lvr_buf *b, const char *key, float v)
{
    put_key(b, key, GGUF_F32);
    lvr_buf_append(b, &v, sizeof(v));
}

void gguf_put_kv_str(lvr_buf *b, const char *key, const char *v)
{
    put_key(b, key, GGUF_STR);
    gguf_put_str(b, v);
}

void gguf_put_kv_bool(lvr_buf *b, const char *key, bool v)
{
    const uint8_t byte = v ? 1 : 0;
    put_key(b, key, GGUF_BOOL);
    lvr_buf_append(b, &byte, 1);
}

void gguf_put_kv_arr(lvr_buf *b, const char *key, uint32_t elem_type, uint64_t n)
{
    put_key(b, key, GGUF_ARR);
    gguf_put_u32(b, elem_type);
    gguf_put_u64(b, n);
}

void gguf_put_tensor(lvr_buf *b, const char *name, uint32_t n_dims, const uint64_t *dims, uint32_t type,
                     uint64_t offset)
{
    gguf_put_str(b, name);
    gguf_put_u32(b, n_dims);
    for (uint32_t i = 0; i < n_dims; i++)
        gguf_put_u64(b, dims[i]);
    gguf_put_u32(b, type);
    gguf_put_u64(b, offset);
}

void gguf_pad(lvr_buf *b, uint64_t align)
{
    static const char zeros[64];
    while (!b->failed && b->len % align != 0) {
        const uint64_t n = align - b->len % align;
        lvr_buf_append(b, zeros, n < sizeof(zeros) ? n : sizeof(zeros));
    }
}

static struct gguf_tiny with_defaults(const struct gguf_tiny *spec)
{
    struct gguf_tiny s = *spec;
    s.vocab = s.vocab ? s.vocab : 300;
    s.n_layers = s.n_layers ? s.n_layers : 2;
    s.d_model = s.d_model ? s.d_model : 64;
    s.n_heads = s.n_heads ? s.n_heads : 4;
    s.n_kv = s.n_kv ? s.n_kv : 2;
    s.d_ff = s.d_ff ? s.d_ff : 96;
    s.n_ctx = s.n_ctx ? s.n_ctx : 256;
    s.scale = s.scale != 0 ? s.scale : 1.0f;
    return s;
}

/* Piece i: the space mark, then single printable characters, then combinations of two, three and four
 * letters, each made of pieces that exist, so that merges can reach them. */
static void piece_text(uint32_t i, char *text, size_t n)
{
    static const char singles[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                  ".,:;!?'\"()[]{}<>+-*/=_%&@#$^|~`\\";
    const uint32_t n_singles = (uint32_t)sizeof(singles) - 1;
    if (i == 0) {
        snprintf(text, n, "\xe2\x96\x81");
        return;
    }
    i--;
    if (i < n_singles) {
        snprintf(text, n, "%c", singles[i]);
        return;
    }
    i -= n_singles;
    uint32_t length = 2, count = 26 * 26;
    while (i >= count) {
        i -= count;
        count *= 26;
        length++;
    }
    for (uint32_t j = 0; j < length && j + 1 < n; j++) {
        text[length - 1 - j] = (char)('a' + i % 26);
        i /= 26;
    }
    text[length] = '\0';
}

static void put_tokens(lvr_buf *b, uint32_t vocab)
{
    gguf_put_kv_arr(b, "tokenizer.ggml.tokens", GGUF_STR, vocab);
    for (uint32_t i = 0; i < vocab; i++) {
        static const char *const specials[] = {"<unk>", "<s>", "</s>"};
        char text[32];
        if (i < FIRST_BYTE_TOKEN)
            snprintf(text, sizeof(text), "%s", specials[i]);
        else if (i < FIRST_PIECE)
            snprintf(text, sizeof(text), "<0x%02X>", i - FIRST_BYTE_TOKEN);
        else
            piece_text(i - FIRST_PIECE, text, sizeof(text));
        gguf_put_str(b, text);
    }
}

static void put_vocab(lvr_buf *b, uint32_t vocab)
{
    put_tokens(b, vocab);
    gguf_put_kv_arr(b, "tokenizer.ggml.scores", GGUF_F32, vocab);
    for (uint32_t i = 0; i < vocab; i++) {
        const float score = i < FIRST_PIECE ? 0.0f : -(float)(i - FIRST_PIECE);
        lvr_buf_append(b, &score, sizeof(score));
    }
    gguf_put_kv_arr(b, "tokenizer.ggml.token_type", GGUF_I32, vocab);
    for (uint32_t i = 0; i < vocab; i++)
        gguf_put_u32(b, i == 0 ? 2 : i < FIRST_BYTE_TOKEN ? 3 : i < FIRST_PIECE ? 6 : 1);
}

#define TINY_KEYS 18u

static void put_meta(lvr_buf *b, const struct gguf_tiny *s)
{
    gguf_put_kv_str(b, "general.architecture", "llama");
    gguf_put_kv_str(b, "general.name", "tiny");
    gguf_put_kv_u32(b, "llama.vocab_size", s->vocab);
    gguf_put_kv_u32(b, "llama.context_length", s->n_ctx);
    gguf_put_kv_u32(b, "llama.embedding_length", s->d_model);
    gguf_put_kv_u32(b, "llama.block_count", s->n_layers);
    gguf_put_kv_u32(b, "llama.feed_forward_length", s->d_ff);
    gguf_put_kv_u32(b, "llama.attention.head_count", s->n_heads);
    gguf_put_kv_u32(b, "llama.attention.head_count_kv", s->n_kv);
    gguf_put_kv_f32(b, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    gguf_put_kv_u32(b, "llama.rope.dimension_count", s->d_model / s->n_heads);
    gguf_put_kv_f32(b, "llama.rope.freq_base", 10000.0f);
    gguf_put_kv_str(b, "tokenizer.ggml.model", "llama");
    put_vocab(b, s->vocab);
    gguf_put_kv_u32(b, "tokenizer.ggml.bos_token_id", 1);
    gguf_put_kv_u32(b, "tokenizer.ggml.eos_token_id", 2);
    if (s->extra_key != NULL && s->extra_str != NULL)
        gguf_put_kv_str(b, s->extra_key, s->extra_str);
    else if (s->extra_key != NULL)
        gguf_put_kv_u32(b, s->extra_key, s->extra_u32);
}

struct plan {
    lvr_buf *table;
    uint64_t offset; /* of the next tensor's data, from the data section's start */
};

/* Bytes of one row. Written here and not taken from the kernels, so that the builder is a second opinion. */
static uint64_t row_bytes(lvr_wtype type, uint64_t n_in)
{
    switch (type) {
    case LVR_F32:
        return n_in * 4;
    case LVR_F16:
        return n_in * 2;
    case LVR_Q8_0:
        return n_in / 32 * 34;
    case LVR_Q4_0:
        return n_in / 32 * 18;
    }
    return 0;
}

static lvr_wtype norm_type(const struct gguf_tiny *s)
{
    return s->f16_norms ? LVR_F16 : LVR_F32;
}

static void plan_tensor(struct plan *p, const char *name, lvr_wtype type, uint64_t n_out, uint64_t n_in)
{
    const uint64_t dims[2] = {n_in, n_out};
    gguf_put_tensor(p->table, name, n_out == 1 ? 1 : 2, dims, type, p->offset);
    p->offset += n_out * row_bytes(type, n_in);
    p->offset = (p->offset + ALIGN - 1) / ALIGN * ALIGN;
}

struct tiny_tensor {
    const char *suffix;
    bool norm;
    uint32_t n_out, n_in;
};

#define TINY_LAYER_TENSORS 9u

static void layer_tensors(const struct gguf_tiny *s, struct tiny_tensor t[TINY_LAYER_TENSORS])
{
    const uint32_t d = s->d_model, kv = d / s->n_heads * s->n_kv, ff = s->d_ff;
    const struct tiny_tensor list[TINY_LAYER_TENSORS] = {
        {"attn_norm", true, 1, d},  {"attn_q", false, d, d},      {"attn_k", false, kv, d},
        {"attn_v", false, kv, d},   {"attn_output", false, d, d}, {"ffn_norm", true, 1, d},
        {"ffn_gate", false, ff, d}, {"ffn_up", false, ff, d},     {"ffn_down", false, d, ff},
    };
    memcpy(t, list, sizeof(list));
}

static void put_table(lvr_buf *b, const struct gguf_tiny *s)
{
    struct tiny_tensor t[TINY_LAYER_TENSORS];
    struct plan p = {.table = b};
    layer_tensors(s, t);
    plan_tensor(&p, "token_embd.weight", s->type, s->vocab, s->d_model);
    for (uint32_t l = 0; l < s->n_layers; l++) {
        for (uint32_t i = 0; i < TINY_LAYER_TENSORS; i++) {
            char name[64];
            snprintf(name, sizeof(name), "blk.%u.%s.weight", l, t[i].suffix);
            plan_tensor(&p, name, t[i].norm ? norm_type(s) : s->type, t[i].n_out, t[i].n_in);
        }
    }
    plan_tensor(&p, "output_norm.weight", norm_type(s), 1, s->d_model);
    if (!s->tied)
        plan_tensor(&p, "output.weight", s->type, s->vocab, s->d_model);
}

static void put_q8_0(lvr_buf *b, const float *x)
{
    float amax = 0;
    for (int i = 0; i < 32; i++)
        amax = fmaxf(amax, fabsf(x[i]));
    const uint16_t d16 = lvr_f32_to_f16(amax / 127.0f);
    const float d = lvr_f16_to_f32(d16);
    int8_t q[32];
    for (int i = 0; i < 32; i++)
        q[i] = (int8_t)fminf(127.0f, fmaxf(-127.0f, d > 0 ? roundf(x[i] / d) : 0.0f));
    lvr_buf_append(b, &d16, 2);
    lvr_buf_append(b, q, sizeof(q));
}

static void put_q4_0(lvr_buf *b, const float *x)
{
    float extreme = 0; /* the value of the largest magnitude, with its sign, becomes code 0: -8 * d */
    for (int i = 0; i < 32; i++)
        extreme = fabsf(x[i]) > fabsf(extreme) ? x[i] : extreme;
    const uint16_t d16 = lvr_f32_to_f16(extreme / -8.0f);
    const float d = lvr_f16_to_f32(d16);
    uint8_t code[32], q[16];
    for (int i = 0; i < 32; i++)
        code[i] = (uint8_t)fminf(15.0f, fmaxf(0.0f, d != 0 ? roundf(x[i] / d) + 8.0f : 8.0f));
    for (int i = 0; i < 16; i++)
        q[i] = (uint8_t)(code[i] | code[16 + i] << 4);
    lvr_buf_append(b, &d16, 2);
    lvr_buf_append(b, q, sizeof(q));
}

static void put_row(lvr_buf *b, lvr_wtype type, const float *x, uint32_t n)
{
    switch (type) {
    case LVR_F32:
        lvr_buf_append(b, x, n * sizeof(*x));
        return;
    case LVR_F16:
        for (uint32_t i = 0; i < n; i++) {
            const uint16_t h = lvr_f32_to_f16(x[i]);
            lvr_buf_append(b, &h, 2);
        }
        return;
    case LVR_Q8_0:
    case LVR_Q4_0:
        for (uint32_t i = 0; i < n; i += 32) {
            if (type == LVR_Q8_0)
                put_q8_0(b, x + i);
            else
                put_q4_0(b, x + i);
        }
        return;
    }
}

struct fill {
    lvr_wtype type;
    uint32_t n_out, n_in;
    bool norm;
    float scale;
    bool duplicate_rows;
};

static lvr_status put_matrix(lvr_buf *b, lvr_rng *rng, const struct fill *f, lvr_error *err)
{
    float *row = calloc(f->n_in, sizeof(*row));
    if (row == NULL)
        return lvr_fail(err, LVR_ERR_NOMEM, "building a tiny GGUF: out of memory");
    const float std = f->scale / sqrtf((float)f->n_in);
    for (uint32_t o = 0; o < f->n_out; o++) {
        const bool keep = f->duplicate_rows && o % 2 == 1;
        for (uint32_t i = 0; !keep && i < f->n_in; i++)
            row[i] = f->norm ? 1.0f + 0.1f * (float)lvr_rng_normal(rng) : std * (float)lvr_rng_normal(rng);
        put_row(b, f->type, row, f->n_in);
    }
    gguf_pad(b, ALIGN);
    free(row);
    return LVR_OK;
}

static lvr_status put_layer(lvr_buf *b, lvr_rng *rng, const struct gguf_tiny *s, lvr_error *err)
{
    struct tiny_tensor t[TINY_LAYER_TENSORS];
    layer_tensors(s, t);
    for (uint32_t i = 0; i < TINY_LAYER_TENSORS; i++) {
        const struct fill f = {.type = t[i].norm ? norm_type(s) : s->type,
                               .n_out = t[i].n_out,
                               .n_in = t[i].n_in,
                               .norm = t[i].norm,
                               .scale = 1.0f};
        const lvr_status status = put_matrix(b, rng, &f, err);
        if (status != LVR_OK)
            return status;
    }
    return LVR_OK;
}

static lvr_status put_data(lvr_buf *b, const struct gguf_tiny *s, lvr_error *err)
{
    lvr_rng rng;
    lvr_rng_init(&rng, s->seed, "gguf_tiny");
    const struct fill norm = {.type = norm_type(s), .n_out = 1, .n_in = s->d_model, .norm = true};
    struct fill embd = {
        .type = s->type, .n_out = s->vocab, .n_in = s->d_model, .scale = sqrtf((float)s->d_model)};
    struct fill head = {.type = s->type, .n_out = s->vocab, .n_in = s->d_model, .scale = s->scale};
    head.duplicate_rows = s->duplicate_head_rows;
    if (s->tied) /* one matrix for both, with the head's variance: logits would explode with the embedding's
                  */
        embd = head;

    lvr_status status = put_matrix(b, &rng, &embd, err);
    for (uint32_t l = 0; status == LVR_OK && l < s->n_layers; l++)
        status = put_layer(b, &rng, s, err);
    if (status == LVR_OK)
        status = put_matrix(b, &rng, &norm, err);
    if (status == LVR_OK && !s->tied)
        status = put_matrix(b, &rng, &head, err);
    return status;
}

lvr_status gguf_build_tiny_mem(const struct gguf_tiny *spec, lvr_buf *out, lvr_error *err)
{
    const struct gguf_tiny s = with_defaults(spec);
    if (s.vocab < FIRST_PIECE || s.vocab > 100000 || s.d_model % s.n_heads != 0 || s.d_model % 32 != 0 ||
        s.d_ff % 32 != 0 || s.n_heads % s.n_kv != 0)
        return lvr_fail(err, LVR_ERR_USAGE,
                        "gguf_tiny: vocab in 259..100000, widths multiples of 32, heads dividing");
    gguf_put_head(out, 2 + (s.tied ? 0 : 1) + (uint64_t)TINY_LAYER_TENSORS * s.n_layers,
                  TINY_KEYS + (s.extra_key != NULL ? 1 : 0));
    put_meta(out, &s);
    put_table(out, &s);
    gguf_pad(out, ALIGN);
    const lvr_status status = put_data(out, &s, err);
    if (status != LVR_OK)
        return status;
    return out->failed ? lvr_fail(err, LVR_ERR_NOMEM, "building a tiny GGUF: out of memory") : LVR_OK;
}

lvr_status gguf_build_tiny(const char *path, const struct gguf_tiny *spec, lvr_error *err)
{
    lvr_buf b = LVR_BUF_INIT;
    lvr_status status = gguf_build_tiny_mem(spec, &b, err);
    if (status == LVR_OK)
        status = lvr_write_file_atomic(path, b.data, b.len, err);
    lvr_buf_free(&b);
    return status;
}
