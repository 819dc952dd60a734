/* Phases in one run of a pool: each sees, in plain memory, all that the one before wrote. */
#include "engine/phases.h"
#include "tests/tsan/tap.h"
#include <time.h>

#define N_UNITS 64u
#define N_PHASES 5u

typedef struct stage {
    const uint64_t *in; /* [N_UNITS], NULL for the first */
    uint64_t out[N_UNITS];
    bool slow; /* a chunk of it takes longer than others care to spin */
} stage;

static void sum_all(void *arg, uint64_t begin, uint64_t end, uint32_t worker)
{
    stage *s = arg;
    (void)worker;
    for (uint64_t u = begin; u < end; u++) {
        uint64_t sum = 1;
        for (uint32_t i = 0; s->in && i < N_UNITS; i++)
            sum += s->in[i];
        s->out[u] = sum;
    }
    if (s->slow && begin == 0)
        nanosleep(&(struct timespec){.tv_nsec = 300000}, NULL);
}

static bool run_once(lvr_pool *pool, bool slow)
{
    stage stages[N_PHASES];
    lvr_phase phases[N_PHASES];
    uint64_t expected = 1;
    for (uint32_t i = 0; i < N_PHASES; i++) {
        stages[i] = (stage){.in = i ? stages[i - 1].out : NULL, .slow = slow && i % 2 == 1};
        phases[i] = (lvr_phase){.body = sum_all, .arg = &stages[i], .n_units = N_UNITS, .chunk = 1 + i};
    }
    lvr_phases_run(pool, phases, N_PHASES);
    for (uint32_t i = 1; i < N_PHASES; i++)
        expected = expected * N_UNITS + 1;
    for (uint32_t u = 0; u < N_UNITS; u++)
        if (stages[N_PHASES - 1].out[u] != expected)
            return false;
    return true;
}

static bool add_up(lvr_pool *pool, uint32_t runs, bool slow)
{
    for (uint32_t i = 0; i < runs; i++)
        if (!run_once(pool, slow))
            return false;
    return true;
}

int main(void)
{
    for (uint32_t n = 1; n <= 16; n = n < 2 ? 2 : n * 2) {
        lvr_pool *pool = NULL;
        lvr_error err = LVR_ERROR_INIT;
        if (!tap_status(lvr_pool_new(n, &pool, &err), &err, "a pool"))
            continue;
        tap_ok(add_up(pool, 500, false), "sums of sums in one run");
        tap_ok(add_up(pool, 50, true), "with chunks that are waited for asleep");
        lvr_pool_free(pool);
    }
    return tap_done();
}
