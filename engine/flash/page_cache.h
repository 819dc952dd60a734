/* How much of a file the page cache holds. Linux only: cachestat(2), or before Linux 6.5 mincore(2), which
 * asks about a mapping. The engine never reads weights through a mapping; that one is only asked about, no
 * byte of it is touched, and it is gone when the question is answered. */
#ifndef LVR_ENGINE_FLASH_PAGE_CACHE_H
#define LVR_ENGINE_FLASH_PAGE_CACHE_H

#include "common/error.h"
#include <stdint.h>

/* Share, 0..1, of the pages of [offset, offset + bytes) that are in memory; reads and keeps none of them.
 * What lies past the end of the file counts as absent. Linux tells only those who own the file or may write
 * to it: LVR_ERR_UNSUPPORTED for others. Some 20 ms per GB. Thread safe. */
lvr_status lvr_page_cache_share(const char *path, uint64_t offset, uint64_t bytes, double *ret_share,
                                lvr_error *err);

#endif
