/* lever model tokenize: a row of `lever model`'s table. */
#ifndef LVR_CLI_MODEL_TOKENIZE_H
#define LVR_CLI_MODEL_TOKENIZE_H

#include "engine/tokenizer/tokenizer.h"

lvr_status lvr_model_tokenize_cmd(int argc, char *const *argv, lvr_error *err);

/* The tokenizer of a GGUF (one with a vocabulary only will do) or of a pack. */
lvr_status lvr_open_tokenizer(const char *path, lvr_tokenizer **ret, lvr_error *err);

#endif
