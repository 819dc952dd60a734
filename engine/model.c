#include "engine/model.h"

#include "common/fs.h"
#include "common/hugemem.h"
#include "engine/pack_cache.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define LOAD_CHUNK_BYTES (8ull << 20)

/* One section of the pack, as its header describes it. */
typedef struct section {
    uint64_t offset, bytes;
    uint32_t crc;
} section;

/* All sections on their way into memory. */
typedef struct loading {
    const char *path;
    int fd;
    const lvr_watch *watch;
    uint64_t done, total; /* bytes */
} loading;

static void report(const loading *l)
{
    if (l->watch->progress)
        l->watch->progress("loading", l->done, l->total, l->watch->user);
}

/* In chunks: their checksum is taken while they are in the cache, and a signal is heeded between them. */
static lvr_status read_chunks(loading *l, const section *s, uint8_t *data, uint32_t *ret_crc, lvr_error *err)
{
    uint32_t crc = 0;
    for (uint64_t at = 0; at < s->bytes; at += LOAD_CHUNK_BYTES) {
        const uint64_t n = s->bytes - at < LOAD_CHUNK_BYTES ? s->bytes - at : LOAD_CHUNK_BYTES;
        if (l->watch->cancel && atomic_load(l->watch->cancel))
            return lvr_fail(err, LVR_ERR_INTERRUPTED, "interrupted while loading %s", l->path);
        const lvr_status status = lvr_pread_all(l->fd, data + at, n, s->offset + at, l->path, err);
        if (status != LVR_OK)
            return status;
        crc = lvr_crc32c(crc, data + at, n);
        l->done += n;
        report(l);
    }
    *ret_crc = crc;
    return LVR_OK;
}

static lvr_status read_section(loading *l, const char *what, const section *s, uint8_t **ret, lvr_error *err)
{
    uint8_t *data = lvr_huge_alloc(s->bytes); /* a multiple of LVR_PACK_ALIGN, and aligned so */
    if (!data)
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory for %llu bytes of weights (%s)", l->path,
                        (unsigned long long)s->bytes, what);
    uint32_t crc = 0;
    lvr_status status = read_chunks(l, s, data, &crc, err);
    if (status == LVR_OK && crc != s->crc)
        status = lvr_fail(err, LVR_ERR_FORMAT, "%s: %s is damaged: expected CRC-32C %08x, found %08x; %s",
                          l->path, what, s->crc, crc, lvr_pack_remedy(l->path));
    if (status != LVR_OK) {
        lvr_huge_free(data, s->bytes);
        return status;
    }
    *ret = data;
    return LVR_OK;
}

static lvr_status read_resident(lvr_model *m, loading *l, lvr_error *err)
{
    const section s = {.offset = lvr_pack_resident_offset(m->pack),
                       .bytes = lvr_pack_resident_bytes(m->pack),
                       .crc = lvr_pack_resident_crc(m->pack)};
    return read_section(l, "the embedding and head section", &s, &m->resident_data, err);
}

static lvr_status read_layer(lvr_model *m, loading *l, uint32_t layer, lvr_error *err)
{
    const section s = {.offset = lvr_pack_layer_offset(m->pack, layer),
                       .bytes = lvr_pack_layer_bytes(m->pack, layer),
                       .crc = lvr_pack_layer_crc(m->pack, layer)};
    char what[32];
    snprintf(what, sizeof what, "layer %u", layer);
    return read_section(l, what, &s, &m->layer_data[layer], err);
}

static uint64_t bytes_to_load(const lvr_model *m, const bool *resident)
{
    uint64_t bytes = lvr_pack_resident_bytes(m->pack);
    for (uint32_t i = 0; i < m->shape->n_layers; i++)
        bytes += !resident || resident[i] ? lvr_pack_layer_bytes(m->pack, i) : 0;
    return bytes;
}

static lvr_status read_weights(lvr_model *m, const bool *resident, const lvr_watch *watch, lvr_error *err)
{
    static const lvr_watch nobody = {0};
    loading l = {.path = lvr_pack_path(m->pack),
                 .watch = watch ? watch : &nobody,
                 .total = bytes_to_load(m, resident)};
    l.fd = open(l.path, O_RDONLY | O_CLOEXEC);
    if (l.fd < 0)
        return lvr_fail_errno(err, errno, "%s: cannot open", l.path);
    report(&l);
    lvr_status status = read_resident(m, &l, err);
    for (uint32_t i = 0; i < m->shape->n_layers && status == LVR_OK; i++)
        if (!resident || resident[i])
            status = read_layer(m, &l, i, err);
    close(l.fd);
    m->resident_bytes = l.done;
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

lvr_status lvr_model_from_pack(lvr_pack *pack, const bool *resident, const lvr_watch *watch, lvr_model **ret,
                               lvr_error *err)
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
        status = read_weights(m, resident, watch, err);
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
    return lvr_model_from_pack(pack, resident, NULL, ret, err);
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
