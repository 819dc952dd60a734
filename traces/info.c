/* What a trace is, for people and as JSON. */
#include "common/buf.h"
#include "common/json.h"
#include "costmodel/core/cost.h"
#include "traces/ring_use.h"
#include "traces/trace_parts.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *or_unknown(const char *text)
{
    return text[0] ? text : "unknown";
}

static uint64_t total(const uint64_t *per_stream)
{
    uint64_t sum = 0;
    for (int s = 0; s < LVR_STREAM_COUNT; s++)
        sum += per_stream[s];
    return sum;
}

static uint64_t layer_bytes(const lvr_trace_model *m, bool resident_only)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < m->n_layers && i < LVR_TRACE_MAX_LAYERS; i++)
        if (!resident_only || m->resident[i])
            sum += m->bytes_per_layer[i];
    return sum;
}

/* ---- units ---- */

#define N_UNITS (LVR_UNIT_NPU + 1u)
#define BATCH 2048u

/* What /kernels ran where. */
typedef struct unit_use {
    uint64_t operators, busy_ns, launch_ns; /* launch: submission to start */
} unit_use;

static const char *const unit_names[N_UNITS] = {[LVR_UNIT_CPU] = "cpu", [LVR_UNIT_NPU] = "npu"};

static lvr_status sum_units(lvr_trace *t, unit_use ret[N_UNITS], lvr_error *err)
{
    const uint64_t n = lvr_trace_rows(t, LVR_STREAM_KERNELS);
    lvr_rec_kernel batch[BATCH];
    memset(ret, 0, N_UNITS * sizeof *ret);
    for (uint64_t first = 0; first < n; first += BATCH) {
        const uint64_t count = n - first < BATCH ? n - first : BATCH;
        const lvr_status status = lvr_trace_read(t, LVR_STREAM_KERNELS, first, count, batch, err);
        if (status != LVR_OK)
            return status;
        for (uint64_t i = 0; i < count; i++) {
            const lvr_rec_kernel *k = &batch[i];
            if (k->unit >= N_UNITS || k->t_end_ns < k->t_start_ns || k->t_start_ns < k->t_submit_ns)
                continue; /* lever trace validate says so */
            unit_use *u = &ret[k->unit];
            u->operators++;
            u->busy_ns += k->t_end_ns - k->t_start_ns;
            u->launch_ns += k->t_start_ns - k->t_submit_ns;
        }
    }
    return LVR_OK;
}

/* ---- text ---- */

static void text_model(lvr_buf *out, const char *label, const lvr_trace_model *m)
{
    if (!m->name[0] && m->n_layers == 0)
        return;
    lvr_buf_printf(out,
                   "%-10s %s (%s, %s), %u layers, d_model %u, vocab %u, %" PRIu64 " bytes of layers, %" PRIu64
                   " resident\n",
                   label, or_unknown(m->name), or_unknown(m->arch), or_unknown(m->quant), m->n_layers,
                   m->d_model, m->vocab, layer_bytes(m, false), layer_bytes(m, true));
    if (m->sha256[0])
        lvr_buf_printf(out, "%-10s sha256 %s\n", "", m->sha256);
}

static void text_head(lvr_buf *out, const lvr_trace *t)
{
    const lvr_trace_meta *m = &t->meta;
    lvr_buf_printf(out, "%s\n", t->path);
    lvr_buf_printf(out, "%-10s %s %u.%u, %s%s\n", "format", LVR_TRACE_SCHEMA, m->version_major,
                   m->version_minor, lvr_trace_kind_name(m->kind), m->synthetic ? ", synthetic" : "");
    lvr_buf_printf(
        out, "%-10s %s\n", "complete",
        m->complete ? "yes" : "no: the recording was cut short; rows end at the last round all streams hold");
    lvr_buf_printf(out, "%-10s %s, by %s (%s, %s)\n", "created", or_unknown(m->created_utc),
                   or_unknown(m->software), or_unknown(m->commit), or_unknown(m->compiler));
    lvr_buf_printf(out, "%-10s %.3f s, seed %" PRIu64 "\n", "recorded",
                   (double)lvr_trace_duration_ns(t) / 1e9, m->seed);
    if (!isnan(m->recorder_overhead_pct))
        lvr_buf_printf(out, "%-10s %.2f %%\n", "overhead", m->recorder_overhead_pct);
    lvr_buf_printf(out, "%-10s %s %s, %s %s, %s on %s%s%s%s\n", "device", or_unknown(m->device.vendor),
                   or_unknown(m->device.model), or_unknown(m->device.os), m->device.kernel,
                   or_unknown(m->device.io_engine), or_unknown(m->device.filesystem),
                   m->device.direct ? ", direct" : "", m->device.emulated[0] ? ", emulating " : "",
                   m->device.emulated);
    text_model(out, "target", &m->target);
    text_model(out, "draft", &m->draft);
    if (m->kind == LVR_TRACE_ORACLE)
        lvr_buf_printf(
            out, "%-10s branch %u, expansions %u, depth %u, path probability >= %g; temperature %g\n", "caps",
            m->cap_branch, m->cap_expansions, m->cap_depth, m->cap_min_path, m->temperature);
}

static void text_streams(lvr_buf *out, const lvr_trace *t)
{
    lvr_buf_printf(out, "\n%-16s %12s %12s\n", "stream", "rows", "dropped");
    for (int s = 0; s < LVR_STREAM_COUNT; s++) {
        const uint64_t rows = lvr_trace_rows(t, (lvr_stream)s);
        if (rows > 0 || t->meta.dropped[s] > 0)
            lvr_buf_printf(out, "%-16s %12" PRIu64 " %12" PRIu64 "\n",
                           lvr_stream_describe((lvr_stream)s)->name, rows, t->meta.dropped[s]);
    }
    if (total(t->meta.dropped) > 0)
        lvr_buf_puts(out, "\nThe recorder dropped records: results from this trace miss them.\n");
}

static void text_units(lvr_buf *out, const unit_use units[N_UNITS])
{
    if (units[LVR_UNIT_CPU].operators + units[LVR_UNIT_NPU].operators == 0)
        return;
    lvr_buf_printf(out, "\n%-16s %12s %12s %12s\n", "unit", "operators", "busy s", "launch s");
    for (uint32_t u = 0; u < N_UNITS; u++)
        if (units[u].operators > 0)
            lvr_buf_printf(out, "%-16s %12" PRIu64 " %12.6f %12.6f\n", unit_names[u], units[u].operators,
                           (double)units[u].busy_ns / 1e9, (double)units[u].launch_ns / 1e9);
}

static void text_ring(lvr_buf *out, const lvr_ring_use *u)
{
    const double window = (double)u->window_ns;
    if (u->window_ns == 0)
        return;
    lvr_buf_printf(
        out,
        "\nring: %.3f s in requests; flash idle %.2f %%; compute waited for a layer %.2f %% (%" PRIu64
        " times)\n",
        window / 1e9, 100 * (double)u->flash_idle_ns / window, 100 * (double)u->wait_ns / window, u->waits);
    lvr_buf_printf(out, "%-16s %12s\n%-16s %12.2f\n", "layers staged", "% of time", "mean",
                   lvr_ring_use_mean(u));
    for (uint32_t n = 0; n <= u->max_staged; n++)
        lvr_buf_printf(out, "%-16u %12.2f\n", n, 100 * (double)u->staged_ns[n] / window);
}

/* ---- JSON ---- */

static void json_text(lvr_json *j, const char *key, const char *text)
{
    lvr_json_str(j, key, text[0] ? text : NULL);
}

static void json_model(lvr_json *j, const char *key, const lvr_trace_model *m)
{
    if (!m->name[0] && m->n_layers == 0)
        return;
    lvr_json_object(j, key);
    json_text(j, "name", m->name);
    json_text(j, "arch", m->arch);
    json_text(j, "quant", m->quant);
    json_text(j, "sha256", m->sha256);
    lvr_json_u64(j, "n_layers", m->n_layers);
    lvr_json_u64(j, "d_model", m->d_model);
    lvr_json_u64(j, "n_heads", m->n_heads);
    lvr_json_u64(j, "n_kv", m->n_kv);
    lvr_json_u64(j, "d_ff", m->d_ff);
    lvr_json_u64(j, "vocab", m->vocab);
    lvr_json_u64(j, "layer_bytes", layer_bytes(m, false));
    lvr_json_u64(j, "resident_bytes", layer_bytes(m, true));
    lvr_json_end_object(j);
}

static void json_device(lvr_json *j, const lvr_trace_device *d)
{
    lvr_json_object(j, "device");
    json_text(j, "vendor", d->vendor);
    json_text(j, "model", d->model);
    json_text(j, "os", d->os);
    json_text(j, "kernel", d->kernel);
    json_text(j, "cpu_flags", d->cpu_flags);
    json_text(j, "filesystem", d->filesystem);
    json_text(j, "io_engine", d->io_engine);
    lvr_json_bool(j, "direct", d->direct);
    json_text(j, "emulated", d->emulated);
    lvr_json_double(j, "scale", d->scale);
    json_text(j, "sha256", d->sha256);
    lvr_json_end_object(j);
}

static void json_head(lvr_json *j, const lvr_trace *t)
{
    const lvr_trace_meta *m = &t->meta;
    char version[32];
    snprintf(version, sizeof version, "%u.%u", m->version_major, m->version_minor);
    lvr_json_str(j, "path", t->path);
    lvr_json_str(j, "schema", LVR_TRACE_SCHEMA);
    lvr_json_str(j, "version", version);
    lvr_json_str(j, "kind", lvr_trace_kind_name(m->kind));
    lvr_json_bool(j, "complete", m->complete);
    lvr_json_bool(j, "synthetic", m->synthetic);
    lvr_json_u64(j, "seed", m->seed);
    json_text(j, "created_utc", m->created_utc);
    json_text(j, "software", m->software);
    json_text(j, "commit", m->commit);
    json_text(j, "compiler", m->compiler);
    lvr_json_double(j, "duration_s", (double)lvr_trace_duration_ns(t) / 1e9);
    lvr_json_double(j, "recorder_overhead_pct", m->recorder_overhead_pct);
    lvr_json_u64(j, "dropped", total(m->dropped));
}

static void json_sampling(lvr_json *j, const lvr_trace_meta *m)
{
    lvr_json_object(j, "sampling");
    lvr_json_double(j, "temperature", m->temperature);
    lvr_json_double(j, "top_p", m->top_p);
    lvr_json_u64(j, "top_k", m->top_k);
    lvr_json_end_object(j);
    if (m->kind != LVR_TRACE_ORACLE)
        return;
    lvr_json_object(j, "oracle");
    lvr_json_u64(j, "cap_branch", m->cap_branch);
    lvr_json_u64(j, "cap_expansions", m->cap_expansions);
    lvr_json_u64(j, "cap_depth", m->cap_depth);
    lvr_json_double(j, "cap_min_path", m->cap_min_path);
    lvr_json_end_object(j);
}

static void json_streams(lvr_json *j, const lvr_trace *t)
{
    lvr_json_object(j, "streams");
    for (int s = 0; s < LVR_STREAM_COUNT; s++) {
        lvr_json_object(j, lvr_stream_key((lvr_stream)s));
        lvr_json_u64(j, "rows", lvr_trace_rows(t, (lvr_stream)s));
        lvr_json_u64(j, "dropped", t->meta.dropped[s]);
        lvr_json_end_object(j);
    }
    lvr_json_end_object(j);
}

static void json_units(lvr_json *j, const unit_use units[N_UNITS])
{
    lvr_json_object(j, "units");
    for (uint32_t u = 0; u < N_UNITS; u++) {
        if (units[u].operators == 0)
            continue;
        lvr_json_object(j, unit_names[u]);
        lvr_json_u64(j, "operators", units[u].operators);
        lvr_json_double(j, "busy_s", (double)units[u].busy_ns / 1e9);
        lvr_json_double(j, "launch_s", (double)units[u].launch_ns / 1e9);
        lvr_json_end_object(j);
    }
    lvr_json_end_object(j);
}

static void json_ring(lvr_json *j, const lvr_ring_use *u)
{
    if (u->window_ns == 0)
        return;
    lvr_json_object(j, "ring");
    lvr_json_double(j, "requests_s", (double)u->window_ns / 1e9);
    lvr_json_double(j, "io_idle_s", (double)u->flash_idle_ns / 1e9);
    lvr_json_double(j, "io_wait_s", (double)u->wait_ns / 1e9);
    lvr_json_u64(j, "waits", u->waits);
    lvr_json_double(j, "mean_staged", lvr_ring_use_mean(u));
    lvr_json_array(j, "staged_share");
    for (uint32_t n = 0; n <= u->max_staged; n++)
        lvr_json_double(j, NULL, (double)u->staged_ns[n] / (double)u->window_ns);
    lvr_json_end_array(j);
    lvr_json_end_object(j);
}

static void json_info(lvr_buf *out, const lvr_trace *t, const unit_use units[N_UNITS],
                      const lvr_ring_use *ring)
{
    lvr_json j;
    lvr_json_init(&j, out, true);
    lvr_json_object(&j, NULL);
    json_head(&j, t);
    json_device(&j, &t->meta.device);
    json_model(&j, "target", &t->meta.target);
    json_model(&j, "draft", &t->meta.draft);
    json_sampling(&j, &t->meta);
    lvr_json_array(&j, "domains");
    for (uint32_t i = 0; i < t->meta.n_domains; i++)
        lvr_json_str(&j, NULL, t->meta.domains[i]);
    lvr_json_end_array(&j);
    json_streams(&j, t);
    json_units(&j, units);
    json_ring(&j, ring);
    lvr_json_end_object(&j);
    lvr_buf_puts(out, "\n");
}

lvr_status lvr_trace_info(lvr_trace *t, bool json, lvr_buf *out, lvr_error *err)
{
    unit_use units[N_UNITS];
    lvr_ring_use ring = {0};
    lvr_status status = sum_units(t, units, err);
    if (status == LVR_OK)
        status = lvr_trace_ring_use(t, &ring, err);
    if (status != LVR_OK)
        return status;
    if (json) {
        json_info(out, t, units, &ring);
    } else {
        text_head(out, t);
        text_streams(out, t);
        text_units(out, units);
        text_ring(out, &ring);
    }
    return out->failed ? lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory for the summary", t->path) : LVR_OK;
}
