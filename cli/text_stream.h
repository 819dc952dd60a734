/*
 * A generated text on its way to its reader: handed on in whole UTF-8 characters as soon as they are certain,
 * so never a part of a character that has only begun, nor of what may become a stop string. One thread.
 */
#ifndef LVR_CLI_TEXT_STREAM_H
#define LVR_CLI_TEXT_STREAM_H

#include "cli/stop_strings.h"

typedef struct lvr_text_stream {
    lvr_stop_strings *stops;                                /* borrowed */
    void (*write)(void *user, const char *bytes, size_t n); /* NULL: the text is only cut */
    void *user;
    lvr_buf *text; /* borrowed; bytes are appended to it by others */
    size_t n_written;
} lvr_text_stream;

/* A new text, empty so far. */
void lvr_text_stream_begin(lvr_text_stream *t, lvr_buf *text);
/* Bytes from `begin` to the text's end are new. False: a stop string has ended the text, which is cut before
 * it; nothing may be appended any more. */
bool lvr_text_stream_take(lvr_text_stream *t, size_t begin);
/* No more bytes come: hands on what is left. */
void lvr_text_stream_end(lvr_text_stream *t);

#endif
