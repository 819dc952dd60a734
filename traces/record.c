/*
 * The recording side. Producers push into their lanes' rings and never wait; one thread takes from all rings,
 * keeps the rows in batches and writes a segment when it is time.
 *
 * 1. A batch never holds a row without the rows that were put before it, on any lane, by a thread that the
 * putter had waited for: collect() takes an atomic snapshot of all rings' counts. So the row of a round, put
 * last, proves that the round is whole.
 * 2. After a failure nothing is written any more, and everything that arrives is counted as dropped.
 */
#include "traces/recorder.h"

#include "common/clock.h"
#include "common/log.h"
#include "traces/memory_sample.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define POLL_NS 5000000u
#define MEMORY_NS 1000000000u
#define SEGMENT_ROWS ((size_t)1 << 16)

/* ---- the producers' side
 * ----------------------------------------------------------------------------------------------- */

static void count_dropped(lvr_trace_lane *lane, lvr_stream stream)
{
    const uint64_t n = atomic_load_explicit(&lane->dropped[stream], memory_order_relaxed);
    atomic_store_explicit(&lane->dropped[stream], n + 1, memory_order_relaxed);
}

static bool push(lvr_trace_lane *lane, lvr_stream stream, const void *record)
{
    lvr_slot slot = {.stream = stream};
    memcpy(slot.record, record, lvr_stream_describe(stream)->record_bytes);
    return lvr_ring_push(lane->ring, &slot);
}

void lvr_trace_put(lvr_trace_lane *lane, lvr_stream stream, const void *record)
{
    const int failed = atomic_load_explicit(&lane->writer->status, memory_order_relaxed);
    if (failed || !push(lane, stream, record))
        count_dropped(lane, stream);
}

static void wake_writer(lvr_trace_writer *w)
{
    pthread_mutex_lock(&w->lock);
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
}

lvr_status lvr_trace_put_wait(lvr_trace_lane *lane, lvr_stream stream, const void *record, lvr_error *err)
{
    const struct timespec pause = {0, 50000};
    for (;;) {
        const lvr_status st = lvr_trace_writer_status(lane->writer, err);
        if (st != LVR_OK) {
            count_dropped(lane, stream);
            return st;
        }
        if (push(lane, stream, record))
            return LVR_OK;
        wake_writer(lane->writer);
        nanosleep(&pause, NULL);
    }
}

lvr_status lvr_trace_lane_new(lvr_trace_writer *w, size_t capacity, lvr_trace_lane **ret, lvr_error *err)
{
    lvr_trace_lane *lane = calloc(1, sizeof *lane);
    if (!lane)
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory for a recording lane", w->path);
    const lvr_status st = lvr_ring_new(sizeof(lvr_slot), capacity, &lane->ring, err);
    if (st != LVR_OK) {
        free(lane);
        return st;
    }
    lane->writer = w;
    pthread_mutex_lock(&w->lock);
    lane->next = w->lanes;
    w->lanes = lane;
    pthread_mutex_unlock(&w->lock);
    *ret = lane;
    return LVR_OK;
}

lvr_status lvr_trace_writer_status(lvr_trace_writer *w, lvr_error *err)
{
    if (atomic_load_explicit(&w->status, memory_order_relaxed) == LVR_OK)
        return LVR_OK;
    pthread_mutex_lock(&w->lock);
    const lvr_status st = lvr_fail(err, w->error.status, "%s", w->error.msg);
    pthread_mutex_unlock(&w->lock);
    return st;
}

/* Copies as much of a UTF-8 string as fits, without splitting a character. */
static void copy_text(char *to, size_t bytes, const char *from)
{
    size_t n = strnlen(from, bytes);
    if (n == bytes)
        for (n = bytes - 1; n > 0 && ((unsigned char)from[n] & 0xc0) == 0x80;)
            n--;
    memcpy(to, from, n);
    to[n] = '\0';
}

static uint32_t find_or_add_domain(lvr_trace_meta *meta, const char *domain)
{
    char name[sizeof meta->domains[0]];
    copy_text(name, sizeof name, domain);
    for (uint32_t i = 0; i < meta->n_domains; i++)
        if (strcmp(meta->domains[i], name) == 0)
            return i;
    if (meta->n_domains == LVR_TRACE_MAX_DOMAINS)
        return LVR_TRACE_MAX_DOMAINS;
    memcpy(meta->domains[meta->n_domains], name, sizeof name);
    return meta->n_domains++;
}

uint32_t lvr_trace_domain(lvr_trace_writer *w, const char *domain)
{
    pthread_mutex_lock(&w->lock);
    const uint32_t index = find_or_add_domain(&w->meta, domain);
    pthread_mutex_unlock(&w->lock);
    if (index == LVR_TRACE_MAX_DOMAINS)
        lvr_log(LVR_LOG_WARN, "%s: more than %u prompt domains; \"%s\" is recorded without its name", w->path,
                LVR_TRACE_MAX_DOMAINS, domain);
    return index;
}

void lvr_trace_set_overhead(lvr_trace_writer *w, double pct)
{
    pthread_mutex_lock(&w->lock);
    w->meta.recorder_overhead_pct = pct;
    pthread_mutex_unlock(&w->lock);
}

/* ---- the writer thread
 * --------------------------------------------------------------------------------------------------- */

static lvr_trace_lane *first_lane(lvr_trace_writer *w)
{
    pthread_mutex_lock(&w->lock);
    lvr_trace_lane *lane = w->lanes;
    pthread_mutex_unlock(&w->lock);
    return lane;
}

void lvr_recorder_meta(lvr_trace_writer *w, lvr_trace_meta *ret_meta)
{
    pthread_mutex_lock(&w->lock);
    *ret_meta = w->meta;
    const lvr_trace_lane *lane = w->lanes;
    pthread_mutex_unlock(&w->lock);
    memcpy(ret_meta->dropped, w->lost, sizeof w->lost);
    for (; lane; lane = lane->next)
        for (int s = 0; s < LVR_STREAM_COUNT; s++)
            ret_meta->dropped[s] += atomic_load_explicit(&lane->dropped[s], memory_order_relaxed);
}

/* Remembers the first failure; the rows still in the batches are lost. */
static void fail(lvr_trace_writer *w, const lvr_error *error)
{
    pthread_mutex_lock(&w->lock);
    w->error = *error;
    pthread_mutex_unlock(&w->lock);
    atomic_store_explicit(&w->status, (int)error->status, memory_order_relaxed);
    for (int s = 0; s < LVR_STREAM_COUNT; s++) {
        w->lost[s] += w->batch[s].n;
        w->batch[s].n = 0;
    }
    lvr_log(LVR_LOG_WARN, "recording stopped: %s", error->msg);
}

static bool failed(const lvr_trace_writer *w)
{
    return atomic_load_explicit(&w->status, memory_order_relaxed) != LVR_OK;
}

static void append(lvr_trace_writer *w, lvr_stream stream, const void *record)
{
    lvr_batch *b = &w->batch[stream];
    const size_t bytes = lvr_stream_describe(stream)->record_bytes;
    if (failed(w)) {
        w->lost[stream]++;
        return;
    }
    if (b->n == b->cap) {
        const size_t cap = b->cap ? b->cap * 2 : 1024;
        char *rows = cap <= SIZE_MAX / 2 / bytes ? realloc(b->rows, cap * bytes) : NULL;
        if (!rows) {
            lvr_error error = LVR_ERROR_INIT;
            lvr_fail(&error, LVR_ERR_NOMEM, "%s: out of memory for recorded rows", w->path);
            w->lost[stream]++;
            fail(w, &error);
            return;
        }
        b->rows = rows;
        b->cap = cap;
    }
    memcpy(b->rows + b->n * bytes, record, bytes);
    b->n++;
}

/*
 * How much to take from each ring, so that no taken record depends on one left behind: two passes over the
 * counts that agree saw one moment, since only this thread lowers them. Under a load so high that passes keep
 * differing the last one stands; a reader of an incomplete trace cuts what is not whole in any case.
 */
static void snapshot(lvr_trace_lane *lanes)
{
    const int max_passes = 64;
    bool changed = true;
    for (lvr_trace_lane *lane = lanes; lane; lane = lane->next)
        lane->take = 0;
    for (int pass = 0; pass < max_passes && changed; pass++) {
        changed = false;
        for (lvr_trace_lane *lane = lanes; lane; lane = lane->next) {
            const size_t n = lvr_ring_count(lane->ring);
            changed = changed || n != lane->take;
            lane->take = n;
        }
    }
}

static void collect(lvr_trace_writer *w)
{
    lvr_trace_lane *const lanes = first_lane(w);
    lvr_slot slot;
    snapshot(lanes);
    for (lvr_trace_lane *lane = lanes; lane; lane = lane->next)
        for (size_t i = 0; i < lane->take && lvr_ring_pop(lane->ring, &slot); i++)
            append(w, (lvr_stream)slot.stream, slot.record);
}

void lvr_recorder_add_clock(lvr_trace_writer *w)
{
    if (w->clocks.n == w->clocks.cap) {
        const size_t cap = w->clocks.cap ? w->clocks.cap * 2 : 16;
        lvr_clock_pair *items = realloc(w->clocks.items, cap * sizeof *items);
        if (!items)
            return; /* the pairs around it still bracket the time */
        w->clocks.items = items;
        w->clocks.cap = cap;
    }
    w->clocks.items[w->clocks.n++] = (lvr_clock_pair){lvr_now_ns(), lvr_boottime_ns(), lvr_realtime_ns()};
}

static void sample(lvr_trace_writer *w, uint64_t now_ns)
{
    lvr_rec_memory memory;
    if (now_ns >= w->next_clock_ns) {
        lvr_recorder_add_clock(w);
        w->next_clock_ns = now_ns + LVR_CLOCK_PAIR_NS;
    }
    if (w->meta.kind != LVR_TRACE_TIMING || now_ns < w->next_memory_ns)
        return;
    w->next_memory_ns = now_ns + MEMORY_NS;
    if (lvr_memory_sample(&memory))
        append(w, LVR_STREAM_MEMORY, &memory);
}

static bool batches_large(const lvr_trace_writer *w)
{
    for (int s = 0; s < LVR_STREAM_COUNT; s++)
        if (w->batch[s].n >= SEGMENT_ROWS)
            return true;
    return false;
}

static bool anything_new(const lvr_trace_writer *w, const lvr_trace_meta *meta, uint64_t *ret_dropped)
{
    uint64_t dropped = 0;
    bool rows = false;
    for (int s = 0; s < LVR_STREAM_COUNT; s++) {
        dropped += meta->dropped[s];
        rows = rows || w->batch[s].n > 0;
    }
    *ret_dropped = dropped;
    return rows || dropped != w->told_dropped;
}

static void flush(lvr_trace_writer *w)
{
    lvr_trace_meta *meta = malloc(sizeof *meta);
    lvr_error error = LVR_ERROR_INIT;
    uint64_t dropped = 0;
    if (!meta) {
        lvr_fail(&error, LVR_ERR_NOMEM, "%s: out of memory for a segment", w->path);
        fail(w, &error);
        return;
    }
    lvr_recorder_meta(w, meta);
    if (anything_new(w, meta, &dropped)) {
        if (lvr_recorder_write_segment(w, meta, &error) == LVR_OK)
            w->told_dropped = dropped;
        else
            fail(w, &error);
    }
    free(meta);
}

/* Sleeps for one polling interval or until woken; true when the recording ends. */
static bool wait_for_work(lvr_trace_writer *w)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += POLL_NS;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    pthread_mutex_lock(&w->lock);
    if (!w->stop)
        pthread_cond_timedwait(&w->wake, &w->lock, &until);
    const bool stop = w->stop;
    pthread_mutex_unlock(&w->lock);
    return stop;
}

void *lvr_recorder_main(void *writer)
{
    lvr_trace_writer *const w = writer;
    for (bool stop = false; !stop;) {
        stop = wait_for_work(w);
        const uint64_t now_ns = lvr_now_ns();
        collect(w);
        if (failed(w))
            continue;
        sample(w, now_ns);
        const uint64_t flush_ns = atomic_load_explicit(&w->flush_ns, memory_order_relaxed);
        if (!stop && now_ns - w->last_flush_ns < flush_ns && !batches_large(w))
            continue;
        w->last_flush_ns = now_ns;
        flush(w);
    }
    return NULL;
}
