#include "common/hugemem.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define PAGE_BYTES ((size_t)4096)

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* Maps a huge page more than is needed and gives back what lies before and after the aligned part. */
static void *map_aligned(size_t bytes)
{
    const size_t reserved = bytes + LVR_HUGE_PAGE_BYTES;
    uint8_t *p = mmap(NULL, reserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    const size_t past = (uintptr_t)p % LVR_HUGE_PAGE_BYTES;
    const size_t before = past ? LVR_HUGE_PAGE_BYTES - past : 0;
    if (before)
        munmap(p, before);
    munmap(p + before + bytes, reserved - before - bytes);
    return p + before;
}

void *lvr_huge_alloc(size_t bytes)
{
    if (bytes > SIZE_MAX / 2)
        return NULL;
    const size_t rounded = round_up(bytes, PAGE_BYTES);
    /* Small blocks come from the heap, where memory checkers see their bounds. */
    if (bytes < LVR_HUGE_PAGE_BYTES)
        return aligned_alloc(PAGE_BYTES, rounded);
    void *p = map_aligned(rounded);
    /* A refusal leaves ordinary pages. */
    if (p)
        madvise(p, rounded / LVR_HUGE_PAGE_BYTES * LVR_HUGE_PAGE_BYTES, MADV_HUGEPAGE);
    return p;
}

void lvr_huge_free(void *p, size_t bytes)
{
    if (!p)
        return;
    if (bytes < LVR_HUGE_PAGE_BYTES)
        free(p);
    else
        munmap(p, round_up(bytes, PAGE_BYTES));
}

/* Lines of /proc/self/smaps: a mapping's addresses, then its figures in kB. */
static double share_from(FILE *smaps, uintptr_t begin, uintptr_t end)
{
    char *line = NULL;
    size_t cap = 0;
    uintptr_t from, to;
    uint64_t kib, resident_kib = 0, huge_kib = 0;
    bool inside = false;
    while (getline(&line, &cap, smaps) > 0) {
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " ", &from, &to) == 2)
            inside = from < end && to > begin;
        else if (inside && sscanf(line, "Rss: %" SCNu64, &kib) == 1)
            resident_kib += kib;
        else if (inside && sscanf(line, "AnonHugePages: %" SCNu64, &kib) == 1)
            huge_kib += kib;
    }
    free(line);
    return resident_kib > 0 ? (double)huge_kib / (double)resident_kib : (double)NAN;
}

double lvr_huge_share(const void *p, size_t bytes)
{
    FILE *smaps = fopen("/proc/self/smaps", "re");
    if (!smaps)
        return (double)NAN;
    const double share = share_from(smaps, (uintptr_t)p, (uintptr_t)p + bytes);
    fclose(smaps);
    return share;
}
