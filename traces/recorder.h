/* The writer's insides, shared by record.c (lanes and writer thread) and writer.c (files, opening and
 * closing). */
#ifndef LVR_TRACES_RECORDER_H
#define LVR_TRACES_RECORDER_H

#include "common/ring.h"
#include "traces/meta_io.h"
#include "traces/trace.h"
#include <pthread.h>
#include <stdatomic.h>

#define LVR_CLOCK_PAIR_NS 60000000000u /* between two readings of the three clocks */

typedef struct lvr_batch {
    char *rows;
    size_t n, cap;
} lvr_batch;

/* What travels through a ring. */
typedef struct lvr_slot {
    uint64_t stream;
    unsigned char record[LVR_RECORD_MAX_BYTES];
} lvr_slot;

struct lvr_trace_lane {
    lvr_trace_writer *writer;
    lvr_ring *ring;
    _Atomic uint64_t dropped[LVR_STREAM_COUNT]; /* written by the lane's thread only */
    size_t take;                                /* writer thread: records of this round of collecting */
    lvr_trace_lane *next;                       /* never changes once the lane is reachable */
};

struct lvr_trace_writer {
    char *path, *folder, *temp;
    int folder_fd; /* holds the lock against a second recorder */
    uint64_t recording;
    _Atomic uint64_t flush_ns; /* between segments */

    pthread_t thread;
    pthread_cond_t wake;
    pthread_mutex_t lock; /* guards the next five */
    bool stop;
    lvr_trace_lane *lanes;
    lvr_trace_meta meta; /* `dropped` is computed from the lanes and `lost` */
    lvr_error error;
    _Atomic int status; /* error.status, readable without the lock */

    /* The writer thread's own; the closing thread's after the join. */
    lvr_batch batch[LVR_STREAM_COUNT];
    uint64_t lost[LVR_STREAM_COUNT];    /* taken from a ring but never written: after a failure */
    uint64_t written[LVR_STREAM_COUNT]; /* rows in segments */
    uint64_t told_dropped;              /* the sum that the last segment reported */
    uint32_t n_segments;
    lvr_clock_list clocks;
    uint64_t last_flush_ns, next_memory_ns, next_clock_ns;
};

/* record.c */
void *lvr_recorder_main(void *writer);
void lvr_recorder_add_clock(lvr_trace_writer *w);
/* A copy of the meta data with what was dropped so far. */
void lvr_recorder_meta(lvr_trace_writer *w, lvr_trace_meta *ret_meta);

/* writer.c: everything in the batches as the next segment file. */
lvr_status lvr_recorder_write_segment(lvr_trace_writer *w, const lvr_trace_meta *meta, lvr_error *err);

/* For tests: a shorter interval between segments. */
void lvr_trace_writer_set_flush_interval(lvr_trace_writer *w, uint64_t ns);

#endif
