/*
 * Special tokens in a text. The rule is that of cutting the longest token out of the whole text first, then
 * the next shorter one out of what is left, and so on; done here from left to right, in time that depends on
 * the text alone and not on the number of tokens: a token is taken where it stands unless a better one begins
 * inside it.
 */
#include "engine/tokenizer/vocab.h"
#include <stdlib.h>
#include <string.h>

struct sortable {
    const struct lvr_piece *piece;
    int32_t id;
};

static int by_text_then_id(const void *a, const void *b)
{
    const struct sortable *x = a, *y = b;
    const uint32_t n = x->piece->n < y->piece->n ? x->piece->n : y->piece->n;
    const int order = memcmp(x->piece->s, y->piece->s, n);
    if (order != 0)
        return order;
    if (x->piece->n != y->piece->n)
        return x->piece->n < y->piece->n ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

bool lvr_special_index(lvr_tokenizer *t)
{
    struct sortable *items = calloc(t->n_special + 1, sizeof(*items));
    if (items == NULL)
        return false;
    for (uint32_t i = 0; i < t->n_special; i++)
        items[i] = (struct sortable){.piece = &t->pieces[t->special[i]], .id = t->special[i]};
    qsort(items, t->n_special, sizeof(*items), by_text_then_id);
    for (uint32_t i = 0; i < t->n_special; i++) {
        t->special[i] = items[i].id;
        t->special_begins[(unsigned char)items[i].piece->s[0]] = true;
    }
    free(items);
    return true;
}

static const struct lvr_piece *special_at(const lvr_tokenizer *t, uint32_t i)
{
    return &t->pieces[t->special[i]];
}

/* The first of special[lo, hi), which agree in `depth` bytes and have more, whose next byte is at least
 * `byte`. */
static uint32_t lower_bound(const lvr_tokenizer *t, uint32_t lo, uint32_t hi, uint32_t depth, unsigned byte)
{
    while (lo < hi) {
        const uint32_t mid = lo + (hi - lo) / 2;
        if ((unsigned char)special_at(t, mid)->s[depth] < byte)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static bool wanted(const lvr_tokenizer *t, int32_t id, bool control)
{
    return control || t->pieces[id].type == LVR_TOKEN_USER;
}

/* The longest special token at the start of s[0, n), or -1. */
static int32_t longest_at(const lvr_tokenizer *t, const char *s, size_t n, bool control)
{
    int32_t best = -1;
    uint32_t lo = 0, hi = t->n_special;
    if (n == 0 || !t->special_begins[(unsigned char)s[0]])
        return -1;
    for (uint32_t depth = 0; depth < n && lo < hi; depth++) {
        const unsigned byte = (unsigned char)s[depth];
        lo = lower_bound(t, lo, hi, depth, byte);
        hi = lower_bound(t, lo, hi, depth, byte + 1);
        bool found = false; /* of equal texts the first counts */
        for (; lo < hi && special_at(t, lo)->n == depth + 1; lo++) {
            if (found || !wanted(t, t->special[lo], control))
                continue;
            best = t->special[lo];
            found = true;
        }
    }
    return best;
}

static bool better(const lvr_tokenizer *t, int32_t a, int32_t b)
{
    if (t->pieces[a].n != t->pieces[b].n)
        return t->pieces[a].n > t->pieces[b].n;
    return a < b;
}

/* The best token that begins inside the hit and is better than it; false if there is none. */
static bool better_inside(const lvr_tokenizer *t, const char *text, size_t end, bool control,
                          struct lvr_special_hit *hit)
{
    struct lvr_special_hit best = *hit;
    for (size_t at = hit->begin + 1; at < hit->begin + hit->n; at++) {
        const int32_t id = longest_at(t, text + at, end - at, control);
        if (id >= 0 && better(t, id, best.id))
            best = (struct lvr_special_hit){.begin = at, .n = t->pieces[id].n, .id = id};
    }
    const bool found = best.begin != hit->begin;
    *hit = best;
    return found;
}

static bool first_at_or_after(const lvr_tokenizer *t, const char *text, size_t begin, size_t end,
                              bool control, struct lvr_special_hit *ret)
{
    for (size_t at = begin; at < end; at++) {
        const int32_t id = longest_at(t, text + at, end - at, control);
        if (id < 0)
            continue;
        *ret = (struct lvr_special_hit){.begin = at, .n = t->pieces[id].n, .id = id};
        return true;
    }
    return false;
}

bool lvr_special_next(const lvr_tokenizer *t, const char *text, size_t begin, size_t end, bool control,
                      struct lvr_special_hit *ret)
{
    struct lvr_special_hit hit;
    bool found = false;
    if (t->n_special == 0)
        return false;
    while (first_at_or_after(t, text, begin, end, control, &hit)) {
        const size_t first = hit.begin;
        while (better_inside(t, text, end, control, &hit))
            continue;
        *ret = hit;
        found = true;
        if (hit.begin == first)
            return true;
        begin = first; /* what is before the better token may hold shorter ones still */
        end = hit.begin;
    }
    return found;
}
