/* Policies: golden trees by hand, brute force over all small trees, and the policy file's round trip. */
#include "common/rng.h"
#include "costmodel/core/policy_file.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static lvr_geometry geometry_of(lvr_io_mode mode)
{
    lvr_geometry g = {
        .n_layers = 2, .layer_bytes = {8192, 8192}, .slice_bytes = 4096, .ring_slots = 2, .io_mode = mode};
    return g;
}

static void lever_with(lvr_policy *p, double lambda, double row_ns, double flash_rate)
{
    char text[32];
    cr_assert_eq(lvr_policy_init(p, "lever", NULL), LVR_OK);
    snprintf(text, sizeof text, "%.17g", lambda);
    cr_assert_eq(lvr_policy_set(p, "test", "lambda", text, NULL), LVR_OK);
    cr_assert_eq(lvr_policy_set(p, "test", "min_path", "0", NULL), LVR_OK);
    p->has_cost = true;
    p->cost.op[LVR_OP_LAYER].curve = (lvr_curve){.n = 2, .rows = {1, 2}, .ns = {row_ns, 2 * row_ns}};
    p->cost.op[LVR_OP_DRAFT].curve = (lvr_curve){.n = 2, .rows = {1, 2}, .ns = {1e6, 1.1e6}};
    p->cost.flash = (lvr_flash_params){.t0_ns = 0,
                                       .lane_bytes_per_s = (uint64_t)flash_rate,
                                       .max_bytes_per_s = (uint64_t)flash_rate,
                                       .depth = 1};
}

static lvr_policy_view view_of(const lvr_policy *p, const lvr_geometry *g, const lvr_tree *tree,
                               lvr_policy_scratch *s)
{
    return (lvr_policy_view){.tree = tree,
                             .cost = &p->cost,
                             .geometry = g,
                             .calibration = &p->calibration,
                             .max_depth = 16,
                             .max_rows = 64,
                             .scratch = s};
}

Test(core_policy, chain_grows_and_stops)
{
    lvr_policy p;
    lvr_tree tree;
    uint32_t nodes[LVR_MAX_VERIFY_NODES];
    const lvr_geometry g = geometry_of(LVR_IO_SERIAL);
    lvr_policy_scratch *s = lvr_policy_scratch_new();
    cr_assert_eq(lvr_policy_init(&p, "chain", NULL), LVR_OK);
    cr_assert_eq(lvr_policy_set(&p, "test", "k", "3", NULL), LVR_OK);
    cr_assert_eq(lvr_policy_set(&p, "test", "p_min", "0.3", NULL), LVR_OK);
    cr_assert_eq(lvr_tree_init(&tree, 64, NULL), LVR_OK);
    lvr_tree_reset(&tree, 7);
    lvr_policy_view v = view_of(&p, &g, &tree, s);
    const float probs[] = {0.9f, 0.8f, 0.7f, 0.6f};
    for (uint32_t step = 0; step < 3; step++) {
        cr_assert_eq(p.ops->expand(p.params.bytes, &v, nodes, 16), 1);
        cr_assert_eq(nodes[0], step);
        const lvr_candidate c = {.token = (int32_t)step, .p_draft = probs[step]};
        cr_assert_eq(lvr_tree_expand(&tree, nodes[0], &c, 1, NULL), LVR_OK);
    }
    cr_assert_eq(p.ops->expand(p.params.bytes, &v, nodes, 16), 0, "k reached");
    cr_assert_eq(p.ops->select(p.params.bytes, &v, nodes, 64), 4);
    tree.nodes[2].p_draft = 0.2f;
    cr_assert_eq(p.ops->select(p.params.bytes, &v, nodes, 64), 2, "cut before the first unsure token");
    v.max_depth = 1;
    lvr_tree_reset(&tree, 7);
    cr_assert_eq(p.ops->expand(p.params.bytes, &v, nodes, 16), 1);
    lvr_tree_free(&tree);
    lvr_policy_scratch_free(s);
}

/* J of a subset (bit i: node i), or -inf if it is no tree. */
static double subset_value(const lvr_policy_view *v, double lambda, uint32_t bits)
{
    double path[8], gain = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < v->tree->n; i++) {
        const lvr_node *node = &v->tree->nodes[i];
        path[i] = i == 0 ? 1.0 : path[node->parent] * node->p_draft;
        if (!(bits >> i & 1))
            continue;
        if (i > 0 && !(bits >> node->parent & 1))
            return -INFINITY;
        gain += path[i];
        n++;
    }
    return gain - lambda * 1e-9 * lvr_cost_round_ns(v->cost, v->geometry, v->draft_ns, n, gain, v->context);
}

Test(core_policy, lever_chooses_the_best_of_all_trees)
{
    lvr_rng rng;
    lvr_rng_init(&rng, 11, "brute force");
    lvr_policy_scratch *s = lvr_policy_scratch_new();
    for (int trial = 0; trial < 400; trial++) {
        lvr_policy p;
        lvr_tree tree;
        uint32_t nodes[LVR_MAX_VERIFY_NODES];
        const double lambda = 1 + 200 * lvr_rng_unit(&rng);
        lever_with(&p, lambda, 1e5 + 4e6 * lvr_rng_unit(&rng), 1e5 + 1e7 * lvr_rng_unit(&rng));
        const lvr_geometry g = geometry_of(trial & 1 ? LVR_IO_SERIAL : LVR_IO_PIPELINED);
        cr_assert_eq(lvr_tree_init(&tree, 8, NULL), LVR_OK);
        lvr_tree_reset(&tree, 0);
        for (uint32_t parent = 0; parent < tree.n && tree.n + 3 <= 8; parent++) {
            lvr_candidate c[3];
            const uint32_t k = 1 + (uint32_t)lvr_rng_below(&rng, 3);
            double left = 1;
            for (uint32_t i = 0; i < k; i++) {
                c[i] = (lvr_candidate){.token = (int32_t)i, .p_draft = (float)(left * lvr_rng_unit(&rng))};
                left -= c[i].p_draft;
            }
            cr_assert_eq(lvr_tree_expand(&tree, parent, c, k, NULL), LVR_OK);
        }
        lvr_policy_view v = view_of(&p, &g, &tree, s);
        v.draft_ns = 3e6 * lvr_rng_unit(&rng);
        double best = -INFINITY;
        for (uint32_t bits = 1; bits < 1u << tree.n; bits += 2)
            best = fmax(best, subset_value(&v, lambda, bits));
        uint32_t got_bits = 0;
        const uint32_t n = p.ops->select(p.params.bytes, &v, nodes, 64);
        for (uint32_t i = 0; i < n; i++)
            got_bits |= 1u << nodes[i];
        /* Sums in another order: equal to a few ulp of the value. */
        cr_assert(subset_value(&v, lambda, got_bits) >= best - 1e-9, "trial %d: %g < %g", trial,
                  subset_value(&v, lambda, got_bits), best);
        lvr_tree_free(&tree);
    }
    lvr_policy_scratch_free(s);
}

Test(core_policy, lever_tree_grows_with_io_until_compute_prices_it)
{
    lvr_policy_scratch *s = lvr_policy_scratch_new();
    lvr_tree tree;
    uint32_t nodes[LVR_MAX_VERIFY_NODES], last = 0;
    cr_assert_eq(lvr_tree_init(&tree, 64, NULL), LVR_OK);
    lvr_tree_reset(&tree, 0);
    for (uint32_t parent = 0; parent < 20; parent++) {
        const lvr_candidate c[] = {{1, 0.6f}, {2, 0.2f}, {3, 0.1f}};
        cr_assert_eq(lvr_tree_expand(&tree, parent, c, 3, NULL), LVR_OK);
    }
    /* Slower and slower flash; lambda is the speed that flash allows, as at the fixed point. */
    for (double rate = 1e9; rate > 5e3; rate /= 10) {
        lvr_policy p;
        const lvr_geometry g = geometry_of(LVR_IO_SERIAL);
        const double io_s = 16384 / rate;
        lever_with(&p, 2 / (io_s + 0.002), 1e6, rate);
        const lvr_policy_view v = view_of(&p, &g, &tree, s);
        const uint32_t n = p.ops->select(p.params.bytes, &v, nodes, 64);
        cr_assert_geq(n, last, "rate %g: %u nodes after %u", rate, n, last);
        last = n;
    }
    cr_assert_gt(last, 8);
    lvr_tree_free(&tree);
    lvr_policy_scratch_free(s);
}

Test(core_policy, unknown_names_are_told_what_is_near)
{
    lvr_policy p;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_policy_init(&p, "levr", &err), LVR_ERR_USAGE);
    cr_assert(strstr(err.msg, "did you mean \"lever\""), "%s", err.msg);
    cr_assert_eq(lvr_policy_init(&p, "chain", &err), LVR_OK);
    cr_assert_eq(lvr_policy_set(&p, "--set", "k", "0", &err), LVR_ERR_CONFIG);
    cr_assert_eq(lvr_policy_set(&p, "--set", "kk", "3", &err), LVR_ERR_CONFIG);
}

Test(core_policy, items_of_set)
{
    static const char *const good[] = {"min_path=0.01", "lambda=3"}, *const twice[] = {"lambda=3",
                                                                                       "lambda=4"};
    static const char *const shapeless[] = {"lambda", "=3", "", "lambda:3"};
    lvr_policy p;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_policy_init(&p, "lever", &err), LVR_OK);
    cr_assert_eq(lvr_policy_set_items(&p, good, 2, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_policy_set_items(&p, twice, 2, &err), LVR_ERR_USAGE);
    cr_assert(strstr(err.msg, "lambda is given twice"), "%s", err.msg);
    for (size_t i = 0; i < sizeof shapeless / sizeof *shapeless; i++)
        cr_assert_eq(lvr_policy_set_items(&p, &shapeless[i], 1, &err), LVR_ERR_USAGE, "%s", shapeless[i]);
}

/* Files of versions whose cache had one type do not name it. */
Test(core_policy, policy_file_without_a_kv_type)
{
    lvr_policy_file a = {.conditions = {.threads = 1,
                                        .depth = 1,
                                        .kv_type = "q8_0",
                                        .emulate_scale = 1,
                                        .n_ctx = 9,
                                        .prefill_chunk = 1,
                                        .max_rows = 1}},
                    b;
    lvr_buf text = LVR_BUF_INIT;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_policy_init(&a.policy, "ar", NULL), LVR_OK);
    a.geometry = geometry_of(LVR_IO_SERIAL);
    cr_assert_eq(lvr_policy_file_format(&a, &text, NULL), LVR_OK);
    char *line = strstr(text.data, "  kv_type:");
    cr_assert_not_null(line);
    const char *next = strchr(line, '\n') + 1;
    memmove(line, next, strlen(next) + 1);
    cr_assert_eq(lvr_policy_file_parse("t", text.data, strlen(text.data), &b, &err), LVR_OK, "%s", err.msg);
    cr_assert_str_eq(b.conditions.kv_type, "f16");
    lvr_buf_free(&text);
}

Test(core_policy, policy_file_round_trip)
{
    lvr_policy_file a = {0}, b;
    lvr_buf text = LVR_BUF_INIT, again = LVR_BUF_INIT;
    lever_with(&a.policy, 12.345678901234567, 1e5, 1e6);
    for (int op = 0; op < LVR_OP_COUNT; op++)
        a.policy.cost.op[op].curve = (lvr_curve){.n = 2, .rows = {1, 9}, .ns = {1.0 / 3, 7e7 / 9}};
    a.policy.calibration = (lvr_calibration){
        .n = 2,
        .q = {0.1, 0.9},
        .p = {0.05, 0.93},
        .n_groups = 2,
        .group = {{.max_depth = 1, .min_rank = 2, .max_rank = 3, .n = 1, .q = {0.5}, .p = {1.0 / 3}},
                  {.max_depth = 64, .max_rank = 16, .n = 2, .q = {0, 1}, .p = {0, 0.9}}},
        .n_depths = 2,
        .n_ranks = 3,
        .by_rank = {{0.6, 0.1, 0.05}, {2.0 / 3, 0.1, 0}}};
    a.policy.exit = (lvr_exit_predictor){
        .n = 2,
        .at = {{.layer = 3, .weight = {1.0 / 3, -2}, .threshold = 0.01}, {.layer = 7, .weight = {0.5}}}};
    a.geometry = geometry_of(LVR_IO_PIPELINED);
    a.conditions = (lvr_run_conditions){.threads = 2,
                                        .depth = 4,
                                        .cpu_level = "avx2",
                                        .kv_type = "q8_0",
                                        .emulated = "slow",
                                        .emulate_scale = 0.5,
                                        .emulated_flash = a.policy.cost.flash,
                                        .n_ctx = 512,
                                        .prefill_chunk = 64,
                                        .max_rows = 64,
                                        .top_p = 1,
                                        .n_predict = 48,
                                        .seed = UINT64_MAX};
    strcpy(a.objective, "replay");
    cr_assert_eq(lvr_policy_file_format(&a, &text, NULL), LVR_OK);
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_policy_file_parse("t", text.data, text.len, &b, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_policy_file_format(&b, &again, NULL), LVR_OK);
    cr_assert_str_eq(text.data, again.data);
    cr_assert_eq(memcmp(&a.policy.cost, &b.policy.cost, sizeof a.policy.cost), 0, "doubles survive exactly");
    cr_assert_eq(b.policy.calibration.group[0].p[0], 1.0 / 3);
    cr_assert_eq(b.policy.calibration.by_rank[1][0], 2.0 / 3);
    cr_assert_eq(memcmp(&a.policy.exit, &b.policy.exit, sizeof a.policy.exit), 0);
    cr_assert_str_eq(b.conditions.kv_type, "q8_0");
    /* A mistyped key is an error with a position, and so is any cut. */
    char *typo = strstr(text.data, "ring_slots");
    cr_assert_not_null(typo);
    typo[0] = 'x';
    cr_assert_eq(lvr_policy_file_parse("t", text.data, text.len, &b, &err), LVR_ERR_CONFIG);
    for (size_t n = 0; n + 1 < again.len; n += 7) /* without the last newline it is whole */
        cr_assert_neq(lvr_policy_file_parse("t", again.data, n, &b, &err), LVR_OK, "cut at %zu", n);
    lvr_buf_free(&text);
    lvr_buf_free(&again);
}
