/* lever model synth: write a random-weight model of a named shape. */
#include "cli/model_synth.h"
#include "cli/cli.h"
#include "cli/emit.h"
#include "common/json.h"
#include "common/log.h"
#include "common/param.h"
#include "common/threads.h"
#include "engine/synth/synth.h"
#include "lvr_config.h"
#include "sim/config_path.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static const char usage[] =
    "usage: lever model synth --shape NAME|FILE.yaml -o OUT.gguf [options]\n\n"
    "Writes a model of the shape with random weights: for speed, not for sense. With --planted, draft and\n"
    "target of the same seed and vocabulary share a Markov chain, and agree at a rate that can be chosen;\n"
    "`lever bench agreement` measures it.\n\n";

typedef struct synth_options {
    const char *shape, *type, *embd_type, *vocab, *out, *early;
    uint64_t seed;
    uint32_t threads, successors;
    bool planted, json;
    double agree, gap, noise;
} synth_options;

#define FIELD(f) offsetof(synth_options, f)

static const lvr_param table[] = {
    {.name = "shape",
     .type = LVR_PARAM_STR,
     .offset = FIELD(shape),
     .def = NAN,
     .help = "a name in configs/models, or a .yaml file"},
    {.name = "output",
     .short_name = 'o',
     .type = LVR_PARAM_STR,
     .offset = FIELD(out),
     .def = NAN,
     .help = "the GGUF to write"},
    {.name = "type",
     .type = LVR_PARAM_STR,
     .offset = FIELD(type),
     .def = NAN,
     .help = "weight type of matrices: q4_0, q8_0, q4_k, q6_k, f16, ... (default: the shape's)"},
    {.name = "embd-type",
     .type = LVR_PARAM_STR,
     .offset = FIELD(embd_type),
     .def = NAN,
     .help = "weight type of token embedding and head (default: as --type)"},
    {.name = "vocab",
     .type = LVR_PARAM_STR,
     .offset = FIELD(vocab),
     .def = NAN,
     .help = "a GGUF whose vocabulary is taken and padded (default: the embedded target's)"},
    {.name = "seed",
     .type = LVR_PARAM_U64,
     .offset = FIELD(seed),
     .max = INFINITY,
     .def = 1,
     .help = "of all values and of the chain"},
    {.name = "planted",
     .type = LVR_PARAM_BOOL,
     .offset = FIELD(planted),
     .max = 1,
     .help = "plant a Markov chain, so that models of any shape agree"},
    {.name = "agree",
     .type = LVR_PARAM_DOUBLE,
     .offset = FIELD(agree),
     .min = 0,
     .max = 1,
     .def = 0.7,
     .help = "planted: how often the greedy tokens of two models planted alike agree"},
    {.name = "early-agree",
     .type = LVR_PARAM_STR,
     .offset = FIELD(early),
     .def = NAN,
     .help =
         "planted: LAYER:RATE, how often the head after LAYER layers agrees with the last (default: noise "
         "even over the layers)"},
    {.name = "successors",
     .type = LVR_PARAM_U32,
     .offset = FIELD(successors),
     .min = LVR_CHAIN_MIN_SUCCESSORS,
     .max = LVR_CHAIN_MAX_SUCCESSORS,
     .def = 4,
     .unit = "tokens",
     .help = "planted: successors of a token"},
    {.name = "gap",
     .type = LVR_PARAM_DOUBLE,
     .offset = FIELD(gap),
     .min = 0,
     .max = 1,
     .def = 0,
     .unit = "1",
     .help = "planted: relative spacing of the successors' strengths, instead of --agree"},
    {.name = "noise",
     .type = LVR_PARAM_DOUBLE,
     .offset = FIELD(noise),
     .min = 0,
     .max = 10,
     .def = 0,
     .unit = "1",
     .help = "planted: what the layers add, relative to the chain (0: 1, or what the width allows)"},
    {.name = "threads",
     .short_name = 't',
     .type = LVR_PARAM_U32,
     .offset = FIELD(threads),
     .min = 0,
     .max = 64,
     .def = 0,
     .help = "threads (0: all processors)"},
    {.name = "json", .type = LVR_PARAM_BOOL, .offset = FIELD(json), .max = 1, .help = "print JSON"},
};

#define N_PARAMS (sizeof table / sizeof *table)

static const lvr_param *param_of(const char *name)
{
    for (size_t i = 0; i < N_PARAMS; i++)
        if (strcmp(table[i].name, name) == 0)
            return &table[i];
    return NULL;
}

static lvr_status parse_type(const char *option, const char *text, lvr_wtype *ret, lvr_error *err)
{
    const char *names[LVR_WTYPE_SLOTS];
    char lower[LVR_WTYPE_SLOTS][8];
    size_t n = 0;
    lvr_buf list = LVR_BUF_INIT;
    for (unsigned t = 0; t < LVR_WTYPE_SLOTS; t++) {
        const char *name = lvr_wtype_name((lvr_wtype)t);
        if (name == NULL)
            continue;
        if (strcasecmp(name, text) == 0) {
            *ret = (lvr_wtype)t;
            lvr_buf_free(&list);
            return LVR_OK;
        }
        for (size_t i = 0; i < sizeof lower[n]; i++)
            lower[n][i] = (char)(i < strlen(name) && name[i] >= 'A' && name[i] <= 'Z' ? name[i] + 32
                                 : i < strlen(name)                                   ? name[i]
                                                                                      : '\0');
        lvr_buf_printf(&list, "%s%s", n > 0 ? ", " : "", lower[n]);
        names[n] = lower[n];
        n++;
    }
    const char *near = lvr_closest_name(text, names, n);
    const lvr_status status = lvr_fail(err, LVR_ERR_USAGE, "--%s: expected one of %s, found '%.32s'%s%s%s",
                                       option, list.failed ? "" : list.data, text,
                                       near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
    lvr_buf_free(&list);
    return status;
}

/* The embedded target's vocabulary: models/ lies beside configs/. */
static lvr_status default_vocab(lvr_buf *ret, lvr_error *err)
{
    static const char *const types[] = {"q8_0", "q4_0", "f16"};
    const char *chosen = getenv("LVR_CONFIG_DIR");
    const char *configs = chosen != NULL && *chosen != '\0' ? chosen : LVR_CONFIG_DIR;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        lvr_buf path = LVR_BUF_INIT;
        lvr_buf_printf(&path, "%s/../models/lever-target-10m-%s.gguf", configs, types[i]);
        if (!path.failed && access(path.data, R_OK) == 0) {
            *ret = path;
            return LVR_OK;
        }
        lvr_buf_free(&path);
    }
    return lvr_fail(
        err, LVR_ERR_CONFIG,
        "model synth: no vocabulary: %s/../models/lever-target-10m-*.gguf is not there; give a GGUF "
        "with a vocabulary by --vocab",
        configs);
}

static lvr_status parse_early(const char *text, lvr_synth_planting *p, lvr_error *err)
{
    char layer[16] = "";
    uint64_t n = 0;
    double rate = 0;
    const char *colon = strchr(text, ':');
    if (colon != NULL && (size_t)(colon - text) < sizeof layer) {
        memcpy(layer, text, (size_t)(colon - text));
        if (lvr_parse_u64(layer, &n, NULL) == LVR_OK && n >= 1 && n < LVR_MAX_LAYERS &&
            lvr_parse_double(colon + 1, &rate, NULL) == LVR_OK && rate > 0 && rate <= 1) {
            p->early_layer = (uint32_t)n;
            p->early_agreement = rate;
            return LVR_OK;
        }
    }
    return lvr_fail(err, LVR_ERR_USAGE,
                    "--early-agree: expected LAYER:RATE, e.g. 4:0.8 (a layer from 1, a rate up to 1), found "
                    "'%.40s'",
                    text);
}

/* Options of a chain without --planted would be ignored in silence. */
static lvr_status check_planting(const synth_options *o, int argc, char *const *argv, lvr_error *err)
{
    static const char *const of_planted[] = {"agree", "early-agree", "successors", "gap", "noise"};
    for (size_t i = 0; i < sizeof of_planted / sizeof of_planted[0] && !o->planted; i++)
        if (lvr_option_given(argc, argv, param_of(of_planted[i])))
            return lvr_fail(err, LVR_ERR_USAGE, "model synth: --%s is about a planted chain: add --planted",
                            of_planted[i]);
    if (lvr_option_given(argc, argv, param_of("agree")) && lvr_option_given(argc, argv, param_of("gap")))
        return lvr_fail(err, LVR_ERR_USAGE,
                        "model synth: --agree and --gap say the same thing in two ways: give one of them");
    return LVR_OK;
}

static lvr_status resolve_planting(const synth_options *o, int argc, char *const *argv,
                                   lvr_synth_planting *ret, lvr_error *err)
{
    const bool by_gap = lvr_option_given(argc, argv, param_of("gap"));
    *ret = (lvr_synth_planting){.n_successors = o->successors,
                                .agreement = by_gap ? 0 : o->agree,
                                .gap = by_gap ? o->gap : 0,
                                .noise = o->noise};
    if (by_gap && !(o->gap > 0))
        return lvr_fail(err, LVR_ERR_USAGE, "--gap: expected a number above 0 and up to 1, found %g", o->gap);
    if (!by_gap && !(o->agree > 0 && o->agree < 1))
        return lvr_fail(
            err, LVR_ERR_USAGE,
            "--agree: expected a rate above %.2f (chance among --successors %u) and below 1, found "
            "%g; models of --gap 1 agree nearly always",
            1.0 / o->successors, o->successors, o->agree);
    return o->early != NULL ? parse_early(o->early, ret, err) : LVR_OK;
}

static uint32_t all_processors(void)
{
    const uint32_t n = lvr_processors();
    return n < LVR_POOL_MAX_THREADS ? n : LVR_POOL_MAX_THREADS;
}

static lvr_status resolve(const synth_options *o, lvr_synth_options *s, lvr_error *err)
{
    if (o->out == NULL || o->out[0] == '\0')
        return lvr_fail(err, LVR_ERR_USAGE, "model synth: say where the model goes with -o OUT.gguf");
    lvr_status status = parse_type("type", o->type != NULL ? o->type : s->shape->type, &s->type, err);
    s->embd_type = s->type;
    if (status == LVR_OK && o->embd_type != NULL)
        status = parse_type("embd-type", o->embd_type, &s->embd_type, err);
    s->seed = o->seed;
    s->threads = o->threads > 0 ? o->threads : all_processors();
    s->cancel = &lvr_cli_cancel;
    return status;
}

static void print_json(const lvr_synth_options *s, const char *out, const lvr_synth_result *r, lvr_buf *text)
{
    lvr_json j;
    const lvr_synth_planting *p = &r->planting;
    lvr_json_init(&j, text, true);
    lvr_json_object(&j, NULL);
    lvr_json_str(&j, "file", out);
    lvr_json_bool(&j, "synthetic", true);
    lvr_json_str(&j, "shape", s->shape->name);
    lvr_json_str(&j, "type", lvr_wtype_name(s->type));
    lvr_json_str(&j, "embd_type", lvr_wtype_name(s->embd_type));
    lvr_json_u64(&j, "seed", s->seed);
    lvr_json_u64(&j, "file_bytes", r->file_bytes);
    lvr_json_u64(&j, "weights", r->weights);
    lvr_json_u64(&j, "tensors", r->n_tensors);
    lvr_json_str(&j, "vocabulary", s->vocab_path);
    lvr_json_u64(&j, "vocabulary_tokens", r->vocab_own);
    lvr_json_bool(&j, "planted", s->planting != NULL);
    if (s->planting != NULL) {
        lvr_json_u64(&j, "successors", p->n_successors);
        lvr_json_u64(&j, "chain_words", r->chain_words);
        lvr_json_double(&j, "agreement_asked", p->agreement > 0 ? p->agreement : NAN);
        lvr_json_double(&j, "clarity", p->clarity);
        lvr_json_double(&j, "gap", p->gap);
        lvr_json_double(&j, "noise", p->noise);
    }
    if (p->early_layer > 0) {
        lvr_json_u64(&j, "early_layer", p->early_layer);
        lvr_json_double(&j, "early_agreement_asked", p->early_agreement);
        lvr_json_double(&j, "early_fraction", p->early_fraction);
    }
    lvr_json_end_object(&j);
    lvr_buf_puts(text, "\n");
}

static void print_text(const lvr_synth_options *s, const char *out, const lvr_synth_result *r, lvr_buf *text)
{
    const lvr_synth_planting *p = &r->planting;
    lvr_buf_printf(text, "%s: synthetic %s, %s, seed %" PRIu64 ": %" PRIu64 " weights in %" PRIu64 " bytes\n",
                   out, s->shape->name, lvr_wtype_name(s->type), s->seed, r->weights, r->file_bytes);
    lvr_buf_printf(text, "vocabulary  %u tokens of %s, padded to %u\n", r->vocab_own, s->vocab_path,
                   s->shape->vocab);
    if (s->planting == NULL)
        return;
    lvr_buf_printf(text, "chain       %u successors among %u words, clarity %.3f, gap %.4f, noise %.2f",
                   p->n_successors, r->chain_words, p->clarity, p->gap, p->noise);
    if (p->agreement > 0)
        lvr_buf_printf(text, ", agreement asked %.3f", p->agreement);
    if (p->early_layer > 0)
        lvr_buf_printf(text, ", after layer %u %.3f", p->early_layer, p->early_agreement);
    lvr_buf_puts(text, "\n");
}

static lvr_status write_model(const synth_options *o, const lvr_synth_options *s, lvr_error *err)
{
    lvr_synth_result result;
    lvr_buf out = LVR_BUF_INIT;
    const lvr_status status = lvr_synth_write(s, o->out, &result, err);
    if (status != LVR_OK)
        return status;
    (o->json ? print_json : print_text)(s, o->out, &result, &out);
    return lvr_emit(NULL, &out, err);
}

lvr_status lvr_model_synth_cmd(int argc, char *const *argv, lvr_error *err)
{
    synth_options o;
    bool help = false;
    lvr_buf path = LVR_BUF_INIT, vocab = LVR_BUF_INIT;
    lvr_shape shape;
    lvr_synth_planting planting;
    lvr_synth_options s = {.shape = &shape};
    lvr_params_default(table, N_PARAMS, &o);
    lvr_status status = lvr_options_parse(table, N_PARAMS, &o, argc, argv, &help, err);
    if (status != LVR_OK)
        return status;
    if (help)
        return lvr_emit_help(usage, table, N_PARAMS, err);
    if (o.shape == NULL)
        return lvr_fail(err, LVR_ERR_USAGE,
                        "model synth: say which shape with --shape NAME (a name in configs/models)");
    status = check_planting(&o, argc, argv, err);
    if (status == LVR_OK && o.planted)
        status = resolve_planting(&o, argc, argv, &planting, err);
    if (status == LVR_OK)
        status = lvr_sim_config_path("models", o.shape, &path, err);
    if (status == LVR_OK)
        status = lvr_shape_load_file(path.data, &shape, err);
    if (status == LVR_OK)
        status = resolve(&o, &s, err);
    if (status == LVR_OK && o.vocab == NULL)
        status = default_vocab(&vocab, err);
    if (status == LVR_OK) {
        s.planting = o.planted ? &planting : NULL;
        s.vocab_path = o.vocab != NULL ? o.vocab : vocab.data;
        status = write_model(&o, &s, err);
    }
    lvr_buf_free(&path);
    lvr_buf_free(&vocab);
    return status;
}
