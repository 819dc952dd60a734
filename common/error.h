/*
 * Errors for people: a status that programs branch on and one message a person can act on.
 *
 * Convention everywhere in the project: a function that can fail returns lvr_status and takes a
 * `lvr_error *err` as its last parameter (NULL allowed). On failure `ret_` outputs are untouched and, if err
 * is given, it holds the same status and a message saying what, where (file:line:column if it came from a
 * file), what was expected, what was found and how to mend it. Library code never prints, aborts or exits.
 * Thread safety: an lvr_error belongs to one thread at a time.
 */
#ifndef LVR_COMMON_ERROR_H
#define LVR_COMMON_ERROR_H

#include <stdarg.h>
#include <stddef.h>

typedef enum lvr_status {
    LVR_OK = 0,
    LVR_ERR_USAGE = 1,       /* the command line is wrong: exit status 2 */
    LVR_ERR_CONFIG = 2,      /* a configuration value or combination is wrong: exit status 2 */
    LVR_ERR_IO = 3,          /* the operating system refused: open, read, write, disk full */
    LVR_ERR_FORMAT = 4,      /* a file is not what it claims to be, or is damaged */
    LVR_ERR_UNSUPPORTED = 5, /* well formed, but not something this build can do */
    LVR_ERR_NOMEM = 6,
    LVR_ERR_BUDGET = 7,      /* the DRAM budget or the context is too small: exit status 2 */
    LVR_ERR_INTERRUPTED = 8, /* SIGINT or SIGTERM */
    LVR_ERR_INVARIANT = 9,   /* a law the program checks on itself is broken: a bug, not bad input */
} lvr_status;

#define LVR_ERROR_MSG_BYTES 1024

typedef struct lvr_error {
    lvr_status status;
    char msg[LVR_ERROR_MSG_BYTES];
} lvr_error;

#define LVR_ERROR_INIT ((lvr_error){.status = LVR_OK})

/* Fills *err (if not NULL) and returns `status`, so that callers can write `return lvr_fail(err, ...)`. */
lvr_status lvr_fail(lvr_error *err, lvr_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* As lvr_fail with LVR_ERR_IO, and appends strerror(errnum). */
lvr_status lvr_fail_errno(lvr_error *err, int errnum, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Prepends "context: " to the message of an error already set; returns its status. With err NULL the status
 * is not known and LVR_ERR_INVARIANT is returned: where the caller may pass NULL, keep the status and return
 * that. */
lvr_status lvr_error_prefix(lvr_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

const char *lvr_status_name(lvr_status status);

/* 0, 1 or 2 as README documents: 2 for USAGE, CONFIG and BUDGET, 1 for every other failure. */
int lvr_status_exit_code(lvr_status status);

#endif
