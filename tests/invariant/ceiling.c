/* The ceiling (sim/ceiling.h): against every way to split short texts into rounds, and as what it is named
 * for: no policy, priced or simulated, passes it, whatever the schedule; what a run lost adds up to its time.
 */
#include "sim/ceiling.h"
#include "../unit/sim_rig.h"
#include "common/rng.h"
#include "sim/outcome.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const nine[] = {"ar",       "chain", "sequoia", "eagle2", "opttree",
                                   "specexec", "smart", "edgellm", "lever"};
enum { N_POLICIES = sizeof nine / sizeof nine[0] };

static lvr_ceiling ceiling_of(const lvr_sim_config *c, const lvr_sim_result *r)
{
    lvr_error err = LVR_ERROR_INIT;
    lvr_ceiling got = {0};
    cr_assert_eq(lvr_ceiling_of_run(c, r, &got, &err), LVR_OK, "%s", err.msg);
    return got;
}

/* ---- random schedules and prices ---- */

static lvr_geometry random_geometry(lvr_rng *rng)
{
    lvr_geometry g = {.n_layers = 1 + (uint32_t)lvr_rng_below(rng, 6),
                      .slice_bytes = 4096 * (1 + lvr_rng_below(rng, 40)),
                      .ring_slots = 1 + (uint32_t)lvr_rng_below(rng, 8),
                      .io_mode = lvr_rng_below(rng, 2) ? LVR_IO_PIPELINED : LVR_IO_SERIAL};
    for (uint32_t l = 0; l < g.n_layers; l++)
        g.layer_bytes[l] = 4096 * (1 + lvr_rng_below(rng, 100));
    lvr_geometry_set_resident(&g, lvr_rng_below(rng, 3) ? lvr_rng_unit(rng) : 0.0,
                              (lvr_residency)lvr_rng_below(rng, 3));
    return g;
}

static double below(lvr_rng *rng, double most)
{
    return most * lvr_rng_unit(rng);
}

/* `dips`: more rows may cost less, as in fitted curves. */
static lvr_cost_table random_cost(lvr_rng *rng, bool dips)
{
    static const double scale[LVR_OP_COUNT] = {1e5, 2e5, 5e4, 1e3, 1e4, 1e3};
    lvr_cost_table t = {.flash = {.t0_ns = lvr_rng_below(rng, 300000),
                                  .depth = 1 + (uint32_t)lvr_rng_below(rng, 8),
                                  .lane_bytes_per_s = 10000000 + lvr_rng_below(rng, 2000000000)}};
    t.flash.max_bytes_per_s = t.flash.lane_bytes_per_s + lvr_rng_below(rng, 2000000000);
    for (int op = 0; op < LVR_OP_COUNT; op++) {
        lvr_curve *c = &t.op[op].curve;
        *c = (lvr_curve){.n = 4, .rows = {1, 2, 4, 9}, .ns = {below(rng, scale[op])}};
        for (uint32_t i = 1; i < 4; i++)
            c->ns[i] = dips && i < 3 ? below(rng, scale[op]) : c->ns[i - 1] + below(rng, scale[op]);
        t.op[op].ctx_ns = op <= LVR_OP_LAYER && !dips ? below(rng, 50) : 0.0;
    }
    return t;
}

static void add_npu(lvr_cost_table *t, lvr_geometry *g, lvr_rng *rng)
{
    g->place = lvr_rng_below(rng, 2) ? LVR_PLACE_NPU : LVR_PLACE_AUTO;
    t->npu[LVR_OP_LAYER] = (lvr_npu_cost){.n = 3,
                                          .bucket = {1, 4, 16},
                                          .ns = {1e5, below(rng, 3e5), 2e5},
                                          .ctx_ns = 5,
                                          .launch_ns = below(rng, 1e5),
                                          .sync_ns = below(rng, 1e5)};
}

/* ---- every split of a short text ---- */

typedef struct splits {
    const lvr_sim_config *config;
    lvr_sim_request text;
    uint32_t request;
    double io_ns, ring_ns;
    double (*sums)[2]; /* of every split: without reading, with reading in place of verification */
    size_t n, cap;
} splits;

static double op_ns(const splits *s, lvr_op op, uint32_t rows, uint32_t context)
{
    return (double)llround(lvr_op_cost_ns(&s->config->cost->op[op], rows, context));
}

/* Where a curve dips, rows that stand for nothing may make it cheaper. It does not beyond its knots. */
static double least_ns(const splits *s, lvr_op op, uint32_t rows, uint32_t context)
{
    double least = INFINITY;
    for (uint32_t n = rows; n <= rows + 9; n++)
        least = fmin(least, op_ns(s, op, n, context));
    return least;
}

static bool path_goes_on(const splits *s, uint64_t *node, uint32_t pos)
{
    lvr_candidate c[LVR_MAX_BRANCH];
    uint64_t handles[LVR_MAX_BRANCH];
    if (*node == LVR_NO_NODE)
        return false;
    lvr_outcome_children(s->config->outcome, *node, sim_rig_default.branch, c, handles);
    for (uint32_t i = 0; i < sim_rig_default.branch; i++) {
        if (handles[i] == LVR_NO_NODE || c[i].token != lvr_outcome_token(s->config->outcome, s->request, pos))
            continue;
        *node = handles[i];
        return true;
    }
    return false;
}

static void keep_split(splits *s, double without, double with)
{
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 1024;
        s->sums = realloc(s->sums, s->cap * sizeof *s->sums);
        cr_assert_not_null(s->sums);
    }
    s->sums[s->n][0] = without;
    s->sums[s->n++][1] = with;
}

static void each_split(splits *s, uint32_t done, uint32_t lag, double without, double with);

/* One round that drafts `steps` steps and of which k nodes are accepted, and all that may follow. */
static void one_round(splits *s, uint32_t done, uint32_t lag, uint32_t k, uint32_t steps, double without,
                      double with)
{
    const uint32_t pos = s->text.n_prompt - 1 + done;
    double rest = op_ns(s, LVR_OP_COMMIT, k + 1, pos);
    for (uint32_t i = 0; i <= k; i++)
        rest += op_ns(s, LVR_OP_HEAD, 1, pos + i);
    for (uint32_t i = 0; i < steps; i++)
        rest += least_ns(s, LVR_OP_DRAFT, i == 0 ? lag + 1 : 1, i == 0 ? pos - lag : pos);
    const double verify = least_ns(s, LVR_OP_EMBED, k + 1, pos) +
                          s->config->geometry->n_layers * least_ns(s, LVR_OP_LAYER, k + 1, pos);
    const bool serial = s->config->geometry->io_mode == LVR_IO_SERIAL;
    const double credit = done == 0 ? s->ring_ns : fmin(s->ring_ns, rest);
    const uint32_t lag_after = steps == 0 ? lag + 1 : steps > k ? 0 : 1;
    each_split(s, done + k + 1, lag_after, without + rest + verify + (serial ? s->io_ns : 0.0),
               serial ? 0.0 : with + rest + s->io_ns - credit);
}

static void each_split(splits *s, uint32_t done, uint32_t lag, double without, double with)
{
    if (done == s->text.n_output) {
        keep_split(s, without, with);
        return;
    }
    const uint32_t pos = s->text.n_prompt - 1 + done;
    uint64_t node = lvr_outcome_root(s->config->outcome, s->request, pos);
    one_round(s, done, lag, 0, 0, without, with);
    one_round(s, done, lag, 0, 1, without, with);
    for (uint32_t k = 1; done + k < s->text.n_output && path_goes_on(s, &node, pos + k); k++) {
        one_round(s, done, lag, k, k, without, with);
        one_round(s, done, lag, k, k + 1, without, with);
    }
}

static double cheapest(const splits *s, double theta)
{
    double least = INFINITY;
    for (size_t i = 0; i < s->n; i++)
        least = fmin(least, (1 - theta) * s->sums[i][0] + theta * s->sums[i][1]);
    return least;
}

/* Greatest over all weights: the function is concave. */
static double relaxed(const splits *s)
{
    double low = 0, high = 1;
    for (int i = 0; i < 100; i++) {
        const double a = low + (high - low) / 3, b = high - (high - low) / 3;
        if (cheapest(s, a) < cheapest(s, b))
            low = a;
        else
            high = b;
    }
    return fmax(cheapest(s, (low + high) / 2), fmax(cheapest(s, 0), cheapest(s, 1)));
}

/* What the best split takes: of each, the larger of its two sides. */
static double best_split(const splits *s)
{
    double least = INFINITY;
    for (size_t i = 0; i < s->n; i++)
        least = fmin(least, fmax(s->sums[i][0], s->sums[i][1]));
    return least;
}

static splits split_text(const lvr_sim_config *c, uint32_t request)
{
    const lvr_geometry *g = c->geometry;
    const double bytes = (double)lvr_geometry_stream_bytes(g);
    splits s = {.config = c, .request = request, .io_ns = lvr_cost_io_ns(c->cost, g)};
    if (bytes > 0)
        s.ring_ns = s.io_ns * (double)(g->ring_slots * lvr_geometry_largest_streamed(g)) / bytes;
    lvr_outcome_request(c->outcome, request, &s.text);
    each_split(&s, 0, 0, 0.0, 0.0);
    return s;
}

static void check_splits(const lvr_sim_config *c)
{
    lvr_error err = LVR_ERROR_INIT;
    lvr_sim_result r = {0};
    cr_assert_eq(lvr_sim_run(c, &r, &err), LVR_OK, "%s", err.msg);
    splits s = split_text(c, c->requests[0]);
    const double ns = (double)r.n_tokens * 1e9 / ceiling_of(c, &r).tokens_per_s;
    const double bound = relaxed(&s), best = best_split(&s);
    cr_assert_leq(ns, bound * (1 + 1e-9), "%.12g ns, the best of %zu splits %.12g", ns, s.n, bound);
    cr_assert_geq(ns, bound * (1 - 1e-7), "%.12g ns, the best of %zu splits %.12g", ns, s.n, bound);
    cr_assert_leq(bound, best * (1 + 1e-9));
    if (c->geometry->io_mode == LVR_IO_SERIAL)
        cr_assert_float_eq(bound, best, best * 1e-9);
    free(s.sums);
    lvr_sim_result_free(&r);
}

Test(ceiling, equals_the_best_split_of_short_texts)
{
    lvr_rng rng;
    lvr_rng_init(&rng, 12, "ceiling");
    sim_rig rig = sim_rig_default;
    rig.n_output = 5;
    lvr_outcome *o = sim_rig_outcome(&rig);
    for (uint32_t i = 0; i < 200; i++) {
        const uint32_t request = i % rig.n_requests;
        const lvr_geometry g = random_geometry(&rng);
        const lvr_cost_table t = random_cost(&rng, i % 4 == 3);
        const lvr_policy ar = sim_rig_policy("ar", &t);
        const lvr_sim_config c = {.policy = &ar,
                                  .geometry = &g,
                                  .cost = &t,
                                  .conditions = sim_rig_conditions(),
                                  .outcome = o,
                                  .requests = &request,
                                  .n_requests = 1,
                                  .keep_rounds = true};
        check_splits(&c);
    }
    lvr_outcome_free(o);
}

/* ---- policies ---- */

/* The objective's price of the same rounds, each for itself (cost.h). */
static double objective_ns(const lvr_sim_config *c, const lvr_sim_result *r)
{
    const lvr_round_pricer pricer = lvr_round_pricer_new(c->cost, c->geometry);
    double sum = 0.0;
    uint32_t committed = 0;
    for (size_t i = 0; i < r->n_round_log; i++) {
        const lvr_sim_round *l = &r->round_log[i];
        if (l->prefill || i == 0 || l->request != r->round_log[i - 1].request)
            committed = 0;
        if (l->prefill)
            continue;
        lvr_sim_request text;
        lvr_outcome_request(c->outcome, c->requests ? c->requests[l->request] : l->request, &text);
        sum += lvr_round_price_ns(&pricer, (double)l->op_ns[LVR_OP_DRAFT], l->n_rows, l->n_accepted + 1,
                                  text.n_prompt - 1 + committed);
        committed += l->n_accepted + 1;
    }
    return sum;
}

struct speeds {
    double simulated, priced, ceiling; /* tokens/s */
};

static struct speeds check_run(const lvr_sim_config *c, const char *what)
{
    lvr_error err = LVR_ERROR_INIT;
    lvr_sim_result r = {0};
    cr_assert_eq(lvr_sim_run(c, &r, &err), LVR_OK, "%s: %s", what, err.msg);
    const lvr_ceiling got = ceiling_of(c, &r);
    const double time = (double)r.decode_ns, tokens = (double)r.n_tokens * 1e9, rounding = 1e-9;
    const double priced = tokens / objective_ns(c, &r);
    cr_assert_leq(tokens / time, got.tokens_per_s * (1 + rounding), "%s: simulated", what);
    cr_assert_leq(got.tokens_per_s, got.perfect_draft_tokens_per_s * (1 + rounding), "%s", what);
    cr_assert_float_eq(got.fraction, tokens / time / got.tokens_per_s, rounding, "%s", what);
    cr_assert(got.loss.draft >= -rounding && got.loss.tree >= -rounding && got.loss.schedule >= -rounding,
              "%s: losses %g %g %g", what, got.loss.draft, got.loss.tree, got.loss.schedule);
    cr_assert_float_eq(got.loss.pruning, 0.0, rounding, "%s: pruning %g", what, got.loss.pruning);
    const double lost = got.loss.draft + got.loss.tree + got.loss.pruning + got.loss.schedule;
    cr_assert_float_eq((1 - lost) * time, tokens / got.perfect_draft_tokens_per_s, rounding * time, "%s",
                       what);
    lvr_sim_result_free(&r);
    return (struct speeds){.simulated = tokens / time, .priced = priced, .ceiling = got.tokens_per_s};
}

static char *in_source(const char *name)
{
    const char *root = getenv("LVR_SOURCE_ROOT");
    char *path = NULL;
    cr_assert_not_null(root);
    cr_assert_gt(asprintf(&path, "%s/%s", root, name), 0);
    return path;
}

/* The embedded pair's recording: each policy as it comes, from nothing streamed to all layers. Returns the
 * most that simulated speed is of the objective's price of the same rounds. */
static double check_embedded(lvr_io_mode mode)
{
    double fastest = 0.0;
    lvr_error err = LVR_ERROR_INIT;
    lvr_cost_model *m = malloc(sizeof *m);
    lvr_sim_oracle oracle = {0};
    char *cost = in_source("models/traces/cost.yaml"), *trace = in_source("models/traces/oracle-held-out.h5");
    cr_assert_eq(lvr_cost_model_load(cost, m, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_sim_oracle_load(trace, &oracle, &err), LVR_OK, "%s", err.msg);
    for (uint32_t i = 0; i < N_POLICIES * 6; i++) {
        static const double resident[] = {1.0, 0.9, 0.0};
        lvr_policy_file file;
        cr_assert_eq(lvr_sim_policy(nine[i % N_POLICIES], NULL, 0, m, &file, &err), LVR_OK, "%s", err.msg);
        file.geometry.io_mode = mode;
        file.geometry.ring_slots = i / N_POLICIES % 2 ? 2 : 5;
        lvr_geometry_set_resident(&file.geometry, resident[i / N_POLICIES / 2], LVR_RESIDENT_FIRST);
        lvr_sim_config c = {.policy = &file.policy,
                            .geometry = &file.geometry,
                            .conditions = file.conditions,
                            .outcome = oracle.outcome,
                            .keep_rounds = true};
        lvr_sim_use_model(&c, m);
        const struct speeds v = check_run(&c, nine[i % N_POLICIES]);
        cr_assert_leq(v.priced, v.ceiling, "%s: priced", nine[i % N_POLICIES]);
        fastest = fmax(fastest, v.simulated / v.priced);
    }
    lvr_sim_oracle_free(&oracle);
    free(cost);
    free(trace);
    free(m);
    return fastest;
}

Test(ceiling, no_policy_passes_it_on_the_embedded_traces_serial)
{
    cr_expect_leq(check_embedded(LVR_IO_SERIAL), 1.0);
}

Test(ceiling, no_policy_passes_it_on_the_embedded_traces_pipelined)
{
    /* Reads run ahead across rounds, which a price of each round for itself does not see: it would be no
     * ceiling. */
    cr_expect_gt(check_embedded(LVR_IO_PIPELINED), 1.05);
}

/* Prices that no device has: dips, accelerators, rings larger than a pass, long laggards. */
Test(ceiling, no_policy_passes_it_whatever_the_schedule)
{
    static const char *const names[] = {"ar", "chain", "lever", "random", "edgellm"};
    lvr_rng rng;
    lvr_rng_init(&rng, 13, "ceiling");
    lvr_outcome *o = sim_rig_outcome(&sim_rig_default);
    for (int i = 0; i < 150; i++) {
        lvr_geometry g = random_geometry(&rng);
        lvr_cost_table t = random_cost(&rng, i % 2 == 0);
        if (i % 3 == 0)
            add_npu(&t, &g, &rng);
        const lvr_policy p = sim_rig_policy(names[i % 5], &t);
        lvr_sim_config c = {.policy = &p,
                            .geometry = &g,
                            .cost = &t,
                            .wake_ns = lvr_rng_below(&rng, 100000),
                            .conditions = sim_rig_conditions(),
                            .outcome = o,
                            .keep_rounds = true};
        c.conditions.prefill_chunk = 1 + (uint32_t)lvr_rng_below(&rng, 16);
        check_run(&c, names[i % 5]);
    }
    lvr_outcome_free(o);
}

Test(ceiling, made_up_texts_and_forgotten_rounds_are_refused)
{
    lvr_error err = LVR_ERROR_INIT;
    lvr_outcome *o = sim_rig_outcome(&sim_rig_default);
    const lvr_cost_table t = sim_rig_cost();
    const lvr_geometry g = sim_rig_geometry(2, 200000, LVR_IO_SERIAL);
    const lvr_policy p = sim_rig_policy("chain", &t);
    lvr_ceiling untouched = {.fraction = 7};
    lvr_sim_config c = {
        .policy = &p, .geometry = &g, .cost = &t, .conditions = sim_rig_conditions(), .outcome = o};
    lvr_sim_result r = {0};
    cr_assert_eq(lvr_sim_run(&c, &r, &err), LVR_OK, "%s", err.msg);
    cr_expect_eq(lvr_ceiling_of_run(&c, &r, &untouched, &err), LVR_ERR_USAGE);
    cr_expect(strstr(err.msg, "keep_rounds"), "%s", err.msg);
    lvr_outcome_free(o);

    char *path = in_source("configs/acceptance/sequoia.yaml");
    cr_assert_eq(lvr_outcome_from_acceptance(path, 1, 4, 9, 60, &o, &err), LVR_OK, "%s", err.msg);
    c.outcome = o;
    c.keep_rounds = true;
    cr_expect_eq(lvr_ceiling_of_run(&c, &r, &untouched, &err), LVR_ERR_USAGE);
    cr_expect(strstr(err.msg, "--oracle"), "%s", err.msg);
    cr_expect_eq(untouched.fraction, 7);
    free(path);
    lvr_sim_result_free(&r);
    lvr_outcome_free(o);
}
