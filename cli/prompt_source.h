/* Where run and record take their prompts from. */
#ifndef LVR_CLI_PROMPT_SOURCE_H
#define LVR_CLI_PROMPT_SOURCE_H

#include "cli/prompts.h"
#include <stdatomic.h>
#include <stdbool.h>

/* Options as given, NULL: not given. */
typedef struct lvr_prompt_source {
    const char *prompt;         /* the text itself; may be empty */
    const char *file;           /* a file of one text, "-": standard input */
    const char *prompts;        /* a file of several (prompts.h), "-": standard input */
    const char *split, *domain; /* choose among these */
    bool escape;                /* replace C escapes in `prompt` */
} lvr_prompt_source;

/* One source, or none and standard input is not a terminal: then it is the text. Texts are taken as they are
 * (line ends too), at most 16 MiB of UTF-8 without NUL bytes, and a file may not be empty. Reading standard
 * input ends once cancel is true. */
lvr_status lvr_prompt_source_load(const lvr_prompt_source *source, const atomic_bool *cancel,
                                  lvr_prompts *ret, lvr_error *err);

#endif
