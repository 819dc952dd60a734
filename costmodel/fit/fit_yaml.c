/* The cost model as YAML: what lever fit writes, people read, and sim, tune and correlate load. */
#include "costmodel/fit/fit.h"

#include "common/fs.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCHEMA "lever-cost/1"

static void format_terms(const lvr_cost_model *m, lvr_yaml_out *y)
{
    lvr_yaml_out_comment(y, "How well each term fits: |predicted - measured| / measured at the 50th, 90th "
                            "and 99th percentile of n samples,");
    lvr_yaml_out_comment(
        y, "bias = sum(predicted) / sum(measured) - 1, and the range seen of rows, bytes or probability.");
    lvr_yaml_out_map(y, "terms");
    for (uint32_t i = 0; i < m->n_terms; i++) {
        const lvr_fit_term *t = &m->terms[i];
        lvr_yaml_out_map(y, t->name);
        lvr_yaml_out_str(y, "form", t->form);
        lvr_yaml_out_u64(y, "n", t->n);
        lvr_yaml_out_double(y, "p50", t->p50);
        lvr_yaml_out_double(y, "p90", t->p90);
        lvr_yaml_out_double(y, "p99", t->p99);
        lvr_yaml_out_double(y, "bias", t->bias);
        lvr_yaml_out_double(y, "x_min", t->x_min);
        lvr_yaml_out_double(y, "x_max", t->x_max);
        lvr_yaml_out_end(y);
    }
    lvr_yaml_out_end(y);
}

static void format_fit_set(const lvr_cost_model *m, lvr_yaml_out *y)
{
    lvr_yaml_out_comment(y, "What it was fitted on: nothing with these prompts may judge it.");
    lvr_yaml_out_map(y, "fit_set");
    lvr_yaml_out_map(y, "sources");
    for (uint32_t i = 0; i < m->n_sources; i++) {
        char key[16];
        snprintf(key, sizeof key, "trace%u", i + 1);
        lvr_yaml_out_map(y, key);
        lvr_yaml_out_str(y, "path", m->sources[i].path);
        lvr_yaml_out_str(y, "kind", lvr_trace_kind_name(m->sources[i].kind));
        lvr_yaml_out_str(y, "created_utc", m->sources[i].created_utc);
        lvr_yaml_out_str(y, "commit", m->sources[i].commit);
        lvr_yaml_out_end(y);
    }
    lvr_yaml_out_end(y);
    lvr_yaml_out_u64s(y, "prompt_hashes", m->prompt_hashes, m->n_prompts);
    lvr_yaml_out_end(y);
}

lvr_status lvr_cost_model_format(const lvr_cost_model *m, lvr_buf *out, lvr_error *err)
{
    lvr_yaml_out y;
    lvr_yaml_out_init(&y, out);
    lvr_yaml_out_comment(
        &y, "Cost model. Times in ns, sizes in bytes, rates in bytes/s, probabilities from 0 to 1.");
    lvr_yaml_out_str(&y, "schema", SCHEMA);
    lvr_yaml_out_bool(&y, "synthetic", m->synthetic);
    lvr_yaml_out_map(&y, "valid_for");
    lvr_yaml_out_str(&y, "target_sha256", m->target_sha256);
    lvr_yaml_out_str(&y, "draft_sha256", m->draft_sha256);
    lvr_yaml_out_str(&y, "device_sha256", m->device_sha256);
    lvr_yaml_out_end(&y);
    lvr_yaml_out_comment(&y, "Conditions under which the times were measured.");
    lvr_yaml_out_map(&y, "conditions");
    lvr_run_conditions_to_yaml(&m->conditions, &y);
    lvr_yaml_out_end(&y);
    lvr_yaml_out_comment(&y, "Layers of the target and the schedule of the first timing trace.");
    lvr_yaml_out_map(&y, "schedule");
    lvr_geometry_to_yaml(&m->geometry, &y);
    lvr_yaml_out_end(&y);
    lvr_yaml_out_comment(&y, "Per operator: ns at rows, linear in between, plus ctx_ns for each row and each "
                             "position already cached.");
    if (lvr_cost_has_npu(&m->table))
        lvr_yaml_out_comment(&y,
                             "npu: one ticket on an accelerator: launch_ns, ns of the row bucket that holds "
                             "the rows plus ctx_ns for each row of the bucket and cached position, sync_ns.");
    lvr_yaml_out_map(&y, "cost");
    lvr_cost_table_to_yaml(&m->table, &y);
    lvr_yaml_out_end(&y);
    lvr_yaml_out_comment(&y, "ns from a slice's arrival to the start of the operator that waited for it.");
    lvr_yaml_out_double(&y, "wake_ns", m->wake_ns);
    if (m->calibration.n > 0) {
        lvr_yaml_out_comment(
            &y,
            "The target takes a token to which the draft gave probability q with probability p. groups: "
            "the same by depth and rank, given that no better sibling is taken. by_rank: the draft's best, "
            "second best, ... token, by depth of its parent.");
        lvr_yaml_out_map(&y, "calibration");
        lvr_calibration_to_yaml(&m->calibration, &y);
        lvr_yaml_out_end(&y);
    }
    if (m->exit.n > 0) {
        lvr_yaml_out_comment(&y,
                             "The exit predictor: how likely the target takes a node, by what is seen of it "
                             "after a layer; threshold: recall 0.99 on accepted nodes of texts left out.");
        lvr_yaml_out_map(&y, "exit");
        lvr_exit_to_yaml(&m->exit, &y);
        lvr_yaml_out_end(&y);
    }
    format_terms(m, &y);
    format_fit_set(m, &y);
    return out->failed ? lvr_fail(err, LVR_ERR_NOMEM, "out of memory for a cost model") : LVR_OK;
}

lvr_status lvr_cost_model_save(const char *path, const lvr_cost_model *m, lvr_error *err)
{
    lvr_buf text = LVR_BUF_INIT;
    lvr_status st = lvr_cost_model_format(m, &text, err);
    if (!st)
        st = lvr_write_file_atomic(path, text.data, text.len, err);
    lvr_buf_free(&text);
    return st;
}

/* ---- reading
 * ------------------------------------------------------------------------------------------------------------------
 */

static lvr_status get_text(const lvr_yaml_node *map, const char *key, char *ret, size_t n, lvr_error *err)
{
    const char *text = NULL;
    const lvr_status st = lvr_yaml_get_str(map, key, &text, err);
    if (st)
        return st;
    if (strlen(text) >= n)
        return lvr_fail(err, LVR_ERR_CONFIG, "%s: %s is longer than %zu characters", lvr_yaml_where(map), key,
                        n - 1);
    memcpy(ret, text, strlen(text) + 1);
    return LVR_OK;
}

static lvr_status parse_ids(const lvr_yaml_node *root, lvr_cost_model *m, lvr_error *err)
{
    const lvr_yaml_node *ids = NULL;
    lvr_status st = lvr_yaml_get_map(root, "valid_for", &ids, err);
    if (!st)
        st = get_text(ids, "target_sha256", m->target_sha256, sizeof m->target_sha256, err);
    if (!st)
        st = get_text(ids, "draft_sha256", m->draft_sha256, sizeof m->draft_sha256, err);
    if (!st)
        st = get_text(ids, "device_sha256", m->device_sha256, sizeof m->device_sha256, err);
    return st;
}

static lvr_status parse_term(const char *name, const lvr_yaml_node *map, lvr_fit_term *t, lvr_error *err)
{
    if (lvr_yaml_node_kind(map) != LVR_YAML_MAP || strlen(name) >= sizeof t->name)
        return lvr_fail(err, LVR_ERR_CONFIG, "%s: term %s: expected a mapping with form, n, p50, ...",
                        lvr_yaml_where(map), name);
    *t = (lvr_fit_term){0};
    memcpy(t->name, name, strlen(name) + 1);
    lvr_status st = get_text(map, "form", t->form, sizeof t->form, err);
    if (!st)
        st = lvr_yaml_get_u64(map, "n", 0, UINT64_MAX, &t->n, err);
    if (!st)
        st = lvr_yaml_get_double(map, "p50", 0, 1e12, &t->p50, err);
    if (!st)
        st = lvr_yaml_get_double(map, "p90", 0, 1e12, &t->p90, err);
    if (!st)
        st = lvr_yaml_get_double(map, "p99", 0, 1e12, &t->p99, err);
    if (!st)
        st = lvr_yaml_get_double(map, "bias", -1, 1e12, &t->bias, err);
    if (!st)
        st = lvr_yaml_get_double(map, "x_min", 0, 1e18, &t->x_min, err);
    if (!st)
        st = lvr_yaml_get_double(map, "x_max", 0, 1e18, &t->x_max, err);
    return st;
}

static lvr_status parse_terms(const lvr_yaml_node *root, lvr_cost_model *m, lvr_error *err)
{
    const lvr_yaml_node *terms = NULL;
    lvr_status st = lvr_yaml_get_map(root, "terms", &terms, err);
    if (st)
        return st;
    const size_t n = lvr_yaml_len(terms);
    if (n > LVR_FIT_MAX_TERMS)
        return lvr_fail(err, LVR_ERR_CONFIG, "%s: %zu terms, at most %d fit", lvr_yaml_where(terms), n,
                        LVR_FIT_MAX_TERMS);
    for (size_t i = 0; i < n && !st; i++)
        st = parse_term(lvr_yaml_key_at(terms, i), lvr_yaml_at(terms, i), &m->terms[i], err);
    m->n_terms = (uint32_t)n;
    return st;
}

static lvr_status parse_kind(const lvr_yaml_node *map, lvr_trace_kind *ret, lvr_error *err)
{
    const char *text = NULL;
    const lvr_status st = lvr_yaml_get_str(map, "kind", &text, err);
    if (st)
        return st;
    for (int k = LVR_TRACE_TIMING; k <= LVR_TRACE_IMPORTED; k++) {
        if (strcmp(text, lvr_trace_kind_name((lvr_trace_kind)k)) == 0) {
            *ret = (lvr_trace_kind)k;
            return LVR_OK;
        }
    }
    return lvr_fail(err, LVR_ERR_CONFIG, "%s: kind: expected timing or oracle, found \"%s\"",
                    lvr_yaml_where(map), text);
}

static lvr_status parse_source(const lvr_yaml_node *map, lvr_fit_source *s, lvr_error *err)
{
    if (lvr_yaml_node_kind(map) != LVR_YAML_MAP)
        return lvr_fail(err, LVR_ERR_CONFIG, "%s: expected a source (path, kind, created_utc, commit)",
                        lvr_yaml_where(map));
    lvr_status st = get_text(map, "path", s->path, sizeof s->path, err);
    if (!st)
        st = parse_kind(map, &s->kind, err);
    if (!st)
        st = get_text(map, "created_utc", s->created_utc, sizeof s->created_utc, err);
    if (!st)
        st = get_text(map, "commit", s->commit, sizeof s->commit, err);
    return st;
}

static lvr_status parse_sources(const lvr_yaml_node *set, lvr_cost_model *m, lvr_error *err)
{
    const lvr_yaml_node *sources = NULL;
    lvr_status st = lvr_yaml_get_map(set, "sources", &sources, err);
    if (st)
        return st;
    const size_t n = lvr_yaml_len(sources);
    if (n > LVR_FIT_MAX_SOURCES)
        return lvr_fail(err, LVR_ERR_CONFIG, "%s: %zu sources, at most %d fit", lvr_yaml_where(sources), n,
                        LVR_FIT_MAX_SOURCES);
    for (size_t i = 0; i < n && !st; i++)
        st = parse_source(lvr_yaml_at(sources, i), &m->sources[i], err);
    m->n_sources = (uint32_t)n;
    return st;
}

static lvr_status parse_prompts(const lvr_yaml_node *set, lvr_cost_model *m, lvr_error *err)
{
    const lvr_yaml_node *hashes = NULL;
    lvr_status st = lvr_yaml_get_seq(set, "prompt_hashes", &hashes, err);
    if (st)
        return st;
    const size_t n = lvr_yaml_len(hashes);
    if (n > LVR_FIT_MAX_PROMPTS)
        return lvr_fail(err, LVR_ERR_CONFIG, "%s: %zu prompt hashes, at most %d fit", lvr_yaml_where(hashes),
                        n, LVR_FIT_MAX_PROMPTS);
    for (size_t i = 0; i < n; i++) {
        const lvr_yaml_node *item = lvr_yaml_at(hashes, i);
        st = lvr_yaml_as_u64(item, 0, UINT64_MAX, &m->prompt_hashes[i], err);
        if (st)
            return st;
        if (i > 0 && m->prompt_hashes[i] <= m->prompt_hashes[i - 1])
            return lvr_fail(err, LVR_ERR_CONFIG, "%s: prompt_hashes must ascend", lvr_yaml_where(item));
    }
    m->n_prompts = (uint32_t)n;
    return LVR_OK;
}

static lvr_status parse_body(const lvr_yaml_node *root, lvr_cost_model *m, lvr_error *err)
{
    const lvr_yaml_node *sub = NULL;
    lvr_status st = lvr_yaml_get_bool(root, "synthetic", &m->synthetic, err);
    if (!st)
        st = parse_ids(root, m, err);
    if (!st)
        st = lvr_yaml_get_map(root, "conditions", &sub, err);
    if (!st)
        st = lvr_run_conditions_from_yaml(sub, &m->conditions, err);
    if (!st)
        st = lvr_yaml_get_map(root, "schedule", &sub, err);
    if (!st)
        st = lvr_geometry_from_yaml(sub, &m->geometry, err);
    if (!st)
        st = lvr_yaml_get_map(root, "cost", &sub, err);
    if (!st)
        st = lvr_cost_table_from_yaml(sub, &m->table, err);
    if (!st)
        st = lvr_yaml_get_double(root, "wake_ns", 0, 1e12, &m->wake_ns, err);
    if (!st && (sub = lvr_yaml_find(root, "calibration")))
        st = lvr_calibration_from_yaml(sub, &m->calibration, err);
    if (!st && (sub = lvr_yaml_find(root, "exit")))
        st = lvr_exit_from_yaml(sub, &m->exit, err);
    if (!st)
        st = parse_terms(root, m, err);
    if (!st)
        st = lvr_yaml_get_map(root, "fit_set", &sub, err);
    if (!st)
        st = parse_sources(sub, m, err);
    if (!st)
        st = parse_prompts(sub, m, err);
    return st;
}

static lvr_status parse_doc(lvr_yaml_doc *doc, lvr_cost_model *m, lvr_error *err)
{
    const lvr_yaml_node *root = lvr_yaml_root(doc);
    const char *schema = NULL;
    if (lvr_yaml_node_kind(root) != LVR_YAML_MAP)
        return lvr_fail(err, LVR_ERR_CONFIG, "%s: expected a cost model (written by lever fit)",
                        lvr_yaml_where(root));
    lvr_status st = lvr_yaml_get_str(root, "schema", &schema, err);
    if (st)
        return st;
    if (strcmp(schema, SCHEMA) != 0)
        return lvr_fail(err, LVR_ERR_CONFIG,
                        "%s: expected schema " SCHEMA " (written by lever fit), found \"%s\"",
                        lvr_yaml_where(root), schema);
    st = parse_body(root, m, err);
    return st ? st : lvr_yaml_check_used(doc, err);
}

static lvr_status from_doc(lvr_yaml_doc *doc, lvr_cost_model *ret, lvr_error *err)
{
    lvr_cost_model *m = calloc(1, sizeof(*m));
    lvr_status st =
        m ? parse_doc(doc, m, err) : lvr_fail(err, LVR_ERR_NOMEM, "out of memory for a cost model");
    if (!st)
        *ret = *m;
    free(m);
    lvr_yaml_free(doc);
    return st;
}

lvr_status lvr_cost_model_load(const char *path, lvr_cost_model *ret, lvr_error *err)
{
    lvr_yaml_doc *doc = NULL;
    const lvr_status st = lvr_yaml_load_file(path, &doc, err);
    return st ? st : from_doc(doc, ret, err);
}

lvr_status lvr_cost_model_parse(const char *name, const char *text, size_t n, lvr_cost_model *ret,
                                lvr_error *err)
{
    lvr_yaml_doc *doc = NULL;
    const lvr_status st = lvr_yaml_load_mem(name, text, n, &doc, err);
    return st ? st : from_doc(doc, ret, err);
}
