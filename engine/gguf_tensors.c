/* The tensor table: types, dimensions and sizes, and where each tensor's data lies. */
#include "engine/gguf_internal.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_NAME_BYTES 255u
#define MAX_TENSORS 131072u
#define MAX_DIM 0x7fffffffull
#define DEFAULT_ALIGNMENT 32u
#define MIN_ALIGNMENT 8u
#define MAX_ALIGNMENT (1u << 20)
#define MIN_TENSOR_ENTRY_BYTES 33u /* length, one character, n_dims, one dimension, type, offset */

/* ggml's type numbers, only to name what cannot be read. */
static const char *const ggml_type_names[] = {
    "F32",   "F16",        "Q4_0",       "Q4_1",       "Q4_2",     "Q4_3",     "Q5_0",
    "Q5_1",  "Q8_0",       "Q8_1",       "Q2_K",       "Q3_K",     "Q4_K",     "Q5_K",
    "Q6_K",  "Q8_K",       "IQ2_XXS",    "IQ2_XS",     "IQ3_XXS",  "IQ1_S",    "IQ4_NL",
    "IQ3_S", "IQ2_S",      "IQ4_XS",     "I8",         "I16",      "I32",      "I64",
    "F64",   "IQ1_M",      "BF16",       "Q4_0_4_4",   "Q4_0_4_8", "Q4_0_8_8", "TQ1_0",
    "TQ2_0", "IQ4_NL_4_4", "IQ4_NL_4_8", "IQ4_NL_8_8", "MXFP4",    "NVFP4",
};
#define N_TYPE_NAMES (sizeof(ggml_type_names) / sizeof(ggml_type_names[0]))

static lvr_status check_type(lvr_gguf_parser *p, uint32_t type)
{
    if (lvr_wtype_name((lvr_wtype)type) != NULL)
        return LVR_OK;
    char known[160] = "";
    for (uint32_t t = 0, n = 0; t < LVR_WTYPE_SLOTS && n < sizeof(known); t++)
        if (lvr_wtype_name((lvr_wtype)t) != NULL)
            n += (uint32_t)snprintf(known + n, sizeof(known) - n, "%s%s", n > 0 ? ", " : "",
                                    lvr_wtype_name((lvr_wtype)t));
    if (type >= N_TYPE_NAMES)
        return lvr_gguf_parse_fail(
            p, LVR_ERR_UNSUPPORTED,
            "type number %u is not known: the file is newer than this version, or damaged; supported are %s",
            type, known);
    return lvr_gguf_parse_fail(
        p, LVR_ERR_UNSUPPORTED,
        "weights of type %s are not supported: convert the model with llama-quantize to one of %s",
        ggml_type_names[type], known);
}

static lvr_status check_dims(lvr_gguf_parser *p, lvr_gguf_tensor *t)
{
    uint64_t rows = 1;
    for (uint32_t i = 0; i < t->n_dims; i++) {
        if (t->dims[i] == 0 || t->dims[i] > MAX_DIM)
            return lvr_gguf_parse_fail(
                p, LVR_ERR_FORMAT, "dimension %u is %" PRIu64 " (expected 1 to %llu): the file is damaged", i,
                t->dims[i], MAX_DIM);
        if (i > 0 && __builtin_mul_overflow(rows, t->dims[i], &rows))
            return lvr_gguf_parse_fail(p, LVR_ERR_FORMAT,
                                       "the product of its dimensions overflows: the file is damaged");
    }
    const uint64_t row = lvr_wtype_row_bytes(t->type, t->dims[0]);
    if (row == 0)
        return lvr_gguf_parse_fail(p, LVR_ERR_FORMAT,
                                   "rows of %" PRIu64 " values do not fill whole blocks of %s", t->dims[0],
                                   lvr_wtype_name(t->type));
    if (__builtin_mul_overflow(row, rows, &t->bytes) || t->bytes > INT64_MAX)
        return lvr_gguf_parse_fail(p, LVR_ERR_FORMAT, "its size overflows: the file is damaged");
    return LVR_OK;
}

static lvr_status take_tensor(lvr_gguf_parser *p, uint64_t i)
{
    lvr_gguf_tensor *t = &p->g->tensors[i];
    char *name = NULL;
    uint32_t type = 0;
    lvr_gguf_parsing(p, "tensor table entry %" PRIu64, i);
    lvr_status status = lvr_gguf_take_name(p, MAX_NAME_BYTES, &name);
    if (status != LVR_OK)
        return status;
    t->name = name;
    p->g->n_tensors = i + 1;
    lvr_gguf_parsing(p, "tensor %s", t->name);
    status = lvr_gguf_take_u32(p, &t->n_dims);
    if (status != LVR_OK)
        return status;
    if (t->n_dims == 0 || t->n_dims > 4)
        return lvr_gguf_parse_fail(p, LVR_ERR_FORMAT, "%u dimensions (expected 1 to 4): the file is damaged",
                                   t->n_dims);
    for (uint32_t d = 0; d < 4; d++)
        t->dims[d] = 1;
    for (uint32_t d = 0; status == LVR_OK && d < t->n_dims; d++)
        status = lvr_gguf_take_u64(p, &t->dims[d]);
    if (status == LVR_OK)
        status = lvr_gguf_take_u32(p, &type);
    if (status == LVR_OK)
        status = lvr_gguf_take_u64(p, &t->offset);
    if (status == LVR_OK)
        status = check_type(p, type);
    if (status != LVR_OK)
        return status;
    t->type = (lvr_wtype)type;
    return check_dims(p, t);
}

lvr_status lvr_gguf_take_tensors(lvr_gguf_parser *p, uint64_t n)
{
    lvr_gguf *g = p->g;
    lvr_gguf_parsing(p, "tensor table");
    if (n > MAX_TENSORS || n > (p->readable - p->pos) / MIN_TENSOR_ENTRY_BYTES)
        return lvr_gguf_parse_fail(p, LVR_ERR_FORMAT,
                                   "%" PRIu64 " tensors in %" PRIu64
                                   " bytes (at most %u allowed): the file is truncated or damaged",
                                   n, p->readable - p->pos, MAX_TENSORS);
    g->tensors = calloc(n + 1, sizeof(*g->tensors));
    g->tensors_sorted = calloc(n + 1, sizeof(*g->tensors_sorted));
    if (g->tensors == NULL || g->tensors_sorted == NULL)
        return lvr_gguf_no_memory(p);
    for (uint64_t i = 0; i < n; i++) {
        const lvr_status status = take_tensor(p, i);
        if (status != LVR_OK)
            return status;
        g->tensors_sorted[i] = (lvr_gguf_named){.name = g->tensors[i].name, .index = i};
    }
    lvr_gguf_parsing(p, "tensor table");
    return lvr_gguf_sort_names(p, g->tensors_sorted, n, "tensor");
}

static lvr_status find_alignment(lvr_gguf_parser *p)
{
    lvr_gguf *g = p->g;
    const lvr_gguf_named wanted = {.name = "general.alignment"};
    const lvr_gguf_named *found =
        bsearch(&wanted, g->keys_sorted, g->n_keys, sizeof(wanted), lvr_gguf_compare_names);
    g->alignment = DEFAULT_ALIGNMENT;
    if (found == NULL)
        return LVR_OK;
    const lvr_gguf_entry *e = &g->keys[found->index];
    lvr_gguf_parsing(p, "metadata key general.alignment");
    if (e->type != GGUF_V_U32)
        return lvr_gguf_parse_fail(p, LVR_ERR_FORMAT, "expected a value of type u32, found %s",
                                   lvr_gguf_type_name(e->type));
    uint32_t a = 0;
    memcpy(&a, g->header + e->pos, sizeof(a));
    if (a < MIN_ALIGNMENT || a > MAX_ALIGNMENT || (a & (a - 1)) != 0)
        return lvr_gguf_parse_fail(p, LVR_ERR_FORMAT, "%u (expected a power of two from %u to %u)", a,
                                   MIN_ALIGNMENT, MAX_ALIGNMENT);
    g->alignment = a;
    return LVR_OK;
}

/* Turns relative offsets into file offsets. */
static lvr_status place_tensor(lvr_gguf_parser *p, lvr_gguf_tensor *t, uint64_t data_begin)
{
    const lvr_gguf *g = p->g;
    lvr_gguf_parsing(p, "tensor %s", t->name);
    if (t->offset % g->alignment != 0)
        return lvr_gguf_parse_fail(p, LVR_ERR_FORMAT,
                                   "its offset %" PRIu64 " is not a multiple of the alignment %u", t->offset,
                                   g->alignment);
    uint64_t end = 0;
    if (__builtin_add_overflow(t->offset, data_begin, &t->offset) ||
        __builtin_add_overflow(t->offset, t->bytes, &end) || end > INT64_MAX)
        return lvr_gguf_parse_fail(p, LVR_ERR_FORMAT, "its offset overflows: the file is damaged");
    return LVR_OK;
}

/* Every tensor's data must be there. All have been placed, so that the message knows the whole file's size.
 */
static lvr_status check_bounds(lvr_gguf_parser *p)
{
    const lvr_gguf *g = p->g;
    const lvr_gguf_tensor *first = NULL;
    uint64_t whole = 0;
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        const lvr_gguf_tensor *t = &g->tensors[i];
        const uint64_t end = t->offset + t->bytes;
        whole = end > whole ? end : whole;
        if (end > g->file_bytes && (first == NULL || t->offset < first->offset))
            first = t;
    }
    if (first == NULL)
        return LVR_OK;
    lvr_gguf_parsing(p, "tensor %s", first->name);
    return lvr_gguf_parse_fail(p, LVR_ERR_FORMAT,
                               "its data ends at byte %" PRIu64 ", but the file has %" PRIu64 " of %" PRIu64
                               " bytes: %" PRIu64
                               " are missing (an incomplete download?); copy or download it again",
                               first->offset + first->bytes, g->file_bytes, whole, whole - g->file_bytes);
}

struct extent {
    uint64_t begin, end, index;
};

static int compare_extents(const void *a, const void *b)
{
    const struct extent *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

/* A tensor begins where the one before it ends, but for the padding. */
static lvr_status check_neighbours(lvr_gguf_parser *p, const struct extent *before, const struct extent *x)
{
    const lvr_gguf *g = p->g;
    if (x->begin < before->end)
        return lvr_gguf_parse_fail(p, LVR_ERR_FORMAT, "tensors %s and %s overlap: the file is damaged",
                                   g->tensors[before->index].name, g->tensors[x->index].name);
    if (x->begin != lvr_gguf_align_up(before->end, g->alignment))
        return lvr_gguf_parse_fail(
            p, LVR_ERR_FORMAT,
            "tensor %s begins at byte %" PRIu64 ", expected %" PRIu64 ", where tensor %s and its padding to "
            "%u bytes end: general.alignment is wrong, or the file is damaged; convert or download it again",
            g->tensors[x->index].name, x->begin, lvr_gguf_align_up(before->end, g->alignment),
            g->tensors[before->index].name, g->alignment);
    return LVR_OK;
}

/* The last tensor's padding may be missing. More than that is data that the tensors do not account for: they
 * have been looked for in the wrong place. */
static lvr_status check_end(lvr_gguf_parser *p, uint64_t end)
{
    const lvr_gguf *g = p->g;
    if (g->file_bytes <= lvr_gguf_align_up(end, g->alignment))
        return LVR_OK;
    return lvr_gguf_parse_fail(p, LVR_ERR_FORMAT,
                               "the tensors end at byte %" PRIu64 " of %" PRIu64
                               ", expected at most %u bytes "
                               "of padding after them: general.alignment is wrong, or the file is damaged; "
                               "convert or download it again",
                               end, g->file_bytes, g->alignment - 1);
}

/* x: all tensors, in the order of the file. */
static lvr_status check_extents(lvr_gguf_parser *p, const struct extent *x, uint64_t data_begin,
                                bool skip_end)
{
    const lvr_gguf *g = p->g;
    lvr_status status = LVR_OK;
    if (x[0].begin != data_begin)
        return lvr_gguf_parse_fail(p, LVR_ERR_FORMAT,
                                   "the first tensor, %s, has offset %" PRIu64
                                   ", expected 0: the file is damaged; convert or download it again",
                                   g->tensors[x[0].index].name, x[0].begin - data_begin);
    for (uint64_t i = 1; status == LVR_OK && i < g->n_tensors; i++)
        status = check_neighbours(p, &x[i - 1], &x[i]);
    return status == LVR_OK && !skip_end ? check_end(p, x[g->n_tensors - 1].end) : status;
}

/* Tensors fill the data one after the other, as every writer lays them out and llama.cpp demands: with a
 * wrong alignment or a damaged offset they would be read from the wrong place in silence. */
static lvr_status check_layout(lvr_gguf_parser *p, uint64_t data_begin, bool skip_end)
{
    const lvr_gguf *g = p->g;
    if (g->n_tensors == 0)
        return LVR_OK;
    struct extent *x = calloc(g->n_tensors, sizeof(*x));
    if (x == NULL)
        return lvr_gguf_no_memory(p);
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        const lvr_gguf_tensor *t = &g->tensors[i];
        x[i] = (struct extent){.begin = t->offset, .end = t->offset + t->bytes, .index = i};
    }
    qsort(x, g->n_tensors, sizeof(*x), compare_extents);
    lvr_gguf_parsing(p, "tensor table");
    const lvr_status status = check_extents(p, x, data_begin, skip_end);
    free(x);
    return status;
}

lvr_status lvr_gguf_place_tensors(lvr_gguf_parser *p, bool skip_bounds)
{
    const lvr_gguf *g = p->g;
    lvr_status status = find_alignment(p);
    if (status != LVR_OK)
        return status;
    const uint64_t data_begin = lvr_gguf_align_up(p->pos, g->alignment);
    for (uint64_t i = 0; status == LVR_OK && i < g->n_tensors; i++)
        status = place_tensor(p, &g->tensors[i], data_begin);
    if (status == LVR_OK && !skip_bounds)
        status = check_bounds(p);
    return status == LVR_OK ? check_layout(p, data_begin, skip_bounds) : status;
}
