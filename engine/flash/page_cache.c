/* cachestat(2) where the kernel has it, else mincore(2). Weights are never used through a mapping: the one
 * that mincore needs is only asked about, never touched, and unmapped at once. */
#include "engine/flash/page_cache.h"

#include "common/minmax.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE_BYTES UINT64_C(4096)         /* the smallest page there is: mincore's are multiples of it */
#define WINDOW_BYTES (UINT64_C(64) << 20) /* mapped at a time */
#define WINDOW_PAGES (WINDOW_BYTES / PAGE_BYTES)

#if defined SYS_cachestat
#define CACHESTAT SYS_cachestat
#elif defined __x86_64__ || defined __aarch64__
#define CACHESTAT 451 /* older headers on a newer kernel */
#endif

/* To others mincore says that every page is there (can_do_mincore in mm/mincore.c). */
static bool may_ask(const char *path, const struct stat *st)
{
    const uid_t uid = geteuid();
    return uid == 0 || uid == st->st_uid || faccessat(AT_FDCWD, path, W_OK, AT_EACCESS) == 0;
}

#ifdef CACHESTAT
/* The system call's own: include/uapi/linux/mman.h since Linux 6.5. */
struct cachestat_range {
    uint64_t offset, bytes;
};

struct cachestat_counts {
    uint64_t cached, dirty, writeback, evicted, recently_evicted; /* pages */
};

/* False: this kernel, or its sandbox, does not answer. */
static bool ask_cachestat(int fd, uint64_t begin, uint64_t end, uint64_t *n_present)
{
    struct cachestat_range range = {begin, end - begin};
    struct cachestat_counts counts = {0};
    if (syscall(CACHESTAT, fd, &range, &counts, 0u) != 0)
        return false;
    *n_present = counts.cached;
    return true;
}
#else
static bool ask_cachestat(int fd, uint64_t begin, uint64_t end, uint64_t *n_present)
{
    (void)fd, (void)begin, (void)end, (void)n_present;
    return false;
}
#endif

/* A mapping that nobody touches reads nothing. */
static lvr_status count_window(int fd, const char *path, uint64_t offset, uint64_t bytes, uint64_t *n_present,
                               lvr_error *err)
{
    unsigned char present[WINDOW_PAGES];
    const uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    void *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, (off_t)offset);
    if (map == MAP_FAILED)
        return lvr_fail_errno(err, errno, "%s: cannot map it to look at the page cache", path);
    const int rc = mincore(map, bytes, present);
    const int errnum = errno;
    munmap(map, bytes);
    if (rc != 0)
        return lvr_fail_errno(err, errnum, "%s: cannot look at the page cache", path);
    for (uint64_t i = 0; i < (bytes + page_bytes - 1) / page_bytes; i++)
        *n_present += present[i] & 1;
    return LVR_OK;
}

static lvr_status ask_mincore(int fd, const char *path, uint64_t begin, uint64_t end, uint64_t *n_present,
                              lvr_error *err)
{
    lvr_status status = LVR_OK;
    *n_present = 0;
    for (uint64_t at = begin; at < end && status == LVR_OK; at += WINDOW_BYTES)
        status = count_window(fd, path, at, lvr_min_u64(end - at, WINDOW_BYTES), n_present, err);
    return status;
}

static lvr_status count_pages(int fd, const char *path, uint64_t begin, uint64_t end, double *ret_share,
                              lvr_error *err)
{
    const uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t n_present = 0;
    if (!ask_cachestat(fd, begin, end, &n_present)) {
        const lvr_status status = ask_mincore(fd, path, begin, end, &n_present, err);
        if (status != LVR_OK)
            return status;
    }
    *ret_share = (double)n_present / (double)((end - begin + page_bytes - 1) / page_bytes);
    return LVR_OK;
}

lvr_status lvr_page_cache_share(const char *path, uint64_t offset, uint64_t bytes, double *ret_share,
                                lvr_error *err)
{
    const uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t end;
    struct stat st;
    if (bytes == 0 || __builtin_add_overflow(offset, bytes, &end) || end > INT64_MAX)
        return lvr_fail(err, LVR_ERR_INVARIANT,
                        "%s: a range of %" PRIu64 " bytes at %" PRIu64 " is impossible", path, bytes, offset);
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return lvr_fail_errno(err, errno, "%s: cannot open", path);
    lvr_status status = LVR_OK;
    if (fstat(fd, &st) != 0)
        status = lvr_fail_errno(err, errno, "%s: cannot stat", path);
    else if (!S_ISREG(st.st_mode))
        status = lvr_fail(err, LVR_ERR_UNSUPPORTED, "%s: expected a regular file", path);
    else if (!may_ask(path, &st))
        status = lvr_fail(
            err, LVR_ERR_UNSUPPORTED,
            "%s: what the page cache holds of it is only told to its owner and to who may write it", path);
    else
        status = count_pages(fd, path, offset / page_bytes * page_bytes, end, ret_share, err);
    close(fd);
    return status;
}
