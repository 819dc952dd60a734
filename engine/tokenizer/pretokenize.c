#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine/tokenizer/pretokenize.h"
#include "engine/tokenizer/vocab.h"
#include <pcre2.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* ---- patterns ---- */

/* White space as Unicode has it. PCRE2's own \s differs from it (U+180E). */
#define SPACES                                                                                               \
    "\\t-\\r \\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"
#define S "[" SPACES "]"
#define NOT_S "[^" SPACES "]"

#define CONTRACTIONS "'s|'t|'re|'ve|'m|'ll|'d"
#define CONTRACTIONS_ANY_CASE "'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
#define SPACES_AT_END S "*[\\r\\n]+|" S "+(?!" NOT_S ")|" S "+"

#define GPT2 CONTRACTIONS "| ?\\p{L}+| ?\\p{N}+| ?[^" SPACES "\\p{L}\\p{N}]+|" S "+(?!" NOT_S ")|" S "+"
#define LLAMA3                                                                                               \
    CONTRACTIONS_ANY_CASE                                                                                    \
    "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^" SPACES "\\p{L}\\p{N}]+[\\r\\n]*|" SPACES_AT_END
#define QWEN2                                                                                                \
    CONTRACTIONS_ANY_CASE                                                                                    \
    "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^" SPACES "\\p{L}\\p{N}]+[\\r\\n]*|" SPACES_AT_END

/* Letters of the scripts that have upper and lower case. */
#define CASED_LETTERS                                                                                        \
    "A-Za-z\\x{B5}\\x{C0}-\\x{D6}\\x{D8}-\\x{F6}\\x{F8}-\\x{1BA}\\x{1BC}-\\x{1BF}"                           \
    "\\x{1C4}-\\x{293}\\x{295}-\\x{2AF}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37B}-\\x{37D}\\x{37F}"           \
    "\\x{386}\\x{388}-\\x{38A}\\x{38C}\\x{38E}-\\x{3A1}\\x{3A3}-\\x{3F5}\\x{3F7}-\\x{481}"                   \
    "\\x{48A}-\\x{52F}\\x{531}-\\x{556}\\x{10A0}-\\x{10C5}\\x{13A0}-\\x{13F5}\\x{13F8}-\\x{13FD}"            \
    "\\x{1C90}-\\x{1CBA}\\x{1CBD}-\\x{1CBF}\\x{1D00}-\\x{1D2B}\\x{1D6B}-\\x{1D77}"                           \
    "\\x{1D79}-\\x{1D9A}\\x{1E00}-\\x{1F15}\\x{1F18}-\\x{1F1D}\\x{1F20}-\\x{1F45}"                           \
    "\\x{1F48}-\\x{1F4D}\\x{1F50}-\\x{1F57}\\x{1F59}\\x{1F5B}\\x{1F5D}\\x{1F5F}-\\x{1F7D}"                   \
    "\\x{1F80}-\\x{1FB4}\\x{1FB6}-\\x{1FBC}\\x{1FBE}\\x{1FC2}-\\x{1FC4}\\x{1FC6}-\\x{1FCC}"                  \
    "\\x{1FD0}-\\x{1FD3}\\x{1FD6}-\\x{1FDB}\\x{1FE0}-\\x{1FEC}\\x{1FF2}-\\x{1FF4}"                           \
    "\\x{1FF6}-\\x{1FFC}\\x{2102}\\x{2107}\\x{210A}-\\x{2113}\\x{2115}\\x{2119}-\\x{211D}"                   \
    "\\x{2124}\\x{2126}\\x{2128}\\x{212A}-\\x{212D}\\x{212F}-\\x{2134}\\x{2139}"                             \
    "\\x{213C}-\\x{213F}\\x{2145}-\\x{2149}\\x{214E}\\x{2183}\\x{2184}\\x{2C00}-\\x{2C7B}"                   \
    "\\x{2C7E}-\\x{2CE4}\\x{2CEB}-\\x{2CEE}\\x{2CF2}\\x{2CF3}\\x{A640}-\\x{A66D}"                            \
    "\\x{A680}-\\x{A69B}\\x{A722}-\\x{A76F}\\x{A771}-\\x{A787}\\x{A78B}-\\x{A78E}"                           \
    "\\x{AB70}-\\x{ABBF}\\x{FB00}-\\x{FB06}\\x{FB13}-\\x{FB17}\\x{FF21}-\\x{FF3A}"                           \
    "\\x{FF41}-\\x{FF5A}\\x{10400}-\\x{1044F}\\x{104B0}-\\x{104D3}\\x{104D8}-\\x{104FB}"                     \
    "\\x{10C80}-\\x{10CB2}\\x{10CC0}-\\x{10CF2}\\x{118A0}-\\x{118DF}\\x{1E900}-\\x{1E943}"

/* U+0800 to U+9FA5 and Hangul, without white space. */
#define EASTERN                                                                                              \
    "\\x{800}-\\x{167F}\\x{1681}-\\x{1FFF}\\x{200B}-\\x{2027}\\x{202A}-\\x{202E}\\x{2030}-\\x{205E}"         \
    "\\x{2060}-\\x{2FFF}\\x{3001}-\\x{9FA5}\\x{AC00}-\\x{D7FF}"
#define WIDE_PUNCTUATION "!-/:-~\\x{FF01}-\\x{FF0F}\\x{FF1A}-\\x{FF5E}\\x{2018}-\\x{201F}\\x{3001}\\x{3002}"
/* The look-behind keeps a long run of spaces that is not at the end from being tried at each of them. */
#define FINAL_SPACES "(?<!" S ")" S "++\\z"
#define ASCII_PUNCTUATION "!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~"

#define MAX_PATTERNS 6u
#define MAX_NAMES 20u

/* Each pattern in turn cuts what the ones before it left: both its matches and what is between them are
 * pieces for the next. */
static const struct recipe {
    const char *names[MAX_NAMES + 1];
    const char *patterns[MAX_PATTERNS + 1];
    bool keeps_words, adds_bos;
} recipes[] = {
    {.names = {"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"},
     .patterns = {LLAMA3},
     .keeps_words = true,
     .adds_bos = true},
    {.names = {"smaug-bpe", "dbrx"}, .patterns = {LLAMA3}},
    {.names = {"qwen2", "deepseek-r1-qwen", "megrez", "kormo", "f2llmv2", "stablelm2", "hunyuan",
               "solar-open"},
     .patterns = {QWEN2}},
    {.names = {"gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "gigachat", "a.x-4.0",
               "mellum", "exaone4", "jina-es", "jina-de"},
     .patterns = {GPT2}},
    {.names = {"starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"},
     .patterns = {"\\p{N}", GPT2}},
    {.names = {"falcon"}, .patterns = {"[\\p{P}$+<=>^~|`]+", GPT2, "[0-9][0-9][0-9]"}},
    {.names = {"deepseek-llm"},
     .patterns = {"[\\r\\n]", S "?[" CASED_LETTERS "]+", S "?[" WIDE_PUNCTUATION "]+", FINAL_SPACES,
                  "[" EASTERN "]+", "\\p{N}+"}},
    {.names = {"deepseek-coder"},
     .patterns = {"[\\r\\n]", S "?\\p{L}+", S "?\\p{P}+", "[" EASTERN "]+", "\\p{N}"}},
    {.names = {"deepseek-v3", "hunyuan-dense", "joyai-llm"},
     .patterns = {"\\p{N}{1,3}", "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{30FF}]+",
                  "[" ASCII_PUNCTUATION "][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
                  "| ?[\\p{P}\\p{S}]+[\\r\\n]*|" SPACES_AT_END}},
    {.names = {"default"}, .patterns = {"[\\p{P}$+<=>^~|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
};
#define N_RECIPES (sizeof(recipes) / sizeof(recipes[0]))

struct lvr_pretokenizer {
    const struct recipe *recipe;
    pcre2_code *codes[MAX_PATTERNS];
    bool jit[MAX_PATTERNS]; /* else the interpreter: slower, the same results */
    uint32_t n;
    pcre2_match_context *limits;
};

/* ---- making one ---- */

static const struct recipe *find_recipe(const char *name)
{
    for (size_t i = 0; i < N_RECIPES; i++)
        for (const char *const *known = recipes[i].names; *known != NULL; known++)
            if (strcmp(*known, name) == 0)
                return &recipes[i];
    return NULL;
}

static lvr_status fail_unknown(const char *path, const char *name, lvr_error *err)
{
    lvr_buf known = LVR_BUF_INIT;
    for (size_t i = 0; i < N_RECIPES; i++)
        for (const char *const *n = recipes[i].names; *n != NULL; n++)
            lvr_buf_printf(&known, "%s%s", known.len > 0 ? ", " : "", *n);
    lvr_fail(err, LVR_ERR_UNSUPPORTED,
             "%s: tokenizer.ggml.pre: the pre-tokenizer \"%s\" is not known; known are %s", path,
             lvr_show(name, strlen(name)).text, known.data != NULL ? known.data : "");
    lvr_buf_free(&known);
    return LVR_ERR_UNSUPPORTED;
}

static lvr_status pcre2_fail(int code, const char *what, lvr_error *err)
{
    PCRE2_UCHAR text[160] = "";
    pcre2_get_error_message(code, text, sizeof(text));
    return lvr_fail(err, code == PCRE2_ERROR_NOMEMORY ? LVR_ERR_NOMEM : LVR_ERR_INVARIANT,
                    "pre-tokenizer: %s: PCRE2 says \"%s\" (%d)", what, (const char *)text, code);
}

static lvr_status add_pattern(lvr_pretokenizer *p, const char *pattern, lvr_error *err)
{
    int code = 0;
    PCRE2_SIZE at = 0;
    pcre2_code *compiled = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                         PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C, &code, &at, NULL);
    if (compiled == NULL)
        return pcre2_fail(code, "a pattern does not compile", err);
    p->jit[p->n] = pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE) == 0;
    p->codes[p->n++] = compiled;
    return LVR_OK;
}

lvr_status lvr_pretokenizer_new(const char *path, const char *name, lvr_pretokenizer **ret, lvr_error *err)
{
    const struct recipe *recipe = find_recipe(name);
    if (recipe == NULL)
        return fail_unknown(path, name, err);
    lvr_status status = LVR_OK;
    lvr_pretokenizer *p = calloc(1, sizeof(*p));
    if (p == NULL || (p->limits = pcre2_match_context_create(NULL)) == NULL) {
        status = lvr_fail(err, LVR_ERR_NOMEM, "%s: pre-tokenizer: out of memory", path);
        goto out;
    }
    /* The patterns take time linear in the text; the default limit would end in the middle of a long one. */
    pcre2_set_match_limit(p->limits, UINT32_MAX);
    p->recipe = recipe;
    for (const char *const *pattern = recipe->patterns; status == LVR_OK && *pattern != NULL; pattern++)
        status = add_pattern(p, *pattern, err);
    if (status != LVR_OK)
        goto out;
    *ret = p;
    p = NULL;
out:
    lvr_pretokenizer_free(p);
    return status;
}

void lvr_pretokenizer_free(lvr_pretokenizer *p)
{
    if (p == NULL)
        return;
    for (uint32_t i = 0; i < p->n; i++)
        pcre2_code_free(p->codes[i]);
    pcre2_match_context_free(p->limits);
    free(p);
}

bool lvr_pretokenizer_keeps_words(const lvr_pretokenizer *p)
{
    return p->recipe->keeps_words;
}

bool lvr_pretokenizer_adds_bos(const lvr_pretokenizer *p)
{
    return p->recipe->adds_bos;
}

/* ---- cutting ---- */

struct cutter {
    const lvr_pretokenizer *p;
    pcre2_match_data *match;
    lvr_word_fn fn;
    void *user;
    lvr_error *err;
};

/* The next match at or after `at`; none: [n, n). */
static lvr_status next_match(const struct cutter *c, uint32_t level, const char *text, size_t n, size_t at,
                             size_t *ret_begin, size_t *ret_end)
{
    const lvr_pretokenizer *p = c->p;
    const PCRE2_SPTR subject = (PCRE2_SPTR)text;
    const int code =
        p->jit[level] ? pcre2_jit_match(p->codes[level], subject, n, at, 0, c->match, p->limits)
                      : pcre2_match(p->codes[level], subject, n, at, PCRE2_NO_UTF_CHECK, c->match, p->limits);
    *ret_begin = *ret_end = n;
    if (code == PCRE2_ERROR_NOMATCH)
        return LVR_OK;
    if (code < 0)
        return pcre2_fail(code, "matching failed", c->err);
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(c->match);
    if (range[1] <= range[0])
        return lvr_fail(c->err, LVR_ERR_INVARIANT, "pre-tokenizer: a pattern matched nothing");
    *ret_begin = range[0];
    *ret_end = range[1];
    return LVR_OK;
}

static lvr_status cut(const struct cutter *c, uint32_t level, const char *text, size_t n)
{
    lvr_status status = LVR_OK;
    if (level == c->p->n)
        return c->fn(c->user, text, n, c->err);
    for (size_t at = 0; status == LVR_OK && at < n;) {
        size_t begin = n, end = n;
        status = next_match(c, level, text, n, at, &begin, &end);
        if (status == LVR_OK && begin > at)
            status = cut(c, level + 1, text + at, begin - at);
        if (status == LVR_OK && end > begin)
            status = cut(c, level + 1, text + begin, end - begin);
        at = end;
    }
    return status;
}

lvr_status lvr_pretokenize(const lvr_pretokenizer *p, const char *text, size_t n, lvr_word_fn fn, void *user,
                           lvr_error *err)
{
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    if (match == NULL)
        return lvr_fail(err, LVR_ERR_NOMEM, "pre-tokenizer: out of memory");
    const struct cutter c = {.p = p, .match = match, .fn = fn, .user = user, .err = err};
    const lvr_status status = cut(&c, 0, text, n);
    pcre2_match_data_free(match);
    return status;
}
