/*
 * Where an incomplete recording ends. Streams are cut to what all of them hold:
 *   timing, simulated  the last round R that /rounds, /round_nodes, /flash and /kernels (those that have
 * rows) reach, with all its nodes; tokens up to what R committed; requests whose output is whole by then
 *   oracle             the last (request, pos) K whose rows in /trees and /draft_topk are known to be whole
 * because rows of a later one follow; requests are recorded in ascending order of id, positions ascending
 * within one bench, imported    nothing to cut
 */
#include "common/log.h"
#include "traces/trace_parts.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define STEP_ROWS 8192u
#define NO_ROUND UINT64_MAX

typedef struct id_set {
    uint64_t *ids;
    size_t n, cap;
} id_set;

typedef struct oracle_key {
    bool any;
    uint64_t request;
    uint32_t pos;
} oracle_key;

typedef struct cut {
    lvr_trace *trace;
    bool by_round, by_key; /* which rules hold */
    /* by_round */
    bool any_round;
    lvr_rec_round last; /* R */
    id_set requests;    /* that have rounds up to R */
    /* by_key */
    oracle_key key; /* K */
} cut;

/* ---- passes over the uncut rows
 * ----------------------------------------------------------------------------------------------- */

typedef lvr_status (*row_fn)(void *arg, uint64_t index, const void *record, lvr_error *err);

static lvr_status for_raw(lvr_trace *t, lvr_stream stream, row_fn fn, void *arg, lvr_error *err)
{
    const size_t bytes = lvr_stream_describe(stream)->record_bytes;
    const uint64_t rows = lvr_trace_raw_rows(t, stream);
    char *records = malloc(STEP_ROWS * bytes);
    if (!records)
        return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory for rows", t->path);
    lvr_status st = LVR_OK;
    for (uint64_t at = 0; at < rows && st == LVR_OK; at += STEP_ROWS) {
        const uint64_t n = rows - at < STEP_ROWS ? rows - at : STEP_ROWS;
        st = lvr_trace_read_raw(t, stream, at, n, records, err);
        for (uint64_t i = 0; i < n && st == LVR_OK; i++)
            st = fn(arg, at + i, records + i * bytes, err);
    }
    free(records);
    return st;
}

/* The round of a record of a stream that has one. */
static uint64_t round_of(lvr_stream stream, const void *record)
{
    switch (stream) {
    case LVR_STREAM_ROUNDS:
        return ((const lvr_rec_round *)record)->round;
    case LVR_STREAM_ROUND_NODES:
        return ((const lvr_rec_round_node *)record)->round;
    case LVR_STREAM_FLASH:
        return ((const lvr_rec_flash *)record)->round;
    case LVR_STREAM_KERNELS:
        return ((const lvr_rec_kernel *)record)->round;
    default:
        return NO_ROUND;
    }
}

/* ---- the last round
 * ------------------------------------------------------------------------------------------------------------
 */

typedef struct max_round {
    lvr_stream stream;
    bool any;
    uint64_t max;
} max_round;

static lvr_status see_round(void *arg, uint64_t index, const void *record, lvr_error *err)
{
    max_round *m = arg;
    const uint64_t round = round_of(m->stream, record);
    (void)index;
    (void)err;
    if (round != NO_ROUND && (!m->any || round > m->max)) {
        m->any = true;
        m->max = round;
    }
    return LVR_OK;
}

/* The largest round that every stream with rows reaches; NO_ROUND if /rounds has none. */
static lvr_status common_round(lvr_trace *t, uint64_t *ret, lvr_error *err)
{
    uint64_t common = NO_ROUND;
    for (int s = LVR_STREAM_ROUNDS; s <= LVR_STREAM_KERNELS; s++) {
        max_round m = {.stream = (lvr_stream)s};
        const lvr_status st = for_raw(t, m.stream, see_round, &m, err);
        if (st != LVR_OK)
            return st;
        if (s == LVR_STREAM_ROUNDS && !m.any)
            break;
        if (m.any && m.max < common)
            common = m.max;
    }
    *ret = common;
    return LVR_OK;
}

typedef struct find_round {
    uint64_t limit;
    bool any;
    lvr_rec_round found;
} find_round;

/* Keeps the row of the largest round up to the limit. */
static lvr_status see_candidate(void *arg, uint64_t index, const void *record, lvr_error *err)
{
    find_round *f = arg;
    const lvr_rec_round *r = record;
    (void)index;
    (void)err;
    if (r->round <= f->limit && (!f->any || r->round >= f->found.round)) {
        f->any = true;
        f->found = *r;
    }
    return LVR_OK;
}

typedef struct count_nodes {
    uint64_t round, n;
} count_nodes;

static lvr_status see_node(void *arg, uint64_t index, const void *record, lvr_error *err)
{
    count_nodes *c = arg;
    (void)index;
    (void)err;
    c->n += ((const lvr_rec_round_node *)record)->round == c->round;
    return LVR_OK;
}

/* Finds R: the last common round, or the one before it if some of its nodes are missing. */
static lvr_status find_last_round(cut *c, lvr_error *err)
{
    find_round f = {0};
    lvr_status st = common_round(c->trace, &f.limit, err);
    if (st != LVR_OK || f.limit == NO_ROUND)
        return st;
    st = for_raw(c->trace, LVR_STREAM_ROUNDS, see_candidate, &f, err);
    if (st != LVR_OK || !f.any)
        return st;
    count_nodes nodes = {.round = f.found.round};
    const bool has_nodes = lvr_trace_raw_rows(c->trace, LVR_STREAM_ROUND_NODES) > 0 && !f.found.prefill;
    st = has_nodes ? for_raw(c->trace, LVR_STREAM_ROUND_NODES, see_node, &nodes, err) : LVR_OK;
    if (st == LVR_OK && has_nodes && nodes.n < f.found.n_nodes) {
        const uint64_t partial = f.found.round;
        f = (find_round){.limit = partial - 1};
        if (partial > 0)
            st = for_raw(c->trace, LVR_STREAM_ROUNDS, see_candidate, &f, err);
    }
    c->any_round = f.any;
    c->last = f.found;
    return st;
}

static int compare_ids(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static bool has_id(const id_set *set, uint64_t id)
{
    return set->n > 0 && bsearch(&id, set->ids, set->n, sizeof id, compare_ids) != NULL;
}

static lvr_status see_request(void *arg, uint64_t index, const void *record, lvr_error *err)
{
    cut *c = arg;
    const lvr_rec_round *r = record;
    id_set *set = &c->requests;
    (void)index;
    if (!c->any_round || r->round > c->last.round || (set->n > 0 && set->ids[set->n - 1] == r->request))
        return LVR_OK;
    if (set->n == set->cap) {
        const size_t cap = set->cap ? set->cap * 2 : 64;
        uint64_t *ids = realloc(set->ids, cap * sizeof *ids);
        if (!ids)
            return lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory for request numbers", c->trace->path);
        set->ids = ids;
        set->cap = cap;
    }
    set->ids[set->n++] = r->request;
    return LVR_OK;
}

static lvr_status find_requests(cut *c, lvr_error *err)
{
    const lvr_status st = for_raw(c->trace, LVR_STREAM_ROUNDS, see_request, c, err);
    if (st == LVR_OK && c->requests.n > 1)
        qsort(c->requests.ids, c->requests.n, sizeof *c->requests.ids, compare_ids);
    return st;
}

/* ---- the last position of an oracle trace
 * -------------------------------------------------------------------------------------- */

static int compare_keys(const oracle_key *a, const oracle_key *b)
{
    if (a->request != b->request)
        return a->request < b->request ? -1 : 1;
    return (a->pos > b->pos) - (a->pos < b->pos);
}

static oracle_key key_of(lvr_stream stream, const void *record)
{
    if (stream == LVR_STREAM_TREES) {
        const lvr_rec_tree *r = record;
        return (oracle_key){true, r->request, r->pos};
    }
    if (stream == LVR_STREAM_EXIT) {
        const lvr_rec_exit *r = record;
        return (oracle_key){true, r->request, r->pos};
    }
    const lvr_rec_draft_topk *r = record;
    return (oracle_key){true, r->request, r->pos};
}

typedef struct key_scan {
    lvr_stream stream;
    oracle_key current, whole; /* whole: the key before the current one */
} key_scan;

static lvr_status see_key(void *arg, uint64_t index, const void *record, lvr_error *err)
{
    key_scan *k = arg;
    const oracle_key key = key_of(k->stream, record);
    (void)index;
    (void)err;
    if (k->current.any && compare_keys(&key, &k->current) != 0)
        k->whole = k->current;
    k->current = key;
    return LVR_OK;
}

static lvr_status find_last_key(cut *c, lvr_error *err)
{
    key_scan trees = {.stream = LVR_STREAM_TREES}, topk = {.stream = LVR_STREAM_DRAFT_TOPK};
    lvr_status st = for_raw(c->trace, LVR_STREAM_TREES, see_key, &trees, err);
    if (st == LVR_OK)
        st = for_raw(c->trace, LVR_STREAM_DRAFT_TOPK, see_key, &topk, err);
    if (st != LVR_OK)
        return st;
    c->key = trees.whole;
    if (topk.current.any && c->key.any && (!topk.whole.any || compare_keys(&topk.whole, &c->key) < 0))
        c->key = topk.whole;
    return LVR_OK;
}

/* ---- what stays
 * ----------------------------------------------------------------------------------------------------------------
 */

static bool keep_by_round(const cut *c, lvr_stream stream, const void *record)
{
    const uint64_t round = round_of(stream, record);
    if (!c->any_round)
        return false;
    if (round == NO_ROUND) /* run-ahead that nothing consumed */
        return stream == LVR_STREAM_FLASH && ((const lvr_rec_flash *)record)->t_end_ns <= c->last.t_commit_ns;
    return round <= c->last.round;
}

/* Positions below this are committed once R is. */
static uint64_t committed_end(const lvr_rec_round *r)
{
    const uint64_t rows = r->prefill ? (uint64_t)r->n_nodes : (uint64_t)r->n_accepted + 1;
    return r->pos + rows + 1;
}

static bool keep_token_by_round(const cut *c, const lvr_rec_token *t)
{
    if (!c->any_round || !has_id(&c->requests, t->request))
        return false;
    return t->request != c->last.request || !t->is_output || t->pos < committed_end(&c->last);
}

static bool keep_request_by_round(const cut *c, const lvr_rec_request *r)
{
    if (!c->any_round || !has_id(&c->requests, r->id))
        return false;
    return r->id != c->last.request || (uint64_t)r->n_prompt + r->n_output <= committed_end(&c->last);
}

static bool keep_by_key(const cut *c, lvr_stream stream, const void *record)
{
    const oracle_key key = key_of(stream, record);
    return c->key.any && compare_keys(&key, &c->key) <= 0;
}

/* The token after the last root stays: it is that root's outcome. */
static bool keep_token_by_key(const cut *c, const lvr_rec_token *t)
{
    if (!c->key.any || t->request > c->key.request)
        return false;
    return t->request < c->key.request || !t->is_output || t->pos <= (uint64_t)c->key.pos + 1;
}

static bool keep(const cut *c, lvr_stream stream, const void *record)
{
    switch (stream) {
    case LVR_STREAM_ROUNDS:
    case LVR_STREAM_ROUND_NODES:
    case LVR_STREAM_FLASH:
    case LVR_STREAM_KERNELS:
        return !c->by_round || keep_by_round(c, stream, record);
    case LVR_STREAM_TREES:
    case LVR_STREAM_DRAFT_TOPK:
    case LVR_STREAM_EXIT: /* put before its position's tree, so whole wherever that is */
        return !c->by_key || keep_by_key(c, stream, record);
    case LVR_STREAM_TOKENS:
        return c->by_key ? keep_token_by_key(c, record) : !c->by_round || keep_token_by_round(c, record);
    case LVR_STREAM_REQUESTS:
        if (c->by_key)
            return c->key.any && ((const lvr_rec_request *)record)->id <= c->key.request;
        return !c->by_round || keep_request_by_round(c, record);
    default:
        return true;
    }
}

typedef struct keep_pass {
    const cut *cut;
    lvr_stream stream;
} keep_pass;

static lvr_status see_kept(void *arg, uint64_t index, const void *record, lvr_error *err)
{
    const keep_pass *p = arg;
    if (!keep(p->cut, p->stream, record))
        return LVR_OK;
    return lvr_kept_add(&p->cut->trace->kept[p->stream], index, 1, err);
}

static bool has_rounds(const lvr_trace *t)
{
    for (int s = LVR_STREAM_ROUNDS; s <= LVR_STREAM_KERNELS; s++)
        if (lvr_trace_raw_rows(t, (lvr_stream)s) > 0)
            return true;
    return false;
}

static lvr_status find_end(cut *c, lvr_error *err)
{
    const lvr_trace_kind kind = c->trace->meta.kind;
    c->by_key = kind == LVR_TRACE_ORACLE;
    c->by_round = kind == LVR_TRACE_TIMING ||
                  ((kind == LVR_TRACE_SIMULATED || kind == LVR_TRACE_ORACLE) && has_rounds(c->trace));
    lvr_status st = c->by_round ? find_last_round(c, err) : LVR_OK;
    if (st == LVR_OK && c->by_round)
        st = find_requests(c, err);
    return st == LVR_OK && c->by_key ? find_last_key(c, err) : st;
}

static void warn(const lvr_trace *t)
{
    uint64_t raw = 0, kept = 0;
    for (int s = 0; s < LVR_STREAM_COUNT; s++) {
        raw += lvr_trace_raw_rows(t, (lvr_stream)s);
        kept += t->kept[s].rows;
    }
    lvr_log(LVR_LOG_WARN,
            "%s: the recording was cut short; read up to the last round that all streams hold (%" PRIu64
            " of %" PRIu64 " rows)",
            t->path, kept, raw);
}

lvr_status lvr_trace_cut(lvr_trace *t, lvr_error *err)
{
    cut c = {.trace = t};
    lvr_status st = find_end(&c, err);
    for (int s = 0; s < LVR_STREAM_COUNT && st == LVR_OK; s++) {
        keep_pass pass = {&c, (lvr_stream)s};
        st = for_raw(t, (lvr_stream)s, see_kept, &pass, err);
    }
    free(c.requests.ids);
    if (st == LVR_OK)
        warn(t);
    return st;
}
