/* lever model: look into a GGUF or a pack, make a pack, check a pack. */
#include "cli/cli.h"
#include "cli/emit.h"
#include "cli/model_info.h"
#include "cli/model_plan.h"
#include "cli/model_synth.h"
#include "cli/model_tokenize.h"
#include "cli/progress.h"
#include "common/json.h"
#include "common/param.h"
#include "engine/pack_cache.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const char usage[] = "usage: lever model info|pack|verify|synth|tokenize|plan [options]\n"
                            "\n"
                            "  info FILE          what a GGUF or a pack contains\n"
                            "  pack FILE -o OUT   write the layer-major pack of a GGUF\n"
                            "  verify PACK        compare every checksum of a pack\n"
                            "  synth              write a random-weight model of a named shape\n"
                            "  tokenize           a text's tokens, or the text of tokens\n"
                            "  plan               what a run would take in DRAM, and read in a pass\n"
                            "\n"
                            "`lever model NAME --help` lists a subcommand's options.\n";

typedef struct model_options {
    const char *file, *out;
    bool json;
} model_options;

#define FILE_ROW(text)                                                                                       \
    {                                                                                                        \
        .name = "file", .type = LVR_PARAM_STR, .offset = offsetof(model_options, file), .def = NAN,          \
        .help = text, .positional = true                                                                     \
    }
#define JSON_ROW                                                                                             \
    {                                                                                                        \
        .name = "json", .type = LVR_PARAM_BOOL, .offset = offsetof(model_options, json), .max = 1,           \
        .help = "print JSON"                                                                                 \
    }

static const lvr_param info_table[] = {FILE_ROW("a GGUF file or a pack"), JSON_ROW};
static const lvr_param pack_table[] = {
    FILE_ROW("the GGUF file to pack"),
    {.name = "output",
     .short_name = 'o',
     .type = LVR_PARAM_STR,
     .offset = offsetof(model_options, out),
     .def = NAN,
     .help = "the pack to write"},
    JSON_ROW,
};
static const lvr_param verify_table[] = {FILE_ROW("the pack to check"), JSON_ROW};

#define N_ROWS(table) (sizeof(table) / sizeof((table)[0]))

/* Parses the options of one subcommand; on --help prints them and sets *ret_done. */
static lvr_status parse(const char *synopsis, const lvr_param *table, size_t n, int argc, char *const *argv,
                        model_options *ret, bool *ret_done, lvr_error *err)
{
    char text[128];
    lvr_params_default(table, n, ret);
    const lvr_status status = lvr_options_parse(table, n, ret, argc, argv, ret_done, err);
    if (status != LVR_OK)
        return status;
    snprintf(text, sizeof(text), "usage: lever model %s\n\n", synopsis);
    if (*ret_done)
        return lvr_emit_help(text, table, n, err);
    if (ret->file == NULL)
        return lvr_fail(err, LVR_ERR_USAGE, "model %s: which file? usage: lever model %s", argv[0], synopsis);
    return LVR_OK;
}

static lvr_status model_info(int argc, char *const *argv, lvr_error *err)
{
    model_options o;
    bool done = false;
    const lvr_status status =
        parse("info FILE [--json]", info_table, N_ROWS(info_table), argc, argv, &o, &done, err);
    return status != LVR_OK || done ? status : lvr_model_info_emit(o.file, o.json, err);
}

/* What `pack` and `verify` report. */
static lvr_status print_pack(const lvr_pack *p, bool json, const char *verb, lvr_error *err)
{
    lvr_buf out = LVR_BUF_INIT;
    lvr_json j;
    if (!json) {
        lvr_buf_printf(&out, "%s: %s, %" PRIu64 " bytes, %u layers, source sha256 %s\n", lvr_pack_path(p),
                       verb, lvr_pack_file_bytes(p), lvr_pack_shape(p)->n_layers, lvr_pack_source_sha256(p));
        return lvr_emit(NULL, &out, err);
    }
    lvr_json_init(&j, &out, true);
    lvr_json_object(&j, NULL);
    lvr_json_str(&j, "file", lvr_pack_path(p));
    lvr_json_str(&j, "result", verb);
    lvr_json_u64(&j, "file_bytes", lvr_pack_file_bytes(p));
    lvr_json_u64(&j, "n_layers", lvr_pack_shape(p)->n_layers);
    lvr_json_str(&j, "source_sha256", lvr_pack_source_sha256(p));
    lvr_json_end_object(&j);
    lvr_buf_puts(&out, "\n");
    return lvr_emit(NULL, &out, err);
}

static lvr_status model_pack(int argc, char *const *argv, lvr_error *err)
{
    model_options o;
    bool done = false;
    lvr_pack *p = NULL;
    lvr_status status =
        parse("pack FILE -o OUT [--json]", pack_table, N_ROWS(pack_table), argc, argv, &o, &done, err);
    if (status != LVR_OK || done)
        return status;
    if (o.out == NULL)
        return lvr_fail(err, LVR_ERR_USAGE, "model pack: say where the pack goes with -o OUT");
    if (lvr_pack_is_pack(o.file))
        return lvr_fail(err, LVR_ERR_USAGE, "%s is a pack already; give the GGUF file it was made from",
                        o.file);
    lvr_progress progress;
    const lvr_pack_options how = {
        .cancel = &lvr_cli_cancel, .progress = lvr_progress_show, .user = &progress};
    lvr_progress_begin(&progress, false);
    status = lvr_pack_from_gguf(o.file, o.out, &how, err);
    lvr_progress_end(&progress);
    if (status == LVR_OK)
        status = lvr_pack_open(o.out, &p, err);
    if (status == LVR_OK)
        status = print_pack(p, o.json, "packed", err);
    lvr_pack_free(p);
    return status;
}

static lvr_status model_verify(int argc, char *const *argv, lvr_error *err)
{
    model_options o;
    bool done = false;
    lvr_pack *p = NULL;
    lvr_status status =
        parse("verify PACK [--json]", verify_table, N_ROWS(verify_table), argc, argv, &o, &done, err);
    if (status != LVR_OK || done)
        return status;
    status = lvr_pack_open(o.file, &p, err);
    if (status == LVR_OK)
        status = lvr_pack_verify(p, err);
    if (status == LVR_OK)
        status = print_pack(p, o.json, "all checksums match", err);
    lvr_pack_free(p);
    return status;
}

static const struct {
    const char *name;
    lvr_status (*run)(int argc, char *const *argv, lvr_error *err);
} subcommands[] = {
    {"info", model_info},
    {"pack", model_pack},
    {"verify", model_verify},
    {"synth", lvr_model_synth_cmd},
    {"tokenize", lvr_model_tokenize_cmd},
    {"plan", lvr_model_plan_cmd},
};

#define N_SUBCOMMANDS (sizeof(subcommands) / sizeof(subcommands[0]))

static lvr_status fail_unknown(const char *name, lvr_error *err)
{
    const char *names[N_SUBCOMMANDS];
    for (size_t i = 0; i < N_SUBCOMMANDS; i++)
        names[i] = subcommands[i].name;
    const char *near = lvr_closest_name(name, names, N_SUBCOMMANDS);
    return lvr_fail(
        err, LVR_ERR_USAGE, "model: expected info, pack, verify, synth, tokenize or plan, found '%s'%s%s%s",
        name, near != NULL ? "; did you mean '" : "", near != NULL ? near : "", near != NULL ? "'?" : "");
}

lvr_status lvr_cmd_model(int argc, char *const *argv, lvr_error *err)
{
    if (argc < 2)
        return lvr_fail(err, LVR_ERR_USAGE,
                        "model: say what to do: info, pack, verify, synth, tokenize or plan");
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        lvr_buf out = LVR_BUF_INIT;
        lvr_buf_puts(&out, usage);
        return lvr_emit(NULL, &out, err);
    }
    for (size_t i = 0; i < N_SUBCOMMANDS; i++)
        if (strcmp(argv[1], subcommands[i].name) == 0)
            return subcommands[i].run(argc - 1, argv + 1, err);
    return fail_unknown(argv[1], err);
}
