/* llama.cpp's vectors for every vocabulary there is: exact ids from each text, exact text from its ids. */
#include "common/fs.h"
#include "tests/unit/tokenizer_rig.h"
#include <criterion/criterion.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_IDS 4096

/* Token ids separated by spaces, up to the line's end (which strtol would skip as space). */
static uint32_t parse_ids(const char *line, const char *line_end, int32_t *ids)
{
    uint32_t n = 0;
    char *end = NULL;
    for (; n < MAX_IDS; line = end) {
        const long id = strtol(line, &end, 10);
        if (end == line || end > line_end)
            break;
        ids[n++] = (int32_t)id;
    }
    return n;
}

static void expect_text(const lvr_tokenizer *t, const int32_t *ids, uint32_t n_ids, const char *text,
                        size_t n)
{
    lvr_buf back = LVR_BUF_INIT;
    for (uint32_t i = 0; i < n_ids; i++)
        lvr_detokenize(t, ids[i], i == 0, &back);
    cr_expect(back.len == n && (n == 0 || memcmp(back.data, text, n) == 0), "\"%.*s\" came back as \"%s\"",
              (int)n, text, back.data != NULL ? back.data : "");
    lvr_buf_free(&back);
}

static unsigned check_vectors(const lvr_tokenizer *t, const lvr_buf *in, const lvr_buf *out)
{
    static const char separator[] = "\n__ggml_vocab_test__\n";
    static int32_t ids[MAX_IDS];
    unsigned vectors = 0;
    const char *text = in->data, *line = out->data;
    while (*line != '\0') { /* an empty line is the answer to an empty text */
        const char *text_end = strstr(text, separator), *line_end = strchr(line, '\n');
        cr_assert_not_null(line_end);
        const size_t n = text_end != NULL ? (size_t)(text_end - text) : strlen(text);
        const uint32_t n_ids = parse_ids(line, line_end, ids);
        tok_expect_ids(t, text, n, ids, n_ids);
        expect_text(t, ids, n_ids, text, n);
        vectors++;
        line = line_end + 1;
        text = text_end != NULL ? text_end + sizeof separator - 1 : "";
    }
    cr_expect_str_empty(text);
    return vectors;
}

static void read_beside(const char *vocab, const char *suffix, lvr_buf *ret)
{
    char path[1024];
    lvr_error err = LVR_ERROR_INIT;
    snprintf(path, sizeof path, "%s%s", vocab, suffix);
    cr_assert_eq(lvr_read_file(path, 1 << 20, ret, &err), LVR_OK, "%s", err.msg);
}

static void check_vocab(const char *path)
{
    lvr_buf in = LVR_BUF_INIT, out = LVR_BUF_INIT;
    lvr_tokenizer *t = tok_open(path);
    read_beside(path, ".inp", &in);
    read_beside(path, ".out", &out);
    const unsigned n = check_vectors(t, &in, &out);
    cr_expect_geq(n, 40, "%s: %u vectors", path, n);
    fprintf(stderr, "%s: %u vectors\n", path, n);
    lvr_tokenizer_free(t);
    lvr_buf_free(&in);
    lvr_buf_free(&out);
}

Test(tokenizer_vectors, are_exact_both_ways, .timeout = 100)
{
    char pattern[512];
    glob_t found;
    if (!tok_shared_path("vocab", pattern, sizeof pattern - 16))
        cr_skip_test("no %s", pattern);
    strcat(pattern, "/*.gguf.inp");
    cr_assert_eq(glob(pattern, 0, NULL, &found), 0, "%s matches nothing", pattern);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        char *path = found.gl_pathv[i];
        path[strlen(path) - strlen(".inp")] = '\0';
        check_vocab(path);
    }
    globfree(&found);
}
