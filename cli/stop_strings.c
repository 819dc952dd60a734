#include "cli/stop_strings.h"

#include <stdlib.h>
#include <string.h>

/* One stop string with its failure function (Knuth, Morris, Pratt, "Fast Pattern Matching in Strings", SIAM
 * J. Comput. 6(2), 1977). */
typedef struct pattern {
    char text[LVR_MAX_STOP_STRING_BYTES];
    uint16_t n;
    uint16_t shorter[LVR_MAX_STOP_STRING_BYTES]; /* [i]: the longest proper prefix that ends text[0..i] */
    uint16_t matched;                            /* the longest prefix that ends what was fed */
} pattern;

struct lvr_stop_strings {
    size_t n;
    pattern patterns[];
};

static uint16_t step(const pattern *p, uint16_t matched, char c)
{
    while (matched > 0 && p->text[matched] != c)
        matched = p->shorter[matched - 1];
    return p->text[matched] == c ? (uint16_t)(matched + 1) : 0;
}

static void prepare(pattern *p, const lvr_buf *item)
{
    memcpy(p->text, item->data, item->len);
    p->n = (uint16_t)item->len;
    for (uint16_t i = 1; i < p->n; i++)
        p->shorter[i] = step(p, p->shorter[i - 1], p->text[i]);
}

static lvr_status check(const lvr_buf *items, size_t n, lvr_error *err)
{
    if (n > LVR_MAX_STOP_STRINGS)
        return lvr_fail(err, LVR_ERR_USAGE, "%zu stop strings: expected at most %u (--stop)", n,
                        LVR_MAX_STOP_STRINGS);
    for (size_t i = 0; i < n; i++) {
        if (items[i].len == 0)
            return lvr_fail(err, LVR_ERR_USAGE,
                            "--stop: an empty text would end every text before it begins; leave it out");
        if (items[i].len > LVR_MAX_STOP_STRING_BYTES)
            return lvr_fail(err, LVR_ERR_USAGE, "--stop: expected at most %u bytes, found %zu",
                            LVR_MAX_STOP_STRING_BYTES, items[i].len);
    }
    return LVR_OK;
}

lvr_status lvr_stop_strings_new(const lvr_buf *items, size_t n, lvr_stop_strings **ret, lvr_error *err)
{
    const lvr_status status = check(items, n, err);
    if (status != LVR_OK)
        return status;
    lvr_stop_strings *s = calloc(1, sizeof *s + n * sizeof s->patterns[0]);
    if (!s)
        return lvr_fail(err, LVR_ERR_NOMEM, "out of memory for %zu stop strings", n);
    s->n = n;
    for (size_t i = 0; i < n; i++)
        prepare(&s->patterns[i], &items[i]);
    *ret = s;
    return LVR_OK;
}

void lvr_stop_strings_free(lvr_stop_strings *s)
{
    free(s);
}

void lvr_stop_strings_reset(lvr_stop_strings *s)
{
    for (size_t i = 0; i < s->n; i++)
        s->patterns[i].matched = 0;
}

/* The longest stop string that this byte completes, 0: none. */
static size_t feed_byte(lvr_stop_strings *s, char c)
{
    size_t longest = 0;
    for (size_t i = 0; i < s->n; i++) {
        pattern *p = &s->patterns[i];
        p->matched = step(p, p->matched, c);
        if (p->matched == p->n && p->n > longest)
            longest = p->n;
    }
    return longest;
}

bool lvr_stop_strings_feed(lvr_stop_strings *s, const char *bytes, size_t n, size_t *ret_cut)
{
    for (size_t i = 0; i < n; i++) {
        const size_t found = feed_byte(s, bytes[i]);
        if (found == 0)
            continue;
        *ret_cut = found + (n - 1 - i);
        return true;
    }
    return false;
}

size_t lvr_stop_strings_held(const lvr_stop_strings *s)
{
    size_t longest = 0;
    for (size_t i = 0; i < s->n; i++)
        longest = s->patterns[i].matched > longest ? s->patterns[i].matched : longest;
    return longest;
}
