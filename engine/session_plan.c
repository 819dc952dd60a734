#include "engine/session_plan.h"

#include "common/log.h"
#include "common/minmax.h"
#include <inttypes.h>
#include <string.h>

#define DEFAULT_SLICE_BYTES (4u << 20)
#define DEFAULT_DEPTH 4u

/* ---- flash ---- */

/* The fastest measured way to read with this request size or this depth, whichever is not 0; NULL: none. */
static const lvr_calibration_cell *best_cell(const lvr_flash_calibration *k, uint64_t request_bytes,
                                             uint32_t depth)
{
    const lvr_calibration_cell *best = NULL;
    for (uint32_t i = 0; i < k->n_cells; i++) {
        const lvr_calibration_cell *cell = &k->cells[i];
        if ((request_bytes == 0 || cell->request_bytes == request_bytes) &&
            (depth == 0 || cell->depth == depth) && (!best || cell->bytes_per_s > best->bytes_per_s))
            best = cell;
    }
    return best;
}

/* One engine's best depth is not another's. */
static bool same_engine(lvr_flash_engine engine, const lvr_flash_calibration *k)
{
    return engine == LVR_FLASH_AUTO || strcmp(k->engine, engine == LVR_FLASH_URING ? "uring" : "pread") == 0;
}

static bool follow_calibration(lvr_session_config *c, const lvr_flash_calibration *k)
{
    if ((c->slice_bytes != 0 && c->depth != 0) || !same_engine(c->flash_engine, k))
        return false;
    if (c->slice_bytes == 0 && c->depth == 0) {
        c->slice_bytes = k->request_bytes;
        c->depth = k->depth;
        return true;
    }
    const lvr_calibration_cell *cell = best_cell(k, c->slice_bytes, c->depth);
    if (!cell)
        return false;
    c->slice_bytes = cell->request_bytes;
    c->depth = cell->depth;
    return true;
}

bool lvr_session_fill_in(lvr_session_config *c, const lvr_flash_calibration *calibrated)
{
    const bool followed = calibrated && follow_calibration(c, calibrated);
    if (c->slice_bytes == 0)
        c->slice_bytes = DEFAULT_SLICE_BYTES;
    if (c->depth == 0)
        c->depth = DEFAULT_DEPTH;
    if (c->ring_slots == 0)
        c->ring_slots = c->io_mode == LVR_IO_SERIAL ? 1 : 2;
    return followed;
}

/* What suits the real device says nothing about an emulated one, or about the page cache. */
static void choose_flash(lvr_session *s)
{
    lvr_session_config *c = &s->config;
    s->budget.calibrated = lvr_flash_calibration_load(lvr_pack_path(s->pair.target.pack), &s->budget.flash);
    const bool applies = s->budget.calibrated && !c->emulate && !c->buffered;
    s->budget.followed = lvr_session_fill_in(c, applies ? &s->budget.flash : NULL);
}

/* ---- context ---- */

static lvr_status choose_context(lvr_session *s, lvr_error *err)
{
    const uint32_t trained = s->pair.target.shape->n_ctx_train;
    s->n_ctx = s->config.n_ctx ? s->config.n_ctx : trained;
    if (s->n_ctx == 0)
        return lvr_fail(err, LVR_ERR_CONFIG, "%s does not say its context length; give --context",
                        s->target_path);
    if (s->n_ctx > trained)
        lvr_log(LVR_LOG_WARN,
                "context of %u positions: the target was trained on %u; text beyond may degrade", s->n_ctx,
                trained);
    if (s->pair.has_draft && s->n_ctx > s->pair.draft.shape->n_ctx_train)
        lvr_log(LVR_LOG_WARN,
                "context of %u positions: the draft was trained on %u; it will be accepted less beyond",
                s->n_ctx, s->pair.draft.shape->n_ctx_train);
    return LVR_OK;
}

/* ---- layers ---- */

static lvr_status geometry_from_pack(lvr_session *s, lvr_error *err)
{
    const lvr_pack *pack = s->pair.target.pack;
    lvr_geometry *g = &s->geometry;
    g->n_layers = s->pair.target.shape->n_layers;
    if (g->n_layers == 0 || g->n_layers > LVR_MAX_LAYERS)
        return lvr_fail(err, LVR_ERR_UNSUPPORTED, "%s has %u layers; this version takes 1 to %u",
                        s->target_path, g->n_layers, LVR_MAX_LAYERS);
    for (uint32_t l = 0; l < g->n_layers; l++)
        g->layer_bytes[l] = lvr_pack_layer_bytes(pack, l);
    g->slice_bytes = s->config.slice_bytes;
    g->ring_slots = s->config.ring_slots;
    g->io_mode = s->config.io_mode;
    return LVR_OK;
}

static lvr_status adopt_geometry(lvr_session *s, const lvr_geometry *wanted, lvr_error *err)
{
    if (wanted->n_layers != s->geometry.n_layers)
        return lvr_fail(
            err, LVR_ERR_CONFIG,
            "the policy's schedule is for %u layers, %s has %u: it was made for another target; tune one for "
            "this model",
            wanted->n_layers, s->target_path, s->geometry.n_layers);
    for (uint32_t l = 0; l < wanted->n_layers; l++)
        if (wanted->layer_bytes[l] != s->geometry.layer_bytes[l])
            return lvr_fail(err, LVR_ERR_CONFIG,
                            "the policy's schedule expects %" PRIu64 " bytes in layer %u, %s has %" PRIu64
                            ": it was made for another target; tune one for this model",
                            wanted->layer_bytes[l], l, s->target_path, s->geometry.layer_bytes[l]);
    s->geometry = *wanted;
    return LVR_OK;
}

static lvr_pair_sizes sizes_of(const lvr_session *s)
{
    const lvr_session_config *c = &s->config;
    const uint32_t prompt_rows = lvr_min_u32(c->prefill_chunk, s->n_ctx);
    return (lvr_pair_sizes){
        .n_ctx = s->n_ctx,
        .threads = c->threads,
        .cpu_level = c->cpu_level,
        .kv_type = c->kv_type,
        .target_rows = c->max_rows,
        .target_scratch = c->max_rows,
        .target_prompt_rows = prompt_rows,
        .draft_prompt_rows = prompt_rows,
        .draft_rows = LVR_DRAFT_MAX_ROWS,
        .draft_scratch = LVR_DRAFT_SCRATCH,
        .target_scores = lvr_policy_prunes(&s->policy, s->pair.target.shape->n_layers),
        .target_logits = c->head == LVR_HEAD_EAGER ? lvr_min_u32(c->max_rows, LVR_PAIR_HEAD_CHUNK) : 1,
    };
}

/* ---- memory ---- */

static lvr_status check_known(const lvr_session *s, lvr_error *err)
{
    if (!s->budget.limited || !s->config.budget_auto || s->budget.memory.room_bytes != UINT64_MAX)
        return LVR_OK;
    return lvr_fail(err, LVR_ERR_BUDGET,
                    "--dram-budget auto: nothing says how much memory is left: neither /proc/meminfo nor the "
                    "limit of a control group can be read; give a size, for example --dram-budget 4GiB");
}

static lvr_status plan_within_budget(lvr_session *s, lvr_residency where, lvr_error *err)
{
    const lvr_status status = lvr_budget_plan(&s->geometry, where, s->budget.budget_bytes, &s->parts, err);
    if (status != LVR_OK && s->config.budget_auto)
        lvr_error_prefix(err, "--dram-budget auto (what %s leaves, less %.0f MiB for the program)",
                         s->budget.memory.source, (double)LVR_BUDGET_PROGRAM_BYTES / (1024.0 * 1024.0));
    return status;
}

static lvr_status plan_layers(lvr_session *s, const lvr_session_config *c, const lvr_pair_sizes *sizes,
                              lvr_error *err)
{
    lvr_status status = geometry_from_pack(s, err);
    if (status != LVR_OK)
        return status;
    lvr_pair_parts(&s->pair, sizes, &s->parts);
    s->budget.least_bytes = lvr_budget_least(&s->geometry, c->resident_layers, &s->parts).total_bytes;
    if (c->geometry)
        status = adopt_geometry(s, c->geometry, err);
    else if (c->has_budget)
        status = plan_within_budget(s, c->resident_layers, err);
    else
        lvr_geometry_set_resident(&s->geometry, c->resident_fraction, c->resident_layers);
    if (status != LVR_OK)
        return status;
    lvr_budget_sum(&s->geometry, &s->parts);
    return lvr_budget_check_room(&s->parts, s->budget.least_bytes, &s->budget.memory, err);
}

/* How many rows a prompt pass has depends on whether layers are streamed, and that may depend on what the
 * rows leave of a budget: few rows come first, and more of them if layers are streamed and there is room. */
static lvr_status plan_prompt_rows(lvr_session *s, const lvr_session_config *c, lvr_pair_sizes *ret,
                                   lvr_error *err)
{
    if (c->prefill_chunk == 0)
        s->config.prefill_chunk = LVR_PREFILL_CHUNK_RESIDENT;
    *ret = sizes_of(s);
    lvr_status status = plan_layers(s, c, ret, err);
    if (status != LVR_OK || c->prefill_chunk != 0 || lvr_geometry_stream_bytes(&s->geometry) == 0)
        return status;
    const uint64_t least_bytes = s->budget.least_bytes;
    s->config.prefill_chunk = LVR_PREFILL_CHUNK_STREAMED;
    *ret = sizes_of(s);
    lvr_error no_room = LVR_ERROR_INIT;
    if (plan_layers(s, c, ret, &no_room) != LVR_OK) {
        s->config.prefill_chunk = LVR_PREFILL_CHUNK_RESIDENT;
        *ret = sizes_of(s);
        status = plan_layers(s, c, ret, err);
    }
    s->budget.least_bytes = least_bytes;
    return status;
}

static void take_stock(lvr_session *s, const lvr_session_config *c)
{
    lvr_memory_limit_read(c->memory_root ? c->memory_root : "", &s->budget.memory);
    s->budget.limited = c->has_budget && !c->geometry;
    if (s->budget.limited)
        s->budget.budget_bytes =
            c->budget_auto ? lvr_budget_of_room(&s->budget.memory) : c->dram_budget_bytes;
}

/* ---- placement ---- */

/* What auto comes to: without an accelerator there is nothing to choose. */
static void choose_place(lvr_session *s, const lvr_session_config *c)
{
    const lvr_place place = c->geometry ? c->geometry->place : c->place;
    s->geometry.place = c->accel ? place : LVR_PLACE_CPU;
    const lvr_place draft = c->geometry ? c->geometry->place_draft : c->place_draft;
    s->geometry.place_draft = c->accel ? draft : LVR_PLACE_CPU;
    if (c->accel && draft == LVR_PLACE_AUTO &&
        (!s->policy.has_cost || s->policy.cost.npu[LVR_OP_DRAFT].n == 0))
        lvr_log(LVR_LOG_WARN,
                "draft steps on an accelerator have no price here, so all run on the CPU; record with "
                "--place-draft npu and fit that trace too, or force it with --place-draft npu");
    s->geometry.head = s->config.head;
    if (c->accel && c->geometry && place == LVR_PLACE_CPU)
        lvr_log(LVR_LOG_WARN,
                "the policy file places all layers on the CPU, so accelerator %s stays idle; tune one with a "
                "cost "
                "model that knows the accelerator, or try --place npu --what-if",
                c->accel);
    if (place != LVR_PLACE_AUTO)
        return;
    if (!c->accel && c->geometry)
        lvr_log(LVR_LOG_WARN,
                "the policy places layers by price, but no accelerator is given: all run on the "
                "CPU (--accel %s)",
                lvr_accel_names);
    if (c->accel && (!s->policy.has_cost || s->policy.cost.npu[LVR_OP_LAYER].n == 0))
        lvr_log(
            LVR_LOG_WARN,
            "%s no price for layers on an accelerator, so all run on the CPU; record with --place npu and "
            "fit that trace too, or force it with --place npu",
            s->policy.has_cost ? "the cost table has" : "without a cost table there is");
}

/* ---- all together ---- */

static void tell(const lvr_session *s, const lvr_session_config *c)
{
    const lvr_session_budget *b = &s->budget;
    if (b->limited && c->budget_auto && b->budget_bytes != UINT64_MAX)
        lvr_log(LVR_LOG_INFO, "DRAM budget: %.1f MiB, what %s leaves less %.0f MiB for the program",
                (double)b->budget_bytes / (1024.0 * 1024.0), b->memory.source,
                (double)LVR_BUDGET_PROGRAM_BYTES / (1024.0 * 1024.0));
    if (b->followed && !c->geometry && lvr_geometry_stream_bytes(&s->geometry) > 0)
        lvr_log(LVR_LOG_INFO,
                "reads of %" PRIu64 " KiB, %u in flight: as lever doctor --flash measured this device on %s",
                s->config.slice_bytes >> 10, s->config.depth, b->flash.date);
}

lvr_status lvr_session_plan(lvr_session *s, const lvr_session_config *config, lvr_pair_sizes *ret_sizes,
                            lvr_error *err)
{
    lvr_pair_sizes sizes;
    lvr_status status = choose_context(s, err);
    if (status != LVR_OK)
        return status;
    choose_flash(s);
    take_stock(s, config);
    status = check_known(s, err);
    if (status == LVR_OK)
        status = plan_prompt_rows(s, config, &sizes, err);
    if (status != LVR_OK)
        return status;
    choose_place(s, config);
    tell(s, config);
    *ret_sizes = sizes;
    return LVR_OK;
}
