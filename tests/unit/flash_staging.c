/* The staging ring: what lands in its slots, the checks of every layer in every pass, first and later passes
 * told apart, and what it says the reads really were. */
#include "common/fs.h"
#include "common/hash.h"
#include "engine/pack_cache.h"
#include "engine/staging.h"
#include "tests/unit/forward_rig.h"
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N_LAYERS 5u
#define RESIDENT 1u /* this layer is not streamed */

struct stage {
    struct model_file model;
    char path[512]; /* of the pack */
    lvr_pack *pack;
    lvr_geometry geometry;
    lvr_staging_config config;
    lvr_staging *ring;
    uint64_t seq;
};

static void stage_make(struct stage *s, uint64_t slice_bytes)
{
    const struct gguf_tiny spec = {.type = LVR_F32, .n_layers = N_LAYERS, .seed = 21, .scale = 4};
    lvr_error err = LVR_ERROR_INIT;
    *s = (struct stage){0};
    model_file_make(&s->model, &spec);
    cr_assert_eq(lvr_pack_open_any(s->model.path, &s->pack, &err), LVR_OK, "%s", err.msg);
    snprintf(s->path, sizeof s->path, "%s", lvr_pack_path(s->pack));
    s->geometry = (lvr_geometry){.n_layers = N_LAYERS, .slice_bytes = slice_bytes, .ring_slots = 2};
    for (uint32_t l = 0; l < N_LAYERS; l++)
        s->geometry.layer_bytes[l] = lvr_pack_layer_bytes(s->pack, l);
    s->geometry.resident[RESIDENT] = true;
    s->config = (lvr_staging_config){.pack = s->pack, .geometry = &s->geometry, .depth = 4};
}

static void stage_open(struct stage *s)
{
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_staging_new(&s->config, &s->ring, &err), LVR_OK, "%s", err.msg);
    s->seq = 0;
}

static void stage_close(struct stage *s)
{
    lvr_staging_free(s->ring);
    s->ring = NULL;
}

static void stage_free(struct stage *s)
{
    stage_close(s);
    lvr_pack_free(s->pack);
    model_file_remove(&s->model);
}

/* Every slice of the layer; returns how many. */
static uint32_t submit_layer(struct stage *s, uint32_t layer, uint32_t slot, uint64_t pass)
{
    const uint64_t bytes = s->geometry.layer_bytes[layer], slice_bytes = s->geometry.slice_bytes;
    uint32_t n = 0;
    for (uint64_t at = 0; at < bytes; at += slice_bytes) {
        const lvr_action a = {.kind = LVR_ACT_READ,
                              .read = {.seq = s->seq++,
                                       .layer = layer,
                                       .slice = n++,
                                       .slot = slot,
                                       .offset = at,
                                       .bytes = bytes - at < slice_bytes ? bytes - at : slice_bytes,
                                       .round = pass}};
        lvr_error err = LVR_ERROR_INIT;
        cr_assert_eq(lvr_staging_submit(s->ring, &a, &err), LVR_OK, "%s", err.msg);
    }
    return n;
}

static lvr_status collect(struct stage *s, uint32_t n, lvr_error *err)
{
    for (uint32_t i = 0; i < n; i++) {
        uint64_t seq = 0;
        bool got = false;
        const lvr_status status = lvr_staging_collect(s->ring, true, &seq, &got, err);
        if (status != LVR_OK)
            return status;
        cr_assert(got && seq < s->seq);
    }
    return LVR_OK;
}

static void add_bytes(void *user, const lvr_staged_read *read, bool consumed)
{
    uint64_t *bytes = user;
    cr_assert(consumed);
    *bytes += read->done.bytes;
}

/* Two layers in flight at a time, as a pass reads them; ends at the first failure. */
static lvr_status read_pass(struct stage *s, uint64_t pass, lvr_error *err)
{
    uint32_t slot = 0;
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        uint64_t bytes = 0;
        if (s->geometry.resident[l])
            continue;
        const lvr_status status = collect(s, submit_layer(s, l, slot, pass), err);
        if (status != LVR_OK)
            return status;
        cr_assert_eq(lvr_crc32c(0, lvr_staging_slot(s->ring, slot), s->geometry.layer_bytes[l]),
                     lvr_pack_layer_crc(s->pack, l));
        cr_assert_eq(lvr_staging_consume(s->ring, slot, add_bytes, &bytes), s->geometry.layer_bytes[l]);
        cr_assert_eq(bytes, s->geometry.layer_bytes[l]);
        slot = 1 - slot;
    }
    return LVR_OK;
}

static void pass_ok(struct stage *s, uint64_t pass)
{
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(read_pass(s, pass, &err), LVR_OK, "pass %" PRIu64 ": %s", pass, err.msg);
}

static void flip_bit(const char *path, uint64_t offset)
{
    uint8_t byte = 0;
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    cr_assert(fd >= 0);
    cr_assert_eq(lvr_pread_all(fd, &byte, 1, offset, path, NULL), LVR_OK);
    byte ^= 1;
    cr_assert_eq(lvr_pwrite_all(fd, &byte, 1, offset, path, NULL), LVR_OK);
    cr_assert_eq(fsync(fd), 0);
    close(fd);
}

static bool usable(lvr_flash_engine engine)
{
    return lvr_flash_probe_engine(engine, NULL) == LVR_OK;
}

#define FOR_EACH_ENGINE(e)                                                                                   \
    for (lvr_flash_engine e = LVR_FLASH_URING; e <= LVR_FLASH_PREAD; e++)                                    \
        if (usable(e))

/* ---- figures ---- */

Test(flash_staging, first_and_later_passes_are_told_apart)
{
    FOR_EACH_ENGINE(e)
    {
        struct stage s;
        stage_make(&s, 8192);
        s.config.engine = e;
        stage_open(&s);
        const uint64_t pass_bytes = lvr_geometry_stream_bytes(&s.geometry);
        lvr_io_report r;
        lvr_staging_io_report(s.ring, &r);
        cr_assert_eq(r.first_pass_bytes + r.later_pass_bytes, 0);
        cr_assert(isnan(r.first_pass_bytes_per_s) && isnan(r.later_pass_bytes_per_s));
        pass_ok(&s, 0);
        const lvr_staging_stats first = lvr_staging_get_stats(s.ring);
        cr_assert_eq(first.bytes, pass_bytes);
        cr_assert_eq(first.first_pass_bytes, pass_bytes);
        cr_assert_eq(first.first_pass_busy_ns, first.busy_ns);
        pass_ok(&s, 1);
        pass_ok(&s, 2);
        const lvr_staging_stats all = lvr_staging_get_stats(s.ring);
        cr_assert_eq(all.bytes, 3 * pass_bytes);
        cr_assert_eq(all.first_pass_bytes, pass_bytes);
        cr_assert_eq(all.first_pass_busy_ns, first.busy_ns, "what comes later does not count");
        cr_assert(all.busy_ns > first.busy_ns);
        lvr_staging_io_report(s.ring, &r);
        cr_assert_str_eq(r.engine, e == LVR_FLASH_URING ? "uring" : "pread");
        cr_assert_eq(r.first_pass_bytes, pass_bytes);
        cr_assert_eq(r.later_pass_bytes, 2 * pass_bytes);
        cr_assert_eq(r.first_pass_busy_ns + r.later_pass_busy_ns, all.busy_ns);
        cr_assert(r.first_pass_bytes_per_s > 0 && r.later_pass_bytes_per_s > 0);
        cr_assert(r.checked && r.cpu_ns > 0);
        if (e == LVR_FLASH_PREAD)
            cr_assert(!r.registered_buffer && !r.registered_files);
        stage_free(&s);
    }
}

#define N_STREAMED (N_LAYERS - 1)
#define WINDOW (N_STREAMED + 1) /* layers in flight: a pass and the first layer of the next one */

/* A layer in flight. Sequence numbers ascend over the layers of a window. */
struct flying {
    uint64_t end_seq;
    uint32_t slot, left;
};

static struct flying submit_next(struct stage *s, uint32_t k)
{
    static const uint32_t streamed[N_STREAMED] = {0, 2, 3, 4};
    struct flying f = {.slot = k % WINDOW};
    f.left = submit_layer(s, streamed[k % N_STREAMED], f.slot, k / N_STREAMED);
    f.end_seq = s->seq;
    return f;
}

/* Reads end in any order: whatever ends meanwhile is counted where it belongs. */
static void await_layer(struct stage *s, struct flying *window, uint32_t k)
{
    lvr_error err = LVR_ERROR_INIT;
    while (window[k % WINDOW].left > 0) {
        uint64_t seq = 0;
        bool got = false;
        uint32_t of = k;
        cr_assert_eq(lvr_staging_collect(s->ring, true, &seq, &got, &err), LVR_OK, "%s", err.msg);
        while (window[of % WINDOW].end_seq <= seq)
            cr_assert_lt(++of, k + WINDOW);
        window[of % WINDOW].left--;
    }
}

/* Reads of the next pass are under way when the last ones of the first end. */
Test(flash_staging, passes_that_overlap_are_told_apart)
{
    FOR_EACH_ENGINE(e)
    {
        struct stage s;
        struct flying window[WINDOW];
        uint64_t ignored = 0;
        stage_make(&s, 4096);
        s.config.engine = e;
        s.geometry.ring_slots = WINDOW;
        stage_open(&s);
        const uint64_t pass_bytes = lvr_geometry_stream_bytes(&s.geometry);
        for (uint32_t k = 0; k < WINDOW; k++) /* the second pass begins before the first has ended */
            window[k] = submit_next(&s, k);
        for (uint32_t k = 0; k < 3 * N_STREAMED; k++) {
            await_layer(&s, window, k);
            lvr_staging_consume(s.ring, k % WINDOW, add_bytes, &ignored);
            if (k + WINDOW < 3 * N_STREAMED)
                window[k % WINDOW] = submit_next(&s, k + WINDOW);
        }
        const lvr_staging_stats stats = lvr_staging_get_stats(s.ring);
        cr_assert_eq(stats.bytes, 3 * pass_bytes);
        cr_assert_eq(stats.first_pass_bytes, pass_bytes);
        cr_assert_gt(stats.first_pass_busy_ns, 0);
        cr_assert_lt(stats.first_pass_busy_ns, stats.busy_ns, "the third pass began after the first");
        stage_free(&s);
    }
}

Test(flash_staging, what_was_read_from_is_said)
{
    struct stage s;
    stage_make(&s, 1 << 20);
    s.config.buffered = true;
    stage_open(&s);
    pass_ok(&s, 0);
    stage_close(&s);
    stage_open(&s); /* now everything is in the page cache */
    pass_ok(&s, 0);
    lvr_io_report r;
    lvr_staging_io_report(s.ring, &r);
    cr_assert_eq(r.path, LVR_READ_CACHED);
    cr_assert(r.cached_before >= 0.5 && r.cached_before <= 1, "%g",
              r.cached_before); /* pages may be evicted */
    cr_assert(r.cached_after > 0 && r.cached_after <= 1, "%g", r.cached_after);
    stage_close(&s);
    s.config.buffered = false;
    stage_open(&s);
    pass_ok(&s, 0);
    lvr_flash_stats flash;
    lvr_staging_flash_stats(s.ring, &flash);
    lvr_staging_io_report(s.ring, &r);
    cr_assert_eq(r.path, flash.direct ? LVR_READ_DIRECT : LVR_READ_CACHED);
    stage_free(&s);
}

/* ---- checks ---- */

/* Slices of every size, so that their checksums are joined in every way. */
Test(flash_staging, slices_of_any_size_are_checked)
{
    static const uint64_t slices[] = {4096, 8192, 12288, 20480, 65536, 1 << 24};
    for (size_t i = 0; i < sizeof slices / sizeof *slices; i++) {
        struct stage s;
        stage_make(&s, slices[i]);
        s.config.depth = 8;
        stage_open(&s);
        pass_ok(&s, 0);
        pass_ok(&s, 1);
        stage_free(&s);
    }
}

/* First and last byte of a layer, and one in the middle; before the first pass, and after it. */
Test(flash_staging, a_flipped_bit_is_found_whenever_it_flips)
{
    FOR_EACH_ENGINE(e)
    for (int late = 0; late < 2; late++)
        for (int where = 0; where < 3; where++) {
            struct stage s;
            lvr_error err = LVR_ERROR_INIT;
            stage_make(&s, 8192);
            s.config.engine = e;
            stage_open(&s);
            if (late)
                pass_ok(&s, 0);
            const uint64_t last = s.geometry.layer_bytes[3] - 1;
            flip_bit(s.path, lvr_pack_layer_offset(s.pack, 3) + (uint64_t)where * last / 2);
            cr_assert_eq(read_pass(&s, (uint64_t)late, &err), LVR_ERR_FORMAT);
            cr_assert(strstr(err.msg, s.path) && strstr(err.msg, "layer 3") &&
                          strstr(err.msg, "expected CRC"),
                      "%s", err.msg);
            cr_assert_eq(strstr(err.msg, "before in this run") != NULL, late != 0, "%s", err.msg);
            stage_free(&s);
        }
}

Test(flash_staging, a_check_of_the_first_pass_only_is_what_it_says)
{
    struct stage s;
    lvr_error err = LVR_ERROR_INIT;
    stage_make(&s, 8192);
    s.config.verify = LVR_VERIFY_FIRST;
    stage_open(&s);
    pass_ok(&s, 0);
    flip_bit(s.path, lvr_pack_layer_offset(s.pack, 3) + 5);
    cr_assert_eq(collect(&s, submit_layer(&s, 3, 0, 1), &err), LVR_OK, "%s", err.msg);
    lvr_io_report r;
    lvr_staging_io_report(s.ring, &r);
    cr_assert(!r.checked);
    stage_close(&s);
    stage_open(&s);
    cr_assert_eq(read_pass(&s, 0, &err), LVR_ERR_FORMAT);
    stage_free(&s);
}

/* ---- faults in a later pass ---- */

static void check_fault(const lvr_flash_faults *faults, lvr_status expected, const char *word)
{
    FOR_EACH_ENGINE(e)
    {
        struct stage s;
        lvr_error err = LVR_ERROR_INIT;
        stage_make(&s, 8192);
        s.config.engine = e;
        s.config.depth = 1;
        s.config.faults = faults;
        stage_open(&s);
        pass_ok(&s, 0);
        const lvr_status status = read_pass(&s, 1, &err);
        cr_assert_eq(status, expected, "%s", err.msg);
        if (status != LVR_OK)
            cr_assert(strstr(err.msg, s.path) && strstr(err.msg, "layer") && strstr(err.msg, word), "%s",
                      err.msg);
        stage_free(&s);
    }
}

static uint64_t reads_of_a_pass(void)
{
    struct stage s;
    uint64_t n = 0;
    stage_make(&s, 8192);
    for (uint32_t l = 0; l < N_LAYERS; l++)
        n += s.geometry.resident[l] ? 0 : (s.geometry.layer_bytes[l] + 8191) / 8192;
    stage_free(&s);
    return n;
}

Test(flash_staging, faults_in_mid_run)
{
    const uint64_t at = reads_of_a_pass() + 3;
    const lvr_flash_faults eio = {.fail_at = at, .fail_count = 1, .fail_errno = EIO}, cut = {.short_at = at},
                           part = {.short_at = at, .short_bytes = 4096},
                           unaligned = {.short_at = at, .short_bytes = 77},
                           not_direct = {.fail_at = at, .fail_count = 1, .fail_errno = EINVAL};
    check_fault(&eio, LVR_ERR_IO, strerror(EIO));
    check_fault(&cut, LVR_ERR_FORMAT, "truncated");
    check_fault(&part, LVR_OK, "");
    check_fault(&unaligned, LVR_OK, "");
    check_fault(&not_direct, LVR_OK, "");
}

Test(flash_staging, reads_that_do_not_fit_are_refused)
{
    struct stage s;
    stage_make(&s, 8192);
    stage_open(&s);
    const lvr_action good = {.kind = LVR_ACT_READ, .read = {.layer = 0, .bytes = 8192}};
    lvr_action bad[7];
    for (size_t i = 0; i < 7; i++)
        bad[i] = good;
    bad[0].read.layer = N_LAYERS;
    bad[1].read.layer = RESIDENT;
    bad[2].read.slot = 2;
    bad[3].read.offset = 4096;
    bad[4].read.slice = 1;
    bad[5].read.bytes = 4096;
    bad[6].read.slice = UINT32_MAX;
    for (size_t i = 0; i < 7; i++)
        cr_assert_eq(lvr_staging_submit(s.ring, &bad[i], NULL), LVR_ERR_INVARIANT, "case %zu", i);
    cr_assert_eq(lvr_staging_submit(s.ring, &good, NULL), LVR_OK);
    stage_free(&s);
}
