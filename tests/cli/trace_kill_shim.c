/*
 * Preloaded into a recorder: counts the system calls that change files and ends the process with SIGKILL at
 * the LVR_KILL_AT-th, before it, or, with LVR_KILL_TORN, after it (a write: after half of it). The count goes
 * on over all threads, so a sweep over k meets every state that a kill can leave on disk.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static atomic_long calls;

static long setting(const char *name)
{
    const char *text = getenv(name);
    return text ? strtol(text, NULL, 10) : 0;
}

static void die(void)
{
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

/* Counts; true if the call is the last one and is to be made (in part) first. */
static bool last_call(void)
{
    if (atomic_fetch_add(&calls, 1) + 1 != setting("LVR_KILL_AT"))
        return false;
    if (!setting("LVR_KILL_TORN"))
        die();
    return true;
}

/* The library's own function of this name, through a union: ISO C has no cast from a data to a function
 * pointer. */
#define NEXT(type, name)                                                                                     \
    union {                                                                                                  \
        void *data;                                                                                          \
        __typeof__(type) function;                                                                           \
    } next = {dlsym(RTLD_NEXT, name)}

#define WRITE_AT(name, offset_type)                                                                          \
    ssize_t name(int fd, const void *data, size_t n, offset_type offset)                                     \
    {                                                                                                        \
        NEXT(ssize_t (*)(int, const void *, size_t, offset_type), #name);                                    \
        const bool last = last_call();                                                                       \
        const ssize_t done = next.function(fd, data, last ? n / 2 : n, offset);                              \
        if (last)                                                                                            \
            die();                                                                                           \
        return done;                                                                                         \
    }
WRITE_AT(pwrite, off_t)
WRITE_AT(pwrite64, off64_t)

ssize_t write(int fd, const void *data, size_t n)
{
    NEXT(ssize_t(*)(int, const void *, size_t), "write");
    const bool last = last_call();
    const ssize_t done = next.function(fd, data, last ? n / 2 : n);
    if (last)
        die();
    return done;
}

#define CALL(name, parameters, ...)                                                                          \
    int name parameters                                                                                      \
    {                                                                                                        \
        NEXT(int(*) parameters, #name);                                                                      \
        const bool last = last_call();                                                                       \
        const int status = next.function(__VA_ARGS__);                                                       \
        if (last)                                                                                            \
            die();                                                                                           \
        return status;                                                                                       \
    }
CALL(ftruncate, (int fd, off_t length), fd, length)
CALL(ftruncate64, (int fd, off64_t length), fd, length)
CALL(fsync, (int fd), fd)
CALL(fdatasync, (int fd), fd)
CALL(rename, (const char *from, const char *to), from, to)
CALL(unlink, (const char *path), path)
CALL(rmdir, (const char *path), path)
CALL(mkdir, (const char *path, mode_t mode), path, mode)

/* Opening changes the disk if it creates or empties a file. */
#define OPEN(name)                                                                                           \
    int name(const char *path, int flags, ...)                                                               \
    {                                                                                                        \
        NEXT(int (*)(const char *, int, ...), #name);                                                        \
        va_list args;                                                                                        \
        va_start(args, flags);                                                                               \
        const mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;                                      \
        va_end(args);                                                                                        \
        const bool last = flags & (O_CREAT | O_TRUNC) && last_call();                                        \
        const int fd = next.function(path, flags, mode);                                                     \
        if (last)                                                                                            \
            die();                                                                                           \
        return fd;                                                                                           \
    }
OPEN(open)
OPEN(open64)
