/* What every policy must hold to, over random drafts, limits, parameters, prices and calibrations: trees are
 * closed under parents, ascending and within their caps, drafting ends, and an answer depends on its inputs
 * alone. The rig checks each answer as the round machine would. */
#include "common/rng.h"
#include "tests/unit/policy_rig.h"

#include "costmodel/core/policy/static_tree.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct random_draft {
    uint64_t key;
    double sharpness; /* 1: probabilities fall evenly; more: the first ones take nearly all */
};

static uint32_t random_children(const void *user, const lvr_tree *tree, uint32_t node, uint32_t branch,
                                lvr_candidate *ret)
{
    const struct random_draft *d = user;
    lvr_rng rng;
    lvr_rng_init(&rng, d->key ^ lvr_mix64(tree->nodes[node].token * 64u + tree->nodes[node].depth), "draft");
    const uint32_t n = lvr_rng_below(&rng, 16) == 0 ? branch / 2 : branch; /* a small vocabulary */
    double left = 1.0, last = 1.0;
    for (uint32_t i = 0; i < n; i++) {
        double p = left * pow(lvr_rng_unit(&rng), 1.0 / d->sharpness);
        p = lvr_rng_below(&rng, 32) == 0 ? last : p; /* ties */
        p = fmin(fmin(p, last), left);
        ret[i] = (lvr_candidate){.token = (int32_t)lvr_rng_below(&rng, 1u << 20), .p_draft = (float)p};
        left = fmax(0.0, left - p);
        last = p;
    }
    return n;
}

static double falling(lvr_rng *rng, double *left)
{
    const double p = *left * lvr_rng_unit(rng);
    *left -= p;
    return p;
}

static void randomize(lvr_policy *p, lvr_geometry *g, lvr_rng *rng)
{
    for (size_t i = 0; i < p->ops->n_params; i++) {
        const lvr_param *param = &p->ops->params[i];
        const double u = lvr_rng_unit(rng);
        if (lvr_rng_below(rng, 3) > 0)
            lvr_param_set_number(param, p->params.bytes, param->min + u * u * (param->max - param->min));
    }
    p->has_cost = true;
    for (int op = 0; op < LVR_OP_COUNT; op++) {
        const double ns = 1e3 + 1e6 * lvr_rng_unit(rng);
        p->cost.op[op].curve = (lvr_curve){.n = 3,
                                           .rows = {1, 8, 9}, /* a step after eight rows */
                                           .ns = {ns, ns * (1 + lvr_rng_unit(rng)), 2 * ns}};
        p->cost.op[op].ctx_ns = lvr_rng_unit(rng);
    }
    const uint64_t rate = 1000000 + lvr_rng_below(rng, 1000000000);
    p->cost.flash = (lvr_flash_params){.lane_bytes_per_s = rate, .max_bytes_per_s = rate, .depth = 1};
    *g = (lvr_geometry){.n_layers = 4,
                        .layer_bytes = {1 << 20, 1 << 20, 1 << 20, 1 << 20},
                        .resident = {lvr_rng_below(rng, 2) == 0},
                        .slice_bytes = 1 << 18,
                        .ring_slots = 1 + (uint32_t)lvr_rng_below(rng, 3),
                        .io_mode = lvr_rng_below(rng, 2) ? LVR_IO_SERIAL : LVR_IO_PIPELINED};
    p->calibration = (lvr_calibration){0};
    if (lvr_rng_below(rng, 2) == 0)
        return;
    p->calibration.n_depths = 1 + (uint32_t)lvr_rng_below(rng, LVR_CALIBRATION_MAX_DEPTHS);
    p->calibration.n_ranks = 1 + (uint32_t)lvr_rng_below(rng, LVR_MAX_BRANCH);
    for (uint32_t d = 0; d < p->calibration.n_depths; d++) {
        double left = 1.0;
        for (uint32_t r = 0; r < p->calibration.n_ranks; r++)
            p->calibration.by_rank[d][r] = falling(rng, &left);
    }
}

static void check_policy(const lvr_policy_ops *ops, lvr_rng *rng)
{
    static struct policy_rig_log log, again;
    lvr_policy p;
    lvr_geometry g;
    policy_rig_init(&p, ops->name);
    randomize(&p, &g, rng);
    const struct random_draft draft = {.key = lvr_rng_below(rng, UINT64_MAX),
                                       .sharpness = 0.25 + 4 * lvr_rng_unit(rng)};
    const lvr_policy_view v = {.cost = &p.cost,
                               .geometry = &g,
                               .calibration = &p.calibration,
                               .context = (uint32_t)lvr_rng_below(rng, 1000),
                               .max_depth = (uint32_t)lvr_rng_below(rng, LVR_MAX_DEPTH + 1),
                               .max_rows = 1 + (uint32_t)lvr_rng_below(rng, LVR_MAX_VERIFY_NODES)};
    policy_rig_run(&p, &v, random_children, &draft, &log);
    policy_rig_run(&p, &v, random_children, &draft, &again);
    cr_assert_str_eq(log.drafted, again.drafted, "%s drafts differently the second time", ops->name);
    cr_assert_str_eq(log.verified, again.verified, "%s verifies differently the second time", ops->name);
}

Test(core_policy_laws, over_random_drafts, .timeout = 110)
{
    const uint64_t seed = 20;
    lvr_rng rng;
    lvr_rng_init(&rng, seed, "policy laws");
    for (size_t i = 0; i < lvr_n_policies; i++)
        for (int trial = 0; trial < 150; trial++)
            check_policy(lvr_policies[i], &rng);
}

/* The scratch remembers the static tree: a machine that has met other conditions answers as a fresh one. */
Test(core_policy_laws, memory_changes_no_answer)
{
    lvr_rng rng;
    lvr_rng_init(&rng, 21, "policy memory");
    lvr_policy p[2];
    lvr_geometry g[2];
    lvr_tree tree;
    uint32_t nodes[LVR_MAX_VERIFY_NODES], fresh[LVR_MAX_VERIFY_NODES];
    lvr_policy_scratch *used = lvr_policy_scratch_new();
    cr_assert_eq(lvr_tree_init(&tree, LVR_MAX_TREE_NODES, NULL), LVR_OK);
    for (int k = 0; k < 2; k++) {
        policy_rig_init(&p[k], "sequoia");
        randomize(&p[k], &g[k], &rng);
        policy_rig_set(&p[k], "min_path", "0");
        policy_rig_set(&p[k], "branch", "4");
    }
    for (int trial = 0; trial < 40; trial++) {
        const int k = (int)lvr_rng_below(&rng, 2);
        const struct random_draft draft = {.key = lvr_rng_below(&rng, 1000), .sharpness = 1};
        lvr_policy_scratch *none = lvr_policy_scratch_new();
        lvr_policy_view v = {.tree = &tree,
                             .cost = &p[k].cost,
                             .geometry = &g[k],
                             .calibration = &p[k].calibration,
                             .context = (uint32_t)lvr_rng_below(&rng, 200),
                             .max_depth = 1 + (uint32_t)lvr_rng_below(&rng, 3),
                             .max_rows = 8};
        lvr_tree_reset(&tree, 0);
        for (uint32_t i = 0; i < 5 && i < tree.n; i++) {
            lvr_candidate c[4];
            const uint32_t n = random_children(&draft, &tree, i, 4, c);
            cr_assert_eq(lvr_tree_expand(&tree, i, c, n, NULL), LVR_OK);
        }
        v.scratch = used;
        const uint32_t n = p[k].ops->select(p[k].params.bytes, &v, nodes, 8);
        v.scratch = none;
        cr_assert_eq(n, p[k].ops->select(p[k].params.bytes, &v, fresh, 8));
        cr_assert_eq(memcmp(nodes, fresh, n * sizeof nodes[0]), 0);
        lvr_policy_scratch_free(none);
    }
    lvr_policy_scratch_free(used);
    lvr_tree_free(&tree);
}

/* The dynamic program against another way to the same trees: when probabilities fall with rank, the best tree
 * of m nodes has the m positions of greatest path probability. */
static double greedy_value(const lvr_static_vectors *v, uint32_t m, uint32_t depth)
{
    struct {
        double p;
        uint32_t depth, rank;
        double parent;
    } open[4 * LVR_STATIC_MAX_NODES];
    uint32_t n_open = 0;
    double sum = 0.0;
    open[n_open++] = (__typeof__(open[0])){.p = 1.0, .rank = UINT32_MAX};
    for (uint32_t taken = 0; taken < m; taken++) {
        uint32_t best = 0;
        if (n_open == 0)
            return -INFINITY;
        for (uint32_t i = 1; i < n_open; i++)
            best = open[i].p > open[best].p ? i : best;
        const __typeof__(open[0]) at = open[best];
        open[best] = open[--n_open];
        sum += at.p;
        const uint32_t last = v->n_depths - 1;
        if (at.depth < depth)
            open[n_open++] = (__typeof__(open[0])){.p = at.p * v->p[at.depth < last ? at.depth : last][0],
                                                   .depth = at.depth + 1,
                                                   .parent = at.p};
        if (at.rank + 1 < v->branch && at.depth > 0) {
            const uint32_t d = at.depth - 1 < last ? at.depth - 1 : last;
            open[n_open++] = (__typeof__(open[0])){.p = at.parent * v->p[d][at.rank + 1],
                                                   .depth = at.depth,
                                                   .rank = at.rank + 1,
                                                   .parent = at.parent};
        }
    }
    return sum;
}

Test(core_policy_laws, static_trees_are_the_best)
{
    lvr_rng rng;
    lvr_rng_init(&rng, 22, "static trees");
    lvr_static_plan *plan = calloc(1, sizeof *plan);
    static lvr_static_tree t;
    for (int trial = 0; trial < 20; trial++) {
        lvr_static_vectors *v = &plan->vectors;
        v->max_nodes = 40;
        v->max_depth = 1 + (uint32_t)lvr_rng_below(&rng, 8);
        v->branch = 1 + (uint32_t)lvr_rng_below(&rng, 6);
        v->n_depths = 1 + (uint32_t)lvr_rng_below(&rng, 4);
        for (uint32_t d = 0; d < v->n_depths; d++) {
            double left = 1.0;
            for (uint32_t r = 0; r < v->branch; r++) {
                v->p[d][r] = r == 0 ? falling(&rng, &left) : fmin(falling(&rng, &left), v->p[d][r - 1]);
            }
        }
        lvr_static_plan_solve(plan);
        for (uint32_t m = 1; m <= v->max_nodes; m++) {
            for (uint32_t depth = 0; depth <= v->max_depth; depth++) {
                const double want = greedy_value(v, m, depth);
                const bool found = lvr_static_plan_tree(plan, m, depth, &t);
                cr_assert_eq(found, want > 0, "%u nodes, depth %u", m, depth);
                if (!found)
                    continue;
                cr_assert_eq(t.n, m);
                cr_assert_leq(t.depth, depth);
                cr_assert_float_eq(t.gain, want, 1e-9, "%u nodes, depth %u: %g, expected %g", m, depth,
                                   t.gain, want);
            }
        }
    }
    free(plan);
}
