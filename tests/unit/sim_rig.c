#include "sim_rig.h"

#include "common/rng.h"
#include "sim/sim_report.h"
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const sim_rig sim_rig_default = {.seed = 1,
                                 .n_requests = 4,
                                 .n_prompt = 9,
                                 .n_output = 60,
                                 .branch = 6,
                                 .depth = 24,
                                 .expansions = 280,
                                 .target_sha256 = "aaaa",
                                 .draft_sha256 = "bbbb"};

enum { VOCAB = 500, MAX_NODES = 2048, MAX_RIG_BRANCH = 8 };

char *sim_rig_path(const char *name)
{
    char dir[] = "/tmp/lever-test-XXXXXX";
    char *path = NULL;
    cr_assert_not_null(mkdtemp(dir));
    cr_assert_gt(asprintf(&path, "%s/%s", dir, name), 0);
    return path;
}

void sim_rig_discard(char *path)
{
    unlink(path);
    *strrchr(path, '/') = '\0';
    rmdir(path);
    free(path);
}

static int32_t text_token(const sim_rig *rig, uint64_t request, uint32_t pos)
{
    const uint64_t seed = pos < rig->n_prompt ? rig->seed : rig->seed ^ lvr_mix64(rig->outcome_seed);
    return 3 + (int32_t)(lvr_mix64(seed ^ lvr_mix64((request << 32) ^ pos)) % VOCAB);
}

typedef struct rig_node {
    lvr_rec_tree rec;
    double path;
    uint64_t key; /* of its path from the root's position */
} rig_node;

/* The draft after a node: falling probabilities, and the child that the text takes at the rank which they
 * say. */
static void draft_children(const sim_rig *rig, const rig_node *v, double p[MAX_RIG_BRANCH],
                           int32_t token[MAX_RIG_BRANCH], uint32_t *ret_taken)
{
    const double first = 0.25 + 0.7 * lvr_hash_unit(rig->seed, v->key, 1);
    const double u = lvr_hash_unit(rig->seed ^ lvr_mix64(rig->outcome_seed), v->key, 2);
    double left = 1.0, sum = 0;
    *ret_taken = UINT32_MAX;
    for (uint32_t i = 0; i < rig->branch; i++) {
        p[i] = left * first;
        left -= p[i];
        token[i] = 1000 + (int32_t)(lvr_mix64(v->key) % 1000) * 8 + (int32_t)i;
        sum += p[i];
        if (v->rec.on_path && *ret_taken == UINT32_MAX && u < sum)
            *ret_taken = i;
    }
    for (uint32_t i = 1; i < rig->branch; i++) { /* `first` below one half gives falling p only if sorted */
        for (uint32_t k = i; k > 0 && p[k] > p[k - 1]; k--) {
            const double t = p[k];
            p[k] = p[k - 1];
            p[k - 1] = t;
        }
    }
    if (*ret_taken != UINT32_MAX)
        token[*ret_taken] = v->rec.target_token;
}

static uint32_t expand(const sim_rig *rig, rig_node *nodes, uint32_t n, uint32_t at)
{
    double p[MAX_RIG_BRANCH];
    int32_t token[MAX_RIG_BRANCH];
    uint32_t taken;
    rig_node *v = &nodes[at];
    v->rec.expanded = 1;
    draft_children(rig, v, p, token, &taken);
    for (uint32_t i = 0; i < rig->branch; i++) {
        if (i > 0 && v->path * p[i] < rig->min_path)
            break;
        rig_node *c = &nodes[n];
        const uint32_t pos = v->rec.pos + v->rec.depth + 1; /* of the child */
        *c = (rig_node){.rec = v->rec, .path = v->path * p[i]};
        c->rec.node = n++;
        c->rec.parent = (int32_t)at;
        c->rec.depth = v->rec.depth + 1;
        c->rec.rank = i;
        c->rec.token = token[i];
        c->rec.p_draft = (float)p[i];
        c->rec.on_path = i == taken;
        c->rec.expanded = 0;
        c->rec.target_token = c->rec.on_path ? text_token(rig, v->rec.request, pos + 1) : -1;
        c->rec.p_target = c->rec.on_path ? 0.5f : NAN;
        c->key = lvr_mix64(v->key * 31 + i + 1);
    }
    return n;
}

/* The unexpanded node with the greatest path probability, or the end of the most probable chain while it is
 * short. */
static int32_t next_to_expand(const sim_rig *rig, const rig_node *nodes, uint32_t n)
{
    int32_t best = -1;
    for (uint32_t i = 0; i < n; i++) {
        const rig_node *v = &nodes[i];
        if (!v->rec.expanded && v->rec.depth < rig->depth && (best < 0 || v->path > nodes[best].path))
            best = (int32_t)i;
    }
    return best;
}

static uint32_t extend_chain(const sim_rig *rig, rig_node *nodes, uint32_t n)
{
    uint32_t at = 0;
    while (nodes[at].rec.depth < rig->depth) {
        if (!nodes[at].rec.expanded)
            n = expand(rig, nodes, n, at);
        uint32_t child = at + 1;
        while (nodes[child].rec.parent != (int32_t)at || nodes[child].rec.rank != 0)
            child++;
        at = child;
    }
    return n;
}

static void put(lvr_trace_lane *lane, lvr_stream stream, const void *rec)
{
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_trace_put_wait(lane, stream, rec, &err), LVR_OK, "%s", err.msg);
}

/* The target's own continuation scores higher, on the whole. */
static void put_exit(const rig_node *v, lvr_trace_lane *lane)
{
    const float noise = (float)lvr_hash_unit(v->key, 1, 2);
    const lvr_rec_exit rec = {.request = v->rec.request,
                              .pos = v->rec.pos,
                              .node = v->rec.node,
                              .score = 4.0f * noise + (v->rec.on_path ? 2.0f : 0.0f),
                              .slice_lse = 3.0f,
                              .slice_max = 2.0f,
                              .slice_entropy = noise};
    put(lane, LVR_STREAM_EXIT, &rec);
}

static void write_tree(const sim_rig *rig, lvr_trace_lane *lane, uint64_t request, uint32_t pos)
{
    rig_node *nodes = calloc(MAX_NODES, sizeof(*nodes));
    cr_assert_not_null(nodes);
    uint32_t n = 1;
    nodes[0].rec = (lvr_rec_tree){.request = request,
                                  .pos = pos,
                                  .parent = -1,
                                  .token = text_token(rig, request, pos),
                                  .p_draft = 1.0f,
                                  .target_token = text_token(rig, request, pos + 1),
                                  .p_target = 0.5f,
                                  .on_path = 1};
    nodes[0].path = 1.0;
    nodes[0].key = lvr_mix64((request << 32) ^ pos);
    for (uint32_t i = 0; i < rig->expansions; i++) {
        const int32_t at = next_to_expand(rig, nodes, n);
        if (at < 0)
            break;
        n = expand(rig, nodes, n, (uint32_t)at);
    }
    n = extend_chain(rig, nodes, n);
    for (uint32_t i = 1; i < n && rig->exits; i++)
        put_exit(&nodes[i], lane);
    for (uint32_t i = 0; i < n; i++)
        put(lane, LVR_STREAM_TREES, &nodes[i].rec);
    free(nodes);
}

static void write_request(const sim_rig *rig, lvr_trace_lane *lane, uint64_t request)
{
    const uint32_t n = rig->n_prompt + rig->n_output;
    for (uint32_t p = 0; p < n; p++) {
        const lvr_rec_token rec = {.request = request,
                                   .pos = p,
                                   .token = text_token(rig, request, p),
                                   .is_output = p >= rig->n_prompt};
        put(lane, LVR_STREAM_TOKENS, &rec);
    }
    for (uint32_t p = rig->n_prompt - 1; p + 1 < n; p++)
        write_tree(rig, lane, request, p);
    const lvr_rec_request rec = {.id = request,
                                 .n_prompt = rig->n_prompt,
                                 .n_output = rig->n_output,
                                 .prompt_hash = lvr_mix64(rig->seed * 1000 + request)};
    put(lane, LVR_STREAM_REQUESTS, &rec);
}

void sim_rig_write_oracle(const sim_rig *rig, const char *path)
{
    lvr_error err = LVR_ERROR_INIT;
    lvr_trace_writer *w = NULL;
    lvr_trace_lane *lane = NULL;
    lvr_trace_meta meta = {.kind = LVR_TRACE_ORACLE,
                           .version_major = LVR_TRACE_VERSION_MAJOR,
                           .complete = true,
                           .recorder_overhead_pct = NAN,
                           .software = "test",
                           .cap_branch = rig->branch,
                           .cap_expansions = rig->expansions,
                           .cap_depth = rig->depth,
                           .cap_min_path = rig->min_path,
                           .top_p = 1.0};
    meta.config_yaml = rig->config ? strdup(rig->config) : NULL;
    snprintf(meta.target.name, sizeof meta.target.name, "rig-target");
    snprintf(meta.draft.name, sizeof meta.draft.name, "rig-draft");
    snprintf(meta.target.sha256, sizeof meta.target.sha256, "%s", rig->target_sha256);
    snprintf(meta.draft.sha256, sizeof meta.draft.sha256, "%s", rig->draft_sha256);
    meta.target.n_layers = meta.draft.n_layers = 2;
    cr_assert_eq(lvr_trace_writer_open(path, &meta, true, &w, &err), LVR_OK, "%s", err.msg);
    free(meta.config_yaml);
    lvr_trace_domain(w, "test");
    cr_assert_eq(lvr_trace_lane_new(w, 1 << 14, &lane, &err), LVR_OK, "%s", err.msg);
    for (uint64_t i = 0; i < rig->n_requests; i++)
        write_request(rig, lane, i);
    cr_assert_eq(lvr_trace_writer_close(w, true, &err), LVR_OK, "%s", err.msg);
}

lvr_outcome *sim_rig_outcome(const sim_rig *rig)
{
    lvr_error err = LVR_ERROR_INIT;
    lvr_trace *t = NULL;
    lvr_outcome *o = NULL;
    char *path = sim_rig_path("oracle.h5");
    sim_rig_write_oracle(rig, path);
    cr_assert_eq(lvr_trace_open(path, &t, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_outcome_from_oracle(t, &o, &err), LVR_OK, "%s", err.msg);
    lvr_trace_close(t);
    sim_rig_discard(path);
    return o;
}

lvr_geometry sim_rig_geometry(uint32_t n_layers, uint64_t bytes, lvr_io_mode mode)
{
    lvr_geometry g = {.n_layers = n_layers, .slice_bytes = 65536, .ring_slots = 2, .io_mode = mode};
    for (uint32_t l = 0; l < n_layers; l++)
        g.layer_bytes[l] = bytes;
    return g;
}

static lvr_op_cost line(double ns, double per_row)
{
    return (lvr_op_cost){.curve = {.n = 2, .rows = {1, 2}, .ns = {ns + per_row, ns + 2 * per_row}}};
}

lvr_cost_table sim_rig_cost(void)
{
    lvr_cost_table t = {
        .flash = {
            .t0_ns = 100000, .lane_bytes_per_s = 1000000000, .max_bytes_per_s = 1000000000, .depth = 1}};
    t.op[LVR_OP_DRAFT] = line(40000, 2000);
    t.op[LVR_OP_LAYER] = line(100000, 5000);
    t.op[LVR_OP_HEAD] = line(30000, 0);
    t.op[LVR_OP_EMBED] = line(1000, 10);
    t.op[LVR_OP_COMMIT] = line(2000, 100);
    t.op[LVR_OP_PLAN] = line(500, 20);
    return t;
}

lvr_run_conditions sim_rig_conditions(void)
{
    return (lvr_run_conditions){.threads = 1,
                                .kv_type = "f16",
                                .depth = 1,
                                .cpu_level = "c",
                                .emulate_scale = 1.0,
                                .n_ctx = 256,
                                .prefill_chunk = 16,
                                .max_rows = 64,
                                .top_p = 1.0,
                                .n_predict = 60};
}

lvr_policy sim_rig_policy(const char *name, const lvr_cost_table *cost)
{
    lvr_error err = LVR_ERROR_INIT;
    lvr_policy p;
    cr_assert_eq(lvr_policy_init(&p, name, &err), LVR_OK, "%s", err.msg);
    for (size_t i = 0; i < p.ops->n_params; i++) /* no more children than the rig records */
        if (strcmp(p.ops->params[i].name, "branch") == 0)
            lvr_param_set_number(&p.ops->params[i], p.params.bytes, sim_rig_default.branch);
    p.has_cost = cost != NULL;
    if (cost)
        p.cost = *cost;
    return p;
}

lvr_sim_result sim_rig_run(const lvr_outcome *o, const lvr_policy *policy, const lvr_geometry *g,
                           const lvr_cost_table *cost)
{
    lvr_error err = LVR_ERROR_INIT;
    lvr_sim_result r = {0};
    const lvr_sim_config c = {.policy = policy,
                              .geometry = g,
                              .cost = cost,
                              .conditions = sim_rig_conditions(),
                              .outcome = o,
                              .keep_rounds = true};
    cr_assert_eq(lvr_sim_run(&c, &r, &err), LVR_OK, "%s", err.msg);
    return r;
}

lvr_sim_oracle sim_rig_oracle(const sim_rig *rig)
{
    lvr_error err = LVR_ERROR_INIT;
    lvr_sim_oracle o = {0};
    char *path = sim_rig_path("oracle.h5");
    sim_rig_write_oracle(rig, path);
    cr_assert_eq(lvr_sim_oracle_load(path, &o, &err), LVR_OK, "%s", err.msg);
    sim_rig_discard(path);
    return o;
}

lvr_policy_file sim_rig_file(const sim_rig *rig, const lvr_policy *policy, const lvr_geometry *g)
{
    lvr_policy_file pf = {.policy = *policy, .geometry = *g, .conditions = sim_rig_conditions()};
    snprintf(pf.target_sha256, sizeof pf.target_sha256, "%s", rig->target_sha256);
    snprintf(pf.draft_sha256, sizeof pf.draft_sha256, "%s", rig->draft_sha256);
    return pf;
}

void sim_rig_write_timing(const lvr_policy_file *pf, const lvr_outcome *o, const lvr_cost_table *cost,
                          lvr_trace_kind kind, const char *device, const char *path)
{
    lvr_error err = LVR_ERROR_INIT;
    lvr_buf config = LVR_BUF_INIT;
    lvr_trace_meta *meta = calloc(1, sizeof(*meta));
    lvr_trace_writer *w = NULL;
    lvr_sim_result r = {0};
    cr_assert_not_null(meta);
    cr_assert_eq(lvr_policy_file_format(pf, &config, &err), LVR_OK, "%s", err.msg);
    lvr_sim_trace_meta(pf, "rig-target", "rig-draft", false, config.data, meta);
    meta->kind = kind;
    snprintf(meta->device.sha256, sizeof meta->device.sha256, "%s", device);
    cr_assert_eq(lvr_trace_writer_open(path, meta, true, &w, &err), LVR_OK, "%s", err.msg);
    lvr_trace_domain(w, "test");
    const lvr_sim_config c = {.policy = &pf->policy,
                              .geometry = &pf->geometry,
                              .cost = cost,
                              .wake_ns = 7000,
                              .conditions = pf->conditions,
                              .outcome = o,
                              .trace = w};
    cr_assert_eq(lvr_sim_run(&c, &r, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_trace_writer_close(w, true, &err), LVR_OK, "%s", err.msg);
    lvr_sim_result_free(&r);
    lvr_buf_free(&config);
    free(meta);
}
