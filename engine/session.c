#include "engine/session_plan.h"

#include "common/log.h"
#include "common/minmax.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void lvr_session_config_init(lvr_session_config *c)
{
    *c = (lvr_session_config){
        .io_mode = LVR_IO_PIPELINED,
        .resident_fraction = 1,
        .resident_layers = LVR_RESIDENT_SPREAD,
        .threads = 1,
        .cpu_level = lvr_cpu_best(),
        .sampling = {.top_p = 1},
        .max_rows = LVR_MAX_VERIFY_NODES,
        .emulated_scale = 1,
    };
}

/* ---- checks ---- */

static lvr_status check_schedule(const lvr_session_config *c, lvr_error *err)
{
    if (c->slice_bytes % LVR_PACK_ALIGN != 0 || c->slice_bytes > LVR_MAX_SLICE_BYTES)
        return lvr_fail(err, LVR_ERR_CONFIG,
                        "slice of %" PRIu64 " bytes: expected a multiple of %u, at most %u (--slice)",
                        c->slice_bytes, LVR_PACK_ALIGN, LVR_MAX_SLICE_BYTES);
    if (c->ring_slots > LVR_MAX_RING_SLOTS)
        return lvr_fail(err, LVR_ERR_CONFIG, "staging ring of %u layers: expected at most %u (--ring)",
                        c->ring_slots, LVR_MAX_RING_SLOTS);
    if (c->depth > LVR_FLASH_MAX_DEPTH)
        return lvr_fail(err, LVR_ERR_CONFIG, "flash depth %u: expected at most %u (--depth)", c->depth,
                        LVR_FLASH_MAX_DEPTH);
    if (!(c->resident_fraction >= 0 && c->resident_fraction <= 1))
        return lvr_fail(err, LVR_ERR_CONFIG, "resident fraction %g: expected 0 to 1 (--resident)",
                        c->resident_fraction);
    return LVR_OK;
}

static lvr_status check_placement(const lvr_session_config *c, lvr_error *err)
{
    const lvr_place place = c->geometry ? c->geometry->place : c->place;
    const lvr_place draft = c->geometry ? c->geometry->place_draft : c->place_draft;
    if (draft == LVR_PLACE_NPU && !c->accel)
        return lvr_fail(err, LVR_ERR_CONFIG,
                        "draft placement npu needs an accelerator to run the draft's layers on; name one "
                        "(--accel %s), or leave --place-draft out",
                        lvr_accel_names);
    if (place != LVR_PLACE_NPU || c->accel)
        return LVR_OK;
    return lvr_fail(err, LVR_ERR_CONFIG,
                    "placement npu needs an accelerator to run layers on; name one (--accel %s), or leave "
                    "--place out",
                    lvr_accel_names);
}

static lvr_status check_config(const lvr_session_config *c, lvr_error *err)
{
    if (c->threads == 0 || c->threads > LVR_POOL_MAX_THREADS)
        return lvr_fail(err, LVR_ERR_CONFIG, "%u threads: expected 1 to %d (--threads)", c->threads,
                        LVR_POOL_MAX_THREADS);
    if (c->max_rows == 0 || c->max_rows > LVR_MAX_VERIFY_NODES)
        return lvr_fail(err, LVR_ERR_CONFIG, "rows of a verification pass: expected 1 to %u, found %u",
                        LVR_MAX_VERIFY_NODES, c->max_rows);
    if (c->prefill_chunk > LVR_MAX_PREFILL_ROWS)
        return lvr_fail(err, LVR_ERR_CONFIG,
                        "rows of a prompt pass: expected at most %u, found %u (--prefill-chunk)",
                        LVR_MAX_PREFILL_ROWS, c->prefill_chunk);
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
    if (s->config.geometry)
        s->config.head = s->config.geometry->head;
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

/* ---- flash ---- */

/* From the first streamed layer to the end of the last one: also touches all of it once, so that an emulated
 * device is not slowed down further by a cold real one. */
static lvr_status check_emulation(const lvr_session *s, lvr_error *err)
{
    const lvr_session_config *c = &s->config;
    const lvr_pack *pack = s->pair.target.pack;
    const lvr_geometry *g = &s->geometry;
    uint64_t begin = UINT64_MAX, end = 0;
    for (uint32_t l = 0; l < g->n_layers; l++) {
        if (g->resident[l])
            continue;
        const uint64_t at = lvr_pack_layer_offset(pack, l);
        begin = lvr_min_u64(begin, at);
        end = lvr_max_u64(end, at + g->layer_bytes[l]);
    }
    const uint64_t request = lvr_min_u64(g->slice_bytes, lvr_geometry_largest_streamed(g));
    double warm = 0;
    lvr_status status = lvr_flash_warm_rate(lvr_pack_path(pack), c->buffered, begin, end - begin, request,
                                            c->depth, c->cancel, &warm, err);
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
        .verify = c->verify,
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

/* Everything but loading. */
static lvr_status plan_session(lvr_session *s, const lvr_session_config *c, lvr_pair_sizes *ret_sizes,
                               lvr_error *err)
{
    lvr_status status = copy_config(s, c, err);
    if (status != LVR_OK)
        return status;
    const lvr_watch watch = {
        .cancel = s->config.cancel, .progress = s->config.progress, .user = s->config.progress_user};
    status = lvr_pair_open(s->target_path, s->draft_path, &watch, &s->pair, err);
    return status == LVR_OK ? lvr_session_plan(s, c, ret_sizes, err) : status;
}

static lvr_status load_session(lvr_session *s, const lvr_pair_sizes *sizes, lvr_error *err)
{
    lvr_status status = lvr_pair_load(&s->pair, sizes, s->geometry.resident, err);
    if (status == LVR_OK)
        status = open_staging(s, err);
    if (status == LVR_OK)
        status = open_accel(s, err);
    return status == LVR_OK ? open_machine(s, err) : status;
}

static lvr_status open_session(const lvr_session_config *config, bool load, lvr_session **ret, lvr_error *err)
{
    lvr_pair_sizes sizes;
    lvr_status status = check_config(config, err);
    if (status != LVR_OK)
        return status;
    lvr_session *s = calloc(1, sizeof *s);
    if (!s)
        return lvr_fail(err, LVR_ERR_NOMEM, "out of memory for a session");
    s->broken = !load;
    status = plan_session(s, config, &sizes, err);
    if (status == LVR_OK && load)
        status = load_session(s, &sizes, err);
    if (status != LVR_OK) {
        lvr_session_free(s);
        return status;
    }
    *ret = s;
    return LVR_OK;
}

lvr_status lvr_session_new(const lvr_session_config *config, lvr_session **ret, lvr_error *err)
{
    return open_session(config, true, ret, err);
}

lvr_status lvr_session_preview(const lvr_session_config *config, lvr_session **ret, lvr_error *err)
{
    return open_session(config, false, ret, err);
}

static void record_read(void *user, const lvr_staged_read *read, bool consumed)
{
    lvr_record_read(user, read, consumed);
}

void lvr_session_free(lvr_session *s)
{
    if (!s)
        return;
    lvr_accel_close(s->accel);     /* before what its ticket works on goes */
    if (s->staging && s->recorder) /* nobody else waits for what was read ahead */
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

const lvr_session_budget *lvr_session_get_budget(const lvr_session *s)
{
    return &s->budget;
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

bool lvr_session_io_report(const lvr_session *s, lvr_io_report *ret)
{
    if (s->staging)
        lvr_staging_io_report(s->staging, ret);
    return s->staging != NULL;
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
    snprintf(ret.kv_type, sizeof ret.kv_type, "%s", lvr_kv_type_name(c->kv_type));
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
