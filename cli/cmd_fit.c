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
     .help = "timing traces (operators, flash) and oracle traces (acceptance, exit predictor) of one device "
             "and pair of models",
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
     .help = "residuals, and how the exit predictor does against its control, as JSON (with --out)"},
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

static const char *winner(const lvr_fit_exit_cut *c)
{
    return c->row_work < c->control_rows ? "predictor" : "control";
}

/* At the recall whose threshold is kept. */
static const lvr_fit_exit_cut *kept_cut(const lvr_fit_exit_layer *l)
{
    for (int i = 0; i < LVR_FIT_RECALLS; i++)
        if (l->cut[i].recall == 0.99)
            return &l->cut[i];
    return &l->cut[0];
}

static const lvr_fit_exit_layer *best_layer(const lvr_fit_exit_report *r)
{
    const lvr_fit_exit_layer *best = &r->at[0];
    for (uint32_t i = 1; i < r->n; i++)
        if (kept_cut(&r->at[i])->row_work < kept_cut(best)->row_work)
            best = &r->at[i];
    return best;
}

static void exit_text(const lvr_fit_exit_report *r, lvr_buf *out)
{
    if (r->n == 0)
        return;
    lvr_buf_printf(
        out,
        "\nexit predictor: %" PRIu64 " trees of %.1f rows, %" PRIu64 " accepted nodes, %s\n"
        "row-work: rows through all %u layers; control: draft confidence, cut before the pass\n"
        "layer   recall retained  kept rows  row-work | control rows retained |    auc  control  less "
        "work\n",
        r->n_trees, (double)r->n_rows / (double)r->n_trees, r->n_accepted,
        r->crossed ? "each text judged by a fit without it"
                   : "too few texts to leave any out: judged by what was fitted on",
        r->n_layers);
    for (uint32_t i = 0; i < r->n; i++)
        for (int k = 0; k < LVR_FIT_RECALLS; k++) {
            const lvr_fit_exit_layer *l = &r->at[i];
            const lvr_fit_exit_cut *c = &l->cut[k];
            lvr_buf_printf(out, "%5u %7.1f%% %7.2f%% %10.2f %9.2f | %12.2f %7.2f%% | %6.4f  %6.4f  %s\n",
                           l->layer, 100 * c->recall, 100 * c->retained, c->kept_rows, c->row_work,
                           c->control_rows, 100 * c->control_retained, l->auc, l->control_auc, winner(c));
        }
    const lvr_fit_exit_layer *best = best_layer(r);
    const lvr_fit_exit_cut *c = kept_cut(best);
    lvr_buf_printf(out,
                   "at recall 99 %%: the %s wins; the predictor is best after layer %u: %.2f rows of work, "
                   "the control %.2f, all "
                   "%.2f\n",
                   winner(c), best->layer, c->row_work, c->control_rows,
                   (double)r->n_rows / (double)r->n_trees);
}

static void cut_json(const lvr_fit_exit_cut *c, lvr_json *j)
{
    lvr_json_object(j, NULL);
    lvr_json_double(j, "recall", c->recall);
    lvr_json_double(j, "threshold", c->threshold);
    lvr_json_double(j, "retained", c->retained);
    lvr_json_double(j, "kept_rows", c->kept_rows);
    lvr_json_double(j, "row_work", c->row_work);
    lvr_json_double(j, "control_rows", c->control_rows);
    lvr_json_double(j, "control_retained", c->control_retained);
    lvr_json_str(j, "less_work", winner(c));
    lvr_json_end_object(j);
}

static void exit_json(const lvr_fit_exit_report *r, lvr_json *j)
{
    lvr_json_object(j, "exit");
    lvr_json_u64(j, "n_trees", r->n_trees);
    lvr_json_u64(j, "n_rows", r->n_rows);
    lvr_json_u64(j, "n_accepted", r->n_accepted);
    lvr_json_u64(j, "n_layers", r->n_layers);
    lvr_json_bool(j, "crossed", r->crossed);
    lvr_json_u64(j, "best_layer", best_layer(r)->layer);
    lvr_json_str(j, "wins", winner(kept_cut(best_layer(r))));
    lvr_json_array(j, "layers");
    for (uint32_t i = 0; i < r->n; i++) {
        lvr_json_object(j, NULL);
        lvr_json_u64(j, "layer", r->at[i].layer);
        lvr_json_double(j, "auc", r->at[i].auc);
        lvr_json_double(j, "control_auc", r->at[i].control_auc);
        lvr_json_array(j, "cuts");
        for (int k = 0; k < LVR_FIT_RECALLS; k++)
            cut_json(&r->at[i].cut[k], j);
        lvr_json_end_array(j);
        lvr_json_end_object(j);
    }
    lvr_json_end_array(j);
    lvr_json_end_object(j);
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
    if (m->exit_report.n > 0)
        exit_json(&m->exit_report, &j);
    lvr_json_end_object(&j);
    lvr_buf_puts(out, "\n");
}

static void report_text(const lvr_cost_model *m, lvr_buf *out)
{
    residuals_text(m, out);
    exit_text(&m->exit_report, out);
    if (m->exit.n > 0 && m->table.op[LVR_OP_SCORE].curve.n == 0)
        lvr_buf_puts(
            out,
            "No trace has timed the scoring of rows, so that pruning has no price and lever tune leaves it "
            "out; record one with --policy random --set prune=0.1\n");
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
            report_text(m, &out);
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
