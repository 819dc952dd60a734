/*
 * Operator times: a linear spline in rows and a context term.
 *
 * Times are right-skewed (the scheduler only ever adds) and spread in proportion to their size. So the shape
 * comes from a robust regression of relative residuals, which a preempted call cannot bend, and is then
 * scaled to the mean, delays included, because a run's length is a sum and sums follow means, not medians.
 * (Measured on a machine with four times as many runnable threads as cores, held-out prompts: bounding
 * samples at 8 times the shape gave tokens/s 4.9 % too high, not bounding them 0.5 %.) The only bound left is
 * beyond what a scheduler does to a running program: a suspended one must not become part of a model.
 */
#include "costmodel/fit/fit_parts.h"

#include "common/stats.h"

#include <gsl/gsl_errno.h>
#include <gsl/gsl_multifit.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_BINS = 20,
    BIN_SAMPLES = 512, /* per bin in the regression: more does not change a shape, but costs time */
    ROBUST_ITERATIONS = 200,
};

/* Samples that a bin's own mean must outweigh before it counts against the mean of all bins. */
static const double BIN_PRIOR = 64.0;

static const uint32_t ladder[MAX_BINS] = {1,  2,  3,  4,   6,   8,   12,  16,   24,   32,
                                          48, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096};
_Static_assert(MAX_BINS <= LVR_CURVE_MAX_KNOTS, "a curve holds all bins");

typedef struct bin {
    size_t first, n; /* in the sorted samples */
    double median_ns;
    double knot;
} bin;

typedef struct indexed_sample {
    lvr_op_sample s;
    size_t order;
} indexed_sample;

static int by_rows(const void *a, const void *b)
{
    const indexed_sample *x = a, *y = b;
    if (x->s.rows != y->s.rows)
        return x->s.rows < y->s.rows ? -1 : 1;
    return x->order < y->order ? -1 : x->order > y->order;
}

static indexed_sample *sorted_copy(const lvr_op_sample *samples, size_t n)
{
    indexed_sample *s = calloc(n, sizeof(*s));
    if (!s)
        return NULL;
    for (size_t i = 0; i < n; i++)
        s[i] = (indexed_sample){.s = samples[i], .order = i};
    qsort(s, n, sizeof(*s), by_rows);
    return s;
}

/* The rung nearest to `rows` by ratio. */
static uint32_t rung_of(uint32_t rows)
{
    uint32_t k = 0;
    while (k + 1 < MAX_BINS && (double)rows * rows > (double)ladder[k] * ladder[k + 1])
        k++;
    return k;
}

static double median_ns(const indexed_sample *s, size_t n, double *scratch)
{
    for (size_t i = 0; i < n; i++)
        scratch[i] = s[i].s.ns;
    return lvr_median(scratch, n);
}

/* Groups the samples by rung; every bin holds at least one sample and its knot is the rows of its middle
 * sample, so that every knot is supported by data. Returns the number of bins. */
static uint32_t make_bins(const indexed_sample *s, size_t n, double *scratch, bin ret[MAX_BINS])
{
    uint32_t n_bins = 0;
    size_t i = 0;
    while (i < n) {
        const uint32_t rung = rung_of(s[i].s.rows);
        size_t end = i;
        while (end < n && rung_of(s[end].s.rows) == rung)
            end++;
        bin *b = &ret[n_bins++];
        *b = (bin){.first = i, .n = end - i, .knot = s[i + (end - i) / 2].s.rows};
        b->median_ns = median_ns(&s[i], end - i, scratch);
        i = end;
    }
    return n_bins;
}

/* Weights of the two knots around `rows` (linear inside, extended outside, as lvr_curve_ns evaluates).
 * Returns the left knot. */
static uint32_t hat(const bin *bins, uint32_t n_bins, double rows, double *ret_left, double *ret_right)
{
    if (n_bins == 1) {
        *ret_left = 1.0;
        *ret_right = 0.0;
        return 0;
    }
    uint32_t k = 0;
    while (k + 2 < n_bins && rows > bins[k + 1].knot)
        k++;
    *ret_right = (rows - bins[k].knot) / (bins[k + 1].knot - bins[k].knot);
    *ret_left = 1.0 - *ret_right;
    return k;
}

static size_t stride_of(const bin *b)
{
    return (b->n + BIN_SAMPLES - 1) / BIN_SAMPLES;
}

static size_t regression_rows(const bin *bins, uint32_t n_bins)
{
    size_t n = 0;
    for (uint32_t k = 0; k < n_bins; k++)
        n += (bins[k].n + stride_of(&bins[k]) - 1) / stride_of(&bins[k]);
    return n;
}

/* Rows of the design matrix, each divided by its bin's median, so that residuals are relative. ctx_unit
 * scales the context column to the size of the others; 0 leaves it out. */
static void fill_design(const indexed_sample *s, const bin *bins, uint32_t n_bins, double ctx_unit,
                        gsl_matrix *x, gsl_vector *y)
{
    size_t row = 0;
    gsl_matrix_set_zero(x);
    for (uint32_t k = 0; k < n_bins; k++) {
        const double scale = 1.0 / fmax(bins[k].median_ns, 1.0);
        for (size_t i = 0; i < bins[k].n; i += stride_of(&bins[k])) {
            const lvr_op_sample *p = &s[bins[k].first + i].s;
            double left, right;
            const uint32_t at = hat(bins, n_bins, p->rows, &left, &right);
            gsl_matrix_set(x, row, at, left * scale);
            if (n_bins > 1)
                gsl_matrix_set(x, row, at + 1, right * scale);
            if (ctx_unit > 0)
                gsl_matrix_set(x, row, n_bins, (double)p->rows * p->context / ctx_unit * scale);
            gsl_vector_set(y, row, p->ns * scale);
            row++;
        }
    }
}

/* One robust regression; coef[n_bins + (ctx_unit > 0)]. */
static lvr_status regress(const indexed_sample *s, const bin *bins, uint32_t n_bins, double ctx_unit,
                          double *coef, lvr_error *err)
{
    const size_t p = n_bins + (ctx_unit > 0 ? 1 : 0), m = regression_rows(bins, n_bins);
    lvr_status st = LVR_OK;
    gsl_multifit_robust_workspace *w = NULL;
    gsl_matrix *x = gsl_matrix_alloc(m, p), *cov = gsl_matrix_alloc(p, p);
    gsl_vector *y = gsl_vector_alloc(m), *c = gsl_vector_alloc(p);
    if (x && cov && y && c)
        w = gsl_multifit_robust_alloc(gsl_multifit_robust_bisquare, m, p);
    if (!w) {
        st = lvr_fail(err, LVR_ERR_NOMEM, "fit: out of memory for a regression of %zu samples", m);
        goto out;
    }
    fill_design(s, bins, n_bins, ctx_unit, x, y);
    gsl_multifit_robust_maxiter(ROBUST_ITERATIONS, w);
    const int rc = gsl_multifit_robust(x, y, c, cov, w);
    /* Not converged after many iterations still is the last, good, iterate. */
    if (rc != GSL_SUCCESS && rc != GSL_EMAXITER) {
        st = lvr_fail(err, LVR_ERR_FORMAT, "fit: the regression of %zu samples failed: %s", m,
                      gsl_strerror(rc));
        goto out;
    }
    for (size_t i = 0; i < p; i++)
        coef[i] = gsl_vector_get(c, i);
out:
    if (w)
        gsl_multifit_robust_free(w);
    if (x)
        gsl_matrix_free(x);
    if (cov)
        gsl_matrix_free(cov);
    if (y)
        gsl_vector_free(y);
    if (c)
        gsl_vector_free(c);
    return st;
}

/* Regression needs more samples than unknowns; below that, medians are all that can be said. */
static void medians(const bin *bins, uint32_t n_bins, double *coef)
{
    for (uint32_t k = 0; k < n_bins; k++)
        coef[k] = bins[k].median_ns;
    coef[n_bins] = 0.0;
}

/* The size of the context column, or 0 if context hardly varies among samples of like rows: its price could
 * not be told from the spline's (a prompt in one pass at position 0, say, and all rounds far behind it). */
static double context_unit(const indexed_sample *s, const bin *bins, uint32_t n_bins)
{
    double largest = 0;
    bool varies = false;
    for (uint32_t k = 0; k < n_bins; k++) {
        double lo = INFINITY, hi = 0;
        for (size_t i = bins[k].first; i < bins[k].first + bins[k].n; i++) {
            const double ctx = s[i].s.context;
            lo = fmin(lo, ctx);
            hi = fmax(hi, ctx);
            largest = fmax(largest, ctx * s[i].s.rows);
        }
        varies = varies || (hi - lo >= 16.0 && hi > 1.25 * lo);
    }
    return varies ? largest : 0.0;
}

static lvr_status fit_shape(const indexed_sample *s, const bin *bins, uint32_t n_bins, double ctx_unit,
                            double *coef, lvr_error *err)
{
    coef[n_bins] = 0.0;
    if (regression_rows(bins, n_bins) < 2 * (size_t)n_bins + 4) {
        medians(bins, n_bins, coef);
        return LVR_OK;
    }
    lvr_status st = regress(s, bins, n_bins, ctx_unit, coef, err);
    if (st || ctx_unit <= 0)
        return st;
    if (coef[n_bins] >= 0) {
        coef[n_bins] /= ctx_unit;
        return LVR_OK;
    }
    coef[n_bins] = 0.0; /* more context cannot cost less: noise */
    return regress(s, bins, n_bins, 0.0, coef, err);
}

static void to_cost(const bin *bins, uint32_t n_bins, const double *coef, lvr_op_cost *ret)
{
    *ret = (lvr_op_cost){.ctx_ns = coef[n_bins]};
    for (uint32_t k = 0; k < n_bins; k++) {
        ret->curve.rows[k] = (uint32_t)bins[k].knot;
        ret->curve.ns[k] = fmax(coef[k], 0.0);
    }
    ret->curve.n = n_bins;
}

static double predict(const lvr_op_cost *c, const lvr_op_sample *s)
{
    return fmax(lvr_op_cost_ns(c, s->rows, s->context), 1e-3);
}

/* mean / shape over the bin. */
static double mean_ratio(const lvr_op_cost *c, const indexed_sample *s, size_t n)
{
    double measured = 0, predicted = 0;
    for (size_t i = 0; i < n; i++) {
        const double p = predict(c, &s[i].s);
        if (lvr_fit_suspended(s[i].s.ns, p))
            continue;
        measured += s[i].s.ns;
        predicted += p;
    }
    return predicted > 0 ? measured / predicted : 1.0;
}

/* Scales the shape to the mean: each knot by its own bin's ratio, drawn towards the common one where the bin
 * is small. */
static void scale_to_mean(const indexed_sample *s, size_t n, const bin *bins, uint32_t n_bins, lvr_op_cost *c)
{
    const lvr_op_cost shape = *c;
    const double all = mean_ratio(&shape, s, n);
    c->ctx_ns *= all;
    for (uint32_t k = 0; k < n_bins; k++) {
        const double own = mean_ratio(&shape, &s[bins[k].first], bins[k].n);
        const double weight = (double)bins[k].n / ((double)bins[k].n + BIN_PRIOR);
        c->curve.ns[k] *= weight * own + (1.0 - weight) * all;
    }
}

static lvr_status residuals(const lvr_op_cost *c, const indexed_sample *s, size_t n, double *scratch,
                            lvr_fit_term *term, lvr_error *err)
{
    double *measured = calloc(n, sizeof(*measured));
    if (!measured)
        return lvr_fail(err, LVR_ERR_NOMEM, "fit: out of memory for %zu residuals", n);
    for (size_t i = 0; i < n; i++) {
        scratch[i] = predict(c, &s[i].s);
        measured[i] = s[i].s.ns;
    }
    const lvr_status st = lvr_fit_residuals(scratch, measured, n, term, err);
    free(measured);
    return st;
}

lvr_status lvr_fit_op(const lvr_op_sample *samples, size_t n, bool uses_context, lvr_op_cost *ret,
                      lvr_fit_term *ret_term, lvr_error *err)
{
    if (n == 0)
        return lvr_fail(err, LVR_ERR_FORMAT, "fit: no samples");
    lvr_status st = LVR_ERR_NOMEM;
    bin bins[MAX_BINS];
    double coef[MAX_BINS + 1];
    lvr_op_cost cost;
    lvr_fit_term term = {0};
    double *scratch = calloc(n, sizeof(*scratch));
    indexed_sample *s = sorted_copy(samples, n);
    if (!scratch || !s) {
        st = lvr_fail(err, LVR_ERR_NOMEM, "fit: out of memory for %zu samples", n);
        goto out;
    }
    const uint32_t n_bins = make_bins(s, n, scratch, bins);
    st = fit_shape(s, bins, n_bins, uses_context ? context_unit(s, bins, n_bins) : 0.0, coef, err);
    if (st)
        goto out;
    to_cost(bins, n_bins, coef, &cost);
    scale_to_mean(s, n, bins, n_bins, &cost);
    st = residuals(&cost, s, n, scratch, &term, err);
    if (st)
        goto out;
    term.x_min = s[0].s.rows;
    term.x_max = s[n - 1].s.rows;
    *ret = cost;
    *ret_term = term;
out:
    free(s);
    free(scratch);
    return st;
}

bool lvr_fit_suspended(double measured_ns, double predicted_ns)
{
    return measured_ns > fmax(1e9, 16.0 * predicted_ns);
}

lvr_status lvr_fit_residuals(const double *predicted, const double *measured, size_t n, lvr_fit_term *term,
                             lvr_error *err)
{
    double *relative = calloc(n ? n : 1, sizeof(*relative));
    if (!relative)
        return lvr_fail(err, LVR_ERR_NOMEM, "fit: out of memory for %zu residuals", n);
    double sum_p = 0, sum_m = 0;
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        sum_p += predicted[i];
        sum_m += measured[i];
        if (measured[i] > 0)
            relative[used++] = fabs(predicted[i] - measured[i]) / measured[i];
    }
    term->n = n;
    term->p50 = used ? lvr_quantile(relative, used, 0.5) : 0.0;
    term->p90 = used ? lvr_quantile(relative, used, 0.9) : 0.0;
    term->p99 = used ? lvr_quantile(relative, used, 0.99) : 0.0;
    term->bias = sum_m > 0 ? sum_p / sum_m - 1.0 : 0.0;
    free(relative);
    return LVR_OK;
}
