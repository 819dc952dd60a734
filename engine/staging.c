#include "engine/staging.h"

#include "common/clock.h"
#include "common/hash.h"
#include "common/hugemem.h"
#include "engine/flash/page_cache.h"
#include "engine/pack.h"
#include "engine/pack_cache.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct read_slot {
    lvr_staged_read read;
    uint64_t seq;
    uint32_t slot;
    bool in_flight, first_pass;
} read_slot;

typedef struct ring_slot {
    uint32_t n_done;        /* slices of the layer that is staged here */
    uint64_t bytes;         /* of its finished reads */
    lvr_staged_read *reads; /* [slices], finished ones, in order of completion */
    uint32_t *crcs;         /* [slices] of the finished ones, by slice */
} ring_slot;

struct lvr_staging {
    const lvr_pack *pack;
    const lvr_geometry *geometry;
    lvr_flash *flash;
    uint8_t *buffer;
    uint64_t buffer_bytes, slot_bytes;
    uint32_t n_slots, slices; /* slices: of the largest streamed layer */
    ring_slot *slots;
    read_slot *flights; /* [n_slots * slices] */
    lvr_staged_read *reads;
    uint32_t *crcs;
    uint32_t n_flights, n_in_flight;
    uint64_t busy_from_ns, last_end_ns;
    uint64_t submitted_bytes, consumed_bytes;
    uint64_t pass_bytes; /* of the streamed layers */
    uint32_t depth;
    lvr_staging_stats stats;
    double cached_before; /* share of them in the page cache when the ring was made; NaN: unknown */
    lvr_verify verify;
    bool verified[LVR_MAX_LAYERS]; /* the layer has matched its checksum before */
};

/* ---- Making and freeing ---- */

static lvr_status allocate(lvr_staging *st, lvr_error *err)
{
    const lvr_geometry *g = st->geometry;
    st->slot_bytes = lvr_geometry_largest_streamed(g);
    st->n_slots = g->ring_slots;
    const uint64_t slices = (st->slot_bytes + g->slice_bytes - 1) / g->slice_bytes;
    if (slices > UINT16_MAX || slices * st->n_slots > UINT16_MAX)
        return lvr_fail(err, LVR_ERR_CONFIG,
                        "slices of %" PRIu64 " bytes cut a layer of %" PRIu64 " into %" PRIu64
                        " reads, expected at most %u for the whole ring; use larger slices (--slice)",
                        g->slice_bytes, st->slot_bytes, slices, UINT16_MAX);
    st->slices = (uint32_t)slices;
    st->n_flights = st->slices * st->n_slots;
    if (__builtin_mul_overflow(st->slot_bytes, st->n_slots, &st->buffer_bytes))
        return lvr_fail(err, LVR_ERR_NOMEM, "a staging ring of %u slots of %" PRIu64 " bytes is too large",
                        st->n_slots, st->slot_bytes);
    st->buffer = lvr_huge_alloc(st->buffer_bytes);
    st->slots = calloc(st->n_slots, sizeof *st->slots);
    st->flights = calloc(st->n_flights, sizeof *st->flights);
    st->reads = calloc(st->n_flights, sizeof *st->reads);
    st->crcs = calloc(st->n_flights, sizeof *st->crcs);
    if (!st->buffer || !st->slots || !st->flights || !st->reads || !st->crcs)
        return lvr_fail(err, LVR_ERR_NOMEM, "out of memory for a staging ring of %" PRIu64 " bytes",
                        st->buffer_bytes);
    for (uint32_t i = 0; i < st->n_slots; i++) {
        st->slots[i].reads = st->reads + (size_t)i * st->slices;
        st->slots[i].crcs = st->crcs + (size_t)i * st->slices;
    }
    return LVR_OK;
}

/* Of the streamed layers; NaN where the system does not tell. */
static double cached_share(const lvr_staging *st)
{
    const lvr_geometry *g = st->geometry;
    double bytes = 0;
    for (uint32_t l = 0; l < g->n_layers; l++) {
        double share = 0;
        if (g->resident[l])
            continue;
        if (lvr_page_cache_share(lvr_pack_path(st->pack), lvr_pack_layer_offset(st->pack, l),
                                 g->layer_bytes[l], &share, NULL) != LVR_OK)
            return NAN;
        bytes += share * (double)g->layer_bytes[l];
    }
    return bytes / (double)st->pass_bytes;
}

static lvr_status open_flash(lvr_staging *st, const lvr_staging_config *c, lvr_error *err)
{
    const lvr_flash_config flash = {
        .path = lvr_pack_path(c->pack),
        .engine = c->engine,
        .buffered = c->buffered,
        .depth = c->depth,
        .max_outstanding = st->n_flights,
        .buffer = st->buffer,
        .buffer_bytes = st->buffer_bytes,
        .checksum = true,
        .emulate = c->emulate,
        .emulated = c->emulated,
        .faults = c->faults,
    };
    return lvr_flash_open(&flash, &st->flash, err);
}

lvr_status lvr_staging_new(const lvr_staging_config *config, lvr_staging **ret, lvr_error *err)
{
    lvr_staging *st = calloc(1, sizeof *st);
    if (!st)
        return lvr_fail(err, LVR_ERR_NOMEM, "out of memory for the staging ring");
    st->pack = config->pack;
    st->geometry = config->geometry;
    st->pass_bytes = lvr_geometry_stream_bytes(config->geometry);
    st->verify = config->verify;
    st->depth = config->depth;
    lvr_status status = allocate(st, err);
    if (status == LVR_OK)
        status = open_flash(st, config, err);
    if (status != LVR_OK) {
        lvr_staging_free(st);
        return status;
    }
    st->cached_before = cached_share(st);
    *ret = st;
    return LVR_OK;
}

void lvr_staging_free(lvr_staging *st)
{
    if (!st)
        return;
    if (st->flash)
        lvr_flash_close(st->flash); /* before its buffers go */
    lvr_huge_free(st->buffer, st->buffer_bytes);
    free(st->slots);
    free(st->flights);
    free(st->reads);
    free(st->crcs);
    free(st);
}

/* ---- Reading ---- */

static read_slot *free_flight(lvr_staging *st)
{
    for (uint32_t i = 0; i < st->n_flights; i++)
        if (!st->flights[i].in_flight)
            return &st->flights[i];
    return NULL;
}

static read_slot *find_flight(lvr_staging *st, uint64_t seq)
{
    for (uint32_t i = 0; i < st->n_flights; i++)
        if (st->flights[i].in_flight && st->flights[i].seq == seq)
            return &st->flights[i];
    return NULL;
}

/* Bytes of a slice of the layer, 0 if it has no such slice. */
static uint64_t bytes_of_slice(const lvr_staging *st, uint32_t layer, uint32_t slice)
{
    const uint64_t layer_bytes = st->geometry->layer_bytes[layer], slice_bytes = st->geometry->slice_bytes;
    const uint64_t offset = slice * slice_bytes;
    if (offset >= layer_bytes)
        return 0;
    return layer_bytes - offset < slice_bytes ? layer_bytes - offset : slice_bytes;
}

static bool fits(const lvr_staging *st, const lvr_action *a)
{
    if (a->read.slot >= st->n_slots || a->read.layer >= st->geometry->n_layers ||
        st->geometry->resident[a->read.layer])
        return false;
    return a->read.bytes != 0 && a->read.bytes == bytes_of_slice(st, a->read.layer, a->read.slice) &&
           a->read.offset == a->read.slice * st->geometry->slice_bytes;
}

static bool is_checked(const lvr_staging *st, uint32_t layer)
{
    return st->verify == LVR_VERIFY_ALWAYS || !st->verified[layer];
}

lvr_status lvr_staging_submit(lvr_staging *st, const lvr_action *a, lvr_error *err)
{
    read_slot *flight = free_flight(st);
    if (!fits(st, a) || !flight)
        return lvr_fail(err, LVR_ERR_INVARIANT,
                        "read %" PRIu64 " of layer %u, %" PRIu64 " bytes at %" PRIu64
                        " into slot %u does not fit the ring",
                        a->read.seq, a->read.layer, a->read.bytes, a->read.offset, a->read.slot);
    uint8_t *to = st->buffer + a->read.slot * st->slot_bytes + a->read.offset;
    const uint64_t from = lvr_pack_layer_offset(st->pack, a->read.layer) + a->read.offset;
    const uint64_t now = lvr_now_ns();
    lvr_flash_set_checksum(st->flash, is_checked(st, a->read.layer));
    const lvr_status status = lvr_flash_submit(st->flash, a->read.seq, from, a->read.bytes, to, err);
    if (status != LVR_OK)
        return status;
    *flight = (read_slot){
        .read = {.round = a->read.round, .layer = a->read.layer, .slice = a->read.slice},
        .seq = a->read.seq,
        .slot = a->read.slot,
        .in_flight = true,
        .first_pass = st->submitted_bytes < st->pass_bytes,
    };
    st->submitted_bytes += a->read.bytes;
    if (st->n_in_flight++ == 0)
        st->busy_from_ns = now;
    return LVR_OK;
}

/* Of all reads until `t_ns`, when one has just ended. */
static uint64_t busy_until(const lvr_staging *st, uint64_t t_ns)
{
    const bool open = st->n_in_flight > 0 && t_ns > st->busy_from_ns;
    return st->stats.busy_ns + (open ? t_ns - st->busy_from_ns : 0);
}

static void count_bytes(lvr_staging *st, uint64_t bytes, bool first_pass)
{
    st->stats.bytes += bytes;
    if (!first_pass)
        return;
    st->stats.first_pass_bytes += bytes;
    if (st->stats.first_pass_bytes == st->pass_bytes)
        st->stats.first_pass_busy_ns = busy_until(st, st->last_end_ns);
}

static void count(lvr_staging *st, const lvr_flash_completion *done, bool first_pass)
{
    st->stats.late += done->late;
    if (done->t_end_ns > st->last_end_ns)
        st->last_end_ns = done->t_end_ns;
    if (done->status == LVR_OK)
        count_bytes(st, done->bytes, first_pass);
    if (--st->n_in_flight == 0 && st->last_end_ns > st->busy_from_ns)
        st->stats.busy_ns += st->last_end_ns - st->busy_from_ns;
}

static lvr_status fail_read(const lvr_staging *st, const read_slot *flight, lvr_error *err)
{
    lvr_error cause;
    lvr_flash_last_error(st->flash, &cause);
    lvr_fail(err, flight->read.done.status, "%s: layer %u, slice %u: %s", lvr_pack_path(st->pack),
             flight->read.layer, flight->read.slice, cause.msg);
    return flight->read.done.status;
}

/* Of the whole layer, from its slices'. */
static uint32_t crc_of_layer(const lvr_staging *st, const ring_slot *slot, uint32_t layer)
{
    uint32_t crc = 0;
    for (uint32_t i = 0; bytes_of_slice(st, layer, i) != 0; i++)
        crc = lvr_crc32c_combine(crc, slot->crcs[i], bytes_of_slice(st, layer, i));
    return crc;
}

static lvr_status fail_checksum(const lvr_staging *st, uint32_t layer, uint32_t crc, lvr_error *err)
{
    const char *path = lvr_pack_path(st->pack);
    const uint32_t expected = lvr_pack_layer_crc(st->pack, layer);
    if (st->verified[layer])
        return lvr_fail(
            err, LVR_ERR_FORMAT,
            "%s: layer %u is damaged: expected CRC-32C %08x, found %08x, though it matched when it "
            "was read before in this run: the file has been written to, or the device or memory "
            "fails (see dmesg). To mend: %s",
            path, layer, expected, crc, lvr_pack_remedy(path));
    return lvr_fail(err, LVR_ERR_FORMAT, "%s: layer %u is damaged: expected CRC-32C %08x, found %08x; %s",
                    path, layer, expected, crc, lvr_pack_remedy(path));
}

/* A layer that is not what was packed is found before anything is computed with it. */
static lvr_status verify(lvr_staging *st, const ring_slot *slot, uint32_t layer, lvr_error *err)
{
    if (slot->bytes < st->geometry->layer_bytes[layer] || !is_checked(st, layer))
        return LVR_OK;
    const uint32_t crc = crc_of_layer(st, slot, layer);
    if (crc != lvr_pack_layer_crc(st->pack, layer))
        return fail_checksum(st, layer, crc, err);
    st->verified[layer] = true;
    return LVR_OK;
}

static lvr_status land(lvr_staging *st, const lvr_flash_completion *done, lvr_error *err)
{
    read_slot *flight = find_flight(st, done->seq);
    if (!flight)
        return lvr_fail(err, LVR_ERR_INVARIANT, "read %" PRIu64 " has completed, but was never submitted",
                        done->seq);
    flight->in_flight = false;
    flight->read.done = *done;
    count(st, done, flight->first_pass);
    if (done->status != LVR_OK)
        return fail_read(st, flight, err);
    ring_slot *slot = &st->slots[flight->slot];
    if (slot->n_done == st->slices)
        return lvr_fail(err, LVR_ERR_INVARIANT, "slot %u got more than %u slices", flight->slot, st->slices);
    slot->reads[slot->n_done++] = flight->read;
    slot->crcs[flight->read.slice] = done->crc;
    slot->bytes += done->bytes;
    return verify(st, slot, flight->read.layer, err);
}

lvr_status lvr_staging_collect(lvr_staging *st, bool block, uint64_t *ret_seq, bool *ret_got, lvr_error *err)
{
    lvr_flash_completion done;
    bool got = lvr_flash_poll(st->flash, &done);
    if (!got && block) {
        const uint64_t t0 = lvr_now_ns();
        const lvr_status status = lvr_flash_wait(st->flash, &done, err);
        if (status != LVR_OK)
            return status;
        st->stats.wait_ns += lvr_now_ns() - t0;
        got = true;
    }
    if (!got) {
        *ret_got = false;
        return LVR_OK;
    }
    const lvr_status status = land(st, &done, err);
    if (status != LVR_OK)
        return status;
    *ret_seq = done.seq;
    *ret_got = true;
    return LVR_OK;
}

const uint8_t *lvr_staging_slot(const lvr_staging *st, uint32_t slot)
{
    return st->buffer + slot * st->slot_bytes;
}

/* ---- What the reads did ---- */

uint64_t lvr_staging_consume(lvr_staging *st, uint32_t slot_index, lvr_staged_fn fn, void *user)
{
    ring_slot *slot = &st->slots[slot_index];
    const uint64_t bytes = slot->bytes;
    for (uint32_t i = 0; i < slot->n_done; i++)
        fn(user, &slot->reads[i], true);
    slot->n_done = 0;
    slot->bytes = 0;
    st->consumed_bytes += bytes;
    return bytes;
}

void lvr_staging_abandon(lvr_staging *st, lvr_staged_fn fn, void *user)
{
    lvr_error ignored; /* nobody waits for these reads any more */
    lvr_flash_completion done;
    while (st->n_in_flight > 0 && lvr_flash_wait(st->flash, &done, &ignored) == LVR_OK)
        if (land(st, &done, &ignored) == LVR_ERR_INVARIANT)
            break;
    for (uint32_t s = 0; s < st->n_slots; s++) {
        for (uint32_t i = 0; i < st->slots[s].n_done; i++)
            fn(user, &st->slots[s].reads[i], false);
        st->slots[s].n_done = 0;
    }
}

uint64_t lvr_staging_unconsumed_bytes(const lvr_staging *st)
{
    return st->submitted_bytes - st->consumed_bytes;
}

lvr_staging_stats lvr_staging_get_stats(const lvr_staging *st)
{
    lvr_staging_stats stats = st->stats;
    stats.busy_ns = busy_until(st, lvr_now_ns());
    if (stats.first_pass_bytes < st->pass_bytes)
        stats.first_pass_busy_ns = stats.busy_ns;
    return stats;
}

void lvr_staging_flash_stats(const lvr_staging *st, lvr_flash_stats *ret)
{
    lvr_flash_get_stats(st->flash, ret);
}

static double rate(uint64_t bytes, uint64_t ns)
{
    return bytes > 0 && ns > 0 ? (double)bytes * 1e9 / (double)ns : NAN;
}

void lvr_staging_io_report(const lvr_staging *st, lvr_io_report *ret)
{
    const lvr_staging_stats s = lvr_staging_get_stats(st);
    const uint64_t later_bytes = s.bytes - s.first_pass_bytes;
    const uint64_t later_ns = s.busy_ns - s.first_pass_busy_ns;
    lvr_flash_stats flash;
    lvr_flash_get_stats(st->flash, &flash);
    *ret = (lvr_io_report){
        .engine = flash.engine_name,
        .depth = st->depth,
        .registered_buffer = flash.registered_buffer,
        .registered_files = flash.registered_files,
        .huge_pages = lvr_huge_share(st->buffer, st->buffer_bytes),
        .path = lvr_read_path_of(flash.direct, st->cached_before),
        .cached_before = st->cached_before,
        .cached_after = cached_share(st),
        .first_pass_bytes = s.first_pass_bytes,
        .first_pass_busy_ns = s.first_pass_busy_ns,
        .later_pass_bytes = later_bytes,
        .later_pass_busy_ns = later_ns,
        .first_pass_bytes_per_s = rate(s.first_pass_bytes, s.first_pass_busy_ns),
        .later_pass_bytes_per_s = rate(later_bytes, later_ns),
        .checked = st->verify == LVR_VERIFY_ALWAYS,
        .cpu_ns = flash.cpu_ns,
    };
}
