/* Options that have no effect on the run they were given for. Nothing is refused for them: a warning says
 * which and why. */
#ifndef LVR_CLI_UNUSED_OPTIONS_H
#define LVR_CLI_UNUSED_OPTIONS_H

#include "cli/session_options.h"

/* What is known from the options alone. */
void lvr_warn_unused_options(const lvr_session_setup *setup);
/* What is known once the session is planned: how to stream, where nothing is streamed. */
void lvr_warn_unused_streaming(const lvr_session_setup *setup, const lvr_session *session);

#endif
