/* Preloaded by bad_input.py: a file system without O_DIRECT, for kernels whose tmpfs has it. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/types.h>

static int open_without(const char *name, const char *path, int flags, mode_t mode)
{
    int (*real)(const char *, int, ...);
    void *const symbol = dlsym(RTLD_NEXT, name);
    memcpy(&real, &symbol, sizeof real);
    if (flags & O_DIRECT) {
        errno = EINVAL;
        return -1;
    }
    return real(path, flags, mode);
}

#define REPLACE(name)                                                                                        \
    int name(const char *path, int flags, ...)                                                               \
    {                                                                                                        \
        va_list more;                                                                                        \
        va_start(more, flags);                                                                               \
        const mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, mode_t) : 0;                      \
        va_end(more);                                                                                        \
        return open_without(#name, path, flags, mode);                                                       \
    }

REPLACE(open)
REPLACE(open64)
