#include "costmodel/core/policy.h"

#include "costmodel/core/policy/builtin.h"
#include "policy_list.h" /* made by meson.build */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DECLARE(name) extern const lvr_policy_ops lvr_policy_##name;
#define ROW(name) &lvr_policy_##name,

LVR_POLICY_LIST(DECLARE)
const lvr_policy_ops *const lvr_policies[] = {LVR_POLICY_LIST(ROW)};
const size_t lvr_n_policies = sizeof lvr_policies / sizeof lvr_policies[0];

static void list_names(char *ret, size_t size)
{
    size_t at = 0;
    for (size_t i = 0; i < lvr_n_policies && at < size; i++)
        at += (size_t)snprintf(ret + at, size - at, "%s%s", i ? ", " : "", lvr_policies[i]->name);
}

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
        lvr_params_default(lvr_adapt_params, LVR_ADAPT_PARAMS, &ret->adapt);
        return LVR_OK;
    }
    const char *near = lvr_closest_name(name, names, lvr_n_policies);
    char known[256];
    list_names(known, sizeof known);
    return lvr_fail(err, LVR_ERR_USAGE, "unknown policy \"%s\"%s%s%s; known: %s", name,
                    near ? " (did you mean \"" : "", near ? near : "", near ? "\"?)" : "", known);
}

static bool is_adapt_param(const char *key)
{
    for (size_t i = 0; i < LVR_ADAPT_PARAMS; i++)
        if (strcmp(lvr_adapt_params[i].name, key) == 0)
            return true;
    return false;
}

lvr_status lvr_policy_set(lvr_policy *policy, const char *where, const char *key, const char *value,
                          lvr_error *err)
{
    if (is_adapt_param(key) && !policy->ops->calibrated)
        return lvr_fail(
            err, LVR_ERR_CONFIG,
            "%s: %s: policy %s does not rank by the calibration, so that there is nothing to adapt", where,
            key, policy->ops->name);
    if (is_adapt_param(key))
        return lvr_params_set(lvr_adapt_params, LVR_ADAPT_PARAMS, &policy->adapt, where, key, value, err);
    return lvr_params_set(policy->ops->params, policy->ops->n_params, policy->params.bytes, where, key, value,
                          err);
}

static size_t key_bytes(const char *item)
{
    return strcspn(item, "=");
}

static lvr_status set_item(lvr_policy *policy, const char *item, lvr_error *err)
{
    char key[64];
    const size_t n = key_bytes(item);
    if (item[n] != '=' || n == 0 || n >= sizeof key)
        return lvr_fail(err, LVR_ERR_USAGE, "--set: expected key=value, found \"%.64s\"", item);
    memcpy(key, item, n);
    key[n] = '\0';
    return lvr_policy_set(policy, "--set", key, item + n + 1, err);
}

lvr_status lvr_policy_set_items(lvr_policy *policy, const char *const *items, size_t n, lvr_error *err)
{
    for (size_t i = 0; i < n; i++) {
        const lvr_status status = set_item(policy, items[i], err);
        if (status != LVR_OK)
            return status;
        const size_t len = key_bytes(items[i]);
        for (size_t k = 0; k < i; k++)
            if (key_bytes(items[k]) == len && memcmp(items[k], items[i], len) == 0)
                return lvr_fail(err, LVR_ERR_USAGE,
                                "--set: %.*s is given twice (%.64s and %.64s); give it once", (int)len,
                                items[i], items[k], items[i]);
    }
    return LVR_OK;
}

bool lvr_policy_prunes(const lvr_policy *policy, uint32_t n_layers)
{
    for (uint32_t l = 0; policy->ops->scores && l + 1 < n_layers; l++)
        if (policy->ops->scores(policy, l, n_layers))
            return true;
    return false;
}

lvr_policy_scratch *lvr_policy_scratch_new(void)
{
    return calloc(1, sizeof(lvr_policy_scratch));
}

void lvr_policy_scratch_free(lvr_policy_scratch *scratch)
{
    free(scratch);
}
