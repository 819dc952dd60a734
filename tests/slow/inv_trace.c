/*
 * INV-TRACE: timing recording changes no token and costs at most 2 % (upper bound of the 95 % interval of the
 * mean over pairs). Two sessions take turns on the same prompts, one of them recorded, each first in every
 * other pair. Time is what the inference thread itself used of a CPU, so that a busy machine does not decide
 * the outcome; the writer's thread has little to do and is not waited for.
 */
#include "common/stats.h"
#include "tests/slow/embedded_pair.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PAIRS_AT_A_TIME 64u
#define MAX_PAIRS (8 * PAIRS_AT_A_TIME) /* a busy machine needs more of them to tell */
#define N_TRIES 3                       /* of each pair; the least disturbed one of either side counts */
#define N_PREDICT 64u
#define LIMIT 0.02

static lvr_trace_writer *start_recording(lvr_session *s, const struct embedded_pair *p)
{
    char path[128];
    lvr_trace_meta meta;
    lvr_trace_writer *w = NULL;
    lvr_error err = LVR_ERROR_INIT;
    snprintf(path, sizeof path, "%s/run.h5", p->cache);
    cr_assert_eq(lvr_session_trace_meta(s, N_PREDICT, &meta, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_trace_writer_open(path, &meta, true, &w, &err), LVR_OK, "%s", err.msg);
    free(meta.config_yaml);
    cr_assert_eq(lvr_session_set_trace(s, w, &err), LVR_OK, "%s", err.msg);
    return w;
}

static double thread_seconds(void)
{
    struct timespec t;
    cr_assert_eq(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t), 0);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds of either session for one prompt; the texts must be equal. */
static void run_pair(lvr_session *const sessions[2], const lvr_prompt *prompt, int first, double *ret_seconds)
{
    int32_t *tokens[2];
    uint32_t n[2];
    for (int i = 0; i < 2; i++) {
        const int which = first ^ i;
        lvr_run_stats stats;
        const double t0 = thread_seconds();
        tokens[which] = embedded_pair_generate(sessions[which], prompt, N_PREDICT, &n[which], &stats);
        ret_seconds[which] = thread_seconds() - t0;
    }
    cr_assert_eq(n[0], n[1]);
    cr_assert_arr_eq(tokens[0], tokens[1], n[0] * sizeof tokens[0][0]);
    free(tokens[0]);
    free(tokens[1]);
}

/* Overhead of recording for one prompt, as a fraction. */
static double measure(lvr_session *const sessions[2], const lvr_prompt *prompt, int first)
{
    double best[2] = {INFINITY, INFINITY}, now[2];
    for (int i = 0; i < N_TRIES; i++) {
        run_pair(sessions, prompt, first ^ (i & 1), now);
        best[0] = fmin(best[0], now[0]);
        best[1] = fmin(best[1], now[1]);
    }
    return best[1] / best[0] - 1;
}

Test(inv_trace, recording_is_free)
{
    struct embedded_pair p;
    lvr_policy policy;
    lvr_session_config c;
    lvr_session *sessions[2] = {0};
    double overhead[MAX_PAIRS];
    lvr_error err = LVR_ERROR_INIT;
    embedded_pair_open(&p);
    embedded_pair_policy(&policy, "chain");
    embedded_pair_config(&p, &policy, &c);
    c.threads = 1;
    for (int i = 0; i < 2; i++)
        cr_assert_eq(lvr_session_new(&c, &sessions[i], &err), LVR_OK, "%s", err.msg);
    lvr_trace_writer *w = start_recording(sessions[1], &p);
    measure(sessions, &p.prompts.items[0], 0); /* warms up */
    lvr_interval interval = {0};
    for (uint32_t n = 0; n < MAX_PAIRS;) {
        for (const uint32_t end = n + PAIRS_AT_A_TIME; n < end; n++)
            overhead[n] = measure(sessions, &p.prompts.items[n % p.prompts.n], (int)(n & 1));
        interval = lvr_bootstrap_mean(overhead, n, 2000, 1);
        if (interval.hi <= LIMIT || interval.lo > LIMIT)
            break;
    }
    for (int i = 0; i < 2; i++)
        lvr_session_free(sessions[i]);
    cr_assert_eq(lvr_trace_writer_close(w, true, &err), LVR_OK, "%s", err.msg);
    embedded_pair_close(&p);
    fprintf(stderr, "# recording costs %.2f %% (95 %% interval %.2f to %.2f)\n", 100 * interval.mean,
            100 * interval.lo, 100 * interval.hi);
    cr_assert_leq(interval.hi, LIMIT, "recording costs %.2f %% (95 %% interval %.2f to %.2f)",
                  100 * interval.mean, 100 * interval.lo, 100 * interval.hi);
}
