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
