/* The fits behind lvr_cost_model_fit, over plain samples, so that each can be tested on data whose truth is
 * known. */
#ifndef LVR_FIT_FIT_PARTS_H
#define LVR_FIT_FIT_PARTS_H

#include "costmodel/fit/fit.h"

/* ---- operators
 * -------------------------------------------------------------------------------------------------------------
 */

typedef struct lvr_op_sample {
    uint32_t rows, context;
    double ns;
} lvr_op_sample;

/* ns = spline(rows) + ctx_ns * rows * context; ctx_ns is 0 unless uses_context. The shape is a robust
 * regression (bisquare) of relative residuals, then scaled so that it predicts the mean. At least one sample.
 */
lvr_status lvr_fit_op(const lvr_op_sample *samples, size_t n, bool uses_context, lvr_op_cost *ret,
                      lvr_fit_term *ret_term, lvr_error *err);

/* ---- tickets on an accelerator
 * -----------------------------------------------------------------------------------------------------------
 */

typedef struct lvr_npu_sample {
    uint32_t bucket, context;
    double launch_ns, run_ns;
    double sync_ns; /* end to the host's next step; negative: the host was at something else */
} lvr_npu_sample;

/* The terms "NAME_npu", "NAME_npu_launch" and "NAME_npu_sync". */
#define LVR_FIT_NPU_TERMS 3
/* run: one value per bucket, and ctx_ns; launch and sync: constants. All as lvr_fit_op fits: the robust
 * shape, scaled to the mean. At least one sample. */
lvr_status lvr_fit_npu(const char *name, const lvr_npu_sample *samples, size_t n, lvr_npu_cost *ret,
                       lvr_fit_term ret_terms[LVR_FIT_NPU_TERMS], lvr_error *err);

/* ---- flash
 * -----------------------------------------------------------------------------------------------------------------
 */

typedef struct lvr_flash_sample {
    uint64_t submit_ns, end_ns, bytes;
    uint32_t in_flight; /* when it started, itself included */
} lvr_flash_sample;

/* Parameters under which lvr_flash_admit, given the recorded submissions, gives the recorded ends. Samples in
 * order of submission; a submission earlier than the one before starts a new recording on an idle device. */
lvr_status lvr_fit_flash(const lvr_flash_sample *samples, size_t n, lvr_flash_params *ret,
                         lvr_fit_term *ret_term, lvr_error *err);

/* ---- acceptance
 * ------------------------------------------------------------------------------------------------------------
 */

typedef struct lvr_acceptance_sample {
    double q;             /* the draft's conditional probability */
    bool accepted;        /* the target took the token (it had taken the parent) */
    uint16_t depth, rank; /* of the parent; of the token among its siblings */
    uint32_t fold;        /* samples of one text share it: what is left out together when judging */
} lvr_acceptance_sample;

/* Isotonic regression by pooling adjacent violators: fit[] is the ascending sequence nearest to y[] by
 * weighted squares. */
lvr_status lvr_isotonic(const double *y, const double *weight, size_t n, double *fit, lvr_error *err);
/* Monotone calibration with at most max_knots knots. At least one sample. */
lvr_status lvr_fit_calibration(const lvr_acceptance_sample *samples, size_t n, uint32_t max_knots,
                               lvr_calibration *ret, lvr_fit_term *ret_term, lvr_error *err);

/* Hazards (calibration.h) by depth and rank: samples are of tokens none of whose better siblings was taken, q
 * under the same condition. A map of all, and maps of their own for depths and ranks where the data supports
 * them: isotonic or Platt's logistic, if one predicts folds that were left out better. Fills n_groups and
 * group. *ret_term: predictions of left-out folds, over twenty levels; n is 0 if there
 * was nothing to predict them from (one text). At least one sample. */
lvr_status lvr_fit_groups(const lvr_acceptance_sample *samples, size_t n, lvr_calibration *ret,
                          lvr_fit_term *ret_term, lvr_error *err);
/* Logistic regression p = 1 / (1 + exp(-(a + b * logit(q)))), b >= 0, with Platt's smoothed targets. */
void lvr_fit_platt(const lvr_acceptance_sample *samples, size_t n, double *ret_a, double *ret_b);

/* What became of the children of nodes that the target took, by depth of the parent (the last row: that deep
 * or deeper) and rank of the child. */
typedef struct lvr_rank_counts {
    double parents[LVR_CALIBRATION_MAX_DEPTHS];
    double taken[LVR_CALIBRATION_MAX_DEPTHS][LVR_MAX_BRANCH];
    uint32_t n_ranks; /* ranks recorded */
} lvr_rank_counts;

/* Fills n_depths, n_ranks and by_rank. Depths of few parents lean on the rate over all depths. Without any
 * parent nothing is filled. */
void lvr_fit_by_rank(const lvr_rank_counts *counts, lvr_calibration *ret);

/* ---- shared
 * ----------------------------------------------------------------------------------------------------------------
 */

/* Longer than anything a scheduler or a device does to a running program: the machine slept. Such samples are
 * left out of means. */
bool lvr_fit_suspended(double measured_ns, double predicted_ns);
/* Fills p50, p90, p99, bias and n of a term from predictions and measurements. */
lvr_status lvr_fit_residuals(const double *predicted, const double *measured, size_t n, lvr_fit_term *term,
                             lvr_error *err);

#endif
