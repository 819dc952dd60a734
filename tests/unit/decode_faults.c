/*
 * A session whose flash misbehaves, on both back ends, at several depths, under several policies. What the
 * reader can mend (short, interrupted, postponed and slow reads, refused O_DIRECT or io_uring) changes no
 * token. What it cannot mend (an I/O error, an early end of the file) ends the request with a message, after
 * exactly the tokens of the rounds before the read that failed; the session can then be freed, and leaks
 * nothing.
 */
#include "common/fs.h"
#include "engine/pack_cache.h"
#include "tests/unit/decode_rig.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define REQUEST 1u
#define N_PREDICT 12u
#define MAX_PASSES 64u
#define FOREVER (UINT64_MAX / 2)

static const uint32_t depths[] = {1, 4};
static const lvr_flash_engine engines[] = {LVR_FLASH_URING, LVR_FLASH_PREAD};

/* A streamed model under one policy, and what it says when nothing fails. */
struct subject {
    struct decode_pair pair;
    lvr_policy policy;
    lvr_session_config config;
    struct decode_output whole;
    uint64_t slices; /* reads of a pass */
    uint64_t passes, prompt_passes;
    /* Tokens that are out once this many passes are done: what a failure in pass p leaves is committed[p]. */
    uint32_t committed[MAX_PASSES + 1];
    bool direct; /* O_DIRECT works where the model is */
};

static bool keep(void *user, int32_t token)
{
    struct decode_output *out = user;
    cr_assert_lt(out->n, DECODE_MAX_TOKENS);
    out->tokens[out->n++] = token;
    return true;
}

static lvr_status try_generate(lvr_session *s, lvr_token_fn fn, void *user, lvr_error *err)
{
    int32_t prompt[64];
    lvr_run_stats stats;
    const uint32_t n = decode_prompt(REQUEST, prompt, 64);
    return lvr_session_generate(s, REQUEST, 0, prompt, n, N_PREDICT, fn, user, NULL, NULL, &stats, err);
}

static void expect_prefix(const struct subject *s, const struct decode_output *part, const char *what)
{
    cr_assert_leq(part->n, s->whole.n, "%s", what);
    for (uint32_t i = 0; i < part->n; i++)
        cr_assert_eq(part->tokens[i], s->whole.tokens[i], "%s: token %u is wrong", what, i);
}

/* A fresh session in which a read fails for good; returns how many tokens came before. */
static uint32_t run_to_failure(const struct subject *s, const lvr_session_config *c, lvr_status expected,
                               const char *word, const char *what)
{
    struct decode_output part = {0};
    lvr_error err = LVR_ERROR_INIT;
    lvr_session *session = decode_open(c);
    cr_assert_eq(try_generate(session, keep, &part, &err), expected, "%s: %s", what, err.msg);
    cr_assert(strstr(err.msg, "layer") && strstr(err.msg, ".lvrpack") && strstr(err.msg, word),
              "%s: the message names the file, the layer and \"%s\": %s", what, word, err.msg);
    expect_prefix(s, &part, what);
    cr_assert_eq(try_generate(session, keep, &part, &err), LVR_ERR_INVARIANT,
                 "%s: a session that failed can only be freed", what);
    lvr_session_free(session);
    return part.n;
}

/* Reads are attempted in order in a serial session at depth 1, so the one that fails is known, and with it
 * the pass that must not be committed. */
static void find_committed(struct subject *s)
{
    lvr_session_config c = s->config;
    c.io_mode = LVR_IO_SERIAL;
    c.depth = 1;
    c.flash_engine = LVR_FLASH_PREAD;
    for (uint64_t p = 0; p < s->passes; p++) {
        const uint64_t first = p * s->slices + 1, last = (p + 1) * s->slices;
        uint32_t n[2];
        for (int i = 0; i < 2; i++) {
            const lvr_flash_faults faults = {
                .fail_at = i ? last : first, .fail_count = FOREVER, .fail_errno = EIO};
            c.flash_faults = &faults;
            n[i] = run_to_failure(s, &c, LVR_ERR_IO, strerror(EIO), "serial");
        }
        cr_assert_eq(n[0], n[1], "pass %" PRIu64 " is committed whole or not at all", p);
        if (p <= s->prompt_passes)
            cr_assert_eq(n[0], 0, "prompt passes emit nothing");
        else
            cr_assert_gt(n[0], s->committed[p - 1], "every round commits");
        s->committed[p] = n[0];
    }
    s->committed[s->passes] = s->whole.n;
}

static uint64_t slices_of_a_pass(const lvr_geometry *g)
{
    uint64_t n = 0;
    for (uint32_t l = 0; l < g->n_layers; l++)
        n += g->resident[l] ? 0 : (g->layer_bytes[l] + g->slice_bytes - 1) / g->slice_bytes;
    return n;
}

static void subject_make(struct subject *s, const char *policy)
{
    lvr_trace_device device;
    *s = (struct subject){0};
    decode_pair_make(&s->pair, NULL, LVR_Q8_0);
    decode_policy(&s->policy, policy);
    decode_config(&s->config, &s->pair, &s->policy);
    s->config.resident_fraction = 0;
    s->config.ignore_eos = true;
    lvr_session *session = decode_open(&s->config);
    decode_generate(session, REQUEST, N_PREDICT, &s->whole);
    lvr_session_device(session, &device);
    s->direct = device.direct;
    s->slices = slices_of_a_pass(lvr_session_geometry(session));
    s->passes = s->whole.stats.bytes_read / lvr_geometry_stream_bytes(lvr_session_geometry(session));
    lvr_session_free(session);
    s->prompt_passes = s->passes - s->whole.stats.rounds;
    cr_assert(s->prompt_passes >= 2 && s->whole.stats.rounds >= 2 && s->passes <= MAX_PASSES);
}

static void subject_free(const struct subject *s)
{
    decode_pair_remove(&s->pair);
}

/* ---- what can be mended ---- */

enum result { SAYS_THE_SAME, SAYS_BUFFERED, SAYS_PREAD };

static void expect_same(const struct subject *s, const lvr_session_config *c, enum result result,
                        const char *what)
{
    struct decode_output got;
    lvr_trace_device device;
    lvr_io_report io;
    lvr_session *session = decode_open(c);
    decode_generate(session, REQUEST, N_PREDICT, &got);
    lvr_session_device(session, &device);
    cr_assert(lvr_session_io_report(session, &io));
    lvr_session_free(session);
    decode_same(&s->whole, &got, what);
    cr_assert_eq(io.path == LVR_READ_DIRECT, device.direct, "%s: %s", what, lvr_read_path_name(io.path));
    cr_assert(io.checked, "%s: every layer was checked", what);
    cr_assert(!io.registered_buffer || !c->flash_faults->refuse_buffer, "%s", what);
    cr_assert(!io.registered_files || !c->flash_faults->refuse_files, "%s", what);
    cr_assert_eq(got.stats.bytes_read, s->whole.stats.bytes_read, "%s: bytes of the passes", what);
    cr_assert_eq(device.direct, s->direct && result != SAYS_BUFFERED, "%s: the result says how it read",
                 what);
    if (result == SAYS_PREAD)
        cr_assert_str_eq(device.io_engine, "pread", "%s", what);
}

static void check_mended(const struct subject *s, lvr_session_config c)
{
    const uint64_t early = s->slices / 2, late = s->slices * s->prompt_passes + s->slices / 2;
    const struct {
        const char *what;
        lvr_flash_faults faults;
        enum result result;
        bool needs_direct;
    } cases[] = {
        {"short read in the first pass", {.short_at = early, .short_bytes = 4096}, SAYS_THE_SAME, false},
        {"short read in mid-run", {.short_at = late, .short_bytes = 4096}, SAYS_THE_SAME, false},
        {"short read off the grid", {.short_at = late, .short_bytes = 1000}, SAYS_BUFFERED, true},
        {"interrupted at first", {.fail_at = 1, .fail_count = 9, .fail_errno = EINTR}, SAYS_THE_SAME, false},
        {"interrupted in mid-run",
         {.fail_at = late, .fail_count = 40, .fail_errno = EINTR},
         SAYS_THE_SAME,
         false},
        {"postponed", {.fail_at = late, .fail_count = 20, .fail_errno = EAGAIN}, SAYS_THE_SAME, false},
        {"slow from the first on", {.slow_at = 1, .slow_count = 8, .slow_ns = 2000000}, SAYS_THE_SAME, false},
        {"slow and short",
         {.slow_at = late, .slow_count = 6, .slow_ns = 2000000, .short_at = late + 2, .short_bytes = 4096},
         SAYS_THE_SAME,
         false},
        {"no registered buffer", {.refuse_buffer = true}, SAYS_THE_SAME, false},
        {"no registered files", {.refuse_files = true}, SAYS_THE_SAME, false},
        {"O_DIRECT refused at open", {.refuse_direct = true}, SAYS_BUFFERED, false},
        {"O_DIRECT refused at the first read",
         {.fail_at = 1, .fail_count = 1, .fail_errno = EINVAL},
         SAYS_BUFFERED,
         true},
        {"O_DIRECT refused in mid-run",
         {.fail_at = late, .fail_count = 1, .fail_errno = EINVAL},
         SAYS_BUFFERED,
         true},
        {"O_DIRECT not supported in mid-run",
         {.fail_at = late, .fail_count = 1, .fail_errno = EOPNOTSUPP},
         SAYS_BUFFERED,
         true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (cases[i].needs_direct && !s->direct)
            continue;
        c.flash_faults = &cases[i].faults;
        expect_same(s, &c, cases[i].result, cases[i].what);
    }
}

/* ---- what cannot ---- */

/* A pipelined session is at most one pass behind its reads: the ring holds less than a pass. */
static void expect_failure(const struct subject *s, lvr_session_config *c, const lvr_flash_faults *faults,
                           uint64_t pass, lvr_status expected, const char *word, const char *what)
{
    c->flash_faults = faults;
    const uint32_t n = run_to_failure(s, c, expected, word, what);
    cr_assert_leq(n, s->committed[pass], "%s: %u tokens, though the read of pass %" PRIu64 " failed", what, n,
                  pass);
    cr_assert_geq(n, pass ? s->committed[pass - 1] : 0, "%s: only %u tokens before pass %" PRIu64, what, n,
                  pass);
}

static void check_failures(const struct subject *s, lvr_session_config c)
{
    static const int errnos[] = {EIO, EBADMSG, ENODEV};
    for (uint64_t pass = 0; pass < s->passes; pass += pass == 0 ? 1 : 3) {
        const uint64_t at = pass * s->slices + s->slices / 2;
        const int errnum = errnos[pass / 2 % (sizeof errnos / sizeof errnos[0])];
        const lvr_flash_faults dead = {.fail_at = at, .fail_count = FOREVER, .fail_errno = errnum},
                               once = {.fail_at = at, .fail_count = 1, .fail_errno = errnum},
                               cut = {.short_at = at};
        if (pass % 2)
            expect_failure(s, &c, &dead, pass, LVR_ERR_IO, strerror(errnum), "the device is gone");
        else
            expect_failure(s, &c, &once, pass, LVR_ERR_IO, strerror(errnum), "one read fails");
        expect_failure(s, &c, &cut, pass, LVR_ERR_FORMAT, "truncated", "the file ends early");
    }
    const uint64_t late = s->prompt_passes + 1;
    const lvr_flash_faults interrupted = {.fail_at = late * s->slices + s->slices / 2,
                                          .fail_count = FOREVER,
                                          .fail_errno = EINTR},
                           postponed = {
                               .fail_at = interrupted.fail_at, .fail_count = FOREVER, .fail_errno = EAGAIN};
    expect_failure(s, &c, &interrupted, late, LVR_ERR_IO, strerror(EINTR), "interrupted for ever");
    expect_failure(s, &c, &postponed, late, LVR_ERR_IO, strerror(EAGAIN), "postponed for ever");
}

/* The read that fails is one ahead of the last pass: nobody may ever need it. */
static void check_read_ahead_in_vain(const struct subject *s, lvr_session_config c)
{
    const lvr_flash_faults faults = {
        .fail_at = s->passes * s->slices + s->slices / 4, .fail_count = FOREVER, .fail_errno = EIO};
    struct decode_output got = {0};
    lvr_error err = LVR_ERROR_INIT;
    c.flash_faults = &faults;
    lvr_session *session = decode_open(&c);
    const lvr_status status = try_generate(session, keep, &got, &err);
    lvr_session_free(session);
    expect_prefix(s, &got, "read ahead in vain");
    cr_assert(status == LVR_ERR_IO || (status == LVR_OK && got.n == s->whole.n), "%s", err.msg);
    cr_assert_geq(got.n, s->committed[s->passes - 1], "every pass but the last was complete");
}

/* ---- the combinations ---- */

static void check_policy(const char *policy)
{
    struct subject s;
    subject_make(&s, policy);
    find_committed(&s);
    for (size_t e = 0; e < sizeof engines / sizeof engines[0]; e++) {
        if (lvr_flash_probe_engine(engines[e], NULL) != LVR_OK)
            continue;
        for (size_t d = 0; d < sizeof depths / sizeof depths[0]; d++) {
            lvr_session_config c = s.config;
            c.flash_engine = engines[e];
            c.depth = depths[d];
            check_mended(&s, c);
            check_failures(&s, c);
            check_read_ahead_in_vain(&s, c);
        }
    }
    subject_free(&s);
}

Test(decode_faults, ar, .timeout = 110)
{
    check_policy("ar");
}

Test(decode_faults, chain, .timeout = 110)
{
    check_policy("chain");
}

Test(decode_faults, lever, .timeout = 110)
{
    check_policy("lever");
}

/* ---- io_uring ---- */

Test(decode_faults, io_uring_refused)
{
    struct subject s;
    const lvr_flash_faults faults = {.refuse_uring = true};
    lvr_error err = LVR_ERROR_INIT;
    lvr_session *none = NULL;
    subject_make(&s, "chain");
    lvr_session_config c = s.config;
    c.flash_faults = &faults;
    c.flash_engine = LVR_FLASH_AUTO;
    expect_same(&s, &c, SAYS_PREAD, "io_uring refused");
    c.flash_engine = LVR_FLASH_URING;
    cr_assert_eq(lvr_session_new(&c, &none, &err), LVR_ERR_UNSUPPORTED, "%s", err.msg);
    cr_assert_null(none);
    cr_assert(strstr(err.msg, "io_uring") && strstr(err.msg, "To mend"), "%s", err.msg);
    subject_free(&s);
}

/* ---- the real thing: the file itself changes under the session ---- */

struct saboteur {
    struct decode_output out;
    const char *path;
    uint64_t offset; /* of the streamed byte that is damaged, or at which the file ends */
    bool cut, flip;
};

static void flip_bit(const char *path, uint64_t offset)
{
    uint8_t byte = 0;
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    cr_assert(fd >= 0);
    cr_assert_eq(lvr_pread_all(fd, &byte, 1, offset, path, NULL), LVR_OK);
    byte ^= 0x10;
    cr_assert_eq(lvr_pwrite_all(fd, &byte, 1, offset, path, NULL), LVR_OK);
    cr_assert_eq(fsync(fd), 0);
    close(fd);
}

static bool sabotage(void *user, int32_t token)
{
    struct saboteur *k = user;
    keep(&k->out, token);
    if (k->out.n != 3)
        return true;
    if (k->cut)
        cr_assert_eq(truncate(k->path, (off_t)k->offset), 0);
    if (k->flip)
        flip_bit(k->path, k->offset);
    return true;
}

static void pack_path(const struct subject *s, uint32_t layer, char *ret, size_t cap, uint64_t *ret_offset)
{
    lvr_pack *pack = NULL;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_pack_open_any(s->pair.target.path, &pack, &err), LVR_OK, "%s", err.msg);
    snprintf(ret, cap, "%s", lvr_pack_path(pack));
    *ret_offset = lvr_pack_layer_offset(pack, layer) + lvr_pack_layer_bytes(pack, layer) / 2;
    lvr_pack_free(pack);
}

/* The pack is good at first and damaged after three tokens: at most the round under way is still right. */
static void check_sabotage(bool cut, lvr_status expected, const char *word)
{
    for (size_t e = 0; e < sizeof engines / sizeof engines[0]; e++) {
        struct subject s;
        char path[512];
        lvr_error err = LVR_ERROR_INIT;
        if (lvr_flash_probe_engine(engines[e], NULL) != LVR_OK)
            continue;
        subject_make(&s, "ar");
        struct saboteur k = {.path = path, .cut = cut, .flip = !cut};
        pack_path(&s, 2, path, sizeof path, &k.offset);
        lvr_session_config c = s.config;
        c.target_path = path;
        c.flash_engine = engines[e];
        lvr_session *session = decode_open(&c);
        cr_assert_eq(try_generate(session, sabotage, &k, &err), expected, "%s", err.msg);
        cr_assert(strstr(err.msg, "layer 2") && strstr(err.msg, word), "%s", err.msg);
        expect_prefix(&s, &k.out, word);
        cr_assert_leq(k.out.n, 4, "%u tokens, though the file was damaged after the third", k.out.n);
        lvr_session_free(session);
        subject_free(&s);
    }
}

Test(decode_faults, file_truncated_in_mid_run, .timeout = 60)
{
    check_sabotage(true, LVR_ERR_FORMAT, "truncated");
}

Test(decode_faults, file_damaged_in_mid_run, .timeout = 60)
{
    check_sabotage(false, LVR_ERR_FORMAT, "CRC");
}
