#include "cli/prompt_source.h"

#include "cli/input_text.h"
#include "common/log.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MAX_PROMPTS_BYTES (64u << 20)
#define EXPECTED                                                                                             \
    "--prompt TEXT, --file FILE, --prompts FILE (FILE may be -, standard input), or write the prompt to "    \
    "standard input"

static lvr_status check_sources(const lvr_prompt_source *s, lvr_error *err)
{
    const char *const given[] = {s->prompt ? "--prompt" : NULL, s->file ? "--file" : NULL,
                                 s->prompts ? "--prompts" : NULL};
    const char *first = NULL;
    for (size_t i = 0; i < sizeof given / sizeof given[0]; i++) {
        if (!given[i])
            continue;
        if (first)
            return lvr_fail(err, LVR_ERR_USAGE, "%s and %s both give the prompt; leave one of them out",
                            first, given[i]);
        first = given[i];
    }
    if ((s->split || s->domain) && !s->prompts)
        return lvr_fail(err, LVR_ERR_USAGE,
                        "--split and --domain choose among the prompts of a file; give --prompts FILE");
    if (!first && isatty(STDIN_FILENO))
        return lvr_fail(err, LVR_ERR_USAGE, "no prompt; give " EXPECTED);
    return LVR_OK;
}

static lvr_status load_argument(const lvr_prompt_source *s, lvr_prompts *ret, lvr_error *err)
{
    lvr_buf text = LVR_BUF_INIT;
    lvr_status status = lvr_input_argument("prompt", s->prompt, s->escape, &text, err);
    if (status == LVR_OK)
        status = lvr_input_check_text("--prompt", text.data, text.len, err);
    if (status == LVR_OK)
        status = lvr_prompts_one(text.data, text.len, ret, err);
    lvr_buf_free(&text);
    return status;
}

static lvr_status load_text(const char *path, const atomic_bool *cancel, lvr_prompts *ret, lvr_error *err)
{
    const char *name = lvr_input_name(path);
    lvr_buf text = LVR_BUF_INIT;
    lvr_status status = lvr_input_read(path, LVR_MAX_INPUT_TEXT_BYTES, cancel, &text, err);
    if (status == LVR_OK && text.len == 0)
        status = lvr_fail(
            err, LVR_ERR_CONFIG,
            "%s is empty, expected the prompt; give " EXPECTED " (--prompt \"\" begins with nothing)", name);
    if (status == LVR_OK)
        status = lvr_input_check_text(name, text.data, text.len, err);
    if (status == LVR_OK)
        status = lvr_prompts_one(text.data, text.len, ret, err);
    lvr_buf_free(&text);
    return status;
}

static lvr_status load_set(const lvr_prompt_source *s, const atomic_bool *cancel, lvr_prompts *ret,
                           lvr_error *err)
{
    if (!lvr_input_is_stdin(s->prompts))
        return lvr_prompts_load(s->prompts, s->split, s->domain, ret, err);
    lvr_buf text = LVR_BUF_INIT;
    lvr_status status = lvr_input_read(s->prompts, MAX_PROMPTS_BYTES, cancel, &text, err);
    if (status == LVR_OK && text.len == 0)
        status = lvr_fail(err, LVR_ERR_CONFIG, "%s is empty, expected prompts in YAML or JSONL",
                          lvr_input_name(s->prompts));
    if (status == LVR_OK)
        status =
            lvr_prompts_parse(lvr_input_name(s->prompts), text.data, text.len, s->split, s->domain, ret, err);
    lvr_buf_free(&text);
    return status;
}

lvr_status lvr_prompt_source_load(const lvr_prompt_source *s, const atomic_bool *cancel, lvr_prompts *ret,
                                  lvr_error *err)
{
    const lvr_status status = check_sources(s, err);
    if (status != LVR_OK)
        return status;
    if (s->prompt)
        return load_argument(s, ret, err);
    if (s->prompts)
        return load_set(s, cancel, ret, err);
    if (!s->file)
        lvr_log(LVR_LOG_INFO, "reading the prompt from standard input");
    return load_text(s->file ? s->file : "-", cancel, ret, err);
}
