/*
 * What an x86-64 processor has and the operating system lets us use. A bit in CPUID is not enough: the system
 * must also save the registers in question on a context switch, which XGETBV tells, and Linux gives AMX's
 * tiles, whose state is large, only to processes that ask (arch/x86/xstate.rst of its documentation).
 */
#include "engine/kernels/cpu.h"

#include <cpuid.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    CPU_AVX2 = 1 << 0,
    CPU_FMA = 1 << 1,
    CPU_F16C = 1 << 2,
    CPU_AVX_VNNI = 1 << 3,
    CPU_AVX512F = 1 << 4,
    CPU_AVX512DQ = 1 << 5,
    CPU_AVX512BW = 1 << 6,
    CPU_AVX512VL = 1 << 7,
    CPU_AVX512_VNNI = 1 << 8,
    CPU_AMX_TILE = 1 << 9,
    CPU_AMX_INT8 = 1 << 10,
    CPU_AMX_BF16 = 1 << 11,
};

static const lvr_cpu_feature features[] = {
    {CPU_AVX2, "avx2"},         {CPU_FMA, "fma"},           {CPU_F16C, "f16c"},
    {CPU_AVX_VNNI, "avx-vnni"}, {CPU_AVX512F, "avx512f"},   {CPU_AVX512DQ, "avx512dq"},
    {CPU_AVX512BW, "avx512bw"}, {CPU_AVX512VL, "avx512vl"}, {CPU_AVX512_VNNI, "avx512-vnni"},
    {CPU_AMX_TILE, "amx-tile"}, {CPU_AMX_INT8, "amx-int8"}, {CPU_AMX_BF16, "amx-bf16"},
};

/* XCR0: which register states the operating system saves. */
#define XCR0_YMM 0x6u       /* SSE and the upper halves of YMM */
#define XCR0_ZMM 0xe6u      /* and the opmasks and the ZMM halves */
#define XCR0_TILES 0x60000u /* tile configuration and tile data */

#define ARCH_REQ_XCOMP_PERM 0x1023
#define XFEATURE_XTILEDATA 18

static uint32_t xcr0_low(void)
{
    uint32_t eax, edx;
    __asm__ volatile("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
    return eax;
}

static unsigned flag_if(unsigned reg, unsigned bit, unsigned flag)
{
    return (reg >> bit & 1u) != 0 ? flag : 0;
}

static unsigned usable_features(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d))
        return 0;
    const bool osxsave = (c >> 27 & 1u) != 0;
    if (!osxsave)
        return 0;
    const uint32_t xcr0 = xcr0_low();
    if ((xcr0 & XCR0_YMM) != XCR0_YMM)
        return 0;
    unsigned flags = flag_if(c, 12, CPU_FMA) | flag_if(c, 29, CPU_F16C);
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return flags;
    const unsigned max_subleaf = a;
    flags |= flag_if(b, 5, CPU_AVX2);
    if ((xcr0 & XCR0_ZMM) == XCR0_ZMM)
        flags |= flag_if(b, 16, CPU_AVX512F) | flag_if(b, 17, CPU_AVX512DQ) | flag_if(b, 30, CPU_AVX512BW) |
                 flag_if(b, 31, CPU_AVX512VL) | flag_if(c, 11, CPU_AVX512_VNNI);
    if ((xcr0 & XCR0_TILES) == XCR0_TILES)
        flags |= flag_if(d, 24, CPU_AMX_TILE) | flag_if(d, 25, CPU_AMX_INT8) | flag_if(d, 22, CPU_AMX_BF16);
    if (max_subleaf >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d))
        flags |= flag_if(a, 4, CPU_AVX_VNNI);
    return flags;
}

static bool has_all(unsigned flags, unsigned wanted)
{
    return (flags & wanted) == wanted;
}

/* Nothing above the level that LVR_CPU_LEVEL names is tried: the way round a machine on which the trial
 * itself goes wrong. */
static lvr_cpu_level most_allowed(lvr_cpu_facts *ret)
{
    const char *name = getenv("LVR_CPU_LEVEL");
    lvr_cpu_level level = LVR_CPU_AMX;
    if (name != NULL && !lvr_cpu_level_parse(name, &level))
        ret->note = "the environment's LVR_CPU_LEVEL is none of c, avx2, avx512, amx: it has no effect";
    return level;
}

/* For the whole process, threads to come included. */
static bool ask_for_tiles(void)
{
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

void lvr_cpu_probe(lvr_cpu_facts *ret)
{
    const unsigned flags = usable_features();
    const lvr_cpu_level most = most_allowed(ret);
    lvr_cpu_list_features(features, sizeof features / sizeof features[0], flags, ret);
    ret->best = LVR_CPU_C;
    if (most < LVR_CPU_AVX2 || !has_all(flags, CPU_AVX2 | CPU_FMA | CPU_F16C))
        return;
    ret->best = LVR_CPU_AVX2;
    if (most < LVR_CPU_AVX512 ||
        !has_all(flags, CPU_AVX512F | CPU_AVX512DQ | CPU_AVX512BW | CPU_AVX512VL | CPU_AVX512_VNNI))
        return;
    if (!lvr_cpu_level_agrees(LVR_CPU_AVX512)) {
        ret->note = "avx512: a product differs from C's on this machine; not used";
        return;
    }
    ret->best = LVR_CPU_AVX512;
    if (most < LVR_CPU_AMX || !has_all(flags, CPU_AMX_TILE | CPU_AMX_INT8))
        return;
    if (!ask_for_tiles()) {
        ret->note = "amx: the operating system refuses the tile registers to this process; not used";
        return;
    }
    if (!lvr_cpu_level_agrees(LVR_CPU_AMX)) {
        ret->note = "amx: a product differs from C's on this machine; not used";
        return;
    }
    ret->best = LVR_CPU_AMX;
}
