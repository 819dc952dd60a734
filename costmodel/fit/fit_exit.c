/*
 * Per layer a logistic model of "the target takes this node, given that it took the parent", by Newton's
 * method on standardised features with a small ridge; no class weights, since path scores are products of
 * probabilities and must stay such. Cross-fitted: each text is scored by a model of the other folds.
 *
 * The control is fitted and judged in the same way on what the draft says alone. It needs no layer, so it
 * could cut the tree before the pass: at equal retained acceptance its rows are compared with the row-work
 * that the predictor leaves, m of L layers for all rows and the others for those kept.
 */
#include "costmodel/fit/fit_exit.h"

#include "costmodel/core/objective.h"
#include <gsl/gsl_errno.h>
#include <gsl/gsl_linalg.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N_FOLDS = 5, MAX_STEPS = 60, TREE_ROWS = 64, N = LVR_EXIT_FEATURES, ALL_FOLDS = N_FOLDS };
static const double RIDGE = 1.0; /* on standardised weights; as much as one sample */
static const double PROMISED_RECALL = 0.99;
static const double recalls[LVR_FIT_RECALLS] = {0.95, 0.99, 0.995, 1.0};

typedef struct row {
    double x[N];
    int64_t parent; /* among all rows, -1: a root */
    uint32_t fold;
    bool accepted;
    bool given; /* its parent was taken: whether it is, is known */
} row;

typedef struct work {
    const lvr_exit_nodes *nodes;
    const lvr_calibration *calibration;
    row *rows;
    size_t n;
    double *scores, *control; /* [n]: path scores, of models that did not see the row's text */
    double *sorted;           /* [n] */
    uint64_t n_trees, n_accepted;
    bool crossed; /* false: too few texts, models saw them all */
} work;

/* ---- rows as a policy would verify them ---- */

typedef struct tree_space {
    lvr_node nodes[LVR_MAX_RECORDED_NODES];
    double path[LVR_MAX_RECORDED_NODES];
    lvr_ranked_node order[LVR_MAX_RECORDED_NODES];
    int32_t row_of[LVR_MAX_RECORDED_NODES]; /* -1: not verified */
    lvr_exit_row rows[TREE_ROWS];
    double x[TREE_ROWS][N];
} tree_space;

static size_t tree_size(const lvr_exit_nodes *nodes, size_t first)
{
    size_t end = first + 1;
    while (end < nodes->n && nodes->items[end].parent >= 0)
        end++;
    return end - first;
}

/* A node's path is at most its parent's and it stands after it, so the best are closed under parents. */
static uint32_t choose(const work *w, const lvr_exit_node *items, uint32_t n, tree_space *s)
{
    for (uint32_t i = 0; i < n; i++) {
        s->nodes[i] = (lvr_node){.parent = items[i].parent,
                                 .depth = items[i].depth,
                                 .rank = items[i].rank,
                                 .p_draft = items[i].p_draft,
                                 .expanded = items[i].expanded};
        double p[LVR_MAX_BRANCH] = {1.0};
        if (i > 0)
            lvr_calibrate_siblings(w->calibration, &s->nodes[i - items[i].rank], items[i].rank + 1u, p);
        s->path[i] = i == 0 ? 1.0 : items[i].known ? s->path[items[i].parent] * p[items[i].rank] : 0.0;
        s->order[i] = (lvr_ranked_node){s->path[i], i};
        s->row_of[i] = -1;
    }
    qsort(s->order, n, sizeof(*s->order), lvr_by_falling_path);
    for (uint32_t i = 0; i < n && i < TREE_ROWS && s->order[i].path > 0.0; i++)
        s->row_of[s->order[i].node] = 0;
    uint32_t n_rows = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (s->row_of[i] < 0)
            continue;
        s->row_of[i] = (int32_t)n_rows;
        s->rows[n_rows++] = (lvr_exit_row){.parent = i == 0 ? -1 : s->row_of[items[i].parent], .node = i};
    }
    return n_rows;
}

static void add_tree(work *w, const lvr_exit_node *items, uint32_t n, uint32_t layer, tree_space *s)
{
    const uint32_t n_rows = choose(w, items, n, s);
    const lvr_tree tree = {.nodes = s->nodes, .n = n, .cap = n};
    const size_t first = w->n;
    for (uint32_t r = 1; r < n_rows; r++)
        s->rows[r].raw = items[s->rows[r].node].raw[layer];
    lvr_exit_features(&tree, w->calibration, s->rows, n_rows, s->x);
    for (uint32_t r = 0; r < n_rows; r++) {
        const lvr_exit_node *node = &items[s->rows[r].node];
        row *to = &w->rows[w->n++];
        *to = (row){.parent = r == 0 ? -1 : (int64_t)first + s->rows[r].parent,
                    .fold = node->fold % N_FOLDS,
                    .accepted = r > 0 && node->on_path,
                    .given = r > 0 && items[node->parent].on_path};
        memcpy(to->x, s->x[r], sizeof to->x);
        w->n_accepted += to->accepted;
    }
    w->n_trees++;
}

static lvr_status make_rows(work *w, uint32_t layer, lvr_error *err)
{
    tree_space *s = malloc(sizeof(*s));
    if (!s)
        return lvr_fail(err, LVR_ERR_NOMEM, "fit: out of memory for a tree");
    w->n = w->n_trees = w->n_accepted = 0;
    for (size_t i = 0; i < w->nodes->n;) {
        const size_t n = tree_size(w->nodes, i);
        add_tree(w, &w->nodes->items[i], (uint32_t)n, layer, s);
        i += n;
    }
    free(s);
    return LVR_OK;
}

/* ---- the logistic model ---- */

typedef struct scaling {
    double mean[N], scale[N]; /* scale 0: the feature says nothing */
} scaling;

static bool used(const row *r, uint32_t without)
{
    return r->given && r->fold != without;
}

static size_t measure(const work *w, uint32_t without, scaling *ret)
{
    size_t n = 0;
    *ret = (scaling){0};
    for (size_t i = 0; i < w->n; i++) {
        if (!used(&w->rows[i], without))
            continue;
        n++;
        for (uint32_t f = 0; f < N; f++) {
            const double d = w->rows[i].x[f] - ret->mean[f];
            ret->mean[f] += d / (double)n;
            ret->scale[f] += d * (w->rows[i].x[f] - ret->mean[f]);
        }
    }
    for (uint32_t f = 0; f < N; f++) {
        ret->scale[f] = n > 1 ? sqrt(ret->scale[f] / (double)n) : 0.0;
        if (ret->scale[f] < 1e-9)
            ret->scale[f] = 0.0;
    }
    return n;
}

/* The bias is 1, features before `first` and those that say nothing are 0. */
static void standardise(const row *r, const scaling *s, uint32_t first, double *z)
{
    for (uint32_t f = 0; f < N; f++)
        z[f] = f >= first && s->scale[f] > 0.0 ? (r->x[f] - s->mean[f]) / s->scale[f] : 0.0;
    z[LVR_EXIT_BIAS] = 1.0;
}

/* Gradient and Hessian of the log loss and its ridge. */
static void derive(const work *w, uint32_t without, const scaling *s, uint32_t first, const double *weight,
                   double *gradient, double *hessian)
{
    memset(hessian, 0, sizeof(double) * N * N);
    for (uint32_t f = 0; f < N; f++) {
        const double ridge = f == LVR_EXIT_BIAS ? 1e-6 : RIDGE;
        gradient[f] = ridge * weight[f];
        hessian[f * N + f] = ridge;
    }
    for (size_t i = 0; i < w->n; i++) {
        double z[N];
        if (!used(&w->rows[i], without))
            continue;
        standardise(&w->rows[i], s, first, z);
        const double p = lvr_exit_taken(weight, z), d = p - (w->rows[i].accepted ? 1.0 : 0.0);
        for (uint32_t f = 0; f < N; f++) {
            gradient[f] += d * z[f];
            for (uint32_t g = 0; g < N; g++)
                hessian[f * N + g] += p * (1.0 - p) * z[f] * z[g];
        }
    }
}

static void unscale(const scaling *s, const double *z, double *ret)
{
    double bias = z[LVR_EXIT_BIAS];
    for (uint32_t f = 0; f < N; f++) {
        ret[f] = s->scale[f] > 0.0 ? z[f] / s->scale[f] : 0.0;
        bias -= ret[f] * s->mean[f];
    }
    ret[LVR_EXIT_BIAS] = bias;
}

/* Features from `first` on, without a fold's rows. */
static lvr_status fit_weights(const work *w, uint32_t first, uint32_t without, double *ret, lvr_error *err)
{
    double z[N] = {0}, gradient[N], hessian[N * N], step[N];
    scaling s;
    measure(w, without, &s);
    for (int i = 0; i < MAX_STEPS; i++) {
        derive(w, without, &s, first, z, gradient, hessian);
        gsl_matrix_view h = gsl_matrix_view_array(hessian, N, N);
        const gsl_vector_view g = gsl_vector_view_array(gradient, N);
        gsl_vector_view d = gsl_vector_view_array(step, N);
        if (gsl_linalg_cholesky_decomp1(&h.matrix) != GSL_SUCCESS ||
            gsl_linalg_cholesky_solve(&h.matrix, &g.vector, &d.vector) != GSL_SUCCESS)
            return lvr_fail(err, LVR_ERR_INVARIANT, "exit predictor: its equations could not be solved");
        double largest = 0.0;
        for (uint32_t f = 0; f < N; f++)
            largest = fmax(largest, fabs(step[f]));
        for (uint32_t f = 0; f < N; f++)
            z[f] -= step[f] * fmin(1.0, 4.0 / fmax(largest, 1e-300));
        if (largest < 1e-9)
            break;
    }
    unscale(&s, z, ret);
    return LVR_OK;
}

/* ---- left-out scores ---- */

static bool can_leave_out(const work *w)
{
    size_t folds[N_FOLDS] = {0}, n = 0;
    for (size_t i = 0; i < w->n; i++)
        folds[w->rows[i].fold] += w->rows[i].accepted;
    for (uint32_t f = 0; f < N_FOLDS; f++)
        n += folds[f] > 0;
    return n >= 2;
}

static lvr_status score_left_out(const work *w, uint32_t first, double *ret, lvr_error *err)
{
    double weight[N_FOLDS][N];
    for (uint32_t f = 0; f < N_FOLDS; f++) {
        const lvr_status st = fit_weights(w, first, w->crossed ? f : ALL_FOLDS, weight[f], err);
        if (st)
            return st;
    }
    for (size_t i = 0; i < w->n; i++) {
        const row *r = &w->rows[i];
        ret[i] = r->parent < 0 ? 1.0 : ret[r->parent] * lvr_exit_taken(weight[r->fold], r->x);
    }
    return LVR_OK;
}

/* ---- thresholds and what they leave ---- */

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The largest threshold that loses at most so many accepted nodes. */
static double threshold(const work *w, const double *scores, uint64_t lost)
{
    size_t n = 0;
    for (size_t i = 0; i < w->n; i++)
        if (w->rows[i].accepted)
            w->sorted[n++] = scores[i];
    qsort(w->sorted, n, sizeof(*w->sorted), by_value);
    return lost < n ? w->sorted[lost] : 0.0;
}

typedef struct left {
    double rows;       /* per tree, root included */
    uint64_t accepted; /* in all */
} left;

static left left_by(const work *w, const double *scores, double least)
{
    left l = {0};
    for (size_t i = 0; i < w->n; i++) {
        if (scores[i] < least)
            continue;
        l.rows += 1.0 / (double)w->n_trees;
        l.accepted += w->rows[i].accepted;
    }
    return l;
}

static lvr_fit_exit_cut cut_at(const work *w, uint32_t layer, double recall)
{
    const double n = (double)w->n_accepted;
    const uint64_t lost = (uint64_t)floor((1.0 - recall) * n + 1e-9);
    lvr_fit_exit_cut c = {.recall = recall, .threshold = threshold(w, w->scores, lost)};
    const left kept = left_by(w, w->scores, c.threshold);
    const left control = left_by(w, w->control, threshold(w, w->control, w->n_accepted - kept.accepted));
    const double done = (layer + 1.0) / w->nodes->depth;
    c.kept_rows = kept.rows;
    c.retained = (double)kept.accepted / n;
    c.row_work = done * (double)w->n / (double)w->n_trees + (1.0 - done) * kept.rows;
    c.control_rows = control.rows;
    c.control_retained = (double)control.accepted / n;
    return c;
}

typedef struct labelled {
    double score;
    bool accepted;
} labelled;

static int by_score(const void *a, const void *b)
{
    return by_value(&((const labelled *)a)->score, &((const labelled *)b)->score);
}

/* How often an accepted node's score is above another's, equal ones counting half. NaN: out of memory. */
static double area(const work *w, const double *scores)
{
    labelled *all = malloc(w->n * sizeof(*all));
    size_t n = 0;
    double below = 0.0, sum = 0.0, accepted = 0.0;
    if (!all)
        return NAN;
    for (size_t i = 0; i < w->n; i++)
        if (w->rows[i].parent >= 0)
            all[n++] = (labelled){scores[i], w->rows[i].accepted};
    qsort(all, n, sizeof(*all), by_score);
    for (size_t i = 0; i < n;) {
        double same = 0.0, taken = 0.0;
        size_t end = i;
        for (; end < n && all[end].score == all[i].score; end++) {
            taken += all[end].accepted;
            same += !all[end].accepted;
        }
        sum += taken * (below + 0.5 * same);
        below += same;
        accepted += taken;
        i = end;
    }
    free(all);
    return accepted > 0.0 && below > 0.0 ? sum / (accepted * below) : NAN;
}

/* ---- all layers ---- */

static lvr_status fit_layer(work *w, uint32_t l, lvr_exit_predictor *p, lvr_fit_exit_report *report,
                            lvr_error *err)
{
    const uint32_t layer = w->nodes->layers[l];
    lvr_status st = make_rows(w, l, err);
    if (st || w->n_accepted == 0)
        return st;
    w->crossed = can_leave_out(w);
    st = score_left_out(w, 0, w->scores, err);
    if (!st)
        st = score_left_out(w, LVR_EXIT_BIAS, w->control, err);
    if (!st)
        st = fit_weights(w, 0, ALL_FOLDS, p->at[p->n].weight, err);
    if (st)
        return st;
    lvr_fit_exit_layer *to = &report->at[report->n++];
    *to = (lvr_fit_exit_layer){.layer = layer, .auc = area(w, w->scores), .control_auc = area(w, w->control)};
    for (int i = 0; i < LVR_FIT_RECALLS; i++)
        to->cut[i] = cut_at(w, layer, recalls[i]);
    p->at[p->n].layer = layer;
    p->at[p->n++].threshold = cut_at(w, layer, PROMISED_RECALL).threshold;
    return LVR_OK;
}

static lvr_status fit_layers(work *w, lvr_exit_predictor *p, lvr_fit_exit_report *report, lvr_error *err)
{
    for (uint32_t l = 0; l < w->nodes->n_layers; l++) {
        const lvr_status st = fit_layer(w, l, p, report, err);
        if (st)
            return st;
    }
    report->n_trees = w->n_trees;
    report->n_rows = w->n;
    report->n_accepted = w->n_accepted;
    report->n_layers = w->nodes->depth;
    report->crossed = w->crossed;
    return LVR_OK;
}

lvr_status lvr_fit_exit(const lvr_exit_nodes *nodes, const lvr_calibration *calibration,
                        lvr_exit_predictor *ret, lvr_fit_exit_report *ret_report, lvr_error *err)
{
    const size_t n = nodes->n ? nodes->n : 1;
    work w = {.nodes = nodes, .calibration = calibration};
    lvr_exit_predictor p = {0};
    lvr_fit_exit_report report = {0};
    lvr_status st = LVR_OK;
    w.rows = malloc(n * sizeof(*w.rows));
    w.scores = malloc(n * sizeof(*w.scores));
    w.control = malloc(n * sizeof(*w.control));
    w.sorted = malloc(n * sizeof(*w.sorted));
    if (!w.rows || !w.scores || !w.control || !w.sorted)
        st = lvr_fail(err, LVR_ERR_NOMEM, "exit predictor: out of memory for %zu nodes", n);
    if (!st)
        st = fit_layers(&w, &p, &report, err);
    free(w.rows);
    free(w.scores);
    free(w.control);
    free(w.sorted);
    if (st)
        return st;
    *ret = p;
    *ret_report = report;
    return LVR_OK;
}
