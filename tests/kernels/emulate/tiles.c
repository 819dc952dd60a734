/*
 * The model's tile registers (Intel SDM volume 1, chapter 18, and the instructions' pages of volume 2) and
 * its report of faults. What an instruction would fault on is reported and then not done.
 */
#include "tests/kernels/emulate/emulate.h"

#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

enum { TILES = 8, ROWS = 16, ROW_BYTES = 64, MAX_PRINTED = 20 };

typedef struct tile {
    uint8_t rows;
    uint16_t row_bytes;
    uint8_t data[ROWS][ROW_BYTES];
} tile;

static bool configured;
static tile tiles[TILES];
static unsigned faults;

void emu_fault(const char *what)
{
    if (++faults <= MAX_PRINTED)
        fprintf(stderr, "emulated CPU: %s\n", what);
}

unsigned emu_take_faults(void)
{
    const unsigned n = faults;
    faults = 0;
    return n;
}

__attribute__((destructor)) static void report_at_exit(void)
{
    if (configured)
        emu_fault("the program ends with tiles in use: a kernel did not release them");
    if (faults == 0)
        return;
    fprintf(stderr, "emulated CPU: %u faults\n", faults);
    fflush(NULL);
    _exit(1);
}

static bool all_zero(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != 0)
            return false;
    return true;
}

/* Bytes: 0 palette, 1 start row, 16 to 31 and 48 to 55 the tiles' row bytes and rows; the others reserved. */
static bool read_config(const uint8_t c[64], tile to[TILES])
{
    if (c[0] != 1 || c[1] != 0 || !all_zero(c + 2, 14) || !all_zero(c + 32, 16) || !all_zero(c + 56, 8))
        return false;
    for (int t = 0; t < TILES; t++) {
        memcpy(&to[t].row_bytes, c + 16 + 2 * t, 2);
        to[t].rows = c[48 + t];
        if (to[t].rows > ROWS || to[t].row_bytes > ROW_BYTES || (to[t].rows == 0) != (to[t].row_bytes == 0))
            return false;
    }
    return true;
}

/* The instruction takes any address; a kernel that keeps its configuration in one cache line is asked for. */
void emu_tile_loadconfig(const void *config)
{
    uint8_t bytes[64];
    tile to[TILES] = {0};
    if (config == NULL || ((uintptr_t)config & 63u) != 0) {
        emu_fault("LDTILECFG: NULL, or not aligned to a cache line");
        return;
    }
    memcpy(bytes, config, sizeof bytes);
    if (!read_config(bytes, to)) {
        emu_fault("LDTILECFG: a configuration that palette 1 does not allow");
        return;
    }
    memcpy(tiles, to, sizeof tiles);
    configured = true;
}

void emu_tile_release(void)
{
    memset(tiles, 0, sizeof tiles);
    configured = false;
}

static tile *usable(int t, const char *what)
{
    if (configured && t >= 0 && t < TILES && tiles[t].rows != 0)
        return &tiles[t];
    emu_fault(what);
    return NULL;
}

void emu_tile_zero(int t)
{
    tile *to = usable(t, "TILEZERO of a tile that is not configured");
    if (to != NULL)
        memset(to->data, 0, sizeof to->data);
}

void emu_tile_loadd(int t, const void *base, size_t stride)
{
    tile *to = usable(t, "TILELOADD of a tile that is not configured");
    if (to == NULL)
        return;
    memset(to->data, 0, sizeof to->data);
    for (unsigned r = 0; r < to->rows; r++)
        memcpy(to->data[r], (const uint8_t *)base + r * stride, to->row_bytes);
}

void emu_tile_stored(int t, void *base, size_t stride)
{
    const tile *from = usable(t, "TILESTORED of a tile that is not configured");
    for (unsigned r = 0; from != NULL && r < from->rows; r++)
        memcpy((uint8_t *)base + r * stride, from->data[r], from->row_bytes);
}

static bool shapes_match(const tile *dst, const tile *a, const tile *b)
{
    return dst != a && dst != b && a != b && dst->rows == a->rows && dst->row_bytes == b->row_bytes &&
           a->row_bytes / 4 == b->rows && dst->row_bytes % 4 == 0 && a->row_bytes % 4 == 0 &&
           b->row_bytes % 4 == 0;
}

/* dst[m][n] += four products of signed bytes for each row k of b, without saturation. */
void emu_tile_dpbssd(int dst, int left, int right)
{
    const char *what = "TDPBSSD of a tile that is not configured";
    tile *to = usable(dst, what);
    const tile *a = usable(left, what), *b = usable(right, what);
    if (to == NULL || a == NULL || b == NULL)
        return;
    if (!shapes_match(to, a, b)) {
        emu_fault("TDPBSSD of tiles whose shapes do not match");
        return;
    }
    for (unsigned m = 0; m < to->rows; m++)
        for (unsigned n = 0; n < to->row_bytes / 4u; n++) {
            int32_t sum;
            memcpy(&sum, &to->data[m][4 * n], 4);
            for (unsigned k = 0; k < b->rows; k++)
                for (unsigned i = 0; i < 4; i++)
                    sum += (int8_t)a->data[m][4 * k + i] * (int8_t)b->data[k][4 * n + i];
            memcpy(&to->data[m][4 * n], &sum, 4);
        }
}
