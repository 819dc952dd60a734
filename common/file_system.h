/* Which file system a file is on. */
#ifndef LVR_COMMON_FILE_SYSTEM_H
#define LVR_COMMON_FILE_SYSTEM_H

#include "common/error.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct lvr_file_system {
    char type[32];  /* "ext4"; the magic number in hexadecimal if it has no name here */
    bool in_memory; /* tmpfs: not on any device */
    uint32_t device_major, device_minor;
    uint64_t id; /* of this one among those of its type: statfs's f_fsid, made from the UUID on ext4, xfs,
                    f2fs and btrfs; 0: it has none */
} lvr_file_system;

/* Thread safe. */
lvr_status lvr_file_system_of(const char *path, lvr_file_system *ret, lvr_error *err);

#endif
