#include "costmodel/core/policy.h"

#include "costmodel/core/policy/builtin.h"

#include <stdlib.h>
#include <string.h>

const lvr_policy_ops *const lvr_policies[] = {
    &lvr_policy_ar,
    &lvr_policy_chain,
    &lvr_policy_lever,
    &lvr_policy_random,
};
const size_t lvr_n_policies = sizeof lvr_policies / sizeof lvr_policies[0];

lvr_status lvr_policy_init(lvr_policy *ret, const char *name, lvr_error *err)
{
    const char *names[sizeof lvr_policies / sizeof lvr_policies[0]];
    for (size_t i = 0; i < lvr_n_policies; i++) {
        const lvr_policy_ops *ops = lvr_policies[i];
        names[i] = ops->name;
        if (strcmp(ops->name, name) != 0)
            continue;
        memset(ret, 0, sizeof *ret);
        ret->ops = ops;
        lvr_params_default(ops->params, ops->n_params, ret->params.bytes);
        return LVR_OK;
    }
    const char *near = lvr_closest_name(name, names, lvr_n_policies);
    return lvr_fail(err, LVR_ERR_USAGE, "unknown policy \"%s\"%s%s%s; known: ar, chain, lever, random", name,
                    near ? " (did you mean \"" : "", near ? near : "", near ? "\"?)" : "");
}

lvr_status lvr_policy_set(lvr_policy *policy, const char *where, const char *key, const char *value,
                          lvr_error *err)
{
    return lvr_params_set(policy->ops->params, policy->ops->n_params, policy->params.bytes, where, key, value,
                          err);
}

lvr_policy_scratch *lvr_policy_scratch_new(void)
{
    return calloc(1, sizeof(lvr_policy_scratch));
}

void lvr_policy_scratch_free(lvr_policy_scratch *scratch)
{
    free(scratch);
}
