#include "cli/session_options.h"

#include "cli/cli.h"
#include "cli/unused_options.h"
#include "common/log.h"
#include "common/threads.h"
#include "costmodel/core/device_preset.h"
#include "costmodel/fit/fit.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const lvr_choices_io[] = {"serial", "pipelined", NULL};
const char *const lvr_choices_flash_engine[] = {"auto", "uring", "pread", NULL};
const char *const lvr_choices_verify[] = {"always", "first", NULL}; /* lvr_verify's order */
/* After "auto", lvr_cpu_level's order. */
const char *const lvr_choices_cpu_level[] = {"auto", "c",       "avx2", "avx512", "amx",
                                             "neon", "dotprod", "i8mm", NULL};
_Static_assert(sizeof lvr_choices_cpu_level / sizeof *lvr_choices_cpu_level == LVR_CPU_LEVELS + 2u,
               "a choice for each level");

const char *const lvr_choices_head[] = {"lazy", "eager", NULL}; /* lvr_head's order */
const char *const lvr_choices_place[] = {"auto", "cpu", "npu", NULL};
const char *const lvr_choices_resident_layers[] = {"first", "spread", "last",
                                                   NULL};        /* lvr_residency's order */
const char *const lvr_choices_kv_type[] = {"f16", "q8_0", NULL}; /* lvr_kv_type's order */
_Static_assert(sizeof lvr_choices_kv_type / sizeof *lvr_choices_kv_type == LVR_KV_TYPES + 1u,
               "a choice for each type");

lvr_place lvr_place_of_choice(int choice)
{
    static const lvr_place places[] = {LVR_PLACE_AUTO, LVR_PLACE_CPU, LVR_PLACE_NPU};
    return places[choice];
}

typedef struct resolver {
    const lvr_session_options *o;
    const lvr_command_line *line;
    lvr_session_setup *setup;
    lvr_error *err;
} resolver;

bool lvr_command_line_has(const lvr_command_line *line, const char *option)
{
    for (size_t i = 0; i < line->n; i++)
        if (strcmp(line->table[i].name, option) == 0)
            return lvr_option_given(line->argc, line->argv, &line->table[i]);
    return false;
}

static bool given(const resolver *r, const char *option)
{
    return lvr_command_line_has(r->line, option);
}

/* As given, but for the options whose 0 leaves the choice open. */
static bool chosen(const resolver *r, const char *option, uint64_t value)
{
    return value != 0 && given(r, option);
}

/* ---- policy ---- */

static lvr_status load_policy(resolver *r)
{
    lvr_session_setup *s = r->setup;
    s->from_file = lvr_policy_is_file(r->o->policy);
    if (s->from_file)
        return lvr_policy_file_load(r->o->policy, &s->file, r->err);
    return lvr_policy_init(&s->file.policy, r->o->policy, r->err);
}

static lvr_status load_cost(resolver *r)
{
    lvr_cost_model *model = calloc(1, sizeof *model);
    if (!model)
        return lvr_fail(r->err, LVR_ERR_NOMEM, "out of memory for a cost model");
    const lvr_status status = lvr_cost_model_load(r->o->cost, model, r->err);
    if (status == LVR_OK) {
        lvr_policy *policy = &r->setup->file.policy;
        policy->has_cost = true;
        policy->cost = model->table;
        policy->calibration = model->calibration;
        policy->exit = model->exit;
        memcpy(r->setup->cost_target_sha256, model->target_sha256, sizeof model->target_sha256);
        memcpy(r->setup->cost_draft_sha256, model->draft_sha256, sizeof model->draft_sha256);
    }
    free(model);
    return status;
}

/* A policy file is run unchanged: what would change it needs --what-if. */
static lvr_status contradiction(resolver *r, const char *option, const char *mine, const char *file)
{
    if (r->o->what_if) {
        lvr_log(LVR_LOG_WARN, "--what-if: --%s %s instead of the policy file's %s", option, mine, file);
        r->setup->what_if = true;
        return LVR_OK;
    }
    return lvr_fail(r->err, LVR_ERR_CONFIG,
                    "--%s %s contradicts %s, which says %s; leave the option out, or add --what-if to try "
                    "(the result is marked)",
                    option, mine, r->o->policy, file);
}

static lvr_status change_policy(resolver *r)
{
    if (r->setup->from_file && (r->o->set.n > 0 || r->o->cost)) {
        const lvr_status status =
            contradiction(r, r->o->cost ? "cost" : "set", r->o->cost ? r->o->cost : r->o->set.items[0],
                          r->o->cost ? "what to price with" : "all parameters");
        if (status != LVR_OK)
            return status;
    }
    if (r->o->cost) {
        const lvr_status status = load_cost(r);
        if (status != LVR_OK)
            return status;
    }
    return lvr_policy_set_items(&r->setup->file.policy, r->o->set.items, r->o->set.n, r->err);
}

/* ---- conditions ---- */

static uint32_t default_threads(void)
{
    const uint32_t n = lvr_processors();
    return n < LVR_POOL_MAX_THREADS ? n : LVR_POOL_MAX_THREADS;
}

static lvr_cpu_level level_of(const lvr_session_options *o)
{
    return o->cpu_level == 0 ? lvr_cpu_best() : (lvr_cpu_level)(o->cpu_level - 1);
}

/* All rates alike, so that the ratios between sizes and depths stay as they are. */
static lvr_flash_params scaled(lvr_flash_params p, double scale)
{
    p.t0_ns = (uint64_t)((double)p.t0_ns / scale);
    p.lane_bytes_per_s = (uint64_t)((double)p.lane_bytes_per_s * scale);
    p.max_bytes_per_s = (uint64_t)((double)p.max_bytes_per_s * scale);
    return p;
}

static lvr_status load_emulation(resolver *r, lvr_run_conditions *c)
{
    lvr_device_preset preset;
    c->emulate_scale = r->o->emulate_scale;
    if (!r->o->emulate_flash) {
        if (given(r, "emulate-scale"))
            return lvr_fail(r->err, LVR_ERR_USAGE,
                            "--emulate-scale scales an emulated device; give --emulate-flash too");
        return LVR_OK;
    }
    const lvr_status status = lvr_device_load(r->o->emulate_flash, &preset, r->err);
    if (status != LVR_OK)
        return status;
    if (!preset.has_flash)
        return lvr_fail(r->err, LVR_ERR_CONFIG, "%s describes no flash device that could be emulated",
                        r->o->emulate_flash);
    snprintf(c->emulated, sizeof c->emulated, "%s", preset.name);
    c->emulated_flash = scaled(preset.flash, r->o->emulate_scale);
    return LVR_OK;
}

static lvr_status conditions_of_options(resolver *r, lvr_run_conditions *ret)
{
    const lvr_session_options *o = r->o;
    *ret = (lvr_run_conditions){
        .threads = o->threads ? o->threads : default_threads(),
        .depth = o->depth,
        .n_ctx = o->context,
        .prefill_chunk = o->prefill_chunk,
        .max_rows = LVR_MAX_VERIFY_NODES,
        .temperature = o->temperature,
        .top_p = o->top_p,
        .top_k = o->top_k,
        .seed = o->seed,
        .ignore_eos = o->ignore_eos,
        .n_predict = o->tokens,
    };
    snprintf(ret->cpu_level, sizeof ret->cpu_level, "%s", lvr_cpu_level_name(level_of(o)));
    snprintf(ret->kv_type, sizeof ret->kv_type, "%s", lvr_choices_kv_type[o->kv_type]);
    if (o->accel > 0)
        snprintf(ret->accel, sizeof ret->accel, "%s", lvr_accel_choices[o->accel]);
    ret->accel_launch_ns = (uint64_t)llround(o->accel_launch_us * 1e3);
    ret->accel_sync_ns = (uint64_t)llround(o->accel_sync_us * 1e3);
    return load_emulation(r, ret);
}

typedef struct number_check {
    const char *option;
    double mine, file;
} number_check;

/* An accelerator that the file does not know of is no contradiction: its placement decides whether it is
 * used. */
static lvr_status compare_accelerators(resolver *r, const lvr_run_conditions *mine,
                                       const lvr_run_conditions *file)
{
    const lvr_place place = lvr_place_of_choice(r->o->place), theirs = r->setup->file.geometry.place;
    if (given(r, "accel") && file->accel[0] && strcmp(mine->accel, file->accel) != 0) {
        const lvr_status status = contradiction(r, "accel", lvr_accel_choices[r->o->accel], file->accel);
        if (status != LVR_OK)
            return status;
    }
    if (given(r, "place") && place != theirs)
        return contradiction(r, "place", lvr_place_name(place), lvr_place_name(theirs));
    return LVR_OK;
}

static lvr_status compare_draft_and_head(resolver *r)
{
    const lvr_geometry *g = &r->setup->file.geometry;
    const lvr_place draft = lvr_place_of_choice(r->o->place_draft);
    const lvr_head head = (lvr_head)r->o->head;
    if (given(r, "head") && head != g->head) {
        const lvr_status status = contradiction(r, "head", lvr_head_name(head), lvr_head_name(g->head));
        if (status != LVR_OK)
            return status;
    }
    if (given(r, "place-draft") && draft != g->place_draft)
        return contradiction(r, "place-draft", lvr_place_name(draft), lvr_place_name(g->place_draft));
    return LVR_OK;
}

/* 0 leaves the choice open, also to a file. */
static double or_theirs(uint64_t mine, uint64_t theirs)
{
    return (double)(mine ? mine : theirs);
}

/* Conditions that times or texts depend on. What a single run is asked for (seed, tokens, end of text) may
 * differ freely. */
static lvr_status compare_conditions(resolver *r, const lvr_run_conditions *mine,
                                     const lvr_run_conditions *file)
{
    const lvr_geometry *g = &r->setup->file.geometry;
    const number_check checks[] = {
        {"threads", mine->threads, file->threads},
        {"depth", or_theirs(mine->depth, file->depth), file->depth},
        {"context", mine->n_ctx, file->n_ctx},
        {"prefill-chunk", or_theirs(mine->prefill_chunk, file->prefill_chunk), file->prefill_chunk},
        {"temperature", mine->temperature, file->temperature},
        {"top-k", mine->top_k, file->top_k},
        {"top-p", mine->top_p, file->top_p},
        {"emulate-scale", mine->emulate_scale, file->emulate_scale},
        {"ring", or_theirs(r->o->ring, g->ring_slots), g->ring_slots},
        {"slice", or_theirs(r->o->slice, g->slice_bytes), (double)g->slice_bytes},
        {"io", r->o->io, g->io_mode},
        {"accel-launch-us", (double)mine->accel_launch_ns, (double)file->accel_launch_ns},
        {"accel-sync-us", (double)mine->accel_sync_ns, (double)file->accel_sync_ns},
    };
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++) {
        char a[32], b[32];
        if (!given(r, checks[i].option) || checks[i].mine == checks[i].file)
            continue;
        snprintf(a, sizeof a, "%g", checks[i].mine);
        snprintf(b, sizeof b, "%g", checks[i].file);
        const lvr_status status = contradiction(r, checks[i].option, a, b);
        if (status != LVR_OK)
            return status;
    }
    if (given(r, "emulate-flash") && strcmp(mine->emulated, file->emulated) != 0)
        return contradiction(r, "emulate-flash", mine->emulated,
                             file->emulated[0] ? file->emulated : "no emulation");
    if (given(r, "cpu-level") && strcmp(mine->cpu_level, file->cpu_level) != 0)
        return contradiction(r, "cpu-level", mine->cpu_level, file->cpu_level);
    if (given(r, "kv-type") && strcmp(mine->kv_type, file->kv_type) != 0) {
        const lvr_status status = contradiction(r, "kv-type", mine->kv_type, file->kv_type);
        if (status != LVR_OK)
            return status;
    }
    const lvr_status placed = compare_draft_and_head(r);
    return placed == LVR_OK ? compare_accelerators(r, mine, file) : placed;
}

/* The file's conditions, where the command line (under --what-if, or by saying the same) does not speak. */
static void merge_conditions(const resolver *r, const lvr_run_conditions *file, lvr_run_conditions *c)
{
    const lvr_run_conditions mine = *c;
    *c = *file;
    c->seed = given(r, "seed") ? mine.seed : file->seed;
    c->n_predict = given(r, "tokens") ? mine.n_predict : file->n_predict;
    c->ignore_eos = given(r, "ignore-eos") ? mine.ignore_eos : file->ignore_eos;
    c->threads = given(r, "threads") ? mine.threads : file->threads;
    c->depth = chosen(r, "depth", mine.depth) ? mine.depth : file->depth;
    c->n_ctx = given(r, "context") ? mine.n_ctx : file->n_ctx;
    c->prefill_chunk =
        chosen(r, "prefill-chunk", mine.prefill_chunk) ? mine.prefill_chunk : file->prefill_chunk;
    c->temperature = given(r, "temperature") ? mine.temperature : file->temperature;
    c->top_k = given(r, "top-k") ? mine.top_k : file->top_k;
    c->top_p = given(r, "top-p") ? mine.top_p : file->top_p;
    if (given(r, "cpu-level"))
        memcpy(c->cpu_level, mine.cpu_level, sizeof c->cpu_level);
    if (given(r, "kv-type"))
        memcpy(c->kv_type, mine.kv_type, sizeof c->kv_type);
    if (given(r, "accel"))
        memcpy(c->accel, mine.accel, sizeof c->accel);
    c->accel_launch_ns = given(r, "accel-launch-us") ? mine.accel_launch_ns : file->accel_launch_ns;
    c->accel_sync_ns = given(r, "accel-sync-us") ? mine.accel_sync_ns : file->accel_sync_ns;
    if (given(r, "emulate-flash")) {
        memcpy(c->emulated, mine.emulated, sizeof c->emulated);
        c->emulated_flash = mine.emulated_flash;
        c->emulate_scale = mine.emulate_scale;
    }
}

/* ---- schedule ---- */

static void layers_of_options(const resolver *r, lvr_session_config *c)
{
    c->has_budget = given(r, "dram-budget");
    c->budget_auto = r->o->dram_budget == 0;
    c->dram_budget_bytes = r->o->dram_budget;
    c->resident_fraction = r->o->resident;
    c->resident_layers = (lvr_residency)r->o->resident_layers;
}

static void schedule_of_options(const resolver *r, lvr_session_config *c)
{
    c->io_mode = (lvr_io_mode)r->o->io;
    c->slice_bytes = r->o->slice;
    c->ring_slots = r->o->ring;
    layers_of_options(r, c);
    c->place = lvr_place_of_choice(r->o->place);
    c->place_draft = lvr_place_of_choice(r->o->place_draft);
    c->head = (lvr_head)r->o->head;
}

/* Which layers stay in DRAM is part of the file; asked for again, they can only be compared once the model is
 * open. */
static lvr_status schedule_of_file(resolver *r, lvr_session_config *c)
{
    const lvr_geometry *g = &r->setup->file.geometry;
    static const char *const placing[] = {"resident", "dram-budget", "resident-layers"};
    bool placement = false;
    for (size_t i = 0; i < sizeof placing / sizeof *placing; i++) {
        if (!given(r, placing[i]))
            continue;
        placement = true;
        const lvr_status status =
            contradiction(r, placing[i], "(other placement)", "which layers are resident");
        if (status != LVR_OK)
            return status;
    }
    uint32_t n_resident = 0;
    for (uint32_t l = 0; l < g->n_layers; l++)
        n_resident += g->resident[l];
    if (placement)
        layers_of_options(r, c);
    if (!given(r, "resident") && !given(r, "dram-budget"))
        c->resident_fraction = g->n_layers ? (double)n_resident / g->n_layers : 1;
    c->io_mode = given(r, "io") ? (lvr_io_mode)r->o->io : g->io_mode;
    c->ring_slots = chosen(r, "ring", r->o->ring) ? r->o->ring : g->ring_slots;
    c->slice_bytes = chosen(r, "slice", r->o->slice) ? r->o->slice : g->slice_bytes;
    c->place = given(r, "place") ? lvr_place_of_choice(r->o->place) : g->place;
    c->place_draft = given(r, "place-draft") ? lvr_place_of_choice(r->o->place_draft) : g->place_draft;
    c->head = given(r, "head") ? (lvr_head)r->o->head : g->head;
    /* Under --what-if the model may be another one, whose layers the file does not know. */
    c->geometry = r->o->what_if ? NULL : g;
    return LVR_OK;
}

/* ---- all together ---- */

static lvr_status fill_config(resolver *r, const lvr_run_conditions *c)
{
    const lvr_session_options *o = r->o;
    lvr_session_config *config = &r->setup->config;
    config->target_path = o->target;
    config->draft_path = o->draft;
    config->policy = &r->setup->file.policy;
    config->n_ctx = c->n_ctx;
    config->threads = c->threads;
    config->depth = c->depth;
    config->sampling =
        (lvr_sampling){.temperature = c->temperature, .top_k = c->top_k, .top_p = c->top_p, .seed = c->seed};
    config->prefill_chunk = c->prefill_chunk;
    config->max_rows = c->max_rows;
    config->flash_engine = (lvr_flash_engine)o->flash_engine;
    config->buffered = o->buffered;
    config->verify = (lvr_verify)o->verify;
    config->ignore_eos = c->ignore_eos;
    config->cancel = &lvr_cli_cancel;
    config->emulate = c->emulated[0] != '\0';
    config->emulated = c->emulated_flash;
    config->emulated_scale = c->emulate_scale;
    snprintf(r->setup->emulated_name, sizeof r->setup->emulated_name, "%s", c->emulated);
    config->emulated_name = r->setup->emulated_name;
    r->setup->n_predict = c->n_predict;
    memcpy(r->setup->accel_name, c->accel, sizeof r->setup->accel_name);
    config->accel = c->accel[0] ? r->setup->accel_name : NULL;
    config->accel_launch_ns = c->accel_launch_ns;
    config->accel_sync_ns = c->accel_sync_ns;
    if (!config->accel && (given(r, "accel-launch-us") || given(r, "accel-sync-us")))
        return lvr_fail(r->err, LVR_ERR_USAGE,
                        "--accel-launch-us and --accel-sync-us delay an accelerator's tickets; name one too "
                        "(--accel %s)",
                        lvr_accel_names);
    if (!lvr_kv_type_parse(c->kv_type, &config->kv_type))
        return lvr_fail(r->err, LVR_ERR_CONFIG, "%s: this build does not know the KV type \"%s\"", o->policy,
                        c->kv_type);
    if (!lvr_cpu_level_parse(c->cpu_level, &config->cpu_level))
        return lvr_fail(r->err, LVR_ERR_CONFIG, "%s: this build does not know the CPU level \"%s\"",
                        o->policy, c->cpu_level);
    return LVR_OK;
}

static lvr_status check_options(resolver *r)
{
    if (!r->o->target)
        return lvr_fail(r->err, LVR_ERR_USAGE,
                        "no target model; give one with --target FILE (a GGUF or a pack)");
    if (r->o->system && !r->o->chat)
        return lvr_fail(r->err, LVR_ERR_USAGE, "--system is part of a chat format; give --chat too");
    if (given(r, "dram-budget") && given(r, "resident"))
        return lvr_fail(r->err, LVR_ERR_USAGE,
                        "--dram-budget and --resident both say what stays in DRAM; give one of them");
    return LVR_OK;
}

lvr_status lvr_session_options_resolve(const lvr_session_options *o, const lvr_command_line *line,
                                       lvr_session_setup *ret, lvr_error *err)
{
    resolver r = {.o = o, .line = line, .setup = ret, .err = err};
    lvr_run_conditions c;
    *ret = (lvr_session_setup){.line = *line};
    lvr_session_config_init(&ret->config);
    lvr_status status = check_options(&r);
    if (status == LVR_OK)
        status = load_policy(&r);
    if (status == LVR_OK)
        status = change_policy(&r);
    if (status == LVR_OK)
        status = conditions_of_options(&r, &c);
    if (status != LVR_OK)
        return status;
    if (ret->from_file) {
        status = compare_conditions(&r, &c, &ret->file.conditions);
        merge_conditions(&r, &ret->file.conditions, &c);
        if (status == LVR_OK)
            status = schedule_of_file(&r, &ret->config);
    } else {
        schedule_of_options(&r, &ret->config);
    }
    if (status == LVR_OK)
        status = fill_config(&r, &c);
    if (status == LVR_OK)
        lvr_warn_unused_options(ret);
    return status;
}
