#include "tests/unit/forward_rig.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(call)                                                                                          \
    do {                                                                                                     \
        lvr_error err_ = LVR_ERROR_INIT;                                                                     \
        lvr_error *err = &err_;                                                                              \
        cr_assert_eq((call), LVR_OK, "%s: %s", #call, err_.msg);                                             \
    } while (0)

void model_file_make(struct model_file *file, const struct gguf_tiny *spec)
{
    strcpy(file->dir, "/tmp/lvr-forward-XXXXXX");
    cr_assert(mkdtemp(file->dir), "cannot make a directory");
    snprintf(file->path, sizeof file->path, "%s/model.gguf", file->dir);
    setenv("LVR_CACHE_DIR", file->dir, 1);
    CHECK(gguf_build_tiny(file->path, spec, err));
}

void model_file_remove(const struct model_file *file)
{
    DIR *dir = opendir(file->dir);
    cr_assert(dir, "cannot open %s", file->dir);
    for (const struct dirent *e = readdir(dir); e; e = readdir(dir))
        if (e->d_type == DT_REG)
            unlinkat(dirfd(dir), e->d_name, 0);
    closedir(dir);
    rmdir(file->dir);
}

lvr_model *rig_model(const struct model_file *file, const bool *resident)
{
    lvr_model *model = NULL;
    CHECK(lvr_model_open(file->path, resident, &model, err));
    return model;
}

void rig_open_sized(struct rig *r, lvr_model *model, const struct rig_sizes *sizes)
{
    const lvr_kv_shape cache =
        lvr_forward_kv_shape(model->shape, sizes->kv_type, sizes->n_ctx, sizes->max_scratch);
    *r = (struct rig){.model = model, .vocab = model->shape->vocab};
    lvr_kernels_init(&r->kernels, sizes->level);
    CHECK(lvr_pool_new(sizes->threads, &r->pool, err));
    CHECK(lvr_kv_init(&r->kv, &cache, err));
    CHECK(lvr_forward_new(model, &r->kernels, r->pool, &r->kv, sizes->max_rows, sizes->max_prompt_rows,
                          &r->forward, err));
}

void rig_open(struct rig *r, lvr_model *model, lvr_cpu_level level, uint32_t threads, uint32_t n_ctx,
              uint32_t max_rows, uint32_t max_scratch)
{
    const struct rig_sizes sizes = {
        .level = level, .threads = threads, .n_ctx = n_ctx, .max_rows = max_rows, .max_scratch = max_scratch};
    rig_open_sized(r, model, &sizes);
}

void rig_close(struct rig *r)
{
    lvr_forward_free(r->forward);
    lvr_kv_free(&r->kv);
    lvr_pool_free(r->pool);
}

void rig_pass(struct rig *r, const lvr_fwd_row *rows, uint32_t n, float *out)
{
    CHECK(lvr_forward_embed(r->forward, rows, n, err));
    for (uint32_t l = 0; l < r->model->shape->n_layers; l++)
        lvr_forward_layer(r->forward, l, NULL);
    for (uint32_t i = 0; out && i < n; i++)
        lvr_forward_head(r->forward, i, out + (size_t)i * r->vocab);
}

void rig_prompt(struct rig *r, const int32_t *tokens, uint32_t n, uint32_t chunk)
{
    lvr_fwd_row rows[512];
    uint32_t slots[512];
    cr_assert_leq(chunk, 512u);
    for (uint32_t done = 0; done < n;) {
        const uint32_t len = n - done < chunk ? n - done : chunk;
        for (uint32_t i = 0; i < len; i++) {
            rows[i] = (lvr_fwd_row){.token = tokens[done + i],
                                    .position = r->kv.n_cached + i,
                                    .slot = i,
                                    .parent_slot = (int32_t)i - 1};
            slots[i] = i;
        }
        rig_pass(r, rows, len, NULL);
        CHECK(lvr_kv_commit(&r->kv, slots, len, err));
        done += len;
    }
}

void rig_prompt_direct(struct rig *r, const int32_t *tokens, uint32_t n, uint32_t chunk)
{
    for (uint32_t done = 0; done < n;) {
        const uint32_t len = n - done < chunk ? n - done : chunk;
        CHECK(lvr_forward_embed_prompt(r->forward, tokens + done, r->kv.n_cached, len, err));
        for (uint32_t l = 0; l < r->model->shape->n_layers; l++)
            lvr_forward_layer(r->forward, l, NULL);
        CHECK(lvr_kv_append(&r->kv, len, err));
        done += len;
    }
}
