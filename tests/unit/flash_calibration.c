/* Calibration: the choice, the measurement, the file it is kept in and every way that file can be unusable.
 * And what the page cache holds of a file. */
#include "common/fs.h"
#include "common/log.h"
#include "common/rng.h"
#include "engine/flash/calibrate.h"
#include "engine/flash/flash.h"
#include "engine/flash/io_report.h"
#include "engine/flash/page_cache.h"
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <math.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)

/* ---- a place of its own, notices ---- */

struct place {
    char dir[64];
    char file[96]; /* to read */
};

static struct place make_place(uint64_t bytes)
{
    struct place p;
    snprintf(p.dir, sizeof p.dir, "./flash-calibration.XXXXXX");
    cr_assert(mkdtemp(p.dir));
    snprintf(p.file, sizeof p.file, "%s/data", p.dir);
    setenv("LVR_CACHE_DIR", p.dir, 1);
    const int fd = open(p.file, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    cr_assert(fd >= 0);
    uint8_t *block = malloc(MIB);
    cr_assert(block);
    lvr_rng rng;
    lvr_rng_init(&rng, 9, "flash-calibration-test");
    for (uint64_t at = 0; at < bytes; at += MIB) {
        for (size_t i = 0; i < MIB; i += 8)
            block[i] = (uint8_t)lvr_rng_u64(&rng);
        cr_assert_eq(lvr_pwrite_all(fd, block, bytes - at < MIB ? bytes - at : MIB, at, p.file, NULL),
                     LVR_OK);
    }
    cr_assert_eq(fsync(fd), 0);
    free(block);
    close(fd);
    return p;
}

/* The one file that was kept. */
static bool find_kept(const struct place *p, char *ret, size_t n)
{
    DIR *dir = opendir(p->dir);
    bool found = false;
    cr_assert(dir);
    for (const struct dirent *e; (e = readdir(dir));)
        if (strncmp(e->d_name, "flash-", 6) == 0) {
            cr_assert(!found, "more than one file");
            snprintf(ret, n, "%s/%s", p->dir, e->d_name);
            found = true;
        }
    closedir(dir);
    return found;
}

static void drop_place(const struct place *p)
{
    char kept[512];
    if (find_kept(p, kept, sizeof kept))
        unlink(kept);
    unlink(p->file);
    rmdir(p->dir);
}

static atomic_int n_notices;

static void count_notices(lvr_log_level level, const char *message, void *user)
{
    (void)message;
    (void)user;
    if (level >= LVR_LOG_INFO)
        atomic_fetch_add(&n_notices, 1);
}

static lvr_flash_calibration made_up(void)
{
    lvr_flash_calibration c = {.first_bytes_per_s = 4e8,
                               .direct = true,
                               .engine = "uring",
                               .kernel = "6.1.0 \"test\"",
                               .date = "2026-01-31T23:59:59Z",
                               .n_cells = 6,
                               .cells = {{MIB / 4, 1, 0.5e9},
                                         {MIB / 4, 8, 1.20e9},
                                         {MIB, 2, 1.19e9},
                                         {MIB, 4, 1.21e9},
                                         {16 * MIB, 1, 1.1e9},
                                         {16 * MIB, 8, 1.215e9}}};
    lvr_flash_calibration_choose(&c);
    return c;
}

/* ---- the choice ---- */

Test(flash_calibration, the_choice_is_the_smallest_that_is_nearly_the_best)
{
    lvr_flash_calibration c = made_up();
    /* 1.215 is the best and 1.1907 good enough: 256 KiB x 8 and 1 MiB x 4 are, 1 MiB x 2 is just not. */
    cr_assert_eq(c.request_bytes, MIB / 4);
    cr_assert_eq(c.depth, 8);
    cr_assert_eq(c.bytes_per_s, 1.20e9);
    c.cells[2].bytes_per_s = 1.191e9; /* as many bytes in flight, fewer requests */
    lvr_flash_calibration_choose(&c);
    cr_assert_eq(c.request_bytes, MIB);
    cr_assert_eq(c.depth, 2);
    c.n_cells = 1;
    lvr_flash_calibration_choose(&c);
    cr_assert(c.request_bytes == MIB / 4 && c.depth == 1 && c.bytes_per_s == 0.5e9);
}

/* ---- measuring ---- */

static void check_calibration(const lvr_flash_calibration *c, uint64_t file_bytes)
{
    bool chosen = false;
    cr_assert(c->n_cells >= 1 && c->n_cells <= LVR_CALIBRATION_MAX_CELLS);
    for (uint32_t i = 0; i < c->n_cells; i++) {
        const lvr_calibration_cell *cell = &c->cells[i];
        cr_assert(cell->request_bytes <= file_bytes && cell->request_bytes % LVR_FLASH_ALIGN == 0);
        cr_assert(cell->bytes_per_s > 0);
        if (i > 0)
            cr_assert(cell[-1].request_bytes < cell->request_bytes ||
                      (cell[-1].request_bytes == cell->request_bytes && cell[-1].depth < cell->depth));
        chosen |= cell->request_bytes == c->request_bytes && cell->depth == c->depth;
    }
    cr_assert(chosen);
    cr_assert(c->first_bytes_per_s > 0);
    cr_assert(strlen(c->kernel) > 0 && strlen(c->date) == 20 && strlen(c->engine) > 0);
}

Test(flash_calibration, a_file_is_measured, .timeout = 60)
{
    /* The end of the file lies on no block, and the smallest file has one request. */
    static const uint64_t sizes[] = {LVR_CALIBRATION_MIN_BYTES, 3 * MIB + 777, 20 * MIB};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const struct place p = make_place(sizes[i]);
        lvr_flash_calibration c;
        lvr_error err = LVR_ERROR_INIT;
        cr_assert_eq(lvr_flash_calibrate(p.file, NULL, &c, &err), LVR_OK, "%s", err.msg);
        check_calibration(&c, sizes[i]);
        drop_place(&p);
    }
}

Test(flash_calibration, what_cannot_be_measured_is_refused)
{
    const struct place p = make_place(LVR_CALIBRATION_MIN_BYTES - 1);
    atomic_bool cancel = true;
    lvr_flash_calibration c, before;
    memset(&c, 0x5a, sizeof c);
    memcpy(&before, &c, sizeof c);
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_flash_calibrate(p.file, NULL, &c, &err), LVR_ERR_USAGE);
    cr_assert_eq(lvr_flash_calibrate(p.dir, NULL, &c, &err), LVR_ERR_USAGE);
    cr_assert_eq(lvr_flash_calibrate("./no-such-file", NULL, &c, &err), LVR_ERR_IO);
    cr_assert_eq(truncate(p.file, (off_t)(2 * MIB)), 0);
    cr_assert_eq(lvr_flash_calibrate(p.file, &cancel, &c, &err), LVR_ERR_INTERRUPTED);
    cr_assert_eq(memcmp(&c, &before, sizeof c), 0);
    drop_place(&p);
}

/* ---- keeping ---- */

static void expect_same(const lvr_flash_calibration *a, const lvr_flash_calibration *b)
{
    cr_assert_eq(a->request_bytes, b->request_bytes);
    cr_assert_eq(a->depth, b->depth);
    cr_assert(a->bytes_per_s == b->bytes_per_s && a->first_bytes_per_s == b->first_bytes_per_s);
    cr_assert_str_eq(a->engine, b->engine);
    cr_assert_str_eq(a->kernel, b->kernel);
    cr_assert_str_eq(a->date, b->date);
    cr_assert_eq(a->direct, b->direct);
    cr_assert_eq(a->n_cells, b->n_cells);
    for (uint32_t i = 0; i < a->n_cells; i++)
        cr_assert(a->cells[i].request_bytes == b->cells[i].request_bytes &&
                  a->cells[i].depth == b->cells[i].depth &&
                  a->cells[i].bytes_per_s == b->cells[i].bytes_per_s);
}

Test(flash_calibration, what_is_kept_is_found_again)
{
    const struct place p = make_place(MIB);
    char deep[160], kept[512];
    const lvr_flash_calibration c = made_up();
    lvr_flash_calibration found;
    lvr_log_set_sink(count_notices, LVR_LOG_DEBUG, NULL);
    cr_assert(!lvr_flash_calibration_load(p.file, &found), "nothing is kept yet");
    cr_assert_eq(n_notices, 0, "which is nothing to talk about");
    cr_assert(lvr_flash_calibration_save(p.file, &c));
    cr_assert(find_kept(&p, kept, sizeof kept));
    cr_assert(lvr_flash_calibration_load(p.file, &found));
    expect_same(&c, &found);
    cr_assert(lvr_flash_calibration_load(p.dir, &found), "any file of the same file system");
    snprintf(deep, sizeof deep, "%s/a", p.dir);
    setenv("LVR_CACHE_DIR", deep, 1);
    cr_assert(!lvr_flash_calibration_load(p.file, &found));
    cr_assert(lvr_flash_calibration_save(p.file, &c), "folders are made");
    cr_assert(lvr_flash_calibration_load(p.file, &found));
    cr_assert_eq(n_notices, 0);
    const char *name = strrchr(kept, '/');
    char second[700];
    snprintf(second, sizeof second, "%s%s", deep, name);
    unlink(second);
    rmdir(deep);
    drop_place(&p);
}

Test(flash_calibration, another_file_system_has_its_own)
{
    const struct place p = make_place(MIB);
    struct stat here, there;
    lvr_flash_calibration c = made_up(), found;
    if (stat("/dev/shm", &there) != 0 || stat(p.dir, &here) != 0 || here.st_dev == there.st_dev)
        cr_skip_test("no second file system");
    cr_assert(lvr_flash_calibration_save(p.file, &c));
    cr_assert(!lvr_flash_calibration_load("/dev/shm", &found));
    c.direct = false;
    lvr_log_set_sink(count_notices, LVR_LOG_DEBUG, NULL);
    cr_assert(!lvr_flash_calibration_save(p.file, &c), "the page cache's rates are not the device's");
    cr_assert_eq(n_notices, 1);
    drop_place(&p);
}

static void write_kept(const char *path, const char *text, size_t n)
{
    cr_assert_eq(lvr_write_file_atomic(path, text, n, NULL), LVR_OK);
}

/* Replaces the first `from` in the kept file. */
static void check_edited(const struct place *p, const char *kept, const char *text, const char *from,
                         const char *to)
{
    lvr_flash_calibration found;
    const char *at = strstr(text, from);
    lvr_buf edited = LVR_BUF_INIT;
    cr_assert(at, "%s", from);
    lvr_buf_append(&edited, text, (size_t)(at - text));
    lvr_buf_puts(&edited, to);
    lvr_buf_puts(&edited, at + strlen(from));
    write_kept(kept, edited.data, edited.len);
    lvr_buf_free(&edited);
    n_notices = 0;
    cr_assert(!lvr_flash_calibration_load(p->file, &found), "'%s' became '%s'", from, to);
    cr_assert_eq(n_notices, 1);
}

Test(flash_calibration, what_is_damaged_or_foreign_is_passed_over_with_a_notice)
{
    static const char *const edits[][2] = {
        {"version: 1", "version: 2"},
        {"version: 1", "versio: 1"},
        {"version: 1", "[version: 1"},
        {"device: ", "device: x"},
        {"file_system: ", "file_system: x"},
        {"file_system_id: ", "file_system_id: 0"},
        {"date: ", "more: 1\ndate: "},
        {"engine: ", "engines: "},
        {"engine: uring", "engine: floppy"},
        {"engine: uring", "engine: \"ur\\x1b[2Jing\""},
        {"kernel: ", "kernel: \"\\x07\" # "},
        {"\nrequest_bytes: 262144", "\nrequest_bytes: 262145"},
        {"\nrequest_bytes: 262144", "\nrequest_bytes: 33554432"},
        {"\nrequest_bytes: 262144", "\nrequest_bytes: 0"},
        {"\ndepth: 8", "\ndepth: 65"},
        {"\ndepth: 8", "\ndepth: -1"},
        {"\nbytes_per_s: ", "\nbytes_per_s: -"},
        {"\nbytes_per_s: ", "\nbytes_per_s: 0 # "},
        {"\n  bytes_per_s: [", "\n  bytes_per_s: [0."},
        {"262144, 262144,", "262144,"},
        {"[262144,", "[1,"},
        {"[262144,", "[262145,"},
        {"[262144,", "[33554432,"},
        {"16777216]", "16777215]"},
        {", 16777216, ", ", 16773121, "},
    };
    const struct place p = make_place(MIB);
    const lvr_flash_calibration c = made_up();
    char kept[512];
    lvr_buf text = LVR_BUF_INIT;
    lvr_log_set_sink(count_notices, LVR_LOG_DEBUG, NULL);
    cr_assert(lvr_flash_calibration_save(p.file, &c));
    cr_assert(find_kept(&p, kept, sizeof kept));
    cr_assert_eq(lvr_read_file(kept, MIB, &text, NULL), LVR_OK);
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++)
        check_edited(&p, kept, text.data, edits[i][0], edits[i][1]);
    write_kept(kept, "", 0);
    lvr_flash_calibration found;
    cr_assert(!lvr_flash_calibration_load(p.file, &found));
    lvr_buf_free(&text);
    drop_place(&p);
}

static void expect_usable_cells(const lvr_flash_calibration *c)
{
    cr_assert(c->n_cells >= 1 && c->n_cells <= LVR_CALIBRATION_MAX_CELLS);
    for (uint32_t i = 0; i < c->n_cells; i++) {
        const lvr_calibration_cell *cell = &c->cells[i];
        cr_assert(cell->request_bytes > 0 && cell->request_bytes <= 16 * MIB &&
                      cell->request_bytes % LVR_FLASH_ALIGN == 0,
                  "cell %u: %" PRIu64, i, cell->request_bytes);
        cr_assert(cell->depth >= 1 && cell->depth <= LVR_FLASH_MAX_DEPTH, "cell %u: %u", i, cell->depth);
        cr_assert(cell->bytes_per_s >= 0 && isfinite(cell->bytes_per_s), "cell %u", i);
    }
}

/* Random bytes anywhere: passed over, or a calibration that can be used. */
Test(flash_calibration, damage_never_gets_through, .timeout = 60)
{
    const struct place p = make_place(MIB);
    const lvr_flash_calibration c = made_up();
    char kept[512];
    lvr_buf text = LVR_BUF_INIT;
    lvr_rng rng;
    cr_assert(lvr_flash_calibration_save(p.file, &c));
    cr_assert(find_kept(&p, kept, sizeof kept));
    cr_assert_eq(lvr_read_file(kept, MIB, &text, NULL), LVR_OK);
    char *damaged = malloc(text.len);
    cr_assert(damaged);
    lvr_rng_init(&rng, 10, "flash-calibration-test");
    for (int round = 0; round < 1500; round++) {
        lvr_flash_calibration found;
        memcpy(damaged, text.data, text.len);
        for (uint64_t k = 1 + lvr_rng_below(&rng, 4); k-- > 0;)
            damaged[lvr_rng_below(&rng, text.len)] = (char)lvr_rng_below(&rng, 256);
        write_kept(kept, damaged, round % 8 ? text.len : lvr_rng_below(&rng, text.len));
        if (!lvr_flash_calibration_load(p.file, &found))
            continue;
        cr_assert(found.request_bytes > 0 && found.request_bytes <= 16 * MIB &&
                  found.request_bytes % LVR_FLASH_ALIGN == 0);
        cr_assert(found.depth >= 1 && found.depth <= LVR_FLASH_MAX_DEPTH);
        expect_usable_cells(&found);
    }
    free(damaged);
    lvr_buf_free(&text);
    drop_place(&p);
}

Test(flash_calibration, an_unwritable_place_costs_a_notice)
{
    const struct place p = make_place(MIB);
    const lvr_flash_calibration c = made_up();
    lvr_flash_calibration found;
    lvr_log_set_sink(count_notices, LVR_LOG_DEBUG, NULL);
    setenv("LVR_CACHE_DIR", p.file, 1); /* a file where a folder is expected */
    cr_assert(!lvr_flash_calibration_save(p.file, &c));
    cr_assert_eq(n_notices, 1);
    cr_assert(!lvr_flash_calibration_load(p.file, &found));
    unsetenv("LVR_CACHE_DIR");
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    cr_assert(!lvr_flash_calibration_save(p.file, &c));
    cr_assert(!lvr_flash_calibration_load(p.file, &found));
    cr_assert_eq(n_notices, 2);
    drop_place(&p);
}

/* ---- the page cache ---- */

static void evict(const char *path)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    cr_assert(fd >= 0);
    fsync(fd);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
}

static double share(const char *path, uint64_t offset, uint64_t bytes)
{
    double ret = -1;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_page_cache_share(path, offset, bytes, &ret, &err), LVR_OK, "%s", err.msg);
    cr_assert(ret >= 0 && ret <= 1);
    return ret;
}

/* From here on this process has the kernel of before Linux 6.5: cachestat(2), whose number is 451 on every
 * machine that this test runs on, is not there. */
static void forget_cachestat(void)
{
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 451, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {.len = sizeof rules / sizeof *rules, .filter = rules};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        cr_skip_test("no system call can be filtered here");
    cr_assert(syscall(451, -1, NULL, NULL, 0) == -1 && errno == ENOSYS);
}

static void look_into_the_page_cache(void)
{
    const struct place p = make_place(8 * MIB);
    char byte;
    evict(p.file);
    if (share(p.file, 0, 8 * MIB) > 0)
        cr_skip_test("this file system keeps pages that nobody wants");
    const int fd = open(p.file, O_RDONLY | O_CLOEXEC);
    cr_assert(fd >= 0);
    posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM); /* no reading ahead */
    cr_assert_eq(pread(fd, &byte, 1, (off_t)MIB), 1);
    cr_assert_eq(share(p.file, 0, MIB), 0);
    cr_assert_float_eq(share(p.file, 0, 2 * MIB), 1 / 512.0, 1e-9);
    cr_assert_eq(share(p.file, MIB, 4096), 1);
    cr_assert_eq(share(p.file, MIB + 100, 100), 1, "parts of a page count as the page");
    close(fd);
    lvr_buf all = LVR_BUF_INIT;
    cr_assert_eq(lvr_read_file(p.file, 8 * MIB, &all, NULL), LVR_OK);
    lvr_buf_free(&all);
    cr_assert_eq(share(p.file, 0, 8 * MIB), 1);
    cr_assert_float_eq(share(p.file, 0, 16 * MIB), 0.5, 1e-9, "nothing is cached past the end");
    drop_place(&p);
}

Test(flash_calibration, the_page_cache_is_looked_into)
{
    look_into_the_page_cache();
}

Test(flash_calibration, the_page_cache_is_looked_into_on_an_older_kernel)
{
    forget_cachestat();
    look_into_the_page_cache();
}

Test(flash_calibration, many_windows_of_the_page_cache)
{
    forget_cachestat();
    const struct place p = make_place(MIB);
    cr_assert_eq(truncate(p.file, (off_t)(200 * MIB)), 0); /* a hole: nothing to cache */
    const double all = share(p.file, 0, 200 * MIB);
    cr_assert(all <= 1 / 200.0 + 1e-9, "%g", all);
    drop_place(&p);
}

Test(flash_calibration, questions_to_the_page_cache_that_have_no_answer)
{
    const struct place p = make_place(MIB);
    double ret = 7;
    cr_assert_eq(lvr_page_cache_share("./no-such-file", 0, 1, &ret, NULL), LVR_ERR_IO);
    cr_assert_eq(lvr_page_cache_share(p.dir, 0, 1, &ret, NULL), LVR_ERR_UNSUPPORTED);
    cr_assert_eq(lvr_page_cache_share(p.file, 0, 0, &ret, NULL), LVR_ERR_INVARIANT);
    cr_assert_eq(lvr_page_cache_share(p.file, UINT64_MAX, 2, &ret, NULL), LVR_ERR_INVARIANT);
    cr_assert_eq(ret, 7);
    drop_place(&p);
}

Test(flash_calibration, ways_of_reading_have_names)
{
    cr_assert_str_eq(lvr_read_path_name(lvr_read_path_of(true, 1)), "direct");
    cr_assert_str_eq(lvr_read_path_name(lvr_read_path_of(false, 0.49)), "buffered");
    cr_assert_str_eq(lvr_read_path_name(lvr_read_path_of(false, 0.5)), "cached");
    cr_assert_str_eq(lvr_read_path_name(lvr_read_path_of(false, (double)NAN)), "buffered");
}
