#include "costmodel/core/flash_model.h"

#include "common/minmax.h"
#include <inttypes.h>
#include <math.h>

#define NS_PER_S UINT64_C(1000000000)

/* Wide enough for any storage, narrow enough that a misplaced unit (KB for bytes, ms for ns) is caught. */
#define MAX_T0_NS (UINT64_C(10) * NS_PER_S)
#define MAX_BYTES_PER_S UINT64_C(1000000000000)

__extension__ typedef unsigned __int128 wide;

/* Rounded up: a modelled device is never faster than its parameters, and at most 1 ns a request slower. */
static uint64_t transfer_ns(uint64_t bytes, uint64_t bytes_per_s)
{
    const wide product = (wide)bytes * NS_PER_S;
    const wide ns = (product + bytes_per_s - 1) / bytes_per_s;
    return ns > UINT64_MAX ? UINT64_MAX : (uint64_t)ns;
}

static uint32_t first_free_lane(const lvr_flash_state *state, uint32_t depth)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < depth; i++)
        if (state->lane_free_ns[i] < state->lane_free_ns[best])
            best = i;
    return best;
}

/* The link carries a request's bytes once its fixed latency is over, one request after another at the maximal
 * rate. Since no lane is faster than the link (lvr_flash_params_check), lanes that share it settle into a
 * stagger in which either every lane keeps its own period or the link never idles: the steady state is
 * exactly min(depth * bytes / (t0 + bytes / lane), max). */
lvr_flash_times lvr_flash_admit(lvr_flash_state *state, const lvr_flash_params *params, uint64_t now_ns,
                                uint64_t bytes)
{
    const uint32_t lane = first_free_lane(state, params->depth);
    const uint64_t start = lvr_max_u64(now_ns, state->lane_free_ns[lane]);
    const uint64_t data_from = lvr_add_sat_u64(start, params->t0_ns);
    const uint64_t lane_end = lvr_add_sat_u64(data_from, transfer_ns(bytes, params->lane_bytes_per_s));
    const uint64_t link_from = lvr_max_u64(data_from, state->link_free_ns);
    const uint64_t link_end = lvr_add_sat_u64(link_from, transfer_ns(bytes, params->max_bytes_per_s));
    const uint64_t end = lvr_max_u64(lane_end, link_end);
    state->lane_free_ns[lane] = end;
    state->link_free_ns = link_end;
    return (lvr_flash_times){.start_ns = start, .end_ns = end};
}

double lvr_flash_rate_bytes_per_s(const lvr_flash_params *params, uint64_t bytes)
{
    if (bytes == 0)
        return 0;
    const double size = (double)bytes;
    const double lane_s = (double)params->t0_ns / 1e9 + size / (double)params->lane_bytes_per_s;
    return fmin((double)params->depth * size / lane_s, (double)params->max_bytes_per_s);
}

static lvr_status check_range(const char *name, uint64_t value, uint64_t min, uint64_t max, lvr_error *err)
{
    if (value >= min && value <= max)
        return LVR_OK;
    return lvr_fail(err, LVR_ERR_CONFIG, "flash: %s: expected %" PRIu64 " to %" PRIu64 ", found %" PRIu64,
                    name, min, max, value);
}

lvr_status lvr_flash_params_check(const lvr_flash_params *params, lvr_error *err)
{
    lvr_status status = check_range("t0_ns", params->t0_ns, 0, MAX_T0_NS, err);
    if (status == LVR_OK)
        status = check_range("lane_bytes_per_s", params->lane_bytes_per_s, 1, MAX_BYTES_PER_S, err);
    if (status == LVR_OK)
        status = check_range("max_bytes_per_s", params->max_bytes_per_s, 1, MAX_BYTES_PER_S, err);
    if (status == LVR_OK)
        status = check_range("depth", params->depth, 1, LVR_FLASH_MAX_DEPTH, err);
    if (status != LVR_OK)
        return status;
    if (params->lane_bytes_per_s <= params->max_bytes_per_s)
        return LVR_OK;
    return lvr_fail(err, LVR_ERR_CONFIG,
                    "flash: lane_bytes_per_s (%" PRIu64
                    ", one request alone) is above max_bytes_per_s (%" PRIu64
                    ", all together); lower the lane rate or raise the maximum",
                    params->lane_bytes_per_s, params->max_bytes_per_s);
}

lvr_status lvr_flash_params_scale(lvr_flash_params *params, double scale, lvr_error *err)
{
    if (!(scale > 0 && scale <= 1))
        return lvr_fail(
            err, LVR_ERR_CONFIG,
            "flash scale: expected more than 0 and at most 1 (a device can be made slower, never faster), "
            "found %g",
            scale);
    /* Compared as doubles: past the range of uint64_t the conversion below would be undefined. */
    const double t0 = ceil((double)params->t0_ns / scale);
    if (t0 > (double)MAX_T0_NS)
        return lvr_fail(err, LVR_ERR_CONFIG,
                        "flash scale %g: a request would take %g ns, more than %" PRIu64
                        "; use a scale nearer to 1",
                        scale, t0, MAX_T0_NS);
    const lvr_flash_params scaled = {.t0_ns = (uint64_t)t0,
                                     .lane_bytes_per_s = (uint64_t)((double)params->lane_bytes_per_s * scale),
                                     .max_bytes_per_s = (uint64_t)((double)params->max_bytes_per_s * scale),
                                     .depth = params->depth};
    if (scaled.lane_bytes_per_s == 0)
        return lvr_fail(err, LVR_ERR_CONFIG,
                        "flash scale %g: less than one byte per second would be left of %" PRIu64
                        " bytes/s; use a scale nearer to 1",
                        scale, params->lane_bytes_per_s);
    *params = scaled;
    return LVR_OK;
}

lvr_status lvr_flash_params_from_yaml(const lvr_yaml_node *map, lvr_flash_params *ret, lvr_error *err)
{
    lvr_flash_params params = {0};
    uint64_t depth = 0;
    lvr_status status = lvr_yaml_get_u64(map, "t0_ns", 0, MAX_T0_NS, &params.t0_ns, err);
    if (status == LVR_OK)
        status = lvr_yaml_get_u64(map, "lane_bytes_per_s", 1, MAX_BYTES_PER_S, &params.lane_bytes_per_s, err);
    if (status == LVR_OK)
        status = lvr_yaml_get_u64(map, "max_bytes_per_s", 1, MAX_BYTES_PER_S, &params.max_bytes_per_s, err);
    if (status == LVR_OK)
        status = lvr_yaml_get_u64(map, "depth", 1, LVR_FLASH_MAX_DEPTH, &depth, err);
    if (status != LVR_OK)
        return status;
    params.depth = (uint32_t)depth;
    status = lvr_flash_params_check(&params, err);
    if (status != LVR_OK) {
        lvr_error_prefix(err, "%s", lvr_yaml_where(map));
        return status;
    }
    *ret = params;
    return LVR_OK;
}

void lvr_flash_params_to_yaml(const lvr_flash_params *params, lvr_yaml_out *y)
{
    lvr_yaml_out_u64(y, "t0_ns", params->t0_ns);
    lvr_yaml_out_u64(y, "lane_bytes_per_s", params->lane_bytes_per_s);
    lvr_yaml_out_u64(y, "max_bytes_per_s", params->max_bytes_per_s);
    lvr_yaml_out_u64(y, "depth", params->depth);
}
