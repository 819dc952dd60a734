#include "sim/resources/flash.h"

void lvr_flash_resource_init(lvr_flash_resource *f, const lvr_flash_params *params)
{
    *f = (lvr_flash_resource){.params = *params};
}

lvr_flash_times lvr_flash_resource_submit(lvr_flash_resource *f, uint64_t now_ns, uint64_t bytes)
{
    const lvr_flash_times t = lvr_flash_admit(&f->state, &f->params, now_ns, bytes);
    /* Reads come in order of submission, so the union of their intervals grows at its end only. */
    const uint64_t from = now_ns > f->busy_until_ns ? now_ns : f->busy_until_ns;
    if (t.end_ns > from) {
        f->busy_ns += t.end_ns - from;
        f->busy_until_ns = t.end_ns;
    }
    f->reads++;
    f->bytes += bytes;
    return t;
}
