#include "cli/progress.h"

#include "common/clock.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define NS_PER_S 1000000000ull
#define LINE_AFTER_NS (1 * NS_PER_S)
#define NOTICES_AFTER_NS (2 * NS_PER_S)
#define LINE_EVERY_NS (NS_PER_S / 5)

/* ---- the line ---- */

/* With the lock held. */
static void erase(lvr_progress *p)
{
    if (p->width == 0)
        return;
    fprintf(stderr, "\r%*s\r", (int)p->width, "");
    p->width = 0;
}

static void write_over(lvr_progress *p, const char *text)
{
    const size_t n = strlen(text), rest = p->width > n ? p->width - n : 0;
    fprintf(stderr, "\r%s%*s", text, (int)rest, "");
    p->width = n;
}

void lvr_progress_log(lvr_log_level level, const char *message, void *user)
{
    lvr_progress *p = user;
    if (p)
        pthread_mutex_lock(&p->lock);
    if (p)
        erase(p);
    fprintf(stderr, "lever: %s%s\n", level >= LVR_LOG_WARN ? "warning: " : "", message);
    if (p)
        pthread_mutex_unlock(&p->lock);
}

/* ---- what it says ---- */

static void describe(const lvr_progress *p, uint64_t now_ns, uint64_t total, char *text, size_t n)
{
    const double seconds = (double)(now_ns - p->begin_ns) * 1e-9;
    const double rate = seconds > 0 ? (double)(p->done - p->begin_done) / seconds : 0;
    const double left = rate > 0 ? (double)(total - p->done) / rate : 0;
    const double percent = 100.0 * (double)p->done / (double)total;
    if (strcmp(p->stage, "prompt") == 0)
        snprintf(text, n, "%s: %" PRIu64 " of %" PRIu64 " tokens (%.0f %%), %.1f tokens/s, %.0f s left",
                 p->stage, p->done, total, percent, rate, left);
    else
        snprintf(text, n, "%s: %.0f of %.0f MB (%.0f %%), %.0f MB/s, %.0f s left", p->stage,
                 (double)p->done * 1e-6, (double)total * 1e-6, percent, rate * 1e-6, left);
}

static void begin_stage(lvr_progress *p, const char *stage, uint64_t done, uint64_t now_ns)
{
    snprintf(p->stage, sizeof p->stage, "%s", stage);
    p->begin_ns = p->shown_ns = now_ns;
    p->begin_done = done;
    p->tenths = 0;
}

static void show_line(lvr_progress *p, uint64_t now_ns, uint64_t total)
{
    char text[128];
    if (p->done >= total) {
        erase(p);
        return;
    }
    if (now_ns - p->begin_ns < LINE_AFTER_NS || now_ns - p->shown_ns < LINE_EVERY_NS)
        return;
    p->shown_ns = now_ns;
    describe(p, now_ns, total, text, sizeof text);
    write_over(p, text);
}

/* `text` becomes the notice that is due, if one is. */
static void describe_if_due(lvr_progress *p, uint64_t now_ns, uint64_t total, char *text, size_t n)
{
    const unsigned tenths = (unsigned)((double)p->done * 10 / (double)total);
    if (now_ns - p->begin_ns < NOTICES_AFTER_NS || tenths <= p->tenths)
        return;
    p->tenths = tenths;
    describe(p, now_ns, total, text, n);
}

void lvr_progress_show(const char *stage, uint64_t done, uint64_t total, void *user)
{
    lvr_progress *p = user;
    char notice[128] = "";
    if (p->quiet || total == 0)
        return;
    const uint64_t now_ns = lvr_now_ns();
    pthread_mutex_lock(&p->lock);
    if (strcmp(stage, p->stage) != 0 || done < p->done)
        begin_stage(p, stage, done, now_ns);
    p->done = done;
    if (p->terminal)
        show_line(p, now_ns, total);
    else
        describe_if_due(p, now_ns, total, notice, sizeof notice);
    pthread_mutex_unlock(&p->lock);
    if (notice[0])
        lvr_log(LVR_LOG_INFO, "%s", notice);
}

/* ---- beginning and end ---- */

static lvr_log_level threshold(const lvr_progress *p)
{
    return p->quiet ? LVR_LOG_WARN : LVR_LOG_INFO;
}

void lvr_progress_begin(lvr_progress *p, bool quiet)
{
    *p = (lvr_progress){.quiet = quiet, .terminal = isatty(STDERR_FILENO) != 0};
    pthread_mutex_init(&p->lock, NULL);
    lvr_log_set_sink(lvr_progress_log, threshold(p), p);
}

void lvr_progress_clear(lvr_progress *p)
{
    pthread_mutex_lock(&p->lock);
    erase(p);
    pthread_mutex_unlock(&p->lock);
}

void lvr_progress_end(lvr_progress *p)
{
    lvr_progress_clear(p);
    lvr_log_set_sink(lvr_progress_log, threshold(p), NULL);
    pthread_mutex_destroy(&p->lock);
}
