/*
 * What the front end (reader.c), the pacing (emulate.c) and the back ends (uring.c, lanes.c) share.
 *
 * A request is a slot: free -> pending (submit) -> in flight (a back end took it) -> ended (really read; the
 * back end may still be summing it) -> done -> free (poll or wait handed it out). `lock` guards the lists and
 * in_flight; a slot's other fields belong to the list or to the thread that holds it.
 */
#ifndef LVR_ENGINE_FLASH_INTERNAL_H
#define LVR_ENGINE_FLASH_INTERNAL_H

#include "engine/flash/flash.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

typedef struct lvr_flash_slot {
    struct lvr_flash_slot *next;
    uint64_t seq, offset, bytes;
    uint8_t *dst;
    uint64_t done_bytes;
    uint64_t attempt; /* number of the latest read attempt, counted over the whole reader */
    uint32_t retries; /* attempts in a row without progress */
    int errnum;       /* why the request failed, 0: it did not */
    bool at_eof;
    bool direct; /* every byte so far was read past the page cache */
    bool attempt_direct;
    bool checksum;
    uint32_t crc;
    uint64_t summed_bytes;
    uint32_t queue_depth;
    uint64_t t_submit_ns, t_start_ns, t_end_ns; /* real */
    lvr_flash_times emulated;
    uint32_t emulated_queue_depth;
    uint64_t t_deliver_ns;
} lvr_flash_slot;

/* One lane's view of the file. direct is -1 where the file system refuses O_DIRECT or it is not wanted. */
typedef struct lvr_flash_files {
    int direct, buffered;
} lvr_flash_files;

typedef struct lvr_flash_ops {
    const char *name;
    lvr_status (*start)(lvr_flash *f, lvr_error *err);
    void (*kick)(
        lvr_flash *f); /* lock held: a request became pending while fewer than `depth` are in flight */
    void (*stop)(
        lvr_flash *f); /* `stopping` is set: returns when nothing is in flight and frees what start made */
    uint64_t (*cpu_ns)(const lvr_flash *f); /* used by the back end's threads */
} lvr_flash_ops;

extern const lvr_flash_ops lvr_flash_uring_ops, lvr_flash_lanes_ops;

struct lvr_flash {
    const lvr_flash_ops *ops;
    void *backend;
    char *path;
    dev_t device;
    ino_t inode;
    bool want_direct;
    uint32_t depth;
    uint8_t *buffer; /* all requests lie in it, or plain reads serve them; NULL: none */
    uint64_t buffer_bytes;
    bool has_faults;
    lvr_flash_faults faults;
    atomic_bool direct_works;
    _Atomic uint64_t n_attempts;

    pthread_mutex_t lock;
    pthread_cond_t delivered; /* CLOCK_MONOTONIC */
    lvr_flash_slot *pending_first, *pending_last;
    lvr_flash_slot *done_first; /* ascending t_deliver_ns */
    uint32_t in_flight;
    bool stopping;
    uint64_t waiting_until_ns; /* the consumer sleeps until then unless signalled; 0: it does not sleep */

    /* Only the consumer's thread uses what follows. */
    lvr_flash_slot *slots, *free_first;
    uint32_t outstanding;
    bool checksum; /* of requests to come */
    bool emulate;
    lvr_flash_params emulated;
    lvr_flash_state emulated_state;
    lvr_flash_stats stats;
    lvr_error last_error;
};

/* Files of one lane: the same inode as the reader's, or an error. */
lvr_status lvr_flash_files_open(const lvr_flash *f, lvr_flash_files *ret, lvr_error *err);
void lvr_flash_files_close(const lvr_flash_files *files);

/* Lock held. The next pending request, now in flight; NULL if there is none or the reader is stopping. */
lvr_flash_slot *lvr_flash_take_pending(lvr_flash *f);
/* Lock held. A request that lvr_flash_digest called finished has been read: the device may get another. */
void lvr_flash_end(lvr_flash *f, lvr_flash_slot *slot);
/* Sums the next piece of an ended request. True: nothing is left to sum, it can be delivered. */
bool lvr_flash_sum(lvr_flash_slot *slot);
/* Lock held. Hands an ended request to the consumer. */
void lvr_flash_finish(lvr_flash *f, lvr_flash_slot *slot);
/* What one attempt reads at most. */
uint64_t lvr_flash_attempt_limit(const lvr_flash *f);
uint64_t lvr_flash_thread_cpu_ns(pthread_t thread);

typedef struct lvr_flash_attempt {
    int fd;
    bool direct;
    uint8_t *dst;
    size_t bytes;
    uint64_t offset;
} lvr_flash_attempt;

/* The read call that continues the request. */
lvr_flash_attempt lvr_flash_next_attempt(lvr_flash *f, const lvr_flash_files *files, lvr_flash_slot *slot);
/* Result of that call: bytes, or a negative errno. False: the request needs another attempt. */
bool lvr_flash_digest(lvr_flash *f, lvr_flash_slot *slot, int64_t result);

/* A thread of the reader: signals stay the business of the program's own threads. */
lvr_status lvr_flash_thread_start(pthread_t *ret, void *(*body)(void *), void *arg, lvr_error *err);

/* emulate.c */
void lvr_flash_emulate_submit(lvr_flash *f, lvr_flash_slot *slot);
/* Lock held. Sets t_deliver_ns of a request that was really read. */
void lvr_flash_emulate_finish(const lvr_flash *f, lvr_flash_slot *slot);
/* Lock held. Sleeps until signalled or, at the latest, deadline_ns (UINT64_MAX: no deadline). */
void lvr_flash_sleep(lvr_flash *f, uint64_t deadline_ns);

#endif
