#include "costmodel/core/cost.h"

#include "common/minmax.h"
#include <math.h>
#include <string.h>

static const char *const op_names[LVR_OP_COUNT] = {"draft",  "layer", "head", "embed",
                                                   "commit", "plan",  "score"};

const char *lvr_op_name(lvr_op op)
{
    return (unsigned)op < LVR_OP_COUNT ? op_names[op] : NULL;
}

double lvr_curve_ns(const lvr_curve *c, double rows)
{
    if (c->n == 0)
        return 0.0;
    if (c->n == 1)
        return c->ns[0];
    uint32_t hi = 1; /* the segment (hi - 1, hi); the outer ones are extended */
    while (hi + 1 < c->n && rows > c->rows[hi])
        hi++;
    const double x0 = c->rows[hi - 1], x1 = c->rows[hi];
    const double t = (rows - x0) / (x1 - x0);
    return fmax(0.0, c->ns[hi - 1] + t * (c->ns[hi] - c->ns[hi - 1]));
}

double lvr_op_cost_ns(const lvr_op_cost *c, uint32_t rows, uint32_t context)
{
    return lvr_curve_ns(&c->curve, rows) + c->ctx_ns * (double)rows * (double)context;
}

/* ---- accelerators ---- */

static const char *const place_names[] = {"cpu", "npu", "auto"};
#define N_PLACES (sizeof place_names / sizeof place_names[0])

lvr_status lvr_place_parse(const char *text, lvr_place *ret, lvr_error *err)
{
    for (size_t i = 0; i < N_PLACES; i++) {
        if (strcmp(text, place_names[i]) != 0)
            continue;
        *ret = (lvr_place)i;
        return LVR_OK;
    }
    return lvr_fail(err, LVR_ERR_CONFIG, "placement: expected cpu, npu or auto, found \"%s\"", text);
}

const char *lvr_place_name(lvr_place place)
{
    return (unsigned)place < N_PLACES ? place_names[place] : NULL;
}

lvr_status lvr_head_parse(const char *text, lvr_head *ret, lvr_error *err)
{
    if (strcmp(text, "lazy") == 0)
        *ret = LVR_HEAD_LAZY;
    else if (strcmp(text, "eager") == 0)
        *ret = LVR_HEAD_EAGER;
    else
        return lvr_fail(err, LVR_ERR_CONFIG, "head: expected lazy or eager, found \"%s\"", text);
    return LVR_OK;
}

const char *lvr_head_name(lvr_head head)
{
    return head == LVR_HEAD_EAGER ? "eager" : "lazy";
}

uint32_t lvr_bucket_of(const uint32_t *buckets, uint32_t n, uint32_t rows)
{
    for (uint32_t i = 0; i < n; i++)
        if (rows <= buckets[i])
            return buckets[i];
    return rows;
}

double lvr_npu_run_ns(const lvr_npu_cost *c, uint32_t rows, uint32_t context)
{
    if (c->n == 0)
        return 0.0;
    const uint32_t bucket = lvr_bucket_of(c->bucket, c->n, rows);
    const double attention = c->ctx_ns * (double)bucket * (double)context;
    for (uint32_t i = 0; i < c->n; i++)
        if (c->bucket[i] == bucket)
            return c->ns[i] + attention;
    return c->ns[c->n - 1] * (double)rows / c->bucket[c->n - 1] + attention;
}

double lvr_npu_ticket_ns(const lvr_npu_cost *c, uint32_t rows, uint32_t context)
{
    return c->launch_ns + lvr_npu_run_ns(c, rows, context) + c->sync_ns;
}

lvr_unit lvr_cost_unit(const lvr_cost_table *t, lvr_place place, lvr_op op, uint32_t rows, uint32_t context)
{
    if (place != LVR_PLACE_AUTO)
        return place == LVR_PLACE_NPU ? LVR_UNIT_NPU : LVR_UNIT_CPU;
    if (t->npu[op].n == 0)
        return LVR_UNIT_CPU;
    if (t->op[op].curve.n == 0)
        return LVR_UNIT_NPU;
    return lvr_npu_ticket_ns(&t->npu[op], rows, context) < lvr_op_cost_ns(&t->op[op], rows, context)
               ? LVR_UNIT_NPU
               : LVR_UNIT_CPU;
}

double lvr_cost_op_ns(const lvr_cost_table *t, lvr_place place, lvr_op op, uint32_t rows, uint32_t context)
{
    const bool wanted = lvr_cost_unit(t, place, op, rows, context) == LVR_UNIT_NPU;
    const bool on_npu = t->npu[op].n > 0 && (wanted || t->op[op].curve.n == 0);
    return on_npu ? lvr_npu_ticket_ns(&t->npu[op], rows, context) : lvr_op_cost_ns(&t->op[op], rows, context);
}

bool lvr_cost_has_npu(const lvr_cost_table *t)
{
    for (int op = 0; op < LVR_OP_COUNT; op++)
        if (t->npu[op].n > 0)
            return true;
    return false;
}

uint32_t lvr_cost_crossover(const lvr_cost_table *t, lvr_op op, uint32_t context, uint32_t max_rows)
{
    for (uint32_t rows = 1; rows <= max_rows; rows++)
        if (lvr_cost_unit(t, LVR_PLACE_AUTO, op, rows, context) == LVR_UNIT_NPU)
            return rows;
    return 0;
}

double lvr_cost_heads_ns(const lvr_cost_table *t, lvr_head head, uint32_t rows, double n_heads)
{
    const lvr_op_cost *c = &t->op[LVR_OP_HEAD];
    if (head == LVR_HEAD_EAGER && c->curve.n > 1)
        return lvr_op_cost_ns(c, rows, 0);
    return (head == LVR_HEAD_EAGER ? rows : n_heads) * lvr_op_cost_ns(c, 1, 0);
}

/* ---- schedules ---- */

uint64_t lvr_geometry_stream_bytes(const lvr_geometry *g)
{
    uint64_t sum = 0;
    for (uint32_t l = 0; l < g->n_layers; l++)
        sum += g->resident[l] ? 0 : g->layer_bytes[l];
    return sum;
}

uint64_t lvr_geometry_largest_streamed(const lvr_geometry *g)
{
    uint64_t largest = 0;
    for (uint32_t l = 0; l < g->n_layers; l++)
        if (!g->resident[l])
            largest = lvr_max_u64(largest, g->layer_bytes[l]);
    return largest;
}

static bool stays(lvr_residency where, uint32_t layer, uint32_t want, uint32_t n_layers)
{
    switch (where) {
    case LVR_RESIDENT_FIRST:
        return layer < want;
    case LVR_RESIDENT_LAST:
        return layer >= n_layers - want;
    case LVR_RESIDENT_SPREAD:
        break;
    }
    return (uint64_t)(layer + 1) * want / n_layers != (uint64_t)layer * want / n_layers;
}

void lvr_geometry_set_resident(lvr_geometry *g, double fraction, lvr_residency where)
{
    const uint32_t want = (uint32_t)lround(fmin(1.0, fmax(0.0, fraction)) * g->n_layers);
    for (uint32_t l = 0; l < g->n_layers; l++)
        g->resident[l] = stays(where, l, want, g->n_layers);
}

double lvr_geometry_resident_fraction(const lvr_geometry *g)
{
    uint64_t all = 0, resident = 0;
    for (uint32_t l = 0; l < g->n_layers; l++) {
        all += g->layer_bytes[l];
        resident += g->resident[l] ? g->layer_bytes[l] : 0;
    }
    return all ? (double)resident / (double)all : 0.0;
}

/* A layer read from an idle device, all its slices submitted at once. */
static double layer_read_ns(const lvr_flash_params *p, uint64_t bytes, uint64_t slice_bytes)
{
    lvr_flash_state state = {0};
    uint64_t end = 0;
    for (uint64_t at = 0; at < bytes; at += slice_bytes) {
        const uint64_t n = bytes - at < slice_bytes ? bytes - at : slice_bytes;
        const lvr_flash_times t = lvr_flash_admit(&state, p, 0, n);
        end = t.end_ns > end ? t.end_ns : end;
    }
    return (double)end;
}

double lvr_cost_io_ns(const lvr_cost_table *t, const lvr_geometry *g)
{
    const uint64_t slice = g->slice_bytes;
    if (slice == 0)
        return 0.0;
    double sum = 0.0, last_ns = 0.0;
    uint64_t last_bytes = 0;
    for (uint32_t l = 0; l < g->n_layers; l++) {
        const uint64_t bytes = g->layer_bytes[l];
        if (g->resident[l])
            continue;
        if (g->io_mode == LVR_IO_PIPELINED) {
            const uint64_t request = bytes < slice ? bytes : slice;
            const double rate = lvr_flash_rate_bytes_per_s(&t->flash, request);
            sum += rate > 0.0 ? (double)bytes * 1e9 / rate : 0.0;
            continue;
        }
        if (bytes != last_bytes) { /* layers are mostly alike */
            last_ns = layer_read_ns(&t->flash, bytes, slice);
            last_bytes = bytes;
        }
        sum += last_ns;
    }
    return sum;
}

double lvr_cost_verify_ns(const lvr_cost_table *t, const lvr_geometry *g, uint32_t rows, uint32_t context)
{
    return lvr_op_cost_ns(&t->op[LVR_OP_EMBED], rows, context) +
           g->n_layers * lvr_cost_op_ns(t, g->place, LVR_OP_LAYER, rows, context);
}

lvr_round_pricer lvr_round_pricer_new(const lvr_cost_table *t, const lvr_geometry *g)
{
    lvr_round_pricer p = {.table = t, .geometry = g, .io_ns = lvr_cost_io_ns(t, g)};
    uint32_t n_streamed = 0;
    for (uint32_t l = 0; l < g->n_layers; l++)
        n_streamed += !g->resident[l];
    if (n_streamed > 0)
        p.ring_ns = p.io_ns * fmin(1.0, (double)g->ring_slots / n_streamed);
    return p;
}

double lvr_round_price_ns(const lvr_round_pricer *p, double draft_ns, uint32_t rows, double n_heads,
                          uint32_t context)
{
    const lvr_cost_table *t = p->table;
    const double verify = lvr_cost_verify_ns(t, p->geometry, rows, context);
    const double rest = draft_ns + lvr_cost_heads_ns(t, p->geometry->head, rows, n_heads) +
                        lvr_op_cost_ns(&t->op[LVR_OP_COMMIT], 1, 0);
    if (p->geometry->io_mode == LVR_IO_SERIAL)
        return rest + p->io_ns + verify;
    return rest + fmax(verify, p->io_ns - fmin(p->ring_ns, rest));
}

double lvr_cost_round_ns(const lvr_cost_table *t, const lvr_geometry *g, double draft_ns, uint32_t rows,
                         double n_heads, uint32_t context)
{
    const lvr_round_pricer p = lvr_round_pricer_new(t, g);
    return lvr_round_price_ns(&p, draft_ns, rows, n_heads, context);
}

double lvr_cost_io_share(const lvr_cost_table *t, const lvr_geometry *g, uint32_t context)
{
    lvr_geometry serial = *g;
    serial.io_mode = LVR_IO_SERIAL;
    const double io = lvr_cost_io_ns(t, &serial);
    const double all = io + lvr_cost_verify_ns(t, g, 1, context) + lvr_op_cost_ns(&t->op[LVR_OP_HEAD], 1, 0);
    return all > 0.0 ? io / all : 0.0;
}

/* n numbers that ascend strictly from 1, and as many times. */
static lvr_status knots_from_yaml(const lvr_yaml_node *rows, const lvr_yaml_node *ns, size_t n,
                                  uint32_t *ret_rows, double *ret_ns, lvr_error *err)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t r = 0;
        lvr_status st =
            lvr_yaml_as_u64(lvr_yaml_at(rows, i), i ? ret_rows[i - 1] + 1u : 1u, 1u << 20, &r, err);
        if (st == LVR_OK)
            st = lvr_yaml_as_double(lvr_yaml_at(ns, i), 0.0, 1e15, &ret_ns[i], err);
        if (st != LVR_OK)
            return st;
        ret_rows[i] = (uint32_t)r;
    }
    return LVR_OK;
}

static lvr_status npu_from_yaml(const lvr_yaml_node *map, lvr_npu_cost *ret, lvr_error *err)
{
    lvr_npu_cost c = {0};
    const lvr_yaml_node *buckets = NULL, *ns = NULL;
    lvr_status st = lvr_yaml_get_seq(map, "buckets", &buckets, err);
    if (st == LVR_OK)
        st = lvr_yaml_get_seq(map, "ns", &ns, err);
    if (st == LVR_OK)
        st = lvr_yaml_get_double(map, "ctx_ns", 0.0, 1e12, &c.ctx_ns, err);
    if (st == LVR_OK)
        st = lvr_yaml_get_double(map, "launch_ns", 0.0, 1e12, &c.launch_ns, err);
    if (st == LVR_OK)
        st = lvr_yaml_get_double(map, "sync_ns", 0.0, 1e12, &c.sync_ns, err);
    if (st != LVR_OK)
        return st;
    const size_t n = lvr_yaml_len(buckets);
    if (n == 0 || n > LVR_NPU_MAX_BUCKETS || n != lvr_yaml_len(ns))
        return lvr_fail(err, LVR_ERR_CONFIG,
                        "%s: expected 1 to %u buckets and as many times, found %zu buckets and %zu ns",
                        lvr_yaml_where(map), LVR_NPU_MAX_BUCKETS, n, lvr_yaml_len(ns));
    c.n = (uint32_t)n;
    st = knots_from_yaml(buckets, ns, n, c.bucket, c.ns, err);
    if (st == LVR_OK)
        *ret = c;
    return st;
}

/* An operator that was only ever run on an accelerator has no knots for the CPU. */
static lvr_status op_from_yaml(const lvr_yaml_node *map, lvr_op_cost *ret, lvr_npu_cost *ret_npu,
                               lvr_error *err)
{
    lvr_op_cost c = {0};
    lvr_npu_cost npu = {0};
    const lvr_yaml_node *sub = lvr_yaml_find(map, "npu");
    const lvr_yaml_node *rows = NULL, *ns = NULL;
    lvr_status st = lvr_yaml_get_seq(map, "rows", &rows, err);
    if (st == LVR_OK)
        st = lvr_yaml_get_seq(map, "ns", &ns, err);
    if (st == LVR_OK)
        st = lvr_yaml_get_double(map, "ctx_ns", 0.0, 1e12, &c.ctx_ns, err);
    if (st != LVR_OK)
        return st;
    if (sub && lvr_yaml_node_kind(sub) != LVR_YAML_MAP)
        return lvr_fail(err, LVR_ERR_CONFIG,
                        "%s: expected a mapping (buckets, ns, ctx_ns, launch_ns, sync_ns)",
                        lvr_yaml_where(sub));
    if (sub)
        st = npu_from_yaml(sub, &npu, err);
    if (st != LVR_OK)
        return st;
    const size_t n = lvr_yaml_len(rows);
    if ((n == 0 && npu.n == 0) || n > LVR_CURVE_MAX_KNOTS || n != lvr_yaml_len(ns))
        return lvr_fail(err, LVR_ERR_CONFIG,
                        "%s: expected 1 to %d knots and as many times, found %zu rows and %zu ns",
                        lvr_yaml_where(map), LVR_CURVE_MAX_KNOTS, n, lvr_yaml_len(ns));
    c.curve.n = (uint32_t)n;
    st = knots_from_yaml(rows, ns, n, c.curve.rows, c.curve.ns, err);
    if (st != LVR_OK)
        return st;
    *ret = c;
    *ret_npu = npu;
    return LVR_OK;
}

lvr_status lvr_cost_table_from_yaml(const lvr_yaml_node *map, lvr_cost_table *ret, lvr_error *err)
{
    lvr_cost_table t = {0};
    const lvr_yaml_node *sub = NULL;
    lvr_status st = LVR_OK;
    for (int op = 0; op < LVR_OP_COUNT && st == LVR_OK; op++) {
        if (op == LVR_OP_SCORE && !lvr_yaml_find(map, op_names[op]))
            continue;
        st = lvr_yaml_get_map(map, op_names[op], &sub, err);
        if (st == LVR_OK)
            st = op_from_yaml(sub, &t.op[op], &t.npu[op], err);
    }
    if (st == LVR_OK)
        st = lvr_yaml_get_map(map, "flash", &sub, err);
    if (st == LVR_OK)
        st = lvr_flash_params_from_yaml(sub, &t.flash, err);
    if (st == LVR_OK)
        *ret = t;
    return st;
}

static void npu_to_yaml(const lvr_npu_cost *c, lvr_yaml_out *y)
{
    uint64_t buckets[LVR_NPU_MAX_BUCKETS] = {0};
    for (uint32_t i = 0; i < c->n; i++)
        buckets[i] = c->bucket[i];
    lvr_yaml_out_map(y, "npu");
    lvr_yaml_out_u64s(y, "buckets", buckets, c->n);
    lvr_yaml_out_doubles(y, "ns", c->ns, c->n);
    lvr_yaml_out_double(y, "ctx_ns", c->ctx_ns);
    lvr_yaml_out_double(y, "launch_ns", c->launch_ns);
    lvr_yaml_out_double(y, "sync_ns", c->sync_ns);
    lvr_yaml_out_end(y);
}

void lvr_cost_table_to_yaml(const lvr_cost_table *t, lvr_yaml_out *y)
{
    for (int op = 0; op < LVR_OP_COUNT; op++) {
        const lvr_op_cost *c = &t->op[op];
        uint64_t rows[LVR_CURVE_MAX_KNOTS] = {0};
        if (op == LVR_OP_SCORE && c->curve.n == 0)
            continue;
        for (uint32_t i = 0; i < c->curve.n; i++)
            rows[i] = c->curve.rows[i];
        lvr_yaml_out_map(y, op_names[op]);
        lvr_yaml_out_u64s(y, "rows", rows, c->curve.n);
        lvr_yaml_out_doubles(y, "ns", c->curve.ns, c->curve.n);
        lvr_yaml_out_double(y, "ctx_ns", c->ctx_ns);
        if (t->npu[op].n > 0)
            npu_to_yaml(&t->npu[op], y);
        lvr_yaml_out_end(y);
    }
    lvr_yaml_out_map(y, "flash");
    lvr_flash_params_to_yaml(&t->flash, y);
    lvr_yaml_out_end(y);
}

static lvr_status layers_from_yaml(const lvr_yaml_node *map, lvr_geometry *g, lvr_error *err)
{
    const lvr_yaml_node *bytes = NULL, *resident = NULL;
    lvr_status st = lvr_yaml_get_seq(map, "layer_bytes", &bytes, err);
    if (st == LVR_OK)
        st = lvr_yaml_get_seq(map, "resident", &resident, err);
    if (st != LVR_OK)
        return st;
    const size_t n = lvr_yaml_len(bytes);
    if (n == 0 || n > LVR_MAX_LAYERS || n != lvr_yaml_len(resident))
        return lvr_fail(err, LVR_ERR_CONFIG,
                        "%s: expected 1 to %u layers, each with layer_bytes and resident, found %zu and %zu",
                        lvr_yaml_where(map), LVR_MAX_LAYERS, n, lvr_yaml_len(resident));
    for (size_t l = 0; l < n; l++) {
        uint64_t flag = 0;
        st = lvr_yaml_as_u64(lvr_yaml_at(bytes, l), 1, UINT64_MAX >> 16, &g->layer_bytes[l], err);
        if (st == LVR_OK)
            st = lvr_yaml_as_u64(lvr_yaml_at(resident, l), 0, 1, &flag, err);
        if (st != LVR_OK)
            return st;
        g->resident[l] = flag == 1;
    }
    g->n_layers = (uint32_t)n;
    return LVR_OK;
}

lvr_status lvr_io_mode_parse(const char *text, lvr_io_mode *ret, lvr_error *err)
{
    if (strcmp(text, "serial") == 0)
        *ret = LVR_IO_SERIAL;
    else if (strcmp(text, "pipelined") == 0)
        *ret = LVR_IO_PIPELINED;
    else
        return lvr_fail(err, LVR_ERR_CONFIG, "io mode: expected serial or pipelined, found \"%s\"", text);
    return LVR_OK;
}

const char *lvr_io_mode_name(lvr_io_mode mode)
{
    return mode == LVR_IO_SERIAL ? "serial" : "pipelined";
}

/* Files from before eager heads do not say it. */
static lvr_status head_from_yaml(const lvr_yaml_node *map, lvr_head *ret, lvr_error *err)
{
    const char *text = NULL;
    if (!lvr_yaml_find(map, "head"))
        return LVR_OK;
    lvr_status st = lvr_yaml_get_str(map, "head", &text, err);
    if (st != LVR_OK)
        return st;
    st = lvr_head_parse(text, ret, err);
    if (st != LVR_OK)
        lvr_error_prefix(err, "%s", lvr_yaml_where(map));
    return st;
}

/* Files from before placement, and those without an accelerator, do not say it. */
static lvr_status place_from_yaml(const lvr_yaml_node *map, const char *key, lvr_place *ret, lvr_error *err)
{
    const char *text = NULL;
    if (!lvr_yaml_find(map, key))
        return LVR_OK;
    lvr_status st = lvr_yaml_get_str(map, key, &text, err);
    if (st != LVR_OK)
        return st;
    st = lvr_place_parse(text, ret, err);
    if (st != LVR_OK)
        lvr_error_prefix(err, "%s", lvr_yaml_where(map));
    return st;
}

lvr_status lvr_geometry_from_yaml(const lvr_yaml_node *map, lvr_geometry *ret, lvr_error *err)
{
    lvr_geometry g = {0};
    uint64_t slots = 0;
    const char *mode = NULL;
    lvr_status st = layers_from_yaml(map, &g, err);
    if (st == LVR_OK)
        st = lvr_yaml_get_size(map, "slice_bytes", 4096, LVR_MAX_SLICE_BYTES, &g.slice_bytes, err);
    if (st == LVR_OK)
        st = lvr_yaml_get_u64(map, "ring_slots", 1, LVR_MAX_RING_SLOTS, &slots, err);
    if (st == LVR_OK)
        st = lvr_yaml_get_str(map, "io_mode", &mode, err);
    if (st == LVR_OK) {
        st = lvr_io_mode_parse(mode, &g.io_mode, err);
        if (st != LVR_OK)
            lvr_error_prefix(err, "%s", lvr_yaml_where(map));
    }
    if (st == LVR_OK)
        st = place_from_yaml(map, "place", &g.place, err);
    if (st == LVR_OK)
        st = place_from_yaml(map, "place_draft", &g.place_draft, err);
    if (st == LVR_OK)
        st = head_from_yaml(map, &g.head, err);
    if (st != LVR_OK)
        return st;
    if (g.slice_bytes % 4096 != 0)
        return lvr_fail(err, LVR_ERR_CONFIG, "%s: slice_bytes must be a multiple of 4096, found %llu",
                        lvr_yaml_where(map), (unsigned long long)g.slice_bytes);
    g.ring_slots = (uint32_t)slots;
    *ret = g;
    return LVR_OK;
}

void lvr_geometry_to_yaml(const lvr_geometry *g, lvr_yaml_out *y)
{
    uint64_t resident[LVR_MAX_LAYERS] = {0};
    for (uint32_t l = 0; l < g->n_layers; l++)
        resident[l] = g->resident[l];
    lvr_yaml_out_str(y, "io_mode", lvr_io_mode_name(g->io_mode));
    lvr_yaml_out_u64(y, "slice_bytes", g->slice_bytes);
    lvr_yaml_out_u64(y, "ring_slots", g->ring_slots);
    if (g->place != LVR_PLACE_CPU)
        lvr_yaml_out_str(y, "place", lvr_place_name(g->place));
    if (g->place_draft != LVR_PLACE_CPU)
        lvr_yaml_out_str(y, "place_draft", lvr_place_name(g->place_draft));
    if (g->head != LVR_HEAD_LAZY)
        lvr_yaml_out_str(y, "head", lvr_head_name(g->head));
    lvr_yaml_out_u64s(y, "layer_bytes", g->layer_bytes, g->n_layers);
    lvr_yaml_out_u64s(y, "resident", resident, g->n_layers);
}
