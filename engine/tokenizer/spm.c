/*
 * SentencePiece-style BPE: the text, spaces marked, is split into characters; then the adjacent pair whose
 * concatenation is the best-scored piece (the leftmost of equals) is merged, until none is a piece. What is
 * left that is no piece becomes byte tokens. User-defined tokens are cut out of the text before, the longest
 * first.
 */
#include "engine/tokenizer/vocab.h"
#include <stdlib.h>
#include <string.h>

#define MAX_TEXT_BYTES (16u << 20) /* keeps indices in 31 bits and scratch memory below a gigabyte */

struct symbol {
    int32_t prev, next; /* -1: none */
    uint32_t begin, n;  /* bytes in the marked text; n = 0: merged into its left neighbour */
};

/* A pair that could be merged. It is stale once either side has changed: then the lengths no longer add up.
 */
struct pair {
    float score;
    int32_t left, right;
    uint32_t n;
};

struct merger {
    const lvr_tokenizer *t;
    char *text; /* marked */
    uint32_t n_text;
    struct symbol *symbols;
    uint32_t n_symbols;
    struct pair *heap;
    uint32_t n_heap;
};

struct tokens {
    int32_t *ids;
    uint32_t n, cap;
};

/* A part of the text: raw, or already a token. */
struct fragment {
    size_t begin, n;
    int32_t token; /* -1: raw */
};

struct fragments {
    struct fragment *items;
    size_t n, cap;
};

static lvr_status no_memory(const lvr_tokenizer *t, lvr_error *err)
{
    return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory while tokenizing", t->path);
}

static bool push_token(struct tokens *out, int32_t id)
{
    if (out->n == out->cap) {
        const uint32_t cap = out->cap ? out->cap * 2 : 64;
        int32_t *grown = realloc(out->ids, cap * sizeof(*grown));
        if (grown == NULL)
            return false;
        out->ids = grown;
        out->cap = cap;
    }
    out->ids[out->n++] = id;
    return true;
}

static bool push_fragment(struct fragments *f, struct fragment item)
{
    if (item.n == 0)
        return true;
    if (f->n == f->cap) {
        const size_t cap = f->cap ? f->cap * 2 : 16;
        struct fragment *grown = realloc(f->items, cap * sizeof(*grown));
        if (grown == NULL)
            return false;
        f->items = grown;
        f->cap = cap;
    }
    f->items[f->n++] = item;
    return true;
}

static bool better(const struct pair *a, const struct pair *b)
{
    return a->score > b->score || (a->score == b->score && a->left < b->left);
}

static void heap_push(struct merger *m, struct pair item)
{
    uint32_t i = m->n_heap++;
    while (i > 0 && better(&item, &m->heap[(i - 1) / 2])) {
        m->heap[i] = m->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    m->heap[i] = item;
}

static struct pair heap_pop(struct merger *m)
{
    const struct pair top = m->heap[0];
    const struct pair last = m->heap[--m->n_heap];
    uint32_t i = 0;
    for (uint32_t child = 1; child < m->n_heap; child = 2 * i + 1) {
        if (child + 1 < m->n_heap && better(&m->heap[child + 1], &m->heap[child]))
            child++;
        if (!better(&m->heap[child], &last))
            break;
        m->heap[i] = m->heap[child];
        i = child;
    }
    m->heap[i] = last;
    return top;
}

/* Bytes of the character at s. A lead byte that its continuation bytes do not follow stands alone, so that
 * text which is not UTF-8 also comes back unchanged. */
static uint32_t char_bytes(const char *s, uint32_t left)
{
    const unsigned char lead = (unsigned char)s[0];
    const uint32_t n = lead < 0xc0 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    if (n > left)
        return 1;
    for (uint32_t i = 1; i < n; i++)
        if (((unsigned char)s[i] & 0xc0) != 0x80)
            return 1;
    return n;
}

/* Writes the text with spaces as U+2581 and returns its length. */
static uint32_t mark_spaces(const char *text, size_t n, bool prefix, char *out)
{
    uint32_t at = 0;
    if (prefix) {
        memcpy(out, LVR_SPACE_MARK, LVR_SPACE_MARK_BYTES);
        at = LVR_SPACE_MARK_BYTES;
    }
    for (size_t i = 0; i < n; i++) {
        if (text[i] != ' ') {
            out[at++] = text[i];
            continue;
        }
        memcpy(out + at, LVR_SPACE_MARK, LVR_SPACE_MARK_BYTES);
        at += LVR_SPACE_MARK_BYTES;
    }
    return at;
}

static void split_characters(struct merger *m)
{
    for (uint32_t at = 0; at < m->n_text;) {
        const int32_t i = (int32_t)m->n_symbols++;
        const uint32_t n = char_bytes(m->text + at, m->n_text - at);
        m->symbols[i] =
            (struct symbol){.prev = i - 1, .next = at + n < m->n_text ? i + 1 : -1, .begin = at, .n = n};
        at += n;
    }
}

static void consider(struct merger *m, int32_t left, int32_t right)
{
    if (left < 0 || right < 0)
        return;
    const uint32_t n = m->symbols[left].n + m->symbols[right].n;
    const int32_t id = lvr_vocab_find(m->t, m->text + m->symbols[left].begin, n);
    if (id >= 0)
        heap_push(m, (struct pair){.score = m->t->pieces[id].score, .left = left, .right = right, .n = n});
}

/* Each merge removes a symbol and adds at most two pairs for the one it pops: the heap never exceeds twice
 * the symbols. */
static void merge_all(struct merger *m)
{
    for (uint32_t i = 1; i < m->n_symbols; i++)
        consider(m, (int32_t)i - 1, (int32_t)i);
    while (m->n_heap > 0) {
        const struct pair p = heap_pop(m);
        struct symbol *left = &m->symbols[p.left], *right = &m->symbols[p.right];
        if (left->n == 0 || right->n == 0 || left->n + right->n != p.n)
            continue;
        left->n += right->n;
        right->n = 0;
        left->next = right->next;
        if (right->next >= 0)
            m->symbols[right->next].prev = p.left;
        consider(m, left->prev, p.left);
        consider(m, p.left, left->next);
    }
}

static bool emit_bytes(const struct merger *m, const struct symbol *s, struct tokens *out)
{
    const char *text = m->text + s->begin;
    if (s->n == LVR_SPACE_MARK_BYTES && memcmp(text, LVR_SPACE_MARK, LVR_SPACE_MARK_BYTES) == 0)
        return push_token(out, m->t->bytes[' ']); /* so that it decodes to the space it stands for */
    for (uint32_t i = 0; i < s->n; i++)
        if (!push_token(out, m->t->bytes[(unsigned char)text[i]]))
            return false;
    return true;
}

static bool emit(const struct merger *m, struct tokens *out)
{
    for (int32_t i = m->n_symbols > 0 ? 0 : -1; i >= 0; i = m->symbols[i].next) {
        const struct symbol *s = &m->symbols[i];
        const int32_t id = lvr_vocab_find(m->t, m->text + s->begin, s->n);
        if (id >= 0 ? !push_token(out, id) : !emit_bytes(m, s, out))
            return false;
    }
    return true;
}

static lvr_status tokenize_raw(const lvr_tokenizer *t, const char *text, size_t n, bool prefix,
                               struct tokens *out, lvr_error *err)
{
    lvr_status status = LVR_OK;
    struct merger m = {.t = t};
    m.text = malloc((n + 1) * LVR_SPACE_MARK_BYTES);
    m.symbols = malloc((n + 1) * sizeof(*m.symbols)); /* a mark is one character */
    m.heap = malloc((n + 1) * 2 * sizeof(*m.heap));
    if (m.text == NULL || m.symbols == NULL || m.heap == NULL) {
        status = no_memory(t, err);
        goto out;
    }
    m.n_text = mark_spaces(text, n, prefix, m.text);
    split_characters(&m);
    merge_all(&m);
    if (!emit(&m, out))
        status = no_memory(t, err);
out:
    free(m.text);
    free(m.symbols);
    free(m.heap);
    return status;
}

/* Splits one raw fragment at every occurrence of the piece. */
static bool cut_fragment(const char *text, struct fragment f, int32_t id, const struct lvr_piece *piece,
                         struct fragments *out)
{
    while (f.n >= piece->n) {
        const char *hit = memmem(text + f.begin, f.n, piece->s, piece->n);
        if (hit == NULL)
            break;
        const size_t before = (size_t)(hit - text) - f.begin;
        if (!push_fragment(out, (struct fragment){.begin = f.begin, .n = before, .token = -1}) ||
            !push_fragment(out, (struct fragment){.begin = f.begin + before, .n = piece->n, .token = id}))
            return false;
        f.begin += before + piece->n;
        f.n -= before + piece->n;
    }
    return push_fragment(out, f);
}

static bool cut_token(const lvr_tokenizer *t, const char *text, int32_t id, struct fragments *f)
{
    struct fragments cut = {0};
    for (size_t i = 0; i < f->n; i++) {
        const bool ok = f->items[i].token >= 0 ? push_fragment(&cut, f->items[i])
                                               : cut_fragment(text, f->items[i], id, &t->pieces[id], &cut);
        if (!ok) {
            free(cut.items);
            return false;
        }
    }
    free(f->items);
    *f = cut;
    return true;
}

/* Cuts the user-defined tokens out of the text. Time is the text's length times their number: models have a
 * few. */
static lvr_status cut_user_tokens(const lvr_tokenizer *t, const char *text, size_t n, struct fragments *f,
                                  lvr_error *err)
{
    if (n == 0)
        return LVR_OK;
    if (!push_fragment(f, (struct fragment){.begin = 0, .n = n, .token = -1}))
        return no_memory(t, err);
    for (uint32_t i = 0; i < t->n_user; i++) {
        const struct lvr_piece *piece = &t->pieces[t->user[i]];
        if (memmem(text, n, piece->s, piece->n) == NULL)
            continue;
        if (!cut_token(t, text, t->user[i], f))
            return no_memory(t, err);
    }
    return LVR_OK;
}

lvr_status lvr_tokenize(const lvr_tokenizer *t, const char *text, size_t n, bool add_bos,
                        int32_t **ret_tokens, uint32_t *ret_n, lvr_error *err)
{
    if (n > MAX_TEXT_BYTES)
        return lvr_fail(err, LVR_ERR_UNSUPPORTED,
                        "a text of %zu bytes is too long to tokenize (at most %u MiB)", n,
                        MAX_TEXT_BYTES >> 20);
    struct fragments f = {0};
    struct tokens out = {0};
    bool after_special = true; /* as in llama.cpp: the prefix space also follows a user-defined token */
    lvr_status status = cut_user_tokens(t, text, n, &f, err);
    if (status != LVR_OK)
        goto out;
    if (add_bos && t->add_bos && !push_token(&out, t->bos))
        status = no_memory(t, err);
    for (size_t i = 0; status == LVR_OK && i < f.n; i++) {
        const struct fragment *part = &f.items[i];
        if (part->token < 0)
            status =
                tokenize_raw(t, text + part->begin, part->n, after_special && t->add_space_prefix, &out, err);
        else if (!push_token(&out, part->token))
            status = no_memory(t, err);
        after_special = part->token >= 0;
    }
    if (status == LVR_OK && out.ids == NULL) { /* no tokens: still an array the caller can free */
        out.ids = malloc(sizeof(*out.ids));
        if (out.ids == NULL)
            status = no_memory(t, err);
    }
    if (status != LVR_OK)
        goto out;
    *ret_tokens = out.ids;
    *ret_n = out.n;
    out.ids = NULL;
out:
    free(out.ids);
    free(f.items);
    return status;
}
