/*
 * What the CPU has and the operating system lets us use. An AVX2 bit in CPUID is not enough: the system must
 * also save the upper halves of the registers on a context switch, which XGETBV tells.
 */
#include "engine/kernels/kernels.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

enum {
    CPU_PROBED = 1 << 0,
    CPU_AVX2 = 1 << 1,
    CPU_FMA = 1 << 2,
    CPU_F16C = 1 << 3,
    CPU_AVX_VNNI = 1 << 4,
    CPU_AVX512F = 1 << 5,
    CPU_AVX512BW = 1 << 6,
    CPU_AVX512VL = 1 << 7,
    CPU_AVX512_VNNI = 1 << 8,
    CPU_AMX_TILE = 1 << 9,
    CPU_AMX_INT8 = 1 << 10,
    CPU_AMX_BF16 = 1 << 11,
};

static const struct {
    unsigned flag;
    const char *name;
} flag_names[] = {
    {CPU_AVX2, "avx2"},         {CPU_FMA, "fma"},
    {CPU_F16C, "f16c"},         {CPU_AVX_VNNI, "avx-vnni"},
    {CPU_AVX512F, "avx512f"},   {CPU_AVX512BW, "avx512bw"},
    {CPU_AVX512VL, "avx512vl"}, {CPU_AVX512_VNNI, "avx512-vnni"},
    {CPU_AMX_TILE, "amx-tile"}, {CPU_AMX_INT8, "amx-int8"},
    {CPU_AMX_BF16, "amx-bf16"},
};

static const char *const level_names[LVR_CPU_LEVELS] = {
    [LVR_CPU_C] = "c",       [LVR_CPU_AVX2] = "avx2", [LVR_CPU_AVX512] = "avx512",
    [LVR_CPU_AMX] = "amx",   [LVR_CPU_NEON] = "neon", [LVR_CPU_DOTPROD] = "dotprod",
    [LVR_CPU_I8MM] = "i8mm",
};

#if defined(__x86_64__)
/* XCR0: which register states the operating system saves. */
#define XCR0_YMM 0x6u       /* SSE and the upper halves of YMM */
#define XCR0_ZMM 0xe6u      /* and the opmasks and the ZMM halves */
#define XCR0_TILES 0x60000u /* tile configuration and tile data */

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

static unsigned probe(void)
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
        flags |= flag_if(b, 16, CPU_AVX512F) | flag_if(b, 30, CPU_AVX512BW) | flag_if(b, 31, CPU_AVX512VL) |
                 flag_if(c, 11, CPU_AVX512_VNNI);
    if ((xcr0 & XCR0_TILES) == XCR0_TILES)
        flags |= flag_if(d, 24, CPU_AMX_TILE) | flag_if(d, 25, CPU_AMX_INT8) | flag_if(d, 22, CPU_AMX_BF16);
    if (max_subleaf >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d))
        flags |= flag_if(a, 4, CPU_AVX_VNNI);
    return flags;
}
#else
static unsigned probe(void)
{
    return 0;
}
#endif

/* Threads that race here probe twice and store the same value. */
static unsigned cpu_flags(void)
{
    static atomic_uint cached;
    unsigned flags = atomic_load_explicit(&cached, memory_order_relaxed);
    if (flags != 0)
        return flags;
    flags = probe() | CPU_PROBED;
    atomic_store_explicit(&cached, flags, memory_order_relaxed);
    return flags;
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
    const unsigned avx2 = CPU_AVX2 | CPU_FMA | CPU_F16C;
    if ((cpu_flags() & avx2) != avx2)
        return LVR_CPU_C;
    return LVR_CPU_AVX2;
}

bool lvr_cpu_has(lvr_cpu_level level)
{
#if defined(__x86_64__)
    const lvr_cpu_level first = LVR_CPU_AVX2;
#else
    const lvr_cpu_level first = LVR_CPU_NEON;
#endif
    return level == LVR_CPU_C || (level >= first && level <= lvr_cpu_best());
}

void lvr_cpu_flags_text(char *buf, size_t n)
{
    if (n == 0)
        return;
    buf[0] = '\0';
    const unsigned flags = cpu_flags();
    size_t used = 0;
    for (size_t i = 0; i < sizeof flag_names / sizeof flag_names[0]; i++) {
        if ((flags & flag_names[i].flag) == 0)
            continue;
        const int w = snprintf(buf + used, n - used, "%s%s", used != 0 ? " " : "", flag_names[i].name);
        if (w < 0 || (size_t)w >= n - used) {
            buf[used] = '\0'; /* whole names only */
            return;
        }
        used += (size_t)w;
    }
}
