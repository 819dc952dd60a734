/* lever correlate: a measured run against its simulated twin. */
#include "cli/cli.h"
#include "cli/emit.h"
#include "common/log.h"
#include "sim/correlate.h"
#include <math.h>
#include <stdlib.h>

typedef struct correlate_options {
    const char *measured, *oracle, *cost, *out;
    bool allow_fit_prompts, json;
} correlate_options;

#define FIELD(f) offsetof(correlate_options, f)

static const lvr_param table[] = {
    {.name = "measured",
     .type = LVR_PARAM_STR,
     .offset = FIELD(measured),
     .def = NAN,
     .help = "timing trace of the run to judge (lever record)"},
    {.name = "oracle",
     .type = LVR_PARAM_STR,
     .offset = FIELD(oracle),
     .def = NAN,
     .help = "oracle trace of the same prompts (lever record --oracle)"},
    {.name = "cost",
     .type = LVR_PARAM_STR,
     .offset = FIELD(cost),
     .def = NAN,
     .help = "cost model (lever fit), fitted on other prompts"},
    {.name = "allow-fit-prompts",
     .type = LVR_PARAM_BOOL,
     .offset = FIELD(allow_fit_prompts),
     .max = 1,
     .help = "compare on prompts of the fit all the same; the result is marked as a calibration"},
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

static lvr_status run(const correlate_options *o, lvr_cost_model *model, lvr_error *err)
{
    if (!o->measured || !o->oracle || !o->cost)
        return lvr_fail(err, LVR_ERR_USAGE,
                        "correlate: needs --measured TRACE, --oracle TRACE and --cost FILE; %s is missing",
                        !o->measured ? "--measured"
                        : !o->oracle ? "--oracle"
                                     : "--cost");
    lvr_sim_oracle oracle = {0};
    lvr_correlation c;
    lvr_buf out = LVR_BUF_INIT;
    const char *const inputs[] = {o->measured, o->oracle, o->cost};
    lvr_status st = lvr_emit_check_inputs(o->out, inputs, sizeof inputs / sizeof *inputs, err);
    if (!st)
        st = lvr_cost_model_load(o->cost, model, err);
    if (!st)
        st = lvr_sim_oracle_load(o->oracle, &oracle, err);
    if (!st)
        st = lvr_correlate(o->measured, &oracle, model, o->allow_fit_prompts, &c, err);
    lvr_sim_oracle_free(&oracle);
    if (st)
        return st;
    if (c.outside_nodes > 0)
        lvr_log(LVR_LOG_WARN,
                "the policy met nodes that the oracle trace does not hold: the twin is not exact");
    if (o->json)
        lvr_correlate_json(&c, &out);
    else
        lvr_correlate_text(&c, &out);
    return lvr_emit(o->out, &out, err);
}

lvr_status lvr_cmd_correlate(int argc, char *const *argv, lvr_error *err)
{
    correlate_options o;
    bool help = false;
    lvr_params_default(table, N_PARAMS, &o);
    lvr_status st = lvr_options_parse(table, N_PARAMS, &o, argc, argv, &help, err);
    if (st)
        return st;
    if (help)
        return lvr_emit_help(
            "usage: lever correlate --measured TRACE --oracle TRACE --cost FILE [--json]\n\n", table,
            N_PARAMS, err);
    lvr_cost_model *model = calloc(1, sizeof(*model));
    if (!model)
        return lvr_fail(err, LVR_ERR_NOMEM, "correlate: out of memory");
    st = run(&o, model, err);
    free(model);
    return st;
}
