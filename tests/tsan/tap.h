/* Checks for plain programs, in the manner of TAP: one line each, "ok" or "not ok"; tap_done() gives the exit
 * status. Checks are made by the main thread only. */
#ifndef LVR_TESTS_TSAN_TAP_H
#define LVR_TESTS_TSAN_TAP_H

#include "common/error.h"
#include <stdbool.h>
#include <stdio.h>

static unsigned tap_n, tap_failed;

static bool tap_ok(bool truth, const char *what)
{
    printf("%sok %u - %s\n", truth ? "" : "not ", ++tap_n, what);
    tap_failed += !truth;
    return truth;
}

/* LVR_OK, or the message as a diagnostic. */
static bool tap_status(lvr_status status, const lvr_error *err, const char *what)
{
    if (!tap_ok(status == LVR_OK, what)) {
        printf("# %s\n", err->msg);
        return false;
    }
    return true;
}

static int tap_done(void)
{
    printf("1..%u\n", tap_n);
    return tap_failed > 0;
}

#endif
