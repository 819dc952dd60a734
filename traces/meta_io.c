#include "traces/meta_io.h"

#include "traces/stream_io.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the tables: one row an attribute, driving both directions
 * ------------------------------------------------------ */

typedef enum attr_kind { ATTR_STR, ATTR_BOOL, ATTR_U32, ATTR_U64, ATTR_F64 } attr_kind;

typedef struct attr_row {
    const char *name;
    attr_kind kind;
    size_t offset, bytes;
} attr_row;

#define ROW(type, member, kind)                                                                              \
    {                                                                                                        \
#member, kind, offsetof(type, member), sizeof(((type *)0)->member)                                   \
    }

static const attr_row root_rows[] = {
    ROW(lvr_trace_meta, complete, ATTR_BOOL), ROW(lvr_trace_meta, synthetic, ATTR_BOOL),
    ROW(lvr_trace_meta, seed, ATTR_U64),      ROW(lvr_trace_meta, recorder_overhead_pct, ATTR_F64),
    ROW(lvr_trace_meta, software, ATTR_STR),  ROW(lvr_trace_meta, commit, ATTR_STR),
    ROW(lvr_trace_meta, compiler, ATTR_STR),  ROW(lvr_trace_meta, created_utc, ATTR_STR),
};

static const attr_row device_rows[] = {
    ROW(lvr_trace_device, vendor, ATTR_STR),    ROW(lvr_trace_device, model, ATTR_STR),
    ROW(lvr_trace_device, os, ATTR_STR),        ROW(lvr_trace_device, kernel, ATTR_STR),
    ROW(lvr_trace_device, cpu_flags, ATTR_STR), ROW(lvr_trace_device, filesystem, ATTR_STR),
    ROW(lvr_trace_device, io_engine, ATTR_STR), ROW(lvr_trace_device, direct, ATTR_BOOL),
    ROW(lvr_trace_device, emulated, ATTR_STR),  ROW(lvr_trace_device, scale, ATTR_F64),
    ROW(lvr_trace_device, sha256, ATTR_STR),
};

static const attr_row model_rows[] = {
    ROW(lvr_trace_model, name, ATTR_STR),     ROW(lvr_trace_model, arch, ATTR_STR),
    ROW(lvr_trace_model, quant, ATTR_STR),    ROW(lvr_trace_model, sha256, ATTR_STR),
    ROW(lvr_trace_model, n_layers, ATTR_U32), ROW(lvr_trace_model, d_model, ATTR_U32),
    ROW(lvr_trace_model, n_heads, ATTR_U32),  ROW(lvr_trace_model, n_kv, ATTR_U32),
    ROW(lvr_trace_model, d_ff, ATTR_U32),     ROW(lvr_trace_model, vocab, ATTR_U32),
};

static const attr_row sampling_rows[] = {
    ROW(lvr_trace_meta, temperature, ATTR_F64),
    ROW(lvr_trace_meta, top_p, ATTR_F64),
    ROW(lvr_trace_meta, top_k, ATTR_U32),
};

static const attr_row oracle_rows[] = {
    ROW(lvr_trace_meta, cap_branch, ATTR_U32),
    ROW(lvr_trace_meta, cap_expansions, ATTR_U32),
    ROW(lvr_trace_meta, cap_depth, ATTR_U32),
    ROW(lvr_trace_meta, cap_min_path, ATTR_F64),
};

#define N_ROWS(rows) (sizeof(rows) / sizeof((rows)[0]))

static const char *const kind_names[] = {[LVR_TRACE_TIMING] = "timing",
                                         [LVR_TRACE_ORACLE] = "oracle",
                                         [LVR_TRACE_BENCH] = "bench",
                                         [LVR_TRACE_SIMULATED] = "simulated",
                                         [LVR_TRACE_IMPORTED] = "imported"};

const char *lvr_trace_kind_name(lvr_trace_kind kind)
{
    return (size_t)kind < N_ROWS(kind_names) ? kind_names[kind] : "unknown";
}

const char *lvr_stream_key(lvr_stream stream)
{
    const char *name = lvr_stream_describe(stream)->name;
    return strrchr(name, '/') + 1;
}

/* ---- writing
 * ---------------------------------------------------------------------------------------------------------
 */

static lvr_status write_array(hid_t object, const char *name, hid_t disk, hid_t memory, const void *values,
                              size_t n, const char *path, lvr_error *err)
{
    const hsize_t dims = n;
    const hid_t space = n == 1 ? H5Screate(H5S_SCALAR) : H5Screate_simple(1, &dims, NULL);
    const hid_t attr = space >= 0 ? H5Acreate2(object, name, disk, space, H5P_DEFAULT, H5P_DEFAULT) : -1;
    const bool ok = attr >= 0 && H5Awrite(attr, memory, values) >= 0;
    if (attr >= 0)
        H5Aclose(attr);
    if (space >= 0)
        H5Sclose(space);
    return ok ? LVR_OK : lvr_fail(err, LVR_ERR_IO, "%s: HDF5 could not write the attribute %s", path, name);
}

/* Unknown is absent: empty strings and NaN are not written. */
static lvr_status write_row(hid_t object, const attr_row *row, const void *base, const char *path,
                            lvr_error *err)
{
    const char *at = (const char *)base + row->offset;
    switch (row->kind) {
    case ATTR_STR:
        return at[0] ? lvr_attr_write_strings(object, row->name, &at, 1, true, path, err) : LVR_OK;
    case ATTR_BOOL: {
        const uint8_t value = *(const bool *)at ? 1 : 0;
        return write_array(object, row->name, H5T_STD_U8LE, H5T_NATIVE_UINT8, &value, 1, path, err);
    }
    case ATTR_U32:
        return write_array(object, row->name, H5T_STD_U32LE, H5T_NATIVE_UINT32, at, 1, path, err);
    case ATTR_U64:
        return write_array(object, row->name, H5T_STD_U64LE, H5T_NATIVE_UINT64, at, 1, path, err);
    case ATTR_F64: {
        double value;
        memcpy(&value, at, sizeof value);
        if (isnan(value))
            return LVR_OK;
        return write_array(object, row->name, H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, at, 1, path, err);
    }
    }
    return lvr_fail(err, LVR_ERR_INVARIANT, "%s: attribute %s has no known kind", path, row->name);
}

static lvr_status write_rows(hid_t object, const attr_row *rows, size_t n, const void *base, const char *path,
                             lvr_error *err)
{
    lvr_status st = LVR_OK;
    for (size_t i = 0; i < n && st == LVR_OK; i++)
        st = write_row(object, &rows[i], base, path, err);
    return st;
}

static lvr_status create_group(hid_t h5, const char *name, const char *path, hid_t *ret, lvr_error *err)
{
    const hid_t group = H5Gcreate2(h5, name, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    if (group < 0)
        return lvr_fail(err, LVR_ERR_IO, "%s: HDF5 could not create the group %s", path, name);
    *ret = group;
    return LVR_OK;
}

static lvr_status write_group(hid_t h5, const char *name, const attr_row *rows, size_t n, const void *base,
                              const char *path, lvr_error *err)
{
    hid_t group = -1;
    lvr_status st = create_group(h5, name, path, &group, err);
    if (st != LVR_OK)
        return st;
    st = write_rows(group, rows, n, base, path, err);
    H5Gclose(group);
    return st;
}

static bool model_known(const lvr_trace_model *m)
{
    return m->name[0] || m->sha256[0] || m->n_layers > 0;
}

static lvr_status write_model(hid_t h5, const char *name, const lvr_trace_model *m, const char *path,
                              lvr_error *err)
{
    hid_t group = -1;
    if (!model_known(m))
        return LVR_OK;
    lvr_status st = create_group(h5, name, path, &group, err);
    if (st != LVR_OK)
        return st;
    st = write_rows(group, model_rows, N_ROWS(model_rows), m, path, err);
    if (st == LVR_OK && m->n_layers > 0)
        st = write_array(group, "bytes_per_layer", H5T_STD_U64LE, H5T_NATIVE_UINT64, m->bytes_per_layer,
                         m->n_layers, path, err);
    if (st == LVR_OK && m->n_layers > 0)
        st = write_array(group, "resident_layers", H5T_STD_U32LE, H5T_NATIVE_UINT32, m->resident, m->n_layers,
                         path, err);
    H5Gclose(group);
    return st;
}

static lvr_status write_models(hid_t h5, const lvr_trace_meta *meta, const char *path, lvr_error *err)
{
    hid_t group = -1;
    lvr_status st = create_group(h5, "/model", path, &group, err);
    if (st != LVR_OK)
        return st;
    H5Gclose(group);
    st = write_model(h5, "/model/target", &meta->target, path, err);
    return st == LVR_OK ? write_model(h5, "/model/draft", &meta->draft, path, err) : st;
}

/* The whole text as one scalar string dataset: an attribute could hold no more than 64 KiB in the earliest
 * format. */
static lvr_status write_config(hid_t h5, const char *yaml, const char *path, lvr_error *err)
{
    char sha256[LVR_SHA256_HEX_BYTES];
    const char *sha = sha256;
    if (!yaml || !yaml[0])
        return LVR_OK;
    lvr_sha256_mem_hex(yaml, strlen(yaml), sha256);
    const hid_t type = H5Tcopy(H5T_C_S1);
    const hid_t space = H5Screate(H5S_SCALAR);
    hid_t dset = -1;
    if (type >= 0 && space >= 0 && H5Tset_size(type, strlen(yaml)) >= 0 &&
        H5Tset_cset(type, H5T_CSET_UTF8) >= 0 && H5Tset_strpad(type, H5T_STR_NULLPAD) >= 0)
        dset = H5Dcreate2(h5, "/config", type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    const bool ok = dset >= 0 && H5Dwrite(dset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, yaml) >= 0;
    lvr_status st = ok ? lvr_attr_write_strings(dset, "sha256", &sha, 1, true, path, err)
                       : lvr_fail(err, LVR_ERR_IO, "%s: HDF5 could not write /config", path);
    if (dset >= 0)
        H5Dclose(dset);
    if (space >= 0)
        H5Sclose(space);
    if (type >= 0)
        H5Tclose(type);
    return st;
}

static hid_t clock_type(void)
{
    const hid_t type = H5Tcreate(H5T_COMPOUND, sizeof(lvr_clock_pair));
    if (type < 0)
        return -1;
    if (H5Tinsert(type, "monotonic_raw", offsetof(lvr_clock_pair, raw_ns), H5T_STD_U64LE) < 0 ||
        H5Tinsert(type, "boottime", offsetof(lvr_clock_pair, boot_ns), H5T_STD_U64LE) < 0 ||
        H5Tinsert(type, "realtime", offsetof(lvr_clock_pair, real_ns), H5T_STD_U64LE) < 0) {
        H5Tclose(type);
        return -1;
    }
    return type;
}

static lvr_status write_clocks(hid_t h5, const lvr_clock_list *clocks, const char *path, lvr_error *err)
{
    static const char *const unit = "ns";
    static const char *const text = "CLOCK_MONOTONIC_RAW, CLOCK_BOOTTIME and CLOCK_REALTIME, read together";
    const hsize_t rows = clocks->n;
    if (rows == 0)
        return LVR_OK;
    const hid_t type = clock_type();
    const hid_t space = H5Screate_simple(1, &rows, NULL);
    const hid_t dset = type >= 0 && space >= 0
                           ? H5Dcreate2(h5, "/clocks", type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT)
                           : -1;
    lvr_status st = LVR_OK;
    if (dset < 0 || H5Dwrite(dset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, clocks->items) < 0)
        st = lvr_fail(err, LVR_ERR_IO, "%s: HDF5 could not write /clocks", path);
    if (st == LVR_OK)
        st = lvr_attr_write_strings(dset, "unit", &unit, 1, true, path, err);
    if (st == LVR_OK)
        st = lvr_attr_write_strings(dset, "description", &text, 1, true, path, err);
    if (dset >= 0)
        H5Dclose(dset);
    if (space >= 0)
        H5Sclose(space);
    if (type >= 0)
        H5Tclose(type);
    return st;
}

/* One member a stream, so that a reader of another minor version finds the streams it knows by name. */
static hid_t dropped_type(void)
{
    const hid_t type = H5Tcreate(H5T_COMPOUND, LVR_STREAM_COUNT * sizeof(uint64_t));
    for (int s = 0; type >= 0 && s < LVR_STREAM_COUNT; s++) {
        if (H5Tinsert(type, lvr_stream_key((lvr_stream)s), (size_t)s * sizeof(uint64_t), H5T_NATIVE_UINT64) <
            0) {
            H5Tclose(type);
            return -1;
        }
    }
    return type;
}

static lvr_status write_dropped(hid_t root, const uint64_t *dropped, const char *path, lvr_error *err)
{
    const hid_t type = dropped_type();
    if (type < 0)
        return lvr_fail(err, LVR_ERR_IO, "%s: HDF5 could not write the attribute dropped", path);
    const lvr_status st = write_array(root, "dropped", type, type, dropped, 1, path, err);
    H5Tclose(type);
    return st;
}

static lvr_status write_identity(hid_t root, const lvr_trace_meta *meta, const char *path, lvr_error *err)
{
    char version[32], libraries[64];
    unsigned major = 0, minor = 0, release = 0;
    H5get_libversion(&major, &minor, &release);
    snprintf(version, sizeof version, "%u.%u", LVR_TRACE_VERSION_MAJOR, LVR_TRACE_VERSION_MINOR);
    snprintf(libraries, sizeof libraries, "hdf5 %u.%u.%u", major, minor, release);
    const struct {
        const char *name, *value;
    } rows[] = {{"schema", LVR_TRACE_SCHEMA},
                {"version", version},
                {"kind", lvr_trace_kind_name(meta->kind)},
                {"libraries", libraries}};
    lvr_status st = LVR_OK;
    for (size_t i = 0; i < N_ROWS(rows) && st == LVR_OK; i++)
        st = lvr_attr_write_strings(root, rows[i].name, &rows[i].value, 1, true, path, err);
    return st;
}

static lvr_status write_domains(hid_t root, const lvr_trace_meta *meta, const char *path, lvr_error *err)
{
    const char *names[LVR_TRACE_MAX_DOMAINS];
    for (uint32_t i = 0; i < meta->n_domains; i++)
        names[i] = meta->domains[i];
    return lvr_attr_write_strings(root, "domains", names, meta->n_domains, false, path, err);
}

static lvr_status write_full(hid_t h5, const lvr_trace_meta *meta, const char *path, lvr_error *err)
{
    const bool has_caps = meta->kind == LVR_TRACE_ORACLE || meta->cap_branch > 0;
    lvr_status st = write_group(h5, "/device", device_rows, N_ROWS(device_rows), &meta->device, path, err);
    if (st == LVR_OK)
        st = write_models(h5, meta, path, err);
    if (st == LVR_OK)
        st = write_group(h5, "/sampling", sampling_rows, N_ROWS(sampling_rows), meta, path, err);
    if (st == LVR_OK && has_caps)
        st = write_group(h5, "/oracle", oracle_rows, N_ROWS(oracle_rows), meta, path, err);
    return st == LVR_OK ? write_config(h5, meta->config_yaml, path, err) : st;
}

lvr_status lvr_meta_write(hid_t h5, const lvr_trace_meta *meta, bool full, const lvr_clock_list *clocks,
                          const char *path, lvr_error *err)
{
    const hid_t root = H5Gopen2(h5, "/", H5P_DEFAULT);
    if (root < 0)
        return lvr_fail(err, LVR_ERR_IO, "%s: HDF5 could not open the root group", path);
    lvr_status st = write_identity(root, meta, path, err);
    if (st == LVR_OK)
        st = write_rows(root, root_rows, N_ROWS(root_rows), meta, path, err);
    if (st == LVR_OK)
        st = write_dropped(root, meta->dropped, path, err);
    if (st == LVR_OK)
        st = write_domains(root, meta, path, err);
    H5Gclose(root);
    if (st == LVR_OK)
        st = write_clocks(h5, clocks, path, err);
    return st == LVR_OK && full ? write_full(h5, meta, path, err) : st;
}

/* ---- reading
 * ---------------------------------------------------------------------------------------------------------
 */

/* Opens an attribute of at most max elements; *ret_attr is -1 if there is none. */
static lvr_status open_attr(hid_t object, const char *name, hsize_t max, const char *path, hid_t *ret_attr,
                            hsize_t *ret_n, lvr_error *err)
{
    if (H5Aexists(object, name) <= 0) {
        *ret_attr = -1;
        *ret_n = 0;
        return LVR_OK;
    }
    const hid_t attr = H5Aopen(object, name, H5P_DEFAULT);
    const hid_t space = attr >= 0 ? H5Aget_space(attr) : -1;
    const hssize_t n = space >= 0 ? H5Sget_simple_extent_npoints(space) : -1;
    if (space >= 0)
        H5Sclose(space);
    if (n < 1 || (hsize_t)n > max) {
        if (attr >= 0)
            H5Aclose(attr);
        return lvr_fail(err, LVR_ERR_FORMAT,
                        "%s: attribute %s: expected 1 to %" PRIu64 " values, found %" PRId64, path, name,
                        (uint64_t)max, (int64_t)n);
    }
    *ret_attr = attr;
    *ret_n = (hsize_t)n;
    return LVR_OK;
}

static bool attr_is_number(hid_t attr)
{
    const hid_t type = H5Aget_type(attr);
    const H5T_class_t class = type >= 0 ? H5Tget_class(type) : H5T_NO_CLASS;
    if (type >= 0)
        H5Tclose(type);
    return class == H5T_INTEGER || class == H5T_FLOAT;
}

/* Numbers of an attribute; *ret_n is 0 if there is none. */
static lvr_status read_numbers(hid_t object, const char *name, hid_t memory, void *values, hsize_t max,
                               const char *path, hsize_t *ret_n, lvr_error *err)
{
    hid_t attr = -1;
    hsize_t n = 0;
    const lvr_status st = open_attr(object, name, max, path, &attr, &n, err);
    if (st != LVR_OK)
        return st;
    *ret_n = n;
    if (attr < 0)
        return LVR_OK;
    const bool ok = attr_is_number(attr) && H5Aread(attr, memory, values) >= 0;
    H5Aclose(attr);
    return ok ? LVR_OK
              : lvr_fail(err, LVR_ERR_FORMAT, "%s: attribute %s: expected a number, found another type", path,
                         name);
}

/* Up to max strings, each as a malloc'ed copy. */
static bool read_variable_strings(hid_t attr, hid_t type, char **ret, hsize_t n)
{
    char *raw[LVR_TRACE_MAX_DOMAINS] = {0};
    if (n > LVR_TRACE_MAX_DOMAINS || H5Aread(attr, type, raw) < 0)
        return false;
    bool ok = true;
    for (hsize_t i = 0; i < n; i++) {
        ret[i] = strdup(raw[i] ? raw[i] : "");
        ok = ok && ret[i];
        H5free_memory(raw[i]);
    }
    return ok;
}

static bool read_fixed_strings(hid_t attr, hid_t type, char **ret, hsize_t n)
{
    const size_t width = H5Tget_size(type);
    char *raw = width > 0 && width <= 65536 ? calloc((size_t)n, width) : NULL;
    bool ok = raw && H5Aread(attr, type, raw) >= 0;
    for (hsize_t i = 0; ok && i < n; i++) {
        ret[i] = strndup(raw + i * width, width);
        ok = ret[i] != NULL;
    }
    free(raw);
    return ok;
}

/* ret[max] receives malloc'ed strings; *ret_n is 0 if the attribute is absent. */
static lvr_status read_strings(hid_t object, const char *name, char **ret, hsize_t max, const char *path,
                               hsize_t *ret_n, lvr_error *err)
{
    char *copies[LVR_TRACE_MAX_DOMAINS] = {0};
    hid_t attr = -1;
    hsize_t n = 0;
    const lvr_status st = open_attr(object, name, max < LVR_TRACE_MAX_DOMAINS ? max : LVR_TRACE_MAX_DOMAINS,
                                    path, &attr, &n, err);
    if (st != LVR_OK || attr < 0) {
        if (st == LVR_OK)
            *ret_n = 0;
        return st;
    }
    const hid_t type = H5Aget_type(attr);
    bool ok = type >= 0 && H5Tget_class(type) == H5T_STRING;
    if (ok)
        ok = H5Tis_variable_str(type) > 0 ? read_variable_strings(attr, type, copies, n)
                                          : read_fixed_strings(attr, type, copies, n);
    if (type >= 0)
        H5Tclose(type);
    H5Aclose(attr);
    if (!ok) {
        for (hsize_t i = 0; i < n; i++)
            free(copies[i]);
        return lvr_fail(err, LVR_ERR_FORMAT, "%s: attribute %s: expected UTF-8 text, found another type",
                        path, name);
    }
    memcpy(ret, copies, (size_t)n * sizeof *ret);
    *ret_n = n;
    return LVR_OK;
}

/* A string into a buffer; the buffer stays as it is if there is no such attribute. */
static lvr_status read_text(hid_t object, const char *name, char *buf, size_t bytes, const char *path,
                            lvr_error *err)
{
    char *text = NULL;
    hsize_t n = 0;
    lvr_status st = read_strings(object, name, &text, 1, path, &n, err);
    if (st != LVR_OK || n == 0)
        return st;
    if (strlen(text) >= bytes)
        st = lvr_fail(err, LVR_ERR_FORMAT, "%s: attribute %s: expected at most %zu bytes, found %zu", path,
                      name, bytes - 1, strlen(text));
    else
        memcpy(buf, text, strlen(text) + 1);
    free(text);
    return st;
}

static lvr_status read_row(hid_t object, const attr_row *row, void *base, const char *path, lvr_error *err)
{
    char *at = (char *)base + row->offset;
    hsize_t n = 0;
    switch (row->kind) {
    case ATTR_STR:
        return read_text(object, row->name, at, row->bytes, path, err);
    case ATTR_BOOL: {
        uint8_t value = *(bool *)at ? 1 : 0;
        const lvr_status st = read_numbers(object, row->name, H5T_NATIVE_UINT8, &value, 1, path, &n, err);
        *(bool *)at = value != 0;
        return st;
    }
    case ATTR_U32:
        return read_numbers(object, row->name, H5T_NATIVE_UINT32, at, 1, path, &n, err);
    case ATTR_U64:
        return read_numbers(object, row->name, H5T_NATIVE_UINT64, at, 1, path, &n, err);
    case ATTR_F64:
        return read_numbers(object, row->name, H5T_NATIVE_DOUBLE, at, 1, path, &n, err);
    }
    return lvr_fail(err, LVR_ERR_INVARIANT, "%s: attribute %s has no known kind", path, row->name);
}

static lvr_status read_rows(hid_t object, const attr_row *rows, size_t n, void *base, const char *path,
                            lvr_error *err)
{
    lvr_status st = LVR_OK;
    for (size_t i = 0; i < n && st == LVR_OK; i++)
        st = read_row(object, &rows[i], base, path, err);
    return st;
}

/* Opens a group that may be absent: *ret is -1 then. */
static lvr_status open_group(hid_t h5, const char *name, const char *path, hid_t *ret, lvr_error *err)
{
    if (H5Lexists(h5, name, H5P_DEFAULT) <= 0) {
        *ret = -1;
        return LVR_OK;
    }
    const hid_t group = H5Gopen2(h5, name, H5P_DEFAULT);
    if (group < 0)
        return lvr_fail(err, LVR_ERR_FORMAT, "%s: expected %s to be a group", path, name);
    *ret = group;
    return LVR_OK;
}

static lvr_status read_group(hid_t h5, const char *name, const attr_row *rows, size_t n, void *base,
                             const char *path, lvr_error *err)
{
    hid_t group = -1;
    lvr_status st = open_group(h5, name, path, &group, err);
    if (st != LVR_OK || group < 0)
        return st;
    st = read_rows(group, rows, n, base, path, err);
    H5Gclose(group);
    return st;
}

static lvr_status check_layer_count(hsize_t n, const lvr_trace_model *m, const char *name, const char *path,
                                    lvr_error *err)
{
    if (n == 0 || n == m->n_layers)
        return LVR_OK;
    return lvr_fail(err, LVR_ERR_FORMAT, "%s: attribute %s: expected %u values (n_layers), found %" PRIu64,
                    path, name, m->n_layers, (uint64_t)n);
}

static lvr_status read_layers(hid_t group, lvr_trace_model *m, const char *path, lvr_error *err)
{
    hsize_t n = 0;
    if (m->n_layers > LVR_TRACE_MAX_LAYERS)
        return lvr_fail(err, LVR_ERR_FORMAT, "%s: expected at most %u layers, found %u", path,
                        LVR_TRACE_MAX_LAYERS, m->n_layers);
    lvr_status st = read_numbers(group, "bytes_per_layer", H5T_NATIVE_UINT64, m->bytes_per_layer,
                                 LVR_TRACE_MAX_LAYERS, path, &n, err);
    if (st == LVR_OK)
        st = check_layer_count(n, m, "bytes_per_layer", path, err);
    if (st == LVR_OK)
        st = read_numbers(group, "resident_layers", H5T_NATIVE_UINT32, m->resident, LVR_TRACE_MAX_LAYERS,
                          path, &n, err);
    return st == LVR_OK ? check_layer_count(n, m, "resident_layers", path, err) : st;
}

static lvr_status read_model(hid_t h5, const char *name, lvr_trace_model *m, const char *path, lvr_error *err)
{
    hid_t group = -1;
    lvr_status st = open_group(h5, name, path, &group, err);
    if (st != LVR_OK || group < 0)
        return st;
    st = read_rows(group, model_rows, N_ROWS(model_rows), m, path, err);
    if (st == LVR_OK)
        st = read_layers(group, m, path, err);
    H5Gclose(group);
    return st;
}

static lvr_status read_models(hid_t h5, lvr_trace_meta *meta, const char *path, lvr_error *err)
{
    if (H5Lexists(h5, "/model", H5P_DEFAULT) <= 0)
        return LVR_OK;
    const lvr_status st = read_model(h5, "/model/target", &meta->target, path, err);
    return st == LVR_OK ? read_model(h5, "/model/draft", &meta->draft, path, err) : st;
}

static lvr_status read_config(hid_t h5, const char *path, char **ret_yaml, lvr_error *err)
{
    const uint64_t max_bytes = (uint64_t)64 << 20;
    if (H5Lexists(h5, "/config", H5P_DEFAULT) <= 0)
        return LVR_OK;
    const hid_t dset = H5Dopen2(h5, "/config", H5P_DEFAULT);
    const hid_t type = dset >= 0 ? H5Dget_type(dset) : -1;
    const hid_t space = dset >= 0 ? H5Dget_space(dset) : -1;
    const bool is_text = type >= 0 && H5Tget_class(type) == H5T_STRING && H5Tis_variable_str(type) == 0 &&
                         space >= 0 && H5Sget_simple_extent_npoints(space) == 1 &&
                         H5Tget_size(type) <= max_bytes;
    char *text = is_text ? calloc(H5Tget_size(type) + 1, 1) : NULL;
    const bool ok = text && H5Dread(dset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, text) >= 0;
    if (space >= 0)
        H5Sclose(space);
    if (type >= 0)
        H5Tclose(type);
    if (dset >= 0)
        H5Dclose(dset);
    if (!ok) {
        free(text);
        return lvr_fail(err, LVR_ERR_FORMAT,
                        "%s: /config: expected one fixed-length string of at most 64 MiB", path);
    }
    *ret_yaml = text;
    return LVR_OK;
}

static lvr_status read_clocks(hid_t h5, const char *path, lvr_clock_list *ret, lvr_error *err)
{
    const hssize_t max = 1 << 20;
    if (H5Lexists(h5, "/clocks", H5P_DEFAULT) <= 0)
        return LVR_OK;
    const hid_t dset = H5Dopen2(h5, "/clocks", H5P_DEFAULT);
    const hid_t space = dset >= 0 ? H5Dget_space(dset) : -1;
    const hid_t type = clock_type();
    const hssize_t n = space >= 0 ? H5Sget_simple_extent_npoints(space) : -1;
    lvr_clock_pair *items = n > 0 && n <= max ? calloc((size_t)n, sizeof *items) : NULL;
    const bool ok = items && type >= 0 && H5Dread(dset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, items) >= 0;
    if (type >= 0)
        H5Tclose(type);
    if (space >= 0)
        H5Sclose(space);
    if (dset >= 0)
        H5Dclose(dset);
    if (!ok) {
        free(items);
        return lvr_fail(err, LVR_ERR_FORMAT,
                        "%s: /clocks: expected records of monotonic_raw, boottime and realtime", path);
    }
    *ret = (lvr_clock_list){items, (size_t)n, (size_t)n};
    return LVR_OK;
}

static lvr_status read_dropped(hid_t root, uint64_t *dropped, const char *path, lvr_error *err)
{
    hid_t attr = -1;
    hsize_t n = 0;
    const lvr_status st = open_attr(root, "dropped", 1, path, &attr, &n, err);
    if (st != LVR_OK || attr < 0)
        return st;
    const hid_t type = dropped_type();
    const bool ok = type >= 0 && H5Aread(attr, type, dropped) >= 0;
    if (type >= 0)
        H5Tclose(type);
    H5Aclose(attr);
    return ok ? LVR_OK
              : lvr_fail(err, LVR_ERR_FORMAT, "%s: attribute dropped: expected one count a stream", path);
}

static lvr_status read_domains(hid_t root, lvr_trace_meta *meta, const char *path, lvr_error *err)
{
    char *names[LVR_TRACE_MAX_DOMAINS] = {0};
    hsize_t n = 0;
    lvr_status st = read_strings(root, "domains", names, LVR_TRACE_MAX_DOMAINS, path, &n, err);
    if (st != LVR_OK)
        return st;
    for (hsize_t i = 0; i < n; i++) {
        if (st == LVR_OK && strlen(names[i]) >= sizeof meta->domains[i])
            st = lvr_fail(err, LVR_ERR_FORMAT,
                          "%s: attribute domains: expected names of at most %zu bytes, found %zu", path,
                          sizeof meta->domains[i] - 1, strlen(names[i]));
        if (st == LVR_OK)
            memcpy(meta->domains[i], names[i], strlen(names[i]) + 1);
        free(names[i]);
    }
    meta->n_domains = (uint32_t)n;
    return st;
}

static lvr_status read_version(hid_t root, lvr_trace_meta *meta, const char *path, lvr_error *err)
{
    char schema[64] = "", version[32] = "";
    int used = 0;
    lvr_status st = read_text(root, "schema", schema, sizeof schema, path, err);
    if (st == LVR_OK)
        st = read_text(root, "version", version, sizeof version, path, err);
    if (st != LVR_OK)
        return st;
    if (strcmp(schema, LVR_TRACE_SCHEMA) != 0)
        return lvr_fail(err, LVR_ERR_FORMAT, "%s: expected schema \"%s\", found \"%s\"", path,
                        LVR_TRACE_SCHEMA, schema);
    if (sscanf(version, "%9u.%9u%n", &meta->version_major, &meta->version_minor, &used) != 2 ||
        version[used] != '\0')
        return lvr_fail(err, LVR_ERR_FORMAT, "%s: expected a version like \"1.0\", found \"%s\"", path,
                        version);
    if (meta->version_major != LVR_TRACE_VERSION_MAJOR)
        return lvr_fail(
            err, LVR_ERR_FORMAT,
            "%s: trace format %s cannot be read by this lever, which knows version %u; use a newer one", path,
            version, LVR_TRACE_VERSION_MAJOR);
    return LVR_OK;
}

static lvr_status read_kind(hid_t root, lvr_trace_meta *meta, const char *path, lvr_error *err)
{
    char kind[32] = "";
    const lvr_status st = read_text(root, "kind", kind, sizeof kind, path, err);
    if (st != LVR_OK)
        return st;
    for (size_t i = 0; i < N_ROWS(kind_names); i++) {
        if (strcmp(kind, kind_names[i]) == 0) {
            meta->kind = (lvr_trace_kind)i;
            return LVR_OK;
        }
    }
    return lvr_fail(err, LVR_ERR_FORMAT,
                    "%s: expected kind timing, oracle, bench, simulated or imported, found \"%s\"", path,
                    kind);
}

static lvr_status read_root(hid_t root, lvr_trace_meta *meta, const char *path, lvr_error *err)
{
    lvr_status st = read_version(root, meta, path, err);
    if (st == LVR_OK)
        st = read_kind(root, meta, path, err);
    if (st == LVR_OK && H5Aexists(root, "complete") <= 0)
        st = lvr_fail(err, LVR_ERR_FORMAT, "%s: expected an attribute complete, found none", path);
    if (st == LVR_OK)
        st = read_rows(root, root_rows, N_ROWS(root_rows), meta, path, err);
    if (st == LVR_OK)
        st = read_dropped(root, meta->dropped, path, err);
    return st == LVR_OK ? read_domains(root, meta, path, err) : st;
}

static lvr_status read_full(hid_t h5, lvr_trace_meta *meta, const char *path, lvr_error *err)
{
    lvr_status st = read_group(h5, "/device", device_rows, N_ROWS(device_rows), &meta->device, path, err);
    if (st == LVR_OK)
        st = read_models(h5, meta, path, err);
    if (st == LVR_OK)
        st = read_group(h5, "/sampling", sampling_rows, N_ROWS(sampling_rows), meta, path, err);
    if (st == LVR_OK)
        st = read_group(h5, "/oracle", oracle_rows, N_ROWS(oracle_rows), meta, path, err);
    return st == LVR_OK ? read_config(h5, path, &meta->config_yaml, err) : st;
}

lvr_status lvr_meta_read(hid_t h5, const char *path, lvr_trace_meta *ret_meta, lvr_clock_list *ret_clocks,
                         lvr_error *err)
{
    lvr_trace_meta meta = {.recorder_overhead_pct = NAN};
    lvr_clock_list clocks = {0};
    const hid_t root = H5Gopen2(h5, "/", H5P_DEFAULT);
    if (root < 0)
        return lvr_fail(err, LVR_ERR_FORMAT, "%s: HDF5 could not open the root group; the file is damaged",
                        path);
    lvr_status st = read_root(root, &meta, path, err);
    H5Gclose(root);
    if (st == LVR_OK)
        st = read_full(h5, &meta, path, err);
    if (st == LVR_OK)
        st = read_clocks(h5, path, &clocks, err);
    if (st != LVR_OK) {
        free(meta.config_yaml);
        return st;
    }
    *ret_meta = meta;
    *ret_clocks = clocks;
    return LVR_OK;
}
