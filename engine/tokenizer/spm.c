#include "engine/tokenizer/spm.h"
#include <stdlib.h>
#include <string.h>

/* ---- loading ---- */

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

static bool is_mark(const char *s, size_t left)
{
    return left >= LVR_SPACE_MARK_BYTES && memcmp(s, LVR_SPACE_MARK, LVR_SPACE_MARK_BYTES) == 0;
}

/* The piece with marks turned back into spaces. */
static uint32_t unmark(const struct lvr_piece *p, char *out)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n;) {
        const bool mark = is_mark(p->s + i, p->n - i);
        out[n++] = mark ? ' ' : p->s[i];
        i += mark ? LVR_SPACE_MARK_BYTES : 1;
    }
    return n;
}

static lvr_status load_byte(lvr_tokenizer *t, uint32_t id, char *out, lvr_error *err)
{
    const int byte = byte_of_piece(&t->pieces[id]);
    if (byte < 0)
        return lvr_fail(err, LVR_ERR_FORMAT,
                        "%s: tokenizer.ggml.tokens: token %u is a byte token, but its text is not <0x00> to "
                        "<0xFF>",
                        t->path, id);
    *out = (char)byte;
    t->bytes[byte] = (int32_t)id;
    t->pieces[id].n_raw = 1;
    return LVR_OK;
}

static bool has_mark_inside(const struct lvr_piece *p)
{
    for (uint32_t i = 1; i < p->n; i++)
        if (is_mark(p->s + i, p->n - i) && !(i >= LVR_SPACE_MARK_BYTES && is_mark(p->s + i - 3, 3)))
            return true;
    return false;
}

lvr_status lvr_spm_load(lvr_tokenizer *t, lvr_error *err)
{
    char *at = t->raw;
    t->words_are_apart = true;
    for (uint32_t i = 0; i < t->n_pieces; i++) {
        struct lvr_piece *p = &t->pieces[i];
        p->raw = at;
        switch (p->type) {
        case LVR_TOKEN_CONTROL:
        case LVR_TOKEN_UNKNOWN:
            break;
        case LVR_TOKEN_BYTE: {
            const lvr_status status = load_byte(t, i, at, err);
            if (status != LVR_OK)
                return status;
            break;
        }
        case LVR_TOKEN_USER: /* verbatim: matched before spaces are marked */
            memcpy(at, p->s, p->n);
            p->n_raw = p->n;
            t->words_are_apart &= !has_mark_inside(p);
            break;
        default:
            p->n_raw = unmark(p, at);
            t->words_are_apart &= !has_mark_inside(p);
        }
        at += p->n_raw;
    }
    return lvr_vocab_fill_bytes(t, false, err);
}

/* ---- tokenizing ---- */

/* Bytes of the character at s. A lead byte that its continuation bytes do not follow stands alone, so that
 * text which is not UTF-8 also comes back unchanged. */
static uint32_t char_bytes(const char *s, size_t left)
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
static size_t mark_spaces(const char *text, size_t n, bool prefix, char *out)
{
    size_t at = 0;
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

/* Scores descend where ranks ascend; the bits of floats order like integers once the sign is dealt with. */
static uint32_t rank_of_score(float score)
{
    uint32_t bits;
    const float no_negative_zero = score + 0.0f;
    memcpy(&bits, &no_negative_zero, sizeof(bits));
    return bits >> 31 ? bits : ~(bits ^ 0x80000000u);
}

static bool pair_by_text(const struct lvr_merger *m, const struct lvr_symbol *left,
                         const struct lvr_symbol *right, uint32_t *ret_rank, int32_t *ret_id)
{
    const int32_t id = lvr_vocab_find(m->t, m->text + left->begin, left->n + right->n);
    if (id < 0)
        return false;
    *ret_rank = rank_of_score(m->t->pieces[id].score);
    *ret_id = id;
    return true;
}

static bool emit_bytes(const lvr_tokenizer *t, const char *text, uint32_t n, struct lvr_tokens *out)
{
    if (n == LVR_SPACE_MARK_BYTES && is_mark(text, n))
        return lvr_tokens_push(out, t->bytes[' ']); /* so that it decodes to the space it stands for */
    for (uint32_t i = 0; i < n; i++)
        if (!lvr_tokens_push(out, t->bytes[(unsigned char)text[i]]))
            return false;
    return true;
}

static bool emit(const struct lvr_merger *m, struct lvr_tokens *out)
{
    for (int32_t i = 0; i >= 0; i = m->symbols[i].next) {
        const struct lvr_symbol *s = &m->symbols[i];
        const char *text = m->text + s->begin;
        const int32_t id = s->id >= 0 ? s->id : lvr_vocab_find(m->t, text, s->n);
        if (id >= 0 ? !lvr_tokens_push(out, id) : !emit_bytes(m->t, text, s->n, out))
            return false;
    }
    return true;
}

/* Bytes up to the next place that no piece crosses: before the marks that follow another character. */
static size_t segment_bytes(const lvr_tokenizer *t, const char *text, size_t n)
{
    size_t i = 0;
    if (!t->words_are_apart)
        return n;
    while (is_mark(text + i, n - i))
        i += LVR_SPACE_MARK_BYTES;
    const char *next = memmem(text + i, n - i, LVR_SPACE_MARK, LVR_SPACE_MARK_BYTES);
    return next != NULL ? (size_t)(next - text) : n;
}

static bool tokenize_segment(struct lvr_merger *m, const char *text, size_t n, struct lvr_tokens *out)
{
    size_t n_chars = 0;
    for (size_t at = 0; at < n; at += char_bytes(text + at, n - at))
        n_chars++;
    if (!lvr_merger_reserve(m, n_chars))
        return false;
    m->text = text;
    for (size_t at = 0; at < n;) {
        const uint32_t bytes = char_bytes(text + at, n - at);
        lvr_merger_push(m, bytes, -1);
        at += bytes;
    }
    lvr_merger_run(m);
    return emit(m, out);
}

lvr_status lvr_spm_tokenize(struct lvr_merger *m, const char *text, size_t n, bool prefix,
                            struct lvr_tokens *out, lvr_error *err)
{
    char *marked = malloc((n + 1) * LVR_SPACE_MARK_BYTES);
    bool ok = marked != NULL;
    const size_t n_marked = ok ? mark_spaces(text, n, prefix, marked) : 0;
    m->pair = pair_by_text;
    for (size_t at = 0; ok && at < n_marked;) {
        const size_t bytes = segment_bytes(m->t, marked + at, n_marked - at);
        ok = tokenize_segment(m, marked + at, bytes, out);
        at += bytes;
    }
    free(marked);
    return ok ? LVR_OK : lvr_tokenizer_no_memory(m->t, err);
}
