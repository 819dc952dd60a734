/* Back end of a few threads, each with its own descriptors, blocking in pread: for kernels and sandboxes
 * without io_uring (Android apps among them). There is one lane more than reads in flight, so that the device
 * has its next read while a lane sums what it has got. */
#include "engine/flash/reader_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct lane {
    lvr_flash *f;
    pthread_t thread;
    lvr_flash_files files;
} lane;

typedef struct lanes {
    pthread_cond_t work;
    uint32_t n_idle;
    uint32_t n_lanes;
    lane lane[];
} lanes;

static void kick(lvr_flash *f)
{
    lanes *all = f->backend;
    if (all->n_idle > 0)
        pthread_cond_signal(&all->work);
}

static int64_t read_once(const lvr_flash_attempt *a)
{
    const ssize_t n = pread(a->fd, a->dst, a->bytes, (off_t)a->offset);
    return n < 0 ? -errno : n;
}

static void serve(const lane *self, lvr_flash_slot *slot)
{
    bool finished;
    do {
        const lvr_flash_attempt attempt = lvr_flash_next_attempt(self->f, &self->files, slot);
        finished = lvr_flash_digest(self->f, slot, read_once(&attempt));
    } while (!finished);
}

/* Lock held. NULL: the reader is stopping. */
static lvr_flash_slot *wait_for_work(lvr_flash *f, lanes *all)
{
    for (;;) {
        lvr_flash_slot *slot = f->in_flight < f->depth ? lvr_flash_take_pending(f) : NULL;
        if (slot || f->stopping)
            return slot;
        all->n_idle++;
        pthread_cond_wait(&all->work, &f->lock);
        all->n_idle--;
    }
}

/* Lock held, but not while summing. */
static void sum(lvr_flash *f, lvr_flash_slot *slot)
{
    if (f->pending_first)
        kick(f);
    pthread_mutex_unlock(&f->lock);
    while (!lvr_flash_sum(slot))
        ;
    pthread_mutex_lock(&f->lock);
}

static void *lane_main(void *arg)
{
    const lane *self = arg;
    lvr_flash *f = self->f;
    pthread_setname_np(pthread_self(), "lvr-flash");
    pthread_mutex_lock(&f->lock);
    lvr_flash_slot *slot;
    while ((slot = wait_for_work(f, f->backend))) {
        pthread_mutex_unlock(&f->lock);
        serve(self, slot);
        pthread_mutex_lock(&f->lock);
        lvr_flash_end(f, slot);
        if (slot->checksum)
            sum(f, slot);
        lvr_flash_finish(f, slot);
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

static lvr_status start_lane(lvr_flash *f, lane *l, lvr_error *err)
{
    l->f = f;
    lvr_status status = lvr_flash_files_open(f, &l->files, err);
    if (status != LVR_OK)
        return status;
    status = lvr_flash_thread_start(&l->thread, lane_main, l, err);
    if (status != LVR_OK)
        lvr_flash_files_close(&l->files);
    return status;
}

static void stop(lvr_flash *f)
{
    lanes *all = f->backend;
    pthread_mutex_lock(&f->lock);
    pthread_cond_broadcast(&all->work);
    pthread_mutex_unlock(&f->lock);
    for (uint32_t i = 0; i < all->n_lanes; i++) {
        pthread_join(all->lane[i].thread, NULL);
        lvr_flash_files_close(&all->lane[i].files);
    }
    pthread_cond_destroy(&all->work);
    free(all);
}

static uint32_t n_lanes(const lvr_flash *f)
{
    return f->depth + 1;
}

static lvr_status start_lanes(lvr_flash *f, lanes *all, lvr_error *err)
{
    for (; all->n_lanes < n_lanes(f); all->n_lanes++) {
        const lvr_status status = start_lane(f, &all->lane[all->n_lanes], err);
        if (status != LVR_OK)
            return status;
    }
    return LVR_OK;
}

static lvr_status start(lvr_flash *f, lvr_error *err)
{
    lanes *all = calloc(1, sizeof *all + n_lanes(f) * sizeof all->lane[0]);
    if (!all)
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory for %u reader threads", f->path, n_lanes(f));
    if (pthread_cond_init(&all->work, NULL) != 0) {
        free(all);
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: cannot make a condition variable", f->path);
    }
    f->backend = all;
    const lvr_status status = start_lanes(f, all, err);
    if (status == LVR_OK)
        return LVR_OK;
    pthread_mutex_lock(&f->lock);
    f->stopping = true;
    pthread_mutex_unlock(&f->lock);
    stop(f);
    return status;
}

static uint64_t cpu_ns(const lvr_flash *f)
{
    const lanes *all = f->backend;
    uint64_t sum_ns = 0;
    for (uint32_t i = 0; i < all->n_lanes; i++)
        sum_ns += lvr_flash_thread_cpu_ns(all->lane[i].thread);
    return sum_ns;
}

const lvr_flash_ops lvr_flash_lanes_ops = {
    .name = "pread", .start = start, .kick = kick, .stop = stop, .cpu_ns = cpu_ns};
