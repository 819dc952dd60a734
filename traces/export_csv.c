/* One tidy CSV file a stream: a header of names with units, one row a record, enumerations and domains by
 * name. */
#include "common/fs.h"
#include "common/json.h"
#include "traces/trace_parts.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct csv_file {
    const lvr_trace *trace;
    lvr_stream stream;
    char *path, *temp;
    FILE *out;
} csv_file;

static void put_quoted(FILE *out, const char *text)
{
    if (!strpbrk(text, ",\"\r\n")) {
        fputs(text, out);
        return;
    }
    fputc('"', out);
    for (; *text; text++) {
        if (*text == '"')
            fputc('"', out);
        fputc(*text, out);
    }
    fputc('"', out);
}

static bool has_unit(const lvr_field *f)
{
    return strcmp(f->unit, "1") != 0 && strcmp(f->unit, "enum") != 0;
}

static void put_header(const csv_file *csv)
{
    const lvr_stream_desc *desc = lvr_stream_describe(csv->stream);
    for (uint32_t i = 0; i < desc->n_fields; i++) {
        const lvr_field *f = &desc->fields[i];
        fprintf(csv->out, "%s%s", i ? "," : "", f->name);
        if (has_unit(f))
            fprintf(csv->out, " [%s]", f->unit);
    }
    fputc('\n', csv->out);
}

static void put_double(FILE *out, double value)
{
    char text[32];
    if (isnan(value)) {
        fputs("NaN", out);
        return;
    }
    lvr_format_double(text, sizeof text, value);
    fputs(text, out);
}

static void put_u32(const csv_file *csv, const lvr_field *f, uint32_t value)
{
    const lvr_trace_meta *meta = &csv->trace->meta;
    const char *name = f->enum_name ? f->enum_name(value) : NULL;
    if (csv->stream == LVR_STREAM_REQUESTS && f->offset == offsetof(lvr_rec_request, domain) &&
        value < meta->n_domains)
        name = meta->domains[value];
    if (name)
        put_quoted(csv->out, name);
    else
        fprintf(csv->out, "%" PRIu32, value);
}

static void put_value(const csv_file *csv, const lvr_field *f, const void *record)
{
    const char *at = (const char *)record + f->offset;
    switch (f->type) {
    case LVR_FIELD_U32:
        put_u32(csv, f, *(const uint32_t *)at);
        return;
    case LVR_FIELD_I32:
        fprintf(csv->out, "%" PRId32, *(const int32_t *)at);
        return;
    case LVR_FIELD_U64:
        fprintf(csv->out, "%" PRIu64, *(const uint64_t *)at);
        return;
    case LVR_FIELD_F32:
        /* Nine digits read back to the same float. */
        if (isnan(*(const float *)at))
            fputs("NaN", csv->out);
        else
            fprintf(csv->out, "%.9g", (double)*(const float *)at);
        return;
    case LVR_FIELD_F64:
        put_double(csv->out, *(const double *)at);
        return;
    }
}

static lvr_status put_rows(void *arg, uint64_t first, uint64_t n, const void *records, lvr_error *err)
{
    const csv_file *csv = arg;
    const lvr_stream_desc *desc = lvr_stream_describe(csv->stream);
    const char *record = records;
    (void)first;
    for (uint64_t i = 0; i < n; i++, record += desc->record_bytes) {
        for (uint32_t f = 0; f < desc->n_fields; f++) {
            if (f)
                fputc(',', csv->out);
            put_value(csv, &desc->fields[f], record);
        }
        fputc('\n', csv->out);
    }
    return ferror(csv->out) ? lvr_fail_errno(err, errno, "%s: cannot write", csv->path) : LVR_OK;
}

static lvr_status write_file(csv_file *csv, lvr_trace *t, lvr_error *err)
{
    csv->out = fopen(csv->temp, "we");
    if (!csv->out)
        return lvr_fail_errno(err, errno, "%s: cannot create", csv->temp);
    put_header(csv);
    lvr_status st = lvr_trace_for_rows(t, csv->stream, put_rows, csv, err);
    const bool closed = fclose(csv->out) == 0;
    if (st == LVR_OK && !closed)
        st = lvr_fail_errno(err, errno, "%s: cannot write", csv->path);
    if (st == LVR_OK && rename(csv->temp, csv->path) != 0)
        st = lvr_fail_errno(err, errno, "%s: cannot rename from %s", csv->path, csv->temp);
    if (st != LVR_OK)
        unlink(csv->temp);
    return st;
}

/* "/device/memory" becomes device_memory.csv. */
static char *csv_path(const char *dir, lvr_stream stream, const char *suffix)
{
    char *path = NULL;
    const char *name = lvr_stream_describe(stream)->name + 1;
    if (asprintf(&path, "%s/%s.csv%s", dir, name, suffix) < 0)
        return NULL;
    for (char *c = path + strlen(dir) + 1; *c; c++)
        if (*c == '/')
            *c = '_';
    return path;
}

static lvr_status export_stream(lvr_trace *t, const char *dir, lvr_stream stream, lvr_error *err)
{
    csv_file csv = {.trace = t,
                    .stream = stream,
                    .path = csv_path(dir, stream, ""),
                    .temp = csv_path(dir, stream, ".tmp")};
    const lvr_status st = csv.path && csv.temp ? write_file(&csv, t, err)
                                               : lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory", dir);
    free(csv.path);
    free(csv.temp);
    return st;
}

lvr_status lvr_trace_export_csv(lvr_trace *t, const char *dir, lvr_error *err)
{
    lvr_status st = lvr_mkdirs(dir, err);
    for (int s = 0; s < LVR_STREAM_COUNT && st == LVR_OK; s++)
        if (lvr_trace_rows(t, (lvr_stream)s) > 0)
            st = export_stream(t, dir, (lvr_stream)s, err);
    return st;
}
