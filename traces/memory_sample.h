/* One sample of memory use from /proc. */
#ifndef LVR_TRACES_MEMORY_SAMPLE_H
#define LVR_TRACES_MEMORY_SAMPLE_H

#include "traces/schema.h"
#include <stdbool.h>

/* false where the machine does not tell everything: absent, never zero. */
bool lvr_memory_sample(lvr_rec_memory *ret);

#endif
