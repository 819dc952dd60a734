#include "cli/prompts.h"

#include "cli/json_text.h"
#include "common/fs.h"
#include "common/log.h"
#include "common/param.h"
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
    bool warned; /* of keys that mean nothing here */
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

/* true, 5 or, in JSON, anything without quotes is no text. */
static lvr_status check_text(const lvr_yaml_node *map, const char *text, bool is_json, lvr_error *err)
{
    double number = 0;
    bool truth = false;
    if (!lvr_yaml_is_plain(lvr_yaml_find(map, "text")) ||
        (!is_json && lvr_parse_double(text, &number, NULL) != LVR_OK &&
         lvr_parse_bool(text, &truth, NULL) != LVR_OK))
        return LVR_OK;
    return lvr_fail(err, LVR_ERR_CONFIG, "%s: `text`: expected a string, found %.64s; put it in quotes",
                    lvr_yaml_where(lvr_yaml_find(map, "text")), text);
}

static bool is_split(const char *name)
{
    return strcmp(name, "tune") == 0 || strcmp(name, "held-out") == 0;
}

static lvr_status check_split(const lvr_yaml_node *map, const char *split, lvr_error *err)
{
    if (!lvr_yaml_find(map, "split") || is_split(split))
        return LVR_OK;
    return lvr_fail(err, LVR_ERR_CONFIG, "%s: `split`: expected tune or held-out, found \"%.64s\"",
                    lvr_yaml_where(lvr_yaml_find(map, "split")), split);
}

static bool has_id(const lvr_prompts *p, uint64_t id)
{
    for (size_t i = 0; i < p->n; i++)
        if (p->items[i].id == id)
            return true;
    return false;
}

static lvr_status add_node(lvr_prompts *p, selection *s, const lvr_yaml_node *node, bool is_json,
                           lvr_error *err)
{
    const char *domain, *split, *text;
    uint64_t id = s->seen++;
    if (lvr_yaml_node_kind(node) != LVR_YAML_MAP)
        return lvr_fail(err, LVR_ERR_CONFIG, "%s: expected a prompt: a mapping of id, domain, split and text",
                        lvr_yaml_where(node));
    lvr_status status = lvr_yaml_get_str(node, "text", &text, err);
    if (status == LVR_OK)
        status = check_text(node, text, is_json, err);
    if (status == LVR_OK)
        status = optional_text(node, "domain", &domain, err);
    if (status == LVR_OK)
        status = optional_text(node, "split", &split, err);
    if (status == LVR_OK)
        status = check_split(node, split, err);
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
        status = add_node(p, s, lvr_yaml_at(list, i), false, err);
    return status == LVR_OK ? lvr_yaml_check_used(doc, err) : status;
}

static lvr_status add_document(lvr_prompts *p, selection *s, const char *text, size_t n, lvr_error *err)
{
    lvr_yaml_doc *doc = NULL;
    lvr_buf plain = LVR_BUF_INIT;
    const size_t begin = n ? strspn(text, " \t\r\n") : 0;
    const bool is_json = begin < n && (text[begin] == '{' || text[begin] == '[');
    lvr_status status = is_json ? lvr_json_text_escapes(s->path, 1, text, n, &plain, err) : LVR_OK;
    if (status == LVR_OK)
        status = lvr_yaml_load_mem(s->path, is_json ? plain.data : text, is_json ? plain.len : n, &doc, err);
    if (status == LVR_OK)
        status = add_doc(p, s, doc, err);
    lvr_yaml_free(doc);
    lvr_buf_free(&plain);
    return status;
}

/* Fields that other programs put beside the text are of no concern here; a misspelt one is told once. */
static void warn_unused(selection *s, const lvr_yaml_doc *doc)
{
    lvr_error unused = LVR_ERROR_INIT;
    if (s->warned || lvr_yaml_check_used(doc, &unused) == LVR_OK)
        return;
    s->warned = true;
    lvr_log(LVR_LOG_WARN, "%s (such keys are ignored in JSONL; this is said once)", unused.msg);
}

static lvr_status add_line(lvr_prompts *p, selection *s, const char *line, size_t n, uint32_t number,
                           lvr_error *err)
{
    lvr_yaml_doc *doc = NULL;
    lvr_buf text = LVR_BUF_INIT;
    lvr_status status = lvr_json_text_escapes(s->path, number, line, n, &text, err);
    if (status == LVR_OK)
        status = lvr_yaml_load_line(s->path, number, text.data, text.len, &doc, err);
    if (status == LVR_OK)
        status = add_node(p, s, lvr_yaml_root(doc), true, err);
    if (status == LVR_OK)
        warn_unused(s, doc);
    lvr_yaml_free(doc);
    lvr_buf_free(&text);
    return status;
}

static lvr_status add_lines(lvr_prompts *p, selection *s, const char *text, size_t n, lvr_error *err)
{
    lvr_status status = LVR_OK;
    uint32_t number = 0;
    for (size_t at = 0; status == LVR_OK && at < n;) {
        const char *line = text + at, *end = memchr(line, '\n', n - at);
        const size_t len = end ? (size_t)(end - line) : n - at;
        number++;
        if (strspn(line, " \t\r") < len)
            status = add_line(p, s, line, len, number, err);
        at += len + 1;
    }
    return status;
}

static lvr_status load_file(lvr_prompts *p, selection *s, bool lines, lvr_error *err)
{
    lvr_buf text = LVR_BUF_INIT;
    lvr_status status = lvr_read_file(s->path, MAX_PROMPT_FILE_BYTES, &text, err);
    if (status == LVR_OK)
        status = (lines ? add_lines : add_document)(p, s, text.data, text.len, err);
    lvr_buf_free(&text);
    return status;
}

static bool is_lines(const char *path)
{
    const size_t n = strlen(path);
    return n > 6 && strcmp(path + n - 6, ".jsonl") == 0;
}

/* Hands the prompts over, or frees them. */
static lvr_status finish(lvr_prompts *p, const selection *s, lvr_status status, lvr_prompts *ret,
                         lvr_error *err)
{
    if (status == LVR_OK && p->n == 0)
        status = lvr_fail(err, LVR_ERR_CONFIG,
                          "%s: none of its %" PRIu64 " prompts has split \"%s\" and domain \"%s\"", s->path,
                          s->seen, s->split ? s->split : "(any)", s->domain ? s->domain : "(any)");
    if (status != LVR_OK) {
        lvr_prompts_free(p);
        return status;
    }
    *ret = *p;
    return LVR_OK;
}

lvr_status lvr_prompts_load(const char *path, const char *split, const char *domain, lvr_prompts *ret,
                            lvr_error *err)
{
    lvr_prompts p = {0};
    selection s = {.path = path, .split = split, .domain = domain};
    const lvr_status status = load_file(&p, &s, is_lines(path), err);
    return finish(&p, &s, status, ret, err);
}

/* A first line that is a prompt by itself: so is every other. */
static bool looks_like_lines(const char *text, size_t n)
{
    const char *end = memchr(text, '\n', n);
    lvr_yaml_doc *doc = NULL;
    lvr_buf plain = LVR_BUF_INIT;
    bool found = false;
    if (n == 0 || text[0] != '{')
        return false;
    /* Half of a pair is for whoever reads the line to refuse. */
    lvr_status status = lvr_json_text_escapes("", 1, text, end ? (size_t)(end - text) : n, &plain, NULL);
    if (status == LVR_ERR_CONFIG)
        return true;
    if (status == LVR_OK)
        status = lvr_yaml_load_mem("", plain.data, plain.len, &doc, NULL);
    if (status == LVR_OK) {
        const lvr_yaml_node *root = lvr_yaml_root(doc);
        found = lvr_yaml_node_kind(root) == LVR_YAML_MAP && lvr_yaml_find(root, "text");
    }
    lvr_yaml_free(doc);
    lvr_buf_free(&plain);
    return found;
}

lvr_status lvr_prompts_parse(const char *name, const char *text, size_t n, const char *split,
                             const char *domain, lvr_prompts *ret, lvr_error *err)
{
    lvr_prompts p = {0};
    selection s = {.path = name, .split = split, .domain = domain};
    const lvr_status status = (looks_like_lines(text, n) ? add_lines : add_document)(&p, &s, text, n, err);
    return finish(&p, &s, status, ret, err);
}
