/* What an arm64 processor has, as Linux tells every process (Documentation/arm64/elf_hwcaps.rst). */
#include "engine/kernels/cpu.h"

#include <asm/hwcap.h>
#include <sys/auxv.h>

enum {
    CPU_ASIMD = 1 << 0,
    CPU_ASIMDDP = 1 << 1,
    CPU_I8MM = 1 << 2,
};

static const lvr_cpu_feature features[] = {
    {CPU_ASIMD, "asimd"},
    {CPU_ASIMDDP, "asimddp"},
    {CPU_I8MM, "i8mm"},
};

static unsigned usable_features(void)
{
    const unsigned long hwcap = getauxval(AT_HWCAP), hwcap2 = getauxval(AT_HWCAP2);
    return ((hwcap & HWCAP_ASIMD) != 0 ? CPU_ASIMD : 0u) | ((hwcap & HWCAP_ASIMDDP) != 0 ? CPU_ASIMDDP : 0u) |
           ((hwcap2 & HWCAP2_I8MM) != 0 ? CPU_I8MM : 0u);
}

void lvr_cpu_probe(lvr_cpu_facts *ret)
{
    const unsigned flags = usable_features();
    lvr_cpu_list_features(features, sizeof features / sizeof features[0], flags, ret);
    ret->best = LVR_CPU_C;
    if ((flags & CPU_ASIMD) == 0)
        return;
    ret->best = LVR_CPU_NEON;
    if ((flags & CPU_ASIMDDP) == 0)
        return;
    if (!lvr_cpu_level_agrees(LVR_CPU_DOTPROD)) {
        ret->note = "dotprod: a product differs from C's on this machine; not used";
        return;
    }
    ret->best = LVR_CPU_DOTPROD;
    if ((flags & CPU_I8MM) == 0)
        return;
    if (!lvr_cpu_level_agrees(LVR_CPU_I8MM)) {
        ret->note = "i8mm: a product differs from C's on this machine; not used";
        return;
    }
    ret->best = LVR_CPU_I8MM;
}
