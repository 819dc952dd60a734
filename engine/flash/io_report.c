#include "engine/flash/io_report.h"

#define CACHED_SHARE 0.5

const char *lvr_read_path_name(lvr_read_path path)
{
    static const char *const names[] = {
        [LVR_READ_DIRECT] = "direct", [LVR_READ_BUFFERED] = "buffered", [LVR_READ_CACHED] = "cached"};
    return names[path];
}

lvr_read_path lvr_read_path_of(bool direct, double cached_before)
{
    if (direct)
        return LVR_READ_DIRECT;
    return cached_before >= CACHED_SHARE ? LVR_READ_CACHED : LVR_READ_BUFFERED;
}
