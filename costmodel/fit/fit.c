/* From traces to a cost model: what may be mixed, what is sampled from which stream, and in which order the
 * terms are fitted. */
#include "costmodel/fit/fit.h"

#include "common/log.h"
#include "common/rng.h"
#include "costmodel/fit/fit_exit.h"
#include "costmodel/fit/fit_parts.h"
#include "costmodel/fit/spans.h"

#include <gsl/gsl_errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_KNOTS = 32 };

typedef struct samples {
    void *items;
    size_t n, cap, item_bytes;
} samples;

/* Everything gathered from the traces before the first fit. */
typedef struct collection {
    samples op[LVR_OP_COUNT];  /* lvr_op_sample, on the CPU */
    samples npu[LVR_OP_COUNT]; /* lvr_npu_sample: on an accelerator */
    samples flash;             /* lvr_flash_sample */
    samples acceptance;        /* lvr_acceptance_sample */
    samples hazards;           /* lvr_acceptance_sample: those none of whose better siblings was taken */
    lvr_rank_counts ranks;
    lvr_exit_nodes exits;
    samples wake; /* lvr_op_sample, rows 1 */
    uint64_t host_ns[LVR_OP_COUNT];
    bool buffered; /* some reads went through the page cache */
    bool has_timing, has_oracle;
    char timing_path[256], oracle_path[256],
        accel_path[256]; /* the first of each kind; with an accelerator */
    char timing_draft[LVR_SHA256_HEX_BYTES];
    lvr_trace_meta oracle; /* sampling and models of the first oracle trace; config_yaml is not kept */
} collection;

static void collection_init(collection *c)
{
    memset(c, 0, sizeof(*c));
    for (int op = 0; op < LVR_OP_COUNT; op++) {
        c->op[op].item_bytes = sizeof(lvr_op_sample);
        c->npu[op].item_bytes = sizeof(lvr_npu_sample);
    }
    c->flash.item_bytes = sizeof(lvr_flash_sample);
    c->acceptance.item_bytes = sizeof(lvr_acceptance_sample);
    c->hazards.item_bytes = sizeof(lvr_acceptance_sample);
    c->wake.item_bytes = sizeof(lvr_op_sample);
}

static void collection_free(collection *c)
{
    for (int op = 0; op < LVR_OP_COUNT; op++) {
        free(c->op[op].items);
        free(c->npu[op].items);
    }
    free(c->flash.items);
    free(c->acceptance.items);
    free(c->hazards.items);
    free(c->wake.items);
    free(c->exits.items);
}

static lvr_status add_sample(samples *s, const void *item, lvr_error *err)
{
    if (s->n == s->cap) {
        const size_t cap = s->cap ? 2 * s->cap : 1024;
        size_t bytes;
        void *items = __builtin_mul_overflow(cap, s->item_bytes, &bytes) ? NULL : realloc(s->items, bytes);
        if (!items)
            return lvr_fail(err, LVR_ERR_NOMEM, "fit: out of memory for %zu samples", cap);
        s->items = items;
        s->cap = cap;
    }
    memcpy((char *)s->items + s->n++ * s->item_bytes, item, s->item_bytes);
    return LVR_OK;
}

/* ---- what may be mixed
 * ------------------------------------------------------------------------------------------------------ */

static lvr_status check_usable(lvr_trace *t, lvr_error *err)
{
    const lvr_trace_meta *meta = lvr_trace_get_meta(t);
    if (meta->kind != LVR_TRACE_TIMING && meta->kind != LVR_TRACE_ORACLE)
        return lvr_fail(err, LVR_ERR_CONFIG,
                        "%s: a trace of kind %s cannot be fitted; expected a recording of a real run (lever "
                        "record) or an oracle trace "
                        "(lever record --oracle)",
                        lvr_trace_path(t), lvr_trace_kind_name(meta->kind));
    for (int s = 0; s < LVR_STREAM_COUNT; s++) {
        if (meta->dropped[s] > 0)
            return lvr_fail(
                err, LVR_ERR_CONFIG,
                "%s: %" PRIu64
                " records of %s were dropped while recording, so its times do not add up; record it again "
                "on a less loaded machine",
                lvr_trace_path(t), meta->dropped[s], lvr_stream_describe((lvr_stream)s)->name);
    }
    return LVR_OK;
}

static lvr_status differs_text(const char *what, const char *path_a, const char *a, const char *path_b,
                               const char *b, lvr_error *err)
{
    if (strcmp(a, b) == 0)
        return LVR_OK;
    return lvr_fail(err, LVR_ERR_CONFIG,
                    "%s differs: \"%s\" in %s, \"%s\" in %s; one cost model describes one device, one pair "
                    "of models and one set of "
                    "conditions: fit them separately",
                    what, a, path_a, b, path_b);
}

static lvr_status differs_number(const char *what, const char *path_a, double a, const char *path_b, double b,
                                 lvr_error *err)
{
    if (a == b)
        return LVR_OK;
    return lvr_fail(err, LVR_ERR_CONFIG,
                    "%s differs: %g in %s, %g in %s; one cost model describes one device, one pair of models "
                    "and one set of conditions: "
                    "fit them separately",
                    what, a, path_a, b, path_b);
}

/* Runs without an accelerator mix with runs on any one. */
static lvr_status check_accelerator(const char *pa, const lvr_run_conditions *a, const char *pb,
                                    const lvr_run_conditions *b, lvr_error *err)
{
    if (!a->accel[0] || !b->accel[0])
        return LVR_OK;
    lvr_status st = differs_text("accelerator", pa, a->accel, pb, b->accel, err);
    if (!st)
        st = differs_number("accelerator launch_ns", pa, (double)a->accel_launch_ns, pb,
                            (double)b->accel_launch_ns, err);
    return st ? st
              : differs_number("accelerator sync_ns", pa, (double)a->accel_sync_ns, pb,
                               (double)b->accel_sync_ns, err);
}

/* Only what decides times: policy, schedule and seeds may differ, they are how different row counts come
 * about. */
static lvr_status check_conditions(const char *pa, const lvr_run_conditions *a, const char *pb,
                                   const lvr_run_conditions *b, lvr_error *err)
{
    const struct {
        const char *what;
        double a, b;
    } numbers[] = {
        {"threads", a->threads, b->threads},
        {"flash depth", a->depth, b->depth},
        {"flash emulation scale", a->emulate_scale, b->emulate_scale},
        {"emulated flash t0_ns", (double)a->emulated_flash.t0_ns, (double)b->emulated_flash.t0_ns},
        {"emulated flash lane rate", (double)a->emulated_flash.lane_bytes_per_s,
         (double)b->emulated_flash.lane_bytes_per_s},
        {"emulated flash max rate", (double)a->emulated_flash.max_bytes_per_s,
         (double)b->emulated_flash.max_bytes_per_s},
        {"emulated flash depth", a->emulated_flash.depth, b->emulated_flash.depth},
        {"temperature", a->temperature, b->temperature},
        {"top_k", a->top_k, b->top_k},
        {"top_p", a->top_p, b->top_p},
    };
    lvr_status st = differs_text("CPU level", pa, a->cpu_level, pb, b->cpu_level, err);
    if (!st)
        st = differs_text("KV type", pa, a->kv_type, pb, b->kv_type, err);
    if (!st)
        st = differs_text("flash emulation", pa, a->emulated, pb, b->emulated, err);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0] && !st; i++)
        st = differs_number(numbers[i].what, pa, numbers[i].a, pb, numbers[i].b, err);
    return st;
}

/* Runs without a draft record none; they mix with runs of any draft. */
static lvr_status check_draft(const char *pa, const char *a, const char *pb, const char *b, lvr_error *err)
{
    return a[0] && b[0] ? differs_text("draft sha256", pa, a, pb, b, err) : LVR_OK;
}

/* ---- prompts and sources
 * ------------------------------------------------------------------------------------------------------ */

static lvr_status add_prompts(lvr_trace *t, lvr_cost_model *m, lvr_error *err)
{
    void *records = NULL;
    uint64_t n = 0;
    lvr_status st = lvr_trace_read_all(t, LVR_STREAM_REQUESTS, &records, &n, err);
    if (st)
        return st;
    const lvr_rec_request *r = records;
    for (uint64_t i = 0; i < n && !st; i++) {
        bool known = false;
        for (uint32_t k = 0; k < m->n_prompts && !known; k++)
            known = m->prompt_hashes[k] == r[i].prompt_hash;
        if (known)
            continue;
        if (m->n_prompts == LVR_FIT_MAX_PROMPTS)
            st = lvr_fail(err, LVR_ERR_CONFIG, "%s: more than %d different prompts; fit on fewer traces",
                          lvr_trace_path(t), LVR_FIT_MAX_PROMPTS);
        else
            m->prompt_hashes[m->n_prompts++] = r[i].prompt_hash;
    }
    free(records);
    return st;
}

static lvr_status add_source(lvr_trace *t, lvr_cost_model *m, lvr_error *err)
{
    if (m->n_sources == LVR_FIT_MAX_SOURCES)
        return lvr_fail(err, LVR_ERR_USAGE,
                        "fit: more than %d traces; merge some (lever trace merge) or fit on fewer",
                        LVR_FIT_MAX_SOURCES);
    const lvr_trace_meta *meta = lvr_trace_get_meta(t);
    lvr_fit_source *s = &m->sources[m->n_sources++];
    *s = (lvr_fit_source){.kind = meta->kind};
    snprintf(s->path, sizeof s->path, "%s", lvr_trace_path(t));
    snprintf(s->created_utc, sizeof s->created_utc, "%s", meta->created_utc);
    snprintf(s->commit, sizeof s->commit, "%s", meta->commit);
    return LVR_OK;
}

static int by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* ---- timing traces
 * ------------------------------------------------------------------------------------------------------------
 */

static lvr_status add_ticket(const lvr_span *s, bool next_waits, collection *c, lvr_error *err)
{
    const bool free_host = !s->hidden && !next_waits;
    const lvr_npu_sample sample = {.bucket = s->bucket,
                                   .context = s->context,
                                   .launch_ns = (double)s->launch_ns,
                                   .run_ns = (double)s->run_ns,
                                   .sync_ns = free_host ? (double)s->host_ns : -1.0};
    return add_sample(&c->npu[s->op], &sample, err);
}

static lvr_status add_spans(lvr_trace *t, collection *c, lvr_error *err)
{
    lvr_span *spans = NULL;
    size_t n = 0;
    lvr_status st = lvr_spans_read(t, &spans, &n, err);
    for (size_t i = 0; i < n && !st; i++) {
        const lvr_span *s = &spans[i];
        const lvr_op_sample sample = {
            .rows = s->rows, .context = s->context, .ns = (double)(s->kernel_ns + s->host_ns)};
        const lvr_op_sample wake = {.rows = 1, .ns = (double)s->wake_ns};
        if (s->unit == LVR_UNIT_NPU) {
            st = add_ticket(s, i + 1 == n || s[1].wait_ns > 0, c, err);
        } else {
            c->host_ns[s->op] += s->host_ns;
            st = add_sample(&c->op[s->op], &sample, err);
        }
        if (!st && s->wait_ns > 0)
            st = add_sample(&c->wake, &wake, err);
    }
    free(spans);
    return st;
}

static int by_submission(const void *a, const void *b)
{
    const lvr_flash_sample *x = a, *y = b;
    if (x->submit_ns != y->submit_ns)
        return x->submit_ns < y->submit_ns ? -1 : 1;
    return x->end_ns < y->end_ns ? -1 : x->end_ns > y->end_ns;
}

static lvr_status add_reads(lvr_trace *t, collection *c, lvr_error *err)
{
    void *records = NULL;
    uint64_t n = 0;
    const size_t before = c->flash.n;
    lvr_status st = lvr_trace_read_all(t, LVR_STREAM_FLASH, &records, &n, err);
    const lvr_rec_flash *r = records;
    for (uint64_t i = 0; i < n && !st; i++) {
        const lvr_flash_sample sample = {.submit_ns = r[i].t_submit_ns,
                                         .end_ns = r[i].t_end_ns,
                                         .bytes = r[i].bytes,
                                         .in_flight = r[i].queue_depth};
        c->buffered = c->buffered || r[i].cached != 0;
        st = add_sample(&c->flash, &sample, err);
    }
    if (!st && n > 0)
        qsort((lvr_flash_sample *)c->flash.items + before, n, sizeof(lvr_flash_sample), by_submission);
    free(records);
    return st;
}

static lvr_status check_same_timing(lvr_trace *t, const lvr_policy_file *pf, const collection *c,
                                    const lvr_cost_model *m, lvr_error *err)
{
    const lvr_trace_meta *meta = lvr_trace_get_meta(t);
    const char *path = lvr_trace_path(t), *first = c->timing_path;
    lvr_status st = differs_text("target sha256", first, m->target_sha256, path, meta->target.sha256, err);
    if (!st)
        st = check_draft(first, c->timing_draft, path, meta->draft.sha256, err);
    if (!st)
        st = differs_text("device", first, m->device_sha256, path, meta->device.sha256, err);
    if (!st)
        st = check_conditions(first, &m->conditions, path, &pf->conditions, err);
    return st ? st : check_accelerator(c->accel_path, &m->conditions, path, &pf->conditions, err);
}

static void begin_timing(lvr_trace *t, const lvr_policy_file *pf, collection *c, lvr_cost_model *m)
{
    const lvr_trace_meta *meta = lvr_trace_get_meta(t);
    c->has_timing = true;
    snprintf(c->timing_path, sizeof c->timing_path, "%s", lvr_trace_path(t));
    memcpy(m->target_sha256, meta->target.sha256, sizeof m->target_sha256);
    memcpy(m->device_sha256, meta->device.sha256, sizeof m->device_sha256);
    m->conditions = pf->conditions;
    m->geometry = pf->geometry;
}

static lvr_status add_timing(lvr_trace *t, collection *c, lvr_cost_model *m, lvr_error *err)
{
    const lvr_trace_meta *meta = lvr_trace_get_meta(t);
    lvr_policy_file pf;
    if (!meta->config_yaml)
        return lvr_fail(err, LVR_ERR_FORMAT,
                        "%s: no /config, so its conditions are not known; record it with lever record",
                        lvr_trace_path(t));
    char name[300];
    snprintf(name, sizeof name, "%s:/config", lvr_trace_path(t));
    lvr_status st = lvr_policy_file_parse(name, meta->config_yaml, strlen(meta->config_yaml), &pf, err);
    if (st)
        return st;
    if (!c->has_timing)
        begin_timing(t, &pf, c, m);
    else
        st = check_same_timing(t, &pf, c, m, err);
    if (!st && pf.conditions.accel[0] && !m->conditions.accel[0]) {
        memcpy(m->conditions.accel, pf.conditions.accel, sizeof m->conditions.accel);
        m->conditions.accel_launch_ns = pf.conditions.accel_launch_ns;
        m->conditions.accel_sync_ns = pf.conditions.accel_sync_ns;
    }
    if (!st && pf.conditions.accel[0] && !c->accel_path[0])
        snprintf(c->accel_path, sizeof c->accel_path, "%s", lvr_trace_path(t));
    if (!st && meta->draft.sha256[0])
        memcpy(c->timing_draft, meta->draft.sha256, sizeof c->timing_draft);
    if (!st)
        st = add_spans(t, c, err);
    if (!st)
        st = add_reads(t, c, err);
    return st;
}

/* ---- oracle traces
 * ------------------------------------------------------------------------------------------------------------
 */

static uint32_t counted_depth(uint32_t depth)
{
    return depth < LVR_CALIBRATION_MAX_DEPTHS ? depth : LVR_CALIBRATION_MAX_DEPTHS - 1;
}

/* What the better siblings leave to the next one. */
typedef struct siblings {
    int32_t parent;
    double left; /* of the draft's probability */
    bool taken;
} siblings;

/* A child of a parent whose fate is known. Siblings come together, best first. */
static lvr_status add_child(const lvr_rec_tree *v, siblings *s, collection *c, lvr_error *err)
{
    lvr_acceptance_sample sample = {.q = v->p_draft,
                                    .accepted = v->on_path != 0,
                                    .depth = (uint16_t)(v->depth - 1u),
                                    .rank = v->rank,
                                    .fold = (uint32_t)(lvr_mix64(v->request) >> 32)};
    if (v->parent != s->parent)
        *s = (siblings){.parent = v->parent, .left = 1.0};
    if (v->rank < LVR_MAX_BRANCH) {
        c->ranks.n_ranks = c->ranks.n_ranks > v->rank ? c->ranks.n_ranks : v->rank + 1u;
        c->ranks.taken[counted_depth(v->depth - 1u)][v->rank] += sample.accepted;
    }
    lvr_status st = add_sample(&c->acceptance, &sample, err);
    const bool possible = !s->taken && s->left > 0.0;
    s->taken |= sample.accepted;
    sample.q = possible ? fmin(1.0, sample.q / s->left) : 0.0;
    s->left -= v->p_draft;
    return st || !possible ? st : add_sample(&c->hazards, &sample, err);
}

/* A tree's nodes stand together, parents first. */
static lvr_status add_tree(lvr_trace *t, const lvr_rec_tree *nodes, size_t n, collection *c, lvr_error *err)
{
    lvr_status st = LVR_OK;
    siblings s = {.parent = -1};
    for (size_t i = 1; i < n && !st; i++) {
        const lvr_rec_tree *v = &nodes[i];
        if (v->parent < 0 || (uint32_t)v->parent >= i || nodes[v->parent].node != (uint32_t)v->parent)
            return lvr_fail(err, LVR_ERR_FORMAT,
                            "%s: /trees: request %" PRIu64 " position %u node %u has parent %d, expected an "
                            "earlier node of its tree",
                            lvr_trace_path(t), v->request, v->pos, v->node, v->parent);
        const lvr_rec_tree *parent = &nodes[v->parent];
        if (!parent->on_path || !parent->expanded)
            continue; /* its fate, had its parent been taken, is not known */
        st = add_child(v, &s, c, err);
    }
    for (size_t i = 0; i < n && !st; i++)
        if (nodes[i].on_path && nodes[i].expanded)
            c->ranks.parents[counted_depth(nodes[i].depth)]++;
    return st;
}

static lvr_status add_trees(lvr_trace *t, collection *c, lvr_error *err)
{
    void *records = NULL;
    uint64_t n = 0;
    lvr_status st = lvr_trace_read_all(t, LVR_STREAM_TREES, &records, &n, err);
    const lvr_rec_tree *r = records;
    for (uint64_t i = 0; i < n && !st;) {
        uint64_t end = i + 1;
        while (end < n && r[end].request == r[i].request && r[end].pos == r[i].pos)
            end++;
        st = add_tree(t, &r[i], (size_t)(end - i), c, err);
        i = end;
    }
    free(records);
    return st;
}

static lvr_status check_same_oracle(lvr_trace *t, const collection *c, lvr_error *err)
{
    const lvr_trace_meta *meta = lvr_trace_get_meta(t);
    const char *path = lvr_trace_path(t), *first = c->oracle_path;
    lvr_status st =
        differs_text("target sha256", first, c->oracle.target.sha256, path, meta->target.sha256, err);
    if (!st)
        st = differs_text("draft sha256", first, c->oracle.draft.sha256, path, meta->draft.sha256, err);
    if (!st)
        st = differs_number("temperature", first, c->oracle.temperature, path, meta->temperature, err);
    if (!st)
        st = differs_number("top_k", first, c->oracle.top_k, path, meta->top_k, err);
    if (!st)
        st = differs_number("top_p", first, c->oracle.top_p, path, meta->top_p, err);
    return st;
}

static lvr_status add_oracle(lvr_trace *t, collection *c, lvr_error *err)
{
    if (c->has_oracle) {
        const lvr_status st = check_same_oracle(t, c, err);
        if (st)
            return st;
    } else {
        c->has_oracle = true;
        c->oracle = *lvr_trace_get_meta(t);
        c->oracle.config_yaml = NULL;
        snprintf(c->oracle_path, sizeof c->oracle_path, "%s", lvr_trace_path(t));
    }
    const lvr_status st = add_trees(t, c, err);
    return st ? st : lvr_exit_nodes_read(t, &c->exits, err);
}

/* Timings and acceptance must be of one pair under one way of sampling. */
static lvr_status check_together(const collection *c, const lvr_cost_model *m, lvr_error *err)
{
    if (!c->has_timing)
        return lvr_fail(err, LVR_ERR_CONFIG,
                        "no timing trace was given, so operators and flash cannot be fitted; record one with "
                        "lever record");
    if (!c->has_oracle)
        return LVR_OK;
    lvr_status st = differs_text("target sha256", c->timing_path, m->target_sha256, c->oracle_path,
                                 c->oracle.target.sha256, err);
    if (!st)
        st = check_draft(c->timing_path, c->timing_draft, c->oracle_path, c->oracle.draft.sha256, err);
    if (!st)
        st = differs_number("temperature", c->timing_path, m->conditions.temperature, c->oracle_path,
                            c->oracle.temperature, err);
    return st;
}

/* ---- fitting
 * ------------------------------------------------------------------------------------------------------------------
 */

static lvr_fit_term *new_term(lvr_cost_model *m, const char *name)
{
    lvr_fit_term *t = &m->terms[m->n_terms++];
    *t = (lvr_fit_term){0};
    snprintf(t->name, sizeof t->name, "%s", name);
    return t;
}

static void describe(lvr_fit_term *t, const char *name, const char *form)
{
    snprintf(t->name, sizeof t->name, "%s", name);
    snprintf(t->form, sizeof t->form, "%s", form);
}

/* Attention reads the cache; nothing else depends on how much is in it. */
static bool uses_context(lvr_op op)
{
    return op == LVR_OP_DRAFT || op == LVR_OP_LAYER;
}

static const char *how_to_record(lvr_op op)
{
    return op == LVR_OP_DRAFT ? "record also with a policy that drafts, e.g. lever record --policy random"
                              : "record again with this version's lever record";
}

static lvr_status fit_npu_op(const collection *c, lvr_op op, lvr_cost_model *m, lvr_error *err)
{
    lvr_fit_term terms[LVR_FIT_NPU_TERMS];
    if (c->npu[op].n == 0)
        return LVR_OK;
    const lvr_status st =
        lvr_fit_npu(lvr_op_name(op), c->npu[op].items, c->npu[op].n, &m->table.npu[op], terms, err);
    if (st) {
        lvr_error_prefix(err, "%s on the accelerator", lvr_op_name(op));
        return st;
    }
    for (int i = 0; i < LVR_FIT_NPU_TERMS; i++)
        m->terms[m->n_terms++] = terms[i];
    return LVR_OK;
}

static lvr_status fit_npu(const collection *c, lvr_cost_model *m, lvr_error *err)
{
    const lvr_status st = fit_npu_op(c, LVR_OP_LAYER, m, err);
    return st ? st : fit_npu_op(c, LVR_OP_DRAFT, m, err);
}

static lvr_status fit_ops(const collection *c, lvr_cost_model *m, lvr_error *err)
{
    for (int op = 0; op < LVR_OP_COUNT; op++) {
        const samples *s = &c->op[op];
        const char *name = lvr_op_name((lvr_op)op);
        if (s->n == 0 && c->npu[op].n > 0) {
            lvr_log(LVR_LOG_WARN,
                    "operator %s ran on the accelerator only, so it has no price on the CPU; add a trace "
                    "recorded with %s cpu to let the placement choose",
                    name, op == LVR_OP_DRAFT ? "--place-draft" : "--place");
            continue;
        }
        if (s->n == 0 && op == LVR_OP_SCORE) /* nothing was pruned */
            continue;
        if (s->n == 0)
            return lvr_fail(err, LVR_ERR_CONFIG,
                            "the timing traces hold no %s operator, so it has no price: %s", name,
                            how_to_record((lvr_op)op));
        lvr_fit_term term = {0};
        lvr_status st = lvr_fit_op(s->items, s->n, uses_context((lvr_op)op), &m->table.op[op], &term, err);
        if (st) {
            lvr_error_prefix(err, "%s", name);
            return st;
        }
        char form[sizeof term.form];
        snprintf(form, sizeof form,
                 "linear spline in rows%s; includes a mean of %.0f ns of host time after it",
                 uses_context((lvr_op)op) ? " + ctx_ns * rows * context" : "",
                 (double)c->host_ns[op] / (double)s->n);
        describe(&term, name, form);
        *new_term(m, name) = term;
    }
    return LVR_OK;
}

static lvr_status fit_wake(const collection *c, lvr_cost_model *m, lvr_error *err)
{
    lvr_op_cost cost;
    lvr_fit_term term = {0};
    if (c->wake.n == 0) {
        describe(&term, "wake", "not fitted: nothing was waited for");
        *new_term(m, "wake") = term;
        return LVR_OK;
    }
    const lvr_status st = lvr_fit_op(c->wake.items, c->wake.n, false, &cost, &term, err);
    if (st)
        return st;
    m->wake_ns = cost.curve.ns[0];
    describe(&term, "wake",
             "constant: from a slice's arrival to the start of the operator that waited for it");
    *new_term(m, "wake") = term;
    return LVR_OK;
}

/* A table must hold some flash; where all layers are resident it is never priced, and a use that would price
 * it is told so by n = 0. */
static const lvr_flash_params no_flash = {
    .t0_ns = 0, .lane_bytes_per_s = 1000000000, .max_bytes_per_s = 1000000000, .depth = 1};

static lvr_status fit_flash(const collection *c, lvr_cost_model *m, lvr_error *err)
{
    lvr_fit_term term = {0};
    if (c->flash.n == 0) {
        m->table.flash = no_flash;
        describe(&term, "flash", "not fitted: nothing was streamed; the parameters are placeholders");
        *new_term(m, "flash") = term;
        return LVR_OK;
    }
    const lvr_status st = lvr_fit_flash(c->flash.items, c->flash.n, &m->table.flash, &term, err);
    if (st)
        return st;
    describe(&term, "flash",
             c->buffered ? "depth lanes of t0 + bytes / lane rate behind a link of max rate; some reads were "
                           "buffered (page cache)"
                         : "depth lanes of t0 + bytes / lane rate behind a link of max rate; one read ahead");
    if (c->buffered)
        lvr_log(LVR_LOG_WARN,
                "flash: some reads went through the page cache; the fitted rate is not the device's");
    *new_term(m, "flash") = term;
    return LVR_OK;
}

static lvr_status fit_acceptance(const collection *c, lvr_cost_model *m, lvr_error *err)
{
    lvr_fit_term term = {0};
    if (!c->has_oracle) {
        lvr_log(LVR_LOG_WARN,
                "no oracle trace was given: draft probabilities are taken as they are (not calibrated)");
        return LVR_OK;
    }
    lvr_fit_term crossed = {0};
    lvr_status st =
        lvr_fit_calibration(c->acceptance.items, c->acceptance.n, MAX_KNOTS, &m->calibration, &term, err);
    if (!st)
        st = lvr_fit_groups(c->hazards.items, c->hazards.n, &m->calibration, &crossed, err);
    if (st) {
        lvr_error_prefix(err, "%s", c->oracle_path);
        return st;
    }
    describe(&crossed, "acceptance_cross",
             crossed.n > 0
                 ? "by depth and rank where that predicts better; residuals of texts left out, over 20 levels"
                 : "not judged: no texts could be left out, more prompts are needed; one map for all depths "
                   "and ranks");
    *new_term(m, "acceptance_cross") = crossed;
    lvr_fit_by_rank(&c->ranks, &m->calibration);
    describe(&term, "acceptance",
             "isotonic in the draft's probability, linear between knots; residuals per knot");
    *new_term(m, "acceptance") = term;
    return LVR_OK;
}

static lvr_status add_trace(const char *path, collection *c, lvr_cost_model *m, lvr_error *err)
{
    lvr_trace *t = NULL;
    lvr_status st = lvr_trace_open(path, &t, err);
    if (st)
        return st;
    st = check_usable(t, err);
    if (!st)
        st = add_source(t, m, err);
    if (!st)
        st = add_prompts(t, m, err);
    if (!st)
        st = lvr_trace_get_meta(t)->kind == LVR_TRACE_TIMING ? add_timing(t, c, m, err)
                                                             : add_oracle(t, c, err);
    lvr_trace_close(t);
    return st;
}

static lvr_status fit_all(const collection *c, lvr_cost_model *m, lvr_error *err)
{
    /* GSL's default handler ends the program. */
    gsl_error_handler_t *handler = gsl_set_error_handler_off();
    lvr_status st = fit_ops(c, m, err);
    if (!st)
        st = fit_npu(c, m, err);
    if (!st)
        st = fit_flash(c, m, err);
    if (!st)
        st = fit_wake(c, m, err);
    if (!st)
        st = fit_acceptance(c, m, err);
    if (!st && c->exits.n > 0)
        st = lvr_fit_exit(&c->exits, &m->calibration, &m->exit, &m->exit_report, err);
    gsl_set_error_handler(handler);
    return st;
}

lvr_status lvr_cost_model_fit(const char *const *trace_paths, size_t n, lvr_cost_model *ret, lvr_error *err)
{
    if (n == 0)
        return lvr_fail(err, LVR_ERR_USAGE, "no traces to fit; give at least one timing trace");
    lvr_status st = LVR_OK;
    collection c;
    collection_init(&c);
    lvr_cost_model *m = calloc(1, sizeof(*m));
    if (!m)
        return lvr_fail(err, LVR_ERR_NOMEM, "fit: out of memory");
    for (size_t i = 0; i < n && !st; i++)
        st = add_trace(trace_paths[i], &c, m, err);
    if (!st)
        st = check_together(&c, m, err);
    if (!st)
        st = fit_all(&c, m, err);
    if (!st) {
        const char *draft = c.timing_draft[0] ? c.timing_draft : c.oracle.draft.sha256;
        memcpy(m->draft_sha256, draft, sizeof m->draft_sha256);
        qsort(m->prompt_hashes, m->n_prompts, sizeof m->prompt_hashes[0], by_value);
        *ret = *m;
    }
    free(m);
    collection_free(&c);
    return st;
}

const lvr_fit_term *lvr_cost_model_term(const lvr_cost_model *m, const char *name)
{
    for (uint32_t i = 0; i < m->n_terms; i++) {
        if (strcmp(m->terms[i].name, name) == 0)
            return &m->terms[i];
    }
    return NULL;
}

bool lvr_cost_model_has_prompt(const lvr_cost_model *m, uint64_t prompt_hash)
{
    return bsearch(&prompt_hash, m->prompt_hashes, m->n_prompts, sizeof m->prompt_hashes[0], by_value) !=
           NULL;
}
