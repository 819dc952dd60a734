/*
 * Back end of one thread over io_uring. Only that thread submits and reaps; the consumer wakes it through an
 * eventfd on which the ring always has a read armed, and only when the device has room (a thread that has
 * `depth` reads in flight looks at the pending list anyway when one of them completes). What is to be summed
 * is summed a piece at a time, and the device gets its next read first.
 */
#include "engine/flash/reader_internal.h"

#include "lvr_config.h"
#include <errno.h>

static lvr_status refused(const char *what, int errnum, lvr_error *err)
{
    lvr_error why = LVR_ERROR_INIT;
    lvr_fail_errno(&why, errnum, "flash: the kernel refuses io_uring (%s)", what);
    return lvr_fail(
        err, LVR_ERR_UNSUPPORTED,
        "%s. To mend: Linux 5.6 or later, sysctl kernel.io_uring_disabled=0, and a container or sandbox "
        "profile (seccomp) that allows io_uring",
        why.msg);
}

#if LVR_HAVE_URING

#include "common/log.h"
#include <inttypes.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define ENTER_PAUSE_NS 1000000
#define ENTER_FAILURES_BEFORE_NOTICE 1000u

/* Places of the registered files. */
enum { DIRECT_FILE, BUFFERED_FILE, N_FILES };

typedef struct uring {
    struct io_uring ring;
    int wake_fd;
    uint64_t wake_count; /* target of the armed read */
    bool wake_armed;     /* I/O thread only */
    bool wake_written;   /* f->lock: a wake-up is on its way */
    uint32_t n_failures; /* consecutive failures of io_uring_enter */
    bool fixed_files;
    uint64_t piece_bytes; /* the buffer is registered in pieces of this size; 0: it is not */
    lvr_flash_slot *ended_first, *ended_last; /* read, not yet summed */
    lvr_flash_files files;
    pthread_t thread;
} uring;

/* Never NULL: the ring has an entry for each of `depth` reads and the wake-up, and everything is submitted at
 * once. */
static struct io_uring_sqe *get_sqe(uring *u)
{
    return io_uring_get_sqe(&u->ring);
}

static void arm_wake(uring *u)
{
    struct io_uring_sqe *sqe = get_sqe(u);
    io_uring_prep_read(sqe, u->wake_fd, &u->wake_count, sizeof u->wake_count, 0);
    io_uring_sqe_set_data(sqe, NULL);
    u->wake_armed = true;
}

/* A read into the registered buffer ends where the piece that it begins in does. False: it begins elsewhere.
 */
static bool find_piece(const lvr_flash *f, const uring *u, lvr_flash_attempt *a, int *ret_index)
{
    if (u->piece_bytes == 0 || a->dst < f->buffer || a->dst >= f->buffer + f->buffer_bytes)
        return false;
    const uint64_t at = (uint64_t)(a->dst - f->buffer), in_piece = at % u->piece_bytes;
    const uint64_t buffer_left = f->buffer_bytes - at, piece_left = u->piece_bytes - in_piece;
    if (a->bytes > buffer_left)
        return false;
    if (a->bytes > piece_left)
        a->bytes = (size_t)piece_left;
    *ret_index = (int)(at / u->piece_bytes);
    return true;
}

static void prepare(lvr_flash *f, uring *u, lvr_flash_slot *slot)
{
    lvr_flash_attempt a = lvr_flash_next_attempt(f, &u->files, slot);
    struct io_uring_sqe *sqe = get_sqe(u);
    const int fd = !u->fixed_files ? a.fd : a.direct ? DIRECT_FILE : BUFFERED_FILE;
    int piece = 0;
    if (find_piece(f, u, &a, &piece))
        io_uring_prep_read_fixed(sqe, fd, a.dst, (unsigned)a.bytes, a.offset, piece);
    else
        io_uring_prep_read(sqe, fd, a.dst, (unsigned)a.bytes, a.offset);
    if (u->fixed_files)
        io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
    io_uring_sqe_set_data(sqe, slot);
}

/* Prepares what the device has room for. False: nothing is left to do, ever. */
static bool refill(lvr_flash *f, uring *u)
{
    lvr_flash_slot *first = NULL, **last = &first;
    pthread_mutex_lock(&f->lock);
    u->wake_written = false;
    while (f->in_flight < f->depth && (*last = lvr_flash_take_pending(f)))
        last = &(*last)->next;
    const bool stopping = f->stopping;
    const bool idle = f->in_flight == 0;
    pthread_mutex_unlock(&f->lock);
    for (lvr_flash_slot *slot = first; slot;) {
        lvr_flash_slot *next = slot->next;
        prepare(f, u, slot);
        slot = next;
    }
    if (!stopping && !u->wake_armed)
        arm_wake(u);
    return !stopping || !idle || u->wake_armed;
}

/* io_uring_enter fails when the kernel is short of memory for requests. Reads already in flight own their
 * buffers, so giving up is not safe; trying again is. */
static void pause_after_failure(const lvr_flash *f, uring *u, int errnum)
{
    if (errnum == EINTR)
        return;
    if (++u->n_failures == ENTER_FAILURES_BEFORE_NOTICE)
        lvr_log(LVR_LOG_WARN, "%s: io_uring has not taken a read for %u tries (errno %d); still trying",
                f->path, u->n_failures, errnum);
    const struct timespec ts = {.tv_nsec = ENTER_PAUSE_NS};
    nanosleep(&ts, NULL);
}

static void finish(lvr_flash *f, lvr_flash_slot *slot)
{
    pthread_mutex_lock(&f->lock);
    lvr_flash_finish(f, slot);
    pthread_mutex_unlock(&f->lock);
}

static void end(lvr_flash *f, uring *u, lvr_flash_slot *slot)
{
    const bool checksum = slot->checksum; /* once finished, the slot is the consumer's */
    pthread_mutex_lock(&f->lock);
    lvr_flash_end(f, slot);
    if (!checksum)
        lvr_flash_finish(f, slot);
    pthread_mutex_unlock(&f->lock);
    if (!checksum)
        return;
    slot->next = NULL;
    if (u->ended_last)
        u->ended_last->next = slot;
    else
        u->ended_first = slot;
    u->ended_last = slot;
}

static void sum_a_piece(lvr_flash *f, uring *u)
{
    lvr_flash_slot *slot = u->ended_first;
    if (!slot || !lvr_flash_sum(slot))
        return;
    u->ended_first = slot->next;
    if (!u->ended_first)
        u->ended_last = NULL;
    finish(f, slot);
}

static void handle(lvr_flash *f, uring *u, const struct io_uring_cqe *cqe)
{
    lvr_flash_slot *slot = io_uring_cqe_get_data(cqe);
    if (!slot)
        u->wake_armed = false;
    else if (lvr_flash_digest(f, slot, cqe->res))
        end(f, u, slot);
    else
        prepare(f, u, slot);
}

static void reap(lvr_flash *f, uring *u)
{
    struct io_uring_cqe *cqe;
    while (io_uring_peek_cqe(&u->ring, &cqe) == 0) {
        handle(f, u, cqe);
        io_uring_cqe_seen(&u->ring, cqe);
    }
}

static void *io_main(void *arg)
{
    lvr_flash *f = arg;
    uring *u = f->backend;
    pthread_setname_np(pthread_self(), "lvr-flash");
    while (refill(f, u)) {
        const int rc = u->ended_first ? io_uring_submit(&u->ring) : io_uring_submit_and_wait(&u->ring, 1);
        if (rc < 0)
            pause_after_failure(f, u, -rc);
        else
            u->n_failures = 0;
        reap(f, u);
        sum_a_piece(f, u);
    }
    return NULL;
}

static lvr_status check_ops(struct io_uring *ring, lvr_error *err)
{
    struct io_uring_probe *probe = io_uring_get_probe_ring(ring);
    if (!probe)
        return refused("probe", ENOSYS, err);
    const bool has_read = io_uring_opcode_supported(probe, IORING_OP_READ);
    io_uring_free_probe(probe);
    return has_read ? LVR_OK : refused("IORING_OP_READ", ENOSYS, err);
}

/* A sandbox may allow the set-up and refuse the rest: one no-op must go through. */
static lvr_status check_enter(struct io_uring *ring, lvr_error *err)
{
    struct io_uring_cqe *cqe = NULL;
    io_uring_prep_nop(io_uring_get_sqe(ring));
    int rc = io_uring_submit(ring);
    if (rc >= 0)
        rc = io_uring_wait_cqe(ring, &cqe);
    if (rc < 0)
        return refused("io_uring_enter", -rc, err);
    io_uring_cqe_seen(ring, cqe);
    return LVR_OK;
}

static lvr_status make_ring(struct io_uring *ring, uint32_t depth, lvr_error *err)
{
    const int rc = io_uring_queue_init(depth + 1, ring, 0);
    if (rc < 0)
        return refused("io_uring_setup", -rc, err);
    lvr_status status = check_ops(ring, err);
    if (status == LVR_OK)
        status = check_enter(ring, err);
    if (status != LVR_OK)
        io_uring_queue_exit(ring);
    return status;
}

/* ---- registering: saves the kernel a look-up of every page and file, read after read ---- */

static void register_files(const lvr_flash *f, uring *u)
{
    const int fds[N_FILES] = {[DIRECT_FILE] = u->files.direct, [BUFFERED_FILE] = u->files.buffered};
    if (!(f->has_faults && f->faults.refuse_files))
        u->fixed_files = io_uring_register_files(&u->ring, fds, N_FILES) == 0;
}

static int register_pieces(const lvr_flash *f, struct io_uring *ring, uint64_t piece_bytes)
{
    const uint64_t n = (f->buffer_bytes + piece_bytes - 1) / piece_bytes;
    struct iovec *pieces = n <= UINT16_MAX ? calloc(n, sizeof *pieces) : NULL;
    if (!pieces)
        return -ENOMEM;
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t at = i * piece_bytes, left = f->buffer_bytes - at;
        pieces[i] = (struct iovec){.iov_base = f->buffer + at,
                                   .iov_len = (size_t)(left < piece_bytes ? left : piece_bytes)};
    }
    const int rc = io_uring_register_buffers(ring, pieces, (unsigned)n);
    free(pieces);
    return rc;
}

static void register_buffer(const lvr_flash *f, uring *u)
{
    if (f->buffer_bytes == 0)
        return;
    const uint64_t piece_bytes = lvr_flash_attempt_limit(f);
    const bool refused = f->has_faults && f->faults.refuse_buffer;
    const int rc = refused ? -ENOMEM : register_pieces(f, &u->ring, piece_bytes);
    if (rc == 0) {
        u->piece_bytes = piece_bytes;
        return;
    }
    char reason[128];
    struct rlimit limit = {0};
    getrlimit(RLIMIT_MEMLOCK, &limit);
    lvr_log(LVR_LOG_INFO,
            "%s: the kernel does not register the buffer of %" PRIu64
            " bytes with io_uring (%s); reads are plain ones, which cost a little more CPU. To mend: ulimit "
            "-l above %" PRIu64 " (now %" PRIu64 ") KiB",
            f->path, f->buffer_bytes, strerror_r(-rc, reason, sizeof reason), f->buffer_bytes >> 10,
            (uint64_t)limit.rlim_cur >> 10);
}

static void write_wake(const uring *u)
{
    const uint64_t one = 1;
    /* It can only fail when the counter is full, and then the thread is being woken already. */
    const ssize_t n = write(u->wake_fd, &one, sizeof one);
    (void)n;
}

static void release(lvr_flash *f)
{
    uring *u = f->backend;
    io_uring_queue_exit(&u->ring);
    lvr_flash_files_close(&u->files);
    if (u->wake_fd >= 0)
        close(u->wake_fd);
    free(u);
    f->backend = NULL;
}

static lvr_status start_thread(lvr_flash *f, uring *u, lvr_error *err)
{
    lvr_status status = lvr_flash_files_open(f, &u->files, err);
    if (status != LVR_OK)
        return status;
    u->wake_fd = eventfd(0, EFD_CLOEXEC);
    if (u->wake_fd < 0)
        return lvr_fail_errno(err, errno, "flash: cannot make an eventfd; raise ulimit -n");
    register_files(f, u);
    register_buffer(f, u);
    f->stats.registered_files = u->fixed_files;
    f->stats.registered_buffer = u->piece_bytes != 0;
    return lvr_flash_thread_start(&u->thread, io_main, f, err);
}

static lvr_status start(lvr_flash *f, lvr_error *err)
{
    if (f->has_faults && f->faults.refuse_uring)
        return refused("test", EPERM, err);
    uring *u = calloc(1, sizeof *u);
    if (!u)
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory for an io_uring", f->path);
    u->wake_fd = -1;
    u->files = (lvr_flash_files){.direct = -1, .buffered = -1};
    lvr_status status = make_ring(&u->ring, f->depth, err);
    if (status != LVR_OK) {
        free(u);
        return status;
    }
    f->backend = u;
    status = start_thread(f, u, err);
    if (status != LVR_OK)
        release(f);
    return status;
}

static void kick(lvr_flash *f)
{
    uring *u = f->backend;
    if (u->wake_written)
        return;
    u->wake_written = true;
    write_wake(u);
}

static void stop(lvr_flash *f)
{
    uring *u = f->backend;
    write_wake(u);
    pthread_join(u->thread, NULL);
    release(f);
}

static uint64_t cpu_ns(const lvr_flash *f)
{
    const uring *u = f->backend;
    return lvr_flash_thread_cpu_ns(u->thread);
}

static lvr_status probe(lvr_error *err)
{
    struct io_uring ring;
    const lvr_status status = make_ring(&ring, 1, err);
    if (status == LVR_OK)
        io_uring_queue_exit(&ring);
    return status;
}

#else

static lvr_status start(lvr_flash *f, lvr_error *err)
{
    (void)f;
    return refused("this build was made without liburing", ENOSYS, err);
}

static void kick(lvr_flash *f)
{
    (void)f;
}

static void stop(lvr_flash *f)
{
    (void)f;
}

static uint64_t cpu_ns(const lvr_flash *f)
{
    (void)f;
    return 0;
}

static lvr_status probe(lvr_error *err)
{
    return refused("this build was made without liburing", ENOSYS, err);
}

#endif

lvr_status lvr_flash_probe_engine(lvr_flash_engine engine, lvr_error *err)
{
    return engine == LVR_FLASH_URING ? probe(err) : LVR_OK;
}

const lvr_flash_ops lvr_flash_uring_ops = {
    .name = "uring", .start = start, .kick = kick, .stop = stop, .cpu_ns = cpu_ns};
