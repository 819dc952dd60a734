#include "engine/model.h"

#include "common/fs.h"
#include "common/hugemem.h"
#include "engine/pack_cache.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* One section of the pack, as its header describes it. */
typedef struct section {
    uint64_t offset, bytes;
    uint32_t crc;
} section;

static lvr_status read_section(int fd, const char *path, const char *what, const section *s, uint8_t **ret,
                               lvr_error *err)
{
    uint8_t *data = lvr_huge_alloc(s->bytes); /* a multiple of LVR_PACK_ALIGN, and aligned so */
    if (!data)
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory for %llu bytes of weights (%s)", path,
                        (unsigned long long)s->bytes, what);
    const lvr_status status = lvr_pread_all(fd, data, s->bytes, s->offset, path, err);
    if (status != LVR_OK) {
        lvr_huge_free(data, s->bytes);
        return status;
    }
    const uint32_t crc = lvr_crc32c(0, data, s->bytes);
    if (crc != s->crc) {
        lvr_huge_free(data, s->bytes);
        return lvr_fail(err, LVR_ERR_FORMAT,
                        "%s: %s is damaged: expected CRC-32C %08x, found %08x; pack the model again", path,
                        what, s->crc, crc);
    }
    *ret = data;
    return LVR_OK;
}

static lvr_status read_resident(lvr_model *m, int fd, lvr_error *err)
{
    const section s = {.offset = lvr_pack_resident_offset(m->pack),
                       .bytes = lvr_pack_resident_bytes(m->pack),
                       .crc = lvr_pack_resident_crc(m->pack)};
    const lvr_status status = read_section(fd, lvr_pack_path(m->pack), "the embedding and head section", &s,
                                           &m->resident_data, err);
    if (status == LVR_OK)
        m->resident_bytes += s.bytes;
    return status;
}

static lvr_status read_layer(lvr_model *m, int fd, uint32_t layer, lvr_error *err)
{
    const section s = {.offset = lvr_pack_layer_offset(m->pack, layer),
                       .bytes = lvr_pack_layer_bytes(m->pack, layer),
                       .crc = lvr_pack_layer_crc(m->pack, layer)};
    char what[32];
    snprintf(what, sizeof what, "layer %u", layer);
    const lvr_status status = read_section(fd, lvr_pack_path(m->pack), what, &s, &m->layer_data[layer], err);
    if (status == LVR_OK)
        m->resident_bytes += s.bytes;
    return status;
}

static lvr_status read_weights(lvr_model *m, const bool *resident, lvr_error *err)
{
    const char *path = lvr_pack_path(m->pack);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return lvr_fail_errno(err, errno, "%s: cannot open", path);
    lvr_status status = read_resident(m, fd, err);
    for (uint32_t l = 0; l < m->shape->n_layers && status == LVR_OK; l++)
        if (!resident || resident[l])
            status = read_layer(m, fd, l, err);
    close(fd);
    return status;
}

static lvr_matrix view(const lvr_pack_tensor *t, const uint8_t *base)
{
    return (lvr_matrix){.type = t->type, .n_out = t->n_out, .n_in = t->n_in, .data = base + t->offset};
}

/* Norms and biases are 64-byte aligned f32 vectors inside a section. NULL if the model has none. */
static const float *vector(const lvr_pack_tensor *t, const uint8_t *base)
{
    return t == NULL ? NULL : (const float *)(const void *)(base + t->offset);
}

static void view_resident(lvr_model *m)
{
    const uint8_t *base = m->resident_data;
    const lvr_pack_tensor *head = lvr_pack_resident_tensor(m->pack, LVR_ROLE_OUTPUT);
    m->embd = view(lvr_pack_resident_tensor(m->pack, LVR_ROLE_TOKEN_EMBD), base);
    m->head = head ? view(head, base) : m->embd;
    m->out_norm = vector(lvr_pack_resident_tensor(m->pack, LVR_ROLE_OUTPUT_NORM), base);
    m->rope_freqs = vector(lvr_pack_resident_tensor(m->pack, LVR_ROLE_ROPE_FREQS), base);
}

lvr_status lvr_model_from_pack(lvr_pack *pack, const bool *resident, lvr_model **ret, lvr_error *err)
{
    lvr_model *m = calloc(1, sizeof *m);
    if (!m) {
        lvr_pack_free(pack);
        return lvr_fail(err, LVR_ERR_NOMEM, "model: out of memory");
    }
    m->pack = pack;
    m->shape = lvr_pack_shape(pack);
    lvr_status status = LVR_OK;
    m->layer_data = calloc(m->shape->n_layers, sizeof *m->layer_data);
    if (!m->layer_data)
        status = lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory", lvr_pack_path(pack));
    if (status == LVR_OK)
        status = read_weights(m, resident, err);
    if (status != LVR_OK) {
        lvr_model_free(m);
        return status;
    }
    view_resident(m);
    *ret = m;
    return LVR_OK;
}

lvr_status lvr_model_open(const char *path, const bool *resident, lvr_model **ret, lvr_error *err)
{
    lvr_pack *pack = NULL;
    const lvr_status status = lvr_pack_open_any(path, &pack, err);
    if (status != LVR_OK)
        return status;
    return lvr_model_from_pack(pack, resident, ret, err);
}

void lvr_model_free(lvr_model *m)
{
    if (!m)
        return;
    for (uint32_t l = 0; m->layer_data && l < m->shape->n_layers; l++)
        lvr_huge_free(m->layer_data[l], lvr_pack_layer_bytes(m->pack, l));
    free(m->layer_data);
    lvr_huge_free(m->resident_data, lvr_pack_resident_bytes(m->pack));
    lvr_pack_free(m->pack);
    free(m);
}

void lvr_model_layer(const lvr_model *m, uint32_t layer, const uint8_t *base, lvr_layer_weights *ret)
{
    const lvr_pack *p = m->pack;
    const uint8_t *b = base ? base : m->layer_data[layer];
    *ret = (lvr_layer_weights){
        .attn_norm = vector(lvr_pack_layer_tensor(p, layer, LVR_ROLE_ATTN_NORM), b),
        .ffn_norm = vector(lvr_pack_layer_tensor(p, layer, LVR_ROLE_FFN_NORM), b),
        .q = view(lvr_pack_layer_tensor(p, layer, LVR_ROLE_Q), b),
        .k = view(lvr_pack_layer_tensor(p, layer, LVR_ROLE_K), b),
        .v = view(lvr_pack_layer_tensor(p, layer, LVR_ROLE_V), b),
        .o = view(lvr_pack_layer_tensor(p, layer, LVR_ROLE_O), b),
        .q_bias = vector(lvr_pack_layer_tensor(p, layer, LVR_ROLE_Q_BIAS), b),
        .k_bias = vector(lvr_pack_layer_tensor(p, layer, LVR_ROLE_K_BIAS), b),
        .v_bias = vector(lvr_pack_layer_tensor(p, layer, LVR_ROLE_V_BIAS), b),
        .o_bias = vector(lvr_pack_layer_tensor(p, layer, LVR_ROLE_O_BIAS), b),
        .q_norm = vector(lvr_pack_layer_tensor(p, layer, LVR_ROLE_Q_NORM), b),
        .k_norm = vector(lvr_pack_layer_tensor(p, layer, LVR_ROLE_K_NORM), b),
        .gate = view(lvr_pack_layer_tensor(p, layer, LVR_ROLE_GATE), b),
        .up = view(lvr_pack_layer_tensor(p, layer, LVR_ROLE_UP), b),
        .down = view(lvr_pack_layer_tensor(p, layer, LVR_ROLE_DOWN), b),
    };
}
