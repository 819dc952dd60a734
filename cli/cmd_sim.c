/* lever sim: replay a policy against an oracle trace and a cost model; or without any trace, from presets. */
#include "cli/cli.h"
#include "cli/emit.h"
#include "cli/session_options.h"
#include "common/clock.h"
#include "common/log.h"
#include "sim/ceiling.h"
#include "sim/config_path.h"
#include "sim/inputs.h"
#include "sim/roofline.h"
#include "sim/sim_report.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct sim_options {
    const char *oracle, *cost, *policy, *device, *target_shape, *draft_shape, *acceptance, *emulate_flash,
        *trace, *out;
    lvr_strlist set;
    int io, place, place_draft, head, resident_layers;
    uint32_t ring, context, requests, prompt_tokens, tokens;
    uint64_t slice, seed;
    double resident, emulate_scale;
    bool what_if, solve_lambda, ceiling, overwrite, json;
} sim_options;

#define FIELD(f) offsetof(sim_options, f)
#define STR_ROW(id, field, text)                                                                             \
    {                                                                                                        \
        .name = id, .type = LVR_PARAM_STR, .offset = FIELD(field), .def = NAN, .help = text                  \
    }

enum {
    ROW_IO,
    ROW_RING,
    ROW_SLICE,
    ROW_RESIDENT,
    ROW_RESIDENT_LAYERS,
    ROW_SEED,
    ROW_CONTEXT,
    ROW_PLACE,
    ROW_PLACE_DRAFT,
    ROW_HEAD
};

static const char *const io_choices[] = {"serial", "pipelined", NULL};

static const lvr_param table[] = {
    [ROW_IO] = {.name = "io",
                .type = LVR_PARAM_ENUM,
                .offset = FIELD(io),
                .max = 1,
                .def = 1,
                .choices = io_choices,
                .help = "schedule: read then compute, or reads run ahead; default: as the policy file or the "
                        "cost model says"},
    [ROW_RING] = {.name = "ring",
                  .type = LVR_PARAM_U32,
                  .offset = FIELD(ring),
                  .min = 1,
                  .max = LVR_MAX_RING_SLOTS,
                  .def = 2,
                  .unit = "layers",
                  .help = "staging slots; default: as recorded"},
    [ROW_SLICE] = {.name = "slice",
                   .type = LVR_PARAM_SIZE,
                   .offset = FIELD(slice),
                   .min = 4096,
                   .max = LVR_MAX_SLICE_BYTES,
                   .def = 4194304,
                   .unit = "bytes",
                   .help = "largest read, a multiple of 4096; default: as recorded"},
    [ROW_RESIDENT] =
        {.name = "resident",
         .type = LVR_PARAM_DOUBLE,
         .offset = FIELD(resident),
         .min = 0,
         .max = 1,
         .def = 0,
         .unit = "1",
         .help = "fraction of the target's layers in DRAM; default: as recorded (without traces: 0)"},
    [ROW_RESIDENT_LAYERS] =
        LVR_RESIDENT_LAYERS_ROW(FIELD(resident_layers), "which layers that is; with --resident"),
    [ROW_SEED] = {.name = "seed",
                  .type = LVR_PARAM_U64,
                  .offset = FIELD(seed),
                  .min = 0,
                  .max = 9e15,
                  .def = 0,
                  .help = "seed of made-up texts and of policies that draw at random"},
    [ROW_CONTEXT] = {.name = "context",
                     .short_name = 'c',
                     .type = LVR_PARAM_U32,
                     .offset = FIELD(context),
                     .min = 0,
                     .max = 1 << 24,
                     .def = 0,
                     .unit = "tokens",
                     .help = "positions of the KV cache; 0: as recorded, and enough for the texts"},
    [ROW_PLACE] =
        {.name = "place",
         .type = LVR_PARAM_ENUM,
         .offset = FIELD(place),
         .max = 2,
         .choices = lvr_choices_place,
         .help = "where the target's layers run; default: as the policy file says, else by price if the "
                 "cost model knows an accelerator"},
    [ROW_PLACE_DRAFT] = LVR_REPLAY_PLACE_DRAFT_ROW(FIELD(place_draft)),
    [ROW_HEAD] = LVR_REPLAY_HEAD_ROW(FIELD(head)),
    STR_ROW("oracle", oracle, "oracle trace: what any policy could meet (lever record --oracle)"),
    STR_ROW("cost", cost, "cost model: how long everything takes (lever fit)"),
    {.name = "policy",
     .type = LVR_PARAM_STR,
     .offset = FIELD(policy),
     .def = NAN,
     .def_str = "lever",
     .help = "policy by name, or a policy file (lever tune)"},
    {.name = "set",
     .type = LVR_PARAM_STR,
     .offset = FIELD(set),
     .def = NAN,
     .help = "policy parameter, key=value; may repeat",
     .multi = true},
    STR_ROW("device", device, "without traces: device preset (needs flash and compute sections)"),
    STR_ROW("target-shape", target_shape, "without traces: shape of the target (configs/models)"),
    STR_ROW("draft-shape", draft_shape, "without traces: shape of the draft"),
    STR_ROW("emulate-flash", emulate_flash, "price reads as this device preset instead of as measured"),
    {.name = "emulate-scale",
     .type = LVR_PARAM_DOUBLE,
     .offset = FIELD(emulate_scale),
     .min = 1e-6,
     .max = 1,
     .def = 1,
     .unit = "1",
     .help = "slow that device down, all its rates alike"},
    STR_ROW("acceptance", acceptance, "without an oracle trace: acceptance by rank (configs/acceptance)"),
    {.name = "requests",
     .type = LVR_PARAM_U32,
     .offset = FIELD(requests),
     .min = 1,
     .max = 1 << 20,
     .def = 8,
     .help = "made-up texts: how many"},
    {.name = "prompt-tokens",
     .type = LVR_PARAM_U32,
     .offset = FIELD(prompt_tokens),
     .min = 1,
     .max = 1 << 23,
     .def = 64,
     .unit = "tokens",
     .help = "made-up texts: prompt length"},
    {.name = "tokens",
     .short_name = 'n',
     .type = LVR_PARAM_U32,
     .offset = FIELD(tokens),
     .min = 1,
     .max = 1 << 23,
     .def = 256,
     .unit = "tokens",
     .help = "made-up texts: output length"},
    {.name = "solve-lambda",
     .type = LVR_PARAM_BOOL,
     .offset = FIELD(solve_lambda),
     .max = 1,
     .help = "set the policy's price of time to the speed that it buys (several replays), as tune does"},
    {.name = "ceiling",
     .type = LVR_PARAM_BOOL,
     .offset = FIELD(ceiling),
     .max = 1,
     .help = "also the speed that no policy can pass on these texts, and where this one lost against it "
             "(oracle traces only)"},
    {.name = "what-if",
     .type = LVR_PARAM_BOOL,
     .offset = FIELD(what_if),
     .max = 1,
     .help = "allow acceptance and timings of different models or conditions (the result is marked)"},
    STR_ROW("trace", trace, "write the simulated run as a timing trace (NAME.h5)"),
    {.name = "overwrite",
     .type = LVR_PARAM_BOOL,
     .offset = FIELD(overwrite),
     .max = 1,
     .help = "replace an existing --trace file"},
    {.name = "json",
     .type = LVR_PARAM_BOOL,
     .offset = FIELD(json),
     .max = 1,
     .help = "result as one JSON object"},
    {.name = "out",
     .short_name = 'o',
     .type = LVR_PARAM_STR,
     .offset = FIELD(out),
     .def = NAN,
     .help = "write the result to this file instead of standard output"},
};
#define N_PARAMS (sizeof table / sizeof *table)

typedef struct study {
    const sim_options *o;
    int argc;
    char *const *argv;
    lvr_cost_model *model;
    lvr_policy_file file;
    lvr_sim_oracle oracle;
    lvr_shape target, draft;
    char timing_source[512];
    bool synthetic, what_if;
} study;

static bool given(const study *s, int row)
{
    return lvr_option_given(s->argc, s->argv, &table[row]);
}

/* ---- inputs ---- */

static lvr_status check_outputs(const sim_options *o, lvr_error *err)
{
    const char *const inputs[] = {
        o->oracle,       o->cost,        o->device,        lvr_policy_is_file(o->policy) ? o->policy : NULL,
        o->target_shape, o->draft_shape, o->emulate_flash, o->acceptance,
    };
    const lvr_status status = lvr_emit_check_inputs(o->out, inputs, sizeof inputs / sizeof *inputs, err);
    return status || !o->trace ? status
                               : lvr_emit_check_inputs(o->trace, inputs, sizeof inputs / sizeof *inputs, err);
}

static lvr_status check_options(const sim_options *o, lvr_error *err)
{
    const lvr_status status = check_outputs(o, err);
    if (status)
        return status;
    if (!o->oracle && !o->acceptance)
        return lvr_fail(err, LVR_ERR_USAGE,
                        "sim: nothing says which tokens are accepted; give --oracle TRACE, or --acceptance "
                        "NAME without traces");
    if (o->oracle && o->acceptance)
        return lvr_fail(
            err, LVR_ERR_USAGE,
            "sim: --oracle and --acceptance both say which tokens are accepted; give one of them");
    if (o->ceiling && o->acceptance)
        return lvr_fail(
            err, LVR_ERR_USAGE,
            "sim: --ceiling is what hindsight could make of recorded texts, and --acceptance makes "
            "them up; give --oracle TRACE (lever record --oracle)");
    if (!o->cost && !o->device)
        return lvr_fail(err, LVR_ERR_USAGE,
                        "sim: nothing says how long things take; give --cost FILE, or --device PRESET with "
                        "--target-shape");
    if (o->cost && (o->device || o->target_shape || o->draft_shape))
        return lvr_fail(
            err, LVR_ERR_USAGE,
            "sim: --cost and --device (with shapes) both say how long things take; give one of them");
    if (o->device && !o->target_shape)
        return lvr_fail(err, LVR_ERR_USAGE, "sim: --device needs --target-shape NAME (see configs/models)");
    return LVR_OK;
}

static lvr_status load_preset(study *s, lvr_error *err)
{
    lvr_device_preset device;
    lvr_status st = lvr_device_load(s->o->device, &device, err);
    if (!st)
        st = lvr_shape_load(s->o->target_shape, &s->target, err);
    if (!st && s->o->draft_shape)
        st = lvr_shape_load(s->o->draft_shape, &s->draft, err);
    if (!st)
        st = lvr_cost_model_synthesize(&device, &s->target, s->o->draft_shape ? &s->draft : NULL, s->model,
                                       err);
    if (st)
        return st;
    snprintf(s->timing_source, sizeof s->timing_source, "rooflines of %s for %s (%s)%s%s", device.name,
             s->target.name, s->target.type, s->o->draft_shape ? " <- " : "",
             s->o->draft_shape ? s->draft.name : "");
    return LVR_OK;
}

static lvr_status load_timings(study *s, lvr_error *err)
{
    if (!s->o->cost)
        return load_preset(s, err);
    lvr_status st = lvr_cost_model_load(s->o->cost, s->model, err);
    if (!st && s->o->emulate_flash)
        st = lvr_sim_emulate(s->model, s->o->emulate_flash, s->o->emulate_scale, err);
    snprintf(s->timing_source, sizeof s->timing_source, "%s%s%s", s->o->cost,
             s->o->emulate_flash ? ", flash of " : "", s->o->emulate_flash ? s->o->emulate_flash : "");
    return st;
}

static lvr_status load_acceptance(study *s, lvr_error *err)
{
    const sim_options *o = s->o;
    lvr_buf path = LVR_BUF_INIT;
    lvr_status st = lvr_sim_config_path("acceptance", o->acceptance, &path, err);
    if (!st)
        st = lvr_outcome_from_acceptance(path.data, o->seed, o->requests, o->prompt_tokens, o->tokens,
                                         &s->oracle.outcome, err);
    lvr_buf_free(&path);
    return st;
}

static lvr_status load_outcomes(study *s, lvr_error *err)
{
    if (s->o->acceptance)
        return load_acceptance(s, err);
    const lvr_status st = lvr_sim_oracle_load(s->o->oracle, &s->oracle, err);
    if (st)
        return st;
    /* With a preset the models differ by construction; that is what "synthetic" says. */
    return s->o->cost ? lvr_sim_check_pair(s->model, s->o->cost, &s->oracle, s->o->what_if, &s->what_if, err)
                      : LVR_OK;
}

static lvr_status check_draft(const study *s, lvr_error *err)
{
    if (s->o->device && !s->o->draft_shape && s->file.policy.ops->uses_draft)
        return lvr_fail(err, LVR_ERR_USAGE, "sim: policy %s drafts; give --draft-shape NAME too",
                        s->file.policy.ops->name);
    return LVR_OK;
}

/* The cost model's draft-side identities against a policy file made for others. */
static lvr_status check_file(study *s, lvr_error *err)
{
    if (!s->o->cost || strcmp(s->file.target_sha256, s->model->target_sha256) == 0)
        return LVR_OK;
    if (!s->o->what_if)
        return lvr_fail(err, LVR_ERR_CONFIG,
                        "%s was made for another target (sha256 %.12s...) than %s (%.12s...); use the pair "
                        "it was made for, or add "
                        "--what-if (the result is marked)",
                        s->o->policy, s->file.target_sha256, s->o->cost, s->model->target_sha256);
    s->what_if = true;
    return LVR_OK;
}

static lvr_status apply_schedule(study *s, lvr_error *err)
{
    const sim_options *o = s->o;
    lvr_geometry *g = &s->file.geometry;
    lvr_run_conditions *c = &s->file.conditions;
    if (given(s, ROW_IO))
        g->io_mode = (lvr_io_mode)o->io;
    if (given(s, ROW_RING))
        g->ring_slots = o->ring;
    if (given(s, ROW_SLICE))
        g->slice_bytes = o->slice;
    if (given(s, ROW_RESIDENT))
        lvr_geometry_set_resident(g, o->resident, (lvr_residency)o->resident_layers);
    else if (given(s, ROW_RESIDENT_LAYERS))
        return lvr_fail(err, LVR_ERR_USAGE,
                        "--resident-layers says which layers of --resident FRACTION stay; give that too");
    if (given(s, ROW_PLACE))
        g->place = lvr_place_of_choice(o->place);
    if (given(s, ROW_PLACE_DRAFT))
        g->place_draft = lvr_place_of_choice(o->place_draft);
    if (given(s, ROW_HEAD))
        g->head = (lvr_head)o->head;
    if (given(s, ROW_SEED))
        c->seed = o->seed;
    lvr_sim_make_room(c, s->oracle.outcome);
    if (o->context > 0)
        c->n_ctx = o->context;
    if (g->slice_bytes % 4096 != 0)
        return lvr_fail(err, LVR_ERR_CONFIG, "--slice: expected a multiple of 4096 bytes, found %llu",
                        (unsigned long long)g->slice_bytes);
    const lvr_fit_term *flash = lvr_cost_model_term(s->model, "flash");
    if (!s->model->synthetic && !o->emulate_flash && flash && flash->n == 0 &&
        lvr_geometry_stream_bytes(g) > 0)
        return lvr_fail(err, LVR_ERR_CONFIG,
                        "%s was fitted on runs that streamed nothing, so reads have no price; fit it on a "
                        "trace with --resident below 1, or "
                        "simulate with --resident 1",
                        o->cost);
    return LVR_OK;
}

static lvr_status load(study *s, lvr_error *err)
{
    lvr_status st = check_options(s->o, err);
    if (!st)
        st = load_timings(s, err);
    if (!st)
        st = load_outcomes(s, err);
    if (!st)
        st = lvr_sim_policy(s->o->policy, s->o->set.items, s->o->set.n, s->model, &s->file, err);
    if (!st)
        st = check_draft(s, err);
    if (!st)
        st = check_file(s, err);
    if (!st)
        st = apply_schedule(s, err);
    s->synthetic = s->model->synthetic || s->oracle.synthetic ||
                   (s->oracle.outcome && lvr_outcome_synthetic(s->oracle.outcome));
    return st;
}

/* ---- running ---- */

static lvr_status open_trace(const study *s, lvr_buf *config, lvr_trace_writer **ret, lvr_error *err)
{
    if (!s->o->trace)
        return LVR_OK;
    lvr_status st = lvr_policy_file_format(&s->file, config, err);
    if (st)
        return st;
    lvr_trace_meta *meta = calloc(1, sizeof(*meta));
    if (!meta)
        return lvr_fail(err, LVR_ERR_NOMEM, "sim: out of memory");
    lvr_sim_trace_meta(&s->file, s->oracle.target_name, s->oracle.draft_name, s->synthetic, config->data,
                       meta);
    st = lvr_trace_writer_open(s->o->trace, meta, s->o->overwrite, ret, err);
    free(meta);
    if (!st)
        lvr_trace_domain(*ret, "simulated");
    return st;
}

static lvr_status simulate(study *s, lvr_sim_result *ret, lvr_ceiling *ret_ceiling, lvr_error *err)
{
    lvr_buf config = LVR_BUF_INIT;
    lvr_trace_writer *writer = NULL;
    lvr_status st = open_trace(s, &config, &writer, err);
    lvr_sim_config c = {.policy = &s->file.policy,
                        .geometry = &s->file.geometry,
                        .conditions = s->file.conditions,
                        .outcome = s->oracle.outcome,
                        .keep_rounds = s->o->ceiling,
                        .trace = writer,
                        .cancel = &lvr_cli_cancel};
    lvr_sim_use_model(&c, s->model);
    if (!st)
        st = s->o->solve_lambda ? lvr_sim_run_at_own_price(&c, &s->file.policy, ret, err)
                                : lvr_sim_run(&c, ret, err);
    if (writer) {
        const lvr_status closed = lvr_trace_writer_close(writer, st == LVR_OK, st ? NULL : err);
        if (!st && closed) {
            lvr_sim_result_free(ret);
            st = closed;
        }
    }
    if (!st && s->o->ceiling)
        st = lvr_ceiling_of_run(&c, ret, ret_ceiling, err);
    lvr_buf_free(&config);
    return st;
}

/* A price of time far from the speed it buys makes trees that are far too large or too small. */
static void warn_price(const study *s, const lvr_sim_result *r)
{
    const lvr_param *price = lvr_sim_price_param(&s->file.policy);
    if (!price)
        return;
    const double lambda = lvr_param_get_number(price, s->file.policy.params.bytes),
                 speed = lvr_sim_tokens_per_s(r);
    if (lambda > 1.5 * speed || speed > 1.5 * lambda)
        lvr_log(LVR_LOG_WARN,
                "lambda is %g tokens/s, the speed that it bought %g: not at the policy's optimum; use lever "
                "tune, or --solve-lambda",
                lambda, speed);
}

static lvr_status run(study *s, lvr_error *err)
{
    lvr_sim_result r = {0};
    lvr_ceiling ceiling = {0};
    lvr_buf out = LVR_BUF_INIT;
    lvr_status st = load(s, err);
    if (st)
        return st;
    const uint64_t t0 = lvr_now_ns();
    st = simulate(s, &r, &ceiling, err);
    if (st) {
        lvr_sim_result_free(&r);
        return st;
    }
    const lvr_sim_report report = {.policy = &s->file.policy,
                                   .geometry = &s->file.geometry,
                                   .cost = &s->model->table,
                                   .outcome = s->oracle.outcome,
                                   .result = &r,
                                   .ceiling = s->o->ceiling ? &ceiling : NULL,
                                   .timing_source = s->timing_source,
                                   .synthetic = s->synthetic,
                                   .what_if = s->what_if,
                                   .n_fit_prompts = lvr_sim_count_fit_prompts(s->model, s->oracle.outcome),
                                   .host_wall_ns = lvr_now_ns() - t0};
    lvr_sim_warn_ranges(s->model, &r);
    warn_price(s, &r);
    if (r.outside_nodes > 0)
        lvr_log(LVR_LOG_WARN,
                "the policy met %llu nodes that the oracle trace does not hold: the result is not exact; "
                "record with greater caps",
                (unsigned long long)r.outside_nodes);
    if (s->o->json)
        lvr_sim_report_json(&report, &out);
    else
        lvr_sim_report_text(&report, &out);
    lvr_sim_result_free(&r);
    return lvr_emit(s->o->out, &out, err);
}

lvr_status lvr_cmd_sim(int argc, char *const *argv, lvr_error *err)
{
    sim_options o;
    bool help = false;
    lvr_params_default(table, N_PARAMS, &o);
    lvr_status st = lvr_options_parse(table, N_PARAMS, &o, argc, argv, &help, err);
    study *s = calloc(1, sizeof(*s));
    lvr_cost_model *model = calloc(1, sizeof(*model));
    if (!st && (!s || !model))
        st = lvr_fail(err, LVR_ERR_NOMEM, "sim: out of memory");
    if (!st && help) {
        st = lvr_emit_help("usage: lever sim --oracle TRACE --cost FILE [--policy NAME|FILE] [options]\n"
                           "       lever sim --device PRESET --target-shape NAME --draft-shape NAME "
                           "--acceptance NAME [options]\n\n",
                           table, N_PARAMS, err);
    } else if (!st) {
        *s = (study){.o = &o, .argc = argc, .argv = argv, .model = model};
        st = run(s, err);
        lvr_sim_oracle_free(&s->oracle);
    }
    free(model);
    free(s);
    lvr_strlist_free(&o.set);
    return st;
}
