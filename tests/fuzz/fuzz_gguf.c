/*
 * Any bytes as a GGUF file, then every question one can ask of it: values, tensors, the model's shape, the
 * tokenizer. Bytes that hold the start of a GGUF file more than once are the parts of a split model, too.
 */
#include "engine/gguf_internal.h"
#include "engine/pack.h"
#include "engine/tokenizer/tokenizer.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool truth)
{
    if (!truth)
        abort();
}

static void ask_key(const lvr_gguf *g, const char *key)
{
    uint32_t u = 0;
    float f = 0;
    const char *s = NULL;
    const lvr_gguf_str *strings = NULL;
    const float *floats = NULL;
    const int32_t *ints = NULL;
    uint64_t n = 0, sum = 0;
    lvr_error err = LVR_ERROR_INIT;
    require(lvr_gguf_has(g, key));
    if (lvr_gguf_u32(g, key, &u, &err) != LVR_OK)
        require(err.msg[0] != '\0');
    (void)lvr_gguf_f32(g, key, &f, &err);
    if (lvr_gguf_str_(g, key, &s, &err) == LVR_OK)
        sum += strlen(s);
    if (lvr_gguf_str_array(g, key, &strings, &n, &err) == LVR_OK)
        for (uint64_t i = 0; i < n; i++)
            for (uint64_t k = 0; k < strings[i].n; k++)
                sum += (unsigned char)strings[i].s[k];
    if (lvr_gguf_f32_array(g, key, &floats, &n, &err) == LVR_OK)
        for (uint64_t i = 0; i < n; i++)
            sum += floats[i] > 0;
    if (lvr_gguf_i32_array(g, key, &ints, &n, &err) == LVR_OK)
        for (uint64_t i = 0; i < n; i++)
            sum += ints[i] > 0;
    (void)*(volatile uint64_t *)&sum; /* the reads above must happen */
}

static void ask_tensors(const lvr_gguf *g, bool bounded)
{
    for (uint64_t i = 0; i < lvr_gguf_n_tensors(g); i++) {
        const lvr_gguf_tensor *t = lvr_gguf_tensor_at(g, i);
        require(lvr_gguf_find(g, t->name) == t && t->bytes > 0 && t->n_dims >= 1 && t->n_dims <= 4);
        require(!bounded || t->offset + t->bytes <= lvr_gguf_file_bytes(g));
    }
    require(lvr_gguf_tensor_at(g, lvr_gguf_n_tensors(g)) == NULL);
}

static void ask_tokenizer(const lvr_gguf *g, const uint8_t *text, size_t n)
{
    lvr_tokenizer *t = NULL;
    lvr_buf back = LVR_BUF_INIT;
    int32_t *ids = NULL;
    uint32_t n_ids = 0;
    lvr_error err = LVR_ERROR_INIT;
    if (lvr_tokenizer_new(g, &t, &err) != LVR_OK) {
        require(t == NULL && err.msg[0] != '\0');
        return;
    }
    require(lvr_tokenizer_compatible(t, t, &err) == LVR_OK);
    if (lvr_tokenize(t, (const char *)text, n, true, &ids, &n_ids, &err) == LVR_OK)
        for (uint32_t i = 0; i < n_ids; i++) {
            require(ids[i] >= 0 && (uint32_t)ids[i] < lvr_tokenizer_vocab(t));
            lvr_detokenize(t, ids[i], i == 0, &back);
        }
    free(ids);
    lvr_buf_free(&back);
    lvr_tokenizer_free(t);
}

/* The header alone must parse again, to the same bytes: packs rely on it. */
static void reopen_header(const lvr_gguf *g)
{
    uint64_t n = 0, again_n = 0;
    lvr_gguf *again = NULL;
    const void *header = lvr_gguf_header(g, &n);
    require(lvr_gguf_open_mem("again", header, n, n, true, &again, NULL) == LVR_OK);
    const void *copy = lvr_gguf_header(again, &again_n);
    require(again_n == n && memcmp(copy, header, n) == 0);
    lvr_gguf_free(again);
}

static void ask(const lvr_gguf *g, bool bounded, const uint8_t *data, size_t size)
{
    lvr_model_shape shape;
    lvr_buf text = LVR_BUF_INIT;
    for (uint64_t i = 0; i < lvr_gguf_n_keys(g); i++) {
        lvr_gguf_value_text(g, i, &text);
        ask_key(g, lvr_gguf_key_at(g, i));
    }
    lvr_buf_free(&text);
    ask_tensors(g, bounded);
    (void)lvr_model_shape_from_gguf(g, &shape, NULL);
    ask_tokenizer(g, data, size < 4096 ? size : 4096);
    reopen_header(g);
}

#define START "GGUF\3\0\0\0"
#define START_BYTES 8u
#define MAX_PARTS 4u

static uint32_t cut(const uint8_t *data, size_t size, size_t begins[MAX_PARTS + 1])
{
    uint32_t n = 0;
    const uint8_t *at = data;
    while (n < MAX_PARTS && (at = memmem(at, size - (size_t)(at - data), START, START_BYTES)) != NULL) {
        begins[n++] = (size_t)(at - data);
        at += START_BYTES;
    }
    begins[n] = size;
    return n;
}

static void join_parts(const uint8_t *data, size_t size)
{
    size_t begins[MAX_PARTS + 1];
    lvr_gguf *parts[MAX_PARTS] = {NULL}, *joined = NULL;
    lvr_error err = LVR_ERROR_INIT;
    bool sound = true;
    const uint32_t n = cut(data, size, begins);
    for (uint32_t i = 0; n > 1 && sound && i < n; i++)
        sound = lvr_gguf_open_part_mem("part", data + begins[i], begins[i + 1] - begins[i], &parts[i],
                                       &err) == LVR_OK;
    if (n < 2 || !sound) {
        for (uint32_t i = 0; i < n; i++)
            lvr_gguf_free(parts[i]);
        return;
    }
    if (lvr_gguf_join(parts, n, &joined, &err) == LVR_OK)
        ask(joined, false, data, size);
    else
        require(joined == NULL && err.msg[0] != '\0' && err.status != LVR_ERR_INVARIANT);
    lvr_gguf_free(joined);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    join_parts(data, size);
    for (int skip = 0; skip < 2; skip++) {
        lvr_gguf *g = NULL;
        lvr_error err = LVR_ERROR_INIT;
        if (lvr_gguf_open_mem("fuzz", data, size, size, skip != 0, &g, &err) == LVR_OK)
            ask(g, skip == 0, data, size);
        else
            require(g == NULL && err.msg[0] != '\0' && err.status != LVR_ERR_INVARIANT);
        lvr_gguf_free(g);
    }
    return 0;
}
