#include "cli/text_stream.h"

void lvr_text_stream_begin(lvr_text_stream *t, lvr_buf *text)
{
    t->text = text;
    t->n_written = 0;
    lvr_stop_strings_reset(t->stops);
}

/* Bytes of text[0..len) without the character that has only begun. */
static size_t whole_characters(const char *text, size_t len)
{
    for (size_t back = 1; back <= 3 && back <= len; back++) {
        const unsigned char c = (unsigned char)text[len - back];
        if ((c & 0xc0) == 0x80)
            continue;
        const size_t n = c < 0xc0 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
        return n > back ? len - back : len;
    }
    return len;
}

static void write_upto(lvr_text_stream *t, size_t end)
{
    if (!t->write || t->text->failed || end <= t->n_written)
        return;
    t->write(t->user, t->text->data + t->n_written, end - t->n_written);
    t->n_written = end;
}

bool lvr_text_stream_take(lvr_text_stream *t, size_t begin)
{
    lvr_buf *text = t->text;
    size_t cut = 0;
    if (text->len == begin)
        return true;
    if (lvr_stop_strings_feed(t->stops, text->data + begin, text->len - begin, &cut)) {
        text->len -= cut;
        text->data[text->len] = '\0';
        write_upto(t, text->len);
        return false;
    }
    write_upto(t, whole_characters(text->data, text->len - lvr_stop_strings_held(t->stops)));
    return true;
}

void lvr_text_stream_end(lvr_text_stream *t)
{
    write_upto(t, t->text->len);
}
