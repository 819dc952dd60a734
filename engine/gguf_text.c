/* Values as text for people. */
#include "engine/gguf_internal.h"
#include <inttypes.h>
#include <string.h>

#define SHOWN_STRING_BYTES 200u
#define SHOWN_ELEMENTS 8u

static void show_string(const char *s, uint64_t n, lvr_buf *out)
{
    const uint64_t shown = n < SHOWN_STRING_BYTES ? n : SHOWN_STRING_BYTES;
    for (uint64_t i = 0; i < shown; i++) {
        const unsigned char c = (unsigned char)s[i];
        const char plain = c < 0x20 || c == 0x7f ? '.' : (char)c;
        lvr_buf_append(out, &plain, 1);
    }
    if (shown < n)
        lvr_buf_printf(out, "... (%" PRIu64 " bytes)", n);
}

static void show_scalar(const lvr_gguf *g, uint32_t type, uint64_t pos, lvr_buf *out)
{
    int64_t s = 0;
    uint64_t u = 0;
    float f = 0;
    double d = 0;
    if (lvr_gguf_integer(g, type, pos, &s, &u)) {
        if (s < 0)
            lvr_buf_printf(out, "%" PRId64, s);
        else
            lvr_buf_printf(out, "%" PRIu64, u);
        return;
    }
    if (type == GGUF_V_BOOL) {
        lvr_buf_puts(out, g->header[pos] ? "true" : "false");
        return;
    }
    if (type == GGUF_V_F32) {
        memcpy(&f, g->header + pos, sizeof(f));
        lvr_buf_printf(out, "%.9g", (double)f);
        return;
    }
    memcpy(&d, g->header + pos, sizeof(d));
    lvr_buf_printf(out, "%.17g", d);
}

static void show_array(const lvr_gguf *g, const lvr_gguf_entry *e, lvr_buf *out)
{
    const uint64_t shown = e->n < SHOWN_ELEMENTS ? e->n : SHOWN_ELEMENTS;
    lvr_buf_puts(out, "[");
    for (uint64_t i = 0; i < shown; i++) {
        lvr_buf_puts(out, i > 0 ? ", " : "");
        if (e->elem_type == GGUF_V_STR) {
            const lvr_gguf_str *strings = e->decoded;
            show_string(strings[i].s, strings[i].n, out);
        } else {
            show_scalar(g, e->elem_type, e->pos + i * lvr_gguf_type_bytes(e->elem_type), out);
        }
    }
    if (shown < e->n)
        lvr_buf_printf(out, ", ... (%" PRIu64 " elements of type %s)", e->n,
                       lvr_gguf_type_name(e->elem_type));
    lvr_buf_puts(out, "]");
}

void lvr_gguf_value_text(const lvr_gguf *g, uint64_t i, lvr_buf *out)
{
    if (i >= g->n_keys)
        return;
    const lvr_gguf_entry *e = &g->keys[i];
    if (e->type == GGUF_V_ARR)
        show_array(g, e, out);
    else if (e->type == GGUF_V_STR)
        show_string(e->decoded, e->n, out);
    else
        show_scalar(g, e->type, e->pos, out);
}
