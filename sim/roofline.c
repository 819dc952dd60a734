#include "sim/roofline.h"

#include "costmodel/core/round.h"
#include "sim/config_path.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { ALIGN = 4096 };

/* ---- shapes ---- */

lvr_status lvr_shape_load(const char *name_or_path, lvr_shape *ret, lvr_error *err)
{
    lvr_buf path = LVR_BUF_INIT;
    lvr_status st = lvr_sim_config_path("models", name_or_path, &path, err);
    if (!st)
        st = lvr_shape_load_file(path.data, ret, err);
    lvr_buf_free(&path);
    return st;
}

uint64_t lvr_shape_layer_weights(const lvr_shape *s)
{
    const uint64_t d = s->d_model, q = (uint64_t)s->n_heads * s->head_dim,
                   kv = (uint64_t)s->n_kv * s->head_dim;
    return d * q + 2 * d * kv + q * d + 3 * d * s->d_ff;
}

static uint64_t bytes_of(const lvr_shape *s, uint64_t weights)
{
    return (uint64_t)ceil((double)weights * s->bits / 8.0);
}

uint64_t lvr_shape_layer_bytes(const lvr_shape *s)
{
    const uint64_t norms = 2 * (uint64_t)s->d_model * sizeof(float);
    return (bytes_of(s, lvr_shape_layer_weights(s)) + norms + ALIGN - 1) / ALIGN * ALIGN;
}

uint64_t lvr_shape_head_bytes(const lvr_shape *s)
{
    return bytes_of(s, (uint64_t)s->vocab * s->d_model);
}

/* ---- rooflines ---- */

static double bytes_ns(const lvr_compute_params *c, double bytes)
{
    return bytes * 1e9 / (double)c->dram_bytes_per_s;
}

static double ops_ns(const lvr_compute_params *c, double ops)
{
    return ops * 1e9 / (double)c->ops_per_s;
}

/* ns(rows) of an operator that reads `bytes` once and computes `ops` a row, called `calls` times: flat, then
 * rising from the row at which computing takes as long as reading. */
static lvr_curve roofline(const lvr_compute_params *c, double bytes, double ops, double calls)
{
    const double read = bytes_ns(c, bytes), row = ops_ns(c, ops), launch = calls * (double)c->launch_ns;
    const double ridge = row > 0 ? read / row : INFINITY;
    const uint32_t knee = (uint32_t)fmin(fmax(floor(ridge), 2.0), LVR_MAX_VERIFY_NODES);
    lvr_curve curve = {.n = 1, .rows = {1}, .ns = {launch + fmax(read, row)}};
    const uint32_t rows[] = {knee, knee + 1, 2 * LVR_MAX_VERIFY_NODES};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        curve.rows[curve.n] = rows[i];
        curve.ns[curve.n++] = launch + fmax(read, row * rows[i]);
    }
    return curve;
}

/* Attention of one row over one cached position in all of a model's heads: scores and sums, two operations
 * each; the cache is read in half precision, and the rows of a pass share the reading, which a form per row
 * and position cannot say: the dearer of the two is taken. */
static double context_ns(const lvr_compute_params *c, const lvr_shape *s)
{
    const double ops = 4.0 * s->n_heads * s->head_dim, bytes = 4.0 * s->n_kv * s->head_dim;
    return fmax(ops_ns(c, ops), bytes_ns(c, bytes));
}

static lvr_op_cost layer_cost(const lvr_compute_params *c, const lvr_shape *s)
{
    return (lvr_op_cost){
        .curve = roofline(c, (double)lvr_shape_layer_bytes(s), 2.0 * (double)lvr_shape_layer_weights(s), 1),
        .ctx_ns = context_ns(c, s),
    };
}

/* All layers and the head. */
static lvr_op_cost draft_cost(const lvr_compute_params *c, const lvr_shape *s)
{
    const double bytes =
        (double)s->n_layers * (double)lvr_shape_layer_bytes(s) + (double)lvr_shape_head_bytes(s);
    const double weights =
        (double)s->n_layers * (double)lvr_shape_layer_weights(s) + (double)s->vocab * s->d_model;
    return (lvr_op_cost){.curve = roofline(c, bytes, 2.0 * weights, s->n_layers + 1.0),
                         .ctx_ns = s->n_layers * context_ns(c, s)};
}

static lvr_op_cost head_cost(const lvr_compute_params *c, const lvr_shape *s)
{
    const double ns =
        fmax(bytes_ns(c, (double)lvr_shape_head_bytes(s)), ops_ns(c, 2.0 * s->vocab * s->d_model));
    return (lvr_op_cost){.curve = {.n = 1, .rows = {1}, .ns = {(double)c->launch_ns + ns}}};
}

/* Moves `bytes` a row. */
static lvr_op_cost copy_cost(const lvr_compute_params *c, double bytes)
{
    const double row = bytes_ns(c, 2.0 * bytes), launch = (double)c->launch_ns;
    return (lvr_op_cost){.curve = {.n = 2, .rows = {1, 2}, .ns = {launch + row, launch + 2 * row}}};
}

static void add_term(lvr_cost_model *m, const char *name, const char *form)
{
    lvr_fit_term *t = &m->terms[m->n_terms++];
    *t = (lvr_fit_term){.x_min = 1, .x_max = LVR_MAX_PREFILL_ROWS};
    snprintf(t->name, sizeof t->name, "%s", name);
    snprintf(t->form, sizeof t->form, "%s", form);
}

static void fill_table(const lvr_device_preset *device, const lvr_shape *target, const lvr_shape *draft,
                       lvr_cost_model *m)
{
    const lvr_compute_params *c = &device->compute;
    const double kv_bytes = 4.0 * target->n_kv * target->head_dim * target->n_layers;
    lvr_cost_table *t = &m->table;
    t->op[LVR_OP_LAYER] = layer_cost(c, target);
    t->op[LVR_OP_DRAFT] = draft ? draft_cost(c, draft) : (lvr_op_cost){.curve = {.n = 1, .rows = {1}}};
    t->op[LVR_OP_HEAD] = head_cost(c, target);
    t->op[LVR_OP_EMBED] = copy_cost(c, 4.0 * target->d_model);
    t->op[LVR_OP_COMMIT] = copy_cost(c, kv_bytes);
    t->op[LVR_OP_PLAN] = (lvr_op_cost){.curve = {.n = 1, .rows = {1}}};
    t->flash = device->flash;
    for (int op = 0; op < LVR_OP_COUNT; op++)
        add_term(m, lvr_op_name((lvr_op)op),
                 op == LVR_OP_PLAN ? "not modelled: 0" : "roofline of the device preset");
    add_term(m, "flash", "device preset");
}

static void fill_schedule(const lvr_shape *target, lvr_geometry *g)
{
    *g = (lvr_geometry){
        .n_layers = target->n_layers, .slice_bytes = 4u << 20, .ring_slots = 2, .io_mode = LVR_IO_PIPELINED};
    for (uint32_t l = 0; l < target->n_layers; l++)
        g->layer_bytes[l] = lvr_shape_layer_bytes(target);
}

lvr_status lvr_cost_model_synthesize(const lvr_device_preset *device, const lvr_shape *target,
                                     const lvr_shape *draft, lvr_cost_model *ret, lvr_error *err)
{
    if (!device->has_flash || !device->has_compute)
        return lvr_fail(err, LVR_ERR_CONFIG,
                        "device %s has no %s section, which a simulation without a cost model needs; add one "
                        "to its file, or give a "
                        "device that has both (oneplus12, oneplus15r, ufs31-midrange)",
                        device->name, device->has_flash ? "compute" : "flash");
    *ret = (lvr_cost_model){.synthetic = true};
    fill_table(device, target, draft, ret);
    fill_schedule(target, &ret->geometry);
    ret->conditions = (lvr_run_conditions){.threads = 1,
                                           .depth = device->flash.depth,
                                           .cpu_level = "preset",
                                           .kv_type = "f16",
                                           .emulate_scale = 1.0,
                                           .n_ctx = 4096,
                                           .prefill_chunk = LVR_PREFILL_CHUNK_STREAMED,
                                           .max_rows = LVR_MAX_VERIFY_NODES,
                                           .top_p = 1.0};
    snprintf(ret->conditions.emulated, sizeof ret->conditions.emulated, "%s", device->name);
    ret->conditions.emulated_flash = device->flash;
    return LVR_OK;
}
