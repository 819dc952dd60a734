#include "costmodel/core/objective.h"

#include <math.h>

int lvr_by_falling_path(const void *a, const void *b)
{
    const lvr_ranked_node *x = a, *y = b;
    if (x->path != y->path)
        return x->path > y->path ? -1 : 1;
    return (x->node > y->node) - (x->node < y->node);
}

static const double NS_PER_S = 1e9;

lvr_objective lvr_objective_new(const lvr_cost_table *t, const lvr_geometry *g, uint32_t context)
{
    return (lvr_objective){.price = lvr_round_pricer_new(t, g), .context = context};
}

double lvr_objective_cost_ns(const lvr_objective *o, double draft_ns, uint32_t rows, double gain)
{
    return lvr_round_price_ns(&o->price, draft_ns, rows, gain, o->context);
}

double lvr_objective_draft_ns(const lvr_objective *o, const uint32_t *width, uint32_t n_levels)
{
    double sum = 0.0;
    for (uint32_t d = 0; d < n_levels; d++)
        if (width[d] > 0)
            sum += lvr_cost_op_ns(o->price.table, o->price.geometry->place_draft, LVR_OP_DRAFT, width[d],
                                  o->context);
    return sum;
}

double lvr_objective_value(double gain, double cost_ns, double lambda)
{
    return gain - lambda / NS_PER_S * cost_ns;
}

double lvr_objective_speed(double gain, double cost_ns)
{
    return cost_ns > 0.0 ? gain * NS_PER_S / cost_ns : INFINITY;
}

bool lvr_objective_pays(double gain, double cost_ns, double d_gain, double d_cost_ns)
{
    return d_gain * cost_ns > gain * d_cost_ns;
}

static lvr_objective_choice first_rows(const lvr_objective *o, double draft_ns, uint32_t rows, double gain)
{
    return (lvr_objective_choice){
        .rows = rows, .gain = gain, .cost_ns = lvr_objective_cost_ns(o, draft_ns, rows, gain)};
}

lvr_objective_choice lvr_objective_best(const lvr_objective *o, const lvr_ranked_node *ranked, uint32_t n,
                                        double draft_ns, double lambda)
{
    lvr_objective_choice best = first_rows(o, draft_ns, 1, ranked[0].path);
    double best_value = lvr_objective_value(best.gain, best.cost_ns, lambda), gain = best.gain;
    for (uint32_t rows = 2; rows <= n; rows++) {
        gain += ranked[rows - 1].path;
        const lvr_objective_choice c = first_rows(o, draft_ns, rows, gain);
        const double value = lvr_objective_value(c.gain, c.cost_ns, lambda);
        if (value <= best_value)
            continue;
        best = c;
        best_value = value;
    }
    return best;
}

/* Each pass maximises G - lambda * C under the ratio of the one before, which can only rise; a ratio that no
 * longer does is the largest. */
lvr_objective_choice lvr_objective_best_ratio(const lvr_objective *o, const lvr_ranked_node *ranked,
                                              uint32_t n, double draft_ns)
{
    lvr_objective_choice best = first_rows(o, draft_ns, 1, ranked[0].path);
    for (uint32_t pass = 0; pass < n; pass++) {
        const double speed = lvr_objective_speed(best.gain, best.cost_ns);
        const lvr_objective_choice c = lvr_objective_best(o, ranked, n, draft_ns, speed);
        if (lvr_objective_speed(c.gain, c.cost_ns) <= speed)
            break;
        best = c;
    }
    return best;
}

static double later_reads_ns(const lvr_objective *o, uint32_t layer)
{
    lvr_geometry later = *o->price.geometry;
    if (later.io_mode == LVR_IO_SERIAL)
        return 0.0;
    for (uint32_t l = 0; l <= layer && l < later.n_layers; l++)
        later.resident[l] = true;
    return lvr_cost_io_ns(o->price.table, &later);
}

static double later_compute_ns(const lvr_objective *o, uint32_t layer, uint32_t rows)
{
    const lvr_geometry *g = o->price.geometry;
    const uint32_t n_layers = layer + 1 < g->n_layers ? g->n_layers - 1 - layer : 0;
    return n_layers * lvr_cost_op_ns(o->price.table, g->place, LVR_OP_LAYER, rows, o->context);
}

static double rest_ns(const lvr_objective *o, uint32_t layer, uint32_t rows, double reads_ns)
{
    return fmax(later_compute_ns(o, layer, rows), reads_ns);
}

double lvr_objective_rest_ns(const lvr_objective *o, uint32_t layer, uint32_t rows)
{
    return rest_ns(o, layer, rows, later_reads_ns(o, layer));
}

uint32_t lvr_objective_keep(const lvr_objective *o, const lvr_ranked_node *ranked, uint32_t n, uint32_t layer,
                            double lambda)
{
    const double reads_ns = later_reads_ns(o, layer);
    double gain = 0.0, best_value = -INFINITY;
    uint32_t best = 1;
    for (uint32_t rows = 1; rows <= n; rows++) {
        gain += ranked[rows - 1].path;
        const double value = lvr_objective_value(gain, rest_ns(o, layer, rows, reads_ns), lambda);
        if (value <= best_value)
            continue;
        best = rows;
        best_value = value;
    }
    return best;
}
