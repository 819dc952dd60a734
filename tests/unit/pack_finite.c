/* Weights that are infinite or not a number are refused when a model is packed, by tensor and place. */
#include "common/fs.h"
#include "engine/pack.h"
#include "tests/unit/gguf_builder.h"
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WIDTH 256u

static const char sha[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
static char dir[64], gguf_path[128], pack_path[128];

static void setup(void)
{
    snprintf(dir, sizeof dir, "/tmp/lvr-finite-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
    snprintf(gguf_path, sizeof gguf_path, "%s/tiny.gguf", dir);
    snprintf(pack_path, sizeof pack_path, "%s/tiny.lvrpack", dir);
}

static void teardown(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    cr_assert_eq(system(command), 0);
}

TestSuite(pack_finite, .init = setup, .fini = teardown);

/* Packs a tiny model of which `n` bytes of a tensor are replaced. */
static lvr_status pack_with(const struct gguf_tiny *spec, const char *tensor, uint64_t at, const void *bytes,
                            uint64_t n, lvr_error *err)
{
    lvr_gguf *g = NULL;
    cr_assert_eq(gguf_build_tiny(gguf_path, spec, err), LVR_OK, "%s", err->msg);
    cr_assert_eq(lvr_gguf_open(gguf_path, &g, err), LVR_OK, "%s", err->msg);
    const lvr_gguf_tensor *t = lvr_gguf_find(g, tensor);
    cr_assert(t != NULL && at + n <= t->bytes, "%s", tensor);
    const int fd = open(gguf_path, O_WRONLY);
    cr_assert_geq(fd, 0);
    cr_assert_eq(lvr_pwrite_all(fd, bytes, n, t->offset + at, gguf_path, err), LVR_OK, "%s", err->msg);
    close(fd);
    const lvr_status status = lvr_pack_write(g, sha, pack_path, NULL, err);
    cr_assert_eq(access(pack_path, F_OK) == 0, status == LVR_OK);
    (void)unlink(pack_path);
    lvr_gguf_free(g);
    return status;
}

static void expect_refused(const struct gguf_tiny *spec, const char *tensor, uint64_t at, const void *bytes,
                           uint64_t n, const char *place)
{
    lvr_error err = LVR_ERROR_INIT;
    cr_expect_eq(pack_with(spec, tensor, at, bytes, n, &err), LVR_ERR_FORMAT, "%s at %llu", tensor,
                 (unsigned long long)at);
    cr_expect(strstr(err.msg, tensor) && strstr(err.msg, place), "%s, %s: %s", tensor, place, err.msg);
}

static void expect_packed(const struct gguf_tiny *spec, const char *tensor, uint64_t at, const void *bytes,
                          uint64_t n)
{
    lvr_error err = LVR_ERROR_INIT;
    cr_expect_eq(pack_with(spec, tensor, at, bytes, n, &err), LVR_OK, "%s: %s", tensor, err.msg);
}

/* Words whose exponent is all ones, by type, and the largest that is not. */
static const uint32_t wrong_f32[] = {0x7f800000u, 0xff800000u, 0x7fc00000u, 0xff800001u},
                      most_f32 = 0xff7fffffu;
static const uint16_t wrong_f16[] = {0x7c00u, 0xfc00u, 0x7e00u, 0xfc01u}, most_f16 = 0xfbffu;
static const uint16_t wrong_bf16[] = {0x7f80u, 0xff80u, 0x7fc0u, 0xff81u}, most_bf16 = 0xff7fu;
#define N_WRONG 4u

Test(pack_finite, norms_and_biases)
{
    const struct gguf_tiny f32 = {.type = LVR_Q8_0}, f16 = {.type = LVR_Q8_0, .f16_norms = true};
    const struct gguf_tiny qwen2 = {.type = LVR_Q8_0, .arch = "qwen2"};
    for (uint32_t i = 0; i < N_WRONG; i++) {
        expect_refused(&f32, "blk.1.ffn_norm.weight", 63 * 4, &wrong_f32[i], 4, "row 0, column 63 ");
        expect_refused(&f16, "output_norm.weight", 5 * 2, &wrong_f16[i], 2, "row 0, column 5 ");
        expect_refused(&qwen2, "blk.0.attn_q.bias", 7 * 4, &wrong_f32[i], 4, "row 0, column 7 ");
    }
    expect_packed(&f32, "blk.1.ffn_norm.weight", 0, &most_f32, 4);
    expect_packed(&f16, "output_norm.weight", 0, &most_f16, 2);
}

Test(pack_finite, dense_matrices)
{
    static const struct {
        lvr_wtype type;
        uint32_t bytes;
        const void *wrong, *most;
    } rows[] = {{LVR_F32, 4, wrong_f32, &most_f32},
                {LVR_F16, 2, wrong_f16, &most_f16},
                {LVR_BF16, 2, wrong_bf16, &most_bf16}};
    for (size_t t = 0; t < sizeof rows / sizeof *rows; t++) {
        const struct gguf_tiny spec = {.type = rows[t].type, .d_model = WIDTH};
        const struct gguf_tiny neox = {.type = rows[t].type, .d_model = WIDTH, .arch = "qwen2"};
        const uint64_t at = (3 * WIDTH + 201) * rows[t].bytes;
        for (uint32_t i = 0; i < N_WRONG; i++) {
            const uint8_t *word = (const uint8_t *)rows[t].wrong + i * rows[t].bytes;
            expect_refused(&spec, "blk.1.ffn_up.weight", at, word, rows[t].bytes, "row 3, column 201 ");
            expect_refused(&neox, "blk.0.attn_k.weight", at, word, rows[t].bytes, "row 3, column 201 ");
        }
        expect_packed(&spec, "token_embd.weight", at, rows[t].most, rows[t].bytes);
    }
}

Test(pack_finite, scales_of_blocks)
{
    static const struct {
        lvr_wtype type;
        uint32_t inputs, bytes, n_scales, at[2];
    } rows[] = {{LVR_Q4_0, 32, 18, 1, {0}},      {LVR_Q4_1, 32, 20, 2, {0, 2}},
                {LVR_Q5_0, 32, 22, 1, {0}},      {LVR_Q5_1, 32, 24, 2, {0, 2}},
                {LVR_Q8_0, 32, 34, 1, {0}},      {LVR_Q4_K, 256, 144, 2, {0, 2}},
                {LVR_Q5_K, 256, 176, 2, {0, 2}}, {LVR_Q6_K, 256, 210, 1, {208}}};
    for (size_t t = 0; t < sizeof rows / sizeof *rows; t++) {
        const struct gguf_tiny spec = {.type = rows[t].type, .d_model = WIDTH, .d_ff = 2 * WIDTH};
        const uint32_t row_blocks = 2 * WIDTH / rows[t].inputs, block = 5 * row_blocks + row_blocks - 1;
        char place[64];
        snprintf(place, sizeof place, "row 5, column %u ", (row_blocks - 1) * rows[t].inputs);
        for (uint32_t k = 0; k < rows[t].n_scales; k++) {
            const uint64_t at = block * rows[t].bytes + rows[t].at[k];
            for (uint32_t i = 0; i < N_WRONG; i++)
                expect_refused(&spec, "blk.1.ffn_down.weight", at, &wrong_f16[i], 2, place);
            expect_packed(&spec, "blk.1.ffn_down.weight", at, &most_f16, 2);
        }
    }
}

/* Codes may be anything. */
Test(pack_finite, codes_are_no_scales)
{
    const struct gguf_tiny spec = {.type = LVR_Q8_0};
    uint8_t codes[32];
    memset(codes, 0xff, sizeof codes);
    expect_packed(&spec, "token_embd.weight", 2, codes, sizeof codes);
}
