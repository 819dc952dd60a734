/* lever run: text from a target, a draft and a policy. */
#include "cli/cli.h"
#include "cli/emit.h"
#include "cli/input_text.h"
#include "cli/progress.h"
#include "cli/run_report.h"
#include "cli/text_stream.h"
#include "common/log.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] = "usage: lever run --target FILE [--draft FILE] [--policy NAME|FILE] [--prompt "
                            "TEXT | --file FILE | --prompts FILE] "
                            "[options]\n\n";

typedef struct run_options {
    lvr_session_options session; /* first: see LVR_SESSION_OPTION_ROWS */
    const char *out;
    lvr_strlist stop;
    bool json;
} run_options;

static const lvr_param table[] = {
    LVR_SESSION_OPTION_ROWS,
    {.name = "stop",
     .type = LVR_PARAM_STR,
     .offset = offsetof(run_options, stop),
     .def = NAN,
     .multi = true,
     .help = "end a text before the first of these texts; may repeat, up to 16 times"},
    {.name = "json",
     .type = LVR_PARAM_BOOL,
     .offset = offsetof(run_options, json),
     .max = 1,
     .help = "figures and text as one JSON object"},
    {.name = "out",
     .short_name = 'o',
     .type = LVR_PARAM_STR,
     .offset = offsetof(run_options, out),
     .def = NAN,
     .help = "write the result to this file instead of standard output"},
};
#define N_PARAMS (sizeof table / sizeof table[0])

typedef struct run_state {
    const run_options *options;
    lvr_session_setup *setup;
    lvr_session *session;
    lvr_stop_strings *stops;
    lvr_progress progress;
    lvr_prompts prompts;
    lvr_run_request *results; /* [prompts.n] */
    size_t n_results;
    lvr_run_stats sum;
    lvr_run_request *current;
    lvr_text_stream stream; /* of its text */
    int write_errno;        /* of standard output */
} run_state;

/* ---- text ---- */

static bool streams(const run_state *s)
{
    return !s->options->json && !s->options->out;
}

static void print_piece(void *user, const char *piece, size_t n)
{
    run_state *s = user;
    if (s->write_errno)
        return;
    lvr_progress_clear(&s->progress);
    if (fwrite(piece, 1, n, stdout) != n || fflush(stdout) != 0)
        s->write_errno = errno ? errno : EIO;
}

/* A reader that has gone away needs no more tokens either. */
static bool on_token(void *user, int32_t token)
{
    run_state *s = user;
    lvr_buf *text = &s->current->text;
    const size_t begin = text->len;
    lvr_detokenize(lvr_session_tokenizer(s->session), token, false, text);
    return !text->failed && lvr_text_stream_take(&s->stream, begin) && s->write_errno == 0;
}

/* ---- generating ---- */

static lvr_status generate_from(run_state *s, const lvr_prompt *prompt, lvr_run_request *result,
                                lvr_error *err)
{
    int32_t *tokens = NULL;
    uint32_t n = 0;
    lvr_status status = lvr_session_options_tokenize(&s->options->session, lvr_session_tokenizer(s->session),
                                                     prompt, &tokens, &n, err);
    if (status != LVR_OK)
        return status;
    if (n == 0)
        status = lvr_fail(err, LVR_ERR_CONFIG,
                          "prompt %" PRIu64 " is empty, and the model has no start token", prompt->id);
    else
        status = lvr_session_generate(s->session, prompt->id, 0, tokens, n, s->setup->n_predict, on_token, s,
                                      &result->tokens, &result->n_tokens, &result->stats, err);
    free(tokens);
    return status;
}

static lvr_status generate(run_state *s, const lvr_prompt *prompt, lvr_error *err)
{
    lvr_run_request *result = &s->results[s->n_results++]; /* also what is cut short */
    *result = (lvr_run_request){.id = prompt->id, .domain = prompt->domain};
    s->current = result;
    lvr_text_stream_begin(&s->stream, &result->text);
    const lvr_status status = generate_from(s, prompt, result, err);
    if (status != LVR_OK && status != LVR_ERR_INTERRUPTED)
        return status;
    lvr_run_stats_add(&s->sum, &result->stats);
    lvr_text_stream_end(&s->stream);
    if (streams(s))
        print_piece(s, "\n", 1);
    return result->text.failed ? lvr_fail(err, LVR_ERR_NOMEM, "out of memory for the text") : status;
}

static lvr_status generate_all(run_state *s, lvr_error *err)
{
    lvr_status status = LVR_OK;
    for (size_t i = 0; status == LVR_OK && s->write_errno == 0 && i < s->prompts.n; i++) {
        if (s->prompts.n > 1)
            lvr_log(LVR_LOG_INFO, "prompt %zu of %zu (id %" PRIu64 ")", i + 1, s->prompts.n,
                    s->prompts.items[i].id);
        status = generate(s, &s->prompts.items[i], err);
    }
    if (s->write_errno)
        return lvr_fail_errno(err, s->write_errno, "standard output: cannot write the text");
    if (status == LVR_OK && s->sum.n_tokens == 0)
        return lvr_fail(err, LVR_ERR_INVARIANT, "no token was generated");
    return status;
}

/* ---- output ---- */

static lvr_status write_result(const run_state *s, const lvr_run_report *report, lvr_error *err)
{
    lvr_buf out = LVR_BUF_INIT;
    if (s->options->json)
        lvr_run_report_json(report, &out);
    for (size_t i = 0; i < s->n_results && !s->options->json; i++) {
        lvr_buf_append(&out, s->results[i].text.data, s->results[i].text.len);
        lvr_buf_puts(&out, "\n");
    }
    return lvr_emit(s->options->out, &out, err);
}

/* Of an interrupted run too: what there is. */
static lvr_status report(run_state *s, lvr_error *err)
{
    lvr_io_report io;
    const bool streams = s->session && lvr_session_io_report(s->session, &io);
    const lvr_run_report report = {.setup = s->setup,
                                   .session = s->session,
                                   .requests = s->results,
                                   .n = s->n_results,
                                   .sum = &s->sum,
                                   .io = streams ? &io : NULL};
    lvr_status status = LVR_OK;
    lvr_progress_clear(&s->progress);
    if (s->options->json || (s->options->out && s->n_results > 0))
        status = write_result(s, &report, err);
    if (s->n_results > 0)
        lvr_run_report_log(&report);
    return status;
}

/* ---- all together ---- */

static void free_state(run_state *s)
{
    for (size_t i = 0; s->results && i < s->prompts.n; i++) {
        free(s->results[i].tokens);
        lvr_buf_free(&s->results[i].text);
    }
    free(s->results);
    lvr_prompts_free(&s->prompts);
    lvr_stop_strings_free(s->stops);
    lvr_session_free(s->session);
}

static lvr_status make_stops(run_state *s, lvr_error *err)
{
    const lvr_strlist *given = &s->options->stop;
    lvr_buf *items = calloc(given->n + 1, sizeof *items);
    lvr_status status =
        items ? LVR_OK : lvr_fail(err, LVR_ERR_NOMEM, "out of memory for %zu stop strings", given->n);
    for (size_t i = 0; status == LVR_OK && i < given->n; i++)
        status = lvr_input_argument("stop", given->items[i], s->options->session.escape, &items[i], err);
    if (status == LVR_OK)
        status = lvr_stop_strings_new(items, given->n, &s->stops, err);
    s->stream = (lvr_text_stream){.stops = s->stops, .write = streams(s) ? print_piece : NULL, .user = s};
    for (size_t i = 0; items && i < given->n; i++)
        lvr_buf_free(&items[i]);
    free(items);
    return status;
}

static lvr_status open_all(run_state *s, lvr_error *err)
{
    const char *inputs[LVR_SESSION_INPUTS];
    lvr_session_options_inputs(&s->options->session, inputs);
    lvr_status status = lvr_emit_check_inputs(s->options->out, inputs, LVR_SESSION_INPUTS, err);
    if (status == LVR_OK)
        status = make_stops(s, err);
    if (status == LVR_OK)
        status = lvr_session_options_prompts(&s->options->session, &s->prompts, err);
    if (status != LVR_OK)
        return status;
    s->results = calloc(s->prompts.n, sizeof *s->results);
    if (!s->results)
        return lvr_fail(err, LVR_ERR_NOMEM, "out of memory for %zu results", s->prompts.n);
    return lvr_session_setup_open(s->setup, &s->options->session, &s->session, err);
}

static lvr_status run_prompts(run_state *s, lvr_error *err)
{
    lvr_error report_err = LVR_ERROR_INIT;
    lvr_status status = open_all(s, err);
    if (status == LVR_OK)
        status = generate_all(s, err);
    if (status != LVR_OK && status != LVR_ERR_INTERRUPTED)
        return status;
    if (status == LVR_ERR_INTERRUPTED)
        s->sum.stop = LVR_STOP_INTERRUPTED;
    const lvr_status reported = report(s, &report_err);
    return reported == LVR_OK ? status : lvr_fail(err, reported, "%s", report_err.msg);
}

static lvr_status run(const run_options *o, int argc, char *const *argv, lvr_error *err)
{
    lvr_session_setup *setup = calloc(1, sizeof *setup);
    if (!setup)
        return lvr_fail(err, LVR_ERR_NOMEM, "out of memory");
    const lvr_command_line line = {.table = table, .n = N_PARAMS, .argc = argc, .argv = argv};
    run_state s = {.options = o, .setup = setup};
    lvr_progress_begin(&s.progress, o->session.quiet);
    lvr_status status = lvr_session_options_resolve(&o->session, &line, setup, err);
    if (status == LVR_OK) {
        setup->config.progress = lvr_progress_show;
        setup->config.progress_user = &s.progress;
        status = run_prompts(&s, err);
    }
    free_state(&s);
    lvr_progress_end(&s.progress);
    free(setup);
    return status;
}

lvr_status lvr_cmd_run(int argc, char *const *argv, lvr_error *err)
{
    run_options o;
    bool help = false;
    lvr_params_default(table, N_PARAMS, &o);
    lvr_status status = lvr_options_parse(table, N_PARAMS, &o, argc, argv, &help, err);
    if (status == LVR_OK && help)
        status = lvr_emit_help(usage, table, N_PARAMS, err);
    else if (status == LVR_OK)
        status = run(&o, argc, argv, err);
    lvr_strlist_free(&o.session.set);
    lvr_strlist_free(&o.stop);
    return status;
}
