/* The ladder of levels, and what a weight type is. */
#include "engine/kernels/levels.h"

const char *lvr_wtype_name(lvr_wtype t)
{
    switch (t) {
    case LVR_F32:
        return "F32";
    case LVR_F16:
        return "F16";
    case LVR_Q4_0:
        return "Q4_0";
    case LVR_Q8_0:
        return "Q8_0";
    }
    return NULL;
}

/* A type is `bytes` per `elems` inputs of one output; elems is 0 for an unknown type. */
typedef struct unit {
    uint32_t elems, bytes, packed_bytes; /* packed_bytes: of 16 outputs */
} unit;

static unit unit_of(lvr_wtype t)
{
    switch (t) {
    case LVR_F32:
        return (unit){1, 4, 4 * LVR_GROUP};
    case LVR_F16:
        return (unit){1, 2, 2 * LVR_GROUP};
    case LVR_Q4_0:
        return (unit){LVR_BLOCK, 2 + LVR_BLOCK / 2, LVR_Q4_BLOCK_BYTES};
    case LVR_Q8_0:
        return (unit){LVR_BLOCK, 2 + LVR_BLOCK, LVR_Q8_BLOCK_BYTES};
    }
    return (unit){0, 0, 0};
}

uint64_t lvr_wtype_row_bytes(lvr_wtype t, uint64_t n_in)
{
    const unit u = unit_of(t);
    uint64_t bytes;
    if (u.elems == 0 || n_in % u.elems != 0 || __builtin_mul_overflow(n_in / u.elems, u.bytes, &bytes))
        return 0;
    return bytes;
}

uint64_t lvr_group_bytes(lvr_wtype t, uint32_t n_in)
{
    const unit u = unit_of(t);
    if (u.elems == 0 || n_in % u.elems != 0)
        return 0;
    return (uint64_t)(n_in / u.elems) * u.packed_bytes;
}

uint64_t lvr_packed_bytes(lvr_wtype t, uint32_t n_out, uint32_t n_in)
{
    uint64_t bytes;
    if (__builtin_mul_overflow(lvr_group_bytes(t, n_in), lvr_group_count(n_out), &bytes))
        return 0;
    return bytes;
}

void lvr_kernels_init(lvr_kernels *k, lvr_cpu_level level)
{
    const lvr_cpu_level best = lvr_cpu_best();
    const lvr_cpu_level top = level < best ? level : best;
    lvr_kernels_init_c(k);
    k->level = LVR_CPU_C;
    if (top < LVR_CPU_AVX2)
        return;
#if defined(__x86_64__)
    lvr_kernels_init_avx2(k);
    k->level = LVR_CPU_AVX2;
#endif
}

lvr_matmul_fn lvr_kernels_matmul(const lvr_kernels *k, lvr_wtype t)
{
    switch (t) {
    case LVR_F32:
        return k->matmul_f32;
    case LVR_F16:
        return k->matmul_f16;
    case LVR_Q4_0:
        return k->matmul_q4_0;
    case LVR_Q8_0:
        return k->matmul_q8_0;
    }
    return NULL;
}
