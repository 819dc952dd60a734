/* What is put is what is read: every stream, the meta data, several threads; and what is not taken is
 * counted. */
#include "common/buf.h"
#include "common/fs.h"
#include "costmodel/core/cost.h"
#include "tests/unit/traces_fixture.h"
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

TestSuite(traces, .init = fixture_setup, .fini = fixture_teardown);

static void put_all(lvr_trace_lane *lane, lvr_stream stream, uint64_t n)
{
    _Alignas(8) char record[LVR_RECORD_MAX_BYTES];
    lvr_error err = LVR_ERROR_INIT;
    for (uint64_t i = 0; i < n; i++) {
        fixture_record(stream, i, record);
        cr_assert_eq(lvr_trace_put_wait(lane, stream, record, &err), LVR_OK, "%s", err.msg);
    }
}

/* Bit for bit, through reads of several lengths. */
static void check_all(lvr_trace *t, lvr_stream stream, uint64_t n)
{
    _Alignas(8) char expected[LVR_RECORD_MAX_BYTES];
    const size_t bytes = lvr_stream_describe(stream)->record_bytes;
    const uint64_t steps[] = {1, 7, 4096, 100000};
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_trace_rows(t, stream), n, "%s", lvr_stream_describe(stream)->name);
    char *rows = malloc(100000 * bytes);
    uint64_t at = 0;
    for (size_t s = 0; at < n; s++) {
        const uint64_t step = steps[s % 4] < n - at ? steps[s % 4] : n - at;
        cr_assert_eq(lvr_trace_read(t, stream, at, step, rows, &err), LVR_OK, "%s", err.msg);
        for (uint64_t i = 0; i < step; i++) {
            fixture_record(stream, at + i, expected);
            if (memcmp(expected, rows + i * bytes, bytes) != 0)
                cr_assert_fail("%s row %lu differs", lvr_stream_describe(stream)->name,
                               (unsigned long)(at + i));
        }
        at += step;
    }
    free(rows);
}

Test(traces, every_stream_comes_back, .timeout = 60)
{
    lvr_trace_lane *lane = NULL;
    lvr_trace_writer *w = fixture_writer(LVR_TRACE_IMPORTED, false, &lane);
    for (int s = 0; s < LVR_STREAM_COUNT; s++)
        put_all(lane, (lvr_stream)s, s == LVR_STREAM_KERNELS ? 120000 : 5000 + (uint64_t)s);
    fixture_close(w, true);
    lvr_trace *t = fixture_open();
    cr_assert(lvr_trace_get_meta(t)->complete);
    for (int s = 0; s < LVR_STREAM_COUNT; s++)
        check_all(t, (lvr_stream)s, s == LVR_STREAM_KERNELS ? 120000 : 5000 + (uint64_t)s);
    lvr_trace_close(t);
    char folder[160];
    snprintf(folder, sizeof folder, "%s.d", fixture_path);
    cr_assert_neq(access(folder, F_OK), 0, "the folder of segments is gone");
}

Test(traces, segments_in_several_files_come_back_in_order, .timeout = 60)
{
    lvr_trace_lane *lane = NULL;
    lvr_trace_writer *w = fixture_writer(LVR_TRACE_IMPORTED, false, &lane);
    lvr_trace_writer_set_flush_interval(w, 0);
    put_all(lane, LVR_STREAM_FLASH, 150000);
    fixture_close(w, false);
    char segment[160];
    snprintf(segment, sizeof segment, "%s.d/000002.h5", fixture_path);
    cr_assert_eq(access(segment, F_OK), 0, "several segments");
    lvr_trace *t = fixture_open();
    cr_assert_not(lvr_trace_get_meta(t)->complete);
    check_all(t, LVR_STREAM_FLASH, 150000);
    lvr_trace_close(t);
}

Test(traces, meta_data_comes_back)
{
    lvr_trace_lane *lane = NULL;
    lvr_trace_meta meta;
    lvr_trace_writer *w = fixture_writer(LVR_TRACE_ORACLE, false, &lane);
    fixture_meta(&meta, LVR_TRACE_ORACLE);
    cr_assert_eq(lvr_trace_domain(w, "code, \"quoted\""), 1);
    cr_assert_eq(lvr_trace_domain(w, "story"), 2);
    lvr_trace_set_overhead(w, 1.25);
    fixture_close(w, true);
    lvr_trace *t = fixture_open();
    const lvr_trace_meta *m = lvr_trace_get_meta(t);
    cr_assert_eq(m->kind, LVR_TRACE_ORACLE);
    cr_assert_eq(m->version_major, 1);
    cr_assert_eq(m->seed, meta.seed);
    cr_assert(m->synthetic);
    cr_assert_float_eq(m->recorder_overhead_pct, 1.25, 0);
    cr_assert_str_eq(m->created_utc, meta.created_utc);
    cr_assert_str_eq(m->config_yaml, meta.config_yaml);
    cr_assert_eq(memcmp(&m->target, &meta.target, sizeof meta.target), 0);
    cr_assert_eq(memcmp(&m->draft, &meta.draft, sizeof meta.draft), 0);
    cr_assert_eq(memcmp(&m->device, &meta.device, sizeof meta.device), 0);
    cr_assert_eq(m->n_domains, 3);
    cr_assert_str_eq(m->domains[2], "story");
    cr_assert_eq(m->cap_branch, 4);
    cr_assert_float_eq(m->cap_min_path, 0.001, 0);
    cr_assert_float_eq(m->top_p, 0.95, 0);
    cr_assert_eq(m->top_k, 40);
    lvr_trace_close(t);
}

Test(traces, an_unmeasured_overhead_stays_unknown)
{
    lvr_trace_meta meta = {.kind = LVR_TRACE_BENCH, .recorder_overhead_pct = NAN};
    lvr_trace_writer *w = NULL;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_trace_writer_open(fixture_path, &meta, false, &w, &err), LVR_OK, "%s", err.msg);
    fixture_close(w, true);
    lvr_trace *t = fixture_open();
    cr_assert(isnan(lvr_trace_get_meta(t)->recorder_overhead_pct));
    cr_assert_null(lvr_trace_get_meta(t)->config_yaml);
    cr_assert_eq(lvr_trace_get_meta(t)->target.n_layers, 0);
    cr_assert_neq(lvr_trace_get_meta(t)->created_utc[0], '\0', "the time of creation is filled in");
    lvr_trace_close(t);
}

Test(traces, a_seventeenth_domain_has_no_name)
{
    lvr_trace_lane *lane = NULL;
    lvr_trace_writer *w = fixture_writer(LVR_TRACE_TIMING, false, &lane);
    char name[64];
    for (uint32_t i = 2; i < LVR_TRACE_MAX_DOMAINS; i++) {
        snprintf(name, sizeof name, "domain %u", i);
        cr_assert_eq(lvr_trace_domain(w, name), i);
    }
    cr_assert_eq(lvr_trace_domain(w, "one too many"), LVR_TRACE_MAX_DOMAINS);
    cr_assert_eq(lvr_trace_domain(w, "domain 5"), 5);
    fixture_close(w, true);
}

/* A name is cut between characters: 30 one-byte letters and a two-byte one do not fit 32 bytes with the final
 * NUL. */
Test(traces, long_domains_stay_utf8)
{
    lvr_trace_lane *lane = NULL;
    lvr_trace_writer *w = fixture_writer(LVR_TRACE_TIMING, false, &lane);
    cr_assert_eq(lvr_trace_domain(w, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaé and more"), 2);
    fixture_close(w, true);
    lvr_trace *t = fixture_open();
    cr_assert_str_eq(lvr_trace_get_meta(t)->domains[2], "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
    lvr_trace_close(t);
}

Test(traces, memory_is_sampled_in_timing_traces_only)
{
    const lvr_trace_kind kinds[] = {LVR_TRACE_TIMING, LVR_TRACE_ORACLE};
    for (int i = 0; i < 2; i++) {
        lvr_trace_lane *lane = NULL;
        fixture_close(fixture_writer(kinds[i], true, &lane), true);
        lvr_trace *t = fixture_open();
        cr_assert_eq(lvr_trace_rows(t, LVR_STREAM_MEMORY) > 0, kinds[i] == LVR_TRACE_TIMING);
        lvr_rec_memory m;
        if (kinds[i] == LVR_TRACE_TIMING) {
            cr_assert_eq(lvr_trace_read(t, LVR_STREAM_MEMORY, 0, 1, &m, NULL), LVR_OK);
            cr_assert_gt(m.rss_bytes, 100000);
            cr_assert_gt(m.available_bytes, 0);
        }
        lvr_trace_close(t);
    }
}

Test(traces, the_four_corners_of_reading)
{
    lvr_trace_lane *lane = NULL;
    lvr_trace_writer *w = fixture_writer(LVR_TRACE_IMPORTED, false, &lane);
    put_all(lane, LVR_STREAM_TOKENS, 10);
    fixture_close(w, true);
    lvr_trace *t = fixture_open();
    lvr_rec_token rows[10];
    lvr_error err = LVR_ERROR_INIT;
    void *all = NULL;
    uint64_t n = 0;
    cr_assert_eq(lvr_trace_read(t, LVR_STREAM_TOKENS, 10, 0, rows, &err), LVR_OK);
    cr_assert_eq(lvr_trace_read(t, LVR_STREAM_TOKENS, 10, 1, rows, &err), LVR_ERR_FORMAT);
    cr_assert_eq(lvr_trace_read(t, LVR_STREAM_TOKENS, 1, UINT64_MAX, rows, &err), LVR_ERR_FORMAT);
    cr_assert_eq(lvr_trace_read(t, LVR_STREAM_TOKENS, UINT64_MAX, 1, rows, &err), LVR_ERR_FORMAT);
    cr_assert_eq(lvr_trace_read_all(t, LVR_STREAM_FLASH, &all, &n, &err), LVR_OK,
                 "an absent stream has no rows");
    cr_assert_eq(n, 0);
    free(all);
    lvr_trace_close(t);
}

/* ---- threads and drops
 * ------------------------------------------------------------------------------------------------ */

typedef struct producer {
    pthread_t thread;
    lvr_trace_lane *lane;
    uint64_t id, n, refused;
    bool wait;
} producer;

static void *produce(void *arg)
{
    producer *p = arg;
    for (uint64_t i = 0; i < p->n; i++) {
        const lvr_rec_token row = {.request = p->id, .pos = (uint32_t)i, .token = (int32_t)i};
        if (!p->wait)
            lvr_trace_put(p->lane, LVR_STREAM_TOKENS, &row);
        else if (lvr_trace_put_wait(p->lane, LVR_STREAM_TOKENS, &row, NULL) != LVR_OK)
            p->refused++;
    }
    return NULL;
}

static void run_producers(producer *p, size_t n_producers, size_t capacity, uint64_t n, bool wait)
{
    lvr_trace_lane *lane = NULL;
    lvr_trace_writer *w = fixture_writer(LVR_TRACE_IMPORTED, true, &lane);
    lvr_trace_writer_set_flush_interval(w, 10000000);
    for (size_t i = 0; i < n_producers; i++) {
        p[i] = (producer){.id = i, .n = n, .wait = wait};
        cr_assert_eq(lvr_trace_lane_new(w, capacity, &p[i].lane, NULL), LVR_OK);
    }
    for (size_t i = 0; i < n_producers; i++)
        cr_assert_eq(pthread_create(&p[i].thread, NULL, produce, &p[i]), 0);
    for (size_t i = 0; i < n_producers; i++)
        pthread_join(p[i].thread, NULL);
    fixture_close(w, true);
}

/* Every thread's rows in its own order; returns the rows of all. */
static uint64_t check_order_per_thread(bool gaps)
{
    lvr_trace *t = fixture_open();
    lvr_rec_token *rows = NULL;
    void *all = NULL;
    uint64_t n = 0;
    int64_t last[4] = {-1, -1, -1, -1};
    cr_assert_eq(lvr_trace_read_all(t, LVR_STREAM_TOKENS, &all, &n, NULL), LVR_OK);
    rows = all;
    for (uint64_t i = 0; i < n; i++) {
        cr_assert_lt(rows[i].request, 4);
        int64_t *const at = &last[rows[i].request];
        if (gaps ? (int64_t)rows[i].pos <= *at : (int64_t)rows[i].pos != *at + 1)
            cr_assert_fail("row %lu: pos %u after %ld", (unsigned long)i, rows[i].pos, (long)*at);
        *at = rows[i].pos;
    }
    free(all);
    lvr_trace_close(t);
    return n;
}

Test(traces, four_threads_lose_nothing_when_they_wait, .timeout = 60)
{
    producer p[4];
    run_producers(p, 4, 256, 30000, true);
    cr_assert_eq(check_order_per_thread(false), 120000);
    cr_assert_eq(p[0].refused, 0);
}

Test(traces, what_does_not_fit_is_counted, .timeout = 60)
{
    producer p[4];
    run_producers(p, 4, 16, 30000, false);
    const uint64_t rows = check_order_per_thread(true);
    lvr_trace *t = fixture_open();
    const uint64_t dropped = lvr_trace_get_meta(t)->dropped[LVR_STREAM_TOKENS];
    cr_assert_gt(dropped, 0);
    cr_assert_eq(rows + dropped, 120000);
    lvr_buf out = LVR_BUF_INIT;
    cr_assert_eq(lvr_trace_info(t, false, &out, NULL), LVR_OK);
    cr_assert_not_null(strstr(out.data, "dropped records"));
    lvr_buf_free(&out);
    lvr_trace_close(t);
}

/* ---- existing files
 * ---------------------------------------------------------------------------------------------------- */

static lvr_status try_open(bool overwrite, lvr_error *err)
{
    lvr_trace_meta meta;
    lvr_trace_writer *w = NULL;
    fixture_meta(&meta, LVR_TRACE_IMPORTED);
    const lvr_status st = lvr_trace_writer_open(fixture_path, &meta, overwrite, &w, err);
    if (st == LVR_OK)
        fixture_close(w, true);
    return st;
}

Test(traces, a_complete_trace_is_not_overwritten_unasked)
{
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(try_open(false, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(try_open(false, &err), LVR_ERR_CONFIG);
    cr_assert_not_null(strstr(err.msg, "complete trace"));
    cr_assert_eq(try_open(true, &err), LVR_OK, "%s", err.msg);
}

Test(traces, an_incomplete_one_may_be_started_over)
{
    lvr_trace_lane *lane = NULL;
    lvr_error err = LVR_ERROR_INIT;
    lvr_trace_writer *w = fixture_writer(LVR_TRACE_IMPORTED, false, &lane);
    put_all(lane, LVR_STREAM_TOKENS, 10);
    fixture_close(w, false);
    cr_assert_eq(try_open(false, &err), LVR_OK, "%s", err.msg);
    lvr_trace *t = fixture_open();
    cr_assert_eq(lvr_trace_rows(t, LVR_STREAM_TOKENS), 0);
    lvr_trace_close(t);
}

Test(traces, a_file_of_others_is_not_overwritten_unasked)
{
    lvr_error err = LVR_ERROR_INIT;
    FILE *f = fopen(fixture_path, "w");
    cr_assert_not_null(f);
    fputs("my thesis", f);
    fclose(f);
    cr_assert_eq(try_open(false, &err), LVR_ERR_CONFIG);
    cr_assert_not_null(strstr(err.msg, "not an intact trace"));
    cr_assert_eq(unlink(fixture_path), 0);
    cr_assert_eq(mkdir(fixture_path, 0700), 0);
    cr_assert_eq(try_open(true, &err), LVR_ERR_CONFIG, "not even a folder when asked");
}

Test(traces, two_recordings_do_not_share_a_name)
{
    lvr_trace_lane *lane = NULL;
    lvr_error err = LVR_ERROR_INIT;
    lvr_trace_writer *w = fixture_writer(LVR_TRACE_IMPORTED, false, &lane);
    cr_assert_eq(try_open(true, &err), LVR_ERR_CONFIG);
    cr_assert_not_null(strstr(err.msg, "another recording"));
    put_all(lane, LVR_STREAM_TOKENS, 10);
    fixture_close(w, true);
    lvr_trace *t = fixture_open();
    cr_assert_eq(lvr_trace_rows(t, LVR_STREAM_TOKENS), 10);
    lvr_trace_close(t);
}

Test(traces, a_folder_that_is_not_there_is_a_message)
{
    lvr_error err = LVR_ERROR_INIT;
    snprintf(fixture_path, sizeof fixture_path, "%s/nowhere/t.h5", fixture_dir);
    cr_assert_eq(try_open(false, &err), LVR_ERR_IO);
    cr_assert_not_null(strstr(err.msg, "nowhere"));
}

/* ---- the schema
 * -----------------------------------------------------------------------------------------------------------
 */

static size_t bytes_of(lvr_field_type type)
{
    return type == LVR_FIELD_U64 || type == LVR_FIELD_F64 ? 8 : 4;
}

Test(schema, fields_fill_their_records_without_overlap)
{
    for (int s = 0; s < LVR_STREAM_COUNT; s++) {
        const lvr_stream_desc *desc = lvr_stream_describe((lvr_stream)s);
        bool used[LVR_RECORD_MAX_BYTES] = {false};
        cr_assert_leq(desc->record_bytes, LVR_RECORD_MAX_BYTES);
        cr_assert_leq(desc->n_fields, LVR_RECORD_MAX_FIELDS);
        for (uint32_t f = 0; f < desc->n_fields; f++) {
            const lvr_field *field = &desc->fields[f];
            cr_assert_leq(field->offset + bytes_of(field->type), desc->record_bytes);
            for (size_t b = 0; b < bytes_of(field->type); b++) {
                cr_assert_not(used[field->offset + b], "%s.%s overlaps", desc->name, field->name);
                used[field->offset + b] = true;
            }
            cr_assert_gt(strlen(field->description), 0);
            cr_assert_eq(field->enum_name != NULL, strcmp(field->unit, "enum") == 0);
            for (uint32_t other = 0; other < f; other++)
                cr_assert_str_neq(desc->fields[other].name, field->name);
        }
    }
}

Test(schema, operators_have_the_cost_models_names)
{
    const lvr_stream_desc *desc = lvr_stream_describe(LVR_STREAM_KERNELS);
    const lvr_field *op = NULL;
    for (uint32_t f = 0; f < desc->n_fields; f++)
        if (strcmp(desc->fields[f].name, "op") == 0)
            op = &desc->fields[f];
    cr_assert_not_null(op);
    for (uint32_t v = 0; v < LVR_OP_COUNT; v++)
        cr_assert_str_eq(op->enum_name(v), lvr_op_name((lvr_op)v));
    cr_assert_null(op->enum_name(LVR_OP_COUNT));
}

/* traces/FORMAT.md is written by hand from the tables; this keeps the two together. */
Test(schema, the_document_lists_every_field)
{
    static const char *const types[] = {"u32", "i32", "u64", "f32", "f64"};
    const char *root = getenv("LVR_SOURCE_ROOT");
    char path[512], row[512];
    lvr_buf doc = LVR_BUF_INIT;
    lvr_error err = LVR_ERROR_INIT;
    if (!root)
        cr_skip_test("LVR_SOURCE_ROOT is not set");
    snprintf(path, sizeof path, "%s/traces/FORMAT.md", root);
    cr_assert_eq(lvr_read_file(path, 1 << 20, &doc, &err), LVR_OK, "%s", err.msg);
    for (int s = 0; s < LVR_STREAM_COUNT; s++) {
        const lvr_stream_desc *desc = lvr_stream_describe((lvr_stream)s);
        snprintf(row, sizeof row, "### `%s`\n", desc->name);
        const char *section = strstr(doc.data, row);
        cr_assert_not_null(section, "%s", desc->name);
        for (uint32_t f = 0; f < desc->n_fields; f++) {
            const lvr_field *field = &desc->fields[f];
            snprintf(row, sizeof row, "| `%s` | %s%s | %s | %s", field->name, field->enum_name ? "enum " : "",
                     types[field->type], field->enum_name ? "" : field->unit, field->description);
            cr_assert_not_null(strstr(section, row), "%s lacks: %s", desc->name, row);
        }
    }
    lvr_buf_free(&doc);
}
