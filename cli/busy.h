/* Processes that do nothing but keep processors busy, for measuring how a program fares beside them. */
#ifndef LVR_CLI_BUSY_H
#define LVR_CLI_BUSY_H

#include "common/error.h"
#include <stdint.h>
#include <sys/types.h>

#define LVR_BUSY_MAX 64u

typedef struct lvr_busy {
    uint32_t n;
    pid_t pids[LVR_BUSY_MAX];
} lvr_busy;

/* Starts n processes, at rest. They end with the calling thread, however it ends. Call before there are other
 * threads. */
lvr_status lvr_busy_start(uint32_t n, lvr_busy *ret, lvr_error *err);
void lvr_busy_resume(const lvr_busy *b);
void lvr_busy_pause(const lvr_busy *b);
void lvr_busy_end(lvr_busy *b);

#endif
