/* lever doctor: what this machine has of what lever needs, and how to mend what is missing. */
#include "cli/bench.h"
#include "cli/cli.h"
#include "cli/doctor.h"
#include "common/json.h"
#include "common/membw.h"
#include "common/memory.h"
#include "common/threads.h"
#include "engine/accel/accel.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)
#define DRAM_SWEEPS 4u

typedef struct doctor_options {
    const char *file, *dir, *flash;
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
    {.name = "flash",
     .type = LVR_PARAM_STR,
     .offset = FIELD(flash),
     .def = NAN,
     .help =
         "as --file, and find the request size and depth that read this device at its full rate (3 s); kept "
         "for later runs if the file has at least 64 MiB"},
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

void lvr_doctor_add_problem(doctor_findings *f, const char *what, const char *mend)
{
    if (f->n_problems == LVR_DOCTOR_MAX_PROBLEMS)
        return;
    doctor_problem *p = &f->problems[f->n_problems++];
    const size_t n = strnlen(what, sizeof p->what - 1);
    memcpy(p->what, what, n);
    p->what[n] = '\0';
    p->mend = mend;
}

/* ---- processor and memory ---- */

static void look_at_cpu(doctor_findings *f)
{
    lvr_cpu_flags_text(f->cpu_flags, sizeof f->cpu_flags);
    f->level = lvr_cpu_best();
    f->cores = lvr_processors();
    if (f->level == LVR_CPU_C)
        lvr_doctor_add_problem(
            f, "cpu: no SIMD level this build has kernels for; compute runs portable C, many times slower",
            "use a machine with AVX2, FMA and F16C");
    if (lvr_cpu_note())
        lvr_doctor_add_problem(f, lvr_cpu_note(),
                               "results are right without it; report the machine if it should work");
}

/* A level counts as there only after its products have been compared with the reference's. */
static const char *matrix_unit(const doctor_findings *f)
{
    const char *note = lvr_cpu_note();
    if (lvr_cpu_has(LVR_CPU_AMX))
        return "amx-int8, self-test passed; lever run --accel matrix uses it";
    if (strstr(f->cpu_flags, "amx-int8"))
        return note ? note : "amx-int8 is there, but this build does not use it";
    return "none; lever run --accel matrix computes on the CPU instead";
}

static void look_at_memory(doctor_findings *f)
{
    lvr_memory_limit m;
    lvr_memory_limit_read("", &m);
    f->dram_bytes = m.machine_bytes;
    f->available_bytes = m.available_bytes;
    f->swap_bytes = m.swap_bytes;
    if (m.machine_bytes == 0)
        lvr_doctor_add_problem(f, "memory: /proc/meminfo cannot be read",
                               "mount /proc; until then give --dram-budget yourself");
    if (m.swap_bytes > 0)
        lvr_doctor_add_problem(
            f, "swap: resident weights may be swapped out under pressure, and timings then lie",
            "swapoff -a while measuring, or set vm.swappiness=0");
    if (m.group_bytes == 0 || (m.machine_bytes != 0 && m.group_bytes >= m.machine_bytes))
        return;
    f->cgroup_bytes = m.group_bytes;
    f->cgroup_version = m.group_version;
    lvr_doctor_add_problem(
        f, "cgroup: this process may use less memory than the machine has; runs that need more are refused",
        "keep within it with --dram-budget auto, or raise the limit");
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
static void measure_memory(doctor_findings *f)
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

/* ---- the report ---- */

static double gib(uint64_t bytes)
{
    return (double)bytes / (double)GIB;
}

static void text_memory(const doctor_findings *f, lvr_buf *out)
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

static void report_text(const doctor_findings *f, lvr_buf *out)
{
    lvr_buf_printf(out, "cpu         %u cores for this process; %s\n", f->cores,
                   f->cpu_flags[0] ? f->cpu_flags : "no features known to this build");
    lvr_buf_printf(out, "kernels     %s\n", lvr_cpu_level_name(f->level));
    lvr_buf_printf(out, "matrix unit %s\n", matrix_unit(f));
    text_memory(f, out);
    lvr_doctor_flash_text(&f->flash, out);
    lvr_buf_printf(out, "back ends   flash: %spread; accelerators: ", f->flash.has_uring ? "uring, " : "");
    for (uint32_t i = 0; i < LVR_ACCEL_BACK_END_COUNT; i++)
        lvr_buf_printf(out, "%s%s", i > 0 ? ", " : "", lvr_accel_choices[1 + i]);
    lvr_buf_puts(out, "\n");
    for (uint32_t i = 0; i < f->n_problems; i++) {
        lvr_buf_printf(out, "\n! %s\n", f->problems[i].what);
        if (f->problems[i].mend)
            lvr_buf_printf(out, "  to mend: %s\n", f->problems[i].mend);
    }
}

static void json_machine(const doctor_findings *f, lvr_json *j)
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

static void report_json(const doctor_findings *f, lvr_buf *out)
{
    lvr_json j;
    lvr_json_init(&j, out, true);
    lvr_json_object(&j, NULL);
    json_machine(f, &j);
    lvr_doctor_flash_json(&f->flash, &j);
    lvr_json_object(&j, "back_ends");
    lvr_json_array(&j, "flash");
    if (f->flash.has_uring)
        lvr_json_str(&j, NULL, "uring");
    lvr_json_str(&j, NULL, "pread");
    lvr_json_end_array(&j);
    lvr_json_array(&j, "accelerators");
    for (uint32_t i = 0; i < LVR_ACCEL_BACK_END_COUNT; i++)
        lvr_json_str(&j, NULL, lvr_accel_choices[1 + i]);
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
    doctor_findings f = {0};
    look_at_cpu(&f);
    look_at_memory(&f);
    measure_memory(&f);
    const doctor_flash_options flash = {
        .file = o.file, .dir = o.dir, .temp_bytes = o.size, .calibrate = o.flash};
    status = lvr_doctor_look_at_flash(&flash, &f, err);
    if (status != LVR_OK)
        return status;
    lvr_buf out = LVR_BUF_INIT;
    if (o.json)
        report_json(&f, &out);
    else
        report_text(&f, &out);
    return lvr_bench_print(&out, err);
}
