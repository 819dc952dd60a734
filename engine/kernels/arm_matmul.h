/*
 * The products of quantised weights that the arm64 levels share; each includes this file once, after levels.h
 * and arm_neon.h, and after it has said how it multiplies:
 *
 *   SUM_REGISTERS    registers of s32 sums per row and 4 outputs
 *   ROW_PAIRS        true: a tile of 2 rows or more goes by pairs of rows, false: by single rows (the "unit")
 *   CODES_SIGNED     true: it multiplies signed codes, so Q8_0's must lose their bias first
 *   INLINE           what makes a function a part of its caller
 *   unit_sums        a struct of registers: sums of one unit and 4 outputs
 *   unit_acts        16 activations of each row of a unit
 *   load_unit        fills unit_acts
 *   dot_8            unit_sums += 8 inputs x 4 outputs: two quads of codes and inputs 8k ... of unit_acts
 *   row_sums         unit_sums -> the sums of one of its rows, output by output
 *
 * The unit of work is a tile: 1, 2, 4 or 8 rows of activations times one group of 16 outputs. A group's
 * weights come from memory for the first tile of rows and from L1 or L2 for the others, and are unpacked once
 * per tile. The integer sums of a block take at most 16 of the 32 registers: large tiles take a group's
 * outputs in parts. The type of weights, the number of rows and whatever depends on them are constants
 * wherever a function here is inlined. All sums are exact, so their order is free.
 */
#define UNROLL _Pragma("GCC unroll 8")
#define GROUP_VECTORS (LVR_GROUP / 4u)
#define MAX_ROWS 8u
#define SUMS_AT_ONCE (16u / SUM_REGISTERS) /* rows x registers of outputs */

/* ---- one block of 32 inputs and 16 outputs, in the packed layout ---- */

typedef struct block {
    const uint8_t *d, *m;   /* f16[16] */
    const uint8_t *sc, *mn; /* of a K type; sc of Q6_K: s8[2][16] */
    const uint8_t *codes;   /* bytes, or nibbles */
    const uint8_t *high;    /* fifth bits, or fifth and sixth */
} block;

INLINE bool has_high_bits(lvr_wtype t)
{
    return t == LVR_Q5_0 || t == LVR_Q5_1 || t == LVR_Q5_K || t == LVR_Q6_K;
}

INLINE bool has_minima(lvr_wtype t)
{
    return t == LVR_Q4_1 || t == LVR_Q5_1 || t == LVR_Q4_K || t == LVR_Q5_K;
}

/* Q4_K, Q5_K: a scale and a minimum for each block; Q6_K: two scales. */
INLINE bool has_block_scales(lvr_wtype t)
{
    return t == LVR_Q4_K || t == LVR_Q5_K || t == LVR_Q6_K;
}

INLINE int32_t bias_of(lvr_wtype t)
{
    switch (t) {
    case LVR_Q8_0:
        return CODES_SIGNED ? 0 : LVR_Q8_BIAS;
    case LVR_Q4_0:
        return LVR_Q4_BIAS;
    case LVR_Q5_0:
        return 16;
    case LVR_Q6_K:
        return 32;
    default:
        return 0;
    }
}

INLINE block plain_block(const uint8_t *p, lvr_wtype t)
{
    const uint8_t *codes = p + (has_minima(t) ? 2u : 1u) * LVR_SCALES_BYTES;
    return (block){.d = p, .m = p + LVR_SCALES_BYTES, .codes = codes, .high = codes + LVR_NIBBLES_BYTES};
}

INLINE block q45_k_block(const uint8_t *super, size_t b, size_t codes_bytes)
{
    const uint8_t *sc = super + 2u * LVR_SCALES_BYTES + b * LVR_GROUP;
    const uint8_t *codes = super + LVR_K_HEAD_BYTES + b * codes_bytes;
    return (block){.d = super,
                   .m = super + LVR_SCALES_BYTES,
                   .sc = sc,
                   .mn = sc + LVR_SUPER_BLOCKS * LVR_GROUP,
                   .codes = codes,
                   .high = codes + LVR_NIBBLES_BYTES};
}

INLINE block q6_k_block(const uint8_t *super, size_t b)
{
    const uint8_t *codes = super + LVR_Q6_K_HEAD_BYTES + b * LVR_Q6_K_BLOCK_BYTES;
    return (block){.d = super,
                   .sc = super + LVR_SCALES_BYTES + b * 2u * LVR_GROUP,
                   .codes = codes,
                   .high = codes + LVR_NIBBLES_BYTES};
}

INLINE block block_at(const uint8_t *group, size_t b, lvr_wtype t)
{
    const size_t super = b / LVR_SUPER_BLOCKS, in_super = b % LVR_SUPER_BLOCKS;
    switch (t) {
    case LVR_Q8_0:
        return plain_block(group + b * LVR_Q8_BLOCK_BYTES, t);
    case LVR_Q4_1:
        return plain_block(group + b * LVR_Q4_1_BLOCK_BYTES, t);
    case LVR_Q5_0:
        return plain_block(group + b * LVR_Q5_0_BLOCK_BYTES, t);
    case LVR_Q5_1:
        return plain_block(group + b * LVR_Q5_1_BLOCK_BYTES, t);
    case LVR_Q4_K:
        return q45_k_block(group + super * LVR_Q4_K_SUPER_BYTES, in_super, LVR_NIBBLES_BYTES);
    case LVR_Q5_K:
        return q45_k_block(group + super * LVR_Q5_K_SUPER_BYTES, in_super,
                           LVR_NIBBLES_BYTES + LVR_HIGH_BITS_BYTES);
    case LVR_Q6_K:
        return q6_k_block(group + super * LVR_Q6_K_SUPER_BYTES, in_super);
    default:
        return plain_block(group + b * LVR_Q4_BLOCK_BYTES, t);
    }
}

/* ---- unpacking: registers of 4 outputs x 4 inputs ---- */

/* The fifth bits of `quad`, in place, from the 32 bits of each of 4 outputs. */
INLINE uint8x16_t fifth_bits(uint8x16_t bits, unsigned quad)
{
    static const uint8_t outputs[16] = {0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12};
    static const uint8_t inputs[16] = {1, 2, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8};
    const uint8x16_t byte = vqtbl1q_u8(bits, vaddq_u8(vld1q_u8(outputs), vdupq_n_u8((uint8_t)(quad / 2u))));
    const uint8x16_t mask = vld1q_u8(inputs);
    const uint8x16_t set = vtstq_u8(byte, quad % 2u == 0 ? mask : vshlq_n_u8(mask, 4));
    return vandq_u8(set, vdupq_n_u8(16));
}

/* Q6_K's fifth and sixth bits of `quad`, in place. */
INLINE uint8x16_t upper_bits(uint8x16_t pairs, unsigned quad)
{
    const uint8x16_t mask = vdupq_n_u8(0x30);
    switch (quad / 2u) {
    case 0:
        return vandq_u8(vshlq_n_u8(pairs, 4), mask);
    case 1:
        return vandq_u8(vshlq_n_u8(pairs, 2), mask);
    case 2:
        return vandq_u8(pairs, mask);
    default:
        return vandq_u8(vshrq_n_u8(pairs, 2), mask);
    }
}

/* Codes of inputs 4 quad ... of outputs 4 v ... */
INLINE uint8x16_t codes_of(const block *w, unsigned quad, unsigned v, lvr_wtype t)
{
    if (t == LVR_Q8_0) {
        const uint8x16_t codes = vld1q_u8(w->codes + quad * 64u + v * 16u);
        return CODES_SIGNED ? veorq_u8(codes, vdupq_n_u8(0x80)) : codes;
    }
    const uint8x16_t both = vld1q_u8(w->codes + quad % 4u * 64u + v * 16u);
    const uint8x16_t low = quad < 4 ? vandq_u8(both, vdupq_n_u8(15)) : vshrq_n_u8(both, 4);
    if (!has_high_bits(t))
        return low;
    if (t == LVR_Q6_K)
        return vorrq_u8(low, upper_bits(vld1q_u8(w->high + quad % 2u * LVR_HIGH_BITS_BYTES + v * 16u), quad));
    return vorrq_u8(low, fifth_bits(vld1q_u8(w->high + v * 16u), quad));
}

INLINE float32x4_t halves_of(const uint8_t *p, unsigned v)
{
    const uint16_t *h = (const uint16_t *)(const void *)p;
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(h + 4u * v)));
}

INLINE uint8x8_t load_4_bytes(const uint8_t *p, unsigned v)
{
    uint32_t bytes;
    memcpy(&bytes, p + 4u * v, sizeof bytes);
    return vreinterpret_u8_u32(vdup_n_u32(bytes));
}

INLINE int32x4_t unsigned_of(const uint8_t *p, unsigned v)
{
    return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(load_4_bytes(p, v)))));
}

INLINE int32x4_t signed_of(const uint8_t *p, unsigned v)
{
    return vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(load_4_bytes(p, v)))));
}

/* ---- a tile ---- */

/* The activations of a tile in one block: those of row r are `stride` elements after those of row r - 1. */
typedef struct tile_rows {
    const int8_t *q;
    const float *d;
    const int16_t *hsum;
    size_t q_stride, d_stride;
} tile_rows;

/* Outputs 4 * first ... of a tile: n_vec registers of 4. */
typedef struct part {
    unsigned first, n_vec, n_rows;
    bool paired;
} part;

INLINE unsigned units_of(const part *p)
{
    return p->paired ? p->n_rows / 2u : p->n_rows;
}

/* Adds the 16 inputs of one half of the block. */
INLINE void add_half(unit_sums s[][GROUP_VECTORS], const block *w, const tile_rows *x, const part *p,
                     const unsigned half, const lvr_wtype t)
{
    unit_acts q[MAX_ROWS];
    UNROLL
    for (unsigned u = 0; u < units_of(p); u++)
        load_unit(&q[u], x->q + (p->paired ? 2u * u : u) * x->q_stride + half * LVR_BLOCK / 2u, x->q_stride,
                  p->paired);
    UNROLL
    for (unsigned k = 0; k < 2; k++) {
        UNROLL
        for (unsigned v = 0; v < p->n_vec; v++) {
            const uint8x16_t w0 = codes_of(w, 4u * half + 2u * k, p->first + v, t);
            const uint8x16_t w1 = codes_of(w, 4u * half + 2u * k + 1u, p->first + v, t);
            UNROLL
            for (unsigned u = 0; u < units_of(p); u++)
                dot_8(&s[u][v], w0, w1, &q[u], k, p->paired);
        }
    }
}

INLINE void clear_sums(unit_sums s[][GROUP_VECTORS], const part *p)
{
    UNROLL
    for (unsigned u = 0; u < units_of(p); u++) {
        UNROLL
        for (unsigned v = 0; v < p->n_vec; v++)
            s[u][v] = (unit_sums){{vdupq_n_s32(0)}};
    }
}

INLINE int32x4_t sums_of_row(unit_sums s[][GROUP_VECTORS], const part *p, unsigned row, unsigned v)
{
    return p->paired ? row_sums(&s[row / 2u][v], row % 2u, true) : row_sums(&s[row][v], 0, false);
}

/* isum of the contract. */
INLINE void block_sums(int32x4_t isum[][GROUP_VECTORS], const block *w, const tile_rows *x, const part *p,
                       const lvr_wtype t)
{
    unit_sums s[MAX_ROWS][GROUP_VECTORS];
    clear_sums(s, p);
    add_half(s, w, x, p, 0, t);
    if (t == LVR_Q6_K) {
        UNROLL
        for (unsigned r = 0; r < p->n_rows; r++) {
            const int32x4_t bias = vdupq_n_s32(-bias_of(t) * x->hsum[r * 2u * x->d_stride]);
            UNROLL
            for (unsigned v = 0; v < p->n_vec; v++)
                isum[r][v] =
                    vmulq_s32(vaddq_s32(sums_of_row(s, p, r, v), bias), signed_of(w->sc, p->first + v));
        }
        clear_sums(s, p);
    }
    add_half(s, w, x, p, 1, t);
    UNROLL
    for (unsigned r = 0; r < p->n_rows; r++) {
        const int16_t *hsum = x->hsum + r * 2u * x->d_stride;
        const int32x4_t bias = vdupq_n_s32(-bias_of(t) * (t == LVR_Q6_K ? hsum[1] : hsum[0] + hsum[1]));
        UNROLL
        for (unsigned v = 0; v < p->n_vec; v++) {
            int32x4_t sum = sums_of_row(s, p, r, v);
            if (bias_of(t) != 0)
                sum = vaddq_s32(sum, bias);
            if (t == LVR_Q6_K)
                sum = vmlaq_s32(isum[r][v], sum, signed_of(w->sc + LVR_GROUP, p->first + v));
            else if (has_block_scales(t))
                sum = vmulq_s32(sum, unsigned_of(w->sc, p->first + v));
            isum[r][v] = sum;
        }
    }
}

/* acc = fmaf(isum, d * da, acc), and the term of the minima. */
INLINE void scale_sums(float32x4_t acc[][GROUP_VECTORS], int32x4_t isum[][GROUP_VECTORS], const block *w,
                       const tile_rows *x, const part *p, const lvr_wtype t)
{
    UNROLL
    for (unsigned r = 0; r < p->n_rows; r++) {
        const float da = x->d[r * x->d_stride];
        const int16_t *hsum = x->hsum + r * 2u * x->d_stride;
        const int32_t qsum = hsum[0] + hsum[1];
        UNROLL
        for (unsigned v = 0; v < p->n_vec; v++) {
            const unsigned at = p->first + v;
            float32x4_t sum =
                vfmaq_f32(acc[r][at], vcvtq_f32_s32(isum[r][v]), vmulq_n_f32(halves_of(w->d, at), da));
            if (has_minima(t)) {
                const int32x4_t minima =
                    has_block_scales(t) ? vmulq_n_s32(unsigned_of(w->mn, at), qsum) : vdupq_n_s32(qsum);
                sum = vfmaq_f32(sum, vcvtq_f32_s32(minima), vmulq_n_f32(halves_of(w->m, at), da));
            }
            acc[r][at] = sum;
        }
    }
}

INLINE void tile(const uint8_t *group, const lvr_acts *a, uint32_t row, float32x4_t *sums, const lvr_wtype t,
                 const unsigned n_rows)
{
    const size_t n_blocks = a->n_in / LVR_BLOCK;
    tile_rows x = {.q = a->q + (size_t)row * a->n_in,
                   .d = a->d + row * n_blocks,
                   .hsum = a->hsum + row * n_blocks * 2u,
                   .q_stride = a->n_in,
                   .d_stride = n_blocks};
    part p = {.n_vec = n_rows * GROUP_VECTORS > SUMS_AT_ONCE ? SUMS_AT_ONCE / n_rows : GROUP_VECTORS,
              .n_rows = n_rows,
              .paired = ROW_PAIRS && n_rows > 1};
    float32x4_t acc[MAX_ROWS][GROUP_VECTORS];
    for (unsigned r = 0; r < n_rows; r++)
        for (unsigned v = 0; v < GROUP_VECTORS; v++)
            acc[r][v] = vdupq_n_f32(0.0f);
    for (size_t b = 0; b < n_blocks; b++, x.q += LVR_BLOCK, x.d++, x.hsum += 2) {
        const block w = block_at(group, b, t);
        for (p.first = 0; p.first < GROUP_VECTORS; p.first += p.n_vec) {
            int32x4_t isum[MAX_ROWS][GROUP_VECTORS];
            block_sums(isum, &w, &x, &p, t);
            scale_sums(acc, isum, &w, &x, &p, t);
        }
    }
    memcpy(sums, acc, n_rows * sizeof acc[0]);
}

/* ---- from tiles to products ---- */

/* sums: row r's 16 outputs from [4r]. */
typedef void (*tile_fn)(const uint8_t *group, const lvr_acts *a, uint32_t row, float32x4_t *sums);

enum { TILE_SIZES = 4 }; /* of 1, 2, 4 and 8 rows */

/* Products by the largest tiles that fit; tiles[i] has 2^i rows, NULL: no such tile. */
static void multiply(const lvr_matrix *m, const lvr_acts *a, uint32_t begin, uint32_t end, float *out,
                     size_t stride, const tile_fn tiles[TILE_SIZES])
{
    const uint64_t group_bytes = lvr_group_bytes(m->type, m->n_in);
    for (uint32_t g = begin; g < end; g++) {
        const uint32_t width = lvr_group_width(m, g);
        unsigned size = TILE_SIZES - 1;
        for (uint32_t row = 0; row < a->n_rows; row += 1u << size) {
            while (tiles[size] == NULL || 1u << size > a->n_rows - row)
                size--;
            float32x4_t sums[MAX_ROWS * GROUP_VECTORS];
            tiles[size](m->data + g * group_bytes, a, row, sums);
            for (uint32_t r = 0; r < 1u << size; r++)
                memcpy(out + (row + r) * stride + (size_t)g * LVR_GROUP, sums + r * GROUP_VECTORS,
                       width * sizeof(float));
        }
    }
}

#define TILE(name, n, call)                                                                                  \
    static void name##_tile_##n(const uint8_t *group, const lvr_acts *a, uint32_t row, float32x4_t *sums)    \
    {                                                                                                        \
        call(group, a, row, sums, n);                                                                        \
    }
#define PRODUCT(name)                                                                                        \
    static void matmul_##name(const lvr_matrix *m, const lvr_acts *a, uint32_t begin, uint32_t end,          \
                              float *out, size_t stride)                                                     \
    {                                                                                                        \
        multiply(m, a, begin, end, out, stride, name##_tiles);                                               \
    }

#define QUANTISED(name, type)                                                                                \
    INLINE void name##_tile(const uint8_t *group, const lvr_acts *a, uint32_t row, float32x4_t *sums,        \
                            const unsigned n_rows)                                                           \
    {                                                                                                        \
        tile(group, a, row, sums, type, n_rows);                                                             \
    }                                                                                                        \
    TILE(name, 1, name##_tile)                                                                               \
    TILE(name, 2, name##_tile)                                                                               \
    TILE(name, 4, name##_tile)                                                                               \
    TILE(name, 8, name##_tile)                                                                               \
    static const tile_fn name##_tiles[TILE_SIZES] = {name##_tile_1, name##_tile_2, name##_tile_4,            \
                                                     name##_tile_8};                                         \
    PRODUCT(name)

QUANTISED(q8_0, LVR_Q8_0)
QUANTISED(q4_0, LVR_Q4_0)
QUANTISED(q4_1, LVR_Q4_1)
QUANTISED(q5_0, LVR_Q5_0)
QUANTISED(q5_1, LVR_Q5_1)
QUANTISED(q4_k, LVR_Q4_K)
QUANTISED(q5_k, LVR_Q5_K)
QUANTISED(q6_k, LVR_Q6_K)

static void use_quantised_products(lvr_kernels *k)
{
    k->matmul[LVR_Q8_0] = matmul_q8_0;
    k->matmul[LVR_Q4_0] = matmul_q4_0;
    k->matmul[LVR_Q4_1] = matmul_q4_1;
    k->matmul[LVR_Q5_0] = matmul_q5_0;
    k->matmul[LVR_Q5_1] = matmul_q5_1;
    k->matmul[LVR_Q4_K] = matmul_q4_k;
    k->matmul[LVR_Q5_K] = matmul_q5_k;
    k->matmul[LVR_Q6_K] = matmul_q6_k;
}
