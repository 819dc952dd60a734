#include "engine/agreement.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct measuring {
    lvr_pair *pair;
    const lvr_agreement_config *config;
    lvr_agreement *result;
    int32_t *text; /* prompt and what the target added */
    uint32_t n_text;
    uint32_t *early_equal; /* by layer asked for */
    int32_t *early;        /* best token of each layer asked for, of the current row */
} measuring;

static lvr_status check_cancel(const measuring *m, lvr_error *err)
{
    if (m->config->cancel == NULL || !atomic_load(m->config->cancel))
        return LVR_OK;
    return lvr_fail(err, LVR_ERR_INTERRUPTED, "interrupted");
}

static int32_t best_token(lvr_side *side)
{
    lvr_candidate best = {0};
    lvr_top_candidates(side->sampler, side->logits, 1, &best);
    return best.token;
}

static bool wants_layer(const measuring *m, uint32_t layer, uint32_t *ret_index)
{
    for (uint32_t i = 0; i < m->config->n_layers; i++)
        if (m->config->layers[i] == layer) {
            *ret_index = i;
            return true;
        }
    return false;
}

/* Rows [begin, begin + n) of the text through all layers of the side; with `early`, reads the asked layers'
 * heads for the last row. */
static lvr_status run_rows(measuring *m, lvr_side *side, uint32_t begin, uint32_t n, bool early,
                           lvr_error *err)
{
    lvr_fwd_row rows[LVR_AGREEMENT_ROWS];
    for (uint32_t r = 0; r < n; r++)
        rows[r] = (lvr_fwd_row){
            .token = m->text[begin + r], .position = begin + r, .slot = r, .parent_slot = (int32_t)r - 1};
    const lvr_status status = lvr_forward_embed(side->forward, rows, n, err);
    if (status != LVR_OK)
        return status;
    for (uint32_t l = 0; l < side->shape->n_layers; l++) {
        uint32_t index;
        lvr_forward_layer(side->forward, l, NULL);
        if (!early || !wants_layer(m, l + 1, &index))
            continue;
        lvr_forward_head(side->forward, n - 1, side->logits);
        m->early[index] = best_token(side);
    }
    return LVR_OK;
}

static lvr_status commit_rows(lvr_side *side, uint32_t n, lvr_error *err)
{
    uint32_t slots[LVR_AGREEMENT_ROWS];
    for (uint32_t r = 0; r < n; r++)
        slots[r] = r;
    return lvr_kv_commit(&side->kv, slots, n, err);
}

static double standard_deviation(const float *x, uint32_t n)
{
    double sum = 0, squares = 0;
    for (uint32_t i = 0; i < n; i++) {
        sum += (double)x[i];
        squares += (double)x[i] * (double)x[i];
    }
    const double mean = sum / n;
    return sqrt(fmax(squares / n - mean * mean, 0));
}

/* The target's next token after the rows just run, and what its early layers thought. */
static void take_token(measuring *m, uint32_t row)
{
    lvr_side *target = &m->pair->target;
    lvr_forward_head(target->forward, row, target->logits);
    const int32_t token = best_token(target);
    m->text[m->n_text++] = token;
    m->result->logit_std += standard_deviation(target->logits, target->shape->vocab);
    for (uint32_t i = 0; i < m->config->n_layers; i++)
        m->early_equal[i] += m->early[i] == token;
}

static lvr_status generate(measuring *m, lvr_error *err)
{
    lvr_side *target = &m->pair->target;
    const uint32_t n_all = m->config->n_prompt + m->config->n_tokens;
    uint32_t at = 0;
    lvr_status status = LVR_OK;
    lvr_kv_clear(&target->kv);
    while (m->n_text < n_all && status == LVR_OK) {
        const uint32_t left = m->n_text - at, n = left < LVR_AGREEMENT_ROWS ? left : LVR_AGREEMENT_ROWS;
        const bool last = n == left;
        status = check_cancel(m, err);
        if (status == LVR_OK)
            status = run_rows(m, target, at, n, last, err);
        if (status == LVR_OK && last)
            take_token(m, n - 1);
        if (status == LVR_OK)
            status = commit_rows(target, n, err);
        at += n;
    }
    return status;
}

/* ---- the draft ---- */

struct draft_tally {
    uint32_t rank_counts[LVR_AGREEMENT_TOP];
    uint32_t n_right;
    double p_right, p_wrong;
    bool *right; /* by generated token */
};

static void judge(measuring *m, struct draft_tally *t, uint32_t position)
{
    lvr_side *draft = &m->pair->draft;
    lvr_candidate best[LVR_AGREEMENT_TOP];
    const uint32_t n = lvr_top_candidates(draft->sampler, draft->logits, LVR_AGREEMENT_TOP, best);
    const int32_t wanted = m->text[position + 1];
    const bool right = best[0].token == wanted;
    t->right[position + 1 - m->config->n_prompt] = right;
    t->n_right += right;
    *(right ? &t->p_right : &t->p_wrong) += (double)best[0].p_draft;
    for (uint32_t k = 0; k < n; k++)
        if (best[k].token == wanted)
            t->rank_counts[k]++;
}

static lvr_status force_draft(measuring *m, struct draft_tally *t, lvr_error *err)
{
    lvr_side *draft = &m->pair->draft;
    const uint32_t n_rows = m->n_text - 1; /* nothing is known about what comes after the last token */
    lvr_status status = LVR_OK;
    lvr_kv_clear(&draft->kv);
    for (uint32_t at = 0; at < n_rows && status == LVR_OK; at += LVR_AGREEMENT_ROWS) {
        const uint32_t n = n_rows - at < LVR_AGREEMENT_ROWS ? n_rows - at : LVR_AGREEMENT_ROWS;
        status = check_cancel(m, err);
        if (status == LVR_OK)
            status = run_rows(m, draft, at, n, false, err);
        for (uint32_t r = 0; r < n && status == LVR_OK; r++) {
            if (at + r + 1 < m->config->n_prompt)
                continue;
            lvr_forward_head(draft->forward, r, draft->logits);
            judge(m, t, at + r);
        }
        if (status == LVR_OK)
            status = commit_rows(draft, n, err);
    }
    return status;
}

/* Rounds as decoding has them: accepted tokens and one more of the target's own. */
static double mean_accepted(const bool *right, uint32_t n)
{
    uint32_t rounds = 0, accepted = 0;
    for (uint32_t at = 0; at + LVR_AGREEMENT_CHAIN <= n; rounds++) {
        uint32_t run = 0;
        while (run < LVR_AGREEMENT_CHAIN && right[at + run])
            run++;
        accepted += run;
        at += run + 1;
    }
    return rounds > 0 ? (double)accepted / rounds : NAN;
}

static lvr_status measure_draft(measuring *m, lvr_error *err)
{
    const uint32_t n = m->config->n_tokens;
    struct draft_tally t = {.right = calloc(n, sizeof *t.right)};
    if (t.right == NULL)
        return lvr_fail(err, LVR_ERR_NOMEM, "agreement: out of memory");
    const lvr_status status = force_draft(m, &t, err);
    if (status == LVR_OK) {
        lvr_agreement *a = m->result;
        double sum = 0;
        for (uint32_t k = 0; k < LVR_AGREEMENT_TOP; k++) {
            sum += t.rank_counts[k];
            a->top[k] = sum / n;
        }
        a->accepted = mean_accepted(t.right, n);
        a->confidence_right = t.n_right > 0 ? t.p_right / t.n_right : NAN;
        a->confidence_wrong = t.n_right < n ? t.p_wrong / (n - t.n_right) : NAN;
    }
    free(t.right);
    return status;
}

/* ---- repetition ---- */

static bool same_4gram(const int32_t *a, const int32_t *b)
{
    return memcmp(a, b, 4 * sizeof *a) == 0;
}

static void measure_repetition(lvr_agreement *a)
{
    uint32_t repeated = 0;
    for (uint32_t i = 0; i < a->n_tokens; i++) {
        bool seen = false, gram_seen = false;
        for (uint32_t back = 1; back <= i; back++) {
            seen |= a->tokens[i - back] == a->tokens[i];
            if (a->tokens[i - back] == a->tokens[i] && (a->shortest_return == 0 || back < a->shortest_return))
                a->shortest_return = back;
            gram_seen |= i + 4 <= a->n_tokens && same_4gram(a->tokens + i, a->tokens + i - back);
        }
        a->distinct_tokens += !seen;
        repeated += gram_seen;
    }
    a->repeated_4grams = a->n_tokens >= 4 ? (double)repeated / (a->n_tokens - 3) : 0;
}

/* ---- the whole ---- */

static lvr_status measure(measuring *m, lvr_error *err)
{
    const lvr_agreement_config *c = m->config;
    lvr_agreement *a = m->result;
    memcpy(m->text, c->prompt, c->n_prompt * sizeof *m->text);
    m->n_text = c->n_prompt;
    lvr_status status = generate(m, err);
    if (status != LVR_OK)
        return status;
    memcpy(a->tokens, m->text + c->n_prompt, c->n_tokens * sizeof *a->tokens);
    a->logit_std /= c->n_tokens;
    for (uint32_t i = 0; i < c->n_layers; i++)
        a->early[i] = (double)m->early_equal[i] / c->n_tokens;
    measure_repetition(a);
    return m->pair->has_draft ? measure_draft(m, err) : LVR_OK;
}

lvr_status lvr_agreement_measure(lvr_pair *pair, const lvr_agreement_config *c, lvr_agreement *ret,
                                 lvr_error *err)
{
    lvr_agreement a = {.n_tokens = c->n_tokens};
    measuring m = {.pair = pair, .config = c, .result = &a};
    lvr_status status = LVR_OK;
    a.tokens = calloc(c->n_tokens, sizeof *a.tokens);
    a.early = calloc(c->n_layers + 1, sizeof *a.early);
    m.text = calloc((size_t)c->n_prompt + c->n_tokens, sizeof *m.text);
    m.early_equal = calloc(c->n_layers + 1, sizeof *m.early_equal);
    m.early = calloc(c->n_layers + 1, sizeof *m.early);
    if (a.tokens == NULL || a.early == NULL || m.text == NULL || m.early_equal == NULL || m.early == NULL)
        status = lvr_fail(err, LVR_ERR_NOMEM, "agreement: out of memory");
    else
        status = measure(&m, err);
    free(m.text);
    free(m.early_equal);
    free(m.early);
    if (status != LVR_OK)
        lvr_agreement_free(&a);
    else
        *ret = a;
    return status;
}

void lvr_agreement_free(lvr_agreement *a)
{
    free(a->tokens);
    free(a->early);
    a->tokens = NULL;
    a->early = NULL;
}
