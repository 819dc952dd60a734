/* Where the instructions of the upper x86 levels come from: the compiler, or a model of them that a test
 * names, so that the same source runs where the instructions do not exist. */
#ifndef LVR_ENGINE_KERNELS_X86_INTRIN_H
#define LVR_ENGINE_KERNELS_X86_INTRIN_H

#ifdef LVR_INTRINSICS
#include LVR_INTRINSICS
#else
#include <immintrin.h>
/* A vector that stays as written and in its register: left to itself gcc reassociates sums, runs out of
 * registers and keeps them in memory. Costs no instruction. */
#define LVR_KEEP(v) __asm__("" : "+v"(v))
/* Before a loop of a constant number of rounds, at most 8, over arrays that must become registers. */
#ifdef __clang__
#define LVR_UNROLL _Pragma("clang loop unroll(full)")
#else
#define LVR_UNROLL _Pragma("GCC unroll 8")
#endif
#endif

#endif
