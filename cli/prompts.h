/* Prompts for run and record: one from the command line or a file, or a set from a YAML or JSONL file. */
#ifndef LVR_CLI_PROMPTS_H
#define LVR_CLI_PROMPTS_H

#include "common/error.h"
#include <stddef.h>
#include <stdint.h>

typedef struct lvr_prompt {
    uint64_t id;
    char domain[32];
    char *text;
    size_t n; /* bytes of text */
} lvr_prompt;

typedef struct lvr_prompts {
    lvr_prompt *items;
    size_t n, cap;
} lvr_prompts;

/* Takes the text as it is. */
lvr_status lvr_prompts_one(const char *text, size_t n, lvr_prompts *ret, lvr_error *err);
/* YAML ({prompts: [{id, domain, split, text}]} or the bare sequence; JSON is YAML) or, by its name *.jsonl,
 * one such mapping per line. Absent: id is the running number, domain "". split, domain: only such prompts
 * (NULL: all); none left is an error. */
lvr_status lvr_prompts_load(const char *path, const char *split, const char *domain, lvr_prompts *ret,
                            lvr_error *err);
/* The same from memory; text[n] is a NUL byte. One mapping per line if the first line is a prompt by itself.
 * `name` is for messages. */
lvr_status lvr_prompts_parse(const char *name, const char *text, size_t n, const char *split,
                             const char *domain, lvr_prompts *ret, lvr_error *err);
void lvr_prompts_free(lvr_prompts *p);

#endif
