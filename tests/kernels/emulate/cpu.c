/* The probe of a machine whose best level is AMX, for programs whose AVX-512 and AMX are emulated. The model
 * stands on AVX2, FMA and F16C (which every processor with FMA has): without them there is C alone, and
 * nothing to test. */
#include "engine/kernels/cpu.h"

void lvr_cpu_probe(lvr_cpu_facts *ret)
{
    static const lvr_cpu_feature emulated[] = {{1, "emulated-avx512-vnni"}, {2, "emulated-amx-int8"}};
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return;
    lvr_cpu_list_features(emulated, 2, 3, ret);
    ret->best = LVR_CPU_AVX2;
    if (!lvr_cpu_level_agrees(LVR_CPU_AVX512)) {
        ret->note = "avx512: a product differs from C's";
        return;
    }
    ret->best = LVR_CPU_AVX512;
    if (!lvr_cpu_level_agrees(LVR_CPU_AMX)) {
        ret->note = "amx: a product differs from C's";
        return;
    }
    ret->best = LVR_CPU_AMX;
}
