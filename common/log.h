/*
 * The logger: one process-wide sink for notices and progress. The default sink drops everything, so library
 * users see nothing unless they ask; the program installs one that writes to standard error.
 * Thread safe: lvr_log formats into a local buffer and calls the sink once per message.
 */
#ifndef LVR_COMMON_LOG_H
#define LVR_COMMON_LOG_H

typedef enum lvr_log_level { LVR_LOG_DEBUG, LVR_LOG_INFO, LVR_LOG_WARN, LVR_LOG_ERROR } lvr_log_level;

typedef void (*lvr_log_sink)(lvr_log_level level, const char *message, void *user);

void lvr_log_set_sink(lvr_log_sink sink, lvr_log_level threshold, void *user);
void lvr_log(lvr_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
