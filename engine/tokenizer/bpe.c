#include "engine/tokenizer/bpe.h"
#include "engine/tokenizer/pretokenize.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MAX_MERGES (1u << 24)
#define N_CHARS 324u /* U+0000 to U+0143: those that stand for bytes are among them */

/* Entry of an open-addressing table; id -1: free. */
struct merge_slot {
    uint64_t pair; /* left id in the upper half, right id in the lower */
    uint32_t rank;
    int32_t id;
};

struct lvr_bpe {
    lvr_pretokenizer *words;
    struct merge_slot *merges; /* [mask + 1] */
    uint32_t mask;
    uint16_t char_of_byte[256];
    int16_t byte_of_char[N_CHARS]; /* -1: none */
};

/* ---- bytes and the characters that stand for them ---- */

static bool is_printable(unsigned byte)
{
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
}

/* Printable Latin-1 stands for itself, the others in their order for U+0100 and up (as OpenAI's GPT-2 code,
 * https://github.com/openai/gpt-2/blob/master/src/encoder.py, bytes_to_unicode). */
static void map_bytes(struct lvr_bpe *b)
{
    uint16_t next = 256;
    for (unsigned c = 0; c < N_CHARS; c++)
        b->byte_of_char[c] = -1;
    for (unsigned byte = 0; byte < 256; byte++) {
        b->char_of_byte[byte] = is_printable(byte) ? (uint16_t)byte : next++;
        b->byte_of_char[b->char_of_byte[byte]] = (int16_t)byte;
    }
}

static uint32_t put_char(uint16_t c, char out[2])
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    out[0] = (char)(0xc0 | c >> 6);
    out[1] = (char)(0x80 | (c & 0x3f));
    return 2;
}

/* The byte that the character at s[0, n) stands for, -1: none; its length in *ret_n. */
static int take_char(const struct lvr_bpe *b, const char *s, uint32_t n, uint32_t *ret_n)
{
    const size_t len = lvr_utf8_len(s, n);
    const unsigned char *u = (const unsigned char *)s;
    *ret_n = (uint32_t)len;
    if (len < 1 || len > 2)
        return -1;
    const unsigned c = len == 1 ? u[0] : (u[0] & 0x1fu) << 6 | (u[1] & 0x3fu);
    return c < N_CHARS ? b->byte_of_char[c] : -1;
}

/* The bytes that the piece's characters stand for; 0 if one stands for none. */
static uint32_t piece_bytes(const struct lvr_bpe *b, const struct lvr_piece *p, char *out)
{
    uint32_t n_out = 0, n = 0;
    for (uint32_t i = 0; i < p->n; i += n) {
        const int byte = take_char(b, p->s + i, p->n - i, &n);
        if (byte < 0)
            return 0;
        out[n_out++] = (char)byte;
    }
    return n_out;
}

/* ---- loading ---- */

/* A piece that is no sequence of bytes (padding, say) stands for itself; merges never make it. */
static void fill_raw(lvr_tokenizer *t)
{
    char *at = t->raw;
    for (uint32_t i = 0; i < t->n_pieces; i++) {
        struct lvr_piece *p = &t->pieces[i];
        p->raw = at;
        if (p->type == LVR_TOKEN_CONTROL || p->type == LVR_TOKEN_UNKNOWN)
            continue;
        if (p->type != LVR_TOKEN_USER)
            p->n_raw = piece_bytes(t->bpe, p, at);
        if (p->n_raw == 0) {
            memcpy(at, p->s, p->n);
            p->n_raw = p->n;
        }
        at += p->n_raw;
    }
}

static void fill_bytes(lvr_tokenizer *t)
{
    for (unsigned byte = 0; byte < 256; byte++) {
        char piece[2];
        const uint32_t n = put_char(t->bpe->char_of_byte[byte], piece);
        const int32_t id = lvr_vocab_find(t, piece, n);
        if (id >= 0 && t->pieces[id].n_raw == 1 && (unsigned char)t->pieces[id].raw[0] == byte)
            t->bytes[byte] = id;
    }
}

static uint32_t hash_pair(uint64_t pair)
{
    pair *= 0x9e3779b97f4a7c15u;
    return (uint32_t)((pair ^ pair >> 32) * 0x85ebca6bu >> 8);
}

static const struct merge_slot *find_merge(const struct lvr_bpe *b, uint64_t pair)
{
    uint32_t i = hash_pair(pair) & b->mask;
    while (b->merges[i].id >= 0 && b->merges[i].pair != pair)
        i = (i + 1) & b->mask;
    return &b->merges[i];
}

static lvr_status fail_merge(const lvr_tokenizer *t, uint32_t rank, const lvr_gguf_str *merge,
                             const char *what, lvr_error *err)
{
    return lvr_fail(err, LVR_ERR_FORMAT, "%s: tokenizer.ggml.merges: merge %u, \"%s\", %s", t->path, rank,
                    lvr_show(merge->s, merge->n).text, what);
}

static lvr_status load_merge(lvr_tokenizer *t, uint32_t rank, const lvr_gguf_str *merge, lvr_error *err)
{
    const char *space = merge->n > 1 ? memchr(merge->s + 1, ' ', merge->n - 1) : NULL;
    char joined[LVR_MAX_PIECE_BYTES];
    if (space == NULL)
        return fail_merge(t, rank, merge, "has no space between its two parts", err);
    const size_t n_left = (size_t)(space - merge->s), n_right = merge->n - n_left - 1;
    if (n_left + n_right > sizeof(joined))
        return fail_merge(t, rank, merge, "is longer than any token", err);
    memcpy(joined, merge->s, n_left);
    memcpy(joined + n_left, space + 1, n_right);
    const int32_t left = lvr_vocab_find_any(t, merge->s, n_left);
    const int32_t right = lvr_vocab_find_any(t, space + 1, n_right);
    const int32_t both = lvr_vocab_find_any(t, joined, n_left + n_right);
    if (left < 0 || right < 0 || both < 0)
        return fail_merge(t, rank, merge,
                          left < 0    ? "has a left part that is not in the vocabulary"
                          : right < 0 ? "has a right part that is not in the vocabulary"
                                      : "makes a piece that is not in the vocabulary",
                          err);
    if (!lvr_vocab_reachable(&t->pieces[both]))
        return LVR_OK; /* text never becomes a control token */
    const uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    struct merge_slot *slot = &t->bpe->merges[find_merge(t->bpe, pair) - t->bpe->merges];
    if (slot->id < 0) /* of equal merges the first counts */
        *slot = (struct merge_slot){.pair = pair, .rank = rank, .id = both};
    return LVR_OK;
}

static lvr_status load_merges(lvr_tokenizer *t, const lvr_gguf *g, lvr_error *err)
{
    const lvr_gguf_str *merges = NULL;
    uint64_t n = 0;
    lvr_status status = lvr_gguf_str_array(g, "tokenizer.ggml.merges", &merges, &n, err);
    if (status != LVR_OK)
        return status;
    if (n > MAX_MERGES)
        return lvr_fail(err, LVR_ERR_FORMAT,
                        "%s: tokenizer.ggml.merges has %" PRIu64 " merges (at most %u allowed)", t->path, n,
                        MAX_MERGES);
    uint32_t size = 16;
    while (size < 2 * n)
        size *= 2;
    t->bpe->merges = malloc(size * sizeof(*t->bpe->merges));
    if (t->bpe->merges == NULL)
        return lvr_tokenizer_no_memory(t, err);
    memset(t->bpe->merges, 0xff, size * sizeof(*t->bpe->merges));
    t->bpe->mask = size - 1;
    for (uint32_t i = 0; status == LVR_OK && i < n; i++)
        status = load_merge(t, i, &merges[i], err);
    return status;
}

static lvr_status load_words(lvr_tokenizer *t, const lvr_gguf *g, lvr_error *err)
{
    static const char key[] = "tokenizer.ggml.pre";
    const char *name = NULL;
    if (!lvr_gguf_has(g, key))
        return lvr_fail(err, LVR_ERR_FORMAT,
                        "%s: %s is missing: without it nobody knows how this byte-level BPE cuts text into "
                        "words; convert the model again with a present-day converter, or add the key",
                        t->path, key);
    const lvr_status status = lvr_gguf_str_(g, key, &name, err);
    return status == LVR_OK ? lvr_pretokenizer_new(t->path, name, &t->bpe->words, err) : status;
}

lvr_status lvr_bpe_load(lvr_tokenizer *t, const lvr_gguf *g, bool *ret_adds_bos, lvr_error *err)
{
    t->bpe = calloc(1, sizeof(*t->bpe));
    if (t->bpe == NULL)
        return lvr_tokenizer_no_memory(t, err);
    map_bytes(t->bpe);
    lvr_status status = load_words(t, g, err);
    if (status == LVR_OK)
        status = load_merges(t, g, err);
    if (status != LVR_OK)
        return status;
    *ret_adds_bos = lvr_pretokenizer_adds_bos(t->bpe->words);
    fill_raw(t);
    fill_bytes(t);
    return lvr_vocab_fill_bytes(t, true, err);
}

void lvr_bpe_free(struct lvr_bpe *b)
{
    if (b == NULL)
        return;
    lvr_pretokenizer_free(b->words);
    free(b->merges);
    free(b);
}

/* ---- tokenizing ---- */

struct run {
    struct lvr_merger *m;
    struct lvr_tokens *out;
    char *piece; /* scratch: [longest + 2] */
};

static bool pair_by_ids(const struct lvr_merger *m, const struct lvr_symbol *left,
                        const struct lvr_symbol *right, uint32_t *ret_rank, int32_t *ret_id)
{
    const uint64_t pair = (uint64_t)(uint32_t)left->id << 32 | (uint32_t)right->id;
    const struct merge_slot *slot = find_merge(m->t->bpe, pair);
    if (slot->id < 0)
        return false;
    *ret_rank = slot->rank;
    *ret_id = slot->id;
    return true;
}

/* The token whose piece is this whole word, or -1. */
static int32_t find_word(const struct run *r, const char *word, size_t n)
{
    const lvr_tokenizer *t = r->m->t;
    uint32_t at = 0;
    for (size_t i = 0; i < n; i++) {
        if (at > t->longest)
            return -1;
        at += put_char(t->bpe->char_of_byte[(unsigned char)word[i]], r->piece + at);
    }
    return lvr_vocab_find(t, r->piece, at);
}

static lvr_status merge_word(void *user, const char *word, size_t n, lvr_error *err)
{
    const struct run *r = user;
    struct lvr_merger *m = r->m;
    const lvr_tokenizer *t = m->t;
    const int32_t whole = lvr_pretokenizer_keeps_words(t->bpe->words) ? find_word(r, word, n) : -1;
    if (whole >= 0)
        return lvr_tokens_push(r->out, whole) ? LVR_OK : lvr_tokenizer_no_memory(t, err);
    if (!lvr_merger_reserve(m, n))
        return lvr_tokenizer_no_memory(t, err);
    for (size_t i = 0; i < n; i++)
        lvr_merger_push(m, 1, t->bytes[(unsigned char)word[i]]);
    lvr_merger_run(m);
    for (int32_t i = 0; i >= 0; i = m->symbols[i].next)
        if (!lvr_tokens_push(r->out, m->symbols[i].id))
            return lvr_tokenizer_no_memory(t, err);
    return LVR_OK;
}

static size_t utf8_bytes(const char *text, size_t n)
{
    size_t at = 0, len = 0;
    while (at < n && (len = lvr_utf8_len(text + at, n - at)) > 0)
        at += len;
    return at;
}

static lvr_status push_byte(struct run *r, char byte, lvr_error *err)
{
    const int32_t id = r->m->t->bytes[(unsigned char)byte];
    if (id < 0)
        return merge_word(r, "\xef\xbf\xbd", 3, err); /* U+FFFD */
    return lvr_tokens_push(r->out, id) ? LVR_OK : lvr_tokenizer_no_memory(r->m->t, err);
}

lvr_status lvr_bpe_tokenize(struct lvr_merger *m, const char *text, size_t n, struct lvr_tokens *out,
                            lvr_error *err)
{
    struct run r = {.m = m, .out = out, .piece = malloc(m->t->longest + 2)};
    lvr_status status = r.piece != NULL ? LVR_OK : lvr_tokenizer_no_memory(m->t, err);
    m->pair = pair_by_ids;
    for (size_t at = 0; status == LVR_OK && at < n;) {
        const size_t valid = utf8_bytes(text + at, n - at);
        if (valid > 0)
            status = lvr_pretokenize(m->t->bpe->words, text + at, valid, merge_word, &r, err);
        at += valid;
        if (status == LVR_OK && at < n)
            status = push_byte(&r, text[at++], err);
    }
    free(r.piece);
    return status;
}
