/*
 * The exit predictor (paper section 4.3, "Predictor-Based Verification Pruning"; features and form are a
 * reconstruction, method.md section 3.5; after ProPD, arXiv 2402.13485, and SpecEE, arXiv 2504.08850).
 *
 * After chosen target layers each verified node gets a score: how likely the target takes it, given that it
 * took the parent. A path's score is the product along it; nodes of low score are dropped with all that hangs
 * on them. The root is never dropped. A wrong drop costs acceptance length, never correctness: the target
 * judges whatever is left, and its own token ends every round.
 *
 * What is recorded is raw, per node and layer; what depends on the tree's shape is computed here, from the
 * rows that are being verified, in both hosts alike. Pure functions, thread safe.
 */
#ifndef LVR_CORE_EXIT_H
#define LVR_CORE_EXIT_H

#include "common/yaml.h"
#include "costmodel/core/calibration.h"
#include "costmodel/core/tree.h"

#define LVR_EXIT_MAX_LAYERS 4u
/* Rows of the output head that stand for the vocabulary: tokens i * vocab / n of n = min(these, vocab). */
#define LVR_EXIT_SLICE_ROWS 256u

/* A node at one layer, all from the parent's row there (h: its residual after the layer, normalised as before
 * the head): the early head. Independent of which rows share the pass (INV-ROW). */
typedef struct lvr_exit_raw {
    float score;         /* <h, head row of the node's token> */
    float slice_lse;     /* log sum exp of <h, head row> over the slice */
    float slice_max;     /* the largest of them */
    float slice_entropy; /* of their softmax, nats */
} lvr_exit_raw;

/* What the logistic model sees. The control (draft confidence) has weights for the last five only. */
typedef enum lvr_exit_feature {
    LVR_EXIT_EARLY,      /* score - slice_lse: log odds against the vocabulary */
    LVR_EXIT_MARGIN,     /* score - the best verified sibling's, or - slice_max without siblings */
    LVR_EXIT_LOCAL,      /* log softmax of the score among the verified siblings */
    LVR_EXIT_ENTROPY,    /* slice_entropy */
    LVR_EXIT_BIAS,       /* 1 */
    LVR_EXIT_DRAFT,      /* logit of the calibrated probability given the parent */
    LVR_EXIT_DRAFT_PATH, /* log of the calibrated path probability */
    LVR_EXIT_RANK,       /* log(1 + rank) */
    LVR_EXIT_DEPTH,      /* log(depth), the root's children: 0 */
    LVR_EXIT_FEATURES
} lvr_exit_feature;
extern const char *const lvr_exit_feature_names[LVR_EXIT_FEATURES];

typedef struct lvr_exit_layer {
    uint32_t layer; /* rows are scored after this target layer, from 0; the last layer is none */
    double weight[LVR_EXIT_FEATURES];
    double
        threshold; /* least path score that is kept, by recall on accepted nodes (the fit's); 0: keep all */
} lvr_exit_layer;

/* Ascending by layer; n == 0: no predictor. */
typedef struct lvr_exit_predictor {
    uint32_t n;
    lvr_exit_layer at[LVR_EXIT_MAX_LAYERS];
} lvr_exit_predictor;

/* One verified row. `parent` indexes the same array, -1 for the root, which is row 0; parents come first. */
typedef struct lvr_exit_row {
    int32_t parent;
    uint32_t node;    /* of the tree */
    lvr_exit_raw raw; /* the root's is not read */
} lvr_exit_row;

/* x[row][feature] of every row but the root (whose are 0). Probabilities and their logarithms are kept within
 * [1e-6, 1 - 1e-6]. At most LVR_MAX_VERIFY_NODES rows. */
void lvr_exit_features(const lvr_tree *tree, const lvr_calibration *calibration, const lvr_exit_row *rows,
                       uint32_t n_rows, double (*ret_x)[LVR_EXIT_FEATURES]);
/* Path scores S of every row; the root's is 1. A child's is never above its parent's. */
void lvr_exit_scores(const lvr_exit_layer *layer, const lvr_tree *tree, const lvr_calibration *calibration,
                     const lvr_exit_row *rows, uint32_t n_rows, double *ret_s);

/* sigma(weight . x): how likely the node is taken, given the parent. */
double lvr_exit_taken(const double *weight, const double *x);

/* The layer's place in the predictor, -1: rows are not scored after it. */
int lvr_exit_at(const lvr_exit_predictor *p, uint32_t layer);

/* YAML: a sequence of {layer, threshold, weights: {name: number, ...}}. Whoever writes it opens and ends the
 * key that it stands under (lvr_yaml_out_map, lvr_yaml_out_end), and not without layers. */
lvr_status lvr_exit_from_yaml(const lvr_yaml_node *seq, lvr_exit_predictor *ret, lvr_error *err);
void lvr_exit_to_yaml(const lvr_exit_predictor *p, lvr_yaml_out *y);

#endif
