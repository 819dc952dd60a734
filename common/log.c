#include "common/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

typedef struct logger {
    lvr_log_sink sink;
    lvr_log_level threshold;
    void *user;
} logger;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static logger current;

/* A copy, so that the sink runs without the lock and may itself log or replace the sink. */
static logger get_logger(void)
{
    pthread_mutex_lock(&lock);
    const logger copy = current;
    pthread_mutex_unlock(&lock);
    return copy;
}

void lvr_log_set_sink(lvr_log_sink sink, lvr_log_level threshold, void *user)
{
    pthread_mutex_lock(&lock);
    current = (logger){.sink = sink, .threshold = threshold, .user = user};
    pthread_mutex_unlock(&lock);
}

void lvr_log(lvr_log_level level, const char *fmt, ...)
{
    const logger to = get_logger();
    if (!to.sink || level < to.threshold)
        return;
    char message[2048];
    va_list ap;
    va_start(ap, fmt);
    const int n = vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    if (n < 0)
        return;
    to.sink(level, message, to.user);
}
