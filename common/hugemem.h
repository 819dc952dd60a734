/*
 * Large blocks of memory in huge pages, where the system grants them: fewer misses of the address translation
 * while weights stream through the processor. A block takes no more memory than its size rounded up to 4 KiB:
 * only the 2 MiB pages that lie wholly inside it are huge. Thread safe.
 * Huge pages: https://docs.kernel.org/admin-guide/mm/transhuge.html
 */
#ifndef LVR_COMMON_HUGEMEM_H
#define LVR_COMMON_HUGEMEM_H

#include <stddef.h>

#define LVR_HUGE_PAGE_BYTES ((size_t)2 << 20)

/* `bytes` > 0, at an address that is a multiple of 4 KiB, and of 2 MiB where bytes is at least that. Contents
 * are undefined; pages that are never touched take no memory. NULL: out of memory. */
void *lvr_huge_alloc(size_t bytes);
/* `bytes` as it was allocated. p NULL: nothing. */
void lvr_huge_free(void *p, size_t bytes);

/* Share, 0..1, of a block's memory that is in huge pages now: of the mappings that the block lies in, which
 * may be shared with neighbours. NaN: the system does not tell (no /proc). Takes some 10 ms. */
double lvr_huge_share(const void *p, size_t bytes);

#endif
