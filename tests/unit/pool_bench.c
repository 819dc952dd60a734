/*
 * What sharing work among threads costs on this machine: prints, and judges nothing (meson test --benchmark).
 * pool_bench [THREADS]      default: 2
 * A phase that is not empty has two units of a microsecond or two for each thread.
 */
#include "common/clock.h"
#include "common/stats.h"
#include "engine/phases.h"
#include <stdio.h>
#include <stdlib.h>

#define N_PHASES 7u
#define N_SAMPLES 2000u
#define UNIT_ITERATIONS 2000u

static void do_nothing(void *arg, uint32_t worker, uint32_t n_workers)
{
    (void)arg;
    (void)worker;
    (void)n_workers;
}

static void no_unit(void *arg, uint64_t begin, uint64_t end, uint32_t worker)
{
    (void)arg;
    (void)begin;
    (void)end;
    (void)worker;
}

static void spin_unit(void *arg, uint64_t begin, uint64_t end, uint32_t worker)
{
    (void)arg;
    (void)worker;
    for (uint64_t u = begin; u < end; u++)
        for (volatile uint32_t i = 0; i < UNIT_ITERATIONS; i = i + 1)
            ;
}

static void run_phases(lvr_pool *pool, lvr_range_fn body, uint64_t n_units)
{
    lvr_phase phases[N_PHASES];
    for (uint32_t i = 0; i < N_PHASES; i++)
        phases[i] = (lvr_phase){.body = body, .n_units = n_units, .chunk = 1};
    lvr_phases_run(pool, phases, N_PHASES);
}

typedef struct subject {
    const char *name;
    lvr_range_fn body; /* NULL: an empty run */
    uint64_t n_units, per;
} subject;

static void measure(lvr_pool *pool, const subject *s)
{
    static double ns[N_SAMPLES];
    for (uint32_t i = 0; i < N_SAMPLES; i++) {
        const uint64_t start = lvr_now_ns();
        if (s->body)
            run_phases(pool, s->body, s->n_units);
        else
            lvr_pool_run(pool, do_nothing, NULL);
        ns[i] = (double)(lvr_now_ns() - start) / (double)s->per;
    }
    printf("%-32s least %9.0f ns, median %9.0f ns, p90 %9.0f ns\n", s->name, lvr_quantile(ns, N_SAMPLES, 0),
           lvr_median(ns, N_SAMPLES), lvr_quantile(ns, N_SAMPLES, 0.9));
}

int main(int argc, char **argv)
{
    const uint32_t n = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 2;
    lvr_pool *pool = NULL;
    lvr_error err = LVR_ERROR_INIT;
    if (lvr_pool_new(n, &pool, &err) != LVR_OK) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    const subject subjects[] = {
        {"an empty run", NULL, 0, 1},
        {"a phase of one empty unit", no_unit, 1, N_PHASES},
        {"a phase of 64 empty units", no_unit, 64, N_PHASES},
        {"a phase of work", spin_unit, 2 * (uint64_t)n, N_PHASES},
    };
    printf("%u threads\n", n);
    for (uint32_t i = 0; i < sizeof subjects / sizeof *subjects; i++)
        measure(pool, &subjects[i]);
    lvr_pool_free(pool);
    return 0;
}
