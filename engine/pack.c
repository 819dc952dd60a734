/* Opening a pack, and looking into it. */
#include "engine/pack_internal.h"

#include "common/fs.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_GGUF_HEADER_BYTES (256ull << 20)
#define CHUNK_BYTES (4ull << 20)
#define REPACK "; pack the model again with lever model pack"

struct lvr_pack {
    char *path;
    int fd;
    lvr_gguf *gguf;
    lvr_pack_plan plan;
    char source_sha256[LVR_SHA256_HEX_BYTES];
};

bool lvr_pack_is_pack(const char *path)
{
    static const char magic[8] = LVR_PACK_MAGIC;
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
        LVR_PACK_MAGIC);
}

/* Versions come before the checksum: another version may keep it elsewhere. */
static lvr_status check_versions(const char *path, const lvr_pack_file_header *h, lvr_error *err)
{
    if (memcmp(h->magic, LVR_PACK_MAGIC, sizeof(h->magic)) != 0)
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

static lvr_status check_header(const char *path, const lvr_pack_file_header *h, uint64_t file_bytes,
                               lvr_error *err)
{
    const lvr_status status = check_versions(path, h, err);
    if (status != LVR_OK)
        return status;
    if (h->header_crc != lvr_crc32c(0, h, offsetof(lvr_pack_file_header, header_crc)))
        return damaged(path, "the header's checksum does not match", err);
    if (h->file_bytes != file_bytes)
        return lvr_fail(
            err, LVR_ERR_FORMAT,
            "%s: the pack has %" PRIu64 " bytes, where its header says %" PRIu64 ": it is %s" REPACK, path,
            file_bytes, h->file_bytes, file_bytes < h->file_bytes ? "truncated" : "damaged");
    if (h->header_bytes != sizeof(*h) || h->gguf_offset != sizeof(*h) || h->reserved0 != 0 ||
        !all_zero(h->reserved, sizeof(h->reserved)))
        return damaged(path, "the header has fields that this version does not have", err);
    if (h->gguf_bytes == 0 || h->gguf_bytes > MAX_GGUF_HEADER_BYTES ||
        h->gguf_bytes > file_bytes - sizeof(*h))
        return damaged(path, "the size of its GGUF header is impossible", err);
    return LVR_OK;
}

static lvr_status read_header(lvr_pack *p, uint64_t file_bytes, lvr_pack_file_header *ret, lvr_error *err)
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

static lvr_status read_gguf(lvr_pack *p, const lvr_pack_file_header *h, lvr_error *err)
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
        lvr_pack_file_section f;
        memcpy(&f, found + i * sizeof(f), sizeof(f));
        p->plan.sections[i].crc = f.crc;
    }
    lvr_pack_put_tables(&p->plan, &expected);
    if (expected.failed)
        status = lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory", p->path);
    else if (memcmp(expected.data, found, expected.len) != 0)
        status = damaged(p->path, "its tables of sections and tensors contradict the model's metadata", err);
    lvr_buf_free(&expected);
    return status;
}

static lvr_status read_tables(lvr_pack *p, const lvr_pack_file_header *h, lvr_error *err)
{
    const lvr_pack_plan *plan = &p->plan;
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
    lvr_pack_file_header h;
    uint64_t file_bytes = 0;
    lvr_status status = lvr_open_regular(p->path, "a pack", &p->fd, &file_bytes, err);
    if (status == LVR_OK)
        status = read_header(p, file_bytes, &h, err);
    if (status != LVR_OK)
        return status;
    memcpy(p->source_sha256, h.source_sha256, sizeof(h.source_sha256));
    if (!lvr_pack_is_sha256_hex(p->source_sha256))
        return damaged(p->path, "the source's SHA-256 is not 64 hex digits", err);
    status = read_gguf(p, &h, err);
    if (status == LVR_OK)
        status = lvr_pack_plan_make(p->gguf, &p->plan, err);
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
    lvr_pack_plan_free(&p->plan);
    free(p->path);
    free(p);
}

static lvr_status section_crc(const lvr_pack *p, const lvr_pack_section *s, uint8_t *buffer, uint32_t *ret,
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
        const lvr_pack_section *s = &p->plan.sections[i];
        char name[32] = "resident section";
        uint32_t crc = 0;
        if (i != LVR_PACK_RESIDENT)
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

static const lvr_pack_tensor *find_in_section(const lvr_pack_plan *p, const lvr_pack_section *s,
                                              lvr_role role)
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
    return p->plan.sections[LVR_PACK_RESIDENT].offset;
}

uint64_t lvr_pack_resident_bytes(const lvr_pack *p)
{
    return p->plan.sections[LVR_PACK_RESIDENT].bytes;
}

uint32_t lvr_pack_resident_crc(const lvr_pack *p)
{
    return p->plan.sections[LVR_PACK_RESIDENT].crc;
}

const lvr_pack_tensor *lvr_pack_resident_tensor(const lvr_pack *p, lvr_role role)
{
    return find_in_section(&p->plan, &p->plan.sections[LVR_PACK_RESIDENT], role);
}
