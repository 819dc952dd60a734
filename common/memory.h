/*
 * How much memory this process may still take before the system reclaims what it needs or kills it: the
 * machine's own (MemAvailable) and that of every memory control group above the process, versions 1 and 2.
 * Page cache counts as free: the kernel gives it up first. Swap does not count: weights in swap are read
 * twice. Any thread may ask; nothing is kept between calls.
 * Sources: https://docs.kernel.org/admin-guide/cgroup-v2.html (memory.max, memory.high, memory.current,
 * memory.stat), https://docs.kernel.org/admin-guide/cgroup-v1/memory.html, proc_pid_mountinfo(5),
 * proc_meminfo(5).
 */
#ifndef LVR_COMMON_MEMORY_H
#define LVR_COMMON_MEMORY_H

#include <stdint.h>

#define LVR_MEMORY_SOURCE_BYTES 512u

typedef struct lvr_memory_limit {
    uint64_t machine_bytes, available_bytes, swap_bytes; /* MemTotal, MemAvailable, SwapTotal; 0: not known */
    uint64_t group_bytes;                                /* the lowest limit of a control group; 0: none */
    uint32_t group_version;                              /* 1 or 2; 0: none */
    /* What binds, that is leaves least room: */
    uint64_t limit_bytes; /* the group's limit, or MemAvailable */
    uint64_t used_bytes;  /* of it, by the group's processes, without page cache; 0 for the machine */
    uint64_t room_bytes;  /* limit less used; UINT64_MAX: nothing says */
    char source[LVR_MEMORY_SOURCE_BYTES]; /* the file that states the limit; "": nothing says */
} lvr_memory_limit;

/* root: put before every path, "" for this system (tests have trees of their own). What cannot be read does
 * not limit. */
void lvr_memory_limit_read(const char *root, lvr_memory_limit *ret);

#endif
