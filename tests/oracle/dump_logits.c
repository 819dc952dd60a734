/*
 * The engine's half of the numpy oracle: logits of every position of a token sequence.
 *
 *     dump_logits MODEL THREADS LEVEL CHUNK < ids > logits
 *
 * `ids` are decimal numbers; `logits` are n x vocab floats in memory order. CHUNK rows go into a pass, each
 * pass is committed.
 */
#include "engine/forward.h"
#include <stdio.h>
#include <stdlib.h>

#define MAX_IDS 4096u

typedef struct dump {
    lvr_model *model;
    lvr_kernels kernels;
    lvr_pool *pool;
    lvr_kv kv;
    lvr_forward *forward;
    float *logits; /* [chunk][vocab] */
    uint32_t chunk;
} dump;

static lvr_status dump_open(dump *d, const char *path, uint32_t threads, lvr_cpu_level level, uint32_t chunk,
                            lvr_error *err)
{
    lvr_status status = lvr_model_open(path, NULL, &d->model, err);
    if (status != LVR_OK)
        return status;
    const lvr_model_shape *s = d->model->shape;
    const lvr_kv_shape cache = lvr_forward_kv_shape(s, LVR_KV_F16, MAX_IDS, chunk);
    lvr_kernels_init(&d->kernels, level);
    d->chunk = chunk;
    d->logits = calloc(chunk, s->vocab * sizeof *d->logits);
    if (!d->logits)
        return lvr_fail(err, LVR_ERR_NOMEM, "out of memory");
    status = lvr_pool_new(threads, &d->pool, err);
    if (status == LVR_OK)
        status = lvr_kv_init(&d->kv, &cache, err);
    if (status == LVR_OK)
        status = lvr_forward_new(d->model, &d->kernels, d->pool, &d->kv, chunk, 0, &d->forward, err);
    return status;
}

static void dump_close(dump *d)
{
    lvr_forward_free(d->forward);
    lvr_kv_free(&d->kv);
    lvr_pool_free(d->pool);
    lvr_model_free(d->model);
    free(d->logits);
}

static lvr_status dump_chunk(dump *d, const int32_t *ids, uint32_t n, lvr_error *err)
{
    lvr_fwd_row rows[MAX_IDS];
    uint32_t index[MAX_IDS];
    for (uint32_t i = 0; i < n; i++) {
        rows[i] = (lvr_fwd_row){
            .token = ids[i], .position = d->kv.n_cached + i, .slot = i, .parent_slot = (int32_t)i - 1};
        index[i] = i;
    }
    lvr_status status = lvr_forward_embed(d->forward, rows, n, err);
    if (status != LVR_OK)
        return status;
    for (uint32_t l = 0; l < d->model->shape->n_layers; l++)
        lvr_forward_layer(d->forward, l, NULL);
    lvr_forward_heads(d->forward, index, n, d->logits);
    const size_t n_logits = (size_t)n * d->model->shape->vocab;
    if (fwrite(d->logits, sizeof *d->logits, n_logits, stdout) != n_logits)
        return lvr_fail(err, LVR_ERR_IO, "cannot write");
    return lvr_kv_commit(&d->kv, index, n, err);
}

static uint32_t read_ids(int32_t ids[MAX_IDS])
{
    uint32_t n = 0;
    while (n < MAX_IDS && scanf("%d", &ids[n]) == 1)
        n++;
    return n;
}

int main(int argc, char **argv)
{
    static int32_t ids[MAX_IDS];
    lvr_error err = LVR_ERROR_INIT;
    lvr_cpu_level level;
    if (argc != 5 || !lvr_cpu_level_parse(argv[3], &level)) {
        fprintf(stderr, "usage: dump_logits MODEL THREADS LEVEL CHUNK < ids > logits\n");
        return 2;
    }
    const uint32_t chunk = (uint32_t)strtoul(argv[4], NULL, 10);
    if (chunk == 0 || chunk > MAX_IDS) {
        fprintf(stderr, "dump_logits: CHUNK: expected 1 to %u\n", MAX_IDS);
        return 2;
    }
    const uint32_t n = read_ids(ids);
    dump d = {0};
    lvr_status status = dump_open(&d, argv[1], (uint32_t)strtoul(argv[2], NULL, 10), level, chunk, &err);
    for (uint32_t i = 0; i < n && status == LVR_OK; i += chunk)
        status = dump_chunk(&d, ids + i, n - i < chunk ? n - i : chunk, &err);
    dump_close(&d);
    if (status != LVR_OK)
        fprintf(stderr, "dump_logits: %s\n", err.msg);
    return lvr_status_exit_code(status);
}
