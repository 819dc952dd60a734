#include "engine/tokenizer/merge.h"
#include <stdlib.h>

#define CHILDREN 4u     /* of a heap node: they share a cache line */
#define MANY (1u << 16) /* symbols from which memory is no longer reserved ahead */

static void heap_push(struct lvr_merger *m, struct lvr_candidate item)
{
    uint32_t i = m->n_heap++;
    while (i > 0 && item.order < m->heap[(i - 1) / CHILDREN].order) {
        m->heap[i] = m->heap[(i - 1) / CHILDREN];
        i = (i - 1) / CHILDREN;
    }
    m->heap[i] = item;
}

static uint32_t best_child(const struct lvr_merger *m, uint32_t first)
{
    const uint32_t end = first + CHILDREN < m->n_heap ? first + CHILDREN : m->n_heap;
    uint32_t best = first;
    for (uint32_t i = first + 1; i < end; i++)
        best = m->heap[i].order < m->heap[best].order ? i : best;
    return best;
}

static struct lvr_candidate heap_pop(struct lvr_merger *m)
{
    const struct lvr_candidate top = m->heap[0];
    const struct lvr_candidate last = m->heap[--m->n_heap];
    uint32_t i = 0;
    for (uint32_t first = 1; first < m->n_heap; first = CHILDREN * i + 1) {
        const uint32_t child = best_child(m, first);
        if (last.order <= m->heap[child].order)
            break;
        m->heap[i] = m->heap[child];
        i = child;
    }
    m->heap[i] = last;
    return top;
}

/* Each merge removes a symbol and adds at most two candidates for the one it pops: the heap never exceeds
 * twice the symbols. */
bool lvr_merger_reserve(struct lvr_merger *m, size_t n)
{
    m->n_symbols = 0;
    m->n_heap = 0;
    if (n <= m->cap)
        return true;
    const size_t cap = n < MANY ? 2 * n + 64 : n;
    lvr_merger_free(m);
    m->symbols = malloc(cap * sizeof(*m->symbols));
    m->heap = malloc(2 * cap * sizeof(*m->heap));
    if (m->symbols == NULL || m->heap == NULL)
        return false;
    m->cap = (uint32_t)cap;
    return true;
}

void lvr_merger_push(struct lvr_merger *m, uint32_t n, int32_t id)
{
    const uint32_t i = m->n_symbols++;
    struct lvr_symbol *s = &m->symbols[i];
    *s = (struct lvr_symbol){.prev = (int32_t)i - 1, .next = -1, .n = n, .id = id};
    if (i == 0)
        return;
    s[-1].next = (int32_t)i;
    s->begin = s[-1].begin + s[-1].n;
}

static void consider(struct lvr_merger *m, int32_t left, int32_t right)
{
    if (left < 0 || right < 0)
        return;
    const struct lvr_symbol *a = &m->symbols[left], *b = &m->symbols[right];
    uint32_t rank = 0;
    int32_t id = -1;
    if (m->pair(m, a, b, &rank, &id))
        heap_push(m, (struct lvr_candidate){
                         .order = (uint64_t)rank << 32 | (uint32_t)left, .n = a->n + b->n, .id = id});
}

void lvr_merger_run(struct lvr_merger *m)
{
    for (uint32_t i = 1; i < m->n_symbols; i++)
        consider(m, (int32_t)i - 1, (int32_t)i);
    while (m->n_heap > 0) {
        const struct lvr_candidate c = heap_pop(m);
        const int32_t i = (int32_t)(uint32_t)c.order;
        struct lvr_symbol *left = &m->symbols[i];
        if (left->n == 0 || left->next < 0)
            continue;
        struct lvr_symbol *right = &m->symbols[left->next];
        if (left->n + right->n != c.n)
            continue;
        left->n = c.n;
        left->id = c.id;
        right->n = 0;
        left->next = right->next;
        if (right->next >= 0)
            m->symbols[right->next].prev = i;
        consider(m, left->prev, i);
        consider(m, i, left->next);
    }
}

void lvr_merger_free(struct lvr_merger *m)
{
    free(m->symbols);
    free(m->heap);
    m->symbols = NULL;
    m->heap = NULL;
    m->cap = 0;
}
