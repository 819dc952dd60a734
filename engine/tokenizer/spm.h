/*
 * SentencePiece-style BPE: the text, spaces marked, is split into characters; then the adjacent pair whose
 * concatenation is the best-scored piece is merged, until none is a piece. What is left that is no piece
 * becomes byte tokens. Not a public header.
 */
#ifndef LVR_ENGINE_TOKENIZER_SPM_H
#define LVR_ENGINE_TOKENIZER_SPM_H

#include "engine/tokenizer/merge.h"

/* Fills raw, bytes and what else depends on the kind, once the pieces are loaded. */
lvr_status lvr_spm_load(lvr_tokenizer *t, lvr_error *err);
/* Appends the tokens of text without special ones; prefix: as if a space came first. */
lvr_status lvr_spm_tokenize(struct lvr_merger *m, const char *text, size_t n, bool prefix,
                            struct lvr_tokens *out, lvr_error *err);

#endif
