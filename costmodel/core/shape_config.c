#include "costmodel/core/shape_config.h"

#include "common/yaml.h"
#include "costmodel/core/cost.h"

#include <stdio.h>
#include <string.h>

typedef struct weight_type {
    const char *name;
    double bits;
} weight_type;

/* Bytes of a GGUF block over its weights. */
static const weight_type weight_types[] = {
    {"q4_0", 4.5}, {"q8_0", 8.5}, {"f16", 16.0}, {"bf16", 16.0}, {"f32", 32.0},    {"q4_1", 5.0},
    {"q5_0", 5.5}, {"q5_1", 6.0}, {"q4_k", 4.5}, {"q5_k", 5.5},  {"q6_k", 6.5625},
};

static const char *const archs[] = {"llama", "qwen2", "qwen3"};

static lvr_status parse_type(const lvr_yaml_node *root, lvr_shape *s, lvr_error *err)
{
    const char *text = NULL;
    const lvr_status st = lvr_yaml_get_str(root, "type", &text, err);
    if (st)
        return st;
    for (size_t i = 0; i < sizeof weight_types / sizeof weight_types[0]; i++) {
        if (strcmp(text, weight_types[i].name) != 0)
            continue;
        snprintf(s->type, sizeof s->type, "%s", weight_types[i].name);
        s->bits = weight_types[i].bits;
        return LVR_OK;
    }
    return lvr_fail(err, LVR_ERR_CONFIG,
                    "%s: type: expected q4_0, q8_0, f16, bf16, f32, q4_1, q5_0, q5_1, q4_k, q5_k or q6_k, "
                    "found \"%s\"",
                    lvr_yaml_where(root), text);
}

static lvr_status parse_u32(const lvr_yaml_node *map, const char *key, uint64_t max, uint32_t *ret,
                            lvr_error *err)
{
    uint64_t v = 0;
    const lvr_status st = lvr_yaml_get_u64(map, key, 1, max, &v, err);
    if (!st)
        *ret = (uint32_t)v;
    return st;
}

static lvr_status parse_numbers(const lvr_yaml_node *root, lvr_shape *s, lvr_error *err)
{
    const struct {
        const char *key;
        uint64_t max;
        uint32_t *field;
    } numbers[] = {
        {"n_layers", LVR_MAX_LAYERS, &s->n_layers},
        {"d_model", 1u << 20, &s->d_model},
        {"n_heads", 1u << 12, &s->n_heads},
        {"n_kv", 1u << 12, &s->n_kv},
        {"head_dim", 1u << 12, &s->head_dim},
        {"d_ff", 1u << 22, &s->d_ff},
        {"vocab", 1u << 24, &s->vocab},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        const lvr_status st = parse_u32(root, numbers[i].key, numbers[i].max, numbers[i].field, err);
        if (st)
            return st;
    }
    return LVR_OK;
}

static lvr_status parse_bool_or_false(const lvr_yaml_node *root, const char *key, bool *ret, lvr_error *err)
{
    return lvr_yaml_find(root, key) ? lvr_yaml_get_bool(root, key, ret, err) : LVR_OK;
}

static lvr_status parse_rope_scaling(const lvr_yaml_node *root, lvr_shape *s, lvr_error *err)
{
    const lvr_yaml_node *map = NULL;
    const char *type = NULL;
    lvr_rope_llama3 *r = &s->rope_llama3;
    if (!lvr_yaml_find(root, "rope_scaling"))
        return LVR_OK;
    lvr_status st = lvr_yaml_get_map(root, "rope_scaling", &map, err);
    if (!st)
        st = lvr_yaml_get_str(map, "type", &type, err);
    if (!st && strcmp(type, "llama3") != 0)
        st = lvr_fail(err, LVR_ERR_CONFIG, "%s: rope_scaling: expected type llama3, found \"%s\"",
                      lvr_yaml_where(map), type);
    if (!st)
        st = lvr_yaml_get_double(map, "factor", 1, 1e6, &r->factor, err);
    if (!st)
        st = lvr_yaml_get_double(map, "low_freq_factor", 0.01, 1e6, &r->low_freq_factor, err);
    if (!st)
        st = lvr_yaml_get_double(map, "high_freq_factor", 0.01, 1e6, &r->high_freq_factor, err);
    if (!st)
        st = parse_u32(map, "original_n_ctx", 1u << 30, &r->original_n_ctx, err);
    if (!st && r->high_freq_factor <= r->low_freq_factor)
        st = lvr_fail(err, LVR_ERR_CONFIG,
                      "%s: rope_scaling: high_freq_factor must be larger than low_freq_factor",
                      lvr_yaml_where(map));
    s->has_rope_llama3 = true;
    return st;
}

static lvr_status parse_arch(const lvr_yaml_node *root, lvr_shape *s, lvr_error *err)
{
    const char *arch = NULL;
    const lvr_status st = lvr_yaml_get_str(root, "arch", &arch, err);
    if (st)
        return st;
    for (size_t i = 0; i < sizeof archs / sizeof archs[0]; i++) {
        if (strcmp(arch, archs[i]) != 0)
            continue;
        snprintf(s->arch, sizeof s->arch, "%s", archs[i]);
        return LVR_OK;
    }
    return lvr_fail(err, LVR_ERR_CONFIG, "%s: arch: expected llama, qwen2 or qwen3, found \"%s\"",
                    lvr_yaml_where(root), arch);
}

/* What only a model file needs: all of it, or no `arch` and none of it. */
static lvr_status parse_constants(const lvr_yaml_node *root, lvr_shape *s, lvr_error *err)
{
    if (!lvr_yaml_find(root, "arch"))
        return LVR_OK;
    lvr_status st = parse_arch(root, s, err);
    if (!st)
        st = parse_u32(root, "n_ctx", 1u << 30, &s->n_ctx, err);
    if (!st)
        st = lvr_yaml_get_double(root, "rms_eps", 1e-12, 0.1, &s->rms_eps, err);
    if (!st)
        st = lvr_yaml_get_double(root, "rope_base", 1, 1e12, &s->rope_base, err);
    if (!st)
        st = parse_bool_or_false(root, "qkv_bias", &s->qkv_bias, err);
    if (!st)
        st = parse_bool_or_false(root, "qk_norm", &s->qk_norm, err);
    if (!st)
        st = parse_rope_scaling(root, s, err);
    return st;
}

static lvr_status parse_shape(const lvr_yaml_node *root, lvr_shape *s, lvr_error *err)
{
    const char *schema = NULL, *name = NULL, *source = NULL, *tag = NULL;
    if (lvr_yaml_node_kind(root) != LVR_YAML_MAP)
        return lvr_fail(err, LVR_ERR_CONFIG,
                        "%s: expected a model shape (schema, name, source, tag, n_layers, ...)",
                        lvr_yaml_where(root));
    lvr_status st = lvr_yaml_get_str(root, "schema", &schema, err);
    if (!st && strcmp(schema, "lever-shape/1") != 0)
        st = lvr_fail(err, LVR_ERR_CONFIG, "%s: expected schema lever-shape/1, found \"%s\"",
                      lvr_yaml_where(root), schema);
    if (!st)
        st = lvr_yaml_get_str(root, "name", &name, err);
    if (!st)
        st = lvr_yaml_get_str(root, "source", &source, err);
    if (!st)
        st = lvr_yaml_get_str(root, "tag", &tag, err);
    if (!st)
        st = parse_numbers(root, s, err);
    if (!st)
        st = lvr_yaml_get_bool(root, "tied", &s->tied, err);
    if (!st)
        st = parse_type(root, s, err);
    if (!st)
        st = parse_constants(root, s, err);
    if (!st)
        snprintf(s->name, sizeof s->name, "%s", name);
    return st;
}

lvr_status lvr_shape_load_file(const char *path, lvr_shape *ret, lvr_error *err)
{
    lvr_yaml_doc *doc = NULL;
    lvr_shape s = {0};
    lvr_status st = lvr_yaml_load_file(path, &doc, err);
    if (st)
        return st;
    st = parse_shape(lvr_yaml_root(doc), &s, err);
    if (!st)
        st = lvr_yaml_check_used(doc, err);
    lvr_yaml_free(doc);
    if (!st)
        *ret = s;
    return st;
}
