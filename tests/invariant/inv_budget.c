/*
 * INV-BUDGET: peak resident memory (VmHWM) is at most the DRAM budget + 64 MiB. A child runs the program
 * itself on a model several times larger than its budget and reports its own peak. The test asks for less
 * than the invariant grants, so that it can do with a small model.
 */
#include "common/fs.h"
#include "common/yaml.h"
#include "tests/unit/forward_rig.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1024u * 1024u)
#define SLACK_BYTES (24u * MIB)

/* Runs the program; its standard output goes to `out`. Returns its exit status. */
static int run_program(const char *const *argv, const char *out)
{
    const pid_t pid = fork();
    cr_assert(pid >= 0);
    if (pid == 0) {
        unsetenv("MALLOC_PERTURB_"); /* meson's: it touches memory that the program only reserves */
        if (freopen(out, "w", stdout))
            execv(argv[0], (char *const *)(uintptr_t)argv); /* execv does not write to them */
        _exit(127);
    }
    int status = 0;
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static uint64_t json_number(const char *path, const char *key)
{
    lvr_yaml_doc *doc = NULL;
    lvr_error err = LVR_ERROR_INIT;
    uint64_t value = 0;
    cr_assert_eq(lvr_yaml_load_file(path, &doc, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_yaml_get_u64(lvr_yaml_root(doc), key, 0, UINT64_MAX, &value, &err), LVR_OK, "%s",
                 err.msg);
    lvr_yaml_free(doc);
    return value;
}

Test(inv_budget, peak_memory, .timeout = 300)
{
#if defined(__SANITIZE_ADDRESS__)
    cr_skip("the sanitizer's own memory counts too");
#endif
    const char *program = getenv("LVR_LEVER");
    cr_assert(program, "LVR_LEVER must name the program");
    struct model_file target, draft;
    char out[128], budget[32];
    model_file_make(&draft, &(struct gguf_tiny){.type = LVR_Q8_0, .n_layers = 1, .seed = 4});
    model_file_make(&target, &(struct gguf_tiny){.type = LVR_Q8_0,
                                                 .n_layers = 16,
                                                 .d_model = 512,
                                                 .n_heads = 8,
                                                 .n_kv = 4,
                                                 .d_ff = 2048,
                                                 .seed = 4});
    snprintf(out, sizeof out, "%s/out.json", target.dir);
    /* Packing happens once and is no part of a run. */
    const char *pack[] = {program, "run", "-m", target.path, "-p", "ab", "-n", "1", NULL};
    cr_assert_eq(run_program(pack, out), 0);
    for (uint64_t mib = 26; mib <= 40; mib += 14) {
        snprintf(budget, sizeof budget, "%" PRIu64 "MiB", mib);
        const char *argv[] = {program,         "run",   "-m",       target.path, "-md", draft.path,
                              "--policy",      "chain", "--prompt", "ab",        "-n",  "4",
                              "--dram-budget", budget,  "--json",   NULL};
        cr_assert_eq(run_program(argv, out), 0);
        const uint64_t peak = json_number(out, "peak_rss_bytes"),
                       planned = json_number(out, "dram_plan_bytes");
        cr_assert_leq(planned, mib * MIB);
        cr_assert_leq(peak, mib * MIB + SLACK_BYTES,
                      "peak of %" PRIu64 " bytes with a budget of %" PRIu64 " MiB", peak, mib);
        cr_assert_gt(json_number(out, "bytes_read"), 0, "something is streamed, or this proves nothing");
    }
    const char *argv[] = {program, "run",           "-m",   target.path, "-p", "ab", "-n",
                          "4",     "--dram-budget", "1MiB", NULL};
    cr_assert_eq(run_program(argv, out), 2, "a budget that is too small is refused");
    model_file_remove(&draft);
    model_file_remove(&target);
}
