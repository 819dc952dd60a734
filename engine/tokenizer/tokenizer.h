/*
 * Tokenizers read from GGUF meta data:
 *   tokenizer.ggml.model = "llama"  SentencePiece-style BPE by score, byte fallback <0xNN>, optional leading
 *                                   space, U+2581 for space
 *   tokenizer.ggml.model = "gpt2"   byte-level BPE by merges; tokenizer.ggml.pre names how text is cut into
 *                                   words first (pretokenize.h)
 * Others are refused by name. Token ids are those of llama.cpp. Any bytes can be tokenized and come back
 * unchanged, but for three things: U+2581 comes back from a "llama" vocabulary as a space, text after a
 * user-defined token gets the leading space once more there (both as in llama.cpp), and a "gpt2" vocabulary
 * that lacks a byte which UTF-8 never has turns it into U+FFFD. Immutable after creation: safe to share
 * between threads.
 */
#ifndef LVR_ENGINE_TOKENIZER_H
#define LVR_ENGINE_TOKENIZER_H

#include "common/buf.h"
#include "engine/gguf.h"

#define LVR_MAX_EOG 16u

typedef struct lvr_tokenizer lvr_tokenizer;

/* Needs no tensors: vocabulary-only files do. LVR_ERR_FORMAT names the key and the index that is wrong,
 * LVR_ERR_UNSUPPORTED the model or the pre-tokenizer that is not known. */
lvr_status lvr_tokenizer_new(const lvr_gguf *g, lvr_tokenizer **ret, lvr_error *err);
void lvr_tokenizer_free(lvr_tokenizer *t);
uint32_t lvr_tokenizer_vocab(const lvr_tokenizer *t);
int32_t lvr_tokenizer_bos(const lvr_tokenizer *t); /* -1: none */
int32_t lvr_tokenizer_eos(const lvr_tokenizer *t);
bool lvr_tokenizer_adds_bos(const lvr_tokenizer *t);
/* The tokens that end a text: end of text, of turn and of message by their keys, and those well known by
 * their texts (<|eot_id|>, <|im_end|>, ...). */
bool lvr_tokenizer_is_eog(const lvr_tokenizer *t, int32_t token);
const int32_t *lvr_tokenizer_eog(const lvr_tokenizer *t, uint32_t *ret_n);

/* Token ids of `text` (n bytes, any bytes) in a malloc'ed array. add_special: BOS before and EOS after, where
 * the model wants them. Control tokens in the text are not parsed (text is text); user-defined ones are.
 * O(n log n). */
lvr_status lvr_tokenize(const lvr_tokenizer *t, const char *text, size_t n, bool add_special,
                        int32_t **ret_tokens, uint32_t *ret_n, lvr_error *err);
/* The same, but control tokens written in the text become these tokens. Never for text from outside. */
lvr_status lvr_tokenize_special(const lvr_tokenizer *t, const char *text, size_t n, bool add_special,
                                int32_t **ret_tokens, uint32_t *ret_n, lvr_error *err);
/* Appends the token's bytes; control tokens append nothing. A character may be spread over several tokens, so
 * what is appended need not end with a whole one. `first` drops the leading space that add_space_prefix put
 * there. */
void lvr_detokenize(const lvr_tokenizer *t, int32_t token, bool first, lvr_buf *out);
/* Raw piece text as in the vocabulary. */
const char *lvr_token_piece(const lvr_tokenizer *t, int32_t token, size_t *ret_n);
/* The id of the token whose piece is exactly `piece`, whatever its type, or -1. */
int32_t lvr_tokenizer_find(const lvr_tokenizer *t, const char *piece);

/* Draft and target must share their vocabulary: LVR_ERR_CONFIG naming the first token that differs. A longer
 * vocabulary may differ in size only by padding entries at the end. */
lvr_status lvr_tokenizer_compatible(const lvr_tokenizer *target, const lvr_tokenizer *draft, lvr_error *err);

#endif
