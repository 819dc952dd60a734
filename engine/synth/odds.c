#include "engine/synth/odds.h"
#include "engine/synth/chain.h"
#include "engine/synth/values.h"
#include <math.h>
#include <stdlib.h>

#define N_DRAWS 40000u
#define MAX_CLARITY 40.0

struct lvr_odds {
    uint32_t n;
    float *draws[3]; /* [N_DRAWS][n], standard normal, independent */
};

/* Sum of twelve uniforms: normal enough (kurtosis 2.9) and free of library functions. */
static float normal(uint64_t key, uint64_t i)
{
    int32_t sum = 0;
    for (uint32_t part = 0; part < 3; part++) {
        const uint64_t h = lvr_synth_hash(key, 3 * i + part);
        for (uint32_t k = 0; k < 4; k++)
            sum += (int32_t)(h >> (16 * k) & 0xffff);
    }
    return (float)(sum - 6 * 65535) / 65536.0f;
}

lvr_status lvr_odds_new(uint32_t n_successors, lvr_odds **ret, lvr_error *err)
{
    lvr_odds *o = calloc(1, sizeof *o);
    if (o == NULL)
        return lvr_fail(err, LVR_ERR_NOMEM, "out of memory");
    o->n = n_successors;
    for (uint32_t set = 0; set < 3; set++) {
        o->draws[set] = calloc((size_t)N_DRAWS * o->n, sizeof(float));
        if (o->draws[set] == NULL) {
            lvr_odds_free(o);
            return lvr_fail(err, LVR_ERR_NOMEM, "out of memory");
        }
        const uint64_t key = lvr_synth_key(set, "odds");
        for (uint32_t i = 0; i < N_DRAWS * o->n; i++)
            o->draws[set][i] = normal(key, i);
    }
    *ret = o;
    return LVR_OK;
}

void lvr_odds_free(lvr_odds *o)
{
    if (o == NULL)
        return;
    for (uint32_t set = 0; set < 3; set++)
        free(o->draws[set]);
    free(o);
}

static double ease_of_draw(uint32_t i)
{
    return (double)lvr_chain_ease_level(i % LVR_CHAIN_EASES);
}

static uint32_t winner(const lvr_odds *o, uint32_t draw, double step, const float *noise)
{
    uint32_t best = 0;
    double top = -INFINITY;
    for (uint32_t k = 0; k < o->n; k++) {
        const double logit = (double)noise[(size_t)draw * o->n + k] - step * k;
        if (logit > top) {
            top = logit;
            best = k;
        }
    }
    return best;
}

double lvr_odds_agreement(const lvr_odds *o, double clarity)
{
    uint32_t n_equal = 0;
    for (uint32_t i = 0; i < N_DRAWS; i++) {
        const double step = clarity * ease_of_draw(i);
        n_equal += winner(o, i, step, o->draws[0]) == winner(o, i, step, o->draws[1]);
    }
    return (double)n_equal / N_DRAWS;
}

double lvr_odds_early(const lvr_odds *o, double clarity, double fixed, double fraction)
{
    const double early = sqrt((1 - fixed) * fraction), late = sqrt((1 - fixed) * (1 - fraction));
    const double base = sqrt(fixed);
    uint32_t n_equal = 0;
    for (uint32_t i = 0; i < N_DRAWS; i++) {
        /* The last layer's reading is the early one's plus what the later layers add. */
        const double step = clarity * ease_of_draw(i);
        uint32_t best[2] = {0, 0};
        double top[2] = {-INFINITY, -INFINITY};
        for (uint32_t k = 0; k < o->n; k++) {
            const size_t at = (size_t)i * o->n + k;
            const double first = base * (double)o->draws[0][at] + early * (double)o->draws[1][at] - step * k;
            const double logits[2] = {first, first + late * (double)o->draws[2][at]};
            for (uint32_t which = 0; which < 2; which++)
                if (logits[which] > top[which]) {
                    top[which] = logits[which];
                    best[which] = k;
                }
        }
        n_equal += best[0] == best[1];
    }
    return (double)n_equal / N_DRAWS;
}

static double to_three_digits(double x)
{
    return (double)(int64_t)(x * 1000.0 + 0.5) / 1000.0;
}

lvr_status lvr_odds_clarity(const lvr_odds *o, double rate, double *ret, lvr_error *err)
{
    double lo = 0, hi = MAX_CLARITY;
    const double least = lvr_odds_agreement(o, lo), most = lvr_odds_agreement(o, hi);
    if (!(rate > least && rate < most))
        return lvr_fail(
            err, LVR_ERR_CONFIG,
            "an agreement of %g cannot be planted: with %u successors it goes from %.2f to just below %.2f",
            rate, o->n, ceil(least * 100) / 100, floor(most * 100) / 100);
    for (uint32_t i = 0; i < 24; i++) {
        const double mid = (lo + hi) / 2;
        if (lvr_odds_agreement(o, mid) < rate)
            lo = mid;
        else
            hi = mid;
    }
    *ret = to_three_digits(hi);
    return LVR_OK;
}

lvr_status lvr_odds_fraction(const lvr_odds *o, double clarity, double fixed, double rate, double *ret,
                             lvr_error *err)
{
    double lo = 0, hi = 1;
    const double least = lvr_odds_early(o, clarity, fixed, lo);
    if (!(rate >= least && rate <= 1))
        return lvr_fail(err, LVR_ERR_CONFIG,
                        "an early agreement of %g cannot be planted here: it goes from %.2f to 1; more noise "
                        "widens the range",
                        rate, ceil(least * 100) / 100);
    for (uint32_t i = 0; i < 16; i++) {
        const double mid = (lo + hi) / 2;
        if (lvr_odds_early(o, clarity, fixed, mid) < rate)
            lo = mid;
        else
            hi = mid;
    }
    *ret = to_three_digits(hi);
    return LVR_OK;
}
