/*
 * How far long work has come, on standard error: on a terminal one line that is written over, from the
 * second second on; elsewhere at most ten notices, for what takes longer than two seconds. Notices of the
 * logger meanwhile get lines of their own. Reports may come from one thread, notices from any.
 */
#ifndef LVR_CLI_PROGRESS_H
#define LVR_CLI_PROGRESS_H

#include "common/log.h"
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct lvr_progress {
    bool quiet, terminal;
    pthread_mutex_t lock; /* of what follows */
    char stage[32];
    uint64_t begin_ns, shown_ns; /* of the stage; of the line's last version */
    uint64_t begin_done, done;
    unsigned tenths; /* that were noticed */
    size_t width;    /* of the line that stands there, 0: none */
} lvr_progress;

/* The program's sink; `user` is the progress whose line may stand there, or NULL. */
void lvr_progress_log(lvr_log_level level, const char *message, void *user);
/* From here on the logger knows of the line. quiet: no progress, and nothing from the logger below a warning,
 * also after the end. */
void lvr_progress_begin(lvr_progress *p, bool quiet);
/* The callback that packing and sessions take; `user` is the lvr_progress. The stage "prompt" is counted in
 * tokens, others in bytes. */
void lvr_progress_show(const char *stage, uint64_t done, uint64_t total, void *user);
/* Removes the line, for instance before other output. */
void lvr_progress_clear(lvr_progress *p);
void lvr_progress_end(lvr_progress *p);

#endif
