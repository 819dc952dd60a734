#include "engine/pack_internal.h"

#include <stdlib.h>
#include <string.h>

static const lvr_gguf_tensor *find_tensor(const lvr_gguf *g, lvr_role role, uint32_t layer)
{
    char name[LVR_TENSOR_NAME_BYTES];
    lvr_role_tensor_name(role, layer, name);
    return lvr_gguf_find(g, name);
}

static void plan_tensor(lvr_pack_plan *p, const lvr_gguf *g, lvr_pack_section *section, lvr_role role,
                        uint32_t layer)
{
    const bool vector = lvr_role_is_vector(role);
    lvr_pack_tensor *t = &p->tensors[p->n_tensors++];
    t->role = role;
    t->type = vector ? LVR_F32 : find_tensor(g, role, layer)->type;
    lvr_role_dims(&p->shape, role, &t->n_out, &t->n_in);
    t->offset = lvr_pack_align_up(section->bytes, LVR_PACK_TENSOR_ALIGN);
    t->bytes = vector ? (uint64_t)t->n_in * sizeof(float) : lvr_packed_bytes(t->type, t->n_out, t->n_in);
    section->bytes = t->offset + t->bytes;
    section->n_tensors++;
}

static void plan_section(lvr_pack_plan *p, const lvr_gguf *g, uint32_t i)
{
    lvr_pack_section *section = &p->sections[i];
    section->offset = p->file_bytes;
    section->first_tensor = p->n_tensors;
    const unsigned first = i == LVR_PACK_RESIDENT ? 0 : LVR_FIRST_LAYER_ROLE;
    const unsigned end = i == LVR_PACK_RESIDENT ? LVR_FIRST_LAYER_ROLE : LVR_ROLE_COUNT;
    for (unsigned role = first; role < end; role++)
        if (lvr_shape_has(&p->shape, (lvr_role)role))
            plan_tensor(p, g, section, (lvr_role)role, i - 1);
    section->bytes = lvr_pack_align_up(section->bytes, LVR_PACK_ALIGN);
    p->file_bytes += section->bytes;
}

void lvr_pack_plan_free(lvr_pack_plan *p)
{
    free(p->sections);
    free(p->tensors);
}

static uint32_t count_tensors(const lvr_model_shape *s)
{
    const uint32_t once = s->roles & ((1u << LVR_FIRST_LAYER_ROLE) - 1);
    return (uint32_t)__builtin_popcount(once) + s->n_layers * (uint32_t)__builtin_popcount(s->roles & ~once);
}

/* The shape's limits keep all sums far from overflow. */
lvr_status lvr_pack_plan_make(const lvr_gguf *g, lvr_pack_plan *ret, lvr_error *err)
{
    lvr_pack_plan p = {0};
    const lvr_status status = lvr_model_shape_from_gguf(g, &p.shape, err);
    if (status != LVR_OK)
        return status;
    p.n_sections = 1 + p.shape.n_layers;
    const uint32_t n_tensors = count_tensors(&p.shape);
    p.sections = calloc(p.n_sections, sizeof(*p.sections));
    p.tensors = calloc(n_tensors, sizeof(*p.tensors));
    if (p.sections == NULL || p.tensors == NULL) {
        lvr_pack_plan_free(&p);
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory", lvr_gguf_path(g));
    }
    (void)lvr_gguf_header(g, &p.gguf_bytes);
    p.tables_offset = lvr_pack_align_up(LVR_PACK_ALIGN + p.gguf_bytes, LVR_PACK_TENSOR_ALIGN);
    p.tables_bytes = p.n_sections * sizeof(lvr_pack_file_section) + n_tensors * sizeof(lvr_pack_file_tensor);
    p.file_bytes = lvr_pack_align_up(p.tables_offset + p.tables_bytes, LVR_PACK_ALIGN);
    for (uint32_t i = 0; i < p.n_sections; i++)
        plan_section(&p, g, i);
    *ret = p;
    return LVR_OK;
}

lvr_status lvr_pack_sizes(const lvr_gguf *g, uint64_t *ret_resident_bytes, uint64_t *ret_layers_bytes,
                          lvr_error *err)
{
    lvr_pack_plan p = {0};
    const lvr_status status = lvr_pack_plan_make(g, &p, err);
    if (status != LVR_OK)
        return status;
    *ret_resident_bytes = p.sections[LVR_PACK_RESIDENT].bytes;
    *ret_layers_bytes = p.file_bytes - p.sections[LVR_PACK_RESIDENT].offset - *ret_resident_bytes;
    lvr_pack_plan_free(&p);
    return LVR_OK;
}

void lvr_pack_put_tables(const lvr_pack_plan *p, lvr_buf *out)
{
    for (uint32_t i = 0; i < p->n_sections; i++) {
        const lvr_pack_section *s = &p->sections[i];
        const lvr_pack_file_section f = {.offset = s->offset,
                                         .bytes = s->bytes,
                                         .crc = s->crc,
                                         .first_tensor = s->first_tensor,
                                         .n_tensors = s->n_tensors};
        lvr_buf_append(out, &f, sizeof(f));
    }
    for (uint32_t i = 0; i < p->n_tensors; i++) {
        const lvr_pack_tensor *t = &p->tensors[i];
        const lvr_pack_file_tensor f = {.role = t->role,
                                        .type = t->type,
                                        .n_out = t->n_out,
                                        .n_in = t->n_in,
                                        .offset = t->offset,
                                        .bytes = t->bytes};
        lvr_buf_append(out, &f, sizeof(f));
    }
}

bool lvr_pack_is_sha256_hex(const char *s)
{
    return strspn(s, "0123456789abcdef") == LVR_SHA256_HEX_BYTES - 1;
}
