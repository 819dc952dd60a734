#include "sim/inputs.h"

#include "common/log.h"
#include "costmodel/core/device_preset.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* From the run that the trace embeds, if it embeds one. A cache of fewer bits is another target: its texts
 * differ. */
static lvr_status read_kv_type(const lvr_trace_meta *meta, const char *path, lvr_sim_oracle *o,
                               lvr_error *err)
{
    const char *text = meta->config_yaml;
    if (!text)
        return LVR_OK;
    lvr_policy_file *run = calloc(1, sizeof *run);
    if (!run)
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory for /config", path);
    char name[300];
    snprintf(name, sizeof name, "%s:/config", path);
    const lvr_status st = lvr_policy_file_parse(name, text, strlen(text), run, err);
    if (!st)
        memcpy(o->kv_type, run->conditions.kv_type, sizeof o->kv_type);
    free(run);
    return st;
}

lvr_status lvr_sim_oracle_load(const char *path, lvr_sim_oracle *ret, lvr_error *err)
{
    lvr_trace *t = NULL;
    lvr_sim_oracle o = {0};
    lvr_status st = lvr_trace_open(path, &t, err);
    if (st)
        return st;
    const lvr_trace_meta *meta = lvr_trace_get_meta(t);
    snprintf(o.path, sizeof o.path, "%s", path);
    snprintf(o.target_name, sizeof o.target_name, "%s", meta->target.name);
    o.synthetic = meta->synthetic;
    snprintf(o.draft_name, sizeof o.draft_name, "%s", meta->draft.name);
    memcpy(o.target_sha256, meta->target.sha256, sizeof o.target_sha256);
    memcpy(o.draft_sha256, meta->draft.sha256, sizeof o.draft_sha256);
    o.temperature = meta->temperature;
    o.top_p = meta->top_p;
    o.top_k = meta->top_k;
    st = read_kv_type(meta, path, &o, err);
    if (!st)
        st = lvr_outcome_from_oracle(t, &o.outcome, err);
    lvr_trace_close(t);
    if (!st)
        *ret = o;
    return st;
}

void lvr_sim_oracle_free(lvr_sim_oracle *o)
{
    lvr_outcome_free(o->outcome);
    *o = (lvr_sim_oracle){0};
}

static lvr_status check_equal(const char *what, const char *cost_path, const char *a, const lvr_sim_oracle *o,
                              const char *b, bool what_if, bool *mixed, lvr_error *err)
{
    if (strcmp(a, b) == 0)
        return LVR_OK;
    if (!what_if)
        return lvr_fail(err, LVR_ERR_CONFIG,
                        "the %s differs: sha256 %.12s... in %s, %.12s... in %s; use a cost model and an "
                        "oracle trace of one pair, or add "
                        "--what-if to combine them (the result is marked)",
                        what, a[0] ? a : "none", cost_path, b[0] ? b : "none", o->path);
    lvr_log(LVR_LOG_WARN, "--what-if: acceptance of %s <- %s with timings of another %s", o->target_name,
            o->draft_name, what);
    *mixed = true;
    return LVR_OK;
}

static lvr_status check_kv_types(const lvr_cost_model *m, const char *cost_path, const lvr_sim_oracle *o,
                                 bool what_if, bool *mixed, lvr_error *err)
{
    const char *mine = m->conditions.kv_type;
    if (!mine[0] || !o->kv_type[0] || strcmp(mine, o->kv_type) == 0)
        return LVR_OK;
    if (!what_if)
        return lvr_fail(err, LVR_ERR_CONFIG,
                        "%s was measured with KV caches of type %s, %s was recorded with %s; use the same "
                        "--kv-type for both, or add --what-if (the result is marked)",
                        cost_path, mine, o->path, o->kv_type);
    lvr_log(LVR_LOG_WARN, "--what-if: acceptance with KV caches of type %s, timings with %s", o->kv_type,
            mine);
    *mixed = true;
    return LVR_OK;
}

lvr_status lvr_sim_check_pair(const lvr_cost_model *m, const char *cost_path, const lvr_sim_oracle *o,
                              bool what_if, bool *ret_mixed, lvr_error *err)
{
    lvr_status st = check_equal("target model", cost_path, m->target_sha256, o, o->target_sha256, what_if,
                                ret_mixed, err);
    if (!st && m->draft_sha256[0])
        st = check_equal("draft model", cost_path, m->draft_sha256, o, o->draft_sha256, what_if, ret_mixed,
                         err);
    if (!st)
        st = check_kv_types(m, cost_path, o, what_if, ret_mixed, err);
    if (st || m->conditions.temperature == o->temperature)
        return st;
    if (!what_if)
        return lvr_fail(err, LVR_ERR_CONFIG,
                        "%s was measured at temperature %g, %s was recorded at %g; record both alike, or add "
                        "--what-if (the result is "
                        "marked)",
                        cost_path, m->conditions.temperature, o->path, o->temperature);
    *ret_mixed = true;
    return LVR_OK;
}

uint32_t lvr_sim_count_fit_prompts(const lvr_cost_model *m, const lvr_outcome *o)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < lvr_outcome_n_requests(o); i++) {
        lvr_sim_request r;
        lvr_outcome_request(o, i, &r);
        n += lvr_cost_model_has_prompt(m, r.prompt_hash);
    }
    return n;
}

static bool has_prompt(const lvr_outcome *o, uint64_t hash)
{
    for (uint32_t i = 0; i < lvr_outcome_n_requests(o); i++) {
        lvr_sim_request r;
        lvr_outcome_request(o, i, &r);
        if (r.prompt_hash == hash)
            return true;
    }
    return false;
}

uint32_t lvr_sim_count_shared_prompts(const lvr_outcome *a, const lvr_outcome *b)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < lvr_outcome_n_requests(a); i++) {
        lvr_sim_request r;
        lvr_outcome_request(a, i, &r);
        n += has_prompt(b, r.prompt_hash);
    }
    return n;
}

uint32_t lvr_sim_context_needed(const lvr_outcome *o)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < lvr_outcome_n_requests(o); i++) {
        lvr_sim_request r;
        lvr_outcome_request(o, i, &r);
        most = r.n_prompt + r.n_output > most ? r.n_prompt + r.n_output : most;
    }
    return most;
}

void lvr_sim_make_room(lvr_run_conditions *c, const lvr_outcome *o)
{
    const uint32_t context = lvr_sim_context_needed(o);
    c->n_ctx = c->n_ctx < context ? context : c->n_ctx;
    for (uint32_t i = 0; i < lvr_outcome_n_requests(o); i++) {
        lvr_sim_request r;
        lvr_outcome_request(o, i, &r);
        c->n_predict = c->n_predict < r.n_output ? r.n_output : c->n_predict;
    }
}

lvr_status lvr_sim_emulate(lvr_cost_model *m, const char *preset, double scale, lvr_error *err)
{
    lvr_device_preset device;
    lvr_status st = lvr_device_load(preset, &device, err);
    if (!st && !device.has_flash)
        st = lvr_fail(err, LVR_ERR_CONFIG, "%s describes no flash device that could be emulated", preset);
    if (!st && scale < 1.0)
        st = lvr_flash_params_scale(&device.flash, scale, err);
    if (st)
        return st;
    if (device.flash.depth > m->conditions.depth)
        device.flash.depth = m->conditions.depth;
    m->table.flash = device.flash;
    m->conditions.emulated_flash = device.flash;
    m->conditions.emulate_scale = scale;
    snprintf(m->conditions.emulated, sizeof m->conditions.emulated, "%s", device.name);
    m->device_sha256[0] = '\0';
    return LVR_OK;
}

/* ---- policies ---- */

static lvr_status named(const char *name, const lvr_cost_model *m, lvr_policy_file *pf, lvr_error *err)
{
    const lvr_status st = lvr_policy_init(&pf->policy, name, err);
    if (st)
        return st;
    if (!m)
        return lvr_fail(err, LVR_ERR_USAGE,
                        "policy %s needs a cost model; give --cost FILE (written by lever fit)", name);
    pf->policy.has_cost = true;
    pf->policy.cost = m->table;
    pf->policy.calibration = m->calibration;
    pf->policy.exit = m->exit;
    pf->geometry = m->geometry;
    pf->geometry.place = lvr_cost_has_npu(&m->table) ? LVR_PLACE_AUTO : LVR_PLACE_CPU;
    pf->conditions = m->conditions;
    memcpy(pf->target_sha256, m->target_sha256, sizeof pf->target_sha256);
    if (pf->policy.ops->uses_draft) /* else any draft will do, also none */
        memcpy(pf->draft_sha256, m->draft_sha256, sizeof pf->draft_sha256);
    memcpy(pf->device_sha256, m->device_sha256, sizeof pf->device_sha256);
    return LVR_OK;
}

lvr_status lvr_sim_policy(const char *name_or_file, const char *const *set, size_t n_set,
                          const lvr_cost_model *model, lvr_policy_file *ret, lvr_error *err)
{
    lvr_policy_file *pf = calloc(1, sizeof(*pf));
    if (!pf)
        return lvr_fail(err, LVR_ERR_NOMEM, "out of memory for a policy");
    lvr_status st = lvr_policy_is_file(name_or_file) ? lvr_policy_file_load(name_or_file, pf, err)
                                                     : named(name_or_file, model, pf, err);
    if (!st)
        st = lvr_policy_set_items(&pf->policy, set, n_set, err);
    if (!st)
        *ret = *pf;
    free(pf);
    return st;
}
