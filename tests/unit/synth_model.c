/* Whole synthetic models: what the files hold, that they do not depend on threads, and what is refused. */
#include "common/fs.h"
#include "common/hash.h"
#include "engine/gguf.h"
#include "engine/kernels/kernels.h"
#include "engine/model_shape.h"
#include "engine/synth/synth.h"
#include <criterion/criterion.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[64], vocab_path[512];

static void open_folder(void)
{
    snprintf(folder, sizeof folder, "/tmp/lvr-synth-XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
    snprintf(vocab_path, sizeof vocab_path, "%s/models/lever-target-10m-q8_0.gguf",
             getenv("LVR_SOURCE_ROOT"));
}

static uint32_t remove_files(void)
{
    uint32_t n = 0;
    DIR *d = opendir(folder);
    for (const struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        char path[512];
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        unlink(path);
        n++;
    }
    closedir(d);
    return n;
}

static void close_folder(void)
{
    remove_files();
    rmdir(folder);
}

TestSuite(synth_model, .init = open_folder, .fini = close_folder);

static lvr_shape small_shape(void)
{
    return (lvr_shape){.name = "small",
                       .n_layers = 3,
                       .d_model = 256,
                       .n_heads = 4,
                       .n_kv = 2,
                       .head_dim = 64,
                       .d_ff = 512,
                       .vocab = 4128,
                       .type = "q8_0",
                       .arch = "llama",
                       .n_ctx = 512,
                       .rms_eps = 1e-5,
                       .rope_base = 10000};
}

static const lvr_synth_planting planting = {.n_successors = 4, .agreement = 0.6};

static lvr_synth_options options_of(const lvr_shape *s)
{
    return (lvr_synth_options){.shape = s,
                               .vocab_path = vocab_path,
                               .type = LVR_Q8_0,
                               .embd_type = LVR_Q8_0,
                               .seed = 1,
                               .threads = 1};
}

static void path_of(const char *name, char *ret, size_t n)
{
    snprintf(ret, n, "%s/%s", folder, name);
}

static lvr_synth_result write_model(const lvr_synth_options *o, const char *name)
{
    char path[256];
    lvr_error err = LVR_ERROR_INIT;
    lvr_synth_result r = {0};
    path_of(name, path, sizeof path);
    cr_assert_eq(lvr_synth_write(o, path, &r, &err), LVR_OK, "%s", err.msg);
    return r;
}

static void hash_model(const lvr_synth_options *o, char ret[LVR_SHA256_HEX_BYTES])
{
    char path[256];
    lvr_error err = LVR_ERROR_INIT;
    write_model(o, "h.gguf");
    path_of("h.gguf", path, sizeof path);
    cr_assert_eq(lvr_sha256_file_hex(path, ret, &err), LVR_OK, "%s", err.msg);
}

static lvr_gguf *open_model(const char *name)
{
    char path[256];
    lvr_gguf *g = NULL;
    lvr_error err = LVR_ERROR_INIT;
    path_of(name, path, sizeof path);
    cr_assert_eq(lvr_gguf_open(path, &g, &err), LVR_OK, "%s", err.msg);
    return g;
}

Test(synth_model, same_bytes_for_any_number_of_threads)
{
    char one[LVR_SHA256_HEX_BYTES], three[LVR_SHA256_HEX_BYTES], other[LVR_SHA256_HEX_BYTES];
    for (int tied = 0; tied < 2; tied++) {
        lvr_shape s = small_shape();
        s.tied = tied;
        lvr_synth_options o = options_of(&s);
        o.planting = &planting;
        o.type = o.embd_type = LVR_Q4_0;
        hash_model(&o, one);
        o.threads = 3;
        hash_model(&o, three);
        o.seed = 2;
        hash_model(&o, other);
        cr_expect_str_eq(one, three);
        cr_expect_str_neq(one, other);
    }
}

/* Of the whole file, so that a change of generator, quantiser or keys does not go unnoticed: then raise
 * GENERATOR in synth.c where values changed, and the hashes here. */
Test(synth_model, same_bytes_on_every_machine)
{
    static const struct {
        bool planted;
        lvr_wtype type;
        const char *sha256;
    } models[] = {
        {false, LVR_Q8_0, "cdd2c6433bcb2d99c8fbbfa23e47d7a6f629ce73e432e9d207068b19ab9f2cfd"},
        {true, LVR_Q4_0, "726f32aab39c0f6737a784d5f7c251485bc59639657e2947cc8a2f538d7621cb"},
        {true, LVR_Q6_K, "732b1ee89e93b70df95d44fa9966da30202696765e3c9d8fa3328758e99dce38"},
    };
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        char hash[LVR_SHA256_HEX_BYTES];
        const lvr_shape s = small_shape();
        lvr_synth_options o = options_of(&s);
        o.planting = models[i].planted ? &planting : NULL;
        o.type = o.embd_type = models[i].type;
        hash_model(&o, hash);
        cr_expect_str_eq(hash, models[i].sha256, "%s %s: %s", models[i].planted ? "planted" : "plain",
                         lvr_wtype_name(models[i].type), hash);
    }
}

/* The first row of a matrix as floats. */
static void first_row(const lvr_gguf *g, const char *name, float *ret, uint32_t n)
{
    const lvr_gguf_tensor *t = lvr_gguf_find(g, name);
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_not_null(t, "%s", name);
    cr_assert_eq(t->dims[0], n);
    const uint64_t row = lvr_wtype_row_bytes(t->type, n), packed = lvr_packed_bytes(t->type, 1, n);
    uint8_t *raw = malloc(row), *data = aligned_alloc(64, (packed + 63) / 64 * 64);
    cr_assert(raw != NULL && data != NULL);
    cr_assert_eq(lvr_gguf_read_range(g, t, 0, row, raw, &err), LVR_OK, "%s", err.msg);
    lvr_pack_matrix(t->type, 1, n, raw, data);
    const lvr_matrix m = {.type = t->type, .n_out = 1, .n_in = n, .data = data};
    lvr_packed_row(&m, 0, ret);
    free(raw);
    free(data);
}

static double relative_error(const float *x, const float *y, uint32_t n)
{
    double off = 0, all = 0;
    for (uint32_t i = 0; i < n; i++) {
        off += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
        all += (double)x[i] * (double)x[i];
    }
    return sqrt(off / all);
}

Test(synth_model, types_hold_the_same_values)
{
    static const char *const names[] = {"token_embd.weight", "output.weight", "blk.0.attn_q.weight",
                                        "blk.2.attn_output.weight", "blk.1.ffn_up.weight"};
    static const struct {
        lvr_wtype type;
        double tolerance;
    } types[] = {{LVR_F16, 0.001}, {LVR_Q8_0, 0.01}, {LVR_Q4_0, 0.12}, {LVR_Q4_K, 0.12}, {LVR_Q6_K, 0.04}};
    const lvr_shape s = small_shape();
    lvr_synth_options o = options_of(&s);
    o.planting = &planting;
    o.type = o.embd_type = LVR_F32;
    write_model(&o, "f32.gguf");
    lvr_gguf *exact = open_model("f32.gguf");
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
        o.type = o.embd_type = types[t].type;
        write_model(&o, "q.gguf");
        lvr_gguf *g = open_model("q.gguf");
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
            float x[256], y[256];
            first_row(exact, names[i], x, 256);
            first_row(g, names[i], y, 256);
            cr_expect_lt(relative_error(x, y, 256), types[t].tolerance, "%s %s: %g", names[i],
                         lvr_wtype_name(types[t].type), relative_error(x, y, 256));
        }
        lvr_gguf_free(g);
    }
    lvr_gguf_free(exact);
}

Test(synth_model, says_what_it_is)
{
    const lvr_shape s = small_shape();
    lvr_synth_options o = options_of(&s);
    lvr_error err = LVR_ERROR_INIT;
    lvr_model_shape shape;
    const char *name = NULL;
    uint32_t seed = 0, file_type = 0;
    float agreement = 0;
    o.planting = &planting;
    const lvr_synth_result r = write_model(&o, "m.gguf");
    lvr_gguf *g = open_model("m.gguf");
    cr_expect(lvr_gguf_bool_or(g, LVR_GGUF_SYNTHETIC, false));
    cr_expect_eq(lvr_gguf_file_bytes(g), r.file_bytes);
    cr_assert_eq(lvr_gguf_str_(g, "general.name", &name, &err), LVR_OK, "%s", err.msg);
    cr_expect_not_null(strstr(name, "synthetic"), "%s", name);
    cr_assert_eq(lvr_gguf_u32(g, "lever.synthetic.seed", &seed, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_gguf_u32(g, "general.file_type", &file_type, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_gguf_f32(g, "lever.synthetic.agreement", &agreement, &err), LVR_OK, "%s", err.msg);
    cr_expect_eq(seed, 1);
    cr_expect_eq(file_type, 7);
    cr_expect_float_eq(agreement, 0.6f, 1e-6f);
    cr_assert_eq(lvr_model_shape_from_gguf(g, &shape, &err), LVR_OK, "%s", err.msg);
    cr_expect_eq(shape.n_layers, s.n_layers);
    cr_expect_eq(shape.d_ff, s.d_ff);
    cr_expect_eq(shape.vocab, s.vocab);
    lvr_gguf_free(g);
}

Test(synth_model, pads_the_vocabulary)
{
    const lvr_shape s = small_shape();
    const lvr_synth_options o = options_of(&s);
    lvr_error err = LVR_ERROR_INIT;
    const lvr_gguf_str *tokens = NULL;
    const int32_t *types = NULL;
    const float *scores = NULL;
    uint64_t n = 0, n_types = 0, n_scores = 0;
    cr_expect_eq(write_model(&o, "m.gguf").vocab_own, 4096);
    lvr_gguf *g = open_model("m.gguf");
    cr_assert_eq(lvr_gguf_str_array(g, "tokenizer.ggml.tokens", &tokens, &n, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_gguf_i32_array(g, "tokenizer.ggml.token_type", &types, &n_types, &err), LVR_OK, "%s",
                 err.msg);
    cr_assert_eq(lvr_gguf_f32_array(g, "tokenizer.ggml.scores", &scores, &n_scores, &err), LVR_OK, "%s",
                 err.msg);
    cr_expect(n == 4128 && n_types == n && n_scores == n);
    cr_expect_eq(tokens[4127].n, strlen("[PAD4127]"));
    cr_expect_eq(memcmp(tokens[4127].s, "[PAD4127]", tokens[4127].n), 0);
    cr_expect_eq(types[4127], 5);
    cr_expect_neq(types[4095], 5);
    lvr_gguf_free(g);
}

Test(synth_model, other_architectures_have_their_tensors)
{
    static const char *const of_qwen3[] = {"blk.2.attn_q_norm.weight", "blk.0.attn_k_norm.weight"};
    static const char *const of_qwen2[] = {"blk.0.attn_q.bias", "blk.1.attn_k.bias", "blk.2.attn_v.bias"};
    lvr_shape s = small_shape();
    const lvr_synth_options o = options_of(&s);
    snprintf(s.arch, sizeof s.arch, "qwen3");
    s.qk_norm = true;
    s.head_dim = 128; /* wider than d_model / n_heads, as in Qwen3 0.6B */
    write_model(&o, "m.gguf");
    lvr_gguf *g = open_model("m.gguf");
    for (size_t i = 0; i < 2; i++) {
        cr_assert_not_null(lvr_gguf_find(g, of_qwen3[i]), "%s", of_qwen3[i]);
        cr_expect_eq(lvr_gguf_find(g, of_qwen3[i])->dims[0], 128);
    }
    cr_expect_eq(lvr_gguf_find(g, "blk.0.attn_q.weight")->dims[1], 512);
    cr_expect_eq(lvr_gguf_find(g, "blk.0.attn_output.weight")->dims[0], 512);
    lvr_gguf_free(g);

    s = small_shape();
    snprintf(s.arch, sizeof s.arch, "qwen2");
    s.qkv_bias = true;
    write_model(&o, "m.gguf");
    g = open_model("m.gguf");
    for (size_t i = 0; i < 3; i++)
        cr_expect_not_null(lvr_gguf_find(g, of_qwen2[i]), "%s", of_qwen2[i]);
    lvr_gguf_free(g);
}

/* Llama 3.1's factors: 1 for fast frequencies, 8 for slow ones, between them a blend that rises. */
Test(synth_model, llama3_has_rope_factors)
{
    lvr_shape s = small_shape();
    const lvr_synth_options o = options_of(&s);
    float f[32];
    lvr_error err = LVR_ERROR_INIT;
    s.rope_base = 500000;
    s.has_rope_llama3 = true;
    s.rope_llama3 =
        (lvr_rope_llama3){.factor = 8, .low_freq_factor = 1, .high_freq_factor = 4, .original_n_ctx = 8192};
    write_model(&o, "m.gguf");
    lvr_gguf *g = open_model("m.gguf");
    const lvr_gguf_tensor *t = lvr_gguf_find(g, "rope_freqs.weight");
    cr_assert_not_null(t);
    cr_assert(t->bytes == sizeof f && t->n_dims == 1);
    cr_assert_eq(lvr_gguf_read(g, t, f, &err), LVR_OK, "%s", err.msg);
    cr_expect_eq(f[0], 1.0f);
    cr_expect_eq(f[31], 8.0f);
    for (uint32_t i = 1; i < 32; i++)
        cr_expect_geq(f[i], f[i - 1]);
    lvr_gguf_free(g);
}

static void expect_refused(const lvr_synth_options *o, const char *name, lvr_status expected,
                           const char *says)
{
    char path[256];
    lvr_error err = LVR_ERROR_INIT;
    lvr_synth_result r = {.file_bytes = 77};
    path_of(name, path, sizeof path);
    const lvr_status status = lvr_synth_write(o, path, &r, &err);
    cr_expect_eq(status, expected, "%s: %s", lvr_status_name(status), err.msg);
    cr_expect_not_null(strstr(err.msg, says), "\"%s\" does not say \"%s\"", err.msg, says);
    cr_expect_eq(r.file_bytes, 77);
    cr_expect_eq(remove_files(), 0, "a file was left behind");
}

Test(synth_model, refuses_what_it_cannot_write)
{
    lvr_shape s = small_shape();
    lvr_synth_options o = options_of(&s);
    lvr_synth_planting p = planting;
    s.vocab = 4000;
    expect_refused(&o, "m.gguf", LVR_ERR_CONFIG, "4096 tokens does not fit a shape of 4000");
    s = small_shape();
    s.d_ff = 544;
    o.type = LVR_Q4_K;
    expect_refused(&o, "m.gguf", LVR_ERR_CONFIG, "544");
    s = small_shape();
    s.arch[0] = '\0';
    expect_refused(&o, "m.gguf", LVR_ERR_CONFIG, "arch");
    s = small_shape();
    o = options_of(&s);
    o.planting = &p;
    p.agreement = 0.1;
    expect_refused(&o, "m.gguf", LVR_ERR_CONFIG, "0.1");
    p = planting;
    p.noise = 5;
    expect_refused(&o, "m.gguf", LVR_ERR_CONFIG, "noise 5");
    p = planting;
    p.early_layer = 3;
    p.early_agreement = 0.9;
    expect_refused(&o, "m.gguf", LVR_ERR_CONFIG, "1 to 2");
    s.d_model = 64;
    s.n_heads = 1;
    s.n_kv = 1;
    p = planting;
    expect_refused(&o, "m.gguf", LVR_ERR_CONFIG, "too small");
    s = small_shape();
    o = options_of(&s);
    expect_refused(&o, "none/m.gguf", LVR_ERR_IO, "cannot create");
    expect_refused(&o, "../../dev/full", LVR_ERR_IO, "regular file");
    o.vocab_path = "/nonexistent.gguf";
    expect_refused(&o, "m.gguf", LVR_ERR_IO, "nonexistent");
}

Test(synth_model, interrupted_leaves_nothing)
{
    const lvr_shape s = small_shape();
    lvr_synth_options o = options_of(&s);
    atomic_bool cancel = true;
    o.cancel = &cancel;
    expect_refused(&o, "m.gguf", LVR_ERR_INTERRUPTED, "interrupted");
}
