/* Small statistics: quantiles, means, paired differences. Inputs are not modified. Units are the caller's. */
#ifndef LVR_COMMON_STATS_H
#define LVR_COMMON_STATS_H

#include <stddef.h>
#include <stdint.h>

double lvr_mean(const double *x, size_t n);   /* NaN for n = 0, as all below */
double lvr_stddev(const double *x, size_t n); /* sample, n - 1 */
/* Linear interpolation between order statistics (type 7). Sorts a copy: O(n log n); NaN if out of memory. */
double lvr_quantile(const double *x, size_t n, double q);
double lvr_median(const double *x, size_t n);
double lvr_geomean(const double *x, size_t n); /* all x > 0, else NaN */

typedef struct lvr_interval {
    double mean, lo, hi;
} lvr_interval;
/* Mean of x and its 95 % percentile-bootstrap interval; deterministic in `seed`. */
lvr_interval lvr_bootstrap_mean(const double *x, size_t n, unsigned n_resamples, uint64_t seed);

#endif
