#include "costmodel/core/adapt.h"

#include "common/minmax.h"

#include <math.h>
#include <stddef.h>

#define MAX_RATE 2.0
#define MAX_BOUND 8.0

const lvr_param lvr_adapt_params[LVR_ADAPT_PARAMS] = {
    {.name = "adapt_rate",
     .type = LVR_PARAM_DOUBLE,
     .offset = offsetof(lvr_adapt, rate),
     .min = 0,
     .max = MAX_RATE,
     .def = 0,
     .unit = "1",
     .help = "step by which the calibration follows the request's accepted tokens; 0: not at all"},
    {.name = "adapt_bound",
     .type = LVR_PARAM_DOUBLE,
     .offset = offsetof(lvr_adapt, bound),
     .min = 0,
     .max = MAX_BOUND,
     .def = 1,
     .unit = "logits",
     .help = "how far it may go"},
};

/* Siblings stand together, the best first. */
static uint32_t first_child(const lvr_tree *tree, uint32_t node)
{
    uint32_t first = node + 1;
    while (first < tree->n && tree->nodes[first].parent != (int32_t)node)
        first++;
    return first;
}

void lvr_adapt_observe(const lvr_adapt *a, const lvr_tree *tree, uint32_t node, uint32_t n_children,
                       int32_t token, lvr_calibration *c)
{
    double p[LVR_MAX_BRANCH], step[LVR_CALIBRATION_SHIFTS] = {0}, left = 1.0;
    const uint32_t first = first_child(tree, node);
    const uint32_t n = lvr_min_u32(lvr_min_u32(n_children, tree->n - first), LVR_MAX_BRANCH);
    bool taken = false;
    lvr_calibrate_siblings(c, &tree->nodes[first], n, p);
    for (uint32_t i = 0; i < n && !taken && left > 0.0; i++) {
        taken = tree->nodes[first + i].token == token;
        step[lvr_calibration_shift_of(tree->nodes[first + i].rank)] += (taken ? 1.0 : 0.0) - p[i] / left;
        left -= p[i];
    }
    for (uint32_t s = 0; s < LVR_CALIBRATION_SHIFTS; s++)
        c->shift[s] = fmax(-a->bound, fmin(a->bound, c->shift[s] + a->rate * step[s]));
}

lvr_status lvr_adapt_from_yaml(const lvr_yaml_node *map, lvr_adapt *ret, lvr_error *err)
{
    lvr_adapt a = {0};
    lvr_status st = lvr_yaml_get_double(map, "rate", 0.0, MAX_RATE, &a.rate, err);
    if (st == LVR_OK)
        st = lvr_yaml_get_double(map, "bound", 0.0, MAX_BOUND, &a.bound, err);
    if (st == LVR_OK)
        *ret = a;
    return st;
}

void lvr_adapt_to_yaml(const lvr_adapt *a, lvr_yaml_out *y)
{
    lvr_yaml_out_double(y, "rate", a->rate);
    lvr_yaml_out_double(y, "bound", a->bound);
}
