/* lever record: a trace of what a policy's rounds did here, or (--oracle) of what any policy could meet. */
#include "cli/cli.h"
#include "cli/emit.h"
#include "cli/progress.h"
#include "cli/session_options.h"
#include "common/fs.h"
#include "common/json.h"
#include "common/log.h"
#include "common/minmax.h"
#include "engine/oracle.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ORACLE_LANE_RECORDS (1u << 16)

static const char usage[] =
    "usage: lever record --target FILE [--draft FILE] [--policy NAME|FILE] --prompts FILE --out TRACE.h5 "
    "[options]\n"
    "       lever record --oracle --target FILE --draft FILE --prompts FILE --out TRACE.h5 [options]\n\n";

typedef struct record_options {
    lvr_session_options session; /* first: see LVR_SESSION_OPTION_ROWS */
    const char *out;
    bool oracle, keep_text, overwrite;
    uint32_t repeat;
    const char *exit_layers;
    lvr_oracle_caps caps;
} record_options;

#define FIELD(f) offsetof(record_options, f)

static const lvr_param table[] = {
    LVR_SESSION_OPTION_ROWS,
    {.name = "out",
     .short_name = 'o',
     .type = LVR_PARAM_STR,
     .offset = FIELD(out),
     .def = NAN,
     .help = "the trace to write (NAME.h5)"},
    {.name = "overwrite",
     .type = LVR_PARAM_BOOL,
     .offset = FIELD(overwrite),
     .max = 1,
     .help = "replace an existing trace"},
    {.name = "repeat",
     .type = LVR_PARAM_U32,
     .offset = FIELD(repeat),
     .min = 1,
     .max = 1000000,
     .def = 1,
     .help = "record every prompt this often (timings)"},
    {.name = "keep-text",
     .type = LVR_PARAM_BOOL,
     .offset = FIELD(keep_text),
     .max = 1,
     .help = "also write prompts and texts, to NAME.h5.text.jsonl"},
    {.name = "oracle",
     .type = LVR_PARAM_BOOL,
     .offset = FIELD(oracle),
     .max = 1,
     .help = "record what any policy could meet, not timings"},
    {.name = "oracle-branch",
     .type = LVR_PARAM_U32,
     .offset = FIELD(caps.branch),
     .min = 1,
     .max = LVR_MAX_BRANCH,
     .def = 8,
     .help = "children per node"},
    {.name = "oracle-expansions",
     .type = LVR_PARAM_U32,
     .offset = FIELD(caps.expansions),
     .min = 1,
     .max = 400,
     .def = 400,
     .help = "nodes expanded per position, besides the chain"},
    {.name = "oracle-chain",
     .type = LVR_PARAM_U32,
     .offset = FIELD(caps.chain),
     .min = 0,
     .max = LVR_MAX_DEPTH,
     .def = 32,
     .help = "length of the most probable chain, always expanded"},
    {.name = "oracle-depth",
     .type = LVR_PARAM_U32,
     .offset = FIELD(caps.depth),
     .min = 1,
     .max = LVR_MAX_DEPTH,
     .def = 32,
     .help = "depth of the trees"},
    {.name = "oracle-min-path",
     .type = LVR_PARAM_DOUBLE,
     .offset = FIELD(caps.min_path),
     .min = 0,
     .max = 1,
     .def = 0.005,
     .help = "children of a smaller path probability are left out"},
    {.name = "exit-layers",
     .type = LVR_PARAM_STR,
     .offset = FIELD(exit_layers),
     .def_str = "auto",
     .help = "target layers after which the exit predictor's features of all nodes are recorded: none, up to "
             "4 layers from 0 (\"2,5\"), or auto: up to three, at one, two and three quarters of the depth"},
};
#define N_PARAMS (sizeof table / sizeof table[0])

static lvr_status parse_exit_layer(const char *at, size_t n, uint32_t *ret, lvr_error *err)
{
    char text[16] = "";
    uint64_t layer = 0;
    snprintf(text, sizeof text, "%.*s", (int)lvr_min_u64(n, sizeof text), at);
    if (n == 0 || n >= sizeof text || lvr_parse_u64(text, &layer, NULL) != LVR_OK || layer > UINT32_MAX)
        return lvr_fail(err, LVR_ERR_USAGE,
                        "--exit-layers: expected auto, none, or layers from 0 separated by commas, found "
                        "'%s'",
                        text);
    *ret = (uint32_t)layer;
    return LVR_OK;
}

/* auto, none, or a list. */
static lvr_status parse_exit_layers(const char *text, lvr_oracle_caps *caps, lvr_error *err)
{
    caps->exit_auto = strcmp(text, "auto") == 0;
    caps->n_exit_layers = 0;
    if (caps->exit_auto || strcmp(text, "none") == 0)
        return LVR_OK;
    for (const char *at = text;; at++) {
        const size_t n = strcspn(at, ",");
        if (caps->n_exit_layers == LVR_EXIT_MAX_LAYERS)
            return lvr_fail(err, LVR_ERR_USAGE, "--exit-layers: more than %u layers: %s", LVR_EXIT_MAX_LAYERS,
                            text);
        const lvr_status status = parse_exit_layer(at, n, &caps->exit_layers[caps->n_exit_layers++], err);
        if (status != LVR_OK)
            return status;
        at += n;
        if (*at == '\0')
            return LVR_OK;
    }
}

typedef struct record_state {
    const record_options *options;
    lvr_session_setup *setup;
    lvr_session *session; /* timing mode */
    lvr_oracle *oracle;   /* oracle mode */
    lvr_trace_lane *lane;
    lvr_trace_writer *writer;
    lvr_prompts prompts;
    lvr_buf text; /* lines for --keep-text */
    uint64_t n_tokens;
    lvr_progress progress;
} record_state;

static const lvr_tokenizer *tokenizer(const record_state *s)
{
    return s->oracle ? lvr_oracle_tokenizer(s->oracle) : lvr_session_tokenizer(s->session);
}

/* ---- opening ---- */

static lvr_status open_source(record_state *s, lvr_error *err)
{
    if (s->options->oracle)
        return lvr_oracle_new(&s->setup->config, &s->options->caps, &s->oracle, err);
    return lvr_session_setup_open(s->setup, &s->options->session, &s->session, err);
}

static lvr_status open_writer(record_state *s, lvr_error *err)
{
    lvr_trace_meta *meta = calloc(1, sizeof *meta);
    if (!meta)
        return lvr_fail(err, LVR_ERR_NOMEM, "out of memory");
    lvr_status status = s->oracle ? lvr_oracle_trace_meta(s->oracle, s->setup->n_predict, meta, err)
                                  : lvr_session_trace_meta(s->session, s->setup->n_predict, meta, err);
    if (status == LVR_OK)
        status = lvr_trace_writer_open(s->options->out, meta, s->options->overwrite, &s->writer, err);
    free(meta->config_yaml);
    free(meta);
    if (status != LVR_OK)
        return status;
    return s->oracle ? lvr_trace_lane_new(s->writer, ORACLE_LANE_RECORDS, &s->lane, err)
                     : lvr_session_set_trace(s->session, s->writer, err);
}

/* ---- recording ---- */

static void keep_text(record_state *s, uint64_t request, const lvr_prompt *prompt, const int32_t *tokens,
                      uint32_t n)
{
    lvr_json j;
    lvr_buf out = LVR_BUF_INIT;
    for (uint32_t i = 0; i < n; i++)
        lvr_detokenize(tokenizer(s), tokens[i], false, &out);
    lvr_json_init(&j, &s->text, false);
    lvr_json_object(&j, NULL);
    lvr_json_u64(&j, "request", request);
    lvr_json_str(&j, "domain", prompt->domain);
    lvr_json_strn(&j, "prompt", prompt->text, prompt->n);
    lvr_json_strn(&j, "output", out.data ? out.data : "", out.len);
    lvr_json_end_object(&j);
    lvr_buf_puts(&s->text, "\n");
    s->text.failed |= out.failed;
    lvr_buf_free(&out);
}

static lvr_status record_tokens(record_state *s, uint64_t request, uint32_t domain, const int32_t *prompt,
                                uint32_t n_prompt, int32_t **ret, uint32_t *ret_n, lvr_error *err)
{
    lvr_run_stats stats;
    if (s->oracle)
        return lvr_oracle_record(s->oracle, s->lane, request, domain, prompt, n_prompt, s->setup->n_predict,
                                 ret, ret_n, err);
    const lvr_status status = lvr_session_generate(s->session, request, domain, prompt, n_prompt,
                                                   s->setup->n_predict, NULL, NULL, ret, ret_n, &stats, err);
    if (status == LVR_OK)
        lvr_log(LVR_LOG_INFO, "request %" PRIu64 ": %u tokens, %.2f tokens/s", request, *ret_n,
                (double)*ret_n / ((double)stats.decode_ns * 1e-9));
    return status;
}

static lvr_status record_prompt(record_state *s, const lvr_prompt *prompt, uint64_t request, lvr_error *err)
{
    int32_t *tokens = NULL, *output = NULL;
    uint32_t n = 0, n_output = 0;
    lvr_status status =
        lvr_session_options_tokenize(&s->options->session, tokenizer(s), prompt, &tokens, &n, err);
    if (status != LVR_OK)
        return status;
    const uint32_t domain = lvr_trace_domain(s->writer, prompt->domain);
    status = record_tokens(s, request, domain, tokens, n, &output, &n_output, err);
    if (status == LVR_OK) {
        s->n_tokens += n_output;
        if (s->options->keep_text)
            keep_text(s, request, prompt, output, n_output);
        status = lvr_trace_writer_status(s->writer, err);
    }
    free(tokens);
    free(output);
    return status;
}

/* Requests of a later repeat get ids of their own, above all ids of the prompts. */
static uint64_t id_stride(const lvr_prompts *p)
{
    uint64_t largest = 0;
    for (size_t i = 0; i < p->n; i++)
        largest = p->items[i].id > largest ? p->items[i].id : largest;
    return largest + 1;
}

static lvr_status record_all(record_state *s, lvr_error *err)
{
    const uint64_t stride = id_stride(&s->prompts);
    const uint64_t total = (uint64_t)s->options->repeat * s->prompts.n;
    uint64_t done = 0, next_line = 1;
    for (uint32_t rep = 0; rep < s->options->repeat; rep++) {
        for (size_t i = 0; i < s->prompts.n; i++) {
            const lvr_status status =
                record_prompt(s, &s->prompts.items[i], s->prompts.items[i].id + rep * stride, err);
            if (status != LVR_OK)
                return status;
            if (++done * 10 / total < next_line)
                continue;
            next_line = done * 10 / total + 1;
            lvr_log(LVR_LOG_INFO, "%" PRIu64 " of %" PRIu64 " requests recorded (%" PRIu64 " %%)", done,
                    total, done * 100 / total);
        }
    }
    return s->n_tokens ? LVR_OK
                       : lvr_fail(err, LVR_ERR_INVARIANT, "no token was generated: the trace is empty");
}

/* ---- all together ---- */

static lvr_status write_text(const record_state *s, lvr_error *err)
{
    char *path = NULL;
    if (!s->options->keep_text)
        return LVR_OK;
    if (s->text.failed || asprintf(&path, "%s.text.jsonl", s->options->out) < 0)
        return lvr_fail(err, LVR_ERR_NOMEM, "out of memory for the texts");
    const lvr_status status = lvr_write_file_atomic(path, s->text.data, s->text.len, err);
    free(path);
    return status;
}

/* The session goes first: it still has reads to report. A recording that failed stays incomplete, but
 * readable. */
static lvr_status close_all(record_state *s, lvr_status status, lvr_error *err)
{
    lvr_session_free(s->session);
    lvr_oracle_free(s->oracle);
    lvr_prompts_free(&s->prompts);
    if (s->writer) {
        lvr_error close_err = LVR_ERROR_INIT;
        const lvr_status closed = lvr_trace_writer_close(s->writer, status == LVR_OK, &close_err);
        if (status == LVR_OK && closed != LVR_OK)
            status = lvr_fail(err, closed, "%s", close_err.msg);
    }
    if (status == LVR_OK)
        status = write_text(s, err);
    lvr_buf_free(&s->text);
    return status;
}

/* The texts go beside the trace. */
static lvr_status check_output(const record_options *o, lvr_error *err)
{
    const char *inputs[LVR_SESSION_INPUTS];
    char *text = NULL;
    lvr_session_options_inputs(&o->session, inputs);
    lvr_status status = lvr_emit_check_inputs(o->out, inputs, LVR_SESSION_INPUTS, err);
    if (status != LVR_OK || !o->keep_text)
        return status;
    if (asprintf(&text, "%s.text.jsonl", o->out) < 0)
        return lvr_fail(err, LVR_ERR_NOMEM, "out of memory for a path");
    status = lvr_emit_check_inputs(text, inputs, LVR_SESSION_INPUTS, err);
    free(text);
    return status;
}

static lvr_status check_options(const record_options *o, const lvr_command_line *line, lvr_error *err)
{
    if (!o->out)
        return lvr_fail(err, LVR_ERR_USAGE, "no trace to write; give --out FILE.h5");
    if (o->oracle && o->session.accel > 0)
        return lvr_fail(
            err, LVR_ERR_USAGE,
            "--accel has no part in an oracle recording, which holds tokens and no times; leave it "
            "out");
    if (o->oracle && o->repeat > 1)
        return lvr_fail(
            err, LVR_ERR_USAGE,
            "--repeat repeats timings; an oracle recording of the same prompt is the same each time");
    static const char *const caps[] = {"oracle-branch", "oracle-expansions", "oracle-chain",
                                       "oracle-depth",  "oracle-min-path",   "exit-layers"};
    for (size_t i = 0; !o->oracle && i < sizeof caps / sizeof *caps; i++)
        if (lvr_command_line_has(line, caps[i]))
            return lvr_fail(err, LVR_ERR_USAGE, "--%s bounds an oracle recording; give --oracle too",
                            caps[i]);
    return check_output(o, err);
}

static lvr_status record_with(record_options *o, record_state *s, int argc, char *const *argv, lvr_error *err)
{
    const lvr_command_line line = {.table = table, .n = N_PARAMS, .argc = argc, .argv = argv};
    lvr_status status = check_options(s->options, &line, err);
    if (status == LVR_OK)
        status = parse_exit_layers(o->exit_layers, &o->caps, err);
    if (status == LVR_OK)
        status = lvr_session_options_resolve(&s->options->session, &line, s->setup, err);
    s->setup->config.progress = lvr_progress_show;
    s->setup->config.progress_user = &s->progress;
    if (status == LVR_OK)
        status = lvr_session_options_prompts(&s->options->session, &s->prompts, err);
    if (status == LVR_OK)
        status = open_source(s, err);
    if (status == LVR_OK)
        status = open_writer(s, err);
    if (status == LVR_OK)
        status = record_all(s, err);
    status = close_all(s, status, err);
    if (status == LVR_OK)
        lvr_log(LVR_LOG_INFO, "%s: %" PRIu64 " output tokens%s", s->options->out, s->n_tokens,
                s->setup->what_if ? "; what-if" : "");
    return status;
}

lvr_status lvr_cmd_record(int argc, char *const *argv, lvr_error *err)
{
    record_options o;
    bool help = false;
    lvr_params_default(table, N_PARAMS, &o);
    lvr_status status = lvr_options_parse(table, N_PARAMS, &o, argc, argv, &help, err);
    lvr_session_setup *setup = calloc(1, sizeof *setup);
    record_state s = {.options = &o, .setup = setup};
    if (!setup)
        status = lvr_fail(err, LVR_ERR_NOMEM, "out of memory");
    if (status == LVR_OK && help)
        status = lvr_emit_help(usage, table, N_PARAMS, err);
    else if (status == LVR_OK) {
        lvr_progress_begin(&s.progress, o.session.quiet);
        status = record_with(&o, &s, argc, argv, err);
        lvr_progress_end(&s.progress);
    }
    lvr_strlist_free(&o.session.set);
    free(setup);
    return status;
}
