#include "traces/stream_stats.h"

#include "traces/meta_io.h"
#include "traces/stream_io.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 32 };

typedef struct stats_row {
    char stream[NAME_BYTES], field[NAME_BYTES];
    uint64_t rows;
    double min, max, sum;
} stats_row;

double lvr_field_number(const lvr_field *field, const void *record)
{
    const char *at = (const char *)record + field->offset;
    switch (field->type) {
    case LVR_FIELD_U32:
        return (double)*(const uint32_t *)at;
    case LVR_FIELD_I32:
        return (double)*(const int32_t *)at;
    case LVR_FIELD_U64:
        return (double)*(const uint64_t *)at;
    case LVR_FIELD_F32:
        return (double)*(const float *)at;
    case LVR_FIELD_F64:
        return *(const double *)at;
    }
    return NAN;
}

void lvr_stream_stats_init(lvr_stream_stats *stats)
{
    stats->rows = 0;
    for (uint32_t i = 0; i < LVR_RECORD_MAX_FIELDS; i++)
        stats->field[i] = (lvr_field_stats){NAN, NAN, 0.0};
}

static void add_value(lvr_field_stats *f, double x)
{
    if (isnan(x))
        return;
    f->min = isnan(f->min) || x < f->min ? x : f->min;
    f->max = isnan(f->max) || x > f->max ? x : f->max;
    f->sum += x;
}

void lvr_stream_stats_add(lvr_stream_stats *stats, lvr_stream stream, const void *records, uint64_t n)
{
    const lvr_stream_desc *desc = lvr_stream_describe(stream);
    const char *record = records;
    for (uint64_t i = 0; i < n; i++, record += desc->record_bytes)
        for (uint32_t f = 0; f < desc->n_fields; f++)
            add_value(&stats->field[f], lvr_field_number(&desc->fields[f], record));
    stats->rows += n;
}

static hid_t name_type(void)
{
    const hid_t type = H5Tcopy(H5T_C_S1);
    if (type >= 0 && H5Tset_size(type, NAME_BYTES) >= 0 && H5Tset_cset(type, H5T_CSET_UTF8) >= 0)
        return type;
    if (type >= 0)
        H5Tclose(type);
    return -1;
}

static hid_t stats_type(void)
{
    const hid_t type = H5Tcreate(H5T_COMPOUND, sizeof(stats_row));
    const hid_t name = name_type();
    const bool ok = type >= 0 && name >= 0 &&
                    H5Tinsert(type, "stream", offsetof(stats_row, stream), name) >= 0 &&
                    H5Tinsert(type, "field", offsetof(stats_row, field), name) >= 0 &&
                    H5Tinsert(type, "rows", offsetof(stats_row, rows), H5T_STD_U64LE) >= 0 &&
                    H5Tinsert(type, "min", offsetof(stats_row, min), H5T_IEEE_F64LE) >= 0 &&
                    H5Tinsert(type, "max", offsetof(stats_row, max), H5T_IEEE_F64LE) >= 0 &&
                    H5Tinsert(type, "sum", offsetof(stats_row, sum), H5T_IEEE_F64LE) >= 0;
    if (name >= 0)
        H5Tclose(name);
    if (ok)
        return type;
    if (type >= 0)
        H5Tclose(type);
    return -1;
}

static size_t fill_rows(const lvr_stream_stats *stats, const bool *present, stats_row *rows)
{
    size_t n = 0;
    for (int s = 0; s < LVR_STREAM_COUNT; s++) {
        const lvr_stream_desc *desc = lvr_stream_describe((lvr_stream)s);
        for (uint32_t f = 0; present[s] && f < desc->n_fields; f++, n++) {
            strncpy(rows[n].stream, lvr_stream_key((lvr_stream)s), NAME_BYTES - 1);
            strncpy(rows[n].field, desc->fields[f].name, NAME_BYTES - 1);
            rows[n].rows = stats[s].rows;
            rows[n].min = stats[s].field[f].min;
            rows[n].max = stats[s].field[f].max;
            rows[n].sum = stats[s].field[f].sum;
        }
    }
    return n;
}

lvr_status lvr_stats_write(hid_t h5, const lvr_stream_stats *stats, const bool *present, const char *path,
                           lvr_error *err)
{
    static const char *const text =
        "rows, and over the values that are not NaN minimum, maximum and sum, in the field's unit";
    stats_row *rows = calloc(LVR_STREAM_COUNT * LVR_RECORD_MAX_FIELDS, sizeof *rows);
    if (!rows)
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory for /stats", path);
    const hsize_t n = fill_rows(stats, present, rows);
    const hid_t type = stats_type();
    const hid_t space = H5Screate_simple(1, &n, NULL);
    const hid_t dset = type >= 0 && space >= 0
                           ? H5Dcreate2(h5, "/stats", type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT)
                           : -1;
    const bool ok = dset >= 0 && (n == 0 || H5Dwrite(dset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, rows) >= 0);
    lvr_status st = ok ? lvr_attr_write_strings(dset, "description", &text, 1, true, path, err)
                       : lvr_fail(err, LVR_ERR_IO, "%s: HDF5 could not write /stats", path);
    if (dset >= 0)
        H5Dclose(dset);
    if (space >= 0)
        H5Sclose(space);
    if (type >= 0)
        H5Tclose(type);
    free(rows);
    return st;
}

static void take_row(const stats_row *row, lvr_stream_stats *stats, bool *present)
{
    for (int s = 0; s < LVR_STREAM_COUNT; s++) {
        const lvr_stream_desc *desc = lvr_stream_describe((lvr_stream)s);
        if (strncmp(row->stream, lvr_stream_key((lvr_stream)s), NAME_BYTES) != 0)
            continue;
        for (uint32_t f = 0; f < desc->n_fields; f++) {
            if (strncmp(row->field, desc->fields[f].name, NAME_BYTES) != 0)
                continue;
            stats[s].rows = row->rows;
            stats[s].field[f] = (lvr_field_stats){row->min, row->max, row->sum};
            present[s] = true;
        }
    }
}

/* All rows of /stats; *ret_n is 0 if there is no such dataset. */
static lvr_status read_rows(hid_t h5, const char *path, stats_row **ret_rows, size_t *ret_n, lvr_error *err)
{
    const hssize_t max = 65536;
    if (H5Lexists(h5, "/stats", H5P_DEFAULT) <= 0) {
        *ret_rows = NULL;
        *ret_n = 0;
        return LVR_OK;
    }
    const hid_t dset = H5Dopen2(h5, "/stats", H5P_DEFAULT);
    const hid_t space = dset >= 0 ? H5Dget_space(dset) : -1;
    const hid_t type = stats_type();
    const hssize_t n = space >= 0 ? H5Sget_simple_extent_npoints(space) : -1;
    stats_row *rows = n >= 0 && n <= max ? calloc((size_t)n + 1, sizeof *rows) : NULL;
    const bool ok =
        rows && type >= 0 && (n == 0 || H5Dread(dset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, rows) >= 0);
    if (type >= 0)
        H5Tclose(type);
    if (space >= 0)
        H5Sclose(space);
    if (dset >= 0)
        H5Dclose(dset);
    if (!ok) {
        free(rows);
        return lvr_fail(err, LVR_ERR_FORMAT,
                        "%s: /stats: expected records of stream, field, rows, min, max and sum", path);
    }
    *ret_rows = rows;
    *ret_n = (size_t)n;
    return LVR_OK;
}

lvr_status lvr_stats_read(hid_t h5, const char *path, lvr_stream_stats *ret_stats, bool *ret_present,
                          lvr_error *err)
{
    stats_row *rows = NULL;
    size_t n = 0;
    const lvr_status st = read_rows(h5, path, &rows, &n, err);
    if (st != LVR_OK)
        return st;
    for (int s = 0; s < LVR_STREAM_COUNT; s++) {
        lvr_stream_stats_init(&ret_stats[s]);
        ret_present[s] = false;
    }
    for (size_t i = 0; i < n; i++)
        take_row(&rows[i], ret_stats, ret_present);
    free(rows);
    return LVR_OK;
}
