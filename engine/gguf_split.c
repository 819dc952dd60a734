/*
 * Split models (https://github.com/ggml-org/llama.cpp, gguf-split): the first part holds the metadata, every
 * part some of the tensors, and all of them split.no, split.count and split.tensors.count. They are joined by
 * writing the header that an unsplit file would have and parsing that, so that everything after sees one
 * file; only `places` knows where a tensor really is.
 */
#include "engine/gguf_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_PARTS 9999u
#define SUFFIX_BYTES 20u /* -00001-of-00002.gguf */

lvr_status lvr_gguf_split_count(const lvr_gguf *g, uint32_t *ret, lvr_error *err)
{
    uint32_t count = 1;
    if (lvr_gguf_has(g, "split.count")) {
        const lvr_status status = lvr_gguf_u32(g, "split.count", &count, err);
        if (status != LVR_OK)
            return status;
    }
    if (count > MAX_PARTS)
        return lvr_fail(err, LVR_ERR_FORMAT, "%s: metadata key split.count is %u (expected at most %u)",
                        lvr_gguf_path(g), count, MAX_PARTS);
    *ret = count > 1 ? count : 1;
    return LVR_OK;
}

/* ---- one part against the others ---- */

static lvr_status check_number(const lvr_gguf *g, const char *key, uint32_t expected, lvr_error *err)
{
    uint32_t found = 0;
    const lvr_status status = lvr_gguf_u32(g, key, &found, err);
    if (status != LVR_OK || found == expected)
        return status;
    return lvr_fail(
        err, LVR_ERR_FORMAT,
        "%s: metadata key %s is %u, expected %u: the part belongs to another model, or was renamed; give all "
        "parts the names they were made with, or download them again",
        lvr_gguf_path(g), key, found, expected);
}

/* A key that two parts state must be the same: general.architecture, say, or the tokenizer. */
static lvr_status check_same_model(const lvr_gguf *first, const lvr_gguf *part, lvr_error *err)
{
    for (uint64_t i = 0; i < part->n_keys; i++) {
        const lvr_gguf_entry *b = &part->keys[i];
        const lvr_gguf_entry *a = lvr_gguf_find_entry(first, b->key);
        if (a == NULL || strncmp(b->key, "split.", 6) == 0)
            continue;
        if (a->end - a->begin != b->end - b->begin ||
            memcmp(first->header + a->begin, part->header + b->begin, a->end - a->begin) != 0)
            return lvr_fail(err, LVR_ERR_FORMAT,
                            "%s: metadata key %.255s differs from that of %s: a part of another model; "
                            "download all parts again",
                            lvr_gguf_path(part), b->key, lvr_gguf_path(first));
    }
    return LVR_OK;
}

static lvr_status check_no_double(lvr_gguf *const *parts, uint32_t i, lvr_error *err)
{
    for (uint64_t t = 0; t < parts[i]->n_tensors; t++)
        for (uint32_t k = 0; k < i; k++)
            if (lvr_gguf_find(parts[k], parts[i]->tensors[t].name) != NULL)
                return lvr_fail(err, LVR_ERR_FORMAT,
                                "%s: tensor %s is in %s too: a part was copied, or belongs to another model; "
                                "download all parts again",
                                lvr_gguf_path(parts[i]), parts[i]->tensors[t].name, lvr_gguf_path(parts[k]));
    return LVR_OK;
}

static lvr_status check_parts(lvr_gguf *const *parts, uint32_t n, lvr_error *err)
{
    uint64_t n_tensors = 0;
    uint32_t stated = 0;
    lvr_status status = LVR_OK;
    for (uint32_t i = 0; status == LVR_OK && i < n; i++) {
        status = check_number(parts[i], "split.count", n, err);
        if (status == LVR_OK)
            status = check_number(parts[i], "split.no", i, err);
        if (status == LVR_OK)
            status = check_same_model(parts[0], parts[i], err);
        if (status == LVR_OK)
            status = check_no_double(parts, i, err);
        n_tensors += parts[i]->n_tensors;
    }
    if (status == LVR_OK)
        status = lvr_gguf_u32(parts[0], "split.tensors.count", &stated, err);
    for (uint32_t i = 1; status == LVR_OK && i < n; i++)
        status = check_number(parts[i], "split.tensors.count", stated, err);
    if (status == LVR_OK && stated != n_tensors)
        status = lvr_fail(err, LVR_ERR_FORMAT,
                          "%s: split.tensors.count is %u, but its %u parts hold %" PRIu64
                          " tensors: one of them belongs to another model; download all parts again",
                          lvr_gguf_path(parts[0]), stated, n, n_tensors);
    return status;
}

/* ---- joining ---- */

static bool is_kept(const lvr_gguf_entry *e)
{
    return strncmp(e->key, "split.", 6) != 0;
}

static void put_tensor(lvr_buf *b, const lvr_gguf_tensor *t, uint64_t offset)
{
    lvr_gguf_put_u64(b, strlen(t->name));
    lvr_buf_append(b, t->name, strlen(t->name));
    lvr_gguf_put_u32(b, t->n_dims);
    for (uint32_t d = 0; d < t->n_dims; d++)
        lvr_gguf_put_u64(b, t->dims[d]);
    lvr_gguf_put_u32(b, t->type);
    lvr_gguf_put_u64(b, offset);
}

/* The header of the file that joining the parts would make; tensors follow each other in the parts' order. */
static void put_header(lvr_gguf *const *parts, uint32_t n, lvr_buf *b)
{
    const lvr_gguf *first = parts[0];
    uint64_t n_keys = 0, n_tensors = 0, offset = 0;
    for (uint64_t i = 0; i < first->n_keys; i++)
        n_keys += is_kept(&first->keys[i]);
    for (uint32_t i = 0; i < n; i++)
        n_tensors += parts[i]->n_tensors;
    lvr_buf_append(b, "GGUF", 4);
    lvr_gguf_put_u32(b, LVR_GGUF_VERSION);
    lvr_gguf_put_u64(b, n_tensors);
    lvr_gguf_put_u64(b, n_keys);
    for (uint64_t i = 0; i < first->n_keys; i++)
        if (is_kept(&first->keys[i]))
            lvr_buf_append(b, first->header + first->keys[i].begin,
                           first->keys[i].end - first->keys[i].begin);
    for (uint32_t i = 0; i < n; i++)
        for (uint64_t k = 0; k < parts[i]->n_tensors; k++) {
            const lvr_gguf_tensor *t = &parts[i]->tensors[k];
            put_tensor(b, t, offset);
            offset += lvr_gguf_align_up(t->bytes, first->alignment);
        }
}

/* The parts' files and their tensors' places go to the joined model. */
static lvr_status take_files(lvr_gguf *joined, lvr_gguf *const *parts, uint32_t n, lvr_error *err)
{
    lvr_gguf_part *files = calloc(n, sizeof(*files));
    joined->places = calloc(joined->n_tensors + 1, sizeof(*joined->places));
    if (files == NULL || joined->places == NULL) {
        free(files);
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory", lvr_gguf_path(joined));
    }
    free(joined->parts[0].path);
    free(joined->parts);
    joined->parts = files;
    joined->n_parts = n;
    joined->file_bytes = 0;
    for (uint32_t i = 0, at = 0; i < n; i++) {
        for (uint64_t k = 0; k < parts[i]->n_tensors; k++)
            joined->places[at++] = (lvr_gguf_place){.part = i, .offset = parts[i]->tensors[k].offset};
        files[i] = parts[i]->parts[0];
        parts[i]->parts[0] = (lvr_gguf_part){.fd = -1};
        joined->file_bytes += files[i].bytes;
    }
    return LVR_OK;
}

static lvr_status join(lvr_gguf *const *parts, uint32_t n, lvr_gguf **ret, lvr_error *err)
{
    lvr_gguf *joined = NULL;
    lvr_buf header = LVR_BUF_INIT;
    lvr_status status = check_parts(parts, n, err);
    if (status != LVR_OK)
        return status;
    put_header(parts, n, &header);
    if (header.failed)
        status = lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory", lvr_gguf_path(parts[0]));
    else
        status = lvr_gguf_open_mem(lvr_gguf_path(parts[0]), header.data, header.len, header.len, true,
                                   &joined, err);
    if (status == LVR_OK)
        status = take_files(joined, parts, n, err);
    lvr_buf_free(&header);
    if (status == LVR_OK)
        *ret = joined;
    else
        lvr_gguf_free(joined);
    return status;
}

static void free_all(lvr_gguf **parts, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        lvr_gguf_free(parts[i]);
}

lvr_status lvr_gguf_join(lvr_gguf **parts, uint32_t n, lvr_gguf **ret, lvr_error *err)
{
    const lvr_status status = join(parts, n, ret, err);
    free_all(parts, n);
    return status;
}

/* ---- finding the parts ---- */

/* The path of part `i` (from 0), from that of any part. NULL: out of memory. */
static char *part_path(const char *any, uint32_t i, uint32_t count)
{
    char *path = NULL;
    const int stem = (int)(strlen(any) - SUFFIX_BYTES);
    return asprintf(&path, "%.*s-%05u-of-%05u.gguf", stem, any, i + 1, count) < 0 ? NULL : path;
}

/* The file's name must say which part it is, or the others cannot be found. */
static lvr_status check_name(const char *path, const lvr_gguf *part, uint32_t count, uint32_t *ret_no,
                             lvr_error *err)
{
    uint32_t no = 0;
    char expected[SUFFIX_BYTES + 16];
    const size_t n = strlen(path);
    const lvr_status status = lvr_gguf_u32(part, "split.no", &no, err);
    if (status != LVR_OK)
        return status;
    if (no >= count)
        return lvr_fail(err, LVR_ERR_FORMAT, "%s: metadata key split.no is %u, but split.count is %u", path,
                        no, count);
    snprintf(expected, sizeof(expected), "-%05u-of-%05u.gguf", no + 1, count);
    if (n < SUFFIX_BYTES || strcmp(path + n - SUFFIX_BYTES, expected) != 0)
        return lvr_fail(
            err, LVR_ERR_FORMAT,
            "%s: part %u of %u of a split model, whose name must end in %s so that the other parts "
            "can be found beside it: rename it",
            path, no + 1, count, expected);
    *ret_no = no;
    return LVR_OK;
}

static lvr_status open_part(const char *any, uint32_t i, uint32_t count, lvr_gguf **ret, lvr_error *err)
{
    char *path = part_path(any, i, count);
    if (path == NULL)
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory", any);
    lvr_status status = LVR_OK;
    if (access(path, F_OK) != 0)
        status = lvr_fail_errno(err, errno,
                                "%s: cannot find it (the parts of a model lie beside each other: download "
                                "this one too, or copy it there)",
                                path);
    else
        status = lvr_gguf_open_one(path, ret, err);
    if (status != LVR_OK) {
        char what[64];
        snprintf(what, sizeof(what), "part %u of %u of the split model", i + 1, count);
        lvr_error_prefix(err, "%s", what);
    }
    free(path);
    return status;
}

lvr_status lvr_gguf_open_split(const char *path, lvr_gguf *part, uint32_t count, lvr_gguf **ret,
                               lvr_error *err)
{
    uint32_t no = 0;
    lvr_gguf **parts = NULL;
    lvr_status status = check_name(path, part, count, &no, err);
    if (status == LVR_OK && (parts = calloc(count, sizeof(lvr_gguf *))) == NULL)
        status = lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory", path);
    if (status != LVR_OK) {
        lvr_gguf_free(part);
        return status;
    }
    parts[no] = part;
    for (uint32_t i = 0; status == LVR_OK && i < count; i++)
        if (i != no)
            status = open_part(path, i, count, &parts[i], err);
    if (status == LVR_OK)
        status = lvr_gguf_join(parts, count, ret, err);
    else
        free_all(parts, count);
    free(parts);
    return status;
}
