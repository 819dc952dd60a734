/*
 * The staging ring at any size, on the real reader: from one slot to more slots than layers, slices from 4
 * KiB to 16 MiB, depths from 1 to 16, serial and pipelined, whatever is resident. Each run gives the same
 * tokens; every single pass consumes exactly what is not resident (INV-BYTES); and its trace shows that no
 * more layers than the ring has slots were ever staged or being read (ROUND-RING).
 */
#include "tests/unit/decode_rig.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_LAYERS 5u
#define N_REQUESTS 2u
#define N_PREDICT 8u

static const char *const policies[] = {"ar", "chain", "lever"};
static const uint32_t rings[] = {1, 2, 3, 4, N_LAYERS, 8, 3 * N_LAYERS + 1};
static const uint64_t slices[] = {4096, 8192, 20480, 65536, 1u << 20, 16u << 20};
static const uint32_t depths[] = {1, 2, 3, 4, 8, 16};
#define COUNT(a) (sizeof(a) / sizeof(a)[0])

/* Which layers stay. */
static const struct residents {
    const char *name;
    bool layer[N_LAYERS];
} residents[] = {
    {"none", {0}},
    {"first", {1, 1}},
    {"last", {0, 0, 0, 1, 1}},
    {"spread", {1, 0, 1}},
    {"all but one", {1, 1, 1, 0, 1}},
};

/* ---- what a trace says ---- */

struct trace_rows {
    lvr_rec_round *rounds;
    lvr_rec_flash *reads;
    lvr_rec_kernel *kernels;
    uint64_t n_rounds, n_reads, n_kernels;
};

static void *read_stream(lvr_trace *t, lvr_stream stream, uint64_t *ret_n)
{
    void *records = NULL;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_trace_read_all(t, stream, &records, ret_n, &err), LVR_OK, "%s", err.msg);
    return records;
}

static void load_rows(const char *path, struct trace_rows *ret)
{
    lvr_trace *t = NULL;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_trace_open(path, &t, &err), LVR_OK, "%s", err.msg);
    ret->rounds = read_stream(t, LVR_STREAM_ROUNDS, &ret->n_rounds);
    ret->reads = read_stream(t, LVR_STREAM_FLASH, &ret->n_reads);
    ret->kernels = read_stream(t, LVR_STREAM_KERNELS, &ret->n_kernels);
    lvr_trace_close(t);
}

static void free_rows(const struct trace_rows *rows)
{
    free(rows->rounds);
    free(rows->reads);
    free(rows->kernels);
}

/* INV-BYTES, pass by pass; returns the bytes that no pass consumed. */
static uint64_t check_bytes(const struct trace_rows *rows, uint64_t per_pass, const char *what)
{
    uint64_t *bytes = calloc(rows->n_rounds, sizeof bytes[0]), unconsumed = 0;
    cr_assert(bytes);
    for (uint64_t i = 0; i < rows->n_reads; i++) {
        const lvr_rec_flash *read = &rows->reads[i];
        if (read->round == UINT64_MAX) {
            unconsumed += read->bytes;
            continue;
        }
        cr_assert_lt(read->round, rows->n_rounds, "%s", what);
        bytes[read->round] += read->bytes;
    }
    for (uint64_t r = 0; r < rows->n_rounds; r++)
        cr_assert_eq(bytes[r], per_pass, "%s: pass %" PRIu64 " consumed %" PRIu64 " of %" PRIu64 " bytes",
                     what, r, bytes[r], per_pass);
    free(bytes);
    return unconsumed;
}

/* When the layer was computed whose weights a read brought: its slot is free from then on. */
static uint64_t freed_at(const struct trace_rows *rows, const lvr_rec_flash *read)
{
    for (uint64_t i = 0; read->round != UINT64_MAX && i < rows->n_kernels; i++) {
        const lvr_rec_kernel *k = &rows->kernels[i];
        if (k->model == 0 && k->op == LVR_OP_LAYER && k->round == read->round && k->layer == read->layer)
            return k->t_end_ns;
    }
    return UINT64_MAX;
}

/* Layers that occupy a slot when this one begins to, itself included. A layer's first slice is submitted
 * first. */
static uint32_t staged_with(const struct trace_rows *rows, const uint64_t *freed, uint64_t at_read)
{
    uint32_t n = 0;
    const uint64_t t = rows->reads[at_read].t_submit_ns;
    for (uint64_t i = 0; i < rows->n_reads; i++)
        n += rows->reads[i].slice == 0 && rows->reads[i].t_submit_ns <= t && freed[i] > t;
    return n;
}

/* Returns the most layers that were staged at once. */
static uint32_t most_staged(const struct trace_rows *rows)
{
    uint32_t most = 0;
    uint64_t *freed = calloc(rows->n_reads, sizeof freed[0]);
    cr_assert(freed);
    for (uint64_t i = 0; i < rows->n_reads; i++)
        if (rows->reads[i].slice == 0)
            freed[i] = freed_at(rows, &rows->reads[i]);
    for (uint64_t i = 0; i < rows->n_reads; i++) {
        const uint32_t n = rows->reads[i].slice == 0 ? staged_with(rows, freed, i) : 0;
        most = n > most ? n : most;
    }
    free(freed);
    return most;
}

/* ---- runs ---- */

static void record(const lvr_session_config *c, const char *path, const struct decode_output *expected,
                   uint64_t *ret_per_pass, uint64_t *ret_ring_bytes, const char *what)
{
    lvr_trace_meta meta;
    lvr_trace_writer *w = NULL;
    lvr_error err = LVR_ERROR_INIT;
    lvr_session *s = decode_open(c);
    const lvr_geometry *g = lvr_session_geometry(s);
    *ret_per_pass = lvr_geometry_stream_bytes(g);
    *ret_ring_bytes = lvr_session_parts(s)->ring_bytes;
    cr_assert_eq(lvr_session_trace_meta(s, N_PREDICT, &meta, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_trace_writer_open(path, &meta, true, &w, &err), LVR_OK, "%s", err.msg);
    free(meta.config_yaml);
    cr_assert_eq(lvr_session_set_trace(s, w, &err), LVR_OK, "%s", err.msg);
    for (uint32_t r = 0; r < N_REQUESTS; r++) {
        struct decode_output got;
        decode_generate(s, r, N_PREDICT, &got);
        decode_same(&expected[r], &got, what);
        cr_assert_leq(lvr_session_run_ahead_bytes(s), c->io_mode == LVR_IO_SERIAL ? 0 : *ret_ring_bytes,
                      "%s: run-ahead", what);
    }
    lvr_session_free(s);
    cr_assert_eq(lvr_trace_writer_close(w, true, &err), LVR_OK, "%s", err.msg);
}

static void check_run(const lvr_session_config *c, const char *path, const struct decode_output *expected,
                      const char *what)
{
    struct trace_rows rows;
    uint64_t per_pass = 0, ring_bytes = 0;
    const bool serial = c->io_mode == LVR_IO_SERIAL;
    record(c, path, expected, &per_pass, &ring_bytes, what);
    load_rows(path, &rows);
    const uint64_t unconsumed = check_bytes(&rows, per_pass, what);
    const uint32_t most = most_staged(&rows), slots = c->geometry->ring_slots;
    cr_assert_leq(unconsumed, serial ? 0 : ring_bytes, "%s: %" PRIu64 " bytes in vain", what, unconsumed);
    cr_assert_leq(most, serial ? 1 : slots, "%s: %u layers staged in %u slots", what, most, slots);
    if (!serial)
        cr_assert_eq(most, slots, "%s: only %u of %u slots were ever in use", what, most, slots);
    free_rows(&rows);
}

/* The schedule as a policy file would give it: that way any choice of resident layers can be had. */
static void geometry_of(const lvr_session_config *c, lvr_geometry *ret)
{
    lvr_session *s = decode_open(c);
    *ret = *lvr_session_geometry(s);
    lvr_session_free(s);
}

struct sweep {
    struct decode_pair pair;
    struct decode_output expected[N_REQUESTS];
    lvr_geometry geometry;
    char path[128];
};

static void sweep_make(struct sweep *s)
{
    lvr_policy ar;
    lvr_session_config c;
    decode_pair_make(&s->pair,
                     &(struct gguf_tiny){.type = LVR_F32, .n_layers = N_LAYERS, .seed = 17, .scale = 4},
                     LVR_Q8_0);
    decode_policy(&ar, "ar");
    decode_config(&c, &s->pair, &ar);
    c.ignore_eos = true;
    geometry_of(&c, &s->geometry);
    snprintf(s->path, sizeof s->path, "%s/sweep.h5", s->pair.target.dir);
    for (uint32_t r = 0; r < N_REQUESTS; r++)
        decode_once(&c, r, N_PREDICT, &s->expected[r]);
}

/* One ring size with every slice size, mode and choice of residents; depth, policy and back end vary along.
 */
static void check_ring(struct sweep *s, uint32_t slots, uint32_t *at)
{
    const bool uring = lvr_flash_probe_engine(LVR_FLASH_URING, NULL) == LVR_OK;
    for (size_t k = 0; k < COUNT(slices); k++)
        for (size_t m = 0; m < COUNT(residents); m++)
            for (int mode = 0; mode < 2; mode++, ++*at) {
                lvr_policy policy;
                lvr_session_config c;
                char what[160];
                decode_policy(&policy, policies[*at % COUNT(policies)]);
                decode_config(&c, &s->pair, &policy);
                s->geometry.ring_slots = slots;
                s->geometry.slice_bytes = slices[k];
                s->geometry.io_mode = mode ? LVR_IO_SERIAL : LVR_IO_PIPELINED;
                for (uint32_t l = 0; l < N_LAYERS; l++)
                    s->geometry.resident[l] = residents[m].layer[l];
                c.geometry = &s->geometry;
                c.io_mode = s->geometry.io_mode;
                c.ignore_eos = true;
                c.cpu_level = lvr_cpu_best();
                c.depth = depths[*at % COUNT(depths)];
                c.flash_engine = uring && *at / 7 % 2 ? LVR_FLASH_URING : LVR_FLASH_PREAD;
                snprintf(what, sizeof what,
                         "%s, %s, ring of %u, slices of %" PRIu64 ", depth %u, resident: %s",
                         policies[*at % COUNT(policies)], mode ? "serial" : "pipelined", slots, slices[k],
                         c.depth, residents[m].name);
                check_run(&c, s->path, s->expected, what);
            }
}

Test(ring_sweep, same_tokens_and_bytes_at_any_ring, .timeout = 300)
{
    struct sweep s;
    uint32_t at = 0;
    sweep_make(&s);
    for (size_t r = 0; r < COUNT(rings); r++)
        check_ring(&s, rings[r], &at);
    decode_pair_remove(&s.pair);
}

/* Beyond what the program can do: refused with the option to change, before anything is read. */
Test(ring_sweep, refusals)
{
    struct decode_pair pair;
    lvr_policy policy;
    lvr_session_config c;
    lvr_session *s = NULL;
    lvr_error err = LVR_ERROR_INIT;
    decode_pair_make(&pair, NULL, LVR_Q8_0);
    decode_policy(&policy, "ar");
    decode_config(&c, &pair, &policy);
    c.resident_fraction = 0;
    c.ring_slots = LVR_MAX_RING_SLOTS + 1;
    cr_assert_eq(lvr_session_new(&c, &s, &err), LVR_ERR_CONFIG);
    cr_assert(strstr(err.msg, "--ring"), "%s", err.msg);
    decode_config(&c, &pair, &policy);
    c.resident_fraction = 0;
    c.slice_bytes = LVR_MAX_SLICE_BYTES + 4096;
    cr_assert_eq(lvr_session_new(&c, &s, &err), LVR_ERR_CONFIG);
    cr_assert(strstr(err.msg, "--slice"), "%s", err.msg);
    cr_assert_null(s);
    decode_pair_remove(&pair);
}
