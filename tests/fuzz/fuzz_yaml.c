/* Any bytes into the YAML reader, then every question one can ask of the tree. */
#include "common/yaml.h"
#include <float.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool truth)
{
    if (!truth)
        abort();
}

static void ask_scalar(const lvr_yaml_node *node)
{
    uint64_t u = 7;
    double d = 7;
    const lvr_status status = lvr_yaml_as_u64(node, 1, 1000, &u, NULL);
    require(status == LVR_OK ? u >= 1 && u <= 1000 : u == 7);
    if (lvr_yaml_as_double(node, -DBL_MAX, DBL_MAX, &d, NULL) == LVR_OK)
        require(d >= -DBL_MAX && d <= DBL_MAX);
    require(strlen(lvr_yaml_where(node)) > 0);
    lvr_yaml_is_null(node);
}

static void ask_key(const lvr_yaml_node *map, const char *key)
{
    lvr_error err = LVR_ERROR_INIT;
    const lvr_yaml_node *node = NULL;
    const char *s = NULL;
    uint64_t u = 0;
    double d = 0;
    bool b = false;
    if (lvr_yaml_get_size(map, key, 0, UINT64_MAX, &u, &err) != LVR_OK)
        require(err.msg[0] && memchr(err.msg, '\0', sizeof err.msg));
    lvr_yaml_get_u64(map, key, 0, UINT64_MAX, &u, &err);
    lvr_yaml_get_double(map, key, 0, 1, &d, &err);
    lvr_yaml_get_bool(map, key, &b, &err);
    lvr_yaml_get_str(map, key, &s, &err);
    lvr_yaml_get_map(map, key, &node, &err);
    lvr_yaml_get_seq(map, key, &node, &err);
}

static void walk(const lvr_yaml_node *node)
{
    const size_t n = lvr_yaml_len(node);
    ask_scalar(node);
    if (lvr_yaml_node_kind(node) == LVR_YAML_SCALAR) {
        require(lvr_yaml_text(node) && n == 0);
        return;
    }
    ask_key(node, "absent");
    for (size_t i = 0; i < n && i < 64; i++) {
        if (lvr_yaml_node_kind(node) == LVR_YAML_MAP)
            ask_key(node, lvr_yaml_key_at(node, i));
    }
    for (size_t i = 0; i < n; i++)
        walk(lvr_yaml_at(node, i));
}

static void write_back(const lvr_yaml_node *root)
{
    const char *text = lvr_yaml_text(root), *back = NULL;
    if (!text)
        return;
    lvr_buf buf = LVR_BUF_INIT;
    lvr_yaml_out y;
    lvr_yaml_out_init(&y, &buf);
    lvr_yaml_out_comment(&y, text);
    lvr_yaml_out_str(&y, "key", text);
    lvr_yaml_doc *doc = NULL;
    require(lvr_yaml_load_mem("back", buf.data, buf.len, &doc, NULL) == LVR_OK);
    require(lvr_yaml_get_str(lvr_yaml_root(doc), "key", &back, NULL) == LVR_OK && strcmp(back, text) == 0);
    lvr_yaml_free(doc);
    lvr_buf_free(&buf);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    lvr_yaml_doc *doc = NULL;
    lvr_error err = LVR_ERROR_INIT;
    if (lvr_yaml_load_mem("fuzz", (const char *)data, size, &doc, &err) != LVR_OK) {
        require(err.msg[0] && !doc);
        return 0;
    }
    lvr_yaml_find(lvr_yaml_root(doc), "kye");
    lvr_yaml_check_used(doc, &err);
    walk(lvr_yaml_root(doc));
    require(lvr_yaml_check_used(doc, &err) == LVR_OK);
    write_back(lvr_yaml_root(doc));
    lvr_yaml_free(doc);
    return 0;
}
