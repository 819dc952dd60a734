/* What the `lever bench` subcommands share. */
#ifndef LVR_CLI_BENCH_H
#define LVR_CLI_BENCH_H

#include "common/buf.h"
#include "common/param.h"
#include "engine/kernels/kernels.h"

#define LVR_BENCH_MAX_LIST 64u

typedef struct lvr_bench_list {
    uint32_t n;
    uint32_t values[LVR_BENCH_MAX_LIST];
} lvr_bench_list;

/* "1,2,16": at most LVR_BENCH_MAX_LIST numbers in [1, max]. `option` is named in messages. */
lvr_status lvr_bench_parse_list(const char *option, const char *text, uint32_t max, lvr_bench_list *ret,
                                lvr_error *err);

/* The choices of --level: what the CPU has best, then each level by name, in lvr_cpu_level's order. */
#define LVR_BENCH_LEVEL_CHOICES                                                                              \
    ((const char *const[]){"best", "c", "avx2", "avx512", "amx", "neon", "dotprod", "i8mm", NULL})
/* A level that the CPU lacks is LVR_ERR_UNSUPPORTED: a benchmark never falls back in silence. */
lvr_status lvr_bench_level(int choice, lvr_cpu_level *ret, lvr_error *err);

/* Writes `out` to standard output and frees it; says if it could not be built or written. */
lvr_status lvr_bench_print(lvr_buf *out, lvr_error *err);
lvr_status lvr_bench_print_help(const char *usage, const lvr_param *table, size_t n, lvr_error *err);
/* LVR_ERR_INTERRUPTED after SIGINT or SIGTERM. */
lvr_status lvr_bench_check_cancel(lvr_error *err);

#endif
