/* What policies keep between rounds: the fallback threshold of edgellm, by hand. */
#include "tests/unit/policy_rig.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

/* The root, 0 and 1; below 0: 00, below that 000; below 1: 10. */
static lvr_tree make_tree(void)
{
    lvr_tree t = {0};
    const lvr_candidate top[] = {{10, 0.6f}, {11, 0.3f}}, below[] = {{12, 0.5f}}, side[] = {{13, 0.1f}};
    cr_assert_eq(lvr_tree_init(&t, 16, NULL), LVR_OK);
    lvr_tree_reset(&t, 1);
    cr_assert_eq(lvr_tree_expand(&t, 0, top, 2, NULL), LVR_OK);   /* nodes 1, 2 */
    cr_assert_eq(lvr_tree_expand(&t, 1, below, 1, NULL), LVR_OK); /* 3 */
    cr_assert_eq(lvr_tree_expand(&t, 3, below, 1, NULL), LVR_OK); /* 4 */
    cr_assert_eq(lvr_tree_expand(&t, 2, side, 1, NULL), LVR_OK);  /* 5 */
    return t;
}

static void observe(const lvr_policy *p, const lvr_tree *t, uint32_t last, lvr_policy_memory *m)
{
    static const uint32_t rows[] = {0, 1, 2, 3, 4, 5};
    const lvr_round_outcome o = {
        .tree = t, .rows = rows, .n_rows = 6, .n_accepted = t->nodes[last].depth, .last = last};
    p->ops->observe(p->params.bytes, &o, m);
}

/* Whether the policy goes on drafting when its most confident tip has this probability. */
static bool drafts_at(const lvr_policy *p, const lvr_policy_memory *m, float confidence)
{
    static struct policy_rig_log log;
    const struct policy_rig_line one[] = {{"", {confidence}}, {.path = NULL}};
    const lvr_geometry g = {
        .n_layers = 1, .layer_bytes = {8192}, .resident = {true}, .slice_bytes = 8192, .ring_slots = 1};
    const lvr_policy_view v = {.cost = &p->cost,
                               .geometry = &g,
                               .calibration = &p->calibration,
                               .max_depth = 8,
                               .max_rows = 64,
                               .memory = m};
    policy_rig_run(p, &v, policy_rig_table, one, &log);
    return log.n_steps > 1;
}

static void expect_alpha(const lvr_policy *p, const lvr_policy_memory *m, double alpha)
{
    cr_expect(drafts_at(p, m, (float)(alpha * 1.0001)), "alpha is above %g", alpha);
    cr_expect(!drafts_at(p, m, (float)(alpha * 0.9999)), "alpha is below %g", alpha);
}

Test(core_observe, edgellm_threshold_by_hand)
{
    lvr_policy p;
    lvr_policy_memory m = {0};
    lvr_tree t = make_tree();
    policy_rig_init(&p, "edgellm");
    policy_rig_set(&p, "min_path", "0");
    p.has_cost = true;
    expect_alpha(&p, NULL, 0.01);
    expect_alpha(&p, &m, 0.01);
    observe(&p, &t, 4, &m); /* all three of the branch 0 00 000; its siblings are no mistakes */
    expect_alpha(&p, &m, 0.005);
    observe(&p, &t, 5, &m); /* all of the branch 1 10 */
    expect_alpha(&p, &m, 0.0025);
    observe(&p, &t, 1, &m); /* one of three */
    expect_alpha(&p, &m, 0.0025 * pow(2, 2.0 / 3));
    observe(&p, &t, 0, &m); /* none of three */
    expect_alpha(&p, &m, 0.005 * pow(2, 2.0 / 3));
    for (int i = 0; i < 20; i++)
        observe(&p, &t, 0, &m);
    cr_expect(!drafts_at(&p, &m, 0.9999f), "up to 1");
    observe(&p, &t, 4, &m);
    expect_alpha(&p, &m, 0.5);
    policy_rig_set(&p, "alpha_rule", "fixed");
    expect_alpha(&p, &m, 0.01);
    lvr_tree_free(&t);
}

/* Nothing was verified, so that nothing was learnt. */
Test(core_observe, a_round_without_a_tree_changes_nothing)
{
    lvr_policy p;
    lvr_policy_memory m = {0}, before = {0};
    lvr_tree t = make_tree();
    const uint32_t root = 0;
    const lvr_round_outcome o = {.tree = &t, .rows = &root, .n_rows = 1};
    policy_rig_init(&p, "edgellm");
    p.ops->observe(p.params.bytes, &o, &m);
    cr_expect_eq(memcmp(&m, &before, sizeof m), 0);
    lvr_tree_free(&t);
}
