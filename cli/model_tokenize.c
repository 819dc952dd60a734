/* lever model tokenize: a text's tokens, or the text of tokens. */
#include "cli/model_tokenize.h"
#include "cli/emit.h"
#include "common/fs.h"
#include "common/json.h"
#include "common/param.h"
#include "engine/pack.h"
#include "engine/tokenizer/chat.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TEXT_BYTES (16u << 20)

static const char usage[] =
    "usage: lever model tokenize -m MODEL (-p TEXT | -f FILE) [--special] [--bos] [--chat [--system TEXT]] "
    "[--json]\n"
    "       lever model tokenize -m MODEL --decode IDS [--json]\n\n";

typedef struct tokenize_options {
    const char *model, *prompt, *file, *decode, *system;
    bool special, bos, chat, json;
} tokenize_options;

#define FIELD(f) offsetof(tokenize_options, f)

static const lvr_param table[] = {
    {.name = "model",
     .short_name = 'm',
     .type = LVR_PARAM_STR,
     .offset = FIELD(model),
     .def = NAN,
     .help = "a GGUF (one with a vocabulary only will do) or a pack",
     .positional = true},
    {.name = "prompt",
     .short_name = 'p',
     .type = LVR_PARAM_STR,
     .offset = FIELD(prompt),
     .def = NAN,
     .help = "the text"},
    {.name = "file",
     .short_name = 'f',
     .type = LVR_PARAM_STR,
     .offset = FIELD(file),
     .def = NAN,
     .help = "file with the text"},
    {.name = "special",
     .type = LVR_PARAM_BOOL,
     .offset = FIELD(special),
     .max = 1,
     .help = "control tokens written in the text become these tokens"},
    {.name = "bos",
     .type = LVR_PARAM_BOOL,
     .offset = FIELD(bos),
     .max = 1,
     .help = "add the tokens that the model wants around a prompt"},
    {.name = "chat",
     .type = LVR_PARAM_BOOL,
     .offset = FIELD(chat),
     .max = 1,
     .help = "put the text as a user's message into the model's chat format"},
    {.name = "system",
     .type = LVR_PARAM_STR,
     .offset = FIELD(system),
     .def = NAN,
     .help = "system message; with --chat"},
    {.name = "decode",
     .type = LVR_PARAM_STR,
     .offset = FIELD(decode),
     .def = NAN,
     .help = "token ids, separated by spaces or commas: prints exactly their text"},
    {.name = "json", .type = LVR_PARAM_BOOL, .offset = FIELD(json), .max = 1, .help = "print JSON"},
};
#define N_PARAMS (sizeof table / sizeof table[0])

/* ---- the model ---- */

lvr_status lvr_open_tokenizer(const char *path, lvr_tokenizer **ret, lvr_error *err)
{
    lvr_gguf *g = NULL;
    lvr_pack *p = NULL;
    const bool is_pack = lvr_pack_is_pack(path);
    lvr_status status = is_pack ? lvr_pack_open(path, &p, err) : lvr_gguf_open(path, &g, err);
    if (status != LVR_OK)
        return status;
    status = lvr_tokenizer_new(is_pack ? lvr_pack_gguf(p) : g, ret, err);
    lvr_gguf_free(g);
    lvr_pack_free(p);
    return status;
}

/* ---- tokens ---- */

typedef struct token_list {
    int32_t *ids;
    uint32_t n;
} token_list;

static lvr_status parse_ids(const char *text, uint32_t vocab, token_list *ret, lvr_error *err)
{
    token_list t = {.ids = malloc((strlen(text) / 2 + 1) * sizeof *t.ids)};
    if (!t.ids)
        return lvr_fail(err, LVR_ERR_NOMEM, "out of memory for token ids");
    for (const char *at = text + strspn(text, " ,\t\r\n"); *at; at += strspn(at, " ,\t\r\n")) {
        char item[16];
        uint64_t id = 0;
        const size_t n = strcspn(at, " ,\t\r\n");
        if (n < sizeof item) {
            memcpy(item, at, n);
            item[n] = '\0';
        }
        if (n >= sizeof item || lvr_parse_u64(item, &id, NULL) != LVR_OK || id >= vocab) {
            free(t.ids);
            return lvr_fail(err, LVR_ERR_USAGE, "--decode: expected token ids from 0 to %u, found '%.*s'",
                            vocab - 1, (int)(n < 40 ? n : 40), at);
        }
        t.ids[t.n++] = (int32_t)id;
        at += n;
    }
    *ret = t;
    return LVR_OK;
}

static lvr_status tokenize_chat(const tokenize_options *o, const lvr_tokenizer *t, const char *text, size_t n,
                                token_list *ret, lvr_error *err)
{
    const lvr_chat_message messages[] = {
        {.role = LVR_CHAT_SYSTEM, .text = o->system, .n = o->system ? strlen(o->system) : 0},
        {.role = LVR_CHAT_USER, .text = text, .n = n},
    };
    const size_t skip = o->system ? 0 : 1;
    return lvr_chat_tokenize(t, messages + skip, 2 - skip, &ret->ids, &ret->n, err);
}

static lvr_status tokenize_text(const tokenize_options *o, const lvr_tokenizer *t, const char *text, size_t n,
                                token_list *ret, lvr_error *err)
{
    if (o->chat)
        return tokenize_chat(o, t, text, n, ret, err);
    return o->special ? lvr_tokenize_special(t, text, n, o->bos, &ret->ids, &ret->n, err)
                      : lvr_tokenize(t, text, n, o->bos, &ret->ids, &ret->n, err);
}

static lvr_status make_tokens(const tokenize_options *o, const lvr_tokenizer *t, token_list *ret,
                              lvr_error *err)
{
    if (o->decode)
        return parse_ids(o->decode, lvr_tokenizer_vocab(t), ret, err);
    if (o->prompt)
        return tokenize_text(o, t, o->prompt, strlen(o->prompt), ret, err);
    lvr_buf text = LVR_BUF_INIT;
    lvr_status status = lvr_read_file(o->file, MAX_TEXT_BYTES, &text, err);
    if (status == LVR_OK)
        status = tokenize_text(o, t, text.data, text.len, ret, err);
    lvr_buf_free(&text);
    return status;
}

/* ---- printing ---- */

static void put_text(const lvr_tokenizer *t, const token_list *tokens, lvr_buf *out)
{
    for (uint32_t i = 0; i < tokens->n; i++) {
        const bool after_bos = i == 1 && tokens->ids[0] == lvr_tokenizer_bos(t);
        lvr_detokenize(t, tokens->ids[i], i == 0 || after_bos, out);
    }
}

static void put_json(const lvr_tokenizer *t, const token_list *tokens, lvr_buf *out)
{
    lvr_json j;
    lvr_buf text = LVR_BUF_INIT;
    put_text(t, tokens, &text);
    lvr_json_init(&j, out, true);
    lvr_json_object(&j, NULL);
    lvr_json_u64(&j, "n_tokens", tokens->n);
    lvr_json_array(&j, "tokens");
    for (uint32_t i = 0; i < tokens->n; i++)
        lvr_json_i64(&j, NULL, tokens->ids[i]);
    lvr_json_end_array(&j);
    lvr_json_array(&j, "pieces");
    for (uint32_t i = 0; i < tokens->n; i++) {
        size_t n = 0;
        const char *piece = lvr_token_piece(t, tokens->ids[i], &n);
        lvr_json_strn(&j, NULL, piece, n);
    }
    lvr_json_end_array(&j);
    lvr_json_strn(&j, "text", text.data ? text.data : "", text.len);
    lvr_json_end_object(&j);
    lvr_buf_puts(out, "\n");
    out->failed |= text.failed;
    lvr_buf_free(&text);
}

static void put_ids(const token_list *tokens, lvr_buf *out)
{
    for (uint32_t i = 0; i < tokens->n; i++)
        lvr_buf_printf(out, "%s%" PRId32, i > 0 ? " " : "", tokens->ids[i]);
    lvr_buf_puts(out, "\n");
}

static lvr_status check_options(const tokenize_options *o, lvr_error *err)
{
    const int n = (o->prompt != NULL) + (o->file != NULL) + (o->decode != NULL);
    if (!o->model)
        return lvr_fail(err, LVR_ERR_USAGE, "model tokenize: which model? Give one with -m FILE");
    if (n != 1)
        return lvr_fail(err, LVR_ERR_USAGE,
                        "model tokenize: give one of --prompt TEXT, --file FILE and --decode IDS");
    if (o->system && !o->chat)
        return lvr_fail(err, LVR_ERR_USAGE, "--system is part of a chat format; give --chat too");
    if ((o->chat || o->decode) && (o->special || o->bos))
        return lvr_fail(err, LVR_ERR_USAGE, "--special and --bos have no part in %s",
                        o->decode ? "--decode" : "--chat, which places these tokens itself");
    return LVR_OK;
}

lvr_status lvr_model_tokenize_cmd(int argc, char *const *argv, lvr_error *err)
{
    tokenize_options o;
    bool help = false;
    lvr_tokenizer *t = NULL;
    token_list tokens = {0};
    lvr_buf out = LVR_BUF_INIT;
    lvr_params_default(table, N_PARAMS, &o);
    lvr_status status = lvr_options_parse(table, N_PARAMS, &o, argc, argv, &help, err);
    if (status == LVR_OK && help)
        return lvr_emit_help(usage, table, N_PARAMS, err);
    if (status == LVR_OK)
        status = check_options(&o, err);
    if (status == LVR_OK)
        status = lvr_open_tokenizer(o.model, &t, err);
    if (status == LVR_OK)
        status = make_tokens(&o, t, &tokens, err);
    if (status == LVR_OK) {
        if (o.json)
            put_json(t, &tokens, &out);
        else if (o.decode)
            put_text(t, &tokens, &out);
        else
            put_ids(&tokens, &out);
        status = lvr_emit(NULL, &out, err);
    }
    free(tokens.ids);
    lvr_tokenizer_free(t);
    return status;
}
