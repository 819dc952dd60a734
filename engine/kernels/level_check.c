/* The trial a level must pass before it is offered: wrong results of the machine's newest units (an
 * emulator's, an erratum's) are found here and not in a text. */
#include "engine/kernels/cpu.h"
#include "engine/kernels/levels.h"

#include <math.h>

/* More than one tile of rows, a last group that is not full, one super-block and a block's worth of panels.
 */
enum { ROWS = 18, N_OUT = 19, N_IN = 256, BLOCKS = N_IN / LVR_BLOCK, GROUPS = 2 };

typedef struct trial {
    _Alignas(64) uint8_t packed[GROUPS * LVR_GROUP * N_IN * sizeof(float)];
    uint8_t gguf[N_OUT * N_IN * sizeof(float)];
    float x[ROWS * N_IN], want[ROWS * N_OUT], got[ROWS * N_OUT];
    int8_t q[ROWS * N_IN];
    float d[ROWS * BLOCKS];
    int16_t hsum[ROWS * BLOCKS * 2];
    uint32_t state;
} trial;

/* Knuth and Lewis's generator: its upper bits are good enough here. */
static uint32_t next_random(trial *t)
{
    t->state = t->state * 1664525u + 1013904223u;
    return t->state >> 8;
}

/* Bytes that are the upper half of no infinity or NaN, as a half or as a float. */
static void fill(trial *t)
{
    for (size_t i = 0; i < sizeof t->gguf; i++) {
        const uint8_t byte = (uint8_t)next_random(t);
        t->gguf[i] = (byte & 0x7c) == 0x7c ? byte ^ 0x40 : byte;
    }
    for (size_t i = 0; i < ROWS * N_IN; i++)
        t->x[i] = (float)(int32_t)(next_random(t) & 0xffffu) - 32768.0f;
}

static bool product_agrees(trial *t, const lvr_kernels *c, const lvr_kernels *now, lvr_wtype type)
{
    const lvr_matrix m = {type, N_OUT, N_IN, t->packed};
    const lvr_acts a = {.n_rows = ROWS, .n_in = N_IN, .x = t->x, .q = t->q, .d = t->d, .hsum = t->hsum};
    lvr_pack_matrix(type, N_OUT, N_IN, t->gguf, t->packed);
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
    fill(&t);
    for (size_t r = 0; r < ROWS; r++)
        c.quantize_row(t.x + r * N_IN, N_IN, t.q + r * N_IN, t.d + r * BLOCKS, t.hsum + r * BLOCKS * 2);
    for (unsigned type = 0; type < LVR_WTYPE_SLOTS; type++)
        if (c.matmul[type] != now.matmul[type] && !product_agrees(&t, &c, &now, (lvr_wtype)type))
            return false;
    return true;
}
