#include "common/hugemem.h"
#include "common/membw.h"
#include <criterion/criterion.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE LVR_HUGE_PAGE_BYTES

static void fill_and_check(uint8_t *p, size_t bytes)
{
    memset(p, 0xa5, bytes);
    cr_assert_eq(p[0], 0xa5);
    cr_assert_eq(p[bytes - 1], 0xa5);
}

Test(hugemem, is_aligned_and_writable_to_its_last_byte)
{
    static const size_t sizes[] = {1,    64,       4095,        4096,     HUGE - 4096,  HUGE - 1,
                                   HUGE, HUGE + 1, HUGE + 4096, 3 * HUGE, 5 * HUGE - 1, 9 * HUGE + 8192};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint8_t *p = lvr_huge_alloc(sizes[i]);
        cr_assert(p);
        cr_assert_eq((uintptr_t)p % 4096, 0);
        if (sizes[i] >= HUGE)
            cr_assert_eq((uintptr_t)p % HUGE, 0);
        fill_and_check(p, sizes[i]);
        lvr_huge_free(p, sizes[i]);
    }
}

Test(hugemem, refuses_what_cannot_be)
{
    cr_assert_null(lvr_huge_alloc(SIZE_MAX));
    cr_assert_null(lvr_huge_alloc(SIZE_MAX / 2));
    lvr_huge_free(NULL, 0);
    lvr_huge_free(NULL, HUGE);
}

/* Pages resident of [p, p + bytes), by the kernel's own account. */
static size_t resident_bytes(void *p, size_t bytes)
{
    static unsigned char map[4096];
    size_t n = 0;
    cr_assert_leq(bytes / 4096, sizeof map);
    cr_assert_eq(mincore(p, bytes, map), 0);
    for (size_t i = 0; i < bytes / 4096; i++)
        n += map[i] & 1;
    return n * 4096;
}

Test(hugemem, untouched_pages_take_no_memory)
{
    const size_t bytes = 5 * HUGE + 4096;
    uint8_t *p = lvr_huge_alloc(bytes);
    cr_assert(p);
    cr_assert_eq(resident_bytes(p, bytes), 0);
    p[0] = 1;
    cr_assert_leq(resident_bytes(p, bytes), HUGE);
    p[bytes - 1] = 1; /* the tail is in ordinary pages */
    cr_assert_leq(resident_bytes(p, bytes), HUGE + 4096);
    lvr_huge_free(p, bytes);
}

static size_t address_space_pages(void)
{
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    cr_assert(f);
    cr_assert_eq(fscanf(f, "%lu", &pages), 1);
    fclose(f);
    return pages;
}

Test(hugemem, gives_everything_back)
{
    lvr_huge_free(lvr_huge_alloc(3 * HUGE + 12288), 3 * HUGE + 12288);
    const size_t before = address_space_pages();
    for (int i = 0; i < 200; i++)
        lvr_huge_free(lvr_huge_alloc(3 * HUGE + 12288), 3 * HUGE + 12288);
    cr_assert_leq(address_space_pages(), before + HUGE / 4096);
}

Test(membw, reads_at_some_rate)
{
    lvr_membw *m = NULL;
    lvr_error err = LVR_ERROR_INIT;
    lvr_pool *pool = NULL;
    cr_assert_eq(lvr_membw_new(UINT64_C(8) << 20, &m, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_pool_new(2, &pool, &err), LVR_OK, "%s", err.msg);
    const double rate = lvr_membw_read(m, pool);
    cr_assert(rate > 1e6 && rate < 1e13, "%g bytes per second", rate);
    lvr_membw_free(m);
    lvr_pool_free(pool);
}

Test(membw, refuses_less_than_a_chunk)
{
    lvr_membw *m = NULL;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_membw_new(1000, &m, &err), LVR_ERR_NOMEM);
    cr_assert_null(m);
    lvr_membw_free(NULL);
}

Test(hugemem, tells_the_share_in_huge_pages)
{
    const size_t bytes = 8 * HUGE;
    uint8_t *p = lvr_huge_alloc(bytes);
    cr_assert(p);
    cr_assert(isnan(lvr_huge_share(p, bytes)), "nothing is in memory yet");
    fill_and_check(p, bytes);
    const double before = lvr_huge_share(p, bytes);
    cr_assert(before >= 0 && before <= 1);
    /* Neighbours that share the mapping keep a small page or two small. */
    madvise(p, bytes, MADV_NOHUGEPAGE);
    madvise(p, bytes, MADV_DONTNEED);
    fill_and_check(p, bytes);
    cr_assert_eq(lvr_huge_share(p, bytes), 0);
    lvr_huge_free(p, bytes);
}
