/* Sessions whose layers run on an accelerator: the same tokens, records of both units, drafting meanwhile;
 * and from such a recording through fit to the simulated twin. */
#include "engine/oracle.h"
#include "sim/correlate.h"
#include "tests/unit/decode_rig.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_REQUESTS 6u
#define N_PREDICT 20u

/* Layers cost less on the accelerator from a few rows on. */
static void price_accelerator(lvr_policy *p)
{
    static const double ns[LVR_OP_COUNT] = {20e3, 50e3, 10e3, 1e3, 1e3, 1e3};
    for (int op = 0; op < LVR_OP_COUNT && !p->has_cost; op++)
        p->cost.op[op].curve = (lvr_curve){.n = 2, .rows = {1, 16}, .ns = {ns[op], 2 * ns[op]}};
    if (!p->has_cost)
        p->cost.flash = (lvr_flash_params){
            .t0_ns = 1000, .lane_bytes_per_s = 1000000, .max_bytes_per_s = 1000000, .depth = 1};
    p->has_cost = true;
    p->cost.npu[LVR_OP_LAYER] =
        (lvr_npu_cost){.n = 2, .bucket = {4, 64}, .ns = {50e3, 51e3}, .launch_ns = 1e3, .sync_ns = 1e3};
}

Test(decode_accel, the_same_tokens, .timeout = 120)
{
    static const char *const policies[] = {"ar", "chain", "lever", "random"};
    static const char *const accels[] = {"null", "matrix"};
    struct decode_pair pair;
    lvr_policy policy;
    lvr_session_config c;
    decode_pair_make(&pair, NULL, LVR_Q8_0);
    for (uint32_t i = 0; i < 4 * 2 * 2 * 2; i++) {
        struct decode_output want, got;
        decode_policy(&policy, policies[i % 4]);
        decode_config(&c, &pair, &policy);
        c.threads = 1 + i / 8 % 2;
        c.resident_fraction = i / 16 ? 1 : 0.4;
        c.io_mode = i % 2 ? LVR_IO_SERIAL : LVR_IO_PIPELINED;
        decode_once(&c, i, N_PREDICT, &want);
        cr_assert_eq(want.stats.npu_tickets, 0);
        c.accel = accels[i / 4 % 2];
        c.place = LVR_PLACE_NPU;
        decode_once(&c, i, N_PREDICT, &got);
        decode_same(&want, &got, c.accel);
        cr_assert_gt(got.stats.npu_tickets, 0);
        cr_assert_eq(got.stats.bytes_read, want.stats.bytes_read, "INV-BYTES");
        cr_assert_eq(got.stats.rounds, want.stats.rounds);
        const uint64_t all = got.stats.npu_tickets;
        c.place_draft = LVR_PLACE_NPU;
        decode_once(&c, i, N_PREDICT, &got);
        decode_same(&want, &got, "drafts on the accelerator too");
        cr_assert_eq(got.stats.npu_tickets > all, got.stats.draft_steps > 0);
        cr_assert_eq(got.stats.bytes_read, want.stats.bytes_read, "INV-BYTES");
        c.place_draft = LVR_PLACE_CPU;
        c.place = LVR_PLACE_AUTO;
        price_accelerator(&policy);
        decode_once(&c, i, N_PREDICT, &got);
        decode_same(&want, &got, "placed by price");
        cr_assert_leq(got.stats.npu_tickets, all);
    }
    decode_pair_remove(&pair);
}

Test(decode_accel, auto_without_prices_is_the_cpu)
{
    struct decode_pair pair;
    struct decode_output out;
    lvr_policy policy;
    lvr_session_config c;
    decode_pair_make(&pair, NULL, LVR_Q8_0);
    decode_policy(&policy, "ar");
    decode_config(&c, &pair, &policy);
    c.accel = "matrix";
    c.place = LVR_PLACE_AUTO;
    decode_once(&c, 0, N_PREDICT, &out);
    cr_assert_eq(out.stats.npu_tickets, 0);
    decode_pair_remove(&pair);
}

/* Heads of all rows at once, more of them than logits are held for, give the tokens of the lazy ones. */
Test(decode_accel, eager_heads_emit_the_same_tokens, .timeout = 120)
{
    static const char *const policies[] = {"ar", "chain", "lever", "random"};
    struct decode_pair pair;
    lvr_policy policy;
    lvr_session_config c;
    decode_pair_make(&pair, NULL, LVR_Q8_0);
    for (uint32_t i = 0; i < 4 * 2; i++) {
        struct decode_output want, got;
        decode_policy(&policy, policies[i % 4]);
        decode_config(&c, &pair, &policy);
        c.sampling.temperature = i / 4 ? 0.8f : 0;
        decode_once(&c, i, N_PREDICT, &want);
        c.head = LVR_HEAD_EAGER;
        decode_once(&c, i, N_PREDICT, &got);
        decode_same(&want, &got, policies[i % 4]);
        cr_assert_eq(got.stats.rounds, want.stats.rounds);
    }
    decode_pair_remove(&pair);
}

Test(decode_accel, refusals)
{
    struct decode_pair pair;
    lvr_policy policy;
    lvr_session_config c;
    lvr_session *s = NULL;
    lvr_error err = LVR_ERROR_INIT;
    decode_pair_make(&pair, NULL, LVR_Q8_0);
    decode_policy(&policy, "ar");
    decode_config(&c, &pair, &policy);
    c.place = LVR_PLACE_NPU;
    cr_assert_eq(lvr_session_new(&c, &s, &err), LVR_ERR_CONFIG);
    cr_assert(strstr(err.msg, "--accel"), "%s", err.msg);
    c.place = LVR_PLACE_CPU;
    c.place_draft = LVR_PLACE_NPU;
    cr_assert_eq(lvr_session_new(&c, &s, &err), LVR_ERR_CONFIG);
    cr_assert(strstr(err.msg, "--place-draft"), "%s", err.msg);
    c.place_draft = LVR_PLACE_AUTO;
    c.place = LVR_PLACE_NPU;
    c.accel = "nul";
    cr_assert_eq(lvr_session_new(&c, &s, &err), LVR_ERR_CONFIG);
    cr_assert(strstr(err.msg, "did you mean 'null'"), "%s", err.msg);
    c.accel = "null";
    c.accel_sync_ns = UINT64_MAX;
    cr_assert_eq(lvr_session_new(&c, &s, &err), LVR_ERR_CONFIG);
    cr_assert_null(s);
    decode_pair_remove(&pair);
}

/* A cancelled request leaves a ticket behind, which closing waits for. */
Test(decode_accel, cancelled_in_flight)
{
    struct decode_pair pair;
    lvr_policy policy;
    lvr_session_config c;
    lvr_error err = LVR_ERROR_INIT;
    atomic_bool cancel = false;
    lvr_run_stats stats;
    const int32_t prompt[3] = {5, 6, 7};
    decode_pair_make(&pair, NULL, LVR_Q8_0);
    decode_policy(&policy, "chain");
    decode_config(&c, &pair, &policy);
    c.accel = "matrix";
    c.place = LVR_PLACE_NPU;
    c.accel_launch_ns = 5000000;
    c.cancel = &cancel;
    lvr_session *s = decode_open(&c);
    atomic_store(&cancel, true);
    cr_assert_eq(lvr_session_generate(s, 0, 0, prompt, 3, 4, NULL, NULL, NULL, NULL, &stats, &err),
                 LVR_ERR_INTERRUPTED);
    lvr_session_free(s);
    decode_pair_remove(&pair);
}

/* ---- recordings ---- */

static void record(const lvr_session_config *c, const char *path, uint32_t first, lvr_run_stats *sum)
{
    lvr_trace_meta meta;
    lvr_trace_writer *w = NULL;
    lvr_error err = LVR_ERROR_INIT;
    lvr_session *s = decode_open(c);
    cr_assert_eq(lvr_session_trace_meta(s, N_PREDICT, &meta, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_trace_writer_open(path, &meta, true, &w, &err), LVR_OK, "%s", err.msg);
    free(meta.config_yaml);
    cr_assert_eq(lvr_session_set_trace(s, w, &err), LVR_OK, "%s", err.msg);
    *sum = (lvr_run_stats){0};
    for (uint32_t r = first; r < first + N_REQUESTS; r++) {
        struct decode_output out;
        decode_generate(s, r, N_PREDICT, &out);
        lvr_run_stats_add(sum, &out.stats);
    }
    lvr_session_free(s);
    cr_assert_eq(lvr_trace_writer_close(w, true, &err), LVR_OK, "%s", err.msg);
}

typedef struct recording {
    lvr_rec_kernel *kernels;
    lvr_rec_round *rounds; /* rounds[i].round is i */
    uint64_t n_kernels, n_rounds;
} recording;

static void *read_stream(lvr_trace *t, lvr_stream stream, uint64_t *ret_n)
{
    void *records = NULL;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_trace_read_all(t, stream, &records, ret_n, &err), LVR_OK, "%s", err.msg);
    return records;
}

static recording read_recording(const char *path)
{
    lvr_trace *t = NULL;
    lvr_error err = LVR_ERROR_INIT;
    lvr_buf findings = LVR_BUF_INIT;
    recording r = {0};
    uint64_t n = 0;
    cr_assert_eq(lvr_trace_open(path, &t, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_trace_validate(t, &findings, &n, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(n, 0, "%s", findings.data);
    r.kernels = read_stream(t, LVR_STREAM_KERNELS, &r.n_kernels);
    r.rounds = read_stream(t, LVR_STREAM_ROUNDS, &r.n_rounds);
    lvr_buf_free(&findings);
    lvr_trace_close(t);
    return r;
}

static bool of_prompt(const recording *r, const lvr_rec_kernel *k)
{
    cr_assert_lt(k->round, r->n_rounds);
    return r->rounds[k->round].prefill != 0;
}

static uint64_t overlap_ns(const lvr_rec_kernel *a, const lvr_rec_kernel *b)
{
    const uint64_t from = a->t_start_ns > b->t_start_ns ? a->t_start_ns : b->t_start_ns;
    const uint64_t to = a->t_end_ns < b->t_end_ns ? a->t_end_ns : b->t_end_ns;
    return to > from ? to - from : 0;
}

static void make_larger_pair(struct decode_pair *pair)
{
    const struct gguf_tiny spec = {.vocab = 320,
                                   .n_layers = 6,
                                   .d_model = 128,
                                   .n_heads = 4,
                                   .n_kv = 2,
                                   .d_ff = 384,
                                   .n_ctx = 200,
                                   .type = LVR_Q8_0,
                                   .seed = 11};
    decode_pair_make(pair, &spec, LVR_Q4_0);
}

/* The accelerator runs a prompt chunk's layers while the CPU drafts the same chunk: at the C level, where
 * that takes the draft far longer than a busy machine needs to wake the accelerator's thread. */
Test(decode_accel, drafts_while_the_accelerator_works, .timeout = 120)
{
    struct decode_pair pair;
    lvr_run_stats sum;
    lvr_policy policy;
    lvr_session_config c;
    char path[128];
    uint64_t both = 0, npu = 0, draft = 0, tickets = 0;
    make_larger_pair(&pair);
    snprintf(path, sizeof path, "%s/timing.h5", pair.target.dir);
    decode_policy(&policy, "chain");
    decode_config(&c, &pair, &policy);
    c.accel = "matrix";
    c.place = LVR_PLACE_NPU;
    record(&c, path, 0, &sum);
    recording r = read_recording(path);
    for (uint64_t i = 0; i < r.n_kernels; i++) {
        const lvr_rec_kernel *k = &r.kernels[i];
        const bool layer = k->op == LVR_OP_LAYER;
        cr_assert_eq(k->unit, (uint32_t)(layer ? LVR_UNIT_NPU : LVR_UNIT_CPU));
        cr_assert(!layer || (k->bucket >= k->rows && k->bucket >= 16));
        tickets += layer;
        if (!of_prompt(&r, k))
            continue;
        npu += layer ? k->t_end_ns - k->t_start_ns : 0;
        draft += k->op == LVR_OP_DRAFT ? k->t_end_ns - k->t_start_ns : 0;
        for (uint64_t d = 0; layer && d < r.n_kernels; d++)
            both += r.kernels[d].op == LVR_OP_DRAFT ? overlap_ns(k, &r.kernels[d]) : 0;
    }
    printf("prompt passes: draft and layers at once for %llu ns, %.1f %% of the layers' time on the "
           "accelerator and "
           "%.1f %% of the draft's on the CPU\n",
           (unsigned long long)both, 100.0 * (double)both / (double)npu,
           100.0 * (double)both / (double)draft);
    cr_assert_eq(tickets, sum.npu_tickets);
    cr_assert_gt(both, 0);
    free(r.kernels);
    free(r.rounds);
    decode_pair_remove(&pair);
}

static void record_oracle(const lvr_session_config *c, const char *path, uint32_t first)
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
    cr_assert_eq(lvr_oracle_new(c, &caps, &o, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_oracle_trace_meta(o, N_PREDICT, &meta, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_trace_writer_open(path, &meta, true, &w, &err), LVR_OK, "%s", err.msg);
    free(meta.config_yaml);
    cr_assert_eq(lvr_trace_lane_new(w, 1 << 14, &lane, &err), LVR_OK, "%s", err.msg);
    for (uint32_t r = first; r < first + N_REQUESTS; r++) {
        int32_t prompt[64], *tokens = NULL;
        uint32_t n_tokens = 0;
        const uint32_t n = decode_prompt(r, prompt, 64);
        cr_assert_eq(lvr_oracle_record(o, lane, r, 0, prompt, n, N_PREDICT, &tokens, &n_tokens, &err), LVR_OK,
                     "%s", err.msg);
        free(tokens);
    }
    lvr_oracle_free(o);
    cr_assert_eq(lvr_trace_writer_close(w, true, &err), LVR_OK, "%s", err.msg);
}

/* Returns |error| of the simulated speed. */
static double expect_twin(const char *timing, const lvr_sim_oracle *oracle, const lvr_cost_model *m,
                          const char *what)
{
    lvr_error err = LVR_ERROR_INIT;
    lvr_correlation *r = calloc(1, sizeof *r);
    cr_assert_eq(lvr_correlate(timing, oracle, m, true, r, &err), LVR_OK, "%s", err.msg);
    cr_assert(r->commits_equal, "%s", what);
    cr_assert(r->rounds_equal, "%s", what);
    printf("%s: simulated tokens/s %+.2f %% off (%u requests)\n", what, 100 * r->tokens_per_s_error,
           r->n_requests);
    const double error = fabs(r->tokens_per_s_error);
    free(r);
    return error;
}

/* record --accel matrix, fit, cost.yaml, sim: the terms are there, and the twin makes the same rounds. */
Test(decode_accel, from_tickets_to_the_simulated_twin, .timeout = 240)
{
    struct decode_pair pair;
    lvr_run_stats sum;
    lvr_policy policy;
    lvr_session_config c;
    lvr_sim_oracle oracle;
    lvr_error err = LVR_ERROR_INIT;
    char timing[128], oracle_path[128], yaml[128], other[128];
    lvr_cost_model *m = calloc(1, sizeof *m), *back = calloc(1, sizeof *back);
    make_larger_pair(&pair);
    snprintf(timing, sizeof timing, "%s/timing.h5", pair.target.dir);
    snprintf(other, sizeof other, "%s/cpu.h5", pair.target.dir);
    snprintf(oracle_path, sizeof oracle_path, "%s/oracle.h5", pair.target.dir);
    snprintf(yaml, sizeof yaml, "%s/cost.yaml", pair.target.dir);
    decode_policy(&policy, "chain");
    decode_config(&c, &pair, &policy);
    c.cpu_level = lvr_cpu_best();
    record_oracle(&c, oracle_path, 0);
    record(&c, other, 0, &sum);
    c.accel = "matrix";
    c.accel_launch_ns = 100000;
    c.accel_sync_ns = 50000;
    c.place = LVR_PLACE_NPU;
    record(&c, timing, 0, &sum);
    cr_assert_eq(lvr_sim_oracle_load(oracle_path, &oracle, &err), LVR_OK, "%s", err.msg);

    const char *alone[] = {timing};
    cr_assert_eq(lvr_cost_model_fit(alone, 1, m, &err), LVR_OK, "%s", err.msg);
    const lvr_npu_cost *npu = &m->table.npu[LVR_OP_LAYER];
    cr_assert_eq(npu->n, 1, "chunks and chains fit one bucket");
    cr_assert_eq(npu->bucket[0], 16);
    cr_assert_gt(npu->ns[0], 0);
    cr_assert_geq(npu->launch_ns, 100000);
    cr_assert_geq(npu->sync_ns, 50000);
    cr_assert_eq(m->table.op[LVR_OP_LAYER].curve.n, 0, "no layer ran on the CPU");
    cr_assert_not_null(lvr_cost_model_term(m, "layer_npu"));
    cr_assert_str_eq(m->conditions.accel, "matrix");
    /* Its own recording: whatever the machine did is in the means. */
    cr_assert_lt(expect_twin(timing, &oracle, m, "accelerator alone"), 0.25);

    const char *both[] = {other, timing};
    cr_assert_eq(lvr_cost_model_fit(both, 2, m, &err), LVR_OK, "%s", err.msg);
    cr_assert_gt(m->table.op[LVR_OP_LAYER].curve.n, 0);
    cr_assert_eq(m->table.npu[LVR_OP_LAYER].n, 1);
    cr_assert_eq(lvr_cost_model_save(yaml, m, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_cost_model_load(yaml, back, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(memcmp(&back->table.npu, &m->table.npu, sizeof m->table.npu), 0, "YAML keeps the terms");
    /* Two recordings of a busy machine differ by what else it did, so their errors are only shown. */
    expect_twin(timing, &oracle, back, "accelerator, of both traces");
    expect_twin(other, &oracle, back, "CPU, of both traces");
    lvr_sim_oracle_free(&oracle);
    free(m);
    free(back);
    decode_pair_remove(&pair);
}

/* An adapting calibration makes the same rounds and commits in both hosts. */
Test(decode_accel, adapting_twins, .timeout = 240)
{
    struct decode_pair pair;
    lvr_run_stats plain, sum;
    lvr_policy policy;
    lvr_session_config c;
    lvr_sim_oracle oracle;
    lvr_error err = LVR_ERROR_INIT;
    char timing[128], other[128], oracle_path[128];
    lvr_cost_model *m = calloc(1, sizeof *m);
    make_larger_pair(&pair);
    snprintf(timing, sizeof timing, "%s/timing.h5", pair.target.dir);
    snprintf(other, sizeof other, "%s/plain.h5", pair.target.dir);
    snprintf(oracle_path, sizeof oracle_path, "%s/oracle.h5", pair.target.dir);
    decode_policy(&policy, "lever");
    decode_config(&c, &pair, &policy);
    c.cpu_level = lvr_cpu_best();
    record_oracle(&c, oracle_path, 0);
    record(&c, other, 0, &plain);
    policy.adapt = (lvr_adapt){.rate = 0.5, .bound = 4};
    record(&c, timing, 0, &sum);
    cr_expect_neq(sum.rounds, plain.rounds, "it changes trees");
    cr_assert_eq(lvr_sim_oracle_load(oracle_path, &oracle, &err), LVR_OK, "%s", err.msg);
    const char *alone[] = {timing};
    cr_assert_eq(lvr_cost_model_fit(alone, 1, m, &err), LVR_OK, "%s", err.msg);
    expect_twin(timing, &oracle, m, "adapting");
    lvr_sim_oracle_free(&oracle);
    free(m);
    decode_pair_remove(&pair);
}

/* Draft steps on the accelerator: recorded, fitted and made again by the twin. */
Test(decode_accel, draft_tickets_to_the_simulated_twin, .timeout = 240)
{
    struct decode_pair pair;
    lvr_run_stats sum;
    lvr_policy policy;
    lvr_session_config c;
    lvr_sim_oracle oracle;
    lvr_error err = LVR_ERROR_INIT;
    char timing[128], oracle_path[128];
    lvr_cost_model *m = calloc(1, sizeof *m);
    make_larger_pair(&pair);
    snprintf(timing, sizeof timing, "%s/timing.h5", pair.target.dir);
    snprintf(oracle_path, sizeof oracle_path, "%s/oracle.h5", pair.target.dir);
    decode_policy(&policy, "chain");
    decode_config(&c, &pair, &policy);
    c.cpu_level = lvr_cpu_best();
    record_oracle(&c, oracle_path, 0);
    c.accel = "matrix";
    c.place = c.place_draft = LVR_PLACE_NPU;
    record(&c, timing, 0, &sum);
    cr_assert_eq(lvr_sim_oracle_load(oracle_path, &oracle, &err), LVR_OK, "%s", err.msg);
    const char *alone[] = {timing};
    cr_assert_eq(lvr_cost_model_fit(alone, 1, m, &err), LVR_OK, "%s", err.msg);
    cr_assert_gt(m->table.npu[LVR_OP_DRAFT].n, 0);
    cr_assert_gt(m->table.op[LVR_OP_DRAFT].curve.n, 0, "prompts are drafted beside layers, on the CPU");
    cr_assert_lt(expect_twin(timing, &oracle, m, "drafts on the accelerator"), 0.25);
    lvr_sim_oracle_free(&oracle);
    free(m);
    decode_pair_remove(&pair);
}
