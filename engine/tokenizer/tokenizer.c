#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/bpe.h"
#include "engine/tokenizer/spm.h"
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define MAX_TEXT_BYTES (16u << 20) /* keeps indices in 31 bits and scratch memory below a gigabyte */

/* ---- loading ---- */

static lvr_status read_model(const lvr_gguf *g, bool *ret_sentencepiece, lvr_error *err)
{
    const char *model = NULL;
    const lvr_status status = lvr_gguf_str_(g, "tokenizer.ggml.model", &model, err);
    if (status != LVR_OK)
        return status;
    *ret_sentencepiece = strcmp(model, "llama") == 0;
    if (!*ret_sentencepiece && strcmp(model, "gpt2") != 0)
        return lvr_fail(err, LVR_ERR_UNSUPPORTED,
                        "%s: tokenizer model \"%s\" is not supported: this version has \"llama\" "
                        "(SentencePiece BPE) and \"gpt2\" (byte-level BPE)",
                        lvr_gguf_path(g), lvr_show(model, strlen(model)).text);
    static const char *const booleans[] = {"tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token",
                                           "tokenizer.ggml.add_space_prefix",
                                           "tokenizer.ggml.treat_whitespace_as_suffix"};
    for (size_t i = 0; i < sizeof booleans / sizeof *booleans; i++) {
        const lvr_status typed = lvr_gguf_check_bool(g, booleans[i], err);
        if (typed != LVR_OK)
            return typed;
    }
    if (lvr_gguf_bool_or(g, "tokenizer.ggml.treat_whitespace_as_suffix", false))
        return lvr_fail(err, LVR_ERR_UNSUPPORTED,
                        "%s: tokenizer.ggml.treat_whitespace_as_suffix is not supported", lvr_gguf_path(g));
    return LVR_OK;
}

/* What chat formats are recognised by; absent is "". */
static lvr_status copy_string(const lvr_tokenizer *t, const lvr_gguf *g, const char *key, char **ret,
                              lvr_error *err)
{
    const char *value = "";
    if (lvr_gguf_has(g, key)) {
        const lvr_status status = lvr_gguf_str_(g, key, &value, err);
        if (status != LVR_OK)
            return status;
    }
    *ret = strdup(value);
    return *ret != NULL ? LVR_OK : lvr_tokenizer_no_memory(t, err);
}

static lvr_status load_kind(lvr_tokenizer *t, const lvr_gguf *g, bool sentencepiece, lvr_error *err)
{
    bool adds_bos = true;
    for (int b = 0; b < 256; b++)
        t->bytes[b] = -1;
    t->raw = malloc(t->n_text);
    if (t->raw == NULL)
        return lvr_tokenizer_no_memory(t, err);
    const lvr_status status = sentencepiece ? lvr_spm_load(t, err) : lvr_bpe_load(t, g, &adds_bos, err);
    t->add_bos = t->bos >= 0 && lvr_gguf_bool_or(g, "tokenizer.ggml.add_bos_token", adds_bos);
    t->add_eos = t->eos >= 0 && lvr_gguf_bool_or(g, "tokenizer.ggml.add_eos_token", false);
    t->add_space_prefix = sentencepiece && lvr_gguf_bool_or(g, "tokenizer.ggml.add_space_prefix", true);
    return status;
}

lvr_status lvr_tokenizer_new(const lvr_gguf *g, lvr_tokenizer **ret, lvr_error *err)
{
    bool sentencepiece = false;
    lvr_status status = read_model(g, &sentencepiece, err);
    if (status != LVR_OK)
        return status;
    lvr_tokenizer *t = calloc(1, sizeof(*t));
    if (t == NULL || (t->path = strdup(lvr_gguf_path(g))) == NULL) {
        status = lvr_fail(err, LVR_ERR_NOMEM, "%s: tokenizer: out of memory", lvr_gguf_path(g));
        goto out;
    }
    status = lvr_vocab_load(t, g, sentencepiece, err);
    if (status == LVR_OK)
        status = load_kind(t, g, sentencepiece, err);
    if (status == LVR_OK)
        status = copy_string(t, g, "general.architecture", &t->architecture, err);
    if (status == LVR_OK)
        status = copy_string(t, g, "tokenizer.chat_template", &t->chat_template, err);
    if (status != LVR_OK)
        goto out;
    *ret = t;
    t = NULL;
out:
    lvr_tokenizer_free(t);
    return status;
}

void lvr_tokenizer_free(lvr_tokenizer *t)
{
    if (t == NULL)
        return;
    lvr_bpe_free(t->bpe);
    free(t->path);
    free(t->text);
    free(t->raw);
    free(t->pieces);
    free(t->by_text);
    free(t->special);
    free(t->architecture);
    free(t->chat_template);
    free(t);
}

/* ---- questions ---- */

uint32_t lvr_tokenizer_vocab(const lvr_tokenizer *t)
{
    return t->n_pieces;
}

int32_t lvr_tokenizer_bos(const lvr_tokenizer *t)
{
    return t->bos;
}

int32_t lvr_tokenizer_eos(const lvr_tokenizer *t)
{
    return t->eos;
}

bool lvr_tokenizer_adds_bos(const lvr_tokenizer *t)
{
    return t->add_bos;
}

bool lvr_tokenizer_is_eog(const lvr_tokenizer *t, int32_t token)
{
    for (uint32_t i = 0; i < t->n_eog; i++)
        if (t->eog[i] == token)
            return true;
    return false;
}

const int32_t *lvr_tokenizer_eog(const lvr_tokenizer *t, uint32_t *ret_n)
{
    *ret_n = t->n_eog;
    return t->eog;
}

const char *lvr_token_piece(const lvr_tokenizer *t, int32_t token, size_t *ret_n)
{
    if (token < 0 || (uint32_t)token >= t->n_pieces) {
        *ret_n = 0;
        return "";
    }
    *ret_n = t->pieces[token].n;
    return t->pieces[token].s;
}

int32_t lvr_tokenizer_find(const lvr_tokenizer *t, const char *piece)
{
    return lvr_vocab_find_any(t, piece, strlen(piece));
}

/* ---- text to tokens ---- */

/* One text being tokenized. */
struct job {
    const lvr_tokenizer *t;
    struct lvr_merger merger;
    struct lvr_tokens out;
    bool after_special; /* the prefix space also follows special tokens, as in llama.cpp */
};

static lvr_status push(struct job *j, int32_t id, lvr_error *err)
{
    return lvr_tokens_push(&j->out, id) ? LVR_OK : lvr_tokenizer_no_memory(j->t, err);
}

static lvr_status tokenize_raw(struct job *j, const char *text, size_t n, lvr_error *err)
{
    const bool prefix = j->after_special && j->t->add_space_prefix;
    if (n == 0)
        return LVR_OK;
    j->after_special = false;
    return j->t->bpe != NULL ? lvr_bpe_tokenize(&j->merger, text, n, &j->out, err)
                             : lvr_spm_tokenize(&j->merger, text, n, prefix, &j->out, err);
}

static lvr_status tokenize_parts(struct job *j, const char *text, size_t n, bool control, lvr_error *err)
{
    struct lvr_special_hit hit;
    size_t at = 0;
    lvr_status status = LVR_OK;
    while (status == LVR_OK && lvr_special_next(j->t, text, at, n, control, &hit)) {
        status = tokenize_raw(j, text + at, hit.begin - at, err);
        if (status == LVR_OK)
            status = push(j, hit.id, err);
        j->after_special = true;
        at = hit.begin + hit.n;
    }
    return status == LVR_OK ? tokenize_raw(j, text + at, n - at, err) : status;
}

static lvr_status tokenize(const lvr_tokenizer *t, const char *text, size_t n, bool add_special, bool control,
                           int32_t **ret_tokens, uint32_t *ret_n, lvr_error *err)
{
    if (n > MAX_TEXT_BYTES)
        return lvr_fail(err, LVR_ERR_UNSUPPORTED,
                        "a text of %zu bytes is too long to tokenize (at most %u MiB)", n,
                        MAX_TEXT_BYTES >> 20);
    struct job j = {.t = t, .merger = {.t = t}, .after_special = true};
    lvr_status status = LVR_OK;
    if (add_special && t->add_bos)
        status = push(&j, t->bos, err);
    if (status == LVR_OK && n > 0)
        status = tokenize_parts(&j, text, n, control, err);
    if (status == LVR_OK && add_special && t->add_eos)
        status = push(&j, t->eos, err);
    if (status == LVR_OK && j.out.ids == NULL) { /* no tokens: still an array the caller can free */
        j.out.ids = malloc(sizeof(*j.out.ids));
        if (j.out.ids == NULL)
            status = lvr_tokenizer_no_memory(t, err);
    }
    lvr_merger_free(&j.merger);
    if (status != LVR_OK) {
        free(j.out.ids);
        return status;
    }
    *ret_tokens = j.out.ids;
    *ret_n = j.out.n;
    return LVR_OK;
}

lvr_status lvr_tokenize(const lvr_tokenizer *t, const char *text, size_t n, bool add_special,
                        int32_t **ret_tokens, uint32_t *ret_n, lvr_error *err)
{
    return tokenize(t, text, n, add_special, false, ret_tokens, ret_n, err);
}

lvr_status lvr_tokenize_special(const lvr_tokenizer *t, const char *text, size_t n, bool add_special,
                                int32_t **ret_tokens, uint32_t *ret_n, lvr_error *err)
{
    return tokenize(t, text, n, add_special, true, ret_tokens, ret_n, err);
}

/* ---- tokens to text ---- */

void lvr_detokenize(const lvr_tokenizer *t, int32_t token, bool first, lvr_buf *out)
{
    if (token < 0 || (uint32_t)token >= t->n_pieces)
        return;
    const struct lvr_piece *p = &t->pieces[token];
    const bool drop_space = first && t->add_space_prefix && p->type != LVR_TOKEN_USER;
    const uint32_t skip = drop_space && p->n_raw > 0 && p->raw[0] == ' ' ? 1 : 0;
    lvr_buf_append(out, p->raw + skip, p->n_raw - skip);
}

/* ---- pairs ---- */

/* An entry that only rounds the vocabulary up. */
static bool is_padding(const struct lvr_piece *p)
{
    return p->n == 0 || p->type == LVR_TOKEN_UNUSED || strncasecmp(p->s, "[pad", 4) == 0 ||
           strncasecmp(p->s, "<pad", 4) == 0;
}

static lvr_status check_same_special(const lvr_tokenizer *target, const lvr_tokenizer *draft,
                                     const char *name, int32_t a, int32_t b, lvr_error *err)
{
    if (a == b)
        return LVR_OK;
    return lvr_fail(
        err, LVR_ERR_CONFIG,
        "target %s and draft %s have different vocabularies: the %s token is %d in the target and %d in the "
        "draft; use a draft trained with the target's tokenizer",
        target->path, draft->path, name, a, b);
}

lvr_status lvr_tokenizer_compatible(const lvr_tokenizer *target, const lvr_tokenizer *draft, lvr_error *err)
{
    const uint32_t common = target->n_pieces < draft->n_pieces ? target->n_pieces : draft->n_pieces;
    for (uint32_t i = 0; i < common; i++) {
        const struct lvr_piece *a = &target->pieces[i], *b = &draft->pieces[i];
        if (a->n != b->n || memcmp(a->s, b->s, a->n) != 0)
            return lvr_fail(
                err, LVR_ERR_CONFIG,
                "target %s and draft %s have different vocabularies: token %u is \"%s\" in the target and "
                "\"%s\" in the draft; use a draft trained with the target's tokenizer",
                target->path, draft->path, i, lvr_show(a->s, a->n).text, lvr_show(b->s, b->n).text);
    }
    const lvr_tokenizer *longer = target->n_pieces > draft->n_pieces ? target : draft;
    for (uint32_t i = common; i < longer->n_pieces; i++)
        if (!is_padding(&longer->pieces[i]))
            return lvr_fail(
                err, LVR_ERR_CONFIG,
                "target %s and draft %s have different vocabularies: the target has %u tokens, the draft %u, "
                "and token %u, \"%s\", of the %s is not padding; use a draft trained with the target's "
                "tokenizer",
                target->path, draft->path, target->n_pieces, draft->n_pieces, i,
                lvr_show(longer->pieces[i].s, longer->pieces[i].n).text,
                longer == target ? "target" : "draft");
    lvr_status status = LVR_OK;
    if (target->add_bos || draft->add_bos)
        status = check_same_special(target, draft, "begin-of-text", target->bos, draft->bos, err);
    if (status != LVR_OK)
        return status;
    return check_same_special(target, draft, "end-of-text", target->eos, draft->eos, err);
}
