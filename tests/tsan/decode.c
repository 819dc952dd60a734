/* A short timing recording of the embedded pair: pool, flash reader, ring, recorder and accelerator at once.
 */
#include "engine/decode.h"
#include "tests/tsan/tap.h"
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N_PREDICT 10u

typedef struct paths {
    char target[512], draft[512], trace[64];
} paths;

typedef struct result {
    int32_t tokens[N_PREDICT];
    uint32_t n;
} result;

static bool keep(void *user, int32_t token)
{
    result *r = user;
    if (r->n < N_PREDICT)
        r->tokens[r->n++] = token;
    return true;
}

static bool generate(lvr_session *s, result *ret, lvr_error *err)
{
    static const char text[] = "User: I need a table for two.\nAssistant:";
    int32_t *prompt = NULL;
    uint32_t n = 0;
    lvr_run_stats stats;
    lvr_status status = lvr_tokenize(lvr_session_tokenizer(s), text, sizeof text - 1, true, &prompt, &n, err);
    if (status == LVR_OK)
        status = lvr_session_generate(s, 1, 0, prompt, n, N_PREDICT, keep, ret, NULL, NULL, &stats, err);
    free(prompt);
    return status == LVR_OK;
}

static bool record(lvr_session *s, const char *path, result *ret, lvr_error *err)
{
    lvr_trace_meta meta;
    lvr_trace_writer *w = NULL;
    if (lvr_session_trace_meta(s, N_PREDICT, &meta, err) != LVR_OK)
        return false;
    lvr_status status = lvr_trace_writer_open(path, &meta, true, &w, err);
    free(meta.config_yaml);
    if (status != LVR_OK)
        return false;
    status = lvr_session_set_trace(s, w, err);
    const bool good = status == LVR_OK && generate(s, ret, err);
    lvr_session_free(s);
    return lvr_trace_writer_close(w, good, good ? err : NULL) == LVR_OK && good;
}

static void run(const paths *p, const char *policy_name, lvr_flash_engine engine, uint32_t threads,
                const char *accel, result *ret)
{
    lvr_error err = LVR_ERROR_INIT;
    lvr_policy policy;
    lvr_session_config c;
    lvr_session *s = NULL;
    char what[96];
    snprintf(what, sizeof what, "%s, %s, %u threads, %s", policy_name,
             engine == LVR_FLASH_PREAD ? "lanes" : "any engine", threads, accel ? accel : "no accelerator");
    lvr_session_config_init(&c);
    c.target_path = p->target;
    c.draft_path = p->draft;
    c.policy = &policy;
    c.slice_bytes = 65536;
    c.resident_fraction = 0.25;
    c.n_ctx = 64;
    c.threads = threads;
    c.flash_engine = engine;
    c.accel = accel;
    c.place = accel ? LVR_PLACE_NPU : LVR_PLACE_CPU;
    if (tap_status(lvr_policy_init(&policy, policy_name, &err), &err, what) &&
        tap_status(lvr_session_new(&c, &s, &err), &err, what)) {
        tap_ok(record(s, p->trace, ret, &err), what);
        if (err.msg[0])
            printf("# %s\n", err.msg);
    }
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st, (void)type, (void)at;
    return remove(path);
}

int main(void)
{
    char folder[] = "lvr-tsan-decode-XXXXXX";
    const char *root = getenv("LVR_SOURCE_ROOT");
    paths p;
    result plain = {0}, random = {0}, lanes = {0}, matrix = {0};
    if (!tap_ok(root && mkdtemp(folder), "LVR_SOURCE_ROOT and a folder"))
        return tap_done();
    setenv("LVR_CACHE_DIR", folder, 1); /* packs made on the way go there */
    snprintf(p.target, sizeof p.target, "%s/models/lever-target-10m-q8_0.gguf", root);
    snprintf(p.draft, sizeof p.draft, "%s/models/lever-draft-1m-q8_0.gguf", root);
    snprintf(p.trace, sizeof p.trace, "%s/run.h5", folder);
    run(&p, "ar", LVR_FLASH_AUTO, 1, NULL, &plain);
    run(&p, "random", LVR_FLASH_AUTO, 2, NULL, &random);
    run(&p, "random", LVR_FLASH_PREAD, 4, NULL, &lanes);
    run(&p, "random", LVR_FLASH_PREAD, 2, "matrix", &matrix);
    tap_ok(plain.n > 0 && memcmp(&plain, &random, sizeof plain) == 0 &&
               memcmp(&plain, &lanes, sizeof plain) == 0 && memcmp(&plain, &matrix, sizeof plain) == 0,
           "the same tokens each time");
    tap_ok(nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS) == 0, "cleans up");
    return tap_done();
}
