#include "tests/unit/traces_fixture.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char fixture_dir[64];
char fixture_path[128];

void fixture_setup(void)
{
    snprintf(fixture_dir, sizeof fixture_dir, "/tmp/lvr-traces-XXXXXX");
    cr_assert_not_null(mkdtemp(fixture_dir));
    snprintf(fixture_path, sizeof fixture_path, "%s/t.h5", fixture_dir);
}

void fixture_teardown(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", fixture_dir);
    cr_assert_eq(system(command), 0);
}

static void fill_model(lvr_trace_model *m, const char *name, uint32_t n_layers)
{
    snprintf(m->name, sizeof m->name, "%s", name);
    snprintf(m->arch, sizeof m->arch, "llama");
    snprintf(m->quant, sizeof m->quant, "Q4_0");
    memset(m->sha256, 'a', sizeof m->sha256 - 1);
    m->n_layers = n_layers;
    m->d_model = 64;
    m->n_heads = 4;
    m->n_kv = 2;
    m->d_ff = 128;
    m->vocab = 1u << 30;
    for (uint32_t i = 0; i < n_layers; i++) {
        m->bytes_per_layer[i] = 4096 * (i + 1);
        m->resident[i] = i % 2;
    }
}

void fixture_meta(lvr_trace_meta *meta, lvr_trace_kind kind)
{
    static char config[] = "policy: lever\nnote: \"größer\"\n";
    *meta = (lvr_trace_meta){.kind = kind,
                             .synthetic = true,
                             .seed = 0xfedcba9876543210u,
                             .recorder_overhead_pct = 0.75,
                             .cap_branch = 4,
                             .cap_expansions = 32,
                             .cap_depth = 8,
                             .cap_min_path = 0.001,
                             .temperature = 0.8,
                             .top_p = 0.95,
                             .top_k = 40,
                             .config_yaml = config,
                             .n_domains = 2,
                             .domains = {"chat", "code, \"quoted\""}};
    snprintf(meta->software, sizeof meta->software, "lever test");
    snprintf(meta->commit, sizeof meta->commit, "abcdef");
    snprintf(meta->compiler, sizeof meta->compiler, "cc");
    snprintf(meta->created_utc, sizeof meta->created_utc, "2026-01-02T03:04:05Z");
    snprintf(meta->device.vendor, sizeof meta->device.vendor, "vendor");
    snprintf(meta->device.io_engine, sizeof meta->device.io_engine, "uring");
    snprintf(meta->device.emulated, sizeof meta->device.emulated, "ufs31");
    meta->device.direct = true;
    meta->device.scale = 0.25;
    fill_model(&meta->target, "target", 5);
    fill_model(&meta->draft, "draft", LVR_TRACE_MAX_LAYERS);
}

static void fill_field(const lvr_field *f, uint64_t value, char *record)
{
    char *at = record + f->offset;
    switch (f->type) {
    case LVR_FIELD_U32:
        *(uint32_t *)at = f->enum_name ? (uint32_t)(value % 2) : (uint32_t)value;
        return;
    case LVR_FIELD_I32:
        *(int32_t *)at = value % 7 == 0 ? -1 : (int32_t)(value & 0x7fffffff);
        return;
    case LVR_FIELD_U64:
        *(uint64_t *)at = value % 11 == 0 ? UINT64_MAX : value * 0x100000001u;
        return;
    case LVR_FIELD_F32:
        *(float *)at = value % 13 == 0 ? NAN : (float)value / 3.0f;
        return;
    case LVR_FIELD_F64:
        *(double *)at = value % 17 == 0 ? -0.0 : (double)value / 7.0;
        return;
    }
}

void fixture_record(lvr_stream stream, uint64_t i, void *ret_record)
{
    const lvr_stream_desc *desc = lvr_stream_describe(stream);
    memset(ret_record, 0, desc->record_bytes);
    for (uint32_t f = 0; f < desc->n_fields; f++)
        fill_field(&desc->fields[f], i * 31 + f + 1, ret_record);
}

lvr_trace_writer *fixture_writer(lvr_trace_kind kind, bool overwrite, lvr_trace_lane **ret_lane)
{
    lvr_trace_meta meta;
    lvr_trace_writer *w = NULL;
    lvr_error err = LVR_ERROR_INIT;
    fixture_meta(&meta, kind);
    cr_assert_eq(lvr_trace_writer_open(fixture_path, &meta, overwrite, &w, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_trace_lane_new(w, 1 << 12, ret_lane, &err), LVR_OK, "%s", err.msg);
    return w;
}

void fixture_close(lvr_trace_writer *w, bool complete)
{
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_trace_writer_close(w, complete, &err), LVR_OK, "%s", err.msg);
}

lvr_trace *fixture_open(void)
{
    lvr_trace *t = NULL;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_trace_open(fixture_path, &t, &err), LVR_OK, "%s", err.msg);
    return t;
}

static void put(lvr_trace_lane *lane, lvr_stream stream, const void *record)
{
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_trace_put_wait(lane, stream, record, &err), LVR_OK, "%s", err.msg);
}

static void put_round(lvr_trace_lane *lane, uint64_t request, uint64_t round, uint32_t pos)
{
    const uint64_t t0 = 1000000 + round * 10000;
    for (uint32_t layer = 0; layer < 3; layer++) {
        const lvr_rec_flash read = {.round = round,
                                    .layer = layer,
                                    .offset = layer * 4096,
                                    .bytes = 4096,
                                    .queue_depth = 1,
                                    .t_submit_ns = t0,
                                    .t_start_ns = t0 + 10,
                                    .t_end_ns = t0 + 1000};
        const lvr_rec_kernel kernel = {.round = round,
                                       .layer = layer,
                                       .op = 1,
                                       .rows = 3,
                                       .bucket = 4,
                                       .context = pos,
                                       .t_submit_ns = t0,
                                       .t_start_ns = t0 + 1000,
                                       .t_end_ns = t0 + 2000};
        put(lane, LVR_STREAM_FLASH, &read);
        put(lane, LVR_STREAM_KERNELS, &kernel);
    }
    for (uint32_t node = 0; node < 3; node++) {
        const lvr_rec_round_node row = {.request = request,
                                        .round = round,
                                        .node = node,
                                        .parent = node == 0 ? -1 : 0,
                                        .token = (int32_t)(pos + node),
                                        .p_draft = 0.5f,
                                        .last_layer = 4,
                                        .accepted = node < 2};
        put(lane, LVR_STREAM_ROUND_NODES, &row);
    }
    for (uint32_t i = 1; i <= 2; i++) {
        const lvr_rec_token token = {request, pos + i, (int32_t)(pos + i), 1, 0};
        put(lane, LVR_STREAM_TOKENS, &token);
    }
    const lvr_rec_round row = {.request = request,
                               .round = round,
                               .pos = pos,
                               .n_nodes = 3,
                               .depth = 1,
                               .n_kept = 3,
                               .n_accepted = 1,
                               .n_drafted = 2,
                               .n_draft_steps = 1,
                               .t_draft0_ns = t0,
                               .t_draft1_ns = t0 + 500,
                               .t_verify0_ns = t0 + 1000,
                               .t_verify1_ns = t0 + 2000,
                               .t_commit_ns = t0 + 2500};
    put(lane, LVR_STREAM_ROUNDS, &row);
}

void fixture_put_rounds(lvr_trace_lane *lane, uint64_t request, uint64_t first_round, uint64_t n_rounds,
                        bool with_request)
{
    const lvr_rec_token prompt = {.request = request, .token = 1};
    put(lane, LVR_STREAM_TOKENS, &prompt);
    for (uint64_t i = 0; i < n_rounds; i++)
        put_round(lane, request, first_round + i, (uint32_t)(2 * i));
    const lvr_rec_request row = {.id = request,
                                 .t_arrival_ns = 1,
                                 .t_first_token_ns = 2,
                                 .t_done_ns = 3,
                                 .n_prompt = 1,
                                 .n_output = (uint32_t)(2 * n_rounds),
                                 .domain = 1,
                                 .prompt_hash = 77};
    if (with_request)
        put(lane, LVR_STREAM_REQUESTS, &row);
}

static void put_position(lvr_trace_lane *lane, uint64_t request, uint32_t pos)
{
    for (uint32_t node = 1; node < 3; node++) {
        const lvr_rec_exit row = {.request = request, .pos = pos, .node = node, .score = 0.5f};
        put(lane, LVR_STREAM_EXIT, &row);
    }
    for (uint32_t node = 0; node < 3; node++) {
        const lvr_rec_tree row = {.request = request,
                                  .pos = pos,
                                  .node = node,
                                  .parent = node == 0 ? -1 : 0,
                                  .depth = node > 0,
                                  .rank = node == 2,
                                  .token = (int32_t)(pos + node),
                                  .p_draft = 0.25f,
                                  .target_token = node < 2 ? (int32_t)(pos + node + 1) : -1,
                                  .p_target = node < 2 ? 0.5f : NAN,
                                  .on_path = node < 2,
                                  .expanded = node == 0};
        put(lane, LVR_STREAM_TREES, &row);
    }
    for (uint32_t k = 0; k < 2; k++) {
        const lvr_rec_draft_topk row = {request, pos, k, (int32_t)(pos + k), 0.25f};
        put(lane, LVR_STREAM_DRAFT_TOPK, &row);
    }
}

void fixture_put_positions(lvr_trace_lane *lane, uint64_t request, uint32_t n, bool with_request)
{
    const lvr_rec_request row = {.id = request, .n_prompt = 1, .n_output = n};
    if (with_request)
        put(lane, LVR_STREAM_REQUESTS, &row);
    for (uint32_t pos = 0; pos <= n; pos++) {
        const lvr_rec_token token = {request, pos, (int32_t)pos, pos > 0, 0};
        put(lane, LVR_STREAM_TOKENS, &token);
    }
    for (uint32_t pos = 0; pos < n; pos++)
        put_position(lane, request, pos);
}

void fixture_wait_for_rounds(uint64_t n_rounds)
{
    for (int i = 0; i < 2000; i++) {
        lvr_trace *t = fixture_open();
        const uint64_t rows = lvr_trace_rows(t, LVR_STREAM_ROUNDS);
        lvr_trace_close(t);
        if (rows >= n_rounds)
            return;
        usleep(5000);
    }
    cr_assert_fail("the recording never showed %lu rounds", (unsigned long)n_rounds);
}
