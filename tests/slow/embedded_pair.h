/* The embedded pair and its prompts, for slow tests. Failures fail the running Criterion test. */
#ifndef LVR_TESTS_SLOW_EMBEDDED_PAIR_H
#define LVR_TESTS_SLOW_EMBEDDED_PAIR_H

#include "cli/prompts.h"
#include "engine/decode.h"

struct embedded_pair {
    char target[512], draft[512], cache[64];
    lvr_prompts prompts;
};

/* Packs go to a folder of the test's own. */
void embedded_pair_open(struct embedded_pair *p);
void embedded_pair_close(struct embedded_pair *p);
/* Everything resident, two threads; draft_path is set. */
void embedded_pair_config(const struct embedded_pair *p, const lvr_policy *policy, lvr_session_config *c);
/* One prompt; returns the tokens (malloc'ed). */
int32_t *embedded_pair_generate(lvr_session *s, const lvr_prompt *prompt, uint32_t n_predict, uint32_t *ret_n,
                                lvr_run_stats *ret_stats);
/* By name; `lever` gets a made-up cost table. */
void embedded_pair_policy(lvr_policy *ret, const char *name);

#endif
