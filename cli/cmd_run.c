/* lever run: text from a target, a draft and a policy. */
#include "cli/cli.h"
#include "cli/emit.h"
#include "cli/session_options.h"
#include "common/fs.h"
#include "common/json.h"
#include "common/log.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: lever run --target FILE [--draft FILE] [--policy NAME|FILE] --prompt TEXT [options]\n\n";

typedef struct run_options {
    lvr_session_options session; /* first: see LVR_SESSION_OPTION_ROWS */
    const char *out;
    bool json;
} run_options;

static const lvr_param table[] = {
    LVR_SESSION_OPTION_ROWS,
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

typedef struct request_result {
    uint64_t id;
    const char *domain;
    int32_t *tokens;
    uint32_t n_tokens;
    lvr_buf text;
    size_t n_printed; /* bytes of text that are on standard output */
    lvr_run_stats stats;
} request_result;

typedef struct run_state {
    const run_options *options;
    lvr_session_setup *setup;
    lvr_session *session;
    lvr_prompts prompts;
    request_result *results; /* [prompts.n] */
    size_t n_results;
    lvr_run_stats sum;
    request_result *current;
    int write_errno; /* of standard output */
} run_state;

/* ---- generating ---- */

static bool streams(const run_state *s)
{
    return !s->options->json && !s->options->out;
}

/* A reader that has gone away ends the run as a signal would. */
static void print_piece(run_state *s, const char *piece, size_t n)
{
    if (s->write_errno || n == 0)
        return;
    if (fwrite(piece, 1, n, stdout) == n && fflush(stdout) == 0)
        return;
    s->write_errno = errno ? errno : EIO;
    atomic_store(&lvr_cli_cancel, true);
}

/* Bytes without the character that has only begun: the next tokens may complete it. */
static size_t whole_characters(const lvr_buf *text)
{
    for (size_t back = 1; back <= 3 && back <= text->len; back++) {
        const unsigned char c = (unsigned char)text->data[text->len - back];
        if ((c & 0xc0) == 0x80)
            continue;
        const size_t n = c < 0xc0 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
        return n > back ? text->len - back : text->len;
    }
    return text->len;
}

static void print_upto(run_state *s, size_t end)
{
    request_result *r = s->current;
    if (!streams(s) || r->text.failed || end <= r->n_printed)
        return;
    print_piece(s, r->text.data + r->n_printed, end - r->n_printed);
    r->n_printed = end;
}

static void on_token(void *user, int32_t token)
{
    run_state *s = user;
    lvr_detokenize(lvr_session_tokenizer(s->session), token, false, &s->current->text);
    print_upto(s, whole_characters(&s->current->text));
}

static lvr_status generate(run_state *s, const lvr_prompt *prompt, lvr_error *err)
{
    int32_t *tokens = NULL;
    uint32_t n = 0;
    request_result *result = &s->results[s->n_results];
    *result = (request_result){.id = prompt->id, .domain = prompt->domain};
    s->current = result;
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
    s->n_results++; /* also what was cut short: its text is freed with the rest */
    if (status != LVR_OK)
        return status;
    lvr_run_stats_add(&s->sum, &result->stats);
    print_upto(s, result->text.len);
    if (streams(s))
        print_piece(s, "\n", 1);
    return result->text.failed ? lvr_fail(err, LVR_ERR_NOMEM, "out of memory for the text") : LVR_OK;
}

static lvr_status generate_all(run_state *s, lvr_error *err)
{
    lvr_status status = LVR_OK;
    for (size_t i = 0; status == LVR_OK && i < s->prompts.n; i++) {
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

/* ---- figures ---- */

static double per(double a, double b)
{
    return b > 0 ? a / b : NAN;
}

static double seconds(uint64_t ns)
{
    return (double)ns * 1e-9;
}

/* Share of the 8-grams of a text that it has had before: loops flatter acceptance. */
static void count_repeats(const int32_t *tokens, uint32_t n, uint64_t *repeated, uint64_t *total)
{
    for (uint32_t i = 0; i + 8 <= n; i++) {
        ++*total;
        for (uint32_t j = 0; j < i; j++) {
            if (memcmp(tokens + i, tokens + j, 8 * sizeof tokens[0]) != 0)
                continue;
            ++*repeated;
            break;
        }
    }
}

static double repeated_share(const request_result *results, size_t n)
{
    uint64_t repeated = 0, total = 0;
    for (size_t i = 0; i < n; i++)
        count_repeats(results[i].tokens, results[i].n_tokens, &repeated, &total);
    return total ? (double)repeated / (double)total : 0;
}

/* T_io / (T_io + V(1) + head): by the cost table, or measured if every pass was one row. NaN: not known. */
static double io_share(const run_state *s)
{
    const lvr_policy *policy = &s->setup->file.policy;
    const lvr_geometry *g = lvr_session_geometry(s->session);
    const lvr_run_stats *st = &s->sum;
    if (lvr_geometry_stream_bytes(g) == 0)
        return 0;
    if (policy->has_cost)
        return lvr_cost_io_share(&policy->cost, g, (uint32_t)(st->n_prompt / s->n_results));
    if (st->verified_rows != st->rounds)
        return NAN;
    return per((double)st->decode_io_busy_ns,
               (double)(st->decode_io_busy_ns + st->decode_compute_ns + st->head_ns));
}

static uint64_t peak_rss_bytes(void)
{
    lvr_buf text = LVR_BUF_INIT;
    if (lvr_read_file("/proc/self/status", 1 << 20, &text, NULL) != LVR_OK)
        return 0;
    const char *at = strstr(text.data, "VmHWM:");
    const uint64_t kib = at ? strtoull(at + strlen("VmHWM:"), NULL, 10) : 0;
    lvr_buf_free(&text);
    return kib * 1024;
}

static void json_tokens(lvr_json *j, const request_result *results, size_t n)
{
    lvr_json_array(j, "tokens");
    for (size_t i = 0; i < n; i++)
        for (uint32_t t = 0; t < results[i].n_tokens; t++)
            lvr_json_i64(j, NULL, results[i].tokens[t]);
    lvr_json_end_array(j);
}

/* n: requests that are summed in `st`. */
static void json_figures(lvr_json *j, const lvr_run_stats *st, size_t n)
{
    lvr_json_u64(j, "n_prompt", st->n_prompt);
    lvr_json_u64(j, "n_tokens", st->n_tokens);
    lvr_json_double(j, "decode_tokens_per_s", per((double)st->n_tokens, seconds(st->decode_ns)));
    lvr_json_double(j, "prefill_tokens_per_s", per((double)(st->n_prompt - n), seconds(st->prefill_ns)));
    lvr_json_double(j, "ttft_s", seconds(st->ttft_ns) / (double)n);
    lvr_json_double(j, "tpot_s", per(seconds(st->decode_ns), (double)st->n_tokens));
    lvr_json_u64(j, "rounds", st->rounds);
    lvr_json_double(j, "mean_acceptance_length", per((double)st->n_tokens, (double)st->rounds));
    lvr_json_double(j, "acceptance_rate", per((double)st->accepted, (double)st->drafted_rows));
    lvr_json_u64(j, "verified_rows", st->verified_rows);
    lvr_json_u64(j, "draft_steps", st->draft_steps);
    lvr_json_u64(j, "bytes_read", st->bytes_read);
    lvr_json_double(j, "io_s", seconds(st->io_busy_ns));
    lvr_json_double(j, "io_wait_s", seconds(st->io_wait_ns));
    lvr_json_double(j, "compute_s", seconds(st->compute_ns));
    lvr_json_double(j, "head_s", seconds(st->head_ns));
    lvr_json_double(j, "draft_s", seconds(st->draft_ns));
    lvr_json_double(j, "plan_s", seconds(st->plan_ns));
    lvr_json_double(j, "commit_s", seconds(st->commit_ns));
    lvr_json_double(j, "wall_s", seconds(st->wall_ns));
    lvr_json_u64(j, "late_reads", st->late_reads);
}

static const char *stop_name(lvr_stop stop)
{
    static const char *const names[] = {
        [LVR_STOP_LENGTH] = "length", [LVR_STOP_EOS] = "eos", [LVR_STOP_CONTEXT] = "context"};
    return names[stop];
}

static void json_request(lvr_json *j, const request_result *r)
{
    lvr_json_object(j, NULL);
    lvr_json_u64(j, "id", r->id);
    lvr_json_str(j, "domain", r->domain);
    json_tokens(j, r, 1);
    lvr_json_strn(j, "text", r->text.data ? r->text.data : "", r->text.len);
    json_figures(j, &r->stats, 1);
    lvr_json_str(j, "stop", stop_name(r->stats.stop));
    lvr_json_end_object(j);
}

/* Only with --accel. */
static void json_accel(const run_state *s, lvr_json *j)
{
    const lvr_accel_caps *caps = lvr_session_accel(s->session);
    const lvr_session_config *c = &s->setup->config;
    if (!caps)
        return;
    lvr_json_object(j, "accel");
    lvr_json_str(j, "name", caps->name);
    lvr_json_str(j, "engine", caps->engine);
    lvr_json_bool(j, "fallback", caps->fallback);
    lvr_json_str(j, "reason", caps->fallback ? caps->reason : NULL);
    lvr_json_bool(j, "exact", caps->exact);
    lvr_json_str(j, "place", lvr_place_name(lvr_session_geometry(s->session)->place));
    lvr_json_double(j, "launch_us", (double)c->accel_launch_ns * 1e-3);
    lvr_json_double(j, "sync_us", (double)c->accel_sync_ns * 1e-3);
    lvr_json_u64(j, "tickets", s->sum.npu_tickets);
    lvr_json_double(j, "busy_s", seconds(s->sum.npu_ns));
    lvr_json_double(j, "wait_s", seconds(s->sum.npu_wait_ns));
    lvr_json_end_object(j);
}

static void json_result(const run_state *s, lvr_buf *out)
{
    lvr_json j;
    lvr_buf text = LVR_BUF_INIT;
    for (size_t i = 0; i < s->n_results; i++)
        lvr_buf_append(&text, s->results[i].text.data, s->results[i].text.len);
    lvr_json_init(&j, out, true);
    lvr_json_object(&j, NULL);
    lvr_json_str(&j, "policy", s->setup->file.policy.ops->name);
    json_tokens(&j, s->results, s->n_results);
    lvr_json_strn(&j, "text", text.data ? text.data : "", text.len);
    json_figures(&j, &s->sum, s->n_results);
    lvr_json_double(&j, "io_share", io_share(s));
    lvr_json_double(&j, "repeated_8gram_share", repeated_share(s->results, s->n_results));
    lvr_json_u64(&j, "run_ahead_bytes", lvr_session_run_ahead_bytes(s->session));
    lvr_json_u64(&j, "dram_plan_bytes", lvr_session_parts(s->session)->total_bytes);
    lvr_json_double(&j, "resident_fraction",
                    lvr_geometry_resident_fraction(lvr_session_geometry(s->session)));
    lvr_json_u64(&j, "peak_rss_bytes", peak_rss_bytes());
    lvr_json_str(&j, "emulated", s->setup->config.emulate ? s->setup->emulated_name : "");
    lvr_json_double(&j, "emulate_scale", s->setup->config.emulated_scale);
    json_accel(s, &j);
    lvr_json_bool(&j, "synthetic", lvr_session_synthetic(s->session));
    lvr_json_bool(&j, "exact", true);
    lvr_json_u64(&j, "outside_nodes", 0);
    lvr_json_bool(&j, "what_if", s->setup->what_if);
    lvr_json_array(&j, "requests");
    for (size_t i = 0; i < s->n_results; i++)
        json_request(&j, &s->results[i]);
    lvr_json_end_array(&j);
    lvr_json_end_object(&j);
    lvr_buf_puts(out, "\n");
    out->failed |= text.failed;
    lvr_buf_free(&text);
}

static void log_figures(const run_state *s)
{
    const lvr_run_stats *st = &s->sum;
    lvr_log(LVR_LOG_INFO,
            "%s: %" PRIu64 " tokens, %.2f tokens/s; %" PRIu64
            " rounds of %.2f tokens; first token after %.3f s",
            s->setup->file.policy.ops->name, st->n_tokens, per((double)st->n_tokens, seconds(st->decode_ns)),
            st->rounds, per((double)st->n_tokens, (double)st->rounds),
            seconds(st->ttft_ns) / (double)s->n_results);
    lvr_log(LVR_LOG_INFO,
            "read %.1f MB, flash busy %.3f s (waited for %.3f s); target %.3f s, head %.3f s, draft %.3f s, "
            "planning %.3f s; peak RSS %.1f MiB%s",
            (double)st->bytes_read * 1e-6, seconds(st->io_busy_ns), seconds(st->io_wait_ns),
            seconds(st->compute_ns), seconds(st->head_ns), seconds(st->draft_ns), seconds(st->plan_ns),
            (double)peak_rss_bytes() / 1048576.0, s->setup->what_if ? "; what-if" : "");
    if (lvr_session_accel(s->session))
        lvr_log(LVR_LOG_INFO, "accelerator %s (%s): %" PRIu64 " layers in %.3f s, waited for %.3f s",
                lvr_session_accel(s->session)->name, lvr_session_accel(s->session)->engine, st->npu_tickets,
                seconds(st->npu_ns), seconds(st->npu_wait_ns));
    if (st->late_reads > 0)
        lvr_log(LVR_LOG_WARN,
                "%" PRIu64
                " reads of the real device were slower than the emulated one: its timing is not honest",
                st->late_reads);
}

/* ---- output ---- */

static lvr_status write_result(const run_state *s, lvr_error *err)
{
    lvr_buf out = LVR_BUF_INIT;
    if (s->options->json)
        json_result(s, &out);
    else
        for (size_t i = 0; i < s->n_results; i++) {
            lvr_buf_append(&out, s->results[i].text.data, s->results[i].text.len);
            lvr_buf_puts(&out, "\n");
        }
    return lvr_emit(s->options->out, &out, err);
}

static void free_state(run_state *s)
{
    for (size_t i = 0; s->results && i < s->prompts.n; i++) {
        free(s->results[i].tokens);
        lvr_buf_free(&s->results[i].text);
    }
    free(s->results);
    lvr_prompts_free(&s->prompts);
    lvr_session_free(s->session);
}

static lvr_status run_prompts(run_state *s, lvr_error *err)
{
    lvr_status status = lvr_session_options_prompts(&s->options->session, &s->prompts, err);
    if (status != LVR_OK)
        return status;
    s->results = calloc(s->prompts.n, sizeof *s->results);
    if (!s->results)
        return lvr_fail(err, LVR_ERR_NOMEM, "out of memory for %zu results", s->prompts.n);
    status = lvr_session_setup_open(s->setup, &s->options->session, &s->session, err);
    if (status != LVR_OK)
        return status;
    status = generate_all(s, err);
    if (status != LVR_OK)
        return status;
    if (!streams(s))
        status = write_result(s, err);
    log_figures(s);
    return status;
}

static lvr_status run(const run_options *o, int argc, char *const *argv, lvr_error *err)
{
    lvr_session_setup *setup = calloc(1, sizeof *setup);
    if (!setup)
        return lvr_fail(err, LVR_ERR_NOMEM, "out of memory");
    const lvr_command_line line = {.table = table, .n = N_PARAMS, .argc = argc, .argv = argv};
    run_state s = {.options = o, .setup = setup};
    lvr_status status = lvr_session_options_resolve(&o->session, &line, setup, err);
    if (status == LVR_OK)
        status = run_prompts(&s, err);
    free_state(&s);
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
    return status;
}
