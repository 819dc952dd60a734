/*
 * Texts that end a generated text. It is fed in pieces of any bytes, so a stop string may span tokens and
 * tokens may hold parts of a character; what is found does not depend on how it was cut into pieces: the
 * stop string that is complete first ends the text, where it begins; of those complete at once the longest.
 * O(bytes * stop strings). One thread.
 */
#ifndef LVR_CLI_STOP_STRINGS_H
#define LVR_CLI_STOP_STRINGS_H

#include "common/buf.h"
#include "common/error.h"
#include <stdint.h>

#define LVR_MAX_STOP_STRINGS 16u
#define LVR_MAX_STOP_STRING_BYTES 1024u

typedef struct lvr_stop_strings lvr_stop_strings;

/* Copies items[n]. More than LVR_MAX_STOP_STRINGS, or one that is empty or longer than
 * LVR_MAX_STOP_STRING_BYTES, is LVR_ERR_USAGE. n may be 0: then nothing is ever found. */
lvr_status lvr_stop_strings_new(const lvr_buf *items, size_t n, lvr_stop_strings **ret, lvr_error *err);
void lvr_stop_strings_free(lvr_stop_strings *s);
/* Begins a new text. */
void lvr_stop_strings_reset(lvr_stop_strings *s);
/* The text's next bytes. True: it has ended; it is shorter by *ret_cut bytes than with all bytes fed since
 * the last reset. Not to be fed again before a reset then. */
bool lvr_stop_strings_feed(lvr_stop_strings *s, const char *bytes, size_t n, size_t *ret_cut);
/* Bytes at the end of what was fed that may turn out to be the beginning of a stop string. */
size_t lvr_stop_strings_held(const lvr_stop_strings *s);

#endif
