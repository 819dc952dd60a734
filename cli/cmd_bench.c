/* lever bench: micro-benchmarks and whole passes. */
#include "cli/bench.h"
#include "cli/cli.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

static const char usage[] =
    "usage: lever bench kernels|flash|accel|model|perplexity|agreement|tokenizer [options]\n"
    "\n"
    "  kernels   matrix products by weight type, rows, threads and SIMD level\n"
    "  flash     read rate and latency of the flash by engine, size and depth\n"
    "  accel     an accelerator: layers by row count against the CPU, cost of handing over\n"
    "  model     whole passes of a resident model by row count\n"
    "  perplexity  how well a model predicts a text\n"
    "  agreement   how well a draft foretells its target, and early layers the last\n"
    "  tokenizer   how fast a text becomes tokens\n"
    "\n"
    "`lever bench NAME --help` lists a benchmark's options.\n";

typedef struct bench {
    const char *name;
    lvr_status (*run)(int argc, char *const *argv, lvr_error *err);
} bench;

static const bench benches[] = {
    {"kernels", lvr_bench_kernels_cmd},       {"flash", lvr_bench_flash_cmd},
    {"accel", lvr_bench_accel_cmd},           {"model", lvr_bench_model_cmd},
    {"perplexity", lvr_bench_perplexity_cmd}, {"agreement", lvr_bench_agreement_cmd},
    {"tokenizer", lvr_bench_tokenizer_cmd},
};

#define N_BENCHES (sizeof benches / sizeof *benches)

static lvr_status fail_unknown(const char *name, lvr_error *err)
{
    const char *names[N_BENCHES];
    for (size_t i = 0; i < N_BENCHES; i++)
        names[i] = benches[i].name;
    const char *near = lvr_closest_name(name, names, N_BENCHES);
    return lvr_fail(
        err, LVR_ERR_USAGE,
        "bench: expected kernels, flash, accel, model, perplexity, agreement or tokenizer, found '%s'%s%s%s",
        name, near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

lvr_status lvr_cmd_bench(int argc, char *const *argv, lvr_error *err)
{
    if (argc < 2)
        return lvr_fail(
            err, LVR_ERR_USAGE,
            "bench: say what to measure: kernels, flash, accel, model, perplexity, agreement or tokenizer");
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        lvr_buf out = LVR_BUF_INIT;
        lvr_buf_puts(&out, usage);
        return lvr_bench_print(&out, err);
    }
    for (size_t i = 0; i < N_BENCHES; i++)
        if (strcmp(argv[1], benches[i].name) == 0)
            return benches[i].run(argc - 1, argv + 1, err);
    return fail_unknown(argv[1], err);
}

static lvr_status parse_item(const char *option, const char *item, size_t n, uint32_t max, uint32_t *ret,
                             lvr_error *err)
{
    char text[16];
    uint64_t value = 0;
    if (n > 0 && n < sizeof text) {
        memcpy(text, item, n);
        text[n] = '\0';
        if (lvr_parse_u64(text, &value, NULL) == LVR_OK && value >= 1 && value <= max) {
            *ret = (uint32_t)value;
            return LVR_OK;
        }
    }
    return lvr_fail(err, LVR_ERR_USAGE,
                    "--%s: expected numbers from 1 to %u separated by commas, found '%.*s'", option, max,
                    (int)(n < 40 ? n : 40), item);
}

lvr_status lvr_bench_parse_list(const char *option, const char *text, uint32_t max, lvr_bench_list *ret,
                                lvr_error *err)
{
    lvr_bench_list list = {0};
    for (const char *at = text;; at++) {
        const size_t n = strcspn(at, ",");
        if (list.n == LVR_BENCH_MAX_LIST)
            return lvr_fail(err, LVR_ERR_USAGE, "--%s: more than %u numbers", option, LVR_BENCH_MAX_LIST);
        const lvr_status status = parse_item(option, at, n, max, &list.values[list.n++], err);
        if (status != LVR_OK)
            return status;
        at += n;
        if (*at == '\0')
            break;
    }
    *ret = list;
    return LVR_OK;
}

lvr_status lvr_bench_level(int choice, lvr_cpu_level *ret, lvr_error *err)
{
    const lvr_cpu_level best = lvr_cpu_best();
    const lvr_cpu_level wanted = choice == 0 ? best : (lvr_cpu_level)(choice - 1);
    if (!lvr_cpu_has(wanted))
        return lvr_fail(err, LVR_ERR_UNSUPPORTED, "--level: this machine does not have %s, its best is %s",
                        lvr_cpu_level_name(wanted), lvr_cpu_level_name(best));
    *ret = wanted;
    return LVR_OK;
}

lvr_status lvr_bench_print(lvr_buf *out, lvr_error *err)
{
    lvr_status status = LVR_OK;
    if (out->failed)
        status = lvr_fail(err, LVR_ERR_NOMEM, "bench: out of memory for the results");
    else if (out->len > 0 && (fwrite(out->data, 1, out->len, stdout) != out->len || fflush(stdout) != 0))
        status = lvr_fail_errno(err, errno, "standard output: cannot write");
    lvr_buf_free(out);
    return status;
}

lvr_status lvr_bench_print_help(const char *text, const lvr_param *table, size_t n, lvr_error *err)
{
    lvr_buf out = LVR_BUF_INIT;
    lvr_buf_puts(&out, text);
    lvr_options_help(table, n, &out);
    return lvr_bench_print(&out, err);
}

lvr_status lvr_bench_check_cancel(lvr_error *err)
{
    if (!atomic_load(&lvr_cli_cancel))
        return LVR_OK;
    return lvr_fail(err, LVR_ERR_INTERRUPTED, "bench: interrupted");
}
