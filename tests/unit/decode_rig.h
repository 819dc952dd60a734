/* Sessions over tiny random models, for tests of the host loop. Failures fail the running Criterion test. */
#ifndef LVR_TESTS_DECODE_RIG_H
#define LVR_TESTS_DECODE_RIG_H

#include "engine/decode.h"
#include "tests/unit/forward_rig.h"

#define DECODE_MAX_TOKENS 256u

/* A target and a draft that often agree: the same random weights, the draft's in fewer bits. */
struct decode_pair {
    struct model_file target, draft;
};
/* spec->type is the target's; NULL: defaults, F32. */
void decode_pair_make(struct decode_pair *p, const struct gguf_tiny *spec, lvr_wtype draft_type);
void decode_pair_remove(const struct decode_pair *p);

/* A policy by name with some settings that make it draft a lot; `lever` gets a made-up cost table. */
void decode_policy(lvr_policy *ret, const char *name);
/* Defaults for tests: small slices, one thread, C level. The policy must outlive the call that opens. */
void decode_config(lvr_session_config *c, const struct decode_pair *p, const lvr_policy *policy);
lvr_session *decode_open(const lvr_session_config *c);

struct decode_output {
    int32_t tokens[DECODE_MAX_TOKENS];
    uint32_t n;
    lvr_run_stats stats;
};
/* Prompt number i of a fixed endless list. Returns its length. */
uint32_t decode_prompt(uint32_t i, int32_t *ret, uint32_t cap);
void decode_generate(lvr_session *s, uint64_t request, uint32_t n_predict, struct decode_output *ret);
/* A fresh session, one request. */
void decode_once(const lvr_session_config *c, uint64_t request, uint32_t n_predict,
                 struct decode_output *ret);
/* Fails unless both are the same tokens; `what` says which runs. */
void decode_same(const struct decode_output *a, const struct decode_output *b, const char *what);

#endif
