/* The exit predictor's features and scores by hand-computed cases, and what holds of any raw values. */
#include "common/rng.h"
#include "costmodel/core/exit.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#define NEAR(a, b) cr_assert_float_eq(a, b, 1e-12, "%.17g, expected %.17g", (double)(a), (double)(b))

/* The root with children A (rank 0), B (1); A with child C. */
typedef struct rig {
    lvr_tree tree;
    lvr_calibration calibration; /* none: the draft is taken at its word */
    lvr_exit_row rows[4];
} rig;

static rig new_rig(void)
{
    rig r = {.rows = {{.parent = -1},
                      {.parent = 0, .node = 1, .raw = {4.0f, 3.0f, 3.5f, 2.0f}},
                      {.parent = 0, .node = 2, .raw = {2.0f, 3.0f, 3.5f, 2.0f}},
                      {.parent = 1, .node = 3, .raw = {-1.0f, 5.0f, 4.5f, 0.25f}}}};
    const lvr_candidate two[] = {{7, 0.5f}, {8, 0.25f}}, one[] = {{9, 0.125f}};
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_tree_init(&r.tree, 64, &err), LVR_OK);
    lvr_tree_reset(&r.tree, 6);
    cr_assert_eq(lvr_tree_expand(&r.tree, 0, two, 2, &err), LVR_OK);
    cr_assert_eq(lvr_tree_expand(&r.tree, 1, one, 1, &err), LVR_OK);
    return r;
}

Test(core_exit, features_by_hand)
{
    rig r = new_rig();
    double x[4][LVR_EXIT_FEATURES];
    lvr_exit_features(&r.tree, &r.calibration, r.rows, 4, x);
    for (int f = 0; f < LVR_EXIT_FEATURES; f++)
        NEAR(x[0][f], 0.0);
    NEAR(x[1][LVR_EXIT_EARLY], 1.0);
    NEAR(x[2][LVR_EXIT_EARLY], -1.0);
    NEAR(x[1][LVR_EXIT_MARGIN], 2.0); /* over its sibling */
    NEAR(x[2][LVR_EXIT_MARGIN], -2.0);
    NEAR(x[3][LVR_EXIT_MARGIN], -5.5); /* no sibling: under the slice's best */
    NEAR(x[1][LVR_EXIT_LOCAL], log(1.0 / (1.0 + exp(-2.0))));
    NEAR(x[2][LVR_EXIT_LOCAL], log(exp(-2.0) / (1.0 + exp(-2.0))));
    NEAR(x[3][LVR_EXIT_LOCAL], log(1.0 - 1e-6));
    NEAR(x[3][LVR_EXIT_ENTROPY], 0.25);
    NEAR(x[2][LVR_EXIT_BIAS], 1.0);
    NEAR(x[1][LVR_EXIT_DRAFT], 0.0);
    NEAR(x[2][LVR_EXIT_DRAFT], log(1.0 / 3.0));
    NEAR(x[3][LVR_EXIT_DRAFT], log(1.0 / 7.0));
    NEAR(x[3][LVR_EXIT_DRAFT_PATH], log(0.0625));
    NEAR(x[2][LVR_EXIT_RANK], log(2.0));
    NEAR(x[3][LVR_EXIT_RANK], 0.0);
    NEAR(x[2][LVR_EXIT_DEPTH], 0.0);
    NEAR(x[3][LVR_EXIT_DEPTH], log(2.0));
    lvr_tree_free(&r.tree);
}

/* Siblings that are not verified do not count: B is alone without A. */
Test(core_exit, only_verified_siblings_count)
{
    rig r = new_rig();
    double x[2][LVR_EXIT_FEATURES];
    const lvr_exit_row rows[] = {r.rows[0], r.rows[2]};
    lvr_exit_features(&r.tree, &r.calibration, rows, 2, x);
    NEAR(x[1][LVR_EXIT_MARGIN], 2.0 - 3.5);
    NEAR(x[1][LVR_EXIT_RANK], log(2.0)); /* the draft's rank stays */
    lvr_tree_free(&r.tree);
}

Test(core_exit, equal_scores_share)
{
    rig r = new_rig();
    double x[3][LVR_EXIT_FEATURES];
    r.rows[2].raw.score = r.rows[1].raw.score;
    lvr_exit_features(&r.tree, &r.calibration, r.rows, 3, x);
    NEAR(x[1][LVR_EXIT_MARGIN], 0.0);
    NEAR(x[2][LVR_EXIT_MARGIN], 0.0);
    NEAR(x[1][LVR_EXIT_LOCAL], log(0.5));
    lvr_tree_free(&r.tree);
}

/* The draft's features are calibrated: by a map that halves, siblings and path are halved. */
Test(core_exit, draft_features_are_calibrated)
{
    rig r = new_rig();
    double x[4][LVR_EXIT_FEATURES];
    r.calibration = (lvr_calibration){.n = 2, .q = {0, 1}, .p = {0, 0.5}};
    lvr_exit_features(&r.tree, &r.calibration, r.rows, 4, x);
    NEAR(x[1][LVR_EXIT_DRAFT], log(1.0 / 3.0));
    NEAR(x[3][LVR_EXIT_DRAFT_PATH], log(0.25 * 0.0625));
    lvr_tree_free(&r.tree);
}

Test(core_exit, scores_are_products_along_the_path)
{
    rig r = new_rig();
    double s[4];
    lvr_exit_layer layer = {.weight = {[LVR_EXIT_EARLY] = 0.5, [LVR_EXIT_BIAS] = -0.25}};
    lvr_exit_scores(&layer, &r.tree, &r.calibration, r.rows, 4, s);
    NEAR(s[0], 1.0);
    NEAR(s[1], 1.0 / (1.0 + exp(-0.25)));
    NEAR(s[2], 1.0 / (1.0 + exp(0.75)));
    NEAR(s[3], s[1] / (1.0 + exp(3.25)));
    lvr_tree_free(&r.tree);
}

/* What is no finite number counts for nothing, neither in its own features nor in its siblings'. */
Test(core_exit, no_numbers_leave_features_0)
{
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) {
        rig r = new_rig();
        double x[4][LVR_EXIT_FEATURES];
        r.rows[1].raw.score = bad[i];
        r.rows[3].raw = (lvr_exit_raw){1.0f, bad[i], bad[i], bad[i]};
        lvr_exit_features(&r.tree, &r.calibration, r.rows, 4, x);
        for (int f = LVR_EXIT_EARLY; f <= LVR_EXIT_LOCAL; f++)
            NEAR(x[1][f], 0.0);
        NEAR(x[1][LVR_EXIT_ENTROPY], 2.0);
        NEAR(x[2][LVR_EXIT_MARGIN], 2.0 - 3.5); /* as if it had no sibling */
        NEAR(x[2][LVR_EXIT_LOCAL], log(1.0 - 1e-6));
        NEAR(x[3][LVR_EXIT_EARLY], 0.0);
        NEAR(x[3][LVR_EXIT_MARGIN], 0.0);
        NEAR(x[3][LVR_EXIT_ENTROPY], 0.0);
        lvr_tree_free(&r.tree);
    }
}

static float any_float(uint64_t key, uint64_t i)
{
    const float extremes[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 1e-45f, 0.0f, -0.0f};
    const uint64_t h = lvr_mix64(key * 1000 + i);
    return h % 3 == 0 ? extremes[(h >> 8) % 8] : (float)(lvr_hash_unit(key, i, 0) * 80.0 - 40.0);
}

/* Law: whatever the raw values and weights, 0 <= S(child) <= S(parent) <= 1. */
Test(core_exit, a_child_is_never_above_its_parent)
{
    for (uint64_t seed = 1; seed <= 300; seed++) {
        lvr_tree tree;
        lvr_error err = LVR_ERROR_INIT;
        lvr_exit_row rows[33] = {{.parent = -1}};
        double s[33];
        cr_assert_eq(lvr_tree_init(&tree, 64, &err), LVR_OK);
        lvr_tree_reset(&tree, 1);
        for (uint32_t n = 0; n < 8; n++) {
            lvr_candidate four[4];
            for (int k = 0; k < 4; k++)
                four[k] = (lvr_candidate){k, (float)(0.25 * lvr_hash_unit(seed, n, (uint64_t)k))};
            cr_assert_eq(lvr_tree_expand(&tree, n, four, 4, &err), LVR_OK);
        }
        for (uint32_t v = 1; v < 33; v++)
            rows[v] = (lvr_exit_row){.parent = tree.nodes[v].parent,
                                     .node = v,
                                     .raw = {any_float(seed, 4 * v), any_float(seed, 4 * v + 1),
                                             any_float(seed, 4 * v + 2), any_float(seed, 4 * v + 3)}};
        const lvr_calibration none = {0};
        lvr_exit_layer layer = {0};
        for (uint32_t f = 0; f < LVR_EXIT_FEATURES; f++)
            layer.weight[f] = (lvr_hash_unit(seed, f, 77) - 0.5) * 40.0;
        lvr_exit_scores(&layer, &tree, &none, rows, 33, s);
        for (uint32_t v = 1; v < 33; v++)
            cr_assert(s[v] >= 0.0 && s[v] <= s[rows[v].parent], "seed %lu row %u: %g under %g",
                      (unsigned long)seed, v, s[v], s[rows[v].parent]);
        lvr_tree_free(&tree);
    }
}

/* ---- YAML ---- */

static lvr_status parse(const char *text, lvr_exit_predictor *ret, lvr_error *err)
{
    lvr_yaml_doc *doc = NULL;
    cr_assert_eq(lvr_yaml_load_mem("exit.yaml", text, strlen(text), &doc, err), LVR_OK, "%s", err->msg);
    lvr_status st = lvr_exit_from_yaml(lvr_yaml_find(lvr_yaml_root(doc), "exit"), ret, err);
    if (!st)
        st = lvr_yaml_check_used(doc, err);
    lvr_yaml_free(doc);
    return st;
}

static void format(const lvr_exit_predictor *p, lvr_buf *out)
{
    lvr_yaml_out y;
    lvr_yaml_out_init(&y, out);
    lvr_yaml_out_map(&y, "exit");
    lvr_exit_to_yaml(p, &y);
    lvr_yaml_out_end(&y);
}

Test(core_exit, yaml_reads_what_it_wrote)
{
    lvr_exit_predictor p = {.n = 2, .at = {{.layer = 1, .threshold = 0.015625}, {.layer = 5}}}, back = {0};
    for (uint32_t f = 0; f < LVR_EXIT_FEATURES; f++) {
        p.at[0].weight[f] = 0.1 * f - 1e-7;
        p.at[1].weight[f] = -3.0 * f;
    }
    lvr_buf out = LVR_BUF_INIT;
    lvr_error err = LVR_ERROR_INIT;
    format(&p, &out);
    cr_assert_eq(parse(out.data, &back, &err), LVR_OK, "%s\n%s", err.msg, out.data);
    cr_assert_arr_eq(&back, &p, sizeof p);
    cr_assert_eq(lvr_exit_at(&back, 5), 1);
    cr_assert_eq(lvr_exit_at(&back, 2), -1);
    lvr_buf_free(&out);
}

static void refuse(lvr_exit_predictor p, const char *old, const char *new, const char *message)
{
    lvr_exit_predictor back = {.n = 99};
    lvr_buf out = LVR_BUF_INIT, changed = LVR_BUF_INIT;
    lvr_error err = LVR_ERROR_INIT;
    format(&p, &out);
    const char *at = strstr(out.data, old);
    cr_assert_not_null(at, "%s", out.data);
    lvr_buf_append(&changed, out.data, (size_t)(at - out.data));
    lvr_buf_puts(&changed, new);
    lvr_buf_puts(&changed, at + strlen(old));
    cr_assert_eq(parse(changed.data, &back, &err), LVR_ERR_CONFIG, "%s", changed.data);
    cr_assert_not_null(strstr(err.msg, message), "'%s' does not say '%s'", err.msg, message);
    cr_assert_eq(back.n, 99u);
    lvr_buf_free(&out);
    lvr_buf_free(&changed);
}

Test(core_exit, yaml_refuses)
{
    const lvr_exit_predictor two = {.n = 2, .at = {{.layer = 1}, {.layer = 2}}};
    refuse(two, "layer: 1", "layer: 2", "layers must ascend");
    refuse(two, "threshold: 0", "threshold: 1.5", "1");
    refuse(two, "      margin: 0\n", "", "margin");
    refuse(two, "margin", "magrin", "margin");
}
