/* lever doctor: what this machine has of what lever needs, and how to mend what is missing. */
#include "cli/bench.h"
#include "cli/cli.h"
#include "common/fs.h"
#include "common/json.h"
#include "common/membw.h"
#include "common/rng.h"
#include "common/threads.h"
#include "engine/flash/flash.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)
#define MAX_PROC_BYTES (UINT64_C(1) << 20)
#define REQUEST_BYTES MIB
#define READ_DEPTH 4u
#define MAX_READ_BYTES (512 * MIB)
#define MAX_PROBLEMS 12u
#define DRAM_SWEEPS 4u

typedef struct doctor_options {
    const char *file, *dir;
    uint64_t size;
    bool json;
} doctor_options;

#define FIELD(f) offsetof(doctor_options, f)

static const lvr_param table[] = {
    {.name = "file",
     .type = LVR_PARAM_STR,
     .offset = FIELD(file),
     .def = NAN,
     .help = "measure the flash by reading this file, e.g. a model"},
    {.name = "dir",
     .type = LVR_PARAM_STR,
     .offset = FIELD(dir),
     .def = NAN,
     .help = "measure it with a temporary file in this directory"},
    {.name = "size",
     .type = LVR_PARAM_SIZE,
     .offset = FIELD(size),
     .min = (double)(16 * MIB),
     .max = (double)(64 * GIB),
     .def = (double)(256 * MIB),
     .unit = "bytes",
     .help = "size of that temporary file"},
    {.name = "json",
     .type = LVR_PARAM_BOOL,
     .offset = FIELD(json),
     .max = 1,
     .help = "JSON on standard output"},
};

#define N_PARAMS (sizeof table / sizeof *table)

/* ---- what was found ---- */

typedef struct problem {
    char what[LVR_ERROR_MSG_BYTES];
    const char *mend; /* NULL: said in `what` */
} problem;

typedef struct flash_findings {
    bool measured;
    const char *path;
    char file_system[32];
    bool direct;
    double first_bytes_per_s, warm_bytes_per_s;
    uint64_t request_bytes;
} flash_findings;

typedef struct findings {
    char cpu_flags[512];
    lvr_cpu_level level;
    uint32_t cores;
    uint64_t dram_bytes, available_bytes, swap_bytes;
    uint64_t cgroup_bytes; /* 0: no limit */
    uint32_t cgroup_version;
    double dram_one_bytes_per_s, dram_all_bytes_per_s; /* read by one thread, by all cores; 0: not measured */
    bool has_uring;
    flash_findings flash;
    uint32_t n_problems;
    problem problems[MAX_PROBLEMS];
} findings;

static void add_problem(findings *f, const char *what, const char *mend)
{
    if (f->n_problems == MAX_PROBLEMS)
        return;
    problem *p = &f->problems[f->n_problems++];
    const size_t n = strnlen(what, sizeof p->what - 1);
    memcpy(p->what, what, n);
    p->what[n] = '\0';
    p->mend = mend;
}

/* ---- processor and memory ---- */

static void look_at_cpu(findings *f)
{
    lvr_cpu_flags_text(f->cpu_flags, sizeof f->cpu_flags);
    f->level = lvr_cpu_best();
    f->cores = lvr_processors();
    if (f->level == LVR_CPU_C)
        add_problem(
            f, "cpu: no SIMD level this build has kernels for; compute runs portable C, many times slower",
            "use a machine with AVX2, FMA and F16C");
    if (lvr_cpu_note())
        add_problem(f, lvr_cpu_note(), "results are right without it; report the machine if it should work");
}

/* A level counts as there only after its products have been compared with the reference's. */
static const char *matrix_unit(const findings *f)
{
    const char *note = lvr_cpu_note();
    if (lvr_cpu_has(LVR_CPU_AMX))
        return "amx-int8, self-test passed; lever run --accel matrix uses it";
    if (strstr(f->cpu_flags, "amx-int8"))
        return note ? note : "amx-int8 is there, but this build does not use it";
    return "none; lever run --accel matrix computes on the CPU instead";
}

static bool read_text(const char *path, lvr_buf *ret)
{
    lvr_buf text = LVR_BUF_INIT;
    if (lvr_read_file(path, MAX_PROC_BYTES, &text, NULL) == LVR_OK && text.data) {
        *ret = text;
        return true;
    }
    lvr_buf_free(&text);
    return false;
}

/* "Key:   123 kB" of /proc/meminfo, in bytes; 0 if absent. */
static uint64_t meminfo_bytes(const char *text, const char *key)
{
    const size_t n = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, n) == 0 && line[n] == ':')
            return strtoull(line + n + 1, NULL, 10) * 1024;
    }
    return 0;
}

static void look_at_memory(findings *f)
{
    lvr_buf text;
    if (!read_text("/proc/meminfo", &text)) {
        add_problem(f, "memory: /proc/meminfo cannot be read",
                    "mount /proc; until then give --dram-budget yourself");
        return;
    }
    f->dram_bytes = meminfo_bytes(text.data, "MemTotal");
    f->available_bytes = meminfo_bytes(text.data, "MemAvailable");
    f->swap_bytes = meminfo_bytes(text.data, "SwapTotal");
    lvr_buf_free(&text);
    if (f->swap_bytes > 0)
        add_problem(f, "swap: resident weights may be swapped out under pressure, and timings then lie",
                    "swapoff -a while measuring, or set vm.swappiness=0");
}

/* The limit in one file, 0 if there is none ("max" in version 2, a huge number in version 1). */
static uint64_t limit_in(const char *path)
{
    lvr_buf text;
    if (!read_text(path, &text))
        return 0;
    char *end;
    const uint64_t bytes = strtoull(text.data, &end, 10);
    const bool is_number = end != text.data;
    lvr_buf_free(&text);
    return is_number && bytes < INT64_MAX / 2 ? bytes : 0;
}

static void take_limit(findings *f, uint64_t bytes, uint32_t version)
{
    if (bytes == 0 || (f->cgroup_bytes != 0 && f->cgroup_bytes <= bytes))
        return;
    f->cgroup_bytes = bytes;
    f->cgroup_version = version;
}

/* Limits of parents bind too. In a container the group's path may not exist below the mount: the walk ends at
 * its root. */
static void walk_group(findings *f, const char *mount, const char *group, const char *file, uint32_t version)
{
    char path[4096];
    size_t n = strlen(group);
    for (;;) {
        const int len = snprintf(path, sizeof path, "%s%.*s/%s", mount, (int)n, group, file);
        if (len > 0 && (size_t)len < sizeof path)
            take_limit(f, limit_in(path), version);
        while (n > 0 && group[n - 1] != '/')
            n--;
        if (n == 0)
            return;
        n--;
    }
}

static bool has_word(const char *list, size_t n, const char *word)
{
    const size_t len = strlen(word);
    for (size_t at = 0; at + len <= n; at++)
        if (strncmp(list + at, word, len) == 0 && (at == 0 || list[at - 1] == ',') &&
            (at + len == n || list[at + len] == ','))
            return true;
    return false;
}

/* A line of /proc/self/cgroup is id:controllers:path; version 2 has id 0 and no controllers. */
static void look_at_group(findings *f, char *line)
{
    char *controllers = strchr(line, ':');
    char *path = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!path)
        return;
    controllers++;
    const size_t n = (size_t)(path - controllers);
    if (n == 0) {
        walk_group(f, "/sys/fs/cgroup", path + 1, "memory.max", 2);
        walk_group(f, "/sys/fs/cgroup/unified", path + 1, "memory.max", 2);
    } else if (has_word(controllers, n, "memory")) {
        walk_group(f, "/sys/fs/cgroup/memory", path + 1, "memory.limit_in_bytes", 1);
    }
}

static void look_at_cgroup(findings *f)
{
    lvr_buf text;
    if (!read_text("/proc/self/cgroup", &text))
        return;
    char *rest = NULL;
    for (char *line = strtok_r(text.data, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        look_at_group(f, line);
    lvr_buf_free(&text);
    if (f->cgroup_bytes >= f->dram_bytes && f->dram_bytes != 0)
        f->cgroup_bytes = 0;
    if (f->cgroup_bytes != 0)
        add_problem(
            f, "cgroup: this process may use less memory than the machine has; more is an out-of-memory kill",
            "keep --dram-budget below the limit, or raise it");
}

static double best_read_rate(lvr_membw *m, uint32_t threads)
{
    lvr_pool *pool = NULL;
    double best = 0;
    if (lvr_pool_new(threads, &pool, NULL) != LVR_OK)
        return 0;
    for (uint32_t i = 0; i < DRAM_SWEEPS; i++) {
        const double rate = lvr_membw_read(m, pool);
        best = rate > best ? rate : best;
    }
    lvr_pool_free(pool);
    return best;
}

/* Where memory is short the rate stays unknown: a doctor does not make things worse. */
static void measure_memory(findings *f)
{
    const uint64_t free_bytes =
        f->cgroup_bytes && f->cgroup_bytes < f->available_bytes ? f->cgroup_bytes : f->available_bytes;
    lvr_membw *m = NULL;
    if (free_bytes / 4 < LVR_MEMBW_BYTES || lvr_membw_new(LVR_MEMBW_BYTES, &m, NULL) != LVR_OK)
        return;
    const uint32_t cores = f->cores < LVR_POOL_MAX_THREADS ? f->cores : LVR_POOL_MAX_THREADS;
    f->dram_one_bytes_per_s = best_read_rate(m, 1);
    f->dram_all_bytes_per_s = best_read_rate(m, cores ? cores : 1);
    lvr_membw_free(m);
}

/* ---- flash ---- */

static void look_at_uring(findings *f)
{
    lvr_error err = LVR_ERROR_INIT;
    f->has_uring = lvr_flash_probe_engine(LVR_FLASH_URING, &err) == LVR_OK;
    if (!f->has_uring)
        add_problem(f, err.msg, NULL);
}

static const struct {
    unsigned long magic;
    const char *name;
} file_systems[] = {
    {EXT4_SUPER_MAGIC, "ext4"}, {XFS_SUPER_MAGIC, "xfs"},     {BTRFS_SUPER_MAGIC, "btrfs"},
    {F2FS_SUPER_MAGIC, "f2fs"}, {TMPFS_MAGIC, "tmpfs"},       {OVERLAYFS_SUPER_MAGIC, "overlay"},
    {NFS_SUPER_MAGIC, "nfs"},   {FUSE_SUPER_MAGIC, "fuse"},   {V9FS_MAGIC, "9p"},
    {0x2fc12fc1UL, "zfs"},      {SQUASHFS_MAGIC, "squashfs"}, {ECRYPTFS_SUPER_MAGIC, "ecryptfs"},
};

static bool find_file_system(const char *path, char *ret, size_t n)
{
    struct statfs st;
    if (statfs(path, &st) != 0)
        return false;
    const unsigned long magic = (unsigned long)st.f_type & 0xffffffffUL;
    for (size_t i = 0; i < sizeof file_systems / sizeof *file_systems; i++)
        if (file_systems[i].magic == magic) {
            snprintf(ret, n, "%s", file_systems[i].name);
            return magic == TMPFS_MAGIC;
        }
    snprintf(ret, n, "0x%lx", magic);
    return false;
}

/* Clean pages of the file would make a buffered read a memory copy. */
static void evict(const char *path)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
}

static lvr_status measure_flash(const char *path, uint64_t file_bytes, findings *f, lvr_error *err)
{
    flash_findings fl = {.measured = true, .path = path, .request_bytes = REQUEST_BYTES};
    const uint64_t bytes = file_bytes < MAX_READ_BYTES ? file_bytes : MAX_READ_BYTES;
    if (bytes < REQUEST_BYTES)
        return lvr_fail(err, LVR_ERR_USAGE,
                        "%s: expected a file of at least 1 MiB to measure with, found %" PRIu64
                        " bytes; give a larger one, or --dir",
                        path, file_bytes);
    const bool in_memory = find_file_system(path, fl.file_system, sizeof fl.file_system);
    evict(path);
    lvr_status status = lvr_flash_read_rate(path, false, 0, bytes, REQUEST_BYTES, READ_DEPTH,
                                            &fl.first_bytes_per_s, &fl.direct, err);
    if (status == LVR_OK)
        status = lvr_bench_check_cancel(err);
    if (status == LVR_OK)
        status = lvr_flash_read_rate(path, false, 0, bytes, REQUEST_BYTES, READ_DEPTH, &fl.warm_bytes_per_s,
                                     &fl.direct, err);
    if (status != LVR_OK)
        return status;
    f->flash = fl;
    if (!fl.direct)
        add_problem(f,
                    "O_DIRECT: the file system refuses it; reads go through the page cache and weights are "
                    "held twice",
                    "keep models on ext4, xfs or f2fs");
    if (in_memory)
        add_problem(f, "flash: the file is on tmpfs, that is in DRAM; its rate says nothing about flash",
                    "give --file or --dir on the device to measure");
    return LVR_OK;
}

static lvr_status write_random(int fd, const char *path, uint64_t bytes, lvr_error *err)
{
    uint64_t *block = malloc(MIB);
    if (!block)
        return lvr_fail(err, LVR_ERR_NOMEM, "doctor: out of memory for 1 MiB");
    lvr_rng rng;
    lvr_rng_init(&rng, 0, "doctor");
    lvr_status status = LVR_OK;
    for (uint64_t at = 0; at < bytes && status == LVR_OK; at += MIB) {
        for (size_t i = 0; i < MIB / sizeof *block; i++)
            block[i] = lvr_rng_u64(&rng);
        status = lvr_bench_check_cancel(err);
        if (status == LVR_OK)
            status = lvr_pwrite_all(fd, block, MIB, at, path, err);
    }
    free(block);
    if (status == LVR_OK && fsync(fd) != 0)
        return lvr_fail_errno(err, errno, "%s: cannot write", path);
    return status;
}

static lvr_status measure_in_dir(const doctor_options *o, findings *f, lvr_error *err)
{
    char path[4096];
    const int len = snprintf(path, sizeof path, "%s/lever-doctor.XXXXXX", o->dir);
    if (len < 0 || (size_t)len >= sizeof path)
        return lvr_fail(err, LVR_ERR_USAGE, "--dir: the path is longer than %zu bytes", sizeof path);
    const int fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0)
        return lvr_fail_errno(err, errno, "--dir %s: cannot make a temporary file", o->dir);
    const uint64_t bytes = o->size / MIB * MIB;
    lvr_status status = write_random(fd, path, bytes, err);
    close(fd);
    if (status == LVR_OK)
        status = measure_flash(path, bytes, f, err);
    unlink(path);
    f->flash.path = o->dir;
    return status;
}

static lvr_status look_at_flash(const doctor_options *o, findings *f, lvr_error *err)
{
    struct stat st;
    if (o->file && o->dir)
        return lvr_fail(err, LVR_ERR_USAGE, "--file and --dir: give one of them");
    if (o->dir)
        return measure_in_dir(o, f, err);
    if (!o->file)
        return LVR_OK;
    if (stat(o->file, &st) != 0)
        return lvr_fail_errno(err, errno, "--file %s", o->file);
    if (!S_ISREG(st.st_mode))
        return lvr_fail(err, LVR_ERR_USAGE, "--file %s: expected a regular file", o->file);
    return measure_flash(o->file, (uint64_t)st.st_size, f, err);
}

/* ---- the report ---- */

static double gib(uint64_t bytes)
{
    return (double)bytes / (double)GIB;
}

static void text_flash(const flash_findings *fl, lvr_buf *out)
{
    if (!fl->measured) {
        lvr_buf_puts(out,
                     "flash rate  not measured; give --file MODEL, or --dir to use a temporary file there\n");
        return;
    }
    lvr_buf_printf(out, "flash       %s on %s, O_DIRECT %s\n", fl->path, fl->file_system,
                   fl->direct ? "works" : "refused");
    lvr_buf_printf(
        out,
        "flash rate  first read %.3f GB/s (cold only if nothing has read or written the file lately), warm "
        "%.3f GB/s (1 MiB requests, depth %u)\n",
        fl->first_bytes_per_s / 1e9, fl->warm_bytes_per_s / 1e9, READ_DEPTH);
    lvr_buf_printf(out, "emulation   devices of up to %.3f GB/s can be emulated honestly here\n",
                   LVR_FLASH_MAX_EMULATED_SHARE * fl->warm_bytes_per_s / 1e9);
}

static void text_memory(const findings *f, lvr_buf *out)
{
    lvr_buf_printf(out, "dram        %.1f GiB, %.1f GiB available\n", gib(f->dram_bytes),
                   gib(f->available_bytes));
    if (f->dram_one_bytes_per_s > 0)
        lvr_buf_printf(out, "dram rate   %.2f GB/s read by one thread, %.2f GB/s by all cores\n",
                       f->dram_one_bytes_per_s / 1e9, f->dram_all_bytes_per_s / 1e9);
    else
        lvr_buf_puts(out, "dram rate   not measured: too little memory is free\n");
    if (f->cgroup_bytes)
        lvr_buf_printf(out, "cgroup      memory limit %.2f GiB (version %u)\n", gib(f->cgroup_bytes),
                       f->cgroup_version);
    else
        lvr_buf_puts(out, "cgroup      no memory limit\n");
    if (f->swap_bytes)
        lvr_buf_printf(out, "swap        %.1f GiB\n", gib(f->swap_bytes));
    else
        lvr_buf_puts(out, "swap        none\n");
}

static void report_text(const findings *f, lvr_buf *out)
{
    lvr_buf_printf(out, "cpu         %u cores for this process; %s\n", f->cores,
                   f->cpu_flags[0] ? f->cpu_flags : "no features known to this build");
    lvr_buf_printf(out, "kernels     %s\n", lvr_cpu_level_name(f->level));
    lvr_buf_printf(out, "matrix unit %s\n", matrix_unit(f));
    text_memory(f, out);
    lvr_buf_printf(out, "io_uring    %s\n", f->has_uring ? "works" : "refused");
    text_flash(&f->flash, out);
    lvr_buf_printf(out, "back ends   flash: %spread; accelerators: null, matrix\n",
                   f->has_uring ? "uring, " : "");
    for (uint32_t i = 0; i < f->n_problems; i++) {
        lvr_buf_printf(out, "\n! %s\n", f->problems[i].what);
        if (f->problems[i].mend)
            lvr_buf_printf(out, "  to mend: %s\n", f->problems[i].mend);
    }
}

static void json_flash(const findings *f, lvr_json *j)
{
    const flash_findings *fl = &f->flash;
    lvr_json_object(j, "flash");
    lvr_json_bool(j, "io_uring", f->has_uring);
    lvr_json_bool(j, "measured", fl->measured);
    if (fl->measured) {
        lvr_json_str(j, "path", fl->path);
        lvr_json_str(j, "file_system", fl->file_system);
        lvr_json_bool(j, "direct", fl->direct);
        lvr_json_u64(j, "bytes", fl->request_bytes);
        lvr_json_u64(j, "depth", READ_DEPTH);
        lvr_json_double(j, "first_gbytes_per_s", fl->first_bytes_per_s / 1e9);
        lvr_json_double(j, "warm_gbytes_per_s", fl->warm_bytes_per_s / 1e9);
    }
    lvr_json_end_object(j);
}

static void json_machine(const findings *f, lvr_json *j)
{
    lvr_json_object(j, "cpu");
    lvr_json_u64(j, "cores", f->cores);
    lvr_json_str(j, "flags", f->cpu_flags);
    lvr_json_str(j, "kernels", lvr_cpu_level_name(f->level));
    lvr_json_bool(j, "matrix_unit", lvr_cpu_has(LVR_CPU_AMX));
    lvr_json_str(j, "matrix_unit_note", matrix_unit(f));
    lvr_json_end_object(j);
    lvr_json_object(j, "memory");
    lvr_json_u64(j, "dram_bytes", f->dram_bytes);
    lvr_json_u64(j, "available_bytes", f->available_bytes);
    lvr_json_u64(j, "swap_bytes", f->swap_bytes);
    if (f->dram_one_bytes_per_s > 0) {
        lvr_json_double(j, "read_gbytes_per_s_one_thread", f->dram_one_bytes_per_s / 1e9);
        lvr_json_double(j, "read_gbytes_per_s", f->dram_all_bytes_per_s / 1e9);
    }
    if (f->cgroup_bytes)
        lvr_json_u64(j, "cgroup_limit_bytes", f->cgroup_bytes);
    else
        lvr_json_str(j, "cgroup_limit_bytes", NULL);
    lvr_json_end_object(j);
}

static void report_json(const findings *f, lvr_buf *out)
{
    lvr_json j;
    lvr_json_init(&j, out, true);
    lvr_json_object(&j, NULL);
    json_machine(f, &j);
    json_flash(f, &j);
    lvr_json_object(&j, "back_ends");
    lvr_json_array(&j, "flash");
    if (f->has_uring)
        lvr_json_str(&j, NULL, "uring");
    lvr_json_str(&j, NULL, "pread");
    lvr_json_end_array(&j);
    lvr_json_array(&j, "accelerators");
    lvr_json_str(&j, NULL, "null");
    lvr_json_str(&j, NULL, "matrix");
    lvr_json_end_array(&j);
    lvr_json_end_object(&j);
    lvr_json_array(&j, "problems");
    for (uint32_t i = 0; i < f->n_problems; i++) {
        lvr_json_object(&j, NULL);
        lvr_json_str(&j, "what", f->problems[i].what);
        lvr_json_str(&j, "mend", f->problems[i].mend);
        lvr_json_end_object(&j);
    }
    lvr_json_end_array(&j);
    lvr_json_end_object(&j);
    lvr_buf_puts(out, "\n");
}

lvr_status lvr_cmd_doctor(int argc, char *const *argv, lvr_error *err)
{
    doctor_options o;
    bool help = false;
    lvr_params_default(table, N_PARAMS, &o);
    lvr_status status = lvr_options_parse(table, N_PARAMS, &o, argc, argv, &help, err);
    if (status != LVR_OK)
        return status;
    if (help)
        return lvr_bench_print_help("usage: lever doctor [options]\n\n", table, N_PARAMS, err);
    findings f = {0};
    look_at_cpu(&f);
    look_at_memory(&f);
    look_at_cgroup(&f);
    measure_memory(&f);
    look_at_uring(&f);
    status = look_at_flash(&o, &f, err);
    if (status != LVR_OK)
        return status;
    lvr_buf out = LVR_BUF_INIT;
    if (o.json)
        report_json(&f, &out);
    else
        report_text(&f, &out);
    return lvr_bench_print(&out, err);
}
