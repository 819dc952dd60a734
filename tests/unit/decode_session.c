/* The host loop under trouble: failing and damaged flash, cancellation, full contexts, wrong prompts and
 * models. */
#include "common/fs.h"
#include "engine/pack_cache.h"
#include "tests/unit/decode_rig.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static lvr_status try_generate(lvr_session *s, uint64_t request, uint32_t n_predict, lvr_token_fn fn,
                               void *user, lvr_error *err)
{
    int32_t prompt[64];
    lvr_run_stats stats;
    const uint32_t n = decode_prompt((uint32_t)request, prompt, 64);
    return lvr_session_generate(s, request, 0, prompt, n, n_predict, fn, user, NULL, NULL, &stats, err);
}

static bool keep(void *user, int32_t token)
{
    struct decode_output *out = user;
    out->tokens[out->n++] = token;
    return true;
}

/* ---- faults ---- */

static void expect_prefix(const struct decode_output *whole, const struct decode_output *part, uint64_t at)
{
    cr_assert(part->n <= whole->n);
    for (uint32_t i = 0; i < part->n; i++)
        cr_assert_eq(part->tokens[i], whole->tokens[i], "a wrong token after a fault at read %llu",
                     (unsigned long long)at);
}

/* A read that fails, whichever it is, ends the request with an error; what was emitted before it is right. */
static void check_failing_reads(const char *policy_name, lvr_flash_engine engine, int fail_errno)
{
    struct decode_pair pair;
    struct decode_output whole;
    lvr_policy policy;
    lvr_session_config c;
    decode_pair_make(&pair, NULL, LVR_Q8_0);
    decode_policy(&policy, policy_name);
    decode_config(&c, &pair, &policy);
    c.resident_fraction = 0;
    c.flash_engine = engine;
    decode_once(&c, 1, 12, &whole);
    for (uint64_t at = 1; at < 120; at += at < 10 ? 1 : 13) {
        const lvr_flash_faults faults = {
            .fail_at = at, .fail_count = UINT64_MAX / 2, .fail_errno = fail_errno};
        struct decode_output part = {0};
        lvr_error err = LVR_ERROR_INIT;
        c.flash_faults = &faults;
        lvr_session *s = decode_open(&c);
        cr_assert_eq(try_generate(s, 1, 12, keep, &part, &err), LVR_ERR_IO, "read %llu: %s",
                     (unsigned long long)at, err.msg);
        cr_assert(strstr(err.msg, "layer"), "the message says which layer: %s", err.msg);
        expect_prefix(&whole, &part, at);
        cr_assert_eq(try_generate(s, 2, 12, keep, &part, &err), LVR_ERR_INVARIANT,
                     "a session that failed can only be freed");
        lvr_session_free(s);
    }
    decode_pair_remove(&pair);
}

Test(decode_session, failing_reads_are_errors_uring, .timeout = 60)
{
    check_failing_reads("ar", LVR_FLASH_AUTO, EIO);
}

Test(decode_session, failing_reads_are_errors_lanes, .timeout = 60)
{
    check_failing_reads("chain", LVR_FLASH_PREAD, EBADMSG);
}

Test(decode_session, short_and_slow_reads_change_nothing, .timeout = 60)
{
    struct decode_pair pair;
    struct decode_output whole, got;
    lvr_policy policy;
    lvr_session_config c;
    decode_pair_make(&pair, NULL, LVR_Q8_0);
    decode_policy(&policy, "random");
    decode_config(&c, &pair, &policy);
    c.resident_fraction = 0;
    decode_once(&c, 1, 16, &whole);
    for (uint64_t at = 1; at < 60; at += 7) {
        const lvr_flash_faults faults = {
            .short_at = at, .short_bytes = 4096, .slow_at = at + 3, .slow_count = 4, .slow_ns = 2000000};
        c.flash_faults = &faults;
        decode_once(&c, 1, 16, &got);
        decode_same(&whole, &got, "short and slow reads");
    }
    decode_pair_remove(&pair);
}

static void flip_byte(const char *path, uint64_t offset)
{
    uint8_t byte = 0;
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    cr_assert(fd >= 0);
    cr_assert_eq(lvr_pread_all(fd, &byte, 1, offset, path, NULL), LVR_OK);
    byte ^= 0x40;
    cr_assert_eq(lvr_pwrite_all(fd, &byte, 1, offset, path, NULL), LVR_OK);
    cr_assert_eq(fsync(fd), 0);
    close(fd);
}

/* A damaged streamed layer is found at its first use, before any token. */
Test(decode_session, damaged_layer)
{
    struct decode_pair pair;
    struct decode_output out = {0};
    lvr_policy policy;
    lvr_session_config c;
    lvr_pack *pack = NULL;
    char path[512];
    lvr_error err = LVR_ERROR_INIT;
    decode_pair_make(&pair, NULL, LVR_F32);
    cr_assert_eq(lvr_pack_open_any(pair.target.path, &pack, &err), LVR_OK, "%s", err.msg);
    snprintf(path, sizeof path, "%s", lvr_pack_path(pack));
    const uint64_t at = lvr_pack_layer_offset(pack, 2) + lvr_pack_layer_bytes(pack, 2) / 2;
    lvr_pack_free(pack);
    flip_byte(path, at);
    decode_policy(&policy, "ar");
    decode_config(&c, &pair, &policy);
    c.target_path = path;
    c.resident_fraction = 0;
    lvr_session *s = decode_open(&c);
    cr_assert_eq(try_generate(s, 1, 8, keep, &out, &err), LVR_ERR_FORMAT);
    cr_assert(strstr(err.msg, "layer 2") && strstr(err.msg, "CRC"), "%s", err.msg);
    cr_assert_eq(out.n, 0);
    lvr_session_free(s);
    decode_pair_remove(&pair);
}

/* ---- cancellation ---- */

struct canceller {
    atomic_bool flag;
    struct decode_output out;
    uint32_t after;
};

static bool cancel_after(void *user, int32_t token)
{
    struct canceller *c = user;
    keep(&c->out, token);
    if (c->out.n >= c->after)
        atomic_store(&c->flag, true);
    return true;
}

Test(decode_session, cancel_at_any_token, .timeout = 60)
{
    struct decode_pair pair;
    struct decode_output whole;
    lvr_policy policy;
    lvr_session_config c;
    decode_pair_make(&pair, NULL, LVR_Q8_0);
    decode_policy(&policy, "chain");
    decode_config(&c, &pair, &policy);
    c.resident_fraction = 0.5;
    decode_once(&c, 3, 30, &whole);
    for (uint32_t after = 0; after + 1 < whole.n; after += 4) {
        struct canceller k = {.after = after};
        lvr_error err = LVR_ERROR_INIT;
        c.cancel = &k.flag;
        lvr_session *s = decode_open(&c);
        atomic_store(&k.flag, after == 0);
        const lvr_status status = try_generate(s, 3, 30, cancel_after, &k, &err);
        lvr_session_free(s);
        expect_prefix(&whole, &k.out, after);
        if (k.out.n == whole.n)
            continue; /* the last round was already committed */
        cr_assert_eq(status, LVR_ERR_INTERRUPTED, "after %u: %s", after, err.msg);
        cr_assert(strstr(err.msg, "of 30 tokens"), "the message says what was done: %s", err.msg);
    }
    decode_pair_remove(&pair);
}

/* What an interrupted request has done is handed out: its tokens, and figures that do not claim more. */
Test(decode_session, interrupted_requests_tell_what_they_did, .timeout = 60)
{
    struct decode_pair pair;
    struct decode_output whole;
    int32_t prompt[64];
    lvr_policy policy;
    lvr_session_config c;
    decode_pair_make(&pair, NULL, LVR_Q8_0);
    decode_policy(&policy, "chain");
    decode_config(&c, &pair, &policy);
    c.resident_fraction = 0;
    const uint32_t n_prompt = decode_prompt(3, prompt, 64);
    decode_once(&c, 3, 30, &whole);
    for (uint32_t after = 0; after < 20; after += 5) {
        struct canceller k = {.after = after};
        lvr_run_stats stats = {.wall_ns = UINT64_MAX};
        int32_t *tokens = NULL;
        uint32_t n = UINT32_MAX;
        lvr_error err = LVR_ERROR_INIT;
        c.cancel = &k.flag;
        lvr_session *s = decode_open(&c);
        atomic_store(&k.flag, after == 0);
        cr_assert_eq(
            lvr_session_generate(s, 3, 0, prompt, n_prompt, 30, cancel_after, &k, &tokens, &n, &stats, &err),
            LVR_ERR_INTERRUPTED);
        lvr_session_free(s);
        cr_assert_eq(n, k.out.n);
        cr_assert(n >= after && n < whole.n && stats.n_tokens == n && stats.stop == LVR_STOP_INTERRUPTED);
        cr_assert(n == 0 || memcmp(tokens, whole.tokens, n * sizeof *tokens) == 0);
        cr_assert_eq(stats.n_prefilled, after == 0 ? 0 : n_prompt - 1);
        cr_assert(stats.prefill_ns <= stats.wall_ns && stats.prefill_ns + stats.decode_ns <= stats.wall_ns);
        cr_assert(stats.ttft_ns <= stats.wall_ns && (stats.ttft_ns > 0) == (n > 0));
        cr_assert(after > 0 || (stats.decode_ns == 0 && stats.decode_compute_ns == 0));
        free(tokens);
    }
    decode_pair_remove(&pair);
}

/* ---- a host that has enough ---- */

static bool enough(void *user, int32_t token)
{
    struct canceller *k = user;
    keep(&k->out, token);
    return k->out.n < k->after;
}

/* Stops request 3 at a token, then runs request 4 in the same session: reads that ran ahead are its own. */
static void check_stopped_at(lvr_session *s, uint32_t at, const struct decode_output *whole,
                             const struct decode_output *next)
{
    struct canceller k = {.after = at};
    struct decode_output got;
    int32_t prompt[64], *tokens = NULL;
    lvr_run_stats stats;
    uint32_t n = 0;
    lvr_error err = LVR_ERROR_INIT;
    const uint32_t n_prompt = decode_prompt(3, prompt, 64);
    const lvr_geometry *g = lvr_session_geometry(s);
    const uint64_t pass_bytes = lvr_geometry_stream_bytes(g);
    cr_assert_eq(lvr_session_generate(s, 3, 0, prompt, n_prompt, 30, enough, &k, &tokens, &n, &stats, &err),
                 LVR_OK, "%s", err.msg);
    cr_assert(n == at && k.out.n == at && stats.n_tokens == at && stats.stop == LVR_STOP_HOST);
    cr_assert_eq(memcmp(tokens, whole->tokens, n * sizeof *tokens), 0);
    cr_assert_leq(stats.rounds, whole->stats.rounds, "no pass after the last token");
    cr_assert(pass_bytes == 0 || stats.bytes_read % pass_bytes == 0);
    free(tokens);
    decode_generate(s, 4, 30, &got);
    decode_same(next, &got, "the request after a stop");
    cr_assert_eq(got.stats.bytes_read, next->stats.bytes_read);
}

Test(decode_session, the_host_may_stop_at_any_token, .timeout = 100)
{
    static const char *const names[] = {"ar", "chain", "random"};
    struct decode_pair pair;
    struct decode_output whole, next;
    lvr_policy policy;
    lvr_session_config c;
    decode_pair_make(&pair, NULL, LVR_Q8_0);
    for (size_t p = 0; p < sizeof names / sizeof names[0]; p++)
        for (int io = 0; io < 2; io++) {
            decode_policy(&policy, names[p]);
            decode_config(&c, &pair, &policy);
            c.resident_fraction = io ? 0 : 0.5;
            c.io_mode = io ? LVR_IO_PIPELINED : LVR_IO_SERIAL;
            decode_once(&c, 3, 30, &whole);
            decode_once(&c, 4, 30, &next);
            lvr_session *s = decode_open(&c);
            for (uint32_t at = 1; at <= whole.n; at += 3)
                check_stopped_at(s, at, &whole, &next);
            lvr_session_free(s);
        }
    decode_pair_remove(&pair);
}

/* A bare GGUF is packed on first use: that stops too. */
Test(decode_session, cancel_while_opening)
{
    struct decode_pair pair;
    lvr_policy policy;
    lvr_session_config c;
    lvr_error err = LVR_ERROR_INIT;
    lvr_session *s = NULL;
    atomic_bool cancel = true;
    decode_pair_make(&pair, NULL, LVR_Q8_0);
    decode_policy(&policy, "chain");
    decode_config(&c, &pair, &policy);
    c.cancel = &cancel;
    cr_assert_eq(lvr_session_new(&c, &s, &err), LVR_ERR_INTERRUPTED, "%s", err.msg);
    cr_assert(s == NULL && strstr(err.msg, "no pack was written") != NULL, "%s", err.msg);
    decode_pair_remove(&pair);
}

/* ---- limits ---- */

/* The context fills up in the middle of a tree: every policy stops where `ar` stops. */
Test(decode_session, context_full, .timeout = 60)
{
    static const char *const names[] = {"ar", "chain", "lever", "random"};
    struct decode_pair pair;
    struct decode_output expected = {0}, got;
    int32_t prompt[64];
    lvr_policy policy;
    lvr_session_config c;
    decode_pair_make(&pair, NULL, LVR_Q8_0);
    const uint32_t n_prompt = decode_prompt(5, prompt, 64);
    for (uint32_t room = 0; room < 12; room += 3) {
        for (size_t p = 0; p < sizeof names / sizeof names[0]; p++) {
            decode_policy(&policy, names[p]);
            decode_config(&c, &pair, &policy);
            c.n_ctx = n_prompt + room;
            c.ignore_eos = true;
            decode_once(&c, 5, 64, &got);
            cr_assert_eq(got.stats.stop, LVR_STOP_CONTEXT, "%s", names[p]);
            cr_assert_eq(got.n, room + 1, "%s: the last token needs no cache", names[p]);
            if (p == 0)
                expected = got;
            decode_same(&expected, &got, names[p]);
        }
    }
    decode_pair_remove(&pair);
}

Test(decode_session, prompt_too_long_leaves_the_session_usable)
{
    struct decode_pair pair;
    struct decode_output out;
    int32_t prompt[64] = {0};
    lvr_run_stats stats;
    lvr_policy policy;
    lvr_session_config c;
    lvr_error err = LVR_ERROR_INIT;
    decode_pair_make(&pair, NULL, LVR_Q8_0);
    decode_policy(&policy, "chain");
    decode_config(&c, &pair, &policy);
    c.n_ctx = 45;
    lvr_session *s = decode_open(&c);
    cr_assert_eq(lvr_session_generate(s, 0, 0, prompt, 46, 4, NULL, NULL, NULL, NULL, &stats, &err),
                 LVR_ERR_BUDGET);
    cr_assert(strstr(err.msg, "46") && strstr(err.msg, "45") && strstr(err.msg, "--context"), "%s", err.msg);
    cr_assert_eq(lvr_session_generate(s, 0, 0, prompt, 0, 4, NULL, NULL, NULL, NULL, &stats, &err),
                 LVR_ERR_USAGE);
    cr_assert_eq(lvr_session_generate(s, 0, 0, prompt, 4, 0, NULL, NULL, NULL, NULL, &stats, &err),
                 LVR_ERR_USAGE);
    decode_generate(s, 1, 4, &out);
    cr_assert_eq(out.n, 4);
    lvr_session_free(s);
    decode_pair_remove(&pair);
}

Test(decode_session, a_prompt_of_one_token)
{
    struct decode_pair pair;
    struct decode_output chain = {0}, ar = {0};
    const int32_t prompt[] = {1};
    lvr_policy policy;
    lvr_session_config c;
    decode_pair_make(&pair, NULL, LVR_Q8_0);
    for (int i = 0; i < 2; i++) {
        struct decode_output *out = i ? &chain : &ar;
        decode_policy(&policy, i ? "chain" : "ar");
        decode_config(&c, &pair, &policy);
        lvr_session *s = decode_open(&c);
        cr_assert_eq(lvr_session_generate(s, 0, 0, prompt, 1, 9, keep, out, NULL, NULL, &out->stats, NULL),
                     LVR_OK);
        cr_assert_lt(out->stats.prefill_ns, 1000000, "no prompt pass");
        lvr_session_free(s);
    }
    decode_same(&ar, &chain, "prompt of one token");
    decode_pair_remove(&pair);
}

/* ---- what does not fit together ---- */

static void expect_refused(const lvr_session_config *c, lvr_status expected, const char *word)
{
    lvr_session *s = NULL;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_session_new(c, &s, &err), expected, "expected a refusal that speaks of %s, found: %s",
                 word, err.msg);
    cr_assert(strstr(err.msg, word), "expected \"%s\" in: %s", word, err.msg);
    cr_assert_null(s);
}

Test(decode_session, refusals)
{
    struct decode_pair pair, other;
    lvr_policy policy;
    lvr_session_config good, c;
    decode_pair_make(&pair, NULL, LVR_Q8_0);
    decode_pair_make(&other, &(struct gguf_tiny){.type = LVR_F32, .vocab = 310}, LVR_F32);
    decode_policy(&policy, "chain");
    decode_config(&good, &pair, &policy);
    c = good;
    c.draft_path = NULL;
    expect_refused(&c, LVR_ERR_CONFIG, "draft");
    c = good;
    c.draft_path = other.draft.path;
    expect_refused(&c, LVR_ERR_CONFIG, "does not fit target");
    c = good;
    c.target_path = "/nonexistent.gguf";
    expect_refused(&c, LVR_ERR_IO, "target model");
    c = good;
    c.threads = 0;
    expect_refused(&c, LVR_ERR_CONFIG, "threads");
    c = good;
    c.slice_bytes = 5000;
    expect_refused(&c, LVR_ERR_CONFIG, "slice");
    c = good;
    c.ring_slots = LVR_MAX_RING_SLOTS + 1;
    expect_refused(&c, LVR_ERR_CONFIG, "ring");
    c = good;
    c.depth = LVR_FLASH_MAX_DEPTH + 1;
    expect_refused(&c, LVR_ERR_CONFIG, "depth");
    c = good;
    c.max_rows = 0;
    expect_refused(&c, LVR_ERR_CONFIG, "rows");
    c = good;
    c.has_budget = true;
    c.dram_budget_bytes = 1;
    expect_refused(&c, LVR_ERR_BUDGET, "at least");
    lvr_geometry wrong = {.n_layers = 9};
    c = good;
    c.geometry = &wrong;
    expect_refused(&c, LVR_ERR_CONFIG, "9 layers");
    decode_pair_remove(&pair);
    decode_pair_remove(&other);
}
