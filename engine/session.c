#include "engine/session.h"

#include "common/log.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_SLICE_BYTES (4u << 20)
#define MAX_SLICE_BYTES (16u << 20)

void lvr_session_config_init(lvr_session_config *c)
{
    *c = (lvr_session_config){
        .io_mode = LVR_IO_PIPELINED,
        .slice_bytes = DEFAULT_SLICE_BYTES,
        .ring_slots = 2,
        .depth = 4,
        .resident_fraction = 1,
        .threads = 1,
        .cpu_level = lvr_cpu_best(),
        .sampling = {.top_p = 1},
        .prefill_chunk = 64,
        .max_rows = LVR_MAX_VERIFY_NODES,
        .emulated_scale = 1,
    };
}

/* ---- checks ---- */

static lvr_status check_schedule(const lvr_session_config *c, lvr_error *err)
{
    if (c->slice_bytes == 0 || c->slice_bytes % LVR_PACK_ALIGN != 0 || c->slice_bytes > MAX_SLICE_BYTES)
        return lvr_fail(err, LVR_ERR_CONFIG,
                        "slice of %" PRIu64 " bytes: expected a multiple of %u, at most %u (--slice)",
                        c->slice_bytes, LVR_PACK_ALIGN, MAX_SLICE_BYTES);
    if (c->ring_slots == 0 || c->ring_slots > LVR_MAX_RING_SLOTS)
        return lvr_fail(err, LVR_ERR_CONFIG, "staging ring of %u layers: expected 1 to %u (--ring)",
                        c->ring_slots, LVR_MAX_RING_SLOTS);
    if (c->depth == 0 || c->depth > LVR_FLASH_MAX_DEPTH)
        return lvr_fail(err, LVR_ERR_CONFIG, "flash depth %u: expected 1 to %u (--depth)", c->depth,
                        LVR_FLASH_MAX_DEPTH);
    if (!(c->resident_fraction >= 0 && c->resident_fraction <= 1))
        return lvr_fail(err, LVR_ERR_CONFIG, "resident fraction %g: expected 0 to 1 (--resident)",
                        c->resident_fraction);
    return LVR_OK;
}

static lvr_status check_placement(const lvr_session_config *c, lvr_error *err)
{
    const lvr_place place = c->geometry ? c->geometry->place : c->place;
    if (place != LVR_PLACE_NPU || c->accel)
        return LVR_OK;
    return lvr_fail(err, LVR_ERR_CONFIG,
                    "placement npu needs an accelerator to run layers on; name one (--accel " LVR_ACCEL_NAMES
                    "), or leave --place out");
}

static lvr_status check_config(const lvr_session_config *c, lvr_error *err)
{
    if (c->threads == 0 || c->threads > LVR_POOL_MAX_THREADS)
        return lvr_fail(err, LVR_ERR_CONFIG, "%u threads: expected 1 to %d (--threads)", c->threads,
                        LVR_POOL_MAX_THREADS);
    if (c->max_rows == 0 || c->max_rows > LVR_MAX_VERIFY_NODES || c->prefill_chunk == 0 ||
        c->prefill_chunk > LVR_MAX_VERIFY_NODES)
        return lvr_fail(err, LVR_ERR_CONFIG, "rows of a pass: expected 1 to %u, found %u, and %u of a prompt",
                        LVR_MAX_VERIFY_NODES, c->max_rows, c->prefill_chunk);
    if (c->policy->ops->uses_draft && !c->draft_path)
        return lvr_fail(err, LVR_ERR_CONFIG, "policy %s drafts and needs a draft model (--draft)",
                        c->policy->ops->name);
    if (!lvr_cpu_has(c->cpu_level))
        return lvr_fail(err, LVR_ERR_UNSUPPORTED, "CPU level %s: this machine's best is %s (--cpu-level)",
                        lvr_cpu_level_name(c->cpu_level), lvr_cpu_level_name(lvr_cpu_best()));
    const lvr_status status = check_placement(c, err);
    return status == LVR_OK ? check_schedule(c, err) : status;
}

static char *copy_or_null(const char *text)
{
    return text ? strdup(text) : NULL;
}

static lvr_status copy_config(lvr_session *s, const lvr_session_config *c, lvr_error *err)
{
    s->config = *c;
    s->policy = *c->policy;
    s->config.policy = &s->policy;
    s->config.geometry = NULL;
    s->target_path = copy_or_null(c->target_path);
    s->draft_path = c->policy->ops->uses_draft ? copy_or_null(c->draft_path) : NULL;
    s->emulated_name = strdup(c->emulate && c->emulated_name ? c->emulated_name : "");
    s->config.target_path = s->target_path;
    s->config.draft_path = s->draft_path;
    s->config.emulated_name = s->emulated_name;
    if (!s->target_path || !s->emulated_name || (c->policy->ops->uses_draft && !s->draft_path))
        return lvr_fail(err, LVR_ERR_NOMEM, "out of memory for a session's paths");
    return LVR_OK;
}

/* ---- planning ---- */

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
    const uint32_t rows = c->max_rows > c->prefill_chunk ? c->max_rows : c->prefill_chunk;
    return (lvr_pair_sizes){
        .n_ctx = s->n_ctx,
        .threads = c->threads,
        .cpu_level = c->cpu_level,
        .target_rows = rows,
        .target_scratch = rows,
        .draft_rows = LVR_DRAFT_MAX_ROWS,
        .draft_scratch = LVR_DRAFT_SCRATCH,
        .target_logits = 1,
    };
}

static lvr_status plan(lvr_session *s, const lvr_session_config *c, const lvr_pair_sizes *sizes,
                       lvr_error *err)
{
    lvr_status status = geometry_from_pack(s, err);
    if (status != LVR_OK)
        return status;
    lvr_pair_parts(&s->pair, sizes, &s->parts);
    if (c->geometry) {
        status = adopt_geometry(s, c->geometry, err);
    } else if (c->has_budget) {
        return lvr_budget_plan(&s->geometry, c->dram_budget_bytes, &s->parts, err);
    } else {
        lvr_geometry_set_resident(&s->geometry, c->resident_fraction);
    }
    lvr_budget_sum(&s->geometry, &s->parts);
    return status;
}

/* What auto comes to: without an accelerator there is nothing to choose. */
static void choose_place(lvr_session *s, const lvr_session_config *c)
{
    const lvr_place place = c->geometry ? c->geometry->place : c->place;
    s->geometry.place = c->accel ? place : LVR_PLACE_CPU;
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
                "CPU (--accel " LVR_ACCEL_NAMES ")");
    if (c->accel && (!s->policy.has_cost || s->policy.cost.npu[LVR_OP_LAYER].n == 0))
        lvr_log(
            LVR_LOG_WARN,
            "%s no price for layers on an accelerator, so all run on the CPU; record with --place npu and "
            "fit that trace too, or force it with --place npu",
            s->policy.has_cost ? "the cost table has" : "without a cost table there is");
}

/* ---- flash ---- */

/* From the first streamed layer to the end of the last one: also touches all of it once, so that an emulated
 * device is not slowed down further by a cold real one. */
static lvr_status check_emulation(const lvr_session *s, lvr_error *err)
{
    const lvr_session_config *c = &s->config;
    const lvr_pack *pack = s->pair.target.pack;
    const lvr_geometry *g = &s->geometry;
    uint64_t begin = UINT64_MAX, end = 0, largest = 0;
    for (uint32_t l = 0; l < g->n_layers; l++) {
        if (g->resident[l])
            continue;
        const uint64_t at = lvr_pack_layer_offset(pack, l);
        begin = at < begin ? at : begin;
        largest = g->layer_bytes[l] > largest ? g->layer_bytes[l] : largest;
        end = at + g->layer_bytes[l] > end ? at + g->layer_bytes[l] : end;
    }
    const uint64_t request = g->slice_bytes < largest ? g->slice_bytes : largest;
    double warm = 0;
    lvr_status status = lvr_flash_warm_rate(lvr_pack_path(pack), c->buffered, begin, end - begin, request,
                                            c->depth, &warm, err);
    if (status == LVR_OK)
        status = lvr_flash_check_emulation(&c->emulated, request, warm, err);
    if (status != LVR_OK)
        lvr_error_prefix(err, "%s", s->emulated_name);
    return status;
}

static lvr_status open_staging(lvr_session *s, lvr_error *err)
{
    const lvr_session_config *c = &s->config;
    if (lvr_geometry_stream_bytes(&s->geometry) == 0) {
        if (c->emulate)
            return lvr_fail(
                err, LVR_ERR_CONFIG,
                "%s: all layers are resident, so no flash is read that could be emulated; keep fewer "
                "(--resident, --dram-budget), or leave the emulation out",
                s->emulated_name);
        return LVR_OK;
    }
    if (c->emulate && !c->unchecked_emulation) {
        const lvr_status status = check_emulation(s, err);
        if (status != LVR_OK)
            return status;
    }
    const lvr_staging_config staging = {
        .pack = s->pair.target.pack,
        .geometry = &s->geometry,
        .engine = c->flash_engine,
        .buffered = c->buffered,
        .depth = c->depth,
        .emulate = c->emulate,
        .emulated = c->emulated,
        .faults = c->flash_faults,
    };
    return lvr_staging_new(&staging, &s->staging, err);
}

/* ---- accelerator ---- */

static lvr_status open_accel(lvr_session *s, lvr_error *err)
{
    const lvr_session_config *c = &s->config;
    if (!c->accel)
        return LVR_OK;
    const lvr_accel_config accel = {.name = c->accel,
                                    .kernels = &s->pair.kernels,
                                    .launch_ns = c->accel_launch_ns,
                                    .sync_ns = c->accel_sync_ns};
    const lvr_status status = lvr_accel_open(&accel, &s->accel, err);
    if (status != LVR_OK)
        return status;
    const lvr_accel_caps *caps = lvr_accel_get_caps(s->accel);
    s->config.accel = caps->name;
    if (caps->fallback)
        lvr_log(LVR_LOG_WARN, "accelerator %s: %s; its thread computes with the CPU instead (%s)", caps->name,
                caps->reason, caps->engine);
    return LVR_OK;
}

/* ---- opening and closing ---- */

static lvr_status open_machine(lvr_session *s, lvr_error *err)
{
    uint32_t n_eog = 0;
    const int32_t *eog = lvr_tokenizer_eog(s->pair.target.tokenizer, &n_eog);
    const lvr_round_config machine = {
        .policy = &s->policy,
        .geometry = &s->geometry,
        .n_ctx = s->n_ctx,
        .prefill_chunk = s->config.prefill_chunk,
        .max_rows = s->config.max_rows,
        .eos_token = -1,
        .more_eos = eog,
        .n_more_eos = s->config.ignore_eos ? 0 : n_eog,
        .seed = s->config.sampling.seed,
    };
    return lvr_round_new(&machine, &s->machine, err);
}

static lvr_status open_session(lvr_session *s, const lvr_session_config *c, lvr_error *err)
{
    lvr_status status = copy_config(s, c, err);
    if (status != LVR_OK)
        return status;
    status = lvr_pair_open(s->target_path, s->draft_path, s->config.cancel, &s->pair, err);
    if (status != LVR_OK)
        return status;
    status = choose_context(s, err);
    if (status != LVR_OK)
        return status;
    const lvr_pair_sizes sizes = sizes_of(s);
    status = plan(s, c, &sizes, err);
    if (status != LVR_OK)
        return status;
    choose_place(s, c);
    status = lvr_pair_load(&s->pair, &sizes, s->geometry.resident, err);
    if (status != LVR_OK)
        return status;
    status = open_staging(s, err);
    if (status == LVR_OK)
        status = open_accel(s, err);
    return status == LVR_OK ? open_machine(s, err) : status;
}

lvr_status lvr_session_new(const lvr_session_config *config, lvr_session **ret, lvr_error *err)
{
    lvr_status status = check_config(config, err);
    if (status != LVR_OK)
        return status;
    lvr_session *s = calloc(1, sizeof *s);
    if (!s)
        return lvr_fail(err, LVR_ERR_NOMEM, "out of memory for a session");
    status = open_session(s, config, err);
    if (status != LVR_OK) {
        lvr_session_free(s);
        return status;
    }
    *ret = s;
    return LVR_OK;
}

static void record_read(void *user, const lvr_staged_read *read, bool consumed)
{
    lvr_record_read(user, read, consumed);
}

void lvr_session_free(lvr_session *s)
{
    if (!s)
        return;
    lvr_accel_close(s->accel); /* before what its ticket works on goes */
    if (s->staging)
        lvr_staging_abandon(s->staging, record_read, s->recorder);
    lvr_recorder_free(s->recorder);
    lvr_round_free(s->machine);
    lvr_staging_free(s->staging);
    lvr_pair_free(&s->pair);
    free(s->target_path);
    free(s->draft_path);
    free(s->emulated_name);
    free(s);
}

/* ---- looking in ---- */

const lvr_tokenizer *lvr_session_tokenizer(const lvr_session *s)
{
    return s->pair.target.tokenizer;
}

const lvr_geometry *lvr_session_geometry(const lvr_session *s)
{
    return &s->geometry;
}

const lvr_budget_parts *lvr_session_parts(const lvr_session *s)
{
    return &s->parts;
}

uint32_t lvr_session_n_ctx(const lvr_session *s)
{
    return s->n_ctx;
}

const lvr_accel_caps *lvr_session_accel(const lvr_session *s)
{
    return s->accel ? lvr_accel_get_caps(s->accel) : NULL;
}

uint64_t lvr_session_run_ahead_bytes(const lvr_session *s)
{
    return s->staging ? lvr_staging_unconsumed_bytes(s->staging) : 0;
}

bool lvr_session_synthetic(const lvr_session *s)
{
    return lvr_pair_synthetic(&s->pair);
}

void lvr_session_models(const lvr_session *s, lvr_trace_model *ret_target, lvr_trace_model *ret_draft)
{
    lvr_trace_model_describe(s->pair.target.pack, s->geometry.resident, ret_target);
    *ret_draft = (lvr_trace_model){0};
    if (s->pair.has_draft)
        lvr_trace_model_describe(s->pair.draft.pack, NULL, ret_draft);
}

void lvr_session_device(const lvr_session *s, lvr_trace_device *ret)
{
    lvr_flash_stats flash = {.engine_name = "none"};
    if (s->staging)
        lvr_staging_flash_stats(s->staging, &flash);
    lvr_trace_device_describe(lvr_pack_path(s->pair.target.pack), flash.engine_name, flash.direct,
                              s->emulated_name, s->config.emulated_scale, ret);
}

lvr_run_conditions lvr_conditions_of(const lvr_session_config *c, uint32_t n_ctx, uint32_t n_predict)
{
    lvr_run_conditions ret = {
        .threads = c->threads,
        .depth = c->depth,
        .emulate_scale = c->emulated_scale,
        .n_ctx = n_ctx,
        .prefill_chunk = c->prefill_chunk,
        .max_rows = c->max_rows,
        .temperature = c->sampling.temperature,
        .top_p = c->sampling.top_p,
        .top_k = c->sampling.top_k,
        .seed = c->sampling.seed,
        .ignore_eos = c->ignore_eos,
        .n_predict = n_predict,
        .accel_launch_ns = c->accel_launch_ns,
        .accel_sync_ns = c->accel_sync_ns,
    };
    snprintf(ret.accel, sizeof ret.accel, "%s", c->accel ? c->accel : "");
    snprintf(ret.cpu_level, sizeof ret.cpu_level, "%s", lvr_cpu_level_name(c->cpu_level));
    if (!c->emulate)
        return ret;
    ret.emulated_flash = c->emulated;
    snprintf(ret.emulated, sizeof ret.emulated, "%s", c->emulated_name);
    return ret;
}

void lvr_session_describe(const lvr_session *s, uint32_t n_predict, lvr_policy_file *ret)
{
    *ret = (lvr_policy_file){
        .policy = s->policy,
        .geometry = s->geometry,
        .conditions = lvr_conditions_of(&s->config, s->n_ctx, n_predict),
    };
    lvr_trace_device device;
    lvr_session_device(s, &device);
    snprintf(ret->target_sha256, sizeof ret->target_sha256, "%s",
             lvr_pack_source_sha256(s->pair.target.pack));
    if (s->pair.has_draft)
        snprintf(ret->draft_sha256, sizeof ret->draft_sha256, "%s",
                 lvr_pack_source_sha256(s->pair.draft.pack));
    snprintf(ret->device_sha256, sizeof ret->device_sha256, "%s", device.sha256);
}

/* ---- recording ---- */

lvr_status lvr_session_trace_meta(const lvr_session *s, uint32_t n_predict, lvr_trace_meta *ret,
                                  lvr_error *err)
{
    lvr_policy_file run;
    lvr_buf text = LVR_BUF_INIT;
    lvr_session_describe(s, n_predict, &run);
    const lvr_status status = lvr_policy_file_format(&run, &text, err);
    if (status != LVR_OK) {
        lvr_buf_free(&text);
        return status;
    }
    lvr_trace_meta_init(LVR_TRACE_TIMING, ret);
    ret->synthetic = lvr_session_synthetic(s);
    ret->seed = s->config.sampling.seed;
    ret->temperature = s->config.sampling.temperature;
    ret->top_p = s->config.sampling.top_p;
    ret->top_k = s->config.sampling.top_k;
    lvr_session_device(s, &ret->device);
    lvr_session_models(s, &ret->target, &ret->draft);
    ret->config_yaml = text.data;
    return LVR_OK;
}

lvr_status lvr_session_set_trace(lvr_session *s, lvr_trace_writer *writer, lvr_error *err)
{
    if (s->recorder)
        return lvr_fail(err, LVR_ERR_INVARIANT, "this session is being recorded already");
    return lvr_recorder_new(writer, &s->recorder, err);
}
