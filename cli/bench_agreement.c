/* lever bench agreement: how well a draft foretells its target, and early layers the last one. */
#include "cli/bench.h"
#include "cli/cli.h"
#include "common/json.h"
#include "engine/agreement.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TOKENS (1u << 16)

typedef struct agreement_options {
    const char *target, *draft, *prompt, *layers;
    uint32_t tokens, threads;
    int level;
    bool json;
} agreement_options;

#define FIELD(f) offsetof(agreement_options, f)

static const lvr_param table[] = {
    {.name = "target",
     .short_name = 'm',
     .type = LVR_PARAM_STR,
     .offset = FIELD(target),
     .def = NAN,
     .help = "the target: a GGUF or a pack"},
    {.name = "draft",
     .alias = "md",
     .type = LVR_PARAM_STR,
     .offset = FIELD(draft),
     .def = NAN,
     .help = "the draft (none: only the target's text and early layers are looked at)"},
    {.name = "prompt",
     .short_name = 'p',
     .type = LVR_PARAM_STR,
     .offset = FIELD(prompt),
     .def = NAN,
     .def_str = "Once upon a time",
     .help = "where the text starts"},
    {.name = "tokens",
     .short_name = 'n',
     .type = LVR_PARAM_U32,
     .offset = FIELD(tokens),
     .min = 1,
     .max = MAX_TOKENS,
     .def = 128,
     .unit = "tokens",
     .help = "greedy tokens to generate and compare"},
    {.name = "layers",
     .type = LVR_PARAM_STR,
     .offset = FIELD(layers),
     .def = NAN,
     .help = "early layers to read through the head, separated by commas (default: the quarters)"},
    LVR_BENCH_OPTION_THREADS(agreement_options),
    LVR_BENCH_OPTION_LEVEL(agreement_options),
    LVR_BENCH_OPTION_JSON(agreement_options),
};

#define N_PARAMS (sizeof table / sizeof *table)

typedef struct outcome {
    lvr_bench_list layers;
    lvr_agreement a;
    lvr_buf text;
    bool has_draft, synthetic;
} outcome;

static lvr_status choose_layers(const agreement_options *o, uint32_t n_layers, lvr_bench_list *ret,
                                lvr_error *err)
{
    if (o->layers != NULL)
        return lvr_bench_parse_list("layers", o->layers, n_layers, ret, err);
    for (uint32_t quarter = 1; quarter < 4; quarter++)
        if (quarter * n_layers / 4 > 0 && (ret->n == 0 || ret->values[ret->n - 1] < quarter * n_layers / 4))
            ret->values[ret->n++] = quarter * n_layers / 4;
    return LVR_OK;
}

static lvr_status load(const agreement_options *o, lvr_pair *pair, uint32_t n_ctx, lvr_error *err)
{
    lvr_pair_sizes sizes = {.n_ctx = n_ctx,
                            .threads = o->threads,
                            .target_rows = LVR_AGREEMENT_ROWS,
                            .target_scratch = LVR_AGREEMENT_ROWS,
                            .draft_rows = LVR_AGREEMENT_ROWS,
                            .draft_scratch = LVR_AGREEMENT_ROWS,
                            .target_logits = 1};
    const lvr_status status = lvr_bench_level(o->level, &sizes.cpu_level, err);
    return status == LVR_OK ? lvr_pair_load(pair, &sizes, NULL, err) : status;
}

static lvr_status measure_pair(const agreement_options *o, lvr_pair *pair, outcome *ret, lvr_error *err)
{
    int32_t *prompt = NULL;
    uint32_t n_prompt = 0;
    const lvr_tokenizer *tokenizer = pair->target.tokenizer;
    lvr_status status = lvr_tokenize(tokenizer, o->prompt, strlen(o->prompt), true, &prompt, &n_prompt, err);
    if (status == LVR_OK && n_prompt == 0)
        status = lvr_fail(err, LVR_ERR_USAGE, "bench agreement: the prompt has no tokens");
    if (status == LVR_OK)
        status = choose_layers(o, pair->target.shape->n_layers, &ret->layers, err);
    if (status == LVR_OK)
        status = load(o, pair, n_prompt + o->tokens, err);
    if (status == LVR_OK) {
        const lvr_agreement_config config = {.prompt = prompt,
                                             .n_prompt = n_prompt,
                                             .n_tokens = o->tokens,
                                             .layers = ret->layers.values,
                                             .n_layers = ret->layers.n,
                                             .cancel = &lvr_cli_cancel};
        status = lvr_agreement_measure(pair, &config, &ret->a, err);
    }
    for (uint32_t i = 0; status == LVR_OK && i < o->tokens; i++)
        lvr_detokenize(tokenizer, ret->a.tokens[i], i == 0, &ret->text);
    free(prompt);
    return status;
}

static void print_text(const agreement_options *o, const outcome *r, lvr_buf *out)
{
    const lvr_agreement *a = &r->a;
    lvr_buf_printf(out, "target      %s%s\n", o->target, r->synthetic ? " (synthetic)" : "");
    if (r->has_draft) {
        lvr_buf_printf(out, "draft       %s\n", o->draft);
        lvr_buf_printf(
            out, "agreement   %.3f of %u greedy tokens; among the draft's best 2, 3, 4: %.3f %.3f %.3f\n",
            a->top[0], a->n_tokens, a->top[1], a->top[2], a->top[3]);
        lvr_buf_printf(out, "accepted    %.3f of a chain of %u\n", a->accepted, LVR_AGREEMENT_CHAIN);
        lvr_buf_printf(out, "confidence  %.3f where the draft is right, %.3f where it is wrong\n",
                       a->confidence_right, a->confidence_wrong);
    }
    for (uint32_t i = 0; i < r->layers.n; i++)
        lvr_buf_printf(out, "layer %-5u %.3f agree with the last\n", r->layers.values[i], a->early[i]);
    lvr_buf_printf(out, "logits      standard deviation %.3f\n", a->logit_std);
    lvr_buf_printf(
        out, "repetition  %u distinct tokens of %u, %.3f of 4-grams repeated, soonest return after %u\n",
        a->distinct_tokens, a->n_tokens, a->repeated_4grams, a->shortest_return);
}

static void draft_json(const lvr_agreement *a, lvr_json *j)
{
    lvr_json_double(j, "agreement", a->top[0]);
    lvr_json_array(j, "top");
    for (uint32_t k = 0; k < LVR_AGREEMENT_TOP; k++)
        lvr_json_double(j, NULL, a->top[k]);
    lvr_json_end_array(j);
    lvr_json_u64(j, "chain", LVR_AGREEMENT_CHAIN);
    lvr_json_double(j, "accepted", a->accepted);
    lvr_json_double(j, "confidence_right", a->confidence_right);
    lvr_json_double(j, "confidence_wrong", a->confidence_wrong);
}

static void print_json(const agreement_options *o, const outcome *r, lvr_buf *out)
{
    lvr_json j;
    const lvr_agreement *a = &r->a;
    lvr_json_init(&j, out, true);
    lvr_json_object(&j, NULL);
    lvr_json_str(&j, "target", o->target);
    lvr_json_str(&j, "draft", o->draft);
    lvr_json_bool(&j, "synthetic", r->synthetic);
    lvr_json_u64(&j, "n_tokens", a->n_tokens);
    if (r->has_draft)
        draft_json(a, &j);
    lvr_json_array(&j, "layers");
    for (uint32_t i = 0; i < r->layers.n; i++) {
        lvr_json_object(&j, NULL);
        lvr_json_u64(&j, "layer", r->layers.values[i]);
        lvr_json_double(&j, "agreement", a->early[i]);
        lvr_json_end_object(&j);
    }
    lvr_json_end_array(&j);
    lvr_json_double(&j, "logit_std", a->logit_std);
    lvr_json_u64(&j, "distinct_tokens", a->distinct_tokens);
    lvr_json_double(&j, "repeated_4grams", a->repeated_4grams);
    lvr_json_u64(&j, "shortest_return", a->shortest_return);
    lvr_json_strn(&j, "text", r->text.data != NULL ? r->text.data : "", r->text.len);
    lvr_json_end_object(&j);
    lvr_buf_puts(out, "\n");
}

static lvr_status run(const agreement_options *o, lvr_error *err)
{
    lvr_pair pair = {0};
    outcome r = {.text = LVR_BUF_INIT, .has_draft = o->draft != NULL};
    lvr_buf out = LVR_BUF_INIT;
    if (o->target == NULL)
        return lvr_fail(err, LVR_ERR_USAGE, "bench agreement: name a target with -m FILE.gguf");
    const lvr_watch watch = {.cancel = &lvr_cli_cancel};
    lvr_status status = lvr_pair_open(o->target, o->draft, &watch, &pair, err);
    if (status != LVR_OK)
        return status;
    r.synthetic = lvr_pair_synthetic(&pair);
    status = measure_pair(o, &pair, &r, err);
    if (status == LVR_OK) {
        (o->json ? print_json : print_text)(o, &r, &out);
        status = lvr_bench_print(&out, err);
    }
    lvr_agreement_free(&r.a);
    lvr_buf_free(&r.text);
    lvr_pair_free(&pair);
    return status;
}

lvr_status lvr_bench_agreement_cmd(int argc, char *const *argv, lvr_error *err)
{
    agreement_options o;
    bool help = false;
    lvr_params_default(table, N_PARAMS, &o);
    const lvr_status status = lvr_options_parse(table, N_PARAMS, &o, argc, argv, &help, err);
    if (status != LVR_OK)
        return status;
    if (help)
        return lvr_bench_print_help("usage: lever bench agreement -m TARGET [-md DRAFT] [options]\n\n", table,
                                    N_PARAMS, err);
    return run(&o, err);
}
