/* The exit predictor's fit on made-up trees whose truth is known. */
#include "costmodel/fit/fit_exit.h"
#include "common/buf.h"
#include "common/rng.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CHAIN = 6, TEXTS = 40, LAYER = 3, DEPTH = 8 };

typedef struct world {
    lvr_exit_nodes nodes;
    lvr_calibration none;
    lvr_exit_predictor fitted;
    lvr_fit_exit_report report;
} world;

static double unit(uint64_t tree, uint64_t node, uint64_t what)
{
    return lvr_hash_unit(4711 + what, tree, node);
}

/* Chains of CHAIN nodes, or (wide) roots with CHAIN children; each node is taken by the true weights from the
 * features that the predictor will see, the parent's fate first. */
static void make_tree(world *w, uint64_t tree, bool wide, const double *truth)
{
    lvr_exit_node *items = &w->nodes.items[w->nodes.n];
    lvr_node nodes[CHAIN + 1] = {{.parent = -1, .p_draft = 1.0f, .expanded = true}};
    lvr_exit_row rows[CHAIN + 1] = {{.parent = -1}};
    double x[CHAIN + 1][LVR_EXIT_FEATURES];
    const lvr_tree t = {.nodes = nodes, .n = CHAIN + 1, .cap = CHAIN + 1};
    bool taken[CHAIN + 1] = {true};
    for (uint32_t i = 1; i <= CHAIN; i++) {
        const float p =
            wide ? (float)(0.3 / i * (1.0 - 0.1 * unit(tree, i, 6))) : (float)(0.2 + 0.79 * unit(tree, i, 0));
        const float lse = (float)(5.0 + 2.0 * unit(tree, i, 1));
        nodes[i] = (lvr_node){.parent = wide ? 0 : (int32_t)i - 1,
                              .depth = wide ? 1 : (uint16_t)i,
                              .rank = wide ? (uint16_t)(i - 1) : 0,
                              .p_draft = p,
                              .expanded = true};
        rows[i] = (lvr_exit_row){.parent = nodes[i].parent,
                                 .node = i,
                                 .raw = {.score = lse + (float)(6.0 * unit(tree, i, 2) - 3.0),
                                         .slice_lse = lse,
                                         .slice_max = lse - (float)unit(tree, i, 3),
                                         .slice_entropy = (float)(3.0 * unit(tree, i, 4))}};
    }
    lvr_exit_features(&t, &w->none, rows, CHAIN + 1, x);
    bool found = false; /* of siblings at most one is taken */
    for (uint32_t i = 0; i <= CHAIN; i++) {
        if (i > 0)
            taken[i] =
                taken[nodes[i].parent] && !(wide && found) && unit(tree, i, 5) < lvr_exit_taken(truth, x[i]);
        found |= i > 0 && taken[i];
        items[i] = (lvr_exit_node){.parent = nodes[i].parent,
                                   .p_draft = nodes[i].p_draft,
                                   .depth = nodes[i].depth,
                                   .rank = nodes[i].rank,
                                   .on_path = taken[i],
                                   .expanded = true,
                                   .known = i > 0,
                                   .fold = (uint32_t)(tree % TEXTS),
                                   .raw = {rows[i].raw}};
    }
    w->nodes.n += CHAIN + 1;
}

static void make_world(world *w, uint64_t n_trees, bool wide, const double *truth)
{
    *w = (world){.nodes = {.n_layers = 1, .layers = {LAYER}, .depth = DEPTH}};
    w->nodes.items = calloc(n_trees * (CHAIN + 1), sizeof *w->nodes.items);
    for (uint64_t i = 0; i < n_trees; i++)
        make_tree(w, i, wide, truth);
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_fit_exit(&w->nodes, &w->none, &w->fitted, &w->report, &err), LVR_OK, "%s", err.msg);
}

static const double truth[LVR_EXIT_FEATURES] = {[LVR_EXIT_EARLY] = 1.2,
                                                [LVR_EXIT_MARGIN] = 0.4,
                                                [LVR_EXIT_ENTROPY] = -0.5,
                                                [LVR_EXIT_BIAS] = 1.0,
                                                [LVR_EXIT_DRAFT] = 0.8};

/* Law: weights that made the data are found again. Of chains the rank and the standing among siblings say
 * nothing and get no weight. 20000 trees: a few standard errors are below 0.15 for each. */
Test(fit_exit, recovers_known_weights)
{
    world w;
    make_world(&w, 20000, false, truth);
    cr_assert_eq(w.fitted.n, 1u);
    cr_assert_eq(w.fitted.at[0].layer, LAYER);
    for (int f = 0; f < LVR_EXIT_FEATURES; f++)
        cr_assert_float_eq(w.fitted.at[0].weight[f], truth[f], 0.15, "%s: %g, expected %g",
                           lvr_exit_feature_names[f], w.fitted.at[0].weight[f], truth[f]);
    cr_assert_eq(w.fitted.at[0].weight[LVR_EXIT_RANK], 0.0);
    free(w.nodes.items);
}

/* Laws: what is retained is what was asked for; the control retains as much; rows and work follow from each
 * other; a stricter promise keeps more. */
Test(fit_exit, promises_hold)
{
    for (int wide = 0; wide < 2; wide++) {
        world w;
        make_world(&w, 3000, wide, truth);
        const lvr_fit_exit_layer *l = &w.report.at[0];
        const double rows = (double)w.report.n_rows / (double)w.report.n_trees;
        cr_assert(w.report.crossed && w.report.n == 1 && w.report.n_trees == 3000);
        cr_assert_float_eq(rows, CHAIN + 1.0, 1e-12);
        for (int i = 0; i < LVR_FIT_RECALLS; i++) {
            const lvr_fit_exit_cut *c = &l->cut[i];
            const double done = (LAYER + 1.0) / DEPTH;
            cr_assert(c->retained >= c->recall - 1e-12 && c->retained <= 1.0, "%g of %g", c->retained,
                      c->recall);
            cr_assert_float_eq(c->control_retained, c->retained, 1e-12);
            cr_assert_float_eq(c->row_work, done * rows + (1.0 - done) * c->kept_rows, 1e-9);
            cr_assert(c->kept_rows >= 1.0 && c->kept_rows <= rows + 1e-9);
            cr_assert(i == 0 || c->kept_rows >= l->cut[i - 1].kept_rows - 1e-9);
        }
        cr_assert_eq(w.fitted.at[0].threshold, l->cut[1].threshold);
        free(w.nodes.items);
    }
}

/* The early head says all here, the draft nothing, or the other way round: the report tells which is better.
 */
Test(fit_exit, tells_who_is_better)
{
    const double early[LVR_EXIT_FEATURES] = {[LVR_EXIT_EARLY] = 4.0};
    const double draft[LVR_EXIT_FEATURES] = {[LVR_EXIT_DRAFT] = 2.0};
    world w;
    make_world(&w, 3000, false, early);
    cr_assert_gt(w.report.at[0].auc, w.report.at[0].control_auc + 0.1);
    cr_assert_lt(w.report.at[0].cut[0].row_work, w.report.at[0].cut[0].control_rows);
    free(w.nodes.items);
    make_world(&w, 3000, false, draft);
    cr_assert_float_eq(w.report.at[0].auc, w.report.at[0].control_auc, 0.02);
    cr_assert_gt(w.report.at[0].cut[0].row_work, w.report.at[0].cut[0].control_rows);
    free(w.nodes.items);
}

Test(fit_exit, nothing_accepted_is_no_predictor)
{
    const double never[LVR_EXIT_FEATURES] = {[LVR_EXIT_BIAS] = -1000.0};
    world w;
    make_world(&w, 50, false, never);
    cr_assert_eq(w.fitted.n, 0u);
    cr_assert_eq(w.report.n, 0u);
    free(w.nodes.items);
}

/* Raw values that are no numbers, and weights that separate the data, leave finite weights. */
Test(fit_exit, stays_finite)
{
    const double certain[LVR_EXIT_FEATURES] = {[LVR_EXIT_EARLY] = 1000.0};
    world w;
    make_world(&w, 300, true, certain);
    for (size_t i = 0; i < w.nodes.n; i += 5)
        w.nodes.items[i].raw[0].score = i % 2 ? NAN : INFINITY;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_fit_exit(&w.nodes, &w.none, &w.fitted, &w.report, &err), LVR_OK, "%s", err.msg);
    for (int f = 0; f < LVR_EXIT_FEATURES; f++)
        cr_assert(isfinite(w.fitted.at[0].weight[f]));
    free(w.nodes.items);
}
