/* The ladder of levels, and what a weight type is. */
#include "engine/kernels/levels.h"

/* A type is `bytes` per `elems` inputs of one output. */
typedef struct unit {
    const char *name;                    /* NULL: not a type */
    uint32_t elems, bytes, packed_bytes; /* packed_bytes: of 16 outputs */
    bool quantised;
} unit;

static const unit units[LVR_WTYPE_SLOTS] = {
    [LVR_F32] = {"F32", 1, 4, 4 * LVR_GROUP, false},
    [LVR_F16] = {"F16", 1, 2, 2 * LVR_GROUP, false},
    [LVR_BF16] = {"BF16", 1, 2, 2 * LVR_GROUP, false},
    [LVR_Q4_0] = {"Q4_0", LVR_BLOCK, 18, LVR_Q4_BLOCK_BYTES, true},
    [LVR_Q4_1] = {"Q4_1", LVR_BLOCK, 20, LVR_Q4_1_BLOCK_BYTES, true},
    [LVR_Q5_0] = {"Q5_0", LVR_BLOCK, 22, LVR_Q5_0_BLOCK_BYTES, true},
    [LVR_Q5_1] = {"Q5_1", LVR_BLOCK, 24, LVR_Q5_1_BLOCK_BYTES, true},
    [LVR_Q8_0] = {"Q8_0", LVR_BLOCK, 34, LVR_Q8_BLOCK_BYTES, true},
    [LVR_Q4_K] = {"Q4_K", LVR_SUPER, 144, LVR_Q4_K_SUPER_BYTES, true},
    [LVR_Q5_K] = {"Q5_K", LVR_SUPER, 176, LVR_Q5_K_SUPER_BYTES, true},
    [LVR_Q6_K] = {"Q6_K", LVR_SUPER, 210, LVR_Q6_K_SUPER_BYTES, true},
};

/* NULL for an unknown type. */
static const unit *unit_of(lvr_wtype t)
{
    return (unsigned)t < LVR_WTYPE_SLOTS && units[t].name != NULL ? &units[t] : NULL;
}

const char *lvr_wtype_name(lvr_wtype t)
{
    const unit *u = unit_of(t);
    return u != NULL ? u->name : NULL;
}

uint32_t lvr_wtype_inputs(lvr_wtype t)
{
    const unit *u = unit_of(t);
    return u != NULL ? u->elems : 0;
}

bool lvr_wtype_quantised(lvr_wtype t)
{
    const unit *u = unit_of(t);
    return u != NULL && u->quantised;
}

uint64_t lvr_wtype_row_bytes(lvr_wtype t, uint64_t n_in)
{
    const unit *u = unit_of(t);
    uint64_t bytes;
    if (u == NULL || n_in % u->elems != 0 || __builtin_mul_overflow(n_in / u->elems, u->bytes, &bytes))
        return 0;
    return bytes;
}

uint64_t lvr_group_bytes(lvr_wtype t, uint32_t n_in)
{
    const unit *u = unit_of(t);
    if (u == NULL || n_in % u->elems != 0)
        return 0;
    return (uint64_t)(n_in / u->elems) * u->packed_bytes;
}

uint64_t lvr_packed_bytes(lvr_wtype t, uint32_t n_out, uint32_t n_in)
{
    uint64_t bytes;
    if (__builtin_mul_overflow(lvr_group_bytes(t, n_in), lvr_group_count(n_out), &bytes))
        return 0;
    return bytes;
}

/* One rung: climbed in order, each on top of the ones before. */
typedef struct rung {
    lvr_cpu_level level;
    void (*climb)(lvr_kernels *k);
} rung;

static const rung ladder[] = {
    {LVR_CPU_C, lvr_kernels_init_c},
#if defined(__x86_64__)
    {LVR_CPU_AVX2, lvr_kernels_init_avx2},
    {LVR_CPU_AVX512, lvr_kernels_init_avx512},
    {LVR_CPU_AMX, lvr_kernels_init_amx},
#elif defined(__aarch64__)
    {LVR_CPU_NEON, lvr_kernels_init_neon},
    {LVR_CPU_DOTPROD, lvr_kernels_init_dotprod},
    {LVR_CPU_I8MM, lvr_kernels_init_i8mm},
#endif
};

void lvr_kernels_climb(lvr_kernels *k, lvr_cpu_level level)
{
    for (size_t i = 0; i < sizeof ladder / sizeof ladder[0]; i++) {
        ladder[i].climb(k);
        k->level = ladder[i].level;
        if (k->level == level)
            return;
    }
}

void lvr_kernels_init(lvr_kernels *k, lvr_cpu_level level)
{
    lvr_kernels_climb(k, lvr_cpu_has(level) ? level : lvr_cpu_best());
}

lvr_matmul_fn lvr_kernels_matmul(const lvr_kernels *k, lvr_wtype t)
{
    return (unsigned)t < LVR_WTYPE_SLOTS ? k->matmul[t] : NULL;
}
