/*
 * The gain-cost objective (method.md section 3; a reconstruction, the paper's formulas are not public).
 *
 *   G(T) = 1 + sum of path probabilities: the tokens a round is expected to commit
 *   C(T) the round's cost in the schedule in use: draft steps, reads, layers, heads, commit, launch and sync
 *
 * Long-run speed is sum G / sum C over rounds, so the optimum maximises G - lambda * C with one lambda for
 * all rounds, the long-run speed itself (renewal reward). A round's own G / C, which Dinkelbach's iteration
 * maximises, is the rule of methods that look at one round only; it is kept to be compared with.
 *
 * Candidates come ranked: the root first, then by falling path probability, parents before their children.
 * A path's probability falls from parent to child, so the best tree of n rows is the first n candidates: all
 * choices here are of n.
 *
 * While a tree is verified, what has been spent is spent: of the rows left, those that maximise the sum of
 * their path scores less lambda times the rest of the round go on. Scores fall from parent to child as
 * probabilities do.
 *
 * Pure functions; G in tokens, C in ns, lambda in tokens per second.
 */
#ifndef LVR_CORE_OBJECTIVE_H
#define LVR_CORE_OBJECTIVE_H

#include "costmodel/core/cost.h"

typedef struct lvr_ranked_node {
    double path; /* what it is ranked by: the path's probability */
    uint32_t node;
} lvr_ranked_node;
/* For qsort: by falling path; of equals the lower node, so that a parent comes before its child. */
int lvr_by_falling_path(const void *a, const void *b);

typedef struct lvr_objective {
    lvr_round_pricer price;
    uint32_t context; /* committed positions before the root */
} lvr_objective;

typedef struct lvr_objective_choice {
    uint32_t rows;
    double gain, cost_ns;
} lvr_objective_choice;

/* Table and geometry outlive the objective. */
lvr_objective lvr_objective_new(const lvr_cost_table *t, const lvr_geometry *g, uint32_t context);

/* C of a round that has spent draft_ns on drafting and verifies `rows` rows; `gain` heads are run. */
double lvr_objective_cost_ns(const lvr_objective *o, double draft_ns, uint32_t rows, double gain);
/* One draft step for the width[d] > 0 nodes of each level. */
double lvr_objective_draft_ns(const lvr_objective *o, const uint32_t *width, uint32_t n_levels);
double lvr_objective_value(double gain, double cost_ns, double lambda);
double lvr_objective_speed(double gain, double cost_ns); /* tokens/s */
/* Whether adding d_gain at d_cost_ns raises gain / cost. */
bool lvr_objective_pays(double gain, double cost_ns, double d_gain, double d_cost_ns);

/* Largest G - lambda * C over the first 1..n candidates; the smallest of equals. n is at least 1. */
lvr_objective_choice lvr_objective_best(const lvr_objective *o, const lvr_ranked_node *ranked, uint32_t n,
                                        double draft_ns, double lambda);
/* Largest G / C over the first 1..n candidates, by Dinkelbach's iteration. */
lvr_objective_choice lvr_objective_best_ratio(const lvr_objective *o, const lvr_ranked_node *ranked,
                                              uint32_t n, double draft_ns);

/* What is left of a round after `layer`, with `rows` rows in later ones: their compute. Pipelined: no less
 * than all reads of later layers, as if none of them were staged yet. Serial reads do not depend on rows and
 * are left out, and so are heads. Under the placement "auto" the cheaper unit for so many rows. */
double lvr_objective_rest_ns(const lvr_objective *o, uint32_t layer, uint32_t rows);
/* How many of the first n scored rows, ranked as candidates are, go on: largest sum of scores - lambda *
 * rest; the smallest of equals. n is at least 1. */
uint32_t lvr_objective_keep(const lvr_objective *o, const lvr_ranked_node *ranked, uint32_t n, uint32_t layer,
                            double lambda);

#endif
