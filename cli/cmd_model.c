/* lever model: look into a GGUF or a pack, make a pack, check a pack. */
#include "cli/cli.h"
#include "cli/emit.h"
#include "common/json.h"
#include "common/param.h"
#include "engine/pack_cache.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const char usage[] = "usage: lever model info|pack|verify|synth [options]\n"
                            "\n"
                            "  info FILE          what a GGUF or a pack contains\n"
                            "  pack FILE -o OUT   write the layer-major pack of a GGUF\n"
                            "  verify PACK        compare every checksum of a pack\n"
                            "  synth              write a random-weight model (not in this version)\n"
                            "\n"
                            "`lever model NAME --help` lists a subcommand's options.\n";

typedef struct model_options {
    const char *file, *out;
    bool json;
} model_options;

#define FILE_ROW(text)                                                                                       \
    {                                                                                                        \
        .name = "file", .type = LVR_PARAM_STR, .offset = offsetof(model_options, file), .def = NAN,          \
        .help = text, .positional = true                                                                     \
    }
#define JSON_ROW                                                                                             \
    {                                                                                                        \
        .name = "json", .type = LVR_PARAM_BOOL, .offset = offsetof(model_options, json), .max = 1,           \
        .help = "print JSON"                                                                                 \
    }

static const lvr_param info_table[] = {FILE_ROW("a GGUF file or a pack"), JSON_ROW};
static const lvr_param pack_table[] = {
    FILE_ROW("the GGUF file to pack"),
    {.name = "output",
     .short_name = 'o',
     .type = LVR_PARAM_STR,
     .offset = offsetof(model_options, out),
     .def = NAN,
     .help = "the pack to write"},
    JSON_ROW,
};
static const lvr_param verify_table[] = {FILE_ROW("the pack to check"), JSON_ROW};

#define N_ROWS(table) (sizeof(table) / sizeof((table)[0]))

/* Parses the options of one subcommand; on --help prints them and sets *ret_done. */
static lvr_status parse(const char *synopsis, const lvr_param *table, size_t n, int argc, char *const *argv,
                        model_options *ret, bool *ret_done, lvr_error *err)
{
    char text[128];
    lvr_params_default(table, n, ret);
    const lvr_status status = lvr_options_parse(table, n, ret, argc, argv, ret_done, err);
    if (status != LVR_OK)
        return status;
    snprintf(text, sizeof(text), "usage: lever model %s\n\n", synopsis);
    if (*ret_done)
        return lvr_emit_help(text, table, n, err);
    if (ret->file == NULL)
        return lvr_fail(err, LVR_ERR_USAGE, "model %s: which file? usage: lever model %s", argv[0], synopsis);
    return LVR_OK;
}

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
    lvr_json_bool(j, "tied", s->tied);
    lvr_json_end_object(j);
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
    lvr_json_bool(&j, "runnable", shape != NULL);
    lvr_json_str(&j, "not_runnable_because", reason);
    if (shape != NULL)
        shape_json(shape, &j);
    if (m->pack != NULL)
        pack_json(m->pack, &j);
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
    lvr_buf_printf(out, "constants   RMS epsilon %g, RoPE base %g\n", (double)s->rms_eps,
                   (double)s->rope_base);
}

/* Bytes and count of tensors for each weight type. */
static void types_text(const lvr_gguf *g, lvr_buf *out)
{
    static const lvr_wtype types[] = {LVR_F32, LVR_F16, LVR_Q8_0, LVR_Q4_0};
    for (size_t k = 0; k < sizeof(types) / sizeof(types[0]); k++) {
        uint64_t n = 0, bytes = 0;
        for (uint64_t i = 0; i < lvr_gguf_n_tensors(g); i++) {
            const lvr_gguf_tensor *t = lvr_gguf_tensor_at(g, i);
            n += t->type == types[k];
            bytes += t->type == types[k] ? t->bytes : 0;
        }
        if (n > 0)
            lvr_buf_printf(out, "type        %s: %" PRIu64 " tensors, %" PRIu64 " bytes\n",
                           lvr_wtype_name(types[k]), n, bytes);
    }
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

static void info_text(const char *path, const struct model_file *m, const lvr_model_shape *shape,
                      const char *reason, lvr_buf *out)
{
    lvr_buf_printf(out, "file        %s (%s, %" PRIu64 " bytes)\n", path, m->pack != NULL ? "pack" : "GGUF",
                   file_bytes(m));
    if (shape != NULL)
        shape_text(shape, out);
    else
        lvr_buf_printf(out, "runnable    no: %s\n", reason);
    lvr_buf_printf(out, "weights     %" PRIu64 " in %" PRIu64 " bytes\n", weight_count(m->gguf),
                   weight_bytes(m->gguf));
    types_text(m->gguf, out);
    if (m->pack != NULL)
        pack_text(m->pack, out);
    metadata_text(m->gguf, out);
    tensors_text(m->gguf, out);
}

static lvr_status model_info(int argc, char *const *argv, lvr_error *err)
{
    model_options o;
    bool done = false;
    struct model_file m = {0};
    lvr_model_shape shape;
    lvr_error reason = LVR_ERROR_INIT;
    lvr_buf out = LVR_BUF_INIT;
    lvr_status status =
        parse("info FILE [--json]", info_table, N_ROWS(info_table), argc, argv, &o, &done, err);
    if (status != LVR_OK || done)
        return status;
    status = open_model(o.file, &m, err);
    if (status != LVR_OK)
        return status;
    /* A sound file that cannot be run is still worth looking into. */
    const bool runnable = lvr_model_shape_from_gguf(m.gguf, &shape, &reason) == LVR_OK;
    if (o.json)
        info_json(o.file, &m, runnable ? &shape : NULL, runnable ? NULL : reason.msg, &out);
    else
        info_text(o.file, &m, runnable ? &shape : NULL, runnable ? NULL : reason.msg, &out);
    close_model(&m);
    return lvr_emit(NULL, &out, err);
}

/* What `pack` and `verify` report. */
static lvr_status print_pack(const lvr_pack *p, bool json, const char *verb, lvr_error *err)
{
    lvr_buf out = LVR_BUF_INIT;
    lvr_json j;
    if (!json) {
        lvr_buf_printf(&out, "%s: %s, %" PRIu64 " bytes, %u layers, source sha256 %s\n", lvr_pack_path(p),
                       verb, lvr_pack_file_bytes(p), lvr_pack_shape(p)->n_layers, lvr_pack_source_sha256(p));
        return lvr_emit(NULL, &out, err);
    }
    lvr_json_init(&j, &out, true);
    lvr_json_object(&j, NULL);
    lvr_json_str(&j, "file", lvr_pack_path(p));
    lvr_json_str(&j, "result", verb);
    lvr_json_u64(&j, "file_bytes", lvr_pack_file_bytes(p));
    lvr_json_u64(&j, "n_layers", lvr_pack_shape(p)->n_layers);
    lvr_json_str(&j, "source_sha256", lvr_pack_source_sha256(p));
    lvr_json_end_object(&j);
    lvr_buf_puts(&out, "\n");
    return lvr_emit(NULL, &out, err);
}

static lvr_status model_pack(int argc, char *const *argv, lvr_error *err)
{
    model_options o;
    bool done = false;
    lvr_pack *p = NULL;
    lvr_status status =
        parse("pack FILE -o OUT [--json]", pack_table, N_ROWS(pack_table), argc, argv, &o, &done, err);
    if (status != LVR_OK || done)
        return status;
    if (o.out == NULL)
        return lvr_fail(err, LVR_ERR_USAGE, "model pack: say where the pack goes with -o OUT");
    if (lvr_pack_is_pack(o.file))
        return lvr_fail(err, LVR_ERR_USAGE, "%s is a pack already; give the GGUF file it was made from",
                        o.file);
    status = lvr_pack_from_gguf(o.file, o.out, err);
    if (status == LVR_OK)
        status = lvr_pack_open(o.out, &p, err);
    if (status == LVR_OK)
        status = print_pack(p, o.json, "packed", err);
    lvr_pack_free(p);
    return status;
}

static lvr_status model_verify(int argc, char *const *argv, lvr_error *err)
{
    model_options o;
    bool done = false;
    lvr_pack *p = NULL;
    lvr_status status =
        parse("verify PACK [--json]", verify_table, N_ROWS(verify_table), argc, argv, &o, &done, err);
    if (status != LVR_OK || done)
        return status;
    status = lvr_pack_open(o.file, &p, err);
    if (status == LVR_OK)
        status = lvr_pack_verify(p, err);
    if (status == LVR_OK)
        status = print_pack(p, o.json, "all checksums match", err);
    lvr_pack_free(p);
    return status;
}

static lvr_status model_synth(int argc, char *const *argv, lvr_error *err)
{
    (void)argc;
    (void)argv;
    return lvr_fail(err, LVR_ERR_UNSUPPORTED,
                    "model synth: this version does not write random-weight models; use a GGUF file of the "
                    "shape you want");
}

static const struct {
    const char *name;
    lvr_status (*run)(int argc, char *const *argv, lvr_error *err);
} subcommands[] = {
    {"info", model_info},
    {"pack", model_pack},
    {"verify", model_verify},
    {"synth", model_synth},
};

#define N_SUBCOMMANDS (sizeof(subcommands) / sizeof(subcommands[0]))

static lvr_status fail_unknown(const char *name, lvr_error *err)
{
    const char *names[N_SUBCOMMANDS];
    for (size_t i = 0; i < N_SUBCOMMANDS; i++)
        names[i] = subcommands[i].name;
    const char *near = lvr_closest_name(name, names, N_SUBCOMMANDS);
    return lvr_fail(err, LVR_ERR_USAGE, "model: expected info, pack, verify or synth, found '%s'%s%s%s", name,
                    near != NULL ? "; did you mean '" : "", near != NULL ? near : "",
                    near != NULL ? "'?" : "");
}

lvr_status lvr_cmd_model(int argc, char *const *argv, lvr_error *err)
{
    if (argc < 2)
        return lvr_fail(err, LVR_ERR_USAGE, "model: say what to do: info, pack, verify or synth");
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        lvr_buf out = LVR_BUF_INIT;
        lvr_buf_puts(&out, usage);
        return lvr_emit(NULL, &out, err);
    }
    for (size_t i = 0; i < N_SUBCOMMANDS; i++)
        if (strcmp(argv[1], subcommands[i].name) == 0)
            return subcommands[i].run(argc - 1, argv + 1, err);
    return fail_unknown(argv[1], err);
}
