#include "traces/memory_sample.h"

#include "common/clock.h"
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* The head of a small /proc file as text. */
static bool read_text(const char *path, char *buf, size_t bytes)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    const ssize_t n = read(fd, buf, bytes - 1);
    close(fd);
    if (n <= 0)
        return false;
    buf[n] = '\0';
    return true;
}

/* "Key:   123 kB" in /proc/meminfo's text. */
static bool meminfo_bytes(const char *text, const char *key, uint64_t *ret)
{
    const char *at = strstr(text, key);
    uint64_t kib = 0;
    if (!at || sscanf(at + strlen(key), " %" SCNu64 " kB", &kib) != 1)
        return false;
    *ret = kib * 1024;
    return true;
}

bool lvr_memory_sample(lvr_rec_memory *ret)
{
    char statm[256], meminfo[4096];
    uint64_t total_pages = 0, resident_pages = 0, available = 0, swap_total = 0, swap_free = 0;
    struct rusage usage;
    const long page = sysconf(_SC_PAGESIZE);
    if (page <= 0 || getrusage(RUSAGE_SELF, &usage) != 0)
        return false;
    if (!read_text("/proc/self/statm", statm, sizeof statm) ||
        !read_text("/proc/meminfo", meminfo, sizeof meminfo))
        return false;
    if (sscanf(statm, "%" SCNu64 " %" SCNu64, &total_pages, &resident_pages) != 2)
        return false;
    if (!meminfo_bytes(meminfo, "MemAvailable:", &available) ||
        !meminfo_bytes(meminfo, "SwapTotal:", &swap_total) ||
        !meminfo_bytes(meminfo, "SwapFree:", &swap_free) || swap_free > swap_total)
        return false;
    *ret = (lvr_rec_memory){.t_ns = lvr_now_ns(),
                            .rss_bytes = resident_pages * (uint64_t)page,
                            .available_bytes = available,
                            .swap_bytes = swap_total - swap_free,
                            .majflt = (uint64_t)usage.ru_majflt};
    return true;
}
