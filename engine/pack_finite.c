#include "engine/pack_internal.h"

#include <string.h>

/* A float, half or bfloat16 is infinite or none if its exponent is all ones. */
#define F32_EXPONENT 0x7f800000u
#define F16_EXPONENT 0x7c00u
#define BF16_EXPONENT 0x7f80u

/* Where the numbers of a tensor that may not be finite are: `n` words at `at` of every `step` bytes. */
typedef struct places {
    uint32_t step, at[2], n;
} places;

static places places_of(lvr_wtype type)
{
    const uint32_t step = (uint32_t)lvr_wtype_row_bytes(type, lvr_wtype_inputs(type));
    switch (type) {
    case LVR_F32:
    case LVR_F16:
    case LVR_BF16:
    case LVR_Q4_0:
    case LVR_Q5_0:
    case LVR_Q8_0:
        return (places){.step = step, .at = {0}, .n = 1};
    case LVR_Q4_1:
    case LVR_Q5_1:
    case LVR_Q4_K:
    case LVR_Q5_K:
        return (places){.step = step, .at = {0, sizeof(uint16_t)}, .n = 2};
    case LVR_Q6_K:
        return (places){.step = step, .at = {step - (uint32_t)sizeof(uint16_t)}, .n = 1};
    case LVR_WTYPE_SLOTS:
        break;
    }
    return (places){.step = 1};
}

/* No early exit: such loops become SIMD code. */
static bool any_f32(const uint8_t *data, uint64_t n)
{
    uint32_t found = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t word;
        memcpy(&word, data + i * sizeof(word), sizeof(word));
        found |= (word & F32_EXPONENT) == F32_EXPONENT;
    }
    return found != 0;
}

static bool any_half(const uint8_t *data, uint64_t n, uint16_t exponent)
{
    uint16_t found = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint16_t word;
        memcpy(&word, data + i * sizeof(word), sizeof(word));
        found |= (word & exponent) == exponent;
    }
    return found != 0;
}

static bool any_scale(const uint8_t *data, uint64_t n, uint32_t step)
{
    uint32_t found = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint16_t word;
        memcpy(&word, data + i * step, sizeof(word));
        found |= (word & F16_EXPONENT) == F16_EXPONENT;
    }
    return found != 0;
}

/* Whether one of n elements (values, blocks) from `data` is not finite. */
static bool any(lvr_wtype type, const places *p, const uint8_t *data, uint64_t n)
{
    if (type == LVR_F32)
        return any_f32(data, n);
    if (type == LVR_F16 || type == LVR_BF16)
        return any_half(data, n, type == LVR_F16 ? F16_EXPONENT : BF16_EXPONENT);
    bool found = false;
    for (uint32_t k = 0; k < p->n; k++)
        found |= any_scale(data + p->at[k], n, p->step);
    return found;
}

bool lvr_pack_find_not_finite(lvr_wtype type, const void *rows, uint64_t bytes, uint64_t *ret_at)
{
    const places p = places_of(type);
    const uint8_t *data = rows;
    const uint64_t n = bytes / p.step;
    if (!any(type, &p, data, n))
        return false;
    uint64_t i = 0;
    while (!any(type, &p, data + i * p.step, 1))
        i++;
    *ret_at = i * lvr_wtype_inputs(type);
    return true;
}
