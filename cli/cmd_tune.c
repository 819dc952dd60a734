/* lever tune: search a policy's parameters by replay, predict on held-out prompts, write a policy file. */
#include "cli/cli.h"
#include "cli/emit.h"
#include "cli/session_options.h"
#include "common/log.h"
#include "sim/inputs.h"
#include "sim/tune.h"
#include <math.h>
#include <stdlib.h>

typedef struct tune_options {
    const char *oracle, *held_out, *cost, *policy, *emulate_flash, *out;
    lvr_strlist set, fix;
    uint32_t trials;
    uint64_t seed, ring_budget;
    int io, place, place_draft, head, resident_layers;
    double resident, emulate_scale;
    bool what_if, json;
} tune_options;

#define FIELD(f) offsetof(tune_options, f)

enum { ROW_IO, ROW_RESIDENT, ROW_RESIDENT_LAYERS, ROW_PLACE, ROW_PLACE_DRAFT, ROW_HEAD };

static const char *const io_choices[] = {"serial", "pipelined", NULL};

static const lvr_param table[] = {
    [ROW_IO] =
        {.name = "io",
         .type = LVR_PARAM_ENUM,
         .offset = FIELD(io),
         .max = 1,
         .def = 1,
         .choices = io_choices,
         .help = "schedule: read then compute, or reads run ahead; default: as the cost model was recorded"},
    [ROW_RESIDENT] = {.name = "resident",
                      .type = LVR_PARAM_DOUBLE,
                      .offset = FIELD(resident),
                      .min = 0,
                      .max = 1,
                      .def = 0,
                      .unit = "1",
                      .help = "fraction of the target's layers in DRAM; default: as recorded"},
    [ROW_RESIDENT_LAYERS] =
        LVR_RESIDENT_LAYERS_ROW(FIELD(resident_layers), "which layers that is; with --resident"),
    [ROW_PLACE] = {.name = "place",
                   .type = LVR_PARAM_ENUM,
                   .offset = FIELD(place),
                   .max = 2,
                   .choices = lvr_choices_place,
                   .help = "where the target's layers run; default: by price if the cost model knows an "
                           "accelerator"},
    [ROW_PLACE_DRAFT] = LVR_REPLAY_PLACE_DRAFT_ROW(FIELD(place_draft)),
    [ROW_HEAD] = LVR_REPLAY_HEAD_ROW(FIELD(head)),
    {.name = "policy",
     .type = LVR_PARAM_STR,
     .offset = FIELD(policy),
     .def = NAN,
     .def_str = "lever",
     .help = "policy by name"},
    {.name = "oracle",
     .type = LVR_PARAM_STR,
     .offset = FIELD(oracle),
     .def = NAN,
     .help = "oracle trace of the tune prompts"},
    {.name = "held-out",
     .type = LVR_PARAM_STR,
     .offset = FIELD(held_out),
     .def = NAN,
     .help = "oracle trace of other prompts: the prediction is made on them"},
    {.name = "cost",
     .type = LVR_PARAM_STR,
     .offset = FIELD(cost),
     .def = NAN,
     .help = "cost model (lever fit)"},
    {.name = "set",
     .type = LVR_PARAM_STR,
     .offset = FIELD(set),
     .def = NAN,
     .help = "start value of a policy parameter, key=value; may repeat",
     .multi = true},
    {.name = "fix",
     .type = LVR_PARAM_STR,
     .offset = FIELD(fix),
     .def = NAN,
     .help = "parameter that keeps its start value instead of being searched; may repeat",
     .multi = true},
    {.name = "trials",
     .type = LVR_PARAM_U32,
     .offset = FIELD(trials),
     .min = 1,
     .max = 100000,
     .def = 48,
     .help = "replays of the tune prompts, the same number for every policy"},
    {.name = "seed",
     .type = LVR_PARAM_U64,
     .offset = FIELD(seed),
     .min = 0,
     .max = 9e15,
     .def = 0,
     .help = "seed of the search"},
    {.name = "ring-budget",
     .type = LVR_PARAM_SIZE,
     .offset = FIELD(ring_budget),
     .min = 0,
     .max = 1e15,
     .def = 0,
     .unit = "bytes",
     .help = "DRAM for the staging ring: search ring slots and slice size within it; 0: keep the schedule as "
             "recorded"},
    {.name = "emulate-flash",
     .type = LVR_PARAM_STR,
     .offset = FIELD(emulate_flash),
     .def = NAN,
     .help = "price reads as this device preset instead of as measured"},
    {.name = "emulate-scale",
     .type = LVR_PARAM_DOUBLE,
     .offset = FIELD(emulate_scale),
     .min = 1e-6,
     .max = 1,
     .def = 1,
     .unit = "1",
     .help = "slow that device down, all its rates alike"},
    {.name = "what-if",
     .type = LVR_PARAM_BOOL,
     .offset = FIELD(what_if),
     .max = 1,
     .help = "allow acceptance and timings of different models"},
    {.name = "json",
     .type = LVR_PARAM_BOOL,
     .offset = FIELD(json),
     .max = 1,
     .help = "the searched points as JSON instead of CSV"},
    {.name = "out",
     .short_name = 'o',
     .type = LVR_PARAM_STR,
     .offset = FIELD(out),
     .def = NAN,
     .help = "the policy file to write"},
};
#define N_PARAMS (sizeof table / sizeof *table)

typedef struct study {
    const tune_options *o;
    int argc;
    char *const *argv;
    lvr_cost_model *model;
    lvr_policy_file start;
    lvr_sim_oracle tune, held_out;
    uint32_t reported; /* tenths of the work */
} study;

static lvr_status check_options(const tune_options *o, lvr_error *err)
{
    if (!o->oracle || !o->cost)
        return lvr_fail(err, LVR_ERR_USAGE, "tune: needs --oracle TRACE and --cost FILE; %s is missing",
                        !o->oracle ? "--oracle" : "--cost");
    if (!o->out)
        return lvr_fail(err, LVR_ERR_USAGE, "tune: say where the policy file goes: -o FILE.yaml");
    const char *const inputs[] = {o->oracle, o->held_out, o->cost, o->emulate_flash,
                                  o->policy && lvr_policy_is_file(o->policy) ? o->policy : NULL};
    return lvr_emit_check_inputs(o->out, inputs, sizeof inputs / sizeof *inputs, err);
}

static lvr_status check_held_out(const study *s, lvr_error *err)
{
    const uint32_t n = s->held_out.outcome ? lvr_sim_count_fit_prompts(s->model, s->held_out.outcome) : 0;
    if (n > 0)
        return lvr_fail(err, LVR_ERR_CONFIG,
                        "tune: %u held-out prompts of %s are among those that %s was fitted on, so the "
                        "prediction would not be held out; "
                        "record other prompts",
                        n, s->o->held_out, s->o->cost);
    return LVR_OK;
}

static lvr_status load(study *s, lvr_error *err)
{
    const tune_options *o = s->o;
    bool mixed = false;
    lvr_status st = lvr_cost_model_load(o->cost, s->model, err);
    if (!st && o->emulate_flash)
        st = lvr_sim_emulate(s->model, o->emulate_flash, o->emulate_scale, err);
    if (!st)
        st = lvr_sim_oracle_load(o->oracle, &s->tune, err);
    if (!st)
        st = lvr_sim_check_pair(s->model, o->cost, &s->tune, o->what_if, &mixed, err);
    if (!st && o->held_out)
        st = lvr_sim_oracle_load(o->held_out, &s->held_out, err);
    if (!st && o->held_out)
        st = lvr_sim_check_pair(s->model, o->cost, &s->held_out, o->what_if, &mixed, err);
    if (!st)
        st = check_held_out(s, err);
    if (!st)
        st = lvr_sim_policy(o->policy, o->set.items, o->set.n, s->model, &s->start, err);
    if (st)
        return st;
    if (lvr_option_given(s->argc, s->argv, &table[ROW_IO]))
        s->start.geometry.io_mode = (lvr_io_mode)o->io;
    if (lvr_option_given(s->argc, s->argv, &table[ROW_RESIDENT]))
        lvr_geometry_set_resident(&s->start.geometry, o->resident, (lvr_residency)o->resident_layers);
    else if (lvr_option_given(s->argc, s->argv, &table[ROW_RESIDENT_LAYERS]))
        return lvr_fail(err, LVR_ERR_USAGE,
                        "--resident-layers says which layers of --resident FRACTION stay; give that too");
    if (lvr_option_given(s->argc, s->argv, &table[ROW_PLACE]))
        s->start.geometry.place = lvr_place_of_choice(o->place);
    if (lvr_option_given(s->argc, s->argv, &table[ROW_PLACE_DRAFT]))
        s->start.geometry.place_draft = lvr_place_of_choice(o->place_draft);
    if (lvr_option_given(s->argc, s->argv, &table[ROW_HEAD]))
        s->start.geometry.head = (lvr_head)o->head;
    return LVR_OK;
}

static void progress(void *user, uint32_t trial, uint32_t n_trials, double best)
{
    study *s = user;
    const uint32_t tenth = 10 * trial / n_trials;
    if (tenth == s->reported)
        return;
    s->reported = tenth;
    lvr_log(LVR_LOG_INFO, "tune: %u of %u trials, best %.3f tokens/s", trial, n_trials, best);
}

static lvr_status search(study *s, lvr_tune_result *ret, lvr_error *err)
{
    const lvr_fit_term *flash = lvr_cost_model_term(s->model, "flash");
    const lvr_tune_config c = {.start = &s->start,
                               .model = s->model,
                               .tune = s->tune.outcome,
                               .held_out = s->held_out.outcome,
                               .fixed = s->o->fix.items,
                               .n_fixed = s->o->fix.n,
                               .trials = s->o->trials,
                               .seed = s->o->seed,
                               .ring_budget_bytes = s->o->ring_budget,
                               .slice_bytes_min = flash && flash->n ? (uint64_t)flash->x_min : 0,
                               .slice_bytes_max = flash && flash->n ? (uint64_t)flash->x_max : 0,
                               .progress = progress,
                               .user = s,
                               .cancel = &lvr_cli_cancel};
    return lvr_tune(&c, ret, err);
}

static void log_result(const study *s, const lvr_tune_result *r)
{
    const lvr_tune_trial *best = &r->trials[r->best];
    lvr_log(LVR_LOG_INFO, "best: trial %u, %.3f tokens/s on %u tune prompts, %.3f tokens a round",
            r->best + 1, best->tokens_per_s, lvr_outcome_n_requests(s->tune.outcome),
            best->mean_acceptance_length);
    if (!isnan(best->lambda))
        lvr_log(LVR_LOG_INFO, "lambda %.3f tokens/s (gap to the speed it buys %.2f %%)", best->lambda,
                100 * r->lambda_gap);
    if (r->n_held_out > 0)
        lvr_log(r->held_out_outside_nodes ? LVR_LOG_WARN : LVR_LOG_INFO,
                "predicted: %.3f tokens/s on %u held-out prompts, %.3f tokens a round%s",
                r->held_out_tokens_per_s, r->n_held_out, r->held_out_acceptance_length,
                r->held_out_outside_nodes ? "; not exact: the policy met unrecorded nodes there" : "");
    else
        lvr_log(LVR_LOG_WARN, "no --held-out trace: the policy file carries no prediction");
}

static lvr_status run(study *s, lvr_error *err)
{
    lvr_tune_result r = {0};
    lvr_buf out = LVR_BUF_INIT;
    lvr_status st = check_options(s->o, err);
    if (!st)
        st = load(s, err);
    if (!st)
        st = search(s, &r, err);
    if (st)
        return st;
    log_result(s, &r);
    st = lvr_policy_file_save(s->o->out, &r.file, err);
    if (!st) {
        if (s->o->json)
            lvr_tune_report_json(&r, &out);
        else
            lvr_tune_report_csv(&r, &out);
        st = lvr_emit(NULL, &out, err);
    }
    lvr_tune_result_free(&r);
    return st;
}

lvr_status lvr_cmd_tune(int argc, char *const *argv, lvr_error *err)
{
    tune_options o;
    bool help = false;
    lvr_params_default(table, N_PARAMS, &o);
    lvr_status st = lvr_options_parse(table, N_PARAMS, &o, argc, argv, &help, err);
    study *s = calloc(1, sizeof(*s));
    lvr_cost_model *model = calloc(1, sizeof(*model));
    if (!st && (!s || !model))
        st = lvr_fail(err, LVR_ERR_NOMEM, "tune: out of memory");
    if (!st && help) {
        st = lvr_emit_help("usage: lever tune --oracle TRACE --cost FILE [--held-out TRACE] [--policy NAME] "
                           "-o POLICY.yaml\n\n",
                           table, N_PARAMS, err);
    } else if (!st) {
        *s = (study){.o = &o, .argc = argc, .argv = argv, .model = model};
        st = run(s, err);
        lvr_sim_oracle_free(&s->tune);
        lvr_sim_oracle_free(&s->held_out);
    }
    free(model);
    free(s);
    lvr_strlist_free(&o.set);
    lvr_strlist_free(&o.fix);
    return st;
}
