/*
 * Between cpu.c and the probe of the architecture, inside the kernels library. One file per architecture
 * defines lvr_cpu_probe; everything else about levels is common (cpu.c).
 */
#ifndef LVR_ENGINE_KERNELS_CPU_H
#define LVR_ENGINE_KERNELS_CPU_H

#include "engine/kernels/kernels.h"

typedef struct lvr_cpu_facts {
    lvr_cpu_level best;
    const char *note;   /* why a level that the features promise is not offered; NULL: none is withheld */
    char features[256]; /* what the machine has, e.g. "avx2 fma f16c" */
} lvr_cpu_facts;

/* Fills a zeroed *ret. Called once per process. */
void lvr_cpu_probe(lvr_cpu_facts *ret);

typedef struct lvr_cpu_feature {
    unsigned flag;
    const char *name;
} lvr_cpu_feature;
/* Names of the features in `flags`, in the table's order. */
void lvr_cpu_list_features(const lvr_cpu_feature *table, size_t n, unsigned flags, lvr_cpu_facts *ret);

/* Products of every weight type at `level` equal C's, bit for bit (level_check.c). The CPU must have the
 * level's instructions. */
bool lvr_cpu_level_agrees(lvr_cpu_level level);

#endif
