/* lever bench tokenizer: how fast a text becomes tokens. */
#include "cli/bench.h"
#include "cli/cli.h"
#include "cli/model_tokenize.h"
#include "common/clock.h"
#include "common/fs.h"
#include "common/json.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#define MAX_TEXT_BYTES (16u << 20)

typedef struct tokenizer_options {
    const char *model, *file;
    uint32_t reps;
    bool json;
} tokenizer_options;

#define FIELD(f) offsetof(tokenizer_options, f)

static const lvr_param table[] = {
    {.name = "model",
     .short_name = 'm',
     .type = LVR_PARAM_STR,
     .offset = FIELD(model),
     .def = NAN,
     .help = "a GGUF (one with a vocabulary only will do) or a pack",
     .positional = true},
    {.name = "file",
     .short_name = 'f',
     .type = LVR_PARAM_STR,
     .offset = FIELD(file),
     .def = NAN,
     .help = "file with the text, at most 16 MiB"},
    {.name = "reps",
     .type = LVR_PARAM_U32,
     .offset = FIELD(reps),
     .min = 1,
     .max = 100000,
     .def = 5,
     .help = "runs, the fastest counts"},
    LVR_BENCH_OPTION_JSON(tokenizer_options),
};
#define N_PARAMS (sizeof table / sizeof table[0])

typedef struct result {
    uint64_t load_ns, bytes, tokens, ns;
} result;

static lvr_status measure_once(const lvr_tokenizer *t, const lvr_buf *text, result *r, lvr_error *err)
{
    int32_t *ids = NULL;
    uint32_t n = 0;
    const uint64_t begin = lvr_now_ns();
    const lvr_status status = lvr_tokenize(t, text->data, text->len, false, &ids, &n, err);
    const uint64_t ns = lvr_now_ns() - begin;
    if (status != LVR_OK)
        return status;
    free(ids);
    r->tokens = n;
    r->ns = r->ns == 0 || ns < r->ns ? ns : r->ns;
    return LVR_OK;
}

static lvr_status measure(const tokenizer_options *o, result *ret, lvr_error *err)
{
    lvr_tokenizer *t = NULL;
    lvr_buf text = LVR_BUF_INIT;
    result r = {0};
    const uint64_t begin = lvr_now_ns();
    lvr_status status = lvr_open_tokenizer(o->model, &t, err);
    r.load_ns = lvr_now_ns() - begin;
    if (status == LVR_OK)
        status = lvr_read_file(o->file, MAX_TEXT_BYTES, &text, err);
    if (status == LVR_OK && text.len == 0)
        status = lvr_fail(err, LVR_ERR_USAGE, "%s is empty: nothing to measure", o->file);
    r.bytes = text.len;
    for (uint32_t i = 0; status == LVR_OK && i < o->reps; i++) {
        status = lvr_bench_check_cancel(err);
        if (status == LVR_OK)
            status = measure_once(t, &text, &r, err);
    }
    lvr_buf_free(&text);
    lvr_tokenizer_free(t);
    if (status == LVR_OK)
        *ret = r;
    return status;
}

static void report(const tokenizer_options *o, const result *r, lvr_buf *out)
{
    lvr_json j;
    const double mbytes_per_s = (double)r->bytes * 1e3 / (double)r->ns;
    if (!o->json) {
        lvr_buf_printf(out, "%" PRIu64 " bytes, %" PRIu64 " tokens: %.3f s, %.2f MB/s; loaded in %.3f s\n",
                       r->bytes, r->tokens, (double)r->ns * 1e-9, mbytes_per_s, (double)r->load_ns * 1e-9);
        return;
    }
    lvr_json_init(&j, out, true);
    lvr_json_object(&j, NULL);
    lvr_json_u64(&j, "load_ns", r->load_ns);
    lvr_json_array(&j, "results");
    lvr_json_object(&j, NULL);
    lvr_json_u64(&j, "bytes", r->bytes);
    lvr_json_u64(&j, "tokens", r->tokens);
    lvr_json_u64(&j, "ns", r->ns);
    lvr_json_double(&j, "mbytes_per_s", mbytes_per_s);
    lvr_json_end_object(&j);
    lvr_json_end_array(&j);
    lvr_json_end_object(&j);
    lvr_buf_puts(out, "\n");
}

lvr_status lvr_bench_tokenizer_cmd(int argc, char *const *argv, lvr_error *err)
{
    tokenizer_options o;
    bool help = false;
    result r;
    lvr_buf out = LVR_BUF_INIT;
    lvr_params_default(table, N_PARAMS, &o);
    lvr_status status = lvr_options_parse(table, N_PARAMS, &o, argc, argv, &help, err);
    if (status == LVR_OK && help)
        return lvr_bench_print_help("usage: lever bench tokenizer -m MODEL -f FILE [options]\n\n", table,
                                    N_PARAMS, err);
    if (status == LVR_OK && (!o.model || !o.file))
        status = lvr_fail(err, LVR_ERR_USAGE,
                          "bench tokenizer: give a model with -m FILE and a text with -f FILE");
    if (status == LVR_OK)
        status = measure(&o, &r, err);
    if (status != LVR_OK)
        return status;
    report(&o, &r, &out);
    return lvr_bench_print(&out, err);
}
