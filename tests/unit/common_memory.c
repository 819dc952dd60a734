/* Memory limits, read from trees of files as systems have them. */
#include "common/fs.h"
#include "common/memory.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB (UINT64_C(1) << 20)

struct tree {
    char root[64];
};

static void tree_make(struct tree *t)
{
    strcpy(t->root, "/tmp/lvr-memory-XXXXXX");
    cr_assert(mkdtemp(t->root), "cannot make a directory");
}

static void tree_remove(const struct tree *t)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf -- '%s'", t->root);
    cr_assert_eq(system(command), 0);
}

/* Writes root/path; its directories are made. */
static void put(const struct tree *t, const char *path, const char *text)
{
    char whole[PATH_MAX], dir[PATH_MAX];
    lvr_error err = LVR_ERROR_INIT;
    snprintf(whole, sizeof whole, "%s%s", t->root, path);
    memcpy(dir, whole, sizeof dir);
    *strrchr(dir, '/') = '\0';
    cr_assert_eq(lvr_mkdirs(dir, &err), LVR_OK, "%s", err.msg);
    cr_assert_eq(lvr_write_file_atomic(whole, text, strlen(text), &err), LVR_OK, "%s", err.msg);
}

static void put_number(const struct tree *t, const char *dir, const char *file, uint64_t n)
{
    char path[512], text[32];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    snprintf(text, sizeof text, "%" PRIu64 "\n", n);
    put(t, path, text);
}

static void put_machine(const struct tree *t, uint64_t total, uint64_t available)
{
    char text[256];
    snprintf(text, sizeof text,
             "MemTotal:       %8" PRIu64 " kB\nMemFree:         1000 kB\nMemAvailable:   %8" PRIu64
             " kB\nSwapTotal:             512 kB\n",
             total / 1024, available / 1024);
    put(t, "/proc/meminfo", text);
}

/* A group of version 2 with its figures. */
static void put_v2(const struct tree *t, const char *dir, uint64_t max, uint64_t current, uint64_t cache)
{
    char path[512], stat[256];
    put_number(t, dir, "memory.max", max);
    put_number(t, dir, "memory.current", current);
    snprintf(path, sizeof path, "%s/memory.stat", dir);
    snprintf(stat, sizeof stat,
             "anon 5\nfile 77\nworkingset_refault_inactive_file 9\ninactive_file %" PRIu64
             "\nactive_file %" PRIu64 "\n",
             cache / 2, cache - cache / 2);
    put(t, path, stat);
}

static void put_v1(const struct tree *t, const char *dir, uint64_t limit, uint64_t usage, uint64_t cache)
{
    char path[512], stat[256];
    put_number(t, dir, "memory.limit_in_bytes", limit);
    put_number(t, dir, "memory.usage_in_bytes", usage);
    put_number(t, dir, "memory.use_hierarchy", 1);
    snprintf(path, sizeof path, "%s/memory.stat", dir);
    snprintf(stat, sizeof stat,
             "cache 1\ninactive_file 3\nactive_file 4\ntotal_cache 9\ntotal_inactive_file %" PRIu64
             "\ntotal_active_file %" PRIu64 "\n",
             cache / 2, cache - cache / 2);
    put(t, path, stat);
}

#define V2_MOUNT "24 1 0:22 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
#define V1_MOUNT                                                                                             \
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"                                             \
    "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"                                            \
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 master:2 - cgroup cgroup rw,memory\n"
#define V1_GROUPS(path) "9:name=systemd:/\n4:memory:" path "\n3:cpu,cpuacct:/elsewhere\n"

static lvr_memory_limit look(const struct tree *t)
{
    lvr_memory_limit m;
    lvr_memory_limit_read(t->root, &m);
    return m;
}

static void expect_source(const struct tree *t, const lvr_memory_limit *m, const char *path)
{
    cr_assert_eq(strncmp(m->source, t->root, strlen(t->root)), 0, "%s", m->source);
    cr_assert_str_eq(m->source + strlen(t->root), path);
}

Test(common_memory, nothing_readable_limits_nothing)
{
    struct tree t;
    tree_make(&t);
    const lvr_memory_limit m = look(&t);
    cr_assert_eq(m.room_bytes, UINT64_MAX);
    cr_assert_eq(m.group_version, 0);
    cr_assert_eq(m.machine_bytes, 0);
    cr_assert_str_empty(m.source);
    tree_remove(&t);
}

Test(common_memory, machine_alone)
{
    struct tree t;
    tree_make(&t);
    put_machine(&t, 8192 * MIB, 3000 * MIB);
    const lvr_memory_limit m = look(&t);
    cr_assert_eq(m.machine_bytes, 8192 * MIB);
    cr_assert_eq(m.room_bytes, 3000 * MIB);
    cr_assert_eq(m.limit_bytes, 3000 * MIB);
    cr_assert_eq(m.used_bytes, 0);
    cr_assert_eq(m.swap_bytes, 512 * 1024);
    cr_assert_eq(m.group_bytes, 0);
    expect_source(&t, &m, "/proc/meminfo");
    tree_remove(&t);
}

Test(common_memory, version_2_without_page_cache)
{
    struct tree t;
    tree_make(&t);
    put_machine(&t, 8192 * MIB, 6000 * MIB);
    put(&t, "/proc/self/cgroup", "0::/user.slice/box\n");
    put(&t, "/proc/self/mountinfo", V2_MOUNT);
    put(&t, "/sys/fs/cgroup/user.slice/memory.max", "max\n");
    put_v2(&t, "/sys/fs/cgroup/user.slice/box", 2048 * MIB, 900 * MIB, 701 * MIB);
    const lvr_memory_limit m = look(&t);
    cr_assert_eq(m.limit_bytes, 2048 * MIB);
    cr_assert_eq(m.used_bytes, 199 * MIB);
    cr_assert_eq(m.room_bytes, 1849 * MIB);
    cr_assert_eq(m.group_bytes, 2048 * MIB);
    cr_assert_eq(m.group_version, 2);
    expect_source(&t, &m, "/sys/fs/cgroup/user.slice/box/memory.max");
    tree_remove(&t);
}

/* The level with the least room binds, not the one with the lowest limit. */
Test(common_memory, a_parent_may_bind)
{
    struct tree t;
    tree_make(&t);
    put_machine(&t, 8192 * MIB, 6000 * MIB);
    put(&t, "/proc/self/cgroup", "0::/a/b/c\n");
    put(&t, "/proc/self/mountinfo", V2_MOUNT);
    put_v2(&t, "/sys/fs/cgroup/a", 4096 * MIB, 3900 * MIB, 0);
    put(&t, "/sys/fs/cgroup/a/b/memory.max", "max\n");
    put_v2(&t, "/sys/fs/cgroup/a/b/c", 2048 * MIB, 100 * MIB, 0);
    const lvr_memory_limit m = look(&t);
    cr_assert_eq(m.room_bytes, 196 * MIB);
    cr_assert_eq(m.group_bytes, 2048 * MIB, "the lowest limit is told too");
    expect_source(&t, &m, "/sys/fs/cgroup/a/memory.max");
    tree_remove(&t);
}

Test(common_memory, a_throttled_group)
{
    struct tree t;
    tree_make(&t);
    put_machine(&t, 8192 * MIB, 6000 * MIB);
    put(&t, "/proc/self/cgroup", "0::/a\n");
    put(&t, "/proc/self/mountinfo", V2_MOUNT);
    put_v2(&t, "/sys/fs/cgroup/a", 4096 * MIB, 100 * MIB, 0);
    put_number(&t, "/sys/fs/cgroup/a", "memory.high", 1000 * MIB);
    const lvr_memory_limit m = look(&t);
    cr_assert_eq(m.room_bytes, 900 * MIB);
    expect_source(&t, &m, "/sys/fs/cgroup/a/memory.high");
    tree_remove(&t);
}

Test(common_memory, version_1)
{
    struct tree t;
    tree_make(&t);
    put_machine(&t, 8192 * MIB, 6000 * MIB);
    put(&t, "/proc/self/cgroup", V1_GROUPS("/box"));
    put(&t, "/proc/self/mountinfo", V1_MOUNT);
    put_v1(&t, "/sys/fs/cgroup/memory", UINT64_C(9223372036854771712), 5000 * MIB, 0);
    put_v1(&t, "/sys/fs/cgroup/memory/box", 1024 * MIB, 600 * MIB, 500 * MIB);
    const lvr_memory_limit m = look(&t);
    cr_assert_eq(m.room_bytes, 924 * MIB, "total_*, not the group's own");
    cr_assert_eq(m.group_version, 1);
    expect_source(&t, &m, "/sys/fs/cgroup/memory/box/memory.limit_in_bytes");
    tree_remove(&t);
}

/* 9223372036854771712 is version 1's word for no limit. */
Test(common_memory, version_1_without_a_limit)
{
    struct tree t;
    tree_make(&t);
    put_machine(&t, 8192 * MIB, 6000 * MIB);
    put(&t, "/proc/self/cgroup", V1_GROUPS("/box"));
    put(&t, "/proc/self/mountinfo", V1_MOUNT);
    put_v1(&t, "/sys/fs/cgroup/memory/box", UINT64_C(9223372036854771712), 600 * MIB, 0);
    const lvr_memory_limit m = look(&t);
    cr_assert_eq(m.room_bytes, 6000 * MIB);
    cr_assert_eq(m.group_bytes, 0);
    cr_assert_eq(m.group_version, 0);
    tree_remove(&t);
}

/* Without use_hierarchy a parent of version 1 does not count its children; a group always counts itself. */
Test(common_memory, version_1_without_hierarchy)
{
    struct tree t;
    tree_make(&t);
    put_machine(&t, 8192 * MIB, 6000 * MIB);
    put(&t, "/proc/self/cgroup", V1_GROUPS("/a/b"));
    put(&t, "/proc/self/mountinfo", V1_MOUNT);
    put_v1(&t, "/sys/fs/cgroup/memory/a", 100 * MIB, 50 * MIB, 0);
    put_v1(&t, "/sys/fs/cgroup/memory/a/b", 1024 * MIB, 24 * MIB, 0);
    put_number(&t, "/sys/fs/cgroup/memory/a", "memory.use_hierarchy", 0);
    put_number(&t, "/sys/fs/cgroup/memory/a/b", "memory.use_hierarchy", 0);
    cr_assert_eq(look(&t).room_bytes, 1000 * MIB);
    put_number(&t, "/sys/fs/cgroup/memory/a", "memory.use_hierarchy", 1);
    cr_assert_eq(look(&t).room_bytes, 50 * MIB);
    tree_remove(&t);
}

/* Both versions at once: memory is in one of them only. */
Test(common_memory, hybrid)
{
    struct tree t;
    tree_make(&t);
    put_machine(&t, 8192 * MIB, 6000 * MIB);
    put(&t, "/proc/self/cgroup", V1_GROUPS("/box") "0::/init.scope\n");
    put(&t, "/proc/self/mountinfo", V1_MOUNT "38 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
    put(&t, "/sys/fs/cgroup/unified/init.scope/cgroup.procs", "1\n");
    put_v1(&t, "/sys/fs/cgroup/memory/box", 512 * MIB, 12 * MIB, 0);
    const lvr_memory_limit m = look(&t);
    cr_assert_eq(m.room_bytes, 500 * MIB);
    cr_assert_eq(m.group_version, 1);
    tree_remove(&t);
}

/* A container that shares its host's view of groups: the mount shows the container's own part. */
Test(common_memory, container_with_the_hosts_path)
{
    struct tree t;
    tree_make(&t);
    put_machine(&t, 8192 * MIB, 6000 * MIB);
    put(&t, "/proc/self/cgroup", V1_GROUPS("/docker/ab12"));
    put(&t, "/proc/self/mountinfo",
        "35 31 0:32 /docker/ab12 /sys/fs/cgroup/memory ro,relatime master:2 - cgroup cgroup rw,memory\n");
    put_v1(&t, "/sys/fs/cgroup/memory", 768 * MIB, 68 * MIB, 0);
    cr_assert_eq(look(&t).room_bytes, 700 * MIB);
    /* and one whose mount shows some other part, or the path leads out of the name space */
    put(&t, "/proc/self/cgroup", V1_GROUPS("/docker/other"));
    cr_assert_eq(look(&t).room_bytes, 700 * MIB);
    put(&t, "/proc/self/cgroup", V1_GROUPS("/../up"));
    cr_assert_eq(look(&t).room_bytes, 700 * MIB);
    tree_remove(&t);
}

Test(common_memory, mount_points_are_unescaped)
{
    struct tree t;
    tree_make(&t);
    put_machine(&t, 8192 * MIB, 6000 * MIB);
    put(&t, "/proc/self/cgroup", "0::/a\n");
    put(&t, "/proc/self/mountinfo", "24 1 0:22 / /my\\040groups rw - cgroup2 none rw\n");
    put_v2(&t, "/my groups/a", 640 * MIB, 0, 0);
    cr_assert_eq(look(&t).room_bytes, 640 * MIB);
    tree_remove(&t);
}

/* A group that has gone, files cut short, nonsense: what cannot be read does not limit. */
Test(common_memory, broken_files)
{
    static const char *const mounts[] = {"",
                                         "24\n",
                                         " - \n",
                                         "24 1 0:22 / /sys/fs/cgroup rw -\n",
                                         "24 1 0:22 / /sys/fs/cgroup rw - cgroup2\n",
                                         "\xff\xfe - cgroup2 x y\n"};
    static const char *const groups[] = {"", "0", "0::", "::\n", "4:memory", "\n\n", "0::/gone\n"};
    static const char *const limits[] = {"", "-1\n", "many\n", "99999999999999999999999\n", "max"};
    struct tree t;
    tree_make(&t);
    put_machine(&t, 8192 * MIB, 6000 * MIB);
    for (size_t i = 0; i < sizeof mounts / sizeof *mounts; i++) {
        put(&t, "/proc/self/mountinfo", mounts[i]);
        for (size_t k = 0; k < sizeof groups / sizeof *groups; k++) {
            put(&t, "/proc/self/cgroup", groups[k]);
            cr_assert_eq(look(&t).room_bytes, 6000 * MIB, "mounts %zu, groups %zu", i, k);
        }
    }
    put(&t, "/proc/self/cgroup", "0::/a\n");
    put(&t, "/proc/self/mountinfo", V2_MOUNT);
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        put(&t, "/sys/fs/cgroup/a/memory.max", limits[i]);
        cr_assert_eq(look(&t).room_bytes, 6000 * MIB, "limit \"%s\"", limits[i]);
    }
    put(&t, "/sys/fs/cgroup/a/memory.max", "1048576\n");
    cr_assert_eq(look(&t).room_bytes, MIB, "usage and stat are absent");
    put_v2(&t, "/sys/fs/cgroup/a", MIB, 2 * MIB, 0);
    cr_assert_eq(look(&t).room_bytes, 0, "over the limit already");
    tree_remove(&t);
}

/* This system, whatever it is: something is there, and less than the machine has. */
Test(common_memory, here)
{
    lvr_memory_limit m;
    lvr_memory_limit_read("", &m);
    cr_assert_gt(m.room_bytes, 0);
    if (m.machine_bytes)
        cr_assert_leq(m.room_bytes, m.machine_bytes);
    cr_assert(m.source[0] == '/' || m.room_bytes == UINT64_MAX, "%s", m.source);
}
