#include "engine/tokenizer/chat.h"
#include "engine/tokenizer/vocab.h"
#include <stdlib.h>
#include <string.h>

static const char *const role_names[] = {
    [LVR_CHAT_SYSTEM] = "system", [LVR_CHAT_USER] = "user", [LVR_CHAT_ASSISTANT] = "assistant"};

/* ---- formats ---- */

static const struct format {
    const char *name;
    const char *tokens[4]; /* the vocabulary must have all of these; a template, the first */
    const char *begin;     /* first token of a conversation; NULL: what the model puts before any text */
    const char *head, *after_role, *end, *after_end;
    const char *head_end; /* a token between role and after_role, NULL: none */
    bool trims, has_default_system;
} formats[] = {
    {.name = "llama-3",
     .tokens = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
     .begin = "<|begin_of_text|>",
     .head = "<|start_header_id|>",
     .head_end = "<|end_header_id|>",
     .after_role = "\n\n",
     .end = "<|eot_id|>",
     .after_end = "",
     .trims = true},
    {.name = "chatml",
     .tokens = {"<|im_start|>", "<|im_end|>"},
     .head = "<|im_start|>",
     .after_role = "\n",
     .end = "<|im_end|>",
     .after_end = "\n",
     .has_default_system = true},
};
#define N_FORMATS (sizeof(formats) / sizeof(formats[0]))

static bool has_tokens(const lvr_tokenizer *t, const struct format *f)
{
    for (const char *const *token = f->tokens; *token != NULL; token++)
        if (lvr_tokenizer_find(t, *token) < 0)
            return false;
    return true;
}

/* The template's first line that says anything, for messages. */
static struct lvr_shown first_line(const char *template)
{
    template += strspn(template, " \t\r\n");
    return lvr_show(template, strcspn(template, "\r\n"));
}

static lvr_status find_format(const lvr_tokenizer *t, const struct format **ret, lvr_error *err)
{
    const bool any = t->chat_template[0] == '\0';
    for (size_t i = 0; i < N_FORMATS; i++) {
        const bool named = any || strstr(t->chat_template, formats[i].tokens[0]) != NULL;
        if (!named || !has_tokens(t, &formats[i]))
            continue;
        *ret = &formats[i];
        return LVR_OK;
    }
    if (any)
        return lvr_fail(err, LVR_ERR_UNSUPPORTED,
                        "%s: no chat format: the model (architecture \"%s\") has no "
                        "tokenizer.chat_template, and its vocabulary has neither the special tokens of "
                        "Llama 3 (<|start_header_id|>) nor those of ChatML (<|im_start|>); it may not be a "
                        "chat model: leave --chat out",
                        t->path, lvr_show(t->architecture, strlen(t->architecture)).text);
    return lvr_fail(err, LVR_ERR_UNSUPPORTED,
                    "%s: the chat format of this model (architecture \"%s\") is not supported: known are "
                    "Llama 3 (<|start_header_id|>) and ChatML (<|im_start|>), its tokenizer.chat_template "
                    "begins \"%s\"; leave --chat out, and the model goes on from the prompt as it is, or "
                    "take a model with one of these formats",
                    t->path, lvr_show(t->architecture, strlen(t->architecture)).text,
                    first_line(t->chat_template).text);
}

lvr_status lvr_chat_format(const lvr_tokenizer *t, const char **ret_name, lvr_error *err)
{
    const struct format *f = NULL;
    const lvr_status status = find_format(t, &f, err);
    if (status == LVR_OK)
        *ret_name = f->name;
    return status;
}

/* ---- the system message of a template ---- */

/* The literal text that follows `<|im_start|>system` and a line end (in Jinja's strings "\n" is two
 * characters) up to the end token, where nothing of the template's language stands between. 0: this is none.
 */
static size_t literal_system(const char *after, const struct format *f, const char **ret)
{
    if (*after == '\n')
        after += 1;
    else if (strncmp(after, "\\n", 2) == 0)
        after += 2;
    else
        return 0;
    const char *end = strstr(after, f->end);
    if (end == NULL || strcspn(after, "'\"{}\\") < (size_t)(end - after))
        return 0;
    *ret = after;
    return (size_t)(end - after);
}

static bool default_system(const lvr_tokenizer *t, const struct format *f, lvr_chat_message *ret)
{
    static const char head[] = "<|im_start|>system", qwen2[] = "You are a helpful assistant.";
    if (!f->has_default_system)
        return false;
    *ret = (lvr_chat_message){.role = LVR_CHAT_SYSTEM};
    for (const char *at = t->chat_template; (at = strstr(at, head)) != NULL; at++) {
        ret->n = literal_system(at + sizeof(head) - 1, f, &ret->text);
        if (ret->n > 0)
            return true;
    }
    if (t->chat_template[0] != '\0' || strcmp(t->architecture, "qwen2") != 0)
        return false;
    ret->text = qwen2;
    ret->n = sizeof(qwen2) - 1;
    return true;
}

/* ---- building ---- */

/* Text between two special tokens is tokenized as one, wherever it comes from: a word may begin in the
 * format's text and end in the message's. */
struct builder {
    const lvr_tokenizer *t;
    struct lvr_tokens out;
    lvr_buf text; /* not tokenized yet */
    lvr_status status;
    lvr_error *err;
};

static void flush(struct builder *b)
{
    int32_t *ids = NULL;
    uint32_t n = 0;
    if (b->status == LVR_OK && b->text.failed)
        b->status = lvr_tokenizer_no_memory(b->t, b->err);
    if (b->status != LVR_OK || b->text.len == 0)
        return;
    b->status = lvr_tokenize(b->t, b->text.data, b->text.len, false, &ids, &n, b->err);
    for (uint32_t i = 0; b->status == LVR_OK && i < n; i++)
        if (!lvr_tokens_push(&b->out, ids[i]))
            b->status = lvr_tokenizer_no_memory(b->t, b->err);
    free(ids);
    b->text.len = 0;
}

static void put_id(struct builder *b, int32_t id)
{
    flush(b);
    if (b->status == LVR_OK && !lvr_tokens_push(&b->out, id))
        b->status = lvr_tokenizer_no_memory(b->t, b->err);
}

static void put_token(struct builder *b, const char *piece)
{
    put_id(b, lvr_tokenizer_find(b->t, piece));
}

static void put_begin(struct builder *b, const struct format *f)
{
    const int32_t begin = f->begin != NULL ? lvr_tokenizer_find(b->t, f->begin) : -1;
    if (begin >= 0)
        put_id(b, begin);
    else if (b->t->add_bos)
        put_id(b, b->t->bos);
}

static void put_head(struct builder *b, const struct format *f, lvr_chat_role role)
{
    put_token(b, f->head);
    lvr_buf_puts(&b->text, role_names[role]);
    if (f->head_end != NULL)
        put_token(b, f->head_end);
    lvr_buf_puts(&b->text, f->after_role);
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static void put_message(struct builder *b, const struct format *f, lvr_chat_message m)
{
    while (f->trims && m.n > 0 && is_space(m.text[0])) {
        m.text++;
        m.n--;
    }
    while (f->trims && m.n > 0 && is_space(m.text[m.n - 1]))
        m.n--;
    put_head(b, f, m.role);
    lvr_buf_append(&b->text, m.text, m.n);
    put_token(b, f->end);
    lvr_buf_puts(&b->text, f->after_end);
}

lvr_status lvr_chat_tokenize(const lvr_tokenizer *t, const lvr_chat_message *messages, size_t n,
                             int32_t **ret_tokens, uint32_t *ret_n, lvr_error *err)
{
    const struct format *f = NULL;
    lvr_chat_message system;
    const lvr_status status = find_format(t, &f, err);
    if (status != LVR_OK)
        return status;
    struct builder b = {.t = t, .text = LVR_BUF_INIT, .err = err};
    put_begin(&b, f);
    if ((n == 0 || messages[0].role != LVR_CHAT_SYSTEM) && default_system(t, f, &system))
        put_message(&b, f, system);
    for (size_t i = 0; i < n; i++)
        put_message(&b, f, messages[i]);
    put_head(&b, f, LVR_CHAT_ASSISTANT);
    flush(&b);
    lvr_buf_free(&b.text);
    if (b.status != LVR_OK) {
        free(b.out.ids);
        return b.status;
    }
    *ret_tokens = b.out.ids;
    *ret_n = b.out.n;
    return LVR_OK;
}
