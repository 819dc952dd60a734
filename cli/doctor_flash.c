/* lever doctor, the flash: does it take direct reads, how fast does it read, and in which requests best. */
#include "cli/bench.h"
#include "cli/cli.h"
#include "cli/doctor.h"
#include "common/fs.h"
#include "common/log.h"
#include "common/rng.h"
#include "engine/flash/flash.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)
#define REQUEST_BYTES MIB
#define READ_DEPTH 4u
#define MAX_READ_BYTES (512 * MIB)
#define KEEP_FILE_BYTES (64 * MIB) /* a smaller file is read too fast to tell request sizes apart */

/* ---- looking ---- */

static void look_at_uring(doctor_findings *f)
{
    lvr_error err = LVR_ERROR_INIT;
    f->flash.has_uring = lvr_flash_probe_engine(LVR_FLASH_URING, &err) == LVR_OK;
    if (!f->flash.has_uring)
        lvr_doctor_add_problem(f, err.msg, NULL);
}

/* A buffer in small pages makes a read of 1 MiB 256 pieces; on virtual disks that was seen to cost up to
 * three quarters of the rate. */
static void look_at_huge_pages(doctor_findings *f)
{
    lvr_buf text = LVR_BUF_INIT;
    if (lvr_read_file("/sys/kernel/mm/transparent_hugepage/enabled", 4096, &text, NULL) == LVR_OK &&
        text.data && strstr(text.data, "[never]"))
        lvr_doctor_add_problem(
            f,
            "huge pages: switched off; buffers are in small pages, into which some devices "
            "read several times slower, and computing is slower too",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled");
    lvr_buf_free(&text);
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

static void add_problems(doctor_findings *f)
{
    if (!f->flash.direct)
        lvr_doctor_add_problem(f,
                               "O_DIRECT: the file system refuses it; reads go through the page cache and "
                               "weights are held twice",
                               "keep models on ext4, xfs or f2fs");
    if (f->flash.file_system.in_memory)
        lvr_doctor_add_problem(
            f, "flash: the file is on tmpfs, that is in DRAM; its rate says nothing about flash",
            "give --file, --flash or --dir on the device to measure");
}

static lvr_status measure(const char *path, uint64_t file_bytes, doctor_findings *f, lvr_error *err)
{
    doctor_flash fl = f->flash;
    const uint64_t bytes = file_bytes < MAX_READ_BYTES ? file_bytes : MAX_READ_BYTES;
    fl.measured = true;
    fl.path = path;
    if (bytes < REQUEST_BYTES)
        return lvr_fail(err, LVR_ERR_USAGE,
                        "%s: expected a file of at least 1 MiB to measure with, found %" PRIu64
                        " bytes; give a larger one, or --dir",
                        path, file_bytes);
    lvr_status status = lvr_file_system_of(path, &fl.file_system, err);
    if (status != LVR_OK)
        return status;
    evict(path);
    status = lvr_flash_read_rate(path, false, 0, bytes, REQUEST_BYTES, READ_DEPTH, &fl.first_bytes_per_s,
                                 &fl.direct, err);
    if (status == LVR_OK)
        status = lvr_bench_check_cancel(err);
    if (status == LVR_OK)
        status = lvr_flash_read_rate(path, false, 0, bytes, REQUEST_BYTES, READ_DEPTH, &fl.warm_bytes_per_s,
                                     &fl.direct, err);
    if (status != LVR_OK)
        return status;
    f->flash = fl;
    add_problems(f);
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

/* Measures the temporary file, which no longer has a name if it can be read without one: then nothing is left
 * of it, however the program ends. */
static lvr_status measure_temporary(int fd, const char *path, uint64_t bytes, doctor_findings *f,
                                    lvr_error *err)
{
    char nameless[32];
    snprintf(nameless, sizeof nameless, "/proc/self/fd/%d", fd);
    const bool unlinked = access(nameless, R_OK) == 0 && unlink(path) == 0;
    lvr_status status = write_random(fd, path, bytes, err);
    if (status == LVR_OK)
        status = measure(unlinked ? nameless : path, bytes, f, err);
    if (!unlinked)
        unlink(path);
    return status;
}

static lvr_status measure_in_dir(const doctor_flash_options *o, doctor_findings *f, lvr_error *err)
{
    char path[4096];
    const int len = snprintf(path, sizeof path, "%s/lever-doctor.XXXXXX", o->dir);
    if (len < 0 || (size_t)len >= sizeof path)
        return lvr_fail(err, LVR_ERR_USAGE, "--dir: the path is longer than %zu bytes", sizeof path);
    const int fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0)
        return lvr_fail_errno(err, errno, "--dir %s: cannot make a temporary file", o->dir);
    const lvr_status status = measure_temporary(fd, path, o->temp_bytes / MIB * MIB, f, err);
    close(fd);
    f->flash.path = o->dir;
    return status;
}

static lvr_status measure_file(const char *option, const char *path, doctor_findings *f, lvr_error *err)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return lvr_fail_errno(err, errno, "--%s %s", option, path);
    if (!S_ISREG(st.st_mode))
        return lvr_fail(err, LVR_ERR_USAGE, "--%s %s: expected a regular file", option, path);
    return measure(path, (uint64_t)st.st_size, f, err);
}

static bool keep(const char *path, const lvr_flash_calibration *c)
{
    struct stat st;
    if (stat(path, &st) == 0 && (uint64_t)st.st_size >= KEEP_FILE_BYTES)
        return lvr_flash_calibration_save(path, c);
    lvr_log(LVR_LOG_INFO,
            "the calibration is not kept: %s is smaller than %" PRIu64
            " MiB, too little to tell how the device reads best; give a larger model",
            path, KEEP_FILE_BYTES / MIB);
    return false;
}

static lvr_status calibrate(const char *path, doctor_flash *fl, lvr_error *err)
{
    const lvr_status status = lvr_flash_calibrate(path, &lvr_cli_cancel, &fl->calibration, err);
    if (status != LVR_OK)
        return status;
    fl->has_calibration = fl->calibrated_now = true;
    fl->kept = keep(path, &fl->calibration);
    return LVR_OK;
}

lvr_status lvr_doctor_look_at_flash(const doctor_flash_options *o, doctor_findings *f, lvr_error *err)
{
    if ((o->file != NULL) + (o->dir != NULL) + (o->calibrate != NULL) > 1)
        return lvr_fail(err, LVR_ERR_USAGE, "--file, --dir and --flash: give one of them");
    look_at_uring(f);
    look_at_huge_pages(f);
    lvr_status status = LVR_OK;
    if (o->dir)
        status = measure_in_dir(o, f, err);
    else if (o->file || o->calibrate)
        status = measure_file(o->file ? "file" : "flash", o->file ? o->file : o->calibrate, f, err);
    if (status != LVR_OK || !f->flash.measured)
        return status;
    if (o->calibrate)
        return calibrate(o->calibrate, &f->flash, err);
    f->flash.has_calibration = f->flash.kept =
        lvr_flash_calibration_load(f->flash.path, &f->flash.calibration);
    return LVR_OK;
}

/* ---- reporting ---- */

static void text_cells(const lvr_flash_calibration *c, lvr_buf *out)
{
    uint64_t row = 0;
    for (uint32_t i = 0; i < c->n_cells; i++) {
        const lvr_calibration_cell *cell = &c->cells[i];
        if (cell->request_bytes != row)
            lvr_buf_printf(out, "%s  %8" PRIu64 " KiB", i > 0 ? "\n" : "", cell->request_bytes >> 10);
        row = cell->request_bytes;
        lvr_buf_printf(out, "   %" PRIu32 ": %.3f", cell->depth, cell->bytes_per_s / 1e9);
    }
    lvr_buf_puts(out, "\n");
}

static void text_calibration(const doctor_flash *fl, lvr_buf *out)
{
    const lvr_flash_calibration *c = &fl->calibration;
    if (!fl->has_calibration) {
        lvr_buf_puts(out, "calibration none for this device yet; lever doctor --flash FILE makes one\n");
        return;
    }
    lvr_buf_printf(
        out, "calibration requests of %" PRIu64 " KiB, depth %" PRIu32 ": %.3f GB/s (%s, kernel %s, %s%s)\n",
        c->request_bytes >> 10, c->depth, c->bytes_per_s / 1e9, c->engine, c->kernel, c->date,
        !fl->kept            ? "; not kept"
        : fl->calibrated_now ? "; kept for later runs"
                             : "; kept from then");
    lvr_buf_puts(out, "  request size   depth: GB/s\n");
    text_cells(c, out);
}

void lvr_doctor_flash_text(const doctor_flash *fl, lvr_buf *out)
{
    lvr_buf_printf(out, "io_uring    %s\n", fl->has_uring ? "works" : "refused");
    if (!fl->measured) {
        lvr_buf_puts(
            out, "flash rate  not measured; give --file MODEL, --flash MODEL to calibrate too, or --dir to "
                 "use a temporary file there\n");
        return;
    }
    lvr_buf_printf(out, "flash       %s on %s, O_DIRECT %s\n", fl->path, fl->file_system.type,
                   fl->direct ? "works" : "refused");
    lvr_buf_printf(
        out,
        "flash rate  first read %.3f GB/s (cold only if nothing has read or written the file lately), warm "
        "%.3f GB/s (1 MiB requests, depth %u)\n",
        fl->first_bytes_per_s / 1e9, fl->warm_bytes_per_s / 1e9, READ_DEPTH);
    lvr_buf_printf(out, "emulation   devices of up to %.3f GB/s can be emulated honestly here\n",
                   LVR_FLASH_MAX_EMULATED_SHARE * fl->warm_bytes_per_s / 1e9);
    text_calibration(fl, out);
}

static void json_calibration(const doctor_flash *fl, lvr_json *j)
{
    const lvr_flash_calibration *c = &fl->calibration;
    if (!fl->has_calibration) {
        lvr_json_str(j, "calibration", NULL);
        return;
    }
    lvr_json_object(j, "calibration");
    lvr_json_bool(j, "measured_now", fl->calibrated_now);
    lvr_json_bool(j, "kept", fl->kept);
    lvr_json_u64(j, "bytes", c->request_bytes);
    lvr_json_u64(j, "depth", c->depth);
    lvr_json_double(j, "gbytes_per_s", c->bytes_per_s / 1e9);
    lvr_json_double(j, "first_gbytes_per_s", c->first_bytes_per_s / 1e9);
    lvr_json_str(j, "engine", c->engine);
    lvr_json_str(j, "kernel", c->kernel);
    lvr_json_str(j, "date", c->date);
    lvr_json_array(j, "cells");
    for (uint32_t i = 0; i < c->n_cells; i++) {
        lvr_json_object(j, NULL);
        lvr_json_u64(j, "bytes", c->cells[i].request_bytes);
        lvr_json_u64(j, "depth", c->cells[i].depth);
        lvr_json_double(j, "gbytes_per_s", c->cells[i].bytes_per_s / 1e9);
        lvr_json_end_object(j);
    }
    lvr_json_end_array(j);
    lvr_json_end_object(j);
}

void lvr_doctor_flash_json(const doctor_flash *fl, lvr_json *j)
{
    lvr_json_object(j, "flash");
    lvr_json_bool(j, "io_uring", fl->has_uring);
    lvr_json_bool(j, "measured", fl->measured);
    if (fl->measured) {
        lvr_json_str(j, "path", fl->path);
        lvr_json_str(j, "file_system", fl->file_system.type);
        lvr_json_bool(j, "direct", fl->direct);
        lvr_json_u64(j, "bytes", REQUEST_BYTES);
        lvr_json_u64(j, "depth", READ_DEPTH);
        lvr_json_double(j, "first_gbytes_per_s", fl->first_bytes_per_s / 1e9);
        lvr_json_double(j, "warm_gbytes_per_s", fl->warm_bytes_per_s / 1e9);
        json_calibration(fl, j);
    }
    lvr_json_end_object(j);
}
