/*
 * Cutting text into words before byte-level BPE merges inside each. How is named by the model's
 * `tokenizer.ggml.pre`; the patterns are those of the models' own tokenizers in the form llama.cpp applies
 * them (https://github.com/ggml-org/llama.cpp, src/llama-vocab.cpp). Matched by PCRE2
 * (https://www.pcre.org/current/doc/html/): letters, numbers and so on are those of its Unicode version
 * (10.42: Unicode 14), so a character assigned later may be cut differently. Immutable after creation. Not a
 * public header.
 */
#ifndef LVR_ENGINE_TOKENIZER_PRETOKENIZE_H
#define LVR_ENGINE_TOKENIZER_PRETOKENIZE_H

#include "common/error.h"
#include <stdbool.h>
#include <stddef.h>

typedef struct lvr_pretokenizer lvr_pretokenizer;

/* LVR_ERR_UNSUPPORTED names the known ones. path: of the model, for messages. */
lvr_status lvr_pretokenizer_new(const char *path, const char *name, lvr_pretokenizer **ret, lvr_error *err);
void lvr_pretokenizer_free(lvr_pretokenizer *p);
/* A word that is a token is that token, whatever the merges would make of it. */
bool lvr_pretokenizer_keeps_words(const lvr_pretokenizer *p);
bool lvr_pretokenizer_adds_bos(const lvr_pretokenizer *p); /* unless the file says otherwise */

/* Returns other than LVR_OK to stop. */
typedef lvr_status (*lvr_word_fn)(void *user, const char *word, size_t n, lvr_error *err);
/* Calls fn for each word of text, in order; together they are the text. text must be valid UTF-8. */
lvr_status lvr_pretokenize(const lvr_pretokenizer *p, const char *text, size_t n, lvr_word_fn fn, void *user,
                           lvr_error *err);

#endif
