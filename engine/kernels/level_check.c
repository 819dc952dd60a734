/* The trial a level must pass before it is offered: wrong results of the machine's newest units (an
 * emulator's, an erratum's) are found here and not in a text. */
#include "engine/kernels/cpu.h"
#include "engine/kernels/lcg.h"
#include "engine/kernels/levels.h"

#include <math.h>

/* More than one tile of rows, a last group that is not full, two super-blocks, or as many panels of blocks
 * and one block more. */
enum { ROWS = 18, N_OUT = 19, N_IN = 544, BLOCKS = N_IN / LVR_BLOCK, GROUPS = 2 };

typedef struct trial {
    _Alignas(64) uint8_t packed[GROUPS * LVR_GROUP * N_IN * sizeof(float)];
    uint8_t gguf[N_OUT * N_IN * sizeof(float)];
    float x[ROWS * N_IN], want[ROWS * N_OUT], got[ROWS * N_OUT];
    int8_t q[ROWS * N_IN];
    float d[ROWS * BLOCKS];
    int16_t hsum[ROWS * BLOCKS * 2];
    uint32_t state;
} trial;

/* The upper byte of floats of the type is its every upper_byte_of-th; 0: the type has none. */
static size_t upper_byte_of(lvr_wtype type)
{
    return type == LVR_F32 ? sizeof(float) : type == LVR_BF16 ? sizeof(uint16_t) : 0;
}

/* Bytes that are the upper half of no infinity or NaN as a half; floats of moderate size, 2^-7 to 4, whose
 * sums stay finite. */
static void fill_weights(trial *t, lvr_wtype type)
{
    const size_t step = upper_byte_of(type);
    for (size_t i = 0; i < sizeof t->gguf; i++) {
        const uint8_t byte = (uint8_t)lvr_lcg_next(&t->state);
        t->gguf[i] = (byte & 0x7c) == 0x7c ? byte ^ 0x40 : byte;
        if (step != 0 && i % step == step - 1)
            t->gguf[i] = (uint8_t)((byte & 0x83) | 0x3c);
    }
}

static void fill_activations(trial *t)
{
    for (size_t i = 0; i < ROWS * N_IN; i++)
        t->x[i] = (float)(int32_t)(lvr_lcg_next(&t->state) & 0xffffu) - 32768.0f;
}

static void quantise(trial *t, const lvr_kernels *k, uint32_t n_in)
{
    const size_t n_blocks = n_in / LVR_BLOCK;
    for (size_t r = 0; r < ROWS; r++)
        k->quantize_row(t->x + r * n_in, n_in, t->q + r * n_in, t->d + r * n_blocks,
                        t->hsum + r * n_blocks * 2);
}

static bool quantisation_agrees(trial *t, const lvr_kernels *c, const lvr_kernels *now)
{
    static const size_t n_q = ROWS * N_IN, n_d = ROWS * BLOCKS, n_hsum = ROWS * BLOCKS * 2;
    int8_t q[ROWS * N_IN];
    float d[ROWS * BLOCKS];
    int16_t hsum[ROWS * BLOCKS * 2];
    quantise(t, c, N_IN);
    memcpy(q, t->q, n_q);
    memcpy(d, t->d, n_d * sizeof *d);
    memcpy(hsum, t->hsum, n_hsum * sizeof *hsum);
    quantise(t, now, N_IN);
    return memcmp(q, t->q, n_q) == 0 && memcmp(d, t->d, n_d * sizeof *d) == 0 &&
           memcmp(hsum, t->hsum, n_hsum * sizeof *hsum) == 0;
}

static bool product_agrees(trial *t, const lvr_kernels *c, const lvr_kernels *now, lvr_wtype type)
{
    const uint32_t unit = lvr_wtype_inputs(type), n_in = N_IN / unit * unit;
    const lvr_matrix m = {type, N_OUT, n_in, t->packed};
    const lvr_acts a = {.n_rows = ROWS, .n_in = n_in, .x = t->x, .q = t->q, .d = t->d, .hsum = t->hsum};
    fill_weights(t, type);
    quantise(t, c, n_in);
    lvr_pack_matrix(type, N_OUT, n_in, t->gguf, t->packed);
    c->matmul[type](&m, &a, 0, GROUPS, t->want, N_OUT);
    now->matmul[type](&m, &a, 0, GROUPS, t->got, N_OUT);
    for (size_t i = 0; i < ROWS * N_OUT; i++)
        if (memcmp(&t->want[i], &t->got[i], sizeof(float)) != 0 && !(isnan(t->want[i]) && isnan(t->got[i])))
            return false;
    return true;
}

bool lvr_cpu_level_agrees(lvr_cpu_level level)
{
    lvr_kernels c, now;
    trial t = {.state = 1};
    lvr_kernels_climb(&c, LVR_CPU_C);
    lvr_kernels_climb(&now, level);
    fill_activations(&t);
    if (!quantisation_agrees(&t, &c, &now))
        return false;
    for (unsigned type = 0; type < LVR_WTYPE_SLOTS; type++)
        if (c.matmul[type] != now.matmul[type] && !product_agrees(&t, &c, &now, (lvr_wtype)type))
            return false;
    return true;
}
