/* Timing one matrix product: what `lever bench kernels` and the benchmark of tests/kernels print. */
#ifndef LVR_ENGINE_KERNELS_BENCH_H
#define LVR_ENGINE_KERNELS_BENCH_H

#include "common/error.h"
#include "engine/kernels/kernels.h"

/*
 * Nanoseconds of one product [n_out x n_in] x [rows] at `level`, the least of `reps` runs (other work on the
 * machine only ever adds time). Groups are shared among `threads` workers. Quantising the activations is not
 * counted. LVR_ERR_UNSUPPORTED if the CPU does not have the level or the type is unknown, LVR_ERR_USAGE for
 * sizes that are zero or that the type cannot have.
 */
lvr_status lvr_bench_kernels(lvr_wtype type, uint32_t n_out, uint32_t n_in, uint32_t rows, uint32_t threads,
                             lvr_cpu_level level, uint32_t reps, double *ret_ns, lvr_error *err);

#endif
