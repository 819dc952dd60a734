/* Questions to the metadata. */
#include "engine/gguf_internal.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const lvr_gguf_entry *lvr_gguf_find_entry(const lvr_gguf *g, const char *key)
{
    const lvr_gguf_named wanted = {.name = key};
    const lvr_gguf_named *found =
        bsearch(&wanted, g->keys_sorted, g->n_keys, sizeof(wanted), lvr_gguf_compare_names);
    return found == NULL ? NULL : &g->keys[found->index];
}

bool lvr_gguf_has(const lvr_gguf *g, const char *key)
{
    return lvr_gguf_find_entry(g, key) != NULL;
}

static lvr_status absent(const lvr_gguf *g, const char *key, const char *expected, lvr_error *err)
{
    return lvr_fail(err, LVR_ERR_FORMAT, "%s: metadata key %s (%s) is missing", g->path, key, expected);
}

static lvr_status wrong_type(const lvr_gguf *g, const lvr_gguf_entry *e, const char *expected, lvr_error *err)
{
    const bool array = e->type == GGUF_V_ARR;
    return lvr_fail(err, LVR_ERR_FORMAT, "%s: metadata key %.255s: expected %s, found %s%s", g->path, e->key,
                    expected, array ? "an array of " : "",
                    lvr_gguf_type_name(array ? e->elem_type : e->type));
}

bool lvr_gguf_integer(const lvr_gguf *g, uint32_t type, uint64_t pos, int64_t *ret_signed,
                      uint64_t *ret_unsigned)
{
    union {
        uint8_t u8;
        int8_t i8;
        uint16_t u16;
        int16_t i16;
        uint32_t u32;
        int32_t i32;
        uint64_t u64;
        int64_t i64;
    } v;
    memcpy(&v, g->header + pos, lvr_gguf_type_bytes(type));
    *ret_signed = 0;
    *ret_unsigned = 0;
    switch (type) {
    case GGUF_V_U8:
        *ret_unsigned = v.u8;
        return true;
    case GGUF_V_I8:
        *ret_signed = v.i8;
        break;
    case GGUF_V_U16:
        *ret_unsigned = v.u16;
        return true;
    case GGUF_V_I16:
        *ret_signed = v.i16;
        break;
    case GGUF_V_U32:
        *ret_unsigned = v.u32;
        return true;
    case GGUF_V_I32:
        *ret_signed = v.i32;
        break;
    case GGUF_V_U64:
        *ret_unsigned = v.u64;
        return true;
    case GGUF_V_I64:
        *ret_signed = v.i64;
        break;
    default:
        return false;
    }
    *ret_unsigned = *ret_signed >= 0 ? (uint64_t)*ret_signed : 0;
    return true;
}

lvr_status lvr_gguf_u32(const lvr_gguf *g, const char *key, uint32_t *ret, lvr_error *err)
{
    const lvr_gguf_entry *e = lvr_gguf_find_entry(g, key);
    if (e == NULL)
        return absent(g, key, "an integer", err);
    int64_t s = 0;
    uint64_t u = 0;
    if (e->type == GGUF_V_ARR || e->type == GGUF_V_STR || !lvr_gguf_integer(g, e->type, e->pos, &s, &u))
        return wrong_type(g, e, "an integer", err);
    if (s < 0)
        return lvr_fail(err, LVR_ERR_FORMAT, "%s: metadata key %s is %" PRId64 " (expected 0 to %u)", g->path,
                        key, s, UINT32_MAX);
    if (u > UINT32_MAX)
        return lvr_fail(err, LVR_ERR_FORMAT, "%s: metadata key %s is %" PRIu64 " (expected 0 to %u)", g->path,
                        key, u, UINT32_MAX);
    *ret = (uint32_t)u;
    return LVR_OK;
}

lvr_status lvr_gguf_f32(const lvr_gguf *g, const char *key, float *ret, lvr_error *err)
{
    const lvr_gguf_entry *e = lvr_gguf_find_entry(g, key);
    if (e == NULL)
        return absent(g, key, "f32", err);
    if (e->type == GGUF_V_F32) {
        memcpy(ret, g->header + e->pos, sizeof(*ret));
        return LVR_OK;
    }
    if (e->type != GGUF_V_F64)
        return wrong_type(g, e, "f32", err);
    double wide = 0;
    memcpy(&wide, g->header + e->pos, sizeof(wide));
    *ret = (float)wide;
    return LVR_OK;
}

lvr_status lvr_gguf_str_(const lvr_gguf *g, const char *key, const char **ret, lvr_error *err)
{
    const lvr_gguf_entry *e = lvr_gguf_find_entry(g, key);
    if (e == NULL)
        return absent(g, key, "a string", err);
    if (e->type != GGUF_V_STR)
        return wrong_type(g, e, "a string", err);
    if (strlen(e->decoded) != e->n)
        return lvr_fail(err, LVR_ERR_FORMAT, "%s: metadata key %s contains a NUL byte", g->path, key);
    *ret = e->decoded;
    return LVR_OK;
}

bool lvr_gguf_bool_or(const lvr_gguf *g, const char *key, bool fallback)
{
    const lvr_gguf_entry *e = lvr_gguf_find_entry(g, key);
    return e == NULL || e->type != GGUF_V_BOOL ? fallback : g->header[e->pos] != 0;
}

lvr_status lvr_gguf_check_bool(const lvr_gguf *g, const char *key, lvr_error *err)
{
    const lvr_gguf_entry *e = lvr_gguf_find_entry(g, key);
    return e == NULL || e->type == GGUF_V_BOOL ? LVR_OK : wrong_type(g, e, "a boolean", err);
}

static lvr_status find_array(const lvr_gguf *g, const char *key, uint32_t elem_type,
                             const lvr_gguf_entry **ret, lvr_error *err)
{
    char expected[32];
    snprintf(expected, sizeof(expected), "an array of %s", lvr_gguf_type_name(elem_type));
    const lvr_gguf_entry *e = lvr_gguf_find_entry(g, key);
    if (e == NULL)
        return absent(g, key, expected, err);
    const bool compatible =
        e->elem_type == elem_type || (elem_type == GGUF_V_I32 && e->elem_type == GGUF_V_U32);
    if (e->type != GGUF_V_ARR || !compatible)
        return wrong_type(g, e, expected, err);
    *ret = e;
    return LVR_OK;
}

lvr_status lvr_gguf_str_array(const lvr_gguf *g, const char *key, const lvr_gguf_str **ret, uint64_t *ret_n,
                              lvr_error *err)
{
    const lvr_gguf_entry *e = NULL;
    const lvr_status status = find_array(g, key, GGUF_V_STR, &e, err);
    if (status != LVR_OK)
        return status;
    *ret = e->decoded;
    *ret_n = e->n;
    return LVR_OK;
}

lvr_status lvr_gguf_f32_array(const lvr_gguf *g, const char *key, const float **ret, uint64_t *ret_n,
                              lvr_error *err)
{
    const lvr_gguf_entry *e = NULL;
    const lvr_status status = find_array(g, key, GGUF_V_F32, &e, err);
    if (status != LVR_OK)
        return status;
    *ret = e->decoded;
    *ret_n = e->n;
    return LVR_OK;
}

lvr_status lvr_gguf_i32_array(const lvr_gguf *g, const char *key, const int32_t **ret, uint64_t *ret_n,
                              lvr_error *err)
{
    const lvr_gguf_entry *e = NULL;
    const lvr_status status = find_array(g, key, GGUF_V_I32, &e, err);
    if (status != LVR_OK)
        return status;
    const int32_t *values = e->decoded;
    for (uint64_t i = 0; e->elem_type == GGUF_V_U32 && i < e->n; i++)
        if (values[i] < 0)
            return lvr_fail(err, LVR_ERR_FORMAT,
                            "%s: metadata key %s: element %" PRIu64 " is %u (expected at most %d)", g->path,
                            key, i, (uint32_t)values[i], INT32_MAX);
    *ret = values;
    *ret_n = e->n;
    return LVR_OK;
}

uint64_t lvr_gguf_n_keys(const lvr_gguf *g)
{
    return g->n_keys;
}

const char *lvr_gguf_key_at(const lvr_gguf *g, uint64_t i)
{
    return i < g->n_keys ? g->keys[i].key : NULL;
}
