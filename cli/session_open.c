/* Sessions and prompts of resolved options (session_options.h). */
#include "cli/session_options.h"

#include "cli/cli.h"
#include "cli/prompt_source.h"
#include "cli/unused_options.h"
#include "common/log.h"
#include "engine/tokenizer/chat.h"
#include <string.h>

/* ---- identities ---- */

static lvr_status check_identity(lvr_session_setup *s, const lvr_session_options *o, const char *file,
                                 const char *what, const char *expected, const char *found, lvr_error *err)
{
    if (!expected[0] || strcmp(expected, found) == 0)
        return LVR_OK;
    if (!o->what_if)
        return lvr_fail(err, LVR_ERR_CONFIG,
                        "%s was made for another %s: expected sha256 %.12s..., found %.12s...; use the one "
                        "it was made for, or "
                        "add --what-if to try (the result is marked)",
                        file, what, expected, found[0] ? found : "none");
    lvr_log(LVR_LOG_WARN, "--what-if: %s was made for another %s (sha256 %.12s..., here %.12s...)", file,
            what, expected, found[0] ? found : "none");
    s->what_if = true;
    return LVR_OK;
}

static lvr_status check_identities(lvr_session_setup *s, const lvr_session_options *o,
                                   const lvr_session *session, lvr_error *err)
{
    lvr_policy_file here;
    lvr_session_describe(session, 0, &here);
    const struct {
        const char *file, *what, *expected, *found;
    } checks[] = {
        {o->policy, "target model", s->file.target_sha256, here.target_sha256},
        {o->policy, "draft model", s->file.draft_sha256, here.draft_sha256},
        {o->policy, "device", s->file.device_sha256, here.device_sha256},
        {o->cost, "target model", s->cost_target_sha256, here.target_sha256},
        {o->cost, "draft model", here.draft_sha256[0] ? s->cost_draft_sha256 : "", here.draft_sha256},
    };
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++) {
        const lvr_status status =
            check_identity(s, o, checks[i].file, checks[i].what, checks[i].expected, checks[i].found, err);
        if (status != LVR_OK)
            return status;
    }
    return LVR_OK;
}

lvr_status lvr_session_setup_open(lvr_session_setup *setup, const lvr_session_options *o, lvr_session **ret,
                                  lvr_error *err)
{
    lvr_session *session = NULL;
    lvr_status status = lvr_session_new(&setup->config, &session, err);
    if (status != LVR_OK)
        return status;
    status = check_identities(setup, o, session, err);
    if (status != LVR_OK) {
        lvr_session_free(session);
        return status;
    }
    lvr_warn_unused_streaming(setup, session);
    *ret = session;
    return LVR_OK;
}

/* ---- inputs ---- */

void lvr_session_options_inputs(const lvr_session_options *o, const char *ret[LVR_SESSION_INPUTS])
{
    const char *const inputs[LVR_SESSION_INPUTS] = {
        o->target,
        o->draft,
        o->cost,
        o->policy && lvr_policy_is_file(o->policy) ? o->policy : NULL,
        o->emulate_flash,
        o->prompts,
        o->file || o->prompt || o->prompts ? o->file : "-",
    };
    memcpy(ret, inputs, sizeof inputs);
}

/* ---- prompts ---- */

lvr_status lvr_session_options_prompts(const lvr_session_options *o, lvr_prompts *ret, lvr_error *err)
{
    const lvr_prompt_source source = {.prompt = o->prompt,
                                      .file = o->file,
                                      .prompts = o->prompts,
                                      .split = o->split,
                                      .domain = o->domain,
                                      .escape = o->escape};
    return lvr_prompt_source_load(&source, &lvr_cli_cancel, ret, err);
}

lvr_status lvr_session_options_tokenize(const lvr_session_options *o, const lvr_tokenizer *t,
                                        const lvr_prompt *prompt, int32_t **ret_tokens, uint32_t *ret_n,
                                        lvr_error *err)
{
    lvr_chat_message messages[2];
    size_t n = 0;
    if (!o->chat)
        return lvr_tokenize(t, prompt->text, prompt->n, true, ret_tokens, ret_n, err);
    if (o->system)
        messages[n++] =
            (lvr_chat_message){.role = LVR_CHAT_SYSTEM, .text = o->system, .n = strlen(o->system)};
    messages[n++] = (lvr_chat_message){.role = LVR_CHAT_USER, .text = prompt->text, .n = prompt->n};
    return lvr_chat_tokenize(t, messages, n, ret_tokens, ret_n, err);
}
