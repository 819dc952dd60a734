/*
 * The vocabulary of a synthetic model: the tokenizer of a GGUF (a vocabulary-only file will do), padded with
 * unused tokens to the size a shape wants, and which of its tokens are fit to be the words of generated text.
 */
#ifndef LVR_ENGINE_SYNTH_VOCABULARY_H
#define LVR_ENGINE_SYNTH_VOCABULARY_H

#include "engine/gguf.h"
#include "engine/gguf_write.h"

typedef struct lvr_synth_vocab lvr_synth_vocab;

/* Reads `path` for a shape of n_tokens. A larger vocabulary is LVR_ERR_CONFIG naming both sizes. */
lvr_status lvr_synth_vocab_open(const char *path, uint32_t n_tokens, lvr_synth_vocab **ret, lvr_error *err);
void lvr_synth_vocab_free(lvr_synth_vocab *v);

/* Tokens of the file, without padding. */
uint32_t lvr_synth_vocab_own(const lvr_synth_vocab *v);
/* Writes every tokenizer.* key, tokens, types and scores padded. */
void lvr_synth_vocab_write(const lvr_synth_vocab *v, lvr_gguf_writer *w);
/* Marks in words[own tokens] the normal tokens of printable ASCII text; returns how many. */
uint32_t lvr_synth_vocab_words(const lvr_synth_vocab *v, bool *words);

#endif
