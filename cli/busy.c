#include "cli/busy.h"

#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static _Noreturn void spin(pid_t parent)
{
    /* The system kills the child when its parent is gone; a parent that is gone already was missed. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    raise(SIGSTOP);
    for (volatile uint64_t i = 0;; i = i + 1)
        ;
}

static void wait_until_stopped(pid_t pid)
{
    int status;
    while (waitpid(pid, &status, WUNTRACED) < 0 && errno == EINTR)
        ;
}

lvr_status lvr_busy_start(uint32_t n, lvr_busy *ret, lvr_error *err)
{
    lvr_busy b = {0};
    const pid_t parent = getpid();
    while (b.n < n && b.n < LVR_BUSY_MAX) {
        const pid_t pid = fork();
        if (pid == 0)
            spin(parent);
        if (pid < 0) {
            const int errnum = errno;
            lvr_busy_end(&b);
            return lvr_fail_errno(err, errnum, "cannot start busy process %u of %u", b.n + 1, n);
        }
        b.pids[b.n++] = pid;
        wait_until_stopped(pid);
    }
    *ret = b;
    return LVR_OK;
}

static void signal_all(const lvr_busy *b, int signal)
{
    for (uint32_t i = 0; i < b->n; i++)
        kill(b->pids[i], signal);
}

void lvr_busy_resume(const lvr_busy *b)
{
    signal_all(b, SIGCONT);
}

void lvr_busy_pause(const lvr_busy *b)
{
    signal_all(b, SIGSTOP);
    for (uint32_t i = 0; i < b->n; i++)
        wait_until_stopped(b->pids[i]);
}

void lvr_busy_end(lvr_busy *b)
{
    signal_all(b, SIGKILL);
    for (uint32_t i = 0; i < b->n; i++)
        while (waitpid(b->pids[i], NULL, 0) < 0 && errno == EINTR)
            ;
    b->n = 0;
}
