#include "costmodel/core/device_preset.h"

#include "common/buf.h"
#include "common/param.h"
#include "lvr_config.h"
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SUFFIX ".yaml"
#define MAX_NAMES 256u
#define MAX_DIRS 2u

/* ---- parsing ---- */

static lvr_status get_text(const lvr_yaml_node *root, const char *key, char *ret, size_t n, lvr_error *err)
{
    const char *text = NULL;
    const lvr_status status = lvr_yaml_get_str(root, key, &text, err);
    if (status != LVR_OK)
        return status;
    const size_t len = strlen(text);
    if (len == 0 || len >= n)
        return lvr_fail(err, LVR_ERR_CONFIG, "%s: %s: expected 1 to %zu bytes of text, found %zu",
                        lvr_yaml_where(root), key, n - 1, len);
    memcpy(ret, text, len + 1);
    return LVR_OK;
}

/* Absent sections are fine; *ret_has says so. */
static lvr_status get_section(const lvr_yaml_node *root, const char *key, const lvr_yaml_node **ret,
                              bool *ret_has, lvr_error *err)
{
    const lvr_yaml_node *map = NULL;
    if (!lvr_yaml_find(root, key)) {
        *ret_has = false;
        return LVR_OK;
    }
    const lvr_status status = lvr_yaml_get_map(root, key, &map, err);
    if (status != LVR_OK)
        return status;
    *ret = map;
    *ret_has = true;
    return LVR_OK;
}

static bool same_flash(const lvr_flash_params *a, const lvr_flash_params *b)
{
    return a->t0_ns == b->t0_ns && a->lane_bytes_per_s == b->lane_bytes_per_s &&
           a->max_bytes_per_s == b->max_bytes_per_s && a->depth == b->depth;
}

static lvr_status merge_sections(const lvr_yaml_node *root, lvr_device_preset *d, lvr_error *err)
{
    if (!d->has_flash && !d->has_cost)
        return lvr_fail(err, LVR_ERR_CONFIG, "%s: expected a flash: or a cost: section, found neither",
                        lvr_yaml_where(root));
    if (!d->has_flash)
        d->flash = d->cost.flash;
    if (d->has_cost && !same_flash(&d->flash, &d->cost.flash))
        return lvr_fail(
            err, LVR_ERR_CONFIG,
            "%s: flash: and cost: flash: describe different devices; make them equal or drop the first",
            lvr_yaml_where(root));
    d->has_flash = true;
    return LVR_OK;
}

static lvr_status parse_compute(const lvr_yaml_node *map, lvr_compute_params *ret, lvr_error *err)
{
    lvr_compute_params c = {0};
    lvr_status status =
        lvr_yaml_get_u64(map, "dram_bytes_per_s", 1, UINT64_C(100000000000000), &c.dram_bytes_per_s, err);
    if (status == LVR_OK)
        status = lvr_yaml_get_u64(map, "ops_per_s", 1, UINT64_C(1000000000000000000), &c.ops_per_s, err);
    if (status == LVR_OK)
        status = lvr_yaml_get_u64(map, "launch_ns", 0, UINT64_C(1000000000), &c.launch_ns, err);
    if (status == LVR_OK)
        *ret = c;
    return status;
}

static lvr_status parse_sections(const lvr_yaml_node *root, lvr_device_preset *d, lvr_error *err)
{
    const lvr_yaml_node *flash = NULL, *cost = NULL, *compute = NULL;
    lvr_status status = get_section(root, "flash", &flash, &d->has_flash, err);
    if (status == LVR_OK)
        status = get_section(root, "cost", &cost, &d->has_cost, err);
    if (status == LVR_OK && d->has_flash)
        status = lvr_flash_params_from_yaml(flash, &d->flash, err);
    if (status == LVR_OK && d->has_cost)
        status = lvr_cost_table_from_yaml(cost, &d->cost, err);
    if (status == LVR_OK)
        status = get_section(root, "compute", &compute, &d->has_compute, err);
    if (status == LVR_OK && d->has_compute)
        status = parse_compute(compute, &d->compute, err);
    return status == LVR_OK ? merge_sections(root, d, err) : status;
}

static lvr_status parse(const lvr_yaml_doc *doc, lvr_device_preset *ret, lvr_error *err)
{
    const lvr_yaml_node *root = lvr_yaml_root(doc);
    lvr_device_preset d = {0};
    if (lvr_yaml_node_kind(root) != LVR_YAML_MAP)
        return lvr_fail(err, LVR_ERR_CONFIG, "%s: expected a mapping (name, description, flash)",
                        lvr_yaml_where(root));
    lvr_status status = get_text(root, "name", d.name, sizeof d.name, err);
    if (status == LVR_OK)
        status = get_text(root, "description", d.description, sizeof d.description, err);
    if (status == LVR_OK)
        status = parse_sections(root, &d, err);
    if (status == LVR_OK)
        status = lvr_yaml_check_used(doc, err);
    if (status == LVR_OK)
        *ret = d;
    return status;
}

lvr_status lvr_device_load_mem(const char *name, const char *text, size_t n, lvr_device_preset *ret,
                               lvr_error *err)
{
    lvr_yaml_doc *doc = NULL;
    lvr_status status = lvr_yaml_load_mem(name, text, n, &doc, err);
    if (status == LVR_OK)
        status = parse(doc, ret, err);
    lvr_yaml_free(doc);
    return status;
}

static lvr_status load_path(const char *path, lvr_device_preset *ret, lvr_error *err)
{
    lvr_yaml_doc *doc = NULL;
    lvr_status status = lvr_yaml_load_file(path, &doc, err);
    if (status == LVR_OK)
        status = parse(doc, ret, err);
    lvr_yaml_free(doc);
    return status;
}

/* ---- finding ---- */

typedef struct search {
    lvr_buf dirs[MAX_DIRS];
    size_t n_dirs;
    char *names[MAX_NAMES];
    size_t n_names;
} search;

static bool ends_with_suffix(const char *text)
{
    const size_t len = strlen(text);
    return len > strlen(SUFFIX) && strcmp(text + len - strlen(SUFFIX), SUFFIX) == 0;
}

static bool is_path(const char *name)
{
    return strchr(name, '/') || ends_with_suffix(name);
}

static void add_dir(search *s, const char *base)
{
    lvr_buf_printf(&s->dirs[s->n_dirs++], "%s/devices", base);
}

static void search_init(search *s)
{
    *s = (search){0};
    const char *chosen = getenv("LVR_CONFIG_DIR");
    if (chosen && *chosen) {
        add_dir(s, chosen);
        return;
    }
    add_dir(s, LVR_CONFIG_DIR);
    add_dir(s, LVR_CONFIG_DIR_INSTALLED);
}

static void search_free(search *s)
{
    for (size_t i = 0; i < s->n_dirs; i++)
        lvr_buf_free(&s->dirs[i]);
    for (size_t i = 0; i < s->n_names; i++)
        free(s->names[i]);
}

static bool has_name(const search *s, const char *name)
{
    for (size_t i = 0; i < s->n_names; i++)
        if (strcmp(s->names[i], name) == 0)
            return true;
    return false;
}

static void add_name(search *s, const char *file_name)
{
    if (!ends_with_suffix(file_name) || file_name[0] == '.' || s->n_names == MAX_NAMES)
        return;
    char *name = strndup(file_name, strlen(file_name) - strlen(SUFFIX));
    if (name && !has_name(s, name))
        s->names[s->n_names++] = name;
    else
        free(name);
}

static int compare_names(const void *a, const void *b)
{
    const char *const *x = a, *const *y = b;
    return strcmp(*x, *y);
}

static void collect_names(search *s)
{
    for (size_t i = 0; i < s->n_dirs; i++) {
        DIR *dir = opendir(s->dirs[i].data);
        if (!dir)
            continue;
        for (const struct dirent *entry; (entry = readdir(dir));)
            add_name(s, entry->d_name);
        closedir(dir);
    }
    qsort(s->names, s->n_names, sizeof s->names[0], compare_names);
}

static lvr_status fail_unknown(search *s, const char *name, lvr_error *err)
{
    collect_names(s);
    lvr_buf text = LVR_BUF_INIT;
    const char *near = lvr_closest_name(name, (const char *const *)s->names, s->n_names);
    if (near)
        lvr_buf_printf(&text, "; did you mean %s?", near);
    lvr_buf_puts(&text, s->n_names ? "; known devices:" : "; no device descriptions were found");
    for (size_t i = 0; i < s->n_names; i++)
        lvr_buf_printf(&text, "%s %s", i ? "," : "", s->names[i]);
    lvr_buf_printf(&text, " (in %s; set LVR_CONFIG_DIR to look elsewhere, or give the path of a .yaml file)",
                   s->dirs[0].data);
    const lvr_status status =
        lvr_fail(err, LVR_ERR_CONFIG, "unknown device \"%.64s\"%s", name, text.failed ? "" : text.data);
    lvr_buf_free(&text);
    return status;
}

static lvr_status load_name(search *s, const char *name, lvr_device_preset *ret, lvr_error *err)
{
    for (size_t i = 0; i < s->n_dirs; i++) {
        lvr_buf path = LVR_BUF_INIT;
        lvr_buf_printf(&path, "%s/%s" SUFFIX, s->dirs[i].data, name);
        const bool found = !path.failed && access(path.data, F_OK) == 0;
        const lvr_status status = found ? load_path(path.data, ret, err) : LVR_OK;
        const bool failed = path.failed;
        lvr_buf_free(&path);
        if (failed)
            return lvr_fail(err, LVR_ERR_NOMEM, "device \"%.64s\": out of memory", name);
        if (found)
            return status;
    }
    return access(name, F_OK) == 0 ? load_path(name, ret, err) : fail_unknown(s, name, err);
}

lvr_status lvr_device_load(const char *name_or_path, lvr_device_preset *ret, lvr_error *err)
{
    if (is_path(name_or_path))
        return load_path(name_or_path, ret, err);
    search s;
    search_init(&s);
    lvr_status status;
    if (s.dirs[0].failed || s.dirs[s.n_dirs - 1].failed)
        status = lvr_fail(err, LVR_ERR_NOMEM, "device \"%.64s\": out of memory", name_or_path);
    else
        status = load_name(&s, name_or_path, ret, err);
    search_free(&s);
    return status;
}
