/*
 * A vocabulary and a text, both from the input. It says what kind of vocabulary (its first byte), then the
 * text's length and the text, then mutations: a valid GGUF is built and its bytes changed where these say.
 * The tokenizer must refuse it or work: known ids, no crash, and the text back where the vocabulary is sound.
 */
#include "engine/tokenizer/chat.h"
#include "tests/unit/gguf_builder.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MAX_TEXT 512u
#define N_MERGES 24u

static const char *const pres[] = {"llama-bpe",    "qwen2",          "gpt-2",       "starcoder", "falcon",
                                   "deepseek-llm", "deepseek-coder", "deepseek-v3", "default",   "smaug-bpe"};
#define N_PRES (sizeof(pres) / sizeof(pres[0]))

struct input {
    const uint8_t *data;
    size_t n;
};

static uint8_t take(struct input *in)
{
    if (in->n == 0)
        return 0;
    in->n--;
    return *in->data++;
}

static void require(bool truth)
{
    if (!truth)
        abort();
}

/* ---- a sound vocabulary ---- */

static void put_char(char *out, unsigned byte)
{
    unsigned c = byte;
    if (byte <= 0x20)
        c = 0x100 + byte;
    else if (byte >= 0x7f && byte <= 0xa0)
        c = 0x121 + byte - 0x7f;
    else if (byte == 0xad)
        c = 0x143;
    if (c < 0x80)
        snprintf(out, 4, "%c", (int)c);
    else
        snprintf(out, 4, "%c%c", (int)(0xc0 | c >> 6), (int)(0x80 | (c & 0x3f)));
}

static const char *const extra[] = {"<|im_start|>", "<|im_end|>", "<u>", "<u><u", "  ", "[PAD]"};
#define N_EXTRA (sizeof(extra) / sizeof(extra[0]))

static void put_types(lvr_buf *b, uint32_t n_plain, uint32_t plain_type)
{
    gguf_put_kv_arr(b, "tokenizer.ggml.token_type", GGUF_I32, n_plain + N_EXTRA);
    for (uint32_t i = 0; i < n_plain; i++)
        gguf_put_u32(b, i < 256 ? plain_type : 1);
    for (uint32_t i = 0; i < N_EXTRA; i++)
        gguf_put_u32(b, i < 2 ? 3 : i < 5 ? 4 : 5);
}

static void build_bpe(lvr_buf *b, const char *pre, struct input *in)
{
    char merges[N_MERGES][12];
    gguf_put_head(b, 0, 6);
    gguf_put_kv_str(b, "tokenizer.ggml.model", "gpt2");
    gguf_put_kv_str(b, "tokenizer.ggml.pre", pre);
    gguf_put_kv_arr(b, "tokenizer.ggml.tokens", GGUF_STR, 256 + N_MERGES + N_EXTRA);
    for (unsigned i = 0; i < 256; i++) {
        char text[4];
        put_char(text, i);
        gguf_put_str(b, text);
    }
    for (unsigned i = 0; i < N_MERGES; i++) {
        char left[4], right[4], both[12];
        put_char(left, take(in));
        put_char(right, take(in));
        snprintf(merges[i], sizeof(merges[i]), "%s %s", left, right);
        snprintf(both, sizeof(both), "%s%s", left, right);
        gguf_put_str(b, both);
    }
    for (unsigned i = 0; i < N_EXTRA; i++)
        gguf_put_str(b, extra[i]);
    put_types(b, 256 + N_MERGES, 1);
    gguf_put_kv_arr(b, "tokenizer.ggml.merges", GGUF_STR, N_MERGES);
    for (unsigned i = 0; i < N_MERGES; i++)
        gguf_put_str(b, merges[i]);
    gguf_put_kv_u32(b, "tokenizer.ggml.eos_token_id", 0);
}

static void build_spm(lvr_buf *b, struct input *in)
{
    gguf_put_head(b, 0, 5);
    gguf_put_kv_str(b, "tokenizer.ggml.model", "llama");
    gguf_put_kv_arr(b, "tokenizer.ggml.tokens", GGUF_STR, 256 + N_MERGES + N_EXTRA);
    for (unsigned i = 0; i < 256; i++) {
        char text[8];
        snprintf(text, sizeof(text), "<0x%02X>", i);
        gguf_put_str(b, text);
    }
    for (unsigned i = 0; i < N_MERGES; i++) {
        char text[16];
        const uint8_t a = take(in), c = take(in);
        snprintf(text, sizeof(text), "%s%c%c", a & 0x80 ? "\xe2\x96\x81" : "", 'a' + a % 4, 'a' + c % 4);
        text[strlen(text) - (a & 0x40 ? 1 : 0)] = '\0';
        gguf_put_str(b, text);
    }
    for (unsigned i = 0; i < N_EXTRA; i++)
        gguf_put_str(b, extra[i]);
    gguf_put_kv_arr(b, "tokenizer.ggml.scores", GGUF_F32, 256 + N_MERGES + N_EXTRA);
    for (unsigned i = 0; i < 256 + N_MERGES + N_EXTRA; i++) {
        const float score = (float)(i * 7 % 13);
        lvr_buf_append(b, &score, sizeof(score));
    }
    put_types(b, 256 + N_MERGES, 6);
    gguf_put_kv_u32(b, "tokenizer.ggml.eos_token_id", 0);
}

/* ---- asking ---- */

static void check_tokens(const lvr_tokenizer *t, const int32_t *ids, uint32_t n_ids, const char *text,
                         size_t n, bool sound)
{
    lvr_buf back = LVR_BUF_INIT;
    for (uint32_t i = 0; i < n_ids; i++) {
        require(ids[i] >= 0 && (uint32_t)ids[i] < lvr_tokenizer_vocab(t));
        lvr_detokenize(t, ids[i], i == 0, &back);
    }
    if (sound)
        require(back.len == n && (n == 0 || memcmp(back.data, text, n) == 0));
    lvr_buf_free(&back);
}

static void ask(const lvr_tokenizer *t, const char *text, size_t n, bool sound)
{
    int32_t *ids = NULL;
    uint32_t n_ids = 0;
    lvr_error err = LVR_ERROR_INIT;
    const lvr_chat_message message = {.role = LVR_CHAT_USER, .text = text, .n = n};
    require(lvr_tokenizer_compatible(t, t, &err) == LVR_OK);
    require(lvr_tokenize(t, text, n, false, &ids, &n_ids, &err) == LVR_OK);
    check_tokens(t, ids, n_ids, text, n, sound);
    free(ids);
    require(lvr_tokenize_special(t, text, n, true, &ids, &n_ids, &err) == LVR_OK);
    check_tokens(t, ids, n_ids, text, n, false);
    free(ids);
    if (lvr_chat_tokenize(t, &message, 1, &ids, &n_ids, &err) == LVR_OK) {
        check_tokens(t, ids, n_ids, text, n, false);
        free(ids);
    }
}

/* SentencePiece style: a mark is a space, and another space comes after a user-defined token. */
static bool comes_back(unsigned kind, const char *text, size_t n)
{
    static const char *const lossy[] = {"\xe2\x96\x81", "<u>", "  "};
    if (kind < N_PRES)
        return true;
    for (size_t i = 0; i < sizeof(lossy) / sizeof(lossy[0]); i++)
        if (memmem(text, n, lossy[i], strlen(lossy[i])) != NULL)
            return false;
    return true;
}

static bool mutate(lvr_buf *b, struct input *in)
{
    const bool any = in->n >= 3;
    while (in->n >= 3) {
        const size_t at = (size_t)take(in) << 8 | take(in);
        b->data[at % b->len] = (char)take(in);
    }
    return any;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {.data = data, .n = size};
    lvr_buf b = LVR_BUF_INIT;
    lvr_gguf *g = NULL;
    lvr_tokenizer *t = NULL;
    lvr_error err = LVR_ERROR_INIT;
    const unsigned kind = take(&in) % (N_PRES + 2);
    size_t n = ((size_t)take(&in) << 8 | take(&in)) % MAX_TEXT;
    n = n < in.n ? n : in.n;
    const char *text = (const char *)in.data;
    in.data += n;
    in.n -= n;
    if (kind < N_PRES)
        build_bpe(&b, pres[kind], &in);
    else
        build_spm(&b, &in);
    require(!b.failed);
    const bool changed = mutate(&b, &in);
    if (lvr_gguf_open_mem("fuzz", b.data, b.len, b.len, true, &g, &err) == LVR_OK &&
        lvr_tokenizer_new(g, &t, &err) == LVR_OK)
        ask(t, text, n, !changed && comes_back(kind, text, n));
    else
        require(t == NULL && err.msg[0] != '\0' && err.status != LVR_ERR_INVARIANT && changed);
    lvr_tokenizer_free(t);
    lvr_gguf_free(g);
    lvr_buf_free(&b);
    return 0;
}
