/* Levels and their names, and what the architecture's probe (cpu_x86.c, cpu_arm.c) found, kept for the life
 * of the process. */
#include "engine/kernels/cpu.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

static const char *const level_names[LVR_CPU_LEVELS] = {
    [LVR_CPU_C] = "c",       [LVR_CPU_AVX2] = "avx2", [LVR_CPU_AVX512] = "avx512",
    [LVR_CPU_AMX] = "amx",   [LVR_CPU_NEON] = "neon", [LVR_CPU_DOTPROD] = "dotprod",
    [LVR_CPU_I8MM] = "i8mm",
};

static lvr_cpu_facts probed;

static void probe_once(void)
{
    lvr_cpu_probe(&probed);
}

static const lvr_cpu_facts *facts(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, probe_once);
    return &probed;
}

#if !defined(__x86_64__) && !defined(__aarch64__)
void lvr_cpu_probe(lvr_cpu_facts *ret)
{
    ret->best = LVR_CPU_C;
}
#endif

void lvr_cpu_list_features(const lvr_cpu_feature *table, size_t n, unsigned flags, lvr_cpu_facts *ret)
{
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        if ((flags & table[i].flag) == 0)
            continue;
        const size_t space = sizeof ret->features - used;
        const int w = snprintf(ret->features + used, space, "%s%s", used != 0 ? " " : "", table[i].name);
        if (w < 0 || (size_t)w >= space) {
            ret->features[used] = '\0'; /* whole names only */
            return;
        }
        used += (size_t)w;
    }
}

const char *lvr_cpu_level_name(lvr_cpu_level level)
{
    return (unsigned)level < LVR_CPU_LEVELS ? level_names[level] : NULL;
}

bool lvr_cpu_level_parse(const char *name, lvr_cpu_level *ret)
{
    for (unsigned i = 0; i < LVR_CPU_LEVELS; i++) {
        if (strcmp(name, level_names[i]) != 0)
            continue;
        *ret = (lvr_cpu_level)i;
        return true;
    }
    return false;
}

lvr_cpu_level lvr_cpu_best(void)
{
    return facts()->best;
}

bool lvr_cpu_has(lvr_cpu_level level)
{
#if defined(__aarch64__)
    const lvr_cpu_level first = LVR_CPU_NEON;
#else
    const lvr_cpu_level first = LVR_CPU_AVX2;
#endif
    return level == LVR_CPU_C || (level >= first && level <= lvr_cpu_best());
}

const char *lvr_cpu_note(void)
{
    return facts()->note;
}

void lvr_cpu_flags_text(char *buf, size_t n)
{
    if (n == 0)
        return;
    const char *features = facts()->features;
    size_t len = strlen(features);
    if (len >= n) /* whole names only */
        for (len = n - 1; len > 0 && features[len] != ' '; len--)
            ;
    memcpy(buf, features, len);
    buf[len] = '\0';
}
