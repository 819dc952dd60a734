#include "costmodel/core/exit.h"

#include <math.h>

#define LEAST_PROBABILITY 1e-6
/* Of weights in files: beyond them a sum of products could be no number. */
#define MAX_WEIGHT 1e9

const char *const lvr_exit_feature_names[LVR_EXIT_FEATURES] = {
    "early", "margin", "local", "entropy", "bias", "draft", "draft_path", "rank", "depth"};

/* What the verified children of one row have in common. Scores that are no finite number do not take part. */
typedef struct family {
    uint32_t n, best_row;
    double best, second; /* the two largest scores; -INFINITY: there is none */
    double sum;          /* of exp(score - best) */
} family;

static double clamped(double p)
{
    return fmin(fmax(p, LEAST_PROBABILITY), 1.0 - LEAST_PROBABILITY);
}

static double finite_or_0(double x)
{
    return isfinite(x) ? x : 0.0;
}

/* ---- features ---- */

static void join(family *f, uint32_t row, double score)
{
    if (!isfinite(score))
        return;
    f->n++;
    if (score > f->best) {
        f->second = f->best;
        f->best = score;
        f->best_row = row;
    } else if (score > f->second) {
        f->second = score;
    }
}

/* families[r]: of row r's verified children. */
static void meet_families(const lvr_exit_row *rows, uint32_t n_rows, family *families)
{
    for (uint32_t r = 0; r < n_rows; r++)
        families[r] = (family){.best = -INFINITY, .second = -INFINITY};
    for (uint32_t r = 1; r < n_rows; r++)
        join(&families[rows[r].parent], r, (double)rows[r].raw.score);
    for (uint32_t r = 1; r < n_rows; r++) {
        family *f = &families[rows[r].parent];
        if (isfinite(rows[r].raw.score))
            f->sum += exp((double)rows[r].raw.score - f->best);
    }
}

static void early_features(const lvr_exit_row *row, uint32_t r, const family *f, double *x)
{
    const double score = (double)row->raw.score;
    const double rival = f->n > 1 ? (f->best_row == r ? f->second : f->best) : (double)row->raw.slice_max;
    x[LVR_EXIT_EARLY] = finite_or_0(score - (double)row->raw.slice_lse);
    x[LVR_EXIT_MARGIN] = finite_or_0(score - rival);
    x[LVR_EXIT_LOCAL] = isfinite(score) ? log(clamped(exp(score - f->best) / f->sum)) : 0.0;
    x[LVR_EXIT_ENTROPY] = finite_or_0((double)row->raw.slice_entropy);
}

static void draft_features(const lvr_node *node, double p, double path, double *x)
{
    x[LVR_EXIT_BIAS] = 1.0;
    x[LVR_EXIT_DRAFT] = log(clamped(p) / (1.0 - clamped(p)));
    x[LVR_EXIT_DRAFT_PATH] = log(clamped(path));
    x[LVR_EXIT_RANK] = log(1.0 + node->rank);
    x[LVR_EXIT_DEPTH] = log((double)node->depth);
}

void lvr_exit_features(const lvr_tree *tree, const lvr_calibration *calibration, const lvr_exit_row *rows,
                       uint32_t n_rows, double (*ret_x)[LVR_EXIT_FEATURES])
{
    family families[LVR_MAX_VERIFY_NODES];
    double path[LVR_MAX_VERIFY_NODES];
    meet_families(rows, n_rows, families);
    for (uint32_t i = 0; i < LVR_EXIT_FEATURES; i++)
        ret_x[0][i] = 0.0;
    path[0] = 1.0;
    for (uint32_t r = 1; r < n_rows; r++) {
        const lvr_exit_row *row = &rows[r];
        const double p = lvr_calibrate_node(calibration, tree, row->node);
        path[r] = path[row->parent] * p;
        early_features(row, r, &families[row->parent], ret_x[r]);
        draft_features(&tree->nodes[row->node], p, path[r], ret_x[r]);
    }
}

/* ---- scores ---- */

double lvr_exit_taken(const double *weight, const double *x)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < LVR_EXIT_FEATURES; i++)
        sum += weight[i] * x[i];
    return 1.0 / (1.0 + exp(-sum));
}

void lvr_exit_scores(const lvr_exit_layer *layer, const lvr_tree *tree, const lvr_calibration *calibration,
                     const lvr_exit_row *rows, uint32_t n_rows, double *ret_s)
{
    double x[LVR_MAX_VERIFY_NODES][LVR_EXIT_FEATURES];
    lvr_exit_features(tree, calibration, rows, n_rows, x);
    ret_s[0] = 1.0;
    for (uint32_t r = 1; r < n_rows; r++)
        ret_s[r] = ret_s[rows[r].parent] * lvr_exit_taken(layer->weight, x[r]);
}

int lvr_exit_at(const lvr_exit_predictor *p, uint32_t layer)
{
    for (uint32_t i = 0; i < p->n; i++)
        if (p->at[i].layer == layer)
            return (int)i;
    return -1;
}

/* ---- YAML ---- */

static lvr_status layer_from_yaml(const lvr_yaml_node *map, lvr_exit_layer *ret, lvr_error *err)
{
    const lvr_yaml_node *weights = NULL;
    uint64_t layer = 0;
    lvr_status st = lvr_yaml_get_u64(map, "layer", 0, UINT32_MAX, &layer, err);
    if (st == LVR_OK)
        st = lvr_yaml_get_double(map, "threshold", 0.0, 1.0, &ret->threshold, err);
    if (st == LVR_OK)
        st = lvr_yaml_get_map(map, "weights", &weights, err);
    for (uint32_t i = 0; st == LVR_OK && i < LVR_EXIT_FEATURES; i++)
        st = lvr_yaml_get_double(weights, lvr_exit_feature_names[i], -MAX_WEIGHT, MAX_WEIGHT, &ret->weight[i],
                                 err);
    ret->layer = (uint32_t)layer;
    return st;
}

lvr_status lvr_exit_from_yaml(const lvr_yaml_node *seq, lvr_exit_predictor *ret, lvr_error *err)
{
    lvr_exit_predictor p = {0};
    if (lvr_yaml_node_kind(seq) != LVR_YAML_SEQ)
        return lvr_fail(err, LVR_ERR_CONFIG, "%s: expected a list of layers with threshold and weights",
                        lvr_yaml_where(seq));
    const size_t n = lvr_yaml_len(seq);
    if (n > LVR_EXIT_MAX_LAYERS)
        return lvr_fail(err, LVR_ERR_CONFIG, "%s: rows are scored after at most %u layers, found %zu",
                        lvr_yaml_where(seq), LVR_EXIT_MAX_LAYERS, n);
    for (size_t i = 0; i < n; i++) {
        const lvr_yaml_node *item = lvr_yaml_at(seq, i);
        const lvr_status st = layer_from_yaml(item, &p.at[i], err);
        if (st != LVR_OK)
            return st;
        if (i > 0 && p.at[i].layer <= p.at[i - 1].layer)
            return lvr_fail(err, LVR_ERR_CONFIG, "%s: layers must ascend, found %u after %u",
                            lvr_yaml_where(item), p.at[i].layer, p.at[i - 1].layer);
    }
    p.n = (uint32_t)n;
    *ret = p;
    return LVR_OK;
}

void lvr_exit_to_yaml(const lvr_exit_predictor *p, lvr_yaml_out *y)
{
    for (uint32_t i = 0; i < p->n; i++) {
        lvr_yaml_out_item(y);
        lvr_yaml_out_u64(y, "layer", p->at[i].layer);
        lvr_yaml_out_double(y, "threshold", p->at[i].threshold);
        lvr_yaml_out_map(y, "weights");
        for (uint32_t f = 0; f < LVR_EXIT_FEATURES; f++)
            lvr_yaml_out_double(y, lvr_exit_feature_names[f], p->at[i].weight[f]);
        lvr_yaml_out_end(y);
        lvr_yaml_out_end(y);
    }
}
