#include "sim/sim_report.h"

#include "common/json.h"
#include "common/log.h"

#include "lvr_config.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static double seconds(uint64_t ns)
{
    return (double)ns * 1e-9;
}

static double per(double a, double b)
{
    return b > 0 ? a / b : NAN;
}

static double io_share(const lvr_sim_report *r)
{
    const uint64_t context = r->result->n_prompt / r->result->n_requests;
    return lvr_geometry_stream_bytes(r->geometry) ? lvr_cost_io_share(r->cost, r->geometry, (uint32_t)context)
                                                  : 0.0;
}

static void json_tokens(lvr_json *j, const int32_t *tokens, uint64_t n)
{
    lvr_json_array(j, "tokens");
    for (uint64_t i = 0; i < n; i++)
        lvr_json_i64(j, NULL, tokens[i]);
    lvr_json_end_array(j);
}

static void json_params(lvr_json *j, const lvr_policy *policy)
{
    lvr_json_object(j, "params");
    for (size_t i = 0; i < policy->ops->n_params; i++) {
        const lvr_param *p = &policy->ops->params[i];
        if (p->type != LVR_PARAM_STR)
            lvr_json_double(j, p->name, lvr_param_get_number(p, policy->params.bytes));
    }
    for (size_t i = 0; i < LVR_ADAPT_PARAMS && policy->ops->calibrated; i++)
        lvr_json_double(j, lvr_adapt_params[i].name,
                        lvr_param_get_number(&lvr_adapt_params[i], &policy->adapt));
    lvr_json_end_object(j);
}

static void json_figures(const lvr_sim_report *r, lvr_json *j)
{
    const lvr_sim_result *s = r->result;
    lvr_json_u64(j, "n_prompt", s->n_prompt);
    lvr_json_u64(j, "n_tokens", s->n_tokens);
    lvr_json_double(j, "decode_tokens_per_s", lvr_sim_tokens_per_s(s));
    lvr_json_double(j, "prefill_tokens_per_s",
                    per((double)(s->n_prompt - s->n_requests), seconds(s->prefill_ns)));
    lvr_json_double(j, "ttft_s", seconds(s->ttft_ns));
    lvr_json_double(j, "tpot_s", per(seconds(s->decode_ns), (double)s->n_tokens));
    lvr_json_u64(j, "rounds", s->rounds);
    lvr_json_double(j, "mean_acceptance_length", per((double)s->n_tokens, (double)s->rounds));
    lvr_json_double(j, "expected_acceptance_length", 1 + per(s->expected_accepted, (double)s->rounds));
    lvr_json_double(j, "acceptance_rate", per((double)s->accepted, (double)s->drafted_rows));
    lvr_json_u64(j, "verified_rows", s->verified_rows);
    lvr_json_u64(j, "pruned_rows", s->pruned_rows);
    lvr_json_u64(j, "draft_steps", s->draft_steps);
    lvr_json_u64(j, "bytes_read", s->bytes_read);
    lvr_json_double(j, "io_s", seconds(s->flash_busy_ns));
    lvr_json_double(j, "io_wait_s", seconds(s->flash_wait_ns));
    lvr_json_double(j, "io_idle_s", seconds(s->flash_idle_ns));
    lvr_json_double(j, "compute_s", seconds(s->layer_ns));
    lvr_json_double(j, "head_s", seconds(s->head_ns));
    lvr_json_double(j, "draft_s", seconds(s->draft_ns));
    lvr_json_double(j, "plan_s", seconds(s->plan_ns));
    lvr_json_double(j, "score_s", seconds(s->score_ns));
    lvr_json_double(j, "commit_s", seconds(s->commit_ns));
    lvr_json_double(j, "simulated_s", seconds(s->simulated_ns));
    lvr_json_double(j, "io_share", io_share(r));
    lvr_json_double(j, "resident_fraction", lvr_geometry_resident_fraction(r->geometry));
    lvr_json_double(j, "peak_rss_bytes", NAN); /* only a real run has one */
}

static void json_requests(const lvr_sim_report *r, lvr_json *j)
{
    const lvr_sim_result *s = r->result;
    lvr_json_array(j, "requests");
    for (uint32_t i = 0; i < s->n_requests; i++) {
        lvr_json_object(j, NULL);
        lvr_json_u64(j, "n_tokens", s->tokens_per_request[i]);
        lvr_json_u64(j, "rounds", s->rounds_per_request[i]);
        lvr_json_double(j, "decode_tokens_per_s",
                        per(s->tokens_per_request[i], seconds(s->decode_ns_per_request[i])));
        lvr_json_end_object(j);
    }
    lvr_json_end_array(j);
}

static void json_ceiling(const lvr_ceiling *c, lvr_json *j)
{
    lvr_json_object(j, "ceiling");
    lvr_json_double(j, "tokens_per_s", c->tokens_per_s);
    lvr_json_double(j, "perfect_draft_tokens_per_s", c->perfect_draft_tokens_per_s);
    lvr_json_double(j, "fraction", c->fraction);
    lvr_json_object(j, "losses");
    lvr_json_double(j, "draft", c->loss.draft);
    lvr_json_double(j, "tree", c->loss.tree);
    lvr_json_double(j, "pruning", c->loss.pruning);
    lvr_json_double(j, "schedule", c->loss.schedule);
    lvr_json_end_object(j);
    lvr_json_end_object(j);
}

static void text_ceiling(const lvr_ceiling *c, lvr_buf *out)
{
    lvr_buf_printf(
        out,
        "  ceiling        %.3f tokens/s in hindsight, of which %.1f %% are reached; with a perfect "
        "draft %.3f\n",
        c->tokens_per_s, 100.0 * c->fraction, c->perfect_draft_tokens_per_s);
    lvr_buf_printf(
        out,
        "  lost           of the decode time %.1f %% by the draft, %.1f %% by the choice of trees, "
        "%.1f %% by pruning, %.1f %% by the schedule\n",
        100.0 * c->loss.draft, 100.0 * c->loss.tree, 100.0 * c->loss.pruning, 100.0 * c->loss.schedule);
}

void lvr_sim_report_json(const lvr_sim_report *r, lvr_buf *out)
{
    const lvr_sim_result *s = r->result;
    const double total = (double)s->simulated_ns;
    lvr_json j;
    lvr_json_init(&j, out, true);
    lvr_json_object(&j, NULL);
    lvr_json_str(&j, "policy", r->policy->ops->name);
    json_params(&j, r->policy);
    json_tokens(&j, s->tokens, s->n_tokens);
    json_figures(r, &j);
    lvr_json_object(&j, "schedule");
    lvr_json_str(&j, "io_mode", lvr_io_mode_name(r->geometry->io_mode));
    lvr_json_str(&j, "place", lvr_place_name(r->geometry->place));
    lvr_json_u64(&j, "ring_slots", r->geometry->ring_slots);
    lvr_json_u64(&j, "slice_bytes", r->geometry->slice_bytes);
    lvr_json_u64(&j, "stream_bytes_per_pass", lvr_geometry_stream_bytes(r->geometry));
    lvr_json_end_object(&j);
    lvr_json_object(&j, "utilisation");
    lvr_json_double(&j, "flash", per((double)s->flash_busy_ns, total));
    lvr_json_double(&j, "compute", per((double)s->compute_busy_ns, total));
    lvr_json_double(&j, "waiting_for_flash", per((double)s->flash_wait_ns, total));
    lvr_json_double(&j, "npu", per((double)s->npu_busy_ns, total));
    lvr_json_double(&j, "waiting_for_npu", per((double)s->npu_wait_ns, total));
    lvr_json_end_object(&j);
    if (r->ceiling)
        json_ceiling(r->ceiling, &j);
    lvr_json_str(&j, "acceptance_source", lvr_outcome_source(r->outcome));
    lvr_json_str(&j, "timing_source", r->timing_source);
    lvr_json_bool(&j, "synthetic", r->synthetic);
    lvr_json_bool(&j, "exact", s->outside_nodes == 0);
    lvr_json_u64(&j, "outside_nodes", s->outside_nodes);
    lvr_json_bool(&j, "what_if", r->what_if);
    lvr_json_u64(&j, "fit_prompts", r->n_fit_prompts);
    json_requests(r, &j);
    lvr_json_u64(&j, "events", s->events);
    lvr_json_double(&j, "host_wall_s", seconds(r->host_wall_ns));
    lvr_json_double(&j, "events_per_s", per((double)s->events, seconds(r->host_wall_ns)));
    lvr_json_end_object(&j);
    lvr_buf_puts(out, "\n");
}

void lvr_sim_report_text(const lvr_sim_report *r, lvr_buf *out)
{
    const lvr_sim_result *s = r->result;
    const double total = (double)s->simulated_ns;
    lvr_buf_printf(out, "%s: %.3f tokens/s%s%s\n", r->policy->ops->name, lvr_sim_tokens_per_s(s),
                   r->synthetic ? " (synthetic)" : "", r->what_if ? " (what-if)" : "");
    lvr_buf_printf(out,
                   "  tokens         %" PRIu64 " in %" PRIu64
                   " rounds (%.3f a round, %.3f expected), %u requests\n",
                   s->n_tokens, s->rounds, per((double)s->n_tokens, (double)s->rounds),
                   1 + per(s->expected_accepted, (double)s->rounds), s->n_requests);
    lvr_buf_printf(
        out, "  rows           %.2f a round, %.3f of the drafted were accepted, %" PRIu64 " draft steps\n",
        per((double)s->verified_rows, (double)s->rounds),
        s->drafted_rows ? (double)s->accepted / (double)s->drafted_rows : 0.0, s->draft_steps);
    if (s->pruned_rows > 0)
        lvr_buf_printf(out, "  pruning        %.2f rows a round dropped on the way, scoring %.6f s\n",
                       per((double)s->pruned_rows, (double)s->rounds), seconds(s->score_ns));
    lvr_buf_printf(out, "  simulated      %.6f s: prefill %.6f, decode %.6f; first token after %.6f\n",
                   seconds(s->simulated_ns), seconds(s->prefill_ns), seconds(s->decode_ns),
                   seconds(s->ttft_ns));
    lvr_buf_printf(out, "  compute        layers %.6f s, head %.6f, draft %.6f, plan %.6f, commit %.6f\n",
                   seconds(s->layer_ns), seconds(s->head_ns), seconds(s->draft_ns), seconds(s->plan_ns),
                   seconds(s->commit_ns));
    lvr_buf_printf(out,
                   "  utilisation    flash %.1f %%, compute %.1f %%; waiting for flash %.1f %%; flash idle, "
                   "ring full %.1f %%\n",
                   100.0 * (double)s->flash_busy_ns / total, 100.0 * (double)s->compute_busy_ns / total,
                   100.0 * (double)s->flash_wait_ns / total, 100.0 * (double)s->flash_idle_ns / total);
    if (s->npu_tickets > 0)
        lvr_buf_printf(out, "  accelerator    %" PRIu64 " tickets, %.1f %% busy; the host waited %.1f %%\n",
                       s->npu_tickets, 100.0 * (double)s->npu_busy_ns / total,
                       100.0 * (double)s->npu_wait_ns / total);
    lvr_buf_printf(out, "  flash          %.3f MB read; I/O share of a serial autoregressive pass %.1f %%\n",
                   (double)s->bytes_read * 1e-6, 100.0 * io_share(r));
    if (r->ceiling)
        text_ceiling(r->ceiling, out);
    lvr_buf_printf(out, "  acceptance     %s\n  timings        %s\n", lvr_outcome_source(r->outcome),
                   r->timing_source);
    if (s->outside_nodes > 0)
        lvr_buf_printf(out, "  NOT EXACT      the policy met %" PRIu64 " nodes that were not recorded\n",
                       s->outside_nodes);
    if (r->n_fit_prompts > 0)
        lvr_buf_printf(out, "  NOT HELD OUT   %u requests have prompts that the cost model was fitted on\n",
                       r->n_fit_prompts);
    lvr_buf_printf(out, "  simulator      %" PRIu64 " events\n", s->events);
}

void lvr_sim_warn_ranges(const lvr_cost_model *m, const lvr_sim_result *r)
{
    for (int op = 0; op < LVR_OP_COUNT; op++) {
        const char *name = lvr_op_name((lvr_op)op);
        const lvr_fit_term *t = lvr_cost_model_term(m, name);
        if (t && op != LVR_OP_PLAN && r->max_rows[op] > t->x_max)
            lvr_log(LVR_LOG_WARN,
                    "%s was run with up to %u rows, the cost model has seen up to %.0f: times beyond are "
                    "extrapolated",
                    name, r->max_rows[op], t->x_max);
    }
    const lvr_fit_term *npu = lvr_cost_model_term(m, "layer_npu");
    if (npu && r->npu_max_rows > npu->x_max)
        lvr_log(
            LVR_LOG_WARN,
            "layers were run on the accelerator with up to %u rows, the cost model has seen buckets up to "
            "%.0f: times beyond are extrapolated",
            r->npu_max_rows, npu->x_max);
}

void lvr_sim_trace_meta(const lvr_policy_file *pf, const char *target_name, const char *draft_name,
                        bool synthetic, char *config, lvr_trace_meta *ret)
{
    *ret = (lvr_trace_meta){.kind = LVR_TRACE_SIMULATED,
                            .version_major = LVR_TRACE_VERSION_MAJOR,
                            .version_minor = LVR_TRACE_VERSION_MINOR,
                            .synthetic = synthetic,
                            .seed = pf->conditions.seed,
                            .recorder_overhead_pct = NAN,
                            .config_yaml = config,
                            .temperature = pf->conditions.temperature,
                            .top_p = pf->conditions.top_p,
                            .top_k = pf->conditions.top_k};
    snprintf(ret->software, sizeof ret->software, "lever %s", LVR_VERSION);
    snprintf(ret->commit, sizeof ret->commit, "%s", LVR_COMMIT);
    snprintf(ret->compiler, sizeof ret->compiler, "%s", LVR_COMPILER);
    snprintf(ret->target.name, sizeof ret->target.name, "%s", target_name);
    snprintf(ret->draft.name, sizeof ret->draft.name, "%s", draft_name);
    memcpy(ret->target.sha256, pf->target_sha256, sizeof ret->target.sha256);
    memcpy(ret->draft.sha256, pf->draft_sha256, sizeof ret->draft.sha256);
    memcpy(ret->device.sha256, pf->device_sha256, sizeof ret->device.sha256);
    snprintf(ret->device.io_engine, sizeof ret->device.io_engine, "simulated");
    ret->device.direct = true;
    ret->device.scale = 1.0;
    ret->target.n_layers = pf->geometry.n_layers;
    for (uint32_t l = 0; l < pf->geometry.n_layers; l++) {
        ret->target.bytes_per_layer[l] = pf->geometry.layer_bytes[l];
        ret->target.resident[l] = pf->geometry.resident[l];
    }
}
