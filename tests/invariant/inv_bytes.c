/*
 * INV-BYTES: a pass reads exactly the non-resident aligned weight bytes, whatever the tree; run-ahead that
 * nothing consumes is at most the ring; and the kernel has counted as many bytes as the engine
 * (/proc/self/io).
 */
#include "common/fs.h"
#include "tests/unit/decode_rig.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Bytes this process caused to be fetched from storage: reads past the page cache count in full, whoever
 * issued them. */
static uint64_t storage_read_bytes(void)
{
    lvr_buf text = LVR_BUF_INIT;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_read_file("/proc/self/io", 1 << 16, &text, &err), LVR_OK, "%s", err.msg);
    const char *at = strstr(text.data, "\nread_bytes:");
    cr_assert(at);
    const uint64_t bytes = strtoull(at + strlen("\nread_bytes:"), NULL, 10);
    lvr_buf_free(&text);
    return bytes;
}

static uint64_t ring_bytes(const lvr_geometry *g)
{
    uint64_t largest = 0;
    for (uint32_t l = 0; l < g->n_layers; l++)
        if (!g->resident[l] && g->layer_bytes[l] > largest)
            largest = g->layer_bytes[l];
    return largest * g->ring_slots;
}

static uint64_t passes(const lvr_run_stats *st, uint32_t chunk)
{
    return st->rounds + (st->n_prompt - 1 + chunk - 1) / chunk;
}

static void check_session(const lvr_session_config *c)
{
    struct decode_output out;
    lvr_trace_device device;
    uint64_t consumed = 0;
    lvr_session *s = decode_open(c);
    const lvr_geometry *g = lvr_session_geometry(s);
    const uint64_t per_pass = lvr_geometry_stream_bytes(g), ring = ring_bytes(g),
                   before = storage_read_bytes();
    for (uint32_t r = 0; r < 2; r++) {
        decode_generate(s, r, 6, &out);
        cr_assert_eq(out.stats.bytes_read, passes(&out.stats, c->prefill_chunk) * per_pass,
                     "%s: %" PRIu64 " bytes in request %u", c->policy->ops->name, out.stats.bytes_read, r);
        cr_assert_leq(lvr_session_run_ahead_bytes(s), c->io_mode == LVR_IO_SERIAL ? 0 : ring);
        consumed += out.stats.bytes_read;
    }
    lvr_session_device(s, &device);
    lvr_session_free(s); /* waits for what was read ahead */
    const uint64_t counted = storage_read_bytes() - before;
    if (!device.direct)
        return;
    /* The kernel may also have paged in parts of this program meanwhile. */
    cr_assert_geq(counted, consumed, "%s: the kernel counted %" PRIu64, c->policy->ops->name, counted);
    cr_assert_leq(counted, consumed + ring + (1u << 20), "%s: the kernel counted %" PRIu64 " for %" PRIu64,
                  c->policy->ops->name, counted, consumed);
}

Test(inv_bytes, every_pass_reads_what_is_not_resident, .timeout = 120)
{
    static const char *const names[] = {"ar", "chain", "lever", "random"};
    struct decode_pair pair;
    lvr_policy policy;
    lvr_session_config c;
    decode_pair_make(&pair,
                     &(struct gguf_tiny){
                         .type = LVR_F32, .n_layers = 5, .d_model = 128, .d_ff = 192, .seed = 3, .scale = 4},
                     LVR_Q8_0);
    for (size_t p = 0; p < sizeof names / sizeof names[0]; p++) {
        decode_policy(&policy, names[p]);
        decode_config(&c, &pair, &policy);
        c.ignore_eos = true;
        c.cpu_level = lvr_cpu_best();
        c.slice_bytes = 65536;
        c.io_mode = p % 2 ? LVR_IO_SERIAL : LVR_IO_PIPELINED;
        for (int i = 0; i < 4; i++) {
            c.resident_fraction = i == 3 ? 0.4 : 0;
            c.ring_slots = 1 + (uint32_t)i;
            c.flash_engine = i % 2 ? LVR_FLASH_PREAD : LVR_FLASH_AUTO;
            check_session(&c);
        }
    }
    decode_pair_remove(&pair);
}
