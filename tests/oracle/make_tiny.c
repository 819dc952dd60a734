/*
 * Writes a tiny random model for the numpy oracle.
 *
 *     make_tiny OUT [arch=qwen3] [type=Q4_K] [d_model=256] [tied=1] ...
 *
 * Fields are those of struct gguf_tiny; what is not given has its default.
 */
#include "tests/unit/gguf_builder.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool set_number(struct gguf_tiny *s, const char *key, uint32_t v)
{
    const struct {
        const char *name;
        uint32_t *field;
    } numbers[] = {{"vocab", &s->vocab},     {"n_layers", &s->n_layers}, {"d_model", &s->d_model},
                   {"n_heads", &s->n_heads}, {"n_kv", &s->n_kv},         {"d_ff", &s->d_ff},
                   {"n_ctx", &s->n_ctx},     {"head_dim", &s->head_dim}};
    const struct {
        const char *name;
        bool *field;
    } flags[] = {{"f16_norms", &s->f16_norms},
                 {"tied", &s->tied},
                 {"biases", &s->biases},
                 {"rope_freqs", &s->rope_freqs}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (strcmp(key, numbers[i].name) == 0) {
            *numbers[i].field = v;
            return true;
        }
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (strcmp(key, flags[i].name) == 0) {
            *flags[i].field = v != 0;
            return true;
        }
    return false;
}

static bool set_type(struct gguf_tiny *s, const char *key, const char *value)
{
    lvr_wtype *field = strcmp(key, "type") == 0        ? &s->type
                       : strcmp(key, "v_type") == 0    ? &s->v_type
                       : strcmp(key, "head_type") == 0 ? &s->head_type
                                                       : NULL;
    for (uint32_t t = 0; field && t < LVR_WTYPE_SLOTS; t++)
        if (lvr_wtype_name((lvr_wtype)t) && strcmp(lvr_wtype_name((lvr_wtype)t), value) == 0) {
            *field = (lvr_wtype)t;
            return true;
        }
    return false;
}

static bool set_field(struct gguf_tiny *s, char *argument)
{
    char *value = strchr(argument, '=');
    if (!value)
        return false;
    *value++ = '\0';
    if (strcmp(argument, "arch") == 0)
        s->arch = value;
    else if (strcmp(argument, "seed") == 0)
        s->seed = strtoull(value, NULL, 10);
    else if (strcmp(argument, "scale") == 0)
        s->scale = strtof(value, NULL);
    else if (strcmp(argument, "rope_factor") == 0)
        s->rope_factor = strtof(value, NULL);
    else if (strcmp(argument, "rope_base") == 0)
        s->rope_base = strtof(value, NULL);
    else
        return set_type(s, argument, value) || set_number(s, argument, (uint32_t)strtoul(value, NULL, 10));
    return true;
}

int main(int argc, char **argv)
{
    struct gguf_tiny spec = {.type = LVR_F32};
    lvr_error err = LVR_ERROR_INIT;
    for (int i = 2; i < argc; i++)
        if (!set_field(&spec, argv[i])) {
            fprintf(stderr, "make_tiny: what is %s?\n", argv[i]);
            return 2;
        }
    if (argc < 2 || gguf_build_tiny(argv[1], &spec, &err) != LVR_OK) {
        fprintf(stderr, "make_tiny: %s\n", argc < 2 ? "usage: make_tiny OUT [field=value ...]" : err.msg);
        return 2;
    }
    return 0;
}
