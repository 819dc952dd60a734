#include "engine/flash/reader_internal.h"

#include "common/clock.h"
#include "common/hash.h"
#include "common/log.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* What one read call may transfer: below Linux's own limit (0x7ffff000), aligned, and the most that io_uring
 * registers as one buffer. */
#define MAX_ATTEMPT_BYTES (UINT64_C(1) << 30)
#define SUM_BYTES (UINT64_C(256) << 10) /* between two looks at the device: some 30 us */
#define MAX_RETRIES 100u
#define RETRY_PAUSE_NS 100000

/* ---- files ---- */

static int open_retrying(const char *path, int flags)
{
    int fd;
    do
        fd = open(path, flags | O_RDONLY | O_CLOEXEC);
    while (fd < 0 && errno == EINTR);
    return fd;
}

static lvr_status check_same_file(const lvr_flash *f, int fd, lvr_error *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return lvr_fail_errno(err, errno, "%s: cannot stat", f->path);
    if (st.st_dev == f->device && st.st_ino == f->inode)
        return LVR_OK;
    return lvr_fail(err, LVR_ERR_IO, "%s: the file was replaced while it was being opened; try again",
                    f->path);
}

lvr_status lvr_flash_files_open(const lvr_flash *f, lvr_flash_files *ret, lvr_error *err)
{
    lvr_flash_files files = {.direct = -1, .buffered = open_retrying(f->path, 0)};
    if (files.buffered < 0)
        return lvr_fail_errno(err, errno, "%s: cannot open for reading", f->path);
    lvr_status status = check_same_file(f, files.buffered, err);
    if (status == LVR_OK && atomic_load(&f->direct_works)) {
        files.direct = open_retrying(f->path, O_DIRECT);
        if (files.direct >= 0)
            status = check_same_file(f, files.direct, err);
    }
    if (status != LVR_OK) {
        lvr_flash_files_close(&files);
        return status;
    }
    *ret = files;
    return LVR_OK;
}

void lvr_flash_files_close(const lvr_flash_files *files)
{
    if (files->direct >= 0)
        close(files->direct);
    if (files->buffered >= 0)
        close(files->buffered);
}

static void lose_direct(lvr_flash *f, const char *when, int errnum)
{
    if (!atomic_exchange(&f->direct_works, false))
        return;
    char reason[128];
    lvr_log(
        LVR_LOG_WARN,
        "%s: O_DIRECT was refused at %s (%s); reading through the page cache instead, so rates are not the "
        "device's. To mend: keep the file on a file system with O_DIRECT (ext4, xfs, f2fs), or ask for "
        "buffered reads",
        f->path, when, strerror_r(errnum, reason, sizeof reason));
}

/* Opened once here so that a refusal is reported once, whatever the number of lanes. */
static void probe_direct(lvr_flash *f)
{
    if (!f->want_direct)
        return;
    atomic_store(&f->direct_works, true);
    if (f->has_faults && f->faults.refuse_direct) {
        lose_direct(f, "open", EINVAL);
        return;
    }
    const int fd = open_retrying(f->path, O_DIRECT);
    if (fd < 0)
        lose_direct(f, "open", errno);
    else
        close(fd);
}

/* stat comes before any open: opening a FIFO would block, opening a device may have effects. */
static lvr_status identify_file(lvr_flash *f, lvr_error *err)
{
    struct stat st;
    if (stat(f->path, &st) != 0)
        return lvr_fail_errno(err, errno, "%s: cannot open", f->path);
    if (!S_ISREG(st.st_mode) && !S_ISBLK(st.st_mode))
        return lvr_fail(err, LVR_ERR_IO, "%s: expected a regular file, found a %s", f->path,
                        S_ISDIR(st.st_mode) ? "directory" : "special file");
    f->device = st.st_dev;
    f->inode = st.st_ino;
    return LVR_OK;
}

/* ---- what back ends call ---- */

lvr_flash_slot *lvr_flash_take_pending(lvr_flash *f)
{
    lvr_flash_slot *slot = f->pending_first;
    if (!slot || f->stopping)
        return NULL;
    f->pending_first = slot->next;
    if (!f->pending_first)
        f->pending_last = NULL;
    slot->next = NULL;
    slot->queue_depth = ++f->in_flight;
    slot->t_start_ns = lvr_now_ns();
    return slot;
}

static void insert_done(lvr_flash *f, lvr_flash_slot *slot)
{
    lvr_flash_slot **at = &f->done_first;
    while (*at && (*at)->t_deliver_ns <= slot->t_deliver_ns)
        at = &(*at)->next;
    slot->next = *at;
    *at = slot;
}

void lvr_flash_end(lvr_flash *f, lvr_flash_slot *slot)
{
    slot->t_end_ns = lvr_now_ns();
    f->in_flight--;
    lvr_flash_emulate_finish(f, slot);
}

bool lvr_flash_sum(lvr_flash_slot *slot)
{
    if (!slot->checksum || slot->done_bytes < slot->bytes)
        return true;
    const uint64_t left = slot->bytes - slot->summed_bytes;
    const uint64_t n = left < SUM_BYTES ? left : SUM_BYTES;
    slot->crc = lvr_crc32c(slot->crc, slot->dst + slot->summed_bytes, n);
    slot->summed_bytes += n;
    return slot->summed_bytes == slot->bytes;
}

void lvr_flash_finish(lvr_flash *f, lvr_flash_slot *slot)
{
    insert_done(f, slot);
    if (slot->t_deliver_ns < f->waiting_until_ns)
        pthread_cond_signal(&f->delivered);
}

uint64_t lvr_flash_attempt_limit(const lvr_flash *f)
{
    return f->has_faults && f->faults.attempt_bytes ? f->faults.attempt_bytes : MAX_ATTEMPT_BYTES;
}

lvr_flash_attempt lvr_flash_next_attempt(lvr_flash *f, const lvr_flash_files *files, lvr_flash_slot *slot)
{
    const uint64_t left = slot->bytes - slot->done_bytes, limit = lvr_flash_attempt_limit(f);
    const uint64_t offset = slot->offset + slot->done_bytes;
    /* A short direct read may end anywhere; from there only a buffered one can go on. */
    slot->attempt_direct =
        files->direct >= 0 && offset % LVR_FLASH_ALIGN == 0 && atomic_load(&f->direct_works);
    slot->attempt = atomic_fetch_add(&f->n_attempts, 1) + 1;
    return (lvr_flash_attempt){.fd = slot->attempt_direct ? files->direct : files->buffered,
                               .direct = slot->attempt_direct,
                               .dst = slot->dst + slot->done_bytes,
                               .bytes = (size_t)(left < limit ? left : limit),
                               .offset = offset};
}

static void pause_ns(uint64_t ns)
{
    const struct timespec ts = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
    nanosleep(&ts, NULL);
}

static int64_t apply_faults(const lvr_flash_faults *faults, uint64_t attempt, int64_t result)
{
    if (attempt >= faults->slow_at && attempt - faults->slow_at < faults->slow_count)
        pause_ns(faults->slow_ns);
    if (attempt >= faults->fail_at && attempt - faults->fail_at < faults->fail_count)
        return -faults->fail_errno;
    if (attempt == faults->short_at && result > (int64_t)faults->short_bytes)
        return (int64_t)faults->short_bytes;
    return result;
}

static bool digest_error(lvr_flash *f, lvr_flash_slot *slot, int errnum)
{
    /* The request is aligned, so a direct read is only invalid where the file system cannot do it. */
    if (slot->attempt_direct && (errnum == EINVAL || errnum == EOPNOTSUPP)) {
        lose_direct(f, "the first reads", errnum);
        slot->direct = false;
        return false;
    }
    if ((errnum == EINTR || errnum == EAGAIN) && slot->retries < MAX_RETRIES) {
        slot->retries++;
        if (errnum == EAGAIN)
            pause_ns(RETRY_PAUSE_NS);
        return false;
    }
    slot->errnum = errnum;
    return true;
}

bool lvr_flash_digest(lvr_flash *f, lvr_flash_slot *slot, int64_t result)
{
    if (f->has_faults)
        result = apply_faults(&f->faults, slot->attempt, result);
    if (result < 0)
        return digest_error(f, slot, (int)-result);
    if (result == 0) {
        slot->at_eof = true;
        return true;
    }
    slot->retries = 0;
    slot->done_bytes += (uint64_t)result;
    slot->direct = slot->direct && slot->attempt_direct;
    return slot->done_bytes >= slot->bytes;
}

lvr_status lvr_flash_thread_start(pthread_t *ret, void *(*body)(void *), void *arg, lvr_error *err)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    const int rc = pthread_create(ret, NULL, body, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc == 0)
        return LVR_OK;
    return lvr_fail_errno(err, rc,
                          "flash: cannot start a reader thread; use a smaller depth or raise ulimit -u");
}

/* 0 once the thread has ended. */
uint64_t lvr_flash_thread_cpu_ns(pthread_t thread)
{
    clockid_t clock;
    struct timespec ts;
    if (pthread_getcpuclockid(thread, &clock) != 0 || clock_gettime(clock, &ts) != 0)
        return 0;
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* ---- opening and closing ---- */

static lvr_status check_config(const lvr_flash_config *c, lvr_error *err)
{
    if (c->depth < 1 || c->depth > LVR_FLASH_MAX_DEPTH)
        return lvr_fail(err, LVR_ERR_CONFIG, "flash depth: expected 1 to %u reads in flight, found %u",
                        LVR_FLASH_MAX_DEPTH, c->depth);
    if (c->max_outstanding < 1 || c->max_outstanding > LVR_FLASH_MAX_OUTSTANDING)
        return lvr_fail(err, LVR_ERR_CONFIG, "flash: expected 1 to %u outstanding reads, found %u",
                        LVR_FLASH_MAX_OUTSTANDING, c->max_outstanding);
    if ((uintptr_t)c->buffer % LVR_FLASH_ALIGN)
        return lvr_fail(err, LVR_ERR_INVARIANT, "flash: buffer %p is no multiple of %u", c->buffer,
                        LVR_FLASH_ALIGN);
    return c->emulate ? lvr_flash_params_check(&c->emulated, err) : LVR_OK;
}

static lvr_status start_engine(lvr_flash *f, lvr_flash_engine engine, lvr_error *err)
{
    if (engine != LVR_FLASH_PREAD) {
        lvr_error why = LVR_ERROR_INIT;
        f->ops = &lvr_flash_uring_ops;
        const lvr_status status = f->ops->start(f, &why);
        if (status == LVR_OK)
            return LVR_OK;
        if (engine == LVR_FLASH_URING || status != LVR_ERR_UNSUPPORTED)
            return lvr_fail(err, status, "%s", why.msg);
        lvr_log(LVR_LOG_INFO, "%s; reading with pread threads instead, %u reads in flight", why.msg,
                f->depth);
    }
    f->ops = &lvr_flash_lanes_ops;
    return f->ops->start(f, err);
}

static bool init_sync(lvr_flash *f)
{
    pthread_condattr_t attr;
    if (pthread_condattr_init(&attr) != 0)
        return false;
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    const int rc = pthread_cond_init(&f->delivered, &attr);
    pthread_condattr_destroy(&attr);
    if (rc != 0)
        return false;
    if (pthread_mutex_init(&f->lock, NULL) == 0)
        return true;
    pthread_cond_destroy(&f->delivered);
    return false;
}

static void destroy(lvr_flash *f)
{
    pthread_mutex_destroy(&f->lock);
    pthread_cond_destroy(&f->delivered);
    free(f->slots);
    free(f->path);
    free(f);
}

static lvr_flash *allocate(const lvr_flash_config *config)
{
    lvr_flash *f = calloc(1, sizeof *f);
    if (!f)
        return NULL;
    f->path = strdup(config->path);
    f->slots = calloc(config->max_outstanding, sizeof *f->slots);
    if (f->path && f->slots && init_sync(f))
        return f;
    free(f->slots);
    free(f->path);
    free(f);
    return NULL;
}

static void configure(lvr_flash *f, const lvr_flash_config *config)
{
    f->depth = config->depth;
    f->want_direct = !config->buffered;
    f->buffer = config->buffer;
    f->buffer_bytes = config->buffer ? config->buffer_bytes : 0;
    f->checksum = config->checksum;
    f->emulate = config->emulate;
    f->emulated = config->emulated;
    if (f->emulated.depth > f->depth)
        f->emulated.depth = f->depth;
    f->has_faults = config->faults != NULL;
    if (config->faults)
        f->faults = *config->faults;
    for (uint32_t i = config->max_outstanding; i-- > 0;) {
        f->slots[i].next = f->free_first;
        f->free_first = &f->slots[i];
    }
}

lvr_status lvr_flash_open(const lvr_flash_config *config, lvr_flash **ret, lvr_error *err)
{
    lvr_status status = check_config(config, err);
    if (status != LVR_OK)
        return status;
    lvr_flash *f = allocate(config);
    if (!f)
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory for a reader with %u outstanding reads",
                        config->path, config->max_outstanding);
    configure(f, config);
    status = identify_file(f, err);
    if (status == LVR_OK) {
        probe_direct(f);
        status = start_engine(f, config->engine, err);
    }
    if (status != LVR_OK) {
        destroy(f);
        return status;
    }
    f->stats.direct = f->want_direct && atomic_load(&f->direct_works);
    f->stats.engine_name = f->ops->name;
    *ret = f;
    return LVR_OK;
}

void lvr_flash_close(lvr_flash *f)
{
    if (!f)
        return;
    pthread_mutex_lock(&f->lock);
    f->stopping = true;
    pthread_mutex_unlock(&f->lock);
    f->ops->stop(f);
    destroy(f);
}

/* ---- requests ---- */

static lvr_status check_request(const lvr_flash *f, uint64_t offset, uint64_t bytes, const void *dst,
                                lvr_error *err)
{
    uint64_t end;
    if (bytes == 0 || __builtin_add_overflow(offset, bytes, &end) || end > INT64_MAX || bytes > SIZE_MAX)
        return lvr_fail(err, LVR_ERR_INVARIANT,
                        "%s: a read of %" PRIu64 " bytes at offset %" PRIu64 " is impossible", f->path, bytes,
                        offset);
    if (offset % LVR_FLASH_ALIGN || bytes % LVR_FLASH_ALIGN || (uintptr_t)dst % LVR_FLASH_ALIGN || !dst)
        return lvr_fail(err, LVR_ERR_INVARIANT,
                        "%s: offset %" PRIu64 ", %" PRIu64
                        " bytes and buffer %p of a read must be multiples of %u",
                        f->path, offset, bytes, dst, LVR_FLASH_ALIGN);
    if (!f->free_first)
        return lvr_fail(err, LVR_ERR_INVARIANT,
                        "%s: %u reads are outstanding, as many as the reader was opened for", f->path,
                        f->outstanding);
    return LVR_OK;
}

static void enqueue(lvr_flash *f, lvr_flash_slot *slot)
{
    pthread_mutex_lock(&f->lock);
    if (f->pending_last)
        f->pending_last->next = slot;
    else
        f->pending_first = slot;
    f->pending_last = slot;
    if (f->in_flight < f->depth)
        f->ops->kick(f);
    pthread_mutex_unlock(&f->lock);
}

lvr_status lvr_flash_submit(lvr_flash *f, uint64_t seq, uint64_t offset, uint64_t bytes, void *dst,
                            lvr_error *err)
{
    const lvr_status status = check_request(f, offset, bytes, dst, err);
    if (status != LVR_OK)
        return status;
    lvr_flash_slot *slot = f->free_first;
    f->free_first = slot->next;
    *slot = (lvr_flash_slot){.seq = seq,
                             .offset = offset,
                             .bytes = bytes,
                             .dst = dst,
                             .direct = f->want_direct,
                             .checksum = f->checksum,
                             .t_submit_ns = lvr_now_ns()};
    lvr_flash_emulate_submit(f, slot);
    f->outstanding++;
    enqueue(f, slot);
    return LVR_OK;
}

void lvr_flash_set_checksum(lvr_flash *f, bool on)
{
    f->checksum = on;
}

static lvr_status explain(lvr_flash *f, const lvr_flash_slot *slot)
{
    if (slot->errnum != 0)
        return lvr_fail_errno(&f->last_error, slot->errnum,
                              "%s: reading %" PRIu64 " bytes at offset %" PRIu64 " failed after %" PRIu64
                              " bytes; check the device (dmesg) and the file",
                              f->path, slot->bytes, slot->offset, slot->done_bytes);
    if (slot->at_eof)
        return lvr_fail(&f->last_error, LVR_ERR_FORMAT,
                        "%s: expected %" PRIu64 " bytes at offset %" PRIu64
                        ", found the end of the file after %" PRIu64
                        "; the file is truncated: copy it or pack the model again",
                        f->path, slot->bytes, slot->offset, slot->done_bytes);
    return LVR_OK;
}

static void count(lvr_flash_stats *stats, const lvr_flash_completion *c)
{
    stats->reads++;
    stats->late += c->late;
    stats->direct = stats->direct && c->direct;
    if (c->status == LVR_OK)
        stats->bytes += c->bytes;
}

static void deliver(lvr_flash *f, lvr_flash_slot *slot, lvr_flash_completion *ret)
{
    const lvr_flash_completion c = {
        .seq = slot->seq,
        .status = explain(f, slot),
        .offset = slot->offset,
        .bytes = slot->bytes,
        .queue_depth = f->emulate ? slot->emulated_queue_depth : slot->queue_depth,
        .direct = slot->direct,
        .has_crc = slot->checksum && slot->summed_bytes == slot->bytes,
        .crc = slot->crc,
        .late = f->emulate && slot->t_end_ns > slot->emulated.end_ns,
        .t_submit_ns = slot->t_submit_ns,
        .t_start_ns = f->emulate ? slot->emulated.start_ns : slot->t_start_ns,
        .t_end_ns = slot->t_deliver_ns,
    };
    count(&f->stats, &c);
    slot->next = f->free_first;
    f->free_first = slot;
    f->outstanding--;
    *ret = c;
}

/* Lock held. */
static lvr_flash_slot *take_due(lvr_flash *f)
{
    lvr_flash_slot *slot = f->done_first;
    if (!slot || (f->emulate && slot->t_deliver_ns > lvr_now_ns()))
        return NULL;
    f->done_first = slot->next;
    return slot;
}

bool lvr_flash_poll(lvr_flash *f, lvr_flash_completion *ret)
{
    if (f->outstanding == 0)
        return false;
    pthread_mutex_lock(&f->lock);
    lvr_flash_slot *slot = take_due(f);
    pthread_mutex_unlock(&f->lock);
    if (!slot)
        return false;
    deliver(f, slot, ret);
    return true;
}

lvr_status lvr_flash_wait(lvr_flash *f, lvr_flash_completion *ret, lvr_error *err)
{
    if (f->outstanding == 0)
        return lvr_fail(err, LVR_ERR_INVARIANT, "%s: waiting for a read, but none is outstanding", f->path);
    lvr_flash_slot *slot;
    pthread_mutex_lock(&f->lock);
    while (!(slot = take_due(f)))
        lvr_flash_sleep(f, f->done_first ? f->done_first->t_deliver_ns : UINT64_MAX);
    pthread_mutex_unlock(&f->lock);
    deliver(f, slot, ret);
    return LVR_OK;
}

void lvr_flash_get_stats(const lvr_flash *f, lvr_flash_stats *ret)
{
    *ret = f->stats;
    ret->cpu_ns = f->ops->cpu_ns(f);
}

void lvr_flash_last_error(const lvr_flash *f, lvr_error *ret)
{
    *ret = f->last_error;
}
