/*
 * What a pack contains follows from the GGUF header inside it: `plan` computes every section and tensor from
 * the model's shape. Writing follows the plan; opening recomputes it and demands that the file says exactly
 * the same, so that no offset or size of a hostile file is ever used.
 */
#include "engine/pack.h"
#include "common/fs.h"
#include "common/log.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAGIC "LVRPACK"
#define MAX_LAYERS 4096u
#define MAX_WIDTH (1u << 20) /* with MAX_LAYERS, keeps every sum below 2^57 bytes */
#define MAX_HEADS 4096u
#define MAX_VOCAB (1u << 24)
#define MAX_CONTEXT (1u << 30)
#define MAX_GGUF_HEADER_BYTES (256ull << 20)
#define CHUNK_BYTES (4ull << 20)
#define PROGRESS_BYTES (256ull << 20) /* smaller packs are written without progress notices */
#define RESIDENT_SECTION 0u
#define REPACK "; re-pack with lever model pack"

#define FIRST_LAYER_ROLE LVR_ROLE_ATTN_NORM
#define LAYER_ROLES ((uint32_t)LVR_ROLE_COUNT - (uint32_t)FIRST_LAYER_ROLE)

struct file_header {
    char magic[8];
    uint32_t file_version, layout_version;
    uint32_t header_bytes, n_sections, n_tensors, reserved0;
    uint64_t file_bytes, source_bytes;
    uint64_t gguf_offset, gguf_bytes;
    uint64_t tables_offset, tables_bytes;
    uint32_t gguf_crc, tables_crc;
    char source_sha256[64];
    uint8_t reserved[LVR_PACK_ALIGN - 156];
    uint32_t header_crc; /* of all bytes before it */
};
_Static_assert(sizeof(struct file_header) == LVR_PACK_ALIGN, "the header is one block");
_Static_assert(offsetof(struct file_header, header_crc) == LVR_PACK_ALIGN - 4,
               "the checksum ends the header");

struct file_section {
    uint64_t offset, bytes;
    uint32_t crc, first_tensor, n_tensors, reserved;
};
_Static_assert(sizeof(struct file_section) == 32, "no padding");

struct file_tensor {
    uint32_t role, type, n_out, n_in;
    uint64_t offset, bytes;
};
_Static_assert(sizeof(struct file_tensor) == 32, "no padding");

struct section {
    uint64_t offset, bytes;
    uint32_t crc, first_tensor, n_tensors;
};

struct plan {
    lvr_model_shape shape;
    uint64_t gguf_bytes, tables_offset, tables_bytes, file_bytes;
    struct section *sections; /* resident, then one a layer */
    uint32_t n_sections;
    lvr_pack_tensor *tensors;
    uint32_t n_tensors, n_resident;
};

struct lvr_pack {
    char *path;
    int fd;
    lvr_gguf *gguf;
    struct plan plan;
    char source_sha256[LVR_SHA256_HEX_BYTES];
};

/* GGUF's names, without "blk.N." and ".weight". */
static const char *const role_names[LVR_ROLE_COUNT] = {
    [LVR_ROLE_TOKEN_EMBD] = "token_embd",
    [LVR_ROLE_OUTPUT_NORM] = "output_norm",
    [LVR_ROLE_OUTPUT] = "output",
    [LVR_ROLE_ATTN_NORM] = "attn_norm",
    [LVR_ROLE_Q] = "attn_q",
    [LVR_ROLE_K] = "attn_k",
    [LVR_ROLE_V] = "attn_v",
    [LVR_ROLE_O] = "attn_output",
    [LVR_ROLE_FFN_NORM] = "ffn_norm",
    [LVR_ROLE_GATE] = "ffn_gate",
    [LVR_ROLE_UP] = "ffn_up",
    [LVR_ROLE_DOWN] = "ffn_down",
};

const char *lvr_role_name(lvr_role role)
{
    return (unsigned)role < LVR_ROLE_COUNT ? role_names[role] : NULL;
}

static uint64_t align_up(uint64_t n, uint64_t align)
{
    return (n + align - 1) / align * align;
}

/* ---- the model's shape ---- */

static bool is_norm(lvr_role role)
{
    return role == LVR_ROLE_OUTPUT_NORM || role == LVR_ROLE_ATTN_NORM || role == LVR_ROLE_FFN_NORM;
}

static void role_dims(const lvr_model_shape *s, lvr_role role, uint32_t *ret_n_out, uint32_t *ret_n_in)
{
    const uint32_t kv = s->n_kv * s->head_dim;
    *ret_n_in = role == LVR_ROLE_DOWN ? s->d_ff : s->d_model;
    switch (role) {
    case LVR_ROLE_TOKEN_EMBD:
    case LVR_ROLE_OUTPUT:
        *ret_n_out = s->vocab;
        return;
    case LVR_ROLE_Q:
    case LVR_ROLE_O:
    case LVR_ROLE_DOWN:
        *ret_n_out = s->d_model;
        return;
    case LVR_ROLE_K:
    case LVR_ROLE_V:
        *ret_n_out = kv;
        return;
    case LVR_ROLE_GATE:
    case LVR_ROLE_UP:
        *ret_n_out = s->d_ff;
        return;
    case LVR_ROLE_OUTPUT_NORM:
    case LVR_ROLE_ATTN_NORM:
    case LVR_ROLE_FFN_NORM:
    case LVR_ROLE_COUNT:
        break;
    }
    *ret_n_out = 1;
}

#define TENSOR_NAME_BYTES 64u

static void tensor_name(lvr_role role, uint32_t layer, char name[TENSOR_NAME_BYTES])
{
    if (role < FIRST_LAYER_ROLE)
        snprintf(name, TENSOR_NAME_BYTES, "%s.weight", role_names[role]);
    else
        snprintf(name, TENSOR_NAME_BYTES, "blk.%u.%s.weight", layer, role_names[role]);
}

static const lvr_gguf_tensor *find_tensor(const lvr_gguf *g, lvr_role role, uint32_t layer)
{
    char name[TENSOR_NAME_BYTES];
    tensor_name(role, layer, name);
    return lvr_gguf_find(g, name);
}

static lvr_status check_tensor(const lvr_gguf *g, const lvr_model_shape *s, lvr_role role, uint32_t layer,
                               lvr_error *err)
{
    char name[TENSOR_NAME_BYTES];
    uint32_t n_out = 0, n_in = 0;
    tensor_name(role, layer, name);
    role_dims(s, role, &n_out, &n_in);
    const lvr_gguf_tensor *t = lvr_gguf_find(g, name);
    if (t == NULL)
        return lvr_fail(err, LVR_ERR_FORMAT, "%s: tensor %s is missing%s", lvr_gguf_path(g), name,
                        lvr_gguf_n_tensors(g) == 0 ? ": the file holds a vocabulary only" : "");
    if (t->dims[0] != n_in || t->dims[1] != n_out || t->dims[2] != 1 || t->dims[3] != 1)
        return lvr_fail(err, LVR_ERR_FORMAT,
                        "%s: tensor %s has dimensions [%" PRIu64 ", %" PRIu64 ", %" PRIu64 ", %" PRIu64
                        "], where its metadata expects [%u, %u]",
                        lvr_gguf_path(g), name, t->dims[0], t->dims[1], t->dims[2], t->dims[3], n_in, n_out);
    if (is_norm(role) && t->type != LVR_F32 && t->type != LVR_F16)
        return lvr_fail(err, LVR_ERR_UNSUPPORTED, "%s: tensor %s has type %s (norms are read as F32 or F16)",
                        lvr_gguf_path(g), name, lvr_wtype_name(t->type));
    return LVR_OK;
}

static lvr_status check_needed_tensors(const lvr_gguf *g, const lvr_model_shape *s, lvr_error *err)
{
    lvr_status status = check_tensor(g, s, LVR_ROLE_TOKEN_EMBD, 0, err);
    if (status == LVR_OK)
        status = check_tensor(g, s, LVR_ROLE_OUTPUT_NORM, 0, err);
    if (status == LVR_OK && !s->tied)
        status = check_tensor(g, s, LVR_ROLE_OUTPUT, 0, err);
    for (uint32_t layer = 0; layer < s->n_layers; layer++)
        for (unsigned role = FIRST_LAYER_ROLE; status == LVR_OK && role < LVR_ROLE_COUNT; role++)
            status = check_tensor(g, s, (lvr_role)role, layer, err);
    return status;
}

static bool is_known_tensor(const lvr_model_shape *s, const char *name)
{
    char known[TENSOR_NAME_BYTES];
    const bool in_layer = strncmp(name, "blk.", 4) == 0;
    const unsigned long layer = in_layer ? strtoul(name + 4, NULL, 10) : 0;
    if (layer >= s->n_layers)
        return false;
    for (unsigned role = 0; role < LVR_ROLE_COUNT; role++) {
        tensor_name((lvr_role)role, (uint32_t)layer, known);
        if (strcmp(known, name) == 0)
            return true;
    }
    return false;
}

/* A bias or an extra norm that the forward pass ignored would give wrong text without a word. */
static lvr_status check_no_other_tensors(const lvr_gguf *g, const lvr_model_shape *s, lvr_error *err)
{
    for (uint64_t i = 0; i < lvr_gguf_n_tensors(g); i++) {
        const char *name = lvr_gguf_tensor_at(g, i)->name;
        if (!is_known_tensor(s, name))
            return lvr_fail(
                err, LVR_ERR_UNSUPPORTED,
                "%s: tensor %.255s is not part of a plain llama model of %u layers: this version cannot "
                "compute with it",
                lvr_gguf_path(g), name, s->n_layers);
    }
    return LVR_OK;
}

static lvr_status check_arch(const lvr_gguf *g, lvr_model_shape *s, lvr_error *err)
{
    const char *arch = NULL;
    const lvr_status status = lvr_gguf_str_(g, "general.architecture", &arch, err);
    if (status != LVR_OK)
        return status;
    if (strcmp(arch, "llama") != 0)
        return lvr_fail(err, LVR_ERR_UNSUPPORTED,
                        "%s: architecture \"%.64s\" is not supported: this version runs \"llama\"",
                        lvr_gguf_path(g), arch);
    snprintf(s->arch, sizeof(s->arch), "%s", arch);
    return LVR_OK;
}

/* Keys that change the computation in a way this version does not have. Zero or false, or the word "none",
 * switches them off; any other value is refused. */
static lvr_status check_no_variants(const lvr_gguf *g, lvr_error *err)
{
    static const char *const keys[] = {
        "llama.expert_count",
        "llama.rope.scaling.factor",
        "llama.rope.scale_linear",
        "llama.rope.scaling.attn_factor",
        "llama.rope.scaling.original_context_length",
        "llama.rope.scaling.yarn_log_multiplier",
        "llama.rope.scaling.finetuned",
        "llama.attention.sliding_window",
        "llama.attention.scale",
        "llama.attention.clamp_kqv",
        "llama.attention.max_alibi_bias",
        "llama.logit_scale",
        "llama.embedding_scale",
        "llama.residual_scale",
        "llama.use_parallel_residual",
    };
    static const char type_key[] = "llama.rope.scaling.type";
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        uint32_t u = 1;
        float f = 1;
        if (!lvr_gguf_has(g, keys[i]))
            continue;
        const bool off = (lvr_gguf_u32(g, keys[i], &u, NULL) == LVR_OK && u == 0) ||
                         (lvr_gguf_f32(g, keys[i], &f, NULL) == LVR_OK && f == 0.0f) ||
                         !lvr_gguf_bool_or(g, keys[i], true);
        if (!off)
            return lvr_fail(err, LVR_ERR_UNSUPPORTED,
                            "%s: metadata key %s is set: this version does not compute with it",
                            lvr_gguf_path(g), keys[i]);
    }
    const char *scaling = NULL;
    if (!lvr_gguf_has(g, type_key))
        return LVR_OK;
    const lvr_status status = lvr_gguf_str_(g, type_key, &scaling, err);
    if (status != LVR_OK || strcmp(scaling, "none") == 0)
        return status;
    return lvr_fail(err, LVR_ERR_UNSUPPORTED, "%s: %s is \"%.32s\": this version has no RoPE scaling",
                    lvr_gguf_path(g), type_key, scaling);
}

static lvr_status load_u32(const lvr_gguf *g, const char *key, uint32_t min, uint32_t max, uint32_t *ret,
                           lvr_error *err)
{
    uint32_t v = 0;
    const lvr_status status = lvr_gguf_u32(g, key, &v, err);
    if (status != LVR_OK)
        return status;
    if (v < min || v > max)
        return lvr_fail(err, LVR_ERR_FORMAT, "%s: metadata key %s is %u (expected %u to %u)",
                        lvr_gguf_path(g), key, v, min, max);
    *ret = v;
    return LVR_OK;
}

static lvr_status load_sizes(const lvr_gguf *g, lvr_model_shape *s, lvr_error *err)
{
    lvr_status status = load_u32(g, "llama.block_count", 1, MAX_LAYERS, &s->n_layers, err);
    if (status == LVR_OK)
        status = load_u32(g, "llama.embedding_length", 1, MAX_WIDTH, &s->d_model, err);
    if (status == LVR_OK)
        status = load_u32(g, "llama.feed_forward_length", 1, MAX_WIDTH, &s->d_ff, err);
    if (status == LVR_OK)
        status = load_u32(g, "llama.context_length", 1, MAX_CONTEXT, &s->n_ctx_train, err);
    if (status == LVR_OK)
        status = load_u32(g, "llama.attention.head_count", 1, MAX_HEADS, &s->n_heads, err);
    s->n_kv = s->n_heads;
    if (status == LVR_OK && lvr_gguf_has(g, "llama.attention.head_count_kv"))
        status = load_u32(g, "llama.attention.head_count_kv", 1, MAX_HEADS, &s->n_kv, err);
    return status;
}

static lvr_status check_sizes(const lvr_gguf *g, lvr_model_shape *s, lvr_error *err)
{
    const char *path = lvr_gguf_path(g);
    if (s->d_model % s->n_heads != 0)
        return lvr_fail(err, LVR_ERR_FORMAT,
                        "%s: llama.embedding_length %u is not a multiple of its %u heads", path, s->d_model,
                        s->n_heads);
    if (s->n_heads % s->n_kv != 0)
        return lvr_fail(err, LVR_ERR_FORMAT, "%s: %u heads are not a multiple of %u key-value heads", path,
                        s->n_heads, s->n_kv);
    s->head_dim = s->d_model / s->n_heads;
    if (s->head_dim % 16 != 0)
        return lvr_fail(err, LVR_ERR_UNSUPPORTED,
                        "%s: heads of %u values: this version needs a multiple of 16", path, s->head_dim);
    if (s->d_model % LVR_BLOCK != 0 || s->d_ff % LVR_BLOCK != 0)
        return lvr_fail(err, LVR_ERR_UNSUPPORTED,
                        "%s: widths %u (model) and %u (feed-forward): this version needs multiples of %u",
                        path, s->d_model, s->d_ff, LVR_BLOCK);
    return LVR_OK;
}

/* Every key that states the head's width must agree with embedding_length / head_count. */
static lvr_status check_head_keys(const lvr_gguf *g, const lvr_model_shape *s, lvr_error *err)
{
    static const char *const keys[] = {"llama.rope.dimension_count", "llama.attention.key_length",
                                       "llama.attention.value_length"};
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        uint32_t v = 0;
        if (!lvr_gguf_has(g, keys[i]))
            continue;
        const lvr_status status = lvr_gguf_u32(g, keys[i], &v, err);
        if (status != LVR_OK)
            return status;
        if (v != s->head_dim)
            return lvr_fail(
                err, LVR_ERR_UNSUPPORTED,
                "%s: metadata key %s is %u: this version needs the head's width, %u (embedding_length %u / "
                "head_count %u)",
                lvr_gguf_path(g), keys[i], v, s->head_dim, s->d_model, s->n_heads);
    }
    return LVR_OK;
}

static lvr_status load_floats(const lvr_gguf *g, lvr_model_shape *s, lvr_error *err)
{
    lvr_status status = lvr_gguf_f32(g, "llama.attention.layer_norm_rms_epsilon", &s->rms_eps, err);
    s->rope_base = 10000.0f;
    if (status == LVR_OK && lvr_gguf_has(g, "llama.rope.freq_base"))
        status = lvr_gguf_f32(g, "llama.rope.freq_base", &s->rope_base, err);
    if (status != LVR_OK)
        return status;
    if (!(s->rms_eps > 0.0f && s->rms_eps < 1.0f))
        return lvr_fail(err, LVR_ERR_FORMAT,
                        "%s: llama.attention.layer_norm_rms_epsilon is %g (expected between 0 and 1)",
                        lvr_gguf_path(g), (double)s->rms_eps);
    if (!(s->rope_base >= 1.0f) || isinf(s->rope_base))
        return lvr_fail(err, LVR_ERR_FORMAT,
                        "%s: llama.rope.freq_base is %g (expected a finite number from 1)", lvr_gguf_path(g),
                        (double)s->rope_base);
    return LVR_OK;
}

/* The vocabulary's size is the embedding's number of rows; whoever else states it must agree. */
static lvr_status load_vocab(const lvr_gguf *g, lvr_model_shape *s, lvr_error *err)
{
    const lvr_gguf_str *tokens = NULL;
    uint64_t n = 0;
    uint32_t stated = 0;
    const lvr_gguf_tensor *t = lvr_gguf_find(g, "token_embd.weight");
    if (t == NULL)
        return check_tensor(g, s, LVR_ROLE_TOKEN_EMBD, 0, err);
    if (t->dims[1] > MAX_VOCAB)
        return lvr_fail(err, LVR_ERR_FORMAT,
                        "%s: token_embd.weight has %" PRIu64 " rows (at most %u allowed)", lvr_gguf_path(g),
                        t->dims[1], MAX_VOCAB);
    s->vocab = (uint32_t)t->dims[1];
    lvr_status status = LVR_OK;
    if (lvr_gguf_has(g, "llama.vocab_size"))
        status = lvr_gguf_u32(g, "llama.vocab_size", &stated, err);
    if (status != LVR_OK)
        return status;
    if (stated != 0 && stated != s->vocab)
        return lvr_fail(err, LVR_ERR_FORMAT, "%s: llama.vocab_size is %u, but token_embd.weight has %u rows",
                        lvr_gguf_path(g), stated, s->vocab);
    if (!lvr_gguf_has(g, "tokenizer.ggml.tokens"))
        return LVR_OK;
    status = lvr_gguf_str_array(g, "tokenizer.ggml.tokens", &tokens, &n, err);
    if (status == LVR_OK && n != s->vocab)
        return lvr_fail(err, LVR_ERR_FORMAT,
                        "%s: the tokenizer has %" PRIu64 " tokens, but token_embd.weight has %u rows",
                        lvr_gguf_path(g), n, s->vocab);
    return status;
}

static void load_name(const lvr_gguf *g, lvr_model_shape *s)
{
    const char *name = NULL;
    if (lvr_gguf_str_(g, "general.name", &name, NULL) != LVR_OK)
        return;
    snprintf(s->name, sizeof(s->name), "%s", name);
    for (char *c = s->name; *c != '\0'; c++)
        *c = (unsigned char)*c < 0x20 || *c == 0x7f ? '.' : *c;
}

lvr_status lvr_model_shape_from_gguf(const lvr_gguf *g, lvr_model_shape *ret, lvr_error *err)
{
    lvr_model_shape s = {.tied = lvr_gguf_find(g, "output.weight") == NULL};
    lvr_status status = check_arch(g, &s, err);
    if (status == LVR_OK)
        status = check_no_variants(g, err);
    if (status == LVR_OK)
        status = load_sizes(g, &s, err);
    if (status == LVR_OK)
        status = check_sizes(g, &s, err);
    if (status == LVR_OK)
        status = check_head_keys(g, &s, err);
    if (status == LVR_OK)
        status = load_floats(g, &s, err);
    if (status == LVR_OK)
        status = load_vocab(g, &s, err);
    if (status == LVR_OK)
        status = check_needed_tensors(g, &s, err);
    if (status == LVR_OK)
        status = check_no_other_tensors(g, &s, err);
    if (status != LVR_OK)
        return status;
    load_name(g, &s);
    *ret = s;
    return LVR_OK;
}

/* ---- the plan ---- */

static void plan_tensor(struct plan *p, const lvr_gguf *g, struct section *section, lvr_role role,
                        uint32_t layer)
{
    lvr_pack_tensor *t = &p->tensors[p->n_tensors++];
    t->role = role;
    t->type = is_norm(role) ? LVR_F32 : find_tensor(g, role, layer)->type;
    role_dims(&p->shape, role, &t->n_out, &t->n_in);
    t->offset = align_up(section->bytes, LVR_PACK_TENSOR_ALIGN);
    t->bytes =
        is_norm(role) ? (uint64_t)t->n_in * sizeof(float) : lvr_packed_bytes(t->type, t->n_out, t->n_in);
    section->bytes = t->offset + t->bytes;
    section->n_tensors++;
}

static void plan_section(struct plan *p, const lvr_gguf *g, uint32_t i)
{
    struct section *section = &p->sections[i];
    section->offset = p->file_bytes;
    section->first_tensor = p->n_tensors;
    const unsigned first = i == RESIDENT_SECTION ? 0 : FIRST_LAYER_ROLE;
    const unsigned end = i == RESIDENT_SECTION ? FIRST_LAYER_ROLE : LVR_ROLE_COUNT;
    for (unsigned role = first; role < end; role++)
        if (!(role == LVR_ROLE_OUTPUT && p->shape.tied))
            plan_tensor(p, g, section, (lvr_role)role, i - 1);
    section->bytes = align_up(section->bytes, LVR_PACK_ALIGN);
    p->file_bytes += section->bytes;
}

static void plan_free(struct plan *p)
{
    free(p->sections);
    free(p->tensors);
}

/* `g` has passed lvr_model_shape_from_gguf, whose limits keep all sums far from overflow. */
static lvr_status plan_make(const lvr_gguf *g, struct plan *ret, lvr_error *err)
{
    struct plan p = {0};
    const lvr_status status = lvr_model_shape_from_gguf(g, &p.shape, err);
    if (status != LVR_OK)
        return status;
    p.n_resident = p.shape.tied ? 2 : 3;
    p.n_sections = 1 + p.shape.n_layers;
    const uint32_t n_tensors = p.n_resident + p.shape.n_layers * LAYER_ROLES;
    p.sections = calloc(p.n_sections, sizeof(*p.sections));
    p.tensors = calloc(n_tensors, sizeof(*p.tensors));
    if (p.sections == NULL || p.tensors == NULL) {
        plan_free(&p);
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory", lvr_gguf_path(g));
    }
    (void)lvr_gguf_header(g, &p.gguf_bytes);
    p.tables_offset = align_up(LVR_PACK_ALIGN + p.gguf_bytes, LVR_PACK_TENSOR_ALIGN);
    p.tables_bytes = p.n_sections * sizeof(struct file_section) + n_tensors * sizeof(struct file_tensor);
    p.file_bytes = align_up(p.tables_offset + p.tables_bytes, LVR_PACK_ALIGN);
    for (uint32_t i = 0; i < p.n_sections; i++)
        plan_section(&p, g, i);
    *ret = p;
    return LVR_OK;
}

/* Section table and tensor table as they are in the file. */
static void put_tables(const struct plan *p, lvr_buf *out)
{
    for (uint32_t i = 0; i < p->n_sections; i++) {
        const struct section *s = &p->sections[i];
        const struct file_section f = {.offset = s->offset,
                                       .bytes = s->bytes,
                                       .crc = s->crc,
                                       .first_tensor = s->first_tensor,
                                       .n_tensors = s->n_tensors};
        lvr_buf_append(out, &f, sizeof(f));
    }
    for (uint32_t i = 0; i < p->n_tensors; i++) {
        const lvr_pack_tensor *t = &p->tensors[i];
        const struct file_tensor f = {.role = t->role,
                                      .type = t->type,
                                      .n_out = t->n_out,
                                      .n_in = t->n_in,
                                      .offset = t->offset,
                                      .bytes = t->bytes};
        lvr_buf_append(out, &f, sizeof(f));
    }
}

/* ---- writing ---- */

struct writer {
    const lvr_gguf *g;
    const char *path; /* of the temporary file */
    int fd;
    uint64_t pos, total;
    uint32_t crc; /* of the section so far */
    unsigned tenths;
    lvr_error *err;
};

static void show_progress(struct writer *w)
{
    if (w->total < PROGRESS_BYTES)
        return;
    const unsigned tenths = (unsigned)(w->pos * 10 / w->total);
    if (tenths > w->tenths)
        lvr_log(LVR_LOG_INFO, "packing %s: %u %%", lvr_gguf_path(w->g), tenths * 10);
    w->tenths = tenths;
}

static lvr_status put(struct writer *w, const void *data, size_t n)
{
    const lvr_status status = lvr_pwrite_all(w->fd, data, n, w->pos, w->path, w->err);
    if (status != LVR_OK)
        return status;
    w->crc = lvr_crc32c(w->crc, data, n);
    w->pos += n;
    show_progress(w);
    return LVR_OK;
}

static lvr_status put_zeros(struct writer *w, uint64_t upto)
{
    static const uint8_t zeros[LVR_PACK_ALIGN];
    lvr_status status = LVR_OK;
    while (status == LVR_OK && w->pos < upto)
        status = put(w, zeros, upto - w->pos < sizeof(zeros) ? upto - w->pos : sizeof(zeros));
    return status;
}

/* Memory for packed data; aligned_alloc wants a multiple of the alignment. */
static void *alloc_packed(uint64_t n)
{
    return aligned_alloc(LVR_PACK_TENSOR_ALIGN, align_up(n, LVR_PACK_TENSOR_ALIGN));
}

static lvr_status put_norm(struct writer *w, const lvr_gguf_tensor *src, uint32_t n)
{
    float *values = calloc(n, sizeof(*values));
    uint8_t *raw = malloc(src->bytes);
    lvr_status status = LVR_OK;
    if (values == NULL || raw == NULL) {
        status = lvr_fail(w->err, LVR_ERR_NOMEM, "%s: out of memory for tensor %s", lvr_gguf_path(w->g),
                          src->name);
        goto out;
    }
    status = lvr_gguf_read(w->g, src, raw, w->err);
    if (status != LVR_OK)
        goto out;
    for (uint32_t i = 0; i < n; i++) {
        uint16_t half = 0;
        if (src->type == LVR_F32) {
            memcpy(&values[i], raw + i * sizeof(float), sizeof(float));
            continue;
        }
        memcpy(&half, raw + i * sizeof(half), sizeof(half));
        values[i] = lvr_f16_to_f32(half);
    }
    status = put(w, values, n * sizeof(*values));
out:
    free(values);
    free(raw);
    return status;
}

/* Groups of outputs are independent in the packed layout, so a matrix is packed a few groups at a time:
 * memory stays at a few megabytes, even for an embedding larger than a layer. */
static lvr_status put_matrix(struct writer *w, const lvr_gguf_tensor *src, const lvr_pack_tensor *t)
{
    const uint64_t row = lvr_wtype_row_bytes(t->type, t->n_in);
    const uint64_t groups = CHUNK_BYTES / (row * LVR_GROUP) > 0 ? CHUNK_BYTES / (row * LVR_GROUP) : 1;
    const uint32_t chunk = (uint32_t)(groups * LVR_GROUP);
    uint8_t *rows = malloc(chunk * row);
    uint8_t *packed = alloc_packed(lvr_packed_bytes(t->type, chunk, t->n_in));
    lvr_status status = LVR_OK;
    if (rows == NULL || packed == NULL)
        status = lvr_fail(w->err, LVR_ERR_NOMEM, "%s: out of memory for tensor %s", lvr_gguf_path(w->g),
                          src->name);
    for (uint32_t begin = 0; status == LVR_OK && begin < t->n_out; begin += chunk) {
        const uint32_t n = t->n_out - begin < chunk ? t->n_out - begin : chunk;
        status = lvr_gguf_read_range(w->g, src, begin * row, n * row, rows, w->err);
        if (status != LVR_OK)
            break;
        lvr_pack_matrix(t->type, n, t->n_in, rows, packed);
        status = put(w, packed, lvr_packed_bytes(t->type, n, t->n_in));
    }
    free(rows);
    free(packed);
    return status;
}

static lvr_status put_section(struct writer *w, const struct plan *p, struct section *section, uint32_t layer)
{
    lvr_status status = LVR_OK;
    w->pos = section->offset;
    w->crc = 0;
    for (uint32_t i = 0; status == LVR_OK && i < section->n_tensors; i++) {
        const lvr_pack_tensor *t = &p->tensors[section->first_tensor + i];
        const lvr_gguf_tensor *src = find_tensor(w->g, t->role, layer);
        status = put_zeros(w, section->offset + t->offset);
        if (status == LVR_OK)
            status = is_norm(t->role) ? put_norm(w, src, t->n_in) : put_matrix(w, src, t);
    }
    if (status == LVR_OK)
        status = put_zeros(w, section->offset + section->bytes);
    section->crc = w->crc;
    return status;
}

/* Header, GGUF header and tables. Last, when the checksums are known. */
static lvr_status put_front(struct writer *w, const struct plan *p, const char *gguf_sha256)
{
    static const char zeros[LVR_PACK_TENSOR_ALIGN];
    uint64_t n = 0;
    const void *gguf = lvr_gguf_header(w->g, &n);
    struct file_header h = {.magic = MAGIC,
                            .file_version = LVR_PACK_FILE_VERSION,
                            .layout_version = LVR_PACK_LAYOUT_VERSION,
                            .header_bytes = sizeof(h),
                            .n_sections = p->n_sections,
                            .n_tensors = p->n_tensors,
                            .file_bytes = p->file_bytes,
                            .source_bytes = lvr_gguf_file_bytes(w->g),
                            .gguf_offset = sizeof(h),
                            .gguf_bytes = n,
                            .tables_offset = p->tables_offset,
                            .tables_bytes = p->tables_bytes,
                            .gguf_crc = lvr_crc32c(0, gguf, n)};
    lvr_buf front = LVR_BUF_INIT;
    lvr_buf tables = LVR_BUF_INIT;
    put_tables(p, &tables);
    lvr_status status = LVR_OK;
    if (tables.failed) {
        status = lvr_fail(w->err, LVR_ERR_NOMEM, "%s: out of memory", w->path);
        goto out;
    }
    memcpy(h.source_sha256, gguf_sha256, sizeof(h.source_sha256));
    h.tables_crc = lvr_crc32c(0, tables.data, tables.len);
    h.header_crc = lvr_crc32c(0, &h, offsetof(struct file_header, header_crc));
    lvr_buf_append(&front, &h, sizeof(h));
    lvr_buf_append(&front, gguf, n);
    lvr_buf_append(&front, zeros, p->tables_offset - front.len);
    lvr_buf_append(&front, tables.data, tables.len);
    status = front.failed ? lvr_fail(w->err, LVR_ERR_NOMEM, "%s: out of memory", w->path)
                          : lvr_pwrite_all(w->fd, front.data, front.len, 0, w->path, w->err);
out:
    lvr_buf_free(&front);
    lvr_buf_free(&tables);
    return status;
}

/* Claims the space first: a full device is reported before minutes of work, with the number of bytes that are
 * needed. */
static lvr_status reserve(const struct writer *w)
{
    if (fallocate(w->fd, 0, 0, (off_t)w->total) == 0 || errno != ENOSPC)
        return LVR_OK; /* not every file system can; writing will tell */
    return lvr_fail(w->err, LVR_ERR_IO,
                    "%s: no space left on the device: the pack needs %" PRIu64 " bytes; free some space",
                    w->path, w->total);
}

static lvr_status put_all(struct writer *w, const struct plan *p, const char *gguf_sha256)
{
    lvr_status status = reserve(w);
    for (uint32_t i = 0; status == LVR_OK && i < p->n_sections; i++)
        status = put_section(w, p, &p->sections[i], i - 1);
    if (status == LVR_OK)
        status = put_front(w, p, gguf_sha256);
    if (status == LVR_OK && fsync(w->fd) != 0)
        status = lvr_fail_errno(w->err, errno, "%s: cannot write to the device", w->path);
    return status;
}

/* A new file beside `path`, on the same file system. */
static lvr_status open_temporary(const char *path, char **ret_tmp, int *ret_fd, lvr_error *err)
{
    char *tmp = NULL;
    for (unsigned i = 0; i < 100; i++) {
        if (asprintf(&tmp, "%s.tmp.%ld.%u", path, (long)getpid(), i) < 0)
            return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory", path);
        const int fd = open(tmp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0) {
            *ret_tmp = tmp;
            *ret_fd = fd;
            return LVR_OK;
        }
        const int errnum = errno;
        free(tmp);
        if (errnum != EEXIST)
            return lvr_fail_errno(err, errnum, "%s: cannot create the pack", path);
    }
    return lvr_fail(err, LVR_ERR_IO, "%s: too many temporary files %s.tmp.*: delete them", path, path);
}

/* The rename itself must reach the device. Some file systems cannot sync a directory: then it is as durable
 * as they get. */
static void sync_directory(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *dir = slash == NULL ? strdup(".") : strndup(path, slash == path ? 1 : (size_t)(slash - path));
    const int fd = dir == NULL ? -1 : open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(dir);
    if (fd < 0)
        return;
    (void)fsync(fd);
    close(fd);
}

static bool is_sha256_hex(const char *s)
{
    return strspn(s, "0123456789abcdef") == LVR_SHA256_HEX_BYTES - 1;
}

lvr_status lvr_pack_write(const lvr_gguf *g, const char gguf_sha256[LVR_SHA256_HEX_BYTES],
                          const char *out_path, lvr_error *err)
{
    struct plan p = {0};
    char *tmp = NULL;
    int fd = -1;
    if (!is_sha256_hex(gguf_sha256))
        return lvr_fail(err, LVR_ERR_USAGE,
                        "packing %s: \"%.64s\" is not a SHA-256 (64 lower-case hex digits)", lvr_gguf_path(g),
                        gguf_sha256);
    lvr_status status = plan_make(g, &p, err);
    if (status != LVR_OK)
        return status;
    status = open_temporary(out_path, &tmp, &fd, err);
    if (status != LVR_OK)
        goto out;
    struct writer w = {.g = g, .path = tmp, .fd = fd, .total = p.file_bytes, .err = err};
    status = put_all(&w, &p, gguf_sha256);
    if (close(fd) != 0 && status == LVR_OK)
        status = lvr_fail_errno(err, errno, "%s: cannot close", tmp);
    if (status == LVR_OK && rename(tmp, out_path) != 0)
        status = lvr_fail_errno(err, errno, "%s: cannot rename it to %s", tmp, out_path);
    if (status != LVR_OK)
        (void)unlink(tmp);
    else
        sync_directory(out_path);
out:
    plan_free(&p);
    free(tmp);
    return status;
}

/* ---- opening ---- */

bool lvr_pack_is_pack(const char *path)
{
    static const char magic[8] = MAGIC;
    char found[sizeof(magic)];
    int fd = -1;
    uint64_t bytes = 0;
    if (lvr_open_regular(path, "a pack", &fd, &bytes, NULL) != LVR_OK)
        return false;
    const bool is_pack = bytes >= sizeof(found) &&
                         lvr_pread_all(fd, found, sizeof(found), 0, path, NULL) == LVR_OK &&
                         memcmp(found, magic, sizeof(magic)) == 0;
    close(fd);
    return is_pack;
}

static lvr_status damaged(const char *path, const char *what, lvr_error *err)
{
    return lvr_fail(err, LVR_ERR_FORMAT, "%s: the pack is damaged: %s" REPACK, path, what);
}

static lvr_status not_a_pack(const char *path, lvr_error *err)
{
    return lvr_fail(
        err, LVR_ERR_FORMAT,
        "%s: not a pack: it does not start with \"%s\"; lever model pack makes one from a GGUF file", path,
        MAGIC);
}

/* Versions come before the checksum: another version may keep it elsewhere. */
static lvr_status check_versions(const char *path, const struct file_header *h, lvr_error *err)
{
    if (memcmp(h->magic, MAGIC, sizeof(h->magic)) != 0)
        return not_a_pack(path, err);
    if (h->file_version != LVR_PACK_FILE_VERSION)
        return lvr_fail(err, LVR_ERR_UNSUPPORTED,
                        "%s: pack version %u, where this build reads version %u" REPACK, path,
                        h->file_version, LVR_PACK_FILE_VERSION);
    if (h->layout_version != LVR_PACK_LAYOUT_VERSION)
        return lvr_fail(err, LVR_ERR_UNSUPPORTED,
                        "%s: weight layout version %u, where this build reads version %u" REPACK, path,
                        h->layout_version, LVR_PACK_LAYOUT_VERSION);
    return LVR_OK;
}

static bool all_zero(const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (bytes[i] != 0)
            return false;
    return true;
}

static lvr_status check_header(const char *path, const struct file_header *h, uint64_t file_bytes,
                               lvr_error *err)
{
    const lvr_status status = check_versions(path, h, err);
    if (status != LVR_OK)
        return status;
    if (h->header_crc != lvr_crc32c(0, h, offsetof(struct file_header, header_crc)))
        return damaged(path, "the header's checksum does not match", err);
    if (h->file_bytes != file_bytes)
        return lvr_fail(
            err, LVR_ERR_FORMAT,
            "%s: the pack has %" PRIu64 " bytes, where its header says %" PRIu64 ": it is %s" REPACK, path,
            file_bytes, h->file_bytes, file_bytes < h->file_bytes ? "truncated" : "damaged");
    if (h->header_bytes != sizeof(*h) || h->gguf_offset != sizeof(*h) || h->reserved0 != 0 ||
        !all_zero(h->reserved, sizeof(h->reserved)))
        return damaged(path, "the header has fields that version 1 does not have", err);
    if (h->gguf_bytes == 0 || h->gguf_bytes > MAX_GGUF_HEADER_BYTES ||
        h->gguf_bytes > file_bytes - sizeof(*h))
        return damaged(path, "the size of its GGUF header is impossible", err);
    return LVR_OK;
}

static lvr_status read_header(lvr_pack *p, uint64_t file_bytes, struct file_header *ret, lvr_error *err)
{
    if (file_bytes < sizeof(*ret) && !lvr_pack_is_pack(p->path))
        return not_a_pack(p->path, err);
    if (file_bytes < sizeof(*ret))
        return damaged(p->path, "it ends inside its header: it is truncated", err);
    const lvr_status status = lvr_pread_all(p->fd, ret, sizeof(*ret), 0, p->path, err);
    if (status != LVR_OK)
        return status;
    return check_header(p->path, ret, file_bytes, err);
}

static lvr_status read_gguf(lvr_pack *p, const struct file_header *h, lvr_error *err)
{
    uint8_t *bytes = malloc(h->gguf_bytes);
    if (bytes == NULL)
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory for %" PRIu64 " bytes of metadata", p->path,
                        h->gguf_bytes);
    lvr_status status = lvr_pread_all(p->fd, bytes, h->gguf_bytes, h->gguf_offset, p->path, err);
    if (status == LVR_OK && lvr_crc32c(0, bytes, h->gguf_bytes) != h->gguf_crc)
        status = damaged(p->path, "the checksum of its GGUF header does not match", err);
    if (status == LVR_OK)
        status = lvr_gguf_open_mem(p->path, bytes, h->gguf_bytes, h->source_bytes, true, &p->gguf, err);
    free(bytes);
    return status;
}

/* Compares the tables with the plan; the section checksums are the only news in them. */
static lvr_status match_tables(lvr_pack *p, const char *found, lvr_error *err)
{
    lvr_buf expected = LVR_BUF_INIT;
    lvr_status status = LVR_OK;
    for (uint32_t i = 0; i < p->plan.n_sections; i++) {
        struct file_section f;
        memcpy(&f, found + i * sizeof(f), sizeof(f));
        p->plan.sections[i].crc = f.crc;
    }
    put_tables(&p->plan, &expected);
    if (expected.failed)
        status = lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory", p->path);
    else if (memcmp(expected.data, found, expected.len) != 0)
        status = damaged(p->path, "its tables of sections and tensors contradict the model's metadata", err);
    lvr_buf_free(&expected);
    return status;
}

static lvr_status read_tables(lvr_pack *p, const struct file_header *h, lvr_error *err)
{
    const struct plan *plan = &p->plan;
    if (h->gguf_bytes != plan->gguf_bytes || h->n_sections != plan->n_sections ||
        h->n_tensors != plan->n_tensors || h->tables_offset != plan->tables_offset ||
        h->tables_bytes != plan->tables_bytes || h->file_bytes != plan->file_bytes)
        return damaged(p->path, "its header contradicts the model's metadata", err);
    char *tables = malloc(plan->tables_bytes);
    if (tables == NULL)
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory", p->path);
    lvr_status status = lvr_pread_all(p->fd, tables, plan->tables_bytes, plan->tables_offset, p->path, err);
    if (status == LVR_OK && lvr_crc32c(0, tables, plan->tables_bytes) != h->tables_crc)
        status = damaged(p->path, "the checksum of its tables does not match", err);
    if (status == LVR_OK)
        status = match_tables(p, tables, err);
    free(tables);
    return status;
}

static lvr_status load(lvr_pack *p, lvr_error *err)
{
    struct file_header h;
    uint64_t file_bytes = 0;
    lvr_status status = lvr_open_regular(p->path, "a pack", &p->fd, &file_bytes, err);
    if (status == LVR_OK)
        status = read_header(p, file_bytes, &h, err);
    if (status != LVR_OK)
        return status;
    memcpy(p->source_sha256, h.source_sha256, sizeof(h.source_sha256));
    if (!is_sha256_hex(p->source_sha256))
        return damaged(p->path, "the source's SHA-256 is not 64 hex digits", err);
    status = read_gguf(p, &h, err);
    if (status == LVR_OK)
        status = plan_make(p->gguf, &p->plan, err);
    return status == LVR_OK ? read_tables(p, &h, err) : status;
}

lvr_status lvr_pack_open(const char *path, lvr_pack **ret, lvr_error *err)
{
    lvr_pack *p = calloc(1, sizeof(*p));
    if (p == NULL)
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory", path);
    p->fd = -1;
    p->path = strdup(path);
    lvr_status status =
        p->path == NULL ? lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory", path) : load(p, err);
    if (status == LVR_OK) {
        *ret = p;
        return LVR_OK;
    }
    lvr_pack_free(p);
    return status;
}

void lvr_pack_free(lvr_pack *p)
{
    if (p == NULL)
        return;
    if (p->fd >= 0)
        close(p->fd);
    lvr_gguf_free(p->gguf);
    plan_free(&p->plan);
    free(p->path);
    free(p);
}

static lvr_status section_crc(const lvr_pack *p, const struct section *s, uint8_t *buffer, uint32_t *ret,
                              lvr_error *err)
{
    uint32_t crc = 0;
    for (uint64_t at = 0; at < s->bytes; at += CHUNK_BYTES) {
        const uint64_t n = s->bytes - at < CHUNK_BYTES ? s->bytes - at : CHUNK_BYTES;
        const lvr_status status = lvr_pread_all(p->fd, buffer, n, s->offset + at, p->path, err);
        if (status != LVR_OK)
            return status;
        crc = lvr_crc32c(crc, buffer, n);
    }
    *ret = crc;
    return LVR_OK;
}

lvr_status lvr_pack_verify(const lvr_pack *p, lvr_error *err)
{
    uint8_t *buffer = malloc(CHUNK_BYTES);
    if (buffer == NULL)
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory", p->path);
    lvr_status status = LVR_OK;
    for (uint32_t i = 0; status == LVR_OK && i < p->plan.n_sections; i++) {
        const struct section *s = &p->plan.sections[i];
        char name[32] = "resident section";
        uint32_t crc = 0;
        if (i != RESIDENT_SECTION)
            snprintf(name, sizeof(name), "layer %u", i - 1);
        status = section_crc(p, s, buffer, &crc, err);
        if (status == LVR_OK && crc != s->crc)
            status = lvr_fail(err, LVR_ERR_FORMAT,
                              "%s: %s (bytes %" PRIu64 " to %" PRIu64
                              ") has checksum %08x, expected %08x: the pack is "
                              "damaged" REPACK,
                              p->path, name, s->offset, s->offset + s->bytes, crc, s->crc);
    }
    free(buffer);
    return status;
}

/* ---- looking into ---- */

const char *lvr_pack_path(const lvr_pack *p)
{
    return p->path;
}

const char *lvr_pack_source_sha256(const lvr_pack *p)
{
    return p->source_sha256;
}

uint64_t lvr_pack_file_bytes(const lvr_pack *p)
{
    return p->plan.file_bytes;
}

const lvr_gguf *lvr_pack_gguf(const lvr_pack *p)
{
    return p->gguf;
}

const lvr_model_shape *lvr_pack_shape(const lvr_pack *p)
{
    return &p->plan.shape;
}

uint64_t lvr_pack_layer_offset(const lvr_pack *p, uint32_t layer)
{
    return p->plan.sections[1 + layer].offset;
}

uint64_t lvr_pack_layer_bytes(const lvr_pack *p, uint32_t layer)
{
    return p->plan.sections[1 + layer].bytes;
}

uint32_t lvr_pack_layer_crc(const lvr_pack *p, uint32_t layer)
{
    return p->plan.sections[1 + layer].crc;
}

static const lvr_pack_tensor *find_in_section(const struct plan *p, const struct section *s, lvr_role role)
{
    for (uint32_t i = 0; i < s->n_tensors; i++)
        if (p->tensors[s->first_tensor + i].role == role)
            return &p->tensors[s->first_tensor + i];
    return NULL;
}

const lvr_pack_tensor *lvr_pack_layer_tensor(const lvr_pack *p, uint32_t layer, lvr_role role)
{
    return layer < p->plan.shape.n_layers ? find_in_section(&p->plan, &p->plan.sections[1 + layer], role)
                                          : NULL;
}

uint64_t lvr_pack_resident_offset(const lvr_pack *p)
{
    return p->plan.sections[RESIDENT_SECTION].offset;
}

uint64_t lvr_pack_resident_bytes(const lvr_pack *p)
{
    return p->plan.sections[RESIDENT_SECTION].bytes;
}

uint32_t lvr_pack_resident_crc(const lvr_pack *p)
{
    return p->plan.sections[RESIDENT_SECTION].crc;
}

const lvr_pack_tensor *lvr_pack_resident_tensor(const lvr_pack *p, lvr_role role)
{
    return find_in_section(&p->plan, &p->plan.sections[RESIDENT_SECTION], role);
}
