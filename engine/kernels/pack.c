/* From GGUF rows to the packed layout, and one row back. GGUF and the packed layout are little-endian, as is
 * every machine we build for. */
#include "engine/kernels/levels.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "weights are stored little-endian");

#define QUADS (LVR_BLOCK / 4u)
#define GGUF_Q8_BLOCK (2u + LVR_BLOCK)
#define GGUF_Q4_BLOCK (2u + LVR_BLOCK / 2u)

/* One output's GGUF row -> its lane of the group. A null row is a padding row of zero weights. */
typedef void (*pack_lane_fn)(const uint8_t *row, uint32_t n_in, uint32_t lane, uint8_t *group);

static void pack_lane_dense(const uint8_t *row, uint32_t n_in, uint32_t lane, uint8_t *group, size_t elem)
{
    for (size_t i = 0; i < n_in; i++) {
        uint8_t *dst = group + (i * LVR_GROUP + lane) * elem;
        if (row != NULL)
            memcpy(dst, row + i * elem, elem);
        else
            memset(dst, 0, elem);
    }
}

static void pack_lane_f32(const uint8_t *row, uint32_t n_in, uint32_t lane, uint8_t *group)
{
    pack_lane_dense(row, n_in, lane, group, sizeof(float));
}

static void pack_lane_f16(const uint8_t *row, uint32_t n_in, uint32_t lane, uint8_t *group)
{
    pack_lane_dense(row, n_in, lane, group, sizeof(uint16_t));
}

static void pack_lane_q8_0(const uint8_t *row, uint32_t n_in, uint32_t lane, uint8_t *group)
{
    static const uint8_t zero_block[GGUF_Q8_BLOCK] = {0};
    for (size_t b = 0; b < n_in / LVR_BLOCK; b++) {
        const uint8_t *src = row != NULL ? row + b * GGUF_Q8_BLOCK : zero_block;
        uint8_t *dst = group + b * LVR_Q8_BLOCK_BYTES;
        memcpy(dst + lane * 2u, src, 2);
        for (uint32_t i = 0; i < LVR_BLOCK; i++) /* flipping the sign bit adds 128 */
            dst[LVR_SCALES_BYTES + (i / 4u * LVR_GROUP + lane) * 4u + i % 4u] = src[2 + i] ^ 0x80u;
    }
}

/* GGUF's byte i holds inputs i and 16 + i, just as the packed byte does: whole quads of bytes move. */
static void pack_lane_q4_0(const uint8_t *row, uint32_t n_in, uint32_t lane, uint8_t *group)
{
    static const uint8_t zero_block[GGUF_Q4_BLOCK] = {0,    0,    0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88,
                                                      0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88};
    for (size_t b = 0; b < n_in / LVR_BLOCK; b++) {
        const uint8_t *src = row != NULL ? row + b * GGUF_Q4_BLOCK : zero_block;
        uint8_t *dst = group + b * LVR_Q4_BLOCK_BYTES;
        memcpy(dst + lane * 2u, src, 2);
        for (uint32_t j = 0; j < QUADS / 2u; j++)
            memcpy(dst + LVR_SCALES_BYTES + (j * LVR_GROUP + lane) * 4u, src + 2u + j * 4u, 4);
    }
}

static pack_lane_fn pack_lane_of(lvr_wtype t)
{
    switch (t) {
    case LVR_F32:
        return pack_lane_f32;
    case LVR_F16:
        return pack_lane_f16;
    case LVR_Q4_0:
        return pack_lane_q4_0;
    case LVR_Q8_0:
        return pack_lane_q8_0;
    }
    return NULL;
}

void lvr_pack_matrix(lvr_wtype t, uint32_t n_out, uint32_t n_in, const void *gguf_rows, uint8_t *dst)
{
    const pack_lane_fn pack_lane = pack_lane_of(t);
    const uint64_t row_bytes = lvr_wtype_row_bytes(t, n_in);
    const uint64_t group_bytes = lvr_group_bytes(t, n_in);
    if (pack_lane == NULL || row_bytes == 0)
        return;
    const uint8_t *rows = gguf_rows;
    for (uint64_t o = 0; o < (uint64_t)lvr_group_count(n_out) * LVR_GROUP; o++)
        pack_lane(o < n_out ? rows + o * row_bytes : NULL, n_in, o % LVR_GROUP,
                  dst + o / LVR_GROUP * group_bytes);
}

static float load_scale(const uint8_t *block, uint32_t lane)
{
    uint16_t h;
    memcpy(&h, block + lane * 2u, sizeof h);
    return lvr_f16_to_f32(h);
}

static void row_f32(const uint8_t *group, uint32_t n_in, uint32_t lane, float *ret)
{
    for (size_t i = 0; i < n_in; i++)
        memcpy(&ret[i], group + (i * LVR_GROUP + lane) * sizeof(float), sizeof(float));
}

static void row_f16(const uint8_t *group, uint32_t n_in, uint32_t lane, float *ret)
{
    for (size_t i = 0; i < n_in; i++) {
        uint16_t h;
        memcpy(&h, group + (i * LVR_GROUP + lane) * sizeof h, sizeof h);
        ret[i] = lvr_f16_to_f32(h);
    }
}

static void row_q4_0(const uint8_t *group, uint32_t n_in, uint32_t lane, float *ret)
{
    for (size_t b = 0; b < n_in / LVR_BLOCK; b++) {
        const uint8_t *block = group + b * LVR_Q4_BLOCK_BYTES;
        const float d = load_scale(block, lane);
        float *dst = ret + b * LVR_BLOCK;
        for (uint32_t i = 0; i < LVR_BLOCK / 2u; i++) {
            const int code = block[LVR_SCALES_BYTES + (i / 4u * LVR_GROUP + lane) * 4u + i % 4u];
            dst[i] = d * (float)((code & 15) - LVR_Q4_BIAS);
            dst[i + LVR_BLOCK / 2u] = d * (float)((code >> 4) - LVR_Q4_BIAS);
        }
    }
}

static void row_q8_0(const uint8_t *group, uint32_t n_in, uint32_t lane, float *ret)
{
    for (size_t b = 0; b < n_in / LVR_BLOCK; b++) {
        const uint8_t *block = group + b * LVR_Q8_BLOCK_BYTES;
        const float d = load_scale(block, lane);
        for (uint32_t i = 0; i < LVR_BLOCK; i++) {
            const int code = block[LVR_SCALES_BYTES + (i / 4u * LVR_GROUP + lane) * 4u + i % 4u];
            ret[b * LVR_BLOCK + i] = d * (float)(code - LVR_Q8_BIAS);
        }
    }
}

void lvr_packed_row(const lvr_matrix *m, uint32_t row, float *ret_row)
{
    const uint8_t *group = m->data + row / LVR_GROUP * lvr_group_bytes(m->type, m->n_in);
    const uint32_t lane = row % LVR_GROUP;
    switch (m->type) {
    case LVR_F32:
        row_f32(group, m->n_in, lane, ret_row);
        return;
    case LVR_F16:
        row_f16(group, m->n_in, lane, ret_row);
        return;
    case LVR_Q4_0:
        row_q4_0(group, m->n_in, lane, ret_row);
        return;
    case LVR_Q8_0:
        row_q8_0(group, m->n_in, lane, ret_row);
        return;
    }
}
