#include "sim/correlate.h"

#include "common/json.h"
#include "common/stats.h"
#include "costmodel/fit/spans.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One pass, by stage; the same for measured and simulated. */
typedef enum stage {
    STAGE_DRAFT,
    STAGE_FLASH_WAIT,
    STAGE_LAYER,
    STAGE_HEAD,
    STAGE_COMMIT,
    STAGE_PLAN,
    STAGE_ROUND,
    N_PASS_STAGES,
} stage;

static const char *const stage_names[N_PASS_STAGES] = {"draft",  "flash_wait", "layer", "head",
                                                       "commit", "plan",       "round"};

typedef struct pass {
    uint64_t round;
    bool prefill;
    uint32_t rows, kept, accepted;
    double ns[N_PASS_STAGES];
} pass;

typedef struct passes {
    pass *items;
    size_t n;
} passes;

/* The measured run. */
typedef struct measured {
    lvr_trace *trace;
    const char *path;
    lvr_policy_file file;
    lvr_rec_request *requests; /* by arrival */
    uint32_t n_requests;
    lvr_span *spans;
    size_t n_spans;
    passes passes;
    int32_t *tokens; /* output of the requests one after another */
    uint64_t n_tokens;
    uint64_t decode_ns, total_ns, flash_busy_ns;
} measured;

static void measured_free(measured *m)
{
    lvr_trace_close(m->trace);
    free(m->requests);
    free(m->spans);
    free(m->passes.items);
    free(m->tokens);
}

/* ---- the measured side ---- */

static lvr_status check_trace(const measured *m, lvr_error *err)
{
    const lvr_trace_meta *meta = lvr_trace_get_meta(m->trace);
    if (meta->kind != LVR_TRACE_TIMING && meta->kind != LVR_TRACE_SIMULATED)
        return lvr_fail(err, LVR_ERR_CONFIG,
                        "%s: a trace of kind %s was not measured; expected a timing trace (lever record)",
                        m->path, lvr_trace_kind_name(meta->kind));
    for (int s = 0; s < LVR_STREAM_COUNT; s++) {
        if (meta->dropped[s] > 0)
            return lvr_fail(err, LVR_ERR_CONFIG,
                            "%s: %" PRIu64
                            " records of %s were dropped, so its times do not add up; record it again",
                            m->path, meta->dropped[s], lvr_stream_describe((lvr_stream)s)->name);
    }
    if (!meta->config_yaml)
        return lvr_fail(err, LVR_ERR_FORMAT, "%s: no /config, so the run cannot be rebuilt", m->path);
    return LVR_OK;
}

static int by_arrival(const void *a, const void *b)
{
    const lvr_rec_request *x = a, *y = b;
    if (x->t_arrival_ns != y->t_arrival_ns)
        return x->t_arrival_ns < y->t_arrival_ns ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static lvr_status read_requests(measured *m, lvr_error *err)
{
    void *records = NULL;
    uint64_t n = 0;
    const lvr_status st = lvr_trace_read_all(m->trace, LVR_STREAM_REQUESTS, &records, &n, err);
    if (st)
        return st;
    m->requests = records;
    m->n_requests = (uint32_t)n;
    if (n == 0 || n > UINT32_MAX / 2)
        return lvr_fail(err, LVR_ERR_FORMAT, "%s: no finished request was recorded", m->path);
    qsort(m->requests, n, sizeof(*m->requests), by_arrival);
    for (uint64_t i = 0; i < n; i++) {
        m->n_tokens += m->requests[i].n_output;
        m->total_ns += m->requests[i].t_done_ns - m->requests[i].t_arrival_ns;
    }
    return LVR_OK;
}

/* Where a request's output starts in m->tokens; its index in *ret_index. */
static bool find_output(const measured *m, uint64_t request, uint64_t *ret_first, uint32_t *ret_index)
{
    uint64_t first = 0;
    for (uint32_t i = 0; i < m->n_requests; i++) {
        if (m->requests[i].id == request) {
            *ret_first = first;
            *ret_index = i;
            return true;
        }
        first += m->requests[i].n_output;
    }
    return false;
}

static lvr_status read_tokens(measured *m, lvr_error *err)
{
    void *records = NULL;
    uint64_t n = 0;
    lvr_status st = lvr_trace_read_all(m->trace, LVR_STREAM_TOKENS, &records, &n, err);
    const lvr_rec_token *k = records;
    m->tokens = calloc(m->n_tokens ? m->n_tokens : 1, sizeof(*m->tokens));
    if (!st && !m->tokens)
        st = lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory for %" PRIu64 " tokens", m->path, m->n_tokens);
    for (uint64_t i = 0; i < n && !st; i++) {
        uint64_t first;
        uint32_t index;
        if (!k[i].is_output || !find_output(m, k[i].request, &first, &index))
            continue; /* prompts, and requests that were cut off */
        const lvr_rec_request *r = &m->requests[index];
        if (k[i].pos < r->n_prompt || k[i].pos - r->n_prompt >= r->n_output)
            st = lvr_fail(err, LVR_ERR_FORMAT,
                          "%s: /tokens: request %" PRIu64 " has an output token at position %u", m->path,
                          r->id, k[i].pos);
        else
            m->tokens[first + (k[i].pos - r->n_prompt)] = k[i].token;
    }
    free(records);
    return st;
}

static int by_submission(const void *a, const void *b)
{
    const lvr_rec_flash *x = a, *y = b;
    return x->t_submit_ns < y->t_submit_ns ? -1 : x->t_submit_ns > y->t_submit_ns;
}

/* Time with a read under way, inside the requests' own time. */
static lvr_status read_flash(measured *m, lvr_error *err)
{
    void *records = NULL;
    uint64_t n = 0, until = 0;
    const lvr_status st = lvr_trace_read_all(m->trace, LVR_STREAM_FLASH, &records, &n, err);
    if (st)
        return st;
    lvr_rec_flash *f = records;
    qsort(f, n, sizeof(*f), by_submission);
    const uint64_t end = m->requests[m->n_requests - 1].t_done_ns;
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t from = f[i].t_submit_ns > until ? f[i].t_submit_ns : until;
        const uint64_t to = f[i].t_end_ns < end ? f[i].t_end_ns : end;
        m->flash_busy_ns += to > from ? to - from : 0;
        until = f[i].t_end_ns > until ? f[i].t_end_ns : until;
    }
    free(records);
    return LVR_OK;
}

static stage stage_of(lvr_op op)
{
    switch (op) {
    case LVR_OP_DRAFT:
        return STAGE_DRAFT;
    case LVR_OP_LAYER:
    case LVR_OP_EMBED:
        return STAGE_LAYER;
    case LVR_OP_HEAD:
    case LVR_OP_SCORE: /* an early head */
        return STAGE_HEAD;
    case LVR_OP_COMMIT:
        return STAGE_COMMIT;
    case LVR_OP_PLAN:
    case LVR_OP_COUNT:
        break;
    }
    return STAGE_PLAN;
}

static int by_round(const void *a, const void *b)
{
    const lvr_rec_round *x = a, *y = b;
    return x->round < y->round ? -1 : x->round > y->round;
}

static void sum_spans(const measured *m)
{
    size_t at = 0;
    for (size_t i = 0; i < m->n_spans; i++) {
        const lvr_span *s = &m->spans[i];
        /* Spans are in order of time and so, nearly, of passes. */
        while (at < m->passes.n && m->passes.items[at].round < s->round)
            at++;
        while (at > 0 && (at == m->passes.n || m->passes.items[at].round > s->round))
            at--;
        pass *p = &m->passes.items[at];
        if (p->round != s->round)
            continue;
        p->ns[stage_of(s->op)] += (double)(s->kernel_ns + s->host_ns);
        p->ns[STAGE_FLASH_WAIT] += (double)s->wait_ns;
        p->ns[STAGE_ROUND] += (double)(s->kernel_ns + s->host_ns + s->wait_ns);
    }
}

static lvr_status read_passes(measured *m, lvr_error *err)
{
    void *records = NULL;
    uint64_t n = 0;
    lvr_status st = lvr_trace_read_all(m->trace, LVR_STREAM_ROUNDS, &records, &n, err);
    if (st)
        return st;
    lvr_rec_round *r = records;
    qsort(r, n, sizeof(*r), by_round);
    m->passes.items = calloc(n ? n : 1, sizeof(*m->passes.items));
    if (!m->passes.items)
        st = lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory for %" PRIu64 " rounds", m->path, n);
    for (uint64_t i = 0; i < n && !st; i++) {
        uint64_t first;
        uint32_t index;
        if (!find_output(m, r[i].request, &first, &index))
            continue;
        m->passes.items[m->passes.n++] = (pass){.round = r[i].round,
                                                .prefill = r[i].prefill != 0,
                                                .rows = r[i].n_nodes,
                                                .kept = r[i].n_kept,
                                                .accepted = r[i].n_accepted};
    }
    free(records);
    if (!st)
        sum_spans(m);
    return st;
}

/* Decoding starts when a request's first round has been planned (as the engine and the simulator count it).
 */
static void sum_decode(measured *m)
{
    for (uint32_t i = 0; i < m->n_requests; i++) {
        const lvr_rec_request *r = &m->requests[i];
        uint64_t start = r->t_arrival_ns;
        for (size_t k = 0; k < m->n_spans; k++) {
            const lvr_span *s = &m->spans[k];
            if (s->request != r->id || s->prefill)
                continue;
            start = s->op == LVR_OP_PLAN ? s->start_ns + s->kernel_ns : s->start_ns;
            break;
        }
        m->decode_ns += r->t_done_ns - start;
    }
}

static lvr_status load_measured(const char *path, measured *m, lvr_error *err)
{
    char name[300];
    m->path = path;
    lvr_status st = lvr_trace_open(path, &m->trace, err);
    if (!st)
        st = check_trace(m, err);
    if (st)
        return st;
    const char *config = lvr_trace_get_meta(m->trace)->config_yaml;
    snprintf(name, sizeof name, "%.250s:/config", path);
    st = lvr_policy_file_parse(name, config, strlen(config), &m->file, err);
    if (!st)
        st = read_requests(m, err);
    if (!st)
        st = read_tokens(m, err);
    if (!st)
        st = read_flash(m, err);
    if (!st)
        st = lvr_spans_read(m->trace, &m->spans, &m->n_spans, err);
    if (!st)
        st = read_passes(m, err);
    if (!st)
        sum_decode(m);
    return st;
}

/* ---- what differs ---- */

static void diff_text(lvr_correlation *c, const char *what, const char *model, const char *run)
{
    if (strcmp(model, run) == 0 || c->n_diffs == LVR_CORRELATE_MAX_DIFFS)
        return;
    lvr_config_diff *d = &c->diffs[c->n_diffs++];
    snprintf(d->what, sizeof d->what, "%s", what);
    snprintf(d->model, sizeof d->model, "%s", model);
    snprintf(d->measured, sizeof d->measured, "%s", run);
}

static void diff_number(lvr_correlation *c, const char *what, double model, double run)
{
    char a[32], b[32];
    lvr_format_double(a, sizeof a, model);
    lvr_format_double(b, sizeof b, run);
    diff_text(c, what, a, b);
}

static void diff_flash(lvr_correlation *c, const lvr_run_conditions *m, const lvr_run_conditions *r)
{
    diff_text(c, "flash emulation", m->emulated, r->emulated);
    diff_number(c, "flash emulation scale", m->emulate_scale, r->emulate_scale);
    diff_number(c, "emulated t0_ns", (double)m->emulated_flash.t0_ns, (double)r->emulated_flash.t0_ns);
    diff_number(c, "emulated lane_bytes_per_s", (double)m->emulated_flash.lane_bytes_per_s,
                (double)r->emulated_flash.lane_bytes_per_s);
    diff_number(c, "emulated max_bytes_per_s", (double)m->emulated_flash.max_bytes_per_s,
                (double)r->emulated_flash.max_bytes_per_s);
    diff_number(c, "emulated depth", m->emulated_flash.depth, r->emulated_flash.depth);
    diff_number(c, "flash depth", m->depth, r->depth);
}

static void diff_config(lvr_correlation *c, const lvr_cost_model *model, const measured *m)
{
    const lvr_trace_meta *meta = lvr_trace_get_meta(m->trace);
    const lvr_run_conditions *a = &model->conditions, *b = &m->file.conditions;
    const lvr_geometry *g = &model->geometry, *h = &m->file.geometry;
    diff_text(c, "device sha256", model->device_sha256, meta->device.sha256);
    diff_number(c, "threads", a->threads, b->threads);
    diff_text(c, "CPU level", a->cpu_level, b->cpu_level);
    diff_text(c, "KV type", a->kv_type, b->kv_type);
    diff_text(c, "accelerator", a->accel, b->accel);
    diff_number(c, "accelerator launch_ns", (double)a->accel_launch_ns, (double)b->accel_launch_ns);
    diff_number(c, "accelerator sync_ns", (double)a->accel_sync_ns, (double)b->accel_sync_ns);
    diff_flash(c, a, b);
    diff_text(c, "place", lvr_place_name(g->place), lvr_place_name(h->place));
    diff_text(c, "io_mode", lvr_io_mode_name(g->io_mode), lvr_io_mode_name(h->io_mode));
    diff_number(c, "ring_slots", g->ring_slots, h->ring_slots);
    diff_number(c, "slice_bytes", (double)g->slice_bytes, (double)h->slice_bytes);
    diff_number(c, "resident_fraction", lvr_geometry_resident_fraction(g), lvr_geometry_resident_fraction(h));
    diff_number(c, "n_ctx", a->n_ctx, b->n_ctx);
    diff_number(c, "prefill_chunk", a->prefill_chunk, b->prefill_chunk);
    diff_number(c, "max_rows", a->max_rows, b->max_rows);
    diff_number(c, "temperature", a->temperature, b->temperature);
    diff_number(c, "top_k", a->top_k, b->top_k);
    diff_number(c, "top_p", a->top_p, b->top_p);
}

/* ---- the simulated side ---- */

static lvr_status match_requests(const measured *m, const lvr_sim_oracle *o, uint32_t *indices, uint64_t *ids,
                                 lvr_error *err)
{
    for (uint32_t i = 0; i < m->n_requests; i++) {
        bool found = false;
        for (uint32_t k = 0; k < lvr_outcome_n_requests(o->outcome) && !found; k++) {
            lvr_sim_request r;
            lvr_outcome_request(o->outcome, k, &r);
            found = r.prompt_hash == m->requests[i].prompt_hash;
            indices[i] = k;
        }
        ids[i] = m->requests[i].id;
        if (!found)
            return lvr_fail(err, LVR_ERR_CONFIG,
                            "%s does not hold the prompt of request %" PRIu64 " (hash %016" PRIx64
                            ") of %s; record an oracle trace of the same "
                            "prompts",
                            o->path, m->requests[i].id, m->requests[i].prompt_hash, m->path);
    }
    return LVR_OK;
}

static lvr_status check_prompts(const measured *m, const lvr_cost_model *model, bool allowed, uint32_t *ret_n,
                                lvr_error *err)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->n_requests; i++)
        n += lvr_cost_model_has_prompt(model, m->requests[i].prompt_hash);
    if (n > 0 && !allowed)
        return lvr_fail(
            err, LVR_ERR_CONFIG,
            "%u of %u requests in %s have prompts that the cost model was fitted on, so agreement would "
            "prove nothing; measure "
            "other prompts, or add --allow-fit-prompts (the result is then marked as a calibration)",
            n, m->n_requests, m->path);
    *ret_n = n;
    return LVR_OK;
}

static lvr_status check_models(const measured *m, const lvr_sim_oracle *o, const lvr_cost_model *model,
                               lvr_error *err)
{
    const lvr_trace_meta *meta = lvr_trace_get_meta(m->trace);
    const struct {
        const char *what, *a, *where, *b;
        bool needed;
    } checks[] = {
        {"target", meta->target.sha256, "the cost model", model->target_sha256, true},
        {"target", meta->target.sha256, o->path, o->target_sha256, true},
        {"draft", meta->draft.sha256, "the cost model", model->draft_sha256, m->file.policy.ops->uses_draft},
        {"draft", meta->draft.sha256, o->path, o->draft_sha256, m->file.policy.ops->uses_draft},
    };
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++) {
        if (checks[i].needed && strcmp(checks[i].a, checks[i].b) != 0)
            return lvr_fail(err, LVR_ERR_CONFIG,
                            "the %s model differs: sha256 %.12s... in %s, %.12s... in %s; a run can only be "
                            "compared with "
                            "its own twin",
                            checks[i].what, checks[i].a, m->path, checks[i].b, checks[i].where);
    }
    return LVR_OK;
}

static lvr_status simulate(const measured *m, const lvr_sim_oracle *o, const lvr_cost_model *model,
                           lvr_sim_result *ret, lvr_error *err)
{
    uint32_t *indices = calloc(m->n_requests, sizeof(*indices));
    uint64_t *ids = calloc(m->n_requests, sizeof(*ids));
    lvr_status st = indices && ids ? match_requests(m, o, indices, ids, err)
                                   : lvr_fail(err, LVR_ERR_NOMEM, "correlate: out of memory");
    lvr_sim_config c = {.policy = &m->file.policy,
                        .geometry = &m->file.geometry,
                        .conditions = m->file.conditions,
                        .outcome = o->outcome,
                        .requests = indices,
                        .n_requests = m->n_requests,
                        .request_ids = ids,
                        .keep_rounds = true};
    lvr_sim_use_model(&c, model);
    if (!st)
        st = lvr_sim_run(&c, ret, err);
    free(indices);
    free(ids);
    return st;
}

static lvr_status simulated_passes(const lvr_sim_result *r, passes *ret, lvr_error *err)
{
    ret->items = calloc(r->n_round_log ? r->n_round_log : 1, sizeof(*ret->items));
    if (!ret->items)
        return lvr_fail(err, LVR_ERR_NOMEM, "correlate: out of memory for %zu rounds", r->n_round_log);
    ret->n = r->n_round_log;
    for (size_t i = 0; i < ret->n; i++) {
        const lvr_sim_round *l = &r->round_log[i];
        pass *p = &ret->items[i];
        *p = (pass){.round = i,
                    .prefill = l->prefill,
                    .rows = l->n_rows,
                    .kept = l->n_kept,
                    .accepted = l->n_accepted};
        for (int op = 0; op < LVR_OP_COUNT; op++)
            p->ns[stage_of((lvr_op)op)] += (double)l->op_ns[op];
        p->ns[STAGE_FLASH_WAIT] = (double)l->wait_ns;
        p->ns[STAGE_ROUND] = (double)(l->end_ns - l->start_ns);
    }
    return LVR_OK;
}

/* ---- comparing ---- */

static bool same_passes(const passes *a, const passes *b)
{
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++) {
        const pass *x = &a->items[i], *y = &b->items[i];
        if (x->prefill != y->prefill || x->rows != y->rows || x->kept != y->kept ||
            x->accepted != y->accepted)
            return false;
    }
    return true;
}

static bool same_commits(const measured *m, const lvr_sim_result *r)
{
    if (r->n_tokens != m->n_tokens || memcmp(r->tokens, m->tokens, m->n_tokens * sizeof(*m->tokens)) != 0)
        return false;
    for (uint32_t i = 0; i < m->n_requests; i++) {
        if (r->tokens_per_request[i] != m->requests[i].n_output)
            return false;
    }
    return true;
}

static double stage_sum(const passes *p, stage s, bool prefill, size_t *ret_n)
{
    double sum = 0;
    size_t n = 0;
    for (size_t i = 0; i < p->n; i++) {
        if (p->items[i].prefill != prefill)
            continue;
        sum += p->items[i].ns[s];
        n++;
    }
    *ret_n = n;
    return sum;
}

static lvr_status stage_error(const passes *meas, const passes *sim, stage s, bool prefill, bool paired,
                              double total_ns, lvr_stage_error *ret, lvr_error *err)
{
    size_t n = 0, n_sim = 0, k = 0;
    const double measured_ns = stage_sum(meas, s, prefill, &n),
                 simulated_ns = stage_sum(sim, s, prefill, &n_sim);
    *ret = (lvr_stage_error){.name = prefill ? "prefill" : stage_names[s],
                             .measured_s = measured_ns * 1e-9,
                             .simulated_s = simulated_ns * 1e-9,
                             .share = total_ns > 0 ? measured_ns / total_ns : NAN,
                             .mean_error = measured_ns > 0 ? simulated_ns / measured_ns - 1.0 : NAN,
                             .p50 = NAN,
                             .p90 = NAN,
                             .p99 = NAN};
    if (!paired || n == 0 || measured_ns <= 0)
        return LVR_OK;
    double *e = calloc(n, sizeof(*e));
    if (!e)
        return lvr_fail(err, LVR_ERR_NOMEM, "correlate: out of memory for %zu rounds", n);
    for (size_t i = 0; i < meas->n; i++) {
        if (meas->items[i].prefill == prefill)
            e[k++] = fabs(sim->items[i].ns[s] - meas->items[i].ns[s]) / (measured_ns / (double)n);
    }
    ret->p50 = lvr_quantile(e, n, 0.5);
    ret->p90 = lvr_quantile(e, n, 0.9);
    ret->p99 = lvr_quantile(e, n, 0.99);
    free(e);
    return LVR_OK;
}

static lvr_status compare_stages(const measured *m, const passes *sim, lvr_correlation *c, lvr_error *err)
{
    size_t n = 0;
    const double total =
        stage_sum(&m->passes, STAGE_ROUND, false, &n) + stage_sum(&m->passes, STAGE_ROUND, true, &n);
    lvr_status st = LVR_OK;
    for (int s = 0; s < N_PASS_STAGES && !st; s++)
        st = stage_error(&m->passes, sim, (stage)s, false, c->rounds_equal, total, &c->stages[c->n_stages++],
                         err);
    return st ? st
              : stage_error(&m->passes, sim, STAGE_ROUND, true, c->rounds_equal, total,
                            &c->stages[c->n_stages++], err);
}

static void compare_use(const measured *m, const lvr_sim_result *r, lvr_correlation *c)
{
    double compute = 0, wait = 0;
    for (size_t i = 0; i < m->passes.n; i++) {
        wait += m->passes.items[i].ns[STAGE_FLASH_WAIT];
        compute += m->passes.items[i].ns[STAGE_ROUND] - m->passes.items[i].ns[STAGE_FLASH_WAIT];
    }
    const double total = fmax((double)m->total_ns, 1.0), simulated = (double)r->simulated_ns;
    c->measured = (lvr_utilisation){
        .flash = (double)m->flash_busy_ns / total, .compute = compute / total, .waiting = wait / total};
    c->simulated = (lvr_utilisation){.flash = (double)r->flash_busy_ns / simulated,
                                     .compute = (double)r->compute_busy_ns / simulated,
                                     .waiting = (double)r->flash_wait_ns / simulated};
}

static uint64_t decode_rounds(const passes *p)
{
    uint64_t n = 0;
    for (size_t i = 0; i < p->n; i++)
        n += !p->items[i].prefill;
    return n;
}

static lvr_status compare(const measured *m, const lvr_sim_result *r, lvr_correlation *c, lvr_error *err)
{
    passes sim = {0};
    lvr_status st = simulated_passes(r, &sim, err);
    if (st)
        return st;
    const uint64_t rounds = decode_rounds(&m->passes);
    c->rounds_equal = same_passes(&m->passes, &sim);
    c->commits_equal = same_commits(m, r);
    c->n_tokens = m->n_tokens;
    c->n_rounds = rounds;
    c->outside_nodes = r->outside_nodes;
    c->n_requests = m->n_requests;
    c->measured_tokens_per_s = (double)m->n_tokens * 1e9 / fmax((double)m->decode_ns, 1.0);
    c->simulated_tokens_per_s = lvr_sim_tokens_per_s(r);
    c->tokens_per_s_error = c->simulated_tokens_per_s / c->measured_tokens_per_s - 1.0;
    c->measured_acceptance_length = rounds ? (double)m->n_tokens / (double)rounds : NAN;
    c->simulated_acceptance_length = (double)r->n_tokens / (double)r->rounds;
    snprintf(c->policy, sizeof c->policy, "%s", m->file.policy.ops->name);
    compare_use(m, r, c);
    st = compare_stages(m, &sim, c, err);
    free(sim.items);
    return st;
}

lvr_status lvr_correlate(const char *measured_path, const lvr_sim_oracle *oracle, const lvr_cost_model *model,
                         bool allow_fit_prompts, lvr_correlation *ret, lvr_error *err)
{
    lvr_sim_result r = {0};
    measured *m = calloc(1, sizeof(*m));
    lvr_correlation *c = calloc(1, sizeof(*c));
    lvr_status st = m && c ? load_measured(measured_path, m, err)
                           : lvr_fail(err, LVR_ERR_NOMEM, "correlate: out of memory");
    if (!st)
        st = check_prompts(m, model, allow_fit_prompts, &c->n_fit_prompts, err);
    if (!st)
        st = check_models(m, oracle, model, err);
    if (!st)
        st = simulate(m, oracle, model, &r, err);
    if (!st) {
        diff_config(c, model, m);
        st = compare(m, &r, c, err);
    }
    if (!st)
        *ret = *c;
    lvr_sim_result_free(&r);
    if (m)
        measured_free(m);
    free(m);
    free(c);
    return st;
}

/* ---- reports ---- */

static void text_percent(lvr_buf *out, double v)
{
    if (isnan(v))
        lvr_buf_puts(out, "        -");
    else
        lvr_buf_printf(out, " %7.2f%%", 100.0 * v);
}

static void text_stages(const lvr_correlation *c, lvr_buf *out)
{
    lvr_buf_puts(out, "stage        measured s  simulated s    share    error      p50      p90      p99\n");
    for (uint32_t i = 0; i < c->n_stages; i++) {
        const lvr_stage_error *s = &c->stages[i];
        lvr_buf_printf(out, "%-11s %11.6f %12.6f", s->name, s->measured_s, s->simulated_s);
        text_percent(out, s->share);
        text_percent(out, s->mean_error);
        text_percent(out, s->p50);
        text_percent(out, s->p90);
        text_percent(out, s->p99);
        lvr_buf_puts(out, "\n");
    }
}

void lvr_correlate_text(const lvr_correlation *c, lvr_buf *out)
{
    lvr_buf_printf(out, "conditions: %s\n",
                   c->n_diffs ? "the measured run differs from what the cost model was fitted on"
                              : "as fitted");
    for (uint32_t i = 0; i < c->n_diffs; i++)
        lvr_buf_printf(out, "  %-26s model %s, measured %s\n", c->diffs[i].what,
                       c->diffs[i].model[0] ? c->diffs[i].model : "-",
                       c->diffs[i].measured[0] ? c->diffs[i].measured : "-");
    lvr_buf_printf(out,
                   "utilisation: flash %.1f %% measured, %.1f %% simulated; compute %.1f %%, %.1f %%; "
                   "waiting for flash %.1f %%, %.1f %%\n",
                   100 * c->measured.flash, 100 * c->simulated.flash, 100 * c->measured.compute,
                   100 * c->simulated.compute, 100 * c->measured.waiting, 100 * c->simulated.waiting);
    text_stages(c, out);
    lvr_buf_printf(
        out,
        "%s: %.3f tokens/s measured, %.3f simulated, error %+.2f %%; %.3f tokens a round (%.3f simulated)\n",
        c->policy, c->measured_tokens_per_s, c->simulated_tokens_per_s, 100 * c->tokens_per_s_error,
        c->measured_acceptance_length, c->simulated_acceptance_length);
    lvr_buf_printf(out, "commits %s, rounds %s (%" PRIu64 " tokens, %" PRIu64 " rounds, %u requests)%s\n",
                   c->commits_equal ? "equal" : "DIFFER", c->rounds_equal ? "equal" : "DIFFER", c->n_tokens,
                   c->n_rounds, c->n_requests,
                   c->outside_nodes ? "; NOT EXACT: the policy met unrecorded nodes" : "");
    if (c->n_fit_prompts > 0)
        lvr_buf_printf(out,
                       "CALIBRATION: %u requests have prompts that the cost model was fitted on; this is no "
                       "claim of accuracy\n",
                       c->n_fit_prompts);
}

static void json_use(lvr_json *j, const char *key, const lvr_utilisation *u)
{
    lvr_json_object(j, key);
    lvr_json_double(j, "flash", u->flash);
    lvr_json_double(j, "compute", u->compute);
    lvr_json_double(j, "waiting_for_flash", u->waiting);
    lvr_json_end_object(j);
}

static void json_stage(lvr_json *j, const lvr_stage_error *s)
{
    lvr_json_object(j, s->name);
    lvr_json_double(j, "mean_error", s->mean_error);
    lvr_json_double(j, "p50", s->p50);
    lvr_json_double(j, "p90", s->p90);
    lvr_json_double(j, "p99", s->p99);
    lvr_json_double(j, "measured_s", s->measured_s);
    lvr_json_double(j, "simulated_s", s->simulated_s);
    lvr_json_double(j, "share", s->share);
    lvr_json_end_object(j);
}

void lvr_correlate_json(const lvr_correlation *c, lvr_buf *out)
{
    lvr_json j;
    lvr_json_init(&j, out, true);
    lvr_json_object(&j, NULL);
    lvr_json_array(&j, "config_diff");
    for (uint32_t i = 0; i < c->n_diffs; i++) {
        lvr_json_object(&j, NULL);
        lvr_json_str(&j, "what", c->diffs[i].what);
        lvr_json_str(&j, "model", c->diffs[i].model);
        lvr_json_str(&j, "measured", c->diffs[i].measured);
        lvr_json_end_object(&j);
    }
    lvr_json_end_array(&j);
    lvr_json_object(&j, "utilisation");
    json_use(&j, "measured", &c->measured);
    json_use(&j, "simulated", &c->simulated);
    lvr_json_end_object(&j);
    lvr_json_object(&j, "stages");
    for (uint32_t i = 0; i < c->n_stages; i++)
        json_stage(&j, &c->stages[i]);
    lvr_json_end_object(&j);
    lvr_json_str(&j, "policy", c->policy);
    lvr_json_bool(&j, "commits_equal", c->commits_equal);
    lvr_json_bool(&j, "rounds_equal", c->rounds_equal);
    lvr_json_double(&j, "tokens_per_s_error", c->tokens_per_s_error);
    lvr_json_double(&j, "measured_tokens_per_s", c->measured_tokens_per_s);
    lvr_json_double(&j, "simulated_tokens_per_s", c->simulated_tokens_per_s);
    lvr_json_double(&j, "measured_acceptance_length", c->measured_acceptance_length);
    lvr_json_double(&j, "simulated_acceptance_length", c->simulated_acceptance_length);
    lvr_json_u64(&j, "n_tokens", c->n_tokens);
    lvr_json_u64(&j, "rounds", c->n_rounds);
    lvr_json_u64(&j, "n_requests", c->n_requests);
    lvr_json_bool(&j, "exact", c->outside_nodes == 0);
    lvr_json_u64(&j, "outside_nodes", c->outside_nodes);
    lvr_json_u64(&j, "fit_prompts", c->n_fit_prompts);
    lvr_json_bool(&j, "calibration", c->n_fit_prompts > 0);
    lvr_json_end_object(&j);
    lvr_buf_puts(out, "\n");
}
