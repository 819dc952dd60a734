#include "costmodel/core/calibration.h"

#include <math.h>
#include <stdio.h>

#define KEY_BYTES 24

static double interpolate(const double *q, const double *p, uint32_t n, double x)
{
    if (!(x > q[0]))
        return p[0];
    for (uint32_t i = 1; i < n; i++) {
        if (x > q[i])
            continue;
        const double t = (x - q[i - 1]) / (q[i] - q[i - 1]);
        return p[i - 1] + t * (p[i] - p[i - 1]);
    }
    return p[n - 1];
}

double lvr_calibrate(const lvr_calibration *c, double q)
{
    return c->n == 0 ? q : interpolate(c->q, c->p, c->n, q);
}

double lvr_calibrate_hazard(const lvr_calibration *c, double q, uint32_t parent_depth, uint32_t rank)
{
    for (uint32_t i = 0; i < c->n_groups; i++) {
        const lvr_calibration_group *g = &c->group[i];
        if (parent_depth >= g->min_depth && parent_depth <= g->max_depth && rank >= g->min_rank &&
            rank <= g->max_rank)
            return interpolate(g->q, g->p, g->n, q);
    }
    return q;
}

/* Adds to the logit. */
static double shifted(double hazard, double shift)
{
    if (shift == 0.0 || !(hazard > 0.0 && hazard < 1.0))
        return hazard;
    const double odds = hazard / (1.0 - hazard) * exp(shift);
    return odds / (1.0 + odds);
}

void lvr_calibrate_siblings(const lvr_calibration *c, const lvr_node *siblings, uint32_t n, double *ret_p)
{
    /* What the better ones leave: of the draft's probability, of the target's as fitted, and as shifted. */
    double left_q = 1.0, left_fitted = 1.0, left = 1.0;
    const bool moved = c->shift[0] != 0.0 || c->shift[1] != 0.0;
    for (uint32_t i = 0; i < n; i++) {
        const double q = fmin(left_q, (double)siblings[i].p_draft);
        const double shift = c->shift[lvr_calibration_shift_of(siblings[i].rank)];
        if (c->n_groups > 0) {
            const double hazard = lvr_calibrate_hazard(c, left_q > 0.0 ? q / left_q : 0.0,
                                                       siblings[i].depth - 1u, siblings[i].rank);
            ret_p[i] = left * shifted(hazard, shift);
        } else {
            const double fitted = fmin(left_fitted, lvr_calibrate(c, q));
            const double hazard = left_fitted > 0.0 ? fitted / left_fitted : 0.0;
            ret_p[i] = moved ? left * shifted(hazard, shift) : fitted;
            left_fitted -= fitted;
        }
        left_q -= q;
        left -= ret_p[i];
    }
}

double lvr_calibrate_node(const lvr_calibration *c, const lvr_tree *tree, uint32_t v)
{
    double p[LVR_MAX_BRANCH];
    const uint32_t rank = tree->nodes[v].rank;
    lvr_calibrate_siblings(c, &tree->nodes[v - rank], rank + 1, p);
    return p[rank];
}

double lvr_expected_accepted(const lvr_calibration *c, const lvr_tree *tree, const uint32_t *nodes,
                             uint32_t n)
{
    double path[LVR_MAX_VERIFY_NODES] = {1.0}, sum = 0.0;
    for (uint32_t i = 1; i < n; i++) {
        uint32_t parent = 0;
        while (nodes[parent] != (uint32_t)tree->nodes[nodes[i]].parent)
            parent++;
        path[i] = path[parent] * lvr_calibrate_node(c, tree, nodes[i]);
        sum += path[i];
    }
    return sum;
}

/* Reads a list of numbers in [0, 1] that must ascend; strictly if asked. */
static lvr_status read_knots(const lvr_yaml_node *map, const char *key, bool strictly, double *ret,
                             uint32_t max, uint32_t *ret_n, lvr_error *err)
{
    const lvr_yaml_node *seq = NULL;
    lvr_status st = lvr_yaml_get_seq(map, key, &seq, err);
    if (st != LVR_OK)
        return st;
    const size_t n = lvr_yaml_len(seq);
    if (n > max)
        return lvr_fail(err, LVR_ERR_CONFIG, "%s: %s has %zu knots, at most %u fit", lvr_yaml_where(seq), key,
                        n, max);
    for (size_t i = 0; i < n; i++) {
        const lvr_yaml_node *item = lvr_yaml_at(seq, i);
        st = lvr_yaml_as_double(item, 0.0, 1.0, &ret[i], err);
        if (st != LVR_OK)
            return st;
        if (i > 0 && (strictly ? ret[i] <= ret[i - 1] : ret[i] < ret[i - 1]))
            return lvr_fail(err, LVR_ERR_CONFIG, "%s: %s must ascend, found %g after %g",
                            lvr_yaml_where(item), key, ret[i], ret[i - 1]);
    }
    *ret_n = (uint32_t)n;
    return LVR_OK;
}

static void group_key(uint32_t i, char key[KEY_BYTES])
{
    snprintf(key, KEY_BYTES, "group_%u", i);
}

static void depth_key(uint32_t depth, char key[KEY_BYTES])
{
    snprintf(key, KEY_BYTES, "depth_%u", depth);
}

/* One row: probabilities of alternatives, so that they add up to at most 1. */
static lvr_status read_ranks(const lvr_yaml_node *map, const char *key, double *ret, uint32_t *ret_n,
                             lvr_error *err)
{
    const lvr_yaml_node *seq = NULL;
    lvr_status st = lvr_yaml_get_seq(map, key, &seq, err);
    if (st != LVR_OK)
        return st;
    const size_t n = lvr_yaml_len(seq);
    if (n == 0 || n > LVR_MAX_BRANCH || (*ret_n > 0 && n != *ret_n))
        return lvr_fail(
            err, LVR_ERR_CONFIG,
            "%s: expected 1 to %u probabilities, one per rank, and as many at every depth; found %zu",
            lvr_yaml_where(seq), LVR_MAX_BRANCH, n);
    double sum = 0.0;
    for (size_t r = 0; r < n; r++) {
        st = lvr_yaml_as_double(lvr_yaml_at(seq, r), 0.0, 1.0, &ret[r], err);
        if (st != LVR_OK)
            return st;
        sum += ret[r];
    }
    if (sum > 1.0 + 1e-9)
        return lvr_fail(err, LVR_ERR_CONFIG, "%s: the ranks' probabilities add up to %g, expected at most 1",
                        lvr_yaml_where(seq), sum);
    *ret_n = (uint32_t)n;
    return LVR_OK;
}

static lvr_status by_rank_from_yaml(const lvr_yaml_node *map, lvr_calibration *c, lvr_error *err)
{
    const size_t n = lvr_yaml_len(map);
    if (n == 0 || n > LVR_CALIBRATION_MAX_DEPTHS)
        return lvr_fail(err, LVR_ERR_CONFIG, "%s: expected 1 to %d rows depth_0, depth_1, ..., found %zu",
                        lvr_yaml_where(map), LVR_CALIBRATION_MAX_DEPTHS, n);
    for (uint32_t d = 0; d < n; d++) {
        char key[KEY_BYTES];
        depth_key(d, key);
        const lvr_status st = read_ranks(map, key, c->by_rank[d], &c->n_ranks, err);
        if (st != LVR_OK)
            return st;
    }
    c->n_depths = (uint32_t)n;
    return LVR_OK;
}

/* The knots of one map: as many q as p. */
static lvr_status read_map(const lvr_yaml_node *map, double *q, double *p, uint32_t max, uint32_t *ret_n,
                           lvr_error *err)
{
    uint32_t n_p = 0;
    lvr_status st = read_knots(map, "q", true, q, max, ret_n, err);
    if (st == LVR_OK)
        st = read_knots(map, "p", false, p, max, &n_p, err);
    if (st == LVR_OK && n_p != *ret_n)
        st =
            lvr_fail(err, LVR_ERR_CONFIG, "%s: calibration has %u q and %u p knots, expected as many of each",
                     lvr_yaml_where(map), *ret_n, n_p);
    return st;
}

/* [from, to] */
static lvr_status read_bounds(const lvr_yaml_node *map, const char *key, uint32_t max, uint32_t *ret_min,
                              uint32_t *ret_max, lvr_error *err)
{
    const lvr_yaml_node *seq = NULL;
    uint64_t v[2] = {0};
    lvr_status st = lvr_yaml_get_seq(map, key, &seq, err);
    if (st != LVR_OK)
        return st;
    if (lvr_yaml_len(seq) != 2)
        return lvr_fail(err, LVR_ERR_CONFIG, "%s: expected two numbers, from and to, found %zu",
                        lvr_yaml_where(seq), lvr_yaml_len(seq));
    for (size_t i = 0; i < 2 && st == LVR_OK; i++)
        st = lvr_yaml_as_u64(lvr_yaml_at(seq, i), v[0], max, &v[i], err);
    if (st != LVR_OK)
        return st;
    *ret_min = (uint32_t)v[0];
    *ret_max = (uint32_t)v[1];
    return LVR_OK;
}

static lvr_status group_from_yaml(const lvr_yaml_node *map, lvr_calibration_group *g, lvr_error *err)
{
    lvr_status st = read_bounds(map, "depths", LVR_MAX_DEPTH, &g->min_depth, &g->max_depth, err);
    if (st == LVR_OK)
        st = read_bounds(map, "ranks", LVR_MAX_BRANCH, &g->min_rank, &g->max_rank, err);
    if (st == LVR_OK)
        st = read_map(map, g->q, g->p, LVR_CALIBRATION_GROUP_KNOTS, &g->n, err);
    if (st == LVR_OK && g->n == 0)
        st = lvr_fail(err, LVR_ERR_CONFIG, "%s: a group needs at least one knot", lvr_yaml_where(map));
    return st;
}

static lvr_status groups_from_yaml(const lvr_yaml_node *map, lvr_calibration *c, lvr_error *err)
{
    const size_t n = lvr_yaml_len(map);
    if (n > LVR_CALIBRATION_MAX_GROUPS)
        return lvr_fail(err, LVR_ERR_CONFIG, "%s: expected at most %d groups, found %zu", lvr_yaml_where(map),
                        LVR_CALIBRATION_MAX_GROUPS, n);
    for (uint32_t i = 0; i < n; i++) {
        const lvr_yaml_node *sub = NULL;
        char key[KEY_BYTES];
        group_key(i, key);
        lvr_status st = lvr_yaml_get_map(map, key, &sub, err);
        if (st == LVR_OK)
            st = group_from_yaml(sub, &c->group[i], err);
        if (st != LVR_OK)
            return st;
    }
    c->n_groups = (uint32_t)n;
    return LVR_OK;
}

lvr_status lvr_calibration_from_yaml(const lvr_yaml_node *map, lvr_calibration *ret, lvr_error *err)
{
    lvr_calibration c = {0};
    const lvr_yaml_node *sub = NULL;
    lvr_status st = read_map(map, c.q, c.p, LVR_CALIBRATION_MAX_KNOTS, &c.n, err);
    if (st == LVR_OK && lvr_yaml_find(map, "groups")) {
        st = lvr_yaml_get_map(map, "groups", &sub, err);
        if (st == LVR_OK)
            st = groups_from_yaml(sub, &c, err);
    }
    if (st != LVR_OK)
        return st;
    if (lvr_yaml_find(map, "by_rank")) { /* files from before static trees do not have it */
        st = lvr_yaml_get_map(map, "by_rank", &sub, err);
        if (st == LVR_OK)
            st = by_rank_from_yaml(sub, &c, err);
        if (st != LVR_OK)
            return st;
    }
    *ret = c;
    return LVR_OK;
}

static void groups_to_yaml(const lvr_calibration *c, lvr_yaml_out *y)
{
    lvr_yaml_out_map(y, "groups");
    for (uint32_t i = 0; i < c->n_groups; i++) {
        const lvr_calibration_group *g = &c->group[i];
        const uint64_t depths[] = {g->min_depth, g->max_depth}, ranks[] = {g->min_rank, g->max_rank};
        char key[KEY_BYTES];
        group_key(i, key);
        lvr_yaml_out_map(y, key);
        lvr_yaml_out_u64s(y, "depths", depths, 2);
        lvr_yaml_out_u64s(y, "ranks", ranks, 2);
        lvr_yaml_out_doubles(y, "q", g->q, g->n);
        lvr_yaml_out_doubles(y, "p", g->p, g->n);
        lvr_yaml_out_end(y);
    }
    lvr_yaml_out_end(y);
}

void lvr_calibration_to_yaml(const lvr_calibration *c, lvr_yaml_out *y)
{
    lvr_yaml_out_doubles(y, "q", c->q, c->n);
    lvr_yaml_out_doubles(y, "p", c->p, c->n);
    if (c->n_groups > 0)
        groups_to_yaml(c, y);
    if (c->n_depths == 0)
        return;
    lvr_yaml_out_map(y, "by_rank");
    for (uint32_t d = 0; d < c->n_depths; d++) {
        char key[KEY_BYTES];
        depth_key(d, key);
        lvr_yaml_out_doubles(y, key, c->by_rank[d], c->n_ranks);
    }
    lvr_yaml_out_end(y);
}
