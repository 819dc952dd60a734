/* Measuring through the reader itself: what the engine will get, not what another tool would. */
#include "engine/flash/flash.h"

#include "common/clock.h"
#include "common/hugemem.h"
#include "common/rng.h"
#include "common/stats.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define FIRST_SAMPLES 1024u
#define WARM_NS 200000000u /* how long warm passes go on, unless two take longer */
/* For finding a rate: sessions do so within their memory budget, before the ring is made. */
#define RATE_BUFFER_BYTES (UINT64_C(32) << 20)

/* Twice the depth is kept outstanding, so that the device has its next request before the consumer has woken
 * up. Nobody looks at what is read: requests may share a place. */
typedef struct pump {
    lvr_flash *flash;
    uint8_t *buffer;
    uint64_t buffer_bytes;
    uint32_t n_requests; /* outstanding */
    uint32_t n_places;   /* in the buffer */
    uint64_t request_bytes;
    const atomic_bool *cancel; /* NULL: nothing cancels it */
} pump;

/* most_bytes: of buffer, as far as one request fits. */
static lvr_status pump_open(const lvr_flash_config *config, uint64_t request_bytes, uint64_t most_bytes,
                            bool unregistered, pump *ret, lvr_error *err)
{
    if (request_bytes == 0 || request_bytes % LVR_FLASH_ALIGN)
        return lvr_fail(err, LVR_ERR_CONFIG,
                        "flash: expected requests of a multiple of %u bytes, found %" PRIu64, LVR_FLASH_ALIGN,
                        request_bytes);
    pump p = {.n_requests = 2 * config->depth, .n_places = 1, .request_bytes = request_bytes};
    while (p.n_places < p.n_requests && request_bytes <= most_bytes / (p.n_places + 1))
        p.n_places++;
    if (!__builtin_mul_overflow(request_bytes, p.n_places, &p.buffer_bytes))
        p.buffer = lvr_huge_alloc(p.buffer_bytes);
    if (!p.buffer)
        return lvr_fail(err, LVR_ERR_NOMEM, "flash: out of memory for %u buffers of %" PRIu64 " bytes",
                        p.n_places, request_bytes);
    lvr_flash_config own = *config;
    own.max_outstanding = p.n_requests;
    own.buffer = unregistered ? NULL : p.buffer;
    own.buffer_bytes = p.buffer_bytes;
    const lvr_status status = lvr_flash_open(&own, &p.flash, err);
    if (status != LVR_OK) {
        lvr_huge_free(p.buffer, p.buffer_bytes);
        return status;
    }
    *ret = p;
    return LVR_OK;
}

static void pump_close(pump *p)
{
    lvr_flash_close(p->flash);
    lvr_huge_free(p->buffer, p->buffer_bytes);
}

/* The number of a request is one that no outstanding request has, below n_requests: it is free again once the
 * request has been taken. */
static lvr_status pump_submit(pump *p, uint64_t number, uint64_t offset, lvr_error *err)
{
    return lvr_flash_submit(p->flash, number, offset, p->request_bytes,
                            p->buffer + number % p->n_places * p->request_bytes, err);
}

static lvr_status pump_wait(pump *p, lvr_flash_completion *ret, lvr_error *err)
{
    lvr_flash_completion c = {0};
    if (p->cancel && atomic_load_explicit(p->cancel, memory_order_relaxed))
        return lvr_fail(err, LVR_ERR_INTERRUPTED, "interrupted while measuring the flash");
    lvr_status status = lvr_flash_wait(p->flash, &c, err);
    if (status != LVR_OK)
        return status;
    if (c.status != LVR_OK) {
        lvr_error why;
        lvr_flash_last_error(p->flash, &why);
        return lvr_fail(err, why.status, "%s", why.msg);
    }
    *ret = c;
    return LVR_OK;
}

/* Rate from the first submission to the last delivered end. */
static double rate(uint64_t bytes, uint64_t begin_ns, uint64_t end_ns)
{
    return end_ns > begin_ns ? (double)bytes * 1e9 / (double)(end_ns - begin_ns) : NAN;
}

static lvr_status stream(pump *p, uint64_t offset, uint64_t n_requests, double *ret_bytes_per_s,
                         lvr_error *err)
{
    const uint64_t begin = lvr_now_ns();
    uint64_t end = begin, submitted = 0;
    lvr_status status = LVR_OK;
    for (; submitted < p->n_requests && submitted < n_requests && status == LVR_OK; submitted++)
        status = pump_submit(p, submitted, offset + submitted * p->request_bytes, err);
    for (uint64_t taken = 0; taken < n_requests && status == LVR_OK; taken++) {
        lvr_flash_completion c = {0};
        status = pump_wait(p, &c, err);
        if (status == LVR_OK && c.t_end_ns > end)
            end = c.t_end_ns;
        if (status != LVR_OK || submitted == n_requests)
            continue;
        status = pump_submit(p, c.seq, offset + submitted * p->request_bytes, err);
        submitted++;
    }
    if (status == LVR_OK)
        *ret_bytes_per_s = rate(n_requests * p->request_bytes, begin, end);
    return status;
}

/* One pass, or (warm) one to warm the device and then as many as fit into a moment: the best of them, since a
 * neighbour that holds the disk up for a few milliseconds says nothing about the device. */
static lvr_status read_rates(const lvr_flash_config *config, uint64_t offset, uint64_t bytes,
                             uint64_t request_bytes, bool warm, const atomic_bool *cancel, double *ret_rate,
                             bool *ret_direct, lvr_error *err)
{
    pump p;
    lvr_status status = pump_open(config, request_bytes, RATE_BUFFER_BYTES, false, &p, err);
    if (status != LVR_OK)
        return status;
    p.cancel = cancel;
    double best = 0;
    if (bytes < request_bytes)
        status =
            lvr_fail(err, LVR_ERR_CONFIG,
                     "%s: %" PRIu64 " bytes are less than one request of %" PRIu64 "; use smaller requests",
                     config->path, bytes, request_bytes);
    if (status == LVR_OK)
        status = stream(&p, offset, bytes / request_bytes, &best, err);
    const uint64_t t0 = lvr_now_ns();
    for (bool first = true; warm && status == LVR_OK && (first || lvr_now_ns() - t0 < WARM_NS);
         first = false) {
        double one = 0;
        status = stream(&p, offset, bytes / request_bytes, &one, err);
        if (first || one > best)
            best = one;
    }
    lvr_flash_stats stats;
    lvr_flash_get_stats(p.flash, &stats);
    pump_close(&p);
    if (status != LVR_OK)
        return status;
    *ret_rate = best;
    *ret_direct = stats.direct;
    return LVR_OK;
}

lvr_status lvr_flash_read_rate(const char *path, bool buffered, uint64_t offset, uint64_t bytes,
                               uint64_t request_bytes, uint32_t depth, double *ret_bytes_per_s,
                               bool *ret_direct, lvr_error *err)
{
    const lvr_flash_config config = {.path = path, .buffered = buffered, .depth = depth};
    return read_rates(&config, offset, bytes, request_bytes, false, NULL, ret_bytes_per_s, ret_direct, err);
}

lvr_status lvr_flash_warm_rate(const char *path, bool buffered, uint64_t offset, uint64_t bytes,
                               uint64_t request_bytes, uint32_t depth, const atomic_bool *cancel,
                               double *ret_bytes_per_s, lvr_error *err)
{
    const lvr_flash_config config = {.path = path, .buffered = buffered, .depth = depth};
    bool direct;
    return read_rates(&config, offset, bytes, request_bytes, true, cancel, ret_bytes_per_s, &direct, err);
}

lvr_status lvr_flash_check_emulation(const lvr_flash_params *preset, uint64_t request_bytes,
                                     double warm_bytes_per_s, lvr_error *err)
{
    const lvr_status status = lvr_flash_params_check(preset, err);
    if (status != LVR_OK)
        return status;
    const double wanted = lvr_flash_rate_bytes_per_s(preset, request_bytes);
    const double allowed = LVR_FLASH_MAX_EMULATED_SHARE * warm_bytes_per_s;
    if (wanted <= allowed)
        return LVR_OK;
    /* Two digits, rounded down, so that the value shown passes. */
    const double scale = floor(allowed / wanted * 100) / 100;
    char mend[64] = "";
    if (scale >= 0.01)
        snprintf(mend, sizeof mend, ", or scale this one with --emulate-scale %.2f", scale);
    return lvr_fail(
        err, LVR_ERR_CONFIG,
        "flash emulation: the preset reads %.3f GB/s in requests of %" PRIu64
        " bytes, but this file delivers %.3f GB/s warm, and only %.0f %% of that (%.3f GB/s) can be "
        "emulated honestly; use a slower preset (emulated-500, emulated-100)%s",
        wanted / 1e9, request_bytes, warm_bytes_per_s / 1e9, LVR_FLASH_MAX_EMULATED_SHARE * 100,
        allowed / 1e9, mend);
}

/* ---- one cell ---- */

typedef struct samples {
    double *ns;
    size_t n, cap;
} samples;

static bool samples_add(samples *s, double ns)
{
    if (s->n == s->cap) {
        const size_t cap = s->cap ? s->cap * 2 : FIRST_SAMPLES;
        double *grown = reallocarray(s->ns, cap, sizeof *grown);
        if (!grown)
            return false;
        s->ns = grown;
        s->cap = cap;
    }
    s->ns[s->n++] = ns;
    return true;
}

typedef struct cell {
    pump *p;
    lvr_rng rng;
    bool random;
    uint64_t n_blocks, next_block;
    uint64_t begin_ns, end_ns, deadline_ns, cpu_begin_ns;
    uint32_t outstanding;
    samples latency;
} cell;

static uint64_t choose_block(cell *c)
{
    if (c->random)
        return lvr_rng_below(&c->rng, c->n_blocks);
    return c->next_block++ % c->n_blocks;
}

static lvr_status cell_submit(cell *c, uint64_t number, lvr_error *err)
{
    const lvr_status status = pump_submit(c->p, number, choose_block(c) * c->p->request_bytes, err);
    c->outstanding += status == LVR_OK;
    return status;
}

static lvr_status cell_take(cell *c, lvr_error *err)
{
    lvr_flash_completion done = {0};
    const lvr_status status = pump_wait(c->p, &done, err);
    if (status != LVR_OK)
        return status;
    c->outstanding--;
    if (done.t_end_ns > c->end_ns)
        c->end_ns = done.t_end_ns;
    if (!samples_add(&c->latency, (double)(done.t_end_ns - done.t_start_ns)))
        return lvr_fail(err, LVR_ERR_NOMEM,
                        "flash bench: out of memory for %zu latencies; measure for a shorter time",
                        c->latency.n);
    return lvr_now_ns() < c->deadline_ns ? cell_submit(c, done.seq, err) : LVR_OK;
}

static lvr_status cell_run(cell *c, lvr_error *err)
{
    lvr_status status = LVR_OK;
    for (uint32_t i = 0; i < c->p->n_requests && status == LVR_OK; i++)
        status = cell_submit(c, i, err);
    while (status == LVR_OK && c->outstanding > 0)
        status = cell_take(c, err);
    return status;
}

static lvr_flash_bench cell_result(const cell *c)
{
    lvr_flash_stats stats;
    lvr_flash_get_stats(c->p->flash, &stats);
    const samples *s = &c->latency;
    const double cpu_ns = (double)(stats.cpu_ns - c->cpu_begin_ns);
    return (lvr_flash_bench){.bytes_per_s = rate(stats.bytes, c->begin_ns, c->end_ns),
                             .latency_ns_mean = lvr_mean(s->ns, s->n),
                             .latency_ns_p50 = lvr_quantile(s->ns, s->n, 0.5),
                             .latency_ns_p90 = lvr_quantile(s->ns, s->n, 0.9),
                             .latency_ns_p99 = lvr_quantile(s->ns, s->n, 0.99),
                             .n = s->n > UINT32_MAX ? UINT32_MAX : (uint32_t)s->n,
                             .direct = stats.direct,
                             .registered = stats.registered_buffer,
                             .cpu_share = cpu_ns / (double)(lvr_now_ns() - c->begin_ns)};
}

static void cell_begin(cell *c, uint64_t budget_ns)
{
    lvr_flash_stats stats;
    lvr_flash_get_stats(c->p->flash, &stats);
    c->cpu_begin_ns = stats.cpu_ns;
    lvr_rng_init(&c->rng, 0, "flash-bench");
    c->begin_ns = lvr_now_ns();
    c->deadline_ns = c->begin_ns + budget_ns;
}

lvr_status lvr_flash_bench_cell(const lvr_flash_config *config, const lvr_flash_load *load,
                                lvr_flash_bench *ret, lvr_error *err)
{
    pump p;
    lvr_status status = pump_open(config, load->request_bytes, UINT64_MAX, load->unregistered, &p, err);
    if (status != LVR_OK)
        return status;
    cell c = {.p = &p, .random = load->random, .n_blocks = load->file_bytes / load->request_bytes};
    cell_begin(&c, load->budget_ns);
    if (c.n_blocks == 0)
        status = lvr_fail(err, LVR_ERR_CONFIG,
                          "%s: %" PRIu64 " bytes are less than one request of %" PRIu64 "; use a larger file",
                          config->path, load->file_bytes, load->request_bytes);
    else
        status = cell_run(&c, err);
    if (status == LVR_OK)
        *ret = cell_result(&c);
    pump_close(&p);
    free(c.latency.ns);
    return status;
}
