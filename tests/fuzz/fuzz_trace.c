/*
 * Any bytes as a trace file: a trace whose every row can be read, checked and summarised, or a message.
 *
 * The CRC keeps nearly all mutations away from libhdf5, as in life. With LVR_FUZZ_SEALED=1 in the environment
 * the bytes become the payload of a user block whose checksum is right, and so reach libhdf5: that finds the
 * library's bugs along with ours, and is not part of the usual run (traces/FORMAT.md, "What the checksum does
 * not do").
 */
#include "common/buf.h"
#include "common/hash.h"
#include "traces/trace.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SEAL_BYTES = 512 };

static void require(bool truth)
{
    if (!truth)
        abort();
}

static void put_le(uint8_t *at, uint64_t value, size_t n)
{
    for (size_t i = 0; i < n; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

/* The user block of traces/FORMAT.md, for this payload. */
static void make_seal(uint8_t block[SEAL_BYTES], const uint8_t *payload, size_t size)
{
    memset(block, 0, SEAL_BYTES);
    memcpy(block, "LVRTRACE", 8);
    put_le(block + 8, 1, 4);
    put_le(block + 24, size, 8);
    put_le(block + 32, lvr_crc32c(0, payload, size), 4);
    put_le(block + 508, lvr_crc32c(0, block, 508), 4);
}

static void use(lvr_trace *t)
{
    lvr_buf out = LVR_BUF_INIT;
    uint64_t findings = 0, n = 0;
    void *rows = NULL;
    lvr_trace_info(t, true, &out, NULL);
    lvr_trace_validate(t, &out, &findings, NULL);
    for (int s = 0; s < LVR_STREAM_COUNT; s++) {
        if (lvr_trace_rows(t, (lvr_stream)s) < 1000000 &&
            lvr_trace_read_all(t, (lvr_stream)s, &rows, &n, NULL) == LVR_OK)
            free(rows);
    }
    lvr_buf_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    uint8_t block[SEAL_BYTES];
    lvr_error err = LVR_ERROR_INIT;
    lvr_trace *t = NULL;
    const char *sealed = getenv("LVR_FUZZ_SEALED");
    const int fd = memfd_create("fuzz-trace", MFD_CLOEXEC);
    require(fd >= 0);
    if (sealed && sealed[0] == '1') {
        if (size >= SEAL_BYTES) { /* the corpus holds whole files */
            data += SEAL_BYTES;
            size -= SEAL_BYTES;
        }
        make_seal(block, data, size);
        require(write(fd, block, sizeof block) == (ssize_t)sizeof block);
    }
    require(write(fd, data, size) == (ssize_t)size);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (lvr_trace_open(path, &t, &err) == LVR_OK) {
        use(t);
        lvr_trace_close(t);
    } else {
        require(t == NULL && err.status != LVR_OK && err.msg[0] && memchr(err.msg, '\0', sizeof err.msg));
    }
    close(fd);
    return 0;
}
