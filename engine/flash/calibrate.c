#include "engine/flash/calibrate.h"

#include "common/clock.h"
#include "common/hugemem.h"
#include "common/minmax.h"
#include "engine/flash/flash.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>

#define N_ROUNDS 3u
#define CELL_NS UINT64_C(45000000)
#define LONGEST_FILL_NS                                                                                      \
    UINT64_C(150000000) /* cells that take longer to fill the device once are left out                       \
                         */
#define REGION_BYTES (UINT64_C(512) << 20)
#define REGION_NS UINT64_C(800000000) /* for reading it the first time */
#define FIRST_BYTES (UINT64_C(1) << 20)
#define FIRST_DEPTH 4u
#define GOOD_SHARE 0.98

static const uint64_t sizes[] = {UINT64_C(256) << 10, UINT64_C(1) << 20, UINT64_C(4) << 20,
                                 UINT64_C(16) << 20};
static const uint32_t depths[] = {1, 2, 4, 8};
#define N_SIZES (sizeof sizes / sizeof sizes[0])
#define N_DEPTHS (sizeof depths / sizeof depths[0])
#define MAX_DEPTH 8u

typedef struct calibration {
    const char *path;
    const atomic_bool *cancel;
    uint8_t *buffer;
    uint64_t buffer_bytes;
    bool unregistered;     /* the kernel has refused to register it, and has been heard */
    uint64_t region_bytes; /* from the file's start */
    uint64_t at;           /* where the next request reads ... */
    uint64_t buffer_at;    /* ... and where to */
    lvr_flash *flash;
    double best_bytes_per_s;
    lvr_flash_calibration *result;
} calibration;

/* ---- one stretch of reading ---- */

typedef struct stretch {
    uint64_t request_bytes, most_bytes, deadline_ns;
    uint32_t depth;
    uint64_t begin_ns, end_ns, bytes; /* what was read */
} stretch;

/* One request more than the depth is outstanding, so that the device has its next one in time. Requests go
 * through the whole buffer in turn, as through the engine's ring: one that fits the processor's caches would
 * flatter small requests. (Nobody looks at what is read: two may meet in one place.) */
static lvr_status submit_next(calibration *c, const stretch *s, lvr_error *err)
{
    if (c->at + s->request_bytes > c->region_bytes)
        c->at = 0;
    if (c->buffer_at + s->request_bytes > c->buffer_bytes)
        c->buffer_at = 0;
    const uint64_t offset = c->at;
    uint8_t *to = c->buffer + c->buffer_at;
    c->at += s->request_bytes;
    c->buffer_at += s->request_bytes;
    return lvr_flash_submit(c->flash, 0, offset, s->request_bytes, to, err);
}

static lvr_status check_cancel(const calibration *c, lvr_error *err)
{
    if (c->cancel && atomic_load(c->cancel))
        return lvr_fail(err, LVR_ERR_INTERRUPTED, "%s: interrupted while calibrating", c->path);
    return LVR_OK;
}

static lvr_status take_one(calibration *c, stretch *s, lvr_error *err)
{
    lvr_flash_completion done = {0};
    lvr_status status = check_cancel(c, err);
    if (status == LVR_OK)
        status = lvr_flash_wait(c->flash, &done, err);
    if (status != LVR_OK)
        return status;
    if (done.status != LVR_OK) {
        lvr_error why;
        lvr_flash_last_error(c->flash, &why);
        return lvr_fail(err, why.status, "%s", why.msg);
    }
    s->bytes += done.bytes;
    s->end_ns = lvr_max_u64(s->end_ns, done.t_end_ns);
    return LVR_OK;
}

static bool goes_on(const stretch *s, uint64_t submitted_bytes)
{
    return submitted_bytes < s->most_bytes && lvr_now_ns() < s->deadline_ns;
}

static lvr_status read_stretch(calibration *c, stretch *s, lvr_error *err)
{
    uint64_t submitted_bytes = 0, outstanding = 0;
    lvr_status status = check_cancel(c, err);
    s->begin_ns = s->end_ns = lvr_now_ns();
    for (; status == LVR_OK && outstanding <= s->depth && submitted_bytes < s->most_bytes; outstanding++) {
        status = submit_next(c, s, err);
        submitted_bytes += s->request_bytes;
    }
    while (status == LVR_OK && outstanding > 0) {
        status = take_one(c, s, err);
        outstanding--;
        if (status != LVR_OK || !goes_on(s, submitted_bytes))
            continue;
        status = submit_next(c, s, err);
        submitted_bytes += s->request_bytes;
        outstanding++;
    }
    return status;
}

static double rate_of(const stretch *s)
{
    return s->end_ns > s->begin_ns ? (double)s->bytes * 1e9 / (double)(s->end_ns - s->begin_ns) : 0;
}

static lvr_status open_reader(calibration *c, uint32_t depth, lvr_error *err)
{
    const lvr_flash_config config = {.path = c->path,
                                     .depth = depth,
                                     .max_outstanding = MAX_DEPTH + 1,
                                     .buffer = c->unregistered ? NULL : c->buffer,
                                     .buffer_bytes = c->buffer_bytes};
    return lvr_flash_open(&config, &c->flash, err);
}

static void close_reader(calibration *c)
{
    lvr_flash_stats stats;
    lvr_flash_get_stats(c->flash, &stats);
    c->result->direct = c->result->direct && stats.direct;
    snprintf(c->result->engine, sizeof c->result->engine, "%s", stats.engine_name);
    c->unregistered = !stats.registered_buffer;
    lvr_flash_close(c->flash);
    c->flash = NULL;
}

/* ---- all of them ---- */

/* The part that every cell is going to read: as much as a moment suffices for. */
static lvr_status read_first(calibration *c, uint64_t file_bytes, lvr_error *err)
{
    const uint64_t aligned = file_bytes / LVR_FLASH_ALIGN * LVR_FLASH_ALIGN;
    c->region_bytes = lvr_min_u64(aligned, REGION_BYTES);
    stretch s = {.request_bytes = c->region_bytes < FIRST_BYTES ? sizes[0] : FIRST_BYTES,
                 .depth = FIRST_DEPTH,
                 .deadline_ns = lvr_now_ns() + REGION_NS};
    s.most_bytes = c->region_bytes / s.request_bytes * s.request_bytes;
    lvr_status status = open_reader(c, s.depth, err);
    if (status != LVR_OK)
        return status;
    status = read_stretch(c, &s, err);
    close_reader(c);
    const uint64_t least = lvr_min_u64(sizes[N_SIZES - 1], c->region_bytes);
    c->region_bytes = lvr_max_u64(s.bytes, least);
    c->result->first_bytes_per_s = c->best_bytes_per_s = rate_of(&s);
    return status;
}

/* A cell's result, made on its first round. NULL: it is left out. */
static lvr_calibration_cell *find_cell(calibration *c, uint64_t request_bytes, uint32_t depth, uint32_t round)
{
    lvr_flash_calibration *r = c->result;
    for (uint32_t i = 0; i < r->n_cells; i++)
        if (r->cells[i].request_bytes == request_bytes && r->cells[i].depth == depth)
            return &r->cells[i];
    const double fill_ns = (double)request_bytes * depth * 1e9 / c->best_bytes_per_s;
    const bool smallest = request_bytes == sizes[0] && depth == depths[0];
    if (round > 0 || request_bytes > c->region_bytes || (fill_ns > LONGEST_FILL_NS && !smallest))
        return NULL;
    lvr_calibration_cell *cell = &r->cells[r->n_cells++];
    *cell = (lvr_calibration_cell){.request_bytes = request_bytes, .depth = depth};
    return cell;
}

static lvr_status measure_cell(calibration *c, lvr_calibration_cell *cell, lvr_error *err)
{
    stretch s = {.request_bytes = cell->request_bytes,
                 .depth = cell->depth,
                 .most_bytes = UINT64_MAX,
                 .deadline_ns = lvr_now_ns() + CELL_NS};
    const lvr_status status = read_stretch(c, &s, err);
    if (status != LVR_OK)
        return status;
    const double rate = rate_of(&s);
    cell->bytes_per_s = fmax(rate, cell->bytes_per_s);
    c->best_bytes_per_s = fmax(rate, c->best_bytes_per_s);
    return LVR_OK;
}

static lvr_status measure_depth(calibration *c, uint32_t depth, uint32_t round, lvr_error *err)
{
    lvr_status status = open_reader(c, depth, err);
    if (status != LVR_OK)
        return status;
    for (size_t i = 0; i < N_SIZES && status == LVR_OK; i++) {
        lvr_calibration_cell *cell = find_cell(c, sizes[i], depth, round);
        if (cell)
            status = measure_cell(c, cell, err);
    }
    close_reader(c);
    return status;
}

static lvr_status measure(calibration *c, uint64_t file_bytes, lvr_error *err)
{
    lvr_status status = read_first(c, file_bytes, err);
    for (uint32_t round = 0; round < N_ROUNDS; round++)
        for (size_t d = 0; d < N_DEPTHS && status == LVR_OK; d++)
            status = measure_depth(c, depths[d], round, err);
    return status;
}

/* ---- the result ---- */

static int by_size_and_depth(const lvr_calibration_cell *a, const lvr_calibration_cell *b)
{
    if (a->request_bytes != b->request_bytes)
        return a->request_bytes < b->request_bytes ? -1 : 1;
    return a->depth < b->depth ? -1 : a->depth > b->depth;
}

static void sort_cells(lvr_flash_calibration *r)
{
    for (uint32_t i = 1; i < r->n_cells; i++)
        for (uint32_t k = i; k > 0 && by_size_and_depth(&r->cells[k], &r->cells[k - 1]) < 0; k--) {
            const lvr_calibration_cell moved = r->cells[k];
            r->cells[k] = r->cells[k - 1];
            r->cells[k - 1] = moved;
        }
}

static bool is_smaller(const lvr_calibration_cell *a, const lvr_calibration_cell *b)
{
    const uint64_t in_flight_a = a->request_bytes * a->depth, in_flight_b = b->request_bytes * b->depth;
    return in_flight_a != in_flight_b ? in_flight_a < in_flight_b : a->depth < b->depth;
}

void lvr_flash_calibration_choose(lvr_flash_calibration *c)
{
    double best = 0;
    const lvr_calibration_cell *choice = NULL;
    for (uint32_t i = 0; i < c->n_cells; i++)
        best = fmax(best, c->cells[i].bytes_per_s);
    for (uint32_t i = 0; i < c->n_cells; i++)
        if (c->cells[i].bytes_per_s >= GOOD_SHARE * best && (!choice || is_smaller(&c->cells[i], choice)))
            choice = &c->cells[i];
    c->request_bytes = choice->request_bytes;
    c->depth = choice->depth;
    c->bytes_per_s = choice->bytes_per_s;
}

static void sign(lvr_flash_calibration *r)
{
    struct utsname system;
    const time_t now = (time_t)(lvr_realtime_ns() / 1000000000u);
    struct tm utc;
    if (uname(&system) == 0)
        snprintf(r->kernel, sizeof r->kernel, "%s", system.release);
    if (gmtime_r(&now, &utc))
        strftime(r->date, sizeof r->date, "%Y-%m-%dT%H:%M:%SZ", &utc);
}

static lvr_status find_file_bytes(const char *path, uint64_t *ret, lvr_error *err)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return lvr_fail_errno(err, errno, "%s: cannot open", path);
    if (!S_ISREG(st.st_mode))
        return lvr_fail(err, LVR_ERR_USAGE, "%s: expected a regular file to calibrate with", path);
    if ((uint64_t)st.st_size < LVR_CALIBRATION_MIN_BYTES)
        return lvr_fail(err, LVR_ERR_USAGE,
                        "%s: expected a file of at least %" PRIu64 " bytes to calibrate with, found %" PRIu64
                        "; give a larger one, e.g. a model",
                        path, LVR_CALIBRATION_MIN_BYTES, (uint64_t)st.st_size);
    *ret = (uint64_t)st.st_size;
    return LVR_OK;
}

lvr_status lvr_flash_calibrate(const char *path, const atomic_bool *cancel, lvr_flash_calibration *ret,
                               lvr_error *err)
{
    lvr_flash_calibration result = {.direct = true};
    calibration c = {.path = path,
                     .cancel = cancel,
                     .buffer_bytes = sizes[N_SIZES - 1] * (MAX_DEPTH + 1),
                     .result = &result};
    uint64_t file_bytes = 0;
    lvr_status status = find_file_bytes(path, &file_bytes, err);
    if (status != LVR_OK)
        return status;
    c.buffer = lvr_huge_alloc(c.buffer_bytes);
    if (!c.buffer)
        return lvr_fail(err, LVR_ERR_NOMEM, "out of memory for %" PRIu64 " bytes to calibrate with",
                        c.buffer_bytes);
    status = measure(&c, file_bytes, err);
    lvr_huge_free(c.buffer, c.buffer_bytes);
    if (status != LVR_OK)
        return status;
    sort_cells(&result);
    lvr_flash_calibration_choose(&result);
    sign(&result);
    *ret = result;
    return LVR_OK;
}
