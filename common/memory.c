#include "common/memory.h"

#include "common/buf.h"
#include "common/fs.h"
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_FILE_BYTES (UINT64_C(4) << 20)

/* Where one version keeps its figures, in a group's directory. */
typedef struct hierarchy {
    uint32_t version;
    const char *limits[2]; /* NULL: only one */
    const char *usage;
    const char *cache[2]; /* keys of memory.stat, with the groups below */
} hierarchy;

static const hierarchy hierarchies[] = {
    {.version = 1,
     .limits = {"memory.limit_in_bytes"},
     .usage = "memory.usage_in_bytes",
     .cache = {"total_inactive_file", "total_active_file"}},
    /* Above memory.high a group is throttled rather than killed: no speed to plan for either. */
    {.version = 2,
     .limits = {"memory.max", "memory.high"},
     .usage = "memory.current",
     .cache = {"inactive_file", "active_file"}},
};

/* ---- files ---- */

/* NUL-terminated; false if the file is absent, unreadable or empty. */
static bool read_text(const char *dir, const char *name, lvr_buf *ret)
{
    char path[PATH_MAX];
    lvr_buf text = LVR_BUF_INIT;
    const int len = snprintf(path, sizeof path, "%s/%s", dir, name);
    if (len > 0 && (size_t)len < sizeof path && lvr_read_file(path, MAX_FILE_BYTES, &text, NULL) == LVR_OK &&
        text.len > 0) {
        *ret = text;
        return true;
    }
    lvr_buf_free(&text);
    return false;
}

/* The number that a file consists of. "max", and version 1's word for it, a number near 2^63, are none. */
static bool read_number(const char *dir, const char *name, uint64_t *ret)
{
    lvr_buf text;
    if (!read_text(dir, name, &text))
        return false;
    char *end = NULL;
    const uint64_t n = strtoull(text.data, &end, 10);
    const bool good = text.data[0] >= '0' && text.data[0] <= '9' && n < INT64_MAX / 2;
    lvr_buf_free(&text);
    if (good)
        *ret = n;
    return good;
}

/* The number after `key` and blanks or a colon at the start of a line; 0 if there is none. */
static uint64_t number_of(const char *text, const char *key)
{
    const size_t n = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, n) == 0 && (line[n] == ':' || line[n] == ' '))
            return strtoull(line + n + 1, NULL, 10);
    }
    return 0;
}

/* ---- groups ---- */

static void take_limit(const hierarchy *h, const char *dir, const char *file, uint64_t limit, uint64_t used,
                       lvr_memory_limit *m)
{
    if (m->group_version == 0 || limit < m->group_bytes) {
        m->group_bytes = limit;
        m->group_version = h->version;
    }
    const uint64_t room = limit > used ? limit - used : 0;
    if (room >= m->room_bytes)
        return;
    m->limit_bytes = limit;
    m->used_bytes = used;
    m->room_bytes = room;
    const int len = snprintf(m->source, sizeof m->source, "%s/%s", dir, file);
    if (len < 0 || (size_t)len >= sizeof m->source)
        snprintf(m->source, sizeof m->source, "%s", file);
}

static uint64_t used_without_cache(const hierarchy *h, const char *dir)
{
    lvr_buf stat;
    uint64_t usage = 0, cache = 0;
    if (!read_number(dir, h->usage, &usage))
        return 0;
    if (read_text(dir, "memory.stat", &stat)) {
        cache = number_of(stat.data, h->cache[0]) + number_of(stat.data, h->cache[1]);
        lvr_buf_free(&stat);
    }
    return usage > cache ? usage - cache : 0;
}

/* Under version 1 a group may be told not to count what the groups below it use. */
static bool counts_children(const hierarchy *h, const char *dir)
{
    uint64_t flag = 1;
    return h->version != 1 || !read_number(dir, "memory.use_hierarchy", &flag) || flag != 0;
}

static void look_at_group(const hierarchy *h, const char *dir, lvr_memory_limit *m)
{
    for (size_t i = 0; i < sizeof h->limits / sizeof *h->limits && h->limits[i]; i++) {
        uint64_t limit = 0;
        if (read_number(dir, h->limits[i], &limit))
            take_limit(h, dir, h->limits[i], limit, used_without_cache(h, dir), m);
    }
}

/* The group, and those above it up to what the mount shows. */
static void walk(const hierarchy *h, const char *root, const char *mount, const char *group,
                 lvr_memory_limit *m)
{
    char dir[PATH_MAX];
    const size_t top = strlen(root) + strlen(mount);
    const int len = snprintf(dir, sizeof dir, "%s%s%s", root, mount, strcmp(group, "/") == 0 ? "" : group);
    if (len < 0 || (size_t)len >= sizeof dir)
        return;
    for (size_t n = (size_t)len;; n--) {
        if (n > top && dir[n] != '/' && dir[n] != '\0')
            continue;
        dir[n] = '\0';
        if (n == (size_t)len || counts_children(h, dir))
            look_at_group(h, dir, m);
        if (n <= top)
            return;
    }
}

/* ---- where groups are ---- */

static bool has_word(const char *list, const char *word)
{
    const size_t len = strlen(word);
    for (const char *at = list; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, word, len) == 0 && (at[len] == ',' || at[len] == '\0'))
            return true;
    }
    return false;
}

/* From /proc/self/cgroup, lines of "id:controllers:path"; version 2's has no controllers. Returns the path,
 * NULL if the process is in no such group. Cuts `text` up. */
static const char *find_group(const hierarchy *h, char *text)
{
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *controllers = strchr(line, ':');
        char *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = '\0';
        controllers++;
        if (h->version == 2 ? *controllers == '\0' : has_word(controllers, "memory"))
            return path;
    }
    return NULL;
}

/* "\040" and the like, in place. */
static void unescape(char *text)
{
    char *to = text;
    for (const char *from = text; *from; to++) {
        const bool octal = from[0] == '\\' && strspn(from + 1, "01234567") >= 3;
        *to = octal ? (char)((from[1] - '0') * 64 + (from[2] - '0') * 8 + (from[3] - '0')) : *from;
        from += octal ? 4 : 1;
    }
    *to = '\0';
}

typedef struct mount {
    char *root, *point; /* what part of its file system, and where */
    const char *type, *options;
} mount;

/* "id parent device root point options [tags...] - type source options" of /proc/self/mountinfo. */
static bool parse_mount(char *line, mount *ret)
{
    char *fields[6] = {0}, *rest = NULL, *after = strstr(line, " - ");
    if (!after)
        return false;
    *after = '\0';
    after += 3;
    char *field = strtok_r(line, " ", &rest);
    for (size_t i = 0; i < 6 && field; i++, field = strtok_r(NULL, " ", &rest))
        fields[i] = field;
    char *type = strtok_r(after, " ", &rest);
    const char *source = type ? strtok_r(NULL, " ", &rest) : NULL;
    const char *options = source ? strtok_r(NULL, " ", &rest) : NULL;
    if (!fields[5] || !options)
        return false;
    *ret = (mount){.root = fields[3], .point = fields[4], .type = type, .options = options};
    unescape(ret->root);
    unescape(ret->point);
    return true;
}

static bool shows(const mount *m, const hierarchy *h)
{
    if (h->version == 2)
        return strcmp(m->type, "cgroup2") == 0;
    return strcmp(m->type, "cgroup") == 0 && has_word(m->options, "memory");
}

/* The group's path below the mount's own root. In a container the mount may show another part of the tree:
 * then what it shows at its top is the nearest that can be seen. */
static const char *below(const char *group, const char *mount_root)
{
    const size_t n = strcmp(mount_root, "/") == 0 ? 0 : strlen(mount_root);
    const bool inside = strncmp(group, mount_root, n) == 0 && (group[n] == '/' || group[n] == '\0');
    return inside && !strstr(group, "/..") ? group + n : "";
}

static void look_at_hierarchy(const hierarchy *h, const char *root, lvr_memory_limit *m)
{
    char proc[PATH_MAX];
    lvr_buf groups = LVR_BUF_INIT, mounts = LVR_BUF_INIT;
    const char *group = NULL;
    char *rest = NULL;
    const int len = snprintf(proc, sizeof proc, "%s/proc/self", root);
    if (len < 0 || (size_t)len >= sizeof proc || !read_text(proc, "cgroup", &groups))
        return;
    group = find_group(h, groups.data);
    if (!group || !read_text(proc, "mountinfo", &mounts))
        goto out;
    for (char *line = strtok_r(mounts.data, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        mount at;
        if (parse_mount(line, &at) && shows(&at, h))
            walk(h, root, at.point, below(group, at.root), m);
    }
out:
    lvr_buf_free(&groups);
    lvr_buf_free(&mounts);
}

/* ---- the machine ---- */

static void look_at_machine(const char *root, lvr_memory_limit *m)
{
    char proc[PATH_MAX];
    lvr_buf text;
    const int len = snprintf(proc, sizeof proc, "%s/proc", root);
    if (len < 0 || (size_t)len >= sizeof proc || !read_text(proc, "meminfo", &text))
        return;
    m->machine_bytes = number_of(text.data, "MemTotal") * 1024;
    m->available_bytes = number_of(text.data, "MemAvailable") * 1024;
    m->swap_bytes = number_of(text.data, "SwapTotal") * 1024;
    lvr_buf_free(&text);
    if (m->available_bytes == 0) /* kernels before 3.14 do not say */
        return;
    m->limit_bytes = m->room_bytes = m->available_bytes;
    snprintf(m->source, sizeof m->source, "%.*s/meminfo", (int)(sizeof m->source - sizeof "/meminfo"), proc);
}

void lvr_memory_limit_read(const char *root, lvr_memory_limit *ret)
{
    lvr_memory_limit m = {.room_bytes = UINT64_MAX};
    look_at_machine(root, &m);
    for (size_t i = 0; i < sizeof hierarchies / sizeof *hierarchies; i++)
        look_at_hierarchy(&hierarchies[i], root, &m);
    *ret = m;
}
