#include "costmodel/core/policy/static_tree.h"

#include "common/minmax.h"
#include "costmodel/core/objective.h"

#include <math.h>
#include <string.h>

/* Best value of the root with exactly r + 1 children and m nodes, given that of r children (`fewer`) and of
 * the child's own tree. */
static double best_split(const double *fewer, const double *child, double p, uint32_t m, uint8_t *ret_split)
{
    double best = -INFINITY;
    for (uint32_t y = 1; y < m; y++) {
        const double v = fewer[y] + p * child[m - y];
        if (!(v > best)) /* 0 * -inf: a child that is never taken, and no tree for it */
            continue;
        best = v;
        *ret_split = (uint8_t)y;
    }
    return best;
}

/* Trees rooted at depth d with at least one level below: the children are rooted at `next`, a level less. */
static void solve_state(lvr_static_plan *plan, uint32_t d, uint32_t next, uint32_t l)
{
    const lvr_static_vectors *v = &plan->vectors;
    const double *child = plan->value[next][l - 1];
    double *value = plan->value[d][l];
    double fewer[LVR_STATIC_MAX_NODES + 1], more[LVR_STATIC_MAX_NODES + 1];
    for (uint32_t m = 0; m <= v->max_nodes; m++) {
        fewer[m] = value[m] = m == 1 ? 1.0 : -INFINITY;
        plan->n_children[d][l][m] = 0;
    }
    for (uint32_t r = 0; r < v->branch; r++) {
        more[0] = more[1] = -INFINITY;
        for (uint32_t m = 2; m <= v->max_nodes; m++) {
            more[m] = best_split(fewer, child, v->p[d][r], m, &plan->split[d][l][r][m]);
            if (more[m] <= value[m])
                continue;
            value[m] = more[m];
            plan->n_children[d][l][m] = (uint8_t)(r + 1);
        }
        memcpy(fewer, more, sizeof fewer);
    }
}

bool lvr_static_plan_tree(const lvr_static_plan *plan, uint32_t n, uint32_t depth, lvr_static_tree *ret)
{
    const lvr_static_vectors *v = &plan->vectors;
    uint32_t size[LVR_STATIC_MAX_NODES],
        left[LVR_STATIC_MAX_NODES]; /* of each node's tree; levels below it */
    if (n == 0 || n > v->max_nodes || depth > v->max_depth || plan->value[0][depth][n] < 0)
        return false;
    *ret = (lvr_static_tree){.n = 1, .gain = plan->value[0][depth][n], .node[0].parent = -1};
    size[0] = n;
    left[0] = depth;
    for (uint32_t i = 0; i < ret->n; i++) {
        const uint32_t at = ret->node[i].depth, d = lvr_min_u32(at, v->n_depths - 1);
        const uint32_t k = size[i] > 1 ? plan->n_children[d][left[i]][size[i]] : 0;
        uint32_t nodes = size[i];
        ret->node[i].n_children = (uint16_t)k;
        ret->depth = lvr_max_u32(ret->depth, at);
        ret->width[at] += k > 0;
        for (uint32_t r = k; r-- > 0;) { /* the last child's share is split off first */
            const uint32_t kept = plan->split[d][left[i]][r][nodes], c = ret->n + r;
            ret->node[c].parent = (int32_t)i;
            ret->node[c].rank = (uint16_t)r;
            ret->node[c].depth = (uint16_t)(at + 1);
            size[c] = nodes - kept;
            left[c] = left[i] - 1;
            nodes = kept;
        }
        ret->n += k;
    }
    return true;
}

static void fill_shapes(lvr_static_plan *plan)
{
    lvr_static_tree t;
    for (uint32_t depth = 0; depth <= plan->vectors.max_depth; depth++) {
        for (uint32_t n = 0; n <= plan->vectors.max_nodes; n++) {
            lvr_static_shape *shape = &plan->shape[depth][n];
            *shape = (lvr_static_shape){0};
            if (!lvr_static_plan_tree(plan, n, depth, &t))
                continue;
            shape->gain = t.gain;
            shape->depth = (uint8_t)t.depth;
            for (uint32_t d = 0; d < t.depth; d++)
                shape->width[d] = (uint8_t)t.width[d];
        }
    }
}

void lvr_static_plan_solve(lvr_static_plan *plan)
{
    const lvr_static_vectors *v = &plan->vectors;
    for (uint32_t d = 0; d < v->n_depths; d++)
        for (uint32_t m = 0; m <= v->max_nodes; m++)
            plan->value[d][0][m] = m == 1 ? 1.0 : -INFINITY;
    for (uint32_t l = 1; l <= v->max_depth; l++)
        for (uint32_t d = 0; d < v->n_depths; d++)
            solve_state(plan, d, lvr_min_u32(d + 1, v->n_depths - 1), l);
    fill_shapes(plan);
}

static double speed_of(const lvr_objective *o, const lvr_static_shape *shape, uint32_t n,
                       const double *step_ns)
{
    double draft_ns = 0.0;
    for (uint32_t d = 0; d < shape->depth; d++)
        draft_ns += step_ns[shape->width[d]];
    return lvr_objective_speed(shape->gain, lvr_objective_cost_ns(o, draft_ns, n, shape->gain));
}

/* For each depth allowed the best size and depth. */
static void pick_all(lvr_static_tree_memo *memo)
{
    const lvr_static_conditions *c = &memo->conditions;
    const lvr_static_vectors *v = &memo->plan.vectors;
    const lvr_objective o = lvr_objective_new(&c->cost, &c->geometry, c->context);
    const uint32_t max_nodes = lvr_min_u32(v->max_nodes, c->max_rows);
    double step_ns[LVR_STATIC_MAX_NODES + 1] = {0}, best = -1.0;
    for (uint32_t w = 1; w <= max_nodes; w++)
        step_ns[w] = lvr_objective_draft_ns(&o, &w, 1);
    lvr_static_pick pick = {0};
    for (uint32_t depth = 0; depth <= v->max_depth; depth++) {
        for (uint32_t n = depth + 1; n <= max_nodes; n++) {
            const lvr_static_shape *shape = &memo->plan.shape[depth][n];
            if (shape->gain <= 0.0 || shape->depth < depth)
                continue; /* the latter was met with a smaller depth */
            const double speed = speed_of(&o, shape, n, step_ns);
            if (speed <= best)
                continue;
            best = speed;
            pick = (lvr_static_pick){.nodes = n, .depth = depth};
        }
        memo->pick[depth] = pick;
    }
}

const lvr_static_tree *lvr_static_tree_choose(lvr_static_tree_memo *memo, const lvr_static_vectors *vectors,
                                              const lvr_static_conditions *conditions, uint32_t max_depth)
{
    const bool same_plan = memo->tree.n > 0 && memcmp(&memo->plan.vectors, vectors, sizeof *vectors) == 0;
    const bool same = same_plan && memcmp(&memo->conditions, conditions, sizeof *conditions) == 0;
    const uint32_t depth = lvr_min_u32(max_depth, vectors->max_depth);
    if (!same_plan) {
        memcpy(&memo->plan.vectors, vectors, sizeof *vectors);
        lvr_static_plan_solve(&memo->plan);
    }
    if (!same) {
        memcpy(&memo->conditions, conditions, sizeof *conditions);
        pick_all(memo);
    }
    if (!same || memo->tree_depth != depth) {
        const lvr_static_pick pick = memo->pick[depth];
        lvr_static_plan_tree(&memo->plan, pick.nodes, pick.depth, &memo->tree);
        memo->tree_depth = depth;
    }
    return &memo->tree;
}
