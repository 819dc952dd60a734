/* What recording writes: timing traces that agree with the run, and oracle traces that agree with what
 * policies met. */
#include "engine/oracle.h"
#include "tests/unit/decode_rig.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_REQUESTS 3u
#define N_PREDICT 20u

static lvr_trace *open_valid(const char *path)
{
    lvr_trace *t = NULL;
    lvr_error err = LVR_ERROR_INIT;
    lvr_buf findings = LVR_BUF_INIT;
    uint64_t n = 0;
    cr_assert_eq(lvr_trace_open(path, &t, &err), LVR_OK, "%s", err.msg);
    cr_assert(lvr_trace_get_meta(t)->complete);
    for (int i = 0; i < LVR_STREAM_COUNT; i++)
        cr_assert_eq(lvr_trace_get_meta(t)->dropped[i], 0);
    cr_assert_eq(lvr_trace_validate(t, &findings, &n, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(n, 0, "%s", findings.data);
    lvr_buf_free(&findings);
    return t;
}

static void *read_stream(lvr_trace *t, lvr_stream stream, uint64_t *ret_n)
{
    void *records = NULL;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_trace_read_all(t, stream, &records, ret_n, &err), LVR_OK, "%s", err.msg);
    return records;
}

/* A session that records to `path`. */
static lvr_session *open_recording(const lvr_session_config *c, const char *path, lvr_trace_writer **ret)
{
    lvr_trace_meta meta;
    lvr_error err = LVR_ERROR_INIT;
    lvr_session *s = decode_open(c);
    cr_assert_eq(lvr_session_trace_meta(s, N_PREDICT, &meta, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_trace_writer_open(path, &meta, true, ret, &err), LVR_OK, "%s", err.msg);
    free(meta.config_yaml);
    cr_assert_eq(lvr_session_set_trace(s, *ret, &err), LVR_OK, "%s", err.msg);
    return s;
}

/* Records N_REQUESTS under a policy; their outputs and the sum of their figures go to `out` and `sum`. */
static void record_timing(const lvr_session_config *c, const char *path, struct decode_output *out,
                          lvr_run_stats *sum)
{
    lvr_trace_writer *w = NULL;
    lvr_error err = LVR_ERROR_INIT;
    lvr_session *s = open_recording(c, path, &w);
    *sum = (lvr_run_stats){0};
    for (uint32_t r = 0; r < N_REQUESTS; r++) {
        decode_generate(s, r, N_PREDICT, &out[r]);
        lvr_run_stats_add(sum, &out[r].stats);
    }
    lvr_session_free(s);
    cr_assert_eq(lvr_trace_writer_close(w, true, &err), LVR_OK, "%s", err.msg);
}

static void check_rounds(lvr_trace *t, const lvr_run_stats *sum)
{
    uint64_t n = 0, n_nodes = 0, rounds = 0, verified = 0, accepted = 0, nodes_accepted = 0;
    uint64_t kept = 0, cut_short = 0;
    const uint32_t last_layer = lvr_trace_get_meta(t)->target.n_layers - 1;
    lvr_rec_round *rec = read_stream(t, LVR_STREAM_ROUNDS, &n);
    lvr_rec_round_node *nodes = read_stream(t, LVR_STREAM_ROUND_NODES, &n_nodes);
    for (uint64_t i = 0; i < n; i++) {
        cr_assert_leq(rec[i].t_draft0_ns, rec[i].t_draft1_ns);
        cr_assert_leq(rec[i].t_draft1_ns, rec[i].t_verify0_ns);
        cr_assert_leq(rec[i].t_verify0_ns, rec[i].t_verify1_ns);
        cr_assert_leq(rec[i].t_verify1_ns, rec[i].t_commit_ns);
        cr_assert_eq(rec[i].round, i, "passes are numbered without gaps");
        if (rec[i].prefill)
            continue;
        rounds++;
        verified += rec[i].n_nodes;
        kept += rec[i].n_kept;
        accepted += rec[i].n_accepted;
    }
    for (uint64_t i = 0; i < n_nodes; i++)
        nodes_accepted += nodes[i].accepted && nodes[i].node > 0;
    for (uint64_t i = 0; i < n_nodes; i++)
        cut_short += nodes[i].last_layer < last_layer;
    cr_assert_eq(rounds, sum->rounds);
    cr_assert_eq(verified, sum->verified_rows);
    cr_assert_eq(verified, n_nodes);
    cr_assert_eq(verified - kept, sum->pruned_rows);
    cr_assert_eq(cut_short, sum->pruned_rows, "dropped rows end before the last layer");
    cr_assert_eq(accepted, sum->accepted);
    cr_assert_eq(nodes_accepted, sum->accepted);
    free(rec);
    free(nodes);
}

/* One SCORE a layer that rows are scored after, with as many rows as the layer had. */
static void check_scores(lvr_trace *t, const lvr_run_stats *sum)
{
    uint64_t n = 0, n_scores = 0, ns = 0;
    lvr_rec_kernel *rec = read_stream(t, LVR_STREAM_KERNELS, &n);
    for (uint64_t i = 0; i < n; i++) {
        if (rec[i].op != LVR_OP_SCORE)
            continue;
        uint64_t layer = i;
        while (layer > 0 && rec[layer].op != LVR_OP_LAYER)
            layer--;
        cr_assert_eq(rec[i].layer, rec[layer].layer);
        cr_assert_eq(rec[i].rows, rec[layer].rows);
        cr_assert_geq(rec[i].t_start_ns, rec[layer].t_end_ns);
        ns += rec[i].t_end_ns - rec[i].t_start_ns;
        n_scores++;
    }
    cr_assert_eq(n_scores > 0, sum->pruned_rows > 0);
    cr_assert_eq(ns, sum->score_ns);
    free(rec);
}

static void check_flash(lvr_trace *t, const lvr_run_stats *sum)
{
    uint64_t n = 0, bytes = 0;
    lvr_rec_flash *rec = read_stream(t, LVR_STREAM_FLASH, &n);
    for (uint64_t i = 0; i < n; i++) {
        cr_assert_leq(rec[i].t_submit_ns, rec[i].t_start_ns);
        cr_assert_leq(rec[i].t_start_ns, rec[i].t_end_ns);
        bytes += rec[i].round == UINT64_MAX ? 0 : rec[i].bytes;
    }
    cr_assert_eq(bytes, sum->bytes_read, "flash rows of the passes are what the passes read");
    free(rec);
}

static void check_tokens(lvr_trace *t, const struct decode_output *out)
{
    uint64_t n = 0, seen[N_REQUESTS] = {0};
    lvr_rec_token *rec = read_stream(t, LVR_STREAM_TOKENS, &n);
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t r = rec[i].request;
        cr_assert_lt(r, N_REQUESTS);
        if (rec[i].is_output)
            cr_assert_eq(rec[i].token, out[r].tokens[seen[r]++]);
    }
    for (uint32_t r = 0; r < N_REQUESTS; r++)
        cr_assert_eq(seen[r], out[r].n);
    free(rec);
}

static void check_config(const lvr_trace *t, const lvr_policy *policy)
{
    lvr_policy_file file;
    lvr_error err = LVR_ERROR_INIT;
    const lvr_trace_meta *meta = lvr_trace_get_meta(t);
    cr_assert_eq(lvr_policy_file_parse("config", meta->config_yaml, strlen(meta->config_yaml), &file, &err),
                 LVR_OK, "%s", err.msg);
    cr_assert_str_eq(file.policy.ops->name, policy->ops->name);
    cr_assert_str_eq(file.target_sha256, meta->target.sha256);
    cr_assert_str_eq(file.device_sha256, meta->device.sha256);
    cr_assert_eq(file.conditions.n_predict, N_PREDICT);
    cr_assert_eq(strlen(meta->device.sha256), 64);
}

Test(decode_trace, timing_agrees_with_the_run, .timeout = 120)
{
    static const char *const names[] = {"ar", "chain", "lever", "random", "random"};
    static const char *const prunes[] = {NULL, NULL, NULL, "0", "0.3"};
    struct decode_pair pair;
    struct decode_output plain, out[N_REQUESTS];
    lvr_run_stats sum;
    lvr_policy policy;
    lvr_session_config c;
    char path[128];
    decode_pair_make(&pair, NULL, LVR_Q8_0);
    snprintf(path, sizeof path, "%s/timing.h5", pair.target.dir);
    for (size_t p = 0; p < sizeof names / sizeof names[0]; p++) {
        decode_policy(&policy, names[p]);
        if (prunes[p])
            cr_assert_eq(lvr_policy_set(&policy, "test", "prune", prunes[p], NULL), LVR_OK);
        decode_config(&c, &pair, &policy);
        c.resident_fraction = 0.5;
        c.io_mode = p % 2 ? LVR_IO_SERIAL : LVR_IO_PIPELINED;
        decode_once(&c, 0, N_PREDICT, &plain);
        record_timing(&c, path, out, &sum);
        decode_same(&plain, &out[0], "INV-TRACE: recording changes no token");
        lvr_trace *t = open_valid(path);
        check_rounds(t, &sum);
        check_scores(t, &sum);
        cr_assert_eq(sum.pruned_rows > 0, p == 4);
        check_flash(t, &sum);
        check_tokens(t, out);
        check_config(t, &policy);
        cr_assert_eq(lvr_trace_rows(t, LVR_STREAM_REQUESTS), N_REQUESTS);
        lvr_trace_close(t);
    }
    decode_pair_remove(&pair);
}

/* ---- a host that has enough in the middle of a round ---- */

static bool until(void *user, int32_t token)
{
    uint32_t *left = user;
    (void)token;
    return --*left > 0;
}

/* Records request 0, which the host ends after `at` tokens. */
static void record_stopped(const lvr_session_config *c, const char *path, uint32_t at)
{
    lvr_trace_writer *w = NULL;
    lvr_run_stats stats;
    lvr_error err = LVR_ERROR_INIT;
    int32_t prompt[64];
    uint32_t n = 0, left = at;
    lvr_session *s = open_recording(c, path, &w);
    const uint32_t n_prompt = decode_prompt(0, prompt, 64);
    cr_assert_eq(
        lvr_session_generate(s, 0, 0, prompt, n_prompt, N_PREDICT, until, &left, NULL, &n, &stats, &err),
        LVR_OK, "%s", err.msg);
    cr_assert(n == at && stats.n_tokens == at && stats.stop == LVR_STOP_HOST);
    lvr_session_free(s);
    cr_assert_eq(lvr_trace_writer_close(w, true, &err), LVR_OK, "%s", err.msg);
}

/* The request row counts the output tokens that are recorded: whole rounds. Returns how many. */
static uint32_t check_recorded(lvr_trace *t, const struct decode_output *whole)
{
    uint64_t n_requests = 0, n_tokens = 0;
    uint32_t n = 0;
    lvr_rec_request *request = read_stream(t, LVR_STREAM_REQUESTS, &n_requests);
    lvr_rec_token *tokens = read_stream(t, LVR_STREAM_TOKENS, &n_tokens);
    for (uint64_t i = 0; i < n_tokens; i++)
        if (tokens[i].is_output)
            cr_assert_eq(tokens[i].token, whole->tokens[n++]);
    cr_assert_eq(n_requests, 1);
    cr_assert_eq(request[0].n_output, n, "%u in the row, %u recorded", request[0].n_output, n);
    free(request);
    free(tokens);
    return n;
}

Test(decode_trace, a_request_that_the_host_ends_counts_what_is_recorded, .timeout = 120)
{
    struct decode_pair pair;
    struct decode_output whole;
    lvr_policy policy;
    lvr_session_config c;
    char path[128];
    uint32_t n_dropped = 0;
    decode_pair_make(&pair, NULL, LVR_Q8_0);
    snprintf(path, sizeof path, "%s/stopped.h5", pair.target.dir);
    decode_policy(&policy, "chain");
    decode_config(&c, &pair, &policy);
    decode_once(&c, 0, N_PREDICT, &whole);
    for (uint32_t at = 1; at < whole.n; at++) {
        record_stopped(&c, path, at);
        lvr_trace *t = open_valid(path);
        const uint32_t n = check_recorded(t, &whole);
        cr_assert_geq(n, at);
        n_dropped += n - at;
        lvr_trace_close(t);
    }
    cr_assert_gt(n_dropped, 0, "some stops are in the middle of a round");
    decode_pair_remove(&pair);
}

/* ---- oracle ---- */

static void record_oracle(const lvr_session_config *c, const char *path, struct decode_output *out)
{
    lvr_oracle_caps caps;
    lvr_oracle *o = NULL;
    lvr_trace_meta meta;
    lvr_trace_writer *w = NULL;
    lvr_trace_lane *lane = NULL;
    lvr_error err = LVR_ERROR_INIT;
    lvr_oracle_caps_default(&caps);
    caps.min_path = 0;
    caps.expansions = 160; /* more are never looked at by such small trees */
    caps.branch = 6;
    caps.expansions = 100;
    cr_assert_eq(lvr_oracle_new(c, &caps, &o, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_oracle_trace_meta(o, N_PREDICT, &meta, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_trace_writer_open(path, &meta, true, &w, &err), LVR_OK, "%s", err.msg);
    free(meta.config_yaml);
    cr_assert_eq(lvr_trace_lane_new(w, 1024, &lane, &err), LVR_OK, "%s", err.msg);
    for (uint32_t r = 0; r < N_REQUESTS; r++) {
        int32_t prompt[64], *tokens = NULL;
        const uint32_t n = decode_prompt(r, prompt, 64);
        cr_assert_eq(lvr_oracle_record(o, lane, r, 0, prompt, n, N_PREDICT, &tokens, &out[r].n, &err), LVR_OK,
                     "%s", err.msg);
        memcpy(out[r].tokens, tokens, out[r].n * sizeof tokens[0]);
        free(tokens);
    }
    lvr_oracle_free(o);
    cr_assert_eq(lvr_trace_writer_close(w, true, &err), LVR_OK, "%s", err.msg);
}

typedef struct forest {
    lvr_rec_tree *rows;
    uint64_t n;
} forest;

/* First row of the tree at (request, pos), or n. */
static uint64_t find_tree(const forest *f, uint64_t request, uint32_t pos)
{
    uint64_t i = 0;
    while (i < f->n && (f->rows[i].request != request || f->rows[i].pos != pos))
        i++;
    return i;
}

static const lvr_rec_tree *find_child(const forest *f, uint64_t tree, uint32_t parent, int32_t token)
{
    for (uint64_t i = tree;
         i < f->n && f->rows[i].pos == f->rows[tree].pos && f->rows[i].request == f->rows[tree].request; i++)
        if (f->rows[i].parent == (int32_t)parent && f->rows[i].token == token)
            return &f->rows[i];
    return NULL;
}

/* Every node that a policy's round verified is in the oracle's tree of that position, with the same bits;
 * accepted ones are on its path. */
static void check_round_nodes(const forest *f, lvr_trace *timing)
{
    uint64_t n_nodes = 0, n_rounds = 0;
    lvr_rec_round_node *nodes = read_stream(timing, LVR_STREAM_ROUND_NODES, &n_nodes);
    lvr_rec_round *rounds = read_stream(timing, LVR_STREAM_ROUNDS, &n_rounds);
    uint32_t map[LVR_MAX_VERIFY_NODES];
    uint64_t tree = 0;
    for (uint64_t i = 0; i < n_nodes; i++) {
        const lvr_rec_round_node *node = &nodes[i];
        cr_assert_lt(node->round, n_rounds);
        if (node->node == 0) {
            tree = find_tree(f, node->request, rounds[node->round].pos);
            cr_assert_lt(tree, f->n, "a tree at every output position");
            cr_assert_eq(f->rows[tree].token, node->token);
            map[0] = 0;
            continue;
        }
        const lvr_rec_tree *match = find_child(f, tree, map[node->parent], node->token);
        cr_assert(match, "round %llu, node %u is not in the oracle", (unsigned long long)node->round,
                  node->node);
        cr_assert_eq(memcmp(&match->p_draft, &node->p_draft, sizeof(float)), 0, "%.9g and %.9g",
                     (double)match->p_draft, (double)node->p_draft);
        cr_assert(!node->accepted || match->on_path);
        map[node->node] = match->node;
    }
    free(nodes);
    free(rounds);
}

static void check_forest(const forest *f, const struct decode_output *out)
{
    uint64_t n_trees = 0, n_run = 0;
    for (uint64_t i = 0; i < f->n; i++) {
        const lvr_rec_tree *row = &f->rows[i];
        n_trees += row->node == 0;
        n_run += row->target_token >= 0;
        cr_assert(row->target_token >= 0 || isnan(row->p_target));
        cr_assert(!row->expanded || row->target_token >= 0, "expanded nodes are run through the target");
        cr_assert(row->target_token < 0 || (row->p_target > 0 && row->p_target <= 1));
    }
    uint64_t tokens = 0;
    for (uint32_t r = 0; r < N_REQUESTS; r++)
        tokens += out[r].n;
    cr_assert_eq(n_trees, tokens, "one tree an output position");
    cr_assert_gt(n_run, n_trees);
}

/* No more children than record_oracle keeps, and no more nodes than it expands. */
static void within_caps(lvr_policy *policy)
{
    for (size_t i = 0; i < policy->ops->n_params; i++) {
        const lvr_param *p = &policy->ops->params[i];
        if (strcmp(p->name, "branch") == 0)
            lvr_param_set_number(p, policy->params.bytes, 6);
        if (strcmp(p->name, "min_path") == 0)
            lvr_param_set_number(p, policy->params.bytes, 0.01);
    }
}

static void check_oracle(const lvr_sampling *sampling)
{
    static const char *const names[] = {
        "chain",    "sequoia", "eagle2",  "opttree",
        "specexec", "smart",   "edgellm", "lever"}; /* random expands what is improbable: outside any caps */
    struct decode_pair pair;
    struct decode_output out[N_REQUESTS], from_oracle[N_REQUESTS];
    lvr_run_stats sum;
    lvr_policy policy;
    lvr_session_config c;
    char path[128], timing[128];
    decode_pair_make(&pair, NULL, LVR_Q8_0);
    snprintf(path, sizeof path, "%s/oracle.h5", pair.target.dir);
    snprintf(timing, sizeof timing, "%s/timing.h5", pair.target.dir);
    decode_policy(&policy, "chain");
    decode_config(&c, &pair, &policy);
    c.sampling = *sampling;
    c.threads = 2;
    c.cpu_level = lvr_cpu_best();
    record_oracle(&c, path, from_oracle);
    lvr_trace *t = open_valid(path);
    forest f = {0};
    f.rows = read_stream(t, LVR_STREAM_TREES, &f.n);
    check_tokens(t, from_oracle);
    check_forest(&f, from_oracle);
    for (size_t p = 0; p < sizeof names / sizeof names[0]; p++) {
        decode_policy(&policy, names[p]);
        within_caps(&policy);
        decode_config(&c, &pair, &policy);
        c.sampling = *sampling;
        record_timing(&c, timing, out, &sum);
        for (uint32_t r = 0; r < N_REQUESTS; r++)
            decode_same(&out[r], &from_oracle[r], "oracle and run");
        lvr_trace *run = open_valid(timing);
        check_round_nodes(&f, run);
        lvr_trace_close(run);
    }
    free(f.rows);
    lvr_trace_close(t);
    decode_pair_remove(&pair);
}

Test(decode_trace, oracle_holds_what_policies_meet_greedy, .timeout = 120)
{
    check_oracle(&(lvr_sampling){.top_p = 1});
}

Test(decode_trace, oracle_holds_what_policies_meet_sampled, .timeout = 120)
{
    check_oracle(&(lvr_sampling){.temperature = 0.8, .top_p = 0.95, .seed = 9});
}

Test(decode_trace, oracle_refusals)
{
    lvr_oracle_caps caps, good;
    lvr_oracle *o = NULL;
    lvr_policy policy;
    lvr_session_config c;
    struct decode_pair pair;
    decode_pair_make(&pair, NULL, LVR_Q8_0);
    decode_policy(&policy, "ar");
    decode_config(&c, &pair, &policy);
    lvr_oracle_caps_default(&good);
    caps = good;
    caps.branch = LVR_MAX_BRANCH + 1;
    cr_assert_eq(lvr_oracle_new(&c, &caps, &o, NULL), LVR_ERR_CONFIG);
    caps = good;
    caps.expansions = 0;
    cr_assert_eq(lvr_oracle_new(&c, &caps, &o, NULL), LVR_ERR_CONFIG);
    caps = good;
    caps.depth = LVR_MAX_DEPTH + 1;
    cr_assert_eq(lvr_oracle_new(&c, &caps, &o, NULL), LVR_ERR_CONFIG);
    caps = good;
    caps.min_path = NAN;
    cr_assert_eq(lvr_oracle_new(&c, &caps, &o, NULL), LVR_ERR_CONFIG);
    caps = good;
    caps.exit_auto = false;
    caps.n_exit_layers = LVR_EXIT_MAX_LAYERS + 1;
    cr_assert_eq(lvr_oracle_new(&c, &caps, &o, NULL), LVR_ERR_CONFIG);
    caps.n_exit_layers = 1;
    caps.exit_layers[0] = 1000000; /* the last layer, or beyond it */
    cr_assert_eq(lvr_oracle_new(&c, &caps, &o, NULL), LVR_ERR_CONFIG);
    c.draft_path = NULL;
    cr_assert_eq(lvr_oracle_new(&c, &good, &o, NULL), LVR_ERR_CONFIG);
    cr_assert_null(o);
    decode_pair_remove(&pair);
}
