/*
 * The cost model fitted from traces: per term a parametric form, its fit (GSL), its residuals and valid
 * range, in one YAML a person can read. Also who it was fitted on, so that accuracy is never claimed on the
 * same prompts.
 */
#ifndef LVR_FIT_FIT_H
#define LVR_FIT_FIT_H

#include "costmodel/core/policy_file.h"
#include "traces/trace.h"

/* Residuals are |predicted - measured| / measured per sample (p50, p90, p99); bias is sum(predicted) /
 * sum(measured) - 1 with the measured outliers in: what a long run would be off by, which the mean of
 * relative errors is not when times are skewed. */
typedef struct lvr_fit_term {
    char name[48];  /* "flash", "layer", "draft", "head", "acceptance", ... */
    char form[160]; /* the parametric form in words */
    uint64_t n;
    double p50, p90, p99, bias;
    double x_min, x_max; /* range of the main variable seen (rows, bytes, probability) */
} lvr_fit_term;

#define LVR_FIT_MAX_TERMS 20
#define LVR_FIT_MAX_PROMPTS 4096
#define LVR_FIT_MAX_SOURCES 16

/* A trace the model was fitted on. */
typedef struct lvr_fit_source {
    char path[256], created_utc[32], commit[32];
    lvr_trace_kind kind;
} lvr_fit_source;

/* A cut by path score on texts that were left out of the fit, and the control's at equal retained
 * acceptance. Rows are per verified tree, the root included. */
typedef struct lvr_fit_exit_cut {
    double recall;    /* asked for */
    double threshold; /* the largest with it */
    double retained;  /* accepted nodes kept, as a fraction */
    double kept_rows; /* after the layer */
    double row_work;  /* rows through the whole depth that cost as much as all before and those kept after */
    double control_rows, control_retained; /* cut before the pass: its rows are its work */
} lvr_fit_exit_cut;

#define LVR_FIT_RECALLS 4 /* 0.95, 0.99, 0.995, 1 */

/* auc: how often an accepted node's path score is above that of one that is not. */
typedef struct lvr_fit_exit_layer {
    uint32_t layer;
    double auc, control_auc;
    lvr_fit_exit_cut cut[LVR_FIT_RECALLS];
} lvr_fit_exit_layer;

typedef struct lvr_fit_exit_report {
    uint64_t n_trees, n_rows, n_accepted;
    uint32_t n_layers; /* of the target */
    bool crossed;      /* false: too few texts to leave any out, the models saw what judges them */
    uint32_t n;
    lvr_fit_exit_layer at[LVR_EXIT_MAX_LAYERS];
} lvr_fit_exit_report;

typedef struct lvr_cost_model {
    lvr_cost_table table;
    lvr_calibration calibration;
    lvr_exit_predictor exit;         /* n == 0: no oracle trace held its features */
    lvr_fit_exit_report exit_report; /* of this fit; not in the file */
    double wake_ns; /* from a slice's arrival to the start of the operator that waited for it */
    lvr_fit_term terms[LVR_FIT_MAX_TERMS];
    uint32_t n_terms;
    lvr_fit_source sources[LVR_FIT_MAX_SOURCES];
    uint32_t n_sources;
    char target_sha256[LVR_SHA256_HEX_BYTES], draft_sha256[LVR_SHA256_HEX_BYTES],
        device_sha256[LVR_SHA256_HEX_BYTES];
    lvr_run_conditions conditions;
    lvr_geometry geometry; /* of the recorded device: layer bytes; schedule fields as recorded */
    uint64_t prompt_hashes[LVR_FIT_MAX_PROMPTS]; /* prompts of the fit set, ascending, each once */
    uint32_t n_prompts;
    bool synthetic; /* made from a device preset and shapes, not fitted */
} lvr_cost_model;

/* Timing traces give flash and kernels, oracle traces the calibration. Traces of different models, devices or
 * conditions do not mix (LVR_ERR_CONFIG naming the first difference). Dropped records, simulated or oracle
 * timings are never fitted as timings. */
lvr_status lvr_cost_model_fit(const char *const *trace_paths, size_t n, lvr_cost_model *ret, lvr_error *err);
lvr_status lvr_cost_model_load(const char *path, lvr_cost_model *ret, lvr_error *err);
lvr_status lvr_cost_model_save(const char *path, const lvr_cost_model *m, lvr_error *err);
lvr_status lvr_cost_model_format(const lvr_cost_model *m, lvr_buf *out, lvr_error *err);
lvr_status lvr_cost_model_parse(const char *name, const char *text, size_t n, lvr_cost_model *ret,
                                lvr_error *err);

/* NULL if there is no such term. */
const lvr_fit_term *lvr_cost_model_term(const lvr_cost_model *m, const char *name);
bool lvr_cost_model_has_prompt(const lvr_cost_model *m, uint64_t prompt_hash);

#endif
