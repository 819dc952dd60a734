#include "tests/slow/embedded_pair.h"

#include <criterion/criterion.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void embedded_pair_open(struct embedded_pair *p)
{
    char path[512];
    lvr_error err = LVR_ERROR_INIT;
    const char *root = getenv("LVR_SOURCE_ROOT");
    cr_assert(root, "LVR_SOURCE_ROOT must name the source tree");
    *p = (struct embedded_pair){.cache = "/tmp/lvr-slow-XXXXXX"};
    cr_assert(mkdtemp(p->cache));
    setenv("LVR_CACHE_DIR", p->cache, 1);
    snprintf(p->target, sizeof p->target, "%s/models/lever-target-10m-q8_0.gguf", root);
    snprintf(p->draft, sizeof p->draft, "%s/models/lever-draft-1m-q8_0.gguf", root);
    snprintf(path, sizeof path, "%s/models/prompts/prompts.yaml", root);
    cr_assert_eq(lvr_prompts_load(path, NULL, NULL, &p->prompts, &err), LVR_OK, "%s", err.msg);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st, (void)type, (void)at;
    return remove(path);
}

void embedded_pair_close(struct embedded_pair *p)
{
    lvr_prompts_free(&p->prompts);
    nftw(p->cache, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

void embedded_pair_config(const struct embedded_pair *p, const lvr_policy *policy, lvr_session_config *c)
{
    lvr_session_config_init(c);
    c->target_path = p->target;
    c->draft_path = p->draft;
    c->policy = policy;
    c->threads = 2;
    c->ignore_eos = true;
}

int32_t *embedded_pair_generate(lvr_session *s, const lvr_prompt *prompt, uint32_t n_predict, uint32_t *ret_n,
                                lvr_run_stats *ret_stats)
{
    int32_t *tokens = NULL, *out = NULL;
    uint32_t n = 0;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_tokenize(lvr_session_tokenizer(s), prompt->text, prompt->n, true, &tokens, &n, &err),
                 LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_session_generate(s, prompt->id, 0, tokens, n, n_predict, NULL, NULL, &out, ret_n,
                                      ret_stats, &err),
                 LVR_OK, "%s", err.msg);
    free(tokens);
    return out;
}

void embedded_pair_policy(lvr_policy *ret, const char *name)
{
    static const double ns[LVR_OP_COUNT] = {300e3, 200e3, 300e3, 5e3, 5e3, 5e3};
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_policy_init(ret, name, &err), LVR_OK, "%s", err.msg);
    if (!ret->ops->needs_cost)
        return;
    ret->has_cost = true;
    for (int op = 0; op < LVR_OP_COUNT; op++)
        ret->cost.op[op].curve = (lvr_curve){.n = 2, .rows = {1, 16}, .ns = {ns[op], 3 * ns[op]}};
    ret->cost.flash = (lvr_flash_params){
        .t0_ns = 100000, .lane_bytes_per_s = 50000000, .max_bytes_per_s = 100000000, .depth = 4};
    cr_assert_eq(lvr_policy_set(ret, "test", "lambda", "50", &err), LVR_OK, "%s", err.msg);
}
