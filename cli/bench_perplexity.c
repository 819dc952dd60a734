/* lever bench perplexity: how well a model, in its weight type and by our kernels, predicts a text. */
#include "cli/bench.h"
#include "cli/cli.h"
#include "common/clock.h"
#include "common/fs.h"
#include "common/json.h"
#include "common/log.h"
#include "engine/perplexity.h"
#include <math.h>

#define MAX_TEXT_BYTES (1ull << 30)
#define MAX_CHUNK (1u << 17)

typedef struct perplexity_options {
    const char *model, *file;
    int level, kv_type;
    uint32_t context, chunks, rows, threads;
    bool json;
} perplexity_options;

#define FIELD(f) offsetof(perplexity_options, f)

static const lvr_param table[] = {
    LVR_BENCH_OPTION_MODEL(perplexity_options),
    {.name = "file",
     .short_name = 'f',
     .type = LVR_PARAM_STR,
     .offset = FIELD(file),
     .def = NAN,
     .help = "the text"},
    {.name = "context",
     .short_name = 'c',
     .type = LVR_PARAM_U32,
     .offset = FIELD(context),
     .min = 4,
     .max = MAX_CHUNK,
     .def = 512,
     .unit = "tokens",
     .help = "tokens per chunk; the second half of each is scored"},
    {.name = "chunks",
     .type = LVR_PARAM_U32,
     .offset = FIELD(chunks),
     .min = 0,
     .max = UINT32_MAX,
     .def = 0,
     .help = "most chunks to score, 0: all"},
    {.name = "rows",
     .type = LVR_PARAM_U32,
     .offset = FIELD(rows),
     .min = 1,
     .max = 256,
     .def = 64,
     .help = "rows of a pass; changes no bit of the result"},
    LVR_BENCH_OPTION_THREADS(perplexity_options),
    LVR_BENCH_OPTION_LEVEL(perplexity_options),
    LVR_BENCH_OPTION_KV_TYPE(perplexity_options),
    LVR_BENCH_OPTION_JSON(perplexity_options),
};

#define N_PARAMS (sizeof table / sizeof *table)

static lvr_status show_chunk(void *user, uint32_t done, uint32_t n, lvr_error *err)
{
    (void)user;
    if (done == n || done % 10 == 0)
        lvr_log(LVR_LOG_INFO, "perplexity: %u of %u chunks", done, n);
    return lvr_bench_check_cancel(err);
}

/* The model as the results name it, and what was measured. */
typedef struct outcome {
    lvr_perplexity perplexity;
    lvr_cpu_level level;
    uint64_t ns;
} outcome;

static void print_text(const perplexity_options *o, const outcome *r, lvr_buf *out)
{
    const lvr_perplexity *p = &r->perplexity;
    lvr_buf_printf(
        out, "%s: perplexity %.4f (nll %.5f +- %.5f over %llu tokens, %u chunks of %u, level %s, KV %s)\n",
        o->model, p->perplexity, p->nll, p->nll_stderr, (unsigned long long)p->n_scored, p->n_chunks,
        o->context, lvr_cpu_level_name(r->level), lvr_kv_type_name((lvr_kv_type)o->kv_type));
}

static void print_json(const perplexity_options *o, const outcome *r, lvr_buf *out)
{
    const lvr_perplexity *p = &r->perplexity;
    lvr_json j;
    lvr_json_init(&j, out, true);
    lvr_json_object(&j, NULL);
    lvr_json_str(&j, "model", o->model);
    lvr_json_str(&j, "file", o->file);
    lvr_json_str(&j, "level", lvr_cpu_level_name(r->level));
    lvr_json_str(&j, "kv_type", lvr_kv_type_name((lvr_kv_type)o->kv_type));
    lvr_json_u64(&j, "context", o->context);
    lvr_json_u64(&j, "chunks", p->n_chunks);
    lvr_json_u64(&j, "text_tokens", p->n_tokens);
    lvr_json_u64(&j, "scored_tokens", p->n_scored);
    lvr_json_double(&j, "nll", p->nll);
    lvr_json_double(&j, "nll_stderr", p->nll_stderr);
    lvr_json_double(&j, "perplexity", p->perplexity);
    lvr_json_double(&j, "tokens_per_s", (double)p->n_chunks * o->context * 1e9 / (double)r->ns);
    lvr_json_end_object(&j);
    lvr_buf_puts(out, "\n");
}

static lvr_status score(const perplexity_options *o, const lvr_model *model, const lvr_tokenizer *tokenizer,
                        const lvr_buf *text, outcome *ret, lvr_error *err)
{
    lvr_kernels kernels;
    lvr_kernels_init(&kernels, ret->level);
    lvr_pool *pool = NULL;
    lvr_status status = lvr_pool_new(o->threads, &pool, err);
    if (status != LVR_OK)
        return status;
    const lvr_perplexity_config config = {.n_ctx = o->context,
                                          .max_chunks = o->chunks,
                                          .rows = o->rows < o->context ? o->rows : o->context,
                                          .kv_type = (lvr_kv_type)o->kv_type,
                                          .kernels = &kernels,
                                          .pool = pool,
                                          .on_chunk = show_chunk};
    const uint64_t begin_ns = lvr_now_ns();
    status = lvr_perplexity_of(model, tokenizer, text->data, text->len, &config, &ret->perplexity, err);
    ret->ns = lvr_now_ns() - begin_ns;
    lvr_pool_free(pool);
    return status;
}

static lvr_status measure(const perplexity_options *o, outcome *ret, lvr_error *err)
{
    lvr_buf text = LVR_BUF_INIT;
    lvr_model *model = NULL;
    lvr_tokenizer *tokenizer = NULL;
    lvr_status status = lvr_read_file(o->file, MAX_TEXT_BYTES, &text, err);
    if (status == LVR_OK)
        status = lvr_model_open(o->model, NULL, &model, err);
    if (status == LVR_OK)
        status = lvr_tokenizer_new(lvr_pack_gguf(model->pack), &tokenizer, err);
    if (status == LVR_OK)
        status = score(o, model, tokenizer, &text, ret, err);
    lvr_tokenizer_free(tokenizer);
    lvr_model_free(model);
    lvr_buf_free(&text);
    return status;
}

static lvr_status run(const perplexity_options *o, lvr_error *err)
{
    if (!o->model || !o->file)
        return lvr_fail(
            err, LVR_ERR_USAGE,
            "bench perplexity: name a model and a text: lever bench perplexity FILE.gguf -f TEXT");
    outcome r = {0};
    lvr_status status = lvr_bench_level(o->level, &r.level, err);
    if (status == LVR_OK)
        status = measure(o, &r, err);
    if (status != LVR_OK)
        return status;
    lvr_buf out = LVR_BUF_INIT;
    (o->json ? print_json : print_text)(o, &r, &out);
    return lvr_bench_print(&out, err);
}

lvr_status lvr_bench_perplexity_cmd(int argc, char *const *argv, lvr_error *err)
{
    perplexity_options o;
    bool help = false;
    lvr_params_default(table, N_PARAMS, &o);
    const lvr_status status = lvr_options_parse(table, N_PARAMS, &o, argc, argv, &help, err);
    if (status != LVR_OK)
        return status;
    if (help)
        return lvr_bench_print_help("usage: lever bench perplexity MODEL -f TEXT [options]\n\n", table,
                                    N_PARAMS, err);
    return run(&o, err);
}
