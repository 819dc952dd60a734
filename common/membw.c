#include "common/membw.h"

#include "common/clock.h"
#include "common/hugemem.h"
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_BYTES (UINT64_C(1) << 20)

typedef uint64_t lanes __attribute__((vector_size(16)));
#define LANE_BYTES 16u
#define UNROLL 8u

struct lvr_membw {
    uint8_t *data;
    uint64_t bytes;
    _Atomic uint64_t sum; /* what was read must be used, or the compiler leaves the reading out */
};

lvr_status lvr_membw_new(uint64_t bytes, lvr_membw **ret, lvr_error *err)
{
    lvr_membw *m = calloc(1, sizeof *m);
    if (m) {
        m->bytes = bytes / CHUNK_BYTES * CHUNK_BYTES;
        m->data = m->bytes && m->bytes <= SIZE_MAX ? lvr_huge_alloc(m->bytes) : NULL;
    }
    if (!m || !m->data) {
        lvr_membw_free(m);
        return lvr_fail(err, LVR_ERR_NOMEM, "DRAM rate: out of memory for a buffer of %llu MiB",
                        (unsigned long long)(bytes / CHUNK_BYTES));
    }
    memset(m->data, 1, m->bytes);
    *ret = m;
    return LVR_OK;
}

void lvr_membw_free(lvr_membw *m)
{
    if (!m)
        return;
    lvr_huge_free(m->data, m->bytes);
    free(m);
}

static uint64_t sum_chunk(const uint8_t *data)
{
    const lanes *at = (const lanes *)(const void *)data;
    lanes sum[UNROLL] = {0};
    for (uint64_t i = 0; i < CHUNK_BYTES / LANE_BYTES; i += UNROLL)
        for (uint32_t u = 0; u < UNROLL; u++)
            sum[u] += at[i + u];
    lanes all = sum[0];
    for (uint32_t u = 1; u < UNROLL; u++)
        all += sum[u];
    return all[0] + all[1];
}

static void read_chunks(void *arg, uint64_t begin, uint64_t end, uint32_t worker)
{
    (void)worker;
    lvr_membw *m = arg;
    uint64_t sum = 0;
    for (uint64_t c = begin; c < end; c++)
        sum += sum_chunk(m->data + c * CHUNK_BYTES);
    atomic_fetch_add_explicit(&m->sum, sum, memory_order_relaxed);
}

double lvr_membw_read(lvr_membw *m, lvr_pool *pool)
{
    const uint64_t start = lvr_now_ns();
    lvr_pool_for(pool, m->bytes / CHUNK_BYTES, 1, read_chunks, m);
    return (double)m->bytes * 1e9 / (double)(lvr_now_ns() - start);
}
