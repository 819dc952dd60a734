#include "costmodel/core/policy_file.h"

#include "common/fs.h"

#include <string.h>
#include <unistd.h>

static const char default_kv_type[] = "f16";

static lvr_status get_text(const lvr_yaml_node *map, const char *key, char *ret, size_t n, lvr_error *err)
{
    const char *text = NULL;
    const lvr_status st = lvr_yaml_get_str(map, key, &text, err);
    if (st != LVR_OK)
        return st;
    if (strlen(text) >= n)
        return lvr_fail(err, LVR_ERR_CONFIG, "%s: %s is longer than %zu characters", lvr_yaml_where(map), key,
                        n - 1);
    memcpy(ret, text, strlen(text) + 1);
    return LVR_OK;
}

static lvr_status get_u32(const lvr_yaml_node *map, const char *key, uint32_t min, uint32_t max,
                          uint32_t *ret, lvr_error *err)
{
    uint64_t v = 0;
    const lvr_status st = lvr_yaml_get_u64(map, key, min, max, &v, err);
    if (st == LVR_OK)
        *ret = (uint32_t)v;
    return st;
}

/* Files from before the cache had types do not say it. */
static lvr_status kv_type_from_yaml(const lvr_yaml_node *map, lvr_run_conditions *c, lvr_error *err)
{
    if (lvr_yaml_find(map, "kv_type"))
        return get_text(map, "kv_type", c->kv_type, sizeof c->kv_type, err);
    memcpy(c->kv_type, default_kv_type, sizeof default_kv_type);
    return LVR_OK;
}

/* Runs without an accelerator do not have the mapping. */
static lvr_status accelerator_from_yaml(const lvr_yaml_node *map, lvr_run_conditions *c, lvr_error *err)
{
    const lvr_yaml_node *sub = NULL;
    if (!lvr_yaml_find(map, "accelerator"))
        return LVR_OK;
    lvr_status st = lvr_yaml_get_map(map, "accelerator", &sub, err);
    if (st == LVR_OK)
        st = get_text(sub, "name", c->accel, sizeof c->accel, err);
    if (st == LVR_OK)
        st = lvr_yaml_get_u64(sub, "launch_ns", 0, UINT64_C(1000000000), &c->accel_launch_ns, err);
    if (st == LVR_OK)
        st = lvr_yaml_get_u64(sub, "sync_ns", 0, UINT64_C(1000000000), &c->accel_sync_ns, err);
    return st;
}

lvr_status lvr_run_conditions_from_yaml(const lvr_yaml_node *map, lvr_run_conditions *ret, lvr_error *err)
{
    lvr_run_conditions c = {0};
    const lvr_yaml_node *flash = NULL;
    lvr_status st = LVR_OK;
    if ((st = get_u32(map, "threads", 1, 64, &c.threads, err)) != LVR_OK ||
        (st = get_u32(map, "depth", 1, LVR_FLASH_MAX_DEPTH, &c.depth, err)) != LVR_OK ||
        (st = get_text(map, "cpu_level", c.cpu_level, sizeof c.cpu_level, err)) != LVR_OK ||
        (st = kv_type_from_yaml(map, &c, err)) != LVR_OK ||
        (st = get_text(map, "emulated", c.emulated, sizeof c.emulated, err)) != LVR_OK ||
        (st = lvr_yaml_get_double(map, "emulate_scale", 1e-6, 1.0, &c.emulate_scale, err)) != LVR_OK ||
        (st = get_u32(map, "n_ctx", 1, 1u << 24, &c.n_ctx, err)) != LVR_OK ||
        (st = get_u32(map, "prefill_chunk", 1, LVR_MAX_PREFILL_ROWS, &c.prefill_chunk, err)) != LVR_OK ||
        (st = get_u32(map, "max_rows", 1, LVR_MAX_VERIFY_NODES, &c.max_rows, err)) != LVR_OK ||
        (st = lvr_yaml_get_double(map, "temperature", 0.0, 100.0, &c.temperature, err)) != LVR_OK ||
        (st = get_u32(map, "top_k", 0, UINT32_MAX, &c.top_k, err)) != LVR_OK ||
        (st = lvr_yaml_get_double(map, "top_p", 0.0, 1.0, &c.top_p, err)) != LVR_OK ||
        (st = lvr_yaml_get_u64(map, "seed", 0, UINT64_MAX, &c.seed, err)) != LVR_OK ||
        (st = lvr_yaml_get_bool(map, "ignore_eos", &c.ignore_eos, err)) != LVR_OK ||
        (st = get_u32(map, "n_predict", 0, 1u << 24, &c.n_predict, err)) != LVR_OK ||
        (st = accelerator_from_yaml(map, &c, err)) != LVR_OK)
        return st;
    if (c.emulated[0] != '\0') {
        st = lvr_yaml_get_map(map, "emulated_flash", &flash, err);
        if (st == LVR_OK)
            st = lvr_flash_params_from_yaml(flash, &c.emulated_flash, err);
        if (st != LVR_OK)
            return st;
    }
    *ret = c;
    return LVR_OK;
}

void lvr_run_conditions_to_yaml(const lvr_run_conditions *c, lvr_yaml_out *y)
{
    lvr_yaml_out_u64(y, "threads", c->threads);
    lvr_yaml_out_u64(y, "depth", c->depth);
    lvr_yaml_out_str(y, "cpu_level", c->cpu_level);
    lvr_yaml_out_str(y, "kv_type", c->kv_type[0] ? c->kv_type : default_kv_type);
    lvr_yaml_out_str(y, "emulated", c->emulated);
    lvr_yaml_out_double(y, "emulate_scale", c->emulate_scale);
    if (c->emulated[0] != '\0') {
        lvr_yaml_out_map(y, "emulated_flash");
        lvr_flash_params_to_yaml(&c->emulated_flash, y);
        lvr_yaml_out_end(y);
    }
    lvr_yaml_out_u64(y, "n_ctx", c->n_ctx);
    lvr_yaml_out_u64(y, "prefill_chunk", c->prefill_chunk);
    lvr_yaml_out_u64(y, "max_rows", c->max_rows);
    lvr_yaml_out_double(y, "temperature", c->temperature);
    lvr_yaml_out_u64(y, "top_k", c->top_k);
    lvr_yaml_out_double(y, "top_p", c->top_p);
    lvr_yaml_out_u64(y, "seed", c->seed);
    lvr_yaml_out_bool(y, "ignore_eos", c->ignore_eos);
    lvr_yaml_out_u64(y, "n_predict", c->n_predict);
    if (c->accel[0] == '\0')
        return;
    lvr_yaml_out_map(y, "accelerator");
    lvr_yaml_out_str(y, "name", c->accel);
    lvr_yaml_out_u64(y, "launch_ns", c->accel_launch_ns);
    lvr_yaml_out_u64(y, "sync_ns", c->accel_sync_ns);
    lvr_yaml_out_end(y);
}

static lvr_status adapt_from_yaml(const lvr_yaml_node *map, lvr_policy *p, lvr_error *err)
{
    if (!p->ops->calibrated)
        return lvr_fail(err, LVR_ERR_CONFIG,
                        "%s: policy %s does not rank by the calibration; leave `adapt` out",
                        lvr_yaml_where(map), p->ops->name);
    if (lvr_yaml_node_kind(map) != LVR_YAML_MAP)
        return lvr_fail(err, LVR_ERR_CONFIG, "%s: expected a mapping (rate, bound)", lvr_yaml_where(map));
    return lvr_adapt_from_yaml(map, &p->adapt, err);
}

static lvr_status policy_from_yaml(const lvr_yaml_node *root, lvr_policy *ret, lvr_error *err)
{
    const lvr_yaml_node *params = NULL, *sub = NULL;
    const char *name = NULL;
    lvr_policy p;
    lvr_status st = lvr_yaml_get_str(root, "policy", &name, err);
    if (st == LVR_OK && (st = lvr_policy_init(&p, name, err)) != LVR_OK)
        lvr_error_prefix(err, "%s", lvr_yaml_where(root));
    if (st != LVR_OK)
        return st;
    if (p.ops->n_params > 0) {
        st = lvr_yaml_get_map(root, "params", &params, err);
        if (st == LVR_OK)
            st = lvr_params_from_yaml(p.ops->params, p.ops->n_params, p.params.bytes, params, err);
    }
    if (st == LVR_OK && (sub = lvr_yaml_find(root, "cost"))) {
        st = lvr_cost_table_from_yaml(sub, &p.cost, err);
        p.has_cost = st == LVR_OK;
    }
    if (st == LVR_OK && (sub = lvr_yaml_find(root, "calibration")))
        st = lvr_calibration_from_yaml(sub, &p.calibration, err);
    if (st == LVR_OK && (sub = lvr_yaml_find(root, "adapt")))
        st = adapt_from_yaml(sub, &p, err);
    if (st == LVR_OK && (sub = lvr_yaml_find(root, "exit")))
        st = lvr_exit_from_yaml(sub, &p.exit, err);
    if (st != LVR_OK)
        return st;
    if (p.ops->needs_cost && !p.has_cost)
        return lvr_fail(err, LVR_ERR_CONFIG,
                        "%s: policy %s needs a `cost` table; write the file with lever tune",
                        lvr_yaml_where(root), name);
    *ret = p;
    return LVR_OK;
}

static lvr_status from_root(const lvr_yaml_node *root, lvr_policy_file *pf, lvr_error *err)
{
    const lvr_yaml_node *geometry = NULL, *conditions = NULL, *ids = NULL;
    const char *schema = NULL;
    lvr_status st = LVR_OK;
    if (lvr_yaml_node_kind(root) != LVR_YAML_MAP)
        return lvr_fail(err, LVR_ERR_CONFIG, "%s: expected a policy file (a mapping)", lvr_yaml_where(root));
    if ((st = lvr_yaml_get_str(root, "schema", &schema, err)) != LVR_OK)
        return st;
    if (strcmp(schema, "lever-policy/1") != 0)
        return lvr_fail(err, LVR_ERR_CONFIG, "%s: expected schema lever-policy/1, found \"%s\"",
                        lvr_yaml_where(root), schema);
    if ((st = policy_from_yaml(root, &pf->policy, err)) != LVR_OK ||
        (st = lvr_yaml_get_map(root, "schedule", &geometry, err)) != LVR_OK ||
        (st = lvr_geometry_from_yaml(geometry, &pf->geometry, err)) != LVR_OK ||
        (st = lvr_yaml_get_map(root, "conditions", &conditions, err)) != LVR_OK ||
        (st = lvr_run_conditions_from_yaml(conditions, &pf->conditions, err)) != LVR_OK ||
        (st = lvr_yaml_get_map(root, "valid_for", &ids, err)) != LVR_OK ||
        (st = get_text(ids, "target_sha256", pf->target_sha256, sizeof pf->target_sha256, err)) != LVR_OK ||
        (st = get_text(ids, "draft_sha256", pf->draft_sha256, sizeof pf->draft_sha256, err)) != LVR_OK ||
        (st = get_text(ids, "device_sha256", pf->device_sha256, sizeof pf->device_sha256, err)) != LVR_OK ||
        (st = lvr_yaml_get_double(root, "predicted_tokens_per_s", 0.0, 1e9, &pf->predicted_tokens_per_s,
                                  err)) != LVR_OK)
        return st;
    if ((st = get_text(root, "objective", pf->objective, sizeof pf->objective, err)) != LVR_OK)
        return st;
    bool end = false;
    if (lvr_yaml_get_bool(root, "end", &end, NULL) != LVR_OK || !end)
        return lvr_fail(err, LVR_ERR_CONFIG,
                        "%s: the file has no `end: true`: it was cut short; write it again with lever tune",
                        lvr_yaml_where(root));
    return LVR_OK;
}

static lvr_status from_doc(lvr_yaml_doc *doc, lvr_policy_file *ret, lvr_error *err)
{
    lvr_policy_file pf = {0};
    lvr_status st = from_root(lvr_yaml_root(doc), &pf, err);
    if (st == LVR_OK)
        st = lvr_yaml_check_used(doc, err);
    lvr_yaml_free(doc);
    if (st == LVR_OK)
        *ret = pf;
    return st;
}

bool lvr_policy_is_file(const char *name_or_file)
{
    const size_t n = strlen(name_or_file);
    for (size_t i = 0; i < lvr_n_policies; i++)
        if (strcmp(name_or_file, lvr_policies[i]->name) == 0)
            return false;
    return strchr(name_or_file, '/') || (n > 5 && strcmp(name_or_file + n - 5, ".yaml") == 0) ||
           access(name_or_file, F_OK) == 0;
}

lvr_status lvr_policy_file_load(const char *path, lvr_policy_file *ret, lvr_error *err)
{
    lvr_yaml_doc *doc = NULL;
    const lvr_status st = lvr_yaml_load_file(path, &doc, err);
    return st == LVR_OK ? from_doc(doc, ret, err) : st;
}

lvr_status lvr_policy_file_parse(const char *name, const char *text, size_t n, lvr_policy_file *ret,
                                 lvr_error *err)
{
    lvr_yaml_doc *doc = NULL;
    const lvr_status st = lvr_yaml_load_mem(name, text, n, &doc, err);
    return st == LVR_OK ? from_doc(doc, ret, err) : st;
}

lvr_status lvr_policy_file_format(const lvr_policy_file *pf, lvr_buf *out, lvr_error *err)
{
    lvr_yaml_out y;
    const lvr_policy *p = &pf->policy;
    lvr_yaml_out_init(&y, out);
    lvr_yaml_out_comment(
        &y, "Self-contained: `lever run --policy THIS_FILE` runs it unchanged. Times in ns, sizes in bytes.");
    lvr_yaml_out_str(&y, "schema", "lever-policy/1");
    lvr_yaml_out_str(&y, "policy", p->ops->name);
    if (p->ops->n_params > 0) {
        lvr_yaml_out_map(&y, "params");
        lvr_params_to_yaml(p->ops->params, p->ops->n_params, p->params.bytes, &y);
        lvr_yaml_out_end(&y);
    }
    lvr_yaml_out_double(&y, "predicted_tokens_per_s", pf->predicted_tokens_per_s);
    lvr_yaml_out_str(&y, "objective", pf->objective);
    lvr_yaml_out_map(&y, "valid_for");
    lvr_yaml_out_str(&y, "target_sha256", pf->target_sha256);
    lvr_yaml_out_str(&y, "draft_sha256", pf->draft_sha256);
    lvr_yaml_out_str(&y, "device_sha256", pf->device_sha256);
    lvr_yaml_out_end(&y);
    lvr_yaml_out_map(&y, "schedule");
    lvr_geometry_to_yaml(&pf->geometry, &y);
    lvr_yaml_out_end(&y);
    lvr_yaml_out_map(&y, "conditions");
    lvr_run_conditions_to_yaml(&pf->conditions, &y);
    lvr_yaml_out_end(&y);
    if (p->has_cost) {
        lvr_yaml_out_map(&y, "cost");
        lvr_cost_table_to_yaml(&p->cost, &y);
        lvr_yaml_out_end(&y);
    }
    if (p->calibration.n > 0) {
        lvr_yaml_out_map(&y, "calibration");
        lvr_calibration_to_yaml(&p->calibration, &y);
        lvr_yaml_out_end(&y);
    }
    if (p->adapt.rate > 0.0) {
        lvr_yaml_out_map(&y, "adapt");
        lvr_adapt_to_yaml(&p->adapt, &y);
        lvr_yaml_out_end(&y);
    }
    if (p->exit.n > 0) {
        lvr_yaml_out_map(&y, "exit");
        lvr_exit_to_yaml(&p->exit, &y);
        lvr_yaml_out_end(&y);
    }
    lvr_yaml_out_bool(&y, "end",
                      true); /* tells a whole file from a truncated one: optional parts come before it */
    return out->failed ? lvr_fail(err, LVR_ERR_NOMEM, "out of memory for a policy file") : LVR_OK;
}

lvr_status lvr_policy_file_save(const char *path, const lvr_policy_file *pf, lvr_error *err)
{
    lvr_buf text = LVR_BUF_INIT;
    lvr_status st = lvr_policy_file_format(pf, &text, err);
    if (st == LVR_OK)
        st = lvr_write_file_atomic(path, text.data, text.len, err);
    lvr_buf_free(&text);
    return st;
}
