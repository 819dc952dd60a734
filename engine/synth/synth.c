#include "engine/synth/synth.h"
#include "common/log.h"
#include "common/threads.h"
#include "engine/gguf_write.h"
#include "engine/synth/quantize.h"
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GENERATOR 1u                  /* of the values: changed when the same options give other bytes */
#define CHUNK_BYTES (4ull << 20)      /* a thread's rows at a time */
#define PROGRESS_BYTES (256ull << 20) /* smaller models are written without progress notices */

/* What one thread works with. */
struct bench {
    float *row, *scratch;
    uint8_t *out; /* a chunk of rows, as in the file */
};

struct writing {
    const lvr_recipe *recipe;
    lvr_gguf_writer *w;
    lvr_pool *pool;
    const char *path;
    atomic_bool *cancel;
    struct bench benches[LVR_POOL_MAX_THREADS];
    uint32_t tensor; /* being written */
    uint64_t done, total;
    unsigned tenths;

    atomic_bool failed;
    pthread_mutex_t lock; /* of error and status */
    lvr_status status;
    lvr_error error;
};

/* ---- keys ---- */

static uint32_t file_type(lvr_wtype t)
{
    static const struct {
        lvr_wtype type;
        uint32_t number; /* ggml's general.file_type for "mostly this type" */
    } numbers[] = {{LVR_F32, 0},   {LVR_F16, 1},   {LVR_Q4_0, 2}, {LVR_Q4_1, 3},
                   {LVR_Q8_0, 7},  {LVR_Q5_0, 8},  {LVR_Q5_1, 9}, {LVR_Q4_K, 14},
                   {LVR_Q5_K, 16}, {LVR_Q6_K, 18}, {LVR_BF16, 32}};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (numbers[i].type == t)
            return numbers[i].number;
    return 0;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

static void put_arch_u32(lvr_gguf_writer *w, const lvr_shape *s, const char *key, uint32_t v)
{
    char full[96];
    snprintf(full, sizeof full, "%s.%s", s->arch, key);
    lvr_gguf_write_u32(w, full, v);
}

static void put_arch_f32(lvr_gguf_writer *w, const lvr_shape *s, const char *key, double v)
{
    char full[96];
    snprintf(full, sizeof full, "%s.%s", s->arch, key);
    lvr_gguf_write_f32(w, full, (float)v);
}

static void put_hyperparameters(lvr_gguf_writer *w, const lvr_shape *s)
{
    put_arch_u32(w, s, "vocab_size", s->vocab);
    put_arch_u32(w, s, "context_length", s->n_ctx);
    put_arch_u32(w, s, "embedding_length", s->d_model);
    put_arch_u32(w, s, "block_count", s->n_layers);
    put_arch_u32(w, s, "feed_forward_length", s->d_ff);
    put_arch_u32(w, s, "attention.head_count", s->n_heads);
    put_arch_u32(w, s, "attention.head_count_kv", s->n_kv);
    put_arch_u32(w, s, "rope.dimension_count", s->head_dim);
    if (s->n_heads * s->head_dim != s->d_model || strcmp(s->arch, "qwen3") == 0) {
        put_arch_u32(w, s, "attention.key_length", s->head_dim);
        put_arch_u32(w, s, "attention.value_length", s->head_dim);
    }
    put_arch_f32(w, s, "attention.layer_norm_rms_epsilon", s->rms_eps);
    put_arch_f32(w, s, "rope.freq_base", s->rope_base);
}

/* How to make this file again. */
static void put_provenance(lvr_gguf_writer *w, const lvr_synth_options *o, const lvr_recipe *r)
{
    const lvr_synth_planting *p = &r->planting;
    lvr_gguf_write_bool(w, LVR_GGUF_SYNTHETIC, true);
    lvr_gguf_write_u32(w, "lever.synthetic.generator", GENERATOR);
    lvr_gguf_write_str(w, "lever.synthetic.shape", o->shape->name);
    lvr_gguf_write_u64(w, "lever.synthetic.seed", o->seed);
    lvr_gguf_write_str(w, "lever.synthetic.vocabulary", base_name(o->vocab_path));
    lvr_gguf_write_bool(w, "lever.synthetic.planted", r->planted);
    if (!r->planted)
        return;
    lvr_gguf_write_u32(w, "lever.synthetic.successors", p->n_successors);
    lvr_gguf_write_f32(w, "lever.synthetic.agreement", (float)p->agreement);
    lvr_gguf_write_f32(w, "lever.synthetic.clarity", (float)p->clarity);
    lvr_gguf_write_f32(w, "lever.synthetic.gap", (float)p->gap);
    lvr_gguf_write_f32(w, "lever.synthetic.noise", (float)p->noise);
    if (p->early_layer == 0)
        return;
    lvr_gguf_write_u32(w, "lever.synthetic.early_layer", p->early_layer);
    lvr_gguf_write_f32(w, "lever.synthetic.early_agreement", (float)p->early_agreement);
    lvr_gguf_write_f32(w, "lever.synthetic.early_fraction", (float)p->early_fraction);
}

static void put_keys(lvr_gguf_writer *w, const lvr_synth_options *o, const lvr_recipe *r,
                     const lvr_synth_vocab *v)
{
    char name[192];
    snprintf(name, sizeof name, "%s synthetic %s seed %" PRIu64, o->shape->name,
             r->planted ? "planted" : "random", o->seed);
    lvr_gguf_write_str(w, "general.architecture", o->shape->arch);
    lvr_gguf_write_str(w, "general.type", "model");
    lvr_gguf_write_str(w, "general.name", name);
    lvr_gguf_write_u32(w, "general.file_type", file_type(o->type));
    lvr_gguf_write_u32(w, "general.quantization_version", 2);
    put_hyperparameters(w, o->shape);
    put_provenance(w, o, r);
    lvr_synth_vocab_write(v, w);
}

/* ---- data ---- */

static void keep_error(struct writing *x, lvr_status status, const lvr_error *err)
{
    pthread_mutex_lock(&x->lock);
    if (x->status == LVR_OK) {
        x->status = status;
        x->error = *err;
    }
    pthread_mutex_unlock(&x->lock);
    atomic_store(&x->failed, true);
}

static bool should_stop(struct writing *x)
{
    lvr_error err = LVR_ERROR_INIT;
    if (atomic_load(&x->failed))
        return true;
    if (x->cancel == NULL || !atomic_load(x->cancel))
        return false;
    lvr_fail(&err, LVR_ERR_INTERRUPTED, "%s: interrupted; nothing was written", x->path);
    keep_error(x, LVR_ERR_INTERRUPTED, &err);
    return true;
}

/* Makes rows [begin, end) and writes them to their place. */
static void write_rows(void *arg, uint64_t begin, uint64_t end, uint32_t worker)
{
    struct writing *x = arg;
    const lvr_synth_tensor *t = &x->recipe->tensors[x->tensor];
    const struct bench *b = &x->benches[worker];
    const uint64_t row_bytes = lvr_wtype_row_bytes(t->type, t->dims[0]);
    lvr_error err = LVR_ERROR_INIT;
    if (should_stop(x))
        return;
    for (uint64_t row = begin; row < end; row++) {
        uint8_t *out = b->out + (row - begin) * row_bytes;
        lvr_recipe_row(x->recipe, t, row, b->row, b->scratch);
        if (t->type == LVR_F32)
            memcpy(out, b->row, row_bytes);
        else
            lvr_quantize_row(t->type, b->row, (uint32_t)t->dims[0], out);
    }
    const lvr_status status =
        lvr_gguf_writer_put(x->w, x->tensor, begin * row_bytes, b->out, (end - begin) * row_bytes, &err);
    if (status != LVR_OK)
        keep_error(x, status, &err);
}

static void show_progress(struct writing *x)
{
    const unsigned tenths = (unsigned)(x->done * 10 / x->total);
    if (tenths > x->tenths && x->total >= PROGRESS_BYTES)
        lvr_log(LVR_LOG_INFO, "writing %s: %u %%", x->path, tenths * 10);
    x->tenths = tenths;
}

static uint64_t tensor_bytes(const lvr_synth_tensor *t)
{
    return lvr_wtype_row_bytes(t->type, t->dims[0]) * t->dims[1];
}

static uint64_t rows_at_a_time(const lvr_synth_tensor *t)
{
    const uint64_t n = CHUNK_BYTES / lvr_wtype_row_bytes(t->type, t->dims[0]);
    return n > 0 ? n : 1;
}

static lvr_status write_tensors(struct writing *x, lvr_error *err)
{
    for (x->tensor = 0; x->tensor < x->recipe->n_tensors; x->tensor++) {
        const lvr_synth_tensor *t = &x->recipe->tensors[x->tensor];
        lvr_pool_for(x->pool, t->dims[1], rows_at_a_time(t), write_rows, x);
        if (x->status != LVR_OK) {
            if (err != NULL)
                *err = x->error;
            return x->status;
        }
        x->done += tensor_bytes(t);
        show_progress(x);
    }
    return LVR_OK;
}

static lvr_status make_benches(struct writing *x, uint32_t threads, lvr_error *err)
{
    uint64_t widest = 0, out = 0;
    for (uint32_t i = 0; i < x->recipe->n_tensors; i++) {
        const lvr_synth_tensor *t = &x->recipe->tensors[i];
        const uint64_t bytes = rows_at_a_time(t) * lvr_wtype_row_bytes(t->type, t->dims[0]);
        widest = t->dims[0] > widest ? t->dims[0] : widest;
        out = bytes > out ? bytes : out;
        x->total += tensor_bytes(t);
    }
    for (uint32_t i = 0; i < threads; i++) {
        struct bench *b = &x->benches[i];
        b->row = calloc(widest, sizeof *b->row);
        b->scratch = calloc(widest, sizeof *b->scratch);
        b->out = malloc(out);
        if (b->row == NULL || b->scratch == NULL || b->out == NULL)
            return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory", x->path);
    }
    return LVR_OK;
}

static void free_benches(struct writing *x)
{
    for (uint32_t i = 0; i < LVR_POOL_MAX_THREADS; i++) {
        free(x->benches[i].row);
        free(x->benches[i].scratch);
        free(x->benches[i].out);
    }
}

static lvr_status write_data(const lvr_synth_options *o, const lvr_recipe *r, lvr_gguf_writer *w,
                             const char *path, lvr_error *err)
{
    struct writing *x = calloc(1, sizeof *x);
    if (x == NULL)
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory", path);
    x->recipe = r;
    x->w = w;
    x->path = path;
    x->cancel = o->cancel;
    pthread_mutex_init(&x->lock, NULL);
    lvr_status status = lvr_pool_new(o->threads, &x->pool, err);
    if (status == LVR_OK)
        status = make_benches(x, o->threads, err);
    if (status == LVR_OK)
        status = write_tensors(x, err);
    lvr_pool_free(x->pool);
    free_benches(x);
    pthread_mutex_destroy(&x->lock);
    free(x);
    return status;
}

static void announce(lvr_gguf_writer *w, const lvr_recipe *r)
{
    for (uint32_t i = 0; i < r->n_tensors; i++) {
        const lvr_synth_tensor *t = &r->tensors[i];
        lvr_gguf_write_tensor(w, t->name, t->type, t->n_dims, t->dims);
    }
}

static void describe(const lvr_recipe *r, const lvr_gguf_writer *w, const lvr_synth_vocab *v,
                     lvr_synth_result *ret)
{
    *ret = (lvr_synth_result){.file_bytes = lvr_gguf_writer_bytes(w),
                              .n_tensors = r->n_tensors,
                              .vocab_own = lvr_synth_vocab_own(v),
                              .chain_words = r->chain.n_words,
                              .planting = r->planting};
    for (uint32_t i = 0; i < r->n_tensors; i++)
        ret->weights += r->tensors[i].dims[0] * r->tensors[i].dims[1];
}

lvr_status lvr_synth_write(const lvr_synth_options *o, const char *path, lvr_synth_result *ret,
                           lvr_error *err)
{
    lvr_synth_vocab *v = NULL;
    lvr_recipe recipe = {0};
    lvr_gguf_writer *w = NULL;
    lvr_status status = lvr_synth_vocab_open(o->vocab_path, o->shape->vocab, &v, err);
    if (status == LVR_OK)
        status = lvr_recipe_new(o->shape, v, o->type, o->embd_type, o->seed, o->planting, &recipe, err);
    if (status != LVR_OK)
        goto out;
    w = lvr_gguf_writer_new(path);
    if (w == NULL) {
        status = lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory", path);
        goto out;
    }
    put_keys(w, o, &recipe, v);
    announce(w, &recipe);
    status = lvr_gguf_writer_open(w, err);
    if (status == LVR_OK)
        status = write_data(o, &recipe, w, path, err);
    if (status == LVR_OK)
        status = lvr_gguf_writer_finish(w, err);
    if (status == LVR_OK)
        describe(&recipe, w, v, ret);
out:
    lvr_gguf_writer_free(w);
    lvr_recipe_free(&recipe);
    lvr_synth_vocab_free(v);
    return status;
}
