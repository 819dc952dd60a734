#include "cli/unused_options.h"

#include "common/log.h"

static void warn_each(const lvr_command_line *line, const char *const *names, size_t n, const char *why)
{
    for (size_t i = 0; i < n; i++)
        if (lvr_command_line_has(line, names[i]))
            lvr_log(LVR_LOG_WARN, "--%s has no effect: %s", names[i], why);
}

#define WARN_EACH(line, names, why) warn_each(line, names, sizeof(names) / sizeof *(names), why)

static void warn_oracle(const lvr_command_line *line)
{
    static const char *const timed[] = {
        "policy", "set",          "cost",     "emulate-flash",   "dram-budget", "resident",
        "ring",   "flash-engine", "buffered", "resident-layers", "place",       "io",
        "slice",  "depth",        "verify",   "place-draft",     "head"};
    WARN_EACH(line, timed, "an oracle recording runs no policy and streams nothing");
}

void lvr_warn_unused_options(const lvr_session_setup *setup)
{
    static const char *const sampling[] = {"top-k", "top-p"}, *const draft[] = {"draft"},
                             *const cost[] = {"cost"}, *const place[] = {"place", "place-draft"};
    const lvr_session_config *c = &setup->config;
    const lvr_policy_ops *policy = c->policy->ops;
    const lvr_command_line *line = &setup->line;
    if (c->sampling.temperature == 0)
        WARN_EACH(line, sampling, "decoding is greedy; sample with --temperature");
    if (lvr_command_line_has(line, "oracle")) { /* of lever record */
        warn_oracle(line);
        return;
    }
    if (!policy->uses_draft)
        WARN_EACH(line, draft,
                  "the policy does not draft, so the draft is not loaded; choose another --policy");
    if (!policy->needs_cost && !c->accel)
        WARN_EACH(line, cost, "the policy prices nothing; only the share of reading is computed with it");
    if (!c->accel && c->place != LVR_PLACE_NPU)
        WARN_EACH(line, place, "there is no accelerator to choose from; name one with --accel");
}

void lvr_warn_unused_streaming(const lvr_session_setup *setup, const lvr_session *session)
{
    static const char *const streaming[] = {"io",           "ring",     "slice",           "depth",
                                            "flash-engine", "buffered", "resident-layers", "verify"};
    if (lvr_geometry_stream_bytes(lvr_session_geometry(session)) == 0)
        WARN_EACH(
            &setup->line, streaming,
            "all layers are resident, so nothing is streamed; keep fewer with --resident or --dram-budget");
}
