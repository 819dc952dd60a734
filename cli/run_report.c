#include "cli/run_report.h"

#include "common/fs.h"
#include "common/json.h"
#include "common/log.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double per(double a, double b)
{
    return b > 0 ? a / b : NAN;
}

static double seconds(uint64_t ns)
{
    return (double)ns * 1e-9;
}

/* Requests that have a first token. */
static size_t n_begun(const lvr_run_report *r)
{
    size_t n = 0;
    for (size_t i = 0; i < r->n; i++)
        n += r->requests[i].n_tokens > 0;
    return n;
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

static double repeated_share(const lvr_run_request *results, size_t n)
{
    uint64_t repeated = 0, total = 0;
    for (size_t i = 0; i < n; i++)
        count_repeats(results[i].tokens, results[i].n_tokens, &repeated, &total);
    return total ? (double)repeated / (double)total : 0;
}

/* T_io / (T_io + V(1) + head): by the cost table, or measured if every pass was one row. NaN: not known. */
static double io_share(const lvr_run_report *r)
{
    const lvr_policy *policy = &r->setup->file.policy;
    const lvr_geometry *g = lvr_session_geometry(r->session);
    const lvr_run_stats *st = r->sum;
    if (lvr_geometry_stream_bytes(g) == 0)
        return 0;
    if (st->n_prompt == 0)
        return NAN;
    if (policy->has_cost)
        return lvr_cost_io_share(&policy->cost, g, (uint32_t)(st->n_prompt / r->n));
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

static void json_tokens(lvr_json *j, const lvr_run_request *results, size_t n)
{
    lvr_json_array(j, "tokens");
    for (size_t i = 0; i < n; i++)
        for (uint32_t t = 0; t < results[i].n_tokens; t++)
            lvr_json_i64(j, NULL, results[i].tokens[t]);
    lvr_json_end_array(j);
}

/* n: requests with a first token that are summed in `st`. */
static void json_figures(lvr_json *j, const lvr_run_stats *st, size_t n)
{
    lvr_json_u64(j, "n_prompt", st->n_prompt);
    lvr_json_u64(j, "n_tokens", st->n_tokens);
    lvr_json_double(j, "decode_tokens_per_s", per((double)st->n_tokens, seconds(st->decode_ns)));
    lvr_json_double(j, "prefill_tokens_per_s", per((double)st->n_prefilled, seconds(st->prefill_ns)));
    lvr_json_double(j, "ttft_s", per(seconds(st->ttft_ns), (double)n));
    lvr_json_double(j, "tpot_s", per(seconds(st->decode_ns), (double)st->n_tokens));
    lvr_json_u64(j, "rounds", st->rounds);
    lvr_json_double(j, "mean_acceptance_length", per((double)st->n_tokens, (double)st->rounds));
    lvr_json_double(j, "acceptance_rate", per((double)st->accepted, (double)st->drafted_rows));
    lvr_json_u64(j, "verified_rows", st->verified_rows);
    lvr_json_u64(j, "pruned_rows", st->pruned_rows);
    lvr_json_u64(j, "draft_steps", st->draft_steps);
    lvr_json_u64(j, "bytes_read", st->bytes_read);
    lvr_json_double(j, "io_s", seconds(st->io_busy_ns));
    lvr_json_double(j, "io_wait_s", seconds(st->io_wait_ns));
    lvr_json_double(j, "io_idle_s", seconds(st->io_idle_ns));
    lvr_json_double(j, "compute_s", seconds(st->compute_ns));
    lvr_json_double(j, "head_s", seconds(st->head_ns));
    lvr_json_double(j, "draft_s", seconds(st->draft_ns));
    lvr_json_double(j, "plan_s", seconds(st->plan_ns));
    lvr_json_double(j, "score_s", seconds(st->score_ns));
    lvr_json_double(j, "commit_s", seconds(st->commit_ns));
    lvr_json_double(j, "wall_s", seconds(st->wall_ns));
    lvr_json_u64(j, "late_reads", st->late_reads);
}

static const char *stop_name(lvr_stop stop)
{
    static const char *const names[] = {[LVR_STOP_LENGTH] = "length",
                                        [LVR_STOP_EOS] = "eos",
                                        [LVR_STOP_CONTEXT] = "context",
                                        [LVR_STOP_HOST] = "stop_string",
                                        [LVR_STOP_INTERRUPTED] = "interrupted"};
    return names[stop];
}

static void json_request(lvr_json *j, const lvr_run_request *r)
{
    lvr_json_object(j, NULL);
    lvr_json_u64(j, "id", r->id);
    lvr_json_str(j, "domain", r->domain);
    json_tokens(j, r, 1);
    lvr_json_strn(j, "text", r->text.data ? r->text.data : "", r->text.len);
    json_figures(j, &r->stats, r->n_tokens > 0);
    lvr_json_str(j, "stop", stop_name(r->stats.stop));
    lvr_json_end_object(j);
}

/* Only with --accel. */
static void json_accel(const lvr_run_report *r, lvr_json *j)
{
    const lvr_accel_caps *caps = lvr_session_accel(r->session);
    const lvr_session_config *c = &r->setup->config;
    if (!caps)
        return;
    lvr_json_object(j, "accel");
    lvr_json_str(j, "name", caps->name);
    lvr_json_str(j, "engine", caps->engine);
    lvr_json_bool(j, "fallback", caps->fallback);
    lvr_json_str(j, "reason", caps->fallback ? caps->reason : NULL);
    lvr_json_bool(j, "exact", caps->exact);
    lvr_json_str(j, "place", lvr_place_name(lvr_session_geometry(r->session)->place));
    lvr_json_double(j, "launch_us", (double)c->accel_launch_ns * 1e-3);
    lvr_json_double(j, "sync_us", (double)c->accel_sync_ns * 1e-3);
    lvr_json_u64(j, "tickets", r->sum->npu_tickets);
    lvr_json_double(j, "busy_s", seconds(r->sum->npu_ns));
    lvr_json_double(j, "wait_s", seconds(r->sum->npu_wait_ns));
    lvr_json_end_object(j);
}

static void json_pass(lvr_json *j, const char *key, uint64_t bytes, uint64_t busy_ns, double bytes_per_s)
{
    lvr_json_object(j, key);
    lvr_json_u64(j, "bytes", bytes);
    lvr_json_double(j, "busy_s", seconds(busy_ns));
    lvr_json_double(j, "gbytes_per_s", bytes_per_s * 1e-9);
    lvr_json_end_object(j);
}

/* How the streamed layers were really read; null if none are. */
static void json_io(const lvr_run_report *r, lvr_json *j)
{
    const lvr_io_report *io = r->io;
    if (!io) {
        lvr_json_str(j, "io", NULL);
        return;
    }
    lvr_json_object(j, "io");
    lvr_json_str(j, "engine", io->engine);
    lvr_json_str(j, "path", lvr_read_path_name(io->path));
    lvr_json_bool(j, "registered_buffer", io->registered_buffer);
    lvr_json_bool(j, "registered_files", io->registered_files);
    lvr_json_double(j, "huge_pages", io->huge_pages);
    lvr_json_u64(j, "slice_bytes", lvr_session_geometry(r->session)->slice_bytes);
    lvr_json_u64(j, "depth", io->depth);
    lvr_json_double(j, "cached_before", io->cached_before);
    lvr_json_double(j, "cached_after", io->cached_after);
    json_pass(j, "first_pass", io->first_pass_bytes, io->first_pass_busy_ns, io->first_pass_bytes_per_s);
    json_pass(j, "later_passes", io->later_pass_bytes, io->later_pass_busy_ns, io->later_pass_bytes_per_s);
    lvr_json_bool(j, "checked", io->checked);
    lvr_json_double(j, "reader_cpu_s", seconds(io->cpu_ns));
    lvr_json_end_object(j);
}

/* What only an open session knows. */
static void json_session(const lvr_run_report *r, lvr_json *j)
{
    if (!r->session)
        return;
    lvr_json_double(j, "io_share", io_share(r));
    lvr_json_str(j, "head", lvr_head_name(lvr_session_geometry(r->session)->head));
    lvr_json_u64(j, "run_ahead_bytes", lvr_session_run_ahead_bytes(r->session));
    lvr_json_u64(j, "dram_plan_bytes", lvr_session_parts(r->session)->total_bytes);
    lvr_json_double(j, "resident_fraction", lvr_geometry_resident_fraction(lvr_session_geometry(r->session)));
    json_io(r, j);
    json_accel(r, j);
    lvr_json_bool(j, "synthetic", lvr_session_synthetic(r->session));
}

void lvr_run_report_json(const lvr_run_report *r, lvr_buf *out)
{
    lvr_json j;
    lvr_buf text = LVR_BUF_INIT;
    for (size_t i = 0; i < r->n; i++)
        lvr_buf_append(&text, r->requests[i].text.data, r->requests[i].text.len);
    lvr_json_init(&j, out, true);
    lvr_json_object(&j, NULL);
    lvr_json_str(&j, "policy", r->setup->file.policy.ops->name);
    json_tokens(&j, r->requests, r->n);
    lvr_json_strn(&j, "text", text.data ? text.data : "", text.len);
    json_figures(&j, r->sum, n_begun(r));
    lvr_json_str(&j, "stop", stop_name(r->sum->stop));
    lvr_json_double(&j, "repeated_8gram_share", repeated_share(r->requests, r->n));
    lvr_json_u64(&j, "peak_rss_bytes", peak_rss_bytes());
    lvr_json_str(&j, "emulated", r->setup->config.emulate ? r->setup->emulated_name : "");
    lvr_json_double(&j, "emulate_scale", r->setup->config.emulated_scale);
    json_session(r, &j);
    lvr_json_bool(&j, "exact", true);
    lvr_json_u64(&j, "outside_nodes", 0);
    lvr_json_bool(&j, "what_if", r->setup->what_if);
    lvr_json_array(&j, "requests");
    for (size_t i = 0; i < r->n; i++)
        json_request(&j, &r->requests[i]);
    lvr_json_end_array(&j);
    lvr_json_end_object(&j);
    lvr_buf_puts(out, "\n");
    out->failed |= text.failed;
    lvr_buf_free(&text);
}

static void log_tokens(const lvr_run_report *r)
{
    const lvr_run_stats *st = r->sum;
    const char *policy = r->setup->file.policy.ops->name;
    if (st->n_tokens == 0)
        lvr_log(LVR_LOG_INFO, "%s: no token; %" PRIu64 " of %" PRIu64 " prompt tokens in %.3f s", policy,
                st->n_prefilled, st->n_prompt, seconds(st->prefill_ns));
    else
        lvr_log(LVR_LOG_INFO,
                "%s: %" PRIu64 " tokens, %.2f tokens/s; %" PRIu64
                " rounds of %.2f tokens; first token after %.3f s",
                policy, st->n_tokens, per((double)st->n_tokens, seconds(st->decode_ns)), st->rounds,
                per((double)st->n_tokens, (double)st->rounds), per(seconds(st->ttft_ns), (double)n_begun(r)));
}

static void describe_rate(const char *pass, double bytes_per_s, char *text, size_t n)
{
    text[0] = '\0';
    if (bytes_per_s > 0)
        snprintf(text, n, ", %s %.3f GB/s", pass, bytes_per_s * 1e-9);
}

/* Only if layers were streamed. */
static void log_io(const lvr_run_report *r)
{
    const lvr_io_report *io = r->io;
    char first[48], later[48], cached[64] = "";
    if (!io)
        return;
    describe_rate("first pass", io->first_pass_bytes_per_s, first, sizeof first);
    describe_rate("later ones", io->later_pass_bytes_per_s, later, sizeof later);
    if (isfinite(io->cached_before))
        snprintf(cached, sizeof cached, "; %.0f %% were in the page cache before", io->cached_before * 100);
    lvr_log(LVR_LOG_INFO, "flash: %s reads (%s, depth %u)%s%s%s", lvr_read_path_name(io->path), io->engine,
            io->depth, first, later, cached);
}

static void log_pruning(const lvr_run_stats *st)
{
    if (st->pruned_rows > 0)
        lvr_log(LVR_LOG_INFO,
                "%" PRIu64 " of %" PRIu64 " verified rows were dropped on the way; scoring %.3f s",
                st->pruned_rows, st->verified_rows, seconds(st->score_ns));
}

void lvr_run_report_log(const lvr_run_report *r)
{
    const lvr_run_stats *st = r->sum;
    log_tokens(r);
    log_pruning(st);
    log_io(r);
    lvr_log(LVR_LOG_INFO,
            "read %.1f MB, flash busy %.3f s (waited for %.3f s); target %.3f s, head %.3f s, draft %.3f s, "
            "planning %.3f s; peak RSS %.1f MiB%s",
            (double)st->bytes_read * 1e-6, seconds(st->io_busy_ns), seconds(st->io_wait_ns),
            seconds(st->compute_ns), seconds(st->head_ns), seconds(st->draft_ns), seconds(st->plan_ns),
            (double)peak_rss_bytes() / 1048576.0, r->setup->what_if ? "; what-if" : "");
    if (lvr_session_accel(r->session))
        lvr_log(LVR_LOG_INFO, "accelerator %s (%s): %" PRIu64 " layers in %.3f s, waited for %.3f s",
                lvr_session_accel(r->session)->name, lvr_session_accel(r->session)->engine, st->npu_tickets,
                seconds(st->npu_ns), seconds(st->npu_wait_ns));
    if (st->late_reads > 0)
        lvr_log(LVR_LOG_WARN,
                "%" PRIu64
                " reads of the real device were slower than the emulated one: its timing is not honest",
                st->late_reads);
}
