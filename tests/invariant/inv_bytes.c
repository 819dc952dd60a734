/*
 * INV-BYTES: a pass reads exactly the non-resident aligned weight bytes, whatever the tree, the rows dropped
 * from it, the prompt's chunks and the way a text ends; run-ahead that nothing consumes is at most the ring;
 * and the kernel has counted as many bytes as the engine (/proc/self/io; skipped where that cannot be read).
 */
#include "common/fs.h"
#include "tests/unit/decode_rig.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char *const policies[] = {"ar", "chain", "lever", "random"};
static const lvr_flash_engine engines[] = {LVR_FLASH_URING, LVR_FLASH_PREAD};
#define COUNT(a) (sizeof(a) / sizeof(a)[0])

/* The kernel may page in parts of this program while it counts. */
#define PROGRAM_BYTES (1u << 20)

/* Bytes this process caused to be fetched from storage: reads past the page cache count in full, whoever
 * issued them. False: this kernel does not say. */
static bool storage_read_bytes(uint64_t *ret)
{
    lvr_buf text = LVR_BUF_INIT;
    const char *at = NULL;
    if (lvr_read_file("/proc/self/io", 1 << 16, &text, NULL) == LVR_OK && text.data)
        at = strstr(text.data, "\nread_bytes:");
    if (at)
        *ret = strtoull(at + strlen("\nread_bytes:"), NULL, 10);
    lvr_buf_free(&text);
    return at != NULL;
}

static void need_counters(void)
{
    uint64_t bytes;
    if (!storage_read_bytes(&bytes))
        cr_skip("/proc/self/io cannot be read here");
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

/* A session between two looks at the kernel's counter. */
struct counted {
    const lvr_session_config *config;
    lvr_session *session;
    uint64_t per_pass, ring, before, consumed;
    bool direct;
};

static void count_begin(struct counted *k, const lvr_session_config *c)
{
    *k = (struct counted){.config = c, .session = decode_open(c)};
    const lvr_geometry *g = lvr_session_geometry(k->session);
    k->per_pass = lvr_geometry_stream_bytes(g);
    k->ring = ring_bytes(g);
    cr_assert_gt(k->per_pass, 0);
    cr_assert(storage_read_bytes(&k->before));
}

/* One request: its passes consumed their bytes, and no more is ahead than the ring holds. */
static void count_request(struct counted *k, uint64_t request, uint32_t n_predict, struct decode_output *ret)
{
    const lvr_session_config *c = k->config;
    decode_generate(k->session, request, n_predict, ret);
    const uint64_t n = passes(&ret->stats, c->prefill_chunk), ahead = lvr_session_run_ahead_bytes(k->session);
    cr_assert_eq(ret->stats.bytes_read, n * k->per_pass,
                 "%s: request %" PRIu64 " read %" PRIu64 " bytes in %" PRIu64 " passes of %" PRIu64,
                 c->policy->ops->name, request, ret->stats.bytes_read, n, k->per_pass);
    cr_assert_leq(ahead, c->io_mode == LVR_IO_SERIAL ? 0 : k->ring);
    k->consumed += ret->stats.bytes_read;
}

/* What the kernel has counted is what was consumed and at most a ring more. */
static void count_end(struct counted *k)
{
    lvr_trace_device device;
    uint64_t after = 0;
    lvr_session_device(k->session, &device);
    lvr_session_free(k->session); /* waits for what was read ahead */
    cr_assert(storage_read_bytes(&after));
    const uint64_t counted = after - k->before;
    const uint64_t ahead = k->config->io_mode == LVR_IO_SERIAL ? 0 : k->ring;
    if (!device.direct)
        return;
    cr_assert_geq(counted, k->consumed, "%s, %s: the kernel counted %" PRIu64 " of %" PRIu64,
                  k->config->policy->ops->name, device.io_engine, counted, k->consumed);
    cr_assert_leq(counted, k->consumed + ahead + PROGRAM_BYTES,
                  "%s, %s: the kernel counted %" PRIu64 " for %" PRIu64, k->config->policy->ops->name,
                  device.io_engine, counted, k->consumed);
}

static void make_pair(struct decode_pair *pair)
{
    decode_pair_make(pair,
                     &(struct gguf_tiny){
                         .type = LVR_F32, .n_layers = 5, .d_model = 128, .d_ff = 192, .seed = 3, .scale = 4},
                     LVR_Q8_0);
}

static void configure(lvr_session_config *c, const struct decode_pair *pair, const lvr_policy *policy)
{
    decode_config(c, pair, policy);
    c->ignore_eos = true;
    c->cpu_level = lvr_cpu_best();
    c->slice_bytes = 65536;
    c->resident_fraction = 0;
}

static bool usable(lvr_flash_engine engine)
{
    return lvr_flash_probe_engine(engine, NULL) == LVR_OK;
}

Test(inv_bytes, every_pass_reads_what_is_not_resident, .timeout = 120)
{
    struct decode_pair pair;
    struct decode_output out;
    lvr_policy policy;
    lvr_session_config c;
    struct counted k;
    need_counters();
    make_pair(&pair);
    for (size_t p = 0; p < COUNT(policies); p++) {
        decode_policy(&policy, policies[p]);
        configure(&c, &pair, &policy);
        c.io_mode = p % 2 ? LVR_IO_SERIAL : LVR_IO_PIPELINED;
        for (uint32_t i = 0; i < 8; i++) {
            c.resident_fraction = i % 4 == 3 ? 0.4 : 0;
            c.ring_slots = 1 + i;
            c.flash_engine = engines[i / 4];
            if (!usable(c.flash_engine))
                continue;
            if (strcmp(policies[p], "random") == 0)
                cr_assert_eq(lvr_policy_set(&policy, "test", "prune", i % 2 ? "0.4" : "0", NULL), LVR_OK);
            count_begin(&k, &c);
            for (uint32_t r = 0; r < 3; r++)
                count_request(&k, r, 6, &out);
            count_end(&k);
        }
    }
    decode_pair_remove(&pair);
}

/* One pass a chunk, whatever is left over for the last one. */
Test(inv_bytes, a_prompt_reads_once_a_chunk, .timeout = 120)
{
    static const uint32_t chunks[] = {1, 2, 5, 13, 64, 128};
    struct decode_pair pair;
    lvr_policy policy;
    lvr_session_config c;
    struct counted k;
    need_counters();
    make_pair(&pair);
    for (size_t e = 0; e < COUNT(engines); e++) {
        for (size_t i = 0; usable(engines[e]) && i < COUNT(chunks); i++) {
            struct decode_output out, first = {0};
            decode_policy(&policy, policies[i % COUNT(policies)]);
            configure(&c, &pair, &policy);
            c.flash_engine = engines[e];
            c.prefill_chunk = chunks[i];
            count_begin(&k, &c);
            for (uint32_t r = 0; r < 8; r++) {
                count_request(&k, r, 2, &out);
                first = r == 0 ? out : first;
            }
            count_request(&k, 0, 2, &out);
            decode_same(&first, &out, "the same request again");
            count_end(&k);
        }
    }
    decode_pair_remove(&pair);
}

/* Requests whose text ends early; which ones depends on the tokens alone, so nothing is streamed here. */
static void find_early_ends(const lvr_session_config *streamed, uint32_t *ret, uint32_t n, uint32_t n_predict)
{
    lvr_session_config c = *streamed;
    lvr_policy ar;
    uint32_t found = 0;
    decode_policy(&ar, "ar");
    c.policy = &ar;
    c.resident_fraction = 1;
    lvr_session *s = decode_open(&c);
    for (uint32_t r = 0; found < n; r++) {
        struct decode_output out;
        cr_assert_lt(r, 2000, "texts of this model end early");
        decode_generate(s, r, n_predict, &out);
        if (out.stats.stop == LVR_STOP_EOS && out.n > 1)
            ret[found++] = r;
    }
    lvr_session_free(s);
}

/* A text that ends early leaves reads ahead of it: the next request consumes them, and they count there. */
Test(inv_bytes, a_text_that_ends_early, .timeout = 120)
{
    enum { N_EARLY = 3, LONGEST = 16 };
    struct decode_pair pair;
    lvr_policy policy;
    lvr_session_config c;
    struct counted k;
    uint32_t early[N_EARLY];
    need_counters();
    make_pair(&pair);
    for (size_t i = 0; i < COUNT(engines) * COUNT(policies); i++) {
        struct decode_output out;
        decode_policy(&policy, policies[i % COUNT(policies)]);
        configure(&c, &pair, &policy);
        c.flash_engine = engines[i / COUNT(policies)];
        c.ignore_eos = false;
        c.sampling = (lvr_sampling){.temperature = 3, .top_p = 1, .seed = 4};
        c.ring_slots = 3;
        if (i == 0)
            find_early_ends(&c, early, N_EARLY, LONGEST);
        if (!usable(c.flash_engine))
            continue;
        count_begin(&k, &c);
        for (uint32_t r = 0; r < N_EARLY; r++) {
            count_request(&k, early[r], LONGEST, &out);
            cr_assert_eq(out.stats.stop, LVR_STOP_EOS, "%s: the same text, and it ends early",
                         policy.ops->name);
        }
        count_request(&k, 3, 4, &out);
        count_end(&k);
    }
    decode_pair_remove(&pair);
}

/* Nothing is generated, yet reads are under way: they are waited for and counted, not lost. */
Test(inv_bytes, sessions_that_end_early, .timeout = 60)
{
    struct decode_pair pair;
    lvr_policy policy;
    lvr_session_config c;
    struct counted k;
    struct decode_output out;
    need_counters();
    make_pair(&pair);
    for (size_t e = 0; e < COUNT(engines); e++) {
        for (uint32_t n = 0; usable(engines[e]) && n < 3; n++) {
            decode_policy(&policy, "chain");
            configure(&c, &pair, &policy);
            c.flash_engine = engines[e];
            c.ring_slots = 5;
            count_begin(&k, &c);
            if (n > 0)
                count_request(&k, 7, n, &out);
            count_end(&k);
        }
    }
    decode_pair_remove(&pair);
}
