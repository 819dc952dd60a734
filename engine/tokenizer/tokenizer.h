/*
 * Tokenizers read from GGUF meta data. This version: `tokenizer.ggml.model` = "llama" (SentencePiece-style
 * BPE by score, byte fallback <0xNN>, optional leading space, U+2581 for space). Others are refused by name.
 * Immutable after creation: safe to share between threads.
 */
#ifndef LVR_ENGINE_TOKENIZER_H
#define LVR_ENGINE_TOKENIZER_H

#include "common/buf.h"
#include "engine/gguf.h"

typedef struct lvr_tokenizer lvr_tokenizer;

lvr_status lvr_tokenizer_new(const lvr_gguf *g, lvr_tokenizer **ret, lvr_error *err);
void lvr_tokenizer_free(lvr_tokenizer *t);
uint32_t lvr_tokenizer_vocab(const lvr_tokenizer *t);
int32_t lvr_tokenizer_bos(const lvr_tokenizer *t); /* -1: none */
int32_t lvr_tokenizer_eos(const lvr_tokenizer *t);
bool lvr_tokenizer_adds_bos(const lvr_tokenizer *t);

/* Token ids of `text` (n bytes, any bytes) in a malloc'ed array. add_bos: prepend BOS if the model wants it.
 * Special tokens in the text are not parsed (text is text). O(n log n). */
lvr_status lvr_tokenize(const lvr_tokenizer *t, const char *text, size_t n, bool add_bos,
                        int32_t **ret_tokens, uint32_t *ret_n, lvr_error *err);
/* Appends the token's bytes; control tokens append nothing. `first` drops the leading space that
 * add_space_prefix put there. */
void lvr_detokenize(const lvr_tokenizer *t, int32_t token, bool first, lvr_buf *out);
/* Raw piece text as in the vocabulary. */
const char *lvr_token_piece(const lvr_tokenizer *t, int32_t token, size_t *ret_n);

/* Draft and target must share their vocabulary: LVR_ERR_CONFIG naming the first token that differs. A longer
 * vocabulary may differ in size only by padding entries at the end. */
lvr_status lvr_tokenizer_compatible(const lvr_tokenizer *target, const lvr_tokenizer *draft, lvr_error *err);

#endif
