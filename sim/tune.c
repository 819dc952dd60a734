#include "sim/tune.h"

#include "common/json.h"
#include "common/rng.h"
#include "sim/inputs.h"
#include "sim/outcome.h"

#include <gsl/gsl_errno.h>
#include <gsl/gsl_qrng.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIXED_POINT_TRIALS = 4, ALIGN = 4096 };
static const double FIXED_POINT_GAP = 0.002;

/* One searched dimension, mapped from [0, 1). */
typedef struct dimension {
    const lvr_param *param; /* NULL: part of the schedule */
    double lo, hi;
    bool by_ratio; /* equal steps are equal factors */
} dimension;

typedef struct search {
    const lvr_tune_config *c;
    lvr_tune_result *r;
    dimension dims[LVR_TUNE_MAX_DIMS + 2];
    uint32_t n_dims, n_params;
    int32_t ring_dim, slice_dim; /* -1: not searched */
    const lvr_param *lambda;     /* NULL: the policy has none */
    double shift[LVR_TUNE_MAX_DIMS + 2];
    double best_u[LVR_TUNE_MAX_DIMS + 2];
    lvr_policy_file best, point;
    double price; /* lambda of the next trial */
    bool found;
} search;

/* ---- the space ---- */

/* Trees beyond what was recorded cannot be judged, so points that must leave it are not worth a trial. */
static double recorded_limit(const lvr_param *p, const lvr_outcome_caps *caps)
{
    if (strcmp(p->name, "branch") == 0)
        return caps->branch;
    if (strcmp(p->name, "max_depth") == 0 || strcmp(p->name, "k") == 0)
        return caps->depth;
    return INFINITY;
}

static dimension param_dimension(const lvr_param *p, const lvr_outcome_caps *caps)
{
    dimension d = {.param = p, .lo = p->min, .hi = fmax(p->min, fmin(p->max, recorded_limit(p, caps)))};
    if (strcmp(p->name, "min_path") == 0)
        d.lo = fmin(d.hi, fmax(d.lo, caps->min_path));
    if (p->type == LVR_PARAM_DOUBLE && d.lo <= 0)
        d.lo = d.hi * 1e-4; /* a bound that may be 0 acts by its order of magnitude */
    d.by_ratio = d.lo > 0 && d.hi / d.lo >= 8.0 && (p->type != LVR_PARAM_DOUBLE || p->min <= 0);
    return d;
}

static lvr_status add_schedule(search *s, lvr_error *err)
{
    const lvr_geometry *g = &s->c->start->geometry;
    const uint64_t layer = lvr_geometry_largest_streamed(g);
    if (s->c->ring_budget_bytes == 0 || layer == 0)
        return LVR_OK;
    uint64_t slots = s->c->ring_budget_bytes / layer;
    if (slots == 0)
        return lvr_fail(err, LVR_ERR_BUDGET,
                        "tune: a ring of %llu bytes holds no layer (%llu bytes); give at least that much",
                        (unsigned long long)s->c->ring_budget_bytes, (unsigned long long)layer);
    slots = slots < LVR_MAX_RING_SLOTS ? slots : LVR_MAX_RING_SLOTS;
    s->ring_dim = (int32_t)s->n_dims;
    s->dims[s->n_dims++] = (dimension){.lo = 1, .hi = (double)slots};
    const double lo = fmax((double)s->c->slice_bytes_min, ALIGN),
                 hi = fmin((double)s->c->slice_bytes_max, LVR_MAX_SLICE_BYTES);
    if (hi >= 2 * lo) {
        s->slice_dim = (int32_t)s->n_dims;
        s->dims[s->n_dims++] = (dimension){.lo = lo, .hi = hi, .by_ratio = true};
    }
    return LVR_OK;
}

static bool of_pruning(const lvr_param *p)
{
    return strcmp(p->name, "prune") == 0 || strcmp(p->name, "theta") == 0;
}

/* Not without a predictor, a price of scoring (it would cost nothing), and features to replay it on. */
static bool can_prune(const search *s)
{
    const lvr_policy *p = &s->c->start->policy;
    for (uint32_t i = 0; i < p->exit.n; i++)
        if (!lvr_outcome_has_exit(s->c->tune, p->exit.at[i].layer) ||
            (s->c->held_out && !lvr_outcome_has_exit(s->c->held_out, p->exit.at[i].layer)))
            return false;
    return p->exit.n > 0 && p->has_cost && p->cost.op[LVR_OP_SCORE].curve.n > 0;
}

static bool is_searched(const search *s, const lvr_param *p)
{
    return p->tunable && p->type != LVR_PARAM_STR && p != s->lambda && (!of_pruning(p) || can_prune(s));
}

static bool is_fixed(const search *s, const lvr_param *p)
{
    for (size_t i = 0; i < s->c->n_fixed; i++)
        if (strcmp(s->c->fixed[i], p->name) == 0)
            return true;
    return false;
}

/* A name that fixes nothing is a mistake. */
static lvr_status check_fixed(const search *s, lvr_error *err)
{
    const lvr_policy_ops *ops = s->c->start->policy.ops;
    for (size_t i = 0; i < s->c->n_fixed; i++) {
        bool known = false;
        char names[256] = "";
        for (size_t k = 0; k < ops->n_params; k++) {
            if (!is_searched(s, &ops->params[k]))
                continue;
            known = known || strcmp(ops->params[k].name, s->c->fixed[i]) == 0;
            const size_t n = strlen(names);
            snprintf(names + n, sizeof names - n, "%s%s", n ? ", " : "", ops->params[k].name);
        }
        if (!known)
            return lvr_fail(err, LVR_ERR_CONFIG,
                            "tune: \"%s\" is no parameter that is searched for policy %s; those are: %s",
                            s->c->fixed[i], ops->name, names[0] ? names : "none");
    }
    return LVR_OK;
}

static lvr_status define_space(search *s, lvr_error *err)
{
    const lvr_policy_ops *ops = s->c->start->policy.ops;
    const lvr_outcome_caps caps = lvr_outcome_get_caps(s->c->tune);
    s->ring_dim = s->slice_dim = -1;
    s->lambda = lvr_sim_price_param(&s->c->start->policy);
    const lvr_status st = check_fixed(s, err);
    if (st)
        return st;
    for (size_t i = 0; i < ops->n_params; i++) {
        const lvr_param *p = &ops->params[i];
        if (!is_searched(s, p) || is_fixed(s, p))
            continue;
        if (s->n_dims == LVR_TUNE_MAX_DIMS)
            return lvr_fail(err, LVR_ERR_UNSUPPORTED, "tune: policy %s has more than %d tunable parameters",
                            ops->name, LVR_TUNE_MAX_DIMS);
        s->r->names[s->n_dims] = p->name;
        s->dims[s->n_dims++] = param_dimension(p, &caps);
    }
    s->n_params = s->r->n_names = s->n_dims;
    return add_schedule(s, err);
}

static double value_at(const dimension *d, double u)
{
    const bool whole = !d->param || d->param->type == LVR_PARAM_U32 || d->param->type == LVR_PARAM_U64 ||
                       d->param->type == LVR_PARAM_ENUM || d->param->type == LVR_PARAM_BOOL;
    const double widen = whole && !d->by_ratio ? 1.0 : 0.0; /* each whole number its equal share */
    const double v = d->by_ratio ? d->lo * pow(d->hi / d->lo, u) : d->lo + u * (d->hi - d->lo + widen);
    return fmin(whole && !d->by_ratio ? floor(v) : v, d->hi);
}

static double coordinate_of(const dimension *d, double v)
{
    const double u = d->by_ratio ? log(fmax(v, d->lo) / d->lo) / log(d->hi / d->lo)
                                 : (v - d->lo) / fmax(d->hi - d->lo, 1e-300);
    return fmin(fmax(u, 0.0), 1.0);
}

static void set_point(search *s, const double *u)
{
    s->point = *s->c->start;
    for (uint32_t i = 0; i < s->n_params; i++)
        lvr_param_set_number(s->dims[i].param, s->point.policy.params.bytes, value_at(&s->dims[i], u[i]));
    if (s->ring_dim >= 0)
        s->point.geometry.ring_slots = (uint32_t)value_at(&s->dims[s->ring_dim], u[s->ring_dim]);
    if (s->slice_dim >= 0) {
        const uint64_t bytes = (uint64_t)value_at(&s->dims[s->slice_dim], u[s->slice_dim]);
        s->point.geometry.slice_bytes = bytes / ALIGN * ALIGN < ALIGN ? ALIGN : bytes / ALIGN * ALIGN;
    }
}

static void start_point(const search *s, double *u)
{
    const lvr_policy_file *start = s->c->start;
    for (uint32_t i = 0; i < s->n_params; i++)
        u[i] = coordinate_of(&s->dims[i], lvr_param_get_number(s->dims[i].param, start->policy.params.bytes));
    if (s->ring_dim >= 0)
        u[s->ring_dim] = coordinate_of(&s->dims[s->ring_dim], start->geometry.ring_slots);
    if (s->slice_dim >= 0)
        u[s->slice_dim] = coordinate_of(&s->dims[s->slice_dim], (double)start->geometry.slice_bytes);
}

/* ---- trials ---- */

static lvr_status replay(const lvr_tune_config *c, const lvr_policy_file *pf, const lvr_outcome *o,
                         lvr_sim_result *ret, lvr_error *err)
{
    lvr_sim_config config = {
        .policy = &pf->policy, .geometry = &pf->geometry, .conditions = pf->conditions, .outcome = o};
    config.cancel = c->cancel;
    lvr_sim_use_model(&config, c->model);
    lvr_sim_make_room(&config.conditions, o);
    return lvr_sim_run(&config, ret, err);
}

static void describe_trial(const search *s, const char *stage, const lvr_sim_result *sim, lvr_tune_trial *t)
{
    *t = (lvr_tune_trial){.stage = stage,
                          .lambda = s->lambda ? s->price : NAN,
                          .ring_slots = s->point.geometry.ring_slots,
                          .slice_bytes = s->point.geometry.slice_bytes,
                          .tokens_per_s = lvr_sim_tokens_per_s(sim),
                          .mean_acceptance_length = (double)sim->n_tokens / (double)sim->rounds,
                          .rows_per_round = (double)sim->verified_rows / (double)sim->rounds,
                          .outside_nodes = sim->outside_nodes};
    for (uint32_t i = 0; i < s->n_params; i++)
        t->x[i] = lvr_param_get_number(s->dims[i].param, s->point.policy.params.bytes);
}

/* Runs s->point under the current price. A better point becomes the best, and its speed the price. */
static lvr_status run_trial(search *s, const char *stage, const double *u, lvr_error *err)
{
    lvr_sim_result sim = {0};
    if (s->lambda)
        lvr_param_set_number(s->lambda, s->point.policy.params.bytes, s->price);
    lvr_status st = replay(s->c, &s->point, s->c->tune, &sim, err);
    if (st)
        return st;
    lvr_tune_result *r = s->r;
    lvr_tune_trial *t = &r->trials[r->n_trials++];
    describe_trial(s, stage, &sim, t);
    lvr_sim_result_free(&sim);
    if (t->outside_nodes == 0 && (!s->found || t->tokens_per_s > r->trials[r->best].tokens_per_s)) {
        s->found = true;
        s->best = s->point;
        r->best = r->n_trials - 1;
        memcpy(s->best_u, u, s->n_dims * sizeof(*u));
        s->price = t->tokens_per_s;
    }
    if (s->c->progress)
        s->c->progress(s->c->user, r->n_trials, s->c->trials,
                       s->found ? r->trials[r->best].tokens_per_s : 0.0);
    return LVR_OK;
}

static double wrapped(double u)
{
    return u - floor(u);
}

static double reflected(double u)
{
    return u < 0 ? -u : u > 1 ? 2 - u : u;
}

/* Sobol points over the whole space, shifted by the seed. */
static lvr_status explore(search *s, gsl_qrng *q, uint32_t until, lvr_error *err)
{
    lvr_status st = LVR_OK;
    double raw[LVR_TUNE_MAX_DIMS + 2], u[LVR_TUNE_MAX_DIMS + 2];
    while (!st && s->r->n_trials < until) {
        gsl_qrng_get(q, raw);
        for (uint32_t i = 0; i < s->n_dims; i++)
            u[i] = wrapped(raw[i] + s->shift[i]);
        set_point(s, u);
        st = run_trial(s, "explore", u, err);
    }
    return st;
}

/* Sobol points around the best one, in a box that shrinks from half of the space to a sixteenth. */
static lvr_status refine(search *s, gsl_qrng *q, uint32_t until, lvr_error *err)
{
    lvr_status st = LVR_OK;
    double raw[LVR_TUNE_MAX_DIMS + 2], u[LVR_TUNE_MAX_DIMS + 2];
    const uint32_t first = s->r->n_trials;
    while (!st && s->r->n_trials < until) {
        const double progress = (double)(s->r->n_trials - first) / (double)(until - first);
        const double radius = 0.25 * pow(0.125, progress);
        gsl_qrng_get(q, raw);
        for (uint32_t i = 0; i < s->n_dims; i++)
            u[i] = reflected(s->best_u[i] + radius * (2 * wrapped(raw[i] + s->shift[i]) - 1));
        set_point(s, u);
        st = run_trial(s, "refine", u, err);
    }
    return st;
}

static double gap(const lvr_tune_trial *t)
{
    return isnan(t->lambda) ? 0.0 : fabs(t->lambda - t->tokens_per_s) / fmax(t->tokens_per_s, 1e-12);
}

/* The best point again under its own speed, until that is the price it ran under. */
static lvr_status settle(search *s, lvr_error *err)
{
    lvr_status st = LVR_OK;
    lvr_tune_result *r = s->r;
    const double before = s->found ? r->trials[r->best].tokens_per_s : 0.0;
    if (!s->lambda || !s->found)
        return LVR_OK;
    while (!st && r->n_trials < s->c->trials && gap(&r->trials[r->best]) > FIXED_POINT_GAP) {
        double u[LVR_TUNE_MAX_DIMS + 2];
        memcpy(u, s->best_u, sizeof u);
        s->point = s->best;
        s->price = r->trials[r->best].tokens_per_s;
        st = run_trial(s, "fixed-point", u, err);
        const lvr_tune_trial *t = &r->trials[r->n_trials - 1];
        if (r->best == r->n_trials - 1 || t->outside_nodes > 0)
            continue;
        /* Not faster than under the price of before: equal speeds need no more trials, and the best one
         * stands. */
        if (t->tokens_per_s >= before * (1 - FIXED_POINT_GAP) && gap(t) <= FIXED_POINT_GAP) {
            r->best = r->n_trials - 1;
            s->best = s->point;
        }
        break;
    }
    return st;
}

/* ---- the search ---- */

/* Before anything has been run: the speed of one row a round, by the cost table. */
static double first_price(const lvr_tune_config *c)
{
    return 1e9 / fmax(lvr_cost_round_ns(&c->model->table, &c->start->geometry, 0, 1, 1, 0), 1.0);
}

static lvr_status search_points(search *s, lvr_error *err)
{
    const uint32_t n = s->c->trials;
    const uint32_t reserve = s->lambda ? FIXED_POINT_TRIALS : 0;
    const uint32_t search_end = n > reserve + 1 ? n - reserve : 1;
    double u[LVR_TUNE_MAX_DIMS + 2] = {0};
    lvr_status st = LVR_OK;
    start_point(s, u);
    s->point = *s->c->start;
    st = run_trial(s, "start", u, err);
    if (st || s->n_dims == 0)
        return st ? st : settle(s, err);
    gsl_qrng *q = gsl_qrng_alloc(gsl_qrng_sobol, s->n_dims);
    if (!q)
        return lvr_fail(err, LVR_ERR_NOMEM, "tune: out of memory for a search in %u dimensions", s->n_dims);
    st = explore(s, q, search_end - search_end / 3, err);
    if (!st && s->found)
        st = refine(s, q, search_end, err);
    if (!st && !s->found)
        st = explore(s, q, n, err);
    gsl_qrng_free(q);
    return st ? st : settle(s, err);
}

static lvr_status predict(search *s, lvr_error *err)
{
    lvr_tune_result *r = s->r;
    lvr_sim_result sim = {0};
    r->file = s->best;
    r->lambda_gap = gap(&r->trials[r->best]);
    r->file.predicted_tokens_per_s = 0;
    snprintf(r->file.objective, sizeof r->file.objective, "decode tokens/s, simulated, tune prompts");
    if (!s->c->held_out)
        return LVR_OK;
    const lvr_status st = replay(s->c, &s->best, s->c->held_out, &sim, err);
    if (st)
        return st;
    r->held_out_tokens_per_s = lvr_sim_tokens_per_s(&sim);
    r->held_out_acceptance_length = (double)sim.n_tokens / (double)sim.rounds;
    r->held_out_outside_nodes = sim.outside_nodes;
    r->n_held_out = sim.n_requests;
    r->file.predicted_tokens_per_s = r->held_out_tokens_per_s;
    snprintf(r->file.objective, sizeof r->file.objective, "decode tokens/s, simulated, %u held-out prompts",
             sim.n_requests);
    lvr_sim_result_free(&sim);
    return LVR_OK;
}

static lvr_status check(const lvr_tune_config *c, lvr_error *err)
{
    if (c->trials == 0)
        return lvr_fail(err, LVR_ERR_USAGE, "tune: no trials");
    const uint32_t shared = c->held_out ? lvr_sim_count_shared_prompts(c->held_out, c->tune) : 0;
    if (shared > 0)
        return lvr_fail(err, LVR_ERR_CONFIG,
                        "tune: %u of %u held-out prompts are also tune prompts, so the prediction would "
                        "judge itself; record another set "
                        "(lever record --split)",
                        shared, lvr_outcome_n_requests(c->held_out));
    return LVR_OK;
}

static lvr_status not_found(const search *s, lvr_error *err)
{
    const lvr_outcome_caps caps = lvr_outcome_get_caps(s->c->tune);
    return lvr_fail(err, LVR_ERR_CONFIG,
                    "tune: none of %u trials stayed within the recorded trees (up to %u children a node, "
                    "depth %u), so no point can be judged; "
                    "record the oracle trace with greater caps",
                    s->r->n_trials, caps.branch, caps.depth);
}

lvr_status lvr_tune(const lvr_tune_config *config, lvr_tune_result *ret, lvr_error *err)
{
    lvr_status st = check(config, err);
    if (st)
        return st;
    lvr_tune_result *r = calloc(1, sizeof(*r));
    search *s = calloc(1, sizeof(*s));
    if (!r || !s || !(r->trials = calloc(config->trials, sizeof(*r->trials)))) {
        st = lvr_fail(err, LVR_ERR_NOMEM, "tune: out of memory");
        goto out;
    }
    *s = (search){.c = config, .r = r, .price = first_price(config)};
    lvr_rng rng;
    lvr_rng_init(&rng, config->seed, "tune");
    for (size_t i = 0; i < sizeof s->shift / sizeof s->shift[0]; i++)
        s->shift[i] = lvr_rng_unit(&rng);
    gsl_error_handler_t *handler = gsl_set_error_handler_off();
    st = define_space(s, err);
    if (!st)
        st = search_points(s, err);
    gsl_set_error_handler(handler);
    if (!st && !s->found)
        st = not_found(s, err);
    if (!st)
        st = predict(s, err);
    if (!st) {
        *ret = *r;
        r->trials = NULL;
    }
out:
    if (r)
        free(r->trials);
    free(r);
    free(s);
    return st;
}

void lvr_tune_result_free(lvr_tune_result *r)
{
    free(r->trials);
    *r = (lvr_tune_result){0};
}

/* ---- reports ---- */

static void csv_number(lvr_buf *out, double v)
{
    char text[32];
    lvr_format_double(text, sizeof text, v);
    lvr_buf_printf(out, ",%s", isnan(v) ? "" : text);
}

void lvr_tune_report_csv(const lvr_tune_result *r, lvr_buf *out)
{
    lvr_buf_puts(out,
                 "trial,stage,best,outside_nodes,tokens_per_s,mean_acceptance_length,rows_per_round,lambda");
    for (uint32_t i = 0; i < r->n_names; i++)
        lvr_buf_printf(out, ",%s", r->names[i]);
    lvr_buf_puts(out, ",ring_slots,slice_bytes\n");
    for (uint32_t i = 0; i < r->n_trials; i++) {
        const lvr_tune_trial *t = &r->trials[i];
        lvr_buf_printf(out, "%u,%s,%d,%llu", i + 1, t->stage, i == r->best,
                       (unsigned long long)t->outside_nodes);
        csv_number(out, t->tokens_per_s);
        csv_number(out, t->mean_acceptance_length);
        csv_number(out, t->rows_per_round);
        csv_number(out, t->lambda);
        for (uint32_t k = 0; k < r->n_names; k++)
            csv_number(out, t->x[k]);
        lvr_buf_printf(out, ",%u,%llu\n", t->ring_slots, (unsigned long long)t->slice_bytes);
    }
}

static void json_trial(const lvr_tune_result *r, const lvr_tune_trial *t, const char *key, lvr_json *j)
{
    lvr_json_object(j, key);
    lvr_json_str(j, "stage", t->stage);
    lvr_json_double(j, "tokens_per_s", t->tokens_per_s);
    lvr_json_double(j, "mean_acceptance_length", t->mean_acceptance_length);
    lvr_json_double(j, "rows_per_round", t->rows_per_round);
    lvr_json_u64(j, "outside_nodes", t->outside_nodes);
    lvr_json_double(j, "lambda", t->lambda);
    lvr_json_object(j, "params");
    for (uint32_t k = 0; k < r->n_names; k++)
        lvr_json_double(j, r->names[k], t->x[k]);
    lvr_json_end_object(j);
    lvr_json_u64(j, "ring_slots", t->ring_slots);
    lvr_json_u64(j, "slice_bytes", t->slice_bytes);
    lvr_json_end_object(j);
}

void lvr_tune_report_json(const lvr_tune_result *r, lvr_buf *out)
{
    lvr_json j;
    lvr_json_init(&j, out, true);
    lvr_json_object(&j, NULL);
    lvr_json_str(&j, "policy", r->file.policy.ops->name);
    lvr_json_str(&j, "objective", r->file.objective);
    json_trial(r, &r->trials[r->best], "best", &j);
    lvr_json_double(&j, "lambda_gap", r->lambda_gap);
    lvr_json_object(&j, "held_out");
    lvr_json_u64(&j, "n_requests", r->n_held_out);
    lvr_json_double(&j, "tokens_per_s", r->n_held_out ? r->held_out_tokens_per_s : NAN);
    lvr_json_double(&j, "mean_acceptance_length", r->n_held_out ? r->held_out_acceptance_length : NAN);
    lvr_json_u64(&j, "outside_nodes", r->held_out_outside_nodes);
    lvr_json_bool(&j, "exact", r->held_out_outside_nodes == 0);
    lvr_json_end_object(&j);
    lvr_json_array(&j, "trials");
    for (uint32_t i = 0; i < r->n_trials; i++)
        json_trial(r, &r->trials[i], NULL, &j);
    lvr_json_end_array(&j);
    lvr_json_end_object(&j);
    lvr_buf_puts(out, "\n");
}
