/*
 * AMX products of quantised weights: up to 16 rows of activations times 16 outputs over one block of inputs
 * in one instruction.
 *
 * Codes are unpacked less their bias, as signed bytes, into the very layout of a right-hand tile (8 quads of
 * inputs x 16 outputs x 4 bytes), so that the integer sums need no correction: TDPBSSD, not TDPBSUD, for all
 * types, Q8_0 included. A block's sums (16 rows x 16 outputs) leave the tiles for L1, and AVX-512 scales them
 * into the rows' results. HALVES takes a block as two tiles of 16 inputs.
 *
 * The tile unit and AVX-512 work at the same time: while the four sums of one step are in the tiles, those of
 * the step before are scaled. Activations are copied once per call into tiles of their own (a slab): rows of
 * n_in bytes, a power of two apart, would fight for the same sets of L1. More than 16 rows: unpacked codes
 * serve up to four tiles of rows.
 */
#include "engine/kernels/x86_avx512_block.h"

#define TILE_ROWS 16u
#define SLAB_TILES 4u
#define SLAB_ROWS (TILE_ROWS * SLAB_TILES)
#define SLAB_UNITS 128u /* 80 KiB */
#define STEP_SUMS 4u    /* tiles 0 to 3 hold sums, 4 and 5 activations, 6 and 7 weights */
#define LEAST_ROWS 4u   /* with fewer, memory is the limit and AVX-512 has no sums to move */
#define HALF (LVR_BLOCK / 2u)

/* A span of one group, unpacked: its codes less their bias, as signed bytes. */
typedef struct panel {
    _Alignas(64) uint8_t code[SPAN_BLOCKS][QUADS][QUAD_BYTES]; /* [block][quad][output][4 inputs] */
    packed at[SPAN_BLOCKS];
} panel;

/* The activations of one block for one tile of rows. */
typedef struct unit {
    _Alignas(64) int8_t q[TILE_ROWS][LVR_BLOCK];
    float da[TILE_ROWS], qsum[TILE_ROWS];
} unit;

typedef struct slab {
    unit units[SLAB_UNITS]; /* [block][tile of rows] */
    uint32_t n_rows, n_tiles;
    uint32_t tile_rows; /* of each; the last may have fewer */
} slab;

typedef int32_t tile_sums[TILE_ROWS][LVR_GROUP];

/* Up to four sums of one tile of rows: four blocks, or the halves of two. */
typedef struct step {
    const panel *panel;
    const unit *units; /* of the first block; the next block's is n_tiles further on */
    uint32_t n_tiles, first, n_blocks, n_rows;
    float (*acc)[LVR_GROUP];
    tile_sums *sums;
} step;

/* ---- tiles ---- */

/* Intel SDM volume 1, 18.3: palette 1. */
typedef struct tile_config {
    _Alignas(64) uint8_t palette;
    uint8_t start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;
_Static_assert(sizeof(tile_config) == 64, "as LDTILECFG reads it");

/* For n rows and blocks of `depth` inputs. Constants, for gcc 12's _tile_loadconfig tells the compiler of 8
 * of the 64 bytes it reads: stores to the others would be dropped. */
#define CONFIG(depth, n)                                                                                     \
    {                                                                                                        \
        .palette = 1, .row_bytes = {64, 64, 64, 64, depth, depth, 64, 64}, .rows = {                         \
            n,                                                                                               \
            n,                                                                                               \
            n,                                                                                               \
            n,                                                                                               \
            n,                                                                                               \
            n,                                                                                               \
            (depth) / 4,                                                                                     \
            (depth) / 4                                                                                      \
        }                                                                                                    \
    }
#define CONFIGS(depth)                                                                                       \
    {                                                                                                        \
        CONFIG(depth, 1), CONFIG(depth, 2), CONFIG(depth, 3), CONFIG(depth, 4), CONFIG(depth, 5),            \
            CONFIG(depth, 6), CONFIG(depth, 7), CONFIG(depth, 8), CONFIG(depth, 9), CONFIG(depth, 10),       \
            CONFIG(depth, 11), CONFIG(depth, 12), CONFIG(depth, 13), CONFIG(depth, 14), CONFIG(depth, 15),   \
            CONFIG(depth, 16)                                                                                \
    }

static const tile_config whole_blocks[TILE_ROWS] = CONFIGS(32), half_blocks[TILE_ROWS] = CONFIGS(16);

/* The compiler must take it that tile instructions read what the pointers reach: gcc 12's intrinsics do not
 * say so, and stores before them could be moved behind them. */
#define READS_MEMORY(p, q) __asm__ volatile("" : : "r"(p), "r"(q) : "memory")

/* ---- one step: the tiles' part, then AVX-512's ---- */

INLINE uint32_t sums_per_block(const form f)
{
    return f == HALVES ? 2u : 1u;
}

/* Where the tiles of sum i are. */
INLINE const int8_t *activations(const form f, const step *s, uint32_t i)
{
    const unit *u = &s->units[i / sums_per_block(f) * s->n_tiles];
    return u->q[0] + i % sums_per_block(f) * HALF;
}

INLINE const uint8_t *weights(const form f, const step *s, uint32_t i)
{
    return s->panel->code[s->first][0] + i * (QUADS * QUAD_BYTES / sums_per_block(f));
}

#define MULTIPLY(sum, left, right, i)                                                                        \
    do {                                                                                                     \
        _tile_zero(sum);                                                                                     \
        _tile_loadd(left, activations(f, s, i), LVR_BLOCK);                                                  \
        _tile_loadd(right, weights(f, s, i), QUAD_BYTES);                                                    \
        _tile_dpbssd(sum, left, right);                                                                      \
    } while (0)

INLINE void begin_step(const form f, const step *s)
{
    const uint32_t n = s->n_blocks * sums_per_block(f);
    READS_MEMORY(s->units, s->panel);
    if (n < STEP_SUMS) {
        for (uint32_t i = 0; i < n; i++) {
            MULTIPLY(0, 4, 6, i);
            _tile_stored(0, s->sums[i], LVR_GROUP * 4u);
        }
        return;
    }
    MULTIPLY(0, 4, 6, 0);
    MULTIPLY(1, 5, 7, 1);
    MULTIPLY(2, 4, 6, 2);
    MULTIPLY(3, 5, 7, 3);
    _tile_stored(0, s->sums[0], LVR_GROUP * 4u);
    _tile_stored(1, s->sums[1], LVR_GROUP * 4u);
    _tile_stored(2, s->sums[2], LVR_GROUP * 4u);
    _tile_stored(3, s->sums[3], LVR_GROUP * 4u);
}

/* n_blocks is a constant where this is inlined. */
INLINE void scale_blocks(const form f, const step *s, const uint32_t n_blocks)
{
    const uint32_t per_block = sums_per_block(f);
    block_scales w[STEP_SUMS];
    for (uint32_t b = 0; b < n_blocks; b++)
        w[b] = load_scales(f, &s->panel->at[s->first + b]);
    for (uint32_t r = 0; r < s->n_rows; r++) {
        __m512 acc = _mm512_load_ps(s->acc[r]);
        LVR_UNROLL
        for (uint32_t b = 0; b < n_blocks; b++) {
            const unit *u = &s->units[b * s->n_tiles];
            const __m512i s0 = _mm512_load_si512(s->sums[b * per_block][r]);
            const __m512i s1 = f == HALVES ? _mm512_load_si512(s->sums[b * per_block + 1u][r]) : s0;
            acc = add_block(f, &w[b], s0, s1, u->da[r], u->qsum[r], acc);
        }
        _mm512_store_ps(s->acc[r], acc);
    }
}

INLINE void end_step(const form f, const step *s)
{
    if (s->n_blocks == STEP_SUMS / sums_per_block(f))
        scale_blocks(f, s, STEP_SUMS / sums_per_block(f));
    else
        for (step one = *s; one.n_blocks > 0; one.n_blocks--) {
            scale_blocks(f, &one, 1);
            one.units += one.n_tiles;
            one.sums += sums_per_block(f);
            one.first++;
        }
}

typedef struct step_fns {
    void (*begin)(const step *s);
    void (*end)(const step *s);
} step_fns;

#define STEP(name, f)                                                                                        \
    static void begin_##name(const step *s)                                                                  \
    {                                                                                                        \
        begin_step(f, s);                                                                                    \
    }                                                                                                        \
    static void end_##name(const step *s)                                                                    \
    {                                                                                                        \
        end_step(f, s);                                                                                      \
    }

STEP(plain, PLAIN)
STEP(min, MIN)
STEP(super, SUPER)
STEP(halves, HALVES)

static const step_fns steps[FORMS] = {
    [PLAIN] = {begin_plain, end_plain},
    [MIN] = {begin_min, end_min},
    [SUPER] = {begin_super, end_super},
    [HALVES] = {begin_halves, end_halves},
};

/* ---- panels ---- */

/* The n blocks at `span`; asks for the bytes of the next span, be they of this group or of the next. Type is
 * a constant where this is inlined. */
INLINE void unpack_panel(const lvr_wtype t, const uint8_t *span, uint32_t n, panel *ret)
{
    const block_type type = block_types[t];
    const __m512i bias = _mm512_set1_epi8((char)type.bias);
    const char *next = (const char *)span + SPAN_BLOCKS * type.block_bytes;
    for (uint32_t i = 0; i < n * type.block_bytes; i += CACHE_LINE)
        _mm_prefetch(next + i, _MM_HINT_T0);
    for (uint32_t b = 0; b < n; b++) {
        __m512i code[QUADS];
        ret->at[b] = locate(t, span, b);
        unpack_codes(t, ret->at[b].q, code);
        LVR_UNROLL
        for (unsigned j = 0; j < QUADS; j++)
            _mm512_store_si512(ret->code[b][j], _mm512_sub_epi8(code[j], bias));
    }
}

typedef void (*unpack_fn)(const uint8_t *span, uint32_t n, panel *ret);

#define UNPACKER(name, t)                                                                                    \
    static void unpack_##name(const uint8_t *span, uint32_t n, panel *ret)                                   \
    {                                                                                                        \
        unpack_panel(t, span, n, ret);                                                                       \
    }

UNPACKER(q8_0, LVR_Q8_0)
UNPACKER(q4_0, LVR_Q4_0)
UNPACKER(q4_1, LVR_Q4_1)
UNPACKER(q5_0, LVR_Q5_0)
UNPACKER(q5_1, LVR_Q5_1)
UNPACKER(q4_k, LVR_Q4_K)
UNPACKER(q5_k, LVR_Q5_K)
UNPACKER(q6_k, LVR_Q6_K)

static const unpack_fn unpackers[LVR_WTYPE_SLOTS] = {
    [LVR_Q8_0] = unpack_q8_0, [LVR_Q4_0] = unpack_q4_0, [LVR_Q4_1] = unpack_q4_1, [LVR_Q5_0] = unpack_q5_0,
    [LVR_Q5_1] = unpack_q5_1, [LVR_Q4_K] = unpack_q4_k, [LVR_Q5_K] = unpack_q5_k, [LVR_Q6_K] = unpack_q6_k,
};

/* ---- products ---- */

static void fill_unit(unit *u, const lvr_acts *a, uint32_t row, uint32_t n_rows, size_t block)
{
    const size_t n_blocks = a->n_in / LVR_BLOCK;
    for (uint32_t r = 0; r < n_rows; r++) {
        const size_t at = (row + r) * n_blocks + block;
        memcpy(u->q[r], a->q + at * LVR_BLOCK, LVR_BLOCK);
        u->da[r] = a->d[at];
        u->qsum[r] = (float)(a->hsum[2 * at] + a->hsum[2 * at + 1]);
    }
}

/* Blocks [first, first + n_blocks) of the slab's rows, which begin at `row`. */
static void fill_slab(slab *s, const lvr_acts *a, uint32_t row, size_t first, uint32_t n_blocks)
{
    for (uint32_t b = 0; b < n_blocks; b++)
        for (uint32_t t = 0; t < s->n_tiles; t++) {
            const uint32_t begin = t * s->tile_rows, left = s->n_rows - begin;
            fill_unit(&s->units[b * s->n_tiles + t], a, row + begin,
                      left < s->tile_rows ? left : s->tile_rows, first + b);
        }
}

/* Adds the slab's blocks, of which `at` is the first's place in the group, to acc. */
static void multiply_group(lvr_wtype type, const uint8_t *at, const slab *s, uint32_t n_blocks,
                           float (*acc)[LVR_GROUP])
{
    panel panels[2];
    _Alignas(64) tile_sums sums[2][STEP_SUMS];
    const block_type *t = &block_types[type];
    const step_fns *fns = &steps[t->form];
    const uint32_t step_blocks = STEP_SUMS / sums_per_block(t->form);
    step before = {0};
    unsigned turn = 0;
    for (uint32_t b = 0; b < n_blocks; b += SPAN_BLOCKS, at += SPAN_BLOCKS * t->block_bytes) {
        const uint32_t n = n_blocks - b < SPAN_BLOCKS ? n_blocks - b : SPAN_BLOCKS;
        panel *p = &panels[b / SPAN_BLOCKS % 2u];
        unpackers[type](at, n, p);
        for (uint32_t tile = 0; tile < s->n_tiles; tile++)
            for (uint32_t first = 0; first < n; first += step_blocks) {
                const uint32_t row = tile * s->tile_rows, rows = s->n_rows - row;
                const step now = {
                    .panel = p,
                    .units = &s->units[(b + first) * s->n_tiles + tile],
                    .n_tiles = s->n_tiles,
                    .first = first,
                    .n_blocks = n - first < step_blocks ? n - first : step_blocks,
                    .n_rows = rows < s->tile_rows ? rows : s->tile_rows,
                    .acc = acc + row,
                    .sums = sums[turn++ % 2u],
                };
                fns->begin(&now);
                if (before.n_blocks != 0)
                    fns->end(&before);
                before = now;
            }
    }
    fns->end(&before);
}

/* What the blocks of earlier slabs came to, or zeros; outputs beyond the matrix are not there. */
static void load_acc(const float *out, size_t stride, uint32_t n_rows, uint32_t width, bool first,
                     float (*ret)[LVR_GROUP])
{
    const __mmask16 present = first ? 0 : (__mmask16)((1u << width) - 1u);
    for (uint32_t r = 0; r < n_rows; r++)
        _mm512_store_ps(ret[r], _mm512_maskz_loadu_ps(present, out + r * stride));
}

static void store_acc(float (*acc)[LVR_GROUP], uint32_t n_rows, uint32_t width, float *out, size_t stride)
{
    const __mmask16 present = (__mmask16)((1u << width) - 1u);
    for (uint32_t r = 0; r < n_rows; r++)
        _mm512_mask_storeu_ps(out + r * stride, present, _mm512_load_ps(acc[r]));
}

/* At most SLAB_ROWS rows from `row` on. */
static void multiply_rows(const lvr_matrix *m, const lvr_acts *a, uint32_t row, uint32_t begin, uint32_t end,
                          float *out, size_t stride)
{
    _Alignas(64) float acc[SLAB_ROWS][LVR_GROUP];
    slab s;
    const block_type *t = &block_types[m->type];
    const uint64_t group_bytes = lvr_group_bytes(m->type, m->n_in);
    const size_t n_blocks = m->n_in / LVR_BLOCK;
    s.n_rows = a->n_rows - row < SLAB_ROWS ? a->n_rows - row : SLAB_ROWS;
    s.n_tiles = (s.n_rows + TILE_ROWS - 1u) / TILE_ROWS;
    s.tile_rows = (s.n_rows + s.n_tiles - 1u) / s.n_tiles;
    const uint32_t slab_blocks = SLAB_UNITS / s.n_tiles / SPAN_BLOCKS * SPAN_BLOCKS;
    _tile_loadconfig(&(t->form == HALVES ? half_blocks : whole_blocks)[s.tile_rows - 1u]);
    for (size_t b = 0; b < n_blocks; b += slab_blocks) {
        const uint32_t n = n_blocks - b < slab_blocks ? (uint32_t)(n_blocks - b) : slab_blocks;
        fill_slab(&s, a, row, b, n);
        for (uint32_t g = begin; g < end; g++) {
            const uint32_t width = lvr_group_width(m, g);
            float *to = out + row * stride + (size_t)g * LVR_GROUP;
            load_acc(to, stride, s.n_rows, width, b == 0, acc);
            multiply_group(m->type, m->data + g * group_bytes + b * t->block_bytes, &s, n, acc);
            store_acc(acc, s.n_rows, width, to, stride);
        }
    }
}

/* The tile registers are configured for this call alone: while they are in use, each switch of threads saves
 * 8 KiB more. */
static void amx_matmul(const lvr_matrix *m, const lvr_acts *a, uint32_t begin, uint32_t end, float *out,
                       size_t stride)
{
    if (a->n_rows < LEAST_ROWS) {
        lvr_avx512_matmul(m, a, begin, end, out, stride);
        return;
    }
    for (uint32_t row = 0; row < a->n_rows; row += SLAB_ROWS)
        multiply_rows(m, a, row, begin, end, out, stride);
    _tile_release();
}

void lvr_kernels_init_amx(lvr_kernels *k)
{
    for (unsigned t = 0; t < LVR_WTYPE_SLOTS; t++)
        if (unpackers[t] != NULL)
            k->matmul[t] = amx_matmul;
}
