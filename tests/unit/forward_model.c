/* Model loading, the KV cache, the forward pass's checks of its callers, and the phases underneath. */
#include "common/fs.h"
#include "engine/phases.h"
#include "tests/unit/forward_rig.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct gguf_tiny small = {.vocab = 300, .n_layers = 3, .type = LVR_Q8_0, .seed = 9};

/* A layer's bytes from the pack, as the flash reader would stage them. */
static uint8_t *stage(const lvr_pack *p, uint32_t layer)
{
    const uint64_t n = lvr_pack_layer_bytes(p, layer);
    uint8_t *data = aligned_alloc(LVR_PACK_ALIGN, n);
    const int fd = open(lvr_pack_path(p), O_RDONLY);
    cr_assert_geq(fd, 0);
    cr_assert_eq(lvr_pread_all(fd, data, n, lvr_pack_layer_offset(p, layer), "pack", NULL), LVR_OK);
    close(fd);
    return data;
}

static const lvr_fwd_row pair[] = {{.token = 65, .position = 0, .slot = 0, .parent_slot = -1},
                                   {.token = 66, .position = 1, .slot = 1, .parent_slot = 0}};

Test(model, staged_layers_equal_resident_ones)
{
    struct model_file file;
    model_file_make(&file, &small);
    lvr_model *all = rig_model(&file, NULL);
    lvr_model *some = rig_model(&file, (const bool[]){false, true, false});
    cr_expect_null(some->layer_data[0]);
    cr_expect_not_null(some->layer_data[1]);
    cr_expect_eq(some->resident_bytes,
                 lvr_pack_resident_bytes(some->pack) + lvr_pack_layer_bytes(some->pack, 1));
    cr_expect_eq((uintptr_t)some->resident_data % 64, 0u);
    float want[2][300], got[2][300];
    struct rig a, b;
    rig_open(&a, all, LVR_CPU_C, 1, 16, 4, 4);
    rig_open(&b, some, LVR_CPU_C, 1, 16, 4, 4);
    rig_pass(&a, pair, 2, want[0]);
    uint8_t *layer0 = stage(some->pack, 0), *layer2 = stage(some->pack, 2);
    cr_assert_eq(lvr_forward_embed(b.forward, pair, 2, NULL), LVR_OK);
    lvr_forward_layer(b.forward, 0, layer0);
    lvr_forward_layer(b.forward, 1, NULL);
    lvr_forward_layer(b.forward, 2, layer2);
    lvr_forward_heads(b.forward, (const uint32_t[]){0, 1}, 2, got[0]);
    cr_expect(memcmp(want, got, sizeof want) == 0);
    free(layer0);
    free(layer2);
    rig_close(&a);
    rig_close(&b);
    lvr_model_free(all);
    lvr_model_free(some);
    model_file_remove(&file);
}

static void flip_byte(const char *path, uint64_t at)
{
    uint8_t byte;
    const int fd = open(path, O_RDWR);
    cr_assert_geq(fd, 0);
    cr_assert_eq(pread(fd, &byte, 1, (off_t)at), 1);
    byte ^= 0x40;
    cr_assert_eq(pwrite(fd, &byte, 1, (off_t)at), 1);
    close(fd);
}

static lvr_status reopen(const char *path, const bool *resident, lvr_error *err)
{
    lvr_pack *p = NULL;
    cr_assert_eq(lvr_pack_open(path, &p, err), LVR_OK, "%s", err->msg);
    lvr_model *m = NULL;
    const lvr_status status = lvr_model_from_pack(p, resident, NULL, &m, err);
    lvr_model_free(m);
    return status;
}

Test(model, damaged_sections_are_found_when_loaded)
{
    struct model_file file;
    model_file_make(&file, &small);
    lvr_model *m = rig_model(&file, NULL);
    char path[256];
    cr_assert_lt(strlen(lvr_pack_path(m->pack)), sizeof path);
    strcpy(path, lvr_pack_path(m->pack));
    const uint64_t layer = lvr_pack_layer_offset(m->pack, 1), resident = lvr_pack_resident_offset(m->pack);
    lvr_model_free(m);

    lvr_error err = LVR_ERROR_INIT;
    flip_byte(path, layer + 100);
    cr_expect_eq(reopen(path, NULL, &err), LVR_ERR_FORMAT);
    cr_expect(strstr(err.msg, "layer 1") && strstr(err.msg, path), "%s", err.msg);
    cr_expect_eq(reopen(path, (const bool[]){true, false, true}, &err), LVR_OK, "not read, not checked");
    flip_byte(path, layer + 100);
    cr_expect_eq(reopen(path, NULL, &err), LVR_OK);
    flip_byte(path, resident + 5);
    cr_expect_eq(reopen(path, NULL, &err), LVR_ERR_FORMAT);
    cr_expect(strstr(err.msg, "embedding"), "%s", err.msg);
    model_file_remove(&file);
}

Test(model, missing_file_leaves_outputs_alone)
{
    lvr_model *m = NULL;
    lvr_error err = LVR_ERROR_INIT;
    cr_expect_eq(lvr_model_open("/nonexistent/x.gguf", NULL, &m, &err), LVR_ERR_IO);
    cr_expect_null(m);
    cr_expect(strstr(err.msg, "/nonexistent/x.gguf"), "%s", err.msg);
}

static void expect_row(const lvr_kv *kv, uint32_t layer, uint32_t head, uint32_t position, uint32_t slot)
{
    const size_t at = lvr_kv_cache_at(kv, layer, head, position);
    const size_t from = lvr_kv_scratch_at(kv, layer, head, slot);
    cr_expect(memcmp(kv->k + at, kv->sk + from, kv->row_bytes) == 0 &&
                  memcmp(kv->v + at, kv->sv + from, kv->row_bytes) == 0,
              "%s: layer %u, head %u, position %u", lvr_kv_type_name(kv->shape.type), layer, head, position);
}

static void check_commit(lvr_kv_type type)
{
    const lvr_kv_shape shape = {
        .type = type, .n_layers = 2, .n_ctx = 4, .max_scratch = 3, .n_kv = 2, .head_dim = 48};
    lvr_kv kv;
    cr_assert_eq(lvr_kv_init(&kv, &shape, NULL), LVR_OK);
    for (size_t i = 0; i < (size_t)2 * 2 * 3 * kv.row_bytes; i++) {
        kv.sk[i] = (uint8_t)(i * 7);
        kv.sv[i] = (uint8_t)(i * 11 + 5);
    }
    cr_expect_eq(lvr_kv_commit(&kv, (const uint32_t[]){2}, 1, NULL), LVR_OK);
    cr_expect_eq(lvr_kv_commit(&kv, (const uint32_t[]){1, 0}, 2, NULL), LVR_OK);
    cr_expect_eq(kv.n_cached, 3u);
    static const uint32_t slots[] = {2, 1, 0};
    for (uint32_t l = 0; l < 2; l++)
        for (uint32_t h = 0; h < 2; h++)
            for (uint32_t p = 0; p < 3; p++)
                expect_row(&kv, l, h, p, slots[p]);
    lvr_error err = LVR_ERROR_INIT;
    cr_expect_eq(lvr_kv_commit(&kv, (const uint32_t[]){0, 1}, 2, &err), LVR_ERR_INVARIANT);
    cr_expect_eq(lvr_kv_append(&kv, 2, &err), LVR_ERR_INVARIANT);
    cr_expect_eq(kv.n_cached, 3u);
    cr_expect_eq(lvr_kv_commit(&kv, (const uint32_t[]){3}, 1, &err), LVR_ERR_INVARIANT);
    cr_expect_eq(kv.n_cached, 3u);
    cr_expect_eq(lvr_kv_append(&kv, 1, &err), LVR_OK);
    cr_expect_eq(kv.n_cached, 4u);
    lvr_kv_clear(&kv);
    cr_expect_eq(kv.n_cached, 0u);
    lvr_kv_free(&kv);
    lvr_kv_free(&kv); /* harmless */
}

Test(kv, commit_takes_rows_in_order)
{
    check_commit(LVR_KV_F16);
    check_commit(LVR_KV_Q8_0);
}

Test(kv, sizes_that_overflow_are_refused)
{
    lvr_kv kv = {0};
    lvr_error err = LVR_ERROR_INIT;
    const lvr_kv_shape huge = {.n_layers = UINT32_MAX,
                               .n_ctx = UINT32_MAX,
                               .max_scratch = 1,
                               .n_kv = 1,
                               .head_dim = UINT32_MAX & ~15u};
    cr_expect_eq(lvr_kv_bytes(&huge), UINT64_MAX);
    cr_expect_eq(lvr_kv_init(&kv, &huge, NULL), LVR_ERR_NOMEM);
    lvr_kv_shape small_one = {.n_layers = 2, .n_ctx = 4, .max_scratch = 3, .n_kv = 2, .head_dim = 32};
    cr_expect_eq(lvr_kv_bytes(&small_one), 2u * (2 * 2 * 4 + 2 * 2 * 3) * 32 * 2);
    small_one.type = LVR_KV_Q8_0; /* 34 bytes a row, planes rounded up to 64 */
    cr_expect_eq(lvr_kv_bytes(&small_one), 2u * (576 + 448));
    small_one.head_dim = 24;
    cr_expect_eq(lvr_kv_init(&kv, &small_one, &err), LVR_ERR_UNSUPPORTED);
    cr_expect(strstr(err.msg, "head width 24"), "%s", err.msg);
}

/* One mistake of a caller each. */
Test(forward, mistakes_are_named)
{
    static const struct {
        lvr_status status;
        const char *says;
        uint32_t n;
        lvr_fwd_row rows[3];
    } cases[] = {
        {LVR_ERR_FORMAT, "vocabulary", 1, {{300, 0, 0, -1}}},
        {LVR_ERR_FORMAT, "vocabulary", 1, {{-1, 0, 0, -1}}},
        {LVR_ERR_INVARIANT, "context", 1, {{1, 16, 0, -1}}},
        {LVR_ERR_INVARIANT, "scratch row", 1, {{1, 0, 4, -1}}},
        {LVR_ERR_INVARIANT, "scratch row", 1, {{1, 0, 0, 4}}},
        {LVR_ERR_INVARIANT, "scratch row", 1, {{1, 0, 0, -2}}},
        {LVR_ERR_INVARIANT, "two rows", 2, {{1, 0, 0, -1}, {2, 0, 0, -1}}},
        {LVR_ERR_INVARIANT, "no ancestor", 1, {{1, 1, 0, -1}}},
        {LVR_ERR_INVARIANT, "no ancestor", 1, {{1, 1, 0, 1}}},
        {LVR_ERR_INVARIANT, "no ancestor", 2, {{1, 0, 0, -1}, {2, 2, 1, 0}}},
        {LVR_ERR_INVARIANT, "no ancestor", 1, {{1, 1, 0, 0}}},
        {LVR_ERR_INVARIANT, "at most 2", 3, {{1, 0, 0, -1}, {1, 0, 1, -1}, {1, 0, 2, -1}}},
    };
    struct model_file file;
    model_file_make(&file, &small);
    lvr_model *m = rig_model(&file, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rig r;
        rig_open(&r, m, LVR_CPU_C, 1, 16, 2, 4);
        lvr_error err = LVR_ERROR_INIT;
        cr_expect_eq(lvr_forward_embed(r.forward, cases[i].rows, cases[i].n, &err), cases[i].status,
                     "case %zu", i);
        cr_expect(strstr(err.msg, cases[i].says), "case %zu: %s", i, err.msg);
        lvr_forward_layer(r.forward, 0, NULL); /* nothing to do, nothing done */
        cr_expect_eq(lvr_forward_embed(r.forward, pair, 2, &err), LVR_OK, "case %zu: %s", i, err.msg);
        rig_close(&r);
    }
    lvr_model_free(m);
    model_file_remove(&file);
}

Test(forward, cached_positions_are_not_computed_again)
{
    struct model_file file;
    model_file_make(&file, &small);
    lvr_model *m = rig_model(&file, NULL);
    struct rig r;
    rig_open(&r, m, LVR_CPU_C, 1, 16, 2, 4);
    rig_prompt(&r, (const int32_t[]){65, 66}, 2, 2);
    lvr_error err = LVR_ERROR_INIT;
    cr_expect_eq(lvr_forward_embed(r.forward, pair, 2, &err), LVR_ERR_INVARIANT);
    cr_expect(strstr(err.msg, "already in the cache"), "%s", err.msg);
    rig_close(&r);
    lvr_model_free(m);
    model_file_remove(&file);
}

Test(forward, mistakes_in_prompt_passes_are_named)
{
    static const struct {
        lvr_status status;
        const char *says;
        uint32_t first, n;
        int32_t tokens[4];
    } cases[] = {
        {LVR_ERR_FORMAT, "vocabulary", 2, 2, {1, 300}},
        {LVR_ERR_FORMAT, "vocabulary", 2, 1, {-1}},
        {LVR_ERR_INVARIANT, "at most 3", 2, 4, {1, 2, 3, 4}},
        {LVR_ERR_INVARIANT, "from position 1 on, but the cache holds 2", 1, 2, {1, 2}},
        {LVR_ERR_INVARIANT, "from position 3 on", 3, 1, {1}},
        {LVR_ERR_INVARIANT, "outside the context of 4", 2, 3, {1, 2, 3}},
    };
    const struct rig_sizes sizes = {
        .level = LVR_CPU_C, .threads = 1, .n_ctx = 4, .max_rows = 2, .max_prompt_rows = 3, .max_scratch = 2};
    struct model_file file;
    model_file_make(&file, &small);
    lvr_model *m = rig_model(&file, NULL);
    struct rig r;
    rig_open_sized(&r, m, &sizes);
    rig_prompt_direct(&r, (const int32_t[]){65, 66}, 2, 2);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lvr_error err = LVR_ERROR_INIT;
        cr_expect_eq(lvr_forward_embed_prompt(r.forward, cases[i].tokens, cases[i].first, cases[i].n, &err),
                     cases[i].status, "case %zu", i);
        cr_expect(strstr(err.msg, cases[i].says), "case %zu: %s", i, err.msg);
        lvr_forward_layer(r.forward, 0, NULL); /* nothing to do, nothing done */
    }
    rig_prompt_direct(&r, (const int32_t[]){67, 68}, 2, 2);
    rig_close(&r);
    rig_open(&r, m, LVR_CPU_C, 1, 4, 2, 2);
    cr_expect_eq(lvr_forward_embed_prompt(r.forward, (const int32_t[]){1}, 0, 1, NULL), LVR_ERR_INVARIANT,
                 "a workspace made without prompt passes");
    rig_close(&r);
    lvr_model_free(m);
    model_file_remove(&file);
}

/* What a pass over a prompt holds for all rows is their residual stream alone. */
Test(forward, prompt_rows_cost_their_residual_stream)
{
    const lvr_model_shape s = {
        .n_layers = 2, .d_model = 256, .n_heads = 4, .n_kv = 2, .head_dim = 64, .d_ff = 1024, .vocab = 100};
    const uint64_t none = lvr_forward_bytes(&s, 512, 64, 0, 2);
    cr_expect_eq(lvr_forward_bytes(&s, 512, 64, 64, 2), none);
    cr_expect_eq(lvr_forward_bytes(&s, 512, 64, 4096, 2), none + (4096 - 64) * 4 * 256);
}

Test(forward, heads_in_one_go_equal_heads_one_by_one)
{
    struct model_file file;
    model_file_make(&file, &small);
    lvr_model *m = rig_model(&file, NULL);
    struct rig r;
    rig_open(&r, m, lvr_cpu_best(), 2, 16, 2, 4);
    float one[2][300], many[5][300];
    static const uint32_t order[] = {1, 0, 1, 1, 0}; /* more than max_rows */
    rig_pass(&r, pair, 2, one[0]);
    lvr_forward_heads(r.forward, order, 5, many[0]);
    for (uint32_t i = 0; i < 5; i++)
        cr_expect(memcmp(many[i], one[order[i]], sizeof many[i]) == 0, "head %u", i);
    rig_close(&r);
    lvr_model_free(m);
    model_file_remove(&file);
}

Test(forward, workspace_that_cannot_be_is_refused)
{
    struct model_file file;
    model_file_make(&file, &small);
    lvr_model *m = rig_model(&file, NULL);
    lvr_model_shape huge = *m->shape;
    huge.d_ff = huge.d_model = UINT32_MAX;
    cr_expect_eq(lvr_forward_bytes(&huge, 1, UINT32_MAX, 0, 1), UINT64_MAX);
    struct rig r;
    rig_open(&r, m, LVR_CPU_C, 1, 16, 2, 4);
    lvr_forward *f = NULL;
    lvr_error err = LVR_ERROR_INIT;
    cr_expect_eq(lvr_forward_new(m, &r.kernels, r.pool, &r.kv, 0, 0, &f, &err), LVR_ERR_INVARIANT);
    lvr_kv other;
    const lvr_kv_shape another = {.n_layers = 1, .n_ctx = 4, .max_scratch = 4, .n_kv = 1, .head_dim = 32};
    cr_assert_eq(lvr_kv_init(&other, &another, NULL), LVR_OK);
    cr_expect_eq(lvr_forward_new(m, &r.kernels, r.pool, &other, 2, 0, &f, &err), LVR_ERR_INVARIANT);
    cr_expect_null(f);
    lvr_kv_free(&other);
    rig_close(&r);
    lvr_model_free(m);
    model_file_remove(&file);
}

/* ---- phases ---- */

enum { N_UNITS = 1000 };

struct sums {
    uint64_t value[2][N_UNITS];
    uint64_t total; /* of value[1], by phase 2 */
};

static void fill_first(void *arg, uint64_t begin, uint64_t end, uint32_t worker)
{
    (void)worker;
    struct sums *s = arg;
    for (uint64_t i = begin; i < end; i++)
        s->value[0][i]++;
}

/* Reads what another worker may have written in the phase before. */
static void fill_second(void *arg, uint64_t begin, uint64_t end, uint32_t worker)
{
    (void)worker;
    struct sums *s = arg;
    for (uint64_t i = begin; i < end; i++)
        s->value[1][i] = s->value[0][N_UNITS - 1 - i];
}

static void add_up(void *arg, uint64_t begin, uint64_t end, uint32_t worker)
{
    (void)begin;
    (void)end;
    (void)worker;
    struct sums *s = arg;
    for (uint64_t i = 0; i < N_UNITS; i++)
        s->total += s->value[1][i];
}

static void check_phases(lvr_pool *pool, uint64_t chunk)
{
    struct sums s = {0};
    lvr_phase phases[] = {
        {.body = fill_first, .arg = &s, .n_units = N_UNITS, .chunk = chunk},
        {.body = fill_first, .arg = &s, .n_units = 0, .chunk = chunk},
        {.body = fill_second, .arg = &s, .n_units = N_UNITS, .chunk = chunk + 1},
        {.body = add_up, .arg = &s, .n_units = 1, .chunk = 1},
    };
    lvr_phases_run(pool, phases, 4);
    cr_expect_eq(s.total, (uint64_t)N_UNITS, "chunk %llu: %llu", (unsigned long long)chunk,
                 (unsigned long long)s.total);
}

Test(phases, each_unit_once_and_in_order_of_phases)
{
    check_phases(NULL, 10);
    for (uint32_t threads = 1; threads <= 5; threads++) {
        lvr_pool *pool = NULL;
        cr_assert_eq(lvr_pool_new(threads, &pool, NULL), LVR_OK);
        for (uint32_t i = 0; i < 100; i++)
            check_phases(pool, i % 2 ? 7 : 2000);
        lvr_pool_free(pool);
    }
}
