/* The flash reader: contents, order, limits, faults, emulation, on both back ends. */
#include "common/clock.h"
#include "common/fs.h"
#include "common/hash.h"
#include "common/log.h"
#include "common/rng.h"
#include "engine/flash/flash.h"
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK 4096u
#define N_BLOCKS 512u
#define TAIL 1234u /* the file does not end on a block */
#define FILE_BYTES (N_BLOCKS * BLOCK + TAIL)

struct file {
    char path[256];
    uint8_t *bytes;
};

static struct file make_file(const char *dir)
{
    struct file f;
    snprintf(f.path, sizeof f.path, "%s/flash-reader.XXXXXX", dir);
    const int fd = mkstemp(f.path);
    cr_assert(fd >= 0, "%s: %s", f.path, strerror(errno));
    f.bytes = malloc(FILE_BYTES);
    cr_assert(f.bytes);
    lvr_rng rng;
    lvr_rng_init(&rng, 3, "flash-reader-test");
    for (size_t i = 0; i < FILE_BYTES; i++)
        f.bytes[i] = (uint8_t)lvr_rng_u64(&rng);
    cr_assert_eq(lvr_pwrite_all(fd, f.bytes, FILE_BYTES, 0, f.path, NULL), LVR_OK);
    close(fd);
    return f;
}

static void drop_file(struct file *f)
{
    unlink(f->path);
    free(f->bytes);
}

static bool usable(lvr_flash_engine engine)
{
    return lvr_flash_probe_engine(engine, NULL) == LVR_OK;
}

static lvr_flash *open_ok(const lvr_flash_config *config)
{
    lvr_flash *f = NULL;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_flash_open(config, &f, &err), LVR_OK, "%s", err.msg);
    return f;
}

static uint8_t *make_buffers(size_t n)
{
    uint8_t *b = aligned_alloc(BLOCK, n);
    cr_assert(b);
    memset(b, 0xee, n);
    return b;
}

static void submit_ok(lvr_flash *f, uint64_t seq, uint64_t offset, uint64_t bytes, void *dst)
{
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_flash_submit(f, seq, offset, bytes, dst, &err), LVR_OK, "%s", err.msg);
}

static lvr_flash_completion wait_ok(lvr_flash *f)
{
    lvr_flash_completion c;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_flash_wait(f, &c, &err), LVR_OK, "%s", err.msg);
    cr_assert(lvr_now_ns() >= c.t_end_ns, "delivered before its end");
    cr_assert(c.t_submit_ns <= c.t_start_ns && c.t_start_ns <= c.t_end_ns);
    return c;
}

/* Random requests of 1 to 8 blocks, as many outstanding as allowed, every byte and checksum compared. Summed:
 * into a registered buffer. */
static void check_contents(const struct file *file, const lvr_flash_config *base, uint32_t n_requests)
{
    enum { MAX_BLOCKS = 8 };
    const uint32_t k = base->max_outstanding;
    uint8_t *buffers = make_buffers((size_t)k * MAX_BLOCKS * BLOCK);
    lvr_flash_config own = *base, *config = &own;
    if (own.checksum) {
        own.buffer = buffers;
        own.buffer_bytes = (uint64_t)k * MAX_BLOCKS * BLOCK;
    }
    lvr_flash *f = open_ok(config);
    lvr_rng rng;
    lvr_rng_init(&rng, 4, "flash-reader-test");
    uint64_t total = 0;
    uint32_t submitted = 0, taken = 0;
    for (uint32_t next = 0; taken < n_requests;) {
        while (submitted < n_requests && submitted - taken < k) {
            const uint64_t blocks = 1 + lvr_rng_below(&rng, MAX_BLOCKS);
            const uint64_t at = lvr_rng_below(&rng, N_BLOCKS - blocks + 1);
            submit_ok(f, next, at * BLOCK, blocks * BLOCK, buffers + (size_t)next * MAX_BLOCKS * BLOCK);
            submitted++;
            next++;
            if (submitted >= k)
                break;
        }
        const lvr_flash_completion c = wait_ok(f);
        cr_assert_eq(c.status, LVR_OK);
        cr_assert(c.queue_depth >= 1 && c.queue_depth <= config->depth);
        cr_assert_eq(memcmp(buffers + c.seq * MAX_BLOCKS * BLOCK, file->bytes + c.offset, c.bytes), 0,
                     "%u bytes at %u differ", (unsigned)c.bytes, (unsigned)c.offset);
        cr_assert_eq(c.has_crc, config->checksum);
        if (c.has_crc)
            cr_assert_eq(c.crc, lvr_crc32c(0, file->bytes + c.offset, c.bytes));
        total += c.bytes;
        taken++;
        next = (uint32_t)c.seq;
    }
    lvr_flash_completion none;
    cr_assert(!lvr_flash_poll(f, &none));
    lvr_flash_stats stats;
    lvr_flash_get_stats(f, &stats);
    cr_assert_eq(stats.reads, n_requests);
    cr_assert_eq(stats.bytes, total);
    cr_assert(!stats.registered_buffer || config->buffer);
    lvr_flash_close(f);
    free(buffers);
}

static void check_contents_at_all_depths(const struct file *file, bool buffered)
{
    static const struct {
        uint32_t depth, outstanding;
    } shapes[] = {{1, 1}, {1, 300}, {2, 3}, {4, 8}, {64, 64}, {64, 5}};
    for (lvr_flash_engine e = LVR_FLASH_AUTO; e <= LVR_FLASH_PREAD; e++) {
        if (!usable(e))
            continue;
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            lvr_flash_config c = {.path = file->path,
                                  .engine = e,
                                  .buffered = buffered,
                                  .depth = shapes[i].depth,
                                  .max_outstanding = shapes[i].outstanding};
            check_contents(file, &c, 350);
            c.checksum = true;
            check_contents(file, &c, 350);
        }
    }
}

Test(flash_reader, reads_what_the_file_holds)
{
    struct file file = make_file(".");
    check_contents_at_all_depths(&file, false);
    check_contents_at_all_depths(&file, true);
    drop_file(&file);
}

Test(flash_reader, reads_what_a_tmpfs_file_holds)
{
    if (access("/dev/shm", W_OK) != 0)
        cr_skip_test("no /dev/shm");
    struct file file = make_file("/dev/shm");
    check_contents_at_all_depths(&file, false);
    drop_file(&file);
}

Test(flash_reader, polling_delivers_everything_once)
{
    struct file file = make_file(".");
    for (lvr_flash_engine e = LVR_FLASH_URING; e <= LVR_FLASH_PREAD; e++) {
        if (!usable(e))
            continue;
        const lvr_flash_config config = {.path = file.path, .engine = e, .depth = 3, .max_outstanding = 32};
        lvr_flash *f = open_ok(&config);
        uint8_t *b = make_buffers(32 * BLOCK);
        for (uint64_t i = 0; i < 32; i++)
            submit_ok(f, 100 + i, i * BLOCK, BLOCK, b + i * BLOCK);
        uint64_t seen = 0;
        lvr_flash_completion c;
        while (seen != UINT32_MAX) {
            if (!lvr_flash_poll(f, &c))
                continue;
            cr_assert_eq(seen >> (c.seq - 100) & 1, 0, "delivered twice");
            seen |= UINT64_C(1) << (c.seq - 100);
        }
        cr_assert_eq(memcmp(b, file.bytes, (size_t)32 * BLOCK), 0);
        lvr_flash_close(f);
        free(b);
    }
    drop_file(&file);
}

Test(flash_reader, misuse_is_named)
{
    struct file file = make_file(".");
    const lvr_flash_config config = {.path = file.path, .depth = 1, .max_outstanding = 1};
    lvr_flash *f = open_ok(&config);
    uint8_t *b = make_buffers((size_t)2 * BLOCK);
    lvr_error err = LVR_ERROR_INIT;
    lvr_flash_completion c;
    cr_assert_eq(lvr_flash_wait(f, &c, &err), LVR_ERR_INVARIANT);
    cr_assert(!lvr_flash_poll(f, &c));
    cr_assert_eq(lvr_flash_submit(f, 0, 1, BLOCK, b, &err), LVR_ERR_INVARIANT);
    cr_assert_eq(lvr_flash_submit(f, 0, 0, BLOCK + 1, b, &err), LVR_ERR_INVARIANT);
    cr_assert_eq(lvr_flash_submit(f, 0, 0, BLOCK, b + 512, &err), LVR_ERR_INVARIANT);
    cr_assert_eq(lvr_flash_submit(f, 0, 0, 0, b, &err), LVR_ERR_INVARIANT);
    cr_assert_eq(lvr_flash_submit(f, 0, UINT64_MAX - BLOCK + 1, BLOCK, b, &err), LVR_ERR_INVARIANT);
    cr_assert_eq(lvr_flash_submit(f, 0, INT64_MAX - BLOCK + 1, BLOCK, b, &err), LVR_ERR_INVARIANT);
    submit_ok(f, 1, 0, BLOCK, b);
    cr_assert_eq(lvr_flash_submit(f, 2, 0, BLOCK, b + BLOCK, &err), LVR_ERR_INVARIANT);
    cr_assert_eq(wait_ok(f).seq, 1);
    submit_ok(f, 3, 0, BLOCK, b);
    cr_assert_eq(wait_ok(f).seq, 3);
    lvr_flash_close(f);
    free(b);
    drop_file(&file);
}

Test(flash_reader, what_cannot_be_read_is_refused_at_open)
{
    struct file file = make_file(".");
    cr_assert_eq(mkfifo("flash-reader.fifo", 0600), 0);
    const lvr_flash_config bad[] = {
        {.path = "./no-such-file", .depth = 1, .max_outstanding = 1},
        {.path = ".", .depth = 1, .max_outstanding = 1},
        {.path = "flash-reader.fifo", .depth = 1, .max_outstanding = 1},
        {.path = file.path, .depth = 0, .max_outstanding = 1},
        {.path = file.path, .depth = LVR_FLASH_MAX_DEPTH + 1, .max_outstanding = 1},
        {.path = file.path, .depth = 1, .max_outstanding = 0},
        {.path = file.path, .depth = 1, .max_outstanding = LVR_FLASH_MAX_OUTSTANDING + 1},
        {.path = file.path, .depth = 1, .max_outstanding = 1, .emulate = true},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        lvr_flash *f = NULL;
        lvr_error err = LVR_ERROR_INIT;
        const lvr_status status = lvr_flash_open(&bad[i], &f, &err);
        cr_assert_eq(status, i < 3 ? LVR_ERR_IO : LVR_ERR_CONFIG, "case %zu: %s", i, err.msg);
        cr_assert_eq(err.status, status);
        cr_assert_null(f);
    }
    unlink("flash-reader.fifo");
    drop_file(&file);
}

/* ---- faults ---- */

struct notices {
    atomic_int warnings, infos;
};

static void count_notices(lvr_log_level level, const char *message, void *user)
{
    (void)message;
    struct notices *n = user;
    if (level == LVR_LOG_WARN)
        atomic_fetch_add(&n->warnings, 1);
    if (level == LVR_LOG_INFO)
        atomic_fetch_add(&n->infos, 1);
}

/* One reader, `n` requests of two blocks one after another; contents are compared where a read succeeded. */
struct fault_run {
    lvr_flash_completion c[8];
    lvr_error last;
    lvr_flash_stats stats;
};

static struct fault_run run_with(const struct file *file, lvr_flash_engine engine,
                                 const lvr_flash_faults *faults, uint32_t n)
{
    struct fault_run r = {0};
    uint8_t *b = make_buffers((size_t)2 * BLOCK);
    const lvr_flash_config config = {.path = file->path,
                                     .engine = engine,
                                     .depth = 1,
                                     .max_outstanding = 4,
                                     .buffer = b,
                                     .buffer_bytes = (uint64_t)2 * BLOCK,
                                     .checksum = true,
                                     .faults = faults};
    lvr_flash *f = open_ok(&config);
    for (uint32_t i = 0; i < n; i++) {
        memset(b, 0xee, (size_t)2 * BLOCK);
        submit_ok(f, i, i * BLOCK, (uint64_t)2 * BLOCK, b);
        r.c[i] = wait_ok(f);
        cr_assert_eq(r.c[i].has_crc, r.c[i].status == LVR_OK);
        if (r.c[i].status == LVR_OK) {
            cr_assert_eq(memcmp(b, file->bytes + i * BLOCK, (size_t)2 * BLOCK), 0);
            cr_assert_eq(r.c[i].crc, lvr_crc32c(0, b, (size_t)2 * BLOCK));
        } else {
            lvr_flash_last_error(f, &r.last);
        }
    }
    lvr_flash_get_stats(f, &r.stats);
    lvr_flash_close(f);
    free(b);
    return r;
}

#define FOR_EACH_ENGINE(e)                                                                                   \
    for (lvr_flash_engine e = LVR_FLASH_URING; e <= LVR_FLASH_PREAD; e++)                                    \
        if (usable(e))

Test(flash_reader, a_failed_read_is_delivered_and_explained)
{
    struct file file = make_file(".");
    FOR_EACH_ENGINE(e)
    {
        const lvr_flash_faults faults = {.fail_at = 2, .fail_count = 1, .fail_errno = EIO};
        const struct fault_run r = run_with(&file, e, &faults, 3);
        cr_assert_eq(r.c[0].status, LVR_OK);
        cr_assert_eq(r.c[1].status, LVR_ERR_IO);
        cr_assert_eq(r.c[2].status, LVR_OK);
        cr_assert_eq(r.last.status, LVR_ERR_IO);
        cr_assert(strstr(r.last.msg, file.path) && strstr(r.last.msg, "offset 4096"), "%s", r.last.msg);
        cr_assert_eq(r.stats.reads, 3);
        cr_assert_eq(r.stats.bytes, 4 * BLOCK);
    }
    drop_file(&file);
}

Test(flash_reader, interrupted_and_short_reads_are_continued)
{
    struct file file = make_file(".");
    static const lvr_flash_faults faults[] = {
        {.fail_at = 1, .fail_count = 5, .fail_errno = EINTR},
        {.fail_at = 1, .fail_count = 5, .fail_errno = EAGAIN},
        {.short_at = 1, .short_bytes = BLOCK},
        {.short_at = 1, .short_bytes = 1},
        {.short_at = 1, .short_bytes = 512},
    };
    FOR_EACH_ENGINE(e)
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        const struct fault_run r = run_with(&file, e, &faults[i], 3);
        for (int k = 0; k < 3; k++)
            cr_assert_eq(r.c[k].status, LVR_OK, "case %zu", i);
    }
    drop_file(&file);
}

Test(flash_reader, refusals_without_end_become_an_error)
{
    struct file file = make_file(".");
    FOR_EACH_ENGINE(e)
    {
        const lvr_flash_faults faults = {.fail_at = 1, .fail_count = UINT64_MAX, .fail_errno = EAGAIN};
        const struct fault_run r = run_with(&file, e, &faults, 1);
        cr_assert_eq(r.c[0].status, LVR_ERR_IO);
    }
    drop_file(&file);
}

Test(flash_reader, the_end_of_the_file_is_an_error)
{
    struct file file = make_file(".");
    FOR_EACH_ENGINE(e)
    for (int buffered = 0; buffered < 2; buffered++) {
        const lvr_flash_config config = {
            .path = file.path, .engine = e, .buffered = buffered != 0, .depth = 2, .max_outstanding = 2};
        lvr_flash *f = open_ok(&config);
        uint8_t *b = make_buffers((size_t)2 * BLOCK);
        lvr_error err;
        submit_ok(f, 0, (uint64_t)(N_BLOCKS - 1) * BLOCK, (uint64_t)2 * BLOCK, b);
        cr_assert_eq(wait_ok(f).status, LVR_ERR_FORMAT);
        lvr_flash_last_error(f, &err);
        cr_assert(strstr(err.msg, "after 5330"), "%s", err.msg);
        submit_ok(f, 1, (uint64_t)(N_BLOCKS + 100) * BLOCK, BLOCK, b);
        cr_assert_eq(wait_ok(f).status, LVR_ERR_FORMAT);
        submit_ok(f, 2, 0, BLOCK, b);
        cr_assert_eq(wait_ok(f).status, LVR_OK);
        lvr_flash_close(f);
        free(b);
    }
    drop_file(&file);
}

Test(flash_reader, direct_refused_at_open_falls_back_with_one_notice)
{
    struct file file = make_file(".");
    struct notices n = {0};
    lvr_log_set_sink(count_notices, LVR_LOG_DEBUG, &n);
    FOR_EACH_ENGINE(e)
    {
        n.warnings = 0;
        const lvr_flash_faults faults = {.refuse_direct = true};
        const struct fault_run r = run_with(&file, e, &faults, 3);
        for (int i = 0; i < 3; i++)
            cr_assert(r.c[i].status == LVR_OK && !r.c[i].direct);
        cr_assert(!r.stats.direct);
        cr_assert_eq(n.warnings, 1);
    }
    drop_file(&file);
}

Test(flash_reader, direct_refused_at_a_read_falls_back_with_one_notice)
{
    struct file file = make_file(".");
    struct notices n = {0};
    const lvr_flash_config plain = {.path = file.path, .depth = 1, .max_outstanding = 1};
    lvr_flash *probe = open_ok(&plain);
    lvr_flash_stats stats;
    lvr_flash_get_stats(probe, &stats);
    lvr_flash_close(probe);
    if (!stats.direct)
        cr_skip_test("no O_DIRECT here");
    lvr_log_set_sink(count_notices, LVR_LOG_DEBUG, &n);
    FOR_EACH_ENGINE(e)
    {
        n.warnings = 0;
        const lvr_flash_faults faults = {.fail_at = 2, .fail_count = 1, .fail_errno = EINVAL};
        const struct fault_run r = run_with(&file, e, &faults, 4);
        for (int i = 0; i < 4; i++) {
            cr_assert_eq(r.c[i].status, LVR_OK);
            cr_assert_eq(r.c[i].direct, i == 0);
        }
        cr_assert(!r.stats.direct);
        cr_assert_eq(n.warnings, 1);
    }
    drop_file(&file);
}

Test(flash_reader, an_invalid_buffered_read_is_an_error)
{
    struct file file = make_file(".");
    FOR_EACH_ENGINE(e)
    {
        const lvr_flash_faults faults = {
            .refuse_direct = true, .fail_at = 1, .fail_count = 1, .fail_errno = EINVAL};
        cr_assert_eq(run_with(&file, e, &faults, 1).c[0].status, LVR_ERR_IO);
    }
    drop_file(&file);
}

Test(flash_reader, without_io_uring_threads_read)
{
    struct file file = make_file(".");
    struct notices n = {0};
    lvr_log_set_sink(count_notices, LVR_LOG_DEBUG, &n);
    const lvr_flash_faults faults = {.refuse_uring = true};
    const struct fault_run r = run_with(&file, LVR_FLASH_AUTO, &faults, 2);
    cr_assert_str_eq(r.stats.engine_name, "pread");
    cr_assert_eq(r.c[1].status, LVR_OK);
    cr_assert_eq(n.infos, 1);
    const lvr_flash_config asked = {
        .path = file.path, .engine = LVR_FLASH_URING, .depth = 1, .max_outstanding = 1, .faults = &faults};
    lvr_flash *f = NULL;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_flash_open(&asked, &f, &err), LVR_ERR_UNSUPPORTED);
    cr_assert(strstr(err.msg, "io_uring_disabled"), "%s", err.msg);
    drop_file(&file);
}

/* ---- registering ---- */

static lvr_flash_stats stats_of(const lvr_flash *f)
{
    lvr_flash_stats stats;
    lvr_flash_get_stats(f, &stats);
    return stats;
}

/* Requests inside the registered buffer, across its pieces and outside of it, each in several attempts. */
Test(flash_reader, requests_are_read_in_pieces_wherever_they_go)
{
    enum { INSIDE = 40, OUTSIDE = 8, N = INSIDE + OUTSIDE };
    struct file file = make_file(".");
    FOR_EACH_ENGINE(e)
    for (uint64_t piece = 1; piece <= 16; piece *= 2) {
        const lvr_flash_faults faults = {.attempt_bytes = piece * BLOCK, .short_at = 3, .short_bytes = 100};
        uint8_t *b = make_buffers(N * BLOCK);
        const lvr_flash_config config = {.path = file.path,
                                         .engine = e,
                                         .depth = 2,
                                         .max_outstanding = 8,
                                         .buffer = b,
                                         .buffer_bytes = INSIDE * BLOCK,
                                         .checksum = true,
                                         .faults = &faults};
        lvr_flash *f = open_ok(&config);
        for (uint64_t first = 0; first + 11 <= N; first += 3) {
            memset(b, 0xee, N * BLOCK);
            submit_ok(f, first, first * BLOCK, 11 * BLOCK, b + first * BLOCK);
            const lvr_flash_completion c = wait_ok(f);
            cr_assert_eq(c.status, LVR_OK);
            cr_assert_eq(memcmp(b + first * BLOCK, file.bytes + first * BLOCK, 11 * BLOCK), 0);
            cr_assert_eq(c.crc, lvr_crc32c(0, file.bytes + first * BLOCK, 11 * BLOCK));
        }
        lvr_flash_close(f);
        free(b);
    }
    drop_file(&file);
}

Test(flash_reader, refused_registration_is_said_once_and_read_plainly)
{
    struct file file = make_file(".");
    struct notices n = {0};
    if (!usable(LVR_FLASH_URING))
        cr_skip_test("no io_uring here");
    lvr_log_set_sink(count_notices, LVR_LOG_DEBUG, &n);
    for (int refuse = 0; refuse < 4; refuse++) {
        n.warnings = n.infos = 0;
        const lvr_flash_faults faults = {.refuse_buffer = (refuse & 1) != 0,
                                         .refuse_files = (refuse & 2) != 0};
        const struct fault_run r = run_with(&file, LVR_FLASH_URING, &faults, 3);
        for (int i = 0; i < 3; i++)
            cr_assert_eq(r.c[i].status, LVR_OK);
        cr_assert(!(r.stats.registered_buffer && faults.refuse_buffer));
        cr_assert(!(r.stats.registered_files && faults.refuse_files));
        cr_assert_eq(n.warnings, 0);
        if (faults.refuse_buffer)
            cr_assert_eq(n.infos, 1);
    }
    const struct fault_run lanes = run_with(&file, LVR_FLASH_PREAD, NULL, 1);
    cr_assert(!lanes.stats.registered_buffer && !lanes.stats.registered_files);
    drop_file(&file);
}

/* Large enough for many pieces of sums, with completions piling up meanwhile. */
Test(flash_reader, checksums_can_be_turned_on_and_off)
{
    struct file file = make_file(".");
    enum { LONG = 400 * BLOCK };
    FOR_EACH_ENGINE(e)
    {
        uint8_t *b = make_buffers(4 * LONG);
        const lvr_flash_config config = {.path = file.path,
                                         .engine = e,
                                         .depth = 4,
                                         .max_outstanding = 4,
                                         .buffer = b,
                                         .buffer_bytes = 4 * LONG};
        lvr_flash *f = open_ok(&config);
        for (uint64_t round = 0; round < 4; round++) {
            for (uint64_t i = 0; i < 4; i++) {
                lvr_flash_set_checksum(f, (i + round) % 2 == 0);
                submit_ok(f, i, i * BLOCK, LONG, b + i * LONG);
            }
            for (int i = 0; i < 4; i++) {
                const lvr_flash_completion c = wait_ok(f);
                cr_assert_eq(c.status, LVR_OK);
                cr_assert_eq(c.has_crc, (c.seq + round) % 2 == 0);
                if (c.has_crc)
                    cr_assert_eq(c.crc, lvr_crc32c(0, file.bytes + c.offset, LONG));
            }
        }
        cr_assert_gt(stats_of(f).cpu_ns, 0);
        lvr_flash_close(f);
        free(b);
    }
    drop_file(&file);
}

Test(flash_reader, closing_waits_for_reads_in_flight)
{
    struct file file = make_file(".");
    FOR_EACH_ENGINE(e)
    for (int round = 0; round < 20; round++) {
        const lvr_flash_faults faults = {.slow_at = 2, .slow_count = 3, .slow_ns = 3000000};
        uint8_t *b = make_buffers(16 * BLOCK);
        const lvr_flash_config config = {.path = file.path,
                                         .engine = e,
                                         .depth = 2,
                                         .max_outstanding = 16,
                                         .buffer = b,
                                         .buffer_bytes = 16 * BLOCK,
                                         .checksum = round % 3 == 0,
                                         .faults = &faults};
        lvr_flash *f = open_ok(&config);
        for (uint64_t i = 0; i < 16; i++)
            submit_ok(f, i, i * BLOCK, BLOCK, b + i * BLOCK);
        if (round % 2)
            wait_ok(f);
        lvr_flash_close(f);
        /* Nobody writes here any more: a late read would be caught by AddressSanitizer. */
        free(b);
    }
    lvr_flash_close(NULL);
    drop_file(&file);
}

Test(flash_reader, an_unused_reader_closes)
{
    struct file file = make_file(".");
    FOR_EACH_ENGINE(e)
    for (int round = 0; round < 50; round++) {
        const lvr_flash_config config = {.path = file.path, .engine = e, .depth = 8, .max_outstanding = 8};
        lvr_flash_close(open_ok(&config));
    }
    drop_file(&file);
}

/* ---- emulation ---- */

static const lvr_flash_params slow_device = {
    .t0_ns = 200000, .lane_bytes_per_s = 50000000, .max_bytes_per_s = 80000000, .depth = 4};

Test(flash_reader, emulation_is_never_faster_than_the_preset)
{
    struct file file = make_file(".");
    FOR_EACH_ENGINE(e)
    for (uint32_t depth = 1; depth <= 8; depth *= 2) {
        enum { N = 48, BYTES = 8 * BLOCK };
        const lvr_flash_config config = {.path = file.path,
                                         .engine = e,
                                         .depth = depth,
                                         .max_outstanding = 2 * depth,
                                         .emulate = true,
                                         .emulated = slow_device};
        lvr_flash_params limited = slow_device;
        limited.depth = depth < limited.depth ? depth : limited.depth;
        lvr_flash *f = open_ok(&config);
        uint8_t *b = make_buffers((size_t)2 * depth * BYTES);
        uint64_t first = UINT64_MAX, last = 0;
        uint32_t submitted = 0;
        for (; submitted < 2 * depth; submitted++)
            submit_ok(f, submitted, submitted * (uint64_t)BYTES, BYTES, b + (size_t)submitted * BYTES);
        for (uint32_t taken = 0; taken < N; taken++) {
            const lvr_flash_completion c = wait_ok(f);
            const double lane_ns = 200000 + BYTES / 0.05;
            cr_assert((double)(c.t_end_ns - c.t_start_ns) >= lane_ns,
                      "one request was faster than the preset's lane");
            cr_assert(c.queue_depth >= 1 && c.queue_depth <= limited.depth);
            first = c.t_submit_ns < first ? c.t_submit_ns : first;
            last = c.t_end_ns > last ? c.t_end_ns : last;
            if (submitted == N)
                continue;
            submit_ok(f, c.seq, submitted % (N_BLOCKS / 8) * (uint64_t)BYTES, BYTES,
                      b + (size_t)c.seq * BYTES);
            submitted++;
        }
        const double rate = (double)N * BYTES * 1e9 / (double)(last - first);
        cr_assert(rate <= lvr_flash_rate_bytes_per_s(&limited, BYTES), "depth %u: %g bytes/s", depth, rate);
        lvr_flash_close(f);
        free(b);
    }
    drop_file(&file);
}

Test(flash_reader, emulated_polling_holds_completions_back)
{
    struct file file = make_file(".");
    const lvr_flash_config config = {
        .path = file.path, .depth = 4, .max_outstanding = 4, .emulate = true, .emulated = slow_device};
    lvr_flash *f = open_ok(&config);
    uint8_t *b = make_buffers(BLOCK);
    submit_ok(f, 0, 0, BLOCK, b);
    lvr_flash_completion c;
    while (!lvr_flash_poll(f, &c))
        ;
    cr_assert(lvr_now_ns() >= c.t_end_ns);
    cr_assert(c.t_end_ns - c.t_submit_ns >= 200000 + 81920);
    cr_assert_eq(memcmp(b, file.bytes, BLOCK), 0);
    lvr_flash_close(f);
    free(b);
    drop_file(&file);
}

Test(flash_reader, a_device_slower_than_its_emulation_is_said_to_be_late)
{
    struct file file = make_file(".");
    FOR_EACH_ENGINE(e)
    {
        const lvr_flash_faults faults = {.slow_at = 2, .slow_count = 1, .slow_ns = 20000000};
        const lvr_flash_config config = {.path = file.path,
                                         .engine = e,
                                         .depth = 1,
                                         .max_outstanding = 4,
                                         .emulate = true,
                                         .emulated = slow_device,
                                         .faults = &faults};
        lvr_flash *f = open_ok(&config);
        uint8_t *b = make_buffers(BLOCK);
        lvr_flash_stats stats;
        submit_ok(f, 0, 0, BLOCK, b);
        wait_ok(f);
        submit_ok(f, 1, 0, BLOCK, b);
        const lvr_flash_completion c = wait_ok(f);
        cr_assert(c.late);
        cr_assert(c.t_end_ns - c.t_submit_ns >= 20000000);
        lvr_flash_get_stats(f, &stats);
        cr_assert(stats.late >= 1);
        lvr_flash_close(f);
        free(b);
    }
    drop_file(&file);
}

Test(flash_reader, too_fast_a_preset_is_refused_with_both_rates)
{
    lvr_error err = LVR_ERROR_INIT;
    const lvr_flash_params p = {
        .t0_ns = 0, .lane_bytes_per_s = 1000000000, .max_bytes_per_s = 1000000000, .depth = 1};
    cr_assert_eq(lvr_flash_check_emulation(&p, 1 << 20, 1.43e9, &err), LVR_OK);
    cr_assert_eq(lvr_flash_check_emulation(&p, 1 << 20, 1.42e9, &err), LVR_ERR_CONFIG);
    cr_assert(strstr(err.msg, "1.000 GB/s") && strstr(err.msg, "1.420 GB/s"), "%s", err.msg);
    cr_assert(strstr(err.msg, "--emulate-scale 0.99"), "%s", err.msg);
    lvr_flash_params scaled = p;
    cr_assert_eq(lvr_flash_params_scale(&scaled, 0.99, &err), LVR_OK);
    cr_assert_eq(lvr_flash_check_emulation(&scaled, 1 << 20, 1.42e9, &err), LVR_OK);
    cr_assert_eq(lvr_flash_check_emulation(&p, 1 << 20, 1e6, &err), LVR_ERR_CONFIG);
    cr_assert(!strstr(err.msg, "--emulate-scale"), "%s", err.msg);
}

/* ---- measuring ---- */

Test(flash_reader, rates_are_measured)
{
    struct file file = make_file(".");
    double rate = 0;
    bool direct = false;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(
        lvr_flash_warm_rate(file.path, false, 0, FILE_BYTES, (uint64_t)16 * BLOCK, 4, NULL, &rate, &err),
        LVR_OK, "%s", err.msg);
    cr_assert(rate > 0);
    cr_assert_eq(lvr_flash_read_rate(file.path, true, BLOCK, BLOCK, BLOCK, 1, &rate, &direct, &err), LVR_OK,
                 "%s", err.msg);
    cr_assert(!direct && rate > 0);
    cr_assert_eq(lvr_flash_warm_rate(file.path, false, 0, BLOCK, (uint64_t)2 * BLOCK, 4, NULL, &rate, &err),
                 LVR_ERR_CONFIG);
    cr_assert_eq(lvr_flash_warm_rate(file.path, false, 0, FILE_BYTES, 100, 4, NULL, &rate, &err),
                 LVR_ERR_CONFIG);
    cr_assert_eq(lvr_flash_warm_rate(file.path, false, 0, (uint64_t)4 * FILE_BYTES, (uint64_t)16 * BLOCK, 4,
                                     NULL, &rate, &err),
                 LVR_ERR_FORMAT);
    const atomic_bool cancel = true;
    cr_assert_eq(
        lvr_flash_warm_rate(file.path, false, 0, FILE_BYTES, (uint64_t)16 * BLOCK, 4, &cancel, &rate, &err),
        LVR_ERR_INTERRUPTED);
    drop_file(&file);
}

Test(flash_reader, a_bench_cell_measures_and_fails_cleanly)
{
    struct file file = make_file(".");
    lvr_flash_bench b = {0};
    lvr_error err = LVR_ERROR_INIT;
    lvr_flash_config config = {.path = file.path, .depth = 2};
    lvr_flash_load load = {
        .file_bytes = FILE_BYTES, .request_bytes = (uint64_t)4 * BLOCK, .budget_ns = 20000000};
    for (int random = 0; random < 2; random++) {
        load.random = random != 0;
        cr_assert_eq(lvr_flash_bench_cell(&config, &load, &b, &err), LVR_OK, "%s", err.msg);
        cr_assert(b.n >= 4 && b.bytes_per_s > 0);
        cr_assert(b.cpu_share > 0 && b.cpu_share < 4);
    }
    cr_assert(b.latency_ns_p50 <= b.latency_ns_p90 && b.latency_ns_p90 <= b.latency_ns_p99);
    lvr_flash_bench before;
    memcpy(&before, &b, sizeof b);
    load = (lvr_flash_load){.file_bytes = BLOCK, .request_bytes = (uint64_t)4 * BLOCK, .budget_ns = 1};
    cr_assert_eq(lvr_flash_bench_cell(&config, &load, &b, &err), LVR_ERR_CONFIG);
    const lvr_flash_faults faults = {.fail_at = 3, .fail_count = 1, .fail_errno = EIO};
    config.faults = &faults;
    load = (lvr_flash_load){.file_bytes = FILE_BYTES, .request_bytes = BLOCK, .budget_ns = 20000000};
    cr_assert_eq(lvr_flash_bench_cell(&config, &load, &b, &err), LVR_ERR_IO);
    cr_assert_eq(memcmp(&b, &before, sizeof b), 0);
    drop_file(&file);
}
