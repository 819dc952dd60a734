/* Whatever bytes a file has, opening it is a trace or a message. */
#include "common/buf.h"
#include "common/fs.h"
#include "common/rng.h"
#include "tests/unit/traces_fixture.h"
#include "traces/meta_io.h"
#include "traces/sealed_file.h"
#include "traces/stream_io.h"
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

TestSuite(damage, .init = fixture_setup, .fini = fixture_teardown);

static void record_good(void)
{
    lvr_trace_lane *lane = NULL;
    lvr_trace_writer *w = fixture_writer(LVR_TRACE_TIMING, true, &lane);
    fixture_put_rounds(lane, 1, 0, 50, true);
    fixture_close(w, true);
}

static void store(const void *data, size_t n)
{
    FILE *f = fopen(fixture_path, "w");
    cr_assert_not_null(f);
    cr_assert_eq(fwrite(data, 1, n, f), n);
    fclose(f);
}

/* The message of the refusal, which must be one. */
static const char *refused(const char *what, size_t at)
{
    static lvr_error err;
    lvr_trace *t = NULL;
    err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_trace_open(fixture_path, &t, &err), LVR_ERR_FORMAT, "%s %zu: %s", what, at, err.msg);
    cr_assert_null(t);
    cr_assert_not_null(strstr(err.msg, fixture_path), "%s", err.msg);
    return err.msg;
}

Test(damage, every_flipped_bit_is_noticed, .timeout = 60)
{
    lvr_buf good = LVR_BUF_INIT;
    lvr_rng rng;
    record_good();
    cr_assert_eq(lvr_read_file(fixture_path, 1 << 24, &good, NULL), LVR_OK);
    lvr_rng_init(&rng, 1, "flips");
    /* All of the user block, then anywhere. */
    for (size_t i = 0; i < 512 + 500; i++) {
        const size_t at = i < 512 ? i : (size_t)lvr_rng_below(&rng, good.len);
        const char bit = (char)(1 << lvr_rng_below(&rng, 8));
        good.data[at] ^= bit;
        store(good.data, good.len);
        refused("flip at", at);
        good.data[at] ^= bit;
    }
    store(good.data, good.len);
    lvr_trace_close(fixture_open());
    lvr_buf_free(&good);
}

Test(damage, every_truncation_is_noticed, .timeout = 60)
{
    struct stat st;
    record_good();
    cr_assert_eq(stat(fixture_path, &st), 0);
    for (off_t n = st.st_size - 1; n >= 0; n = n > 600 ? n - 1 - n / 50 : n - 7) {
        cr_assert_eq(truncate(fixture_path, n), 0);
        refused("length", (size_t)n);
    }
}

Test(damage, a_longer_file_is_noticed)
{
    record_good();
    FILE *f = fopen(fixture_path, "a");
    fputs("tail", f);
    fclose(f);
    cr_assert_not_null(strstr(refused("tail", 4), "damaged"));
}

Test(damage, files_of_others_are_named)
{
    char hdf5[2048] = "\x89HDF\r\n\x1a\n";
    char gguf[2048] = "GGUF";
    store(hdf5, sizeof hdf5);
    cr_assert_not_null(strstr(refused("hdf5", 0), "HDF5 file of another program"));
    store(gguf, sizeof gguf);
    cr_assert_not_null(strstr(refused("gguf", 0), "another kind of file"));
    store("", 0);
    refused("empty", 0);
}

Test(damage, things_that_are_not_files_are_messages)
{
    lvr_trace *t = NULL;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_trace_open(fixture_path, &t, &err), LVR_ERR_IO);
    cr_assert_not_null(strstr(err.msg, "no such trace"));
    cr_assert_eq(lvr_trace_open(fixture_dir, &t, &err), LVR_ERR_FORMAT);
    cr_assert_not_null(strstr(err.msg, "a folder"));
    cr_assert_eq(mkfifo(fixture_path, 0600), 0);
    cr_assert_eq(lvr_trace_open(fixture_path, &t, &err), LVR_ERR_FORMAT);
}

/* ---- well sealed, but not what this version knows
 * ------------------------------------------------------------------------ */

typedef void (*change_fn)(hid_t h5);

/* A trace without rows of kind timing, changed before it is sealed. */
static void seal_changed(change_fn change)
{
    lvr_sealed_file *f = NULL;
    lvr_trace_meta meta;
    lvr_clock_list clocks = {0};
    lvr_error err = LVR_ERROR_INIT;
    char temp[160];
    fixture_meta(&meta, LVR_TRACE_TIMING);
    meta.complete = true;
    snprintf(temp, sizeof temp, "%s/temp", fixture_dir);
    cr_assert_eq(lvr_sealed_create(temp, (lvr_seal_id){1, 0}, &f, &err), LVR_OK, "%s", err.msg);
    const lvr_h5_guard guard = lvr_h5_enter();
    const hid_t h5 = lvr_sealed_h5(f);
    cr_assert_eq(lvr_meta_write(h5, &meta, true, &clocks, temp, &err), LVR_OK, "%s", err.msg);
    for (int s = 0; s <= LVR_STREAM_KERNELS; s++) {
        const lvr_stream_layout layout = {0, false, true};
        hid_t dset = -1;
        cr_assert_eq(lvr_stream_create(h5, (lvr_stream)s, &layout, temp, &dset, &err), LVR_OK, "%s", err.msg);
        H5Dclose(dset);
    }
    change(h5);
    lvr_h5_leave(guard);
    cr_assert_eq(lvr_sealed_commit(f, fixture_path, false, &err), LVR_OK, "%s", err.msg);
}

static void set_text(hid_t h5, const char *name, const char *value)
{
    const hid_t root = H5Gopen2(h5, "/", H5P_DEFAULT);
    H5Adelete(root, name);
    cr_assert_eq(lvr_attr_write_strings(root, name, &value, 1, true, "test", NULL), LVR_OK);
    H5Gclose(root);
}

static void no_change(hid_t h5)
{
    (void)h5;
}

static void major_two(hid_t h5)
{
    set_text(h5, "version", "2.0");
}

static void minor_nine(hid_t h5)
{
    set_text(h5, "version", "1.9");
}

static void bad_version(hid_t h5)
{
    set_text(h5, "version", "1.0beta");
}

static void other_schema(hid_t h5)
{
    set_text(h5, "schema", "chakra");
}

static void other_kind(hid_t h5)
{
    set_text(h5, "kind", "dream");
}

static void long_text(hid_t h5)
{
    char text[200];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    set_text(h5, "commit", text);
}

static void no_complete(hid_t h5)
{
    H5Adelete_by_name(h5, "/", "complete", H5P_DEFAULT);
}

static void no_rounds(hid_t h5)
{
    H5Ldelete(h5, "/rounds", H5P_DEFAULT);
}

static void make_dataset(hid_t h5, const char *name, hid_t type, int n_dims)
{
    const hsize_t dims[2] = {3, 2};
    const hid_t space = H5Screate_simple(n_dims, dims, NULL);
    H5Dclose(H5Dcreate2(h5, name, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    H5Sclose(space);
}

static void numbers_for_rounds(hid_t h5)
{
    no_rounds(h5);
    make_dataset(h5, "/rounds", H5T_STD_U64LE, 1);
}

static void group_for_rounds(hid_t h5)
{
    no_rounds(h5);
    H5Gclose(H5Gcreate2(h5, "/rounds", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
}

static void few_fields(hid_t h5)
{
    const hid_t type = H5Tcreate(H5T_COMPOUND, 8);
    H5Tinsert(type, "request", 0, H5T_STD_U64LE);
    no_rounds(h5);
    make_dataset(h5, "/rounds", type, 1);
    H5Tclose(type);
}

/* /tokens with fields this version does not know, `pos` of another type if asked, and as a table. */
static void other_tokens(hid_t h5, hid_t pos, int n_dims)
{
    const hid_t type = H5Tcreate(H5T_COMPOUND, 64);
    H5Tinsert(type, "request", 0, H5T_STD_U64LE);
    H5Tinsert(type, "pos", 8, pos);
    H5Tinsert(type, "token", 16, H5T_STD_I32LE);
    H5Tinsert(type, "is_output", 20, H5T_STD_U32LE);
    H5Tinsert(type, "mood", 24, H5T_IEEE_F64LE);
    H5Ldelete(h5, "/tokens", H5P_DEFAULT);
    make_dataset(h5, "/tokens", type, n_dims);
    H5Tclose(type);
}

static void more_fields(hid_t h5)
{
    other_tokens(h5, H5T_STD_U32LE, 1);
    make_dataset(h5, "/a_later_invention", H5T_STD_U64LE, 2);
}

static void float_pos(hid_t h5)
{
    other_tokens(h5, H5T_IEEE_F32LE, 1);
}

static void signed_pos(hid_t h5)
{
    other_tokens(h5, H5T_STD_I32LE, 1);
}

static void wide_pos(hid_t h5)
{
    other_tokens(h5, H5T_STD_U64LE, 1);
}

static void table_of_tokens(hid_t h5)
{
    other_tokens(h5, H5T_STD_U32LE, 2);
}

/* More layers than the reader has room for. */
static void many_layers(hid_t h5)
{
    const uint32_t n = 100000;
    const hid_t group = H5Gopen2(h5, "/model/target", H5P_DEFAULT);
    const hid_t attr = H5Aopen(group, "n_layers", H5P_DEFAULT);
    H5Awrite(attr, H5T_NATIVE_UINT32, &n);
    H5Aclose(attr);
    H5Gclose(group);
}

static void many_values(hid_t h5)
{
    const hsize_t dims = 1000;
    const hid_t space = H5Screate_simple(1, &dims, NULL);
    H5Adelete_by_name(h5, "/", "seed", H5P_DEFAULT);
    H5Aclose(H5Acreate_by_name(h5, "/", "seed", H5T_STD_U64LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    H5Sclose(space);
}

static void text_seed(hid_t h5)
{
    set_text(h5, "seed", "a lot");
}

Test(damage, what_this_version_does_not_know_is_refused_in_one_sentence)
{
    static const struct {
        change_fn change;
        const char *says;
    } cases[] = {
        {major_two, "trace format 2.0 cannot be read"},
        {bad_version, "expected a version like"},
        {other_schema, "found \"chakra\""},
        {other_kind, "found \"dream\""},
        {long_text, "commit: expected at most 31 bytes"},
        {no_complete, "attribute complete"},
        {no_rounds, "expected a dataset /rounds"},
        {numbers_for_rounds, "expected records"},
        {group_for_rounds, "expected a dataset /rounds"},
        {few_fields, "field `round`, found none"},
        {float_pos, "field `pos` to be an unsigned 32-bit integer"},
        {signed_pos, "field `pos`"},
        {wide_pos, "field `pos`"},
        {table_of_tokens, "one-dimensional"},
        {many_layers, "at most 256 layers"},
        {many_values, "seed: expected 1 to 1 values, found 1000"},
        {text_seed, "seed: expected a number"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        seal_changed(cases[i].change);
        const char *message = refused("case", i);
        cr_assert_not_null(strstr(message, cases[i].says), "case %zu: %s", i, message);
    }
}

Test(damage, what_a_later_minor_version_adds_is_ignored)
{
    seal_changed(no_change);
    lvr_trace_close(fixture_open());
    seal_changed(minor_nine);
    lvr_trace *t = fixture_open();
    cr_assert_eq(lvr_trace_get_meta(t)->version_minor, 9);
    lvr_trace_close(t);
    seal_changed(more_fields);
    lvr_rec_token rows[3];
    t = fixture_open();
    cr_assert_eq(lvr_trace_rows(t, LVR_STREAM_TOKENS), 3);
    cr_assert_eq(lvr_trace_read(t, LVR_STREAM_TOKENS, 0, 3, rows, NULL), LVR_OK);
    lvr_trace_close(t);
}

/* HDF5 prints its error stack by default; nothing of it may reach the terminal. */
Test(damage, hdf5_stays_silent)
{
    char path[160];
    snprintf(path, sizeof path, "%s/stderr", fixture_dir);
    fflush(stderr);
    const int saved = dup(STDERR_FILENO);
    const int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    dup2(fd, STDERR_FILENO);
    seal_changed(group_for_rounds);
    refused("group", 0);
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    close(saved);
    cr_assert_eq(lseek(fd, 0, SEEK_END), 0);
    close(fd);
}
