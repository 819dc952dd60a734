#include "engine/sampler.h"

#include "common/rng.h"
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* Logits scanned per call of the kernels' maximum while looking for candidates. */
#define SCAN_BLOCK 64u

/* Its inverse still is a finite float. */
#define MIN_TEMPERATURE 1e-38

struct lvr_sampler {
    uint32_t vocab;
    const lvr_kernels *kernels;
    float *clean;   /* [vocab] logits without NaN and infinities */
    float *weight;  /* [vocab] exp((logit - max) / temperature) */
    uint32_t *heap; /* [vocab] ids, the best on top; popped ids pile up behind its end */
};

lvr_status lvr_sampler_new(uint32_t vocab, const lvr_kernels *kernels, lvr_sampler **ret, lvr_error *err)
{
    if (vocab == 0)
        return lvr_fail(err, LVR_ERR_INVARIANT, "sampler: the vocabulary is empty");
    lvr_sampler *s = calloc(1, sizeof *s);
    if (!s)
        return lvr_fail(err, LVR_ERR_NOMEM, "sampler: out of memory");
    s->vocab = vocab;
    s->kernels = kernels;
    s->clean = calloc(vocab, sizeof *s->clean);
    s->weight = calloc(vocab, sizeof *s->weight);
    s->heap = calloc(vocab, sizeof *s->heap);
    if (!s->clean || !s->weight || !s->heap) {
        lvr_sampler_free(s);
        return lvr_fail(err, LVR_ERR_NOMEM, "sampler: out of memory for a vocabulary of %u", vocab);
    }
    *ret = s;
    return LVR_OK;
}

void lvr_sampler_free(lvr_sampler *s)
{
    if (!s)
        return;
    free(s->clean);
    free(s->weight);
    free(s->heap);
    free(s);
}

static float clean_logit(float x)
{
    if (isnan(x))
        return -FLT_MAX;
    return fminf(fmaxf(x, -FLT_MAX), FLT_MAX);
}

/* The logits themselves if all are finite (nearly always), else a copy in which NaN and -inf are -FLT_MAX and
 * +inf is FLT_MAX. *ret_any: at least one is finite. */
static const float *finite_logits(lvr_sampler *s, const float *logits, bool *ret_any)
{
    uint32_t odd = 0;
    for (uint32_t i = 0; i < s->vocab; i++)
        odd += !(fabsf(logits[i]) <= FLT_MAX);
    *ret_any = odd < s->vocab;
    if (odd == 0)
        return logits;
    for (uint32_t i = 0; i < s->vocab; i++)
        s->clean[i] = clean_logit(logits[i]);
    return s->clean;
}

/* -0.0 equals 0.0, so the first of equal logits wins whatever the sign of zero. */
static uint32_t first_of(const float *x, float value)
{
    uint32_t i = 0;
    while (x[i] != value)
        i++;
    return i;
}

static int32_t sample_greedy(lvr_sampler *s, const float *x, float max, float *ret_p)
{
    if (ret_p)
        *ret_p = 1.0f / s->kernels->softmax_exp(x, s->vocab, max, 1.0f, s->weight);
    return (int32_t)first_of(x, max);
}

/* ---- ids by (logit descending, id ascending): a heap, since few are ever asked for ---- */

static bool better(const float *x, uint32_t a, uint32_t b)
{
    return x[a] != x[b] ? x[a] > x[b] : a < b;
}

static void sift_down(uint32_t *heap, uint32_t n, const float *x, uint32_t at)
{
    const uint32_t id = heap[at];
    for (uint64_t child = 2 * (uint64_t)at + 1; child < n; child = 2 * (uint64_t)at + 1) {
        if (child + 1 < n && better(x, heap[child + 1], heap[child]))
            child++;
        if (!better(x, heap[child], id))
            break;
        heap[at] = heap[child];
        at = (uint32_t)child;
    }
    heap[at] = id;
}

static void heap_build(lvr_sampler *s, const float *x)
{
    for (uint32_t i = 0; i < s->vocab; i++)
        s->heap[i] = i;
    for (uint32_t i = s->vocab / 2; i-- > 0;)
        sift_down(s->heap, s->vocab, x, i);
}

/* Takes the best of the heap's n ids and puts it at heap[n - 1]. */
static uint32_t heap_pop(uint32_t *heap, uint32_t n, const float *x)
{
    const uint32_t best = heap[0];
    heap[0] = heap[n - 1];
    sift_down(heap, n - 1, x, 0);
    heap[n - 1] = best;
    return best;
}

/* ---- sampling ---- */

static double sum_weights(const lvr_sampler *s)
{
    double sum = 0;
    for (uint32_t i = 0; i < s->vocab; i++)
        sum += (double)s->weight[i];
    return sum;
}

/* The i-th popped id. */
static uint32_t popped(const lvr_sampler *s, uint32_t i)
{
    return s->heap[s->vocab - 1 - i];
}

/* Pops ids until `limit` are out or their weights reach `enough`; returns how many, and their summed weight.
 */
static uint32_t pop_while(lvr_sampler *s, const float *x, uint32_t limit, double enough, double *ret_sum)
{
    uint32_t n = 0;
    double sum = 0;
    while (n < limit && (n == 0 || sum < enough)) {
        sum += (double)s->weight[heap_pop(s->heap, s->vocab - n, x)];
        n++;
    }
    *ret_sum = sum;
    return n;
}

/* Shortens the popped ids to the fewest that hold top_p of their weight. */
static uint32_t cut_top_p(const lvr_sampler *s, uint32_t n, double top_p, double *sum)
{
    const double enough = top_p * *sum;
    double kept = (double)s->weight[popped(s, 0)];
    uint32_t i = 1;
    for (; i < n && kept < enough; i++)
        kept += (double)s->weight[popped(s, i)];
    *sum = kept;
    return i;
}

static uint32_t invert_popped(const lvr_sampler *s, uint32_t n, double target)
{
    double sum = 0;
    uint32_t last = popped(s, 0);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t id = popped(s, i);
        if (s->weight[id] <= 0)
            break; /* underflowed: no probability, and none behind has any */
        last = id;
        sum += (double)s->weight[id];
        if (sum > target)
            break;
    }
    return last;
}

/* Without cuts: goes down the order only as far as the target, against the sum of all. */
static uint32_t sample_all(lvr_sampler *s, const float *x, double u, double *ret_sum)
{
    const double total = sum_weights(s);
    const double target = u * total;
    double sum = 0;
    uint32_t last = 0;
    for (uint32_t n = 0; n < s->vocab; n++) {
        const uint32_t id = heap_pop(s->heap, s->vocab - n, x);
        if (n > 0 && s->weight[id] <= 0)
            break;
        last = id;
        sum += (double)s->weight[id];
        if (sum > target)
            break;
    }
    *ret_sum = total;
    return last;
}

static uint32_t sample_cut(lvr_sampler *s, const float *x, const lvr_sampling *set, double u, double *ret_sum)
{
    const bool has_k = set->top_k > 0 && set->top_k < s->vocab;
    double sum;
    uint32_t n;
    if (has_k) {
        n = pop_while(s, x, set->top_k, INFINITY, &sum);
        if (set->top_p < 1)
            n = cut_top_p(s, n, set->top_p, &sum);
    } else {
        n = pop_while(s, x, s->vocab, set->top_p * sum_weights(s), &sum);
    }
    *ret_sum = sum;
    return invert_popped(s, n, u * sum);
}

int32_t lvr_sample(lvr_sampler *s, const lvr_sampling *settings, uint64_t request, uint32_t position,
                   const float *logits, float *ret_p)
{
    bool any;
    const float *x = finite_logits(s, logits, &any);
    if (!any)
        return -1;
    const float max = s->kernels->max(x, s->vocab);
    /* A temperature too small for its inverse is the limit it goes to: greedy. */
    if (!(settings->temperature > MIN_TEMPERATURE))
        return sample_greedy(s, x, max, ret_p);
    s->kernels->softmax_exp(x, s->vocab, max, (float)(1.0 / settings->temperature), s->weight);
    heap_build(s, x);
    const double u = lvr_hash_unit(settings->seed, request, position);
    const bool cut = (settings->top_k > 0 && settings->top_k < s->vocab) || settings->top_p < 1;
    double sum;
    const uint32_t id = cut ? sample_cut(s, x, settings, u, &sum) : sample_all(s, x, u, &sum);
    if (ret_p)
        *ret_p = (float)((double)s->weight[id] / sum);
    return (int32_t)id;
}

lvr_status lvr_fail_logits(const char *path, uint64_t request, uint32_t position, lvr_error *err)
{
    return lvr_fail(
        err, LVR_ERR_FORMAT,
        "%s: request %" PRIu64
        ", position %u: no logit is a finite number, so there is no next token: weights are damaged "
        "that passed for sound when they were packed; convert or download the model again",
        path, request, position);
}

/* ---- candidates ---- */

/* Keeps ret[0..n) ordered; an equal logit stays behind those that came before, whose ids are smaller. */
static uint32_t insert_candidate(lvr_candidate *ret, uint32_t n, uint32_t k, const float *x, uint32_t id)
{
    if (n == k && !(x[id] > x[ret[n - 1].token]))
        return n;
    uint32_t at = n < k ? n++ : n - 1;
    for (; at > 0 && x[id] > x[ret[at - 1].token]; at--)
        ret[at] = ret[at - 1];
    ret[at] = (lvr_candidate){.token = (int32_t)id};
    return n;
}

static uint32_t find_candidates(const lvr_sampler *s, const float *x, uint32_t k, lvr_candidate *ret)
{
    uint32_t n = 0;
    for (uint32_t begin = 0; begin < s->vocab; begin += SCAN_BLOCK) {
        const uint32_t len = s->vocab - begin < SCAN_BLOCK ? s->vocab - begin : SCAN_BLOCK;
        if (n == k && !(s->kernels->max(x + begin, len) > x[ret[n - 1].token]))
            continue;
        for (uint32_t i = begin; i < begin + len; i++)
            n = insert_candidate(ret, n, k, x, i);
    }
    return n;
}

uint32_t lvr_top_candidates(lvr_sampler *s, const float *logits, uint32_t k, lvr_candidate *ret)
{
    if (k == 0)
        return 0;
    bool any; /* if none is, what is proposed cannot be worse: the target decides */
    const float *x = finite_logits(s, logits, &any);
    const uint32_t n = find_candidates(s, x, k < s->vocab ? k : s->vocab, ret);
    const float sum = s->kernels->softmax_exp(x, s->vocab, x[ret[0].token], 1.0f, s->weight);
    for (uint32_t i = 0; i < n; i++)
        ret[i].p_draft = s->weight[ret[i].token] / sum;
    return n;
}
