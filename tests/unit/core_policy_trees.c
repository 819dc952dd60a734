/* Golden trees of each policy, computed by hand from a draft given as a table. */
#include "tests/unit/policy_rig.h"

#include <criterion/criterion.h>
#include <string.h>

/* Path probabilities: 0 .6, 1 .3; 00 .33, 01 .24, 10 .27, 11 .015; 000 and 001 .165, 010 and 011 .12. */
static const struct policy_rig_line draft[] = {
    {"", {0.6f, 0.3f}},   {"0", {0.55f, 0.4f}}, {"1", {0.9f, 0.05f}},
    {"00", {0.5f, 0.5f}}, {"01", {0.5f, 0.5f}}, {.path = NULL},
};

/* Two layers of 8 KiB. V(n) = 80 + 20 n, D(w) = 9 + w; heads and commits are free. */
static lvr_geometry geometry_of(lvr_io_mode mode, bool resident)
{
    return (lvr_geometry){.n_layers = 2,
                          .layer_bytes = {8192, 8192},
                          .resident = {resident, resident},
                          .slice_bytes = 8192,
                          .ring_slots = 2,
                          .io_mode = mode};
}

static void price(lvr_policy *p, double flash_bytes_per_s)
{
    p->has_cost = true;
    p->cost.op[LVR_OP_LAYER].curve = (lvr_curve){.n = 2, .rows = {1, 2}, .ns = {50, 60}};
    p->cost.op[LVR_OP_DRAFT].curve = (lvr_curve){.n = 2, .rows = {1, 2}, .ns = {10, 11}};
    p->cost.flash = (lvr_flash_params){.lane_bytes_per_s = (uint64_t)flash_bytes_per_s,
                                       .max_bytes_per_s = (uint64_t)flash_bytes_per_s,
                                       .depth = 1};
}

static void expect(const lvr_policy *p, const lvr_geometry *g, const char *drafted, const char *verified)
{
    static struct policy_rig_log log;
    const lvr_policy_view v = {.cost = p->has_cost ? &p->cost : NULL,
                               .geometry = g,
                               .calibration = &p->calibration,
                               .max_depth = 16,
                               .max_rows = 64};
    policy_rig_run(p, &v, policy_rig_table, draft, &log);
    cr_expect_str_eq(log.drafted, drafted, "%s drafts %s, expected %s", p->ops->name, log.drafted, drafted);
    cr_expect_str_eq(log.verified, verified, "%s verifies %s, expected %s", p->ops->name, log.verified,
                     verified);
}

static void with(lvr_policy *p, const char *name, const char *const *settings)
{
    policy_rig_init(p, name);
    for (; settings[0]; settings += 2)
        policy_rig_set(p, settings[0], settings[1]);
}
#define SETTINGS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void fill(lvr_tree *t, uint32_t node, float a, float b)
{
    const lvr_candidate c[] = {{(int32_t)(10 * node + 1), a}, {(int32_t)(10 * node + 2), b}};
    cr_assert_eq(lvr_tree_expand(t, node, c, 2, NULL), LVR_OK);
}

static uint32_t rows_at(const lvr_policy *p, const lvr_tree *t, const lvr_geometry *g)
{
    uint32_t nodes[64];
    lvr_policy_scratch *scratch = lvr_policy_scratch_new();
    const lvr_policy_view v = {.tree = t,
                               .cost = &p->cost,
                               .geometry = g,
                               .calibration = &p->calibration,
                               .max_depth = 16,
                               .max_rows = 64,
                               .scratch = scratch};
    const uint32_t n = p->ops->select(p->params.bytes, &v, nodes, 64);
    lvr_policy_scratch_free(scratch);
    return n;
}

/* Buckets of four and eight rows, 1 and 2 us in each of two layers. Paths by rank: 1, .6, .33, .3 | .27, .24,
 * .165, .165 (.12 beyond). Rows inside a bucket are free, so that it is filled; the next one costs 2 us and
 * is opened when its four rows together, .84 tokens, are worth more: below lambda = 420,000 tokens/s. Alone
 * none of them (.27) would pay from 135,000 on. */
Test(core_policy_trees, lever_fills_buckets)
{
    lvr_policy p;
    lvr_tree t = {0};
    lvr_geometry g = geometry_of(LVR_IO_SERIAL, true);
    g.place = LVR_PLACE_NPU;
    with(&p, "lever", SETTINGS("min_path", "0"));
    price(&p, 1e9);
    p.cost.npu[LVR_OP_LAYER] = (lvr_npu_cost){.n = 3, .bucket = {4, 8, 64}, .ns = {1000, 2000, 1e6}};
    cr_assert_eq(lvr_tree_init(&t, 32, NULL), LVR_OK);
    lvr_tree_reset(&t, 1);
    fill(&t, 0, 0.6f, 0.3f);  /* 1, 2 */
    fill(&t, 1, 0.55f, 0.4f); /* 3, 4 */
    fill(&t, 2, 0.9f, 0.05f); /* 5, 6 */
    fill(&t, 3, 0.5f, 0.5f);  /* 7, 8 */
    fill(&t, 4, 0.5f, 0.5f);  /* 9, 10 */
    policy_rig_set(&p, "lambda", "100000");
    cr_expect_eq(rows_at(&p, &t, &g), 8);
    policy_rig_set(&p, "lambda", "410000");
    cr_expect_eq(rows_at(&p, &t, &g), 8, "together they pay");
    policy_rig_set(&p, "lambda", "430000");
    cr_expect_eq(rows_at(&p, &t, &g), 4, "together they do not, and the open bucket is full");
    lvr_tree_free(&t);
}

Test(core_policy_trees, eagle2)
{
    lvr_policy p;
    const lvr_geometry g = geometry_of(LVR_IO_SERIAL, true);
    with(&p, "eagle2",
         SETTINGS("top_k", "2", "branch", "2", "max_depth", "2", "total_tokens", "5", "min_path", "0"));
    expect(&p, &g, ". | 0 1", ". 0 1 00 10");
    policy_rig_set(&p, "total_tokens", "3"); /* the best of all, not the first level */
    expect(&p, &g, ". | 0 1", ". 0 00");
    policy_rig_set(&p, "top_k", "1");
    policy_rig_set(&p, "total_tokens", "5");
    expect(&p, &g, ". | 0", ". 0 1 00 01");
    policy_rig_set(&p, "max_depth", "3");
    expect(&p, &g, ". | 0 | 00", ". 0 1 00 01");
    policy_rig_set(&p, "min_path", "0.3");
    expect(&p, &g, ". | 0 | 00", ". 0 1 00");
}

Test(core_policy_trees, opttree)
{
    lvr_policy p;
    const lvr_geometry g = geometry_of(LVR_IO_SERIAL, true);
    with(&p, "opttree", SETTINGS("nodes", "3", "threshold", "0.2", "branch", "2", "min_path", "0"));
    /* Expected lengths by level: .9, 1.23, 1.23. Of level 2 only 00 is among the best three. */
    expect(&p, &g, ". | 0 1 | 00", ". 0 1 00");
    policy_rig_set(&p, "threshold", "0.4");
    expect(&p, &g, ". | 0 1", ". 0 1 00");
    policy_rig_set(&p, "threshold", "0.95");
    expect(&p, &g, ".", ". 0 1");
    policy_rig_set(&p, "threshold", "0");
    policy_rig_set(&p, "nodes", "1");
    expect(&p, &g, ". | 0", ". 0");
}

Test(core_policy_trees, specexec)
{
    lvr_policy p;
    const lvr_geometry g = geometry_of(LVR_IO_SERIAL, true);
    with(&p, "specexec",
         SETTINGS("max_budget", "3", "max_width", "1", "branch", "2", "decay", "1", "min_path", "0"));
    expect(&p, &g, ". | 0 | 00 | 1", ". 0 1 00");
    policy_rig_set(&p, "max_width", "2");
    expect(&p, &g, ". | 0 1 | 00", ". 0 1 00");
    policy_rig_set(&p, "max_budget", "2");
    expect(&p, &g, ". | 0 1 | 00", ". 0 00");
    policy_rig_set(&p, "decay", "0.5"); /* 00: .6 * .55 / 4 is less than 1: .3 / 2 */
    expect(&p, &g, ". | 0 1", ". 0 1");
    policy_rig_set(&p, "max_steps", "1");
    expect(&p, &g, ".", ". 0 1");
}

Test(core_policy_trees, smart)
{
    lvr_policy p;
    lvr_geometry g = geometry_of(LVR_IO_SERIAL, true);
    with(&p, "smart", SETTINGS("alpha", "1", "branch", "2", "min_path", "0"));
    price(&p, 1e9);
    /* C 110: 0 costs 30 and gains .6 * 110 = 66; C 140, L 1.6: 1 costs 21, .3 * 140 = 42 > 33.6; C 161,
     * L 1.9: 00 costs 30, .33 * 161 = 53.1 < 57. */
    expect(&p, &g, ". | 0 1", ". 0 1");
    policy_rig_set(&p, "alpha", "0.5");
    expect(&p, &g, ". | 0", ". 0");
    policy_rig_set(&p, "alpha", "1");
    policy_rig_set(&p, "max_depth", "1"); /* nothing to run below: a row alone costs 20 */
    expect(&p, &g, ".", ". 0 1");
    /* The same rule when each pass also reads for 16 us: everything of worth is kept. */
    policy_rig_set(&p, "max_depth", "16");
    g = geometry_of(LVR_IO_SERIAL, false);
    expect(&p, &g, ". | 0 1 | 00 10 01 11 | 000 001 010 011", ". 0 1 00 01 10 11 000 001 010 011");
}

Test(core_policy_trees, edgellm)
{
    lvr_policy p;
    lvr_geometry g = geometry_of(LVR_IO_PIPELINED, false);
    with(&p, "edgellm",
         SETTINGS("alpha", "0.2", "provisional", "false", "branch", "2", "max_nodes", "5", "min_path", "0"));
    price(&p, 1e9);
    /* One step: due are .6 to branch 0, which has had it, and .3 to branch 1, which has had none. Two: 1.2 -
     * 1 to 0; .54 - 1 to 10; .03 to 11. */
    expect(&p, &g, ". | 1 | 0", ". 0 1 10 00");
    policy_rig_set(&p, "max_nodes", "8"); /* three: .72 to 01, .81 - 1 to 10, .99 - 2 to 00 */
    expect(&p, &g, ". | 1 | 0 | 01 | 011", ". 0 1 10 00 01 010 011");
    policy_rig_set(&p, "max_nodes", "5");
    policy_rig_set(&p, "alpha", "0.65");
    expect(&p, &g, ".", ". 0");
    /* Reads take 16 us and hide every step ... */
    policy_rig_set(&p, "provisional", "true");
    expect(&p, &g, ". | 1 | 0", ". 0 1 10 00");
    /* ... unless a step takes 9 us, or reading does not begin before drafting ends. */
    p.cost.op[LVR_OP_DRAFT].curve = (lvr_curve){.n = 1, .rows = {1}, .ns = {9000}};
    expect(&p, &g, ".", ". 0");
    price(&p, 1e9);
    g = geometry_of(LVR_IO_SERIAL, false);
    expect(&p, &g, ".", ". 0");
}

/* By rank .6, .3: values of nodes 0 .6, 00 .36, 1 .3, 000 .216, 01 and 10 .18. */
Test(core_policy_trees, sequoia)
{
    lvr_policy p;
    lvr_geometry g = geometry_of(LVR_IO_SERIAL, true);
    with(&p, "sequoia", SETTINGS("branch", "2", "max_nodes", "5", "max_depth", "3", "min_path", "0"));
    price(&p, 16.384e9);
    p.calibration = (lvr_calibration){.n_depths = 1, .n_ranks = 2, .by_rank = {{0.6, 0.3}}};
    /* Tokens per ns: 1/100; 1.6/130; 1.9/150 (root, 0, 1: the greatest); 1.96/160; 2.26/180; 2.44/200. */
    expect(&p, &g, ".", ". 0 1");
    /* With 1000 ns of reads: 2.476/1210 is more than 2.44/1200. */
    g = geometry_of(LVR_IO_SERIAL, false);
    expect(&p, &g, ". | 0 | 00", ". 0 1 00 000");
    policy_rig_set(&p, "max_depth", "2"); /* 01 and 10 are worth the same */
    expect(&p, &g, ". | 0 1", ". 0 1 00 10");
    policy_rig_set(&p, "min_path", "0.28"); /* 10 has .27 by the draft */
    expect(&p, &g, ". | 0 1", ". 0 1 00");
    /* Below depth 0 hardly anything is taken: one level. */
    policy_rig_set(&p, "min_path", "0");
    p.calibration.n_depths = 2;
    p.calibration.by_rank[1][0] = p.calibration.by_rank[1][1] = 0.001;
    expect(&p, &g, ".", ". 0 1");
}
