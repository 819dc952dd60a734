#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/vocab.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define MAX_PIECES (1u << 24)
#define MAX_PIECE_BYTES 65535u

static int compare_text(const char *a, size_t n_a, const char *b, size_t n_b)
{
    const int order = memcmp(a, b, n_a < n_b ? n_a : n_b);
    return order != 0 ? order : (n_a > n_b) - (n_a < n_b);
}

int32_t lvr_vocab_find(const lvr_tokenizer *t, const char *s, size_t n)
{
    if (n > t->longest)
        return -1;
    uint32_t lo = 0, hi = t->n_by_text;
    while (lo < hi) {
        const uint32_t mid = lo + (hi - lo) / 2;
        const struct lvr_piece *p = &t->pieces[t->by_text[mid]];
        const int order = compare_text(p->s, p->n, s, n);
        if (order == 0)
            return t->by_text[mid];
        if (order < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return -1;
}

struct ranked {
    const struct lvr_piece *piece;
    int32_t id;
};

static int by_text_then_id(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    const int order = compare_text(x->piece->s, x->piece->n, y->piece->s, y->piece->n);
    return order != 0 ? order : (x->id > y->id) - (x->id < y->id);
}

static int by_length_then_id(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->piece->n != y->piece->n)
        return x->piece->n < y->piece->n ? 1 : -1;
    return (x->id > y->id) - (x->id < y->id);
}

/* Text never becomes a control, unknown or byte token, even if it spells one: a prompt cannot smuggle in a
 * </s>. */
static bool reachable_by_text(const struct lvr_piece *p)
{
    return p->n > 0 && p->type != LVR_TOKEN_CONTROL && p->type != LVR_TOKEN_UNKNOWN &&
           p->type != LVR_TOKEN_BYTE;
}

static void index_by_text(lvr_tokenizer *t, struct ranked *scratch)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->n_pieces; i++)
        if (reachable_by_text(&t->pieces[i]))
            scratch[n++] = (struct ranked){.piece = &t->pieces[i], .id = (int32_t)i};
    qsort(scratch, n, sizeof(*scratch), by_text_then_id);
    for (uint32_t i = 0; i < n; i++) {
        const struct lvr_piece *p = scratch[i].piece;
        const bool last =
            i + 1 == n || compare_text(p->s, p->n, scratch[i + 1].piece->s, scratch[i + 1].piece->n) != 0;
        if (!last)
            continue; /* of equal pieces the last one counts, as in llama.cpp */
        t->by_text[t->n_by_text++] = scratch[i].id;
        t->longest = p->n > t->longest ? p->n : t->longest;
    }
}

static void index_user(lvr_tokenizer *t, struct ranked *scratch)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->n_pieces; i++)
        if (t->pieces[i].type == LVR_TOKEN_USER && t->pieces[i].n > 0)
            scratch[n++] = (struct ranked){.piece = &t->pieces[i], .id = (int32_t)i};
    qsort(scratch, n, sizeof(*scratch), by_length_then_id);
    for (uint32_t i = 0; i < n; i++)
        t->user[i] = scratch[i].id;
    t->n_user = n;
}

static lvr_status index_pieces(lvr_tokenizer *t, lvr_error *err)
{
    struct ranked *scratch = calloc(t->n_pieces, sizeof(*scratch));
    t->by_text = calloc(t->n_pieces, sizeof(*t->by_text));
    t->user = calloc(t->n_pieces, sizeof(*t->user));
    if (scratch == NULL || t->by_text == NULL || t->user == NULL) {
        free(scratch);
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: tokenizer: out of memory", t->path);
    }
    index_by_text(t, scratch);
    index_user(t, scratch);
    free(scratch);
    return LVR_OK;
}

static lvr_status copy_text(lvr_tokenizer *t, const lvr_gguf_str *tokens, lvr_error *err)
{
    size_t total = 0;
    for (uint32_t i = 0; i < t->n_pieces; i++) {
        if (tokens[i].n > MAX_PIECE_BYTES)
            return lvr_fail(err, LVR_ERR_FORMAT, "%s: token %u has %" PRIu64 " bytes (at most %u allowed)",
                            t->path, i, tokens[i].n, MAX_PIECE_BYTES);
        total += tokens[i].n + 1;
    }
    t->text = malloc(total);
    if (t->text == NULL)
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: tokenizer: out of memory", t->path);
    char *at = t->text;
    for (uint32_t i = 0; i < t->n_pieces; i++) {
        memcpy(at, tokens[i].s, tokens[i].n);
        at[tokens[i].n] = '\0';
        t->pieces[i].s = at;
        t->pieces[i].n = (uint32_t)tokens[i].n;
        at += tokens[i].n + 1;
    }
    return LVR_OK;
}

static lvr_status same_length(const lvr_tokenizer *t, const char *key, uint64_t n, lvr_error *err)
{
    if (n == t->n_pieces)
        return LVR_OK;
    return lvr_fail(err, LVR_ERR_FORMAT, "%s: %s has %" PRIu64 " elements, but the vocabulary has %u tokens",
                    t->path, key, n, t->n_pieces);
}

static lvr_status load_scores(lvr_tokenizer *t, const lvr_gguf *g, lvr_error *err)
{
    static const char key[] = "tokenizer.ggml.scores";
    const float *scores = NULL;
    uint64_t n = 0;
    lvr_status status = lvr_gguf_f32_array(g, key, &scores, &n, err);
    if (status == LVR_OK)
        status = same_length(t, key, n, err);
    if (status != LVR_OK)
        return status;
    for (uint32_t i = 0; i < t->n_pieces; i++) {
        if (isnan(scores[i]))
            return lvr_fail(err, LVR_ERR_FORMAT, "%s: %s: the score of token %u is not a number", t->path,
                            key, i);
        t->pieces[i].score = scores[i];
    }
    return LVR_OK;
}

static lvr_status load_types(lvr_tokenizer *t, const lvr_gguf *g, lvr_error *err)
{
    static const char key[] = "tokenizer.ggml.token_type";
    const int32_t *types = NULL;
    uint64_t n = 0;
    lvr_status status = lvr_gguf_i32_array(g, key, &types, &n, err);
    if (status == LVR_OK)
        status = same_length(t, key, n, err);
    if (status != LVR_OK)
        return status;
    for (uint32_t i = 0; i < t->n_pieces; i++) {
        if (types[i] < 0 || types[i] >= LVR_TOKEN_TYPES)
            return lvr_fail(err, LVR_ERR_FORMAT, "%s: %s: token %u has type %d (expected 0 to %d)", t->path,
                            key, i, types[i], LVR_TOKEN_TYPES - 1);
        t->pieces[i].type = (uint8_t)types[i];
    }
    return LVR_OK;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return -1;
}

/* "<0xNN>" exactly: sscanf and strtol would take "<0x-1>". -1 if it is not. */
static int byte_of_piece(const struct lvr_piece *p)
{
    if (p->n != 6 || memcmp(p->s, "<0x", 3) != 0 || p->s[5] != '>')
        return -1;
    const int hi = hex_digit(p->s[3]), lo = hex_digit(p->s[4]);
    return hi < 0 || lo < 0 ? -1 : hi * 16 + lo;
}

static lvr_status load_bytes(lvr_tokenizer *t, lvr_error *err)
{
    for (int b = 0; b < 256; b++)
        t->bytes[b] = t->unk;
    for (uint32_t i = 0; i < t->n_pieces; i++) {
        struct lvr_piece *p = &t->pieces[i];
        if (p->type != LVR_TOKEN_BYTE)
            continue;
        const int byte = byte_of_piece(p);
        if (byte < 0)
            return lvr_fail(err, LVR_ERR_FORMAT,
                            "%s: token %u is a byte token, but its text is not <0x00> to <0xFF>", t->path, i);
        p->byte = (uint8_t)byte;
        t->bytes[byte] = (int32_t)i;
    }
    for (int b = 0; b < 256; b++)
        if (t->bytes[b] < 0)
            return lvr_fail(err, LVR_ERR_FORMAT,
                            "%s: the vocabulary has neither a token for byte 0x%02X nor an unknown token",
                            t->path, b);
    return LVR_OK;
}

/* A special token's id: the key's value, else `fallback` if that token has the type such a token has, else
 * none. */
static lvr_status load_special(const lvr_tokenizer *t, const lvr_gguf *g, const char *key, uint32_t fallback,
                               enum lvr_token_type type, int32_t *ret, lvr_error *err)
{
    uint32_t id = 0;
    if (!lvr_gguf_has(g, key)) {
        *ret = fallback < t->n_pieces && t->pieces[fallback].type == type ? (int32_t)fallback : -1;
        return LVR_OK;
    }
    const lvr_status status = lvr_gguf_u32(g, key, &id, err);
    if (status != LVR_OK)
        return status;
    if (id >= t->n_pieces)
        return lvr_fail(err, LVR_ERR_FORMAT, "%s: %s is %u, but the vocabulary has %u tokens", t->path, key,
                        id, t->n_pieces);
    *ret = (int32_t)id;
    return LVR_OK;
}

static lvr_status load_specials(lvr_tokenizer *t, const lvr_gguf *g, lvr_error *err)
{
    lvr_status status = load_special(t, g, "tokenizer.ggml.bos_token_id", 1, LVR_TOKEN_CONTROL, &t->bos, err);
    if (status == LVR_OK)
        status = load_special(t, g, "tokenizer.ggml.eos_token_id", 2, LVR_TOKEN_CONTROL, &t->eos, err);
    if (status == LVR_OK)
        status = load_special(t, g, "tokenizer.ggml.unknown_token_id", 0, LVR_TOKEN_UNKNOWN, &t->unk, err);
    t->add_bos = t->bos >= 0 && lvr_gguf_bool_or(g, "tokenizer.ggml.add_bos_token", true);
    t->add_space_prefix = lvr_gguf_bool_or(g, "tokenizer.ggml.add_space_prefix", true);
    return status;
}

static lvr_status load_tokens(lvr_tokenizer *t, const lvr_gguf *g, lvr_error *err)
{
    const lvr_gguf_str *tokens = NULL;
    uint64_t n = 0;
    const lvr_status status = lvr_gguf_str_array(g, "tokenizer.ggml.tokens", &tokens, &n, err);
    if (status != LVR_OK)
        return status;
    if (n == 0 || n > MAX_PIECES)
        return lvr_fail(err, LVR_ERR_FORMAT,
                        "%s: tokenizer.ggml.tokens has %" PRIu64 " tokens (expected 1 to %u)", t->path, n,
                        MAX_PIECES);
    t->pieces = calloc(n, sizeof(*t->pieces));
    if (t->pieces == NULL)
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: tokenizer: out of memory", t->path);
    t->n_pieces = (uint32_t)n;
    return copy_text(t, tokens, err);
}

static lvr_status check_model(const lvr_gguf *g, lvr_error *err)
{
    const char *model = NULL;
    const lvr_status status = lvr_gguf_str_(g, "tokenizer.ggml.model", &model, err);
    if (status != LVR_OK)
        return status;
    if (strcmp(model, "llama") != 0)
        return lvr_fail(
            err, LVR_ERR_UNSUPPORTED,
            "%s: tokenizer model \"%.64s\" is not supported: this version has \"llama\" (SentencePiece BPE)",
            lvr_gguf_path(g), model);
    if (lvr_gguf_bool_or(g, "tokenizer.ggml.treat_whitespace_as_suffix", false))
        return lvr_fail(err, LVR_ERR_UNSUPPORTED,
                        "%s: tokenizer.ggml.treat_whitespace_as_suffix is not supported", lvr_gguf_path(g));
    return LVR_OK;
}

lvr_status lvr_tokenizer_new(const lvr_gguf *g, lvr_tokenizer **ret, lvr_error *err)
{
    lvr_status status = check_model(g, err);
    if (status != LVR_OK)
        return status;
    lvr_tokenizer *t = calloc(1, sizeof(*t));
    if (t == NULL || (t->path = strdup(lvr_gguf_path(g))) == NULL) {
        status = lvr_fail(err, LVR_ERR_NOMEM, "%s: tokenizer: out of memory", lvr_gguf_path(g));
        goto out;
    }
    status = load_tokens(t, g, err);
    if (status == LVR_OK)
        status = load_scores(t, g, err);
    if (status == LVR_OK)
        status = load_types(t, g, err);
    if (status == LVR_OK)
        status = load_specials(t, g, err);
    if (status == LVR_OK)
        status = load_bytes(t, err);
    if (status == LVR_OK)
        status = index_pieces(t, err);
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
    free(t->path);
    free(t->text);
    free(t->pieces);
    free(t->by_text);
    free(t->user);
    free(t);
}

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

const char *lvr_token_piece(const lvr_tokenizer *t, int32_t token, size_t *ret_n)
{
    if (token < 0 || (uint32_t)token >= t->n_pieces) {
        *ret_n = 0;
        return "";
    }
    *ret_n = t->pieces[token].n;
    return t->pieces[token].s;
}

/* Appends the piece with U+2581 turned back into spaces. */
static void append_unmarked(const char *s, size_t n, lvr_buf *out)
{
    for (size_t i = 0; i < n;) {
        const char *mark = memmem(s + i, n - i, LVR_SPACE_MARK, LVR_SPACE_MARK_BYTES);
        const size_t plain = (mark != NULL ? (size_t)(mark - s) : n) - i;
        lvr_buf_append(out, s + i, plain);
        i += plain;
        if (mark != NULL) {
            lvr_buf_append(out, " ", 1);
            i += LVR_SPACE_MARK_BYTES;
        }
    }
}

void lvr_detokenize(const lvr_tokenizer *t, int32_t token, bool first, lvr_buf *out)
{
    if (token < 0 || (uint32_t)token >= t->n_pieces)
        return;
    const struct lvr_piece *p = &t->pieces[token];
    const bool drop_space = first && t->add_space_prefix;
    switch (p->type) {
    case LVR_TOKEN_CONTROL:
    case LVR_TOKEN_UNKNOWN:
        return;
    case LVR_TOKEN_USER: /* verbatim: matched before spaces were marked */
        lvr_buf_append(out, p->s, p->n);
        return;
    case LVR_TOKEN_BYTE:
        if (!(drop_space && p->byte == ' '))
            lvr_buf_append(out, &p->byte, 1);
        return;
    default:
        break;
    }
    const bool marked =
        p->n >= LVR_SPACE_MARK_BYTES && memcmp(p->s, LVR_SPACE_MARK, LVR_SPACE_MARK_BYTES) == 0;
    const size_t skip = drop_space && marked ? LVR_SPACE_MARK_BYTES : 0;
    append_unmarked(p->s + skip, p->n - skip, out);
}

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
        if (compare_text(a->s, a->n, b->s, b->n) != 0)
            return lvr_fail(
                err, LVR_ERR_CONFIG,
                "target %s and draft %s have different vocabularies: token %u is \"%.64s\" in the target and "
                "\"%.64s\" in the draft; use a draft trained with the target's tokenizer",
                target->path, draft->path, i, a->s, b->s);
    }
    const lvr_tokenizer *longer = target->n_pieces > draft->n_pieces ? target : draft;
    for (uint32_t i = common; i < longer->n_pieces; i++)
        if (!is_padding(&longer->pieces[i]))
            return lvr_fail(
                err, LVR_ERR_CONFIG,
                "target %s and draft %s have different vocabularies: the target has %u tokens, the draft %u, "
                "and token %u, \"%.64s\", of the %s is not padding; use a draft trained with the target's "
                "tokenizer",
                target->path, draft->path, target->n_pieces, draft->n_pieces, i, longer->pieces[i].s,
                longer == target ? "target" : "draft");
    const lvr_status status =
        check_same_special(target, draft, "begin-of-text", target->bos, draft->bos, err);
    if (status != LVR_OK)
        return status;
    return check_same_special(target, draft, "end-of-text", target->eos, draft->eos, err);
}
