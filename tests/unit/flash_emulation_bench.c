/*
 * How good the flash reader's clockwork is on this machine: prints, and judges nothing (meson test
 * --benchmark). flash_emulation_bench [FILE]      FILE: an existing file of 64 MiB or more; default: a
 * temporary one Delivery latency is from the delivered end of a read to the consumer being awake with its
 * completion.
 */
#include "common/clock.h"
#include "common/fs.h"
#include "common/log.h"
#include "common/stats.h"
#include "engine/flash/flash.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILE_BYTES (UINT64_C(64) << 20)
#define MAX_SAMPLES 4096u

struct outcome {
    double bytes_per_s;
    double delivery_us_p50, delivery_us_p99;
    uint64_t late, n;
};

static void print_log(lvr_log_level level, const char *message, void *user)
{
    (void)level;
    (void)user;
    fprintf(stderr, "%s\n", message);
}

static void die(const lvr_error *err)
{
    fprintf(stderr, "%s\n", err->msg);
    exit(1);
}

static void make_file(char *path)
{
    lvr_error err = LVR_ERROR_INIT;
    const int fd = mkstemp(path);
    uint8_t *block = malloc(1 << 20);
    if (fd < 0 || !block) {
        perror(path);
        exit(1);
    }
    for (size_t i = 0; i < 1 << 20; i++)
        block[i] = (uint8_t)(i * 2654435761u >> 13);
    for (uint64_t at = 0; at < FILE_BYTES; at += 1 << 20)
        if (lvr_pwrite_all(fd, block, 1 << 20, at, path, &err) != LVR_OK)
            die(&err);
    fsync(fd);
    close(fd);
    free(block);
}

/* Reads `total` bytes of the file's first FILE_BYTES over and over, `outstanding` requests at a time. */
static struct outcome run(const lvr_flash_config *config, uint64_t request, uint64_t total)
{
    lvr_error err = LVR_ERROR_INIT;
    lvr_flash *f;
    if (lvr_flash_open(config, &f, &err) != LVR_OK)
        die(&err);
    const uint32_t k = config->max_outstanding;
    uint8_t *buffers = aligned_alloc(4096, k * request);
    double *delivery = malloc(MAX_SAMPLES * sizeof *delivery);
    if (!buffers || !delivery)
        exit(1);
    memset(buffers, 1, k * request);
    const uint64_t n = total / request, blocks = FILE_BYTES / request;
    const uint64_t begin = lvr_now_ns();
    uint64_t submitted = 0, end = begin;
    for (; submitted < k && submitted < n; submitted++)
        if (lvr_flash_submit(f, submitted, submitted % blocks * request, request,
                             buffers + submitted * request, &err) != LVR_OK)
            die(&err);
    for (uint64_t taken = 0; taken < n; taken++) {
        lvr_flash_completion c;
        if (lvr_flash_wait(f, &c, &err) != LVR_OK)
            die(&err);
        if (taken < MAX_SAMPLES)
            delivery[taken] = (double)(lvr_now_ns() - c.t_end_ns) / 1e3;
        end = c.t_end_ns > end ? c.t_end_ns : end;
        if (submitted == n)
            continue;
        if (lvr_flash_submit(f, c.seq, submitted % blocks * request, request, buffers + c.seq * request,
                             &err) != LVR_OK)
            die(&err);
        submitted++;
    }
    lvr_flash_stats stats;
    lvr_flash_get_stats(f, &stats);
    lvr_flash_close(f);
    const size_t m = n < MAX_SAMPLES ? n : MAX_SAMPLES;
    const struct outcome o = {.bytes_per_s = (double)(n * request) * 1e9 / (double)(end - begin),
                              .delivery_us_p50 = lvr_quantile(delivery, m, 0.5),
                              .delivery_us_p99 = lvr_quantile(delivery, m, 0.99),
                              .late = stats.late,
                              .n = n};
    free(delivery);
    free(buffers);
    return o;
}

static void real_reads(const char *path)
{
    static const lvr_flash_engine engines[] = {LVR_FLASH_URING, LVR_FLASH_PREAD};
    printf("real reads       engine  request  depth outst.    GB/s  delivery us p50 / p99\n");
    for (size_t e = 0; e < 2; e++)
        for (uint64_t request = 64 << 10; request <= 1 << 20; request *= 4)
            for (uint32_t depth = 1; depth <= 4; depth *= 4)
                for (uint32_t extra = 1; extra <= 2; extra++) {
                    const lvr_flash_config c = {
                        .path = path, .engine = engines[e], .depth = depth, .max_outstanding = depth * extra};
                    const struct outcome o = run(&c, request, FILE_BYTES * 4);
                    printf("%22s %7" PRIu64 "K %6u %6u %7.3f  %8.1f / %.1f\n", e == 0 ? "uring" : "pread",
                           request >> 10, depth, depth * extra, o.bytes_per_s / 1e9, o.delivery_us_p50,
                           o.delivery_us_p99);
                }
}

static void emulated_reads(const char *path)
{
    static const double rates[] = {0.1e9, 0.4e9, 0.9e9};
    printf("emulated reads     preset  request  depth    GB/s wanted GB/s  ratio   late  delivery us p50 / "
           "p99\n");
    for (size_t r = 0; r < 3; r++)
        for (uint64_t request = 256 << 10; request <= 1 << 20; request *= 4)
            for (uint32_t depth = 1; depth <= 4; depth *= 4) {
                const lvr_flash_params p = {.t0_ns = 100000,
                                            .lane_bytes_per_s = (uint64_t)rates[r],
                                            .max_bytes_per_s = (uint64_t)rates[r],
                                            .depth = depth};
                const lvr_flash_config c = {.path = path,
                                            .depth = depth,
                                            .max_outstanding = 2 * depth,
                                            .emulate = true,
                                            .emulated = p};
                const double wanted = lvr_flash_rate_bytes_per_s(&p, request);
                const struct outcome o = run(&c, request, (uint64_t)wanted / request * request);
                printf("%25.1f %7" PRIu64 "K %6u %7.3f %11.3f %6.4f %3" PRIu64 "/%-4" PRIu64
                       " %7.1f / %.1f\n",
                       rates[r] / 1e9, request >> 10, depth, o.bytes_per_s / 1e9, wanted / 1e9,
                       o.bytes_per_s / wanted, o.late, o.n, o.delivery_us_p50, o.delivery_us_p99);
            }
}

int main(int argc, char **argv)
{
    char temporary[] = "flash_emulation_bench.XXXXXX";
    const char *path = argc > 1 ? argv[1] : temporary;
    lvr_log_set_sink(print_log, LVR_LOG_INFO, NULL);
    if (argc < 2)
        make_file(temporary);
    real_reads(path);
    emulated_reads(path);
    if (argc < 2)
        unlink(temporary);
    return 0;
}
