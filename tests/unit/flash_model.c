/* The flash model: closed form, order, limits, YAML and scaling. */
#include "costmodel/core/flash_model.h"
#include "common/rng.h"
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

static const lvr_flash_params phone = {
    .t0_ns = 230000, .lane_bytes_per_s = 2097152000, .max_bytes_per_s = 2359296000, .depth = 4};

static bool same(const lvr_flash_params *a, const lvr_flash_params *b)
{
    return a->t0_ns == b->t0_ns && a->lane_bytes_per_s == b->lane_bytes_per_s &&
           a->max_bytes_per_s == b->max_bytes_per_s && a->depth == b->depth;
}

/* Rate of back-to-back requests once they have settled, and of all of them. */
static void measure(const lvr_flash_params *p, uint64_t bytes, double *ret_steady, double *ret_all)
{
    /* Whole turns of up to 32 lanes lie between the two, so that the staircase of lane-bound ends does not
     * matter. */
    enum { SETTLED = 960, N = SETTLED + 32 * 96 };
    lvr_flash_state state = {0};
    uint64_t ends[N];
    for (int i = 0; i < N; i++)
        ends[i] = lvr_flash_admit(&state, p, 0, bytes).end_ns;
    *ret_steady = (double)bytes * (N - SETTLED) * 1e9 / (double)(ends[N - 1] - ends[SETTLED - 1]);
    *ret_all = (double)bytes * N * 1e9 / (double)ends[N - 1];
}

Test(flash_model, steady_state_is_the_closed_form)
{
    static const uint32_t depths[] = {1, 2, 4, 32};
    static const uint64_t sizes[] = {4096, 65536, 262144, 1 << 20, 16 << 20};
    for (size_t d = 0; d < 4; d++)
        for (size_t s = 0; s < 5; s++) {
            lvr_flash_params p = phone;
            p.depth = depths[d];
            const double lane_s = 230e-6 + (double)sizes[s] / 2097152000.0;
            const double form = fmin(p.depth * (double)sizes[s] / lane_s, 2359296000.0);
            cr_assert_float_eq(lvr_flash_rate_bytes_per_s(&p, sizes[s]), form, form * 1e-12);
            double steady, all;
            measure(&p, sizes[s], &steady, &all);
            /* Times are whole nanoseconds, rounded up: at most 1 ns a request slower. */
            const double rounded = (double)sizes[s] / ((double)sizes[s] / form + 1e-9);
            cr_assert(steady >= rounded * (1 - 1e-9) && steady <= form * (1 + 1e-9),
                      "depth %u, %g: %g, not %g", p.depth, (double)sizes[s], steady, form);
            cr_assert(all <= form, "depth %u, %g: faster than the device", p.depth, (double)sizes[s]);
        }
}

Test(flash_model, one_request_takes_latency_and_transfer)
{
    lvr_flash_state state = {0};
    const lvr_flash_params p = {
        .t0_ns = 100000, .lane_bytes_per_s = 1000000000, .max_bytes_per_s = 1000000000, .depth = 2};
    const lvr_flash_times t = lvr_flash_admit(&state, &p, 5000, 4096);
    cr_assert_eq(t.start_ns, 5000);
    cr_assert_eq(t.end_ns, 5000 + 100000 + 4096);
}

Test(flash_model, depth_limits_what_is_served_at_once)
{
    lvr_flash_state state = {0};
    lvr_flash_params p = phone;
    p.depth = 2;
    const lvr_flash_times a = lvr_flash_admit(&state, &p, 0, 4096);
    const lvr_flash_times b = lvr_flash_admit(&state, &p, 0, 4096);
    const lvr_flash_times c = lvr_flash_admit(&state, &p, 0, 4096);
    cr_assert_eq(a.start_ns, 0);
    cr_assert_eq(b.start_ns, 0);
    cr_assert_eq(c.start_ns, a.end_ns);
}

Test(flash_model, an_idle_device_starts_at_once)
{
    lvr_flash_state state = {0};
    lvr_flash_admit(&state, &phone, 0, 1 << 20);
    cr_assert_eq(lvr_flash_admit(&state, &phone, 1000000000, 4096).start_ns, 1000000000);
}

Test(flash_model, any_traffic_keeps_the_laws)
{
    lvr_rng rng;
    lvr_rng_init(&rng, 1, "flash-model-test");
    lvr_flash_state state = {0};
    uint64_t now = 0, last_start = 0, total = 0, last_end = 0;
    for (int i = 0; i < 20000; i++) {
        now += lvr_rng_below(&rng, 400000);
        const uint64_t bytes = 4096 * (1 + lvr_rng_below(&rng, 512));
        const lvr_flash_times t = lvr_flash_admit(&state, &phone, now, bytes);
        total += bytes;
        cr_assert(t.start_ns >= now && t.start_ns >= last_start);
        cr_assert((double)(t.end_ns - t.start_ns) >= 230000 + (double)bytes / 2.097152);
        last_start = t.start_ns;
        last_end = t.end_ns > last_end ? t.end_ns : last_end;
        cr_assert((double)total <= 2.359296 * (double)last_end, "request %d: more than the link carries", i);
    }
}

Test(flash_model, sizes_and_times_without_bound_saturate)
{
    lvr_flash_state state = {0};
    const lvr_flash_params slow = {.t0_ns = 1, .lane_bytes_per_s = 1, .max_bytes_per_s = 1, .depth = 1};
    cr_assert_eq(lvr_flash_admit(&state, &slow, 0, UINT64_MAX).end_ns, UINT64_MAX);
    cr_assert_eq(lvr_flash_admit(&state, &slow, 0, UINT64_MAX).end_ns, UINT64_MAX);
    lvr_flash_state exact = {0};
    const lvr_flash_params fast = {
        .t0_ns = 0, .lane_bytes_per_s = 1000000000000, .max_bytes_per_s = 1000000000000, .depth = 1};
    /* The product bytes * 1e9 needs more than 64 bits. */
    cr_assert_eq(lvr_flash_admit(&exact, &fast, 0, UINT64_C(1) << 50).end_ns, (UINT64_C(1) << 50) / 1000 + 1);
}

Test(flash_model, nothing_read_is_no_rate)
{
    cr_assert_eq(lvr_flash_rate_bytes_per_s(&phone, 0), 0);
}

Test(flash_model, scaling_keeps_ratios)
{
    lvr_flash_params p = phone;
    cr_assert_eq(lvr_flash_params_scale(&p, 0.25, NULL), LVR_OK);
    cr_assert_eq(p.t0_ns, 920000);
    cr_assert_eq(p.depth, phone.depth);
    for (uint64_t bytes = 4096; bytes <= 16 << 20; bytes *= 4)
        cr_assert_float_eq(lvr_flash_rate_bytes_per_s(&p, bytes) / lvr_flash_rate_bytes_per_s(&phone, bytes),
                           0.25, 1e-6);
}

Test(flash_model, scaling_never_speeds_up_and_fails_cleanly)
{
    static const double bad[] = {0, -1, 1.0001, 1e300, NAN, INFINITY, 1e-5, 1e-12, 1e-300};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        lvr_flash_params p = phone;
        lvr_error err = LVR_ERROR_INIT;
        cr_assert_eq(lvr_flash_params_scale(&p, bad[i], &err), LVR_ERR_CONFIG, "%g", bad[i]);
        cr_assert(same(&p, &phone));
        cr_assert(strlen(err.msg) > 0);
    }
    lvr_flash_params tiny = {.t0_ns = 0, .lane_bytes_per_s = 10, .max_bytes_per_s = 20, .depth = 1};
    cr_assert_eq(lvr_flash_params_scale(&tiny, 0.01, NULL), LVR_ERR_CONFIG);
}

static lvr_status from_text(const char *text, lvr_flash_params *ret, lvr_error *err)
{
    lvr_yaml_doc *doc = NULL;
    lvr_status status = lvr_yaml_load_mem("test.yaml", text, strlen(text), &doc, err);
    if (status == LVR_OK)
        status = lvr_flash_params_from_yaml(lvr_yaml_root(doc), ret, err);
    if (status == LVR_OK)
        status = lvr_yaml_check_used(doc, err);
    lvr_yaml_free(doc);
    return status;
}

Test(flash_model, yaml_round_trip)
{
    lvr_buf text = LVR_BUF_INIT;
    lvr_yaml_out y;
    lvr_yaml_out_init(&y, &text);
    lvr_flash_params_to_yaml(&phone, &y);
    cr_assert(!text.failed);
    lvr_flash_params back = {0};
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(from_text(text.data, &back, &err), LVR_OK, "%s", err.msg);
    cr_assert(same(&back, &phone));
    lvr_buf_free(&text);
}

Test(flash_model, contradictions_are_refused_with_a_position)
{
    static const char *const bad[] = {
        "t0_ns: 1\nlane_bytes_per_s: 2000\nmax_bytes_per_s: 1000\ndepth: 1\n", /* lane above max */
        "t0_ns: 1\nlane_bytes_per_s: 1000\nmax_bytes_per_s: 1000\ndepth: 0\n",
        "t0_ns: 1\nlane_bytes_per_s: 1000\nmax_bytes_per_s: 1000\ndepth: 65\n",
        "t0_ns: 1\nlane_bytes_per_s: 0\nmax_bytes_per_s: 1000\ndepth: 1\n",
        "t0_ns: 1\nlane_bytes_per_s: 1000\nmax_bytes_per_s: 0\ndepth: 1\n",
        "t0_ns: -1\nlane_bytes_per_s: 1000\nmax_bytes_per_s: 1000\ndepth: 1\n",
        "t0_ns: 20000000000\nlane_bytes_per_s: 1000\nmax_bytes_per_s: 1000\ndepth: 1\n",
        "lane_bytes_per_s: 1000\nmax_bytes_per_s: 1000\ndepth: 1\n", /* no t0_ns */
        "t0_ns: 1\nlane_bytes_per_s: 1000\nmax_bytes_per_s: 1000\ndepth: 1\nlanes: 2\n",
        "t0_ns: 1\nlane_bytes_per_s: .nan\nmax_bytes_per_s: 1000\ndepth: 1\n",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        lvr_flash_params p = phone;
        lvr_error err = LVR_ERROR_INIT;
        cr_assert_eq(from_text(bad[i], &p, &err), LVR_ERR_CONFIG, "case %zu", i);
        cr_assert(strstr(err.msg, "test.yaml:") != NULL, "case %zu: %s", i, err.msg);
    }
}
