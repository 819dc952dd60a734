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
    s.arch = s.arch != NULL ? s.arch : "llama";
    s.v_type = s.v_type != 0 ? s.v_type : s.type;
    s.head_type = s.head_type != 0 ? s.head_type : s.type;
    s.rope_base = s.rope_base != 0 ? s.rope_base : 10000.0f;
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

static uint32_t head_dim(const struct gguf_tiny *s)
{
    return s->head_dim != 0 ? s->head_dim : s->d_model / s->n_heads;
}

static bool is_arch(const struct gguf_tiny *s, const char *name)
{
    return strcmp(s->arch, name) == 0;
}

static uint32_t count_keys(const struct gguf_tiny *s)
{
    return TINY_KEYS + (s->head_dim != 0 ? 2 : 0) + (s->rope_factor != 0 ? 2 : 0) +
           (s->extra_key != NULL ? 1 : 0);
}

static const char *arch_key(const struct gguf_tiny *s, const char *name, char key[96])
{
    snprintf(key, 96, "%s.%s", s->arch, name);
    return key;
}

static void put_meta(lvr_buf *b, const struct gguf_tiny *s)
{
    char k[96];
    gguf_put_kv_str(b, "general.architecture", s->arch);
    gguf_put_kv_str(b, "general.name", "tiny");
    gguf_put_kv_u32(b, arch_key(s, "vocab_size", k), s->vocab);
    gguf_put_kv_u32(b, arch_key(s, "context_length", k), s->n_ctx);
    gguf_put_kv_u32(b, arch_key(s, "embedding_length", k), s->d_model);
    gguf_put_kv_u32(b, arch_key(s, "block_count", k), s->n_layers);
    gguf_put_kv_u32(b, arch_key(s, "feed_forward_length", k), s->d_ff);
    gguf_put_kv_u32(b, arch_key(s, "attention.head_count", k), s->n_heads);
    gguf_put_kv_u32(b, arch_key(s, "attention.head_count_kv", k), s->n_kv);
    gguf_put_kv_f32(b, arch_key(s, "attention.layer_norm_rms_epsilon", k), 1e-5f);
    gguf_put_kv_u32(b, arch_key(s, "rope.dimension_count", k), head_dim(s));
    gguf_put_kv_f32(b, arch_key(s, "rope.freq_base", k), s->rope_base);
    if (s->head_dim != 0) {
        gguf_put_kv_u32(b, arch_key(s, "attention.key_length", k), s->head_dim);
        gguf_put_kv_u32(b, arch_key(s, "attention.value_length", k), s->head_dim);
    }
    if (s->rope_factor != 0) {
        gguf_put_kv_str(b, arch_key(s, "rope.scaling.type", k), "linear");
        gguf_put_kv_f32(b, arch_key(s, "rope.scaling.factor", k), s->rope_factor);
    }
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

/* What a block of each type is. Written here and not taken from the kernels, so that the builder is a second
 * opinion. */
struct block {
    uint32_t values, bytes;
};

static struct block block_of(lvr_wtype type)
{
    switch (type) {
    case LVR_F32:
        return (struct block){1, 4};
    case LVR_F16:
    case LVR_BF16:
        return (struct block){1, 2};
    case LVR_Q8_0:
        return (struct block){32, 34};
    case LVR_Q4_0:
        return (struct block){32, 18};
    case LVR_Q4_1:
        return (struct block){32, 20};
    case LVR_Q5_0:
        return (struct block){32, 22};
    case LVR_Q5_1:
        return (struct block){32, 24};
    case LVR_Q4_K:
        return (struct block){256, 144};
    case LVR_Q5_K:
        return (struct block){256, 176};
    case LVR_Q6_K:
        return (struct block){256, 210};
    case LVR_WTYPE_SLOTS:
        break;
    }
    return (struct block){1, 0};
}

static uint64_t row_bytes(lvr_wtype type, uint64_t n_in)
{
    const struct block block = block_of(type);
    return n_in / block.values * block.bytes;
}

static lvr_wtype norm_type(const struct gguf_tiny *s)
{
    return s->f16_norms ? LVR_F16 : LVR_F32;
}

/* What values a tensor gets: around 0, or for norms and RoPE's factors around 1. */
enum tiny_kind { TINY_MATRIX, TINY_BIAS, TINY_NORM };

struct tiny_tensor {
    char name[64];
    enum tiny_kind kind;
    lvr_wtype type;
    uint32_t n_out, n_in;
    float std;
    bool duplicate_rows;
};

#define TINY_LAYER_TENSORS 15u
#define TINY_TENSORS(n_layers) (4u + TINY_LAYER_TENSORS * (n_layers))

struct tiny_list {
    const struct gguf_tiny *spec;
    struct tiny_tensor *tensors;
    uint32_t n;
};

static struct tiny_tensor *add_matrix(struct tiny_list *l, const char *name, lvr_wtype type, uint32_t n_out,
                                      uint32_t n_in, float scale)
{
    struct tiny_tensor *t = &l->tensors[l->n++];
    *t = (struct tiny_tensor){
        .kind = TINY_MATRIX, .type = type, .n_out = n_out, .n_in = n_in, .std = scale / sqrtf((float)n_in)};
    snprintf(t->name, sizeof(t->name), "%s", name);
    return t;
}

static void add_vector(struct tiny_list *l, const char *name, enum tiny_kind kind, uint32_t n)
{
    struct tiny_tensor *t = &l->tensors[l->n++];
    *t = (struct tiny_tensor){.kind = kind,
                              .type = norm_type(l->spec),
                              .n_out = 1,
                              .n_in = n,
                              .std = kind == TINY_BIAS ? 0.5f : 0.1f};
    snprintf(t->name, sizeof(t->name), "%s", name);
}

static const char *in_layer(uint32_t layer, const char *suffix, char name[64])
{
    snprintf(name, 64, "blk.%u.%s", layer, suffix);
    return name;
}

static void add_layer(struct tiny_list *l, uint32_t layer)
{
    const struct gguf_tiny *s = l->spec;
    const uint32_t d = s->d_model, q = s->n_heads * head_dim(s), kv = s->n_kv * head_dim(s), ff = s->d_ff;
    char name[64];
    add_vector(l, in_layer(layer, "attn_norm.weight", name), TINY_NORM, d);
    add_matrix(l, in_layer(layer, "attn_q.weight", name), s->type, q, d, 1);
    add_matrix(l, in_layer(layer, "attn_k.weight", name), s->type, kv, d, 1);
    add_matrix(l, in_layer(layer, "attn_v.weight", name), s->v_type, kv, d, 1);
    add_matrix(l, in_layer(layer, "attn_output.weight", name), s->type, d, q, 1);
    if (is_arch(s, "qwen2") || s->biases) {
        add_vector(l, in_layer(layer, "attn_q.bias", name), TINY_BIAS, q);
        add_vector(l, in_layer(layer, "attn_k.bias", name), TINY_BIAS, kv);
        add_vector(l, in_layer(layer, "attn_v.bias", name), TINY_BIAS, kv);
    }
    if (s->biases)
        add_vector(l, in_layer(layer, "attn_output.bias", name), TINY_BIAS, d);
    if (is_arch(s, "qwen3")) {
        add_vector(l, in_layer(layer, "attn_q_norm.weight", name), TINY_NORM, head_dim(s));
        add_vector(l, in_layer(layer, "attn_k_norm.weight", name), TINY_NORM, head_dim(s));
    }
    add_vector(l, in_layer(layer, "ffn_norm.weight", name), TINY_NORM, d);
    add_matrix(l, in_layer(layer, "ffn_gate.weight", name), s->type, ff, d, 1);
    add_matrix(l, in_layer(layer, "ffn_up.weight", name), s->type, ff, d, 1);
    add_matrix(l, in_layer(layer, "ffn_down.weight", name), s->v_type, d, ff, 1);
}

/* All tensors, in the order of the file. */
static void list_tensors(struct tiny_list *l)
{
    const struct gguf_tiny *s = l->spec;
    const float root = sqrtf((float)s->d_model);
    /* Tied: one matrix for both, with the head's variance: logits would explode with the embedding's. */
    struct tiny_tensor *embd = add_matrix(l, "token_embd.weight", s->tied ? s->head_type : s->type, s->vocab,
                                          s->d_model, s->tied ? s->scale : root);
    embd->duplicate_rows = s->tied && s->duplicate_head_rows;
    for (uint32_t layer = 0; layer < s->n_layers; layer++)
        add_layer(l, layer);
    add_vector(l, "output_norm.weight", TINY_NORM, s->d_model);
    if (!s->tied)
        add_matrix(l, "output.weight", s->head_type, s->vocab, s->d_model, s->scale)->duplicate_rows =
            s->duplicate_head_rows;
    if (s->rope_freqs) {
        add_vector(l, "rope_freqs.weight", TINY_NORM, head_dim(s) / 2);
        l->tensors[l->n - 1].type = LVR_F32;
        l->tensors[l->n - 1].std = 0.3f;
    }
}

static void put_table(lvr_buf *b, const struct tiny_list *l)
{
    uint64_t offset = 0;
    for (uint32_t i = 0; i < l->n; i++) {
        const struct tiny_tensor *t = &l->tensors[i];
        const uint64_t dims[2] = {t->n_in, t->n_out};
        gguf_put_tensor(b, t->name, t->n_out == 1 ? 1 : 2, dims, t->type, offset);
        offset += t->n_out * row_bytes(t->type, t->n_in);
        offset = (offset + ALIGN - 1) / ALIGN * ALIGN;
    }
}

static void put_half(lvr_buf *b, float x)
{
    const uint16_t h = lvr_f32_to_f16(x);
    lvr_buf_append(b, &h, sizeof(h));
}

static void put_random_bytes(lvr_buf *b, lvr_rng *rng, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t byte = (uint8_t)lvr_rng_below(rng, 256);
        lvr_buf_append(b, &byte, 1);
    }
}

/* Scales of 6 bits would be half of the time above 31: halves of that keep d above f16's least. */
static void put_random_q6_k(lvr_buf *b, lvr_rng *rng, float std)
{
    put_random_bytes(b, rng, 128 + 64);
    for (uint32_t i = 0; i < 16; i++) {
        const int8_t scale = (int8_t)((int)lvr_rng_below(rng, 64) - 32);
        lvr_buf_append(b, &scale, 1);
    }
    put_half(b, std / 341.5f);
}

/* A block whose codes are all random: d is its scale such that values have the standard deviation `std`, and
 * its minimum such that their mean is about 0. */
static void put_random_block(lvr_buf *b, lvr_rng *rng, lvr_wtype type, float std)
{
    static const struct {
        float codes_std, min; /* in units of d */
        bool has_min;
    } rows[LVR_WTYPE_SLOTS] = {
        [LVR_Q4_1] = {4.61f, -7.5f, true},  [LVR_Q5_0] = {9.23f, 0, false},
        [LVR_Q5_1] = {9.23f, -15.5f, true}, [LVR_Q4_K] = {258.3f, 7.5f, true},
        [LVR_Q5_K] = {526.9f, 15.5f, true},
    };
    if (type == LVR_Q6_K) {
        put_random_q6_k(b, rng, std);
        return;
    }
    const float d = std / rows[type].codes_std;
    put_half(b, d);
    if (rows[type].has_min)
        put_half(b, rows[type].min * d);
    put_random_bytes(b, rng, block_of(type).bytes - (rows[type].has_min ? 4 : 2));
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

static uint16_t bf16_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16); /* to nearest, ties to even */
}

/* false: not a type that x is quantised to here. */
static bool put_row(lvr_buf *b, lvr_wtype type, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += block_of(type).values) {
        const uint16_t bf16 = bf16_of(x[i]);
        if (type == LVR_F32)
            lvr_buf_append(b, &x[i], sizeof(x[i]));
        else if (type == LVR_F16)
            put_half(b, x[i]);
        else if (type == LVR_BF16)
            lvr_buf_append(b, &bf16, sizeof(bf16));
        else if (type == LVR_Q8_0)
            put_q8_0(b, x + i);
        else if (type == LVR_Q4_0)
            put_q4_0(b, x + i);
        else
            return false;
    }
    return true;
}

static lvr_status put_tensor_data(lvr_buf *b, lvr_rng *rng, const struct tiny_tensor *t, lvr_error *err)
{
    float *row = calloc(t->n_in, sizeof(*row));
    uint64_t last = b->len;
    if (row == NULL)
        return lvr_fail(err, LVR_ERR_NOMEM, "building a tiny GGUF: out of memory");
    for (uint32_t o = 0; o < t->n_out && !b->failed; o++) {
        const uint64_t begin = b->len;
        if (t->duplicate_rows && o % 2 == 1) {
            const uint64_t n = begin - last;
            char *copy = malloc(n);
            if (copy != NULL)
                memcpy(copy, b->data + last, n);
            lvr_buf_append(b, copy, copy != NULL ? n : 0);
            free(copy);
            continue;
        }
        last = begin;
        for (uint32_t i = 0; i < t->n_in; i++)
            row[i] = (t->kind == TINY_NORM ? 1.0f : 0.0f) + t->std * (float)lvr_rng_normal(rng);
        if (!put_row(b, t->type, row, t->n_in))
            for (uint32_t i = 0; i < t->n_in; i += block_of(t->type).values)
                put_random_block(b, rng, t->type, t->std);
    }
    gguf_pad(b, ALIGN);
    free(row);
    return LVR_OK;
}

static bool is_possible(const struct gguf_tiny *s)
{
    const bool arch = is_arch(s, "llama") || is_arch(s, "qwen2") || is_arch(s, "qwen3");
    const uint32_t unit = block_of(s->type).values, v_unit = block_of(s->v_type).values;
    return arch && s->vocab >= FIRST_PIECE && s->vocab <= 100000 &&
           (s->head_dim != 0 || s->d_model % s->n_heads == 0) && s->d_model % 32 == 0 && s->d_ff % 32 == 0 &&
           s->n_heads % s->n_kv == 0 && s->d_model % unit == 0 && s->n_heads * head_dim(s) % unit == 0 &&
           s->d_model % v_unit == 0 && s->d_ff % v_unit == 0 &&
           s->d_model % block_of(s->head_type).values == 0;
}

static lvr_status build(const struct gguf_tiny *s, struct tiny_list *l, lvr_buf *out, lvr_error *err)
{
    lvr_rng rng;
    lvr_status status = LVR_OK;
    list_tensors(l);
    gguf_put_head(out, l->n, count_keys(s));
    put_meta(out, s);
    put_table(out, l);
    gguf_pad(out, ALIGN);
    lvr_rng_init(&rng, s->seed, "gguf_tiny");
    for (uint32_t i = 0; status == LVR_OK && i < l->n; i++)
        status = put_tensor_data(out, &rng, &l->tensors[i], err);
    if (status != LVR_OK)
        return status;
    return out->failed ? lvr_fail(err, LVR_ERR_NOMEM, "building a tiny GGUF: out of memory") : LVR_OK;
}

lvr_status gguf_build_tiny_mem(const struct gguf_tiny *spec, lvr_buf *out, lvr_error *err)
{
    const struct gguf_tiny s = with_defaults(spec);
    struct tiny_list l = {.spec = &s};
    if (!is_possible(&s))
        return lvr_fail(
            err, LVR_ERR_USAGE,
            "gguf_tiny: a known architecture, vocab in 259..100000, widths multiples of the types' blocks, "
            "heads dividing");
    l.tensors = calloc(TINY_TENSORS(s.n_layers), sizeof(*l.tensors));
    if (l.tensors == NULL)
        return lvr_fail(err, LVR_ERR_NOMEM, "building a tiny GGUF: out of memory");
    const lvr_status status = build(&s, &l, out, err);
    free(l.tensors);
    return status;
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
