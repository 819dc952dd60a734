/* What the `lever bench` subcommands share. */
#ifndef LVR_CLI_BENCH_H
#define LVR_CLI_BENCH_H

#include "common/buf.h"
#include "common/param.h"
#include "common/threads.h"
#include "engine/kernels/kernels.h"
#include <math.h>

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
/* Rows of the option tables that several benchmarks have; `options` is the struct that holds the values. */
#define LVR_BENCH_OPTION_MODEL(options)                                                                      \
    {                                                                                                        \
        .name = "model", .short_name = 'm', .type = LVR_PARAM_STR, .offset = offsetof(options, model),       \
        .def = NAN, .help = "the model: a GGUF or a pack", .positional = true                                \
    }
#define LVR_BENCH_OPTION_THREADS(options)                                                                    \
    {                                                                                                        \
        .name = "threads", .short_name = 't', .type = LVR_PARAM_U32, .offset = offsetof(options, threads),   \
        .min = 1, .max = LVR_POOL_MAX_THREADS, .def = 1, .help = "threads"                                   \
    }
#define LVR_BENCH_OPTION_THREAD_LIST(options)                                                                \
    {                                                                                                        \
        .name = "threads", .short_name = 't', .type = LVR_PARAM_STR, .offset = offsetof(options, threads),   \
        .def = NAN, .def_str = "1", .help = "threads, separated by commas"                                   \
    }
#define LVR_BENCH_OPTION_CONTEXT(options, most)                                                              \
    {                                                                                                        \
        .name = "context", .short_name = 'c', .type = LVR_PARAM_U32, .offset = offsetof(options, context),   \
        .min = 0, .max = most, .def = 0, .unit = "positions", .help = "positions already in the KV cache"    \
    }
#define LVR_BENCH_OPTION_KV_TYPE(options)                                                                    \
    {                                                                                                        \
        .name = "kv-type", .type = LVR_PARAM_ENUM, .offset = offsetof(options, kv_type), .min = 0,           \
        .max = LVR_KV_TYPES - 1, .def = LVR_KV_F16, .choices = lvr_kv_type_names,                            \
        .help = "rows of the KV cache"                                                                       \
    }
#define LVR_BENCH_OPTION_LEVEL(options)                                                                      \
    {                                                                                                        \
        .name = "level", .type = LVR_PARAM_ENUM, .offset = offsetof(options, level), .min = 0,               \
        .max = LVR_CPU_LEVELS, .def = 0, .choices = LVR_BENCH_LEVEL_CHOICES, .help = "SIMD level"            \
    }
#define LVR_BENCH_OPTION_JSON(options)                                                                       \
    {                                                                                                        \
        .name = "json", .type = LVR_PARAM_BOOL, .offset = offsetof(options, json), .max = 1,                 \
        .help = "JSON on standard output"                                                                    \
    }

/* A level that the CPU lacks is LVR_ERR_UNSUPPORTED: a benchmark never falls back in silence. */
lvr_status lvr_bench_level(int choice, lvr_cpu_level *ret, lvr_error *err);

/* Writes `out` to standard output and frees it; says if it could not be built or written. */
lvr_status lvr_bench_print(lvr_buf *out, lvr_error *err);
lvr_status lvr_bench_print_help(const char *usage, const lvr_param *table, size_t n, lvr_error *err);
/* LVR_ERR_INTERRUPTED after SIGINT or SIGTERM. */
lvr_status lvr_bench_check_cancel(lvr_error *err);

#endif
