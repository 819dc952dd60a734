#include "tests/unit/decode_rig.h"

#include "common/rng.h"
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

void decode_pair_make(struct decode_pair *p, const struct gguf_tiny *spec, lvr_wtype draft_type)
{
    struct gguf_tiny target =
        spec ? *spec : (struct gguf_tiny){.type = LVR_F32, .n_layers = 4, .seed = 11, .scale = 4};
    struct gguf_tiny draft = target;
    draft.type = draft_type;
    model_file_make(&p->draft, &draft);
    model_file_make(&p->target, &target);
}

void decode_pair_remove(const struct decode_pair *p)
{
    model_file_remove(&p->draft);
    model_file_remove(&p->target);
}

static void set(lvr_policy *p, const char *key, const char *value)
{
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_policy_set(p, "test", key, value, &err), LVR_OK, "%s", err.msg);
}

/* Reading dominates, so that the policy grows wide and deep trees. */
static void make_up_cost(lvr_policy *p)
{
    static const double ns[LVR_OP_COUNT] = {20e3, 50e3, 10e3, 1e3, 1e3, 1e3};
    p->has_cost = true;
    for (int op = 0; op < LVR_OP_COUNT; op++)
        p->cost.op[op].curve = (lvr_curve){.n = 2, .rows = {1, 16}, .ns = {ns[op], 2 * ns[op]}};
    p->cost.flash = (lvr_flash_params){
        .t0_ns = 100000, .lane_bytes_per_s = 10000000, .max_bytes_per_s = 20000000, .depth = 4};
    set(p, "min_path", "0.001");
}

void decode_policy(lvr_policy *ret, const char *name)
{
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_policy_init(ret, name, &err), LVR_OK, "%s", err.msg);
    if (strcmp(name, "chain") == 0)
        set(ret, "k", "6");
    if (strcmp(name, "lever") == 0) {
        set(ret, "lambda", "100");
        set(ret, "branch", "6"); /* within what the tests' oracles record */
        set(ret, "max_nodes", "48");
    }
    if (ret->ops->needs_cost)
        make_up_cost(ret);
}

void decode_config(lvr_session_config *c, const struct decode_pair *p, const lvr_policy *policy)
{
    lvr_session_config_init(c);
    c->target_path = p->target.path;
    c->draft_path = p->draft.path;
    c->policy = policy;
    c->slice_bytes = 8192;
    c->n_ctx = 200;
    c->cpu_level = LVR_CPU_C;
    c->prefill_chunk = 7;
}

lvr_session *decode_open(const lvr_session_config *c)
{
    lvr_session *s = NULL;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_session_new(c, &s, &err), LVR_OK, "%s", err.msg);
    return s;
}

uint32_t decode_prompt(uint32_t i, int32_t *ret, uint32_t cap)
{
    lvr_rng rng;
    lvr_rng_init(&rng, i, "decode prompt");
    const uint32_t n = 1 + (uint32_t)lvr_rng_below(&rng, cap < 40 ? cap : 40);
    for (uint32_t t = 0; t < n; t++)
        ret[t] = (int32_t)lvr_rng_below(&rng, 300);
    return n;
}

static bool keep(void *user, int32_t token)
{
    struct decode_output *out = user;
    cr_assert(out->n < DECODE_MAX_TOKENS);
    out->tokens[out->n++] = token;
    return true;
}

void decode_generate(lvr_session *s, uint64_t request, uint32_t n_predict, struct decode_output *ret)
{
    int32_t prompt[64], *tokens = NULL;
    uint32_t n = 0;
    lvr_error err = LVR_ERROR_INIT;
    const uint32_t n_prompt = decode_prompt((uint32_t)request, prompt, 64);
    *ret = (struct decode_output){0};
    cr_assert_eq(lvr_session_generate(s, request, 0, prompt, n_prompt, n_predict, keep, ret, &tokens, &n,
                                      &ret->stats, &err),
                 LVR_OK, "%s", err.msg);
    cr_assert_eq(n, ret->n, "the callback is called once a token");
    cr_assert_arr_eq(tokens, ret->tokens, n * sizeof tokens[0]);
    free(tokens);
}

void decode_once(const lvr_session_config *c, uint64_t request, uint32_t n_predict, struct decode_output *ret)
{
    lvr_session *s = decode_open(c);
    decode_generate(s, request, n_predict, ret);
    lvr_session_free(s);
}

void decode_same(const struct decode_output *a, const struct decode_output *b, const char *what)
{
    cr_assert_eq(a->n, b->n, "%s: %u and %u tokens", what, a->n, b->n);
    for (uint32_t i = 0; i < a->n; i++)
        cr_assert_eq(a->tokens[i], b->tokens[i], "%s: token %u of %u is %d and %d", what, i, a->n,
                     a->tokens[i], b->tokens[i]);
}
