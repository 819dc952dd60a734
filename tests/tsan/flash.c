/* The flash reader: every back end, plain and emulated, taken by poll and by wait, and closed with reads in
 * flight. */
#include "engine/flash/flash.h"
#include "common/hash.h"
#include "tests/tsan/tap.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCK LVR_FLASH_ALIGN
#define N_BLOCKS 256u
#define REQUEST (4u * BLOCK)
#define N_REQUESTS (N_BLOCKS * BLOCK / REQUEST)
#define OUTSTANDING 16u

typedef struct setup {
    const char *name;
    lvr_flash_engine engine;
    bool buffered, emulate, registered; /* registered: into a registered buffer, and summed */
    uint32_t depth;
} setup;

static unsigned char expected_byte(uint64_t at)
{
    return (unsigned char)(at * UINT64_C(2654435761) >> 17);
}

static bool write_file(int fd)
{
    unsigned char block[BLOCK];
    for (uint64_t b = 0; b < N_BLOCKS; b++) {
        for (uint64_t i = 0; i < BLOCK; i++)
            block[i] = expected_byte(b * BLOCK + i);
        if (write(fd, block, BLOCK) != BLOCK)
            return false;
    }
    return fsync(fd) == 0;
}

static lvr_flash_config config_of(const setup *s, const char *path, unsigned char *buffers)
{
    return (lvr_flash_config){
        .path = path,
        .engine = s->engine,
        .buffered = s->buffered,
        .depth = s->depth,
        .max_outstanding = OUTSTANDING,
        .buffer = s->registered ? buffers : NULL,
        .buffer_bytes = OUTSTANDING * REQUEST,
        .checksum = s->registered,
        .emulate = s->emulate,
        .emulated = {.t0_ns = 20000,
                     .lane_bytes_per_s = 500000000,
                     .max_bytes_per_s = 1000000000,
                     .depth = 4},
    };
}

static bool holds_file(const unsigned char *buffer, uint64_t offset)
{
    for (uint64_t i = 0; i < REQUEST; i++)
        if (buffer[i] != expected_byte(offset + i))
            return false;
    return true;
}

static bool take(lvr_flash *f, bool by_poll, lvr_flash_completion *ret)
{
    if (!by_poll)
        return lvr_flash_wait(f, ret, NULL) == LVR_OK;
    while (!lvr_flash_poll(f, ret))
        usleep(50);
    return true;
}

static bool submit(lvr_flash *f, uint64_t seq, unsigned char *buffers)
{
    return lvr_flash_submit(f, seq, seq % N_REQUESTS * REQUEST, REQUEST,
                            buffers + seq % OUTSTANDING * REQUEST, NULL) == LVR_OK;
}

/* The whole file twice, OUTSTANDING requests at a time; a buffer is used again as soon as it has been
 * checked. */
static bool reads_everything(lvr_flash *f, unsigned char *buffers, bool by_poll)
{
    for (uint64_t k = 0; k < OUTSTANDING; k++)
        if (!submit(f, k, buffers))
            return false;
    for (uint64_t taken = 0; taken < 2 * N_REQUESTS; taken++) {
        lvr_flash_completion c;
        if (!take(f, by_poll, &c) || c.status != LVR_OK)
            return false;
        if (!holds_file(buffers + c.seq % OUTSTANDING * REQUEST, c.offset))
            return false;
        if (c.has_crc && c.crc != lvr_crc32c(0, buffers + c.seq % OUTSTANDING * REQUEST, REQUEST))
            return false;
        const uint64_t next = c.seq + OUTSTANDING; /* has the same buffer */
        if (next < 2 * N_REQUESTS && !submit(f, next, buffers))
            return false;
    }
    return true;
}

static bool closes_with_reads_in_flight(const lvr_flash_config *config, unsigned char *buffers)
{
    for (uint32_t round = 0; round < 20; round++) {
        lvr_flash *f = NULL;
        lvr_flash_completion c;
        if (lvr_flash_open(config, &f, NULL) != LVR_OK)
            return false;
        for (uint32_t k = 0; k < OUTSTANDING; k++)
            if (lvr_flash_submit(f, k, (uint64_t)k * REQUEST, REQUEST, buffers + k * REQUEST, NULL) != LVR_OK)
                return false;
        if (round % 2)
            lvr_flash_wait(f, &c, NULL);
        lvr_flash_close(f);
        memset(buffers, (int)round, OUTSTANDING * REQUEST); /* ours again: nothing may write there now */
    }
    return true;
}

static void check_setup(const setup *s, const char *path, unsigned char *buffers)
{
    const lvr_flash_config config = config_of(s, path, buffers);
    lvr_error err = LVR_ERROR_INIT;
    lvr_flash *f = NULL;
    char what[128];
    if (s->engine == LVR_FLASH_URING && lvr_flash_probe_engine(LVR_FLASH_URING, &err) != LVR_OK) {
        printf("ok %u - %s # SKIP %s\n", ++tap_n, s->name, err.msg);
        return;
    }
    for (int by_poll = 0; by_poll < 2; by_poll++) {
        snprintf(what, sizeof what, "%s: opens", s->name);
        if (!tap_status(lvr_flash_open(&config, &f, &err), &err, what))
            return;
        snprintf(what, sizeof what, "%s: the file's bytes, by %s", s->name, by_poll ? "poll" : "wait");
        tap_ok(reads_everything(f, buffers, by_poll), what);
        lvr_flash_close(f);
    }
    snprintf(what, sizeof what, "%s: closes with reads in flight", s->name);
    tap_ok(closes_with_reads_in_flight(&config, buffers), what);
}

int main(void)
{
    static const setup setups[] = {
        {"io_uring", LVR_FLASH_URING, false, false, false, 8},
        {"io_uring, registered", LVR_FLASH_URING, false, false, true, 3},
        {"io_uring, emulated", LVR_FLASH_URING, false, true, true, 4},
        {"one lane", LVR_FLASH_PREAD, false, false, false, 1},
        {"one lane, summed", LVR_FLASH_PREAD, false, false, true, 1},
        {"lanes", LVR_FLASH_PREAD, false, false, false, 4},
        {"lanes, summed", LVR_FLASH_PREAD, false, false, true, 4},
        {"lanes, buffered", LVR_FLASH_PREAD, true, false, false, 4},
        {"lanes, emulated", LVR_FLASH_PREAD, false, true, true, 4},
        {"more lanes than requests", LVR_FLASH_PREAD, false, false, true, LVR_FLASH_MAX_DEPTH},
    };
    char path[] = "lvr-tsan-flash-XXXXXX";
    const int fd = mkstemp(path);
    unsigned char *buffers = aligned_alloc(BLOCK, OUTSTANDING * REQUEST);
    if (tap_ok(fd >= 0 && buffers && write_file(fd), "a file to read"))
        for (size_t i = 0; i < sizeof setups / sizeof *setups; i++)
            check_setup(&setups[i], path, buffers);
    if (fd >= 0) {
        close(fd);
        unlink(path);
    }
    free(buffers);
    return tap_done();
}
