/* Somebody who watches long work and may end it. All zero: nobody does. */
#ifndef LVR_ENGINE_WATCH_H
#define LVR_ENGINE_WATCH_H

#include <stdatomic.h>
#include <stdint.h>

typedef struct lvr_watch {
    const atomic_bool *cancel; /* once true, the work ends with LVR_ERR_INTERRUPTED; NULL: it never is */
    /* Called from the working thread with the stage's name, at its beginning (done is 0), now and then, and
     * at its end; NULL: not called. */
    void (*progress)(const char *stage, uint64_t done, uint64_t total, void *user);
    void *user;
} lvr_watch;

#endif
