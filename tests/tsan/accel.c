/* The ticket path: what a ticket writes is seen after wait and after poll, and what the caller writes is seen
 * by the ticket, without other synchronisation. */
#include "engine/accel/accel.h"
#include "common/clock.h"
#include "common/rng.h"
#include "tests/tsan/tap.h"
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N_ROWS 5u
#define N_PASSES 40u

typedef struct stage {
    lvr_model *model;
    lvr_kernels kernels;
    lvr_pool *pool;
    lvr_kv kv;
    lvr_forward *forward;
    float *want, *got;
    lvr_fwd_row rows[N_ROWS];
} stage;

static bool open_stage(stage *s, const char *path, lvr_error *err)
{
    lvr_status st = lvr_model_open(path, NULL, &s->model, err);
    if (st != LVR_OK)
        return false;
    const lvr_model_shape *shape = s->model->shape;
    const lvr_kv_shape cache = lvr_forward_kv_shape(shape, LVR_KV_F16, 64, N_ROWS);
    lvr_kernels_init(&s->kernels, lvr_cpu_best());
    st = lvr_pool_new(2, &s->pool, err);
    if (st == LVR_OK)
        st = lvr_kv_init(&s->kv, &cache, err);
    if (st == LVR_OK)
        st = lvr_forward_new(s->model, &s->kernels, s->pool, &s->kv, N_ROWS, 0, &s->forward, err);
    s->want = calloc(shape->vocab, sizeof *s->want);
    s->got = calloc(shape->vocab, sizeof *s->got);
    for (uint32_t r = 0; r < N_ROWS; r++)
        s->rows[r] = (lvr_fwd_row){
            .token = (int32_t)(7 * r + 3), .position = r, .slot = r, .parent_slot = (int32_t)r - 1};
    return st == LVR_OK && s->want && s->got;
}

static void close_stage(stage *s)
{
    lvr_forward_free(s->forward);
    lvr_kv_free(&s->kv);
    lvr_pool_free(s->pool);
    lvr_model_free(s->model);
    free(s->want);
    free(s->got);
}

static bool same(stage *s)
{
    lvr_forward_head(s->forward, N_ROWS - 1, s->got);
    return memcmp(s->want, s->got, s->model->shape->vocab * sizeof *s->want) == 0;
}

static bool pass_on_cpu(stage *s, lvr_error *err)
{
    if (lvr_forward_embed(s->forward, s->rows, N_ROWS, err) != LVR_OK)
        return false;
    for (uint32_t l = 0; l < s->model->shape->n_layers; l++)
        lvr_forward_layer(s->forward, l, NULL);
    lvr_forward_head(s->forward, N_ROWS - 1, s->want);
    return true;
}

/* Waits for each ticket in its own way; now and then lets the unit go to sleep first. */
static bool pass_in_tickets(stage *s, lvr_accel *a, lvr_rng *rng, lvr_error *err)
{
    const lvr_accel_graph *g = NULL;
    lvr_accel_times t;
    if (lvr_forward_embed(s->forward, s->rows, N_ROWS, err) != LVR_OK ||
        lvr_accel_graph_get(a, s->forward, N_ROWS, &g, err) != LVR_OK)
        return false;
    for (uint32_t l = 0; l < s->model->shape->n_layers; l++) {
        lvr_accel_ticket ticket = 0;
        const uint64_t way = lvr_rng_below(rng, 4);
        if (way == 0)
            lvr_sleep_until_ns(lvr_now_ns() + 200000);
        if (lvr_accel_submit(a, g, l, NULL, &ticket, err) != LVR_OK)
            return false;
        while (way == 1 && !lvr_accel_poll(a, ticket, &t))
            continue;
        while (way == 2 && !lvr_accel_wait(a, ticket, 10000, &t))
            continue;
        if (!lvr_accel_wait(a, ticket, UINT64_MAX, &t))
            return false;
    }
    return same(s);
}

static void try_back_end(stage *s, const char *name, lvr_error *err)
{
    char what[80];
    lvr_accel *a = NULL;
    lvr_rng rng;
    bool good = true;
    const lvr_accel_config c = {.name = name, .kernels = &s->kernels};
    lvr_rng_init(&rng, 1, name);
    snprintf(what, sizeof what, "%s: opens", name);
    if (!tap_status(lvr_accel_open(&c, &a, err), err, what))
        return;
    for (uint32_t i = 0; i < N_PASSES && good; i++)
        good = pass_in_tickets(s, a, &rng, err);
    snprintf(what, sizeof what, "%s: the same logits from tickets", name);
    tap_ok(good, what);
    lvr_accel_ticket ticket;
    for (uint32_t i = 0; i < lvr_accel_get_caps(a)->max_inflight; i++)
        good = good && lvr_accel_submit(a, NULL, 0, NULL, &ticket, err) == LVR_OK;
    lvr_accel_close(a);
    snprintf(what, sizeof what, "%s: closes with tickets in flight", name);
    tap_ok(good, what);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st, (void)type, (void)at;
    return remove(path);
}

int main(void)
{
    char folder[] = "lvr-tsan-accel-XXXXXX", path[512];
    const char *root = getenv("LVR_SOURCE_ROOT");
    lvr_error err = LVR_ERROR_INIT;
    stage s = {0};
    if (!tap_ok(root && mkdtemp(folder), "LVR_SOURCE_ROOT and a folder"))
        return tap_done();
    setenv("LVR_CACHE_DIR", folder, 1); /* packs made on the way go there */
    snprintf(path, sizeof path, "%s/models/lever-draft-1m-q8_0.gguf", root);
    if (tap_ok(open_stage(&s, path, &err) && pass_on_cpu(&s, &err), "a model")) {
        try_back_end(&s, "null", &err);
        try_back_end(&s, "matrix", &err);
    }
    if (err.msg[0])
        printf("# %s\n", err.msg);
    close_stage(&s);
    tap_ok(nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS) == 0, "cleans up");
    return tap_done();
}
