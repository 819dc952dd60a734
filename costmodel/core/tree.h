/*
 * The token tree: what the draft proposes after the last committed token. Node 0 is the root (that token);
 * parents come before children. Draft-side data only: the target's outcomes live elsewhere (round.c) and a
 * policy cannot name them (the oracle boundary).
 */
#ifndef LVR_CORE_TREE_H
#define LVR_CORE_TREE_H

#include "common/error.h"
#include <stdbool.h>
#include <stdint.h>

#define LVR_MAX_VERIFY_NODES 256u  /* rows of one verification pass, the root included */
#define LVR_MAX_PREFILL_ROWS 4096u /* rows of one prompt pass: a chain of committed tokens, no tree */
#define LVR_MAX_EXPANSIONS 256u    /* nodes of one round whose children the draft has computed */
#define LVR_MAX_BRANCH 16u         /* children kept per expanded node */
#define LVR_MAX_TREE_NODES (1u + LVR_MAX_EXPANSIONS * LVR_MAX_BRANCH)
#define LVR_MAX_DEPTH 64u
/* Of an oracle recording's tree, which answers for the trees of every policy. */
#define LVR_MAX_RECORDED_EXPANSIONS 640u
#define LVR_MAX_RECORDED_NODES (1u + LVR_MAX_RECORDED_EXPANSIONS * LVR_MAX_BRANCH)

typedef struct lvr_node {
    int32_t parent; /* -1 for the root */
    int32_t token;
    uint16_t depth; /* root: 0 */
    uint16_t rank;  /* among its siblings by draft probability, 0 is the best */
    float p_draft;  /* P_draft(token | path), 1 for the root */
    bool expanded;  /* its children are known (the draft ran this token) */
} lvr_node;

typedef struct lvr_tree {
    lvr_node *nodes;
    uint32_t n, cap;
} lvr_tree;

/* One child proposed by the draft, best first; ties are ordered by token id. */
typedef struct lvr_candidate {
    int32_t token;
    float p_draft;
} lvr_candidate;

lvr_status lvr_tree_init(lvr_tree *tree, uint32_t cap, lvr_error *err);
void lvr_tree_free(lvr_tree *tree);
void lvr_tree_reset(lvr_tree *tree, int32_t root_token);
/* Marks `parent` expanded and appends its children. LVR_ERR_INVARIANT if it does not fit or parent is no
 * node. */
lvr_status lvr_tree_expand(lvr_tree *tree, uint32_t parent, const lvr_candidate *children, uint32_t n,
                           lvr_error *err);
/* The child of `node` with this token, or -1. O(n). */
int32_t lvr_tree_child(const lvr_tree *tree, uint32_t node, int32_t token);

#endif
