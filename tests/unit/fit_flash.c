/* The flash fit gives back the parameters that made the data, from the submission patterns the engine
 * produces. */
#include "common/rng.h"
#include "costmodel/fit/fit_parts.h"
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

/* A ring of `slots` layers of `slices` reads each, recorded on a device of known parameters: a layer's reads
 * are submitted when a slot is free and compute takes compute_ns a layer. noise: each read is slower by a
 * half-normal factor of this size. */
static size_t record(const lvr_flash_params *p, size_t n, uint32_t slots, uint32_t slices, uint64_t bytes,
                     uint64_t compute_ns, double noise, lvr_flash_sample *s)
{
    lvr_flash_state state = {0};
    lvr_rng rng;
    lvr_rng_init(&rng, 3, "flash");
    uint64_t *done = calloc(n / slices + 1, sizeof(*done));
    cr_assert_not_null(done);
    uint64_t free_ns = 0;
    size_t k = 0;
    for (size_t layer = 0; (layer + 1) * slices <= n; layer++) {
        const uint64_t submit = layer < slots ? 0 : done[layer - slots];
        uint64_t ready = 0;
        for (uint32_t i = 0; i < slices; i++, k++) {
            const uint64_t size = i + 1 == slices ? bytes / 2 + 4096 : bytes;
            const double jitter = 1.0 + noise * fabs(lvr_rng_normal(&rng));
            const lvr_flash_params slow = {.t0_ns = (uint64_t)((double)p->t0_ns * jitter),
                                           .lane_bytes_per_s =
                                               (uint64_t)((double)p->lane_bytes_per_s / jitter),
                                           .max_bytes_per_s = (uint64_t)((double)p->max_bytes_per_s / jitter),
                                           .depth = p->depth};
            const lvr_flash_times t = lvr_flash_admit(&state, &slow, submit, size);
            s[k] = (lvr_flash_sample){.submit_ns = submit, .end_ns = t.end_ns, .bytes = size};
            for (uint32_t lane = 0; lane < p->depth; lane++)
                s[k].in_flight += state.lane_free_ns[lane] > t.start_ns;
            ready = t.end_ns > ready ? t.end_ns : ready;
        }
        free_ns = (ready > free_ns ? ready : free_ns) + compute_ns;
        done[layer] = free_ns;
    }
    free(done);
    return k;
}

/* Relative distance of rates over the sizes and of single-request times. */
static double distance(const lvr_flash_params *a, const lvr_flash_params *b, uint64_t bytes)
{
    lvr_flash_state sa = {0}, sb = {0};
    const double ta = (double)lvr_flash_admit(&sa, a, 0, bytes).end_ns,
                 tb = (double)lvr_flash_admit(&sb, b, 0, bytes).end_ns;
    const double ra = lvr_flash_rate_bytes_per_s(a, bytes), rb = lvr_flash_rate_bytes_per_s(b, bytes);
    return fmax(fabs(ta / tb - 1.0), fabs(ra / rb - 1.0));
}

static lvr_flash_params fit(const lvr_flash_sample *s, size_t n, lvr_fit_term *term)
{
    lvr_error err = LVR_ERROR_INIT;
    lvr_flash_params p = {0};
    cr_assert_eq(lvr_fit_flash(s, n, &p, term, &err), LVR_OK, "%s", err.msg);
    return p;
}

Test(fit_flash, one_lane_is_recovered)
{
    const lvr_flash_params truth = {
        .t0_ns = 230000, .lane_bytes_per_s = 2000000000, .max_bytes_per_s = 2300000000, .depth = 1};
    lvr_flash_sample s[600];
    lvr_fit_term term;
    const size_t n = record(&truth, 600, 2, 3, 1u << 20, 300000, 0.0, s);
    const lvr_flash_params p = fit(s, n, &term);
    cr_expect_eq(p.depth, 1);
    cr_expect_lt(fabs((double)p.t0_ns / (double)truth.t0_ns - 1.0), 0.05, "t0 %lu", p.t0_ns);
    cr_expect_lt(distance(&p, &truth, 1u << 20), 0.01);
    cr_expect_lt(distance(&p, &truth, 1u << 18), 0.02);
    cr_expect_lt(term.p99, 0.02);
}

Test(fit_flash, several_lanes_behind_a_link_are_recovered)
{
    const lvr_flash_params truth = {
        .t0_ns = 150000, .lane_bytes_per_s = 900000000, .max_bytes_per_s = 2250000000, .depth = 4};
    lvr_flash_sample s[800];
    lvr_fit_term term;
    const size_t n = record(&truth, 800, 2, 8, 1u << 20, 2000000, 0.0, s);
    const lvr_flash_params p = fit(s, n, &term);
    cr_expect_eq(p.depth, 4, "depth %u", p.depth);
    cr_expect_lt(distance(&p, &truth, 1u << 20), 0.01, "t0 %lu lane %lu max %lu", p.t0_ns, p.lane_bytes_per_s,
                 p.max_bytes_per_s);
    cr_expect_lt(fabs((double)p.max_bytes_per_s / (double)truth.max_bytes_per_s - 1.0), 0.02);
    cr_expect_lt(term.p90, 0.02);
}

Test(fit_flash, skewed_noise_moves_the_mean_only)
{
    const lvr_flash_params truth = {
        .t0_ns = 100000, .lane_bytes_per_s = 1000000000, .max_bytes_per_s = 1500000000, .depth = 2};
    lvr_flash_sample s[2000];
    lvr_fit_term term;
    const size_t n = record(&truth, 2000, 2, 2, 1u << 20, 1000000, 0.05, s);
    const lvr_flash_params p = fit(s, n, &term);
    /* The mean of |N(0, 1)| is 0.8: reads are 4 % longer on average. */
    cr_expect_lt(
        fabs(lvr_flash_rate_bytes_per_s(&p, 1u << 20) * 1.04 / lvr_flash_rate_bytes_per_s(&truth, 1u << 20) -
             1.0),
        0.03);
    cr_expect_lt(fabs(term.bias), 0.005, "bias %g", term.bias);
}

Test(fit_flash, long_recordings_are_fitted_on_stretches)
{
    enum { N = 20000 };
    const lvr_flash_params truth = {
        .t0_ns = 80000, .lane_bytes_per_s = 700000000, .max_bytes_per_s = 1400000000, .depth = 4};
    lvr_flash_sample *s = calloc(N, sizeof(*s));
    lvr_fit_term term;
    const size_t n = record(&truth, N, 3, 4, 1u << 19, 500000, 0.0, s);
    const lvr_flash_params p = fit(s, n, &term);
    free(s);
    cr_expect_lt(distance(&p, &truth, 1u << 19), 0.02);
    cr_expect_eq(term.n, n);
}

Test(fit_flash, impossible_reads_are_refused)
{
    const lvr_flash_sample backwards = {.submit_ns = 10, .end_ns = 5, .bytes = 4096, .in_flight = 1};
    lvr_error err = LVR_ERROR_INIT;
    lvr_flash_params p = {.depth = 77};
    lvr_fit_term term;
    cr_expect_eq(lvr_fit_flash(&backwards, 1, &p, &term, &err), LVR_ERR_FORMAT);
    cr_expect_eq(lvr_fit_flash(&backwards, 0, &p, &term, &err), LVR_ERR_FORMAT);
    cr_expect_eq(p.depth, 77, "outputs are untouched on failure");
}
