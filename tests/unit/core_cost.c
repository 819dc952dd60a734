/* Cost table, schedule and round cost against figures computed by hand. Tolerances: 1e-9 relative, the sums
 * have a handful of terms. */
#include "costmodel/core/cost.h"

#include <criterion/criterion.h>
#include <math.h>

static lvr_cost_table table(void)
{
    lvr_cost_table t = {0};
    t.op[LVR_OP_LAYER].curve = (lvr_curve){.n = 2, .rows = {1, 11}, .ns = {100, 200}};
    t.op[LVR_OP_HEAD].curve = (lvr_curve){.n = 1, .rows = {1}, .ns = {50}};
    t.op[LVR_OP_DRAFT].curve = (lvr_curve){.n = 1, .rows = {1}, .ns = {30}};
    t.flash = (lvr_flash_params){
        .t0_ns = 0, .lane_bytes_per_s = 1000000000, .max_bytes_per_s = 1000000000, .depth = 1};
    return t;
}

static lvr_geometry schedule(lvr_io_mode mode)
{
    lvr_geometry g = {.n_layers = 4, .slice_bytes = 4096, .ring_slots = 2, .io_mode = mode};
    for (int l = 0; l < 4; l++)
        g.layer_bytes[l] = 8192;
    return g;
}

static void near(double got, double want)
{
    cr_assert(fabs(got - want) <= 1e-9 * fabs(want), "got %.12g, expected %.12g", got, want);
}

Test(core_cost, curve_interpolates_and_extends)
{
    const lvr_curve c = {.n = 3, .rows = {1, 3, 5}, .ns = {10, 20, 60}};
    near(lvr_curve_ns(&c, 1), 10);
    near(lvr_curve_ns(&c, 2), 15);
    near(lvr_curve_ns(&c, 4), 40);
    near(lvr_curve_ns(&c, 7), 100);
    const lvr_curve falling = {.n = 2, .rows = {1, 2}, .ns = {10, 1}};
    cr_assert_eq(lvr_curve_ns(&falling, 100), 0.0, "never negative");
    const lvr_op_cost op = {.curve = c, .ctx_ns = 0.5};
    near(lvr_op_cost_ns(&op, 3, 10), 20 + 0.5 * 3 * 10);
}

Test(core_cost, round_cost_of_both_schedules)
{
    const lvr_cost_table t = table();
    lvr_geometry g = schedule(LVR_IO_SERIAL);
    const double io = 4 * 8192.0; /* 1 byte a ns */
    near(lvr_cost_io_ns(&t, &g), io);
    near(lvr_cost_verify_ns(&t, &g, 1, 0), 400);
    near(lvr_cost_round_ns(&t, &g, 30, 1, 1, 0), 30 + 50 + io + 400);
    g.io_mode = LVR_IO_PIPELINED;
    /* draft and head run while the ring fills: only that much of the reading is hidden */
    near(lvr_cost_round_ns(&t, &g, 30, 1, 1, 0), 80 + (io - 80));
    /* a draft longer than it takes to fill the ring (16384 ns) hides no more than that */
    near(lvr_cost_round_ns(&t, &g, 20000, 1, 1, 0), 20050 + (io - 16384));
    /* compute longer than reading */
    near(lvr_cost_round_ns(&t, &g, 0, 1101, 0, 0), 4 * 11100.0);
}

Test(core_cost, io_share_is_of_the_serial_pass)
{
    const lvr_cost_table t = table();
    const lvr_geometry g = schedule(LVR_IO_PIPELINED);
    near(lvr_cost_io_share(&t, &g, 0), 32768.0 / (32768 + 400 + 50));
}

Test(core_cost, residency_is_spread)
{
    lvr_geometry g = schedule(LVR_IO_SERIAL);
    lvr_geometry_set_resident(&g, 0.5);
    int n = 0;
    for (int l = 0; l < 4; l++) {
        n += g.resident[l];
        cr_assert(l == 0 || g.resident[l] != g.resident[l - 1], "alternate");
    }
    cr_assert_eq(n, 2);
    near(lvr_geometry_resident_fraction(&g), 0.5);
    cr_assert_eq(lvr_geometry_stream_bytes(&g), 2 * 8192);
    lvr_geometry_set_resident(&g, 1.0);
    cr_assert_eq(lvr_geometry_stream_bytes(&g), 0);
    near(lvr_cost_round_ns(&(lvr_cost_table){0}, &g, 10, 1, 0, 0), 10);
}
