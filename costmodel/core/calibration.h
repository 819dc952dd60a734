/*
 * How often the target takes the draft's tokens, given that it took the parent.
 *
 * By the draft's conditional probability: a monotone map, piecewise linear through knots, clamped to [0, 1];
 * identity if n == 0.
 *
 * By depth and rank (groups): of siblings at most one is taken, so the maps are of hazards: the probability
 * that the target takes this one, given that it takes none of the better ones, from the draft's probability
 * under the same condition, q / (1 - sum of the better ones' q). Siblings then add up to at most 1.
 *
 * By rank and depth alone, whatever the draft says (by_rank): the vectors that static trees are made from;
 * not known if n_depths == 0.
 */
#ifndef LVR_CORE_CALIBRATION_H
#define LVR_CORE_CALIBRATION_H

#include "common/yaml.h"
#include "costmodel/core/tree.h"
#include <stdint.h>

#define LVR_CALIBRATION_MAX_KNOTS 64
#define LVR_CALIBRATION_MAX_DEPTHS 8
#define LVR_CALIBRATION_MAX_GROUPS 17
#define LVR_CALIBRATION_GROUP_KNOTS 24
#define LVR_CALIBRATION_SHIFTS 2u

/* The hazards of some depths (of the parent) and ranks, bounds included. */
typedef struct lvr_calibration_group {
    uint32_t min_depth, max_depth, min_rank, max_rank;
    uint32_t n; /* at least 1 */
    double q[LVR_CALIBRATION_GROUP_KNOTS], p[LVR_CALIBRATION_GROUP_KNOTS];
} lvr_calibration_group;

typedef struct lvr_calibration {
    uint32_t n;
    double q[LVR_CALIBRATION_MAX_KNOTS]; /* strictly ascending, in [0, 1] */
    double p[LVR_CALIBRATION_MAX_KNOTS]; /* ascending, in [0, 1] */
    uint32_t n_groups;
    lvr_calibration_group
        group[LVR_CALIBRATION_MAX_GROUPS]; /* the first that fits counts; the last fits all */
    uint32_t n_depths, n_ranks;            /* both 0, or both at least 1 */
    /* [depth of the parent][rank]; the last depth stands for deeper ones too. A row's sum is at most 1. */
    double by_rank[LVR_CALIBRATION_MAX_DEPTHS][LVR_MAX_BRANCH];
    /* Logits added to the hazards of a node's best child and of the others (adapt.h); 0: as fitted. Not part
     * of files. */
    double shift[LVR_CALIBRATION_SHIFTS];
} lvr_calibration;

/* Which shift a child of this rank gets. */
static inline uint32_t lvr_calibration_shift_of(uint32_t rank)
{
    return rank > 0 ? 1u : 0u;
}

double lvr_calibrate(const lvr_calibration *c, double q);
/* From the draft's probability given that no better sibling is taken to the target's. With groups, without
 * shifts. */
double lvr_calibrate_hazard(const lvr_calibration *c, double q, uint32_t parent_depth, uint32_t rank);
/* The best n children of one node, best first: how likely each is taken if the node is. Adds up to at most 1.
 * Without groups each by its own probability, as far as the better ones leave room. Shifted. */
void lvr_calibrate_siblings(const lvr_calibration *c, const lvr_node *siblings, uint32_t n, double *ret_p);
/* How likely a node is taken if its parent is. v is not the root; its better siblings stand right before it.
 */
double lvr_calibrate_node(const lvr_calibration *c, const lvr_tree *tree, uint32_t v);
/* How many of the chosen nodes the target is expected to take: the sum of their path probabilities, the
 * root's left out. nodes: [n], ascending, closed under parents, the root first; at most LVR_MAX_VERIFY_NODES.
 */
double lvr_expected_accepted(const lvr_calibration *c, const lvr_tree *tree, const uint32_t *nodes,
                             uint32_t n);
lvr_status lvr_calibration_from_yaml(const lvr_yaml_node *map, lvr_calibration *ret, lvr_error *err);
void lvr_calibration_to_yaml(const lvr_calibration *c, lvr_yaml_out *y);

#endif
