#include "traces/stream_io.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A chunk of the widest record (84 bytes) stays well below HDF5's 1 MiB chunk cache: appends that do not end
 * on a chunk boundary are then merged in memory. */
#define CHUNK_ROWS 4096u
#define DEFLATE_LEVEL 4u
/* Far above any recording, far below where sums of sizes overflow. */
#define MAX_ROWS (UINT64_C(1) << 40)

static size_t field_bytes(lvr_field_type type)
{
    return type == LVR_FIELD_U64 || type == LVR_FIELD_F64 ? 8 : 4;
}

static hid_t native_type(lvr_field_type type)
{
    switch (type) {
    case LVR_FIELD_U32:
        return H5T_NATIVE_UINT32;
    case LVR_FIELD_I32:
        return H5T_NATIVE_INT32;
    case LVR_FIELD_U64:
        return H5T_NATIVE_UINT64;
    case LVR_FIELD_F32:
        return H5T_NATIVE_FLOAT;
    case LVR_FIELD_F64:
        return H5T_NATIVE_DOUBLE;
    }
    return -1;
}

static hid_t disk_type(lvr_field_type type)
{
    switch (type) {
    case LVR_FIELD_U32:
        return H5T_STD_U32LE;
    case LVR_FIELD_I32:
        return H5T_STD_I32LE;
    case LVR_FIELD_U64:
        return H5T_STD_U64LE;
    case LVR_FIELD_F32:
        return H5T_IEEE_F32LE;
    case LVR_FIELD_F64:
        return H5T_IEEE_F64LE;
    }
    return -1;
}

/* An HDF5 enumeration over base type `base` with the field's names. */
static hid_t enum_type(const lvr_field *field, hid_t base)
{
    const hid_t type = H5Tenum_create(base);
    const char *name;
    for (uint32_t v = 0; type >= 0 && (name = field->enum_name(v)); v++) {
        /* Member values are given in the base type's own byte order. */
        uint32_t value = v;
        if (H5Tconvert(H5T_NATIVE_UINT32, base, 1, &value, NULL, H5P_DEFAULT) < 0 ||
            H5Tenum_insert(type, name, &value) < 0) {
            H5Tclose(type);
            return -1;
        }
    }
    return type;
}

static bool insert_field(hid_t compound, const lvr_field *field, size_t offset, hid_t base, bool as_enum)
{
    if (!as_enum || !field->enum_name)
        return H5Tinsert(compound, field->name, offset, base) >= 0;
    const hid_t type = enum_type(field, base);
    if (type < 0)
        return false;
    const bool ok = H5Tinsert(compound, field->name, offset, type) >= 0;
    H5Tclose(type);
    return ok;
}

/* The struct in memory. Enumerations are plain numbers when reading (a newer file may have more names), and
 * enumerations when writing (HDF5 does not turn a number into one). */
static hid_t memory_record_type(const lvr_stream_desc *desc, bool as_enum)
{
    const hid_t type = H5Tcreate(H5T_COMPOUND, desc->record_bytes);
    for (uint32_t i = 0; type >= 0 && i < desc->n_fields; i++) {
        const lvr_field *f = &desc->fields[i];
        if (!insert_field(type, f, f->offset, native_type(f->type), as_enum)) {
            H5Tclose(type);
            return -1;
        }
    }
    return type;
}

/* The packed record on disk, little endian. */
static hid_t disk_record_type(const lvr_stream_desc *desc)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < desc->n_fields; i++)
        bytes += field_bytes(desc->fields[i].type);
    const hid_t type = H5Tcreate(H5T_COMPOUND, bytes);
    size_t offset = 0;
    for (uint32_t i = 0; type >= 0 && i < desc->n_fields; i++) {
        const lvr_field *f = &desc->fields[i];
        if (!insert_field(type, f, offset, disk_type(f->type), true)) {
            H5Tclose(type);
            return -1;
        }
        offset += field_bytes(f->type);
    }
    return type;
}

static hid_t creation_list(const lvr_stream_layout *layout)
{
    const hid_t list = H5Pcreate(H5P_DATASET_CREATE);
    if (list < 0 || !layout->compress || layout->rows == 0)
        return list;
    const hsize_t chunk = layout->rows < CHUNK_ROWS ? layout->rows : CHUNK_ROWS;
    if (H5Pset_chunk(list, 1, &chunk) < 0 || H5Pset_shuffle(list) < 0 ||
        H5Pset_deflate(list, DEFLATE_LEVEL) < 0) {
        H5Pclose(list);
        return -1;
    }
    return list;
}

static hid_t string_type(void)
{
    const hid_t type = H5Tcopy(H5T_C_S1);
    if (type >= 0 && H5Tset_size(type, H5T_VARIABLE) >= 0 && H5Tset_cset(type, H5T_CSET_UTF8) >= 0)
        return type;
    if (type >= 0)
        H5Tclose(type);
    return -1;
}

lvr_status lvr_attr_write_strings(hid_t object, const char *name, const char *const *values, size_t n,
                                  bool scalar, const char *path, lvr_error *err)
{
    const hsize_t dims = n;
    if (n == 0)
        return LVR_OK;
    const hid_t type = string_type();
    const hid_t space = scalar ? H5Screate(H5S_SCALAR) : H5Screate_simple(1, &dims, NULL);
    const hid_t attr =
        type >= 0 && space >= 0 ? H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT) : -1;
    const bool ok = attr >= 0 && H5Awrite(attr, type, values) >= 0;
    if (attr >= 0)
        H5Aclose(attr);
    if (space >= 0)
        H5Sclose(space);
    if (type >= 0)
        H5Tclose(type);
    return ok ? LVR_OK : lvr_fail(err, LVR_ERR_IO, "%s: HDF5 could not write the attribute %s", path, name);
}

static lvr_status write_descriptions(hid_t dset, const lvr_stream_desc *desc, const char *path,
                                     lvr_error *err)
{
    const char *names[LVR_RECORD_MAX_FIELDS], *units[LVR_RECORD_MAX_FIELDS], *texts[LVR_RECORD_MAX_FIELDS];
    const uint32_t n = desc->n_fields;
    for (uint32_t i = 0; i < n; i++) {
        names[i] = desc->fields[i].name;
        units[i] = desc->fields[i].unit;
        texts[i] = desc->fields[i].description;
    }
    lvr_status st = lvr_attr_write_strings(dset, "description", &desc->description, 1, true, path, err);
    if (st == LVR_OK)
        st = lvr_attr_write_strings(dset, "fields", names, n, false, path, err);
    if (st == LVR_OK)
        st = lvr_attr_write_strings(dset, "unit", units, n, false, path, err);
    if (st == LVR_OK)
        st = lvr_attr_write_strings(dset, "field_descriptions", texts, n, false, path, err);
    return st;
}

static hid_t create_dataset(hid_t h5, const lvr_stream_desc *desc, const lvr_stream_layout *layout)
{
    const hsize_t rows = layout->rows;
    const hid_t type = disk_record_type(desc);
    const hid_t space = H5Screate_simple(1, &rows, NULL);
    const hid_t create = creation_list(layout);
    const hid_t link = H5Pcreate(H5P_LINK_CREATE);
    hid_t dset = -1;
    if (type >= 0 && space >= 0 && create >= 0 && link >= 0 && H5Pset_create_intermediate_group(link, 1) >= 0)
        dset = H5Dcreate2(h5, desc->name, type, space, link, create, H5P_DEFAULT);
    if (link >= 0)
        H5Pclose(link);
    if (create >= 0)
        H5Pclose(create);
    if (space >= 0)
        H5Sclose(space);
    if (type >= 0)
        H5Tclose(type);
    return dset;
}

lvr_status lvr_stream_create(hid_t h5, lvr_stream stream, const lvr_stream_layout *layout, const char *path,
                             hid_t *ret_dset, lvr_error *err)
{
    const lvr_stream_desc *desc = lvr_stream_describe(stream);
    const hid_t dset = create_dataset(h5, desc, layout);
    if (dset < 0)
        return lvr_fail(err, LVR_ERR_IO, "%s: HDF5 could not create %s", path, desc->name);
    const lvr_status st = layout->describe ? write_descriptions(dset, desc, path, err) : LVR_OK;
    if (st != LVR_OK) {
        H5Dclose(dset);
        return st;
    }
    *ret_dset = dset;
    return LVR_OK;
}

/* ---- rows
 * ---------------------------------------------------------------------------------------------------------
 */

typedef herr_t (*row_transfer)(hid_t dset, hid_t type, hid_t memory, hid_t file, void *records);

static herr_t transfer_in(hid_t dset, hid_t type, hid_t memory, hid_t file, void *records)
{
    return H5Dread(dset, type, memory, file, H5P_DEFAULT, records);
}

static herr_t transfer_out(hid_t dset, hid_t type, hid_t memory, hid_t file, void *records)
{
    return H5Dwrite(dset, type, memory, file, H5P_DEFAULT, records);
}

static bool transfer_rows(hid_t dset, hid_t type, uint64_t first, uint64_t n, void *records,
                          row_transfer transfer)
{
    const hsize_t start = first, count = n;
    const hid_t memory = H5Screate_simple(1, &count, NULL);
    const hid_t file = H5Dget_space(dset);
    const bool ok = type >= 0 && memory >= 0 && file >= 0 &&
                    H5Sselect_hyperslab(file, H5S_SELECT_SET, &start, NULL, &count, NULL) >= 0 &&
                    transfer(dset, type, memory, file, records) >= 0;
    if (file >= 0)
        H5Sclose(file);
    if (memory >= 0)
        H5Sclose(memory);
    return ok;
}

lvr_status lvr_stream_write(hid_t dset, lvr_stream stream, uint64_t first, uint64_t n, const void *records,
                            const char *path, lvr_error *err)
{
    const lvr_stream_desc *desc = lvr_stream_describe(stream);
    if (n == 0)
        return LVR_OK;
    /* One transfer type serves both directions; H5Dwrite does not write to the records. */
    union {
        const void *in;
        void *out;
    } rows = {.in = records};
    const hid_t type = memory_record_type(desc, true);
    const bool ok = transfer_rows(dset, type, first, n, rows.out, transfer_out);
    if (type >= 0)
        H5Tclose(type);
    return ok ? LVR_OK : lvr_fail(err, LVR_ERR_IO, "%s: HDF5 could not write %s", path, desc->name);
}

lvr_status lvr_stream_read(hid_t dset, lvr_stream stream, uint64_t first, uint64_t n, void *records,
                           const char *path, lvr_error *err)
{
    const lvr_stream_desc *desc = lvr_stream_describe(stream);
    if (n == 0)
        return LVR_OK;
    memset(records, 0, (size_t)n * desc->record_bytes);
    const hid_t type = memory_record_type(desc, false);
    const bool ok = transfer_rows(dset, type, first, n, records, transfer_in);
    if (type >= 0)
        H5Tclose(type);
    return ok ? LVR_OK
              : lvr_fail(err, LVR_ERR_FORMAT,
                         "%s: HDF5 could not read rows %" PRIu64 " to %" PRIu64 " of %s; the file is damaged",
                         path, first, first + n - 1, desc->name);
}

/* ---- checks on opening
 * ------------------------------------------------------------------------------------------------ */

bool lvr_stream_exists(hid_t h5, lvr_stream stream)
{
    const char *name = lvr_stream_describe(stream)->name;
    const char *slash = strrchr(name, '/');
    if (slash != name) {
        char *group = strndup(name, (size_t)(slash - name));
        const bool there = group && H5Lexists(h5, group, H5P_DEFAULT) > 0;
        free(group);
        if (!there)
            return false;
    }
    return H5Lexists(h5, name, H5P_DEFAULT) > 0;
}

static const char *type_text(lvr_field_type type)
{
    static const char *const text[] = {[LVR_FIELD_U32] = "an unsigned 32-bit integer",
                                       [LVR_FIELD_I32] = "a signed 32-bit integer",
                                       [LVR_FIELD_U64] = "an unsigned 64-bit integer",
                                       [LVR_FIELD_F32] = "a 32-bit float",
                                       [LVR_FIELD_F64] = "a 64-bit float"};
    return text[type];
}

static bool member_fits(hid_t member, const lvr_field *field)
{
    if (H5Tget_size(member) != field_bytes(field->type))
        return false;
    const H5T_class_t class = H5Tget_class(member);
    if (field->enum_name && class == H5T_ENUM)
        return true;
    if (field->type == LVR_FIELD_F32 || field->type == LVR_FIELD_F64)
        return class == H5T_FLOAT;
    const H5T_sign_t sign = field->type == LVR_FIELD_I32 ? H5T_SGN_2 : H5T_SGN_NONE;
    return class == H5T_INTEGER && H5Tget_sign(member) == sign;
}

static lvr_status check_field(hid_t type, const lvr_stream_desc *desc, const lvr_field *field,
                              const char *path, lvr_error *err)
{
    const int index = H5Tget_member_index(type, field->name);
    if (index < 0)
        return lvr_fail(err, LVR_ERR_FORMAT,
                        "%s: %s: expected a field `%s`, found none; this is not a trace of format %u", path,
                        desc->name, field->name, LVR_TRACE_VERSION_MAJOR);
    const hid_t member = H5Tget_member_type(type, (unsigned)index);
    const bool fits = member >= 0 && member_fits(member, field);
    if (member >= 0)
        H5Tclose(member);
    return fits ? LVR_OK
                : lvr_fail(err, LVR_ERR_FORMAT, "%s: %s: expected field `%s` to be %s, found another type",
                           path, desc->name, field->name, type_text(field->type));
}

static lvr_status check_type(hid_t dset, const lvr_stream_desc *desc, const char *path, lvr_error *err)
{
    const hid_t type = H5Dget_type(dset);
    lvr_status st = LVR_OK;
    if (type < 0 || H5Tget_class(type) != H5T_COMPOUND)
        st = lvr_fail(err, LVR_ERR_FORMAT, "%s: %s: expected records (a compound type), found another type",
                      path, desc->name);
    for (uint32_t i = 0; st == LVR_OK && i < desc->n_fields; i++)
        st = check_field(type, desc, &desc->fields[i], path, err);
    if (type >= 0)
        H5Tclose(type);
    return st;
}

static lvr_status count_rows(hid_t dset, const lvr_stream_desc *desc, const char *path, uint64_t *ret_rows,
                             lvr_error *err)
{
    const hid_t space = H5Dget_space(dset);
    hsize_t rows = 0;
    const bool ok = space >= 0 && H5Sget_simple_extent_ndims(space) == 1 &&
                    H5Sget_simple_extent_dims(space, &rows, NULL) == 1;
    if (space >= 0)
        H5Sclose(space);
    if (!ok)
        return lvr_fail(err, LVR_ERR_FORMAT, "%s: %s: expected a one-dimensional dataset", path, desc->name);
    if (rows > MAX_ROWS)
        return lvr_fail(err, LVR_ERR_FORMAT, "%s: %s: expected at most %" PRIu64 " rows, found %" PRIu64,
                        path, desc->name, MAX_ROWS, (uint64_t)rows);
    *ret_rows = rows;
    return LVR_OK;
}

lvr_status lvr_stream_open(hid_t h5, lvr_stream stream, const char *path, hid_t *ret_dset, uint64_t *ret_rows,
                           lvr_error *err)
{
    const lvr_stream_desc *desc = lvr_stream_describe(stream);
    const hid_t dset = H5Dopen2(h5, desc->name, H5P_DEFAULT);
    if (dset < 0)
        return lvr_fail(err, LVR_ERR_FORMAT, "%s: expected a dataset %s, found none", path, desc->name);
    uint64_t rows = 0;
    lvr_status st = check_type(dset, desc, path, err);
    if (st == LVR_OK)
        st = count_rows(dset, desc, path, &rows, err);
    if (st != LVR_OK) {
        H5Dclose(dset);
        return st;
    }
    *ret_dset = dset;
    *ret_rows = rows;
    return LVR_OK;
}
