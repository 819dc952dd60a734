/*
 * How fast this machine reads its DRAM: the bound of everything that streams weights. A buffer larger than
 * the caches is read from end to end, the threads of a pool sharing it out.
 */
#ifndef LVR_COMMON_MEMBW_H
#define LVR_COMMON_MEMBW_H

#include "common/error.h"
#include "common/threads.h"

/* Several times the last-level cache of the machines of today. */
#define LVR_MEMBW_BYTES (UINT64_C(512) << 20)

typedef struct lvr_membw lvr_membw;

/* Allocates and fills `bytes` (a multiple of 1 MiB is used of it). Several pools may share one. */
lvr_status lvr_membw_new(uint64_t bytes, lvr_membw **ret, lvr_error *err);
void lvr_membw_free(lvr_membw *m);
/* Reads the buffer once. Bytes per second. */
double lvr_membw_read(lvr_membw *m, lvr_pool *pool);

#endif
