#include "traces/segments.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char *join(const char *a, const char *b)
{
    char *path = NULL;
    return asprintf(&path, "%s%s", a, b) < 0 ? NULL : path;
}

char *lvr_segments_folder(const char *trace_path)
{
    return join(trace_path, ".d");
}

char *lvr_segment_path(const char *folder, uint32_t segment)
{
    char *path = NULL;
    return asprintf(&path, "%s/%06" PRIu32 ".h5", folder, segment) < 0 ? NULL : path;
}

char *lvr_segments_temp_path(const char *folder)
{
    return join(folder, "/part.tmp");
}

/* The number in "000001.h5", 0 for any other name. */
static uint32_t segment_of(const char *name)
{
    unsigned long long n = 0;
    int used = 0;
    if (strspn(name, "0123456789") < 6 || sscanf(name, "%10llu.h5%n", &n, &used) != 1 || used == 0 ||
        name[used] != '\0')
        return 0;
    return n <= UINT32_MAX ? (uint32_t)n : 0;
}

static uint32_t last_segment(const char *folder)
{
    uint32_t last = 0;
    DIR *dir = opendir(folder);
    if (!dir)
        return 0;
    for (const struct dirent *e = readdir(dir); e; e = readdir(dir)) {
        const uint32_t n = segment_of(e->d_name);
        last = n > last ? n : last;
    }
    closedir(dir);
    return last;
}

static void remove_file(char *path)
{
    if (path)
        unlink(path);
    free(path);
}

void lvr_segments_remove(const char *folder)
{
    for (uint32_t n = last_segment(folder); n > 0; n--)
        remove_file(lvr_segment_path(folder, n));
    remove_file(lvr_segments_temp_path(folder));
}

bool lvr_stream_required(lvr_trace_kind kind, lvr_stream stream)
{
    switch (kind) {
    case LVR_TRACE_TIMING:
    case LVR_TRACE_SIMULATED:
        return stream <= LVR_STREAM_KERNELS;
    case LVR_TRACE_ORACLE:
        return stream == LVR_STREAM_REQUESTS || stream == LVR_STREAM_TOKENS || stream == LVR_STREAM_TREES ||
               stream == LVR_STREAM_DRAFT_TOPK;
    case LVR_TRACE_BENCH:
        return stream == LVR_STREAM_BENCH;
    case LVR_TRACE_IMPORTED:
        return false;
    }
    return false;
}
