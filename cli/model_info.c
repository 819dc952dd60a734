#include "cli/model_info.h"

#include "cli/emit.h"
#include "common/json.h"
#include "engine/pack.h"
#include <inttypes.h>

/* A GGUF, or the GGUF header inside a pack. */
struct model_file {
    lvr_gguf *own; /* NULL if it is a pack */
    lvr_pack *pack;
    const lvr_gguf *gguf;
};

static lvr_status open_model(const char *path, struct model_file *ret, lvr_error *err)
{
    struct model_file m = {0};
    lvr_status status = LVR_OK;
    if (lvr_pack_is_pack(path))
        status = lvr_pack_open(path, &m.pack, err);
    else
        status = lvr_gguf_open(path, &m.own, err);
    if (status != LVR_OK)
        return status;
    m.gguf = m.pack != NULL ? lvr_pack_gguf(m.pack) : m.own;
    *ret = m;
    return LVR_OK;
}

static void close_model(struct model_file *m)
{
    lvr_gguf_free(m->own);
    lvr_pack_free(m->pack);
}

static uint64_t file_bytes(const struct model_file *m)
{
    return m->pack != NULL ? lvr_pack_file_bytes(m->pack) : lvr_gguf_file_bytes(m->gguf);
}

static uint64_t weight_bytes(const lvr_gguf *g)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < lvr_gguf_n_tensors(g); i++)
        sum += lvr_gguf_tensor_at(g, i)->bytes;
    return sum;
}

static uint64_t n_values(const lvr_gguf_tensor *t)
{
    return t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3];
}

static uint64_t weight_count(const lvr_gguf *g)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < lvr_gguf_n_tensors(g); i++)
        sum += n_values(lvr_gguf_tensor_at(g, i));
    return sum;
}

/* Numbers and booleans as such, everything else as text. */
static void value_json(const lvr_gguf *g, uint64_t i, lvr_json *j)
{
    const char *key = lvr_gguf_key_at(g, i);
    uint32_t u = 0;
    float f = 0;
    const bool b = lvr_gguf_bool_or(g, key, true);
    if (lvr_gguf_u32(g, key, &u, NULL) == LVR_OK) {
        lvr_json_u64(j, key, u);
    } else if (lvr_gguf_f32(g, key, &f, NULL) == LVR_OK) {
        lvr_json_double(j, key, (double)f);
    } else if (b == lvr_gguf_bool_or(g, key, false)) { /* no fallback was used: it is a boolean */
        lvr_json_bool(j, key, b);
    } else {
        lvr_buf text = LVR_BUF_INIT;
        lvr_gguf_value_text(g, i, &text);
        lvr_json_strn(j, key, text.data != NULL ? text.data : "", text.len);
        lvr_buf_free(&text);
    }
}

static void metadata_json(const lvr_gguf *g, lvr_json *j)
{
    lvr_json_object(j, "metadata");
    for (uint64_t i = 0; i < lvr_gguf_n_keys(g); i++)
        value_json(g, i, j);
    lvr_json_end_object(j);
}

static void shape_json(const lvr_model_shape *s, lvr_json *j)
{
    lvr_json_object(j, "shape");
    lvr_json_str(j, "arch", s->arch);
    lvr_json_str(j, "name", s->name);
    lvr_json_u64(j, "n_layers", s->n_layers);
    lvr_json_u64(j, "d_model", s->d_model);
    lvr_json_u64(j, "n_heads", s->n_heads);
    lvr_json_u64(j, "n_kv", s->n_kv);
    lvr_json_u64(j, "head_dim", s->head_dim);
    lvr_json_u64(j, "d_ff", s->d_ff);
    lvr_json_u64(j, "vocab", s->vocab);
    lvr_json_u64(j, "n_ctx_train", s->n_ctx_train);
    lvr_json_double(j, "rms_eps", (double)s->rms_eps);
    lvr_json_double(j, "rope_base", (double)s->rope_base);
    lvr_json_double(j, "rope_factor", (double)s->rope_factor);
    lvr_json_bool(j, "rope_freqs", lvr_shape_has(s, LVR_ROLE_ROPE_FREQS));
    lvr_json_str(j, "rope_pairs", s->rope_neox ? "halves" : "neighbours");
    lvr_json_bool(j, "tied", s->tied);
    lvr_json_bool(j, "qkv_biases", lvr_shape_has(s, LVR_ROLE_Q_BIAS));
    lvr_json_bool(j, "output_bias", lvr_shape_has(s, LVR_ROLE_O_BIAS));
    lvr_json_bool(j, "head_norms", lvr_shape_has(s, LVR_ROLE_Q_NORM));
    lvr_json_end_object(j);
}

/* Number and bytes of the tensors of a weight type. */
struct type_sum {
    uint64_t n, bytes;
};

static struct type_sum sum_of_type(const lvr_gguf *g, lvr_wtype type)
{
    struct type_sum sum = {0};
    for (uint64_t i = 0; i < lvr_gguf_n_tensors(g); i++) {
        const lvr_gguf_tensor *t = lvr_gguf_tensor_at(g, i);
        sum.n += t->type == type;
        sum.bytes += t->type == type ? t->bytes : 0;
    }
    return sum;
}

static void types_json(const lvr_gguf *g, lvr_json *j)
{
    lvr_json_array(j, "types");
    for (uint32_t t = 0; t < LVR_WTYPE_SLOTS; t++) {
        const struct type_sum sum = sum_of_type(g, (lvr_wtype)t);
        if (sum.n == 0)
            continue;
        lvr_json_object(j, NULL);
        lvr_json_str(j, "type", lvr_wtype_name((lvr_wtype)t));
        lvr_json_u64(j, "tensors", sum.n);
        lvr_json_u64(j, "bytes", sum.bytes);
        lvr_json_end_object(j);
    }
    lvr_json_end_array(j);
}

static void parts_json(const lvr_gguf *g, lvr_json *j)
{
    lvr_json_array(j, "parts");
    for (uint32_t i = 0; i < lvr_gguf_n_parts(g); i++) {
        lvr_json_object(j, NULL);
        lvr_json_str(j, "file", lvr_gguf_part_path(g, i));
        lvr_json_u64(j, "bytes", lvr_gguf_part_bytes(g, i));
        lvr_json_end_object(j);
    }
    lvr_json_end_array(j);
}

/* What the pack of a runnable model keeps in DRAM, and what a pass streams if no layer is resident. */
struct pass_bytes {
    uint64_t resident, streamed;
};

static struct pass_bytes pass_bytes_of(const lvr_gguf *g)
{
    struct pass_bytes b = {0};
    (void)lvr_pack_sizes(g, &b.resident, &b.streamed,
                         NULL); /* the shape was accepted: only memory can fail */
    return b;
}

static void tensors_json(const lvr_gguf *g, lvr_json *j)
{
    lvr_json_array(j, "tensors");
    for (uint64_t i = 0; i < lvr_gguf_n_tensors(g); i++) {
        const lvr_gguf_tensor *t = lvr_gguf_tensor_at(g, i);
        lvr_json_object(j, NULL);
        lvr_json_str(j, "name", t->name);
        lvr_json_str(j, "type", lvr_wtype_name(t->type));
        lvr_json_array(j, "dims");
        for (uint32_t d = 0; d < t->n_dims; d++)
            lvr_json_u64(j, NULL, t->dims[d]);
        lvr_json_end_array(j);
        lvr_json_u64(j, "offset", t->offset);
        lvr_json_u64(j, "bytes", t->bytes);
        lvr_json_end_object(j);
    }
    lvr_json_end_array(j);
}

static void pack_json(const lvr_pack *p, lvr_json *j)
{
    lvr_json_object(j, "pack");
    lvr_json_str(j, "source_sha256", lvr_pack_source_sha256(p));
    lvr_json_u64(j, "layout_version", LVR_PACK_LAYOUT_VERSION);
    lvr_json_u64(j, "resident_bytes", lvr_pack_resident_bytes(p));
    lvr_json_array(j, "layer_bytes");
    for (uint32_t l = 0; l < lvr_pack_shape(p)->n_layers; l++)
        lvr_json_u64(j, NULL, lvr_pack_layer_bytes(p, l));
    lvr_json_end_array(j);
    lvr_json_end_object(j);
}

static void pass_json(const lvr_gguf *g, const lvr_model_shape *shape, lvr_json *j)
{
    const struct pass_bytes bytes = pass_bytes_of(g);
    shape_json(shape, j);
    lvr_json_u64(j, "resident_bytes", bytes.resident);
    lvr_json_u64(j, "streamed_bytes_per_pass", bytes.streamed);
}

static void info_json(const char *path, const struct model_file *m, const lvr_model_shape *shape,
                      const char *reason, lvr_buf *out)
{
    lvr_json j;
    lvr_json_init(&j, out, true);
    lvr_json_object(&j, NULL);
    lvr_json_str(&j, "file", path);
    lvr_json_str(&j, "format", m->pack != NULL ? "pack" : "gguf");
    lvr_json_u64(&j, "file_bytes", file_bytes(m));
    lvr_json_u64(&j, "weight_bytes", weight_bytes(m->gguf));
    lvr_json_u64(&j, "weights", weight_count(m->gguf));
    lvr_json_bool(&j, "synthetic", lvr_gguf_bool_or(m->gguf, LVR_GGUF_SYNTHETIC, false));
    lvr_json_bool(&j, "runnable", shape != NULL);
    lvr_json_str(&j, "not_runnable_because", reason);
    if (shape != NULL)
        pass_json(m->gguf, shape, &j);
    if (m->pack != NULL)
        pack_json(m->pack, &j);
    types_json(m->gguf, &j);
    parts_json(m->gguf, &j);
    metadata_json(m->gguf, &j);
    tensors_json(m->gguf, &j);
    lvr_json_end_object(&j);
    lvr_buf_puts(out, "\n");
}

static void shape_text(const lvr_model_shape *s, lvr_buf *out)
{
    lvr_buf_printf(out, "name        %s\n", s->name[0] != '\0' ? s->name : "(none)");
    lvr_buf_printf(out,
                   "shape       %s, %u layers, width %u, %u heads of %u (%u key-value), feed-forward %u\n",
                   s->arch, s->n_layers, s->d_model, s->n_heads, s->head_dim, s->n_kv, s->d_ff);
    lvr_buf_printf(out, "vocabulary  %u tokens, %s\n", s->vocab,
                   s->tied ? "tied embeddings" : "own output head");
    lvr_buf_printf(out, "context     %u tokens in training\n", s->n_ctx_train);
    lvr_buf_printf(out, "attention   %s of queries, keys and values, %s of the output, %s of heads\n",
                   lvr_shape_has(s, LVR_ROLE_Q_BIAS) ? "biases" : "no biases",
                   lvr_shape_has(s, LVR_ROLE_O_BIAS) ? "bias" : "no bias",
                   lvr_shape_has(s, LVR_ROLE_Q_NORM) ? "norms" : "no norms");
    lvr_buf_printf(out, "RoPE        base %g, %s, ", (double)s->rope_base,
                   s->rope_neox ? "pairs of halves" : "pairs of neighbours");
    if (s->rope_factor != 1.0f)
        lvr_buf_printf(out, "linear scaling by %g, ", (double)s->rope_factor);
    lvr_buf_printf(out, "%s\n",
                   lvr_shape_has(s, LVR_ROLE_ROPE_FREQS) ? "frequency factors (rope_freqs.weight)"
                                                         : "no frequency factors");
    lvr_buf_printf(out, "constants   RMS epsilon %g\n", (double)s->rms_eps);
}

static void types_text(const lvr_gguf *g, lvr_buf *out)
{
    for (uint32_t t = 0; t < LVR_WTYPE_SLOTS; t++) {
        const struct type_sum sum = sum_of_type(g, (lvr_wtype)t);
        if (sum.n > 0)
            lvr_buf_printf(out, "type        %s: %" PRIu64 " tensors, %" PRIu64 " bytes\n",
                           lvr_wtype_name((lvr_wtype)t), sum.n, sum.bytes);
    }
}

static void parts_text(const lvr_gguf *g, lvr_buf *out)
{
    const uint32_t n = lvr_gguf_n_parts(g);
    for (uint32_t i = 0; n > 1 && i < n; i++)
        lvr_buf_printf(out, "part        %u of %u: %s (%" PRIu64 " bytes)\n", i + 1, n,
                       lvr_gguf_part_path(g, i), lvr_gguf_part_bytes(g, i));
}

static void pack_text(const lvr_pack *p, lvr_buf *out)
{
    const uint32_t n_layers = lvr_pack_shape(p)->n_layers;
    uint64_t layers = 0;
    for (uint32_t l = 0; l < n_layers; l++)
        layers += lvr_pack_layer_bytes(p, l);
    lvr_buf_printf(out,
                   "pack        layout %u, resident section %" PRIu64 " bytes, %u layers of %" PRIu64
                   " bytes together\n",
                   LVR_PACK_LAYOUT_VERSION, lvr_pack_resident_bytes(p), n_layers, layers);
    lvr_buf_printf(out, "source      sha256 %s\n", lvr_pack_source_sha256(p));
}

static void metadata_text(const lvr_gguf *g, lvr_buf *out)
{
    lvr_buf_printf(out, "\nmetadata (%" PRIu64 " keys)\n", lvr_gguf_n_keys(g));
    for (uint64_t i = 0; i < lvr_gguf_n_keys(g); i++) {
        lvr_buf_printf(out, "  %s = ", lvr_gguf_key_at(g, i));
        lvr_gguf_value_text(g, i, out);
        lvr_buf_puts(out, "\n");
    }
}

static void tensors_text(const lvr_gguf *g, lvr_buf *out)
{
    lvr_buf_printf(out, "\ntensors (%" PRIu64 ")\n", lvr_gguf_n_tensors(g));
    for (uint64_t i = 0; i < lvr_gguf_n_tensors(g); i++) {
        const lvr_gguf_tensor *t = lvr_gguf_tensor_at(g, i);
        lvr_buf dims = LVR_BUF_INIT;
        for (uint32_t d = 0; d < t->n_dims; d++)
            lvr_buf_printf(&dims, "%s%" PRIu64, d > 0 ? " x " : "", t->dims[d]);
        lvr_buf_printf(out, "  %-28s %-5s %-18s %" PRIu64 " bytes\n", t->name, lvr_wtype_name(t->type),
                       dims.data != NULL ? dims.data : "", t->bytes);
        lvr_buf_free(&dims);
    }
}

static void pass_text(const lvr_gguf *g, const lvr_model_shape *shape, lvr_buf *out)
{
    const struct pass_bytes bytes = pass_bytes_of(g);
    shape_text(shape, out);
    lvr_buf_printf(out,
                   "pass        %" PRIu64 " bytes of layers (streamed but for the resident ones), %" PRIu64
                   " bytes of embeddings and head in DRAM\n",
                   bytes.streamed, bytes.resident);
}

static void info_text(const char *path, const struct model_file *m, const lvr_model_shape *shape,
                      const char *reason, lvr_buf *out)
{
    lvr_buf_printf(out, "file        %s (%s, %" PRIu64 " bytes)\n", path, m->pack != NULL ? "pack" : "GGUF",
                   file_bytes(m));
    if (lvr_gguf_bool_or(m->gguf, LVR_GGUF_SYNTHETIC, false))
        lvr_buf_puts(out, "synthetic   yes: the weights are random\n");
    if (shape != NULL)
        pass_text(m->gguf, shape, out);
    else
        lvr_buf_printf(out, "runnable    no: %s\n", reason);
    lvr_buf_printf(out, "weights     %" PRIu64 " in %" PRIu64 " bytes\n", weight_count(m->gguf),
                   weight_bytes(m->gguf));
    types_text(m->gguf, out);
    parts_text(m->gguf, out);
    if (m->pack != NULL)
        pack_text(m->pack, out);
    metadata_text(m->gguf, out);
    tensors_text(m->gguf, out);
}

lvr_status lvr_model_info_emit(const char *path, bool json, lvr_error *err)
{
    struct model_file m = {0};
    lvr_model_shape shape;
    lvr_error reason = LVR_ERROR_INIT;
    lvr_buf out = LVR_BUF_INIT;
    const lvr_status status = open_model(path, &m, err);
    if (status != LVR_OK)
        return status;
    /* A sound file that cannot be run is still worth looking into. */
    const bool runnable = lvr_model_shape_from_gguf(m.gguf, &shape, &reason) == LVR_OK;
    if (json)
        info_json(path, &m, runnable ? &shape : NULL, runnable ? NULL : reason.msg, &out);
    else
        info_text(path, &m, runnable ? &shape : NULL, runnable ? NULL : reason.msg, &out);
    close_model(&m);
    return lvr_emit(NULL, &out, err);
}
