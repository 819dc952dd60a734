#include "costmodel/core/calibration.h"

double lvr_calibrate(const lvr_calibration *c, double q)
{
    if (c->n == 0)
        return q;
    if (!(q > c->q[0]))
        return c->p[0];
    for (uint32_t i = 1; i < c->n; i++) {
        if (q > c->q[i])
            continue;
        const double t = (q - c->q[i - 1]) / (c->q[i] - c->q[i - 1]);
        return c->p[i - 1] + t * (c->p[i] - c->p[i - 1]);
    }
    return c->p[c->n - 1];
}

/* Reads a list of numbers in [0, 1] that must ascend; strictly if asked. */
static lvr_status read_knots(const lvr_yaml_node *map, const char *key, bool strictly, double *ret,
                             uint32_t *ret_n, lvr_error *err)
{
    const lvr_yaml_node *seq = NULL;
    lvr_status st = lvr_yaml_get_seq(map, key, &seq, err);
    if (st != LVR_OK)
        return st;
    const size_t n = lvr_yaml_len(seq);
    if (n > LVR_CALIBRATION_MAX_KNOTS)
        return lvr_fail(err, LVR_ERR_CONFIG, "%s: %s has %zu knots, at most %d fit", lvr_yaml_where(seq), key,
                        n, LVR_CALIBRATION_MAX_KNOTS);
    for (size_t i = 0; i < n; i++) {
        const lvr_yaml_node *item = lvr_yaml_at(seq, i);
        st = lvr_yaml_as_double(item, 0.0, 1.0, &ret[i], err);
        if (st != LVR_OK)
            return st;
        if (i > 0 && (strictly ? ret[i] <= ret[i - 1] : ret[i] < ret[i - 1]))
            return lvr_fail(err, LVR_ERR_CONFIG, "%s: %s must ascend, found %g after %g",
                            lvr_yaml_where(item), key, ret[i], ret[i - 1]);
    }
    *ret_n = (uint32_t)n;
    return LVR_OK;
}

lvr_status lvr_calibration_from_yaml(const lvr_yaml_node *map, lvr_calibration *ret, lvr_error *err)
{
    lvr_calibration c = {0};
    uint32_t n_p = 0;
    lvr_status st = read_knots(map, "q", true, c.q, &c.n, err);
    if (st == LVR_OK)
        st = read_knots(map, "p", false, c.p, &n_p, err);
    if (st != LVR_OK)
        return st;
    if (n_p != c.n)
        return lvr_fail(err, LVR_ERR_CONFIG,
                        "%s: calibration has %u q and %u p knots, expected as many of each",
                        lvr_yaml_where(map), c.n, n_p);
    *ret = c;
    return LVR_OK;
}

void lvr_calibration_to_yaml(const lvr_calibration *c, lvr_yaml_out *y)
{
    lvr_yaml_out_doubles(y, "q", c->q, c->n);
    lvr_yaml_out_doubles(y, "p", c->p, c->n);
}
