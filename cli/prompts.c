#include "cli/prompts.h"

#include "common/fs.h"
#include "common/yaml.h"
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PROMPT_FILE_BYTES (64u << 20)

/* What to take from a file. */
typedef struct selection {
    const char *path, *split, *domain;
    uint64_t seen;
} selection;

static lvr_status append(lvr_prompts *p, uint64_t id, const char *domain, const char *text, size_t n,
                         lvr_error *err)
{
    if (p->n == p->cap) {
        const size_t cap = p->cap ? 2 * p->cap : 16;
        lvr_prompt *items = realloc(p->items, cap * sizeof *items);
        if (!items)
            return lvr_fail(err, LVR_ERR_NOMEM, "out of memory for %zu prompts", cap);
        p->items = items;
        p->cap = cap;
    }
    lvr_prompt *item = &p->items[p->n];
    *item = (lvr_prompt){.id = id, .n = n, .text = malloc(n + 1)};
    if (!item->text)
        return lvr_fail(err, LVR_ERR_NOMEM, "out of memory for a prompt of %zu bytes", n);
    memcpy(item->text, text, n);
    item->text[n] = '\0';
    snprintf(item->domain, sizeof item->domain, "%s", domain);
    p->n++;
    return LVR_OK;
}

lvr_status lvr_prompts_one(const char *text, size_t n, lvr_prompts *ret, lvr_error *err)
{
    lvr_prompts p = {0};
    const lvr_status status = append(&p, 0, "", text, n, err);
    if (status != LVR_OK) {
        lvr_prompts_free(&p);
        return status;
    }
    *ret = p;
    return LVR_OK;
}

void lvr_prompts_free(lvr_prompts *p)
{
    for (size_t i = 0; i < p->n; i++)
        free(p->items[i].text);
    free(p->items);
    *p = (lvr_prompts){0};
}

static lvr_status optional_text(const lvr_yaml_node *map, const char *key, const char **ret, lvr_error *err)
{
    *ret = "";
    return lvr_yaml_find(map, key) ? lvr_yaml_get_str(map, key, ret, err) : LVR_OK;
}

static bool has_id(const lvr_prompts *p, uint64_t id)
{
    for (size_t i = 0; i < p->n; i++)
        if (p->items[i].id == id)
            return true;
    return false;
}

static lvr_status add_node(lvr_prompts *p, selection *s, const lvr_yaml_node *node, lvr_error *err)
{
    const char *domain, *split, *text;
    uint64_t id = s->seen++;
    if (lvr_yaml_node_kind(node) != LVR_YAML_MAP)
        return lvr_fail(err, LVR_ERR_CONFIG, "%s: expected a prompt: a mapping of id, domain, split and text",
                        lvr_yaml_where(node));
    lvr_status status = lvr_yaml_get_str(node, "text", &text, err);
    if (status == LVR_OK)
        status = optional_text(node, "domain", &domain, err);
    if (status == LVR_OK)
        status = optional_text(node, "split", &split, err);
    if (status == LVR_OK && lvr_yaml_find(node, "id"))
        status = lvr_yaml_get_u64(node, "id", 0, UINT64_MAX, &id, err);
    if (status != LVR_OK)
        return status;
    if (strlen(domain) >= sizeof p->items[0].domain)
        return lvr_fail(err, LVR_ERR_CONFIG, "%s: domain \"%.64s\" is longer than %zu bytes",
                        lvr_yaml_where(node), domain, sizeof p->items[0].domain - 1);
    if ((s->split && strcmp(s->split, split) != 0) || (s->domain && strcmp(s->domain, domain) != 0))
        return LVR_OK;
    if (has_id(p, id))
        return lvr_fail(err, LVR_ERR_CONFIG, "%s: two prompts have the id %" PRIu64 "; ids must differ",
                        lvr_yaml_where(node), id);
    return append(p, id, domain, text, strlen(text), err);
}

static lvr_status add_doc(lvr_prompts *p, selection *s, const lvr_yaml_doc *doc, lvr_error *err)
{
    const lvr_yaml_node *list = lvr_yaml_root(doc);
    lvr_status status = LVR_OK;
    if (lvr_yaml_node_kind(list) == LVR_YAML_MAP)
        status = lvr_yaml_get_seq(list, "prompts", &list, err);
    else if (lvr_yaml_node_kind(list) != LVR_YAML_SEQ)
        status = lvr_fail(err, LVR_ERR_CONFIG, "%s: expected a sequence of prompts", lvr_yaml_where(list));
    for (size_t i = 0; status == LVR_OK && i < lvr_yaml_len(list); i++)
        status = add_node(p, s, lvr_yaml_at(list, i), err);
    return status == LVR_OK ? lvr_yaml_check_used(doc, err) : status;
}

static lvr_status load_yaml(lvr_prompts *p, selection *s, lvr_error *err)
{
    lvr_yaml_doc *doc = NULL;
    lvr_status status = lvr_yaml_load_file(s->path, &doc, err);
    if (status != LVR_OK)
        return status;
    status = add_doc(p, s, doc, err);
    lvr_yaml_free(doc);
    return status;
}

/* Fields that other programs put beside the text are of no concern here, so they are not checked. */
static lvr_status add_line(lvr_prompts *p, selection *s, const char *line, size_t n, uint64_t number,
                           lvr_error *err)
{
    char name[512];
    lvr_yaml_doc *doc = NULL;
    snprintf(name, sizeof name, "%s (line %" PRIu64 ")", s->path, number);
    lvr_status status = lvr_yaml_load_mem(name, line, n, &doc, err);
    if (status != LVR_OK)
        return status;
    status = add_node(p, s, lvr_yaml_root(doc), err);
    lvr_yaml_free(doc);
    return status;
}

static lvr_status load_lines(lvr_prompts *p, selection *s, lvr_error *err)
{
    lvr_buf text = LVR_BUF_INIT;
    lvr_status status = lvr_read_file(s->path, MAX_PROMPT_FILE_BYTES, &text, err);
    uint64_t number = 0;
    for (size_t at = 0; status == LVR_OK && at < text.len;) {
        const char *line = text.data + at, *end = memchr(line, '\n', text.len - at);
        const size_t n = end ? (size_t)(end - line) : text.len - at;
        number++;
        if (strspn(line, " \t\r") < n)
            status = add_line(p, s, line, n, number, err);
        at += n + 1;
    }
    lvr_buf_free(&text);
    return status;
}

static bool is_lines(const char *path)
{
    const size_t n = strlen(path);
    return n > 6 && strcmp(path + n - 6, ".jsonl") == 0;
}

lvr_status lvr_prompts_load(const char *path, const char *split, const char *domain, lvr_prompts *ret,
                            lvr_error *err)
{
    lvr_prompts p = {0};
    selection s = {.path = path, .split = split, .domain = domain};
    lvr_status status = is_lines(path) ? load_lines(&p, &s, err) : load_yaml(&p, &s, err);
    if (status == LVR_OK && p.n == 0)
        status = lvr_fail(err, LVR_ERR_CONFIG,
                          "%s: none of its %" PRIu64 " prompts has split \"%s\" and domain \"%s\"", path,
                          s.seen, split ? split : "(any)", domain ? domain : "(any)");
    if (status != LVR_OK) {
        lvr_prompts_free(&p);
        return status;
    }
    *ret = p;
    return LVR_OK;
}
