/* What `lever run` says about a run: one JSON document, or lines of figures on the log. */
#ifndef LVR_CLI_RUN_REPORT_H
#define LVR_CLI_RUN_REPORT_H

#include "cli/session_options.h"

typedef struct lvr_run_request {
    uint64_t id;
    const char *domain;
    int32_t *tokens; /* malloc'ed */
    uint32_t n_tokens;
    lvr_buf text;
    lvr_run_stats stats;
} lvr_run_request;

/* Everything is borrowed. */
typedef struct lvr_run_report {
    const lvr_session_setup *setup;
    const lvr_session *session;
    const lvr_run_request *requests;
    size_t n;
    const lvr_run_stats *sum; /* over the requests */
    const lvr_io_report *io;  /* NULL: nothing is streamed */
} lvr_run_report;

void lvr_run_report_json(const lvr_run_report *r, lvr_buf *out);
void lvr_run_report_log(const lvr_run_report *r);

#endif
