/*
 * The gain-cost objective against brute force: every token tree of up to seven nodes, every subset of it that
 * is a tree, random probabilities and prices, serial and pipelined, on the CPU and in an accelerator's row
 * buckets. And what it must reduce to: without reading, the compute-only objective; with slower and slower
 * flash, larger trees, until compute prices them.
 */
#include "costmodel/core/objective.h"
#include "common/rng.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#define MAX_NODES 7u

/* A tree of all candidates: parents before children. */
struct candidates {
    uint32_t n;
    int32_t parent[MAX_NODES];
    double path[MAX_NODES];
    lvr_ranked_node ranked[MAX_NODES];
};

struct setting {
    lvr_cost_table table;
    lvr_geometry geometry;
    double draft_ns, lambda;
    uint32_t context;
};

static int by_falling_path(const void *a, const void *b)
{
    const lvr_ranked_node *x = a, *y = b;
    if (x->path != y->path)
        return x->path > y->path ? -1 : 1;
    return x->node < y->node ? -1 : 1;
}

static void draw_probabilities(struct candidates *c, lvr_rng *rng)
{
    double left[MAX_NODES];
    for (uint32_t i = 0; i < c->n; i++) {
        const int32_t up = c->parent[i];
        const double q = i == 0 ? 1.0 : left[up] * sqrt(lvr_rng_unit(rng));
        left[i] = 1.0;
        if (i > 0)
            left[up] -= q;
        c->path[i] = i == 0 ? 1.0 : c->path[up] * q;
        c->ranked[i] = (lvr_ranked_node){.path = c->path[i], .node = i};
    }
    qsort(c->ranked, c->n, sizeof c->ranked[0], by_falling_path);
}

static void draw_curve(lvr_curve *c, double ns, lvr_rng *rng)
{
    *c = (lvr_curve){.n = 3, .rows = {1, 3, 4}};
    c->ns[0] = ns * lvr_rng_unit(rng);
    c->ns[1] = c->ns[0] * (1 + lvr_rng_unit(rng));
    c->ns[2] = c->ns[1] + ns * lvr_rng_unit(rng);
}

static void draw_setting(struct setting *s, lvr_rng *rng)
{
    const uint64_t rate = 1000000 + lvr_rng_below(rng, 200000000);
    *s = (struct setting){.draft_ns = 1e6 * lvr_rng_unit(rng),
                          .lambda = exp(8 * lvr_rng_unit(rng)),
                          .context = (uint32_t)lvr_rng_below(rng, 100)};
    s->table.flash = (lvr_flash_params){.lane_bytes_per_s = rate, .max_bytes_per_s = rate, .depth = 1};
    for (int op = 0; op < LVR_OP_COUNT; op++)
        draw_curve(&s->table.op[op].curve, op == LVR_OP_LAYER ? 1e6 : 2e5, rng);
    s->table.op[LVR_OP_LAYER].ctx_ns = 10 * lvr_rng_unit(rng);
    s->geometry = (lvr_geometry){.n_layers = 3,
                                 .layer_bytes = {40960, 40960, 40960},
                                 .resident = {lvr_rng_below(rng, 2) == 0, lvr_rng_below(rng, 4) == 0},
                                 .slice_bytes = 16384,
                                 .ring_slots = 1 + (uint32_t)lvr_rng_below(rng, 3),
                                 .io_mode = lvr_rng_below(rng, 2) ? LVR_IO_SERIAL : LVR_IO_PIPELINED};
    if (lvr_rng_below(rng, 3) > 0)
        return;
    s->geometry.place = LVR_PLACE_NPU;
    s->table.npu[LVR_OP_LAYER] = (lvr_npu_cost){.n = 3,
                                                .bucket = {1, 2, 4},
                                                .ns = {1e5, 3e5, 1e6},
                                                .launch_ns = 1e5 * lvr_rng_unit(rng),
                                                .sync_ns = 1e5 * lvr_rng_unit(rng)};
}

/* Gain and cost of the nodes in `bits`; false if they are no tree. */
static bool subset(const struct candidates *c, const struct setting *s, uint32_t bits, double *ret_gain,
                   double *ret_cost_ns)
{
    double gain = 0.0;
    uint32_t rows = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        if (!(bits >> i & 1))
            continue;
        if (i > 0 && !(bits >> c->parent[i] & 1))
            return false;
        gain += c->path[i];
        rows++;
    }
    *ret_gain = gain;
    *ret_cost_ns = lvr_cost_round_ns(&s->table, &s->geometry, s->draft_ns, rows, gain, s->context);
    return true;
}

/* Largest sum of scores - lambda * rest over the trees of the rows that are left. */
static double brute_force_keep(const struct candidates *c, const struct setting *s, const lvr_objective *o,
                               uint32_t layer)
{
    double best = -INFINITY;
    for (uint32_t bits = 1; bits < 1u << c->n; bits += 2) {
        double gain = 0, unused = 0;
        if (subset(c, s, bits, &gain, &unused))
            best = fmax(best, gain - s->lambda * 1e-9 *
                                         lvr_objective_rest_ns(o, layer, (uint32_t)__builtin_popcount(bits)));
    }
    return best;
}

struct best {
    double value, speed; /* greatest G - lambda * C, greatest G / C */
};

static struct best brute_force(const struct candidates *c, const struct setting *s)
{
    struct best b = {.value = -INFINITY, .speed = 0};
    for (uint32_t bits = 1; bits < 1u << c->n; bits += 2) {
        double gain = 0, cost_ns = 0;
        if (!subset(c, s, bits, &gain, &cost_ns))
            continue;
        b.value = fmax(b.value, gain - s->lambda * 1e-9 * cost_ns);
        b.speed = fmax(b.speed, gain / cost_ns * 1e9);
    }
    return b;
}

/* ---- two greedy searches, to be compared with ---- */

static lvr_objective_choice first_rows(const lvr_objective *o, double draft_ns, uint32_t rows, double gain)
{
    return (lvr_objective_choice){
        .rows = rows, .gain = gain, .cost_ns = lvr_objective_cost_ns(o, draft_ns, rows, gain)};
}

/* Candidates one after the other as long as each raises G / C: stops before a step of the cost (a row bucket
 * that overflows) that a group would pay for. */
static lvr_objective_choice by_node(const lvr_objective *o, const lvr_ranked_node *ranked, uint32_t n,
                                    double draft_ns)
{
    lvr_objective_choice at = first_rows(o, draft_ns, 1, ranked[0].path);
    while (at.rows < n) {
        const double path = ranked[at.rows].path;
        const lvr_objective_choice next = first_rows(o, draft_ns, at.rows + 1, at.gain + path);
        if (!lvr_objective_pays(at.gain, at.cost_ns, path, next.cost_ns - at.cost_ns))
            break;
        at = next;
    }
    return at;
}

/* The group after `at` of greatest gain per cost; the largest of equals. */
static lvr_objective_choice best_group(const lvr_objective *o, const lvr_ranked_node *ranked, uint32_t n,
                                       double draft_ns, const lvr_objective_choice *at)
{
    lvr_objective_choice best = *at;
    double gain = at->gain;
    for (uint32_t rows = at->rows + 1; rows <= n; rows++) {
        gain += ranked[rows - 1].path;
        const lvr_objective_choice c = first_rows(o, draft_ns, rows, gain);
        const double d_gain = best.gain - at->gain, d_cost = best.cost_ns - at->cost_ns;
        if (best.rows == at->rows || (c.gain - at->gain) * d_cost >= d_gain * (c.cost_ns - at->cost_ns))
            best = c;
    }
    return best;
}

/* Always the group of greatest gain per cost, as long as it raises G / C. Reaches the largest ratio. */
static lvr_objective_choice by_group(const lvr_objective *o, const lvr_ranked_node *ranked, uint32_t n,
                                     double draft_ns)
{
    lvr_objective_choice at = first_rows(o, draft_ns, 1, ranked[0].path);
    while (at.rows < n) {
        const lvr_objective_choice next = best_group(o, ranked, n, draft_ns, &at);
        if (!lvr_objective_pays(at.gain, at.cost_ns, next.gain - at.gain, next.cost_ns - at.cost_ns))
            break;
        at = next;
    }
    return at;
}

/* ---- every small tree ---- */

static double speed_of(lvr_objective_choice c)
{
    return lvr_objective_speed(c.gain, c.cost_ns);
}

/* Sums in another order: equal to a few ulp. */
static void check(const struct candidates *c, const struct setting *s)
{
    const lvr_objective o = lvr_objective_new(&s->table, &s->geometry, s->context);
    const struct best want = brute_force(c, s);
    const lvr_objective_choice rate = lvr_objective_best(&o, c->ranked, c->n, s->draft_ns, s->lambda);
    const lvr_objective_choice ratio = lvr_objective_best_ratio(&o, c->ranked, c->n, s->draft_ns);
    const lvr_objective_choice group = by_group(&o, c->ranked, c->n, s->draft_ns);
    const lvr_objective_choice node = by_node(&o, c->ranked, c->n, s->draft_ns);
    const double value = lvr_objective_value(rate.gain, rate.cost_ns, s->lambda);
    cr_assert_float_eq(value, want.value, 1e-9 * (1 + fabs(want.value)), "G - lambda C: %.12g, best is %.12g",
                       value, want.value);
    cr_assert_float_eq(speed_of(ratio), want.speed, 1e-9 * want.speed, "G / C: %.12g, best is %.12g",
                       speed_of(ratio), want.speed);
    cr_assert_float_eq(speed_of(group), want.speed, 1e-9 * want.speed, "groups: %.12g, best is %.12g",
                       speed_of(group), want.speed);
    cr_assert_leq(speed_of(node), want.speed * (1 + 1e-9));
    cr_assert_geq(speed_of(node), speed_of(by_node(&o, c->ranked, 1, s->draft_ns)) * (1 - 1e-9));
    cr_assert_leq(node.rows, group.rows, "a node that pays is part of a group that pays");
}

static void check_keep(const struct candidates *c, const struct setting *s)
{
    const lvr_objective o = lvr_objective_new(&s->table, &s->geometry, s->context);
    for (uint32_t layer = 0; layer + 1 < s->geometry.n_layers; layer++) {
        const uint32_t rows = lvr_objective_keep(&o, c->ranked, c->n, layer, s->lambda);
        const double want = brute_force_keep(c, s, &o, layer);
        double gain = 0;
        for (uint32_t i = 0; i < rows; i++)
            gain += c->ranked[i].path;
        const double got = gain - s->lambda * 1e-9 * lvr_objective_rest_ns(&o, layer, rows);
        cr_assert_float_eq(got, want, 1e-9 * (1 + fabs(want)), "%u rows go on: %.12g, best is %.12g", rows,
                           got, want);
    }
}

/* All parent lists of c->n nodes. */
static uint32_t each_tree(struct candidates *c, uint32_t at, lvr_rng *rng)
{
    if (at >= c->n || at >= MAX_NODES) {
        struct setting s;
        for (int k = 0; k < 8; k++) {
            draw_probabilities(c, rng);
            draw_setting(&s, rng);
            check(c, &s);
            check_keep(c, &s);
        }
        return 1;
    }
    uint32_t n = 0;
    for (int32_t parent = 0; parent < (int32_t)at; parent++) {
        c->parent[at] = parent;
        n += each_tree(c, at + 1, rng);
    }
    return n;
}

Test(objective, equals_brute_force_on_every_small_tree)
{
    const uint64_t seed = 31;
    lvr_rng rng;
    lvr_rng_init(&rng, seed, "objective");
    uint32_t factorial = 1;
    for (uint32_t n = 1; n <= MAX_NODES; n++) {
        struct candidates c = {.n = n, .parent = {-1}};
        cr_assert_eq(each_tree(&c, 1, &rng), factorial, "seed %d: trees of %u nodes", (int)seed, n);
        factorial *= n;
    }
}

/* By hand: D(1) = 10, D(2) = 12, D(3) = 20 and context 5 at 1 ns a row and position. */
Test(objective, drafting_costs_by_depth_and_width)
{
    struct setting s = {
        .geometry = {
            .n_layers = 1, .layer_bytes = {4096}, .resident = {true}, .slice_bytes = 4096, .ring_slots = 1}};
    s.table.op[LVR_OP_DRAFT] =
        (lvr_op_cost){.curve = {.n = 3, .rows = {1, 2, 3}, .ns = {10, 12, 20}}, .ctx_ns = 1};
    const lvr_objective o = lvr_objective_new(&s.table, &s.geometry, 5);
    const uint32_t widths[] = {1, 2, 0, 3};
    cr_assert_float_eq(lvr_objective_draft_ns(&o, widths, 4), 10 + 5 + 12 + 10 + 20 + 15, 1e-9);
    cr_assert_float_eq(lvr_objective_draft_ns(&o, widths, 1), 15, 1e-9);
    cr_assert_float_eq(lvr_objective_draft_ns(&o, widths, 0), 0, 0);
}

/* A bucket of four rows: the third node alone does not pay for the step, three together do. Groups fill it.
 */
Test(objective, groups_fill_a_bucket)
{
    struct setting s = {.geometry = {.n_layers = 1,
                                     .layer_bytes = {4096},
                                     .resident = {true},
                                     .slice_bytes = 4096,
                                     .ring_slots = 1,
                                     .place = LVR_PLACE_NPU}};
    s.table.npu[LVR_OP_LAYER] = (lvr_npu_cost){.n = 3, .bucket = {1, 4, 8}, .ns = {100, 150, 400}};
    const lvr_ranked_node ranked[] = {{1, 0}, {0.4, 1}, {0.3, 2}, {0.2, 3}, {0.1, 4}};
    const lvr_objective o = lvr_objective_new(&s.table, &s.geometry, 0);
    /* One node: .4 * 100 < 1 * 50. Three: .9 * 100 > 50. A fourth: .1 * 150 < 1.9 * 250. */
    cr_expect_eq(by_node(&o, ranked, 5, 0).rows, 1);
    cr_expect_eq(by_group(&o, ranked, 5, 0).rows, 4);
    cr_expect_eq(lvr_objective_best_ratio(&o, ranked, 5, 0).rows, 4);
    /* lambda above .9 / 50 per ns: not worth it; below .1 / 250: all. */
    cr_expect_eq(lvr_objective_best(&o, ranked, 5, 0, 0.0181e9).rows, 1);
    cr_expect_eq(lvr_objective_best(&o, ranked, 5, 0, 0.0179e9).rows, 4);
    cr_expect_eq(lvr_objective_best(&o, ranked, 5, 0, 0.00039e9).rows, 5);
}

/* Nodes of path probability r^k, a row 1 ms a layer in four layers of 1 MiB. */
enum { N_LONG = 128 };
static void long_list(lvr_ranked_node *ranked)
{
    double path = 1.0;
    for (uint32_t i = 0; i < N_LONG; i++, path *= 0.93)
        ranked[i] = (lvr_ranked_node){.path = path, .node = i};
}

static void phone(struct setting *s, lvr_io_mode mode, double bytes_per_s)
{
    const uint64_t rate = bytes_per_s > 0 ? (uint64_t)bytes_per_s : 1;
    *s = (struct setting){.geometry = {.n_layers = 4,
                                       .layer_bytes = {1 << 20, 1 << 20, 1 << 20, 1 << 20},
                                       .slice_bytes = 1 << 20,
                                       .ring_slots = 2,
                                       .io_mode = mode}};
    for (uint32_t l = 0; l < s->geometry.n_layers; l++)
        s->geometry.resident[l] = bytes_per_s <= 0;
    s->table.flash = (lvr_flash_params){.lane_bytes_per_s = rate, .max_bytes_per_s = rate, .depth = 1};
    s->table.op[LVR_OP_LAYER].curve = (lvr_curve){.n = 2, .rows = {1, 2}, .ns = {1e6, 1.2e6}};
}

/* Four layers of 1 MiB at 1 GB/s, 1 ms a layer and 0.2 ms more a row. */
Test(objective, rest_of_a_round)
{
    struct setting s;
    phone(&s, LVR_IO_SERIAL, 1e9);
    lvr_objective o = lvr_objective_new(&s.table, &s.geometry, 0);
    cr_expect_float_eq(lvr_objective_rest_ns(&o, 0, 1), 3e6, 1, "compute of three layers");
    cr_expect_float_eq(lvr_objective_rest_ns(&o, 2, 6), 2e6, 1);
    cr_expect_float_eq(lvr_objective_rest_ns(&o, 3, 6), 0, 0, "nothing follows the last layer");
    s.geometry.io_mode = LVR_IO_PIPELINED;
    o = lvr_objective_new(&s.table, &s.geometry, 0);
    cr_expect_float_eq(lvr_objective_rest_ns(&o, 0, 1), 3 * 1048576, 1, "reads of three layers");
    cr_expect_float_eq(lvr_objective_rest_ns(&o, 0, 2), 3.6e6, 1, "compute outlasts them");
    s.geometry.resident[1] = true;
    cr_expect_float_eq(lvr_objective_rest_ns(&o, 0, 1), 3e6, 1, "two layers are still to be read");
}

/* A row of score 0.5 is worth 0.6 ms of three layers up to 833 tokens/s; behind slow reads it is free. */
Test(objective, rows_go_on_as_long_as_they_pay)
{
    const lvr_ranked_node ranked[] = {{1, 0}, {0.5, 1}};
    struct setting s;
    phone(&s, LVR_IO_SERIAL, 1e9);
    lvr_objective o = lvr_objective_new(&s.table, &s.geometry, 0);
    cr_expect_eq(lvr_objective_keep(&o, ranked, 2, 0, 830), 2);
    cr_expect_eq(lvr_objective_keep(&o, ranked, 2, 0, 837), 1);
    cr_expect_eq(lvr_objective_keep(&o, ranked, 1, 0, 0), 1);
    phone(&s, LVR_IO_PIPELINED, 1e8);
    o = lvr_objective_new(&s.table, &s.geometry, 0);
    cr_expect_eq(lvr_objective_keep(&o, ranked, 2, 0, 1e6), 2);
}

/* Without reading, serial and pipelined are one objective: gain against V(n) alone. */
Test(objective, without_reading_only_compute_counts)
{
    lvr_ranked_node ranked[N_LONG];
    long_list(ranked);
    double gain = 0, best = 0;
    uint32_t best_rows = 0;
    for (uint32_t n = 1; n <= N_LONG; n++) {
        gain += ranked[n - 1].path;
        const double speed = gain / (4 * (0.8e6 + 0.2e6 * n));
        best_rows = speed > best ? n : best_rows;
        best = fmax(best, speed);
    }
    for (int mode = 0; mode < 2; mode++) {
        struct setting s;
        phone(&s, (lvr_io_mode)mode, 0);
        const lvr_objective o = lvr_objective_new(&s.table, &s.geometry, 0);
        cr_expect_eq(lvr_objective_best_ratio(&o, ranked, N_LONG, 0).rows, best_rows);
        cr_expect_eq(by_node(&o, ranked, N_LONG, 0).rows, best_rows, "the cost is convex");
    }
    cr_expect(best_rows > 1 && best_rows < 16, "%u rows", best_rows);
}

/* The chosen tree grows with T_io; at each, the node after the last one costs more compute than it gains. */
Test(objective, trees_grow_with_reading_until_compute_prices_them)
{
    lvr_ranked_node ranked[N_LONG];
    long_list(ranked);
    for (int mode = 0; mode < 2; mode++) {
        uint32_t last = 0, first = 0;
        for (double io_ns = 1e4; io_ns < 1e10; io_ns *= 1.5) {
            struct setting s;
            phone(&s, (lvr_io_mode)mode, 4.0 * (1 << 20) / io_ns * 1e9);
            const lvr_objective o = lvr_objective_new(&s.table, &s.geometry, 0);
            const lvr_objective_choice c = lvr_objective_best_ratio(&o, ranked, N_LONG, 0);
            cr_assert_geq(c.rows, last, "mode %d, %g ns of reading: %u rows after %u", mode, io_ns, c.rows,
                          last);
            const double next = c.rows < N_LONG ? ranked[c.rows].path : 0.0;
            const double d_cost = lvr_objective_cost_ns(&o, 0, c.rows + 1, c.gain + next) - c.cost_ns;
            cr_assert(c.rows == N_LONG || !lvr_objective_pays(c.gain, c.cost_ns, next, d_cost),
                      "mode %d, %g ns of reading: stopped before compute did", mode, io_ns);
            first = first ? first : c.rows;
            last = c.rows;
        }
        cr_expect_gt(last, 5 * first, "mode %d: from %u rows to %u", mode, first, last);
    }
}
