/* The simulator's laws (sim/replay.c) under many policies and schedules: they are checked inside each run,
 * which fails if one is broken; here they meet schedules that are unlikely by hand, and text and rows must
 * not depend on any of them. */
#include "../unit/sim_rig.h"
#include "common/rng.h"
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static lvr_geometry random_geometry(lvr_rng *rng)
{
    lvr_geometry g = {.n_layers = 1 + (uint32_t)lvr_rng_below(rng, 9),
                      .slice_bytes = 4096 * (1 + lvr_rng_below(rng, 40)),
                      .ring_slots = 1 + (uint32_t)lvr_rng_below(rng, 6),
                      .io_mode = lvr_rng_below(rng, 2) ? LVR_IO_PIPELINED : LVR_IO_SERIAL};
    for (uint32_t l = 0; l < g.n_layers; l++)
        g.layer_bytes[l] = 4096 * (1 + lvr_rng_below(rng, 100));
    lvr_geometry_set_resident(&g, lvr_rng_below(rng, 3) ? lvr_rng_unit(rng) : 0.0,
                              (lvr_residency)lvr_rng_below(rng, 3));
    return g;
}

static lvr_cost_table random_cost(lvr_rng *rng)
{
    lvr_cost_table t = sim_rig_cost();
    t.flash.depth = 1 + (uint32_t)lvr_rng_below(rng, 8);
    t.flash.t0_ns = lvr_rng_below(rng, 300000);
    t.flash.lane_bytes_per_s = 10000000 + lvr_rng_below(rng, 2000000000);
    t.flash.max_bytes_per_s = t.flash.lane_bytes_per_s + lvr_rng_below(rng, 2000000000);
    t.op[LVR_OP_LAYER].ctx_ns = lvr_rng_unit(rng) * 50;
    return t;
}

Test(sim_laws, hold_whatever_the_schedule)
{
    static const char *const names[] = {"ar", "chain", "lever", "random"};
    lvr_rng rng;
    lvr_rng_init(&rng, 8, "laws");
    lvr_outcome *o = sim_rig_outcome(&sim_rig_default);
    for (int i = 0; i < 60; i++) {
        const lvr_geometry g = random_geometry(&rng);
        const lvr_cost_table t = random_cost(&rng);
        const lvr_policy p = sim_rig_policy(names[i % 4], &t);
        lvr_sim_result r = sim_rig_run(o, &p, &g, &t);
        cr_expect_eq(r.bytes_read % (lvr_geometry_stream_bytes(&g) ? lvr_geometry_stream_bytes(&g) : 1), 0,
                     "whole passes only");
        lvr_sim_result_free(&r);
    }
    lvr_outcome_free(o);
}

/* Which rows are run does not depend on how long anything takes: only on the policy (which here does not
 * price). */
Test(sim_laws, timing_changes_when_never_what)
{
    lvr_rng rng;
    lvr_rng_init(&rng, 9, "laws");
    lvr_outcome *o = sim_rig_outcome(&sim_rig_default);
    const lvr_cost_table t0 = sim_rig_cost();
    const lvr_geometry g0 = sim_rig_geometry(3, 200000, LVR_IO_SERIAL);
    const lvr_policy p = sim_rig_policy("random", &t0);
    lvr_sim_result want = sim_rig_run(o, &p, &g0, &t0);
    for (int i = 0; i < 20; i++) {
        const lvr_geometry g = random_geometry(&rng);
        const lvr_cost_table t = random_cost(&rng);
        lvr_sim_result r = sim_rig_run(o, &p, &g, &t);
        cr_assert_eq(r.n_round_log, want.n_round_log);
        for (size_t k = 0; k < r.n_round_log; k++)
            cr_assert(r.round_log[k].n_rows == want.round_log[k].n_rows &&
                      r.round_log[k].n_accepted == want.round_log[k].n_accepted);
        lvr_sim_result_free(&r);
    }
    lvr_sim_result_free(&want);
    lvr_outcome_free(o);
}

/* ---- the objective at work ---- */

enum { PASS_LAYERS = 3, LAYER_BYTES = 200000 };

/* Mean rows a round of `lever` at its own price, when a pass takes io_ns to read (0: all is resident) and a
 * row of a layer row_ns. */
static double rows_chosen(const lvr_outcome *o, lvr_io_mode mode, double io_ns, double row_ns)
{
    lvr_error err = LVR_ERROR_INIT;
    lvr_cost_table t = sim_rig_cost();
    lvr_geometry g = sim_rig_geometry(PASS_LAYERS, LAYER_BYTES, mode);
    const double rate = io_ns > 0 ? PASS_LAYERS * LAYER_BYTES / io_ns * 1e9 : 1e9;
    lvr_geometry_set_resident(&g, io_ns > 0 ? 0.0 : 1.0, LVR_RESIDENT_FIRST);
    t.flash =
        (lvr_flash_params){.lane_bytes_per_s = (uint64_t)rate, .max_bytes_per_s = (uint64_t)rate, .depth = 1};
    t.op[LVR_OP_LAYER].curve = (lvr_curve){.n = 2, .rows = {1, 2}, .ns = {1e5, 1e5 + row_ns}};
    lvr_policy p = sim_rig_policy("lever", &t);
    const lvr_sim_config c = {
        .policy = &p, .geometry = &g, .cost = &t, .conditions = sim_rig_conditions(), .outcome = o};
    lvr_sim_result r = {0};
    cr_assert_eq(lvr_sim_run_at_own_price(&c, &p, &r, &err), LVR_OK, "%s", err.msg);
    const double rows = (double)r.verified_rows / (double)r.rounds;
    lvr_sim_result_free(&r);
    return rows;
}

/* Without reading there is one objective, that of compute. As reading grows the trees do, until compute
 * prices them: dear rows stay fewer than cheap ones however slow the flash. The price is found to a
 * thousandth, so that a few rows of many may be missed. */
Test(sim_laws, trees_grow_with_reading_until_compute_prices_them)
{
    const double cheap_ns = 5e3, dear_ns = 1e5, slow_ns = 1e8;
    lvr_outcome *o = sim_rig_outcome(&sim_rig_default);
    const double first = rows_chosen(o, LVR_IO_SERIAL, 0, cheap_ns);
    cr_expect_eq(rows_chosen(o, LVR_IO_PIPELINED, 0, cheap_ns), first);
    for (int mode = 0; mode < 2; mode++) {
        double last = first;
        for (double io_ns = 1e4; io_ns < 2 * slow_ns; io_ns *= 10) {
            const double rows = rows_chosen(o, (lvr_io_mode)mode, io_ns, cheap_ns);
            cr_expect_geq(rows, 0.98 * last, "mode %d: %g rows at %g ns of reading, %g before", mode, rows,
                          io_ns, last);
            last = rows;
        }
        cr_expect_gt(last, 2 * first, "mode %d: from %g rows to %g", mode, first, last);
        cr_expect_lt(rows_chosen(o, (lvr_io_mode)mode, slow_ns / 10, dear_ns), 0.7 * last, "mode %d", mode);
    }
    lvr_outcome_free(o);
}
