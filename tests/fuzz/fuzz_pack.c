/*
 * The first byte chooses. 0: the rest is a pack. 1: the rest is a pack whose checksums are made right first,
 * so that what lies behind them is reached. 2: the rest is a GGUF file: if its shape is accepted, packing
 * must succeed, and the pack must open and verify, unless a weight is infinite or no number.
 */
#include "common/fs.h"
#include "engine/pack.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define HEADER_BYTES 4096u
#define GGUF_BYTES_AT 56
#define TABLES_AT 64
#define TABLES_BYTES_AT 72
#define GGUF_CRC_AT 80
#define TABLES_CRC_AT 84
#define HEADER_CRC_AT 4092

static void require(bool truth)
{
    if (!truth)
        abort();
}

static uint64_t get_u64(const uint8_t *at)
{
    uint64_t v = 0;
    memcpy(&v, at, sizeof v);
    return v;
}

static void put_crc(uint8_t *at, const uint8_t *bytes, size_t n)
{
    const uint32_t crc = lvr_crc32c(0, bytes, n);
    memcpy(at, &crc, sizeof crc);
}

static void seal(uint8_t *pack, size_t n)
{
    if (n < HEADER_BYTES)
        return;
    const uint64_t gguf_bytes = get_u64(pack + GGUF_BYTES_AT);
    const uint64_t tables = get_u64(pack + TABLES_AT), tables_bytes = get_u64(pack + TABLES_BYTES_AT);
    if (gguf_bytes <= n - HEADER_BYTES)
        put_crc(pack + GGUF_CRC_AT, pack + HEADER_BYTES, gguf_bytes);
    if (tables <= n && tables_bytes <= n - tables)
        put_crc(pack + TABLES_CRC_AT, pack + tables, tables_bytes);
    put_crc(pack + HEADER_CRC_AT, pack, HEADER_CRC_AT);
}

/* A file in memory, with a path. */
static int memory_file(const uint8_t *data, size_t n, char path[64])
{
    const int fd = memfd_create("fuzz", MFD_CLOEXEC);
    require(fd >= 0);
    require(lvr_pwrite_all(fd, data, n, 0, "memory", NULL) == LVR_OK);
    snprintf(path, 64, "/proc/self/fd/%d", fd);
    return fd;
}

static void ask(const lvr_pack *p, bool must_verify)
{
    const lvr_model_shape *s = lvr_pack_shape(p);
    uint64_t end = lvr_pack_resident_offset(p) + lvr_pack_resident_bytes(p);
    for (uint32_t layer = 0; layer < s->n_layers; layer++) {
        require(lvr_pack_layer_offset(p, layer) == end);
        end += lvr_pack_layer_bytes(p, layer);
        for (unsigned role = LVR_FIRST_LAYER_ROLE; role < LVR_ROLE_COUNT; role++) {
            const lvr_pack_tensor *t = lvr_pack_layer_tensor(p, layer, (lvr_role)role);
            require((t != NULL) == lvr_shape_has(s, (lvr_role)role));
            require(t == NULL || t->offset + t->bytes <= lvr_pack_layer_bytes(p, layer));
        }
    }
    require(end == lvr_pack_file_bytes(p));
    const lvr_status status = lvr_pack_verify(p, NULL);
    require(must_verify ? status == LVR_OK : status == LVR_OK || status == LVR_ERR_FORMAT);
}

static void open_pack(const uint8_t *data, size_t n)
{
    char path[64];
    lvr_pack *p = NULL;
    lvr_error err = LVR_ERROR_INIT;
    const int fd = memory_file(data, n, path);
    if (lvr_pack_open(path, &p, &err) == LVR_OK)
        ask(p, false);
    else
        require(p == NULL && err.msg[0] != '\0' && err.status != LVR_ERR_INVARIANT);
    lvr_pack_free(p);
    close(fd);
}

static void pack_gguf(const uint8_t *data, size_t n)
{
    static const char sha[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    char path[64], out[96];
    lvr_gguf *g = NULL;
    lvr_pack *p = NULL;
    lvr_model_shape shape;
    const char *tmp = getenv("TMPDIR");
    const int fd = memory_file(data, n, path);
    snprintf(out, sizeof out, "%s/fuzz-pack-%ld", tmp != NULL ? tmp : "/tmp", (long)getpid());
    if (lvr_gguf_open(path, &g, NULL) == LVR_OK && lvr_model_shape_from_gguf(g, &shape, NULL) == LVR_OK) {
        const lvr_status status = lvr_pack_write(g, sha, out, NULL, NULL);
        require(status == LVR_OK || status == LVR_ERR_FORMAT);
        require((lvr_pack_open(out, &p, NULL) == LVR_OK) == (status == LVR_OK));
        if (p != NULL)
            ask(p, true);
        unlink(out);
    }
    lvr_pack_free(p);
    lvr_gguf_free(g);
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    if (data[0] % 3 == 2) {
        pack_gguf(data + 1, size - 1);
        return 0;
    }
    uint8_t *copy = malloc(size);
    require(copy != NULL);
    memcpy(copy, data + 1, size - 1);
    if (data[0] % 3 == 1)
        seal(copy, size - 1);
    open_pack(copy, size - 1);
    free(copy);
    return 0;
}
