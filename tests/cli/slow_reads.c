/*
 * Preloaded by the tests, so that signals meet packing, loading and decoding on the way. Every pread
 *
 * - takes LVR_SLOW_READ_MS longer, and
 * - with LVR_READ_GATE=NOTICES,GO, two inherited pipe ends, writes the line "THREAD OFFSET BYTES\n" (THREAD:
 *   main or other) to the first and waits until a byte can be read from the second. A signal that arrives
 *   meanwhile has been handled when "signal 0 0\n" is written. The second at its end opens the gate for good.
 */
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

typedef ssize_t (*pread_fn)(int fd, void *data, size_t n, off_t offset);

static void wait_a_while(void)
{
    const char *ms = getenv("LVR_SLOW_READ_MS");
    const long wait = ms ? atol(ms) : 0;
    struct timespec left = {.tv_sec = wait / 1000, .tv_nsec = wait % 1000 * 1000000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
}

static void notify(int notices, const char *what, long long offset, size_t n)
{
    char line[96];
    const int length = snprintf(line, sizeof line, "%s %lld %zu\n", what, offset, n);
    if (write(notices, line, (size_t)length) != length)
        abort();
}

static void wait_for_the_gate(size_t n, off_t offset)
{
    static atomic_bool open;
    const char *gate = getenv("LVR_READ_GATE");
    int notices, go;
    char byte;
    if (!gate || atomic_load(&open) || sscanf(gate, "%d,%d", &notices, &go) != 2)
        return;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before); /* so that none comes between the notice and the wait */
    notify(notices, gettid() == getpid() ? "main" : "other", (long long)offset, n);
    struct pollfd end = {.fd = go, .events = POLLIN};
    while (ppoll(&end, 1, NULL, &before) < 0 && errno == EINTR)
        notify(notices, "signal", 0, 0);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (read(go, &byte, 1) <= 0)
        atomic_store(&open, true);
}

static ssize_t slowly(const char *name, int fd, void *data, size_t n, off_t offset)
{
    wait_a_while();
    wait_for_the_gate(n, offset);
    union {
        void *object;
        pread_fn function;
    } real = {.object = dlsym(RTLD_NEXT, name)};
    return real.function(fd, data, n, offset);
}

ssize_t pread(int fd, void *data, size_t n, off_t offset)
{
    return slowly("pread", fd, data, n, offset);
}

ssize_t pread64(int fd, void *data, size_t n, off_t offset)
{
    return slowly("pread64", fd, data, n, offset);
}
