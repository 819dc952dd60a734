/* Adaptation of the calibration: where it goes, how far, and that it is off unless asked for. */
#include "common/rng.h"
#include "costmodel/core/policy_file.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

enum { TAKEN_FIRST = 100, TAKEN_SECOND = 101, TAKEN_THIRD = 102, NONE = 7 };

static lvr_tree tree_of(float first, float second, float third)
{
    lvr_tree t = {0};
    const lvr_candidate c[] = {{TAKEN_FIRST, first}, {TAKEN_SECOND, second}, {TAKEN_THIRD, third}};
    cr_assert_eq(lvr_tree_init(&t, 16, NULL), LVR_OK);
    lvr_tree_reset(&t, 1);
    cr_assert_eq(lvr_tree_expand(&t, 0, c, 3, NULL), LVR_OK);
    return t;
}

/* By hand: identity calibration, hazards .5, .5 (.25 of .5 left), .5; none taken of two watched. */
Test(core_adapt, one_step_by_hand)
{
    lvr_tree t = tree_of(0.5f, 0.25f, 0.125f);
    const lvr_adapt a = {.rate = 0.1, .bound = 1};
    lvr_calibration c = {0};
    lvr_adapt_observe(&a, &t, 0, 2, NONE, &c);
    cr_expect_float_eq(c.shift[0], -0.05, 1e-12);
    cr_expect_float_eq(c.shift[1], -0.05, 1e-12);
    c = (lvr_calibration){0};
    lvr_adapt_observe(&a, &t, 0, 3, TAKEN_SECOND, &c); /* the third was never in question */
    cr_expect_float_eq(c.shift[0], -0.05, 1e-12);
    cr_expect_float_eq(c.shift[1], 0.05, 1e-12);
    c = (lvr_calibration){0};
    lvr_adapt_observe(&a, &t, 0, 0, TAKEN_FIRST, &c);
    lvr_adapt_observe(&a, &t, 1, 3, TAKEN_FIRST, &c); /* not expanded */
    cr_expect_eq(c.shift[0], 0.0);
    cr_expect_eq(c.shift[1], 0.0);
    lvr_tree_free(&t);
}

/* The target takes the first in 80 % and else the second in 30 %, whatever the draft says. */
static void run_true_rates(const lvr_adapt *a, const lvr_tree *t, uint64_t seed, lvr_calibration *c)
{
    lvr_rng rng;
    lvr_rng_init(&rng, seed, "adapt");
    for (int i = 0; i < 4000; i++) {
        const bool first = lvr_rng_unit(&rng) < 0.8, second = lvr_rng_unit(&rng) < 0.3;
        lvr_adapt_observe(a, t, 0, 2, first ? TAKEN_FIRST : second ? TAKEN_SECOND : NONE, c);
        cr_assert(fabs(c->shift[0]) <= a->bound && fabs(c->shift[1]) <= a->bound);
    }
}

Test(core_adapt, goes_to_the_true_rates)
{
    lvr_tree t = tree_of(0.5f, 0.25f, 0.125f);
    const lvr_adapt a = {.rate = 0.02, .bound = 4};
    lvr_calibration c = {0}, again = {0};
    double p[2];
    run_true_rates(&a, &t, 1, &c);
    lvr_calibrate_siblings(&c, &t.nodes[1], 2, p);
    cr_expect_float_eq(p[0], 0.8, 0.06, "%g", p[0]);
    cr_expect_float_eq(p[1] / (1 - p[0]), 0.3, 0.08, "%g", p[1] / (1 - p[0]));
    run_true_rates(&a, &t, 1, &again);
    cr_expect_eq(memcmp(&c, &again, sizeof c), 0, "deterministic");
    lvr_tree_free(&t);
}

Test(core_adapt, stops_at_the_bound)
{
    lvr_tree t = tree_of(0.5f, 0.25f, 0.125f);
    const lvr_adapt a = {.rate = 0.5, .bound = 0.25};
    lvr_calibration c = {0};
    for (int i = 0; i < 100; i++)
        lvr_adapt_observe(&a, &t, 0, 3, NONE, &c);
    cr_expect_eq(c.shift[0], -0.25);
    cr_expect_eq(c.shift[1], -0.25);
    lvr_tree_free(&t);
}

/* Shifted siblings are still alternatives: within 0 and 1, and at most 1 together; no shift, no change. */
Test(core_adapt, shifts_keep_probabilities)
{
    lvr_tree t = tree_of(0.7f, 0.25f, 0.05f);
    const lvr_calibration groups = {
        .n_groups = 1,
        .group = {
            {.max_depth = LVR_MAX_DEPTH, .max_rank = LVR_MAX_BRANCH, .n = 2, .q = {0, 1}, .p = {0.05, 0.9}}}};
    const lvr_calibration plain = {0};
    for (int k = 0; k < 2; k++) {
        lvr_calibration c = k ? groups : plain;
        double before[3], p[3];
        lvr_calibrate_siblings(&c, &t.nodes[1], 3, before);
        for (double s = -8; s <= 8; s += 0.5) {
            c.shift[0] = s;
            c.shift[1] = -s;
            lvr_calibrate_siblings(&c, &t.nodes[1], 3, p);
            cr_assert(p[0] >= 0 && p[1] >= 0 && p[2] >= 0 && p[0] + p[1] + p[2] <= 1 + 1e-12);
            cr_assert(s <= 0 || p[0] > before[0]);
            cr_assert(s >= 0 || p[0] < before[0]);
            cr_assert(s != 0 || memcmp(p, before, sizeof p) == 0);
        }
    }
    lvr_tree_free(&t);
}

static void round_trip(const lvr_policy_file *pf, lvr_buf *text, lvr_policy_file *ret)
{
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_policy_file_format(pf, text, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_policy_file_parse("t", text->data, text->len, ret, &err), LVR_OK, "%s", err.msg);
}

static lvr_policy_file file_of(const char *policy)
{
    lvr_policy_file pf = {0};
    cr_assert_eq(lvr_policy_init(&pf.policy, policy, NULL), LVR_OK);
    pf.policy.has_cost = true;
    for (int op = 0; op < LVR_OP_COUNT; op++)
        pf.policy.cost.op[op].curve = (lvr_curve){.n = 1, .rows = {1}, .ns = {1000}};
    pf.policy.cost.flash = (lvr_flash_params){
        .t0_ns = 1000, .lane_bytes_per_s = 1000000, .max_bytes_per_s = 1000000, .depth = 1};
    pf.geometry = (lvr_geometry){.n_layers = 1, .layer_bytes = {8192}, .slice_bytes = 8192, .ring_slots = 1};
    pf.conditions = (lvr_run_conditions){.threads = 1,
                                         .depth = 1,
                                         .cpu_level = "c",
                                         .emulate_scale = 1,
                                         .n_ctx = 64,
                                         .prefill_chunk = 8,
                                         .max_rows = 64,
                                         .top_p = 1};
    return pf;
}

Test(core_adapt, in_policy_files_and_settings)
{
    static lvr_policy_file pf, back;
    lvr_buf text = LVR_BUF_INIT, with = LVR_BUF_INIT;
    lvr_error err = LVR_ERROR_INIT;
    pf = file_of("lever");
    cr_expect_eq(pf.policy.adapt.rate, 0.0, "off unless asked for");
    round_trip(&pf, &text, &back);
    cr_expect_null(strstr(text.data, "adapt"), "files without adaptation are as they were");
    cr_expect_eq(back.policy.adapt.rate, 0.0);
    const char *items[] = {"adapt_rate=0.125", "adapt_bound=0.5"};
    cr_assert_eq(lvr_policy_set_items(&pf.policy, items, 2, &err), LVR_OK, "%s", err.msg);
    round_trip(&pf, &with, &back);
    cr_expect_eq(back.policy.adapt.rate, 0.125);
    cr_expect_eq(back.policy.adapt.bound, 0.5);
    cr_expect_eq(lvr_policy_set(&pf.policy, "--set", "adapt_rate", "-1", &err), LVR_ERR_CONFIG);
    lvr_buf_free(&text);
    lvr_buf_free(&with);
}

Test(core_adapt, refused_where_it_would_do_nothing)
{
    lvr_policy p;
    lvr_error err = LVR_ERROR_INIT;
    for (size_t i = 0; i < lvr_n_policies; i++) {
        cr_assert_eq(lvr_policy_init(&p, lvr_policies[i]->name, &err), LVR_OK);
        const lvr_status st = lvr_policy_set(&p, "--set", "adapt_rate", "0.1", &err);
        cr_expect_eq(st, p.ops->calibrated ? LVR_OK : LVR_ERR_CONFIG, "%s", p.ops->name);
    }
    cr_expect(strstr(err.msg, "nothing to adapt"), "%s", err.msg);
}
