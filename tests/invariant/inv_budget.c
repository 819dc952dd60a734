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

/* One way to run: everything else is the same. */
typedef struct way {
    const char *kv_type, *resident_layers, *ring, *policy, *prefill_chunk;
} way;

#define MAX_ARGS 40

/* The arguments of `lever run`, or of `lever model plan` with the same plan. */
static void arguments(const char **argv, const char *program, bool plan, const way *w, const char *target,
                      const char *draft, const char *prompt, const char *budget)
{
    const char *const same[] = {"-m",
                                target,
                                "-md",
                                draft,
                                "--policy",
                                w->policy,
                                "--ring",
                                w->ring,
                                "--kv-type",
                                w->kv_type,
                                "-c",
                                "800",
                                "--json",
                                "--resident-layers",
                                w->resident_layers,
                                "--prefill-chunk",
                                w->prefill_chunk};
    const char *const run[] = {"-f", prompt, "-n", "2", "-q", "--ignore-eos"};
    size_t n = 0;
    argv[n++] = program;
    argv[n++] = plan ? "model" : "run";
    if (plan)
        argv[n++] = "plan";
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        argv[n++] = same[i];
    for (size_t i = 0; !plan && i < sizeof run / sizeof *run; i++)
        argv[n++] = run[i];
    if (budget) {
        argv[n++] = "--dram-budget";
        argv[n++] = budget;
    }
    argv[n] = NULL;
}

typedef struct runs {
    const char *program;
    struct model_file target, draft;
    char out[128], prompt[128];
} runs;

static uint64_t least_budget(const runs *r, const way *w)
{
    const char *argv[MAX_ARGS];
    arguments(argv, r->program, true, w, r->target.path, r->draft.path, r->prompt, NULL);
    cr_assert_eq(run_program(argv, r->out), 0);
    return json_number(r->out, "least_feasible_bytes");
}

static int run_within(const runs *r, const way *w, uint64_t budget_bytes)
{
    const char *argv[MAX_ARGS];
    char budget[32];
    snprintf(budget, sizeof budget, "%" PRIu64, budget_bytes);
    arguments(argv, r->program, false, w, r->target.path, r->draft.path, r->prompt, budget);
    return run_program(argv, r->out);
}

static void check_run(const runs *r, const way *w, uint64_t budget_bytes)
{
    cr_assert_eq(run_within(r, w, budget_bytes), 0);
    const uint64_t peak = json_number(r->out, "peak_rss_bytes");
    cr_assert_leq(json_number(r->out, "dram_plan_bytes"), budget_bytes);
    cr_assert_leq(peak, budget_bytes + SLACK_BYTES,
                  "peak of %" PRIu64 " bytes with a budget of %" PRIu64
                  ", KV %s, %s layers resident, ring of %s",
                  peak, budget_bytes, w->kv_type, w->resident_layers, w->ring);
    cr_assert_gt(json_number(r->out, "bytes_read"), 0, "something is streamed, or this proves nothing");
    cr_assert_gt(json_number(r->out, "n_prompt"), 300);
}

static void make_models(runs *r)
{
    char text[400];
    lvr_error err = LVR_ERROR_INIT;
    r->program = getenv("LVR_LEVER");
    cr_assert(r->program, "LVR_LEVER must name the program");
    model_file_make(&r->draft,
                    &(struct gguf_tiny){.type = LVR_Q8_0, .n_layers = 1, .n_ctx = 1024, .seed = 4});
    model_file_make(&r->target, &(struct gguf_tiny){.type = LVR_Q8_0,
                                                    .n_layers = 16,
                                                    .d_model = 512,
                                                    .n_heads = 8,
                                                    .n_kv = 4,
                                                    .d_ff = 2048,
                                                    .n_ctx = 1024,
                                                    .seed = 4});
    snprintf(r->out, sizeof r->out, "%s/out.json", r->target.dir);
    snprintf(r->prompt, sizeof r->prompt, "%s/prompt.txt", r->target.dir);
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)('a' + i * i % 26);
    cr_assert_eq(lvr_write_file_atomic(r->prompt, text, sizeof text, &err), LVR_OK, "%s", err.msg);
}

/* The first plan also packs, once, which is no part of a run. */
Test(inv_budget, peak_memory, .timeout = 500)
{
#if defined(__SANITIZE_ADDRESS__)
    cr_skip("the sanitizer's own memory counts too");
#endif
    static const way ways[] = {
        {"f16", "spread", "2", "chain", "0"},  {"f16", "first", "4", "chain", "64"},
        {"q8_0", "last", "2", "random", "0"},  {"q8_0", "spread", "4", "ar", "600"},
        {"f16", "last", "1", "random", "300"},
    };
    runs r;
    make_models(&r);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        const uint64_t least = least_budget(&r, &ways[i]);
        check_run(&r, &ways[i], least);
        check_run(&r, &ways[i], least + 14 * MIB);
        cr_assert_eq(run_within(&r, &ways[i], least - 1), 2, "a budget that is too small is refused");
    }
    model_file_remove(&r.draft);
    model_file_remove(&r.target);
}
