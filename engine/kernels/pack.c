/* From GGUF rows to the packed layout, and one row back. GGUF's blocks are those of ggml (ggml-common.h of
 * llama.cpp: block_q4_0 and so on). GGUF and the packed layout are little-endian, as is every machine we
 * build for. */
#include "engine/kernels/unpack.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "weights are stored little-endian");

#define QUAD_BYTES (LVR_GROUP * 4u) /* four inputs of each output, a byte each */

static void put_half(const uint8_t *src, uint32_t lane, uint8_t *dst)
{
    memcpy(dst + lane * 2u, src, 2);
}

/* The low nibble of src[i] is of input i, the high of input 16 + i, as in the packed bytes: whole quads move.
 */
static void put_nibbles(const uint8_t src[LVR_BLOCK / 2u], uint32_t lane, uint8_t *dst)
{
    for (uint32_t j = 0; j < LVR_QUADS / 2u; j++)
        memcpy(dst + j * QUAD_BYTES + lane * 4u, src + j * 4u, 4);
}

/* The low four bits of each code. */
static void put_low_bits(const uint8_t codes[LVR_BLOCK], uint32_t lane, uint8_t *dst)
{
    uint8_t nibbles[LVR_BLOCK / 2u];
    for (uint32_t i = 0; i < LVR_BLOCK / 2u; i++)
        nibbles[i] = (uint8_t)((codes[i] & 15u) | codes[i + LVR_BLOCK / 2u] << 4);
    put_nibbles(nibbles, lane, dst);
}

static void put_fifth_bits(const uint8_t src[4], uint32_t lane, uint8_t *dst)
{
    memcpy(dst + lane * 4u, src, 4);
}

/* ---- one lane of a unit: an element of F32, F16, BF16, a block or super-block of the others ---- */

static void pack_f32(const uint8_t *src, uint32_t lane, uint8_t *dst)
{
    memcpy(dst + lane * 4u, src, 4);
}

static void pack_f16(const uint8_t *src, uint32_t lane, uint8_t *dst)
{
    memcpy(dst + lane * 2u, src, 2);
}

/* block_q8_0: f16 d, s8 q[32] */
static void pack_q8_0(const uint8_t *src, uint32_t lane, uint8_t *dst)
{
    put_half(src, lane, dst);
    for (uint32_t i = 0; i < LVR_BLOCK; i++) /* flipping the sign bit adds 128 */
        dst[LVR_SCALES_BYTES + i / 4u * QUAD_BYTES + lane * 4u + i % 4u] = src[2u + i] ^ 0x80u;
}

/* block_q4_0: f16 d, nibbles[16] */
static void pack_q4_0(const uint8_t *src, uint32_t lane, uint8_t *dst)
{
    put_half(src, lane, dst);
    put_nibbles(src + 2, lane, dst + LVR_SCALES_BYTES);
}

/* block_q4_1: f16 d, m, nibbles[16] */
static void pack_q4_1(const uint8_t *src, uint32_t lane, uint8_t *dst)
{
    put_half(src, lane, dst);
    put_half(src + 2, lane, dst + LVR_SCALES_BYTES);
    put_nibbles(src + 4, lane, dst + 2u * LVR_SCALES_BYTES);
}

/* block_q5_0: f16 d, u32 of fifth bits, nibbles[16] */
static void pack_q5_0(const uint8_t *src, uint32_t lane, uint8_t *dst)
{
    put_half(src, lane, dst);
    put_nibbles(src + 6, lane, dst + LVR_SCALES_BYTES);
    put_fifth_bits(src + 2, lane, dst + LVR_SCALES_BYTES + LVR_NIBBLES_BYTES);
}

/* block_q5_1: f16 d, m, u32 of fifth bits, nibbles[16] */
static void pack_q5_1(const uint8_t *src, uint32_t lane, uint8_t *dst)
{
    put_half(src, lane, dst);
    put_half(src + 2, lane, dst + LVR_SCALES_BYTES);
    put_nibbles(src + 8, lane, dst + 2u * LVR_SCALES_BYTES);
    put_fifth_bits(src + 4, lane, dst + 2u * LVR_SCALES_BYTES + LVR_NIBBLES_BYTES);
}

/*
 * The head of block_q4_K and block_q5_K: f16 d, dmin, u8 s[12], which holds eight scales and eight minima of
 * six bits: of blocks 0 to 3 in the low six bits of s[b] and s[4 + b]; of blocks 4 to 7 four bits each in
 * s[4 + b] (scale low, minimum high), the upper two bits on top of s[b - 4] and s[b].
 */
static void put_k_head(const uint8_t *src, uint32_t lane, uint8_t *dst)
{
    const uint8_t minus_dmin[2] = {src[2], src[3] ^ 0x80u};
    const uint8_t *s = src + 4;
    uint8_t *sc = dst + 2u * LVR_SCALES_BYTES + lane, *mn = sc + LVR_SUPER_BLOCKS * LVR_GROUP;
    put_half(src, lane, dst);
    put_half(minus_dmin, lane, dst + LVR_SCALES_BYTES);
    for (uint32_t b = 0; b < 4; b++) {
        sc[b * LVR_GROUP] = s[b] & 63u;
        mn[b * LVR_GROUP] = s[4 + b] & 63u;
        sc[(4 + b) * LVR_GROUP] = (uint8_t)((s[8 + b] & 15u) | s[b] >> 6 << 4);
        mn[(4 + b) * LVR_GROUP] = (uint8_t)(s[8 + b] >> 4 | s[4 + b] >> 6 << 4);
    }
}

/* The 32 nibbles of block b: bytes [32 (b / 2), + 32) hold block b in their low nibbles if b is even, in the
 * high ones if odd. */
static void k_nibbles(const uint8_t *nibbles, uint32_t b, uint8_t ret[LVR_BLOCK])
{
    for (uint32_t i = 0; i < LVR_BLOCK; i++)
        ret[i] = nibbles[b / 2u * LVR_BLOCK + i] >> b % 2u * 4u & 15u;
}

/* block_q4_K: head[16], nibbles[128] */
static void pack_q4_k(const uint8_t *src, uint32_t lane, uint8_t *dst)
{
    put_k_head(src, lane, dst);
    for (uint32_t b = 0; b < LVR_SUPER_BLOCKS; b++) {
        uint8_t codes[LVR_BLOCK];
        k_nibbles(src + 16, b, codes);
        put_low_bits(codes, lane, dst + LVR_K_HEAD_BYTES + b * LVR_NIBBLES_BYTES);
    }
}

/* block_q5_K: head[16], h[32], nibbles[128]; bit b of h[i] is the fifth bit of input i of block b */
static void pack_q5_k(const uint8_t *src, uint32_t lane, uint8_t *dst)
{
    const uint8_t *h = src + 16;
    put_k_head(src, lane, dst);
    dst += LVR_K_HEAD_BYTES;
    for (uint32_t b = 0; b < LVR_SUPER_BLOCKS; b++, dst += LVR_NIBBLES_BYTES + LVR_HIGH_BITS_BYTES) {
        uint8_t codes[LVR_BLOCK], fifth[4] = {0};
        k_nibbles(src + 48, b, codes);
        put_low_bits(codes, lane, dst);
        for (uint32_t i = 0; i < LVR_BLOCK; i++)
            fifth[i / 8u] |= (uint8_t)((h[i] >> b & 1u) << i % 8u);
        put_fifth_bits(fifth, lane, dst + LVR_NIBBLES_BYTES);
    }
}

/* The 32 codes of block b of a block_q6_K: its halves of 128 inputs take 64 bytes of low[128] and 32 of
 * high[64]; block k = b % 4 of a half has the nibbles of bytes [32 (k % 2), + 32), the low ones if k < 2, and
 * bits 2k, 2k + 1 of each high byte. */
static void q6_k_codes(const uint8_t *src, uint32_t b, uint8_t ret[LVR_BLOCK])
{
    const uint32_t k = b % 4u;
    const uint8_t *low = src + b / 4u * 64u + k % 2u * LVR_BLOCK, *high = src + 128 + b / 4u * LVR_BLOCK;
    for (uint32_t i = 0; i < LVR_BLOCK; i++)
        ret[i] = (uint8_t)((low[i] >> k / 2u * 4u & 15u) | (high[i] >> 2u * k & 3u) << 4);
}

/* block_q6_K: low[128], high[64], s8 scales[16] (of 16 inputs each), f16 d */
static void pack_q6_k(const uint8_t *src, uint32_t lane, uint8_t *dst)
{
    put_half(src + 208, lane, dst);
    for (uint32_t i = 0; i < 2u * LVR_SUPER_BLOCKS; i++)
        dst[LVR_SCALES_BYTES + i * LVR_GROUP + lane] = src[192 + i];
    dst += LVR_Q6_K_HEAD_BYTES;
    for (uint32_t b = 0; b < LVR_SUPER_BLOCKS; b++, dst += LVR_Q6_K_BLOCK_BYTES) {
        uint8_t codes[LVR_BLOCK];
        uint8_t *high = dst + LVR_NIBBLES_BYTES + lane * 4u;
        q6_k_codes(src, b, codes);
        put_low_bits(codes, lane, dst);
        for (uint32_t i = 0; i < 8; i++) /* inputs i, 8 + i, 16 + i and 24 + i share a byte */
            high[i / 4u * QUAD_BYTES + i % 4u] = (uint8_t)(codes[i] >> 4 | codes[8 + i] >> 4 << 2 |
                                                           codes[16 + i] >> 4 << 4 | codes[24 + i] >> 4 << 6);
    }
}

/* ---- whole matrices ---- */

typedef void (*pack_fn)(const uint8_t *src, uint32_t lane, uint8_t *dst);

static const pack_fn pack_of[LVR_WTYPE_SLOTS] = {
    [LVR_F32] = pack_f32,   [LVR_F16] = pack_f16,   [LVR_BF16] = pack_f16,  [LVR_Q4_0] = pack_q4_0,
    [LVR_Q4_1] = pack_q4_1, [LVR_Q5_0] = pack_q5_0, [LVR_Q5_1] = pack_q5_1, [LVR_Q8_0] = pack_q8_0,
    [LVR_Q4_K] = pack_q4_k, [LVR_Q5_K] = pack_q5_k, [LVR_Q6_K] = pack_q6_k,
};

void lvr_pack_matrix(lvr_wtype t, uint32_t n_out, uint32_t n_in, const void *gguf_rows, uint8_t *dst)
{
    if (lvr_wtype_row_bytes(t, n_in) == 0)
        return;
    const size_t n_units = n_in / lvr_wtype_inputs(t);
    const size_t unit_bytes = lvr_wtype_row_bytes(t, lvr_wtype_inputs(t));
    const size_t packed_bytes = lvr_group_bytes(t, lvr_wtype_inputs(t));
    if (n_out % LVR_GROUP != 0) /* padding rows: every bit 0 */
        memset(dst + n_out / LVR_GROUP * n_units * packed_bytes, 0, n_units * packed_bytes);
    for (size_t o = 0; o < n_out; o++) {
        const uint8_t *row = (const uint8_t *)gguf_rows + o * n_units * unit_bytes;
        uint8_t *group = dst + o / LVR_GROUP * n_units * packed_bytes;
        for (size_t u = 0; u < n_units; u++)
            pack_of[t](row + u * unit_bytes, o % LVR_GROUP, group + u * packed_bytes);
    }
}

static const lvr_unpacking unpackings[LVR_WTYPE_SLOTS] = LVR_UNPACKINGS;

/* One output of a block. */
static void row_of_block(const lvr_block *w, int bias, uint32_t lane, float ret[LVR_BLOCK])
{
    const float d = lvr_scale(w->d, lane);
    const float min = w->m != NULL ? lvr_scale(w->m, lane) * (float)w->mn[lane] : 0.0f;
    for (uint32_t i = 0; i < LVR_BLOCK; i++) {
        const float scaled = d * (float)w->sc[i / (LVR_BLOCK / 2u)][lane];
        ret[i] = scaled * (float)(w->code[i / 4u][lane][i % 4u] - bias);
        if (w->m != NULL)
            ret[i] += min;
    }
}

void lvr_packed_row(const lvr_matrix *m, uint32_t row, float *ret_row)
{
    const uint8_t *group = m->data + row / LVR_GROUP * lvr_group_bytes(m->type, m->n_in);
    const uint32_t lane = row % LVR_GROUP;
    if (!lvr_wtype_quantised(m->type)) {
        for (size_t i = 0; i < m->n_in; i++)
            ret_row[i] = lvr_dense_weight(m->type, group, i * LVR_GROUP + lane);
        return;
    }
    for (size_t b = 0; b < m->n_in / LVR_BLOCK; b++) {
        lvr_block w;
        unpackings[m->type].block(group, b, &w);
        row_of_block(&w, unpackings[m->type].bias, lane, ret_row + b * LVR_BLOCK);
    }
}

/* ---- some rows of a matrix ---- */

/* A packed unit is a few runs of arrays over the lanes. */
struct lanes {
    uint32_t n, bytes; /* arrays that follow each other; of one lane in each */
};

static const struct lanes lanes_of[LVR_WTYPE_SLOTS][3] = {
    [LVR_F32] = {{1, 4}},
    [LVR_F16] = {{1, 2}},
    [LVR_BF16] = {{1, 2}},
    [LVR_Q8_0] = {{1, 2}, {8, 4}},
    [LVR_Q4_0] = {{1, 2}, {4, 4}},
    [LVR_Q4_1] = {{2, 2}, {4, 4}},
    [LVR_Q5_0] = {{1, 2}, {5, 4}},
    [LVR_Q5_1] = {{2, 2}, {5, 4}},
    [LVR_Q4_K] = {{2, 2}, {16, 1}, {8 * 4, 4}},
    [LVR_Q5_K] = {{2, 2}, {16, 1}, {8 * 5, 4}},
    [LVR_Q6_K] = {{1, 2}, {16, 1}, {8 * 6, 4}},
};

static void copy_lane(lvr_wtype t, const uint8_t *from, uint32_t from_lane, uint8_t *to, uint32_t to_lane)
{
    for (size_t part = 0; part < 3; part++) {
        const uint32_t bytes = lanes_of[t][part].bytes;
        for (uint32_t i = 0; i < lanes_of[t][part].n; i++) {
            memcpy(to + to_lane * bytes, from + from_lane * bytes, bytes);
            from += LVR_GROUP * bytes;
            to += LVR_GROUP * bytes;
        }
    }
}

void lvr_pack_gather(const lvr_matrix *m, const uint32_t *rows, uint32_t n, uint8_t *dst)
{
    const size_t unit_bytes = lvr_group_bytes(m->type, lvr_wtype_inputs(m->type));
    const size_t group_bytes = lvr_group_bytes(m->type, m->n_in);
    memset(dst, 0, (n + LVR_GROUP - 1) / LVR_GROUP * group_bytes);
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *from = m->data + rows[i] / LVR_GROUP * group_bytes;
        uint8_t *to = dst + i / LVR_GROUP * group_bytes;
        for (size_t at = 0; at < group_bytes; at += unit_bytes)
            copy_lane(m->type, from + at, rows[i] % LVR_GROUP, to + at, i % LVR_GROUP);
    }
}
