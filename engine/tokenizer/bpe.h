/*
 * Byte-level BPE: every byte has a printable character that stands for it in the pieces; text is cut into
 * words (pretokenize.h), and in each word the adjacent pair that stands first in `tokenizer.ggml.merges` is
 * merged until none is left. Bytes that are not UTF-8 are words of their own. Not a public header.
 */
#ifndef LVR_ENGINE_TOKENIZER_BPE_H
#define LVR_ENGINE_TOKENIZER_BPE_H

#include "engine/tokenizer/merge.h"

/* Fills bpe, raw and bytes, once the pieces are loaded. *ret_adds_bos: what such models do unless the file
 * says otherwise. */
lvr_status lvr_bpe_load(lvr_tokenizer *t, const lvr_gguf *g, bool *ret_adds_bos, lvr_error *err);
void lvr_bpe_free(struct lvr_bpe *b);
/* Appends the tokens of text without special ones. */
lvr_status lvr_bpe_tokenize(struct lvr_merger *m, const char *text, size_t n, struct lvr_tokens *out,
                            lvr_error *err);

#endif
