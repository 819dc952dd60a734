/* What a session decides before it loads anything: rows and reads, layers that stay, and whether there is
 * room. */
#include "engine/session_plan.h"
#include "common/fs.h"
#include "common/log.h"
#include "tests/unit/decode_rig.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB (UINT64_C(1) << 20)

/* ---- how flash is read ---- */

static lvr_flash_calibration calibration(void)
{
    return (lvr_flash_calibration){
        .request_bytes = MIB,
        .depth = 2,
        .bytes_per_s = 1.5e9,
        .first_bytes_per_s = 4e8,
        .direct = true,
        .engine = "uring",
        .kernel = "6.1.0",
        .date = "2026-01-31T23:59:59Z",
        .n_cells = 4,
        .cells = {{256 << 10, 1, 0.9e9}, {256 << 10, 8, 1.4e9}, {MIB, 2, 1.5e9}, {4 * MIB, 2, 1.51e9}}};
}

Test(session_plan, reads_are_as_measured)
{
    const lvr_flash_calibration k = calibration();
    const struct {
        uint64_t slice_bytes, expected_slice_bytes;
        uint32_t depth, expected_depth;
        bool measured;
        lvr_flash_engine engine;
        bool followed;
    } cases[] = {
        {0, 4 * MIB, 0, 4, false, LVR_FLASH_AUTO, false},
        {8192, 8192, 0, 4, false, LVR_FLASH_AUTO, false},
        {0, MIB, 0, 2, true, LVR_FLASH_AUTO, true},
        {0, MIB, 0, 2, true, LVR_FLASH_URING, true},
        {0, 4 * MIB, 0, 4, true, LVR_FLASH_PREAD, false},         /* it was measured with the other one */
        {256 << 10, 256 << 10, 0, 8, true, LVR_FLASH_AUTO, true}, /* the depth that suits this size */
        {256 << 10, 256 << 10, 0, 4, true, LVR_FLASH_PREAD, false},
        {0, 4 * MIB, 2, 2, true, LVR_FLASH_AUTO, true},
        {12288, 12288, 0, 4, true, LVR_FLASH_AUTO, false}, /* sizes and depths that were not measured */
        {0, 4 * MIB, 3, 3, true, LVR_FLASH_AUTO, false},
        {12288, 12288, 7, 7, true, LVR_FLASH_AUTO, false}, /* nothing is left open */
        {MIB, MIB, 2, 2, true, LVR_FLASH_AUTO, false},     /* nor here */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lvr_session_config c;
        lvr_session_config_init(&c);
        c.slice_bytes = cases[i].slice_bytes;
        c.depth = cases[i].depth;
        c.flash_engine = cases[i].engine;
        const bool followed = lvr_session_fill_in(&c, cases[i].measured ? &k : NULL);
        cr_assert_eq(followed, cases[i].followed, "case %zu", i);
        cr_assert_eq(c.slice_bytes, cases[i].expected_slice_bytes, "case %zu: %" PRIu64, i, c.slice_bytes);
        cr_assert_eq(c.depth, cases[i].expected_depth, "case %zu: %u", i, c.depth);
        cr_assert_eq(c.ring_slots, 2);
    }
}

Test(session_plan, a_serial_ring_needs_one_slot)
{
    lvr_session_config c;
    lvr_session_config_init(&c);
    c.io_mode = LVR_IO_SERIAL;
    lvr_session_fill_in(&c, NULL);
    cr_assert_eq(c.ring_slots, 1);
    c.ring_slots = 5;
    lvr_session_fill_in(&c, NULL);
    cr_assert_eq(c.ring_slots, 5);
}

/* ---- sessions ---- */

struct bench {
    struct decode_pair pair;
    lvr_policy policy;
    lvr_session_config config;
    char root[64];
};

static void put(const struct bench *b, const char *path, const char *text)
{
    char whole[PATH_MAX], dir[PATH_MAX];
    lvr_error err = LVR_ERROR_INIT;
    snprintf(whole, sizeof whole, "%s%s", b->root, path);
    memcpy(dir, whole, sizeof dir);
    *strrchr(dir, '/') = '\0';
    cr_assert_eq(lvr_mkdirs(dir, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_write_file_atomic(whole, text, strlen(text), &err), LVR_OK, "%s", err.msg);
}

/* A pair, and a system whose control group has this much left. */
static void bench_make(struct bench *b, uint64_t room_bytes)
{
    char text[32];
    decode_pair_make(&b->pair, NULL, LVR_Q8_0);
    decode_policy(&b->policy, "chain");
    decode_config(&b->config, &b->pair, &b->policy);
    strcpy(b->root, "/tmp/lvr-session-plan-XXXXXX");
    cr_assert(mkdtemp(b->root), "cannot make a directory");
    put(b, "/proc/meminfo", "MemTotal: 99999999 kB\nMemAvailable: 88888888 kB\n");
    put(b, "/proc/self/cgroup", "0::/box\n");
    put(b, "/proc/self/mountinfo", "24 1 0:22 / /groups rw - cgroup2 none rw\n");
    snprintf(text, sizeof text, "%" PRIu64 "\n", room_bytes);
    put(b, "/groups/box/memory.max", text);
    b->config.memory_root = b->root;
}

static void bench_remove(const struct bench *b)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf -- '%s'", b->root);
    cr_assert_eq(system(command), 0);
    decode_pair_remove(&b->pair);
}

static lvr_session *preview(const lvr_session_config *c)
{
    lvr_session *s = NULL;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_session_preview(c, &s, &err), LVR_OK, "%s", err.msg);
    return s;
}

static void expect_refused(const lvr_session_config *c, const char *const *words, size_t n)
{
    lvr_session *s = NULL;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_session_new(c, &s, &err), LVR_ERR_BUDGET, "%s", err.msg);
    cr_assert_null(s);
    for (size_t i = 0; i < n; i++)
        cr_assert(strstr(err.msg, words[i]), "expected \"%s\" in: %s", words[i], err.msg);
}

/* Whatever says how much is to stay, more than is left is refused. */
Test(session_plan, more_than_is_left_is_refused)
{
    static const char *const words[] = {"/groups/box/memory.max", "least feasible", "not enough memory"};
    static const char *const words_auto[] = {"/groups/box/memory.max", "--dram-budget auto", "at least"};
    struct bench b;
    bench_make(&b, LVR_BUDGET_PROGRAM_BYTES + 1000);
    expect_refused(&b.config, words, 3);
    b.config.has_budget = true;
    b.config.dram_budget_bytes = 1000 * MIB;
    expect_refused(&b.config, words, 3);
    b.config.budget_auto = true;
    expect_refused(&b.config, words_auto, 3);
    bench_remove(&b);
}

Test(session_plan, auto_takes_what_is_left)
{
    struct bench b;
    bench_make(&b, UINT64_C(1) << 40);
    lvr_session *s = preview(&b.config);
    const uint64_t all = lvr_session_parts(s)->total_bytes, least = lvr_session_get_budget(s)->least_bytes;
    cr_assert_eq(lvr_geometry_stream_bytes(lvr_session_geometry(s)), 0);
    cr_assert_lt(least, all);
    lvr_session_free(s);
    bench_remove(&b);

    const uint64_t room = LVR_BUDGET_PROGRAM_BYTES + (least + all) / 2;
    bench_make(&b, room);
    b.config.has_budget = b.config.budget_auto = true;
    s = preview(&b.config);
    const lvr_session_budget *budget = lvr_session_get_budget(s);
    cr_assert_eq(budget->budget_bytes, room - LVR_BUDGET_PROGRAM_BYTES);
    cr_assert_leq(lvr_session_parts(s)->total_bytes, budget->budget_bytes);
    cr_assert_gt(lvr_geometry_stream_bytes(lvr_session_geometry(s)), 0);
    cr_assert_eq(budget->least_bytes, least, "whatever is planned: %" PRIu64 " and %" PRIu64,
                 budget->least_bytes, least);
    lvr_session_free(s);
    bench_remove(&b);
}

/* Where nothing says what is left, auto is no budget at all; so it is refused, but only auto. */
Test(session_plan, auto_where_nothing_is_known)
{
    struct bench b;
    lvr_session *s = NULL;
    lvr_error err = LVR_ERROR_INIT;
    bench_make(&b, UINT64_C(1) << 40);
    b.config.memory_root = "/nonexistent";
    lvr_session_free(preview(&b.config));
    b.config.has_budget = b.config.budget_auto = true;
    cr_assert_eq(lvr_session_preview(&b.config, &s, &err), LVR_ERR_BUDGET);
    cr_assert(strstr(err.msg, "/proc/meminfo") && strstr(err.msg, "give a size"), "%s", err.msg);
    bench_remove(&b);
}

/* The stated least budget works, and one byte less does not, also with rows of a prompt pass left open. */
Test(session_plan, least_budget)
{
    static const char *const words[] = {"--dram-budget", "at least"};
    struct bench b;
    bench_make(&b, UINT64_C(1) << 40);
    for (uint32_t chunk = 0; chunk <= 7; chunk += 7) {
        b.config.prefill_chunk = chunk;
        b.config.has_budget = false;
        lvr_session *s = preview(&b.config);
        b.config.has_budget = true;
        b.config.dram_budget_bytes = lvr_session_get_budget(s)->least_bytes;
        lvr_session_free(s);
        s = decode_open(&b.config);
        cr_assert_eq(lvr_session_parts(s)->total_bytes, b.config.dram_budget_bytes);
        lvr_session_free(s);
        b.config.dram_budget_bytes--;
        expect_refused(&b.config, words, 2);
    }
    bench_remove(&b);
}

static atomic_int n_followed;

static void count_followed(lvr_log_level level, const char *message, void *user)
{
    (void)level;
    (void)user;
    if (strstr(message, "as lever doctor --flash measured"))
        atomic_fetch_add(&n_followed, 1);
}

/* That reads are as measured is said when they are, and only then. */
Test(session_plan, what_was_followed_is_said)
{
    const struct {
        uint64_t slice_bytes;
        uint32_t depth;
        lvr_flash_engine engine;
        bool buffered, followed;
    } cases[] = {
        {0, 0, LVR_FLASH_AUTO, false, true},          {256 << 10, 0, LVR_FLASH_URING, false, true},
        {12288, 0, LVR_FLASH_AUTO, false, false},     {0, 3, LVR_FLASH_AUTO, false, false},
        {256 << 10, 8, LVR_FLASH_AUTO, false, false}, {0, 0, LVR_FLASH_PREAD, false, false},
        {0, 0, LVR_FLASH_AUTO, true, false},
    };
    const lvr_flash_calibration k = calibration();
    struct bench b;
    bench_make(&b, UINT64_C(1) << 40);
    setenv("LVR_CACHE_DIR", b.root, 1);
    b.config.resident_fraction = 0.5;
    b.config.slice_bytes = b.config.depth = 0;
    lvr_session *s = preview(&b.config);
    cr_assert(!lvr_session_get_budget(s)->followed, "nothing is measured yet");
    lvr_session_free(s);
    cr_assert(lvr_flash_calibration_save(b.root, &k)); /* where the packs are */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        b.config.slice_bytes = cases[i].slice_bytes;
        b.config.depth = cases[i].depth;
        b.config.flash_engine = cases[i].engine;
        b.config.buffered = cases[i].buffered;
        n_followed = 0;
        lvr_log_set_sink(count_followed, LVR_LOG_INFO, NULL);
        s = preview(&b.config);
        cr_assert(lvr_session_get_budget(s)->calibrated, "case %zu", i);
        cr_assert_eq(lvr_session_get_budget(s)->followed, cases[i].followed, "case %zu", i);
        cr_assert_eq(n_followed, cases[i].followed, "case %zu", i);
        lvr_session_free(s);
    }
    bench_remove(&b);
}

/* A preview says what the session says, and cannot be run. */
Test(session_plan, preview)
{
    struct bench b;
    int32_t prompt[] = {1, 2};
    lvr_run_stats stats;
    bench_make(&b, UINT64_C(1) << 40);
    b.config.resident_fraction = 0.5;
    lvr_session *plan = preview(&b.config), *s = decode_open(&b.config);
    cr_assert_arr_eq(lvr_session_parts(plan), lvr_session_parts(s), sizeof *lvr_session_parts(s));
    cr_assert_arr_eq(lvr_session_geometry(plan)->resident, lvr_session_geometry(s)->resident, 4);
    cr_assert_eq(lvr_session_generate(plan, 0, 0, prompt, 2, 2, NULL, NULL, NULL, NULL, &stats, NULL),
                 LVR_ERR_INVARIANT);
    lvr_session_free(plan);
    lvr_session_free(s);
    bench_remove(&b);
}

/* Which layers stay changes no token; the cache's type may, but not between policies. */
Test(session_plan, layers_and_caches_in_tokens, .timeout = 60)
{
    static const bool expected[3][4] = {{1, 1, 0, 0}, {0, 1, 0, 1}, {0, 0, 1, 1}};
    struct bench b;
    struct decode_output whole, part, plain;
    lvr_policy ar;
    bench_make(&b, UINT64_C(1) << 40);
    decode_policy(&ar, "ar");
    for (lvr_kv_type kv = LVR_KV_F16; kv < LVR_KV_TYPES; kv++) {
        b.config.kv_type = kv;
        b.config.resident_fraction = 1;
        decode_once(&b.config, 2, 20, &whole);
        lvr_session_config with_ar = b.config;
        with_ar.policy = &ar;
        decode_once(&with_ar, 2, 20, &plain);
        decode_same(&plain, &whole, "ar and chain on one type of cache");
        for (lvr_residency where = LVR_RESIDENT_FIRST; where <= LVR_RESIDENT_LAST; where++) {
            b.config.resident_fraction = 0.5;
            b.config.resident_layers = where;
            lvr_session *s = decode_open(&b.config);
            lvr_policy_file run;
            lvr_session_describe(s, 20, &run);
            cr_assert_arr_eq(lvr_session_geometry(s)->resident, expected[where], 4);
            cr_assert_str_eq(run.conditions.kv_type, lvr_kv_type_name(kv));
            decode_generate(s, 2, 20, &part);
            decode_same(&whole, &part, "all resident and half of them");
            lvr_session_free(s);
        }
    }
    bench_remove(&b);
}
