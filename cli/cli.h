/* The subcommands of the `lever` program: one file each, no logic of their own. argv[0] is the subcommand's
 * name. Results go to standard output, everything else to standard error. */
#ifndef LVR_CLI_CLI_H
#define LVR_CLI_CLI_H

#include "common/error.h"
#include <stdatomic.h>

lvr_status lvr_cmd_doctor(int argc, char *const *argv, lvr_error *err);
lvr_status lvr_cmd_model(int argc, char *const *argv, lvr_error *err);
lvr_status lvr_cmd_run(int argc, char *const *argv, lvr_error *err);
lvr_status lvr_cmd_record(int argc, char *const *argv, lvr_error *err);
lvr_status lvr_cmd_fit(int argc, char *const *argv, lvr_error *err);
lvr_status lvr_cmd_sim(int argc, char *const *argv, lvr_error *err);
lvr_status lvr_cmd_tune(int argc, char *const *argv, lvr_error *err);
lvr_status lvr_cmd_correlate(int argc, char *const *argv, lvr_error *err);
lvr_status lvr_cmd_trace(int argc, char *const *argv, lvr_error *err);
lvr_status lvr_cmd_bench(int argc, char *const *argv, lvr_error *err);

lvr_status lvr_bench_flash_cmd(int argc, char *const *argv, lvr_error *err);
lvr_status lvr_bench_kernels_cmd(int argc, char *const *argv, lvr_error *err);
lvr_status lvr_bench_accel_cmd(int argc, char *const *argv, lvr_error *err);
lvr_status lvr_bench_model_cmd(int argc, char *const *argv, lvr_error *err);
lvr_status lvr_bench_perplexity_cmd(int argc, char *const *argv, lvr_error *err);
lvr_status lvr_bench_agreement_cmd(int argc, char *const *argv, lvr_error *err);
lvr_status lvr_bench_tokenizer_cmd(int argc, char *const *argv, lvr_error *err);

/* Set by SIGINT/SIGTERM; every long loop looks at it. */
extern atomic_bool lvr_cli_cancel;

#endif
