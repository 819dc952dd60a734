/* A folder for one test's traces, and records with known contents. */
#ifndef LVR_TESTS_TRACES_FIXTURE_H
#define LVR_TESTS_TRACES_FIXTURE_H

#include "traces/recorder.h"
#include "traces/trace.h"

extern char fixture_dir[64];
extern char fixture_path[128]; /* a trace in it */

void fixture_setup(void);
void fixture_teardown(void);

/* Meta data with every field set to something of its own. */
void fixture_meta(lvr_trace_meta *meta, lvr_trace_kind kind);
/* Record i of a stream: every field differs from row to row where it may. */
void fixture_record(lvr_stream stream, uint64_t i, void *ret_record);

/* A writer that must open, with one lane. */
lvr_trace_writer *fixture_writer(lvr_trace_kind kind, bool overwrite, lvr_trace_lane **ret_lane);
void fixture_close(lvr_trace_writer *w, bool complete);
lvr_trace *fixture_open(void);
/* Puts a well-formed request of n_rounds rounds, each with a tree, reads and kernels; the row of a round
 * comes last. */
void fixture_put_rounds(lvr_trace_lane *lane, uint64_t request, uint64_t first_round, uint64_t n_rounds,
                        bool with_request);
/* The same for an oracle trace: n positions of a three-node tree and two candidates. */
void fixture_put_positions(lvr_trace_lane *lane, uint64_t request, uint32_t n, bool with_request);
/* Waits, up to some seconds, until the recording on disk shows this many rounds. */
void fixture_wait_for_rounds(uint64_t n_rounds);

#endif
