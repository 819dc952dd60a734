/* Cost table, schedule and round cost against figures computed by hand. Tolerances: 1e-9 relative, the sums
 * have a handful of terms. */
#include "costmodel/core/cost.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    lvr_geometry_set_resident(&g, 0.5, LVR_RESIDENT_SPREAD);
    int n = 0;
    for (int l = 0; l < 4; l++) {
        n += g.resident[l];
        cr_assert(l == 0 || g.resident[l] != g.resident[l - 1], "alternate");
    }
    cr_assert_eq(n, 2);
    near(lvr_geometry_resident_fraction(&g), 0.5);
    cr_assert_eq(lvr_geometry_stream_bytes(&g), 2 * 8192);
    lvr_geometry_set_resident(&g, 1.0, LVR_RESIDENT_SPREAD);
    cr_assert_eq(lvr_geometry_stream_bytes(&g), 0);
    near(lvr_cost_round_ns(&(lvr_cost_table){0}, &g, 10, 1, 0, 0), 10);
}

Test(core_cost, largest_streamed_layer)
{
    lvr_geometry g = {.n_layers = 3, .layer_bytes = {8192, 12288, 4096}};
    cr_assert_eq(lvr_geometry_largest_streamed(&g), 12288);
    g.resident[1] = true;
    cr_assert_eq(lvr_geometry_largest_streamed(&g), 8192);
    g.resident[0] = g.resident[2] = true;
    cr_assert_eq(lvr_geometry_largest_streamed(&g), 0);
}

Test(core_cost, residency_first_and_last)
{
    static const bool first[] = {true, true, true, false}, last[] = {false, true, true, true};
    lvr_geometry g = schedule(LVR_IO_SERIAL);
    lvr_geometry_set_resident(&g, 0.75, LVR_RESIDENT_FIRST);
    cr_assert_arr_eq(g.resident, first, sizeof first);
    lvr_geometry_set_resident(&g, 0.75, LVR_RESIDENT_LAST);
    cr_assert_arr_eq(g.resident, last, sizeof last);
    for (lvr_residency where = LVR_RESIDENT_FIRST; where <= LVR_RESIDENT_LAST; where++) {
        lvr_geometry_set_resident(&g, 0.0, where);
        cr_assert_eq(lvr_geometry_stream_bytes(&g), 4 * 8192);
        lvr_geometry_set_resident(&g, 1.0, where);
        cr_assert_eq(lvr_geometry_stream_bytes(&g), 0);
    }
}

/* ---- accelerators ---- */

static lvr_cost_table table_with_npu(void)
{
    lvr_cost_table t = table();
    t.npu[LVR_OP_LAYER] = (lvr_npu_cost){
        .n = 2, .bucket = {4, 16}, .ns = {100, 160}, .ctx_ns = 0.5, .launch_ns = 40, .sync_ns = 10};
    return t;
}

Test(core_cost, a_ticket_is_a_stair)
{
    const lvr_cost_table t = table_with_npu();
    const lvr_npu_cost *c = &t.npu[LVR_OP_LAYER];
    near(lvr_npu_run_ns(c, 1, 0), 100);
    near(lvr_npu_run_ns(c, 4, 0), 100);
    near(lvr_npu_run_ns(c, 5, 0), 160);
    near(lvr_npu_run_ns(c, 32, 0), 320);
    near(lvr_npu_run_ns(c, 1, 10), 100 + 0.5 * 4 * 10);
    near(lvr_npu_ticket_ns(c, 16, 0), 40 + 160 + 10);
    cr_assert_eq(lvr_bucket_of(c->bucket, c->n, 17), 17);
    cr_assert(lvr_cost_has_npu(&t));
}

Test(core_cost, the_cheaper_unit)
{
    lvr_cost_table t = table_with_npu();
    lvr_geometry g = schedule(LVR_IO_SERIAL);
    const lvr_op layer = LVR_OP_LAYER;
    /* On the CPU 100 ns for one row, 10 more for each further one; a ticket 150 ns up to four rows, then 210.
     */
    cr_assert_eq(lvr_cost_unit(&t, LVR_PLACE_AUTO, layer, 1, 0), LVR_UNIT_CPU);
    cr_assert_eq(lvr_cost_unit(&t, LVR_PLACE_AUTO, layer, 12, 0), LVR_UNIT_CPU, "210 against 210");
    cr_assert_eq(lvr_cost_unit(&t, LVR_PLACE_AUTO, layer, 13, 0), LVR_UNIT_NPU);
    cr_assert_eq(lvr_cost_unit(&t, LVR_PLACE_CPU, layer, 13, 0), LVR_UNIT_CPU);
    cr_assert_eq(lvr_cost_unit(&t, LVR_PLACE_NPU, layer, 1, 0), LVR_UNIT_NPU);
    cr_assert_eq(lvr_cost_unit(&t, LVR_PLACE_AUTO, LVR_OP_HEAD, 1, 0), LVR_UNIT_CPU, "no terms");
    g.place = LVR_PLACE_AUTO;
    near(lvr_cost_verify_ns(&t, &g, 13, 0), 4 * 210);
    near(lvr_cost_verify_ns(&t, &g, 1, 0), 4 * 100);
    g.place = LVR_PLACE_NPU;
    near(lvr_cost_verify_ns(&t, &g, 1, 0), 4 * 150);
    t.op[layer].curve.n = 0;
    cr_assert_eq(lvr_cost_unit(&t, LVR_PLACE_AUTO, layer, 1, 0), LVR_UNIT_NPU, "all it has");
    t.npu[layer].n = 0;
    cr_assert_not(lvr_cost_has_npu(&t));
}

/* w*: on the CPU 100 ns and 10 a further row, against a ticket of 150 up to four rows, then 210. */
Test(core_cost, crossover)
{
    lvr_cost_table t = table_with_npu();
    cr_assert_eq(lvr_cost_crossover(&t, LVR_OP_LAYER, 0, 64), 13);
    cr_assert_eq(lvr_cost_crossover(&t, LVR_OP_LAYER, 0, 12), 0, "not within so few rows");
    cr_assert_eq(lvr_cost_crossover(&t, LVR_OP_DRAFT, 0, 64), 0, "no terms: never");
    t.npu[LVR_OP_LAYER].launch_ns = 0; /* 110 up to four rows, then 170 */
    cr_assert_eq(lvr_cost_crossover(&t, LVR_OP_LAYER, 0, 64), 3);
    t.npu[LVR_OP_LAYER].sync_ns = 1e6;
    cr_assert_eq(lvr_cost_crossover(&t, LVR_OP_LAYER, 0, 16), 0, "sync counts");
}

Test(core_cost, heads)
{
    lvr_cost_table t = table_with_npu();
    lvr_geometry g = schedule(LVR_IO_SERIAL);
    near(lvr_cost_heads_ns(&t, LVR_HEAD_LAZY, 8, 2.5), 125);
    near(lvr_cost_heads_ns(&t, LVR_HEAD_EAGER, 8, 2.5), 400); /* one knot: once a row */
    t.op[LVR_OP_HEAD].curve = (lvr_curve){.n = 2, .rows = {1, 9}, .ns = {50, 90}};
    near(lvr_cost_heads_ns(&t, LVR_HEAD_LAZY, 9, 2), 100);
    near(lvr_cost_heads_ns(&t, LVR_HEAD_EAGER, 9, 2), 90);
    const double lazy = lvr_cost_round_ns(&t, &g, 0, 9, 2, 0);
    g.head = LVR_HEAD_EAGER;
    near(lvr_cost_round_ns(&t, &g, 0, 9, 2, 0), lazy - 10);
}

static lvr_status parse(const char *text, lvr_cost_table *ret, lvr_error *err)
{
    lvr_yaml_doc *doc = NULL;
    lvr_status st = lvr_yaml_load_mem("cost.yaml", text, strlen(text), &doc, err);
    if (st == LVR_OK)
        st = lvr_cost_table_from_yaml(lvr_yaml_root(doc), ret, err);
    if (st == LVR_OK)
        st = lvr_yaml_check_used(doc, err);
    lvr_yaml_free(doc);
    return st;
}

static void format(const lvr_cost_table *t, lvr_buf *out)
{
    lvr_yaml_out y;
    lvr_yaml_out_init(&y, out);
    lvr_cost_table_to_yaml(t, &y);
    cr_assert_not(out->failed);
}

/* The text with the first `from` replaced. */
static char *changed(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    char *ret = NULL;
    cr_assert_not_null(at, "no \"%s\" in: %s", from, text);
    cr_assert_gt(asprintf(&ret, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from)), 0);
    return ret;
}

static void refuse(const char *text, const char *from, const char *to, const char *says)
{
    lvr_error err = LVR_ERROR_INIT;
    lvr_cost_table t;
    char *bad = changed(text, from, to);
    cr_assert_eq(parse(bad, &t, &err), LVR_ERR_CONFIG, "%s", bad);
    cr_assert_not_null(strstr(err.msg, says), "expected \"%s\" in: %s", says, err.msg);
    free(bad);
}

Test(core_cost, accelerator_terms_in_yaml)
{
    lvr_cost_table t = table_with_npu(), back;
    lvr_error err = LVR_ERROR_INIT;
    lvr_buf text = LVR_BUF_INIT;
    t.op[LVR_OP_DRAFT] = t.op[LVR_OP_EMBED] = t.op[LVR_OP_COMMIT] = t.op[LVR_OP_PLAN] = t.op[LVR_OP_HEAD];
    format(&t, &text);
    cr_assert_eq(parse(text.data, &back, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(memcmp(&back.npu, &t.npu, sizeof t.npu), 0);
    refuse(text.data, "buckets: [4, 16]", "buckets: [16, 4]", "17");
    refuse(text.data, "buckets: [4, 16]", "buckets: [4]", "1 buckets and 2 ns");
    refuse(text.data, "buckets: [4, 16]", "buckets: []", "buckets");
    refuse(text.data, "launch_ns: 40", "launch_ns: -40", "launch_ns");
    refuse(text.data, "launch_ns: 40", "launch_nz: 40", "launch_ns");
    refuse(text.data, "sync_ns: 10", "sync_ns: 10\n    sink_ns: 10", "sink_ns");
    /* Never run on the CPU: no knots there, but only with accelerator terms. */
    t.op[LVR_OP_LAYER].curve.n = 0;
    lvr_buf_free(&text);
    text = LVR_BUF_INIT;
    format(&t, &text);
    cr_assert_eq(parse(text.data, &back, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(back.op[LVR_OP_LAYER].curve.n, 0);
    lvr_buf_free(&text);
    text = LVR_BUF_INIT;
    t.npu[LVR_OP_LAYER].n = 0;
    format(&t, &text);
    cr_assert_eq(parse(text.data, &back, &err), LVR_ERR_CONFIG);
    lvr_buf_free(&text);
}

Test(core_cost, placement_in_yaml)
{
    lvr_error err = LVR_ERROR_INIT;
    for (int place = 0; place < 3; place++) {
        lvr_geometry g = schedule(LVR_IO_PIPELINED), back;
        lvr_buf text = LVR_BUF_INIT;
        lvr_yaml_out y;
        lvr_yaml_doc *doc = NULL;
        g.place = (lvr_place)place;
        g.place_draft = (lvr_place)(2 - place);
        g.head = place ? LVR_HEAD_EAGER : LVR_HEAD_LAZY;
        lvr_yaml_out_init(&y, &text);
        lvr_geometry_to_yaml(&g, &y);
        cr_assert_eq(strstr(text.data, "place:") != NULL, place != LVR_PLACE_CPU,
                     "files without stay as they were");
        cr_assert_eq(strstr(text.data, "place_draft:") != NULL, g.place_draft != LVR_PLACE_CPU);
        cr_assert_eq(strstr(text.data, "head:") != NULL, place > 0);
        cr_assert_eq(lvr_yaml_load_mem("schedule", text.data, text.len, &doc, &err), LVR_OK, "%s", err.msg);
        cr_assert_eq(lvr_geometry_from_yaml(lvr_yaml_root(doc), &back, &err), LVR_OK, "%s", err.msg);
        cr_assert_eq(back.place, g.place);
        cr_assert_eq(back.place_draft, g.place_draft);
        cr_assert_eq(back.head, g.head);
        lvr_yaml_free(doc);
        lvr_buf_free(&text);
    }
    lvr_place p;
    cr_assert_eq(lvr_place_parse("gpu", &p, &err), LVR_ERR_CONFIG);
    cr_assert_not_null(strstr(err.msg, "gpu"));
    lvr_head head;
    cr_assert_eq(lvr_head_parse("keen", &head, &err), LVR_ERR_CONFIG);
    cr_assert_not_null(strstr(err.msg, "keen"));
}
