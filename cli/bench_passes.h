/* Timing whole passes of a resident model by row count and threads, beside the rate at which this machine
 * reads its DRAM; or what is left of the speed beside busy processes. */
#ifndef LVR_CLI_BENCH_PASSES_H
#define LVR_CLI_BENCH_PASSES_H

#include "cli/bench.h"

typedef struct lvr_bench_passes_plan {
    const char *model; /* a GGUF or a pack */
    lvr_bench_list rows, threads;
    lvr_cpu_level level;
    const char *accel; /* runs the layers; NULL: the threads do */
    uint32_t context;  /* positions already in the cache */
    lvr_kv_type kv_type;
    uint32_t busy;         /* processes beside which speed is measured; 0: times of passes */
    uint64_t stream_bytes; /* buffer for the DRAM rate; 0: not measured, as with busy */
} lvr_bench_passes_plan;

typedef struct lvr_bench_window {
    double tokens_per_s, processors; /* CPU time by wall time */
} lvr_bench_window;

/* One row count with one thread count. */
typedef struct lvr_bench_pass {
    uint32_t rows, threads;
    double ns, layers_ns, heads_ns; /* least; embeddings belong to layers, and heads are of every row */
    double ns_median, layers_ns_median, heads_ns_median;
    double ratio, layers_ratio;     /* to one row with the same threads; NaN: not measured */
    double stream_bytes_per_s;      /* by so many threads; 0: not measured */
    double weights_bytes_per_s;     /* of a pass of one row, its head included; NaN: more rows */
    lvr_bench_window alone, beside; /* medians; with busy, and only then */
    double kept;                    /* the ratio of their tokens/s */
} lvr_bench_pass;

typedef struct lvr_bench_passes {
    bool synthetic;
    double weight_bytes;              /* that a pass reads */
    char accel[16], accel_engine[48]; /* empty: none */
    lvr_bench_pass *results;          /* [n]: by thread count, then by rows */
    uint32_t n;
} lvr_bench_passes;

/* LVR_ERR_INTERRUPTED after SIGINT or SIGTERM. */
lvr_status lvr_bench_passes_run(const lvr_bench_passes_plan *plan, lvr_bench_passes *ret, lvr_error *err);
void lvr_bench_passes_free(lvr_bench_passes *p);
/* What a scheduler that treats all threads alike leaves to `threads` of them beside `busy` others, as a part
 * of what they have alone. */
double lvr_bench_fair_share(uint32_t threads, uint32_t busy);

#endif
