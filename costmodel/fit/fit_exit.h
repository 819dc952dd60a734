/*
 * The exit predictor's weights from oracle traces that hold raw features (/exit), and beside them the
 * control: the same logistic model of what the draft says alone, which could cut the tree before the pass.
 */
#ifndef LVR_FIT_FIT_EXIT_H
#define LVR_FIT_FIT_EXIT_H

#include "costmodel/fit/fit.h"

/* A node of a recorded tree. Trees stand one after another, each from its root (parent -1) on, siblings
 * together, best first. */
typedef struct lvr_exit_node {
    int32_t parent; /* in its tree */
    float p_draft;
    uint16_t depth, rank;
    bool on_path, expanded;
    bool known;    /* raw was recorded */
    uint32_t fold; /* of the text: what is left out together when judging */
    lvr_exit_raw raw[LVR_EXIT_MAX_LAYERS];
} lvr_exit_node;

typedef struct lvr_exit_nodes {
    lvr_exit_node *items;
    size_t n, cap;
    uint32_t n_layers, layers[LVR_EXIT_MAX_LAYERS]; /* recorded, ascending */
    uint32_t depth;                                 /* layers of the target */
} lvr_exit_nodes;

/* Appends an oracle trace's trees; nothing if it holds no raw features. Traces of other layers than those
 * before: LVR_ERR_CONFIG. free(nodes->items). */
lvr_status lvr_exit_nodes_read(lvr_trace *t, lvr_exit_nodes *nodes, lvr_error *err);
/* Each tree as a policy would verify it: its 64 most probable nodes by the calibrated path probability.
 * Thresholds (recall 0.99) and the report are from texts that were left out of the fit. Without an accepted
 * node there is nothing to learn from: ret->n is 0. */
lvr_status lvr_fit_exit(const lvr_exit_nodes *nodes, const lvr_calibration *calibration,
                        lvr_exit_predictor *ret, lvr_fit_exit_report *ret_report, lvr_error *err);

#endif
