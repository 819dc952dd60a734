/* lever fit: traces to a cost model. */
#include "cli/cli.h"
#include "cli/emit.h"
#include "common/json.h"
#include "costmodel/fit/fit.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

typedef struct fit_options {
    lvr_strlist traces;
    const char *out;
    bool json;
} fit_options;

#define FIELD(f) offsetof(fit_options, f)

static const lvr_param table[] = {
    {.name = "traces",
     .type = LVR_PARAM_STR,
     .offset = FIELD(traces),
     .def = NAN,
     .help =
         "timing traces (operators, flash) and oracle traces (acceptance) of one device and pair of models",
     .positional = true,
     .multi = true},
    {.name = "out",
     .short_name = 'o',
     .type = LVR_PARAM_STR,
     .offset = FIELD(out),
     .def = NAN,
     .help = "write the cost model (YAML) here; without it, it goes to standard output"},
    {.name = "json",
     .type = LVR_PARAM_BOOL,
     .offset = FIELD(json),
     .max = 1,
     .help = "residuals as JSON (with --out)"},
};
#define N_PARAMS (sizeof table / sizeof *table)

static const lvr_op placeable[] = {LVR_OP_LAYER, LVR_OP_DRAFT};
#define N_PLACEABLE (sizeof placeable / sizeof *placeable)

/* From how many rows on an accelerator is the cheaper place, before anything is cached. */
static uint32_t crossover(const lvr_cost_model *m, lvr_op op)
{
    return lvr_cost_crossover(&m->table, op, 0, LVR_MAX_VERIFY_NODES);
}

static void crossovers_text(const lvr_cost_model *m, lvr_buf *out)
{
    for (size_t i = 0; i < N_PLACEABLE; i++) {
        const uint32_t rows = crossover(m, placeable[i]);
        const char *name = lvr_op_name(placeable[i]);
        if (m->table.npu[placeable[i]].n == 0)
            continue;
        if (rows > 0)
            lvr_buf_printf(out, "w* %-12s the accelerator is cheaper from %u rows on\n", name, rows);
        else
            lvr_buf_printf(out, "w* %-12s the accelerator is never cheaper\n", name);
    }
}

static void crossovers_json(const lvr_cost_model *m, lvr_json *j)
{
    lvr_json_object(j, "crossover_rows");
    for (size_t i = 0; i < N_PLACEABLE; i++) {
        const uint32_t rows = crossover(m, placeable[i]);
        lvr_json_double(j, lvr_op_name(placeable[i]), rows ? rows : NAN);
    }
    lvr_json_end_object(j);
}

static void residuals_text(const lvr_cost_model *m, lvr_buf *out)
{
    lvr_buf_puts(out, "term           samples      p50      p90      p99     bias   range\n");
    for (uint32_t i = 0; i < m->n_terms; i++) {
        const lvr_fit_term *t = &m->terms[i];
        lvr_buf_printf(out, "%-12s %9" PRIu64 " %7.2f%% %7.2f%% %7.2f%% %+7.2f%%   %g to %g\n", t->name, t->n,
                       100 * t->p50, 100 * t->p90, 100 * t->p99, 100 * t->bias, t->x_min, t->x_max);
    }
    crossovers_text(m, out);
}

static void residuals_json(const lvr_cost_model *m, lvr_buf *out)
{
    lvr_json j;
    lvr_json_init(&j, out, true);
    lvr_json_object(&j, NULL);
    lvr_json_object(&j, "terms");
    for (uint32_t i = 0; i < m->n_terms; i++) {
        const lvr_fit_term *t = &m->terms[i];
        lvr_json_object(&j, t->name);
        lvr_json_str(&j, "form", t->form);
        lvr_json_u64(&j, "n", t->n);
        lvr_json_double(&j, "p50", t->p50);
        lvr_json_double(&j, "p90", t->p90);
        lvr_json_double(&j, "p99", t->p99);
        lvr_json_double(&j, "bias", t->bias);
        lvr_json_double(&j, "x_min", t->x_min);
        lvr_json_double(&j, "x_max", t->x_max);
        lvr_json_end_object(&j);
    }
    lvr_json_end_object(&j);
    crossovers_json(m, &j);
    lvr_json_u64(&j, "n_prompts", m->n_prompts);
    lvr_json_end_object(&j);
    lvr_buf_puts(out, "\n");
}

static lvr_status report(const fit_options *o, const lvr_cost_model *m, lvr_error *err)
{
    lvr_buf out = LVR_BUF_INIT;
    if (o->out) {
        const lvr_status st = lvr_cost_model_save(o->out, m, err);
        if (st)
            return st;
        if (o->json)
            residuals_json(m, &out);
        else
            residuals_text(m, &out);
        return lvr_emit(NULL, &out, err);
    }
    const lvr_status st = lvr_cost_model_format(m, &out, err);
    if (!st)
        return lvr_emit(NULL, &out, err);
    lvr_buf_free(&out);
    return st;
}

static lvr_status run(const fit_options *o, lvr_error *err)
{
    if (o->json && !o->out)
        return lvr_fail(err, LVR_ERR_USAGE,
                        "fit: --json prints residuals, so the model needs a file: add --out FILE");
    lvr_status st = lvr_emit_check_inputs(o->out, (const char *const *)o->traces.items, o->traces.n, err);
    if (st)
        return st;
    lvr_cost_model *m = calloc(1, sizeof(*m));
    if (!m)
        return lvr_fail(err, LVR_ERR_NOMEM, "fit: out of memory");
    st = lvr_cost_model_fit(o->traces.items, o->traces.n, m, err);
    if (!st)
        st = report(o, m, err);
    free(m);
    return st;
}

lvr_status lvr_cmd_fit(int argc, char *const *argv, lvr_error *err)
{
    fit_options o;
    bool help = false;
    lvr_params_default(table, N_PARAMS, &o);
    lvr_status st = lvr_options_parse(table, N_PARAMS, &o, argc, argv, &help, err);
    if (!st)
        st = help ? lvr_emit_help("usage: lever fit TRACE... [-o COST.yaml] [--json]\n\n", table, N_PARAMS,
                                  err)
                  : run(&o, err);
    lvr_strlist_free(&o.traces);
    return st;
}
