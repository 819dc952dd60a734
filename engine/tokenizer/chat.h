/*
 * Chat formats: what an instruction-tuned model expects around the messages of a conversation. Not a template
 * engine: the formats of Llama 3 and ChatML (Qwen and others) are known and recognised by what
 * `tokenizer.chat_template` says, or, without a template, by the special tokens there are.
 *   llama-3  <|begin_of_text|>, per message <|start_header_id|>ROLE<|end_header_id|>\n\nTEXT<|eot_id|> with
 *            TEXT trimmed of white space (the date that templates from 3.1 on put before it is left out)
 *   chatml   per message <|im_start|>ROLE\nTEXT<|im_end|>\n; without a system message first the one that the
 *            template holds, if any
 * and at the end the head of the assistant's turn. A message's text is text: control tokens written in it are
 * not parsed. Pure functions.
 */
#ifndef LVR_ENGINE_CHAT_H
#define LVR_ENGINE_CHAT_H

#include "engine/tokenizer/tokenizer.h"

typedef enum lvr_chat_role { LVR_CHAT_SYSTEM, LVR_CHAT_USER, LVR_CHAT_ASSISTANT } lvr_chat_role;

typedef struct lvr_chat_message {
    lvr_chat_role role;
    const char *text;
    size_t n; /* bytes of text */
} lvr_chat_message;

/* "llama-3" or "chatml"; LVR_ERR_UNSUPPORTED says what was found instead. */
lvr_status lvr_chat_format(const lvr_tokenizer *t, const char **ret_name, lvr_error *err);
/* The conversation's tokens, begin-of-text included where the format has it, in a malloc'ed array. Errors: as
 * lvr_chat_format and lvr_tokenize. */
lvr_status lvr_chat_tokenize(const lvr_tokenizer *t, const lvr_chat_message *messages, size_t n,
                             int32_t **ret_tokens, uint32_t *ret_n, lvr_error *err);

#endif
