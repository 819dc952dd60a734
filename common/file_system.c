#include "common/file_system.h"

#include <errno.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

static const struct {
    unsigned long magic;
    const char *name;
} names[] = {
    {EXT4_SUPER_MAGIC, "ext4"}, {XFS_SUPER_MAGIC, "xfs"},     {BTRFS_SUPER_MAGIC, "btrfs"},
    {F2FS_SUPER_MAGIC, "f2fs"}, {TMPFS_MAGIC, "tmpfs"},       {OVERLAYFS_SUPER_MAGIC, "overlay"},
    {NFS_SUPER_MAGIC, "nfs"},   {FUSE_SUPER_MAGIC, "fuse"},   {V9FS_MAGIC, "9p"},
    {0x2fc12fc1UL, "zfs"},      {SQUASHFS_MAGIC, "squashfs"}, {ECRYPTFS_SUPER_MAGIC, "ecryptfs"},
};

static void name_type(unsigned long magic, lvr_file_system *fs)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].magic == magic) {
            snprintf(fs->type, sizeof fs->type, "%s", names[i].name);
            fs->in_memory = magic == TMPFS_MAGIC;
            return;
        }
    snprintf(fs->type, sizeof fs->type, "0x%lx", magic);
}

lvr_status lvr_file_system_of(const char *path, lvr_file_system *ret, lvr_error *err)
{
    struct stat st;
    struct statfs sfs;
    if (stat(path, &st) != 0 || statfs(path, &sfs) != 0)
        return lvr_fail_errno(err, errno, "%s: cannot find its file system", path);
    lvr_file_system fs = {.device_major = major(st.st_dev), .device_minor = minor(st.st_dev)};
    name_type((unsigned long)sfs.f_type & 0xffffffffUL, &fs);
    memcpy(&fs.id, &sfs.f_fsid, sizeof fs.id < sizeof sfs.f_fsid ? sizeof fs.id : sizeof sfs.f_fsid);
    *ret = fs;
    return LVR_OK;
}
