#include "tests/unit/policy_rig.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

void policy_rig_init(lvr_policy *ret, const char *name)
{
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_policy_init(ret, name, &err), LVR_OK, "%s", err.msg);
}

void policy_rig_set(lvr_policy *p, const char *key, const char *value)
{
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_policy_set(p, "test", key, value, &err), LVR_OK, "%s", err.msg);
}

/* The node's ranks from the root. */
static void path_of(const lvr_tree *tree, uint32_t node, char *ret, size_t size)
{
    uint32_t ranks[LVR_MAX_DEPTH + 1], n = 0;
    for (uint32_t v = node; v > 0; v = (uint32_t)tree->nodes[v].parent)
        ranks[n++] = tree->nodes[v].rank;
    size_t at = 0;
    ret[0] = '\0';
    while (n > 0 && at + 2 < size)
        at += (size_t)snprintf(ret + at, size - at, "%x", ranks[--n]);
}

static void write_node(char *text, size_t size, const lvr_tree *tree, uint32_t node, const char *before)
{
    char path[LVR_MAX_DEPTH + 2];
    path_of(tree, node, path, sizeof path);
    const size_t at = strlen(text);
    snprintf(text + at, size - at, "%s%s", before, node == 0 ? "." : path);
}

uint32_t policy_rig_table(const void *user, const lvr_tree *tree, uint32_t node, uint32_t branch,
                          lvr_candidate *ret)
{
    char path[LVR_MAX_DEPTH + 2];
    path_of(tree, node, path, sizeof path);
    for (const struct policy_rig_line *l = user; l->path; l++) {
        if (strcmp(l->path, path) != 0)
            continue;
        uint32_t n = 0;
        for (; n < branch && l->p[n] > 0; n++)
            ret[n] = (lvr_candidate){.token = (int32_t)n, .p_draft = l->p[n]};
        return n;
    }
    return 0;
}

static void check_expansion(const char *name, const lvr_policy_view *v, const uint32_t *nodes, uint32_t n,
                            uint32_t cap)
{
    cr_assert_leq(n, cap, "%s expands %u nodes, at most %u", name, n, cap);
    for (uint32_t i = 0; i < n; i++) {
        cr_assert_lt(nodes[i], v->tree->n, "%s expands node %u of %u", name, nodes[i], v->tree->n);
        const lvr_node *node = &v->tree->nodes[nodes[i]];
        cr_assert(!node->expanded, "%s expands node %u again", name, nodes[i]);
        cr_assert_lt(node->depth, v->max_depth, "%s expands at depth %u of %u", name, node->depth,
                     v->max_depth);
        cr_assert(node->parent < 0 || v->tree->nodes[node->parent].expanded);
        for (uint32_t k = 0; k < i; k++)
            cr_assert_neq(nodes[k], nodes[i], "%s expands node %u twice in a step", name, nodes[i]);
    }
}

static void check_selection(const char *name, const lvr_policy_view *v, const uint32_t *nodes, uint32_t n)
{
    bool chosen[LVR_MAX_TREE_NODES] = {0};
    cr_assert(n >= 1 && n <= v->max_rows && nodes[0] == 0, "%s verifies %u rows of %u", name, n, v->max_rows);
    for (uint32_t i = 0; i < n; i++) {
        cr_assert_lt(nodes[i], v->tree->n);
        cr_assert(i == 0 || nodes[i] > nodes[i - 1], "%s: rows must ascend", name);
        const lvr_node *node = &v->tree->nodes[nodes[i]];
        cr_assert_leq(node->depth, v->max_depth, "%s verifies at depth %u of %u", name, node->depth,
                      v->max_depth);
        cr_assert(i == 0 || chosen[node->parent], "%s verifies node %u without its parent", name, nodes[i]);
        chosen[nodes[i]] = true;
    }
}

static void expand(lvr_tree *tree, uint32_t node, uint32_t branch, policy_rig_draft draft, const void *user)
{
    lvr_candidate children[LVR_MAX_BRANCH];
    lvr_error err = LVR_ERROR_INIT;
    const uint32_t n = draft(user, tree, node, branch, children);
    cr_assert_leq(n, branch);
    cr_assert_eq(lvr_tree_expand(tree, node, children, n, &err), LVR_OK, "%s", err.msg);
}

void policy_rig_run(const lvr_policy *policy, const lvr_policy_view *view, policy_rig_draft draft,
                    const void *user, struct policy_rig_log *ret)
{
    const lvr_policy_ops *ops = policy->ops;
    const void *params = policy->params.bytes;
    uint32_t nodes[LVR_MAX_EXPANSIONS], n = 0;
    lvr_tree tree;
    lvr_policy_view v = *view;
    memset(ret, 0, sizeof *ret);
    cr_assert_eq(lvr_tree_init(&tree, LVR_MAX_TREE_NODES, NULL), LVR_OK);
    lvr_tree_reset(&tree, 0);
    v.tree = &tree;
    v.scratch = lvr_policy_scratch_new();
    const uint32_t branch = ops->branch(params);
    cr_assert(branch >= 1 && branch <= LVR_MAX_BRANCH);
    while (v.max_depth > 0 && ops->uses_draft) {
        const uint32_t cap = LVR_MAX_EXPANSIONS - ret->n_drafted;
        n = ops->expand(params, &v, nodes, cap);
        check_expansion(ops->name, &v, nodes, n, cap);
        if (n == 0)
            break;
        for (uint32_t i = 0; i < n; i++) {
            write_node(ret->drafted, sizeof ret->drafted, &tree, nodes[i],
                       i > 0              ? " "
                       : ret->n_steps > 0 ? " | "
                                          : "");
            expand(&tree, nodes[i], branch, draft, user);
        }
        ret->n_drafted += n;
        ret->n_steps = ++v.n_steps;
        v.draft_ns += v.cost ? lvr_op_cost_ns(&v.cost->op[LVR_OP_DRAFT], n, v.context) : 0.0;
    }
    ret->n_rows = ops->select(params, &v, nodes, v.max_rows);
    check_selection(ops->name, &v, nodes, ret->n_rows);
    for (uint32_t i = 0; i < ret->n_rows; i++)
        write_node(ret->verified, sizeof ret->verified, &tree, nodes[i], i > 0 ? " " : "");
    lvr_policy_scratch_free(v.scratch);
    lvr_tree_free(&tree);
}
