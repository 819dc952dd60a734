/* lever model plan: what a run would take in DRAM, which layers would stay and how long a pass would read.
 * Nothing is loaded. */
#include "cli/model_plan.h"

#include "cli/emit.h"
#include "cli/session_options.h"
#include "common/json.h"
#include <inttypes.h>
#include <stdlib.h>

#define MIB 1048576.0

static const char usage[] =
    "usage: lever model plan --target FILE [--draft FILE] [--dram-budget SIZE|auto] [options]\n"
    "\n"
    "What `lever run` with the same options would take in DRAM. No weights are loaded; a bare GGUF is "
    "packed\n"
    "into the cache first, as `lever run` would do. With --draft the policy counts as one that drafts.\n\n";

typedef struct plan_options {
    lvr_session_options session; /* first: see LVR_PLAN_OPTION_ROWS */
    bool json;
} plan_options;

static const lvr_param table[] = {
    LVR_PLAN_OPTION_ROWS,
    {.name = "json",
     .type = LVR_PARAM_BOOL,
     .offset = offsetof(plan_options, json),
     .max = 1,
     .help = "JSON on standard output"},
};
#define N_PARAMS (sizeof table / sizeof table[0])

/* ---- what a pass takes ---- */

typedef struct pass_estimate {
    uint64_t stream_bytes, layers_bytes;
    double bytes_per_s; /* NaN: not known */
    const char *source; /* of the rate */
    double seconds;     /* of reading, which a pass cannot be shorter than; NaN: not known */
} pass_estimate;

static double measured_rate(const lvr_flash_calibration *k, uint64_t slice_bytes, uint32_t depth)
{
    if (k->request_bytes == slice_bytes && k->depth == depth)
        return k->bytes_per_s;
    for (uint32_t i = 0; i < k->n_cells; i++)
        if (k->cells[i].request_bytes == slice_bytes && k->cells[i].depth == depth)
            return k->cells[i].bytes_per_s;
    return NAN;
}

/* Of a pass's reads, on the emulated device. */
static double emulated_seconds(const lvr_run_conditions *c, const lvr_geometry *g)
{
    lvr_cost_table t = {.flash = c->emulated_flash};
    t.flash.depth = t.flash.depth < c->depth ? t.flash.depth : c->depth; /* as the reader does */
    return lvr_cost_io_ns(&t, g) * 1e-9;
}

static pass_estimate estimate(const lvr_session *s, const lvr_run_conditions *c)
{
    const lvr_geometry *g = lvr_session_geometry(s);
    const lvr_session_budget *b = lvr_session_get_budget(s);
    pass_estimate e = {.stream_bytes = lvr_geometry_stream_bytes(g), .bytes_per_s = NAN, .source = ""};
    for (uint32_t l = 0; l < g->n_layers; l++)
        e.layers_bytes += g->layer_bytes[l];
    if (e.stream_bytes == 0)
        return e;
    if (c->emulated[0]) {
        e.source = c->emulated;
        e.seconds = emulated_seconds(c, g);
        e.bytes_per_s = (double)e.stream_bytes / e.seconds;
        return e;
    }
    e.source = "lever doctor --flash";
    if (b->calibrated)
        e.bytes_per_s = measured_rate(&b->flash, g->slice_bytes, c->depth);
    e.seconds = (double)e.stream_bytes / e.bytes_per_s;
    return e;
}

/* ---- parts ---- */

typedef struct part_row {
    const char *text, *key;
    uint64_t bytes;
} part_row;

#define N_PARTS 8u

static void list_parts(const lvr_budget_parts *p, part_row ret[N_PARTS])
{
    const part_row rows[N_PARTS] = {
        {"draft weights", "draft_bytes", p->draft_bytes},
        {"target embeddings", "embed_bytes", p->embed_bytes},
        {"target norm and head", "head_bytes", p->head_bytes},
        {"resident layers", "layers_bytes", p->layers_bytes},
        {"staging ring", "ring_bytes", p->ring_bytes},
        {"KV cache, target", "kv_target_bytes", p->kv_target_bytes},
        {"KV cache, draft", "kv_draft_bytes", p->kv_draft_bytes},
        {"workspace", "workspace_bytes", p->workspace_bytes},
    };
    for (size_t i = 0; i < N_PARTS; i++)
        ret[i] = rows[i];
}

/* ---- text ---- */

/* "0-3, 7" */
static void text_layers(const lvr_geometry *g, lvr_buf *out)
{
    const char *comma = "";
    for (uint32_t l = 0; l < g->n_layers; l++) {
        if (!g->resident[l])
            continue;
        const uint32_t first = l;
        while (l + 1 < g->n_layers && g->resident[l + 1])
            l++;
        lvr_buf_printf(out, l > first ? "%s%u-%u" : "%s%u", comma, first, l);
        comma = ", ";
    }
}

static void text_memory(const lvr_session_budget *b, lvr_buf *out)
{
    const lvr_memory_limit *m = &b->memory;
    lvr_buf_printf(out, "least feasible budget   %10.1f MiB  (%" PRIu64 " bytes)\n",
                   (double)b->least_bytes / MIB, b->least_bytes);
    if (b->limited && b->budget_bytes != UINT64_MAX)
        lvr_buf_printf(out, "budget                  %10.1f MiB\n", (double)b->budget_bytes / MIB);
    if (m->room_bytes != UINT64_MAX)
        lvr_buf_printf(out,
                       "left here               %10.1f MiB  (%s: %.1f MiB, in use %.1f), %.0f of them for "
                       "the program itself\n",
                       (double)m->room_bytes / MIB, m->source, (double)m->limit_bytes / MIB,
                       (double)m->used_bytes / MIB, (double)LVR_BUDGET_PROGRAM_BYTES / MIB);
}

static void text_pass(const lvr_geometry *g, const lvr_run_conditions *c, const pass_estimate *e,
                      lvr_buf *out)
{
    lvr_buf_printf(out, "read in a pass          %10.1f MiB  (%.1f %% of the layers' bytes)\n",
                   (double)e->stream_bytes / MIB, 100.0 * (double)e->stream_bytes / (double)e->layers_bytes);
    if (e->stream_bytes == 0)
        return;
    lvr_buf_printf(out, "reads                   %10.1f KiB, %u in flight; %s, ring of %u layers\n",
                   (double)g->slice_bytes / 1024.0, c->depth, lvr_io_mode_name(g->io_mode), g->ring_slots);
    if (isnan(e->seconds))
        lvr_buf_puts(out,
                     "a pass reads for        not known; measure the device with lever doctor --flash\n");
    else
        lvr_buf_printf(out, "a pass reads for        %10.3f s    (%.3f GB/s: %s)\n", e->seconds,
                       e->bytes_per_s * 1e-9, e->source);
}

static void text_plan(const lvr_session *s, const lvr_policy_file *run, const pass_estimate *e, lvr_buf *out)
{
    const lvr_geometry *g = lvr_session_geometry(s);
    const lvr_budget_parts *p = lvr_session_parts(s);
    part_row rows[N_PARTS];
    uint32_t n_resident = 0;
    list_parts(p, rows);
    for (size_t i = 0; i < N_PARTS; i++)
        if (rows[i].bytes > 0)
            lvr_buf_printf(out, "%-23s %10.1f MiB\n", rows[i].text, (double)rows[i].bytes / MIB);
    lvr_buf_printf(out, "total                   %10.1f MiB  (%" PRIu64 " bytes)\n",
                   (double)p->total_bytes / MIB, p->total_bytes);
    text_memory(lvr_session_get_budget(s), out);
    for (uint32_t l = 0; l < g->n_layers; l++)
        n_resident += g->resident[l];
    lvr_buf_printf(out, "layers                  %10u      %u resident%s", g->n_layers, n_resident,
                   n_resident ? ": " : "");
    text_layers(g, out);
    lvr_buf_printf(out, "\ncontext                 %10u      KV %s, prompt passes of %u rows\n",
                   lvr_session_n_ctx(s), run->conditions.kv_type, run->conditions.prefill_chunk);
    text_pass(g, &run->conditions, e, out);
}

/* ---- JSON ---- */

static void json_memory(const lvr_session_budget *b, lvr_json *j)
{
    const lvr_memory_limit *m = &b->memory;
    const bool limited = b->limited && b->budget_bytes != UINT64_MAX, known = m->room_bytes != UINT64_MAX;
    lvr_json_double(j, "dram_budget_bytes", limited ? (double)b->budget_bytes : NAN);
    lvr_json_u64(j, "least_feasible_bytes", b->least_bytes);
    lvr_json_u64(j, "program_bytes", LVR_BUDGET_PROGRAM_BYTES);
    lvr_json_object(j, "memory");
    lvr_json_double(j, "room_bytes", known ? (double)m->room_bytes : NAN);
    lvr_json_double(j, "limit_bytes", known ? (double)m->limit_bytes : NAN);
    lvr_json_double(j, "used_bytes", known ? (double)m->used_bytes : NAN);
    lvr_json_str(j, "source", known ? m->source : NULL);
    lvr_json_end_object(j);
}

static void json_parts(const lvr_budget_parts *p, lvr_json *j)
{
    part_row rows[N_PARTS];
    list_parts(p, rows);
    lvr_json_object(j, "parts");
    for (size_t i = 0; i < N_PARTS; i++)
        lvr_json_u64(j, rows[i].key, rows[i].bytes);
    lvr_json_end_object(j);
    lvr_json_u64(j, "total_bytes", p->total_bytes);
}

static void json_layers(const lvr_geometry *g, lvr_json *j)
{
    lvr_json_u64(j, "n_layers", g->n_layers);
    lvr_json_array(j, "resident_layers");
    for (uint32_t l = 0; l < g->n_layers; l++)
        if (g->resident[l])
            lvr_json_u64(j, NULL, l);
    lvr_json_end_array(j);
    lvr_json_double(j, "resident_fraction", lvr_geometry_resident_fraction(g));
    lvr_json_str(j, "io", lvr_io_mode_name(g->io_mode));
    lvr_json_u64(j, "ring_slots", g->ring_slots);
    lvr_json_u64(j, "slice_bytes", g->slice_bytes);
}

static void json_plan(const lvr_session *s, const lvr_policy_file *run, const pass_estimate *e, lvr_buf *out)
{
    lvr_json j;
    lvr_json_init(&j, out, true);
    lvr_json_object(&j, NULL);
    json_parts(lvr_session_parts(s), &j);
    json_memory(lvr_session_get_budget(s), &j);
    json_layers(lvr_session_geometry(s), &j);
    lvr_json_u64(&j, "depth", run->conditions.depth);
    lvr_json_u64(&j, "context", lvr_session_n_ctx(s));
    lvr_json_str(&j, "kv_type", run->conditions.kv_type);
    lvr_json_u64(&j, "prefill_chunk", run->conditions.prefill_chunk);
    lvr_json_u64(&j, "pass_bytes", e->stream_bytes);
    lvr_json_double(&j, "streamed_share", (double)e->stream_bytes / (double)e->layers_bytes);
    lvr_json_double(&j, "flash_bytes_per_s", e->bytes_per_s);
    lvr_json_str(&j, "flash_source", isnan(e->bytes_per_s) ? NULL : e->source);
    lvr_json_double(&j, "pass_s", e->seconds);
    lvr_json_end_object(&j);
    lvr_buf_puts(out, "\n");
}

/* ---- the command ---- */

static lvr_status print_plan(const lvr_session *s, bool json, lvr_error *err)
{
    lvr_policy_file *run = calloc(1, sizeof *run);
    lvr_buf out = LVR_BUF_INIT;
    if (!run)
        return lvr_fail(err, LVR_ERR_NOMEM, "out of memory for a plan");
    lvr_session_describe(s, 0, run);
    const pass_estimate e = estimate(s, &run->conditions);
    if (json)
        json_plan(s, run, &e, &out);
    else
        text_plan(s, run, &e, &out);
    free(run);
    return lvr_emit(NULL, &out, err);
}

static lvr_status plan(const plan_options *o, const lvr_command_line *line, lvr_error *err)
{
    lvr_session *session = NULL;
    lvr_session_setup *setup = calloc(1, sizeof *setup);
    if (!setup)
        return lvr_fail(err, LVR_ERR_NOMEM, "out of memory for a plan");
    lvr_status status = lvr_session_options_resolve(&o->session, line, setup, err);
    if (status == LVR_OK)
        status = lvr_session_preview(&setup->config, &session, err);
    if (status == LVR_OK)
        status = print_plan(session, o->json, err);
    lvr_session_free(session);
    free(setup);
    return status;
}

lvr_status lvr_model_plan_cmd(int argc, char *const *argv, lvr_error *err)
{
    plan_options o = {.session = {.top_p = 1, .tokens = 1}};
    bool help = false;
    lvr_params_default(table, N_PARAMS, &o);
    const lvr_status status = lvr_options_parse(table, N_PARAMS, &o, argc, argv, &help, err);
    if (status != LVR_OK)
        return status;
    if (help)
        return lvr_emit_help(usage, table, N_PARAMS, err);
    const lvr_command_line line = {.table = table, .n = N_PARAMS, .argc = argc, .argv = argv};
    if (o.session.draft && !lvr_command_line_has(&line, "policy"))
        o.session.policy = "chain";
    return plan(&o, &line, err);
}
