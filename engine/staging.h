/*
 * The staging ring: slots that streamed layers are read into, and the reads on their way. It executes the
 * round machine's READ actions and keeps what each slot's reads did until the layer has been computed, so
 * that they can be attributed to the pass that consumed them. One thread.
 */
#ifndef LVR_ENGINE_STAGING_H
#define LVR_ENGINE_STAGING_H

#include "costmodel/core/round.h"
#include "engine/flash/flash.h"
#include "engine/flash/io_report.h"
#include "engine/pack.h"

typedef struct lvr_staging lvr_staging;

/* One finished read. */
typedef struct lvr_staged_read {
    uint64_t round; /* the pass that is to consume it */
    uint32_t layer, slice;
    lvr_flash_completion done;
} lvr_staged_read;

/* Called for every read: when its layer was computed (consumed), or at the end for what was read ahead in
 * vain. */
typedef void (*lvr_staged_fn)(void *user, const lvr_staged_read *read, bool consumed);

/* When a layer that has been read is compared with its checksum in the pack. */
typedef enum lvr_verify {
    LVR_VERIFY_ALWAYS, /* every time it is read: no damaged byte is ever computed with */
    LVR_VERIFY_FIRST,  /* the first time only */
} lvr_verify;

typedef struct lvr_staging_config {
    const lvr_pack *pack;         /* outlives the ring */
    const lvr_geometry *geometry; /* outlives the ring; at least one layer is streamed */
    lvr_flash_engine engine;
    bool buffered;
    uint32_t depth;
    lvr_verify verify;
    bool emulate;
    lvr_flash_params emulated;
    const lvr_flash_faults *faults; /* tests only; NULL: none */
} lvr_staging_config;

lvr_status lvr_staging_new(const lvr_staging_config *config, lvr_staging **ret, lvr_error *err);
void lvr_staging_free(lvr_staging *st); /* waits for reads in flight */

/* Starts the read of a READ action. */
lvr_status lvr_staging_submit(lvr_staging *st, const lvr_action *read, lvr_error *err);
/* Takes one finished read: its seq to ret_seq; *ret_got false if there is none. block: waits for one. A read
 * that failed is an error, and so is (LVR_ERR_FORMAT) the one that completes a layer whose bytes do not match
 * its checksum. */
lvr_status lvr_staging_collect(lvr_staging *st, bool block, uint64_t *ret_seq, bool *ret_got, lvr_error *err);
/* The weights in a slot, all of whose slices have been collected. */
const uint8_t *lvr_staging_slot(const lvr_staging *st, uint32_t slot);
/* The slot's layer has been computed: hands out its reads. Returns their bytes. */
uint64_t lvr_staging_consume(lvr_staging *st, uint32_t slot, lvr_staged_fn fn, void *user);
/* Waits for reads in flight and hands out all reads that nothing consumed. */
void lvr_staging_abandon(lvr_staging *st, lvr_staged_fn fn, void *user);

/* Bytes submitted for layers that have not been computed: staged or in flight. */
uint64_t lvr_staging_unconsumed_bytes(const lvr_staging *st);

typedef struct lvr_staging_stats {
    uint64_t bytes;   /* delivered */
    uint64_t busy_ns; /* at least one read in flight */
    uint64_t wait_ns; /* the caller was blocked in collect */
    uint64_t late;
    /* Of bytes and busy_ns: the first pass over the streamed layers. It lasts until the last of its reads has
     * ended; a few reads of the next pass are under way by then. */
    uint64_t first_pass_bytes, first_pass_busy_ns;
} lvr_staging_stats;
lvr_staging_stats lvr_staging_get_stats(const lvr_staging *st);
void lvr_staging_flash_stats(const lvr_staging *st, lvr_flash_stats *ret);
/* What the reads so far really were. Looks the streamed layers up in the page cache: some 20 ms per GB. */
void lvr_staging_io_report(const lvr_staging *st, lvr_io_report *ret);

#endif
